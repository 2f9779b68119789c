/* elementwise.c - add, GELU and its gradient, fill, copy: descriptors to launches. The kernels are in
 * elementwise.cl. */
#include "kernels_internal.h"

static enum keel_status launch_flat(struct keel_kernels *kernels, struct keel_launch_list *list,
                                    const char *name, uint64_t count, const struct keel_arg *args,
                                    uint32_t arg_count)
{
    uint32_t block = keel_kernels_item_elements(kernels);
    struct keel_range range = keel_kernels_range(kernels, (count + block - 1) / block);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_elementwise, name, &range, args, arg_count);
}

enum keel_status keel_op_add(struct keel_kernels *kernels, const struct keel_add *op,
                             struct keel_launch_list *list)
{
    KEEL_TRY(keel_check_buffer("add", "a", op->a, op->count * sizeof(float)));
    KEEL_TRY(keel_check_buffer("add", "b", op->b, op->count * sizeof(float)));
    KEEL_TRY(keel_check_buffer("add", "y", op->y, op->count * sizeof(float)));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->a),
        keel_arg_buffer(op->b),
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return launch_flat(kernels, list, "keel_add", op->count, args, KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_gelu(struct keel_kernels *kernels, const struct keel_gelu *op,
                              struct keel_launch_list *list)
{
    KEEL_TRY(keel_check_buffer("gelu", "x", op->x, op->count * sizeof(float)));
    KEEL_TRY(keel_check_buffer("gelu", "y", op->y, op->count * sizeof(float)));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return launch_flat(kernels, list, "keel_gelu", op->count, args, KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_gelu_grad(struct keel_kernels *kernels, const struct keel_gelu_grad *op,
                                   struct keel_launch_list *list)
{
    KEEL_TRY(keel_check_buffer("gelu_grad", "x", op->x, op->count * sizeof(float)));
    KEEL_TRY(keel_check_buffer("gelu_grad", "dy", op->dy, op->count * sizeof(float)));
    KEEL_TRY(keel_check_buffer("gelu_grad", "dx", op->dx, op->count * sizeof(float)));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),
        keel_arg_buffer(op->dy),
        keel_arg_buffer(op->dx),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return launch_flat(kernels, list, "keel_gelu_grad", op->count, args, KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_fill(struct keel_kernels *kernels, const struct keel_fill *op,
                              struct keel_launch_list *list)
{
    KEEL_TRY(keel_check_buffer("fill", "y", op->y, op->count * sizeof(float)));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_f32(op->value),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return launch_flat(kernels, list, "keel_fill", op->count, args, KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_copy(struct keel_kernels *kernels, const struct keel_copy *op,
                              struct keel_launch_list *list)
{
    KEEL_TRY(keel_check_buffer("copy", "x", op->x, op->count * sizeof(float)));
    KEEL_TRY(keel_check_buffer("copy", "y", op->y, op->count * sizeof(float)));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),
        keel_arg_buffer(op->y),
        keel_arg_u64(op->count),
        keel_arg_u32(keel_kernels_item_elements(kernels)),
    };
    return launch_flat(kernels, list, "keel_copy", op->count, args, KEEL_ARG_COUNT(args));
}
