/* launch_test.c - real processes: a run goes on, ends, or is refused, whatever is done to its processes.
 *
 * This program is also the launcher, the agents and the workers of its runs: it starts itself again as
 * `run`, which calls keel_launch and writes what is reported to DIR/report; keel_launch starts it as
 * `agent`, and that as `worker` (fake_worker.h), and as `lead` in the place of a launcher that ended. Runs
 * are children of the test, which ends only those. */
#include "launcher.h"

#include "agent.h"
#include "any_plan.h"
#include "dial.h"
#include "fake_worker.h"
#include "harness.h"
#include "launch_report.h"
#include "run_gates.h"
#include "run_locks.h"
#include "seal.h"
#include "succession.h"
#include <arpa/inet.h>
#include <inttypes.h>
#include <keel/memory.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* ---- the process that launches ------------------------------------------------------------------------ */

/* Make keel_file_replace of DIR/NAME fail in this process, for root too: its temporary names are taken. */
static void make_unwritable(const char *run_directory, const char *name)
{
    for (int serial = 0; serial < 16; serial++) {
        char path[KEEL_PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s.%ld.%d.tmp/taken", run_directory, name, (long)getpid(), serial);
        if (keel_mkdir_all(path) != KEEL_OK)
            exit(92);
    }
}

/* What both have; ends with what keel_launch says. */
static int launch(struct keel_launch_config *config, const char *run_directory)
{
    char job_path[KEEL_PATH_BYTES], report_path[KEEL_PATH_BYTES];
    static struct keel_job job;
    static const char identity[KEEL_IDENTITY_BYTES] = "test";
    if (keel_path_join(job_path, run_directory, "job.conf") != KEEL_OK ||
        keel_path_join(report_path, run_directory, "report") != KEEL_OK ||
        keel_job_load(job_path, NULL, 0, &job) != KEEL_OK)
        return 90;
    static uint64_t plans[KEEL_MEMBERS_MAX + 1];
    uint64_t past_epoch;
    enum keel_status status =
        config->take_over == NULL
            ? keel_launch_lock(run_directory, &config->locks)
            : keel_launch_read_state(run_directory, job.ranks, &config->first_step, &past_epoch, plans);
    config->plans = config->take_over == NULL ? any_plan() : plans;
    report_file = fopen(report_path, "ae");
    if (report_file == NULL)
        return 91;
    setvbuf(report_file, NULL, _IOLBF, 0);
    config->job = &job;
    config->job_path = job_path;
    config->directory = run_directory;
    config->identity = identity;
    config->report = reports;
    status = status == KEEL_OK ? keel_launch(config) : status;
    fprintf(report_file, "end %s %s\n", keel_status_name(status), status == KEEL_OK ? "" : keel_detail());
    fclose(report_file);
    return keel_status_exit_code(status);
}

/* run DIR [--resume STEP | --drill SPEC | --unwritable NAME] */
static int run_main(int argc, char **argv)
{
    const char *run_directory = argv[2], *option = argc > 4 ? argv[3] : "";
    const char *resume = strcmp(option, "--resume") == 0 ? argv[4] : NULL;
    const char *const drill[] = {"--drill", argc > 4 ? argv[4] : NULL};
    if (strcmp(option, "--unwritable") == 0)
        make_unwritable(run_directory, argv[4]);
    struct keel_launch_config config = {.passed_on = drill,
                                        .passed_on_count = strcmp(option, "--drill") == 0 ? 2 : 0,
                                        .resume = resume,
                                        .first_step = resume != NULL ? (uint64_t)atoi(resume) + 1 : 1};
    return launch(&config, run_directory);
}

/* lead DIR --run HEX --incarnation I --heard NS [--ended STATUS --detail TEXT], of a run without drills */
static int lead_main(int argc, char **argv)
{
    struct keel_take_over over = {.run = strtoull(argv[4], NULL, 16),
                                  .incarnation = (uint32_t)atoi(argv[6]),
                                  .socket = KEEL_LEAD_SOCKET_FD,
                                  .ended = argc > 9 && strcmp(argv[9], "--ended") == 0,
                                  .detail = argc > 12 ? argv[12] : ""};
    over.status = over.ended && strcmp(argv[10], "OK") != 0 ? KEEL_INTERRUPTED : KEEL_OK;
    const char *reads_ms = getenv("LEAD_READS_MS"); /* so long it reads before it begins */
    const uint64_t until_ns =
        keel_now_ns() + (reads_ms != NULL ? (uint64_t)atoi(reads_ms) : 0) * KEEL_NS_PER_MS;
    for (; keel_remaining_ns(until_ns) > 0; keel_sleep_until_ns(keel_deadline_after_ns(20 * KEEL_NS_PER_MS)))
        keel_lock_touch(KEEL_LEAD_LEADER_FD);
    struct keel_launch_config config = {
        .locks = {.run_fd = KEEL_LEAD_RUN_FD, .leader_fd = KEEL_LEAD_LEADER_FD}, .take_over = &over};
    return launch(&config, argv[2]);
}

/* ---- a run under test ---------------------------------------------------------------------------------- */

static char directory[] = "/tmp/keel-launch-XXXXXX";
static struct fake_shared *shared;
static struct keel_process launcher;
static char *report; /* the newest read of DIR/report */

static uint64_t soon(void)
{
    return keel_deadline_after_ns(30 * KEEL_NS_PER_S);
}

static void make_directory(void)
{
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void remove_directory(void)
{
    keel_free(report);
    ck_ok(keel_remove_tree(directory));
}

/* `cluster`: lines of that section, and sections behind it; what it says itself is not said before. */
static void write_job(const char *steps, const char *cluster)
{
    const char *snapshot = strstr(cluster, "[snapshot]") == NULL ? "[snapshot]\nevery = 0\n" : "";
    const char *timeout = strstr(cluster, "timeout_s") == NULL ? "timeout_s = 1\n" : "";
    char path[KEEL_PATH_BYTES], text[512];
    ck_ok(keel_path_join(path, directory, "job.conf"));
    int length = snprintf(text, sizeof text,
                          "[job]\nname = launch-test\nshards = 8\n[train]\nsteps = %s\n%s[cluster]\n%s%s",
                          steps, snapshot, timeout, cluster);
    ck_ok(keel_file_replace(path, text, (size_t)length, 0600));
}

/* Its workers go no further than that step before they are told to; 0: than the last. */
static void start_run_to(uint64_t step, const char *option, const char *value)
{
    char self[KEEL_PATH_BYTES];
    ck_ok(keel_self_path(self, sizeof self));
    char *argv[] = {self, "run", directory, (char *)option, (char *)value, NULL};
    shared = fake_map(directory, 1);
    ck_assert_ptr_nonnull(shared);
    atomic_store(&shared->last_step, step);
    ck_ok(keel_process_spawn(argv, NULL, 0, -1, &launcher));
}

static void start_run(const char *option, const char *value)
{
    start_run_to(0, option, value);
}

static const char *read_report(void)
{
    char path[KEEL_PATH_BYTES];
    size_t bytes;
    ck_ok(keel_path_join(path, directory, "report"));
    keel_free(report);
    report = NULL;
    if (keel_file_read(path, 1 << 24, &report, &bytes) != KEEL_OK)
        return "";
    return report;
}

/* The end of the report, as much as a failure's message takes. */
static const char *report_tail(void)
{
    const char *text = read_report();
    size_t length = strlen(text);
    return length > 1500 ? text + length - 1500 : text;
}

/* Wait until the report holds a text. */
static void await(const char *text)
{
    uint64_t deadline_ns = soon();
    while (strstr(read_report(), text) == NULL) {
        ck_assert_msg(keel_remaining_ns(deadline_ns) > 0, "no \"%s\" in:\n%s", text, report_tail());
        keel_sleep_until_ns(keel_deadline_after_ns(5 * KEEL_NS_PER_MS));
    }
}

/* Wait until the run has ended, and how. */
static struct keel_process_end await_end(void)
{
    struct keel_process_end end = {0};
    ck_ok(keel_process_wait(&launcher, soon(), &end));
    keel_process_close(&launcher);
    read_report();
    return end;
}

static void expect_exit(int code)
{
    struct keel_process_end end = await_end();
    ck_assert_msg(!end.signaled && end.code == code, "ended by %s %d, wanted code %d:\n%s",
                  end.signaled ? "signal" : "code", end.code, code, report_tail());
}

/* Steps first .. last were reported once each, ascending, with their bits, and nothing disagreed; where the
 * leader `moved`, maybe again. */
static void expect_steps_of(uint64_t first, uint64_t last, bool moved)
{
    uint64_t next = first;
    for (const char *at = read_report(); (at = strstr(at, "step ")) != NULL; at++) {
        if (at != report && at[-1] != '\n')
            continue;
        uint64_t step, digest;
        ck_assert_int_eq(sscanf(at, "step %" SCNu64 " %" SCNx64, &step, &digest), 2);
        ck_assert_uint_eq(digest, fake_record(step).digest);
        if (moved && step < next)
            continue;
        ck_assert_uint_eq(step, next);
        next++;
    }
    ck_assert_msg(next == last + 1, "steps end at %" PRIu64 ":\n%s", next - 1, report_tail());
    ck_assert_ptr_null(strstr(report, "mismatch"));
}

static void expect_steps(uint64_t first, uint64_t last)
{
    expect_steps_of(first, last, false);
}

/* Signal a process that the run under test told of: never a group, never anybody else. */
static void hit(int pid, int signal_number)
{
    ck_assert_int_gt(pid, 1);
    ck_assert_int_eq(kill(pid, signal_number), 0);
}

/* Is it there, and not just waiting for its parent (init, for an orphan) to take note of its end? */
static bool alive(int pid)
{
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    int fields = fscanf(file, "%*d (%*[^)]) %c", &state);
    fclose(file);
    return fields == 1 && state != 'Z' && state != 'X';
}

/* All agents and workers that the run ever told of go within the deadline. */
static void expect_all_gone(void)
{
    uint64_t deadline_ns = soon();
    for (int node = 1; node < KEEL_NODES_MAX; node++)
        for (int i = -1; i < KEEL_WORKERS_PER_NODE; i++) {
            int pid = i < 0 ? shared->agent_pid[node] : shared->worker_pid[node][i];
            while (pid != 0 && alive(pid)) {
                ck_assert_msg(keel_remaining_ns(deadline_ns) > 0, "process %d of node %d is left", pid, node);
                keel_sleep_until_ns(keel_deadline_after_ns(5 * KEEL_NS_PER_MS));
            }
        }
}

static void expect(const char *text)
{
    ck_assert_msg(strstr(read_report(), text) != NULL, "no \"%s\" in:\n%s", text, report_tail());
}

static void expect_not(const char *text)
{
    ck_assert_msg(strstr(read_report(), text) == NULL, "\"%s\" in:\n%s", text, report_tail());
}

/* ---- claims -------------------------------------------------------------------------------------------- */

START_TEST(a_run_of_four_nodes_commits_every_step_once)
{
    write_job("60", "ranks = 4\n");
    start_run("--drill", "note:node=2");
    expect_exit(0);
    expect_steps(1, 60);
    expect_all_gone();
    expect("after 0 active 4 spare 0 cause start");
    expect("note 2.0 {\"event\":\"hello\"}");
    expect("end OK");
    expect_not("agent-exit");
    expect_not("stranger");
}
END_TEST

START_TEST(nodes_may_carry_several_workers)
{
    write_job("40", "ranks = 6\nnodes = 2\n");
    start_run(NULL, NULL);
    expect_exit(0);
    expect_steps(1, 40);
    expect_all_gone();
    ck_assert_int_ne(shared->worker_pid[2][2], 0);
    ck_assert_int_eq(shared->worker_pid[1][3], 0);
    ck_assert_int_eq(shared->agent_pid[3], 0);
}
END_TEST

START_TEST(survivors_share_the_shards_of_a_killed_worker)
{
    write_job("120", "ranks = 4\nrespawn = false\n");
    start_run_to(40, NULL, NULL);
    await("step 30 ");
    hit(shared->worker_pid[3][0], SIGKILL);
    fake_go_on(shared);
    expect_exit(0);
    expect_steps(1, 120);
    expect_all_gone();
    expect("active 3 spare 0 cause process-exit evidence 1");
}
END_TEST

START_TEST(a_spare_takes_the_place_of_a_killed_worker)
{
    write_job("120", "ranks = 3\nspares = 1\nrespawn = false\n");
    start_run_to(40, NULL, NULL);
    await("spare 1");
    await("step 30 ");
    hit(shared->worker_pid[1][0], SIGKILL);
    fake_go_on(shared);
    expect_exit(0);
    expect_steps(1, 120);
    expect("active 3 spare 0 cause process-exit");
    expect_all_gone();
}
END_TEST

START_TEST(a_killed_agent_takes_its_workers_along_comes_back_and_joins)
{
    write_job("100000", "ranks = 4\n");
    start_run(NULL, NULL);
    await("step 30 ");
    int agent = shared->agent_pid[2], worker = shared->worker_pid[2][0];
    hit(agent, SIGKILL);
    await("agent-exit 2.1 signal 9");
    await("cause join");
    ck_assert_int_ne(shared->agent_pid[2], agent);
    ck_assert(!alive(worker));
    hit(launcher.pid, SIGINT);
    expect_exit(5);
    expect_all_gone();
    expect("active 3 spare 0 cause process-exit");
    expect("end INTERRUPTED");
}
END_TEST

START_TEST(a_killed_agent_stays_away_when_the_job_says_so)
{
    write_job("120", "ranks = 4\nrespawn = false\n");
    start_run_to(40, NULL, NULL);
    await("step 30 ");
    hit(shared->agent_pid[4], SIGKILL);
    fake_go_on(shared);
    expect_exit(0);
    expect_steps(1, 120);
    expect_all_gone();
    expect("agent-exit 4.1 signal 9");
    expect_not("cause join");
}
END_TEST

/* Who leads, as the directory says. */
static int leader(void)
{
    char path[KEEL_PATH_BYTES];
    struct keel_lock_words words;
    ck_ok(keel_path_join(path, directory, "leader.lock"));
    ck_assert(keel_lock_read(path, &words));
    return (int)words.pid;
}

/* Wait for a view of all four ranks behind that epoch. */
static uint64_t await_whole_view(uint64_t epoch)
{
    const uint64_t deadline_ns = soon();
    for (;;) {
        for (const char *at = read_report(); (at = strstr(at, "view ")) != NULL; at++) {
            uint64_t its;
            int active;
            if (sscanf(at, "view %" SCNu64 " after %*u active %d", &its, &active) == 2 && its > epoch &&
                active == 4)
                return its;
        }
        ck_assert_msg(keel_remaining_ns(deadline_ns) > 0, "no view behind %" PRIu64 ":\n%s", epoch,
                      report_tail());
        keel_sleep_until_ns(keel_deadline_after_ns(5 * KEEL_NS_PER_MS));
    }
}

/* The run goes on without the process that began it: stop it, and see that all steps came. */
static void stop_orphaned_run(void)
{
    hit(leader(), SIGINT);
    await("end INTERRUPTED");
    expect_all_gone();
    uint64_t last = 0;
    for (const char *at = read_report(); (at = strstr(at, "\nstep ")) != NULL; at++)
        ck_assert_int_eq(sscanf(at, "\nstep %" SCNu64, &last), 1);
    expect_steps_of(1, last, true);
}

START_TEST(a_killed_launcher_is_replaced_time_and_again_and_no_worker_is_started_anew)
{
    write_job("100000", "ranks = 4\n");
    /* An agent keeps the records of 256 steps: fewer than come while a leader is silent, and another begins.
     */
    ck_assert_int_eq(setenv("FAKE_PACE_MS", "30", 1), 0);
    start_run(NULL, NULL);
    await("step 10 ");
    int workers[5], agent = shared->agent_pid[3];
    for (int node = 1; node <= 4; node++)
        workers[node] = shared->worker_pid[node][0];
    hit(launcher.pid, SIGKILL);
    ck_assert(await_end().signaled);
    await("view 2 after 1 active 4 ");
    hit(agent, SIGKILL); /* who leads dies with an agent that it did not start */
    hit(leader(), SIGKILL);
    const uint64_t epoch = await_whole_view(2);
    hit(leader(), SIGSTOP);
    await_whole_view(epoch);
    for (int node = 1; node <= 4; node++)
        ck_assert_int_eq(shared->worker_pid[node][0] == workers[node], node != 3);
    stop_orphaned_run();
}
END_TEST

START_TEST(a_launcher_that_is_killed_before_the_first_view_is_replaced)
{
    write_job("100000", "ranks = 2\n");
    start_run(NULL, NULL);
    uint64_t deadline_ns = soon();
    while (shared->agent_pid[1] == 0 && keel_remaining_ns(deadline_ns) > 0)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    hit(launcher.pid, SIGKILL);
    ck_assert(await_end().signaled);
    await("step 10 ");
    stop_orphaned_run();
}
END_TEST

START_TEST(who_reads_for_long_before_it_leads_is_waited_for)
{
    struct keel_lock_words words;
    char path[KEEL_PATH_BYTES];
    write_job("100000", "ranks = 2\n");
    ck_assert_int_eq(setenv("FAKE_PACE_MS", "60", 1), 0); /* agents keep 256 records */
    ck_assert_int_eq(setenv("LEAD_READS_MS", "6000", 1),
                     0); /* more than the five timeouts for which they live */
    start_run(NULL, NULL);
    await("step 10 ");
    hit(launcher.pid, SIGKILL);
    ck_assert(await_end().signaled);
    await("view 2 after 1 active 2 ");
    ck_ok(keel_path_join(path, directory, "leader.lock"));
    ck_assert(keel_lock_read(path, &words));
    ck_assert_uint_eq(words.incarnation, 2); /* no other was started */
    stop_orphaned_run();
}
END_TEST

START_TEST(when_all_are_killed_the_run_goes_on_when_started_again)
{
    write_job("80", "ranks = 4\n");
    start_run_to(40, NULL, NULL);
    await("step 30 ");
    for (int node = 1; node <= 4; node++)
        hit(shared->agent_pid[node], SIGKILL);
    hit(launcher.pid, SIGKILL);
    ck_assert(await_end().signaled);
    expect_all_gone();
    char report_path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(report_path, directory, "report"));
    ck_assert_int_eq(unlink(report_path), 0);
    start_run("--resume", "25");
    expect_exit(0);
    expect_steps(26, 80);
    expect_all_gone();
    uint64_t epoch = 0;
    ck_assert_int_eq(sscanf(strstr(report, "view "), "view %" SCNu64, &epoch), 1);
    ck_assert_uint_ge(epoch, 2); /* the register went on from the earlier life */
}
END_TEST

START_TEST(a_stopped_worker_is_replaced_and_never_left_behind)
{
    write_job("200", "ranks = 3\nspares = 1\nrespawn = false\n");
    start_run_to(40, NULL, NULL);
    await("spare 1");
    await("step 30 ");
    int stopped = shared->worker_pid[2][0];
    hit(stopped, SIGSTOP);
    fake_go_on(shared);
    expect_exit(0);
    expect_steps(1, 200);
    ck_assert(!alive(stopped));
    expect_all_gone();
    expect("active 3 spare 0");
}
END_TEST

START_TEST(a_stopped_agent_is_replaced_and_never_left_behind)
{
    write_job("200", "ranks = 3\nspares = 1\nrespawn = false\n");
    start_run_to(40, NULL, NULL);
    await("spare 1");
    await("step 30 ");
    int stopped = shared->agent_pid[2];
    hit(stopped, SIGSTOP);
    hit(shared->worker_pid[2][0], SIGSTOP);
    fake_go_on(shared);
    expect_exit(0);
    expect_steps(1, 200);
    ck_assert(!alive(stopped));
    expect_all_gone();
    expect("cause heartbeat-missed");
}
END_TEST

START_TEST(an_interrupt_ends_the_run_in_order)
{
    write_job("100000", "ranks = 4\n");
    start_run(NULL, NULL);
    await("step 20 ");
    hit(launcher.pid, SIGINT); /* as timeout(1) does: the process, then its group */
    hit(launcher.pid, SIGTERM);
    hit(launcher.pid, SIGINT);
    expect_exit(5);
    expect_all_gone();
    expect("end INTERRUPTED");
    expect_not("killed by a second signal");
    expect_not("agent-exit");
}
END_TEST

/* It was sent at once, however late the launcher comes to take it. */
START_TEST(a_signal_that_came_while_the_first_was_told_is_the_same_request)
{
    write_job("100000", "ranks = 2\ntimeout_s = 20\n");
    ck_assert_int_eq(setenv("REPORT_TELL_MS", "5000", 1), 0);
    start_run(NULL, NULL);
    await("step 20 ");
    hit(launcher.pid, SIGINT);
    await("tell told to end: ");
    hit(launcher.pid, SIGTERM);
    expect_exit(5);
    expect_all_gone();
    expect("end INTERRUPTED");
    expect_not("killed by a second signal");
}
END_TEST

START_TEST(agents_that_nobody_can_lead_end_by_themselves_with_their_workers)
{
    char path[KEEL_PATH_BYTES];
    write_job("100000", "ranks = 3\nrespawn = false\ntimeout_s = 0.5\n");
    start_run(NULL, NULL);
    await("step 20 ");
    ck_ok(keel_path_join(path, directory, "leader.state"));
    ck_assert_int_eq(unlink(path), 0); /* each that is started in the launcher's place fails */
    hit(launcher.pid, SIGKILL);
    ck_assert(await_end().signaled);
    expect_all_gone();
    ck_assert(!keel_launch_is_locked(directory));
}
END_TEST

/* The first one is heard: what comes later than a quarter of a second is another. */
static void await_told_to_end(void)
{
    await("tell told to end: ");
    keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_S));
}

