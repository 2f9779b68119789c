/* graph_attention.c - attention, its heads side by side, rotary positions: builder functions, gradients,
 * launches. */
#include "autodiff.h"
#include "emit.h"

#include <keel/attention_ops.h>
#include <keel/memory.h>
#include <keel/shape_ops.h>

#include <stdio.h>
#include <string.h>

enum { HEAD_WIDTH_MAX = 256 }; /* of rotary positions too */

static uint32_t kv_heads_of(const struct keel_attention_spec *spec)
{
    return spec->kv_heads > 0 ? spec->kv_heads : spec->heads;
}

/* Columns of a head of qkv; 0: there are no such heads. */
static uint64_t grouped_width(uint64_t columns, uint32_t heads, uint32_t kv_heads)
{
    const uint64_t all = heads + 2 * (uint64_t)kv_heads;
    return heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && columns % all == 0 ? columns / all : 0;
}

/* Room in the cache, as the kernels take it. */
static uint64_t capacity_of(uint32_t tokens)
{
    return ((uint64_t)tokens + 15) / 16 * 16;
}

/* Attention in a graph of the newest token. */
static keel_value decode(struct keel_graph *graph, keel_value qkv, const struct keel_attention_spec *spec)
{
    const struct keel_shape shape = keel_graph_shape(graph, qkv);
    const uint32_t kv_heads = kv_heads_of(spec);
    const uint64_t width = shape.dims == 3 ? grouped_width(shape.size[2], spec->heads, kv_heads) : 0;
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, "decode.kept.%u", graph->kept_count++);
    const struct keel_param_spec kept = {
        .name = name,
        .shape = {2,
                  {graph->slots > 0 ? graph->slots : shape.size[0],
                   2 * capacity_of(graph->decodes) * (width > 0 ? width * kv_heads : 1)}},
        .statistic = true,
        .momentum = 1.0F};
    const keel_value cache = keel_graph_param(graph, &kept);
    if (cache != 0)
        graph->params[graph->param_count - 1].kept = true;
    return KEEL_NODE(graph, .op = KEEL_OP_ATTENTION_DECODE, .in = {qkv, graph->position, cache, graph->slot},
                     .attributes = {.attention = {.heads = spec->heads,
                                                  .kv_heads = kv_heads,
                                                  .window = spec->window,
                                                  .alibi_heads = spec->alibi ? spec->heads : 0}});
}

keel_value keel_graph_attention(struct keel_graph *graph, keel_value qkv,
                                const struct keel_attention_spec *spec)
{
    KEEL_ASSERT(spec != NULL);
    if (graph->position != 0 && (spec->bidirectional || spec->segments != 0)) {
        keel_graph_refuse(graph,
                          keel_fail(KEEL_INVALID,
                                    "attention: %s in a graph of the newest token (keel_graph_decode), which "
                                    "sees those before it and no others: such a model cannot decode",
                                    spec->bidirectional ? "in both directions" : "segments"));
        return 0;
    }
    if (graph->position != 0)
        return decode(graph, qkv, spec);
    const bool grouped = kv_heads_of(spec) != spec->heads;
    struct keel_attributes attributes = keel_graph_random(graph, spec->dropout);
    attributes.attention.heads = spec->heads;
    attributes.attention.kv_heads = grouped ? spec->kv_heads : 0;
    attributes.attention.bidirectional = spec->bidirectional;
    attributes.attention.window = spec->window;
    attributes.attention.alibi_heads = spec->alibi ? spec->heads : 0;
    return KEEL_NODE(graph, .op = grouped ? KEEL_OP_GROUPED_ATTENTION : KEEL_OP_ATTENTION,
                     .in = {qkv, spec->segments}, .attributes = attributes);
}

keel_value keel_graph_cross_attention(struct keel_graph *graph, keel_value q, keel_value kv,
                                      const struct keel_cross_attention_spec *spec)
{
    KEEL_ASSERT(spec != NULL);
    struct keel_attributes attributes = keel_graph_random(graph, spec->dropout);
    attributes.attention.heads = spec->heads;
    attributes.attention.bidirectional = true;
    return KEEL_NODE(graph, .op = KEEL_OP_CROSS_ATTENTION, .in = {q, kv, spec->segments, spec->key_segments},
                     .attributes = attributes);
}

