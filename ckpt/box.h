/* box.h - boxes in index space, as many as 8 dimensions: intersection, and what is left over.
 * Pure. A box of zero dimensions is a scalar: one element. */
#ifndef KEEL_CKPT_BOX_H
#define KEEL_CKPT_BOX_H

#include <keel/ckpt.h>

struct keel_box {
    uint64_t offset[KEEL_TENSOR_DIMS_MAX];
    uint64_t extent[KEEL_TENSOR_DIMS_MAX];
};

struct keel_box keel_box_of(const struct keel_region *region);
bool keel_box_empty(const struct keel_box *box, uint32_t dims);
/* False when they share no element. */
bool keel_box_intersect(const struct keel_box *a, const struct keel_box *b, uint32_t dims,
                        struct keel_box *out);
/* `box` without `hole`, which lies inside it, as disjoint boxes; returns how many (at most 2 x dims). */
uint32_t keel_box_subtract(const struct keel_box *box, const struct keel_box *hole, uint32_t dims,
                           struct keel_box out[2 * KEEL_TENSOR_DIMS_MAX]);

/* Dense row-major index of the element `at` (global) within `box`. */
uint64_t keel_box_index(const struct keel_box *box, const uint64_t *at, uint32_t dims);

#endif
