/* compressed_model.h - the lossy formats in the plainest words, and floats that every process can make for
 * itself.
 */
#ifndef KEEL_TESTS_LEAN_MODEL_H
#define KEEL_TESTS_LEAN_MODEL_H

#include <keel/transport_compressed.h>
#include <math.h>
#include <string.h>

static inline uint64_t compressed_mix(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * UINT64_C(0x9e3779b97f4a7c15) + index * UINT64_C(0xbf58476d1ce4e5b9) + 1;
    z = (z ^ (z >> 29)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 32);
}

/* Any finite float. */
static inline float compressed_any(uint64_t seed, uint64_t index)
{
    uint32_t bits = (uint32_t)compressed_mix(seed, index);
    float value;
    if ((bits & 0x7f800000) == 0x7f800000)
        bits ^= 0x40000000;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Of some orders of magnitude around 1. */
static inline float compressed_value(uint64_t seed, uint64_t index)
{
    uint64_t z = compressed_mix(seed, index);
    return ldexpf((float)(int32_t)(z & 0xffffff) - 0x1p23f, (int)(z >> 40) % 12 - 28);
}

static inline float compressed_nan(void)
{
    uint32_t bits = 0x7fc00000;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The nearest number of the format; infinite and NaN as they are. */
static inline float compressed_model_half(enum keel_compressed_format format, float value)
{
    const double largest = format == KEEL_COMPRESSED_F16 ? 65504.0 : 0x1.fep127;
    if (isnan(value))
        return compressed_nan();
    if (isinf(value))
        return value;
    if (fabs((double)value) > largest)
        return value > 0 ? (float)largest : (float)-largest;
    const int digits = format == KEEL_COMPRESSED_F16 ? 11 : 8,
              least = format == KEEL_COMPRESSED_F16 ? -24 : -133;
    int exponent;
    frexpf(value, &exponent);
    int last = exponent - digits > least ? exponent - digits : least; /* weight of the last digit */
    double rounded = ldexp(nearbyint(ldexp((double)value, -last)), last);
    return copysignf((float)fmin(fmax(rounded, -largest), largest), value);
}

/* One block of at most 256. A signed byte has but one zero. */
static inline void compressed_model_block(uint64_t count, const float *given, const float *kept, float *out,
                                          float *keep)
{
    float largest = 0, scale;
    bool finite = true;
    for (uint64_t i = 0; i < count; i++) {
        float value = given[i] + kept[i];
        finite = finite && isfinite(value);
        largest = fabsf(value) > largest ? fabsf(value) : largest;
    }
    scale = largest / 127.0f;
    if (isinf(scale * 127.0f))
        scale = nextafterf(scale, 0);
    for (uint64_t i = 0; i < count; i++) {
        float value = given[i] + kept[i];
        float steps = scale > 0 ? rintf(fminf(fmaxf(value / scale, -127.0f), 127.0f)) + 0.0f : 0.0f;
        out[i] = finite ? scale * steps : compressed_nan();
        keep[i] = finite ? value - scale * steps : kept[i];
    }
}

/* Coded and decoded, and what is kept next. */
static inline void compressed_model_code(enum keel_compressed_format format, uint64_t count,
                                         const float *given, const float *kept, float *out, float *keep)
{
    for (uint64_t i = 0; i < count && format == KEEL_COMPRESSED_I8; i += 256)
        compressed_model_block(count - i < 256 ? count - i : 256, given + i, kept + i, out + i, keep + i);
    for (uint64_t i = 0; i < count && format != KEEL_COMPRESSED_I8; i++) {
        float value = given[i] + kept[i];
        out[i] = compressed_model_half(format, value);
        keep[i] = isfinite(value) ? value - out[i] : kept[i];
    }
}

#endif
