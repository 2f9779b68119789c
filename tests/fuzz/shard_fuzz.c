/* shard_fuzz.c - any bytes as a shard file of a committed snapshot: opening, verifying and reading it never
 * leave memory; and where verifying finds no damage, every tensor reads, whole and in part.
 *
 * Damage as disks make it fails a check at once (tests/ckpt/damage_test.c). Here the mutator aims at header,
 * footer, index and chunks and then makes the checks right, as somebody who wants to harm would. */
#include "format.h"
#include "fuzz.h"
#include "manifest.h"
#include <keel/ckpt.h>
#include <keel/memory.h>

static const uint64_t step = 1234567890123, attempt = UINT64_MAX; /* of the golden snapshots */
enum { READ_BYTES_MAX = 4 << 20 };

/* Where the parts of a file are, as far as its footer says something possible. */
struct parts {
    struct keel_format_footer footer;
    size_t footer_at, index_at, record_count, chunk_count;
};

static bool find_parts(const uint8_t *data, size_t bytes, struct parts *out)
{
    struct parts parts = {.footer_at = bytes - sizeof parts.footer};
    if (bytes < KEEL_FORMAT_BLOCK_BYTES + sizeof parts.footer)
        return false;
    memcpy(&parts.footer, data + parts.footer_at, sizeof parts.footer);
    parts.index_at = parts.footer.index_offset;
    parts.record_count = parts.footer.record_count;
    parts.chunk_count = parts.footer.chunk_count;
    if (parts.index_at > parts.footer_at || parts.record_count > 64 || parts.chunk_count > 64)
        return false;
    size_t index_bytes = parts.record_count * sizeof(struct keel_format_record) +
                         parts.chunk_count * sizeof(struct keel_format_chunk);
    if (index_bytes > parts.footer_at - parts.index_at)
        return false;
    *out = parts;
    return true;
}

static void read_part(struct keel_snapshot *snapshot, const struct keel_region *box, bool must)
{
    uint64_t bytes = keel_region_bytes(box);
    uint8_t *out;
    if (bytes > READ_BYTES_MAX)
        return;
    KEEL_ASSERT(keel_alloc(1, bytes, &out) == KEEL_OK);
    enum keel_status status = keel_snapshot_read(snapshot, box, out, bytes);
    KEEL_ASSERT(status == KEEL_OK || !must);
    keel_free(out);
}

/* All of it, and its middle. */
static void read_tensor(struct keel_snapshot *snapshot, uint32_t index, bool must)
{
    struct keel_region region;
    KEEL_ASSERT(keel_snapshot_tensor(snapshot, index, &region) == KEEL_OK);
    KEEL_ASSERT(keel_region_check(&region) == KEEL_OK);
    read_part(snapshot, &region, must);
    for (uint32_t i = 0; i < region.dims; i++) {
        region.offset[i] = region.shape[i] / 3;
        region.extent[i] = region.shape[i] / 2;
    }
    read_part(snapshot, &region, must);
}

/* A manifest that belongs to the shard, so that the shard is what is looked at. */
static void write_manifest(const char *path, const char *run, const uint8_t *data, size_t bytes)
{
    struct parts parts = {0};
    (void)find_parts(data, bytes, &parts);
    struct keel_shard_summary shard = {.record_count = parts.footer.record_count,
                                       .file_bytes = parts.footer.file_bytes,
                                       .raw_bytes = parts.footer.raw_bytes,
                                       .stored_bytes = parts.footer.stored_bytes};
    memcpy(shard.index_digest, parts.footer.index_digest, sizeof shard.index_digest);
    char metadata[] = "{}", *text;
    struct keel_manifest manifest = {
        .info = {.step = step, .attempt = attempt, .shard_count = 1}, .shards = &shard, .metadata = metadata};
    memcpy(manifest.run, run, strlen(run) + 1);
    size_t text_bytes;
    KEEL_ASSERT(keel_manifest_encode(&manifest, &text, &text_bytes) == KEEL_OK);
    fuzz_write(path, text, text_bytes);
    keel_free(text);
}

