/* model_llama.c - Llama as a graph (Touvron et al. 2023): RMS norm before each part, rotary positions, heads
 * that share keys and values in groups (Ainslie et al. 2023), SwiGLU.
 *
 * Names and layouts of the parameters are those of Hugging Face's LlamaForCausalLM (matrices [out, in]), so
 * that its weights are read, and those that are exported are read by it, unchanged. There a rotation turns
 * element i of a head with element i + width / 2, here 2i with 2i + 1: queries and keys are brought into that
 * order alike, which no product of theirs sees but in the order of its sum. */
#include "model_parts.h"

#include <math.h>

enum { HEADS_MAX = 64, HIDDEN_UNIT = 32 };

struct model {
    struct keel_graph *graph;
    const struct keel_llama_config *config;
    const struct keel_part_variant *variant;
    uint64_t tokens, head_width, kv_width, hidden;
    float residual_deviation;
};

static keel_value norm(const struct model *model, const char *name, keel_value x)
{
    return keel_graph_rms_norm(model->graph, x,
                               keel_part_vector(model->graph, name, model->config->width, 1.0F));
}

/* x times the transposed matrix `part` of block `number`. */
static keel_value project(const struct model *model, uint32_t number, const char *part, keel_value x,
                          uint64_t in, uint64_t out, float deviation)
{
    const struct keel_shape shape = {2, {out, in}};
    const struct keel_part_name name = keel_part_name("model.layers.%u.%s.weight", number, part);
    return keel_graph_linear_transposed(model->graph, x,
                                        keel_part_matrix(model->graph, name.text, shape, deviation));
}

static keel_value attend(const struct model *model, uint32_t number, keel_value x)
{
    const struct keel_llama_config *config = model->config;
    const struct keel_rotary_turn turn = {config->rope_base,
                                          {config->rope_factor, 1.0F, 4.0F, config->rope_context}};
    const struct keel_attention_spec heads = {.heads = config->heads, .kv_heads = config->kv_heads};
    const uint64_t width = config->width;
    keel_value q = project(model, number, "self_attn.q_proj", x, width, width, KEEL_PART_DEVIATION);
    keel_value k = project(model, number, "self_attn.k_proj", x, width, model->kv_width, KEEL_PART_DEVIATION);
    keel_value v = project(model, number, "self_attn.v_proj", x, width, model->kv_width, KEEL_PART_DEVIATION);
    if (config->cut_heads) { /* a unit is a group, with the head of keys and values that it shares */
        keel_part_split(model->graph, q, 2, 1, width / config->kv_heads);
        keel_part_split(model->graph, k, 2, 1, model->head_width);
        keel_part_split(model->graph, v, 2, 1, model->head_width);
    }
    const keel_value parts[] = {keel_graph_pair_halves(model->graph, q, config->heads),
                                keel_graph_pair_halves(model->graph, k, config->kv_heads), v};
    x = keel_graph_join_heads(model->graph, parts, config->heads, config->kv_heads);
    x = keel_graph_grouped_rotary(model->graph, x, config->heads, config->kv_heads, &turn);
    x = keel_graph_attention(model->graph, x, &heads);
    return project(model, number, "self_attn.o_proj", x, width, width, model->residual_deviation);
}

static keel_value perceptron(const struct model *model, uint32_t number, keel_value x)
{
    const uint64_t width = model->config->width, hidden = model->hidden;
    if (model->variant->mlp != NULL)
        return model->variant->mlp(model->variant->context, model->graph, number, x);
    keel_value gate = project(model, number, "mlp.gate_proj", x, width, hidden, KEEL_PART_DEVIATION);
    keel_value up = project(model, number, "mlp.up_proj", x, width, hidden, KEEL_PART_DEVIATION);
    keel_part_split(model->graph, gate, 2, 1, 1);
    keel_part_split(model->graph, up, 2, 1, 1);
    return project(model, number, "mlp.down_proj", keel_graph_swiglu(model->graph, gate, up), hidden, width,
                   model->residual_deviation);
}

