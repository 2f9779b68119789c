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
    struct keel_manifest manifest = {
        .info = {.step = commit->step,
                 .attempt = commit->attempt,
                 .created_wall_ns = commit->created_wall_ns != 0 ? commit->created_wall_ns : keel_wall_ns(),
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

/* Asserts that a manifest that was read is the one that was written; the state's digest is not in the file.
 */
static void assert_same(const struct keel_manifest *written, const struct keel_manifest *read)
{
    KEEL_ASSERT(read->info.step == written->info.step && read->info.attempt == written->info.attempt);
    KEEL_ASSERT(read->info.created_wall_ns == written->info.created_wall_ns);
    KEEL_ASSERT(read->info.shard_count == written->info.shard_count);
    KEEL_ASSERT(read->info.sealed == written->info.sealed && read->base_count == written->base_count);
    KEEL_ASSERT(strcmp(read->run, written->run) == 0);
    KEEL_ASSERT(strcmp(read->info.identity, written->info.identity) == 0);
    for (uint32_t i = 0; i < written->info.shard_count; i++) {
        struct keel_shard_summary shard = written->shards[i];
        shard.state_digest = read->shards[i].state_digest;
        KEEL_ASSERT(memcmp(&shard, &read->shards[i], sizeof shard) == 0);
    }
    for (uint32_t i = 0; i < written->base_count; i++)
        KEEL_ASSERT(read->bases[i].step == written->bases[i].step &&
                    read->bases[i].attempt == written->bases[i].attempt);
}

/* Validate with the reader's own limits before the commit: only the metadata is not ours, it may be nested
 * too deep. */
static enum keel_status check_readable(const struct keel_manifest *written, const char *text, size_t bytes,
                                       const char *path)
{
    struct keel_manifest again;
    enum keel_status status = keel_manifest_decode(text, bytes, path, &again);
    if (status == KEEL_NO_MEMORY)
        return status;
    if (status != KEEL_OK)
        return keel_fail(KEEL_INVALID, "%s: could not be read with this metadata; make that simpler", path);
    assert_same(written, &again);
    keel_manifest_fini(&again);
    return KEEL_OK;
}

/* The manifest as readers find it from now on, byte by byte: from the disk where direct I/O is to be had,
 * else out of the page cache, which then only shows that the file of that name is the one that was written.
 * CORRUPT: there is something else. What cannot be read just now (removed by another process meanwhile, say)
 * is committed all the same. */
static enum keel_status read_back(const struct keel_step_place *place, const char *path, const char *text,
                                  size_t bytes)
{
    _Alignas(KEEL_FORMAT_BLOCK_BYTES) uint8_t piece[KEEL_FORMAT_BLOCK_BYTES];
    int fd;
    uint64_t file_bytes;
    if (keel_step_open_file(place, KEEL_MANIFEST_NAME, &fd, &file_bytes) != KEEL_OK)
        return KEEL_OK;
    bool direct = keel_disk_set_direct(fd, true), read = true, same = file_bytes == bytes;
    for (size_t at = 0; at < bytes && same && read;) {
        ssize_t got = keel_disk_pread(fd, piece, sizeof piece, at);
        if (got < 0 && errno == EINVAL && direct) { /* taken, but not for this */
            direct = keel_disk_set_direct(fd, false);
            continue;
        }
        read = got > 0;
        same = !read || ((size_t)got <= bytes - at && memcmp(piece, text + at, (size_t)got) == 0);
        at += read ? (size_t)got : 0;
    }
    keel_disk_close(fd);
    return same ? KEEL_OK
                : keel_fail(KEEL_CORRUPT,
                            "%s: what was read back is not what was written; look after this disk", path);
}

static enum keel_status publish(const struct keel_store *store, const struct keel_snapshot *snapshot)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    KEEL_TRY(keel_path_join(path, snapshot->place.path, KEEL_MANIFEST_NAME));
    KEEL_TRY(keel_manifest_encode(&snapshot->manifest, &text, &bytes));
    enum keel_status status = check_readable(&snapshot->manifest, text, bytes, path);
    if (status == KEEL_OK &&
        (keel_disk_fsync(snapshot->place.fd) != 0 || keel_disk_fsync(store->run_fd) != 0))
        status = keel_fail_errno(errno, "%s: cannot be synced", snapshot->place.path);
    if (status == KEEL_OK) {
        keel_merged_write(snapshot);
        status = keel_file_replace(path, text, bytes, 0666);
    }
    if (status == KEEL_OK)
        status = read_back(&snapshot->place, path, text, bytes);
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
    KEEL_TRY(keel_step_open(store, commit->step, commit->attempt, commit->elsewhere, &place));
    enum keel_status status = keel_step_uncommitted(&place);
    if (status == KEEL_OK)
        status = draft(store, commit, &manifest);
    if (status != KEEL_OK) {
        keel_step_close(&place);
        return status;
    }
    KEEL_TRY(keel_snapshot_assemble(&place, &manifest, commit->elsewhere ? KEEL_OPEN_HERE : KEEL_OPEN_ALL,
                                    &snapshot));
    status = keel_commit_check(store, snapshot, commit);
    if (status == KEEL_OK)
        status = publish(store, snapshot);
    if (status == KEEL_OK)
        keel_store_note_committed(store, commit->step, commit->attempt);
    keel_snapshot_close(snapshot);
    return status;
}
