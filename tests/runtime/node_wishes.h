/* node_wishes.h - in a fifth of the random worlds (node_worlds.h) people have nodes leave and come back, as
 * keel job does: who leads is asked, and asked again when another does, until it answers. What was answered
 * is not forgotten, as long as somebody who knew it then lives.
 *
 * Drawn from a seed of its own: the other worlds are what they are without it. */
#ifndef KEEL_TESTS_NODE_WISHES_H
#define KEEL_TESTS_NODE_WISHES_H

#include "node_cases.h"

#include <stdio.h>

enum { WISHES_NODES = 8 };

struct world_wishes {
    bool on;
    uint64_t dice, run;
    bool wanted[WISHES_NODES];   /* the newest wish: to be away */
    bool pending[WISHES_NODES];  /* nobody has answered it yet */
    bool answered[WISHES_NODES]; /* it is not to be forgotten */
    uint64_t version;            /* of the set with all that was answered */
    uint64_t looked_ns;
    uint64_t knowing; /* nodes that had it then, a bit each, */
    uint32_t lives[WISHES_NODES];
    uint64_t answers; /* that were checked later, of all worlds */
};

static uint64_t wishes_draw(struct world_wishes *w, uint64_t below)
{
    w->dice = w->dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (w->dice >> 33) % below;
}

static void wishes_begin(struct world_wishes *w, uint64_t seed)
{
    *w = (struct world_wishes){.dice = seed * UINT64_C(0x9e3779b97f4a7c15)};
    (void)wishes_draw(w, 2);
    w->on = seed % 5 == 1;
}

/* Who leads, and is at work; NULL: nobody. */
static struct keel_node *wishes_leader(const struct sim *sim)
{
    const struct sim_node *its = &sim->nodes[sim->leader];
    return !sim->over && its->running && !its->stopped && its->state->term.role == KEEL_LEADS &&
                   its->state->leader != NULL
               ? its->state
               : NULL;
}

static void wishes_give(struct world_wishes *w, struct sim *sim, uint16_t node)
{
    (void)sim_give(
        sim, sim->leader,
        &(struct keel_node_event){.kind = KEEL_EVENT_DRAIN, .node = node, .value = w->wanted[node]});
}

/* Whoever leads next hears of one of them. */
static bool wishes_suffice(const struct sim *sim, uint64_t nodes)
{
    const struct keel_view_holders *holders = &sim->view.holders;
    uint32_t count = 0;
    for (uint8_t i = 0; i < holders->count; i++)
        count += nodes >> holders->at[i].node & 1 ? 1 : 0;
    return sim->config.holders < 3 ? nodes != 0 : count * 2 > holders->count;
}

/* Those who have known it all the time, and were at work. */
static uint64_t wishes_surviving(const struct world_wishes *w, const struct sim *sim)
{
    uint64_t nodes = w->knowing;
    for (uint16_t i = 0; i < sim->config.nodes; i++) {
        const struct sim_node *its = &sim->nodes[i];
        if (!its->running || its->stopped || its->life != w->lives[i] || its->stopped_ns >= w->looked_ns ||
            its->woke_ns >= w->looked_ns)
            nodes &= ~(UINT64_C(1) << i);
    }
    return nodes;
}

static void wishes_look(struct world_wishes *w, struct sim *sim)
{
    const uint64_t surviving = wishes_surviving(w, sim);
    if (w->run != sim->run) /* one that is begun anew has all nodes */
        memset(w->wanted, 0, 3 * sizeof w->wanted);
    if (!wishes_suffice(sim, surviving))
        memset(w->answered, 0, sizeof w->answered);
    w->run = sim->run;
    struct keel_node *leader = wishes_leader(sim);
    for (uint16_t node = 1; node < sim->config.nodes && leader != NULL; node++) {
        struct keel_node_away away;
        if (!w->pending[node])
            continue;
        keel_node_away(leader, sim->now_ns, node, &away);
        if (away.settled && away.asked != w->wanted[node])
            wishes_give(w, sim, node);
        else if (away.told && (away.left || !w->wanted[node])) {
            w->pending[node] = false;
            w->answered[node] = true;
            w->version = leader->away.version;
        }
        leader = wishes_leader(sim);
    }
    w->knowing = 0;
    w->looked_ns = sim->now_ns;
    for (uint16_t i = 0; i < sim->config.nodes; i++) {
        const struct sim_node *its = &sim->nodes[i];
        w->lives[i] = its->life;
        if (its->running && !its->stopped && its->state->away.version >= w->version)
            w->knowing |= UINT64_C(1) << i;
    }
}

/* Between two faults: somebody wants a node to leave, or to come back. */
static void wishes_turn(struct world_wishes *w, struct sim *sim)
{
    if (!w->on || sim->violation[0] != '\0')
        return;
    KEEL_ASSERT(sim->config.nodes <= WISHES_NODES);
    wishes_look(w, sim);
    if (wishes_draw(w, 2) == 0 || wishes_leader(sim) == NULL)
        return;
    const uint16_t node = (uint16_t)(1 + wishes_draw(w, sim->config.nodes - 1U));
    w->wanted[node] = wishes_draw(w, 3) != 0;
    w->pending[node] = true;
    w->answered[node] = false;
    wishes_give(w, sim, node);
}

/* Nothing was wrong for a while. */
static void wishes_check(struct world_wishes *w, struct sim *sim)
{
    if (!w->on || sim->violation[0] != '\0')
        return;
    wishes_look(w, sim);
    struct keel_node *leader = wishes_leader(sim);
    for (uint16_t node = 1; node < sim->config.nodes && leader != NULL; node++) {
        struct keel_node_away away;
        if (!w->answered[node])
            continue;
        keel_node_away(leader, sim->now_ns, node, &away);
        if (!away.settled)
            continue;
        w->answers++;
        if (away.asked != w->wanted[node])
            (void)snprintf(sim->violation, sizeof sim->violation,
                           "node %u leads, and forgot that node %u is to %s", sim->leader, node,
                           w->wanted[node] ? "be away" : "be back");
    }
}

#endif
