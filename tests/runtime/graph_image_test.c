/* graph_image_test.c - rows for images: each gradient equals finite differences, the fuse pass changes no
 * bit, statistics get the batch's, evaluation goes by them, and what makes no sense is refused with its
 * shapes. */
#include "ir.h"
#include "op_gradient.h"

enum { B = 2, H = 5, W = 4, C = 6, O = 4, IMAGE = B * H * W * C };

#define SHAPE(...)                                                                                           \
    {                                                                                                        \
        .dims = sizeof((uint64_t[]){__VA_ARGS__}) / 8, .size = { __VA_ARGS__ }                               \
    }

/* ---- convolution ---- */

struct geometry {
    int stride[2], pad[2], dilation[2], groups, kernel[2];
};
static const struct geometry strided = {{2, 1}, {1, 0}, {1, 1}, 1, {3, 2}},
                             dilated = {{1, 1}, {2, 1}, {2, 1}, 2, {3, 3}},
                             depthwise = {{1, 1}, {1, 1}, {1, 1}, 6, {3, 3}},
                             one = {{1, 1}, {0, 0}, {1, 1}, 1, {1, 1}};

static keel_value build_of(struct keel_graph *graph, const keel_value *p, const struct geometry *g)
{
    const struct keel_conv2d_spec spec = {{(uint32_t)g->stride[0], (uint32_t)g->stride[1]},
                                          {(uint32_t)g->pad[0], (uint32_t)g->pad[1]},
                                          {(uint32_t)g->dilation[0], (uint32_t)g->dilation[1]},
                                          (uint32_t)g->groups};
    return keel_graph_conv2d(graph, p[0], p[1], p[2], &spec);
}

static void conv_of(const struct op_operands *op, const struct geometry *g, int outs, double *y)
{
    const int out_h = (H + 2 * g->pad[0] - g->dilation[0] * (g->kernel[0] - 1) - 1) / g->stride[0] + 1;
    const int out_w = (W + 2 * g->pad[1] - g->dilation[1] * (g->kernel[1] - 1) - 1) / g->stride[1] + 1;
    const int in = C / g->groups, out = outs / g->groups;
    for (int at = 0; at < B * out_h * out_w * outs; at++) {
        const int o = at % outs, q = at / outs % out_w, p = at / outs / out_w % out_h,
                  b = at / outs / out_w / out_h;
        y[at] = op->param[2] != NULL ? op->param[2][o] : 0;
        for (int k = 0; k < g->kernel[0] * g->kernel[1] * in; k++) {
            const int u = p * g->stride[0] + k / in / g->kernel[1] * g->dilation[0] - g->pad[0];
            const int v = q * g->stride[1] + k / in % g->kernel[1] * g->dilation[1] - g->pad[1];
            if (u >= 0 && v >= 0 && u < H && v < W)
                y[at] += op->param[0][((b * H + u) * W + v) * C + o / out * in + k % in] *
                         op->param[1][k * outs + o];
        }
    }
}

#define CONV(name, outs)                                                                                     \
    static keel_value build_##name(struct keel_graph *graph, const keel_value *p, keel_value ids,            \
                                   keel_value input)                                                         \
    {                                                                                                        \
        (void)ids, (void)input;                                                                              \
        return build_of(graph, p, &name);                                                                    \
    }                                                                                                        \
    static void conv_##name(const struct op_operands *op, double *y)                                         \
    {                                                                                                        \
        conv_of(op, &name, outs, y);                                                                         \
    }
CONV(strided, O)
CONV(dilated, O)
CONV(depthwise, C)
CONV(one, O)

/* ---- transposed convolution: each pixel of x adds the weight to what it reaches ---- */

static const struct geometry up = {{2, 1}, {1, 0}, {1, 1}, 1, {3, 2}},
                             up_groups = {{1, 1}, {2, 1}, {2, 1}, 2, {3, 3}};
static const int up_extra[2] = {1, 0}, no_extra[2] = {0, 0};

static keel_value build_back(struct keel_graph *graph, const keel_value *p, const struct geometry *g,
                             const int *extra)
{
    struct keel_conv2d_transposed_spec spec = {.groups = (uint32_t)g->groups};
    for (int axis = 0; axis < 2; axis++) {
        spec.stride[axis] = (uint32_t)g->stride[axis];
        spec.pad[axis] = (uint32_t)g->pad[axis];
        spec.dilation[axis] = (uint32_t)g->dilation[axis];
        spec.extra[axis] = (uint32_t)extra[axis];
    }
    return keel_graph_conv2d_transposed(graph, p[0], p[1], p[2], &spec);
}

/* Of all but the last `outs` results, which begin as the bias. */
static void back_of(const struct op_operands *op, const struct geometry *g, const int *extra, int outs,
                    double *y)
{
    const int high =
        (H - 1) * g->stride[0] + g->dilation[0] * (g->kernel[0] - 1) + 1 + extra[0] - 2 * g->pad[0];
    const int wide =
        (W - 1) * g->stride[1] + g->dilation[1] * (g->kernel[1] - 1) + 1 + extra[1] - 2 * g->pad[1];
    const int to = outs / g->groups, from = C / g->groups, taps = g->kernel[0] * g->kernel[1];
    for (int at = 0; at < B * high * wide * outs; at++)
        y[at] = op->param[2] != NULL ? op->param[2][at % outs] : 0;
    for (int at = 0; at < IMAGE * taps * to; at++) {
        const int d = at % to, tap = at / to % taps, pixel = at / to / taps, c = pixel % C;
        const int u = pixel / C / W % H * g->stride[0] + tap / g->kernel[1] * g->dilation[0] - g->pad[0];
        const int v = pixel / C % W * g->stride[1] + tap % g->kernel[1] * g->dilation[1] - g->pad[1];
        if (u >= 0 && v >= 0 && u < high && v < wide)
            y[((pixel / C / W / H * high + u) * wide + v) * outs + c / from * to + d] +=
                op->param[0][pixel] * op->param[1][(tap * to + d) * C + c];
    }
}

