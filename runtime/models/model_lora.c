/* model_lora.c - low-rank adapters (Hu et al. 2021, "LoRA"): of y = x W, with a weight W that the job names,
 * stands y + (alpha / rank) (x A^T) B^T, with A [rank, in] normal(0, 1 / rank) and B [out, rank] zeros.
 *
 * A and B have the names and layouts of PEFT's, without its prefix: W is NAME.weight, they are
 * NAME.lora_A.weight and NAME.lora_B.weight. They are the last parameters, so that the others begin as they
 * do without. The graph is written anew: nodes in their order, and behind each product that is named those of
 * its adapter. */
#include "ir.h"
#include "model.h"
#include "ops.h"
#include <fnmatch.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static const char weight_end[] = ".weight";

struct adapt {
    struct keel_graph *graph;
    const struct keel_job *job;
    struct keel_ir_node *nodes; /* owned: as they were, node_count of them */
    keel_value *stands;         /* owned: by value of before, what is read in its place */
    uint32_t *uses;             /* owned: by parameter of before, nodes that read it */
    uint32_t node_count, param_count;
};

static bool ends_in_weight(const char *name)
{
    const size_t length = strlen(name), end = sizeof weight_end - 1;
    return length > end && strcmp(name + length - end, weight_end) == 0;
}

static bool is_named(const struct adapt *adapt, const char *name)
{
    char pattern[KEEL_JOB_PATTERNS_BYTES];
    for (const char *at = adapt->job->lora_targets; (at = keel_job_next_pattern(at, pattern)) != NULL;)
        if (fnmatch(pattern, name, 0) == 0)
            return true;
    return false;
}

/* The number of the weight of a node that gets an adapter; UINT32_MAX: none does. */
static uint32_t target_of(const struct adapt *adapt, const struct keel_ir_node *node)
{
    if ((node->op != KEEL_OP_LINEAR && node->op != KEEL_OP_LINEAR_TRANSPOSED) ||
        adapt->graph->values[node->in[1]].kind != KEEL_VALUE_PARAM)
        return UINT32_MAX;
    const uint32_t number = adapt->graph->values[node->in[1]].param;
    const char *name = adapt->graph->params[number].name;
    return adapt->uses[number] == 1 && ends_in_weight(name) && is_named(adapt, name) ? number : UINT32_MAX;
}

/* NAME.lora_A.weight, or B: a name that is too long is refused by the graph. */
static keel_value add_param(struct adapt *adapt, const char *weight, char which, struct keel_shape shape,
                            float deviation)
{
    char name[KEEL_VALUE_NAME_BYTES + sizeof ".lora_A.weight"];
    snprintf(name, sizeof name, "%.*s.lora_%c.weight", (int)(strlen(weight) - sizeof weight_end + 1), weight,
             which);
    const keel_value value = keel_graph_param(
        adapt->graph,
        &(struct keel_param_spec){.name = name, .shape = shape, .deviation = deviation, .decay = true});
    if (value != 0)
        adapt->graph->params[adapt->graph->param_count - 1].added = true;
    return value;
}

/* It lies over the mesh as the model says of what it is added to. */
static void lie_like(struct keel_graph *graph, keel_value value, keel_value like)
{
    if (graph->status != KEEL_OK)
        return;
    graph->values[value].spec = graph->values[like].spec;
    graph->values[value].annotated = graph->values[like].annotated;
}

