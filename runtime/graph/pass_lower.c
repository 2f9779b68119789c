/* pass_lower.c - lower: from a graph whose specs are sound to what the device that holds all slices runs.
 *
 * Every value is whole there, so no collective is left: what is read otherwise than it lies is read as it
 * lies, and what was added behind a sum goes back into the product, whose kernel adds its slices in the tree
 * first. What stays of the mesh are the slices of the sums: of products over an index that is split, of
 * losses over a split vocabulary, and an accumulator for each slice of the rows where a vector's gradient is
 * summed over them.
 *
 * A slice of a dimension of several parts side by side, as q, k and v, is no run of it: such a product reads
 * both operands by units, with the parts of a unit side by side (README.md). */
#include "lower.h"

#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

struct lowering {
    struct keel_graph *graph;
    keel_value *same;         /* by value: the one that is read in its place */
    struct keel_ir_node *old; /* the nodes as they were */
    enum keel_mesh_axis axis;
    struct keel_slice_run cut; /* all slices */
};

struct keel_cut_view keel_cut_view(const struct keel_shape *whole, const struct keel_axis_spec *split)
{
    struct keel_cut_view view = {
        .outer = split->outer, .inner = split->unit, .units = (uint32_t)keel_axis_spec_units(whole, split)};
    for (uint32_t d = 0; d < split->dim; d++)
        view.outer *= whole->size[d];
    for (uint32_t d = split->dim + split->dims; d < whole->dims; d++)
        view.inner *= whole->size[d];
    return view;
}

struct keel_random_slice keel_cut_place(const struct keel_shape *whole, const struct keel_axis_spec *spec,
                                        const struct keel_slice_run *cut)
{
    if (spec->kind != KEEL_SPLIT || cut->count == cut->of)
        return (struct keel_random_slice){.first = 0};
    const struct keel_cut_view view = keel_cut_view(whole, spec);
    const uint64_t first = keel_slice_begin(view.units, cut->of, cut->first),
                   end = keel_slice_begin(view.units, cut->of, cut->first + cut->count);
    const bool run = view.outer == 1;
    return (struct keel_random_slice){.first = first * view.inner,
                                      .row = run ? 0 : (end - first) * view.inner,
                                      .stride = run ? 0 : view.units * view.inner};
}

/* What stands behind a sum, back into the node that makes it. */
static void fold_addend(struct lowering *lowering, const struct keel_ir_node *node)
{
    struct keel_graph *graph = lowering->graph;
    const keel_value sum = lowering->same[node->in[0]];
    uint32_t maker = graph->node_count;
    do {
        KEEL_ASSERT(maker > 0);
        maker--;
    } while (graph->nodes[maker].out[0] != sum);
    KEEL_ASSERT(graph->nodes[maker].in[2] == 0);
    graph->nodes[maker].in[2] = node->in[1];
    lowering->same[node->out[0]] = sum;
}

enum keel_status keel_lower_find_slices(const struct keel_graph *graph, const struct keel_ir_node *node,
                                        enum keel_mesh_axis axis, const struct keel_slice_run *cut,
                                        struct keel_split_index *index, struct keel_slices *out)
{
    keel_value from;
    *out = (struct keel_slices){.of = 0};
    if (keel_op_row(node->op)->split == NULL || !keel_split_of_node(graph, node, axis, index, &from))
        return KEEL_OK;
    bool sums = index->mark == '!';
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++)
        sums = sums || keel_is_partial(&graph->values[node->out[i]].spec.axis[axis]);
    if (!sums || index->mark == '0') /* rows of a table: the one owner's are the sum */
        return KEEL_OK;
    const struct keel_ir_value *v = &graph->values[from];
    const struct keel_axis_spec *spec = &v->spec.axis[axis];
    uint64_t unit = (uint64_t)spec->unit * spec->outer;
    for (uint32_t d = spec->dim + spec->dims; index->letter == '*' && d + 1 < v->shape.dims; d++)
        unit *= v->shape.size[d];
    if (index->letter == '*' && (spec->dim != 0 || spec->outer != 1))
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s: the rows of %s are split within others: split them from the first on",
                         keel_op_row(node->op)->name, v->name);
    *out = (struct keel_slices){.first = cut->first,
                                .count = cut->count,
                                .of = cut->of,
                                .units = (uint32_t)keel_axis_spec_units(&v->shape, spec),
                                .unit = (uint32_t)unit};
    return KEEL_OK;
}

bool keel_lower_takes_units(uint32_t op)
{
    return op == KEEL_OP_LINEAR_DX || op == KEEL_OP_TRANSPOSED_DX;
}

