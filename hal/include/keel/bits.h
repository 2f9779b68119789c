/* bits.h - a float's bits, and FNV-1a: what formats and names are made of in more rooms than one. Any thread.
 */
#ifndef KEEL_BITS_H
#define KEEL_BITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t keel_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float keel_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* FNV-1a, 64 bits (Fowler, Noll and Vo), from KEEL_FNV1A_BEGIN or what came before: it names, and
 * finds what was torn or is foreign; it is no defence against an enemy. */
#define KEEL_FNV1A_BEGIN UINT64_C(0xcbf29ce484222325)

static inline uint64_t keel_fnv1a(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)data; /* also for C++ */
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
