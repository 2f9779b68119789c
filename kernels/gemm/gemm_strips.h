/* gemm_strips.h - rows and strips of C by a group of one work-item, with vectors, for processors (OpenCL C
 * only, before gemm.cl, which takes it where KEEL_GEMM_ITEMS is 1).
 *
 * A work-item (alone in its group) makes `row_block` rows and `strips` times 48 columns of C. For each DEPTH
 * of k it copies its rows of op(A) to `blocks`, then for each strip 48 columns of op(B) to `panel`, so that
 * both lie in the nearest caches in the order of their use, and multiplies (gemm_tile.h). Meanwhile
 * it asks for the lines of the next panel, of the next rows, and of C. Between depths the sums lie in `sums`.
 * With slices there is a stack of such sums, of the nodes of the tree whose right neighbours are still to
 * come: as many as there are ones in the number of slices done. No depth reaches beyond a slice. Products of
 * few rows go another way (gemm_few.h).
 *
 * Tunables (tunables.c): DEPTH (k per panel), ROWS_MAX (largest row_block), STRIPS_MAX (most strips),
 * KEEL_BY_LANE, and with slices what fits the ARENA. */
#if KEEL_GEMM_ITEMS == 1
#ifndef KEEL_GEMM_DEPTH
#define KEEL_GEMM_DEPTH  64
#define KEEL_GEMM_ROWS   64
#define KEEL_GEMM_STRIPS 1
#endif
enum { DEPTH = KEEL_GEMM_DEPTH, ROWS_MAX = KEEL_GEMM_ROWS, STRIPS_MAX = KEEL_GEMM_STRIPS };
/* Rows whose blocks lie in local memory at once: all of a group where there is room. The odd floats keep the
 * same k of several blocks out of one set of a cache. */
#ifdef KEEL_LARGE_LOCAL
enum { PACKED_ROWS = ROWS_MAX };
#else
enum { PACKED_ROWS = 16 };
#endif
#define BLOCK_OF(depth) ((depth)*TILE_ROWS + 16)
enum { BLOCK_FLOATS = BLOCK_OF(DEPTH) };

/* Local memory: a panel, then blocks, then sums. */
enum {
    PANEL_FLOATS = DEPTH * TILE_COLUMNS,
    BLOCKS_FLOATS = PACKED_ROWS / TILE_ROWS * BLOCK_FLOATS,
    SUMS_FLOATS = STRIPS_MAX * ROWS_MAX * TILE_COLUMNS
};
#ifdef KEEL_GEMM_ARENA
enum { ARENA = KEEL_GEMM_ARENA };
#else
enum { ARENA = PANEL_FLOATS + BLOCKS_FLOATS + SUMS_FLOATS };
#endif

/* The lines of `columns` from j, `depth` of k from p. */
static struct tile_fetch operand_fetch(const struct operand *o, uint p, uint depth, uint j, uint columns)
{
    return tile_fetch_begin(o->x, operand_at(o, p, j), o->row, o->type, o->down ? columns : depth,
                            o->down ? depth : columns);
}

/* How a group's local memory is laid out: the deepest panel, a block of as much; floats from the sums of a
 * strip to those of the next, and from one slice's to another's. */
struct layout {
    uint deepest, block_floats, strip_floats, sum_floats;
};

/* A stretch of k: whether it begins a chain; how many waiting sums are added behind it, where it ends a
 * slice. */
struct stretch {
    uint p, depth, joins;
    bool first, last;
};

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
CANON_INLINE void strip_multiply(const struct part *g, const struct layout *to, const struct stretch *k,
                                 uint j, __local float *blocks, __local const float *panel,
                                 __local float *sums, struct tile_soon *soon)
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
                        min((uint)PACKED_ROWS, g->rows - r), k->depth, blocks, to->block_floats);
        if (chain)
            tile_begin(end.c, at, end.type, high, columns, end.ldc, sums);
        if (k->last && r + TILE_ROWS < g->rows)
            soon->c =
                tile_fetch_begin(end.c, at + TILE_ROWS * end.ldc, end.ldc, end.type, TILE_ROWS, columns);
        tile_multiply(blocks + r % PACKED_ROWS / TILE_ROWS * to->block_floats, panel, k->depth,
                      k->first && !chain, sums, soon);
        if (k->joins > 0)
            tile_join(sums, to->sum_floats, k->joins);
        if (k->last) {
            const uint sum = tile_finish(sums - k->joins * to->sum_floats, high, columns, &end, at);
            if (end.flags & CHECKSUM)
                g->checksums[(ulong)(r / TILE_ROWS) * g->tiles_across +
                             (g->first_column + j) / TILE_COLUMNS] = sum;
        }
        if (k->depth < g->k)
            sums += TILE_ROWS * TILE_COLUMNS;
    }
}