/* A head must be a whole number of columns, as many as kernels have room for (a small device has less). */
static bool check_head_width(struct keel_infer *infer, uint64_t width, uint32_t heads)
{
    return width <= HEAD_WIDTH_MAX ||
           keel_infer_refuse(infer, "heads of %llu columns, at most %d: use more heads than %u",
                             (unsigned long long)width, HEAD_WIDTH_MAX, heads);
}
static bool check_heads(struct keel_infer *infer, uint64_t width)
{
    const uint32_t heads = infer->node->attributes.attention.heads;
    if (infer->node->attributes.attention.alibi_heads > KEEL_ALIBI_HEADS_MAX)
        return keel_infer_refuse(infer, "ALiBi of %u heads, at most %d", heads, KEEL_ALIBI_HEADS_MAX);
    return check_head_width(infer, width, heads) && keel_check_rate(infer);
}
static bool infer_attention(struct keel_infer *infer)
{
    uint64_t *size = infer->size;
    const uint32_t heads = infer->node->attributes.attention.heads;
    size['H'] = heads;
    if (heads == 0 || size['w'] % heads != 0)
        return keel_infer_refuse(infer, "the width %llu is no multiple of the heads, which are %u",
                                 (unsigned long long)size['w'], heads);
    return check_heads(infer, size['w'] / heads);
}

/* Rows of heads of queries, keys and values. */
static bool infer_grouped_row(struct keel_infer *infer, uint32_t heads, uint32_t kv_heads)
{
    uint64_t *size = infer->size;
    const uint64_t width = grouped_width(size['u'], heads, kv_heads);
    if (width == 0)
        return keel_infer_refuse(infer, "the width %llu is none of %u heads and twice %u",
                                 (unsigned long long)size['u'], heads, kv_heads);
    size['W'] = width * heads; /* of the queries */
    return check_head_width(infer, width, heads);
}
static bool infer_grouped(struct keel_infer *infer)
{
    const struct keel_attributes *attributes = &infer->node->attributes;
    const uint32_t heads = attributes->attention.heads;
    infer->size['H'] = heads;
    return infer_grouped_row(infer, heads, attributes->attention.kv_heads) &&
           check_heads(infer, infer->size['W'] / heads);
}

/* Segments of queries or of keys alone leave open what the others are. */
static bool infer_cross_attention(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    const int segments = node->op == KEEL_OP_CROSS_ATTENTION ? 2 : 5;
    if ((node->in[segments] == 0) != (node->in[segments + 1] == 0))
        return keel_infer_refuse(infer, "segments of queries or of keys alone: give both");
    return infer_attention(infer);
}

static void describe_attention(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    char window[32] = "";
    if (node->attributes.attention.window > 0)
        snprintf(window, sizeof window, " window=%u", node->attributes.attention.window);
    snprintf(text, text_bytes, " heads=%u%s%s%s", node->attributes.attention.heads,
             node->attributes.attention.bidirectional ? " bidirectional" : "", window,
             node->attributes.attention.alibi_heads > 0 ? " alibi" : "");
}

static void describe_grouped(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    const struct keel_rotary_turn *turned = &node->attributes.attention.turned;
    describe_attention(node, text, text_bytes);
    const size_t used = strlen(text);
    snprintf(text + used, text_bytes - used, " kv_heads=%u", node->attributes.attention.kv_heads);
    if (turned->base != 0.0F)
        snprintf(text + strlen(text), text_bytes - strlen(text), " turned base=%g", (double)turned->base);
}

static void grad_attention(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    KEEL_GRADIENT(
        autodiff, node->in[0], .op = KEEL_OP_ATTENTION_GRAD,
        .in = {node->in[0], node->out[0], node->out[1], arrived(autodiff, node->out[0]), node->in[1]},
        .attributes = node->attributes);
}

