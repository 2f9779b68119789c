/* ops_rule.c - what follows from the index rules of the table: shapes, FLOPs, bytes.
 *
 * Promises that a node which passes keel_op_infer has operands whose shapes and types fit each other, so
 * that later passes need not look again. Leaves the rows to the families. */
#include "rule.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- reading a rule ------------------------------------------------------------------------------------ */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* One operand, up to ',' or "->" or the end; returns where it stops. */
static const char *read_operand(const char *text, struct keel_rule_operand *out)
{
    *out = (struct keel_rule_operand){.count = 0};
    for (; *text != '\0' && *text != ',' && *text != '-'; text++) {
        if (*text == '#') {
            out->integer = true;
        } else if (*text == '+') {
            out->accumulator = true;
        } else if (*text == '?') {
            out->optional = true;
        } else if (*text == '~') {
            out->any = true;
        } else if (*text == '*') {
            out->star = true;
        } else {
            KEEL_ASSERT(out->count < KEEL_DIMS_MAX);
            struct keel_rule_dimension *dimension = &out->dimension[out->count++];
            bool digit = *text >= '0' && *text <= '9';
            dimension->factor = digit ? (uint32_t)(*text - '0') : 1;
            if (digit && is_letter(text[1]))
                text++;
            dimension->letter = '\0';
            if (is_letter(*text))
                dimension->letter = *text;
        }
    }
    return text;
}

void keel_rule_read(uint32_t op, struct keel_rule *out)
{
    const char *text = keel_op_row(op)->rule;
    *out = (struct keel_rule){.in_count = 0};
    while (*text != '\0' && *text != '-') {
        KEEL_ASSERT(out->in_count < KEEL_NODE_IN_MAX);
        text = read_operand(text, &out->in[out->in_count++]);
        text += *text == ',';
    }
    for (text += 2; *text != '\0'; text += *text == ',') {
        KEEL_ASSERT(out->out_count < KEEL_NODE_OUT_MAX);
        text = read_operand(text, &out->out[out->out_count++]);
    }
}

struct keel_op_results keel_op_results(uint32_t op)
{
    struct keel_rule rule;
    keel_rule_read(op, &rule);
    struct keel_op_results results = {0, 0, 0, 0};
    for (uint32_t i = 0; i < rule.out_count; i++) {
        results.all |= 1U << i;
        results.optional |= rule.out[i].optional ? 1U << i : 0;
        results.accumulated |= rule.out[i].accumulator ? 1U << i : 0;
        results.integer |= rule.out[i].integer ? 1U << i : 0;
    }
    return results;
}

/* ---- fitting operands to a rule ------------------------------------------------------------------------ */

/* What the letters stand for, as found so far; size 0 is not yet found. */
struct binding {
    uint64_t size[KEEL_INFER];
    struct keel_shape star;
    bool star_found;
};

size_t keel_shape_print(const struct keel_shape *shape, char *out, size_t bytes)
{
    size_t used = 0;
    for (uint32_t i = 0; i < shape->dims && i < KEEL_DIMS_MAX && used < bytes; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%llu", i == 0 ? "[" : ",",
                                 (unsigned long long)shape->size[i]);
    if (used < bytes)
        used += (size_t)snprintf(out + used, bytes - used, shape->dims == 0 ? "[]" : "]");
    return used < bytes ? used : bytes;
}

/* INVALID: "linear([4,8,16], [17,48]): k is 16 and 17; the rule is ..." */
static enum keel_status misfit(const struct keel_graph *graph, const struct keel_ir_node *node,
                               const char *what)
{
    char shapes[256] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX + KEEL_NODE_OUT_MAX; i++) {
        keel_value value = i < KEEL_NODE_IN_MAX ? node->in[i] : node->out[i - KEEL_NODE_IN_MAX];
        if (value == 0 || used + 3 > sizeof shapes)
            continue;
        if (used > 0)
            used += (size_t)snprintf(shapes + used, sizeof shapes - used, ", ");
        if (value < graph->value_count)
            used += keel_shape_print(&graph->values[value].shape, shapes + used, sizeof shapes - used);
        else
            used += (size_t)snprintf(shapes + used, sizeof shapes - used, "?");
    }
    return keel_fail(KEEL_INVALID, "%s(%s): %s; the rule is %s", keel_op_row(node->op)->name, shapes, what,
                     keel_op_row(node->op)->rule);
}

static const char *bind_star(struct binding *binding, const struct keel_ir_value *value, uint32_t dims,
                             char *text, size_t bytes)
{
    if (!binding->star_found) {
        binding->star_found = true;
        binding->star = value->shape;
        binding->star.dims = dims;
        if (keel_shape_count(&binding->star) <= UINT32_MAX || dims == value->shape.dims)
            return NULL;
        snprintf(text, bytes, "%s has more than 2^32 - 1 rows", value->name);
        return text;
    }
    bool same = binding->star.dims == dims;
    for (uint32_t i = 0; same && i < dims; i++)
        same = binding->star.size[i] == value->shape.size[i];
    if (same)
        return NULL;
    snprintf(text, bytes, "leading dimensions differ");
    return text;
}

