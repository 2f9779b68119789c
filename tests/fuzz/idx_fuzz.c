/* idx_fuzz.c - any bytes as an IDX file: refused, or understood so that every element lies within them. */
#include "fuzz.h"
#include "idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct keel_idx idx;
    if (keel_idx_parse(data, bytes, "input", &idx) != KEEL_OK)
        return 0;
    uint64_t count = 1, element_bytes = idx.type == KEEL_IDX_F32 ? sizeof(float) : 1;
    for (uint32_t d = 0; d < KEEL_IDX_DIMS_MAX; d++)
        count *= idx.size[d];
    KEEL_ASSERT(count == idx.count && count > 0 && idx.elements >= data);
    KEEL_ASSERT((uint64_t)(idx.elements - data) + count * element_bytes == bytes);
    volatile float sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum = sum + keel_idx_number(&idx, i);
    return 0;
}
