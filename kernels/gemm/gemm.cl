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
 * Slices of k (`slices`: first << 16 | of << 8 | count; 0: none): the chain begins at 0 in each, and the sums of
 * slices are added in the tree over slices, before the bias.
 *
 * A work-item (alone in its group) makes `row_block` rows and `strips` times 48 columns of C. For each DEPTH of
 * k it copies its rows of op(A) to `blocks`, then for each strip 48 columns of op(B) to `panel`, so that
 * both lie in the nearest caches in the order of their use, and multiplies (gemm_tile.h). Meanwhile
 * it asks for the lines of the next panel, of the next rows, and of C. Between depths the sums lie in `sums`. With
 * slices there is a stack of such sums, of the nodes of the tree whose right neighbours are still to come: as many
 * as there are ones in the number of slices done. No depth reaches beyond a slice.
 *
 * Tunables (tunables.c): DEPTH (k per panel), ROWS_MAX (largest row_block), STRIPS_MAX (most strips),
 * KEEL_BY_LANE, and with slices what fits the ARENA. They change no bit. Tolerance against the host: none, equal bits. */

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
#define BLOCK_OF(depth) ((depth) * TILE_ROWS + 16)
enum { BLOCK_FLOATS = BLOCK_OF(DEPTH) };

/* Local memory: a panel, then blocks, then sums. */
enum { PANEL_FLOATS = DEPTH * TILE_COLUMNS, BLOCKS_FLOATS = PACKED_ROWS / TILE_ROWS * BLOCK_FLOATS,
       SUMS_FLOATS = STRIPS_MAX * ROWS_MAX * TILE_COLUMNS };
#ifdef KEEL_GEMM_ARENA
enum { ARENA = KEEL_GEMM_ARENA };
#else
enum { ARENA = PANEL_FLOATS + BLOCKS_FLOATS + SUMS_FLOATS };
#endif

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
    uint deepest, block_floats;   /* of a panel; of a block of as much */
    uint strip_floats, sum_floats; /* from the sums of a strip to those of the next; from one slice's to another's */
    uint slices, units, unit;      /* of k, as the kernel is given them */
};

/* A stretch of k: whether it begins a chain; how many waiting sums are added behind it, where it ends a slice. */
struct stretch {
    uint p, depth, joins;
    bool first, last;
};

/* Where slice i of the part's own ends. */
static inline uint slice_end(const struct part *g, uint i)
{
    return g->slices == 0 ? g->k : canon_slice_begin(g->slices, g->units, g->unit, i + 1);
}

/* Of the slices that wait, those that end with slice i: all, where it is the last. */
static inline uint slice_joins(uint i, uint waiting, bool last)
{
    uint joins = 0;
    while (last ? joins < waiting : (i >> joins & 1) != 0)
        joins++;
    return joins;
}

/* The sums of a tile and, below them, of those that wait: the left one before the right one. */
CANON_INLINE void tile_join(__local float *sums, uint sum_floats, uint joins)
{
    for (uint v = 0; v < TILE_ROWS * 3; v++) {
        float16 s = vload16(v, sums);
        for (uint i = 1; i <= joins; i++)
            s = vload16(v, sums - i * sum_floats) + s;
        vstore16(s, v, sums - joins * sum_floats);
    }
}

