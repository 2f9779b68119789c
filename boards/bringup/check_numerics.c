/* check_numerics.c - level 4: the board computes Keel's bits, the same each time, writes where it may and
 * nowhere else, and its gradients are those of its forward passes.
 *
 * Golden cases (keel/golden.h) carry most of it; special values and finite differences say what is wrong with
 * a board whose hashes differ. */
#include "check_steps.h"
#include "probe.h"
#include <inttypes.h>
#include <keel/attention_ops.h>
#include <keel/bits.h>
#include <math.h>

enum { ROUNDS = 3, ROUNDS_QUICK = 2, VALUES_MAX = 1024 };

/* ---- golden cases ---- */

static enum keel_class class_of(const struct keel_check_run *run)
{
    return keel_kernels_class(run->on.kernels);
}

static bool golden_run(struct keel_check_run *run, uint32_t index, struct keel_golden_result *out)
{
    const char *name = keel_golden_get(class_of(run), index).name;
    keel_check_progress(run, index, keel_golden_count(class_of(run)), name);
    return keel_check_ok(run, keel_golden_run(run->on.kernels, run->on.queue, index, run->deadline_ns, out),
                         name);
}

static void golden_bits(struct keel_check_run *run)
{
    struct keel_golden_result result;
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < keel_golden_count(class_of(run)) && golden_run(run, i, &result); i++) {
        char what[256];
        if (result.matches || wrong++ >= KEEL_CHECK_NOTES_MAX)
            continue;
        keel_golden_describe(&result, what, sizeof what);
        keel_check_note(run, "%s %s", keel_golden_get(class_of(run), i).name, what);
    }
    if (wrong > 0)
        keel_check_fail(run, "%" PRIu32 " of %" PRIu32 " golden operations give other bits", wrong,
                        keel_golden_count(class_of(run)));
}

static void sentinels(struct keel_check_run *run)
{
    struct keel_golden_result result;
    for (uint32_t i = 0; i < keel_golden_count(class_of(run)) && golden_run(run, i, &result); i++) {
        char what[256];
        if (result.intact)
            continue;
        keel_golden_describe(&result, what, sizeof what);
        keel_check_fail(run, "%s %s", keel_golden_get(class_of(run), i).name, what);
    }
}

/* What races, or reads what nobody wrote, shows as bits that change; whether they are right is 4.1's. */
static void repeats(struct keel_check_run *run)
{
    const uint32_t rounds = run->options->quick ? ROUNDS_QUICK : ROUNDS;
    struct keel_golden_result first, again;
    for (uint32_t i = 0; i < keel_golden_count(class_of(run)) && golden_run(run, i, &first); i++)
        for (uint32_t round = 1; round < rounds && golden_run(run, i, &again); round++)
            if (again.hash != first.hash)
                keel_check_fail(run,
                                "%s gives %016" PRIx64 ", and then %016" PRIx64 ": a race, or memory that "
                                "nobody wrote",
                                keel_golden_get(class_of(run), i).name, first.hash, again.hash);
}

/* ---- values with operations of one's own ---- */

/* Buffers of words, made by `put`, and destroyed from the last one on by `drop`. */
struct values {
    struct keel_check_run *run;
    struct keel_kernels *kernels;
    struct keel_launch_list *list;
    struct keel_buffer *buffers[8];
    uint32_t count;
};

static struct values values_of(struct keel_check_run *run)
{
    return (struct values){.run = run, .kernels = run->on.kernels, .list = &run->lists[0]};
}

static void drop_to(struct values *values, uint32_t count)
{
    while (values->count > count)
        keel_buffer_destroy(values->buffers[--values->count]);
}

/* A buffer of words; data may be NULL for zeros. NULL after a verdict. */
static struct keel_buffer *put(struct values *values, const void *data, uint64_t words)
{
    struct keel_buffer *buffer = NULL;
    if (keel_check_failed(values->run) ||
        !keel_check_ok(values->run, keel_buffer_create(values->run->on.device, words * 4, &buffer),
                       "a buffer"))
        return NULL;
    values->buffers[values->count++] = buffer;
    if (data != NULL)
        keel_step_write(values->run, buffer, 0, data, words * 4);
    return buffer;
}

static bool get(struct values *values, struct keel_buffer *buffer, void *data, uint64_t words)
{
    return keel_step_read(values->run, buffer, 0, data, words * 4);
}

/* Run what was appended, and forget it; nothing after a verdict. */
static bool go(struct values *values, enum keel_status appended, const char *what)
{
    return !keel_check_failed(values->run) && keel_step_launch(values->run, values->list, appended, what);
}

