/* gemm_few.h - a product of few rows by a group of one work-item, for processors (OpenCL C only, before
 * gemm_strips.h, which takes it where a group has no more rows than a tile).
 *
 * Of such a product B is nearly all that is read, and each element of it once: what it can reach is the speed
 * of memory. So B is not copied where its rows lie along columns of C: for FEW_TURN of k at a time a group
 * goes through its columns, sixteen by sixteen, and multiplies what it reads as it comes. Sums lie in the
 * nearest cache meanwhile. Where rows lie along k they are turned by way of a panel, strip after strip, so
 * that the rows of a strip are read to their end before the next. Element by element the chain is that of
 * gemm.cl: k ascending, so the same bits. Columns that lack to a whole strip go by a panel too. Not
 * where vectors are taken apart (KEEL_BY_LANE 2): nothing is bound by memory there, and llvmpipe was more
 * than two minutes at compiling it. */
#if KEEL_GEMM_ITEMS == 1 && KEEL_BY_LANE < 2
enum { FEW_TURN = 4, FEW_ROWS = 4, FEW_AHEAD = 8 /* rows of B that are asked for ahead */ };
#define FEW_FMA(x, b, s) fma((float16)(x), b, s)

/* Rows of op(A), `depth` of k from p on, as floats: row r from a + r a_row on. */
CANON_INLINE void few_pack_a(const struct part *g, uint p, uint depth, __local float *a, uint a_row)
{
    const ulong step = g->a.down ? 1 : g->a.row;
    for (uint r = 0; r < g->rows; r++) {
        const ulong from = operand_at(&g->a, p, r);
        for (uint i = 0; i < depth; i++)
            a[r * a_row + i] = canon_get(g->a.x, from + i * step, g->a.type);
    }
}

/* `depth` of k of B from `at` on, by whole strips, to their sums. Once for floats, as the copies of
 * gemm_tile.h. */
#define FEW_ACROSS(name, GET)                                                                                \
    CANON_INLINE void name(const struct operand *o, ulong at, uint depth, uint strips, uint rows,            \
                           __local const float *a, uint a_row, __local float *sums)                          \
    {                                                                                                        \
        const ulong row = o->row, ahead = FEW_AHEAD * row, bytes = o->type == CANON_F32 ? 4 : 2;             \
        uint p = 0;                                                                                          \
        for (; p + FEW_TURN <= depth; p += FEW_TURN, at += FEW_TURN * row)                                   \
            for (uint strip = 0; strip < strips; strip++)                                                    \
                for (uint v = 0; v < TILE_COLUMNS; v += 16) {                                                \
                    const ulong from = at + strip * TILE_COLUMNS + v;                                        \
                    const float16 b0 = GET(o->x, from, o->type), b1 = GET(o->x, from + row, o->type);        \
                    const float16 b2 = GET(o->x, from + 2 * row, o->type);                                   \
                    const float16 b3 = GET(o->x, from + 3 * row, o->type);                                   \
                    for (uint i = 0; i < FEW_TURN; i++)                                                      \
                        CANON_FETCH((__global const char *)o->x + (from + ahead + i * row) * bytes);         \
                    __local float *s = sums + strip * TILE_ROWS * TILE_COLUMNS + v;                          \
                    __local const float *x = a + p;                                                          \
                    for (uint r = 0; r < rows; r++, s += TILE_COLUMNS, x += a_row) {                         \
                        float16 t = vload16(0, s);                                                           \
                        t = FEW_FMA(x[0], b0, t);                                                            \
                        t = FEW_FMA(x[1], b1, t);                                                            \
                        t = FEW_FMA(x[2], b2, t);                                                            \
                        t = FEW_FMA(x[3], b3, t);                                                            \
                        vstore16(t, 0, s);                                                                   \
                    }                                                                                        \
                }                                                                                            \
        for (; p < depth; p++, at += row)                                                                    \
            for (uint strip = 0; strip < strips; strip++)                                                    \
                for (uint v = 0; v < TILE_COLUMNS; v += 16) {                                                \
                    const float16 b = GET(o->x, at + strip * TILE_COLUMNS + v, o->type);                     \
                    __local float *s = sums + strip * TILE_ROWS * TILE_COLUMNS + v;                          \
                    for (uint r = 0; r < rows; r++, s += TILE_COLUMNS)                                       \
                        vstore16(FEW_FMA(a[r * a_row + p], b, vload16(0, s)), 0, s);                         \
                }                                                                                            \
    }
FEW_ACROSS(few_across, canon_get_x16)
FEW_ACROSS(few_across_floats, GET_FLOATS)

/* Sixteen columns of B to a panel, `depth` of k; those that lack are zero. */
CANON_INLINE void few_pack_b(const struct operand *o, ulong at, uint columns, uint depth,
                             __local float *panel)
{
    pack_16(o->x, at, o->row, o->down, o->type, columns, depth, panel, panel + 8, 16);
    for (uint p = 0; p < depth && columns <= 8; p++)
        for (uint l = 8; l < 16; l++)
            panel[16 * p + l] = 0.0f;
}

/* Sums of 1 or FEW_ROWS rows meet a panel, as chains side by side. Meanwhile what comes next is asked for, a
 * line for each k: of sixteen rows of B, each of a sixteenth of `depth` lines. */
