/* lower_rank.c - lower, for a rank that holds some slices of the mesh and not all.
 *
 * A value that is split has the units of the rank's slices, dense; what is partial is one value for each node
 * of the tree over slices that the rank has whole (keel_tree_nodes), and a product that sums over the split
 * index is computed once for each. A reshard becomes an exchange between ranks, on memory in which the units
 * come first: copies before and behind it put them there where they do not lie so. What was added behind a
 * sum stays behind it.
 *
 * Analysis reads the graph as it was (`old`), whose numbers of values stay; shapes and nodes of the new one
 * are the rank's. So the order of the nodes is that of the rank with all slices, and with it the order of all
 * additions. */
#include "lower.h"

#include <keel/memory.h>
#include <keel/transport.h>
#include <stdio.h>
#include <string.h>

enum { NODES_MAX = KEEL_NODE_IN_MAX };

/* A value of the old graph in the new one: a node each, where it is partial, else one. */
struct held {
    keel_value part[NODES_MAX];
    uint32_t count;
};

struct rank {
    struct keel_graph *graph;
    const struct keel_graph *old;
    struct held *held; /* by value of the old graph */
    enum keel_mesh_axis axis;
    struct keel_slice_run cut;
    struct keel_slice_run nodes[NODES_MAX]; /* of the tree over slices */
    uint32_t node_count;
    bool backward; /* of the node at hand */
};

static const struct keel_axis_spec *spec_of(const struct rank *rank, keel_value value)
{
    return &rank->old->values[value].spec.axis[rank->axis];
}

/* The first unit of a run of slices, and how many it has. */
static uint64_t first_unit(uint32_t units, const struct keel_slice_run *cut)
{
    return keel_slice_begin(units, cut->of, cut->first);
}
static uint64_t unit_count(uint32_t units, const struct keel_slice_run *cut)
{
    return keel_slice_begin(units, cut->of, cut->first + cut->count) - first_unit(units, cut);
}

/* The shape of what some slices have of a value. */
static struct keel_shape cut_shape(const struct keel_shape *whole, const struct keel_axis_spec *spec,
                                   const struct keel_slice_run *cut)
{
    struct keel_shape shape = *whole;
    if (spec->kind != KEEL_SPLIT)
        return shape;
    const uint32_t units = (uint32_t)keel_axis_spec_units(whole, spec);
    shape.size[spec->dim] = unit_count(units, cut) * keel_axis_spec_each(spec);
    for (uint32_t d = spec->dim + spec->dims; d < whole->dims; d++)
        shape.size[d - spec->dims + 1] = whole->size[d];
    shape.dims = whole->dims - spec->dims + 1U;
    return shape;
}

/* Where the rank's part of a split value lies in the whole. */
static struct keel_random_slice place_of(const struct rank *rank, keel_value value)
{
    return keel_cut_place(&rank->old->values[value].shape, spec_of(rank, value), &rank->cut);
}

/* ---- nodes of the new graph ---------------------------------------------------------------------------- */

static keel_value new_value(struct rank *rank, const char *what, enum keel_dtype dtype,
                            const struct keel_shape *shape)
{
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, "%.50s.%u", what, rank->graph->value_count);
    return keel_graph_value(rank->graph, name, dtype, KEEL_VALUE_TEMP, *shape, 0);
}

static enum keel_status append(struct rank *rank, struct keel_ir_node *node)
{
    KEEL_TRY(keel_graph_status(rank->graph));
    node->backward = rank->backward;
    return keel_graph_append(rank->graph, node);
}

/* What the new graph reads in the place of an old value that is whole or split. */
static keel_value read_of(const struct rank *rank, keel_value old)
{
    KEEL_ASSERT(old == 0 || rank->held[old].count == 1);
    return old == 0 ? 0 : rank->held[old].part[0];
}

/* ---- reshards ------------------------------------------------------------------------------------------ */

static enum keel_status append_repack(struct rank *rank, keel_value from, const uint64_t size[KEEL_DIMS_MAX],
                                      const uint32_t order[KEEL_DIMS_MAX], keel_value to)
{
    struct keel_ir_node node = {.op = KEEL_OP_REPACK, .in = {from}, .out = {to}};
    for (uint32_t d = 0; d < KEEL_DIMS_MAX; d++) {
        node.attributes.repack.size[d] = size[d];
        node.attributes.repack.order[d] = order[d];
    }
    return append(rank, &node);
}

