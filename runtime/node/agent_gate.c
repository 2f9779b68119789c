/* agent_gate.c - see agent_gate.h. */
#include "agent_gate.h"

#include "membership.h"
#include "run_asks.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <stdio.h>
#include <string.h>

static bool is_silent(void *context, uint16_t node)
{
    const struct keel_agent_gate *gate = context;
    const uint64_t joined_ns = gate->joined_ns[node];
    return keel_gate_gives_up(gate->control->node, node, keel_mailbox_heard_ns(gate->mailbox, node),
                              joined_ns > gate->lead_ns ? joined_ns : gate->lead_ns, gate->timeout_ns);
}

static bool leads(void *context, char out[KEEL_PLACE_BYTES])
{
    const struct keel_agent_gate *gate = context;
    const uint16_t leader = keel_node_leader(gate->control->node);
    if (leader == gate->control->self)
        return true;
    if (leader == KEEL_NODE_NONE || !keel_mailbox_place_of(gate->mailbox, leader, out))
        out[0] = '\0';
    return false;
}

static enum keel_status take_ask(void *context, const struct keel_handover_ask *ask)
{
    struct keel_agent_gate *gate = context;
    if (ask->wish != KEEL_WISH_STOP)
        return keel_run_asks_take(gate->control, ask);
    if (gate->stop_ns == 0)
        gate->stop_ns = keel_now_ns();
    keel_control_step(gate->control, &(struct keel_node_event){.kind = KEEL_EVENT_STOP});
    return KEEL_OK;
}

static bool look_at_ask(void *context, const struct keel_handover_ask *ask, char why[KEEL_REASON_BYTES])
{
    const struct keel_agent_gate *gate = context;
    return keel_run_asks_look(gate->control, ask, why);
}

static void take_news(void *context, const struct keel_gate_news *news)
{
    struct keel_agent_gate *gate = context;
    const struct keel_launch_report *report = gate->leading->report;
    if (!news->orderly && report != NULL)
        report->agent(report->context, news);
    else if (news->kind == KEEL_GATE_REFUSED)
        keel_log(KEEL_LOG_WARN, "refused a caller from %s: %s", news->place, news->text);
    if (news->kind == KEEL_GATE_JOINED)
        gate->joined_ns[news->node] = keel_now_ns();
    if (news->kind == KEEL_GATE_JOINED && gate->starters != NULL)
        keel_starters_came(gate->starters, news->node);
    if (news->kind != KEEL_GATE_LEFT)
        return;
    keel_gate_unwant(gate->gate, news->node);
    keel_control_step(gate->control, &(struct keel_node_event){.kind = KEEL_EVENT_NODE_EXIT,
                                                               .node = news->node,
                                                               .value = news->incarnation,
                                                               .cause = KEEL_CAUSE_EXIT});
}

static bool lose_starter(void *context, uint16_t node, enum keel_status status, const char *why)
{
    const struct keel_agent_gate *gate = context;
    (void)status;
    (void)why;
    return gate->leads && !gate->control->finished && keel_gate_wants(gate->gate, node);
}

static enum keel_status open_starters(struct keel_agent_gate *gate,
                                      const struct keel_agent_gate_config *config)
{
    KEEL_TRY(keel_hosts_parse(config->dialed->job.hosts, &gate->hosts));
    const struct keel_starters_config its = {.job = config->job,
                                             .hosts = &gate->hosts,
                                             .secret = config->secret,
                                             .program = config->program,
                                             .place = gate->place,
                                             .node_count = config->node_count,
                                             .context = gate,
                                             .lost = lose_starter};
    return gate->hosts.count > 0 ? keel_starters_open(&its, &gate->starters) : KEEL_OK;
}

/* Of a first life alone, and at the end, as the launcher put them. */
static uint32_t count_drills(const struct keel_handed_job *job)
{
    uint32_t count = 0;
    while (count + 2 <= job->word_count && strcmp(job->words[job->word_count - count - 2], "--drill") == 0)
        count += 2;
    return count;
}

