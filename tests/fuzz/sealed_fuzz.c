/* sealed_fuzz.c - any bytes as a sealed shard of a committed snapshot, read with its key and without: reading
 * never leaves memory, and where verifying finds nothing, every tensor reads.
 *
 * Somebody without the key gets no further than the macs (tests/ckpt/seal_store_test.c). Here the mutator has
 * the key: it changes header, index, footer and what is inside of chunks, and then seals all again, so that
 * what lies behind the macs meets hostile bytes too. */
#include "chunk_seal.h"
#include "fuzz.h"
#include "manifest.h"
#include <keel/ckpt.h>
#include <keel/memory.h>
#include <sys/stat.h>

static const uint64_t step = 1234567890123, attempt = UINT64_MAX; /* of the golden snapshot */
static const char key_text[] = "18127e169eb21e7d2d0cdec8f9180826af7fe1d8a6d253dcf41f6d1e5633dda8";
enum { READ_BYTES_MAX = 4 << 20 };

static const char *key_path(void)
{
    static char path[KEEL_PATH_BYTES];
    if (path[0] == '\0') {
        KEEL_ASSERT(keel_path_join(path, fuzz_directory(), "key") == KEEL_OK);
        fuzz_write(path, key_text, sizeof key_text - 1);
        KEEL_ASSERT(chmod(path, 0600) == 0);
    }
    return path;
}

static const struct keel_key *key(void)
{
    static struct keel_key *loaded;
    if (loaded == NULL)
        KEEL_ASSERT(keel_key_load(key_path(), &loaded) == KEEL_OK);
    return loaded;
}

/* Where the parts of a file are, as far as its footer says something possible. */
struct parts {
    struct keel_format_header header;
    struct keel_format_footer footer;
    size_t footer_at, index_at, chunks_at;
};

static bool find_parts(const uint8_t *data, size_t bytes, struct parts *out)
{
    struct parts parts = {.footer_at = bytes - sizeof parts.footer};
    if (bytes < KEEL_FORMAT_BLOCK_BYTES + sizeof parts.footer)
        return false;
    memcpy(&parts.header, data, sizeof parts.header);
    memcpy(&parts.footer, data + parts.footer_at, sizeof parts.footer);
    parts.index_at = parts.footer.index_offset;
    size_t records = parts.footer.record_count, chunks = parts.footer.chunk_count;
    if (parts.index_at > parts.footer_at || records > 64 || chunks > 64)
        return false;
    parts.chunks_at = parts.index_at + records * sizeof(struct keel_format_record);
    if (parts.chunks_at + chunks * sizeof(struct keel_format_chunk) > parts.footer_at)
        return false;
    *out = parts;
    return true;
}

/* A sealed manifest that belongs to the shard, so that the shard is what is looked at. */
static void write_manifest(const char *path, const uint8_t *data, size_t bytes)
{
    struct parts parts = {0};
    (void)find_parts(data, bytes, &parts);
    struct keel_shard_summary shard = {.record_count = parts.footer.record_count,
                                       .file_bytes = parts.footer.file_bytes,
                                       .raw_bytes = parts.footer.raw_bytes,
                                       .stored_bytes = parts.footer.stored_bytes};
    memcpy(shard.index_digest, parts.footer.index_digest, sizeof shard.index_digest);
    char metadata[] = "{}", *text;
    struct keel_manifest manifest = {.run = "sealed",
                                     .info = {.step = step, .attempt = attempt, .shard_count = 1},
                                     .shards = &shard,
                                     .metadata = metadata,
                                     .key = key()};
    size_t text_bytes;
    KEEL_ASSERT(keel_manifest_encode(&manifest, &text, &text_bytes) == KEEL_OK);
    fuzz_write(path, text, text_bytes);
    keel_free(text);
}

static void read_tensor(struct keel_snapshot *snapshot, uint32_t index, bool must)
{
    struct keel_region region;
    uint8_t *out;
    KEEL_ASSERT(keel_snapshot_tensor(snapshot, index, &region) == KEEL_OK);
    uint64_t bytes = keel_region_bytes(&region);
    if (bytes > READ_BYTES_MAX)
        return;
    KEEL_ASSERT(keel_alloc(1, bytes, &out) == KEEL_OK);
    enum keel_status status = keel_snapshot_read(snapshot, &region, out, bytes);
    KEEL_ASSERT(status == KEEL_OK || !must);
    keel_free(out);
}