#define BACK(name, extra)                                                                                    \
    static keel_value build_##name(struct keel_graph *graph, const keel_value *p, keel_value ids,            \
                                   keel_value input)                                                         \
    {                                                                                                        \
        (void)ids, (void)input;                                                                              \
        return build_back(graph, p, &name, extra);                                                           \
    }                                                                                                        \
    static void back_##name(const struct op_operands *op, double *y)                                         \
    {                                                                                                        \
        back_of(op, &name, extra, O, y);                                                                     \
    }
BACK(up, up_extra)
BACK(up_groups, no_extra)

/* ---- group norm, upsampling ---- */

static keel_value build_group_norm(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                   keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_group_norm(graph, p[0], p[1], p[2], 3, 1e-3F);
}
static void group_norm(const struct op_operands *op, double *y)
{
    enum { GROUPS = 3, WIDTH = C / GROUPS, N = H * W * WIDTH };
    for (int g = 0; g < B * GROUPS; g++) {
        const int first = g / GROUPS * H * W * C + g % GROUPS * WIDTH;
        double mean = 0, square = 0;
        for (int i = 0; i < N; i++)
            mean += op->param[0][first + i / WIDTH * C + i % WIDTH] / N;
        for (int i = 0; i < N; i++)
            square += pow(op->param[0][first + i / WIDTH * C + i % WIDTH] - mean, 2) / N;
        for (int i = 0; i < N; i++) {
            const int at = first + i / WIDTH * C + i % WIDTH;
            y[at] =
                (op->param[0][at] - mean) / sqrt(square + 1e-3) * op->param[1][at % C] + op->param[2][at % C];
        }
    }
}

static const uint32_t twice_thrice[2] = {2, 3};
static keel_value build_upsample(struct keel_graph *graph, const keel_value *p, keel_value ids,
                                 keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_upsample(graph, p[0], twice_thrice);
}
static void upsample(const struct op_operands *op, double *y)
{
    for (int at = 0; at < 6 * IMAGE; at++) {
        const int v = at / C % (3 * W), u = at / C / (3 * W) % (2 * H), b = at / C / (3 * W) / (2 * H);
        y[at] = op->param[0][((b * H + u / 2) * W + v / 3) * C + at % C];
    }
}

/* ---- batch norm ---- */

static keel_value statistic(struct keel_graph *graph, const char *name, float fill)
{
    const struct keel_param_spec spec = {
        .name = name, .shape = SHAPE(C), .fill = fill, .statistic = true, .momentum = 0.25F};
    return keel_graph_param(graph, &spec);
}
static keel_value norm(struct keel_graph *graph, keel_value x, keel_value gamma, keel_value beta)
{
    return keel_graph_batch_norm(graph, x, gamma, beta, statistic(graph, "mean", 0.0F),
                                 statistic(graph, "variance", 1.0F));
}

static keel_value build_norm(struct keel_graph *graph, const keel_value *p, keel_value ids, keel_value input)
{
    (void)ids, (void)input;
    return norm(graph, p[0], p[1], p[2]);
}
static keel_value build_block(struct keel_graph *graph, const keel_value *p, keel_value ids, keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_activation(graph, keel_graph_add(graph, norm(graph, p[0], p[1], p[2]), p[3]),
                                 KEEL_RELU);
}
static void batch_norm(const struct op_operands *op, double *y)
{
    for (int c = 0; c < C; c++) {
        double mean = 0, square = 0;
        for (int i = c; i < IMAGE; i += C)
            mean += op->param[0][i] * C / IMAGE;
        for (int i = c; i < IMAGE; i += C)
            square += (op->param[0][i] - mean) * (op->param[0][i] - mean) * C / IMAGE;
        for (int i = c; i < IMAGE; i += C)
            y[i] = (op->param[0][i] - mean) / sqrt(square + 1e-5) * op->param[1][c] + op->param[2][c];
    }
}
static void block(const struct op_operands *op, double *y)
{
    batch_norm(op, y);
    for (int i = 0; i < IMAGE; i++)
        y[i] = fmax(y[i] + op->param[3][i], 0);
}

/* ---- pools ---- */

static const struct keel_pool_spec windows = {{3, 2}, {2, 2}, {1, 0}};
enum { POOL_H = (H + 2 - 3) / 2 + 1, POOL_W = (W - 2) / 2 + 1, POOLED = B * POOL_H * POOL_W * C };

