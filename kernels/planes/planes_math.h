/* planes_math.h - products of prepared operands: blocks of k, and where words of both operands lie, in C and
 * in OpenCL C. The definitions are in README.md, "Classes of numerics".
 *
 * A line is a row of op(A) or a column of op(B), cut along k into blocks. Its elements lie in words: of an
 * exact class one digit of 4 of them, of the class bf16 2 of them whole, as bf16. */
#ifndef KEEL_PLANES_MATH_H
#define KEEL_PLANES_MATH_H
#ifndef __OPENCL_C_VERSION__
#include "canon.h"
#include <stdbool.h>
#endif

enum {
    PLANES_BLOCK = 1024, /* of k at most; what chains and sums of ints rely on */
    PLANES_LINES = 16,   /* lines that lie side by side, word by word */
    PLANES_STEP = 8,     /* a block has room for a multiple of so many words; what it lacks are zeros */
    PLANES_WAITING = 6   /* sums of slices that may wait for their right neighbours: of up to 64 */
};
#ifdef __OPENCL_C_VERSION__
#define planes_long ulong
#define planes_int  int
#else
#define planes_long uint64_t
#define planes_int  int32_t
#endif

/* ---- blocks of k ---- */

/* k, with its slices as kernels are given them (canon_slice_begin). */
struct planes_k {
    canon_word size, slices, units, unit;
    canon_word per_word; /* of k: 4 digits of an exact class, 2 elements in bf16 */
};
struct planes_block {
    canon_word first, length, end, slice; /* elements of k; `end` that of its slice */
    canon_word word;                      /* the first */
};

static inline canon_word planes_per_word(canon_word digits)
{
    return digits == 1 ? 2 : 4;
}

static inline canon_word planes_words(canon_word length, canon_word per_word)
{
    const canon_word step = per_word * PLANES_STEP;
    return (length + step - 1) / step * PLANES_STEP;
}

static inline canon_word planes_slice_end(const struct planes_k *k, canon_word slice)
{
    return k->slices == 0 ? k->size : canon_slice_begin(k->slices, k->units, k->unit, slice + 1);
}

static inline struct planes_block planes_first(const struct planes_k *k)
{
    struct planes_block b = {0, 0, planes_slice_end(k, 0), 0, 0};
    b.length = b.end < PLANES_BLOCK ? b.end : PLANES_BLOCK;
    return b;
}

static inline bool planes_ends_slice(const struct planes_block *b)
{
    return b->first + b->length == b->end;
}

/* Behind the last its length is 0. */
static inline void planes_next(const struct planes_k *k, struct planes_block *b)
{
    b->word += planes_words(b->length, k->per_word);
    b->first += b->length;
    if (b->first == b->end && b->end < k->size)
        b->end = planes_slice_end(k, ++b->slice);
    b->length = b->end - b->first < PLANES_BLOCK ? b->end - b->first : PLANES_BLOCK;
}

/* ---- where digits and exponents lie ---- */

/* In words of the planes: exponents of A, [batch][blocks][lines], those of B, digits of A,
 * [digits][batch][lines / 16] [words][16], of which a word has those of 4 k of one line, the first lowest;
 * those of B. Lines are rounded up to 16. The class bf16 has one "digit", its elements, and no exponents. */
struct planes_layout {
    planes_long b_exponents, a_digits, b_digits, end;
    planes_long a_step, b_step; /* from one digit to the next */
    canon_word a_lines, b_lines, words;
};

static inline canon_word planes_lines(canon_word lines)
{
    return (lines - 1) / PLANES_LINES * PLANES_LINES + PLANES_LINES;
}

static inline struct planes_layout planes_layout(canon_word m, canon_word n, canon_word batch,
                                                 canon_word blocks, canon_word words, canon_word digits)
{
    struct planes_layout l;
    l.a_lines = planes_lines(m);
    l.b_lines = planes_lines(n);
    l.words = words;
    l.b_exponents = digits > 1 ? (planes_long)batch * blocks * l.a_lines : 0;
    l.a_digits = digits > 1 ? l.b_exponents + (planes_long)batch * blocks * l.b_lines : 0;
    l.a_step = (planes_long)batch * l.a_lines * words;
    l.b_step = (planes_long)batch * l.b_lines * words;
    l.b_digits = l.a_digits + digits * l.a_step;
    l.end = l.b_digits + digits * l.b_step;
    return l;
}

#endif
