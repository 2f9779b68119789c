/* graph_dense.c - products, norms, activations, additions: builder functions, gradients, launches. */
#include "autodiff.h"
#include "emit.h"

#include <stdio.h>

static const float norm_epsilon = 1e-5F; /* as in the published GPT-2 */

/* ---- builder ------------------------------------------------------------------------------------------- */

keel_value keel_graph_linear(struct keel_graph *graph, keel_value x, keel_value weight, keel_value bias)
{
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_LINEAR, .in = {x, weight, bias}});
}

keel_value keel_graph_linear_transposed(struct keel_graph *graph, keel_value x, keel_value table)
{
    return keel_graph_node(graph,
                           &(struct keel_node_request){.op = KEEL_OP_LINEAR_TRANSPOSED, .in = {x, table}});
}

keel_value keel_graph_layernorm(struct keel_graph *graph, keel_value x, keel_value gamma, keel_value beta)
{
    return keel_graph_node(graph,
                           &(struct keel_node_request){.op = KEEL_OP_LAYERNORM, .in = {x, gamma, beta}});
}

keel_value keel_graph_rms_norm(struct keel_graph *graph, keel_value x, keel_value gamma)
{
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_RMS_NORM, .in = {x, gamma}});
}

keel_value keel_graph_activation(struct keel_graph *graph, keel_value x, enum keel_activation_kind kind)
{
    return keel_graph_node(graph, &(struct keel_node_request){
                                      .op = KEEL_OP_ACTIVATION, .in = {x}, .attributes.activation = kind});
}

bool keel_infer_activation(const struct keel_graph *graph, const struct keel_ir_node *node,
                           uint64_t size[KEEL_INFER], char *why, size_t why_bytes)
{
    (void)graph, (void)size;
    unsigned kind = node->attributes.activation;
    snprintf(why, why_bytes, "there is no kind %u", kind);
    return kind < KEEL_ACTIVATION_COUNT;
}

keel_value keel_graph_swiglu(struct keel_graph *graph, keel_value a, keel_value b)
{
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_SWIGLU, .in = {a, b}});
}

keel_value keel_graph_gelu(struct keel_graph *graph, keel_value x)
{
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_GELU, .in = {x}});
}

keel_value keel_graph_dropout(struct keel_graph *graph, keel_value x, float rate)
{
    if (rate >= 0.0F && rate <= 0.0F)
        return graph->status == KEEL_OK ? x : 0;
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_DROPOUT,
                                                              .in = {x},
                                                              .attributes = keel_graph_random(graph, rate)});
}

bool keel_check_rate(float rate, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "a dropout of %g is not in [0, 1)", (double)rate);
    return rate >= 0.0F && rate < 1.0F;
}

bool keel_infer_dropout(const struct keel_graph *graph, const struct keel_ir_node *node,
                        uint64_t size[KEEL_INFER], char *why, size_t why_bytes)
{
    (void)graph, (void)size;
    return keel_check_rate(node->attributes.rate, why, why_bytes);
}

