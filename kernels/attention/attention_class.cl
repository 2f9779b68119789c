/* attention_class.cl - what lies between the products of attention in the classes exact8x2, exact8x3 and bf16, whose
 * scores and weights lie in memory, some heads and queries at a time. README.md, "Attention in classes", has the
 * definition, attention_class.c the order of products and of these kernels:
 *
 *     gather      rows of heads become matrices; values, with their exponents beside them, are below 127/128
 *     weigh       scores become weights: e_ij = exp(s_ij - max_i), drop(e_ij) 2^(exponent of value j)
 *     weigh_grad  scores become ds_ij, gains (g_i . v_j) become drop(p_ij)
 *     scatter     rows of results go to where they belong, times a factor or over the sum
 *
 * Sums of weights are those of canon_tree.h over the number of a key. A pair that is not seen weighs 0.
 *
 * Shapes: of `pairs` of a sequence and a head, from number first_pair (sequence * heads + head) on, queries `first` to
 * first + queries - 1 and keys 0 to columns - 1: own [pairs, queries, width], other [pairs, columns, width] and behind it
 * the exponents, int [pairs, columns]; weights and gains [pairs, queries, columns]; stats (max, sum) and rows (1 / sum,
 * g . out) [batch, heads, tokens, 2]. A row is that of ROW_NUMBER (canon_row.h). Tunable: launch.row_items. Tolerance
 * against the host: none, equal bits. */

#if KEEL_BY_LANE >= 2
#define WIDE_FMA(a, b, c) canon_wide_fma(a, b, c)
#else
#define WIDE_FMA(a, b, c) fma(a, b, c)
#endif
EXACT8_VALUE(float, uint, int, as_uint, as_uint, as_int, as_float, convert_float, fma, )
EXACT8_VALUE(float16, uint16, int16, as_uint16, as_uint16, as_int16, as_float16, convert_float16, WIDE_FMA, _x16)

#if KEEL_ROW_ITEMS == 1
typedef int16 row_int;
#define row_numbers(first) ((int)(first) + (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define row_elements(e)    ((e) + (ulong16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define row_scale          exact8_scale_x16
#define row_fma            WIDE_FMA
#define row_float          convert_float16
#define row_bits           as_uint16
#define row_of_bits        as_float16
#define row_keeps          drop_kept
static inline int16 row_ints(__global const int *x, uint n)
{
    int lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = l < n ? x[l] : 0;
    return vload16(0, lanes);
}
#else
typedef int row_int;
#define row_numbers(first) ((int)(first) + (int)ROW_LANE)
#define row_elements(e)    ((e) + ROW_LANE)
#define row_scale          exact8_scale
#define row_fma            fma
#define row_float          convert_float
#define row_bits           as_uint
#define row_of_bits        as_float
#define row_keeps          drop_keeps
static inline int row_ints(__global const int *x, uint n)
{
    return ROW_LANE < n ? x[ROW_LANE] : 0;
}
#endif

/* Row `number` of a call: of which pair, and which row of it. */
struct place {
    uint head, batch, row;
    bool there;
};
static struct place place_of(ulong number, uint first_pair, uint pairs, uint rows, uint heads)
{
    struct place at;
    const uint pair = first_pair + (uint)(number / rows);
    at.there = number / rows < pairs;
    at.head = pair % heads;
    at.batch = pair / heads;
    at.row = number % rows;
    return at;
}
/* Where row t of a part of so many lies, of rows of `step` floats that have it behind `skip`. */
static ulong row_at(const struct place *at, uint tokens, uint t, uint width, uint group, ulong step, ulong skip)
{
    return ((ulong)at->batch * tokens + t) * step + skip + (ulong)(at->head / group) * width;
}

/* Rows first to first + count - 1; `group` heads in a row have the same. `scaled`: 0, as they are; 1, without those that are not finite, and whether they are
 * in the place of exponents; 2, times 2^-exponent. */
