/* check_faults.c - level 7: what goes wrong with the board is noticed, named, and over when it is over.
 *
 * Faults are put in front of the driver (keel/health.h), but for the kill, which ends a process that works
 * on the board, and the reset, which is the board file's own command. After each the board must compute right
 * bits again: on a new queue where the fault was the queue's, opened anew where it was the device's. */
#include "board_check.h"
#include "check_tables.h"
#include "device_fixture.h"
#include "helper_process.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/health.h>
#include <signal.h>
#include <string.h>

enum { HANG_MS = 1000, LATE_PERCENT = 10, RESERVE_S = 5, WORK_MS = 100, FLIPS = 12 };
enum { LONG_MS = 2000, LONG_WAIT_MS = 200 };

static uint64_t deadline_of(const struct keel_check_run *run)
{
    return keel_check_deadline_ns(run) - RESERVE_S * KEEL_NS_PER_S;
}

static bool open_rig(struct keel_check_run *run, struct keel_device_fixture *fixture)
{
    keel_check_progress(run, 0, 0, "opening the board");
    return keel_check_device(run) != NULL &&
           keel_check_able(run, keel_device_fixture_open(keel_check_options(run)->board, fixture),
                           "the board") &&
           keel_check_ok(run, keel_device_fixture_golden(fixture, 0, deadline_of(run)), "before the fault");
}

static void expect_health(struct keel_check_run *run, struct keel_device_fixture *fixture,
                          enum keel_health lowest)
{
    struct keel_health_report report;
    keel_device_health(fixture->device, &report);
    if (report.health < lowest || report.evidence[0] == '\0')
        keel_check_fail(run, "the device is %s after it: %s", keel_health_name(report.health),
                        report.evidence[0] != '\0' ? report.evidence : "no evidence");
    else
        keel_check_note(run, "%s: %.300s", keel_health_name(report.health), report.evidence);
}

static void expect_right_again(struct keel_check_run *run, struct keel_device_fixture *fixture,
                               const char *when)
{
    keel_check_progress(run, 0, 0, when);
    keel_check_ok(run, keel_device_fixture_golden(fixture, 0, deadline_of(run)), when);
}

