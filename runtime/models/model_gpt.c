/* model_gpt.c - GPT-2 as a graph (Radford et al. 2019, "Language Models are Unsupervised Multitask
 * Learners").
 *
 * Names and layouts of the parameters are those of the published weights (matrices [in, out], tables
 * [rows, width]), so that a snapshot exported as safetensors is read by other tools unchanged. */
#include "model_parts.h"

#include <math.h>

struct model {
    struct keel_graph *graph;
    const struct keel_gpt_config *config;
    const struct keel_part_variant *variant;
    float residual_deviation;
};

static keel_value norm(const struct model *model, const char *prefix, keel_value x)
{
    return keel_part_layernorm(model->graph, prefix, x, model->config->width, model->config->bias, 0.0F);
}

static keel_value linear(const struct model *model, const char *prefix, keel_value x, uint64_t in,
                         uint64_t out, float deviation)
{
    return keel_part_linear(model->graph, prefix, x,
                            &(struct keel_part_linear){
                                .in = in, .out = out, .deviation = deviation, .bias = model->config->bias});
}

static keel_value perceptron(const struct model *model, uint32_t number, keel_value x)
{
    const uint64_t width = model->config->width;
    const struct keel_part_variant *variant = model->variant;
    keel_value y = variant->mlp != NULL ? variant->mlp(variant->context, model->graph, number, x) : 0;
    if (y != 0)
        return y;
    y = linear(model, keel_part_name("h.%u.mlp.c_fc", number).text, x, width, 4 * width, KEEL_PART_DEVIATION);
    keel_part_split(model->graph, y, 2, 1, 1);
    y = keel_graph_activation(model->graph, y, KEEL_GELU);
    return linear(model, keel_part_name("h.%u.mlp.c_proj", number).text, y, 4 * width, width,
                  model->residual_deviation);
}

/* x + attention(norm(x)), then x + mlp(norm(x)). */
static keel_value block(const struct model *model, uint32_t number, keel_value x)
{
    const struct keel_gpt_config *config = model->config;
    struct keel_graph *graph = model->graph;
    uint64_t width = config->width;

    keel_value y = norm(model, keel_part_name("h.%u.ln_1", number).text, x);
    y = linear(model, keel_part_name("h.%u.attn.c_attn", number).text, y, width, 3 * width,
               KEEL_PART_DEVIATION);
    keel_part_split(graph, y, 2, 3, width / config->heads);
    y = keel_graph_attention(
        graph, y, &(struct keel_attention_spec){.heads = config->heads, .dropout = config->dropout});
    y = linear(model, keel_part_name("h.%u.attn.c_proj", number).text, y, width, width,
               model->residual_deviation);
    x = keel_graph_add(graph, x, keel_graph_dropout(graph, y, config->dropout));

    y = perceptron(model, number, norm(model, keel_part_name("h.%u.ln_2", number).text, x));
    return keel_graph_add(graph, x, keel_graph_dropout(graph, y, config->dropout));
}

static enum keel_status check_config(const struct keel_gpt_config *config, const char *name)
{
    const struct keel_part_size sizes[] = {{"model.layers", config->layers, 1, KEEL_MODEL_LAYERS_MAX},
                                           {"model.heads", config->heads, 1, UINT32_MAX},
                                           {"model.width", config->width, 1, UINT32_MAX},
                                           {"model.block", config->block, 1, UINT32_MAX},
                                           {"model.vocab", config->vocab, 1, UINT32_MAX},
                                           {"train.batch", config->batch, 1, UINT32_MAX}};
    KEEL_TRY(keel_part_check(name, sizes, sizeof sizes / sizeof sizes[0]));
    return keel_part_check_heads(name, config->width, config->heads);
}

enum keel_status keel_gpt_build(struct keel_graph *graph, const struct keel_gpt_config *config,
                                const struct keel_part_variant *variant)
{
    KEEL_TRY(keel_part_keep(graph, check_config(config, variant->name)));
    struct model model = {.graph = graph,
                          .config = config,
                          .variant = variant,
                          .residual_deviation = KEEL_PART_DEVIATION / sqrtf(2.0F * (float)config->layers)};
    struct keel_shape tokens = {2, {config->batch, keel_part_tokens(graph, config->block)}};
    struct keel_shape table_shape = {2, {config->vocab, config->width}};
    struct keel_shape position_shape = {2, {config->block, config->width}};
    keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, tokens);
    keel_value targets = keel_graph_input(graph, "targets", KEEL_I32, tokens);
    keel_value table = keel_part_matrix(graph, "wte.weight", table_shape, KEEL_PART_DEVIATION);
    keel_value positions = keel_part_matrix(graph, "wpe.weight", position_shape, KEEL_PART_DEVIATION);

    keel_part_split(graph, table, 0, 1, 1);
    keel_value x = keel_graph_embedding(graph, ids, table, positions);
    keel_part_split_rows(graph, x);
    x = keel_graph_dropout(graph, x, config->dropout);
    for (uint32_t i = 0; i < config->layers; i++)
        x = block(&model, i, x);
    x = norm(&model, "ln_f", x);
    keel_value head =
        config->tied ? table : keel_part_matrix(graph, "lm_head.weight", table_shape, KEEL_PART_DEVIATION);
    keel_part_split(graph, head, 0, 1, 1);
    keel_graph_cross_entropy(graph, keel_graph_linear_transposed(graph, x, head), targets);
    return keel_graph_status(graph);
}

enum keel_status keel_model_gpt(struct keel_graph *graph, const struct keel_gpt_config *config)
{
    return keel_gpt_build(graph, config, &(struct keel_part_variant){.name = "gpt"});
}
