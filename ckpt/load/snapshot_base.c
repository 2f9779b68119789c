/* snapshot_base.c - the snapshots under the deltas of an open one.
 *
 * Their manifests are read when the snapshot is opened, as far down as its longest chain goes, so that a base
 * that is gone is told at once. Their shards are read when a chunk asks for one, once, and kept. Chains
 * cannot loop: each base must say that one base fewer is under it. */
#include "snapshot.h"
#include <keel/memory.h>
#include <string.h>

enum { BASES_MAX = 1 << 16 };

/* ---- open ---------------------------------------------------------------------------------------------- */

static struct keel_snapshot_base *find_base(const struct keel_snapshot *snapshot,
                                            const struct keel_generation *wanted)
{
    for (uint32_t i = 0; i < snapshot->base_count; i++)
        if (keel_generation_compare(&snapshot->bases[i].generation, wanted) == 0)
            return &snapshot->bases[i];
    return NULL;
}

/* With room for one more. */
static enum keel_status open_base(const struct keel_store *store, struct keel_snapshot *snapshot,
                                  const struct keel_generation *wanted, const char *wanted_by)
{
    struct keel_snapshot_base base = {.generation = *wanted};
    enum keel_status status = keel_step_open(store, wanted->step, wanted->attempt, false, &base.place);
    if (status == KEEL_OK) {
        status = keel_manifest_read(store, &base.place, &base.manifest);
        if (status != KEEL_OK)
            keel_step_close(&base.place);
    }
    if (status == KEEL_NOT_FOUND)
        return keel_fail(
            KEEL_CORRUPT,
            "%s: its base, step-%llu.%llu, is not there; bring that snapshot back, or use another", wanted_by,
            (unsigned long long)wanted->step, (unsigned long long)wanted->attempt);
    KEEL_TRY(status);
    status = keel_alloc(base.manifest.info.shard_count, sizeof *base.shards, &base.shards);
    if (status != KEEL_OK) {
        keel_manifest_fini(&base.manifest);
        keel_step_close(&base.place);
        return status;
    }
    snapshot->bases[snapshot->base_count++] = base;
    return KEEL_OK;
}

static enum keel_status open_bases_of(const struct keel_store *store, struct keel_snapshot *snapshot,
                                      const struct keel_manifest *manifest, const char *path)
{
    if (manifest->base_count > BASES_MAX - snapshot->base_count)
        return keel_fail(KEEL_LIMIT, "%s: needs more than %d other snapshots", path, BASES_MAX);
    KEEL_TRY(keel_realloc(&snapshot->bases, snapshot->base_count, snapshot->base_count + manifest->base_count,
                          sizeof *snapshot->bases));
    for (uint32_t i = 0; i < manifest->base_count; i++)
        if (find_base(snapshot, &manifest->bases[i]) == NULL)
            KEEL_TRY(open_base(store, snapshot, &manifest->bases[i], path));
    return KEEL_OK;
}

uint32_t keel_snapshot_longest_chain(const struct keel_snapshot *snapshot)
{
    uint32_t longest = snapshot->merged != NULL ? snapshot->merged->header.chain : 0;
    for (uint32_t s = 0; s < snapshot->manifest.info.shard_count; s++)
        for (uint32_t c = 0; c < snapshot->shards[s].footer.chunk_count; c++)
            if (snapshot->shards[s].chunks[c].chain > longest)
                longest = snapshot->shards[s].chunks[c].chain;
    return longest;
}

enum keel_status keel_snapshot_open_bases(const struct keel_store *store, struct keel_snapshot *snapshot)
{
    uint32_t levels = keel_snapshot_longest_chain(snapshot), done = 0;
    snapshot->chain = levels;
    if (levels == 0)
        return KEEL_OK;
    KEEL_TRY(open_bases_of(store, snapshot, &snapshot->manifest, snapshot->place.path));
    for (uint32_t level = 1; level < levels; level++) {
        uint32_t end = snapshot->base_count;
        for (; done < end; done++) {
            struct keel_manifest manifest =
                snapshot->bases[done].manifest; /* bases may move; this does not */
            char path[KEEL_PATH_BYTES];
            memcpy(path, snapshot->bases[done].place.path, sizeof path);
            KEEL_TRY(open_bases_of(store, snapshot, &manifest, path));
        }
    }
    return KEEL_OK;
}

void keel_snapshot_close_bases(struct keel_snapshot *snapshot)
{
    for (uint32_t i = 0; i < snapshot->base_count; i++) {
        struct keel_snapshot_base *base = &snapshot->bases[i];
        for (uint32_t s = 0; s < base->manifest.info.shard_count; s++)
            keel_shard_unload(&base->shards[s]);
        keel_free(base->shards);
        keel_manifest_fini(&base->manifest);
        keel_step_close(&base->place);
    }
    keel_free(snapshot->bases);
    snapshot->bases = NULL;
    snapshot->base_count = 0;
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

/* Under the lock only the first time that a shard is asked for takes long. */
static enum keel_status base_shard(const struct keel_snapshot *snapshot, struct keel_snapshot_base *base,
                                   uint32_t rank, const struct keel_shard **out)
{
    struct keel_shard *shard = &base->shards[rank];
    enum keel_status status = KEEL_OK;
    keel_mutex_lock(snapshot->lock);
    if (shard->index == NULL)
        status = keel_shard_load_of(&base->place, &base->manifest, rank, shard);
    keel_mutex_unlock(snapshot->lock);
    *out = shard;
    return status;
}

enum keel_status keel_snapshot_base_of(struct keel_snapshot *snapshot, struct keel_chunk_place delta,
                                       struct keel_chunk_place *out)
{
    const struct keel_format_header *header = &delta.shard->header;
    const struct keel_format_chunk *chunk = &delta.shard->chunks[delta.chunk];
    const struct keel_generation wanted = {header->base_step, header->base_attempt};
    const struct keel_snapshot *owner = snapshot->bases_of != NULL ? snapshot->bases_of : snapshot;
    struct keel_snapshot_base *base = find_base(owner, &wanted);
    const struct keel_shard *shard;
    KEEL_ASSERT(chunk->codec == KEEL_CODEC_DELTA);
    if (base == NULL || chunk->base_rank >= base->manifest.info.shard_count)
        return keel_fail(KEEL_CORRUPT, "its base, step-%llu.%llu rank %u, is not one that its manifest names",
                         (unsigned long long)header->base_step, (unsigned long long)header->base_attempt,
                         chunk->base_rank);
    enum keel_status status = base_shard(owner, base, chunk->base_rank, &shard);
    if (status != KEEL_OK) {
        return keel_fail(status == KEEL_MISMATCH ? KEEL_CORRUPT : status, "its base: %s", keel_detail());
    }
    const struct keel_format_chunk *under =
        chunk->base_chunk < shard->footer.chunk_count ? &shard->chunks[chunk->base_chunk] : NULL;
    if (under == NULL || under->codec == KEEL_CODEC_SAME || under->raw_bytes != chunk->raw_bytes ||
        under->chain + 1 != chunk->chain)
        return keel_fail(KEEL_CORRUPT, "its base, %s rank %u chunk %u, is not the one that was there",
                         base->place.name, chunk->base_rank, chunk->base_chunk);
    *out = (struct keel_chunk_place){shard, chunk->base_chunk};
    return KEEL_OK;
}
