/* split.c - elements to byte planes and back, as fast as memory allows: loops without branches that the
 * compiler vectorises (vector.h), one for each size of element.
 *
 * Without a base an element, as an unsigned integer, is rotated left by one bit: the sign goes to the bottom,
 * and the exponent of a float32 or bfloat16 fills the top byte. With one, what is split is the difference of
 * the two integers, as a signed one in zigzag (0, -1, 1, -2 ... become 0, 1, 2, 3 ...): a small change up or
 * down leaves the top bytes zero, where XOR would show every carry. Left to others: what becomes of a plane.
 */
#include "split.h"
#include "vector.h"
#include <keel/status.h>
#include <string.h>

/* ---- elements ------------------------------------------------------------------------------------------ */

KEEL_VECTOR_BODY uint8_t zigzag_8(uint8_t difference)
{
    return (uint8_t)((uint32_t)difference << 1 ^ (0U - (uint32_t)(difference >> 7)));
}

KEEL_VECTOR_BODY uint8_t unzigzag_8(uint8_t x)
{
    return (uint8_t)((uint32_t)x >> 1 ^ (0U - (uint32_t)(x & 1)));
}

KEEL_VECTOR_BODY uint16_t rotate_16(uint16_t x)
{
    return (uint16_t)(x << 1 | x >> 15);
}

KEEL_VECTOR_BODY uint16_t rotate_back_16(uint16_t x)
{
    return (uint16_t)(x >> 1 | x << 15);
}

KEEL_VECTOR_BODY uint16_t zigzag_16(uint16_t difference)
{
    return (uint16_t)((uint32_t)difference << 1 ^ (0U - (uint32_t)(difference >> 15)));
}

KEEL_VECTOR_BODY uint16_t unzigzag_16(uint16_t x)
{
    return (uint16_t)((uint32_t)x >> 1 ^ (0U - (uint32_t)(x & 1)));
}

KEEL_VECTOR_BODY uint32_t rotate_32(uint32_t x)
{
    return (uint32_t)(x << 1 | x >> 31);
}

KEEL_VECTOR_BODY uint32_t rotate_back_32(uint32_t x)
{
    return (uint32_t)(x >> 1 | x << 31);
}

KEEL_VECTOR_BODY uint32_t zigzag_32(uint32_t difference)
{
    return (uint32_t)(difference << 1 ^ (0U - (difference >> 31)));
}

KEEL_VECTOR_BODY uint32_t unzigzag_32(uint32_t x)
{
    return (uint32_t)(x >> 1 ^ (0U - (x & 1)));
}

KEEL_VECTOR_BODY uint64_t rotate_64(uint64_t x)
{
    return (uint64_t)(x << 1 | x >> 63);
}

KEEL_VECTOR_BODY uint64_t rotate_back_64(uint64_t x)
{
    return (uint64_t)(x >> 1 | x << 63);
}

KEEL_VECTOR_BODY uint64_t zigzag_64(uint64_t difference)
{
    return (uint64_t)(difference << 1 ^ (UINT64_C(0) - (difference >> 63)));
}

KEEL_VECTOR_BODY uint64_t unzigzag_64(uint64_t x)
{
    return (uint64_t)(x >> 1 ^ (UINT64_C(0) - (x & 1)));
}

/* ---- split --------------------------------------------------------------------------------------------- */

KEEL_VECTOR_BODY void split_1(const uint8_t *restrict raw, const uint8_t *restrict base, size_t count,
                              uint8_t *restrict out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = base != NULL ? zigzag_8((uint8_t)(raw[i] - base[i])) : raw[i];
}

KEEL_VECTOR_BODY void split_2(const uint8_t *restrict raw, const uint8_t *restrict base, size_t count,
                              uint8_t *restrict out_0, uint8_t *restrict out_1)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t x, y = 0;
        memcpy(&x, raw + 2 * i, sizeof x);
        if (base != NULL)
            memcpy(&y, base + 2 * i, sizeof y);
        x = base != NULL ? zigzag_16((uint16_t)(x - y)) : rotate_16(x);
        out_0[i] = (uint8_t)x;
        out_1[i] = (uint8_t)(x >> 8);
    }
}

