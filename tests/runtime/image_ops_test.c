/* image_ops_test.c - random transposed convolutions, group norms and upsamplings: results and gradients
 * against the formulas in double, and the same bits on the host and on PoCL's two drivers. They are made of
 * operations that have tests of their own, so what is tried here is how they are put together.
 * KEEL_IMAGE_OPS_TRIALS=n draws n of each (make image-ops: 2,000). */
#include "harness.h"

#include <keel/clock.h>
#include <keel/engine.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TRIALS = 12, DEVICES = 3, OPERANDS = 3 };
enum kind { TRANSPOSED, GROUP_NORM, UPSAMPLE, KINDS };
enum {
    WAYS = KINDS + 1
}; /* and the first in class exact8x2, whose gradients are convolutions of all kinds */
static const float epsilon = 1e-3F;
static const char *const operand_names[OPERANDS] = {"x", "weight", "bias"};

struct device {
    struct keel_device *device;
    struct keel_kernels *kernels;
};
static struct device devices[DEVICES]; /* [0] is the host */

static void open_devices(enum keel_class numerics)
{
    static const char *const selectors[DEVICES] = {"host", "pocl:0", "pocl:1"};
    setenv("POCL_DEVICES", "pthread basic", 1);
    for (int i = 0; i < DEVICES; i++) {
        ck_ok(keel_device_open(selectors[i], NULL, &devices[i].device));
        ck_ok(keel_kernels_create_with(
            devices[i].device, &(struct keel_kernels_options){.numerics = numerics}, &devices[i].kernels));
    }
}
static void close_devices(void)
{
    for (int i = 0; i < DEVICES; i++) {
        keel_kernels_destroy(devices[i].kernels);
        ck_assert_uint_eq(keel_device_stats(devices[i].device).live_bytes, 0);
        keel_device_close(devices[i].device);
    }
}

/* ---- what is drawn ---- */

static uint32_t draws;
static uint32_t draw(uint32_t below)
{
    return keel_random_u32(&(struct keel_control){.seed_lo = 23}, 5, draws++) % below;
}
static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

struct trial {
    enum kind kind;
    uint64_t in[4], out[4]; /* batch, height, width, channels */
    struct keel_conv2d_transposed_spec conv;
    uint64_t taps[2];
    uint32_t groups, factor[2];
    bool bias, gamma;                  /* beta is `bias` */
    uint64_t count[OPERANDS], results; /* of x, weight or gamma, bias or beta: 0 where it is not there */
    float *operand[OPERANDS], *targets;
};

static void draw_conv(struct trial *t)
{
    t->groups = t->conv.groups = 1 + (draw(3) == 0 ? draw(3) : 0);
    t->in[3] = t->groups * (1 + draw(draw(3) == 0 ? 40 : 7));
    t->out[3] = t->groups * (1 + draw(draw(3) == 0 ? 40 : 7));
    for (int axis = 0; axis < 2; axis++) {
        t->taps[axis] = 1 + draw(4);
        t->conv.stride[axis] = 1 + draw(3);
        t->conv.dilation[axis] = 1 + draw(2);
        t->conv.extra[axis] = draw(t->conv.stride[axis]);
        const uint32_t whole = (uint32_t)((t->in[1 + axis] - 1) * t->conv.stride[axis] +
                                          (t->taps[axis] - 1) * t->conv.dilation[axis] + 1) +
                               t->conv.extra[axis];
        t->conv.pad[axis] = draw(least(3, (whole + 1) / 2));
        t->out[1 + axis] = whole - 2 * t->conv.pad[axis];
    }
    t->count[1] = t->taps[0] * t->taps[1] * t->out[3] / t->groups * t->in[3];
}

/* A group has eight numbers at least: of fewer the variance may be next to nothing, and nothing is told. */
static void draw_norm(struct trial *t)
{
    t->groups = 1 + draw(5);
    t->in[3] = t->groups * (1 + draw(draw(3) == 0 ? 24 : 5));
    t->in[2] += 8 / (t->in[3] / t->groups);
    memcpy(t->out, t->in, sizeof t->out);
    t->gamma = t->bias || draw(2) == 0;
    t->count[1] = t->gamma ? t->in[3] : 0;
}

