/* attention.cl - causal self-attention of one head at a time, and its gradient.
 *
 * q, k, v, o, g (= dout) are rows of head_width floats of query i or key j, j <= i:
 *
 *     s_ij   = (fma over d ascending of q_i[d] k_j[d], from 0) * scale
 *     max_i  = largest s_ij, + 0                  sum_i = sum of e_ij, j ascending from 0
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
 * element = ((b * heads + h) * tokens + i) * tokens + j. The "+ 0" makes -0 to 0: a masked key then
 * adds nothing, whether a device skips it or adds fma(0, x, acc).
 *
 * Shapes: qkv and dqkv [batch, tokens, 3, heads, head_width], out and dout [batch, tokens, heads,
 * head_width], stats (max, sum) and rows (inv, delta) [batch, heads, tokens, 2].
 *
 * Work-items are alone in their groups and own 16 queries (or keys) of a head, one to a lane. `lanes`
 * arrays are [head_width][16]. BLOCK keys (or queries) are taken at a time, which only bounds the local
 * memory: every chain goes on unchanged from block to block. Where more than one block is needed the
 * forward pass computes its scores twice. Tunables (tunables.c): BLOCK, KEEL_BY_LANE. Tolerance against the host: none, equal bits. */

#ifndef KEEL_ATTENTION_BLOCK
#define KEEL_ATTENTION_BLOCK 64
#endif
#ifdef KEEL_LARGE_LOCAL
enum { BLOCK = KEEL_ATTENTION_BLOCK, WIDTH_MAX = 256 };
#else
enum { BLOCK = KEEL_ATTENTION_BLOCK, WIDTH_MAX = 64 };
#endif

#define LANE_NUMBERS ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define EACH_8(X)    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/* Which probabilities are kept. `control` is not read when rate is 0. */
struct drop {
    uint seed_lo, seed_hi, stream, microbatch, step;
    float rate, keep_scale;
};

static void drop_init(struct drop *drop, float rate, float keep_scale, uint stream,
                      __global const uint *control)
{
    drop->rate = rate;
    drop->keep_scale = keep_scale;
    drop->stream = stream;
    if (rate > 0.0f) {
        drop->seed_lo = control[0];
        drop->seed_hi = control[1];
        drop->step = control[2];
        drop->microbatch = control[3];
    }
}

/* Which of sixteen probabilities are kept: all ones, else 0. Not called without dropout. */
static int16 drop_kept(const struct drop *drop, ulong16 element)
{
    uint16 c[4] = {convert_uint16(element >> 2), (uint16)(drop->stream), (uint16)(drop->microbatch),
                   (uint16)(drop->step)};
    canon_philox_x16(c, drop->seed_lo, drop->seed_hi);
    const uint16 word = convert_uint16(element) & 3u;
    const uint16 pair0 = word == 0u ? c[0] : c[1], pair1 = word == 2u ? c[2] : c[3];
    return canon_uniform_x16(word < 2u ? pair0 : pair1) >= drop->rate;
}

static float16 drop_apply(const struct drop *drop, int16 kept, float16 x)
{
    return drop->rate == 0.0f ? x : kept ? x * drop->keep_scale : (float16)(0.0f);
}

/* lanes[d][l] = row first + l, the last row of all again where there are fewer than 16. */
static void load_lanes(__global const float *rows, ulong step, uint first, uint last, uint width,
                       __local float *lanes)
{
    for (uint l = 0; l < 16; l++) {
        __global const float *row = rows + min(first + l, last) * step;
        for (uint d = 0; d < width; d++)
            lanes[d * 16 + l] = row[d];
    }
}

static void store_lanes(__local const float *lanes, uint width, __global float *rows, ulong step, uint first,
                        uint last)
{
    for (uint l = 0; l < 16 && first + l <= last; l++)
        for (uint d = 0; d < width; d++)
            rows[(first + l) * step + d] = lanes[d * 16 + l];
}

static void zero_lanes(__local float *lanes, uint width)
{
    for (uint d = 0; d < width; d++)
        vstore16((float16)(0.0f), d, lanes);
}