/* The rotary positions that made queries and keys of `node`, its qkv; NULL: none did. */
static const struct keel_ir_node *find_turn(const struct keel_autodiff *autodiff,
                                            const struct keel_ir_node *node)
{
    for (uint32_t i = autodiff->node; i-- > 0;) {
        const struct keel_ir_node *made = &autodiff->graph->nodes[i];
        if (made->out[0] != node->in[0])
            continue;
        return made->op == KEEL_OP_GROUPED_ROTARY && !made->attributes.rotary.inverse &&
                       made->attributes.rotary.heads == node->attributes.attention.heads &&
                       made->attributes.rotary.kv_heads == node->attributes.attention.kv_heads
                   ? made
                   : NULL;
    }
    return NULL;
}

/* What each head has of the gradient of keys that it shares is turned back before these are added: the bits
 * are then those of keys that are repeated before they are turned. So that is the gradient of what was
 * turned.
 */
static void grad_grouped(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const struct keel_ir_node *turn = find_turn(autodiff, node);
    const keel_value of = turn != NULL ? turn->in[0] : node->in[0];
    struct keel_attributes attributes = node->attributes;
    if (turn != NULL)
        attributes.attention.turned =
            (struct keel_rotary_turn){turn->attributes.rotary.base, turn->attributes.rotary.scaling};
    KEEL_GRADIENT(
        autodiff, of, .op = KEEL_OP_GROUPED_ATTENTION_GRAD,
        .in = {node->in[0], node->out[0], node->out[1], arrived(autodiff, node->out[0]), node->in[1]},
        .attributes = attributes);
}

static void grad_cross_attention(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value dq = KEEL_NODE(autodiff->graph, .op = KEEL_OP_CROSS_ATTENTION_GRAD,
                                    .in = {node->in[0], node->in[1], node->out[0], node->out[1],
                                           arrived(autodiff, node->out[0]), node->in[2], node->in[3]},
                                    .attributes = node->attributes);
    const keel_value dkv = keel_graph_last_result(autodiff->graph, 1);
    keel_gradient_add(autodiff, node->in[0], dq);
    keel_gradient_add(autodiff, node->in[1], dkv);
}

/* The descriptor that both directions share. */
static struct keel_attention attention(const struct keel_emit *emit, const struct keel_ir_node *node,
                                       keel_value qkv, keel_value out, keel_value stats, keel_value segments)
{
    const struct keel_shape *shape = shape_of(emit, out);
    const uint32_t alibi_heads = node->attributes.attention.alibi_heads;
    return (struct keel_attention){
        .batch = (uint32_t)shape->size[0],
        .tokens = (uint32_t)shape->size[1],
        .heads = node->attributes.attention.heads,
        .kv_heads = node->attributes.attention.kv_heads,
        .head_width = (uint32_t)shape->size[2] / node->attributes.attention.heads,
        .bidirectional = node->attributes.attention.bidirectional,
        .window = node->attributes.attention.window,
        .alibi = {alibi_heads, alibi_heads > 0 ? node->attributes.attention.first_head : 0},
        .dropout_rate = node->attributes.rate,
        .stream = node->attributes.stream,
        .slice = node->attributes.place,
        .qkv = buffer_of(emit, qkv),
        .out = buffer_of(emit, out),
        .stats = buffer_of(emit, stats),
        .segments = buffer_of(emit, segments),
        .control = emit->control,
        .workspace = emit->workspace,
        .of_class = true};
}

/* Keys and values that are not those of the queries' tokens. */
static void set_keys(const struct keel_emit *emit, keel_value kv, keel_value segments,
                     struct keel_attention *op)
{
    op->kv = buffer_of(emit, kv);
    op->keys = (uint32_t)shape_of(emit, kv)->size[1];
    op->key_segments = buffer_of(emit, segments);
}

