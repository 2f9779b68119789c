/* expert.c - mixture of experts: descriptors to launches. The kernels are in expert.cl. */
#include "table_internal.h"

#include <keel/table_ops.h>

enum { BIAS_COLUMNS = 64 }; /* of one work-item, as in expert.cl */

static enum keel_status launch(struct keel_kernels *kernels, const char *kernel, uint64_t items,
                               const struct keel_arg *args, uint32_t arg_count, struct keel_launch_list *list)
{
    const struct keel_range range = keel_kernels_range(kernels, items);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_expert, kernel, &range, args, arg_count);
}

static uint64_t items_of(uint64_t rows, uint32_t item_rows)
{
    return (rows + item_rows - 1) / item_rows;
}

/* ---- dispatch ---- */

uint32_t keel_dispatch_rows(uint32_t rows, uint32_t k, uint32_t experts, uint32_t capacity)
{
    const uint64_t all = (uint64_t)rows * k, room = (uint64_t)experts * capacity;
    return (uint32_t)(all < room ? all : room);
}

uint64_t keel_dispatch_workspace_bytes(const struct keel_dispatch *op)
{
    return keel_sort_workspace_bytes(op->rows * op->k) +
           KEEL_BYTES(keel_dispatch_rows(op->rows, op->k, op->experts, op->capacity), sizeof(int32_t));
}

static enum keel_status check_dispatch(const struct keel_dispatch *op)
{
    const uint64_t count = (uint64_t)op->rows * op->k;
    if (count == 0 || count > INT32_MAX || op->n == 0 || op->experts == 0 || op->experts > KEEL_EXPERTS_MAX ||
        op->capacity == 0)
        return keel_fail(KEEL_INVALID, "dispatch: rows [%u, %u], %u choices of %u experts with room for %u",
                         op->rows, op->n, op->k, op->experts, op->capacity);
    const uint32_t places = keel_dispatch_rows(op->rows, op->k, op->experts, op->capacity);
    return KEEL_CHECK_OPERANDS("dispatch", {"x", op->x, row_bytes(op->rows, op->n), KEEL_READ},
                               {"choice", op->choice, row_bytes(op->rows, op->k), KEEL_READ},
                               {"sorted", op->sorted, row_bytes(places, op->n), KEEL_WRITTEN},
                               {"offsets", op->offsets, row_bytes(op->experts + 1, 1), KEEL_WRITTEN},
                               {"place", op->place, row_bytes(op->rows, op->k), KEEL_WRITTEN},
                               {"workspace", op->workspace, keel_dispatch_workspace_bytes(op), KEEL_WRITTEN});
}

enum keel_status keel_op_dispatch(struct keel_kernels *kernels, const struct keel_dispatch *op,
                                  struct keel_launch_list *list)
{
    KEEL_TRY(check_dispatch(op));
    const uint32_t count = op->rows * op->k, item_rows = keel_kernels_item_elements(kernels);
    const uint32_t places = keel_dispatch_rows(op->rows, op->k, op->experts, op->capacity);
    const uint64_t source_from = keel_sort_workspace_bytes(count) / sizeof(int32_t);
    KEEL_TRY(keel_sort(kernels, op->choice, count, op->experts, op->workspace, list));
    KEEL_TRY(launch(kernels, "keel_expert_offsets", 1,
                    KEEL_ARGS(keel_arg_buffer(op->workspace), keel_arg_buffer(op->offsets),
                              keel_arg_u32(count), keel_arg_u32(op->experts), keel_arg_u32(op->capacity)),
                    list));
    KEEL_TRY(launch(kernels, "keel_expert_place", items_of(count, item_rows),
                    KEEL_ARGS(keel_arg_buffer(op->workspace), keel_arg_buffer(op->offsets),
                              keel_arg_buffer(op->place), keel_arg_u32(count), keel_arg_u32(op->experts),
                              keel_arg_u32(op->capacity), keel_arg_u64(source_from), keel_arg_u32(places),
                              keel_arg_u32(item_rows)),
                    list));
    const struct keel_row_gather rows = {.count = places,
                                         .n = op->n,
                                         .limit = count,
                                         .per = op->k,
                                         .ids_from = source_from,
                                         .ids = op->workspace,
                                         .x = op->x,
                                         .y = op->sorted};
    return keel_gather_rows(kernels, &rows, list);
}

