/* exact8_mma.h - a tile of C by a group of several warps on matrix units of 8-bit integers, by
 * mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 of PTX (OpenCL C only, before planes.cl, which takes it
 * where the facts of the device say that it has them).
 *
 * 2 x 4 warps; each has WARP_ROWS rows and 32 columns of C. Words of both operands go through local memory,
 * one k of 32 while the next is on its way to registers. In local memory word w of 16 lines has its halves
 * changed places where w / 2 is odd, so that the 32 words that a warp reads at once, 4 of k by 8 of lines,
 * lie in 32 banks. */
#if KEEL_PLANES_DOT == KEEL_DOT_MMA
enum {
    WARP_ROWS = DIGITS == 2 ? 64 : 32,
    WARP_COLUMNS = 32,
    WARPS_ACROSS = 4,
    WARPS_DOWN = ITEMS / 32 / WARPS_ACROSS,
    GROUP_ROWS = WARPS_DOWN * WARP_ROWS,
    GROUP_COLUMNS = WARPS_ACROSS * WARP_COLUMNS,
    M_TILES = WARP_ROWS / 16,
    N_TILES = WARP_COLUMNS / 8,
    OWN = M_TILES * N_TILES * 4,
    STAGE_ROWS = 64,
    LINES_WORDS = PLANES_STEP * PLANES_LINES,
    LINES_BLOCKS = (GROUP_ROWS + GROUP_COLUMNS) / PLANES_LINES, /* of 16 lines, of one digit */
    FOURS = DIGITS * LINES_BLOCKS * LINES_WORDS / 4,            /* of four words: what is copied at a time */
    COPIES = (FOURS + ITEMS - 1) / ITEMS,                       /* by an item at most */
    STAGES = 2,
    ARENA_WORDS = STAGES * DIGITS * LINES_BLOCKS * LINES_WORDS
};

/* The copies of an item: 4 lines of a word each; a block of 16 lines that is not there is zero. */
struct tile_copies {
    __global const uint *from[COPIES];
    uint to[COPIES];
    bool there[COPIES];
};