/* The workspace: what both passes have of it, and behind it the parts of a class. */
static enum keel_status find_parts(struct keel_emit *emit, struct keel_attention *op, bool gradient,
                                   uint64_t at)
{
    uint64_t bytes[KEEL_ATTENTION_PARTS];
    keel_attention_part_bytes(emit->kernels, op, gradient, bytes);
    for (int i = 0; i < KEEL_ATTENTION_PARTS; i++) {
        at = keel_round_up(at, KEEL_PART_ALIGN);
        if (bytes[i] > 0 && !emit->measure)
            KEEL_TRY(keel_emit_workspace_part(emit, at, bytes[i], &op->parts[i]));
        at += bytes[i];
    }
    need_workspace(emit, at);
    return KEEL_OK;
}

static enum keel_status append_attention(struct keel_emit *emit, struct keel_attention *op)
{
    KEEL_TRY(find_parts(emit, op, false, keel_attention_workspace_bytes(emit->kernels, op)));
    return emit->measure ? KEEL_OK : keel_op_attention(emit->kernels, op, emit->list);
}
static enum keel_status append_attention_grad(struct keel_emit *emit, struct keel_attention_grad *op)
{
    const uint64_t rows = keel_attention_grad_workspace_bytes(emit->kernels, op);
    KEEL_TRY(find_parts(emit, &op->forward, true, rows));
    if (emit->measure)
        return KEEL_OK;
    KEEL_TRY(keel_emit_workspace_part(emit, 0, rows, &op->forward.workspace));
    return keel_op_attention_grad(emit->kernels, op, emit->list);
}

static enum keel_status emit_attention(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const keel_value *in = node->in, *out = node->out;
    struct keel_attention op = attention(emit, node, in[0], out[0], out[1], in[1]);
    return append_attention(emit, &op);
}

static enum keel_status emit_attention_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const keel_value *in = node->in;
    struct keel_attention_grad op = {.forward = attention(emit, node, in[0], in[1], in[2], in[4]),
                                     .first_head = node->attributes.attention.first_head,
                                     .turned = node->attributes.attention.turned,
                                     .dout = buffer_of(emit, in[3]),
                                     .dqkv = buffer_of(emit, node->out[0])};
    return append_attention_grad(emit, &op);
}

static enum keel_status emit_cross_attention(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const keel_value *in = node->in, *out = node->out;
    struct keel_attention op = attention(emit, node, in[0], out[0], out[1], in[2]);
    set_keys(emit, in[1], in[3], &op);
    return append_attention(emit, &op);
}

static enum keel_status emit_cross_attention_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const keel_value *in = node->in;
    struct keel_attention_grad op = {.forward = attention(emit, node, in[0], in[2], in[3], in[5]),
                                     .dout = buffer_of(emit, in[4]),
                                     .dqkv = buffer_of(emit, node->out[0]),
                                     .dkv = buffer_of(emit, node->out[1])};
    set_keys(emit, in[1], in[6], &op.forward);
    return append_attention_grad(emit, &op);
}

/* ---- the newest token ---------------------------------------------------------------------------------- */

keel_value keel_graph_decode(struct keel_graph *graph, uint64_t batch, uint32_t tokens)
{
    graph->position = keel_graph_input(graph, "position", KEEL_I32, (struct keel_shape){2, {batch, 1}});
    graph->decodes = tokens;
    return graph->position;
}

keel_value keel_graph_decode_rows(struct keel_graph *graph, uint64_t rows, uint64_t sequences,
                                  uint32_t tokens)
{
    keel_graph_decode(graph, rows, tokens);
    graph->slot = keel_graph_input(graph, "slot", KEEL_I32, (struct keel_shape){2, {rows, 1}});
    graph->slots = sequences;
    return graph->slot;
}

static bool check_newest(struct keel_infer *infer)
{
    return infer->size['t'] == 1 || keel_infer_refuse(infer, "%llu tokens: it takes one at a time",
                                                      (unsigned long long)infer->size['t']);
}

/* The cache is as the builder makes it. */
static bool infer_decode(struct keel_infer *infer)
{
    const struct keel_attributes *attributes = &infer->node->attributes;
    return check_newest(infer) &&
           infer_grouped_row(infer, attributes->attention.heads, attributes->attention.kv_heads);
}

