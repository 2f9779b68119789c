/* mymodel.c - a model of one's own for `keel run`: a small Llama of bytes (Touvron et al. 2023). To be
 * copied; then make, and keel run mymodel.conf. What a plug-in may say and call: keel/model_plugin.h and
 * keel/graph.h. */
#include <keel/model_plugin.h>
#include <stdio.h>

struct settings { /* what [model] of the job says */
    uint32_t blocks, heads, width;
};
#define KEY(field) KEEL_INI_U32, offsetof(struct settings, field), sizeof(uint32_t)
static const struct keel_ini_key keys[] = {
    {"model", "blocks", KEY(blocks), "4", 1, 256, NULL, 0, "transformer blocks"},
    {"model", "heads", KEY(heads), "4", 1, 64, NULL, 0, "attention heads, each of an even width"},
    {"model", "width", KEY(width), "128", 2, 16384, NULL, 0, "of the embedding"},
};

static keel_value weight(struct keel_graph *graph, uint32_t block, const char *part, uint64_t in,
                         uint64_t out)
{
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, "blocks.%u.%s", block, part);
    return keel_graph_param(
        graph,
        &(struct keel_param_spec){.name = name, .shape = {2, {in, out}}, .deviation = 0.02F, .decay = true});
}

static keel_value norm(struct keel_graph *graph, uint32_t block, const char *part, uint64_t width,
                       keel_value x)
{
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, "blocks.%u.%s", block, part);
    return keel_graph_rms_norm(
        graph, x,
        keel_graph_param(graph,
                         &(struct keel_param_spec){.name = name, .shape = {1, {width}}, .fill = 1.0F}));
}

static enum keel_status build(struct keel_graph *g, const void *own, const struct keel_plugin_task *task)
{
    const struct settings *s = own;
    const uint64_t w = s->width, hidden = 3 * w;
    const struct keel_attention_spec causal = {.heads = s->heads};
    if (w % (2 * s->heads) != 0)
        return keel_fail(KEEL_INVALID, "model.width = %u is no multiple of 2 model.heads = %u", s->width,
                         2 * s->heads);
    keel_value table = weight(g, 0, "table", task->classes, w),
               x = keel_graph_gather(g, table, task->inputs[0]);
    for (uint32_t b = 0; b < s->blocks; b++) {
        keel_value qkv = keel_graph_linear(g, norm(g, b, "norm1", w, x), weight(g, b, "qkv", w, 3 * w), 0);
        keel_value seen = keel_graph_attention(g, keel_graph_rotary(g, qkv, s->heads, 10000.0F), &causal);
        x = keel_graph_add(g, x, keel_graph_linear(g, seen, weight(g, b, "mix", w, w), 0));
        keel_value y = norm(g, b, "norm2", w, x);
        y = keel_graph_swiglu(g, keel_graph_linear(g, y, weight(g, b, "gate", w, hidden), 0),
                              keel_graph_linear(g, y, weight(g, b, "up", w, hidden), 0));
        x = keel_graph_add(g, x, keel_graph_linear(g, y, weight(g, b, "down", hidden, w), 0));
    }
    x = norm(g, s->blocks, "norm", w, x);
    keel_graph_cross_entropy(g, keel_graph_linear_transposed(g, x, table), task->inputs[1]);
    return keel_graph_status(g);
}

const struct keel_model_plugin keel_model_plugin = {.version = KEEL_MODEL_PLUGIN_VERSION,
                                                    .data = KEEL_PLUGIN_TEXT,
                                                    .key_count = sizeof keys / sizeof keys[0],
                                                    .settings_bytes = sizeof(struct settings),
                                                    .keys = keys,
                                                    .build = build,
                                                    .decodes = true};
