/* shard.c - reading a shard: nothing is believed before its check has been seen. */
#include "shard.h"
#include "chunk_seal.h"
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static enum keel_status shard_path(const struct keel_step_place *place, uint32_t rank,
                                   char out[KEEL_PATH_BYTES])
{
    char name[KEEL_SHARD_NAME_BYTES];
    keel_shard_name(rank, name);
    return keel_path_join(out, place->path, name);
}

static enum keel_status open_shard(const struct keel_step_place *place, uint32_t rank, const char *path,
                                   int *out_fd, uint64_t *out_bytes)
{
    char name[KEEL_SHARD_NAME_BYTES];
    keel_shard_name(rank, name);
    enum keel_status status = keel_step_open_file(place, name, out_fd, out_bytes);
    if (status == KEEL_NOT_FOUND)
        return keel_fail(KEEL_CORRUPT, "%s: is missing; use another snapshot or a copy of this file", path);
    return status;
}

/* ---- load ---------------------------------------------------------------------------------------------- */

static enum keel_status read_ends(int fd, uint64_t file_bytes, const char *path, struct keel_shard *shard)
{
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES], end[sizeof(struct keel_format_footer)];
    if (file_bytes < sizeof block + sizeof end)
        return keel_fail(KEEL_CORRUPT, "%s: is cut off; use another snapshot or a copy of this file", path);
    KEEL_TRY(keel_pread_all(fd, block, sizeof block, 0, path));
    KEEL_TRY(keel_format_header_open(block, path, &shard->header));
    KEEL_TRY(keel_pread_all(fd, end, sizeof end, file_bytes - sizeof end, path));
    KEEL_TRY(keel_format_footer_open(end, path, &shard->footer));
    return keel_format_ends_match(&shard->header, &shard->footer, file_bytes, path);
}

/* The index, and the zeros between it and the footer. */
static enum keel_status read_index(int fd, const char *path, struct keel_shard *shard)
{
    const struct keel_format_footer *footer = &shard->footer;
    uint64_t bytes = footer->file_bytes - sizeof *footer - footer->index_offset;
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, bytes, &shard->index));
    KEEL_TRY(keel_pread_all(fd, shard->index, bytes, footer->index_offset, path));
    KEEL_TRY(keel_format_index_check(shard->index, &shard->header, footer, path));
    if (!keel_format_all_zero(shard->index + footer->index_bytes, bytes - footer->index_bytes))
        return keel_fail(KEEL_CORRUPT, "%s: bytes behind its index are damaged; use another snapshot", path);
    shard->records = keel_format_records(shard->index);
    shard->chunks = keel_format_chunks(shard->index, footer->record_count);
    return KEEL_OK;
}

/* The parts of a file by its footer alone, whatever they say: true when all their checks fit. */
static bool checks_fit(int fd, uint64_t file_bytes, const char *path, struct keel_shard *out)
{
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES], digest[KEEL_DIGEST_BYTES];
    struct keel_format_header *header = &out->header;
    struct keel_format_footer *footer = &out->footer;
    if (file_bytes < sizeof block + sizeof *footer ||
        keel_pread_all(fd, block, sizeof block, 0, path) != KEEL_OK ||
        keel_pread_all(fd, footer, sizeof *footer, file_bytes - sizeof *footer, path) != KEEL_OK ||
        footer->index_bytes > file_bytes || footer->index_offset > file_bytes - footer->index_bytes)
        return false;
    memcpy(header, block, sizeof *header);
    memset(block + offsetof(struct keel_format_header, check), 0, sizeof header->check);
    if (header->check != keel_format_check(block, sizeof block) ||
        footer->check != keel_format_check(footer, offsetof(struct keel_format_footer, check)) ||
        keel_alloc_aligned(KEEL_PAGE_BYTES, footer->index_bytes, &out->index) != KEEL_OK ||
        keel_pread_all(fd, out->index, footer->index_bytes, footer->index_offset, path) != KEEL_OK)
        return false;
    keel_format_digest(out->index, footer->index_bytes, digest);
    return memcmp(digest, footer->index_digest, sizeof digest) == 0;
}

/* A sealed file that makes no sense though all its checks fit was not damaged: FORGED when the key says that
 * it did not write it. Otherwise `status`, with its detail. */
static enum keel_status tell_forgery(const struct keel_step_place *place, int fd, uint64_t file_bytes,
                                     const char *path, enum keel_status status)
{
    char detail[KEEL_DETAIL_BYTES];
    struct keel_shard shard = {.place = place};
    if (status != KEEL_CORRUPT || place->key == NULL)
        return status;
    snprintf(detail, sizeof detail, "%s", keel_detail());
    bool forged =
        checks_fit(fd, file_bytes, path, &shard) &&
        !keel_format_all_zero(shard.header.salt, sizeof shard.header.salt) &&
        keel_shard_check_mac(place->key, &shard.header, shard.index, &shard.footer, path) == KEEL_FORGED;
    keel_shard_unload(&shard);
    if (forged)
        return KEEL_FORGED;
    keel_detail_set(detail);
    return status;
}

