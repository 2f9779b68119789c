/* attention_test.c - attention and its gradient: the formula by finite differences, the kernels by the
 * formula in double, and the same bits on every device. */
#include "device_rig.h"
#include "kernels_internal.h"
#include <float.h>
#include <keel/attention_ops.h>
#include <math.h>

struct shape {
    uint32_t batch, tokens, heads, width;
    double rate;
    bool bidirectional;
};

/* Around every edge: 16 and 32 lanes, 8 rows or elements at a time, blocks of 64. One head alone has its
 * gradient by blocks of queries and of keys, many have it by heads. */
static const struct shape shapes[] = {
    {1, 1, 1, 1, 0, false},     {2, 5, 3, 7, 0, false},     {1, 16, 2, 8, 0.3, false},
    {2, 17, 1, 64, 0, false},   {1, 64, 2, 32, 0.1, false}, {1, 33, 3, 33, 0, false},
    {3, 31, 2, 9, 0.5, false},  {1, 67, 1, 3, 0, false},    {1, 300, 1, 20, 0, false},
    {1, 259, 1, 5, 0.2, false}, {1, 1, 1, 1, 0, true},      {2, 37, 4, 7, 0, true},
    {1, 100, 1, 35, 0, true},   {1, 129, 2, 64, 0.2, true}, {1, 130, 3, 24, 0.1, false},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], STREAM = 77 };

static const struct keel_control control = {.seed_lo = 11, .seed_hi = 12, .step = 13, .microbatch = 14};

static uint64_t out_count(const struct shape *s)
{
    return (uint64_t)s->batch * s->tokens * s->heads * s->width;
}
static uint64_t row_count(const struct shape *s)
{
    return (uint64_t)s->batch * s->heads * s->tokens;
}

/* ---- in double ---------------------------------------------------------------------------------- */

/* One head of one sequence: where its numbers lie. */
struct place {
    uint64_t row; /* number of its first row of probabilities */
    uint64_t out; /* of its first element in out; a token is `step` further on, 3 * step in qkv */
    uint64_t qkv;
    uint64_t step;
};

static struct place place_of(const struct shape *s, uint64_t batch, uint64_t head)
{
    uint64_t step = (uint64_t)s->heads * s->width;
    return (struct place){.row = (batch * s->heads + head) * s->tokens,
                          .out = batch * s->tokens * step + head * s->width,
                          .qkv = batch * s->tokens * 3 * step + head * s->width,
                          .step = step};
}

/* What dropout multiplies probability (i, j) by. */
static double keep(const struct shape *s, const struct place *at, uint64_t i, uint64_t j)
{
    if (s->rate == 0)
        return 1;
    uint64_t element = (at->row + i) * s->tokens + j;
    return (double)keel_random_uniform(&control, STREAM, element) >= (double)(float)s->rate
               ? 1 / (1 - s->rate)
               : 0;
}

static double dot_true(const double *x, const double *y, uint32_t width)
{
    double sum = 0;
    for (uint32_t d = 0; d < width; d++)
        sum += x[d] * y[d];
    return sum;
}

static uint64_t keys_of(const struct shape *s, uint64_t i)
{
    return s->bidirectional ? s->tokens : i + 1;
}

/* p[j] of the keys that query i sees: the softmax of row i. */
static void softmax_true(const struct shape *s, const struct place *at, const double *qkv, uint64_t i,
                         double *p)
{
    const double *q = qkv + at->qkv + i * 3 * at->step, *k = qkv + at->qkv + at->step;
    double sum = 0;
    for (uint64_t j = 0; j < keys_of(s, i); j++) {
        p[j] = exp(dot_true(q, k + j * 3 * at->step, s->width) / sqrt((double)s->width));
        sum += p[j];
    }
    for (uint64_t j = 0; j < keys_of(s, i); j++)
        p[j] /= sum;
}

static void head_true(const struct shape *s, const struct place *at, const double *qkv, double *out)
{
    double p[512];
    for (uint64_t i = 0; i < s->tokens; i++) {
        double *o = out + at->out + i * at->step;
        softmax_true(s, at, qkv, i, p);
        for (uint64_t d = 0; d < s->width; d++) {
            o[d] = 0;
            for (uint64_t j = 0; j < keys_of(s, i); j++)
                o[d] += p[j] * keep(s, at, i, j) * qkv[at->qkv + j * 3 * at->step + 2 * at->step + d];
        }
    }
}

