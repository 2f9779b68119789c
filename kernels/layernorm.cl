/* layernorm.cl - layer normalisation (Ba, Kiros, Hinton 2016), its gradient, and column sums.
 *
 *     mean = sum(x) / n     var = sum((x - mean)^2) / n     rstd = 1 / sqrt(var + epsilon)
 *     t = (x - mean) * rstd     y = fma(t, gamma, beta), or t * gamma without beta
 *     layernorm_grad: g = dy * gamma, a = sum(g) / n, b = sum(g * t) / n,
 *                     d = fma(-t, b, g - a) * rstd, dx = d, or residual + d
 *     layernorm_grad_columns: dgamma += sum of fma(dy, t, s), dbeta += sum of dy, rows ascending from +0
 *     RMS norm (not centered): the same with mean and a left out, 0
 *     bias_grad: s = x_0, s = s + x_i for rows ascending, out = out + s
 *
 * Shapes: x, y, dy, dx [rows, n]; gamma, beta [n]; mean, rstd [rows]. Sums along a row are the tree of
 * canon_tree.h with squares and products added by fma; sums down a column are strictly ascending.
 * One work-item takes a row, or COLUMNS columns, which is the one tunable and changes no bit. */

/* Rows that a work-item takes at a time, so that a row's sums, each a chain, do not wait for themselves. */
enum { ROWS = KEEL_BY_LANE == 0 ? 4 : 1 };
#define EACH(r, count) _Pragma("unroll") for (uint r = 0; r < count; r++)
/* `step` for each sixteen columns at i, of which `left` are there. */
#define ALONG(n, step)                                                                                       \
    {                                                                                                        \
        uint i = 0;                                                                                          \
        for (; i + 16 <= n; i += 16) {                                                                       \
            const uint left = 16;                                                                            \
            step                                                                                             \
        }                                                                                                    \
        if (i < n) {                                                                                         \
            const uint left = n - i;                                                                         \
            step                                                                                             \
        }                                                                                                    \
    }
#define ALWAYS static inline __attribute__((always_inline))