KEEL_VECTOR_BODY void split_4(const uint8_t *restrict raw, const uint8_t *restrict base, size_t count,
                              uint8_t *restrict out_0, uint8_t *restrict out_1, uint8_t *restrict out_2,
                              uint8_t *restrict out_3)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t x, y = 0;
        memcpy(&x, raw + 4 * i, sizeof x);
        if (base != NULL)
            memcpy(&y, base + 4 * i, sizeof y);
        x = base != NULL ? zigzag_32(x - y) : rotate_32(x);
        out_0[i] = (uint8_t)x;
        out_1[i] = (uint8_t)(x >> 8);
        out_2[i] = (uint8_t)(x >> 16);
        out_3[i] = (uint8_t)(x >> 24);
    }
}

/* Planes k and k + 1 of elements of 8 bytes: few enough streams at once for the registers. */
KEEL_VECTOR_BODY void split_8(const uint8_t *restrict raw, const uint8_t *restrict base, size_t count,
                              uint32_t k, uint8_t *restrict out_0, uint8_t *restrict out_1)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t x, y = 0;
        memcpy(&x, raw + 8 * i, sizeof x);
        if (base != NULL)
            memcpy(&y, base + 8 * i, sizeof y);
        x = base != NULL ? zigzag_64(x - y) : rotate_64(x);
        out_0[i] = (uint8_t)(x >> (8 * k));
        out_1[i] = (uint8_t)(x >> (8 * k + 8));
    }
}

enum { BLOCK = 512 }; /* elements of 8 bytes that stay near while all their planes are taken */

KEEL_VECTOR_BODY void split_blocks_8(const uint8_t *raw, const uint8_t *base, size_t count,
                                     uint8_t *const planes[KEEL_PLANES_MAX])
{
    for (size_t i = 0; i < count; i += BLOCK)
        for (uint32_t k = 0; k < 8; k += 2)
            split_8(raw + 8 * i, base != NULL ? base + 8 * i : NULL, count - i < BLOCK ? count - i : BLOCK, k,
                    planes[k] + i, planes[k + 1] + i);
}

KEEL_VECTOR_BODY void split_any(uint32_t element_bytes, const uint8_t *raw, const uint8_t *base, size_t count,
                                uint8_t *const planes[KEEL_PLANES_MAX])
{
    switch (element_bytes) {
    case 1:
        split_1(raw, base, count, planes[0]);
        break;
    case 2:
        split_2(raw, base, count, planes[0], planes[1]);
        break;
    case 4:
        split_4(raw, base, count, planes[0], planes[1], planes[2], planes[3]);
        break;
    default:
        KEEL_ASSERT(element_bytes == 8);
        split_blocks_8(raw, base, count, planes);
    }
}

/* The compiler makes a loop of its own for each case, without a test inside. */
KEEL_VECTOR_BODY void split_cases(uint32_t element_bytes, const uint8_t *raw, const uint8_t *base,
                                  size_t count, uint8_t *const planes[KEEL_PLANES_MAX])
{
    if (base == NULL)
        split_any(element_bytes, raw, NULL, count, planes);
    else
        split_any(element_bytes, raw, base, count, planes);
}

static void split_plain(uint32_t element_bytes, const uint8_t *raw, const uint8_t *base, size_t count,
                        uint8_t *const planes[KEEL_PLANES_MAX])
{
    split_cases(element_bytes, raw, base, count, planes);
}

KEEL_VECTOR_AVX2 static void split_avx2(uint32_t element_bytes, const uint8_t *raw, const uint8_t *base,
                                        size_t count, uint8_t *const planes[KEEL_PLANES_MAX])
{
    split_cases(element_bytes, raw, base, count, planes);
}

void keel_planes_split(uint32_t element_bytes, const uint8_t *raw, const uint8_t *base, size_t count,
                       uint8_t *const planes[KEEL_PLANES_MAX])
{
    if (keel_vector_avx2())
        split_avx2(element_bytes, raw, base, count, planes);
    else
        split_plain(element_bytes, raw, base, count, planes);
}

/* ---- join ---------------------------------------------------------------------------------------------- */

KEEL_VECTOR_BODY void join_1(const uint8_t *restrict in, const uint8_t *base, size_t count, uint8_t *raw)
{
    for (size_t i = 0; i < count; i++)
        raw[i] = base != NULL ? (uint8_t)(base[i] + unzigzag_8(in[i])) : in[i];
}

