/* run_tail.c - see run_tail.h. */
#include "run_tail.h"

#include <errno.h>
#include <fcntl.h>
#include <keel/memory.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 256 << 10 };

static uint64_t bytes_of(const char *path)
{
    struct stat seen;
    return stat(path, &seen) == 0 ? (uint64_t)seen.st_size : 0;
}

enum keel_status keel_run_tail_open(struct keel_run_tail *tail, const char *directory, const char *name)
{
    tail->chunk = NULL;
    KEEL_TRY(keel_path_join(tail->path, directory, name));
    tail->at = bytes_of(tail->path);
    return keel_alloc(1, CHUNK_BYTES + 1, &tail->chunk);
}

void keel_run_tail_close(struct keel_run_tail *tail)
{
    keel_free(tail->chunk);
    tail->chunk = NULL;
}

enum keel_status keel_run_tail_read(struct keel_run_tail *tail,
                                    void (*take)(void *context, const json_t *line), void *context)
{
    const uint64_t whole = bytes_of(tail->path);
    tail->at = tail->at > whole ? whole : tail->at; /* lines were withdrawn */
    if (tail->at == whole)
        return KEEL_OK;
    const int fd = open(tail->path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? pread(fd, tail->chunk, CHUNK_BYTES, (off_t)tail->at) : -1;
    const int error = errno;
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return keel_fail_errno(error, "%s: cannot be read", tail->path);
    tail->chunk[got] = '\0';
    char *line = tail->chunk;
    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_error_t why;
        *end = '\0';
        json_t *object = json_loads(line, 0, &why);
        if (json_is_object(object))
            take(context, object);
        json_decref(object);
    }
    const uint64_t used = (uint64_t)(line - tail->chunk);
    tail->at += used > 0 || got < CHUNK_BYTES ? used : (uint64_t)got; /* no line is so long */
    return KEEL_OK;
}
