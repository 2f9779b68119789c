/* split.h - elements to byte planes and back: see split.c. Pure. */
#ifndef KEEL_CKPT_SPLIT_H
#define KEEL_CKPT_SPLIT_H

#include <stddef.h>
#include <stdint.h>

enum { KEEL_PLANES_MAX = 8 };

/* `count` elements of 1, 2, 4 or 8 bytes: the zigzag of their difference to those of `base`, or, if that is
 * NULL, rotated left by one bit (not those of one byte); byte k goes to planes[k]. Nothing overlaps. */
void keel_planes_split(uint32_t element_bytes, const uint8_t *raw, const uint8_t *base, size_t count,
                       uint8_t *const planes[KEEL_PLANES_MAX]);
/* The way back. `raw` may be `base`; else nothing overlaps. */
void keel_planes_join(uint32_t element_bytes, const uint8_t *const planes[KEEL_PLANES_MAX],
                      const uint8_t *base, size_t count, uint8_t *raw);

#endif