static void attention_true(const struct shape *s, const double *qkv, double *out)
{
    for (uint64_t b = 0; b < s->batch; b++)
        for (uint64_t h = 0; h < s->heads; h++) {
            struct place at = place_of(s, b, h);
            head_true(s, &at, qkv, out);
        }
}

static void head_grad_true(const struct shape *s, const struct place *at, const double *qkv,
                           const double *dout, double *dqkv)
{
    double p[512], dp[512], scale = 1 / sqrt((double)s->width);
    for (uint64_t i = 0; i < s->tokens; i++) {
        const double *q = qkv + at->qkv + i * 3 * at->step, *g = dout + at->out + i * at->step;
        double delta = 0;
        softmax_true(s, at, qkv, i, p);
        for (uint64_t j = 0; j < keys_of(s, i); j++) {
            const double *v = qkv + at->qkv + (3 * j + 2) * at->step;
            dp[j] = keep(s, at, i, j) * dot_true(g, v, s->width);
            delta += p[j] * dp[j];
        }
        for (uint64_t j = 0; j < keys_of(s, i); j++) {
            const double *k = qkv + at->qkv + (3 * j + 1) * at->step;
            double ds = p[j] * (dp[j] - delta) * scale;
            for (uint64_t d = 0; d < s->width; d++) {
                dqkv[at->qkv + 3 * i * at->step + d] += ds * k[d];
                dqkv[at->qkv + (3 * j + 1) * at->step + d] += ds * q[d];
                dqkv[at->qkv + (3 * j + 2) * at->step + d] += p[j] * keep(s, at, i, j) * g[d];
            }
        }
    }
}

static void gradient_true(const struct shape *s, const double *qkv, const double *dout, double *dqkv)
{
    memset(dqkv, 0, 3 * out_count(s) * sizeof *dqkv);
    for (uint64_t b = 0; b < s->batch; b++)
        for (uint64_t h = 0; h < s->heads; h++) {
            struct place at = place_of(s, b, h);
            head_grad_true(s, &at, qkv, dout, dqkv);
        }
}

static double *doubles(const float *x, uint64_t count)
{
    double *y = calloc(count, sizeof *y);
    ck_assert_ptr_nonnull(y);
    for (uint64_t i = 0; x != NULL && i < count; i++)
        y[i] = (double)x[i];
    return y;
}

/* ---- on devices --------------------------------------------------------------------------------- */

struct result {
    float *out, *stats, *dqkv;
};

static struct result attend(const struct shape *s, struct rig_device *on, const float *qkv, const float *dout)
{
    uint64_t out_bytes = out_count(s) * sizeof(float), stats_bytes = 2 * row_count(s) * sizeof(float);
    struct result r = {rig_numbers(0, out_count(s)), rig_numbers(0, 2 * row_count(s)),
                       rig_numbers(0, 3 * out_count(s))};
    struct keel_attention_grad op = {.forward = {.batch = s->batch,
                                                 .tokens = s->tokens,
                                                 .heads = s->heads,
                                                 .head_width = s->width,
                                                 .bidirectional = s->bidirectional,
                                                 .dropout_rate = (float)s->rate,
                                                 .stream = STREAM}};
    struct keel_launch_list list = {0};
    op.forward.qkv = rig_buffer(on, qkv, 3 * out_bytes);
    op.forward.out = rig_buffer(on, NULL, out_bytes);
    op.forward.stats = rig_buffer(on, NULL, stats_bytes);
    op.forward.control = s->rate > 0 ? rig_buffer(on, &control, sizeof control) : NULL;
    op.dout = rig_buffer(on, dout, out_bytes);
    op.dqkv = rig_buffer(on, r.dqkv, 3 * out_bytes); /* not zero: it must be overwritten */
    const uint64_t forward_bytes = keel_attention_workspace_bytes(on->kernels, &op.forward);
    const uint64_t backward_bytes = keel_attention_grad_workspace_bytes(on->kernels, &op);
    op.forward.workspace =
        rig_buffer(on, NULL, forward_bytes > backward_bytes ? forward_bytes : backward_bytes);
    ck_ok(keel_op_attention(on->kernels, &op.forward, &list));
    ck_ok(keel_op_attention_grad(on->kernels, &op, &list));
    rig_run(on, &list);
    rig_read(on, op.forward.out, r.out);
    rig_read(on, op.forward.stats, r.stats);
    rig_read(on, op.dqkv, r.dqkv);
    rig_clear(on);
    return r;
}

