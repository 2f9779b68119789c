/* graph_table.c - rows chosen by number (embeddings, bags, gather) and dots of pairs: builder functions,
 * gradients, launches. */
#include "autodiff.h"
#include "emit.h"

#include <keel/table_ops.h>
#include <stdio.h>

keel_value keel_graph_embedding(struct keel_graph *graph, keel_value ids, keel_value table,
                                keel_value positions)
{
    if (graph->position != 0 && positions != 0)
        return keel_graph_add(graph, keel_graph_embedding(graph, ids, table, 0),
                              keel_graph_gather(graph, positions, graph->position));
    return KEEL_NODE(graph, .op = KEEL_OP_EMBEDDING, .in = {ids, table, positions});
}

static void grad_embedding(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    KEEL_NODE(autodiff->graph, .op = KEEL_OP_EMBEDDING_GRAD,
              .in = {node->in[0], arrived(autodiff, node->out[0])},
              .into = {accumulator(autodiff, node->in[1]), accumulator(autodiff, node->in[2])});
}

static enum keel_status emit_embedding(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *y = shape_of(emit, node->out[0]);
    struct keel_embedding op = {.batch = (uint32_t)y->size[0],
                                .tokens = (uint32_t)y->size[1],
                                .width = (uint32_t)y->size[2],
                                .vocab = rows_of(emit, node->in[1]),
                                .first = (uint32_t)node->attributes.place.first,
                                .ids = buffer_of(emit, node->in[0]),
                                .table = buffer_of(emit, node->in[1]),
                                .positions = buffer_of(emit, node->in[2]),
                                .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_embedding(emit->kernels, &op, emit->list);
}

static enum keel_status emit_embedding_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *dy = shape_of(emit, node->in[1]);
    struct keel_embedding_grad op = {.batch = (uint32_t)dy->size[0],
                                     .tokens = (uint32_t)dy->size[1],
                                     .width = (uint32_t)dy->size[2],
                                     .vocab = node->out[0] != 0 ? rows_of(emit, node->out[0]) : 1,
                                     .first = (uint32_t)node->attributes.place.first,
                                     .ids = buffer_of(emit, node->in[0]),
                                     .dy = buffer_of(emit, node->in[1]),
                                     .dtable = buffer_of(emit, node->out[0]),
                                     .dpositions = buffer_of(emit, node->out[1])};
    return emit->measure ? KEEL_OK : keel_op_embedding_grad(emit->kernels, &op, emit->list);
}

/* ---- bags and gather ----------------------------------------------------------------------------------- */

keel_value keel_graph_embedding_bag(struct keel_graph *graph, keel_value ids, keel_value table)
{
    return KEEL_NODE(graph, .op = KEEL_OP_EMBEDDING_BAG, .in = {ids, table});
}

keel_value keel_graph_gather(struct keel_graph *graph, keel_value x, keel_value ids)
{
    return KEEL_NODE(graph, .op = KEEL_OP_GATHER, .in = {ids, x});
}

/* As many numbers as the kernels count; R: rows of a gradient that is a value of its own. */
static bool infer_numbers(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    infer->size['R'] = node->attributes.rows;
    if (keel_shape_count(&infer->graph->values[node->in[0]].shape) <= INT32_MAX)
        return true;
    return keel_infer_refuse(infer, "more than 2^31 - 1 numbers of rows");
}

/* Into the accumulator of a table; a gradient of its own where rows were gathered from another value. */
static void grad_rows(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_graph *graph = autodiff->graph;
    const keel_value table = node->in[1], sum = accumulator(autodiff, table);
    const bool bag = node->op == KEEL_OP_EMBEDDING_BAG;
    struct keel_node_request request = {.op = bag ? KEEL_OP_BAG_GRAD : KEEL_OP_SCATTER_ADD,
                                        .in = {node->in[0], arrived(autodiff, node->out[0])},
                                        .into = {sum}};
    if (!wanted(autodiff, table))
        return;
    if (sum != 0) {
        keel_graph_node(graph, &request);
        return;
    }
    request.op = KEEL_OP_GATHER_GRAD;
    request.attributes.rows = (uint32_t)graph->values[table].shape.size[0];
    keel_gradient_add(autodiff, table, keel_graph_node(graph, &request));
}

