/* box.h - boxes in index space, as many as 8 dimensions: intersection, walking, and ranges of elements.
 * Pure. A box of zero dimensions is a scalar: one element. A box's elements have a dense row-major index. */
#ifndef KEEL_CKPT_BOX_H
#define KEEL_CKPT_BOX_H

#include <keel/ckpt.h>

enum { KEEL_BOX_RANGE_MAX = 2 * KEEL_TENSOR_DIMS_MAX + 1 };

struct keel_box {
    uint64_t offset[KEEL_TENSOR_DIMS_MAX];
    uint64_t extent[KEEL_TENSOR_DIMS_MAX];
};

struct keel_box keel_box_of(const struct keel_region *region);
bool keel_box_empty(const struct keel_box *box, uint32_t dims);
uint64_t keel_box_elements(const struct keel_box *box, uint32_t dims);
/* False when they share no element. */
bool keel_box_intersect(const struct keel_box *a, const struct keel_box *b, uint32_t dims,
                        struct keel_box *out);
/* The index of the element `at` (global) within `box`. */
uint64_t keel_box_index(const struct keel_box *box, const uint64_t *at, uint32_t dims);
/* The first element of `part`, which lies inside `box`, whose index within `box` is `from` or more: its
 * index, and (`out_at`, may be NULL) where it is. UINT64_MAX when there is none. */
uint64_t keel_box_next(const struct keel_box *box, const struct keel_box *part, uint32_t dims, uint64_t from,
                       uint64_t out_at[KEEL_TENSOR_DIMS_MAX]);
/* To the next position of the dimensions before `below`, which are all inside `part`; the others go to its
 * start. False behind the last one. */
bool keel_box_step(const struct keel_box *part, uint32_t dims, uint32_t below, uint64_t *at);
/* The elements of `box` with an index in [from, to), as disjoint boxes; returns how many. from < to. */
uint32_t keel_box_range(const struct keel_box *box, uint32_t dims, uint64_t from, uint64_t to,
                        struct keel_box out[KEEL_BOX_RANGE_MAX]);

#endif
