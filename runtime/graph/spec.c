/* spec.c - see spec.h: specs as text, what a split of an operand splits of a node, and what follows for the
 * results.
 *
 * Owns no graph and changes none. pass_shard.c chooses by it which index of a node is split, pass_check.c
 * holds a graph against it. */
#include "spec.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- text ---------------------------------------------------------------------------------------------- */

void keel_axis_spec_print(const struct keel_axis_spec *spec, char out[KEEL_SPEC_TEXT_BYTES])
{
    static const char *const kinds[] = {"replicated", "split", "partial", "partial bits"};
    size_t used = (size_t)snprintf(out, KEEL_SPEC_TEXT_BYTES, "%s", kinds[spec->kind]);
    if (spec->kind != KEEL_SPLIT)
        return;
    used += (size_t)snprintf(out + used, KEEL_SPEC_TEXT_BYTES - used, "(%u", spec->dim);
    if (spec->dims > 1)
        used += (size_t)snprintf(out + used, KEEL_SPEC_TEXT_BYTES - used, "-%u", spec->dim + spec->dims - 1);
    if (spec->outer > 1)
        used += (size_t)snprintf(out + used, KEEL_SPEC_TEXT_BYTES - used, ", outer %u", spec->outer);
    if (spec->unit > 1)
        used += (size_t)snprintf(out + used, KEEL_SPEC_TEXT_BYTES - used, ", unit %u", spec->unit);
    if (spec->lead > 1)
        used += (size_t)snprintf(out + used, KEEL_SPEC_TEXT_BYTES - used, ", lead %u", spec->lead);
    snprintf(out + used, KEEL_SPEC_TEXT_BYTES - used, ")");
}

void keel_spec_print(const struct keel_spec *spec, char out[KEEL_SPEC_TEXT_BYTES])
{
    char text[KEEL_SPEC_TEXT_BYTES];
    size_t used = 0;
    for (uint32_t a = 0; a < KEEL_MESH_AXES && used < KEEL_SPEC_TEXT_BYTES; a++) {
        keel_axis_spec_print(&spec->axis[a], text);
        used += (size_t)snprintf(out + used, KEEL_SPEC_TEXT_BYTES - used, "%s%s", a > 0 ? ", " : "", text);
    }
}

enum keel_status keel_spec_refuse(const struct keel_graph *graph, const struct keel_ir_node *node,
                                  enum keel_mesh_axis axis, const char *format, ...)
{
    char why[256], operands[320] = "", text[KEEL_SPEC_TEXT_BYTES];
    size_t used = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX && used < sizeof operands; i++) {
        if (node->in[i] == 0)
            continue;
        keel_axis_spec_print(&graph->values[node->in[i]].spec.axis[axis], text);
        used += (size_t)snprintf(operands + used, sizeof operands - used, "%s%s: %s", used > 0 ? ", " : "",
                                 graph->values[node->in[i]].name, text);
    }
    return keel_fail(KEEL_INVALID, "%s(%s): %s; the rule is %s", keel_op_row(node->op)->name, operands, why,
                     keel_op_row(node->op)->rule);
}

/* ---- one spec ------------------------------------------------------------------------------------------ */

bool keel_axis_spec_equal(const struct keel_axis_spec *a, const struct keel_axis_spec *b)
{
    return a->kind == b->kind &&
           (a->kind != KEEL_SPLIT || (a->dim == b->dim && a->dims == b->dims && a->outer == b->outer &&
                                      a->unit == b->unit && a->lead == b->lead));
}

static uint64_t split_size(const struct keel_shape *shape, const struct keel_axis_spec *split)
{
    uint64_t size = 1;
    for (uint32_t i = 0; i < split->dims; i++)
        size *= shape->size[split->dim + i];
    return size;
}

uint64_t keel_axis_spec_each(const struct keel_axis_spec *split)
{
    return ((uint64_t)split->outer + (split->lead > 1 ? split->lead - 1 : 0)) * split->unit;
}

