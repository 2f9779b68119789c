/* attention.cl - attention of one head at a time, and its gradient.
 *
 * q, k, v, o, g (= dout) are rows of head_width floats of query i or key j. Query i sees key j where j - i <=
 * ahead, i - j <= behind, and, with segments, both are of one (attention_mask.h). Of those:
 *
 *     s_ij   = (fma over d ascending of q_i[d] k_j[d], from 0) * scale, with ALiBi fma(-slope, |i - j|, that)
 *     max_i  = largest s_ij, + 0                  sum_i = sum of e_ij, j ascending from 0
 *     (max_i = 0 and sum_i = 1 where it sees no key)
 *     e_ij   = exp(s_ij - max_i)
 *     o_i[d] = (fma over j ascending of drop(e_ij) v_j[d], from 0) / sum_i + 0
 *
 *     inv_i   = 1 / sum_i                         p_ij = exp(s_ij - max_i) * inv_i
 *     delta_i = fma over d ascending of g_i[d] o_i[d], from 0
 *     dp_ij   = drop(fma over d ascending of g_i[d] v_j[d], from 0)
 *     ds_ij   = p_ij * (dp_ij - delta_i)
 *     dq_i[d] = (fma over j ascending of ds_ij k_j[d], from 0) * scale + 0
 *     dk_j[d] = (fma over i ascending of ds_ij q_i[d], from 0) * scale + 0
 *     dv_j[d] = (fma over i ascending of drop(p_ij) g_i[d], from 0) + 0
 *
 * drop(x) is x * keep_scale where uniform(element) >= rate, else 0; x itself where there is no dropout.
 * element is the number of ((b * heads + h) * tokens + i) * keys + j in the whole tensor of probabilities
 * (canon_place): a head's lie together. The "+ 0" makes -0 to 0.
 *
 * A masked pair weighs 0 (e, p, ds). Sums over keys go for all queries of an eight, i / 8 = e, over the keys from
 * 8 e - behind to 8 e + 7 + ahead, sums over queries for all keys of an eight from 8 e - ahead to 8 e + 7 + behind,
 * on every device and at every tunable: fma(0, x, acc) changes no finite result, and makes NaN where x is not
 * finite.
 *
 * Heads may share keys and values, heads / kv_heads of them in a row: then dk and dv of each head of queries go
 * to the workspace, and keel_rotary_share (rotary.cl) adds them up.
 *
 * Shapes: qkv and dqkv [batch, tokens, heads of q, k, v, head_width], or q and dq [batch, tokens, heads, head_width]
 * and kv and dkv [batch, keys, 2, kv_heads, head_width]; out and dout as q, stats (max, sum) and rows (inv, delta)
 * [batch, heads, tokens, 2]. The rows of a head lie far from each other there, so that caches hold few of them
 * and prefetchers find none: where there are many, keel_attention_pack copies them to
 * the workspace, one head after the other, and they are read from there.
 *
 * Work-items are alone in their groups and take LANES queries (forward) or keys (gradient) of a head at a
 * time: scores have one to a lane, sums one to a row. `lanes` arrays are [head_width][LANES]. BLOCK keys (or
 * queries) are taken at a time: every chain goes on unchanged from block to block. Forward, the scores of the
 * first KEPT keys wait in the memory of the group until the largest is known, those of others are computed again.
 * Nothing else grows with the length. Tunables (tunables.c): BLOCK, KEPT, KEEL_BY_LANE. Tolerance against the
 * host: none, equal bits. */

#if KEEL_ATTENTION_ITEMS == 1
#ifndef KEEL_ATTENTION_BLOCK
#define KEEL_ATTENTION_BLOCK 64
#define KEEL_ATTENTION_KEPT  64
#endif
#ifdef KEEL_LARGE_LOCAL
#define WIDE(x) x /* what concerns the second vector of a block */
enum { VECTORS = 2, WIDTH_MAX = 256, COPY_FLOATS = 4096 };
#else
#define WIDE(x)
enum { VECTORS = 1, WIDTH_MAX = 128, COPY_FLOATS = 1024 };
#endif
/* Where the arrays of a group lie. A group is one work-item, so that private memory, which a driver may put into
 * global memory, serves where local memory is too small for heads of WIDTH_MAX. */
#ifdef KEEL_ATTENTION_PRIVATE
#define SPACE __private
#else
#define SPACE __local
#endif
enum { LANES = 16 * VECTORS, BLOCK = KEEL_ATTENTION_BLOCK };
#define HALVES (VECTORS == 2 && KEEL_BY_LANE < 2) /* one vector alone where the mask leaves only that */
enum { KEPT = KEEL_ATTENTION_KEPT < BLOCK ? BLOCK : KEEL_ATTENTION_KEPT };
enum { WANT_QUERIES = 1, WANT_KEYS = 2 }; /* what keel_attention_grad is to compute */

