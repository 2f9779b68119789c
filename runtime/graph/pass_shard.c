/* pass_shard.c - shard: from what a model says of some values to a spec for every value.
 *
 * One walk over the nodes in their order writes the graph anew, numbers and names included, so that the
 * program does not depend on how the model said it. At each node one index at most is split, the first that
 * its row lets be split of these:
 *   1. what a parameter is split by already;
 *   2. what an operand is split by, but rows;
 *   3. the annotation of its result;
 *   4. the rows of an operand.
 * Operands that lie otherwise are resharded, once for all readers; parameters that nobody said anything of
 * follow the first product that reads them. What comes out partial waits until it is known where it goes: to
 * its annotation, to where a reader reshards it, to how what it is added to lies, else to everywhere. A bias
 * of such a product, or positions, are then added behind the sum. A gradient is laid out as the value whose
 * gradient it is: so rows in front of a product whose weights are split by columns, and behind one whose
 * weights are split by rows, make Megatron's sequence parallelism (Korthikanti et al. 2022).
 *
 * Leaves the proof to pass_check.c. */
#include "spec.h"

#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { LAYOUTS_MAX = 4 }; /* of one value at a time: as made, partial, gathered, by rows */

/* A value of the old graph: its copies in the new one. */
struct laid {
    keel_value copy[LAYOUTS_MAX]; /* [0] is how it lies; the others are reshards of it */
    uint32_t count;
    uint32_t addend_op; /* of a partial sum: what is still to be added behind it, or KEEL_OP_NONE */
    keel_value addend;  /* of the new graph */
    bool decided;       /* of a parameter: its spec is known */
    keel_value same_as; /* of a reshard's result: its operand, an old value; else 0 */
};

struct shard {
    struct keel_graph *graph;     /* the new one */
    const struct keel_graph *old; /* as it was */
    struct laid *laid;            /* by old value */
    enum keel_mesh_axis axis;
    uint32_t slices, at; /* number of the old node of the walk */
    bool backward;       /* of that node */
};

static const struct keel_axis_spec replicated = {.kind = KEEL_REPLICATED};

static struct keel_axis_spec *spec_of(const struct shard *shard, keel_value value)
{
    return &shard->graph->values[value].spec.axis[shard->axis];
}

/* How an old value lies now. */
static const struct keel_axis_spec *lies(const struct shard *shard, keel_value old)
{
    return spec_of(shard, shard->laid[old].copy[0]);
}

/* ---- values and nodes of the new graph ----------------------------------------------------------------- */

static keel_value new_value(struct shard *shard, uint32_t op, uint32_t out, enum keel_dtype dtype,
                            const struct keel_shape *shape, struct keel_axis_spec spec)
{
    static const char *const suffix[KEEL_NODE_OUT_MAX] = {"", ".1", ".2", ".3", ".4"};
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%u%s", keel_op_row(op)->name, shard->graph->node_count, suffix[out]);
    const keel_value value = keel_graph_value(shard->graph, name, dtype, KEEL_VALUE_TEMP, *shape, 0);
    if (value != 0)
        *spec_of(shard, value) = spec;
    return value;
}

static enum keel_status append(struct shard *shard, struct keel_ir_node *node)
{
    KEEL_TRY(keel_graph_status(shard->graph));
    node->backward = shard->backward;
    return keel_graph_append(shard->graph, node);
}

/* A node of one result like its first operand. */
static enum keel_status append_like(struct shard *shard, struct keel_ir_node *node,
                                    struct keel_axis_spec spec)
{
    const struct keel_ir_value like = shard->graph->values[node->in[0]];
    node->out[0] = new_value(shard, node->op, 0, like.dtype, &like.shape, spec);
    return append(shard, node);
}

static enum keel_status append_reshard(struct shard *shard, keel_value from, struct keel_axis_spec to,
                                       keel_value *out)
{
    struct keel_ir_node node = {.op = KEEL_OP_RESHARD, .in = {from}};
    node.attributes.layout = shard->graph->values[from].spec;
    node.attributes.layout.axis[shard->axis] = to;
    KEEL_TRY(append_like(shard, &node, to));
    *out = node.out[0];
    return KEEL_OK;
}

/* How q, k or v lies, of a row of them that lies so. */
static struct keel_axis_spec part_of(const struct keel_axis_spec *row, uint32_t part)
{
    struct keel_axis_spec spec = *row;
    if (spec.kind != KEEL_SPLIT)
        return spec;
    spec.unit *= part == 0 ? row->lead : 1;
    spec.outer = 1;
    spec.lead = 0;
    return spec;
}

