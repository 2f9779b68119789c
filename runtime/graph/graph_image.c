/* graph_image.c - convolution, batch norm, pools: builder functions, gradients, launches; and group norm and
 * upsampling, of operations that are there. */
#include "autodiff.h"
#include "conv_unfold.h"
#include "emit.h"

#include <keel/image_ops.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static const float norm_epsilon = 1e-5F; /* as PyTorch's default */

/* ---- convolution: builder and shapes ------------------------------------------------------------------- */

static uint32_t or_one(uint32_t given)
{
    return given == 0 ? 1 : given;
}

/* The image's size is an attribute because the gradient's result cannot be known from its operands. */
keel_value keel_graph_conv2d(struct keel_graph *graph, keel_value x, keel_value weight, keel_value bias,
                             const struct keel_conv2d_spec *spec)
{
    KEEL_ASSERT(spec != NULL);
    const struct keel_shape image = keel_graph_shape(graph, x);
    struct keel_attributes attributes = {.image = {.groups = or_one(spec->groups)}};
    for (int axis = 0; axis < 2; axis++) {
        attributes.image.size[axis] = image.size[1 + axis];
        attributes.image.stride[axis] = or_one(spec->stride[axis]);
        attributes.image.dilation[axis] = or_one(spec->dilation[axis]);
        attributes.image.pad[axis] = spec->pad[axis];
    }
    return KEEL_NODE(graph, .op = KEEL_OP_CONV2D, .in = {x, weight, bias}, .attributes = attributes);
}

/* Sizes beyond 32 bits are beyond all limits of the kernels, and stay so. */
static uint32_t narrow(uint64_t size)
{
    return size < UINT32_MAX ? (uint32_t)size : UINT32_MAX;
}

static struct keel_conv_shape conv_shape(const struct keel_attributes *attributes, uint64_t batch,
                                         const uint64_t weight[4])
{
    return (struct keel_conv_shape){
        .batch = narrow(batch),
        .height = narrow(attributes->image.size[0]),
        .width = narrow(attributes->image.size[1]),
        .channels = narrow(weight[2] * attributes->image.groups),
        .out_channels = narrow(weight[3]),
        .kernel = {narrow(weight[0]), narrow(weight[1])},
        .stride = {attributes->image.stride[0], attributes->image.stride[1]},
        .pad = {attributes->image.pad[0], attributes->image.pad[1]},
        .dilation = {attributes->image.dilation[0], attributes->image.dilation[1]},
        .groups = attributes->image.groups,
    };
}

/* Letters: b images of H x W, C channels; i x j taps of d channels each to o outputs; P x Q. */
static bool infer_conv2d(struct keel_infer *infer)
{
    uint64_t *size = infer->size;
    const struct keel_attributes *a = &infer->node->attributes;
    const uint64_t weight[4] = {size['i'], size['j'], size['d'], size['o']};
    const struct keel_conv_shape shape = conv_shape(a, size['b'], weight);
    if (size['c'] != 0 && size['c'] != shape.channels)
        return keel_infer_refuse(infer, "the weights are for %u channels in %u groups, the image has %llu",
                                 shape.channels, a->image.groups, (unsigned long long)size['c']);
    const char *fault = keel_conv_fault(&shape);
    if (fault != NULL)
        return keel_infer_refuse(infer, "stride %u x %u, padding %u x %u, dilation %u x %u, %u groups: %s",
                                 shape.stride[0], shape.stride[1], shape.pad[0], shape.pad[1],
                                 shape.dilation[0], shape.dilation[1], shape.groups, fault);
    size['H'] = shape.height;
    size['W'] = shape.width;
    size['C'] = shape.channels;
    size['P'] = keel_conv_out(&shape, 0);
    size['Q'] = keel_conv_out(&shape, 1);
    return true;
}

static void describe_conv2d(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    const struct keel_attributes *a = &node->attributes;
    snprintf(text, text_bytes, " stride=%ux%u pad=%ux%u dilation=%ux%u groups=%u", a->image.stride[0],
             a->image.stride[1], a->image.pad[0], a->image.pad[1], a->image.dilation[0], a->image.dilation[1],
             a->image.groups);
}

