/* optimizer.c - the norm of a gradient AdamW and statistics: descriptors to launches. The kernels are in
 * optimizer.cl. */
#include "kernels_internal.h"

/* How many blocks a run of `count` is cut in. */
static uint64_t blocks_of(uint64_t count)
{
    return (count + KEEL_BLOCK_ELEMENTS - 1) / KEEL_BLOCK_ELEMENTS;
}

/* All levels of the tree lie one after the other. */
uint64_t keel_norm_scratch_bytes(uint64_t count)
{
    uint64_t sums = 0;
    do {
        count = blocks_of(count);
        sums += count;
    } while (count > 1);
    return sums * sizeof(float);
}

/* Levels above the leaves; *out_last is where the one sum of the top lies. */
static enum keel_status launch_levels(struct keel_kernels *kernels, const struct keel_norm *op,
                                      struct keel_launch_list *list, uint64_t *out_last)
{
    uint64_t from = 0, count = blocks_of(op->count);
    while (count > 1) {
        const uint64_t to = from + count;
        const struct keel_arg args[] = {
            keel_arg_buffer(op->scratch),
            keel_arg_u64(from),
            keel_arg_u64(to),
            keel_arg_u64(count),
        };
        struct keel_range range = keel_kernels_range(kernels, blocks_of(count));
        KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_block_sums", &range, args,
                                     KEEL_ARG_COUNT(args)));
        from = to;
        count = blocks_of(count);
    }
    *out_last = from;
    return KEEL_OK;
}

enum keel_status keel_op_norm(struct keel_kernels *kernels, const struct keel_norm *op,
                              struct keel_launch_list *list)
{
    if (op->count == 0)
        return keel_fail(KEEL_INVALID, "norm: no elements");
    KEEL_TRY(keel_check_buffer("norm", "x", op->x, op->count * sizeof(float)));
    KEEL_TRY(keel_check_buffer("norm", "scratch", op->scratch, keel_norm_scratch_bytes(op->count)));
    KEEL_TRY(keel_check_buffer("norm", "norm", op->norm, 2 * sizeof(float)));
    KEEL_TRY(keel_check_buffer("norm", "control", op->control, sizeof(struct keel_control)));
    const struct keel_arg leaf_args[] = {
        keel_arg_buffer(op->x),
        keel_arg_buffer(op->scratch),
        keel_arg_u64(op->count),
    };
    struct keel_range range = keel_kernels_range(kernels, blocks_of(op->count));
    KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_block_squares", &range,
                                 leaf_args, KEEL_ARG_COUNT(leaf_args)));
    uint64_t last = 0;
    KEEL_TRY(launch_levels(kernels, op, list, &last));
    const struct keel_arg finish_args[] = {
        keel_arg_buffer(op->scratch),
        keel_arg_u64(last),
        keel_arg_buffer(op->control),
        keel_arg_buffer(op->norm),
    };
    range = keel_kernels_range(kernels, 1);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_norm_finish", &range, finish_args,
                               KEEL_ARG_COUNT(finish_args));
}

enum keel_status keel_op_adamw(struct keel_kernels *kernels, const struct keel_adamw *op,
                               struct keel_launch_list *list)
{
    const uint64_t bytes = op->count * sizeof(float);
    KEEL_TRY(keel_check_buffer("adamw", "w", op->w, bytes));
    KEEL_TRY(keel_check_buffer("adamw", "grad", op->grad, bytes));
    KEEL_TRY(keel_check_buffer("adamw", "m", op->m, bytes));
    KEEL_TRY(keel_check_buffer("adamw", "v", op->v, bytes));
    KEEL_TRY(keel_check_buffer("adamw", "norm", op->norm, 2 * sizeof(float)));
    KEEL_TRY(keel_check_buffer("adamw", "control", op->control, sizeof(struct keel_control)));
    uint32_t block = keel_kernels_item_elements(kernels);
    const struct keel_arg args[] = {
        keel_arg_buffer(op->w),  keel_arg_buffer(op->grad), keel_arg_buffer(op->m),
        keel_arg_buffer(op->v),  keel_arg_buffer(op->norm), keel_arg_buffer(op->control),
        keel_arg_u64(op->count), keel_arg_u32(block),       keel_arg_f32(op->weight_decay),
    };
    struct keel_range range = keel_kernels_range(kernels, (op->count + block - 1) / block);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_adamw", &range, args,
                               KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_statistic(struct keel_kernels *kernels, const struct keel_statistic *op,
                                   struct keel_launch_list *list)
{
    const uint64_t bytes = op->count * sizeof(float);
    KEEL_TRY(keel_check_buffer("statistic", "w", op->w, bytes));
    KEEL_TRY(keel_check_buffer("statistic", "mean", op->mean, bytes));
    KEEL_TRY(keel_check_buffer("statistic", "norm", op->norm, 2 * sizeof(float)));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->w),  keel_arg_buffer(op->mean),  keel_arg_buffer(op->norm),
        keel_arg_u64(op->count), keel_arg_f32(op->momentum),
    };
    struct keel_range range = keel_kernels_range(kernels, op->count);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_statistic", &range, args,
                               KEEL_ARG_COUNT(args));
}
