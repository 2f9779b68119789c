/* agent.c - one node of a run: starts workers, watches them, speaks for them.
 *
 * Owns its workers' processes and links, and one poll loop over them, the mailbox and the timer. Promises
 * never to wait for a worker: what a worker's link does not take at once is kept (only the newest view
 * counts) until the link is writable. Everything that is decided is decided in node.c.
 *
 * A worker has ended when its process has, and not before everything that it still said was heard. A
 * worker whose link ended but whose process stays is killed after a grace.
 *
 * The launcher's own agents ignore SIGINT, SIGTERM and SIGHUP, as workers do: on a terminal or under a
 * service manager they reach all processes of a run at once, and it is the launcher that turns them into an
 * orderly end. Such an agent ends when who leads says so, or when nobody leads for five timeouts; that
 * somebody does, it sees to (succession.h).
 *
 * An agent that dials in (--join, dial.h) is its host's: a signal ends it, and the run goes on without that
 * node. When it loses the launcher it ends its workers and dials again: a host that was cut off comes back
 * so. Where the leader moves (cluster.holders) it goes on without the launcher, and dials again when nobody
 * leads for five timeouts. */
#include "agent.h"

#include "agent_gate.h"
#include "agent_lead.h"
#include "control.h"
#include "dial.h"
#include "secret.h"
#include "slow_watch.h"
#include "succession.h"
#include "worker_link.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PORT_TRIES = 16, PACKETS_PER_TURN = 64, PACKETS_AT_EXIT = 4096, WAIT_S = 60, WAIT_MAX_S = 30 * 86400 };

/* From the end of a link to SIGKILL; and for all workers to go once the node is finished. */
static const uint64_t link_grace_ns = KEEL_NS_PER_S;
static const uint64_t end_grace_ns = KEEL_NS_PER_S;

struct worker {
    struct keel_process process;
    int link; /* -1: ended */
    bool running;
    bool unstarted; /* could not be started: to be told once the step is over */
    enum keel_status start_status;
    char start_detail[KEEL_DETAIL_BYTES];
    uint64_t kill_ns;        /* when its grace ends; KEEL_NEVER */
    bool view_due, stop_due; /* view_due: the newest is to be sent, which is the agent's view_file */
};

struct options {
    const char *job_path, *directory, *launcher;
    uint64_t node, incarnation, run;
    const char *join, *key_file, *address, *store; /* of one that dials in */
    uint64_t wait_s;
    char *passed_on[KEEL_PASSED_ON_MAX]; /* --drill SPEC, --resume WHAT, ...: for the workers */
    uint32_t passed_on_count;
};

struct agent {
    char plugin[KEEL_PATH_BYTES]; /* of the model, for messages; "": it is Keel's */
    struct options options;
    struct keel_control_plane control;
    struct keel_mailbox *mailbox;
    struct keel_dial_config dial;      /* of one that dials in */
    struct keel_dialed dialed;         /* likewise; fd -1: it is not connected */
    struct keel_secret secret;         /* likewise */
    struct keel_succession succession; /* of one that does not */
    bool drained;                      /* by itself, while the run goes on */
    struct keel_job job;
    struct keel_agent_lead lead; /* of a node that may lead, as the next */
    struct keel_agent_gate gate;
    char known[KEEL_NODE_CANDIDATES_MAX *
               KEEL_PLACE_BYTES]; /* who leads or may, of the last life: HOST:PORT,... */
    char store[KEEL_PATH_BYTES];  /* of the last life; "" */
    char keep[KEEL_PATH_BYTES];   /* the directory of what a holder must not forget */
    bool alone;                   /* it dialed in, and the connection has ended */
    bool deserted; /* of its own accord: by a signal, or since the launcher's last word ended it */
    char self[KEEL_PATH_BYTES];
    int view_file; /* the newest view that a worker was told; -1: none was, or there is no file for it */
    uint64_t view_epoch; /* of that */
    uint32_t worker_count;
    struct worker workers[KEEL_WORKERS_PER_NODE];
};

static struct agent *agent_of(void *context)
{
    return ((struct keel_control_plane *)context)->owner;
}

static struct worker *worker_of(struct agent *agent, uint8_t local)
{
    KEEL_ASSERT(local < agent->worker_count);
    return &agent->workers[local];
}

static bool may_lead(const struct agent *agent)
{
    return agent->lead.job != NULL;
}

/* ---- effects ---------------------------------------------------------------------------------------- */

/* Who is started again is told how far the run has come, as far as this node knows, and not how it began. */
static void describe_progress(const struct agent *agent, char *out, size_t bytes)
{
    struct keel_node_progress progress = {.recorded = 0};
    if (agent->control.node != NULL)
        keel_node_progress(agent->control.node, &progress);
    if (!progress.known)
        snprintf(out, bytes, "auto");
    else if (!progress.has_saved)
        snprintf(out, bytes, "auto:%" PRIu64, progress.recorded);
    else
        snprintf(out, bytes, "auto:%" PRIu64 ":%" PRIu64, progress.recorded, progress.saved);
}

