/* node.c - one step of the control plane: entry, clockwork, register traffic.
 *
 * The state of the run, as the leader sees it (node_leader.c makes all transitions but the first):
 *
 *      init --START--> STARTING --view commits--> RUNNING <--view commits-- CHANGING
 *                          |                         |  `--gone or vacant rank--^
 *                          |                         +--> STOPPING --all done, or grace over--+
 *                          `-- nobody can come ------+--> all done -------------------------+-> ENDING
 *                                                                                                     |
 *                                                                                                 finished
 *
 *   STARTING   no view since this node leads (who leads: node_moves.c). The register may hold one of an
 *              earlier life: it gives the epoch to go on from, and survivors if there are any.
 *   RUNNING    the newest committed view is node->view, and every agent is being told it until it reports
 *              that epoch. When so many are lost that no plan is for those who are left, nothing changes
 *              until others come (is_short): survivors keep their state, and wait.
 *   CHANGING   leader.changing: a ballot is under way. Nothing of the new view is known to any worker.
 *   STOPPING   lost members still leave by a change; nobody joins any more.
 *   ENDING     agents are told to end until each says that it did, or its time is over.
 *
 * A worker, as its agent sees it (node_agent.c):
 *
 *      OFF --worker_start--> STARTING --READY--> READY --DONE, shards acknowledged--> DONE
 *       ^                       |                  |
 *       +--- back-off, at most KEEL_RESTARTS_MAX --+-- exit, or killed: evicted, stuck
 *                                                  +-- FAILED (a person must act), GONE (no restart left)
 *
 * Invariants, by number in comments and tests:
 *   1  Epochs known to a node never go down.
 *   2  At each epoch at most one view is ever committed, so told (register.h).
 *   3  In every view each shard is carried by exactly one active member (keel_view_valid).
 *   4  A worker is told only views of which it is a member, each at most once, ascending. One that was told a
 *      view and is not in a newer one is killed before anything else.
 *   5  step_commit is called with strictly ascending steps, while the same node leads.
 *   6  snapshot_commit is called at most once for a (step, attempt), with one summary of every active
 *      rank of the view whose epoch is `attempt`, while that view is the newest; for the last step, also
 *      while it is the one before, and then by a new leader again. No leader gives up an attempt of a view
 *      that another made: it may be committed.
 *   7  What an acceptor promised is durable before its answer leaves.
 *   8  Every call ends with a timer set, until finish was called; finish is called once.
 *   9  A view has as many active members as some plan is for, and carries that plan's number.
 *   10 A run ends for want of ranks only when fewer are left, with those that may still come, than the
 *      smallest plan is for, or none came for sixty timeouts.
 *
 * All work is level-triggered: an event changes state, then everything that is due at now_ns is done.
 * So a TICK that comes early, late or twice does no harm. */
#include "node_state.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert((int)KEEL_MEMBERS_MAX <= (int)KEEL_GROUP_RANKS_MAX, "all ranks of a run make a group");
_Static_assert((int)KEEL_MEMBERS_MAX <= (int)KEEL_SNAPSHOT_RANKS_MAX, "and save a snapshot");
_Static_assert((int)KEEL_SHARDS_MAX <= (int)KEEL_GROUP_SHARDS_MAX, "a job's shards are those of its group");

static const char *const cause_names[] = {
#define KEEL_CAUSE_NAME(name, text) text,
    KEEL_CAUSE_TABLE(KEEL_CAUSE_NAME)
#undef KEEL_CAUSE_NAME
};

const char *keel_cause_name(enum keel_cause cause)
{
    return (unsigned)cause < KEEL_CAUSE_COUNT ? cause_names[cause] : "unknown";
}

/* Where the leader moves, any node may be given the register to hold, and lead. */
static bool may_hold(const struct keel_node_config *config)
{
    return config->node < config->holder_count || config->holder_count >= KEEL_HOLDERS_TO_MOVE;
}

size_t keel_node_bytes(const struct keel_node_config *config)
{
    if (config->launcher)
        return sizeof(struct keel_node);
    return may_hold(config) ? offsetof(struct keel_node, place) : offsetof(struct keel_node, reg);
}

