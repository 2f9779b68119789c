/* file.c - files and directories, durable where file.h says so. */
#include <errno.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES_MAX = 1 << 20, LOCK_POLL_NS = 20 * 1000 * 1000 };

enum keel_status keel_path_join(char out[KEEL_PATH_BYTES], const char *directory, const char *name)
{
    char joined[KEEL_PATH_BYTES];
    const char *separator = directory[0] != '\0' ? "/" : "";
    int length = snprintf(joined, sizeof joined, "%s%s%s", directory, separator, name);
    if (length < 0 || length >= KEEL_PATH_BYTES)
        return keel_fail(KEEL_LIMIT, "%s/%s: path longer than %d bytes", directory, name, KEEL_PATH_BYTES);
    memcpy(out, joined, (size_t)length + 1);
    return KEEL_OK;
}

enum keel_status keel_path_parent(char out[KEEL_PATH_BYTES], const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL || slash == path ? 1 : (size_t)(slash - path);
    if (length >= KEEL_PATH_BYTES)
        return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES);
    memcpy(out, slash == NULL ? "." : path, length);
    out[length] = '\0';
    return KEEL_OK;
}

bool keel_path_exists(const char *path)
{
    struct stat info;
    return keel_disk_stat(AT_FDCWD, path, &info, 0) == 0;
}

bool keel_path_is_file(const char *path)
{
    struct stat info;
    return keel_disk_stat(AT_FDCWD, path, &info, 0) == 0 && S_ISREG(info.st_mode);
}

static enum keel_status make_one(const char *path)
{
    if (keel_disk_mkdir(AT_FDCWD, path, 0777) == 0)
        return KEEL_OK;
    int error = errno;
    struct stat info;
    if (keel_disk_stat(AT_FDCWD, path, &info, 0) == 0) {
        if (S_ISDIR(info.st_mode))
            return KEEL_OK;
        error = ENOTDIR;
    } else if (error == EEXIST) {
        error = errno; /* a link that leads nowhere */
    }
    return keel_fail_errno(error, "%s: cannot make the directory", path);
}

enum keel_status keel_mkdir_all(const char *path)
{
    char prefix[KEEL_PATH_BYTES];
    size_t length = strlen(path);
    if (length == 0)
        return keel_fail(KEEL_INVALID, "cannot make a directory without a name");
    if (length >= sizeof prefix)
        return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES);
    memcpy(prefix, path, length + 1);
    for (char *slash = strchr(prefix + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        KEEL_TRY(make_one(prefix));
        *slash = '/';
    }
    return make_one(path);
}

/* Read to the end into *data, which has room for `capacity` bytes; grows up to max_bytes and two more:
 * one tells that there is too much, one is for the NUL. The caller frees *data in any case. */
static enum keel_status read_to_end(int fd, const char *path, size_t max_bytes, char **data, size_t capacity,
                                    size_t *out_bytes)
{
    size_t used = 0;
    for (;;) {
        if (used > max_bytes)
            return keel_fail(KEEL_LIMIT, "%s: more than the limit of %zu bytes", path, max_bytes);
        if (used == capacity - 1) { /* it grew while we read, or it has no size (pipe, /proc) */
            size_t larger = capacity < max_bytes / 2 ? capacity * 2 : max_bytes + 2;
            KEEL_TRY(keel_realloc(data, capacity, larger, 1));
            capacity = larger;
        }
        ssize_t got = keel_disk_read(fd, *data + used, capacity - 1 - used);
        if (got < 0)
            return keel_fail_errno(errno, "%s: cannot be read", path);
        if (got == 0)
            break;
        used += (size_t)got;
    }
    (*data)[used] = '\0';
    *out_bytes = used;
    return KEEL_OK;
}