/* sum / n for each of up to ROWS rows. */
ALWAYS void row_means(const float16 *sums, float *means, uint n, const uint count)
{
    float of[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    EACH(r, count) of[r] = canon_fold(sums[r]);
    const float4 v = (float4)(of[0], of[1], of[2], of[3]);
    vstore4(canon_divide_x16((float16)(v, v, v, v), (float16)(convert_float(n))).lo.lo, 0, means);
}

ALWAYS void layernorm_rows(__global const float *x, __global const float *gamma, __global const float *beta,
                           __global float *y, __global float *mean_out, __global float *rstd_out, uint n,
                           float epsilon, uint has_beta, uint centered, const uint count)
{
    float16 sums[4];
    float mean[4] = {0.0f, 0.0f, 0.0f, 0.0f}, rstd[4];
    if (centered) {
        EACH(r, count) sums[r] = (float16)(0.0f);
        ALONG(n, EACH(r, count) sums[r] += canon_load(x + (ulong)r * n + i, left);)
        row_means(sums, mean, n, count);
    }
    EACH(r, count) sums[r] = (float16)(0.0f);
    ALONG(n, EACH(r, count) {
        float16 d = canon_load(x + (ulong)r * n + i, left) - mean[r];
        d = left < 16 ? canon_mask(d, left) : d;
        sums[r] = fma(d, d, sums[r]);
    })
    row_means(sums, rstd, n, count);
    const float4 v = vload4(0, rstd);
    vstore4(canon_rsqrt_x16((float16)(v, v, v, v) + epsilon).lo.lo, 0, rstd);
    ALONG(n, {
        const float16 g = canon_load(gamma + i, left);
        const float16 b = has_beta ? canon_load(beta + i, left) : g;
        EACH(r, count) {
            const float16 t = (canon_load(x + (ulong)r * n + i, left) - mean[r]) * rstd[r];
            canon_store(has_beta ? fma(t, g, b) : t * g, y + (ulong)r * n + i, left);
        }
    })
    EACH(r, count) {
        if (centered)
            mean_out[r] = mean[r];
        rstd_out[r] = rstd[r];
    }
}

__kernel void keel_layernorm(__global const float *x, __global const float *gamma, __global const float *beta,
                             __global float *y, __global float *mean_out, __global float *rstd_out, uint rows,
                             uint n, float epsilon, uint has_beta, uint centered, uint rows_per_item)
{
    uint row = get_global_id(0) * rows_per_item;
    const uint end = min(row + rows_per_item, rows);
    for (; row + ROWS <= end; row += ROWS)
        layernorm_rows(x + (ulong)row * n, gamma, beta, y + (ulong)row * n, mean_out + row, rstd_out + row, n,
                       epsilon, has_beta, centered, ROWS);
    for (; row < end; row++)
        layernorm_rows(x + (ulong)row * n, gamma, beta, y + (ulong)row * n, mean_out + row, rstd_out + row, n,
                       epsilon, has_beta, centered, 1);
}

ALWAYS void layernorm_grad_rows(__global const float *x, __global const float *gamma,
                                __global const float *mean_in, __global const float *rstd_in,
                                __global const float *dy, __global const float *residual, __global float *dx,
                                uint n, uint has_residual, uint centered, const uint count)
{
    float16 sum_g[4], sum_gt[4];
    float mean[4], rstd[4], a[4] = {0.0f, 0.0f, 0.0f, 0.0f}, b[4];
    EACH(r, count) {
        sum_g[r] = sum_gt[r] = (float16)(0.0f);
        mean[r] = centered ? mean_in[r] : 0.0f;
        rstd[r] = rstd_in[r];
    }
    ALONG(n, {
        const float16 scale = canon_load(gamma + i, left);
        EACH(r, count) {
            const float16 g = canon_load(dy + (ulong)r * n + i, left) * scale;
            const float16 t = (canon_load(x + (ulong)r * n + i, left) - mean[r]) * rstd[r];
            sum_g[r] += g;
            sum_gt[r] = fma(g, t, sum_gt[r]);
        }
    })
    row_means(sum_gt, b, n, count);
    if (centered)
        row_means(sum_g, a, n, count);
    ALONG(n, {
        const float16 scale = canon_load(gamma + i, left);
        EACH(r, count) {
            const ulong at = (ulong)r * n + i;
            const float16 g = canon_load(dy + at, left) * scale;
            const float16 t = (canon_load(x + at, left) - mean[r]) * rstd[r];
            const float16 d = fma(-t, (float16)(b[r]), g - a[r]) * rstd[r];
            canon_store(has_residual ? canon_load(residual + at, left) + d : d, dx + at, left);
        }
    })
}

__kernel void keel_layernorm_grad(__global const float *x, __global const float *gamma,
                                  __global const float *mean, __global const float *rstd,
                                  __global const float *dy, __global const float *residual,
                                  __global float *dx, uint rows, uint n, uint has_residual, uint centered,
                                  uint rows_per_item)
{
    uint row = get_global_id(0) * rows_per_item;
    const uint end = min(row + rows_per_item, rows);
    for (; row + ROWS <= end; row += ROWS) {
        const ulong at = (ulong)row * n;
        layernorm_grad_rows(x + at, gamma, mean + row, rstd + row, dy + at, residual + at, dx + at, n,
                            has_residual, centered, ROWS);
    }
    for (; row < end; row++) {
        const ulong at = (ulong)row * n;
        layernorm_grad_rows(x + at, gamma, mean + row, rstd + row, dy + at, residual + at, dx + at, n,
                            has_residual, centered, 1);
    }
}

/* The sums down columns take COLUMNS neighbouring columns at once, so that a row gives whole cache lines
 * and the rows' pages are walked once; what is left over goes 16 at a time. */
enum { COLUMNS = 64 };

static inline void grad_columns_16(__global const float *x, __global const float *mean,
                                   __global const float *rstd, __global const float *dy,
                                   __global float *dgamma, __global float *dbeta, uint rows, uint n,
                                   uint column, uint has_beta, uint centered)
{
    const uint width = n - column;
    float16 sum_gamma = (float16)(0.0f), sum_beta = (float16)(0.0f);
    for (uint row = 0; row < rows; row++) {
        const ulong i = (ulong)row * n + column;
        float16 v = canon_load(dy + i, width);
        float16 t = (canon_load(x + i, width) - (centered ? mean[row] : 0.0f)) * rstd[row];
        sum_gamma = fma(v, t, sum_gamma);
        sum_beta += v;
    }
    canon_store(canon_load(dgamma + column, width) + sum_gamma, dgamma + column, width);
    if (has_beta)
        canon_store(canon_load(dbeta + column, width) + sum_beta, dbeta + column, width);
}

static inline void add_16(float16 v, __global float *y)
{
    vstore16(vload16(0, y) + v, 0, y);
}

__kernel void keel_layernorm_grad_columns(__global const float *x, __global const float *mean,
                                          __global const float *rstd, __global const float *dy,
                                          __global float *dgamma, __global float *dbeta, uint rows, uint n,
                                          uint has_beta, uint centered)
{
    const uint column = get_global_id(0) * COLUMNS;
    if (column >= n)
        return;
    if (n - column < COLUMNS) {
        for (uint c = column; c < n; c += 16)
            grad_columns_16(x, mean, rstd, dy, dgamma, dbeta, rows, n, c, has_beta, centered);
        return;
    }
    float16 g0 = (float16)(0.0f), g1 = g0, g2 = g0, g3 = g0, b0 = g0, b1 = g0, b2 = g0, b3 = g0;
    for (uint row = 0; row < rows; row++) {
        __global const float *v = dy + (ulong)row * n + column, *z = x + (ulong)row * n + column;
        const float m = centered ? mean[row] : 0.0f, r = rstd[row];
        const float16 v0 = vload16(0, v), v1 = vload16(1, v), v2 = vload16(2, v), v3 = vload16(3, v);
        g0 = fma(v0, (vload16(0, z) - m) * r, g0);
        g1 = fma(v1, (vload16(1, z) - m) * r, g1);
        g2 = fma(v2, (vload16(2, z) - m) * r, g2);
        g3 = fma(v3, (vload16(3, z) - m) * r, g3);
        b0 += v0;
        b1 += v1;
        b2 += v2;
        b3 += v3;
    }
    add_16(g0, dgamma + column);
    add_16(g1, dgamma + column + 16);
    add_16(g2, dgamma + column + 32);
    add_16(g3, dgamma + column + 48);
    if (has_beta) {
        add_16(b0, dbeta + column);
        add_16(b1, dbeta + column + 16);
        add_16(b2, dbeta + column + 32);
        add_16(b3, dbeta + column + 48);
    }
}

__kernel void keel_bias_grad(__global const float *x, __global float *out, uint rows, uint n)
{
    const uint column = get_global_id(0) * COLUMNS;
    if (column >= n)
        return;
    if (n - column >= COLUMNS) {
        __global const float *v = x + column;
        float16 s0 = vload16(0, v), s1 = vload16(1, v), s2 = vload16(2, v), s3 = vload16(3, v);
        for (uint row = 1; row < rows; row++) {
            v += n;
            s0 += vload16(0, v);
            s1 += vload16(1, v);
            s2 += vload16(2, v);
            s3 += vload16(3, v);
        }
        add_16(s0, out + column);
        add_16(s1, out + column + 16);
        add_16(s2, out + column + 32);
        add_16(s3, out + column + 48);
        return;
    }
    for (uint c = column; c < n; c += 16) {
        float16 s = canon_load(x + c, n - c);
        for (uint row = 1; row < rows; row++)
            s += canon_load(x + (ulong)row * n + c, n - c);
        canon_store(canon_load(out + c, n - c) + s, out + c, n - c);
    }
}
