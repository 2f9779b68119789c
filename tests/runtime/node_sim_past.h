/* node_sim_past.h - what who leads must know of the steps before, in a world of node_sim.h that asks for it
 * (tells_past): the last step that was delivered, and that none lacks before it. And of steps that are given
 * up. */
#ifndef KEEL_TESTS_NODE_SIM_PAST_H
#define KEEL_TESTS_NODE_SIM_PAST_H

#include "node_sim_queue.h"
#include <inttypes.h>
#include <string.h>

static inline void sim_past_step(struct sim *sim, uint16_t node, uint64_t step)
{
    struct sim_node *n = &sim->nodes[node];
    if (step <= n->past_step) /* it has that */
        return;
    sim->past_lacks += step - n->past_step - 1;
    n->past_step = step;
}

/* From who led before. */
static inline void sim_past_learn(struct sim_node *n, const uint8_t *data, uint32_t bytes)
{
    uint64_t step = 0;
    if (bytes == sizeof step)
        memcpy(&step, data, sizeof step);
    n->past_step = step > n->past_step ? step : n->past_step;
}

/* True: it has more to tell than the node was told last. */
static inline bool sim_past_news(const struct sim *sim, struct sim_node *n)
{
    const bool news = sim->config.tells_past && n->running && !n->finished &&
                      n->state->term.role == KEEL_LEADS && n->past_step > n->past_told;
    n->past_told = news ? n->past_step : n->past_told;
    return news;
}

/* Steps before `until` are given up: nobody who lives may hold their records. */
static inline void sim_past_over(struct sim *sim, uint16_t leader, uint64_t until)
{
    for (uint64_t step = sim->delivered_next; step < until && step < SIM_STEPS_MAX; step++) {
        sim->gaps++;
        for (uint16_t i = 1; i < sim->config.nodes; i++)
            if (sim->nodes[i].running && !sim_counts_as_ended(sim, &sim->nodes[i]) &&
                sim_talk(sim, i, leader) && sim_holds(&sim->nodes[i], step))
                violate(sim, "step %" PRIu64 " skipped, yet node %u holds it", step, i);
    }
}

#endif
