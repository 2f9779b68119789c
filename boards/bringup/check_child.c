/* check_child.c - one check in its own process: what its function calls, and how it is told to the runner.
 *
 * A line of JSON for each thing said, on a pipe. The verdict comes last: a process that ends without one has
 * died. The device is closed after the verdict is told, so that a driver which hangs there hangs alone. */
#include "board_file.h"
#include "check_runner.h"
#include "device_fixture.h"
#include <keel/clock.h>
#include <keel/json.h>
#include <keel/memory.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct keel_check_run {
    const struct keel_check *check;
    const struct keel_check_options *options;
    FILE *out;
    uint64_t deadline_ns;
    struct keel_board *board;
    struct keel_kernels *kernels;
    enum keel_verdict verdict;
    char reason[KEEL_CHECK_TEXT_BYTES];
    bool told; /* which board it is */
};

const struct keel_check_options *keel_check_options(const struct keel_check_run *run)
{
    return run->options;
}

uint64_t keel_check_deadline_ns(const struct keel_check_run *run)
{
    return run->deadline_ns;
}

bool keel_check_failed(const struct keel_check_run *run)
{
    return run->verdict != KEEL_VERDICT_PASS;
}

/* ---- telling ------------------------------------------------------------------------------------------- */

static struct keel_json say(struct keel_check_run *run, const char *kind)
{
    struct keel_json json = {.out = run->out};
    keel_json_open(&json, NULL, '{');
    keel_json_text(&json, "say", kind);
    return json;
}

static void said(struct keel_check_run *run, struct keel_json *json)
{
    keel_json_close(json, '}');
    fputc('\n', run->out);
    fflush(run->out);
}

