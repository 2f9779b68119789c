/* snapshot.c - opening a snapshot: manifest, shards, the table of tensors that spans them, and its bases.
 * Everything is checked here but the chunks, which are checked as they are read. */
#include "snapshot.h"
#include <errno.h>
#include <fcntl.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* ---- open and close ------------------------------------------------------------------------------------ */

static bool is_here(const struct keel_step_place *place, uint32_t rank)
{
    char name[KEEL_SHARD_NAME_BYTES];
    struct stat info;
    keel_shard_name(rank, name);
    return keel_disk_stat(place->fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

static enum keel_status load_shards(struct keel_snapshot *snapshot, enum keel_open_how how)
{
    const struct keel_manifest *manifest = &snapshot->manifest;
    uint32_t count = manifest->info.shard_count;
    for (uint32_t i = 0; i < count; i++) {
        if (how == KEEL_OPEN_HERE && !is_here(&snapshot->place, i)) {
            snapshot->missing_count++;
            continue;
        }
        KEEL_TRY(keel_shard_load_of(&snapshot->place, manifest, i, &snapshot->shards[i]));
        KEEL_ASSERT(snapshot->shards[i].header.rank == i && snapshot->shards[i].header.rank_count == count);
        KEEL_ASSERT(snapshot->shards[i].header.step == manifest->info.step);
    }
    return keel_tensor_table_build(snapshot);
}

static enum keel_status load(struct keel_snapshot *snapshot, enum keel_open_how how)
{
    KEEL_TRY(keel_alloc(1, sizeof *snapshot->lock, &snapshot->lock));
    keel_mutex_init(snapshot->lock);
    KEEL_TRY(keel_alloc(snapshot->manifest.info.shard_count, sizeof *snapshot->shards, &snapshot->shards));
    if (how == KEEL_OPEN_PART)
        KEEL_TRY(keel_merged_open(snapshot));
    return snapshot->merged != NULL ? KEEL_OK : load_shards(snapshot, how);
}

enum keel_status keel_snapshot_assemble(struct keel_step_place *place, struct keel_manifest *manifest,
                                        enum keel_open_how how, struct keel_snapshot **out)
{
    struct keel_snapshot *snapshot;
    enum keel_status status = keel_alloc(1, sizeof *snapshot, &snapshot);
    if (status != KEEL_OK) {
        keel_step_close(place);
        keel_manifest_fini(manifest);
        return status;
    }
    snapshot->handle = KEEL_HANDLE_OPEN;
    snapshot->place = *place;
    snapshot->manifest = *manifest;
    status = load(snapshot, how);
    if (status != KEEL_OK) {
        keel_snapshot_close(snapshot);
        return status;
    }
    *out = snapshot;
    return KEEL_OK;
}

static enum keel_status open_snapshot(struct keel_store *store, uint64_t step, uint64_t attempt,
                                      enum keel_open_how how, struct keel_snapshot **out)
{
    struct keel_step_place place;
    struct keel_manifest manifest;
    KEEL_ASSERT(store != NULL && store->handle == KEEL_HANDLE_OPEN);
    KEEL_ASSERT(out != NULL);
    if (attempt == 0)
        KEEL_TRY(keel_store_newest_attempt(store, step, &attempt));
    KEEL_TRY(keel_step_open(store, step, attempt, false, &place));
    enum keel_status status = keel_manifest_read(store, &place, &manifest);
    if (status != KEEL_OK) {
        keel_step_close(&place);
        return status;
    }
    struct keel_snapshot *snapshot;
    KEEL_TRY(keel_snapshot_assemble(&place, &manifest, how, &snapshot));
    status = keel_snapshot_open_bases(store, snapshot);
    if (status != KEEL_OK) {
        keel_snapshot_close(snapshot);
        return status;
    }
    *out = snapshot;
    return KEEL_OK;
}

enum keel_status keel_snapshot_open(struct keel_store *store, uint64_t step, uint64_t attempt,
                                    struct keel_snapshot **out)
{
    return open_snapshot(store, step, attempt, KEEL_OPEN_PART, out);
}

enum keel_status keel_snapshot_open_here(struct keel_store *store, uint64_t step, uint64_t attempt,
                                         struct keel_snapshot **out)
{
    return open_snapshot(store, step, attempt, KEEL_OPEN_HERE, out);
}

uint32_t keel_snapshot_missing(const struct keel_snapshot *snapshot)
{
    KEEL_ASSERT(snapshot != NULL && snapshot->handle == KEEL_HANDLE_OPEN);
    return snapshot->missing_count;
}

enum keel_status keel_snapshot_check_shard(struct keel_store *store, uint64_t step, uint64_t attempt,
                                           uint32_t rank)
{
    struct keel_step_place place;
    struct keel_manifest manifest = {.shards = NULL};
    struct keel_shard shard;
    KEEL_ASSERT(store != NULL && store->handle == KEEL_HANDLE_OPEN);
    KEEL_TRY(keel_step_open(store, step, attempt, false, &place));
    enum keel_status status = keel_manifest_read(store, &place, &manifest);
    if (status == KEEL_OK && rank >= manifest.info.shard_count)
        status = keel_fail(KEEL_MISMATCH, "%s: has %u shards, and none of rank %u", place.path,
                           manifest.info.shard_count, rank);
    if (status == KEEL_OK)
        status = keel_shard_load_of(&place, &manifest, rank, &shard);
    if (status == KEEL_OK)
        keel_shard_unload(&shard);
    keel_manifest_fini(&manifest);
    keel_step_close(&place);
    return status;
}

void keel_snapshot_close(struct keel_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    KEEL_ASSERT(snapshot->handle == KEEL_HANDLE_OPEN);
    snapshot->handle = 0;
    for (uint32_t i = 0; snapshot->shards != NULL && i < snapshot->manifest.info.shard_count; i++)
        keel_shard_unload(&snapshot->shards[i]);
    keel_free(snapshot->shards);
    keel_free(snapshot->pieces);
    keel_free(snapshot->tensors);
    keel_snapshot_close(snapshot->whole);
    keel_merged_close(snapshot->merged);
    keel_snapshot_close_bases(snapshot);
    if (snapshot->lock != NULL)
        keel_mutex_fini(snapshot->lock);
    keel_free(snapshot->lock);
    keel_manifest_fini(&snapshot->manifest);
    keel_step_close(&snapshot->place);
    keel_free(snapshot);
}

const struct keel_snapshot_info *keel_snapshot_info(const struct keel_snapshot *snapshot)
{
    KEEL_ASSERT(snapshot != NULL && snapshot->handle == KEEL_HANDLE_OPEN);
    return &snapshot->manifest.info;
}

const char *keel_snapshot_metadata(const struct keel_snapshot *snapshot)
{
    KEEL_ASSERT(snapshot != NULL && snapshot->handle == KEEL_HANDLE_OPEN);
    return snapshot->manifest.metadata;
}

uint32_t keel_snapshot_tensor_count(const struct keel_snapshot *snapshot)
{
    KEEL_ASSERT(snapshot != NULL && snapshot->handle == KEEL_HANDLE_OPEN);
    return snapshot->tensor_count;
}

enum keel_status keel_snapshot_tensor(const struct keel_snapshot *snapshot, uint32_t index,
                                      struct keel_region *out)
{
    KEEL_ASSERT(snapshot != NULL && snapshot->handle == KEEL_HANDLE_OPEN);
    KEEL_ASSERT(out != NULL);
    if (index >= snapshot->tensor_count)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds %u tensors, number %u is not there", snapshot->place.path,
                         snapshot->tensor_count, index);
    const struct keel_tensor *tensor = &snapshot->tensors[index];
    *out = (struct keel_region){.dtype = (enum keel_ckpt_dtype)tensor->dtype, .dims = tensor->dims};
    snprintf(out->name, sizeof out->name, "%s", tensor->name);
    memcpy(out->shape, tensor->shape, sizeof out->shape);
    memcpy(out->extent, tensor->shape, sizeof out->extent);
    return KEEL_OK;
}