#define GROUP_FLOATS SPACE float __attribute__((aligned(64)))
#define LANE_NUMBERS ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define EACH_8(X)    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/* Which of sixteen pairs are seen: `apart` is query - key of each, `own` the segments of those in lanes, `other`
 * that of the other side. */
static int16 mask_sees(const struct mask *mask, int16 apart, int16 own, int other)
{
    const int16 near = (apart <= mask->behind) & (-apart <= mask->ahead);
    return mask->segmented ? near & (own == other) : near;
}

/* Scores of sixteen pairs from their products. */
static float16 mask_score(const struct mask *mask, int16 apart, float scale, float16 product)
{
    const float16 s = product * scale;
    return mask->slope > 0.0f ? fma((float16)(-mask->slope), convert_float16(max(apart, -apart)), s) : s;
}

/* Segments of sixteen rows, the last again behind it. */
static int16 mask_segments(const struct mask *mask, __global const int *segments, uint first, uint last)
{
    int lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = mask->segmented ? segments[min(first + l, last)] : 0;
    return vload16(0, lanes);
}

static float16 drop_apply(const struct drop *drop, int16 kept, float16 x)
{
    return drop->rate == 0.0f ? x : kept ? x * drop->keep_scale : (float16)(0.0f);
}

/* ---- rows to lanes ---- */

#if KEEL_BY_LANE == 0
#define PIECE(l, c) vload4(c, rows + min(first + (l), last) * step)
#define PUT(m, v)   vstore16(v, 0, lanes + (m)*LANES);
CANON_INLINE void turn_rows(__global const float *rows, ulong step, uint first, uint last, SPACE float *lanes)
{
    TURN_TILE(float16)
}
#endif

/* lanes[d][l] = row first + l, the last row of all again where there are fewer than LANES. */
static void load_lanes(__global const float *rows, ulong step, uint first, uint last, uint width,
                       GROUP_FLOATS *lanes)
{
    uint whole = 0; /* how much of a row goes by blocks of 16 */
#if KEEL_BY_LANE == 0
    whole = width & ~15u;
    for (uint l = 0; l < LANES; l += 16)
        for (uint d = 0; d < whole; d += 16)
            turn_rows(rows + d, step, first + l, last, lanes + d * LANES + l);
#endif
    for (uint l = 0; l < LANES && whole < width; l++) {
        __global const float *row = rows + min(first + l, last) * step;
        for (uint d = whole; d < width; d++)
            lanes[d * LANES + l] = row[d];
    }
}

/* Two facts of each row, from lanes. */
CANON_INLINE void store_facts(SPACE const float *lanes, __global float *rows, uint first, uint last)
{
    for (uint l = 0; l < LANES && first + l <= last; l++) {
        rows[(first + l) * 2] = lanes[l];
        rows[(first + l) * 2 + 1] = lanes[LANES + l];
    }
}

/* ---- products ---- */

