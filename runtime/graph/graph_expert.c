/* graph_expert.c - mixture of experts: builder functions, gradients, launches. */
#include "autodiff.h"
#include "emit.h"

#include <keel/table_ops.h>
#include <math.h>
#include <stdio.h>

/* ---- dispatch ------------------------------------------------------------------------------------------ */

void keel_graph_dispatch(struct keel_graph *graph, keel_value x, keel_value choice, uint32_t experts,
                         uint32_t capacity, keel_value *sorted, keel_value *offsets, keel_value *place)
{
    KEEL_ASSERT(sorted != NULL && offsets != NULL && place != NULL);
    *sorted = keel_graph_node(
        graph, &(struct keel_node_request){.op = KEEL_OP_DISPATCH,
                                           .in = {x, choice},
                                           .attributes.experts = {.count = experts, .capacity = capacity}});
    *offsets = *sorted == 0 ? 0 : graph->nodes[graph->node_count - 1].out[1];
    *place = *sorted == 0 ? 0 : graph->nodes[graph->node_count - 1].out[2];
}

bool keel_infer_dispatch(const struct keel_graph *graph, const struct keel_ir_node *node,
                         uint64_t size[KEEL_INFER], char *why, size_t why_bytes)
{
    const uint64_t choices = keel_shape_count(&graph->values[node->in[1]].shape);
    const uint32_t experts = node->attributes.experts.count, capacity = node->attributes.experts.capacity;
    if (choices > INT32_MAX || experts == 0 || experts > KEEL_EXPERTS_MAX || capacity == 0) {
        snprintf(why, why_bytes, "%llu choices of %u experts with room for %u each",
                 (unsigned long long)choices, experts, capacity);
        return false;
    }
    size['S'] = keel_dispatch_rows((uint32_t)(choices / size['k']), (uint32_t)size['k'], experts, capacity);
    size['O'] = (uint64_t)experts + 1;
    return true;
}

void keel_describe_dispatch(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " experts=%u capacity=%u", node->attributes.experts.count,
             node->attributes.experts.capacity);
}

/* Each row takes up the gradients of its copies: a bag. */
void keel_grad_dispatch(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    if (wanted(autodiff, node->in[0]))
        keel_gradient_add(
            autodiff, node->in[0],
            keel_graph_embedding_bag(autodiff->graph, node->out[2], arrived(autodiff, node->out[0])));
}

enum keel_status keel_emit_dispatch(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_dispatch op = {.rows = rows_of(emit, node->in[0]),
                                     .n = width_of(emit, node->in[0]),
                                     .k = width_of(emit, node->in[1]),
                                     .experts = node->attributes.experts.count,
                                     .capacity = node->attributes.experts.capacity,
                                     .x = buffer_of(emit, node->in[0]),
                                     .choice = buffer_of(emit, node->in[1]),
                                     .sorted = buffer_of(emit, node->out[0]),
                                     .offsets = buffer_of(emit, node->out[1]),
                                     .place = buffer_of(emit, node->out[2]),
                                     .workspace = emit->workspace};
    need_workspace(emit, keel_dispatch_workspace_bytes(&op));
    return emit->measure ? KEEL_OK : keel_op_dispatch(emit->kernels, &op, emit->list);
}

/* ---- a layer of each expert ---------------------------------------------------------------------------- */

keel_value keel_graph_expert_linear(struct keel_graph *graph, keel_value sorted, keel_value weight,
                                    keel_value bias, keel_value offsets)
{
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_EXPERT_LINEAR,
                                                              .in = {sorted, weight, offsets, bias}});
}

/* One offset more than experts. */
bool keel_infer_expert(const struct keel_graph *graph, const struct keel_ir_node *node,
                       uint64_t size[KEEL_INFER], char *why, size_t why_bytes)
{
    (void)graph, (void)node, (void)why, (void)why_bytes;
    size['O'] = size['e'] + 1;
    return true;
}