static void pool(const struct op_operands *op, double *y, bool max)
{
    for (int at = 0; at < POOLED; at++) {
        const int c = at % C, q = at / C % POOL_W, p = at / C / POOL_W % POOL_H, b = at / C / POOL_W / POOL_H;
        double best = -INFINITY, sum = 0;
        for (int k = 0; k < 6; k++) {
            const int u = p * 2 - 1 + k / 2, v = q * 2 + k % 2;
            if (u < 0 || u >= H)
                continue;
            best = fmax(best, op->param[0][((b * H + u) * W + v) * C + c]);
            sum += op->param[0][((b * H + u) * W + v) * C + c];
        }
        y[at] = max ? best : sum / 6;
    }
}
static keel_value build_max(struct keel_graph *graph, const keel_value *p, keel_value ids, keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_max_pool(graph, p[0], &windows);
}
static void max_pool(const struct op_operands *op, double *y)
{
    pool(op, y, true);
}
static keel_value build_avg(struct keel_graph *graph, const keel_value *p, keel_value ids, keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_avg_pool(graph, p[0], &windows);
}
static void avg_pool(const struct op_operands *op, double *y)
{
    pool(op, y, false);
}
static keel_value build_global(struct keel_graph *graph, const keel_value *p, keel_value ids,
                               keel_value input)
{
    (void)ids, (void)input;
    return keel_graph_global_avg_pool(graph, p[0]);
}
static void global_avg_pool(const struct op_operands *op, double *y)
{
    for (int at = 0; at < B * C; at++) {
        y[at] = 0;
        for (int i = 0; i < H * W; i++)
            y[at] += op->param[0][(at / C * H * W + i) * C + at % C] / (H * W);
    }
}

static const struct op_case table[] = {
    {.name = "conv2d, strided",
     .params = {SHAPE(B, H, W, C), SHAPE(3, 2, C, O), SHAPE(O)},
     .results = B * 3 * 3 * O,
     .build = build_strided,
     .forward = conv_strided},
    {.name = "conv2d, dilated, 2 groups",
     .params = {SHAPE(B, H, W, C), SHAPE(3, 3, C / 2, O)},
     .results = B * H * W * O,
     .build = build_dilated,
     .forward = conv_dilated},
    {.name = "conv2d, depthwise",
     .params = {SHAPE(B, H, W, C), SHAPE(3, 3, 1, C), SHAPE(C)},
     .results = B * H * W * C,
     .build = build_depthwise,
     .forward = conv_depthwise},
    {.name = "conv2d, one tap",
     .params = {SHAPE(B, H, W, C), SHAPE(1, 1, C, O), SHAPE(O)},
     .results = B * H * W * O,
     .build = build_one,
     .forward = conv_one},
    {.name = "conv2d_transposed",
     .params = {SHAPE(B, H, W, C), SHAPE(3, 2, O, C), SHAPE(O)},
     .results = B * 10 * 5 * O,
     .build = build_up,
     .forward = back_up},
    {.name = "conv2d_transposed, dilated, 2 groups",
     .params = {SHAPE(B, H, W, C), SHAPE(3, 3, O / 2, C)},
     .results = B * H * W * O,
     .build = build_up_groups,
     .forward = back_up_groups},
    {.name = "group_norm",
     .params = {SHAPE(B, H, W, C), SHAPE(C), SHAPE(C)},
     .results = IMAGE,
     .build = build_group_norm,
     .forward = group_norm},
    {.name = "upsample",
     .params = {SHAPE(B, H, W, C)},
     .results = 6 * IMAGE,
     .build = build_upsample,
     .forward = upsample},
    {.name = "batch_norm",
     .params = {SHAPE(B, H, W, C), SHAPE(C), SHAPE(C)},
     .results = IMAGE,
     .build = build_norm,
     .forward = batch_norm},
    {.name = "batch_norm, add, relu",
     .params = {SHAPE(B, H, W, C), SHAPE(C), SHAPE(C), SHAPE(B, H, W, C)},
     .results = IMAGE,
     .build = build_block,
     .forward = block},
    {.name = "max_pool", /* spread, so that no two are within a step of each other */
     .params = {SHAPE(B, H, W, C)},
     .spread = 2000.0F,
     .results = POOLED,
     .build = build_max,
     .forward = max_pool},
    {.name = "avg_pool",
     .params = {SHAPE(B, H, W, C)},
     .results = POOLED,
     .build = build_avg,
     .forward = avg_pool},
    {.name = "global_avg_pool",
     .params = {SHAPE(B, H, W, C)},
     .results = B * C,
     .build = build_global,
     .forward = global_avg_pool},
};

START_TEST(the_gradient_of_an_image_operation_equals_finite_differences)
{
    op_gradient_case(&table[_i], 1e-6);
}
END_TEST

/* ---- a small residual network ---- */