START_TEST(a_second_interrupt_does_not_wait)
{
    write_job("100000", "ranks = 4\ntimeout_s = 600\n");
    start_run(NULL, NULL);
    await("step 20 ");
    hit(shared->worker_pid[1][0], SIGSTOP); /* it will never say DONE */
    hit(launcher.pid, SIGTERM);
    await_told_to_end();
    hit(launcher.pid, SIGTERM);
    expect_exit(5);
    expect_all_gone();
    expect("end INTERRUPTED killed by a second signal");
}
END_TEST

START_TEST(a_second_interrupt_ends_one_that_took_the_run_over)
{
    write_job("100000", "ranks = 2\ntimeout_s = 5\n");
    ck_assert_int_eq(setenv("FAKE_PACE_MS", "30", 1), 0);
    start_run(NULL, NULL);
    await("step 10 ");
    hit(launcher.pid, SIGKILL);
    ck_assert(await_end().signaled);
    await("view 2 after 1 active 2 ");
    hit(shared->worker_pid[1][0], SIGSTOP);
    hit(leader(), SIGINT);
    await_told_to_end();
    hit(leader(), SIGINT);
    await("end INTERRUPTED killed by a second signal");
    expect_all_gone();
}
END_TEST

START_TEST(one_that_cannot_take_a_run_over_leaves_it_to_the_next)
{
    char path[KEEL_PATH_BYTES], kept[KEEL_PATH_BYTES];
    write_job("100000", "ranks = 2\n");
    ck_assert_int_eq(setenv("FAKE_PACE_MS", "30", 1), 0);
    start_run(NULL, NULL);
    await("step 10 ");
    const int workers[] = {shared->worker_pid[1][0], shared->worker_pid[2][0]};
    ck_ok(keel_path_join(path, directory, "register.state"));
    ck_ok(keel_path_join(kept, directory, "register.kept"));
    ck_assert_int_eq(rename(path, kept), 0);
    ck_ok(keel_mkdir_all(path)); /* which cannot be read */
    hit(launcher.pid, SIGKILL);
    ck_assert(await_end().signaled);
    await("end ");
    expect_not("view 2");
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(rename(kept, path), 0);
    await("view 2 after 1 active 2 ");
    for (int node = 1; node <= 2; node++)
        ck_assert_int_eq(shared->worker_pid[node][0], workers[node - 1]);
    stop_orphaned_run();
}
END_TEST