void keel_grad_expert_linear(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_graph *graph = autodiff->graph;
    keel_value x = node->in[0], weight = node->in[1], offsets = node->in[2], bias = node->in[3];
    keel_value dy = arrived(autodiff, node->out[0]);
    keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_EXPERT_DW,
                                                       .in = {x, dy, offsets},
                                                       .into = {accumulator(autodiff, weight)}});
    if (bias != 0)
        keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_EXPERT_BIAS_GRAD,
                                                           .in = {dy, offsets},
                                                           .into = {accumulator(autodiff, bias)}});
    if (wanted(autodiff, x))
        keel_gradient_add(autodiff, x,
                          keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_EXPERT_DX,
                                                                             .in = {dy, weight, offsets}}));
}

static enum keel_status emit_grouped(struct keel_emit *emit, struct keel_gemm_grouped *op, keel_value offsets)
{
    op->groups = (uint32_t)shape_of(emit, offsets)->size[0] - 1;
    op->offsets = buffer_of(emit, offsets);
    op->product.batch = 1;
    return emit->measure ? KEEL_OK : keel_op_gemm_grouped(emit->kernels, op, emit->list);
}

enum keel_status keel_emit_expert_linear(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint32_t k = width_of(emit, node->in[0]), n = width_of(emit, node->out[0]);
    struct keel_gemm_grouped op = {.product = {.m = rows_of(emit, node->in[0]),
                                               .n = n,
                                               .k = k,
                                               .lda = k,
                                               .ldb = n,
                                               .ldc = n,
                                               .stride_b = (uint64_t)k * n,
                                               .a = buffer_of(emit, node->in[0]),
                                               .b = buffer_of(emit, node->in[1]),
                                               .bias = buffer_of(emit, node->in[3]),
                                               .c = buffer_of(emit, node->out[0])}};
    return emit_grouped(emit, &op, node->in[2]);
}

/* dx = dy weight^T, expert by expert. */
enum keel_status keel_emit_expert_dx(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint32_t n = width_of(emit, node->in[0]), k = width_of(emit, node->out[0]);
    struct keel_gemm_grouped op = {.product = {.m = rows_of(emit, node->in[0]),
                                               .n = k,
                                               .k = n,
                                               .lda = n,
                                               .ldb = n,
                                               .ldc = k,
                                               .transpose_b = true,
                                               .a_type = type_of(emit, node->in[0]),
                                               .stride_b = (uint64_t)k * n,
                                               .a = buffer_of(emit, node->in[0]),
                                               .b = buffer_of(emit, node->in[1]),
                                               .c = buffer_of(emit, node->out[0])}};
    return emit_grouped(emit, &op, node->in[2]);
}

/* dweight += x^T dy, expert by expert. */
enum keel_status keel_emit_expert_dw(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint32_t k = width_of(emit, node->in[0]), n = width_of(emit, node->in[1]);
    struct keel_gemm_grouped op = {.product = {.m = k,
                                               .n = n,
                                               .k = rows_of(emit, node->in[0]),
                                               .lda = k,
                                               .ldb = n,
                                               .ldc = n,
                                               .transpose_a = true,
                                               .accumulate = true,
                                               .a_type = type_of(emit, node->in[0]),
                                               .b_type = type_of(emit, node->in[1]),
                                               .stride_c = (uint64_t)k * n,
                                               .a = buffer_of(emit, node->in[0]),
                                               .b = buffer_of(emit, node->in[1]),
                                               .c = buffer_of(emit, node->out[0])},
                                   .over_k = true};
    return emit_grouped(emit, &op, node->in[2]);
}

enum keel_status keel_emit_expert_bias_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_expert_bias_grad op = {.rows = rows_of(emit, node->in[0]),
                                             .n = width_of(emit, node->in[0]),
                                             .experts = rows_of(emit, node->out[0]),
                                             .x = buffer_of(emit, node->in[0]),
                                             .offsets = buffer_of(emit, node->in[1]),
                                             .out = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_expert_bias_grad(emit->kernels, &op, emit->list);
}

/* ---- combine ------------------------------------------------------------------------------------------- */

