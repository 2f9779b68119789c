/* exact8_strips.h - a tile of 8 x 48 elements by one work-item with vectors, for processors (OpenCL C only,
 * before exact8.cl, which takes it where ITEMS is 1).
 *
 * A vector has 16 columns. Sums of ints lie in registers: of ROWS rows and VECTORS vectors, LEVELS each.
 * Where the device's facts say that the processor has AVX512-VNNI, dots are its instruction, which multiplies
 * unsigned bytes by signed ones: those of B go in with 128 added, and 128 times the sum of a row's digits is
 * taken off. Additions of ints modulo 2^32 give the same, whatever lies between. */
#if ITEMS == 1
enum {
    ROWS = DIGITS == 2 ? 4 : 2,
    VECTORS = 3,
    LEVELS = DIGITS,
    ARENA = TILE_ROWS * TILE_COLUMNS * (1 + EXACT8_WAITING) /* sums, and those that wait */
};

#if KEEL_EXACT8_DOT == KEEL_DOT_VNNI
#define BIAS_BYTES 0x80808080u
CANON_INLINE int16 dot_x16(int16 sum, uint16 b, uint a)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(b), "v"((uint16)(a)));
    return sum;
}
CANON_INLINE int16 sums_of_digits(int16 sum, uint16 a)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"((uint16)(0x01010101u)), "v"(a));
    return sum;
}
#else
#define BIAS_BYTES 0u
CANON_INLINE int16 dot_x16(int16 sum, uint16 b, uint a)
{
    for (uint c = 0; c < 4; c++)
        sum += ((as_int16(b) << (24 - 8 * c)) >> 24) * ((as_int(a) << (24 - 8 * c)) >> 24);
    return sum;
}
#endif

/* What a tile has of the planes: `a` its rows, of the first digit; `b` three blocks of 16 columns, b_block
 * apart. Where there are less, the first is read again. */
struct strip {
    __global const uint *a, *b[VECTORS];
    __global const int *a_exponents, *b_exponents[VECTORS];
    ulong a_step, b_step;
    uint a_lines, b_lines;
};

/* Sums of a block of k become values: they are added to the chains, of which they are the first with `first`.
 */
CANON_INLINE void strip_block(const struct strip *s, const struct exact8_block *k, uint number, uint r0,
                              bool first, const int *rows_of_digits, __local float *sums)
{
    __global const uint *a = s->a + (ulong)k->word * EXACT8_LINES + r0;
    int16 acc[ROWS][VECTORS][LEVELS];
    _Pragma("unroll") for (uint r = 0; r < ROWS; r++) _Pragma("unroll") for (uint v = 0; v < VECTORS; v++)
        _Pragma("unroll") for (uint l = 0; l < LEVELS; l++) acc[r][v][l] = (int16)(0);
    const uint words = exact8_words(k->length);
    ulong at = (ulong)k->word * EXACT8_LINES;
    for (uint w = 0; w < words; w++, a += EXACT8_LINES, at += EXACT8_LINES) {
        uint16 b[VECTORS][DIGITS];
        _Pragma("unroll") for (uint v = 0; v < VECTORS; v++)
            _Pragma("unroll") for (uint d = 0; d < DIGITS; d++) b[v][d] =
                vload16(0, s->b[v] + d * s->b_step + at) ^ BIAS_BYTES;
        _Pragma("unroll") for (uint r = 0; r < ROWS; r++) _Pragma("unroll") for (uint i = 0; i < DIGITS; i++)
        {
            const uint digits = a[i * s->a_step + r];
            _Pragma("unroll") for (uint j = 0; i + j < DIGITS; j++)
                _Pragma("unroll") for (uint v = 0; v < VECTORS; v++) acc[r][v][i + j] =
                    dot_x16(acc[r][v][i + j], b[v][j], digits);
        }
    }
    _Pragma("unroll") for (uint v = 0; v < VECTORS; v++)
    {
        const int16 eb = vload16(0, s->b_exponents[v] + (ulong)number * s->b_lines);
        _Pragma("unroll") for (uint r = 0; r < ROWS; r++)
        {
            const int e = s->a_exponents[(ulong)number * s->a_lines + r0 + r] - 8 * DIGITS - 6;
            float16 value = (float16)(0.0f);
            _Pragma("unroll") for (uint l = LEVELS; l-- > 0;)
            {
                int16 sum = acc[r][v][l];
#if KEEL_EXACT8_DOT == KEEL_DOT_VNNI
                int taken = 0;
                for (uint i = 0; i <= l; i++)
                    taken += rows_of_digits[i * EXACT8_LINES + r0 + r];
                sum -= (int16)(128 * taken);
#endif
                value = l == LEVELS - 1 ? exact8_float_x16(sum)
                                        : WIDE_FMA(exact8_float_x16(sum),
                                                   (float16)((float)(1u << 8 * (LEVELS - 1 - l))), value);
            }
            value = exact8_scale_x16(value, eb + e);
            __local float *to = sums + (r0 + r) % TILE_ROWS * TILE_COLUMNS + 16 * v;
            vstore16(first ? value : vload16(0, to) + value, 0, to);
        }
    }
}

