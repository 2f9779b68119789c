/* graph_row.c - softmax, top-k, argmax, cumulative sum along the last dimension: builder functions,
 * gradients, launches. */
#include "autodiff.h"
#include "emit.h"

#include <keel/shape_ops.h>
#include <stdio.h>

/* ---- softmax ------------------------------------------------------------------------------------------- */

keel_value keel_graph_softmax(struct keel_graph *graph, keel_value x)
{
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_SOFTMAX, .in = {x}});
}

void keel_grad_softmax(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_gradient_add(
        autodiff, node->in[0],
        keel_graph_node(autodiff->graph,
                        &(struct keel_node_request){.op = KEEL_OP_SOFTMAX_GRAD,
                                                    .in = {node->out[0], arrived(autodiff, node->out[0])}}));
}

enum keel_status keel_emit_softmax(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_softmax op = {.rows = rows_of(emit, node->in[0]),
                                    .n = width_of(emit, node->in[0]),
                                    .x = buffer_of(emit, node->in[0]),
                                    .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_softmax(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_softmax_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_softmax_grad op = {.rows = rows_of(emit, node->in[0]),
                                         .n = width_of(emit, node->in[0]),
                                         .y = buffer_of(emit, node->in[0]),
                                         .dy = buffer_of(emit, node->in[1]),
                                         .dx = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_softmax_grad(emit->kernels, &op, emit->list);
}

/* ---- top-k and argmax ---------------------------------------------------------------------------------- */

void keel_graph_top_k(struct keel_graph *graph, keel_value x, uint32_t k, keel_value *values,
                      keel_value *indices)
{
    KEEL_ASSERT(values != NULL && indices != NULL);
    *values = keel_graph_node(
        graph, &(struct keel_node_request){.op = KEEL_OP_TOP_K, .in = {x}, .attributes.top_k.k = k});
    *indices = *values == 0 ? 0 : graph->nodes[graph->node_count - 1].out[1];
}

bool keel_infer_top_k(const struct keel_graph *graph, const struct keel_ir_node *node,
                      uint64_t size[KEEL_INFER], char *why, size_t why_bytes)
{
    (void)graph;
    const uint32_t k = node->attributes.top_k.k;
    size['K'] = k;
    if (k != 0 && k <= size['n'])
        return true;
    snprintf(why, why_bytes, "the largest %u of a row of %llu", k, (unsigned long long)size['n']);
    return false;
}

bool keel_infer_top_k_grad(const struct keel_graph *graph, const struct keel_ir_node *node,
                           uint64_t size[KEEL_INFER], char *why, size_t why_bytes)
{
    (void)graph, (void)why, (void)why_bytes;
    size['N'] = node->attributes.top_k.n;
    return true;
}

void keel_describe_top_k(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " k=%u", node->attributes.top_k.k);
}

/* The values go back to where they were; the choice itself has no slope. */
void keel_grad_top_k(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_attributes back = node->attributes;
    const struct keel_shape *x = &autodiff->graph->values[node->in[0]].shape;
    back.top_k.n = (uint32_t)x->size[x->dims - 1];
    keel_gradient_add(
        autodiff, node->in[0],
        keel_graph_node(autodiff->graph,
                        &(struct keel_node_request){.op = KEEL_OP_TOP_K_GRAD,
                                                    .in = {node->out[1], arrived(autodiff, node->out[0])},
                                                    .attributes = back}));
}

enum keel_status keel_emit_top_k(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const bool argmax = node->op == KEEL_OP_ARGMAX;
    const struct keel_top_k op = {.rows = rows_of(emit, node->in[0]),
                                  .n = width_of(emit, node->in[0]),
                                  .k = argmax ? 1 : node->attributes.top_k.k,
                                  .x = buffer_of(emit, node->in[0]),
                                  .values = argmax ? NULL : buffer_of(emit, node->out[0]),
                                  .indices = buffer_of(emit, node->out[argmax ? 0 : 1])};
    return emit->measure ? KEEL_OK : keel_op_top_k(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_top_k_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_top_k_grad op = {.rows = rows_of(emit, node->in[0]),
                                       .n = width_of(emit, node->out[0]),
                                       .k = width_of(emit, node->in[0]),
                                       .indices = buffer_of(emit, node->in[0]),
                                       .dvalues = buffer_of(emit, node->in[1]),
                                       .dx = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_top_k_grad(emit->kernels, &op, emit->list);
}

keel_value keel_graph_argmax(struct keel_graph *graph, keel_value x)
{
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_ARGMAX, .in = {x}});
}

/* ---- cumulative sum ------------------------------------------------------------------------------------ */

keel_value keel_graph_cumsum(struct keel_graph *graph, keel_value x)
{
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_CUMSUM, .in = {x}});
}

void keel_describe_cumsum(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s", node->attributes.reverse ? " reverse" : "");
}

void keel_grad_cumsum(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_gradient_add(
        autodiff, node->in[0],
        keel_graph_node(autodiff->graph, &(struct keel_node_request){.op = KEEL_OP_CUMSUM,
                                                                     .in = {arrived(autodiff, node->out[0])},
                                                                     .attributes.reverse = true}));
}

enum keel_status keel_emit_cumsum(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_cumsum op = {.rows = rows_of(emit, node->in[0]),
                                   .n = width_of(emit, node->in[0]),
                                   .reverse = node->attributes.reverse,
                                   .x = buffer_of(emit, node->in[0]),
                                   .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_cumsum(emit->kernels, &op, emit->list);
}
