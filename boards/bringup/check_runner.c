/* check_runner.c - the runner's side: a process for each check, heard through a pipe, given up at its
 * deadline.
 *
 * What a child prints by itself, or its driver for it, goes to a file without a name; its end is kept with
 * the result. A child that does not die when it is killed (stuck in a driver of the kernel) is left behind.
 */
#include "check_runner.h"
#include "board_file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 8192, CLOSE_LIMIT_S = 20, KILL_LIMIT_S = 5, WORDS_MAX = 16, NUMBER_BYTES = 24 };

struct child {
    struct keel_process process;
    int pipe_fd, output_fd;
    char line[LINE_BYTES];
    uint32_t line_bytes;
    bool heard_verdict;
    bool late; /* the deadline passed before */
    char doing[KEEL_CHECK_TEXT_BYTES];
};

struct running {
    struct keel_check_report *report;
    struct keel_check_result *result;
    const struct keel_check_watcher *watcher; /* the caller's, behind ours */
    struct keel_board_file *file; /* the board's, once it is known which; its folder is "" until then */
    struct child *child;
};

static void notice(void *context, const struct keel_check *check, uint64_t done, uint64_t total,
                   const char *what)
{
    struct running *running = context;
    snprintf(running->child->doing, sizeof running->child->doing, "%s", what);
    if (running->watcher != NULL && running->watcher->progress != NULL)
        running->watcher->progress(running->watcher->context, check, done, total, what);
}

/* ---- starting ---- */

static enum keel_status spawn(const struct keel_check_options *options, const struct keel_check *check,
                              int pipe_fd, struct child *child)
{
    char seconds[NUMBER_BYTES], timeout[NUMBER_BYTES];
    snprintf(seconds, sizeof seconds, "%" PRIu64, options->seconds);
    snprintf(timeout, sizeof timeout, "%" PRIu64, options->timeout_s);
    /* This binary, also when another one has been put in its place. */
    const char *argv[WORDS_MAX] = {"/proc/self/exe", "board",     "check", options->board, "--run",
                                   check->id,        "--seconds", seconds, "--timeout",    timeout};
    uint32_t count = 10;
    if (options->quick)
        argv[count++] = "--quick";
    if (options->peer != NULL) {
        argv[count++] = "--peer";
        argv[count++] = options->peer;
    }
    if (options->numerics != KEEL_CANONICAL) {
        argv[count++] = "--numerics";
        argv[count++] = keel_class_name(options->numerics);
    }
    return keel_process_spawn((char *const *)argv, &pipe_fd, 1, child->output_fd, &child->process);
}

static enum keel_status start(const struct keel_check_options *options, const struct keel_check *check,
                              struct child *child)
{
    int ends[2];
    *child = (struct child){.pipe_fd = -1, .output_fd = -1};
    child->output_fd = memfd_create("keel-check-output", MFD_CLOEXEC);
    if (child->output_fd < 0 || pipe2(ends, O_CLOEXEC) != 0)
        return keel_fail_errno(errno, "check %s cannot be started", check->id);
    child->pipe_fd = ends[0];
    enum keel_status status = spawn(options, check, ends[1], child);
    close(ends[1]);
    return status;
}

static void finish(struct child *child)
{
    if (child->pipe_fd >= 0)
        close(child->pipe_fd);
    if (child->output_fd >= 0)
        close(child->output_fd);
    if (child->process.pid > 0)
        keel_process_close(&child->process);
}

/* ---- hearing ---- */

static void take_bytes(struct running *running, const struct keel_check_watcher *ours, const char *bytes,
                       size_t count)
{
    struct child *child = running->child;
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != '\n') {
            if (child->line_bytes < LINE_BYTES - 1)
                child->line[child->line_bytes++] = bytes[i];
            continue;
        }
        child->line[child->line_bytes] = '\0';
        child->line_bytes = 0;
        if (keel_check_hear(child->line, running->report, running->result, ours) &&
            strstr(child->line, "\"say\":\"verdict\"") == child->line + 1)
            child->heard_verdict = true;
    }
}