static enum keel_status spawn(struct agent *agent, uint8_t local, uint32_t incarnation)
{
    struct worker *worker = worker_of(agent, local);
    char node_text[12], local_text[12], incarnation_text[12], address[KEEL_HOST_BYTES];
    snprintf(node_text, sizeof node_text, "%" PRIu64, agent->options.node);
    snprintf(local_text, sizeof local_text, "%u", local);
    snprintf(incarnation_text, sizeof incarnation_text, "%" PRIu32, incarnation);
    char *fixed[] = {agent->self,
                     "worker",
                     (char *)agent->options.job_path,
                     "--dir",
                     (char *)agent->options.directory,
                     "--node",
                     node_text,
                     "--local",
                     local_text,
                     "--incarnation",
                     incarnation_text};
    enum { FIXED = sizeof fixed / sizeof fixed[0] };
    char *argv[FIXED + 6 + KEEL_PASSED_ON_MAX + 1] = {0}, progress[64];
    uint32_t count = FIXED;
    memcpy(argv, fixed, sizeof fixed);
    if (agent->options.join != NULL) {
        keel_net_place_print_ip(&agent->dialed.here, address);
        argv[count++] = "--address";
        argv[count++] = address;
    }
    if (agent->options.store != NULL) {
        argv[count++] = "--store";
        argv[count++] = (char *)agent->options.store;
    }
    memcpy(argv + count, agent->options.passed_on, agent->options.passed_on_count * sizeof argv[0]);
    count += agent->options.passed_on_count;
    if (incarnation > KEEL_WORKER_FIRST_INCARNATION) {
        describe_progress(agent, progress, sizeof progress);
        argv[count++] = "--resume"; /* the last counts */
        argv[count++] = progress;
    }
    int pair[2];
    KEEL_TRY(keel_link_pair(pair));
    enum keel_status status = keel_process_spawn(argv, &pair[1], 1, -1, &worker->process);
    close(pair[1]);
    if (status != KEEL_OK) {
        close(pair[0]);
        return status;
    }
    worker->link = pair[0];
    worker->running = true;
    return KEEL_OK;
}

static void effect_worker_start(void *context, uint8_t local, uint32_t incarnation)
{
    struct agent *agent = agent_of(context);
    struct worker *worker = worker_of(agent, local);
    KEEL_ASSERT(!worker->running);
    *worker = (struct worker){.link = -1, .kill_ns = KEEL_NEVER, .process.pidfd = -1};
    worker->start_status = spawn(agent, local, incarnation);
    if (worker->start_status == KEEL_OK)
        return;
    worker->unstarted = true;
    snprintf(worker->start_detail, sizeof worker->start_detail, "%s", keel_detail());
}

static void effect_worker_kill(void *context, uint8_t local)
{
    struct worker *worker = worker_of(agent_of(context), local);
    worker->view_due = false; /* the next may be without it */
    if (worker->running)
        keel_process_signal(&worker->process, SIGKILL);
}

/* Send what is due as far as the link takes it. */
static void write_link(const struct agent *agent, struct worker *worker)
{
    struct keel_link_message message;
    memset(&message, 0, sizeof message);
    enum keel_status status = KEEL_OK;
    if (worker->link >= 0 && worker->view_due) {
        message.kind = KEEL_LINK_VIEW;
        message.as.view_file = agent->view_file;
        status = keel_link_send(worker->link, &message, 0);
        worker->view_due = status == KEEL_TIMEOUT;
    }
    if (worker->link >= 0 && worker->stop_due && !worker->view_due) {
        message.kind = KEEL_LINK_STOP;
        status = keel_link_send(worker->link, &message, 0);
        worker->stop_due = status == KEEL_TIMEOUT;
    }
    if (status != KEEL_OK && status != KEEL_TIMEOUT && status != KEEL_PEER_LOST)
        keel_log(KEEL_LOG_WARN, "%s", keel_detail()); /* its end shows when it is read */
}

static void forget_view_file(struct agent *agent)
{
    if (agent->view_file >= 0)
        close(agent->view_file);
    agent->view_file = -1;
}

/* All workers of a node are told the same one: false, if there is no file for it. */
static bool renew_view_file(struct agent *agent, const struct keel_view *view)
{
    if (agent->view_file >= 0 && agent->view_epoch == view->epoch)
        return true;
    forget_view_file(agent);
    agent->view_epoch = view->epoch;
    return keel_link_view_file(view, &agent->view_file) == KEEL_OK;
}

static void effect_tell_view(void *context, uint8_t local, const struct keel_view *view)
{
    struct agent *agent = agent_of(context);
    struct worker *worker = worker_of(agent, local);
    if (!renew_view_file(agent, view)) { /* it would wait, and others for it: it is started again */
        keel_log(KEEL_LOG_ERROR, "worker %u cannot be told a view: %s; it is killed", local, keel_detail());
        effect_worker_kill(context, local);
        return;
    }
    worker->view_due = true;
    write_link(agent, worker);
}

static void effect_tell_stop(void *context, uint8_t local)
{
    struct agent *agent = agent_of(context);
    struct worker *worker = worker_of(agent, local);
    worker->stop_due = true;
    write_link(agent, worker);
}

/* Where this node leads. */
static void effect_node_start(void *context, uint16_t node, uint32_t incarnation)
{
    keel_agent_gate_want(&agent_of(context)->gate, node, incarnation);
}

static const struct keel_env effects = {
    .tell_view = effect_tell_view,
    .tell_stop = effect_tell_stop,
    .worker_start = effect_worker_start,
    .worker_kill = effect_worker_kill,
};

/* ---- what workers say --------------------------------------------------------------------------------- */

