/* exact8_math.h - products as sums of integers: blocks of k, digits, values, in C and in OpenCL C. The
 * definition is in README.md, "Exact products".
 *
 * A line is a row of op(A) or a column of op(B), cut along k into blocks. In a block all elements of a line
 * have one exponent e, above the largest of them, and are N signed digits of 8 bits: x = 2^(e - 7) (d_0 + d_1
 * / 256 + ...). */
#ifndef KEEL_EXACT8_MATH_H
#define KEEL_EXACT8_MATH_H
#ifndef __OPENCL_C_VERSION__
#include "canon.h"
#include <stdbool.h>
#endif

enum {
    EXACT8_BLOCK = 1024, /* of k at most; what chains and sums of ints rely on */
    EXACT8_LINES = 16,   /* lines that lie side by side, word by word */
    EXACT8_STEP = 8,     /* a block has a multiple of so many words of 4 digits; what it lacks are zeros */
    EXACT8_DIGITS_MAX = 3,
    EXACT8_WAITING = 6,       /* sums of slices that may wait for their right neighbours: of up to 64 */
    EXACT8_NOT_FINITE = 65536 /* exponent of a block with an infinity or a NaN */
};
#ifdef __OPENCL_C_VERSION__
#define exact8_long ulong
#define exact8_int  int
#else
#define exact8_long uint64_t
#define exact8_int  int32_t
#endif

/* ---- blocks of k ---- */

/* k, with its slices as kernels are given them (canon_slice_begin). */
struct exact8_k {
    canon_word size, slices, units, unit;
};
struct exact8_block {
    canon_word first, length, end, slice; /* elements of k; `end` that of its slice */
    canon_word word;                      /* the first */
};

static inline canon_word exact8_words(canon_word length)
{
    return (length + 4 * EXACT8_STEP - 1) / (4 * EXACT8_STEP) * EXACT8_STEP;
}

static inline canon_word exact8_slice_end(const struct exact8_k *k, canon_word slice)
{
    return k->slices == 0 ? k->size : canon_slice_begin(k->slices, k->units, k->unit, slice + 1);
}

static inline struct exact8_block exact8_first(const struct exact8_k *k)
{
    struct exact8_block b = {0, 0, exact8_slice_end(k, 0), 0, 0};
    b.length = b.end < EXACT8_BLOCK ? b.end : EXACT8_BLOCK;
    return b;
}

static inline bool exact8_ends_slice(const struct exact8_block *b)
{
    return b->first + b->length == b->end;
}

/* Behind the last its length is 0. */
static inline void exact8_next(const struct exact8_k *k, struct exact8_block *b)
{
    b->word += exact8_words(b->length);
    b->first += b->length;
    if (b->first == b->end && b->end < k->size)
        b->end = exact8_slice_end(k, ++b->slice);
    b->length = b->end - b->first < EXACT8_BLOCK ? b->end - b->first : EXACT8_BLOCK;
}

/* ---- where digits and exponents lie ---- */

/* In words of the planes: exponents of A, [batch][blocks][lines], those of B, digits of A,
 * [digits][batch][lines / 16] [words][16], of which a word has those of 4 k of one line, the first lowest;
 * those of B. Lines are rounded up to 16. */
struct exact8_layout {
    exact8_long b_exponents, a_digits, b_digits, end;
    exact8_long a_step, b_step; /* from one digit to the next */
    canon_word a_lines, b_lines, words;
};

static inline canon_word exact8_lines(canon_word lines)
{
    return (lines - 1) / EXACT8_LINES * EXACT8_LINES + EXACT8_LINES;
}

static inline struct exact8_layout exact8_layout(canon_word m, canon_word n, canon_word batch,
                                                 canon_word blocks, canon_word words, canon_word digits)
{
    struct exact8_layout l;
    l.a_lines = exact8_lines(m);
    l.b_lines = exact8_lines(n);
    l.words = words;
    l.b_exponents = (exact8_long)batch * blocks * l.a_lines;
    l.a_digits = l.b_exponents + (exact8_long)batch * blocks * l.b_lines;
    l.a_step = (exact8_long)batch * l.a_lines * words;
    l.b_step = (exact8_long)batch * l.b_lines * words;
    l.b_digits = l.a_digits + digits * l.a_step;
    l.end = l.b_digits + digits * l.b_step;
    return l;
}

/* ---- digits ---- */

/* The exponent of a block of a line whose largest pattern without sign is `most`: |x| < 127/128 * 2^e.
 * Denormals count as zero. */
static inline exact8_int exact8_exponent(canon_word most)
{
    return most < 0x00800000u    ? 0
           : most >= 0x7f800000u ? EXACT8_NOT_FINITE
                                 : (exact8_int)((most + 0x20000u) >> 23) - 126;
}

/* x * 2^(8 digits - 1 - e) to the nearest integer, halves away from zero, of the pattern of x; and the last
 * digit of such an integer, and what is left for the others. One text for one number and for sixteen. */
#define EXACT8_DIGITS(UINT, INT, AS_UINT, AS_INT, SUFFIX)                                                    \
    static inline INT exact8_integer##SUFFIX(UINT bits, INT e, canon_word digits)                            \
    {                                                                                                        \
        const INT field = AS_INT((bits >> 23) & 255u);                                                       \
        const UINT mantissa = (bits & 0x7fffffu) | 0x800000u;                                                \
        INT shift = e - field + (151 - 8 * (exact8_int)digits);                                              \
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
    static inline REAL exact8_float##SUFFIX(INT s)                                                           \
    {                                                                                                        \
        return FMA(TO_REAL(s >> 12), (REAL)(4096.0f), TO_REAL(s & 4095));                                    \
    }                                                                                                        \
    static inline REAL exact8_scale##SUFFIX(REAL r, INT e)                                                   \
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
