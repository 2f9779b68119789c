/* onnx_images.c - operators on images, which the graph has as [n, h, w, c]. */
#include "onnx_build.h"

#include <math.h>
#include <string.h>

/* An operand of four dimensions, as images lie. */
static enum keel_status image(struct build *build, struct value **out, keel_value *at)
{
    static const uint32_t to_nhwc[] = {0, 2, 3, 1};
    KEEL_TRY(keel_onnx_operand(build, 0, out));
    if ((*out)->dims != 4)
        return keel_onnx_refuse_node(build, "%u dimensions; images [n, c, h, w] are covered", (*out)->dims);
    if ((*out)->kind == VALUE_GRAPH && (*out)->nhwc) {
        *at = (*out)->at;
        return KEEL_OK;
    }
    KEEL_TRY(keel_onnx_plain(build, *out, at));
    *at = keel_graph_permute(build->graph, *at, to_nhwc);
    return keel_graph_status(build->graph);
}

static enum keel_status give_image(struct build *build, keel_value at)
{
    const struct keel_shape lies = keel_graph_shape(build->graph, at);
    const uint64_t size[4] = {lies.size[0], lies.size[3], lies.size[1], lies.size[2]};
    return keel_onnx_give(build, at, 4, size, true);
}

/* Two positive numbers of an attribute; `otherwise` where it is absent. */
static enum keel_status pair(struct build *build, const char *name, uint32_t otherwise, uint32_t out[2])
{
    const struct keel_onnx_attribute *of = keel_onnx_attribute(build, name);
    out[0] = out[1] = otherwise;
    if (of == NULL)
        return KEEL_OK;
    if (of->list_count != 2 || of->list[0] < 0 || of->list[1] < 0 || of->list[0] > INT32_MAX ||
        of->list[1] > INT32_MAX)
        return keel_onnx_refuse_node(build, "%s of %u numbers; two are covered", name, of->list_count);
    out[0] = (uint32_t)of->list[0];
    out[1] = (uint32_t)of->list[1];
    return KEEL_OK;
}

/* As much padding in front as behind. */
static enum keel_status padding(struct build *build, uint32_t out[2])
{
    const struct keel_onnx_attribute *of = keel_onnx_attribute(build, "pads"),
                                     *word = keel_onnx_attribute(build, "auto_pad");
    out[0] = out[1] = 0;
    if (word != NULL && word->text.bytes > 0 && !keel_onnx_text_is(word->text, "NOTSET") &&
        !keel_onnx_text_is(word->text, "VALID"))
        return keel_onnx_refuse_node(build, "auto_pad; give pads instead");
    if (of == NULL)
        return KEEL_OK;
    if (of->list_count != 4 || of->list[0] != of->list[2] || of->list[1] != of->list[3] || of->list[0] < 0 ||
        of->list[1] < 0 || of->list[0] > INT32_MAX || of->list[1] > INT32_MAX)
        return keel_onnx_refuse_node(build, "pads that are not four numbers, alike in front and behind");
    out[0] = (uint32_t)of->list[0];
    out[1] = (uint32_t)of->list[1];
    return KEEL_OK;
}

static enum keel_status build_conv(struct build *build)
{
    static const uint32_t from_oihw[] = {2, 3, 1, 0};
    struct keel_conv2d_spec spec = {.groups = 0};
    struct value *x, *w, *b;
    keel_value at = 0, weights = 0, bias = 0;
    KEEL_TRY(image(build, &x, &at));
    KEEL_TRY(keel_onnx_operand(build, 1, &w));
    if (w->dims != 4)
        return keel_onnx_refuse_node(build, "a weight of %u dimensions; convolutions of images are covered",
                                     w->dims);
    KEEL_TRY(pair(build, "strides", 1, spec.stride));
    KEEL_TRY(pair(build, "dilations", 1, spec.dilation));
    KEEL_TRY(padding(build, spec.pad));
    const int64_t groups = keel_onnx_integer_attribute(build, "group", 1);
    if (groups < 1 || groups > INT32_MAX)
        return keel_onnx_refuse_node(build, "%lld groups", (long long)groups);
    spec.groups = (uint32_t)groups;
    KEEL_TRY(keel_onnx_turned_weight(build, w, from_oihw, &weights));
    if (keel_onnx_has_operand(build, 2)) {
        KEEL_TRY(keel_onnx_operand(build, 2, &b));
        KEEL_TRY(keel_onnx_weight(build, b, "bias", &bias));
    }
    return give_image(build, keel_graph_conv2d(build->graph, at, weights, bias, &spec));
}

