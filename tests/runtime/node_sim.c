/* node_sim.c - see node_sim.h. */
#include "node_sim_gate.h"
#include "node_sim_holders.h"
#include "node_sim_past.h"
#include "node_sim_queue.h"
#include <inttypes.h>
#include <keel/bits.h>
#include <keel/memory.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

enum {
    SENDERS = 64,      /* whom a garbled message may name: more than there are */
    HURRIED_MAX = 1000 /* timers at once, in a row */
};

uint64_t sim_random(struct sim *sim, uint64_t below)
{
    return below == 0 ? 0 : draw(sim) % below;
}

/* ---- effects of a node --------------------------------------------------------------------------------- */

struct sim_context {
    struct sim *sim;
    uint16_t node;
};

static struct sim_node *self(void *context)
{
    struct sim_context *c = context;
    return &c->sim->nodes[c->node];
}

static uint64_t env_random(void *context)
{
    return draw(((struct sim_context *)context)->sim);
}

/* `late_ns`: how much later than usual at most; for copies of long ago. */
static void deliver(struct sim *sim, uint16_t from, uint16_t to, const uint8_t *data, uint32_t bytes,
                    uint64_t late_ns)
{
    if (sim->blocked[from][to] || chance(sim, sim_link_loss(sim, from, to, &late_ns)))
        return;
    uint64_t spread_ns = sim->config.delay_max_ns - sim->config.delay_min_ns;
    struct sim_event event = {.kind = SIM_MESSAGE, .node = to, .from = from, .bytes = bytes};
    const uint64_t way_ns = sim->config.delay_min_ns + sim_random(sim, spread_ns + 1 + late_ns);
    event.at_ns = sim_meter_pass(&sim->nodes[from].meter, &sim->nodes[to].meter, &sim->config.costs,
                                 sim->now_ns, way_ns, bytes);
    push(sim, own_data(event, data));
}

/* What no network with seals lets through: only to see that it breaks nothing in memory. */
static void deliver_garbled(struct sim *sim, uint16_t to, const uint8_t *data, uint32_t bytes)
{
    uint8_t copy[KEEL_MESSAGE_BYTES];
    memcpy(copy, data, bytes);
    for (uint64_t flips = 1 + sim_random(sim, 6); flips > 0; flips--)
        copy[13 + sim_random(sim, bytes - 13)] = (uint8_t)draw(sim);
    uint16_t from = (uint16_t)sim_random(sim, SENDERS);
    from = from < sim->config.nodes ? from : 1;
    if (from != to && !sim->blocked[from][to])
        deliver(sim, from, to, copy, bytes, 0);
}

static void env_send(void *context, uint16_t node, const uint8_t *data, uint32_t bytes)
{
    struct sim_context *c = context;
    struct sim *sim = c->sim;
    if (bytes > KEEL_MESSAGE_BYTES || node >= sim->config.nodes) {
        violate(sim, "node %u sends %u bytes to %u", c->node, bytes, node);
        return;
    }
    if (node == c->node) { /* by no network */
        struct sim_event own = {.kind = SIM_MESSAGE, .node = node, .from = node, .bytes = bytes};
        own.life = sim->nodes[node].life;
        own.at_ns = later(sim, SIM_MS / 100);
        push(sim, own_data(own, data));
        return;
    }
    sim_count(sim, c->node, data, bytes);
    sim->now_ns += sim->config.costs.send_ns + bytes * sim->config.costs.send_ps / 1000;
    deliver(sim, c->node, node, data, bytes, 0);
    if (bytes > 13 && chance(sim, sim->garble_ppm))
        deliver_garbled(sim, node, data, bytes);
    if (chance(sim, sim->duplicate_ppm))
        deliver(sim, c->node, node, data, bytes, chance(sim, 100000) ? 4 * sim->config.timeout_ns : 0);
}

static void env_timer(void *context, uint64_t deadline_ns)
{
    struct sim_context *c = context;
    struct sim_node *n = self(context);
    n->timer_generation++;
    n->hurried = deadline_ns <= c->sim->now_ns + 1 ? n->hurried + 1 : 0;
    c->sim->spins += n->hurried > HURRIED_MAX ? 1 : 0;
    push(c->sim, (struct sim_event){.at_ns = deadline_ns,
                                    .kind = SIM_TIMER,
                                    .node = c->node,
                                    .life = n->life,
                                    .value = n->timer_generation});
}

static bool env_persist(void *context, const uint8_t *data, uint32_t bytes)
{
    struct sim_node *n = self(context);
    if (n->disk_full)
        return false;
    KEEL_ASSERT(bytes <= sizeof n->disk);
    memcpy(n->disk, data, bytes);
    n->disk_bytes = bytes;
    return true;
}

/* Invariants 2, 3 and 9: one valid view per epoch, wherever it is seen, of a plan. */
static void see_view(struct sim *sim, const struct keel_view *view)
{
    uint8_t bytes[KEEL_VIEW_BYTES_MAX];
    if (!keel_view_valid(view) || view->epoch >= SIM_EPOCHS_MAX) {
        violate(sim, "view of epoch %" PRIu64 " is not valid", view->epoch);
        return;
    }
    if (view->plan != sim->plans[keel_view_active_count(view)])
        violate(sim, "view of epoch %" PRIu64 " has %u ranks and plan %" PRIu64, view->epoch,
                keel_view_active_count(view), view->plan);
    uint64_t hash = keel_fnv1a(KEEL_FNV1A_BEGIN, bytes, keel_view_encode(view, bytes)) | 1;
    if (sim->view_hash[view->epoch] != 0 && sim->view_hash[view->epoch] != hash)
        violate(sim, "two views of epoch %" PRIu64, view->epoch);
    sim->view_hash[view->epoch] = hash;
    if (sim->views[view->epoch] == NULL) {
        enum keel_status status = keel_alloc(1, sizeof *view, &sim->views[view->epoch]);
        KEEL_ASSERT(status == KEEL_OK);
        keel_view_copy(sim->views[view->epoch], view);
    }
}