static void result_fini(struct result *r)
{
    free(r->out);
    free(r->stats);
    free(r->dqkv);
}

/* ---- claims ------------------------------------------------------------------------------------- */

/* d(sum of dout * out) / d(qkv), central differences of 1e-5: agreement to 1e-6 of the largest. */
START_TEST(the_gradient_formula_agrees_with_finite_differences)
{
    const struct shape s = {2, 6, 2, 5, _i % 2 == 0 ? 0 : 0.4, _i >= 2};
    float *numbers = rig_numbers(1, 3 * out_count(&s)), *weights = rig_numbers(2, out_count(&s));
    double *qkv = doubles(numbers, 3 * out_count(&s)), *dout = doubles(weights, out_count(&s));
    double *dqkv = doubles(NULL, 3 * out_count(&s)), *out = doubles(NULL, out_count(&s));
    gradient_true(&s, qkv, dout, dqkv);
    double largest = 0, worst = 0, h = 1e-5;
    for (uint64_t e = 0; e < 3 * out_count(&s); e++) {
        double x = qkv[e];
        qkv[e] = x + h;
        attention_true(&s, qkv, out);
        double above = dot_true(out, dout, (uint32_t)out_count(&s));
        qkv[e] = x - h;
        attention_true(&s, qkv, out);
        double below = dot_true(out, dout, (uint32_t)out_count(&s));
        qkv[e] = x;
        largest = fmax(largest, fabs(dqkv[e]));
        worst = fmax(worst, fabs((above - below) / (2 * h) - dqkv[e]));
    }
    ck_assert_double_gt(largest, 0.1);
    ck_assert_double_le(worst, 1e-6 * largest);
    free(numbers);
    free(weights);
    free(qkv);
    free(dout);
    free(dqkv);
    free(out);
}
END_TEST

/* Largest difference from the true values, in parts of the largest true value. */
static double error_of(const float *x, const double *truth, uint64_t count)
{
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)x[i] - truth[i]));
        largest = fmax(largest, fabs(truth[i]));
    }
    return worst / largest;
}

/* Sums of at most 300 floats of size 1: 2e-6 of the largest value is 17 rounding errors. */
static void check_against_double(const struct shape *s, const float *qkv, const float *dout,
                                 const struct result *r)
{
    double *qkv_true = doubles(qkv, 3 * out_count(s)), *dout_true = doubles(dout, out_count(s));
    double *out = doubles(NULL, out_count(s)), *dqkv = doubles(NULL, 3 * out_count(s));
    attention_true(s, qkv_true, out);
    gradient_true(s, qkv_true, dout_true, dqkv);
    ck_assert_double_le(error_of(r->out, out, out_count(s)), 2e-6);
    ck_assert_double_le(error_of(r->dqkv, dqkv, 3 * out_count(s)), 2e-6);
    free(qkv_true);
    free(dout_true);
    free(out);
    free(dqkv);
}