/* Rows of q, k and v of unlike widths are no units side by side: each goes by itself. A unit is told as a
 * head of keys, as it may be several. */
static enum keel_status reshard_parts(struct shard *shard, keel_value from, struct keel_axis_spec to,
                                      keel_value *out)
{
    const struct keel_axis_spec is = *spec_of(shard, from), *split = is.lead > 0 ? &is : &to;
    const struct keel_ir_value row = shard->graph->values[from];
    const uint32_t units = (uint32_t)keel_axis_spec_units(&row.shape, split);
    struct keel_ir_node join = {.op = KEEL_OP_HEADS_JOIN,
                                .attributes.joined = {.heads = units * split->lead, .kv_heads = units}};
    for (uint32_t p = 0; p < 3; p++) {
        struct keel_ir_node part = {.op = KEEL_OP_HEADS_PART, .in = {from}, .attributes = join.attributes};
        struct keel_shape shape = row.shape;
        part.attributes.joined.part = p;
        shape.size[shape.dims - 1] = (uint64_t)units * split->unit * (p == 0 ? split->lead : 1);
        part.out[0] = new_value(shard, part.op, 0, row.dtype, &shape, part_of(&is, p));
        KEEL_TRY(append(shard, &part));
        KEEL_TRY(append_reshard(shard, part.out[0], part_of(&to, p), &join.in[p]));
    }
    join.out[0] = new_value(shard, join.op, 0, row.dtype, &row.shape, to);
    *out = join.out[0];
    return append(shard, &join);
}

static enum keel_status reshard(struct shard *shard, keel_value from, struct keel_axis_spec to,
                                keel_value *out)
{
    return spec_of(shard, from)->lead > 0 || to.lead > 0 ? reshard_parts(shard, from, to, out)
                                                         : append_reshard(shard, from, to, out);
}

/* The walk drops annotations; a second axis would need them. */
_Static_assert(KEEL_MESH_AXES == 1, "keel_pass_shard walks once");

/* ---- how a value lies, and how it is wanted ------------------------------------------------------------ */

static keel_value find_copy(const struct shard *shard, keel_value old, const struct keel_axis_spec *wanted)
{
    const struct laid *laid = &shard->laid[old];
    for (uint32_t i = 0; i < laid->count; i++)
        if (laid->addend_op == KEEL_OP_NONE && keel_axis_spec_equal(spec_of(shard, laid->copy[i]), wanted))
            return laid->copy[i];
    return 0;
}

static void keep_copy(struct laid *laid, keel_value copy, bool first)
{
    KEEL_ASSERT(laid->count < LAYOUTS_MAX);
    laid->copy[laid->count++] = copy;
    if (!first)
        return;
    laid->copy[laid->count - 1] = laid->copy[0];
    laid->copy[0] = copy;
}

/* Make a partial value whole, laid out as `to` says, and add what was to be added. Positions are added to
 * whole sequences. */
static enum keel_status make_whole(struct shard *shard, keel_value old, struct keel_axis_spec to)
{
    struct laid *laid = &shard->laid[old];
    const uint32_t op = laid->addend_op;
    keel_value whole;
    if (to.lead > 0 || op == KEEL_OP_ADD_POSITIONS ||
        (op == KEEL_OP_ADD_BIAS && to.kind == KEEL_SPLIT &&
         to.dim + to.dims == shard->old->values[old].shape.dims))
        to = replicated;
    KEEL_TRY(append_reshard(shard, laid->copy[0], to, &whole));
    if (op != KEEL_OP_NONE) {
        struct keel_ir_node node = {.op = op, .in = {whole, laid->addend}};
        KEEL_TRY(append_like(shard, &node, to));
        whole = node.out[0];
    }
    laid->addend_op = KEEL_OP_NONE;
    laid->count = 0;
    keep_copy(laid, whole, true);
    return KEEL_OK;
}