enum keel_status keel_op_expert_bias_grad(struct keel_kernels *kernels,
                                          const struct keel_expert_bias_grad *op,
                                          struct keel_launch_list *list)
{
    const char *name = "expert_bias_grad";
    if (op->rows == 0 || op->rows > INT32_MAX || op->n == 0 || op->experts == 0 ||
        op->experts > KEEL_EXPERTS_MAX)
        return keel_fail(KEEL_INVALID, "%s: rows [%u, %u] of %u experts", name, op->rows, op->n, op->experts);
    KEEL_TRY(KEEL_CHECK_OPERANDS(name, {"x", op->x, row_bytes(op->rows, op->n), KEEL_READ},
                                 {"offsets", op->offsets, row_bytes(op->experts + 1, 1), KEEL_READ},
                                 {"out", op->out, row_bytes(op->experts, op->n), KEEL_WRITTEN}));
    const uint32_t column_blocks = (op->n + BIAS_COLUMNS - 1) / BIAS_COLUMNS;
    return launch(kernels, "keel_expert_bias", (uint64_t)op->experts * column_blocks,
                  KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->offsets), keel_arg_buffer(op->out),
                            keel_arg_u32(op->rows), keel_arg_u32(op->n), keel_arg_u32(op->experts),
                            keel_arg_u32(column_blocks)),
                  list);
}

/* ---- combine ---- */

static enum keel_status check_combine(const struct keel_combine_grad *op)
{
    const char *name = "combine_grad";
    const uint64_t count = (uint64_t)op->rows * op->k;
    if (count == 0 || count > INT32_MAX || op->n == 0 || op->places == 0 || op->places > INT32_MAX)
        return keel_fail(KEEL_INVALID, "%s: rows [%u, %u], %u choices of %u places", name, op->rows, op->n,
                         op->k, op->places);
    return KEEL_CHECK_OPERANDS(name, {"y", op->y, row_bytes(op->places, op->n), KEEL_READ},
                               {"place", op->place, row_bytes(op->rows, op->k), KEEL_READ},
                               {"weights", op->weights, row_bytes(op->rows, op->k), KEEL_READ},
                               {"dout", op->dout, row_bytes(op->rows, op->n), KEEL_READ},
                               {"dy", op->dy, row_bytes(op->places, op->n), KEEL_WRITTEN},
                               {"dweights", op->dweights, row_bytes(op->rows, op->k), KEEL_WRITTEN},
                               {"workspace", op->workspace, row_bytes(op->places, 1), KEEL_WRITTEN});
}

static enum keel_status launch_invert(struct keel_kernels *kernels, const struct keel_combine_grad *op,
                                      bool clear, struct keel_launch_list *list)
{
    const uint32_t count = op->rows * op->k, item_rows = keel_kernels_item_elements(kernels);
    return launch(kernels, "keel_expert_invert", items_of(clear ? op->places : count, item_rows),
                  KEEL_ARGS(keel_arg_buffer(op->place), keel_arg_buffer(op->workspace), keel_arg_u32(count),
                            keel_arg_u32(op->places), keel_arg_u32(clear), keel_arg_u32(item_rows)),
                  list);
}

