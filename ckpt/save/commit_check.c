/* commit_check.c - checks of a whole snapshot before its commit. One that lacks part of a tensor or the base
 * of a delta, or that holds NaN, is refused: resume could not use it, and retention would remove a good one
 * for it. */
#include "commit_check.h"
#include <errno.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

static enum keel_status check_complete(const struct keel_snapshot *snapshot)
{
    for (uint32_t i = 0; i < snapshot->tensor_count; i++) {
        struct keel_region whole;
        KEEL_TRY(keel_snapshot_tensor(snapshot, i, &whole));
        struct keel_box box = keel_box_of(&whole);
        KEEL_TRY(keel_snapshot_cover(snapshot, &snapshot->tensors[i], &box, NULL, NULL, NULL));
    }
    return KEEL_OK;
}

static enum keel_status check_finite(const struct keel_snapshot *snapshot)
{
    for (uint32_t i = 0; i < snapshot->tensor_count; i++) {
        const struct keel_tensor *tensor = &snapshot->tensors[i];
        uint64_t nonfinite = 0;
        for (uint32_t p = 0; p < tensor->piece_count; p++)
            nonfinite += keel_snapshot_record(snapshot, tensor->first_piece + p)->nonfinite;
        if (nonfinite > 0)
            return keel_fail(KEEL_DIVERGED,
                             "%s: tensor %s holds %llu elements that are NaN or infinite; it is not "
                             "committed, go back to the snapshot before (or allow it)",
                             snapshot->place.path, keel_snapshot_record(snapshot, tensor->first_piece)->name,
                             (unsigned long long)nonfinite);
    }
    return KEEL_OK;
}

/* ---- bases --------------------------------------------------------------------------------------------- */

static int compare_bases(const void *a, const void *b)
{
    const struct keel_manifest_base *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->attempt < y->attempt ? -1 : x->attempt > y->attempt;
}

/* A shard may name a base of which in the end it has no delta: then nothing needs that. */
static bool needs_base(const struct keel_shard *shard)
{
    for (uint32_t i = 0; i < shard->footer.chunk_count; i++)
        if (shard->chunks[i].codec == KEEL_CODEC_DELTA)
            return true;
    return false;
}

/* Into the manifest, as its reader wants them. */
static enum keel_status collect_bases(struct keel_snapshot *snapshot)
{
    struct keel_manifest *manifest = &snapshot->manifest;
    uint32_t shards = manifest->info.shard_count, found = 0, kept = 0;
    struct keel_manifest_base *bases;
    KEEL_TRY(keel_alloc(shards, sizeof *bases, &bases));
    for (uint32_t i = 0; i < shards; i++) {
        const struct keel_format_header *header = &snapshot->shards[i].header;
        if (needs_base(&snapshot->shards[i]))
            bases[found++] = (struct keel_manifest_base){header->base_step, header->base_attempt};
    }
    if (found > 0)
        qsort(bases, found, sizeof *bases, compare_bases);
    for (uint32_t i = 0; i < found; i++)
        if (kept == 0 || compare_bases(&bases[kept - 1], &bases[i]) != 0)
            bases[kept++] = bases[i];
    keel_free(manifest->bases);
    manifest->bases = bases;
    manifest->base_count = kept;
    return KEEL_OK;
}

/* What the index says of the base is what the base's own index says. */
static bool base_holds(const struct keel_snapshot *base, const struct keel_format_chunk *chunk)
{
    if (chunk->base_rank >= base->manifest.info.shard_count)
        return false;
    const struct keel_shard *shard = &base->shards[chunk->base_rank];
    if (chunk->base_chunk >= shard->footer.chunk_count)
        return false;
    const struct keel_format_chunk *under = &shard->chunks[chunk->base_chunk];
    bool sealed = (chunk->flags & KEEL_CHUNK_SEALED) != 0 || (under->flags & KEEL_CHUNK_SEALED) != 0;
    return under->codec != KEEL_CODEC_SAME && under->raw_bytes == chunk->raw_bytes &&
           under->chain + 1 == chunk->chain &&
           (sealed || under->raw_check == chunk->base_check); /* sealed: readers see it after opening */
}

static enum keel_status check_deltas(const struct keel_snapshot *snapshot, const struct keel_snapshot *base)
{
    const struct keel_snapshot_info *wanted = &base->manifest.info;
    for (uint32_t s = 0; s < snapshot->manifest.info.shard_count; s++) {
        const struct keel_shard *shard = &snapshot->shards[s];
        if ((shard->header.flags & KEEL_HEADER_BASE) == 0 || shard->header.base_step != wanted->step ||
            shard->header.base_attempt != wanted->attempt)
            continue;
        for (uint32_t c = 0; c < shard->footer.chunk_count; c++)
            if (shard->chunks[c].codec == KEEL_CODEC_DELTA && !base_holds(base, &shard->chunks[c]))
                return keel_fail(KEEL_CORRUPT,
                                 "%s: rank %u: the base of chunk %u, %s, is another one; save without deltas",
                                 snapshot->place.path, s, c, base->place.name);
    }
    return KEEL_OK;
}

static enum keel_status check_base(struct keel_store *store, const struct keel_snapshot *snapshot,
                                   const struct keel_manifest_base *wanted)
{
    struct keel_step_place place;
    struct keel_manifest manifest;
    struct keel_snapshot *base = NULL;
    enum keel_status status = keel_step_open(store, wanted->step, wanted->attempt, false, &place);
    if (status == KEEL_OK) {
        status = keel_manifest_read(store, &place, &manifest);
        if (status == KEEL_OK)
            status = keel_snapshot_assemble(&place, &manifest, &base);
        else
            keel_step_close(&place);
    }
    if (status == KEEL_NOT_FOUND)
        return keel_fail(KEEL_CORRUPT, "%s: its base, step %llu.%llu, is not committed; save without deltas",
                         snapshot->place.path, (unsigned long long)wanted->step,
                         (unsigned long long)wanted->attempt);
    KEEL_TRY(status);
    status = check_deltas(snapshot, base);
    /* Who committed it may have been killed before its manifest's name was on the disk. */
    if (status == KEEL_OK && keel_disk_fsync(base->place.fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", base->place.path);
    keel_snapshot_close(base);
    return status;
}

enum keel_status keel_commit_check(struct keel_store *store, struct keel_snapshot *snapshot,
                                   bool allow_nonfinite)
{
    KEEL_TRY(check_complete(snapshot));
    if (!allow_nonfinite)
        KEEL_TRY(check_finite(snapshot));
    KEEL_TRY(collect_bases(snapshot));
    for (uint32_t i = 0; i < snapshot->manifest.base_count; i++)
        KEEL_TRY(check_base(store, snapshot, &snapshot->manifest.bases[i]));
    return KEEL_OK;
}
