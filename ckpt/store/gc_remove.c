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

struct removal {
    struct keel_store *store;
    const struct keel_retention *rules;
    struct keel_step_place place; /* of the attempt at hand, open */
    const struct keel_generation_entry *attempt;
    enum keel_name_kind least;      /* of its files: what goes */
    uint64_t bytes;                 /* of those, so far */
    uint64_t wanted, free;          /* bytes: nothing more goes when so many are free; 0: all go */
    bool orderly;                   /* false: a snapshot could not be uncommitted, so what it needs stays */
    enum keel_status first;         /* the first failure, */
    char detail[KEEL_DETAIL_BYTES]; /* and what it said */
};

static void tell(const struct removal *removal, enum keel_removed_kind kind, const char *path, uint64_t bytes)
{
    const struct keel_removed what = {.kind = kind,
                                      .step = removal->attempt->info.step,
                                      .attempt = removal->attempt->info.attempt,
                                      .bytes = bytes,
                                      .path = path};
    if (removal->rules->removed != NULL)
        removal->rules->removed(removal->rules->context, &what);
}

/* Another process may let go here too: what it has removed is gone. */
static enum keel_status gone_is_fine(enum keel_status status)
{
    return status == KEEL_NOT_FOUND ? KEEL_OK : status;
}

/* ---- files --------------------------------------------------------------------------------------------- */