static bool is_taken(const char *name)
{
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, directory, name));
    return keel_file_is_locked(path);
}

START_TEST(locks_that_somebody_removes_are_made_anew)
{
    static const char *const names[] = {"run.lock", "leader.lock", "agent-1.lock", "leader.state"};
    char path[KEEL_PATH_BYTES], self[KEEL_PATH_BYTES];
    const uint64_t deadline_ns = soon();
    write_job("100000", "ranks = 2\n");
    ck_assert_int_eq(setenv("FAKE_PACE_MS", "30", 1), 0);
    start_run(NULL, NULL);
    await("step 10 ");
    for (int i = 0; i < 4; i++) {
        ck_ok(keel_path_join(path, directory, names[i]));
        ck_assert_int_eq(unlink(path), 0);
    }
    while (!is_taken(names[0]) || !is_taken(names[1]) || !is_taken(names[2]) || !keel_path_exists(path)) {
        ck_assert(keel_remaining_ns(deadline_ns) > 0);
        keel_sleep_until_ns(keel_deadline_after_ns(5 * KEEL_NS_PER_MS));
    }
    ck_assert_int_eq(leader(), (int)launcher.pid);
    struct keel_process first = launcher;
    ck_ok(keel_self_path(self, sizeof self));
    char *argv[] = {self, "run", directory, NULL};
    ck_ok(keel_process_spawn(argv, NULL, 0, -1, &launcher));
    expect_exit(keel_status_exit_code(KEEL_BUSY));
    launcher = first;
    hit(launcher.pid, SIGKILL);
    ck_assert(await_end().signaled);
    await("view 2 after 1 active 2 ");
    ck_assert(is_taken(names[0]) && leader() != (int)first.pid);
    stop_orphaned_run();
}
END_TEST

