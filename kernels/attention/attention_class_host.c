/* attention_class_host.c - attention_class.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "exact8_math.h"

#include "alibi.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_attention_class;

EXACT8_VALUE(float, uint32_t, int32_t, canon_as_bits, (uint32_t), (int32_t), canon_as_real, (float), fmaf, )

/* Rows of pairs of a sequence and a head: `count` of each, from `first` on. */
struct share {
    uint32_t first_pair, pairs, first, count;
};
static struct share share_of(void *const *scalars)
{
    return (struct share){u32_at(scalars, 0), u32_at(scalars, 1), u32_at(scalars, 2), u32_at(scalars, 3)};
}

/* Where row `row` of a part of so many lies, of rows of `step` floats that have it behind `skip`. */
struct parts {
    uint64_t heads, tokens, width, group, step, skip;
};
static uint64_t row_at(const struct parts *p, uint64_t pair, uint64_t row)
{
    return (pair / p->heads * p->tokens + row) * p->step + p->skip + pair % p->heads / p->group * p->width;
}

static int32_t exponent_of(const float *x, uint64_t width)
{
    uint32_t most = 0;
    for (uint64_t d = 0; d < width; d++) {
        const uint32_t bits = canon_as_bits(x[d]) & 0x7fffffffU;
        most = bits > most ? bits : most;
    }
    return exact8_exponent(most);
}

static void host_attention_gather(KEEL_HOST_ARGUMENTS)
{
    const struct share share = share_of(arguments + 2);
    const struct parts parts = {u32_at(arguments, 6), u32_at(arguments, 7),  u32_at(arguments, 8),
                                u32_at(arguments, 9), u64_at(arguments, 10), u64_at(arguments, 11)};
    const uint32_t scaled = u32_at(arguments, 12);
    const uint64_t rows = (uint64_t)share.pairs * share.count, width = parts.width;
    for (uint64_t r = 0; r < rows; r++) {
        const float *x = (const float *)arguments[0] +
                         row_at(&parts, share.first_pair + r / share.count, share.first + r % share.count);
        float *y = (float *)arguments[1] + r * width;
        const int32_t e = scaled > 0 ? exponent_of(x, width) : 0;
        for (uint64_t d = 0; d < width; d++)
            y[d] = e == EXACT8_NOT_FINITE ? 0.0F : scaled == 2 ? exact8_scale(x[d], -e) : x[d];
        if (scaled > 0)
            ((int32_t *)arguments[1])[rows * width + r] = scaled == 1 && e != EXACT8_NOT_FINITE ? 0 : e;
    }
}

static void host_attention_scatter(KEEL_HOST_ARGUMENTS)
{
    const struct share share = share_of(arguments + 3);
    const struct parts parts = {.heads = u32_at(arguments, 7),
                                .tokens = u32_at(arguments, 8),
                                .width = u32_at(arguments, 9),
                                .group = 1,
                                .step = u64_at(arguments, 10),
                                .skip = u64_at(arguments, 11)};
    const float *stats = arguments[2], factor = f32_at(arguments, 12);
    const uint32_t divides = u32_at(arguments, 13);
    for (uint64_t r = 0; r < (uint64_t)share.pairs * share.count; r++) {
        const uint64_t pair = share.first_pair + r / share.count, row = share.first + r % share.count;
        const float *x = (const float *)arguments[0] + r * parts.width;
        float *y = (float *)arguments[1] + row_at(&parts, pair, row);
        for (uint64_t d = 0; d < parts.width; d++)
            y[d] =
                (divides ? canon_divide(x[d], stats[(pair * parts.tokens + row) * 2 + 1]) : x[d] * factor) +
                0.0F;
    }
}

/* ---- weights ---- */

/* One row of weights: a query and all its keys. */
struct row {
    uint32_t query, keys, all_keys, ahead, behind, stream;
    const int32_t *key_segments; /* NULL: none */
    int32_t segment;
    float slope, scale, rate, keep_scale;
    const struct keel_control *control;
    uint64_t number;  /* of all of [batch, heads, tokens] */
    uint64_t element; /* of its first probability */
};
/* `operands`: segments of queries, of keys, control. `scalars` are WEIGH_SCALARS; r counts rows of the call.
 */
