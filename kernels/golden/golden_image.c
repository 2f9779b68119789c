/* golden_image.c - the golden cases of image_ops.h: what they need, and the hashes that they must have. */
#include "golden_internal.h"

#include <keel/image_ops.h>

/* Kernels, strides, paddings and dilations are digits, down and across: 32 is 3 down, 2 across. GROUPED: the
 * groups are as many as the channels say. */
enum { BIAS = 1, BACK = 1, RELU = 1, RESIDUAL = 2, STATISTICS = 4 };

static void pair(uint32_t out[2], uint32_t digits)
{
    out[0] = digits / 10;
    out[1] = digits % 10;
}

/* batch * 10000 + height * 100 + width, channels, outputs, kernel, stride, padding * 100 + dilation, groups,
 * flags */
static struct keel_conv_shape conv_shape(const uint32_t *shape)
{
    struct keel_conv_shape s = {.batch = shape[0] / 10000,
                                .height = shape[0] / 100 % 100,
                                .width = shape[0] % 100,
                                .channels = shape[1],
                                .out_channels = shape[2],
                                .groups = shape[6]};
    pair(s.kernel, shape[3]);
    pair(s.stride, shape[4]);
    pair(s.pad, shape[5] / 100);
    pair(s.dilation, shape[5] % 100);
    return s;
}
static uint64_t image(const struct keel_conv_shape *s)
{
    return (uint64_t)s->batch * s->height * s->width * s->channels;
}
static uint64_t result(const struct keel_conv_shape *s)
{
    return (uint64_t)s->batch * keel_conv_out(s, 0) * keel_conv_out(s, 1) * s->out_channels;
}
static uint64_t weights(const struct keel_conv_shape *s)
{
    return (uint64_t)s->kernel[0] * s->kernel[1] * (s->channels / s->groups) * s->out_channels;
}

