/* snapshot_index.c - the pieces of a snapshot: from the indexes of all its shards, or by its merged index
 * (merged_index.h), of which only the parts that are asked for are read, and then the indexes of those shards
 * that hold something.
 *
 * The merged index is a shortcut, and never believed: a shard's own record is compared with what it says. One
 * that is damaged, or of other shards, is passed over with a line in the log, and where it leads nowhere all
 * indexes are read after all (keel_snapshot_whole). */
#include "snapshot.h"
#include <errno.h>
#include <fcntl.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------------- */

void keel_merged_close(struct keel_merged *merged)
{
    if (merged == NULL)
        return;
    for (uint32_t b = 0; merged->parts != NULL && b < merged->header.block_count; b++)
        keel_free(merged->parts[b]);
    keel_free(merged->parts);
    keel_free(merged->directory);
    if (merged->fd >= 0)
        keel_disk_close(merged->fd);
    keel_free(merged);
}

/* It is that of this manifest. */
static enum keel_status match(const struct keel_merged *merged, const struct keel_manifest *manifest)
{
    const struct keel_merged_header *header = &merged->header;
    uint8_t digest[KEEL_DIGEST_BYTES];
    KEEL_TRY(keel_merged_shards_digest(manifest->shards, manifest->info.shard_count, digest));
    if (strcmp(header->run, manifest->run) == 0 && header->step == manifest->info.step &&
        header->attempt == manifest->info.attempt && header->shard_count == manifest->info.shard_count &&
        memcmp(header->shards_digest, digest, sizeof digest) == 0)
        return KEEL_OK;
    return keel_fail(KEEL_MISMATCH, "%s: is of other shards; remove it", merged->path);
}

static enum keel_status read_directory(struct keel_merged *merged, uint64_t file_bytes,
                                       const struct keel_manifest *manifest)
{
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    if (file_bytes < sizeof block)
        return keel_fail(KEEL_CORRUPT, "%s: is cut off; remove the file, which follows from the shards",
                         merged->path);
    KEEL_TRY(keel_pread_all(merged->fd, block, sizeof block, 0, merged->path));
    KEEL_TRY(keel_merged_header_open(block, file_bytes, merged->path, &merged->header));
    KEEL_TRY(match(merged, manifest));
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, merged->header.directory_bytes, &merged->directory));
    KEEL_TRY(keel_pread_all(merged->fd, merged->directory, merged->header.directory_bytes, sizeof block,
                            merged->path));
    KEEL_TRY(keel_merged_directory_check(&merged->header, merged->directory, merged->path));
    merged->tensors = keel_merged_tensors(merged->directory);
    merged->blocks = keel_merged_blocks(&merged->header, merged->directory);
    return keel_alloc(merged->header.block_count, sizeof *merged->parts, &merged->parts);
}

static enum keel_status take_tensors(struct keel_snapshot *snapshot, const struct keel_merged *merged)
{
    const uint32_t count = merged->header.tensor_count;
    KEEL_TRY(keel_alloc(count, sizeof *snapshot->tensors, &snapshot->tensors));
    for (uint32_t t = 0; t < count; t++) {
        const struct keel_merged_tensor *tensor = &merged->tensors[t];
        snapshot->tensors[t] = (struct keel_tensor){.first_piece = tensor->first_piece,
                                                    .piece_count = tensor->piece_count,
                                                    .axis = tensor->axis,
                                                    .dtype = tensor->dtype,
                                                    .dims = tensor->dims,
                                                    .name = tensor->name,
                                                    .shape = tensor->shape};
    }
    snapshot->tensor_count = count;
    snapshot->piece_count = merged->header.piece_count;
    return KEEL_OK;
}

/* Who writes in the store of a sealed snapshot, and has no key, could leave out tensors: such have none. */
enum keel_status keel_merged_open(struct keel_snapshot *snapshot)
{
    struct keel_merged *merged;
    uint64_t file_bytes;
    if (snapshot->manifest.info.sealed)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(1, sizeof *merged, &merged));
    merged->fd = -1;
    enum keel_status status = keel_path_join(merged->path, snapshot->place.path, KEEL_MERGED_NAME);
    if (status == KEEL_OK)
        status = keel_step_open_file(&snapshot->place, KEEL_MERGED_NAME, &merged->fd, &file_bytes);
    const bool there = status != KEEL_NOT_FOUND;
    if (status == KEEL_OK)
        status = read_directory(merged, file_bytes, &snapshot->manifest);
    if (status == KEEL_OK)
        status = take_tensors(snapshot, merged);
    if (status == KEEL_OK) {
        snapshot->merged = merged;
        return KEEL_OK;
    }
    keel_merged_close(merged);
    if (keel_is_shortage(status))
        return status;
    if (there)
        keel_log(KEEL_LOG_WARN, "%s (the indexes of all shards are read instead)", keel_detail());
    return KEEL_OK;
}

/* ---- pieces -------------------------------------------------------------------------------------------- */

