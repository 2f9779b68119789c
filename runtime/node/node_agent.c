/* node_agent.c - the part of an agent: its workers' lives, reports to the leader, views to workers.
 *
 * Owns restarts and their bounds, the watch over beats, the retransmission of what the leader lacks: step
 * records, shards of snapshots, notes. A launcher that does not lead plays it too, without workers. It
 * decides nothing about membership: it reports states, and obeys views (node.c, invariant 4). */
#include "node_state.h"

#include <inttypes.h>
#include <keel/text.h>
#include <stdio.h>
#include <string.h>

static uint8_t worker_count(const struct keel_node *node)
{
    return (uint8_t)node->config.worker_count; /* at most KEEL_WORKERS_PER_NODE, by keel_node_init */
}

/* Places of shards that workers may take. */
static uint32_t pending_count(const struct keel_node *node)
{
    return node->config.worker_count * (uint32_t)KEEL_SHARDS_PENDING;
}

/* ---- workers: start, end, restart ---------------------------------------------------------------------- */

static void start_worker(struct keel_node *node, uint8_t local)
{
    struct keel_local *w = &node->agent.locals[local];
    KEEL_ASSERT(!w->running);
    uint32_t restarts = w->restarts, strikes = w->strikes;
    memset(w, 0, sizeof *w);
    w->restarts = restarts;
    w->strikes = strikes;
    KEEL_ASSERT(restarts <= KEEL_RESTARTS_EVER); /* or it would run into the byte of the node's */
    w->incarnation = (node->config.incarnation << 8) + restarts;
    KEEL_ASSERT(w->incarnation >> 8 == node->config.incarnation);
    w->state = KEEL_WORKER_STARTING;
    w->running = true;
    w->started_ns = w->beat_ns = node->now_ns;
    node->agent.report_due = true;
    keel_node_trace(node, "start worker %u.%u incarnation %u", node->config.node, local, w->incarnation);
    node->env->worker_start(node->env->context, local, w->incarnation);
}

/* No worker is started any more. */
static bool is_ending(const struct keel_node *node)
{
    return node->agent.stopping || node->agent.ending || node->agent.leaving;
}

static void add_note(struct keel_node *node, uint8_t local, const uint8_t *data, uint32_t bytes)
{
    struct keel_agent *agent = &node->agent;
    const uint64_t number = ((uint64_t)node->config.incarnation << 32) + agent->notes_made + 1;
    if (keel_notes_put(&agent->notes, number, local, data, bytes))
        agent->notes_made++;
    else
        keel_node_trace(node, "drop a note of worker %u.%u: %u wait", node->config.node, local,
                        agent->notes.count);
}

/* With the reason, as far as it can stand in JSON. */
static void tell_given_up(struct keel_node *node, uint8_t local)
{
    char why[KEEL_WIRE_DETAIL_BYTES] = "its processes ended without a word", text[KEEL_WIRE_NOTE_BYTES];
    if (node->agent.lost_detail[0] != '\0')
        memcpy(why, node->agent.lost_detail, sizeof why);
    keel_utf8_clean(why);
    for (char *at = why; *at != '\0'; at++)
        if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ')
            *at = '\'';
    const int bytes =
        snprintf(text, sizeof text, "{\"event\":\"worker-given-up\",\"restarts\":%u,\"detail\":\"%s\"}",
                 node->agent.locals[local].restarts, why);
    add_note(node, local, (const uint8_t *)text, (uint32_t)bytes);
}

/* The worker is out of the run: by its end, or because it is being killed. Its shards are durable without it:
 * the leader hears of them, and says whether they count. */
static void retire_worker(struct keel_node *node, uint8_t local, enum keel_cause cause)
{
    struct keel_local *w = &node->agent.locals[local];
    w->cause = cause;
    w->accused_epoch = 0;
    node->agent.report_due = true;
    if (w->state == KEEL_WORKER_DONE || w->state == KEEL_WORKER_FAILED)
        return;
    w->sent_epoch = 0;
    if (node->now_ns - w->started_ns >= node->times.join_wait_ns)
        w->strikes = 0;
    bool left = w->strikes < KEEL_RESTARTS_MAX && w->restarts < KEEL_RESTARTS_EVER;
    bool again = node->config.respawn && left && !is_ending(node);
    w->state = again ? KEEL_WORKER_OFF : KEEL_WORKER_GONE;
    w->restart_ns = node->now_ns + (node->times.backoff_ns << w->strikes);
    KEEL_ASSERT(again || w->state == KEEL_WORKER_GONE);
    KEEL_ASSERT(w->sent_epoch == 0 && w->accused_epoch == 0);
    keel_node_trace(node, "worker %u.%u incarnation %u out: %s, %s", node->config.node, local, w->incarnation,
                    keel_cause_name(cause), again ? "will restart" : "no restart");
    if (node->config.respawn && !left)
        tell_given_up(node, local);
}

