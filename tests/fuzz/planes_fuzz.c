/* planes_fuzz.c - any bytes as a chunk of planes, or of a delta: refused, or decoded within the memory given;
 * and what the encoder makes of the same bytes decodes to them, in other memory and in that of the base.
 *
 *   0   bits 0 and 1: elements of 1, 2, 4 or 8 bytes; bit 2: there is a base; bit 3: it is near, not
 *       the reverse
 *   1   number of elements, u16
 *   3   the chunk as stored; and the elements to encode */
#include "codec.h"
#include "fuzz.h"
#include <keel/memory.h>

static uint8_t *take(size_t bytes)
{
    uint8_t *memory;
    KEEL_ASSERT(keel_alloc(1, bytes, &memory) == KEEL_OK);
    return memory;
}

/* What to be a delta from: the same with some small differences, or the bytes from the end. */
static uint8_t *make_base(const uint8_t *raw, uint32_t raw_bytes, bool near)
{
    uint8_t *base = take(raw_bytes);
    for (uint32_t i = 0; i < raw_bytes; i++)
        base[i] = near ? (uint8_t)(raw[i] + (raw[i] % 16 == 0)) : raw[raw_bytes - 1 - i];
    return base;
}

static void decode(enum keel_codec codec, uint32_t element_bytes, const uint8_t *stored,
                   uint32_t stored_bytes, uint32_t raw_bytes)
{
    uint8_t *raw = take(raw_bytes), *scratch = take(raw_bytes + KEEL_CODEC_SLACK_BYTES);
    memset(raw, 1, raw_bytes);
    (void)keel_codec_decode(codec, element_bytes, stored, stored_bytes, raw, raw, raw_bytes, scratch);
    keel_free(raw);
    keel_free(scratch);
}

static void round_trip(enum keel_codec codec, uint32_t element_bytes, const uint8_t *raw, uint32_t raw_bytes,
                       bool near)
{
    raw_bytes -= raw_bytes % element_bytes;
    if (raw_bytes == 0)
        return;
    uint8_t *out = take(raw_bytes + KEEL_CODEC_SLACK_BYTES), *again = take(raw_bytes);
    uint8_t *scratch = take(raw_bytes + KEEL_CODEC_SLACK_BYTES), *base = make_base(raw, raw_bytes, near);
    uint32_t stored_bytes =
        keel_codec_encode(codec, element_bytes, raw, base, raw_bytes, out, scratch, &codec);
    KEEL_ASSERT(codec == KEEL_CODEC_RAW ? stored_bytes == raw_bytes : stored_bytes < raw_bytes);
    KEEL_ASSERT(keel_codec_decode(codec, element_bytes, out, stored_bytes, base, again, raw_bytes, scratch) ==
                KEEL_OK);
    KEEL_ASSERT(memcmp(again, raw, raw_bytes) == 0);
    KEEL_ASSERT(keel_codec_decode(codec, element_bytes, out, stored_bytes, base, base, raw_bytes, scratch) ==
                KEEL_OK);
    KEEL_ASSERT(memcmp(base, raw, raw_bytes) == 0);
    keel_free(out);
    keel_free(again);
    keel_free(scratch);
    keel_free(base);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    uint8_t choice = fuzz_take_u8(&in);
    uint32_t element_bytes = 1U << choice % 4, count = 1 + fuzz_take_u16(&in);
    enum keel_codec codec = (choice & 4) != 0 ? KEEL_CODEC_DELTA : KEEL_CODEC_PLANES;
    decode(codec, element_bytes, data + in.at, (uint32_t)(bytes - in.at), count * element_bytes);
    round_trip(codec, element_bytes, data + in.at, (uint32_t)(bytes - in.at), (choice & 8) != 0);
    return 0;
}