enum keel_status keel_op_combine_grad(struct keel_kernels *kernels, const struct keel_combine_grad *op,
                                      struct keel_launch_list *list)
{
    KEEL_TRY(check_combine(op));
    const uint32_t item_rows = keel_kernels_item_rows(kernels, op->n);
    KEEL_TRY(launch(kernels, "keel_expert_dots", items_of(op->rows, item_rows),
                    KEEL_ARGS(keel_arg_buffer(op->y), keel_arg_buffer(op->place), keel_arg_buffer(op->dout),
                              keel_arg_buffer(op->dweights), keel_arg_u32(op->rows), keel_arg_u32(op->n),
                              keel_arg_u32(op->k), keel_arg_u32(op->places), keel_arg_u32(item_rows)),
                    list));
    KEEL_TRY(launch_invert(kernels, op, true, list));
    KEEL_TRY(launch_invert(kernels, op, false, list));
    const struct keel_row_gather rows = {.count = op->places,
                                         .n = op->n,
                                         .limit = op->rows * op->k,
                                         .per = op->k,
                                         .ids = op->workspace,
                                         .weights = op->weights,
                                         .x = op->dout,
                                         .y = op->dy};
    return keel_gather_rows(kernels, &rows, list);
}

/* ---- balance ---- */

static enum keel_status check_balance(const struct keel_balance_loss *op)
{
    const char *name = "balance_loss";
    const uint64_t choices = (uint64_t)op->rows * op->k;
    if (choices == 0 || choices > INT32_MAX || op->experts == 0 || op->experts > KEEL_EXPERTS_MAX)
        return keel_fail(KEEL_INVALID, "%s: probabilities [%u, %u], %u choices a row", name, op->rows,
                         op->experts, op->k);
    KEEL_TRY(keel_check_finite(name, "scale", op->scale));
    return KEEL_CHECK_OPERANDS(
        name, {"probabilities", op->probabilities, row_bytes(op->rows, op->experts), KEEL_READ},
        {"choice", op->choice, row_bytes(op->rows, op->k), KEEL_READ},
        {"loss_scale", op->loss_scale, sizeof(float), KEEL_OPTIONAL},
        {"scratch", op->scratch, row_bytes(2, op->experts), KEEL_WRITTEN},
        {"loss", op->loss, sizeof(float), KEEL_WRITTEN},
        {"dprobabilities", op->dprobabilities, row_bytes(op->rows, op->experts),
         KEEL_WRITTEN | KEEL_OPTIONAL});
}

enum keel_status keel_op_balance_loss(struct keel_kernels *kernels, const struct keel_balance_loss *op,
                                      struct keel_launch_list *list)
{
    KEEL_TRY(check_balance(op));
    const double rows = op->rows;
    const float a = (float)((double)op->scale * op->experts / (rows * rows * op->k));
    KEEL_TRY(launch(kernels, "keel_balance_sums", items_of(op->experts, KEEL_LANES),
                    KEEL_ARGS(keel_arg_buffer(op->probabilities), keel_arg_buffer(op->choice),
                              keel_arg_buffer(op->scratch), keel_arg_u32(op->rows), keel_arg_u32(op->experts),
                              keel_arg_u32(op->k)),
                    list));
    KEEL_TRY(launch(kernels, "keel_balance_loss", 1,
                    KEEL_ARGS(keel_arg_buffer(op->scratch), keel_arg_buffer(op->loss),
                              keel_arg_u32(op->experts), keel_arg_f32(a)),
                    list));
    if (op->dprobabilities == NULL)
        return KEEL_OK;
    const uint32_t item_rows = keel_kernels_item_rows(kernels, op->experts);
    return launch(kernels, "keel_balance_grad", items_of(op->rows, item_rows),
                  KEEL_ARGS(keel_arg_buffer(op->scratch), keel_arg_buffer(op->dprobabilities),
                            keel_arg_u32(op->rows), keel_arg_u32(op->experts), keel_arg_f32(a),
                            keel_arg_either(op->loss_scale, op->scratch),
                            keel_arg_u32(op->loss_scale != NULL), keel_arg_u32(item_rows)),
                  list);
}
