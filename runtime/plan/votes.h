/* votes.h - how many of a run's ranks say the same, where they do not all: in n log n steps, whatever they
 * say. Pure; any thread. */
#ifndef KEEL_VOTES_H
#define KEEL_VOTES_H

#include <stdint.h>

/* In ascending order, as the others want them. */
void keel_votes_sort(uint64_t *values, uint32_t count);
/* How many are `value`. */
uint32_t keel_votes_for(const uint64_t *sorted, uint32_t count, uint64_t value);
/* How many say what most do; 0 of none. */
uint32_t keel_votes_most(const uint64_t *sorted, uint32_t count);

#endif