/* Of who leads, at its gate; and wait until it has come to be. */
static void ask_for(enum keel_handover_wish wish, uint16_t node)
{
    struct keel_run_gates gates;
    struct keel_secret secret;
    struct keel_dialed dialed;
    struct keel_handover_reason end;
    struct keel_handover_ask ask = {.wish = wish, .node = node};
    ck_ok(keel_run_gates_read(directory, &gates));
    ck_ok(keel_secret_load(directory, false, &secret));
    ask.run = gates.run;
    const struct keel_dial_config config = {
        .places = gates.places, .known = "", .secret = &secret, .release = KEEL_RELEASE, .ask = &ask};
    ck_ok(keel_dial_ask(&config, &dialed));
    ck_ok(keel_dialed_await(&dialed, keel_deadline_after_ns(60 * KEEL_NS_PER_S), NULL, NULL, &end));
    keel_dialed_close(&dialed);
}

/* Its rank goes to nobody, and comes back. Others may lead meanwhile. */
START_TEST(a_drained_node_leaves_in_order_stays_away_and_comes_back)
{
    write_job("100000", "ranks = 3\n");
    ck_assert_int_eq(setenv("FAKE_PACE_MS", "30", 1), 0);
    start_run(NULL, NULL);
    await("step 10 ");
    const int agent = shared->agent_pid[2], others[] = {shared->worker_pid[1][0], shared->worker_pid[3][0]};
    ask_for(KEEL_WISH_DRAIN, 2);
    await("drain 2 left");
    expect("view 2 after 1 active 2 spare 0 cause drained");
    expect_not("agent-exit");
    ck_assert(!alive(agent) && !is_taken("agent-2.lock"));
    hit(launcher.pid, SIGKILL);
    ck_assert(await_end().signaled);
    await("view 3 after 2 active 2 ");
    ck_assert_int_eq(shared->agent_pid[2], agent);
    ask_for(KEEL_WISH_ADD, 2);
    await("drain 2 over");
    await("view 4 after 3 active 3 ");
    ck_assert_int_ne(shared->agent_pid[2], agent);
    ck_assert_int_eq(shared->worker_pid[1][0], others[0]);
    ck_assert_int_eq(shared->worker_pid[3][0], others[1]);
    stop_orphaned_run();
}
END_TEST

