/* batch_norm.cl - batch normalisation (Ioffe and Szegedy 2015) of [rows, n], n channels, and its gradient.
 *
 *     blocks      of 64 rows: s = sum(x), q = sum of (x - s / rows)^2; rows ascending from +0, squares by fma
 *     statistics  mean = sum(s) / n, var = sum over blocks of fma(rows d, d, q) / n with d = s / rows - mean
 *     apply       t = (x - mean) * rstd, z = fma(t, gamma, beta) (+ residual), y = z <= 0 ? 0 : z with RELU
 *     grad_blocks g = dy, or 0 where not y > 0; sum(g), sum of fma(g, t, s)
 *     grad_sums   a = sum(g) / n, b = sum(g t) / n; dbeta, dgamma += the sums
 *     grad_apply  dx = fma(-t, b, g - a) * (gamma * rstd)
 *
 * A work-item takes ROWS rows of COLUMNS neighbouring channels, 16 after 16, or, of the sums over blocks, all
 * blocks of 16 channels. `blocks` holds n sums and n second sums of each block. No tunables. */

enum { ROWS = 64, COLUMNS = 64 };
enum { RESIDUAL = 1, RELU = 2, VARIANCE = 4 };

__kernel void keel_batch_norm_blocks(__global const float *x, __global float *blocks, uint rows, uint n)
{
    const uint row = get_global_id(0) * ROWS, column = get_global_id(1) * COLUMNS;
    if (row >= rows)
        return;
    const uint high = min(rows - row, (uint)ROWS), last = min(column + COLUMNS, n);
    blocks += (ulong)get_global_id(0) * 2 * n;
    x += (ulong)row * n;
    for (uint c = column; c < last; c += 16) {
        float16 s = (float16)(0.0f), q = s;
        for (uint r = 0; r < high; r++)
            s += canon_load(x + (ulong)r * n + c, n - c);
        const float16 mean = canon_divide(s, (float16)(convert_float(high)));
        for (uint r = 0; r < high; r++) {
            const float16 d = canon_load(x + (ulong)r * n + c, n - c) - mean;
            q = fma(d, d, q);
        }
        canon_store(s, blocks + c, n - c);
        canon_store(q, blocks + n + c, n - c);
    }
}

__kernel void keel_batch_norm_statistics(__global const float *blocks, __global float *mean_out,
                                         __global float *rstd_out, __global float *running_mean,
                                         __global float *running_variance, uint rows, uint n, float epsilon,
                                         float scale, uint running)
{
    const uint c = get_global_id(0) * 16;
    if (c >= n)
        return;
    const uint count = (rows + ROWS - 1) / ROWS, width = n - c;
    float16 s = (float16)(0.0f), q = s;
    for (uint i = 0; i < count; i++)
        s += canon_load(blocks + (ulong)i * 2 * n + c, width);
    const float16 mean = canon_divide(s, (float16)(convert_float(rows)));
    for (uint i = 0; i < count; i++) {
        const float16 high = (float16)(convert_float(min(rows - i * ROWS, (uint)ROWS)));
        __global const float *block = blocks + (ulong)i * 2 * n + c;
        const float16 d = canon_divide(canon_load(block, width), high) - mean;
        q += fma(high * d, d, canon_load(block + n, width));
    }
    const float16 variance = canon_divide(q, (float16)(convert_float(rows)));
    canon_store(mean, mean_out + c, width);
    canon_store(canon_rsqrt(variance + epsilon), rstd_out + c, width);
    if (running) {
        const float16 unbiased = canon_divide(q, (float16)(convert_float(max(rows, 2u) - 1)));
        canon_store(canon_load(running_mean + c, width) + mean * scale, running_mean + c, width);
        canon_store(canon_load(running_variance + c, width) + unbiased * scale, running_variance + c, width);
    }
}

