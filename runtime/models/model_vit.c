/* model_vit.c - a vision transformer (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"), with the
 * names of Hugging Face's ViTForImageClassification; layouts are Keel's (matrices [in, out], the patches'
 * convolution [down, across, channels, width]), which `keel ckpt export --names torch` turns.
 *
 * Pre-norm, GELU by its definition, norms with 1e-12 as published. A token in front of the patches, which is
 * learned, becomes the class. All weights begin as normal(0, 0.02). */
#include "model_parts.h"

static const float norm_epsilon = 1e-12F;

struct model {
    struct keel_graph *graph;
    const struct keel_vit_config *config;
    uint64_t tokens, hidden;
};

static uint64_t patches_of(const struct keel_vit_config *config)
{
    return (uint64_t)(config->height / config->patch) * (config->image_width / config->patch);
}

static keel_value linear(const struct model *model, const char *prefix, keel_value x, uint64_t in,
                         uint64_t out)
{
    return keel_part_linear(
        model->graph, prefix, x,
        &(struct keel_part_linear){.in = in, .out = out, .deviation = KEEL_PART_DEVIATION, .bias = true});
}

static keel_value norm(const struct model *model, const char *prefix, keel_value x)
{
    return keel_part_layernorm(model->graph, prefix, x, model->config->width, true, norm_epsilon);
}

/* Learned, and added as it is: does not decay. */
static keel_value learned(const struct model *model, const char *name, uint64_t tokens)
{
    return keel_graph_param(model->graph,
                            &(struct keel_param_spec){.name = name,
                                                      .shape = {3, {1, tokens, model->config->width}},
                                                      .deviation = KEEL_PART_DEVIATION});
}

/* Images to tokens [batch, 1 + patches, width]: each patch is a product of its own. */
static keel_value embed(const struct model *model, keel_value images)
{
    const struct keel_vit_config *config = model->config;
    struct keel_graph *graph = model->graph;
    const uint64_t width = config->width;
    const struct keel_shape kernel = {4, {config->patch, config->patch, config->channels, width}};
    const struct keel_conv2d_spec apart = {.stride = {config->patch, config->patch}};
    keel_value weight = keel_part_matrix(graph, "vit.embeddings.patch_embeddings.projection.weight", kernel,
                                         KEEL_PART_DEVIATION);
    keel_value bias = keel_part_vector(graph, "vit.embeddings.patch_embeddings.projection.bias", width, 0.0F);
    keel_value patches =
        keel_graph_reshape(graph, keel_graph_conv2d(graph, images, weight, bias, &apart),
                           (struct keel_shape){3, {config->batch, patches_of(config), width}});
    keel_value first = keel_graph_expand(graph, learned(model, "vit.embeddings.cls_token", 1),
                                         (struct keel_shape){3, {config->batch, 1, width}});
    const keel_value parts[] = {first, patches};
    keel_value x = keel_graph_concat(graph, parts, 2, 1);
    return keel_graph_binary(graph, x, learned(model, "vit.embeddings.position_embeddings", model->tokens),
                             KEEL_ADD);
}

static keel_value attend(const struct model *model, const char *prefix, keel_value x)
{
    const struct keel_vit_config *config = model->config;
    const uint64_t width = config->width;
    const struct keel_part_attention sizes = {.batch = config->batch,
                                              .tokens = model->tokens,
                                              .width = width,
                                              .heads = config->heads,
                                              .dropout = config->dropout};
    x = keel_part_attention(model->graph, keel_part_name("%s.attention.attention", prefix).text, x, &sizes);
    return linear(model, keel_part_name("%s.attention.output.dense", prefix).text, x, width, width);
}

static keel_value perceptron(const struct model *model, const char *prefix, keel_value x)
{
    const uint64_t width = model->config->width, hidden = model->hidden;
    x = linear(model, keel_part_name("%s.intermediate.dense", prefix).text, x, width, hidden);
    keel_part_split(model->graph, x, 2, 1, 1);
    x = keel_graph_activation(model->graph, x, KEEL_GELU_ERF);
    return linear(model, keel_part_name("%s.output.dense", prefix).text, x, hidden, width);
}

/* x + attention(norm(x)), then x + perceptron(norm(x)). */
static keel_value layer(const struct model *model, uint32_t number, keel_value x)
{
    const struct keel_part_name name = keel_part_name("vit.encoder.layer.%u", number);
    struct keel_graph *graph = model->graph;
    const float dropout = model->config->dropout;
    keel_value y = norm(model, keel_part_name("%s.layernorm_before", name.text).text, x);
    x = keel_graph_add(graph, x, keel_graph_dropout(graph, attend(model, name.text, y), dropout));
    y = norm(model, keel_part_name("%s.layernorm_after", name.text).text, x);
    return keel_graph_add(graph, x, keel_graph_dropout(graph, perceptron(model, name.text, y), dropout));
}

static enum keel_status check_config(const struct keel_vit_config *config)
{
    const struct keel_part_size sizes[] = {{"model.layers", config->layers, 1, KEEL_MODEL_LAYERS_MAX},
                                           {"model.heads", config->heads, 1, UINT32_MAX},
                                           {"model.width", config->width, 1, UINT32_MAX},
                                           {"model.patch", config->patch, 1, UINT32_MAX},
                                           {"model.vocab (classes)", config->classes, 1, UINT32_MAX},
                                           {"train.batch", config->batch, 1, UINT32_MAX},
                                           {"channels of an image", config->channels, 1, UINT32_MAX}};
    KEEL_TRY(keel_part_check("vit", sizes, sizeof sizes / sizeof sizes[0]));
    KEEL_TRY(keel_part_check_heads("vit", config->width, config->heads));
    if (patches_of(config) > 0 && config->height % config->patch == 0 &&
        config->image_width % config->patch == 0)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "vit: images of %ux%u do not divide into patches of model.patch = %u",
                     config->height, config->image_width, config->patch);
}

enum keel_status keel_model_vit(struct keel_graph *graph, const struct keel_vit_config *config)
{
    KEEL_TRY(keel_part_keep(graph, check_config(config)));
    const struct model model = {.graph = graph,
                                .config = config,
                                .tokens = 1 + patches_of(config),
                                .hidden = keel_vit_hidden(config)};
    const uint64_t width = config->width;
    struct keel_shape pixels = {4, {config->batch, config->height, config->image_width, config->channels}};
    keel_value images = keel_graph_input(graph, "images", KEEL_F32, pixels);
    keel_value labels = keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape){1, {config->batch}});
    keel_value x = embed(&model, images);
    keel_part_split_rows(graph, x);
    x = keel_graph_dropout(graph, x, config->dropout);
    for (uint32_t i = 0; i < config->layers; i++)
        x = layer(&model, i, x);
    x = norm(&model, "vit.layernorm", x);
    x = keel_graph_reshape(graph, keel_graph_slice(graph, x, 1, 0, 1),
                           (struct keel_shape){2, {config->batch, width}});
    keel_part_classify(graph, linear(&model, "classifier", x, width, config->classes), labels, config->mixed);
    return keel_graph_status(graph);
}

uint32_t keel_vit_hidden(const struct keel_vit_config *config)
{
    return config->hidden != 0 ? config->hidden : 4 * config->width;
}