static enum keel_status remove_file(void *context, const char *name)
{
    struct removal *removal = context;
    struct stat info;
    char path[KEEL_PATH_BYTES];
    enum keel_name_kind kind = keel_name_kind_of(name);
    if (kind == KEEL_NAME_FOREIGN || kind < removal->least ||
        keel_disk_stat(removal->place.fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
        return KEEL_OK;
    KEEL_TRY(keel_path_join(path, removal->place.path, name));
    if (!removal->rules->dry_run && keel_disk_unlink(removal->place.fd, name, 0) != 0 && errno != ENOENT)
        return keel_fail_errno(errno, "%s: cannot be removed", path);
    removal->bytes += (uint64_t)info.st_size;
    if (removal->least == KEEL_NAME_TEMPORARY)
        tell(removal, KEEL_REMOVED_TEMPORARY, path, (uint64_t)info.st_size);
    return KEEL_OK;
}

/* Copies, parity and repairs are written into snapshots that are committed, or damaged: what is temporary
 * there was left behind once the run is past it. */
static enum keel_status remove_temporaries(struct removal *removal, uint64_t last_made_step)
{
    const struct keel_snapshot_info *info = &removal->attempt->info;
    if (removal->attempt->state == KEEL_GENERATION_UNCOMMITTED || info->step >= last_made_step ||
        keel_step_open(removal->store, info->step, info->attempt, false, &removal->place) != KEEL_OK)
        return KEEL_OK;
    removal->least = KEEL_NAME_TEMPORARY;
    enum keel_status status = keel_dir_list(removal->place.path, remove_file, removal);
    keel_step_close(&removal->place);
    return gone_is_fine(status);
}

/* ---- generations --------------------------------------------------------------------------------------- */

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
static enum keel_status remove_files(struct removal *removal, bool *out_gone)
{
    KEEL_TRY(gone_is_fine(keel_dir_list(removal->place.path, remove_file, removal)));
    *out_gone = removal->rules->dry_run ||
                keel_disk_unlink(removal->store->run_fd, removal->place.name, AT_REMOVEDIR) == 0 ||
                errno == ENOENT;
    if (!*out_gone && errno != ENOTEMPTY && errno != EEXIST)
        return keel_fail_errno(errno, "%s: cannot be removed", removal->place.path);
    return KEEL_OK;
}

/* It was looked at before its manifest came, and one that was made after it was seen: no leftover. */
static bool is_committed_by_now(const struct keel_step_place *place)
{
    struct stat info;
    return keel_disk_stat(place->fd, KEEL_MANIFEST_NAME, &info, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* Clears removal->orderly when it may still be committed: then what it needs may not go either. */
static enum keel_status remove_attempt(struct removal *removal, uint32_t *removed)
{
    const struct keel_snapshot_info *info = &removal->attempt->info;
    bool committed = removal->attempt->state == KEEL_GENERATION_COMMITTED, gone = false;
    removal->orderly = !committed;
    enum keel_status status =
        keel_step_open(removal->store, info->step, info->attempt, false, &removal->place);
    if (status != KEEL_OK) {
        removal->orderly = removal->orderly || status == KEEL_NOT_FOUND;
        return gone_is_fine(status);
    }
    if (!committed && is_committed_by_now(&removal->place)) {
        removal->orderly = false; /* what it needs stays as well; the next call sees it as it is */
        keel_step_close(&removal->place);
        return KEEL_OK;
    }
    removal->least = KEEL_NAME_OWN;
    removal->bytes = 0;
    if (!removal->rules->dry_run) {
        removal->bytes = committed ? manifest_bytes(&removal->place) : 0;
        status = uncommit(&removal->place, committed);
    }
    if (status == KEEL_OK) {
        removal->orderly = true;
        status = remove_files(removal, &gone);
        if (gone || committed || removal->bytes > 0)
            tell(removal, committed ? KEEL_REMOVED_SNAPSHOT : KEEL_REMOVED_LEFTOVER, removal->place.path,
                 removal->bytes);
    }
    *removed += gone;
    keel_step_close(&removal->place);
    return status;
}

/* Go on with what does not depend on what failed; the first failure is the one that is told. */
static void note(struct removal *removal, enum keel_status status)
{
    if (status == KEEL_OK || removal->first != KEEL_OK)
        return;
    removal->first = status;
    memcpy(removal->detail, keel_detail(), sizeof removal->detail);
}

/* Before anything goes: what stays must be on the disk, not only be seen. A process that was killed between
 * the rename of a manifest and its sync leaves one that may vanish. Once for each: `settled_ns`, when the
 * newest was made that this store has settled. */
static enum keel_status settle(struct keel_store *store, const struct keel_generation_index *generations,
                               const struct keel_retain_plan *plan)
{
    uint64_t before_ns = atomic_load(&store->settled_ns), newest_ns = before_ns;
    for (size_t i = 0; i < generations->count; i++) {
        const struct keel_generation_entry *attempt = &generations->at[i];
        const struct keel_snapshot_info *info = &attempt->info;
        struct keel_step_place place;
        bool committed = attempt->state == KEEL_GENERATION_COMMITTED;
        if (!plan->stays[i] || attempt->state == KEEL_GENERATION_DAMAGED ||
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

static bool has_room(const struct removal *removal)
{
    return removal->wanted > 0 && removal->free >= removal->wanted;
}

static void remove_all(struct removal *removal, struct keel_generation_index *generations,
                       const struct keel_retain_plan *plan, uint32_t *removed)
{
    removal->orderly = true;
    for (uint32_t i = 0; i < plan->count && removal->orderly && !has_room(removal); i++) {
        removal->attempt = &generations->at[plan->goes[i]];
        removal->bytes = 0;
        note(removal, remove_attempt(removal, removed));
        removal->free += removal->bytes; /* some file systems count it later */
    }
    for (size_t i = 0; i < generations->count; i++) {
        struct keel_generation_entry *attempt = &generations->at[i];
        removal->attempt = attempt;
        if (!plan->stays[i] || attempt->swept)
            continue;
        const enum keel_status status = remove_temporaries(removal, plan->last_made_step);
        attempt->swept = status == KEEL_OK && attempt->info.step < plan->last_made_step;
        note(removal, status);
    }
    if (*removed > 0 && !removal->rules->dry_run && keel_disk_fsync(removal->store->run_fd) != 0)
        note(removal, keel_fail_errno(errno, "%s: cannot be synced", removal->store->path));
}

/* What the snapshot made last takes, and an eighth; 0: there is none. */
static uint64_t estimate(const struct keel_generation_index *generations)
{
    const struct keel_generation_entry *last = NULL;
    for (size_t i = 0; i < generations->count; i++) {
        const struct keel_generation_entry *attempt = &generations->at[i];
        if (attempt->state == KEEL_GENERATION_COMMITTED &&
            (last == NULL || attempt->info.created_wall_ns > last->info.created_wall_ns))
            last = attempt;
    }
    return last == NULL ? 0 : last->file_bytes + last->file_bytes / 8;
}

static enum keel_status let_go(struct removal *removal, struct keel_generation_index *generations,
                               uint32_t *removed)
{
    struct keel_retain_plan plan;
    enum keel_status status = KEEL_OK;
    KEEL_TRY(keel_retain_decide(generations, removal->rules, keel_wall_ns(), &plan));
    if (plan.count > 0 && !removal->rules->dry_run)
        status = settle(removal->store, generations, &plan);
    if (status == KEEL_OK) {
        remove_all(removal, generations, &plan, removed);
        if (removal->first != KEEL_OK)
            keel_detail_set(removal->detail);
        status = removal->first;
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
    struct keel_generation_index generations;
    struct removal removal = {.store = store, .rules = retention};
    uint32_t removed = 0;
    KEEL_TRY(check(store, retention));
    KEEL_TRY(keel_generation_index_scan(store, true, &generations));
    enum keel_status status = let_go(&removal, &generations, &removed);
    if (status == KEEL_OK && !retention->dry_run)
        keel_generation_index_keep(store, &generations);
    keel_generation_index_fini(&generations);
    if (status == KEEL_OK && out_removed != NULL)
        *out_removed = removed;
    return status;
}

enum keel_status keel_store_make_room(struct keel_store *store, const struct keel_retention *retention,
                                      uint64_t bytes, uint32_t *out_removed)
{
    struct keel_generation_index generations;
    uint32_t removed = 0;
    KEEL_TRY(check(store, retention));
    struct keel_retention rules = *retention;
    rules.keep_last--; /* the save that is about to begin is one of them */
    struct removal removal = {.store = store, .rules = &rules, .wanted = bytes};
    if (keel_disk_room(store->run_fd, &removal.free) != 0)
        return keel_fail_errno(errno, "%s: its free space cannot be told", store->path);
    enum keel_status status = KEEL_OK;
    if (bytes == 0 || !has_room(&removal)) {
        KEEL_TRY(keel_generation_index_scan(store, true, &generations));
        removal.wanted = bytes == 0 ? estimate(&generations) : bytes;
        if (removal.wanted > 0 && !has_room(&removal))
            status = let_go(&removal, &generations, &removed);
        keel_generation_index_fini(&generations);
    }
    if (status == KEEL_OK && out_removed != NULL)
        *out_removed = removed;
    return status;
}