/* `value` with its units first: itself, where they are. */
static enum keel_status units_first(struct rank *rank, keel_value value, const struct keel_cut_view *view,
                                    uint64_t units, keel_value *out)
{
    *out = value;
    if (view->outer == 1)
        return KEEL_OK;
    const struct keel_ir_value like = rank->graph->values[value];
    *out = new_value(rank, "packed", like.dtype, &like.shape);
    return append_repack(rank, value, (const uint64_t[]){1, view->outer, units, view->inner},
                         (const uint32_t[]){0, 2, 1, 3}, *out);
}

/* The exchange, whose result is `out` when its units lie where they belong. */
static enum keel_status append_exchange(struct rank *rank, struct keel_ir_node *node,
                                        const struct keel_cut_view *view, uint64_t units, keel_value out)
{
    const struct keel_ir_value like = rank->graph->values[out];
    node->op = KEEL_OP_EXCHANGE;
    node->out[0] = view->outer == 1 ? out : new_value(rank, "exchanged", like.dtype, &like.shape);
    KEEL_TRY(append(rank, node));
    return view->outer == 1
               ? KEEL_OK
               : append_repack(rank, node->out[0], (const uint64_t[]){1, units, view->outer, view->inner},
                               (const uint32_t[]){0, 2, 1, 3}, out);
}

/* A sum over ranks of what is partial, or values side by side. */
static enum keel_status exchange(struct rank *rank, const struct held *from, const struct keel_axis_spec *is,
                                 const struct keel_axis_spec *to, keel_value out)
{
    const bool gather = is->kind == KEEL_SPLIT, scatter = to->kind == KEEL_SPLIT;
    const struct keel_shape *whole = &rank->old->values[out].shape;
    struct keel_cut_view view = {.outer = 1, .inner = keel_shape_count(whole), .units = 1};
    if (gather || scatter)
        view = keel_cut_view(whole, gather ? is : to);
    const uint64_t held = unit_count(view.units, &rank->cut);
    struct keel_ir_node node = {.attributes.exchange = {.kind = gather ? KEEL_EXCHANGE_GATHER
                                                                : is->kind == KEEL_PARTIAL
                                                                    ? KEEL_EXCHANGE_SUM
                                                                    : KEEL_EXCHANGE_SUM_BITS,
                                                        .scatter = scatter,
                                                        .units = view.units,
                                                        .unit = view.outer * view.inner}};
    for (uint32_t i = 0; i < from->count; i++)
        KEEL_TRY(units_first(rank, from->part[i], &view, gather ? held : view.units, &node.in[i]));
    return append_exchange(rank, &node, &view, gather ? view.units : held, out);
}

/* The rank's units of what every rank has whole. */
static enum keel_status take_own(struct rank *rank, keel_value from, const struct keel_axis_spec *to,
                                 keel_value out)
{
    const struct keel_cut_view view = keel_cut_view(&rank->old->values[out].shape, to);
    struct keel_ir_node node = {.op = KEEL_OP_RUN,
                                .in = {from},
                                .out = {out},
                                .attributes.run = {.outer = view.outer,
                                                   .size = view.units,
                                                   .inner = view.inner,
                                                   .from = first_unit(view.units, &rank->cut)}};
    return append(rank, &node);
}

static enum keel_status lower_reshard(struct rank *rank, const struct keel_ir_node *old)
{
    const keel_value out = old->out[0];
    const struct held *from = &rank->held[old->in[0]];
    const struct keel_axis_spec *is = spec_of(rank, old->in[0]), *to = spec_of(rank, out);
    if (keel_axis_spec_equal(is, to)) {
        rank->held[out] = *from;
        return KEEL_OK;
    }
    return is->kind == KEEL_REPLICATED ? take_own(rank, from->part[0], to, out)
                                       : exchange(rank, from, is, to, out);
}

/* ---- cross entropy over a vocabulary that is split ----------------------------------------------------- */