CANON_INLINE void few_row(__local const float *panel, uint depth, __local const float *a, __local float *sums,
                          __global const char *next, ulong row_bytes)
{
    float16 s = vload16(0, sums);
    for (uint p = 0; p < depth; p++) {
        s = FEW_FMA(a[p], vload16(p, panel), s);
        CANON_FETCH(next + (p & 15) * row_bytes + (p >> 4) * 64);
    }
    vstore16(s, 0, sums);
}
CANON_INLINE void few_rows(__local const float *panel, uint depth, __local const float *a, uint a_row,
                           __local float *sums, __global const char *next, ulong row_bytes)
{
    float16 s0 = vload16(0, sums), s1 = vload16(0, sums + TILE_COLUMNS);
    float16 s2 = vload16(0, sums + 2 * TILE_COLUMNS), s3 = vload16(0, sums + 3 * TILE_COLUMNS);
    for (uint p = 0; p < depth; p++) {
        const float16 b = vload16(p, panel);
        s0 = FEW_FMA(a[p], b, s0);
        s1 = FEW_FMA(a[a_row + p], b, s1);
        s2 = FEW_FMA(a[2 * a_row + p], b, s2);
        s3 = FEW_FMA(a[3 * a_row + p], b, s3);
        CANON_FETCH(next + (p & 15) * row_bytes + (p >> 4) * 64);
    }
    vstore16(s0, 0, sums);
    vstore16(s1, 0, sums + TILE_COLUMNS);
    vstore16(s2, 0, sums + 2 * TILE_COLUMNS);
    vstore16(s3, 0, sums + 3 * TILE_COLUMNS);
}
CANON_INLINE void few_panel(__local const float *panel, uint depth, uint rows, __local const float *a,
                            uint a_row, __local float *sums, __global const char *next, ulong row_bytes)
{
    uint r = 0;
    for (; r + FEW_ROWS <= rows; r += FEW_ROWS)
        few_rows(panel, depth, a + r * a_row, a_row, sums + r * TILE_COLUMNS, next, row_bytes);
    for (; r < rows; r++)
        few_row(panel, depth, a + r * a_row, sums + r * TILE_COLUMNS, next, row_bytes);
}

/* Where a group's local memory is. */
struct few_room {
    uint deepest; /* k of a panel and of the rows of A */
    __local float *panel, *a, *sums;
};

/* C of one strip, from column j of the group on. */
CANON_INLINE void few_finish(const struct part *g, uint j, __local const float *sums)
{
    struct tile_end end = g->end;
    end.bias += j;
    const uint sum = tile_finish(sums, g->rows, min((uint)TILE_COLUMNS, g->columns - j), &end, g->corner + j);
    if (end.flags & CHECKSUM)
        g->checksums[(g->first_column + j) / TILE_COLUMNS] = sum;
}

/* Sums of a strip begin. */
CANON_INLINE void few_begin(const struct part *g, uint j, __local float *sums)
{
    if (g->end.flags & CHAIN) {
        tile_begin(g->end.c, g->corner + j, g->end.type, g->rows, min((uint)TILE_COLUMNS, g->columns - j),
                   g->end.ldc, sums);
        return;
    }
    for (uint at = 0; at < g->rows * TILE_COLUMNS; at += 16)
        vstore16((float16)(0.0f), 0, sums + at);
}

/* Whole strips, whose rows of B lie along columns. */
CANON_INLINE void few_whole(const struct part *g, const struct few_room *room, uint strips)
{
    for (uint strip = 0; strip < strips; strip++)
        few_begin(g, strip * TILE_COLUMNS, room->sums + strip * TILE_ROWS * TILE_COLUMNS);
    for (uint p = 0, depth; p < g->k; p += depth) {
        depth = min(room->deepest, g->k - p);
        const ulong at = operand_at(&g->b, p, 0);
        few_pack_a(g, p, depth, room->a, room->deepest);
        if (g->b.type == CANON_F32)
            few_across_floats(&g->b, at, depth, strips, g->rows, room->a, room->deepest, room->sums);
        else
            few_across(&g->b, at, depth, strips, g->rows, room->a, room->deepest, room->sums);
    }
    for (uint strip = 0; strip < strips; strip++)
        few_finish(g, strip * TILE_COLUMNS, room->sums + strip * TILE_ROWS * TILE_COLUMNS);
}

/* One strip by the panel, sixteen columns at a time. */
CANON_INLINE void few_by_panel(const struct part *g, const struct few_room *room, uint strip)
{
    const uint bytes = g->b.type == CANON_F32 ? 4 : 2, stop = min(strip + TILE_COLUMNS, g->columns);
    const ulong row_bytes = (ulong)g->b.row * bytes;
    few_begin(g, strip, room->sums);
    for (uint p = 0, depth; p < g->k; p += depth) {
        depth = min(room->deepest, g->k - p);
        few_pack_a(g, p, depth, room->a, room->deepest);
        for (uint j = strip; j < stop; j += 16) {
            const bool more = j + 16 < stop;
            const ulong soon = operand_at(&g->b, more ? p : p + depth, more ? j + 16 : strip);
            few_pack_b(&g->b, operand_at(&g->b, p, j), min(stop - j, 16u), depth, room->panel);
            few_panel(room->panel, depth, g->rows, room->a, room->deepest, room->sums + j - strip,
                      (__global const char *)g->b.x + soon * bytes, row_bytes);
        }
    }
    few_finish(g, strip, room->sums);
}

CANON_INLINE void few_multiply(const struct part *g, const struct few_room *room)
{
    const uint whole = g->b.down ? 0 : g->columns / TILE_COLUMNS;
    if (whole > 0)
        few_whole(g, room, whole);
    for (uint j = whole * TILE_COLUMNS; j < g->columns; j += TILE_COLUMNS)
        few_by_panel(g, room, j);
}
#endif
