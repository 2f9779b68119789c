/* launcher.c - starts the agents, keeps the register, reports, commits, ends.
 *
 * Owns the agents' processes, or the gate by which agents of other hosts come (then the processes are those
 * that started them there), the run's lock file, the committer and one poll loop. Promises that nothing of
 * the run outlives it, and that no snapshot and no agent can hold up the loop (a view's few kilobytes are
 * synced in it: nobody may hear of a view that is not durable). What is decided is decided
 * in node.c; what people see is the caller's. */
#include "launcher.h"

#include "drill.h"
#include "launcher_state.h"
#include "membership.h"
#include "remote_leader.h"
#include "run_locks.h"
#include "slow_watch.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* At the end: for agents to go by themselves, and for snapshots under way. */
static const uint64_t end_grace_ns = 2 * KEEL_NS_PER_S;
static const uint64_t kill_grace_ns = 5 * KEEL_NS_PER_S;
static const uint64_t drain_grace_ns = KEEL_LEADING_DRAIN_S * KEEL_NS_PER_S;
static const uint64_t leader_look_ns = 50 * KEEL_NS_PER_MS;
/* A second signal counts when it comes so long after the turn of the loop that took the first. */
static const uint64_t hurry_after_ns = 250 * KEEL_NS_PER_MS;

/* Processes of a run that ended are gone within that, also where a disk keeps those that were killed; and it
 * is said what is waited for after that. */
static const uint64_t dying_ns = 30 * KEEL_NS_PER_S;
static const uint64_t dying_told_ns = 2 * KEEL_NS_PER_S;

/* A port is tried until it is free for datagrams and connections. */
enum { PORT_TRIES = 16 };

static struct keel_launcher *launcher_of(void *context)
{
    return ((struct keel_control_plane *)context)->owner;
}

/* ---- agents ----------------------------------------------------------------------------------------- */

static enum keel_status spawn(struct keel_launcher *launcher, uint16_t node, uint32_t incarnation)
{
    return keel_launcher_is_local(launcher) ? keel_local_spawn(launcher, node, incarnation)
                                            : keel_remote_spawn(launcher, node, incarnation);
}

void keel_launcher_tell_exit(struct keel_launcher *launcher, uint16_t node, uint32_t incarnation)
{
    launcher->agents[node].unstarted = false;
    if (launcher->gate != NULL) /* wanted again when the node is to be started again */
        keel_gate_unwant(launcher->gate, node);
    keel_control_step(&launcher->control, &(struct keel_node_event){.kind = KEEL_EVENT_NODE_EXIT,
                                                                    .node = node,
                                                                    .value = incarnation,
                                                                    .cause = KEEL_CAUSE_EXIT});
}

void keel_launcher_await(struct keel_launcher *launcher, uint16_t node)
{
    struct keel_launched_agent *agent = &launcher->agents[node];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = node};
    agent->running = true;
    if (epoll_ctl(launcher->agents_fd, EPOLL_CTL_ADD, agent->process.pidfd, &event) != 0)
        keel_log(KEEL_LOG_ERROR, "agent %u cannot be watched: %s; its end shows by its silence", node,
                 strerror(errno));
}

static void reap(struct keel_launcher *launcher, uint16_t node)
{
    struct keel_launched_agent *agent = &launcher->agents[node];
    struct keel_process_end end = {0};
    enum keel_status status = keel_process_wait(&agent->process, keel_now_ns(), &end);
    if (status == KEEL_TIMEOUT)
        return;
    if (status != KEEL_OK)
        keel_log(KEEL_LOG_ERROR, "agent %u ended: %s", node, keel_detail());
    keel_process_close(&agent->process);
    agent->running = false;
    launcher->refused_code = end.signaled || end.code == KEEL_PROCESS_CODE_UNKNOWN ? 0 : end.code;
    int stopped_code = launcher->stopping ? keel_status_exit_code(KEEL_INTERRUPTED) : 0;
    if (end.code == KEEL_PROCESS_CODE_UNKNOWN && keel_local_ended(launcher, node))
        end.code = 0;
    if (end.signaled || (end.code != 0 && end.code != stopped_code))
        launcher->report->agent_exit(launcher->report->context, node, agent->incarnation, &end);
    keel_launcher_tell_exit(launcher, node, 0);
}

/* ---- effects ---------------------------------------------------------------------------------------- */

static void effect_node_start(void *context, uint16_t node, uint32_t incarnation)
{
    struct keel_launcher *launcher = launcher_of(context);
    KEEL_ASSERT(node > 0 && node < launcher->node_count);
    KEEL_ASSERT(!keel_launcher_is_local(launcher) || !launcher->agents[node].running);
    if (spawn(launcher, node, incarnation) == KEEL_OK)
        return;
    keel_log(KEEL_LOG_ERROR, "agent %u: %s", node, keel_detail());
    launcher->agents[node].unstarted = true;
    launcher->look_ns = 0;
}

