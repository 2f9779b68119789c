/* jsonl.c - JSON lines by Jansson, written through a buffer that outlives a full disk. */
#include "jsonl.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <keel/file.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES_MAX (UINT64_C(1) << 32)
enum { WAITING_BYTES_MAX = 64 << 20 };

struct keel_jsonl {
    char path[KEEL_PATH_BYTES];
    int fd;
    struct keel_mutex lock; /* guards all below, and writes to fd */
    char *waiting;          /* whole lines that are not written yet */
    size_t waiting_bytes, waiting_capacity;
    bool failing, lost; /* the last write failed; a line could not be kept */
};

/* Each whole line to `take`; *whole_bytes is where the last whole line ends. skipped: NULL, or counts lines
 * that are no JSON. */
static enum keel_status walk(const char *path, const char *text, size_t bytes,
                             enum keel_status (*take)(void *, const json_t *, uint64_t), void *context,
                             size_t *whole_bytes, uint64_t *skipped)
{
    uint64_t number = 0;
    size_t at = 0;
    for (const char *end; (end = memchr(text + at, '\n', bytes - at)) != NULL;
         at = (size_t)(end - text) + 1) {
        number++;
        if (take == NULL)
            continue;
        json_error_t error;
        json_t *line = json_loadb(text + at, (size_t)(end - text) - at, 0, &error);
        if (line == NULL && skipped != NULL) {
            ++*skipped;
            continue;
        }
        enum keel_status status =
            line != NULL
                ? take(context, line, number)
                : keel_fail(KEEL_CORRUPT, "%s:%" PRIu64 ": not a line of JSON (%s); move the file away", path,
                            number, error.text);
        json_decref(line);
        if (status != KEEL_OK)
            return status;
    }
    *whole_bytes = at;
    return KEEL_OK;
}

static enum keel_status walk_file(const char *path,
                                  enum keel_status (*take)(void *, const json_t *, uint64_t), void *context,
                                  size_t *whole_bytes, size_t *bytes, uint64_t *skipped)
{
    char *text;
    KEEL_TRY(keel_file_read(path, FILE_BYTES_MAX, &text, bytes));
    enum keel_status status = walk(path, text, *bytes, take, context, whole_bytes, skipped);
    keel_free(text);
    return status;
}

enum keel_status keel_jsonl_read(const char *path, enum keel_status (*take)(void *, const json_t *, uint64_t),
                                 void *context, uint64_t *out_skipped)
{
    size_t whole, bytes;
    return walk_file(path, take, context, &whole, &bytes, out_skipped);
}

static enum keel_status mend(const char *path, enum keel_status (*take)(void *, const json_t *, uint64_t),
                             void *context)
{
    size_t whole, bytes;
    KEEL_TRY(walk_file(path, take, context, &whole, &bytes, NULL));
    if (whole == bytes)
        return KEEL_OK;
    keel_log(KEEL_LOG_INFO, "%s: cut off a torn last line of %zu bytes", path, bytes - whole);
    return truncate(path, (off_t)whole) == 0 ? KEEL_OK : keel_fail_errno(errno, "%s: cannot be mended", path);
}

enum keel_status keel_jsonl_open(const char *path, enum keel_status (*take)(void *, const json_t *, uint64_t),
                                 void *context, struct keel_jsonl **out)
{
    if (keel_path_exists(path))
        KEEL_TRY(mend(path, take, context));
    struct keel_jsonl *file;
    KEEL_TRY(keel_alloc(1, sizeof *file, &file));
    snprintf(file->path, sizeof file->path, "%s", path);
    file->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file->fd < 0) {
        enum keel_status status = keel_fail_errno(errno, "%s: cannot be opened; give another --out", path);
        keel_free(file);
        return status;
    }
    keel_mutex_init(&file->lock);
    *out = file;
    return KEEL_OK;
}