static enum keel_status build_batch_norm(struct build *build)
{
    struct value *x, *part[4];
    keel_value at = 0, gamma = 0, beta = 0, mean = 0, variance = 0;
    const float momentum = 1.0F - keel_onnx_real_attribute(build, "momentum", 0.9F),
                epsilon = keel_onnx_real_attribute(build, "epsilon", 1e-5F);
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    if (fabsf(epsilon - 1e-5F) > 1e-8F)
        return keel_onnx_refuse_node(build, "epsilon = %g; 1e-5 is covered", (double)epsilon);
    for (uint32_t i = 0; i < 4; i++)
        KEEL_TRY(keel_onnx_operand(build, 1 + i, &part[i]));
    KEEL_TRY(keel_onnx_weight(build, part[0], "scale", &gamma));
    KEEL_TRY(keel_onnx_weight(build, part[1], "bias", &beta));
    KEEL_TRY(keel_onnx_statistic(build, part[2], momentum, &mean));
    KEEL_TRY(keel_onnx_statistic(build, part[3], momentum, &variance));
    if (x->dims == 4)
        KEEL_TRY(image(build, &x, &at));
    else if (x->dims == 2)
        KEEL_TRY(keel_onnx_plain(build, x, &at));
    else
        return keel_onnx_refuse_node(build, "%u dimensions; two and four are covered", x->dims);
    at = keel_graph_batch_norm(build->graph, at, gamma, beta, mean, variance);
    return x->dims == 4 ? give_image(build, at) : keel_onnx_give(build, at, 2, x->size, false);
}

static enum keel_status pool_spec(struct build *build, struct keel_pool_spec *out)
{
    uint32_t dilation[2];
    KEEL_TRY(pair(build, "kernel_shape", 0, out->kernel));
    KEEL_TRY(pair(build, "strides", 1, out->stride));
    KEEL_TRY(pair(build, "dilations", 1, dilation));
    KEEL_TRY(padding(build, out->pad));
    if (keel_onnx_integer_attribute(build, "ceil_mode", 0) != 0 || dilation[0] != 1 || dilation[1] != 1 ||
        build->node->out_count > 1)
        return keel_onnx_refuse_node(build, "ceil_mode, dilations or indices are not covered");
    return KEEL_OK;
}

static enum keel_status build_max_pool(struct build *build)
{
    struct keel_pool_spec spec;
    struct value *x;
    keel_value at = 0;
    KEEL_TRY(pool_spec(build, &spec));
    KEEL_TRY(image(build, &x, &at));
    return give_image(build, keel_graph_max_pool(build->graph, at, &spec));
}

static enum keel_status build_avg_pool(struct build *build)
{
    struct keel_pool_spec spec;
    struct value *x;
    keel_value at = 0;
    KEEL_TRY(pool_spec(build, &spec));
    KEEL_TRY(image(build, &x, &at));
    if (keel_onnx_integer_attribute(build, "count_include_pad", 0) == 0 && (spec.pad[0] | spec.pad[1]) != 0)
        return keel_onnx_refuse_node(build, "padding that does not count is not covered");
    return give_image(build, keel_graph_avg_pool(build->graph, at, &spec));
}

static enum keel_status build_global_avg_pool(struct build *build)
{
    struct value *x;
    keel_value at = 0;
    KEEL_TRY(image(build, &x, &at));
    const uint64_t size[4] = {x->size[0], x->size[1], 1, 1};
    return keel_onnx_give_reshaped(build, keel_graph_global_avg_pool(build->graph, at), 4, size);
}

const struct keel_onnx_operator keel_onnx_images[] = {
    {"AveragePool", build_avg_pool},
    {"BatchNormalization", build_batch_norm},
    {"Conv", build_conv},
    {"GlobalAveragePool", build_global_avg_pool},
    {"MaxPool", build_max_pool},
    {NULL, NULL},
};