enum keel_status keel_lower_by_units(struct keel_graph *graph, struct keel_ir_node *node, uint32_t at,
                                     const struct keel_axis_spec *spec)
{
    const struct keel_ir_value v = graph->values[node->in[at]];
    char name[KEEL_VALUE_NAME_BYTES];
    uint64_t before = 1, behind = 1;
    if (spec->dims != 1)
        return keel_fail(KEEL_UNSUPPORTED, "%s: %s is split in parts along several dimensions",
                         keel_op_row(node->op)->name, v.name);
    for (uint32_t d = 0; d < spec->dim; d++)
        before *= v.shape.size[d];
    for (uint32_t d = spec->dim + 1U; d < v.shape.dims; d++)
        behind *= v.shape.size[d];
    snprintf(name, sizeof name, "%.*s.units", (int)sizeof name - 8, v.name);
    const keel_value made = keel_graph_value(graph, name, v.dtype, KEEL_VALUE_TEMP, v.shape, 0);
    KEEL_TRY(keel_graph_status(graph));
    const uint64_t units = v.shape.size[spec->dim] / ((uint64_t)spec->outer * spec->unit);
    const struct keel_ir_node copy = {
        .op = KEEL_OP_REPACK,
        .backward = node->backward,
        .in = {node->in[at]},
        .out = {made},
        .attributes.repack = {.size = {before, spec->outer, units, spec->unit * behind},
                              .order = {0, 2, 1, 3}}};
    node->in[at] = made;
    return keel_graph_append(graph, &copy);
}

void keel_lower_widen(struct keel_ir_value *accumulator, uint32_t count)
{
    struct keel_shape *shape = &accumulator->shape;
    KEEL_ASSERT(shape->dims < KEEL_DIMS_MAX);
    memmove(shape->size + 1, shape->size, shape->dims * sizeof *shape->size);
    shape->size[0] = count;
    shape->dims++;
}

/* An accumulator for each slice. */
static void widen_accumulators(struct lowering *lowering, const struct keel_ir_node *node)
{
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
        struct keel_ir_value *v = &lowering->graph->values[node->out[i]];
        if (node->out[i] != 0 && v->kind == KEEL_VALUE_GRADIENT &&
            v->spec.axis[lowering->axis].kind == KEEL_PARTIAL)
            keel_lower_widen(v, lowering->cut.of);
    }
}

static enum keel_status lower_node(struct lowering *lowering, const struct keel_ir_node *old)
{
    struct keel_graph *graph = lowering->graph;
    struct keel_ir_node node = *old;
    struct keel_split_index index = {.letter = '\0'};
    struct keel_slices slices = {.of = 0};
    if (lowering->cut.of > 1)
        KEEL_TRY(keel_lower_find_slices(graph, old, lowering->axis, &lowering->cut, &index, &slices));
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
        node.in[i] = lowering->same[old->in[i]];
    node.attributes.slices = slices;
    const bool parts = slices.of != 0 && index.part.outer > 1 && keel_lower_takes_units(old->op);
    for (uint32_t i = 0; parts && i < 2; i++)
        KEEL_TRY(keel_lower_by_units(graph, &node, i, &graph->values[old->in[i]].spec.axis[lowering->axis]));
    if (slices.of != 0)
        widen_accumulators(lowering, &node);
    return keel_graph_append(graph, &node);
}

static enum keel_status lower(struct lowering *lowering, uint32_t count)
{
    struct keel_graph *graph = lowering->graph;
    graph->node_count = 0;
    for (uint32_t n = 0; n < count; n++) {
        const struct keel_ir_node *node = &lowering->old[n];
        if (node->op == KEEL_OP_RESHARD)
            lowering->same[node->out[0]] = lowering->same[node->in[0]];
        else if (node->op == KEEL_OP_ADD_BIAS || node->op == KEEL_OP_ADD_POSITIONS)
            fold_addend(lowering, node);
        else
            KEEL_TRY(lower_node(lowering, node));
    }
    graph->output = lowering->same[graph->output];
    for (keel_value value = 1; value < graph->value_count; value++)
        graph->values[value].stashed_half = false;
    for (uint32_t n = 0; n < graph->node_count; n++)
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
            if ((graph->nodes[n].from_stash >> i & 1U) != 0)
                graph->values[graph->nodes[n].in[i]].stashed_half = true;
    return KEEL_OK;
}

static enum keel_status lower_whole(struct keel_graph *graph, enum keel_mesh_axis axis,
                                    const struct keel_slice_run *cut)
{
    struct lowering lowering = {.graph = graph, .axis = axis, .cut = *cut};
    const uint32_t count = graph->node_count;
    enum keel_status status = keel_alloc(graph->value_count, sizeof *lowering.same, (void *)&lowering.same);
    if (status == KEEL_OK)
        status = keel_alloc(count == 0 ? 1 : count, sizeof *lowering.old, (void *)&lowering.old);
    if (status == KEEL_OK) {
        memcpy(lowering.old, graph->nodes, count * sizeof *lowering.old);
        for (keel_value value = 0; value < graph->value_count; value++)
            lowering.same[value] = value;
        status = lower(&lowering, count);
    }
    keel_free(lowering.same);
    keel_free(lowering.old);
    return status;
}

_Static_assert(KEEL_MESH_AXES == 1, "keel_pass_lower lowers one axis");

enum keel_status keel_pass_lower(struct keel_graph *graph, const struct keel_slice_run cut[KEEL_MESH_AXES])
{
    const struct keel_slice_run *tensor = &cut[KEEL_AXIS_TENSOR];
    for (uint32_t p = 0; p < graph->param_count; p++)
        graph->params[p].whole = graph->values[graph->params[p].value].shape;
    return tensor->count == tensor->of ? lower_whole(graph, KEEL_AXIS_TENSOR, tensor)
                                       : keel_lower_rank(graph, KEEL_AXIS_TENSOR, tensor);
}
