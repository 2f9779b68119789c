/* tier_digest.h - XXH3-128 of bytes that come one piece after the other. */
#ifndef KEEL_CKPT_TIER_DIGEST_H
#define KEEL_CKPT_TIER_DIGEST_H

#include "format.h"
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the state as a member, not on a heap of its own */
#include <xxhash.h>

struct keel_digest_stream {
    XXH3_state_t state; /* aligned to 64 bytes: what holds it must be, too */
};

static inline void keel_digest_begin(struct keel_digest_stream *stream)
{
    XXH3_INITSTATE(&stream->state);
    (void)XXH3_128bits_reset(&stream->state);
}
static inline void keel_digest_add(struct keel_digest_stream *stream, const void *data, size_t bytes)
{
    (void)XXH3_128bits_update(&stream->state, data, bytes);
}
static inline void keel_digest_end(const struct keel_digest_stream *stream, uint8_t out[KEEL_DIGEST_BYTES])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&stream->state));
    memcpy(out, canonical.digest, KEEL_DIGEST_BYTES);
}

#endif
