/* idx.c - see idx.h. */
#include "idx.h"

#include <keel/bits.h>

enum { HEAD_BYTES = 4, SIZE_BYTES = 4, BYTE_MAX = 255 };

static uint32_t big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static enum keel_status check_head(const uint8_t *at, size_t count, const char *name)
{
    if (count == 0)
        return keel_fail(
            KEEL_INVALID,
            "%s: is empty; write it again (`make data`, or data.sh of an installed Keel, makes the default)",
            name);
    if (count >= 2 && at[0] == 0x1f && at[1] == 0x8b)
        return keel_fail(KEEL_INVALID, "%s: is compressed; gunzip it", name);
    if (count < HEAD_BYTES || at[0] != 0 || at[1] != 0)
        return keel_fail(KEEL_INVALID,
                         "%s: is no IDX file: it does not begin with two zero bytes, a type "
                         "and a number of dimensions; name IDX files",
                         name);
    if (at[2] != KEEL_IDX_U8 && at[2] != KEEL_IDX_F32)
        return keel_fail(KEEL_INVALID,
                         "%s: IDX elements of type 0x%02x are not read; write bytes (0x08) or floats (0x0d)",
                         name, at[2]);
    if (at[3] == 0 || at[3] > KEEL_IDX_DIMS_MAX)
        return keel_fail(KEEL_INVALID, "%s: has %u dimensions; 1 to %d are read", name, at[3],
                         KEEL_IDX_DIMS_MAX);
    return KEEL_OK;
}

enum keel_status keel_idx_parse(const void *bytes, size_t count, const char *name, struct keel_idx *out)
{
    const uint8_t *at = bytes;
    KEEL_TRY(check_head(at, count, name));
    struct keel_idx idx = {.type = (enum keel_idx_type)at[2], .dims = at[3], .count = 1};
    size_t head = HEAD_BYTES + (size_t)idx.dims * SIZE_BYTES;
    if (count < head)
        return keel_fail(KEEL_CORRUPT, "%s: ends within its head; write it again", name);
    uint64_t element_bytes = idx.type == KEEL_IDX_F32 ? sizeof(float) : 1;
    uint64_t most = (count - head) / element_bytes;
    for (uint32_t d = 0; d < KEEL_IDX_DIMS_MAX; d++) {
        idx.size[d] = d < idx.dims ? big_endian(at + HEAD_BYTES + (size_t)d * SIZE_BYTES) : 1;
        if (idx.size[d] == 0)
            return keel_fail(KEEL_INVALID, "%s: dimension %u is 0: it holds nothing; name another file", name,
                             d);
        if (idx.count > most / idx.size[d])
            return keel_fail(KEEL_CORRUPT,
                             "%s: is cut short: %zu bytes, its head tells of more; write it again", name,
                             count);
        idx.count *= idx.size[d];
    }
    if (count - head != idx.count * element_bytes)
        return keel_fail(KEEL_INVALID, "%s: has %llu bytes more than its head tells of; write it again", name,
                         (unsigned long long)(count - head - idx.count * element_bytes));
    idx.elements = at + head;
    *out = idx;
    return KEEL_OK;
}

float keel_idx_number(const struct keel_idx *idx, uint64_t index)
{
    if (idx->type == KEEL_IDX_U8)
        return (float)idx->elements[index] / (float)BYTE_MAX;
    return keel_float_of(big_endian(idx->elements + index * sizeof(float)));
}