/* Whole or not at all; the caller has the lock. */
static enum keel_status flush(struct keel_jsonl *file)
{
    off_t before = lseek(file->fd, 0, SEEK_END);
    for (size_t at = 0; at < file->waiting_bytes;) {
        ssize_t put = write(file->fd, file->waiting + at, file->waiting_bytes - at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            int error = put < 0 ? errno : ENOSPC;
            if (at > 0 && ftruncate(file->fd, before) != 0)
                keel_log(KEEL_LOG_ERROR, "%s: a torn line could not be cut off", file->path);
            return keel_fail_errno(error, "%s: cannot be written", file->path);
        }
        at += (size_t)put;
    }
    file->waiting_bytes = 0;
    return KEEL_OK;
}

static enum keel_status append(struct keel_jsonl *file, const char *text, size_t bytes)
{
    size_t wanted = file->waiting_bytes + bytes + 1;
    if (wanted > WAITING_BYTES_MAX)
        return keel_fail(KEEL_LIMIT, "%s: more than %d bytes wait for the disk", file->path,
                         WAITING_BYTES_MAX);
    if (wanted > file->waiting_capacity) {
        KEEL_TRY(keel_realloc(&file->waiting, file->waiting_capacity, 2 * wanted, 1));
        file->waiting_capacity = 2 * wanted;
    }
    memcpy(file->waiting + file->waiting_bytes, text, bytes);
    file->waiting[wanted - 1] = '\n';
    file->waiting_bytes = wanted;
    return KEEL_OK;
}

void keel_jsonl_write(struct keel_jsonl *file, json_t *line)
{
    if (line == NULL)
        return;
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(line);
    keel_mutex_lock(&file->lock);
    enum keel_status status = text != NULL
                                  ? append(file, text, strlen(text))
                                  : keel_fail(KEEL_NO_MEMORY, "%s: no memory for a line", file->path);
    file->lost = file->lost || status != KEEL_OK;
    if (status == KEEL_OK)
        status = flush(file);
    bool news = status != KEEL_OK && !file->failing;
    file->failing = status != KEEL_OK;
    keel_mutex_unlock(&file->lock);
    free(text); /* Jansson's own allocation */
    if (news)
        keel_log(KEEL_LOG_ERROR, "%s; what is not written is kept and tried again", keel_detail());
}

enum keel_status keel_jsonl_sync(struct keel_jsonl *file)
{
    keel_mutex_lock(&file->lock);
    enum keel_status status = flush(file);
    if (status == KEEL_OK && file->lost)
        status = keel_fail(KEEL_IO, "%s: lines were lost", file->path);
    keel_mutex_unlock(&file->lock);
    if (status == KEEL_OK && fdatasync(file->fd) != 0 && errno != EINVAL)
        status = keel_fail_errno(errno, "%s: cannot be synced", file->path);
    return status;
}

enum keel_status keel_jsonl_cut(struct keel_jsonl *file, uint64_t lines)
{
    char *text;
    size_t bytes, at = 0;
    KEEL_TRY(keel_jsonl_sync(file));
    KEEL_TRY(keel_file_read(file->path, FILE_BYTES_MAX, &text, &bytes));
    for (const char *end; lines > 0 && (end = memchr(text + at, '\n', bytes - at)) != NULL; lines--)
        at = (size_t)(end - text) + 1;
    keel_free(text);
    if (ftruncate(file->fd, (off_t)at) != 0 || (fdatasync(file->fd) != 0 && errno != EINVAL))
        return keel_fail_errno(errno, "%s: cannot be cut", file->path);
    return KEEL_OK;
}

void keel_jsonl_close(struct keel_jsonl *file)
{
    if (file == NULL)
        return;
    if (flush(file) != KEEL_OK)
        keel_log(KEEL_LOG_ERROR, "the last lines are lost: %s", keel_detail());
    close(file->fd);
    keel_mutex_fini(&file->lock);
    keel_free(file->waiting);
    keel_free(file);
}
