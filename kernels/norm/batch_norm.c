/* batch_norm.c - batch normalisation, its gradient, and its form after training: descriptors to launches. The
 * kernels are in batch_norm.cl. */
#include "batch_norm_internal.h"
#include "kernels_internal.h"

#include <keel/image_ops.h>

enum { COLUMNS = 64 }; /* of one work-item, as in batch_norm.cl */

static uint32_t blocks_of(uint32_t rows)
{
    return rows / KEEL_NORM_ROWS + (rows % KEEL_NORM_ROWS != 0);
}

uint64_t keel_batch_norm_scratch_bytes(uint32_t rows, uint32_t n)
{
    return KEEL_BYTES(blocks_of(rows), 2, n, sizeof(float));
}

/* Blocks of rows by columns, or all of a column. */
static struct keel_range blocks_range(const struct keel_kernels *kernels, uint32_t rows, uint32_t n)
{
    struct keel_range range = keel_kernels_range(kernels, blocks_of(rows));
    range.global[1] = keel_size(((uint64_t)n + COLUMNS - 1) / COLUMNS);
    return range;
}
static struct keel_range columns_range(const struct keel_kernels *kernels, uint32_t n)
{
    return keel_kernels_range(kernels, ((uint64_t)n + KEEL_LANES - 1) / KEEL_LANES);
}

/* A buffer that an operation has: `bytes` of it. */
struct operand {
    const char *name;
    const struct keel_buffer *buffer;
    uint64_t bytes;
    bool optional;
};
static enum keel_status check(const char *op, uint32_t rows, uint32_t n, const struct operand *operands,
                              uint32_t count)
{
    if (rows == 0 || n == 0)
        return keel_fail(KEEL_INVALID, "%s: %u rows of %u channels", op, rows, n);
    for (uint32_t i = 0; i < count; i++) {
        const struct operand *operand = &operands[i];
        if (operand->buffer != NULL || !operand->optional)
            KEEL_TRY(keel_check_buffer(op, operand->name, operand->buffer, operand->bytes));
    }
    return KEEL_OK;
}
#define OPERANDS(array) array, (uint32_t)(sizeof(array) / sizeof(array)[0])

static enum keel_status launch_statistics(struct keel_kernels *kernels, const struct keel_batch_norm *op,
                                          struct keel_launch_list *list)
{
    const struct keel_arg block_args[] = {keel_arg_buffer(op->x), keel_arg_buffer(op->scratch),
                                          keel_arg_u32(op->rows), keel_arg_u32(op->n)};
    struct keel_range range = blocks_range(kernels, op->rows, op->n);
    KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_blocks", &range,
                                 block_args, KEEL_ARG_COUNT(block_args)));
    const bool running = op->running_mean != NULL;
    const struct keel_arg args[] = {
        keel_arg_buffer(op->scratch),
        keel_arg_buffer(op->mean),
        keel_arg_buffer(op->rstd),
        keel_arg_buffer(running ? op->running_mean : op->mean),
        keel_arg_buffer(running ? op->running_variance : op->mean),
        keel_arg_u32(op->rows),
        keel_arg_u32(op->n),
        keel_arg_f32(op->epsilon),
        keel_arg_f32(op->scale),
        keel_arg_u32(running),
    };
    range = columns_range(kernels, op->n);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_statistics", &range,
                               args, KEEL_ARG_COUNT(args));
}

