/* attention_class_test.c - attention in the classes exact8x2, exact8x3 and bf16: what kernels/README.md,
 * "Attention in classes", defines, computed here in another way; the same bits on the host, on PoCL's two
 * drivers, and by groups of many work-items; against double; heads apart; descriptors.
 * KEEL_ATTENTION_TRIALS=n draws n descriptors of each class and kind (make attention: 2,000). */
#include "attention_rig.h"
#include "canon.h"

#include "alibi.h"

enum { TRIALS = 2, WAYS = 4, BLOCK = 1024, KINDS = 4 };
static const enum keel_class classes[] = {KEEL_EXACT8X2, KEEL_EXACT8X3, KEEL_CLASS_BF16};
enum { CLASSES = sizeof classes / sizeof classes[0] };
static uint32_t digits_of(enum keel_class numerics)
{
    return numerics == KEEL_EXACT8X2 ? 2 : numerics == KEEL_EXACT8X3 ? 3 : 1;
}

/* ---- the definition ---- */

/* The exponent of a line: |x| < 127/128 2^e. */
static int exponent_of(const float *x, uint32_t count, uint32_t step)
{
    float largest = 0;
    int e = 0;
    for (uint32_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(x[i * step]));
    if (largest < 0x1p-126F)
        return 0;
    return frexpf(largest, &e) >= 127.0F / 128 ? e + 1 : e;
}

static void cut(float x, int e, uint32_t digits, int64_t out[3])
{
    int64_t q = (int64_t)round(ldexp((double)x, 8 * (int)digits - 1 - e)); /* halves away from zero */
    for (uint32_t d = digits; d-- > 1; q = (q - out[d]) / 256)
        out[d] = ((q + 128) % 256 + 256) % 256 - 128;
    out[0] = q;
}

static float to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The product of two lines, their elements `step` apart; with `unit` the exponent of y's is 0. */
static float dot(uint32_t digits, uint32_t count, const float *x, uint32_t x_step, const float *y,
                 uint32_t y_step, bool unit)
{
    float sum = 0;
    for (uint32_t i = 0; i < count && digits == 1; i += 2) {
        if (i + 1 < count)
            sum = fmaf(to_bf16(x[(i + 1) * x_step]), to_bf16(y[(i + 1) * y_step]), sum);
        sum = fmaf(to_bf16(x[i * x_step]), to_bf16(y[i * y_step]), sum);
    }
    for (uint32_t first = 0; first < count && digits > 1; first += BLOCK) {
        const uint32_t n = count - first < BLOCK ? count - first : BLOCK;
        const float *a = x + (uint64_t)first * x_step, *b = y + (uint64_t)first * y_step;
        const int ea = exponent_of(a, n, x_step), eb = unit ? 0 : exponent_of(b, n, y_step);
        int64_t levels[3] = {0}, p[3], q[3];
        for (uint32_t i = 0; i < n; i++) {
            cut(a[i * x_step], ea, digits, p);
            cut(b[i * y_step], eb, digits, q);
            for (uint32_t d = 0; d < digits; d++)
                for (uint32_t e = 0; d + e < digits; e++)
                    levels[d + e] += p[d] * q[e];
        }
        float value = (float)levels[digits - 1];
        for (uint32_t level = digits - 1; level-- > 0;)
            value = fmaf((float)levels[level], ldexpf(1, 8 * (int)(digits - 1 - level)), value);
        value = ldexpf(value, ea + eb - 8 * (int)digits - 6);
        value = fabsf(value) < 0x1p-126F ? 0 : value;
        sum = first == 0 ? value : sum + value;
    }
    return sum;
}

