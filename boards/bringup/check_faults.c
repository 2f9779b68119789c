/* check_faults.c - level 7: what goes wrong with the board is noticed, named, and over when it is over.
 *
 * Faults are put in front of the driver (keel/health.h), but for the kill, which ends a process that works
 * on the board, and the reset, which is the board file's own command. After each the board must compute right
 * bits again: on a new queue where the fault was the queue's, opened anew where it was the device's. */
#include "board_file.h"
#include "check_steps.h"
#include "helper_process.h"
#include "probe.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/health.h>
#include <signal.h>

enum { HANG_MS = 1000, LATE_PERCENT = 10, RESERVE_S = 5, WORK_MS = 100, FLIPS = 12 };
enum { LONG_MS = 2000, LONG_WAIT_MS = 200 };

static uint64_t deadline_of(const struct keel_check_run *run)
{
    return run->deadline_ns - RESERVE_S * KEEL_NS_PER_S;
}

static enum keel_status golden(struct keel_check_run *run)
{
    return keel_device_fixture_golden(&run->on, 0, deadline_of(run));
}

/* The board computes right, and from now on with these faults. */
static bool inject(struct keel_check_run *run, const char *faults, const char *what)
{
    return keel_check_ok(run, golden(run), "before the fault") &&
           keel_check_ok(run, keel_device_inject(run->on.device, faults), what);
}

static void expect_status(struct keel_check_run *run, enum keel_status got, enum keel_status wanted,
                          const char *what)
{
    if (got != wanted)
        keel_check_fail(run, "%s gave %s", what, keel_status_name(got));
}

static void expect_health(struct keel_check_run *run, enum keel_health lowest)
{
    struct keel_health_report report;
    keel_device_health(run->on.device, &report);
    if (report.health < lowest || report.evidence[0] == '\0')
        keel_check_fail(run, "the device is %s after it: %s", keel_health_name(report.health),
                        report.evidence[0] != '\0' ? report.evidence : "no evidence");
    else
        keel_check_note(run, "%s: %.300s", keel_health_name(report.health), report.evidence);
}

static void expect_right_again(struct keel_check_run *run, const char *when)
{
    keel_check_progress(run, 0, 0, when);
    keel_check_ok(run, golden(run), when);
}

/* Close it, whatever state it is in, and open it again. */
static void expect_right_anew(struct keel_check_run *run, const char *when)
{
    keel_check_give_back(run);
    keel_device_fixture_close(&run->on);
    run->file = NULL; /* of the board that is closed */
    if (keel_check_ok(run, keel_device_fixture_open(run->options->board, &run->on), when))
        expect_right_again(run, when);
}

/* ---- 7.1: hang ----------------------------------------------------------------------------------------- */

static void expect_others_go_on(struct keel_check_run *run)
{
    struct keel_device_fixture host;
    if (!keel_check_ok(run, keel_device_fixture_open("host", &host), "the host device beside it"))
        return;
    keel_check_ok(run,
                  keel_device_fixture_golden(&host, 0, keel_deadline_after_ns(RESERVE_S * KEEL_NS_PER_S)),
                  "another device while this one hangs");
    keel_device_fixture_close(&host);
}

/* A hang that is put in never meets the driver; this kernel does, and ends. */
struct long_run {
    struct keel_probe probe;
    struct keel_queue *queue;
    struct keel_buffer *buffer;
    uint32_t steps; /* that take LONG_MS */
};

static enum keel_status long_launch(const struct long_run *job, struct keel_event **out_event)
{
    return keel_probe_slow(&job->probe, job->queue, job->buffer, 0, 1, job->steps, 0, NULL, out_event);
}

/* Find out how many steps take LONG_MS. False after a verdict, or where no number that is tried is long
 * enough. */