START_TEST(every_shape_is_right_and_has_the_same_bits_on_every_device)
{
    rig_open();
    for (int n = 0; n < SHAPES; n++) {
        const struct shape *s = &shapes[n];
        float *qkv = rig_numbers(1, 3 * out_count(s)), *dout = rig_numbers(2, out_count(s));
        struct result r[RIG_DEVICES];
        char what[96];
        for (int d = 0; d < RIG_DEVICES; d++)
            r[d] = attend(s, &rig[d], qkv, dout);
        check_against_double(s, qkv, dout, &r[0]);
        snprintf(what, sizeof what, "attention-%ux%ux%ux%u-%g%s", s->batch, s->tokens, s->heads, s->width,
                 s->rate, s->bidirectional ? "-bidirectional" : "");
        for (int d = 1; d < RIG_DEVICES; d++) {
            rig_same_bits(what, d, r[d].out, r[0].out, out_count(s));
            rig_same_bits(what, d, r[d].stats, r[0].stats, 2 * row_count(s));
            rig_same_bits(what, d, r[d].dqkv, r[0].dqkv, 3 * out_count(s));
        }
        rig_golden(what, r[0].dqkv, 3 * out_count(s));
        for (int d = 0; d < RIG_DEVICES; d++)
            result_fini(&r[d]);
        free(qkv);
        free(dout);
    }
    rig_close();
}
END_TEST

/* More keys than those whose scores are kept there; heads as wide as they may be everywhere. */
static const struct {
    uint64_t local_bytes;
    struct shape shape;
} small_cases[] = {{16384, {1, 70, 2, 128, 0.2, false}},
                   {32768, {1, 200, 2, 24, 0.2, false}},
                   {32768, {1, 37, 1, 128, 0, true}},
                   {49152, {1, 70, 2, 128, 0.2, false}},
                   {65536, {1, 70, 2, 104, 0, false}}};

START_TEST(small_local_memory_changes_no_bit)
{
    rig_open();
    const struct shape s = small_cases[_i].shape;
    struct keel_device_info target = *keel_device_info(rig[1].device);
    target.local_bytes = small_cases[_i].local_bytes;
    struct keel_kernels *own = rig[1].kernels, *made_small = NULL;
    ck_ok(keel_kernels_create_with(rig[1].device, &(struct keel_kernels_options){.target = &target},
                                   &made_small));
    float *qkv = rig_numbers(1, 3 * out_count(&s)), *dout = rig_numbers(2, out_count(&s));
    struct result large = attend(&s, &rig[0], qkv, dout);
    rig[1].kernels = made_small;
    struct result small = attend(&s, &rig[1], qkv, dout);
    rig[1].kernels = own;
    keel_kernels_destroy(made_small);
    rig_same_bits("out in small memory", 1, small.out, large.out, out_count(&s));
    rig_same_bits("stats in small memory", 1, small.stats, large.stats, 2 * row_count(&s));
    rig_same_bits("dqkv in small memory", 1, small.dqkv, large.dqkv, 3 * out_count(&s));
    result_fini(&large);
    result_fini(&small);
    free(qkv);
    free(dout);
    rig_close();
}
END_TEST

/* NaN for NaN, whatever its bits, else equal bits. */
static void same_reach(const char *what, const float *x, const float *host, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        ck_assert_msg(isnan(x[i]) ? isnan(host[i]) : memcmp(&x[i], &host[i], sizeof *x) == 0,
                      "%s: element %" PRIu64 " is %g, on the host %g", what, i, (double)x[i],
                      (double)host[i]);
}

static void check_reach(const struct shape *s, struct rig_device *on, const float *qkv, const float *dout,
                        const struct result *host)
{
    struct result r = attend(s, on, qkv, dout);
    same_reach("out", r.out, host->out, out_count(s));
    same_reach("stats", r.stats, host->stats, 2 * row_count(s));
    same_reach("dqkv", r.dqkv, host->dqkv, 3 * out_count(s));
    result_fini(&r);
}

/* The same by other blocks, and where local memory is small. */
static void check_reach_cut(const struct shape *s, const float *qkv, const float *dout,
                            const struct result *host)
{
    const struct keel_setting blocks[] = {{"attention.block", 16}, {"attention.block", 64}};
    struct keel_device_info target = *keel_device_info(rig[1].device);
    target.local_bytes = 32768;
    const struct keel_kernels_options options[] = {{.settings = &blocks[0], .setting_count = 1},
                                                   {.settings = &blocks[1], .setting_count = 1},
                                                   {.target = &target}};
    for (size_t n = 0; n < sizeof options / sizeof options[0]; n++) {
        struct rig_device cut = rig[1];
        ck_ok(keel_kernels_create_with(cut.device, &options[n], &cut.kernels));
        check_reach(s, &cut, qkv, dout, host);
        keel_kernels_destroy(cut.kernels);
    }
}

