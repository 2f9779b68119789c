/* normal.c - normal numbers: descriptor to launches. The kernel is in normal.cl. */
#include "kernels_internal.h"

enum keel_status keel_op_normal(struct keel_kernels *kernels, const struct keel_normal *op,
                                struct keel_launch_list *list)
{
    struct keel_random_slice slice = op->slice;
    KEEL_TRY(keel_check_random("normal", op->count, KEEL_RANDOM_ELEMENTS_MAX / 2, &slice));
    KEEL_TRY(keel_check_finite("normal", "deviation", op->deviation));
    KEEL_TRY(KEEL_CHECK_OPERANDS("normal", {"control", op->control, sizeof(struct keel_control), KEEL_READ},
                                 {"y", op->y, KEEL_BYTES(op->count, sizeof(float)), KEEL_WRITTEN}));
    return keel_kernels_launch_flat(
        kernels, list, KEEL_MODULE_normal, "keel_normal", op->count,
        KEEL_ARGS(keel_arg_buffer(op->y), keel_arg_buffer(op->control), keel_arg_u64(op->count),
                  keel_arg_u32(keel_kernels_item_elements(kernels)), keel_arg_u32(op->stream),
                  keel_arg_f32(op->deviation), keel_arg_u64(slice.first), keel_arg_u64(slice.row),
                  keel_arg_u64(slice.stride)));
}
