/* rotary_test.c - rotary position embedding: against double, its gradient by finite differences, turning
 * back, and the same bits on every device. */
#include "device_rig.h"
#include <keel/attention_ops.h>
#include <math.h>

struct shape {
    uint32_t batch, tokens, heads, width;
    float base;
    struct keel_rotary_scaling scaling;
};
#define AS_IS                                                                                                \
    {                                                                                                        \
        0, 0, 0, 0                                                                                           \
    }
static const struct shape shapes[] = {
    {1, 1, 1, 2, 10000, AS_IS},
    {2, 37, 3, 10, 10000, AS_IS},
    {1, 130, 2, 64, 10000, AS_IS},
    {1, 9, 1, 34, 1.5F, AS_IS},
    {1, 3000, 1, 4, 2, AS_IS},
    {1, 40, 1, 256, 1e9F, AS_IS},
    {1, 900, 1, 8, 100, {1, 0, 0, 0}},
    {1, 900, 2, 8, 100, {4, 0, 0, 0}},
    {1, 2000, 1, 64, 500, {8, 1, 4, 256}},
    {1, 70, 1, 34, 500000, {32, 0.5F, 3.25F, 64}},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static uint64_t count_of(const struct shape *s)
{
    return 3 * (uint64_t)s->batch * s->tokens * s->heads * s->width;
}

/* Llama 3's recipe, by wavelengths. */
static double scaled_true(const struct keel_rotary_scaling *scaling, double frequency)
{
    const double wave = 2 * 3.14159265358979323846 / frequency, turns = scaling->context / wave;
    if (scaling->factor == 0)
        return frequency;
    if (scaling->context == 0 || turns < (double)scaling->low)
        return frequency / (double)scaling->factor;
    const double s = fmin((turns - (double)scaling->low) / (double)(scaling->high - scaling->low), 1);
    return (1 - s) * frequency / (double)scaling->factor + s * frequency;
}

static void turn_true(const struct shape *s, const double *x, double *y)
{
    const uint64_t part = (uint64_t)s->heads * s->width;
    for (uint64_t e = 0; e < count_of(s); e += 2) {
        const uint64_t t = e / (3 * part) % s->tokens, d = e % s->width;
        double angle = (double)t * scaled_true(&s->scaling, pow((double)s->base, -(double)d / s->width));
        if (e % (3 * part) >= 2 * part)
            angle = 0;
        y[e] = x[e] * cos(angle) - x[e + 1] * sin(angle);
        y[e + 1] = x[e] * sin(angle) + x[e + 1] * cos(angle);
    }
}

static float *turn(const struct shape *s, struct rig_device *on, const float *x, bool inverse, bool in_place)
{
    struct keel_launch_list list = {0};
    struct keel_rotary op = {.batch = s->batch,
                             .tokens = s->tokens,
                             .heads = s->heads,
                             .kv_heads = s->heads,
                             .head_width = s->width,
                             .base = s->base,
                             .scaling = s->scaling,
                             .inverse = inverse};
    float *y = rig_numbers(0, count_of(s));
    op.qkv = rig_buffer(on, x, count_of(s) * sizeof *x);
    op.out = in_place ? op.qkv : rig_buffer(on, NULL, count_of(s) * sizeof *x);
    ck_ok(keel_op_rotary(on->kernels, &op, &list));
    rig_run(on, &list);
    rig_read(on, op.out, y);
    rig_clear(on);
    return y;
}

static double *doubles(const float *x, uint64_t count)
{
    double *y = calloc(count, sizeof *y);
    ck_assert_ptr_nonnull(y);
    for (uint64_t i = 0; x != NULL && i < count; i++)
        y[i] = (double)x[i];
    return y;
}

/* ---- claims ---- */

/* Inputs below 1 in size: two products with cosines that are 1e-7 off, and two roundings of 2^-24. */
START_TEST(queries_and_keys_turn_by_the_true_angle_with_the_same_bits_on_every_device)
{
    rig_open();
    for (int n = 0; n < SHAPES; n++) {
        const struct shape *s = &shapes[n];
        const uint64_t count = count_of(s);
        float *x = rig_numbers(1, count), *host = turn(s, &rig[0], x, false, false);
        double *truth = doubles(NULL, count), *x_true = doubles(x, count);
        turn_true(s, x_true, truth);
        for (uint64_t i = 0; i < count; i++)
            ck_assert_double_le(fabs((double)host[i] - truth[i]), 3.5e-7);
        for (int d = 0; d < RIG_DEVICES; d++)
            for (int in_place = 0; in_place < 2; in_place++) {
                float *y = turn(s, &rig[d], x, false, in_place != 0);
                rig_same_bits("rotary", d, y, host, count);
                free(y);
            }
        free(x);
        free(host);
        free(truth);
        free(x_true);
    }
    rig_close();
}
END_TEST

/* Angles do not lose digits: the last token of a million is as right as the first. */
START_TEST(cosines_and_sines_are_within_1e_7_far_out)
{
    rig_open();
    const struct shape s = {1, 1 << 20, 1, 2, 10000, AS_IS};
    float *x = calloc(count_of(&s), sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (uint64_t t = 0; t < s.tokens; t++)
        x[t * 6] = 1;
    float *y = turn(&s, &rig[0], x, false, false);
    double worst = 0;
    for (uint64_t t = 0; t < s.tokens; t++) {
        worst = fmax(worst, fabs((double)y[t * 6] - cos((double)t)));
        worst = fmax(worst, fabs((double)y[t * 6 + 1] - sin((double)t)));
    }
    printf("note: largest error of a cosine or sine: %.2g\n", worst);
    ck_assert_double_le(worst, 1e-7);
    ck_assert_double_gt(worst, 0);
    free(x);
    free(y);
    rig_close();
}
END_TEST

/* d(sum of dy * y) / dx by five points in double, against the host's inverse: 1e-6 of the largest. */
START_TEST(the_gradient_turns_back)
{
    rig_open();
    const struct shape s = {2, 9, 2, 6, 100, {8, 0.25F, 4, 3}};
    const uint64_t count = count_of(&s);
    float *x = rig_numbers(1, count), *dy = rig_numbers(2, count), *dx = turn(&s, &rig[0], dy, true, false);
    double *at = doubles(x, count), *y = doubles(NULL, count), worst = 0, largest = 0;
    const double h = 1e-3, points[4] = {-2, -1, 1, 2}, weights[4] = {1, -8, 8, -1};
    for (uint64_t e = 0; e < count; e++) {
        const double before = at[e];
        double slope = 0;
        for (int p = 0; p < 4; p++) {
            at[e] = before + points[p] * h;
            turn_true(&s, at, y);
            for (uint64_t i = 0; i < count; i++)
                slope += weights[p] * (double)dy[i] * y[i] / (12 * h);
        }
        at[e] = before;
        worst = fmax(worst, fabs((double)dx[e] - slope));
        largest = fmax(largest, fabs(slope));
    }
    ck_assert_double_gt(largest, 0.1);
    ck_assert_double_le(worst, 1e-6 * largest);
    free(x);
    free(dy);
    free(dx);
    free(at);
    free(y);
    rig_close();
}
END_TEST

/* One token of each of three sequences, whose keys have a head for each two of queries: the bits of that row
 * of a sequence of all. */
START_TEST(a_token_by_its_position_has_the_bits_of_its_row)
{
    enum { TOKENS = 50, HEADS = 4, SHARED = 2, WIDTH = 10, ROW = (HEADS + 2 * SHARED) * WIDTH, PICKED = 3 };
    static const int32_t positions[PICKED] = {0, 49, 17};
    rig_open();
    float *all = rig_numbers(1, TOKENS * ROW), *y = rig_numbers(0, TOKENS * ROW);
    float x[PICKED * ROW], picked[PICKED * ROW], turned[PICKED * ROW];
    for (int d = 0; d < RIG_DEVICES; d++) {
        struct rig_device *on = &rig[d];
        struct keel_launch_list list = {0};
        struct keel_rotary op = {.batch = 1,
                                 .tokens = TOKENS,
                                 .heads = HEADS,
                                 .kv_heads = SHARED,
                                 .head_width = WIDTH,
                                 .base = 10000};
        op.qkv = rig_buffer(on, all, TOKENS * ROW * sizeof *all);
        op.out = rig_buffer(on, NULL, TOKENS * ROW * sizeof *all);
        ck_ok(keel_op_rotary(on->kernels, &op, &list));
        rig_run(on, &list);
        rig_read(on, op.out, y);
        rig_clear(on);
        for (int i = 0; i < PICKED; i++) {
            memcpy(x + i * ROW, all + positions[i] * ROW, ROW * sizeof *x);
            memcpy(picked + i * ROW, y + positions[i] * ROW, ROW * sizeof *x);
        }
        op.batch = PICKED;
        op.tokens = 1;
        op.qkv = op.out = rig_buffer(on, x, sizeof x);
        op.position = rig_buffer(on, positions, sizeof positions);
        ck_ok(keel_op_rotary(on->kernels, &op, &list));
        rig_run(on, &list);
        rig_read(on, op.out, turned);
        rig_same_bits("rotary by position", d, turned, picked, PICKED * ROW);
        ck_assert(memcmp(turned, x, ROW * sizeof *x) == 0); /* token 0 turns by nothing */
        ck_assert(memcmp(turned + ROW, x + ROW, ROW * sizeof *x) != 0);
        ck_assert(memcmp(turned + 2 * ROW - SHARED * WIDTH, x + 2 * ROW - SHARED * WIDTH,
                         SHARED * WIDTH * sizeof *x) == 0); /* nor do values */
        rig_clear(on);
    }
    free(all);
    free(y);
    rig_close();
}
END_TEST

START_TEST(wrong_descriptors_are_refused_by_name)
{
    rig_open();
    struct rig_device *on = &rig[1];
    struct keel_launch_list list = {0};
    struct keel_buffer *x = rig_buffer(on, NULL, 3 * 4 * 2 * 8 * sizeof(float));
    const struct keel_rotary right = {.batch = 1,
                                      .tokens = 4,
                                      .heads = 2,
                                      .kv_heads = 2,
                                      .head_width = 8,
                                      .base = 10000,
                                      .qkv = x,
                                      .out = x};
    const float bases[] = {1, 0, -3, INFINITY, NAN};
    struct keel_rotary op = right;
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        op.base = bases[i];
        ck_status(keel_op_rotary(on->kernels, &op, &list), KEEL_INVALID);
    }
    static const struct keel_rotary_scaling wrong[] = {
        {0.5F, 0, 0, 0}, {NAN, 0, 0, 0},  {INFINITY, 0, 0, 0}, {0x1p17F, 0, 0, 0},
        {8, 4, 1, 256},  {8, -1, 4, 256}, {8, 1, 2048, 256},   {8, NAN, 4, 256}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        op = right;
        op.scaling = wrong[i];
        ck_status(keel_op_rotary(on->kernels, &op, &list), KEEL_INVALID);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "rotary: scaling"));
    }
    op = right;
    op.head_width = 7;
    ck_status(keel_op_rotary(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "rotary: heads of 7"));
    op.head_width = 258;
    ck_status(keel_op_rotary(on->kernels, &op, &list), KEEL_LIMIT);
    op = right;
    op.tokens = 0;
    ck_status(keel_op_rotary(on->kernels, &op, &list), KEEL_INVALID);
    op.tokens = 5; /* qkv too small */
    ck_status(keel_op_rotary(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.kv_heads = 0;
    ck_status(keel_op_rotary(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.position = rig_buffer(on, NULL, sizeof(int32_t));
    ck_status(keel_op_rotary(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "positions of 4 tokens"));
    ck_assert_uint_eq(list.count, 0);
    keel_launch_list_fini(&list);
    rig_close();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, queries_and_keys_turn_by_the_true_angle_with_the_same_bits_on_every_device);
    tcase_add_test(tc, cosines_and_sines_are_within_1e_7_far_out);
    tcase_add_test(tc, the_gradient_turns_back);
    tcase_add_test(tc, a_token_by_its_position_has_the_bits_of_its_row);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("rotary", cases, 120)
