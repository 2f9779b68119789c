/* attention_rig.h - attention of random shapes and masks, forward and backward: numbers, the formula in
 * double, and what a device makes of it, in the class of its kernels. For tests that begin with device_rig.h.
 */
#ifndef KEEL_TESTS_ATTENTION_RIG_H
#define KEEL_TESTS_ATTENTION_RIG_H

#include "device_rig.h"
#include <keel/attention_ops.h>
#include <math.h>

struct shape {
    uint32_t batch, tokens, heads, width;
    bool bidirectional;
    uint32_t window, keys /* 0: queries' own */, segments /* about how many; 0: none */;
    struct keel_alibi alibi;
    float rate;
    uint32_t kv_heads /* 0: as heads */;
    float base /* of rotary positions that the gradient turns back; 0: none */;
};
enum { STREAM = 77 };
static const struct keel_control control = {.seed_lo = 11, .seed_hi = 12, .step = 13, .microbatch = 14};

/* ---- numbers ---- */

struct numbers {
    float *q, *kv, *dout; /* kv NULL: q has all three */
    int32_t *segments, *key_segments;
};
static uint32_t keys_of(const struct shape *s)
{
    return s->keys > 0 ? s->keys : s->tokens;
}
static uint32_t kv_heads_of(const struct shape *s)
{
    return s->kv_heads > 0 ? s->kv_heads : s->heads;
}
static uint32_t first_head; /* of heads that are some of more: its number in the whole */

/* The heads that share keys and values `kv`, in the order in which their gradients are added: those of one
 * number / 8 ascending, the last such eight first. Returns how many they are. */
static uint32_t share_order(const struct shape *s, uint32_t kv, uint32_t order[64])
{
    const uint32_t group = s->heads / kv_heads_of(s);
    uint32_t count = 0;
    for (uint32_t eight = (first_head + s->heads) / 8 + 1; eight-- > 0;)
        for (uint32_t h = kv * group; h < (kv + 1) * group; h++)
            if ((first_head + h) / 8 == eight)
                order[count++] = h;
    ck_assert_uint_eq(count, group);
    return count;
}
static uint64_t out_count(const struct shape *s)
{
    return (uint64_t)s->batch * s->tokens * s->heads * s->width;
}
static uint64_t q_count(const struct shape *s)
{
    return out_count(s) + (s->keys > 0 ? 0 : (uint64_t)2 * s->batch * s->tokens * kv_heads_of(s) * s->width);
}
static uint64_t kv_count(const struct shape *s)
{
    return s->keys > 0 ? (uint64_t)2 * s->batch * s->keys * kv_heads_of(s) * s->width : 0;
}

/* Runs of tokens of one number each; of queries with keys of their own the last run is of no key. */
static int32_t *draw_segments(const struct shape *s, uint32_t tokens, uint32_t runs)
{
    int32_t *ids = malloc(sizeof *ids * s->batch * tokens);
    ck_assert_ptr_nonnull(ids);
    for (uint32_t t = 0; t < s->batch * tokens; t++)
        ids[t] = 1 - (int32_t)((uint64_t)(t % tokens) * runs / tokens + t / tokens);
    return ids;
}

static struct numbers draw_numbers(const struct shape *s)
{
    struct numbers n = {.q = rig_numbers(1, q_count(s)), .dout = rig_numbers(2, out_count(s))};
    if (s->keys > 0)
        n.kv = rig_numbers(3, kv_count(s));
    if (s->segments > 0)
        n.segments = draw_segments(s, s->tokens, s->segments + (s->keys > 0 ? 1 : 0));
    if (s->segments > 0 && s->keys > 0)
        n.key_segments = draw_segments(s, s->keys, s->segments);
    return n;
}

static void numbers_fini(struct numbers *n)
{
    free(n->q);
    free(n->kv);
    free(n->dout);
    free(n->segments);
    free(n->key_segments);
}

/* ---- in double ---- */

