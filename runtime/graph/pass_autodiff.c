/* pass_autodiff.c - reverse-mode differentiation, graph to graph (Griewank and Walther 2008).
 *
 * Walks the forward nodes from last to first and appends what each adds to the gradients of its operands.
 * A parameter's gradient is an accumulator for each node of the model that uses it: every contribution is
 * added where its node stands. The gradient of any other value is a value; contributions are added in the
 * order in which they arise.
 *
 * That order is part of the canonical bits. It follows from the model alone; later passes keep it. A tied
 * table has two accumulators, that of the embedding and that of the output product: each takes its own
 * microbatches, and the engine adds them at the end of a shard, in the order of the model. */
#include "autodiff.h"

#include <keel/memory.h>
#include <stdio.h>

/* ---- what the rows use --------------------------------------------------------------------------------- */

/* The shard pass lays it out as `value`. What hands a gradient on unchanged leaves it the first's. */
static void mark_gradient(struct keel_graph *graph, keel_value gradient, keel_value value)
{
    if (graph->status == KEEL_OK && graph->values[gradient].gradient_of == 0)
        graph->values[gradient].gradient_of = value;
}

void keel_gradient_add(struct keel_autodiff *autodiff, keel_value value, keel_value summand)
{
    if (!wanted(autodiff, value))
        return;
    keel_value sum = accumulator(autodiff, value);
    if (sum != 0) {
        keel_graph_node(autodiff->graph, &(struct keel_node_request){
                                             .op = KEEL_OP_ACCUMULATE, .in = {summand}, .into = {sum}});
        return;
    }
    keel_value *gradient = &autodiff->gradient[value];
    mark_gradient(autodiff->graph, summand, value);
    *gradient = *gradient == 0 ? summand : keel_graph_add(autodiff->graph, *gradient, summand);
    mark_gradient(autodiff->graph, *gradient, value);
}

keel_value keel_gradient_from_forward(struct keel_autodiff *autodiff, uint32_t out)
{
    struct keel_graph *graph = autodiff->graph;
    const struct keel_ir_node *node = &graph->nodes[autodiff->node];
    struct keel_ir_value like = graph->values[node->in[0]];
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%u.grad", keel_op_row(node->op)->name, autodiff->node);
    keel_value gradient = keel_graph_value(graph, name, KEEL_F32, KEEL_VALUE_TEMP, like.shape, 0);
    if (gradient == 0)
        return 0;
    graph->nodes[autodiff->node].out[out] = gradient;
    return gradient;
}

/* ---- accumulators -------------------------------------------------------------------------------------- */

/* "dw", or "dw.2" of its use number 2. */
static keel_value make_accumulator(struct keel_graph *graph, uint32_t number, uint32_t use)
{
    const struct keel_ir_param *param = &graph->params[number];
    const struct keel_ir_value value = graph->values[param->value];
    char name[KEEL_VALUE_NAME_BYTES], last[16] = "";
    if (use > 0)
        snprintf(last, sizeof last, ".%u", use);
    snprintf(name, sizeof name, "d%.*s%s", (int)(sizeof name - sizeof last - 2), param->name, last);
    keel_value made = keel_graph_value(graph, name, KEEL_F32, KEEL_VALUE_GRADIENT, value.shape, number);
    if (made != 0)
        graph->values[made].part = use;
    return made;
}

static enum keel_status make_accumulators(struct keel_graph *graph)
{
    for (uint32_t i = 0; i < graph->param_count; i++) {
        if (graph->params[i].frozen)
            continue;
        graph->params[i].gradient = make_accumulator(graph, i, 0);
        if (graph->params[i].gradient == 0)
            return graph->status;
    }
    return KEEL_OK;
}

/* By how much a node counts among the uses of its parameters: once each, as often as it reads them. The walk
 * goes back, so it takes them off again. */
