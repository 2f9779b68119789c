/* layernorm.cl - layer normalisation (Ba, Kiros, Hinton 2016), its gradient, and column sums.
 *
 *     mean = sum(x) / n     var = sum((x - mean)^2) / n     rstd = 1 / sqrt(var + epsilon)
 *     t = (x - mean) * rstd     y = fma(t, gamma, beta), or t * gamma without beta, or t without gamma
 *     layernorm_grad: g = dy * gamma, a = sum(g) / n, b = sum(g * t) / n,
 *                     d = fma(-t, b, g - a) * rstd, dx = d, or residual + d
 *     layernorm_grad_columns: dgamma += sum of fma(dy, t, s), dbeta += sum of dy, rows ascending from +0
 *     RMS norm (not centered): the same with mean and a left out, 0
 *     bias_grad: s = x_0, s = s + x_i for rows ascending, out = out + s
 *
 * Shapes: x, y, dy, dx [rows, n]; gamma, beta [n]; mean, rstd [rows]. Sums along a row are the tree of
 * canon_tree.h with squares and products added by fma; sums down a column are strictly ascending.
 * One work-item takes rows_per_item rows, which changes no bit, or COLUMNS columns. Where lanes are many, sixteen
 * work-items share a row (canon_row.h), and a work-item has one column. */

/* Rows that a work-item takes at a time, so that a row's sums, each a chain, do not wait for themselves. */
enum { ROWS = KEEL_BY_LANE == 0 && KEEL_ROW_ITEMS == 1 ? 4 : 1 };
#define EACH(r, count) _Pragma("unroll") for (uint r = 0; r < count; r++)
/* `step` for each sixteen columns at i, of which `left` are there. */
#if KEEL_ROW_ITEMS > 1
#define ALONG(n, step)                                                                                       \
    {                                                                                                        \
        uint i = 0;                                                                                          \
        while (i + 128 <= n) { /* eight loads are asked for before the first is used */                      \
            _Pragma("unroll") for (uint turn = 0; turn < 8; turn++, i += 16)                                 \
            {                                                                                                \
                const uint left = 16;                                                                        \
                step                                                                                         \
            }                                                                                                \
        }                                                                                                    \
        for (; i < n; i += 16) {                                                                             \
            const uint left = n - i;                                                                         \
            step                                                                                             \
        }                                                                                                    \
    }
#else
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
#endif
/* What four rows have, four times, float by float: at vectors made of vectors Oclgrind 21.10 crashes. */
#define FOUR(f)       f[0], f[1], f[2], f[3]
#define FOUR_TIMES(f) (float16)(FOUR(f), FOUR(f), FOUR(f), FOUR(f))

