/* table.c - rows chosen by number, sorting, dot products of pairs: descriptors to launches. The kernels are
 * in table.cl. */
#include "table_internal.h"

#include <keel/table_ops.h>

enum {
    SORT_BLOCK = 2048,   /* ids of one work-item, as in table.cl */
    SCATTER_RUN = 32,    /* places of the sorted list of one work-item, */
    SCATTER_COLUMNS = 64 /* and its columns */
};

/* ---- gather ---- */

enum keel_status keel_gather_rows(struct keel_kernels *kernels, const struct keel_row_gather *op,
                                  struct keel_launch_list *list)
{
    return keel_kernels_launch_rows(
        kernels, list, KEEL_MODULE_table, "keel_gather", op->count,
        KEEL_ARGS(keel_arg_buffer(op->ids), keel_arg_either(op->weights, op->x), keel_arg_buffer(op->x),
                  keel_arg_buffer(op->y), keel_arg_u64(op->ids_from), keel_arg_u32(op->count),
                  keel_arg_u32(op->n), keel_arg_u32(op->limit), keel_arg_u32(op->per),
                  keel_arg_u32(op->weights != NULL), keel_arg_u32(keel_kernels_item_rows(kernels, op->n))));
}

enum keel_status keel_op_gather(struct keel_kernels *kernels, const struct keel_gather *op,
                                struct keel_launch_list *list)
{
    if (op->rows == 0 || op->rows > INT32_MAX || op->n == 0 || op->count == 0)
        return keel_fail(KEEL_INVALID, "gather: %u of the rows of [%u, %u]", op->count, op->rows, op->n);
    KEEL_TRY(KEEL_CHECK_OPERANDS("gather",
                                 {"ids", op->ids, KEEL_BYTES(op->count, sizeof(int32_t)), KEEL_READ},
                                 {"x", op->x, row_bytes(op->rows, op->n), KEEL_READ},
                                 {"y", op->y, row_bytes(op->count, op->n), KEEL_WRITTEN}));
    const struct keel_row_gather rows = {
        .count = op->count, .n = op->n, .limit = op->rows, .per = 1, .ids = op->ids, .x = op->x, .y = op->y};
    return keel_gather_rows(kernels, &rows, list);
}

enum keel_status keel_op_embedding_bag(struct keel_kernels *kernels, const struct keel_embedding_bag *op,
                                       struct keel_launch_list *list)
{
    const char *name = "embedding_bag";
    const uint64_t ids = (uint64_t)op->bags * op->size;
    if (ids == 0 || op->rows == 0 || op->rows > INT32_MAX || op->n == 0)
        return keel_fail(KEEL_INVALID, "%s: [%u, %u] ids, table [%u, %u]", name, op->bags, op->size, op->rows,
                         op->n);
    KEEL_TRY(KEEL_CHECK_OPERANDS(name, {"ids", op->ids, KEEL_BYTES(ids, sizeof(int32_t)), KEEL_READ},
                                 {"table", op->table, row_bytes(op->rows, op->n), KEEL_READ},
                                 {"weights", op->weights, KEEL_BYTES(ids, sizeof(float)), KEEL_OPTIONAL},
                                 {"y", op->y, row_bytes(op->bags, op->n), KEEL_WRITTEN}));
    return keel_kernels_launch_rows(
        kernels, list, KEEL_MODULE_table, "keel_bag", op->bags,
        KEEL_ARGS(keel_arg_buffer(op->ids), keel_arg_either(op->weights, op->table),
                  keel_arg_buffer(op->table), keel_arg_buffer(op->y), keel_arg_u32(op->bags),
                  keel_arg_u32(op->size), keel_arg_u32(op->rows), keel_arg_u32(op->n),
                  keel_arg_u32(op->weights != NULL), keel_arg_u32(keel_kernels_item_rows(kernels, op->n))));
}

/* ---- sorting and scatter-add ---- */

uint64_t keel_sort_workspace_bytes(uint32_t count)
{
    return KEEL_BYTES(4 * (uint64_t)count + 256 * (uint64_t)divide_up(count, SORT_BLOCK), sizeof(uint32_t));
}

static enum keel_status sort_pass(struct keel_kernels *kernels, const struct keel_arg *args,
                                  uint32_t arg_count, struct keel_launch_list *list)
{
    const struct keel_range range = keel_kernels_range(kernels, args[5].as.u32);
    const struct keel_range one = keel_kernels_range(kernels, 1);
    KEEL_TRY(
        keel_kernels_launch(kernels, list, KEEL_MODULE_table, "keel_sort_count", &range, args, arg_count));
    KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_table, "keel_sort_scan", &one,
                                 KEEL_ARGS(args[1], args[2], args[5])));
    return keel_kernels_launch(kernels, list, KEEL_MODULE_table, "keel_sort_place", &range, args, arg_count);
}

