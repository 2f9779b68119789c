/* onnx.c - see onnx.h: the walk over the nodes, the input, the output and the loss. */
#include "onnx.h"
#include "onnx_build.h"

#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static const struct keel_onnx_operator *const families[] = {keel_onnx_elements, keel_onnx_shapes,
                                                            keel_onnx_layers, keel_onnx_images};
enum { FAMILIES = sizeof families / sizeof families[0] };
/* Of known operands alone: onnx_fold.c. */
static const char *const folded[] = {"ConstantOfShape", "GatherElements", "Mod", "Range"};
enum { FOLDED = sizeof folded / sizeof folded[0] };

static const struct keel_onnx_operator *find_operator(struct keel_onnx_text name)
{
    for (uint32_t f = 0; f < FAMILIES; f++)
        for (const struct keel_onnx_operator *o = families[f]; o->name != NULL; o++)
            if (keel_onnx_text_is(name, o->name))
                return o;
    return NULL;
}

static bool is_folded(struct keel_onnx_text name)
{
    bool found = false;
    for (uint32_t i = 0; i < FOLDED; i++)
        found = found || keel_onnx_text_is(name, folded[i]);
    return found;
}

const char *keel_onnx_operator(uint32_t index)
{
    for (uint32_t f = 0; f < FAMILIES; f++)
        for (const struct keel_onnx_operator *o = families[f]; o->name != NULL; o++)
            if (index-- == 0)
                return o->name;
    return index < FOLDED ? folded[index] : NULL;
}

/* ---- inputs and outputs -------------------------------------------------------------------------------- */

static bool is_initializer(const struct keel_onnx_graph *graph, struct keel_onnx_text name)
{
    bool found = false;
    for (uint32_t i = 0; i < graph->tensor_count && !found; i++)
        found = graph->tensor[i].name.bytes == name.bytes &&
                memcmp(graph->tensor[i].name.at, name.at, name.bytes) == 0;
    return found;
}

enum keel_status keel_onnx_find_input(const struct keel_onnx_graph *graph, const struct keel_onnx_port **out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->in_count && count < 2; i++)
        if (!is_initializer(graph, graph->in[i].name)) {
            *out = &graph->in[i];
            count++;
        }
    if (count != 1 || graph->out_count == 0)
        return keel_fail(
            KEEL_INVALID,
            "%s: has %s inputs besides its initializers, and %u outputs: one input and an output are "
            "covered; export the model without masks and caches",
            graph->path, count == 0 ? "no" : "several", graph->out_count);
    return KEEL_OK;
}

enum keel_status keel_onnx_check(const struct keel_onnx_graph *graph, enum keel_plugin_data *out)
{
    const struct keel_onnx_port *in = NULL;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct keel_onnx_node *node = &graph->node[i];
        const bool known = node->domain.bytes == 0 || keel_onnx_text_is(node->domain, "ai.onnx");
        const struct build build = {.from = graph, .node = node};
        if (node->out_count == 0)
            return keel_onnx_refuse_node(&build, "has no result");
        if (!known || (find_operator(node->operation) == NULL && !is_folded(node->operation)))
            return keel_onnx_refuse_node(
                &build,
                "this operator of %s is not covered; `keel import-model --operators` lists "
                "those that are",
                known ? "ONNX" : "another domain");
    }
    KEEL_TRY(keel_onnx_find_input(graph, &in));
    KEEL_ASSERT(in != NULL);
    if (in->type == KEEL_ONNX_FLOAT && in->dims == 4)
        *out = KEEL_PLUGIN_IMAGES;
    else if ((in->type == KEEL_ONNX_INT64 || in->type == KEEL_ONNX_INT32) && in->dims == 2)
        *out = KEEL_PLUGIN_TEXT;
    else
        return keel_fail(
            KEEL_INVALID,
            "%s: its input is of element type %u with %u dimensions; images of floats [n, c, h, w] and "
            "ids of integers [n, tokens] are covered",
            graph->path, in->type, in->dims);
    return KEEL_OK;
}

/* The input with the sizes that the data have, which must be the file's where it says any. */
static enum keel_status bind_input(struct build *build)
{
    const struct keel_onnx_port *in = NULL;
    KEEL_TRY(keel_onnx_find_input(build->from, &in));
    KEEL_ASSERT(in != NULL);
    struct value *value = keel_onnx_find_value(build, in->name);
    const struct keel_shape lies = keel_graph_shape(build->graph, build->task->inputs[0]);
    *value = (struct value){.name = in->name,
                            .kind = VALUE_GRAPH,
                            .type = in->type,
                            .at = build->task->inputs[0],
                            .dims = in->dims,
                            .nhwc = in->dims == 4};
    for (uint32_t i = 0; i < in->dims; i++) {
        static const uint32_t from_nhwc[] = {0, 3, 1, 2};
        value->size[i] = lies.size[value->nhwc ? from_nhwc[i] : i];
        if (in->size[i] != 0 && in->size[i] != value->size[i])
            return keel_fail(
                KEEL_INVALID,
                "%s: its input has size %llu in dimension %u, train.batch and the data give %llu: "
                "export it for that, or set them so",
                build->from->path, (unsigned long long)in->size[i], i, (unsigned long long)value->size[i]);
    }
    return KEEL_OK;
}