enum keel_status keel_agent_gate_open(struct keel_agent_gate *gate,
                                      const struct keel_agent_gate_config *config)
{
    struct keel_net_place bind;
    *gate = (struct keel_agent_gate){.control = config->control,
                                     .leading = config->leading,
                                     .mailbox = config->mailbox,
                                     .timeout_ns = config->timeout_ns};
    keel_mailbox_place(config->mailbox, gate->place);
    KEEL_TRY(keel_net_place_parse(gate->place, &bind));
    struct keel_gate_config its = {.bind = &bind,
                                   .advertised = &config->dialed->here,
                                   .secret = config->secret,
                                   .release = KEEL_RELEASE,
                                   .node_count = config->node_count,
                                   .job = config->dialed->job,
                                   .first_words = count_drills(&config->dialed->job),
                                   .context = gate,
                                   .news = take_news,
                                   .silent = is_silent,
                                   .leads = leads,
                                   .ask = take_ask,
                                   .look = look_at_ask};
    its.job.by = config->dialed->job.node;
    its.job.by_tag = keel_mailbox_tag(config->mailbox);
    its.job.launcher = config->launcher;
    KEEL_TRY(keel_gate_open(&its, &gate->gate));
    keel_gate_release(gate->gate);
    return open_starters(gate, config);
}

void keel_agent_gate_close(struct keel_agent_gate *gate, bool over, enum keel_status status,
                           const char *detail)
{
    if (over)
        keel_gate_close(gate->gate, status, detail);
    else
        keel_gate_leave(gate->gate);
    gate->gate = NULL;
    keel_starters_close(gate->starters);
    gate->starters = NULL;
    keel_hosts_free(&gate->hosts);
}

/* Its workers had all the time that they have, and the one of this node did not save its share. */
static bool is_late(const struct keel_agent_gate *gate)
{
    struct keel_times times;
    struct keel_node_progress progress;
    keel_node_progress(gate->control->node, &progress);
    keel_times_derive(gate->timeout_ns, &times);
    return keel_now_ns() - gate->stop_ns >= times.grace_ns && progress.known &&
           progress.recorded > (progress.has_saved ? progress.saved : 0);
}

void keel_agent_gate_look_at_stop(struct keel_agent_gate *gate, const struct keel_job *job, bool hung)
{
    struct keel_control_plane *control = gate->control;
    if (gate->gate == NULL || gate->stop_ns == 0 || control->status != KEEL_INTERRUPTED ||
        !keel_job_takes_snapshots(job) || !(hung || is_late(gate)))
        return;
    gate->unsaved = true;
    control->status = KEEL_TIMEOUT;
    snprintf(
        control->detail, sizeof control->detail,
        "stopped without its last snapshot, which did not come in time: the store of snapshots hangs, or "
        "a step is longer than six timeouts; bring the store back, and the same command goes on from the "
        "newest snapshot that is there");
}

void keel_agent_gate_turn(struct keel_agent_gate *gate)
{
    if (gate->gate == NULL || gate->control->finished) /* who waits is told as it is closed */
        return;
    const bool before = gate->leads;
    gate->leads = keel_node_leader(gate->control->node) == gate->control->self;
    keel_mailbox_keep(gate->mailbox, gate->leads);
    if (gate->leads && !before) {
        gate->lead_ns = keel_now_ns();
        keel_gate_presume(gate->gate);
    }
    keel_gate_turn(gate->gate);
    if (gate->starters != NULL)
        keel_starters_turn(gate->starters);
}

int keel_agent_gate_fd(const struct keel_agent_gate *gate)
{
    return gate->gate != NULL ? keel_gate_fd(gate->gate) : -1;
}

int keel_agent_gate_starters_fd(const struct keel_agent_gate *gate)
{
    return gate->starters != NULL ? keel_starters_fd(gate->starters) : -1;
}

uint64_t keel_agent_gate_deadline_ns(const struct keel_agent_gate *gate)
{
    const uint64_t gate_ns = gate->gate != NULL ? keel_gate_deadline_ns(gate->gate) : KEEL_NEVER;
    const uint64_t starters_ns =
        gate->starters != NULL ? keel_starters_deadline_ns(gate->starters) : KEEL_NEVER;
    return gate_ns < starters_ns ? gate_ns : starters_ns;
}

void keel_agent_gate_want(struct keel_agent_gate *gate, uint16_t node, uint32_t incarnation)
{
    keel_gate_want(gate->gate, node, incarnation);
    if (gate->starters != NULL)
        keel_starters_start(gate->starters, node);
}