static keel_value param(struct keel_graph *graph, const char *name, struct keel_shape shape, float fill)
{
    return keel_graph_param(
        graph, &(struct keel_param_spec){
                   .name = name, .shape = shape, .deviation = fill == 0.0F ? 0.5F : 0.0F, .fill = fill});
}
static keel_value conv_norm(struct keel_graph *graph, keel_value x, const char *prefix)
{
    char name[4][24];
    static const char *const suffix[] = {".w", ".gamma", ".mean", ".variance"};
    for (int i = 0; i < 4; i++)
        snprintf(name[i], sizeof name[i], "%s%s", prefix, suffix[i]);
    const struct keel_conv2d_spec spec = {.pad = {1, 1}};
    keel_value y =
        keel_graph_conv2d(graph, x, param(graph, name[0], (struct keel_shape)SHAPE(3, 3, C, C), 0), 0, &spec);
    keel_value gamma = param(graph, name[1], (struct keel_shape)SHAPE(C), 1.0F);
    keel_value beta = keel_graph_param(
        graph, &(struct keel_param_spec){.name = prefix, .shape = SHAPE(C), .deviation = 0.1F});
    return keel_graph_batch_norm(graph, y, gamma, beta, statistic(graph, name[2], 0.0F),
                                 statistic(graph, name[3], 1.0F));
}
static struct keel_graph *network(void)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape)SHAPE(B, H, W, C));
    keel_value a = keel_graph_activation(graph, conv_norm(graph, x, "a"), KEEL_RELU);
    keel_value b = keel_graph_activation(graph, conv_norm(graph, a, "b"), KEEL_RELU);
    keel_value c = conv_norm(graph, b, "c"), skip = conv_norm(graph, a, "d");
    keel_value d = keel_graph_activation(graph, keel_graph_add(graph, c, skip), KEEL_RELU);
    keel_value e =
        keel_graph_activation(graph, keel_graph_add(graph, conv_norm(graph, d, "e"), d), KEEL_RELU);
    keel_value logits = keel_graph_global_avg_pool(graph, keel_graph_max_pool(graph, e, &windows));
    keel_graph_cross_entropy(graph, logits,
                             keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape)SHAPE(B)));
    ck_ok(keel_graph_status(graph));
    return graph;
}

struct net {
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_engine *engine;
    float x[IMAGE];
    int32_t labels[B * H * W]; /* B of them, or one a pixel */
    struct keel_engine_batch batch;
    const void *inputs[2];
};
/* An engine of the graph, which it takes; `config` says the rest. */
static void net_of(struct net *net, struct keel_graph *graph, const char *selector,
                   struct keel_engine_config config)
{
    const struct keel_control draw = {.seed_lo = 3};
    ck_ok(keel_device_open(selector, NULL, &net->device));
    ck_ok(keel_kernels_create(net->device, &net->kernels));
    config.device = net->device;
    config.kernels = net->kernels;
    config.graph = graph;
    config.training = true;
    ck_ok(keel_engine_create(&config, &net->engine));
    keel_graph_destroy(graph);
    ck_ok(keel_engine_initialize(net->engine, 7));
    for (uint32_t i = 0; i < IMAGE; i++)
        net->x[i] = 4 * keel_random_uniform(&draw, 1, i) - 1;
    for (int i = 0; i < B * H * W; i++)
        net->labels[i] = (i + 2) % C;
    net->inputs[0] = net->x;
    net->inputs[1] = net->labels;
    net->batch = (struct keel_engine_batch){.inputs = net->inputs};
}
static void net_open(struct net *net, const char *selector, const char *passes_off)
{
    net_of(net, network(), selector,
           (struct keel_engine_config){.microbatches = 2, .passes_off = passes_off});
}
static void net_close(struct net *net)
{
    keel_engine_destroy(net->engine);
    keel_kernels_destroy(net->kernels);
    keel_device_close(net->device);
}
/* The flat gradients after a microbatch; the caller frees. */
static float *net_gradients(struct net *net)
{
    const uint64_t count = keel_engine_flat_count(net->engine);
    float *out = op_calloc(count, sizeof *out);
    struct keel_queue *queue = keel_engine_queue(net->engine);
    ck_ok(keel_engine_zero(net->engine));
    ck_ok(keel_engine_microbatch(net->engine, &net->batch));
    ck_ok(keel_queue_read(queue, keel_engine_flat(net->engine, KEEL_FLAT_GRADIENTS), 0, out, count * 4, NULL,
                          NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
    return out;
}

START_TEST(fused_passes_leave_every_bit_as_it_was)
{
    static const char *const selectors[] = {"host", "pocl", "pocl"}, *const off[] = {"fuse,plan-memory", "",
                                                                                     "fuse"};
    float *gradients[3], logits[3][B * C];
    uint64_t count = 0;
    for (int i = 0; i < 3; i++) {
        struct net net;
        net_open(&net, selectors[i], off[i]);
        count = keel_engine_flat_count(net.engine);
        gradients[i] = net_gradients(&net);
        ck_ok(keel_engine_output(net.engine, &net.batch, 0, B, keel_deadline_after_ns(60 * KEEL_NS_PER_S),
                                 logits[i]));
        net_close(&net);
    }
    for (int i = 1; i < 3; i++) {
        ck_assert_mem_eq(gradients[0], gradients[i], count * 4);
        ck_assert_mem_eq(logits[0], logits[i], sizeof logits[0]);
    }
    for (int i = 0; i < 3; i++)
        free(gradients[i]);
}
END_TEST

/* What the ReLU lets through is too small for f16: read from where it waited, it is 0. */
static struct keel_graph *faint(void)
{
    struct keel_graph *graph = NULL;
    const struct keel_conv2d_spec spec = {.pad = {1, 1}};
    const struct keel_shape weights = SHAPE(3, 3, C, C), pixels = SHAPE(B, H, W);
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape)SHAPE(B, H, W, C));
    keel_value a = keel_graph_conv2d(graph, x, param(graph, "a", weights, 0), 0, &spec);
    keel_value gamma = keel_graph_param(graph, &(struct keel_param_spec){.name = "gamma", .shape = SHAPE(C)});
    keel_value beta = param(graph, "beta", (struct keel_shape)SHAPE(C), 1e-9F);
    keel_value norm = keel_graph_batch_norm(graph, a, gamma, beta, statistic(graph, "mean", 0.0F),
                                            statistic(graph, "variance", 1.0F));
    keel_value z = keel_graph_activation(graph, norm, KEEL_RELU);
    keel_value logits = keel_graph_conv2d(graph, z, param(graph, "b", weights, 0), 0, &spec);
    keel_graph_cross_entropy(graph, logits, keel_graph_input(graph, "labels", KEEL_I32, pixels));
    ck_ok(keel_graph_status(graph));
    return graph;
}

