/* node_cases.h - what the tests of the control plane in the world of node_sim.h share. */
#ifndef KEEL_TESTS_NODE_CASES_H
#define KEEL_TESTS_NODE_CASES_H

#include "harness.h"
#include "node_sim_gate.h"
#include "node_sim_holders.h"

#include <inttypes.h>

#define SECONDS UINT64_C(1000000000)

/* Conditions of sim_run_until. */
static inline bool delivered(const struct sim *sim, uint64_t steps)
{
    return sim->delivered_next > steps;
}

static inline bool views(const struct sim *sim, uint64_t count)
{
    return sim->view_changes >= count;
}

static inline uint16_t active(const struct sim *sim)
{
    return keel_view_active_count(&sim->view);
}

static inline struct sim *begin(struct sim_config config)
{
    struct sim *sim = sim_create(&config);
    sim_start_all(sim);
    return sim;
}

#define ck_fine(sim) ck_assert_msg((sim)->violation[0] == '\0', "%s", (sim)->violation)

/* The run ends well: every step delivered once, in order. */
static inline void check_end(struct sim *sim)
{
    bool ended = sim_run(sim, sim->now_ns + 300 * SECONDS);
    ck_fine(sim);
    ck_assert_uint_eq(sim->spins, 0);
    ck_assert_msg(ended, "not ended: %" PRIu64 " steps delivered, epoch %" PRIu64, sim->delivered_next,
                  sim->newest_epoch);
    ck_assert_msg(sim->end_status == KEEL_OK, "%s", sim->end_detail);
    ck_assert_uint_eq(sim->delivered_next, sim->config.last_step + 1);
}

#endif
