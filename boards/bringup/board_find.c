/* board_find.c - the roots where boards' folders lie, and which file is a device's own. */
#include "board_file.h"
#include <fnmatch.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ROOTS_MAX = 16, FOLDERS_MAX = 1024 };

/* ---- roots ---- */

struct roots {
    char path[ROOTS_MAX][KEEL_PATH_BYTES];
    uint32_t count;
};

static enum keel_status add_root(struct roots *roots, const char *path, size_t length)
{
    if (length == 0)
        return KEEL_OK;
    if (roots->count == ROOTS_MAX || length >= KEEL_PATH_BYTES)
        return keel_fail(KEEL_LIMIT, "KEEL_BOARDS: %d directories of %d bytes at most", ROOTS_MAX - 2,
                         KEEL_PATH_BYTES - 1);
    snprintf(roots->path[roots->count++], KEEL_PATH_BYTES, "%.*s", (int)length, path);
    return KEEL_OK;
}

static enum keel_status add_installed_root(struct roots *roots)
{
    char root[KEEL_PATH_BYTES];
    KEEL_TRY(keel_installed_path(root, "boards"));
    return add_root(roots, root, strlen(root));
}

static enum keel_status find_roots(struct roots *roots)
{
    roots->count = 0;
    const char *list = getenv("KEEL_BOARDS");
    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ":");
        KEEL_TRY(add_root(roots, list, length));
        list += length + (list[length] == ':');
    }
    KEEL_TRY(add_root(roots, "boards", strlen("boards")));
    return add_installed_root(roots);
}

/* ---- walking them ---- */

struct walk {
    enum keel_status (*visit)(void *context, const char *folder);
    void *context;
    const char *root, *vendor;
    uint32_t folders;
    char seen[FOLDERS_MAX][2 * KEEL_BOARD_NAME_BYTES]; /* "vendor/board" of earlier roots */
};

static bool has_file(const char *folder)
{
    char path[KEEL_PATH_BYTES];
    return keel_path_join(path, folder, "board.conf") == KEEL_OK && keel_path_is_file(path);
}

static enum keel_status visit_board(void *context, const char *name)
{
    struct walk *walk = context;
    char vendor[KEEL_PATH_BYTES], folder[KEEL_PATH_BYTES], *id = walk->seen[walk->folders];
    if (keel_path_join(vendor, walk->root, walk->vendor) != KEEL_OK ||
        keel_path_join(folder, vendor, name) != KEEL_OK || !has_file(folder))
        return KEEL_OK;
    if (walk->folders == FOLDERS_MAX - 1)
        return keel_fail(KEEL_LIMIT, "more than %d boards' folders", FOLDERS_MAX - 1);
    int length = snprintf(id, sizeof walk->seen[0], "%s/%s", walk->vendor, name);
    if (length < 0 || (size_t)length >= sizeof walk->seen[0])
        return keel_fail(KEEL_LIMIT, "%s: names longer than %zu bytes; rename the folder", folder,
                         sizeof walk->seen[0] - 1);
    for (uint32_t i = 0; i < walk->folders; i++)
        if (strcmp(walk->seen[i], id) == 0)
            return KEEL_OK;
    walk->folders++;
    return walk->visit(walk->context, folder);
}

static enum keel_status visit_vendor(void *context, const char *name)
{
    struct walk *walk = context;
    char path[KEEL_PATH_BYTES];
    if (name[0] == '.' || keel_path_join(path, walk->root, name) != KEEL_OK || !keel_path_exists(path) ||
        keel_path_is_file(path))
        return KEEL_OK;
    walk->vendor = name;
    return keel_dir_list(path, visit_board, walk);
}

enum keel_status keel_board_folders(enum keel_status (*visit)(void *context, const char *folder),
                                    void *context)
{
    struct roots roots;
    struct walk *walk;
    KEEL_TRY(find_roots(&roots));
    KEEL_TRY(keel_alloc(1, sizeof *walk, &walk));
    walk->visit = visit;
    walk->context = context;
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < roots.count && status == KEEL_OK; i++) {
        walk->root = roots.path[i];
        if (keel_path_exists(walk->root) && !keel_path_is_file(walk->root))
            status = keel_dir_list(walk->root, visit_vendor, walk);
    }
    keel_free(walk);
    return status;
}

enum keel_status keel_board_folder_find(const char *name, char out[KEEL_PATH_BYTES])
{
    char looked[256] = "";
    struct roots roots;
    if (has_file(name))
        return keel_path_join(out, "", name);
    KEEL_TRY(find_roots(&roots));
    for (uint32_t i = 0; i < roots.count; i++) {
        char folder[KEEL_PATH_BYTES];
        KEEL_TRY(keel_path_join(folder, roots.path[i], name));
        if (has_file(folder)) {
            memcpy(out, folder, sizeof folder);
            return KEEL_OK;
        }
        size_t used = strlen(looked);
        snprintf(looked + used, sizeof looked - used, "%s%s", used > 0 ? ", " : "", roots.path[i]);
    }
    return keel_fail(KEEL_NOT_FOUND,
                     "board %s: no folder of that name with a board.conf in it, neither here nor in %s; name "
                     "another (keel board list), or set KEEL_BOARDS",
                     name, looked);
}