START_TEST(fused_passes_leave_every_bit_with_f16_storage)
{
    static const char *const off[] = {"fuse,plan-memory", ""};
    float *gradients[2];
    uint64_t count = 0;
    for (int i = 0; i < 2; i++) {
        struct net net;
        net_of(&net, faint(), "host",
               (struct keel_engine_config){
                   .storage = KEEL_F16, .loss_scale = 1024.0F, .microbatches = 1, .passes_off = off[i]});
        count = keel_engine_flat_count(net.engine);
        gradients[i] = net_gradients(&net);
        net_close(&net);
    }
    ck_assert_mem_eq(gradients[0], gradients[1], count * 4);
    for (int i = 0; i < 2; i++)
        free(gradients[i]);
}
END_TEST

/* Two convolutions that native kernels make otherwise, and what their gradients are. */
enum { WIDE_B = 2, WIDE_SIDE = 28, WIDE_C = 32, WIDE_IMAGE = WIDE_B * WIDE_SIDE * WIDE_SIDE * WIDE_C };
static struct keel_graph *wide_network(void)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value y = keel_graph_input(graph, "x", KEEL_F32,
                                    (struct keel_shape)SHAPE(WIDE_B, WIDE_SIDE, WIDE_SIDE, WIDE_C));
    const struct keel_conv2d_spec spec = {.pad = {1, 1}};
    for (int i = 0; i < 2; i++)
        y = keel_graph_conv2d(
            graph, y, param(graph, i == 0 ? "a.w" : "b.w", (struct keel_shape)SHAPE(3, 3, WIDE_C, WIDE_C), 0),
            0, &spec);
    keel_graph_cross_entropy(graph, keel_graph_global_avg_pool(graph, y),
                             keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape)SHAPE(WIDE_B)));
    ck_ok(keel_graph_status(graph));
    return graph;
}
/* Of a network, which is taken, with images of so many elements in [-scale / 2, scale / 2). */
static float *gradients_of(struct keel_graph *graph, const char *selector, enum keel_class numerics,
                           const int32_t *labels, uint32_t elements, float scale, uint64_t *count)
{
    float *x = malloc(elements * sizeof *x);
    const struct keel_control draw = {.seed_lo = 5};
    struct net net;
    ck_assert_ptr_nonnull(x);
    ck_ok(keel_device_open(selector, NULL, &net.device));
    ck_ok(keel_kernels_create_with(net.device, &(struct keel_kernels_options){.numerics = numerics},
                                   &net.kernels));
    const struct keel_engine_config config = {
        .device = net.device, .kernels = net.kernels, .graph = graph, .training = true, .microbatches = 1};
    ck_ok(keel_engine_create(&config, &net.engine));
    keel_graph_destroy(graph);
    ck_ok(keel_engine_initialize(net.engine, 7));
    for (uint32_t i = 0; i < elements; i++)
        x[i] = scale * keel_random_uniform(&draw, 1, i) - scale / 2;
    net.inputs[0] = x;
    net.inputs[1] = labels;
    net.batch = (struct keel_engine_batch){.inputs = net.inputs};
    *count = keel_engine_flat_count(net.engine);
    float *gradients = net_gradients(&net);
    net_close(&net);
    free(x);
    return gradients;
}

static float *wide_gradients(bool native, uint64_t *count)
{
    static const int32_t labels[WIDE_B] = {3, 30};
    return gradients_of(wide_network(), "pocl", native ? KEEL_NATIVE : KEEL_CANONICAL, labels, WIDE_IMAGE,
                        0.02F, count);
}

/* Three convolutions in a row, each within 2^-19 sqrt(32) of its largest (keel/image_ops.h). */
START_TEST(native_kernels_give_an_engine_the_gradients_within_their_tolerance)
{
    uint64_t count = 0;
    float *canonical = wide_gradients(false, &count), *native = wide_gradients(true, &count);
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)native[i] - (double)canonical[i]));
        largest = fmax(largest, fabs((double)canonical[i]));
    }
    ck_assert_double_gt(worst, 0); /* or the variant was not taken */
    ck_assert_double_le(worst, 3 * 0x1p-19 * sqrt(WIDE_C) * largest);
    free(canonical);
    free(native);
}
END_TEST

/* ---- classes of numerics ---- */

/* A tap in every place that a convolution may have one: groups, strides, one tap, transposed; of the second
 * there are more rows than are unfolded at a time; then two products of activations. */