keel_value keel_graph_add(struct keel_graph *graph, keel_value a, keel_value b)
{
    return keel_graph_node(graph, &(struct keel_node_request){.op = KEEL_OP_ADD, .in = {a, b}});
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

/* A product with a parameter: the parameter's gradient first, so that it is final sooner. */
static void product_gradient(struct keel_autodiff *autodiff, const struct keel_ir_node *node, uint32_t dw,
                             uint32_t dx)
{
    keel_value x = node->in[0];
    keel_value weight = node->in[1];
    keel_value dy = arrived(autodiff, node->out[0]);
    keel_graph_node(autodiff->graph, &(struct keel_node_request){
                                         .op = dw, .in = {x, dy}, .into = {accumulator(autodiff, weight)}});
    if (node->in[2] != 0)
        keel_graph_node(autodiff->graph,
                        &(struct keel_node_request){.op = KEEL_OP_BIAS_GRAD,
                                                    .in = {dy},
                                                    .into = {accumulator(autodiff, node->in[2])}});
    if (wanted(autodiff, x))
        keel_gradient_add(
            autodiff, x,
            keel_graph_node(autodiff->graph, &(struct keel_node_request){.op = dx, .in = {dy, weight}}));
}

void keel_grad_linear(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    product_gradient(autodiff, node, KEEL_OP_LINEAR_DW, KEEL_OP_LINEAR_DX);
}

void keel_grad_linear_transposed(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    product_gradient(autodiff, node, KEEL_OP_TRANSPOSED_DW, KEEL_OP_TRANSPOSED_DX);
}

void keel_grad_layernorm(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_value gamma = node->in[1];
    keel_value beta = node->in[2];
    keel_value dx = keel_graph_node(
        autodiff->graph,
        &(struct keel_node_request){
            .op = KEEL_OP_LAYERNORM_GRAD,
            .in = {node->in[0], gamma, node->out[1], node->out[2], arrived(autodiff, node->out[0])},
            .into = {0, accumulator(autodiff, gamma), accumulator(autodiff, beta)}});
    if (wanted(autodiff, node->in[0]))
        keel_gradient_add(autodiff, node->in[0], dx);
}

void keel_grad_rms_norm(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_value gamma = node->in[1];
    keel_value dx = keel_graph_node(
        autodiff->graph,
        &(struct keel_node_request){.op = KEEL_OP_RMS_NORM_GRAD,
                                    .in = {node->in[0], gamma, node->out[1], arrived(autodiff, node->out[0])},
                                    .into = {0, accumulator(autodiff, gamma)}});
    if (wanted(autodiff, node->in[0]))
        keel_gradient_add(autodiff, node->in[0], dx);
}

void keel_describe_activation(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    static const char *const kinds[KEEL_ACTIVATION_COUNT] = {
        [KEEL_RELU] = "relu", [KEEL_TANH] = "tanh", [KEEL_SIGMOID] = "sigmoid", [KEEL_SILU] = "silu"};
    snprintf(text, text_bytes, " kind=%s", kinds[node->attributes.activation]);
}

/* ReLU's result is positive where its operand is: the operand need not be kept. */
void keel_grad_activation(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_value seen = node->attributes.activation == KEEL_RELU ? node->out[0] : node->in[0];
    keel_gradient_add(autodiff, node->in[0],
                      keel_graph_node(autodiff->graph, &(struct keel_node_request){
                                                           .op = KEEL_OP_ACTIVATION_GRAD,
                                                           .in = {seen, arrived(autodiff, node->out[0])},
                                                           .attributes = node->attributes}));
}

void keel_grad_swiglu(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_value da = keel_graph_node(
        autodiff->graph,
        &(struct keel_node_request){.op = KEEL_OP_SWIGLU_GRAD,
                                    .in = {node->in[0], node->in[1], arrived(autodiff, node->out[0])}});
    if (da == 0)
        return;
    keel_value db = autodiff->graph->nodes[autodiff->graph->node_count - 1].out[1];
    if (wanted(autodiff, node->in[0]))
        keel_gradient_add(autodiff, node->in[0], da);
    if (wanted(autodiff, node->in[1]))
        keel_gradient_add(autodiff, node->in[1], db);
}

void keel_grad_gelu(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_gradient_add(
        autodiff, node->in[0],
        keel_graph_node(autodiff->graph,
                        &(struct keel_node_request){.op = KEEL_OP_GELU_GRAD,
                                                    .in = {node->in[0], arrived(autodiff, node->out[0])}}));
}

/* The same mask on the gradient. */
void keel_grad_dropout(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_gradient_add(
        autodiff, node->in[0],
        keel_graph_node(autodiff->graph, &(struct keel_node_request){.op = KEEL_OP_DROPOUT,
                                                                     .in = {arrived(autodiff, node->out[0])},
                                                                     .attributes = node->attributes}));
}

void keel_grad_add(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    for (uint32_t i = 0; i < 2; i++)
        if (wanted(autodiff, node->in[i]))
            keel_gradient_add(autodiff, node->in[i], arrived(autodiff, node->out[0]));
}

/* ---- launches: products -------------------------------------------------------------------------------- */

enum keel_status keel_emit_product(struct keel_emit *emit, struct keel_gemm *gemm)
{
    gemm->batch = 1;
    gemm->ldc = gemm->n;
    if (!emit->measure) {
        if (emit->checks != NULL)
            keel_gemm_checksums_bind(emit->checks, emit->node, gemm);
        return keel_op_gemm(emit->kernels, gemm, emit->list);
    }
    return emit->checks != NULL ? keel_gemm_checksums_plan(emit->checks, emit->graph, emit->node, gemm)
                                : KEEL_OK;
}

enum keel_status keel_emit_linear(struct keel_emit *emit, const struct keel_ir_node *node)
{
    uint32_t k = width_of(emit, node->in[0]);
    uint32_t n = width_of(emit, node->in[1]);
    struct keel_gemm gemm = {.m = rows_of(emit, node->in[0]),
                             .n = n,
                             .k = k,
                             .lda = k,
                             .ldb = n,
                             .a = buffer_of(emit, node->in[0]),
                             .b = buffer_of(emit, node->in[1]),
                             .c = buffer_of(emit, node->out[0]),
                             .bias = buffer_of(emit, node->in[2]),
                             .residual = buffer_of(emit, node->in[3]),
                             .pre = buffer_of(emit, node->out[1])};
    return keel_emit_product(emit, &gemm);
}

enum keel_status keel_emit_linear_transposed(struct keel_emit *emit, const struct keel_ir_node *node)
{
    uint32_t k = width_of(emit, node->in[0]);
    struct keel_gemm gemm = {.m = rows_of(emit, node->in[0]),
                             .n = rows_of(emit, node->in[1]),
                             .k = k,
                             .lda = k,
                             .ldb = k,
                             .transpose_b = true,
                             .a = buffer_of(emit, node->in[0]),
                             .b = buffer_of(emit, node->in[1]),
                             .c = buffer_of(emit, node->out[0])};
    return keel_emit_product(emit, &gemm);
}

/* dx = dy weight^T */
enum keel_status keel_emit_linear_dx(struct keel_emit *emit, const struct keel_ir_node *node)
{
    uint32_t n = width_of(emit, node->in[0]);
    struct keel_gemm gemm = {.m = rows_of(emit, node->in[0]),
                             .n = rows_of(emit, node->in[1]),
                             .k = n,
                             .lda = n,
                             .ldb = n,
                             .transpose_b = true,
                             .a_type = type_of(emit, node->in[0]),
                             .a = buffer_of(emit, node->in[0]),
                             .b = buffer_of(emit, node->in[1]),
                             .c = buffer_of(emit, node->out[0])};
    return keel_emit_product(emit, &gemm);
}

/* dx = dy table */
enum keel_status keel_emit_transposed_dx(struct keel_emit *emit, const struct keel_ir_node *node)
{
    uint32_t n = width_of(emit, node->in[0]);
    uint32_t k = width_of(emit, node->in[1]);
    struct keel_gemm gemm = {.m = rows_of(emit, node->in[0]),
                             .n = k,
                             .k = n,
                             .lda = n,
                             .ldb = k,
                             .a_type = type_of(emit, node->in[0]),
                             .a = buffer_of(emit, node->in[0]),
                             .b = buffer_of(emit, node->in[1]),
                             .c = buffer_of(emit, node->out[0])};
    return keel_emit_product(emit, &gemm);
}

/* out += left^T right, both with one row per token. */
static enum keel_status weight_gradient(struct keel_emit *emit, keel_value left, keel_value right,
                                        keel_value out)
{
    uint32_t m = width_of(emit, left);
    uint32_t n = width_of(emit, right);
    struct keel_gemm gemm = {.m = m,
                             .n = n,
                             .k = rows_of(emit, left),
                             .lda = m,
                             .ldb = n,
                             .transpose_a = true,
                             .accumulate = true,
                             .a_type = type_of(emit, left),
                             .b_type = type_of(emit, right),
                             .a = buffer_of(emit, left),
                             .b = buffer_of(emit, right),
                             .c = buffer_of(emit, out)};
    return keel_emit_product(emit, &gemm);
}

enum keel_status keel_emit_linear_dw(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return weight_gradient(emit, node->in[0], node->in[1], node->out[0]);
}

enum keel_status keel_emit_transposed_dw(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return weight_gradient(emit, node->in[1], node->in[0], node->out[0]);
}

enum keel_status keel_emit_bias_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_bias_grad op = {.rows = rows_of(emit, node->in[0]),
                                .n = width_of(emit, node->in[0]),
                                .x = buffer_of(emit, node->in[0]),
                                .out = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_bias_grad(emit->kernels, &op, emit->list);
}

/* ---- launches: rows and elements ----------------------------------------------------------------------- */

enum keel_status keel_emit_layernorm(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_layernorm op = {.rows = rows_of(emit, node->in[0]),
                                .n = width_of(emit, node->in[0]),
                                .epsilon = norm_epsilon,
                                .x = buffer_of(emit, node->in[0]),
                                .gamma = buffer_of(emit, node->in[1]),
                                .beta = buffer_of(emit, node->in[2]),
                                .y = buffer_of(emit, node->out[0]),
                                .mean = buffer_of(emit, node->out[1]),
                                .rstd = buffer_of(emit, node->out[2])};
    return emit->measure ? KEEL_OK : keel_op_layernorm(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_layernorm_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_layernorm_grad op = {.rows = rows_of(emit, node->in[0]),
                                     .n = width_of(emit, node->in[0]),
                                     .x = buffer_of(emit, node->in[0]),
                                     .gamma = buffer_of(emit, node->in[1]),
                                     .mean = buffer_of(emit, node->in[2]),
                                     .rstd = buffer_of(emit, node->in[3]),
                                     .dy = buffer_of(emit, node->in[4]),
                                     .residual = buffer_of(emit, node->in[5]),
                                     .dx = buffer_of(emit, node->out[0]),
                                     .dgamma = buffer_of(emit, node->out[1]),
                                     .dbeta = buffer_of(emit, node->out[2])};
    return emit->measure ? KEEL_OK : keel_op_layernorm_grad(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_rms_norm(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_layernorm op = {.rows = rows_of(emit, node->in[0]),
                                .n = width_of(emit, node->in[0]),
                                .epsilon = norm_epsilon,
                                .x = buffer_of(emit, node->in[0]),
                                .gamma = buffer_of(emit, node->in[1]),
                                .y = buffer_of(emit, node->out[0]),
                                .rstd = buffer_of(emit, node->out[1])};
    return emit->measure ? KEEL_OK : keel_op_layernorm(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_rms_norm_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_layernorm_grad op = {.rows = rows_of(emit, node->in[0]),
                                     .n = width_of(emit, node->in[0]),
                                     .x = buffer_of(emit, node->in[0]),
                                     .gamma = buffer_of(emit, node->in[1]),
                                     .rstd = buffer_of(emit, node->in[2]),
                                     .dy = buffer_of(emit, node->in[3]),
                                     .residual = buffer_of(emit, node->in[4]),
                                     .dx = buffer_of(emit, node->out[0]),
                                     .dgamma = buffer_of(emit, node->out[1])};
    return emit->measure ? KEEL_OK : keel_op_layernorm_grad(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_activation(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_activation op = {.count = count_of(emit, node->in[0]),
                                 .kind = node->attributes.activation,
                                 .x = buffer_of(emit, node->in[0]),
                                 .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_activation(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_activation_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_activation_grad op = {.count = count_of(emit, node->in[0]),
                                      .kind = node->attributes.activation,
                                      .x = buffer_of(emit, node->in[0]),
                                      .dy = buffer_of(emit, node->in[1]),
                                      .dx = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_activation_grad(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_swiglu(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_swiglu op = {.count = count_of(emit, node->in[0]),
                             .a = buffer_of(emit, node->in[0]),
                             .b = buffer_of(emit, node->in[1]),
                             .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_swiglu(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_swiglu_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_swiglu_grad op = {.count = count_of(emit, node->in[0]),
                                  .a = buffer_of(emit, node->in[0]),
                                  .b = buffer_of(emit, node->in[1]),
                                  .dy = buffer_of(emit, node->in[2]),
                                  .da = buffer_of(emit, node->out[0]),
                                  .db = buffer_of(emit, node->out[1])};
    return emit->measure ? KEEL_OK : keel_op_swiglu_grad(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_gelu(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_gelu op = {.count = count_of(emit, node->in[0]),
                           .x = buffer_of(emit, node->in[0]),
                           .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_gelu(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_gelu_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_gelu_grad op = {.count = count_of(emit, node->in[0]),
                                .x = buffer_of(emit, node->in[0]),
                                .dy = buffer_of(emit, node->in[1]),
                                .dx = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_gelu_grad(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_dropout(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_dropout op = {.count = count_of(emit, node->in[0]),
                              .rate = node->attributes.rate,
                              .stream = node->attributes.stream,
                              .x = buffer_of(emit, node->in[0]),
                              .base = buffer_of(emit, node->in[1]),
                              .y = buffer_of(emit, node->out[0]),
                              .control = emit->control};
    return emit->measure ? KEEL_OK : keel_op_dropout(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_add(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_add op = {.count = count_of(emit, node->in[0]),
                          .a = buffer_of(emit, node->in[0]),
                          .b = buffer_of(emit, node->in[1]),
                          .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_add(emit->kernels, &op, emit->list);
}

enum keel_status keel_emit_accumulate(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_buffer *sum = buffer_of(emit, node->out[0]);
    struct keel_add op = {
        .count = count_of(emit, node->in[0]), .a = sum, .b = buffer_of(emit, node->in[0]), .y = sum};
    return emit->measure ? KEEL_OK : keel_op_add(emit->kernels, &op, emit->list);
}
