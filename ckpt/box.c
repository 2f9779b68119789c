/* box.c - see box.h. */
#include "box.h"
#include <string.h>

struct keel_box keel_box_of(const struct keel_region *region)
{
    struct keel_box box;
    memcpy(box.offset, region->offset, sizeof box.offset);
    memcpy(box.extent, region->extent, sizeof box.extent);
    return box;
}

bool keel_box_empty(const struct keel_box *box, uint32_t dims)
{
    for (uint32_t i = 0; i < dims; i++)
        if (box->extent[i] == 0)
            return true;
    return false;
}

bool keel_box_intersect(const struct keel_box *a, const struct keel_box *b, uint32_t dims,
                        struct keel_box *out)
{
    struct keel_box both = {0};
    for (uint32_t i = 0; i < dims; i++) {
        uint64_t from = a->offset[i] > b->offset[i] ? a->offset[i] : b->offset[i];
        uint64_t a_end = a->offset[i] + a->extent[i], b_end = b->offset[i] + b->extent[i];
        uint64_t to = a_end < b_end ? a_end : b_end;
        if (from >= to)
            return false;
        both.offset[i] = from;
        both.extent[i] = to - from;
    }
    *out = both;
    return true;
}

/* Slab after slab: what lies before and behind the hole in dimension 0, then in 1 of the rest, ... */
uint32_t keel_box_subtract(const struct keel_box *box, const struct keel_box *hole, uint32_t dims,
                           struct keel_box out[2 * KEEL_TENSOR_DIMS_MAX])
{
    struct keel_box rest = *box;
    uint32_t count = 0;
    for (uint32_t i = 0; i < dims; i++) {
        uint64_t before = hole->offset[i] - rest.offset[i];
        uint64_t behind = rest.extent[i] - before - hole->extent[i];
        if (before > 0) {
            out[count] = rest;
            out[count++].extent[i] = before;
        }
        if (behind > 0) {
            out[count] = rest;
            out[count].offset[i] = hole->offset[i] + hole->extent[i];
            out[count++].extent[i] = behind;
        }
        rest.offset[i] = hole->offset[i];
        rest.extent[i] = hole->extent[i];
    }
    return count;
}

uint64_t keel_box_index(const struct keel_box *box, const uint64_t *at, uint32_t dims)
{
    uint64_t index = 0;
    for (uint32_t i = 0; i < dims; i++)
        index = index * box->extent[i] + (at[i] - box->offset[i]);
    return index;
}
