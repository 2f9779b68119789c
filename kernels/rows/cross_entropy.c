/* cross_entropy.c - cross-entropy of a softmax: descriptor to launches. The kernels are in
 * cross_entropy.cl. */
#include "kernels_internal.h"

/* Rows to a work-item: many make the most of three at once, but each processor is to get some. */
enum { ROWS_MAX = 16, ITEMS_PER_UNIT = 4 };
static uint32_t rows_per_item(const struct keel_kernels *kernels, uint32_t rows)
{
    if (keel_kernels_share_rows(kernels) || keel_kernels_item_elements(kernels) < KEEL_BLOCK_ELEMENTS)
        return 1; /* narrow lanes: a row to each */
    const uint32_t share = rows / (keel_kernels_info(kernels)->compute_units * ITEMS_PER_UNIT);
    return share < 1 ? 1 : share < ROWS_MAX ? share : ROWS_MAX;
}

static enum keel_status check(const struct keel_cross_entropy *op)
{
    const uint64_t row_bytes = KEEL_BYTES(op->rows, sizeof(float));
    if (op->rows == 0 || op->vocab == 0)
        return keel_fail(KEEL_INVALID, "cross_entropy: %u rows of %u", op->rows, op->vocab);
    KEEL_TRY(keel_check_finite("cross_entropy", "scale", op->scale));
    if (!(op->smoothing >= 0.0F && op->smoothing < 1.0F) || (op->smoothing > 0.0F && op->vocab_slices.of > 1))
        return keel_fail(
            KEEL_INVALID,
            "cross_entropy: a label smoothing of %g: 0 to below 1 is wanted, and 0 where the vocabulary is "
            "in slices",
            (double)op->smoothing);
    KEEL_TRY(keel_check_slices("cross_entropy", "vocab", &op->vocab_slices, op->vocab, true));
    return KEEL_CHECK_OPERANDS("cross_entropy",
                               {"logits", op->logits, KEEL_BYTES(op->vocab, row_bytes), KEEL_IN_PLACE},
                               {"targets", op->targets, KEEL_BYTES(op->rows, sizeof(int32_t)), KEEL_READ},
                               {"row_loss", op->row_loss, row_bytes, KEEL_WRITTEN},
                               {"loss", op->loss, sizeof(float), KEEL_WRITTEN | KEEL_OPTIONAL},
                               {"dlogits", op->dlogits, KEEL_BYTES(op->vocab, row_bytes),
                                KEEL_WRITTEN | KEEL_IN_PLACE | KEEL_OPTIONAL},
                               {"loss_scale", op->loss_scale, sizeof(float), KEEL_OPTIONAL});
}

/* A kernel whose last argument is rows_per_item. */
static enum keel_status launch_rows(struct keel_kernels *kernels, const char *name, uint32_t rows,
                                    const struct keel_arg *args, uint32_t arg_count,
                                    struct keel_launch_list *list)
{
    const struct keel_range range = keel_kernels_rows(kernels, divide_up(rows, rows_per_item(kernels, rows)));
    return keel_kernels_launch(kernels, list, KEEL_MODULE_cross_entropy, name, &range, args, arg_count);
}

/* Adds to the loss, where there is one. */
static enum keel_status sum_of_rows(struct keel_kernels *kernels, uint32_t rows, float scale,
                                    struct keel_buffer *row_loss, struct keel_buffer *loss,
                                    struct keel_launch_list *list)
{
    const struct keel_cross_entropy_sum sum = {
        .rows = rows, .scale = scale, .row_loss = row_loss, .loss = loss};
    return loss == NULL ? KEEL_OK : keel_op_cross_entropy_sum(kernels, &sum, list);
}