/* Sums of one stretch of one strip, and C after the last. */
CANON_INLINE void strip_multiply(const struct part *g, const struct stretch *k, uint j, __local float *blocks,
                           __local const float *panel, __local float *sums, struct tile_soon *soon)
{
    const bool chain = k->p == 0 && (g->end.flags & CHAIN);
    const bool pack_again = PACKED_ROWS < ROWS_MAX;
    const uint columns = min((uint)TILE_COLUMNS, g->columns - j);
    struct tile_end end = g->end;
    end.bias += j;
    for (uint r = 0; r < g->rows; r += TILE_ROWS) {
        const uint high = min((uint)TILE_ROWS, g->rows - r);
        const ulong at = g->corner + (ulong)r * end.ldc + j;
        if (r % PACKED_ROWS == 0 && (j == 0 || pack_again))
            tile_pack_a(g->a.x, operand_at(&g->a, k->p, r), g->a.row, g->a.down, g->a.type,
                        min((uint)PACKED_ROWS, g->rows - r), k->depth, blocks, g->block_floats);
        if (chain)
            tile_begin(end.c, at, end.type, high, columns, end.ldc, sums);
        if (k->last && r + TILE_ROWS < g->rows)
            soon->c = tile_fetch_begin(end.c, at + TILE_ROWS * end.ldc, end.ldc, end.type, TILE_ROWS, columns);
        tile_multiply(blocks + r % PACKED_ROWS / TILE_ROWS * g->block_floats, panel, k->depth, k->first && !chain,
                      sums, soon);
        if (k->joins > 0)
            tile_join(sums, g->sum_floats, k->joins);
        if (k->last) {
            const uint sum = tile_finish(sums - k->joins * g->sum_floats, high, columns, &end, at);
            if (end.flags & CHECKSUM)
                g->checksums[(ulong)(r / TILE_ROWS) * g->tiles_across + j / TILE_COLUMNS] = sum;
        }
        if (k->depth < g->k)
            sums += TILE_ROWS * TILE_COLUMNS;
    }
}

CANON_INLINE void part_multiply(const struct part *g, __local float *blocks, __local float *panel, __local float *sums)
{
    struct stretch k = {.first = true};
    for (uint slice = 0, waiting = 0, stop = slice_end(g, 0); !k.last; k.p += k.depth) {
        k.depth = min(g->deepest, stop - k.p);
        const uint next_p = k.p + k.depth, left = g->k - next_p;
        const bool ends = next_p == stop; /* of a slice */
        k.last = left == 0;
        k.joins = ends ? slice_joins(slice, waiting, k.last) : 0;
        struct tile_soon soon = {{0}, {0}, {0}};
        if (left > 0)
            soon.a = operand_fetch(&g->a, next_p, min(g->deepest, left), 0, g->rows);
        for (uint j = 0; j < g->columns; j += TILE_COLUMNS) {
            const uint next = j + TILE_COLUMNS;
            tile_pack_b(g->b.x, operand_at(&g->b, k.p, j), g->b.row, g->b.down, g->b.type,
                        min((uint)TILE_COLUMNS, g->columns - j), k.depth, panel);
            soon.b.rows = 0;
            if (next < g->columns)
                soon.b = operand_fetch(&g->b, k.p, k.depth, next, min((uint)TILE_COLUMNS, g->columns - next));
            else if (left > 0)
                soon.b = operand_fetch(&g->b, next_p, min(g->deepest, left), 0, min((uint)TILE_COLUMNS, g->columns));
            const ulong strip = k.depth < g->k ? (ulong)j / TILE_COLUMNS * g->strip_floats : 0;
            strip_multiply(g, &k, j, blocks, panel, sums + waiting * g->sum_floats + strip, &soon);
        }
        k.first = ends;
        if (ends && !k.last) {
            waiting = waiting + 1 - k.joins;
            stop = slice_end(g, ++slice);
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
                        uint groups, uint slices, uint units, uint unit, uint sliced_depth)
{
    __local float arena[ARENA] __attribute__((aligned(64)));
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
                        .tiles_across = (uint)tiles_across,
                        .deepest = DEPTH,
                        .block_floats = BLOCK_FLOATS,
                        .strip_floats = ROWS_MAX * TILE_COLUMNS};
    uint blocks_floats = BLOCKS_FLOATS;
    if (slices > 0) {
        part.deepest = sliced_depth;
        part.block_floats = BLOCK_OF(sliced_depth);
        part.strip_floats = row_block * TILE_COLUMNS;
        part.sum_floats = part.strip_floats * strips;
        part.slices = slices;
        part.units = units;
        part.unit = unit;
        blocks_floats = min(row_block, (uint)PACKED_ROWS) / TILE_ROWS * part.block_floats;
    }
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
    __local float *blocks = arena + part.deepest * TILE_COLUMNS;
    part_multiply(&part, blocks, arena, blocks + blocks_floats);
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
