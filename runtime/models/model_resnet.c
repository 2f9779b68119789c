/* model_resnet.c - residual networks (He et al. 2016, "Deep Residual Learning for Image Recognition"), with
 * the names of torchvision's weights; layouts are Keel's (convolutions [height, width, in, out], matrices
 * [in, out]), which `keel ckpt export --names torch` turns.
 *
 * A block is of two convolutions or, as a bottleneck, of three; there the middle one has the stride, as in
 * torchvision. Where a block changes the size, the shortcut is a 1x1 convolution with its own norm (option
 * B). The norm comes after each convolution, which has no bias. Convolutions begin as normal(0, sqrt(2 /
 * (height width out))) (He et al. 2015, outputs counted), the classifier as normal(0, 0.01), running
 * statistics with momentum 0.1. */
#include "model_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const float classifier_deviation = 0.01F, statistics_momentum = 0.1F;

/* The networks of the paper's table 1, by the number of their layers with weights. */
enum { STAGES = 4, BOTTLENECK = 4 /* what such a block makes, over what it computes with */ };
static const struct depth {
    uint32_t depth;
    bool bottleneck;
    uint32_t blocks[STAGES];
} depths[] = {{18, false, {2, 2, 2, 2}},
              {34, false, {3, 4, 6, 3}},
              {50, true, {3, 4, 6, 3}},
              {101, true, {3, 4, 23, 3}},
              {152, true, {3, 8, 36, 3}}};

/* What a configuration asks for: a row of the table, or so many blocks in each stage. */
struct plan {
    uint32_t stages;
    bool bottleneck;
    uint32_t blocks[KEEL_RESNET_STAGES_MAX];
};

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

static keel_value conv_norm(struct keel_graph *graph, const char *prefix, uint32_t number, keel_value x,
                            const struct conv *sizes)
{
    x = conv(graph, keel_part_name("%s.conv%u", prefix, number).text, x, sizes);
    return norm(graph, keel_part_name("%s.bn%u", prefix, number).text, x, sizes->out);
}

/* relu(f(x) + shortcut), where f is conv, norm and relu by turns, and ends with a norm. `sizes`: of the
 * block, whose size is that of the largest convolution. */
static keel_value block(struct keel_graph *graph, const char *prefix, keel_value x, const struct conv *sizes,
                        bool bottleneck)
{
    const uint64_t inner = bottleneck ? sizes->out / BOTTLENECK : sizes->out;
    const struct conv two[] = {{sizes->in, inner, sizes->size, sizes->stride},
                               {inner, inner, sizes->size, 1}};
    const struct conv three[] = {
        {sizes->in, inner, 1, 1}, {inner, inner, sizes->size, sizes->stride}, {inner, sizes->out, 1, 1}};
    const struct conv across = {.in = sizes->in, .out = sizes->out, .size = 1, .stride = sizes->stride};
    const struct conv *convs = bottleneck ? three : two;
    const uint32_t count = bottleneck ? 3 : 2;
    keel_value y = x;
    for (uint32_t i = 0; i < count; i++)
        y = conv_norm(graph, prefix, i + 1, i > 0 ? relu(graph, y) : y, &convs[i]);
    if (sizes->in != sizes->out || sizes->stride != 1) {
        x = conv(graph, keel_part_name("%s.downsample.0", prefix).text, x, &across);
        x = norm(graph, keel_part_name("%s.downsample.1", prefix).text, x, sizes->out);
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

/* INVALID: a depth that the table does not have. */
static enum keel_status make_plan(const struct keel_resnet_config *config, struct plan *out)
{
    const size_t count = sizeof depths / sizeof depths[0];
    char known[64];
    size_t length = 0;
    *out = (struct plan){.stages = config->stages, .bottleneck = config->bottleneck};
    for (uint32_t stage = 0; config->depth == 0 && stage < KEEL_RESNET_STAGES_MAX; stage++)
        out->blocks[stage] = config->blocks;
    if (config->depth == 0)
        return KEEL_OK;
    for (size_t i = 0; i < count; i++) {
        length += (size_t)snprintf(known + length, sizeof known - length, "%s%u", i > 0 ? ", " : "",
                                   depths[i].depth);
        if (depths[i].depth != config->depth)
            continue;
        *out = (struct plan){.stages = STAGES, .bottleneck = depths[i].bottleneck};
        memcpy(out->blocks, depths[i].blocks, sizeof depths[i].blocks);
        return KEEL_OK;
    }
    return keel_fail(KEEL_INVALID,
                     "resnet: model.depth = %u: one of %s is known; or 0, with model.stages and model.layers",
                     config->depth, known);
}

static enum keel_status check_config(const struct keel_resnet_config *config, const struct plan *plan)
{
    const struct keel_part_size sizes[] = {{"model.stages", plan->stages, 1, KEEL_RESNET_STAGES_MAX},
                                           {"model.layers", plan->blocks[0], 1, KEEL_MODEL_LAYERS_MAX},
                                           {"model.width", config->width, 1, UINT32_MAX},
                                           {"model.vocab (classes)", config->classes, 1, UINT32_MAX},
                                           {"train.batch", config->batch, 1, UINT32_MAX},
                                           {"channels of an image", config->channels, 1, UINT32_MAX}};
    KEEL_TRY(keel_part_check("resnet", sizes, sizeof sizes / sizeof sizes[0]));
    uint32_t smallest = (1U << (plan->stages - 1)) * (config->large_stem ? 4 : 1);
    if (config->height < smallest || config->image_width < smallest)
        return keel_fail(
            KEEL_INVALID, "resnet: images of %ux%u are too small for %s = %u%s, which take %ux%u at least",
            config->height, config->image_width, config->depth > 0 ? "model.depth" : "model.stages",
            config->depth > 0 ? config->depth : plan->stages,
            config->large_stem ? " with model.stem = large" : "", smallest, smallest);
    return KEEL_OK;
}

enum keel_status keel_model_resnet(struct keel_graph *graph, const struct keel_resnet_config *config)
{
    struct plan plan = {.stages = 0};
    KEEL_TRY(keel_part_keep(graph, make_plan(config, &plan)));
    KEEL_TRY(keel_part_keep(graph, check_config(config, &plan)));
    struct keel_shape pixels = {4, {config->batch, config->height, config->image_width, config->channels}};
    keel_value images = keel_graph_input(graph, "images", KEEL_F32, pixels);
    keel_value labels = keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape){1, {config->batch}});
    keel_value x = stem(graph, config, images);
    uint64_t width = config->width;
    for (uint32_t stage = 0; stage < plan.stages; stage++)
        for (uint32_t number = 0; number < plan.blocks[stage]; number++) {
            const struct conv sizes = {.in = width,
                                       .out = ((uint64_t)config->width << stage) *
                                              (plan.bottleneck ? BOTTLENECK : 1),
                                       .size = 3,
                                       .stride = stage > 0 && number == 0 ? 2 : 1};
            x = block(graph, keel_part_name("layer%u.%u", stage + 1, number).text, x, &sizes,
                      plan.bottleneck);
            width = sizes.out;
        }
    x = keel_part_linear(
        graph, "fc", keel_graph_global_avg_pool(graph, x),
        &(struct keel_part_linear){
            .in = width, .out = config->classes, .deviation = classifier_deviation, .bias = true});
    keel_part_classify(graph, x, labels, config->mixed);
    return keel_graph_status(graph);
}
