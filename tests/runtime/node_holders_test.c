/* node_holders_test.c - holders of the view that are lost are replaced with the next view, in the world of
 * node_sim.h: hosts that are lost one after another, and nodes that come back. */
#include "node_cases.h"

/* `nodes` with the launcher, two on a host, one rank on each but the launcher. */
static struct sim_config on_hosts(uint64_t seed, uint16_t nodes, uint16_t holders)
{
    struct sim_config config = sim_default(seed);
    config.nodes = nodes;
    config.ranks = (uint16_t)(nodes - 1);
    config.holders = holders;
    config.domain = 2;
    config.last_step = 400;
    config.respawn = false;
    return config;
}

static bool holds(const struct sim *sim, uint16_t node)
{
    return keel_view_holders_has(&sim->view.holders, node);
}

/* Hosts that have a holder. */
static uint32_t hosts_of(const struct sim *sim)
{
    uint64_t hosts = 0;
    for (uint8_t i = 0; i < sim->view.holders.count; i++)
        hosts |= UINT64_C(1) << sim->view.holders.at[i].node / 2;
    return (uint32_t)__builtin_popcountll(hosts);
}

static void lose_host(struct sim *sim, uint16_t host)
{
    sim_kill_node(sim, (uint16_t)(2 * host));
    if (2 * host + 1 < sim->config.nodes)
        sim_kill_node(sim, (uint16_t)(2 * host + 1));
}

START_TEST(holders_are_on_different_hosts_from_the_first_view_on)
{
    for (uint16_t holders = 3; holders <= 5; holders += 2) {
        struct sim *sim = begin(on_hosts(1, 10, holders));
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 5));
        ck_assert_uint_eq(sim->view.epoch, 1);
        ck_assert_uint_eq(sim->view.holders.count, holders);
        ck_assert_uint_eq(hosts_of(sim), holders);
        ck_assert(holds(sim, 0)); /* it leads */
        check_end(sim);
        ck_assert_uint_eq(sim->view_changes, 1);
        sim_destroy(sim);
    }
}
END_TEST

static bool has_no_holder(const struct sim *sim, uint64_t node)
{
    return !holds(sim, (uint16_t)node);
}

static bool without_host(const struct sim *sim, uint64_t host)
{
    for (uint16_t node = (uint16_t)(2 * host); node < 2 * host + 2; node++)
        if (holds(sim, node))
            return false;
    return true;
}

/* Of five hosts three are lost for good, whoever leads from there, one after the other: more than the first
 * holders could bear. */
START_TEST(hosts_are_lost_one_after_another_and_the_run_goes_on)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct sim *sim = begin(on_hosts(100 + seed, 10, 3));
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
        uint32_t lost = 0;
        for (uint16_t loss = 0; loss < 3; loss++) {
            uint16_t host = sim->leader / 2;
            if (seed % 2 == 0) /* or a holder that does not lead */
                for (uint8_t i = 0; i < sim->view.holders.count; i++)
                    host = sim->view.holders.at[i].node / 2 != sim->leader / 2
                               ? sim->view.holders.at[i].node / 2
                               : host;
            lost += host == 0 ? 1 : 2;
            lose_host(sim, host);
            ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, without_host, host));
            (void)sim_run(sim, sim->now_ns + sim->config.timeout_ns / 2);
        }
        ck_assert_uint_eq(sim->view.holders.count, 3);
        check_end(sim);
        ck_assert_uint_eq(active(sim), 9 - lost);
        ck_assert_uint_eq(sim->worker_starts, 9);
        ck_assert_uint_eq(sim->kills, 0);
        ck_assert_uint_eq(sim->gaps, 0);
        sim_destroy(sim);
    }
}
END_TEST

/* Until one node is left beside the launcher: of fewer than three, one holds the view, and the others may be
 * lost. */