/* The copy of a value that lies as wanted. What is split one way comes another way by being whole first. */
static enum keel_status lay(struct shard *shard, keel_value old, struct keel_axis_spec wanted,
                            keel_value *out)
{
    *out = find_copy(shard, old, &wanted);
    if (*out != 0)
        return KEEL_OK;
    if (keel_is_partial(lies(shard, old))) {
        KEEL_TRY(make_whole(shard, old, wanted));
        return lay(shard, old, wanted, out);
    }
    keel_value from = find_copy(shard, old, &replicated);
    if (from == 0) {
        KEEL_TRY(reshard(shard, shard->laid[old].copy[0], replicated, &from));
        keep_copy(&shard->laid[old], from, false);
    }
    if (wanted.kind == KEEL_REPLICATED) {
        *out = from;
        return KEEL_OK;
    }
    KEEL_TRY(reshard(shard, from, wanted, out));
    keep_copy(&shard->laid[old], *out, false);
    return KEEL_OK;
}

/* How a value lies from here on, whatever it was made as. */
static enum keel_status settle(struct shard *shard, keel_value old, struct keel_axis_spec wanted)
{
    keel_value copy;
    struct laid *laid = &shard->laid[old];
    KEEL_TRY(lay(shard, old, wanted, &copy));
    for (uint32_t i = 1; i < laid->count; i++)
        if (laid->copy[i] == copy) {
            laid->copy[i] = laid->copy[0];
            laid->copy[0] = copy;
        }
    return KEEL_OK;
}

/* Where a partial value goes, as far as can be seen: past dropout to what it is added to, or to a reshard. */
static struct keel_axis_spec find_destination(const struct shard *shard, keel_value old)
{
    for (uint32_t n = shard->at; n < shard->old->node_count; n++) {
        const struct keel_ir_node *node = &shard->old->nodes[n];
        const bool first = node->in[0] == old, second = node->in[1] == old;
        if (node->op == KEEL_OP_RESHARD && first)
            return node->attributes.layout.axis[shard->axis];
        if (node->op == KEEL_OP_DROPOUT && first && node->in[1] == 0)
            old = node->out[0];
        if (node->op != KEEL_OP_ADD || (!first && !second))
            continue;
        const struct laid *other = &shard->laid[node->in[first ? 1 : 0]];
        if (other->count > 0 && !keel_is_partial(spec_of(shard, other->copy[0])))
            return *spec_of(shard, other->copy[0]);
    }
    return replicated;
}

/* ---- which index of a node is split -------------------------------------------------------------------- */

/* Whether one of the dimensions that are split as one is all of them, as where a batch is of one sample. */
static bool splits_one(const struct keel_shape *shape, const struct keel_axis_spec *split)
{
    uint32_t longer = 0;
    for (uint32_t d = split->dim; d < (uint32_t)split->dim + split->dims; d++)
        longer += shape->size[d] > 1;
    return split->dims == 1 || longer <= 1;
}

/* Whether a parameter, or the accumulator of one, may be so. Tiles are cut along one dimension. */
static bool param_may(const struct shard *shard, keel_value old, const struct keel_axis_spec *wanted)
{
    const struct keel_ir_value *v = &shard->old->values[old];
    if (v->kind != KEEL_VALUE_PARAM && v->kind != KEEL_VALUE_GRADIENT)
        return true;
    const keel_value param = shard->old->params[v->param].value;
    const bool summands = v->kind == KEEL_VALUE_GRADIENT && keel_is_partial(wanted);
    if (!shard->laid[param].decided)
        return wanted->kind != KEEL_SPLIT || splits_one(&v->shape, wanted);
    return keel_axis_spec_equal(lies(shard, param), summands ? &replicated : wanted);
}

/* Whether all that the node touches can lie as the index wants. */
static bool admits(const struct shard *shard, const struct keel_ir_node *node, const struct keel_rule *rule,
                   const struct keel_split_index *index)
{
    bool fits = index->letter != '\0';
    for (uint32_t i = 0; fits && i < rule->in_count; i++) {
        if (node->in[i] == 0)
            continue;
        const struct keel_axis_spec wanted =
            keel_split_of(shard->old, node, &rule->in[i], node->in[i], index);
        fits = param_may(shard, node->in[i], &wanted) &&
               (!rule->in[i].integer || find_copy(shard, node->in[i], &wanted) != 0);
    }
    for (uint32_t i = 0; fits && i < rule->out_count; i++) {
        const struct keel_axis_spec made = keel_split_result(shard->old, node, rule, i, index);
        fits = node->out[i] == 0 || param_may(shard, node->out[i], &made);
    }
    return fits;
}

enum preference { OF_PARAM, OF_OPERAND, OF_ANNOTATION, OF_ROWS, PREFERENCES };

