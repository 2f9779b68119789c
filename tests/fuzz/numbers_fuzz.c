/* numbers_fuzz.c - any bytes as tokens that people write: refused, or numbers below the vocabulary. */
#include "fuzz.h"
#include "token_files.h"
#include <keel/memory.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint32_t vocab = bytes > 0 ? UINT32_C(1) << (data[0] % 31) : 1;
    int32_t *tokens = NULL;
    size_t count = 0;
    if (keel_token_numbers_parse((const char *)data, bytes, vocab, &tokens, &count) != KEEL_OK)
        return 0;
    KEEL_ASSERT(count <= bytes);
    for (size_t i = 0; i < count; i++)
        KEEL_ASSERT(tokens[i] >= 0 && (uint32_t)tokens[i] < vocab);
    keel_free(tokens);
    return 0;
}
