/* data_clicks.c - samples of recommendation from a log of clicks (click_log.h), read a line at a time.
 *
 * All of a file is read once when it is opened: every line is parsed, so that what is wrong is told by its
 * number before the first step, and where each begins is kept, 8 bytes a sample. Later a sample is one read
 * of its line. data.val_path is validated with, or else the last lines of data.path, as data.val_fraction
 * says. */
#include "click_log.h"
#include "data_file.h"
#include "data_reader.h"
#include <keel/disk.h>
#include <keel/memory.h>
#include <string.h>
#include <xxhash.h>

enum { CHUNK_BYTES = 1 << 20, TRAIN = 0, VAL = 1, LOGS };

struct log {
    struct keel_data_file file;
    uint64_t *starts; /* owned: byte at which each line of a sample begins */
    size_t count, capacity;
    uint64_t first_line; /* number of the first of them */
};
struct clicks {
    struct keel_click_log_format format;
    uint32_t rows[KEEL_JOB_TABLES_MAX];
    struct log logs[LOGS];
    uint64_t val_first; /* of logs[TRAIN], where there is no other to validate with */
    float *dense;       /* owned, as ids: of the line that is looked at when files are opened */
    int32_t *ids;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

/* A pass over a file: what was read of it and is not looked at yet. */
struct pass {
    const struct clicks *clicks;
    struct log *log;
    char *buffer; /* owned: KEEL_CLICK_LINE_BYTES, CHUNK_BYTES */
    size_t held;
    uint64_t at, line; /* byte of the file at which `buffer` begins; lines so far */
    XXH3_state_t *digest;
};

static enum keel_status see_line(struct pass *pass, const char *text, size_t bytes, uint64_t start)
{
    const struct keel_click_log_line line = {pass->log->file.path, ++pass->line};
    const struct clicks *clicks = pass->clicks;
    float label;
    static const char mark[] = {'\xef', '\xbb',
                                '\xbf'}; /* of UTF-8: spreadsheets write it before the first line */
    if (pass->line == 1 && bytes >= sizeof mark && memcmp(text, mark, sizeof mark) == 0) {
        text += sizeof mark;
        bytes -= sizeof mark;
        start += sizeof mark;
    }
    if (bytes > 0 && text[bytes - 1] == '\r')
        bytes--;
    if (pass->line == 1 && keel_click_log_is_head(&clicks->format, text, bytes))
        return KEEL_OK;
    KEEL_TRY(keel_click_log_parse(&clicks->format, text, bytes, &line, &label, clicks->dense, clicks->ids));
    struct log *log = pass->log;
    KEEL_TRY(keel_grow(&log->starts, &log->capacity, log->count + 1, sizeof *log->starts));
    log->first_line = log->count == 0 ? pass->line : log->first_line;
    log->starts[log->count++] = start;
    return KEEL_OK;
}

/* The whole lines of what is held; the last one, which nothing ends, too, where nothing follows. */
static enum keel_status see_lines(struct pass *pass, bool last)
{
    size_t begin = 0;
    while (begin < pass->held) {
        const char *end = memchr(pass->buffer + begin, '\n', pass->held - begin);
        const size_t stop = end != NULL ? (size_t)(end - pass->buffer) : pass->held;
        if (stop - begin >= KEEL_CLICK_LINE_BYTES)
            return keel_fail(KEEL_INVALID, "%s:%llu: is longer than %d bytes: no log of clicks, or damaged",
                             pass->log->file.path, (unsigned long long)pass->line + 1, KEEL_CLICK_LINE_BYTES);
        if (end == NULL && !last)
            break;
        KEEL_TRY(see_line(pass, pass->buffer + begin, stop - begin, pass->at + begin));
        begin = stop + (end != NULL ? 1 : 0);
    }
    memmove(pass->buffer, pass->buffer + begin, pass->held - begin);
    pass->held -= begin;
    pass->at += begin;
    return KEEL_OK;
}

static enum keel_status see_file(struct pass *pass, int fd)
{
    const struct keel_data_file *file = &pass->log->file;
    for (uint64_t done = 0, now; done < file->bytes; done += now) {
        now = file->bytes - done < CHUNK_BYTES ? file->bytes - done : CHUNK_BYTES;
        char *to = pass->buffer + pass->held;
        KEEL_TRY(keel_pread_all(fd, to, now, done, file->path));
        XXH3_64bits_update(pass->digest, to, (size_t)now);
        pass->held += (size_t)now;
        KEEL_TRY(see_lines(pass, done + now == file->bytes));
    }
    return pass->log->count > 0 ? KEEL_OK
                                : keel_fail(KEEL_INVALID, "%s: has no line of a sample", file->path);
}

static enum keel_status open_log(struct keel_data *data, const struct clicks *clicks, const char *path,
                                 struct log *log)
{
    struct pass pass = {.clicks = clicks, .log = log};
    int fd = -1;
    KEEL_TRY(keel_data_file_open(path, &log->file, &fd));
    enum keel_status status = keel_alloc(KEEL_CLICK_LINE_BYTES + CHUNK_BYTES, 1, &pass.buffer);
    pass.digest = XXH3_createState();
    if (status == KEEL_OK && pass.digest == NULL)
        status = keel_fail(KEEL_NO_MEMORY, "no memory to look at %s", path);
    if (status == KEEL_OK) {
        XXH3_64bits_reset_withSeed(pass.digest, data->digest);
        status = see_file(&pass, fd);
    }
    if (status == KEEL_OK)
        data->digest = XXH3_64bits_digest(pass.digest);
    XXH3_freeState(pass.digest);
    keel_free(pass.buffer);
    keel_disk_close(fd);
    return status;
}

/* The logs, and how many lines are of what. */
static enum keel_status open_logs(struct keel_data *data, struct clicks *clicks, const struct keel_job *job)
{
    const bool other = data->use != NULL && data->use->val_path != NULL;
    const char *val_path = other ? data->use->val_path : job->val_path;
    struct log *train = &clicks->logs[TRAIN], *val = &clicks->logs[VAL];
    data->whole = !other;
    if (!other)
        KEEL_TRY(open_log(data, clicks, job->path, train));
    if (val_path[0] != '\0')
        KEEL_TRY(open_log(data, clicks, val_path, val));
    const uint64_t kept =
        val_path[0] != '\0' ? 0 : (uint64_t)((double)train->count * (double)job->val_fraction);
    clicks->val_first = train->count - kept;
    data->train_count = clicks->val_first;
    data->val_count = val_path[0] != '\0' ? val->count : kept;
    return other || data->train_count > 0
               ? KEEL_OK
               : keel_fail(KEEL_INVALID, "%s: data.val_fraction = %g leaves nothing to train on", job->path,
                           (double)job->val_fraction);
}

static enum keel_status open_clicks(struct keel_data *data, const struct keel_job *job)
{
    struct clicks *clicks;
    KEEL_TRY(keel_alloc(1, sizeof *clicks, &clicks));
    data->own = clicks;
    clicks->format = (struct keel_click_log_format){.csv = job->format == KEEL_DATA_CSV,
                                                    .dense = job->dense,
                                                    .tables = job->tables,
                                                    .rows = clicks->rows,
                                                    .bag = job->bag,
                                                    .real_labels = job->click_loss == KEEL_CLICK_MSE};
    keel_job_tables(job, clicks->rows);
    KEEL_TRY(keel_click_check_rows(job));
    KEEL_TRY(keel_alloc(job->dense, sizeof(float), &clicks->dense));
    KEEL_TRY(keel_alloc((size_t)job->tables * job->bag, sizeof(int32_t), &clicks->ids));
    KEEL_TRY(open_logs(data, clicks, job));
    keel_click_declare(data, job);
    return KEEL_OK;
}

static void close_clicks(struct keel_data *data)
{
    struct clicks *clicks = data->own;
    for (int l = 0; clicks != NULL && l < LOGS; l++) {
        keel_data_file_fini(&clicks->logs[l].file);
        keel_free(clicks->logs[l].starts);
    }
    if (clicks != NULL) {
        keel_free(clicks->dense);
        keel_free(clicks->ids);
    }
    keel_free(clicks);
}

/* ---- samples ------------------------------------------------------------------------------------------- */

/* Line `index` of a log, without its end. */
static enum keel_status read_line(const struct log *log, uint64_t index, char *text, size_t *out_bytes)
{
    const uint64_t start = log->starts[index],
                   end = index + 1 < log->count ? log->starts[index + 1] : log->file.bytes;
    size_t bytes = (size_t)(end - start);
    int fd = -1;
    KEEL_ASSERT(bytes <= KEEL_CLICK_LINE_BYTES);
    KEEL_TRY(keel_data_file_again(&log->file, &fd));
    const enum keel_status status = keel_pread_all(fd, text, bytes, start, log->file.path);
    keel_disk_close(fd);
    bytes -= bytes > 0 && text[bytes - 1] == '\n'; /* as see_line and see_lines take it off */
    bytes -= bytes > 0 && text[bytes - 1] == '\r';
    *out_bytes = bytes;
    return status;
}

static enum keel_status fill_clicks(const struct keel_data *data, const struct keel_sample *sample,
                                    uint32_t slot, void *const *inputs)
{
    const struct clicks *clicks = data->own;
    const struct keel_click_log_format *format = &clicks->format;
    const bool other = sample->validation && clicks->logs[VAL].count > 0;
    const struct log *log = &clicks->logs[other ? VAL : TRAIN];
    const uint64_t index = sample->item + (sample->validation && !other ? clicks->val_first : 0);
    const struct keel_click_log_line line = {log->file.path, log->first_line + index};
    float *dense = (float *)inputs[0] + (size_t)slot * format->dense;
    const size_t of_sample = (size_t)format->tables * format->bag;
    int32_t *ids = (int32_t *)inputs[1] + slot * of_sample;
    char *text;
    size_t bytes = 0;
    KEEL_TRY(keel_alloc(KEEL_CLICK_LINE_BYTES, 1, &text));
    enum keel_status status = read_line(log, index, text, &bytes);
    if (status == KEEL_OK)
        status = keel_click_log_parse(format, text, bytes, &line, &((float *)inputs[2])[slot], dense, ids);
    keel_free(text);
    return status;
}

const struct keel_reader keel_click_reader = {.open = open_clicks,
                                              .close = close_clicks,
                                              .fill = fill_clicks,
                                              .is_right = keel_click_is_right,
                                              .class_of = keel_click_class_of};