/* lanes = lanes * factor + 0. */
static void scale_lanes(__local float *lanes, uint width, float factor)
{
    for (uint d = 0; d < width; d++)
        vstore16(canon_plus_zero_x16(vload16(d, lanes) * factor), d, lanes);
}

#define DOT_BEGIN(r)                                                                                         \
    __global const float *x##r = rows + min(i + r, count - 1) * step;                                        \
    float16 s##r = (float16)(0.0f);
#define DOT_FMA(r) s##r = fma((float16)(x##r[d]), y, s##r);
#define DOT_END(r) vstore16(s##r, i + r, out);
/* out[i][l] = chain over d of rows[i][d] lanes[d][l]; writes up to 7 rows past count, within BLOCK. */
static void dot_rows(__global const float *rows, ulong step, uint count, uint width,
                     __local const float *lanes, __local float *out)
{
#if KEEL_BY_LANE >= 2
    for (uint i = 0; i < count; i++) {
        __global const float *x = rows + i * step;
        float16 s = (float16)(0.0f);
        for (uint d = 0; d < width; d++)
            s = canon_wide_fma((float16)(x[d]), vload16(d, lanes), s);
        vstore16(s, i, out);
    }
#else
    for (uint i = 0; i < count; i += 8) {
        EACH_8(DOT_BEGIN)
        for (uint d = 0; d < width; d++) {
            float16 y = vload16(d, lanes);
            EACH_8(DOT_FMA)
        }
        EACH_8(DOT_END)
    }
#endif
}

#define SUM_BEGIN(r) float16 s##r = vload16(d + r, lanes);
#define SUM_FMA(r)   s##r = fma((float16)(x[r]), w, s##r);
#define SUM_END(r)   vstore16(s##r, d + r, lanes);
/* lanes[d][l] = chain over i of weights[i][l] rows[i][d], going on from what lanes holds. */
static void sum_rows(__global const float *rows, ulong step, uint count, uint width,
                     __local const float *weights, __local float *lanes)
{
#if KEEL_BY_LANE >= 2
    for (uint d = 0; d < width; d++) {
        float16 s = vload16(d, lanes);
        for (uint i = 0; i < count; i++)
            s = canon_wide_fma((float16)(rows[i * step + d]), vload16(i, weights), s);
        vstore16(s, d, lanes);
    }
#else
    uint d = 0;
    for (; d + 8 <= width; d += 8) {
        __global const float *x = rows + d;
        EACH_8(SUM_BEGIN)
        for (uint i = 0; i < count; i++, x += step) {
            float16 w = vload16(i, weights);
            EACH_8(SUM_FMA)
        }
        EACH_8(SUM_END)
    }
    for (; d < width; d++) {
        __global const float *x = rows + d;
        SUM_BEGIN(0)
        for (uint i = 0; i < count; i++, x += step) {
            float16 w = vload16(i, weights);
            SUM_FMA(0)
        }
        SUM_END(0)
    }
#endif
}