static void read_snapshot(const char *key_file)
{
    const struct keel_store_config config = {
        .root = fuzz_directory(), .run = "sealed", .read_only = true, .key_file = key_file};
    struct keel_store *store;
    struct keel_snapshot *snapshot;
    KEEL_ASSERT(keel_store_open(&config, &store) == KEEL_OK);
    if (keel_snapshot_open(store, step, attempt, &snapshot) == KEEL_OK) {
        bool sound = keel_snapshot_verify(snapshot, NULL, NULL, NULL) == KEEL_OK;
        for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++)
            read_tensor(snapshot, i, sound && key_file != NULL);
        keel_snapshot_close(snapshot);
    }
    keel_store_close(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char directory[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    snprintf(directory, sizeof directory, "%.500s/sealed/step-%llu.%llu", fuzz_directory(),
             (unsigned long long)step, (unsigned long long)attempt);
    KEEL_ASSERT(keel_mkdir_all(directory) == KEEL_OK);
    KEEL_ASSERT(keel_path_join(path, directory, "rank-0.keel") == KEEL_OK);
    fuzz_write(path, data, bytes);
    KEEL_ASSERT(keel_path_join(path, directory, KEEL_MANIFEST_NAME) == KEEL_OK);
    write_manifest(path, data, bytes);
    read_snapshot(key_path());
    read_snapshot(NULL);
    return 0;
}

/* ---- mutator ----------------------------------------------------------------------------------------- */

/* Change bytes at a place, keeping their number. */
static void change(uint8_t *data, size_t at, size_t part_bytes)
{
    uint8_t part[512] = {0};
    part_bytes = part_bytes < sizeof part ? part_bytes : sizeof part;
    memcpy(part, data + at, part_bytes);
    (void)LLVMFuzzerMutate(part, part_bytes, part_bytes);
    memcpy(data + at, part, part_bytes);
}

/* Open each chunk that opens, change one of them inside, change header and entry, and seal again. */
static void reseal_chunks(uint8_t *data, size_t bytes, struct parts *parts,
                          const struct keel_format_header *was, uint32_t chosen, bool inside)
{
    for (uint32_t i = 0; i < parts->footer.chunk_count; i++) {
        uint8_t *entry_at = data + parts->chunks_at + i * sizeof(struct keel_format_chunk);
        struct keel_format_chunk entry;
        const uint8_t *codec_bytes;
        memcpy(&entry, entry_at, sizeof entry);
        if (entry.file_offset > bytes || entry.stored_bytes > bytes - entry.file_offset ||
            entry.stored_bytes <= KEEL_FORMAT_SEAL_BYTES)
            continue;
        uint8_t *stored = data + entry.file_offset;
        if (keel_chunk_open(key(), was, i, &entry, stored, &codec_bytes) != KEEL_OK || codec_bytes == stored)
            continue;
        if (i == chosen && inside)
            change(data, entry.file_offset + KEEL_SEAL_FRONT_BYTES, entry.stored_bytes);
        else if (i == chosen) {
            change(data, (size_t)(entry_at - data), sizeof entry);
            struct keel_format_chunk changed;
            memcpy(&changed, entry_at, sizeof changed);
            changed.stored_bytes = entry.stored_bytes; /* so that it stays in its place */
            changed.file_offset = entry.file_offset;
            changed.raw_check = entry.raw_check;
            entry = changed;
        }
        keel_chunk_seal(key(), &parts->header, i, &entry, stored);
        entry.stored_check = keel_format_check(stored, entry.stored_bytes);
        memcpy(entry_at, &entry, sizeof entry);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    struct parts parts;
    unsigned place = seed % 16;
    if (place == 0 || !find_parts(data, bytes, &parts))
        return LLVMFuzzerMutate(data, bytes, max_bytes);
    const struct keel_format_header was = parts.header;
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    if (place <= 3) { /* the identity; salt and key check stay, as without them nothing opens */
        change(data, 0, offsetof(struct keel_format_header, salt));
        memcpy(&parts.header, data, sizeof parts.header);
        keel_format_header_seal(&parts.header, block);
        memcpy(data, block, sizeof block);
        memcpy(&parts.header, block, sizeof parts.header);
    }
    uint32_t chosen =
        place <= 3 || parts.footer.chunk_count == 0 ? UINT32_MAX : seed / 16 % parts.footer.chunk_count;
    reseal_chunks(data, bytes, &parts, &was, place <= 11 ? chosen : UINT32_MAX, place <= 9);
    if (place >= 12 && parts.footer.record_count > 0)
        change(data,
               parts.index_at + seed / 16 % parts.footer.record_count * sizeof(struct keel_format_record),
               sizeof(struct keel_format_record));
    size_t index_bytes =
        parts.chunks_at - parts.index_at + parts.footer.chunk_count * sizeof(struct keel_format_chunk);
    keel_format_digest(data + parts.index_at, index_bytes, parts.footer.index_digest);
    parts.footer.index_bytes = index_bytes;
    parts.footer.header_check = parts.header.check;
    keel_format_footer_seal(&parts.footer);
    keel_shard_mac(key(), &parts.header, data + parts.index_at, &parts.footer);
    keel_format_footer_seal(&parts.footer);
    memcpy(data + parts.footer_at, &parts.footer, sizeof parts.footer);
    return bytes;
}