enum { CLASS_SIDE = 40, CLASS_C = 32, CLASS_IMAGE = B * CLASS_SIDE * CLASS_SIDE * 8 };
static keel_value conv_of_class(struct keel_graph *graph, keel_value x, const char *name,
                                struct keel_shape taps, struct keel_conv2d_spec spec)
{
    char bias[24];
    snprintf(bias, sizeof bias, "%s.bias", name);
    const keel_value w = param(graph, name, taps, 0),
                     b = param(graph, bias, (struct keel_shape)SHAPE(taps.size[3]), 0);
    return keel_graph_activation(graph, keel_graph_conv2d(graph, x, w, b, &spec), KEEL_TANH);
}
static struct keel_graph *class_network(void)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value y =
        keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape)SHAPE(B, CLASS_SIDE, CLASS_SIDE, 8));
    y = conv_of_class(graph, y, "a", (struct keel_shape)SHAPE(1, 1, 8, CLASS_C),
                      (struct keel_conv2d_spec){.groups = 1});
    y = conv_of_class(graph, y, "b", (struct keel_shape)SHAPE(3, 3, CLASS_C, CLASS_C),
                      (struct keel_conv2d_spec){.pad = {1, 1}});
    y = conv_of_class(graph, y, "c", (struct keel_shape)SHAPE(3, 2, CLASS_C / 2, 16),
                      (struct keel_conv2d_spec){.stride = {3, 2}, .pad = {2, 0}, .groups = 2});
    y = keel_graph_conv2d_transposed(graph, y, param(graph, "d", (struct keel_shape)SHAPE(3, 3, C, 16), 0), 0,
                                     &(struct keel_conv2d_transposed_spec){.stride = {2, 1}, .pad = {1, 1}});
    static const uint32_t turn[] = {0, 2, 1};
    const struct keel_shape shape = keel_graph_shape(graph, y);
    const uint64_t pixels = shape.size[1] * shape.size[2];
    y = keel_graph_reshape(graph, y, (struct keel_shape)SHAPE(B, pixels, C));
    const keel_value pairs = keel_graph_matmul(graph, keel_graph_permute(graph, y, turn), y);
    y = keel_graph_matmul(graph, y, keel_graph_scale(graph, pairs, 1.0F / (float)pixels, 1.0F));
    keel_graph_cross_entropy(graph, keel_graph_reduce(graph, y, KEEL_REDUCE_MEAN, 1, 1),
                             keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape)SHAPE(B)));
    ck_ok(keel_graph_status(graph));
    return graph;
}
static float *class_gradients(const char *selector, enum keel_class numerics, uint64_t *count)
{
    static const int32_t labels[B] = {3, 1};
    return gradients_of(class_network(), selector, numerics, labels, CLASS_IMAGE, 0.2F, count);
}

START_TEST(products_of_images_and_activations_have_the_bits_of_their_class_everywhere)
{
    static const struct {
        enum keel_class numerics;
        double bound; /* of the largest gradient */
    } classes[] = {{KEEL_EXACT8X2, 1e-3}, {KEEL_EXACT8X3, 3e-6}, {KEEL_CLASS_BF16, 3e-2}};
    uint64_t count = 0;
    float *canonical = class_gradients("pocl", KEEL_CANONICAL, &count),
          *host = class_gradients("host", classes[_i].numerics, &count),
          *pocl = class_gradients("pocl", classes[_i].numerics, &count);
    double worst = 0, largest = 0;
    ck_assert_mem_eq(host, pocl, count * sizeof *host);
    for (uint64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)host[i] - (double)canonical[i]));
        largest = fmax(largest, fabs((double)canonical[i]));
    }
    printf("note: %s: gradients differ by %.2g of the largest\n", keel_class_name(classes[_i].numerics),
           worst / largest);
    ck_assert_double_gt(worst, 0); /* or they are canonical */
    ck_assert_double_le(worst, classes[_i].bound * largest);
    free(canonical);
    free(host);
    free(pocl);
}
END_TEST