static void kill_worker(struct keel_node *node, uint8_t local, enum keel_cause cause)
{
    struct keel_local *w = &node->agent.locals[local];
    if (!w->running || w->killed)
        return;
    w->killed = true;
    retire_worker(node, local, cause);
    KEEL_ASSERT(w->state != KEEL_WORKER_STARTING && w->state != KEEL_WORKER_READY);
    node->env->worker_kill(node->env->context, local);
}

static void take_exit(struct keel_node *node, uint8_t local)
{
    struct keel_local *w = &node->agent.locals[local];
    w->running = false;
    if (!w->killed)
        retire_worker(node, local, KEEL_CAUSE_EXIT);
}

static void copy_detail(char out[KEEL_WIRE_DETAIL_BYTES], const struct keel_node_event *event)
{
    if (event->data)
        (void)snprintf(out, KEEL_WIRE_DETAIL_BYTES, "%.*s",
                       (int)strnlen((const char *)event->data, event->bytes), (const char *)event->data);
}

static void take_failure(struct keel_node *node, const struct keel_node_event *event)
{
    struct keel_local *w = &node->agent.locals[event->local];
    enum keel_status status =
        event->value < KEEL_STATUS_COUNT ? (enum keel_status)event->value : KEEL_INTERNAL;
    enum keel_next next = keel_status_next(status);
    keel_node_trace(node, "worker %u.%u failed: %s", node->config.node, event->local,
                    keel_status_name(status));
    if (status == KEEL_OK)
        return;
    if (next != KEEL_NEXT_FIX && next != KEEL_NEXT_FATAL) { /* its exit follows, and a restart may cure it */
        copy_detail(node->agent.lost_detail, event);
        return;
    }
    if (w->state == KEEL_WORKER_DONE)
        return;
    w->state = KEEL_WORKER_FAILED;
    w->failure = status;
    node->agent.report_due = true;
    if (node->agent.failure_detail[0] == '\0')
        copy_detail(node->agent.failure_detail, event);
}

/* ---- what workers say ---------------------------------------------------------------------------------- */

/* Who stepped down waits for another. */
static void send_to_leader(struct keel_node *node)
{
    if (node->term.leader != node->config.node || keel_node_leads(node))
        keel_node_send(node, node->term.leader);
}

static void send_record(struct keel_node *node, const struct keel_step_record *record)
{
    keel_node_message(node, KEEL_WIRE_STEP)->as.step = *record;
    send_to_leader(node);
}

static void take_step(struct keel_node *node, uint8_t local, const struct keel_step_record *record)
{
    struct keel_local *w = &node->agent.locals[local];
    enum keel_record_fate fate = keel_records_put(&node->records, record, node->now_ns);
    const struct keel_member *lowest = &node->view.members[0]; /* active rank: it sends at once */
    const bool first = node->view.epoch > 0 && lowest->node == node->config.node && lowest->local == local &&
                       lowest->incarnation == w->incarnation;
    if (fate == KEEL_RECORD_DIFFERENT && keel_node_leads(node)) /* its records are the leader's */
        node->env->mismatch(node->env->context, &keel_records_get(&node->records, record->step)->record,
                            record);
    else if (fate == KEEL_RECORD_DIFFERENT)
        send_record(node, &keel_records_get(&node->records, record->step)->record);
    if (first || fate == KEEL_RECORD_DIFFERENT)
        send_record(node, record);
}

/* Which of two shards of a worker gives way when there are too many: the older, whether the leader has it or
 * not. The leader gives up what is older than its newest four (node_snapshots.c), and a worker hands shards
 * over in their order: so what one leader gave up is never whole again for the next. */