/* What operand or result number `at` of the rule says, by one preference; letter 0: nothing. */
static struct keel_split_index ask(const struct shard *shard, const struct keel_ir_node *node,
                                   const struct keel_rule *rule, uint32_t at, enum preference preference)
{
    char why[KEEL_SPEC_TEXT_BYTES];
    const bool result = at >= rule->in_count;
    const keel_value value = result ? node->out[at - rule->in_count] : node->in[at];
    const struct keel_rule_operand *operand = result ? &rule->out[at - rule->in_count] : &rule->in[at];
    const struct keel_ir_value *v = &shard->old->values[value];
    const bool owned = v->kind == KEEL_VALUE_PARAM || v->kind == KEEL_VALUE_GRADIENT;
    struct keel_axis_spec spec = replicated;
    if (value != 0 && preference == OF_PARAM && owned)
        spec = *lies(shard, shard->old->params[v->param].value);
    else if (value != 0 && preference == OF_ANNOTATION && result && (v->annotated >> shard->axis & 1U) != 0)
        spec = v->spec.axis[shard->axis];
    else if (value != 0 && (preference == OF_OPERAND || preference == OF_ROWS) && !result && !owned)
        spec = *lies(shard, value);
    if (spec.kind != KEEL_SPLIT)
        return (struct keel_split_index){.letter = '\0'};
    struct keel_split_index index = keel_split_index(shard->old, node, operand, value, &spec, why);
    if ((preference == OF_OPERAND && index.letter == '*') || (preference == OF_ROWS && index.letter != '*'))
        index.letter = '\0';
    return index;
}

static struct keel_split_index choose(const struct shard *shard, const struct keel_ir_node *node,
                                      const struct keel_rule *rule)
{
    for (enum preference preference = 0; preference < PREFERENCES; preference++)
        for (uint32_t at = 0; at < rule->in_count + rule->out_count; at++) {
            const struct keel_split_index index = ask(shard, node, rule, at, preference);
            if (admits(shard, node, rule, &index))
                return index;
        }
    return (struct keel_split_index){.letter = '\0'};
}

/* ---- one node ------------------------------------------------------------------------------------------ */

/* A parameter that nobody said anything of takes what its first reader wants. */
static enum keel_status lay_operand(struct shard *shard, keel_value old, struct keel_axis_spec wanted,
                                    keel_value *out)
{
    struct laid *laid = &shard->laid[old];
    if (shard->old->values[old].kind == KEEL_VALUE_PARAM && !laid->decided) {
        *spec_of(shard, laid->copy[0]) = wanted;
        laid->decided = true;
    }
    return lay(shard, old, wanted, out);
}

/* What is added to a partial sum, taken off the node: operand `at`, or 0. */
static uint32_t take_addend(struct keel_ir_node *node, uint32_t *op)
{
    const bool product = node->op == KEEL_OP_LINEAR || node->op == KEEL_OP_LINEAR_TRANSPOSED;
    const uint32_t at = (product || node->op == KEEL_OP_EMBEDDING) && node->in[2] != 0 ? 2 : 0;
    *op = at == 0 ? KEEL_OP_NONE : product ? KEEL_OP_ADD_BIAS : KEEL_OP_ADD_POSITIONS;
    return at;
}

/* The results: new values, and the accumulators, whose specs are known with the first node that adds. */
static enum keel_status lay_results(struct shard *shard, const struct keel_ir_node *old,
                                    struct keel_ir_node *node)
{
    struct keel_axis_spec made[KEEL_NODE_OUT_MAX];
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
        const struct keel_ir_value *v = &shard->old->values[old->out[i]];
        if (old->out[i] == 0)
            continue;
        node->out[i] = v->kind != KEEL_VALUE_TEMP
                           ? shard->laid[old->out[i]].copy[0]
                           : new_value(shard, old->op, i, v->dtype, &v->shape, replicated);
        if (v->kind == KEEL_VALUE_GRADIENT)
            *spec_of(shard, node->out[i]) = *lies(shard, shard->old->params[v->param].value);
        if (v->kind == KEEL_VALUE_TEMP)
            keep_copy(&shard->laid[old->out[i]], node->out[i], true);
    }
    KEEL_TRY(keel_graph_status(shard->graph));
    KEEL_TRY(keel_spec_infer(shard->graph, node, shard->axis, made));
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++)
        if (node->out[i] != 0)
            *spec_of(shard, node->out[i]) = made[i];
    return append(shard, node);
}