START_TEST(holders_are_lost_one_by_one_until_one_is_left)
{
    struct sim_config config = on_hosts(3, 6, 3);
    config.domain = 0;
    config.last_step = 1000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    for (uint16_t left = 5; left > 1; left--) {
        uint16_t which = 0;
        for (uint16_t node = 1; node < 6; node++)
            which = sim->nodes[node].running && node != sim->leader ? node : which;
        for (uint8_t i = 0; i < sim->view.holders.count; i++)
            which = sim->view.holders.at[i].node != sim->leader && sim->view.holders.at[i].node != 0
                        ? sim->view.holders.at[i].node
                        : which;
        sim_kill_node(sim, which);
        (void)sim_run(sim, sim->now_ns + 8 * config.timeout_ns);
        ck_fine(sim);
        ck_assert_uint_eq(active(sim), left - 1);
        ck_assert_uint_eq(sim->view.holders.count, left - 1 >= 2 ? 3 : 1);
    }
    check_end(sim);
    ck_assert_uint_eq(sim->worker_starts, 5);
    ck_assert_uint_eq(sim->moves, 0);
    sim_destroy(sim);
}
END_TEST

/* The launcher's host is cut off for long, and back: it holds the view again with the next one, and leads
 * again when who led is gone. */
START_TEST(a_launcher_that_was_cut_off_holds_the_view_again_and_may_lead)
{
    struct sim_config config = on_hosts(4, 5, 3);
    config.domain = 0;
    config.last_step = 900;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    for (uint16_t node = 1; node < config.nodes; node++)
        sim_partition(sim, 0, node, true);
    (void)sim_run(sim, sim->now_ns + 6 * config.timeout_ns);
    ck_assert_uint_ne(sim->leader, 0);
    ck_assert(!holds(sim, 0));
    memset(sim->blocked, 0, sizeof sim->blocked);
    (void)sim_run(sim, sim->now_ns + config.timeout_ns);
    ck_assert_int_eq(sim->nodes[0].state->term.role, KEEL_FOLLOWS);
    const uint16_t leader = sim->leader;
    uint16_t other = 0;
    for (uint16_t node = 1; node < config.nodes; node++)
        other = node != leader && holds(sim, node) ? node : other;
    sim_kill_node(sim, other); /* its place is the launcher's, or the fourth node's, which held none */
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, has_no_holder, other));
    (void)sim_run(sim, sim->now_ns + config.timeout_ns);
    sim_kill_node(sim, leader);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, has_no_holder, leader));
    ck_assert(holds(sim, 0));
    check_end(sim);
    ck_assert_uint_eq(active(sim), 2);
    ck_assert_uint_eq(sim->gaps, 0);
    sim_destroy(sim);
}
END_TEST

/* It forgot what it promised: the next view names it by its new disk, and it votes again. */
START_TEST(a_holder_that_lost_its_disk_is_another_holder_and_votes_again)
{
    struct sim_config config = on_hosts(5, 4, 3);
    config.respawn = true;
    config.domain = 0;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    for (uint16_t node = 1; node <= 2; node++) { /* both, one after the other */
        sim_kill_node(sim, node);
        sim->nodes[node].disk_bytes = 0;
        (void)sim_run(sim, sim->now_ns + 4 * config.timeout_ns);
        ck_fine(sim);
        ck_assert_uint_eq(active(sim), 3);
    }
    uint32_t anew = 0;
    for (uint8_t i = 0; i < sim->view.holders.count; i++)
        anew += sim->view.holders.at[i].disk != 0 ? 1 : 0;
    ck_assert_uint_ge(anew, 1);
    sim_kill_node(sim, 0);
    check_end(sim);
    ck_assert_uint_gt(sim->moves, 0);
    ck_assert_uint_eq(sim->gaps, 0);
    sim_destroy(sim);
}
END_TEST