static uint32_t nodes_of(const struct keel_graph *graph, const char *name)
{
    char line[512];
    uint32_t found = 0;
    FILE *file;
    ck_ok(keel_graph_dump(graph, "build/graph_image_test.txt"));
    file = fopen("build/graph_image_test.txt", "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL)
        found += strstr(line, name) != NULL;
    fclose(file);
    remove("build/graph_image_test.txt");
    return found;
}

START_TEST(batch_norm_takes_in_the_addition_and_the_relu_after_it)
{
    struct keel_graph *train = network(), *eval = network();
    ck_ok(keel_pass_autodiff(train));
    ck_assert_uint_eq(nodes_of(train, "activation_grad("), 4);
    ck_ok(keel_pass_fuse(train, KEEL_FUSE_IMAGE));
    ck_assert_uint_eq(nodes_of(train, "activation("), 0);
    ck_assert_uint_eq(nodes_of(train, "activation_grad("), 2); /* of additions: read twice */
    ck_assert_uint_eq(nodes_of(train, "batch_norm("), 5);
    ck_ok(keel_pass_inference(eval));
    ck_ok(keel_pass_fuse(eval, KEEL_FUSE_ALL));
    ck_assert_uint_eq(nodes_of(eval, "activation(") + nodes_of(eval, " add("), 0);
    ck_assert_uint_eq(nodes_of(eval, "batch_norm_eval("), 5);
    keel_graph_destroy(train);
    keel_graph_destroy(eval);
}
END_TEST

/* x goes through the first convolution alone, so its batch statistics are computed here in double. */
START_TEST(statistics_get_the_share_of_the_batch_that_the_step_has)
{
    struct net net;
    net_open(&net, "host", NULL);
    float *gradients = net_gradients(&net), weights[9 * C * C];
    const struct keel_tile *w = keel_engine_tile(net.engine, 0), *mean = NULL, *variance = NULL;
    for (uint32_t i = 0; i < keel_engine_param_count(net.engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(net.engine, i);
        const char *name = keel_engine_param(net.engine, tile->param)->name;
        w = strcmp(name, "a.w") == 0 ? tile : w;
        mean = strcmp(name, "a.mean") == 0 ? tile : mean;
        variance = strcmp(name, "a.variance") == 0 ? tile : variance;
    }
    ck_assert(mean != NULL && variance != NULL);
    ck_ok(keel_queue_read(keel_engine_queue(net.engine), keel_engine_flat(net.engine, KEEL_FLAT_WEIGHTS),
                          w->offset * 4, weights, sizeof weights, NULL, NULL));
    ck_ok(keel_queue_finish(keel_engine_queue(net.engine), keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
    static const struct geometry same = {{1, 1}, {1, 1}, {1, 1}, 1, {3, 3}};
    double x[IMAGE], wide[9 * C * C], y[IMAGE];
    for (int i = 0; i < IMAGE; i++)
        x[i] = (double)net.x[i];
    for (int i = 0; i < 9 * C * C; i++)
        wide[i] = (double)weights[i];
    conv_of(&(struct op_operands){.param = {x, wide}}, &same, C, y);
    for (int c = 0; c < C; c++) {
        const double pixels = B * H * W;
        double m = 0, v = 0;
        for (int i = c; i < IMAGE; i += C)
            m += y[i] * C / IMAGE;
        for (int i = c; i < IMAGE; i += C)
            v += (y[i] - m) * (y[i] - m) / (pixels - 1);
        ck_assert_double_eq_tol((double)gradients[mean->offset + (uint64_t)c], m / 2, 1e-5);
        ck_assert_double_eq_tol((double)gradients[variance->offset + (uint64_t)c], v / 2, 1e-5 * v);
    }
    free(gradients);
    net_close(&net);
}
END_TEST

/* Two norms of x, of which the loss sees one: no gradient reaches the other. */
START_TEST(a_statistic_that_no_batch_moves_stays)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape)SHAPE(B, H, W, C));
    keel_value labels = keel_graph_input(graph, "labels", KEEL_I32, (struct keel_shape)SHAPE(B));
    conv_norm(graph, x, "idle");
    keel_graph_cross_entropy(graph, keel_graph_global_avg_pool(graph, conv_norm(graph, x, "a")), labels);
    struct net net;
    net_of(&net, graph, "host", (struct keel_engine_config){.microbatches = 1});
    free(net_gradients(&net));
    const struct keel_engine_update update = {.learning_rate = 1e-3F, .settings = {.epsilon = 1e-8F}};
    struct keel_engine_updated updated;
    ck_ok(keel_engine_update(net.engine, &update, keel_deadline_after_ns(60 * KEEL_NS_PER_S), &updated));
    uint32_t seen = 0;
    for (uint32_t i = 0; i < keel_engine_param_count(net.engine); i++) {
        const struct keel_engine_param *p = keel_engine_param(net.engine, i);
        const bool idle = strcmp(p->name, "idle.variance") == 0;
        float values[C];
        if (!idle && strcmp(p->name, "a.variance") != 0)
            continue;
        ck_ok(keel_queue_read(keel_engine_queue(net.engine), keel_engine_flat(net.engine, KEEL_FLAT_WEIGHTS),
                              keel_engine_tile(net.engine, i)->offset * 4, values, sizeof values, NULL,
                              NULL));
        ck_ok(keel_queue_finish(keel_engine_queue(net.engine), keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
        for (int c = 0; c < C; c++)
            ck_assert_msg((values[c] == 1.0F) == idle, "%s is %g", p->name, (double)values[c]);
        seen++;
    }
    ck_assert_uint_eq(seen, 2);
    net_close(&net);
}
END_TEST

/* ---- what is refused ---- */

struct bad {
    const char *says;
    struct keel_shape image, weight;
    struct keel_conv2d_spec conv;
    struct keel_pool_spec pool;
};
static const struct bad bad[] = {
    {"conv2d([2,5,4,6], [3,3,5,4]): the weights are for 5 channels in 1 groups, the image has 6",
     SHAPE(B, H, W, C),
     SHAPE(3, 3, 5, 4),
     {.groups = 1},
     {{0}, {0}, {0}}},
    {"conv2d([2,5,4,6], [3,3,6,4]): the weights are for 24 channels in 4 groups",
     SHAPE(B, H, W, C),
     SHAPE(3, 3, 6, 4),
     {.groups = 4},
     {{0}, {0}, {0}}},
    {"conv2d([2,5,4,6], [3,3,2,4]): stride 1 x 1, padding 0 x 0, dilation 1 x 1, 3 groups: the groups do not",
     SHAPE(B, H, W, C),
     SHAPE(3, 3, 2, 4),
     {.groups = 3},
     {{0}, {0}, {0}}},
    {"conv2d([2,5,4,6], [7,3,6,4]): stride 1 x 1, padding 0 x 1, dilation 1 x 1, 1 groups: the kernel is "
     "larger",
     SHAPE(B, H, W, C),
     SHAPE(7, 3, 6, 4),
     {.pad = {0, 1}},
     {{0}, {0}, {0}}},
    {"conv2d([2,5,4], [3,3,6,4]): ", SHAPE(B, H, W), SHAPE(3, 3, 6, 4), {.groups = 1}, {{0}, {0}, {0}}},
    {"max_pool([2,5,4,6]): windows of 6 x 2, stride 6 x 2, padding 0 x 0: the window is larger",
     SHAPE(B, H, W, C),
     {0, {0}},
     {.groups = 0},
     {{6, 2}, {0}, {0}}},
    {"max_pool([2,5,4,6]): windows of 2 x 2, stride 2 x 2, padding 2 x 0: windows of padding alone",
     SHAPE(B, H, W, C),
     {0, {0}},
     {.groups = 0},
     {{2, 2}, {0}, {2, 0}}},
    {"max_pool([2,5,4,6]): windows of 0 x 0", SHAPE(B, H, W, C), {0, {0}}, {.groups = 0}, {{0}, {0}, {0}}},
};

START_TEST(what_makes_no_sense_is_refused_when_the_graph_is_built)
{
    const struct bad *of = &bad[_i];
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, of->image);
    if (of->weight.dims != 0)
        keel_graph_conv2d(graph, x, keel_graph_input(graph, "w", KEEL_F32, of->weight), 0, &of->conv);
    else
        keel_graph_max_pool(graph, x, &of->pool);
    ck_status(keel_graph_status(graph), KEEL_INVALID);
    ck_assert_msg(strncmp(keel_detail(), of->says, strlen(of->says)) == 0, "%s", keel_detail());
    keel_graph_destroy(graph);
}
END_TEST

START_TEST(groups_and_factors_that_make_no_sense_are_refused_by_name)
{
    static const struct {
        uint32_t groups, factor[2];
        float epsilon;
        const char *says;
    } wrong[] = {
        {4, {0, 0}, 1e-5F, "group_norm: 4 groups of 6 channels of 4 dimensions"},
        {0, {0, 2}, 0, "upsample: 0 x 2 times an image of 4 dimensions"},
        {0, {UINT32_MAX, 2}, 0, "[10,4294967295,48]: a tensor has 1 to 4 dimensions"},
        {2, {0, 0}, 0.0F, "layernorm: the epsilon 0 is not in (0, 1)"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct keel_graph *graph = NULL;
        ck_ok(keel_graph_create(&graph));
        keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape)SHAPE(B, H, W, C));
        if (wrong[i].groups > 0)
            keel_graph_group_norm(graph, x, 0, 0, wrong[i].groups, wrong[i].epsilon);
        else
            keel_graph_upsample(graph, x, wrong[i].factor);
        ck_status(keel_graph_status(graph), KEEL_INVALID);
        ck_assert_msg(strstr(keel_detail(), wrong[i].says) != NULL, "%s", keel_detail());
        keel_graph_destroy(graph);
    }
}
END_TEST

START_TEST(batch_norm_without_statistics_is_refused)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape)SHAPE(B, H, W, C));
    keel_value gamma = param(graph, "gamma", (struct keel_shape)SHAPE(C), 1.0F);
    keel_graph_batch_norm(graph, x, gamma, gamma, statistic(graph, "mean", 0.0F), gamma);
    ck_status(keel_graph_status(graph), KEEL_INVALID);
    ck_assert_ptr_nonnull(
        strstr(keel_detail(), "batch_norm([2,5,4,6], [6], [6], [6], [6]): gamma is no statistic"));
    keel_graph_destroy(graph);
}
END_TEST