/* Close it, whatever state it is in, and open it again. */
static void expect_right_anew(struct keel_check_run *run, struct keel_device_fixture *fixture,
                              const char *when)
{
    keel_device_fixture_close(fixture);
    if (keel_check_ok(run, keel_device_fixture_open(keel_check_options(run)->board, fixture), when))
        expect_right_again(run, fixture, when);
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

/* A hang that is put in never meets the driver; this kernel does, and ends: one item, a chain of products. */
static void host_long(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    uint64_t *out = arguments[0], x = out[0] | 1;
    for (uint64_t i = 0; i < *(const uint64_t *)arguments[1]; i++)
        x = x * UINT64_C(6364136223846793005) + i;
    out[0] = x;
}

static const struct keel_module_kernel long_kernels[] = {{"keel_check_long", host_long}};
static const struct keel_module long_module = {
    .name = "check_long",
    .source =
        "kernel void keel_check_long(global ulong *out, ulong rounds)\n"
        "{ ulong x = out[0] | 1; for (ulong i = 0; i < rounds; i++) x = x * 6364136223846793005UL + i;\n"
        "  out[0] = x; }\n",
    .kernels = long_kernels,
    .kernel_count = 1};

struct long_run {
    struct keel_queue *queue;
    struct keel_program *program;
    struct keel_kernel *kernel;
    struct keel_buffer *buffer;
};

static void long_end(struct long_run *job)
{
    if (job->buffer != NULL)
        keel_buffer_destroy(job->buffer);
    if (job->kernel != NULL)
        keel_kernel_destroy(job->kernel);
    keel_program_destroy(job->program);
    keel_queue_destroy(job->queue);
}

static enum keel_status long_begin(struct keel_device *device, struct long_run *job)
{
    KEEL_TRY(keel_program_create(device, &long_module, "", &job->program));
    KEEL_TRY(keel_kernel_create(job->program, "keel_check_long", &job->kernel));
    KEEL_TRY(keel_buffer_create(device, sizeof(uint64_t), &job->buffer));
    return keel_queue_create(device, &job->queue);
}

static enum keel_status long_launch(const struct long_run *job, uint64_t rounds,
                                    struct keel_event **out_event)
{
    const struct keel_arg args[] = {{.kind = KEEL_ARG_BUFFER, .as.buffer = job->buffer},
                                    {.kind = KEEL_ARG_U64, .as.u64 = rounds}};
    const struct keel_range range = {.global = {1, 1, 1}, .local = {1, 1, 1}};
    return keel_queue_launch(job->queue, job->kernel, args, 2, &range, NULL, out_event);
}

/* How many rounds take LONG_MS; 0 after a verdict, or where no number that is tried is long enough. */
static uint64_t rounds_of(struct keel_check_run *run, const struct long_run *job)
{
    for (uint64_t rounds = 1 << 16; rounds <= UINT64_C(1) << 40; rounds *= 4) {
        uint64_t since_ns = keel_now_ns();
        enum keel_status status = long_launch(job, rounds, NULL);
        if (status == KEEL_OK)
            status = keel_queue_finish(job->queue, deadline_of(run));
        if (!keel_check_ok(run, status, "a longer and longer kernel"))
            return 0;
        uint64_t took_ns = keel_now_ns() - since_ns;
        if (took_ns >= LONG_MS * KEEL_NS_PER_MS / 10)
            return rounds * (LONG_MS * KEEL_NS_PER_MS / took_ns + 1);
    }
    return 0;
}

enum { CALL_LAUNCH, CALL_FLUSH, CALL_WAIT, CALL_FINISH, CALLS };

/* What each call took beside the kernel, which runs on behind them; then the kernel's end is waited for. */
static bool time_calls(struct keel_check_run *run, const struct long_run *job, uint64_t rounds,
                       uint64_t took_ns[CALLS], uint64_t *whole_ns)
{
    const uint64_t limit_ns = LONG_WAIT_MS * KEEL_NS_PER_MS;
    struct keel_event *event = NULL;
    uint64_t at_ns[CALLS + 1] = {keel_now_ns()};
    enum keel_status status = long_launch(job, rounds, &event), ended;
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

static void really_long(struct keel_check_run *run, struct keel_device_fixture *fixture)
{
    struct long_run job = {0};
    uint64_t took_ns[CALLS], whole_ns = 0;
    keel_check_progress(run, 0, 0, "a kernel that really takes long");
    enum keel_status status = long_begin(fixture->device, &job);
    if (status == KEEL_UNSUPPORTED) {
        keel_check_note(run,
                        "no long kernel for it, since it compiles none: how the driver's own calls wait is "
                        "not tried");
    } else if (keel_check_ok(run, status, "a long kernel")) {
        uint64_t rounds = rounds_of(run, &job);
        if (rounds == 0 && !keel_check_failed(run))
            keel_check_note(run, "no kernel takes long here: how the driver's own calls wait is not tried");
        if (rounds > 0 && time_calls(run, &job, rounds, took_ns, &whole_ns))
            judge_calls(run, took_ns, whole_ns);
    }
    if (!keel_device_fixture_is_left(fixture->device))
        long_end(&job);
}

static void hang(struct keel_check_run *run, struct keel_device_fixture *fixture)
{
    const uint64_t limit_ns = HANG_MS * KEEL_NS_PER_MS;
    really_long(run, fixture);
    if (keel_check_failed(run) ||
        !keel_check_ok(run, keel_device_inject(fixture->device, "hang:launch=1"), "a hang put in"))
        return;
    keel_check_progress(run, 0, 0, "waiting for a launch that never ends");
    uint64_t since_ns = keel_now_ns();
    enum keel_status status = keel_device_fixture_golden(fixture, 0, since_ns + limit_ns);
    uint64_t took_ns = keel_now_ns() - since_ns;
    if (status != KEEL_TIMEOUT)
        keel_check_fail(run, "a launch that never ends gave %s", keel_status_name(status));
    if (took_ns > limit_ns + limit_ns / 100 * LATE_PERCENT)
        keel_check_fail(run, "a wait of %d ms came back after %" PRIu64 " ms", HANG_MS,
                        took_ns / KEEL_NS_PER_MS);
    expect_health(run, fixture, KEEL_HEALTH_SUSPECT);
    expect_others_go_on(run);
    expect_right_anew(run, fixture, "opened anew after the hang");
}

/* ---- 7.2, 7.3: a command fails; the device is lost ----------------------------------------------------- */

static void error(struct keel_check_run *run, struct keel_device_fixture *fixture)
{
    if (!keel_check_ok(run, keel_device_inject(fixture->device, "error:launch=1"), "an error put in"))
        return;
    enum keel_status status = keel_device_fixture_golden(fixture, 0, deadline_of(run));
    if (status != KEEL_DEVICE_LOST)
        keel_check_fail(run, "a launch that failed gave %s", keel_status_name(status));
    if (keel_queue_finish(fixture->queue, deadline_of(run)) != KEEL_DEVICE_LOST)
        keel_check_fail(run, "the queue of a launch that failed forgot it");
    expect_health(run, fixture, KEEL_HEALTH_DEGRADED);
    if (keel_check_ok(run, keel_device_fixture_renew(fixture), "a new queue after the error"))
        expect_right_again(run, fixture, "on a new queue after the error");
}

static void lose(struct keel_check_run *run, struct keel_device_fixture *fixture)
{
    struct keel_buffer *buffer;
    if (!keel_check_ok(run, keel_device_inject(fixture->device, "lose:launch=1"), "a loss put in"))
        return;
    enum keel_status status = keel_device_fixture_golden(fixture, 0, deadline_of(run));
    if (status != KEEL_DEVICE_LOST)
        keel_check_fail(run, "a launch on a lost device gave %s", keel_status_name(status));
    expect_health(run, fixture, KEEL_HEALTH_LOST);
    status = keel_buffer_create(fixture->device, sizeof(uint32_t), &buffer);
    if (status == KEEL_OK) {
        keel_buffer_destroy(buffer);
        keel_check_fail(run, "a lost device still gave memory");
    }
    expect_right_anew(run, fixture, "opened anew after the loss");
}

/* ---- 7.4: a bit flips ---------------------------------------------------------------------------------- */

static void flip(struct keel_check_run *run, struct keel_device_fixture *fixture)
{
    uint32_t count = keel_golden_count(), apart = count > FLIPS ? count / FLIPS : 1;
    for (uint32_t i = 0; i < count && !keel_check_failed(run); i += apart) {
        keel_check_progress(run, i, count, keel_golden_get(i).name);
        if (!keel_check_ok(run, keel_device_inject(fixture->device, "flip:read=1"), "a flip put in"))
            return;
        enum keel_status status = keel_device_fixture_golden(fixture, i, deadline_of(run));
        if (status != KEEL_MISMATCH)
            keel_check_fail(run, "%s: a bit that flipped was not noticed (%s)", keel_golden_get(i).name,
                            keel_status_name(status));
    }
    if (keel_check_ok(run, keel_device_inject(fixture->device, NULL), "the end of the flips"))
        expect_right_again(run, fixture, "after the flips");
}

/* ---- 7.5: a process that works on the board is killed -------------------------------------------------- */

static void kill_worker(struct keel_check_run *run)
{
    struct keel_helper_process member;
    struct keel_helper_word word;
    keel_check_progress(run, 0, 0, "a second process begins to work on the board");
    if (!keel_check_ok(run, keel_helper_start("golden", keel_check_options(run)->board, NULL, &member),
                       "a second process"))
        return;
    bool works = keel_check_able(run, keel_helper_hear(&member, deadline_of(run), &word), "a second process");
    if (works)
        keel_sleep_until_ns(keel_deadline_after_ns(WORK_MS * KEEL_NS_PER_MS));
    if (works && keel_process_signal(&member.process, SIGKILL) != KEEL_OK)
        keel_check_fail(run, "the second process ended by itself");
    keel_helper_end(&member);
}

static void check_kill(struct keel_check_run *run)
{
    struct keel_device_fixture fixture = {0};
    kill_worker(run);
    if (!keel_check_failed(run) && open_rig(run, &fixture)) {
        keel_check_progress(run, 0, 0, "all golden operations after the kill");
        keel_check_ok(run, keel_device_fixture_goldens(&fixture, deadline_of(run)), "after the kill");
    }
    keel_device_fixture_close(&fixture);
}

/* ---- 7.6: the board file's reset ----------------------------------------------------------------------- */

static enum keel_status run_command(const char *command, uint64_t deadline_ns)
{
    char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)command, NULL};
    struct keel_process process;
    struct keel_process_end end = {0};
    KEEL_TRY(keel_process_spawn(argv, NULL, 0, -1, &process));
    enum keel_status status = keel_process_wait(&process, deadline_ns, &end);
    if (status != KEEL_OK) {
        (void)keel_process_signal(&process, SIGKILL);
        (void)keel_process_wait(&process, keel_deadline_after_ns(KEEL_NS_PER_S), &end);
    }
    keel_process_close(&process);
    if (status == KEEL_TIMEOUT)
        return keel_fail(status, "`%s` did not end in time", command);
    KEEL_TRY(status);
    if (end.signaled || end.code != 0)
        return keel_fail(KEEL_IO, "`%s` ended with %s %d", command, end.signaled ? "signal" : "code",
                         end.code);
    return KEEL_OK;
}

