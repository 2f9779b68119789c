/* tokens_fuzz.c - any bytes as a token file: refused, or understood so that every token lies within them;
 * what is told of its length beyond what is there changes nothing about that. */
#include "fuzz.h"
#include "token_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct keel_token_layout layout;
    const uint32_t width = bytes > 0 && (data[bytes - 1] & 1) != 0 ? 4 : 2;
    const size_t head = bytes < KEEL_TOKEN_HEAD_BYTES ? bytes : KEEL_TOKEN_HEAD_BYTES;
    const uint64_t lengths[] = {bytes, bytes + (UINT64_C(1) << 40), UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        if (keel_token_layout_parse(data, head, lengths[i], width, "input", &layout) != KEEL_OK)
            continue;
        KEEL_ASSERT(layout.count > 0 && (layout.width == 2 || layout.width == 4));
        KEEL_ASSERT(layout.first_byte == 0 || layout.first_byte == KEEL_TOKEN_HEAD_BYTES);
        KEEL_ASSERT(layout.first_byte <= lengths[i] &&
                    (lengths[i] - layout.first_byte) / layout.width >= layout.count);
    }
    return 0;
}
