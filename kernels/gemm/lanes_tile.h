/* lanes_tile.h - one shape of the tiles of gemm_lanes.h, read once for each: the compiler knows R, F and
 * LEVELS as numbers, so that sums lie in registers. Functions are overloads by the type of the shape's sums.
 */
#if KEEL_GEMM_ITEMS > 1
#undef R
#undef F
#undef LEVELS
#undef ITEMS
#undef DEPTH
#undef lanes_sums
#ifndef LANES_SHAPE
#define LANES_SHAPE 0
#define R           KEEL_GEMM_ITEM_ROWS
#define F           (KEEL_GEMM_ITEM_COLUMNS / 4)
#define LEVELS      0
#define ITEMS       ITEMS_OWN
#define DEPTH       DEPTH_OWN
#define lanes_sums  lanes_sums_own
#else
#define R     4
#define F     1
#define ITEMS ITEMS_SMALL
#define DEPTH DEPTH_SMALL
#if LANES_SHAPE == 0
#undef LANES_SHAPE
#define LANES_SHAPE 1
#define LEVELS      0
#define lanes_sums  lanes_sums_small
#else
#define LEVELS     6
#define lanes_sums lanes_sums_sliced
#endif
#endif

struct lanes_sums {
    float4 v[R][F];
};
/* For each of an item's sums, [r][f]. */
#define EACH_SUM(statement)                                                                                  \
    CANON_UNROLL for (uint r = 0; r < R; r++)                                                                \
    {                                                                                                        \
        CANON_UNROLL for (uint f = 0; f < F; f++) statement;                                                 \
    }
#define ACROSS   LANES_ACROSS(ITEMS)
#define DOWN     LANES_DOWN(ITEMS)
#define A_WIDE   (DOWN * R)
#define B_WIDE   (4 * ACROSS * F)
#define A_COPIES (R * DEPTH / ACROSS)
#define B_COPIES (4 * F * DEPTH / DOWN)
#define STAGED   (ITEMS * STAGE_ROWS / B_WIDE) /* rows in the stage at once */

/* One k: a at the item's rows, b at its columns. */
CANON_INLINE void __attribute__((overloadable))
lanes_step(__local const float *a, __local const float *b, struct lanes_sums *s)
{
    float x[R];
    float4 y[F];
    CANON_UNROLL for (uint r = 0; r < R; r += 4)
    {
        const float4 v = *(__local const float4 *)(a + r);
        x[r] = v.x;
        x[r + 1] = v.y;
        x[r + 2] = v.z;
        x[r + 3] = v.w;
    }
    CANON_UNROLL for (uint f = 0; f < F; f++) y[f] = *(__local const float4 *)(b + 4 * ACROSS * f);
    EACH_SUM(s->v[r][f] = fma((float4)(x[r]), y[f], s->v[r][f]))
}

CANON_INLINE void __attribute__((overloadable))
lanes_multiply(__local const float *a, __local const float *b, uint depth, struct lanes_sums *s)
{
    enum { A_ROW = LANES_ROW(A_WIDE), B_ROW = LANES_ROW(B_WIDE) };
    uint p = 0;
    for (; p + 4 <= depth; p += 4, a += 4 * A_ROW, b += 4 * B_ROW)
        CANON_UNROLL for (uint i = 0; i < 4; i++) lanes_step(a + i * A_ROW, b + i * B_ROW, s);
    for (; p < depth; p++, a += A_ROW, b += B_ROW)
        lanes_step(a, b, s);
}

#if LEVELS > 0
/* A slice has ended: `joins` of the sums that wait are added, the last first; then the sum waits itself,
 * unless the slice is the last. */
CANON_INLINE void __attribute__((overloadable))
lanes_join(uint joins, bool last, uint *waiting, struct lanes_sums w[LEVELS], struct lanes_sums *s)
{
    CANON_UNROLL for (uint i = LEVELS; i > 0; i--)
    {
        if (i <= *waiting && i + joins > *waiting)
            EACH_SUM(s->v[r][f] = w[i - 1].v[r][f] + s->v[r][f])
    }
    *waiting -= joins;
    if (last)
        return;
    CANON_UNROLL for (uint i = 0; i < LEVELS; i++)
    {
        if (i == *waiting)
            EACH_SUM(w[i].v[r][f] = s->v[r][f])
    }
    EACH_SUM(s->v[r][f] = (float4)(0.0f))
    *waiting += 1;
}
#endif

/* Whether an item's sums are in the stage of rows from `block` on, and where. */
static inline bool __attribute__((overloadable))
lanes_is_staged(const struct lanes_sums *s, uint block, uint *at)
{
    const uint row = get_local_id(0) / ACROSS * R;
    (void)s;
    *at = (row - block) * B_WIDE + get_local_id(0) % ACROSS * 4;
    return row >= block && row < block + STAGED;
}

/* Sums that begin with C, where the product is a CHAIN. A loop that turns no times, and not a condition:
 * drivers for processors copy all that follows a barrier under a condition. */