/* An exchange of a value for each row of logits; the result. */
static enum keel_status exchange_rows(struct rank *rank, enum keel_slices_exchange kind,
                                      const keel_value *parts, uint32_t count, keel_value *out)
{
    const struct keel_ir_value like = rank->graph->values[parts[0]];
    struct keel_ir_node node = {
        .op = KEEL_OP_EXCHANGE,
        .attributes.exchange = {.kind = kind, .units = 1, .unit = keel_shape_count(&like.shape)}};
    memcpy(node.in, parts, count * sizeof *parts);
    *out = node.out[0] = new_value(rank, "exchanged", like.dtype, &like.shape);
    return append(rank, &node);
}

/* The sums of exponentials of each node, and, if a gradient is wanted, the exponentials. */
static enum keel_status append_parts(struct rank *rank, struct keel_ir_node *part, bool gradient,
                                     keel_value sums[NODES_MAX])
{
    const struct keel_ir_value logits = rank->graph->values[part->in[0]],
                               row = rank->graph->values[part->in[1]];
    KEEL_ASSERT(rank->node_count > 0);
    for (uint32_t n = 0; n < rank->node_count; n++) {
        part->attributes.slices.first = rank->nodes[n].first;
        part->attributes.slices.count = rank->nodes[n].count;
        part->out[0] = sums[n] = new_value(rank, "exp_sums", KEEL_F32, &row.shape);
        part->out[1] = gradient ? new_value(rank, "exponentials", KEEL_F32, &logits.shape) : 0;
        KEEL_TRY(append(rank, part));
        part->in[0] = gradient ? part->out[1] : part->in[0];
    }
    return KEEL_OK;
}

static enum keel_status lower_cross_entropy(struct rank *rank, const struct keel_ir_node *old,
                                            const struct keel_slices *slices)
{
    const keel_value logits = read_of(rank, old->in[0]), targets = read_of(rank, old->in[1]);
    const struct keel_shape rows = rank->graph->values[targets].shape;
    struct keel_attributes attributes = old->attributes;
    keel_value maxima, bits, sum, sums[NODES_MAX] = {0};
    attributes.slices = *slices;
    attributes.place.first = first_unit(slices->units, &rank->cut) * slices->unit;
    attributes.place.row = unit_count(slices->units, &rank->cut) * slices->unit;
    struct keel_ir_node max = {
        .op = KEEL_OP_CROSS_ENTROPY_MAX,
        .in = {logits, targets},
        .out = {new_value(rank, "maxima", KEEL_F32, &rows), new_value(rank, "target_bits", KEEL_I32, &rows)},
        .attributes = attributes};
    KEEL_TRY(append(rank, &max));
    KEEL_TRY(exchange_rows(rank, KEEL_EXCHANGE_MAX, &max.out[0], 1, &maxima));
    KEEL_TRY(exchange_rows(rank, KEEL_EXCHANGE_SUM_BITS, &max.out[1], 1, &bits));
    struct keel_ir_node part = {
        .op = KEEL_OP_CROSS_ENTROPY_PART, .in = {logits, maxima}, .attributes = attributes};
    KEEL_TRY(append_parts(rank, &part, old->out[1] != 0, sums));
    KEEL_TRY(exchange_rows(rank, KEEL_EXCHANGE_SUM, sums, rank->node_count, &sum));
    struct keel_ir_node end = {.op = KEEL_OP_CROSS_ENTROPY_END,
                               .in = {maxima, sum, bits, targets, part.out[1]},
                               .out = {read_of(rank, old->out[0]), old->out[1]},
                               .attributes = attributes};
    return append(rank, &end);
}

/* ---- other nodes --------------------------------------------------------------------------------------- */

static enum keel_status refuse(const struct keel_ir_node *node, const char *why)
{
    return keel_fail(KEEL_UNSUPPORTED,
                     "%s %s: only a rank with all slices computes that; take parallel.tensor = 1",
                     keel_op_row(node->op)->name, why);
}

/* An operation that moves elements: rows that are split are one dimension here. */
static enum keel_status lower_move(struct rank *rank, const struct keel_ir_node *old)
{
    const struct keel_axis_spec *spec = spec_of(rank, old->in[0]);
    struct keel_ir_node node = *old;
    const bool rows = spec->kind == KEEL_SPLIT && spec->dims > 1;
    if (keel_is_partial(spec))
        return refuse(old, "of a sum that is partial");
    if (rows && old->op == KEEL_OP_PERMUTE)
        return refuse(old, "of rows that are split");
    if (rows && old->op != KEEL_OP_RESHAPE && node.attributes.slice.axis > spec->dim)
        node.attributes.slice.axis -= spec->dims - 1U;
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
        node.in[i] = read_of(rank, old->in[i]);
    return append(rank, &node);
}

