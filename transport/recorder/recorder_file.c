/* recorder_file.c - files of recordings.
 *
 * A name says whose recording it is, so that the bound on old ones needs no file to be opened. Two processes
 * may tidy up at once: a file that is gone already is as good as removed. */
#include "recorder_file.h"

#include <inttypes.h>
#include <keel/log.h>
#include <keel/process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool keel_recorder_directory(uint32_t number, char *out, size_t out_bytes)
{
    const char *own = getenv("KEEL_NET_DIR"), *session = getenv("XDG_RUNTIME_DIR");
    uint32_t seen = 0;
    int length = -1;
    if (own != NULL && own[0] != '\0' && seen++ == number)
        length = snprintf(out, out_bytes, "%s", own);
    if (session != NULL && session[0] == '/' && seen++ == number)
        length = snprintf(out, out_bytes, "%s/keel", session);
    if (seen++ == number)
        length = snprintf(out, out_bytes, "/dev/shm/keel-%lu", (unsigned long)geteuid());
    if (seen++ == number)
        length = snprintf(out, out_bytes, "/tmp/keel-%lu", (unsigned long)geteuid());
    return length > 0 && (size_t)length < out_bytes;
}

static bool take_number(const char **at, char end, uint64_t *out)
{
    char *rest;
    if (**at < '0' || **at > '9')
        return false;
    *out = strtoull(*at, &rest, 10);
    if (*rest != end)
        return false;
    *at = rest + 1;
    return true;
}

bool keel_record_name_parse(const char *name, struct keel_record_name *out)
{
    const char *at = name;
    return take_number(&at, '-', &out->pid) && take_number(&at, '-', &out->start_ticks) &&
           take_number(&at, '.', &out->number) &&
           strcmp(at, &KEEL_RECORD_SUFFIX[1]) == 0; /* without the dot */
}

/* ---- the bound on old ones ---- */

struct old {
    char name[64];
    struct timespec changed;
};
struct tidying {
    const char *directory;
    struct old newest[KEEL_RECORD_OLD_MAX]; /* of the dead ones, newest first */
    uint32_t count;
};

static bool is_newer(const struct timespec *left, const struct timespec *right)
{
    return left->tv_sec != right->tv_sec ? left->tv_sec > right->tv_sec : left->tv_nsec > right->tv_nsec;
}

static void remove_in(const char *directory, const char *name)
{
    char path[KEEL_PATH_BYTES];
    if (keel_path_join(path, directory, name) == KEEL_OK)
        unlink(path);
}

/* One of a dead process: take its place among the newest; whoever falls out is removed. */
static enum keel_status tidy_one(void *context, const char *name)
{
    struct tidying *tidying = context;
    struct keel_record_name parsed;
    struct stat info;
    struct old old;
    char path[KEEL_PATH_BYTES];
    if (!keel_record_name_parse(name, &parsed) || strlen(name) >= sizeof old.name ||
        keel_path_join(path, tidying->directory, name) != KEEL_OK || stat(path, &info) != 0)
        return KEEL_OK;
    struct keel_process_look look = keel_process_look_at((pid_t)parsed.pid);
    if (look.life != KEEL_PROCESS_DEAD && look.start_ticks == parsed.start_ticks)
        return KEEL_OK;
    snprintf(old.name, sizeof old.name, "%s", name);
    old.changed = info.st_mtim;
    uint32_t at = tidying->count;
    while (at > 0 && is_newer(&old.changed, &tidying->newest[at - 1].changed))
        at--;
    if (at == KEEL_RECORD_OLD_MAX) {
        remove_in(tidying->directory, name);
        return KEEL_OK;
    }
    if (tidying->count == KEEL_RECORD_OLD_MAX)
        remove_in(tidying->directory, tidying->newest[--tidying->count].name);
    memmove(&tidying->newest[at + 1], &tidying->newest[at], (tidying->count - at) * sizeof old);
    tidying->newest[at] = old;
    tidying->count++;
    return KEEL_OK;
}

/* ---- making one ---- */

static struct keel_record *make_in(const char *directory, uint32_t number, char path[KEEL_PATH_BYTES])
{
    char name[96];
    void *mapped;
    struct tidying tidying = {.directory = directory};
    if (keel_dir_private(directory) != KEEL_OK || keel_dir_list(directory, tidy_one, &tidying) != KEEL_OK)
        return NULL;
    snprintf(name, sizeof name, "%ld-%" PRIu64 "-%" PRIu32 KEEL_RECORD_SUFFIX, (long)getpid(),
             keel_process_look_at(getpid()).start_ticks, number);
    if (keel_path_join(path, directory, name) != KEEL_OK ||
        keel_file_map_new(path, sizeof(struct keel_record), &mapped) != KEEL_OK)
        return NULL;
    return mapped;
}

struct keel_record *keel_recorder_file_make(const char *directory, uint32_t number,
                                            char path[KEEL_PATH_BYTES])
{
    char standard[KEEL_PATH_BYTES];
    struct keel_record *record = NULL;
    if (directory != NULL)
        record = make_in(directory, number, path);
    for (uint32_t k = 0; directory == NULL && record == NULL; k++) {
        if (!keel_recorder_directory(k, standard, sizeof standard))
            break;
        record = make_in(standard, number, path);
    }
    if (record == NULL)
        keel_log(KEEL_LOG_WARN, "no flight recording that others can read: %s", keel_detail());
    return record;
}

void keel_recorder_file_remove(const char *path, struct keel_record *record)
{
    keel_file_unmap(record, sizeof *record);
    unlink(path);
}