static float *floats(uint64_t count)
{
    float *x = calloc(count + 1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

/* One head of one sequence. */
struct head {
    const struct shape *s;
    const struct numbers *n;
    uint32_t digits, b, h, keys;
    const float *q, *k, *v, *g; /* rows q_step, k_step, g_step apart */
    uint32_t q_step, k_step, g_step;
    float scale;
};
static struct head head_of(const struct shape *s, const struct numbers *n, uint32_t digits, uint32_t b,
                           uint32_t h)
{
    const float *kv = s->keys > 0 ? n->kv : n->q;
    const uint32_t row = s->heads * s->width;
    return (struct head){.s = s,
                         .n = n,
                         .digits = digits,
                         .b = b,
                         .h = h,
                         .keys = keys_of(s),
                         .q = n->q + row_at(s, 0, b, h, 0),
                         .k = kv + row_at(s, 1, b, h, 0),
                         .v = kv + row_at(s, 2, b, h, 0),
                         .g = n->dout + (uint64_t)b * s->tokens * row + h * s->width,
                         .q_step = (uint32_t)(row_at(s, 0, 0, 0, 1) - row_at(s, 0, 0, 0, 0)),
                         .k_step = (uint32_t)(row_at(s, 1, 0, 0, 1) - row_at(s, 1, 0, 0, 0)),
                         .g_step = row,
                         .scale = keel_canon_divide(1, keel_canon_sqrt((float)s->width))};
}
static bool sees(const struct head *head, uint32_t i, uint32_t j)
{
    return seen(head->s, head->n, head->b, i, j);
}
static float score(const struct head *head, uint32_t i, uint32_t j)
{
    const struct keel_alibi *alibi = &head->s->alibi;
    const float s = dot(head->digits, head->s->width, head->q + (uint64_t)i * head->q_step, 1,
                        head->k + (uint64_t)j * head->k_step, 1, false) *
                    head->scale;
    return alibi->heads == 0
               ? s
               : fmaf(-alibi_slope(alibi->first + head->h, alibi->heads), fabsf((float)i - (float)j), s);
}
static float drop(const struct head *head, uint32_t i, uint32_t j, float x)
{
    const struct shape *s = head->s;
    const uint64_t row = ((uint64_t)head->b * s->heads + head->h) * s->tokens + i;
    if (s->rate == 0)
        return x;
    return keel_random_uniform(&control, STREAM, row * head->keys + j) >= s->rate
               ? x * keel_canon_divide(1, 1 - s->rate)
               : 0;
}

static void forward_head(const struct head *head, float *out, float *stats)
{
    const struct shape *s = head->s;
    float *w = floats(head->keys), *v = floats((uint64_t)head->keys * s->width);
    for (uint32_t i = 0; i < s->tokens; i++, out += head->g_step, stats += 2) {
        float largest = -INFINITY, lanes[16] = {0};
        for (uint32_t j = 0; j < head->keys; j++) {
            w[j] = score(head, i, j);
            largest = sees(head, i, j) && w[j] > largest ? w[j] : largest;
        }
        largest += 0.0F;
        for (uint32_t j = 0; j < head->keys; j++) {
            const float *value = head->v + (uint64_t)j * head->k_step,
                        e = sees(head, i, j) ? keel_canon_exp(w[j] - largest) : 0;
            const int exponent = head->digits > 1 ? exponent_of(value, s->width, 1) : 0;
            lanes[j % 16] += e;
            w[j] = sees(head, i, j) ? ldexpf(drop(head, i, j, e), exponent) : 0;
            w[j] = w[j] < 0x1p-126F ? 0 : w[j];
            for (uint32_t d = 0; d < s->width; d++)
                v[j * s->width + d] = ldexpf(value[d], -exponent);
        }
        const float sum = canon_fold(lanes);
        stats[0] = sum == 0 ? 0 : largest;
        stats[1] = sum == 0 ? 1 : sum;
        for (uint32_t d = 0; d < s->width; d++)
            out[d] = keel_canon_divide(dot(head->digits, head->keys, w, 1, v + d, s->width, true), stats[1]) +
                     0.0F;
    }
    free(w);
    free(v);
}

/* dk and dv have rows of the head alone. */
static void backward_head(const struct head *head, const float *out, const float *stats, float *dq, float *dk,
                          float *dv)
{
    const struct shape *s = head->s;
    const uint32_t tokens = s->tokens, keys = head->keys, width = s->width;
    float *ds = floats((uint64_t)tokens * keys), *kept = floats((uint64_t)tokens * keys);
    for (uint32_t i = 0; i < tokens; i++) {
        const float *g = head->g + (uint64_t)i * head->g_step;
        const float inverse = keel_canon_divide(1, stats[2 * i + 1]);
        float delta = 0;
        for (uint32_t d = 0; d < width; d++)
            delta = fmaf(g[d], out[i * head->g_step + d], delta);
        for (uint32_t j = 0; j < keys; j++) {
            if (!sees(head, i, j))
                continue;
            const float p = keel_canon_exp(score(head, i, j) - stats[2 * i]) * inverse;
            const float gain = dot(head->digits, width, g, 1, head->v + (uint64_t)j * head->k_step, 1, false);
            ds[i * keys + j] = p * (drop(head, i, j, gain) - delta);
            kept[i * keys + j] = drop(head, i, j, p);
        }
    }
    for (uint32_t i = 0; i < tokens; i++)
        for (uint32_t d = 0; d < width; d++)
            dq[(uint64_t)i * head->q_step + d] =
                dot(head->digits, keys, ds + (uint64_t)i * keys, 1, head->k + d, head->k_step, false) *
                    head->scale +
                0.0F;
    for (uint32_t j = 0; j < keys; j++)
        for (uint32_t d = 0; d < width; d++) {
            const uint64_t at = (uint64_t)j * width + d;
            dk[at] = dot(head->digits, tokens, ds + j, keys, head->q + d, head->q_step, false) * head->scale +
                     0.0F;
            dv[at] = dot(head->digits, tokens, kept + j, keys, head->g + d, head->g_step, false) + 0.0F;
        }
    free(ds);
    free(kept);
}

/* Rows of a head added to those that it shares. */
static void add_rows(const struct shape *s, int part, uint32_t b, uint32_t h, const float *rows, float *dkv)
{
    for (uint32_t j = 0; j < keys_of(s); j++)
        for (uint32_t d = 0; d < s->width; d++)
            dkv[row_at(s, part, b, h, j) + d] += rows[j * s->width + d];
}

static struct result define(const struct shape *s, const struct numbers *n, uint32_t digits)
{
    struct result r = {floats(out_count(s)), floats(stats_count(s)), floats(q_count(s)), floats(kv_count(s))};
    float *dkv = s->keys > 0 ? r.dkv : r.dq, *dk = floats((uint64_t)keys_of(s) * s->width),
          *dv = floats((uint64_t)keys_of(s) * s->width);
    uint32_t order[64];
    for (uint32_t b = 0; b < s->batch; b++)
        for (uint32_t i = 0; i < s->heads; i++) {
            const uint32_t group = s->heads / kv_heads_of(s);
            share_order(s, i / group, order);
            const uint32_t h = order[i % group];
            const struct head head = head_of(s, n, digits, b, h);
            float *out = r.out + (head.g - n->dout), *stats = r.stats + 2ULL * (b * s->heads + h) * s->tokens;
            forward_head(&head, out, stats);
            backward_head(&head, out, stats, r.dq + row_at(s, 0, b, h, 0), dk, dv);
            add_rows(s, 1, b, h, dk, dkv);
            add_rows(s, 2, b, h, dv, dkv);
        }
    free(dk);
    free(dv);
    return r;
}

/* ---- on devices ---- */

/* The devices of the rig, and PoCL's by many work-items: products, rows. */
static void open_ways(enum keel_class numerics, struct rig_device ways[WAYS])
{
    const struct keel_setting many[] = {
        {"gemm.items", 64}, {"launch.group_items", 64}, {"launch.row_items", 16}, {"attention.items", 64}};
    rig_open_class(numerics);
    memcpy(ways, rig, sizeof rig);
    ways[3] = rig[1];
    ck_ok(keel_kernels_create_with(
        rig[1].device,
        &(struct keel_kernels_options){.numerics = numerics, .settings = many, .setting_count = 4},
        &ways[3].kernels));
}
static void close_ways(struct rig_device ways[WAYS])
{
    keel_kernels_destroy(ways[3].kernels);
    rig_close();
}

static void same_bits(const struct shape *s, int way, const struct result *a, const struct result *b)
{
    rig_same_bits("stats", way % RIG_DEVICES, a->stats, b->stats, stats_count(s));
    rig_same_bits("out", way % RIG_DEVICES, a->out, b->out, out_count(s));
    rig_same_bits("dq", way % RIG_DEVICES, a->dq, b->dq, q_count(s));
    rig_same_bits("dkv", way % RIG_DEVICES, a->dkv, b->dkv, kv_count(s));
}

/* Halves of units: 2^-16 and 2^-24 of a line's largest, 2^-9 of a number; both factors, and what a score is
 * off by is in the exponent. Chosen with room, and not proved. */
static const struct bound bounds[CLASSES] = {{0x1p-12, 0x1p-12}, {0x1p-18, 0x1p-19}, {0x1p-5, 0x1p-5}};

static void check_shape(const struct shape *s, int class, struct rig_device *ways)
{
    struct numbers n = draw_numbers(s);
    struct result host = attend(s, &ways[0], &n), defined = define(s, &n, digits_of(classes[class]));
    same_bits(s, 0, &defined, &host);
    if (s->tokens < 512 && keys_of(s) < 512)
        check_against_double(s, &n, &host, &bounds[class]);
    for (int w = 1; w < WAYS; w++) {
        struct result r = attend(s, &ways[w], &n);
        same_bits(s, w, &r, &host);
        result_fini(&r);
    }
    result_fini(&host);
    result_fini(&defined);
    numbers_fini(&n);
}

/* ---- claims ---- */

static uint32_t trials(void)
{
    const char *asked = getenv("KEEL_ATTENTION_TRIALS");
    return asked != NULL ? (uint32_t)strtoul(asked, NULL, 10) : TRIALS;
}

static void random_masks_have_the_bits_of_the_definition_everywhere(int class, struct rig_device *ways)
{
    for (int kind = 0; kind < KINDS; kind++) {
        draws = (uint32_t)(class * KINDS + kind) << 24;
        for (uint32_t trial = 0; trial < trials(); trial++) {
            const struct shape s = draw_shape(kind);
            check_shape(&s, class, ways);
        }
    }
}

/* More queries and keys than a block of k, and than a chunk: keys of which none is seen, and a window. */
static const struct shape longer[] = {{1, 1061, 1, 3, false, 0, 0, 0, {0, 0}, 0, 0, 0},
                                      {1, 1030, 1, 2, true, 40, 0, 0, {1, 0}, 0.2F, 0, 0},
                                      {1, 5, 2, 4, true, 0, 2100, 3, {0, 0}, 0, 1, 0},
                                      {1, 1100, 1, 2, true, 0, 7, 0, {0, 0}, 0, 0, 0}};
static void sums_go_on_from_block_to_block(int class, struct rig_device *ways)
{
    for (size_t l = 0; l < sizeof longer / sizeof longer[0]; l++)
        check_shape(&longer[l], class, ways);
}

/* Whoever has some heads has the bits of whoever has all: tensor parallel ranks, and what fits at a time. */
static void a_head_has_the_same_bits_alone(void)
{
    const struct shape all = {2, 37, 3, 8, false, 0, 0, 0, {0, 0}, 0, 0, 0},
                       one = {2, 37, 1, 8, false, 0, 0, 0, {0, 0}, 0, 0, 0};
    struct numbers n = draw_numbers(&all), of_one = draw_numbers(&one);
    struct result whole = attend(&all, &rig[1], &n);
    for (uint32_t h = 0; h < all.heads; h++) {
        for (uint32_t b = 0; b < all.batch; b++)
            for (uint32_t t = 0; t < all.tokens; t++) {
                for (int part = 0; part < 3; part++)
                    memcpy(of_one.q + row_at(&one, part, b, 0, t), n.q + row_at(&all, part, b, h, t), 8 * 4);
                memcpy(of_one.dout + (b * one.tokens + t) * 8, n.dout + ((b * all.tokens + t) * 3 + h) * 8,
                       8 * 4);
            }
        struct result alone = attend(&one, &rig[1], &of_one);
        for (uint32_t b = 0; b < all.batch; b++)
            for (uint32_t t = 0; t < all.tokens; t++) {
                rig_same_bits("out", 1, alone.out + (b * one.tokens + t) * 8,
                              whole.out + ((b * all.tokens + t) * 3 + h) * 8, 8);
                for (int part = 0; part < 3; part++)
                    rig_same_bits("dqkv", 1, alone.dq + row_at(&one, part, b, 0, t),
                                  whole.dq + row_at(&all, part, b, h, t), 8);
            }
        result_fini(&alone);
    }
    result_fini(&whole);
    numbers_fini(&n);
    numbers_fini(&of_one);
}

/* An infinity in the value of a key reaches those that see it, and no other. */
static void what_is_not_finite_reaches_those_that_see_it(void)
{
    const struct shape s = {1, 20, 1, 4, false, 0, 0, 0, {0, 0}, 0, 0, 0};
    struct numbers n = draw_numbers(&s);
    n.q[row_at(&s, 2, 0, 0, 11)] = INFINITY;
    for (int d = 0; d < RIG_DEVICES; d++) {
        struct result r = attend(&s, &rig[d], &n);
        for (uint32_t t = 0; t < s.tokens; t++)
            for (uint32_t c = 0; c < 4; c++)
                ck_assert_int_eq(isnan(r.out[t * 4 + c]) != 0, t >= 11);
        result_fini(&r);
    }
    numbers_fini(&n);
}

static void parts_that_are_missing_or_shared_are_refused_by_name(void)
{
    struct rig_device *on = &rig[0];
    struct keel_launch_list list = {0};
    struct keel_attention op = {.batch = 1, .tokens = 8, .heads = 2, .head_width = 4, .of_class = true};
    uint64_t bytes[KEEL_ATTENTION_PARTS];
    op.qkv = rig_buffer(on, NULL, 8 * 3 * 8 * 4);
    op.out = rig_buffer(on, NULL, 8 * 8 * 4);
    op.stats = rig_buffer(on, NULL, 2 * 2 * 8 * 4);
    keel_attention_part_bytes(on->kernels, &op, false, bytes);
    ck_assert_uint_eq(bytes[KEEL_ATTENTION_GAINS], 0);
    ck_status(keel_op_attention(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "attention: no buffer for own"));
    for (int i = 0; i < KEEL_ATTENTION_PARTS; i++)
        if (bytes[i] > 0)
            op.parts[i] = rig_buffer(on, NULL, bytes[i]);
    const struct keel_attention right = op;
    op.parts[KEEL_ATTENTION_PLANES] = op.parts[KEEL_ATTENTION_OWN];
    ck_status(keel_op_attention(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "planes"));
    op = right;
    op.parts[KEEL_ATTENTION_WEIGHTS] = op.qkv;
    ck_status(keel_op_attention(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_uint_eq(list.count, 0);
    ck_ok(keel_op_attention(on->kernels, &right, &list));
    keel_launch_list_fini(&list);
    rig_clear(on);
}

/* One test for each class, since its kernels on four ways take longer to be made than to be tested. */
START_TEST(attention_is_what_the_class_defines)
{
    struct rig_device ways[WAYS];
    open_ways(classes[_i], ways);
    random_masks_have_the_bits_of_the_definition_everywhere(_i, ways);
    sums_go_on_from_block_to_block(_i, ways);
    a_head_has_the_same_bits_alone();
    what_is_not_finite_reaches_those_that_see_it();
    parts_that_are_missing_or_shared_are_refused_by_name();
    close_ways(ways);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, attention_is_what_the_class_defines, 0, CLASSES);
}

KEEL_TEST_MAIN("attention_class", cases, getenv("KEEL_ATTENTION_TRIALS") != NULL ? 86400 : 600)
