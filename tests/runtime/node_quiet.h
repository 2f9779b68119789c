/* node_quiet.h - a simulated world without its healthy beats.
 *
 * While all nodes are well, know the present view and have nothing to say, beats only make what was heard as
 * new as it was: the world a while later is the same world with later times. So it is moved there at once:
 * what beats renew, and the beats that are on their way, are that much later, and all else comes when it was
 * to come. Where anything else goes on, everything runs. What it leaves out is the phase of beats against the
 * rest. */
#ifndef KEEL_TESTS_NODE_QUIET_H
#define KEEL_TESTS_NODE_QUIET_H

#include "node_sim_queue.h"

/* A timer, a worker's beat, or a message that says again what was said. */
static inline bool is_beat(const struct sim_event *event)
{
    enum { KIND_AT = 4 }; /* behind the magic number: node_wire.c */
    const enum keel_wire_kind kind =
        event->kind == SIM_MESSAGE ? (enum keel_wire_kind)event->data[KIND_AT] : KEEL_WIRE_KIND_COUNT;
    return event->kind == SIM_TIMER || event->kind == SIM_BEAT || kind == KEEL_WIRE_STATUS ||
           kind == KEEL_WIRE_LEADER || kind == KEEL_WIRE_BEAT;
}

/* The leader wants nothing of anybody, and nobody is missed. */
static inline bool leader_is_quiet(const struct keel_node *node)
{
    const struct keel_leader *leader = node->leader;
    const struct keel_verdict *verdict = &leader->verdict;
    uint16_t asked[KEEL_REGISTER_ASKED_MAX];
    bool holders_know =
        node->config.holder_count == 1 || (node->view.holders.count == node->config.holder_count &&
                                           keel_register_asked(&node->reg, asked) == node->reg.answer_count);
    for (uint8_t i = 0; i < node->view.holders.count; i++) /* or others hold it in a while */
        holders_know = holders_know && keel_holders_lives(node, &node->view.holders.at[i]);
    return !leader->awaiting_joins && !leader->changing && !leader->stopping && !leader->ending &&
           node->reg.phase == KEEL_REGISTER_IDLE && holders_know && !leader->membership.changed &&
           !leader->membership.stale && leader->membership.done_count == 0 && !verdict->active_gone &&
           verdict->join_count == 0 && verdict->done_count == 0 && verdict->overdue == 0 &&
           verdict->coming == 0 && verdict->unheard == 0 && leader->hole_ns == 0 &&
           node->children.count == 0 && node->away.count == 0;
}

/* An agent has nothing to say that the leader does not know. */
static inline bool node_is_quiet(const struct sim *sim, uint16_t number)
{
    const struct sim_node *n = &sim->nodes[number];
    const struct keel_node *node = n->state, *leader = sim->nodes[sim->leader].state;
    const struct keel_agent *agent = &node->agent;
    const struct keel_seen_node *seen = &leader->leader->membership.nodes[number];
    if (!n->running || n->stopped || n->finished || node->view.epoch != leader->view.epoch ||
        node->fetch.name.epoch != 0 || node->unstored)
        return false;
    if (number == sim->leader && node->config.launcher)
        return true;
    if (agent->report_due || agent->notes.count > 0 || agent->stopping || agent->ending || agent->leaving ||
        agent->next_step != leader->leader->next_step ||
        keel_records_first(&node->records, agent->next_step) != UINT64_MAX ||
        sim->now_ns - agent->leader_ns >= node->times.silence_ns / 2 || !seen->heard ||
        seen->silent_node != KEEL_RANK_NONE)
        return false;
    for (uint32_t i = 0; i < KEEL_WORKERS_PER_NODE * KEEL_SHARDS_PENDING; i++)
        if (agent->pending[i].used && !agent->pending[i].taken)
            return false;
    for (uint8_t local = 0; local < node->config.worker_count; local++) {
        const struct keel_local *w = &agent->locals[local];
        if (w->state != KEEL_WORKER_READY || w->killed || n->workers[local].stopped ||
            seen->workers[local].state != w->state || seen->workers[local].sent_epoch != w->sent_epoch ||
            w->sent_epoch != node->view.epoch || w->accused_epoch == node->view.epoch)
            return false;
    }
    return true;
}

