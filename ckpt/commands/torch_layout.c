/* torch_layout.c - see torch_layout.h. */
#include "torch_layout.h"
#include "format.h"
#include <keel/memory.h>
#include <string.h>

bool keel_torch_is_counter(const char *name)
{
    static const char ending[] = "num_batches_tracked";
    const size_t length = strlen(name), end = sizeof ending - 1;
    return length >= end && strcmp(name + length - end, ending) == 0;
}

bool keel_torch_turns(uint32_t dims)
{
    return dims == KEEL_TORCH_MATRIX || dims == KEEL_TORCH_CONVOLUTION;
}

void keel_torch_shape(bool to_torch, uint32_t dims, const uint64_t *shape, uint64_t *out)
{
    static const uint32_t order[2][KEEL_TORCH_CONVOLUTION] = {{2, 3, 1, 0}, {3, 2, 0, 1}};
    for (uint32_t d = 0; d < dims; d++)
        out[d] = shape[dims == KEEL_TORCH_CONVOLUTION ? order[to_torch][d]
                       : dims == KEEL_TORCH_MATRIX    ? 1 - d
                                                      : d];
}

/* [a, b, c] becomes [c, b, a]: height and width are one of them, and of a matrix 1. */
static void reverse(const uint8_t *x, uint64_t a, uint64_t b, uint64_t c, uint32_t size, uint8_t *y)
{
    for (uint64_t i = 0; i < a; i++)
        for (uint64_t j = 0; j < b; j++)
            for (uint64_t k = 0; k < c; k++)
                memcpy(y + ((k * b + j) * a + i) * size, x + ((i * b + j) * c + k) * size, size);
}

static enum keel_status
turn(struct keel_torch_turned *turned, bool to_torch, const struct keel_region *region, uint32_t index,
     enum keel_status (*fetch)(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out),
     void *context)
{
    const uint64_t bytes = keel_region_bytes(region), *shape = region->shape;
    const bool matrix = region->dims == KEEL_TORCH_MATRIX;
    const uint64_t area = matrix ? 1 : to_torch ? shape[0] * shape[1] : shape[2] * shape[3];
    const uint64_t first = shape[matrix || !to_torch ? 0 : 2], second = shape[matrix || !to_torch ? 1 : 3];
    uint8_t *plain = NULL;
    keel_torch_forget(turned);
    KEEL_TRY(keel_alloc(bytes, 1, &turned->bytes));
    enum keel_status status = keel_alloc(bytes, 1, &plain);
    if (status == KEEL_OK)
        status = fetch(context, index, 0, bytes, plain);
    if (status == KEEL_OK && to_torch)
        reverse(plain, area, first, second, keel_ckpt_dtype_bytes(region->dtype), turned->bytes);
    else if (status == KEEL_OK)
        reverse(plain, first, second, area, keel_ckpt_dtype_bytes(region->dtype), turned->bytes);
    keel_free(plain);
    turned->index = status == KEEL_OK ? index + 1 : 0;
    return status;
}

enum keel_status keel_torch_read(struct keel_torch_turned *turned, bool to_torch,
                                 const struct keel_region *region, uint32_t index, uint64_t offset,
                                 uint64_t bytes, void *out,
                                 enum keel_status (*fetch)(void *context, uint32_t index, uint64_t offset,
                                                           uint64_t bytes, void *out),
                                 void *context)
{
    if (turned->index != index + 1)
        KEEL_TRY(turn(turned, to_torch, region, index, fetch, context));
    memcpy(out, turned->bytes + offset, keel_size(bytes));
    return KEEL_OK;
}

void keel_torch_forget(struct keel_torch_turned *turned)
{
    keel_free(turned->bytes);
    *turned = (struct keel_torch_turned){.bytes = NULL};
}
