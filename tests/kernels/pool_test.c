/* pool_test.c - pools and their gradients: the same bits everywhere, the definition, and the finite
 * differences. */
#include "op_fixture.h"

#include <keel/image_ops.h>

static const struct keel_pool_shape shapes[] = {
    {1, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}},   {2, 7, 5, 3, {3, 3}, {2, 2}, {1, 1}},
    {1, 8, 9, 17, {2, 3}, {1, 2}, {1, 0}},  {2, 6, 6, 64, {2, 2}, {2, 2}, {0, 0}},
    {1, 11, 4, 33, {3, 2}, {4, 3}, {2, 1}}, {1, 5, 5, 16, {5, 5}, {1, 1}, {2, 2}},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], KINDS = 2 };

static uint64_t in_count(const struct keel_pool_shape *s)
{
    return (uint64_t)s->batch * s->height * s->width * s->channels;
}
static uint64_t out_count(const struct keel_pool_shape *s)
{
    return (uint64_t)s->batch * keel_pool_out(s, 0) * keel_pool_out(s, 1) * s->channels;
}

struct results {
    const float *y, *dx;
    const int32_t *taps;
};
/* x of few values, so that there are equals. */
static struct results run_all(struct rig *rig, const struct keel_pool_shape *s, const float *x, bool max)
{
    const uint64_t in = in_count(s) * 4, out = out_count(s) * 4;
    struct keel_buffer *image = rig_bytes(rig, x, in), *y = rig_bytes(rig, NULL, out),
                       *taps = rig_bytes(rig, NULL, out), *dx = rig_bytes(rig, NULL, in),
                       *dy = rig_random(rig, out_count(s), 2, -1.0f, 1.0f);
    const struct keel_max_pool max_pool = {*s, image, y, taps};
    const struct keel_max_pool_grad max_grad = {*s, dy, taps, dx};
    const struct keel_avg_pool avg_pool = {*s, image, y};
    const struct keel_avg_pool_grad avg_grad = {*s, dy, dx};
    ck_ok(max ? keel_op_max_pool(rig->kernels, &max_pool, &rig->list)
              : keel_op_avg_pool(rig->kernels, &avg_pool, &rig->list));
    ck_ok(max ? keel_op_max_pool_grad(rig->kernels, &max_grad, &rig->list)
              : keel_op_avg_pool_grad(rig->kernels, &avg_grad, &rig->list));
    rig_run(rig);
    keel_launch_list_fini(&rig->list);
    return (struct results){rig_result(rig, y, out), rig_result(rig, dx, in), rig_result(rig, taps, out)};
}
static float *few_values(const struct keel_pool_shape *s)
{
    float *x = random_floats(in_count(s), 1, -4.0f, 4.0f);
    for (uint64_t i = 0; i < in_count(s); i++)
        x[i] = floorf(x[i]);
    return x;
}
static void body(struct rig *rig, const void *shape)
{
    float *x = few_values(shape);
    run_all(rig, shape, x, true);
    run_all(rig, shape, x, false);
    free(x);
}

