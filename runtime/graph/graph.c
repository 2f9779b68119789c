/* graph.c - the builder: values, parameters and nodes, checked as they are added; and the dump.
 *
 * Promises that a graph whose status is OK has nodes in a valid order with fitting shapes. The first error
 * is kept and later calls do nothing, so a model is written without a check on every line. Leaves what the
 * operations mean to ops.c. */
#include "spec.h"

#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- life ---------------------------------------------------------------------------------------------- */

void keel_graph_refuse(struct keel_graph *graph, enum keel_status status)
{
    if (graph->status != KEEL_OK || status == KEEL_OK)
        return;
    graph->status = status;
    snprintf(graph->detail, sizeof graph->detail, "%s", keel_detail());
}

enum keel_status keel_graph_create(struct keel_graph **out)
{
    struct keel_graph *graph = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *graph, &graph));
    enum keel_status status = keel_alloc(1, sizeof *graph->values, &graph->values);
    if (status != KEEL_OK) {
        keel_graph_destroy(graph);
        return status;
    }
    graph->value_count = graph->value_capacity = 1;
    *out = graph;
    return KEEL_OK;
}

void keel_graph_destroy(struct keel_graph *graph)
{
    if (graph == NULL)
        return;
    keel_free(graph->values);
    keel_free(graph->nodes);
    keel_free(graph->params);
    keel_free(graph);
}

enum keel_status keel_graph_status(const struct keel_graph *graph)
{
    if (graph->status != KEEL_OK)
        keel_detail_set(graph->detail);
    return graph->status;
}

/* A copy of `count` items in a new block of the same capacity. */
static enum keel_status copy_items(const void *items, uint32_t count, size_t item_bytes, void *out_address)
{
    void *copy = NULL;
    KEEL_TRY(keel_alloc(count == 0 ? 1 : count, item_bytes, &copy));
    if (count > 0)
        memcpy(copy, items, count * item_bytes);
    memcpy(out_address, (const void *)&copy, sizeof copy);
    return KEEL_OK;
}

enum keel_status keel_graph_copy(const struct keel_graph *graph, struct keel_graph **out)
{
    struct keel_graph *copy = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *copy, &copy));
    *copy = *graph;
    copy->values = NULL;
    copy->nodes = NULL;
    copy->params = NULL;
    copy->value_capacity = graph->value_count;
    copy->node_capacity = graph->node_count == 0 ? 1 : graph->node_count;
    copy->param_capacity = graph->param_count == 0 ? 1 : graph->param_count;
    enum keel_status status =
        copy_items(graph->values, graph->value_count, sizeof *graph->values, (void *)&copy->values);
    if (status == KEEL_OK)
        status = copy_items(graph->nodes, graph->node_count, sizeof *graph->nodes, (void *)&copy->nodes);
    if (status == KEEL_OK)
        status = copy_items(graph->params, graph->param_count, sizeof *graph->params, (void *)&copy->params);
    if (status != KEEL_OK) {
        keel_graph_destroy(copy);
        return status;
    }
    *out = copy;
    return KEEL_OK;
}

/* Room for one more of an array. */
static enum keel_status grow(void *items_address, uint32_t count, uint32_t *capacity, size_t item_bytes,
                             uint32_t max, const char *what)
{
    if (count >= max)
        return keel_fail(KEEL_LIMIT, "the graph has more than %u %s", max, what);
    if (count < *capacity)
        return KEEL_OK;
    uint32_t wanted = *capacity < 16 ? 16 : *capacity * 2;
    KEEL_TRY(keel_realloc(items_address, *capacity, wanted, item_bytes));
    *capacity = wanted;
    return KEEL_OK;
}

/* ---- values -------------------------------------------------------------------------------------------- */

uint64_t keel_shape_count(const struct keel_shape *shape)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < shape->dims; i++)
        count *= shape->size[i];
    return count;
}

uint64_t keel_dtype_bytes(enum keel_dtype dtype)
{
    return dtype == KEEL_BF16 || dtype == KEEL_F16 ? 2 : 4;
}

uint64_t keel_value_bytes(const struct keel_graph *graph, keel_value value)
{
    KEEL_ASSERT(value > 0 && value < graph->value_count);
    const struct keel_ir_value *v = &graph->values[value];
    return keel_shape_count(&v->shape) * keel_dtype_bytes(v->dtype);
}

