/* codec.h - one chunk, raw bytes to stored bytes and back. Pure; any thread; no state between chunks.
 * The caller checks checksums; decoders nevertheless trust no byte of what they are given. */
#ifndef KEEL_CKPT_CODEC_H
#define KEEL_CKPT_CODEC_H

#include <keel/ckpt.h>

enum {
    /* A buffer for stored bytes, and scratch, are of this many bytes beyond the chunk's raw size. */
    KEEL_CODEC_SLACK_BYTES = 128
};

/* Encode `raw_bytes` (1 .. KEEL_FORMAT_CHUNK_BYTES, a multiple of element_bytes: 1, 2, 4 or 8). Never
 * expands: what does not get smaller is stored raw, and *out_codec says so. `scratch` is as large as
 * `out`. Returns the stored size. */
uint32_t keel_codec_encode(enum keel_codec wanted, uint32_t element_bytes, const uint8_t *raw,
                           uint32_t raw_bytes, uint8_t *out, uint8_t *scratch, enum keel_codec *out_codec);

/* Decode into exactly raw_bytes. CORRUPT (without the place: the caller knows it), NO_MEMORY. */
enum keel_status keel_codec_decode(enum keel_codec codec, uint32_t element_bytes, const uint8_t *stored,
                                   uint32_t stored_bytes, uint8_t *raw, uint32_t raw_bytes, uint8_t *scratch);

#endif
