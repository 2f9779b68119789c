/* gemm.cl - C = op(A) op(B), with bias, accumulation and GELU at the end.
 *
 *     s = fma(a_0, b_0, 0); s = fma(a_i, b_i, s), i ascending to k - 1; with CHAIN begun at C, not 0
 *     s = s + bias[n]          (BIAS)
 *     s = C + s                (ACCUMULATE)
 *     s = residual + s         (RESIDUAL: `pre` is the residual)
 *     pre = s; s = gelu(pre)   (PRE)
 *     C = s
 *     checksums = those of C's tiles (CHECKSUM; see gemm_tile.h)
 *
 * Shapes: op(A) m x k, op(B) k x n, C and pre m x n, rows lda, ldb, ldc apart as stored; `batch` of
 * each, stride_a, stride_b, stride_c apart. Types of A, B, and C with pre: enum keel_dtype in `flags`; the
 * arithmetic is that of floats.
 *
 * Grouped (groups > 0): the rows of A that belong to group g are offsets[g] to offsets[g + 1] - 1, and B and bias
 * are those of the group, stride_b and n apart; C's rows from offsets[groups] on become 0 (left as they are
 * with ACCUMULATE). With OVER_K it is k that is cut so: C of group g, stride_c apart, is the product of the rows
 * of A and B, as stored, that belong to it; an empty group gives 0 (C as it is with ACCUMULATE).
 *
 * A work-item (alone in its group) makes `row_block` rows and `strips` times 48 columns of C. For each DEPTH of
 * k it copies its rows of op(A) to `blocks`, then for each strip 48 columns of op(B) to `panel`, so that
 * both lie in the nearest caches in the order of their use, and multiplies (gemm_tile.h). Meanwhile
 * it asks for the lines of the next panel, of the next rows, and of C. Between depths the sums lie in `sums`.
 *
 * Tunables (tunables.c): DEPTH (k per panel), ROWS_MAX (largest row_block), STRIPS_MAX (most strips),
 * KEEL_BY_LANE. They change no bit. Tolerance against the host: none, equal bits. */

#ifndef KEEL_GEMM_DEPTH
#define KEEL_GEMM_DEPTH  64
#define KEEL_GEMM_ROWS   64
#define KEEL_GEMM_STRIPS 1
#endif
enum { DEPTH = KEEL_GEMM_DEPTH, ROWS_MAX = KEEL_GEMM_ROWS, STRIPS_MAX = KEEL_GEMM_STRIPS };
/* Of `flags`, with those of gemm_tile.h; types are two bits each. */
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, CHECKSUM = 32, CHAIN = 64, OVER_K = 16384 };
enum { A_TYPE_AT = 8, B_TYPE_AT = 10, C_TYPE_AT = 12, TYPE_MASK = 3 };

/* Rows whose blocks lie in local memory at once: all of a group where there is room. The odd floats keep the
 * same k of several blocks out of one set of a cache. */
#ifdef KEEL_LARGE_LOCAL
enum { PACKED_ROWS = ROWS_MAX };
#else
enum { PACKED_ROWS = 16 };
#endif
enum { BLOCK_FLOATS = DEPTH * TILE_ROWS + 16 };

/* op(X), element (k, j) as tile_pack_a and tile_pack_b want it. */
struct operand {
    __global const void *x;
    ulong at;
    uint row, type;
    bool down;
};

static inline ulong operand_at(const struct operand *o, ulong p, ulong j)
{
    return o->at + (o->down ? j * o->row + p : p * o->row + j);
}

/* The lines of `columns` from j, `depth` of k from p. */
static struct tile_fetch operand_fetch(const struct operand *o, uint p, uint depth, uint j, uint columns)
{
    return tile_fetch_begin(o->x, operand_at(o, p, j), o->row, o->type, o->down ? columns : depth,
                            o->down ? depth : columns);
}

/* The part of a product that a work-item has. */
struct part {
    struct operand a, b;
    struct tile_end end;
    ulong corner; /* of C */
    uint rows, columns, k;
    __global uint *checksums; /* that of the first tile */
    uint tiles_across;
};