/* ---- matching ---- */

static bool fits(const char *pattern, const char *text)
{
    return pattern[0] == '\0' || fnmatch(pattern, text, FNM_CASEFOLD) == 0;
}

enum keel_board_fit keel_board_file_fit(const struct keel_board_file *file,
                                        const struct keel_device_info *info)
{
    const struct keel_board_match *match = &file->match;
    if (match->platform[0] == '\0' && match->name[0] == '\0')
        return KEEL_BOARD_OTHER;
    if (file->kind != 0 && file->kind != 1 + (uint32_t)info->kind)
        return KEEL_BOARD_OTHER;
    if (!fits(match->platform, info->platform) || !fits(match->name, info->name))
        return KEEL_BOARD_OTHER;
    return fits(match->driver, info->driver_version) ? KEEL_BOARD_FITS : KEEL_BOARD_OTHER_DRIVER;
}

struct matching {
    const struct keel_device_info *info;
    struct keel_board_file *best;  /* the first that fits */
    struct keel_board_file *other; /* being looked at; after that, one that fits but for the driver */
    uint32_t fit_count, driver_count;
    bool told; /* which files cannot be read: with the first device that this process looks for */
    char second[KEEL_PATH_BYTES]; /* folder of the second that fits */
    struct keel_board_match wanted;
    char wanted_folder[KEEL_PATH_BYTES];
    char root[KEEL_PATH_BYTES]; /* the first one with a file for the device: later ones are not asked */
};

/* ROOT/VENDOR/BOARD without its last two names. */
static void root_of(const char *folder, char out[KEEL_PATH_BYTES])
{
    snprintf(out, KEEL_PATH_BYTES, "%s", folder);
    for (int i = 0; i < 2 && strrchr(out, '/') != NULL; i++)
        *strrchr(out, '/') = '\0';
}

static enum keel_status look(void *context, const char *folder)
{
    struct matching *matching = context;
    char root[KEEL_PATH_BYTES];
    root_of(folder, root);
    if (matching->root[0] != '\0' && strcmp(matching->root, root) != 0)
        return KEEL_OK;
    struct keel_board_file *file = matching->other;
    enum keel_status status = keel_board_file_read(folder, file);
    enum keel_board_fit fit = keel_board_file_fit(file, matching->info);
    if (status != KEEL_OK && fit == KEEL_BOARD_FITS)
        return status;
    if (status != KEEL_OK) {
        if (!matching->told)
            keel_log(KEEL_LOG_WARN, "passed over: %s", keel_detail());
        return KEEL_OK;
    }
    if (fit != KEEL_BOARD_OTHER)
        memcpy(matching->root, root, sizeof root);
    if (fit == KEEL_BOARD_OTHER_DRIVER) {
        matching->driver_count++;
        matching->wanted = file->match;
        memcpy(matching->wanted_folder, file->folder, sizeof file->folder);
    } else if (fit == KEEL_BOARD_FITS) {
        if (matching->fit_count++ == 0)
            *matching->best = *file;
        else
            memcpy(matching->second, file->folder, sizeof file->folder);
    }
    return KEEL_OK;
}

static enum keel_status settle(const struct matching *matching)
{
    if (matching->fit_count > 1)
        return keel_fail(
            KEEL_UNSUPPORTED,
            "%s (%s): both %.150s and %.150s are its board; make the [match] of one narrower, or "
            "name the board instead of the device",
            matching->info->selector, matching->info->name, matching->best->folder, matching->second);
    if (matching->fit_count == 0 && matching->driver_count > 0)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s (%s): its driver is \"%s\", and %.150s/board.conf is for \"%s\"; install that "
                         "driver, or check the board with this one and change match.driver",
                         matching->info->selector, matching->info->name, matching->info->driver_version,
                         matching->wanted_folder, matching->wanted.driver);
    if (matching->fit_count == 0)
        keel_board_file_defaults(matching->best);
    return KEEL_OK;
}

enum keel_status keel_board_file_find(const struct keel_device_info *info, struct keel_board_file *out)
{
    static atomic_bool told;
    struct matching matching = {.info = info, .best = out, .told = atomic_exchange(&told, true)};
    KEEL_TRY(keel_alloc(1, sizeof *matching.other, &matching.other));
    enum keel_status status = keel_board_folders(look, &matching);
    keel_free(matching.other);
    return status == KEEL_OK ? settle(&matching) : status;
}
