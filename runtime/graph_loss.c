/* graph_loss.c - losses: builder functions, gradients, launches.
 *
 * All losses of a graph add to one accumulator; each is a mean over its own rows, times its weight. The first
 * of cross-entropy and its like also says what the model's output is. */
#include "autodiff.h"
#include "emit.h"

#include <stdio.h>

/* ---- builder ------------------------------------------------------------------------------------------- */

/* A node that adds to the loss; returns the accumulator. */
static keel_value add_loss(struct keel_graph *graph, struct keel_node_request *request)
{
    if (graph->loss == 0)
        graph->loss = keel_graph_value(graph, "loss", KEEL_F32, KEEL_VALUE_LOSS,
                                       (struct keel_shape){.dims = 1, .size = {1}}, 0);
    request->into[0] = graph->loss;
    keel_graph_node(graph, request);
    return graph->status == KEEL_OK ? graph->loss : 0;
}

keel_value keel_graph_cross_entropy(struct keel_graph *graph, keel_value logits, keel_value targets)
{
    if (graph->output == 0)
        graph->output = logits;
    return add_loss(graph, &(struct keel_node_request){.op = KEEL_OP_CROSS_ENTROPY,
                                                       .in = {logits, targets},
                                                       .attributes.loss.weight = 1.0F});
}

keel_value keel_graph_bce(struct keel_graph *graph, keel_value logits, keel_value targets)
{
    if (graph->output == 0)
        graph->output = logits;
    return add_loss(graph, &(struct keel_node_request){
                               .op = KEEL_OP_BCE, .in = {logits, targets}, .attributes.loss.weight = 1.0F});
}

keel_value keel_graph_mse(struct keel_graph *graph, keel_value x, keel_value targets)
{
    if (graph->output == 0)
        graph->output = x;
    return add_loss(graph, &(struct keel_node_request){
                               .op = KEEL_OP_MSE, .in = {x, targets}, .attributes.loss.weight = 1.0F});
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

/* The forward node makes it. */
void keel_grad_loss(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_value gradient = keel_gradient_from_forward(autodiff, 1);
    if (gradient != 0)
        keel_gradient_add(autodiff, node->in[0], gradient);
}

/* ---- launches ------------------------------------------------------------------------------------------ */

void keel_describe_loss(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " weight=%g", (double)node->attributes.loss.weight);
}

enum keel_status keel_emit_cross_entropy(struct keel_emit *emit, const struct keel_ir_node *node)
{
    uint32_t rows = rows_of(emit, node->in[0]);
    struct keel_cross_entropy op = {.rows = rows,
                                    .vocab = width_of(emit, node->in[0]),
                                    .scale = scale_of_loss(emit, node, rows),
                                    .logits = buffer_of(emit, node->in[0]),
                                    .targets = buffer_of(emit, node->in[1]),
                                    .row_loss = emit->workspace,
                                    .loss = buffer_of(emit, node->out[0]),
                                    .dlogits = buffer_of(emit, node->out[1])};
    need_workspace(emit, rows * sizeof(float));
    return emit->measure ? KEEL_OK : keel_op_cross_entropy(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_loss(struct keel_emit *emit, const struct keel_ir_node *node)
{
    uint64_t count = count_of(emit, node->in[0]);
    struct keel_loss op = {.count = count,
                           .kind = node->op == KEEL_OP_BCE ? KEEL_LOSS_BCE : KEEL_LOSS_MSE,
                           .scale = scale_of_loss(emit, node, count),
                           .x = buffer_of(emit, node->in[0]),
                           .targets = buffer_of(emit, node->in[1]),
                           .scratch = emit->workspace,
                           .loss = buffer_of(emit, node->out[0]),
                           .dx = buffer_of(emit, node->out[1])};
    need_workspace(emit, keel_loss_scratch_bytes(count));
    return emit->measure ? KEEL_OK : keel_op_loss(emit->kernels, &op, emit->list);
}