/* Long arrays are cleared as far as they were written, and their pages are not there before. */
static void clear(struct keel_node *node, const struct keel_node_config *config)
{
    const uint16_t node_count = node->config.node_count; /* when it was in use before */
    memset(node, 0, offsetof(struct keel_node, view));
    memset(&node->view, 0, offsetof(struct keel_view, members));
    memset(&node->news, 0, offsetof(struct keel_view_news, data));
    memset(&node->fetch, 0, offsetof(struct keel_view_fetch, nodes));
    if (may_hold(config)) {
        keel_register_init(&node->reg, config->node, 1, 0);
        memset(&node->ask.have, 0, sizeof node->ask.have);
        memset(&node->ask.message.head, 0, sizeof node->ask.message.head);
        node->ask.message.value.bytes = 0;
    }
    if (!config->launcher)
        return;
    keel_moves_clear(&node->place);
    memset(node->children.nodes, 0, node_count * sizeof node->children.nodes[0]);
    memset(&node->children, 0, offsetof(struct keel_children, nodes));
}

enum keel_status keel_node_init(struct keel_node *node, const struct keel_node_config *config)
{
    bool launcher = config->node == 0;
    if (config->node >= KEEL_NODES_MAX || config->node_count < 2 || config->node_count > KEEL_NODES_MAX)
        return keel_fail(KEEL_INVALID, "control plane: node %u of %u; 2 to %d nodes, launcher included",
                         config->node, config->node_count, KEEL_NODES_MAX);
    if (launcher != config->launcher || (launcher && config->worker_count > 0) ||
        config->worker_count > KEEL_WORKERS_PER_NODE)
        return keel_fail(KEEL_INVALID,
                         "control plane: node 0 and it alone is the launcher, without workers; "
                         "others have at most %d",
                         KEEL_WORKERS_PER_NODE);
    if (config->holder_count == 0 || config->holder_count > KEEL_HOLDERS_MAX ||
        config->holder_count > config->node_count)
        return keel_fail(KEEL_INVALID, "control plane: %u holders; 1 to %d, at most one a node",
                         config->holder_count, KEEL_HOLDERS_MAX);
    if (config->rank_count == 0 || config->rank_count + config->spare_count > KEEL_MEMBERS_MAX ||
        config->shard_count == 0 || config->shard_count > KEEL_SHARDS_MAX)
        return keel_fail(KEEL_INVALID,
                         "control plane: %u ranks, %u spares, %u shards; at most %d workers "
                         "and %d shards",
                         config->rank_count, config->spare_count, config->shard_count, KEEL_MEMBERS_MAX,
                         KEEL_SHARDS_MAX);
    if ((launcher || may_hold(config)) &&
        (config->plans == NULL ||
         keel_view_seats(config->plans, config->rank_count, config->rank_count) == 0))
        return keel_fail(KEEL_INVALID, "control plane: no number of ranks up to %u has a plan",
                         config->rank_count);
    if (config->timeout_ns < UINT64_C(1000000) || config->timeout_ns > UINT64_C(1) << 53 ||
        config->incarnation >= UINT32_C(1) << 24)
        return keel_fail(KEEL_INVALID, "control plane: the timeout must be 1 ms to 100 days");
    clear(node, config);
    node->config = *config;
    node->leader = launcher ? &node->place : NULL;
    node->term.role = launcher ? KEEL_LEADS : KEEL_FOLLOWS;
    node->term.leader = launcher ? 0 : config->leader;
    if (launcher && !keel_node_moves(node))
        node->term.ballot.counter = config->incarnation;
    node->agent.first_step = config->first_step > 0 ? config->first_step : 1;
    keel_times_derive(config->timeout_ns, &node->times);
    return KEEL_OK;
}

/* ---- effects ------------------------------------------------------------------------------------------- */

void keel_node_wake(struct keel_node *node, uint64_t deadline_ns)
{
    if (deadline_ns < node->wake_ns)
        node->wake_ns = deadline_ns;
}

struct keel_wire_message *keel_node_message(struct keel_node *node, enum keel_wire_kind kind)
{
    keel_wire_clear(&node->scratch->out, kind);
    return &node->scratch->out;
}

void keel_node_send(struct keel_node *node, uint16_t to)
{
    KEEL_ASSERT(to < KEEL_NODES_MAX && (to != node->config.node || keel_node_leads(node)));
    node->scratch->out.epoch = node->view.epoch;
    uint32_t bytes = keel_wire_encode(&node->scratch->out, node->scratch->bytes);
    KEEL_ASSERT(keel_wire_decode(node->scratch->bytes, bytes,
                                 &node->scratch->sent)); /* what others refuse is not sent */
    KEEL_ASSERT(node->scratch->sent.kind == node->scratch->out.kind &&
                node->scratch->sent.epoch == node->scratch->out.epoch);
    node->env->send(node->env->context, to, node->scratch->bytes, bytes);
}