/* Of token 43 of 100, in the fourth place of eight, one number of what? `basic` has its gradient by heads,
 * threads have it by blocks. */
static const struct {
    bool q, k, v, dout;
    double rate;
} infinite[] = {{.q = true}, {.k = true}, {.v = true}, {.dout = true}, {.k = true, .v = true, .rate = 0.25}};
enum { INFINITE = sizeof infinite / sizeof infinite[0] };

START_TEST(an_infinity_reaches_the_same_results_on_every_device)
{
    rig_open();
    const struct shape s = {1, 100, 2, 16, infinite[_i].rate, false};
    const uint64_t row = (uint64_t)s.heads * s.width, token = 43;
    float *qkv = rig_numbers(1, 3 * out_count(&s)), *dout = rig_numbers(2, out_count(&s));
    float *const at = qkv + token * 3 * row;
    at[3] = infinite[_i].q ? INFINITY : at[3];
    at[row + 5] = infinite[_i].k ? INFINITY : at[row + 5];
    at[2 * row + 7] = infinite[_i].v ? INFINITY : at[2 * row + 7];
    dout[token * row + 9] = infinite[_i].dout ? INFINITY : dout[token * row + 9];
    struct result host = attend(&s, &rig[0], qkv, dout);
    for (int d = 1; d < RIG_DEVICES; d++)
        check_reach(&s, &rig[d], qkv, dout, &host);
    check_reach_cut(&s, qkv, dout, &host);
    double squares = 0; /* what the norm sees of such a step */
    for (uint64_t i = 0; i < 3 * out_count(&s); i++)
        squares += (double)host.dqkv[i] * (double)host.dqkv[i];
    ck_assert(!isfinite(squares));
    for (uint64_t i = 0; i < 40 * row; i++) /* of the eights before, nothing */
        ck_assert(isfinite(host.out[i]));
    result_fini(&host);
    free(qkv);
    free(dout);
    rig_close();
}
END_TEST

START_TEST(what_comes_later_changes_no_bit_of_what_came_before)
{
    rig_open();
    const struct shape s = {1, 70, 2, 16, 0.25, false};
    const uint64_t row = 2 * 16, kept = 40; /* tokens that stay as they are */
    float *qkv = rig_numbers(1, 3 * out_count(&s)), *dout = rig_numbers(2, out_count(&s));
    struct result before = attend(&s, &rig[1], qkv, dout);
    for (uint64_t i = kept * 3 * row; i < 3 * out_count(&s); i++)
        qkv[i] = qkv[i] * 3 + 1;
    struct result after = attend(&s, &rig[1], qkv, dout);
    rig_same_bits("out of the first 40 tokens", 1, after.out, before.out, kept * row);
    ck_assert_mem_ne(after.out + kept * row, before.out + kept * row, row * sizeof(float));
    result_fini(&before);
    result_fini(&after);
    free(qkv);
    free(dout);
    rig_close();
}
END_TEST

START_TEST(every_token_sees_all_others_where_attention_is_bidirectional)
{
    rig_open();
    const struct shape s = {1, 70, 2, 16, 0, true};
    const uint64_t row = 2 * 16;
    float *qkv = rig_numbers(1, 3 * out_count(&s)), *dout = rig_numbers(2, out_count(&s));
    struct result before = attend(&s, &rig[1], qkv, dout);
    qkv[(s.tokens - 1) * 3 * row + 2 * row] += 1; /* v of the last token, element 0 of head 0 */
    struct result after = attend(&s, &rig[1], qkv, dout);
    for (uint64_t t = 0; t < s.tokens; t++) {
        ck_assert_float_gt(after.out[t * row], before.out[t * row]);
        rig_same_bits("the rest", 1, after.out + t * row + 1, before.out + t * row + 1, row - 1);
    }
    result_fini(&before);
    result_fini(&after);
    free(qkv);
    free(dout);
    rig_close();
}
END_TEST