/* How far a transposed convolution of `size` pixels reaches along an axis; 0: nothing is left. */
static uint64_t reach_back(uint64_t size, uint64_t taps, const struct keel_conv2d_transposed_spec *spec,
                           int axis)
{
    const uint64_t whole = (size - 1) * or_one(spec->stride[axis]) +
                           (taps - 1) * or_one(spec->dilation[axis]) + 1 + spec->extra[axis],
                   cut = 2 * (uint64_t)spec->pad[axis];
    return whole > cut ? whole - cut : 0;
}

keel_value keel_graph_conv2d_transposed(struct keel_graph *graph, keel_value x, keel_value weight,
                                        keel_value bias, const struct keel_conv2d_transposed_spec *spec)
{
    KEEL_ASSERT(spec != NULL);
    const struct keel_shape from = keel_graph_shape(graph, x), taps = keel_graph_shape(graph, weight);
    struct keel_attributes attributes = {.image = {.groups = or_one(spec->groups)}};
    for (int axis = 0; axis < 2; axis++) {
        attributes.image.size[axis] = reach_back(from.size[1 + axis], taps.size[axis], spec, axis);
        attributes.image.stride[axis] = or_one(spec->stride[axis]);
        attributes.image.dilation[axis] = or_one(spec->dilation[axis]);
        attributes.image.pad[axis] = spec->pad[axis];
    }
    const keel_value y =
        KEEL_NODE(graph, .op = KEEL_OP_CONV2D_TRANSPOSED, .in = {x, weight}, .attributes = attributes);
    return bias == 0 ? y : keel_graph_binary(graph, y, bias, KEEL_ADD);
}

/* ---- group norm and upsampling ------------------------------------------------------------------------- */

/* Channels of a group side by side, and those of all its pixels: its numbers are one row of a layer norm. */
keel_value keel_graph_group_norm(struct keel_graph *graph, keel_value x, keel_value gamma, keel_value beta,
                                 uint32_t groups, float epsilon)
{
    static const uint32_t swap[] = {0, 2, 1, 3};
    const struct keel_shape image = keel_graph_shape(graph, x);
    const uint64_t channels = image.dims > 1 ? image.size[image.dims - 1] : 0;
    if (x == 0 || groups == 0 || channels == 0 || channels % groups != 0) {
        keel_graph_refuse(graph,
                          keel_fail(KEEL_INVALID, "group_norm: %u groups of %llu channels of %u dimensions",
                                    groups, (unsigned long long)channels, image.dims));
        return 0;
    }
    const uint64_t batch = image.size[0], pixels = keel_shape_count(&image) / batch / channels,
                   width = channels / groups;
    const bool apart = groups > 1 && pixels > 1; /* else they lie so */
    keel_value y = keel_graph_reshape(graph, x, (struct keel_shape){4, {batch, pixels, groups, width}});
    y = apart ? keel_graph_permute(graph, y, swap) : y;
    y = keel_graph_reshape(graph, y, (struct keel_shape){2, {batch * groups, pixels * width}});
    y = keel_graph_layernorm_epsilon(graph, y, 0, 0, epsilon);
    y = keel_graph_reshape(graph, y, (struct keel_shape){4, {batch, groups, pixels, width}});
    y = apart ? keel_graph_permute(graph, y, swap) : y;
    y = keel_graph_reshape(graph, y, image);
    y = gamma == 0 ? y : keel_graph_binary(graph, y, gamma, KEEL_MULTIPLY);
    return beta == 0 ? y : keel_graph_binary(graph, y, beta, KEEL_ADD);
}