static bool gives_way(const struct keel_pending_shard *p, const struct keel_pending_shard *to)
{
    return to == NULL ||
           keel_snapshot_precedes(p->shard.attempt, p->shard.step, to->shard.attempt, to->shard.step);
}

static void take_shard(struct keel_node *node, const struct keel_node_event *event)
{
    struct keel_pending_shard *slot = NULL;
    uint32_t of_local = 0;
    for (uint32_t i = 0; i < pending_count(node); i++) {
        struct keel_pending_shard *p = &node->agent.pending[i];
        bool mine = p->used && p->shard.local == event->local;
        of_local += mine ? 1 : 0;
        if (mine && gives_way(p, slot))
            slot = p;
    }
    if (of_local < KEEL_SHARDS_PENDING)
        for (uint32_t i = 0; i < pending_count(node); i++)
            if (!node->agent.pending[i].used)
                slot = &node->agent.pending[i];
    KEEL_ASSERT(slot);
    *slot = (struct keel_pending_shard){.used = true,
                                        .shard = {.local = event->local,
                                                  .step = event->value,
                                                  .attempt = event->attempt,
                                                  .summary = *event->summary}};
    node->agent.saved_step = node->agent.has_saved && node->agent.saved_step > event->value
                                 ? node->agent.saved_step
                                 : event->value;
    node->agent.has_saved = true;
}

void keel_node_progress(const struct keel_node *node, struct keel_node_progress *out)
{
    const struct keel_agent *agent = &node->agent;
    *out = (struct keel_node_progress){
        .known = agent->next_step > 0, .has_saved = agent->has_saved, .saved = agent->saved_step};
    if (out->known)
        out->recorded = agent->next_step - 1 > agent->saved_step ? agent->next_step - 1 : agent->saved_step;
}

static void take_note(struct keel_node *node, const struct keel_node_event *event)
{
    if (event->bytes > KEEL_WIRE_NOTE_BYTES) {
        keel_node_trace(node, "drop note of %u bytes: over the limit", event->bytes);
        return;
    }
    add_note(node, event->local, event->data, event->bytes);
}

static int take_ready(struct keel_node *node, const struct keel_node_event *event)
{
    struct keel_local *w = &node->agent.locals[event->local];
    if (w->state != KEEL_WORKER_STARTING || event->address.bytes > KEEL_ADDRESS_BYTES)
        return KEEL_INVALID;
    w->state = KEEL_WORKER_READY;
    node->agent.lost_detail[0] = '\0';
    w->address = event->address;
    w->beat_ns = node->now_ns;
    node->agent.report_due = true;
    return KEEL_OK;
}

static void take_accusation(struct keel_node *node, const struct keel_node_event *event)
{
    struct keel_local *w = &node->agent.locals[event->local];
    if (event->value != w->sent_epoch || w->accused_epoch == event->value)
        return; /* about a view that is over; or not its first, and what follows a loss blames others */
    w->accused_epoch = event->value;
    w->accused_rank = event->rank;
    node->agent.report_due = true;
    keel_node_trace(node, "worker %u.%u accuses rank %u of epoch %" PRIu64 ": %s", node->config.node,
                    event->local, event->rank, event->value, keel_cause_name(event->cause));
}

int keel_agent_event(struct keel_node *node, const struct keel_node_event *event)
{
    struct keel_local *w = &node->agent.locals[event->local];
    if (!w->running)
        return KEEL_INVALID;
    if (event->kind == KEEL_EVENT_WORKER_EXIT) {
        take_exit(node, event->local);
        return KEEL_OK;
    }
    if (w->killed)
        return KEEL_OK; /* said before it died; it does not belong any more */
    switch (event->kind) {
    case KEEL_EVENT_WORKER_READY:
        return take_ready(node, event);
    case KEEL_EVENT_WORKER_BEAT:
        w->beat_ns = node->now_ns;
        w->progress = event->value;
        return KEEL_OK;
    case KEEL_EVENT_WORKER_STEP:
        if (!event->record)
            return KEEL_INVALID;
        w->beat_ns = node->now_ns;
        take_step(node, event->local, event->record);
        return KEEL_OK;
    case KEEL_EVENT_WORKER_SHARD:
        if (!event->summary)
            return KEEL_INVALID;
        take_shard(node, event);
        return KEEL_OK;
    case KEEL_EVENT_WORKER_ACCUSES:
        take_accusation(node, event);
        return KEEL_OK;
    case KEEL_EVENT_WORKER_DONE:
        if (w->state != KEEL_WORKER_FAILED)
            w->state = KEEL_WORKER_DONE;
        node->agent.report_due = true;
        return KEEL_OK;
    case KEEL_EVENT_WORKER_NOTE:
        take_note(node, event);
        return KEEL_OK;
    case KEEL_EVENT_WORKER_FAILED:
        take_failure(node, event);
        return KEEL_OK;
    default:
        return KEEL_INVALID;
    }
}

