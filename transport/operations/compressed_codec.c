/* compressed_codec.c - the loops of the lossy formats.
 *
 * One pass: read what is given and what is kept, write the code and what is kept next. Loops go element by
 * element, so that the compiler makes vectors of them. What is lost, v - decoded(v), is exact in fp32 where v
 * is rounded to one of its neighbours (Sterbenz 1974), which is why nothing drains away over the steps. */
#include "compressed_codec.h"

#include "half.h"

#include <keel/memory.h>

#define F32_INFINITY UINT32_C(0x7f800000)
#define F32_SIZE     UINT32_C(0x7fffffff)

static uint64_t blocks_of(uint64_t count)
{
    return (count + KEEL_COMPRESSED_BLOCK - 1) / KEEL_COMPRESSED_BLOCK;
}

uint64_t keel_compressed_coded_bytes(enum keel_compressed_format format, uint64_t count)
{
    if (format == KEEL_COMPRESSED_I8)
        return blocks_of(count) * sizeof(float) + count;
    return 2 * count;
}

/* ---- 16 bits ------------------------------------------------------------------------------------------- */

/* coded[i], keep[i] of v = given[i] + kept[i]; the code below infinity is the largest number. */
#define EACH_HALF(narrow, wide, infinity)                                                                    \
    INDEPENDENT for (uint64_t i = 0; i < count; i++)                                                         \
    {                                                                                                        \
        float v = given[i] + kept[i];                                                                        \
        bool finite = (f32_bits(v) & F32_SIZE) < F32_INFINITY;                                               \
        uint32_t half = narrow(v);                                                                           \
        half -= finite && (half & 0x7fff) == (infinity);                                                     \
        coded[i] = (uint16_t)half;                                                                           \
        keep[i] = finite ? v - wide((uint16_t)half) : kept[i];                                               \
    }

CLONES static void f16_encode(const float *given, const float *kept, uint64_t count, uint16_t *coded,
                              float *keep){EACH_HALF(f16_narrow, f16_wide, 0x7c00)}

CLONES static void bf16_encode(const float *given, const float *kept, uint64_t count, uint16_t *coded,
                               float *keep){EACH_HALF(bf16_narrow, bf16_wide, 0x7f80)}

CLONES static void f16_decode(const uint16_t *coded, uint64_t count, bool add, float *out)
{
    if (add)
        INDEPENDENT for (uint64_t i = 0; i < count; i++) out[i] = f32_sum(out[i], f16_wide(coded[i]));
    else
        INDEPENDENT for (uint64_t i = 0; i < count; i++) out[i] = f16_wide(coded[i]);
}

CLONES static void bf16_decode(const uint16_t *coded, uint64_t count, bool add, float *out)
{
    if (add)
        INDEPENDENT for (uint64_t i = 0; i < count; i++) out[i] = f32_sum(out[i], bf16_wide(coded[i]));
    else
        INDEPENDENT for (uint64_t i = 0; i < count; i++) out[i] = bf16_wide(coded[i]);
}

/* ---- 8 bits -------------------------------------------------------------------------------------------- */

/* 127 steps must not pass the largest float, so that all that is finite decodes to what is. */
static float scale_of(uint32_t largest_bits)
{
    float scale = f32_of(largest_bits) / 127.0f;
    if ((f32_bits(scale * 127.0f) & F32_SIZE) >= F32_INFINITY)
        scale = f32_of(f32_bits(scale) - 1);
    return scale;
}

/* Of steps rather than of a reciprocal, which may be infinite. The constant's last place is 1: adding it
 * rounds to the nearest whole number, ties to even. */
static inline float steps_of(float value, float scale)
{
    const float whole = 0x1.8p23f;
    float steps = value / scale;
    steps = steps > 127.0f ? 127.0f : steps;
    steps = steps < -127.0f ? -127.0f : steps;
    return (steps + whole) - whole;
}

