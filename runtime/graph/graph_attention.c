/* graph_attention.c - attention and rotary positions: builder functions, gradients, launches. */
#include "autodiff.h"
#include "emit.h"

#include <keel/attention_ops.h>

#include <stdio.h>

enum { HEAD_WIDTH_MAX = 256 }; /* of rotary positions too */

keel_value keel_graph_attention(struct keel_graph *graph, keel_value qkv,
                                const struct keel_attention_spec *spec)
{
    KEEL_ASSERT(spec != NULL);
    struct keel_attributes attributes = keel_graph_random(graph, spec->dropout);
    attributes.attention.heads = spec->heads;
    attributes.attention.bidirectional = spec->bidirectional;
    return keel_graph_node(
        graph, &(struct keel_node_request){.op = KEEL_OP_ATTENTION, .in = {qkv}, .attributes = attributes});
}

/* A head must be a whole number of columns, as many as kernels have room for (a small device has less). */
bool keel_infer_attention(const struct keel_graph *graph, const struct keel_ir_node *node,
                          uint64_t size[KEEL_INFER], char *why, size_t why_bytes)
{
    (void)graph;
    uint32_t heads = node->attributes.attention.heads;
    size['H'] = heads;
    if (heads == 0 || size['w'] % heads != 0) {
        snprintf(why, why_bytes, "the width %llu is no multiple of the heads, which are %u",
                 (unsigned long long)size['w'], heads);
        return false;
    }
    if (size['w'] / heads <= HEAD_WIDTH_MAX)
        return keel_check_rate(node->attributes.rate, why, why_bytes);
    snprintf(why, why_bytes, "heads of %llu columns, at most %d: use more heads than %u",
             (unsigned long long)(size['w'] / heads), HEAD_WIDTH_MAX, heads);
    return false;
}

void keel_describe_attention(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " heads=%u%s", node->attributes.attention.heads,
             node->attributes.attention.bidirectional ? " bidirectional" : "");
}

void keel_grad_attention(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    keel_gradient_add(autodiff, node->in[0],
                      keel_graph_node(autodiff->graph, &(struct keel_node_request){
                                                           .op = KEEL_OP_ATTENTION_GRAD,
                                                           .in = {node->in[0], node->out[0], node->out[1],
                                                                  arrived(autodiff, node->out[0])},
                                                           .attributes = node->attributes}));
}

/* The descriptor that both directions share. */
static struct keel_attention attention(const struct keel_emit *emit, const struct keel_ir_node *node,
                                       keel_value qkv, keel_value out, keel_value stats)
{
    const struct keel_shape *shape = shape_of(emit, out);
    return (struct keel_attention){.batch = (uint32_t)shape->size[0],
                                   .tokens = (uint32_t)shape->size[1],
                                   .heads = node->attributes.attention.heads,
                                   .head_width = (uint32_t)shape->size[2] / node->attributes.attention.heads,
                                   .bidirectional = node->attributes.attention.bidirectional,
                                   .dropout_rate = node->attributes.rate,
                                   .stream = node->attributes.stream,
                                   .qkv = buffer_of(emit, qkv),
                                   .out = buffer_of(emit, out),
                                   .stats = buffer_of(emit, stats),
                                   .control = emit->control,
                                   .workspace = emit->workspace};
}

enum keel_status keel_emit_attention(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_attention op = attention(emit, node, node->in[0], node->out[0], node->out[1]);
    if (!emit->measure)
        return keel_op_attention(emit->kernels, &op, emit->list);
    need_workspace(emit, keel_attention_workspace_bytes(emit->kernels, &op));
    return KEEL_OK;
}

enum keel_status keel_emit_attention_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_attention_grad op = {.forward = attention(emit, node, node->in[0], node->in[1], node->in[2]),
                                     .dout = buffer_of(emit, node->in[3]),
                                     .dqkv = buffer_of(emit, node->out[0])};
    if (!emit->measure)
        return keel_op_attention_grad(emit->kernels, &op, emit->list);
    need_workspace(emit, keel_attention_grad_workspace_bytes(emit->kernels, &op));
    return KEEL_OK;
}

/* ---- rotary positions ---------------------------------------------------------------------------------- */

keel_value keel_graph_rotary(struct keel_graph *graph, keel_value qkv, uint32_t heads, float base)
{
    return keel_graph_node(
        graph, &(struct keel_node_request){.op = KEEL_OP_ROTARY,
                                           .in = {qkv},
                                           .attributes = {.rotary = {.heads = heads, .base = base}}});
}

/* A head must be a whole number of pairs, and the base one that angles can fall by. */
bool keel_infer_rotary(const struct keel_graph *graph, const struct keel_ir_node *node,
                       uint64_t size[KEEL_INFER], char *why, size_t why_bytes)
{
    (void)graph;
    const uint32_t heads = node->attributes.rotary.heads;
    const float base = node->attributes.rotary.base;
    if (!(base > 1.0F && base <= 1e9F)) {
        snprintf(why, why_bytes, "the base %g is not in (1, 1e9]", (double)base);
        return false;
    }
    if (heads != 0 && size['w'] % (2 * (uint64_t)heads) == 0 && size['w'] / heads <= HEAD_WIDTH_MAX)
        return true;
    snprintf(why, why_bytes, "the width %llu in %u heads does not give each an even width of at most %d",
             (unsigned long long)size['w'], heads, HEAD_WIDTH_MAX);
    return false;
}

void keel_describe_rotary(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, " heads=%u base=%g%s", node->attributes.rotary.heads,
             (double)node->attributes.rotary.base, node->attributes.rotary.inverse ? " inverse" : "");
}

void keel_grad_rotary(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    struct keel_attributes attributes = node->attributes;
    attributes.rotary.inverse = !attributes.rotary.inverse;
    keel_gradient_add(
        autodiff, node->in[0],
        keel_graph_node(autodiff->graph, &(struct keel_node_request){.op = KEEL_OP_ROTARY,
                                                                     .in = {arrived(autodiff, node->out[0])},
                                                                     .attributes = attributes}));
}

enum keel_status keel_emit_rotary(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *shape = shape_of(emit, node->in[0]);
    const uint32_t heads = node->attributes.rotary.heads;
    const struct keel_rotary op = {.batch = (uint32_t)shape->size[0],
                                   .tokens = (uint32_t)shape->size[1],
                                   .heads = heads,
                                   .head_width = (uint32_t)(shape->size[2] / 3 / heads),
                                   .base = node->attributes.rotary.base,
                                   .inverse = node->attributes.rotary.inverse,
                                   .qkv = buffer_of(emit, node->in[0]),
                                   .out = buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_rotary(emit->kernels, &op, emit->list);
}