/* Sums of one depth of one strip, and C after the last. */
CANON_INLINE void strip_multiply(const struct part *g, uint p, uint depth, uint j, __local float *blocks,
                           __local const float *panel, __local float *sums, struct tile_soon *soon)
{
    const bool last = p + depth == g->k, chain = p == 0 && (g->end.flags & CHAIN);
    const bool pack_again = PACKED_ROWS < ROWS_MAX;
    const uint columns = min((uint)TILE_COLUMNS, g->columns - j);
    struct tile_end end = g->end;
    end.bias += j;
    for (uint r = 0; r < g->rows; r += TILE_ROWS) {
        const uint high = min((uint)TILE_ROWS, g->rows - r);
        const ulong at = g->corner + (ulong)r * end.ldc + j;
        if (r % PACKED_ROWS == 0 && (j == 0 || pack_again))
            tile_pack_a(g->a.x, operand_at(&g->a, p, r), g->a.row, g->a.down, g->a.type,
                        min((uint)PACKED_ROWS, g->rows - r), depth, blocks, BLOCK_FLOATS);
        if (chain)
            tile_begin(end.c, at, end.type, high, columns, end.ldc, sums);
        if (last && r + TILE_ROWS < g->rows)
            soon->c = tile_fetch_begin(end.c, at + TILE_ROWS * end.ldc, end.ldc, end.type, TILE_ROWS, columns);
        tile_multiply(blocks + r % PACKED_ROWS / TILE_ROWS * BLOCK_FLOATS, panel, depth, p == 0 && !chain, sums,
                      soon);
        if (last) {
            const uint sum = tile_finish(sums, high, columns, &end, at);
            if (end.flags & CHECKSUM)
                g->checksums[(ulong)(r / TILE_ROWS) * g->tiles_across + j / TILE_COLUMNS] = sum;
        }
        if (depth < g->k)
            sums += TILE_ROWS * TILE_COLUMNS;
    }
}

CANON_INLINE void part_multiply(const struct part *g, __local float *blocks, __local float *panel, __local float *sums)
{
    for (uint p = 0; p == 0 || p < g->k; p += DEPTH) {
        const uint depth = min((uint)DEPTH, g->k - p), left = g->k - p - depth;
        struct tile_soon soon = {{0}, {0}, {0}};
        if (left > 0)
            soon.a = operand_fetch(&g->a, p + depth, min((uint)DEPTH, left), 0, g->rows);
        for (uint j = 0; j < g->columns; j += TILE_COLUMNS) {
            const uint next = j + TILE_COLUMNS;
            tile_pack_b(g->b.x, operand_at(&g->b, p, j), g->b.row, g->b.down, g->b.type,
                        min((uint)TILE_COLUMNS, g->columns - j), depth, panel);
            soon.b.rows = 0;
            if (next < g->columns)
                soon.b = operand_fetch(&g->b, p, depth, next, min((uint)TILE_COLUMNS, g->columns - next));
            else if (left > 0)
                soon.b = operand_fetch(&g->b, p + depth, min((uint)DEPTH, left), 0,
                                       min((uint)TILE_COLUMNS, g->columns));
            strip_multiply(g, p, depth, j, blocks, panel,
                           depth < g->k ? sums + (ulong)j / TILE_COLUMNS * ROWS_MAX * TILE_COLUMNS : sums, &soon);
        }
    }
}

static uint group_begin(__global const int *offsets, uint groups, uint group, uint end)
{
    return group < groups ? min((uint)max(offsets[group], 0), end) : end;
}