static inline void i8_block(const float *given, const float *kept, uint64_t count, uint8_t *scale_at,
                            int8_t *bytes, float *keep)
{
    uint32_t largest = 0;
    INDEPENDENT for (uint64_t i = 0; i < count; i++)
    {
        keep[i] = given[i] + kept[i];
        uint32_t size = f32_bits(keep[i]) & F32_SIZE;
        largest = size > largest ? size : largest;
    }
    bool finite = largest < F32_INFINITY;
    float scale = finite ? scale_of(largest) : f32_of(F32_NAN);
    memcpy(scale_at, &scale, sizeof scale);
    if (!finite)
        memcpy(keep, kept, keel_size(count * sizeof *keep));
    if (!finite || f32_bits(scale) == 0) {
        memset(bytes, 0, keel_size(count));
        return;
    }
    INDEPENDENT for (uint64_t i = 0; i < count; i++)
    {
        float steps = steps_of(keep[i], scale);
        bytes[i] = (int8_t)(int32_t)steps;
        keep[i] -= scale * steps;
    }
}

CLONES static void i8_encode(struct keel_compressed_run run, const float *given, const float *kept,
                             uint8_t *coded, float *keep)
{
    uint8_t *scales = coded + run.first / KEEL_COMPRESSED_BLOCK * sizeof(float);
    int8_t *bytes = (int8_t *)coded + blocks_of(run.whole) * sizeof(float) + run.first;
    for (uint64_t at = 0; at < run.count; at += KEEL_COMPRESSED_BLOCK, scales += sizeof(float)) {
        uint64_t left = run.count - at, count = left < KEEL_COMPRESSED_BLOCK ? left : KEEL_COMPRESSED_BLOCK;
        i8_block(given + at, kept + at, count, scales, bytes + at, keep + at);
    }
}

static inline void i8_block_decode(float scale, const int8_t *bytes, uint64_t count, bool add, float *out)
{
    if (f32_nan(f32_bits(scale)))
        for (uint64_t i = 0; i < count; i++)
            out[i] = f32_of(F32_NAN);
    else if (add)
        INDEPENDENT for (uint64_t i = 0; i < count; i++) out[i] = f32_sum(out[i], scale * (float)bytes[i]);
    else
        INDEPENDENT for (uint64_t i = 0; i < count; i++) out[i] = scale * (float)bytes[i];
}

CLONES static void i8_decode(struct keel_compressed_run run, const uint8_t *coded, bool add, float *out)
{
    const uint8_t *scales = coded + run.first / KEEL_COMPRESSED_BLOCK * sizeof(float);
    const int8_t *bytes = (const int8_t *)coded + blocks_of(run.whole) * sizeof(float) + run.first;
    for (uint64_t at = 0; at < run.count; at += KEEL_COMPRESSED_BLOCK, scales += sizeof(float)) {
        uint64_t left = run.count - at, count = left < KEEL_COMPRESSED_BLOCK ? left : KEEL_COMPRESSED_BLOCK;
        float scale;
        memcpy(&scale, scales, sizeof scale);
        i8_block_decode(scale, bytes + at, count, add, out + at);
    }
}

/* ---- by format ----------------------------------------------------------------------------------------- */

void keel_compressed_encode(enum keel_compressed_format format, struct keel_compressed_run run,
                            const float *given, const float *kept, uint8_t *coded, float *keep)
{
    void *halves = coded + 2 * run.first;
    KEEL_ASSERT(format < KEEL_COMPRESSED_TOP_K && run.first % KEEL_COMPRESSED_BLOCK == 0);
    KEEL_ASSERT(run.first + run.count <= run.whole);
    if (format == KEEL_COMPRESSED_F16)
        f16_encode(given, kept, run.count, halves, keep);
    else if (format == KEEL_COMPRESSED_BF16)
        bf16_encode(given, kept, run.count, halves, keep);
    else
        i8_encode(run, given, kept, coded, keep);
}

void keel_compressed_decode(enum keel_compressed_format format, struct keel_compressed_run run,
                            const uint8_t *coded, bool add, float *out)
{
    const void *halves = coded + 2 * run.first;
    KEEL_ASSERT(format < KEEL_COMPRESSED_TOP_K && run.first % KEEL_COMPRESSED_BLOCK == 0);
    KEEL_ASSERT(run.first + run.count <= run.whole);
    if (format == KEEL_COMPRESSED_F16)
        f16_decode(halves, run.count, add, out);
    else if (format == KEEL_COMPRESSED_BF16)
        bf16_decode(halves, run.count, add, out);
    else
        i8_decode(run, coded, add, out);
}
