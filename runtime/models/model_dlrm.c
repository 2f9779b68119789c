/* model_dlrm.c - a recommendation model (Naumov et al. 2019, "Deep Learning Recommendation Model for
 * Personalization and Recommendation Systems").
 *
 * Numbers go through a perceptron to a vector of `width`; the categories of each feature are summed from its
 * embedding table to another; the products of all pairs of vectors, beside the first vector itself, go
 * through a second perceptron to one logit. All tables lie in one parameter, one after the other, and ids
 * count through them. Weights begin as in the authors' code: matrices normal(0, sqrt(2 / (in + out))); tables
 * with the variance of uniform(+-1 / sqrt(rows)), of their mean where they differ; biases at 0. */
#include "model_parts.h"

#include <math.h>

/* Layers of these sizes, relu between them; PREFIX.0, PREFIX.1, ... */
static keel_value perceptron(struct keel_graph *graph, const char *prefix, keel_value x, uint64_t in,
                             const uint32_t *sizes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t out = sizes[i];
        struct keel_part_linear linear = {
            .in = in, .out = out, .deviation = sqrtf(2.0F / (float)(in + out)), .bias = true};
        x = i == 0 ? x : keel_graph_activation(graph, x, KEEL_RELU);
        x = keel_part_linear(graph, keel_part_name("%s.%u", prefix, i).text, x, &linear);
        in = out;
    }
    return x;
}

/* The sizes that a configuration gives, or `layers` of 4 widths and one of `out`; returns how many. */
static uint32_t sizes_of(const struct keel_dlrm_config *config, const uint32_t *given, uint32_t count,
                         uint32_t out, uint32_t sizes[KEEL_MODEL_LAYERS_MAX + 1])
{
    for (uint32_t i = 0; i < count; i++)
        sizes[i] = given[i];
    if (count > 0)
        return count;
    for (uint32_t i = 0; i < config->layers; i++)
        sizes[i] = 4 * config->width;
    sizes[config->layers] = out;
    return config->layers + 1;
}

static uint64_t rows_of_all(const struct keel_dlrm_config *config)
{
    uint64_t all = 0;
    for (uint32_t t = 0; t < config->tables; t++)
        all += config->rows != NULL ? config->rows[t] : config->categories;
    return all;
}

/* Vectors of all features of a sample: [batch, 1 + tables, width]; the first is of the numbers, and *dense.
 */
static keel_value features(struct keel_graph *graph, const struct keel_dlrm_config *config,
                           keel_value numbers, keel_value ids, keel_value *dense)
{
    const uint64_t batch = config->batch, width = config->width;
    const uint64_t rows = rows_of_all(config);
    struct keel_shape tables = {2, {rows, width}};
    float deviation = sqrtf((float)config->tables / (3.0F * (float)rows));
    uint32_t sizes[KEEL_MODEL_LAYERS_MAX + 1];
    const uint32_t layers = sizes_of(config, config->bot, config->bot_count, config->width, sizes);
    keel_value x = perceptron(graph, "bot_l", numbers, config->dense, sizes, layers);
    *dense = keel_graph_activation(graph, x, KEEL_RELU);
    keel_value table = keel_graph_param(
        graph, &(struct keel_param_spec){.name = "emb_l.weight", .shape = tables, .deviation = deviation});
    keel_value bags = keel_graph_embedding_bag(graph, ids, table);
    const keel_value parts[2] = {
        keel_graph_reshape(graph, *dense, (struct keel_shape){3, {batch, 1, width}}),
        keel_graph_reshape(graph, bags, (struct keel_shape){3, {batch, config->tables, width}})};
    return keel_graph_concat(graph, parts, 2, 1);
}

static enum keel_status check_config(const struct keel_dlrm_config *config)
{
    const struct keel_part_size sizes[] = {{"model.layers", config->layers, 0, KEEL_MODEL_LAYERS_MAX},
                                           {"model.dense", config->dense, 1, UINT32_MAX},
                                           {"model.tables", config->tables, 1, UINT32_MAX},
                                           {"model.categories", config->categories, 1, UINT32_MAX},
                                           {"model.bag", config->bag, 1, UINT32_MAX},
                                           {"model.width", config->width, 1, UINT32_MAX},
                                           {"train.batch", config->batch, 1, UINT32_MAX}};
    return keel_part_check("dlrm", sizes, sizeof sizes / sizeof sizes[0]);
}

enum keel_status keel_model_dlrm(struct keel_graph *graph, const struct keel_dlrm_config *config)
{
    KEEL_TRY(keel_part_keep(graph, check_config(config)));
    const uint64_t batch = config->batch, count = (uint64_t)config->tables + 1;
    const uint64_t rows = batch * config->tables;
    keel_value numbers =
        keel_graph_input(graph, "dense", KEEL_F32, (struct keel_shape){2, {batch, config->dense}});
    keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, (struct keel_shape){2, {rows, config->bag}});
    keel_value labels = keel_graph_input(graph, "labels", KEEL_F32, (struct keel_shape){2, {batch, 1}});
    keel_value dense;
    keel_value vectors = features(graph, config, numbers, ids, &dense);
    const keel_value parts[2] = {dense, keel_graph_pairwise_dot(graph, vectors)};
    keel_value x = keel_graph_concat(graph, parts, 2, 1);
    uint32_t sizes[KEEL_MODEL_LAYERS_MAX + 1];
    const uint32_t layers = sizes_of(config, config->top, config->top_count, 1, sizes);
    x = perceptron(graph, "top_l", x, config->width + count * (count - 1) / 2, sizes, layers);
    if (config->squared) {
        keel_graph_output(graph, x);
        keel_graph_mse(graph, keel_graph_activation(graph, x, KEEL_SIGMOID), labels);
    } else {
        keel_graph_bce(graph, x, labels);
    }
    return keel_graph_status(graph);
}