#define DOT_BEGIN(r)                                                                                         \
    __global const float *x##r = rows + min(i + r, count - 1) * step;                                        \
    float16 s##r = (float16)(0.0f);                                                                          \
    WIDE(float16 t##r = (float16)(0.0f);)
#define DOT_FMA(r)                                                                                           \
    {                                                                                                        \
        const float16 x = (float16)(x##r[d]);                                                                \
        s##r = fma(x, y, s##r);                                                                              \
        WIDE(if (all) t##r = fma(x, z, t##r);)                                                               \
    }
#define DOT_END(r)                                                                                           \
    vstore16(s##r, (i + r) * VECTORS, out);                                                                  \
    WIDE(if (all) vstore16(t##r, (i + r) * VECTORS + 1, out);)
/* out[i][l] = chain over d of rows[i][d] lanes[d][l], of all l or of the first 16; writes up to 7 rows past
 * count, within BLOCK. */
CANON_INLINE void dot(__global const float *rows, ulong step, uint count, uint width, SPACE const float *lanes,
                      SPACE float *out, const bool all)
{
#if KEEL_BY_LANE >= 2
    for (uint i = 0; i < count; i++)
        for (uint v = 0; v < (all ? VECTORS : 1); v++) {
            float16 s = (float16)(0.0f);
            for (uint d = 0; d < width; d++)
                s = canon_wide_fma((float16)(rows[i * step + d]), vload16(d * VECTORS + v, lanes), s);
            vstore16(s, i * VECTORS + v, out);
        }
#else
    for (uint i = 0; i < count; i += 8) {
        EACH_8(DOT_BEGIN)
        for (uint d = 0; d < width; d++) {
            const float16 y = vload16(d * VECTORS, lanes);
            WIDE(const float16 z = vload16(d * VECTORS + 1, lanes);)
            EACH_8(DOT_FMA)
        }
        EACH_8(DOT_END)
    }
#endif
}
CANON_INLINE void dot_rows(__global const float *rows, ulong step, uint count, uint width,
                     SPACE const float *lanes, SPACE float *out)
{
    dot(rows, step, count, width, lanes, out, true);
}
CANON_INLINE void dot_half(__global const float *rows, ulong step, uint count, uint width,
                     SPACE const float *lanes, SPACE float *out)
{
    dot(rows, step, count, width, lanes, out, false);
}

#define ADD_BEGIN(r)                                                                                         \
    float16 s##r = vload16(0, sums + r * pitch);                                                             \
    WIDE(float16 t##r = vload16(1, sums + r * pitch);)
#define ADD_FMA(r)                                                                                           \
    {                                                                                                        \
        const float16 a = (float16)(weights[r * across]);                                                    \
        s##r = fma(a, y, s##r);                                                                              \
        WIDE(t##r = fma(a, z, t##r);)                                                                        \
    }
#define ADD_END(r)                                                                                           \
    vstore16(s##r, 0, sums + r * pitch);                                                                     \
    WIDE(vstore16(t##r, 1, sums + r * pitch);)
/* sums[r][l] goes on with the chain over j < count of weights[r * across + j * along] rows[j][l], for 8 r and
 * LANES l. */
#if KEEL_BY_LANE >= 2
#define ADD_CHAINS                                                                                           \
    for (uint at = 0; at < 8 * VECTORS; at++) {                                                              \
        SPACE float *to = sums + at / VECTORS * pitch;                                                     \
        float16 s = vload16(at % VECTORS, to);                                                               \
        for (uint j = 0; j < count; j++)                                                                     \
            s = canon_wide_fma((float16)(weights[at / VECTORS * across + j * along]),                        \
                               vload16(at % VECTORS, rows + j * step), s);                                   \
        vstore16(s, at % VECTORS, to);                                                                       \
    }
#else
#define ADD_CHAINS                                                                                           \
    EACH_8(ADD_BEGIN)                                                                                        \
    for (uint j = 0; j < count; j++, rows += step, weights += along) {                                       \
        const float16 y = vload16(0, rows);                                                                  \
        WIDE(const float16 z = vload16(1, rows);)                                                            \
        EACH_8(ADD_FMA)                                                                                      \
    }                                                                                                        \
    EACH_8(ADD_END)
#endif
#define ADD_TILE(name, space)                                                                                \
    CANON_INLINE void name(SPACE const float *weights, const uint across, const uint along,                \
                           space const float *rows, uint step, uint count, SPACE float *sums, uint pitch)  \
    {                                                                                                        \
        ADD_CHAINS                                                                                           \
    }
ADD_TILE(add_near, SPACE)
ADD_TILE(add_global, __global)

/* What of n floats belongs to vector v of them, for canon_load and canon_store. */
static uint rest_of(uint n, uint v)
{
    return n > 16 * v ? n - 16 * v : 0;
}

/* Floats from a row to the next of a copy or of sums: whole vectors, for all lanes. */
static uint pitch_of(uint width)
{
    return (width + LANES - 1) / LANES * LANES;
}

/* `count` rows, with zeros behind each. */
CANON_INLINE void copy_rows(__global const float *rows, ulong step, uint count, uint width, SPACE float *copy)
{
    for (uint j = 0; j < count; j++)
        for (uint d = 0; d < width; d += LANES, copy += LANES)
            for (uint v = 0; v < VECTORS; v++)
                vstore16(canon_load(rows + j * step + d + v * 16, rest_of(width - d, v)), v, copy);
}

/* sums[l][d] goes on with the chain over j of weights[j][l] rows[j][d], of the j < count from `from` + l to
 * `to` + l; what is beyond these by less than 8 must weigh 0. Rows are read where they are if they lie close
 * and come out even, else from `copy`, COPY_FLOATS of scratch. */
CANON_INLINE void sum_rows(__global const float *rows, ulong step, uint count, uint width, int from, int to,
                     SPACE const float *weights, SPACE float *copy, SPACE float *sums)
{
    const uint pitch = pitch_of(width);
    const bool direct = width == pitch && step <= 3 * width;
    const int most = direct ? BLOCK : COPY_FLOATS / pitch;
    for (int j0 = 0; j0 < (int)count; j0 += most) {
        const int here = min(most, (int)count - j0);
        if (!direct)
            copy_rows(rows + j0 * step, step, here, width, copy);
        for (int l = 0; l < LANES; l += 8) {
            const int begin = max(from + l - j0, 0), end = min(to + l + 8 - j0, here);
            for (uint d = 0; d < pitch && begin < end; d += LANES)
                if (direct)
                    add_global(weights + (j0 + begin) * LANES + l, 1, LANES, rows + (j0 + begin) * step + d,
                               step, end - begin, sums + l * pitch + d, pitch);
                else
                    add_near(weights + (j0 + begin) * LANES + l, 1, LANES, copy + begin * pitch + d, pitch,
                              end - begin, sums + l * pitch + d, pitch);
        }
    }
}

/* rows[i][d] = chain over the j from i + `from` to i + `to` of weights[i][j] keys[j][d], going on from what rows
 * holds, or from 0; for eight i at a time over the j of any of them. */
CANON_INLINE void add_rows(SPACE const float *weights, uint count, SPACE const float *keys, uint key_count,
                     int from, int to, uint width, bool begin, __global float *rows, ulong step,
                     SPACE float *tile)
{
    const uint pitch = pitch_of(width);
    for (uint i = 0; i < count; i += 8) {
        const uint high = min(8u, count - i);
        const int near = max((int)i + from, 0);
        const int links = min((int)key_count, (int)i + to + 8) - near;
        for (uint d = 0; d < width; d += LANES) {
            __global float *corner = rows + i * step + d;
            for (uint at = 0; at < 8 * VECTORS; at++) {
                const uint v = at % VECTORS;
                vstore16(begin || at >= high * VECTORS
                             ? (float16)(0.0f)
                             : canon_load(corner + at / VECTORS * step + v * 16, rest_of(width - d, v)),
                         at, tile);
            }
            add_near(weights + i * LANES + near, LANES, 1, keys + near * pitch + d, pitch, max(links, 0), tile,
                     LANES);
            for (uint at = 0; at < high * VECTORS; at++) {
                const uint v = at % VECTORS;
                canon_store(vload16(at, tile), corner + at / VECTORS * step + v * 16, rest_of(width - d, v));
            }
        }
    }
}

CANON_INLINE void zero_rows(SPACE float *sums, uint width)
{
    for (uint i = 0; i < pitch_of(width) * VECTORS; i++)
        vstore16((float16)(0.0f), i, sums);
}

/* y = sums * factor + 0, row by row. */
CANON_INLINE void store_rows(SPACE const float *sums, uint count, uint width, float factor, __global float *y,
                       ulong step)
{
    for (uint i = 0; i < count; i++, sums += pitch_of(width), y += step)
        for (uint d = 0; d < width; d += 16)
            canon_store(canon_plus_zero(vload16(0, sums + d) * factor), y + d, width - d);
}

/* y = x * factor + 0, row by row. */
static void scale_rows(__global const float *x, ulong x_step, uint count, uint width, float factor,
                       __global float *y, ulong y_step)
{
    for (uint i = 0; i < count; i++, x += x_step, y += y_step)
        for (uint d = 0; d < width; d += 16)
            canon_store(canon_plus_zero(canon_load(x + d, width - d) * factor), y + d, width - d);
}

/* ---- forward ---- */

/* Scores of a block of keys, before they are scaled; of a key that only the second vector of queries sees,
 * from `near` on, only those. */
CANON_INLINE void score_keys(__global const float *keys, ulong step, uint count, uint near, uint width,
                       SPACE const float *q, SPACE float *scores)
{
    if (near > 0)
        dot_rows(keys, step, near, width, q, scores);
    if (HALVES && near < count)
        dot_half(keys + near * step, step, count - near, width, q + 16, scores + near * LANES + 16);
}

/* Sixteen queries. */
struct queries {
    int16 number, segment;
    float16 largest, sum; /* of scores, of exponentials */
};

/* A block of products becomes scores, and `largest` the largest of each query's. */
CANON_INLINE void scale_scores(SPACE float *scores, uint count, float scale, const struct mask *mask, bool masked,
                         uint first_key, uint v, struct queries *of)
{
    float16 most = of->largest;
    for (uint j = 0; j < count; j++) {
        const int16 apart = of->number - (int)(first_key + j);
        const float16 s = mask_score(mask, apart, scale, vload16(j * VECTORS + v, scores));
        vstore16(s, j * VECTORS + v, scores);
        const int16 above = s > most;
        most = (masked ? above & mask_sees(mask, apart, of->segment, mask_key(mask, first_key + j)) : above)
                   ? s
                   : most;
    }
    of->largest = most;
}

/* A block of scores becomes exponentials, those that dropout keeps; `sum` adds all of them. */
CANON_INLINE void weigh_scores(SPACE float *scores, uint count, const struct drop *drop, const struct mask *mask,
                         bool masked, uint first_key, ulong16 element, uint v, struct queries *of)
{
    float16 total = of->sum;
    for (uint j = 0; j < count; j++) {
        float16 e = canon_exp(vload16(j * VECTORS + v, scores) - of->largest);
        if (masked)
            e = mask_sees(mask, of->number - (int)(first_key + j), of->segment, mask_key(mask, first_key + j))
                    ? e
                    : (float16)(0.0f);
        total = total + e;
        if (drop->rate > 0.0f)
            e = drop_apply(drop, drop_kept(drop, element + (ulong)j), e);
        vstore16(e, j * VECTORS + v, scores);
    }
    of->sum = total;
}

/* How many of `count` keys from key j0 on the first vector of queries sees, in whole eights. */
static uint near_of(const struct mask *mask, uint first, uint j0, uint count)
{
    return HALVES ? min((uint)max((int)(first + 16) + mask->ahead - (int)j0 + 7, 0) / 8 * 8, count) : count;
}

/* Whether floats, sign apart, are 0 or in [2^-60, 2^60]: `most` is the largest of their bits, `least` the least
 * of their bits minus 1. */
static bool ordinary(uint16 most, uint16 least)
{
    const uint8 a = max(most.lo, most.hi), b = min(least.lo, least.hi);
    const uint4 c = max(a.lo, a.hi), d = min(b.lo, b.hi);
    const uint2 e = max(c.lo, c.hi), f = min(d.lo, d.hi);
    return max(e.x, e.y) <= 0x5d800000u && min(f.x, f.y) >= 0x217fffffu;
}

/* y = sums / facts[LANES + i] + 0, row by row. The operations of canon_divide without those on exponents,
 * which what is ordinary does not need: the same bits. Returns false, after nonsense, if something is not.
 * `inverse` is scratch for LANES floats. */
CANON_INLINE bool divide_ordinary(SPACE const float *sums, SPACE const float *facts, uint count, uint width,
                            SPACE float *inverse, __global float *y, ulong step)
{
    uint16 most = (uint16)(0u), least = (uint16)(~0u);
    for (uint v = 0; v < VECTORS; v++) {
        const float16 b = vload16(VECTORS + v, facts), r = canon_reciprocal(b);
        vstore16(fma(fma(-b, r, (float16)(1.0f)), r, r), v, inverse);
        most = max(most, as_uint16(b));
        least = min(least, as_uint16(b) - 1u);
    }
    for (uint i = 0; i < count; i++, sums += pitch_of(width), y += step)
        for (uint d = 0; d < width; d += 16) {
            const float16 a = vload16(0, sums + d), b = (float16)(facts[LANES + i]),
                          r = (float16)(inverse[i]);
            const uint16 bits = as_uint16(a) & 0x7fffffffu;
            const float16 q = a * r;
            canon_store(canon_plus_zero(fma(fma(-b, q, a), r, q)), y + d, width - d);
            most = max(most, bits);
            least = min(least, bits - 1u);
        }
    return ordinary(most, least);
}

CANON_INLINE void divide_rows(SPACE const float *sums, SPACE const float *facts, uint count, uint width,
                        SPACE float *scratch, __global float *y, ulong step)
{
    if (KEEL_BY_LANE == 0 && divide_ordinary(sums, facts, count, width, scratch, y, step))
        return;
    for (uint i = 0; i < count; i++, sums += pitch_of(width), y += step)
        for (uint d = 0; d < width; d += 16)
            canon_store(
                canon_plus_zero(canon_divide(vload16(0, sums + d), (float16)(facts[LANES + i]))),
                y + d, width - d);
}

__kernel void keel_attention(ATTENTION_OPERANDS, __global const float *work, __global float *out,
                             __global float *stats, ATTENTION_SCALARS)
{
    GROUP_FLOATS q[WIDTH_MAX * LANES];
    GROUP_FLOATS sums[WIDTH_MAX * LANES];
    GROUP_FLOATS copy[COPY_FLOATS];
    GROUP_FLOATS scores[(KEPT + BLOCK) * LANES];
    const uint head = get_group_id(1), batch = get_group_id(2);
    const uint first = (get_num_groups(0) - 1 - get_group_id(0)) * LANES; /* the longest rows first */
    const struct mask mask = MASK_OF(head, batch);
    const struct places at = places_of(&mask, head, batch, heads, kv_heads, width, crossed);
    const ulong out_step = (ulong)heads * width;
    __global const float *ks = kv + at.k, *vs = ks + at.v;
    if (packed) {
        ks = work + ((ulong)batch * kv_heads + head / (heads / kv_heads)) * mask.keys * width;
        vs = ks + part_floats(mask.keys, kv_heads, width);
    }
    const ulong key_step = packed ? width : at.k_step;
    const uint last = min(first + LANES - 1, tokens - 1);
    const uint begin = max((int)first - mask.behind, 0), end = min(last + 1 + mask.ahead, mask.keys);
    const ulong row0 = ((ulong)batch * heads + head) * tokens;
    struct drop drop;
    drop_init(&drop, rate, keep_scale, stream, control);
    const ulong element0 = canon_place(row0 * mask.keys, slice_first, slice_row, slice_stride);
    struct queries of[VECTORS];
    for (uint v = 0; v < VECTORS; v++) {
        of[v].number = LANE_NUMBERS + (int)(first + 16 * v);
        of[v].segment = mask_segments(&mask, mask.query_segments, first + 16 * v, tokens - 1);
        of[v].largest = (float16)(-INFINITY);
        of[v].sum = (float16)(0.0f);
    }

    load_lanes(q_in + at.q, at.q_step, first, last, width, q);
    zero_rows(sums, width);
    for (uint j0 = begin; j0 < end; j0 += BLOCK) {
        const uint count = min((uint)BLOCK, end - j0), near = near_of(&mask, first, j0, count);
        const bool masked = mask_cuts(&mask, first, LANES, j0, count);
        GROUP_FLOATS *block = scores + min(j0 - begin, (uint)KEPT) * LANES;
        score_keys(ks + j0 * key_step, key_step, count, near, width, q, block);
        for (uint v = 0; v < VECTORS; v++)
            scale_scores(block, v == 0 ? near : count, scale, &mask, masked, j0, v, &of[v]);
    }
    for (uint v = 0; v < VECTORS; v++)
        of[v].largest = canon_plus_zero(of[v].largest);
    for (uint j0 = begin; j0 < end; j0 += BLOCK) {
        const uint count = min((uint)BLOCK, end - j0), near = near_of(&mask, first, j0, count);
        const bool masked = mask_cuts(&mask, first, LANES, j0, count);
        GROUP_FLOATS *block = scores + min(j0 - begin, (uint)KEPT) * LANES;
        if (j0 - begin >= KEPT && end - begin > KEPT + BLOCK) {
            score_keys(ks + j0 * key_step, key_step, count, near, width, q, block);
            for (uint v = 0; v < VECTORS; v++) {
                struct queries known = of[v];
                scale_scores(block, v == 0 ? near : count, scale, &mask, false, j0, v, &known);
            }
        }
        for (uint v = 0; v < VECTORS; v++)
            weigh_scores(block, v == 0 ? near : count, &drop, &mask, masked, j0,
                         element0 + convert_ulong16(of[v].number) * mask.keys + (ulong)j0, v, &of[v]);
        sum_rows(vs + j0 * key_step, key_step, count, width, (int)first - (int)j0 - mask.behind,
                 (int)first - (int)j0 + mask.ahead, block, copy, sums);
    }
    for (uint v = 0; v < VECTORS; v++) {
        const int16 none = of[v].sum == 0.0f;
        vstore16(none ? (float16)(0.0f) : of[v].largest, v, scores);
        vstore16(none ? (float16)(1.0f) : of[v].sum, VECTORS + v, scores);
    }
    divide_rows(sums, scores, last + 1 - first, width, copy,
                out + (batch * tokens + first) * out_step + head * width, out_step);
    store_facts(scores, stats + row0 * 2, first, last);
}

/* ---- gradient ---- */

/* inv and delta of each row, for keel_attention_grad. */
__kernel void keel_attention_rows(__global const float *out, __global const float *stats,
                                  __global const float *dout, __global float *work, ulong rows_at, uint tokens,
                                  uint heads, uint width)
{
    GROUP_FLOATS g[WIDTH_MAX * LANES];
    GROUP_FLOATS o[WIDTH_MAX * LANES];
    GROUP_FLOATS facts[2 * LANES];
    const uint first = get_group_id(0) * LANES, head = get_group_id(1), batch = get_group_id(2);
    const uint last = min(first + LANES - 1, tokens - 1);
    const ulong step = (ulong)heads * width, at = batch * tokens * step + head * width;
    const ulong row0 = ((ulong)batch * heads + head) * tokens;
    load_lanes(dout + at, step, first, last, width, g);
    load_lanes(out + at, step, first, last, width, o);
    load_lanes(stats + row0 * 2, 2, first, last, 2, facts);
    for (uint v = 0; v < VECTORS; v++) {
        float16 delta = (float16)(0.0f);
        for (uint d = 0; d < width; d++)
            delta = fma(vload16(d * VECTORS + v, g), vload16(d * VECTORS + v, o), delta);
        vstore16(canon_divide((float16)(1.0f), vload16(VECTORS + v, facts)), v, facts);
        vstore16(delta, VECTORS + v, facts);
    }
    store_facts(facts, work + rows_at + row0 * 2, first, last);
}

/* Sixteen keys. */
struct keys {
    int16 number, segment;
};

/* Of queries `begin` to `count` of a block from first_query on, and LANES keys: products become ds, gains
 * (g . v) become drop(p). `stats` and `rows` are those of the first query. */
CANON_INLINE void weigh_block(SPACE float *scores, SPACE float *gains, uint begin, uint count,
                        const struct drop *drop, float scale, __global const float *stats,
                        __global const float *rows, ulong element, const struct mask *mask, bool masked,
                        uint first_query, const struct keys *keys, uint v)
{
    const float16 zero = (float16)(0.0f);
    for (uint r = begin; r < count; r++) {
        const uint at = r * VECTORS + v;
        const int16 apart = (int)(first_query + r) - keys->number;
        float16 p = canon_exp(mask_score(mask, apart, scale, vload16(at, scores)) - stats[r * 2]) * rows[r * 2];
        float16 dp = vload16(at, gains), kept = p;
        if (drop->rate > 0.0f) {
            const int16 keeps =
                drop_kept(drop, element + (ulong)r * mask->keys + convert_ulong16(keys->number));
            dp = drop_apply(drop, keeps, dp);
            kept = drop_apply(drop, keeps, p);
        }
        float16 ds = p * (dp - rows[r * 2 + 1]);
        if (masked) {
            const int16 active = mask_sees(mask, apart, keys->segment, mask_query(mask, first_query + r));
            ds = active ? ds : zero;
            kept = active ? kept : zero;
        }
        vstore16(ds, at, scores);
        vstore16(kept, at, gains);
    }
}

/* How many of `count` queries from query i0 on only the first vector of keys concerns, in whole eights. */
static uint first_of(const struct mask *mask, uint key, uint i0, uint count)
{
    return HALVES ? min((uint)max((int)(key + 16) - mask->ahead - (int)i0, 0) / 8 * 8, count) : 0;
}

/* Products of queries, or their dout, with the keys, or values, in lanes; of the first `few` with the first
 * vector of lanes alone. */
CANON_INLINE void score_queries(__global const float *queries, ulong step, uint count, uint few, uint width,
                          SPACE const float *lanes, SPACE float *scores)
{
    if (HALVES && few > 0)
        dot_half(queries, step, few, width, lanes, scores);
    if (few < count)
        dot_rows(queries + few * step, step, count - few, width, lanes, scores + few * LANES);
}

/* dq, dk and dv. Groups (x, head, batch): those of one x alone do a whole head; else x is a block of LANES
 * queries or keys, and `want` says whose gradient: dq, or dk and dv. All ways have the same chains. The first
 * block of keys meets all queries, so that each row of dq begins with it. */
__kernel void keel_attention_grad(ATTENTION_OPERANDS, __global const float *stats, __global const float *dout,
                                  __global float *work, __global float *dq_out, __global float *dkv,
                                  ATTENTION_SCALARS, ulong rows_at, ulong shares_at, uint want)
{
    GROUP_FLOATS k[WIDTH_MAX * LANES];
    GROUP_FLOATS v[WIDTH_MAX * LANES];
    GROUP_FLOATS keys[WIDTH_MAX * LANES];
    GROUP_FLOATS copy[COPY_FLOATS];
    GROUP_FLOATS dk[WIDTH_MAX * LANES];
    GROUP_FLOATS dv[WIDTH_MAX * LANES];
    GROUP_FLOATS tile[8 * LANES];
    GROUP_FLOATS scores[BLOCK * LANES];
    GROUP_FLOATS gains[BLOCK * LANES];
    const uint head = get_group_id(1), batch = get_group_id(2), own = get_group_id(0) * LANES;
    const struct mask mask = MASK_OF(head, batch);
    const struct places at = places_of(&mask, head, batch, heads, kv_heads, width, crossed),
                        share = shares_of(&mask, at, head, batch, heads, kv_heads, width, shares_at);
    const struct packs pack = packs_of(&mask, head, batch, heads, kv_heads, width);
    const ulong out_step = (ulong)heads * width, row0 = ((ulong)batch * heads + head) * tokens;
    __global float *const dq = packed ? work + pack.dq : dq_out + at.q;
    __global const float *const rows = work + rows_at;
    __global const float *const qs = packed ? work + pack.q : q_in + at.q;
    __global const float *const ks = packed ? work + pack.k : kv + at.k;
    __global const float *const vs = packed ? work + pack.v : ks + at.v;
    __global const float *const gs =
        packed ? work + pack.g : dout + batch * tokens * out_step + head * width;
    const ulong q_step = packed ? width : at.q_step, k_step = packed ? width : at.k_step,
                g_step = packed ? width : out_step;
    const uint query_begin = want == WANT_QUERIES ? own : 0,
               query_end = want == WANT_QUERIES ? min(own + LANES, tokens) : tokens;
    uint key_begin = 0, key_end = mask.keys;
    if (want == WANT_KEYS) {
        key_begin = own;
        key_end = min(own + LANES, mask.keys);
    } else if (want == WANT_QUERIES) {
        key_begin = max((int)query_begin - mask.behind, 0) / LANES * LANES;
        key_end = min(query_end + mask.ahead, mask.keys);
    }
    struct drop drop;
    drop_init(&drop, rate, keep_scale, stream, control);
    const ulong element0 = canon_place(row0 * mask.keys, slice_first, slice_row, slice_stride);

    for (uint j0 = key_begin; j0 < key_end; j0 += LANES) {
        const uint last = min(j0 + LANES, mask.keys) - 1;
        const bool first = want != WANT_KEYS && j0 == key_begin;
        const uint seen_from = max((int)j0 - mask.ahead, 0) / 8 * 8, seen_to = j0 + LANES + mask.behind;
        struct keys of[VECTORS];
        load_lanes(ks, k_step, j0, last, width, k);
        load_lanes(vs, k_step, j0, last, width, v);
        if (want & WANT_QUERIES)
            copy_rows(ks + j0 * k_step, k_step, last + 1 - j0, width, keys);
        zero_rows(dk, width);
        zero_rows(dv, width);
        for (uint u = 0; u < VECTORS; u++) {
            of[u].number = LANE_NUMBERS + (int)(j0 + 16 * u);
            of[u].segment = mask_segments(&mask, mask.key_segments, j0 + 16 * u, mask.keys - 1);
        }
        const uint end = first ? query_end : min((seen_to + 7) / 8 * 8, query_end);
        for (uint i0 = first ? query_begin : max(query_begin, seen_from); i0 < end; i0 += BLOCK) {
            const uint count = min((uint)BLOCK, end - i0), few = first_of(&mask, j0, i0, count);
            const bool masked = mask_cuts(&mask, i0, count, j0, LANES);
            const int from = (int)j0 - (int)i0 - mask.ahead, to = (int)j0 - (int)i0 + mask.behind;
            score_queries(qs + i0 * q_step, q_step, count, few, width, k, scores);
            score_queries(gs + i0 * g_step, g_step, count, few, width, v, gains);
            for (uint u = 0; u < VECTORS; u++)
                weigh_block(scores, gains, u == 0 ? 0 : few, count, &drop, scale, stats + (row0 + i0) * 2,
                            rows + (row0 + i0) * 2, element0 + (ulong)i0 * mask.keys, &mask, masked, i0,
                            &of[u], u);
            if (want & WANT_KEYS) {
                sum_rows(gs + i0 * g_step, g_step, count, width, from, to, gains, copy, dv);
                sum_rows(qs + i0 * q_step, q_step, count, width, from, to, scores, copy, dk);
            }
            if (want & WANT_QUERIES)
                add_rows(scores, count, keys, last + 1 - j0, -to, -from, width, first, dq + i0 * q_step,
                         q_step, tile);
        }
        if (want & WANT_KEYS) {
            __global float *to = dkv + share.k + j0 * share.k_step;
            store_rows(dk, last + 1 - j0, width, scale, to, share.k_step);
            store_rows(dv, last + 1 - j0, width, 1.0f, to + share.v, share.k_step);
        }
    }
    if (want & WANT_QUERIES)
        scale_rows(dq + query_begin * q_step, q_step, query_end - query_begin, width, scale,
                   dq_out + at.q + query_begin * at.q_step, at.q_step);
}
#endif

/* `count` parts of rows of `step` floats, `skip` floats behind their begin, heads side by side, become one head
 * after the other: they go to `to`, from float `at` on, each [batch, heads, tokens, width]. */
__kernel void keel_attention_pack(__global const float *from, __global float *to, uint tokens, uint heads,
                                  uint width, uint step, uint skip, uint count, ulong at)
{
    const uint head = get_group_id(1), batch = get_group_id(2), begin = get_group_id(0) * LANES;
    const uint end = min(begin + LANES, tokens);
    const ulong row0 = ((ulong)batch * heads + head) * tokens, part = part_floats(tokens, heads, width);
    for (uint p = 0; p < count; p++)
        for (uint t = begin; t < end; t++) {
            __global const float *x = from + ((ulong)batch * tokens + t) * step + skip + p * heads * width;
            __global float *y = to + at + p * part + (row0 + t) * width;
            for (uint d = 0; d < width; d += 16)
                canon_store(canon_load(x + head * width + d, width - d), y + d, width - d);
        }
}
