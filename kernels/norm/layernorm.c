/* layernorm.c - layer normalisation, its gradient, and the gradient of a bias: descriptors to launches.
 * The kernels are in layernorm.cl. */
#include "kernels_internal.h"

enum { COLUMNS = 64 }; /* to a work-item of the sums down columns, as in layernorm.cl, or one */

/* For each slice of the rows, in the second dimension. */
static struct keel_range columns_range(const struct keel_kernels *kernels, uint32_t n,
                                       const struct keel_slices *slices)
{
    const uint32_t columns = keel_kernels_share_rows(kernels) ? 1 : COLUMNS;
    struct keel_range range = keel_kernels_range(kernels, divide_up(n, columns));
    range.global[1] = slices->count > 0 ? slices->count : 1;
    return range;
}

/* A row of n for each slice. */
static uint64_t sums_bytes(uint32_t n, const struct keel_slices *slices)
{
    return KEEL_BYTES(slices->count > 0 ? slices->count : 1, n, sizeof(float));
}

enum { ROWS = 4 }; /* at a time, as in layernorm.cl */

/* Rows to a work-item: ROWS where an item is a whole core and there are rows enough for all. */
static uint32_t rows_per_item(const struct keel_kernels *kernels, uint32_t rows)
{
    const bool wide =
        !keel_kernels_share_rows(kernels) && keel_kernels_item_elements(kernels) >= ROWS * KEEL_LANES;
    return wide && rows / ROWS >= keel_kernels_info(kernels)->compute_units ? ROWS : 1;
}

static struct keel_range rows_range(const struct keel_kernels *kernels, uint32_t rows)
{
    const uint32_t per_item = rows_per_item(kernels, rows);
    return keel_kernels_rows(kernels, divide_up(rows, per_item));
}

static enum keel_status check_shape(const char *op, uint32_t rows, uint32_t n)
{
    if (rows == 0 || n == 0)
        return keel_fail(KEEL_INVALID, "%s: %u rows of %u", op, rows, n);
    return KEEL_OK;
}

enum keel_status keel_op_bias_grad(struct keel_kernels *kernels, const struct keel_bias_grad *op,
                                   struct keel_launch_list *list)
{
    const struct keel_slices *slices = &op->row_slices;
    KEEL_TRY(check_shape("bias_grad", op->rows, op->n));
    KEEL_TRY(keel_check_slices("bias_grad", "rows", slices, op->rows, false));
    KEEL_TRY(KEEL_CHECK_OPERANDS("bias_grad",
                                 {"x", op->x, KEEL_BYTES(op->rows, op->n, sizeof(float)), KEEL_READ},
                                 {"out", op->out, sums_bytes(op->n, slices), KEEL_WRITTEN}));
    struct keel_range range = columns_range(kernels, op->n, slices);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_layernorm, "keel_bias_grad", &range,
                               KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->out),
                                         keel_arg_u32(op->rows), keel_arg_u32(op->n),
                                         keel_arg_u32(keel_pack_slices(slices)), keel_arg_u32(slices->units),
                                         keel_arg_u32(slices->unit)));
}

/* What is added belongs to what is multiplied: a row says t alone, or both. */
static enum keel_status check_gamma(const char *op, const struct keel_buffer *gamma, bool others)
{
    if (gamma == NULL && others)
        return keel_fail(KEEL_INVALID, "%s: beta, or a gradient of gamma or beta, without gamma", op);
    return KEEL_OK;
}

enum keel_status keel_op_layernorm(struct keel_kernels *kernels, const struct keel_layernorm *op,
                                   struct keel_launch_list *list)
{
    const uint64_t row_bytes = KEEL_BYTES(op->rows, sizeof(float)),
                   column_bytes = KEEL_BYTES(op->n, sizeof(float));
    KEEL_TRY(check_shape("layernorm", op->rows, op->n));
    KEEL_TRY(keel_check_finite("layernorm", "epsilon", op->epsilon));
    KEEL_TRY(check_gamma("layernorm", op->gamma, op->beta != NULL));
    KEEL_TRY(KEEL_CHECK_OPERANDS("layernorm", {"x", op->x, KEEL_BYTES(op->rows, column_bytes), KEEL_READ},
                                 {"gamma", op->gamma, column_bytes, KEEL_OPTIONAL},
                                 {"beta", op->beta, column_bytes, KEEL_OPTIONAL},
                                 {"y", op->y, KEEL_BYTES(op->rows, column_bytes), KEEL_WRITTEN},
                                 {"mean", op->mean, row_bytes, KEEL_WRITTEN | KEEL_OPTIONAL},
                                 {"rstd", op->rstd, row_bytes, KEEL_WRITTEN}));
    struct keel_range range = rows_range(kernels, op->rows);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_layernorm, "keel_layernorm", &range,
        KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_either(op->gamma, op->x), keel_arg_either(op->beta, op->x),
                  keel_arg_buffer(op->y), keel_arg_either(op->mean, op->rstd), keel_arg_buffer(op->rstd),
                  keel_arg_u32(op->rows), keel_arg_u32(op->n), keel_arg_f32(op->epsilon),
                  keel_arg_u32(op->beta != NULL), keel_arg_u32(op->mean != NULL),
                  keel_arg_u32(op->gamma != NULL), keel_arg_u32(rows_per_item(kernels, op->rows))));
}

