/* gemm.cl - C = op(A) op(B), with bias, accumulation and GELU at the end.
 *
 *     s = fma(a_0, b_0, 0); s = fma(a_i, b_i, s), i ascending to k - 1; with CHAIN begun at C, not 0
 *     s = s + bias[n]          (BIAS)
 *     s = C + s                (ACCUMULATE; FRESH: 0 + s)
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
 * Slices of k (`slices`: first << 16 | of << 8 | count; 0: none): the chain begins at 0 in each, and the sums of
 * slices are added in the tree over slices, before the bias.
 *
 * A group makes `row_block` rows of C and as many columns as `shape` says: on processors it is one work-item and the
 * shape a number of strips (gemm_strips.h), where lanes are many it is many and the shape is one of two
 * (gemm_lanes.h). Both have the same chains. KEEL_GEMM_ITEMS says which; no tunable changes a bit. Tolerance against the
 * host: none, equal bits. */

#define GEMM_PARAMETERS                                                                                      \
    __global const void *a, __global const void *b, __global void *c, __global const float *bias,            \
        __global void *pre, uint m, uint n, uint k, uint lda, uint ldb, uint ldc, uint flags, uint row_block, \
        ulong stride_a, ulong stride_b, ulong stride_c, __global uint *checksums, uint shape,                \
        __global const int *offsets, uint groups, uint slices, uint units, uint unit, uint sliced_depth
#define GEMM_ARGUMENTS                                                                                       \
    a, b, c, bias, pre, m, n, k, lda, ldb, ldc, flags, row_block, stride_a, stride_b, stride_c, checksums,   \
        shape, offsets, groups, slices, units, unit, sliced_depth

CANON_INLINE void group_gemm(GEMM_PARAMETERS, const enum way way, __local float *arena)
{
    const uint j = get_group_id(0) * group_columns(shape), batch = get_group_id(2);
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
                        .columns = min(group_columns(shape), n - j),
                        .k = k,
                        .first_column = j,
                        .tiles_across = (uint)tiles_across,
                        .slices = way == SLICED ? slices : 0,
                        .units = units,
                        .unit = unit};
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
    part.checksums = checksums + (batch * tiles_down + row / TILE_ROWS) * tiles_across;
    group_multiply(&part, row_block, shape, sliced_depth, way, arena);
}

/* The product without slices of k, the same by small tiles, where lanes are many, and with slices. */
#define GEMM_KERNEL(name, items, floats, way)                                                                \
    __kernel GROUP_SIZE(items) void name(GEMM_PARAMETERS)                                                    \
    {                                                                                                        \
        __local float arena[floats] __attribute__((aligned(64)));                                            \
        group_gemm(GEMM_ARGUMENTS, way, arena);                                                              \
    }
GEMM_KERNEL(keel_gemm, ITEMS_OWN, ARENA_OWN, OWN)
GEMM_KERNEL(keel_gemm_small, ITEMS_SMALL, ARENA_SMALL, SMALL)
GEMM_KERNEL(keel_gemm_sliced, ITEMS_SMALL, ARENA_SMALL, SLICED)

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
