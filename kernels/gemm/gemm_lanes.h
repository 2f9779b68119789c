/* gemm_lanes.h - a tile of C by a group of many work-items, for devices whose lanes are many and narrow and
 * whose local memory is memory of its own (OpenCL C only, before gemm.cl, which takes it where
 * KEEL_GEMM_ITEMS is above 1).
 *
 *     s = fma(a_i, b_i, s), i ascending: the chain of gemm.cl, element by element, so the same bits.
 *
 * The work-items of a group lie ACROSS x DOWN over the tile. Each has R rows of sums in registers, from R ty
 * on, and of each row F times four columns: 4 tx to 4 tx + 3, and again 4 ACROSS further. So a row of op(A)
 * is one word to all items that lie across, and columns of op(B) are read as float4 by neighbours side by
 * side. For each DEPTH of k the group copies R DOWN rows of op(A) and 4 F ACROSS columns of op(B) to local
 * memory, k by k; neighbours take neighbours in memory, whichever way the operand lies. What comes next is
 * loaded to registers while the tile is multiplied, and then stored beside it: one barrier for each DEPTH.
 *
 * Three shapes, one text (lanes_tile.h, read for each), a kernel for each, so that none takes another's
 * registers; gemm.c chooses for each product:
 *
 *     shape  kernel            items           R x 4 F                   DEPTH         sums that wait
 *     0      keel_gemm         gemm.items      item_rows x item_columns  item_depth    none
 *     1      keel_gemm_small   half, 64 least  4 x 4                     2 item_depth  none
 *     2      keel_gemm_sliced  half, 64 least  4 x 4                     2 item_depth  6, up to 64 slices
 *
 * Products that are too small to give every unit tiles of shape 0 take shape 1: few groups on a unit hide
 * little of what memory takes to answer, hence twice the depth.
 *
 * C goes through local memory, 8 elements of an item at a time: an item then ends 8 rows of one column,
 * neighbours side by side, by the function that ends tiles on processors, and has the column's part of a
 * checksum.
 *
 * Tunables: gemm.items, gemm.item_rows, gemm.item_columns, gemm.item_depth. */
#if KEEL_GEMM_ITEMS > 1
enum { ITEMS_OWN = KEEL_GEMM_ITEMS, ITEMS_SMALL = ITEMS_OWN > 64 ? ITEMS_OWN / 2 : 64 };
enum { DEPTH_OWN = KEEL_GEMM_ITEM_DEPTH, DEPTH_SMALL = 2 * DEPTH_OWN };
#define LANES_ACROSS(items) ((items) > 64 ? 16 : 8)
#define LANES_DOWN(items)   ((items) / LANES_ACROSS(items))
enum { STAGE_ROWS = 8 /* that an item ends at a time: those of a tile that has a checksum */ };
/* Rows of local memory are so much longer than a tile: float4 stay aligned, and columns are spread over
 * banks. */
#define LANES_ROW(wide) ((wide) + 4)
#define LANES_TILES(items, depth, r, f)                                                                      \
    (2 * (depth) * (LANES_ROW(LANES_DOWN(items) * (r)) + LANES_ROW(4 * LANES_ACROSS(items) * (f))))
#define LANES_LARGER(a, b) ((a) > (b) ? (a) : (b))
enum {
    ARENA_OWN =
        LANES_LARGER(LANES_TILES(ITEMS_OWN, DEPTH_OWN, KEEL_GEMM_ITEM_ROWS, KEEL_GEMM_ITEM_COLUMNS / 4),
                     ITEMS_OWN *STAGE_ROWS),
    ARENA_SMALL = LANES_LARGER(LANES_TILES(ITEMS_SMALL, DEPTH_SMALL, 4, 1), ITEMS_SMALL *STAGE_ROWS)
};
#define GROUP_SIZE(items) __attribute__((reqd_work_group_size(items, 1, 1)))

/* ---- copies ---- */

/* What an item copies of an operand: element (p, j) of the tile, then one p_step deeper or j_step further,
 * and so on. */
struct lanes_copy {
    ulong at, step; /* in the operand: the first, at k = 0; from one to the next */
    uint p, j, p_step, j_step;
    uint count; /* columns that there are */
};

static inline struct lanes_copy lanes_copy_begin(const struct operand *o, uint wide, uint count, uint items,
                                                 uint depth)
{
    const uint id = get_local_id(0);
    struct lanes_copy c = {.count = count};
    if (o->down) {
        c.p = id % depth;
        c.j = id / depth;
        c.j_step = items / depth;
        c.step = (ulong)c.j_step * o->row;
    } else {
        c.j = id % wide;
        c.p = id / wide;
        c.p_step = items / wide;
        c.step = (ulong)c.p_step * o->row;
    }
    c.at = operand_at(o, c.p, c.j);
    return c;
}