__kernel void keel_gemm(__global const void *a, __global const void *b, __global void *c,
                        __global const float *bias, __global void *pre, uint m, uint n, uint k, uint lda,
                        uint ldb, uint ldc, uint flags, uint row_block, ulong stride_a, ulong stride_b,
                        ulong stride_c, __global uint *checksums, uint strips, __global const int *offsets,
                        uint groups)
{
    __local float panel[DEPTH * TILE_COLUMNS] __attribute__((aligned(64)));
    __local float sums[STRIPS_MAX * ROWS_MAX * TILE_COLUMNS] __attribute__((aligned(64)));
    __local float blocks[PACKED_ROWS / TILE_ROWS * BLOCK_FLOATS] __attribute__((aligned(64)));
    const uint j = get_group_id(0) * TILE_COLUMNS * strips, batch = get_group_id(2);
    uint row = get_group_id(1) * row_block, group = batch, first_row = 0, rows = m, first_k = 0;
    if (groups > 0 && (flags & OVER_K)) {
        first_k = group_begin(offsets, groups + 1, group, k);
        k = max(group_begin(offsets, groups + 1, group + 1, k), first_k) - first_k;
    } else if (groups > 0) {
        /* The row-th row of whole blocks belongs to the group whose blocks reach so far. */
        for (group = 0;; group++) {
            first_row = group_begin(offsets, groups + 1, group, m);
            rows = max(group_begin(offsets, groups + 1, group + 1, m), first_row) - first_row;
            const uint whole = (rows + row_block - 1) / row_block * row_block;
            if (row < whole)
                break;
            if (group == groups)
                return;
            row -= whole;
        }
        if (group == groups) {
            k = 0;
            flags &= ~(uint)(BIAS | RESIDUAL);
        }
    }
    if (k == 0 && (flags & ACCUMULATE))
        return;
    const uint a_type = flags >> A_TYPE_AT & TYPE_MASK, b_type = flags >> B_TYPE_AT & TYPE_MASK;
    const ulong tiles_across = (n + TILE_COLUMNS - 1) / TILE_COLUMNS, tiles_down = (m + TILE_ROWS - 1) / TILE_ROWS;
    struct part part = {.a = {.x = a, .row = lda, .type = a_type, .down = !(flags & TRANSPOSE_A)},
                        .b = {.x = b, .row = ldb, .type = b_type, .down = flags & TRANSPOSE_B},
                        .rows = min(row_block, rows - row),
                        .columns = min(strips * TILE_COLUMNS, n - j),
                        .k = k,
                        .tiles_across = (uint)tiles_across};
    part.a.at = groups > 0 ? 0 : batch * stride_a;
    part.a.at = operand_at(&part.a, first_k, first_row + row);
    part.b.at = (flags & OVER_K ? 0 : group) * stride_b;
    part.b.at = operand_at(&part.b, first_k, j);
    part.end = (struct tile_end){.c = c,
                                 .pre = pre,
                                 .bias = bias + (groups > 0 ? (ulong)group * n : 0) + j,
                                 .type = flags >> C_TYPE_AT & TYPE_MASK,
                                 .ldc = ldc,
                                 .flags = flags};
    part.corner = batch * stride_c + (ulong)(first_row + row) * ldc + j;
    part.checksums = checksums + (batch * tiles_down + row / TILE_ROWS) * tiles_across + j / TILE_COLUMNS;
    part_multiply(&part, blocks, panel, sums);
}

static uint checksum_tile(__global const void *c, ulong at, uint type, uint rows, uint columns, uint ldc)
{
    if (WHOLE(columns)) {
        uint16 h[3] = {(uint16)(0), (uint16)(0), (uint16)(0)};
        for (uint r = 0; r < rows; r++, at += ldc)
            for (uint v = 0; v < 3; v++)
                h[v] = rotate(h[v], (uint16)(CHECKSUM_TURN)) +
                       (type == CANON_F32
                            ? vload16(0, (__global const uint *)c + at + 16 * v)
                            : convert_uint16(vload16(0, (__global const ushort *)c + at + 16 * v)));
        return checksum_fold(h[0], h[1], h[2]);
    }
    uint sum = 0;
    for (uint j = 0; j < columns; j++) {
        uint h = 0;
        for (uint r = 0; r < rows; r++) {
            const ulong e = at + (ulong)r * ldc + j;
            h = rotate(h, (uint)CHECKSUM_TURN) +
                (type == CANON_F32 ? ((__global const uint *)c)[e] : ((__global const ushort *)c)[e]);
        }
        sum += h * (2 * j + 1);
    }
    return sum;
}

/* A work-item reads tiles_per_item tiles, side by side, of C[batch] (m x n, rows ldc apart) and compares
 * their checksums. report[0] counts tiles that differ, report[1] becomes the lowest of their numbers. */
__kernel void keel_gemm_check(__global const void *c, __global const uint *checksums, __global uint *report,
                              uint m, uint n, uint ldc, uint tiles_per_item, ulong stride_c, uint report_index, uint type)
{
    const uint row = get_global_id(1), batch = get_global_id(2);
    const uint tiles_across = (n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const uint tiles_down = (m + TILE_ROWS - 1) / TILE_ROWS;
    const uint first = get_global_id(0) * tiles_per_item;
    const uint last = min(first + tiles_per_item, tiles_across);
    const uint rows = min((uint)TILE_ROWS, m - row * TILE_ROWS);
    report += 2 * report_index;
    const ulong at = batch * stride_c + (ulong)row * TILE_ROWS * ldc;
    for (uint t = first; t < last; t++) {
        const uint columns = min((uint)TILE_COLUMNS, n - t * TILE_COLUMNS);
        const uint number = (batch * tiles_down + row) * tiles_across + t;
        const uint sum = checksum_tile(c, at + t * TILE_COLUMNS, type, rows, columns, ldc);
        if (sum != checksums[number]) {
            atomic_inc(report);
            atomic_min(report + 1, number);
        }
    }
}