/* The operand with the units of one node of the tree alone, [outer, units, inner] being how it lies. */
static enum keel_status take_run(struct rank *rank, struct keel_ir_node *node, uint32_t at,
                                 const struct keel_axis_spec *spec, const struct keel_cut_view *view,
                                 const struct keel_slice_run *run)
{
    const struct keel_ir_value v = rank->graph->values[node->in[at]];
    const uint64_t units = unit_count(view->units, run);
    struct keel_shape shape = v.shape;
    shape.size[spec->dim] = units * spec->outer * spec->unit;
    struct keel_ir_node copy = {
        .op = KEEL_OP_RUN,
        .in = {node->in[at]},
        .out = {new_value(rank, "run", v.dtype, &shape)},
        .attributes.run = {.outer = view->outer,
                           .size = unit_count(view->units, &rank->cut),
                           .inner = view->inner,
                           .from = first_unit(view->units, run) - first_unit(view->units, &rank->cut)}};
    node->in[at] = copy.out[0];
    return append(rank, &copy);
}

/* The operands of a product that has those of all slices of the rank, for one node of the tree. */
static enum keel_status take_operands(struct rank *rank, const struct keel_ir_node *old,
                                      struct keel_ir_node *node, const struct keel_slice_run *run)
{
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
        if (old->in[i] == 0 || spec_of(rank, old->in[i])->kind != KEEL_SPLIT)
            continue;
        const struct keel_axis_spec *spec = spec_of(rank, old->in[i]);
        struct keel_cut_view view = keel_cut_view(&rank->old->values[old->in[i]].shape, spec);
        view.outer /= spec->outer; /* they lie by units then */
        view.inner *= spec->outer;
        KEEL_TRY(take_run(rank, node, i, spec, &view, run));
    }
    return KEEL_OK;
}

static bool sums_in_tree(uint32_t op)
{
    return op == KEEL_OP_LINEAR || op == KEEL_OP_LINEAR_DX || op == KEEL_OP_LINEAR_TRANSPOSED ||
           op == KEEL_OP_TRANSPOSED_DX;
}

/* A product whose result is partial: once for each node of the tree. */
static enum keel_status lower_product(struct rank *rank, const struct keel_ir_node *old,
                                      struct keel_ir_node node, const struct keel_split_index *index)
{
    const bool parts = index->part.outer > 1;
    if (!sums_in_tree(old->op) || old->out[1] != 0 || (parts && !keel_lower_takes_units(old->op)))
        return refuse(old, "that sums over a split index");
    for (uint32_t i = 0; parts && i < 2; i++)
        KEEL_TRY(keel_lower_by_units(rank->graph, &node, i, spec_of(rank, old->in[i])));
    struct held *made = &rank->held[old->out[0]];
    const struct keel_ir_value like = rank->graph->values[old->out[0]];
    for (made->count = 0; made->count < rank->node_count; made->count++) {
        const struct keel_slice_run *run = &rank->nodes[made->count];
        struct keel_ir_node one = node;
        one.attributes.slices.first = run->first;
        one.attributes.slices.count = run->count;
        if (rank->node_count > 1)
            KEEL_TRY(take_operands(rank, old, &one, run));
        if (made->count > 0)
            one.out[0] = new_value(rank, like.name, like.dtype, &like.shape);
        made->part[made->count] = one.out[0];
        KEEL_TRY(append(rank, &one));
    }
    return KEEL_OK;
}

/* Of attention: the rank's heads; and numbers of the probabilities, [batch, heads, tokens, keys], which lie
 * as the statistics of rows do, [batch, heads, tokens, 2]. */
