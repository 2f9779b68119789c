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
    struct keel_generation *bases;
    KEEL_TRY(keel_alloc(shards, sizeof *bases, &bases));
    for (uint32_t i = 0; i < shards; i++) {
        const struct keel_format_header *header = &snapshot->shards[i].header;
        if (needs_base(&snapshot->shards[i]))
            bases[found++] = (struct keel_generation){header->base_step, header->base_attempt};
    }
    if (found > 0)
        qsort(bases, found, sizeof *bases, keel_generation_compare);
    for (uint32_t i = 0; i < found; i++)
        if (kept == 0 || keel_generation_compare(&bases[kept - 1], &bases[i]) != 0)
            bases[kept++] = bases[i];
    keel_free(manifest->bases);
    manifest->bases = bases;
    manifest->base_count = kept;
    return KEEL_OK;
}

/* What the index says of a chunk's base is what the base's own index says. Sealed chunks have no raw check
 * there: readers see it after opening them. */
static enum keel_status check_delta(struct keel_snapshot *snapshot, const struct keel_shard *shard,
                                    uint32_t number)
{
    const struct keel_format_chunk *chunk = &shard->chunks[number], *under;
    struct keel_chunk_place base;
    KEEL_TRY(keel_snapshot_base_of(snapshot, (struct keel_chunk_place){shard, number}, &base));
    under = &base.shard->chunks[base.chunk];
    if (((chunk->flags | under->flags) & KEEL_CHUNK_SEALED) != 0 || under->raw_check == chunk->base_check)
        return KEEL_OK;
    return keel_fail(KEEL_CORRUPT, "its base, %s rank %u chunk %u, holds other bytes",
                     base.shard->place->name, base.shard->header.rank, base.chunk);
}

static enum keel_status check_deltas(struct keel_snapshot *snapshot)
{
    for (uint32_t s = 0; s < snapshot->manifest.info.shard_count; s++)
        for (uint32_t c = 0; c < snapshot->shards[s].footer.chunk_count; c++) {
            enum keel_status status = KEEL_OK;
            if (snapshot->shards[s].chunks[c].codec == KEEL_CODEC_DELTA)
                status = check_delta(snapshot, &snapshot->shards[s], c);
            if (status != KEEL_OK)
                return keel_fail(status, "%s: rank %u: chunk %u: %.300s%s", snapshot->place.path, s, c,
                                 keel_detail(), status == KEEL_CORRUPT ? "; save without deltas" : "");
        }
    return KEEL_OK;
}

static enum keel_status check_bases(struct keel_store *store, struct keel_snapshot *snapshot)
{
    enum keel_status status = keel_snapshot_open_bases(store, snapshot);
    if (status == KEEL_CORRUPT)
        return keel_fail(status, "%.400s; save without deltas", keel_detail());
    KEEL_TRY(status);
    KEEL_TRY(check_deltas(snapshot));
    /* Who committed one may have been killed before its manifest's name was on the disk. */
    for (uint32_t i = 0; i < snapshot->base_count; i++)
        if (keel_disk_fsync(snapshot->bases[i].place.fd) != 0)
            return keel_fail_errno(errno, "%s: cannot be synced", snapshot->bases[i].place.path);
    return KEEL_OK;
}

static enum keel_status check_shard_finite(const struct keel_shard *shard)
{
    for (uint32_t r = 0; r < shard->footer.record_count; r++)
        if (shard->records[r].nonfinite > 0)
            return keel_fail(KEEL_DIVERGED,
                             "%s: rank %u: tensor %s holds %llu elements that are NaN or infinite; it is not "
                             "committed, go back to the snapshot before (or allow it)",
                             shard->place->path, shard->header.rank, shard->records[r].name,
                             (unsigned long long)shard->records[r].nonfinite);
    return KEEL_OK;
}

enum keel_status keel_shard_check(struct keel_store *store, uint64_t step, uint64_t attempt,
                                  const struct keel_shard_summary *summary, bool allow_nonfinite)
{
    struct keel_step_place place;
    struct keel_shard shard;
    KEEL_ASSERT(store != NULL && store->handle == KEEL_HANDLE_OPEN);
    KEEL_TRY(keel_step_open(store, step, attempt, false, &place));
    enum keel_status status = keel_shard_load(&place, summary->rank, &shard);
    if (status == KEEL_OK) {
        const struct keel_format_footer *footer = &shard.footer;
        if (footer->file_bytes != summary->file_bytes || footer->record_count != summary->record_count ||
            memcmp(footer->index_digest, summary->index_digest, sizeof footer->index_digest) != 0)
            status = keel_fail(KEEL_MISMATCH, "%s: rank %u is not the file that its summary describes",
                               place.path, summary->rank);
        else if (!allow_nonfinite)
            status = check_shard_finite(&shard);
        keel_shard_unload(&shard);
    }
    keel_step_close(&place);
    return status;
}

enum keel_status keel_commit_check(struct keel_store *store, struct keel_snapshot *snapshot,
                                   const struct keel_commit *commit)
{
    if (!commit->elsewhere)
        KEEL_TRY(check_complete(snapshot));
    if (!commit->allow_nonfinite)
        KEEL_TRY(check_finite(snapshot));
    KEEL_TRY(collect_bases(snapshot));
    if (commit->elsewhere)
        return snapshot->manifest.base_count == 0
                   ? KEEL_OK
                   : keel_fail(KEEL_UNSUPPORTED, "%s: deltas are not committed where shards lie elsewhere",
                               snapshot->place.path);
    return check_bases(store, snapshot);
}
