/* planes.cl - C = op(A) op(B) from prepared operands, with the ends of gemm.cl: by sums of integers in the exact classes, by
 * chains of bf16 pairs in the class bf16. README.md, "Classes of numerics", has the definitions, exact8_math.h and bf16_math.h
 * their arithmetic, planes_math.h the layout of the planes.
 *
 * keel_planes_cut writes exponents and digits of an operand, or its bf16; keel_planes and keel_planes_sliced multiply them.
 * They are built for 2 or 3 digits, or 1: bf16 (KEEL_PLANES_DIGITS). How dots are had (KEEL_PLANES_DOT), how many work-items a
 * group has and what each has of C change no bit: sums of integers have no order, and a chain of bf16 pairs has one.
 * Tolerance against the host: none. */

#if ITEMS > 1
enum { ARENA = LARGER(ARENA_WORDS, STAGE_ROWS *GROUP_COLUMNS) };

/* Elements of C by way of the stage, STAGE_ROWS rows of the tile at a time: an item ends 8 rows of one column, neighbours
 * side by side, and has the column's part of a checksum. */
CANON_INLINE void stage_end(PRODUCT_PARAMETERS, uint first_row, __local const float *stage)
{
    const uint batch = get_group_id(2), i0 = get_group_id(1) * GROUP_ROWS, j0 = get_group_id(0) * GROUP_COLUMNS;
    const uint tiles_across = (n + TILE_COLUMNS - 1) / TILE_COLUMNS, tiles_down = (m + TILE_ROWS - 1) / TILE_ROWS;
    const struct tile_end end = {
        .c = c, .pre = pre, .bias = bias, .type = flags >> C_TYPE_AT & TYPE_MASK, .ldc = ldc, .flags = flags};
    for (uint at = get_local_id(0); at < STAGE_ROWS / TILE_ROWS * GROUP_COLUMNS; at += ITEMS) {
        const uint block = at / GROUP_COLUMNS, column = j0 + at % GROUP_COLUMNS;
        const uint row = i0 + first_row + block * TILE_ROWS;
        if (row >= m || column >= n)
            continue;
        uint h = 0;
        for (uint r = 0; r < min(m - row, (uint)TILE_ROWS); r++)
            h = rotate(h, (uint)CHECKSUM_TURN) +
                finish_1(stage[(block * TILE_ROWS + r) * GROUP_COLUMNS + at % GROUP_COLUMNS], &end,
                         batch * stride_c + (ulong)(row + r) * ldc + column, column);
        if (flags & CHECKSUM) /* zero before; a sum of integers has no order */
            atomic_add(&checksums[((ulong)batch * tiles_down + row / TILE_ROWS) * tiles_across + column / TILE_COLUMNS],
                       h * (2 * (column % TILE_COLUMNS) + 1));
    }
}

CANON_INLINE float begun(PRODUCT_PARAMETERS, uint e)
{
    const uint row = get_group_id(1) * GROUP_ROWS + own_row(e), column = get_group_id(0) * GROUP_COLUMNS + own_column(e);
    return row < m && column < n ? canon_get(c, get_group_id(2) * stride_c + (ulong)row * ldc + column,
                                             flags >> C_TYPE_AT & TYPE_MASK)
                                 : 0.0f;
}

#if DIGITS > 1
CANON_INLINE void block_sums(PRODUCT_PARAMETERS, const struct planes_layout *l, const struct planes_block *b, uint number,
                             bool first, __local uint *tile, float sums[OWN])
{
    float values[OWN];
    block_values(PRODUCT_ARGUMENTS, l, b, number, tile, values);
    UNROLL for (uint e = 0; e < OWN; e++) sums[e] = first ? values[e] : sums[e] + values[e];
}
#endif

