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

/* Two numbers of an attribute, `otherwise` where it is absent, and no less. */
static enum keel_status pair(struct build *build, const char *name, uint32_t otherwise, uint32_t out[2])
{
    const struct keel_onnx_attribute *of = keel_onnx_attribute(build, name);
    out[0] = out[1] = otherwise;
    if (of == NULL)
        return KEEL_OK;
    for (uint32_t i = 0; i < of->list_count; i++)
        if (of->list[i] < (int64_t)otherwise || of->list[i] > INT32_MAX)
            return keel_onnx_refuse_node(build, "%s of %lld, from %u on they are covered", name,
                                         (long long)of->list[i], otherwise);
    if (of->list_count != 2)
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
    if (word != NULL && !keel_onnx_text_is(word->text, "NOTSET") &&
        (of != NULL || !keel_onnx_text_is(word->text, "VALID")))
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

/* The operands and attributes of Conv and ConvTranspose, whose weights lie alike: what the one calls outputs
 * is what the other reads. */
struct conv {
    keel_value x, weights, bias;
    struct keel_conv2d_spec spec;
};

static enum keel_status check_kernel(const struct build *build, const struct value *w)
{
    const struct keel_onnx_attribute *of = keel_onnx_attribute(build, "kernel_shape");
    if (w->dims != 4)
        return keel_onnx_refuse_node(build, "a weight of %u dimensions; convolutions of images are covered",
                                     w->dims);
    if (of != NULL &&
        (of->list_count != 2 || of->list[0] != (int64_t)w->size[2] || of->list[1] != (int64_t)w->size[3]))
        return keel_onnx_refuse_node(build, "kernel_shape is not that of its weight, %llu x %llu",
                                     (unsigned long long)w->size[2], (unsigned long long)w->size[3]);
    return KEEL_OK;
}

static enum keel_status read_conv(struct build *build, struct conv *out)
{
    static const uint32_t from_oihw[] = {2, 3, 1, 0};
    struct value *x, *w, *b;
    KEEL_TRY(image(build, &x, &out->x));
    KEEL_TRY(keel_onnx_operand(build, 1, &w));
    KEEL_TRY(check_kernel(build, w));
    KEEL_TRY(pair(build, "strides", 1, out->spec.stride));
    KEEL_TRY(pair(build, "dilations", 1, out->spec.dilation));
    KEEL_TRY(padding(build, out->spec.pad));
    const int64_t groups = keel_onnx_integer_attribute(build, "group", 1);
    if (groups < 1 || groups > INT32_MAX)
        return keel_onnx_refuse_node(build, "%lld groups", (long long)groups);
    out->spec.groups = (uint32_t)groups;
    KEEL_TRY(keel_onnx_turned_weight(build, w, from_oihw, &out->weights));
    if (!keel_onnx_has_operand(build, 2))
        return KEEL_OK;
    KEEL_TRY(keel_onnx_operand(build, 2, &b));
    return keel_onnx_weight(build, b, "bias", &out->bias);
}

static enum keel_status build_conv(struct build *build)
{
    struct conv conv = {.x = 0};
    KEEL_TRY(read_conv(build, &conv));
    return give_image(build, keel_graph_conv2d(build->graph, conv.x, conv.weights, conv.bias, &conv.spec));
}

static enum keel_status build_conv_transposed(struct build *build)
{
    struct conv conv = {.x = 0};
    struct keel_conv2d_transposed_spec spec;
    if (keel_onnx_attribute(build, "output_shape") != NULL)
        return keel_onnx_refuse_node(build, "output_shape; give pads and output_padding instead");
    KEEL_TRY(read_conv(build, &conv));
    KEEL_TRY(pair(build, "output_padding", 0, spec.extra));
    memcpy(spec.stride, conv.spec.stride, sizeof spec.stride);
    memcpy(spec.pad, conv.spec.pad, sizeof spec.pad);
    memcpy(spec.dilation, conv.spec.dilation, sizeof spec.dilation);
    spec.groups = conv.spec.groups;
    return give_image(build,
                      keel_graph_conv2d_transposed(build->graph, conv.x, conv.weights, conv.bias, &spec));
}

/* ---- norms by groups of channels ----------------------------------------------------------------------- */

/* Of [n, channels, l]: channels in front are rows of a group already, and gamma and beta are columns. */
static keel_value norm_of_rows(struct keel_graph *graph, keel_value at, const struct value *x,
                               uint32_t groups, const keel_value affine[2], float epsilon)
{
    const struct keel_shape lies = {3, {x->size[0], x->size[1], x->size[2]}};
    static const enum keel_binary_kind kinds[] = {KEEL_MULTIPLY, KEEL_ADD};
    at = keel_graph_reshape(
        graph, at, (struct keel_shape){2, {lies.size[0] * groups, lies.size[1] / groups * lies.size[2]}});
    at = keel_graph_reshape(graph, keel_graph_layernorm_epsilon(graph, at, 0, 0, epsilon), lies);
    for (uint32_t i = 0; i < 2; i++)
        if (affine[i] != 0)
            at = keel_graph_binary(
                graph, at, keel_graph_reshape(graph, affine[i], (struct keel_shape){2, {lies.size[1], 1}}),
                kinds[i]);
    return at;
}

/* A scale of ones and a bias of zeros that are constants and no initializers: so exporters write a norm that
 * has neither. */
static bool says_nothing(const struct build *build, const struct value *value, float what)
{
    const struct keel_onnx_tensor *tensor = value->tensor;
    bool all = keel_onnx_is_constant(build, value);
    for (uint64_t i = 0; all && i < tensor->count; i++) {
        float x;
        memcpy(&x, tensor->bytes + sizeof x * i, sizeof x);
        all = x == what;
    }
    return all;
}

/* Scale and bias are numbers of channels: GroupNormalization of opset 18 had one for each group. */
static enum keel_status norm_by_groups(struct build *build, int64_t groups)
{
    static const char *const names[] = {"scale", "bias"};
    const float epsilon = keel_onnx_real_attribute(build, "epsilon", 1e-5F);
    struct value *x, *part[2];
    keel_value at = 0, affine[2] = {0, 0};
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    if ((x->dims != 3 && x->dims != 4) || groups < 1 || x->size[1] % (uint64_t)groups != 0)
        return keel_onnx_refuse_node(build,
                                     "%lld groups of channels, %u dimensions; three and four are covered",
                                     (long long)groups, x->dims);
    for (uint32_t i = 0; i < 2; i++) {
        KEEL_TRY(keel_onnx_operand(build, 1 + i, &part[i]));
        if (part[i]->dims != 1 || part[i]->size[0] != x->size[1])
            return keel_onnx_refuse_node(
                build, "a %s of %llu numbers; one for each of %llu channels is covered", names[i],
                (unsigned long long)keel_onnx_count_of_value(part[i]), (unsigned long long)x->size[1]);
    }
    const bool bare = says_nothing(build, part[0], 1.0F) && says_nothing(build, part[1], 0.0F);
    for (uint32_t i = 0; i < 2 && !bare; i++)
        KEEL_TRY(keel_onnx_weight(build, part[i], names[i], &affine[i]));
    if (x->dims == 3) {
        KEEL_TRY(keel_onnx_plain(build, x, &at));
        at = norm_of_rows(build->graph, at, x, (uint32_t)groups, affine, epsilon);
        return keel_onnx_give(build, at, 3, x->size, false);
    }
    KEEL_TRY(image(build, &x, &at));
    return give_image(
        build, keel_graph_group_norm(build->graph, at, affine[0], affine[1], (uint32_t)groups, epsilon));
}

static enum keel_status build_group_norm(struct build *build)
{
    const int64_t groups = keel_onnx_integer_attribute(build, "num_groups", 0);
    return norm_by_groups(build, groups > INT32_MAX ? 0 : groups);
}

static enum keel_status build_instance_norm(struct build *build)
{
    struct value *x;
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    return norm_by_groups(build, x->dims > 1 && x->size[1] <= INT32_MAX ? (int64_t)x->size[1] : 0);
}

/* ---- larger images ------------------------------------------------------------------------------------- */

static bool attribute_is(const struct build *build, const char *name, const char *otherwise, const char *word)
{
    const struct keel_onnx_attribute *of = keel_onnx_attribute(build, name);
    return of != NULL ? keel_onnx_text_is(of->text, word) : strcmp(otherwise, word) == 0;
}

/* Whether the nearest pixel, of those that a whole factor puts in its place, is the one that it is of. */
static bool repeats_pixels(const struct build *build)
{
    static const char *const middles[] = {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"};
    static const char *const modes[] = {"round_prefer_floor", "round_prefer_ceil", "floor"};
    const char *place = "coordinate_transformation_mode";
    bool middle = false, mode[3];
    for (size_t i = 0; i < 3; i++) {
        middle = middle || attribute_is(build, place, middles[0], middles[i]);
        mode[i] = attribute_is(build, "nearest_mode", modes[0], modes[i]);
    }
    return attribute_is(build, "mode", "nearest", "nearest") &&
           (middle ? mode[0] || mode[1] : attribute_is(build, place, middles[0], "asymmetric") && mode[2]);
}

/* By what each dimension grows, of operand `index`: floats, or integers that are sizes. */
static enum keel_status growth(struct build *build, uint32_t index, const struct value *x, double out[4])
{
    struct value *of;
    int64_t sizes[4];
    uint32_t count = 0;
    KEEL_TRY(keel_onnx_operand(build, index, &of));
    if (index == 3) {
        KEEL_TRY(keel_onnx_integers(build, index, sizes, 4, &count));
        for (uint32_t i = 0; i < count && i < 4; i++)
            out[i] = (double)sizes[i] / (double)x->size[i];
    } else {
        count = (uint32_t)(keel_onnx_count_of_value(of) == 4 ? 4 : 0);
        for (uint32_t i = 0; i < count; i++) {
            float scale = of->kind == VALUE_NUMBERS ? (float)of->number[i] : 0.0F;
            if (of->kind == VALUE_INITIALIZER && of->tensor->bytes != NULL)
                memcpy(&scale, of->tensor->bytes + sizeof scale * i, sizeof scale);
            out[i] = (double)scale;
        }
    }
    return count == 4 ? KEEL_OK : keel_onnx_refuse_node(build, "factors of other than four dimensions");
}

static enum keel_status build_resize(struct build *build)
{
    const bool sizes = keel_onnx_has_operand(build, 3);
    struct value *x;
    keel_value at = 0;
    double by[4] = {0, 0, 0, 0};
    KEEL_TRY(image(build, &x, &at));
    if (!repeats_pixels(build))
        return keel_onnx_refuse_node(
            build,
            "a mode that does not repeat pixels: nearest, asymmetric with floor or half_pixel, is covered");
    if (sizes == keel_onnx_has_operand(build, 2) || keel_onnx_attribute(build, "axes") != NULL ||
        keel_onnx_integer_attribute(build, "antialias", 0) != 0 ||
        !attribute_is(build, "keep_aspect_ratio_policy", "stretch", "stretch"))
        return keel_onnx_refuse_node(
            build, "scales or sizes, one of them, of all dimensions are covered, without antialias");
    KEEL_TRY(growth(build, sizes ? 3 : 2, x, by));
    bool whole = by[0] == 1.0 && by[1] == 1.0;
    for (uint32_t i = 2; i < 4; i++)
        whole = whole && by[i] >= 1.0 && by[i] <= INT32_MAX && by[i] == floor(by[i]);
    if (!whole)
        return keel_onnx_refuse_node(build, "factors of %g, %g, %g and %g; 1, 1 and whole ones are covered",
                                     by[0], by[1], by[2], by[3]);
    return give_image(
        build, keel_graph_upsample(build->graph, at, (const uint32_t[]){(uint32_t)by[2], (uint32_t)by[3]}));
}

static enum keel_status build_batch_norm(struct build *build)
{
    struct value *x, *part[4];
    keel_value at = 0, gamma = 0, beta = 0, mean = 0, variance = 0;
    const float momentum = 1.0F - keel_onnx_real_attribute(build, "momentum", 0.9F),
                epsilon = keel_onnx_real_attribute(build, "epsilon", 1e-5F);
    KEEL_TRY(keel_onnx_operand(build, 0, &x));
    if (build->node->out_count > 1 && keel_onnx_integer_attribute(build, "training_mode", 0) == 0)
        return keel_onnx_refuse_node(build, "%u results without training_mode", build->node->out_count);
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
    {"ConvTranspose", build_conv_transposed},
    {"GlobalAveragePool", build_global_avg_pool},
    {"GroupNormalization", build_group_norm},
    {"InstanceNormalization", build_instance_norm},
    {"MaxPool", build_max_pool},
    {"Resize", build_resize},
    {NULL, NULL},
};
