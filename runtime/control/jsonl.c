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
#include <sys/stat.h>
#include <unistd.h>

enum {
    WAITING_BYTES_MAX = 64 << 20,
    CHUNK_BYTES = 256 << 10,
    LINE_BYTES_MAX = 64 << 20, /* a view of 32,768 ranks is a line of 0.2 MB */
    BACK_BYTES_MAX = 64 << 20  /* so far back a line is looked for */
};

struct keel_jsonl {
    char path[KEEL_PATH_BYTES];
    int fd;
    struct keel_mutex lock; /* guards all below, and writes to fd */
    char *waiting;          /* whole lines that are not written yet */
    size_t waiting_bytes, waiting_capacity;
    bool failing, lost; /* the last write failed; a line could not be kept */
};

/* A file, and no pipe that somebody made in its place, which would be waited for. *out is -1 where it fails.
 */
static enum keel_status open_file(const char *path, int flags, const char *instead, int *out)
{
    struct stat seen;
    const int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666);
    const bool there = fd >= 0 && fstat(fd, &seen) == 0;
    *out = fd;
    if (there && S_ISREG(seen.st_mode))
        return KEEL_OK;
    const enum keel_status status =
        there ? keel_fail(KEEL_INVALID, "%s: is no regular file; move it away", path)
              : keel_fail_errno(errno, "%s: cannot be opened%s", path, instead);
    if (fd >= 0)
        close(fd);
    *out = -1;
    return status;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

enum keel_status keel_jsonl_begin(struct keel_jsonl_reader *reader, const char *path, uint64_t from)
{
    *reader = (struct keel_jsonl_reader){.path = path, .end = from, .read_to = from};
    return open_file(path, O_RDONLY, "", &reader->fd);
}

void keel_jsonl_end(struct keel_jsonl_reader *reader)
{
    if (reader->fd >= 0)
        close(reader->fd);
    keel_free(reader->chunk);
    *reader = (struct keel_jsonl_reader){.fd = -1};
}

/* What is behind the chunk, after what is left of it. *more: false at the end of the file. */
static enum keel_status read_more(struct keel_jsonl_reader *reader, bool *more)
{
    const size_t left = reader->bytes - reader->at;
    if (reader->at > 0 && left > 0)
        memmove(reader->chunk, reader->chunk + reader->at, left);
    reader->at = 0;
    reader->bytes = left;
    if (left + CHUNK_BYTES > reader->capacity) {
        const size_t wider = reader->capacity > 0 ? 2 * reader->capacity : 2 * CHUNK_BYTES;
        if (wider > LINE_BYTES_MAX)
            return keel_fail(KEEL_CORRUPT, "%s: a line of more than %zu bytes; move the file away",
                             reader->path, left);
        KEEL_TRY(keel_realloc(&reader->chunk, reader->capacity, wider, 1));
        reader->capacity = wider;
    }
    const ssize_t got = pread(reader->fd, reader->chunk + left, CHUNK_BYTES, (off_t)reader->read_to);
    if (got < 0 && errno != EINTR)
        return keel_fail_errno(errno, "%s: cannot be read", reader->path);
    *more = got != 0;
    reader->bytes += got > 0 ? (size_t)got : 0;
    reader->read_to += got > 0 ? (uint64_t)got : 0;
    return KEEL_OK;
}

enum keel_status keel_jsonl_next(struct keel_jsonl_reader *reader, const char **text, size_t *bytes)
{
    bool more = true;
    size_t looked = 0;
    const char *end = NULL;
    *text = NULL;
    while (more) {
        const size_t left = reader->bytes - reader->at;
        end = left > looked ? memchr(reader->chunk + reader->at + looked, '\n', left - looked) : NULL;
        if (end != NULL)
            break;
        looked = left;
        KEEL_TRY(read_more(reader, &more));
    }
    if (end == NULL)
        return KEEL_OK;
    *text = reader->chunk + reader->at;
    *bytes = (size_t)(end - *text);
    reader->at += *bytes + 1;
    reader->end += *bytes + 1;
    reader->number++;
    return KEEL_OK;
}