static void localize_attention(const struct rank *rank, const struct keel_ir_node *old,
                               struct keel_ir_node *node)
{
    const bool crosses = old->op == KEEL_OP_CROSS_ATTENTION || old->op == KEEL_OP_CROSS_ATTENTION_GRAD;
    const bool forward = old->op == KEEL_OP_ATTENTION || old->op == KEEL_OP_CROSS_ATTENTION ||
                         old->op == KEEL_OP_GROUPED_ATTENTION;
    const keel_value statistics = forward ? old->out[1] : old->in[crosses ? 3 : 2];
    const uint64_t *rows = rank->old->values[statistics].shape.size;
    const uint64_t keys = crosses ? rank->old->values[old->in[1]].shape.size[1] : rows[2];
    const uint64_t mine = rank->graph->values[old->in[0]].shape.size[2],
                   whole = rank->old->values[old->in[0]].shape.size[2];
    struct keel_random_slice place = place_of(rank, statistics);
    node->attributes.attention.heads = (uint32_t)(old->attributes.attention.heads * mine / whole);
    node->attributes.attention.kv_heads = (uint32_t)(old->attributes.attention.kv_heads * mine / whole);
    node->attributes.attention.first_head = (uint32_t)(place.first / (2 * rows[2]) % rows[1]);
    place.first = place.first / 2 * keys;
    place.row = place.row / 2 * keys;
    place.stride = place.stride / 2 * keys;
    node->attributes.place = place;
}

static uint64_t columns_of(const struct keel_graph *graph, keel_value value)
{
    const struct keel_shape *shape = &graph->values[value].shape;
    return shape->size[shape->dims - 1];
}

/* What attributes say of the whole, of the rank's part. */
static void localize_attributes(const struct rank *rank, const struct keel_ir_node *old,
                                struct keel_ir_node *node)
{
    const keel_value table = old->op == KEEL_OP_EMBEDDING ? old->in[1] : old->out[0];
    const uint64_t mine = rank->graph->values[old->in[0]].shape.size[2],
                   whole = rank->old->values[old->in[0]].shape.size[2];
    switch (old->op) {
    case KEEL_OP_DROPOUT:
        node->attributes.place = place_of(rank, old->in[0]);
        break;
    case KEEL_OP_EMBEDDING:
    case KEEL_OP_EMBEDDING_GRAD: /* rows; of columns all have all; of a table that is frozen there is none */
        if (table != 0 && spec_of(rank, table)->dim == 0)
            node->attributes.place.first =
                place_of(rank, table).first / rank->old->values[table].shape.size[1];
        break;
    case KEEL_OP_ATTENTION:
    case KEEL_OP_ATTENTION_GRAD:
    case KEEL_OP_CROSS_ATTENTION:
    case KEEL_OP_CROSS_ATTENTION_GRAD:
    case KEEL_OP_GROUPED_ATTENTION:
    case KEEL_OP_GROUPED_ATTENTION_GRAD:
        localize_attention(rank, old, node);
        break;
    case KEEL_OP_PAIR_HALVES:
        node->attributes.joined.heads =
            (uint32_t)(old->attributes.joined.heads * columns_of(rank->graph, old->in[0]) /
                       columns_of(rank->old, old->in[0]));
        break;
    case KEEL_OP_ROTARY:
    case KEEL_OP_GROUPED_ROTARY:
        node->attributes.rotary.heads = (uint32_t)(old->attributes.rotary.heads * mine / whole);
        node->attributes.rotary.kv_heads = (uint32_t)(old->attributes.rotary.kv_heads * mine / whole);
        break;
    default:
        break;
    }
}

static bool makes_partial(const struct rank *rank, const struct keel_ir_node *old)
{
    return rank->old->values[old->out[0]].kind == KEEL_VALUE_TEMP &&
           spec_of(rank, old->out[0])->kind == KEEL_PARTIAL;
}

/* Sums over rows that are split are a row for each slice; no other result is summed so. */
static enum keel_status check_sums(const struct rank *rank, const struct keel_ir_node *old)
{
    const bool rows =
        old->op == KEEL_OP_BIAS_GRAD || old->op == KEEL_OP_LAYERNORM_GRAD || old->op == KEEL_OP_RMS_NORM_GRAD;
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++)
        if (old->out[i] != 0 && spec_of(rank, old->out[i])->kind == KEEL_PARTIAL && !rows)
            return refuse(old, "that sums over a split index");
    return KEEL_OK;
}