static enum keel_status add_loss(struct build *build)
{
    struct value *logits = keel_onnx_find_value(build, build->from->out[0].name);
    keel_value at;
    if (logits->kind != VALUE_GRAPH)
        return keel_fail(KEEL_INVALID, "%s: no node makes its output %.*s", build->from->path,
                         (int)(logits->name.bytes < 80 ? logits->name.bytes : 80), logits->name.at);
    const struct keel_shape targets = keel_graph_shape(build->graph, build->task->inputs[1]);
    if (logits->dims != targets.dims + 1)
        return keel_fail(KEEL_INVALID,
                         "%s: its output has %u dimensions, scores of classes for the data have %u",
                         build->from->path, logits->dims, targets.dims + 1);
    KEEL_TRY(keel_onnx_plain(build, logits, &at));
    keel_graph_cross_entropy(build->graph, at, build->task->inputs[1]);
    return keel_graph_status(build->graph);
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

static enum keel_status build_node(struct build *build)
{
    enum keel_status status;
    const struct keel_onnx_node *node = build->node;
    for (uint32_t i = 0; i < node->out_count; i++)
        if (node->out[i].bytes > 0 && keel_onnx_find_value(build, node->out[i])->kind != VALUE_NONE)
            return keel_onnx_refuse_node(build, "its result %.*s is made already",
                                         (int)(node->out[i].bytes < 80 ? node->out[i].bytes : 80),
                                         node->out[i].at);
    for (uint32_t i = 0; i < node->in_count; i++)
        if (node->in[i].bytes > 0 && keel_onnx_find_value(build, node->in[i])->kind == VALUE_NONE)
            return keel_onnx_refuse_node(
                build, "operand %.*s is made by no node before it: the graph is cyclic or out of order",
                (int)(node->in[i].bytes < 80 ? node->in[i].bytes : 80), node->in[i].at);
    KEEL_TRY(keel_onnx_check_node(build));
    if (keel_onnx_fold_node(build, &status))
        return status;
    const struct keel_onnx_operator *with = find_operator(node->operation);
    if (with == NULL)
        return keel_onnx_refuse_node(build,
                                     "is covered for operands that are known when the graph is read alone");
    return with->build(build);
}

static enum keel_status build_all(struct build *build)
{
    static const struct keel_onnx_node none = {.in_count = 0};
    build->node = &none;
    for (uint32_t i = 0; i < build->from->tensor_count; i++) {
        struct value *value = keel_onnx_find_value(build, build->from->tensor[i].name);
        if (value->kind != VALUE_NONE)
            return keel_fail(KEEL_INVALID, "%s: two initializers are named %.*s", build->from->path,
                             (int)(value->name.bytes < 80 ? value->name.bytes : 80), value->name.at);
        KEEL_TRY(keel_onnx_take_tensor(build, value, &build->from->tensor[i]));
    }
    KEEL_TRY(bind_input(build));
    for (uint32_t i = 0; i < build->from->node_count; i++) {
        build->node = &build->from->node[i];
        KEEL_TRY(build_node(build));
    }
    build->node = &none;
    return add_loss(build);
}

/* How many names there may be. */
static uint32_t count_names(const struct keel_onnx_graph *graph)
{
    uint64_t names = (uint64_t)graph->tensor_count * 2 + graph->in_count + graph->out_count + 1;
    for (uint32_t i = 0; i < graph->node_count; i++)
        names += graph->node[i].in_count + graph->node[i].out_count + 1;
    return (uint32_t)names; /* below 2^24 by the limits of onnx_file.h */
}

enum keel_status keel_onnx_build(struct keel_onnx_file *file, struct keel_graph *graph,
                                 const struct keel_plugin_task *task)
{
    struct build build = {.file = file, .from = keel_onnx_file_graph(file), .graph = graph, .task = task};
    const uint32_t names = count_names(build.from);
    uint32_t slots = 16;
    while (slots < 2 * names)
        slots *= 2;
    build.slot_mask = slots - 1;
    enum keel_status status = keel_alloc(names, sizeof *build.values, (void *)&build.values);
    if (status == KEEL_OK)
        status = keel_alloc(slots, sizeof *build.slots, (void *)&build.slots);
    if (status == KEEL_OK)
        status = build_all(&build);
    keel_free(build.values);
    keel_free(build.slots);
    return status;
}