uint64_t keel_axis_spec_units(const struct keel_shape *shape, const struct keel_axis_spec *split)
{
    return split_size(shape, split) / keel_axis_spec_each(split);
}

uint32_t keel_axis_spec_dim(const struct keel_shape *shape, const struct keel_axis_spec *split)
{
    const uint32_t last = (uint32_t)split->dim + split->dims - 1;
    uint32_t d = split->dim;
    while (d < last && shape->size[d] == 1)
        d++;
    return d;
}

enum keel_status keel_axis_spec_resolve(const struct keel_ir_value *value, struct keel_axis_spec *spec)
{
    char text[KEEL_SPEC_TEXT_BYTES], shape[80];
    const uint32_t dims = value->shape.dims;
    if (spec->kind != KEEL_SPLIT) {
        *spec = (struct keel_axis_spec){.kind = spec->kind};
        return KEEL_OK;
    }
    if (spec->dim == KEEL_SPLIT_ROWS) {
        spec->dim = 0;
        spec->dims = (uint8_t)(dims > 1 ? dims - 1 : 0);
    } else if (spec->dims == 0) {
        spec->dims = 1;
    }
    spec->outer = spec->outer == 0 ? 1 : spec->outer;
    spec->unit = spec->unit == 0 ? 1 : spec->unit;
    if (spec->dims > 0 && (uint32_t)spec->dim + spec->dims <= dims &&
        split_size(&value->shape, spec) % keel_axis_spec_each(spec) == 0)
        return KEEL_OK;
    keel_axis_spec_print(spec, text);
    shape[keel_shape_print(&value->shape, shape, sizeof shape - 1)] = '\0';
    return keel_fail(KEEL_INVALID,
                     "%s of shape %s cannot be %s: that is no dimension, or none of as many units",
                     value->name, shape, text);
}

/* ---- indices of a node --------------------------------------------------------------------------------- */

/* The mark of an index in the row's `split`; false: the row has it not. */
static bool find_mark(uint32_t op, char letter, char *mark)
{
    const char *split = keel_op_row(op)->split;
    const char *found = split == NULL || letter == '\0' ? NULL : strchr(split, letter);
    if (found == NULL)
        return false;
    *mark = strchr("/!0", found[1]) != NULL ? found[1] : '\0';
    return true;
}

/* Of attention and of rotary positions, whose first operand is qkv, or queries alone. */
static uint64_t head_width(const struct keel_graph *graph, const struct keel_ir_node *node)
{
    const struct keel_shape *qkv = &graph->values[node->in[0]].shape;
    const bool rotary = node->op == KEEL_OP_ROTARY;
    const bool crosses = node->op == KEEL_OP_CROSS_ATTENTION || node->op == KEEL_OP_CROSS_ATTENTION_GRAD;
    const uint32_t heads = rotary ? node->attributes.rotary.heads : node->attributes.attention.heads;
    return qkv->size[qkv->dims - 1] / (crosses ? 1 : 3) / heads;
}

/* Heads in groups that share a head of keys and of values, as an operation has them; kv_heads 0: it has none.
 */
struct groups {
    uint32_t heads, kv_heads;
    uint64_t width; /* columns of a head */
};
static struct groups groups_of(const struct keel_graph *graph, const struct keel_ir_node *node)
{
    const struct keel_shape *row = &graph->values[node->in[0]].shape;
    const uint64_t columns = row->size[row->dims - 1];
    const struct keel_attributes *of = &node->attributes;
    switch (node->op) {
    case KEEL_OP_GROUPED_ATTENTION:
    case KEEL_OP_GROUPED_ATTENTION_GRAD:
        return (struct groups){of->attention.heads, of->attention.kv_heads,
                               columns / (of->attention.heads + 2 * (uint64_t)of->attention.kv_heads)};
    case KEEL_OP_GROUPED_ROTARY:
        return (struct groups){of->rotary.heads, of->rotary.kv_heads,
                               columns / (of->rotary.heads + 2 * (uint64_t)of->rotary.kv_heads)};
    case KEEL_OP_PAIR_HALVES:
    case KEEL_OP_HEADS_JOIN:
        return (struct groups){of->joined.heads, of->joined.kv_heads, columns / of->joined.heads};
    case KEEL_OP_HEADS_PART:
        return (struct groups){of->joined.heads, of->joined.kv_heads,
                               columns / (of->joined.heads + 2 * (uint64_t)of->joined.kv_heads)};
    default:
        return (struct groups){0, 0, 0};
    }
}