static struct trial draw_trial(enum kind kind)
{
    struct trial t = {.kind = kind, .bias = draw(2) == 0};
    t.in[0] = 1 + draw(3);
    t.in[1] = 1 + draw(7);
    t.in[2] = 1 + draw(draw(4) == 0 ? 20 : 6);
    t.in[3] = 1 + draw(draw(3) == 0 ? 40 : 9);
    if (kind == TRANSPOSED)
        draw_conv(&t);
    if (kind == GROUP_NORM)
        draw_norm(&t);
    if (kind == UPSAMPLE) {
        memcpy(t.out, t.in, sizeof t.out);
        for (int axis = 0; axis < 2; axis++)
            t.out[1 + axis] *= t.factor[axis] = 1 + draw(4);
    }
    t.count[0] = t.in[0] * t.in[1] * t.in[2] * t.in[3];
    t.count[2] = t.bias && kind != UPSAMPLE ? t.out[3] : 0;
    t.results = t.in[0] * t.out[1] * t.out[2] * t.out[3];
    t.out[0] = t.in[0];
    for (int i = 0; i < OPERANDS + 1; i++) {
        const uint64_t count = i < OPERANDS ? t.count[i] : t.results;
        float *numbers = malloc((count + 1) * sizeof *numbers);
        ck_assert_ptr_nonnull(numbers);
        for (uint64_t k = 0; k < count; k++)
            numbers[k] =
                2 * keel_random_uniform(&(struct keel_control){.seed_lo = draws}, (uint32_t)i, k) - 1;
        *(i < OPERANDS ? &t.operand[i] : &t.targets) = numbers;
    }
    return t;
}
static void trial_fini(struct trial *t)
{
    for (int i = 0; i < OPERANDS; i++)
        free(t->operand[i]);
    free(t->targets);
}

/* ---- on devices ---- */

struct result {
    float *y, *gradient[OPERANDS];
};

