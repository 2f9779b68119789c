/* bitset.c - see bitset.h. */
#include "bitset.h"

#include <keel/status.h>

/* The lowest bit at or above `from` of `count` words; 64 * count: none. */
static uint32_t next_bit(const uint64_t *words, uint32_t count, uint32_t from)
{
    for (uint32_t at = from; at < 64 * count; at = (at | 63) + 1) {
        const uint64_t left = words[at / 64] >> at % 64;
        if (left != 0)
            return at + (uint32_t)__builtin_ctzll(left);
    }
    return 64 * count;
}

/* The first word at or behind `from` that is not zero; at least KEEL_BITSET_WORDS: none. */
static uint32_t next_word(const struct keel_bitset *set, uint32_t from)
{
    return next_bit(set->some, KEEL_BITSET_SOME, from);
}

void keel_bitset_put(struct keel_bitset *set, uint32_t word, uint64_t bits)
{
    const uint64_t it = UINT64_C(1) << word % 64;
    KEEL_ASSERT(word < KEEL_BITSET_WORDS);
    set->words[word] = bits;
    set->some[word / 64] = (set->some[word / 64] & ~it) | (bits != 0 ? it : 0);
}

void keel_bitset_add(struct keel_bitset *set, uint32_t number)
{
    KEEL_ASSERT(number < KEEL_BITSET_BITS);
    keel_bitset_put(set, number / 64, set->words[number / 64] | UINT64_C(1) << number % 64);
}

void keel_bitset_remove(struct keel_bitset *set, uint32_t number)
{
    KEEL_ASSERT(number < KEEL_BITSET_BITS);
    keel_bitset_put(set, number / 64, set->words[number / 64] & ~(UINT64_C(1) << number % 64));
}

void keel_bitset_add_all(struct keel_bitset *set, const struct keel_bitset *others)
{
    for (uint32_t i = next_word(others, 0); i < KEEL_BITSET_WORDS; i = next_word(others, i + 1))
        set->words[i] |= others->words[i];
    for (uint32_t i = 0; i < KEEL_BITSET_SOME; i++)
        set->some[i] |= others->some[i];
}

bool keel_bitset_has(const struct keel_bitset *set, uint32_t number)
{
    KEEL_ASSERT(number < KEEL_BITSET_BITS);
    return (set->words[number / 64] >> number % 64 & 1) != 0;
}

uint32_t keel_bitset_count(const struct keel_bitset *set)
{
    uint32_t count = 0;
    for (uint32_t i = next_word(set, 0); i < KEEL_BITSET_WORDS; i = next_word(set, i + 1))
        count += (uint32_t)__builtin_popcountll(set->words[i]);
    return count;
}

uint32_t keel_bitset_next(const struct keel_bitset *set, uint32_t from)
{
    if (from >= KEEL_BITSET_BITS)
        return KEEL_BITSET_BITS;
    const uint64_t left = set->words[from / 64] >> from % 64;
    if (left != 0)
        return from + (uint32_t)__builtin_ctzll(left);
    const uint32_t word = next_word(set, from / 64 + 1);
    return word < KEEL_BITSET_WORDS ? 64 * word + (uint32_t)__builtin_ctzll(set->words[word])
                                    : KEEL_BITSET_BITS;
}
