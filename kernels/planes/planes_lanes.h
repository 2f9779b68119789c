/* planes_lanes.h - a tile of C by a group of many work-items, in plain OpenCL C or by dot products of four
 * bytes (OpenCL C only, before planes.cl, which takes it where ITEMS is above 1 and there are no matrix
 * units).
 *
 * ACROSS x DOWN items; each has 4 rows and 8 columns: 4 tx to 4 tx + 3, and again 4 ACROSS further. Words of
 * both operands go through local memory, STEP of k at a time. */
#if ITEMS > 1 && KEEL_PLANES_DOT != KEEL_DOT_MMA
enum {
    ACROSS = 8,
    DOWN = ITEMS / ACROSS,
    LANE_ROWS = 4,
    LANE_COLUMNS = 8,
    GROUP_ROWS = DOWN * LANE_ROWS,
    GROUP_COLUMNS = ACROSS * LANE_COLUMNS,
    OWN = LANE_ROWS * LANE_COLUMNS,
    STAGE_ROWS = GROUP_ROWS,
    ARENA_WORDS = PLANES_STEP * DIGITS * (GROUP_ROWS + GROUP_COLUMNS)
};

/* PLANES_STEP words of `lines` lines from `line` on, of each digit, to tile[word][line]; those that are not
 * there are zero. */
CANON_INLINE void tile_copy(__global const uint *from, ulong step, uint words, uint line, uint lines,
                            uint there, uint word, __local uint *tile)
{
    for (uint i = get_local_id(0); i < DIGITS * PLANES_STEP * lines / 4; i += ITEMS) {
        const uint j = i * 4 % lines, w = i * 4 / lines % PLANES_STEP, d = i * 4 / lines / PLANES_STEP;
        const uint at = line + j;
        const ulong place =
            d * step + ((ulong)(at / PLANES_LINES) * words + word + w) * PLANES_LINES + at % PLANES_LINES;
        vstore4(at < there ? vload4(0, from + place) : (uint4)(0), i, tile);
    }
}

