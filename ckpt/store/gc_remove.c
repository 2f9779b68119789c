/* gc_remove.c - removing from a store, so that a crash between any two of its steps loses nothing.
 *
 * What goes, and in what order, is decided by retain.c. Of one attempt the manifest goes first and its
 * directory is synced: from then on no reader looks into it, and only then the files go, then the directory.
 * An attempt that is half removed looks like a leftover, and is removed as one by the next call.
 *
 * Nothing but the format's own files is ever removed: a directory that holds others keeps them, and stays. */
#include "retain.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <stdatomic.h>
#include <string.h>

struct sweep {
    struct keel_store *store;
    const struct keel_retention *rules;
    struct keel_step_place place; /* of the attempt at hand, open */
    const struct keel_attempt *attempt;
    enum keel_name_kind least;      /* of its files: what goes */
    uint64_t bytes;                 /* of those, so far */
    uint64_t wanted, free;          /* bytes: nothing more goes when so many are free; 0: all go */
    bool orderly;                   /* false: a snapshot could not be uncommitted, so what it needs stays */
    enum keel_status first;         /* the first failure, */
    char detail[KEEL_DETAIL_BYTES]; /* and what it said */
};

static void tell(const struct sweep *sweep, enum keel_removed_kind kind, const char *path, uint64_t bytes)
{
    const struct keel_removed what = {.kind = kind,
                                      .step = sweep->attempt->info.step,
                                      .attempt = sweep->attempt->info.attempt,
                                      .bytes = bytes,
                                      .path = path};
    if (sweep->rules->removed != NULL)
        sweep->rules->removed(sweep->rules->context, &what);
}

/* Another process may let go here too: what it has removed is gone. */
static enum keel_status gone_is_fine(enum keel_status status)
{
    return status == KEEL_NOT_FOUND ? KEEL_OK : status;
}

/* ---- files --------------------------------------------------------------------------------------------- */