__kernel void keel_attention(__global const float *qkv, __global float *out, __global float *stats,
                             __global const uint *control, uint tokens, uint heads, uint width, float scale,
                             float rate, float keep_scale, uint stream)
{
    __local float q[WIDTH_MAX * 16];
    __local float sums[WIDTH_MAX * 16];
    __local float scores[BLOCK * 16];
    const uint first = get_group_id(0) * 16, head = get_group_id(1), batch = get_group_id(2);
    const ulong step = 3 * (ulong)heads * width, out_step = (ulong)heads * width;
    __global const float *qs = qkv + batch * tokens * step + head * width;
    __global const float *ks = qs + out_step, *vs = ks + out_step;
    const uint last = min(first + 15, tokens - 1), keys = last + 1;
    const int16 query = LANE_NUMBERS + (int)first;
    const ulong row0 = ((ulong)batch * heads + head) * tokens;
    const ulong16 element0 = (row0 + convert_ulong16(query)) * tokens;
    struct drop drop;
    drop_init(&drop, rate, keep_scale, stream, control);

    load_lanes(qs, step, first, last, width, q);
    zero_lanes(sums, width);
    float16 largest = (float16)(-INFINITY);
    for (uint j0 = 0; j0 < keys; j0 += BLOCK) {
        const uint count = min((uint)BLOCK, keys - j0);
        dot_rows(ks + j0 * step, step, count, width, q, scores);
        for (uint j = 0; j < count; j++) {
            float16 s = vload16(j, scores) * scale;
            vstore16(s, j, scores);
            largest = ((query >= (int)(j0 + j)) & (s > largest)) ? s : largest;
        }
    }
    largest = canon_plus_zero_x16(largest);
    float16 sum = (float16)(0.0f);
    for (uint j0 = 0; j0 < keys; j0 += BLOCK) {
        const uint count = min((uint)BLOCK, keys - j0);
        const bool again = keys > BLOCK;
        if (again)
            dot_rows(ks + j0 * step, step, count, width, q, scores);
        for (uint j = 0; j < count; j++) {
            float16 s = vload16(j, scores);
            s = again ? s * scale : s;
            float16 e = query >= (int)(j0 + j) ? canon_exp_x16(s - largest) : (float16)(0.0f);
            sum = sum + e;
            const int16 kept = rate > 0.0f ? drop_kept(&drop, element0 + (ulong)(j0 + j)) : (int16)(-1);
            vstore16(drop_apply(&drop, kept, e), j, scores);
        }
        sum_rows(vs + j0 * step, step, count, width, scores, sums);
    }
    for (uint d = 0; d < width; d++)
        vstore16(canon_plus_zero_x16(canon_divide_x16(vload16(d, sums), sum)), d, sums);
    store_lanes(sums, width, out + batch * tokens * out_step + head * width, out_step, first, last);
    vstore16(largest, 0, scores);
    vstore16(sum, 1, scores);
    for (uint l = 0; first + l <= last; l++) {
        stats[(row0 + first + l) * 2] = scores[l];
        stats[(row0 + first + l) * 2 + 1] = scores[16 + l];
    }
}

/* dq, and inv and delta of each row for keel_attention_grad_key, which must come after. */
__kernel void keel_attention_grad_query(__global const float *qkv, __global const float *out,
                                        __global const float *stats, __global const uint *control,
                                        __global const float *dout, __global float *dqkv,
                                        __global float *rows, uint tokens, uint heads, uint width,
                                        float scale, float rate, float keep_scale, uint stream)
{
    __local float q[WIDTH_MAX * 16];
    __local float g[WIDTH_MAX * 16];
    __local float sums[WIDTH_MAX * 16];
    __local float scores[BLOCK * 16];
    __local float gains[BLOCK * 16];
    const uint first = get_group_id(0) * 16, head = get_group_id(1), batch = get_group_id(2);
    const ulong step = 3 * (ulong)heads * width, out_step = (ulong)heads * width;
    const ulong at = batch * tokens * step + head * width, out_at = batch * tokens * out_step + head * width;
    __global const float *ks = qkv + at + out_step, *vs = ks + out_step;
    const uint last = min(first + 15, tokens - 1), keys = last + 1;
    const int16 query = LANE_NUMBERS + (int)first;
    const ulong row0 = ((ulong)batch * heads + head) * tokens;
    const ulong16 element0 = (row0 + convert_ulong16(query)) * tokens;
    struct drop drop;
    drop_init(&drop, rate, keep_scale, stream, control);

    load_lanes(qkv + at, step, first, last, width, q);
    load_lanes(dout + out_at, out_step, first, last, width, g);
    load_lanes(out + out_at, out_step, first, last, width, sums);
    float16 delta = (float16)(0.0f);
    for (uint d = 0; d < width; d++)
        delta = fma(vload16(d, g), vload16(d, sums), delta);
    load_lanes(stats + row0 * 2, 2, first, last, 2, scores);
    const float16 largest = vload16(0, scores);
    const float16 inverse = canon_divide_x16((float16)(1.0f), vload16(1, scores));
    vstore16(inverse, 0, scores);
    vstore16(delta, 1, scores);
    store_lanes(scores, 2, rows + row0 * 2, 2, first, last);

    zero_lanes(sums, width);
    for (uint j0 = 0; j0 < keys; j0 += BLOCK) {
        const uint count = min((uint)BLOCK, keys - j0);
        dot_rows(ks + j0 * step, step, count, width, q, scores);
        dot_rows(vs + j0 * step, step, count, width, g, gains);
        for (uint j = 0; j < count; j++) {
            float16 p = canon_exp_x16(vload16(j, scores) * scale - largest) * inverse;
            const int16 kept = rate > 0.0f ? drop_kept(&drop, element0 + (ulong)(j0 + j)) : (int16)(-1);
            float16 dp = drop_apply(&drop, kept, vload16(j, gains));
            float16 ds = p * (dp - delta);
            vstore16(query >= (int)(j0 + j) ? ds : (float16)(0.0f), j, scores);
        }
        sum_rows(ks + j0 * step, step, count, width, scores, sums);
    }
    scale_lanes(sums, width, scale);
    store_lanes(sums, width, dqkv + at, step, first, last);
}

