/* half.h - values of 32 bits and of 16, as both the arithmetic on blocks and the lossy formats use them.
 *
 * Owns the conversions between fp32 and fp16 or bf16 (nearest, ties to even; every NaN becomes the positive
 * quiet one without payload, so that bits agree) and the marks that let the compiler turn a loop over them
 * into vectors. In a header because they are the bodies of such loops. */
#ifndef KEEL_TRANSPORT_HALF_H
#define KEEL_TRANSPORT_HALF_H

#include <keel/bits.h>
#include <stdbool.h>
#include <stdint.h>

/* Clones are chosen before a sanitizer is up: the build says KEEL_ONE_CLONE under one. */
#if defined __x86_64__ && defined __GNUC__ && !defined __clang__ && !defined KEEL_ONE_CLONE
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#if defined __GNUC__ && !defined __clang__
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif

#define F32_NAN UINT32_C(0x7fc00000)

static inline bool f32_nan(uint32_t bits)
{
    return (bits & UINT32_C(0x7fffffff)) > UINT32_C(0x7f800000);
}

static inline float f32_sum(float a, float b)
{
    uint32_t sum = keel_bits_of(a + b);
    return keel_float_of(f32_nan(sum) ? F32_NAN : sum);
}

/* ---- half precision in 32-bit arithmetic, without branches ---- */

/* Exponent and fraction moved to their places in a float are the value times 2^-112, subnormals included. */
static inline float f16_wide(uint16_t half)
{
    uint32_t size = half & UINT32_C(0x7fff), sign = (uint32_t)(half & UINT32_C(0x8000)) << 16;
    uint32_t bits = keel_bits_of(keel_float_of(size << 13) * 0x1p112f);
    bits |= size >= UINT32_C(0x7c00) ? UINT32_C(0x7f800000) : 0;
    return keel_float_of(bits | sign);
}

/* Nearest, ties to even: by the carry of an integer addition where the half is normal (overflow becomes
 * infinity by the same carry), by the addition of 0.5, whose last place is the half's, where it is not. */
static inline uint16_t f16_narrow(float value)
{
    uint32_t bits = keel_bits_of(value), size = bits & UINT32_C(0x7fffffff);
    uint32_t normal = (size - UINT32_C(0x38000000) + UINT32_C(0xfff) + ((size >> 13) & 1)) >> 13;
    uint32_t small = keel_bits_of(keel_float_of(size) + 0.5f) - UINT32_C(0x3f000000);
    uint32_t half = size < UINT32_C(0x38800000) ? small : normal;
    half = size >= UINT32_C(0x477ff000) ? UINT32_C(0x7c00) : half;
    half |= (bits >> 16) & UINT32_C(0x8000);
    return (uint16_t)(size > UINT32_C(0x7f800000) ? UINT32_C(0x7e00) : half);
}

static inline float bf16_wide(uint16_t half)
{
    return keel_float_of((uint32_t)half << 16);
}

static inline uint16_t bf16_narrow(float value)
{
    uint32_t bits = keel_bits_of(value);
    uint32_t half = (bits + UINT32_C(0x7fff) + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)(f32_nan(bits) ? UINT32_C(0x7fc0) : half);
}

#endif
