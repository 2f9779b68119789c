/* model_parts.c - see model_parts.h. */
#include "model_parts.h"
#include "ir.h"

#include <stdarg.h>
#include <stdio.h>

struct keel_part_name keel_part_name(const char *format, ...)
{
    struct keel_part_name name;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name.text, sizeof name.text, format, arguments);
    va_end(arguments);
    return name;
}

enum keel_status keel_part_check(const char *model, const struct keel_part_size *sizes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_part_size *size = &sizes[i];
        if (size->value >= size->least && size->value <= size->most)
            continue;
        char upper[32] = "or more";
        if (size->most < UINT32_MAX)
            snprintf(upper, sizeof upper, "to %llu", (unsigned long long)size->most);
        return keel_fail(KEEL_INVALID, "%s: %s = %llu is out of range: %llu %s", model, size->key,
                         (unsigned long long)size->value, (unsigned long long)size->least, upper);
    }
    return KEEL_OK;
}

enum keel_status keel_part_check_heads(const char *model, uint32_t width, uint32_t heads)
{
    return width % heads == 0
               ? KEEL_OK
               : keel_fail(KEEL_INVALID, "%s: model.width = %u does not divide into model.heads = %u", model,
                           width, heads);
}

enum keel_status keel_part_keep(struct keel_graph *graph, enum keel_status status)
{
    keel_graph_refuse(graph, status);
    return status;
}

bool keel_part_decodes(const struct keel_graph *graph)
{
    return graph->position != 0;
}

uint32_t keel_part_tokens(const struct keel_graph *graph, uint32_t block)
{
    return keel_part_decodes(graph) ? 1 : block;
}

keel_value keel_part_matrix(struct keel_graph *graph, const char *name, struct keel_shape shape,
                            float deviation)
{
    return keel_graph_param(graph, &(struct keel_param_spec){
                                       .name = name, .shape = shape, .deviation = deviation, .decay = true});
}

keel_value keel_part_vector(struct keel_graph *graph, const char *name, uint64_t size, float fill)
{
    return keel_graph_param(graph,
                            &(struct keel_param_spec){.name = name, .shape = {1, {size}}, .fill = fill});
}

keel_value keel_part_layernorm(struct keel_graph *graph, const char *prefix, keel_value x, uint64_t width,
                               bool bias, float epsilon)
{
    keel_value gamma = keel_part_vector(graph, keel_part_name("%s.weight", prefix).text, width, 1.0F);
    keel_value beta = bias ? keel_part_vector(graph, keel_part_name("%s.bias", prefix).text, width, 0.0F) : 0;
    return epsilon > 0.0F ? keel_graph_layernorm_epsilon(graph, x, gamma, beta, epsilon)
                          : keel_graph_layernorm(graph, x, gamma, beta);
}

keel_value keel_part_linear(struct keel_graph *graph, const char *prefix, keel_value x,
                            const struct keel_part_linear *sizes)
{
    struct keel_shape shape = {2, {sizes->in, sizes->out}};
    keel_value weight =
        keel_part_matrix(graph, keel_part_name("%s.weight", prefix).text, shape, sizes->deviation);
    keel_value bias =
        sizes->bias ? keel_part_vector(graph, keel_part_name("%s.bias", prefix).text, sizes->out, 0.0F) : 0;
    return keel_graph_linear(graph, x, weight, bias);
}

/* q, k and v side by side: joined along a dimension of their own, so that each stays split by heads. */
keel_value keel_part_attention(struct keel_graph *graph, const char *prefix, keel_value x,
                               const struct keel_part_attention *sizes)
{
    static const char *const names[] = {"query", "key", "value"};
    const uint64_t width = sizes->width;
    const struct keel_part_linear layer = {width, width, KEEL_PART_DEVIATION, true};
    keel_value parts[3];
    for (uint32_t i = 0; i < 3; i++) {
        const struct keel_part_name name = keel_part_name("%s.%s", prefix, names[i]);
        parts[i] = keel_part_linear(graph, name.text, x, &layer);
        keel_part_split(graph, parts[i], 2, 1, width / sizes->heads);
        parts[i] = keel_graph_reshape(graph, parts[i],
                                      (struct keel_shape){4, {sizes->batch, sizes->tokens, 1, width}});
    }
    x = keel_graph_reshape(graph, keel_graph_concat(graph, parts, 3, 2),
                           (struct keel_shape){3, {sizes->batch, sizes->tokens, 3 * width}});
    return keel_graph_attention(graph, x,
                                &(struct keel_attention_spec){
                                    .heads = sizes->heads, .dropout = sizes->dropout, .bidirectional = true});
}

void keel_part_classify(struct keel_graph *graph, keel_value logits, keel_value labels, bool mixed)
{
    keel_graph_cross_entropy(graph, logits, labels);
    if (!mixed || graph->status != KEEL_OK)
        return;
    const struct keel_shape shape = keel_graph_shape(graph, logits);
    keel_graph_product_loss(graph, logits, keel_graph_input(graph, "mix", KEEL_F32, shape),
                            (float)shape.size[shape.dims - 1]); /* a sum over classes, not a mean */
}

uint32_t keel_part_count(const struct keel_graph *graph)
{
    return graph->param_count;
}

void keel_part_may_lack(struct keel_graph *graph, uint32_t first)
{
    for (uint32_t i = first; i < graph->param_count; i++)
        graph->params[i].added = true;
}

void keel_part_split(struct keel_graph *graph, keel_value value, uint32_t dim, uint32_t outer, uint64_t unit)
{
    keel_graph_shard(
        graph, value, KEEL_AXIS_TENSOR,
        (struct keel_axis_spec){
            .kind = KEEL_SPLIT, .dim = (uint8_t)dim, .outer = (uint8_t)outer, .unit = (uint32_t)unit});
}

void keel_part_split_rows(struct keel_graph *graph, keel_value value)
{
    keel_graph_shard(graph, value, KEEL_AXIS_TENSOR,
                     (struct keel_axis_spec){.kind = KEEL_SPLIT, .dim = KEEL_SPLIT_ROWS});
}