static enum keel_status read_open_file(int fd, const char *path, size_t max_bytes, char **out,
                                       size_t *out_bytes)
{
    struct stat info;
    if (keel_disk_fstat(fd, &info) != 0)
        return keel_fail_errno(errno, "%s: cannot be read", path);
    if (S_ISDIR(info.st_mode))
        return keel_fail(KEEL_INVALID, "%s: is a directory, a file was expected", path);
    if ((uint64_t)info.st_size > max_bytes)
        return keel_fail(KEEL_LIMIT, "%s: %lld bytes, more than the limit of %zu", path,
                         (long long)info.st_size, max_bytes);
    size_t capacity = (size_t)info.st_size + 2;
    char *data = NULL;
    KEEL_TRY(keel_alloc(1, capacity, &data));
    enum keel_status status = read_to_end(fd, path, max_bytes, &data, capacity, out_bytes);
    if (status == KEEL_OK)
        *out = data;
    else
        keel_free(data);
    return status;
}

enum keel_status keel_file_read(const char *path, uint64_t max_bytes, char **out, size_t *out_bytes)
{
    const size_t most = max_bytes < SIZE_MAX - 2 ? (size_t)max_bytes : SIZE_MAX - 2;
    int fd = keel_disk_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be opened", path);
    enum keel_status status = read_open_file(fd, path, most, out, out_bytes);
    keel_disk_close(fd);
    return status;
}

enum keel_status keel_pread_all(int fd, void *data, uint64_t bytes, uint64_t offset, const char *path)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t got = keel_disk_pread(fd, at, keel_size(bytes), offset);
        if (got < 0)
            return keel_fail_errno(errno, "%s: cannot be read at byte %llu", path,
                                   (unsigned long long)offset);
        if (got == 0)
            return keel_fail(KEEL_CORRUPT, "%s: ends at byte %llu, %llu more were expected", path,
                             (unsigned long long)offset, (unsigned long long)bytes);
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return KEEL_OK;
}

enum keel_status keel_pwrite_all(int fd, const void *data, uint64_t bytes, uint64_t offset, const char *path)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t put = keel_disk_pwrite(fd, at, keel_size(bytes), offset);
        if (put <= 0)
            return keel_fail_errno(put < 0 ? errno : ENOSPC, "%s: cannot be written at byte %llu", path,
                                   (unsigned long long)offset);
        at += put;
        offset += (uint64_t)put;
        bytes -= (size_t)put;
    }
    return KEEL_OK;
}

void keel_read_tail(int fd, char *out, size_t room)
{
    const off_t end = lseek(fd, 0, SEEK_END);
    const uint64_t all = end > 0 ? (uint64_t)end : 0, bytes = all < room ? all : room - 1;
    const bool read = keel_pread_all(fd, out, bytes, all - bytes, "the end of a file") == KEEL_OK;
    out[read ? bytes : 0] = '\0';
}

enum keel_status keel_sync_path(const char *path)
{
    int fd = keel_disk_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be opened to be synced", path);
    int error = keel_disk_fsync(fd) == 0 ? 0 : errno;
    keel_disk_close(fd);
    return error == 0 ? KEEL_OK : keel_fail_errno(error, "%s: cannot be synced", path);
}

static enum keel_status sync_parent(const char *path)
{
    char parent[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_parent(parent, path));
    return keel_sync_path(parent);
}

