/* tensor_stream.h - a tensor of a snapshot as one run of elements, dense and row-major, in bounded memory. */
#ifndef KEEL_CKPT_TENSOR_STREAM_H
#define KEEL_CKPT_TENSOR_STREAM_H

#include <keel/ckpt.h>

/* The largest box that begins at element `first` of the whole tensor, has at most `most` elements (1 or
 * more), and lies dense in it. Returns how many it has. */
uint64_t keel_tensor_piece(const struct keel_region *tensor, uint64_t first, uint64_t most,
                           struct keel_region *out);

/* Elements [first, first + count) of a tensor as keel_snapshot_tensor tells it. Errors as for
 * keel_snapshot_load. */
enum keel_status keel_tensor_read(struct keel_snapshot *snapshot, const struct keel_region *tensor,
                                  uint64_t first, uint64_t count, void *out);

#endif