/* op->variance is rstd already unless VARIANCE is in the flags. */
static enum keel_status launch_apply(struct keel_kernels *kernels, const struct keel_batch_norm_eval *op,
                                     uint32_t flags, struct keel_launch_list *list)
{
    flags |= (op->residual != NULL ? (uint32_t)BATCH_NORM_RESIDUAL : 0U) |
             (op->relu ? (uint32_t)BATCH_NORM_RELU : 0U);
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),        keel_arg_buffer(op->mean),
        keel_arg_buffer(op->variance), keel_arg_buffer(op->gamma),
        keel_arg_buffer(op->beta),     keel_arg_buffer(op->residual != NULL ? op->residual : op->x),
        keel_arg_buffer(op->y),        keel_arg_u32(op->rows),
        keel_arg_u32(op->n),           keel_arg_f32(op->epsilon),
        keel_arg_u32(flags),
    };
    const struct keel_range range = blocks_range(kernels, op->rows, op->n);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_apply", &range, args,
                               KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_batch_norm(struct keel_kernels *kernels, const struct keel_batch_norm *op,
                                    struct keel_launch_list *list)
{
    const uint64_t column = KEEL_BYTES(op->n, sizeof(float)), all = KEEL_BYTES(op->rows, column);
    const struct operand operands[] = {
        {"x", op->x, all, false},
        {"y", op->y, all, false},
        {"gamma", op->gamma, column, false},
        {"beta", op->beta, column, false},
        {"residual", op->residual, all, true},
        {"mean", op->mean, column, false},
        {"rstd", op->rstd, column, false},
        {"running_mean", op->running_mean, column, op->running_variance == NULL},
        {"running_variance", op->running_variance, column, op->running_mean == NULL},
        {"scratch", op->scratch, keel_batch_norm_scratch_bytes(op->rows, op->n), false},
    };
    KEEL_TRY(KEEL_APART("batch_norm", {"x", op->x, KEEL_IN_PLACE}, {"gamma", op->gamma, KEEL_READ},
                        {"beta", op->beta, KEEL_READ}, {"residual", op->residual, KEEL_IN_PLACE},
                        {"y", op->y, KEEL_WRITTEN | KEEL_IN_PLACE}, {"mean", op->mean, KEEL_WRITTEN},
                        {"rstd", op->rstd, KEEL_WRITTEN}, {"running_mean", op->running_mean, KEEL_WRITTEN},
                        {"running_variance", op->running_variance, KEEL_WRITTEN},
                        {"scratch", op->scratch, KEEL_WRITTEN}));
    KEEL_TRY(check("batch_norm", op->rows, op->n, OPERANDS(operands)));
    KEEL_TRY(keel_check_finite("batch_norm", "epsilon", op->epsilon));
    KEEL_TRY(keel_check_finite("batch_norm", "scale", op->scale));
    KEEL_TRY(launch_statistics(kernels, op, list));
    return launch_apply(kernels,
                        &(struct keel_batch_norm_eval){.rows = op->rows,
                                                       .n = op->n,
                                                       .relu = op->relu,
                                                       .x = op->x,
                                                       .gamma = op->gamma,
                                                       .beta = op->beta,
                                                       .residual = op->residual,
                                                       .y = op->y,
                                                       .mean = op->mean,
                                                       .variance = op->rstd},
                        0, list);
}

enum keel_status keel_op_batch_norm_eval(struct keel_kernels *kernels, const struct keel_batch_norm_eval *op,
                                         struct keel_launch_list *list)
{
    const uint64_t column = KEEL_BYTES(op->n, sizeof(float)), all = KEEL_BYTES(op->rows, column);
    const struct operand operands[] = {
        {"x", op->x, all, false},
        {"y", op->y, all, false},
        {"gamma", op->gamma, column, false},
        {"beta", op->beta, column, false},
        {"residual", op->residual, all, true},
        {"mean", op->mean, column, false},
        {"variance", op->variance, column, false},
    };
    KEEL_TRY(KEEL_APART("batch_norm_eval", {"x", op->x, KEEL_IN_PLACE}, {"gamma", op->gamma, KEEL_READ},
                        {"beta", op->beta, KEEL_READ}, {"residual", op->residual, KEEL_IN_PLACE},
                        {"y", op->y, KEEL_WRITTEN | KEEL_IN_PLACE}, {"mean", op->mean, KEEL_READ},
                        {"variance", op->variance, KEEL_READ}));
    KEEL_TRY(check("batch_norm_eval", op->rows, op->n, OPERANDS(operands)));
    KEEL_TRY(keel_check_finite("batch_norm_eval", "epsilon", op->epsilon));
    return launch_apply(kernels, op, BATCH_NORM_VARIANCE, list);
}

