/* agent.c - one node of a run: starts workers, watches them, speaks for them.
 *
 * Owns its workers' processes and links, and one poll loop over them, the mailbox and the timer. Promises
 * never to wait for a worker: what a worker's link does not take at once is kept (only the newest view
 * counts) until the link is writable. Everything that is decided is decided in node.c.
 *
 * A worker has ended when its process has, and not before everything that it still said was heard. A
 * worker whose link ended but whose process stays is killed after a grace.
 *
 * SIGINT, SIGTERM and SIGHUP are ignored, as workers ignore them: on a terminal or under a service manager
 * they reach all processes of a run at once, and it is the launcher that turns them into an orderly end. An
 * agent ends when the launcher says so, falls silent, or dies (PR_SET_PDEATHSIG). */
#include "agent.h"

#include "control.h"
#include "secret.h"
#include "worker_link.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PACKETS_PER_TURN = 64, PACKETS_AT_EXIT = 4096 };

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
    uint64_t kill_ns; /* when its grace ends; KEEL_NEVER */
    bool view_due, stop_due;
    struct keel_view view; /* the newest, while view_due */
};

struct options {
    const char *job_path, *directory, *launcher;
    uint64_t node, incarnation, run;
    char *passed_on[KEEL_PASSED_ON_MAX]; /* --drill SPEC, --resume WHAT, ...: for the workers */
    uint32_t passed_on_count;
};

