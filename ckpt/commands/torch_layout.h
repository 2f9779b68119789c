/* torch_layout.h - weights of models of images as torch.nn lays them out, and so torchvision and the Hugging
 * Face programs: convolutions are [out, in, height, width] there and matrices [out, in]; in Keel
 * (runtime/models/model_resnet.c, model_vit.c) they are [height, width, in, out] and [in, out]. Names are the
 * same. So a tensor of 2 or 4 dimensions is turned, and all others lie as they are. */
#ifndef KEEL_CKPT_TORCH_LAYOUT_H
#define KEEL_CKPT_TORCH_LAYOUT_H

#include <keel/ckpt.h>

enum { KEEL_TORCH_MATRIX = 2, KEEL_TORCH_CONVOLUTION = 4 }; /* by dimensions */

/* What counts the batches of a norm there (an integer): of no use here, whose momentum is fixed. */
bool keel_torch_is_counter(const char *name);
/* Whether a tensor of so many dimensions is turned, and its shape then, either way. */
bool keel_torch_turns(uint32_t dims);
void keel_torch_shape(bool to_torch, uint32_t dims, const uint64_t *shape, uint64_t *out);

/* A tensor that is turned, whole, since no part of it lies in one piece. Begin with zeros. */
struct keel_torch_turned {
    uint8_t *bytes; /* owned */
    uint32_t index; /* the tensor's, and 1; 0: none */
};
/* Bytes [offset, offset + bytes) of tensor `index`, which is turned, in its new layout. `region`: type and
 * shape that it has before; `fetch` gives all of it. Errors: NO_MEMORY, and what `fetch` returns. */
enum keel_status keel_torch_read(struct keel_torch_turned *turned, bool to_torch,
                                 const struct keel_region *region, uint32_t index, uint64_t offset,
                                 uint64_t bytes, void *out,
                                 enum keel_status (*fetch)(void *context, uint32_t index, uint64_t offset,
                                                           uint64_t bytes, void *out),
                                 void *context);
void keel_torch_forget(struct keel_torch_turned *turned);

#endif