static void schedule_group(struct sim *sim, uint64_t epoch)
{
    if (epoch <= sim->group_epoch)
        return;
    sim->group_epoch = epoch;
    push(sim,
         (struct sim_event){.at_ns = sim->now_ns + sim->config.step_ns, .kind = SIM_GROUP, .epoch = epoch});
}

static void env_tell_view(void *context, uint8_t local, const struct keel_view *view)
{
    struct sim_context *c = context;
    struct sim_worker *w = &self(context)->workers[local];
    see_view(c->sim, view);
    c->sim->now_ns += view->member_count * c->sim->config.costs.take_ns;
    if (keel_view_find_worker(view, c->node, local, w->incarnation) < 0) /* invariant 4 */
        violate(c->sim, "worker %u.%u is told epoch %" PRIu64 ", not a member", c->node, local, view->epoch);
    if (view->epoch <= w->sent_epoch)
        violate(c->sim, "worker %u.%u is told epoch %" PRIu64 " again", c->node, local, view->epoch);
    if (!w->running)
        return; /* died unnoticed */
    if (!w->ready)
        violate(c->sim, "worker %u.%u is told a view before it is ready", c->node, local);
    w->sent_epoch = view->epoch;
    schedule_group(c->sim, view->epoch);
}

static void env_tell_stop(void *context, uint8_t local)
{
    struct sim_context *c = context;
    struct sim_worker *w = &self(context)->workers[local];
    w->stop_told = true;
    const struct keel_view *view = c->sim->views[w->sent_epoch % SIM_EPOCHS_MAX];
    int at = view != NULL ? keel_view_find_worker(view, c->node, local, w->incarnation) : -1;
    if (w->running && (at < 0 || view->members[at].spare))
        push(c->sim, (struct sim_event){.at_ns = later(c->sim, SIM_MS),
                                        .kind = SIM_DONE,
                                        .node = c->node,
                                        .local = local,
                                        .life = w->life});
}

static void env_worker_start(void *context, uint8_t local, uint32_t incarnation)
{
    struct sim_context *c = context;
    struct sim *sim = c->sim;
    struct sim_worker *w = &self(context)->workers[local];
    if (w->running)
        violate(sim, "worker %u.%u is started twice", c->node, local);
    uint32_t life = w->life + 1;
    *w = (struct sim_worker){.running = true, .incarnation = incarnation, .life = life};
    sim->worker_starts++;
    struct sim_event event = {.node = c->node, .local = local, .life = life};
    event.kind = SIM_READY;
    event.at_ns = sim->now_ns + sim->config.ready_ns / 2 + sim_random(sim, sim->config.ready_ns);
    push(sim, event);
    event.kind = SIM_BEAT;
    event.at_ns = sim->now_ns + sim->config.timeout_ns / 10;
    push(sim, event);
}

static void end_worker(struct sim *sim, uint16_t node, uint8_t local)
{
    struct sim_worker *w = &sim->nodes[node].workers[local];
    if (!w->running)
        return;
    w->running = false;
    push(sim, (struct sim_event){.at_ns = later(sim, 2 * SIM_MS),
                                 .kind = SIM_EXIT,
                                 .node = node,
                                 .local = local,
                                 .life = w->life});
}

static void env_worker_kill(void *context, uint8_t local)
{
    struct sim_context *c = context;
    c->sim->kills++;
    end_worker(c->sim, c->node, local);
}

static void env_node_start(void *context, uint16_t node, uint32_t incarnation)
{
    const struct sim_context *c = context;
    sim_await_agent(c->sim, c->node, node, incarnation);
}

/* ---- the disk of the snapshots ------------------------------------------------------------------------- */

/* Of what this leader committed nothing is dropped; of what another did it must not be asked for. */
static void env_snapshot_drop(void *context, uint64_t step, uint64_t attempt, const struct keel_bitset *ranks)
{
    const struct sim_context *c = context;
    struct sim *sim = c->sim;
    struct sim_generation *dropped = generation_of(sim, step, attempt);
    bool ours = false;
    for (uint32_t i = 0; i < SIM_COMMITTERS_MAX; i++)
        ours = ours || dropped->committers[i] == sim_life_name(sim, c->node);
    if (dropped->committed && !ours)
        violate(sim, "node %u drops shards of %" PRIu64 ".%" PRIu64 ", which another committed", c->node,
                step, attempt);
    for (uint32_t rank = keel_bitset_next(ranks, 0); rank < KEEL_MEMBERS_MAX && !dropped->committed;
         rank = keel_bitset_next(ranks, rank + 1))
        if (dropped->there[rank]) {
            dropped->there[rank] = false;
            sim->dropped++;
        }
}

