/* step_ranges.h - a set of steps, as the ranges that it consists of. */
#ifndef KEEL_STEP_RANGES_H
#define KEEL_STEP_RANGES_H

#include <keel/status.h>
#include <stddef.h>
#include <stdint.h>

struct keel_step_range {
    uint64_t first, last;
};

/* Ascending, and steps between any two. {NULL} is the empty set. */
struct keel_step_ranges {
    struct keel_step_range *at; /* heap */
    uint64_t count, capacity;
};

void keel_step_ranges_free(struct keel_step_ranges *ranges);
/* NO_MEMORY; the set is as it was then. */
enum keel_status keel_step_ranges_add(struct keel_step_ranges *ranges, uint64_t first, uint64_t last);
enum keel_status keel_step_ranges_remove(struct keel_step_ranges *ranges, uint64_t first, uint64_t last);
/* Into an empty one. NO_MEMORY. */
enum keel_status keel_step_ranges_copy(const struct keel_step_ranges *from, struct keel_step_ranges *to);
/* Without what is in `others`. NO_MEMORY. */
enum keel_status keel_step_ranges_subtract(struct keel_step_ranges *ranges,
                                           const struct keel_step_ranges *others);

uint64_t keel_step_ranges_total(const struct keel_step_ranges *ranges);
/* "8 steps (5 to 8, 12 to 15)", with as many ranges as fit, and how many more there are. */
enum { KEEL_STEP_RANGES_TEXT = 512 };
void keel_step_ranges_text(const struct keel_step_ranges *ranges, char out[KEEL_STEP_RANGES_TEXT]);

#endif
