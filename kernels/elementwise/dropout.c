/* dropout.c - dropout: descriptor to launches. The kernel is in dropout.cl. */
#include "kernels_internal.h"

enum keel_status keel_op_dropout(struct keel_kernels *kernels, const struct keel_dropout *op,
                                 struct keel_launch_list *list)
{
    if (!(op->rate >= 0.0f && op->rate < 1.0f))
        return keel_fail(KEEL_INVALID, "dropout: rate %g is not in [0, 1)", (double)op->rate);
    struct keel_random_slice slice = op->slice;
    KEEL_TRY(keel_check_random("dropout", op->count, KEEL_RANDOM_ELEMENTS_MAX, &slice));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        "dropout", {"x", op->x, KEEL_BYTES(op->count, sizeof(float)), KEEL_IN_PLACE},
        {"base", op->base, KEEL_BYTES(op->count, sizeof(float)), KEEL_IN_PLACE | KEEL_OPTIONAL},
        {"y", op->y, KEEL_BYTES(op->count, sizeof(float)), KEEL_WRITTEN | KEEL_IN_PLACE},
        {"control", op->control, sizeof(struct keel_control), KEEL_READ}));
    return keel_kernels_launch_flat(
        kernels, list, KEEL_MODULE_dropout, "keel_dropout", op->count,
        KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_either(op->base, op->x), keel_arg_buffer(op->y),
                  keel_arg_buffer(op->control), keel_arg_u64(op->count),
                  keel_arg_u32(keel_kernels_item_elements(kernels)), keel_arg_u32(op->stream),
                  keel_arg_f32(op->rate), keel_arg_f32(keel_canon_divide(1.0f, 1.0f - op->rate)),
                  keel_arg_u32(op->base != NULL), keel_arg_u64(slice.first), keel_arg_u64(slice.row),
                  keel_arg_u64(slice.stride)));
}