static bool long_settle(struct keel_check_run *run, struct long_run *job)
{
    for (job->steps = 1 << 16; job->steps <= UINT32_MAX / 4; job->steps *= 4) {
        uint64_t since_ns = keel_now_ns();
        if (!keel_check_ok(run, long_launch(job, NULL), "a longer and longer kernel") ||
            !keel_step_finish(run, job->queue, "a longer and longer kernel"))
            return false;
        const uint64_t took_ns = keel_now_ns() - since_ns,
                       steps = job->steps * (LONG_MS * KEEL_NS_PER_MS / (took_ns + 1) + 1);
        if (took_ns >= LONG_MS * KEEL_NS_PER_MS / 10) {
            job->steps = steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX;
            return true;
        }
    }
    keel_check_note(run, "no kernel takes long here: how the driver's own calls wait is not tried");
    return false;
}

enum { CALL_LAUNCH, CALL_FLUSH, CALL_WAIT, CALL_FINISH, CALLS };

/* What each call took beside the kernel, which runs on behind them; then the kernel's end is waited for. */
static bool time_calls(struct keel_check_run *run, const struct long_run *job, uint64_t took_ns[CALLS],
                       uint64_t *whole_ns)
{
    const uint64_t limit_ns = LONG_WAIT_MS * KEEL_NS_PER_MS;
    struct keel_event *event = NULL;
    uint64_t at_ns[CALLS + 1] = {keel_now_ns()};
    enum keel_status status = long_launch(job, &event), ended;
    if (!keel_check_ok(run, status, "a launch of a long kernel"))
        return false;
    at_ns[1] = keel_now_ns();
    status = keel_queue_flush(job->queue);
    at_ns[2] = keel_now_ns();
    ended = keel_event_wait(event, at_ns[2] + limit_ns);
    at_ns[3] = keel_now_ns();
    if (status == KEEL_OK && (ended == KEEL_OK || ended == KEEL_TIMEOUT))
        ended = keel_queue_finish(job->queue, at_ns[3] + limit_ns);
    at_ns[4] = keel_now_ns();
    if (status == KEEL_OK && ended == KEEL_TIMEOUT)
        ended = keel_queue_finish(job->queue, deadline_of(run));
    *whole_ns = keel_now_ns() - at_ns[0];
    for (int i = 0; i < CALLS; i++)
        took_ns[i] = at_ns[i + 1] - at_ns[i];
    keel_event_destroy(event);
    return keel_check_ok(run, status, "a flush behind a long kernel") &&
           keel_check_ok(run, ended, "the end of a long kernel");
}

/* A wait or a finish that is not back at its deadline breaks keel/device.h, and fails. A launch or a flush
 * that holds its caller is allowed there, for no query tells such drivers and the agent's watchdog ends what
 * hangs in them; but no deadline of a call means anything on such a board, so it is said with the figure. */
static void judge_calls(struct keel_check_run *run, const uint64_t took_ns[CALLS], uint64_t whole_ns)
{
    static const char *const names[CALLS] = {"launch", "flush", "wait", "finish"};
    for (int i = 0; i < CALLS; i++) {
        const uint64_t took_ms = took_ns[i] / KEEL_NS_PER_MS, whole_ms = whole_ns / KEEL_NS_PER_MS;
        if (took_ns[i] < whole_ns / 2)
            continue;
        if (i == CALL_WAIT || i == CALL_FINISH)
            keel_check_fail(run,
                            "a %s of %d ms came back after %" PRIu64 " ms, beside a kernel of %" PRIu64 " ms",
                            names[i], LONG_WAIT_MS, took_ms, whole_ms);
        else
            keel_check_note(
                run,
                "the driver runs kernels inside the %s: one of %" PRIu64 " ms held its caller for "
                "%" PRIu64 " ms, which no deadline ends; a kernel that never ends is found by the "
                "agent alone",
                names[i], whole_ms, took_ms);
    }
    keel_check_note(run,
                    "beside a kernel of %" PRIu64 " ms: launch %" PRIu64 ", flush %" PRIu64 ", wait %" PRIu64
                    " and finish %" PRIu64 " ms, these two asked for %d",
                    whole_ns / KEEL_NS_PER_MS, took_ns[CALL_LAUNCH] / KEEL_NS_PER_MS,
                    took_ns[CALL_FLUSH] / KEEL_NS_PER_MS, took_ns[CALL_WAIT] / KEEL_NS_PER_MS,
                    took_ns[CALL_FINISH] / KEEL_NS_PER_MS, LONG_WAIT_MS);
}