static inline ulong lanes_copy_at(const struct operand *o, const struct lanes_copy *c, uint k)
{
    return c->at + (o->down ? k : (ulong)k * o->row);
}

/* How many elements an item copies of a tile of which `depth` of k are there: those that it lacks are its
 * last. */
static inline uint lanes_copy_count(const struct operand *o, const struct lanes_copy *c, uint depth)
{
    if (c->j >= c->count || c->p >= depth)
        return 0;
    return o->down ? (c->count - c->j + c->j_step - 1) / c->j_step
                   : (depth - c->p + c->p_step - 1) / c->p_step;
}

/* Elements of a tile that is not whole, or not of floats, from k on: straight to the tile. What is missing is
 * zero. */
CANON_INLINE void lanes_copy_some(const struct operand *o, const struct lanes_copy *c, uint wide, uint copies,
                                  uint k, uint depth, __local float *tile)
{
    const uint there = min(lanes_copy_count(o, c, depth), copies),
               step = c->p_step * LANES_ROW(wide) + c->j_step;
    __local float *to = tile + c->p * LANES_ROW(wide) + c->j;
    ulong at = lanes_copy_at(o, c, k);
    _Pragma("nounroll") for (uint i = 0; i < copies; i++, to += step, at += c->step) *to =
        i < there ? canon_get(o->x, at, o->type) : 0.0f;
}

/* Whether the tile is whole and of floats: it comes by registers, asked for while the one before is
 * multiplied. */
static inline bool lanes_is_whole(const struct operand *o, const struct lanes_copy *c, uint wide, bool deep)
{
    return o->type == CANON_F32 && c->count >= wide && deep;
}
#define LANES_LOAD(next, copies, wide, o, c, k, depth)                                                       \
    if (lanes_is_whole(o, c, wide, (depth) == DEPTH)) {                                                      \
        __global const float *from = (__global const float *)(o)->x + lanes_copy_at(o, c, k);                \
        CANON_UNROLL for (uint i = 0; i < (copies); i++, from += (c)->step)(next)[i] = *from;                \
    }
#define LANES_STORE(next, copies, wide, o, c, k, depth, tile)                                                \
    if (lanes_is_whole(o, c, wide, (depth) == DEPTH)) {                                                      \
        __local float *to = (tile) + (c)->p * LANES_ROW(wide) + (c)->j;                                      \
        const uint step = (c)->p_step * LANES_ROW(wide) + (c)->j_step;                                       \
        CANON_UNROLL for (uint i = 0; i < (copies); i++, to += step) *to = (next)[i];                        \
    } else {                                                                                                 \
        lanes_copy_some(o, c, wide, copies, k, depth, tile);                                                 \
    }

/* The column of STAGE_ROWS elements of the stage that an item reads or ends: its place in the tile, whose
 * rows from `block` on are staged, and in the stage. */
struct lanes_column {
    uint row, column, at;
};
static inline struct lanes_column lanes_column_of(uint wide, uint block)
{
    const uint down = get_local_id(0) / wide * STAGE_ROWS, column = get_local_id(0) % wide;
    return (struct lanes_column){block + down, column, down * wide + column};
}

/* C by way of the stage: a column from it, zero outside of it, and a column to it. An item reads no element
 * but those that it writes at last: barriers here order local memory alone. */
CANON_INLINE void lanes_column_begin(const struct part *g, const struct lanes_column *m, uint wide,
                                     __local float *stage)
{
    for (uint r = 0; r < STAGE_ROWS; r++)
        stage[m->at + r * wide] =
            m->row + r < g->rows && m->column < g->columns
                ? canon_get(g->end.c, g->corner + (ulong)(m->row + r) * g->end.ldc + m->column, g->end.type)
                : 0.0f;
}
CANON_INLINE void lanes_column_finish(const struct part *g, const struct lanes_column *m, uint wide,
                                      __local const float *stage)
{
    if (m->column >= g->columns || m->row >= g->rows)
        return;
    const uint rows = min(g->rows - m->row, (uint)STAGE_ROWS);
    uint h = 0;
    _Pragma("nounroll") for (uint r = 0; r < rows; r++) h =
        rotate(h, (uint)CHECKSUM_TURN) + finish_1(stage[m->at + r * wide], &g->end,
                                                  g->corner + (ulong)(m->row + r) * g->end.ldc + m->column,
                                                  m->column);
    if (g->end.flags & CHECKSUM) { /* zero before; a sum of integers has no order */
        const uint column = g->first_column + m->column;
        atomic_add(&g->checksums[(ulong)(m->row / TILE_ROWS) * g->tiles_across + column / TILE_COLUMNS],
                   h * (2 * (column % TILE_COLUMNS) + 1));
    }
}
#endif
