/* ckpt_cmd_import_place.c - see ckpt_cmd_import_place.h. */
#include "ckpt_cmd_import_place.h"
#include "format.h"
#include <inttypes.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* ---- what PATH means ----------------------------------------------------------------------------------- */

static enum keel_status see_entry(void *context, const char *name)
{
    uint64_t step, attempt;
    bool *of_run = context;
    if (!keel_step_name_parse(name, &step, &attempt))
        return keel_fail(KEEL_INVALID, "holds %s", name);
    *of_run = true;
    return KEEL_OK;
}

/* A run of a store: PATH is ROOT/RUN, new, empty, or with snapshots in it. */
static enum keel_status split_path(struct keel_import_place *place, const char *path)
{
    size_t bytes = strlen(path);
    bool of_run = false;
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    snprintf(place->root, sizeof place->root, "%.*s", (int)bytes, path);
    if (keel_path_exists(path) && keel_dir_list(path, see_entry, &of_run) != KEEL_OK)
        return keel_fail(KEEL_INVALID, "%s: holds other things than snapshots; name a run in it: %s/NAME",
                         path, place->root);
    char *slash = strrchr(place->root, '/');
    snprintf(place->run, sizeof place->run, "%s", slash == NULL ? place->root : slash + 1);
    if (slash == NULL)
        snprintf(place->root, sizeof place->root, ".");
    else
        *(slash == place->root ? slash + 1 : slash) = '\0';
    if (!keel_run_name_valid(place->run))
        return keel_fail(KEEL_INVALID, "%s: a run's name is wanted at the end, of A-Z a-z 0-9 . _ -", path);
    return KEEL_OK;
}

static enum keel_status read_identity(struct keel_import_place *place, const char *path)
{
    char *text;
    size_t bytes;
    KEEL_TRY(keel_file_read(path, KEEL_IDENTITY_BYTES - 1, &text, &bytes));
    snprintf(place->identity, sizeof place->identity, "%s", text);
    keel_free(text);
    return KEEL_OK;
}

/* The directory of a `keel run` holds `identity` beside ckpt/. */
enum keel_status keel_import_place_find(const char *path, const char *run, struct keel_import_place *place)
{
    char identity[KEEL_PATH_BYTES];
    *place = (struct keel_import_place){.at.path = path};
    if (strlen(path) >= KEEL_PATH_BYTES)
        return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES);
    KEEL_TRY(keel_path_join(identity, path, "identity"));
    place->of_keel_run = keel_path_is_file(identity);
    if (place->of_keel_run) {
        KEEL_TRY(keel_path_join(place->root, path, "ckpt"));
        snprintf(place->run, sizeof place->run, "%s", run != NULL ? run : "");
        return read_identity(place, identity);
    }
    if (run == NULL)
        return split_path(place, path);
    snprintf(place->root, sizeof place->root, "%s", path);
    snprintf(place->run, sizeof place->run, "%s", run);
    return KEEL_OK;
}

/* ---- made and unmade ----------------------------------------------------------------------------------- */

/* How much of root/run is there, as bytes of that path: up to its last component that exists. */
static size_t measure_there(const struct keel_import_place *place)
{
    char path[KEEL_PATH_BYTES];
    if (keel_path_join(path, place->root, place->run) != KEEL_OK)
        return SIZE_MAX;
    while (!keel_path_exists(path)) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return 0;
        *slash = '\0';
    }
    return strlen(path);
}

enum keel_status keel_import_place_open(const struct keel_command *cmd, struct keel_import_place *place)
{
    struct keel_store_config config = {.root = place->root, .run = place->run, .create = true};
    KEEL_TRY(keel_cmd_store_config(cmd, &config));
    if (place->run[0] == '\0') { /* the only one, made by `keel run` */
        config.run = NULL;
        config.create = false;
    }
    place->there_bytes = measure_there(place);
    return keel_store_open(&config, &place->at.store);
}

/* Has the run done steps? */
static bool has_records(const struct keel_import_place *place)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes = 0;
    if (keel_path_join(path, place->at.path, "metrics.jsonl") != KEEL_OK || !keel_path_is_file(path))
        return false;
    enum keel_status status = keel_file_read(path, 1, &text, &bytes);
    if (status == KEEL_OK)
        keel_free(text);
    return status != KEEL_OK || bytes > 0;
}

/* A job goes on from its newest snapshot: older weights would lie there unused, and beside records of steps
 * they would be another run. */
static enum keel_status check_begins(const struct keel_import_place *place, uint64_t step)
{
    struct keel_snapshot_info newest;
    uint32_t count = 0;
    KEEL_TRY(keel_store_list(place->at.store, &newest, 1, &count, NULL));
    if (!has_records(place) && (count == 0 || newest.step < step))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "%s: has steps or snapshots already, and its job goes on from those, not from these "
                     "weights; give `keel run JOB --prepare` a new --out and import there",
                     place->at.path);
}

enum keel_status keel_import_place_check(const struct keel_import_place *place, uint64_t step, bool begins)
{
    uint64_t attempt;
    if (begins && place->of_keel_run)
        KEEL_TRY(check_begins(place, step));
    enum keel_status status = keel_store_newest_attempt(place->at.store, step, &attempt);
    if (status != KEEL_OK)
        return status == KEEL_NOT_FOUND ? KEEL_OK : status;
    return keel_fail(KEEL_INVALID, "%s: holds a snapshot of step %" PRIu64 " already; give another --step",
                     place->at.store->path, step);
}

/* Directories that were made for the import and are empty. */
void keel_import_place_undo(const struct keel_import_place *place)
{
    char path[KEEL_PATH_BYTES];
    if (keel_path_join(path, place->root, place->run) != KEEL_OK)
        return;
    while (strlen(path) > place->there_bytes && keel_disk_unlink(AT_FDCWD, path, AT_REMOVEDIR) == 0) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}