/* Every dimension 1 to 2^32 - 1, and fewer than 2^40 elements (an element's place in a digest). */
static enum keel_status check_shape(const char *name, uint32_t dims_min, const struct keel_shape *shape)
{
    bool fits = shape->dims >= dims_min && shape->dims <= KEEL_DIMS_MAX;
    uint64_t count = 1;
    for (uint32_t i = 0; fits && i < shape->dims; i++) {
        fits = shape->size[i] > 0 && shape->size[i] <= UINT32_MAX &&
               count <= (UINT64_C(1) << 40) / shape->size[i];
        count *= fits ? shape->size[i] : 1;
    }
    if (fits)
        return KEEL_OK;
    char text[128];
    keel_shape_print(shape, text, sizeof text);
    return keel_fail(KEEL_INVALID,
                     "%s is %s: a tensor has 1 to %d dimensions, none empty, and at most 2^40 elements", name,
                     text, KEEL_DIMS_MAX);
}

keel_value keel_graph_value(struct keel_graph *graph, const char *name, enum keel_dtype dtype,
                            enum keel_value_kind kind, struct keel_shape shape, uint32_t param)
{
    if (graph->status != KEEL_OK)
        return 0;
    enum keel_status status = grow((void *)&graph->values, graph->value_count, &graph->value_capacity,
                                   sizeof *graph->values, KEEL_GRAPH_ITEMS_MAX, "values");
    if (status == KEEL_OK)
        status = check_shape(name, kind == KEEL_VALUE_TEMP ? 0 : 1, &shape);
    if (status != KEEL_OK) {
        keel_graph_refuse(graph, status);
        return 0;
    }
    struct keel_ir_value *value = &graph->values[graph->value_count];
    *value = (struct keel_ir_value){.dtype = dtype, .kind = kind, .shape = shape, .param = param};
    snprintf(value->name, sizeof value->name, "%s", name);
    return graph->value_count++;
}

/* Inputs and parameters are known by their names: what feeds them, what a snapshot holds. */
static enum keel_status check_name(const struct keel_graph *graph, enum keel_value_kind kind,
                                   const char *name)
{
    const char *what = kind == KEEL_VALUE_INPUT ? "input" : "parameter";
    if (name[0] == '\0')
        return keel_fail(KEEL_INVALID, "%s without a name", what);
    if (strlen(name) >= KEEL_VALUE_NAME_BYTES)
        return keel_fail(KEEL_LIMIT, "%s %.100s: the name is too long, at most %d bytes", what, name,
                         KEEL_VALUE_NAME_BYTES - 1);
    for (keel_value value = 1; value < graph->value_count; value++)
        if (graph->values[value].kind == kind && strcmp(graph->values[value].name, name) == 0)
            return keel_fail(KEEL_INVALID, "there are two %ss called %s", what, name);
    return KEEL_OK;
}

keel_value keel_graph_input(struct keel_graph *graph, const char *name, enum keel_dtype dtype,
                            struct keel_shape shape)
{
    KEEL_ASSERT(name != NULL);
    keel_graph_refuse(graph, check_name(graph, KEEL_VALUE_INPUT, name));
    if (dtype != KEEL_F32 && dtype != KEEL_I32)
        keel_graph_refuse(
            graph, keel_fail(KEEL_INVALID, "input %s: what is fed is float32 or int32, no other type", name));
    return keel_graph_value(graph, name, dtype, KEEL_VALUE_INPUT, shape, 0);
}

static enum keel_status check_param(const struct keel_param_spec *spec)
{
    const bool momentum = spec->momentum > 0.0F && spec->momentum <= 1.0F;
    if (!isfinite(spec->fill) || !isfinite(spec->deviation) || spec->deviation < 0.0F)
        return keel_fail(KEEL_INVALID,
                         "%s begins with a deviation of %g and a fill of %g: finite numbers are wanted, the "
                         "deviation not below 0",
                         spec->name, (double)spec->deviation, (double)spec->fill);
    if (spec->statistic ? !momentum || spec->decay || spec->deviation > 0.0F : spec->momentum != 0.0F)
        return keel_fail(KEEL_INVALID,
                         "%s: a statistic has a momentum in (0, 1], a constant to begin with and no decay; a "
                         "trained parameter no momentum; here it is %g",
                         spec->name, (double)spec->momentum);
    return KEEL_OK;
}

