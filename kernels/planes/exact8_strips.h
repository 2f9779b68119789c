/* exact8_strips.h - a block of k of a tile of 8 x 48 elements by one work-item with vectors, in an exact
 * class (OpenCL C only, before planes_strips.h).
 *
 * A vector has 16 columns. Sums of ints lie in registers: of ROWS rows and VECTORS vectors, LEVELS each.
 * Where the device's facts say that the processor has AVX512-VNNI, dots are its instruction, which multiplies
 * unsigned bytes by signed ones: those of B go in with 128 added, and 128 times the sum of a row's digits is
 * taken off. Additions of ints modulo 2^32 give the same, whatever lies between. */
#if ITEMS == 1 && DIGITS > 1
enum { ROWS = DIGITS == 2 ? 4 : 2, LEVELS = DIGITS };

#if KEEL_PLANES_DOT == KEEL_DOT_VNNI
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

/* Sums of a block of k become values: they are added to the chains, of which they are the first with `first`.
 * Of the VECTORS of a tile the first `vectors` are there. */
CANON_INLINE void strip_block(const struct strip *s, const struct planes_block *k, uint number, uint r0,
                              bool first, const int *rows_of_digits, __local float *sums, const uint vectors)
{
    __global const uint *a = s->a + (ulong)k->word * PLANES_LINES + r0;
    int16 acc[ROWS][VECTORS][LEVELS];
    _Pragma("unroll") for (uint r = 0; r < ROWS; r++) _Pragma("unroll") for (uint v = 0; v < vectors; v++)
        _Pragma("unroll") for (uint l = 0; l < LEVELS; l++) acc[r][v][l] = (int16)(0);
    const uint words = planes_words(k->length, PER_WORD);
    ulong at = (ulong)k->word * PLANES_LINES;
    for (uint w = 0; w < words; w++, a += PLANES_LINES, at += PLANES_LINES) {
        uint16 b[VECTORS][DIGITS];
        _Pragma("unroll") for (uint v = 0; v < vectors; v++)
            _Pragma("unroll") for (uint d = 0; d < DIGITS; d++) b[v][d] =
                vload16(0, s->b[v] + d * s->b_step + at) ^ BIAS_BYTES;
        _Pragma("unroll") for (uint r = 0; r < ROWS; r++) _Pragma("unroll") for (uint i = 0; i < DIGITS; i++)
        {
            const uint digits = a[i * s->a_step + r];
            _Pragma("unroll") for (uint j = 0; i + j < DIGITS; j++)
                _Pragma("unroll") for (uint v = 0; v < vectors; v++) acc[r][v][i + j] =
                    dot_x16(acc[r][v][i + j], b[v][j], digits);
        }
    }
    _Pragma("unroll") for (uint v = 0; v < vectors; v++)
    {
        const int16 eb = vload16(0, s->b_exponents[v] + (ulong)number * s->b_lines);
        _Pragma("unroll") for (uint r = 0; r < ROWS; r++)
        {
            const int e = s->a_exponents[(ulong)number * s->a_lines + r0 + r] - 8 * DIGITS - 6;
            float16 value = (float16)(0.0f);
            _Pragma("unroll") for (uint l = LEVELS; l-- > 0;)
            {
                int16 sum = acc[r][v][l];
#if KEEL_PLANES_DOT == KEEL_DOT_VNNI
                int taken = 0;
                for (uint i = 0; i <= l; i++)
                    taken += rows_of_digits[i * PLANES_LINES + r0 + r];
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
#endif