/* Code that a driver builds for finite values alone (-cl-finite-math-only) takes nothing for not-a-number,
 * nor for infinite. Keel's operations look at bits, so that their hashes show little of it. */
static void classes(struct values *values)
{
    static const struct {
        uint32_t bits, class;
        const char *what;
    } kinds[] = {{0x7fc00000, 1, "not-a-number"},
                 {0xffc00000, 1, "not-a-number"},
                 {0x7f800000, 2, "infinite"},
                 {0xff800000, 2, "infinite"},
                 {0x3f800000, 0, "a number"}};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    struct keel_check_run *run = values->run;
    struct keel_probe probe;
    uint32_t in[KINDS], out[KINDS];
    for (int i = 0; i < KINDS; i++)
        in[i] = kinds[i].bits;
    struct keel_buffer *from = put(values, in, KINDS), *to = put(values, NULL, KINDS);
    if (!keel_check_failed(run) && keel_probe_init(&probe, run) &&
        keel_check_ok(run, keel_probe_class(&probe, run->on.queue, from, to, KINDS), "a plain kernel") &&
        get(values, to, out, KINDS))
        for (int i = 0; i < KINDS; i++)
            if (out[i] != kinds[i].class)
                keel_check_fail(run,
                                "%08" PRIx32
                                " is not taken for %s: code is built for finite values alone, as "
                                "by -cl-finite-math-only",
                                in[i], kinds[i].what);
}

/* x + 0 is x, for every kind of x: what flushes denormals, or loses a sign or an infinity, shows here. */
static void special_values(struct keel_check_run *run)
{
    static const struct {
        uint32_t bits;
        const char *what;
    } kinds[] = {{0x00000001, "the smallest denormal"}, {0x007fffff, "the largest denormal"},
                 {0x80000001, "a negative denormal"},   {0x00800000, "the smallest normal number"},
                 {0x7f7fffff, "the largest number"},    {0x7f800000, "infinity"},
                 {0xff800000, "minus infinity"},        {0x3f800001, "1 and one bit"}};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    uint32_t in[KINDS + 1], zeros[KINDS + 1] = {0}, out[KINDS + 1];
    struct values values = values_of(run);
    for (uint32_t i = 0; i < KINDS; i++)
        in[i] = kinds[i].bits;
    in[KINDS] = 0x7fc00000; /* not a number */
    struct keel_add add = {.count = KINDS + 1};
    add.a = put(&values, in, KINDS + 1);
    add.b = put(&values, zeros, KINDS + 1);
    add.y = put(&values, NULL, KINDS + 1);
    if (go(&values, keel_op_add(values.kernels, &add, values.list), "add") &&
        get(&values, add.y, out, KINDS + 1)) {
        for (uint32_t i = 0; i < KINDS; i++)
            if (out[i] != in[i])
                keel_check_fail(run, "%s (%08" PRIx32 ") plus zero is %08" PRIx32, kinds[i].what, in[i],
                                out[i]);
        if ((out[KINDS] & 0x7fffffff) <= 0x7f800000)
            keel_check_fail(run, "not-a-number plus zero is %08" PRIx32, out[KINDS]);
    }
    classes(&values);
    drop_to(&values, 0);
}

/* -1 + (1 + 2^-12)(1 - 2^-12) is -2^-24 with one rounding, and 0 with two. 1 + 2^-24 rounds to even. */
static void rounding(struct keel_check_run *run)
{
    const float small = 0x1p-12f;
    const float a[] = {-1.0f, 1.0f + small, 1.0f, 0x1p-24f}, b[] = {1.0f, 1.0f - small, 1.0f, 1.0f};
    const float wanted[] = {-0x1p-24f, 1.0f};
    float got[2];
    struct values values = values_of(run);
    struct keel_gemm gemm = {.m = 1, .n = 1, .k = 2, .batch = 2, .lda = 2, .ldb = 1, .ldc = 1};
    gemm.stride_a = gemm.stride_b = 2;
    gemm.stride_c = 1;
    gemm.a = put(&values, a, 4);
    gemm.b = put(&values, b, 4);
    gemm.c = put(&values, NULL, 2);
    if (go(&values, keel_op_gemm(values.kernels, &gemm, values.list), "gemm") &&
        get(&values, gemm.c, got, 2)) {
        if (keel_bits_of(got[0]) != keel_bits_of(wanted[0]))
            keel_check_fail(run, "a product and sum is %a, not %a: fma rounds twice, or is not one", got[0],
                            wanted[0]);
        if (keel_bits_of(got[1]) != keel_bits_of(wanted[1]))
            keel_check_fail(run, "1 + 2^-24 is %a: not rounded to even", got[1]);
    }
    drop_to(&values, 0);
}

/* ---- gradients against finite differences ---- */