/* Pixels across first, then whole rows, whose runs are longer. */
keel_value keel_graph_upsample(struct keel_graph *graph, keel_value x, const uint32_t factor[2])
{
    KEEL_ASSERT(factor != NULL);
    const struct keel_shape image = keel_graph_shape(graph, x);
    if (x == 0 || image.dims != 4 || factor[0] == 0 || factor[1] == 0) {
        keel_graph_refuse(graph, keel_fail(KEEL_INVALID, "upsample: %u x %u times an image of %u dimensions",
                                           factor[0], factor[1], image.dims));
        return 0;
    }
    const uint64_t rows = image.size[0] * image.size[1], pixels = rows * image.size[2],
                   channels = image.size[3], line = image.size[2] * factor[1] * channels;
    keel_value y = keel_graph_reshape(graph, x, (struct keel_shape){3, {pixels, 1, channels}});
    y = keel_graph_expand(graph, y, (struct keel_shape){3, {pixels, factor[1], channels}});
    y = keel_graph_reshape(graph, y, (struct keel_shape){3, {rows, 1, line}});
    y = keel_graph_expand(graph, y, (struct keel_shape){3, {rows, factor[0], line}});
    return keel_graph_reshape(
        graph, y,
        (struct keel_shape){4,
                            {image.size[0], image.size[1] * factor[0], image.size[2] * factor[1], channels}});
}

/* ---- batch norm and pools: builder and shapes ---------------------------------------------------------- */

/* Whether a statistic stands at more than one place of batch norms: what they add would be one sum. */
static bool is_followed(const struct keel_graph *graph, keel_value statistic)
{
    uint32_t places = 0;
    for (uint32_t n = 0; n < graph->node_count; n++)
        for (int i = 3; i < 5 && graph->nodes[n].op == KEEL_OP_BATCH_NORM; i++)
            places += graph->nodes[n].in[i] == statistic ? 1 : 0;
    return places > 1;
}

keel_value keel_graph_batch_norm(struct keel_graph *graph, keel_value x, keel_value gamma, keel_value beta,
                                 keel_value running_mean, keel_value running_variance)
{
    const keel_value statistics[2] = {running_mean, running_variance};
    keel_value y =
        KEEL_NODE(graph, .op = KEEL_OP_BATCH_NORM, .in = {x, gamma, beta, running_mean, running_variance});
    for (int i = 0; y != 0 && i < 2; i++) {
        if (!is_followed(graph, statistics[i]))
            continue;
        keel_graph_refuse(graph, keel_fail(KEEL_INVALID,
                                           "batch_norm: %s is followed already: each batch norm needs a "
                                           "running mean and a running variance of its own",
                                           graph->values[statistics[i]].name));
        return 0;
    }
    return y;
}

/* What it runs by after training must be statistics, for nothing else is kept up. */
static bool infer_batch_norm(struct keel_infer *infer)
{
    for (int i = 3; i < 5; i++) {
        const struct keel_ir_value *value = &infer->graph->values[infer->node->in[i]];
        if (value->kind == KEEL_VALUE_PARAM && infer->graph->params[value->param].statistic)
            continue;
        return keel_infer_refuse(infer, "%s is no statistic", value->name);
    }
    return true;
}

static void describe_batch_norm(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s", node->attributes.relu ? " relu" : "");
}

static struct keel_attributes pool_attributes(struct keel_graph *graph, keel_value x,
                                              const struct keel_pool_spec *spec)
{
    KEEL_ASSERT(spec != NULL);
    const struct keel_shape image = keel_graph_shape(graph, x);
    struct keel_attributes attributes = {.image = {.groups = 1}};
    for (int axis = 0; axis < 2; axis++) {
        attributes.image.size[axis] = image.size[1 + axis];
        attributes.image.kernel[axis] = spec->kernel[axis];
        attributes.image.stride[axis] = spec->stride[axis] == 0 ? spec->kernel[axis] : spec->stride[axis];
        attributes.image.pad[axis] = spec->pad[axis];
    }
    return attributes;
}

keel_value keel_graph_max_pool(struct keel_graph *graph, keel_value x, const struct keel_pool_spec *spec)
{
    return KEEL_NODE(graph, .op = KEEL_OP_MAX_POOL, .in = {x}, .attributes = pool_attributes(graph, x, spec));
}