/* False for a message that workers do not send. */
static bool event_of(const struct keel_link_message *message, struct keel_node_event *event)
{
    event->value = message->value;
    switch (message->kind) {
    case KEEL_LINK_READY:
        event->kind = KEEL_EVENT_WORKER_READY;
        event->address = message->as.address;
        return message->as.address.bytes <= KEEL_ADDRESS_BYTES;
    case KEEL_LINK_BEAT:
        event->kind = KEEL_EVENT_WORKER_BEAT;
        return true;
    case KEEL_LINK_STEP:
        event->kind = KEEL_EVENT_WORKER_STEP;
        event->record = &message->as.record;
        return true;
    case KEEL_LINK_SHARD:
        event->kind = KEEL_EVENT_WORKER_SHARD;
        event->attempt = message->attempt;
        event->summary = &message->as.summary;
        return true;
    case KEEL_LINK_ACCUSE:
        event->kind = KEEL_EVENT_WORKER_ACCUSES;
        event->rank = message->rank;
        event->cause = (enum keel_cause)message->cause;
        return message->cause < KEEL_CAUSE_COUNT;
    case KEEL_LINK_DONE:
        event->kind = KEEL_EVENT_WORKER_DONE;
        return true;
    case KEEL_LINK_NOTE:
    case KEEL_LINK_FAILED:
        event->kind = message->kind == KEEL_LINK_NOTE ? KEEL_EVENT_WORKER_NOTE : KEEL_EVENT_WORKER_FAILED;
        event->data = (const uint8_t *)message->as.text;
        event->bytes = (uint32_t)strlen(message->as.text);
        return true;
    default:
        return false;
    }
}

static void end_link(struct worker *worker)
{
    if (worker->link >= 0)
        close(worker->link);
    worker->link = -1;
    worker->kill_ns = keel_deadline_after_ns(link_grace_ns);
}

/* Hand over at most `limit` packets that wait. */
static void read_link(struct agent *agent, uint8_t local, int limit)
{
    struct worker *worker = worker_of(agent, local);
    struct keel_link_message message;
    for (int taken = 0; taken < limit && worker->link >= 0 && !agent->control.finished; taken++) {
        enum keel_status status = keel_link_receive(worker->link, &message, 0);
        if (status == KEEL_TIMEOUT)
            return;
        struct keel_node_event event = {.local = local};
        if (status == KEEL_OK && event_of(&message, &event)) {
            keel_control_step(&agent->control, &event);
            continue;
        }
        if (status == KEEL_OK && message.kind == KEEL_LINK_VIEW)
            close(message.as.view_file);
        if (status != KEEL_PEER_LOST)
            keel_log(KEEL_LOG_ERROR, "worker %u: %s; its link is closed", local,
                     status == KEEL_OK ? "says what workers do not say" : keel_detail());
        end_link(worker);
    }
}

static void reap(struct agent *agent, uint8_t local)
{
    struct worker *worker = worker_of(agent, local);
    read_link(agent, local, PACKETS_AT_EXIT);
    struct keel_process_end end = {0};
    enum keel_status status = keel_process_wait(&worker->process, keel_now_ns(), &end);
    if (status == KEEL_TIMEOUT)
        return;
    if (status != KEEL_OK)
        keel_log(KEEL_LOG_ERROR, "worker %u ended: %s", local, keel_detail());
    if (end.signaled || end.code != 0)
        keel_log(KEEL_LOG_WARN, "worker %u ended by %s %d%s%s", local, end.signaled ? "signal" : "exit code",
                 end.code, end.signaled && agent->plugin[0] != '\0' ? "; its model is the plug-in " : "",
                 end.signaled ? agent->plugin : "");
    keel_process_close(&worker->process);
    end_link(worker);
    worker->running = false;
    worker->view_due = worker->stop_due = false;
    worker->kill_ns = KEEL_NEVER;
    keel_control_step(
        &agent->control,
        &(struct keel_node_event){.kind = KEEL_EVENT_WORKER_EXIT, .local = local, .cause = KEEL_CAUSE_EXIT});
}

static void report_unstarted(struct agent *agent, uint8_t local)
{
    struct worker *worker = worker_of(agent, local);
    worker->unstarted = false;
    keel_log(KEEL_LOG_ERROR, "worker %u: %s", local, worker->start_detail);
    struct keel_node_event failed = {.kind = KEEL_EVENT_WORKER_FAILED,
                                     .local = local,
                                     .value = worker->start_status,
                                     .data = (const uint8_t *)worker->start_detail,
                                     .bytes = (uint32_t)strlen(worker->start_detail)};
    keel_control_step(&agent->control, &failed);
    keel_control_step(
        &agent->control,
        &(struct keel_node_event){.kind = KEEL_EVENT_WORKER_EXIT, .local = local, .cause = KEEL_CAUSE_EXIT});
}

/* ---- loop ---------------------------------------------------------------------------------------------- */

enum {
    FD_MAILBOX,
    FD_LAUNCHER,
    FD_COMMITTER,
    FD_GATE,
    FD_STARTERS,
    FD_WORKERS,
    FDS_PER_WORKER = 2,
    FD_MAX = FD_WORKERS + FDS_PER_WORKER * KEEL_WORKERS_PER_NODE
};

