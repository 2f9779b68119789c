/* graph_dense.c - products, norms, activations, additions: builder functions, gradients, launches. */
#include "autodiff.h"
#include "emit.h"

#include <stdio.h>

/* ---- builder ------------------------------------------------------------------------------------------- */

keel_value keel_graph_linear(struct keel_graph *graph, keel_value x, keel_value weight, keel_value bias)
{
    return KEEL_NODE(graph, .op = KEEL_OP_LINEAR, .in = {x, weight, bias});
}

keel_value keel_graph_linear_transposed(struct keel_graph *graph, keel_value x, keel_value table)
{
    return keel_graph_linear_transposed_bias(graph, x, table, 0);
}

keel_value keel_graph_linear_transposed_bias(struct keel_graph *graph, keel_value x, keel_value table,
                                             keel_value bias)
{
    return KEEL_NODE(graph, .op = KEEL_OP_LINEAR_TRANSPOSED, .in = {x, table, bias});
}

keel_value keel_graph_layernorm(struct keel_graph *graph, keel_value x, keel_value gamma, keel_value beta)
{
    return KEEL_NODE(graph, .op = KEEL_OP_LAYERNORM, .in = {x, gamma, beta});
}

keel_value keel_graph_layernorm_epsilon(struct keel_graph *graph, keel_value x, keel_value gamma,
                                        keel_value beta, float epsilon)
{
    if (epsilon > 0.0F && epsilon < 1.0F)
        return KEEL_NODE(graph, .op = KEEL_OP_LAYERNORM, .in = {x, gamma, beta},
                         .attributes.epsilon = epsilon);
    keel_graph_refuse(graph,
                      keel_fail(KEEL_INVALID, "layernorm: the epsilon %g is not in (0, 1)", (double)epsilon));
    return 0;
}

static bool infer_layernorm(struct keel_infer *infer)
{
    const keel_value *in = infer->node->in;
    return in[1] != 0 || in[2] == 0 || keel_infer_refuse(infer, "beta without gamma");
}

keel_value keel_graph_rms_norm(struct keel_graph *graph, keel_value x, keel_value gamma)
{
    return KEEL_NODE(graph, .op = KEEL_OP_RMS_NORM, .in = {x, gamma});
}

keel_value keel_graph_activation(struct keel_graph *graph, keel_value x, enum keel_activation_kind kind)
{
    return KEEL_NODE(graph, .op = KEEL_OP_ACTIVATION, .in = {x}, .attributes.activation = kind);
}

static bool infer_activation(struct keel_infer *infer)
{
    const enum keel_activation_kind kind = infer->node->attributes.activation;
    return keel_activation_name(kind) != NULL ||
           keel_infer_refuse(infer, "there is no kind %u", (unsigned)kind);
}

keel_value keel_graph_swiglu(struct keel_graph *graph, keel_value a, keel_value b)
{
    return KEEL_NODE(graph, .op = KEEL_OP_SWIGLU, .in = {a, b});
}

keel_value keel_graph_dropout(struct keel_graph *graph, keel_value x, float rate)
{
    if (rate >= 0.0F && rate <= 0.0F)
        return graph->status == KEEL_OK ? x : 0;
    return KEEL_NODE(graph, .op = KEEL_OP_DROPOUT, .in = {x}, .attributes = keel_graph_random(graph, rate));
}

bool keel_check_rate(struct keel_infer *infer)
{
    const float rate = infer->node->attributes.rate;
    return (rate >= 0.0F && rate < 1.0F) ||
           keel_infer_refuse(infer, "a dropout of %g is not in [0, 1)", (double)rate);
}