/* Where row t of a part (0 to 2: q, k, v) of a head, or of what it shares, begins, in q or in kv. */
static uint64_t row_at(const struct shape *s, int part, uint64_t b, uint64_t h, uint64_t t)
{
    const uint64_t row = (uint64_t)s->heads * s->width, kv_row = (uint64_t)kv_heads_of(s) * s->width;
    const uint64_t shared = h / (s->heads / kv_heads_of(s)) * s->width;
    if (part == 0)
        return (b * s->tokens + t) * (s->keys == 0 ? row + 2 * kv_row : row) + h * s->width;
    if (s->keys == 0)
        return (b * s->tokens + t) * (row + 2 * kv_row) + row + (uint64_t)(part - 1) * kv_row + shared;
    return ((b * s->keys + t) * 2 + (uint64_t)part - 1) * kv_row + shared;
}

static bool seen(const struct shape *s, const struct numbers *n, uint64_t b, int64_t i, int64_t j)
{
    const int32_t *key_segments = s->keys > 0 ? n->key_segments : n->segments;
    if (s->segments > 0 &&
        n->segments[(int64_t)b * s->tokens + i] != key_segments[(int64_t)b * keys_of(s) + j])
        return false;
    return (s->bidirectional || j <= i) && (s->window == 0 || llabs(i - j) < s->window);
}

/* The slope by the authors' recipe. */
static double slope_of(const struct shape *s, uint32_t head)
{
    uint32_t n = s->alibi.heads, h = s->alibi.first + head, p = 1;
    if (n == 0)
        return 0;
    while (2 * p <= n)
        p *= 2;
    return h < p ? pow(2, -8.0 * (h + 1) / p) : pow(2, -8.0 * (2 * (h - p) + 1) / (2 * p));
}

static double keep(const struct shape *s, uint64_t row, uint64_t j)
{
    if (s->rate == 0)
        return 1;
    return keel_random_uniform(&control, STREAM, row * keys_of(s) + j) >= s->rate ? 1 / (1 - (double)s->rate)
                                                                                  : 0;
}

static double product(const float *x, const float *y, uint32_t width, double *magnitude)
{
    double sum = 0;
    *magnitude = 0;
    for (uint32_t d = 0; d < width; d++) {
        sum += (double)x[d] * (double)y[d];
        *magnitude += fabs((double)x[d] * (double)y[d]);
    }
    return sum;
}

/* A result in double, and beside each element the sum of the magnitudes of what was added: where terms
 * cancel, roundings are those of the terms. */
struct truth {
    double *value, *magnitude;
};
static void add_true(const struct truth *t, uint64_t at, double factor, double factor_magnitude, float x)
{
    t->value[at] += factor * (double)x;
    t->magnitude[at] += factor_magnitude * fabs((double)x);
}

/* out of query i, and what it adds to dq and dkv. */
static void row_true(const struct shape *s, const struct numbers *n, uint64_t b, uint32_t h, uint64_t i,
                     const struct truth *out, const struct truth *dq, const struct truth *dkv)
{
    double p[512] = {0}, dp[512], dp_magnitude[512], sum = 0, delta = 0, delta_magnitude = 0, unused;
    const float *kv = s->keys > 0 ? n->kv : n->q, *q = n->q + row_at(s, 0, b, h, i);
    const uint64_t at = ((b * s->tokens + i) * s->heads + h) * s->width,
                   row = (b * s->heads + h) * s->tokens + i;
    const double scale = 1 / sqrt((double)s->width);
    for (uint64_t j = 0; j < keys_of(s); j++)
        if (seen(s, n, b, (int64_t)i, (int64_t)j))
            sum += p[j] = exp(product(q, kv + row_at(s, 1, b, h, j), s->width, &unused) * scale -
                              slope_of(s, h) * fabs((double)i - (double)j));
    for (uint64_t j = 0; j < keys_of(s); j++) {
        p[j] = sum > 0 ? p[j] / sum : 0;
        dp[j] =
            keep(s, row, j) * product(n->dout + at, kv + row_at(s, 2, b, h, j), s->width, &dp_magnitude[j]);
        dp_magnitude[j] *= keep(s, row, j);
        delta += p[j] * dp[j];
        delta_magnitude += p[j] * dp_magnitude[j];
        const double kept = p[j] * keep(s, row, j);
        for (uint32_t d = 0; d < s->width; d++)
            add_true(out, at + d, kept, kept, kv[row_at(s, 2, b, h, j) + d]);
    }
    for (uint64_t j = 0; j < keys_of(s); j++) {
        const double ds = p[j] * (dp[j] - delta) * scale,
                     ds_magnitude = p[j] * (dp_magnitude[j] + delta_magnitude) * scale,
                     kept = p[j] * keep(s, row, j);
        const uint64_t k = row_at(s, 1, b, h, j), v = row_at(s, 2, b, h, j);
        for (uint32_t d = 0; d < s->width; d++) {
            add_true(dq, row_at(s, 0, b, h, i) + d, ds, ds_magnitude, kv[k + d]);
            add_true(dkv, k + d, ds, ds_magnitude, q[d]);
            add_true(dkv, v + d, kept, kept, n->dout[at + d]);
        }
    }
}

