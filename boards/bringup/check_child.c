/* check_child.c - one check in its own process: what its function calls, and how it is told to the runner.
 *
 * A line of JSON for each thing said, on a pipe. The verdict comes last: a process that ends without one has
 * died. The device is closed after the verdict is told, so that a driver which hangs there hangs alone. */
#include "board_file.h"
#include "check_runner.h"
#include "check_steps.h"
#include <keel/clock.h>
#include <keel/json.h>
#include <keel/memory.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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
    KEEL_ASSERT(verdict == KEEL_VERDICT_FAIL || verdict == KEEL_VERDICT_CANNOT);
    if (run->verdict == verdict || run->verdict == KEEL_VERDICT_FAIL)
        return;
    run->verdict = verdict;
    vsnprintf(run->reason, sizeof run->reason, format, arguments);
    KEEL_ASSERT(run->reason[0] != '\0'); /* a verdict that is no pass says why */
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
    for (size_t i = 0; i < sizeof limits / sizeof limits[0] && run->file != NULL; i++)
        if (strcmp(limits[i].figure, figure) == 0) {
            const char *base = (const char *)&run->file->limits;
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
    const bool less = better == KEEL_BETTER_LESS;
    struct keel_check_figure figure = {.better = better,
                                       .limit = limit_of(run, name),
                                       .sample_count =
                                           count > KEEL_CHECK_SAMPLES_MAX ? KEEL_CHECK_SAMPLES_MAX : count};
    for (uint32_t i = 0; i < figure.sample_count; i++)
        if (!keel_check_within(samples[i], 0, less)) {
            keel_check_fail(run, "%s is no number: what was measured, or its time, cannot be right", name);
            return samples[i];
        }
    memcpy(figure.samples, samples, figure.sample_count * sizeof samples[0]);
    figure.value = median_of(samples, figure.sample_count);
    snprintf(figure.name, sizeof figure.name, "%s", name);
    snprintf(figure.unit, sizeof figure.unit, "%s", unit);
    struct keel_json json = say(run, "figure");
    keel_check_tell_figure(&json, &figure);
    said(run, &json);
    if (!keel_check_within(figure.value, figure.limit, less))
        keel_check_fail(run, "%s is %.3f %s; the board file asks for at %s %.3f", name, figure.value, unit,
                        less ? "most" : "least", figure.limit);
    return figure.value;
}

/* ---- the board ----------------------------------------------------------------------------------------- */

/* Before it is opened, which may be the last thing that this process does. */
static enum keel_status tell_board(struct keel_check_run *run)
{
    struct keel_device_info info;
    static struct keel_board_file file; /* large */
    KEEL_TRY(keel_board_look(run->options->board, 0, &file, &info));
    struct keel_json json = say(run, "board");
    keel_json_text(&json, "selector", info.selector);
    keel_json_text(&json, "name", info.name);
    keel_json_text(&json, "platform", info.platform);
    keel_json_text(&json, "version", info.version);
    keel_json_text(&json, "folder", file.folder);
    said(run, &json);
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

static bool open_device(struct keel_check_run *run)
{
    const struct keel_board_options options = {.without_code = run->check->id[0] < '2',
                                               .numerics = run->options->numerics};
    keel_check_progress(run, 0, 0, "opening the board");
    enum keel_status status = tell_board(run);
    if (status == KEEL_OK)
        status = keel_board_open(run->options->board, &options, &run->on.board);
    if (status != KEEL_OK) {
        refuse_board(run, status);
        return false;
    }
    run->on.device = keel_board_device(run->on.board);
    run->on.info = keel_device_info(run->on.device);
    run->file = keel_board_file(run->on.board);
    return true;
}

static bool build_kernels(struct keel_check_run *run)
{
    keel_check_progress(run, 0, 0, "building the kernels");
    enum keel_status status =
        keel_kernels_create_with(run->on.device, keel_board_kernels(run->on.board), &run->on.kernels);
    /* A compiler that is there and does not take right code is wrong; where there is none, code is missing.
     */
    bool compiles = (run->on.info->code_forms & KEEL_CODE_SOURCE) != 0;
    return (status == KEEL_UNSUPPORTED && compiles ? keel_check_ok : keel_check_able)(run, status,
                                                                                      "the kernels");
}

static bool make_buffers(struct keel_check_run *run)
{
    if (!keel_check_ok(run, keel_check_new_memory(run, KEEL_CHECK_BYTES, &run->wanted), "host memory") ||
        !keel_check_ok(run, keel_check_new_memory(run, KEEL_CHECK_BYTES, &run->got), "host memory") ||
        !keel_check_ok(run, keel_check_new_buffer(run, KEEL_CHECK_BYTES, &run->buffer),
                       "a buffer of 1 MiB") ||
        !keel_check_ok(run, keel_check_new_buffer(run, KEEL_CHECK_BYTES, &run->other),
                       "a second buffer of 1 MiB"))
        return false;
    for (uint32_t i = 0; i < KEEL_CHECK_BYTES; i++)
        run->wanted[i] = (uint8_t)keel_check_mix(i);
    return true;
}

bool keel_check_open(struct keel_check_run *run, enum keel_check_opens opens)
{
    struct keel_device_fixture *on = &run->on;
    if (opens >= KEEL_OPENS_DEVICE && on->board == NULL && !open_device(run))
        return false;
    if (opens == KEEL_OPENS_KERNELS && on->kernels == NULL && !build_kernels(run))
        return false;
    if (opens >= KEEL_OPENS_QUEUE && on->queue == NULL &&
        !keel_check_ok(run, keel_queue_create(on->device, &on->queue), "a queue"))
        return false;
    return opens != KEEL_OPENS_BUFFERS || run->buffer != NULL || make_buffers(run);
}

/* Not when the device may still run commands, nor when a failed check left buffers: those stay until the
 * process ends. */
static void close_board(struct keel_check_run *run)
{
    if (run->on.board == NULL || keel_device_fixture_is_left(run->on.device))
        return;
    keel_kernels_destroy(run->on.kernels);
    if (run->verdict == KEEL_VERDICT_PASS || keel_device_stats(run->on.device).live_bytes == 0)
        keel_board_close(run->on.board);
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
    static struct keel_check_run run; /* what it leaves at its end is still reached */
    run = (struct keel_check_run){.check = keel_check_find(id), .options = options, .out = fdopen(fd, "w")};
    if (run.check == NULL || run.out == NULL)
        return keel_status_exit_code(KEEL_INVALID);
    uint64_t limit_ns = keel_check_limit_s(run.check, options) * KEEL_NS_PER_S;
    KEEL_ASSERT(spare_ns(limit_ns) < limit_ns);
    run.deadline_ns = keel_deadline_after_ns(limit_ns - spare_ns(limit_ns));
    if (keel_check_open(&run, run.check->opens)) {
        keel_check_progress(&run, 0, 0, "calls into the driver");
        run.check->run(&run);
    }
    if (!keel_check_failed(&run)) {
        keel_check_progress(&run, 0, 0, "destroying queue and buffers");
        keel_check_give_back(&run);
    }
    if (!run.told)
        (void)tell_board(&run); /* levels 6 and 8 leave the board to other processes; the report names it */
    KEEL_ASSERT((run.verdict == KEEL_VERDICT_PASS) == (run.reason[0] == '\0'));
    struct keel_json json = say(&run, "verdict");
    keel_json_text(&json, "verdict", keel_verdict_name(run.verdict));
    keel_json_text(&json, "reason", run.reason);
    said(&run, &json);
    keel_check_give_back(&run);
    close_board(&run);
    return fclose(run.out) == 0 ? 0 : 1;
}