keel_value keel_graph_add(struct keel_graph *graph, keel_value a, keel_value b)
{
    return KEEL_NODE(graph, .op = KEEL_OP_ADD, .in = {a, b});
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

/* A product with a parameter: the parameter's gradient first, so that it is final sooner. */
static void product_gradient(struct keel_autodiff *autodiff, const struct keel_ir_node *node, uint32_t dw,
                             uint32_t dx)
{
    keel_value x = node->in[0];
    keel_value weight = node->in[1];
    keel_value dy = arrived(autodiff, node->out[0]);
    if (wanted(autodiff, weight))
        KEEL_NODE(autodiff->graph, .op = dw, .in = {x, dy}, .into = {accumulator(autodiff, weight)});
    if (wanted(autodiff, node->in[2]))
        KEEL_NODE(autodiff->graph, .op = KEEL_OP_BIAS_GRAD, .in = {dy},
                  .into = {accumulator(autodiff, node->in[2])});
    if (wanted(autodiff, x))
        KEEL_GRADIENT(autodiff, x, .op = dx, .in = {dy, weight});
}

static void grad_linear(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    product_gradient(autodiff, node, KEEL_OP_LINEAR_DW, KEEL_OP_LINEAR_DX);
}

static void grad_linear_transposed(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    product_gradient(autodiff, node, KEEL_OP_TRANSPOSED_DW, KEEL_OP_TRANSPOSED_DX);
}

/* Of a norm whose gamma is frozen beta alone has a sum to itself. */
static void grad_layernorm(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value x = node->in[0], gamma = node->in[1], dy = arrived(autodiff, node->out[0]);
    const keel_value beta = wanted(autodiff, node->in[2]) ? node->in[2] : 0;
    if (beta != 0 && !wanted(autodiff, gamma))
        KEEL_NODE(autodiff->graph, .op = KEEL_OP_BIAS_GRAD, .in = {dy},
                  .into = {accumulator(autodiff, beta)});
    if (wanted(autodiff, gamma) || wanted(autodiff, x))
        KEEL_GRADIENT(autodiff, x, .op = KEEL_OP_LAYERNORM_GRAD,
                      .in = {x, gamma, node->out[1], node->out[2], dy},
                      .into = {0, accumulator(autodiff, gamma),
                               wanted(autodiff, gamma) ? accumulator(autodiff, beta) : 0});
}

static void grad_rms_norm(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value x = node->in[0], gamma = node->in[1], dy = arrived(autodiff, node->out[0]);
    KEEL_GRADIENT(autodiff, x, .op = KEEL_OP_RMS_NORM_GRAD, .in = {x, gamma, node->out[1], dy},
                  .into = {0, accumulator(autodiff, gamma)});
}

static void describe_activation(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " kind=%s", keel_activation_name(node->attributes.activation));
}

/* Where the result says as much as the operand, the operand need not be kept. */
static void grad_activation(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const bool of_y = keel_activation_gradient_of_y(node->attributes.activation);
    const keel_value seen = of_y ? node->out[0] : node->in[0];
    KEEL_GRADIENT(autodiff, node->in[0], .op = KEEL_OP_ACTIVATION_GRAD,
                  .in = {seen, arrived(autodiff, node->out[0])}, .attributes = node->attributes);
}

static void grad_swiglu(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_value da = KEEL_NODE(autodiff->graph, .op = KEEL_OP_SWIGLU_GRAD,
                              .in = {node->in[0], node->in[1], arrived(autodiff, node->out[0])});
    keel_value db = keel_graph_last_result(autodiff->graph, 1);
    keel_gradient_add(autodiff, node->in[0], da);
    keel_gradient_add(autodiff, node->in[1], db);
}

/* The same mask on the gradient. */
static void grad_dropout(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    KEEL_GRADIENT(autodiff, node->in[0], .op = KEEL_OP_DROPOUT, .in = {arrived(autodiff, node->out[0])},
                  .attributes = node->attributes);
}

static void grad_add(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    for (uint32_t i = 0; i < 2; i++)
        keel_gradient_add(autodiff, node->in[i], arrived(autodiff, node->out[0]));
}

/* ---- launches: products -------------------------------------------------------------------------------- */