enum keel_status keel_sort(struct keel_kernels *kernels, struct keel_buffer *ids, uint32_t count,
                           uint32_t limit, struct keel_buffer *workspace, struct keel_launch_list *list)
{
    uint32_t passes = 1;
    while (passes < 4 && limit >> (8 * passes) != 0)
        passes++;
    for (uint32_t pass = 0; pass < passes; pass++) {
        /* The last pass writes the pair at 0. */
        const uint64_t from = (passes - pass) % 2 == 0 ? 0 : 2 * (uint64_t)count;
        KEEL_TRY(sort_pass(kernels,
                           KEEL_ARGS(keel_arg_buffer(ids), keel_arg_buffer(workspace), keel_arg_u32(count),
                                     keel_arg_u32(limit), keel_arg_u32(8 * pass),
                                     keel_arg_u32(divide_up(count, SORT_BLOCK)), keel_arg_u64(from),
                                     keel_arg_u32(pass == 0)),
                           list));
    }
    return KEEL_OK;
}

enum keel_status keel_op_scatter_add(struct keel_kernels *kernels, const struct keel_scatter_add *op,
                                     struct keel_launch_list *list)
{
    const char *name = "scatter_add";
    if (op->rows == 0 || op->rows > INT32_MAX || op->n == 0 || op->count == 0 || op->count > INT32_MAX ||
        op->per == 0 || op->count % op->per != 0)
        return keel_fail(KEEL_INVALID, "%s: %u ids, %u of them to a row of x, table [%u, %u]", name,
                         op->count, op->per, op->rows, op->n);
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        name, {"ids", op->ids, KEEL_BYTES(op->count, sizeof(int32_t)), KEEL_READ},
        {"x", op->x, row_bytes(op->count / op->per, op->n), KEEL_READ},
        {"table", op->table, row_bytes(op->rows, op->n), KEEL_WRITTEN},
        {"workspace", op->workspace, keel_sort_workspace_bytes(op->count), KEEL_WRITTEN}));
    KEEL_TRY(keel_sort(kernels, op->ids, op->count, op->rows, op->workspace, list));
    const uint32_t column_blocks = (op->n + SCATTER_COLUMNS - 1) / SCATTER_COLUMNS;
    const uint64_t runs = ((uint64_t)op->count + SCATTER_RUN - 1) / SCATTER_RUN;
    const struct keel_range range = keel_kernels_range(kernels, runs * column_blocks);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_table, "keel_scatter_add", &range,
                               KEEL_ARGS(keel_arg_buffer(op->workspace), keel_arg_buffer(op->x),
                                         keel_arg_buffer(op->table), keel_arg_u32(op->count),
                                         keel_arg_u32(op->rows), keel_arg_u32(op->per), keel_arg_u32(op->n),
                                         keel_arg_u32(column_blocks)));
}

/* ---- pairs ---- */

static enum keel_status check_pairs(const char *name, uint32_t batch, uint32_t f, uint32_t n)
{
    if (batch == 0 || f < 2 || n == 0 || (uint64_t)f * n > INT32_MAX || (uint64_t)f * f > INT32_MAX)
        return keel_fail(KEEL_INVALID, "%s: pairs of the rows of [%u, %u, %u]", name, batch, f, n);
    return KEEL_OK;
}

enum keel_status keel_op_pairwise_dot(struct keel_kernels *kernels, const struct keel_pairwise_dot *op,
                                      struct keel_launch_list *list)
{
    const char *name = "pairwise_dot";
    KEEL_TRY(check_pairs(name, op->batch, op->f, op->n));
    KEEL_TRY(KEEL_CHECK_OPERANDS(name, {"x", op->x, row_bytes(op->batch, op->f * op->n), KEEL_READ},
                                 {"y", op->y, row_bytes(op->batch, op->f * (op->f - 1) / 2), KEEL_WRITTEN}));
    return keel_kernels_launch_rows(kernels, list, KEEL_MODULE_table, "keel_pairwise", op->batch,
                                    KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->y),
                                              keel_arg_u32(op->batch), keel_arg_u32(op->f),
                                              keel_arg_u32(op->n),
                                              keel_arg_u32(keel_kernels_item_rows(kernels, op->f * op->n))));
}

enum keel_status keel_op_pairwise_dot_grad(struct keel_kernels *kernels,
                                           const struct keel_pairwise_dot_grad *op,
                                           struct keel_launch_list *list)
{
    const char *name = "pairwise_dot_grad";
    KEEL_TRY(check_pairs(name, op->batch, op->f, op->n));
    KEEL_TRY(KEEL_CHECK_OPERANDS(name, {"x", op->x, row_bytes(op->batch, op->f * op->n), KEEL_READ},
                                 {"dy", op->dy, row_bytes(op->batch, op->f * (op->f - 1) / 2), KEEL_READ},
                                 {"dx", op->dx, row_bytes(op->batch, op->f * op->n), KEEL_WRITTEN}));
    return keel_kernels_launch_rows(kernels, list, KEEL_MODULE_table, "keel_pairwise_grad", op->batch,
                                    KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->dy),
                                              keel_arg_buffer(op->dx), keel_arg_u32(op->batch),
                                              keel_arg_u32(op->f), keel_arg_u32(op->n),
                                              keel_arg_u32(keel_kernels_item_rows(kernels, op->f * op->n))));
}