static void count_uses(struct keel_autodiff *autodiff, const struct keel_ir_node *node, int by)
{
    const struct keel_graph *graph = autodiff->graph;
    for (uint32_t k = 0; k < KEEL_NODE_IN_MAX; k++) {
        bool again = node->in[k] == 0 || graph->values[node->in[k]].kind != KEEL_VALUE_PARAM;
        for (uint32_t before = 0; before < k; before++)
            again = again || node->in[before] == node->in[k];
        if (again)
            continue;
        struct keel_param_uses *uses = &autodiff->uses[graph->values[node->in[k]].param];
        uses->before = by > 0 ? uses->before + 1 : uses->before - 1;
        uses->here = 0;
    }
}

keel_value keel_gradient_accumulator(struct keel_autodiff *autodiff, keel_value value)
{
    struct keel_graph *graph = autodiff->graph;
    if (value == 0 || graph->values[value].kind != KEEL_VALUE_PARAM)
        return 0;
    const uint32_t number = graph->values[value].param;
    if (graph->params[number].frozen)
        return 0;
    struct keel_param_uses *uses = &autodiff->uses[number];
    if (uses->here == 0)
        uses->here = uses->before == 0 ? graph->params[number].gradient
                                       : make_accumulator(graph, number, uses->before);
    return uses->here;
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

/* A value is wanted when a trained parameter stands behind it. */
static void mark_wanted(struct keel_autodiff *autodiff, uint32_t node_count)
{
    const struct keel_graph *graph = autodiff->graph;
    for (uint32_t i = 0; i < graph->param_count; i++)
        autodiff->wanted[graph->params[i].value] = !graph->params[i].statistic && !graph->params[i].frozen;
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

/* Whether a trained parameter stands behind an operand that can have a gradient. */
static bool trains(const struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    bool any = false;
    for (uint32_t k = 0; k < KEEL_NODE_IN_MAX; k++)
        any =
            any || (wanted(autodiff, node->in[k]) && autodiff->graph->values[node->in[k]].dtype == KEEL_F32);
    return any;
}

/* True if an output has a gradient, or the node is a loss that depends on a trained parameter. */
static bool reached(const struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    bool found = false;
    for (uint32_t k = 0; k < KEEL_NODE_OUT_MAX; k++) {
        bool loss = node->out[k] != 0 && autodiff->graph->values[node->out[k]].kind == KEEL_VALUE_LOSS;
        found = found || (loss ? trains(autodiff, node) : arrived(autodiff, node->out[k]) != 0);
    }
    return found;
}

static enum keel_status walk(struct keel_autodiff *autodiff, uint32_t node_count)
{
    struct keel_graph *graph = autodiff->graph;
    for (uint32_t i = node_count; i-- > 0;) {
        autodiff->node = i;
        struct keel_ir_node node = graph->nodes[i]; /* the array may move while nodes are added */
        count_uses(autodiff, &node, -1);
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
    graph->differentiated = true;
    KEEL_TRY(make_accumulators(graph));
    enum keel_status status =
        keel_alloc(autodiff.count, sizeof *autodiff.gradient, (void *)&autodiff.gradient);
    if (status == KEEL_OK)
        status = keel_alloc(autodiff.count, sizeof *autodiff.wanted, (void *)&autodiff.wanted);
    if (status == KEEL_OK && graph->param_count > 0)
        status = keel_alloc(graph->param_count, sizeof *autodiff.uses, (void *)&autodiff.uses);
    if (status == KEEL_OK) {
        for (uint32_t i = 0; i < node_count; i++)
            count_uses(&autodiff, &graph->nodes[i], 1);
        mark_wanted(&autodiff, node_count);
        status = walk(&autodiff, node_count);
    }
    for (uint32_t i = node_count; i < graph->node_count; i++)
        graph->nodes[i].backward = true;
    keel_free(autodiff.gradient);
    keel_free(autodiff.wanted);
    keel_free(autodiff.uses);
    return status;
}