/* ---- reports ------------------------------------------------------------------------------------------- */

/* Of a worker, something that the leader lacks. */
static bool has_pending(const struct keel_node *node, uint8_t local)
{
    const struct keel_agent *agent = &node->agent;
    for (uint32_t i = 0; i < pending_count(node); i++)
        if (agent->pending[i].used && !agent->pending[i].taken && agent->pending[i].shard.local == local)
            return true;
    return keel_notes_has(&agent->notes, local);
}

static void fill_worker(const struct keel_node *node, uint8_t local, struct keel_wire_worker *out)
{
    const struct keel_local *w = &node->agent.locals[local];
    out->incarnation = w->incarnation;
    out->state = w->state;
    if (w->state == KEEL_WORKER_DONE && has_pending(node, local))
        out->state = KEEL_WORKER_READY;
    out->cause = w->cause;
    out->failure = w->failure;
    out->sent_epoch = w->sent_epoch;
    out->progress = w->progress;
    out->accused_epoch = w->accused_epoch;
    out->accused_rank = w->accused_rank;
    out->address = w->address;
}

static void make_report(struct keel_node *node, bool ended)
{
    struct keel_agent *agent = &node->agent;
    struct keel_wire_status *status = &keel_node_message(node, KEEL_WIRE_STATUS)->as.status;
    status->term = node->term.ballot;
    status->next_step = agent->next_step;
    status->stopping = agent->stopping && !agent->ending;
    status->away = node->away.version;
    status->incarnation = node->config.incarnation;
    status->sequence = ++agent->sequence;
    status->ended = ended;
    status->disk = keel_node_moves(node) ? node->reg.disk : KEEL_DISK_NONE;
    bool silent = agent->behind != 0 && node->now_ns - agent->behind_ns >= node->times.silence_ns;
    status->silent_node = silent ? agent->behind : KEEL_RANK_NONE;
    status->first_record = keel_records_first(&node->records, agent->next_step);
    const struct keel_step_record *newest = keel_records_newest(&node->records);
    status->has_newest = newest != NULL;
    if (newest)
        status->newest = *newest;
    KEEL_ASSERT(newest == NULL || status->first_record == UINT64_MAX || newest->step >= status->first_record);
    status->worker_count = worker_count(node);
    for (uint8_t i = 0; i < worker_count(node); i++)
        fill_worker(node, i, &status->workers[i]);
    const char *detail = agent->failure_detail[0] != '\0' ? agent->failure_detail : agent->lost_detail;
    memcpy(status->detail, detail, sizeof status->detail);
}

/* The leader is silent: the report goes to the holders too, one after the other. One that leads answers. */
static void ask_who_leads(struct keel_node *node)
{
    struct keel_term *term = &node->term;
    if (!keel_node_moves(node) || !keel_node_due(node, node->agent.leader_ns + node->times.silence_ns / 2))
        return;
    const struct keel_view_holders *holders = keel_node_holders(node);
    term->asked = (uint16_t)((term->asked + 1U) % holders->count);
    const uint16_t to = holders->at[term->asked].node;
    if (to != node->config.node && to != term->leader)
        keel_node_send(node, to);
}

static void send_report(struct keel_node *node, bool ended)
{
    make_report(node, ended);
    send_to_leader(node);
    ask_who_leads(node);
    node->agent.report_due = false;
}

void keel_agent_report_to(struct keel_node *node, uint16_t to)
{
    make_report(node, false);
    keel_node_send(node, to);
}

/* ---- what the leader says ----------------------------------------------------------------------------- */