/* Invariant 6. */
static void env_snapshot_commit(void *context, uint64_t step, uint64_t attempt,
                                const struct keel_shard_summary *shards, uint32_t count)
{
    const struct sim_context *c = context;
    struct sim *sim = c->sim;
    const struct keel_node *node = sim->nodes[c->node].state;
    /* Of the view before: the end; and, in the place of a process that ended, what that one had not
     * committed. */
    const bool late = attempt == node->leader->before.epoch &&
                      (step == sim->config.last_step ||
                       (node->config.takes_over && node->leader->first_epoch == node->view.epoch));
    const struct keel_view *view = late ? sim->views[attempt % SIM_EPOCHS_MAX] : &node->view;
    if (attempt != node->view.epoch && !late)
        violate(sim, "snapshot %" PRIu64 ".%" PRIu64 " of a view that is over", step, attempt);
    if (view == NULL || count != keel_view_active_count(view))
        violate(sim, "snapshot %" PRIu64 ".%" PRIu64 " of %u shards", step, attempt, count);
    if (generation_of(sim, step, attempt)->committed_by == sim_leader_name(sim, c->node))
        violate(sim, "snapshot %" PRIu64 ".%" PRIu64 " again", step, attempt);
    for (uint32_t i = 0; i < count; i++)
        if (shards[i].rank != i || shards[i].raw_bytes != step + 1)
            violate(sim, "snapshot %" PRIu64 " has a wrong shard %u", step, i);
    struct sim_generation *committed = generation_of(sim, step, attempt);
    for (uint32_t rank = 0; rank < KEEL_MEMBERS_MAX; rank++)
        if (committed->there[rank] != (rank < count))
            violate(sim, "snapshot %" PRIu64 ".%" PRIu64 " lacks a shard", step, attempt);
    sim->snapshot_count += committed->committed ? 0 : 1;
    committed->committed = true;
    committed->committed_by = sim_leader_name(sim, c->node);
    memmove(committed->committers + 1, committed->committers,
            (SIM_COMMITTERS_MAX - 1) * sizeof committed->committers[0]);
    committed->committers[0] = sim_life_name(sim, c->node);
    if (attempt < sim->snapshot_last_epoch)
        return; /* by one who does not know yet that another leads */
    sim->snapshot_last_epoch = attempt;
    sim->snapshot_step = step;
}

/* Invariant 5, and a gap only where nobody who lives holds the record. A step comes again where the leader
 * moved before it could say that it was delivered, or does not know yet that another leads: with the same
 * bits. */
static void env_step_commit(void *context, const struct keel_step_record *record)
{
    const struct sim_context *c = context;
    struct sim *sim = c->sim;
    sim_past_step(sim, c->node, record->step);
    if (record->step < sim->delivered_next && sim->moves + sim->take_overs > 0) {
        const uint64_t digest = sim->delivered_digest[record->step % SIM_STEPS_MAX];
        if (digest != 0 && record->digest != digest) /* 0: it was passed over, and its record has come late */
            violate(sim, "step %" PRIu64 " delivered again, with other bits", record->step);
        sim->delivered_again++;
        return;
    }
    if (record->step < sim->delivered_next || record->step > sim->config.last_step)
        violate(sim, "step %" PRIu64 " delivered, %" PRIu64 " wanted", record->step, sim->delivered_next);
    sim_past_over(sim, c->node, record->step);
    sim->delivered_next = record->step + 1;
    sim->delivered_digest[record->step % SIM_STEPS_MAX] = record->digest;
    sim->delivered_count++;
    if (record->step == sim->config.last_step)
        sim->end_epoch = record->epoch;
}

static void env_mismatch(void *context, const struct keel_step_record *a, const struct keel_step_record *b)
{
    struct sim *sim = ((struct sim_context *)context)->sim;
    if (a->step != b->step || (a->digest == b->digest && a->loss_bits == b->loss_bits))
        violate(sim, "a mismatch that is none at step %" PRIu64, a->step);
    sim->mismatches++;
}

static void env_view_change(void *context, const struct keel_view *old_view, const struct keel_view *new_view,
                            enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns)
{
    const struct sim_context *c = context;
    struct sim *sim = c->sim;
    const struct keel_ballot ballot = sim->nodes[c->node].state->reg.ballot;
    see_view(sim, new_view);
    const char *wrong =
        sim->config.holders >= KEEL_HOLDERS_TO_MOVE ? wrong_holders(sim, c->node, new_view) : NULL;
    if (wrong != NULL)
        violate(sim, "the holders of epoch %" PRIu64 " %s", new_view->epoch, wrong);
    sim->now_ns += new_view->member_count * sim->config.costs.make_ns;
    const bool late = sim->moves > 0 && new_view->epoch <= sim->newest_epoch; /* another has made the next */
    const int order = keel_ballot_compare(ballot, sim->view_ballot);
    if (new_view->epoch < sim->newest_epoch ? order >= 0 : order <= 0)
        violate(sim, "epoch %" PRIu64 " under a ballot that does not fit", new_view->epoch);
    if (late || new_view->epoch >= SIM_EPOCHS_MAX) /* the latter is a lie, and a violation already */
        return;
    if (new_view->epoch <= sim->newest_epoch || (old_view->epoch != 0 && old_view->epoch >= new_view->epoch))
        violate(sim, "epoch %" PRIu64 " after %" PRIu64, new_view->epoch, sim->newest_epoch);
    if (evidence_ns > sim->now_ns || alive_ns > evidence_ns || cause == KEEL_CAUSE_NONE)
        violate(sim, "a view change without cause or from the future");
    sim->newest_epoch = new_view->epoch;
    sim->view_ballot = ballot;
    sim->view_ns = sim->now_ns;
    sim->view_chain =
        keel_fnv1a(sim->view_chain, &sim->view_hash[new_view->epoch], sizeof sim->view_hash[new_view->epoch]);
    keel_view_copy(&sim->view_before, &sim->view);
    keel_view_copy(&sim->view, new_view);
    sim->last_cause = cause;
    if (sim->view_changes < 64)
        sim->change_ns[sim->view_changes] = sim->now_ns;
    sim->view_changes++;
}

