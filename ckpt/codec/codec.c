/* codec.c - picks the codec of a chunk; raw is the way out of all of them. */
#include "codec.h"
#include "planes.h"
#include <string.h>

uint32_t keel_codec_encode(enum keel_codec wanted, uint32_t element_bytes, const uint8_t *raw,
                           const uint8_t *base, uint32_t raw_bytes, uint8_t *out, uint8_t *scratch,
                           enum keel_codec *out_codec)
{
    KEEL_ASSERT(wanted <= KEEL_CODEC_DELTA && (wanted != KEEL_CODEC_DELTA || base != NULL));
    uint32_t stored_bytes = 0;
    if (wanted != KEEL_CODEC_RAW)
        stored_bytes = keel_planes_encode(element_bytes, raw, wanted == KEEL_CODEC_DELTA ? base : NULL,
                                          raw_bytes, out, scratch);
    if (stored_bytes > 0) {
        *out_codec = wanted;
        return stored_bytes;
    }
    memcpy(out, raw, raw_bytes);
    *out_codec = KEEL_CODEC_RAW;
    return raw_bytes;
}

enum keel_status keel_codec_decode(enum keel_codec codec, uint32_t element_bytes, const uint8_t *stored,
                                   uint32_t stored_bytes, const uint8_t *base, uint8_t *raw,
                                   uint32_t raw_bytes, uint8_t *scratch)
{
    switch (codec) {
    case KEEL_CODEC_RAW:
        if (stored_bytes != raw_bytes)
            return keel_fail(KEEL_CORRUPT, "a raw chunk of %u bytes holds %u", raw_bytes, stored_bytes);
        memcpy(raw, stored, raw_bytes);
        return KEEL_OK;
    case KEEL_CODEC_PLANES:
        return keel_planes_decode(element_bytes, stored, stored_bytes, NULL, raw, raw_bytes, scratch);
    case KEEL_CODEC_DELTA:
        if (base == NULL)
            return keel_fail(KEEL_CORRUPT, "a delta came without its base");
        return keel_planes_decode(element_bytes, stored, stored_bytes, base, raw, raw_bytes, scratch);
    default:
        return keel_fail(KEEL_VERSION, "codec %d is not known; read it with a newer Keel", (int)codec);
    }
}
