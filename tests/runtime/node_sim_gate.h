/* node_sim_gate.h - agents that dial in to a simulated run (node_sim.c): who leads wants one for a node, and
 * lets it in if it still leads by then; the connection is to who let it in, who sees its end by that. */
#ifndef KEEL_TESTS_NODE_SIM_GATE_H
#define KEEL_TESTS_NODE_SIM_GATE_H

#include "node_sim.h"
#include "node_sim_queue.h"

#include <inttypes.h>

static inline bool sim_moves(const struct sim *sim)
{
    return sim->config.holders >= KEEL_HOLDERS_TO_MOVE;
}

/* The leader wants one: it takes its time, but where the launcher starts it. */
static inline void sim_await_agent(struct sim *sim, uint16_t leader, uint16_t node, uint32_t incarnation)
{
    sim->node_starts++;
    if (sim_moves(sim)) {
        push(sim, (struct sim_event){.at_ns = sim->now_ns + sim_random(sim, sim->config.timeout_ns / 2),
                                     .kind = SIM_ARRIVE,
                                     .node = leader,
                                     .from = node,
                                     .life = sim->nodes[leader].life,
                                     .value = incarnation});
    } else if (sim->nodes[node].running) {
        violate(sim, "node %u is started twice", node);
    } else { /* a launcher that was started again may not know of the last agent that ran there */
        const uint32_t least = sim->nodes[node].incarnation + 1;
        sim_start_node(sim, node, incarnation < least ? least : incarnation);
    }
}

/* It is there. Who was there before, silent, and on a host that is gone, ends with that. */
static inline void sim_arrive(struct sim *sim, const struct sim_event *event)
{
    const struct sim_node *leader = &sim->nodes[event->node];
    struct sim_node *n = &sim->nodes[event->from];
    if (!leader->running || leader->life != event->life || leader->finished ||
        leader->state->term.role != KEEL_LEADS || !keel_children_want(leader->state, event->from) ||
        leader->state->children.nodes[event->from].incarnation != event->value)
        return; /* it dials who leads now */
    if (n->running && n->incarnation >= event->value)
        violate(sim, "node %u of incarnation %u lives, and %" PRIu64 " is let in", event->from,
                n->incarnation, event->value);
    sim_kill_node(sim, event->from);
    n->let_in_by = event->node;
    n->let_in_life = event->life;
    sim->arrivals += event->node != 0 ? 1 : 0;
    sim_start_node(sim, event->from, (uint32_t)event->value);
}

/* The process of a node is gone: who let it in sees it, if that lives yet. */
static inline void sim_end_connection(struct sim *sim, uint16_t node)
{
    const struct sim_node *n = &sim->nodes[node];
    push(sim, (struct sim_event){.at_ns = later(sim, 2 * SIM_MS),
                                 .kind = SIM_NODE_EXIT,
                                 .node = n->let_in_by,
                                 .from = node,
                                 .life = n->life,
                                 .value = n->incarnation,
                                 .epoch = n->let_in_life});
}

static inline void sim_see_exit(struct sim *sim, const struct sim_event *event)
{
    const bool present = sim->nodes[event->from].life == event->life;
    /* A first life has 1 in a run, and is told from those behind it; here it has 0, which says of none. */
    const bool told = present || event->value != 0;
    const bool there = sim_moves(sim) ? told && sim->nodes[event->node].life == event->epoch : present;
    if (there)
        (void)sim_give(sim, event->node,
                       &(struct keel_node_event){.kind = KEEL_EVENT_NODE_EXIT,
                                                 .node = event->from,
                                                 .value = sim_moves(sim) ? event->value : 0});
}

/* Launcher and agents that do not run; those whom who leads lets in wait for that. */
static inline void sim_start_all(struct sim *sim)
{
    const bool let_in = sim_moves(sim) && sim->config.respawn && sim_agents_live(sim);
    for (uint16_t i = 0; i < sim->config.nodes; i++)
        if (!sim->nodes[i].running && (i == 0 || !let_in)) {
            sim->nodes[i].let_in_by = 0;
            sim->nodes[i].let_in_life = sim->nodes[0].life;
            sim_start_node(sim, i,
                           sim->nodes[i].lives_here == 0 || i == 0 ? 0 : sim->nodes[i].incarnation + 1);
        }
}

/* Somebody dials in, and takes the place of a node that who leads did not hear for two timeouts: false, if
 * there is none, or nobody is started again. */
static inline bool sim_dial(struct sim *sim, uint16_t node)
{
    const struct sim_node *leader = &sim->nodes[sim->leader];
    if (!sim_moves(sim) || !sim->config.respawn || !leader->running || leader->stopped || leader->finished ||
        node == sim->leader || node == 0 || leader->state->term.role != KEEL_LEADS)
        return false;
    const struct keel_seen_node *seen = &leader->state->leader->membership.nodes[node];
    if (seen->exited || keel_children_want(leader->state, node) ||
        keel_bitset_has(&leader->state->away.set, node) || /* nobody gets its place */
        sim->now_ns - seen->heard_ns < 2 * sim->config.timeout_ns)
        return false;
    (void)sim_give(sim, sim->leader, &(struct keel_node_event){.kind = KEEL_EVENT_NODE_EXIT, .node = node});
    return true;
}

#endif