START_TEST(a_worker_that_cannot_begin_ends_the_run_with_its_words)
{
    write_job("1000", "ranks = 4\n");
    start_run("--drill", "unfit:node=3");
    expect_exit(keel_status_exit_code(KEEL_NOT_FOUND));
    expect_all_gone();
    expect("end NOT_FOUND");
    expect("text.txt: no such data file; set data.path");
}
END_TEST

START_TEST(a_worker_that_gives_up_later_is_not_started_again_and_the_others_go_on)
{
    write_job("300", "ranks = 4\n");
    start_run("--drill", "fail:node=3");
    expect_exit(0);
    expect_steps(1, 300);
    expect_all_gone();
    expect("active 3 spare 0");
    expect_not("cause join");
}
END_TEST

START_TEST(a_worker_that_closes_its_link_but_stays_is_killed)
{
    write_job("60", "ranks = 3\nrespawn = false\n");
    start_run("--drill", "mute:node=2");
    expect_exit(0);
    expect_steps(1, 60);
    expect_all_gone();
    expect("active 2 spare 0");
}
END_TEST

START_TEST(a_lock_says_who_has_it_and_which_life_it_was_when_nobody_has)
{
    const struct keel_lock_words agent = {.pid = 4194303, .incarnation = 70000, .run = UINT64_MAX};
    const struct keel_lock_words ended = {.incarnation = 7, .run = 5}, leader = {.pid = 12};
    struct keel_lock_words words;
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    int fd;
    ck_ok(keel_lock_agent_path(directory, 1, path));
    ck_ok(keel_lock_take(path, false, &fd));
    ck_assert(!keel_lock_read(path, &words));
    ck_ok(keel_lock_write(fd, &agent, path));
    ck_assert(keel_lock_read(path, &words));
    ck_assert(words.pid == agent.pid && words.incarnation == agent.incarnation && words.run == agent.run);
    ck_ok(keel_lock_write(fd, &ended, path));
    ck_assert(!keel_lock_read(path, &words));
    ck_assert(words.incarnation == ended.incarnation && words.run == ended.run);
    ck_ok(keel_lock_write(fd, &leader, path));
    ck_ok(keel_file_read(path, 64, &text, &bytes));
    ck_assert_str_eq(text, "12\n");
    keel_free(text);
    keel_file_unlock(fd);
}
END_TEST