KEEL_VECTOR_BODY void join_2(const uint8_t *restrict in_0, const uint8_t *restrict in_1, const uint8_t *base,
                             size_t count, uint8_t *raw)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t x = (uint16_t)(in_0[i] | in_1[i] << 8), y = 0;
        if (base != NULL)
            memcpy(&y, base + 2 * i, sizeof y);
        x = base != NULL ? (uint16_t)(y + unzigzag_16(x)) : rotate_back_16(x);
        memcpy(raw + 2 * i, &x, sizeof x);
    }
}

KEEL_VECTOR_BODY void join_4(const uint8_t *restrict in_0, const uint8_t *restrict in_1,
                             const uint8_t *restrict in_2, const uint8_t *restrict in_3, const uint8_t *base,
                             size_t count, uint8_t *raw)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t x = in_0[i] | (uint32_t)in_1[i] << 8 | (uint32_t)in_2[i] << 16 | (uint32_t)in_3[i] << 24,
                 y = 0;
        if (base != NULL)
            memcpy(&y, base + 4 * i, sizeof y);
        x = base != NULL ? y + unzigzag_32(x) : rotate_back_32(x);
        memcpy(raw + 4 * i, &x, sizeof x);
    }
}

KEEL_VECTOR_BODY void join_8(const uint8_t *const planes[KEEL_PLANES_MAX], const uint8_t *base, size_t count,
                             uint8_t *raw)
{
    const uint8_t *restrict in_0 = planes[0], *restrict in_1 = planes[1], *restrict in_2 = planes[2],
                            *restrict in_3 = planes[3], *restrict in_4 = planes[4],
                            *restrict in_5 = planes[5], *restrict in_6 = planes[6],
                            *restrict in_7 = planes[7];
    for (size_t i = 0; i < count; i++) {
        uint32_t low = in_0[i] | (uint32_t)in_1[i] << 8 | (uint32_t)in_2[i] << 16 | (uint32_t)in_3[i] << 24;
        uint32_t high = in_4[i] | (uint32_t)in_5[i] << 8 | (uint32_t)in_6[i] << 16 | (uint32_t)in_7[i] << 24;
        uint64_t x = low | (uint64_t)high << 32, y = 0;
        if (base != NULL)
            memcpy(&y, base + 8 * i, sizeof y);
        x = base != NULL ? y + unzigzag_64(x) : rotate_back_64(x);
        memcpy(raw + 8 * i, &x, sizeof x);
    }
}

KEEL_VECTOR_BODY void join_any(uint32_t element_bytes, const uint8_t *const planes[KEEL_PLANES_MAX],
                               const uint8_t *base, size_t count, uint8_t *raw)
{
    switch (element_bytes) {
    case 1:
        join_1(planes[0], base, count, raw);
        break;
    case 2:
        join_2(planes[0], planes[1], base, count, raw);
        break;
    case 4:
        join_4(planes[0], planes[1], planes[2], planes[3], base, count, raw);
        break;
    default:
        KEEL_ASSERT(element_bytes == 8);
        join_8(planes, base, count, raw);
    }
}

/* In place, or with a base elsewhere, or without one: three loops. */
KEEL_VECTOR_BODY void join_cases(uint32_t element_bytes, const uint8_t *const planes[KEEL_PLANES_MAX],
                                 const uint8_t *base, size_t count, uint8_t *raw)
{
    if (base == NULL)
        join_any(element_bytes, planes, NULL, count, raw);
    else if (base == raw)
        join_any(element_bytes, planes, raw, count, raw);
    else
        join_any(element_bytes, planes, base, count, raw);
}

static void join_plain(uint32_t element_bytes, const uint8_t *const planes[KEEL_PLANES_MAX],
                       const uint8_t *base, size_t count, uint8_t *raw)
{
    join_cases(element_bytes, planes, base, count, raw);
}

KEEL_VECTOR_AVX2 static void join_avx2(uint32_t element_bytes, const uint8_t *const planes[KEEL_PLANES_MAX],
                                       const uint8_t *base, size_t count, uint8_t *raw)
{
    join_cases(element_bytes, planes, base, count, raw);
}

void keel_planes_join(uint32_t element_bytes, const uint8_t *const planes[KEEL_PLANES_MAX],
                      const uint8_t *base, size_t count, uint8_t *raw)
{
    KEEL_ASSERT(raw != NULL);
    if (keel_vector_avx2())
        join_avx2(element_bytes, planes, base, count, raw);
    else
        join_plain(element_bytes, planes, base, count, raw);
}
