/* roofline_table.h - rows of roofline_bench.c for what moves and picks elements: shapes, rows, tables,
 * experts.
 *
 * A part of that program, on its pool of buffers; bytes are what must be read and written once. Of a scatter
 * the rows of the table that occur are those of so many random ids. */
#ifndef KEEL_BENCH_ROOFLINE_TABLE_H
#define KEEL_BENCH_ROOFLINE_TABLE_H

#include <keel/shape_ops.h>
#include <keel/table_ops.h>

enum { TABLE_ROWS = 50257, BAG = 26, EXPERTS = 8, IDS = 4096 * BAG };

static enum keel_status build_multiply(const struct row *row, struct keel_launch_list *list,
                                       struct work *work)
{
    *work = moves(STREAM_TRIAD, row, 12, 1);
    const struct keel_multiply op = {.count = row->rows * row->n, .a = pool[1], .b = pool[2], .y = pool[0]};
    return keel_op_multiply(kernels, &op, list);
}

/* Two parts, side by side. */
static enum keel_status build_concat(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_COPY, row, 8, 0);
    const struct keel_concat op = {.outer = row->rows,
                                   .inner = 1,
                                   .parts = 2,
                                   .sizes = (uint64_t[]){row->n / 3, row->n - row->n / 3},
                                   .input = (struct keel_buffer *[]){pool[1], pool[2]},
                                   .y = pool[0]};
    return keel_op_concat(kernels, &op, list);
}

/* The second of three parts. */
static struct keel_slice slice_of(const struct row *row)
{
    return (struct keel_slice){.outer = row->rows,
                               .size = row->n,
                               .inner = 1,
                               .from = row->n / 3,
                               .count = row->n / 3,
                               .x = pool[0],
                               .y = pool[1]};
}
static enum keel_status build_slice(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    const struct keel_slice op = slice_of(row);
    *work = moves(STREAM_COPY, row, 8.0 / 3, 0);
    return keel_op_slice(kernels, &op, list);
}
static enum keel_status build_slice_grad(const struct row *row, struct keel_launch_list *list,
                                         struct work *work)
{
    const struct keel_slice op = slice_of(row);
    *work = moves(STREAM_FILL, row, 4 + 4.0 / 3, 0);
    return keel_op_slice_grad(kernels, &op, list);
}

static enum keel_status build_transpose(const struct row *row, struct keel_launch_list *list,
                                        struct work *work)
{
    const struct keel_permute op = {
        .dims = 2, .size = {row->rows, row->n}, .order = {1, 0}, .x = pool[1], .y = pool[0]};
    *work = moves(STREAM_COPY, row, 8, 0);
    return keel_op_permute(kernels, &op, list);
}
/* Heads before tokens: [4, tokens, heads, 64]. */
static enum keel_status build_permute(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    const struct keel_permute op = {.dims = 4,
                                    .size = {4, row->rows / 4, row->n / 64, 64},
                                    .order = {0, 2, 1, 3},
                                    .x = pool[1],
                                    .y = pool[0]};
    *work = moves(STREAM_COPY, row, 8, 0);
    return keel_op_permute(kernels, &op, list);
}

static enum keel_status build_softmax(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    const struct keel_softmax op = {
        .rows = (uint32_t)row->rows, .n = (uint32_t)row->n, .x = pool[1], .y = pool[0]};
    *work = moves(STREAM_COPY, row, 8, OPS_EXP_BELOW + 4);
    return keel_op_softmax(kernels, &op, list);
}
static enum keel_status build_softmax_grad(const struct row *row, struct keel_launch_list *list,
                                           struct work *work)
{
    const struct keel_softmax_grad op = {
        .rows = (uint32_t)row->rows, .n = (uint32_t)row->n, .y = pool[1], .dy = pool[2], .dx = pool[0]};
    *work = moves(STREAM_TRIAD, row, 12, 4);
    return keel_op_softmax_grad(kernels, &op, list);
}
static enum keel_status build_top_k(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    const struct keel_top_k op = {.rows = (uint32_t)row->rows,
                                  .n = (uint32_t)row->n,
                                  .k = (uint32_t)row->k,
                                  .x = pool[1],
                                  .values = pool[0],
                                  .indices = integers[0]};
    *work = moves(STREAM_READ, row, 4 + 8 * (double)row->k / (double)row->n, 6);
    return keel_op_top_k(kernels, &op, list);
}
static enum keel_status build_cumsum(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    const struct keel_cumsum op = {
        .rows = (uint32_t)row->rows, .n = (uint32_t)row->n, .x = pool[1], .y = pool[0]};
    *work = moves(STREAM_COPY, row, 8, 1);
    return keel_op_cumsum(kernels, &op, list);
}