START_TEST(one_directory_has_one_run)
{
    write_job("100000", "ranks = 2\n");
    start_run(NULL, NULL);
    await("step 5 ");
    struct keel_process first = launcher;
    char self[KEEL_PATH_BYTES], wanted[64];
    ck_ok(keel_self_path(self, sizeof self));
    char *argv[] = {self, "run", directory, NULL};
    ck_ok(keel_process_spawn(argv, NULL, 0, -1, &launcher));
    expect_exit(keel_status_exit_code(KEEL_BUSY));
    snprintf(wanted, sizeof wanted, "led by process %d;", (int)first.pid);
    expect("end BUSY");
    expect(wanted);
    launcher = first;
    hit(launcher.pid, SIGINT);
    expect_exit(5);
    expect_all_gone();
}
END_TEST

START_TEST(snapshots_are_committed_beside_the_run_the_last_one_too)
{
    write_job("60", "ranks = 3\n[snapshot]\nevery = 10\nkeep = 2\n");
    start_run(NULL, NULL);
    expect_exit(0);
    expect_steps(1, 60);
    expect_all_gone();
    for (int step = 10; step <= 60; step += 10) {
        char wanted[32];
        snprintf(wanted, sizeof wanted, "snapshot %d OK", step);
        expect(wanted);
    }
    char root[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(root, directory, "ckpt"));
    struct keel_store *store;
    ck_ok(keel_store_open(&(struct keel_store_config){.root = root, .read_only = true}, &store));
    struct keel_snapshot_info list[8];
    uint32_t count, damaged;
    ck_ok(keel_store_list(store, list, 8, &count, &damaged));
    ck_assert(count == 2 && damaged == 0 && list[0].step == 60 && list[1].step == 50);
    ck_assert_uint_eq(list[0].shard_count, 3);
    ck_assert_str_eq(list[0].identity, "test");
    keel_store_close(store);
}
END_TEST

