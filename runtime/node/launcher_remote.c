/* launcher_remote.c - the launcher's agents on other hosts: what starts them, the wait until they have come,
 * and the gate's news.
 *
 * Owns the text of the job that is handed over, and the processes that start agents (ssh, srun). Promises
 * that a run begins when all its agents are there, and that a host that is away is tried again, ever more
 * seldom. */
#include "launcher_state.h"

#include "dial.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GATHER_TIMEOUTS = 60 };
static const uint64_t gather_min_ns = 60 * KEEL_NS_PER_S;
static const uint64_t remind_ns = 30 * KEEL_NS_PER_S;

/* ---- starting them ---- */

static const char *host_of(const struct keel_launcher *launcher, uint16_t node)
{
    return keel_hosts_of(&launcher->hosts, launcher->config->job, node);
}

enum keel_status keel_remote_spawn(struct keel_launcher *launcher, uint16_t node, uint32_t incarnation)
{
    keel_gate_want(launcher->gate, node, incarnation);
    if (launcher->starters != NULL)
        keel_starters_start(launcher->starters, node);
    return KEEL_OK;
}

static void give_up_gathering(struct keel_launcher *launcher, enum keel_status status, const char *detail)
{
    if (launcher->gather_status != KEEL_OK)
        return;
    snprintf(launcher->gather_detail, sizeof launcher->gather_detail, "%s", detail);
    launcher->gather_status = status;
}

static bool lose_starter(void *context, uint16_t node, enum keel_status status, const char *why)
{
    struct keel_launcher *launcher = context;
    if (keel_gate_has(launcher->gate, node) || !keel_gate_wants(launcher->gate, node) ||
        (launcher->stopping && !launcher->gathering))
        return false;
    if (launcher->gathering)
        give_up_gathering(launcher, status, why);
    return !launcher->gathering;
}

static enum keel_status open_starters(struct keel_launcher *launcher)
{
    const struct keel_starters_config config = {.job = launcher->config->job,
                                                .hosts = &launcher->hosts,
                                                .secret = &launcher->secret,
                                                .program = launcher->self,
                                                .place = launcher->place,
                                                .node_count = launcher->node_count,
                                                .context = launcher,
                                                .lost = lose_starter};
    return launcher->config->job->launch == KEEL_LAUNCH_NONE
               ? KEEL_OK
               : keel_starters_open(&config, &launcher->starters);
}

/* ---- gathering: they come before the run begins ---- */

static void tell(struct keel_launcher *launcher, const char *text)
{
    launcher->report->tell(launcher->report->context, text);
}

static void tell_who_is_missing(struct keel_launcher *launcher)
{
    char nodes[256] = "", line[KEEL_DETAIL_BYTES];
    size_t used = 0;
    uint32_t count = 0;
    for (uint16_t node = keel_gate_missing(launcher->gate, 1); node != 0;
         node = keel_gate_missing(launcher->gate, (uint16_t)(node + 1))) {
        const char *host = host_of(launcher, node);
        count++;
        if (used + 96 < sizeof nodes)
            used += (size_t)snprintf(nodes + used, sizeof nodes - used, "%s %u%s%.64s", count > 1 ? "," : "",
                                     node, host[0] != '\0' ? " on " : "", host);
    }
    snprintf(line, sizeof line, "waits at %s for %u agents, of nodes%s", launcher->place, count, nodes);
    tell(launcher, line);
}

/* For people, who start the agents. */
static void tell_commands(struct keel_launcher *launcher)
{
    char command[KEEL_HOST_COMMAND_BYTES], line[KEEL_HOST_COMMAND_BYTES + 96];
    if (launcher->config->job->launch != KEEL_LAUNCH_NONE)
        return;
    snprintf(line, sizeof line,
             "copy %.300s/job.key to each host (mode 600), and start there:", launcher->config->directory);
    tell(launcher, line);
    for (uint16_t node = 1; node < launcher->node_count; node++) {
        const struct keel_job *job = launcher->config->job;
        const struct keel_host_command words = {.program =
                                                    job->command[0] != '\0' ? job->command : launcher->self,
                                                .place = launcher->place,
                                                .key_file = "job.key",
                                                .node = node};
        const char *host = host_of(launcher, node);
        if (keel_host_command_line(&words, command, sizeof command) != KEEL_OK)
            continue;
        snprintf(line, sizeof line, "  %.64s%s%s", host, host[0] != '\0' ? ": " : "", command);
        tell(launcher, line);
    }
}

