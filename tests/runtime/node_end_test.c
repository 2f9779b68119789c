/* node_end_test.c - the control plane at the end of a run: who was lost there, and who comes too late, in the
 * world of node_sim.h. */
#include "node_cases.h"

static bool snapshot_taken(const struct sim *sim, uint64_t step)
{
    return sim->snapshot_step >= step;
}

START_TEST(who_joins_at_the_end_does_not_begin_it_again_alone)
{
    uint32_t joined = 0, kept = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct sim_config config = sim_default(500 + seed);
        config.ranks = (uint16_t)(1 + seed % 4); /* with as many nodes, and at times a spare */
        config.spares = seed % 3 == 0 ? 1 : 0;
        config.nodes = (uint16_t)(1 + config.ranks + config.spares);
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 88 + seed % 12));
        if (config.ranks > 1)
            sim_kill_worker(sim, (uint16_t)(1 + sim_random(sim, config.ranks)), 0);
        check_end(sim);
        ck_assert_msg(sim->ends_again == 0, "seed %" PRIu64 ": the end is begun again", seed);
        if (sim->newest_epoch > sim->end_epoch && sim->snapshot_last_epoch == sim->end_epoch)
            kept += sim->snapshot_step == 100 ? 1 : 0;
        joined += sim->view_changes > 2 ? 1 : 0;
        sim_destroy(sim);
    }
    ck_assert_uint_gt(joined, 10);
    ck_assert_uint_gt(kept, 0); /* ends whose view had changed when they were */
}
END_TEST

START_TEST(an_end_that_was_lost_with_all_ranks_is_made_again)
{
    struct sim *sim = begin(sim_default(36));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 100));
    ck_assert_uint_eq(sim->snapshot_step, 90);
    for (uint16_t node = 1; node < 5; node++)
        sim_kill_worker(sim, node, 0);
    check_end(sim);
    ck_assert_uint_eq(sim->ends_again, 1);
    ck_assert_uint_eq(sim->snapshot_step, 100);
    ck_assert_uint_eq(active(sim), 4); /* by all of them */
    sim_destroy(sim);
}
END_TEST

START_TEST(a_run_whose_end_is_kept_is_over_whoever_is_lost)
{
    struct sim *sim = begin(sim_default(37));
    ck_assert(sim_run_until(sim, 60 * SECONDS, snapshot_taken, 100));
    for (uint16_t node = 1; node < 5; node++)
        sim_kill_worker(sim, node, 0);
    check_end(sim);
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert_uint_eq(sim->worker_starts, 4);
    sim_destroy(sim);
}
END_TEST

/* A view that changes between the shards of a snapshot and its commit, because a worker comes late, leaves
 * what was written in the view before; retention, which comes with the next commit, is not counted on. */
START_TEST(an_undisturbed_run_leaves_exactly_the_committed_generations)
{
    uint32_t joined = 0, dropped = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct sim_config config = sim_default(900 + seed);
        config.ready_ns = (1 + seed % 8) * SECONDS / 2; /* some come when the others are on their way */
        config.step_ns = SECONDS / (10 + 10 * (seed % 4));
        config.snapshot_every = seed % 2 == 0 ? 2 : 5;
        config.duplicate_ppm = seed % 3 == 0 ? 50000 : 0;
        struct sim *sim = begin(config);
        check_end(sim);
        ck_assert_msg(sim_uncommitted(sim) == 0, "seed %" PRIu64 ": %u attempts are left, %u views", seed,
                      sim_uncommitted(sim), sim->view_changes);
        joined += sim->view_changes > 1 ? 1 : 0;
        dropped += sim->dropped;
        sim_destroy(sim);
    }
    ck_assert_uint_gt(joined, 10);
    ck_assert_uint_gt(dropped, 0);
}
END_TEST

/* Who is lost, or evicted, redoes steps that were saved: what survivors wrote goes too. */
START_TEST(a_rank_that_is_lost_leaves_no_attempt_of_the_others)
{
    uint32_t dropped = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct sim_config config = sim_default(2000 + seed);
        config.snapshot_every = 2;
        struct sim *sim = begin(config);
        for (uint64_t lost = 1; lost < 4; lost++) {
            ck_assert(sim_run_until(sim, 120 * SECONDS, delivered, lost * 20 + seed % 10));
            sim_kill_worker(sim, (uint16_t)(1 + sim_random(sim, 4)), 0);
        }
        check_end(sim);
        ck_assert_msg(sim_uncommitted(sim) == 0, "seed %" PRIu64 ": %u attempts are left", seed,
                      sim_uncommitted(sim));
        dropped += sim->dropped;
        sim_destroy(sim);
    }
    ck_assert_uint_gt(dropped, 0);
}
END_TEST

/* Ranks of a view that is over had saved the last step, of which the records were lost with them: those of
 * the next view make it again, and what they save is another attempt at the same snapshot. Of two that are
 * whole when the records come one is committed. */
START_TEST(of_two_attempts_at_the_last_snapshot_one_is_committed)
{
    struct sim_config config = sim_default(38);
    config.respawn = false;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 5));
    for (uint16_t rank = 0; rank < 4; rank++)
        sim_save(sim, sim->view.members[rank].node, 0, rank, config.last_step);
    (void)sim_run(sim, sim->now_ns + 10 * SIM_MS);
    sim_kill_worker(sim, 4, 0);
    ck_assert(sim_run_until(sim, 60 * SECONDS, views, 2));
    (void)sim_run(sim, sim->now_ns + 10 * SIM_MS);
    ck_assert_uint_eq(active(sim), 3);
    for (uint16_t rank = 0; rank < 3; rank++)
        sim_save(sim, sim->view.members[rank].node, 0, rank, config.last_step);
    check_end(sim);
    ck_assert_uint_eq(sim->snapshot_step, config.last_step);
    ck_assert_uint_eq(sim_uncommitted(sim), 0);
    sim_destroy(sim);
}
END_TEST

/* At many moments around the end: shards of its snapshot were told to the one before, and to nobody else. */
START_TEST(a_launcher_that_takes_over_at_the_end_commits_its_snapshot)
{
    for (uint64_t moment = 0; moment < 40; moment++) {
        struct sim *sim = begin(sim_default(17 + moment));
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 100));
        (void)sim_run(sim, sim->now_ns + moment * SIM_MS / 4);
        if (!sim->over) {
            sim_kill_node(sim, 0);
            (void)sim_run(sim, sim->now_ns + 20 * SIM_MS);
            sim_start_node(sim, 0, 0);
        }
        check_end(sim);
        ck_assert_uint_eq(sim->snapshot_step, 100);
        ck_assert_uint_eq(sim->worker_starts, 4);
        sim_destroy(sim);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_launcher_that_takes_over_at_the_end_commits_its_snapshot);
    tcase_add_test(tc, an_undisturbed_run_leaves_exactly_the_committed_generations);
    tcase_add_test(tc, a_rank_that_is_lost_leaves_no_attempt_of_the_others);
    tcase_add_test(tc, who_joins_at_the_end_does_not_begin_it_again_alone);
    tcase_add_test(tc, an_end_that_was_lost_with_all_ranks_is_made_again);
    tcase_add_test(tc, a_run_whose_end_is_kept_is_over_whoever_is_lost);
    tcase_add_test(tc, of_two_attempts_at_the_last_snapshot_one_is_committed);
}

KEEL_TEST_MAIN("node_end", cases, 60)
