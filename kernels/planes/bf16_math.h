/* bf16_math.h - products of bf16 pairs, in C and in OpenCL C (behind planes_math.h): the arithmetic of
 * VDPBF16PS (Intel, "Instruction set extensions and future features", 319433), which is that of a chain of
 * fp32 fma over the odd element of a pair, then the even one, without denormals: an operand that is one
 * counts as zero, and so does a sum. README.md, "bf16".
 *
 * A sum is no denormal if it is none with an exponent without a lower end, rounded to 24 bits: what lies
 * between (1 - 2^-24) 2^-126 and 2^-126 is zero, although it is rounded to 2^-126 where denormals are to be
 * had. So a sum of that size is made again 2^24 times as large. */
#ifndef KEEL_BF16_MATH_H
#define KEEL_BF16_MATH_H
#ifndef __OPENCL_C_VERSION__
#include "planes_math.h"
#endif

#define BF16_MATH(REAL, UINT, BITS, AS_REAL, FMA, ANY, TO_BF16, SUFFIX)                                      \
    static inline UINT bf16_bits##SUFFIX(UINT bits)                                                          \
    {                                                                                                        \
        return TO_BF16((bits & 0x7fffffffu) < 0x00800000u ? bits & 0x80000000u : bits);                      \
    }                                                                                                        \
    /* A sum, as a chain begins with it. */                                                                  \
    static inline __attribute__((unused)) REAL bf16_begin##SUFFIX(REAL sum)                                  \
    {                                                                                                        \
        const UINT bits = BITS(sum);                                                                         \
        return AS_REAL((bits & 0x7fffffffu) < 0x00800000u ? bits & 0x80000000u : bits);                      \
    }                                                                                                        \
    static inline REAL bf16_step##SUFFIX(REAL sum, REAL a, REAL b)                                           \
    {                                                                                                        \
        const REAL next = FMA(a, b, sum);                                                                    \
        const UINT bits = BITS(next);                                                                        \
        if (!ANY((bits & 0x7fffffffu) - 1u < 0x00800000u))                                                   \
            return next;                                                                                     \
        const UINT larger = BITS(FMA(a * 0x1p24f, b, sum * 0x1p24f));                                        \
        return AS_REAL((larger & 0x7fffffffu) < 0x0c800000u ? bits & 0x80000000u : bits);                    \
    }                                                                                                        \
    static inline REAL bf16_pair##SUFFIX(REAL sum, UINT a, UINT b)                                           \
    {                                                                                                        \
        sum = bf16_step##SUFFIX(sum, AS_REAL(a & 0xffff0000u), AS_REAL(b & 0xffff0000u));                    \
        return bf16_step##SUFFIX(sum, AS_REAL(a << 16), AS_REAL(b << 16));                                   \
    }

#endif