static enum keel_status emit_decode(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *shape = shape_of(emit, node->out[0]);
    const uint32_t heads = node->attributes.attention.heads, kv_heads = node->attributes.attention.kv_heads;
    const uint64_t head_width = shape->size[2] / heads;
    const struct keel_attention_decode op = {
        .batch = (uint32_t)shape->size[0],
        .heads = heads,
        .kv_heads = kv_heads,
        .head_width = (uint32_t)head_width,
        .capacity = (uint32_t)(width_of(emit, node->in[2]) / (2 * head_width * kv_heads)),
        .slots = node->in[3] != 0 ? (uint32_t)rows_of(emit, node->in[2]) : 0,
        .window = node->attributes.attention.window,
        .alibi = {node->attributes.attention.alibi_heads, 0},
        .of_class = true,
        .qkv = buffer_of(emit, node->in[0]),
        .position = buffer_of(emit, node->in[1]),
        .slot = buffer_of(emit, node->in[3]),
        .cache = buffer_of(emit, node->in[2]),
        .out = buffer_of(emit, node->out[0]),
        .workspace = emit->workspace};
    need_workspace(emit, keel_attention_decode_workspace_bytes(&op));
    return emit->measure ? KEEL_OK : keel_op_attention_decode(emit->kernels, &op, emit->list);
}

/* ---- rotary positions ---------------------------------------------------------------------------------- */

keel_value keel_graph_grouped_rotary(struct keel_graph *graph, keel_value qkv, uint32_t heads,
                                     uint32_t kv_heads, const struct keel_rotary_turn *turn)
{
    KEEL_ASSERT(turn != NULL);
    const bool alike = graph->position == 0 && kv_heads == heads;
    return KEEL_NODE(graph, .op = alike ? KEEL_OP_ROTARY : KEEL_OP_GROUPED_ROTARY,
                     .in = {qkv, graph->position},
                     .attributes = {.rotary = {.heads = heads,
                                               .kv_heads = alike ? 0 : kv_heads,
                                               .base = turn->base,
                                               .scaling = turn->scaling}});
}

keel_value keel_graph_rotary(struct keel_graph *graph, keel_value qkv, uint32_t heads, float base)
{
    return keel_graph_grouped_rotary(graph, qkv, heads, heads, &(struct keel_rotary_turn){.base = base});
}

static bool infer_base(struct keel_infer *infer)
{
    const float base = infer->node->attributes.rotary.base;
    const struct keel_rotary_scaling *scaling = &infer->node->attributes.rotary.scaling;
    const float factor = scaling->factor;
    if (factor != 0.0F && !(factor >= 1.0F && factor <= 0x1p16F))
        return keel_infer_refuse(infer, "scaling by %g is not in [1, 65536]", (double)factor);
    return (base > 1.0F && base <= 1e9F) ||
           keel_infer_refuse(infer, "the base %g is not in (1, 1e9]", (double)base);
}

/* A head must be a whole number of pairs, and the base one that angles can fall by. */
static bool infer_rotary(struct keel_infer *infer)
{
    uint64_t *size = infer->size;
    const uint32_t heads = infer->node->attributes.rotary.heads;
    if (!infer_base(infer))
        return false;
    if (heads != 0 && size['w'] % (2 * (uint64_t)heads) == 0 && size['w'] / heads <= HEAD_WIDTH_MAX)
        return true;
    return keel_infer_refuse(infer,
                             "the width %llu in %u heads does not give each an even width of at most %d",
                             (unsigned long long)size['w'], heads, HEAD_WIDTH_MAX);
}

static bool infer_grouped_rotary(struct keel_infer *infer)
{
    const struct keel_attributes *attributes = &infer->node->attributes;
    const uint32_t heads = attributes->rotary.heads;
    if (!infer_base(infer) || (infer->node->in[1] != 0 && !check_newest(infer)) ||
        !infer_grouped_row(infer, heads, attributes->rotary.kv_heads))
        return false;
    return infer->size['W'] % (2 * (uint64_t)heads) == 0 ||
           keel_infer_refuse(infer, "heads of %llu columns, which cannot be turned in pairs",
                             (unsigned long long)(infer->size['W'] / heads));
}

