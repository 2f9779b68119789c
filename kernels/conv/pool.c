/* pool.c - pools and their gradients: descriptors to launches. The kernels are in pool.cl. */
#include "kernels_internal.h"

#include <keel/image_ops.h>

enum { PIXELS_MAX = INT32_MAX };

static uint64_t padded(const struct keel_pool_shape *s, int axis)
{
    return (axis == 0 ? s->height : s->width) + 2 * (uint64_t)s->pad[axis];
}

uint32_t keel_pool_out(const struct keel_pool_shape *shape, int axis)
{
    return (uint32_t)((padded(shape, axis) - shape->kernel[axis]) / shape->stride[axis]) + 1;
}

const char *keel_pool_fault(const struct keel_pool_shape *s)
{
    if (s->batch == 0 || s->height == 0 || s->width == 0 || s->channels == 0 || s->kernel[0] == 0 ||
        s->kernel[1] == 0)
        return "nothing to compute";
    if (s->stride[0] == 0 || s->stride[1] == 0)
        return "strides are 1 or more";
    if (s->pad[0] >= s->kernel[0] || s->pad[1] >= s->kernel[1])
        return "windows of padding alone";
    if (padded(s, 0) > PIXELS_MAX || padded(s, 1) > PIXELS_MAX ||
        padded(s, 0) * padded(s, 1) > PIXELS_MAX / s->batch)
        return "more than 2^31 pixels";
    if (s->kernel[0] > padded(s, 0) || s->kernel[1] > padded(s, 1))
        return "the window is larger than the padded image";
    return NULL;
}

static enum keel_status refuse(const char *op, const struct keel_pool_shape *s, const char *why)
{
    return keel_fail(KEEL_INVALID,
                     "%s: [%u, %u, %u, %u] in windows of %u x %u, stride %u x %u, padding %u x %u: %s", op,
                     s->batch, s->height, s->width, s->channels, s->kernel[0], s->kernel[1], s->stride[0],
                     s->stride[1], s->pad[0], s->pad[1], why);
}

static enum keel_status check(const char *op, const struct keel_pool_shape *s)
{
    const char *fault = keel_pool_fault(s);
    return fault == NULL ? KEEL_OK : refuse(op, s, fault);
}

/* The image is `in`, the windows are `out`; one row of pixels of what is written goes to a work-item. */
struct pool {
    const char *op, *kernel;
    const char *in_name, *out_name;
    struct keel_buffer *in, *out, *taps;
    bool grad, max;
};

static enum keel_status launch(struct keel_kernels *kernels, struct keel_launch_list *list,
                               const struct keel_pool_shape *s, const struct pool *pool)
{
    KEEL_TRY(check(pool->op, s));
    const uint32_t out_h = keel_pool_out(s, 0), out_w = keel_pool_out(s, 1);
    const uint64_t in_bytes = KEEL_BYTES(s->batch, s->height, s->width, s->channels, sizeof(float));
    const uint64_t out_bytes = KEEL_BYTES(s->batch, out_h, out_w, s->channels, sizeof(float));
    const int image = pool->grad ? KEEL_WRITTEN : KEEL_READ, windows = pool->grad ? KEEL_READ : KEEL_WRITTEN;
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        pool->op, {pool->in_name, pool->in, in_bytes, image}, {pool->out_name, pool->out, out_bytes, windows},
        {"taps", pool->taps, pool->max ? out_bytes : 0, pool->max ? windows : KEEL_OPTIONAL}));
    struct keel_buffer *from = pool->grad ? pool->out : pool->in, *to = pool->grad ? pool->in : pool->out;
    const struct keel_range range =
        keel_kernels_range(kernels, (uint64_t)s->batch * (pool->grad ? s->height : out_h));
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_pool, pool->kernel, &range,
        KEEL_ARGS(keel_arg_buffer(from), keel_arg_buffer(to), keel_arg_buffer(pool->max ? pool->taps : from),
                  keel_arg_u32(s->batch), keel_arg_u32(s->height), keel_arg_u32(s->width),
                  keel_arg_u32(s->channels), keel_arg_u32(s->kernel[0]), keel_arg_u32(s->kernel[1]),
                  keel_arg_u32(s->stride[0]), keel_arg_u32(s->stride[1]), keel_arg_u32(s->pad[0]),
                  keel_arg_u32(s->pad[1]), keel_arg_u32(out_h), keel_arg_u32(out_w)));
}