/* Hear until there is nothing more to hear: the verdict, the end of the process, or the deadline. */
static void hear(struct running *running, uint64_t deadline_ns)
{
    struct child *child = running->child;
    const struct keel_check_watcher ours = {.progress = notice, .context = running};
    char bytes[4096];
    while (!child->heard_verdict && keel_remaining_ns(deadline_ns) > 0) {
        struct pollfd polled[] = {{.fd = child->pipe_fd, .events = POLLIN},
                                  {.fd = child->process.pidfd, .events = POLLIN}};
        if (poll(polled, 2, keel_remaining_poll_ms(deadline_ns)) < 0 && errno != EINTR)
            return;
        ssize_t got = polled[0].revents != 0 ? read(child->pipe_fd, bytes, sizeof bytes) : 0;
        if (got > 0)
            take_bytes(running, &ours, bytes, (size_t)got);
        else if (polled[1].revents != 0 || polled[0].revents != 0)
            break;
    }
    child->late = !child->heard_verdict && keel_remaining_ns(deadline_ns) == 0;
}

/* ---- ending ---- */

static void fail(struct keel_check_result *result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void fail(struct keel_check_result *result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(result->reason, sizeof result->reason, format, arguments);
    va_end(arguments);
    result->verdict = KEEL_VERDICT_FAIL;
}

/* How it ended, where that is more than the verdict that it gave. */
static void judge_end(struct child *child, struct keel_check_result *result,
                      const struct keel_process_end *end)
{
    if (!child->heard_verdict && end->signaled)
        fail(result, "the driver's process died of signal %d (%s) at: %.300s", end->code,
             strsignal(end->code), child->doing);
    else if (!child->heard_verdict)
        fail(result, "the driver ended the process with exit code %d at: %.300s", end->code, child->doing);
    else if (result->verdict == KEEL_VERDICT_PASS && end->signaled)
        fail(result,
             "the driver's process died of signal %d (%s) after the verdict, when the board was closed or "
             "the process ended",
             end->code, strsignal(end->code));
    else if (result->verdict == KEEL_VERDICT_PASS && end->code != 0)
        fail(result,
             "the driver ended the process with exit code %d after the verdict, when the board was closed or "
             "at its end",
             end->code);
}

static void end_child(struct child *child, struct keel_check_result *result, uint64_t limit_s)
{
    struct keel_process_end end;
    uint64_t grace_s = child->late ? 0 : CLOSE_LIMIT_S; /* what dies takes its time to be dead */
    enum keel_status status =
        keel_process_wait(&child->process, keel_deadline_after_ns(grace_s * KEEL_NS_PER_S), &end);
    if (status == KEEL_OK) {
        judge_end(child, result, &end);
        return;
    }
    if (!child->heard_verdict)
        fail(result, "hangs: no answer within %" PRIu64 " s at: %.300s", limit_s, child->doing);
    else if (result->verdict == KEEL_VERDICT_PASS)
        fail(result, "hangs: the board is not closed %d s after the verdict", CLOSE_LIMIT_S);
    keel_process_signal(&child->process, SIGKILL);
    if (keel_process_wait(&child->process, keel_deadline_after_ns(KILL_LIMIT_S * KEEL_NS_PER_S), &end) !=
        KEEL_OK)
        fail(result, "hangs within the kernel at: %.300s; its process %d cannot be killed: reset the board",
             child->doing, (int)child->process.pid);
}

static void run_child(struct running *running, const struct keel_check_options *options)
{
    struct child child;
    struct keel_check_result *result = running->result;
    const struct keel_check *check = result->check;
    const uint64_t limit_s = keel_check_limit_s(check, options);
    running->child = &child;
    if (start(options, check, &child) != KEEL_OK) {
        result->verdict = KEEL_VERDICT_CANNOT;
        snprintf(result->reason, sizeof result->reason, "%s", keel_detail());
    } else {
        hear(running, keel_deadline_after_ns(limit_s * KEEL_NS_PER_S));
        end_child(&child, result, limit_s);
        keel_read_tail(child.output_fd, result->output, sizeof result->output);
    }
    finish(&child);
    running->child = NULL;
}

/* ---- all of them ---- */

/* The result that this check needs and that is neither passed nor waived; NULL: nothing is in its way. */
static const struct keel_check_result *obstacle(const struct keel_check_report *report,
                                                const struct keel_check *check)
{
    for (uint32_t i = 0; i < report->done && check->needs != NULL; i++) {
        const struct keel_check_result *result = &report->results[i];
        if (strcmp(result->check->id, check->needs) == 0 && result->verdict != KEEL_VERDICT_PASS &&
            result->verdict != KEEL_VERDICT_WAIVED)
            return result;
    }
    return NULL;
}

/* The board's file is read here too: a check that did not run, or whose board does not open, tells no waiver.
 * A board that is named by its device is known from the first check that finds it. A file that cannot be
 * read is told by the checks, which read it too. */
static void find_file(struct running *running, const char *board)
{
    char name[KEEL_PATH_BYTES], folder[KEEL_PATH_BYTES];
    uint32_t number;
    const char *told = running->report->board.folder;
    if (running->file->folder[0] != '\0')
        return;
    keel_board_name_split(told[0] != '\0' ? told : board, name, &number);
    if (strchr(name, '/') == NULL || keel_board_folder_find(name, folder) != KEEL_OK ||
        keel_board_file_read(folder, running->file) != KEEL_OK)
        *running->file = (struct keel_board_file){.waiver_count = 0};
}

static void find_waiver(const struct keel_board_file *file, struct keel_check_result *result)
{
    const struct keel_board_waiver *waiver = keel_board_waiver(file, result->check->id);
    if (waiver == NULL)
        waiver = keel_board_waiver(file, result->check->name);
    if (waiver == NULL)
        return;
    snprintf(result->waiver, sizeof result->waiver, "%s", waiver->reason);
    memcpy(result->waiver_until, waiver->until, sizeof result->waiver_until);
}

static void run_one(struct running *running, const struct keel_check_options *options, const char *today)
{
    struct keel_check_result *result = running->result;
    const struct keel_check_result *before = obstacle(running->report, result->check);
    uint64_t begun_ns = keel_now_ns();
    if (before != NULL) {
        result->verdict = KEEL_VERDICT_CANNOT;
        snprintf(result->reason, sizeof result->reason, "needs %s %s, which is: %s", before->check->id,
                 before->check->name, keel_verdict_name(before->verdict));
    } else {
        run_child(running, options);
    }
    KEEL_ASSERT(result->verdict < KEEL_VERDICT_WAIVED); /* no check waives itself */
    find_file(running, options->board);
    find_waiver(running->file, result);
    keel_check_waive(result, today);
    KEEL_ASSERT((result->verdict == KEEL_VERDICT_PASS) == (result->beneath == KEEL_VERDICT_PASS));
    KEEL_ASSERT(result->verdict != KEEL_VERDICT_WAIVED || result->waiver[0] != '\0');
    KEEL_ASSERT(running->report->done < running->report->count);
    result->seconds = (double)(keel_now_ns() - begun_ns) / 1e9;
    running->report->verdicts[result->verdict]++;
    running->report->done++;
}

enum keel_status keel_check_run_all(const struct keel_check_options *options,
                                    const bool selected[KEEL_CHECKS_MAX],
                                    const struct keel_check_watcher *watcher, struct keel_check_report *out)
{
    struct keel_check_report report = {.options = *options, .started_wall_ns = keel_wall_ns()};
    uint64_t begun_ns = keel_now_ns();
    uint32_t count = keel_check_count();
    char today[KEEL_WALL_TEXT_BYTES];
    keel_wall_text(report.started_wall_ns, today);
    today[KEEL_DAY_BYTES - 1] = '\0';
    for (uint32_t i = 0; i < count; i++)
        report.count += selected[i];
    static struct keel_board_file file; /* large; one run at a time */
    memset(&file, 0, sizeof file);
    KEEL_TRY(keel_alloc(report.count, sizeof *report.results, &report.results));
    for (uint32_t i = 0; i < count; i++) {
        if (!selected[i])
            continue;
        struct running running = {
            .report = &report, .result = &report.results[report.done], .watcher = watcher, .file = &file};
        running.result->check = keel_check_at(i);
        if (watcher->begins != NULL)
            watcher->begins(watcher->context, running.result->check);
        run_one(&running, options, today);
        if (watcher->ended != NULL)
            watcher->ended(watcher->context, running.result);
    }
    uint32_t verdicts = 0;
    for (int verdict = 0; verdict < KEEL_VERDICT_COUNT; verdict++)
        verdicts += report.verdicts[verdict];
    KEEL_ASSERT(report.done == report.count && verdicts == report.count); /* each check has one verdict */
    report.seconds = (double)(keel_now_ns() - begun_ns) / 1e9;
    *out = report;
    return KEEL_OK;
}

void keel_check_report_fini(struct keel_check_report *report)
{
    keel_free(report->results);
    report->results = NULL;
}