static void really_long(struct keel_check_run *run)
{
    struct long_run job;
    uint64_t took_ns[CALLS], whole_ns = 0;
    if (!keel_probe_init(&job.probe, run))
        return;
    keel_check_progress(run, 0, 0, "a kernel that really takes long");
    if (keel_check_ok(run, keel_check_new_queue(run, &job.queue), "a queue") &&
        keel_check_ok(run, keel_check_new_buffer(run, sizeof(uint32_t), &job.buffer), "a buffer") &&
        long_settle(run, &job) && time_calls(run, &job, took_ns, &whole_ns))
        judge_calls(run, took_ns, whole_ns);
}

static void check_hang(struct keel_check_run *run)
{
    const uint64_t limit_ns = HANG_MS * KEEL_NS_PER_MS;
    really_long(run);
    if (keel_check_failed(run) || !inject(run, "hang:launch=1", "a hang put in"))
        return;
    keel_check_progress(run, 0, 0, "waiting for a launch that never ends");
    uint64_t since_ns = keel_now_ns();
    expect_status(run, keel_device_fixture_golden(&run->on, 0, since_ns + limit_ns), KEEL_TIMEOUT,
                  "a launch that never ends");
    uint64_t took_ns = keel_now_ns() - since_ns;
    if (took_ns > limit_ns + limit_ns / 100 * LATE_PERCENT)
        keel_check_fail(run, "a wait of %d ms came back after %" PRIu64 " ms", HANG_MS,
                        took_ns / KEEL_NS_PER_MS);
    expect_health(run, KEEL_HEALTH_SUSPECT);
    expect_others_go_on(run);
    expect_right_anew(run, "opened anew after the hang");
}

/* ---- 7.2, 7.3: a command fails; the device is lost ----------------------------------------------------- */

static void check_error(struct keel_check_run *run)
{
    if (!inject(run, "error:launch=1", "an error put in"))
        return;
    expect_status(run, golden(run), KEEL_DEVICE_LOST, "a launch that failed");
    if (keel_queue_finish(run->on.queue, deadline_of(run)) != KEEL_DEVICE_LOST)
        keel_check_fail(run, "the queue of a launch that failed forgot it");
    expect_health(run, KEEL_HEALTH_DEGRADED);
    if (keel_check_ok(run, keel_device_fixture_renew(&run->on), "a new queue after the error"))
        expect_right_again(run, "on a new queue after the error");
}

static void check_lose(struct keel_check_run *run)
{
    struct keel_buffer *buffer = NULL;
    if (!inject(run, "lose:launch=1", "a loss put in"))
        return;
    expect_status(run, golden(run), KEEL_DEVICE_LOST, "a launch on a lost device");
    expect_health(run, KEEL_HEALTH_LOST);
    if (keel_buffer_create(run->on.device, sizeof(uint32_t), &buffer) == KEEL_OK)
        keel_check_fail(run, "a lost device still gave memory");
    keel_buffer_destroy(buffer);
    expect_right_anew(run, "opened anew after the loss");
}

/* ---- 7.4: a bit flips ---------------------------------------------------------------------------------- */

static void check_flip(struct keel_check_run *run)
{
    const uint32_t count = keel_golden_count(keel_kernels_class(run->on.kernels)),
                   apart = count > FLIPS ? count / FLIPS : 1;
    if (!keel_check_ok(run, golden(run), "before the fault"))
        return;
    for (uint32_t i = 0; i < count && !keel_check_failed(run); i += apart) {
        const char *name = keel_golden_get(keel_kernels_class(run->on.kernels), i).name;
        keel_check_progress(run, i, count, name);
        if (!keel_check_ok(run, keel_device_inject(run->on.device, "flip:read=1"), "a flip put in"))
            return;
        enum keel_status status = keel_device_fixture_golden(&run->on, i, deadline_of(run));
        if (status != KEEL_MISMATCH)
            keel_check_fail(run, "%s: a bit that flipped was not noticed (%s)", name,
                            keel_status_name(status));
    }
    if (keel_check_ok(run, keel_device_inject(run->on.device, NULL), "the end of the flips"))
        expect_right_again(run, "after the flips");
}