enum keel_status keel_emit_product(struct keel_emit *emit, struct keel_gemm *gemm)
{
    gemm->batch = 1;
    gemm->ldc = gemm->n;
    const uint64_t planes = keel_gemm_planes_bytes(emit->kernels, gemm);
    need_workspace(emit, planes);
    gemm->planes = planes > 0 ? emit->workspace : NULL;
    if (!emit->measure) {
        if (emit->checks != NULL)
            keel_gemm_checksums_bind(emit->checks, emit->node, gemm);
        return keel_op_gemm(emit->kernels, gemm, emit->list);
    }
    return emit->checks != NULL ? keel_gemm_checksums_plan(emit->checks, emit->graph, emit->node, gemm)
                                : KEEL_OK;
}

/* c = op(a) op(b), of which `gemm` says how: matrices as they are stored, with all leading dimensions as
 * rows. */
static enum keel_status emit_product(struct keel_emit *emit, keel_value a, keel_value b, keel_value c,
                                     struct keel_gemm gemm)
{
    gemm.lda = width_of(emit, a);
    gemm.ldb = width_of(emit, b);
    gemm.m = gemm.transpose_a ? gemm.lda : rows_of(emit, a);
    gemm.k = gemm.transpose_a ? rows_of(emit, a) : gemm.lda;
    gemm.n = gemm.transpose_b ? rows_of(emit, b) : gemm.ldb;
    gemm.a_type = type_of(emit, a);
    gemm.b_type = type_of(emit, b);
    gemm.a = buffer_of(emit, a);
    gemm.b = buffer_of(emit, b);
    gemm.c = buffer_of(emit, c);
    return keel_emit_product(emit, &gemm);
}

static enum keel_status emit_linear(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return emit_product(emit, node->in[0], node->in[1], node->out[0],
                        (struct keel_gemm){.k_slices = node->attributes.slices,
                                           .bias = buffer_of(emit, node->in[2]),
                                           .residual = buffer_of(emit, node->in[3]),
                                           .pre = buffer_of(emit, node->out[1])});
}

/* y = x table^T + bias, and dx = dy weight^T */
static enum keel_status emit_by_transposed(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return emit_product(emit, node->in[0], node->in[1], node->out[0],
                        (struct keel_gemm){.transpose_b = true,
                                           .k_slices = node->attributes.slices,
                                           .bias = buffer_of(emit, node->in[2])});
}

/* y = x W' + bias, with W' in few bits; the parameter has as many words as that takes. */
static bool infer_quantised(struct keel_infer *infer)
{
    const struct keel_attributes *attributes = &infer->node->attributes;
    const struct keel_gemm_quantised op = {.n = attributes->quantised.outputs,
                                           .k = (uint32_t)infer->size['k'],
                                           .bits = attributes->quantised.bits,
                                           .group = attributes->quantised.group};
    uint64_t words;
    if (keel_quantised_words(&op, &words) != KEEL_OK)
        return keel_infer_refuse(infer, "%.100s", keel_detail());
    infer->size['N'] = op.n;
    return words == infer->size['w'] || keel_infer_refuse(infer, "%u x %u in %u bits take %llu words", op.k,
                                                          op.n, op.bits, (unsigned long long)words);
}

static void describe_quantised(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " bits=%u group=%u", node->attributes.quantised.bits,
             node->attributes.quantised.group);
}

static enum keel_status emit_quantised(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_gemm_quantised op = {.m = rows_of(emit, node->in[0]),
                                           .n = node->attributes.quantised.outputs,
                                           .k = width_of(emit, node->in[0]),
                                           .bits = node->attributes.quantised.bits,
                                           .group = node->attributes.quantised.group,
                                           .a = buffer_of(emit, node->in[0]),
                                           .weights = buffer_of(emit, node->in[1]),
                                           .c = buffer_of(emit, node->out[0]),
                                           .bias = buffer_of(emit, node->in[2]),
                                           .workspace = emit->workspace};
    need_workspace(emit, keel_gemm_quantised_workspace_bytes(&op));
    return emit->measure ? KEEL_OK : keel_op_gemm_quantised(emit->kernels, &op, emit->list);
}

