/* net_oracle.h - what a collective must give, computed from its definition alone.
 *
 * Pure, slow and obvious on purpose: one element at a time, as bits, with arithmetic of its own (combine.h is
 * what is being checked). Inputs are a function of (seed, rank, index), so that every rank knows everybody's.
 */
#ifndef KEEL_TRANSPORT_NET_ORACLE_H
#define KEEL_TRANSPORT_NET_ORACLE_H

#include <keel/transport.h>

/* The bits of an element, in the low bytes. */
uint64_t keel_oracle_load(enum keel_element element, const void *array, uint64_t index);
void keel_oracle_store(enum keel_element element, void *array, uint64_t index, uint64_t bits);

/* The element that `rank` gives at `index`: any bits of integers; floats of some six powers of two, so that
 * the order of sums shows; for minimum and maximum also zeros of both signs and NaN. */
uint64_t keel_oracle_input(enum keel_element element, enum keel_reduction reduction, uint64_t seed,
                           uint32_t rank, uint64_t index);

/* The reduction of values[0..count), one of each rank, along the tree over ranks; values are overwritten. */
uint64_t keel_oracle_tree(enum keel_element element, enum keel_reduction reduction, uint64_t *values,
                          uint32_t count);
/* Is `got` a right result in the exact order? NaN equals NaN, whatever its payload. */
bool keel_oracle_is_same(enum keel_element element, uint64_t wanted, uint64_t got);
/* Can `got` come from any order? Sums of floats: within (count - 1) roundings of the sum of magnitudes
 * (Higham 2002, section 4.2), and one for the average; all others must be the same. */
bool keel_oracle_is_close(enum keel_element element, enum keel_reduction reduction, const uint64_t *values,
                          uint32_t count, uint64_t got);
/* For messages: "1.5", "-3". */
void keel_oracle_print(enum keel_element element, uint64_t bits, char *out, size_t out_bytes);

#endif
