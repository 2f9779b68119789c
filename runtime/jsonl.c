/* jsonl.c - JSON lines by Jansson. */
#include "jsonl.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/file.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((size_t)1 << 32)

/* Each whole line to `take`; *whole_bytes is where the last whole line ends. */
static enum keel_status walk(const char *path, const char *text, size_t bytes,
                             enum keel_status (*take)(void *, const json_t *, uint64_t), void *context,
                             size_t *whole_bytes)
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
                                  size_t *whole_bytes, size_t *bytes)
{
    char *text;
    KEEL_TRY(keel_file_read(path, FILE_BYTES_MAX, &text, bytes));
    enum keel_status status = walk(path, text, *bytes, take, context, whole_bytes);
    keel_free(text);
    return status;
}

enum keel_status keel_jsonl_read(const char *path, enum keel_status (*take)(void *, const json_t *, uint64_t),
                                 void *context)
{
    size_t whole, bytes;
    return walk_file(path, take, context, &whole, &bytes);
}

static enum keel_status mend(const char *path, enum keel_status (*take)(void *, const json_t *, uint64_t),
                             void *context)
{
    size_t whole, bytes;
    KEEL_TRY(walk_file(path, take, context, &whole, &bytes));
    if (whole == bytes)
        return KEEL_OK;
    keel_log(KEEL_LOG_INFO, "%s: cut off a torn last line of %zu bytes", path, bytes - whole);
    return truncate(path, (off_t)whole) == 0 ? KEEL_OK : keel_fail_errno(errno, "%s: cannot be mended", path);
}

enum keel_status keel_jsonl_open(const char *path, enum keel_status (*take)(void *, const json_t *, uint64_t),
                                 void *context, FILE **out)
{
    if (keel_path_exists(path))
        KEEL_TRY(mend(path, take, context));
    FILE *file = fopen(path, "ae");
    if (file == NULL)
        return keel_fail_errno(errno, "%s: cannot be opened; give another --out", path);
    *out = file;
    return KEEL_OK;
}

void keel_jsonl_write(FILE *file, json_t *line)
{
    if (line == NULL)
        return;
    if (json_dumpf(line, file, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0 || fputc('\n', file) == EOF ||
        fflush(file) != 0)
        keel_log(KEEL_LOG_ERROR, "a line of metrics or events could not be written: %s", strerror(errno));
    json_decref(line);
}
