/* planes.h - the planes codec: see planes.c. Contracts are those of codec.h; with a base it is delta. */
#ifndef KEEL_CKPT_PLANES_H
#define KEEL_CKPT_PLANES_H

#include <keel/status.h>
#include <stdint.h>

/* The stored size, or 0 when it would not be smaller than raw_bytes. */
uint32_t keel_planes_encode(uint32_t element_bytes, const uint8_t *raw, const uint8_t *base,
                            uint32_t raw_bytes, uint8_t *out, uint8_t *scratch);
enum keel_status keel_planes_decode(uint32_t element_bytes, const uint8_t *stored, uint32_t stored_bytes,
                                    const uint8_t *base, uint8_t *raw, uint32_t raw_bytes, uint8_t *scratch);

#endif
