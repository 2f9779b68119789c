/* ckpt_cmd_path.c - what a PATH on the command line means: by what lies there. */
#include "ckpt_subcommand.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void strip_slashes(char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = '\0';
}

/* Cut the last component off and return it; the root becomes "". NULL: there is one component. */
static const char *cut(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL)
        return NULL;
    *slash = '\0';
    strip_slashes(path);
    return slash + 1;
}

static enum keel_status real_path(const char *path, char out[KEEL_PATH_BYTES])
{
    if (path[0] == '\0')
        return keel_fail(KEEL_INVALID, "the PATH is empty; name a store, a run in it, or a snapshot");
    char *resolved = realpath(path, NULL);
    if (resolved == NULL)
        return errno == ENOENT ? keel_fail(KEEL_NOT_FOUND, "%s: is not there", path)
                               : keel_fail_errno(errno, "%s: cannot be reached", path);
    size_t bytes = strlen(resolved) + 1;
    if (bytes <= KEEL_PATH_BYTES)
        memcpy(out, resolved, bytes);
    free(resolved);
    return bytes <= KEEL_PATH_BYTES
               ? KEEL_OK
               : keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES);
}

static enum keel_status see_step(void *context, const char *name)
{
    uint64_t step, attempt;
    if (keel_step_name_parse(name, &step, &attempt))
        *(bool *)context = true;
    return KEEL_OK;
}

enum keel_status keel_cmd_parse_step(const char *text, uint64_t *out)
{
    char name[KEEL_STEP_NAME_BYTES];
    uint64_t attempt;
    int length = snprintf(name, sizeof name, "step-%s.0", text);
    if (length < 0 || (size_t)length >= sizeof name || !keel_step_name_parse(name, out, &attempt))
        return keel_fail(KEEL_INVALID, "--step %s: a whole number is wanted", text);
    return KEEL_OK;
}

enum keel_status keel_cmd_store_config(const struct keel_command *cmd, struct keel_store_config *config)
{
    const struct keel_cmd_options *options = keel_command_own(cmd);
    config->key_file = options->key_file;
    config->accept_plain = options->accept_plain;
    if (options->accept_plain && options->key_file == NULL)
        return keel_fail(KEEL_INVALID,
                         "--accept-plain needs --key FILE: without a key plain snapshots are taken");
    return KEEL_OK;
}

/* A directory called step-N.A is a snapshot, one that holds such is a run. */
enum keel_status keel_cmd_open(const struct keel_command *cmd, const char *path, bool writable,
                               struct keel_cmd_place *out)
{
    const char *named = ((const struct keel_cmd_options *)keel_command_own(cmd))->step;
    struct keel_cmd_place place = {.path = path, .has_step = named != NULL};
    struct keel_store_config config = {.read_only = !writable};
    if (named != NULL)
        KEEL_TRY(keel_cmd_parse_step(named, &place.step));
    KEEL_TRY(keel_cmd_store_config(cmd, &config));
    char real[KEEL_PATH_BYTES], parent[KEEL_PATH_BYTES], inside[KEEL_PATH_BYTES];
    KEEL_TRY(real_path(path, real));
    if (keel_path_is_file(real))
        return keel_fail(KEEL_INVALID, "%s: is a file; name a store, a run in it, or a snapshot's directory",
                         path);
    memcpy(parent, real, sizeof parent);
    const char *root = parent, *run = cut(parent);
    uint64_t step, attempt;
    if (run != NULL && keel_step_name_parse(run, &step, &attempt)) {
        if (place.has_step && place.step != step)
            return keel_fail(KEEL_INVALID, "%s: is not of step %" PRIu64, path, place.step);
        place.has_step = true;
        place.step = step;
        place.attempt = attempt;
        run = cut(parent);
    } else {
        bool is_run = false;
        KEEL_TRY(keel_dir_list(real, see_step, &is_run));
        if (!is_run) { /* the directory of a `keel run` keeps its store in ckpt/ */
            bool of_run = keel_path_join(inside, real, "ckpt") == KEEL_OK && keel_path_exists(inside);
            root = of_run ? inside : real;
            run = NULL;
        }
    }
    config.root = root[0] == '\0' ? "/" : root;
    config.run = run;
    KEEL_TRY(keel_store_open(&config, &place.store));
    *out = place;
    return KEEL_OK;
}

void keel_cmd_close(struct keel_cmd_place *place)
{
    keel_store_close(place->store);
    place->store = NULL;
}

