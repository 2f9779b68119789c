/* elementwise.c - add, multiply, bias, GELU and its gradient, fill, copy: descriptors to launches. The
 * kernels are in elementwise.cl. */
#include <keel/shape_ops.h>

#include "kernels_internal.h"

/* What takes a and b element by element and gives y: the operands of an addition say it all. */
static enum keel_status launch_pairs(struct keel_kernels *kernels, const char *name, const char *kernel,
                                     const struct keel_add *op, struct keel_launch_list *list)
{
    KEEL_TRY(KEEL_APART(name, {"a", op->a, KEEL_IN_PLACE}, {"b", op->b, KEEL_IN_PLACE},
                        {"y", op->y, KEEL_WRITTEN | KEEL_IN_PLACE}));
    KEEL_TRY(keel_check_buffer(name, "a", op->a, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer(name, "b", op->b, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer(name, "y", op->y, KEEL_BYTES(op->count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->a),
        keel_arg_buffer(op->b),
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_elementwise, kernel, op->count, args,
                                    KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_add(struct keel_kernels *kernels, const struct keel_add *op,
                             struct keel_launch_list *list)
{
    return launch_pairs(kernels, "add", "keel_add", op, list);
}

enum keel_status keel_op_multiply(struct keel_kernels *kernels, const struct keel_multiply *op,
                                  struct keel_launch_list *list)
{
    if (op->count == 0)
        return keel_fail(KEEL_INVALID, "multiply: no elements");
    const struct keel_add pairs = {.count = op->count, .a = op->a, .b = op->b, .y = op->y};
    return launch_pairs(kernels, "multiply", "keel_multiply", &pairs, list);
}

enum keel_status keel_op_bias(struct keel_kernels *kernels, const struct keel_bias *op,
                              struct keel_launch_list *list)
{
    const uint64_t count = KEEL_BYTES(op->rows, op->n);
    if (count == 0 || op->rows > UINT64_MAX / sizeof(float) / op->n)
        return keel_fail(KEEL_INVALID, "bias: %llu rows of %u: none, or more than memory has bytes",
                         (unsigned long long)op->rows, op->n);
    KEEL_TRY(KEEL_APART("bias", {"x", op->x, KEEL_IN_PLACE}, {"bias", op->bias, KEEL_READ},
                        {"y", op->y, KEEL_WRITTEN | KEEL_IN_PLACE}));
    KEEL_TRY(keel_check_buffer("bias", "x", op->x, KEEL_BYTES(count, sizeof(float))));
    KEEL_TRY(keel_check_buffer("bias", "bias", op->bias, KEEL_BYTES(op->n, sizeof(float))));
    KEEL_TRY(keel_check_buffer("bias", "y", op->y, KEEL_BYTES(count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x), keel_arg_buffer(op->bias), keel_arg_buffer(op->y),
        keel_arg_u64(count),    keel_arg_u32(op->n),       keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_elementwise, "keel_bias", count, args,
                                    KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_gelu(struct keel_kernels *kernels, const struct keel_gelu *op,
                              struct keel_launch_list *list)
{
    KEEL_TRY(KEEL_APART("gelu", {"x", op->x, KEEL_IN_PLACE}, {"y", op->y, KEEL_WRITTEN | KEEL_IN_PLACE}));
    KEEL_TRY(keel_check_buffer("gelu", "x", op->x, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer("gelu", "y", op->y, KEEL_BYTES(op->count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_elementwise, "keel_gelu", op->count, args,
                                    KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_gelu_grad(struct keel_kernels *kernels, const struct keel_gelu_grad *op,
                                   struct keel_launch_list *list)
{
    KEEL_TRY(KEEL_APART("gelu_grad", {"x", op->x, KEEL_READ}, {"dy", op->dy, KEEL_IN_PLACE},
                        {"dx", op->dx, KEEL_WRITTEN | KEEL_IN_PLACE}));
    KEEL_TRY(keel_check_buffer("gelu_grad", "x", op->x, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer("gelu_grad", "dy", op->dy, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer("gelu_grad", "dx", op->dx, KEEL_BYTES(op->count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),
        keel_arg_buffer(op->dy),
        keel_arg_buffer(op->dx),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_elementwise, "keel_gelu_grad", op->count, args,
                                    KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_fill(struct keel_kernels *kernels, const struct keel_fill *op,
                              struct keel_launch_list *list)
{
    KEEL_TRY(keel_check_buffer("fill", "y", op->y, KEEL_BYTES(op->count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_f32(op->value),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_elementwise, "keel_fill", op->count, args,
                                    KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_copy(struct keel_kernels *kernels, const struct keel_copy *op,
                              struct keel_launch_list *list)
{
    KEEL_TRY(KEEL_APART("copy", {"x", op->x, KEEL_READ}, {"y", op->y, KEEL_WRITTEN}));
    KEEL_TRY(keel_check_buffer("copy", "x", op->x, KEEL_BYTES(op->count, sizeof(float))));
    KEEL_TRY(keel_check_buffer("copy", "y", op->y, KEEL_BYTES(op->count, sizeof(float))));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_elementwise, "keel_copy", op->count, args,
                                    KEEL_ARG_COUNT(args));
}