static enum keel_status sweep_file(void *context, const char *name)
{
    struct sweep *sweep = context;
    struct stat info;
    char path[KEEL_PATH_BYTES];
    enum keel_name_kind kind = keel_name_kind_of(name);
    if (kind == KEEL_NAME_FOREIGN || kind < sweep->least ||
        keel_disk_stat(sweep->place.fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
        return KEEL_OK;
    KEEL_TRY(keel_path_join(path, sweep->place.path, name));
    if (!sweep->rules->dry_run && keel_disk_unlink(sweep->place.fd, name, 0) != 0 && errno != ENOENT)
        return keel_fail_errno(errno, "%s: cannot be removed", path);
    sweep->bytes += (uint64_t)info.st_size;
    if (sweep->least == KEEL_NAME_TEMPORARY)
        tell(sweep, KEEL_REMOVED_TEMPORARY, path, (uint64_t)info.st_size);
    return KEEL_OK;
}

/* Copies, parity and repairs are written into snapshots that are committed, or damaged: what is temporary
 * there was left behind once the run is past it. */
static enum keel_status sweep_temporaries(struct sweep *sweep, uint64_t last_made_step)
{
    const struct keel_snapshot_info *info = &sweep->attempt->info;
    if (sweep->attempt->state == KEEL_ATTEMPT_UNCOMMITTED || info->step >= last_made_step ||
        keel_step_open(sweep->store, info->step, info->attempt, false, &sweep->place) != KEEL_OK)
        return KEEL_OK;
    sweep->least = KEEL_NAME_TEMPORARY;
    enum keel_status status = keel_dir_list(sweep->place.path, sweep_file, sweep);
    keel_step_close(&sweep->place);
    return gone_is_fine(status);
}

/* ---- attempts ------------------------------------------------------------------------------------------ */

/* Not committed any more, for good, before the first of its files goes. A leftover may be one whose manifest
 * was removed by a process that was killed before it synced: it could come back. */
static enum keel_status uncommit(const struct keel_step_place *place, bool committed)
{
    if (committed && keel_disk_unlink(place->fd, KEEL_MANIFEST_NAME, 0) != 0 && errno != ENOENT)
        return keel_fail_errno(errno, "%s: its manifest cannot be removed", place->path);
    if (keel_disk_fsync(place->fd) != 0)
        return keel_fail_errno(errno, "%s: cannot be synced", place->path);
    return KEEL_OK;
}

static uint64_t manifest_bytes(const struct keel_step_place *place)
{
    struct stat info;
    bool there = keel_disk_stat(place->fd, KEEL_MANIFEST_NAME, &info, AT_SYMLINK_NOFOLLOW) == 0;
    return there ? (uint64_t)info.st_size : 0;
}

/* *out_gone: the directory went, or would. */
static enum keel_status remove_files(struct sweep *sweep, bool *out_gone)
{
    KEEL_TRY(gone_is_fine(keel_dir_list(sweep->place.path, sweep_file, sweep)));
    *out_gone = sweep->rules->dry_run ||
                keel_disk_unlink(sweep->store->run_fd, sweep->place.name, AT_REMOVEDIR) == 0 ||
                errno == ENOENT;
    if (!*out_gone && errno != ENOTEMPTY && errno != EEXIST)
        return keel_fail_errno(errno, "%s: cannot be removed", sweep->place.path);
    return KEEL_OK;
}

/* It was looked at before its manifest came, and one that was made after it was seen: no leftover. */
static bool is_committed_by_now(const struct keel_step_place *place)
{
    struct stat info;
    return keel_disk_stat(place->fd, KEEL_MANIFEST_NAME, &info, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* Clears sweep->orderly when it may still be committed: then what it needs may not go either. */
static enum keel_status remove_attempt(struct sweep *sweep, uint32_t *removed)
{
    const struct keel_snapshot_info *info = &sweep->attempt->info;
    bool committed = sweep->attempt->state == KEEL_ATTEMPT_COMMITTED, gone = false;
    sweep->orderly = !committed;
    enum keel_status status = keel_step_open(sweep->store, info->step, info->attempt, false, &sweep->place);
    if (status != KEEL_OK) {
        sweep->orderly = sweep->orderly || status == KEEL_NOT_FOUND;
        return gone_is_fine(status);
    }
    if (!committed && is_committed_by_now(&sweep->place)) {
        sweep->orderly = false; /* what it needs stays as well; the next call sees it as it is */
        keel_step_close(&sweep->place);
        return KEEL_OK;
    }
    sweep->least = KEEL_NAME_OWN;
    sweep->bytes = 0;
    if (!sweep->rules->dry_run) {
        sweep->bytes = committed ? manifest_bytes(&sweep->place) : 0;
        status = uncommit(&sweep->place, committed);
    }
    if (status == KEEL_OK) {
        sweep->orderly = true;
        status = remove_files(sweep, &gone);
        if (gone || committed || sweep->bytes > 0)
            tell(sweep, committed ? KEEL_REMOVED_SNAPSHOT : KEEL_REMOVED_LEFTOVER, sweep->place.path,
                 sweep->bytes);
    }
    *removed += gone;
    keel_step_close(&sweep->place);
    return status;
}

/* Go on with what does not depend on what failed; the first failure is the one that is told. */
static void note(struct sweep *sweep, enum keel_status status)
{
    if (status == KEEL_OK || sweep->first != KEEL_OK)
        return;
    sweep->first = status;
    memcpy(sweep->detail, keel_detail(), sizeof sweep->detail);
}

/* Before anything goes: what stays must be on the disk, not only be seen. A process that was killed between
 * the rename of a manifest and its sync leaves one that may vanish. Once for each: `settled_ns`, when the
 * newest was made that this store has settled. */
static enum keel_status settle(struct keel_store *store, const struct keel_attempts *attempts,
                               const struct keel_retain_plan *plan)
{
    uint64_t before_ns = atomic_load(&store->settled_ns), newest_ns = before_ns;
    for (size_t i = 0; i < attempts->count; i++) {
        const struct keel_attempt *attempt = &attempts->at[i];
        const struct keel_snapshot_info *info = &attempt->info;
        struct keel_step_place place;
        bool committed = attempt->state == KEEL_ATTEMPT_COMMITTED;
        if (!plan->stays[i] || attempt->state == KEEL_ATTEMPT_DAMAGED ||
            (committed && info->created_wall_ns <= before_ns))
            continue;
        enum keel_status status = keel_step_open(store, info->step, info->attempt, false, &place);
        if (status == KEEL_NOT_FOUND && !committed)
            continue; /* its save was given up */
        KEEL_TRY(status);
        if (keel_disk_fsync(place.fd) != 0)
            status = keel_fail_errno(errno, "%s: cannot be synced", place.path);
        keel_step_close(&place);
        KEEL_TRY(status);
        if (committed && info->created_wall_ns > newest_ns)
            newest_ns = info->created_wall_ns;
    }
    atomic_store(&store->settled_ns, newest_ns);
    return KEEL_OK;
}

static bool has_room(const struct sweep *sweep)
{
    return sweep->wanted > 0 && sweep->free >= sweep->wanted;
}

static void sweep_store(struct sweep *sweep, const struct keel_attempts *attempts,
                        const struct keel_retain_plan *plan, uint32_t *removed)
{
    sweep->orderly = true;
    for (uint32_t i = 0; i < plan->count && sweep->orderly && !has_room(sweep); i++) {
        sweep->attempt = &attempts->at[plan->goes[i]];
        sweep->bytes = 0;
        note(sweep, remove_attempt(sweep, removed));
        sweep->free += sweep->bytes; /* some file systems count it later */
    }
    for (size_t i = 0; i < attempts->count; i++) {
        sweep->attempt = &attempts->at[i];
        if (plan->stays[i])
            note(sweep, sweep_temporaries(sweep, plan->last_made_step));
    }
    if (*removed > 0 && !sweep->rules->dry_run && keel_disk_fsync(sweep->store->run_fd) != 0)
        note(sweep, keel_fail_errno(errno, "%s: cannot be synced", sweep->store->path));
}

/* What the snapshot made last takes, and an eighth; 0: there is none. */
static uint64_t estimate(const struct keel_attempts *attempts)
{
    const struct keel_snapshot_info *last = NULL;
    for (size_t i = 0; i < attempts->count; i++) {
        const struct keel_attempt *attempt = &attempts->at[i];
        if (attempt->state == KEEL_ATTEMPT_COMMITTED &&
            (last == NULL || attempt->info.created_wall_ns > last->created_wall_ns))
            last = &attempt->info;
    }
    return last == NULL ? 0 : last->stored_bytes + last->stored_bytes / 8;
}

static enum keel_status let_go(struct sweep *sweep, const struct keel_attempts *attempts, uint32_t *removed)
{
    struct keel_retain_plan plan;
    enum keel_status status = KEEL_OK;
    KEEL_TRY(keel_retain_decide(attempts, sweep->rules, keel_wall_ns(), &plan));
    if (plan.count > 0 && !sweep->rules->dry_run)
        status = settle(sweep->store, attempts, &plan);
    if (status == KEEL_OK) {
        sweep_store(sweep, attempts, &plan, removed);
        if (sweep->first != KEEL_OK)
            keel_detail_set(sweep->detail);
        status = sweep->first;
    }
    keel_retain_plan_fini(&plan);
    return status;
}

static enum keel_status check(struct keel_store *store, const struct keel_retention *retention)
{
    KEEL_ASSERT(store != NULL && store->handle == KEEL_HANDLE_OPEN);
    KEEL_ASSERT(retention != NULL);
    if (!retention->dry_run)
        KEEL_TRY(keel_store_writable(store));
    return retention->keep_last >= 2
               ? KEEL_OK
               : keel_fail(KEEL_INVALID, "at least 2 snapshots are kept: one may turn out to be damaged");
}

enum keel_status keel_store_retain(struct keel_store *store, const struct keel_retention *retention,
                                   uint32_t *out_removed)
{
    struct keel_attempts attempts;
    struct sweep sweep = {.store = store, .rules = retention};
    uint32_t removed = 0;
    KEEL_TRY(check(store, retention));
    KEEL_TRY(keel_attempts_scan(store, true, &attempts));
    enum keel_status status = let_go(&sweep, &attempts, &removed);
    keel_attempts_fini(&attempts);
    if (status == KEEL_OK && out_removed != NULL)
        *out_removed = removed;
    return status;
}

enum keel_status keel_store_make_room(struct keel_store *store, const struct keel_retention *retention,
                                      uint64_t bytes, uint32_t *out_removed)
{
    struct keel_attempts attempts;
    uint32_t removed = 0;
    KEEL_TRY(check(store, retention));
    struct keel_retention rules = *retention;
    rules.keep_last--; /* the save that is about to begin is one of them */
    struct sweep sweep = {.store = store, .rules = &rules, .wanted = bytes};
    if (keel_disk_room(store->run_fd, &sweep.free) != 0)
        return keel_fail_errno(errno, "%s: its free space cannot be told", store->path);
    enum keel_status status = KEEL_OK;
    if (bytes == 0 || !has_room(&sweep)) {
        KEEL_TRY(keel_attempts_scan(store, true, &attempts));
        sweep.wanted = bytes == 0 ? estimate(&attempts) : bytes;
        if (sweep.wanted > 0 && !has_room(&sweep))
            status = let_go(&sweep, &attempts, &removed);
        keel_attempts_fini(&attempts);
    }
    if (status == KEEL_OK && out_removed != NULL)
        *out_removed = removed;
    return status;
}