__kernel void keel_batch_norm_apply(__global const float *x, __global const float *mean_in,
                                    __global const float *rstd_in, __global const float *gamma,
                                    __global const float *beta, __global const float *residual,
                                    __global float *y, uint rows, uint n, float epsilon, uint flags)
{
    const uint row = get_global_id(0) * ROWS, column = get_global_id(1) * COLUMNS;
    if (row >= rows)
        return;
    const uint high = min(rows - row, (uint)ROWS), last = min(column + COLUMNS, n);
    for (uint c = column; c < last; c += 16) {
        const uint width = n - c;
        const float16 mean = canon_load(mean_in + c, width), scale = canon_load(gamma + c, width);
        const float16 shift = canon_load(beta + c, width), given = canon_load(rstd_in + c, width);
        const float16 rstd = flags & VARIANCE ? canon_rsqrt(given + epsilon) : given;
        for (uint r = row; r < row + high; r++) {
            const ulong at = (ulong)r * n + c;
            const float16 t = (canon_load(x + at, width) - mean) * rstd;
            float16 z = fma(t, scale, shift);
            if (flags & RESIDUAL)
                z = z + canon_load(residual + at, width);
            if (flags & RELU)
                z = select(z, (float16)(0.0f), z <= (float16)(0.0f));
            canon_store(z, y + at, width);
        }
    }
}

static inline float16 passed(__global const float *dy, __global const float *y, ulong at, uint width, uint flags)
{
    const float16 g = canon_load(dy + at, width);
    return flags & RELU ? select((float16)(0.0f), g, canon_load(y + at, width) > (float16)(0.0f)) : g;
}

__kernel void keel_batch_norm_grad_blocks(__global const float *x, __global const float *mean_in,
                                          __global const float *rstd_in, __global const float *dy,
                                          __global const float *y, __global float *blocks, uint rows, uint n,
                                          uint flags)
{
    const uint row = get_global_id(0) * ROWS, column = get_global_id(1) * COLUMNS;
    if (row >= rows)
        return;
    const uint high = min(rows - row, (uint)ROWS), last = min(column + COLUMNS, n);
    blocks += (ulong)get_global_id(0) * 2 * n;
    for (uint c = column; c < last; c += 16) {
        const uint width = n - c;
        const float16 mean = canon_load(mean_in + c, width), rstd = canon_load(rstd_in + c, width);
        float16 sum_g = (float16)(0.0f), sum_gt = sum_g;
        for (uint r = row; r < row + high; r++) {
            const ulong at = (ulong)r * n + c;
            const float16 g = passed(dy, y, at, width, flags);
            const float16 t = (canon_load(x + at, width) - mean) * rstd;
            sum_g += g;
            sum_gt = fma(g, t, sum_gt);
        }
        canon_store(sum_g, blocks + c, width);
        canon_store(sum_gt, blocks + n + c, width);
    }
}

/* Leaves a and b in the place of the first block's sums. */
__kernel void keel_batch_norm_grad_sums(__global float *blocks, __global float *dgamma, __global float *dbeta,
                                        uint rows, uint n)
{
    const uint c = get_global_id(0) * 16;
    if (c >= n)
        return;
    const uint count = (rows + ROWS - 1) / ROWS, width = n - c;
    float16 sum_g = (float16)(0.0f), sum_gt = sum_g;
    for (uint i = 0; i < count; i++) {
        sum_g += canon_load(blocks + (ulong)i * 2 * n + c, width);
        sum_gt += canon_load(blocks + ((ulong)i * 2 + 1) * n + c, width);
    }
    canon_store(canon_load(dbeta + c, width) + sum_g, dbeta + c, width);
    canon_store(canon_load(dgamma + c, width) + sum_gt, dgamma + c, width);
    const float16 all = (float16)(convert_float(rows));
    canon_store(canon_divide(sum_g, all), blocks + c, width);
    canon_store(canon_divide(sum_gt, all), blocks + n + c, width);
}

__kernel void keel_batch_norm_grad_apply(__global const float *x, __global const float *mean_in,
                                         __global const float *rstd_in, __global const float *gamma,
                                         __global const float *dy, __global const float *y,
                                         __global const float *sums, __global float *dx, uint rows,
                                         uint n, uint flags)
{
    const uint row = get_global_id(0) * ROWS, column = get_global_id(1) * COLUMNS;
    if (row >= rows)
        return;
    const uint high = min(rows - row, (uint)ROWS), last = min(column + COLUMNS, n);
    for (uint c = column; c < last; c += 16) {
        const uint width = n - c;
        const float16 mean = canon_load(mean_in + c, width), rstd = canon_load(rstd_in + c, width);
        const float16 a = canon_load(sums + c, width), b = canon_load(sums + n + c, width);
        const float16 scale = canon_load(gamma + c, width) * rstd;
        for (uint r = row; r < row + high; r++) {
            const ulong at = (ulong)r * n + c;
            const float16 g = passed(dy, y, at, width, flags);
            const float16 t = (canon_load(x + at, width) - mean) * rstd;
            canon_store(fma(-t, b, g - a) * scale, dx + at, width);
        }
    }
}