/* How a dimension of heads lies where a slice's unit is one group: u and U are rows of q, k and v, W those of
 * queries, V of keys or values, P the part, H heads. kind REPLICATED: the letter is none of these. */
static struct keel_axis_spec split_of_group(const struct keel_ir_node *node, const struct groups *groups,
                                            char letter)
{
    KEEL_ASSERT(groups->kv_heads > 0);
    const uint32_t each = groups->heads / groups->kv_heads;
    struct keel_axis_spec spec = {.kind = KEEL_SPLIT, .dims = 1, .outer = 1, .unit = (uint32_t)groups->width};
    if (letter == 'P')
        letter = node->attributes.joined.part == 0 ? 'W' : 'V';
    if (letter == 'u' || letter == 'U') {
        spec.outer = 3;
        spec.lead = each > 1 ? each : 0;
    } else if (letter == 'W') {
        spec.unit *= each;
    } else if (letter == 'H') {
        spec.unit = each;
    } else if (letter != 'V') {
        return (struct keel_axis_spec){.kind = KEEL_REPLICATED};
    }
    return spec;
}

/* How many dimensions of a value its rule's `*` takes. */
static uint32_t leading_of(const struct keel_rule_operand *operand, const struct keel_shape *shape)
{
    return operand->star ? shape->dims - operand->count : 0;
}

