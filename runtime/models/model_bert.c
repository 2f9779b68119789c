/* model_bert.c - a masked language model (Devlin et al. 2019, "BERT") with the names of Hugging Face's
 * BertForMaskedLM; layouts are Keel's (matrices [in, out]), which `keel ckpt export --names bert` turns.
 *
 * Post-norm as published: x = norm(x + f(x)), and a norm behind the embeddings, all with 1e-12; GELU by its
 * definition; the decoder is the table of words once more, with a bias. Every token is of the first segment,
 * as theirs are where no other is given: the second row of token_type_embeddings goes in and out, and is
 * added to nothing. The second task (next sentence) is left out. Only the tokens that are asked for reach the
 * head, which weights from elsewhere may lack (a BertModel). */
#include "model_parts.h"

static const float norm_epsilon = 1e-12F;
enum { SEGMENTS = 2 };

struct model {
    struct keel_graph *graph;
    const struct keel_bert_config *config;
    uint64_t hidden;
};

static keel_value linear(const struct model *model, const char *prefix, keel_value x, uint64_t in,
                         uint64_t out)
{
    return keel_part_linear(
        model->graph, prefix, x,
        &(struct keel_part_linear){.in = in, .out = out, .deviation = KEEL_PART_DEVIATION, .bias = true});
}

/* norm(x + dropout(y)). */
static keel_value join(const struct model *model, const char *prefix, keel_value x, keel_value y)
{
    const struct keel_bert_config *config = model->config;
    y = keel_graph_dropout(model->graph, y, config->dropout);
    return keel_part_layernorm(model->graph, prefix, keel_graph_add(model->graph, x, y), config->width, true,
                               norm_epsilon);
}

static keel_value layer(const struct model *model, uint32_t number, keel_value x)
{
    const struct keel_bert_config *config = model->config;
    const uint64_t width = config->width;
    const struct keel_part_attention sizes = {.batch = config->batch,
                                              .tokens = config->block,
                                              .width = width,
                                              .heads = config->heads,
                                              .dropout = config->dropout};
    const struct keel_part_name name = keel_part_name("bert.encoder.layer.%u", number);
    const char *prefix = name.text;
    keel_value y =
        keel_part_attention(model->graph, keel_part_name("%s.attention.self", prefix).text, x, &sizes);
    y = linear(model, keel_part_name("%s.attention.output.dense", prefix).text, y, width, width);
    x = join(model, keel_part_name("%s.attention.output.LayerNorm", prefix).text, x, y);
    y = linear(model, keel_part_name("%s.intermediate.dense", prefix).text, x, width, model->hidden);
    keel_part_split(model->graph, y, 2, 1, 1);
    y = keel_graph_activation(model->graph, y, KEEL_GELU_ERF);
    y = linear(model, keel_part_name("%s.output.dense", prefix).text, y, model->hidden, width);
    return join(model, keel_part_name("%s.output.LayerNorm", prefix).text, x, y);
}

uint32_t keel_bert_hidden(const struct keel_bert_config *config)
{
    return config->hidden != 0 ? config->hidden : 4 * config->width;
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

/* Words, positions, and the first segment: [batch, block, width]. */
static keel_value embed(const struct model *model, keel_value ids, keel_value table)
{
    const struct keel_bert_config *config = model->config;
    struct keel_graph *graph = model->graph;
    const uint64_t width = config->width;
    keel_value positions =
        keel_part_matrix(graph, "bert.embeddings.position_embeddings.weight",
                         (struct keel_shape){2, {config->block, width}}, KEEL_PART_DEVIATION);
    keel_value segments = keel_part_matrix(graph, "bert.embeddings.token_type_embeddings.weight",
                                           (struct keel_shape){2, {SEGMENTS, width}}, KEEL_PART_DEVIATION);
    keel_part_split(graph, table, 0, 1, 1);
    keel_value x = keel_graph_embedding(graph, ids, table, positions);
    x = keel_graph_binary(graph, x, keel_graph_slice(graph, segments, 0, 0, 1), KEEL_ADD);
    keel_part_split_rows(graph, x);
    x = keel_part_layernorm(graph, "bert.embeddings.LayerNorm", x, width, true, norm_epsilon);
    return keel_graph_dropout(graph, x, config->dropout);
}

/* Rows of x that are asked for, [batch masked, width], as scores of the vocabulary. */
static keel_value head(const struct model *model, keel_value x, keel_value positions, keel_value table)
{
    static const char transform[] = "cls.predictions.transform";
    const struct keel_bert_config *config = model->config;
    struct keel_graph *graph = model->graph;
    const uint64_t width = config->width, rows = (uint64_t)config->batch * config->block;
    const uint32_t before = keel_part_count(graph);
    x = keel_graph_gather(graph, keel_graph_reshape(graph, x, (struct keel_shape){2, {rows, width}}),
                          positions);
    x = linear(model, keel_part_name("%s.dense", transform).text, x, width, width);
    x = keel_graph_activation(graph, x, KEEL_GELU_ERF);
    x = keel_part_layernorm(graph, keel_part_name("%s.LayerNorm", transform).text, x, width, true,
                            norm_epsilon);
    keel_value bias = keel_part_vector(graph, "cls.predictions.bias", config->vocab, 0.0F);
    keel_part_may_lack(graph, before);
    return keel_graph_linear_transposed_bias(graph, x, table, bias);
}

enum keel_status keel_model_bert(struct keel_graph *graph, const struct keel_bert_config *config)
{
    KEEL_TRY(keel_part_keep(graph, check_config(config)));
    const struct model model = {.graph = graph, .config = config, .hidden = keel_bert_hidden(config)};
    struct keel_shape tokens = {2, {config->batch, config->block}};
    struct keel_shape asked = {2, {config->batch, config->masked}};
    keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, tokens);
    keel_value at = keel_graph_input(graph, "positions", KEEL_I32, asked);
    keel_value targets = keel_graph_input(graph, "targets", KEEL_I32, asked);
    keel_value table =
        keel_part_matrix(graph, "bert.embeddings.word_embeddings.weight",
                         (struct keel_shape){2, {config->vocab, config->width}}, KEEL_PART_DEVIATION);
    keel_value x = embed(&model, ids, table);
    for (uint32_t i = 0; i < config->layers; i++)
        x = layer(&model, i, x);
    keel_graph_cross_entropy(graph, head(&model, x, at, table), targets);
    return keel_graph_status(graph);
}