static void describe_rotary(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " heads=%u base=%g%s", node->attributes.rotary.heads,
             (double)node->attributes.rotary.base, node->attributes.rotary.inverse ? " inverse" : "");
}

static void grad_rotary(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_attributes attributes = node->attributes;
    attributes.rotary.inverse = !attributes.rotary.inverse;
    KEEL_GRADIENT(autodiff, node->in[0], .op = node->op, .in = {arrived(autodiff, node->out[0]), node->in[1]},
                  .attributes = attributes);
}

static enum keel_status emit_rotary(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *shape = shape_of(emit, node->in[0]);
    const uint32_t heads = node->attributes.rotary.heads;
    const uint32_t kv_heads = node->op == KEEL_OP_ROTARY ? heads : node->attributes.rotary.kv_heads;
    const struct keel_rotary op = {.batch = (uint32_t)shape->size[0],
                                   .tokens = (uint32_t)shape->size[1],
                                   .heads = heads,
                                   .kv_heads = kv_heads,
                                   .head_width =
                                       (uint32_t)(shape->size[2] / (heads + 2 * (uint64_t)kv_heads)),
                                   .base = node->attributes.rotary.base,
                                   .scaling = node->attributes.rotary.scaling,
                                   .inverse = node->attributes.rotary.inverse,
                                   .qkv = buffer_of(emit, node->in[0]),
                                   .out = buffer_of(emit, node->out[0]),
                                   .position = buffer_of(emit, node->in[1])};
    return emit->measure ? KEEL_OK : keel_op_rotary(emit->kernels, &op, emit->list);
}

/* ---- heads side by side -------------------------------------------------------------------------------- */

keel_value keel_graph_join_heads(struct keel_graph *graph, const keel_value qkv[3], uint32_t heads,
                                 uint32_t kv_heads)
{
    KEEL_ASSERT(qkv != NULL);
    return KEEL_NODE(graph, .op = KEEL_OP_HEADS_JOIN, .in = {qkv[0], qkv[1], qkv[2]},
                     .attributes.joined = {.heads = heads, .kv_heads = kv_heads});
}

static uint64_t columns_of(const struct keel_graph *graph, keel_value value)
{
    const struct keel_shape *shape = &graph->values[value].shape;
    return shape->size[shape->dims - 1];
}

static bool infer_join(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    const uint64_t q = columns_of(infer->graph, node->in[0]), k = columns_of(infer->graph, node->in[1]);
    const uint32_t heads = node->attributes.joined.heads, kv_heads = node->attributes.joined.kv_heads;
    infer->size['W'] = q;
    infer->size['V'] = k;
    infer->size['U'] = q + 2 * k;
    if (grouped_width(q + 2 * k, heads, kv_heads) * heads == q && q > 0)
        return true;
    return keel_infer_refuse(infer, "columns of %llu and %llu are none of %u heads and %u",
                             (unsigned long long)q, (unsigned long long)k, heads, kv_heads);
}

static bool infer_part(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    const uint32_t heads = node->attributes.joined.heads, kv_heads = node->attributes.joined.kv_heads;
    if (!infer_grouped_row(infer, heads, kv_heads))
        return false;
    infer->size['P'] = infer->size['W'] / heads * (node->attributes.joined.part == 0 ? heads : kv_heads);
    return true;
}

static void describe_joined(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " heads=%u kv_heads=%u part=%u", node->attributes.joined.heads,
             node->attributes.joined.kv_heads, node->attributes.joined.part);
}

static void grad_join(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_attributes part = node->attributes;
    for (part.joined.part = 0; part.joined.part < 3; part.joined.part++)
        if (wanted(autodiff, node->in[part.joined.part]))
            KEEL_GRADIENT(autodiff, node->in[part.joined.part], .op = KEEL_OP_HEADS_PART,
                          .in = {arrived(autodiff, node->out[0])}, .attributes = part);
}