/* sum / n for each of up to ROWS rows, and 1 / sqrt(x + epsilon). */
CANON_INLINE void row_means(const row_real *sums, float *means, uint n, const uint count, __local float *folds)
{
#if KEEL_ROW_ITEMS > 1
    means[0] = canon_divide(row_fold(sums[0], folds), convert_float(n));
#else
    float of[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    EACH(r, count) of[r] = canon_fold(sums[r]);
    vstore4(canon_divide(FOUR_TIMES(of), (float16)(convert_float(n))).lo.lo, 0, means);
#endif
}
CANON_INLINE void row_rsqrts(float *x, float epsilon)
{
#if KEEL_ROW_ITEMS > 1
    x[0] = canon_rsqrt(x[0] + epsilon);
#else
    vstore4(canon_rsqrt(FOUR_TIMES(x) + epsilon).lo.lo, 0, x);
#endif
}

/* The rows that come after these lie `ahead` floats away. Their `columns` are n, or none, for work-items of rows that
 * are not there. */
CANON_INLINE void layernorm_rows(__global const float *x, __global const float *gamma, __global const float *beta,
                                 __global float *y, __global float *mean_out, __global float *rstd_out, uint n,
                                 uint columns, float epsilon, uint has_beta, uint centered, uint has_gamma,
                                 ulong ahead, const uint count, __local float *folds)
{
    row_real sums[4];
    float mean[4] = {0.0f, 0.0f, 0.0f, 0.0f}, rstd[4];
    if (centered) {
        EACH(r, count) sums[r] = (row_real)(0.0f);
        ALONG(columns, EACH(r, count) sums[r] += row_load(x + (ulong)r * n + i, left);)
        row_means(sums, mean, n, count, folds);
    }
    EACH(r, count) sums[r] = (row_real)(0.0f);
    ALONG(columns, EACH(r, count) {
        CANON_FETCH(x + ahead + (ulong)r * n + i);
        row_real d = row_load(x + (ulong)r * n + i, left) - mean[r];
        d = left < 16 ? row_mask(d, left) : d;
        sums[r] = fma(d, d, sums[r]);
    })
    row_means(sums, rstd, n, count, folds);
    row_rsqrts(rstd, epsilon);
    ALONG(columns, {
        const row_real g = has_gamma ? row_load(gamma + i, left) : (row_real)(1.0f);
        const row_real b = has_beta ? row_load(beta + i, left) : g;
        EACH(r, count) {
            const row_real t = (row_load(x + (ulong)r * n + i, left) - mean[r]) * rstd[r];
            row_store(has_beta ? fma(t, g, b) : t * g, y + (ulong)r * n + i, left);
        }
    })
    const uint told = KEEL_ROW_ITEMS == 1 || (columns > 0 && ROW_LEADS) ? count : 0;
    EACH(r, told) {
        if (centered)
            mean_out[r] = mean[r];
        rstd_out[r] = rstd[r];
    }
}

/* `step` for the rows of a work-item: `count` of them from `row` on, whose floats lie `at`; those that come after them
 * lie `ahead` floats away, and may be another work-item's: a core mostly gets neighbours. */
#if KEEL_ROW_ITEMS > 1
#define EACH_ROWS(step)                                                                                      \
    {                                                                                                        \
        const uint row = min((uint)ROW_NUMBER, rows - 1), columns = ROW_NUMBER < rows ? n : 0, count = 1;     \
        const ulong at = (ulong)row * n, ahead = 0;                                                          \
        (void)rows_per_item;                                                                                 \
        step;                                                                                                \
    }
#else
#define EACH_ROWS(step)                                                                                      \
    const uint columns = n, end = min((uint)get_global_id(0) * rows_per_item + rows_per_item, rows);         \
    uint row = get_global_id(0) * rows_per_item;                                                             \
    for (; row + ROWS <= end; row += ROWS) {                                                                 \
        const uint count = ROWS;                                                                             \
        const ulong at = (ulong)row * n, ahead = row + 2 * ROWS <= rows ? (ulong)ROWS * n : 0;               \
        step;                                                                                                \
    }                                                                                                        \
    for (; row < end; row++) {                                                                               \
        const uint count = 1;                                                                                \
        const ulong at = (ulong)row * n, ahead = 0;                                                          \
        step;                                                                                                \
    }
#endif

__kernel void keel_layernorm(__global const float *x, __global const float *gamma, __global const float *beta,
                             __global float *y, __global float *mean_out, __global float *rstd_out, uint rows,
                             uint n, float epsilon, uint has_beta, uint centered, uint has_gamma,
                             uint rows_per_item)
{
    ROW_FOLDS(folds);
    EACH_ROWS(layernorm_rows(x + at, gamma, beta, y + at, mean_out + row, rstd_out + row, n, columns, epsilon, has_beta,
                             centered, has_gamma, ahead, count, folds))
}

CANON_INLINE void layernorm_grad_rows(__global const float *x, __global const float *gamma,
                                      __global const float *mean_in, __global const float *rstd_in,
                                      __global const float *dy, __global const float *residual, __global float *dx,
                                      uint n, uint columns, uint has_residual, uint centered, uint has_gamma,
                                      ulong ahead, const uint count, __local float *folds)
{
    row_real sum_g[4], sum_gt[4];
    float mean[4], rstd[4], a[4] = {0.0f, 0.0f, 0.0f, 0.0f}, b[4];
    EACH(r, count) {
        sum_g[r] = sum_gt[r] = (row_real)(0.0f);
        mean[r] = centered ? mean_in[r] : 0.0f;
        rstd[r] = rstd_in[r];
    }
    ALONG(columns, {
        const row_real scale = has_gamma ? row_load(gamma + i, left) : (row_real)(1.0f);
        EACH(r, count) {
            const row_real g = row_load(dy + (ulong)r * n + i, left) * scale;
            const row_real t = (row_load(x + (ulong)r * n + i, left) - mean[r]) * rstd[r];
            sum_g[r] += g;
            sum_gt[r] = fma(g, t, sum_gt[r]);
        }
    })
    row_means(sum_gt, b, n, count, folds);
    if (centered)
        row_means(sum_g, a, n, count, folds);
    ALONG(columns, {
        const row_real scale = has_gamma ? row_load(gamma + i, left) : (row_real)(1.0f);
        EACH(r, count) {
            const ulong at = (ulong)r * n + i;
            CANON_FETCH(x + ahead + at);
            CANON_FETCH(dy + ahead + at);
            const row_real g = row_load(dy + at, left) * scale;
            const row_real t = (row_load(x + at, left) - mean[r]) * rstd[r];
            const row_real d = fma(-t, (row_real)(b[r]), g - a[r]) * rstd[r];
            row_store(has_residual ? row_load(residual + at, left) + d : d, dx + at, left);
        }
    })
}

__kernel void keel_layernorm_grad(__global const float *x, __global const float *gamma,
                                  __global const float *mean, __global const float *rstd,
                                  __global const float *dy, __global const float *residual,
                                  __global float *dx, uint rows, uint n, uint has_residual, uint centered,
                                  uint has_gamma, uint rows_per_item)
{
    ROW_FOLDS(folds);
    EACH_ROWS(layernorm_grad_rows(x + at, gamma, mean + row, rstd + row, dy + at, residual + at, dx + at, n, columns,
                                  has_residual, centered, has_gamma, ahead, count, folds))
}

/* The sums down columns take COLUMNS neighbouring columns at once, so that a row gives whole cache lines; what is
 * left over goes 16 at a time. No prefetcher walks down columns, so the first line of rows to come is asked for, and
 * brings its neighbours. */
enum { VECTORS = 4, COLUMNS = 16 * VECTORS, AHEAD = 32 };

#if KEEL_ROW_ITEMS > 1
/* A column to a work-item, and this many rows of it asked for before they are added. */
enum { FLIGHT = 16 };
CANON_INLINE void grad_column(__global const float *x, __global const float *mean, __global const float *rstd,
                              __global const float *dy, __global float *dgamma, __global float *dbeta, uint rows,
                              uint n, uint has_beta, uint centered)
{
    float gamma = 0.0f, beta = 0.0f, d[FLIGHT], t[FLIGHT];
    uint row = 0;
    for (; row + FLIGHT <= rows; row += FLIGHT) {
        EACH(r, FLIGHT) {
            const ulong at = (ulong)(row + r) * n;
            const float m = mean[row + r]; /* always there: rstd stands for it */
            d[r] = dy[at];
            t[r] = (x[at] - (centered ? m : 0.0f)) * rstd[row + r];
        }
        EACH(r, FLIGHT) {
            gamma = fma(d[r], t[r], gamma);
            beta += d[r];
        }
    }
    for (; row < rows; row++) {
        const ulong at = (ulong)row * n;
        gamma = fma(dy[at], (x[at] - (centered ? mean[row] : 0.0f)) * rstd[row], gamma);
        beta += dy[at];
    }
    *dgamma += gamma;
    if (has_beta)
        *dbeta += beta;
}
CANON_INLINE void sum_column(__global const float *x, __global float *out, uint rows, uint n)
{
    float s = x[0], v[FLIGHT];
    uint row = 1;
    for (; row + FLIGHT <= rows; row += FLIGHT) {
        EACH(r, FLIGHT) v[r] = x[(ulong)(row + r) * n];
        EACH(r, FLIGHT) s += v[r];
    }
    for (; row < rows; row++)
        s += x[(ulong)row * n];
    *out += s;
}
#else
CANON_INLINE void add_16(float16 v, __global float *y, uint left)
{
    canon_store(canon_load(y, left) + v, y, left);
}

/* Columns of `count` vectors from `column`; `left` of them are there in the only vector where count is 1. */
CANON_INLINE void grad_columns(__global const float *x, __global const float *mean, __global const float *rstd,
                               __global const float *dy, __global float *dgamma, __global float *dbeta, uint rows,
                               uint n, uint column, uint left, uint has_beta, uint centered, const uint count)
{
    float16 gamma[VECTORS], beta[VECTORS];
    EACH(v, count) gamma[v] = beta[v] = (float16)(0.0f);
    for (uint row = 0; row < rows; row++) {
        const ulong at = (ulong)row * n + column;
        const ulong later = (ulong)min(row + AHEAD, rows - 1) * n + column;
        const float m = centered ? mean[row] : 0.0f, r = rstd[row];
        CANON_FETCH(x + later);
        CANON_FETCH(dy + later);
        EACH(v, count) {
            const float16 d = canon_load(dy + at + 16 * v, left);
            gamma[v] = fma(d, (canon_load(x + at + 16 * v, left) - m) * r, gamma[v]);
            beta[v] += d;
        }
    }
    EACH(v, count) add_16(gamma[v], dgamma + column + 16 * v, left);
    if (has_beta)
        EACH(v, count) add_16(beta[v], dbeta + column + 16 * v, left);
}

#endif

/* Of sums down columns: the rows of slice get_global_id(1), where rows have slices; else all. */
static uint slice_rows(uint slices, uint units, uint unit, uint *rows)
{
    const uint slice = get_global_id(1);
    const uint begin = slices == 0 ? 0 : canon_slice_begin(slices, units, unit, slice);
    *rows = slices == 0 ? *rows : canon_slice_begin(slices, units, unit, slice + 1) - begin;
    return begin;
}

__kernel void keel_layernorm_grad_columns(__global const float *x, __global const float *mean,
                                          __global const float *rstd, __global const float *dy,
                                          __global float *dgamma, __global float *dbeta, uint rows, uint n,
                                          uint has_beta, uint centered, uint slices, uint units, uint unit)
{
    const uint begin = slice_rows(slices, units, unit, &rows);
    x += (ulong)begin * n;
    dy += (ulong)begin * n;
    mean += begin;
    rstd += begin;
    dgamma += (ulong)get_global_id(1) * n;
    dbeta += (ulong)get_global_id(1) * n;
#if KEEL_ROW_ITEMS > 1
    const uint c = get_global_id(0);
    if (c < n)
        grad_column(x + c, mean, rstd, dy + c, dgamma + c, dbeta + c, rows, n, has_beta, centered);
#else
    uint c = get_global_id(0) * COLUMNS;
    if (c + COLUMNS <= n) {
        grad_columns(x, mean, rstd, dy, dgamma, dbeta, rows, n, c, 16, has_beta, centered, VECTORS);
        return;
    }
    for (; c < n; c += 16)
        grad_columns(x, mean, rstd, dy, dgamma, dbeta, rows, n, c, n - c, has_beta, centered, 1);
#endif
}

#if KEEL_ROW_ITEMS == 1
CANON_INLINE void sum_columns(__global const float *x, __global float *out, uint rows, uint n, uint left,
                              const uint count)
{
    float16 s[VECTORS];
    EACH(v, count) s[v] = canon_load(x + 16 * v, left);
    for (uint row = 1; row < rows; row++) {
        x += n;
        CANON_FETCH(x + (row + AHEAD < rows ? (ulong)AHEAD * n : 0));
        EACH(v, count) s[v] += canon_load(x + 16 * v, left);
    }
    EACH(v, count) add_16(s[v], out + 16 * v, left);
}

#endif

__kernel void keel_bias_grad(__global const float *x, __global float *out, uint rows, uint n, uint slices, uint units,
                             uint unit)
{
    x += (ulong)slice_rows(slices, units, unit, &rows) * n;
    out += (ulong)get_global_id(1) * n;
#if KEEL_ROW_ITEMS > 1
    const uint c = get_global_id(0);
    if (c < n)
        sum_column(x + c, out + c, rows, n);
#else
    uint c = get_global_id(0) * COLUMNS;
    if (c + COLUMNS <= n) {
        sum_columns(x + c, out + c, rows, n, 16, VECTORS);
        return;
    }
    for (; c < n; c += 16)
        sum_columns(x + c, out + c, rows, n, n - c, 1);
#endif
}