static void global_body(struct rig *rig, const void *shape)
{
    const struct keel_pool_shape *s = shape;
    const uint64_t in = in_count(s), out = (uint64_t)s->batch * s->channels;
    const struct keel_global_avg_pool op = {s->batch, s->height * s->width, s->channels,
                                            rig_random(rig, in, 1, -1.0f, 1.0f),
                                            rig_bytes(rig, NULL, out * 4)};
    const struct keel_global_avg_pool_grad grad = {s->batch, s->height * s->width, s->channels,
                                                   rig_random(rig, out, 2, -1.0f, 1.0f),
                                                   rig_bytes(rig, NULL, in * 4)};
    ck_ok(keel_op_global_avg_pool(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_global_avg_pool_grad(rig->kernels, &grad, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, out * 4);
    rig_result(rig, grad.dx, in * 4);
}

START_TEST(pools_and_their_gradients_give_the_bits_of_the_host)
{
    for (int i = 0; i < SHAPES; i++) {
        equal_bits((enum rig_kind)_i, "pool", body, &shapes[i]);
        equal_bits((enum rig_kind)_i, "global pool", global_body, &shapes[i]);
    }
}
END_TEST

/* By the definition, in double; *tap the number of the largest. */
static double truth(const struct keel_pool_shape *s, const double *x, uint64_t at, bool max, int *tap)
{
    const int c = (int)(at % s->channels), q = (int)(at / s->channels % keel_pool_out(s, 1)),
              p = (int)(at / s->channels / keel_pool_out(s, 1) % keel_pool_out(s, 0)),
              b = (int)(at / s->channels / keel_pool_out(s, 1) / keel_pool_out(s, 0));
    double sum = 0, best = -INFINITY;
    for (int k = 0; k < (int)(s->kernel[0] * s->kernel[1]); k++) {
        const int u = p * (int)s->stride[0] - (int)s->pad[0] + k / (int)s->kernel[1];
        const int v = q * (int)s->stride[1] - (int)s->pad[1] + k % (int)s->kernel[1];
        if (u < 0 || v < 0 || u >= (int)s->height || v >= (int)s->width)
            continue;
        const double a = x[((b * (int)s->height + u) * (int)s->width + v) * (int)s->channels + c];
        sum += a;
        if (a > best) {
            best = a;
            *tap = k;
        }
    }
    return max ? best : sum / (s->kernel[0] * s->kernel[1]);
}

START_TEST(values_are_the_definition_and_the_first_of_equals_counts)
{
    for (int i = 0; i < SHAPES * KINDS; i++) {
        const struct keel_pool_shape *s = &shapes[i / KINDS];
        const bool max = i % KINDS;
        float *x = few_values(s);
        double *wide = malloc(in_count(s) * sizeof *wide);
        ck_assert_ptr_nonnull(wide);
        for (uint64_t k = 0; k < in_count(s); k++)
            wide[k] = (double)x[k];
        struct results got = run_all(rig_shared(RIG_HOST), s, x, max);
        for (uint64_t k = 0; k < out_count(s); k++) {
            int tap = -1;
            ck_assert_double_eq_tol((double)got.y[k], truth(s, wide, k, max, &tap), 1e-6);
            if (max)
                ck_assert_int_eq(got.taps[k], tap);
        }
        free(wide);
        free(x);
    }
}
END_TEST

/* Of distinct values, further apart than the steps: five points in double. */
START_TEST(gradients_are_the_finite_differences)
{
    static const double weights[] = {1.0 / 12, -8.0 / 12, 0, 8.0 / 12, -1.0 / 12};
    for (int i = 0; i < SHAPES * KINDS; i++) {
        const struct keel_pool_shape *s = &shapes[i / KINDS];
        const bool max = i % KINDS;
        const uint64_t in = in_count(s), out = out_count(s);
        float *x = malloc(in * sizeof *x), *dy = random_floats(out, 2, -1.0f, 1.0f);
        double *wide = malloc(in * sizeof *wide), *dx = calloc(in, sizeof *dx);
        ck_assert(x != NULL && wide != NULL && dx != NULL);
        for (uint64_t k = 0; k < in; k++)
            wide[k] = (double)(x[k] = (float)(k * 7919 % 10007));
        struct results got = run_all(rig_shared(RIG_HOST), s, x, max);
        for (uint64_t k = 0; k < in && in * out < 4000000; k++) {
            for (int step = 0; step < 5; step++) {
                int tap;
                wide[k] += (step - 2) * 1e-2;
                for (uint64_t o = 0; o < out; o++)
                    dx[k] += weights[step] * (double)dy[o] * truth(s, wide, o, max, &tap) / 1e-2;
                wide[k] = (double)x[k];
            }
        }
        if (in * out < 4000000)
            ck_assert_double_le(relative_error(got.dx, dx, in), 1e-6);
        free(x);
        free(dy);
        free(wide);
        free(dx);
    }
}
END_TEST

START_TEST(a_nan_is_the_largest_and_a_window_of_the_smallest_has_one)
{
    const struct keel_pool_shape s = {1, 1, 6, 1, {1, 3}, {1, 3}, {0, 0}};
    const float x[] = {1.0f, NAN, 2.0f, -INFINITY, -INFINITY, -INFINITY};
    struct results got = run_all(rig_shared(RIG_PTHREAD), &s, x, true);
    ck_assert(isnan(got.y[0]));
    ck_assert_int_eq(got.taps[0], 1);
    ck_assert_int_eq(got.taps[1], 0);
}
END_TEST

START_TEST(the_global_mean_is_near_the_truth_and_its_gradient_is_even)
{
    const struct keel_pool_shape s = {2, 7, 7, 5, {1, 1}, {1, 1}, {0, 0}};
    struct rig *rig = rig_shared(RIG_HOST);
    global_body(rig, &s);
    const float *y = rig->results[0], *dx = rig->results[1];
    float *x = random_floats(in_count(&s), 1, -1.0f, 1.0f), *dy = random_floats(10, 2, -1.0f, 1.0f);
    for (int b = 0; b < 2; b++)
        for (int c = 0; c < 5; c++) {
            double sum = 0;
            for (int i = 0; i < 49; i++) {
                sum += (double)x[(b * 49 + i) * 5 + c];
                ck_assert_double_eq_tol((double)dx[(b * 49 + i) * 5 + c], (double)dy[b * 5 + c] / 49, 1e-8);
            }
            ck_assert_double_eq_tol((double)y[b * 5 + c], sum / 49, 1e-6);
        }
    free(x);
    free(dy);
}
END_TEST

START_TEST(windows_that_make_no_sense_are_refused_by_name)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_buffer *any = rig_bytes(rig, NULL, 256), *out = rig_bytes(rig, NULL, 256);
    struct keel_max_pool op = {{1, 4, 4, 4, {3, 3}, {2, 2}, {1, 1}}, any, out, rig_bytes(rig, NULL, 256)};
    ck_ok(keel_op_max_pool(rig->kernels, &op, &rig->list));
    keel_launch_list_fini(&rig->list);
    op.shape.pad[1] = 3;
    ck_status(keel_op_max_pool(rig->kernels, &op, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "max_pool: [1, 4, 4, 4] in windows of 3 x 3, stride 2 x 2, "
                                                "padding 1 x 3: windows of padding alone"));
    op.shape.pad[1] = 1;
    op.shape.kernel[0] = 7;
    ck_status(keel_op_max_pool(rig->kernels, &op, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "the window is larger than the padded image"));
    op.shape.stride[0] = 0;
    ck_status(keel_op_max_pool(rig->kernels, &op, &rig->list), KEEL_INVALID);
    const struct keel_avg_pool average = {{0, 4, 4, 4, {3, 3}, {2, 2}, {1, 1}}, any, any};
    ck_status(keel_op_avg_pool(rig->kernels, &average, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "avg_pool: [0, 4, 4, 4]"));
    const struct keel_global_avg_pool global = {1, 0, 4, any, any};
    ck_status(keel_op_global_avg_pool(rig->kernels, &global, &rig->list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "global_avg_pool: 1 images of 0 pixels"));
    ck_assert_uint_eq(rig->list.count, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, pools_and_their_gradients_give_the_bits_of_the_host, 0, RIG_DEVICES);
    tcase_add_test(tc, values_are_the_definition_and_the_first_of_equals_counts);
    tcase_add_test(tc, gradients_are_the_finite_differences);
    tcase_add_test(tc, a_nan_is_the_largest_and_a_window_of_the_smallest_has_one);
    tcase_add_test(tc, the_global_mean_is_near_the_truth_and_its_gradient_is_even);
    tcase_add_test(tc, windows_that_make_no_sense_are_refused_by_name);
}

KEEL_TEST_MAIN("pool", cases, RIG_LIMIT_S)