enum keel_status keel_op_max_pool(struct keel_kernels *kernels, const struct keel_max_pool *op,
                                  struct keel_launch_list *list)
{
    return launch(kernels, list, &op->shape,
                  &(struct pool){"max_pool", "keel_max_pool", "x", "y", op->x, op->y, op->taps, false, true});
}
enum keel_status keel_op_max_pool_grad(struct keel_kernels *kernels, const struct keel_max_pool_grad *op,
                                       struct keel_launch_list *list)
{
    return launch(kernels, list, &op->shape,
                  &(struct pool){"max_pool_grad", "keel_max_pool_grad", "dx", "dy", op->dx, op->dy, op->taps,
                                 true, true});
}
enum keel_status keel_op_avg_pool(struct keel_kernels *kernels, const struct keel_avg_pool *op,
                                  struct keel_launch_list *list)
{
    return launch(kernels, list, &op->shape,
                  &(struct pool){"avg_pool", "keel_avg_pool", "x", "y", op->x, op->y, NULL, false, false});
}
enum keel_status keel_op_avg_pool_grad(struct keel_kernels *kernels, const struct keel_avg_pool_grad *op,
                                       struct keel_launch_list *list)
{
    return launch(
        kernels, list, &op->shape,
        &(struct pool){"avg_pool_grad", "keel_avg_pool_grad", "dx", "dy", op->dx, op->dy, NULL, true, false});
}

static enum keel_status launch_global(struct keel_kernels *kernels, struct keel_launch_list *list,
                                      const struct keel_global_avg_pool *op, bool grad)
{
    const char *name = grad ? "global_avg_pool_grad" : "global_avg_pool";
    if (op->batch == 0 || op->pixels == 0 || op->channels == 0)
        return keel_fail(KEEL_INVALID, "%s: %u images of %u pixels, %u channels", name, op->batch, op->pixels,
                         op->channels);
    const uint64_t out_bytes = KEEL_BYTES(op->batch, op->channels, sizeof(float));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        name, {grad ? "dx" : "x", op->x, KEEL_BYTES(op->pixels, out_bytes), grad ? KEEL_WRITTEN : KEEL_READ},
        {grad ? "dy" : "y", op->y, out_bytes, grad ? KEEL_READ : KEEL_WRITTEN}));
    struct keel_range range = keel_kernels_range(kernels, op->batch);
    range.global[1] = keel_size(((uint64_t)op->channels + KEEL_LANES - 1) / KEEL_LANES);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_pool, grad ? "keel_global_avg_pool_grad" : "keel_global_avg_pool", &range,
        KEEL_ARGS(keel_arg_buffer(grad ? op->y : op->x), keel_arg_buffer(grad ? op->x : op->y),
                  keel_arg_u32(op->batch), keel_arg_u32(op->pixels), keel_arg_u32(op->channels)));
}

enum keel_status keel_op_global_avg_pool(struct keel_kernels *kernels, const struct keel_global_avg_pool *op,
                                         struct keel_launch_list *list)
{
    return launch_global(kernels, list, op, false);
}
enum keel_status keel_op_global_avg_pool_grad(struct keel_kernels *kernels,
                                              const struct keel_global_avg_pool_grad *op,
                                              struct keel_launch_list *list)
{
    return launch_global(kernels, list,
                         &(struct keel_global_avg_pool){op->batch, op->pixels, op->channels, op->dx, op->dy},
                         true);
}
