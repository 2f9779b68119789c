/* loss.c - losses of each value against its target: descriptor to launches. The kernels are in loss.cl. */
#include "kernels_internal.h"

static const struct loss {
    const char *op, *kernel;
} losses[KEEL_LOSS_COUNT] = {[KEEL_LOSS_BCE] = {"bce", "keel_bce"},
                             [KEEL_LOSS_MSE] = {"mse", "keel_mse"},
                             [KEEL_LOSS_PRODUCT] = {"product", "keel_product"}};

static uint64_t blocks_of(uint64_t count)
{
    return count / KEEL_BLOCK_ELEMENTS + (count % KEEL_BLOCK_ELEMENTS != 0);
}

uint64_t keel_loss_scratch_bytes(uint64_t count)
{
    return KEEL_BYTES(blocks_of(count), sizeof(float));
}

static enum keel_status check(const char *name, const struct keel_loss *op)
{
    if (op->count == 0 || blocks_of(op->count) > UINT32_MAX)
        return keel_fail(KEEL_INVALID, "%s: %llu values", name, (unsigned long long)op->count);
    KEEL_TRY(keel_check_finite(name, "scale", op->scale));
    const uint64_t bytes = KEEL_BYTES(op->count, sizeof(float));
    return KEEL_CHECK_OPERANDS(name, {"x", op->x, bytes, KEEL_IN_PLACE},
                               {"targets", op->targets, bytes, KEEL_READ},
                               {"loss_scale", op->loss_scale, sizeof(float), KEEL_OPTIONAL},
                               {"scratch", op->scratch, keel_loss_scratch_bytes(op->count), KEEL_WRITTEN},
                               {"loss", op->loss, sizeof(float), KEEL_WRITTEN},
                               {"dx", op->dx, bytes, KEEL_WRITTEN | KEEL_IN_PLACE | KEEL_OPTIONAL});
}

enum keel_status keel_op_loss(struct keel_kernels *kernels, const struct keel_loss *op,
                              struct keel_launch_list *list)
{
    if ((unsigned)op->kind >= KEEL_LOSS_COUNT)
        return keel_fail(KEEL_INVALID, "loss: none has number %u", (unsigned)op->kind);
    const struct loss *of = &losses[op->kind];
    KEEL_TRY(check(of->op, op));
    struct keel_range range = keel_kernels_range(kernels, blocks_of(op->count));
    KEEL_TRY(keel_kernels_launch(
        kernels, list, KEEL_MODULE_loss, of->kernel, &range,
        KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->targets), keel_arg_buffer(op->scratch),
                  keel_arg_either(op->dx, op->scratch), keel_arg_u64(op->count), keel_arg_f32(op->scale),
                  keel_arg_u32(op->dx != NULL), keel_arg_either(op->loss_scale, op->scratch),
                  keel_arg_u32(op->loss_scale != NULL))));
    range = keel_kernels_range(kernels, 1);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_cross_entropy, "keel_cross_entropy_loss", &range,
                               KEEL_ARGS(keel_arg_buffer(op->scratch), keel_arg_buffer(op->loss),
                                         keel_arg_u32((uint32_t)blocks_of(op->count)),
                                         keel_arg_f32(op->scale)));
}