START_TEST(a_snapshot_that_fails_is_told_and_harms_nothing)
{
    write_job("60", "ranks = 2\n[snapshot]\nevery = 20\n");
    start_run("--drill", "lose:node=2");
    expect_exit(0);
    expect_steps(1, 60);
    expect_all_gone();
    expect("snapshot 20 ");
    expect("snapshot 40 ");
    expect("snapshot 60 ");
    expect_not("snapshot 20 OK");
    expect_not("snapshot 60 OK");
}
END_TEST

START_TEST(a_view_that_cannot_be_made_durable_is_told_to_nobody)
{
    write_job("60", "ranks = 2\n");
    start_run("--unwritable", "register.state");
    struct keel_process_end end = await_end();
    ck_assert(!end.signaled && end.code != 0);
    expect("end ");
    expect("register.state");
    expect_not("view ");
    expect_not("step ");
    expect_all_gone();
}
END_TEST

START_TEST(an_agent_that_is_called_wrongly_says_how_and_starts_nothing)
{
    char self[KEEL_PATH_BYTES];
    ck_ok(keel_self_path(self, sizeof self));
    char *calls[][16] = {
        {self, "agent", "job.conf", "--node", "1", NULL},
        {self, "agent", "job.conf", "--dir", directory, "--node", "64", NULL},
        {self, "agent", "job.conf", "--dir", directory, "--node", "x", NULL},
        {self, "agent", "job.conf", "--dir", directory, "--speed", "9", NULL},
        {self, "agent", "job.conf", "--dir", directory, "--node", NULL},
        {self, "agent", "job.conf", "--dir", directory, "--node", "1", "--launcher", "127.0.0.1:9", "--run",
         "0", "--incarnation", "1", NULL},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        ck_ok(keel_process_spawn(calls[i], NULL, 0, -1, &launcher));
        expect_exit(keel_status_exit_code(KEEL_INVALID));
    }
}
END_TEST

/* ---- strangers ----------------------------------------------------------------------------------------- */

/* A file of /proc, its NULs made blanks. */
static char *read_process(int pid, const char *name)
{
    char path[64], *text;
    size_t bytes;
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
    for (size_t i = 0; i < bytes; i++)
        text[i] = text[i] == '\0' ? ' ' : text[i];
    return text;
}

static void send_strangers(uint16_t port, uint64_t run)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    static uint8_t datagram[KEEL_DATAGRAM_BYTES], junk[KEEL_MESSAGE_BYTES];
    static const uint8_t wrong_key[KEEL_SEAL_KEY_BYTES] = {1};
    static struct keel_seal seal;
    for (uint16_t from = 1; from <= 3; from++) { /* as each agent, of a later incarnation */
        keel_seal_init(&seal, wrong_key, run, from, 9);
        for (int i = 0; i < 40; i++) {
            const struct keel_seal_label label = {.to = 0, .channel = (uint16_t)(i % 4)};
            uint32_t bytes = keel_seal_wrap(&seal, &label, junk, (uint32_t)i * 16, datagram);
            sendto(fd, datagram, bytes, 0, (struct sockaddr *)&to, sizeof to);
            sendto(fd, datagram, (size_t)i, 0, (struct sockaddr *)&to, sizeof to);
            sendto(fd, junk, (size_t)i * 100, 0, (struct sockaddr *)&to, sizeof to);
        }
    }
    close(fd);
}