static float *floats(uint64_t count)
{
    float *x = calloc(count + 1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

static struct keel_graph *graph_of(const struct trial *t)
{
    struct keel_graph *graph;
    const struct keel_shape image = {4, {t->in[0], t->in[1], t->in[2], t->in[3]}},
                            result = {4, {t->out[0], t->out[1], t->out[2], t->out[3]}},
                            weight = {4,
                                      {t->taps[0], t->taps[1], t->out[3] / (t->groups > 0 ? t->groups : 1),
                                       t->in[3]}},
                            line = {1, {t->out[3]}};
    keel_value p[OPERANDS] = {0}, y = 0;
    ck_ok(keel_graph_create(&graph));
    for (int i = 0; i < OPERANDS; i++)
        if (t->count[i] > 0)
            p[i] = keel_graph_param(
                graph, &(struct keel_param_spec){.name = operand_names[i],
                                                 .shape = i == 0                            ? image
                                                          : i == 1 && t->kind == TRANSPOSED ? weight
                                                                                            : line,
                                                 .values = t->operand[i]});
    if (t->kind == TRANSPOSED)
        y = keel_graph_conv2d_transposed(graph, p[0], p[1], p[2], &t->conv);
    else if (t->kind == GROUP_NORM)
        y = keel_graph_group_norm(graph, p[0], p[1], p[2], t->groups, epsilon);
    else
        y = keel_graph_upsample(graph, p[0], t->factor);
    keel_graph_output(graph, y);
    keel_graph_mse(graph, y, keel_graph_input(graph, "targets", KEEL_F32, result));
    ck_ok(keel_graph_status(graph));
    return graph;
}

static struct result run(const struct trial *t, const struct device *on)
{
    struct result r = {.y = floats(t->results)};
    struct keel_graph *graph = graph_of(t);
    struct keel_engine *engine;
    const struct keel_engine_config config = {
        .device = on->device, .kernels = on->kernels, .graph = graph, .training = true};
    const void *inputs[] = {t->targets};
    const struct keel_engine_batch batch = {.inputs = inputs, .seed = 1, .step = 1};
    const uint64_t limit = keel_deadline_after_ns(60 * KEEL_NS_PER_S);
    ck_ok(keel_engine_create(&config, &engine));
    ck_ok(keel_engine_initialize(engine, 1));
    ck_ok(keel_engine_zero(engine));
    ck_ok(keel_engine_microbatch(engine, &batch));
    for (int i = 0; i < OPERANDS; i++)
        r.gradient[i] = floats(t->count[i]);
    for (uint32_t at = 0; at < keel_engine_tile_count(engine); at++) {
        const struct keel_tile *tile = keel_engine_tile(engine, at);
        for (int i = 0; i < OPERANDS; i++)
            if (strcmp(keel_engine_param(engine, tile->param)->name, operand_names[i]) == 0)
                ck_ok(keel_queue_read(
                    keel_engine_queue(engine), keel_engine_flat(engine, KEEL_FLAT_GRADIENTS),
                    tile->offset * sizeof(float), r.gradient[i], t->count[i] * sizeof(float), NULL, NULL));
    }
    ck_ok(keel_queue_finish(keel_engine_queue(engine), limit));
    ck_ok(keel_engine_output(engine, &batch, 0, (uint32_t)(t->results / t->out[3]), limit, r.y));
    keel_engine_destroy(engine);
    keel_graph_destroy(graph);
    return r;
}
static void result_fini(struct result *r)
{
    free(r->y);
    for (int i = 0; i < OPERANDS; i++)
        free(r->gradient[i]);
}

/* ---- in double ---- */

struct truth {
    double *y, *gradient[OPERANDS];
    double *terms[OPERANDS]; /* of sums that may vanish: without signs; else 0 */
};
static double *doubles(uint64_t count)
{
    double *x = calloc(count + 1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

/* Of the mean square. */
static double slope_of(const struct trial *t, const struct truth *of, uint64_t at)
{
    return 2 * (of->y[at] - (double)t->targets[at]) / (double)t->results;
}

/* What each pixel, tap and output say: forward they add to y, backward to the gradients. */
static void each_reach(const struct trial *t, struct truth *of, bool back)
{
    const uint64_t to = t->out[3] / t->groups, from = t->in[3] / t->groups, taps = t->taps[0] * t->taps[1];
    for (uint64_t at = 0; at < t->count[0] * taps * to; at++) {
        const uint64_t d = at % to, tap = at / to % taps, pixel = at / to / taps, c = pixel % t->in[3];
        const uint64_t q = pixel / t->in[3] % t->in[2], p = pixel / t->in[3] / t->in[2] % t->in[1],
                       b = pixel / t->in[3] / t->in[2] / t->in[1];
        const uint64_t u = p * t->conv.stride[0] + tap / t->taps[1] * t->conv.dilation[0],
                       v = q * t->conv.stride[1] + tap % t->taps[1] * t->conv.dilation[1];
        const uint64_t down = u - t->conv.pad[0],
                       across = v - t->conv.pad[1]; /* wrap where they lie outside */
        if (down >= t->out[1] || across >= t->out[2])
            continue;
        const uint64_t y = ((b * t->out[1] + down) * t->out[2] + across) * t->out[3] + c / from * to + d,
                       w = (tap * to + d) * t->in[3] + c;
        const double x = (double)t->operand[0][pixel], weight = (double)t->operand[1][w];
        if (!back) {
            of->y[y] += x * weight;
            continue;
        }
        of->gradient[0][pixel] += slope_of(t, of, y) * weight;
        of->gradient[1][w] += slope_of(t, of, y) * x;
    }
}

static void transposed_true(const struct trial *t, struct truth *of)
{
    for (uint64_t at = 0; at < t->results && t->count[2] > 0; at++)
        of->y[at] = (double)t->operand[2][at % t->out[3]];
    each_reach(t, of, false);
    each_reach(t, of, true);
    for (uint64_t at = 0; at < t->results && t->count[2] > 0; at++)
        of->gradient[2][at % t->out[3]] += slope_of(t, of, at);
}

/* Element i of group g of all images. */
static uint64_t member(const struct trial *t, uint64_t g, uint64_t i)
{
    const uint64_t width = t->in[3] / t->groups;
    return (g / t->groups * t->in[1] * t->in[2] + i / width) * t->in[3] + g % t->groups * width + i % width;
}

static void group_true(const struct trial *t, struct truth *of, uint64_t g)
{
    const uint64_t n = t->in[1] * t->in[2] * t->in[3] / t->groups;
    double mean = 0, square = 0, a = 0, b = 0;
    for (uint64_t i = 0; i < n; i++)
        mean += (double)t->operand[0][member(t, g, i)] / (double)n;
    for (uint64_t i = 0; i < n; i++)
        square += pow((double)t->operand[0][member(t, g, i)] - mean, 2) / (double)n;
    const double rstd = 1 / sqrt(square + (double)epsilon);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = member(t, g, i), c = at % t->in[3];
        const double gamma = t->gamma ? (double)t->operand[1][c] : 1,
                     h = ((double)t->operand[0][at] - mean) * rstd;
        of->y[at] = h * gamma + (t->count[2] > 0 ? (double)t->operand[2][c] : 0);
        const double dy = slope_of(t, of, at);
        a += dy * gamma / (double)n;
        b += dy * gamma * h / (double)n;
        of->gradient[1][t->gamma ? c : 0] += dy * h;
        of->gradient[2][t->count[2] > 0 ? c : 0] += dy;
        of->terms[1][t->gamma ? c : 0] += fabs(dy * h);
        of->terms[2][t->count[2] > 0 ? c : 0] += fabs(dy);
    }
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = member(t, g, i);
        const double gamma = t->gamma ? (double)t->operand[1][at % t->in[3]] : 1,
                     h = ((double)t->operand[0][at] - mean) * rstd;
        of->gradient[0][at] = (slope_of(t, of, at) * gamma - a - h * b) * rstd;
    }
}

static void upsample_true(const struct trial *t, struct truth *of)
{
    for (uint64_t at = 0; at < t->results; at++) {
        const uint64_t c = at % t->out[3], v = at / t->out[3] % t->out[2],
                       u = at / t->out[3] / t->out[2] % t->out[1], b = at / t->out[3] / t->out[2] / t->out[1];
        const uint64_t from =
            ((b * t->in[1] + u / t->factor[0]) * t->in[2] + v / t->factor[1]) * t->in[3] + c;
        of->y[at] = (double)t->operand[0][from];
        of->gradient[0][from] += slope_of(t, of, at);
    }
}

static struct truth truth_of(const struct trial *t)
{
    struct truth of = {.y = doubles(t->results)};
    for (int i = 0; i < OPERANDS; i++)
        of.gradient[i] = doubles(t->count[i]), of.terms[i] = doubles(t->count[i]);
    if (t->kind == TRANSPOSED)
        transposed_true(t, &of);
    else if (t->kind == UPSAMPLE)
        upsample_true(t, &of);
    for (uint64_t g = 0; t->kind == GROUP_NORM && g < t->in[0] * t->groups; g++)
        group_true(t, &of, g);
    return of;
}

/* ---- claims ---- */

static void print_trial(const struct trial *t, char text[200])
{
    static const char *const names[KINDS] = {"conv2d_transposed", "group_norm", "upsample"};
    snprintf(text, 200, "%s %ux%ux%ux%u to %ux%ux%u, taps %ux%u, %u groups, seed %u", names[t->kind],
             (unsigned)t->in[0], (unsigned)t->in[1], (unsigned)t->in[2], (unsigned)t->in[3],
             (unsigned)t->out[1], (unsigned)t->out[2], (unsigned)t->out[3], (unsigned)t->taps[0],
             (unsigned)t->taps[1], t->groups, draws);
}

/* Within so much of the largest true value, or of the terms of its sum. */
static void check_close(const struct trial *t, const char *what, const float *x, const double *truth,
                        const double *terms, uint64_t count, double bound)
{
    double worst = 0, largest = 0;
    char text[200];
    for (uint64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)x[i] - truth[i]));
        largest = fmax(largest, fmax(fabs(truth[i]), terms != NULL ? terms[i] : 0));
    }
    print_trial(t, text);
    ck_assert_msg(worst <= bound * largest, "%s: %s: error %g of %g", text, what, worst, largest);
}