/* Invariant 10: somebody is to be waited for. */
static void env_shortage(void *context, uint16_t ranks, uint16_t fewest)
{
    struct sim *sim = ((struct sim_context *)context)->sim;
    if (ranks == 0 || ranks >= fewest || sim->plans[fewest] == 0 || sim->plans[ranks] != 0)
        violate(sim, "%u ranks are too few, and %u enough", ranks, fewest);
    sim->shortages++;
}

static void env_drain(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks,
                      uint16_t fewest)
{
    const struct sim_context *c = context;
    struct sim *sim = c->sim;
    if (node == 0 || node >= sim->config.nodes ||
        (news == KEEL_DRAIN_LEFT && sim->nodes[node].running && !sim_may_be_silent(sim, c->node, node)) ||
        ((news == KEEL_DRAIN_WAITS || news == KEEL_DRAIN_HOLDS) && ranks >= fewest))
        violate(sim, "drain news %d of node %u", (int)news, node);
    sim->drains[news]++;
}

static void env_note(void *context, uint16_t node, uint8_t local, const uint8_t *data, uint32_t bytes)
{
    const struct sim_context *c = context;
    struct sim *sim = c->sim;
    if (node >= sim->config.nodes || local >= SIM_LOCALS || !data || bytes > KEEL_WIRE_NOTE_BYTES ||
        !sim_hear(sim, c->node, node, data, bytes))
        violate(sim, "a note of nobody, or twice, or late");
}

/* A run that is not complete ends only when its user asks or when too few are left for any plan (invariant
 * 10): a worker that lives, on a node that the launcher can hear (now, or once its processes are no longer
 * paused), is somebody. */
static void check_nobody_lives(struct sim *sim, uint16_t leader, const char *detail)
{
    uint32_t alive = 0;
    for (uint16_t i = 1; i < sim->config.nodes; i++)
        for (uint8_t local = 0; local < sim->config.workers_per_node; local++) {
            const struct sim_worker *w = &sim->nodes[i].workers[local];
            if (sim->nodes[i].running && w->running && !w->stopped && sim_talk(sim, leader, i) &&
                sim_may_be_known(sim, leader, i))
                alive++;
        }
    if (keel_view_seats(sim->plans, sim->config.ranks, alive) > 0)
        violate(sim, "the run ends though %u workers live: %s", alive, detail);
}

static void env_finish(void *context, enum keel_status status, const char *detail)
{
    struct sim_context *c = context;
    struct sim_node *n = self(context);
    if (n->finished)
        violate(c->sim, "node %u finishes twice", c->node);
    const bool leads = n->state->term.role == KEEL_LEADS && strcmp(detail, KEEL_NODE_DRAINED) != 0;
    if (leads && status == KEEL_OK)
        sim_past_over(c->sim, c->node, c->sim->config.last_step + 1);
    if (leads && (status == KEEL_INTERRUPTED || status == KEEL_TIMEOUT) && !c->sim->user_stopped)
        check_nobody_lives(c->sim, c->node, detail);
    n->finished = true;
    if (c->node == 0 || (leads && !c->sim->nodes[0].running)) { /* a launcher that follows ends by itself */
        c->sim->over = true;
        c->sim->end_status = status;
        (void)snprintf(c->sim->end_detail, sizeof c->sim->end_detail, "%s", detail);
    }
    n->finish_status = status;
    (void)snprintf(n->finish_detail, sizeof n->finish_detail, "%s", detail);
}

static void env_trace(void *context, const char *line)
{
    struct sim_context *c = context;
    struct sim *sim = c->sim;
    sim->trace_hash = keel_fnv1a(sim->trace_hash, &sim->now_ns, sizeof sim->now_ns);
    sim->trace_hash = keel_fnv1a(sim->trace_hash, &c->node, sizeof c->node);
    sim->trace_hash = keel_fnv1a(sim->trace_hash, line, strlen(line));
    if (sim->verbose)
        printf("%9.3f ms  node %u  %s\n", (double)sim->now_ns / 1e6, c->node, line);
}

/* ---- giving events ------------------------------------------------------------------------------------- */

/* Invariant 4: who was told a view and is not in the newest that its agent knows does not live. */
static void check_evicted(struct sim *sim, uint16_t node)
{
    const struct keel_view *view = &sim->nodes[node].state->view;
    for (uint8_t local = 0; local < sim->config.workers_per_node; local++) {
        const struct sim_worker *w = &sim->nodes[node].workers[local];
        if (w->running && !w->done && w->sent_epoch > 0 && w->sent_epoch < view->epoch)
            violate(sim, "worker %u.%u of epoch %" PRIu64 " lives in epoch %" PRIu64, node, local,
                    w->sent_epoch, view->epoch);
    }
}

static uint32_t env_domain(void *context, uint16_t node)
{
    const uint16_t nodes = ((struct sim_context *)context)->sim->config.domain;
    return nodes == 0 ? node : node / nodes;
}

static void env_past(void *context, const uint8_t *data, uint32_t bytes)
{
    sim_past_learn(self(context), data, bytes);
}

static void *env_lead_place(void *context, size_t bytes)
{
    struct sim_node *n = self(context);
    enum keel_status status = n->place == NULL ? keel_alloc(1, bytes, &n->place) : KEEL_OK;
    KEEL_ASSERT(status == KEEL_OK);
    return n->place;
}

