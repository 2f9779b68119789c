/* node_sim_holders.h - what must hold of those who hold the register, by the disks of a world (node_sim.h).
 */
#ifndef KEEL_TESTS_NODE_SIM_HOLDERS_H
#define KEEL_TESTS_NODE_SIM_HOLDERS_H

#include "node_sim.h"

/* Of a view that is committed: of the sets that it names, so many have it on their disks, or a later one. */
static inline bool majority_has(const struct sim *sim, const struct keel_register *reg,
                                const struct keel_view_holders *set, struct keel_ballot ballot)
{
    static struct keel_register disk;
    uint32_t have = 0;
    set = keel_register_holders(reg, set);
    for (uint8_t i = 0; i < set->count; i++) {
        if (set->at[i].node >= sim->config.nodes) /* of a world that garbles: there is none */
            continue;
        const struct sim_node *n = &sim->nodes[set->at[i].node];
        have += n->disk_bytes > 0 && keel_register_load(&disk, n->disk, n->disk_bytes) == KEEL_OK &&
                        disk.disk == set->at[i].disk && keel_ballot_compare(disk.accepted, ballot) >= 0
                    ? 1
                    : 0;
    }
    return have * 2 > set->count;
}

/* NULL, or what is wrong. Where the leader moves: its holders follow from those of the view before
 * (register.h), and a majority of both sets has it. */
static inline const char *wrong_holders(const struct sim *sim, uint16_t leader, const struct keel_view *view)
{
    const struct keel_register *reg = &sim->nodes[leader].state->reg;
    const struct keel_view *last = sim->views[(view->epoch - 1) % SIM_EPOCHS_MAX];
    const bool follows = last == NULL || view->epoch == sim->past_epoch + 1 ||
                         keel_view_holders_same(&view->before, &last->holders) ||
                         (keel_view_holders_same(&view->before, &last->before) &&
                          keel_view_holders_same(&view->holders, &last->holders));
    if (!follows || view->holders.count == 0)
        return "do not follow from those before";
    if (!majority_has(sim, reg, &view->before, reg->ballot) ||
        !majority_has(sim, reg, &view->holders, reg->ballot))
        return "have it on too few disks";
    return NULL;
}

/* A holder may lose its disk: all who hold the newest view have it on theirs, and all nodes know it, so that
 * a majority is left with it, whoever asks. */
static inline bool sim_may_wipe(const struct sim *sim)
{
    static struct keel_register disk;
    for (uint16_t i = 0; i < sim->config.nodes; i++)
        if (sim->nodes[i].running && sim->nodes[i].state->view.epoch != sim->view.epoch)
            return false;
    for (uint8_t i = 0; i < sim->view.holders.count; i++) {
        const struct keel_view_holder *holder = &sim->view.holders.at[i];
        const struct sim_node *n = &sim->nodes[holder->node];
        if (!n->running || n->disk_bytes == 0 ||
            keel_register_load(&disk, n->disk, n->disk_bytes) != KEEL_OK || disk.disk != holder->disk ||
            keel_ballot_compare(disk.accepted, sim->view_ballot) < 0)
            return false;
    }
    return sim->view.holders.count >= 3;
}

#endif