/* Of a block, once read it stays. With the snapshot's lock held. */
static enum keel_status read_part(struct keel_merged *merged, const struct keel_merged_tensor *tensor,
                                  uint32_t number)
{
    const struct keel_merged_block *block = &merged->blocks[number];
    uint8_t *bytes;
    if (merged->parts[number] != NULL)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(block->bytes, 1, &bytes));
    enum keel_status status = keel_pread_all(merged->fd, bytes, block->bytes, block->offset, merged->path);
    if (status == KEEL_OK)
        status = keel_merged_block_check(&merged->header, tensor, block, bytes, merged->path);
    if (status != KEEL_OK) {
        keel_free(bytes);
        return status == KEEL_IO ? KEEL_CORRUPT : status;
    }
    merged->parts[number] = bytes;
    return KEEL_OK;
}

enum keel_status keel_snapshot_piece(const struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                     uint32_t piece, struct keel_merged_piece *out)
{
    struct keel_merged *merged = snapshot->merged;
    if (merged == NULL) {
        const struct keel_piece *p = &snapshot->pieces[piece];
        *out = (struct keel_merged_piece){p->shard, p->record,
                                          keel_record_box(&snapshot->shards[p->shard].records[p->record])};
        return KEEL_OK;
    }
    const struct keel_merged_tensor *entry = &merged->tensors[tensor - snapshot->tensors];
    const uint32_t index = piece - tensor->first_piece;
    const uint32_t number = entry->first_block + index / KEEL_MERGED_BLOCK_PIECES;
    KEEL_ASSERT(index < tensor->piece_count);
    keel_mutex_lock(snapshot->lock);
    const enum keel_status status = read_part(merged, entry, number);
    keel_mutex_unlock(snapshot->lock);
    if (status == KEEL_OK)
        keel_merged_piece_at(entry, merged->parts[number], index % KEEL_MERGED_BLOCK_PIECES, out);
    return status;
}

uint32_t keel_snapshot_first_reaching(const struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                      uint64_t from)
{
    const struct keel_merged *merged = snapshot->merged;
    const struct keel_merged_tensor *entry =
        merged != NULL ? &merged->tensors[tensor - snapshot->tensors] : NULL;
    uint32_t low = entry != NULL ? entry->first_block : tensor->first_piece;
    uint32_t high = low + (entry != NULL ? entry->block_count : tensor->piece_count);
    const uint32_t first = low;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if ((entry != NULL ? merged->blocks[middle].reach : snapshot->pieces[middle].reach) > from)
            high = middle;
        else
            low = middle + 1;
    }
    if (entry == NULL)
        return low;
    return low == first + entry->block_count ? tensor->first_piece + tensor->piece_count
                                             : tensor->first_piece + (low - first) * KEEL_MERGED_BLOCK_PIECES;
}

/* ---- shards -------------------------------------------------------------------------------------------- */

/* What the merged index says of a record is what the shard says. */
static enum keel_status compare(const struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                const struct keel_merged_piece *piece)
{
    const struct keel_shard *shard = &snapshot->shards[piece->shard];
    if (piece->record < shard->footer.record_count) {
        const struct keel_format_record *record = &shard->records[piece->record];
        if (strcmp(record->name, tensor->name) == 0 && record->dtype == tensor->dtype &&
            record->dims == tensor->dims && memcmp(record->shape, tensor->shape, sizeof record->shape) == 0 &&
            memcmp(record->offset, piece->box.offset, sizeof record->offset) == 0 &&
            memcmp(record->extent, piece->box.extent, sizeof record->extent) == 0)
            return KEEL_OK;
    }
    return keel_fail(KEEL_CORRUPT, "%s: says what rank %u's shard does not hold; remove the file",
                     snapshot->merged->path, piece->shard);
}

enum keel_status keel_snapshot_need(struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                    const struct keel_merged_piece *piece)
{
    enum keel_status status = KEEL_OK;
    if (snapshot->merged == NULL)
        return KEEL_OK;
    keel_mutex_lock(snapshot->lock);
    if (snapshot->shards[piece->shard].index == NULL)
        status = keel_shard_load_of(&snapshot->place, &snapshot->manifest, piece->shard,
                                    &snapshot->shards[piece->shard]);
    keel_mutex_unlock(snapshot->lock);
    return status == KEEL_OK ? compare(snapshot, tensor, piece) : status;
}