enum keel_status keel_op_cross_entropy(struct keel_kernels *kernels, const struct keel_cross_entropy *op,
                                       struct keel_launch_list *list)
{
    KEEL_TRY(check(op));
    const uint32_t per_item = rows_per_item(kernels, op->rows);
    const struct keel_range range = keel_kernels_groups(kernels, divide_up(op->rows, per_item));
    KEEL_TRY(keel_kernels_launch(
        kernels, list, KEEL_MODULE_cross_entropy, "keel_cross_entropy", &range,
        KEEL_ARGS(keel_arg_buffer(op->logits), keel_arg_buffer(op->targets), keel_arg_buffer(op->row_loss),
                  keel_arg_either(op->dlogits, op->logits), keel_arg_u32(op->rows), keel_arg_u32(op->vocab),
                  keel_arg_f32(op->scale), keel_arg_u32(op->dlogits != NULL),
                  keel_arg_either(op->loss_scale, op->row_loss), keel_arg_u32(op->loss_scale != NULL),
                  keel_arg_u32(keel_pack_slices(&op->vocab_slices)), keel_arg_u32(op->vocab_slices.units),
                  keel_arg_u32(op->vocab_slices.unit), keel_arg_u32(per_item),
                  keel_arg_f32(1.0F - op->smoothing), keel_arg_f32(op->smoothing / (float)op->vocab))));
    return sum_of_rows(kernels, op->rows, op->scale, op->row_loss, op->loss, list);
}

/* Columns of a rank: some, all of them in the vocabulary. */
static enum keel_status check_columns(const char *name, uint32_t rows, uint32_t columns,
                                      uint32_t first_column, uint32_t vocab)
{
    if (rows > 0 && columns > 0 && (uint64_t)first_column + columns <= vocab)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "%s: %u rows of %u columns from column %u on, of %u", name, rows, columns,
                     first_column, vocab);
}

enum keel_status keel_op_cross_entropy_max(struct keel_kernels *kernels,
                                           const struct keel_cross_entropy_max *op,
                                           struct keel_launch_list *list)
{
    const uint64_t row_bytes = KEEL_BYTES(op->rows, sizeof(float));
    KEEL_TRY(check_columns("cross_entropy_max", op->rows, op->columns, op->first_column, op->vocab));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        "cross_entropy_max", {"logits", op->logits, KEEL_BYTES(op->columns, row_bytes), KEEL_READ},
        {"targets", op->targets, row_bytes, KEEL_READ}, {"maxima", op->maxima, row_bytes, KEEL_WRITTEN},
        {"target_bits", op->target_bits, row_bytes, KEEL_WRITTEN}));
    return launch_rows(
        kernels, "keel_cross_entropy_max", op->rows,
        KEEL_ARGS(keel_arg_buffer(op->logits), keel_arg_buffer(op->targets), keel_arg_buffer(op->maxima),
                  keel_arg_buffer(op->target_bits), keel_arg_u32(op->rows), keel_arg_u32(op->columns),
                  keel_arg_u32(op->first_column), keel_arg_u32(rows_per_item(kernels, op->rows))),
        list);
}

enum keel_status keel_op_cross_entropy_part(struct keel_kernels *kernels,
                                            const struct keel_cross_entropy_part *op,
                                            struct keel_launch_list *list)
{
    const char *name = "cross_entropy_part";
    const uint64_t row_bytes = KEEL_BYTES(op->rows, sizeof(float));
    KEEL_TRY(check_columns(name, op->rows, op->count, op->at, op->columns));
    if (op->vocab_slices.count == 0)
        return keel_fail(KEEL_INVALID, "%s: vocab: no slices", name);
    KEEL_TRY(keel_check_slices(name, "vocab", &op->vocab_slices, op->count, true));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        name, {"logits", op->logits, KEEL_BYTES(op->columns, row_bytes), KEEL_IN_PLACE},
        {"maxima", op->maxima, row_bytes, KEEL_READ}, {"sums", op->sums, row_bytes, KEEL_WRITTEN},
        {"exponentials", op->exponentials, KEEL_BYTES(op->columns, row_bytes),
         KEEL_WRITTEN | KEEL_IN_PLACE | KEEL_OPTIONAL}));
    return launch_rows(kernels, "keel_cross_entropy_part", op->rows,
                       KEEL_ARGS(keel_arg_buffer(op->logits), keel_arg_buffer(op->maxima),
                                 keel_arg_buffer(op->sums), keel_arg_either(op->exponentials, op->logits),
                                 keel_arg_u32(op->rows), keel_arg_u32(op->columns), keel_arg_u32(op->at),
                                 keel_arg_u32(keel_pack_slices(&op->vocab_slices)),
                                 keel_arg_u32(op->vocab_slices.units), keel_arg_u32(op->vocab_slices.unit),
                                 keel_arg_u32(op->exponentials != NULL),
                                 keel_arg_u32(rows_per_item(kernels, op->rows))),
                       list);
}