/* Is that the directory of the `keel run` whose store it is? Then it holds run.lock beside ckpt/. */
static bool is_home(const struct keel_store *store, const char *directory, char out_lock[KEEL_PATH_BYTES])
{
    char inside[KEEL_PATH_BYTES], root[KEEL_PATH_BYTES];
    struct stat a, b;
    return keel_path_join(inside, directory, "ckpt") == KEEL_OK &&
           keel_path_join(root, store->path, "..") == KEEL_OK &&
           keel_path_join(out_lock, directory, "run.lock") == KEEL_OK &&
           keel_disk_stat(AT_FDCWD, inside, &a, 0) == 0 && keel_disk_stat(AT_FDCWD, root, &b, 0) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino && keel_path_is_file(out_lock);
}

/* Two directories above the run's, where a `keel run` has made the store. */
static bool lock_above(const struct keel_store *store, char out[KEEL_PATH_BYTES])
{
    char above[KEEL_PATH_BYTES];
    return real_path(store->path, above) == KEEL_OK && cut(above) != NULL && cut(above) != NULL &&
           keel_path_join(out, above, "run.lock") == KEEL_OK && keel_path_is_file(out);
}

/* Above the store, or above PATH as it was given: out/ckpt may be a link to another disk. */
static bool find_lock(const struct keel_cmd_place *place, char out[KEEL_PATH_BYTES])
{
    enum { UP_MAX = 3 }; /* from a snapshot: its run, the store, the directory of the keel run */
    char above[KEEL_PATH_BYTES];
    if (lock_above(place->store, out))
        return true;
    int length = snprintf(above, sizeof above, "%s", place->path);
    if (length < 0 || (size_t)length >= sizeof above)
        return false;
    strip_slashes(above);
    for (int up = 0; up <= UP_MAX; up++) {
        if (is_home(place->store, above, out))
            return true;
        if (cut(above) == NULL)
            snprintf(above, sizeof above, ".");
        else if (above[0] == '\0')
            snprintf(above, sizeof above, "/");
    }
    return false;
}

enum keel_status keel_cmd_lock_run(const struct keel_cmd_place *place, const char *verb, int *out_lock)
{
    char path[KEEL_PATH_BYTES];
    *out_lock = -1;
    if (!find_lock(place, path))
        return KEEL_OK;
    enum keel_status status = keel_file_lock(path, false, 0, out_lock);
    if (status == KEEL_BUSY)
        return keel_fail(
            KEEL_BUSY,
            "%s: a keel run is writing here, and lets old snapshots go by itself; wait for its end, "
            "or stop it, then %s",
            place->path, verb);
    if (status == KEEL_DENIED)
        return keel_fail(
            status,
            "%.400s; %s changes this run and needs the right to write there: let its owner do it, "
            "or copy the run and name the copy",
            keel_detail(), verb);
    return status;
}

bool keel_cmd_run_is_idle(const struct keel_cmd_place *place)
{
    char path[KEEL_PATH_BYTES];
    return find_lock(place, path) && !keel_file_is_locked(path);
}

void keel_cmd_unlock_run(int lock)
{
    if (lock >= 0)
        keel_file_unlock(lock);
}

bool keel_cmd_is_meant(const struct keel_cmd_place *place, const struct keel_generation_entry *attempt)
{
    return attempt->state != KEEL_GENERATION_UNCOMMITTED &&
           (!place->has_step || (attempt->info.step == place->step &&
                                 (place->attempt == 0 || attempt->info.attempt == place->attempt)));
}

const struct keel_generation_entry *keel_cmd_find_generation(const struct keel_cmd_place *place,
                                                             const struct keel_generation_index *generations)
{
    const struct keel_generation_entry *damaged = NULL;
    for (size_t i = 0; i < generations->count; i++) {
        if (!keel_cmd_is_meant(place, &generations->at[i]))
            continue;
        if (generations->at[i].state == KEEL_GENERATION_COMMITTED)
            return &generations->at[i];
        damaged = damaged == NULL ? &generations->at[i] : damaged;
    }
    return damaged;
}

bool keel_cmd_is_removed(const struct keel_cmd_place *place, const struct keel_snapshot_info *info)
{
    char detail[KEEL_DETAIL_BYTES];
    struct keel_step_place step;
    snprintf(detail, sizeof detail, "%s", keel_detail());
    enum keel_status status = keel_step_open(place->store, info->step, info->attempt, false, &step);
    bool removed = status == KEEL_NOT_FOUND;
    if (status == KEEL_OK) {
        removed = keel_step_uncommitted(&step) == KEEL_OK;
        keel_step_close(&step);
    }
    keel_detail_set(detail);
    return removed;
}

