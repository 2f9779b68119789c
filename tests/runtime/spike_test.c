/* spike_test.c - a loss that explodes is seen when it does, and one that is only noisy is not. */
#include "harness.h"
#include "spike.h"
#include <math.h>

static uint64_t seed;

/* -1 .. 1 */
static float noise(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(seed >> 40) / 8388608.0F - 1.0F;
}

static float falling(int step, float by)
{
    return (1.5F + 3.0F / sqrtf(1.0F + (float)step / 20.0F)) * (1.0F + by * noise());
}

START_TEST(a_noisy_loss_that_falls_is_none)
{
    for (seed = 0; seed < 50; seed++) {
        uint64_t before = seed;
        struct keel_spike spike = {.count = 0};
        for (int step = 0; step < 3000; step++)
            ck_assert_msg(!keel_spike_add(&spike, falling(step, 0.2F)), "step %d", step);
        seed = before;
    }
}
END_TEST

START_TEST(a_jump_is_one_and_is_told_once)
{
    struct keel_spike spike = {.count = 0};
    for (int step = 0; step < 200; step++)
        ck_assert(!keel_spike_add(&spike, falling(step, 0.05F)));
    ck_assert(keel_spike_add(&spike, 9.0F));
    ck_assert(spike.mean > 1.5 && spike.limit < 9.0);
    for (int i = 0; i < 10; i++)
        ck_assert(!keel_spike_add(&spike, 9.0F + (float)i));
    for (int step = 200; step < 300; step++)
        ck_assert(!keel_spike_add(&spike, falling(step, 0.05F)));
    ck_assert(keel_spike_add(&spike, INFINITY));
}
END_TEST

START_TEST(a_slow_rise_above_the_beginning_is_one)
{
    struct keel_spike spike = {.count = 0};
    bool seen = false;
    float loss = 0;
    for (int step = 0; step < 200; step++)
        ck_assert(!keel_spike_add(&spike, falling(step, 0.05F)));
    for (loss = 2.3F; loss < 40.0F && !seen; loss *= 1.01F)
        seen = keel_spike_add(&spike, loss);
    ck_assert(seen);
    ck_assert_float_lt(loss, 8.0F);
}
END_TEST

START_TEST(what_lasts_is_usual)
{
    struct keel_spike spike = {.count = 0};
    for (int step = 0; step < 100; step++)
        keel_spike_add(&spike, 2.0F);
    ck_assert(keel_spike_add(&spike, 8.0F));
    for (int step = 0; step < 200; step++)
        ck_assert(!keel_spike_add(&spike, 8.0F));
    ck_assert(keel_spike_add(&spike, 80.0F));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_noisy_loss_that_falls_is_none);
    tcase_add_test(tc, a_jump_is_one_and_is_told_once);
    tcase_add_test(tc, a_slow_rise_above_the_beginning_is_one);
    tcase_add_test(tc, what_lasts_is_usual);
}

KEEL_TEST_MAIN("spike", cases, 30)