START_TEST(strangers_change_nothing_and_the_key_is_nowhere_to_be_read)
{
    write_job("200", "ranks = 3\n");
    start_run_to(150, NULL, NULL);
    await("step 20 ");
    char *agent = read_process(shared->agent_pid[1], "cmdline");
    unsigned port;
    uint64_t run;
    ck_assert_int_eq(sscanf(strstr(agent, "--launcher"), "--launcher 127.0.0.1:%u", &port), 1);
    ck_assert_int_eq(sscanf(strstr(agent, "--run"), "--run %" SCNx64, &run), 1);
    send_strangers((uint16_t)port, run);
    char key_path[KEEL_PATH_BYTES], *key;
    size_t key_bytes;
    ck_ok(keel_path_join(key_path, directory, "job.key"));
    ck_ok(keel_file_read(key_path, 1024, &key, &key_bytes));
    key[64] = '\0';
    const int pids[] = {launcher.pid, shared->agent_pid[1], shared->worker_pid[1][0]};
    for (size_t i = 0; i < sizeof pids / sizeof pids[0]; i++) {
        char *arguments = read_process(pids[i], "cmdline"), *environment = read_process(pids[i], "environ");
        ck_assert_ptr_null(strstr(arguments, key));
        ck_assert_ptr_null(strstr(environment, key));
        keel_free(arguments);
        keel_free(environment);
    }
    keel_free(key);
    keel_free(agent);
    fake_go_on(shared);
    expect_exit(0);
    expect_steps(1, 200);
    expect_all_gone();
    expect("stranger 1 ");
    expect_not("cause join");
    expect_not("agent-exit");
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, make_directory, remove_directory);
    tcase_add_test(tc, a_run_of_four_nodes_commits_every_step_once);
    tcase_add_test(tc, nodes_may_carry_several_workers);
    tcase_add_test(tc, survivors_share_the_shards_of_a_killed_worker);
    tcase_add_test(tc, a_spare_takes_the_place_of_a_killed_worker);
    tcase_add_test(tc, a_killed_agent_takes_its_workers_along_comes_back_and_joins);
    tcase_add_test(tc, a_killed_agent_stays_away_when_the_job_says_so);
    tcase_add_test(tc, a_killed_launcher_is_replaced_time_and_again_and_no_worker_is_started_anew);
    tcase_add_test(tc, a_launcher_that_is_killed_before_the_first_view_is_replaced);
    tcase_add_test(tc, who_reads_for_long_before_it_leads_is_waited_for);
    tcase_add_test(tc, when_all_are_killed_the_run_goes_on_when_started_again);
    tcase_add_test(tc, a_stopped_worker_is_replaced_and_never_left_behind);
    tcase_add_test(tc, a_stopped_agent_is_replaced_and_never_left_behind);
    tcase_add_test(tc, an_interrupt_ends_the_run_in_order);
    tcase_add_test(tc, a_signal_that_came_while_the_first_was_told_is_the_same_request);
    tcase_add_test(tc, agents_that_nobody_can_lead_end_by_themselves_with_their_workers);
    tcase_add_test(tc, a_second_interrupt_does_not_wait);
    tcase_add_test(tc, a_second_interrupt_ends_one_that_took_the_run_over);
    tcase_add_test(tc, one_that_cannot_take_a_run_over_leaves_it_to_the_next);
    tcase_add_test(tc, locks_that_somebody_removes_are_made_anew);
    tcase_add_test(tc, a_drained_node_leaves_in_order_stays_away_and_comes_back);
    tcase_add_test(tc, a_worker_that_cannot_begin_ends_the_run_with_its_words);
    tcase_add_test(tc, a_worker_that_gives_up_later_is_not_started_again_and_the_others_go_on);
    tcase_add_test(tc, a_worker_that_closes_its_link_but_stays_is_killed);
    tcase_add_test(tc, a_lock_says_who_has_it_and_which_life_it_was_when_nobody_has);
    tcase_add_test(tc, one_directory_has_one_run);
    tcase_add_test(tc, snapshots_are_committed_beside_the_run_the_last_one_too);
    tcase_add_test(tc, a_snapshot_that_fails_is_told_and_harms_nothing);
    tcase_add_test(tc, a_view_that_cannot_be_made_durable_is_told_to_nobody);
    tcase_add_test(tc, an_agent_that_is_called_wrongly_says_how_and_starts_nothing);
    tcase_add_test(tc, strangers_change_nothing_and_the_key_is_nowhere_to_be_read);
}

/* The suite's main under another name: this program has several lives. */
int suite_main(void);
#define main suite_main
KEEL_TEST_MAIN("launch", cases, 60)
#undef main

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "run") == 0)
        return run_main(argc, argv);
    if (argc > 2 && strcmp(argv[1], "agent") == 0)
        return keel_agent_main(NULL, argc - 1, argv + 1);
    if (argc > 8 && strcmp(argv[1], "lead") == 0)
        return lead_main(argc, argv);
    if (argc > 2 && strcmp(argv[1], "worker") == 0)
        return fake_worker_main(argc - 1, argv + 1);
    return suite_main();
}