static enum keel_status begin_run(struct keel_launcher *launcher)
{
    launcher->gathering = false;
    KEEL_TRY(keel_control_start(&launcher->control));
    for (uint16_t node = 1; node < launcher->node_count; node++)
        launcher->agents[node].joined_ns = keel_now_ns();
    keel_gate_release(launcher->gate);
    return KEEL_OK;
}

void keel_remote_gather(struct keel_launcher *launcher)
{
    const struct keel_launch_report *report = launcher->report;
    char text[KEEL_DETAIL_BYTES];
    if (report->stop != NULL && report->stop(report->context))
        launcher->stopping = true;
    const uint16_t missing = keel_gate_missing(launcher->gate, 1);
    if (launcher->stopping) {
        give_up_gathering(launcher, KEEL_INTERRUPTED, "stopped before all agents had come");
    } else if (missing == 0) {
        enum keel_status status = begin_run(launcher);
        if (status != KEEL_OK)
            give_up_gathering(launcher, status, keel_detail());
    } else if (keel_remaining_ns(launcher->gather_until_ns) == 0) {
        snprintf(text, sizeof text, "node %u: no agent came from %.64s in time; what it says is above",
                 missing, host_of(launcher, missing));
        give_up_gathering(launcher, KEEL_TIMEOUT, text);
    } else if (keel_remaining_ns(launcher->remind_at_ns) == 0) {
        launcher->remind_at_ns = keel_deadline_after_ns(remind_ns);
        tell_who_is_missing(launcher);
    }
}

/* Agents of other hosts come first; then the run begins. */
enum keel_status keel_remote_begin(struct keel_launcher *launcher)
{
    const struct keel_job *job = launcher->config->job;
    const uint64_t patience_ns = (uint64_t)(job->timeout_s * (double)KEEL_NS_PER_S) * GATHER_TIMEOUTS;
    if (keel_job_holders(job) <= 1) /* of a launcher that was killed; where others may lead it says where */
        keel_run_gates_remove(launcher->config->directory);
    launcher->gathering = true;
    launcher->remind_at_ns = keel_deadline_after_ns(remind_ns);
    launcher->gather_until_ns =
        job->launch == KEEL_LAUNCH_NONE
            ? KEEL_NEVER
            : keel_deadline_after_ns(patience_ns > gather_min_ns ? patience_ns : gather_min_ns);
    tell_commands(launcher);
    KEEL_TRY(open_starters(launcher));
    for (uint16_t node = 1; node < launcher->node_count; node++)
        KEEL_TRY(keel_remote_spawn(launcher, node, KEEL_FIRST_INCARNATION));
    return KEEL_OK;
}

/* ---- the gate ---- */

static bool is_silent(void *context, uint16_t node)
{
    const struct keel_launcher *launcher = context;
    const uint64_t joined_ns = launcher->agents[node].joined_ns;
    return keel_gate_gives_up(launcher->control.node, node, keel_mailbox_heard_ns(launcher->mailbox, node),
                              joined_ns > launcher->lead_ns ? joined_ns : launcher->lead_ns,
                              (uint64_t)(launcher->config->job->timeout_s * (double)KEEL_NS_PER_S));
}

/* Another node may, where one can (cluster.holders). */
static bool leads(void *context, char out[KEEL_PLACE_BYTES])
{
    const struct keel_launcher *launcher = context;
    const uint16_t leader = keel_node_leader(launcher->control.node);
    if (leader == 0)
        return true;
    if (leader == KEEL_NODE_NONE || !keel_mailbox_place_of(launcher->mailbox, leader, out))
        out[0] = '\0';
    return false;
}

static void take_news(void *context, const struct keel_gate_news *news)
{
    struct keel_launcher *launcher = context;
    if (!news->orderly)
        launcher->report->agent(launcher->report->context, news);
    if (news->kind == KEEL_GATE_JOINED) {
        launcher->agents[news->node].incarnation = news->incarnation;
        launcher->agents[news->node].joined_ns = keel_now_ns();
        if (launcher->starters != NULL)
            keel_starters_came(launcher->starters, news->node);
    }
    if (news->kind != KEEL_GATE_LEFT || launcher->gathering)
        return;
    launcher->refused_code = keel_status_exit_code(news->status);
    keel_launcher_tell_exit(launcher, news->node, news->incarnation);
}

/* What workers are told, with what is for a node's first life alone at the end: that a drill fired is on
 * record in the directory of its node, which the next one may not have. */