/* No rank is lost with it, so no view changes for its sake but this one. */
START_TEST(a_launcher_that_followed_and_is_lost_is_replaced_as_a_holder)
{
    struct sim_config config = on_hosts(6, 5, 3);
    config.domain = 0;
    config.last_step = 600;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_stop_node(sim, 1); /* which is not missed yet, and who leads next stays away from it */
    (void)sim_run(sim, sim->now_ns + config.timeout_ns / 4);
    sim_wake_node(sim, 1);
    sim_stop_node(sim, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    (void)sim_run(sim, sim->now_ns + 6 * config.timeout_ns);
    ck_assert(!holds(sim, 0));
    ck_assert_uint_eq(sim->view.holders.count, 3);
    sim_wake_node(sim, 0);
    check_end(sim);
    ck_assert_uint_eq(sim->worker_starts, 4);
    ck_assert_uint_eq(sim->gaps, 0);
    sim_destroy(sim);
}
END_TEST

/* The disk of a node that led long in an earlier run: whatever it accepted there, under however high a
 * ballot, is of that run. The launcher's disk, of the first view alone, knows nothing of that ballot, so the
 * views of the next run have lower ones, and a read phase finds both. */
static void raise_ballots(struct sim *sim, uint16_t node)
{
    static struct keel_register disk;
    struct sim_node *n = &sim->nodes[node];
    ck_assert_int_eq(keel_register_load(&disk, n->disk, n->disk_bytes), KEEL_OK);
    ck_assert_uint_gt(disk.value.bytes, 0);
    disk.promised.counter += 1000;
    disk.accepted.counter += 1000;
    n->disk_bytes = keel_register_store(&disk, n->disk);
}

START_TEST(what_a_node_accepted_in_an_earlier_run_is_not_read_in_the_next)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim_config config = on_hosts(seed, 5, 3);
        config.domain = 0;
        config.delay_max_ns = 20 * SIM_MS; /* either of two answers first */
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
        sim_kill_all(sim);
        raise_ballots(sim, 2);
        const uint32_t before = sim->view_changes;
        sim_start_all(sim);
        ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, before + 1));
        ck_assert(holds(sim, 1) && holds(sim, 2));
        sim_kill_node(sim, 1); /* the launcher and node 2 are the majority that is left */
        check_end(sim);
        ck_assert_uint_eq(sim->gaps, 0);
        sim_destroy(sim);
    }
}
END_TEST

static bool stores_again(const struct sim *sim, uint64_t node)
{
    return sim->nodes[node].running && sim->nodes[node].state->reg.run == sim->run &&
           !sim->nodes[node].state->unstored;
}

/* In the next run the node's disk is full as it begins, so that the old file stays, and it crashes then: its
 * next life is of this run, and the file is not. */
START_TEST(a_disk_that_was_full_at_a_nodes_first_start_leaves_nothing_of_the_run_before)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct sim_config config = on_hosts(seed, 5, 3);
        config.domain = 0;
        config.respawn = true;
        config.delay_max_ns = 20 * SIM_MS;
        struct sim *sim = begin(config);
        static struct keel_register disk;
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
        sim_kill_all(sim);
        raise_ballots(sim, 2);
        sim->nodes[2].disk_full = true;
        sim_start_all(sim);
        ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, delivered, 40));
        sim_kill_node(sim, 2);
        sim->nodes[2].disk_full = false;
        ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, stores_again, 2));
        ck_ok(keel_register_load(&disk, sim->nodes[2].disk, sim->nodes[2].disk_bytes));
        ck_assert_uint_eq(disk.run, sim->run);
        ck_assert_uint_lt(disk.promised.counter, 1000);
        ck_assert_uint_ne(disk.disk, 0); /* another holder than that of the first view */
        check_end(sim);
        ck_assert_uint_eq(sim->gaps, 0);
        sim_destroy(sim);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, holders_are_on_different_hosts_from_the_first_view_on);
    tcase_add_test(tc, hosts_are_lost_one_after_another_and_the_run_goes_on);
    tcase_add_test(tc, holders_are_lost_one_by_one_until_one_is_left);
    tcase_add_test(tc, a_launcher_that_was_cut_off_holds_the_view_again_and_may_lead);
    tcase_add_test(tc, a_holder_that_lost_its_disk_is_another_holder_and_votes_again);
    tcase_add_test(tc, a_launcher_that_followed_and_is_lost_is_replaced_as_a_holder);
    tcase_add_test(tc, what_a_node_accepted_in_an_earlier_run_is_not_read_in_the_next);
    tcase_add_test(tc, a_disk_that_was_full_at_a_nodes_first_start_leaves_nothing_of_the_run_before);
}

KEEL_TEST_MAIN("node_holders", cases, 60)
