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
    *sorted = KEEL_NODE(graph, .op = KEEL_OP_DISPATCH, .in = {x, choice},
                        .attributes.experts = {.count = experts, .capacity = capacity});
    *offsets = keel_graph_last_result(graph, 1);
    *place = keel_graph_last_result(graph, 2);
}

static bool infer_dispatch(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    uint64_t *size = infer->size;
    const uint64_t choices = keel_shape_count(&infer->graph->values[node->in[1]].shape);
    const uint32_t experts = node->attributes.experts.count, capacity = node->attributes.experts.capacity;
    if (choices > INT32_MAX || experts == 0 || experts > KEEL_EXPERTS_MAX || capacity == 0)
        return keel_infer_refuse(infer, "%llu choices of %u experts with room for %u each",
                                 (unsigned long long)choices, experts, capacity);
    size['S'] = keel_dispatch_rows((uint32_t)(choices / size['k']), (uint32_t)size['k'], experts, capacity);
    size['O'] = (uint64_t)experts + 1;
    return true;
}

static void describe_dispatch(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " experts=%u capacity=%u", node->attributes.experts.count,
             node->attributes.experts.capacity);
}

/* Each row takes up the gradients of its copies: a bag. */
static void grad_dispatch(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    if (wanted(autodiff, node->in[0]))
        keel_gradient_add(
            autodiff, node->in[0],
            keel_graph_embedding_bag(autodiff->graph, node->out[2], arrived(autodiff, node->out[0])));
}

static enum keel_status emit_dispatch(struct keel_emit *emit, const struct keel_ir_node *node)
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
    return KEEL_NODE(graph, .op = KEEL_OP_EXPERT_LINEAR, .in = {sorted, weight, offsets, bias});
}

keel_value keel_graph_expert_linear_transposed(struct keel_graph *graph, keel_value sorted, keel_value weight,
                                               keel_value offsets)
{
    return KEEL_NODE(graph, .op = KEEL_OP_EXPERT_TRANSPOSED, .in = {sorted, weight, offsets});
}

/* One offset more than experts. */
static bool infer_expert(struct keel_infer *infer)
{
    infer->size['O'] = infer->size['e'] + 1;
    return true;
}

static void grad_expert_linear(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_graph *graph = autodiff->graph;
    keel_value x = node->in[0], weight = node->in[1], offsets = node->in[2], bias = node->in[3];
    keel_value dy = arrived(autodiff, node->out[0]);
    if (wanted(autodiff, weight))
        KEEL_NODE(graph, .op = KEEL_OP_EXPERT_DW, .in = {x, dy, offsets},
                  .into = {accumulator(autodiff, weight)});
    if (wanted(autodiff, bias))
        KEEL_NODE(graph, .op = KEEL_OP_EXPERT_BIAS_GRAD, .in = {dy, offsets},
                  .into = {accumulator(autodiff, bias)});
    if (wanted(autodiff, x))
        KEEL_GRADIENT(autodiff, x, .op = KEEL_OP_EXPERT_DX, .in = {dy, weight, offsets});
}

/* dweight += dy^T x, and dx = dy weight: the products of a layer that is not transposed. */
static void grad_expert_transposed(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value x = node->in[0], weight = node->in[1], offsets = node->in[2];
    const keel_value dy = arrived(autodiff, node->out[0]);
    if (wanted(autodiff, weight))
        KEEL_NODE(autodiff->graph, .op = KEEL_OP_EXPERT_DW, .in = {dy, x, offsets},
                  .into = {accumulator(autodiff, weight)});
    if (wanted(autodiff, x))
        KEEL_GRADIENT(autodiff, x, .op = KEEL_OP_EXPERT_LINEAR, .in = {dy, weight, offsets});
}

/* The product of operands 0 and 1, expert by expert: `product` says what is transposed, `offsets` whose rows
 * are whose. Where A is transposed each expert has a sum of its own over its rows. */
static enum keel_status emit_grouped(struct keel_emit *emit, const struct keel_ir_node *node,
                                     struct keel_gemm product)
{
    const keel_value a = node->in[0], b = node->in[1], offsets = node->in[2], c = node->out[0];
    product.batch = 1;
    product.lda = width_of(emit, a);
    product.ldb = width_of(emit, b);
    product.ldc = product.n = width_of(emit, c);
    product.m = product.transpose_a ? product.lda : rows_of(emit, a);
    product.k = product.transpose_a ? rows_of(emit, a) : product.lda;
    product.stride_b = product.transpose_a ? 0 : (uint64_t)product.k * product.n;
    product.stride_c = product.transpose_a ? (uint64_t)product.m * product.n : 0;
    product.a_type = type_of(emit, a);
    product.b_type = type_of(emit, b);
    product.a = buffer_of(emit, a);
    product.b = buffer_of(emit, b);
    product.c = buffer_of(emit, c);
    const struct keel_gemm_grouped op = {.product = product,
                                         .groups = (uint32_t)shape_of(emit, offsets)->size[0] - 1,
                                         .over_k = product.transpose_a,
                                         .offsets = buffer_of(emit, offsets)};
    return emit->measure ? KEEL_OK : keel_op_gemm_grouped(emit->kernels, &op, emit->list);
}