static void check_bits(const struct trial *t, const char *what, int device, const float *x, const float *host,
                       uint64_t count)
{
    char text[200];
    print_trial(t, text);
    ck_assert_msg(memcmp(x, host, count * sizeof *x) == 0, "%s: %s: other bits on device %d", text, what,
                  device);
}

static void check_trial(const struct trial *t, double bound)
{
    struct result host = run(t, &devices[0]);
    struct truth truth = truth_of(t);
    check_close(t, "y", host.y, truth.y, NULL, t->results, bound);
    for (int i = 0; i < OPERANDS; i++)
        check_close(t, operand_names[i], host.gradient[i], truth.gradient[i], truth.terms[i], t->count[i],
                    bound);
    for (int d = 1; d < DEVICES; d++) {
        struct result other = run(t, &devices[d]);
        check_bits(t, "y", d, other.y, host.y, t->results);
        for (int i = 0; i < OPERANDS; i++)
            check_bits(t, operand_names[i], d, other.gradient[i], host.gradient[i], t->count[i]);
        result_fini(&other);
    }
    free(truth.y);
    for (int i = 0; i < OPERANDS; i++) {
        free(truth.gradient[i]);
        free(truth.terms[i]);
    }
    result_fini(&host);
}

static uint32_t trials(void)
{
    const char *asked = getenv("KEEL_IMAGE_OPS_TRIALS");
    return asked != NULL ? (uint32_t)strtoul(asked, NULL, 10) : TRIALS;
}

START_TEST(random_image_operations_are_right_and_have_the_same_bits_everywhere)
{
    const bool of_class = _i == KINDS;
    open_devices(of_class ? KEEL_EXACT8X2 : KEEL_CANONICAL);
    draws = (uint32_t)_i << 24;
    for (uint32_t i = 0; i < trials(); i++) {
        struct trial t = draw_trial(of_class ? TRANSPOSED : (enum kind)_i);
        check_trial(&t, of_class ? 0x1p-10
                                 : 4e-6); /* sums of a few hundred; two digits lose 2^-15 in each factor */
        trial_fini(&t);
    }
    close_devices();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, random_image_operations_are_right_and_have_the_same_bits_everywhere, 0, WAYS);
}
KEEL_TEST_MAIN("image_ops", cases, getenv("KEEL_IMAGE_OPS_TRIALS") != NULL ? 86400 : 120)