static enum keel_status lower_node(struct rank *rank, const struct keel_ir_node *old)
{
    struct keel_ir_node node = *old;
    struct keel_split_index index = {.letter = '\0'};
    struct keel_slices slices;
    if (old->op == KEEL_OP_RESHARD)
        return lower_reshard(rank, old);
    if (keel_op_row(old->op)->move != NULL)
        return lower_move(rank, old);
    KEEL_TRY(keel_lower_find_slices(rank->old, old, rank->axis, &rank->cut, &index, &slices));
    if (old->op == KEEL_OP_CROSS_ENTROPY && slices.of != 0)
        return lower_cross_entropy(rank, old, &slices);
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
        node.in[i] = read_of(rank, old->in[i]);
    localize_attributes(rank, old, &node);
    node.attributes.slices = slices;
    if (makes_partial(rank, old))
        return lower_product(rank, old, node, &index);
    KEEL_TRY(check_sums(rank, old));
    return append(rank, &node);
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

/* Shapes of the rank's parts, and of accumulators with a row for each slice. */
static void localize_values(struct rank *rank)
{
    for (keel_value value = 1; value < rank->old->value_count; value++) {
        struct keel_ir_value *v = &rank->graph->values[value];
        const struct keel_axis_spec *spec = spec_of(rank, value);
        v->shape = cut_shape(&v->shape, spec, &rank->cut);
        if (v->kind == KEEL_VALUE_GRADIENT && spec->kind == KEEL_PARTIAL)
            keel_lower_widen(v, rank->cut.count);
        rank->held[value] = (struct held){.part = {value}, .count = 1};
    }
}

enum keel_status keel_cut_nodes(const struct keel_slice_run *cut, struct keel_slice_run *out,
                                uint32_t capacity, uint32_t *out_count)
{
    uint16_t owner[KEEL_SLICES_MAX];
    struct keel_tree_node nodes[KEEL_SLICES_MAX];
    for (uint32_t s = 0; s < cut->of; s++)
        owner[s] = s >= cut->first && s - cut->first < cut->count ? 0 : 1;
    KEEL_TRY(keel_tree_nodes(cut->of, owner, 0, nodes, KEEL_SLICES_MAX, out_count));
    if (*out_count > capacity)
        return keel_fail(KEEL_UNSUPPORTED,
                         "slices %u to %u of %u are %u nodes of their tree, at most %u: take runs that begin "
                         "at multiples of a power of two",
                         cut->first, cut->first + cut->count - 1, cut->of, *out_count, capacity);
    for (uint32_t n = 0; n < *out_count; n++) {
        const uint32_t first = nodes[n].index << nodes[n].level, left = cut->of - first;
        const uint32_t full = 1U << nodes[n].level;
        out[n] = (struct keel_slice_run){.first = first, .count = full < left ? full : left, .of = cut->of};
    }
    return KEEL_OK;
}

/* As in the graph that a rank with all slices runs: what is read from 16 bits is stored so. */
static void mark_stashed(struct keel_graph *graph)
{
    for (keel_value value = 1; value < graph->value_count; value++)
        graph->values[value].stashed_half = false;
    for (uint32_t n = 0; n < graph->node_count; n++)
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
            if ((graph->nodes[n].from_stash >> i & 1U) != 0)
                graph->values[graph->nodes[n].in[i]].stashed_half = true;
}

static enum keel_status walk(struct rank *rank)
{
    struct keel_graph *graph = rank->graph;
    KEEL_TRY(keel_cut_nodes(&rank->cut, rank->nodes, NODES_MAX, &rank->node_count));
    localize_values(rank);
    graph->node_count = 0;
    for (uint32_t n = 0; n < rank->old->node_count; n++) {
        rank->backward = rank->old->nodes[n].backward;
        KEEL_TRY(lower_node(rank, &rank->old->nodes[n]));
    }
    graph->output = read_of(rank, graph->output);
    mark_stashed(graph);
    return KEEL_OK;
}

enum keel_status keel_lower_rank(struct keel_graph *graph, enum keel_mesh_axis axis,
                                 const struct keel_slice_run *cut)
{
    struct keel_graph *old = NULL;
    struct held *held = NULL;
    enum keel_status status = keel_graph_copy(graph, &old);
    if (status == KEEL_OK)
        status = keel_alloc(graph->value_count, sizeof *held, (void *)&held);
    if (status == KEEL_OK) {
        struct rank rank = {.graph = graph, .old = old, .held = held, .axis = axis, .cut = *cut};
        status = walk(&rank);
    }
    keel_free(held);
    keel_graph_destroy(old);
    return status;
}