static inline bool sim_is_quiet(const struct sim *sim)
{
    const struct keel_node *leader = sim->nodes[sim->leader].state;
    if (sim->deferred_count > 0 || sim->loss_ppm != 0 || sim->duplicate_ppm != 0 || sim->garble_ppm != 0 ||
        !sim->nodes[sim->leader].running || leader->term.role != KEEL_LEADS || !leader_is_quiet(leader))
        return false;
    for (uint16_t node = 0; node < sim->config.nodes; node++)
        if (!node_is_quiet(sim, node) || memchr(sim->blocked[node], true, sim->config.nodes) != NULL)
            return false;
    return true;
}

static inline void age(uint64_t *time_ns, uint64_t by_ns)
{
    if (*time_ns != 0 && *time_ns != UINT64_MAX)
        *time_ns += by_ns;
}

/* What beats renew. Lives, back-offs and what is on record have the times that they have. */
static inline void move_node(struct keel_node *node, uint64_t by_ns)
{
    age(&node->planned_ns, by_ns);
    age(&node->agent.beat_ns, by_ns);
    age(&node->agent.leader_ns, by_ns);
    age(&node->agent.behind_ns, by_ns);
    for (uint8_t local = 0; local < node->config.worker_count; local++)
        age(&node->agent.locals[local].beat_ns, by_ns);
    if (!keel_node_leads(node))
        return;
    struct keel_leader *leader = node->leader;
    age(&leader->start_ns, by_ns);
    age(&leader->holders_ns, by_ns);
    age(&leader->sought_ns, by_ns);
    age(&leader->verdict.wake_ns, by_ns);
    age(&leader->verdict.until_ns, by_ns);
    age(&leader->membership.looked_ns, by_ns);
    for (uint16_t i = 0; i < leader->membership.node_count; i++) {
        struct keel_seen_node *seen = &leader->membership.nodes[i];
        age(&seen->heard_ns, by_ns);
        for (uint8_t local = 0; local < seen->worker_count; local++)
            age(&seen->alive_ns[local], by_ns);
    }
}

/* To the next thing that is no beat, or `until_ns`. */
static inline void sim_skip(struct sim *sim, uint64_t until_ns)
{
    uint64_t next_ns = until_ns;
    for (uint32_t i = 0; i < sim->queue_count; i++)
        if (sim->queue[i].at_ns < next_ns && !is_beat(&sim->events[sim->queue[i].event]))
            next_ns = sim->queue[i].at_ns;
    if (next_ns <= sim->now_ns)
        return;
    const uint64_t by_ns = next_ns - sim->now_ns;
    const uint32_t count = sim->queue_count;
    sim->queue_count = 0;
    for (uint32_t i = 0; i < count; i++) { /* a heap of the first i is where it was, and grows by one */
        struct sim_turn turn = sim->queue[i];
        turn.at_ns += is_beat(&sim->events[turn.event]) ? by_ns : 0;
        sim_put(sim, turn);
    }
    for (uint16_t node = 0; node < sim->config.nodes; node++)
        move_node(sim->nodes[node].state, by_ns);
    sim->now_ns = next_ns;
    sim->skipped_ns += by_ns;
}

/* As sim_run, without beats that change nothing. A beat is in full behind whatever else happens. */
static inline bool sim_run_quiet(struct sim *sim, uint64_t until_ns)
{
    const uint64_t beat_ns = sim->config.timeout_ns / 10;
    while (sim->violation[0] == '\0' && !sim->over && sim->now_ns < until_ns) {
        const uint64_t next_ns = sim->now_ns + beat_ns + beat_ns / 5;
        (void)sim_run(sim, next_ns < until_ns ? next_ns : until_ns);
        if (sim->now_ns < until_ns && !sim->over && sim_is_quiet(sim))
            sim_skip(sim, until_ns);
    }
    return sim->over;
}

#endif