CANON_INLINE void group_multiply(PRODUCT_PARAMETERS, bool sliced, __local float *arena)
{
    const struct planes_layout l = planes_layout(m, n, get_num_groups(2), blocks, words, DIGITS);
    const struct planes_k of_k = {k, sliced ? slices : 0, units, unit, PER_WORD};
    struct planes_block b = planes_first(&of_k);
    float sums[OWN], waiting[PLANES_WAITING][OWN];
    bool first = !(flags & CHAIN);
    UNROLL for (uint e = 0; e < OWN; e++) sums[e] = first ? 0.0f : begun(PRODUCT_ARGUMENTS, e);
    for (uint number = 0; b.length > 0; number++) {
        block_sums(PRODUCT_ARGUMENTS, &l, &b, number, first, (__local uint *)arena, sums);
        first = false;
        if (sliced && planes_ends_slice(&b)) {
            const bool last = b.end == k;
            uint joins = 0, height = popcount(b.slice);
            while (last ? height > 0 : (b.slice >> joins & 1) != 0) {
                height--;
                joins++;
                UNROLL for (uint e = 0; e < OWN; e++) sums[e] = waiting[height][e] + sums[e];
            }
            if (!last)
                UNROLL for (uint e = 0; e < OWN; e++) waiting[height][e] = sums[e];
            first = true;
        }
        planes_next(&of_k, &b);
    }
    for (uint first_row = 0; first_row < GROUP_ROWS; first_row += STAGE_ROWS) {
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL for (uint e = 0; e < OWN; e++) {
            const uint at = own_row(e) - first_row;
            if (at < STAGE_ROWS)
                arena[at * GROUP_COLUMNS + own_column(e)] = sums[e];
        }
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); /* C is stored by others than who read it */
        stage_end(PRODUCT_ARGUMENTS, first_row, arena);
    }
}
#endif

__kernel GROUP_SIZE void keel_planes(PRODUCT_PARAMETERS)
{
    __local float arena[ARENA] __attribute__((aligned(64)));
    group_multiply(PRODUCT_ARGUMENTS, false, arena);
}
__kernel GROUP_SIZE void keel_planes_sliced(PRODUCT_PARAMETERS)
{
    __local float arena[ARENA] __attribute__((aligned(64)));
    group_multiply(PRODUCT_ARGUMENTS, true, arena);
}

/* Exponents and digits of op(X), lines `row` apart, or k by k (PLANES_DOWN): one group for 16 lines of one block of k of
 * one of the batch. The exponents of the operand begin at exponents_at, its digits at digits_at. */
__kernel GROUP_SIZE void keel_planes_cut(__global const void *x, __global uint *planes, uint lines, uint k, uint row,
                                         ulong stride, uint flags, uint slices, uint units, uint unit, uint blocks,
                                         uint words, uint digits, ulong exponents_at, ulong digits_at)
{
    __local uint most[PLANES_LINES];
    const uint line = get_group_id(0) * PLANES_LINES, number = get_group_id(1), batch = get_group_id(2);
    const uint all = planes_lines(lines);
    const struct planes_k of_k = {k, slices, units, unit, PER_WORD};
    struct planes_block b = planes_first(&of_k);
    for (uint i = 0; i < number; i++)
        planes_next(&of_k, &b);
    const bool down = flags & PLANES_DOWN;
    const struct cut_source s = {.x = x,
                                 .at = batch * stride + (down ? (ulong)line * row + b.first : (ulong)b.first * row + line),
                                 .row = row,
                                 .type = flags >> PLANES_TYPE_AT & PLANES_TYPE_MASK,
                                 .unit = flags & PLANES_UNIT,
                                 .lines = min(lines - line, (uint)PLANES_LINES),
                                 .down = down};
    cut_lines(&s, b.length, (__global int *)planes + exponents_at + ((ulong)batch * blocks + number) * all + line,
              planes + digits_at + ((ulong)batch * all + line) * words + (ulong)b.word * PLANES_LINES,
              (ulong)get_num_groups(2) * all * words, most);
}
