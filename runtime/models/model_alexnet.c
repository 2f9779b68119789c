/* model_alexnet.c - AlexNet as torchvision has it (Krizhevsky 2014, "One weird trick for parallelizing
 * convolutional neural networks"), with the names of its weights; layouts are Keel's, as those of a residual
 * network (model_resnet.c), which `keel ckpt export --names torch` turns.
 *
 * Five convolutions, three max pools, the mean over 6 x 6 fields of the image whatever its size, and a
 * perceptron with dropout in front of its first two layers. model.width is the first convolution's channels,
 * 64 there, of which all other sizes are multiples. Weights begin as normal(0, sqrt(2 / inputs)), those of
 * the classes as normal(0, 0.01), biases as 0. */
#include "model_parts.h"

#include <math.h>

enum { FIELDS = 6, HIDDEN = 64 /* widths */, CONVOLUTIONS = 5, LAYERS = 3 };
static const float classifier_deviation = 0.01F;

/* features.NUMBER, and a max pool of 3 by stride 2 behind some. */
static const struct convolution {
    uint32_t number, size, stride, pad;
    uint32_t widths; /* of what it makes */
    bool pool;
} convolutions[CONVOLUTIONS] = {{0, 11, 4, 2, 1, true},
                                {3, 5, 1, 2, 3, true},
                                {6, 3, 1, 1, 6, false},
                                {8, 3, 1, 1, 4, false},
                                {10, 3, 1, 1, 4, true}};

static keel_value relu(struct keel_graph *graph, keel_value x)
{
    return keel_graph_activation(graph, x, KEEL_RELU);
}

static keel_value convolve(struct keel_graph *graph, const struct convolution *of, keel_value x, uint64_t in,
                           uint64_t out)
{
    const struct keel_shape shape = {4, {of->size, of->size, in, out}};
    const float deviation = sqrtf(2.0F / (float)((uint64_t)of->size * of->size * in));
    const struct keel_part_name name = keel_part_name("features.%u.weight", of->number);
    keel_value weight = keel_part_matrix(graph, name.text, shape, deviation);
    keel_value bias = keel_part_vector(graph, keel_part_name("features.%u.bias", of->number).text, out, 0.0F);
    x = relu(graph, keel_graph_conv2d(graph, x, weight, bias,
                                      &(struct keel_conv2d_spec){.stride = {of->stride, of->stride},
                                                                 .pad = {of->pad, of->pad}}));
    return of->pool
               ? keel_graph_max_pool(graph, x, &(struct keel_pool_spec){.kernel = {3, 3}, .stride = {2, 2}})
               : x;
}

/* The mean of FIELDS fields along dimension `dim` of x [batch, height, width, channels]: field i is of
 * elements floor(i size / FIELDS) to ceil((i + 1) size / FIELDS), so that they overlap where they do not
 * divide it. */
static keel_value pool_fields(struct keel_graph *graph, keel_value x, uint32_t dim)
{
    struct keel_shape shape = keel_graph_shape(graph, x);
    const uint64_t size = shape.dims > 0 ? shape.size[dim] : FIELDS;
    keel_value fields[FIELDS];
    if (size == FIELDS)
        return x;
    shape.size[dim] = 1;
    for (uint64_t i = 0; i < FIELDS; i++) {
        const uint64_t begin = i * size / FIELDS, end = ((i + 1) * size + FIELDS - 1) / FIELDS;
        const keel_value field = keel_graph_slice(graph, x, dim, begin, end - begin);
        fields[i] =
            keel_graph_reshape(graph, keel_graph_reduce(graph, field, KEEL_REDUCE_MEAN, dim, 1), shape);
    }
    return keel_graph_concat(graph, fields, FIELDS, dim);
}

/* torch's images are [channels, height, width], and so is what its perceptron reads. */
static keel_value flatten(struct keel_graph *graph, keel_value x, uint64_t batch, uint64_t channels)
{
    static const uint32_t order[] = {0, 3, 1, 2};
    return keel_graph_reshape(graph, keel_graph_permute(graph, x, order),
                              (struct keel_shape){2, {batch, channels * FIELDS * FIELDS}});
}

static keel_value classify(struct keel_graph *graph, const struct keel_alexnet_config *config, keel_value x,
                           uint64_t channels)
{
    const uint64_t hidden = (uint64_t)HIDDEN * config->width;
    const uint64_t sizes[LAYERS + 1] = {channels * FIELDS * FIELDS, hidden, hidden, config->classes};
    static const uint32_t numbers[LAYERS] = {1, 4, 6};
    for (uint32_t i = 0; i < LAYERS; i++) {
        const bool last = i + 1 == LAYERS;
        const struct keel_part_linear layer = {.in = sizes[i],
                                               .out = sizes[i + 1],
                                               .deviation = last ? classifier_deviation
                                                                 : sqrtf(2.0F / (float)sizes[i]),
                                               .bias = true};
        x = last ? x : keel_graph_dropout(graph, x, config->dropout);
        x = keel_part_linear(graph, keel_part_name("classifier.%u", numbers[i]).text, x, &layer);
        x = last ? x : relu(graph, x);
    }
    return x;
}

static enum keel_status check_config(const struct keel_alexnet_config *config)
{
    enum { SIDE_LEAST = 63 };
    const struct keel_part_size sizes[] = {{"model.width", config->width, 1, UINT32_MAX / (2 * HIDDEN)},
                                           {"model.vocab (classes)", config->classes, 1, UINT32_MAX},
                                           {"train.batch", config->batch, 1, UINT32_MAX},
                                           {"channels of an image", config->channels, 1, UINT32_MAX}};
    KEEL_TRY(keel_part_check("alexnet", sizes, sizeof sizes / sizeof sizes[0]));
    return config->height >= SIDE_LEAST && config->image_width >= SIDE_LEAST
               ? KEEL_OK
               : keel_fail(
                     KEEL_INVALID,
                     "alexnet: images of %ux%u are too small: it takes %dx%d at least; give larger ones "
                     "(of folders data.image_size), or model.kind = resnet",
                     config->height, config->image_width, SIDE_LEAST, SIDE_LEAST);
}

enum keel_status keel_model_alexnet(struct keel_graph *graph, const struct keel_alexnet_config *config)
{
    KEEL_TRY(keel_part_keep(graph, check_config(config)));
    struct keel_shape pixels = {4, {config->batch, config->height, config->image_width, config->channels}};
    keel_value x = keel_graph_input(graph, "images", KEEL_F32, pixels);
    keel_value labels = keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape){1, {config->batch}});
    uint64_t channels = config->channels;
    for (uint32_t i = 0; i < CONVOLUTIONS; i++) {
        const uint64_t out = (uint64_t)convolutions[i].widths * config->width;
        x = convolve(graph, &convolutions[i], x, channels, out);
        channels = out;
    }
    x = pool_fields(graph, pool_fields(graph, x, 1), 2);
    x = classify(graph, config, flatten(graph, x, config->batch, channels), channels);
    keel_part_classify(graph, x, labels, config->mixed);
    return keel_graph_status(graph);
}