/* What is wrong, or NULL. */
static const char *bind(struct binding *binding, const struct keel_rule_operand *operand,
                        const struct keel_ir_value *value, char *text, size_t bytes)
{
    if (operand->any)
        return NULL;
    uint32_t dims = value->shape.dims;
    if (dims < operand->count || (dims > operand->count && !operand->star)) {
        snprintf(text, bytes, "%s has %u dimensions", value->name, dims);
        return text;
    }
    uint32_t leading = dims - operand->count;
    if (operand->star) {
        const char *wrong = bind_star(binding, value, leading, text, bytes);
        if (wrong != NULL)
            return wrong;
    }
    for (uint32_t i = 0; i < operand->count; i++) {
        const struct keel_rule_dimension *dimension = &operand->dimension[i];
        uint64_t size = value->shape.size[leading + i];
        size_t letter = (size_t)dimension->letter;
        uint64_t known = letter == 0 ? 1 : binding->size[letter];
        if (size % dimension->factor != 0) {
            snprintf(text, bytes, "%llu is no multiple of %u", (unsigned long long)size, dimension->factor);
            return text;
        }
        if (known != 0 && known * dimension->factor != size) {
            snprintf(text, bytes, "%c is %llu and %llu",
                     letter == 0 ? '0' + (int)dimension->factor : (int)letter, (unsigned long long)known,
                     (unsigned long long)(size / dimension->factor));
            return text;
        }
        binding->size[letter] = size / dimension->factor;
    }
    return NULL;
}

bool keel_infer_refuse(struct keel_infer *infer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(infer->why, sizeof infer->why, format, arguments);
    va_end(arguments);
    return false;
}

/* The upper-case letters, which must agree with what operands said. */
static enum keel_status infer_dims(const struct keel_graph *graph, const struct keel_ir_node *node,
                                   struct binding *binding)
{
    struct keel_infer infer = {.graph = graph, .node = node};
    memcpy(infer.size, binding->size, sizeof infer.size);
    memset(infer.size + 'A', 0, ('Z' - 'A' + 1) * sizeof *infer.size);
    if (!keel_op_row(node->op)->infer_dims(&infer))
        return misfit(graph, node, infer.why);
    for (int letter = 'A'; letter <= 'Z'; letter++) {
        const uint64_t found = binding->size[letter];
        if (found != 0 && found != infer.size[letter]) {
            (void)keel_infer_refuse(&infer, "%c is %llu and must be %llu", letter, (unsigned long long)found,
                                    (unsigned long long)infer.size[letter]);
            return misfit(graph, node, infer.why);
        }
        binding->size[letter] = infer.size[letter];
    }
    return KEEL_OK;
}

static enum keel_status bind_operands(const struct keel_graph *graph, const struct keel_ir_node *node,
                                      const struct keel_rule *rule, struct binding *binding)
{
    char text[128];
    for (uint32_t i = 0; i < rule->in_count + rule->out_count; i++) {
        bool result = i >= rule->in_count;
        const struct keel_rule_operand *operand = result ? &rule->out[i - rule->in_count] : &rule->in[i];
        if (result && !operand->accumulator)
            continue;
        keel_value value = result ? node->out[i - rule->in_count] : node->in[i];
        if (value == 0 && operand->optional)
            continue;
        if (value == 0 || value >= graph->value_count)
            return misfit(graph, node, "an operand is missing");
        const char *wrong = bind(binding, operand, &graph->values[value], text, sizeof text);
        if (wrong != NULL)
            return misfit(graph, node, wrong);
    }
    return keel_op_row(node->op)->infer_dims != NULL ? infer_dims(graph, node, binding) : KEEL_OK;
}

static void infer_result(const struct binding *binding, const struct keel_rule_operand *operand,
                         struct keel_shape *shape)
{
    uint32_t dims = 0;
    *shape = (struct keel_shape){.dims = 0};
    for (uint32_t i = 0; operand->star && i < binding->star.dims; i++)
        shape->size[dims++] = binding->star.size[i];
    for (uint32_t i = 0; i < operand->count; i++) {
        size_t letter = (size_t)operand->dimension[i].letter;
        if (letter != 0 && binding->size[letter] == 0)
            continue;
        shape->size[dims++] = operand->dimension[i].factor * (letter == 0 ? 1 : binding->size[letter]);
    }
    shape->dims = dims;
}

/* Operands whose gradients are accumulators of the kernel, when a model asks for the node. */
static enum keel_status check_params(const struct keel_graph *graph, const struct keel_ir_node *node)
{
    const char *digit = keel_op_row(node->op)->params;
    char text[KEEL_VALUE_NAME_BYTES + 64];
    for (; digit != NULL && *digit != '\0' && !graph->differentiated; digit++) {
        const keel_value value = node->in[*digit - '0'];
        if (value == 0 || value >= graph->value_count)
            continue;
        const struct keel_ir_value *v = &graph->values[value];
        const bool param = v->kind == KEEL_VALUE_PARAM;
        if (param && !graph->params[v->param].statistic)
            continue;
        snprintf(text, sizeof text, "%s %s", v->name,
                 param ? "is a statistic, and must be a trained parameter" : "must be a parameter");
        return misfit(graph, node, text);
    }
    return KEEL_OK;
}

