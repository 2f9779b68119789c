/* data_file.c - see data_file.h. */
#include "data_file.h"
#include <errno.h>
#include <keel/disk.h>
#include <keel/memory.h>

/* Errors of the file's own are told by errno; a pipe may never end. */
static enum keel_status open_file(const char *path, struct stat *out_info, int *out)
{
    int fd = keel_disk_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be opened", path);
    enum keel_status status = KEEL_OK;
    if (keel_disk_fstat(fd, out_info) != 0)
        status = keel_fail_errno(errno, "%s: cannot be looked at", path);
    else if (!S_ISREG(out_info->st_mode))
        status = keel_fail(KEEL_INVALID,
                           "%s: no regular file (every worker reads it); name files of the data", path);
    if (status == KEEL_OK)
        *out = fd;
    else
        keel_disk_close(fd);
    return status;
}

enum keel_status keel_data_file_open(const char *path, struct keel_data_file *out, int *out_fd)
{
    struct stat info = {.st_size = 0};
    *out = (struct keel_data_file){.path = NULL};
    KEEL_TRY(keel_strdup(path, &out->path));
    KEEL_TRY(open_file(path, &info, out_fd));
    out->bytes = (uint64_t)info.st_size;
    out->modified_s = info.st_mtim.tv_sec;
    out->modified_ns = info.st_mtim.tv_nsec;
    return KEEL_OK;
}

enum keel_status keel_data_file_again(const struct keel_data_file *file, int *out_fd)
{
    struct stat info = {.st_size = 0};
    KEEL_TRY(open_file(file->path, &info, out_fd));
    if ((uint64_t)info.st_size == file->bytes && info.st_mtim.tv_sec == file->modified_s &&
        info.st_mtim.tv_nsec == file->modified_ns)
        return KEEL_OK;
    keel_disk_close(*out_fd);
    return keel_fail(KEEL_MISMATCH,
                     "%s: was written to, cut or replaced while it is read (%llu bytes at first, %lld now); "
                     "put back what the run began with, then give the same command again",
                     file->path, (unsigned long long)file->bytes, (long long)info.st_size);
}

void keel_data_file_fini(struct keel_data_file *file)
{
    keel_free(file->path);
    *file = (struct keel_data_file){.path = NULL};
}
