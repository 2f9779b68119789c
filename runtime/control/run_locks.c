/* run_locks.c - see run_locks.h. */
#include "run_locks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t patience_ns = 50 * KEEL_NS_PER_MS;
/* Who handed a lock over still has it for a moment. */
static const uint64_t claim_ns = KEEL_NS_PER_S;
enum { WORDS_BYTES = 96 };

enum keel_status keel_lock_agent_path(const char *directory, uint16_t node, char out[KEEL_PATH_BYTES])
{
    char name[32];
    snprintf(name, sizeof name, "agent-%u.lock", node);
    return keel_path_join(out, directory, name);
}

enum keel_status keel_lock_take(const char *path, bool patient, int *out_fd)
{
    return keel_file_lock(path, false, patient ? keel_deadline_after_ns(patience_ns) : 0, out_fd);
}

enum keel_status keel_lock_claim(int fd, const char *path)
{
    const uint64_t until_ns = keel_deadline_after_ns(claim_ns);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return keel_fail_errno(errno, "%s: cannot be locked", path);
        if (keel_remaining_ns(until_ns) == 0)
            return keel_fail(KEEL_BUSY, "%s: somebody else holds the lock", path);
        keel_sleep_until_ns(keel_deadline_after_ns(claim_ns / 100));
    }
    return KEEL_OK;
}

enum keel_status keel_lock_write(int fd, const struct keel_lock_words *words, const char *path)
{
    char text[WORDS_BYTES];
    int bytes = snprintf(text, sizeof text, "%ld\n", words->pid); /* as kill(1) takes it */
    if (words->run != 0)
        bytes = snprintf(text, sizeof text, "%ld %" PRIu32 " %016" PRIx64 "\n", words->pid,
                         words->incarnation, words->run);
    /* Over what was there: a disk that is full takes that, and nobody finds no line meanwhile. */
    KEEL_TRY(keel_pwrite_all(fd, text, (uint64_t)bytes, 0, path));
    return ftruncate(fd, bytes) == 0 ? KEEL_OK : keel_fail_errno(errno, "%s: cannot be written", path);
}

bool keel_lock_read(const char *path, struct keel_lock_words *out)
{
    char text[WORDS_BYTES] = "";
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : -1;
    if (fd >= 0)
        close(fd);
    *out = (struct keel_lock_words){.pid = 0};
    text[strcspn(text, "\n")] = '\0'; /* what follows is of a longer line that was there */
    return got > 0 &&
           sscanf(text, "%ld %" SCNu32 " %" SCNx64, &out->pid, &out->incarnation, &out->run) >= 1 &&
           out->pid > 0 && (long)(pid_t)out->pid == out->pid;
}

static bool is_there(int fd, const char *path)
{
    struct stat ours, named;
    return fstat(fd, &ours) != 0 ||
           (stat(path, &named) == 0 && named.st_dev == ours.st_dev && named.st_ino == ours.st_ino);
}

enum keel_status keel_lock_keep(int fd, const struct keel_lock_words *words, const char *path)
{
    int again;
    if (is_there(fd, path))
        return KEEL_OK;
    KEEL_TRY(keel_lock_take(path, true, &again));
    enum keel_status status = keel_lock_write(again, words, path);
    if (status == KEEL_OK && dup2(again, fd) < 0)
        status = keel_fail_errno(errno, "%s: cannot be kept", path);
    close(again); /* `fd` has the lock */
    return status;
}

void keel_lock_touch(int fd)
{
    (void)futimens(fd, NULL); /* where that fails, who has it counts as silent */
}

bool keel_lock_touched(const char *path, uint64_t *last_ns)
{
    struct stat file;
    const uint64_t before_ns = *last_ns;
    if (stat(path, &file) == 0)
        *last_ns = (uint64_t)file.st_mtim.tv_sec * KEEL_NS_PER_S + (uint64_t)file.st_mtim.tv_nsec;
    return *last_ns != before_ns;
}

/* Has the process this file open? A pid alone may be another's by now, or of another host. */
static bool has_open(long pid, const struct stat *file)
{
    char folder[64], path[64 + 256];
    bool has = false;
    snprintf(folder, sizeof folder, "/proc/%ld/fd", pid);
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir != NULL && !has && (entry = readdir(dir)) != NULL;) {
        struct stat its;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        has = stat(path, &its) == 0 && its.st_dev == file->st_dev && its.st_ino == file->st_ino;
    }
    if (dir != NULL)
        closedir(dir);
    return has;
}

enum keel_status keel_lock_find(const char *path, struct keel_process *out)
{
    struct stat file;
    struct keel_lock_words words;
    if (!keel_file_is_locked(path) || stat(path, &file) != 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: nobody has it", path);
    if (!keel_lock_read(path, &words))
        return keel_fail(KEEL_BUSY, "%s: does not say yet who has it; ask again", path);
    /* First a descriptor of whoever has the number, then whether that is the one: so it is no later one. */
    enum keel_status status = keel_process_find((pid_t)words.pid, out);
    if (status == KEEL_OK && has_open(words.pid, &file))
        return KEEL_OK;
    if (status == KEEL_OK)
        keel_process_close(out);
    return keel_fail(
        KEEL_UNSUPPORTED,
        "%s: process %ld has it, which cannot be reached from here; ask on its host, as its user", path,
        words.pid);
}
