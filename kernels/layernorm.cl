/* layernorm.cl - layer normalisation (Ba, Kiros, Hinton 2016), its gradient, and column sums.
 *
 *     mean = sum(x) / n     var = sum((x - mean)^2) / n     rstd = 1 / sqrt(var + epsilon)
 *     t = (x - mean) * rstd     y = fma(t, gamma, beta), or t * gamma without beta
 *     layernorm_grad: g = dy * gamma, a = sum(g) / n, b = sum(g * t) / n,
 *                     d = fma(-t, b, g - a) * rstd, dx = d, or residual + d
 *     layernorm_grad_columns: dgamma += sum of fma(dy, t, s), dbeta += sum of dy, rows ascending from +0
 *     bias_grad: s = x_0, s = s + x_i for rows ascending, out = out + s
 *
 * Shapes: x, y, dy, dx [rows, n]; gamma, beta [n]; mean, rstd [rows]. Sums along a row are the tree of
 * canon_tree.h with squares and products added by fma; sums down a column are strictly ascending.
 * One work-item takes a row, or 16 columns. No tunables. */

__kernel void keel_layernorm(__global const float *x, __global const float *gamma, __global const float *beta,
                             __global float *y, __global float *mean_out, __global float *rstd_out, uint rows,
                             uint n, float epsilon, uint has_beta)
{
    const uint row = get_global_id(0);
    if (row >= rows)
        return;
    x += (ulong)row * n;
    y += (ulong)row * n;
    const float mean = canon_divide(canon_sum_run(x, n), convert_float(n));
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
    mean_out[row] = mean;
    rstd_out[row] = rstd;
}

__kernel void keel_layernorm_grad(__global const float *x, __global const float *gamma,
                                  __global const float *mean_in, __global const float *rstd_in,
                                  __global const float *dy, __global const float *residual,
                                  __global float *dx, uint rows, uint n, uint has_residual)
{
    const uint row = get_global_id(0);
    if (row >= rows)
        return;
    const ulong base = (ulong)row * n;
    x += base;
    dy += base;
    dx += base;
    residual += base;
    const float mean = mean_in[row], rstd = rstd_in[row];
    float16 sum_g = (float16)(0.0f), sum_gt = (float16)(0.0f);
    for (uint i = 0; i < n; i += 16) {
        float16 g = canon_load(dy + i, n - i) * canon_load(gamma + i, n - i);
        float16 t = (canon_load(x + i, n - i) - mean) * rstd;
        sum_g += g;
        sum_gt = fma(g, t, sum_gt);
    }
    const float a = canon_divide(canon_fold(sum_g), convert_float(n));
    const float b = canon_divide(canon_fold(sum_gt), convert_float(n));
    for (uint i = 0; i < n; i += 16) {
        float16 g = canon_load(dy + i, n - i) * canon_load(gamma + i, n - i);
        float16 t = (canon_load(x + i, n - i) - mean) * rstd;
        float16 d = fma(-t, (float16)(b), g - a) * rstd;
        canon_store(has_residual ? canon_load(residual + i, n - i) + d : d, dx + i, n - i);
    }
}

__kernel void keel_layernorm_grad_columns(__global const float *x, __global const float *mean,
                                          __global const float *rstd, __global const float *dy,
                                          __global float *dgamma, __global float *dbeta, uint rows, uint n,
                                          uint has_beta)
{
    const uint column = get_global_id(0) * 16;
    if (column >= n)
        return;
    const uint width = n - column;
    float16 sum_gamma = (float16)(0.0f), sum_beta = (float16)(0.0f);
    for (uint row = 0; row < rows; row++) {
        const ulong i = (ulong)row * n + column;
        float16 v = canon_load(dy + i, width);
        float16 t = (canon_load(x + i, width) - mean[row]) * rstd[row];
        sum_gamma = fma(v, t, sum_gamma);
        sum_beta += v;
    }
    canon_store(canon_load(dgamma + column, width) + sum_gamma, dgamma + column, width);
    if (has_beta)
        canon_store(canon_load(dbeta + column, width) + sum_beta, dbeta + column, width);
}

__kernel void keel_bias_grad(__global const float *x, __global float *out, uint rows, uint n)
{
    const uint column = get_global_id(0) * 16;
    if (column >= n)
        return;
    const uint width = n - column;
    x += column;
    float16 s = canon_load(x, width);
    for (uint row = 1; row < rows; row++)
        s += canon_load(x + (ulong)row * n, width);
    canon_store(canon_load(out + column, width) + s, out + column, width);
}
