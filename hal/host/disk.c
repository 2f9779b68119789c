/* disk.c - the table of disk calls, POSIX behind it, and what every call shares: EINTR is tried again.
 * What is stored, and when it is synced, is decided above: file.c, and the rooms. */
#include <dirent.h>
#include <errno.h>
#include <keel/disk.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

enum { INTERRUPTIONS_MAX = 1000 };

/* ---- POSIX --------------------------------------------------------------------------------------------- */

static int posix_open(int at, const char *path, int flags, unsigned mode)
{
    return openat(at, path, flags, mode);
}

static ssize_t posix_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
    return pread(fd, data, bytes, (off_t)offset);
}

static ssize_t posix_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
    return pwrite(fd, data, bytes, (off_t)offset);
}

static int posix_mkdir(int at, const char *path, unsigned mode)
{
    return mkdirat(at, path, mode);
}

static int posix_get_flags(int fd)
{
    return fcntl(fd, F_GETFL);
}

static int posix_set_flags(int fd, int flags)
{
    return fcntl(fd, F_SETFL, flags);
}

static int visit_all(DIR *directory, int (*visit)(void *context, const char *name), void *context)
{
    for (;;) {
        errno = 0; /* the only way to tell an error from the end */
        const struct dirent *entry = readdir(directory);
        if (entry == NULL)
            return errno == 0 ? 0 : -1;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        int result = visit(context, entry->d_name);
        if (result != 0)
            return result;
    }
}

static int posix_list(int fd, int (*visit)(void *context, const char *name), void *context)
{
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* its own position in the directory */
    if (own < 0)
        return -1;
    DIR *directory = fdopendir(own);
    if (directory == NULL) {
        close(own);
        return -1;
    }
    int result = visit_all(directory, visit, context), error = errno;
    closedir(directory);
    errno = error;
    return result;
}

static int posix_room(int fd, uint64_t *out_bytes)
{
    struct statvfs info;
    if (fstatvfs(fd, &info) != 0)
        return -1;
    *out_bytes = (uint64_t)info.f_bavail * info.f_frsize;
    return 0;
}

const struct keel_disk_ops keel_disk_posix = {.open = posix_open,
                                              .close = close,
                                              .read = read,
                                              .write = write,
                                              .pread = posix_pread,
                                              .pwrite = posix_pwrite,
                                              .fsync = fsync,
                                              .rename = renameat,
                                              .unlink = unlinkat,
                                              .mkdir = posix_mkdir,
                                              .stat = fstatat,
                                              .room = posix_room,
                                              .get_flags = posix_get_flags,
                                              .set_flags = posix_set_flags,
                                              .list = posix_list};

/* ---- the calls ---- */

static const struct keel_disk_ops *disk = &keel_disk_posix;

const struct keel_disk_ops *keel_disk_use(const struct keel_disk_ops *ops)
{
    const struct keel_disk_ops *before = disk;
    disk = ops != NULL ? ops : &keel_disk_posix;
    return before;
}

/* Make the call until it is not interrupted; who is interrupted a thousand times learns it. */
#define UNINTERRUPTED(result, call)                                                                          \
    do {                                                                                                     \
        int tries_ = 0;                                                                                      \
        do                                                                                                   \
            (result) = (call);                                                                               \
        while ((result) < 0 && errno == EINTR && ++tries_ < INTERRUPTIONS_MAX);                              \
    } while (0)

int keel_disk_open(int at, const char *path, int flags, unsigned mode)
{
    int fd;
    UNINTERRUPTED(fd, disk->open(at, path, flags, mode));
    return fd;
}

/* Not again when interrupted: Linux has closed it by then, and the number may be somebody else's. */
int keel_disk_close(int fd)
{
    int result = disk->close(fd);
    return result < 0 && errno == EINTR ? 0 : result;
}

ssize_t keel_disk_read(int fd, void *data, size_t bytes)
{
    ssize_t got;
    UNINTERRUPTED(got, disk->read(fd, data, bytes));
    return got;
}

ssize_t keel_disk_write(int fd, const void *data, size_t bytes)
{
    ssize_t put;
    UNINTERRUPTED(put, disk->write(fd, data, bytes));
    return put;
}

ssize_t keel_disk_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
    ssize_t got;
    UNINTERRUPTED(got, disk->pread(fd, data, bytes, offset));
    return got;
}

ssize_t keel_disk_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
    ssize_t put;
    UNINTERRUPTED(put, disk->pwrite(fd, data, bytes, offset));
    return put;
}

int keel_disk_fsync(int fd)
{
    int result;
    UNINTERRUPTED(result, disk->fsync(fd));
    return result;
}

int keel_disk_rename(int from_at, const char *from, int to_at, const char *to)
{
    int result;
    UNINTERRUPTED(result, disk->rename(from_at, from, to_at, to));
    return result;
}

int keel_disk_unlink(int at, const char *path, int flags)
{
    int result;
    UNINTERRUPTED(result, disk->unlink(at, path, flags));
    return result;
}

int keel_disk_mkdir(int at, const char *path, unsigned mode)
{
    int result;
    UNINTERRUPTED(result, disk->mkdir(at, path, mode));
    return result;
}

int keel_disk_stat(int at, const char *path, struct stat *out, int flags)
{
    int result;
    UNINTERRUPTED(result, disk->stat(at, path, out, flags));
    return result;
}

int keel_disk_fstat(int fd, struct stat *out)
{
    return keel_disk_stat(fd, "", out, AT_EMPTY_PATH);
}

int keel_disk_room(int fd, uint64_t *out_bytes)
{
    int result;
    UNINTERRUPTED(result, disk->room(fd, out_bytes));
    return result;
}

bool keel_disk_set_direct(int fd, bool direct)
{
    int flags = disk->get_flags(fd);
    int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
    return flags >= 0 && disk->set_flags(fd, wanted) == 0 && direct;
}

struct listing {
    int (*visit)(void *context, const char *name);
    void *context;
    bool begun;
};

static int see(void *context, const char *name)
{
    struct listing *listing = context;
    listing->begun = true;
    return listing->visit(listing->context, name);
}

/* Again only from the beginning: no name is seen twice. */
int keel_disk_list(int fd, int (*visit)(void *context, const char *name), void *context)
{
    struct listing listing = {visit, context, false};
    int result = -1, tries = 0;
    do
        result = disk->list(fd, see, &listing);
    while (result < 0 && errno == EINTR && !listing.begun && ++tries < INTERRUPTIONS_MAX);
    return result;
}