static int give(struct sim *sim, uint16_t node, struct keel_node_event *event)
{
    struct sim_node *n = &sim->nodes[node];
    struct sim_context context = {.sim = sim, .node = node};
    static _Alignas(64) uint8_t room[24 * sizeof(struct keel_view)];
    KEEL_ASSERT(sizeof room == keel_node_room_bytes());
    const struct keel_env env = {.room = room,
                                 .context = &context,
                                 .now_ns = sim->now_ns,
                                 .random = env_random,
                                 .send = env_send,
                                 .timer = env_timer,
                                 .persist = env_persist,
                                 .tell_view = env_tell_view,
                                 .tell_stop = env_tell_stop,
                                 .worker_start = env_worker_start,
                                 .worker_kill = env_worker_kill,
                                 .node_start = env_node_start,
                                 .snapshot_commit = env_snapshot_commit,
                                 .snapshot_drop = env_snapshot_drop,
                                 .step_commit = env_step_commit,
                                 .past = env_past,
                                 .mismatch = env_mismatch,
                                 .view_change = env_view_change,
                                 .shortage = env_shortage,
                                 .drain = env_drain,
                                 .note = env_note,
                                 .lead_place = env_lead_place,
                                 .domain = env_domain,
                                 .finish = env_finish,
                                 .trace = env_trace};
    int result = keel_node_step(n->state, &env, event);
    if (n->state->term.role == KEEL_LEADS && sim->leader != node) {
        sim->moves++;
        sim->leader = node;
    }
    if (node != 0)
        check_evicted(sim, node);
    if (n->finished && n->running && node != 0)
        sim_kill_node(sim, node); /* the process ends after this call */
    return result;
}

/* When the node has time for it: until its work is done, the world's clock is the node's. */
int sim_give(struct sim *sim, uint16_t node, struct keel_node_event *event)
{
    const struct sim_costs *costs = &sim->config.costs;
    struct sim_meter *meter = &sim->nodes[node].meter;
    const uint64_t now_ns = sim->now_ns;
    const bool message = event->kind == KEEL_EVENT_MESSAGE;
    if (!sim->nodes[node].running || sim->nodes[node].finished)
        return KEEL_INVALID;
    if (message && !sim_meter_take(meter, costs, now_ns, event->bytes + costs->extra_bytes))
        return KEEL_OK;
    const uint64_t begin_ns = meter->busy_ns > now_ns ? meter->busy_ns : now_ns;
    sim->now_ns = begin_ns + costs->event_ns;
    sim->now_ns += message ? costs->receive_ns + event->bytes * costs->receive_ps / 1000 : 0;
    const int result = give(sim, node, event);
    struct sim_node *n = &sim->nodes[node];
    if (sim_past_news(sim, n))
        (void)give(sim, node,
                   &(struct keel_node_event){.kind = KEEL_EVENT_PAST,
                                             .value = n->past_step,
                                             .data = (const uint8_t *)&n->past_step,
                                             .bytes = sizeof n->past_step});
    meter->busy_ns = sim->now_ns;
    meter->worked_ns += sim->now_ns - begin_ns;
    sim->now_ns = now_ns;
    return result;
}

/* ---- workers ------------------------------------------------------------------------------------------- */

static struct sim_worker *find_member(struct sim *sim, const struct keel_member *member)
{
    if (member->node >= sim->config.nodes || member->local >= SIM_LOCALS)
        return NULL; /* a lie */
    struct sim_worker *w = &sim->nodes[member->node].workers[member->local];
    return w->running && w->incarnation == member->incarnation ? w : NULL;
}

/* Survivors of epoch `epoch` notice that a member is gone: soon if its process is, late if it is stopped. */
static void notice_loss(struct sim *sim, const struct keel_view *view, const struct keel_member *lost,
                        bool dead)
{
    for (uint16_t i = 0; i < view->member_count; i++) {
        const struct keel_member *m = &view->members[i];
        struct sim_worker *w = find_member(sim, m);
        if (!w || m->spare || w->sent_epoch != view->epoch || w->stopped || m == lost ||
            w->accused_epoch == view->epoch)
            continue;
        w->accused_epoch = view->epoch;
        uint64_t wait_ns = dead ? 3 * SIM_MS : sim->config.timeout_ns;
        push(sim, (struct sim_event){.at_ns = sim->now_ns + wait_ns / 2 + sim_random(sim, wait_ns),
                                     .kind = SIM_ACCUSE,
                                     .node = m->node,
                                     .local = m->local,
                                     .life = w->life,
                                     .value = lost->rank,
                                     .epoch = view->epoch});
    }
}

/* Everybody of the epoch is there? Says who is missing otherwise, when it is for good. */
static bool group_is_whole(struct sim *sim, const struct keel_view *view)
{
    bool whole = true;
    for (uint16_t i = 0; i < view->member_count; i++) {
        const struct keel_member *m = &view->members[i];
        if (m->spare)
            continue;
        struct sim_worker *w = find_member(sim, m);
        if (!w || w->done || w->stopped) {
            notice_loss(sim, view, m, !w || w->done);
            return false;
        }
        bool left = w->finishing_epoch != 0 && w->finishing_epoch != view->epoch;
        whole = whole && w->sent_epoch == view->epoch && !left;
    }
    return whole;
}