static enum keel_status open_whole(const struct keel_snapshot *snapshot, struct keel_snapshot **out)
{
    struct keel_step_place place = snapshot->place;
    struct keel_manifest manifest;
    struct keel_snapshot *whole;
    KEEL_TRY(keel_manifest_copy(&snapshot->manifest, &manifest));
    place.fd = keel_disk_open(snapshot->place.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (place.fd < 0) {
        keel_manifest_fini(&manifest);
        return keel_fail_errno(errno, "%s: cannot be opened again", place.path);
    }
    place.key = keel_key_retain(snapshot->place.key);
    KEEL_TRY(keel_snapshot_assemble(&place, &manifest, KEEL_OPEN_ALL, &whole));
    whole->bases_of = snapshot;
    *out = whole;
    return KEEL_OK;
}

enum keel_status keel_snapshot_whole(struct keel_snapshot *snapshot, struct keel_snapshot **out)
{
    enum keel_status status = KEEL_OK;
    if (snapshot->merged == NULL) {
        *out = snapshot;
        return KEEL_OK;
    }
    keel_mutex_lock(snapshot->lock);
    if (snapshot->whole == NULL)
        status = open_whole(snapshot, &snapshot->whole);
    *out = snapshot->whole;
    keel_mutex_unlock(snapshot->lock);
    return status;
}

bool keel_snapshot_is_whole(const struct keel_snapshot *snapshot)
{
    if (snapshot->merged == NULL)
        return true;
    keel_mutex_lock(snapshot->lock);
    const bool whole = snapshot->whole != NULL;
    keel_mutex_unlock(snapshot->lock);
    return whole;
}

/* ---- making it ----------------------------------------------------------------------------------------- */

static enum keel_status add_tensor(const struct keel_snapshot *snapshot, const struct keel_tensor *tensor,
                                   struct keel_merged_writer *writer)
{
    KEEL_TRY(keel_merged_add_tensor(writer, tensor->name, tensor->dtype, tensor->dims, tensor->shape,
                                    tensor->axis));
    for (uint32_t p = tensor->first_piece; p < tensor->first_piece + tensor->piece_count; p++) {
        struct keel_merged_piece piece;
        KEEL_TRY(keel_snapshot_piece(snapshot, tensor, p, &piece));
        KEEL_TRY(keel_merged_add_piece(writer, &piece));
    }
    return KEEL_OK;
}

enum keel_status keel_merged_make(const struct keel_snapshot *snapshot, uint8_t **out, size_t *out_bytes)
{
    const struct keel_manifest *manifest = &snapshot->manifest;
    struct keel_merged_writer writer = {.header = {.step = manifest->info.step,
                                                   .attempt = manifest->info.attempt,
                                                   .shard_count = manifest->info.shard_count,
                                                   .chain = keel_snapshot_longest_chain(snapshot)}};
    KEEL_ASSERT(snapshot->merged == NULL && snapshot->missing_count == 0);
    memcpy(writer.header.run, manifest->run, sizeof writer.header.run);
    enum keel_status status =
        keel_merged_shards_digest(manifest->shards, manifest->info.shard_count, writer.header.shards_digest);
    for (uint32_t t = 0; t < snapshot->tensor_count && status == KEEL_OK; t++)
        status = add_tensor(snapshot, &snapshot->tensors[t], &writer);
    if (status == KEEL_OK)
        status = keel_merged_encode(&writer, out, out_bytes);
    keel_merged_writer_fini(&writer);
    return status;
}

/* So much of indexes is read sooner than a merged one is looked into. */
static const uint64_t merged_from_bytes = UINT64_C(1) << 20;

static bool wants_merged(const struct keel_snapshot *snapshot)
{
    uint64_t bytes = 0;
    const uint32_t count = snapshot->manifest.info.shard_count;
    if (count == 1 || snapshot->missing_count > 0 || snapshot->manifest.info.sealed)
        return false;
    for (uint32_t i = 0; i < count; i++)
        bytes += snapshot->shards[i].footer.index_bytes;
    return bytes >= merged_from_bytes;
}

static bool is_same(int fd, const char *path, const uint8_t *wanted, size_t bytes)
{
    uint8_t piece[KEEL_FORMAT_BLOCK_BYTES];
    bool same = true;
    for (size_t at = 0; at < bytes && same; at += sizeof piece) {
        const size_t left = bytes - at, some = left < sizeof piece ? left : sizeof piece;
        same = keel_pread_all(fd, piece, some, at, path) == KEEL_OK && memcmp(piece, wanted + at, some) == 0;
    }
    return same;
}

bool keel_merged_is(const struct keel_snapshot *snapshot, const uint8_t *wanted, size_t bytes)
{
    int fd;
    uint64_t file_bytes;
    if (keel_step_open_file(&snapshot->place, KEEL_MERGED_NAME, &fd, &file_bytes) != KEEL_OK)
        return false;
    const bool same = file_bytes == bytes && is_same(fd, KEEL_MERGED_NAME, wanted, bytes);
    keel_disk_close(fd);
    return same;
}

void keel_merged_write(const struct keel_snapshot *snapshot)
{
    char path[KEEL_PATH_BYTES];
    uint8_t *data = NULL;
    size_t bytes = 0;
    if (!wants_merged(snapshot))
        return;
    enum keel_status status = keel_path_join(path, snapshot->place.path, KEEL_MERGED_NAME);
    if (status == KEEL_OK)
        status = keel_merged_make(snapshot, &data, &bytes);
    if (status == KEEL_OK && !keel_merged_is(snapshot, data, bytes))
        status = keel_file_replace(path, data, bytes, 0666);
    keel_free(data);
    if (status != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "the snapshot of step %llu has no merged index: %s",
                 (unsigned long long)snapshot->manifest.info.step, keel_detail());
}