static enum keel_status check_grad(const struct keel_layernorm_grad *op)
{
    const uint64_t row_bytes = KEEL_BYTES(op->rows, sizeof(float)),
                   column_bytes = KEEL_BYTES(op->n, sizeof(float));
    KEEL_TRY(check_shape("layernorm_grad", op->rows, op->n));
    KEEL_TRY(keel_check_slices("layernorm_grad", "rows", &op->row_slices, op->rows, false));
    KEEL_TRY(check_gamma("layernorm_grad", op->gamma, op->dgamma != NULL || op->dbeta != NULL));
    return KEEL_CHECK_OPERANDS(
        "layernorm_grad", {"x", op->x, KEEL_BYTES(op->rows, column_bytes), KEEL_READ},
        {"gamma", op->gamma, column_bytes, KEEL_OPTIONAL}, {"mean", op->mean, row_bytes, KEEL_OPTIONAL},
        {"rstd", op->rstd, row_bytes, KEEL_READ},
        {"dy", op->dy, KEEL_BYTES(op->rows, column_bytes), KEEL_READ},
        {"residual", op->residual, KEEL_BYTES(op->rows, column_bytes), KEEL_IN_PLACE | KEEL_OPTIONAL},
        {"dx", op->dx, KEEL_BYTES(op->rows, column_bytes), KEEL_WRITTEN | KEEL_IN_PLACE},
        {"dgamma", op->dgamma, sums_bytes(op->n, &op->row_slices), KEEL_WRITTEN | KEEL_OPTIONAL},
        {"dbeta", op->dbeta, sums_bytes(op->n, &op->row_slices), KEEL_WRITTEN | KEEL_OPTIONAL});
}

/* dgamma and dbeta. */
static enum keel_status launch_columns(struct keel_kernels *kernels, const struct keel_layernorm_grad *op,
                                       struct keel_buffer *mean, struct keel_launch_list *list)
{
    const struct keel_slices *slices = &op->row_slices;
    const struct keel_range range = columns_range(kernels, op->n, slices);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_layernorm, "keel_layernorm_grad_columns", &range,
        KEEL_ARGS(
            keel_arg_buffer(op->x), keel_arg_buffer(mean), keel_arg_buffer(op->rstd), keel_arg_buffer(op->dy),
            keel_arg_buffer(op->dgamma), keel_arg_either(op->dbeta, op->dgamma), keel_arg_u32(op->rows),
            keel_arg_u32(op->n), keel_arg_u32(op->dbeta != NULL), keel_arg_u32(op->mean != NULL),
            keel_arg_u32(keel_pack_slices(slices)), keel_arg_u32(slices->units), keel_arg_u32(slices->unit)));
}

enum keel_status keel_op_layernorm_grad(struct keel_kernels *kernels, const struct keel_layernorm_grad *op,
                                        struct keel_launch_list *list)
{
    KEEL_TRY(check_grad(op));
    struct keel_buffer *mean = op->mean != NULL ? op->mean : op->rstd; /* not read unless centered */
    if (op->dgamma != NULL)
        KEEL_TRY(launch_columns(kernels, op, mean, list));
    const struct keel_range range = rows_range(kernels, op->rows);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_layernorm, "keel_layernorm_grad", &range,
        KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_either(op->gamma, op->x), keel_arg_buffer(mean),
                  keel_arg_buffer(op->rstd), keel_arg_buffer(op->dy), keel_arg_either(op->residual, op->dy),
                  keel_arg_buffer(op->dx), keel_arg_u32(op->rows), keel_arg_u32(op->n),
                  keel_arg_u32(op->residual != NULL), keel_arg_u32(op->mean != NULL),
                  keel_arg_u32(op->gamma != NULL), keel_arg_u32(rows_per_item(kernels, op->rows))));
}
