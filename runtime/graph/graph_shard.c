/* graph_shard.c - how a model says how its values lie over the mesh; and the operations that the shard pass
 * puts in: reshard, and what is added behind a sum.
 *
 * keel_pass_lower takes reshards out again; what is added behind a sum is launched where ranks share it. At
 * the end what only lowered graphs have: copies that put slices side by side, and the exchange between ranks,
 * which launches nothing: the engine's program ends a segment there (keel_engine_exchange). */
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
    if (value == 0 || value >= graph->value_count || axis >= KEEL_MESH_AXES || spec->lead != 0 ||
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
    struct keel_ir_value *v = &graph->values[value];
    if (((uint32_t)v->annotated >> axis & 1U) != 0 && !keel_axis_spec_equal(&v->spec.axis[axis], &spec)) {
        char before[KEEL_SPEC_TEXT_BYTES], now[KEEL_SPEC_TEXT_BYTES];
        keel_axis_spec_print(&v->spec.axis[axis], before);
        keel_axis_spec_print(&spec, now);
        keel_graph_refuse(graph,
                          keel_fail(KEEL_INVALID,
                                    "shard: %s is to be %s, and was to be %s already: say one of them, "
                                    "and reshard it where it is read otherwise (keel_graph_reshard)",
                                    v->name, now, before));
        return;
    }
    v->spec.axis[axis] = spec;
    v->annotated |= (uint8_t)(1U << axis);
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

/* x + bias[n], and x + positions[t, n]: the last dimensions alike, the others rows. */
static enum keel_status emit_add_rows(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint64_t n = count_of(emit, node->in[1]);
    const struct keel_bias op = {.rows = count_of(emit, node->in[0]) / n,
                                 .n = (uint32_t)n,
                                 .x = buffer_of(emit, node->in[0]),
                                 .bias = buffer_of(emit, node->in[1]),
                                 .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_bias(emit->kernels, &op, emit->list);
}

static enum keel_status emit_repack(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_permute op = {
        .dims = KEEL_DIMS_MAX, .x = buffer_of(emit, node->in[0]), .y = buffer_of(emit, node->out[0])};
    for (uint32_t d = 0; d < KEEL_DIMS_MAX; d++) {
        op.size[d] = node->attributes.repack.size[d];
        op.order[d] = node->attributes.repack.order[d];
    }
    return emit->measure ? KEEL_OK : keel_op_permute(emit->kernels, &op, emit->list);
}

static void describe_repack(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    const uint64_t *size = node->attributes.repack.size;
    const uint32_t *order = node->attributes.repack.order;
    snprintf(text, text_bytes, " of=%llu,%llu,%llu,%llu order=%u,%u,%u,%u", (unsigned long long)size[0],
             (unsigned long long)size[1], (unsigned long long)size[2], (unsigned long long)size[3], order[0],
             order[1], order[2], order[3]);
}

static enum keel_status emit_run(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_slice op = {.outer = node->attributes.run.outer,
                                  .size = node->attributes.run.size,
                                  .inner = node->attributes.run.inner,
                                  .from = node->attributes.run.from,
                                  .count = count_of(emit, node->out[0]) / node->attributes.run.outer /
                                           node->attributes.run.inner,
                                  .x = buffer_of(emit, node->in[0]),
                                  .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_slice(emit->kernels, &op, emit->list);
}

static void describe_run(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " from=%llu of=%llu", (unsigned long long)node->attributes.run.from,
             (unsigned long long)node->attributes.run.size);
}

static enum keel_status emit_exchange(struct keel_emit *emit, const struct keel_ir_node *node)
{
    (void)emit;
    (void)node;
    return KEEL_OK;
}

static void describe_exchange(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    static const char *const kinds[] = {"none", "gather", "sum", "sum-bits", "max"};
    snprintf(text, text_bytes, " %s%s", kinds[node->attributes.exchange.kind],
             node->attributes.exchange.scatter ? " scatter" : "");
}

/* ---- the table ---- */

enum { FIRST = KEEL_OP_RESHARD, LAST = KEEL_OP_EXCHANGE };
static const struct keel_op rows[LAST - FIRST + 1] = {
    [KEEL_OP_RESHARD - FIRST] = {.name = "reshard",
                                 .rule = "*->*",
                                 .in_place = "00",
                                 .describe = describe_reshard,
                                 .grad = grad_reshard},
    /* What the bias of a product is, and the positions of an embedding, where its sum is partial. */
    [KEEL_OP_ADD_BIAS - FIRST] =
        {.name = "add_bias", .rule = "*n,n->*n", .split = "*n", .in_place = "00", .emit = emit_add_rows},
    [KEEL_OP_ADD_POSITIONS - FIRST] = {.name = "add_positions",
                                       .rule = "btn,tn->btn",
                                       .split = "btn",
                                       .in_place = "00",
                                       .emit = emit_add_rows},
    /* Of lowered graphs. */
    [KEEL_OP_REPACK -
        FIRST] = {.name = "repack", .rule = "~->~", .describe = describe_repack, .emit = emit_repack},
    [KEEL_OP_RUN - FIRST] = {.name = "run", .rule = "~->~", .describe = describe_run, .emit = emit_run},
    /* Operands: one for each node of the tree over slices that the rank has. */
    [KEEL_OP_EXCHANGE - FIRST] = {.name = "exchange",
                                  .rule = "~,~?,~?,~?,~?,~?,~?,~?->~",
                                  .describe = describe_exchange,
                                  .emit = emit_exchange},
};

const struct keel_op_family keel_ops_shard = {FIRST, LAST, rows};