CANON_INLINE void part_multiply(const struct part *g, const struct layout *to, __local float *blocks,
                                __local float *panel, __local float *sums)
{
    struct stretch k = {.first = true};
    for (uint slice = 0, waiting = 0, stop = slice_end(g, 0); !k.last; k.p += k.depth) {
        k.depth = min(to->deepest, stop - k.p);
        const uint next_p = k.p + k.depth, left = g->k - next_p;
        const bool ends = next_p == stop; /* of a slice */
        k.last = left == 0;
        k.joins = ends ? slice_joins(slice, waiting, k.last) : 0;
        struct tile_soon soon = {{0}, {0}, {0}};
        if (left > 0)
            soon.a = operand_fetch(&g->a, next_p, min(to->deepest, left), 0, g->rows);
        for (uint j = 0; j < g->columns; j += TILE_COLUMNS) {
            const uint next = j + TILE_COLUMNS;
            tile_pack_b(g->b.x, operand_at(&g->b, k.p, j), g->b.row, g->b.down, g->b.type,
                        min((uint)TILE_COLUMNS, g->columns - j), k.depth, panel);
            soon.b.rows = 0;
            if (next < g->columns)
                soon.b = operand_fetch(&g->b, k.p, k.depth, next, min((uint)TILE_COLUMNS, g->columns - next));
            else if (left > 0)
                soon.b = operand_fetch(&g->b, next_p, min(to->deepest, left), 0,
                                       min((uint)TILE_COLUMNS, g->columns));
            const ulong strip = k.depth < g->k ? (ulong)j / TILE_COLUMNS * to->strip_floats : 0;
            strip_multiply(g, to, &k, j, blocks, panel, sums + waiting * to->sum_floats + strip, &soon);
        }
        k.first = ends;
        if (ends && !k.last) {
            waiting = waiting + 1 - k.joins;
            stop = slice_end(g, ++slice);
        }
    }
}

static inline uint group_columns(uint strips)
{
    return TILE_COLUMNS * strips;
}

CANON_INLINE void group_multiply(const struct part *g, uint row_block, uint strips, uint sliced_depth,
                                 const enum way way, __local float *arena)
{
#if KEEL_BY_LANE < 2
    if (way == OWN && row_block <= TILE_ROWS) {
        const struct few_room room = {.deepest = DEPTH,
                                      .panel = arena,
                                      .a = arena + PANEL_FLOATS,
                                      .sums = arena + PANEL_FLOATS + BLOCKS_FLOATS};
        few_multiply(g, &room);
        return;
    }
#endif
    struct layout to = {
        .deepest = DEPTH, .block_floats = BLOCK_FLOATS, .strip_floats = ROWS_MAX * TILE_COLUMNS};
    uint blocks_floats = BLOCKS_FLOATS;
    if (way == SLICED) {
        to.deepest = sliced_depth;
        to.block_floats = BLOCK_OF(sliced_depth);
        to.strip_floats = row_block * TILE_COLUMNS;
        to.sum_floats = to.strip_floats * strips;
        blocks_floats = min(row_block, (uint)PACKED_ROWS) / TILE_ROWS * to.block_floats;
    }
    __local float *blocks = arena + to.deepest * TILE_COLUMNS;
    part_multiply(g, &to, blocks, arena, blocks + blocks_floats);
}
#define GROUP_SIZE(items) /* one work-item, as it is launched */
#define ARENA_OWN         ARENA
#define ARENA_SMALL       ARENA
#endif