/* Where the group goes on: the newest state that a member holds, else the newest snapshot. */
static uint64_t agree_on_step(struct sim *sim, const struct keel_view *view)
{
    uint64_t next = 0;
    bool any = false;
    for (uint16_t i = 0; i < view->member_count; i++) {
        struct sim_worker *w = find_member(sim, &view->members[i]);
        if (view->members[i].spare || !w || !w->has_state)
            continue;
        any = true;
        next = w->next_step > next ? w->next_step : next;
    }
    if (!any && sim->delivered_next > sim->config.last_step && sim->snapshot_step < sim->config.last_step)
        sim->ends_again++;
    return any ? next : sim->snapshot_step + 1;
}

static void run_group(struct sim *sim, uint64_t epoch)
{
    const struct keel_view *view = NULL;
    for (uint16_t n = 1; n < sim->config.nodes && !view; n++)
        for (uint8_t l = 0; l < sim->config.workers_per_node && !view; l++)
            if (sim->nodes[n].workers[l].running && sim->nodes[n].workers[l].sent_epoch == epoch)
                view = sim->views[epoch % SIM_EPOCHS_MAX];
    if (sim->group_epoch != epoch)
        return;
    push(sim,
         (struct sim_event){.at_ns = sim->now_ns + sim->config.step_ns, .kind = SIM_GROUP, .epoch = epoch});
    if (!view || !group_is_whole(sim, view))
        return;
    uint64_t step = agree_on_step(sim, view);
    bool stop = false;
    for (uint16_t i = 0; i < view->member_count; i++)
        stop = stop || (!view->members[i].spare && find_member(sim, &view->members[i])->stop_told);
    uint16_t position = 0;
    for (uint16_t i = 0; i < view->member_count; i++) {
        const struct keel_member *m = &view->members[i];
        if (m->spare)
            continue;
        struct sim_worker *w = find_member(sim, m);
        w->has_state = true;
        w->next_step = step;
        struct sim_event event = {.node = m->node, .local = m->local, .life = w->life, .epoch = epoch};
        event.value = step;
        event.from = position++;
        event.kind = stop || step > sim->config.last_step ? SIM_DONE : SIM_COMMIT;
        event.at_ns = later(sim, sim->config.spread_ns > 0 ? sim->config.spread_ns : sim->config.step_ns / 2);
        if (event.kind == SIM_DONE)
            event.at_ns += 2 * sim->config.step_ns; /* not before its snapshots are finished */
        if (event.kind == SIM_DONE && !stop)
            w->finishing_epoch = epoch;
        push(sim, event);
        if (event.kind == SIM_COMMIT && step % sim->config.snapshot_every == 0) {
            event.kind = SIM_SHARD;
            event.at_ns = sim->now_ns + sim->config.step_ns + sim_random(sim, sim->config.step_ns);
            push(sim, event);
        }
    }
}

static void commit_step(struct sim *sim, const struct sim_event *event, struct sim_worker *w)
{
    if (w->sent_epoch != event->epoch)
        return; /* revoked meanwhile */
    w->next_step = event->value + 1;
    if (event->value < SIM_STEPS_MAX)
        sim->nodes[event->node].held[event->value] = 1;
    struct keel_step_record record = {.step = event->value,
                                      .epoch = event->epoch,
                                      .loss_bits = (uint32_t)event->value * 2654435761U,
                                      .digest = event->value * UINT64_C(0x9e3779b97f4a7c15)};
    if (event->node == sim->bad_digest_node && event->value == sim->bad_digest_step)
        record.digest ^= 1;
    (void)sim_give(
        sim, event->node,
        &(struct keel_node_event){.kind = KEEL_EVENT_WORKER_STEP, .local = event->local, .record = &record});
}

static void do_worker(struct sim *sim, const struct sim_event *event)
{
    struct sim_worker *w = &sim->nodes[event->node].workers[event->local];
    if (w->life != event->life || !w->running)
        return;
    if (w->stopped) { /* its share of the world waits */
        struct sim_event again = *event;
        again.at_ns = sim->now_ns + sim->config.step_ns;
        push(sim, again);
        return;
    }
    struct keel_node_event given = {.local = event->local};
    struct keel_shard_summary summary = {.rank = event->from, .raw_bytes = event->value + 1};
    switch (event->kind) {
    case SIM_READY:
        w->ready = true;
        w->ready_ns = sim->now_ns;
        given.kind = KEEL_EVENT_WORKER_READY;
        given.address.bytes = sim->config.address_bytes != 0 ? sim->config.address_bytes : 8;
        memcpy(given.address.data, &w->life, 4);
        given.address.data[4] = (uint8_t)event->node;
        given.address.data[5] = event->local;
        break;
    case SIM_BEAT: {
        struct sim_event again = *event;
        again.at_ns = sim->now_ns + sim->config.timeout_ns / 10;
        push(sim, again);
        given.kind = KEEL_EVENT_WORKER_BEAT;
        given.value = w->next_step;
        break;
    }
    case SIM_COMMIT:
        commit_step(sim, event, w);
        return;
    case SIM_SHARD:
        sim_saved(sim, event->value, event->epoch, event->from);
        given.kind = KEEL_EVENT_WORKER_SHARD;
        given.value = event->value;
        given.attempt = event->epoch;
        given.summary = &summary;
        break;
    case SIM_DONE:
        if (event->epoch != 0 && w->sent_epoch != event->epoch && w->finishing_epoch != event->epoch)
            return;
        w->done = true;
        sim_say(sim, event->node, event->local);
        given.kind = KEEL_EVENT_WORKER_DONE;
        break;
    case SIM_ACCUSE:
        if (w->sent_epoch != event->epoch)
            return;
        given.kind = KEEL_EVENT_WORKER_ACCUSES;
        given.rank = (uint16_t)event->value;
        given.value = event->epoch;
        given.cause = KEEL_CAUSE_CONNECTION;
        break;
    default:
        return;
    }
    (void)sim_give(sim, event->node, &given);
    if (event->kind == SIM_DONE)
        end_worker(sim, event->node, event->local);
}

