/* normal_test.c - normal numbers depend on their place alone: same bits on each device, the right moments. */
#include "op_fixture.h"

static const uint64_t counts[] = {1, 2, 31, 33, 4099, 100003};
enum { COUNTS = sizeof counts / sizeof counts[0] };
static const struct keel_control control = {.seed_lo = 5, .seed_hi = 6};

static void normal_body(struct rig *rig, const void *shape)
{
    struct keel_normal op = {.count = *(const uint64_t *)shape,
                             .deviation = 0.5f,
                             .stream = 3,
                             .control = rig_bytes(rig, &control, sizeof control)};
    op.y = rig_bytes(rig, NULL, op.count * 4);
    ck_ok(keel_op_normal(rig->kernels, &op, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, op.count * 4);
}

START_TEST(normal_gives_the_same_bits)
{
    for (int i = 0; i < COUNTS; i++) {
        char name[64];
        snprintf(name, sizeof name, "normal %llu", (unsigned long long)counts[i]);
        same_bits((enum rig_kind)_i, name, normal_body, &counts[i]);
    }
}
END_TEST

START_TEST(the_moments_are_those_of_a_normal)
{
    struct rig *rig = rig_shared(RIG_HOST);
    const uint64_t count = 100003;
    normal_body(rig, &count);
    const float *y = rig->results[0];
    double mean = 0, square = 0, fourth = 0, n = (double)count;
    for (uint64_t i = 0; i < count; i++) {
        double v = (double)y[i] / 0.5;
        mean += v / n;
        square += v * v / n;
        fourth += v * v * v * v / n;
    }
    ck_assert_double_le(fabs(mean), 5 / sqrt(n)); /* five standard errors each */
    ck_assert_double_le(fabs(square - 1), 5 * sqrt(2 / n));
    ck_assert_double_le(fabs(fourth - 3), 5 * sqrt(96 / n));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, normal_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, the_moments_are_those_of_a_normal);
}

KEEL_TEST_MAIN("normal", cases, RIG_LIMIT_S)
