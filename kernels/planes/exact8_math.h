/* exact8_math.h - products as sums of integers: digits and values, in C and in OpenCL C (behind
 * planes_math.h). The definition is in README.md, "Exact products".
 *
 * In a block of k all elements of a line have one exponent e, above the largest of them, and are N signed
 * digits of 8 bits: x = 2^(e - 7) (d_0 + d_1 / 256 + ...). */
#ifndef KEEL_EXACT8_MATH_H
#define KEEL_EXACT8_MATH_H
#ifndef __OPENCL_C_VERSION__
#include "planes_math.h"
#endif

enum {
    EXACT8_DIGITS_MAX = 3,
    EXACT8_NOT_FINITE = 65536, /* exponent of a block with an infinity or a NaN */
    EXACT8_UNIT = 0x3f7e0000   /* the pattern of 127/128, which lines of a fixed exponent 0 are below */
};

/* ---- digits ---- */

/* The exponent of a block of a line whose largest pattern without sign is `most`: |x| < 127/128 * 2^e.
 * Denormals count as zero. */
static inline planes_int exact8_exponent(canon_word most)
{
    return most < 0x00800000u    ? 0
           : most >= 0x7f800000u ? EXACT8_NOT_FINITE
                                 : (planes_int)((most + 0x20000u) >> 23) - 126;
}

/* The same of lines whose exponent is fixed, or not. */
static inline planes_int exact8_exponent_of(canon_word most, bool unit)
{
    return !unit ? exact8_exponent(most) : most < EXACT8_UNIT ? 0 : EXACT8_NOT_FINITE;
}

/* x * 2^(8 digits - 1 - e) to the nearest integer, halves away from zero, of the pattern of x; and the last
 * digit of such an integer, and what is left for the others. One text for one number and for sixteen. */
#define EXACT8_DIGITS(UINT, INT, AS_UINT, AS_INT, SUFFIX)                                                    \
    static inline INT exact8_integer##SUFFIX(UINT bits, INT e, canon_word digits)                            \
    {                                                                                                        \
        const INT field = AS_INT((bits >> 23) & 255u);                                                       \
        const UINT mantissa = (bits & 0x7fffffu) | 0x800000u;                                                \
        INT shift = e - field + (151 - 8 * (planes_int)digits);                                              \
        shift = shift > 31 ? (INT)(31) : shift;                                                              \
        const INT q = AS_INT((mantissa + ((UINT)(1) << AS_UINT(shift - 1))) >> AS_UINT(shift));              \
        const INT there = field == 0 ? (INT)(0) : q;                                                         \
        return AS_INT(bits) < 0 ? -there : there;                                                            \
    }                                                                                                        \
    static inline INT exact8_digit##SUFFIX(INT *q)                                                           \
    {                                                                                                        \
        const INT digit = ((*q + 128) & 255) - 128;                                                          \
        *q = (*q - digit) >> 8;                                                                              \
        return digit;                                                                                        \
    }

/* ---- values ---- */

/* Sums of pairs of digits i, j with i + j = level, for level 0 to digits - 1, to a float, from the last level
 * up; then times 2^e, where e is the sum of both exponents - 8 digits - 6. What is below 2^-126 is +0. */
#define EXACT8_VALUE(REAL, UINT, INT, BITS, AS_UINT, AS_INT, AS_REAL, TO_REAL, FMA, SUFFIX)                  \
    static inline __attribute__((unused)) REAL exact8_float##SUFFIX(INT s)                                   \
    {                                                                                                        \
        return FMA(TO_REAL(s >> 12), (REAL)(4096.0f), TO_REAL(s & 4095));                                    \
    }                                                                                                        \
    static inline __attribute__((unused)) REAL exact8_scale##SUFFIX(REAL r, INT e)                           \
    {                                                                                                        \
        const UINT bits = BITS(r), sign = bits & 0x80000000u;                                                \
        const INT field = AS_INT((bits >> 23) & 255u), moved = field + e;                                    \
        UINT y = (bits & 0x807fffffu) | (AS_UINT(moved) << 23);                                              \
        y = moved >= 255 ? sign | 0x7f800000u : y;                                                           \
        y = moved <= 0 ? (UINT)(0) : y;                                                                      \
        y = field == 0 ? (UINT)(0) : y;                                                                      \
        y = e > EXACT8_NOT_FINITE / 2 ? (UINT)(0x7fc00000u) : y;                                             \
        return AS_REAL(y);                                                                                   \
    }

#endif
