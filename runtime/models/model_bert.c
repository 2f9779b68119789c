/* model_bert.c - a masked language model (Devlin et al. 2019, "BERT"), with the names of the published
 * weights but that query, key and value are one matrix, attention.self.qkv.
 *
 * Post-norm as published: x = norm(x + f(x)), and a norm behind the embeddings. What is left out: the second
 * segment and its task, and the bias of the decoder when it shares the embedding table. Norms add 1e-5, where
 * the paper's code adds 1e-12. Only the tokens that are asked for reach the head. */
#include "model_parts.h"

struct model {
    struct keel_graph *graph;
    const struct keel_bert_config *config;
};

static keel_value linear(const struct model *model, const char *prefix, keel_value x, uint64_t in,
                         uint64_t out)
{
    return keel_part_linear(
        model->graph, prefix, x,
        &(struct keel_part_linear){
            .in = in, .out = out, .deviation = KEEL_PART_DEVIATION, .bias = model->config->bias});
}

static keel_value norm(const struct model *model, const char *prefix, keel_value x)
{
    return keel_part_layernorm(model->graph, prefix, x, model->config->width, model->config->bias);
}

/* norm(x + dropout(y)). */
static keel_value join(const struct model *model, const char *prefix, keel_value x, keel_value y)
{
    y = keel_graph_dropout(model->graph, y, model->config->dropout);
    return norm(model, prefix, keel_graph_add(model->graph, x, y));
}

static keel_value layer(const struct model *model, uint32_t number, keel_value x)
{
    const struct keel_bert_config *config = model->config;
    const uint64_t width = config->width;
    const struct keel_part_name name = keel_part_name("bert.encoder.layer.%u", number);
    const char *prefix = name.text;
    keel_value y = linear(model, keel_part_name("%s.attention.self.qkv", prefix).text, x, width, 3 * width);
    keel_part_split(model->graph, y, 2, 3, width / config->heads);
    y = keel_graph_attention(model->graph, y,
                             &(struct keel_attention_spec){
                                 .heads = config->heads, .dropout = config->dropout, .bidirectional = true});
    y = linear(model, keel_part_name("%s.attention.output.dense", prefix).text, y, width, width);
    x = join(model, keel_part_name("%s.attention.output.LayerNorm", prefix).text, x, y);
    y = linear(model, keel_part_name("%s.intermediate.dense", prefix).text, x, width, 4 * width);
    keel_part_split(model->graph, y, 2, 1, 1);
    y = keel_graph_activation(model->graph, y, KEEL_GELU);
    y = linear(model, keel_part_name("%s.output.dense", prefix).text, y, 4 * width, width);
    return join(model, keel_part_name("%s.output.LayerNorm", prefix).text, x, y);
}

static enum keel_status check_config(const struct keel_bert_config *config)
{
    const struct keel_part_size sizes[] = {{"model.layers", config->layers, 1, KEEL_MODEL_LAYERS_MAX},
                                           {"model.heads", config->heads, 1, UINT32_MAX},
                                           {"model.width", config->width, 1, UINT32_MAX},
                                           {"model.block", config->block, 1, UINT32_MAX},
                                           {"model.vocab", config->vocab, 1, UINT32_MAX},
                                           {"train.batch", config->batch, 1, UINT32_MAX},
                                           {"tokens that are asked for", config->masked, 1, config->block}};
    KEEL_TRY(keel_part_check("bert", sizes, sizeof sizes / sizeof sizes[0]));
    return keel_part_check_heads("bert", config->width, config->heads);
}

/* Rows of x that are asked for, [batch masked, width], as scores of the vocabulary. */
static keel_value head(const struct model *model, keel_value x, keel_value positions, keel_value table)
{
    const struct keel_bert_config *config = model->config;
    struct keel_graph *graph = model->graph;
    const uint64_t width = config->width;
    x = keel_graph_reshape(graph, x,
                           (struct keel_shape){2, {(uint64_t)config->batch * config->block, width}});
    x = keel_graph_gather(graph, x, positions);
    x = keel_graph_activation(graph, linear(model, "cls.predictions.transform.dense", x, width, width),
                              KEEL_GELU);
    x = norm(model, "cls.predictions.transform.LayerNorm", x);
    if (config->tied)
        return keel_graph_linear_transposed(graph, x, table);
    x = linear(model, "cls.predictions.decoder", x, width, config->vocab);
    keel_part_split(graph, x, keel_graph_shape(graph, x).dims - 1, 1, 1);
    return x;
}

enum keel_status keel_model_bert(struct keel_graph *graph, const struct keel_bert_config *config)
{
    KEEL_TRY(keel_part_keep(graph, check_config(config)));
    struct model model = {.graph = graph, .config = config};
    struct keel_shape tokens = {2, {config->batch, config->block}};
    struct keel_shape asked = {2, {config->batch, config->masked}};
    struct keel_shape table_shape = {2, {config->vocab, config->width}};
    struct keel_shape position_shape = {2, {config->block, config->width}};
    keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, tokens);
    keel_value at = keel_graph_input(graph, "positions", KEEL_I32, asked);
    keel_value targets = keel_graph_input(graph, "targets", KEEL_I32, asked);
    keel_value table =
        keel_part_matrix(graph, "bert.embeddings.word_embeddings.weight", table_shape, KEEL_PART_DEVIATION);
    keel_value positions = keel_part_matrix(graph, "bert.embeddings.position_embeddings.weight",
                                            position_shape, KEEL_PART_DEVIATION);
    keel_part_split(graph, table, 0, 1, 1);
    keel_value x = keel_graph_embedding(graph, ids, table, positions);
    keel_part_split_rows(graph, x);
    x = norm(&model, "bert.embeddings.LayerNorm", x);
    x = keel_graph_dropout(graph, x, config->dropout);
    for (uint32_t i = 0; i < config->layers; i++)
        x = layer(&model, i, x);
    keel_graph_cross_entropy(graph, head(&model, x, at, table), targets);
    return keel_graph_status(graph);
}