keel_value keel_graph_param(struct keel_graph *graph, const struct keel_param_spec *spec)
{
    KEEL_ASSERT(spec != NULL && spec->name != NULL);
    if (graph->status != KEEL_OK)
        return 0;
    enum keel_status status = check_name(graph, KEEL_VALUE_PARAM, spec->name);
    if (status == KEEL_OK)
        status = check_param(spec);
    if (status == KEEL_OK)
        status = grow((void *)&graph->params, graph->param_count, &graph->param_capacity,
                      sizeof *graph->params, KEEL_GRAPH_PARAMS_MAX, "parameters");
    keel_graph_refuse(graph, status);
    keel_value value =
        keel_graph_value(graph, spec->name, KEEL_F32, KEEL_VALUE_PARAM, spec->shape, graph->param_count);
    if (value == 0)
        return 0;
    struct keel_ir_param *param = &graph->params[graph->param_count++];
    *param = (struct keel_ir_param){.value = value,
                                    .deviation = spec->deviation,
                                    .fill = spec->fill,
                                    .values = spec->values,
                                    .rate = 1.0F,
                                    .decay = spec->decay,
                                    .statistic = spec->statistic,
                                    .momentum = spec->momentum};
    snprintf(param->name, sizeof param->name, "%s", spec->name);
    return value;
}

struct keel_shape keel_graph_shape(const struct keel_graph *graph, keel_value value)
{
    if (value == 0 || value >= graph->value_count)
        return (struct keel_shape){.dims = 0};
    return graph->values[value].shape;
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

/* Give the node its results: new values, and the accumulators that the caller brought. */
static enum keel_status make_results(struct keel_graph *graph, struct keel_ir_node *node,
                                     const struct keel_node_request *request, const struct keel_shape *shapes)
{
    static const char *const suffix[KEEL_NODE_OUT_MAX] = {"", ".1", ".2", ".3"};
    struct keel_op_results results = keel_op_results(request->op);
    uint32_t wanted = (results.all & ~results.optional) | (request->outputs & results.all);
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
        if ((wanted & ~results.accumulated & 1U << i) == 0)
            continue;
        char name[KEEL_VALUE_NAME_BYTES];
        snprintf(name, sizeof name, "%s.%u%s", keel_op_row(request->op)->name, graph->node_count, suffix[i]);
        enum keel_dtype dtype = (results.integer >> i & 1U) != 0 ? KEEL_I32 : KEEL_F32;
        node->out[i] = keel_graph_value(graph, name, dtype, KEEL_VALUE_TEMP, shapes[i], 0);
        if (node->out[i] == 0)
            return graph->status;
    }
    return KEEL_OK;
}

keel_value keel_graph_node(struct keel_graph *graph, const struct keel_node_request *request)
{
    if (graph->status != KEEL_OK)
        return 0;
    struct keel_shape shapes[KEEL_NODE_OUT_MAX];
    struct keel_ir_node node = {.op = request->op, .attributes = request->attributes};
    memcpy(node.in, request->in, sizeof node.in);
    memcpy(node.out, request->into, sizeof node.out);
    enum keel_status status = grow((void *)&graph->nodes, graph->node_count, &graph->node_capacity,
                                   sizeof *graph->nodes, KEEL_GRAPH_ITEMS_MAX, "nodes");
    if (status == KEEL_OK)
        status = keel_op_infer(graph, &node, shapes);
    if (status == KEEL_OK)
        status = make_results(graph, &node, request, shapes);
    keel_graph_refuse(graph, status);
    if (graph->status != KEEL_OK)
        return 0;
    graph->nodes[graph->node_count++] = node;
    return node.out[0];
}

keel_value keel_graph_last_result(const struct keel_graph *graph, uint32_t out)
{
    return graph->status == KEEL_OK ? graph->nodes[graph->node_count - 1].out[out] : 0;
}

enum keel_status keel_graph_append(struct keel_graph *graph, const struct keel_ir_node *node)
{
    enum keel_status status = grow((void *)&graph->nodes, graph->node_count, &graph->node_capacity,
                                   sizeof *graph->nodes, KEEL_GRAPH_ITEMS_MAX, "nodes");
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX + KEEL_NODE_OUT_MAX; i++)
        KEEL_ASSERT((i < KEEL_NODE_IN_MAX ? node->in[i] : node->out[i - KEEL_NODE_IN_MAX]) <
                    graph->value_count);
    if (status == KEEL_OK)
        graph->nodes[graph->node_count++] = *node;
    return status;
}

void keel_graph_compact(struct keel_graph *graph)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i].op != KEEL_OP_NONE)
            graph->nodes[kept++] = graph->nodes[i];
    graph->node_count = kept;
}

struct keel_attributes keel_graph_random(struct keel_graph *graph, float rate)
{
    uint32_t stream = rate > 0.0F ? KEEL_STREAM_DROPOUT + graph->stream_count++ : 0;
    return (struct keel_attributes){.rate = rate, .stream = stream};
}