keel_value keel_graph_avg_pool(struct keel_graph *graph, keel_value x, const struct keel_pool_spec *spec)
{
    return KEEL_NODE(graph, .op = KEEL_OP_AVG_POOL, .in = {x}, .attributes = pool_attributes(graph, x, spec));
}

keel_value keel_graph_global_avg_pool(struct keel_graph *graph, keel_value x)
{
    const struct keel_shape image = keel_graph_shape(graph, x);
    return KEEL_NODE(graph, .op = KEEL_OP_GLOBAL_AVG_POOL, .in = {x},
                     .attributes.image.size = {image.size[1], image.size[2]});
}

static struct keel_pool_shape pool_shape(const struct keel_attributes *attributes, uint64_t batch,
                                         uint64_t channels)
{
    return (struct keel_pool_shape){
        .batch = narrow(batch),
        .height = narrow(attributes->image.size[0]),
        .width = narrow(attributes->image.size[1]),
        .channels = narrow(channels),
        .kernel = {attributes->image.kernel[0], attributes->image.kernel[1]},
        .stride = {attributes->image.stride[0], attributes->image.stride[1]},
        .pad = {attributes->image.pad[0], attributes->image.pad[1]},
    };
}

static bool infer_pool(struct keel_infer *infer)
{
    uint64_t *size = infer->size;
    const struct keel_pool_shape shape = pool_shape(&infer->node->attributes, size['b'], size['c']);
    const char *fault = keel_pool_fault(&shape);
    if (fault != NULL)
        return keel_infer_refuse(infer, "windows of %u x %u, stride %u x %u, padding %u x %u: %s",
                                 shape.kernel[0], shape.kernel[1], shape.stride[0], shape.stride[1],
                                 shape.pad[0], shape.pad[1], fault);
    size['H'] = shape.height;
    size['W'] = shape.width;
    size['P'] = keel_pool_out(&shape, 0);
    size['Q'] = keel_pool_out(&shape, 1);
    return true;
}

static void describe_pool(const struct keel_ir_node *node, char *text, size_t text_bytes)
{
    const struct keel_attributes *a = &node->attributes;
    snprintf(text, text_bytes, " kernel=%ux%u stride=%ux%u pad=%ux%u", a->image.kernel[0], a->image.kernel[1],
             a->image.stride[0], a->image.stride[1], a->image.pad[0], a->image.pad[1]);
}