static enum keel_status conv2d(struct golden_run *run, const uint32_t *shape)
{
    struct keel_conv2d op = {.shape = conv_shape(shape)};
    op.x = GOLDEN_FLOATS(run, "x", image(&op.shape));
    op.weight = GOLDEN_FLOATS(run, "weight", weights(&op.shape));
    if (shape[7] & BIAS)
        op.bias = GOLDEN_FLOATS(run, "bias", op.shape.out_channels);
    op.y = golden_output(run, "y", result(&op.shape));
    return golden_ready(run) ? keel_op_conv2d(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status conv2d_grad_data(struct golden_run *run, const uint32_t *shape)
{
    struct keel_conv2d_grad_data op = {.shape = conv_shape(shape)};
    op.dy = GOLDEN_FLOATS(run, "dy", result(&op.shape));
    op.weight = GOLDEN_FLOATS(run, "weight", weights(&op.shape));
    op.dx = golden_output(run, "dx", image(&op.shape));
    return golden_ready(run) ? keel_op_conv2d_grad_data(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status conv2d_grad_weight(struct golden_run *run, const uint32_t *shape)
{
    struct keel_conv2d_grad_weight op = {.shape = conv_shape(shape)};
    op.x = GOLDEN_FLOATS(run, "x", image(&op.shape));
    op.dy = GOLDEN_FLOATS(run, "dy", result(&op.shape));
    op.dweight = golden_floats(run, "dweight", GOLDEN_UPDATED, weights(&op.shape), -1.0F, 1.0F);
    return golden_ready(run) ? keel_op_conv2d_grad_weight(run->kernels, &op, &run->list) : KEEL_OK;
}

/* The rows of the middle, so that the first is none of the first pixel; BACK in the flags. */
static enum keel_status conv2d_unfold(struct golden_run *run, const uint32_t *shape)
{
    struct keel_conv2d_unfold op = {.shape = conv_shape(shape), .back = (shape[7] & BACK) != 0};
    const struct keel_conv_shape *s = &op.shape;
    const uint64_t from = op.back ? result(s) : image(s), to = op.back ? image(s) : result(s);
    const uint32_t line = op.back ? s->out_channels : s->channels;
    const uint32_t pixels = (uint32_t)(to / (op.back ? s->channels : s->out_channels));
    op.first = pixels / 3;
    op.rows = pixels - op.first;
    op.x = GOLDEN_FLOATS(run, "x", from);
    op.to = golden_output(run, "to", (uint64_t)op.rows * s->kernel[0] * s->kernel[1] * line);
    return golden_ready(run) ? keel_op_conv2d_unfold(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, channels, flags */
static enum keel_status batch_norm(struct golden_run *run, const uint32_t *shape)
{
    struct keel_batch_norm op = {.rows = shape[0], .n = shape[1], .epsilon = 0x1.4f8b59p-17F, .scale = 0.25F};
    const uint64_t count = (uint64_t)op.rows * op.n;
    op.relu = (shape[2] & RELU) != 0;
    op.x = golden_floats(run, "x", GOLDEN_INPUT, count, -3.0F, 4.0F);
    op.gamma = golden_floats(run, "gamma", GOLDEN_INPUT, op.n, 0.5F, 1.5F);
    op.beta = GOLDEN_FLOATS(run, "beta", op.n);
    if (shape[2] & RESIDUAL)
        op.residual = GOLDEN_FLOATS(run, "residual", count);
    if (shape[2] & STATISTICS) {
        op.running_mean = golden_floats(run, "running_mean", GOLDEN_UPDATED, op.n, -1.0F, 1.0F);
        op.running_variance = golden_floats(run, "running_variance", GOLDEN_UPDATED, op.n, 0.0F, 1.0F);
    }
    op.y = golden_output(run, "y", count);
    op.mean = golden_output(run, "mean", op.n);
    op.rstd = golden_output(run, "rstd", op.n);
    op.scratch = golden_scratch(run, "scratch", keel_batch_norm_scratch_bytes(op.rows, op.n));
    return golden_ready(run) ? keel_op_batch_norm(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status batch_norm_eval(struct golden_run *run, const uint32_t *shape)
{
    struct keel_batch_norm_eval op = {.rows = shape[0], .n = shape[1], .epsilon = 0x1.4f8b59p-17F};
    const uint64_t count = (uint64_t)op.rows * op.n;
    op.relu = (shape[2] & RELU) != 0;
    op.x = golden_floats(run, "x", GOLDEN_INPUT, count, -3.0F, 4.0F);
    op.gamma = golden_floats(run, "gamma", GOLDEN_INPUT, op.n, 0.5F, 1.5F);
    op.beta = GOLDEN_FLOATS(run, "beta", op.n);
    if (shape[2] & RESIDUAL)
        op.residual = GOLDEN_FLOATS(run, "residual", count);
    op.mean = GOLDEN_FLOATS(run, "mean", op.n);
    op.variance = golden_floats(run, "variance", GOLDEN_INPUT, op.n, 0.0F, 3.0F);
    op.y = golden_output(run, "y", count);
    return golden_ready(run) ? keel_op_batch_norm_eval(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status batch_norm_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_batch_norm_grad op = {.rows = shape[0], .n = shape[1]};
    const uint64_t count = (uint64_t)op.rows * op.n;
    op.x = golden_floats(run, "x", GOLDEN_INPUT, count, -3.0F, 4.0F);
    op.gamma = golden_floats(run, "gamma", GOLDEN_INPUT, op.n, 0.5F, 1.5F);
    op.mean = GOLDEN_FLOATS(run, "mean", op.n);
    op.rstd = golden_floats(run, "rstd", GOLDEN_INPUT, op.n, 0.25F, 2.0F);
    op.dy = GOLDEN_FLOATS(run, "dy", count);
    if (shape[2] & RELU)
        op.relu_y = GOLDEN_FLOATS(run, "relu_y", count);
    op.dx = golden_output(run, "dx", count);
    op.dgamma = golden_floats(run, "dgamma", GOLDEN_UPDATED, op.n, -1.0F, 1.0F);
    op.dbeta = golden_floats(run, "dbeta", GOLDEN_UPDATED, op.n, -1.0F, 1.0F);
    op.scratch = golden_scratch(run, "scratch", keel_batch_norm_scratch_bytes(op.rows, op.n));
    return golden_ready(run) ? keel_op_batch_norm_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

/* batch, height, width, channels, kernel, stride, padding */
static struct keel_pool_shape pool_shape(const uint32_t *shape)
{
    struct keel_pool_shape s = {
        .batch = shape[0], .height = shape[1], .width = shape[2], .channels = shape[3]};
    pair(s.kernel, shape[4]);
    pair(s.stride, shape[5]);
    pair(s.pad, shape[6]);
    return s;
}
static uint64_t pixels(const struct keel_pool_shape *s)
{
    return (uint64_t)s->batch * s->height * s->width * s->channels;
}
static uint64_t windows(const struct keel_pool_shape *s)
{
    return (uint64_t)s->batch * keel_pool_out(s, 0) * keel_pool_out(s, 1) * s->channels;
}

/* The gradient after its forward pass, which finds the taps. */
static enum keel_status max_pool(struct golden_run *run, const uint32_t *shape)
{
    const struct keel_pool_shape s = pool_shape(shape);
    struct keel_max_pool op = {.shape = s};
    op.x = GOLDEN_FLOATS(run, "x", pixels(&s));
    op.y = golden_output(run, "y", windows(&s));
    op.taps = golden_output(run, "taps", windows(&s));
    struct keel_max_pool_grad grad = {.shape = s, .taps = op.taps};
    grad.dy = GOLDEN_FLOATS(run, "dy", windows(&s));
    grad.dx = golden_output(run, "dx", pixels(&s));
    if (!golden_ready(run))
        return KEEL_OK;
    KEEL_TRY(keel_op_max_pool(run->kernels, &op, &run->list));
    return keel_op_max_pool_grad(run->kernels, &grad, &run->list);
}

static enum keel_status avg_pool(struct golden_run *run, const uint32_t *shape)
{
    const struct keel_pool_shape s = pool_shape(shape);
    struct keel_avg_pool op = {.shape = s};
    op.x = GOLDEN_FLOATS(run, "x", pixels(&s));
    op.y = golden_output(run, "y", windows(&s));
    struct keel_avg_pool_grad grad = {.shape = s};
    grad.dy = GOLDEN_FLOATS(run, "dy", windows(&s));
    grad.dx = golden_output(run, "dx", pixels(&s));
    if (!golden_ready(run))
        return KEEL_OK;
    KEEL_TRY(keel_op_avg_pool(run->kernels, &op, &run->list));
    return keel_op_avg_pool_grad(run->kernels, &grad, &run->list);
}

/* batch, pixels, channels */
static enum keel_status global_avg_pool(struct golden_run *run, const uint32_t *shape)
{
    struct keel_global_avg_pool op = {.batch = shape[0], .pixels = shape[1], .channels = shape[2]};
    struct keel_global_avg_pool_grad grad = {.batch = shape[0], .pixels = shape[1], .channels = shape[2]};
    op.x = GOLDEN_FLOATS(run, "x", (uint64_t)shape[0] * shape[1] * shape[2]);
    op.y = golden_output(run, "y", (uint64_t)shape[0] * shape[2]);
    grad.dy = GOLDEN_FLOATS(run, "dy", (uint64_t)shape[0] * shape[2]);
    grad.dx = golden_output(run, "dx", (uint64_t)shape[0] * shape[1] * shape[2]);
    if (!golden_ready(run))
        return KEEL_OK;
    KEEL_TRY(keel_op_global_avg_pool(run->kernels, &op, &run->list));
    return keel_op_global_avg_pool_grad(run->kernels, &grad, &run->list);
}

static const struct golden_case cases[] = {
    GOLDEN_CASE(conv2d, conv, "1-of-1", 0x40043c8a021653f5, 10101, 1, 1, 11, 11, 1111, 1, 0),
    GOLDEN_CASE(conv2d, conv, "2*7x6x5-67-bias", 0x09b18934be79242a, 20706, 5, 67, 33, 12, 1111, 1, BIAS),
    GOLDEN_CASE(conv2d, conv, "9x11x19-33-dilated", 0xa70afa777608e398, 10911, 19, 33, 32, 21, 2112, 1, 0),
    GOLDEN_CASE(conv2d, conv, "8x8x3-13-large", 0x10621d0976cf3e9d, 10808, 3, 13, 77, 22, 3311, 1, BIAS),
    GOLDEN_CASE(conv2d, conv, "2*5x5x19-depthwise", 0x79f504033388f9e8, 20505, 19, 19, 33, 11, 1111, 19,
                BIAS),
    GOLDEN_CASE(conv2d, conv, "5x6x6-9-groups", 0xb14448247e3f37a3, 10506, 6, 9, 33, 11, 1111, 3, 0),
    GOLDEN_CASE(conv2d, conv, "4x5x34-66-groups", 0x878e59324f2421dc, 10405, 34, 66, 32, 11, 1111, 2, 0),
    GOLDEN_CASE(conv2d, conv, "2*3x5x17-7-product", 0x5d2b1d01a0561eec, 20305, 17, 7, 11, 11, 11, 1, BIAS),
    GOLDEN_CASE(conv2d_grad_data, conv, "1-of-1", 0xf87a025ec4996845, 10101, 1, 1, 11, 11, 1111, 1, 0),
    GOLDEN_CASE(conv2d_grad_data, conv, "2*7x6x67-5", 0x121490ee64a3e617, 20706, 67, 5, 33, 12, 1111, 1, 0),
    GOLDEN_CASE(conv2d_grad_data, conv, "9x11x33-19-dilated", 0x1c8143e3e412a9a3, 10911, 33, 19, 32, 21, 2112,
                1, 0),
    GOLDEN_CASE(conv2d_grad_data, conv, "8x8x3-13-large", 0x4db4bffde3f0f445, 10808, 3, 13, 77, 22, 3311, 1,
                0),
    GOLDEN_CASE(conv2d_grad_data, conv, "2*5x5x19-depthwise", 0xea4c53fd36bfdf4b, 20505, 19, 19, 33, 11, 1111,
                19, 0),
    GOLDEN_CASE(conv2d_grad_data, conv, "5x6x6-9-groups", 0x281bcd84a5c39ee6, 10506, 6, 9, 33, 11, 1111, 3,
                0),
    GOLDEN_CASE(conv2d_grad_data, conv, "4x5x34-66-groups", 0xf85cae9d928b9d84, 10405, 34, 66, 32, 11, 1111,
                2, 0),
    GOLDEN_CASE(conv2d_grad_data, conv, "2*3x5x17-7-product", 0x515fc33dcebffd7f, 20305, 17, 7, 11, 11, 11, 1,
                0),
    GOLDEN_CASE(conv2d_grad_weight, conv, "1-of-1", 0x4b7012b401659426, 10101, 1, 1, 11, 11, 1111, 1, 0),
    GOLDEN_CASE(conv2d_grad_weight, conv, "2*7x6x5-67", 0x511bf891d8823e6b, 20706, 5, 67, 33, 12, 1111, 1, 0),
    GOLDEN_CASE(conv2d_grad_weight, conv, "9x11x19-33-dilated", 0x1870b656451345d2, 10911, 19, 33, 32, 21,
                2112, 1, 0),
    GOLDEN_CASE(conv2d_grad_weight, conv, "8x8x3-13-large", 0xd3c6013a106c9580, 10808, 3, 13, 77, 22, 3311, 1,
                0),
    GOLDEN_CASE(conv2d_grad_weight, conv, "2*5x5x19-depthwise", 0x5ef946108402bf67, 20505, 19, 19, 33, 11,
                1111, 19, 0),
    GOLDEN_CASE(conv2d_grad_weight, conv, "5x6x6-9-groups", 0x942f5a2577eb24fe, 10506, 6, 9, 33, 11, 1111, 3,
                0),
    GOLDEN_CASE(conv2d_grad_weight, conv, "4x5x34-66-groups", 0x7ba60b40cdcfe8f0, 10405, 34, 66, 32, 11, 1111,
                2, 0),
    GOLDEN_CASE(conv2d_grad_weight, conv, "2*3x5x17-7-product", 0x5df80cf2ba2ffa39, 20305, 17, 7, 11, 11, 11,
                1, 0),
    GOLDEN_CASE(conv2d_unfold, conv, "1-of-1", 0x7e3546f6b8dc2bfa, 10101, 1, 1, 11, 11, 1111, 1, 0),
    GOLDEN_CASE(conv2d_unfold, conv, "9x11x19-33-dilated", 0xe9b3f51e2ef362e4, 10911, 19, 33, 32, 21, 2112, 1,
                0),
    GOLDEN_CASE(conv2d_unfold, conv, "2*5x6x34-66-groups", 0x99e604482633cc7b, 20506, 34, 66, 33, 12, 1111, 2,
                0),
    GOLDEN_CASE(conv2d_unfold, conv, "9x11x33-19-dilated-back", 0x026b8102f937321b, 10911, 33, 19, 32, 21,
                2112, 1, BACK),
    GOLDEN_CASE(conv2d_unfold, conv, "2*5x6x34-66-groups-back", 0x325639e13d06e286, 20506, 34, 66, 33, 22,
                1111, 2, BACK),
    GOLDEN_CASE(batch_norm, batch_norm, "1x1", 0xebcbcde34ea1cfd2, 1, 1, STATISTICS),
    GOLDEN_CASE(batch_norm, batch_norm, "67x5-relu", 0xa47231d05aed4231, 67, 5, RELU),
    GOLDEN_CASE(batch_norm, batch_norm, "131x83-residual-relu", 0xc0794ce3ddc1691b, 131, 83,
                STATISTICS | RELU | RESIDUAL),
    GOLDEN_CASE(batch_norm, batch_norm, "64x67-residual", 0xd0bce6bc4a043f4f, 64, 67, RESIDUAL),
    GOLDEN_CASE(batch_norm_eval, batch_norm, "1x1", 0xad5e23cf8826e561, 1, 1, 0),
    GOLDEN_CASE(batch_norm_eval, batch_norm, "67x5-relu", 0x21eded0a87f68c76, 67, 5, RELU),
    GOLDEN_CASE(batch_norm_eval, batch_norm, "131x83-residual-relu", 0xb600dba590353ecb, 131, 83,
                RELU | RESIDUAL),
    GOLDEN_CASE(batch_norm_grad, batch_norm, "1x1", 0x5d59aaa6b5771204, 1, 1, 0),
    GOLDEN_CASE(batch_norm_grad, batch_norm, "67x5-relu", 0x4fdd45287cabdf1a, 67, 5, RELU),
    GOLDEN_CASE(batch_norm_grad, batch_norm, "131x83-relu", 0x145f18aa512a6e52, 131, 83, RELU),
    GOLDEN_CASE(max_pool, pool, "1x1x1x1", 0x557567df432c1ff7, 1, 1, 1, 1, 11, 11, 0),
    GOLDEN_CASE(max_pool, pool, "2x7x5x19-padded", 0x949213b7cfa5c2b8, 2, 7, 5, 19, 33, 22, 11),
    GOLDEN_CASE(max_pool, pool, "1x5x8x33", 0xf73f9b33896cc02b, 1, 5, 8, 33, 23, 12, 2),
    GOLDEN_CASE(avg_pool, pool, "1x1x1x1", 0x03db186d670ee1cf, 1, 1, 1, 1, 11, 11, 0),
    GOLDEN_CASE(avg_pool, pool, "2x7x5x19-padded", 0xefd4a22cce2956dd, 2, 7, 5, 19, 33, 22, 11),
    GOLDEN_CASE(avg_pool, pool, "1x5x8x33", 0x8f955eedd0becc3c, 1, 5, 8, 33, 23, 12, 2),
    GOLDEN_CASE(global_avg_pool, pool, "1x1x1", 0x6341ca946abbd921, 1, 1, 1),
    GOLDEN_CASE(global_avg_pool, pool, "2x49x67", 0xe1aa986c178e605d, 2, 49, 67),
    GOLDEN_CASE(global_avg_pool, pool, "3x7x33", 0xf0880c63e6474dda, 3, 7, 33),
};
const struct golden_family golden_image = {cases, sizeof cases / sizeof cases[0], KEEL_CANONICAL};
