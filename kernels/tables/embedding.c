/* embedding.c - token and position embedding and its gradient: descriptors to launches. The kernels are
 * in embedding.cl. */
#include "kernels_internal.h"

enum { GRAD_COLUMNS = 128 }; /* that a work-item takes at a time: 16 * VECTORS of embedding.cl */

/* Of the forward form; of a gradient table, positions and y stand for what is added to, and for dy. */
static enum keel_status check(const char *name, const struct keel_embedding *op, bool grad)
{
    const uint64_t rows = (uint64_t)op->batch * op->tokens;
    const int sums = grad ? KEEL_WRITTEN : KEEL_READ;
    if (rows == 0 || op->width == 0 || op->vocab == 0 || rows > INT32_MAX)
        return keel_fail(KEEL_INVALID, "%s: [%u, %u] ids, width %u, vocabulary %u", name, op->batch,
                         op->tokens, op->width, op->vocab);
    if (op->first > 0 && (uint64_t)op->first + op->vocab > (uint64_t)INT32_MAX + 1)
        return keel_fail(KEEL_INVALID, "%s: %u rows from row %u on: ids are below 2^31", name, op->vocab,
                         op->first);
    return KEEL_CHECK_OPERANDS(name, {"ids", op->ids, KEEL_BYTES(rows, sizeof(int32_t)), KEEL_READ},
                               {grad ? "dtable" : "table", op->table,
                                KEEL_BYTES(op->vocab, op->width, sizeof(float)),
                                grad ? KEEL_WRITTEN | KEEL_OPTIONAL : KEEL_READ},
                               {grad ? "dpositions" : "positions", op->positions,
                                KEEL_BYTES(op->tokens, op->width, sizeof(float)), sums | KEEL_OPTIONAL},
                               {grad ? "dy" : "y", op->y, KEEL_BYTES(rows, op->width, sizeof(float)),
                                grad ? KEEL_READ : KEEL_WRITTEN});
}

enum keel_status keel_op_embedding(struct keel_kernels *kernels, const struct keel_embedding *op,
                                   struct keel_launch_list *list)
{
    KEEL_TRY(check("embedding", op, false));
    const uint32_t rows = op->batch * op->tokens;
    struct keel_range range = keel_kernels_rows(kernels, rows);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_embedding, "keel_embedding", &range,
                               KEEL_ARGS(keel_arg_buffer(op->ids), keel_arg_buffer(op->table),
                                         keel_arg_either(op->positions, op->table), keel_arg_buffer(op->y),
                                         keel_arg_u32(rows), keel_arg_u32(op->tokens),
                                         keel_arg_u32(op->width), keel_arg_u32(op->positions != NULL),
                                         keel_arg_u32(op->vocab), keel_arg_u32(op->first)));
}

static enum keel_status launch_positions(struct keel_kernels *kernels, const struct keel_embedding_grad *op,
                                         struct keel_launch_list *list)
{
    struct keel_range range = keel_kernels_rows(kernels, op->tokens);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_embedding, "keel_embedding_positions", &range,
                               KEEL_ARGS(keel_arg_buffer(op->dy), keel_arg_buffer(op->dpositions),
                                         keel_arg_u32(op->batch), keel_arg_u32(op->tokens),
                                         keel_arg_u32(op->width)));
}

static enum keel_status launch_table(struct keel_kernels *kernels, const struct keel_embedding_grad *op,
                                     struct keel_launch_list *list)
{
    const uint32_t rows = op->batch * op->tokens;
    const bool cores = keel_kernels_item_elements(kernels) >= KEEL_BLOCK_ELEMENTS; /* all columns to one */
    const uint32_t items_per_row = cores ? 1 : divide_up(op->width, GRAD_COLUMNS);
    const struct keel_range range = keel_kernels_share_rows(kernels)
                                        ? keel_kernels_groups(kernels, rows)
                                        : keel_kernels_range(kernels, (uint64_t)rows * items_per_row);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_embedding, "keel_embedding_grad", &range,
                               KEEL_ARGS(keel_arg_buffer(op->ids), keel_arg_buffer(op->dy),
                                         keel_arg_buffer(op->dtable), keel_arg_u32(rows),
                                         keel_arg_u32(op->width), keel_arg_u32(items_per_row),
                                         keel_arg_u32(op->vocab), keel_arg_u32(op->first)));
}

enum keel_status keel_op_embedding_grad(struct keel_kernels *kernels, const struct keel_embedding_grad *op,
                                        struct keel_launch_list *list)
{
    const struct keel_embedding forward = {
        .batch = op->batch,
        .tokens = op->tokens,
        .width = op->width,
        .vocab = op->vocab,
        .first = op->first,
        .ids = op->ids,
        .table = op->dtable,
        .positions = op->dpositions,
        .y = op->dy,
    };
    KEEL_TRY(check("embedding_grad", &forward, true));
    if (op->dtable != NULL)
        KEEL_TRY(launch_table(kernels, op, list));
    return op->dpositions != NULL ? launch_positions(kernels, op, list) : KEEL_OK;
}