/* What stands for the result of a product from here on. */
static keel_value add_adapter(struct adapt *adapt, const struct keel_ir_node *node, uint32_t number)
{
    struct keel_graph *graph = adapt->graph;
    const struct keel_job *job = adapt->job;
    const struct keel_shape whole = graph->values[node->in[1]].shape;
    const bool transposed = node->op == KEEL_OP_LINEAR_TRANSPOSED;
    const uint64_t in = whole.size[transposed ? 1 : 0], out = whole.size[transposed ? 0 : 1];
    const uint64_t rank = job->lora_rank;
    char weight[KEEL_VALUE_NAME_BYTES];
    memcpy(weight, graph->params[number].name, sizeof weight); /* parameters may move */
    const keel_value a =
        add_param(adapt, weight, 'A', (struct keel_shape){2, {rank, in}}, 1.0F / (float)rank);
    const keel_value b = add_param(adapt, weight, 'B', (struct keel_shape){2, {out, rank}}, 0.0F);
    keel_value x = keel_graph_dropout(graph, node->in[0], job->lora_dropout);
    x = keel_graph_linear_transposed(graph, x, a);
    if (job->lora_alpha > 0.0F)
        x = keel_graph_scale(graph, x, job->lora_alpha / (float)rank, 0.0F);
    x = keel_graph_linear_transposed(graph, x, b);
    lie_like(graph, x, node->out[0]);
    x = keel_graph_add(graph, node->out[0], x);
    lie_like(graph, x, node->out[0]);
    return x;
}

static enum keel_status rewrite(struct adapt *adapt)
{
    struct keel_graph *graph = adapt->graph;
    for (uint32_t i = 0; i < adapt->param_count; i++)
        graph->params[i].frozen = !graph->params[i].statistic;
    for (uint32_t n = 0; n < adapt->node_count; n++) {
        struct keel_ir_node *node = &adapt->nodes[n];
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
            node->in[i] = adapt->stands[node->in[i]];
        KEEL_TRY(keel_graph_append(graph, node));
        const uint32_t number = target_of(adapt, node);
        if (number == UINT32_MAX)
            continue;
        adapt->stands[node->out[0]] = add_adapter(adapt, node, number);
        KEEL_TRY(keel_graph_status(graph));
    }
    graph->output = adapt->stands[graph->output];
    return KEEL_OK;
}

static void count_uses(struct adapt *adapt)
{
    for (uint32_t n = 0; n < adapt->node_count; n++)
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
            const struct keel_ir_value *value = &adapt->graph->values[adapt->nodes[n].in[i]];
            if (adapt->nodes[n].in[i] != 0 && value->kind == KEEL_VALUE_PARAM)
                adapt->uses[value->param]++;
        }
}

/* Each pattern names one at least. */
static enum keel_status check_targets(const struct adapt *adapt)
{
    char pattern[KEEL_JOB_PATTERNS_BYTES];
    for (const char *at = adapt->job->lora_targets; (at = keel_job_next_pattern(at, pattern)) != NULL;) {
        bool found = false;
        for (uint32_t n = 0; n < adapt->node_count && !found; n++) {
            const uint32_t number = target_of(adapt, &adapt->nodes[n]);
            found = number != UINT32_MAX && fnmatch(pattern, adapt->graph->params[number].name, 0) == 0;
        }
        if (!found)
            return keel_fail(KEEL_INVALID,
                             "train.lora_targets = %.200s names no weight that one linear layer alone has; "
                             "keel plan JOB --dump lists the names",
                             pattern);
    }
    return KEEL_OK;
}

static enum keel_status adapt_all(struct adapt *adapt)
{
    struct keel_graph *graph = adapt->graph;
    KEEL_TRY(keel_alloc(graph->node_count, sizeof *adapt->nodes, (void *)&adapt->nodes));
    KEEL_TRY(keel_alloc(graph->value_count, sizeof *adapt->stands, (void *)&adapt->stands));
    KEEL_TRY(keel_alloc(graph->param_count, sizeof *adapt->uses, (void *)&adapt->uses));
    memcpy(adapt->nodes, graph->nodes, graph->node_count * sizeof *adapt->nodes);
    for (uint32_t i = 0; i < graph->value_count; i++)
        adapt->stands[i] = i;
    count_uses(adapt);
    graph->node_count = 0;
    KEEL_TRY(rewrite(adapt));
    return check_targets(adapt);
}

enum keel_status keel_model_adapt(struct keel_graph *graph, const struct keel_job *job)
{
    struct adapt adapt = {
        .graph = graph, .job = job, .node_count = graph->node_count, .param_count = graph->param_count};
    const enum keel_status status = adapt_all(&adapt);
    keel_free(adapt.nodes);
    keel_free(adapt.stands);
    keel_free(adapt.uses);
    return status;
}
