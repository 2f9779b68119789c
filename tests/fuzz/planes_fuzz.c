/* planes_fuzz.c - any bytes as a chunk of planes: refused, or decoded within the memory given; and what the
 * encoder makes of the same bytes decodes to them.
 *
 *   0   0 .. 3: elements of 1, 2, 4 or 8 bytes
 *   1   number of elements, u16
 *   3   the chunk as stored */
#include "codec.h"
#include "fuzz.h"
#include "planes.h"
#include <keel/memory.h>

static uint8_t *take(size_t bytes)
{
    uint8_t *memory;
    KEEL_ASSERT(keel_alloc(1, bytes, &memory) == KEEL_OK);
    return memory;
}

static void decode(uint32_t element_bytes, const uint8_t *stored, uint32_t stored_bytes, uint32_t raw_bytes)
{
    uint8_t *raw = take(raw_bytes), *scratch = take(raw_bytes + KEEL_CODEC_SLACK_BYTES);
    (void)keel_planes_decode(element_bytes, stored, stored_bytes, NULL, raw, raw_bytes, scratch);
    keel_free(raw);
    keel_free(scratch);
}

static void round_trip(uint32_t element_bytes, const uint8_t *raw, uint32_t raw_bytes)
{
    raw_bytes -= raw_bytes % element_bytes;
    if (raw_bytes == 0)
        return;
    uint8_t *out = take(raw_bytes + KEEL_CODEC_SLACK_BYTES), *again = take(raw_bytes);
    uint8_t *scratch = take(raw_bytes + KEEL_CODEC_SLACK_BYTES);
    uint32_t stored_bytes = keel_planes_encode(element_bytes, raw, NULL, raw_bytes, out, scratch);
    KEEL_ASSERT(stored_bytes < raw_bytes);
    if (stored_bytes > 0) {
        KEEL_ASSERT(keel_planes_decode(element_bytes, out, stored_bytes, NULL, again, raw_bytes, scratch) ==
                    KEEL_OK);
        KEEL_ASSERT(memcmp(again, raw, raw_bytes) == 0);
    }
    keel_free(out);
    keel_free(again);
    keel_free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    uint32_t element_bytes = 1U << fuzz_take_u8(&in) % 4, count = 1 + fuzz_take_u16(&in);
    decode(element_bytes, data + in.at, (uint32_t)(bytes - in.at), count * element_bytes);
    round_trip(element_bytes, data + in.at, (uint32_t)(bytes - in.at));
    return 0;
}
