/* gemm.cl - C = op(A) op(B), with bias, accumulation and GELU at the end.
 *
 *     s = fma(a_0, b_0, 0); s = fma(a_i, b_i, s), i ascending to k - 1
 *     s = s + bias[n]          (BIAS)
 *     s = C + s                (ACCUMULATE)
 *     pre = s; s = gelu(s)     (PRE)
 *     C = s
 *     checksums = those of C's tiles (CHECKSUM; see below)
 *
 * Shapes: op(A) m x k, op(B) k x n, C and pre m x n, rows lda, ldb, ldc apart as stored; `batch` of
 * each, stride_a, stride_b, stride_c apart.
 *
 * A work-item (alone in its group) makes `row_block` x 48 elements of C. For each DEPTH of k it copies
 * its 48 columns of op(B) to `panel`, so that they lie one row after the other in the nearest cache, and
 * goes down the rows 8 at a time with 24 float16 sums in registers. Between depths the sums lie in
 * `sums` unchanged: they are the same floats, so an element's chain is the same at every tiling.
 * op(A) is read where it lies: each of its elements is broadcast, so its layout does not matter.
 *
 * Tunables (tunables.c): DEPTH (k per panel), ROWS_MAX (largest row_block), KEEL_BY_LANE. They change no bit.
 * Tolerance against the host: none, equal bits. */

#ifndef KEEL_GEMM_DEPTH
#define KEEL_GEMM_DEPTH 64
#define KEEL_GEMM_ROWS  64
#endif
enum { DEPTH = KEEL_GEMM_DEPTH, ROWS_MAX = KEEL_GEMM_ROWS };
/* Whether tiles of all columns go by vectors; else they go as those of fewer columns do. */
#define WHOLE(columns) (KEEL_BY_LANE < 2 && (columns) == TILE_COLUMNS)
enum { TILE_ROWS = 8, TILE_COLUMNS = 48 };
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, ACCUMULATE = 4, BIAS = 8, PRE = 16, CHECKSUM = 32 };

#define INTERLEAVE(x, y, h)                                                                                  \
    (float16)(x.h.s0, y.h.s0, x.h.s1, y.h.s1, x.h.s2, y.h.s2, x.h.s3, y.h.s3, x.h.s4, y.h.s4, x.h.s5,        \
              y.h.s5, x.h.s6, y.h.s6, x.h.s7, y.h.s7)
/* One of the four shuffles that transpose 16 rows of 16: rows i and i + 8 of s give 2i and 2i + 1 of t. */
#define SHUFFLE_PAIR(t0, t1, x, y)                                                                           \
    float16 t0 = INTERLEAVE(x, y, lo);                                                                       \
    float16 t1 = INTERLEAVE(x, y, hi);