/* How many rows of the table `count` random ids name. */
static double occurring(double count)
{
    return (1 - exp(-count / TABLE_ROWS)) * TABLE_ROWS;
}
/* row->rows ids of a table of TABLE_ROWS; a row counts as often as it is named. */
static enum keel_status build_gather(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    const struct keel_gather op = {.rows = TABLE_ROWS,
                                   .n = (uint32_t)row->n,
                                   .count = (uint32_t)row->rows,
                                   .ids = ids,
                                   .x = pool[1],
                                   .y = pool[0]};
    *work = moves(STREAM_COPY, row, 8, 0);
    work->once_bytes = 4 * (double)row->n * ((double)row->rows + occurring((double)row->rows));
    return keel_op_gather(kernels, &op, list);
}
/* row->rows bags of BAG ids; a row of the table counts as often as it is named, once it is what occurs. */
static enum keel_status build_bag(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    const struct keel_embedding_bag op = {.bags = (uint32_t)row->rows,
                                          .size = BAG,
                                          .rows = TABLE_ROWS,
                                          .n = (uint32_t)row->n,
                                          .ids = ids,
                                          .table = pool[1],
                                          .y = pool[0]};
    *work = moves(STREAM_READ, row, 4 * (BAG + 1), BAG);
    work->once_bytes = 4 * (double)row->n * ((double)row->rows + occurring((double)row->rows * BAG));
    return keel_op_embedding_bag(kernels, &op, list);
}
static enum keel_status build_bag_grad(const struct row *row, struct keel_launch_list *list,
                                       struct work *work)
{
    const struct keel_scatter_add op = {.rows = TABLE_ROWS,
                                        .n = (uint32_t)row->n,
                                        .count = (uint32_t)row->rows * BAG,
                                        .per = BAG,
                                        .ids = ids,
                                        .x = pool[1],
                                        .table = pool[0],
                                        .workspace = integers[0]};
    *work = moves(STREAM_AXPY, row, 0, BAG);
    work->bytes = (double)row->n * (8 * occurring(op.count) + 4.0 * op.count);
    return keel_op_scatter_add(kernels, &op, list);
}

/* row->rows samples of k rows of n. */
static enum keel_status build_pairwise(const struct row *row, struct keel_launch_list *list,
                                       struct work *work)
{
    const double f = (double)row->k;
    const struct keel_pairwise_dot op = {.batch = (uint32_t)row->rows,
                                         .f = (uint32_t)row->k,
                                         .n = (uint32_t)row->n,
                                         .x = pool[1],
                                         .y = pool[0]};
    *work = moves(STREAM_READ, row, 4 * f, f * (f - 1));
    return keel_op_pairwise_dot(kernels, &op, list);
}
static enum keel_status build_pairwise_grad(const struct row *row, struct keel_launch_list *list,
                                            struct work *work)
{
    const double f = (double)row->k;
    const struct keel_pairwise_dot_grad op = {.batch = (uint32_t)row->rows,
                                              .f = (uint32_t)row->k,
                                              .n = (uint32_t)row->n,
                                              .x = pool[1],
                                              .dy = pool[2],
                                              .dx = pool[0]};
    *work = moves(STREAM_COPY, row, 8 * f, f * (f - 1));
    return keel_op_pairwise_dot_grad(kernels, &op, list);
}

/* Each row to k of EXPERTS, all of which have room; it counts as read for each. */
static enum keel_status build_dispatch(const struct row *row, struct keel_launch_list *list,
                                       struct work *work)
{
    const struct keel_dispatch op = {.rows = (uint32_t)row->rows,
                                     .n = (uint32_t)row->n,
                                     .k = (uint32_t)row->k,
                                     .experts = EXPERTS,
                                     .capacity = (uint32_t)(row->rows * row->k),
                                     .x = pool[1],
                                     .choice = choices,
                                     .sorted = pool[0],
                                     .offsets = integers[0],
                                     .place = integers[1],
                                     .workspace = integers[2]};
    *work = moves(STREAM_COPY, row, 8 * (double)row->k, 0);
    work->once_bytes = (double)(4 + 4 * row->k) / (double)(8 * row->k) * work->bytes;
    return keel_op_dispatch(kernels, &op, list);
}

#define ROOFLINE_TABLE                                                                                       \
    {"multiply", build_multiply, 32, MI, 0}, {"concat", build_concat, LONG, 2304, 0},                        \
        {"slice", build_slice, LONG, 2304, 0}, {"slice_grad", build_slice_grad, LONG, 2304, 0},              \
        {"permute", build_permute, LONG, WIDTH, 0}, {"transpose", build_transpose, LONG, HIDDEN, 0},         \
        {"softmax", build_softmax, LONG, 1024, 0}, {"softmax", build_softmax, MI, 8, 0},                     \
        {"softmax_grad", build_softmax_grad, LONG, 1024, 0}, {"softmax_grad", build_softmax_grad, MI, 8, 0}, \
        {"top_k", build_top_k, LONG, 4096, 8}, {"top_k", build_top_k, MI, 8, 2},                             \
        {"cumsum", build_cumsum, LONG, 1024, 0}, {"gather", build_gather, LONG, WIDTH, 0},                   \
        {"gather", build_gather, IDS, 64, 0}, {"embedding_bag", build_bag, LONG, 64, 0},                     \
        {"bag_grad", build_bag_grad, LONG, 64, 0}, {"pairwise_dot", build_pairwise, LONG, 64, 27},           \
        {"pairwise_dot_grad", build_pairwise_grad, LONG, 64, 27},                                            \
    {                                                                                                        \
        "dispatch", build_dispatch, LONG, WIDTH, 2                                                           \
    }

#endif
