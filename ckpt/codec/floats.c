/* floats.c - what the same codec and the refusal of NaN need to know of floating-point numbers: rounding to a
 * narrower type, and counting what is not finite.
 *
 * All in integers, on the bits: a process may have changed the rounding mode or flush denormals to zero, and
 * a copy verified at save must be made again bit for bit elsewhere. The loops have no branches, so that the
 * compiler vectorises them (vector.h). Left to others: which record is a copy of which. */
#include "codec.h"
#include "format.h"
#include "vector.h"
#include <string.h>

/* A binary format: mantissa bits that are stored, and exponent bits. */
enum { F64_MANTISSA = 52, F64_EXPONENT = 11, F32_MANTISSA = 23, F32_EXPONENT = 8 };
enum { F16_MANTISSA = 10, F16_EXPONENT = 5, BF16_MANTISSA = 7, BF16_EXPONENT = 8 };

/* ---- one element --------------------------------------------------------------------------------------- */

/* float32 to `mantissa` and `exponent` bits (constants where it is inlined). With the magnitude as an
 * integer:
 *   normal     drop the low bits, rounded to even, and move the exponent; a carry goes into the exponent, and
 *              what comes to lie above infinity is infinity
 *   denormal   in the narrow format: shift the mantissa, its leading one in place, by what is missing
 *   NaN        top bits of the payload, made quiet */
KEEL_VECTOR_BODY uint32_t narrow_f32(uint32_t x, uint32_t mantissa, uint32_t exponent)
{
    const uint32_t drop = F32_MANTISSA - mantissa;
    const uint32_t moved = (1U << (F32_EXPONENT - 1)) - (1U << (exponent - 1));
    const uint32_t infinity = ((1U << exponent) - 1) << mantissa;
    const uint32_t sign = x >> 31 << (mantissa + exponent), magnitude = x & 0x7fffffffU;
    uint32_t out =
        (magnitude - (moved << F32_MANTISSA) + (1U << (drop - 1)) - 1 + ((magnitude >> drop) & 1)) >> drop;
    out = out < infinity ? out : infinity;
    if (moved > 0) {
        uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
        uint32_t shift = drop + moved + 1 - (magnitude >> F32_MANTISSA);
        shift = shift - 1 < F32_MANTISSA + 1 ? shift : F32_MANTISSA + 2; /* 0: not a denormal, not used */
        uint32_t small = (significand + (1U << (shift - 1)) - 1 + ((significand >> shift) & 1)) >> shift;
        out = magnitude < (moved + 1) << F32_MANTISSA ? small : out;
    }
    uint32_t nan = infinity | 1U << (mantissa - 1) | ((magnitude & 0x7fffffU) >> drop);
    return sign | (magnitude > 0x7f800000U ? nan : out);
}

/* The same from float64. */
KEEL_VECTOR_BODY uint64_t narrow_f64(uint64_t x, uint32_t mantissa, uint32_t exponent)
{
    const uint64_t one = 1, fraction = (one << F64_MANTISSA) - 1;
    const uint32_t drop = F64_MANTISSA - mantissa;
    const uint64_t moved = (one << (F64_EXPONENT - 1)) - (one << (exponent - 1));
    const uint64_t infinity = ((one << exponent) - 1) << mantissa;
    const uint64_t sign = x >> 63 << (mantissa + exponent), magnitude = x & ~(one << 63);
    uint64_t out =
        (magnitude - (moved << F64_MANTISSA) + (one << (drop - 1)) - 1 + ((magnitude >> drop) & 1)) >> drop;
    out = out < infinity ? out : infinity;
    uint64_t significand = (magnitude & fraction) | one << F64_MANTISSA;
    uint64_t shift = drop + moved + 1 - (magnitude >> F64_MANTISSA);
    shift = shift - 1 < F64_MANTISSA + 1 ? shift : F64_MANTISSA + 2;
    uint64_t small = (significand + (one << (shift - 1)) - 1 + ((significand >> shift) & 1)) >> shift;
    out = magnitude < (moved + 1) << F64_MANTISSA ? small : out;
    uint64_t nan = infinity | one << (mantissa - 1) | ((magnitude & fraction) >> drop);
    return sign | (magnitude > 0x7ff0000000000000U ? nan : out);
}

/* ---- arrays -------------------------------------------------------------------------------------------- */

KEEL_VECTOR_BODY void round_f32(const uint8_t *restrict master, size_t count, uint8_t *restrict out,
                                uint32_t mantissa, uint32_t exponent)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t x;
        memcpy(&x, master + 4 * i, sizeof x);
        uint16_t y = (uint16_t)narrow_f32(x, mantissa, exponent);
        memcpy(out + 2 * i, &y, sizeof y);
    }
}

KEEL_VECTOR_BODY void round_f64(const uint8_t *restrict master, size_t count, uint8_t *restrict out,
                                uint32_t mantissa, uint32_t exponent)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t x;
        memcpy(&x, master + 8 * i, sizeof x);
        uint16_t y = (uint16_t)narrow_f64(x, mantissa, exponent);
        memcpy(out + 2 * i, &y, sizeof y);
    }
}

KEEL_VECTOR_BODY void round_f64_to_f32(const uint8_t *restrict master, size_t count, uint8_t *restrict out)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t x;
        memcpy(&x, master + 8 * i, sizeof x);
        uint32_t y = (uint32_t)narrow_f64(x, F32_MANTISSA, F32_EXPONENT);
        memcpy(out + 4 * i, &y, sizeof y);
    }
}