static enum keel_status check_config(const struct keel_llama_config *config, const char *name)
{
    const struct keel_part_size sizes[] = {{"model.layers", config->layers, 1, KEEL_MODEL_LAYERS_MAX},
                                           {"model.heads", config->heads, 1, HEADS_MAX},
                                           {"model.kv_heads", config->kv_heads, 1, config->heads},
                                           {"model.width", config->width, 1, UINT32_MAX},
                                           {"model.block", config->block, 1, UINT32_MAX},
                                           {"model.vocab", config->vocab, 1, UINT32_MAX},
                                           {"train.batch", config->batch, 1, UINT32_MAX}};
    KEEL_TRY(keel_part_check(name, sizes, sizeof sizes / sizeof sizes[0]));
    KEEL_TRY(keel_part_check_heads(name, config->width, config->heads));
    if (config->heads % config->kv_heads != 0)
        return keel_fail(KEEL_INVALID, "%s: model.kv_heads = %u does not divide model.heads = %u", name,
                         config->kv_heads, config->heads);
    return config->width / config->heads % 2 == 0
               ? KEEL_OK
               : keel_fail(KEEL_INVALID, "%s: heads of %u elements, which cannot be turned in pairs", name,
                           config->width / config->heads);
}

uint32_t keel_llama_hidden(const struct keel_llama_config *config)
{
    if (config->hidden != 0)
        return config->hidden;
    /* two thirds of the four widths that a perceptron of two matrices has */
    return (uint32_t)(((uint64_t)config->width * 8 / 3 + HIDDEN_UNIT - 1) / HIDDEN_UNIT * HIDDEN_UNIT);
}

static struct model model_of(struct keel_graph *graph, const struct keel_llama_config *config,
                             const struct keel_part_variant *variant)
{
    struct model model = {.graph = graph,
                          .config = config,
                          .variant = variant,
                          .tokens = keel_part_tokens(graph, config->block),
                          .head_width = config->width / config->heads,
                          .hidden = keel_llama_hidden(config),
                          .residual_deviation = KEEL_PART_DEVIATION / sqrtf(2.0F * (float)config->layers)};
    model.kv_width = model.head_width * config->kv_heads;
    return model;
}

enum keel_status keel_llama_build(struct keel_graph *graph, const struct keel_llama_config *config,
                                  const struct keel_part_variant *variant)
{
    KEEL_TRY(keel_part_keep(graph, check_config(config, variant->name)));
    const struct model model = model_of(graph, config, variant);
    const struct keel_shape tokens = {2, {config->batch, model.tokens}};
    const struct keel_shape table_shape = {2, {config->vocab, config->width}};
    keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, tokens);
    keel_value targets = keel_graph_input(graph, "targets", KEEL_I32, tokens);
    keel_value table = keel_part_matrix(graph, "model.embed_tokens.weight", table_shape, KEEL_PART_DEVIATION);

    keel_part_split(graph, table, 0, 1, 1);
    keel_value x = keel_graph_embedding(graph, ids, table, 0);
    keel_part_split_rows(graph, x);
    for (uint32_t i = 0; i < config->layers; i++) {
        keel_value y = norm(&model, keel_part_name("model.layers.%u.input_layernorm.weight", i).text, x);
        x = keel_graph_add(graph, x, attend(&model, i, y));
        y = norm(&model, keel_part_name("model.layers.%u.post_attention_layernorm.weight", i).text, x);
        x = keel_graph_add(graph, x, perceptron(&model, i, y));
    }
    x = norm(&model, "model.norm.weight", x);
    keel_value head =
        config->tied ? table : keel_part_matrix(graph, "lm_head.weight", table_shape, KEEL_PART_DEVIATION);
    keel_part_split(graph, head, 0, 1, 1);
    keel_graph_cross_entropy(graph, keel_graph_linear_transposed(graph, x, head), targets);
    return keel_graph_status(graph);
}

enum keel_status keel_model_llama(struct keel_graph *graph, const struct keel_llama_config *config)
{
    return keel_llama_build(graph, config, &(struct keel_part_variant){.name = "llama"});
}
