/* drains.c - see drains.h. */
#include "drains.h"

#include <errno.h>
#include <keel/file.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char folder_name[] = "drained";

static enum keel_status file_of(const char *directory, uint16_t node, char folder[KEEL_PATH_BYTES],
                                char out[KEEL_PATH_BYTES])
{
    char name[12];
    snprintf(name, sizeof name, "%u", node);
    KEEL_TRY(keel_path_join(folder, directory, folder_name));
    return keel_path_join(out, folder, name);
}

enum keel_status keel_drain_add(const char *directory, uint16_t node)
{
    char folder[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    KEEL_TRY(file_of(directory, node, folder, path));
    KEEL_TRY(keel_mkdir_all(folder));
    return keel_file_replace(path, "", 0, 0666);
}

bool keel_drain_is_asked(const char *directory, uint16_t node)
{
    char folder[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    return file_of(directory, node, folder, path) == KEEL_OK && keel_path_exists(path);
}

enum keel_status keel_drain_remove(const char *directory, uint16_t node)
{
    char folder[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    KEEL_TRY(file_of(directory, node, folder, path));
    return unlink(path) == 0 || errno == ENOENT ? KEEL_OK
                                                : keel_fail_errno(errno, "%s: cannot be removed", path);
}

static enum keel_status see(void *context, const char *name)
{
    char *end;
    const unsigned long node = strtoul(name, &end, 10);
    if (name[0] >= '1' && name[0] <= '9' && *end == '\0' && node < KEEL_NODES_MAX)
        keel_bitset_add(context, (uint32_t)node);
    return KEEL_OK;
}

enum keel_status keel_drains_read(const char *directory, struct keel_bitset *out)
{
    char folder[KEEL_PATH_BYTES];
    memset(out, 0, sizeof *out);
    KEEL_TRY(keel_path_join(folder, directory, folder_name));
    return keel_path_exists(folder) ? keel_dir_list(folder, see, out) : KEEL_OK;
}

enum keel_status keel_drains_clear(const char *directory)
{
    char folder[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(folder, directory, folder_name));
    return keel_path_exists(folder) ? keel_remove_tree(folder) : KEEL_OK;
}
