/* codec.h - one chunk, raw bytes to stored bytes and back. Pure; any thread; no state between chunks.
 * The caller checks checksums; decoders nevertheless trust no byte of what they are given. */
#ifndef KEEL_CKPT_CODEC_H
#define KEEL_CKPT_CODEC_H

#include <keel/ckpt.h>

enum {
    /* A buffer for stored bytes, and scratch, are of this many bytes beyond the chunk's raw size. */
    KEEL_CODEC_SLACK_BYTES = 128
};

/* Encode `raw_bytes` (1 .. KEEL_FORMAT_CHUNK_BYTES, a multiple of element_bytes: 1, 2, 4 or 8). `wanted` is
 * RAW, PLANES or DELTA; DELTA needs `base`, as many raw bytes (the others ignore it). Never expands: what
 * does not get smaller is stored raw, and *out_codec says so. `scratch` is as large as `out`; no two buffers
 * overlap. Returns the stored size. */
uint32_t keel_codec_encode(enum keel_codec wanted, uint32_t element_bytes, const uint8_t *raw,
                           const uint8_t *base, uint32_t raw_bytes, uint8_t *out, uint8_t *scratch,
                           enum keel_codec *out_codec);

/* Decode into exactly raw_bytes. DELTA needs `base`, as many raw bytes (the others ignore it); `raw` may be
 * that very memory, so that a chain is decoded in one place. CORRUPT (without the place: the caller knows
 * it; what is in `raw` is undefined then), NO_MEMORY. SAME is not decoded but rounded, see below. */
enum keel_status keel_codec_decode(enum keel_codec codec, uint32_t element_bytes, const uint8_t *stored,
                                   uint32_t stored_bytes, const uint8_t *base, uint8_t *raw,
                                   uint32_t raw_bytes, uint8_t *scratch);

/* ---- same: copies rounded from a master ---------------------------------------------------------------- */

/* The pairs are those of keel_format_rounds. Rounding is to nearest, ties to even, in one step, whatever the
 * processor's floating-point mode; what is too large becomes infinite, denormals are kept. A NaN keeps its
 * sign and the top bits of its payload, and becomes quiet. Nothing needs to be aligned. */

/* Round `count` elements of the master into the copy's type. */
void keel_codec_round(enum keel_ckpt_dtype copy_dtype, enum keel_ckpt_dtype master_dtype, const void *master,
                      size_t count, void *out);
/* Is the copy what keel_codec_round would give, bit for bit? */
bool keel_codec_rounds_same(enum keel_ckpt_dtype copy_dtype, enum keel_ckpt_dtype master_dtype,
                            const void *copy, const void *master, size_t count);

/* How many elements are NaN or infinite; of integers none is. `bytes` is a multiple of the element's. */
uint64_t keel_codec_nonfinite(enum keel_ckpt_dtype dtype, const void *data, size_t bytes);

#endif