/* The sums of a tile of 8 rows, those from line `from` of 16 on. */
CANON_INLINE void strip_tile(const struct strip *s, const struct exact8_k *k, uint from, bool chain,
                             bool sliced, __local float *sums, __local float *waiting)
{
    struct exact8_block b = exact8_first(k);
    bool first = !chain;
    for (uint number = 0; b.length > 0; number++) {
        int rows_of_digits[DIGITS * EXACT8_LINES];
#if KEEL_EXACT8_DOT == KEEL_DOT_VNNI
        const uint words = exact8_words(b.length);
        for (uint d = 0; d < DIGITS; d++) {
            int16 sum = (int16)(0);
            for (uint w = 0; w < words; w++)
                sum = sums_of_digits(sum,
                                     vload16(0, s->a + d * s->a_step + (ulong)(b.word + w) * EXACT8_LINES));
            vstore16(sum, 0, rows_of_digits + d * EXACT8_LINES);
        }
#endif
        for (uint r = 0; r < TILE_ROWS; r += ROWS)
            strip_block(s, &b, number, from + r, first, rows_of_digits, sums);
        first = false;
        if (sliced && exact8_ends_slice(&b)) {
            const bool last = b.end == k->size;
            uint joins = 0;
            /* Of the sums that wait, those that end here, nearest first; the result waits in its turn. */
            uint height = popcount(b.slice);
            while (last ? height > 0 : (b.slice >> joins & 1) != 0) {
                height--;
                joins++;
                for (uint i = 0; i < TILE_ROWS * 3; i++)
                    vstore16(vload16(i, waiting + height * TILE_ROWS * TILE_COLUMNS) + vload16(i, sums), i,
                             sums);
            }
            for (uint i = 0; !last && i < TILE_ROWS * 3; i++)
                vstore16(vload16(i, sums), i, waiting + height * TILE_ROWS * TILE_COLUMNS);
            first = true;
        }
        exact8_next(k, &b);
    }
}

CANON_INLINE void group_multiply(PRODUCT_PARAMETERS, bool sliced, __local float *arena)
{
    const uint batch = get_group_id(2), batches = get_num_groups(2);
    const struct exact8_layout l = exact8_layout(m, n, batches, blocks, words, DIGITS);
    const struct exact8_k of_k = {k, sliced ? slices : 0, units, unit};
    const uint first_row = get_group_id(1) * row_block,
               first_column = get_group_id(0) * strips * TILE_COLUMNS;
    const uint rows_end = min(first_row + row_block, m),
               columns_end = min(first_column + strips * TILE_COLUMNS, n);
    const uint tiles_across = (n + TILE_COLUMNS - 1) / TILE_COLUMNS,
               tiles_down = (m + TILE_ROWS - 1) / TILE_ROWS;
    for (uint j = first_column; j < columns_end; j += TILE_COLUMNS) {
        struct strip s = {.a_step = l.a_step, .b_step = l.b_step, .a_lines = l.a_lines, .b_lines = l.b_lines};
        for (uint v = 0; v < VECTORS; v++) {
            const uint line = j + 16 * v < l.b_lines ? j + 16 * v : j;
            s.b[v] = planes + l.b_digits + ((ulong)batch * l.b_lines + line) * words;
            s.b_exponents[v] =
                (__global const int *)planes + l.b_exponents + (ulong)batch * blocks * l.b_lines + line;
        }
        const struct tile_end end = {.c = c,
                                     .pre = pre,
                                     .bias = bias + j,
                                     .type = flags >> C_TYPE_AT & TYPE_MASK,
                                     .ldc = ldc,
                                     .flags = flags};
        for (uint i = first_row; i < rows_end; i += TILE_ROWS) {
            const uint line = i / EXACT8_LINES * EXACT8_LINES, rows = min(m - i, (uint)TILE_ROWS),
                       columns = min(n - j, (uint)TILE_COLUMNS);
            const ulong at = batch * stride_c + (ulong)i * ldc + j;
            s.a = planes + l.a_digits + ((ulong)batch * l.a_lines + line) * words;
            s.a_exponents = (__global const int *)planes + (ulong)batch * blocks * l.a_lines + line;
            if (flags & CHAIN)
                tile_begin(c, at, end.type, rows, columns, ldc, arena);
            strip_tile(&s, &of_k, i % EXACT8_LINES, flags & CHAIN, sliced, arena,
                       arena + TILE_ROWS * TILE_COLUMNS);
            const uint checksum = tile_finish(arena, rows, columns, &end, at);
            if (flags & CHECKSUM)
                checksums[((ulong)batch * tiles_down + i / TILE_ROWS) * tiles_across + j / TILE_COLUMNS] =
                    checksum;
        }
    }
}
#endif