enum keel_status keel_shard_load(const struct keel_step_place *place, uint32_t rank, struct keel_shard *out)
{
    char path[KEEL_PATH_BYTES];
    int fd;
    uint64_t file_bytes;
    struct keel_shard shard = {.place = place};
    KEEL_TRY(shard_path(place, rank, path));
    KEEL_TRY(open_shard(place, rank, path, &fd, &file_bytes));
    enum keel_status status = read_ends(fd, file_bytes, path, &shard);
    if (status == KEEL_OK)
        status = read_index(fd, path, &shard);
    status = tell_forgery(place, fd, file_bytes, path, status);
    keel_disk_close(fd);
    if (status != KEEL_OK) {
        keel_shard_unload(&shard);
        return status;
    }
    *out = shard;
    return KEEL_OK;
}

void keel_shard_unload(struct keel_shard *shard)
{
    keel_free(shard->index);
    *shard = (struct keel_shard){0};
}

static enum keel_status match(const struct keel_shard *shard, const struct keel_manifest *manifest,
                              uint32_t rank)
{
    char path[KEEL_PATH_BYTES];
    const struct keel_shard_summary *summary = &manifest->shards[rank];
    const struct keel_format_header *header = &shard->header;
    const struct keel_format_footer *footer = &shard->footer;
    KEEL_TRY(shard_path(shard->place, rank, path));
    if (strcmp(header->run, manifest->run) != 0 || header->step != manifest->info.step ||
        header->attempt != manifest->info.attempt || header->rank != rank ||
        header->rank_count != manifest->info.shard_count)
        return keel_fail(KEEL_MISMATCH,
                         "%s: is rank %u of %u of run %s, step %llu.%llu; files of two snapshots were "
                         "mixed; use another copy of this file, or another snapshot",
                         path, header->rank, header->rank_count, header->run,
                         (unsigned long long)header->step, (unsigned long long)header->attempt);
    if (footer->file_bytes != summary->file_bytes || footer->record_count != summary->record_count ||
        footer->raw_bytes != summary->raw_bytes || footer->stored_bytes != summary->stored_bytes ||
        memcmp(footer->index_digest, summary->index_digest, KEEL_DIGEST_BYTES) != 0)
        return keel_fail(KEEL_MISMATCH,
                         "%s: is not the file that its summary describes; use another snapshot", path);
    return KEEL_OK;
}

static enum keel_status prove(const struct keel_shard *shard, const struct keel_manifest *manifest)
{
    char path[KEEL_PATH_BYTES];
    bool sealed = (shard->header.flags & KEEL_HEADER_SEALED) != 0;
    KEEL_TRY(keel_shard_path(shard, path));
    if (sealed != manifest->info.sealed)
        return keel_fail(manifest->proven ? KEEL_FORGED : KEEL_MISMATCH,
                         "%s: is %ssealed, and its manifest is %s; use another snapshot", path,
                         sealed ? "" : "not ", manifest->info.sealed ? "sealed" : "not");
    if (!sealed || shard->place->key == NULL)
        return KEEL_OK;
    enum keel_status status =
        keel_shard_check_mac(shard->place->key, &shard->header, shard->index, &shard->footer, path);
    if (status != KEEL_AUTH || !manifest->proven)
        return status;
    return keel_fail(KEEL_FORGED, "%s: has another key than its manifest; use another snapshot", path);
}

enum keel_status keel_shard_load_of(const struct keel_step_place *place, const struct keel_manifest *manifest,
                                    uint32_t rank, struct keel_shard *out)
{
    KEEL_TRY(keel_shard_load(place, rank, out));
    enum keel_status status = prove(out, manifest);
    if (status == KEEL_OK)
        status = match(out, manifest, rank);
    if (status != KEEL_OK)
        keel_shard_unload(out);
    return status;
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

const struct keel_format_record *keel_shard_record_of(const struct keel_shard *shard, uint32_t chunk)
{
    return keel_format_record_of(shard->records, shard->footer.record_count, chunk);
}

enum keel_status keel_shard_path(const struct keel_shard *shard, char out[KEEL_PATH_BYTES])
{
    return shard_path(shard->place, shard->header.rank, out);
}

enum keel_status keel_shard_open(const struct keel_shard *shard, int *out_fd)
{
    char path[KEEL_PATH_BYTES];
    uint64_t bytes;
    KEEL_TRY(keel_shard_path(shard, path));
    return open_shard(shard->place, shard->header.rank, path, out_fd, &bytes);
}