static void read_snapshot(const char *root, const char *run)
{
    const struct keel_store_config config = {.root = root, .run = run, .read_only = true};
    struct keel_store *store;
    struct keel_snapshot *snapshot;
    KEEL_ASSERT(keel_store_open(&config, &store) == KEEL_OK);
    if (keel_snapshot_open(store, step, attempt, &snapshot) == KEEL_OK) {
        bool sound = keel_snapshot_verify(snapshot, NULL, NULL, NULL) == KEEL_OK;
        for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++)
            read_tensor(snapshot, i, sound);
        keel_snapshot_close(snapshot);
    }
    keel_store_close(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char directory[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    const char *root = fuzz_directory();
    const char *run = bytes > 44 && memcmp(data + 40, "raw", 4) == 0 ? "raw" : "planes"; /* golden ones */
    snprintf(directory, sizeof directory, "%.500s/%s/step-%llu.%llu", root, run, (unsigned long long)step,
             (unsigned long long)attempt);
    KEEL_ASSERT(keel_mkdir_all(directory) == KEEL_OK);
    KEEL_ASSERT(keel_path_join(path, directory, "rank-0.keel") == KEEL_OK);
    fuzz_write(path, data, bytes);
    KEEL_ASSERT(keel_path_join(path, directory, KEEL_MANIFEST_NAME) == KEEL_OK);
    write_manifest(path, run, data, bytes);
    read_snapshot(root, run);
    return 0;
}

/* ---- mutator ----------------------------------------------------------------------------------------- */

/* Where chunk `number` is stored, if that is within the file. */
static bool find_chunk(const uint8_t *data, size_t bytes, const struct parts *parts, size_t number,
                       struct keel_format_chunk *out, size_t *out_at)
{
    *out_at = parts->index_at + parts->record_count * sizeof(struct keel_format_record) +
              number * sizeof(struct keel_format_chunk);
    memcpy(out, data + *out_at, sizeof *out);
    return out->file_offset <= bytes && out->stored_bytes <= bytes - out->file_offset;
}

static void mend_checks(uint8_t *data, size_t bytes)
{
    struct parts parts;
    struct keel_format_header header;
    if (!find_parts(data, bytes, &parts))
        return;
    memcpy(&header, data, sizeof header);
    header.check = 0;
    memcpy(data, &header, sizeof header);
    header.check = keel_format_check(data, KEEL_FORMAT_BLOCK_BYTES);
    memcpy(data, &header, sizeof header);
    for (size_t i = 0; i < parts.chunk_count; i++) {
        struct keel_format_chunk chunk;
        size_t at;
        if (!find_chunk(data, bytes, &parts, i, &chunk, &at))
            continue;
        chunk.stored_check = keel_format_check(data + chunk.file_offset, chunk.stored_bytes);
        if (chunk.codec == KEEL_CODEC_RAW)
            chunk.raw_check = chunk.stored_check;
        memcpy(data + at, &chunk, sizeof chunk);
    }
    keel_format_digest(data + parts.index_at,
                       parts.record_count * sizeof(struct keel_format_record) +
                           parts.chunk_count * sizeof(struct keel_format_chunk),
                       parts.footer.index_digest);
    parts.footer.header_check = header.check;
    parts.footer.check = keel_format_check(&parts.footer, offsetof(struct keel_format_footer, check));
    memcpy(data + parts.footer_at, &parts.footer, sizeof parts.footer);
}

/* Change bytes at a place, keeping their number. */
static void change(uint8_t *data, size_t at, size_t part_bytes)
{
    uint8_t part[512] = {0};
    part_bytes = part_bytes < sizeof part ? part_bytes : sizeof part;
    memcpy(part, data + at, part_bytes);
    (void)LLVMFuzzerMutate(part, part_bytes, part_bytes);
    memcpy(data + at, part, part_bytes);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    struct parts parts;
    struct keel_format_chunk chunk;
    unsigned place = seed % 16;
    size_t at, number = seed / 16;
    if (place == 0 || !find_parts(data, bytes, &parts))
        return LLVMFuzzerMutate(data, bytes, max_bytes);
    if (place <= 2)
        change(data, 0, sizeof(struct keel_format_header));
    else if (place <= 4)
        change(data, parts.footer_at, sizeof parts.footer);
    else if (place <= 8 && parts.record_count > 0)
        change(data, parts.index_at + number % parts.record_count * sizeof(struct keel_format_record),
               sizeof(struct keel_format_record));
    else if (parts.chunk_count > 0 &&
             find_chunk(data, bytes, &parts, number % parts.chunk_count, &chunk, &at))
        change(data, place <= 11 ? at : chunk.file_offset, place <= 11 ? sizeof chunk : chunk.stored_bytes);
    mend_checks(data, bytes);
    return bytes;
}
