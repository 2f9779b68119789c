/* manifest_fuzz.c - any bytes as manifest.json: refused, or understood so that writing it again gives a
 * manifest that says the same. The mutator keeps the check right, else nothing would get past it. */
#include "format.h"
#include "fuzz.h"
#include "manifest.h"
#include <keel/memory.h>

enum { TAIL_BYTES = 2 * KEEL_DIGEST_BYTES + 4 };

static void same_shards(const struct keel_manifest *a, const struct keel_manifest *b)
{
    KEEL_ASSERT(a->info.shard_count == b->info.shard_count);
    for (uint32_t i = 0; i < a->info.shard_count; i++) {
        const struct keel_shard_summary *x = &a->shards[i], *y = &b->shards[i];
        KEEL_ASSERT(x->rank == y->rank && x->record_count == y->record_count &&
                    x->file_bytes == y->file_bytes && x->raw_bytes == y->raw_bytes &&
                    x->stored_bytes == y->stored_bytes);
        KEEL_ASSERT(memcmp(x->index_digest, y->index_digest, sizeof x->index_digest) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct keel_manifest first, second;
    if (keel_manifest_decode((const char *)data, bytes, "input", &first) != KEEL_OK)
        return 0;
    char *text;
    size_t text_bytes;
    KEEL_ASSERT(strlen(first.run) < sizeof first.run);
    KEEL_ASSERT(keel_manifest_encode(&first, &text, &text_bytes) == KEEL_OK);
    KEEL_ASSERT(keel_manifest_decode(text, text_bytes, "again", &second) == KEEL_OK);
    KEEL_ASSERT(strcmp(first.run, second.run) == 0 && strcmp(first.metadata, second.metadata) == 0);
    KEEL_ASSERT(first.info.step == second.info.step && first.info.attempt == second.info.attempt &&
                first.info.created_wall_ns == second.info.created_wall_ns);
    KEEL_ASSERT(strcmp(first.info.identity, second.info.identity) == 0);
    same_shards(&first, &second);
    keel_free(text);
    keel_manifest_fini(&first);
    keel_manifest_fini(&second);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    bytes = LLVMFuzzerMutate(data, bytes, max_bytes);
    if (bytes <= TAIL_BYTES || seed % 16 == 0)
        return bytes;
    uint8_t digest[KEEL_DIGEST_BYTES];
    char tail[TAIL_BYTES + 1];
    keel_format_digest(data, bytes - TAIL_BYTES, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(tail + 2 * i, 3, "%02x", digest[i]);
    snprintf(tail + 2 * sizeof digest, 5, "\"\n}\n");
    memcpy(data + bytes - TAIL_BYTES, tail, TAIL_BYTES);
    return bytes;
}
