/* gemm_tile.h - panels and tiles: what kernels that multiply matrices are made of (OpenCL C only; the
 * Makefile puts it before those .cl files that sources.mk names).
 *
 * A group makes a strip of C, 48 columns wide. It copies some rows of B (k ascending) to a panel in local
 * memory, 48 floats a row, by panel_rows, panel_columns or panel_edge, then calls tile_multiply for each
 * 8 rows of A, which adds to sums of 8 x 48 in local memory; after the last panel tile_finish
 * (tile_finish_edge for fewer columns) turns sums into C. Rows of A are given by a pointer each, so that they
 * may lie anywhere: a product's rows, or the pixels that a convolution's window meets. An element of C is one
 * chain of fma, k ascending: sums are stored and loaded as the floats that they are, so panels of any depth
 * give the same bits.
 *
 * Owns the arithmetic and the checksums of tiles. Leaves to others: which rows and columns, and local memory.
 */

/* Whether strips of so many columns go by vectors; else they go as those of fewer than 48 do. */
#define WHOLE(columns) (KEEL_BY_LANE < 2 && (columns) == TILE_COLUMNS)
enum { TILE_ROWS = 8, TILE_COLUMNS = 48 };
/* What tile_finish does with the sums, in `flags`. */
enum { ACCUMULATE = 4, BIAS = 8, PRE = 16, RESIDUAL = 128 };

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

static void panel_rows(__global const float *b, uint ldb, uint depth, __local float *panel)
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

static void panel_columns(__global const float *b, uint ldb, uint depth, __local float *panel)
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
static void panel_edge(__global const float *b, ulong step_p, ulong step_j, uint columns, uint depth,
                       __local float *panel)
{
    for (uint p = 0; p < depth; p++)
        for (uint j = 0; j < TILE_COLUMNS; j++)
            panel[p * TILE_COLUMNS + j] = j < columns ? b[p * step_p + j * step_j] : 0.0f;
}

#define EACH_TILE_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define ROW_BEGIN(r)                                                                                         \
    float16 s##r##0 = first ? zero : vload16(3 * r, sums);                                                   \
    float16 s##r##1 = first ? zero : vload16(3 * r + 1, sums);                                               \
    float16 s##r##2 = first ? zero : vload16(3 * r + 2, sums);
#define ROW_POINTER(r) __global const float *a##r = a[r];
#define ROW_FMA(r)                                                                                           \
    {                                                                                                        \
        float16 x = (float16)(*a##r);                                                                        \
        s##r##0 = fma(x, b0, s##r##0);                                                                       \
        s##r##1 = fma(x, b1, s##r##1);                                                                       \
        s##r##2 = fma(x, b2, s##r##2);                                                                       \
        a##r += step;                                                                                        \
    }
#define ROW_END(r)                                                                                           \
    vstore16(s##r##0, 3 * r, sums);                                                                          \
    vstore16(s##r##1, 3 * r + 1, sums);                                                                      \
    vstore16(s##r##2, 3 * r + 2, sums);

/* sums (8 x 48) of 8 rows: s = fma(a[r][p * step], panel[p][j], s), p ascending to depth - 1. `first`: sums
 * begin at +0 instead of what lies there. Where fewer rows are wanted, repeat one: what nobody reads. */
static void tile_multiply(__global const float *const a[TILE_ROWS], uint step, __local const float *panel,
                          uint depth, bool first, __local float *sums)
{
#if KEEL_BY_LANE >= 2
    for (uint at = 0; at < TILE_ROWS * 3; at++) {
        __global const float *x = a[at / 3];
        float16 s = first ? (float16)(0.0f) : vload16(at, sums);
        for (uint p = 0; p < depth; p++)
            s = canon_wide_fma((float16)(x[(ulong)p * step]), vload16(3 * p + at % 3, panel), s);
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

/* Sums that begin with C, not zero; what lies outside of it repeats its last row and column. */
static void tile_begin(__global const float *c, uint rows, uint columns, uint ldc, __local float *sums)
{
    for (uint r = 0; r < TILE_ROWS; r++)
        for (uint j = 0; j < TILE_COLUMNS; j++)
            sums[r * TILE_COLUMNS + j] = c[(ulong)min(r, rows - 1) * ldc + min(j, columns - 1)];
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
    if (flags & RESIDUAL)
        s = vload16(0, pre) + s;
    if (flags & PRE) {
        vstore16(s, 0, pre);
        s = canon_gelu_x16(s);
    }
    vstore16(s, 0, c);
    return as_uint16(s);
}

/* Up to 8 rows of 48 columns; returns the tile's checksum. */
static uint tile_finish(__local const float *sums, uint rows, __global float *c, __global float *pre,
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
static uint tile_finish_edge(__local const float *sums, uint rows, uint columns, __global float *c,
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
            if (flags & RESIDUAL)
                s = pre[at] + s;
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