static struct row row_of(void *const *operands, void *const *scalars, uint64_t r)
{
    const struct share share = share_of(scalars);
    const uint64_t heads = u32_at(scalars, 5), tokens = u32_at(scalars, 6),
                   pair = share.first_pair + r / share.count;
    struct row row = {.query = (uint32_t)(share.first + r % share.count),
                      .keys = u32_at(scalars, 4),
                      .all_keys = u32_at(scalars, 7),
                      .ahead = u32_at(scalars, 8),
                      .behind = u32_at(scalars, 9),
                      .scale = f32_at(scalars, 13),
                      .rate = f32_at(scalars, 14),
                      .keep_scale = f32_at(scalars, 15),
                      .stream = u32_at(scalars, 16),
                      .control = operands[2]};
    const uint32_t alibi_heads = u32_at(scalars, 11);
    if (alibi_heads > 0)
        row.slope = alibi_slope(u32_at(scalars, 12) + (uint32_t)(pair % heads), alibi_heads);
    if (u32_at(scalars, 10)) {
        row.segment = ((const int32_t *)operands[0])[pair / heads * tokens + row.query];
        row.key_segments = (const int32_t *)operands[1] + pair / heads * row.all_keys;
    }
    row.number = pair * tokens + row.query;
    row.element = canon_place(pair * tokens * row.all_keys, u64_at(scalars, 17), u64_at(scalars, 18),
                              u64_at(scalars, 19)) +
                  (uint64_t)row.query * row.all_keys;
    return row;
}

static bool sees(const struct row *row, uint32_t j)
{
    const uint32_t i = row->query;
    return (j > i ? j - i <= row->ahead : i - j <= row->behind) &&
           (row->key_segments == NULL || row->segment == row->key_segments[j]);
}
static float score_of(const struct row *row, uint32_t j, float product)
{
    const float s = product * row->scale, apart = (float)(row->query > j ? row->query - j : j - row->query);
    return row->slope > 0.0F ? canon_fma(-row->slope, apart, s) : s;
}
static float drop(const struct row *row, uint32_t j, float x)
{
    if (row->rate == 0.0F)
        return x;
    return keel_random_uniform(row->control, row->stream, row->element + j) >= row->rate ? x * row->keep_scale
                                                                                         : 0.0F;
}

static void host_attention_weigh(KEEL_HOST_ARGUMENTS)
{
    void *const *scalars = arguments + 6;
    const struct share share = share_of(scalars);
    float *stats = arguments[5];
    for (uint64_t r = 0; r < (uint64_t)share.pairs * share.count; r++) {
        const struct row row = row_of(arguments + 2, scalars, r);
        float *w = (float *)arguments[0] + r * row.keys, largest = -INFINITY, lanes[KEEL_LANES] = {0};
        const int32_t *exponents =
            (const int32_t *)arguments[1] + u64_at(arguments, 26) + r / share.count * row.keys;
        for (uint32_t j = 0; j < row.keys; j++) {
            const float s = score_of(&row, j, w[j]);
            largest = sees(&row, j) && s > largest ? s : largest;
        }
        largest = largest + 0.0F;
        for (uint32_t j = 0; j < row.keys; j++) {
            const float e = sees(&row, j) ? canon_exp(score_of(&row, j, w[j]) - largest) : 0.0F;
            const bool finite = exponents[j] != EXACT8_NOT_FINITE;
            lanes[j % KEEL_LANES] = lanes[j % KEEL_LANES] + e;
            w[j] = !sees(&row, j) ? 0.0F : finite ? exact8_scale(drop(&row, j, e), exponents[j]) : NAN;
        }
        const float sum = canon_fold(lanes);
        stats[row.number * 2] = sum == 0.0F ? 0.0F : largest;
        stats[row.number * 2 + 1] = sum == 0.0F ? 1.0F : sum;
    }
}

static void host_attention_weigh_grad(KEEL_HOST_ARGUMENTS)
{
    void *const *scalars = arguments + 7;
    const struct share share = share_of(scalars);
    for (uint64_t r = 0; r < (uint64_t)share.pairs * share.count; r++) {
        const struct row row = row_of(arguments + 2, scalars, r);
        const float *stats = (const float *)arguments[5] + row.number * 2,
                    *facts = (const float *)arguments[6] + row.number * 2;
        float *w = (float *)arguments[0] + r * row.keys, *g = (float *)arguments[1] + r * row.keys;
        for (uint32_t j = 0; j < row.keys; j++) {
            const float p = canon_exp(score_of(&row, j, w[j]) - stats[0]) * facts[0];
            const float ds = p * (drop(&row, j, g[j]) - facts[1]);
            w[j] = sees(&row, j) ? ds : 0.0F;
            g[j] = sees(&row, j) ? drop(&row, j, p) : 0.0F;
        }
    }
}

static const struct keel_module_kernel attention_class_kernels[] = {
    {"keel_attention_gather", host_attention_gather},
    {"keel_attention_scatter", host_attention_scatter},
    {"keel_attention_weigh", host_attention_weigh},
    {"keel_attention_weigh_grad", host_attention_weigh_grad}};

const struct keel_module keel_module_attention_class =
    KEEL_MODULE("attention_class", keel_cl_attention_class, attention_class_kernels);