void keel_node_trace(struct keel_node *node, const char *format, ...)
{
    char line[KEEL_NODE_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    node->env->trace(node->env->context, line);
}

void keel_node_finish(struct keel_node *node, enum keel_status status, const char *detail)
{
    if (node->finished)
        return;
    KEEL_ASSERT(node->env != NULL && node->started);
    node->finished = true;
    keel_node_trace(node, "finish %s: %s", keel_status_name(status), detail);
    node->env->finish(node->env->context, status, detail);
}

/* More than the deepest calls of a step take, from a read that holders answered to the view that is told. */
#define ROOM_BYTES (24 * sizeof(struct keel_view))

size_t keel_node_room_bytes(void)
{
    return ROOM_BYTES;
}

void *keel_node_lend(struct keel_node *node, size_t bytes)
{
    uint8_t *room = node->env->room;
    void *out = room + node->lent_bytes;
    node->lent_bytes += (bytes + 63) & ~(size_t)63;
    KEEL_ASSERT(node->lent_bytes <= ROOM_BYTES);
    return out;
}

/* ---- register ------------------------------------------------------------------------------------------ */

/* Invariant 7: the environment stores before it sends. False: there is no room. */
static bool store_register(struct keel_node *node)
{
    const size_t mark = node->lent_bytes;
    uint8_t *stored = keel_node_lend(node, KEEL_REGISTER_STORE_BYTES);
    uint32_t bytes = keel_register_store(&node->reg, stored);
    struct keel_register *again =
        keel_node_lend(node, sizeof *again); /* a load writes what it is asked for */
    again->identity = node->reg.identity;
    KEEL_ASSERT(keel_register_load(again, stored, bytes) == KEEL_OK);
    KEEL_ASSERT(keel_ballot_compare(again->promised, node->reg.promised) == 0);
    KEEL_ASSERT(keel_ballot_compare(again->accepted, node->reg.accepted) == 0);
    node->unstored = !node->env->persist(node->env->context, stored, bytes);
    node->lent_bytes = mark;
    return !node->unstored;
}

/* False: there is no room to make the answer durable, so there is none; the proposer asks again. */
static bool answer_as_holder(struct keel_node *node, const struct keel_register_message *ask,
                             struct keel_register_message *reply)
{
    bool changed = false;
    keel_register_answer(&node->reg, ask, reply, &changed);
    return (!changed && !node->unstored) || store_register(node);
}

/* In as many messages as its value has parts. */
static void send_register(struct keel_node *node, uint16_t to, const struct keel_register_message *message)
{
    const uint32_t bytes = message->value.bytes;
    uint32_t part = 0;
    do {
        struct keel_wire_register *out = &keel_node_message(node, KEEL_WIRE_REGISTER)->as.reg;
        out->head = message->head;
        out->value_bytes = bytes;
        out->part = (uint8_t)part;
        memcpy(out->data, message->value.data + part * KEEL_WIRE_PART_BYTES,
               keel_wire_part_bytes(bytes, part));
        keel_node_send(node, to);
    } while (++part < keel_wire_parts(bytes));
}

static bool same_head(const struct keel_register_head *a, const struct keel_register_head *b)
{
    return a->kind == b->kind && a->ok == b->ok && a->disk == b->disk &&
           keel_ballot_compare(a->ballot, b->ballot) == 0 &&
           keel_ballot_compare(a->promised, b->promised) == 0 &&
           keel_ballot_compare(a->accepted, b->accepted) == 0;
}

/* A part came: true when it was the last that lacked, and the value is none or reads as a view. */
static bool hear_part(struct keel_node *node, struct keel_register_parts *parts,
                      const struct keel_wire_register *in)
{
    struct keel_register_message *whole = &parts->message;
    if (!same_head(&whole->head, &in->head) || whole->value.bytes != in->value_bytes)
        memset(&parts->have, 0, sizeof parts->have);
    whole->head = in->head;
    whole->value.bytes = in->value_bytes;
    memcpy(whole->value.data + in->part * KEEL_WIRE_PART_BYTES, in->data,
           keel_wire_part_bytes(in->value_bytes, in->part));
    keel_bitset_add(&parts->have, in->part);
    if (keel_bitset_count(&parts->have) < keel_wire_parts(in->value_bytes))
        return false;
    memset(&parts->have, 0, sizeof parts->have);
    const size_t mark = node->lent_bytes;
    struct keel_view *view = keel_node_lend(node, sizeof *view);
    node->lent_bytes = mark; /* it is not looked at */
    return in->value_bytes == 0 || keel_view_decode(whole->value.data, in->value_bytes, view);
}

void keel_node_ask_holders(struct keel_node *node)
{
    struct keel_register_message *ask = keel_node_lend(node, sizeof *ask);
    uint16_t asked[KEEL_REGISTER_ASKED_MAX];
    if (!keel_register_ask(&node->reg, ask))
        return;
    const uint32_t count = keel_register_asked(&node->reg, asked);
    for (uint32_t i = 0; i < count; i++)
        if (asked[i] != node->config.node)
            send_register(node, asked[i], ask);
    struct keel_register_message *reply = keel_node_lend(node, sizeof *reply);
    if (answer_as_holder(node, ask, reply))
        keel_moves_register(node, keel_register_hear(&node->reg, node->config.node, reply));
}

void keel_node_remind_holders(struct keel_node *node)
{
    struct keel_register_message *value = keel_node_lend(node, sizeof *value);
    uint16_t asked[KEEL_REGISTER_ASKED_MAX];
    const uint32_t count = keel_register_asked(&node->reg, asked);
    for (uint32_t i = 0; i < count; i++)
        if (asked[i] != node->config.node && keel_register_remind(&node->reg, asked[i], value))
            send_register(node, asked[i], value);
}

/* Where the parts of its answer are put together: in the place of one who is not asked any more. */
static struct keel_register_parts *parts_of(struct keel_node *node, uint16_t from)
{
    uint16_t asked[KEEL_REGISTER_ASKED_MAX];
    const uint32_t count = keel_register_asked(&node->reg, asked);
    struct keel_leader *leader = node->leader;
    uint32_t at = KEEL_REGISTER_ASKED_MAX;
    for (uint32_t i = 0; i < KEEL_REGISTER_ASKED_MAX; i++) {
        bool wanted = false;
        if (leader->reply_from[i] == from + 1U)
            return &leader->replies[i];
        for (uint32_t k = 0; k < count; k++)
            wanted = wanted || asked[k] + 1U == leader->reply_from[i];
        at = wanted ? at : i;
    }
    if (at == KEEL_REGISTER_ASKED_MAX) /* all are asked: this one is not */
        return NULL;
    leader->reply_from[at] = from + 1U;
    memset(&leader->replies[at].have, 0, sizeof leader->replies[at].have);
    return &leader->replies[at];
}

static void take_register(struct keel_node *node, uint16_t from)
{
    const struct keel_wire_register *in = &node->scratch->in.as.reg;
    const bool ask = in->head.kind == KEEL_REGISTER_PREPARE || in->head.kind == KEEL_REGISTER_ACCEPT;
    const bool proposer = keel_node_moves(node) || from == 0;
    if (ask && proposer && may_hold(&node->config)) {
        struct keel_register_message *reply = keel_node_lend(node, sizeof *reply);
        if (in->head.kind == KEEL_REGISTER_PREPARE && !keel_moves_may_read(node, from)) {
            if (keel_node_leads(node)) /* which `from` does not hear */
                keel_leader_tell(node, from);
            return;
        }
        /* A majority let its node lead: one that led before, and was cut off since, hears of it by nobody
         * else. */
        if (in->head.kind == KEEL_REGISTER_ACCEPT)
            (void)keel_moves_hear(node, &in->head.ballot);
        if (hear_part(node, &node->ask, in) && answer_as_holder(node, &node->ask.message, reply))
            send_register(node, from, reply);
    } else if (!ask && node->leader != NULL) {
        struct keel_register_parts *parts = parts_of(node, from);
        if (parts != NULL && hear_part(node, parts, in))
            keel_moves_register(node, keel_register_hear(&node->reg, from, &parts->message));
    }
}

/* ---- events -------------------------------------------------------------------------------------------- */

/* Holders of another run are not those of this one. */
static void forget_holders(struct keel_node *node, struct keel_register_value *value)
{
    struct keel_view *view = keel_node_lend(node, sizeof *view);
    if (value->bytes == 0 || !keel_view_decode(value->data, value->bytes, view))
        return;
    view->before.count = view->holders.count = 0;
    value->bytes = keel_view_encode(view, value->data);
}

/* Where the leader moves. An empty disk of a node that lived in this run has lost what it promised: it is
 * another holder, of which nobody has heard. Stored before it answers anything, so that an empty disk means
 * that. */
static void begin_to_hold(struct keel_node *node, bool empty)
{
    struct keel_register *reg = &node->reg;
    if (!node->config.again) {
        reg->disk = 0;
        forget_holders(node, &reg->value);
    } else if (empty) {
        reg->disk = (uint32_t)(node->env->random(node->env->context) % (KEEL_DISK_NONE - 1)) + 1;
        keel_node_trace(node, "node %u lost its disk: it is another holder", node->config.node);
    }
    if (!node->config.again || empty)
        (void)store_register(node);
}

static int take_start(struct keel_node *node, const struct keel_node_event *event)
{
    if (node->started)
        return KEEL_INVALID;
    node->started = true;
    const bool holder = may_hold(&node->config);
    const uint64_t nonce = node->env->random(node->env->context);
    if (holder)
        keel_register_init(&node->reg, node->config.node, 1, nonce);
    /* What an agent held in an earlier run is not of this register: its ballots may be above those of this
     * run, whose launcher need not have seen them, and a read phase would take its view for the newest. It
     * may be there still although the node lived in this run, where the disk was full so long. The launcher
     * begins above what its own disk holds. */
    const bool known = node->config.launcher || node->config.again;
    bool empty = event->bytes == 0;
    if (holder && known && !empty && keel_register_load(&node->reg, event->data, event->bytes) != KEEL_OK) {
        keel_node_finish(node, KEEL_CORRUPT, keel_detail());
        return KEEL_OK;
    }
    if (holder && known && !node->config.launcher && !empty && node->reg.run != node->config.run) {
        keel_register_init(&node->reg, node->config.node, 1, nonce);
        empty = true;
    }
    if (holder) /* others have no register: their storage ends before it */
        node->reg.run = node->config.run;
    if (holder && keel_node_moves(node))
        begin_to_hold(node, empty);
    if (!node->config.launcher) {
        keel_agent_start(node);
        return KEEL_OK;
    }
    if (node->reg.value.bytes > 0 &&
        !keel_view_decode(node->reg.value.data, node->reg.value.bytes, &node->leader->earlier))
        keel_node_finish(node, KEEL_CORRUPT, "the stored view cannot be read; use a new output directory");
    node->leader->took_over = node->config.takes_over;
    keel_leader_start(node, node->config.first_step);
    return KEEL_OK;
}

/* A launcher takes these too: it may follow. */
static bool is_for_agent(enum keel_wire_kind kind)
{
    return kind == KEEL_WIRE_LEADER || kind == KEEL_WIRE_SHARD_ACK || kind == KEEL_WIRE_BEAT;
}

static int take_message(struct keel_node *node, const struct keel_node_event *event)
{
    const bool own = event->node == node->config.node;
    if (event->node >= KEEL_NODES_MAX || (own && !keel_node_moves(node)))
        return KEEL_INVALID;
    if (own && !keel_node_leads(node)) /* what it told itself as the leader that it is no more */
        return KEEL_OK;
    if (!keel_wire_decode(event->data, event->bytes, &node->scratch->in)) {
        keel_node_trace(node, "drop malformed message of %u bytes from node %u", event->bytes, event->node);
        return KEEL_OK;
    }
    if (node->scratch->in.kind == KEEL_WIRE_REGISTER)
        take_register(node, event->node);
    else if (node->scratch->in.kind == KEEL_WIRE_PAST)
        keel_past_message(node, event->node);
    else if (node->scratch->in.kind == KEEL_WIRE_AWAY)
        keel_away_message(node, event->node);
    else if (node->scratch->in.kind >= KEEL_WIRE_VIEW)
        keel_views_message(node, event->node);
    else if (keel_node_leads(node) && !is_for_agent(node->scratch->in.kind))
        keel_leader_message(node, event->node);
    else
        keel_agent_message(node, event->node);
    return KEEL_OK;
}

static int take_stop(struct keel_node *node)
{
    if (keel_node_leads(node)) {
        keel_leader_stop(node);
    } else { /* whoever leads hears of it */
        node->agent.stopping = node->agent.report_due = true;
    }
    return KEEL_OK;
}

static int take_event(struct keel_node *node, const struct keel_node_event *event)
{
    switch (event->kind) {
    case KEEL_EVENT_START:
        return take_start(node, event);
    case KEEL_EVENT_TICK:
        return KEEL_OK;
    case KEEL_EVENT_MESSAGE:
        return take_message(node, event);
    case KEEL_EVENT_NODE_EXIT:
        if (keel_node_leads(node))
            return keel_children_end(node, event->node, event->value);
        return node->config.launcher ? KEEL_OK : KEEL_INVALID; /* who leads sees it by its silence */
    case KEEL_EVENT_DRAIN:
        return keel_node_leads(node) ? keel_away_ask(node, event->node, event->value != 0) : KEEL_INVALID;
    case KEEL_EVENT_PAST:
        return keel_past_take(node, event);
    case KEEL_EVENT_STOP:
        return node->config.launcher || keel_node_leads(node) ? take_stop(node) : KEEL_INVALID;
    case KEEL_EVENT_LEADER:
        node->agent.leader_ns = node->now_ns;
        return node->config.launcher ? KEEL_INVALID : KEEL_OK;
    case KEEL_EVENT_WORKER_READY:
    case KEEL_EVENT_WORKER_BEAT:
    case KEEL_EVENT_WORKER_STEP:
    case KEEL_EVENT_WORKER_SHARD:
    case KEEL_EVENT_WORKER_ACCUSES:
    case KEEL_EVENT_WORKER_EXIT:
    case KEEL_EVENT_WORKER_DONE:
    case KEEL_EVENT_WORKER_NOTE:
    case KEEL_EVENT_WORKER_FAILED:
        if (node->config.launcher || event->local >= node->config.worker_count)
            return KEEL_INVALID;
        return keel_agent_event(node, event);
    default:
        return KEEL_INVALID;
    }
}

/* Stopped (SIGSTOP, a suspended machine) for much longer than planned: then silence of others proves
 * nothing, since nobody listened. */
static void notice_own_stall(struct keel_node *node)
{
    if (node->planned_ns == 0 || node->now_ns < node->planned_ns + node->times.silence_ns / 2)
        return;
    keel_node_trace(node, "stalled for %llu ms",
                    (unsigned long long)((node->now_ns - node->planned_ns) / 1000000));
    if (keel_node_leads(node))
        keel_leader_reset_timers(node);
    keel_agent_reset_timers(node);
}

uint64_t keel_node_leader_ns(const struct keel_node *node)
{
    return node->agent.leader_ns;
}

uint16_t keel_node_leader(const struct keel_node *node)
{
    if (keel_node_leads(node))
        return node->config.node;
    return node->term.leader != node->config.node ? node->term.leader : KEEL_NODE_NONE;
}

uint32_t keel_node_candidates(const struct keel_node *node, uint16_t out[KEEL_NODE_CANDIDATES_MAX])
{
    const struct keel_view_holders *holders = keel_node_holders(node);
    uint32_t count = 0;
    out[count++] = node->term.leader;
    for (uint8_t i = 0; i < holders->count; i++)
        out[count++] = holders->at[i].node;
    return count;
}

bool keel_node_has_member(const struct keel_node *node, uint16_t which)
{
    for (uint16_t i = 0; i < node->view.member_count; i++)
        if (node->view.members[i].node == which)
            return true;
    return false;
}

int keel_node_step(struct keel_node *node, const struct keel_env *env, const struct keel_node_event *event)
{
    if (node->finished || (!node->started && event->kind != KEEL_EVENT_START))
        return KEEL_INVALID;
    KEEL_ASSERT(node->env == NULL);
    struct keel_scratch scratch; /* large; what is read of it was written */
    node->scratch = &scratch;
    node->lent_bytes = 0;
    node->env = env;
    node->now_ns = env->now_ns;
    node->wake_ns = node->now_ns + node->times.beat_ns;
    uint64_t epoch = node->view.epoch;
    notice_own_stall(node);
    int result = take_event(node, event);
    if (!node->finished)
        keel_moves_work(node);
    if (!node->finished && keel_node_leads(node))
        keel_children_work(node);
    if (!node->finished && !(node->config.launcher && keel_node_leads(node)))
        keel_agent_work(node);
    if (!node->finished && keel_node_leads(node))
        keel_leader_work(node);
    if (!node->finished && keel_node_leads(node))
        keel_past_work(node);
    KEEL_ASSERT(node->view.epoch >= epoch);
    KEEL_ASSERT(node->view.epoch == epoch || keel_view_valid(&node->view));
    if (!node->finished) {
        node->planned_ns = node->wake_ns > node->now_ns ? node->wake_ns : node->now_ns + 1;
        KEEL_ASSERT(node->planned_ns > node->now_ns); /* invariant 8 */
        env->timer(env->context, node->planned_ns);
    }
    node->env = NULL;
    node->scratch = NULL;
    return result;
}
