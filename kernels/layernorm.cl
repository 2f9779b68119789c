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

__kernel void keel_layernorm(__global const float *x, __global const float *gamma, __global const float *beta,
                             __global float *y, __global float *mean_out, __global float *rstd_out, uint rows,
                             uint n, float epsilon, uint has_beta, uint centered)
{
    const uint row = get_global_id(0);
    if (row >= rows)
        return;
    x += (ulong)row * n;
    y += (ulong)row * n;
    const float mean = centered ? canon_divide(canon_sum_run(x, n), convert_float(n)) : 0.0f;
    float16 s = (float16)(0.0f);
    for (uint i = 0; i < n; i += 16) {
        float16 d = canon_load(x + i, n - i) - mean;
        if (n - i < 16)
            d = canon_mask(d, n - i);
        s = fma(d, d, s);
    }
    const float rstd = canon_rsqrt(canon_divide(canon_fold(s), convert_float(n)) + epsilon);
    for (uint i = 0; i < n; i += 16) {
        float16 t = (canon_load(x + i, n - i) - mean) * rstd;
        float16 g = canon_load(gamma + i, n - i);
        canon_store(has_beta ? fma(t, g, canon_load(beta + i, n - i)) : t * g, y + i, n - i);
    }
    if (centered)
        mean_out[row] = mean;
    rstd_out[row] = rstd;
}

__kernel void keel_layernorm_grad(__global const float *x, __global const float *gamma,
                                  __global const float *mean_in, __global const float *rstd_in,
                                  __global const float *dy, __global const float *residual,
                                  __global float *dx, uint rows, uint n, uint has_residual, uint centered)
{
    const uint row = get_global_id(0);
    if (row >= rows)
        return;
    const ulong base = (ulong)row * n;
    x += base;
    dy += base;
    dx += base;
    residual += base;
    const float mean = centered ? mean_in[row] : 0.0f, rstd = rstd_in[row];
    float16 sum_g = (float16)(0.0f), sum_gt = (float16)(0.0f);
    for (uint i = 0; i < n; i += 16) {
        float16 g = canon_load(dy + i, n - i) * canon_load(gamma + i, n - i);
        float16 t = (canon_load(x + i, n - i) - mean) * rstd;
        sum_g += g;
        sum_gt = fma(g, t, sum_gt);
    }
    const float a = centered ? canon_divide(canon_fold(sum_g), convert_float(n)) : 0.0f;
    const float b = canon_divide(canon_fold(sum_gt), convert_float(n));
    for (uint i = 0; i < n; i += 16) {
        float16 g = canon_load(dy + i, n - i) * canon_load(gamma + i, n - i);
        float16 t = (canon_load(x + i, n - i) - mean) * rstd;
        float16 d = fma(-t, (float16)(b), g - a) * rstd;
        canon_store(has_residual ? canon_load(residual + i, n - i) + d : d, dx + i, n - i);
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