void keel_graph_output(struct keel_graph *graph, keel_value value)
{
    bool made = value != 0 && value < graph->value_count && graph->values[value].kind == KEEL_VALUE_TEMP;
    if (!made)
        keel_graph_refuse(graph, keel_fail(KEEL_INVALID, "output: only what an operation makes can be read"));
    graph->output = value;
}

/* ---- dump ---------------------------------------------------------------------------------------------- */

/* Text that grows; `failed` sticks. */
struct text {
    char *data;
    size_t used, capacity;
    enum keel_status status;
};

static void put(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *text, const char *format, ...)
{
    enum { LINE = 512 };
    if (text->status == KEEL_OK && text->capacity - text->used < LINE) {
        size_t wanted = text->capacity * 2 + LINE;
        text->status = keel_realloc((void *)&text->data, text->capacity, wanted, 1);
        text->capacity = text->status == KEEL_OK ? wanted : text->capacity;
    }
    if (text->status != KEEL_OK)
        return;
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(text->data + text->used, text->capacity - text->used, format, arguments);
    va_end(arguments);
    if (written > 0)
        text->used += (size_t)written < LINE ? (size_t)written : LINE - 1;
}

/* "name f32[4,64,128] spec=(replicated)" */
static void put_value(struct text *text, const struct keel_graph *graph, keel_value value)
{
    static const char *const types[KEEL_DTYPE_COUNT] = {"f32", "bf16", "f16", "i32"};
    const struct keel_ir_value *v = &graph->values[value];
    put(text, "%%%u %s %s[", value, v->name, types[v->dtype]);
    for (uint32_t i = 0; i < v->shape.dims; i++)
        put(text, "%s%llu", i == 0 ? "" : ",", (unsigned long long)v->shape.size[i]);
    char spec[KEEL_SPEC_TEXT_BYTES];
    keel_spec_print(&v->spec, spec);
    put(text, "] spec=(%s)", spec);
}

static void put_node(struct text *text, const struct keel_graph *graph, const struct keel_memory_plan *plan,
                     const struct keel_ir_node *node)
{
    const struct keel_op *op = keel_op_row(node->op);
    put(text, "%s(", op->name);
    const char *comma = "";
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
        if (node->in[i] == 0)
            continue;
        put(text, "%s%%%u", comma, node->in[i]);
        comma = ", ";
    }
    put(text, ") rule %s", op->rule);
    char attributes[128] = "";
    if (op->describe != NULL)
        op->describe(node, attributes, sizeof attributes);
    put(text, "%s", attributes);
    if (node->attributes.rate > 0.0F)
        put(text, " rate=%g stream=%u", (double)node->attributes.rate, node->attributes.stream);
    const struct keel_slices *slices = &node->attributes.slices;
    if (slices->of > 0)
        put(text, " slices=%u-%u/%u of %ux%u", slices->first, slices->first + slices->count - 1, slices->of,
            slices->units, slices->unit);
    put(text, " flops=%llu bytes=%llu\n", (unsigned long long)keel_op_flops(graph, node),
        (unsigned long long)keel_op_bytes(graph, node));
    uint32_t accumulated = keel_op_results(node->op).accumulated;
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
        if (node->out[i] == 0)
            continue;
        put(text, "    %s ", (accumulated >> i & 1U) != 0 ? "+=" : "->");
        put_value(text, graph, node->out[i]);
        if (plan != NULL && graph->values[node->out[i]].kind == KEEL_VALUE_TEMP)
            put(text, " at %llu%s", (unsigned long long)plan->offset[node->out[i]],
                plan->storage[node->out[i]] == node->out[i] ? "" : " in place");
        put(text, "\n");
    }
}

enum keel_status keel_graph_dump_plan(const struct keel_graph *graph, const struct keel_memory_plan *plan,
                                      const char *path)
{
    struct text text = {.status = KEEL_OK};
    for (keel_value value = 1; value < graph->value_count; value++) {
        if (graph->values[value].kind != KEEL_VALUE_INPUT && graph->values[value].kind != KEEL_VALUE_PARAM)
            continue;
        put(&text, "%s ", graph->values[value].kind == KEEL_VALUE_INPUT ? "input" : "param");
        put_value(&text, graph, value);
        put(&text, "\n");
    }
    for (uint32_t i = 0; i < graph->node_count; i++)
        put_node(&text, graph, plan, &graph->nodes[i]);
    enum keel_status status = text.status;
    if (status == KEEL_OK)
        status = keel_file_replace(path, text.data, text.used, 0644);
    keel_free(text.data);
    return status;
}

enum keel_status keel_graph_dump(const struct keel_graph *graph, const char *path)
{
    return keel_graph_dump_plan(graph, NULL, path);
}
