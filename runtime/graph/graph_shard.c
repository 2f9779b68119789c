/* graph_shard.c - how a model says how its values lie over the mesh; and the operations that the shard pass
 * puts in: reshard, and what is added behind a sum.
 *
 * None of them is ever launched where one device holds all slices: keel_pass_lower takes them out again. */
#include "autodiff.h"
#include "emit.h"
#include "spec.h"

#include <keel/shape_ops.h>
#include <stdio.h>

/* What a model may ask of a value, written out; false, with the graph's status set. */
static bool resolve(struct keel_graph *graph, keel_value value, enum keel_mesh_axis axis,
                    struct keel_axis_spec *spec)
{
    if (graph->status != KEEL_OK)
        return false;
    if (value == 0 || value >= graph->value_count || axis >= KEEL_MESH_AXES ||
        (spec->kind != KEEL_REPLICATED && spec->kind != KEEL_SPLIT))
        keel_graph_refuse(graph, keel_fail(KEEL_INVALID, "shard: no such value, axis or kind"));
    else
        keel_graph_refuse(graph, keel_axis_spec_resolve(&graph->values[value], spec));
    return graph->status == KEEL_OK;
}

void keel_graph_shard(struct keel_graph *graph, keel_value value, enum keel_mesh_axis axis,
                      struct keel_axis_spec spec)
{
    if (!resolve(graph, value, axis, &spec))
        return;
    graph->values[value].spec.axis[axis] = spec;
    graph->values[value].annotated |= (uint8_t)(1U << axis);
}

keel_value keel_graph_reshard(struct keel_graph *graph, keel_value value, enum keel_mesh_axis axis,
                              struct keel_axis_spec to)
{
    struct keel_attributes attributes = {.rate = 0.0F};
    if (!resolve(graph, value, axis, &to))
        return 0;
    attributes.layout.axis[axis] = to;
    return KEEL_NODE(graph, .op = KEEL_OP_RESHARD, .in = {value}, .attributes = attributes);
}

static void describe_reshard(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    char spec[KEEL_SPEC_TEXT_BYTES];
    keel_spec_print(&node->attributes.layout, spec);
    snprintf(text, text_bytes, " to=%s", spec);
}

/* The value is the same, and so is its gradient. */
static void grad_reshard(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_gradient_add(autodiff, node->in[0], arrived(autodiff, node->out[0]));
}

/* Columns by unit, part after part of each, instead of part by part: [rows, outer, units, unit] to [rows,
 * units, outer, unit]. */
static enum keel_status emit_by_units(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint64_t outer = node->attributes.by_units.outer, unit = node->attributes.by_units.unit;
    const struct keel_permute op = {
        .dims = 4,
        .size = {rows_of(emit, node->in[0]), outer, width_of(emit, node->in[0]) / (outer * unit), unit},
        .order = {0, 2, 1, 3},
        .x = buffer_of(emit, node->in[0]),
        .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_permute(emit->kernels, &op, emit->list);
}

static void describe_by_units(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " outer=%u unit=%u", node->attributes.by_units.outer,
             node->attributes.by_units.unit);
}

/* ---- the table ---- */

enum { FIRST = KEEL_OP_RESHARD, LAST = KEEL_OP_BY_UNITS };
static const struct keel_op rows[LAST - FIRST + 1] = {
    [KEEL_OP_RESHARD - FIRST] = {.name = "reshard",
                                 .rule = "*->*",
                                 .in_place = "00",
                                 .describe = describe_reshard,
                                 .grad = grad_reshard},
    /* What the bias of a product is, and the positions of an embedding, where its sum is partial. */
    [KEEL_OP_ADD_BIAS - FIRST] = {.name = "add_bias", .rule = "*n,n->*n", .split = "*n", .in_place = "00"},
    [KEEL_OP_ADD_POSITIONS -
        FIRST] = {.name = "add_positions", .rule = "btn,tn->btn", .split = "btn", .in_place = "00"},
    /* Of lowered graphs. */
    [KEEL_OP_BY_UNITS -
        FIRST] = {.name = "by_units", .rule = "*n->*n", .describe = describe_by_units, .emit = emit_by_units},
};

const struct keel_op_family keel_ops_shard = {FIRST, LAST, rows};