/* The device's own counters: what the gradient needs beside its operands doubles with the tokens. */
START_TEST(memory_grows_with_the_tokens_and_not_with_their_square)
{
    rig_open();
    uint64_t bytes[4] = {0};
    for (uint32_t n = 0; n < 4; n++) {
        const struct shape s = {1, 256U << n, 2, 8, 0, false};
        float *qkv = rig_numbers(1, 3 * out_count(&s)), *dout = rig_numbers(2, out_count(&s));
        const uint64_t before = keel_device_stats(rig[1].device).peak_bytes;
        struct result r = attend(&s, &rig[1], qkv, dout);
        bytes[n] = keel_device_stats(rig[1].device).peak_bytes;
        ck_assert_uint_gt(bytes[n], before);
        ck_assert_uint_eq(bytes[n], bytes[0] << n);
        result_fini(&r);
        free(qkv);
        free(dout);
    }
    rig_close();
}
END_TEST

/* 1,024 tokens: the largest context of GPT-2. Rows of a constant v stay that constant. */
START_TEST(a_thousand_tokens_attend)
{
    rig_open();
    const struct shape s = {1, 1024, 1, 8, 0, false};
    float *qkv = rig_numbers(1, 3 * out_count(&s)), *dout = rig_numbers(2, out_count(&s));
    for (uint64_t t = 0; t < s.tokens; t++)
        for (uint64_t d = 0; d < s.width; d++)
            qkv[(t * 3 + 2) * s.width + d] = 1;
    struct result pocl = attend(&s, &rig[1], qkv, dout), host = attend(&s, &rig[0], qkv, dout);
    for (uint64_t i = 0; i < out_count(&s); i++) /* 1,024 roundings of sums up to 1,024 e, at random */
        ck_assert_double_le(fabs((double)pocl.out[i] - 1), 64 * (double)FLT_EPSILON);
    rig_same_bits("out", 1, pocl.out, host.out, out_count(&s));
    rig_same_bits("dqkv", 1, pocl.dqkv, host.dqkv, 3 * out_count(&s));
    result_fini(&pocl);
    result_fini(&host);
    free(qkv);
    free(dout);
    rig_close();
}
END_TEST

START_TEST(wrong_descriptors_are_refused_by_name)
{
    rig_open();
    struct rig_device *on = &rig[1];
    struct keel_launch_list list = {0};
    struct keel_buffer *x = rig_buffer(on, NULL, 4096);
    const struct keel_attention right = {
        .batch = 1, .tokens = 4, .heads = 2, .head_width = 8, .qkv = x, .out = x, .stats = x};
    struct keel_attention op = right;
    op.tokens = 0;
    ck_status(keel_op_attention(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "attention"));
    op = right;
    op.head_width = 257;
    ck_status(keel_op_attention(on->kernels, &op, &list), KEEL_LIMIT);
    op = right;
    op.dropout_rate = 0.5F; /* and no control */
    ck_status(keel_op_attention(on->kernels, &op, &list), KEEL_INVALID);
    op.dropout_rate = 1;
    ck_status(keel_op_attention(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.tokens = 64; /* qkv too small */
    ck_status(keel_op_attention(on->kernels, &op, &list), KEEL_INVALID);
    struct keel_attention_grad grad = {.forward = right, .dout = x, .dqkv = x};
    ck_status(keel_op_attention_grad(on->kernels, &grad, &list), KEEL_INVALID); /* no workspace */
    ck_assert_uint_eq(list.count, 0);
    keel_launch_list_fini(&list);
    rig_close();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, the_gradient_formula_agrees_with_finite_differences, 0, 4);
    tcase_add_test(tc, every_shape_is_right_and_has_the_same_bits_on_every_device);
    tcase_add_loop_test(tc, small_local_memory_changes_no_bit, 0,
                        (int)(sizeof small_cases / sizeof small_cases[0]));
    tcase_add_loop_test(tc, an_infinity_reaches_the_same_results_on_every_device, 0, INFINITE);
    tcase_add_test(tc, what_comes_later_changes_no_bit_of_what_came_before);
    tcase_add_test(tc, every_token_sees_all_others_where_attention_is_bidirectional);
    tcase_add_test(tc, memory_grows_with_the_tokens_and_not_with_their_square);
    tcase_add_test(tc, a_thousand_tokens_attend);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("attention", cases, 120)
