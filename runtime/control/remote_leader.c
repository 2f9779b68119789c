/* remote_leader.c - see remote_leader.h. */
#include "remote_leader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TIMEOUTS_SILENT = 6, WORDS_BYTES = 256 };

enum keel_status keel_remote_leader_path(const char *store, const char *name, char out[KEEL_PATH_BYTES])
{
    char folder[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(folder, store, KEEL_REMOTE_LEADER_FOLDER));
    return keel_path_join(out, folder, name);
}

enum keel_status keel_remote_leader_begin(const char *store, const struct keel_remote_leader *leader)
{
    char path[KEEL_PATH_BYTES], words[WORDS_BYTES];
    KEEL_TRY(keel_remote_leader_path(store, leader->folder, path));
    KEEL_TRY(keel_mkdir_all(path));
    const int bytes =
        snprintf(words, sizeof words, "%016" PRIx64 " %u %ld %s %s %s\n", leader->run, leader->node,
                 leader->pid, leader->host[0] != '\0' ? leader->host : "?", leader->folder, leader->place);
    KEEL_TRY(keel_remote_leader_path(store, "leader", path));
    return keel_file_replace(path, words, (uint64_t)bytes, 0666);
}

void keel_remote_leader_touch(const char *store, const struct keel_remote_leader *leader)
{
    char path[KEEL_PATH_BYTES];
    if (keel_remote_leader_path(store, "leader", path) == KEEL_OK &&
        utimensat(AT_FDCWD, path, NULL, 0) != 0 && errno == ENOENT)
        (void)keel_remote_leader_begin(store, leader); /* where that fails it counts as silent */
}

static uint64_t written_at(const struct stat *file)
{
    return (uint64_t)file->st_mtim.tv_sec * KEEL_NS_PER_S + (uint64_t)file->st_mtim.tv_nsec;
}

/* By the clock that dates files there, as far as it can be asked: a server's may be another than this host's.
 */
static uint64_t store_now_ns(const char *store)
{
    char path[KEEL_PATH_BYTES];
    struct stat file;
    if (keel_remote_leader_path(store, "now", path) != KEEL_OK)
        return keel_wall_ns();
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    const bool dated = fd >= 0 && futimens(fd, NULL) == 0 && fstat(fd, &file) == 0;
    if (fd >= 0)
        close(fd);
    return dated ? written_at(&file) : keel_wall_ns();
}

/* The file's modification goes to *written_ns. */
static bool read_leader(const char *store, struct keel_remote_leader *out, uint64_t *written_ns)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    struct stat file;
    unsigned node;
    *out = (struct keel_remote_leader){.run = 0};
    if (keel_remote_leader_path(store, "leader", path) != KEEL_OK ||
        keel_file_read(path, WORDS_BYTES, &text, &bytes) != KEEL_OK)
        return false;
    const bool whole = sscanf(text, "%16" SCNx64 " %u %ld %64s %47s %55s", &out->run, &node, &out->pid,
                              out->host, out->folder, out->place) >= 5 &&
                       node <= UINT16_MAX && out->folder[0] != '.' && strchr(out->folder, '/') == NULL;
    out->node = whole ? (uint16_t)node : 0;
    keel_free(text);
    if (!whole || stat(path, &file) != 0)
        return false;
    *written_ns = written_at(&file);
    return true;
}

bool keel_remote_leader_read(const char *store, struct keel_remote_leader *out)
{
    uint64_t written_ns;
    return read_leader(store, out, &written_ns);
}

void keel_remote_leader_end(const char *store, const struct keel_remote_leader *leader)
{
    char path[KEEL_PATH_BYTES];
    struct keel_remote_leader there;
    uint64_t written_ns;
    if (read_leader(store, &there, &written_ns) && strcmp(there.folder, leader->folder) == 0 &&
        keel_remote_leader_path(store, "leader", path) == KEEL_OK)
        unlink(path);
}

bool keel_remote_leader_lives(const char *store, double timeout_s, struct keel_remote_leader *out)
{
    uint64_t written_ns;
    const uint64_t limit_ns = (uint64_t)(timeout_s * TIMEOUTS_SILENT * (double)KEEL_NS_PER_S);
    return read_leader(store, out, &written_ns) && store_now_ns(store) < written_ns + limit_ns;
}
