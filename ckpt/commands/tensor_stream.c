/* tensor_stream.c - cutting a run of elements into boxes, and reading those. */
#include "tensor_stream.h"

uint64_t keel_tensor_piece(const struct keel_region *tensor, uint64_t first, uint64_t most,
                           struct keel_region *out)
{
    uint64_t inner = 1; /* elements of one step in dimension d */
    for (uint32_t d = 1; d < tensor->dims; d++)
        inner *= tensor->shape[d];
    *out = *tensor;
    uint64_t rest = first;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        uint64_t at = rest / inner;
        rest %= inner;
        out->offset[d] = at;
        out->extent[d] = 1;
        if (rest == 0 && inner <= most) { /* whole steps fit: as many as there are */
            uint64_t left = tensor->shape[d] - at, fit = most / inner;
            out->extent[d] = left < fit ? left : fit;
            for (uint32_t deeper = d + 1; deeper < tensor->dims; deeper++) {
                out->offset[deeper] = 0;
                out->extent[deeper] = tensor->shape[deeper];
            }
            return out->extent[d] * inner;
        }
        inner /= d + 1 < tensor->dims ? tensor->shape[d + 1] : 1;
    }
    return 1; /* a scalar */
}

enum keel_status keel_tensor_read(struct keel_snapshot *snapshot, const struct keel_region *tensor,
                                  uint64_t first, uint64_t count, void *out)
{
    enum { PIECES_MAX = 2 * KEEL_TENSOR_DIMS_MAX }; /* from the inner dimensions outwards, and back */
    struct keel_load loads[PIECES_MAX];
    uint32_t size = keel_ckpt_dtype_bytes(tensor->dtype), pieces = 0;
    uint8_t *at = out;
    while (count > 0) {
        KEEL_ASSERT(pieces < PIECES_MAX);
        uint64_t elements = keel_tensor_piece(tensor, first, count, &loads[pieces].box);
        loads[pieces++].out = at;
        first += elements;
        count -= elements;
        at += elements * size;
    }
    return keel_snapshot_load(snapshot, loads, pieces, NULL, NULL);
}