/* Neighbours among the nodes of the view, by number, round and round. */
static void find_neighbours(struct keel_node *node)
{
    struct keel_agent *agent = &node->agent;
    const uint16_t self = node->config.node;
    uint32_t nearest = KEEL_NODES_MAX, furthest = 0; /* of the others, going round upwards from here */
    bool here = false;
    agent->ahead = agent->behind = 0;
    agent->behind_ns = node->now_ns;
    for (uint16_t i = 0; i < node->view.member_count; i++) {
        const uint16_t other = node->view.members[i].node;
        const uint32_t away = (other + (uint32_t)KEEL_NODES_MAX - self) % KEEL_NODES_MAX;
        here = here || away == 0;
        if (away != 0 && away < nearest) {
            nearest = away;
            agent->ahead = other;
        }
        if (away > furthest) {
            furthest = away;
            agent->behind = other;
        }
    }
    if (!here)
        agent->ahead = agent->behind = 0;
    KEEL_ASSERT(!here || (agent->ahead != self && agent->behind != self));
}

/* Invariant 4. */
void keel_agent_adopt(struct keel_node *node, const struct keel_view *view)
{
    KEEL_ASSERT(view->epoch > node->view.epoch); /* invariant 1 */
    keel_view_copy(&node->view, view);
    find_neighbours(node);
    for (uint8_t local = 0; local < worker_count(node); local++) {
        struct keel_local *w = &node->agent.locals[local];
        bool live = w->running && !w->killed && w->state == KEEL_WORKER_READY;
        if (!live)
            continue;
        w->accused_epoch = 0;
        if (keel_view_find_worker(view, node->config.node, local, w->incarnation) >= 0) {
            KEEL_ASSERT(view->epoch > w->sent_epoch); /* invariant 4 */
            w->sent_epoch = view->epoch;
            node->env->tell_view(node->env->context, local, view);
        } else if (w->sent_epoch > 0) {
            keel_node_trace(node, "worker %u.%u is not in epoch %" PRIu64 ": kill", node->config.node, local,
                            view->epoch);
            kill_worker(node, local, KEEL_CAUSE_NONE);
        }
    }
}

/* Up to the first that the leader has: of a hole that nobody can fill nothing is sent, however much lies
 * behind it. */
static void send_lacking_records(struct keel_node *node, uint64_t to, bool at_once)
{
    uint64_t step = node->agent.next_step;
    for (uint32_t sent = 0; sent < KEEL_RECORD_BURST; sent++) {
        step = keel_records_first(&node->records, step);
        if (step >= to)
            return;
        const struct keel_record_slot *slot = keel_records_get(&node->records, step);
        if (!at_once && node->now_ns - slot->since_ns < node->times.record_ns)
            return;
        KEEL_ASSERT(slot->record.step >= node->agent.next_step);
        send_record(node, &slot->record);
        step++;
    }
}

static void take_end(struct keel_node *node, const struct keel_wire_leader *leader)
{
    struct keel_agent *agent = &node->agent;
    if (agent->ending)
        return;
    agent->ending = agent->stopping = true;
    agent->end_ns = node->now_ns + node->times.silence_ns;
    agent->end_status = leader->status;
    memcpy(agent->end_detail, leader->detail, sizeof agent->end_detail);
    keel_node_trace(node, "the run is over: %s", keel_status_name(leader->status));
}

static void forget_notes(struct keel_node *node, uint64_t newest)
{
    struct keel_agent *agent = &node->agent;
    while (agent->notes.count > 0 && agent->notes.heads[0].number <= newest) {
        if (agent->locals[agent->notes.heads[0].local].state == KEEL_WORKER_DONE)
            agent->report_due = true;
        keel_notes_drop_first(&agent->notes);
        agent->note_sent_ns = 0;
    }
}

static void take_leader(struct keel_node *node, const struct keel_wire_leader *leader)
{
    struct keel_agent *agent = &node->agent;
    agent->leader_ns = node->now_ns;
    agent->first_step = leader->first_step;
    if (leader->next_step > agent->next_step) /* a new leader may not know yet how far the last one was */
        agent->next_step = leader->next_step;
    forget_notes(node, leader->note);
    if (leader->stop)
        agent->stopping = true;
    if (leader->end)
        take_end(node, leader);
    else if (leader->leave && !agent->leaving && !agent->ending) {
        agent->leaving = true;
        agent->end_ns = node->now_ns + node->times.silence_ns;
        keel_node_trace(node, "node %u leaves", node->config.node);
    }
    send_lacking_records(node, leader->lacks_to, leader->missing);
}