static enum keel_status emit_embedding_bag(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_embedding_bag op = {.bags = rows_of(emit, node->in[0]),
                                          .size = width_of(emit, node->in[0]),
                                          .rows = rows_of(emit, node->in[1]),
                                          .n = width_of(emit, node->in[1]),
                                          .ids = buffer_of(emit, node->in[0]),
                                          .table = buffer_of(emit, node->in[1]),
                                          .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_embedding_bag(emit->kernels, &op, emit->list);
}

static enum keel_status emit_gather(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_gather op = {.rows = rows_of(emit, node->in[1]),
                                   .n = width_of(emit, node->in[1]),
                                   .count = (uint32_t)count_of(emit, node->in[0]),
                                   .ids = buffer_of(emit, node->in[0]),
                                   .x = buffer_of(emit, node->in[1]),
                                   .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_gather(emit->kernels, &op, emit->list);
}

/* bag_grad, scatter_add; gather_grad, whose result is zeros before. */
static enum keel_status emit_scatter_add(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint32_t count = (uint32_t)count_of(emit, node->in[0]);
    const struct keel_scatter_add op = {.rows = rows_of(emit, node->out[0]),
                                        .n = width_of(emit, node->out[0]),
                                        .count = count,
                                        .per = count / rows_of(emit, node->in[1]),
                                        .ids = buffer_of(emit, node->in[0]),
                                        .x = buffer_of(emit, node->in[1]),
                                        .table = buffer_of(emit, node->out[0]),
                                        .workspace = emit->workspace};
    const struct keel_fill clear = {.count = count_of(emit, node->out[0]), .y = op.table};
    need_workspace(emit, keel_sort_workspace_bytes(count));
    if (emit->measure)
        return KEEL_OK;
    if (node->op == KEEL_OP_GATHER_GRAD)
        KEEL_TRY(keel_op_fill(emit->kernels, &clear, emit->list));
    return keel_op_scatter_add(emit->kernels, &op, emit->list);
}

/* ---- pairs --------------------------------------------------------------------------------------------- */

keel_value keel_graph_pairwise_dot(struct keel_graph *graph, keel_value x)
{
    return KEEL_NODE(graph, .op = KEEL_OP_PAIRWISE_DOT, .in = {x});
}

static bool infer_pairs(struct keel_infer *infer)
{
    uint64_t *size = infer->size;
    const uint64_t f = size['f'], n = size['n'];
    size['P'] = f * (f - 1) / 2;
    if (f >= 2 && f * f <= INT32_MAX && f * n <= INT32_MAX)
        return true;
    return keel_infer_refuse(infer, "there are no pairs of %llu rows, or too many", (unsigned long long)f);
}

static void grad_pairwise_dot(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    KEEL_GRADIENT(autodiff, node->in[0], .op = KEEL_OP_PAIRWISE_DOT_GRAD,
                  .in = {node->in[0], arrived(autodiff, node->out[0])});
}

static enum keel_status emit_pairwise_dot(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *x = shape_of(emit, node->in[0]);
    const struct keel_pairwise_dot op = {.batch = (uint32_t)x->size[0],
                                         .f = (uint32_t)x->size[1],
                                         .n = (uint32_t)x->size[2],
                                         .x = buffer_of(emit, node->in[0]),
                                         .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_pairwise_dot(emit->kernels, &op, emit->list);
}

static enum keel_status emit_pairwise_dot_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *x = shape_of(emit, node->in[0]);
    const struct keel_pairwise_dot_grad op = {.batch = (uint32_t)x->size[0],
                                              .f = (uint32_t)x->size[1],
                                              .n = (uint32_t)x->size[2],
                                              .x = buffer_of(emit, node->in[0]),
                                              .dy = buffer_of(emit, node->in[1]),
                                              .dx = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_pairwise_dot_grad(emit->kernels, &op, emit->list);
}

/* ---- the table ---- */

enum { FIRST = KEEL_OP_EMBEDDING, LAST = KEEL_OP_PAIRWISE_DOT_GRAD };
static const struct keel_op rows[LAST - FIRST + 1] = {
    [KEEL_OP_EMBEDDING - FIRST] = {.name = "embedding",
                                   .rule = "#bt,vn,tn?->btn",
                                   .split = "v0n",
                                   .params = "12",
                                   .grad = grad_embedding,
                                   .emit = emit_embedding},
    [KEEL_OP_EMBEDDING_GRAD - FIRST] = {.name = "embedding_grad",
                                        .rule = "#bt,btn->+vn?,+tn?",
                                        .split = "vn",
                                        .emit = emit_embedding_grad},
    /* An id that is no row of the table, as -1, is absent. */
    [KEEL_OP_EMBEDDING_BAG - FIRST] = {.name = "embedding_bag",
                                       .rule = "#*l,vn->*n",
                                       .split = "n",
                                       .params = "1",
                                       .infer_dims = infer_numbers,
                                       .grad = grad_rows,
                                       .emit = emit_embedding_bag},
    [KEEL_OP_BAG_GRAD - FIRST] = {.name = "bag_grad",
                                  .rule = "#*l,*n->+vn",
                                  .split = "n",
                                  .infer_dims = infer_numbers,
                                  .emit = emit_scatter_add},
    [KEEL_OP_GATHER - FIRST] = {.name = "gather",
                                .rule = "#*,rn->*n",
                                .split = "n",
                                .infer_dims = infer_numbers,
                                .grad = grad_rows,
                                .emit = emit_gather},
    [KEEL_OP_SCATTER_ADD - FIRST] = {.name = "scatter_add",
                                     .rule = "#*,*n->+rn",
                                     .split = "n",
                                     .infer_dims = infer_numbers,
                                     .emit = emit_scatter_add},
    /* scatter_add to zeros, of R rows. */
    [KEEL_OP_GATHER_GRAD - FIRST] = {.name = "gather_grad",
                                     .rule = "#*,*n->Rn",
                                     .split = "n",
                                     .infer_dims = infer_numbers,
                                     .emit = emit_scatter_add},
    [KEEL_OP_PAIRWISE_DOT - FIRST] = {.name = "pairwise_dot",
                                      .rule = "bfn->bP",
                                      .split = "b",
                                      .flops = "2bPn",
                                      .infer_dims = infer_pairs,
                                      .grad = grad_pairwise_dot,
                                      .emit = emit_pairwise_dot},
    [KEEL_OP_PAIRWISE_DOT_GRAD - FIRST] = {.name = "pairwise_dot_grad",
                                           .rule = "bfn,bP->bfn",
                                           .split = "b",
                                           .flops = "4bPn",
                                           .infer_dims = infer_pairs,
                                           .emit = emit_pairwise_dot_grad},
};

const struct keel_op_family keel_ops_table = {FIRST, LAST, rows};