static enum keel_status emit_expert_linear(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return emit_grouped(emit, node, (struct keel_gemm){.bias = buffer_of(emit, node->in[3])});
}

/* dx = dy weight^T, and of a layer that is transposed y = x weight^T; dweight += x^T dy */
static enum keel_status emit_expert_dx(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return emit_grouped(emit, node, (struct keel_gemm){.transpose_b = true});
}
static enum keel_status emit_expert_dw(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return emit_grouped(emit, node, (struct keel_gemm){.transpose_a = true, .accumulate = true});
}

static enum keel_status emit_expert_bias_grad(struct keel_emit *emit, const struct keel_ir_node *node)
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
    return KEEL_NODE(graph, .op = KEEL_OP_COMBINE, .in = {y, place, weights});
}

static void grad_combine(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value dy =
        KEEL_NODE(autodiff->graph, .op = KEEL_OP_COMBINE_GRAD,
                  .in = {node->in[0], node->in[1], node->in[2], arrived(autodiff, node->out[0])});
    const keel_value dweights = keel_graph_last_result(autodiff->graph, 1);
    keel_gradient_add(autodiff, node->in[2], dweights);
    keel_gradient_add(autodiff, node->in[0], dy);
}

static enum keel_status emit_combine(struct keel_emit *emit, const struct keel_ir_node *node)
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

static enum keel_status emit_combine_grad(struct keel_emit *emit, const struct keel_ir_node *node)
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

static bool infer_balance_loss(struct keel_infer *infer)
{
    const float weight = infer->node->attributes.loss.weight;
    return (isfinite(weight) && weight >= 0.0F) ||
           keel_infer_refuse(infer, "a loss of weight %g: finite and not below 0 is wanted", (double)weight);
}

static enum keel_status emit_balance_loss(struct keel_emit *emit, const struct keel_ir_node *node)
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

/* ---- the table ---- */

enum { FIRST = KEEL_OP_DISPATCH, LAST = KEEL_OP_BALANCE_LOSS };
static const struct keel_op rows[LAST - FIRST + 1] = {
    /* Operands: rows, k experts of each. Results: the rows sorted by expert, where each expert's begin, where
     * each choice went. The gradient is an embedding_bag. */
    [KEEL_OP_DISPATCH - FIRST] = {.name = "dispatch",
                                  .rule = "*w,#*k->Sw,#O,#*k",
                                  .infer_dims = infer_dispatch,
                                  .describe = describe_dispatch,
                                  .grad = grad_dispatch,
                                  .emit = emit_dispatch},
    /* Operands: rows sorted by expert, weights of each, where each expert's rows begin, biases. */
    [KEEL_OP_EXPERT_LINEAR - FIRST] = {.name = "expert_linear",
                                       .rule = "sk,ekn,#O,en?->sn",
                                       .params = "13",
                                       .flops = "2skn",
                                       .infer_dims = infer_expert,
                                       .grad = grad_expert_linear,
                                       .emit = emit_expert_linear},
    /* Weights are [experts, n, k]. */
    [KEEL_OP_EXPERT_TRANSPOSED - FIRST] = {.name = "expert_transposed",
                                           .rule = "sk,enk,#O->sn",
                                           .params = "1",
                                           .flops = "2skn",
                                           .infer_dims = infer_expert,
                                           .grad = grad_expert_transposed,
                                           .emit = emit_expert_dx},
    [KEEL_OP_EXPERT_DX - FIRST] = {.name = "expert_dx",
                                   .rule = "sn,ekn,#O->sk",
                                   .flops = "2skn",
                                   .half = "0",
                                   .infer_dims = infer_expert,
                                   .emit = emit_expert_dx},
    [KEEL_OP_EXPERT_DW - FIRST] = {.name = "expert_dw",
                                   .rule = "sk,sn,#O->+ekn",
                                   .flops = "2skn",
                                   .half = "01",
                                   .infer_dims = infer_expert,
                                   .emit = emit_expert_dw},
    [KEEL_OP_EXPERT_BIAS_GRAD - FIRST] = {.name = "expert_bias_grad",
                                          .rule = "sn,#O->+en",
                                          .infer_dims = infer_expert,
                                          .emit = emit_expert_bias_grad},
    /* Operands: rows sorted by expert, place, weights. */
    [KEEL_OP_COMBINE - FIRST] = {.name = "combine",
                                 .rule = "sn,#*k,*k->*n",
                                 .flops = "2*kn",
                                 .grad = grad_combine,
                                 .emit = emit_combine},
    [KEEL_OP_COMBINE_GRAD - FIRST] = {.name = "combine_grad",
                                      .rule = "sn,#*k,*k,*n->sn,*k",
                                      .flops = "3*kn",
                                      .emit = emit_combine_grad},
    [KEEL_OP_BALANCE_LOSS - FIRST] = {.name = "balance_loss",
                                      .rule = "*e,#*k->+1,*e?",
                                      .infer_dims = infer_balance_loss,
                                      .describe = keel_describe_loss,
                                      .scaled = true,
                                      .grad = keel_grad_loss,
                                      .emit = emit_balance_loss},
};

const struct keel_op_family keel_ops_expert = {FIRST, LAST, rows};