static struct keel_split_index no_index(char why[KEEL_SPEC_TEXT_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static struct keel_split_index no_index(char why[KEEL_SPEC_TEXT_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, KEEL_SPEC_TEXT_BYTES, format, arguments);
    va_end(arguments);
    return (struct keel_split_index){.letter = '\0'};
}

/* Of groups of heads: the index is H, and its unit so many groups. */
static struct keel_split_index index_of_groups(const struct keel_ir_node *node, const struct groups *groups,
                                               char letter, const struct keel_axis_spec *split,
                                               char why[KEEL_SPEC_TEXT_BYTES])
{
    const struct keel_axis_spec one = split_of_group(node, groups, letter);
    if (one.kind != KEEL_SPLIT)
        return no_index(why, "index %c may not be split", letter);
    if (split->outer != one.outer || split->lead != one.lead || split->unit % one.unit != 0)
        return no_index(why, "index %c: whole groups of heads only, of %u", letter,
                        groups->heads / groups->kv_heads);
    return (struct keel_split_index){
        .letter = 'H',
        .mark = '/',
        .part = {.kind = KEEL_SPLIT, .dims = 1, .outer = 1, .unit = split->unit / one.unit}};
}

struct keel_split_index keel_split_index(const struct keel_graph *graph, const struct keel_ir_node *node,
                                         const struct keel_rule_operand *operand, keel_value value,
                                         const struct keel_axis_spec *split, char why[KEEL_SPEC_TEXT_BYTES])
{
    const uint32_t leading = leading_of(operand, &graph->values[value].shape);
    struct keel_split_index index = {.letter = '*', .part = *split};
    uint32_t factor = 1;
    if (operand->any)
        return no_index(why, "of operands of any shape none may be split");
    if (split->dim >= leading) {
        if (split->dims > 1)
            return no_index(why, "several dimensions split as one are no index of it");
        const struct keel_rule_dimension *dimension = &operand->dimension[split->dim - leading];
        index.letter = dimension->letter;
        factor = dimension->factor;
        index.part.dim = 0;
    } else if ((uint32_t)split->dim + split->dims > leading) {
        return no_index(why, "several dimensions split as one are no index of it");
    }
    const struct groups groups = groups_of(graph, node);
    if (groups.kv_heads > 0 && strchr("uUWVPH", index.letter) != NULL)
        return index_of_groups(node, &groups, index.letter, split, why);
    if (split->lead > 0)
        return no_index(why, "parts that are not alike are no index of it");
    const bool heads = index.letter == 'H' && find_mark(node->op, 'w', &index.mark) && index.mark == '/';
    if (heads) {
        index.letter = 'w';
        index.part.unit = (uint32_t)(index.part.unit * head_width(graph, node));
    }
    if (!find_mark(node->op, index.letter, &index.mark))
        return no_index(why, "index %c may not be split", index.letter == '\0' ? '?' : index.letter);
    if (index.part.outer % factor != 0)
        return no_index(why, "index %c: the %u parts must be split alike, outer %u", index.letter, factor,
                        factor);
    index.part.outer = (uint8_t)(index.part.outer / factor);
    if (index.mark == '/' && (index.part.outer != 1 || index.part.unit % head_width(graph, node) != 0))
        return no_index(why, "index %c: whole heads only, of %llu", index.letter,
                        (unsigned long long)head_width(graph, node));
    return index;
}

/* The place of a letter among the dimensions of an operand; its count: none. */
static uint32_t place_of(const struct keel_rule_operand *operand, char letter)
{
    uint32_t at = 0;
    while (at < operand->count && operand->dimension[at].letter != letter)
        at++;
    return at;
}

/* The place of the dimension of groups of heads; the count of the operand: it has none. */
static uint32_t place_of_groups(const struct keel_rule_operand *operand)
{
    uint32_t at = 0;
    while (at < operand->count && strchr("uUWVPH", operand->dimension[at].letter) == NULL)
        at++;
    return at;
}

static bool is_of_groups(const struct keel_split_index *index)
{
    return index->letter == 'H' && index->mark == '/';
}

static bool has_index(const struct keel_rule_operand *operand, const struct keel_split_index *index)
{
    if (is_of_groups(index))
        return place_of_groups(operand) < operand->count;
    return index->letter == '*' ? operand->star
                                : place_of(operand, index->letter) < operand->count ||
                                      (index->mark == '/' && place_of(operand, 'H') < operand->count);
}

struct keel_axis_spec keel_split_of(const struct keel_graph *graph, const struct keel_ir_node *node,
                                    const struct keel_rule_operand *operand, keel_value value,
                                    const struct keel_split_index *index)
{
    struct keel_axis_spec spec = index->part;
    if (!has_index(operand, index))
        return (struct keel_axis_spec){.kind = KEEL_REPLICATED};
    if (index->letter == '*')
        return spec;
    if (is_of_groups(index)) {
        const struct groups groups = groups_of(graph, node);
        const uint32_t place = place_of_groups(operand);
        spec = split_of_group(node, &groups, operand->dimension[place].letter);
        spec.unit *= index->part.unit;
        spec.dim = (uint8_t)(leading_of(operand, &graph->values[value].shape) + place);
        return spec;
    }
    uint32_t at = place_of(operand, index->letter);
    if (at == operand->count) {
        at = place_of(operand, 'H');
        spec.unit = (uint32_t)(spec.unit / head_width(graph, node));
    }
    spec.dim = (uint8_t)(leading_of(operand, &graph->values[value].shape) + at);
    spec.dims = 1;
    spec.outer = (uint8_t)(spec.outer * operand->dimension[at].factor);
    return spec;
}

/* Whether a float operand that is there has the index: then a result without it is a sum over it. */
static bool sums_over(const struct keel_ir_node *node, const struct keel_rule *rule,
                      const struct keel_split_index *index)
{
    bool found = false;
    for (uint32_t i = 0; i < rule->in_count; i++)
        found = found || (node->in[i] != 0 && !rule->in[i].integer && has_index(&rule->in[i], index));
    return found;
}

struct keel_axis_spec keel_split_result(const struct keel_graph *graph, const struct keel_ir_node *node,
                                        const struct keel_rule *rule, uint32_t out,
                                        const struct keel_split_index *index)
{
    const struct keel_rule_operand *result = &rule->out[out];
    if (has_index(result, index))
        return keel_split_of(graph, node, result, node->out[out], index);
    if (index->mark == '!' || !sums_over(node, rule, index))
        return (struct keel_axis_spec){.kind = KEEL_REPLICATED};
    return (struct keel_axis_spec){.kind = index->mark == '0' ? KEEL_PARTIAL_BITS : KEEL_PARTIAL};
}

/* ---- results of a node --------------------------------------------------------------------------------- */

static const struct keel_axis_spec *spec_of(const struct keel_graph *graph, keel_value value,
                                            enum keel_mesh_axis axis)
{
    return &graph->values[value].spec.axis[axis];
}

/* The operand, else the accumulator, that says which index is split; 0: none is. */
static keel_value find_split(const struct keel_graph *graph, const struct keel_ir_node *node,
                             const struct keel_rule *rule, enum keel_mesh_axis axis,
                             const struct keel_rule_operand **out)
{
    for (uint32_t i = 0; i < rule->in_count + rule->out_count; i++) {
        const bool result = i >= rule->in_count;
        const keel_value value = result ? node->out[i - rule->in_count] : node->in[i];
        *out = result ? &rule->out[i - rule->in_count] : &rule->in[i];
        if (value != 0 && (!result || (*out)->accumulator) && spec_of(graph, value, axis)->kind == KEEL_SPLIT)
            return value;
    }
    return 0;
}

bool keel_split_of_node(const struct keel_graph *graph, const struct keel_ir_node *node,
                        enum keel_mesh_axis axis, struct keel_split_index *index, keel_value *from)
{
    struct keel_rule rule;
    const struct keel_rule_operand *operand = NULL;
    char why[KEEL_SPEC_TEXT_BYTES];
    keel_rule_read(node->op, &rule);
    *from = find_split(graph, node, &rule, axis, &operand);
    if (*from == 0)
        return false;
    *index = keel_split_index(graph, node, operand, *from, spec_of(graph, *from, axis), why);
    return index->letter != '\0';
}

/* Whether every operand lies as the index wants it, and nothing is added that each slice would add. */
static enum keel_status check_operands(const struct keel_graph *graph, const struct keel_ir_node *node,
                                       const struct keel_rule *rule, enum keel_mesh_axis axis,
                                       const struct keel_split_index *index, bool partial)
{
    char text[KEEL_SPEC_TEXT_BYTES];
    for (uint32_t i = 0; i < rule->in_count; i++) {
        if (node->in[i] == 0)
            continue;
        const struct keel_axis_spec wanted = keel_split_of(graph, node, &rule->in[i], node->in[i], index);
        keel_axis_spec_print(&wanted, text);
        if (!keel_axis_spec_equal(&wanted, spec_of(graph, node->in[i], axis)))
            return keel_spec_refuse(graph, node, axis, "index %c is split, so %s must be %s", index->letter,
                                    graph->values[node->in[i]].name, text);
        if (partial && wanted.kind != KEEL_SPLIT && !rule->in[i].integer)
            return keel_spec_refuse(
                graph, node, axis,
                "the result is a partial sum over index %c, to which each slice would add "
                "%s: add it behind the sum",
                index->letter, graph->values[node->in[i]].name);
    }
    return KEEL_OK;
}

/* An operation that moves elements: all its operands alike, and so its result. */
static enum keel_status infer_moved(const struct keel_graph *graph, const struct keel_ir_node *node,
                                    enum keel_mesh_axis axis, struct keel_axis_spec out[KEEL_NODE_OUT_MAX])
{
    struct keel_axis_spec spec = *spec_of(graph, node->in[0], axis);
    for (uint32_t i = 1; i < KEEL_NODE_IN_MAX; i++)
        if (node->in[i] != 0 && !keel_axis_spec_equal(&spec, spec_of(graph, node->in[i], axis)))
            return keel_spec_refuse(graph, node, axis, "its operands must lie alike");
    if (spec.kind == KEEL_SPLIT && !keel_op_row(node->op)->move(graph, node, &spec))
        return keel_spec_refuse(graph, node, axis,
                                "what is split does not stay together in the result: gather it first");
    out[0] = spec;
    return KEEL_OK;
}

static enum keel_status infer_reshard(const struct keel_graph *graph, const struct keel_ir_node *node,
                                      enum keel_mesh_axis axis, struct keel_axis_spec out[KEEL_NODE_OUT_MAX])
{
    char text[KEEL_SPEC_TEXT_BYTES];
    const struct keel_axis_spec *from = spec_of(graph, node->in[0], axis);
    const struct keel_axis_spec *to = &node->attributes.layout.axis[axis];
    keel_axis_spec_print(to, text);
    if (keel_is_partial(to) && !keel_axis_spec_equal(from, to))
        return keel_spec_refuse(graph, node, axis, "nothing becomes %s", text);
    if (from->kind == KEEL_SPLIT && to->kind == KEEL_SPLIT && !keel_axis_spec_equal(from, to))
        return keel_spec_refuse(graph, node, axis, "to %s: gather it first", text);
    out[0] = *to;
    return KEEL_OK;
}

static enum keel_status infer_split(const struct keel_graph *graph, const struct keel_ir_node *node,
                                    enum keel_mesh_axis axis, struct keel_axis_spec out[KEEL_NODE_OUT_MAX])
{
    struct keel_rule rule;
    const struct keel_rule_operand *operand = NULL;
    char why[KEEL_SPEC_TEXT_BYTES];
    keel_rule_read(node->op, &rule);
    const keel_value value = find_split(graph, node, &rule, axis, &operand);
    if (value == 0)
        return KEEL_OK;
    const struct keel_split_index index =
        keel_split_index(graph, node, operand, value, spec_of(graph, value, axis), why);
    if (index.letter == '\0')
        return keel_spec_refuse(graph, node, axis, "%s, as it is in %s: gather it first", why,
                                graph->values[value].name);
    bool partial = false;
    for (uint32_t i = 0; i < rule.out_count; i++) {
        if (node->out[i] == 0)
            continue;
        out[i] = keel_split_result(graph, node, &rule, i, &index);
        partial = partial || (keel_is_partial(&out[i]) && !rule.out[i].accumulator);
    }
    return check_operands(graph, node, &rule, axis, &index, partial);
}

enum keel_status keel_spec_infer(const struct keel_graph *graph, const struct keel_ir_node *node,
                                 enum keel_mesh_axis axis, struct keel_axis_spec out[KEEL_NODE_OUT_MAX])
{
    memset(out, 0, KEEL_NODE_OUT_MAX * sizeof *out);
    if (node->op == KEEL_OP_RESHARD)
        return infer_reshard(graph, node, axis, out);
    if (keel_op_row(node->op)->move != NULL)
        return infer_moved(graph, node, axis, out);
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
        if (node->in[i] != 0 && keel_is_partial(spec_of(graph, node->in[i], axis)))
            return keel_spec_refuse(graph, node, axis,
                                    "it takes no partial sum, as %s is: make it whole first",
                                    graph->values[node->in[i]].name);
    return infer_split(graph, node, axis, out);
}