/* Fill the poll table (negative descriptors are skipped by poll) and tell the next deadline. */
static uint64_t prepare(const struct agent *agent, struct pollfd fds[FD_MAX])
{
    const uint64_t gate_ns = keel_agent_gate_deadline_ns(&agent->gate);
    uint64_t deadline_ns = gate_ns < agent->control.timer_ns ? gate_ns : agent->control.timer_ns;
    fds[FD_MAILBOX] = (struct pollfd){.fd = keel_mailbox_fd(agent->mailbox), .events = POLLIN};
    const int launcher = agent->alone ? -1 : agent->dialed.fd;
    fds[FD_LAUNCHER] = (struct pollfd){
        .fd = agent->options.join != NULL ? launcher : agent->succession.leader.pidfd, .events = POLLIN};
    fds[FD_COMMITTER] = (struct pollfd){.fd = keel_agent_lead_fd(&agent->lead), .events = POLLIN};
    fds[FD_GATE] = (struct pollfd){.fd = keel_agent_gate_fd(&agent->gate), .events = POLLIN};
    fds[FD_STARTERS] = (struct pollfd){.fd = keel_agent_gate_starters_fd(&agent->gate), .events = POLLIN};
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        const struct worker *worker = &agent->workers[i];
        bool due = worker->view_due || worker->stop_due;
        struct pollfd *pair = &fds[FD_WORKERS + FDS_PER_WORKER * i];
        pair[0] = (struct pollfd){.fd = worker->running ? worker->process.pidfd : -1, .events = POLLIN};
        pair[1] = (struct pollfd){.fd = worker->link, .events = (short)(due ? POLLIN | POLLOUT : POLLIN)};
        if (worker->running && worker->kill_ns < deadline_ns)
            deadline_ns = worker->kill_ns;
        if (worker->unstarted)
            deadline_ns = 0;
    }
    return deadline_ns;
}

static void serve_worker(struct agent *agent, uint8_t local, const struct pollfd pair[FDS_PER_WORKER])
{
    struct worker *worker = worker_of(agent, local);
    if (pair[1].revents & POLLOUT)
        write_link(agent, worker);
    if (pair[1].revents & (POLLIN | POLLHUP | POLLERR))
        read_link(agent, local, PACKETS_PER_TURN);
    if (pair[0].revents != 0)
        reap(agent, local);
    if (worker->unstarted)
        report_unstarted(agent, local);
    if (worker->running && worker->kill_ns <= keel_now_ns()) {
        keel_log(KEEL_LOG_WARN, "worker %u closed its link but stays: killed", local);
        keel_process_signal(&worker->process, SIGKILL);
        worker->kill_ns = KEEL_NEVER;
    }
}

static void give_up(struct agent *agent, enum keel_status status, const char *detail)
{
    agent->deserted = true;
    struct keel_control_plane *control = &agent->control;
    control->finished = true;
    control->status = status;
    snprintf(control->detail, sizeof control->detail, "%s", detail);
}

/* Of an agent that dials in. What the launcher still said in datagrams comes before that it is gone. */
static void look_around(struct agent *agent, const struct pollfd *launcher)
{
    if (agent->control.finished || agent->options.join == NULL)
        return;
    if (keel_process_interrupted())
        give_up(agent, KEEL_INTERRUPTED, "interrupted: the run goes on without this node");
    else if (launcher->revents != 0) {
        enum keel_status status = keel_dialed_hear(&agent->dialed);
        if (status == KEEL_PEER_LOST && keel_job_holders(&agent->job) > 1) {
            keel_log(KEEL_LOG_WARN, "the launcher is gone: the run goes on without it");
            agent->alone = true;
            return;
        }
        give_up(agent, status, status == KEEL_PEER_LOST ? "the launcher is gone" : keel_detail());
    }
}

static void look_at_lead(struct agent *agent)
{
    if (agent->control.finished || !may_lead(agent))
        return;
    const enum keel_status status = keel_agent_lead_turn(&agent->lead);
    if (status != KEEL_OK)
        give_up(agent, status, keel_detail());
}

static void loop(struct agent *agent)
{
    struct pollfd fds[FD_MAX] = {{.fd = -1}};
    while (!agent->control.finished) {
        look_around(agent, &fds[FD_LAUNCHER]);
        uint64_t deadline_ns = prepare(agent, fds);
        nfds_t count = FD_WORKERS + FDS_PER_WORKER * agent->worker_count;
        if (poll(fds, count, keel_remaining_poll_ms(deadline_ns)) < 0) {
            fds[FD_LAUNCHER].revents = 0;
            continue; /* EINTR */
        }
        for (uint32_t i = 0; i < agent->worker_count; i++)
            serve_worker(agent, (uint8_t)i, &fds[FD_WORKERS + FDS_PER_WORKER * i]);
        keel_control_turn(&agent->control);
        look_at_lead(agent);
        keel_agent_gate_turn(&agent->gate);
        if (agent->options.join == NULL)
            keel_succession_turn(&agent->succession, &agent->control, fds[FD_LAUNCHER].revents != 0);
    }
}

/* Workers that said DONE go by themselves; others are killed. None is left behind. */
static void end_workers(struct agent *agent)
{
    bool orderly = agent->control.status == KEEL_OK || agent->control.status == KEEL_INTERRUPTED;
    uint64_t deadline_ns = keel_deadline_after_ns(orderly ? end_grace_ns : 0);
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct worker *worker = &agent->workers[i];
        struct keel_process_end end;
        if (!worker->running)
            continue;
        if (keel_process_wait(&worker->process, deadline_ns, &end) == KEEL_TIMEOUT) {
            keel_process_signal(&worker->process, SIGKILL);
            keel_process_wait(&worker->process, keel_deadline_after_ns(end_grace_ns), &end);
        }
        keel_process_close(&worker->process);
        end_link(worker);
        worker->running = false;
    }
}

/* ---- life ---------------------------------------------------------------------------------------------- */

enum taken { NODE, INCARNATION, RUN, WAIT, PASSED_ON };

static enum keel_status parse_number(const char *name, const char *text, int base, uint64_t limit,
                                     uint64_t *out)
{
    char *end;
    unsigned long long value = strtoull(text, &end, base);
    if (text[0] < '0' || *end != '\0' || value > limit)
        return keel_fail(KEEL_INVALID, "%s %.60s: a whole number up to %" PRIu64 " is wanted", name, text,
                         limit);
    *out = value;
    return KEEL_OK;
}