/* How the value lies that a gradient is of: a reshard's as its operand. */
static const struct keel_axis_spec *lies_as(const struct shard *shard, keel_value old)
{
    while (shard->laid[old].same_as != 0)
        old = shard->laid[old].same_as;
    return lies(shard, old);
}

/* Where results must lie: as annotated, or as what they are the gradient of. */
static enum keel_status settle_results(struct shard *shard, const struct keel_ir_node *old)
{
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
        const struct keel_ir_value *v = &shard->old->values[old->out[i]];
        if (old->out[i] == 0 || v->kind != KEEL_VALUE_TEMP)
            continue;
        if ((v->annotated >> shard->axis & 1U) != 0)
            KEEL_TRY(settle(shard, old->out[i], v->spec.axis[shard->axis]));
        else if (v->gradient_of != 0 && shard->laid[v->gradient_of].count > 0)
            KEEL_TRY(settle(shard, old->out[i], *lies_as(shard, v->gradient_of)));
    }
    return KEEL_OK;
}

/* The 16-bit copies that amp chose are of what is read. */
static void mark_stash(struct shard *shard, const struct keel_ir_node *node)
{
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
        if ((node->from_stash >> i & 1U) != 0)
            shard->graph->values[node->in[i]].stashed_half = true;
}

static enum keel_status shard_node(struct shard *shard, const struct keel_ir_node *old)
{
    struct keel_rule rule;
    struct keel_ir_node node = {.op = old->op, .from_stash = old->from_stash, .attributes = old->attributes};
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
        if (old->in[i] != 0 && keel_is_partial(lies(shard, old->in[i])))
            KEEL_TRY(settle(shard, old->in[i], find_destination(shard, old->in[i])));
    keel_rule_read(old->op, &rule);
    const bool moves = keel_op_row(old->op)->move != NULL;
    struct keel_axis_spec moved = moves ? *lies(shard, old->in[0]) : replicated;
    const struct keel_axis_spec from = moved;
    const bool together =
        moves && moved.kind == KEEL_SPLIT && keel_op_row(old->op)->move(shard->old, old, &moved);
    const struct keel_split_index index =
        moves ? (struct keel_split_index){.letter = '\0'} : choose(shard, old, &rule);
    for (uint32_t i = 0; i < rule.in_count; i++) {
        struct keel_axis_spec wanted = together ? from : replicated;
        if (old->in[i] != 0 && index.letter != '\0')
            wanted = keel_split_of(shard->old, old, &rule.in[i], old->in[i], &index);
        if (old->in[i] != 0)
            KEEL_TRY(lay_operand(shard, old->in[i], wanted, &node.in[i]));
    }
    uint32_t addend_op = KEEL_OP_NONE;
    const struct keel_axis_spec made =
        index.letter != '\0' ? keel_split_result(shard->old, old, &rule, 0, &index) : replicated;
    if (keel_is_partial(&made) && !rule.out[0].accumulator) {
        const uint32_t at = take_addend(&node, &addend_op);
        shard->laid[old->out[0]].addend = at != 0 ? node.in[at] : 0;
        node.in[at] = at != 0 ? 0 : node.in[at];
    }
    KEEL_TRY(lay_results(shard, old, &node));
    if (addend_op != KEEL_OP_NONE)
        shard->laid[old->out[0]].addend_op = addend_op;
    mark_stash(shard, &node);
    return settle_results(shard, old);
}

/* A reshard of the model is one of its operand's copies; of a partial sum it says how that lies from here on.
 */