static bool infer_global_pool(struct keel_infer *infer)
{
    const struct keel_ir_node *node = infer->node;
    uint64_t *size = infer->size;
    size['H'] = node->attributes.image.size[0];
    size['W'] = node->attributes.image.size[1];
    if (size['H'] * size['W'] <= UINT32_MAX)
        return true;
    return keel_infer_refuse(infer, "more than 2^32 - 1 pixels");
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

static void grad_conv2d(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value x = node->in[0], weight = node->in[1], bias = node->in[2];
    const keel_value dy = arrived(autodiff, node->out[0]);
    if (wanted(autodiff, weight))
        KEEL_NODE(autodiff->graph, .op = KEEL_OP_CONV2D_DW, .in = {x, dy},
                  .into = {accumulator(autodiff, weight)}, .attributes = node->attributes);
    if (wanted(autodiff, bias))
        KEEL_NODE(autodiff->graph, .op = KEEL_OP_BIAS_GRAD, .in = {dy},
                  .into = {accumulator(autodiff, bias)});
    if (wanted(autodiff, x))
        KEEL_GRADIENT(autodiff, x, .op = KEEL_OP_CONV2D_DX, .in = {dy, weight},
                      .attributes = node->attributes);
}

/* What it was the gradient of is its own gradient. */
static void grad_conv2d_transposed(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value x = node->in[0], weight = node->in[1], dy = arrived(autodiff, node->out[0]);
    if (wanted(autodiff, weight))
        KEEL_NODE(autodiff->graph, .op = KEEL_OP_CONV2D_DW, .in = {dy, x},
                  .into = {accumulator(autodiff, weight)}, .attributes = node->attributes);
    if (wanted(autodiff, x))
        KEEL_GRADIENT(autodiff, x, .op = KEEL_OP_CONV2D, .in = {dy, weight}, .attributes = node->attributes);
}

/* Where a sum goes that the gradient of x needs: to the parameter's accumulator, or of one that is frozen to
 * a value that nobody reads. */
static keel_value sum_of(struct keel_autodiff *autodiff, keel_value param)
{
    struct keel_graph *graph = autodiff->graph;
    const keel_value sum = accumulator(autodiff, param);
    return sum != 0 ? sum
                    : keel_graph_value(graph, "frozen.grad", KEEL_F32, KEEL_VALUE_TEMP,
                                       graph->values[param].shape, 0);
}

/* The forward node adds to the statistics, now that they have accumulators. */
static void grad_batch_norm(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    const keel_value gamma = node->in[1], beta = node->in[2];
    struct keel_ir_node *forward = &autodiff->graph->nodes[autodiff->node];
    forward->out[3] = accumulator(autodiff, node->in[3]);
    forward->out[4] = accumulator(autodiff, node->in[4]);
    KEEL_GRADIENT(autodiff, node->in[0], .op = KEEL_OP_BATCH_NORM_GRAD,
                  .in = {node->in[0], gamma, node->out[1], node->out[2], arrived(autodiff, node->out[0])},
                  .into = {0, sum_of(autodiff, gamma), sum_of(autodiff, beta)});
}

static void pool_gradient(struct keel_autodiff *autodiff, const struct keel_ir_node *node, uint32_t op,
                          keel_value taps)
{
    KEEL_GRADIENT(autodiff, node->in[0], .op = op, .in = {arrived(autodiff, node->out[0]), taps},
                  .attributes = node->attributes);
}
static void grad_max_pool(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    pool_gradient(autodiff, node, KEEL_OP_MAX_POOL_GRAD, node->out[1]);
}
static void grad_avg_pool(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    pool_gradient(autodiff, node, KEEL_OP_AVG_POOL_GRAD, 0);
}
static void grad_global_avg_pool(struct keel_autodiff *autodiff, const struct keel_ir_node *node)
{
    pool_gradient(autodiff, node, KEEL_OP_GLOBAL_AVG_POOL_GRAD, 0);
}

/* ---- launches ------------------------------------------------------------------------------------------ */

/* What a native variant keeps between its launches: three parts of the workspace, or none. */
static enum keel_status conv_workspace(struct keel_emit *emit, const struct keel_conv_shape *shape, bool back,
                                       struct keel_conv_workspace *out)
{
    const struct keel_conv_workspace_bytes bytes = keel_conv_workspace_bytes(emit->kernels, shape, back);
    const uint64_t tiles_at = keel_round_up(bytes.weights, KEEL_PART_ALIGN);
    const uint64_t products_at = tiles_at + keel_round_up(bytes.tiles, KEEL_PART_ALIGN);
    need_workspace(emit, products_at + bytes.products);
    if (bytes.weights == 0 || emit->measure)
        return KEEL_OK;
    KEEL_TRY(keel_emit_workspace_part(emit, 0, bytes.weights, &out->weights));
    KEEL_TRY(keel_emit_workspace_part(emit, tiles_at, bytes.tiles, &out->tiles));
    return keel_emit_workspace_part(emit, products_at, bytes.products, &out->products);
}

static struct keel_conv_shape conv_of(const struct keel_emit *emit, const struct keel_ir_node *node,
                                      keel_value weight)
{
    return conv_shape(&node->attributes, shape_of(emit, node->in[0])->size[0], shape_of(emit, weight)->size);
}

static enum keel_status emit_conv2d(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_conv2d op = {.shape = conv_of(emit, node, node->in[1]),
                             .x = buffer_of(emit, node->in[0]),
                             .weight = buffer_of(emit, node->in[1]),
                             .bias = buffer_of(emit, node->in[2]),
                             .y = buffer_of(emit, node->out[0])};
    if (keel_conv2d_unfolds(emit->kernels, &op.shape))
        return keel_emit_unfolded(emit, &op, node->in[0], node->out[0]);
    KEEL_TRY(conv_workspace(emit, &op.shape, false, &op.workspace));
    return emit->measure ? KEEL_OK : keel_op_conv2d(emit->kernels, &op, emit->list);
}

static enum keel_status emit_conv2d_dx(struct keel_emit *emit, const struct keel_ir_node *node)
{
    struct keel_conv2d_grad_data op = {.shape = conv_of(emit, node, node->in[1]),
                                       .dy = buffer_of(emit, node->in[0]),
                                       .weight = buffer_of(emit, node->in[1]),
                                       .dx = buffer_of(emit, node->out[0])};
    if (keel_conv2d_unfolds(emit->kernels, &op.shape))
        return keel_emit_unfolded_data(emit, &op, node->in[0], node->out[0]);
    KEEL_TRY(conv_workspace(emit, &op.shape, true, &op.workspace));
    return emit->measure ? KEEL_OK : keel_op_conv2d_grad_data(emit->kernels, &op, emit->list);
}

static enum keel_status emit_conv2d_dw(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_conv2d_grad_weight op = {.shape = conv_of(emit, node, node->out[0]),
                                               .x = buffer_of(emit, node->in[0]),
                                               .dy = buffer_of(emit, node->in[1]),
                                               .dweight = buffer_of(emit, node->out[0])};
    if (keel_conv2d_unfolds(emit->kernels, &op.shape))
        return keel_emit_unfolded_weight(emit, &op, node->in[0], node->in[1]);
    return emit->measure ? KEEL_OK : keel_op_conv2d_grad_weight(emit->kernels, &op, emit->list);
}

static enum keel_status emit_batch_norm(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_batch_norm op = {.rows = rows_of(emit, node->in[0]),
                                       .n = width_of(emit, node->in[0]),
                                       .epsilon = norm_epsilon,
                                       .scale = share_of_step(emit),
                                       .relu = node->attributes.relu,
                                       .x = buffer_of(emit, node->in[0]),
                                       .gamma = buffer_of(emit, node->in[1]),
                                       .beta = buffer_of(emit, node->in[2]),
                                       .residual = buffer_of(emit, node->in[5]),
                                       .y = buffer_of(emit, node->out[0]),
                                       .mean = buffer_of(emit, node->out[1]),
                                       .rstd = buffer_of(emit, node->out[2]),
                                       .running_mean = buffer_of(emit, node->out[3]),
                                       .running_variance = buffer_of(emit, node->out[4]),
                                       .scratch = emit->workspace};
    need_workspace(emit, keel_batch_norm_scratch_bytes(op.rows, op.n));
    return emit->measure ? KEEL_OK : keel_op_batch_norm(emit->kernels, &op, emit->list);
}

static enum keel_status emit_batch_norm_eval(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_batch_norm_eval op = {.rows = rows_of(emit, node->in[0]),
                                            .n = width_of(emit, node->in[0]),
                                            .epsilon = norm_epsilon,
                                            .relu = node->attributes.relu,
                                            .x = buffer_of(emit, node->in[0]),
                                            .gamma = buffer_of(emit, node->in[1]),
                                            .beta = buffer_of(emit, node->in[2]),
                                            .residual = buffer_of(emit, node->in[5]),
                                            .y = buffer_of(emit, node->out[0]),
                                            .mean = buffer_of(emit, node->in[3]),
                                            .variance = buffer_of(emit, node->in[4])};
    return emit->measure ? KEEL_OK : keel_op_batch_norm_eval(emit->kernels, &op, emit->list);
}

static enum keel_status emit_batch_norm_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_batch_norm_grad op = {.rows = rows_of(emit, node->in[0]),
                                            .n = width_of(emit, node->in[0]),
                                            .x = buffer_of(emit, node->in[0]),
                                            .gamma = buffer_of(emit, node->in[1]),
                                            .mean = buffer_of(emit, node->in[2]),
                                            .rstd = buffer_of(emit, node->in[3]),
                                            .dy = buffer_of(emit, node->in[4]),
                                            .relu_y = buffer_of(emit, node->in[5]),
                                            .dx = buffer_of(emit, node->out[0]),
                                            .dgamma = buffer_of(emit, node->out[1]),
                                            .dbeta = buffer_of(emit, node->out[2]),
                                            .scratch = emit->workspace};
    need_workspace(emit, keel_batch_norm_scratch_bytes(op.rows, op.n));
    return emit->measure ? KEEL_OK : keel_op_batch_norm_grad(emit->kernels, &op, emit->list);
}