#if DIGITS == 1
/* Chains of this item's elements go through a block of k. */
CANON_INLINE void block_sums(PRODUCT_PARAMETERS, const struct planes_layout *l, const struct planes_block *b,
                             uint number, bool first, __local uint *tile, float sums[OWN])
{
    const uint batch = get_group_id(2), tx = get_local_id(0) % ACROSS, ty = get_local_id(0) / ACROSS;
    const uint i0 = get_group_id(1) * GROUP_ROWS, j0 = get_group_id(0) * GROUP_COLUMNS;
    __global const uint *a = planes + l->a_digits + (ulong)batch * l->a_lines * words;
    __global const uint *bs = planes + l->b_digits + (ulong)batch * l->b_lines * words;
    __local uint *b_tile = tile + PLANES_STEP * GROUP_ROWS;
    UNROLL for (uint e = 0; e < OWN; e++) sums[e] = first ? 0.0f : bf16_begin(sums[e]);
    const uint end = b->word + (b->length + 1) / 2;
    _Pragma("nounroll") for (uint word = b->word; word < end; word += PLANES_STEP)
    {
        barrier(CLK_LOCAL_MEM_FENCE);
        tile_copy(a, l->a_step, words, i0, GROUP_ROWS, l->a_lines, word, tile);
        tile_copy(bs, l->b_step, words, j0, GROUP_COLUMNS, l->b_lines, word, b_tile);
        barrier(CLK_LOCAL_MEM_FENCE);
        _Pragma("nounroll") for (uint w = 0; w < min(end - word, (uint)PLANES_STEP); w++)
        {
            uint x[LANE_ROWS], y[LANE_COLUMNS];
            __local const uint *column = b_tile + w * GROUP_COLUMNS + 4 * tx;
            vstore4(vload4(0, tile + w * GROUP_ROWS + ty * LANE_ROWS), 0, x);
            vstore4(vload4(0, column), 0, y);
            vstore4(vload4(0, column + 4 * ACROSS), 1, y);
            UNROLL for (uint r = 0; r < LANE_ROWS; r++) UNROLL for (uint v = 0; v < LANE_COLUMNS; v++)
                sums[r * LANE_COLUMNS + v] = bf16_pair(sums[r * LANE_COLUMNS + v], x[r], y[v]);
        }
    }
}
#else
static inline int dot_1(uint a, uint b, int sum)
{
#if KEEL_PLANES_DOT == KEEL_DOT_DP4A
    int s;
    __asm__("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(s) : "r"(a), "r"(b), "r"(sum));
    return s;
#elif KEEL_PLANES_DOT == KEEL_DOT_KHR
    return sum + dot_4x8packed_ss_int(a, b);
#else
    const char4 x = as_char4(a), y = as_char4(b);
    return sum + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
#endif
}

/* The values of a block of k, of this item's elements. */
CANON_INLINE void block_values(PRODUCT_PARAMETERS, const struct planes_layout *l,
                               const struct planes_block *b, uint number, __local uint *tile,
                               float values[OWN])
{
    const uint batch = get_group_id(2), tx = get_local_id(0) % ACROSS, ty = get_local_id(0) / ACROSS;
    const uint i0 = get_group_id(1) * GROUP_ROWS, j0 = get_group_id(0) * GROUP_COLUMNS;
    __global const uint *a = planes + l->a_digits + (ulong)batch * l->a_lines * words;
    __global const uint *bs = planes + l->b_digits + (ulong)batch * l->b_lines * words;
    __local uint *b_tile = tile + DIGITS * PLANES_STEP * GROUP_ROWS;
    int acc[DIGITS][OWN];
    UNROLL for (uint d = 0; d < DIGITS; d++) UNROLL for (uint e = 0; e < OWN; e++) acc[d][e] = 0;
    const uint end = b->word + planes_words(b->length, PER_WORD);
    _Pragma("nounroll") for (uint word = b->word; word < end; word += PLANES_STEP)
    {
        barrier(CLK_LOCAL_MEM_FENCE);
        tile_copy(a, l->a_step, words, i0, GROUP_ROWS, l->a_lines, word, tile);
        tile_copy(bs, l->b_step, words, j0, GROUP_COLUMNS, l->b_lines, word, b_tile);
        barrier(CLK_LOCAL_MEM_FENCE);
        _Pragma("nounroll") for (uint w = 0; w < PLANES_STEP; w++)
        {
            uint x[DIGITS][LANE_ROWS], y[DIGITS][LANE_COLUMNS];
            UNROLL for (uint d = 0; d < DIGITS; d++)
            {
                __local const uint *row = tile + (d * PLANES_STEP + w) * GROUP_ROWS + ty * LANE_ROWS;
                __local const uint *column = b_tile + (d * PLANES_STEP + w) * GROUP_COLUMNS + 4 * tx;
                vstore4(vload4(0, row), 0, x[d]);
                vstore4(vload4(0, column), 0, y[d]);
                vstore4(vload4(0, column + 4 * ACROSS), 1, y[d]);
            }
            UNROLL for (uint i = 0; i < DIGITS; i++) UNROLL for (uint j = 0; i + j < DIGITS; j++)
                UNROLL for (uint r = 0; r < LANE_ROWS; r++) UNROLL for (uint v = 0; v < LANE_COLUMNS; v++)
                    acc[i + j][r * LANE_COLUMNS + v] =
                        dot_1(x[i][r], y[j][v], acc[i + j][r * LANE_COLUMNS + v]);
        }
    }
    __global const int *ea = (__global const int *)planes + ((ulong)batch * blocks + number) * l->a_lines;
    __global const int *eb =
        (__global const int *)planes + l->b_exponents + ((ulong)batch * blocks + number) * l->b_lines;
    UNROLL for (uint r = 0; r < LANE_ROWS; r++) UNROLL for (uint v = 0; v < LANE_COLUMNS; v++)
    {
        const uint row = min(i0 + ty * LANE_ROWS + r, l->a_lines - 1),
                   column = min(j0 + 4 * tx + v % 4 + v / 4 * 4 * ACROSS, l->b_lines - 1);
        float value = exact8_float(acc[DIGITS - 1][r * LANE_COLUMNS + v]);
        UNROLL for (uint level = DIGITS - 1; level-- > 0;) value = fma(
            exact8_float(acc[level][r * LANE_COLUMNS + v]), (float)(1u << 8 * (DIGITS - 1 - level)), value);
        values[r * LANE_COLUMNS + v] = exact8_scale(value, ea[row] + eb[column] - 8 * DIGITS - 6);
    }
}

#endif

/* Row and column, in the tile of the group, of element e of this item. */
static inline uint own_row(uint e)
{
    return get_local_id(0) / ACROSS * LANE_ROWS + e / LANE_COLUMNS;
}
static inline uint own_column(uint e)
{
    return get_local_id(0) % ACROSS * 4 + e % 4 + e % LANE_COLUMNS / 4 * 4 * ACROSS;
}
#endif