enum keel_status keel_file_replace(const char *path, const void *data, uint64_t bytes, unsigned mode)
{
    char temporary[KEEL_PATH_BYTES];
    static atomic_uint serial; /* threads of one process may replace the same file */
    int length = snprintf(temporary, sizeof temporary, "%s.%ld.%u.tmp", path, (long)getpid(),
                          atomic_fetch_add(&serial, 1));
    if (length < 0 || length >= (int)sizeof temporary)
        return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES);
    keel_disk_unlink(AT_FDCWD, temporary, 0); /* left by an earlier process of the same number */
    int fd = keel_disk_open(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0 && errno == ENOENT)
        return keel_fail(KEEL_NOT_FOUND, "%s: its directory is not there: make it first", path);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be created", temporary);
    enum keel_status status = keel_pwrite_all(fd, data, bytes, 0, temporary);
    if (status == KEEL_OK && keel_disk_fsync(fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", temporary);
    if (keel_disk_close(fd) != 0 && status == KEEL_OK)
        status = keel_fail_errno(errno, "%s: cannot be closed", temporary);
    if (status == KEEL_OK && keel_disk_rename(AT_FDCWD, temporary, AT_FDCWD, path) != 0)
        status = keel_fail_errno(errno, "%s: cannot be replaced", path);
    if (status != KEEL_OK) {
        keel_disk_unlink(AT_FDCWD, temporary, 0);
        return status;
    }
    return sync_parent(path);
}

static enum keel_status write_all(int fd, const char *path, const char *at, size_t bytes)
{
    while (bytes > 0) {
        ssize_t put = keel_disk_write(fd, at, bytes);
        if (put <= 0)
            return keel_fail_errno(put < 0 ? errno : ENOSPC, "%s: cannot be appended to", path);
        at += put;
        bytes -= (size_t)put;
    }
    return KEEL_OK;
}

enum keel_status keel_file_append(const char *path, const void *data, uint64_t bytes, bool durable)
{
    int fd = keel_disk_open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be opened to append", path);
    struct stat before;
    bool is_new =
        keel_disk_fstat(fd, &before) == 0 && before.st_size == 0; /* its name may not be on the disk yet */
    enum keel_status status = write_all(fd, path, data, keel_size(bytes));
    if (status == KEEL_OK && durable && keel_disk_fsync(fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", path);
    if (keel_disk_close(fd) != 0 && status == KEEL_OK)
        status = keel_fail_errno(errno, "%s: cannot be closed", path);
    if (status == KEEL_OK && durable && is_new)
        status = sync_parent(path);
    return status;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        keel_free(names[i]);
    keel_free(names);
}

struct names {
    const char *path; /* borrowed, for messages */
    char **names;     /* owned */
    size_t count, capacity;
    enum keel_status status;
};

static enum keel_status take_name(struct names *names, const char *name)
{
    if (names->count == NAMES_MAX)
        return keel_fail(KEEL_LIMIT, "%s: more than %d entries", names->path, NAMES_MAX);
    KEEL_TRY(keel_grow(&names->names, &names->capacity, names->count + 1, sizeof *names->names));
    KEEL_TRY(keel_strdup(name, &names->names[names->count]));
    names->count++;
    return KEEL_OK;
}

static int see_name(void *context, const char *name)
{
    struct names *names = context;
    names->status = take_name(names, name);
    return names->status == KEEL_OK ? 0 : 1;
}

static enum keel_status collect_names(struct names *names)
{
    int fd = keel_disk_open(AT_FDCWD, names->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be listed", names->path);
    if (keel_disk_list(fd, see_name, names) < 0)
        names->status = keel_fail_errno(errno, "%s: cannot be listed", names->path);
    keel_disk_close(fd);
    return names->status;
}

enum keel_status keel_dir_list(const char *path, enum keel_status (*visit)(void *context, const char *name),
                               void *context)
{
    struct names names = {.path = path};
    enum keel_status status = collect_names(&names);
    if (status == KEEL_OK && names.count > 0)
        qsort(names.names, names.count, sizeof *names.names, compare_names);
    for (size_t i = 0; i < names.count && status == KEEL_OK; i++)
        status = visit(context, names.names[i]);
    free_names(names.names, names.count);
    return status;
}

static enum keel_status remove_child(void *context, const char *name)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, context, name));
    return keel_remove_tree(path);
}

enum keel_status keel_remove_tree(const char *path)
{
    struct stat info;
    if (keel_disk_stat(AT_FDCWD, path, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? KEEL_OK : keel_fail_errno(errno, "%s: cannot be removed", path);
    if (S_ISDIR(info.st_mode)) {
        char copy[KEEL_PATH_BYTES];
        int length = snprintf(copy, sizeof copy, "%s", path);
        if (length < 0 || length >= (int)sizeof copy) /* a path cut short would name something else */
            return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES);
        KEEL_TRY(keel_dir_list(path, remove_child, copy));
        if (keel_disk_unlink(AT_FDCWD, path, AT_REMOVEDIR) != 0 && errno != ENOENT)
            return keel_fail_errno(errno, "%s: cannot be removed", path);
        return KEEL_OK;
    }
    if (keel_disk_unlink(AT_FDCWD, path, 0) != 0 && errno != ENOENT)
        return keel_fail_errno(errno, "%s: cannot be removed", path);
    return KEEL_OK;
}

enum keel_status keel_file_lock(const char *path, bool shared, uint64_t deadline_ns, int *out_fd)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be opened to be locked", path);
    /* flock(2) has no deadline; who holds such a lock holds it for seconds, so asking seldom is enough. */
    while (flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
        int error = errno;
        if (error != EWOULDBLOCK && error != EINTR) {
            close(fd);
            return keel_fail_errno(error, "%s: cannot be locked", path);
        }
        if (keel_remaining_ns(deadline_ns) == 0) {
            close(fd);
            return keel_fail(KEEL_BUSY, "%s: somebody else holds the lock", path);
        }
        keel_sleep_until_ns(keel_deadline_after_ns(LOCK_POLL_NS));
    }
    *out_fd = fd;
    return KEEL_OK;
}

void keel_file_unlock(int fd)
{
    close(fd);
}

bool keel_file_is_locked(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return locked;
}

/* ---- shared with who looks on ---- */

enum keel_status keel_dir_private(const char *path)
{
    struct stat info;
    if (keel_disk_mkdir(AT_FDCWD, path, 0700) != 0 && errno != EEXIST)
        return keel_fail_errno(errno, "%s: cannot make the directory", path);
    if (keel_disk_stat(AT_FDCWD, path, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return keel_fail_errno(errno, "%s: cannot be looked at", path);
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return keel_fail(KEEL_DENIED, "%s: not a directory of ours alone; remove it or choose another", path);
    return KEEL_OK;
}

enum keel_status keel_file_map_new(const char *path, uint64_t bytes, void **out)
{
    if (bytes > PTRDIFF_MAX)
        return keel_fail(KEEL_LIMIT, "%s: %llu bytes are more than can be mapped", path,
                         (unsigned long long)bytes);
    int fd = keel_disk_open(AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be made", path);
    int error = posix_fallocate(fd, 0, (off_t)bytes); /* else a full disk would kill whoever writes there */
    void *mapped = MAP_FAILED;
    if (error == 0) {
        mapped = mmap(NULL, keel_size(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = errno;
    }
    keel_disk_close(fd);
    if (mapped == MAP_FAILED) {
        keel_disk_unlink(AT_FDCWD, path, 0);
        return keel_fail_errno(error, "%s: cannot be mapped", path);
    }
    *out = mapped;
    return KEEL_OK;
}

enum keel_status keel_file_map(const char *path, void **out, uint64_t *out_bytes)
{
    struct stat facts;
    const int fd = keel_disk_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be read", path);
    enum keel_status status = KEEL_OK;
    void *mapped = MAP_FAILED;
    if (keel_disk_fstat(fd, &facts) != 0)
        status = keel_fail_errno(errno, "%s: cannot be looked at", path);
    else if (!S_ISREG(facts.st_mode) || facts.st_size == 0)
        status = keel_fail(KEEL_INVALID, "%s: is no regular file, or empty", path);
    else if ((uint64_t)facts.st_size > PTRDIFF_MAX)
        status = keel_fail(KEEL_LIMIT, "%s: is larger than can be mapped", path);
    else if ((mapped = mmap(NULL, keel_size((uint64_t)facts.st_size), PROT_READ, MAP_PRIVATE, fd, 0)) ==
             MAP_FAILED)
        status = keel_fail_errno(errno, "%s: cannot be mapped", path);
    keel_disk_close(fd);
    KEEL_TRY(status);
    *out = mapped;
    *out_bytes = (uint64_t)facts.st_size;
    return KEEL_OK;
}

void keel_file_unmap(void *mapped, uint64_t bytes)
{
    if (mapped != NULL)
        munmap(mapped, keel_size(bytes));
}