static enum keel_status take_line(const struct keel_jsonl_reader *reader, const char *text, size_t bytes,
                                  enum keel_status (*take)(void *, const json_t *, uint64_t), void *context,
                                  uint64_t *skipped)
{
    json_error_t error;
    json_t *line = json_loadb(text, bytes, 0, &error);
    if (line == NULL && skipped != NULL) {
        ++*skipped;
        return KEEL_OK;
    }
    const enum keel_status status =
        line != NULL ? take(context, line, reader->number)
                     : keel_fail(KEEL_CORRUPT, "%s:%" PRIu64 ": not a line of JSON (%s); move the file away",
                                 reader->path, reader->number, error.text);
    json_decref(line);
    return status;
}

enum keel_status keel_jsonl_read(const char *path, enum keel_status (*take)(void *, const json_t *, uint64_t),
                                 void *context, uint64_t *out_skipped)
{
    struct keel_jsonl_reader reader;
    const char *text;
    size_t bytes;
    KEEL_TRY(keel_jsonl_begin(&reader, path, 0));
    enum keel_status status;
    while ((status = keel_jsonl_next(&reader, &text, &bytes)) == KEEL_OK && text != NULL &&
           (status = take_line(&reader, text, bytes, take, context, out_skipped)) == KEEL_OK)
        ;
    keel_jsonl_end(&reader);
    return status;
}

/* ---- the end of a file --------------------------------------------------------------------------------- */

/* The last of the `bytes` at `text` where `what` begins, or NULL. */
static const char *last_of(const char *text, size_t bytes, const char *what)
{
    const size_t length = strlen(what);
    for (size_t at = bytes >= length ? bytes - length + 1 : 0; at > 0; at--)
        if (text[at - 1] == what[0] && memcmp(text + at - 1, what, length) == 0)
            return text + at - 1;
    return NULL;
}

/* Of what ends at `before`, `bytes` at *out, with a zero behind; the caller frees it. */
static enum keel_status read_back(int fd, const char *path, uint64_t before, size_t bytes, char **out)
{
    KEEL_TRY(keel_alloc(1, bytes + 1, out));
    const enum keel_status status = keel_pread_all(fd, *out, bytes, before - bytes, path);
    if (status != KEEL_OK)
        keel_free(*out);
    return status;
}

/* In a text that begins where a line does if `whole`. What is torn at its end is none. */
static bool find_line_back(const char *text, size_t bytes, const char *with, bool whole, size_t *begin,
                           size_t *end)
{
    const char *last = last_of(text, bytes, "\n");
    const char *found = last != NULL ? last_of(text, (size_t)(last - text), with) : NULL;
    if (found == NULL)
        return false;
    const char *newline = last_of(text, (size_t)(found - text), "\n");
    const char *behind = memchr(found, '\n', bytes - (size_t)(found - text));
    if ((newline == NULL && !whole) || behind == NULL)
        return false;
    *begin = newline != NULL ? (size_t)(newline - text) + 1 : 0;
    *end = (size_t)(behind - text) + 1;
    return true;
}

static enum keel_status find_back(int fd, const char *path, uint64_t before, const char *with, json_t **line,
                                  struct keel_jsonl_place *place)
{
    const uint64_t most = before < BACK_BYTES_MAX ? before : BACK_BYTES_MAX;
    for (uint64_t bytes = most < CHUNK_BYTES ? most : CHUNK_BYTES; bytes > 0;) {
        char *text;
        size_t begin, end;
        json_error_t error;
        KEEL_TRY(read_back(fd, path, before, keel_size(bytes), &text));
        if (find_line_back(text, keel_size(bytes), with, bytes == before, &begin, &end)) {
            *line = json_loadb(text + begin, end - begin - 1, 0, &error);
            *place = (struct keel_jsonl_place){before - bytes + begin, before - bytes + end};
        }
        keel_free(text);
        if (*line != NULL)
            return KEEL_OK;
        if (bytes == most)
            break;
        bytes = 2 * bytes < most ? 2 * bytes : most;
    }
    return keel_fail(KEEL_NOT_FOUND, "%s: no line with %s", path, with);
}

