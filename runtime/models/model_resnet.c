/* model_resnet.c - residual networks of basic blocks (He et al. 2016, "Deep Residual Learning for Image
 * Recognition"), with the names of torchvision's weights; layouts are Keel's (convolutions [height, width,
 * in, out], matrices [in, out]).
 *
 * Where a block changes the size, the shortcut is a 1x1 convolution with its own norm (their option B). The
 * norm comes after each convolution, which has no bias. Convolutions begin as normal(0, sqrt(2 / (height
 * width out))) (He et al. 2015, outputs counted), the classifier as normal(0, 0.01), running statistics with
 * momentum 0.1. */
#include "model_parts.h"

#include <math.h>

static const float classifier_deviation = 0.01F, statistics_momentum = 0.1F;

struct conv {
    uint64_t in, out;
    uint32_t size, stride;
};

/* PREFIX.weight; padding keeps the size but for the stride. */
static keel_value conv(struct keel_graph *graph, const char *prefix, keel_value x, const struct conv *sizes)
{
    struct keel_shape shape = {4, {sizes->size, sizes->size, sizes->in, sizes->out}};
    float deviation = sqrtf(2.0F / (float)((uint64_t)sizes->size * sizes->size * sizes->out));
    keel_value weight = keel_part_matrix(graph, keel_part_name("%s.weight", prefix).text, shape, deviation);
    uint32_t pad = sizes->size / 2;
    return keel_graph_conv2d(
        graph, x, weight, 0,
        &(struct keel_conv2d_spec){.stride = {sizes->stride, sizes->stride}, .pad = {pad, pad}});
}

static keel_value statistic(struct keel_graph *graph, const char *name, uint64_t size, float fill)
{
    return keel_graph_param(graph, &(struct keel_param_spec){.name = name,
                                                             .shape = {1, {size}},
                                                             .fill = fill,
                                                             .statistic = true,
                                                             .momentum = statistics_momentum});
}

static keel_value norm(struct keel_graph *graph, const char *prefix, keel_value x, uint64_t channels)
{
    keel_value gamma = keel_part_vector(graph, keel_part_name("%s.weight", prefix).text, channels, 1.0F);
    keel_value beta = keel_part_vector(graph, keel_part_name("%s.bias", prefix).text, channels, 0.0F);
    keel_value mean = statistic(graph, keel_part_name("%s.running_mean", prefix).text, channels, 0.0F);
    keel_value variance = statistic(graph, keel_part_name("%s.running_var", prefix).text, channels, 1.0F);
    return keel_graph_batch_norm(graph, x, gamma, beta, mean, variance);
}

static keel_value relu(struct keel_graph *graph, keel_value x)
{
    return keel_graph_activation(graph, x, KEEL_RELU);
}

/* relu(norm(conv(relu(norm(conv(x))))) + shortcut). */
static keel_value block(struct keel_graph *graph, const char *prefix, keel_value x, const struct conv *first)
{
    const struct conv second = {.in = first->out, .out = first->out, .size = 3, .stride = 1};
    const struct conv across = {.in = first->in, .out = first->out, .size = 1, .stride = first->stride};
    keel_value y = conv(graph, keel_part_name("%s.conv1", prefix).text, x, first);
    y = relu(graph, norm(graph, keel_part_name("%s.bn1", prefix).text, y, first->out));
    y = conv(graph, keel_part_name("%s.conv2", prefix).text, y, &second);
    y = norm(graph, keel_part_name("%s.bn2", prefix).text, y, first->out);
    if (first->in != first->out || first->stride != 1) {
        x = conv(graph, keel_part_name("%s.downsample.0", prefix).text, x, &across);
        x = norm(graph, keel_part_name("%s.downsample.1", prefix).text, x, first->out);
    }
    return relu(graph, keel_graph_add(graph, y, x));
}

static keel_value stem(struct keel_graph *graph, const struct keel_resnet_config *config, keel_value x)
{
    const struct conv first = {.in = config->channels,
                               .out = config->width,
                               .size = config->large_stem ? 7 : 3,
                               .stride = config->large_stem ? 2 : 1};
    x = relu(graph, norm(graph, "bn1", conv(graph, "conv1", x, &first), config->width));
    if (!config->large_stem)
        return x;
    return keel_graph_max_pool(graph, x,
                               &(struct keel_pool_spec){.kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}});
}

static enum keel_status check_config(const struct keel_resnet_config *config)
{
    const struct keel_part_size sizes[] = {{"model.stages", config->stages, 1, KEEL_RESNET_STAGES_MAX},
                                           {"model.layers", config->blocks, 1, KEEL_MODEL_LAYERS_MAX},
                                           {"model.width", config->width, 1, UINT32_MAX},
                                           {"model.vocab (classes)", config->classes, 1, UINT32_MAX},
                                           {"train.batch", config->batch, 1, UINT32_MAX},
                                           {"channels of an image", config->channels, 1, UINT32_MAX}};
    KEEL_TRY(keel_part_check("resnet", sizes, sizeof sizes / sizeof sizes[0]));
    uint32_t smallest = (1U << (config->stages - 1)) * (config->large_stem ? 4 : 1);
    if (config->height < smallest || config->image_width < smallest)
        return keel_fail(
            KEEL_INVALID,
            "resnet: images of %ux%u are too small for model.stages = %u%s, which take %ux%u at least",
            config->height, config->image_width, config->stages,
            config->large_stem ? " with model.stem = large" : "", smallest, smallest);
    return KEEL_OK;
}

enum keel_status keel_model_resnet(struct keel_graph *graph, const struct keel_resnet_config *config)
{
    KEEL_TRY(keel_part_keep(graph, check_config(config)));
    struct keel_shape pixels = {4, {config->batch, config->height, config->image_width, config->channels}};
    keel_value images = keel_graph_input(graph, "images", KEEL_F32, pixels);
    keel_value labels = keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape){1, {config->batch}});
    keel_value x = stem(graph, config, images);
    uint64_t width = config->width;
    for (uint32_t stage = 0; stage < config->stages; stage++)
        for (uint32_t number = 0; number < config->blocks; number++) {
            struct conv first = {.in = width, .out = width, .size = 3, .stride = 1};
            if (stage > 0 && number == 0) {
                first.out = 2 * width;
                first.stride = 2;
            }
            x = block(graph, keel_part_name("layer%u.%u", stage + 1, number).text, x, &first);
            width = first.out;
        }
    x = keel_part_linear(
        graph, "fc", keel_graph_global_avg_pool(graph, x),
        &(struct keel_part_linear){
            .in = width, .out = config->classes, .deviation = classifier_deviation, .bias = true});
    keel_graph_cross_entropy(graph, x, labels);
    return keel_graph_status(graph);
}