static enum keel_status take_option(void *own, const struct keel_command_option *option, char *value)
{
    struct options *options = own;
    switch ((enum taken)option->offset) {
    case NODE:
        if (parse_number(option->name, value, 10, KEEL_NODES_MAX - 1, &options->node) != KEEL_OK ||
            options->node == 0)
            return keel_fail(
                KEEL_INVALID,
                "--node %.60s: a number from 1 to %d is wanted (node 0 is the launcher); without "
                "--node it is one that the run wants",
                value, KEEL_NODES_MAX - 1);
        return KEEL_OK;
    case INCARNATION:
        return parse_number(option->name, value, 10, UINT32_MAX >> 8, &options->incarnation);
    case RUN:
        return parse_number(option->name, value, 16, UINT64_MAX, &options->run);
    case WAIT:
        return parse_number("--wait (seconds)", value, 10, WAIT_MAX_S, &options->wait_s);
    case PASSED_ON:
        break;
    }
    if (options->passed_on_count + 2 > KEEL_PASSED_ON_MAX)
        return keel_fail(KEEL_LIMIT, "more than %d options for workers", KEEL_PASSED_ON_MAX / 2);
    options->passed_on[options->passed_on_count++] = (char *)option->name;
    options->passed_on[options->passed_on_count++] = value;
    return KEEL_OK;
}

#define INTO(field) offsetof(struct options, field)
static const struct keel_command_option agent_options[] = {
    {"--join", "HOST:PORT,...", KEEL_COMMAND_TEXT, INTO(join),
     "dial in to a run: where its launcher listens, as keel run prints it ([IPv6]:PORT), and agents that may "
     "lead in its place (cluster.holders)"},
    {"--key-file", "FILE", KEEL_COMMAND_TEXT, INTO(key_file),
     "a copy of job.key of the run's directory, which only its owner can read; - is the standard input"},
    {"--node", "N", KEEL_COMMAND_CALL, NODE, "be this node, from 1; without it, one that is wanted"},
    {"--address", "ADDRESS[:PORT]", KEEL_COMMAND_TEXT, INTO(address),
     "of this host, by which the others reach it; without it, that on the way to the launcher, and any port"},
    {"--store", "DIR", KEEL_COMMAND_TEXT, INTO(store),
     "where this host has the run's snapshots (DIR/ckpt of keel run), if it is another path here; it also "
     "says "
     "who leads, when none of the places does"},
    {"--dir", "DIR", KEEL_COMMAND_TEXT, INTO(directory),
     "for this node's own files; without it, one in $TMPDIR or /tmp that goes at the end"},
    {"--wait", "SECONDS", KEEL_COMMAND_CALL, WAIT, "dial so long where nobody answers (60)"},
    {"--launcher", "HOST:PORT", KEEL_COMMAND_TEXT, INTO(launcher), NULL},
    {"--run", "HEX", KEEL_COMMAND_CALL, RUN, NULL},
    {"--incarnation", "I", KEEL_COMMAND_CALL, INCARNATION, NULL},
    {"--drill", "SPEC", KEEL_COMMAND_CALL, PASSED_ON, NULL},
    {"--resume", "WHAT", KEEL_COMMAND_CALL, PASSED_ON, NULL},
    {"--dump-graph", "DIR", KEEL_COMMAND_CALL, PASSED_ON, NULL},
    {"--passes-off", "LIST", KEEL_COMMAND_CALL, PASSED_ON, NULL},
    {"--trace-device", "DIR", KEEL_COMMAND_CALL, PASSED_ON, NULL},
    {.name = NULL},
};

static const char usage[] = "keel agent --join HOST:PORT[,HOST:PORT]... --key-file FILE [--node N]";

static void print_help(void)
{
    printf(
        "usage: %s [--address ADDRESS] [--store DIR] [--dir DIR] [--wait SECONDS]\n\n"
        "One node of a run on another host than its launcher: proves the job key, takes job and number "
        "over,\n"
        "starts the node's workers, watches them and speaks for them. A signal ends it; the run goes on. "
        "When\n"
        "it loses the launcher it ends its workers and dials again. Agents on the launcher's own host are\n"
        "started by keel run, with words of its own.\n\n",
        usage);
    keel_command_print_options(stdout, agent_options);
    puts("\nexamples:\n"
         "  keel run job.conf --set cluster.launch=none --set cluster.bind=10.0.0.1:4711   # on 10.0.0.1\n"
         "  keel agent --join 10.0.0.1:4711 --key-file job.key                             # on each host\n"
         "  ssh h1 cat runs/demo/job.key | keel agent --join h1:4711 --key-file -\n"
         "\nexit codes: 0 done, 1 failed, 2 wrong use, 3 could not run here, 4 data is damaged,\n"
         "            5 interrupted: the run can be resumed");
}

/* NULL, or what does not go together. */
static const char *wrong_words(const struct options *options, uint32_t operand_count)
{
    const bool started = options->launcher != NULL || options->run != 0 || options->incarnation != 0;
    if (options->join != NULL && (started || operand_count > 0))
        return "--join hands over the job and all that makes a node: no JOB, --launcher, --run or "
               "--incarnation";
    if (options->join != NULL && options->key_file == NULL)
        return "--join needs --key-file FILE, a copy of job.key of the run's directory";
    if (options->join == NULL &&
        (options->key_file != NULL || options->address != NULL || options->store != NULL))
        return "--key-file, --address and --store go with --join";
    if (options->join == NULL &&
        (operand_count == 0 || options->directory == NULL || options->launcher == NULL ||
         options->node == 0 || options->incarnation == 0 || options->run == 0))
        return "--join HOST:PORT[,HOST:PORT]... and --key-file FILE are wanted";
    return NULL;
}