CANON_INLINE void __attribute__((overloadable))
lanes_begin(const struct part *g, __local float *stage, struct lanes_sums *s)
{
    const uint end = g->end.flags & CHAIN ? A_WIDE : 0;
    for (uint block = 0; block < end; block += STAGED) {
        const struct lanes_column mine = lanes_column_of(B_WIDE, block);
        uint at;
        lanes_column_begin(g, &mine, B_WIDE, stage);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lanes_is_staged(s, block, &at))
            EACH_SUM(s->v[r][f] = *(__local const float4 *)(stage + at + r * B_WIDE + 4 * ACROSS * f))
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

CANON_INLINE void __attribute__((overloadable))
lanes_finish(const struct part *g, __local float *stage, const struct lanes_sums *s)
{
    for (uint block = 0; block < A_WIDE; block += STAGED) {
        const struct lanes_column mine = lanes_column_of(B_WIDE, block);
        uint at;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lanes_is_staged(s, block, &at))
            EACH_SUM(*(__local float4 *)(stage + at + r * B_WIDE + 4 * ACROSS * f) = s->v[r][f])
        barrier(CLK_LOCAL_MEM_FENCE);
        lanes_column_finish(g, &mine, B_WIDE, stage);
    }
}

/* The group's tile. */
CANON_INLINE void __attribute__((overloadable))
lanes_product(const struct part *g, __local float *arena, struct lanes_sums s)
{
    enum { A_FLOATS = DEPTH * LANES_ROW(A_WIDE), FLOATS = A_FLOATS + DEPTH * LANES_ROW(B_WIDE) };
    const uint a_at = get_local_id(0) / ACROSS * R, b_at = A_FLOATS + get_local_id(0) % ACROSS * 4;
    __local float *tile = arena, *other = arena + FLOATS;
    const struct lanes_copy a = lanes_copy_begin(&g->a, A_WIDE, g->rows, ITEMS, DEPTH);
    const struct lanes_copy b = lanes_copy_begin(&g->b, B_WIDE, g->columns, ITEMS, DEPTH);
    float a_next[A_COPIES], b_next[B_COPIES];
    uint stop = slice_end(g, 0), depth = min((uint)DEPTH, stop);
#if LEVELS > 0
    struct lanes_sums w[LEVELS];
    uint slice = 0, waiting = 0;
#endif
    lanes_begin(g, arena, &s);
    LANES_LOAD(a_next, A_COPIES, A_WIDE, &g->a, &a, 0, depth)
    LANES_LOAD(b_next, B_COPIES, B_WIDE, &g->b, &b, 0, depth)
    LANES_STORE(a_next, A_COPIES, A_WIDE, &g->a, &a, 0, depth, tile)
    LANES_STORE(b_next, B_COPIES, B_WIDE, &g->b, &b, 0, depth, tile + A_FLOATS)
    for (uint k = 0; k < g->k;) {
        const uint now = depth;
        k += now;
        const bool last = k == g->k;
#if LEVELS > 0
        const bool ends = k == stop;
        if (ends && !last)
            stop = slice_end(g, slice + 1);
#endif
        depth = min((uint)DEPTH, stop - k);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (!last) {
            LANES_LOAD(a_next, A_COPIES, A_WIDE, &g->a, &a, k, depth)
            LANES_LOAD(b_next, B_COPIES, B_WIDE, &g->b, &b, k, depth)
        }
        lanes_multiply(tile + a_at, tile + b_at, now, &s);
        if (!last) {
            LANES_STORE(a_next, A_COPIES, A_WIDE, &g->a, &a, k, depth, other)
            LANES_STORE(b_next, B_COPIES, B_WIDE, &g->b, &b, k, depth, other + A_FLOATS)
        }
        __local float *const swap = tile;
        tile = other;
        other = swap;
#if LEVELS > 0
        if (ends) {
            lanes_join(slice_joins(slice, waiting, last), last, &waiting, w, &s);
            slice++;
        }
#endif
    }
    lanes_finish(g, arena, &s);
}

#if LEVELS > 0 /* the last shape */
static inline uint group_columns(uint shape)
{
    return shape == 0 ? LANES_ACROSS(ITEMS_OWN) * KEEL_GEMM_ITEM_COLUMNS : LANES_ACROSS(ITEMS_SMALL) * 4;
}

CANON_INLINE void group_multiply(const struct part *g, uint row_block, uint shape, uint sliced_depth,
                                 const enum way way, __local float *arena)
{
    (void)row_block; /* follows from the shape */
    (void)shape;
    (void)sliced_depth;
    if (way == SLICED)
        lanes_product(g, arena, (struct lanes_sums_sliced){{{(float4)(0.0f)}}});
    else if (way == SMALL)
        lanes_product(g, arena, (struct lanes_sums_small){{{(float4)(0.0f)}}});
    else
        lanes_product(g, arena, (struct lanes_sums_own){{{(float4)(0.0f)}}});
}
#endif
#endif