/* One operation as a function of x, with the gradient of sum(dy * y). */
struct slope {
    const char *name;
    uint32_t inputs, outputs; /* floats */
    bool (*forward)(struct values *values, struct keel_buffer *x, struct keel_buffer *y);
    bool (*backward)(struct values *values, struct keel_buffer *x, struct keel_buffer *dy,
                     struct keel_buffer *dx);
};

enum { ROWS = 3, WIDTH = 40, TOKENS = 5, HEADS = 2, HEAD_WIDTH = 8 };
#define STEP      0x1p-7 /* along a direction of random signs */
#define TOLERANCE 2e-3   /* of float32 differences over such a step, of the sum of what is summed */

static bool gelu_forward(struct values *values, struct keel_buffer *x, struct keel_buffer *y)
{
    struct keel_activation op = {.count = ROWS * WIDTH, .kind = KEEL_GELU, .x = x, .y = y};
    return go(values, keel_op_activation(values->kernels, &op, values->list), "gelu");
}

static bool gelu_backward(struct values *values, struct keel_buffer *x, struct keel_buffer *dy,
                          struct keel_buffer *dx)
{
    struct keel_activation_grad op = {.count = ROWS * WIDTH, .kind = KEEL_GELU, .x = x, .dy = dy, .dx = dx};
    return go(values, keel_op_activation_grad(values->kernels, &op, values->list), "gelu_grad");
}

/* gamma is in the second half of x, so that it lies in one of few buffers. */
static bool norm(struct values *values, struct keel_buffer *x, struct keel_buffer *y,
                 struct keel_buffer *stats[3])
{
    float ones[WIDTH];
    for (uint32_t i = 0; i < WIDTH; i++)
        ones[i] = 1.0f + (float)i / WIDTH;
    stats[0] = put(values, NULL, ROWS);
    stats[1] = put(values, NULL, ROWS);
    stats[2] = put(values, ones, WIDTH);
    struct keel_layernorm op = {.rows = ROWS,
                                .n = WIDTH,
                                .epsilon = 1e-5f,
                                .x = x,
                                .gamma = stats[2],
                                .y = y,
                                .mean = stats[0],
                                .rstd = stats[1]};
    return go(values, keel_op_layernorm(values->kernels, &op, values->list), "layernorm");
}

static bool norm_forward(struct values *values, struct keel_buffer *x, struct keel_buffer *y)
{
    struct keel_buffer *stats[3];
    uint32_t before = values->count;
    bool done = norm(values, x, y, stats);
    drop_to(values, before);
    return done;
}

static bool norm_backward(struct values *values, struct keel_buffer *x, struct keel_buffer *dy,
                          struct keel_buffer *dx)
{
    struct keel_buffer *stats[3];
    uint32_t before = values->count;
    bool done = norm(values, x, dx, stats); /* dx is overwritten below */
    struct keel_layernorm_grad op = {.rows = ROWS,
                                     .n = WIDTH,
                                     .x = x,
                                     .gamma = stats[2],
                                     .mean = stats[0],
                                     .rstd = stats[1],
                                     .dy = dy,
                                     .dx = dx,
                                     .dgamma = put(values, NULL, WIDTH)};
    done = done && go(values, keel_op_layernorm_grad(values->kernels, &op, values->list), "layernorm_grad");
    drop_to(values, before);
    return done;
}

static bool attend(struct values *values, struct keel_buffer *qkv, struct keel_buffer *out,
                   struct keel_buffer *dout, struct keel_buffer *dqkv)
{
    uint32_t before = values->count;
    struct keel_attention_grad op = {
        .forward =
            {.batch = 1, .tokens = TOKENS, .heads = HEADS, .head_width = HEAD_WIDTH, .qkv = qkv, .out = out},
        .dout = dout,
        .dqkv = dqkv};
    op.forward.stats = put(values, NULL, HEADS * TOKENS * 2);
    uint64_t forward = keel_attention_workspace_bytes(values->kernels, &op.forward),
             backward = keel_attention_grad_workspace_bytes(values->kernels, &op);
    op.forward.workspace = put(values, NULL, 1 + (forward > backward ? forward : backward) / 4);
    bool done = go(values, keel_op_attention(values->kernels, &op.forward, values->list), "attention");
    if (done && dqkv != NULL)
        done = go(values, keel_op_attention_grad(values->kernels, &op, values->list), "attention_grad");
    drop_to(values, before);
    return done;
}

static bool attention_forward(struct values *values, struct keel_buffer *x, struct keel_buffer *y)
{
    return attend(values, x, y, NULL, NULL);
}

