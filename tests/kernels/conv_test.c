/* conv_test.c - convolution and its gradients: the same bits everywhere, near the truth, and the gradients
 * are the finite differences; what makes no sense is refused by name. */
#include "op_fixture.h"

#include <keel/image_ops.h>
#include <keel/shape_ops.h>

static const struct keel_conv_shape shapes[] = {
    {1, 1, 1, 1, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},
    {2, 7, 5, 3, 5, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {1, 11, 13, 3, 17, {7, 7}, {2, 2}, {3, 3}, {1, 1}, 1},
    {2, 6, 5, 67, 130, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {1, 9, 8, 33, 65, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 1},
    {2, 9, 8, 64, 64, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1},
    {1, 8, 9, 5, 4, {3, 2}, {1, 3}, {2, 0}, {2, 1}, 1},
    {2, 5, 4, 6, 4, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 2},
    {1, 6, 5, 19, 19, {3, 3}, {2, 1}, {1, 1}, {1, 1}, 19},
    {1, 5, 5, 4, 12, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 4},
    {1, 4, 5, 80, 68, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 2},
    {2, 3, 5, 17, 7, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},
    {1, 23, 19, 32, 48, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {1, 1, 40, 24, 40, {1, 5}, {1, 1}, {0, 2}, {1, 1}, 1},
    {2, 3, 4, 8, 16, {2, 1}, {5, 7}, {0, 0}, {1, 1}, 1},
    {1, 9, 8, 8, 9, {3, 3}, {2, 3}, {2, 2}, {2, 3}, 1},
    {1, 7, 8, 9, 8, {3, 4}, {4, 2}, {5, 6}, {2, 3}, 1},
    /* rows that lie inside, which are not copied, next to those that cross an edge */
    {1, 4, 20, 40, 64, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {1, 13, 37, 3, 64, {7, 7}, {2, 2}, {3, 3}, {1, 1}, 1},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static uint64_t x_count(const struct keel_conv_shape *s)
{
    return (uint64_t)s->batch * s->height * s->width * s->channels;
}
static uint64_t y_count(const struct keel_conv_shape *s)
{
    return (uint64_t)s->batch * keel_conv_out(s, 0) * keel_conv_out(s, 1) * s->out_channels;
}
static uint64_t w_count(const struct keel_conv_shape *s)
{
    return (uint64_t)s->kernel[0] * s->kernel[1] * (s->channels / s->groups) * s->out_channels;
}

struct results {
    const float *y, *dx, *dw;
};

/* Forward with bias, and both gradients. */
static struct results run_all(struct rig *rig, const struct keel_conv_shape *s)
{
    struct keel_conv2d op = {.shape = *s,
                             .x = rig_random(rig, x_count(s), 1, -1.0f, 1.0f),
                             .weight = rig_random(rig, w_count(s), 2, -1.0f, 1.0f),
                             .bias = rig_random(rig, s->out_channels, 3, -1.0f, 1.0f),
                             .y = rig_bytes(rig, NULL, y_count(s) * 4)};
    struct keel_conv2d_grad_data data = {.shape = *s,
                                         .dy = rig_random(rig, y_count(s), 4, -1.0f, 1.0f),
                                         .weight = op.weight,
                                         .dx = rig_random(rig, x_count(s), 5, -1.0f, 1.0f)};
    struct keel_conv2d_grad_weight weight = {
        .shape = *s, .x = op.x, .dy = data.dy, .dweight = rig_random(rig, w_count(s), 6, -1.0f, 1.0f)};
    ck_ok(keel_op_conv2d(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_conv2d_grad_data(rig->kernels, &data, &rig->list));
    ck_ok(keel_op_conv2d_grad_weight(rig->kernels, &weight, &rig->list));
    rig_run(rig);
    return (struct results){.y = rig_result(rig, op.y, y_count(s) * 4),
                            .dx = rig_result(rig, data.dx, x_count(s) * 4),
                            .dw = rig_result(rig, weight.dweight, w_count(s) * 4)};
}
static void body(struct rig *rig, const void *shape)
{
    run_all(rig, shape);
}

START_TEST(convolution_and_its_gradients_give_the_bits_of_the_host)
{
    for (int i = 0; i < SHAPES; i++) {
        char name[64];
        snprintf(name, sizeof name, "conv2d, shape %d", i);
        equal_bits((enum rig_kind)_i, name, body, &shapes[i]);
    }
}
END_TEST

/* Zeros of what a tap does not meet change no sum. One group. */
static void unfolded_body(struct rig *rig, const void *shape)
{
    const struct keel_conv_shape *s = shape;
    struct results own = run_all(rig, s);
    const uint32_t outs = s->out_channels, taps = s->kernel[0] * s->kernel[1];
    const uint32_t pixels[2] = {(uint32_t)(y_count(s) / outs), (uint32_t)(x_count(s) / s->channels)};
    for (int back = 0; back < 2; back++) {
        const uint32_t k = taps * (back ? outs : s->channels), n = back ? s->channels : outs;
        struct keel_buffer *weight = rig_random(rig, w_count(s), 2, -1.0f, 1.0f), *turned = weight,
                           *c = rig_bytes(rig, NULL, (uint64_t)pixels[back] * n * 4);
        if (back) {
            turned = rig_bytes(rig, NULL, w_count(s) * 4);
            const struct keel_permute turn = {
                .dims = 3, .size = {taps, s->channels, outs}, .order = {0, 2, 1}, .x = weight, .y = turned};
            ck_ok(keel_op_permute(rig->kernels, &turn, &rig->list));
        }
        struct keel_conv2d_unfold op = {.shape = *s, .back = back != 0};
        op.x = rig_random(rig, back ? y_count(s) : x_count(s), back ? 4 : 1, -1.0f, 1.0f);
        op.rows = pixels[back];
        op.to = rig_bytes(rig, NULL, (uint64_t)op.rows * k * 4);
        const struct keel_gemm gemm = {.m = op.rows,
                                       .n = n,
                                       .k = k,
                                       .batch = 1,
                                       .lda = k,
                                       .ldb = n,
                                       .ldc = n,
                                       .a = op.to,
                                       .b = turned,
                                       .c = c,
                                       .bias = back ? NULL : rig_random(rig, outs, 3, -1.0f, 1.0f)};
        ck_ok(keel_op_conv2d_unfold(rig->kernels, &op, &rig->list));
        ck_ok(keel_op_gemm(rig->kernels, &gemm, &rig->list));
        rig_run(rig);
        const float *made = rig_result(rig, c, (uint64_t)pixels[back] * n * 4),
                    *wanted = back ? own.dx : own.y;
        for (uint64_t i = 0; i < (uint64_t)pixels[back] * n; i++)
            ck_assert_msg(made[i] == wanted[i], "%a and %a, back %d, element %u", (double)made[i],
                          (double)wanted[i], back, (unsigned)i);
    }
}

START_TEST(a_convolution_is_the_product_of_its_unfolded_rows)
{
    for (int i = 0; i < SHAPES; i++)
        if (shapes[i].groups == 1) {
            rig_clear(rig_shared((enum rig_kind)_i));
            unfolded_body(rig_shared((enum rig_kind)_i), &shapes[i]);
        }
}
END_TEST

/* The definition, by signed positions, in double. */
static void truth(const struct keel_conv_shape *s, const double *x, const double *w, const double *bias,
                  double *y)
{
    const int in = (int)(s->channels / s->groups), out = (int)(s->out_channels / s->groups);
    const int h = (int)s->height, wide = (int)s->width, c = (int)s->channels, outs = (int)s->out_channels;
    const int out_h = (int)keel_conv_out(s, 0), out_w = (int)keel_conv_out(s, 1);
    for (int at = 0; at < (int)s->batch * out_h * out_w * outs; at++) {
        const int o = at % outs, q = at / outs % out_w, p = at / outs / out_w % out_h,
                  b = at / outs / out_w / out_h;
        y[at] = bias[o];
        for (int k = 0; k < (int)(s->kernel[0] * s->kernel[1]) * in; k++) {
            const int tap = k / in, i = tap / (int)s->kernel[1], j = tap % (int)s->kernel[1];
            const int u = p * (int)s->stride[0] + i * (int)s->dilation[0] - (int)s->pad[0];
            const int v = q * (int)s->stride[1] + j * (int)s->dilation[1] - (int)s->pad[1];
            if (u >= 0 && v >= 0 && u < h && v < wide)
                y[at] += x[((b * h + u) * wide + v) * c + o / out * in + k % in] * w[k * outs + o];
        }
    }
}

static double *doubles(uint64_t count, uint32_t seed)
{
    float *from = random_floats(count, seed, -1.0f, 1.0f);
    double *to = malloc((count > 0 ? count : 1) * sizeof *to);
    ck_assert_ptr_nonnull(to);
    for (uint64_t i = 0; i < count; i++)
        to[i] = (double)from[i];
    free(from);
    return to;
}

struct reference {
    const struct keel_conv_shape *shape;
    double *x, *w, *bias, *dy, *y, *old;
};
static struct reference reference_of(const struct keel_conv_shape *s)
{
    return (struct reference){s,
                              doubles(x_count(s), 1),
                              doubles(w_count(s), 2),
                              doubles(s->out_channels, 3),
                              doubles(y_count(s), 4),
                              malloc(y_count(s) * sizeof(double)),
                              doubles(w_count(s), 6)};
}
static void reference_free(struct reference *r)
{
    double *all[] = {r->x, r->w, r->bias, r->dy, r->y, r->old};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* d(sum y dy) / d(*at), by five points. */
static double slope(const struct reference *r, double *at)
{
    static const double weights[] = {1.0 / 12, -8.0 / 12, 0, 8.0 / 12, -1.0 / 12};
    const double old = *at, h = 1e-3;
    double sum = 0;
    for (int step = 0; step < 5; step++) {
        if (step == 2)
            continue;
        *at = old + (step - 2) * h;
        truth(r->shape, r->x, r->w, r->bias, r->y);
        for (uint64_t i = 0; i < y_count(r->shape); i++)
            sum += weights[step] * r->y[i] * r->dy[i] / h;
    }
    *at = old;
    return sum;
}

/* 1e-6 of the largest: chains have up to 603 terms. */
START_TEST(results_are_near_the_truth)
{
    for (int i = 0; i < SHAPES; i++) {
        struct results got = run_all(rig_shared(RIG_HOST), &shapes[i]);
        struct reference r = reference_of(&shapes[i]);
        truth(&shapes[i], r.x, r.w, r.bias, r.y);
        ck_assert_double_le(relative_error(got.y, r.y, y_count(&shapes[i])), 1e-6);
        reference_free(&r);
    }
}
END_TEST

START_TEST(gradients_are_the_finite_differences)
{
    for (int i = 0; i < SHAPES; i++) {
        const struct keel_conv_shape *s = &shapes[i];
        if (y_count(s) * w_count(s) / s->out_channels > 12000)
            continue;
        struct results got = run_all(rig_shared(RIG_HOST), s);
        struct reference r = reference_of(s);
        double *dx = malloc(x_count(s) * sizeof *dx), *dw = malloc(w_count(s) * sizeof *dw);
        ck_assert(dx != NULL && dw != NULL);
        for (uint64_t k = 0; k < x_count(s); k++)
            dx[k] = slope(&r, r.x + k);
        for (uint64_t k = 0; k < w_count(s); k++)
            dw[k] = r.old[k] + slope(&r, r.w + k);
        ck_assert_double_le(relative_error(got.dx, dx, x_count(s)), 1e-6);
        ck_assert_double_le(relative_error(got.dw, dw, w_count(s)), 1e-6);
        free(dx);
        free(dw);
        reference_free(&r);
    }
}
END_TEST

static void refused(struct keel_conv_shape shape, const char *words)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_buffer *any = rig_bytes(rig, NULL, 4096);
    const struct keel_conv2d op = {.shape = shape, .x = any, .weight = any, .y = any};
    ck_status(keel_op_conv2d(rig->kernels, &op, &rig->list), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), words) != NULL, "%s: no '%s'", keel_detail(), words);
    ck_assert_uint_eq(rig->list.count, 0);
}

START_TEST(shapes_that_make_no_sense_are_refused_by_name)
{
    const struct keel_conv_shape good = {1, 4, 4, 4, 6, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 2};
    struct keel_conv_shape bad = good;
    bad.batch = 0;
    refused(bad,
            "conv2d: [0, 4, 4, 4] by [3, 3, 4 / 2, 6], stride 1 x 1, padding 1 x 1, dilation 1 x 1: nothing");
    bad = good;
    bad.stride[1] = 0;
    refused(bad, "strides and dilations are 1 or more");
    bad.stride[1] = 1U << 31;
    refused(bad, "a stride of more than 2^31");
    bad = good;
    bad.groups = 4;
    refused(bad, "the groups do not divide the channels");
    bad.groups = 0;
    refused(bad, "the groups do not divide the channels");
    bad = good;
    bad.kernel[0] = 7;
    refused(bad, "the kernel is larger than the padded image");
    bad = good;
    bad.dilation[1] = 3;
    refused(bad, "the kernel is larger than the padded image");
    bad = good;
    bad.batch = 1U << 31;
    refused(bad, "more than 2^31 pixels");
    bad = good;
    bad.height = bad.width = 40;
    refused(bad, "conv2d: x holds 4096 bytes, needs 25600");
}
END_TEST

/* Stride times dilation has more than 32 bits: by lanes, and by tiles. */
START_TEST(large_strides_and_dilations_reach_the_pixels_that_they_should)
{
    const uint32_t far = 65537, n = 4, groups[] = {n, 1};
    for (int i = 0; i < 2; i++) {
        const struct keel_conv_shape s = {1, 70000, 1, n, n, {2, 1}, {far, 1}, {0, 0}, {far, 1}, groups[i]};
        equal_bits((enum rig_kind)_i, "conv2d, stride and dilation 65537", body, &s);
        const float *dx = rig_kept((enum rig_kind)_i)->results[1];
        for (uint32_t at = 0; at < 70000 * n; at++)
            ck_assert((dx[at] != 0.0f) == (at / n == 0 || at / n == far));
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, large_strides_and_dilations_reach_the_pixels_that_they_should, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, convolution_and_its_gradients_give_the_bits_of_the_host, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, a_convolution_is_the_product_of_its_unfolded_rows, 0, RIG_DEVICES);
    tcase_add_test(tc, results_are_near_the_truth);
    tcase_add_test(tc, gradients_are_the_finite_differences);
    tcase_add_test(tc, shapes_that_make_no_sense_are_refused_by_name);
}

KEEL_TEST_MAIN("conv", cases, RIG_LIMIT_S)