/* ---- the world turns ----------------------------------------------------------------------------------- */

static void do_event(struct sim *sim, struct sim_event *event)
{
    struct sim_node *n = &sim->nodes[event->node];
    struct keel_node_event given = {.local = event->local};
    switch (event->kind) {
    case SIM_MESSAGE:
        if (event->from == event->node && event->life != n->life)
            break; /* of its last life to itself */
        given.kind = KEEL_EVENT_MESSAGE;
        given.node = event->from;
        given.data = event->data;
        given.bytes = event->bytes;
        (void)sim_give(sim, event->node, &given);
        break;
    case SIM_TIMER:
        given.kind = KEEL_EVENT_TICK;
        if (n->life == event->life && n->timer_generation == event->value)
            (void)sim_give(sim, event->node, &given);
        break;
    case SIM_EXIT:
        given.kind = KEEL_EVENT_WORKER_EXIT;
        if (n->running && n->workers[event->local].life == event->life)
            (void)sim_give(sim, event->node, &given);
        break;
    case SIM_NODE_EXIT:
        sim_see_exit(sim, event);
        break;
    case SIM_ARRIVE:
        sim_arrive(sim, event);
        break;
    case SIM_GROUP:
        run_group(sim, event->epoch);
        break;
    case SIM_READY:
    case SIM_BEAT:
    case SIM_COMMIT:
    case SIM_SHARD:
    case SIM_DONE:
    case SIM_ACCUSE:
        do_worker(sim, event);
        break;
    }
}

static bool step_world(struct sim *sim, uint64_t until_ns)
{
    if (sim->queue_count == 0 || sim->queue[0].at_ns > until_ns) {
        sim->now_ns = sim->now_ns < until_ns ? until_ns : sim->now_ns;
        return false;
    }
    struct sim_event event = pop(sim);
    sim->now_ns = event.at_ns > sim->now_ns ? event.at_ns : sim->now_ns;
    sim->events_done++;
    if (sim->nodes[event.node].stopped && waits_for_agent(&event)) {
        if (event.kind == SIM_MESSAGE && !sim_socket_holds(sim, event.node, event.bytes)) {
            keel_free(event.data);
            return true;
        }
        grow(&sim->deferred, sim->deferred_count, &sim->deferred_capacity, sizeof *sim->deferred);
        sim->deferred[sim->deferred_count++] = event;
        return true;
    }
    do_event(sim, &event);
    keel_free(event.data);
    return true;
}

bool sim_run(struct sim *sim, uint64_t until_ns)
{
    while (sim->violation[0] == '\0' && !sim->over && step_world(sim, until_ns))
        continue;
    return sim->over;
}

bool sim_run_until(struct sim *sim, uint64_t until_ns,
                   bool (*condition)(const struct sim *sim, uint64_t value), uint64_t value)
{
    while (sim->violation[0] == '\0' && !condition(sim, value))
        if (!step_world(sim, until_ns))
            return condition(sim, value);
    return condition(sim, value);
}

/* ---- making and breaking ------------------------------------------------------------------------------- */

struct sim *sim_create(const struct sim_config *config)
{
    KEEL_ASSERT(config->nodes <= SIM_NODES && config->workers_per_node <= SIM_LOCALS);
    KEEL_ASSERT(mallopt(M_MMAP_THRESHOLD, 256 << 10) == 1); /* most of what is large is never written */
    struct sim *sim = NULL;
    enum keel_status status = keel_alloc(1, sizeof *sim, &sim);
    KEEL_ASSERT(status == KEEL_OK);
    sim->config = *config;
    sim->random_state = config->seed;
    sim->loss_ppm = config->loss_ppm;
    sim->duplicate_ppm = config->duplicate_ppm;
    sim->bad_digest_node = -1;
    sim->delivered_next = 1;
    for (uint32_t n = config->fewest; n <= config->ranks; n++)
        sim->plans[n] = n < 64 && (config->holes >> n & 1) != 0 ? 0 : 7000 + n;
    sim->now_ns = 1000 * SIM_MS;
    status = keel_alloc(config->nodes, sizeof *sim->nodes, &sim->nodes);
    KEEL_ASSERT(status == KEEL_OK);
    for (uint16_t i = 0; i < config->nodes; i++) {
        const struct keel_node_config its = {.node = i, .launcher = i == 0, .holder_count = config->holders};
        status = keel_alloc(1, keel_node_bytes(&its), &sim->nodes[i].state);
        KEEL_ASSERT(status == KEEL_OK);
    }
    return sim;
}

void sim_destroy(struct sim *sim)
{
    sim_forget_events(sim);
    for (uint16_t i = 0; i < sim->config.nodes; i++) {
        keel_free(sim->nodes[i].state);
        keel_free(sim->nodes[i].place);
        keel_free(sim->nodes[i].meter.waits);
    }
    for (uint32_t epoch = 0; epoch < SIM_EPOCHS_MAX; epoch++)
        keel_free(sim->views[epoch]);
    keel_free(sim->nodes);
    keel_free(sim->queue);
    keel_free(sim->events);
    keel_free(sim->free_events);
    keel_free(sim->deferred);
    keel_free(sim);
}

