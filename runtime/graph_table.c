/* graph_table.c - embeddings: builder functions, gradients, launches. */
#include "autodiff.h"
#include "emit.h"

keel_value keel_graph_embedding(struct keel_graph *graph, keel_value ids, keel_value table,
                                keel_value positions)
{
    return keel_graph_node(
        graph, &(struct keel_node_request){.op = KEEL_OP_EMBEDDING, .in = {ids, table, positions}});
}

void keel_grad_embedding(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    if (!keel_gradient_param(autodiff, node, node->in[1]) ||
        !keel_gradient_param(autodiff, node, node->in[2]))
        return;
    keel_graph_node(autodiff->graph,
                    &(struct keel_node_request){
                        .op = KEEL_OP_EMBEDDING_GRAD,
                        .in = {node->in[0], arrived(autodiff, node->out[0])},
                        .into = {accumulator(autodiff, node->in[1]), accumulator(autodiff, node->in[2])}});
}

enum keel_status keel_emit_embedding(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *y = shape_of(emit, node->out[0]);
    struct keel_embedding op = {.batch = (uint32_t)y->size[0],
                                .tokens = (uint32_t)y->size[1],
                                .width = (uint32_t)y->size[2],
                                .vocab = rows_of(emit, node->in[1]),
                                .ids = buffer_of(emit, node->in[0]),
                                .table = buffer_of(emit, node->in[1]),
                                .positions = buffer_of(emit, node->in[2]),
                                .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_embedding(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_embedding_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *dy = shape_of(emit, node->in[1]);
    struct keel_embedding_grad op = {.batch = (uint32_t)dy->size[0],
                                     .tokens = (uint32_t)dy->size[1],
                                     .width = (uint32_t)dy->size[2],
                                     .vocab = rows_of(emit, node->out[0]),
                                     .ids = buffer_of(emit, node->in[0]),
                                     .dy = buffer_of(emit, node->in[1]),
                                     .dtable = buffer_of(emit, node->out[0]),
                                     .dpositions = buffer_of(emit, node->out[1])};
    return emit->measure ? KEEL_OK : keel_op_embedding_grad(emit->kernels, &op, emit->list);
}