keel_value keel_graph_combine(struct keel_graph *graph, keel_value y, keel_value place, keel_value weights)
{
    return keel_graph_node(graph,
                           &(struct keel_node_request){.op = KEEL_OP_COMBINE, .in = {y, place, weights}});
}

void keel_grad_combine(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_graph *graph = autodiff->graph;
    keel_value dy =
        keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_COMBINE_GRAD,
                                                           .in = {node->in[0], node->in[1], node->in[2],
                                                                  arrived(autodiff, node->out[0])}});
    if (dy == 0)
        return;
    keel_value dweights = graph->nodes[graph->node_count - 1].out[1];
    if (wanted(autodiff, node->in[2]))
        keel_gradient_add(autodiff, node->in[2], dweights);
    if (wanted(autodiff, node->in[0]))
        keel_gradient_add(autodiff, node->in[0], dy);
}

enum keel_status keel_emit_combine(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_embedding_bag op = {.bags = rows_of(emit, node->in[1]),
                                          .size = width_of(emit, node->in[1]),
                                          .rows = rows_of(emit, node->in[0]),
                                          .n = width_of(emit, node->in[0]),
                                          .ids = buffer_of(emit, node->in[1]),
                                          .table = buffer_of(emit, node->in[0]),
                                          .y = buffer_of(emit, node->out[0]),
                                          .weights = buffer_of(emit, node->in[2])};
    return emit->measure ? KEEL_OK : keel_op_embedding_bag(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_combine_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_combine_grad op = {.rows = rows_of(emit, node->in[1]),
                                         .n = width_of(emit, node->in[0]),
                                         .k = width_of(emit, node->in[1]),
                                         .places = rows_of(emit, node->in[0]),
                                         .y = buffer_of(emit, node->in[0]),
                                         .place = buffer_of(emit, node->in[1]),
                                         .weights = buffer_of(emit, node->in[2]),
                                         .dout = buffer_of(emit, node->in[3]),
                                         .dy = buffer_of(emit, node->out[0]),
                                         .dweights = buffer_of(emit, node->out[1]),
                                         .workspace = emit->workspace};
    need_workspace(emit, op.places * sizeof(int32_t));
    return emit->measure ? KEEL_OK : keel_op_combine_grad(emit->kernels, &op, emit->list);
}

/* ---- balance ------------------------------------------------------------------------------------------- */

keel_value keel_graph_balance_loss(struct keel_graph *graph, keel_value probabilities, keel_value choice,
                                   float weight)
{
    return keel_graph_add_loss(graph, &(struct keel_node_request){.op = KEEL_OP_BALANCE_LOSS,
                                                                  .in = {probabilities, choice},
                                                                  .attributes.loss.weight = weight});
}

bool keel_infer_balance_loss(const struct keel_graph *graph, const struct keel_ir_node *node,
                             uint64_t size[KEEL_INFER], char *why, size_t why_bytes)
{
    (void)graph, (void)size;
    const float weight = node->attributes.loss.weight;
    snprintf(why, why_bytes, "a loss of weight %g: finite and not below 0 is wanted", (double)weight);
    return isfinite(weight) && weight >= 0.0F;
}

enum keel_status keel_emit_balance_loss(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_balance_loss op = {.rows = rows_of(emit, node->in[0]),
                                         .experts = width_of(emit, node->in[0]),
                                         .k = width_of(emit, node->in[1]),
                                         .scale = scale_of_loss(emit, node, 1),
                                         .probabilities = buffer_of(emit, node->in[0]),
                                         .choice = buffer_of(emit, node->in[1]),
                                         .loss = buffer_of(emit, node->out[0]),
                                         .dprobabilities = buffer_of(emit, node->out[1]),
                                         .loss_scale = emit->loss_scale,
                                         .scratch = emit->workspace};
    need_workspace(emit, 2 * (uint64_t)op.experts * sizeof(float));
    return emit->measure ? KEEL_OK : keel_op_balance_loss(emit->kernels, &op, emit->list);
}