/* Types as the rule has them, when a node is made; what amp appends later reads 16 bits too. And no loss: it
 * is added to by all microbatches, and nothing hands a gradient on through it. */
static enum keel_status check_types(const struct keel_graph *graph, const struct keel_ir_node *node,
                                    const struct keel_rule *rule)
{
    char text[KEEL_VALUE_NAME_BYTES + 32];
    for (uint32_t i = 0; i < rule->in_count; i++) {
        const keel_value value = node->in[i];
        const bool integer = rule->in[i].integer;
        if (value == 0 || value >= graph->value_count)
            continue;
        if (graph->values[value].kind == KEEL_VALUE_LOSS)
            return misfit(graph, node, "a loss is no operand of another operation");
        if (graph->values[value].dtype == (integer ? KEEL_I32 : KEEL_F32))
            continue;
        snprintf(text, sizeof text, "%s must be %s", graph->values[value].name,
                 integer ? "int32" : "float32");
        return misfit(graph, node, text);
    }
    return KEEL_OK;
}

enum keel_status keel_op_infer(const struct keel_graph *graph, const struct keel_ir_node *node,
                               struct keel_shape shapes[KEEL_NODE_OUT_MAX])
{
    struct keel_rule rule;
    struct binding binding = {.star_found = false};
    keel_rule_read(node->op, &rule);
    KEEL_TRY(check_types(graph, node, &rule));
    KEEL_TRY(bind_operands(graph, node, &rule, &binding));
    KEEL_TRY(check_params(graph, node));
    for (uint32_t i = 0; i < rule.out_count; i++) {
        if (rule.out[i].star && rule.out[i].count + binding.star.dims > KEEL_DIMS_MAX)
            return misfit(graph, node, "a result has too many dimensions");
        infer_result(&binding, &rule.out[i], &shapes[i]);
    }
    return KEEL_OK;
}

/* ---- cost ---------------------------------------------------------------------------------------------- */

/* Which indices ('*' included) occur in an operand or a result; true if one is contracted, that is, occurs in
 * two float operands and in no result. */
static bool contracts(const struct keel_rule *rule, bool present[KEEL_INFER])
{
    uint32_t uses[KEEL_INFER] = {0};
    bool kept[KEEL_INFER] = {false};
    for (uint32_t i = 0; i < rule->in_count; i++) {
        const struct keel_rule_operand *operand = &rule->in[i];
        for (uint32_t d = 0; d < operand->count && !operand->integer; d++)
            uses[(size_t)operand->dimension[d].letter]++;
        uses[KEEL_RULE_STAR] += operand->star && !operand->integer ? 1 : 0;
    }
    for (uint32_t i = 0; i < rule->out_count; i++) {
        for (uint32_t d = 0; d < rule->out[i].count; d++)
            kept[(size_t)rule->out[i].dimension[d].letter] = true;
        kept[KEEL_RULE_STAR] = kept[KEEL_RULE_STAR] || rule->out[i].star;
    }
    bool found = false;
    for (uint32_t letter = 1; letter < KEEL_INFER; letter++) {
        present[letter] = uses[letter] > 0 || kept[letter];
        found = found || (uses[letter] > 1 && !kept[letter]);
    }
    return found;
}

uint64_t keel_op_flops(const struct keel_graph *graph, const struct keel_ir_node *node)
{
    struct keel_rule rule;
    struct binding binding = {.star_found = false};
    bool present[KEEL_INFER] = {false};
    keel_rule_read(node->op, &rule);
    if (bind_operands(graph, node, &rule, &binding) != KEEL_OK)
        return 0;
    const char *factor = keel_op_row(node->op)->flops;
    if (factor == NULL && !contracts(&rule, present))
        return 0;
    binding.size[KEEL_RULE_STAR] = keel_shape_count(&binding.star);
    uint64_t flops = 1;
    if (factor == NULL) {
        flops = 2;
        for (uint32_t letter = 1; letter < KEEL_INFER; letter++)
            flops *= present[letter] ? binding.size[letter] : 1;
        return flops;
    }
    for (; *factor != '\0'; factor++)
        flops *= *factor >= '0' && *factor <= '9' ? (uint64_t)(*factor - '0') : binding.size[(size_t)*factor];
    return flops;
}

uint64_t keel_op_bytes(const struct keel_graph *graph, const struct keel_ir_node *node)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
        bytes += node->in[i] == 0 ? 0 : keel_value_bytes(graph, node->in[i]);
    uint32_t accumulated = keel_op_results(node->op).accumulated;
    for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++)
        if (node->out[i] != 0)
            bytes += keel_value_bytes(graph, node->out[i]) * ((accumulated >> i & 1U) != 0 ? 2 : 1);
    return bytes;
}

uint64_t keel_graph_flops(const struct keel_graph *graph)
{
    uint64_t flops = 0;
    for (uint32_t i = 0; i < graph->node_count; i++)
        flops += keel_op_flops(graph, &graph->nodes[i]);
    return flops;
}