/* dk and dv. */
__kernel void keel_attention_grad_key(__global const float *qkv, __global const float *stats,
                                      __global const uint *control, __global const float *dout,
                                      __global const float *rows, __global float *dqkv, uint tokens,
                                      uint heads, uint width, float scale, float rate, float keep_scale,
                                      uint stream)
{
    __local float k[WIDTH_MAX * 16];
    __local float v[WIDTH_MAX * 16];
    __local float dk[WIDTH_MAX * 16];
    __local float dv[WIDTH_MAX * 16];
    __local float scores[BLOCK * 16];
    __local float gains[BLOCK * 16];
    const uint first = get_group_id(0) * 16, head = get_group_id(1), batch = get_group_id(2);
    const ulong step = 3 * (ulong)heads * width, out_step = (ulong)heads * width;
    const ulong at = batch * tokens * step + head * width;
    __global const float *qs = qkv + at, *gs = dout + batch * tokens * out_step + head * width;
    const uint last = min(first + 15, tokens - 1);
    const int16 key = LANE_NUMBERS + (int)first;
    const ulong row0 = ((ulong)batch * heads + head) * tokens;
    struct drop drop;
    drop_init(&drop, rate, keep_scale, stream, control);

    load_lanes(qs + out_step, step, first, last, width, k);
    load_lanes(qs + 2 * out_step, step, first, last, width, v);
    zero_lanes(dk, width);
    zero_lanes(dv, width);
    for (uint i0 = first; i0 < tokens; i0 += BLOCK) {
        const uint count = min((uint)BLOCK, tokens - i0);
        dot_rows(qs + i0 * step, step, count, width, k, scores);
        dot_rows(gs + i0 * out_step, out_step, count, width, v, gains);
        for (uint r = 0; r < count; r++) {
            const ulong row = row0 + i0 + r;
            const ulong16 element = row * tokens + convert_ulong16(key);
            const int16 kept = rate > 0.0f ? drop_kept(&drop, element) : (int16)(-1);
            const int16 active = key <= (int)(i0 + r);
            const float16 zero = (float16)(0.0f);
            float16 p = canon_exp_x16(vload16(r, scores) * scale - stats[row * 2]) * rows[row * 2];
            float16 dp = drop_apply(&drop, kept, vload16(r, gains));
            float16 ds = p * (dp - rows[row * 2 + 1]);
            vstore16(active ? ds : zero, r, scores);
            vstore16(active ? drop_apply(&drop, kept, p) : zero, r, gains);
        }
        sum_rows(gs + i0 * out_step, out_step, count, width, gains, dv);
        sum_rows(qs + i0 * step, step, count, width, scores, dk);
    }
    scale_lanes(dk, width, scale);
    scale_lanes(dv, width, 1.0f);
    store_lanes(dk, width, dqkv + at + out_step, step, first, last);
    store_lanes(dv, width, dqkv + at + 2 * out_step, step, first, last);
}
