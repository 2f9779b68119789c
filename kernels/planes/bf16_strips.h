/* bf16_strips.h - a block of k of a tile of 8 x 48 elements by one work-item with vectors, in bf16 (OpenCL C
 * only, before planes_strips.h). Where the processor has AVX512-BF16, a pair of products is its instruction.
 */
#if ITEMS == 1 && DIGITS == 1
CANON_INLINE float16 pair_x16(float16 sum, uint16 b, uint a)
{
#if KEEL_PLANES_DOT == KEEL_DOT_BF16
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"((uint16)(a)));
    return sum;
#else
    return bf16_pair_x16(sum, (uint16)(a), b);
#endif
}

/* Chains of a tile go on, or begin with `first`, through a block of k: all 24 vectors of them in registers,
 * or those of the first `vectors` of columns. */
CANON_INLINE void strip_block(const struct strip *s, const struct planes_block *k, uint number, uint r0,
                              bool first, const int *rows_of_digits, __local float *sums, const uint vectors)
{
    __global const uint *a = s->a + (ulong)k->word * PLANES_LINES + r0;
    float16 acc[TILE_ROWS][VECTORS];
    _Pragma("unroll") for (uint r = 0; r < TILE_ROWS; r++)
        _Pragma("unroll") for (uint v = 0; v < vectors; v++) acc[r][v] =
            first ? (float16)(0.0f) : bf16_begin_x16(vload16(0, sums + r * TILE_COLUMNS + 16 * v));
    const uint words = (k->length + 1) / 2;
    ulong at = (ulong)k->word * PLANES_LINES;
    for (uint w = 0; w < words; w++, a += PLANES_LINES, at += PLANES_LINES) {
        uint16 b[VECTORS];
        _Pragma("unroll") for (uint v = 0; v < vectors; v++) b[v] = vload16(0, s->b[v] + at);
        _Pragma("unroll") for (uint r = 0; r < TILE_ROWS; r++)
            _Pragma("unroll") for (uint v = 0; v < vectors; v++) acc[r][v] = pair_x16(acc[r][v], b[v], a[r]);
    }
    _Pragma("unroll") for (uint r = 0; r < TILE_ROWS; r++)
        _Pragma("unroll") for (uint v = 0; v < vectors; v++)
            vstore16(acc[r][v], 0, sums + r * TILE_COLUMNS + 16 * v);
}
enum { ROWS = TILE_ROWS };
#endif