static bool attention_backward(struct values *values, struct keel_buffer *x, struct keel_buffer *dy,
                               struct keel_buffer *dx)
{
    const uint32_t before = values->count;
    struct keel_buffer *out = put(values, NULL, TOKENS * HEADS * HEAD_WIDTH);
    bool done = out != NULL && attend(values, x, out, dy, dx);
    drop_to(values, before);
    return done;
}

static const struct slope slopes[] = {
    {"gelu", ROWS *WIDTH, ROWS *WIDTH, gelu_forward, gelu_backward},
    {"layernorm", ROWS *WIDTH, ROWS *WIDTH, norm_forward, norm_backward},
    {"attention", TOKENS * 3 * HEADS *HEAD_WIDTH, TOKENS *HEADS *HEAD_WIDTH, attention_forward,
     attention_backward},
};

/* Sum of dy * f(x + step * sign). */
static bool probe(struct values *values, const struct slope *slope, const float *x, const float *signs,
                  const float *dy, double step, double *out)
{
    float moved[VALUES_MAX], y[VALUES_MAX] = {0};
    uint32_t before = values->count;
    for (uint32_t i = 0; i < slope->inputs; i++)
        moved[i] = x[i] + (float)step * signs[i];
    struct keel_buffer *in = put(values, moved, slope->inputs), *to = put(values, NULL, slope->outputs);
    bool done =
        in != NULL && to != NULL && slope->forward(values, in, to) && get(values, to, y, slope->outputs);
    *out = 0;
    for (uint32_t i = 0; i < slope->outputs && done; i++)
        *out += (double)dy[i] * (double)y[i];
    drop_to(values, before);
    return done;
}

static void check_slope(struct values *values, const struct slope *slope, uint32_t seed)
{
    const struct keel_control control = {.seed_lo = 20261121 + seed};
    float x[VALUES_MAX] = {0}, signs[VALUES_MAX] = {0}, dy[VALUES_MAX] = {0}, dx[VALUES_MAX] = {0};
    double above, below, by_gradient = 0, weight = 0;
    for (uint32_t i = 0; i < slope->inputs; i++) {
        x[i] = keel_random_normal(&control, 1, i);
        signs[i] = keel_random_u32(&control, 2, i) & 1 ? 1.0f : -1.0f;
    }
    for (uint32_t i = 0; i < slope->outputs; i++)
        dy[i] = keel_random_normal(&control, 3, i);
    struct keel_buffer *in = put(values, x, slope->inputs), *dout = put(values, dy, slope->outputs),
                       *din = put(values, NULL, slope->inputs);
    if (din == NULL || !slope->backward(values, in, dout, din) || !get(values, din, dx, slope->inputs) ||
        !probe(values, slope, x, signs, dy, STEP, &above) ||
        !probe(values, slope, x, signs, dy, -STEP, &below))
        return;
    for (uint32_t i = 0; i < slope->inputs; i++) {
        by_gradient += (double)dx[i] * (double)signs[i];
        weight += fabs((double)dx[i]);
    }
    double by_difference = (above - below) / (2 * STEP);
    if (!(fabs(by_gradient - by_difference) <= TOLERANCE * (weight + 1)))
        keel_check_fail(values->run, "%s: the gradient says %.6f along a direction, differences say %.6f",
                        slope->name, by_gradient, by_difference);
    drop_to(values, 0);
}

static void gradients(struct keel_check_run *run)
{
    enum { SLOPES = sizeof slopes / sizeof slopes[0], DIRECTIONS = 4 };
    struct values values = values_of(run);
    for (uint32_t i = 0; i < SLOPES * DIRECTIONS && !keel_check_failed(run); i++) {
        keel_check_progress(run, i, SLOPES * DIRECTIONS, slopes[i / DIRECTIONS].name);
        check_slope(&values, &slopes[i / DIRECTIONS], i);
    }
}

#define KERNELS KEEL_OPENS_KERNELS
const struct keel_check keel_checks_numerics[] = {
    {"4.1", "golden", "every operation in every shape gives the canonical bits", "2.1", 300, KERNELS,
     golden_bits},
    {"4.2", "sentinels", "no kernel writes outside its buffers, nor into its inputs", "2.1", 300, KERNELS,
     sentinels},
    {"4.3", "repeats", "the same operation gives the same bits again", "2.1", 300, KERNELS, repeats},
    {"4.4", "special-values", "denormals, infinities, signs and what is no number are kept", "2.1", 120,
     KERNELS, special_values},
    {"4.5", "rounding", "fma rounds once, and to nearest even", "2.1", 120, KERNELS, rounding},
    {"4.6", "gradients", "gradients are those of the forward pass, by finite differences", "2.1", 120,
     KERNELS, gradients},
    {.id = NULL}};