keel_value keel_graph_pair_halves(struct keel_graph *graph, keel_value x, uint32_t heads)
{
    return KEEL_NODE(graph, .op = KEEL_OP_PAIR_HALVES, .in = {x},
                     .attributes.joined = {.heads = heads, .kv_heads = heads});
}

static bool infer_pairs(struct keel_infer *infer)
{
    const uint64_t columns = columns_of(infer->graph, infer->node->in[0]);
    const uint32_t heads = infer->node->attributes.joined.heads;
    infer->size['W'] = columns;
    return (heads > 0 && columns % (2 * (uint64_t)heads) == 0) ||
           keel_infer_refuse(infer, "%llu columns are no %u heads of an even width",
                             (unsigned long long)columns, heads);
}

static void grad_pairs(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_attributes back = node->attributes;
    back.joined.part = !back.joined.part;
    KEEL_GRADIENT(autodiff, node->in[0], .op = KEEL_OP_PAIR_HALVES, .in = {arrived(autodiff, node->out[0])},
                  .attributes = back);
}

static enum keel_status emit_pairs(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const bool back = node->attributes.joined.part != 0;
    const uint64_t half = width_of(emit, node->in[0]) / node->attributes.joined.heads / 2;
    const struct keel_permute op = {
        .dims = 3,
        .size = {count_of(emit, node->in[0]) / (2 * half), back ? half : 2, back ? 2 : half},
        .order = {0, 2, 1},
        .x = buffer_of(emit, node->in[0]),
        .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_permute(emit->kernels, &op, emit->list);
}

static enum keel_status emit_join(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint64_t sizes[] = {width_of(emit, node->in[0]), width_of(emit, node->in[1]),
                              width_of(emit, node->in[2])};
    struct keel_buffer *input[] = {buffer_of(emit, node->in[0]), buffer_of(emit, node->in[1]),
                                   buffer_of(emit, node->in[2])};
    const struct keel_concat op = {.parts = 3,
                                   .outer = rows_of(emit, node->out[0]),
                                   .inner = 1,
                                   .sizes = sizes,
                                   .input = input,
                                   .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_concat(emit->kernels, &op, emit->list);
}

static enum keel_status emit_part(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const uint64_t all = width_of(emit, node->in[0]), count = width_of(emit, node->out[0]);
    const uint32_t behind = node->attributes.joined.part == 0 ? 0 : 3 - node->attributes.joined.part;
    const struct keel_slice op = {.outer = rows_of(emit, node->in[0]),
                                  .size = all,
                                  .inner = 1,
                                  .from = behind == 0 ? 0 : all - behind * count, /* k and v are as wide */
                                  .count = count,
                                  .x = buffer_of(emit, node->in[0]),
                                  .y = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_slice(emit->kernels, &op, emit->list);
}

/* ---- the table ---- */

enum { FIRST = KEEL_OP_ATTENTION, LAST = KEEL_OP_ATTENTION_DECODE };
static const struct keel_op rows[LAST - FIRST + 1] = {
    /* Results: out, row maximum and sum. Scores and mixing are a product each, of t x t over w. */
    [KEEL_OP_ATTENTION - FIRST] = {.name = "attention",
                                   .rule = "bt3w,#bt?->btw,bHt2",
                                   .split = "bw/",
                                   .flops = "4bttw",
                                   .infer_dims = infer_attention,
                                   .describe = describe_attention,
                                   .grad = grad_attention,
                                   .emit = emit_attention},
    /* Operands: qkv, out, row maximum and sum, dout, segments. Four products; the recomputed one is not
       counted. */
    [KEEL_OP_ATTENTION_GRAD - FIRST] = {.name = "attention_grad",
                                        .rule = "bt3w,btw,bHt2,btw,#bt?->bt3w",
                                        .split = "bw/",
                                        .flops = "8bttw",
                                        .infer_dims = infer_attention,
                                        .describe = describe_attention,
                                        .emit = emit_attention_grad},
    /* Operands: q, kv, segments of both. */
    [KEEL_OP_CROSS_ATTENTION - FIRST] = {.name = "cross_attention",
                                         .rule = "btw,bs2w,#bt?,#bs?->btw,bHt2",
                                         .split = "bw/",
                                         .flops = "4btsw",
                                         .infer_dims = infer_cross_attention,
                                         .describe = describe_attention,
                                         .grad = grad_cross_attention,
                                         .emit = emit_cross_attention},
    /* Operands: q, kv, out, row maximum and sum, dout, segments of both. */
    [KEEL_OP_CROSS_ATTENTION_GRAD - FIRST] = {.name = "cross_attention_grad",
                                              .rule = "btw,bs2w,btw,bHt2,btw,#bt?,#bs?->btw,bs2w",
                                              .split = "bw/",
                                              .flops = "8btsw",
                                              .infer_dims = infer_cross_attention,
                                              .describe = describe_attention,
                                              .emit = emit_cross_attention_grad},
    [KEEL_OP_ROTARY - FIRST] = {.name = "rotary",
                                .rule = "bt3w->bt3w",
                                .split = "bw/",
                                .in_place = "00",
                                .infer_dims = infer_rotary,
                                .describe = describe_rotary,
                                .grad = grad_rotary,
                                .emit = emit_rotary},
    /* Rows of heads of queries, and fewer of keys and of values. A slice has whole groups: some heads of
       queries, and the one of keys and of values that they share, side by side as in the whole. */
    [KEEL_OP_GROUPED_ATTENTION - FIRST] = {.name = "grouped_attention",
                                           .rule = "btu,#bt?->btW,bHt2",
                                           .split = "bH/",
                                           .flops = "4bttW",
                                           .infer_dims = infer_grouped,
                                           .describe = describe_grouped,
                                           .grad = grad_grouped,
                                           .emit = emit_attention},
    /* Operands as those of attention_grad. */
    [KEEL_OP_GROUPED_ATTENTION_GRAD - FIRST] = {.name = "grouped_attention_grad",
                                                .rule = "btu,btW,bHt2,btW,#bt?->btu",
                                                .split = "bH/",
                                                .flops = "8bttW",
                                                .infer_dims = infer_grouped,
                                                .describe = describe_grouped,
                                                .emit = emit_attention_grad},
    /* Operands: qkv, and where it is of the newest token its position. */
    [KEEL_OP_GROUPED_ROTARY - FIRST] = {.name = "grouped_rotary",
                                        .rule = "btu,#bt?->btu",
                                        .split = "bH/",
                                        .in_place = "00",
                                        .infer_dims = infer_grouped_rotary,
                                        .describe = describe_rotary,
                                        .grad = grad_rotary,
                                        .emit = emit_rotary},
    [KEEL_OP_PAIR_HALVES - FIRST] = {.name = "pair_halves",
                                     .rule = "*W->*W",
                                     .split = "*H/",
                                     .infer_dims = infer_pairs,
                                     .describe = describe_joined,
                                     .grad = grad_pairs,
                                     .emit = emit_pairs},
    [KEEL_OP_HEADS_JOIN - FIRST] = {.name = "heads_join",
                                    .rule = "*W,*V,*V->*U",
                                    .split = "*H/",
                                    .flops = "0", /* V is no index that is summed over */
                                    .infer_dims = infer_join,
                                    .describe = describe_joined,
                                    .grad = grad_join,
                                    .emit = emit_join},
    [KEEL_OP_HEADS_PART - FIRST] = {.name = "heads_part",
                                    .rule = "*u->*P",
                                    .split = "*H/",
                                    .infer_dims = infer_part,
                                    .describe = describe_joined,
                                    .emit = emit_part},
    /* Operands: qkv, position, the cache, to which it adds, and the sequence of each row. */
    [KEEL_OP_ATTENTION_DECODE - FIRST] = {.name = "attention_decode",
                                          .rule = "btu,#bt,sc,#bt?->btW",
                                          .flops = "2bc",
                                          .infer_dims = infer_decode,
                                          .instead = "keel_graph_attention, over all tokens",
                                          .describe = describe_attention,
                                          .emit = emit_decode},
};

const struct keel_op_family keel_ops_attention = {FIRST, LAST, rows};
