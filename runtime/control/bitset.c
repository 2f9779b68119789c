/* bitset.c - see bitset.h. */
#include "bitset.h"

#include <keel/status.h>

void keel_bitset_add(struct keel_bitset *set, uint32_t number)
{
    KEEL_ASSERT(number < KEEL_BITSET_BITS);
    set->words[number / 64] |= UINT64_C(1) << number % 64;
}

void keel_bitset_remove(struct keel_bitset *set, uint32_t number)
{
    KEEL_ASSERT(number < KEEL_BITSET_BITS);
    set->words[number / 64] &= ~(UINT64_C(1) << number % 64);
}

void keel_bitset_add_all(struct keel_bitset *set, const struct keel_bitset *others)
{
    for (uint32_t i = 0; i < KEEL_BITSET_WORDS; i++)
        set->words[i] |= others->words[i];
}

bool keel_bitset_has(const struct keel_bitset *set, uint32_t number)
{
    KEEL_ASSERT(number < KEEL_BITSET_BITS);
    return (set->words[number / 64] >> number % 64 & 1) != 0;
}

uint32_t keel_bitset_count(const struct keel_bitset *set)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < KEEL_BITSET_WORDS; i++)
        count += (uint32_t)__builtin_popcountll(set->words[i]);
    return count;
}

uint32_t keel_bitset_next(const struct keel_bitset *set, uint32_t from)
{
    for (uint32_t at = from; at < KEEL_BITSET_BITS; at = (at | 63) + 1) {
        const uint64_t left = set->words[at / 64] >> at % 64;
        if (left != 0)
            return at + (uint32_t)__builtin_ctzll(left);
    }
    return KEEL_BITSET_BITS;
}
