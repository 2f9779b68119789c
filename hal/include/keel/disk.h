/* disk.h - all disk access goes through one table of functions, so that a test can make any call fail, write
 * partially or lose its data, reproducibly.
 *
 * The calls behave as POSIX's: -1 and errno. EINTR is retried here (a bounded number of times); close()
 * reports only errors of the data. `at` is an open directory, or AT_FDCWD. Calls block; any
 * thread.
 *
 * Two things that POSIX only hints at, and that whoever stores something must know:
 * - Nothing is on the disk before its fsync returned 0: neither the bytes and the size of a file, nor a name
 *   in a directory (made, renamed or removed), which takes an fsync of that directory.
 * - After a failed fsync the data written since the previous one may be lost, although reads still return it
 *   and a second fsync may succeed. Write it again, into a new file. */
#ifndef KEEL_DISK_H
#define KEEL_DISK_H

#include <fcntl.h>
#include <keel/api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

KEEL_API_BEGIN

struct keel_disk_ops {
    int (*open)(int at, const char *path, int flags, unsigned mode);
    int (*close)(int fd);
    ssize_t (*read)(int fd, void *data, size_t bytes);
    ssize_t (*write)(int fd, const void *data, size_t bytes);
    ssize_t (*pread)(int fd, void *data, size_t bytes, uint64_t offset);
    ssize_t (*pwrite)(int fd, const void *data, size_t bytes, uint64_t offset);
    int (*fsync)(int fd);
    int (*rename)(int from_at, const char *from, int to_at, const char *to);
    int (*unlink)(int at, const char *path, int flags); /* AT_REMOVEDIR */
    int (*mkdir)(int at, const char *path, unsigned mode);
    int (*stat)(int at, const char *path, struct stat *out,
                int flags);                   /* AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH */
    int (*room)(int fd, uint64_t *out_bytes); /* what its file system has free for this user */
    int (*get_flags)(int fd);                 /* fcntl: of the open file */
    int (*set_flags)(int fd, int flags);      /* O_DIRECT */
    /* Call `visit` for each name in the directory but . and .., in any order, until it returns other than 0,
     * which is returned. */
    int (*list)(int fd, int (*visit)(void *context, const char *name), void *context);
};

extern const struct keel_disk_ops keel_disk_posix;

/* For tests: from now on this table, NULL for POSIX. Returns the one before. Not while calls are in flight or
 * descriptors of the other table are open. */
const struct keel_disk_ops *keel_disk_use(const struct keel_disk_ops *ops);

int keel_disk_open(int at, const char *path, int flags, unsigned mode);
int keel_disk_close(int fd);
ssize_t keel_disk_read(int fd, void *data, size_t bytes);
ssize_t keel_disk_write(int fd, const void *data, size_t bytes);
ssize_t keel_disk_pread(int fd, void *data, size_t bytes, uint64_t offset);
ssize_t keel_disk_pwrite(int fd, const void *data, size_t bytes, uint64_t offset);
int keel_disk_fsync(int fd);
int keel_disk_rename(int from_at, const char *from, int to_at, const char *to);
int keel_disk_unlink(int at, const char *path, int flags);
int keel_disk_mkdir(int at, const char *path, unsigned mode);
int keel_disk_stat(int at, const char *path, struct stat *out, int flags);
int keel_disk_fstat(int fd, struct stat *out);
int keel_disk_room(int fd, uint64_t *out_bytes);
/* Past the page cache (O_DIRECT), or through it again. False: through it, which is right as well. */
bool keel_disk_set_direct(int fd, bool direct);
int keel_disk_list(int fd, int (*visit)(void *context, const char *name), void *context);

KEEL_API_END

#endif
