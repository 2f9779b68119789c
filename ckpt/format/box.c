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

uint64_t keel_box_elements(const struct keel_box *box, uint32_t dims)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < dims; i++)
        count *= box->extent[i];
    return count;
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

uint64_t keel_box_index(const struct keel_box *box, const uint64_t *at, uint32_t dims)
{
    uint64_t index = 0;
    for (uint32_t i = 0; i < dims; i++)
        index = index * box->extent[i] + (at[i] - box->offset[i]);
    return index;
}

bool keel_box_step(const struct keel_box *part, uint32_t dims, uint32_t below, uint64_t *at)
{
    for (uint32_t i = below; i < dims; i++)
        at[i] = part->offset[i];
    for (uint32_t i = below; i-- > 0;) {
        if (++at[i] < part->offset[i] + part->extent[i])
            return true;
        at[i] = part->offset[i];
    }
    return false;
}

uint64_t keel_box_next(const struct keel_box *box, const struct keel_box *part, uint32_t dims, uint64_t from,
                       uint64_t out_at[KEEL_TENSOR_DIMS_MAX])
{
    uint64_t at[KEEL_TENSOR_DIMS_MAX] = {0}, rest = from;
    if (from >= keel_box_elements(box, dims) || keel_box_empty(part, dims))
        return UINT64_MAX;
    for (uint32_t i = dims; i-- > 0;) {
        at[i] = box->offset[i] + rest % box->extent[i];
        rest /= box->extent[i];
    }
    bool inside = true;
    for (uint32_t i = 0; i < dims && inside; i++) {
        inside = at[i] - part->offset[i] < part->extent[i]; /* wraps around when it lies before */
        if (!inside && at[i] < part->offset[i])
            for (uint32_t d = i; d < dims; d++)
                at[d] = part->offset[d];
        else if (!inside && !keel_box_step(part, dims, i, at))
            return UINT64_MAX;
    }
    if (out_at != NULL)
        for (uint32_t i = 0; i < dims; i++)
            out_at[i] = at[i];
    return inside ? from : keel_box_index(box, at, dims);
}

/* Dimension after dimension: while the range lies at one position of it, that position is fixed. Where it
 * does not, what sticks out at its two ends goes on into the next dimensions, and what is between is a box.
 */
static uint32_t range_end(struct keel_box rest, uint32_t dims, uint32_t from_dim, uint64_t from, uint64_t to,
                          bool head, struct keel_box *out)
{
    uint32_t count = 0;
    for (uint32_t i = from_dim; i < dims && from < to; i++) {
        uint64_t stride = 1;
        for (uint32_t d = i + 1; d < dims; d++)
            stride *= rest.extent[d];
        uint64_t first = (from + stride - 1) / stride, behind = to / stride; /* whole positions of it */
        if (first < behind) {
            out[count] = rest;
            out[count].offset[i] += first;
            out[count++].extent[i] = behind - first;
        }
        uint64_t left = head ? from / stride : behind; /* where the rest lies */
        from = head ? from % stride : 0;
        to = head ? (from > 0 ? stride : 0) : to % stride;
        rest.offset[i] += left;
        rest.extent[i] = 1;
    }
    return count;
}

uint32_t keel_box_range(const struct keel_box *box, uint32_t dims, uint64_t from, uint64_t to,
                        struct keel_box out[KEEL_BOX_RANGE_MAX])
{
    struct keel_box rest = *box;
    for (uint32_t i = 0; i < dims; i++) {
        uint64_t stride = 1;
        for (uint32_t d = i + 1; d < dims; d++)
            stride *= rest.extent[d];
        uint64_t first = from / stride, last = (to - 1) / stride;
        if (first < last) { /* the head up to the next whole position, then all that follows */
            uint64_t middle = (first + 1) * stride;
            uint32_t count = range_end(rest, dims, i, from, middle, true, out);
            return count + range_end(rest, dims, i, middle, to, false, out + count);
        }
        from -= first * stride;
        to -= first * stride;
        rest.offset[i] += first;
        rest.extent[i] = 1;
    }
    out[0] = rest;
    return 1;
}
