/* attention_mask_test.c - what a query sees: windows, ALiBi, segments, keys of their own; random descriptors
 * of all of them against the formula in double, and the same bits on the host, on PoCL, and by groups of many
 * work-items. KEEL_ATTENTION_TRIALS=n draws n descriptors (make attention: 2,000 of each kind). */
#include "device_rig.h"
#include "kernels_internal.h"
#include <keel/attention_ops.h>
#include <math.h>

struct shape {
    uint32_t batch, tokens, heads, width;
    bool bidirectional;
    uint32_t window, keys /* 0: queries' own */, segments /* about how many; 0: none */;
    struct keel_alibi alibi;
    float rate;
};
enum { STREAM = 77, TRIALS = 16, WAYS = 4 };
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
static uint64_t out_count(const struct shape *s)
{
    return (uint64_t)s->batch * s->tokens * s->heads * s->width;
}
static uint64_t q_count(const struct shape *s)
{
    return (s->keys > 0 ? 1 : 3) * out_count(s);
}
static uint64_t kv_count(const struct shape *s)
{
    return s->keys > 0 ? (uint64_t)2 * s->batch * s->keys * s->heads * s->width : 0;
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

/* Where row t of a part (0 to 2: q, k, v) of a head begins, in q or in kv. */
static uint64_t row_at(const struct shape *s, int part, uint64_t b, uint64_t h, uint64_t t)
{
    const uint64_t row = (uint64_t)s->heads * s->width, head = h * s->width;
    if (s->keys == 0)
        return ((b * s->tokens + t) * 3 + (uint64_t)part) * row + head;
    return part == 0 ? (b * s->tokens + t) * row + head
                     : ((b * s->keys + t) * 2 + (uint64_t)part - 1) * row + head;
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
                                                 .head_width = s->width,
                                                 .bidirectional = s->bidirectional,
                                                 .window = s->window,
                                                 .alibi = s->alibi,
                                                 .keys = s->keys,
                                                 .dropout_rate = s->rate,
                                                 .stream = STREAM}};
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

/* The largest difference from the true values: a share of the largest of them, and, where terms cancel, four
 * units in the last place (2^-24 each) of the largest sum of magnitudes: the product, its partner's, the
 * exponential, the sum. Chosen so, and not proved, since a proof's bound grows with the number of terms: of
 * 1,350 results of random descriptors the worst had a quarter of it. */
static void check_close(const char *what, const struct shape *s, const float *x, const struct truth *truth,
                        uint64_t count)
{
    double worst = 0, largest = 0, magnitude = 0;
    for (uint64_t i = 0; i < count; i++) {
        ck_assert_msg(isfinite(x[i]), "%s: element %" PRIu64 " is %g", what, i, (double)x[i]);
        worst = fmax(worst, fabs((double)x[i] - truth->value[i]));
        largest = fmax(largest, fabs(truth->value[i]));
        magnitude = fmax(magnitude, truth->magnitude[i]);
    }
    const double bound = 2e-6 * largest + 0x1p-22 * magnitude;
    ck_assert_msg(worst <= bound,
                  "%s of %ux%u+%ux%ux%u window %u alibi %u segments %u: error %g, bound %g of %g", what,
                  s->batch, s->tokens, s->keys, s->heads, s->width, s->window, s->alibi.heads, s->segments,
                  worst, bound, largest);
}

static void check_against_double(const struct shape *s, const struct numbers *n, const struct result *r)
{
    struct truth out = truth_of(out_count(s)), dq = truth_of(q_count(s)), own = truth_of(kv_count(s)),
                 *dkv = s->keys > 0 ? &own : &dq;
    for (uint64_t b = 0; b < s->batch; b++)
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint64_t i = 0; i < s->tokens; i++)
                row_true(s, n, b, h, i, &out, &dq, dkv);
    check_close("out", s, r->out, &out, out_count(s));
    check_close("dq", s, r->dq, &dq, q_count(s));
    if (s->keys > 0)
        check_close("dkv", s, r->dkv, dkv, kv_count(s));
    truth_fini(&out);
    truth_fini(&dq);
    truth_fini(&own);
}

static void check_shape(const struct shape *s, struct rig_device *ways, int count)
{
    struct numbers n = draw_numbers(s);
    struct result host = attend(s, &ways[0], &n);
    check_against_double(s, &n, &host);
    for (int w = 1; w < count; w++) {
        struct result r = attend(s, &ways[w], &n);
        rig_same_bits("out", w % RIG_DEVICES, r.out, host.out, out_count(s));
        rig_same_bits("stats", w % RIG_DEVICES, r.stats, host.stats, stats_count(s));
        rig_same_bits("dq", w % RIG_DEVICES, r.dq, host.dq, q_count(s));
        rig_same_bits("dkv", w % RIG_DEVICES, r.dkv, host.dkv, kv_count(s));
        result_fini(&r);
    }
    result_fini(&host);
    numbers_fini(&n);
}