void sim_start_node(struct sim *sim, uint16_t node, uint32_t incarnation)
{
    const struct sim_config *c = &sim->config;
    struct sim_node *n = &sim->nodes[node];
    KEEL_ASSERT(!n->running);
    const bool others = sim_agents_live(sim); /* they know of a stop, and what was delivered */
    const bool takes_over = node == 0 && others && c->holders < KEEL_HOLDERS_TO_MOVE;
    sim->first_step = node == 0 && !takes_over ? sim->delivered_next : sim->first_step;
    sim->take_overs += takes_over ? 1 : 0;
    const struct keel_node_config config = {.node = node,
                                            .node_count = c->nodes,
                                            .holder_count = c->holders,
                                            .worker_count = node == 0 ? 0 : c->workers_per_node,
                                            .rank_count = c->ranks,
                                            .spare_count = c->spares,
                                            .shard_count = c->shards,
                                            .plans = sim->plans,
                                            .timeout_ns = c->timeout_ns,
                                            .incarnation = takes_over ? n->life + 1 : incarnation,
                                            .first_step = sim->first_step,
                                            .last_step = c->last_step + 1,
                                            .leader = node == 0 ? 0 : n->let_in_by,
                                            .respawn = c->respawn,
                                            .keeps_end = c->last_step % c->snapshot_every == 0,
                                            .launcher = node == 0,
                                            .run = sim->run,
                                            .again = n->lives_here++ > 0,
                                            .takes_over = takes_over,
                                            .past_epoch = sim->past_epoch,
                                            .kept_step = takes_over ? sim->snapshot_step : 0};
    n->running = true;
    n->stopped = n->finished = false;
    n->incarnation = incarnation;
    n->life++;
    n->started_ns = sim->now_ns;
    n->deferred_bytes = 0;
    if (node == 0)
        sim->over = false;
    sim->user_stopped &= node != 0 || others;
    memset(n->held, 0, sizeof n->held);
    enum keel_status status = keel_node_init(n->state, &config);
    KEEL_ASSERT(status == KEEL_OK);
    uint8_t disk[KEEL_REGISTER_STORE_BYTES];
    memcpy(disk, n->disk, n->disk_bytes);
    (void)sim_give(sim, node,
                   &(struct keel_node_event){.kind = KEEL_EVENT_START, .data = disk, .bytes = n->disk_bytes});
}

void sim_kill_node(struct sim *sim, uint16_t node)
{
    struct sim_node *n = &sim->nodes[node];
    if (!n->running)
        return;
    n->running = n->stopped = false;
    for (uint8_t local = 0; local < SIM_LOCALS; local++) {
        n->workers[local].running = false;
        n->workers[local].life++;
    }
    if (node != 0)
        sim_end_connection(sim, node);
}

/* The next start is another run to the mailboxes: what is on the way does not reach it. */
void sim_kill_all(struct sim *sim)
{
    for (uint16_t i = 0; i < sim->config.nodes; i++)
        sim_kill_node(sim, i);
    sim_forget_lives(sim);
    sim_forget_events(sim);
}

void sim_kill_worker(struct sim *sim, uint16_t node, uint8_t local)
{
    end_worker(sim, node, local);
}

void sim_stop_node(struct sim *sim, uint16_t node)
{
    sim->nodes[node].stopped = sim->nodes[node].running;
    sim->nodes[node].stopped_ns = sim->now_ns;
}

/* Who dialed in meanwhile is let in when the datagrams were heard that waited (launcher.c, agent.c). */
static void push_deferred(struct sim *sim, uint16_t node, bool arrivals)
{
    uint32_t kept = 0, count = sim->deferred_count;
    for (uint32_t i = 0; i < count; i++) {
        struct sim_event event = sim->deferred[i];
        if (event.node != node || (event.kind == SIM_ARRIVE) != arrivals) {
            sim->deferred[kept++] = event;
            continue;
        }
        event.at_ns = sim->now_ns;
        push(sim, event);
    }
    sim->deferred_count = kept;
}

void sim_wake_node(struct sim *sim, uint16_t node)
{
    sim->nodes[node].stopped = false;
    sim->nodes[node].woke_ns = sim->now_ns;
    sim->nodes[node].deferred_bytes = 0;
    push_deferred(sim, node, false);
    push_deferred(sim, node, true);
}

void sim_fail_worker(struct sim *sim, uint16_t node, uint8_t local, enum keel_status status)
{
    static const char begin[] = "the board is gone";
    char detail[KEEL_DETAIL_BYTES]; /* as long as words may be */
    memset(detail, '.', sizeof detail);
    memcpy(detail, begin, sizeof begin - 1);
    memcpy(detail + sizeof detail - sizeof SIM_FAILURE_END, SIM_FAILURE_END, sizeof SIM_FAILURE_END);
    (void)sim_give(sim, node,
                   &(struct keel_node_event){.kind = KEEL_EVENT_WORKER_FAILED,
                                             .local = local,
                                             .value = status,
                                             .data = (const uint8_t *)detail,
                                             .bytes = sizeof detail - 1});
    end_worker(sim, node, local);
}

void sim_save(struct sim *sim, uint16_t node, uint8_t local, uint16_t rank, uint64_t step)
{
    const struct sim_worker *w = &sim->nodes[node].workers[local];
    struct sim_event event = {.kind = SIM_SHARD, .node = node, .from = rank, .local = local, .life = w->life};
    event.value = step;
    event.epoch = w->sent_epoch;
    do_worker(sim, &event);
}