static double *doubles(uint64_t count)
{
    double *x = calloc(count + 1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

static struct truth truth_of(uint64_t count)
{
    return (struct truth){.value = doubles(count), .magnitude = doubles(count)};
}

static void truth_fini(struct truth *t)
{
    free(t->value);
    free(t->magnitude);
}

/* ---- on devices ---- */

struct result {
    float *out, *stats, *dq, *dkv;
};
static uint64_t stats_count(const struct shape *s)
{
    return (uint64_t)2 * s->batch * s->heads * s->tokens;
}

static struct keel_buffer *optional(struct rig_device *on, const void *data, uint64_t bytes)
{
    return data != NULL ? rig_buffer(on, data, bytes) : NULL;
}

static struct result attend(const struct shape *s, struct rig_device *on, const struct numbers *n)
{
    struct result r = {rig_numbers(4, out_count(s)), rig_numbers(7, stats_count(s)),
                       rig_numbers(5, q_count(s)), rig_numbers(6, kv_count(s))};
    struct keel_attention_grad op = {.forward = {.batch = s->batch,
                                                 .tokens = s->tokens,
                                                 .heads = s->heads,
                                                 .kv_heads = s->kv_heads,
                                                 .head_width = s->width,
                                                 .bidirectional = s->bidirectional,
                                                 .window = s->window,
                                                 .alibi = s->alibi,
                                                 .keys = s->keys,
                                                 .dropout_rate = s->rate,
                                                 .stream = STREAM,
                                                 .of_class = true},
                                     .first_head = first_head,
                                     .turned = {.base = s->base}};
    struct keel_launch_list list = {0};
    op.forward.qkv = rig_buffer(on, n->q, q_count(s) * 4);
    op.forward.kv = optional(on, n->kv, kv_count(s) * 4);
    op.forward.segments = optional(on, n->segments, (uint64_t)s->batch * s->tokens * 4);
    op.forward.key_segments = optional(on, n->key_segments, (uint64_t)s->batch * s->keys * 4);
    op.forward.out = rig_buffer(on, r.out, out_count(s) * 4);
    op.forward.stats = rig_buffer(on, NULL, stats_count(s) * 4);
    op.forward.control = s->rate > 0 ? rig_buffer(on, &control, sizeof control) : NULL;
    op.dout = rig_buffer(on, n->dout, out_count(s) * 4);
    op.dqkv = rig_buffer(on, r.dq, q_count(s) * 4);
    op.dkv = optional(on, s->keys > 0 ? r.dkv : NULL, kv_count(s) * 4);
    op.forward.workspace = rig_buffer(on, NULL, keel_attention_grad_workspace_bytes(on->kernels, &op));
    uint64_t bytes[KEEL_ATTENTION_PARTS];
    keel_attention_part_bytes(on->kernels, &op.forward, true, bytes);
    for (int i = 0; i < KEEL_ATTENTION_PARTS; i++)
        if (bytes[i] > 0)
            op.forward.parts[i] = rig_buffer(on, NULL, bytes[i]);
    ck_ok(keel_op_attention(on->kernels, &op.forward, &list));
    ck_ok(keel_op_attention_grad(on->kernels, &op, &list));
    rig_run(on, &list);
    rig_read(on, op.forward.out, r.out);
    rig_read(on, op.forward.stats, r.stats);
    rig_read(on, op.dqkv, r.dq);
    if (op.dkv != NULL)
        rig_read(on, op.dkv, r.dkv);
    rig_clear(on);
    return r;
}

static void result_fini(struct result *r)
{
    free(r->out);
    free(r->stats);
    free(r->dq);
    free(r->dkv);
}

/* How far results may be from the true values: as a share of the largest of them, and of the largest sum of
 * magnitudes. */
struct bound {
    double largest, magnitude;
};
static void check_close(const char *what, const struct shape *s, const float *x, const struct truth *truth,
                        uint64_t count, const struct bound *allowed)
{
    double worst = 0, largest = 0, magnitude = 0;
    for (uint64_t i = 0; i < count; i++) {
        ck_assert_msg(isfinite(x[i]), "%s: element %" PRIu64 " is %g", what, i, (double)x[i]);
        worst = fmax(worst, fabs((double)x[i] - truth->value[i]));
        largest = fmax(largest, fabs(truth->value[i]));
        magnitude = fmax(magnitude, truth->magnitude[i]);
    }
    const double bound = allowed->largest * largest + allowed->magnitude * magnitude;
    ck_assert_msg(worst <= bound,
                  "%s of %ux%u+%ux%u/%ux%u window %u alibi %u segments %u: error %g, bound %g of %g", what,
                  s->batch, s->tokens, s->keys, s->heads, kv_heads_of(s), s->width, s->window, s->alibi.heads,
                  s->segments, worst, bound, largest);
}

static void check_against_double(const struct shape *s, const struct numbers *n, const struct result *r,
                                 const struct bound *bound)
{
    struct truth out = truth_of(out_count(s)), dq = truth_of(q_count(s)), own = truth_of(kv_count(s)),
                 *dkv = s->keys > 0 ? &own : &dq;
    for (uint64_t b = 0; b < s->batch; b++)
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint64_t i = 0; i < s->tokens; i++)
                row_true(s, n, b, h, i, &out, &dq, dkv);
    check_close("out", s, r->out, &out, out_count(s), bound);
    check_close("dq", s, r->dq, &dq, q_count(s), bound);
    if (s->keys > 0)
        check_close("dkv", s, r->dkv, dkv, kv_count(s), bound);
    truth_fini(&out);
    truth_fini(&dq);
    truth_fini(&own);
}

/* ---- random shapes ---- */

static uint32_t draws;
static uint32_t draw(uint32_t below)
{
    return keel_random_u32(&(struct keel_control){.seed_lo = 19}, 3, draws++) % below;
}

/* Of each kind: a window, ALiBi, segments, keys of their own; and the others at random. Of every third, heads
 * share keys and values. */
static struct shape draw_shape(int kind)
{
    static const uint32_t sizes[] = {1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 67, 100, 130};
    struct shape s = {.batch = 1 + draw(2), .tokens = sizes[draw(14)] + draw(4), .heads = 1 + draw(3)};
    s.width = 1 + draw(draw(4) == 0 ? 70 : 20);
    s.bidirectional = kind == 3 || draw(2) == 0;
    s.rate = draw(4) == 0 ? 0.25F : 0;
    if (draw(3) == 0) {
        s.kv_heads = s.heads;
        s.heads *= 2 + draw(4);
    }
    if (kind == 0 || (kind != 3 && draw(3) == 0))
        s.window = 1 + draw(draw(2) == 0 ? 12 : s.tokens + 20);
    if (kind == 1 || (kind != 3 && draw(3) == 0))
        s.alibi = (struct keel_alibi){s.heads + draw(14), 0};
    if (s.alibi.heads > 0)
        s.alibi.first = draw(s.alibi.heads - s.heads + 1);
    if (kind == 2 || draw(3) == 0)
        s.segments = 1 + draw(5);
    if (kind == 3)
        s.keys = sizes[draw(14)] + draw(4);
    return s;
}

#endif