static enum keel_status check_grad(const struct keel_batch_norm_grad *op)
{
    const uint64_t column = KEEL_BYTES(op->n, sizeof(float)), all = KEEL_BYTES(op->rows, column);
    const struct operand operands[] = {
        {"x", op->x, all, false},
        {"gamma", op->gamma, column, false},
        {"mean", op->mean, column, false},
        {"rstd", op->rstd, column, false},
        {"dy", op->dy, all, false},
        {"relu_y", op->relu_y, all, true},
        {"dx", op->dx, all, false},
        {"dgamma", op->dgamma, column, false},
        {"dbeta", op->dbeta, column, false},
        {"scratch", op->scratch, keel_batch_norm_scratch_bytes(op->rows, op->n), false},
    };
    KEEL_TRY(KEEL_APART("batch_norm_grad", {"x", op->x, KEEL_READ}, {"gamma", op->gamma, KEEL_READ},
                        {"mean", op->mean, KEEL_READ}, {"rstd", op->rstd, KEEL_READ},
                        {"dy", op->dy, KEEL_IN_PLACE}, {"relu_y", op->relu_y, KEEL_READ},
                        {"dx", op->dx, KEEL_WRITTEN | KEEL_IN_PLACE}, {"dgamma", op->dgamma, KEEL_WRITTEN},
                        {"dbeta", op->dbeta, KEEL_WRITTEN}, {"scratch", op->scratch, KEEL_WRITTEN}));
    return check("batch_norm_grad", op->rows, op->n, OPERANDS(operands));
}

/* dgamma and dbeta, and in scratch what dx needs of all rows. */
static enum keel_status launch_grad_sums(struct keel_kernels *kernels, const struct keel_batch_norm_grad *op,
                                         struct keel_buffer *y, uint32_t flags, struct keel_launch_list *list)
{
    const struct keel_arg block_args[] = {
        keel_arg_buffer(op->x),  keel_arg_buffer(op->mean), keel_arg_buffer(op->rstd),
        keel_arg_buffer(op->dy), keel_arg_buffer(y),        keel_arg_buffer(op->scratch),
        keel_arg_u32(op->rows),  keel_arg_u32(op->n),       keel_arg_u32(flags),
    };
    struct keel_range range = blocks_range(kernels, op->rows, op->n);
    KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_grad_blocks", &range,
                                 block_args, KEEL_ARG_COUNT(block_args)));
    const struct keel_arg args[] = {keel_arg_buffer(op->scratch), keel_arg_buffer(op->dgamma),
                                    keel_arg_buffer(op->dbeta), keel_arg_u32(op->rows), keel_arg_u32(op->n)};
    range = columns_range(kernels, op->n);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_grad_sums", &range,
                               args, KEEL_ARG_COUNT(args));
}

enum keel_status keel_op_batch_norm_grad(struct keel_kernels *kernels, const struct keel_batch_norm_grad *op,
                                         struct keel_launch_list *list)
{
    KEEL_TRY(check_grad(op));
    struct keel_buffer *y = op->relu_y != NULL ? op->relu_y : op->dy; /* not read without its flag */
    const uint32_t flags = op->relu_y != NULL ? (uint32_t)BATCH_NORM_RELU : 0U;
    KEEL_TRY(launch_grad_sums(kernels, op, y, flags, list));
    const struct keel_arg args[] = {
        keel_arg_buffer(op->x),       keel_arg_buffer(op->mean), keel_arg_buffer(op->rstd),
        keel_arg_buffer(op->gamma),   keel_arg_buffer(op->dy),   keel_arg_buffer(y),
        keel_arg_buffer(op->scratch), keel_arg_buffer(op->dx),   keel_arg_u32(op->rows),
        keel_arg_u32(op->n),          keel_arg_u32(flags),
    };
    const struct keel_range range = blocks_range(kernels, op->rows, op->n);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_grad_apply", &range,
                               args, KEEL_ARG_COUNT(args));
}