/* `image`: the value that has the batch and the channels, first and last. */
static struct keel_pool_shape pool_of(const struct keel_emit *emit, const struct keel_ir_node *node,
                                      keel_value image)
{
    const struct keel_shape *shape = shape_of(emit, image);
    return pool_shape(&node->attributes, shape->size[0], shape->size[shape->dims - 1]);
}

static enum keel_status emit_max_pool(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_max_pool op = {pool_of(emit, node, node->in[0]), buffer_of(emit, node->in[0]),
                                     buffer_of(emit, node->out[0]), buffer_of(emit, node->out[1])};
    return emit->measure ? KEEL_OK : keel_op_max_pool(emit->kernels, &op, emit->list);
}
static enum keel_status emit_max_pool_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_max_pool_grad op = {pool_of(emit, node, node->in[0]), buffer_of(emit, node->in[0]),
                                          buffer_of(emit, node->in[1]), buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_max_pool_grad(emit->kernels, &op, emit->list);
}
static enum keel_status emit_avg_pool(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_avg_pool op = {pool_of(emit, node, node->in[0]), buffer_of(emit, node->in[0]),
                                     buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_avg_pool(emit->kernels, &op, emit->list);
}
static enum keel_status emit_avg_pool_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_avg_pool_grad op = {pool_of(emit, node, node->in[0]), buffer_of(emit, node->in[0]),
                                          buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_avg_pool_grad(emit->kernels, &op, emit->list);
}

static enum keel_status emit_global_avg_pool(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *x = shape_of(emit, node->in[0]);
    const struct keel_global_avg_pool op = {(uint32_t)x->size[0], (uint32_t)(x->size[1] * x->size[2]),
                                            (uint32_t)x->size[3], buffer_of(emit, node->in[0]),
                                            buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_global_avg_pool(emit->kernels, &op, emit->list);
}
static enum keel_status emit_global_avg_pool_grad(struct keel_emit *emit, const struct keel_ir_node *node)
{
    const struct keel_shape *dx = shape_of(emit, node->out[0]);
    const struct keel_global_avg_pool_grad op = {(uint32_t)dx->size[0], (uint32_t)(dx->size[1] * dx->size[2]),
                                                 (uint32_t)dx->size[3], buffer_of(emit, node->in[0]),
                                                 buffer_of(emit, node->out[0])};
    return emit->measure ? KEEL_OK : keel_op_global_avg_pool_grad(emit->kernels, &op, emit->list);
}

/* ---- the table: images of b, h x w pixels, c channels; i x j taps of d channels to o outputs ---- */

enum { FIRST = KEEL_OP_CONV2D, LAST = KEEL_OP_GLOBAL_AVG_POOL_GRAD };
static const struct keel_op rows[LAST - FIRST + 1] = {
    [KEEL_OP_CONV2D - FIRST] = {.name = "conv2d",
                                .rule = "bhwc,ijdo,o?->bPQo",
                                .params = "12",
                                .flops = "2bPQijdo",
                                .infer_dims = infer_conv2d,
                                .describe = describe_conv2d,
                                .grad = grad_conv2d,
                                .emit = emit_conv2d},
    [KEEL_OP_CONV2D_DX - FIRST] = {.name = "conv2d_dx",
                                   .rule = "bPQo,ijdo->bHWC",
                                   .flops = "2bPQijdo",
                                   .infer_dims = infer_conv2d,
                                   .describe = describe_conv2d,
                                   .emit = emit_conv2d_dx},
    [KEEL_OP_CONV2D_DW - FIRST] = {.name = "conv2d_dw",
                                   .rule = "bhwc,bPQo->+ijdo",
                                   .flops = "2bPQijdo",
                                   .infer_dims = infer_conv2d,
                                   .describe = describe_conv2d,
                                   .emit = emit_conv2d_dw},
    [KEEL_OP_CONV2D_TRANSPOSED - FIRST] = {.name = "conv2d_transposed",
                                           .rule = "bPQo,ijdo->bHWC",
                                           .params = "1",
                                           .flops = "2bPQijdo",
                                           .infer_dims = infer_conv2d,
                                           .describe = describe_conv2d,
                                           .grad = grad_conv2d_transposed,
                                           .emit = emit_conv2d_dx},
    /* Operands: x, gamma, beta, running mean and variance, what is added to the result; results: y, mean, 1 /
       deviation, and what the statistics get. */
    [KEEL_OP_BATCH_NORM - FIRST] = {.name = "batch_norm",
                                    .rule = "*n,n,n,n,n,*n?->*n,n,n,+n?,+n?",
                                    .params = "12",
                                    .in_place = "0005",
                                    .infer_dims = infer_batch_norm,
                                    .describe = describe_batch_norm,
                                    .grad = grad_batch_norm,
                                    .emit = emit_batch_norm},
    [KEEL_OP_BATCH_NORM_EVAL - FIRST] = {.name = "batch_norm_eval",
                                         .rule = "*n,n,n,n,n,*n?->*n",
                                         .in_place = "0005",
                                         .infer_dims = infer_batch_norm,
                                         .describe = describe_batch_norm,
                                         .emit = emit_batch_norm_eval},
    /* Operands: x, gamma, mean, 1 / deviation, dy, the y of ReLU. */
    [KEEL_OP_BATCH_NORM_GRAD - FIRST] = {.name = "batch_norm_grad",
                                         .rule = "*n,n,n,n,*n,*n?->*n,+n,+n",
                                         .in_place = "04",
                                         .emit = emit_batch_norm_grad},
    /* Results: the largest, and the number of its tap. */
    [KEEL_OP_MAX_POOL - FIRST] = {.name = "max_pool",
                                  .rule = "bhwc->bPQc,#bPQc",
                                  .infer_dims = infer_pool,
                                  .describe = describe_pool,
                                  .grad = grad_max_pool,
                                  .emit = emit_max_pool},
    [KEEL_OP_MAX_POOL_GRAD - FIRST] = {.name = "max_pool_grad",
                                       .rule = "bPQc,#bPQc->bHWc",
                                       .infer_dims = infer_pool,
                                       .describe = describe_pool,
                                       .emit = emit_max_pool_grad},
    [KEEL_OP_AVG_POOL - FIRST] = {.name = "avg_pool",
                                  .rule = "bhwc->bPQc",
                                  .infer_dims = infer_pool,
                                  .describe = describe_pool,
                                  .grad = grad_avg_pool,
                                  .emit = emit_avg_pool},
    [KEEL_OP_AVG_POOL_GRAD - FIRST] = {.name = "avg_pool_grad",
                                       .rule = "bPQc->bHWc",
                                       .infer_dims = infer_pool,
                                       .describe = describe_pool,
                                       .emit = emit_avg_pool_grad},
    [KEEL_OP_GLOBAL_AVG_POOL - FIRST] = {.name = "global_avg_pool",
                                         .rule = "bhwc->bc",
                                         .infer_dims = infer_global_pool,
                                         .grad = grad_global_avg_pool,
                                         .emit = emit_global_avg_pool},
    [KEEL_OP_GLOBAL_AVG_POOL_GRAD - FIRST] = {.name = "global_avg_pool_grad",
                                              .rule = "bc->bHWc",
                                              .infer_dims = infer_global_pool,
                                              .emit = emit_global_avg_pool_grad},
};

const struct keel_op_family keel_ops_image = {FIRST, LAST, rows};
