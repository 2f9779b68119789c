/* cast.c - conversion of element types: descriptor to launches. The kernels are in cast.cl. */
#include "kernels_internal.h"

static uint64_t dtype_bytes(enum keel_dtype dtype)
{
    return dtype == KEEL_BF16 || dtype == KEEL_F16 ? 2 : 4;
}

static const char *kernel_for(enum keel_dtype from, enum keel_dtype to)
{
    if (from == KEEL_F32 && to == KEEL_BF16)
        return "keel_to_bf16";
    if (from == KEEL_F32 && to == KEEL_F16)
        return "keel_to_f16";
    if (from == KEEL_BF16 && to == KEEL_F32)
        return "keel_from_bf16";
    if (from == KEEL_F16 && to == KEEL_F32)
        return "keel_from_f16";
    return NULL;
}

enum keel_status keel_op_cast(struct keel_kernels *kernels, const struct keel_cast *op,
                              struct keel_launch_list *list)
{
    const char *name = kernel_for(op->from, op->to);
    if (name == NULL)
        return keel_fail(KEEL_INVALID, "cast: no conversion from element type %d to %d", (int)op->from,
                         (int)op->to);
    KEEL_TRY(KEEL_CHECK_OPERANDS("cast",
                                 {"x", op->x, KEEL_BYTES(op->count, dtype_bytes(op->from)), KEEL_READ},
                                 {"y", op->y, KEEL_BYTES(op->count, dtype_bytes(op->to)), KEEL_WRITTEN}));
    return keel_kernels_launch_flat(kernels, list, KEEL_MODULE_cast, name, op->count,
                                    KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->y),
                                              keel_arg_u64(op->count),
                                              keel_arg_u32(keel_kernels_item_elements(kernels))));
}