static enum keel_status parse(int argc, char **argv, struct options *out, bool *help)
{
    struct keel_command_words words = {
        .options = agent_options, .own = out, .take = take_option, .operands_max = 1};
    enum keel_status status = keel_command_read(&words, argc, argv);
    *help = words.help;
    out->job_path = words.operands[0];
    const char *wrong = words.help || status != KEEL_OK ? NULL : wrong_words(out, words.operand_count);
    if (wrong != NULL)
        status = keel_fail(KEEL_INVALID, "%s", wrong);
    const char *move = status != KEEL_OK ? usage : ""; /* else what it is to be is said */
    if (status == KEEL_OK && !words.help && out->join != NULL)
        status = keel_dial_check(out->join, out->address);
    if (status == KEEL_OK)
        return KEEL_OK;
    char why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "%.480s", keel_detail());
    return keel_fail(status, "keel agent: %s%s%s", why, move[0] != '\0' ? "; " : "", move);
}

static void on_stranger(void *context, const char *place, const char *reason, uint64_t total)
{
    (void)context;
    keel_log(KEEL_LOG_WARN, "%s: a datagram %s was dropped (%" PRIu64 " so far)", place, reason, total);
}

static enum keel_status open_mailbox(struct agent *agent)
{
    struct keel_secret secret;
    uint8_t key[KEEL_SECRET_BYTES];
    KEEL_TRY(keel_secret_load(agent->options.directory, false, &secret));
    keel_secret_derive(&secret, "control", key);
    keel_secret_wipe(&secret);
    const struct keel_mailbox_config config = {.bind = agent->dialed.fd >= 0 ? &agent->dialed.here : NULL,
                                               .key = key,
                                               .run = agent->options.run,
                                               .node = (uint16_t)agent->options.node,
                                               .incarnation = (uint32_t)agent->options.incarnation,
                                               .launcher = agent->options.launcher,
                                               .by = agent->dialed.job.by,
                                               .by_tag = agent->dialed.job.by_tag,
                                               .by_place = agent->dialed.launcher,
                                               .stranger = on_stranger};
    return keel_mailbox_open(&config, &agent->mailbox);
}

/* One port for datagrams and connections, as the launcher's: one that others have is given back. */
static enum keel_status open_network(struct agent *agent, const struct keel_node_config *node)
{
    KEEL_TRY(open_mailbox(agent));
    if (keel_job_holders(&agent->job) == 1)
        return KEEL_OK;
    for (int tries = 0;; tries++) {
        const struct keel_agent_gate_config config = {.dialed = &agent->dialed,
                                                      .launcher = agent->options.launcher,
                                                      .secret = &agent->secret,
                                                      .job = &agent->job,
                                                      .program = agent->self,
                                                      .control = &agent->control,
                                                      .leading = &agent->lead.leading,
                                                      .mailbox = agent->mailbox,
                                                      .node_count = node->node_count,
                                                      .timeout_ns = node->timeout_ns};
        const enum keel_status status = keel_agent_gate_open(&agent->gate, &config);
        if (status != KEEL_BUSY || agent->dialed.here.port != 0 || tries == PORT_TRIES)
            return status;
        keel_mailbox_close(agent->mailbox);
        agent->mailbox = NULL;
        KEEL_TRY(open_mailbox(agent));
    }
}

/* The longest datagram that is sent in this run is one that carries a view. */
static uint32_t longest_message(const struct keel_job *job)
{
    const uint32_t view = 2048 + (job->ranks + job->spares) * 75 + job->shards * 2;
    return view < KEEL_MESSAGE_BYTES ? view : KEEL_MESSAGE_BYTES;
}

static enum keel_status open_control(struct agent *agent)
{
    struct keel_job *job = &agent->job;
    struct keel_node_config node;
    struct keel_env env = effects;
    KEEL_TRY(
        keel_control_layout(job, (uint16_t)agent->options.node, (uint32_t)agent->options.incarnation, &node));
    KEEL_TRY(open_network(agent, &node));
    keel_mailbox_greet(agent->mailbox);
    node.leader = agent->dialed.job.by;
    if (agent->dialed.fd >= 0)
        KEEL_TRY(keel_dialed_probe(&agent->dialed, agent->mailbox, longest_message(job)));
    if (keel_job_holders(job) > 1) { /* it may be given the register, and lead */
        agent->lead.control = &agent->control;
        agent->lead.store_path = agent->options.store;
        agent->lead.words.run = agent->options.run;
        keel_mailbox_place(agent->mailbox, agent->lead.words.place);
        if (strcmp(agent->keep, agent->options.directory) != 0) /* $TMPDIR is everybody's */
            KEEL_TRY(keel_dir_private(agent->keep));
        KEEL_TRY(keel_agent_lead_init(&agent->lead, job, agent->options.directory, agent->keep, &node));
        keel_agent_lead_fill(&env);
        env.node_start = effect_node_start;
    }
    if (agent->options.join == NULL) {
        agent->succession = (struct keel_succession){.directory = agent->options.directory,
                                                     .self = agent->self,
                                                     .passed_on = agent->options.passed_on,
                                                     .passed_on_count = agent->options.passed_on_count,
                                                     .run = agent->options.run,
                                                     .timeout_ns = node.timeout_ns};
        KEEL_TRY(keel_succession_begin(&agent->succession, node.node, node.incarnation));
    }
    memcpy(agent->plugin, job->plugin_path, sizeof agent->plugin);
    agent->worker_count = node.worker_count;
    forget_view_file(agent); /* of another run, maybe */
    for (uint32_t i = 0; i < agent->worker_count; i++)
        agent->workers[i] = (struct worker){.link = -1, .kill_ns = KEEL_NEVER, .process.pidfd = -1};
    const struct keel_control_config config = {.node = &node,
                                               .mailbox = agent->mailbox,
                                               .leading = may_lead(agent) ? &agent->lead.leading : NULL,
                                               .state_path = may_lead(agent) ? agent->lead.state_path : NULL,
                                               .effects = &env,
                                               .owner = agent};
    return keel_control_init(&agent->control, &config);
}