enum keel_status keel_jsonl_find_back(const char *path, uint64_t before, const char *with, json_t **line,
                                      struct keel_jsonl_place *place)
{
    struct stat seen;
    int fd;
    *line = NULL;
    KEEL_TRY(open_file(path, O_RDONLY, "", &fd));
    if (fstat(fd, &seen) != 0) {
        const enum keel_status status = keel_fail_errno(errno, "%s: cannot be read", path);
        close(fd);
        return status;
    }
    const uint64_t size = (uint64_t)seen.st_size;
    const enum keel_status status = find_back(fd, path, before < size ? before : size, with, line, place);
    close(fd);
    return status;
}

/* Where the last whole line ends. */
static enum keel_status whole_bytes(int fd, const char *path, uint64_t size, uint64_t *out)
{
    *out = 0;
    for (uint64_t at = size; at > 0;) {
        const uint64_t bytes = at < CHUNK_BYTES ? at : CHUNK_BYTES;
        char *text;
        KEEL_TRY(read_back(fd, path, at, keel_size(bytes), &text));
        const char *newline = last_of(text, keel_size(bytes), "\n");
        const bool found = newline != NULL;
        *out = found ? at - bytes + (uint64_t)(newline - text) + 1 : 0;
        keel_free(text);
        if (found)
            break;
        at -= bytes;
    }
    return KEEL_OK;
}

static enum keel_status mend(const char *path)
{
    struct stat seen = {.st_size = 0};
    uint64_t whole = 0;
    int fd;
    KEEL_TRY(open_file(path, O_RDWR, "; give another --out", &fd));
    enum keel_status status = fstat(fd, &seen) != 0 ? keel_fail_errno(errno, "%s: cannot be read", path)
                                                    : whole_bytes(fd, path, (uint64_t)seen.st_size, &whole);
    if (status == KEEL_OK && whole < (uint64_t)seen.st_size) {
        keel_log(KEEL_LOG_INFO, "%s: cut off a torn last line of %" PRIu64 " bytes", path,
                 (uint64_t)seen.st_size - whole);
        if (ftruncate(fd, (off_t)whole) != 0)
            status = keel_fail_errno(errno, "%s: cannot be mended", path);
    }
    close(fd);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

enum keel_status keel_jsonl_open(const char *path, enum keel_status (*take)(void *, const json_t *, uint64_t),
                                 void *context, struct keel_jsonl **out)
{
    if (keel_path_exists(path)) {
        KEEL_TRY(mend(path));
        KEEL_TRY(take != NULL ? keel_jsonl_read(path, take, context, NULL) : KEEL_OK);
    }
    struct keel_jsonl *file;
    KEEL_TRY(keel_alloc(1, sizeof *file, &file));
    snprintf(file->path, sizeof file->path, "%s", path);
    const enum keel_status status =
        open_file(path, O_WRONLY | O_CREAT | O_APPEND, "; give another --out", &file->fd);
    if (status != KEEL_OK) {
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

uint64_t keel_jsonl_bytes(struct keel_jsonl *file)
{
    keel_mutex_lock(&file->lock);
    const off_t written = lseek(file->fd, 0, SEEK_END);
    const uint64_t bytes = (written > 0 ? (uint64_t)written : 0) + file->waiting_bytes;
    keel_mutex_unlock(&file->lock);
    return bytes;
}

enum keel_status keel_jsonl_cut(struct keel_jsonl *file, uint64_t bytes)
{
    KEEL_TRY(keel_jsonl_sync(file));
    if (ftruncate(file->fd, (off_t)bytes) != 0 || (fdatasync(file->fd) != 0 && errno != EINVAL))
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
