/* dropout_test.c - the mask depends on the element alone: same bits on each device, the stated rate. */
#include "op_fixture.h"

struct shape {
    uint64_t count;
    bool base;
};
static const struct shape shapes[] = {{1, false},  {3, true},    {63, true},
                                      {65, false}, {4099, true}, {100003, true}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const struct keel_control control = {.seed_lo = 5, .seed_hi = 6, .step = 7, .microbatch = 8};
static const float RATE = 0.1f;

static void dropout_body(struct rig *rig, const void *shape)
{
    const struct shape *s = shape;
    struct keel_dropout op = {
        .count = s->count,
        .rate = RATE,
        .stream = 9,
        .x = rig_random(rig, s->count, 1, 1.0f, 2.0f),
        .base = s->base ? rig_random(rig, s->count, 2, -1.0f, 1.0f) : NULL,
        .control = rig_bytes(rig, &control, sizeof control),
    };
    op.y = s->base ? op.base : op.x; /* in place */
    ck_ok(keel_op_dropout(rig->kernels, &op, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, s->count * 4);
}

START_TEST(dropout_gives_the_same_bits)
{
    for (int i = 0; i < SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "dropout %llu", (unsigned long long)shapes[i].count);
        same_bits((enum rig_kind)_i, name, dropout_body, &shapes[i]);
    }
}
END_TEST

START_TEST(each_element_is_kept_by_its_own_uniform_whatever_the_length)
{
    struct rig *rig = rig_shared((enum rig_kind)_i);
    for (uint64_t count = 1; count < 300; count += 7) {
        const struct shape s = {count, true};
        rig_clear(rig);
        dropout_body(rig, &s);
        float *x = random_floats(count, 1, 1.0f, 2.0f), *base = random_floats(count, 2, -1.0f, 1.0f);
        const float *y = rig->results[0], scale = keel_canon_divide(1.0f, 1.0f - RATE);
        for (uint64_t i = 0; i < count; i++) {
            float kept = keel_random_uniform(&control, 9, i) >= RATE ? x[i] * scale : 0.0f;
            ck_assert(y[i] == base[i] + kept);
        }
        free(x);
        free(base);
    }
}
END_TEST

START_TEST(one_in_ten_is_dropped_and_the_mean_stays)
{
    const struct shape s = {100003, false};
    struct rig *rig = rig_shared(RIG_HOST);
    dropout_body(rig, &s);
    float *x = random_floats(s.count, 1, 1.0f, 2.0f);
    const float *y = rig->results[0];
    double dropped = 0, before = 0, after = 0;
    for (uint64_t i = 0; i < s.count; i++) {
        dropped += y[i] == 0.0f;
        before += (double)x[i];
        after += (double)y[i];
    }
    const double n = (double)s.count; /* five standard errors each */
    ck_assert_double_le(fabs(dropped / n - 0.1), 5 * sqrt(0.09 / n));
    ck_assert_double_le(fabs(after - before) / n, 5 * 1.528 / 3.0 / sqrt(n));
    free(x);
}
END_TEST

START_TEST(a_rate_of_one_is_refused)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_buffer *x = rig_bytes(rig, NULL, 64);
    struct keel_dropout op = {.count = 4, .rate = 1.0f, .x = x, .y = x, .control = x};
    ck_status(keel_op_dropout(rig->kernels, &op, &rig->list), KEEL_INVALID);
    op.rate = NAN;
    ck_status(keel_op_dropout(rig->kernels, &op, &rig->list), KEEL_INVALID);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, dropout_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, each_element_is_kept_by_its_own_uniform_whatever_the_length, 0, RIG_DEVICES + 1);
    tcase_add_test(tc, one_in_ten_is_dropped_and_the_mean_stays);
    tcase_add_test(tc, a_rate_of_one_is_refused);
}

KEEL_TEST_MAIN("dropout", cases, RIG_LIMIT_S)