enum keel_status keel_op_cross_entropy_end(struct keel_kernels *kernels,
                                           const struct keel_cross_entropy_end *op,
                                           struct keel_launch_list *list)
{
    const char *name = "cross_entropy_end";
    const uint64_t row_bytes = KEEL_BYTES(op->rows, sizeof(float));
    KEEL_TRY(check_columns(name, op->rows, op->columns, op->first_column, op->vocab));
    KEEL_TRY(keel_check_finite(name, "scale", op->scale));
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        name, {"maxima", op->maxima, row_bytes, KEEL_READ}, {"sums", op->sums, row_bytes, KEEL_READ},
        {"target_bits", op->target_bits, row_bytes, KEEL_READ},
        {"targets", op->targets, row_bytes, KEEL_READ}, {"row_loss", op->row_loss, row_bytes, KEEL_WRITTEN},
        {"loss", op->loss, sizeof(float), KEEL_WRITTEN | KEEL_OPTIONAL},
        {"dlogits", op->dlogits, KEEL_BYTES(op->columns, row_bytes), KEEL_WRITTEN | KEEL_OPTIONAL},
        {"loss_scale", op->loss_scale, sizeof(float), KEEL_OPTIONAL}));
    KEEL_TRY(launch_rows(
        kernels, "keel_cross_entropy_end", op->rows,
        KEEL_ARGS(keel_arg_buffer(op->maxima), keel_arg_buffer(op->sums), keel_arg_buffer(op->target_bits),
                  keel_arg_buffer(op->targets), keel_arg_buffer(op->row_loss),
                  keel_arg_either(op->dlogits, op->row_loss), keel_arg_u32(op->rows),
                  keel_arg_u32(op->columns), keel_arg_u32(op->first_column), keel_arg_u32(op->vocab),
                  keel_arg_f32(op->scale), keel_arg_u32(op->dlogits != NULL),
                  keel_arg_either(op->loss_scale, op->row_loss), keel_arg_u32(op->loss_scale != NULL),
                  keel_arg_u32(rows_per_item(kernels, op->rows))),
        list));
    return sum_of_rows(kernels, op->rows, op->scale, op->row_loss, op->loss, list);
}

enum keel_status keel_op_cross_entropy_sum(struct keel_kernels *kernels,
                                           const struct keel_cross_entropy_sum *op,
                                           struct keel_launch_list *list)
{
    if (op->rows == 0)
        return keel_fail(KEEL_INVALID, "cross_entropy: 0 rows");
    KEEL_TRY(keel_check_finite("cross_entropy", "scale", op->scale));
    KEEL_TRY(KEEL_CHECK_OPERANDS("cross_entropy_sum",
                                 {"row_loss", op->row_loss, KEEL_BYTES(op->rows, sizeof(float)), KEEL_READ},
                                 {"loss", op->loss, sizeof(float), KEEL_WRITTEN}));
    const struct keel_range range = keel_kernels_range(kernels, 1);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_cross_entropy, "keel_cross_entropy_loss", &range,
                               KEEL_ARGS(keel_arg_buffer(op->row_loss), keel_arg_buffer(op->loss),
                                         keel_arg_u32(op->rows), keel_arg_f32(op->scale)));
}