/* ---- signals ------------------------------------------------------------------------------------------ */

static void our_signals(sigset_t *out)
{
    struct sigaction hangup;
    sigemptyset(out);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGTERM);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaddset(out, SIGHUP);
}

void keel_launch_hold_signals(void)
{
    sigset_t ours;
    our_signals(&ours);
    pthread_sigmask(SIG_BLOCK, &ours, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static enum keel_status take_signals(struct keel_launcher *launcher)
{
    sigset_t ours;
    our_signals(&ours);
    pthread_sigmask(SIG_BLOCK, &ours, &launcher->signals_before);
    launcher->signal_fd = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
    if (launcher->signal_fd >= 0)
        return KEEL_OK;
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &launcher->signals_before, NULL);
    return keel_fail_errno(error, "launcher: no signalfd");
}

static void note_stop(struct keel_launcher *launcher)
{
    if (!launcher->stopping)
        launcher->stopped_ns = keel_now_ns();
    launcher->stopping = true;
    keel_stop_guard_take(&launcher->guard);
    if (launcher->config->signalled != NULL)
        *launcher->config->signalled = true;
}

/* Take the signals that wait. One that comes right after the first is the same request: timeout(1) and
 * service managers signal a process and then its group. */
static void read_signals(struct keel_launcher *launcher)
{
    struct signalfd_siginfo info;
    while (read(launcher->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (launcher->heard_ns != 0 && keel_now_ns() - launcher->heard_ns >= hurry_after_ns)
            launcher->hurried = true;
        note_stop(launcher);
    }
}

/* The turn that took the first may have stood for longer, in a call to the disk or the terminal: what came
 * meanwhile is of the same request. */
static void hear_out(struct keel_launcher *launcher)
{
    if (!launcher->stopping || launcher->heard_ns != 0)
        return;
    launcher->heard_ns = keel_now_ns();
    read_signals(launcher);
}

/* Signals that still wait were meant for this run: read before they are unblocked. */
static void give_signals_back(struct keel_launcher *launcher)
{
    if (launcher->signal_fd < 0)
        return;
    read_signals(launcher);
    close(launcher->signal_fd);
    launcher->signal_fd = -1;
    pthread_sigmask(SIG_SETMASK, &launcher->signals_before, NULL);
}

/* The caller saw a reason to end. */
static void serve_caller(struct keel_launcher *launcher)
{
    const struct keel_launch_report *report = launcher->report;
    if (launcher->stopping || report->stop == NULL || !report->stop(report->context))
        return;
    launcher->stopping = true;
    launcher->stopped_ns = keel_now_ns();
    keel_control_step(&launcher->control, &(struct keel_node_event){.kind = KEEL_EVENT_STOP});
}

/* So long workers have from a stop on (keel_times). */
static uint64_t stop_grace_ns(const struct keel_launcher *launcher)
{
    struct keel_times times;
    keel_times_derive((uint64_t)(launcher->config->job->timeout_s * (double)KEEL_NS_PER_S), &times);
    return times.grace_ns;
}

/* It was waited for to the end; where the disk is full nothing can be. */
static bool is_unsaved(const struct keel_launcher *launcher)
{
    return launcher->stopping && launcher->control.finished && !launcher->hurried && !launcher->full &&
           launcher->control.status == KEEL_INTERRUPTED &&
           keel_now_ns() - launcher->stopped_ns >= stop_grace_ns(launcher);
}

/* What workers have to save is waited for, and then they are ended. */
static void begin_stop(struct keel_launcher *launcher)
{
    char text[160];
    if (launcher->gathering) /* which sees it */
        return;
    snprintf(text, sizeof text,
             "told to end: what the last steps made is saved first, for %.0f s at most; a second signal ends "
             "the run at once",
             (double)stop_grace_ns(launcher) / (double)KEEL_NS_PER_S + KEEL_LEADING_DRAIN_S);
    launcher->report->tell(launcher->report->context, text);
    keel_control_step(&launcher->control, &(struct keel_node_event){.kind = KEEL_EVENT_STOP});
}

static void serve_signals(struct keel_launcher *launcher)
{
    const bool before = launcher->stopping;
    read_signals(launcher);
    if (launcher->stopping && !before)
        begin_stop(launcher);
}

void keel_launcher_stop(struct keel_launcher *launcher)
{
    const bool before = launcher->stopping;
    note_stop(launcher);
    if (!before)
        begin_stop(launcher);
}

static void report_room(struct keel_launcher *launcher)
{
    const struct keel_control_plane *control = &launcher->control;
    if (control->unstored == launcher->full)
        return;
    launcher->full = control->unstored;
    launcher->report->room(launcher->report->context, launcher->full, launcher->full ? control->detail : "");
}

/* ---- who leads ---- */

/* Where the leader moves this launcher may follow. */
static void watch_leader(struct keel_launcher *launcher)
{
    const uint16_t leader = keel_node_leader(launcher->control.node);
    char text[KEEL_PATH_BYTES + 128];
    if (leader == launcher->leader)
        return;
    launcher->leader = leader;
    if (launcher->gate != NULL) {
        keel_mailbox_keep(launcher->mailbox, leader == 0);
        if (leader == 0) {
            launcher->lead_ns = keel_now_ns(); /* who talked to another leader until now is not silent */
            keel_gate_presume(launcher->gate);
        }
    }
    if (leader == 0)
        snprintf(text, sizeof text, "this launcher leads the run again");
    else if (leader == KEEL_NODE_NONE)
        snprintf(text, sizeof text,
                 "most nodes are silent: this launcher leads no more, and waits for one that does");
    else
        snprintf(text, sizeof text,
                 "node %u leads the run; its lines are in %s/" KEEL_REMOTE_LEADER_FOLDER
                 " and come back here",
                 leader, launcher->store_path);
    launcher->report->tell(launcher->report->context, text);
}

/* To those who may lead next. */
static void tell_past(struct keel_launcher *launcher)
{
    const struct keel_launch_report *report = launcher->report;
    uint8_t data[KEEL_PAST_BYTES_MAX];
    uint32_t bytes = 0;
    if (launcher->leader != 0 || report->past == NULL || keel_job_holders(launcher->config->job) < 2)
        return;
    const uint64_t step = report->past(report->context, data, &bytes);
    if (step <= launcher->past_step)
        return;
    launcher->past_step = step;
    keel_control_step(
        &launcher->control,
        &(struct keel_node_event){.kind = KEEL_EVENT_PAST, .value = step, .data = data, .bytes = bytes});
}

static bool is_ours(const struct keel_launcher *launcher)
{
    return launcher->leader == 0 || launcher->hurried;
}

/* ---- loop --------------------------------------------------------------------------------------------- */

enum { FD_MAILBOX, FD_SIGNALS, FD_COMMITTER, FD_GATE, FD_AGENTS, FD_MAX, ENDED_AT_ONCE = 64 };

/* Fill the poll table (negative descriptors are skipped by poll). */
static void prepare(const struct keel_launcher *launcher, struct pollfd fds[FD_MAX])
{
    fds[FD_MAILBOX] = (struct pollfd){
        .fd = launcher->mailbox != NULL ? keel_mailbox_fd(launcher->mailbox) : -1, .events = POLLIN};
    fds[FD_SIGNALS] = (struct pollfd){.fd = launcher->signal_fd, .events = POLLIN};
    fds[FD_COMMITTER] = (struct pollfd){
        .fd = launcher->leading.committer != NULL ? keel_committer_fd(launcher->leading.committer) : -1,
        .events = POLLIN};
    fds[FD_GATE] =
        (struct pollfd){.fd = launcher->gate != NULL ? keel_gate_fd(launcher->gate) : -1, .events = POLLIN};
    fds[FD_AGENTS] = (struct pollfd){.fd = launcher->starters != NULL ? keel_starters_fd(launcher->starters)
                                                                      : launcher->agents_fd,
                                     .events = POLLIN};
}

/* Nodes whose process has ended, some of them. */
static uint32_t find_ended(const struct keel_launcher *launcher, uint16_t out[ENDED_AT_ONCE])
{
    struct epoll_event events[ENDED_AT_ONCE];
    uint32_t count = 0;
    const int ready = epoll_wait(launcher->agents_fd, events, ENDED_AT_ONCE, 0);
    for (int i = 0; i < ready; i++)
        if (launcher->agents[events[i].data.u32].running)
            out[count++] = (uint16_t)events[i].data.u32;
    return count;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static int wait_ms(const struct keel_launcher *launcher)
{
    uint64_t deadline_ns = launcher->gathering ? launcher->gather_until_ns : launcher->control.timer_ns;
    deadline_ns = launcher->look_ns < deadline_ns ? launcher->look_ns : deadline_ns;
    if (launcher->gathering && launcher->remind_at_ns < deadline_ns)
        deadline_ns = launcher->remind_at_ns;
    if (launcher->gate != NULL && keel_gate_deadline_ns(launcher->gate) < deadline_ns)
        deadline_ns = keel_gate_deadline_ns(launcher->gate);
    if (launcher->starters != NULL && keel_starters_deadline_ns(launcher->starters) < deadline_ns)
        deadline_ns = keel_starters_deadline_ns(launcher->starters);
    return keel_remaining_poll_ms(deadline_ns);
}

/* What is due of all agents; what becomes due meanwhile is looked at in the next turn. */
static void look_at_agents(struct keel_launcher *launcher)
{
    if (keel_remaining_ns(launcher->look_ns) > 0)
        return;
    launcher->look_ns = KEEL_NEVER;
    for (uint16_t node = 1; node < launcher->node_count; node++)
        if (launcher->agents[node].unstarted)
            keel_launcher_tell_exit(launcher, node, 0);
}

static void serve_agents(struct keel_launcher *launcher, bool some_ended)
{
    uint16_t ended[ENDED_AT_ONCE];
    const uint32_t count = some_ended ? find_ended(launcher, ended) : 0;
    for (uint32_t i = 0; i < count; i++)
        reap(launcher, ended[i]);
    look_at_agents(launcher);
    if (launcher->starters != NULL)
        keel_starters_turn(launcher->starters);
}

static void turn_gate(struct keel_launcher *launcher)
{
    if (launcher->gate != NULL)
        keel_gate_turn(launcher->gate);
}

static void loop(struct keel_launcher *launcher)
{
    struct pollfd fds[FD_MAX];
    while (!launcher->control.finished && !launcher->hurried && launcher->gather_status == KEEL_OK) {
        atomic_store(&launcher->guard.turn, keel_now_ns());
        hear_out(launcher);
        prepare(launcher, fds);
        if (poll(fds, FD_MAX, wait_ms(launcher)) < 0)
            continue; /* EINTR */
        if (fds[FD_SIGNALS].revents != 0)
            serve_signals(launcher);
        if (fds[FD_COMMITTER].revents != 0)
            keel_leading_report_snapshots(&launcher->leading);
        serve_agents(launcher, fds[FD_AGENTS].revents != 0);
        if (launcher->gathering) {
            turn_gate(launcher);
            keel_remote_gather(launcher);
            continue;
        }
        keel_control_turn(&launcher->control);
        keel_launcher_watch(launcher);
        watch_leader(launcher);
        turn_gate(launcher); /* who was stopped hears first whether another leads, and lets agents in */
        tell_past(launcher);
        serve_caller(launcher);
        report_room(launcher);
    }
}

/* On the guard's thread, while the loop stands in a call to the disk: so the list of agents does not change.
 */
static void give_up_loop(void *context, uint64_t still_ns)
{
    const struct keel_launcher *launcher = context;
    const bool others = !keel_launcher_is_local(launcher) && keel_job_holders(launcher->config->job) > 1;
    for (uint16_t node = 1; node < launcher->node_count; node++)
        if (launcher->agents[node].running)
            (void)keel_process_signal(&launcher->agents[node].process, SIGKILL);
    fprintf(stderr,
            "keel: told to end, and %s has not answered for %.0f s: ended without a last snapshot; bring the "
            "disk or its server back, and the same command goes on from the newest%s\n",
            launcher->config->directory, (double)still_ns / (double)KEEL_NS_PER_S,
            others ? "; nodes of other hosts may go on until then (keel job stop)" : "");
    _exit(keel_status_exit_code(KEEL_TIMEOUT));
}

/* Agents replace who leads when it is silent for longer. */
static void loop_guarded(struct keel_launcher *launcher)
{
    launcher->guard.signal_fd = launcher->signal_fd;
    launcher->guard.still_ns = (uint64_t)(launcher->config->job->timeout_s * 2.0 * (double)KEEL_NS_PER_S);
    launcher->guard.give_up = give_up_loop;
    launcher->guard.context = launcher;
    keel_stop_guard_begin(&launcher->guard);
    loop(launcher);
    keel_stop_guard_end(&launcher->guard);
}

/* ---- end ---------------------------------------------------------------------------------------------- */

/* Wait until the agents have ended, at most until the deadline; a `patient` wait ends at a second signal. */
static void await_agents(struct keel_launcher *launcher, uint64_t deadline_ns, bool patient)
{
    struct pollfd fds[FD_MAX];
    for (;;) {
        uint16_t ended[ENDED_AT_ONCE];
        hear_out(launcher);
        prepare(launcher, fds);
        fds[FD_MAILBOX].fd = fds[FD_COMMITTER].fd = -1;
        bool some = launcher->gate != NULL && keel_gate_has_some(launcher->gate);
        for (uint16_t node = 1; node < launcher->node_count; node++)
            some = some || launcher->agents[node].running;
        if (launcher->starters != NULL && keel_starters_rest(launcher->starters))
            some = true;
        if (!some || poll(fds, FD_MAX, keel_remaining_poll_ms(deadline_ns)) == 0)
            return;
        if (fds[FD_SIGNALS].revents != 0)
            read_signals(launcher);
        if (patient && launcher->hurried)
            return;
        if (launcher->gate != NULL)
            keel_gate_turn(launcher->gate);
        if (launcher->starters != NULL)
            keel_starters_turn(launcher->starters);
        const uint32_t count = find_ended(launcher, ended);
        for (uint32_t i = 0; i < count; i++) {
            struct keel_launched_agent *agent = &launcher->agents[ended[i]];
            struct keel_process_end end;
            if (keel_process_wait(&agent->process, keel_now_ns(), &end) == KEEL_TIMEOUT)
                continue;
            keel_process_close(&agent->process);
            agent->running = false;
        }
    }
}

/* Another leads, and told how the run ends, or nobody does: agents end by themselves, who leads last, when
 * the last snapshot is committed. */
static void leave_agents(struct keel_launcher *launcher)
{
    const bool told = launcher->control.finished && launcher->leader != KEEL_NODE_NONE;
    const uint64_t until_ns = keel_deadline_after_ns(told ? drain_grace_ns : end_grace_ns);
    struct keel_remote_leader leader;
    await_agents(launcher, until_ns, true);
    while (told &&
           keel_remote_leader_lives(launcher->store_path, launcher->config->job->timeout_s, &leader) &&
           keel_remaining_ns(until_ns) > 0) /* its connection had ended before */
        keel_sleep_until_ns(keel_deadline_after_ns(leader_look_ns));
    keel_gate_leave(launcher->gate);
    launcher->gate = NULL;
}

static void end_agents(struct keel_launcher *launcher)
{
    if (!is_ours(launcher)) {
        leave_agents(launcher);
        return;
    }
    bool patient = launcher->control.finished && !launcher->hurried;
    if (patient)
        await_agents(launcher, keel_deadline_after_ns(end_grace_ns), true);
    if (launcher->gate !=
        NULL) { /* those that are left are told to end, and what started them ends with them */
        keel_gate_close(launcher->gate,
                        launcher->control.finished ? launcher->control.status : KEEL_INTERRUPTED,
                        launcher->control.finished ? launcher->control.detail : "killed by a second signal");
        launcher->gate = NULL;
        if (!keel_launcher_is_local(launcher))
            await_agents(launcher, keel_deadline_after_ns(end_grace_ns), true);
    }
    for (uint16_t node = 1; node < launcher->node_count; node++) {
        if (!launcher->agents[node].running)
            continue;
        if (patient)
            keel_log(KEEL_LOG_WARN, "agent %u does not end: killed", node);
        keel_process_signal(&launcher->agents[node].process, SIGKILL);
    }
    if (launcher->starters != NULL)
        keel_starters_kill(launcher->starters);
    await_agents(launcher, keel_deadline_after_ns(kill_grace_ns), false);
}

/* Nobody saves: before the first agent starts, or after the last has ended. What is not committed was left by
 * those that were killed, or failed. */
static void remove_leftovers(struct keel_launcher *launcher)
{
    const struct keel_retention only_leftovers = {.keep_last = UINT32_MAX, .idle = true};
    if (keel_store_retain(launcher->store, &only_leftovers, NULL) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "what failed snapshots left stays: %s", keel_detail());
}

/* The run's last snapshots are worth a wait; a disk that hangs is not worth waiting for for ever: false. */
static bool end_snapshots(struct keel_launcher *launcher)
{
    if (launcher->leading.committer == NULL)
        return true;
    const bool drained = keel_leading_drain(&launcher->leading, keel_deadline_after_ns(drain_grace_ns));
    if (!drained)
        launcher->store = NULL;
    else if (launcher->store != NULL && launcher->leader == 0) /* who leads elsewhere saves there */
        remove_leftovers(launcher);
    return drained;
}

/* ---- life --------------------------------------------------------------------------------------------- */

/* Nobody leads, and something of an earlier run still ends: that is waited for. */
static enum keel_status take_run_lock(const char *path, const char *leader_path, int *out_fd)
{
    const uint64_t until_ns = keel_deadline_after_ns(dying_ns);
    uint64_t tell_ns = keel_deadline_after_ns(dying_told_ns);
    enum keel_status status;
    for (;;) {
        status = keel_lock_take(path, true, out_fd);
        if (status != KEEL_BUSY || keel_file_is_locked(leader_path) || keel_remaining_ns(until_ns) == 0)
            return status;
        if (keel_remaining_ns(tell_ns) == 0) {
            tell_ns = KEEL_NEVER;
            keel_log(KEEL_LOG_WARN,
                     "%s: processes of the run before have not ended yet: waiting for them, at most %.0f s",
                     path, (double)dying_ns / (double)KEEL_NS_PER_S);
        }
    }
}

static enum keel_status refuse_second(const char *path, const char *leader_path, const char *next)
{
    struct keel_lock_words words;
    if (!keel_file_is_locked(leader_path))
        return keel_fail(
            KEEL_BUSY,
            "%s: nobody leads, but a process still has this file open: one of the run before that "
            "does not end; see which (fuser -v), end it, or take another --out",
            path);
    return keel_fail(KEEL_BUSY, "%s: a run goes on in this directory, led by process %ld; %s", path,
                     keel_lock_read(path, &words) ? words.pid : 0L, next);
}

enum keel_status keel_launch_lock(const char *directory, struct keel_launch_locks *out)
{
    char path[KEEL_PATH_BYTES], leader_path[KEEL_PATH_BYTES];
    struct keel_lock_words words;
    struct keel_launch_locks locks = {.run_fd = -1, .leader_fd = -1};
    KEEL_TRY(keel_path_join(path, directory, "run.lock"));
    KEEL_TRY(keel_path_join(leader_path, directory, "leader.lock"));
    enum keel_status status = take_run_lock(path, leader_path, &locks.run_fd);
    if (status == KEEL_BUSY)
        return refuse_second(path, leader_path,
                             "watch it (keel job attach), end it (keel job stop), or take another");
    if (status != KEEL_OK)
        return keel_fail(status, "%s; give another --out", keel_detail());
    words = (struct keel_lock_words){.pid = (long)getpid()};
    status = keel_lock_write(locks.run_fd, &words, path);
    if (status == KEEL_OK)
        status = keel_lock_take(leader_path, true, &locks.leader_fd);
    if (status == KEEL_BUSY) /* so run.lock was removed, and who leads has another file open */
        status = refuse_second(leader_path, leader_path,
                               "run.lock was removed: end it by a signal, or take another");
    if (status == KEEL_OK)
        status = keel_lock_write(locks.leader_fd, &words, leader_path);
    if (status != KEEL_OK) {
        keel_launch_unlock(&locks);
        return status;
    }
    *out = locks;
    return KEEL_OK;
}

void keel_launch_unlock(struct keel_launch_locks *locks)
{
    if (locks->leader_fd >= 0)
        keel_file_unlock(locks->leader_fd);
    if (locks->run_fd >= 0)
        keel_file_unlock(locks->run_fd);
    *locks = (struct keel_launch_locks){.run_fd = -1, .leader_fd = -1};
}

bool keel_launch_is_locked(const char *directory)
{
    char path[KEEL_PATH_BYTES];
    return keel_path_join(path, directory, "run.lock") == KEEL_OK && keel_file_is_locked(path);
}

static enum keel_status open_mailbox(struct keel_launcher *launcher)
{
    uint8_t key[KEEL_SECRET_BYTES];
    KEEL_TRY(keel_secret_load(launcher->config->directory, true, &launcher->secret));
    keel_secret_derive(&launcher->secret, "control", key);
    const struct keel_take_over *over = launcher->config->take_over;
    launcher->run = over != NULL ? over->run : 0;
    launcher->incarnation = over != NULL ? over->incarnation : KEEL_FIRST_INCARNATION;
    while (launcher->run == 0)
        randombytes_buf(&launcher->run, sizeof launcher->run);
    const bool other_hosts = launcher->config->job->launch != KEEL_LAUNCH_LOCAL;
    const struct keel_mailbox_config config = {.bind = other_hosts ? &launcher->listen.bind : NULL,
                                               .key = key,
                                               .run = launcher->run,
                                               .incarnation = launcher->incarnation,
                                               .socket = over != NULL ? over->socket : 0,
                                               .stranger = launcher->report->stranger,
                                               .context = launcher->report->context};
    KEEL_TRY(keel_mailbox_open(&config, &launcher->mailbox));
    keel_mailbox_place(launcher->mailbox, launcher->place);
    return KEEL_OK;
}

/* One port for datagrams and connections: where the kernel chose one that others have, another. */
static enum keel_status open_network(struct keel_launcher *launcher)
{
    const struct keel_job *job = launcher->config->job;
    size_t bytes;
    if (keel_launcher_is_local(launcher)) {
        KEEL_TRY(open_mailbox(launcher));
        return keel_launcher_open_gate(launcher);
    }
    KEEL_TRY(keel_file_read(launcher->config->job_path, KEEL_FRAME_BYTES / 2, &launcher->job_text, &bytes));
    KEEL_TRY(keel_hosts_read(job, &launcher->hosts));
    snprintf(launcher->host_count, sizeof launcher->host_count, "%u", launcher->hosts.count);
    KEEL_TRY(keel_hosts_listen(job, &launcher->hosts, &launcher->listen));
    for (int tries = 0;; tries++) {
        KEEL_TRY(open_mailbox(launcher));
        enum keel_status status = keel_remote_open_gate(launcher);
        if (status != KEEL_BUSY || launcher->listen.bind.port != 0 || tries == PORT_TRIES)
            return status;
        keel_mailbox_close(launcher->mailbox);
        launcher->mailbox = NULL;
    }
}

static enum keel_status open_store_at(struct keel_launcher *launcher, const char *root)
{
    const struct keel_job *job = launcher->config->job;
    const struct keel_store_config store = {
        .root = root, .run = job->name, .create = true, .key_file = keel_job_key_file(job)};
    KEEL_TRY(keel_store_open(&store, &launcher->store));
    if (launcher->config->take_over == NULL)
        remove_leftovers(launcher);
    return job->launch == KEEL_LAUNCH_LOCAL ? KEEL_OK : keel_remote_name_store(launcher, root);
}

/* In the run's directory, for all nodes. Agents come later. */
static enum keel_status open_store(struct keel_launcher *launcher)
{
    char root[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(root, launcher->config->directory, "ckpt"));
    struct keel_slow_watch watch = {.path = root, .by_signal = launcher->config->take_over == NULL};
    keel_slow_begin(&watch);
    const enum keel_status status = open_store_at(launcher, root);
    keel_slow_end(&watch);
    return status;
}

/* Nodes commit by themselves; but one that leads writes its lines there. */
static enum keel_status name_common_store(struct keel_launcher *launcher)
{
    const char *root = launcher->config->job->snapshot_store;
    struct keel_slow_watch watch = {.path = root, .by_signal = true};
    keel_slow_begin(&watch);
    enum keel_status status = keel_mkdir_all(root);
    if (status == KEEL_OK)
        status = keel_remote_name_store(launcher, root);
    keel_slow_end(&watch);
    return status;
}

static enum keel_status open_snapshots(struct keel_launcher *launcher)
{
    const struct keel_job *job = launcher->config->job;
    if (!keel_job_takes_snapshots(job))
        return KEEL_OK;
    if (!keel_job_has_local_snapshots(job))
        KEEL_TRY(open_store(launcher));
    else if (keel_job_holders(job) > 1)
        KEEL_TRY(name_common_store(launcher));
    const struct keel_committer_config config = {.store = launcher->store,
                                                 .identity = launcher->config->identity,
                                                 .metadata = launcher->config->metadata,
                                                 .retention = keel_job_retention(job),
                                                 .allow_nonfinite = job->snapshot_allow_nonfinite,
                                                 .settle = launcher->report->settle,
                                                 .context = launcher->report->context};
    return keel_committer_open(&config, &launcher->leading.committer);
}

static enum keel_status count_nodes(struct keel_launcher *launcher)
{
    struct keel_node_config node;
    KEEL_TRY(keel_control_layout(launcher->config->job, 0, KEEL_FIRST_INCARNATION, &node));
    launcher->node_count = node.node_count;
    return KEEL_OK;
}

static enum keel_status open_control(struct keel_launcher *launcher)
{
    struct keel_node_config node;
    char state[KEEL_PATH_BYTES];
    KEEL_TRY(keel_control_layout(launcher->config->job, 0, launcher->incarnation, &node));
    node.takes_over = launcher->config->take_over != NULL;
    node.run = launcher->run;
    node.first_step = launcher->config->first_step;
    node.past_epoch = launcher->config->past_epoch;
    node.kept_step = launcher->config->kept_step;
    node.plans = launcher->config->plans;
    KEEL_TRY(keel_path_join(state, launcher->config->directory, "register.state"));
    struct keel_env effects = {.node_start = effect_node_start};
    keel_leading_fill(&effects);
    const struct keel_control_config config = {.node = &node,
                                               .leading = &launcher->leading,
                                               .mailbox = launcher->mailbox,
                                               .state_path = state,
                                               .effects = &effects,
                                               .owner = launcher};
    return keel_control_init(&launcher->control, &config);
}

/* Agents live, or ended since; or the run had come to its end, and that alone is left to tell. */
static enum keel_status take_over(struct keel_launcher *launcher, const struct keel_take_over *over)
{
    keel_local_adopt(launcher);
    if (over->ended) {
        launcher->control.finished = true;
        launcher->control.status = over->status;
        snprintf(launcher->control.detail, sizeof launcher->control.detail, "%s", over->detail);
        return KEEL_OK;
    }
    KEEL_TRY(keel_control_start(&launcher->control));
    keel_launcher_watch(launcher); /* who asked the last one looks for this one's gate */
    for (uint16_t node = 1; node < launcher->node_count; node++)
        if (!launcher->agents[node].running)
            keel_launcher_tell_exit(launcher, node, 0);
    return KEEL_OK;
}

static enum keel_status start(struct keel_launcher *launcher)
{
    KEEL_TRY(keel_remote_check(launcher->config->job));
    KEEL_TRY(keel_self_path(launcher->self, sizeof launcher->self));
    KEEL_TRY(count_nodes(launcher));
    KEEL_TRY(open_network(launcher));
    KEEL_TRY(open_snapshots(launcher));
    KEEL_TRY(open_control(launcher));
    KEEL_TRY(take_signals(launcher));
    if (!keel_launcher_is_local(launcher))
        return keel_remote_begin(launcher);
    KEEL_TRY(keel_local_begin(launcher));
    if (launcher->config->take_over != NULL)
        return take_over(launcher, launcher->config->take_over);
    KEEL_TRY(keel_control_start(&launcher->control));
    for (uint16_t node = 1; node < launcher->node_count && !launcher->control.finished; node++)
        KEEL_TRY(spawn(launcher, node, KEEL_FIRST_INCARNATION));
    return KEEL_OK;
}

static enum keel_status outcome(struct keel_launcher *launcher, enum keel_status start_status)
{
    if (start_status != KEEL_OK)
        return start_status;
    if (launcher->gather_status != KEEL_OK)
        return keel_fail(launcher->gather_status, "%s", launcher->gather_detail);
    if (!launcher->control.finished)
        return keel_fail(KEEL_INTERRUPTED, "killed by a second signal; the same command goes on from the "
                                           "newest snapshot");
    static const enum keel_status refusals[] = {
        [2] = KEEL_INVALID, [3] = KEEL_UNSUPPORTED, [4] = KEEL_CORRUPT};
    int code = launcher->refused_code;
    if (!launcher->leading.began && !launcher->stopping && launcher->control.status == KEEL_INTERRUPTED &&
        code >= 2 && code <= 4) /* the same command would end the same way */
        return keel_fail(refusals[code],
                         "no agent stays: each ends with exit code %d, for the reason that it logs", code);
    return launcher->control.status == KEEL_OK
               ? KEEL_OK
               : keel_fail(launcher->control.status, "%s", launcher->control.detail);
}

enum keel_status keel_launch(const struct keel_launch_config *config)
{
    KEEL_ASSERT(config->passed_on_count <= KEEL_PASSED_BY_USER_MAX);
    struct keel_launcher *launcher;
    KEEL_TRY(keel_alloc(1, sizeof *launcher, &launcher));
    launcher->config = config;
    launcher->report = launcher->leading.report = &config->report;
    launcher->signal_fd = -1;
    launcher->agents_fd = epoll_create1(EPOLL_CLOEXEC);
    enum keel_status status = launcher->agents_fd >= 0
                                  ? start(launcher)
                                  : keel_fail_errno(errno, "launcher: agents cannot be watched");
    char start_detail[KEEL_DETAIL_BYTES];
    snprintf(start_detail, sizeof start_detail, "%s", keel_detail());
    const bool left = status != KEEL_OK && config->take_over != NULL;
    if (config->left != NULL)
        *config->left = left;
    if (status == KEEL_OK)
        loop_guarded(launcher);
    bool unsaved = status == KEEL_OK && is_unsaved(launcher);
    if (!left) {
        end_agents(launcher);
        if (launcher->gates.run != 0)
            keel_run_gates_remove(config->directory);
        keel_remote_take_sample(launcher);
        unsaved = !end_snapshots(launcher) || unsaved;
    }
    if (config->unsaved != NULL)
        *config->unsaved = unsaved;
    give_signals_back(launcher);
    keel_detail_set(start_detail);
    status = outcome(launcher, status);
    keel_gate_leave(launcher->gate);
    keel_control_fini(&launcher->control);
    keel_committer_close(launcher->leading.committer);
    keel_store_close(launcher->store);
    keel_mailbox_close(launcher->mailbox);
    keel_starters_close(launcher->starters);
    keel_hosts_free(&launcher->hosts);
    keel_secret_wipe(&launcher->secret);
    keel_free(launcher->job_text);
    keel_free(launcher->state_text);
    keel_free(launcher->hosts_text);
    if (launcher->agents_fd >= 0)
        close(launcher->agents_fd);
    keel_free(launcher);
    return status;
}
