/* batch_norm.c - batch normalisation, its gradient, and its form after training: descriptors to launches. The
 * kernels are in batch_norm.cl. */
#include "batch_norm_internal.h"
#include "kernels_internal.h"

#include <keel/image_ops.h>

enum { COLUMNS = 64 }; /* of one work-item, as in batch_norm.cl */

uint64_t keel_batch_norm_scratch_bytes(uint32_t rows, uint32_t n)
{
    return KEEL_BYTES(divide_up(rows, KEEL_NORM_ROWS), 2, n, sizeof(float));
}

/* Blocks of rows by columns, or all of a column. */
static struct keel_range blocks_range(const struct keel_kernels *kernels, uint32_t rows, uint32_t n)
{
    struct keel_range range = keel_kernels_range(kernels, divide_up(rows, KEEL_NORM_ROWS));
    range.global[1] = keel_size(((uint64_t)n + COLUMNS - 1) / COLUMNS);
    return range;
}
static struct keel_range columns_range(const struct keel_kernels *kernels, uint32_t n)
{
    return keel_kernels_range(kernels, ((uint64_t)n + KEEL_LANES - 1) / KEEL_LANES);
}

static enum keel_status check_shape(const char *op, uint32_t rows, uint32_t n)
{
    return rows != 0 && n != 0 ? KEEL_OK : keel_fail(KEEL_INVALID, "%s: %u rows of %u channels", op, rows, n);
}

static enum keel_status launch_statistics(struct keel_kernels *kernels, const struct keel_batch_norm *op,
                                          struct keel_launch_list *list)
{
    struct keel_range range = blocks_range(kernels, op->rows, op->n);
    KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_blocks", &range,
                                 KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->scratch),
                                           keel_arg_u32(op->rows), keel_arg_u32(op->n))));
    const bool running = op->running_mean != NULL;
    range = columns_range(kernels, op->n);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_statistics", &range,
        KEEL_ARGS(keel_arg_buffer(op->scratch), keel_arg_buffer(op->mean), keel_arg_buffer(op->rstd),
                  keel_arg_buffer(running ? op->running_mean : op->mean),
                  keel_arg_buffer(running ? op->running_variance : op->mean), keel_arg_u32(op->rows),
                  keel_arg_u32(op->n), keel_arg_f32(op->epsilon), keel_arg_f32(op->scale),
                  keel_arg_u32(running)));
}

/* op->variance is rstd already unless VARIANCE is in the flags. */
static enum keel_status launch_apply(struct keel_kernels *kernels, const struct keel_batch_norm_eval *op,
                                     uint32_t flags, struct keel_launch_list *list)
{
    flags |= (op->residual != NULL ? (uint32_t)BATCH_NORM_RESIDUAL : 0U) |
             (op->relu ? (uint32_t)BATCH_NORM_RELU : 0U);
    const struct keel_range range = blocks_range(kernels, op->rows, op->n);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_apply", &range,
                               KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->mean),
                                         keel_arg_buffer(op->variance), keel_arg_buffer(op->gamma),
                                         keel_arg_buffer(op->beta), keel_arg_either(op->residual, op->x),
                                         keel_arg_buffer(op->y), keel_arg_u32(op->rows), keel_arg_u32(op->n),
                                         keel_arg_f32(op->epsilon), keel_arg_u32(flags)));
}