static enum keel_status shard_reshard(struct shard *shard, const struct keel_ir_node *old)
{
    keel_value copy;
    const struct keel_axis_spec to = old->attributes.layout.axis[shard->axis];
    if (keel_is_partial(lies(shard, old->in[0])))
        KEEL_TRY(settle(shard, old->in[0], to));
    KEEL_TRY(lay(shard, old->in[0], to, &copy));
    shard->laid[old->out[0]] = (struct laid){.copy = {copy}, .count = 1, .same_as = old->in[0]};
    return KEEL_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

/* Inputs, parameters, accumulators and losses, in the order in which they were made. */
static enum keel_status lay_given(struct shard *shard)
{
    for (keel_value value = 1; value < shard->old->value_count; value++) {
        const struct keel_ir_value *v = &shard->old->values[value];
        if (v->kind == KEEL_VALUE_TEMP)
            continue;
        const keel_value made =
            keel_graph_value(shard->graph, v->name, v->dtype, v->kind, v->shape, v->param);
        KEEL_TRY(keel_graph_status(shard->graph));
        shard->graph->values[made].part = v->part;
        struct laid *laid = &shard->laid[value];
        *laid = (struct laid){.copy = {made}, .count = 1, .decided = (v->annotated >> shard->axis & 1U) != 0};
        if (laid->decided)
            *spec_of(shard, made) = v->spec.axis[shard->axis];
    }
    return KEEL_OK;
}

/* What the graph knows of its values, by their new numbers. */
static void renumber(struct shard *shard)
{
    struct keel_graph *graph = shard->graph;
    for (uint32_t i = 0; i < graph->param_count; i++) {
        graph->params[i].value = shard->laid[graph->params[i].value].copy[0];
        if (graph->params[i].gradient != 0)
            graph->params[i].gradient = shard->laid[graph->params[i].gradient].copy[0];
    }
    if (graph->output != 0)
        graph->output = shard->laid[graph->output].copy[0];
    if (graph->loss != 0)
        graph->loss = shard->laid[graph->loss].copy[0];
}

/* What a user calls what is cut. */
static const char *units_of(const struct keel_ir_value *value, enum keel_mesh_axis axis)
{
    const struct keel_axis_spec *spec = &value->spec.axis[axis];
    if (spec->unit > 1)
        return "heads";
    if (value->kind != KEEL_VALUE_PARAM && spec->dim + spec->dims < value->shape.dims)
        return "tokens of a batch";
    return spec->dim == 0 && value->shape.dims > 1 ? "rows, as of a vocabulary" : "columns of its width";
}

/* Name the value that can be cut into fewest slices, if that is too few. */
static enum keel_status check_slices(const struct shard *shard)
{
    uint64_t least = UINT64_MAX;
    const struct keel_ir_value *narrowest = NULL;
    for (keel_value value = 1; value < shard->graph->value_count; value++) {
        const struct keel_ir_value *v = &shard->graph->values[value];
        const struct keel_axis_spec *spec = &v->spec.axis[shard->axis];
        const uint64_t units = spec->kind == KEEL_SPLIT ? keel_axis_spec_units(&v->shape, spec) : least;
        if (units >= least)
            continue;
        least = units;
        narrowest = v;
    }
    if (least >= shard->slices)
        return KEEL_OK;
    char spec[KEEL_SPEC_TEXT_BYTES], shape[80];
    keel_axis_spec_print(&narrowest->spec.axis[shard->axis], spec);
    shape[keel_shape_print(&narrowest->shape, shape, sizeof shape - 1)] = '\0';
    return keel_fail(
        KEEL_INVALID,
        "job.tensor = %u: %s %s is %s, which has %llu units that stay together (%s): job.tensor can "
        "be 1 to %llu",
        shard->slices, narrowest->name, shape, spec, (unsigned long long)least,
        units_of(narrowest, shard->axis), (unsigned long long)least);
}

static enum keel_status walk(struct shard *shard)
{
    KEEL_TRY(lay_given(shard));
    for (shard->at = 0; shard->at < shard->old->node_count; shard->at++) {
        const struct keel_ir_node *node = &shard->old->nodes[shard->at];
        shard->backward = node->backward;
        if (node->op == KEEL_OP_RESHARD)
            KEEL_TRY(shard_reshard(shard, node));
        else
            KEEL_TRY(shard_node(shard, node));
    }
    renumber(shard);
    return check_slices(shard);
}

static enum keel_status shard_axis(struct keel_graph *graph, enum keel_mesh_axis axis, uint32_t slices)
{
    struct keel_graph *old = NULL;
    struct laid *laid = NULL;
    enum keel_status status = keel_graph_copy(graph, &old);
    if (status == KEEL_OK)
        status = keel_alloc(graph->value_count, sizeof *laid, (void *)&laid);
    if (status == KEEL_OK) {
        struct shard shard = {.graph = graph, .old = old, .laid = laid, .axis = axis, .slices = slices};
        graph->value_count = 1;
        graph->node_count = 0;
        status = walk(&shard);
    }
    keel_free(laid);
    keel_graph_destroy(old);
    return status;
}

enum keel_status keel_pass_shard(struct keel_graph *graph, const uint32_t slices[KEEL_MESH_AXES])
{
    return shard_axis(graph, KEEL_AXIS_TENSOR, slices[KEEL_AXIS_TENSOR]);
}