CANON_INLINE void mma(int c[4], const uint a[4], const uint b[2])
{
    __asm__("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Word w of line `line` of a block of 16. */
static inline uint swizzled(uint w, uint line)
{
    return w * PLANES_LINES + (line ^ ((w >> 1 & 1) * 8));
}

CANON_INLINE void block_values(PRODUCT_PARAMETERS, const struct planes_layout *l,
                               const struct planes_block *b, uint number, __local uint *tile,
                               float values[OWN])
{
    const uint batch = get_group_id(2), id = get_local_id(0), lane = id % 32, g = lane / 4, t = lane % 4;
    const uint warp_row = id / 32 / WARPS_ACROSS * WARP_ROWS,
               warp_column = id / 32 % WARPS_ACROSS * WARP_COLUMNS;
    const uint i0 = get_group_id(1) * GROUP_ROWS, j0 = get_group_id(0) * GROUP_COLUMNS;
    struct tile_copies copies;
    UNROLL for (uint i = 0; i < COPIES; i++)
    {
        const uint four = i * ITEMS + id, w = four / 4 % PLANES_STEP, line = four % 4 * 4;
        const uint block = four / (LINES_WORDS / 4) % LINES_BLOCKS,
                   d = four / (LINES_WORDS / 4) / LINES_BLOCKS;
        const bool of_a = block < GROUP_ROWS / PLANES_LINES;
        const uint first =
            of_a ? i0 + block * PLANES_LINES : j0 + (block - GROUP_ROWS / PLANES_LINES) * PLANES_LINES;
        const uint lines = of_a ? l->a_lines : l->b_lines;
        copies.there[i] = four < FOURS && first < lines;
        copies.from[i] = planes + (of_a ? l->a_digits + d * l->a_step : l->b_digits + d * l->b_step) +
                         ((ulong)batch * lines + (first < lines ? first : 0)) * words +
                         (ulong)(b->word + w) * PLANES_LINES + line;
        copies.to[i] = (d * LINES_BLOCKS + block) * LINES_WORDS + swizzled(w, line);
    }
    int acc[DIGITS][M_TILES][N_TILES][4];
    UNROLL for (uint d = 0; d < DIGITS; d++) UNROLL for (uint i = 0; i < M_TILES; i++)
        UNROLL for (uint j = 0; j < N_TILES; j++) UNROLL for (uint e = 0; e < 4; e++) acc[d][i][j][e] = 0;
    uint4 next[COPIES];
    const uint steps = planes_words(b->length, PER_WORD) / PLANES_STEP;
    UNROLL for (uint i = 0; i < COPIES; i++) next[i] =
        copies.there[i] ? vload4(0, copies.from[i]) : (uint4)(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads what lay there */
    _Pragma("nounroll") for (uint step = 0; step < steps; step++)
    {
        __local uint *stage = tile + step % STAGES * (DIGITS * LINES_BLOCKS * LINES_WORDS);
        UNROLL for (uint i = 0; i < COPIES; i++) if (FOURS % ITEMS == 0 || i * ITEMS + id < FOURS)
            vstore4(next[i], 0, stage + copies.to[i]);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (step + 1 < steps)
            UNROLL for (uint i = 0; i < COPIES; i++)
            {
                copies.from[i] += LINES_WORDS;
                next[i] = copies.there[i] ? vload4(0, copies.from[i]) : (uint4)(0);
            }
        uint y[DIGITS][N_TILES][2];
        UNROLL for (uint d = 0; d < DIGITS; d++) UNROLL for (uint j = 0; j < N_TILES; j++)
            UNROLL for (uint deep = 0; deep < 2; deep++)
        {
            const uint column = warp_column + 8 * j;
            y[d][j][deep] = stage[(d * LINES_BLOCKS + (GROUP_ROWS + column) / PLANES_LINES) * LINES_WORDS +
                                  swizzled(t + 4 * deep, column % PLANES_LINES + g)];
        }
        UNROLL for (uint i = 0; i < M_TILES; i++) UNROLL for (uint d = 0; d < DIGITS; d++)
        {
            __local const uint *lines =
                stage + (d * LINES_BLOCKS + warp_row / PLANES_LINES + i) * LINES_WORDS;
            const uint x[4] = {lines[swizzled(t, g)], lines[swizzled(t, g + 8)], lines[swizzled(t + 4, g)],
                               lines[swizzled(t + 4, g + 8)]};
            UNROLL for (uint e = 0; d + e < DIGITS; e++) UNROLL for (uint j = 0; j < N_TILES; j++)
                mma(acc[d + e][i][j], x, y[e][j]);
        }
    }
    __global const int *ea = (__global const int *)planes + ((ulong)batch * blocks + number) * l->a_lines;
    __global const int *eb =
        (__global const int *)planes + l->b_exponents + ((ulong)batch * blocks + number) * l->b_lines;
    UNROLL for (uint i = 0; i < M_TILES; i++) UNROLL for (uint j = 0; j < N_TILES; j++)
        UNROLL for (uint e = 0; e < 4; e++)
    {
        const uint row = min(i0 + warp_row + 16 * i + g + e / 2 * 8, l->a_lines - 1),
                   column = min(j0 + warp_column + 8 * j + 2 * t + e % 2, l->b_lines - 1);
        float value = exact8_float(acc[DIGITS - 1][i][j][e]);
        UNROLL for (uint level = DIGITS - 1; level-- > 0;) value =
            fma(exact8_float(acc[level][i][j][e]), (float)(1u << 8 * (DIGITS - 1 - level)), value);
        values[(i * N_TILES + j) * 4 + e] = exact8_scale(value, ea[row] + eb[column] - 8 * DIGITS - 6);
    }
}

/* Row and column, in the tile of the group, of element e of this item. */
static inline uint own_row(uint e)
{
    return get_local_id(0) / 32 / WARPS_ACROSS * WARP_ROWS + e / (4 * N_TILES) * 16 +
           get_local_id(0) % 32 / 4 + e % 4 / 2 * 8;
}
static inline uint own_column(uint e)
{
    return get_local_id(0) / 32 % WARPS_ACROSS * WARP_COLUMNS + e / 4 % N_TILES * 8 +
           get_local_id(0) % 4 * 2 + e % 2;
}
#endif