struct agent {
    struct options options;
    struct keel_control_plane control;
    struct keel_mailbox *mailbox;
    char self[KEEL_PATH_BYTES];
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

/* ---- effects ---------------------------------------------------------------------------------------- */

static enum keel_status spawn(struct agent *agent, uint8_t local, uint32_t incarnation)
{
    struct worker *worker = worker_of(agent, local);
    char node_text[12], local_text[12], incarnation_text[12];
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
    char *argv[FIXED + KEEL_PASSED_ON_MAX + 1] = {0};
    memcpy(argv, fixed, sizeof fixed);
    memcpy(argv + FIXED, agent->options.passed_on, agent->options.passed_on_count * sizeof argv[0]);
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
    if (worker->running)
        keel_process_signal(&worker->process, SIGKILL);
}

/* Send what is due as far as the link takes it. */
static void write_link(struct worker *worker)
{
    struct keel_link_message message;
    memset(&message, 0, sizeof message);
    enum keel_status status = KEEL_OK;
    if (worker->link >= 0 && worker->view_due) {
        message.kind = KEEL_LINK_VIEW;
        message.as.view = worker->view;
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

static void effect_tell_view(void *context, uint8_t local, const struct keel_view *view)
{
    struct worker *worker = worker_of(agent_of(context), local);
    worker->view = *view;
    worker->view_due = true;
    write_link(worker);
}

static void effect_tell_stop(void *context, uint8_t local)
{
    struct worker *worker = worker_of(agent_of(context), local);
    worker->stop_due = true;
    write_link(worker);
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
        keel_log(KEEL_LOG_WARN, "worker %u ended by %s %d", local, end.signaled ? "signal" : "exit code",
                 end.code);
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

enum { FD_MAILBOX, FD_WORKERS, FDS_PER_WORKER = 2, FD_MAX = FD_WORKERS + 2 * KEEL_WORKERS_PER_NODE };

/* Fill the poll table (negative descriptors are skipped by poll) and tell the next deadline. */
static uint64_t prepare(const struct agent *agent, struct pollfd fds[FD_MAX])
{
    uint64_t deadline_ns = agent->control.timer_ns;
    fds[FD_MAILBOX] = (struct pollfd){.fd = keel_mailbox_fd(agent->mailbox), .events = POLLIN};
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
        write_link(worker);
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

static void loop(struct agent *agent)
{
    struct pollfd fds[FD_MAX];
    while (!agent->control.finished) {
        uint64_t deadline_ns = prepare(agent, fds);
        nfds_t count = FD_WORKERS + FDS_PER_WORKER * agent->worker_count;
        if (poll(fds, count, keel_remaining_poll_ms(deadline_ns)) < 0)
            continue; /* EINTR */
        for (uint32_t i = 0; i < agent->worker_count; i++)
            serve_worker(agent, (uint8_t)i, &fds[FD_WORKERS + FDS_PER_WORKER * i]);
        keel_control_turn(&agent->control);
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

enum taken { NODE, INCARNATION, RUN, PASSED_ON };

static enum keel_status parse_number(const char *name, const char *text, int base, uint64_t limit,
                                     uint64_t *out)
{
    char *end;
    unsigned long long value = strtoull(text, &end, base);
    if (text[0] == '-' || text[0] == '\0' || *end != '\0' || value > limit)
        return keel_fail(KEEL_INVALID, "%s %s: not a number it can be", name, text);
    *out = value;
    return KEEL_OK;
}

static enum keel_status take_option(void *own, const struct keel_command_option *option, char *value)
{
    struct options *options = own;
    switch ((enum taken)option->offset) {
    case NODE:
        return parse_number(option->name, value, 10, KEEL_NODES_MAX - 1, &options->node);
    case INCARNATION:
        return parse_number(option->name, value, 10, UINT32_MAX >> 8, &options->incarnation);
    case RUN:
        return parse_number(option->name, value, 16, UINT64_MAX, &options->run);
    case PASSED_ON:
        break;
    }
    if (options->passed_on_count + 2 > KEEL_PASSED_ON_MAX)
        return keel_fail(KEEL_LIMIT, "more than %d options for workers", KEEL_PASSED_ON_MAX / 2);
    options->passed_on[options->passed_on_count++] = (char *)option->name;
    options->passed_on[options->passed_on_count++] = value;
    return KEEL_OK;
}

static const struct keel_command_option agent_options[] = {
    {"--dir", "DIR", KEEL_COMMAND_TEXT, offsetof(struct options, directory),
     "directory of the run, with its job.key"},
    {"--node", "N", KEEL_COMMAND_CALL, NODE, "number of this node, from 1; 0 is the launcher"},
    {"--launcher", "HOST:PORT", KEEL_COMMAND_TEXT, offsetof(struct options, launcher),
     "where the launcher listens"},
    {"--run", "HEX", KEEL_COMMAND_CALL, RUN, "number of the run, drawn at each start of the launcher"},
    {"--incarnation", "I", KEEL_COMMAND_CALL, INCARNATION, "how often this node was started, from 1 on"},
    {"--drill", "SPEC", KEEL_COMMAND_CALL, PASSED_ON,
     "this and what follows: for the workers; see keel run --help"},
    {"--resume", "WHAT", KEEL_COMMAND_CALL, PASSED_ON, "auto, none or a step"},
    {"--dump-graph", "DIR", KEEL_COMMAND_CALL, PASSED_ON, "where graphs go"},
    {"--passes-off", "LIST", KEEL_COMMAND_CALL, PASSED_ON, "passes that are left out"},
    {"--trace-device", "DIR", KEEL_COMMAND_CALL, PASSED_ON, "where traces go"},
    {.name = NULL},
};

static const char usage[] = "keel agent JOB --dir DIR --node N --launcher HOST:PORT --run HEX "
                            "--incarnation I [--drill SPEC]... [--resume WHAT]";

static void print_help(void)
{
    printf(
        "usage: %s\n\n"
        "One node of a run: starts its workers, watches them and speaks for them. keel run starts one per\n"
        "node and fills in all of this; what it hands to its agents is not meant to be typed.\n\n"
        "  JOB                    the job as the run uses it: DIR/job.conf\n",
        usage);
    keel_command_print_options(stdout, agent_options);
    puts("\nexit codes: 0 done, 1 failed, 2 wrong use, 3 could not run here, 4 data is damaged,\n"
         "            5 interrupted: the run can be resumed");
}

static enum keel_status parse(int argc, char **argv, struct options *out, bool *help)
{
    struct keel_command_words words = {
        .options = agent_options, .own = out, .take = take_option, .operands_max = 1};
    enum keel_status status = keel_command_read(&words, argc, argv);
    *help = words.help;
    if (status != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%.200s", keel_detail());
        return keel_fail(status, "keel agent: %s; %s", why, usage);
    }
    out->job_path = words.operands[0];
    if (!words.help && (out->job_path == NULL || out->directory == NULL || out->launcher == NULL ||
                        out->node == 0 || out->incarnation == 0 || out->run == 0))
        return keel_fail(KEEL_INVALID,
                         "keel agent: JOB and five options are wanted, numbers from 1 on (node 0 is the "
                         "launcher): %s; keel run fills them in",
                         usage);
    return KEEL_OK;
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
    const struct keel_mailbox_config config = {.key = key,
                                               .run = agent->options.run,
                                               .node = (uint16_t)agent->options.node,
                                               .incarnation = (uint32_t)agent->options.incarnation,
                                               .launcher = agent->options.launcher,
                                               .stranger = on_stranger};
    return keel_mailbox_open(&config, &agent->mailbox);
}

static enum keel_status open_control(struct agent *agent)
{
    struct keel_job job;
    struct keel_node_config node;
    char state[KEEL_PATH_BYTES], name[32];
    KEEL_TRY(keel_job_load(agent->options.job_path, NULL, 0, &job));
    KEEL_TRY(keel_control_layout(&job, (uint16_t)agent->options.node, (uint32_t)agent->options.incarnation,
                                 &node));
    snprintf(name, sizeof name, "node-%u.state", node.node);
    KEEL_TRY(keel_path_join(state, agent->options.directory, name));
    agent->worker_count = node.worker_count;
    for (uint32_t i = 0; i < agent->worker_count; i++)
        agent->workers[i] = (struct worker){.link = -1, .kill_ns = KEEL_NEVER, .process.pidfd = -1};
    const struct keel_control_config config = {.node = &node,
                                               .mailbox = agent->mailbox,
                                               .state_path = node.node < node.holder_count ? state : NULL,
                                               .effects = &effects,
                                               .owner = agent};
    return keel_control_init(&agent->control, &config);
}

static enum keel_status run(struct agent *agent)
{
    KEEL_TRY(keel_self_path(agent->self, sizeof agent->self));
    KEEL_TRY(open_mailbox(agent));
    KEEL_TRY(open_control(agent));
    KEEL_TRY(keel_control_start(&agent->control));
    loop(agent);
    end_workers(agent);
    enum keel_status status = agent->control.status;
    return status == KEEL_OK ? KEEL_OK : keel_fail(status, "%s", agent->control.detail);
}

/* How the run ended is the launcher's to say; what ended this agent alone is ours. */
static void log_end(const struct keel_control_plane *control, enum keel_status status)
{
    bool told = control->finished && status != KEEL_PEER_LOST && !control->undurable;
    if (status != KEEL_OK)
        keel_log(told ? KEEL_LOG_INFO : KEEL_LOG_ERROR, "%s", keel_detail());
}

static enum keel_status live(struct agent *agent)
{
    char name[32];
    snprintf(name, sizeof name, "agent %" PRIu64, agent->options.node);
    keel_log_set_name(name);
    keel_link_ignore_signals();
    return run(agent);
}

int keel_agent_main(int argc, char **argv)
{
    struct agent *agent;
    bool help = false;
    if (keel_alloc(1, sizeof *agent, &agent) != KEEL_OK)
        return keel_status_exit_code(KEEL_NO_MEMORY);
    enum keel_status status = parse(argc, argv, &agent->options, &help);
    if (help)
        print_help();
    else if (status != KEEL_OK)
        fprintf(stderr, "%s\n", keel_detail()); /* to whoever typed it: not a line of a log */
    else {
        status = live(agent);
        log_end(&agent->control, status);
    }
    keel_control_fini(&agent->control);
    keel_mailbox_close(agent->mailbox);
    keel_free(agent);
    return keel_status_exit_code(status);
}
