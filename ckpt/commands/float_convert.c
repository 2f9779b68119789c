/* float_convert.c - between float64, float32, bfloat16 and float16, on the bits. */
#include "float_convert.h"
#include "codec.h"
#include "format.h"
#include <string.h>

bool keel_is_float(enum keel_ckpt_dtype dtype)
{
    return dtype == KEEL_CKPT_F32 || dtype == KEEL_CKPT_F64 || dtype == KEEL_CKPT_BF16 ||
           dtype == KEEL_CKPT_F16;
}

/* A denormal is normal in float32: its leading one goes where the implicit one is. */
static uint32_t widen_f16(uint32_t half)
{
    uint32_t sign = (half & 0x8000U) << 16, exponent = half >> 10 & 0x1fU, mantissa = half & 0x3ffU;
    if (exponent == 0x1f)
        return sign | 0x7f800000U | mantissa << 13;
    if (exponent > 0)
        return sign | (exponent + 112) << 23 | mantissa << 13;
    if (mantissa == 0)
        return sign;
    uint32_t shift = (uint32_t)__builtin_clz(mantissa) - 21;
    return sign | (113 - shift) << 23 | (mantissa << (shift + 13) & 0x7fffffU);
}

static void widen(enum keel_ckpt_dtype from, const uint8_t *in, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t narrow;
        memcpy(&narrow, in + 2 * i, sizeof narrow);
        uint32_t wide = from == KEEL_CKPT_BF16 ? (uint32_t)narrow << 16 : widen_f16(narrow);
        memcpy(out + 4 * i, &wide, sizeof wide);
    }
}

/* From one 16-bit type to the other, by way of float32, which holds both. */
static void across(enum keel_ckpt_dtype to, enum keel_ckpt_dtype from, const uint8_t *in, size_t count,
                   uint8_t *out)
{
    enum { BLOCK = 1024 };
    uint8_t wide[BLOCK * sizeof(float)];
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t here = count - i < BLOCK ? count - i : BLOCK;
        widen(from, in + 2 * i, here, wide);
        keel_codec_round(to, KEEL_CKPT_F32, wide, here, out + 2 * i);
    }
}

uint64_t keel_float_convert(enum keel_ckpt_dtype to, enum keel_ckpt_dtype from, const void *in, size_t count,
                            void *out)
{
    KEEL_ASSERT(keel_is_float(from) && keel_is_float(to) && (to == from || to != KEEL_CKPT_F64));
    size_t in_bytes = count * keel_ckpt_dtype_bytes(from), out_bytes = count * keel_ckpt_dtype_bytes(to);
    if (to == from)
        memcpy(out, in, in_bytes);
    else if (keel_format_rounds(to, from))
        keel_codec_round(to, from, in, count, out);
    else if (to == KEEL_CKPT_F32)
        widen(from, in, count, out);
    else
        across(to, from, in, count, out);
    return to == from ? 0
                      : keel_codec_nonfinite(to, out, out_bytes) - keel_codec_nonfinite(from, in, in_bytes);
}
