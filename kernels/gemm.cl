/* gemm.cl - C = op(A) op(B), with bias, accumulation and GELU at the end.
 *
 *     s = fma(a_0, b_0, 0); s = fma(a_i, b_i, s), i ascending to k - 1
 *     s = s + bias[n]          (BIAS)
 *     s = C + s                (ACCUMULATE)
 *     pre = s; s = gelu(s)     (PRE)
 *     C = s
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
 * Tunables: DEPTH (k per panel), ROWS_MAX (largest row_block); gemm.c knows the latter. Both follow
 * from the local memory of the device, and change no bit. Tolerance against the host: none, equal bits. */

#ifdef KEEL_LARGE_LOCAL
enum { DEPTH = 256, ROWS_MAX = 256 };
#else
enum { DEPTH = 64, ROWS_MAX = 64 };
#endif
enum { TILE_ROWS = 8, TILE_COLUMNS = 48 };
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, ACCUMULATE = 4, BIAS = 8, PRE = 16 };

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
#define EACH_16(X)                                                                                           \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(a) X(b) X(c) X(d) X(e) X(f)

#define LOAD_ROW(r) float16 v##r = vload16(0, b + (ulong)(0x##r) * ldb);
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
    float16 zero = (float16)(0.0f);
    EACH_TILE_ROW(ROW_POINTER)
    EACH_TILE_ROW(ROW_BEGIN)
    for (uint p = 0; p < depth; p++) {
        float16 b0 = vload16(0, panel), b1 = vload16(1, panel), b2 = vload16(2, panel);
        EACH_TILE_ROW(ROW_FMA)
        panel += TILE_COLUMNS;
    }
    EACH_TILE_ROW(ROW_END)
}

static void finish_row(__local const float *sums, __global float *c, __global float *pre,
                       __global const float *bias, uint flags)
{
    for (uint v = 0; v < TILE_COLUMNS / 16; v++) {
        float16 s = vload16(v, sums);
        if (flags & BIAS)
            s = s + vload16(v, bias);
        if (flags & ACCUMULATE)
            s = vload16(v, c) + s;
        if (flags & PRE) {
            vstore16(s, v, pre);
            s = canon_gelu_x16(s);
        }
        vstore16(s, v, c);
    }
}

static void finish_edge(__local const float *sums, uint columns, __global float *c, __global float *pre,
                        __global const float *bias, uint flags)
{
    for (uint j = 0; j < columns; j++) {
        float s = sums[j];
        if (flags & BIAS)
            s = s + bias[j];
        if (flags & ACCUMULATE)
            s = c[j] + s;
        if (flags & PRE) {
            pre[j] = s;
            s = canon_gelu(s);
        }
        c[j] = s;
    }
}

__kernel void keel_gemm(__global const float *a, __global const float *b, __global float *c,
                        __global const float *bias, __global float *pre, uint m, uint n, uint k, uint lda,
                        uint ldb, uint ldc, uint flags, uint row_block, ulong stride_a, ulong stride_b,
                        ulong stride_c)
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
        if (columns < TILE_COLUMNS)
            pack_edge(from, b_step_p, b_step_j, columns, depth, panel);
        else if (flags & TRANSPOSE_B)
            pack_columns(from, ldb, depth, panel);
        else
            pack_rows(from, ldb, depth, panel);
        for (uint r = 0; r < rows; r += TILE_ROWS)
            multiply_tile(a + (ulong)r * step_i + (ulong)p * step_p, step_i, step_p, rows - r, panel, depth,
                          p == 0, sums + r * TILE_COLUMNS);
    }
    for (uint r = 0; r < rows; r++) {
        const ulong at = corner + (ulong)r * ldc;
        if (columns == TILE_COLUMNS)
            finish_row(sums + r * TILE_COLUMNS, c + at, pre + at, bias + j, flags);
        else
            finish_edge(sums + r * TILE_COLUMNS, columns, c + at, pre + at, bias + j, flags);
    }
}
