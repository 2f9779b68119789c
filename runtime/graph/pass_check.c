/* pass_check.c - check: refuses a graph whose specs are unsound.
 *
 * Every node's results must be what its operands' specs give (spec.c), every value must be cut into as many
 * slices as the axis has, and every gradient must end where its parameter is: split alike, or whole, or a sum
 * for each slice, which the end of a shard makes whole. Inputs and losses are whole. */
#include "spec.h"

#include <stdio.h>

static enum keel_status check_value(const struct keel_graph *graph, keel_value value,
                                    enum keel_mesh_axis axis, uint32_t slices)
{
    const struct keel_ir_value *v = &graph->values[value];
    struct keel_axis_spec spec = v->spec.axis[axis];
    char text[KEEL_SPEC_TEXT_BYTES];
    keel_axis_spec_print(&spec, text);
    KEEL_TRY(keel_axis_spec_resolve(v, &spec));
    if (spec.kind == KEEL_SPLIT && keel_axis_spec_units(&v->shape, &spec) < slices)
        return keel_fail(KEEL_INVALID, "%s is %s, which has %llu units: too few for %u slices", v->name, text,
                         (unsigned long long)keel_axis_spec_units(&v->shape, &spec), slices);
    const bool whole = v->kind == KEEL_VALUE_INPUT || v->kind == KEEL_VALUE_LOSS;
    if ((whole && spec.kind != KEEL_REPLICATED) || (v->kind == KEEL_VALUE_PARAM && keel_is_partial(&spec)))
        return keel_fail(KEEL_INVALID,
                         "%s is %s: inputs and losses are replicated, and no parameter is partial", v->name,
                         text);
    if (v->kind != KEEL_VALUE_GRADIENT)
        return KEEL_OK;
    const struct keel_ir_value *param = &graph->values[graph->params[v->param].value];
    const bool summands = spec.kind == KEEL_PARTIAL && param->spec.axis[axis].kind == KEEL_REPLICATED;
    char wanted[KEEL_SPEC_TEXT_BYTES];
    keel_axis_spec_print(&param->spec.axis[axis], wanted);
    if (summands || keel_axis_spec_equal(&spec, &param->spec.axis[axis]))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "%s is %s, and its parameter, %s, is %s: a gradient ends where its parameter is",
                     v->name, text, param->name, wanted);
}

static enum keel_status check_node(const struct keel_graph *graph, const struct keel_ir_node *node,
                                   enum keel_mesh_axis axis)
{
    struct keel_axis_spec made[KEEL_NODE_OUT_MAX];
    char text[KEEL_SPEC_TEXT_BYTES], said[KEEL_SPEC_TEXT_BYTES];
    KEEL_TRY(keel_spec_infer(graph, node, axis, made));
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
        if (node->out[i] == 0 || keel_axis_spec_equal(&made[i], &graph->values[node->out[i]].spec.axis[axis]))
            continue;
        keel_axis_spec_print(&made[i], text);
        keel_axis_spec_print(&graph->values[node->out[i]].spec.axis[axis], said);
        return keel_spec_refuse(graph, node, axis, "%s is %s, and must be %s",
                                graph->values[node->out[i]].name, said, text);
    }
    return KEEL_OK;
}

enum keel_status keel_pass_check(const struct keel_graph *graph, const uint32_t slices[KEEL_MESH_AXES])
{
    for (enum keel_mesh_axis axis = 0; axis < KEEL_MESH_AXES; axis++) {
        for (keel_value value = 1; value < graph->value_count; value++)
            KEEL_TRY(check_value(graph, value, axis, slices[axis]));
        for (uint32_t n = 0; n < graph->node_count; n++)
            KEEL_TRY(check_node(graph, &graph->nodes[n], axis));
    }
    return KEEL_OK;
}
