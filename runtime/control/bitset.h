/* bitset.h - a set of members, ranks or nodes of a run: numbers below KEEL_BITSET_BITS.
 *
 * Empty when zeroed, copied by assignment. A number beyond is a programmer's error (asserted). Pure.
 *
 * Whoever goes through a set passes over what is empty of it: so a set of few numbers costs what its numbers
 * do, with room for as many ranks as a run may have. */
#ifndef KEEL_BITSET_H
#define KEEL_BITSET_H

#include <keel/limits.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    KEEL_BITSET_WORDS =
        ((int)KEEL_MEMBERS_MAX > (int)KEEL_NODES_MAX ? KEEL_MEMBERS_MAX + 63 : KEEL_NODES_MAX + 63) / 64,
    KEEL_BITSET_BITS = 64 * KEEL_BITSET_WORDS,
    KEEL_BITSET_SOME = (KEEL_BITSET_WORDS + 63) / 64
};

struct keel_bitset {
    uint64_t some[KEEL_BITSET_SOME]; /* by word, as bits: it is not zero */
    uint64_t words[KEEL_BITSET_WORDS];
};

void keel_bitset_add(struct keel_bitset *set, uint32_t number);
void keel_bitset_remove(struct keel_bitset *set, uint32_t number);
/* The numbers from 64 * word on, as bits: as they lie in `words`. */
void keel_bitset_put(struct keel_bitset *set, uint32_t word, uint64_t bits);
void keel_bitset_add_all(struct keel_bitset *set, const struct keel_bitset *others);
bool keel_bitset_has(const struct keel_bitset *set, uint32_t number);
uint32_t keel_bitset_count(const struct keel_bitset *set);
/* The lowest number of the set that is not below `from`; KEEL_BITSET_BITS: there is none. */
uint32_t keel_bitset_next(const struct keel_bitset *set, uint32_t from);

#endif