START_TEST(a_statistic_of_another_batch_norm_is_refused_by_name)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "x", KEEL_F32, (struct keel_shape)SHAPE(B, H, W, C));
    keel_value gamma = param(graph, "gamma", (struct keel_shape)SHAPE(C), 1.0F);
    keel_value mean = statistic(graph, "mean", 0.0F);
    keel_value y = keel_graph_batch_norm(graph, x, gamma, gamma, mean,
                                         _i == 0 ? mean : statistic(graph, "variance", 1.0F));
    if (_i != 0)
        keel_graph_batch_norm(graph, y, gamma, gamma, statistic(graph, "other", 0.0F), mean);
    ck_status(keel_graph_status(graph), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "batch_norm: mean is followed already"));
    keel_graph_destroy(graph);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, the_gradient_of_an_image_operation_equals_finite_differences, 0,
                        sizeof table / sizeof *table);
    tcase_add_test(tc, fused_passes_leave_every_bit_as_it_was);
    tcase_add_test(tc, fused_passes_leave_every_bit_with_f16_storage);
    tcase_add_test(tc, native_kernels_give_an_engine_the_gradients_within_their_tolerance);
    tcase_add_loop_test(tc, products_of_images_and_activations_have_the_bits_of_their_class_everywhere, 0, 3);
    tcase_add_test(tc, batch_norm_takes_in_the_addition_and_the_relu_after_it);
    tcase_add_test(tc, statistics_get_the_share_of_the_batch_that_the_step_has);
    tcase_add_test(tc, a_statistic_that_no_batch_moves_stays);
    tcase_add_loop_test(tc, what_makes_no_sense_is_refused_when_the_graph_is_built, 0,
                        sizeof bad / sizeof *bad);
    tcase_add_test(tc, groups_and_factors_that_make_no_sense_are_refused_by_name);
    tcase_add_test(tc, batch_norm_without_statistics_is_refused);
    tcase_add_loop_test(tc, a_statistic_of_another_batch_norm_is_refused_by_name, 0, 2);
}
KEEL_TEST_MAIN("graph_image", cases, 60)