KEEL_VECTOR_BODY void round_any(enum keel_ckpt_dtype copy_dtype, enum keel_ckpt_dtype master_dtype,
                                const uint8_t *master, size_t count, uint8_t *out)
{
    bool from_f32 = master_dtype == KEEL_CKPT_F32;
    if (copy_dtype == KEEL_CKPT_F32)
        round_f64_to_f32(master, count, out);
    else if (copy_dtype == KEEL_CKPT_BF16 && from_f32)
        round_f32(master, count, out, BF16_MANTISSA, BF16_EXPONENT);
    else if (copy_dtype == KEEL_CKPT_BF16)
        round_f64(master, count, out, BF16_MANTISSA, BF16_EXPONENT);
    else if (from_f32)
        round_f32(master, count, out, F16_MANTISSA, F16_EXPONENT);
    else
        round_f64(master, count, out, F16_MANTISSA, F16_EXPONENT);
}

static void round_plain(enum keel_ckpt_dtype copy_dtype, enum keel_ckpt_dtype master_dtype,
                        const uint8_t *master, size_t count, uint8_t *out)
{
    round_any(copy_dtype, master_dtype, master, count, out);
}

KEEL_VECTOR_AVX2 static void round_avx2(enum keel_ckpt_dtype copy_dtype, enum keel_ckpt_dtype master_dtype,
                                        const uint8_t *master, size_t count, uint8_t *out)
{
    round_any(copy_dtype, master_dtype, master, count, out);
}

void keel_codec_round(enum keel_ckpt_dtype copy_dtype, enum keel_ckpt_dtype master_dtype, const void *master,
                      size_t count, void *out)
{
    KEEL_ASSERT(keel_format_rounds(copy_dtype, master_dtype));
    if (keel_vector_avx2())
        round_avx2(copy_dtype, master_dtype, master, count, out);
    else
        round_plain(copy_dtype, master_dtype, master, count, out);
}

bool keel_codec_rounds_same(enum keel_ckpt_dtype copy_dtype, enum keel_ckpt_dtype master_dtype,
                            const void *copy, const void *master, size_t count)
{
    enum { BLOCK = 1024 }; /* elements that are rounded and compared while in the first-level cache */
    uint8_t rounded[BLOCK * sizeof(float)];
    size_t copy_bytes = keel_ckpt_dtype_bytes(copy_dtype), master_bytes = keel_ckpt_dtype_bytes(master_dtype);
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t here = count - i < BLOCK ? count - i : BLOCK;
        keel_codec_round(copy_dtype, master_dtype, (const uint8_t *)master + i * master_bytes, here, rounded);
        if (memcmp(rounded, (const uint8_t *)copy + i * copy_bytes, here * copy_bytes) != 0)
            return false;
    }
    return true;
}

/* ---- not finite ---------------------------------------------------------------------------------------- */

/* Blocks are short, so that their counts fit the width of an element: vectors of one type. */
enum { COUNT_BLOCK = 4096 };

KEEL_VECTOR_BODY uint64_t nonfinite_16(const uint8_t *data, size_t count, uint16_t exponent)
{
    uint64_t found = 0;
    for (size_t from = 0; from < count; from += COUNT_BLOCK) {
        size_t end = count - from < COUNT_BLOCK ? count : from + COUNT_BLOCK;
        uint16_t here = 0;
        for (size_t i = from; i < end; i++) {
            uint16_t x;
            memcpy(&x, data + 2 * i, sizeof x);
            here = (uint16_t)(here + ((x & exponent) == exponent));
        }
        found += here;
    }
    return found;
}

KEEL_VECTOR_BODY uint64_t nonfinite_32(const uint8_t *data, size_t count)
{
    uint64_t found = 0;
    for (size_t from = 0; from < count; from += COUNT_BLOCK) {
        size_t end = count - from < COUNT_BLOCK ? count : from + COUNT_BLOCK;
        uint32_t here = 0;
        for (size_t i = from; i < end; i++) {
            uint32_t x;
            memcpy(&x, data + 4 * i, sizeof x);
            here += (x & 0x7f800000U) == 0x7f800000U;
        }
        found += here;
    }
    return found;
}

KEEL_VECTOR_BODY uint64_t nonfinite_64(const uint8_t *data, size_t count)
{
    uint64_t found = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t x;
        memcpy(&x, data + 8 * i, sizeof x);
        found += (x & 0x7ff0000000000000U) == 0x7ff0000000000000U;
    }
    return found;
}

KEEL_VECTOR_BODY uint64_t nonfinite_any(enum keel_ckpt_dtype dtype, const uint8_t *data, size_t bytes)
{
    switch (dtype) {
    case KEEL_CKPT_F32:
        return nonfinite_32(data, bytes / 4);
    case KEEL_CKPT_F64:
        return nonfinite_64(data, bytes / 8);
    case KEEL_CKPT_BF16:
        return nonfinite_16(data, bytes / 2, 0x7f80);
    case KEEL_CKPT_F16:
        return nonfinite_16(data, bytes / 2, 0x7c00);
    default:
        return 0;
    }
}

static uint64_t nonfinite_plain(enum keel_ckpt_dtype dtype, const uint8_t *data, size_t bytes)
{
    return nonfinite_any(dtype, data, bytes);
}

KEEL_VECTOR_AVX2 static uint64_t nonfinite_avx2(enum keel_ckpt_dtype dtype, const uint8_t *data, size_t bytes)
{
    return nonfinite_any(dtype, data, bytes);
}

uint64_t keel_codec_nonfinite(enum keel_ckpt_dtype dtype, const void *data, size_t bytes)
{
    return keel_vector_avx2() ? nonfinite_avx2(dtype, data, bytes) : nonfinite_plain(dtype, data, bytes);
}