__kernel void keel_attention_gather(__global const float *from, __global float *to, uint first_pair, uint pairs,
                                    uint first, uint count, uint heads, uint tokens, uint width, uint group,
                                    ulong step, ulong skip, uint scaled)
{
    ROW_FOLDS(folds);
    const ulong number = ROW_NUMBER;
    const struct place at = place_of(number, first_pair, pairs, count, heads);
    const uint n = at.there ? width : 0;
    __global const float *x = from + (at.there ? row_at(&at, tokens, first + at.row, width, group, step, skip) : 0);
    __global float *y = to + number * width;
    row_real most = (row_real)(0.0f);
    for (uint d = 0; d < n; d += 16) {
        const row_word bits = row_bits(row_load(x + d, n - d)) & 0x7fffffffu;
        const row_real size = row_of_bits(min(bits, (row_word)(0x7f800000u)));
        most = size > most ? size : most;
    }
    /* Also where nothing is scaled: a barrier that stands in an if is PoCL 3.1's undoing. */
    int e = exact8_exponent(as_uint(row_fold_max(most, folds)));
    e = scaled == 0 || (scaled == 1 && e != EXACT8_NOT_FINITE) ? 0 : e;
    if (scaled > 0 && at.there && ROW_LEADS)
        ((__global int *)to)[(ulong)pairs * count * width + number] = e;
    for (uint d = 0; d < n; d += 16) {
        row_real v = row_load(x + d, n - d);
        if (scaled == 2)
            v = row_scale(v, (row_int)(-e));
        if (e == EXACT8_NOT_FINITE)
            v = (row_real)(0.0f);
        row_store(v, y + d, n - d);
    }
}

/* Rows of `from`, each pair's `step` rows apart, times factor, or over the sums of stats where there are any. */
__kernel void keel_attention_scatter(__global const float *from, __global float *to, __global const float *stats,
                                     uint first_pair, uint pairs, uint first, uint count, uint heads, uint tokens,
                                     uint width, ulong step, ulong skip, float factor, uint divides)
{
    const ulong number = ROW_NUMBER;
    const struct place at = place_of(number, first_pair, pairs, count, heads);
    const uint n = at.there ? width : 0;
    const ulong to_at = at.there ? row_at(&at, tokens, first + at.row, width, 1, step, skip) : 0;
    const ulong row = at.there ? ((ulong)at.batch * heads + at.head) * tokens + first + at.row : 0;
    for (uint d = 0; d < n; d += 16) {
        const row_real v = row_load(from + number * width + d, n - d);
        row_store(canon_plus_zero(divides ? canon_divide(v, (row_real)(stats[row * 2 + 1])) : v * factor),
                  to + to_at + d, n - d);
    }
}

/* ---- weights ---- */

#define WEIGH_SCALARS                                                                                                 \
    uint first_pair, uint pairs, uint first, uint queries, uint columns, uint heads, uint tokens, uint key_count,     \
        uint ahead, uint behind, uint segmented, uint alibi_heads, uint alibi_first, float scale, float rate,         \
        float keep_scale, uint stream, ulong slice_first, ulong slice_row, ulong slice_stride

static inline row_real score_of(const struct mask *mask, row_int apart, float scale, row_real product)
{
    const row_real s = product * scale;
    return mask->slope > 0.0f ? row_fma((row_real)(-mask->slope), row_float(max(apart, -apart)), s) : s;
}

/* Which of the keys from j on, of which n are there, query number `query` sees. */
static inline row_int seen_of(const struct mask *mask, int query, int segment, uint j, uint n)
{
    const row_int key = row_numbers(j), apart = query - key;
    const row_int near = (apart <= mask->behind) & (-apart <= mask->ahead) & (key < (int)n);
    return mask->segmented ? near & (row_ints(mask->key_segments + j, n - j) == segment) : near;
}

static inline row_real drop_of(const struct drop *drop, ulong element, row_real x)
{
    return drop->rate == 0.0f ? x : row_keeps(drop, row_elements(element)) ? x * drop->keep_scale : (row_real)(0.0f);
}