enum keel_status keel_cmd_note_removed(struct keel_cmd_place *place, uint64_t step)
{
    enum { REMOVED_MAX = 16 };
    if (!place->has_step && ++place->removed < REMOVED_MAX)
        return KEEL_OK;
    return keel_fail(KEEL_NOT_FOUND,
                     "%s: step %" PRIu64
                     " was removed while it was read, by the rules of a run beside; name a "
                     "newer one, or let the run keep more (snapshot.keep)",
                     place->path, step);
}

static enum keel_status choose_newest(const struct keel_cmd_place *place, struct keel_snapshot_info *out)
{
    const char *called = keel_command_called(&keel_ckpt_commands);
    uint32_t count, damaged;
    KEEL_TRY(keel_store_list(place->store, out, 1, &count, &damaged));
    if (count == 0 && damaged > 0)
        return keel_fail(KEEL_CORRUPT, "%s: all of its %u manifests are damaged", place->path, damaged);
    if (count == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no committed snapshot", place->path);
    if (damaged > 0)
        fprintf(stderr,
                "%s: %s: %u manifests are damaged, perhaps newer ones; step %" PRIu64
                " is taken; try %s repair --all\n",
                called, place->path, damaged, out->step, called);
    return KEEL_OK;
}

/* The snapshot that is named, else the newest. */
static enum keel_status open_snapshot(struct keel_cmd_place *place, struct keel_snapshot **out)
{
    for (;;) {
        struct keel_snapshot_info info = {.step = place->step, .attempt = place->attempt};
        if (!place->has_step)
            KEEL_TRY(choose_newest(place, &info));
        else if (info.attempt == 0)
            KEEL_TRY(keel_store_newest_attempt(place->store, info.step, &info.attempt));
        enum keel_status status = keel_snapshot_open(place->store, info.step, info.attempt, out);
        if (status == KEEL_OK || (place->has_step && status == KEEL_NOT_FOUND) ||
            !keel_cmd_is_removed(place, &info))
            return status;
        KEEL_TRY(keel_cmd_note_removed(place, info.step));
    }
}

/* After reading *snapshot failed with *status. True: it was the newest and was removed meanwhile; it is
 * closed, *snapshot is NULL, and the command begins again. False: *status is the result. */
static bool reads_again(struct keel_cmd_place *place, struct keel_snapshot **snapshot,
                        enum keel_status *status)
{
    if (*status == KEEL_OK || *snapshot == NULL || !keel_cmd_is_removed(place, keel_snapshot_info(*snapshot)))
        return false;
    enum keel_status removed = keel_cmd_note_removed(place, keel_snapshot_info(*snapshot)->step);
    if (removed != KEEL_OK)
        *status = removed;
    keel_snapshot_close(*snapshot);
    *snapshot = NULL;
    return removed == KEEL_OK;
}

enum keel_status keel_cmd_read(const struct keel_command *cmd, uint32_t sides,
                               enum keel_status (*work)(void *context, const struct keel_cmd_place *places,
                                                        struct keel_snapshot *const *snapshots),
                               void *context)
{
    struct keel_cmd_place places[KEEL_CMD_SIDES_MAX] = {0};
    enum keel_status status = KEEL_OK;
    KEEL_ASSERT(sides <= KEEL_CMD_SIDES_MAX);
    for (uint32_t i = 0; i < sides && status == KEEL_OK; i++)
        status = keel_cmd_open(cmd, cmd->operands[i], false, &places[i]);
    for (bool again = status == KEEL_OK; again;) {
        struct keel_snapshot *snapshots[KEEL_CMD_SIDES_MAX] = {NULL};
        status = KEEL_OK;
        again = false;
        for (uint32_t i = 0; i < sides && status == KEEL_OK; i++)
            status = open_snapshot(&places[i], &snapshots[i]);
        if (status == KEEL_OK)
            status = work(context, places, snapshots);
        for (uint32_t i = 0; i < sides && !again; i++)
            again = reads_again(&places[i], &snapshots[i], &status);
        for (uint32_t i = 0; i < sides; i++)
            keel_snapshot_close(snapshots[i]);
    }
    for (uint32_t i = 0; i < sides; i++)
        keel_cmd_close(&places[i]);
    return status;
}
