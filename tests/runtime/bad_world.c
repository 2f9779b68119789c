/* bad_world.c - preloaded into programs: a wall clock that jumps, and a disk that hangs or is slow.
 *
 * BAD_CLOCK_S=N: each time that somebody asks what time it is, it is another time, up to N seconds behind or
 * ahead. BAD_DISK=DIR: while DIR/../hangs is there, no file below DIR is written or synced, and while
 * DIR/../gone is, none is opened; with BAD_DISK_MS=N, each sync takes so long. BAD_UDP=FILE: while it is
 * there, no datagram is sent. */
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *out)
{
    const char *seconds = getenv("BAD_CLOCK_S");
    const long ended = syscall(SYS_clock_gettime, id, out);
    static _Atomic unsigned asked;
    if (ended == 0 && id == CLOCK_REALTIME && seconds != NULL) {
        const long most = atol(seconds), turn = (long)(++asked * 2654435761U >> 8);
        out->tv_sec += turn % (2 * most + 1) - most;
    }
    return (int)ended;
}

static void wait_for_disk(int fd, int syncs)
{
    const char *directory = getenv("BAD_DISK"), *ms = getenv("BAD_DISK_MS");
    char link[64], path[PATH_MAX], sign[PATH_MAX];
    if (directory == NULL)
        return;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t bytes = readlink(link, path, sizeof path - 1);
    if (bytes < 0 || strncmp(path, directory, strlen(directory)) != 0)
        return;
    if (syncs && ms != NULL)
        (void)usleep((useconds_t)atol(ms) * 1000);
    (void)snprintf(sign, sizeof sign, "%s/../hangs", directory);
    while (access(sign, F_OK) == 0)
        (void)usleep(20000);
}

/* As programs call it that are compiled for large files. */
int openat64(int at, const char *path, int flags, ...)
{
    const char *directory = getenv("BAD_DISK");
    char sign[PATH_MAX];
    va_list more;
    va_start(more, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    (void)snprintf(sign, sizeof sign, "%s/../gone", directory != NULL ? directory : "");
    while (directory != NULL && strncmp(path, directory, strlen(directory)) == 0 && access(sign, F_OK) == 0)
        (void)usleep(20000);
    return (int)syscall(SYS_openat, at, path, flags, mode);
}

ssize_t sendto(int fd, const void *data, size_t bytes, int flags, const struct sockaddr *to,
               socklen_t to_bytes)
{
    const char *sign = getenv("BAD_UDP");
    int type = 0;
    socklen_t type_bytes = sizeof type;
    if (sign != NULL && access(sign, F_OK) == 0 &&
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes) == 0 && type == SOCK_DGRAM)
        return (ssize_t)bytes;
    return syscall(SYS_sendto, fd, data, bytes, flags, to, to_bytes);
}

int fsync(int fd)
{
    wait_for_disk(fd, 1);
    return (int)syscall(SYS_fsync, fd);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    wait_for_disk(fd, 0);
    return syscall(SYS_pwrite64, fd, data, bytes, at);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    wait_for_disk(fd, 0);
    return syscall(SYS_write, fd, data, bytes);
}