__kernel void keel_attention_weigh(__global float *weights, __global const int *exponents,
                                   __global const int *query_segments, __global const int *key_segments,
                                   __global const uint *control, __global float *stats, WEIGH_SCALARS,
                                   ulong exponents_at)
{
    ROW_FOLDS(folds);
    const ulong number = ROW_NUMBER;
    const struct place at = place_of(number, first_pair, pairs, queries, heads);
    const uint query = first + at.row, n = at.there ? columns : 0;
    const struct mask mask = MASK_OF(at.head, at.batch);
    const int segment = at.there ? mask_query(&mask, query) : 0;
    const ulong row = ((ulong)at.batch * heads + at.head) * tokens + query;
    __global float *w = weights + number * columns;
    __global const int *of = exponents + exponents_at + number / queries * columns;
    struct drop drop;
    row_real most = (row_real)(-INFINITY), total = (row_real)(0.0f);
    drop_init(&drop, rate, keep_scale, stream, control);
    const ulong element = canon_place((row - query) * key_count, slice_first, slice_row, slice_stride) +
                          (ulong)query * key_count;
    for (uint j = 0; j < n; j += 16) {
        const row_real s = score_of(&mask, (int)query - row_numbers(j), scale, row_load(w + j, n - j));
        most = (seen_of(&mask, query, segment, j, n) & (s > most)) ? s : most;
    }
    const float largest = canon_plus_zero(row_fold_max(most, folds));
    for (uint j = 0; j < n; j += 16) {
        const row_real s = score_of(&mask, (int)query - row_numbers(j), scale, row_load(w + j, n - j));
        const row_int seen = seen_of(&mask, query, segment, j, n), exponent = row_ints(of + j, n - j);
        row_real e = seen ? canon_exp(s - largest) : (row_real)(0.0f);
        total = total + e;
        e = row_scale(drop_of(&drop, element + j, e), exponent == EXACT8_NOT_FINITE ? (row_int)(0) : exponent);
        e = exponent == EXACT8_NOT_FINITE ? (row_real)(NAN) : e;
        row_store(seen ? e : (row_real)(0.0f), w + j, n - j);
    }
    const float sum = row_fold(total, folds);
    if (at.there && ROW_LEADS) {
        stats[row * 2] = sum == 0.0f ? 0.0f : largest;
        stats[row * 2 + 1] = sum == 0.0f ? 1.0f : sum; /* of a query that sees no key */
    }
}

__kernel void keel_attention_weigh_grad(__global float *weights, __global float *gains,
                                        __global const int *query_segments, __global const int *key_segments,
                                        __global const uint *control, __global const float *stats,
                                        __global const float *rows, WEIGH_SCALARS)
{
    const ulong number = ROW_NUMBER;
    const struct place at = place_of(number, first_pair, pairs, queries, heads);
    const uint query = first + at.row, n = at.there ? columns : 0;
    const struct mask mask = MASK_OF(at.head, at.batch);
    const int segment = at.there ? mask_query(&mask, query) : 0;
    const ulong row = ((ulong)at.batch * heads + at.head) * tokens + query;
    __global float *w = weights + number * columns, *g = gains + number * columns;
    struct drop drop;
    drop_init(&drop, rate, keep_scale, stream, control);
    const ulong element = canon_place((row - query) * key_count, slice_first, slice_row, slice_stride) +
                          (ulong)query * key_count;
    for (uint j = 0; j < n; j += 16) {
        const row_real s = score_of(&mask, (int)query - row_numbers(j), scale, row_load(w + j, n - j));
        const row_int seen = seen_of(&mask, query, segment, j, n);
        const row_real p = canon_exp(s - stats[row * 2]) * rows[row * 2];
        const row_real ds = p * (drop_of(&drop, element + j, row_load(g + j, n - j)) - rows[row * 2 + 1]);
        row_store(seen ? ds : (row_real)(0.0f), w + j, n - j);
        row_store(seen ? drop_of(&drop, element + j, p) : (row_real)(0.0f), g + j, n - j);
    }
}