static void fill_words(const struct keel_launcher *launcher, struct keel_handed_job *job,
                       uint32_t *first_words)
{
    const struct keel_launch_config *config = launcher->config;
    for (int drills = 0; drills < 2; drills++) {
        for (uint32_t i = 0; i + 1 < config->passed_on_count; i += 2) {
            if ((strcmp(config->passed_on[i], "--drill") == 0) != (drills == 1))
                continue;
            job->words[job->word_count++] = config->passed_on[i];
            job->words[job->word_count++] = config->passed_on[i + 1];
            *first_words += drills == 1 ? 2 : 0;
        }
        if (drills == 0 && config->resume != NULL) {
            job->words[job->word_count++] = "--resume";
            job->words[job->word_count++] = config->resume;
        }
        if (drills == 0 && launcher->hosts.count > 0) {
            job->words[job->word_count++] = "--hosts";
            job->words[job->word_count++] = launcher->host_count;
        }
    }
}

enum keel_status keel_remote_open_gate(struct keel_launcher *launcher)
{
    const struct keel_launch_config *config = launcher->config;
    struct keel_net_place bind;
    KEEL_TRY(keel_net_place_parse(launcher->place, &bind));
    if (keel_job_holders(config->job) > 1 && launcher->state_text == NULL)
        KEEL_TRY(keel_local_state_text(config, &launcher->state_text));
    if (launcher->hosts_text == NULL)
        KEEL_TRY(keel_hosts_text(&launcher->hosts, &launcher->hosts_text));
    const bool starts = config->job->launch != KEEL_LAUNCH_NONE && keel_job_holders(config->job) > 1;
    struct keel_gate_config gate = {
        .bind = &bind,
        .advertised = &launcher->listen.advertised,
        .secret = &launcher->secret,
        .release = KEEL_RELEASE,
        .node_count = launcher->node_count,
        .job = {.run = launcher->run,
                .launcher = "",
                .job = launcher->job_text,
                .identity = config->identity,
                .store = launcher->store_path,
                .hosts = starts ? launcher->hosts_text : "",
                .state = launcher->state_text != NULL ? launcher->state_text : ""},
        .context = launcher,
        .news = take_news,
        .silent = is_silent,
        .leads = leads,
        .ask = keel_launcher_take_ask,
        .look = keel_launcher_look_at_ask};
    fill_words(launcher, &gate.job, &gate.first_words);
    KEEL_TRY(keel_gate_open(&gate, &launcher->gate));
    struct keel_net_place place = launcher->listen.advertised;
    char text[512], line[sizeof text + 128];
    place.port = bind.port;
    keel_net_place_print(&place, launcher->place);
    keel_hosts_network_text(&place, text, sizeof text);
    snprintf(line, sizeof line, "agents dial in at %s%s", launcher->place, text);
    tell(launcher, line);
    return KEEL_OK;
}

/* ---- the store ---- */

enum keel_status keel_remote_check(const struct keel_job *job)
{
    const bool common = keel_job_takes_snapshots(job) && !keel_job_has_local_snapshots(job);
    if (job->launch == KEEL_LAUNCH_LOCAL || job->sample_tokens == 0 || common)
        return KEEL_OK;
    if (keel_job_has_local_snapshots(job))
        return keel_fail(KEEL_INVALID,
                         "train.sample = %u: where agents are on other hosts the text comes by the store of "
                         "snapshots, which snapshot.local does without; leave one of them out (keel sample "
                         "writes text from snapshot.store)",
                         job->sample_tokens);
    return keel_fail(KEEL_INVALID,
                     "train.sample = %u: where agents are on other hosts the text comes by the store of "
                     "snapshots, and this job takes none; give snapshot.every, or train.sample = 0",
                     job->sample_tokens);
}

/* As agents are to find it, by a path that is whole. */
enum keel_status keel_remote_name_store(struct keel_launcher *launcher, const char *root)
{
    char *path = realpath(root, NULL);
    const bool fits = path != NULL && strlen(path) < sizeof launcher->store_path;
    if (fits)
        snprintf(launcher->store_path, sizeof launcher->store_path, "%s", path);
    free(path); /* realpath's own allocation */
    if (!fits)
        return keel_fail(KEEL_LIMIT, "%s: has no path that can be told to other hosts", root);
    return keel_store_mark(launcher->store_path, launcher->run);
}

/* Nodes with directories of their own leave the text in the store. */
void keel_remote_take_sample(const struct keel_launcher *launcher)
{
    char from[KEEL_PATH_BYTES], to[KEEL_PATH_BYTES];
    if (launcher->store_path[0] == '\0' || launcher->config->job->sample_tokens == 0 ||
        keel_path_join(from, launcher->store_path, "sample.txt") != KEEL_OK ||
        keel_path_join(to, launcher->config->directory, "sample.txt") != KEEL_OK)
        return;
    if (rename(from, to) != 0 && errno != ENOENT)
        keel_log(KEEL_LOG_WARN, "%s: cannot be moved to %s: %s", from, to, strerror(errno));
}