/* dx = dy table */
static enum keel_status emit_transposed_dx(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return emit_product(emit, node->in[0], node->in[1], node->out[0],
                        (struct keel_gemm){.k_slices = node->attributes.slices});
}

/* dweight += x^T dy, and dtable += dy^T x */
static enum keel_status emit_linear_dw(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return emit_product(emit, node->in[0], node->in[1], node->out[0],
                        (struct keel_gemm){.transpose_a = true, .accumulate = true, .fresh = emit->fresh});
}
static enum keel_status emit_transposed_dw(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return emit_product(emit, node->in[1], node->in[0], node->out[0],
                        (struct keel_gemm){.transpose_a = true, .accumulate = true, .fresh = emit->fresh});
}

static enum keel_status emit_bias_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_bias_grad op = {.rows = rows_of(emit, node->in[0]),
                                .n = width_of(emit, node->in[0]),
                                .row_slices = node->attributes.slices,
                                .x = buffer_of(emit, node->in[0]),
                                .out = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_bias_grad(emit->kernels, &op, emit->list);
}

/* ---- launches: rows and elements ----------------------------------------------------------------------- */

/* RMS norm is layer norm without a mean and beta; its other operands and results follow those that are left.
 */
static enum keel_status emit_norm(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const bool rms = node->op == KEEL_OP_RMS_NORM;
    const struct keel_layernorm op = {.rows = rows_of(emit, node->in[0]),
                                      .n = width_of(emit, node->in[0]),
                                      .epsilon = node->attributes.epsilon > 0.0F ? node->attributes.epsilon
                                                                                 : KEEL_NORM_EPSILON,
                                      .x = buffer_of(emit, node->in[0]),
                                      .gamma = buffer_of(emit, node->in[1]),
                                      .beta = buffer_of(emit, node->in[2]),
                                      .y = buffer_of(emit, node->out[0]),
                                      .mean = rms ? NULL : buffer_of(emit, node->out[1]),
                                      .rstd = buffer_of(emit, node->out[rms ? 1 : 2])};
    return emit->measure ? KEEL_OK : keel_op_layernorm(emit->kernels, &op, emit->list);
}

static enum keel_status emit_norm_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const bool rms = node->op == KEEL_OP_RMS_NORM_GRAD;
    const keel_value *rest = node->in + (rms ? 2 : 3); /* 1 / deviation, dy, what by-passes the norm */
    const struct keel_layernorm_grad op = {.rows = rows_of(emit, node->in[0]),
                                           .n = width_of(emit, node->in[0]),
                                           .row_slices = node->attributes.slices,
                                           .x = buffer_of(emit, node->in[0]),
                                           .gamma = buffer_of(emit, node->in[1]),
                                           .mean = rms ? NULL : buffer_of(emit, node->in[2]),
                                           .rstd = buffer_of(emit, rest[0]),
                                           .dy = buffer_of(emit, rest[1]),
                                           .residual = buffer_of(emit, rest[2]),
                                           .dx = buffer_of(emit, node->out[0]),
                                           .dgamma = buffer_of(emit, node->out[1]),
                                           .dbeta = buffer_of(emit, node->out[2])};
    return emit->measure ? KEEL_OK : keel_op_layernorm_grad(emit->kernels, &op, emit->list);
}