/* ---- 7.5: a process that works on the board is killed -------------------------------------------------- */

static void kill_worker(struct keel_check_run *run)
{
    struct keel_helper_process helper;
    struct keel_helper_word word;
    keel_check_progress(run, 0, 0, "a second process begins to work on the board");
    if (!keel_check_ok(run, keel_helper_start("golden", run->options->board, NULL, &helper),
                       "a second process"))
        return;
    bool works = keel_check_able(run, keel_helper_hear(&helper, deadline_of(run), &word), "a second process");
    if (works)
        keel_sleep_until_ns(keel_deadline_after_ns(WORK_MS * KEEL_NS_PER_MS));
    if (works && keel_process_signal(&helper.process, SIGKILL) != KEEL_OK)
        keel_check_fail(run, "the second process ended by itself");
    keel_helper_end(&helper);
}

static void check_kill(struct keel_check_run *run)
{
    kill_worker(run);
    if (keel_check_failed(run) || !keel_check_open(run, KEEL_OPENS_KERNELS))
        return;
    keel_check_progress(run, 0, 0, "all golden operations after the kill");
    keel_check_ok(run, keel_device_fixture_goldens(&run->on, deadline_of(run)), "after the kill");
}

/* ---- 7.6: the board file's reset ----------------------------------------------------------------------- */

static enum keel_status run_command(const char *command, uint64_t deadline_ns)
{
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    struct keel_process_end end = {0};
    enum keel_status status = keel_process_run(argv, NULL, 0, -1, deadline_ns, &end);
    if (status == KEEL_TIMEOUT)
        return keel_fail(status, "`%s` did not end in time", command);
    KEEL_TRY(status);
    return keel_process_succeeded(&end, command);
}

/* All golden operations in a process of its own, as whoever comes after the reset has it. */
static void expect_right_elsewhere(struct keel_check_run *run)
{
    struct keel_helper_process helper;
    struct keel_helper_word word;
    keel_check_progress(run, 0, 0, "all golden operations after the reset");
    if (!keel_check_ok(run, keel_helper_start("once", run->options->board, NULL, &helper),
                       "a second process"))
        return;
    keel_check_ok(run, keel_helper_hear(&helper, deadline_of(run), &word), "after the reset");
    keel_helper_end(&helper);
}

/* Nothing of this process holds the board while it is reset. */
static void check_reset(struct keel_check_run *run)
{
    struct keel_device_info info;
    static struct keel_board_file file; /* large */
    if (!keel_check_able(run, keel_board_look(run->options->board, 0, &file, &info), "the board"))
        return;
    if (file.reset[0] == '\0') {
        keel_check_cannot(run, "the board file has no command for it; write [recovery] reset, or waive 7.6");
        return;
    }
    keel_check_progress(run, 0, 0, file.reset);
    uint64_t limit_ns = keel_deadline_after_ns(file.reset_s * KEEL_NS_PER_S), end_ns = deadline_of(run);
    if (keel_check_ok(run, run_command(file.reset, limit_ns < end_ns ? limit_ns : end_ns), "reset"))
        expect_right_elsewhere(run);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

#define KERNELS KEEL_OPENS_KERNELS
const struct keel_check keel_checks_faults[] = {
    {"7.1", "hang", "a launch that never ends is named in time, and stops nobody else", NULL, 600, KERNELS,
     check_hang},
    {"7.2", "error", "a launch that fails ends its queue and no other", NULL, 600, KERNELS, check_error},
    {"7.3", "loss", "a device that is lost refuses all, and can be opened anew", NULL, 600, KERNELS,
     check_lose},
    {"7.4", "flip", "a bit that flips in any operation's result is noticed", NULL, 600, KERNELS, check_flip},
    {"7.5", "kill", "the board is as before when a process that used it was killed", NULL, 600,
     KEEL_OPENS_NOTHING, check_kill},
    {"7.6", "reset", "the board file's reset gives back a board that is right", NULL, 300, KEEL_OPENS_NOTHING,
     check_reset},
    {.id = NULL},
};
