/* tokenizer_fuzz.c - parts between zero bytes: a vocabulary or a tokenizer.json, merges (none: it is the
 * latter), and a text. Refused, or a tokenizer whose ids of the text stand for the text, however it comes in
 * parts. */
#include "fuzz.h"
#include "tokenizer.h"
#include <keel/memory.h>

static void encode(const struct keel_tokenizer *tokenizer, const char *text, size_t bytes, size_t part)
{
    struct keel_encoder *encoder;
    size_t at = 0, there = 0, seen = 0;
    if (keel_encoder_create(tokenizer, &encoder) != KEEL_OK)
        return;
    while (at < bytes) {
        const uint32_t *ids;
        size_t used, count;
        there = bytes - there < part ? bytes : there + part;
        const enum keel_status status =
            keel_encoder_run(encoder, text + at, there - at, there == bytes, &used, &ids, &count);
        KEEL_ASSERT(used <= there - at && (status == KEEL_OK || status == KEEL_INVALID));
        for (size_t i = 0; i < count; i++) {
            size_t length;
            const char *of_id = keel_tokenizer_text(tokenizer, ids[i], &length);
            KEEL_ASSERT(seen + length <= bytes);
            seen += length;
            (void)of_id;
        }
        at += used;
        if (status != KEEL_OK)
            break;
    }
    keel_encoder_destroy(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *all = (const char *)data;
    const char *first = memchr(all, 0, bytes);
    if (first == NULL)
        return 0;
    const size_t rest = bytes - (size_t)(first + 1 - all);
    const char *second = memchr(first + 1, 0, rest);
    if (second == NULL)
        return 0;
    const struct keel_tokenizer_source source = {.json = all,
                                                 .json_name = "vocab",
                                                 .json_bytes = (size_t)(first - all),
                                                 .merges = second > first + 1 ? first + 1 : NULL,
                                                 .merges_name = "merges",
                                                 .merges_bytes = (size_t)(second - first - 1)};
    struct keel_tokenizer *tokenizer;
    if (keel_tokenizer_parse(&source, &tokenizer) != KEEL_OK)
        return 0;
    const size_t text_bytes = bytes - (size_t)(second + 1 - all);
    encode(tokenizer, second + 1, text_bytes, SIZE_MAX);
    encode(tokenizer, second + 1, text_bytes, 3);
    keel_tokenizer_close(tokenizer);
    return 0;
}