void keel_check_note(struct keel_check_run *run, const char *format, ...)
{
    char text[KEEL_CHECK_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct keel_json json = say(run, "note");
    keel_json_text(&json, "text", text);
    said(run, &json);
}

void keel_check_progress(struct keel_check_run *run, uint64_t done, uint64_t total, const char *what)
{
    struct keel_json json = say(run, "progress");
    keel_json_number(&json, "done", done);
    keel_json_number(&json, "total", total);
    keel_json_text(&json, "what", what);
    said(run, &json);
}

/* ---- judging ------------------------------------------------------------------------------------------- */

static void judge(struct keel_check_run *run, enum keel_verdict verdict, const char *format,
                  va_list arguments)
{
    if (run->verdict == verdict || run->verdict == KEEL_VERDICT_FAIL)
        return;
    run->verdict = verdict;
    vsnprintf(run->reason, sizeof run->reason, format, arguments);
}

void keel_check_fail(struct keel_check_run *run, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    judge(run, KEEL_VERDICT_FAIL, format, arguments);
    va_end(arguments);
}

void keel_check_cannot(struct keel_check_run *run, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    judge(run, KEEL_VERDICT_CANNOT, format, arguments);
    va_end(arguments);
}

bool keel_check_ok(struct keel_check_run *run, enum keel_status status, const char *what)
{
    if (status != KEEL_OK)
        keel_check_fail(run, "%s: %s", what, keel_detail());
    return status == KEEL_OK;
}

bool keel_check_able(struct keel_check_run *run, enum keel_status status, const char *what)
{
    if (status != KEEL_OK && keel_status_exit_code(status) == keel_status_exit_code(KEEL_NOT_FOUND))
        keel_check_cannot(run, "%s: %s", what, keel_detail());
    else if (status != KEEL_OK)
        keel_check_fail(run, "%s: %s", what, keel_detail());
    return status == KEEL_OK;
}

/* ---- figures ------------------------------------------------------------------------------------------- */

/* The limits of board files in the units of figures. */
static const struct {
    const char *figure;
    size_t offset;
    double scale;
} limits[] = {{"launch_us", offsetof(struct keel_board_limits, launch_ns), 1e-3},
              {"write_gbs", offsetof(struct keel_board_limits, write_bytes_s), 1e-9},
              {"read_gbs", offsetof(struct keel_board_limits, read_bytes_s), 1e-9},
              {"copy_gbs", offsetof(struct keel_board_limits, copy_bytes_s), 1e-9},
              {"gemm_gflops", offsetof(struct keel_board_limits, gemm_flops_s), 1e-9}};

static double limit_of(const struct keel_check_run *run, const char *figure)
{
    for (size_t i = 0; i < sizeof limits / sizeof limits[0] && run->board != NULL; i++)
        if (strcmp(limits[i].figure, figure) == 0) {
            const char *base = (const char *)&keel_board_file(run->board)->limits;
            uint64_t value;
            memcpy(&value, base + limits[i].offset, sizeof value);
            return (double)value * limits[i].scale;
        }
    return 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const double *samples, uint32_t count)
{
    double sorted[KEEL_CHECK_SAMPLES_MAX];
    memcpy(sorted, samples, count * sizeof sorted[0]);
    qsort(sorted, count, sizeof sorted[0], compare);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

double keel_check_figure(struct keel_check_run *run, const char *name, const char *unit,
                         enum keel_better better, const double *samples, uint32_t count)
{
    KEEL_ASSERT(count > 0);
    count = count > KEEL_CHECK_SAMPLES_MAX ? KEEL_CHECK_SAMPLES_MAX : count;
    double value = median_of(samples, count), limit = limit_of(run, name);
    bool less = better == KEEL_BETTER_LESS;
    for (uint32_t i = 0; i < count; i++)
        if (!keel_check_within(samples[i], 0, less)) {
            keel_check_fail(run, "%s is no number: what was measured, or its time, cannot be right", name);
            return samples[i];
        }
    struct keel_json json = say(run, "figure");
    keel_json_text(&json, "name", name);
    keel_json_text(&json, "unit", unit);
    keel_json_bool(&json, "less_is_better", less);
    keel_json_real(&json, "value", value, 6);
    keel_json_real(&json, "limit", limit, 6);
    keel_json_open(&json, "samples", '[');
    for (uint32_t i = 0; i < count; i++)
        keel_json_real(&json, NULL, samples[i], 6);
    keel_json_close(&json, ']');
    said(run, &json);
    if (!keel_check_within(value, limit, less))
        keel_check_fail(run, "%s is %.3f %s; the board file asks for at %s %.3f", name, value, unit,
                        less ? "most" : "least", limit);
    return value;
}

/* ---- the board ----------------------------------------------------------------------------------------- */

/* Before it is opened, which may be the last thing that this process does. */
static enum keel_status tell_board(struct keel_check_run *run)
{
    struct keel_device_info info;
    struct keel_board_file *file;
    KEEL_TRY(keel_alloc(1, sizeof *file, &file));
    enum keel_status status = keel_board_look(run->options->board, 0, file, &info);
    if (status != KEEL_OK) {
        keel_free(file);
        return status;
    }
    struct keel_json json = say(run, "board");
    keel_json_text(&json, "selector", info.selector);
    keel_json_text(&json, "name", info.name);
    keel_json_text(&json, "platform", info.platform);
    keel_json_text(&json, "version", info.version);
    keel_json_text(&json, "folder", file->folder);
    said(run, &json);
    keel_free(file);
    run->told = true;
    return KEEL_OK;
}

/* What is missing, or wrong in a file of the user's, could not be run; what the board does wrong, fails. */
static void refuse_board(struct keel_check_run *run, enum keel_status status)
{
    if (keel_status_next(status) == KEEL_NEXT_FIX && status != KEEL_CORRUPT && status != KEEL_MISMATCH)
        keel_check_cannot(run, "the board cannot be opened: %s", keel_detail());
    else
        keel_check_fail(run, "the board cannot be opened: %s", keel_detail());
}

struct keel_device *keel_check_device(struct keel_check_run *run)
{
    if (run->board == NULL) {
        const struct keel_board_options options = {.without_code = run->check->id[0] < '2'};
        keel_check_progress(run, 0, 0, "opening the board");
        enum keel_status status = tell_board(run);
        if (status == KEEL_OK)
            status = keel_board_open(run->options->board, &options, &run->board);
        if (status != KEEL_OK) {
            refuse_board(run, status);
            return NULL;
        }
    }
    return keel_board_device(run->board);
}

const struct keel_board_file *keel_check_board_file(const struct keel_check_run *run)
{
    return keel_board_file(run->board);
}

struct keel_kernels *keel_check_kernels(struct keel_check_run *run)
{
    struct keel_device *device = keel_check_device(run);
    if (device == NULL || run->kernels != NULL)
        return run->kernels;
    keel_check_progress(run, 0, 0, "building the kernels");
    enum keel_status status = keel_kernels_create_with(device, keel_board_kernels(run->board), &run->kernels);
    /* A compiler that is there and does not take right code is wrong; where there is none, code is missing.
     */
    bool compiles = (keel_device_info(device)->code_forms & KEEL_CODE_SOURCE) != 0;
    if (status == KEEL_UNSUPPORTED && compiles)
        keel_check_ok(run, status, "the kernels");
    else
        keel_check_able(run, status, "the kernels");
    return run->kernels;
}

/* What still computes, and what a check gave up that is done since, keeps its memory to the end of this
 * process. */
static void close_board(struct keel_check_run *run)
{
    if (run->board == NULL || keel_device_fixture_is_left(keel_board_device(run->board)))
        return;
    if (run->kernels != NULL)
        keel_kernels_destroy(run->kernels);
    if (run->verdict == KEEL_VERDICT_PASS || keel_device_stats(keel_board_device(run->board)).live_bytes == 0)
        keel_board_close(run->board);
}

/* Between a check's deadline and the end of the runner's patience, to tell the verdict: a tenth of the limit,
 * and where that is little, 3 s or half of it, for a machine that has much else to do. */
static uint64_t spare_ns(uint64_t limit_ns)
{
    uint64_t least_ns = 3 * KEEL_NS_PER_S < limit_ns / 2 ? 3 * KEEL_NS_PER_S : limit_ns / 2;
    return limit_ns / 10 > least_ns ? limit_ns / 10 : least_ns;
}

int keel_check_child(const char *id, const struct keel_check_options *options, int fd)
{
    struct keel_check_run run = {.check = keel_check_find(id), .options = options, .out = fdopen(fd, "w")};
    if (run.check == NULL || run.out == NULL)
        return keel_status_exit_code(KEEL_INVALID);
    uint64_t limit_s = options->timeout_s > 0 ? options->timeout_s : run.check->limit_s;
    limit_s += run.check->lasts ? options->seconds : 0;
    run.deadline_ns = keel_deadline_after_ns(limit_s * KEEL_NS_PER_S - spare_ns(limit_s * KEEL_NS_PER_S));
    run.check->run(&run);
    if (!run.told)
        (void)tell_board(&run); /* levels 6 and 8 leave the board to other processes; the report names it */
    struct keel_json json = say(&run, "verdict");
    keel_json_text(&json, "verdict", keel_verdict_name(run.verdict));
    keel_json_text(&json, "reason", run.reason);
    said(&run, &json);
    close_board(&run);
    return fclose(run.out) == 0 ? 0 : 1;
}
