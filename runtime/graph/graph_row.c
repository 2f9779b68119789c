/* graph_row.c - softmax, top-k, cumulative sum along the last dimension: builder functions,
 * gradients, launches. */
#include "autodiff.h"
#include "emit.h"

#include <keel/shape_ops.h>
#include <stdio.h>

/* ---- softmax ------------------------------------------------------------------------------------------- */

keel_value keel_graph_softmax(struct keel_graph *graph, keel_value x)
{
    return KEEL_NODE(graph, .op = KEEL_OP_SOFTMAX, .in = {x});
}

static void grad_softmax(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    KEEL_GRADIENT(autodiff, node->in[0], .op = KEEL_OP_SOFTMAX_GRAD,
                  .in = {node->out[0], arrived(autodiff, node->out[0])});
}

static enum keel_status emit_softmax(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_softmax op = {.rows = rows_of(emit, node->in[0]),
                                    .n = width_of(emit, node->in[0]),
                                    .x = buffer_of(emit, node->in[0]),
                                    .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_softmax(emit->kernels, &op, emit->list);
}

static enum keel_status emit_softmax_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_softmax_grad op = {.rows = rows_of(emit, node->in[0]),
                                         .n = width_of(emit, node->in[0]),
                                         .y = buffer_of(emit, node->in[0]),
                                         .dy = buffer_of(emit, node->in[1]),
                                         .dx = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_softmax_grad(emit->kernels, &op, emit->list);
}

/* ---- top-k ---------------------------------------------------------------------------------- */

void keel_graph_top_k(struct keel_graph *graph, keel_value x, uint32_t k, keel_value *values,
                      keel_value *indices)
{
    KEEL_ASSERT(values != NULL && indices != NULL);
    *values = KEEL_NODE(graph, .op = KEEL_OP_TOP_K, .in = {x}, .attributes.top_k.k = k);
    *indices = keel_graph_last_result(graph, 1);
}

static bool infer_top_k(struct keel_infer *infer)
{
    uint64_t *size = infer->size;
    const uint32_t k = infer->node->attributes.top_k.k;
    size['K'] = k;
    if (k != 0 && k <= size['n'])
        return true;
    return keel_infer_refuse(infer, "the largest %u of a row of %llu", k, (unsigned long long)size['n']);
}

static bool infer_top_k_grad(struct keel_infer *infer)
{
    infer->size['N'] = infer->node->attributes.top_k.n;
    return true;
}

static void describe_top_k(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " k=%u", node->attributes.top_k.k);
}

/* The values go back to where they were; the choice itself has no slope. */
static void grad_top_k(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_attributes back = node->attributes;
    const struct keel_shape *x = &autodiff->graph->values[node->in[0]].shape;
    back.top_k.n = (uint32_t)x->size[x->dims - 1];
    KEEL_GRADIENT(autodiff, node->in[0], .op = KEEL_OP_TOP_K_GRAD,
                  .in = {node->out[1], arrived(autodiff, node->out[0])}, .attributes = back);
}

static enum keel_status emit_top_k(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_top_k op = {.rows = rows_of(emit, node->in[0]),
                                  .n = width_of(emit, node->in[0]),
                                  .k = node->attributes.top_k.k,
                                  .x = buffer_of(emit, node->in[0]),
                                  .values = buffer_of(emit, node->out[0]),
                                  .indices = buffer_of(emit, node->out[1])};
    return emit->measure ? KEEL_OK : keel_op_top_k(emit->kernels, &op, emit->list);
}

static enum keel_status emit_top_k_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_top_k_grad op = {.rows = rows_of(emit, node->in[0]),
                                       .n = width_of(emit, node->out[0]),
                                       .k = width_of(emit, node->in[0]),
                                       .indices = buffer_of(emit, node->in[0]),
                                       .dvalues = buffer_of(emit, node->in[1]),
                                       .dx = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_top_k_grad(emit->kernels, &op, emit->list);
}

/* ---- cumulative sum ------------------------------------------------------------------------------------ */

keel_value keel_graph_cumsum(struct keel_graph *graph, keel_value x)
{
    return KEEL_NODE(graph, .op = KEEL_OP_CUMSUM, .in = {x});
}

static void describe_cumsum(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s", node->attributes.reverse ? " reverse" : "");
}

static void grad_cumsum(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    KEEL_GRADIENT(autodiff, node->in[0], .op = KEEL_OP_CUMSUM, .in = {arrived(autodiff, node->out[0])},
                  .attributes.reverse = true);
}

static enum keel_status emit_cumsum(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_cumsum op = {.rows = rows_of(emit, node->in[0]),
                                   .n = width_of(emit, node->in[0]),
                                   .reverse = node->attributes.reverse,
                                   .x = buffer_of(emit, node->in[0]),
                                   .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_cumsum(emit->kernels, &op, emit->list);
}

/* ---- the table ---- */

enum { FIRST = KEEL_OP_SOFTMAX, LAST = KEEL_OP_CUMSUM };
static const struct keel_op rows[LAST - FIRST + 1] = {
    [KEEL_OP_SOFTMAX - FIRST] = {.name = "softmax",
                                 .rule = "*n->*n",
                                 .split = "*",
                                 .in_place = "00",
                                 .grad = grad_softmax,
                                 .emit = emit_softmax},
    /* Operands: y, dy. */
    [KEEL_OP_SOFTMAX_GRAD - FIRST] = {.name = "softmax_grad",
                                      .rule = "*n,*n->*n",
                                      .split = "*",
                                      .in_place = "01",
                                      .emit = emit_softmax_grad},
    /* Results: values, indices. */
    [KEEL_OP_TOP_K - FIRST] = {.name = "top_k",
                               .rule = "*n->*K,#*K",
                               .split = "*",
                               .infer_dims = infer_top_k,
                               .describe = describe_top_k,
                               .grad = grad_top_k,
                               .emit = emit_top_k},
    [KEEL_OP_TOP_K_GRAD - FIRST] = {.name = "top_k_grad",
                                    .rule = "#*k,*k->*N",
                                    .split = "*",
                                    .infer_dims = infer_top_k_grad,
                                    .emit = emit_top_k_grad},
    [KEEL_OP_CUMSUM - FIRST] = {.name = "cumsum",
                                .rule = "*n->*n",
                                .split = "*",
                                .in_place = "00",
                                .describe = describe_cumsum,
                                .grad = grad_cumsum,
                                .emit = emit_cumsum},
};

const struct keel_op_family keel_ops_row = {FIRST, LAST, rows};