static void take_shard_ack(struct keel_node *node, const struct keel_wire_shard *ack)
{
    for (uint32_t i = 0; i < pending_count(node); i++) {
        struct keel_pending_shard *p = &node->agent.pending[i];
        if (!p->used || p->shard.local != ack->local || p->shard.step != ack->step ||
            p->shard.attempt != ack->attempt)
            continue;
        p->taken = true;
        if (node->agent.locals[ack->local].state == KEEL_WORKER_DONE)
            node->agent.report_due = true;
    }
}

void keel_agent_message(struct keel_node *node, uint16_t from)
{
    const struct keel_wire_message *in = &node->scratch->in;
    if (in->kind == KEEL_WIRE_BEAT) {
        if (from == node->agent.behind)
            node->agent.behind_ns = node->now_ns;
    } else if (in->kind == KEEL_WIRE_LEADER && keel_moves_follow(node, from, &in->as.leader.term)) {
        keel_away_answer(node, from, in->as.leader.away);
        take_leader(node, &in->as.leader);
    } else if (in->kind == KEEL_WIRE_SHARD_ACK && from == node->term.leader) {
        take_shard_ack(node, &in->as.shard); /* it names no term: no word of who leads */
    } else {
        keel_node_trace(node, "drop message kind %d from node %u: not its part", (int)in->kind, from);
    }
}

/* Another leads, or the same in another life: what it may lack is sent again. */
void keel_agent_turn_to_leader(struct keel_node *node)
{
    struct keel_agent *agent = &node->agent;
    agent->leader_ns = node->now_ns;
    agent->note_sent_ns = 0;
    agent->report_due = true;
    for (uint32_t i = 0; i < pending_count(node); i++) {
        agent->pending[i].taken = false;
        agent->pending[i].sent_ns = 0;
    }
}

/* ---- work that is due ---------------------------------------------------------------------------------- */

void keel_agent_start(struct keel_node *node)
{
    struct keel_agent *agent = &node->agent;
    agent->leader_ns = agent->beat_ns = node->now_ns;
    keel_node_trace(node, "agent %u starts, incarnation %u", node->config.node, node->config.incarnation);
    for (uint8_t local = 0; local < worker_count(node); local++)
        start_worker(node, local);
}

void keel_agent_reset_timers(struct keel_node *node)
{
    struct keel_agent *agent = &node->agent;
    agent->leader_ns = agent->behind_ns = node->now_ns;
    for (uint8_t local = 0; local < worker_count(node); local++)
        agent->locals[local].beat_ns = node->now_ns;
}

/* A worker that does not beat is stuck; before it is ready it may be building kernels for a while. */
static void watch_worker(struct keel_node *node, uint8_t local)
{
    struct keel_local *w = &node->agent.locals[local];
    if (w->state == KEEL_WORKER_OFF && !w->running && !is_ending(node)) {
        if (keel_node_due(node, w->restart_ns)) {
            w->restarts++;
            w->strikes++;
            start_worker(node, local);
        } else {
            keel_node_wake(node, w->restart_ns);
        }
    }
    if (!w->running || w->killed || (w->state != KEEL_WORKER_STARTING && w->state != KEEL_WORKER_READY))
        return;
    uint64_t limit_ns = w->state == KEEL_WORKER_READY ? node->times.silence_ns : node->times.join_wait_ns;
    if (keel_node_due(node, w->beat_ns + limit_ns))
        kill_worker(node, local, KEEL_CAUSE_STUCK);
    else
        keel_node_wake(node, w->beat_ns + limit_ns);
}

static void tell_stop(struct keel_node *node, uint8_t local)
{
    struct keel_local *w = &node->agent.locals[local];
    if (!w->running || w->killed || w->stop_told || w->state != KEEL_WORKER_READY)
        return;
    KEEL_ASSERT(node->agent.stopping);
    w->stop_told = true;
    node->env->tell_stop(node->env->context, local);
}

