/* model_gpt.c - GPT-2 as a graph (Radford et al. 2019, "Language Models are Unsupervised Multitask
 * Learners").
 *
 * Names and layouts of the parameters are those of the published weights (matrices [in, out], tables
 * [rows, width]), so that a snapshot exported as safetensors is read by other tools unchanged. */
#include <keel/graph.h>
#include <math.h>
#include <stdio.h>

struct model {
    struct keel_graph *graph;
    const struct keel_gpt_config *config;
    float residual_deviation;
};

static const float deviation = 0.02F;

static keel_value matrix(struct model *model, const char *name, uint64_t rows, uint64_t columns, float dev)
{
    return keel_graph_param(
        model->graph, &(struct keel_param_spec){
                          .name = name, .shape = {2, {rows, columns}}, .deviation = dev, .decay = true});
}

static keel_value vector(struct model *model, const char *name, uint64_t size, float fill)
{
    return keel_graph_param(model->graph,
                            &(struct keel_param_spec){.name = name, .shape = {1, {size}}, .fill = fill});
}

static keel_value norm(struct model *model, const char *prefix, keel_value x)
{
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", prefix);
    keel_value gamma = vector(model, name, model->config->width, 1.0F);
    snprintf(name, sizeof name, "%s.bias", prefix);
    keel_value beta = model->config->bias ? vector(model, name, model->config->width, 0.0F) : 0;
    return keel_graph_layernorm(model->graph, x, gamma, beta);
}

static keel_value linear(struct model *model, const char *prefix, keel_value x, uint64_t in, uint64_t out,
                         float dev)
{
    char name[KEEL_VALUE_NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", prefix);
    keel_value weight = matrix(model, name, in, out, dev);
    snprintf(name, sizeof name, "%s.bias", prefix);
    keel_value bias = model->config->bias ? vector(model, name, out, 0.0F) : 0;
    return keel_graph_linear(model->graph, x, weight, bias);
}

/* x + attention(norm(x)), then x + mlp(norm(x)). */
static keel_value block(struct model *model, uint32_t number, keel_value x)
{
    const struct keel_gpt_config *config = model->config;
    struct keel_graph *graph = model->graph;
    uint64_t width = config->width;
    char name[KEEL_VALUE_NAME_BYTES];

    snprintf(name, sizeof name, "h.%u.ln_1", number);
    keel_value y = norm(model, name, x);
    snprintf(name, sizeof name, "h.%u.attn.c_attn", number);
    y = linear(model, name, y, width, 3 * width, deviation);
    y = keel_graph_attention(
        graph, y, &(struct keel_attention_spec){.heads = config->heads, .dropout = config->dropout});
    snprintf(name, sizeof name, "h.%u.attn.c_proj", number);
    y = linear(model, name, y, width, width, model->residual_deviation);
    x = keel_graph_add(graph, x, keel_graph_dropout(graph, y, config->dropout));

    snprintf(name, sizeof name, "h.%u.ln_2", number);
    y = norm(model, name, x);
    snprintf(name, sizeof name, "h.%u.mlp.c_fc", number);
    y = keel_graph_gelu(graph, linear(model, name, y, width, 4 * width, deviation));
    snprintf(name, sizeof name, "h.%u.mlp.c_proj", number);
    y = linear(model, name, y, 4 * width, width, model->residual_deviation);
    return keel_graph_add(graph, x, keel_graph_dropout(graph, y, config->dropout));
}

static enum keel_status check_config(const struct keel_gpt_config *config)
{
    if (config->layers == 0 || config->heads == 0 || config->width == 0 || config->block == 0 ||
        config->vocab == 0 || config->batch == 0)
        return keel_fail(KEEL_INVALID, "model: layers, heads, width, block, vocab and batch must not be 0");
    if (config->width % config->heads != 0)
        return keel_fail(KEEL_INVALID, "model: width %u is no multiple of heads %u", config->width,
                         config->heads);
    return KEEL_OK;
}

enum keel_status keel_model_gpt(struct keel_graph *graph, const struct keel_gpt_config *config)
{
    KEEL_TRY(check_config(config));
    struct model model = {.graph = graph,
                          .config = config,
                          .residual_deviation = deviation / sqrtf(2.0F * (float)config->layers)};
    struct keel_shape tokens = {2, {config->batch, config->block}};
    keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, tokens);
    keel_value targets = keel_graph_input(graph, "targets", KEEL_I32, tokens);
    keel_value table = matrix(&model, "wte.weight", config->vocab, config->width, deviation);
    keel_value positions = matrix(&model, "wpe.weight", config->block, config->width, deviation);

    keel_value x = keel_graph_embedding(graph, ids, table, positions);
    x = keel_graph_dropout(graph, x, config->dropout);
    for (uint32_t i = 0; i < config->layers; i++)
        x = block(&model, i, x);
    x = norm(&model, "ln_f", x);
    keel_value head =
        config->tied ? table : matrix(&model, "lm_head.weight", config->vocab, config->width, deviation);
    keel_graph_cross_entropy(graph, keel_graph_linear_transposed(graph, x, head), targets);
    return keel_graph_status(graph);
}
