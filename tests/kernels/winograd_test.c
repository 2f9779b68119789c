/* winograd_test.c - the native variant of 3 x 3 convolutions: it is taken only by native kernels and by
 * shapes of its rule, has the same bits on each device that takes it, and stays within the stated tolerance
 * of the canonical one. */
#include "op_fixture.h"

#include <keel/image_ops.h>

/* Padding 0, 1, 2; sizes that tiles of 4 do not divide; channels that 16 and 64 do not; several chunks of
 * tiles. */
static const struct keel_conv_shape shapes[] = {
    {1, 40, 40, 32, 32, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {1, 38, 41, 37, 70, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
    {1, 39, 38, 64, 33, {3, 3}, {1, 1}, {0, 2}, {1, 1}, 1},
    {1, 37, 41, 33, 64, {3, 3}, {1, 1}, {2, 0}, {1, 1}, 1},
    {6, 14, 14, 128, 80, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* As keel/image_ops.h states it, of the largest element. Measured here: about 1e-6 sqrt(terms). */
static double tolerance(uint32_t terms)
{
    return 0x1p-19 * sqrt((double)terms);
}

static void native_rig(struct rig *rig, enum rig_kind kind)
{
    rig_open(rig, kind);
    keel_kernels_destroy(rig->kernels);
    ck_ok(keel_kernels_create_with(rig->device, &(struct keel_kernels_options){.numerics = KEEL_NATIVE},
                                   &rig->kernels));
}

static uint64_t count_of(const struct keel_conv_shape *s, bool out)
{
    return out ? (uint64_t)s->batch * keel_conv_out(s, 0) * keel_conv_out(s, 1) * s->out_channels
               : (uint64_t)s->batch * s->height * s->width * s->channels;
}

static struct keel_conv_workspace workspace_of(struct rig *rig, const struct keel_conv_shape *s, bool back)
{
    const struct keel_conv_workspace_bytes bytes = keel_conv_workspace_bytes(rig->kernels, s, back);
    if (bytes.weights == 0)
        return (struct keel_conv_workspace){0};
    return (struct keel_conv_workspace){.weights = rig_bytes(rig, NULL, bytes.weights),
                                        .tiles = rig_bytes(rig, NULL, bytes.tiles),
                                        .products = rig_bytes(rig, NULL, bytes.products)};
}

struct results {
    const float *y, *dx;
};

static struct results run_both(struct rig *rig, const struct keel_conv_shape *s)
{
    rig_clear(rig);
    const struct keel_conv2d op = {
        .shape = *s,
        .x = rig_random(rig, count_of(s, false), 1, -1.0f, 1.0f),
        .weight = rig_random(rig, (uint64_t)9 * s->channels * s->out_channels, 2, -1.0f, 1.0f),
        .bias = rig_random(rig, s->out_channels, 3, -1.0f, 1.0f),
        .y = rig_bytes(rig, NULL, count_of(s, true) * 4),
        .workspace = workspace_of(rig, s, false)};
    const struct keel_conv2d_grad_data data = {.shape = *s,
                                               .dy = rig_random(rig, count_of(s, true), 4, -1.0f, 1.0f),
                                               .weight = op.weight,
                                               .dx = rig_bytes(rig, NULL, count_of(s, false) * 4),
                                               .workspace = workspace_of(rig, s, true)};
    ck_ok(keel_op_conv2d(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_conv2d_grad_data(rig->kernels, &data, &rig->list));
    rig_run(rig);
    return (struct results){.y = rig_result(rig, op.y, count_of(s, true) * 4),
                            .dx = rig_result(rig, data.dx, count_of(s, false) * 4)};
}

START_TEST(native_results_have_the_same_bits_on_each_device)
{
    struct rig host, device;
    native_rig(&host, RIG_HOST);
    native_rig(&device, (enum rig_kind)_i);
    for (int i = 0; i < SHAPES; i++) {
        const struct keel_conv_shape *s = &shapes[i];
        const struct results a = run_both(&host, s), b = run_both(&device, s);
        ck_assert_mem_eq(a.y, b.y, count_of(s, true) * 4);
        ck_assert_mem_eq(a.dx, b.dx, count_of(s, false) * 4);
    }
    rig_close(&host);
    rig_close(&device);
}
END_TEST

/* Equal would mean that the variant was not taken. */
static void near_but_not_equal(const float *native, const float *canonical, uint64_t count, uint32_t terms)
{
    double *truth = malloc(count * sizeof *truth);
    ck_assert_ptr_nonnull(truth);
    for (uint64_t i = 0; i < count; i++)
        truth[i] = (double)canonical[i];
    const double error = relative_error(native, truth, count);
    free(truth);
    printf("winograd: %u channels: differs by %.2g sqrt(channels) of the largest\n", terms,
           error / sqrt((double)terms));
    ck_assert_double_gt(error, 0);
    ck_assert_double_le(error, tolerance(terms));
}

START_TEST(native_results_are_within_the_tolerance_of_the_canonical_ones)
{
    struct rig native, canonical;
    native_rig(&native, RIG_PTHREAD);
    rig_open(&canonical, RIG_PTHREAD);
    for (int i = 0; i < SHAPES; i++) {
        const struct keel_conv_shape *s = &shapes[i];
        const struct results a = run_both(&native, s), b = run_both(&canonical, s);
        near_but_not_equal(a.y, b.y, count_of(s, true), s->channels);
        near_but_not_equal(a.dx, b.dx, count_of(s, false), s->out_channels);
    }
    rig_close(&native);
    rig_close(&canonical);
}
END_TEST

static void canonical_for(const struct keel_kernels *kernels, struct keel_conv_shape shape)
{
    for (int back = 0; back < 2; back++)
        ck_assert_uint_eq(keel_conv_workspace_bytes(kernels, &shape, back != 0).weights, 0);
}

START_TEST(only_native_kernels_and_shapes_of_the_rule_take_the_variant)
{
    struct rig native, canonical;
    native_rig(&native, RIG_HOST);
    rig_open(&canonical, RIG_HOST);
    const struct keel_conv_shape good = shapes[0];
    ck_assert_uint_gt(keel_conv_workspace_bytes(native.kernels, &good, false).weights, 0);
    ck_assert_uint_gt(keel_conv_workspace_bytes(native.kernels, &good, true).weights, 0);
    canonical_for(canonical.kernels, good);
    struct keel_conv_shape other = good;
    other.stride[0] = 2;
    canonical_for(native.kernels, other);
    other = good;
    other.dilation[1] = 2;
    canonical_for(native.kernels, other);
    other = good;
    other.kernel[1] = 1;
    canonical_for(native.kernels, other);
    other = good;
    other.pad[0] = 3;
    canonical_for(native.kernels, other);
    other = good;
    other.groups = 2;
    canonical_for(native.kernels, other);
    other = good;
    other.channels = 16;
    canonical_for(native.kernels, other);
    other = good;
    other.height = 12;
    canonical_for(native.kernels, other);
    rig_close(&native);
    rig_close(&canonical);
}
END_TEST

START_TEST(a_workspace_that_is_missing_or_small_is_refused_by_name)
{
    struct rig rig;
    native_rig(&rig, RIG_HOST);
    const struct keel_conv_shape *s = &shapes[0];
    struct keel_buffer *any = rig_bytes(&rig, NULL, count_of(s, true) * 4);
    struct keel_buffer *out = rig_bytes(&rig, NULL, count_of(s, true) * 4);
    struct keel_conv2d op = {.shape = *s, .x = any, .weight = any, .y = out};
    ck_status(keel_op_conv2d(rig.kernels, &op, &rig.list), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), "conv2d: no buffer for workspace.weights") != NULL, "%s",
                  keel_detail());
    op.workspace = workspace_of(&rig, s, false);
    op.workspace.products = rig_bytes(&rig, NULL, 64);
    ck_status(keel_op_conv2d(rig.kernels, &op, &rig.list), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), "conv2d: workspace.products holds 64 bytes") != NULL, "%s",
                  keel_detail());
    ck_assert_uint_eq(rig.list.count, 0);
    rig_close(&rig);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, native_results_have_the_same_bits_on_each_device, 0, RIG_DEVICES);
    tcase_add_test(tc, native_results_are_within_the_tolerance_of_the_canonical_ones);
    tcase_add_test(tc, only_native_kernels_and_shapes_of_the_rule_take_the_variant);
    tcase_add_test(tc, a_workspace_that_is_missing_or_small_is_refused_by_name);
}

KEEL_TEST_MAIN("winograd", cases, RIG_LIMIT_S)