enum keel_status keel_op_batch_norm(struct keel_kernels *kernels, const struct keel_batch_norm *op,
                                    struct keel_launch_list *list)
{
    const uint64_t column = KEEL_BYTES(op->n, sizeof(float)), all = KEEL_BYTES(op->rows, column);
    const int both = op->running_mean == NULL && op->running_variance == NULL ? KEEL_OPTIONAL : 0;
    KEEL_TRY(check_shape("batch_norm", op->rows, op->n));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        "batch_norm", {"x", op->x, all, KEEL_IN_PLACE}, {"y", op->y, all, KEEL_WRITTEN | KEEL_IN_PLACE},
        {"gamma", op->gamma, column, KEEL_READ}, {"beta", op->beta, column, KEEL_READ},
        {"residual", op->residual, all, KEEL_IN_PLACE | KEEL_OPTIONAL},
        {"mean", op->mean, column, KEEL_WRITTEN}, {"rstd", op->rstd, column, KEEL_WRITTEN},
        {"running_mean", op->running_mean, column, KEEL_WRITTEN | both},
        {"running_variance", op->running_variance, column, KEEL_WRITTEN | both},
        {"scratch", op->scratch, keel_batch_norm_scratch_bytes(op->rows, op->n), KEEL_WRITTEN}));
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
    KEEL_TRY(check_shape("batch_norm_eval", op->rows, op->n));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        "batch_norm_eval", {"x", op->x, all, KEEL_IN_PLACE}, {"y", op->y, all, KEEL_WRITTEN | KEEL_IN_PLACE},
        {"gamma", op->gamma, column, KEEL_READ}, {"beta", op->beta, column, KEEL_READ},
        {"residual", op->residual, all, KEEL_IN_PLACE | KEEL_OPTIONAL}, {"mean", op->mean, column, KEEL_READ},
        {"variance", op->variance, column, KEEL_READ}));
    KEEL_TRY(keel_check_finite("batch_norm_eval", "epsilon", op->epsilon));
    return launch_apply(kernels, op, BATCH_NORM_VARIANCE, list);
}

static enum keel_status check_grad(const struct keel_batch_norm_grad *op)
{
    const uint64_t column = KEEL_BYTES(op->n, sizeof(float)), all = KEEL_BYTES(op->rows, column);
    KEEL_TRY(check_shape("batch_norm_grad", op->rows, op->n));
    return KEEL_CHECK_OPERANDS(
        "batch_norm_grad", {"x", op->x, all, KEEL_READ}, {"gamma", op->gamma, column, KEEL_READ},
        {"mean", op->mean, column, KEEL_READ}, {"rstd", op->rstd, column, KEEL_READ},
        {"dy", op->dy, all, KEEL_IN_PLACE}, {"relu_y", op->relu_y, all, KEEL_OPTIONAL},
        {"dx", op->dx, all, KEEL_WRITTEN | KEEL_IN_PLACE}, {"dgamma", op->dgamma, column, KEEL_WRITTEN},
        {"dbeta", op->dbeta, column, KEEL_WRITTEN},
        {"scratch", op->scratch, keel_batch_norm_scratch_bytes(op->rows, op->n), KEEL_WRITTEN});
}

/* dgamma and dbeta, and in scratch what dx needs of all rows. */
static enum keel_status launch_grad_sums(struct keel_kernels *kernels, const struct keel_batch_norm_grad *op,
                                         struct keel_buffer *y, uint32_t flags, struct keel_launch_list *list)
{
    struct keel_range range = blocks_range(kernels, op->rows, op->n);
    KEEL_TRY(keel_kernels_launch(
        kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_grad_blocks", &range,
        KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->mean), keel_arg_buffer(op->rstd),
                  keel_arg_buffer(op->dy), keel_arg_buffer(y), keel_arg_buffer(op->scratch),
                  keel_arg_u32(op->rows), keel_arg_u32(op->n), keel_arg_u32(flags))));
    range = columns_range(kernels, op->n);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_grad_sums", &range,
                               KEEL_ARGS(keel_arg_buffer(op->scratch), keel_arg_buffer(op->dgamma),
                                         keel_arg_buffer(op->dbeta), keel_arg_u32(op->rows),
                                         keel_arg_u32(op->n)));
}

enum keel_status keel_op_batch_norm_grad(struct keel_kernels *kernels, const struct keel_batch_norm_grad *op,
                                         struct keel_launch_list *list)
{
    KEEL_TRY(check_grad(op));
    struct keel_buffer *y = op->relu_y != NULL ? op->relu_y : op->dy; /* not read without its flag */
    const uint32_t flags = op->relu_y != NULL ? (uint32_t)BATCH_NORM_RELU : 0U;
    KEEL_TRY(launch_grad_sums(kernels, op, y, flags, list));
    const struct keel_range range = blocks_range(kernels, op->rows, op->n);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_batch_norm, "keel_batch_norm_grad_apply", &range,
                               KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->mean),
                                         keel_arg_buffer(op->rstd), keel_arg_buffer(op->gamma),
                                         keel_arg_buffer(op->dy), keel_arg_buffer(y),
                                         keel_arg_buffer(op->scratch), keel_arg_buffer(op->dx),
                                         keel_arg_u32(op->rows), keel_arg_u32(op->n), keel_arg_u32(flags)));
}
