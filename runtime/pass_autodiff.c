/* pass_autodiff.c - reverse-mode differentiation, graph to graph (Griewank and Walther 2008).
 *
 * Walks the forward nodes from last to first and appends what each adds to the gradients of its operands.
 * A parameter's gradient is an accumulator: every contribution is added to it where its node stands. The
 * gradient of any other value is a value; contributions are added in the order in which they arise.
 *
 * That order is part of the canonical bits. It follows from the model alone; later passes keep it. With
 * a tied table the output product (last in the model, first in the walk) adds before the embedding. */
#include "ops.h"

#include <keel/memory.h>

struct keel_autodiff {
    struct keel_graph *graph;
    keel_value *gradient; /* by value: its gradient so far, or 0 */
    bool *wanted;         /* by value: a parameter stands behind it */
    uint32_t count;       /* forward values */
};

/* ---- what the rows use --------------------------------------------------------------------------------- */

/* The gradient that has arrived at a result of a node. */
static keel_value arrived(const struct keel_autodiff *autodiff, keel_value value)
{
    return autodiff->gradient[value];
}

/* The accumulator of a parameter; 0 when `value` is absent or no parameter. */
static keel_value accumulator(const struct keel_autodiff *autodiff, keel_value value)
{
    const struct keel_graph *graph = autodiff->graph;
    if (value == 0 || graph->values[value].kind != KEEL_VALUE_PARAM)
        return 0;
    return graph->params[graph->values[value].param].gradient;
}

static bool wanted(const struct keel_autodiff *autodiff, keel_value value)
{
    return value != 0 && autodiff->wanted[value];
}

/* Another summand of the gradient of `value`, which is not a parameter. */
static void add_gradient(struct keel_autodiff *autodiff, keel_value value, keel_value summand)
{
    keel_value *gradient = &autodiff->gradient[value];
    *gradient = *gradient == 0 ? summand : keel_graph_add(autodiff->graph, *gradient, summand);
}

/* Operands that must be parameters, because their gradients are accumulators. */
static bool check_param(struct keel_autodiff *autodiff, const struct keel_ir_node *node, keel_value value)
{
    struct keel_graph *graph = autodiff->graph;
    if (value == 0 || graph->values[value].kind == KEEL_VALUE_PARAM)
        return true;
    if (graph->status == KEEL_OK)
        graph->status = keel_fail(KEEL_UNSUPPORTED, "%s: %s must be a parameter for training",
                                  keel_op_row(node->op)->name, graph->values[value].name);
    return false;
}

/* ---- the rows
 * ---------------------------------------------------------------------------------------------- */

void keel_grad_embedding(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    if (!check_param(autodiff, node, node->in[1]) || !check_param(autodiff, node, node->in[2]))
        return;
    keel_graph_node(autodiff->graph,
                    &(struct keel_node_request){
                        .op = KEEL_OP_EMBEDDING_GRAD,
                        .in = {node->in[0], arrived(autodiff, node->out[0])},
                        .into = {accumulator(autodiff, node->in[1]), accumulator(autodiff, node->in[2])}});
}

/* A product with a parameter: the parameter's gradient first, so that it is final sooner. */
static void product_gradient(struct keel_autodiff *autodiff, const struct keel_ir_node *node, uint32_t dw,
                             uint32_t dx)
{
    keel_value x = node->in[0];
    keel_value weight = node->in[1];
    keel_value dy = arrived(autodiff, node->out[0]);
    if (!check_param(autodiff, node, weight) || !check_param(autodiff, node, node->in[2]))
        return;
    keel_graph_node(autodiff->graph, &(struct keel_node_request){
                                         .op = dw, .in = {x, dy}, .into = {accumulator(autodiff, weight)}});
    if (node->in[2] != 0)
        keel_graph_node(autodiff->graph,
                        &(struct keel_node_request){.op = KEEL_OP_BIAS_GRAD,
                                                    .in = {dy},
                                                    .into = {accumulator(autodiff, node->in[2])}});
    if (wanted(autodiff, x))
        add_gradient(
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
    if (!check_param(autodiff, node, gamma) || !check_param(autodiff, node, beta))
        return;
    keel_value dx = keel_graph_node(
        autodiff->graph,
        &(struct keel_node_request){
            .op = KEEL_OP_LAYERNORM_GRAD,
            .in = {node->in[0], gamma, node->out[1], node->out[2], arrived(autodiff, node->out[0])},
            .into = {0, accumulator(autodiff, gamma), accumulator(autodiff, beta)}});
    if (wanted(autodiff, node->in[0]))
        add_gradient(autodiff, node->in[0], dx);
}

void keel_grad_gelu(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    add_gradient(autodiff, node->in[0],
                 keel_graph_node(autodiff->graph, &(struct keel_node_request){
                                                      .op = KEEL_OP_GELU_GRAD,
                                                      .in = {node->in[0], arrived(autodiff, node->out[0])}}));
}

void keel_grad_attention(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    add_gradient(autodiff, node->in[0],
                 keel_graph_node(autodiff->graph,
                                 &(struct keel_node_request){.op = KEEL_OP_ATTENTION_GRAD,
                                                             .in = {node->in[0], node->out[0], node->out[1],
                                                                    arrived(autodiff, node->out[0])},
                                                             .attributes = node->attributes}));
}

/* The same mask on the gradient. */
void keel_grad_dropout(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    add_gradient(
        autodiff, node->in[0],
        keel_graph_node(autodiff->graph, &(struct keel_node_request){.op = KEEL_OP_DROPOUT,
                                                                     .in = {arrived(autodiff, node->out[0])},
                                                                     .attributes = node->attributes}));
}

void keel_grad_add(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_value d = arrived(autodiff, node->out[0]);
    for (uint32_t i = 0; i < 2; i++)
        if (wanted(autodiff, node->in[i]) && accumulator(autodiff, node->in[i]) == 0)
            add_gradient(autodiff, node->in[i], d);
}

/* The forward node itself makes the gradient of the logits, which it has at hand. */
void keel_grad_cross_entropy(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_graph *graph = autodiff->graph;
    struct keel_shape shape = graph->values[node->in[0]].shape;
    keel_value dlogits = keel_graph_value(graph, "dlogits", KEEL_F32, KEEL_VALUE_TEMP, shape, 0);
    if (dlogits == 0)
        return;
    graph->values[dlogits].spec = graph->values[node->in[0]].spec;
    for (uint32_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i].op == KEEL_OP_CROSS_ENTROPY && graph->nodes[i].out[1] == graph->loss)
            graph->nodes[i].out[2] = dlogits;
    add_gradient(autodiff, node->in[0], dlogits);
}