static enum keel_status emit_activation(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_activation op = {.count = count_of(emit, node->in[0]),
                                 .kind = node->attributes.activation,
                                 .x = buffer_of(emit, node->in[0]),
                                 .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_activation(emit->kernels, &op, emit->list);
}

static enum keel_status emit_activation_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_activation_grad op = {.count = count_of(emit, node->in[0]),
                                      .kind = node->attributes.activation,
                                      .x = buffer_of(emit, node->in[0]),
                                      .dy = buffer_of(emit, node->in[1]),
                                      .dx = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_activation_grad(emit->kernels, &op, emit->list);
}

static enum keel_status emit_swiglu(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_swiglu op = {.count = count_of(emit, node->in[0]),
                             .a = buffer_of(emit, node->in[0]),
                             .b = buffer_of(emit, node->in[1]),
                             .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_swiglu(emit->kernels, &op, emit->list);
}

static enum keel_status emit_swiglu_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_swiglu_grad op = {.count = count_of(emit, node->in[0]),
                                  .a = buffer_of(emit, node->in[0]),
                                  .b = buffer_of(emit, node->in[1]),
                                  .dy = buffer_of(emit, node->in[2]),
                                  .da = buffer_of(emit, node->out[0]),
                                  .db = buffer_of(emit, node->out[1])};
    return emit->measure ? KEEL_OK : keel_op_swiglu_grad(emit->kernels, &op, emit->list);
}

static enum keel_status emit_dropout(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_dropout op = {.count = count_of(emit, node->in[0]),
                              .rate = node->attributes.rate,
                              .stream = node->attributes.stream,
                              .slice = node->attributes.place,
                              .x = buffer_of(emit, node->in[0]),
                              .base = buffer_of(emit, node->in[1]),
                              .y = buffer_of(emit, node->out[0]),
                              .control = emit->control};
    return emit->measure ? KEEL_OK : keel_op_dropout(emit->kernels, &op, emit->list);
}

static enum keel_status emit_add(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_add op = {.count = count_of(emit, node->in[0]),
                          .a = buffer_of(emit, node->in[0]),
                          .b = buffer_of(emit, node->in[1]),
                          .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_add(emit->kernels, &op, emit->list);
}

static enum keel_status emit_accumulate(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_buffer *sum = buffer_of(emit, node->out[0]);
    struct keel_add op = {
        .count = count_of(emit, node->in[0]), .a = sum, .b = buffer_of(emit, node->in[0]), .y = sum};
    return emit->measure ? KEEL_OK : keel_op_add(emit->kernels, &op, emit->list);
}

/* ---- the table ---- */

enum { FIRST = KEEL_OP_LINEAR, LAST = KEEL_OP_ACCUMULATE };
static const struct keel_op rows[LAST - FIRST + 1] = {
    /* Operands: x, weight, bias, what the result is added to. The second result is the input of GELU, kept
     * for backward. Only keel_pass_fuse asks for these two. */
    [KEEL_OP_LINEAR - FIRST] = {.name = "linear",
                                .rule = "*k,kn,n?,*n?->*n,*n?",
                                .split = "kn",
                                .in_place = "03",
                                .params = "12",
                                .grad = grad_linear,
                                .emit = emit_linear},
    [KEEL_OP_LINEAR_DX - FIRST] =
        {.name = "linear_dx", .rule = "*n,kn->*k", .split = "kn", .half = "0", .emit = emit_by_transposed},
    [KEEL_OP_LINEAR_DW - FIRST] = {.name = "linear_dw",
                                   .rule = "*k,*n->+kn",
                                   .split = "kn",
                                   .half = "01",
                                   .begins = true,
                                   .emit = emit_linear_dw},
    [KEEL_OP_LINEAR_TRANSPOSED - FIRST] = {.name = "linear_transposed",
                                           .rule = "*k,nk,n?->*n",
                                           .split = "kn",
                                           .params = "12",
                                           .grad = grad_linear_transposed,
                                           .emit = emit_by_transposed},
    [KEEL_OP_TRANSPOSED_DX - FIRST] = {.name = "transposed_dx",
                                       .rule = "*n,nk->*k",
                                       .split = "kn",
                                       .half = "0",
                                       .emit = emit_transposed_dx},
    [KEEL_OP_TRANSPOSED_DW - FIRST] = {.name = "transposed_dw",
                                       .rule = "*k,*n->+nk",
                                       .split = "kn",
                                       .half = "01",
                                       .begins = true,
                                       .emit = emit_transposed_dw},
    /* Operands: x, weights in few bits, bias. Only keel_pass_quantise makes it. */
    [KEEL_OP_LINEAR_QUANTISED - FIRST] = {.name = "linear_quantised",
                                          .rule = "*k,w,N?->*N",
                                          .flops = "2*kN",
                                          .split = "*",
                                          .infer_dims = infer_quantised,
                                          .describe = describe_quantised,
                                          .instead = "weights in floats",
                                          .emit = emit_quantised},
    [KEEL_OP_BIAS_GRAD -
        FIRST] = {.name = "bias_grad", .rule = "*n->+n", .split = "*n", .emit = emit_bias_grad},
    /* Operands: x, gamma, beta: the last, or both, may be absent. Results: y, mean, 1 / deviation. */
    [KEEL_OP_LAYERNORM - FIRST] = {.name = "layernorm",
                                   .rule = "*n,n?,n?->*n,*,*",
                                   .split = "*",
                                   .params = "12",
                                   .infer_dims = infer_layernorm,
                                   .grad = grad_layernorm,
                                   .emit = emit_norm},
    /* Operands: x, gamma, mean, 1 / deviation, dy, the gradient that by-passes the norm. */
    [KEEL_OP_LAYERNORM_GRAD - FIRST] = {.name = "layernorm_grad",
                                        .rule = "*n,n?,*,*,*n,*n?->*n,+n?,+n?",
                                        .split = "*",
                                        .in_place = "05",
                                        .emit = emit_norm_grad},
    /* Results: y, 1 / root of the mean square. */
    [KEEL_OP_RMS_NORM - FIRST] = {.name = "rms_norm",
                                  .rule = "*n,n->*n,*",
                                  .split = "*",
                                  .params = "1",
                                  .grad = grad_rms_norm,
                                  .emit = emit_norm},
    /* Operands: x, gamma, 1 / root of the mean square, dy, the gradient that by-passes the norm. */
    [KEEL_OP_RMS_NORM_GRAD - FIRST] = {.name = "rms_norm_grad",
                                       .rule = "*n,n,*,*n,*n?->*n,+n?",
                                       .split = "*",
                                       .in_place = "04",
                                       .emit = emit_norm_grad},
    [KEEL_OP_ACTIVATION - FIRST] = {.name = "activation",
                                    .rule = "*->*",
                                    .split = "*",
                                    .in_place = "00",
                                    .infer_dims = infer_activation,
                                    .describe = describe_activation,
                                    .grad = grad_activation,
                                    .emit = emit_activation},
    /* Operands: x (of ReLU: y, which says as much), dy. */
    [KEEL_OP_ACTIVATION_GRAD - FIRST] = {.name = "activation_grad",
                                         .rule = "*,*->*",
                                         .split = "*",
                                         .in_place = "01",
                                         .describe = describe_activation,
                                         .emit = emit_activation_grad},
    [KEEL_OP_SWIGLU - FIRST] = {.name = "swiglu",
                                .rule = "*,*->*",
                                .split = "*",
                                .in_place = "0001",
                                .grad = grad_swiglu,
                                .emit = emit_swiglu},
    /* Operands: a, b, dy; results: da, db. */
    [KEEL_OP_SWIGLU_GRAD - FIRST] = {.name = "swiglu_grad",
                                     .rule = "*,*,*->*,*",
                                     .split = "*",
                                     .in_place = "00021112",
                                     .emit = emit_swiglu_grad},
    /* Operands: x, and what the result is added to. */
    [KEEL_OP_DROPOUT - FIRST] = {.name = "dropout",
                                 .rule = "*,*?->*",
                                 .split = "*",
                                 .in_place = "0001",
                                 .infer_dims = keel_check_rate,
                                 .grad = grad_dropout,
                                 .emit = emit_dropout},
    [KEEL_OP_ADD - FIRST] = {.name = "add",
                             .rule = "*,*->*",
                             .split = "*",
                             .in_place = "0001",
                             .grad = grad_add,
                             .emit = emit_add},
    /* Into the gradient of a parameter. */
    [KEEL_OP_ACCUMULATE -
        FIRST] = {.name = "accumulate", .rule = "*->+*", .split = "*", .emit = emit_accumulate},
};

const struct keel_op_family keel_ops_dense = {FIRST, LAST, rows};
