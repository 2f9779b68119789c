/* commit.c - how a snapshot becomes a committed one.
 *
 * Commit, in this order: every shard is opened and checked like a reader will, and commit_check.c agrees; the
 * step directory's name is made durable; manifest.json is written to a temporary name, synced, renamed, and
 * its directory synced. Before the rename the snapshot is not there, after it is whole. Removal goes the
 * other way: manifest.json first, synced, then the shards. */
#include "commit_check.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

/* ---- commit -------------------------------------------------------------------------------------------- */

static enum keel_status check_commit(const struct keel_commit *commit)
{
    if (commit->shard_count == 0 || commit->shard_count > KEEL_SNAPSHOT_RANKS_MAX || commit->shards == NULL)
        return keel_fail(KEEL_INVALID, "a commit needs the summaries of 1 to %d ranks",
                         KEEL_SNAPSHOT_RANKS_MAX);
    if (!keel_identity_valid(commit->identity))
        return keel_fail(KEEL_INVALID, "the identity of a job is printable ASCII, of at most %d bytes",
                         KEEL_IDENTITY_BYTES - 1);
    return KEEL_OK;
}

/* All ranks hold the same state, or one of them not the run's. */
static enum keel_status check_agreement(const struct keel_commit *commit)
{
    for (uint32_t i = 1; i < commit->shard_count; i++)
        if (commit->shards[i].state_digest != commit->shards[0].state_digest)
            return keel_fail(
                KEEL_MISMATCH,
                "step %llu: rank %u saved state %016llx, rank %u %016llx; a memory is bad: go back to "
                "the snapshot before, and check the boards",
                (unsigned long long)commit->step, commit->shards[0].rank,
                (unsigned long long)commit->shards[0].state_digest, commit->shards[i].rank,
                (unsigned long long)commit->shards[i].state_digest);
    return KEEL_OK;
}

/* The manifest that the commit asks for; each rank exactly once. */
static enum keel_status draft(const struct keel_store *store, const struct keel_commit *commit,
                              struct keel_manifest *out)
{
    uint32_t count = commit->shard_count;
    struct keel_manifest manifest = {.info = {.step = commit->step,
                                              .attempt = commit->attempt,
                                              .created_wall_ns = keel_wall_ns(),
                                              .shard_count = count,
                                              .sealed = store->key != NULL},
                                     .key = store->key};
    memcpy(manifest.run, store->run, sizeof manifest.run);
    memcpy(manifest.info.identity, commit->identity, sizeof manifest.info.identity);
    enum keel_status status = keel_alloc(count, sizeof *manifest.shards, &manifest.shards);
    if (status == KEEL_OK)
        status = keel_strdup(commit->metadata == NULL ? "{}" : commit->metadata, &manifest.metadata);
    for (uint32_t i = 0; i < count && status == KEEL_OK; i++) {
        const struct keel_shard_summary *shard = &commit->shards[i];
        if (shard->rank >= count || manifest.shards[shard->rank].file_bytes != 0)
            status = keel_fail(KEEL_INVALID, "a commit of %u ranks holds rank %u twice or out of range",
                               count, shard->rank);
        else
            manifest.shards[shard->rank] = *shard;
    }
    if (status != KEEL_OK) {
        keel_manifest_fini(&manifest);
        return status;
    }
    *out = manifest;
    return KEEL_OK;
}

/* What no reader takes must not be committed. Only the metadata is not ours: it may lie too deep. */
static enum keel_status check_readable(const char *text, size_t bytes, const char *path)
{
    struct keel_manifest again;
    enum keel_status status = keel_manifest_decode(text, bytes, path, &again);
    if (status == KEEL_NO_MEMORY)
        return status;
    if (status != KEEL_OK)
        return keel_fail(KEEL_INVALID, "%s: could not be read with this metadata; make that simpler", path);
    keel_manifest_fini(&again);
    return KEEL_OK;
}

static enum keel_status publish(const struct keel_store *store, const struct keel_snapshot *snapshot)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    KEEL_TRY(keel_path_join(path, snapshot->place.path, KEEL_MANIFEST_NAME));
    KEEL_TRY(keel_manifest_encode(&snapshot->manifest, &text, &bytes));
    enum keel_status status = check_readable(text, bytes, path);
    if (status == KEEL_OK &&
        (keel_disk_fsync(snapshot->place.fd) != 0 || keel_disk_fsync(store->run_fd) != 0))
        status = keel_fail_errno(errno, "%s: cannot be synced", snapshot->place.path);
    if (status == KEEL_OK)
        status = keel_file_replace(path, text, bytes, 0666);
    keel_free(text);
    return status;
}

enum keel_status keel_store_commit(struct keel_store *store, const struct keel_commit *commit)
{
    struct keel_step_place place;
    struct keel_manifest manifest;
    struct keel_snapshot *snapshot;
    KEEL_ASSERT(commit != NULL);
    KEEL_TRY(keel_store_writable(store));
    KEEL_TRY(check_commit(commit));
    KEEL_TRY(check_agreement(commit));
    KEEL_TRY(keel_step_open(store, commit->step, commit->attempt, false, &place));
    enum keel_status status = keel_step_uncommitted(&place);
    if (status == KEEL_OK)
        status = draft(store, commit, &manifest);
    if (status != KEEL_OK) {
        keel_step_close(&place);
        return status;
    }
    KEEL_TRY(keel_snapshot_assemble(&place, &manifest, &snapshot));
    status = keel_commit_check(store, snapshot, commit->allow_nonfinite);
    if (status == KEEL_OK)
        status = publish(store, snapshot);
    if (status == KEEL_OK)
        keel_store_note_committed(store, commit->step, commit->attempt);
    keel_snapshot_close(snapshot);
    return status;
}