/* The devices of the rig, and PoCL's with 64 work-items to a group. */
static void open_ways(struct rig_device ways[WAYS])
{
    const struct keel_setting many = {"attention.items", 64};
    rig_open();
    memcpy(ways, rig, sizeof rig);
    ways[3] = rig[1];
    ck_ok(keel_kernels_create_with(rig[1].device,
                                   &(struct keel_kernels_options){.settings = &many, .setting_count = 1},
                                   &ways[3].kernels));
}
static void close_ways(struct rig_device ways[WAYS])
{
    keel_kernels_destroy(ways[3].kernels);
    rig_close();
}

/* ---- claims ---- */

static uint32_t draws;
static uint32_t draw(uint32_t below)
{
    return keel_random_u32(&(struct keel_control){.seed_lo = 19}, 3, draws++) % below;
}

/* Of each kind: a window, ALiBi, segments, keys of their own; and the others at random. */
static struct shape draw_shape(int kind)
{
    static const uint32_t sizes[] = {1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 67, 100, 130};
    struct shape s = {.batch = 1 + draw(2), .tokens = sizes[draw(14)] + draw(4), .heads = 1 + draw(3)};
    s.width = 1 + draw(draw(4) == 0 ? 70 : 20);
    s.bidirectional = kind == 3 || draw(2) == 0;
    s.rate = draw(4) == 0 ? 0.25F : 0;
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

static uint32_t trials(void)
{
    const char *asked = getenv("KEEL_ATTENTION_TRIALS");
    return asked != NULL ? (uint32_t)strtoul(asked, NULL, 10) : TRIALS;
}

START_TEST(random_masks_are_right_and_have_the_same_bits_everywhere)
{
    struct rig_device ways[WAYS];
    open_ways(ways);
    draws = (uint32_t)_i << 24;
    for (uint32_t trial = 0; trial < trials(); trial++) {
        const struct shape s = draw_shape(_i);
        check_shape(&s, ways, WAYS);
    }
    close_ways(ways);
}
END_TEST

/* Windows that end within and behind blocks of keys, many blocks long; more keys than are kept; heads as wide
 * as may be; all by other blocks, and in small local memory too. */
static const struct shape edges[] = {
    {1, 300, 2, 24, false, 70, 0, 0, {0, 0}, 0},     {1, 300, 1, 8, true, 33, 0, 3, {0, 0}, 0},
    {1, 200, 2, 128, true, 150, 0, 0, {2, 0}, 0.2F}, {2, 150, 3, 17, true, 0, 220, 4, {0, 0}, 0.2F},
    {1, 40, 2, 33, true, 0, 300, 0, {0, 0}, 0},
};

START_TEST(edges_of_blocks_change_no_bit)
{
    const struct keel_setting settings[] = {{"attention.block", 16}, {"attention.kept", 16}};
    struct rig_device ways[3];
    rig_open();
    struct keel_device_info small = *keel_device_info(rig[1].device);
    small.local_bytes = 32768;
    const struct keel_kernels_options options[] = {{.settings = settings, .setting_count = 2},
                                                   {.target = &small}};
    ways[0] = rig[0];
    for (int w = 0; w < 2; w++) {
        ways[1 + w] = rig[1];
        ck_ok(keel_kernels_create_with(rig[1].device, &options[w], &ways[1 + w].kernels));
    }
    for (size_t e = 0; e < sizeof edges / sizeof edges[0]; e++)
        check_shape(&edges[e], ways, 3);
    keel_kernels_destroy(ways[1].kernels);
    keel_kernels_destroy(ways[2].kernels);
    rig_close();
}
END_TEST

/* Sequences that are packed into one row have the bits of each alone, where they begin with an eight. */
START_TEST(a_packed_sequence_has_the_bits_of_itself_alone)
{
    rig_open();
    const struct shape packed = {1, 96, 2, 16, false, 0, 0, 2, {0, 0}, 0},
                       alone = {1, 48, 2, 16, false, 0, 0, 0, {0, 0}, 0};
    struct numbers n = draw_numbers(&packed);
    struct result both = attend(&packed, &rig[1], &n);
    for (uint64_t half = 0; half < 2; half++) {
        const struct numbers own = {.q = n.q + half * q_count(&alone),
                                    .dout = n.dout + half * out_count(&alone)};
        struct result r = attend(&alone, &rig[1], &own);
        rig_same_bits("out", 1, both.out + half * out_count(&alone), r.out, out_count(&alone));
        rig_same_bits("dqkv", 1, both.dq + half * q_count(&alone), r.dq, q_count(&alone));
        result_fini(&r);
    }
    result_fini(&both);
    numbers_fini(&n);
    rig_close();
}
END_TEST

/* A window that holds all is none, and so is ALiBi far from nothing: other bits only where it counts. */
START_TEST(a_window_of_all_tokens_is_none)
{
    rig_open();
    const struct shape none = {1, 70, 2, 16, true, 0, 0, 0, {0, 0}, 0.25F};
    struct shape all = none, less = none;
    all.window = 70;
    less.window = 69;
    struct numbers n = draw_numbers(&none);
    struct result a = attend(&none, &rig[1], &n), b = attend(&all, &rig[1], &n),
                  c = attend(&less, &rig[1], &n);
    rig_same_bits("out", 1, b.out, a.out, out_count(&none));
    rig_same_bits("dqkv", 1, b.dq, a.dq, q_count(&none));
    ck_assert_mem_ne(c.out, a.out, out_count(&none) * sizeof(float));
    result_fini(&a);
    result_fini(&b);
    result_fini(&c);
    numbers_fini(&n);
    rig_close();
}
END_TEST

START_TEST(masks_that_make_no_sense_are_refused_by_name)
{
    rig_open();
    struct keel_launch_list list = {0};
    struct keel_buffer *x = rig_buffer(&rig[0], NULL, 4096), *y = rig_buffer(&rig[0], NULL, 4096);
    const struct {
        struct keel_attention op;
        enum keel_status status;
        const char *says;
    } wrong[] = {
        {{.alibi = {1, 0}}, KEEL_INVALID, "ALiBi of 2 heads from head 0 on, there are 1"},
        {{.alibi = {4, 3}}, KEEL_INVALID, "ALiBi of 2 heads from head 3 on, there are 4"},
        {{.alibi = {KEEL_ALIBI_HEADS_MAX + 1, 0}}, KEEL_LIMIT, "at most 16384"},
        {{.keys = 4}, KEEL_INVALID, "4 keys or segments of keys, without kv"},
        {{.kv = x, .bidirectional = true}, KEEL_INVALID, "0 keys of their own"},
        {{.kv = x, .keys = 4}, KEEL_INVALID, "4 keys of their own, causal"},
        {{.kv = x, .keys = 4, .bidirectional = true, .window = 2}, KEEL_INVALID, "own, a window"},
        {{.kv = x, .keys = 4, .bidirectional = true, .alibi = {2, 0}}, KEEL_INVALID, "own, ALiBi"},
        {{.kv = x, .keys = 4, .bidirectional = true, .segments = x}, KEEL_INVALID, "give both"},
        {{.kv = x, .keys = 400, .bidirectional = true}, KEEL_INVALID, "kv"},
        {{.tokens = 31, .head_width = 1, .heads = 1, .batch = 33, .segments = x}, KEEL_INVALID, "qkv"},
    };
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
        struct keel_attention op = wrong[w].op;
        op.batch = op.batch > 0 ? op.batch : 1;
        op.tokens = op.tokens > 0 ? op.tokens : 4;
        op.heads = op.heads > 0 ? op.heads : 2;
        op.head_width = op.head_width > 0 ? op.head_width : 8;
        op.qkv = x;
        op.out = op.stats = y;
        ck_status(keel_op_attention(rig[0].kernels, &op, &list), wrong[w].status);
        ck_assert_msg(strstr(keel_detail(), "attention") != NULL &&
                          strstr(keel_detail(), wrong[w].says) != NULL,
                      "\"%s\" lacks \"%s\"", keel_detail(), wrong[w].says);
    }
    ck_assert_uint_eq(list.count, 0);
    keel_launch_list_fini(&list);
    rig_close();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, random_masks_are_right_and_have_the_same_bits_everywhere, 0, 4);
    tcase_add_test(tc, edges_of_blocks_change_no_bit);
    tcase_add_test(tc, a_packed_sequence_has_the_bits_of_itself_alone);
    tcase_add_test(tc, a_window_of_all_tokens_is_none);
    tcase_add_test(tc, masks_that_make_no_sense_are_refused_by_name);
}

KEEL_TEST_MAIN("attention_mask", cases, getenv("KEEL_ATTENTION_TRIALS") != NULL ? 86400 : 240)
