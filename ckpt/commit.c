/* commit.c - what is committed, and what goes: commit, list, retain.
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

/* ---- commit
 * ---------------------------------------------------------------------------------------------------- */

static enum keel_status check_commit(const struct keel_commit *commit)
{
    if (commit->shard_count == 0 || commit->shard_count > KEEL_SNAPSHOT_RANKS_MAX || commit->shards == NULL)
        return keel_fail(KEEL_INVALID, "a commit needs the summaries of 1 to %d ranks",
                         KEEL_SNAPSHOT_RANKS_MAX);
    size_t length = strnlen(commit->identity, sizeof commit->identity);
    for (size_t i = 0; i < length; i++)
        if (commit->identity[i] <= ' ' || commit->identity[i] > '~')
            return keel_fail(KEEL_INVALID, "the identity of a job is printable ASCII");
    return length < sizeof commit->identity ? KEEL_OK
                                            : keel_fail(KEEL_INVALID, "the identity of a job has no end");
}

/* The manifest that the commit asks for; each rank exactly once. */
static enum keel_status draft(const struct keel_store *store, const struct keel_commit *commit,
                              struct keel_manifest *out)
{
    uint32_t count = commit->shard_count;
    struct keel_manifest manifest = {.info = {.step = commit->step,
                                              .attempt = commit->attempt,
                                              .created_wall_ns = keel_wall_ns(),
                                              .shard_count = count}};
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

static enum keel_status publish(const struct keel_store *store, const struct keel_snapshot *snapshot)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    KEEL_TRY(keel_path_join(path, snapshot->place.path, KEEL_MANIFEST_NAME));
    KEEL_TRY(keel_manifest_encode(&snapshot->manifest, &text, &bytes));
    enum keel_status status = KEEL_OK;
    if (keel_disk_fsync(snapshot->place.fd) != 0 || keel_disk_fsync(store->run_fd) != 0)
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
    KEEL_TRY(keel_store_writable(store));
    KEEL_TRY(check_commit(commit));
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
    keel_snapshot_close(snapshot);
    return status;
}

/* ---- list
 * ------------------------------------------------------------------------------------------------------ */

enum attempt_state { ATTEMPT_COMMITTED, ATTEMPT_DAMAGED, ATTEMPT_UNCOMMITTED };

struct attempt {
    struct keel_snapshot_info info; /* step and attempt in any state, the rest when committed */
    enum attempt_state state;
};

struct scan {
    struct keel_store *store;
    struct attempt *attempts; /* owned */
    size_t count, capacity;
    uint64_t last_made_step; /* for retain: of the committed attempt that was made last; 0: none is */
};

static enum keel_status look_at(struct keel_store *store, uint64_t step, uint64_t number, struct attempt *out)
{
    struct keel_step_place place;
    struct keel_manifest manifest;
    *out = (struct attempt){.info = {.step = step, .attempt = number}, .state = ATTEMPT_DAMAGED};
    enum keel_status status = keel_step_open(store, step, number, false, &place);
    if (status != KEEL_OK) /* no directory, or a link: nothing to read, nothing to remove */
        return KEEL_OK;
    status = keel_manifest_read(store, &place, &manifest);
    keel_step_close(&place);
    if (status == KEEL_NO_MEMORY)
        return status;
    if (status == KEEL_NOT_FOUND)
        out->state = ATTEMPT_UNCOMMITTED;
    if (status == KEEL_OK) {
        out->state = ATTEMPT_COMMITTED;
        out->info = manifest.info;
        keel_manifest_fini(&manifest);
    }
    return KEEL_OK;
}

static enum keel_status see_attempt(void *context, const char *name)
{
    struct scan *scan = context;
    uint64_t step, attempt;
    if (!keel_step_name_parse(name, &step, &attempt))
        return KEEL_OK;
    if (scan->count == scan->capacity) {
        size_t capacity = scan->capacity > 0 ? scan->capacity * 2 : 64;
        KEEL_TRY(keel_realloc(&scan->attempts, scan->capacity, capacity, sizeof *scan->attempts));
        scan->capacity = capacity;
    }
    KEEL_TRY(look_at(scan->store, step, attempt, &scan->attempts[scan->count]));
    scan->count++;
    return KEEL_OK;
}

static int newest_first(const void *a, const void *b)
{
    const struct keel_snapshot_info *x = &((const struct attempt *)a)->info;
    const struct keel_snapshot_info *y = &((const struct attempt *)b)->info;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->attempt > y->attempt ? -1 : x->attempt < y->attempt;
}

/* All attempts, newest first. */
static enum keel_status scan_store(struct keel_store *store, struct scan *out)
{
    struct scan scan = {.store = store};
    enum keel_status status = keel_dir_list(store->path, see_attempt, &scan);
    if (status != KEEL_OK) {
        keel_free(scan.attempts);
        return status;
    }
    if (scan.count > 0)
        qsort(scan.attempts, scan.count, sizeof *scan.attempts, newest_first);
    *out = scan;
    return KEEL_OK;
}

enum keel_status keel_store_list(struct keel_store *store, struct keel_snapshot_info *out, uint32_t capacity,
                                 uint32_t *out_count, uint32_t *out_damaged)
{
    struct scan scan;
    KEEL_TRY(scan_store(store, &scan));
    uint32_t count = 0, damaged = 0;
    for (size_t i = 0; i < scan.count; i++) {
        if (scan.attempts[i].state == ATTEMPT_DAMAGED)
            damaged++;
        if (scan.attempts[i].state != ATTEMPT_COMMITTED)
            continue;
        if (count < capacity)
            out[count++] = scan.attempts[i].info;
    }
    keel_free(scan.attempts);
    *out_count = count;
    if (out_damaged != NULL)
        *out_damaged = damaged;
    return KEEL_OK;
}