/* ---- the walk
 * ---------------------------------------------------------------------------------------------- */

static enum keel_status make_accumulators(struct keel_graph *graph)
{
    for (uint32_t i = 0; i < graph->param_count; i++) {
        struct keel_ir_param *param = &graph->params[i];
        struct keel_ir_value value = graph->values[param->value];
        char name[KEEL_VALUE_NAME_BYTES];
        name[0] = 'd';
        for (uint32_t c = 1; c < KEEL_VALUE_NAME_BYTES; c++)
            name[c] = param->name[c - 1];
        name[KEEL_VALUE_NAME_BYTES - 1] = '\0';
        param->gradient = keel_graph_value(graph, name, KEEL_F32, KEEL_VALUE_GRADIENT, value.shape, i);
        if (param->gradient == 0)
            return graph->status;
        graph->values[param->gradient].spec = value.spec;
    }
    return KEEL_OK;
}

/* A value is wanted when a parameter stands behind it. */
static void mark_wanted(struct keel_autodiff *autodiff, uint32_t node_count)
{
    const struct keel_graph *graph = autodiff->graph;
    for (uint32_t i = 0; i < graph->param_count; i++)
        autodiff->wanted[graph->params[i].value] = true;
    for (uint32_t i = 0; i < node_count; i++) {
        const struct keel_ir_node *node = &graph->nodes[i];
        bool any = false;
        for (uint32_t k = 0; k < KEEL_NODE_IN_MAX; k++)
            any = any || wanted(autodiff, node->in[k]);
        for (uint32_t k = 0; any && k < KEEL_NODE_OUT_MAX; k++)
            if (node->out[k] != 0)
                autodiff->wanted[node->out[k]] = true;
    }
}

/* A gradient has arrived at the node, or it is the loss. */
static bool reached(const struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    if (node->op == KEEL_OP_CROSS_ENTROPY)
        return wanted(autodiff, node->in[0]);
    return arrived(autodiff, node->out[0]) != 0;
}

static enum keel_status walk(struct keel_autodiff *autodiff, uint32_t node_count)
{
    struct keel_graph *graph = autodiff->graph;
    for (uint32_t i = node_count; i-- > 0;) {
        struct keel_ir_node node = graph->nodes[i]; /* the array may move while nodes are added */
        if (reached(autodiff, &node) && keel_op_row(node.op)->grad != NULL)
            keel_op_row(node.op)->grad(autodiff, &node);
        KEEL_TRY(keel_graph_status(graph));
    }
    return KEEL_OK;
}

enum keel_status keel_pass_autodiff(struct keel_graph *graph)
{
    KEEL_TRY(keel_graph_status(graph));
    if (graph->loss == 0)
        return keel_fail(KEEL_INVALID, "autodiff: the graph has no loss; end the model with cross_entropy");
    struct keel_autodiff autodiff = {.graph = graph, .count = graph->value_count};
    uint32_t node_count = graph->node_count;
    KEEL_TRY(make_accumulators(graph));
    enum keel_status status =
        keel_alloc(autodiff.count, sizeof *autodiff.gradient, (void *)&autodiff.gradient);
    if (status == KEEL_OK)
        status = keel_alloc(autodiff.count, sizeof *autodiff.wanted, (void *)&autodiff.wanted);
    if (status == KEEL_OK) {
        mark_wanted(&autodiff, node_count);
        status = walk(&autodiff, node_count);
    }
    keel_free(autodiff.gradient);
    keel_free(autodiff.wanted);
    return status;
}
