/* node_large_test.c - the control plane with hundreds of nodes, and as many shards as there may be, in the
 * world of node_sim.h; of thousands of nodes see node_costs_test.c. */
#include "node_cases.h"

#include <stdio.h>

enum { RACK = 64U, MEMBERS = 512U };

static struct sim_config largest(void)
{
    struct sim_config config = sim_default(1);
    config.nodes = MEMBERS + 1;
    config.spares = RACK / 8;
    config.ranks = (uint16_t)(MEMBERS - config.spares);
    config.shards = KEEL_SHARDS_MAX;
    config.timeout_ns = 2 * SECONDS;
    config.last_step = 8;
    config.snapshot_every = 4;
    return config;
}

START_TEST(as_many_nodes_and_ranks_as_there_may_be_train_and_commit)
{
    struct sim *sim = begin(largest());
    check_end(sim);
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert_uint_eq(sim->view.member_count, MEMBERS);
    ck_assert_uint_eq(active(sim), sim->config.ranks);
    ck_assert_uint_eq(sim->delivered_count, 8);
    ck_assert_uint_eq(sim->snapshot_count, 2);
    sim_destroy(sim);
}
END_TEST

static uint64_t most_sent(const struct sim *sim)
{
    uint64_t most = 0;
    for (uint16_t node = 0; node < sim->config.nodes; node++)
        most = sim->view_bytes_by[node] > most ? sim->view_bytes_by[node] : most;
    return most;
}

static bool all_have(const struct sim *sim, uint64_t epoch)
{
    for (uint16_t node = 1; node < sim->config.nodes; node++)
        if (sim->nodes[node].running && sim->nodes[node].state->view.epoch < epoch)
            return false;
    return true;
}

/* A view is committed: until all who live have it, since view_bytes_by was cleared. */
static void check_hand_on(struct sim *sim, uint64_t epoch, uint64_t limit_ns)
{
    const uint64_t begin_ns = sim->now_ns;
    ck_assert(sim_run_until(sim, sim->now_ns + limit_ns, all_have, epoch));
    ck_assert_msg(most_sent(sim) <= 1 << 20, "%" PRIu64 " bytes from one node", most_sent(sim));
    ck_assert_uint_le(sim->largest, KEEL_MESSAGE_BYTES);
    ck_assert_uint_le(KEEL_MESSAGE_BYTES, 16384);
    printf("epoch %" PRIu64 ": all %u nodes have it after %.1f ms, one sends %" PRIu64 " bytes at most\n",
           epoch, sim->config.nodes, (double)(sim->now_ns - begin_ns) / 1e6, most_sent(sim));
}

/* The whole view, of which nobody has anything: in parts, from node to node, where it is longer than one. */
START_TEST(the_first_view_comes_to_all_and_nobody_sends_more_than_a_mebibyte)
{
    struct sim_config config = largest();
    config.nodes = 2 * MEMBERS + 1;
    config.ranks = (uint16_t)(2 * MEMBERS - config.spares);
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, views, 1));
    check_hand_on(sim, 1, largest().timeout_ns / 10);
    ck_assert_uint_gt(sim->sent[KEEL_WIRE_PART], 0);
    sim_destroy(sim);
}
END_TEST

START_TEST(a_rack_of_64_nodes_leaves_in_one_change_spares_take_places_and_it_comes_back)
{
    struct sim_config config = largest();
    config.last_step = 300;
    config.snapshot_every = 100;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 3));
    for (uint16_t node = 101; node <= 100 + RACK; node++)
        sim_kill_node(sim, node);
    memset(sim->view_bytes_by, 0, sizeof sim->view_bytes_by);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    check_hand_on(sim, 2, config.timeout_ns / 10);
    ck_assert_uint_eq(active(sim), (uint32_t)(config.ranks + config.spares - RACK));
    ck_assert_int_eq(sim->last_cause, KEEL_CAUSE_EXIT);
    check_end(sim);
    ck_assert_uint_eq(active(sim), config.ranks);
    ck_assert_uint_eq(sim->gaps, 0);
    ck_assert_uint_eq(sim->mismatches, 0);
    sim_destroy(sim);
}
END_TEST

static bool moved(const struct sim *sim, uint64_t times)
{
    return sim->moves >= times;
}

/* The next holder leads: all report to it within a beat, and get what is other in the next view. */
START_TEST(the_leader_dies_and_nobody_else_is_lost)
{
    struct sim_config config = largest();
    config.holders = KEEL_HOLDERS_MAX;
    config.last_step = 300;
    config.snapshot_every = 100;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 3));
    sim_kill_node(sim, 0);
    memset(sim->view_bytes_by, 0, sizeof sim->view_bytes_by);
    memset(sim->sent_by, 0, sizeof sim->sent_by);
    const uint64_t killed_ns = sim->now_ns;
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1));
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    printf("node %u leads after %.2f timeouts; ", sim->leader,
           (double)(sim->now_ns - killed_ns) / (double)config.timeout_ns);
    ck_assert_uint_le(sim->now_ns - killed_ns, config.timeout_ns * 13 / 10);
    check_hand_on(sim, 2, config.timeout_ns / 10);
    printf("it sent %" PRIu64 " bytes\n", sim->sent_by[sim->leader]);
    ck_assert_uint_le(sim->sent_by[sim->leader], 2 << 20);
    ck_assert_uint_eq(active(sim), config.ranks);
    check_end(sim);
    ck_assert_uint_eq(sim->worker_starts, MEMBERS);
    ck_assert_uint_eq(sim->kills, 0);
    ck_assert_uint_eq(sim->gaps, 0);
    sim_destroy(sim);
}
END_TEST

START_TEST(ranks_that_all_accuse_one_another_are_judged_in_bounded_time)
{
    struct sim_config config = largest();
    config.last_step = 300;
    config.snapshot_every = 100;
    config.respawn = false;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 3));
    for (uint16_t i = 0; i < RACK; i++) /* each of these pairs says that the other is gone */
        sim_accuse(sim, sim->view.members[i].node, 0, (uint16_t)(i ^ 1));
    check_end(sim);
    ck_assert_uint_ge(active(sim), (uint32_t)(config.ranks - RACK));
    ck_assert_uint_eq(sim->spins, 0);
    sim_destroy(sim);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, as_many_nodes_and_ranks_as_there_may_be_train_and_commit);
    tcase_add_test(tc, the_first_view_comes_to_all_and_nobody_sends_more_than_a_mebibyte);
    tcase_add_test(tc, a_rack_of_64_nodes_leaves_in_one_change_spares_take_places_and_it_comes_back);
    tcase_add_test(tc, the_leader_dies_and_nobody_else_is_lost);
    tcase_add_test(tc, ranks_that_all_accuse_one_another_are_judged_in_bounded_time);
}

KEEL_TEST_MAIN("node_large", cases, 300)