/* All golden operations in a process of its own, as whoever comes after the reset has it. */
static void expect_right_elsewhere(struct keel_check_run *run)
{
    struct keel_helper_process member;
    struct keel_helper_word word;
    keel_check_progress(run, 0, 0, "all golden operations after the reset");
    if (!keel_check_ok(run, keel_helper_start("once", keel_check_options(run)->board, NULL, &member),
                       "a second process"))
        return;
    keel_check_ok(run, keel_helper_hear(&member, deadline_of(run), &word), "after the reset");
    keel_helper_end(&member);
}

/* Nothing of this process holds the board while it is reset. */
static void check_reset(struct keel_check_run *run)
{
    const struct keel_board_options options = {.without_code = true};
    struct keel_board *board;
    if (!keel_check_able(run, keel_board_open(keel_check_options(run)->board, &options, &board), "the board"))
        return;
    struct keel_board_file file = *keel_board_file(board);
    keel_board_close(board);
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

static void with_rig(struct keel_check_run *run,
                     void (*drill)(struct keel_check_run *, struct keel_device_fixture *))
{
    struct keel_device_fixture fixture = {0};
    if (open_rig(run, &fixture))
        drill(run, &fixture);
    keel_device_fixture_close(&fixture);
}

static void check_hang(struct keel_check_run *run)
{
    with_rig(run, hang);
}

static void check_error(struct keel_check_run *run)
{
    with_rig(run, error);
}

static void check_lose(struct keel_check_run *run)
{
    with_rig(run, lose);
}

static void check_flip(struct keel_check_run *run)
{
    with_rig(run, flip);
}

const struct keel_check keel_checks_faults[] = {
    {"7.1", "hang", "a launch that never ends is named in time, and stops nobody else", NULL, 600, false,
     check_hang},
    {"7.2", "error", "a launch that fails ends its queue and no other", NULL, 600, false, check_error},
    {"7.3", "loss", "a device that is lost refuses all, and can be opened anew", NULL, 600, false,
     check_lose},
    {"7.4", "flip", "a bit that flips in any operation's result is noticed", NULL, 600, false, check_flip},
    {"7.5", "kill", "the board is as before when a process that used it was killed", NULL, 600, false,
     check_kill},
    {"7.6", "reset", "the board file's reset gives back a board that is right", NULL, 300, false,
     check_reset},
    {NULL, NULL, NULL, NULL, 0, false, NULL},
};
