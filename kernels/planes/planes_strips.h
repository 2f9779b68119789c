/* planes_strips.h - tiles of 8 x 48 elements by one work-item with vectors, for processors (OpenCL C only,
 * before planes.cl, which takes it where ITEMS is 1). What a block of k adds to the sums of a tile is
 * strip_block of the class. */
#if ITEMS == 1
enum { ARENA = TILE_ROWS * TILE_COLUMNS * (1 + PLANES_WAITING) /* sums, and those that wait */ };

/* The sums of a tile of 8 rows, those from line `from` of 16 on, and of `vectors` of 16 columns: what is
 * narrow, as few channels and heads are, takes no time for columns that are not there. */
CANON_INLINE void strip_tile(const struct strip *s, const struct planes_k *k, uint from, bool chain,
                             bool sliced, uint vectors, __local float *sums, __local float *waiting)
{
    struct planes_block b = planes_first(k);
    bool first = !chain;
    for (uint number = 0; b.length > 0; number++) {
        int rows_of_digits[DIGITS * PLANES_LINES];
#if KEEL_PLANES_DOT == KEEL_DOT_VNNI
        const uint words = planes_words(b.length, PER_WORD);
        for (uint d = 0; d < DIGITS; d++) {
            int16 sum = (int16)(0);
            for (uint w = 0; w < words; w++)
                sum = sums_of_digits(sum,
                                     vload16(0, s->a + d * s->a_step + (ulong)(b.word + w) * PLANES_LINES));
            vstore16(sum, 0, rows_of_digits + d * PLANES_LINES);
        }
#endif
        for (uint r = 0; r < TILE_ROWS; r += ROWS)
            if (vectors == 1)
                strip_block(s, &b, number, from + r, first, rows_of_digits, sums, 1);
            else if (vectors == 2)
                strip_block(s, &b, number, from + r, first, rows_of_digits, sums, 2);
            else
                strip_block(s, &b, number, from + r, first, rows_of_digits, sums, VECTORS);
        first = false;
        if (sliced && planes_ends_slice(&b)) {
            const bool last = b.end == k->size;
            uint joins = 0;
            /* Of the sums that wait, those that end here, nearest first; the result waits in its turn. */
            uint height = popcount(b.slice);
            while (last ? height > 0 : (b.slice >> joins & 1) != 0) {
                height--;
                joins++;
                for (uint i = 0; i < TILE_ROWS * VECTORS; i++)
                    if (i % VECTORS < vectors)
                        vstore16(vload16(i, waiting + height * TILE_ROWS * TILE_COLUMNS) + vload16(i, sums),
                                 i, sums);
            }
            for (uint i = 0; !last && i < TILE_ROWS * VECTORS; i++)
                if (i % VECTORS < vectors)
                    vstore16(vload16(i, sums), i, waiting + height * TILE_ROWS * TILE_COLUMNS);
            first = true;
        }
        planes_next(k, &b);
    }
}

CANON_INLINE void group_multiply(PRODUCT_PARAMETERS, bool sliced, __local float *arena)
{
    const uint batch = get_group_id(2), batches = get_num_groups(2);
    const struct planes_layout l = planes_layout(m, n, batches, blocks, words, DIGITS);
    const struct planes_k of_k = {k, sliced ? slices : 0, units, unit, PER_WORD};
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
            const uint line = i / PLANES_LINES * PLANES_LINES, rows = min(m - i, (uint)TILE_ROWS),
                       columns = min(n - j, (uint)TILE_COLUMNS);
            const ulong at = batch * stride_c + (ulong)i * ldc + j;
            s.a = planes + l.a_digits + ((ulong)batch * l.a_lines + line) * words;
            s.a_exponents = (__global const int *)planes + (ulong)batch * blocks * l.a_lines + line;
            if (flags & CHAIN)
                tile_begin(c, at, end.type, rows, columns, ldc, arena);
            strip_tile(&s, &of_k, i % PLANES_LINES, flags & CHAIN, sliced, (columns + 15) / 16, arena,
                       arena + TILE_ROWS * TILE_COLUMNS);
            const uint checksum = tile_finish(arena, rows, columns, &end, at);
            if (flags & CHECKSUM)
                checksums[((ulong)batch * tiles_down + i / TILE_ROWS) * tiles_across + j / TILE_COLUMNS] =
                    checksum;
        }
    }
}
#endif
