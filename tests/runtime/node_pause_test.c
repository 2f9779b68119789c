/* node_pause_test.c - the control plane when processes are stopped for a while and come back (SIGSTOP, a
 * suspended machine, a network that is away), in the world of node_sim.h. */
#include "node_cases.h"

START_TEST(a_stopped_worker_is_evicted_as_stuck_and_killed)
{
    struct sim *sim = begin(sim_default(9)); /* its agent notices before the others accuse it */
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_stop_worker(sim, 2, 0);
    uint64_t stopped_ns = sim->now_ns;
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    ck_assert_uint_lt(sim->now_ns - stopped_ns, 600 * SIM_MS);
    ck_assert_int_eq(sim->last_cause, KEEL_CAUSE_STUCK);
    ck_assert_uint_eq(sim->kills, 1);
    check_end(sim);
    ck_assert_uint_eq(active(sim), 4);
    sim_destroy(sim);
}
END_TEST

START_TEST(a_stopped_agent_is_evicted_and_on_waking_replaces_its_workers)
{
    struct sim_config config = sim_default(8);
    config.last_step = 300;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_stop_node(sim, 2);
    sim_stop_worker(sim, 2, 0); /* so that nothing but silence tells */
    uint64_t stopped_ns = sim->now_ns;
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    ck_assert_uint_lt(sim->now_ns - stopped_ns, 600 * SIM_MS);
    ck_assert_int_eq(keel_view_find_worker(&sim->view, 2, 0, 0), -1);
    (void)sim_run(sim, sim->now_ns + 500 * SIM_MS);
    ck_assert_uint_eq(sim->kills, 0);
    sim_wake_worker(sim, 2, 0);
    sim_wake_node(sim, 2);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 3));
    ck_assert_uint_eq(sim->kills, 1);
    ck_assert_int_ge(keel_view_find_worker(&sim->view, 2, 0, 1), 0);
    check_end(sim);
    sim_destroy(sim);
}
END_TEST

START_TEST(an_agent_stopped_for_less_than_the_timeout_is_kept)
{
    struct sim *sim = begin(sim_default(9));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_stop_node(sim, 2);
    (void)sim_run(sim, sim->now_ns + 350 * SIM_MS);
    sim_wake_node(sim, 2);
    check_end(sim);
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert_uint_eq(sim->kills, 0);
    sim_destroy(sim);
}
END_TEST

START_TEST(a_launcher_that_was_stopped_evicts_nobody_for_its_own_deafness)
{
    struct sim *sim = begin(sim_default(10));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    sim_stop_node(sim, 0);
    (void)sim_run(sim, sim->now_ns + 1500 * SIM_MS);
    sim_wake_node(sim, 0);
    check_end(sim);
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert_uint_eq(sim->delivered_count, 100);
    ck_assert_uint_eq(sim->kills, 0);
    sim_destroy(sim);
}
END_TEST

START_TEST(an_agent_that_is_alone_and_silent_for_long_goes_on_where_it_was)
{
    struct sim_config config = sim_default(35);
    config.nodes = 2;
    config.ranks = 1;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    sim_stop_node(sim, 1);
    (void)sim_run(sim, sim->now_ns + 7 * config.timeout_ns);
    ck_assert(!sim->nodes[0].finished);
    sim_wake_node(sim, 1);
    check_end(sim);
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert_uint_eq(sim->kills, 0);
    ck_assert_uint_eq(sim->delivered_count, 100);
    sim_destroy(sim);
}
END_TEST

static uint64_t paused_ns(uint64_t timeout_ns, uint32_t which)
{
    static const uint32_t percents[] = {50, 150, 400, 1200, 4000};
    return timeout_ns * percents[which] / 100;
}

/* Every subset of launcher and agents, each for five lengths, together (first half) or one after the other.
 */
START_TEST(whichever_processes_pause_together_the_run_goes_on_when_they_come_back)
{
    for (uint32_t mask = 1; mask < 16; mask++)
        for (uint32_t which = 0; which < 10; which++) {
            struct sim_config config = sim_default(100 * mask + which);
            config.nodes = 4;
            config.ranks = 3;
            config.step_ns = 50 * SIM_MS;
            config.last_step = 900; /* longer than the longest pause */
            struct sim *sim = begin(config);
            ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
            for (uint16_t node = 0; node < 4; node++)
                if (mask >> node & 1)
                    sim_stop_node(sim, node);
            (void)sim_run(sim, sim->now_ns + paused_ns(config.timeout_ns, which % 5));
            uint32_t views = sim->view_changes;
            ck_assert_msg(!sim->nodes[0].finished, "processes %x paused, %u: %s", mask, which,
                          sim->nodes[0].finish_detail);
            for (uint16_t node = 0; node < 4; node++)
                if (mask >> node & 1) {
                    sim_wake_node(sim, node);
                    (void)sim_run(sim, sim->now_ns + (which < 5 ? 1 : config.timeout_ns / 8));
                }
            check_end(sim);
            bool all = (mask & 0xe) == 0xe;
            if (all) /* nobody was there for whose sake somebody had to go */
                ck_assert_msg(sim->view_changes == views && sim->kills == 0,
                              "processes %x paused, %u: %u views more, %u kills", mask, which,
                              sim->view_changes - views, sim->kills);
            sim_destroy(sim);
        }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_stopped_worker_is_evicted_as_stuck_and_killed);
    tcase_add_test(tc, a_stopped_agent_is_evicted_and_on_waking_replaces_its_workers);
    tcase_add_test(tc, an_agent_stopped_for_less_than_the_timeout_is_kept);
    tcase_add_test(tc, a_launcher_that_was_stopped_evicts_nobody_for_its_own_deafness);
    tcase_add_test(tc, an_agent_that_is_alone_and_silent_for_long_goes_on_where_it_was);
    tcase_add_test(tc, whichever_processes_pause_together_the_run_goes_on_when_they_come_back);
}

KEEL_TEST_MAIN("node_pause", cases, 60)