#define SHUFFLE(t, s)                                                                                        \
    SHUFFLE_PAIR(t##0, t##1, s##0, s##8)                                                                     \
    SHUFFLE_PAIR(t##2, t##3, s##1, s##9)                                                                     \
    SHUFFLE_PAIR(t##4, t##5, s##2, s##a)                                                                     \
    SHUFFLE_PAIR(t##6, t##7, s##3, s##b)                                                                     \
    SHUFFLE_PAIR(t##8, t##9, s##4, s##c)                                                                     \
    SHUFFLE_PAIR(t##a, t##b, s##5, s##d)                                                                     \
    SHUFFLE_PAIR(t##c, t##d, s##6, s##e)                                                                     \
    SHUFFLE_PAIR(t##e, t##f, s##7, s##f)
#define EACH_16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(a) X(b) X(c) X(d) X(e) X(f)

#define LOAD_ROW(r)  float16 v##r = vload16(0, b + (ulong)(0x##r) * ldb);
#define STORE_ROW(r) vstore16(z##r, 0, panel + (0x##r) * TILE_COLUMNS);
static inline void transpose_16x16(__global const float *b, uint ldb, __local float *panel)
{
    EACH_16(LOAD_ROW)
    SHUFFLE(w, v)
    SHUFFLE(x, w)
    SHUFFLE(y, x)
    SHUFFLE(z, y)
    EACH_16(STORE_ROW)
}

static void pack_rows(__global const float *b, uint ldb, uint depth, __local float *panel)
{
    for (uint p = 0; p < depth; p++) {
        float16 x = vload16(0, b), y = vload16(1, b), z = vload16(2, b);
        vstore16(x, 0, panel);
        vstore16(y, 1, panel);
        vstore16(z, 2, panel);
        b += ldb;
        panel += TILE_COLUMNS;
    }
}

static void pack_columns(__global const float *b, uint ldb, uint depth, __local float *panel)
{
    uint whole = depth & ~15u;
    for (uint j = 0; j < TILE_COLUMNS; j += 16)
        for (uint p = 0; p < whole; p += 16)
            transpose_16x16(b + (ulong)j * ldb + p, ldb, panel + p * TILE_COLUMNS + j);
    for (uint p = whole; p < depth; p++)
        for (uint j = 0; j < TILE_COLUMNS; j++)
            panel[p * TILE_COLUMNS + j] = b[(ulong)j * ldb + p];
}

/* The last columns, fewer than 48: zero for what is missing. */
static void pack_edge(__global const float *b, ulong step_p, ulong step_j, uint columns, uint depth,
                      __local float *panel)
{
    for (uint p = 0; p < depth; p++)
        for (uint j = 0; j < TILE_COLUMNS; j++)
            panel[p * TILE_COLUMNS + j] = j < columns ? b[p * step_p + j * step_j] : 0.0f;
}

#define EACH_TILE_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
/* Rows past the end repeat the last one; their sums are never stored in C. */
#define ROW_POINTER(r) __global const float *a##r = a + (ulong)min((uint)(r), rows - 1) * step_i;
#define ROW_BEGIN(r)                                                                                         \
    float16 s##r##0 = first ? zero : vload16(3 * r, sums);                                                   \
    float16 s##r##1 = first ? zero : vload16(3 * r + 1, sums);                                               \
    float16 s##r##2 = first ? zero : vload16(3 * r + 2, sums);
#define ROW_FMA(r)                                                                                           \
    {                                                                                                        \
        float16 x = (float16)(*a##r);                                                                        \
        s##r##0 = fma(x, b0, s##r##0);                                                                       \
        s##r##1 = fma(x, b1, s##r##1);                                                                       \
        s##r##2 = fma(x, b2, s##r##2);                                                                       \
        a##r += step_p;                                                                                      \
    }
#define ROW_END(r)                                                                                           \
    vstore16(s##r##0, 3 * r, sums);                                                                          \
    vstore16(s##r##1, 3 * r + 1, sums);                                                                      \
    vstore16(s##r##2, 3 * r + 2, sums);

/* 8 rows, `depth` of k. */
static void multiply_tile(__global const float *a, uint step_i, uint step_p, uint rows,
                          __local const float *panel, uint depth, bool first, __local float *sums)
{
#if KEEL_BY_LANE >= 2
    for (uint at = 0; at < min(rows, (uint)TILE_ROWS) * 3; at++) {
        __global const float *x = a + (ulong)(at / 3) * step_i;
        float16 s = first ? (float16)(0.0f) : vload16(at, sums);
        for (uint p = 0; p < depth; p++)
            s = canon_wide_fma((float16)(x[(ulong)p * step_p]), vload16(3 * p + at % 3, panel), s);
        vstore16(s, at, sums);
    }
#else
    float16 zero = (float16)(0.0f);
    EACH_TILE_ROW(ROW_POINTER)
    EACH_TILE_ROW(ROW_BEGIN)
    for (uint p = 0; p < depth; p++) {
        float16 b0 = vload16(0, panel), b1 = vload16(1, panel), b2 = vload16(2, panel);
        EACH_TILE_ROW(ROW_FMA)
        panel += TILE_COLUMNS;
    }
    EACH_TILE_ROW(ROW_END)
#endif
}

/* The checksum of a tile of 8 x 48 elements: down each column h = rotate(h, 5) + bits, from 0; then the sum
 * over columns j of h_j (2j + 1), all modulo 2^32. Each step is a bijection of h, and so is a product with an
 * odd number: whatever changes in one column of a tile, by any number of bits, changes the checksum. */
enum { CHECKSUM_TURN = 5 };

static uint16 checksum_weights(uint v)
{
    return (uint16)(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31) + (uint16)(32 * v);
}

static uint checksum_fold(uint16 h0, uint16 h1, uint16 h2)
{
    uint16 h = h0 * checksum_weights(0) + h1 * checksum_weights(1) + h2 * checksum_weights(2);
#if KEEL_BY_LANE >= 1
    uint lanes[16], sum = 0;
    vstore16(h, 0, lanes);
    for (int l = 0; l < 16; l++)
        sum += lanes[l];
    return sum;
#else
    uint8 a = h.lo + h.hi;
    uint4 b = a.lo + a.hi;
    return b.x + b.y + b.z + b.w;
#endif
}

static uint16 finish_16(__local const float *sums, __global float *c, __global float *pre,
                        __global const float *bias, uint flags)
{
    float16 s = vload16(0, sums);
    if (flags & BIAS)
        s = s + vload16(0, bias);
    if (flags & ACCUMULATE)
        s = vload16(0, c) + s;
    if (flags & PRE) {
        vstore16(s, 0, pre);
        s = canon_gelu_x16(s);
    }
    vstore16(s, 0, c);
    return as_uint16(s);
}

/* Up to 8 rows of 48 columns; returns the tile's checksum. */
static uint finish_tile(__local const float *sums, uint rows, __global float *c, __global float *pre,
                        uint ldc, __global const float *bias, uint flags)
{
    uint16 h0 = (uint16)(0), h1 = h0, h2 = h0;
    for (uint r = 0; r < rows; r++) {
        const ulong at = (ulong)r * ldc;
        __local const float *s = sums + r * TILE_COLUMNS;
        h0 = rotate(h0, (uint16)(CHECKSUM_TURN)) + finish_16(s, c + at, pre + at, bias, flags);
        h1 = rotate(h1, (uint16)(CHECKSUM_TURN)) +
             finish_16(s + 16, c + at + 16, pre + at + 16, bias + 16, flags);
        h2 = rotate(h2, (uint16)(CHECKSUM_TURN)) +
             finish_16(s + 32, c + at + 32, pre + at + 32, bias + 32, flags);
    }
    return checksum_fold(h0, h1, h2);
}

/* The same for the last columns, fewer than 48. */
static uint finish_edge(__local const float *sums, uint rows, uint columns, __global float *c,
                        __global float *pre, uint ldc, __global const float *bias, uint flags)
{
    uint sum = 0;
    for (uint j = 0; j < columns; j++) {
        uint h = 0;
        for (uint r = 0; r < rows; r++) {
            const ulong at = (ulong)r * ldc + j;
            float s = sums[r * TILE_COLUMNS + j];
            if (flags & BIAS)
                s = s + bias[j];
            if (flags & ACCUMULATE)
                s = c[at] + s;
            if (flags & PRE) {
                pre[at] = s;
                s = canon_gelu(s);
            }
            c[at] = s;
            h = rotate(h, (uint)CHECKSUM_TURN) + as_uint(s);
        }
        sum += h * (2 * j + 1);
    }
    return sum;
}

__kernel void keel_gemm(__global const float *a, __global const float *b, __global float *c,
                        __global const float *bias, __global float *pre, uint m, uint n, uint k, uint lda,
                        uint ldb, uint ldc, uint flags, uint row_block, ulong stride_a, ulong stride_b,
                        ulong stride_c, __global uint *checksums)
{
    __local float panel[DEPTH * TILE_COLUMNS];
    __local float sums[ROWS_MAX * TILE_COLUMNS];
    const uint j = get_group_id(0) * TILE_COLUMNS, i = get_group_id(1) * row_block;
    const ulong batch = get_group_id(2);
    const uint rows = min(row_block, m - i), columns = min((uint)TILE_COLUMNS, n - j);
    const uint step_i = flags & TRANSPOSE_A ? 1 : lda, step_p = flags & TRANSPOSE_A ? lda : 1;
    const ulong b_step_p = flags & TRANSPOSE_B ? 1 : ldb, b_step_j = flags & TRANSPOSE_B ? ldb : 1;
    const ulong corner = batch * stride_c + (ulong)i * ldc + j;
    a += batch * stride_a + (ulong)i * step_i;
    b += batch * stride_b + j * b_step_j;

    for (uint p = 0; p < k; p += DEPTH) {
        const uint depth = min((uint)DEPTH, k - p);
        __global const float *from = b + p * b_step_p;
        if (!WHOLE(columns))
            pack_edge(from, b_step_p, b_step_j, columns, depth, panel);
        else if (flags & TRANSPOSE_B)
            pack_columns(from, ldb, depth, panel);
        else
            pack_rows(from, ldb, depth, panel);
        for (uint r = 0; r < rows; r += TILE_ROWS)
            multiply_tile(a + (ulong)r * step_i + (ulong)p * step_p, step_i, step_p, rows - r, panel, depth,
                          p == 0, sums + r * TILE_COLUMNS);
    }
    const ulong tiles_down = (m + TILE_ROWS - 1) / TILE_ROWS;
    for (uint r = 0; r < rows; r += TILE_ROWS) {
        const ulong at = corner + (ulong)r * ldc;
        const uint high = min((uint)TILE_ROWS, rows - r);
        __local const float *tile = sums + r * TILE_COLUMNS;
        uint sum = WHOLE(columns)
                       ? finish_tile(tile, high, c + at, pre + at, ldc, bias + j, flags)
                       : finish_edge(tile, high, columns, c + at, pre + at, ldc, bias + j, flags);
        if (flags & CHECKSUM)
            checksums[(batch * tiles_down + (i + r) / TILE_ROWS) * get_num_groups(0) + get_group_id(0)] = sum;
    }
}

static uint checksum_tile(__global const float *c, uint rows, uint ldc)
{
    uint16 h0 = (uint16)(0), h1 = h0, h2 = h0;
    for (uint r = 0; r < rows; r++) {
        h0 = rotate(h0, (uint16)(CHECKSUM_TURN)) + as_uint16(vload16(0, c));
        h1 = rotate(h1, (uint16)(CHECKSUM_TURN)) + as_uint16(vload16(1, c));
        h2 = rotate(h2, (uint16)(CHECKSUM_TURN)) + as_uint16(vload16(2, c));
        c += ldc;
    }
    return checksum_fold(h0, h1, h2);
}

static uint checksum_edge(__global const float *c, uint rows, uint columns, uint ldc)
{
    uint sum = 0;
    for (uint j = 0; j < columns; j++) {
        uint h = 0;
        for (uint r = 0; r < rows; r++)
            h = rotate(h, (uint)CHECKSUM_TURN) + as_uint(c[(ulong)r * ldc + j]);
        sum += h * (2 * j + 1);
    }
    return sum;
}

/* A work-item reads tiles_per_item tiles, side by side, of C[batch] (m x n, rows ldc apart) and compares
 * their checksums. report[0] counts tiles that differ, report[1] becomes the lowest of their numbers. */
__kernel void keel_gemm_check(__global const float *c, __global const uint *checksums, __global uint *report,
                              uint m, uint n, uint ldc, uint tiles_per_item, ulong stride_c, uint report_index)
{
    const uint row = get_global_id(1), batch = get_global_id(2);
    const uint tiles_across = (n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const uint tiles_down = (m + TILE_ROWS - 1) / TILE_ROWS;
    const uint first = get_global_id(0) * tiles_per_item;
    const uint last = min(first + tiles_per_item, tiles_across);
    const uint rows = min((uint)TILE_ROWS, m - row * TILE_ROWS);
    report += 2 * report_index;
    c += batch * stride_c + (ulong)row * TILE_ROWS * ldc;
    for (uint t = first; t < last; t++) {
        const uint columns = min((uint)TILE_COLUMNS, n - t * TILE_COLUMNS);
        const uint number = (batch * tiles_down + row) * tiles_across + t;
        __global const float *tile = c + (ulong)t * TILE_COLUMNS;
        const uint sum = WHOLE(columns) ? checksum_tile(tile, rows, ldc)
                                                 : checksum_edge(tile, rows, columns, ldc);
        if (sum != checksums[number]) {
            atomic_inc(report);
            atomic_min(report + 1, number);
        }
    }
}
