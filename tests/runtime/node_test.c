/* node_test.c - the control plane under faults, in the world of node_sim.h. */
#include "harness.h"
#include "node_sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SECONDS UINT64_C(1000000000)

static bool delivered(const struct sim *sim, uint64_t steps)
{
    return sim->delivered_next >= steps;
}

static bool views(const struct sim *sim, uint64_t count)
{
    return sim->view_changes >= count;
}

static uint16_t active(const struct sim *sim)
{
    return keel_view_active_count(&sim->view);
}

#define ck_fine(sim) ck_assert_msg((sim)->violation[0] == '\0', "%s", (sim)->violation)

/* The run ends well: every step delivered once, in order. */
static void check_end(struct sim *sim)
{
    bool ended = sim_run(sim, sim->now_ns + 300 * SECONDS);
    ck_fine(sim);
    ck_assert_msg(ended, "not ended: %" PRIu64 " steps delivered, epoch %" PRIu64, sim->delivered_next,
                  sim->newest_epoch);
    ck_assert_msg(sim->nodes[0].finish_status == KEEL_OK, "%s", sim->nodes[0].finish_detail);
    ck_assert_uint_eq(sim->delivered_next, sim->config.last_step);
}

static struct sim *begin(struct sim_config config)
{
    struct sim *sim = sim_create(&config);
    sim_start_all(sim);
    return sim;
}

START_TEST(a_run_without_faults_has_one_view_and_delivers_every_step_once)
{
    struct sim *sim = begin(sim_default(1));
    check_end(sim);
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert_uint_eq(sim->view.epoch, 1);
    ck_assert_uint_eq(sim->delivered_count, 100);
    ck_assert_uint_eq(sim->gaps, 0);
    ck_assert_uint_eq(sim->snapshot_count, 10);
    ck_assert_uint_eq(sim->kills, 0);
    sim_destroy(sim);
}
END_TEST

START_TEST(a_killed_worker_leaves_and_comes_back_to_its_place)
{
    struct sim *sim = begin(sim_default(2));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_worker(sim, 2, 0);
    uint64_t killed_ns = sim->now_ns;
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    ck_assert_uint_lt(sim->now_ns - killed_ns, 40 * SIM_MS);
    ck_assert_int_eq(sim->last_cause, KEEL_CAUSE_EXIT);
    ck_assert_uint_eq(active(sim), 3);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 3));
    ck_assert_int_eq(sim->last_cause, KEEL_CAUSE_JOIN);
    ck_assert_uint_eq(active(sim), 4);
    ck_assert_uint_eq(sim->view.members[1].rank, 1);
    ck_assert_uint_eq(sim->view.members[1].node, 2);
    ck_assert_uint_eq(sim->view.members[1].incarnation, 1);
    check_end(sim);
    ck_assert_uint_eq(sim->view_changes, 3);
    ck_assert_uint_eq(sim->gaps, 0);
    sim_destroy(sim);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_run_without_faults_has_one_view_and_delivers_every_step_once);
    tcase_add_test(tc, a_killed_worker_leaves_and_comes_back_to_its_place);
}

KEEL_TEST_MAIN("node", cases, 60)