enum keel_status keel_store_newest_attempt(struct keel_store *store, uint64_t step, uint64_t *out_attempt)
{
    struct scan scan;
    uint32_t damaged = 0;
    bool found = false;
    KEEL_TRY(scan_store(store, &scan));
    for (size_t i = 0; i < scan.count && !found; i++) {
        const struct attempt *attempt = &scan.attempts[i];
        if (attempt->info.step != step)
            continue;
        damaged += attempt->state == ATTEMPT_DAMAGED;
        found = attempt->state == ATTEMPT_COMMITTED;
        if (found)
            *out_attempt = attempt->info.attempt;
    }
    keel_free(scan.attempts);
    if (!found && damaged > 0)
        return keel_fail(KEEL_CORRUPT, "%s: the manifest of step %llu is damaged; use another snapshot",
                         store->path, (unsigned long long)step);
    if (!found)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no committed snapshot of step %llu", store->path,
                         (unsigned long long)step);
    return KEEL_OK;
}

/* ---- retain
 * ---------------------------------------------------------------------------------------------------- */

/* Not committed any more before the first shard goes. */
static enum keel_status uncommit(struct keel_store *store, const struct keel_snapshot_info *info)
{
    struct keel_step_place place;
    KEEL_TRY(keel_step_open(store, info->step, info->attempt, false, &place));
    enum keel_status status = KEEL_OK;
    if (keel_disk_unlink(place.fd, KEEL_MANIFEST_NAME, 0) != 0 && errno != ENOENT)
        status = keel_fail_errno(errno, "%s: its manifest cannot be removed", place.path);
    if (status == KEEL_OK && keel_disk_fsync(place.fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", place.path);
    keel_step_close(&place);
    return status;
}

static enum keel_status remove_attempt(struct keel_store *store, const struct keel_snapshot_info *info)
{
    char name[KEEL_STEP_NAME_BYTES], path[KEEL_PATH_BYTES];
    keel_step_name(info->step, info->attempt, name);
    KEEL_TRY(keel_path_join(path, store->path, name));
    return keel_remove_tree(path);
}

/* How many committed attempts were made after this one. */
static uint32_t made_later(const struct scan *scan, const struct attempt *attempt)
{
    uint32_t count = 0;
    for (size_t i = 0; i < scan->count; i++)
        count += scan->attempts[i].state == ATTEMPT_COMMITTED &&
                 scan->attempts[i].info.created_wall_ns > attempt->info.created_wall_ns;
    return count;
}

/* A run that was begun anew, or went back behind a damaged snapshot, makes snapshots of earlier steps than
 * some that are there. So two orders count, by step and by time: what is among the newest in either stays,
 * and of the attempts that are not committed only those of earlier steps than the one made last go, since
 * another may be on its way. One whose manifest is damaged stays, for repair. */
static enum keel_status retain_one(struct keel_store *store, const struct scan *scan,
                                   const struct attempt *attempt, uint32_t keep, uint32_t committed_before,
                                   bool *out_removed)
{
    *out_removed = false;
    if (attempt->state == ATTEMPT_COMMITTED) {
        if (committed_before < keep || made_later(scan, attempt) < keep)
            return KEEL_OK;
        KEEL_TRY(uncommit(store, &attempt->info));
    } else if (attempt->state == ATTEMPT_DAMAGED || attempt->info.step >= scan->last_made_step) {
        return KEEL_OK;
    }
    *out_removed = true;
    return remove_attempt(store, &attempt->info);
}

static void find_last_made(struct scan *scan)
{
    uint64_t last_ns = 0;
    for (size_t i = 0; i < scan->count; i++) {
        const struct attempt *attempt = &scan->attempts[i];
        if (attempt->state != ATTEMPT_COMMITTED || attempt->info.created_wall_ns < last_ns)
            continue;
        last_ns = attempt->info.created_wall_ns;
        scan->last_made_step = attempt->info.step;
    }
}

enum keel_status keel_store_retain(struct keel_store *store, const struct keel_retention *retention,
                                   uint32_t *out_removed)
{
    struct scan scan;
    const uint32_t keep = retention->keep_last;
    KEEL_TRY(keel_store_writable(store));
    if (keep < 2)
        return keel_fail(KEEL_INVALID, "at least 2 snapshots are kept: one may turn out to be damaged");
    KEEL_TRY(scan_store(store, &scan));
    uint32_t committed = 0, removed = 0;
    enum keel_status status = KEEL_OK;
    find_last_made(&scan);
    for (size_t i = 0; i < scan.count && status == KEEL_OK; i++) {
        const struct attempt *attempt = &scan.attempts[i];
        bool gone;
        status = retain_one(store, &scan, attempt, keep, committed, &gone);
        removed += gone && status == KEEL_OK;
        committed += attempt->state == ATTEMPT_COMMITTED;
    }
    keel_free(scan.attempts);
    if (status == KEEL_OK && removed > 0 && keel_disk_fsync(store->run_fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", store->path);
    if (status == KEEL_OK && out_removed != NULL)
        *out_removed = removed;
    return status;
}
