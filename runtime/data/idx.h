/* idx.h - IDX files, the format of the MNIST sets (LeCun et al. 1998): two zero bytes, a type, a number of
 * dimensions, their sizes as big-endian 32 bits, and the elements.
 *
 * Only what was checked comes out: a known type, sizes that the file's length bears out. */
#ifndef KEEL_IDX_H
#define KEEL_IDX_H

#include <keel/file.h>

enum { KEEL_IDX_DIMS_MAX = 4 };
enum keel_idx_type { KEEL_IDX_U8 = 0x08, KEEL_IDX_F32 = 0x0d };

struct keel_idx {
    enum keel_idx_type type;
    uint32_t dims;
    uint32_t size[KEEL_IDX_DIMS_MAX]; /* 1 behind the last */
    uint64_t count;                   /* elements */
    const uint8_t *elements;          /* within the bytes that were given */
};

/* INVALID, and CORRUPT of one that is cut short, say what is wrong with the bytes of file `name`, and what to
 * do.
 */
enum keel_status keel_idx_parse(const void *bytes, size_t count, const char *name, struct keel_idx *out);

/* Element `index` as a number: bytes as 0 to 1, floats as they are. */
float keel_idx_number(const struct keel_idx *idx, uint64_t index);

#endif