static enum keel_status start(struct agent *agent)
{
    KEEL_TRY(keel_self_path(agent->self, sizeof agent->self));
    KEEL_TRY(keel_job_load(agent->options.job_path, NULL, 0, &agent->job));
    KEEL_TRY(open_control(agent));
    return keel_control_start(&agent->control);
}

static enum keel_status run(struct agent *agent)
{
    KEEL_TRY(start(agent));
    loop(agent);
    keel_agent_gate_look_at_stop(&agent->gate, &agent->job, false);
    end_workers(agent);
    enum keel_status status = agent->control.status;
    agent->drained = status == KEEL_OK && strcmp(agent->control.detail, KEEL_NODE_DRAINED) == 0;
    if (agent->drained)
        keel_log(KEEL_LOG_WARN, "%s", agent->control.detail);
    if (may_lead(agent)) {
        const bool lost = agent->deserted || agent->drained || status == KEEL_PEER_LOST;
        status = keel_agent_lead_end(&agent->lead, lost, status, agent->control.detail);
        if (agent->lead.abandoned) {
            keel_agent_gate_look_at_stop(&agent->gate, &agent->job, true);
            status = agent->control.status;
        }
    }
    return status == KEEL_OK ? KEEL_OK : keel_fail(status, "%s", agent->control.detail);
}

static void close_node(struct agent *agent, enum keel_status status, const char *detail)
{
    const bool over = agent->control.finished && !agent->deserted && !agent->drained &&
                      agent->control.status != KEEL_PEER_LOST;
    keel_agent_gate_close(&agent->gate, over, status, detail);
    keel_control_fini(&agent->control);
    keel_mailbox_close(agent->mailbox);
    agent->mailbox = NULL;
    keel_agent_lead_fini(&agent->lead);
}

/* How the run ended is the launcher's to say; what ended this agent alone is ours. */
static void log_end(const struct keel_control_plane *control, enum keel_status status)
{
    bool told = control->finished && status != KEEL_PEER_LOST && !control->undurable;
    if (status != KEEL_OK)
        keel_log(told ? KEEL_LOG_INFO : KEEL_LOG_ERROR, "%s", keel_detail());
}

static void set_name(uint64_t node)
{
    char name[32];
    snprintf(name, sizeof name, "agent %" PRIu64, node);
    keel_log_set_name(name);
}

static enum keel_status live(struct agent *agent)
{
    char why[KEEL_DETAIL_BYTES];
    set_name(agent->options.node);
    keel_link_ignore_signals();
    const enum keel_status status = run(agent);
    snprintf(why, sizeof why, "%s", status == KEEL_OK ? "" : keel_detail());
    if (agent->drained)
        keel_succession_leave(&agent->succession);
    else if (agent->control.finished && status != KEEL_PEER_LOST)
        keel_succession_end(&agent->succession, status, why);
    keel_detail_set(why);
    return status;
}

/* ---- dialing in ---------------------------------------------------------------------------------------- */

/* What was handed over becomes what a launcher of this host would have said. */
static enum keel_status take_job(struct agent *agent, const char *directory, const char *own_store,
                                 char launcher[KEEL_PLACE_BYTES], char job_path[KEEL_PATH_BYTES])
{
    const struct keel_handed_job *job = &agent->dialed.job;
    struct options *options = &agent->options;
    KEEL_TRY(keel_dialed_settle(&agent->dialed, &agent->secret, directory));
    KEEL_TRY(keel_path_join(job_path, directory, "job.conf"));
    if (job->launcher[0] != '\0')
        snprintf(launcher, KEEL_PLACE_BYTES, "%.*s", KEEL_PLACE_BYTES - 1, job->launcher);
    else
        keel_net_place_print(&agent->dialed.launcher, launcher);
    options->job_path = job_path;
    options->directory = directory;
    options->launcher = launcher;
    options->node = job->node;
    options->incarnation = job->incarnation;
    options->run = job->run;
    options->store = job->store[0] == '\0' ? NULL : own_store != NULL ? own_store : job->store;
    memcpy(options->passed_on, job->words, job->word_count * sizeof job->words[0]);
    options->passed_on_count = job->word_count;
    snprintf(agent->store, sizeof agent->store, "%s", options->store != NULL ? options->store : "");
    if (options->store == NULL)
        return KEEL_OK;
    struct keel_slow_watch watch = {
        .path = options->store,
        .move = "bring it back, and this node begins; or end this agent, and give another --store"};
    keel_slow_begin(&watch);
    const enum keel_status status = keel_store_check(options->store, options->run);
    keel_slow_end(&watch);
    return status;
}

/* For the next life: who let this one in may be gone then. */
static void remember_places(struct agent *agent)
{
    uint16_t nodes[KEEL_NODE_CANDIDATES_MAX];
    if (!may_lead(agent) || agent->control.node == NULL)
        return;
    const uint32_t count = keel_node_candidates(agent->control.node, nodes);
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        char place[KEEL_PLACE_BYTES];
        if (nodes[i] != agent->options.node && keel_mailbox_place_of(agent->mailbox, nodes[i], place))
            used += (size_t)snprintf(agent->known + used, sizeof agent->known - used, "%s%s",
                                     used > 0 ? "," : "", place);
    }
}

