/* pass_emit.c - emit: nodes become launches, through the doors of kernels.h.
 *
 * One function per row of the operation table, which fills the kernel's descriptor from the node's shapes.
 * Owns nothing; the shapes were checked when the node was added. */
#include "emit.h"
#include "ops.h"

#include <keel/attention_ops.h>
#include <stddef.h>

static const float layernorm_epsilon = 1e-5F; /* as in the published GPT-2 */

static struct keel_buffer *buffer_of(const struct keel_emit *emit, keel_value value)
{
    return value == 0 ? NULL : emit->buffer[value];
}

static const struct keel_shape *shape_of(const struct keel_emit *emit, keel_value value)
{
    return &emit->graph->values[value].shape;
}

static uint64_t count_of(const struct keel_emit *emit, keel_value value)
{
    return keel_shape_count(shape_of(emit, value));
}

/* The last dimension, and how many rows of it there are. */
static uint32_t width_of(const struct keel_emit *emit, keel_value value)
{
    const struct keel_shape *shape = shape_of(emit, value);
    return (uint32_t)shape->size[shape->dims - 1];
}
static uint32_t rows_of(const struct keel_emit *emit, keel_value value)
{
    return (uint32_t)(count_of(emit, value) / width_of(emit, value));
}

static void need_workspace(struct keel_emit *emit, uint64_t bytes)
{
    if (bytes > emit->workspace_bytes)
        emit->workspace_bytes = bytes;
}

enum keel_status keel_emit_node(struct keel_emit *emit, const struct keel_ir_node *node)
{
    return keel_op_row(node->op)->emit(emit, node);
}

/* ---- products
 * ---------------------------------------------------------------------------------------------- */

static enum keel_status product(struct keel_emit *emit, struct keel_gemm *gemm)
{
    gemm->batch = 1;
    gemm->ldc = gemm->n;
    gemm->workspace = emit->workspace;
    if (!emit->measure) {
        if (emit->checks != NULL)
            keel_product_checks_bind(emit->checks, emit->node, gemm);
        return keel_op_gemm(emit->kernels, gemm, emit->list);
    }
    need_workspace(emit, keel_gemm_workspace_bytes(emit->kernels, gemm));
    return emit->checks != NULL ? keel_product_checks_plan(emit->checks, emit->graph, emit->node, gemm)
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
                             .pre = buffer_of(emit, node->out[1])};
    return product(emit, &gemm);
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
    return product(emit, &gemm);
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
                             .a = buffer_of(emit, node->in[0]),
                             .b = buffer_of(emit, node->in[1]),
                             .c = buffer_of(emit, node->out[0])};
    return product(emit, &gemm);
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
                             .a = buffer_of(emit, node->in[0]),
                             .b = buffer_of(emit, node->in[1]),
                             .c = buffer_of(emit, node->out[0])};
    return product(emit, &gemm);
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
                             .a = buffer_of(emit, left),
                             .b = buffer_of(emit, right),
                             .c = buffer_of(emit, out)};
    return product(emit, &gemm);
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

/* ---- rows and elements
 * --------------------------------------------------------------------------------------- */

enum keel_status keel_emit_layernorm(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_layernorm op = {.rows = rows_of(emit, node->in[0]),
                                .n = width_of(emit, node->in[0]),
                                .epsilon = layernorm_epsilon,
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

/* ---- the two ends and the middle of a transformer
 * ------------------------------------------------------------- */

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

/* The descriptor that both directions share. */
static struct keel_attention attention(const struct keel_emit *emit, const struct keel_ir_node *node,
                                       keel_value qkv, keel_value out, keel_value stats)
{
    const struct keel_shape *shape = shape_of(emit, out);
    return (struct keel_attention){.batch = (uint32_t)shape->size[0],
                                   .tokens = (uint32_t)shape->size[1],
                                   .heads = node->attributes.heads,
                                   .head_width = (uint32_t)shape->size[2] / node->attributes.heads,
                                   .dropout_rate = node->attributes.rate,
                                   .stream = node->attributes.stream,
                                   .qkv = buffer_of(emit, qkv),
                                   .out = buffer_of(emit, out),
                                   .stats = buffer_of(emit, stats),
                                   .control = emit->control,
                                   .workspace = emit->workspace};
}

enum keel_status keel_emit_attention(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_attention op = attention(emit, node, node->in[0], node->out[0], node->out[1]);
    if (!emit->measure)
        return keel_op_attention(emit->kernels, &op, emit->list);
    need_workspace(emit, keel_attention_workspace_bytes(emit->kernels, &op));
    return KEEL_OK;
}

enum keel_status keel_emit_attention_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_attention_grad op = {.forward = attention(emit, node, node->in[0], node->in[1], node->in[2]),
                                     .dout = buffer_of(emit, node->in[3]),
                                     .dqkv = buffer_of(emit, node->out[0])};
    if (!emit->measure)
        return keel_op_attention_grad(emit->kernels, &op, emit->list);
    need_workspace(emit, keel_attention_grad_workspace_bytes(emit->kernels, &op));
    return KEEL_OK;
}

enum keel_status keel_emit_cross_entropy(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_cross_entropy op = {.rows = rows_of(emit, node->in[0]),
                                    .vocab = width_of(emit, node->in[0]),
                                    .scale = emit->scale,
                                    .logits = buffer_of(emit, node->in[0]),
                                    .targets = buffer_of(emit, node->in[1]),
                                    .row_loss = buffer_of(emit, node->out[0]),
                                    .loss = buffer_of(emit, node->out[1]),
                                    .dlogits = buffer_of(emit, node->out[2])};
    return emit->measure ? KEEL_OK : keel_op_cross_entropy(emit->kernels, &op, emit->list);
}
