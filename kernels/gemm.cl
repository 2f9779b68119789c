/* gemm.cl - C = op(A) op(B), with bias, accumulation and GELU at the end.
 *
 *     s = fma(a_0, b_0, 0); s = fma(a_i, b_i, s), i ascending to k - 1; with CHAIN begun at C, not 0
 *     s = s + bias[n]          (BIAS)
 *     s = C + s                (ACCUMULATE)
 *     s = residual + s         (RESIDUAL: `pre` is the residual)
 *     pre = s; s = gelu(s)     (PRE)
 *     C = s
 *     checksums = those of C's tiles (CHECKSUM; see below)
 *
 * Shapes: op(A) m x k, op(B) k x n, C and pre m x n, rows lda, ldb, ldc apart as stored; `batch` of
 * each, stride_a, stride_b, stride_c apart.
 *
 * A work-item (alone in its group) makes `row_block` x 48 elements of C. For each DEPTH of k it copies
 * its 48 columns of op(B) to `panel`, so that they lie one row after the other in the nearest cache, and
 * goes down the rows 8 at a time (gemm_tile.h). op(A) is read where it lies: each of its elements is
 * broadcast, so its layout does not matter.
 *
 * Tunables (tunables.c): DEPTH (k per panel), ROWS_MAX (largest row_block), KEEL_BY_LANE. They change no bit.
 * Tolerance against the host: none, equal bits. */

#ifndef KEEL_GEMM_DEPTH
#define KEEL_GEMM_DEPTH 64
#define KEEL_GEMM_ROWS  64
#endif
enum { DEPTH = KEEL_GEMM_DEPTH, ROWS_MAX = KEEL_GEMM_ROWS };
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, CHECKSUM = 32, CHAIN = 64 }; /* of `flags`, with those of gemm_tile.h */

/* Up to 8 rows, step_i apart; past the end the last one stands in. */
static void multiply_rows(__global const float *a, uint step_i, uint step_p, uint rows,
                          __local const float *panel, uint depth, bool first, __local float *sums)
{
#define ROW_PLACE(r) a + (ulong)min((uint)(r), rows - 1) * step_i,
    __global const float *const from[TILE_ROWS] = {EACH_TILE_ROW(ROW_PLACE)};
    tile_multiply(from, step_p, panel, depth, first, sums);
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

    if (flags & CHAIN)
        for (uint r = 0; r < rows; r += TILE_ROWS)
            tile_begin(c + corner + (ulong)r * ldc, rows - r, columns, ldc, sums + r * TILE_COLUMNS);
    for (uint p = 0; p < k; p += DEPTH) {
        const uint depth = min((uint)DEPTH, k - p);
        __global const float *from = b + p * b_step_p;
        if (!WHOLE(columns))
            panel_edge(from, b_step_p, b_step_j, columns, depth, panel);
        else if (flags & TRANSPOSE_B)
            panel_columns(from, ldb, depth, panel);
        else
            panel_rows(from, ldb, depth, panel);
        for (uint r = 0; r < rows; r += TILE_ROWS)
            multiply_rows(a + (ulong)r * step_i + (ulong)p * step_p, step_i, step_p, rows - r, panel, depth,
                          p == 0 && !(flags & CHAIN), sums + r * TILE_COLUMNS);
    }
    const ulong tiles_down = (m + TILE_ROWS - 1) / TILE_ROWS;
    for (uint r = 0; r < rows; r += TILE_ROWS) {
        const ulong at = corner + (ulong)r * ldc;
        const uint high = min((uint)TILE_ROWS, rows - r);
        __local const float *tile = sums + r * TILE_COLUMNS;
        uint sum = WHOLE(columns)
                       ? tile_finish(tile, high, c + at, pre + at, ldc, bias + j, flags)
                       : tile_finish_edge(tile, high, columns, c + at, pre + at, ldc, bias + j, flags);
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