/* One life as a node. `*again`: the launcher was lost. */
static enum keel_status live_as_node(struct agent *agent, const char *directory, const char *own_store,
                                     bool *again)
{
    char launcher[KEEL_PLACE_BYTES], job_path[KEEL_PATH_BYTES], why[KEEL_DETAIL_BYTES];
    agent->deserted = agent->alone = false;
    enum keel_status status = take_job(agent, directory, own_store, launcher, job_path);
    set_name(agent->options.node);
    if (status == KEEL_OK)
        status = run(agent);
    snprintf(why, sizeof why, "%s", keel_detail());
    *again = status == KEEL_PEER_LOST && !agent->lead.abandoned; /* also before it began */
    if (*again)
        keel_log(KEEL_LOG_WARN, "%s; dialing %s again", why, agent->options.join);
    remember_places(agent);
    if (!*again && !agent->deserted && !agent->alone)
        keel_dialed_leave(&agent->dialed, agent->control.finished ? KEEL_OK : status, why);
    close_node(agent, status, why);
    keel_dialed_close(&agent->dialed);
    keel_detail_set(why);
    return status;
}

static enum keel_status dial_and_live(struct agent *agent, const char *directory)
{
    const char *own_store = agent->options.store;
    agent->dial = (struct keel_dial_config){.places = agent->options.join,
                                            .known = agent->known,
                                            .store = own_store,
                                            .address = agent->options.address,
                                            .secret = &agent->secret,
                                            .release = KEEL_RELEASE,
                                            .node = (uint16_t)agent->options.node,
                                            .patience_ns = agent->options.wait_s * KEEL_NS_PER_S};
    randombytes_buf(&agent->dial.instance, sizeof agent->dial.instance);
    enum keel_status status;
    bool again;
    do {
        again = false;
        agent->control = (struct keel_control_plane){.owner = NULL};
        status = keel_dial(&agent->dial, &agent->dialed);
        if (status == KEEL_OK)
            status = live_as_node(agent, directory, own_store, &again);
        agent->dial.store = agent->store[0] != '\0' ? agent->store : own_store;
    } while (again);
    return status;
}

/* The node's own directory, which holds its key. */
static enum keel_status own_directory(struct agent *agent, char out[KEEL_PATH_BYTES], bool *made)
{
    const char *parent = getenv("TMPDIR");
    parent = parent != NULL && parent[0] != '\0' ? parent : "/tmp";
    *made = agent->options.directory == NULL;
    if (*made)
        snprintf(agent->keep, sizeof agent->keep, "%.*s/keel-holders-%ld", KEEL_PATH_BYTES - 64, parent,
                 (long)geteuid());
    else
        snprintf(agent->keep, sizeof agent->keep, "%s", agent->options.directory);
    if (!*made) {
        snprintf(out, KEEL_PATH_BYTES, "%s", agent->options.directory);
        return keel_mkdir_all(out);
    }
    KEEL_TRY(keel_path_join(out, parent, "keel-agent-XXXXXX"));
    return mkdtemp(out) != NULL ? KEEL_OK : keel_fail_errno(errno, "%s: cannot be made; give --dir", out);
}

static enum keel_status join(struct agent *agent)
{
    char directory[KEEL_PATH_BYTES], lock[KEEL_PATH_BYTES];
    bool made;
    int lock_fd = -1;
    keel_log_set_name("agent");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    keel_process_heed_interrupts();
    (void)keel_process_hold_interrupts(true);
    KEEL_TRY(keel_secret_read(agent->options.key_file, &agent->secret));
    KEEL_TRY(own_directory(agent, directory, &made));
    enum keel_status status = keel_path_join(lock, directory, "agent.lock");
    if (status == KEEL_OK)
        status = keel_file_lock(lock, false, 0, &lock_fd);
    if (status == KEEL_BUSY)
        status = keel_fail(status, "--dir %s: another agent is at work there; give another", directory);
    if (status == KEEL_OK)
        status = dial_and_live(agent, directory);
    char why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "%s", keel_detail());
    if (lock_fd >= 0)
        keel_file_unlock(lock_fd);
    if (made && keel_remove_tree(directory) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "%s", keel_detail());
    keel_detail_set(why);
    return status;
}

int keel_agent_main(const struct keel_agent_output *output, int argc, char **argv)
{
    struct agent *agent;
    bool help = false;
    if (keel_alloc(1, sizeof *agent, &agent) != KEEL_OK)
        return keel_status_exit_code(KEEL_NO_MEMORY);
    agent->dialed.fd = agent->view_file = -1;
    agent->lead = (struct keel_agent_lead){.output = output, .lock_fd = -1};
    agent->options.wait_s = WAIT_S;
    enum keel_status status = parse(argc, argv, &agent->options, &help);
    if (help)
        print_help();
    else if (status != KEEL_OK)
        fprintf(stderr, "%s\n", keel_detail()); /* to whoever typed it: not a line of a log */
    else {
        status = agent->options.join != NULL ? join(agent) : live(agent);
        log_end(&agent->control, status);
    }
    close_node(agent, status, "");
    keel_secret_wipe(&agent->secret);
    const int code = keel_status_exit_code(agent->gate.unsaved ? KEEL_INTERRUPTED : status);
    if (agent->lead.abandoned) /* a thread of it may yet look at the agent */
        _exit(code);
    keel_free(agent);
    return code;
}