static void send_pending_shards(struct keel_node *node)
{
    for (uint32_t i = 0; i < pending_count(node); i++) {
        struct keel_pending_shard *p = &node->agent.pending[i];
        if (!p->used || p->taken ||
            (p->sent_ns != 0 && !keel_node_due(node, p->sent_ns + node->times.beat_ns)))
            continue;
        p->sent_ns = node->now_ns;
        keel_node_message(node, KEEL_WIRE_SHARD)->as.shard = p->shard;
        send_to_leader(node);
    }
}

/* One at a time, the next when the leader has it: so each comes there once, and in its order. */
static void send_pending_note(struct keel_node *node)
{
    struct keel_agent *agent = &node->agent;
    if (agent->notes.count == 0 ||
        (agent->note_sent_ns != 0 && !keel_node_due(node, agent->note_sent_ns + node->times.beat_ns)))
        return;
    agent->note_sent_ns = node->now_ns;
    keel_notes_first(&agent->notes, &keel_node_message(node, KEEL_WIRE_NOTE)->as.note);
    send_to_leader(node);
}

static void finish_agent(struct keel_node *node, enum keel_status status, const char *detail)
{
    for (uint8_t local = 0; local < worker_count(node); local++)
        kill_worker(node, local, KEEL_CAUSE_FINISHED);
    for (uint8_t local = 0; local < worker_count(node); local++)
        KEEL_ASSERT(!node->agent.locals[local].running || node->agent.locals[local].killed);
    send_report(node, true);
    node->agent.over = true;
    if (!keel_node_leads(node)) /* else the leader waits for the others */
        keel_node_finish(node, status, detail);
}

static bool any_running(const struct keel_node *node)
{
    for (uint8_t local = 0; local < worker_count(node); local++)
        if (node->agent.locals[local].running)
            return true;
    return false;
}

static void work_on_end(struct keel_node *node)
{
    struct keel_agent *agent = &node->agent;
    bool quiet = !any_running(node) && agent->notes.count == 0;
    if (quiet || keel_node_due(node, agent->end_ns))
        finish_agent(node, agent->end_status, agent->end_detail);
    else
        keel_node_wake(node, agent->end_ns);
}

/* Each node has its own moment in a beat, by its number: agents that start together, or hear of a view
 * together, would fill the leader's socket at every beat. The first one is at once. */
static uint64_t next_beat(const struct keel_node *node)
{
    const uint64_t beat_ns = node->times.beat_ns;
    const uint64_t phase_ns = beat_ns * node->config.node / node->config.node_count % beat_ns;
    return node->now_ns + beat_ns - (node->now_ns - phase_ns) % beat_ns;
}

void keel_agent_work(struct keel_node *node)
{
    struct keel_agent *agent = &node->agent;
    if (agent->over)
        return;
    if (keel_node_leads(node)) {
        agent->leader_ns = node->now_ns;
    } else if (node->config.launcher && keel_node_due(node, agent->leader_ns + node->times.join_wait_ns)) {
        finish_agent(node, KEEL_INTERRUPTED, "most holders of the view are gone; run the same command again");
        return;
    } else if (!node->config.launcher &&
               keel_node_due(node, agent->leader_ns + node->times.launcher_timeout_ns)) {
        finish_agent(node, KEEL_PEER_LOST, "the launcher is silent; run the same command again to resume");
        return;
    }
    for (uint8_t local = 0; local < worker_count(node); local++) {
        watch_worker(node, local);
        if (agent->stopping)
            tell_stop(node, local);
    }
    if (agent->leaving && !agent->ending && (agent->notes.count == 0 || keel_node_due(node, agent->end_ns))) {
        finish_agent(node, KEEL_OK, KEEL_NODE_DRAINED);
        keel_node_finish(node, KEEL_OK, KEEL_NODE_DRAINED); /* also of who leads: another will */
        return;
    }
    if (agent->ending) {
        work_on_end(node);
        if (node->finished || agent->over)
            return;
    }
    keel_views_work(node);
    send_pending_shards(node);
    send_pending_note(node);
    bool beat = keel_node_due(node, agent->beat_ns);
    if (beat) {
        agent->beat_ns = next_beat(node);
        if (agent->ahead != 0) {
            keel_node_message(node, KEEL_WIRE_BEAT);
            keel_node_send(node, agent->ahead);
        }
    }
    if (beat || agent->report_due)
        send_report(node, false);
    keel_node_wake(node, agent->beat_ns);
}
