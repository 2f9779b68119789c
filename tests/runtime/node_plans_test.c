/* node_plans_test.c - no view has fewer ranks than the smallest plan, nor a number of them that has none, in
 * the world of node_sim.h. */
#include "node_cases.h"

#include <stdio.h>
#include <string.h>

static bool short_of_ranks(const struct sim *sim, uint64_t times)
{
    return sim->shortages >= times;
}

/* Four ranks on four nodes, of which `fewest` must be there. */
static struct sim_config four(uint64_t seed, uint16_t fewest)
{
    struct sim_config config = sim_default(seed);
    config.fewest = fewest;
    return config;
}

START_TEST(too_few_for_any_plan_wait_for_others_and_keep_their_step)
{
    struct sim *sim = begin(four(1, 3));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 25));
    const uint64_t snapshot = sim->snapshot_step;
    ck_assert_uint_lt(snapshot, 25);
    sim_kill_worker(sim, 2, 0);
    sim_kill_worker(sim, 3, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, short_of_ranks, 1));
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert(sim->nodes[1].workers[0].has_state && sim->nodes[4].workers[0].has_state);
    const uint64_t step = sim->nodes[1].workers[0].next_step;
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    ck_assert_uint_ge(active(sim), 3);
    ck_assert_int_eq(sim->last_cause, KEEL_CAUSE_EXIT);
    ck_assert_uint_ge(sim->nodes[1].workers[0].next_step, step);
    check_end(sim);
    ck_assert_uint_eq(sim->kills, 0);
    ck_assert_uint_eq(sim->gaps, 0);
    ck_assert_uint_eq(sim->shortages, 1);
    sim_destroy(sim);
}
END_TEST

START_TEST(with_the_smallest_plan_the_run_goes_on_at_once)
{
    struct sim *sim = begin(four(2, 3));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    const uint64_t killed_ns = sim->now_ns;
    sim_kill_worker(sim, 4, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    ck_assert_uint_lt(sim->now_ns - killed_ns, 40 * SIM_MS);
    ck_assert_uint_eq(active(sim), 3);
    check_end(sim);
    ck_assert_uint_eq(sim->shortages, 0);
    sim_destroy(sim);
}
END_TEST

START_TEST(a_spare_takes_any_seat_without_a_wait)
{
    struct sim_config config = four(3, 4);
    config.nodes = 6;
    config.spares = 1;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_worker(sim, 1, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    ck_assert_uint_eq(active(sim), 4);
    ck_assert_uint_eq(sim->view.members[0].node, 5);
    check_end(sim);
    ck_assert_uint_eq(sim->shortages, 0);
    sim_destroy(sim);
}
END_TEST

START_TEST(ranks_beyond_a_number_that_has_a_plan_are_spares_under_their_numbers)
{
    struct sim_config config = four(4, 1);
    config.holes = 1U << 3;
    config.respawn = false;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_worker(sim, 2, 0); /* rank 1 */
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    ck_assert_uint_eq(active(sim), 2);
    ck_assert_uint_eq(sim->view.member_count, 3);
    ck_assert_uint_eq(sim->view.members[1].rank, 2);
    ck_assert(sim->view.members[2].rank == 3 && sim->view.members[2].spare);
    ck_assert_uint_eq(sim->view.plan, sim->plans[2]);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 40));
    sim_kill_worker(sim, 1, 0); /* rank 0 */
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 3));
    ck_assert_uint_eq(active(sim), 2);
    ck_assert(sim->view.members[0].rank == 0 && sim->view.members[0].node == 4);
    ck_assert(sim->view.members[1].rank == 2 && sim->view.members[1].node == 3);
    check_end(sim);
    ck_assert_uint_eq(sim->kills, 0);
    sim_destroy(sim);
}
END_TEST

START_TEST(who_comes_and_makes_no_larger_plan_changes_no_view)
{
    struct sim_config config = four(5, 1);
    config.holes = 1U << 3;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_worker(sim, 2, 0);
    sim_kill_worker(sim, 3, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    ck_assert_uint_eq(active(sim), 2);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 3));
    ck_assert_uint_eq(active(sim), 4);
    check_end(sim);
    ck_assert_uint_eq(sim->view_changes, 3);
    sim_destroy(sim);
}
END_TEST

/* It ended resumable, for want of ranks; and goes on when all are started again. */
static void check_short_end(struct sim *sim, const char *said)
{
    const struct sim_node *launcher = &sim->nodes[0];
    ck_fine(sim);
    ck_assert(launcher->finished);
    ck_assert_int_eq(launcher->finish_status, KEEL_INTERRUPTED);
    ck_assert_msg(strstr(launcher->finish_detail, said) != NULL, "%s", launcher->finish_detail);
    ck_assert_msg(strstr(launcher->finish_detail, "run the same command again") != NULL, "%s",
                  launcher->finish_detail);
    sim_kill_all(sim);
    sim_start_all(sim);
    check_end(sim);
    sim_destroy(sim);
}

START_TEST(when_nobody_can_come_the_run_ends_resumable_and_says_how_many_it_needs)
{
    struct sim_config config = four(6, 3);
    config.respawn = false;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_worker(sim, 2, 0);
    sim_kill_worker(sim, 3, 0);
    ck_assert(sim_run(sim, sim->now_ns + SECONDS));
    check_short_end(sim, "2 of the 3 ranks that the smallest plan needs are left");
}
END_TEST

START_TEST(the_end_says_why_the_others_were_lost)
{
    struct sim_config config = four(7, 4);
    config.respawn = false;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_fail_worker(sim, 2, 0, KEEL_DEVICE_LOST);
    ck_assert(sim_run(sim, sim->now_ns + 5 * SECONDS));
    check_short_end(sim, "3 of the 4 ranks that the smallest plan needs are left: the board is gone");
}
END_TEST

START_TEST(restarts_that_are_used_up_end_the_wait)
{
    struct sim *sim = begin(four(8, 4));
    for (uint32_t death = 0; death <= KEEL_RESTARTS_MAX; death++) {
        ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, death + 1));
        sim_kill_worker(sim, 2, 0);
    }
    ck_assert(sim_run(sim, sim->now_ns + 10 * SECONDS));
    ck_assert_uint_eq(sim->shortages, KEEL_RESTARTS_MAX);
    check_short_end(sim, "3 of the 4 ranks that the smallest plan needs are left");
}
END_TEST

/* An agent that is silent may come back, but not for ever. */
START_TEST(the_wait_is_bounded)
{
    struct sim_config config = four(9, 4);
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_stop_node(sim, 2);
    sim_stop_worker(sim, 2, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 5 * config.timeout_ns, short_of_ranks, 1));
    ck_assert(!sim_run(sim, sim->now_ns + 50 * config.timeout_ns));
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert(sim_run(sim, sim->now_ns + 15 * config.timeout_ns));
    sim_wake_worker(sim, 2, 0);
    sim_wake_node(sim, 2);
    check_short_end(sim, "3 of the 4 ranks that the smallest plan needs are left");
}
END_TEST

/* It is accused by another, wrongly, and nobody would come in its place: those who are left have no plan, so
 * it is not taken from them. */
START_TEST(a_rank_without_which_there_is_no_plan_is_not_given_up_for_an_accusation)
{
    struct sim_config config = four(12, 4);
    config.respawn = false;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_accuse(sim, 3, 0, 0);
    (void)sim_run(sim, sim->now_ns + 2 * config.timeout_ns);
    ck_fine(sim);
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, delivered, config.last_step));
    check_end(sim);
    sim_destroy(sim);
}
END_TEST

START_TEST(a_run_that_waits_for_ranks_can_be_stopped)
{
    struct sim_config config = four(10, 4);
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_stop_node(sim, 2);
    sim_stop_worker(sim, 2, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 5 * config.timeout_ns, short_of_ranks, 1));
    sim_user_stop(sim);
    ck_assert(sim_run(sim, sim->now_ns + 10 * config.timeout_ns));
    ck_fine(sim);
    ck_assert_int_eq(sim->nodes[0].finish_status, KEEL_INTERRUPTED);
    ck_assert_ptr_nonnull(strstr(sim->nodes[0].finish_detail, "stopped"));
    sim_destroy(sim);
}
END_TEST

START_TEST(a_run_that_begins_with_too_few_waits_too)
{
    struct sim_config config = four(11, 3);
    struct sim *sim = sim_create(&config);
    for (uint16_t node = 0; node < 3; node++)
        sim_start_node(sim, node, 0);
    ck_assert(!sim_run(sim, sim->now_ns + 20 * config.timeout_ns));
    ck_assert_uint_eq(sim->view_changes, 0);
    ck_assert_uint_eq(sim->shortages, 1);
    sim_start_node(sim, 3, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 20 * config.timeout_ns, views, 1));
    ck_assert_uint_eq(active(sim), 3);
    sim_start_node(sim, 4, 0);
    check_end(sim);
    ck_assert_uint_eq(active(sim), 4);
    sim_destroy(sim);
}
END_TEST

/* Who finished the last step writes its snapshot, with or without those who were lost behind it. Where nobody
 * comes for them, a rank that was about to do it waits in vain, and the next life makes the end again. */
START_TEST(a_loss_behind_the_last_step_does_not_hold_up_the_end)
{
    for (uint64_t seed = 20; seed < 60; seed++) {
        struct sim_config config = four(seed, 4);
        config.respawn = seed % 2 == 0;
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 100));
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 3 * config.step_ns));
        sim_kill_worker(sim, (uint16_t)(1 + seed % 4), 0);
        const bool ended = sim_run(sim, sim->now_ns + 70 * config.timeout_ns);
        ck_fine(sim);
        ck_assert_msg(ended, "seed %" PRIu64, seed);
        ck_assert_msg(sim->nodes[0].finish_status == KEEL_OK ||
                          (!config.respawn && sim->nodes[0].finish_status == KEEL_INTERRUPTED),
                      "seed %" PRIu64 ": %s", seed, sim->nodes[0].finish_detail);
        sim_destroy(sim);
    }
}
END_TEST

START_TEST(a_launcher_without_any_plan_is_refused)
{
    static struct keel_node *node;
    static const uint64_t none[3], two[] = {0, 0, 5};
    struct keel_node_config config = {.node_count = 2,
                                      .holder_count = 1,
                                      .rank_count = 2,
                                      .shard_count = 1,
                                      .timeout_ns = SECONDS,
                                      .launcher = true};
    node = calloc(1, keel_node_bytes(&(struct keel_node_config){.launcher = true}));
    ck_assert_ptr_nonnull(node);
    ck_status(keel_node_init(node, &config), KEEL_INVALID);
    config.plans = none;
    ck_status(keel_node_init(node, &config), KEEL_INVALID);
    config.plans = two;
    ck_ok(keel_node_init(node, &config));
    free(node);
}
END_TEST

/* ---- nodes that are to leave --------------------------------------------------------------------------- */

static void drain(struct sim *sim, uint16_t node, bool away)
{
    (void)sim_give(sim, 0, &(struct keel_node_event){.kind = KEEL_EVENT_DRAIN, .node = node, .value = away});
}

static bool have_left(const struct sim *sim, uint64_t count)
{
    return sim->drains[KEEL_DRAIN_LEFT] >= count;
}

START_TEST(a_spare_takes_the_rank_of_a_node_that_leaves_and_no_step_is_lost)
{
    struct sim_config config = four(20, 4);
    config.nodes = 6;
    config.spares = 1;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    drain(sim, 2, true);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, have_left, 1));
    ck_assert_int_eq(sim->last_cause, KEEL_CAUSE_DRAINED);
    ck_assert_uint_eq(active(sim), 4);
    ck_assert_uint_eq(sim->view.members[1].node, 5);
    check_end(sim);
    ck_assert_uint_eq(sim->view_changes, 2);
    ck_assert_uint_eq(sim->node_starts, 0);
    ck_assert_uint_eq(sim->gaps, 0);
    ck_assert_int_eq(sim->nodes[2].finish_status, KEEL_OK);
    ck_assert_str_eq(sim->nodes[2].finish_detail, KEEL_NODE_DRAINED);
    sim_destroy(sim);
}
END_TEST

/* Two at once go one after the other; a third is needed, until the first is back. Who takes over learns of
 * them from those who are left, before it starts anybody again. */
START_TEST(nodes_leave_as_far_as_there_are_plans_for_those_who_stay)
{
    struct sim_config config = four(21, 2);
    config.last_step = 400;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    for (uint16_t node = 1; node <= 3; node++)
        drain(sim, node, true);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, have_left, 2));
    (void)sim_run(sim, sim->now_ns + SECONDS);
    ck_assert_uint_eq(active(sim), 2);
    ck_assert_uint_eq(sim->view_changes, 3);
    ck_assert_uint_eq(sim->drains[KEEL_DRAIN_WAITS], 1);
    ck_assert(sim->nodes[3].running && !sim->nodes[1].running);
    sim_kill_node(sim, 0);
    (void)sim_run(sim, sim->now_ns + 20 * SIM_MS);
    sim_start_node(sim, 0, 0);
    struct keel_node_away away;
    keel_node_away(sim->nodes[0].state, sim->now_ns, 1, &away);
    ck_assert(!away.settled && !away.asked);
    for (uint16_t node = 1; node <= 2; node++) /* as it finds them */
        (void)sim_give(sim, 0, &(struct keel_node_event){.kind = KEEL_EVENT_NODE_EXIT, .node = node});
    drain(sim, 4, true); /* too early: who wants it asks again */
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, have_left, 4));
    ck_assert_uint_eq(sim->node_starts, 0);
    (void)sim_run(sim, sim->now_ns + SECONDS);
    keel_node_away(sim->nodes[0].state, sim->now_ns, 1, &away);
    ck_assert(away.settled && away.asked && away.told && away.left && !away.stays);
    keel_node_away(sim->nodes[0].state, sim->now_ns, 3, &away);
    ck_assert(away.asked && !away.left && away.stays && away.why == KEEL_DRAIN_WAITS && away.left_count == 1);
    keel_node_away(sim->nodes[0].state, sim->now_ns, 4, &away);
    ck_assert(away.settled && !away.asked);
    drain(sim, 1, false);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, have_left, 5));
    check_end(sim);
    ck_assert(sim->nodes[1].running || sim->nodes[1].finished);
    ck_assert_uint_eq(sim->gaps, 0);
    sim_destroy(sim);
}
END_TEST

static struct keel_node_away away_of(const struct sim *sim, uint16_t leader, uint16_t node)
{
    struct keel_node_away away;
    keel_node_away(sim->nodes[leader].state, sim->now_ns, node, &away);
    return away;
}

START_TEST(each_that_stays_is_told_why_and_once_more_when_it_is_asked)
{
    struct sim_config config = four(23, 3);
    config.last_step = 400;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    for (uint16_t node = 1; node <= 3; node++)
        drain(sim, node, true);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, have_left, 1));
    (void)sim_run(sim, sim->now_ns + SECONDS);
    ck_assert_uint_eq(sim->drains[KEEL_DRAIN_WAITS], 2);
    for (uint16_t node = 2; node <= 3; node++) {
        const struct keel_node_away away = away_of(sim, 0, node);
        ck_assert(away.stays && away.why == KEEL_DRAIN_WAITS && away.left_count == 2 && away.fewest == 3);
    }
    drain(sim, 3, true);
    (void)sim_run(sim, sim->now_ns + SECONDS);
    ck_assert_uint_eq(sim->drains[KEEL_DRAIN_WAITS], 3);
    ck_assert(away_of(sim, 0, 3).stays);
    check_end(sim);
    sim_destroy(sim);
}
END_TEST

static void cut_off(struct sim *sim, uint16_t node, bool yes)
{
    for (uint16_t other = 0; other < sim->config.nodes; other++)
        if (other != node)
            sim_partition(sim, node, other, yes);
}

/* What it answers nobody else knows, and who leads next would not. _i: one holder, or three. */
START_TEST(who_hears_nobody_answers_nobody)
{
    struct sim_config config = four(27, 2);
    config.holders = (uint16_t)(1 + 2 * _i);
    config.last_step = 1000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    drain(sim, 2, true);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, have_left, 1));
    (void)sim_run(sim, sim->now_ns + SECONDS);
    ck_assert(away_of(sim, 0, 2).told);
    cut_off(sim, 0, true);
    drain(sim, 2, false);
    for (uint32_t i = 0; i < 30; i++) { /* three timeouts */
        (void)sim_run(sim, sim->now_ns + config.timeout_ns / 10);
        ck_assert(!away_of(sim, 0, 2).told);
    }
    cut_off(sim, 0, false);
    (void)sim_run(sim, sim->now_ns + 3 * config.timeout_ns);
    ck_assert(sim->nodes[sim->leader].running && away_of(sim, sim->leader, 2).told);
    sim_destroy(sim);
}
END_TEST

/* Who takes over hears of all members but of the one that knows what was answered last: until that has ended
 * by itself, or is heard, it changes nothing that would outrank it. */
START_TEST(who_takes_over_changes_nothing_before_it_knows_what_was_answered)
{
    struct sim_config config = four(28, 2);
    config.last_step = 1000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    drain(sim, 2, true);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, have_left, 1));
    (void)sim_run(sim, sim->now_ns + SECONDS);
    ck_assert(away_of(sim, 0, 2).told);
    sim_kill_node(sim, 0);
    for (uint16_t node = 3; node <= 4; node++) /* as if they had not been heard when it was asked */
        sim->nodes[node].state->away = (struct keel_away){.version = 0};
    cut_off(sim, 1, true);
    sim_start_node(sim, 0, 0);
    (void)sim_give(sim, 0, &(struct keel_node_event){.kind = KEEL_EVENT_NODE_EXIT, .node = 2});
    (void)sim_run(sim, sim->now_ns + 2 * config.timeout_ns);
    ck_assert(!away_of(sim, 0, 4).settled);
    drain(sim, 4, true);
    ck_assert(!away_of(sim, 0, 4).asked);
    cut_off(sim, 1, false);
    (void)sim_run(sim, sim->now_ns + 4 * config.timeout_ns);
    ck_assert(away_of(sim, 0, 4).settled && !away_of(sim, 0, 4).asked);
    ck_assert(away_of(sim, 0, 2).asked && away_of(sim, 0, 2).told);
    sim_destroy(sim);
}
END_TEST

/* Who leads dies the moment that a node has left, or is to: whoever leads next does not start it again, and
 * where nobody heard of the wish, it is as if it had not been asked for. */
START_TEST(whoever_leads_next_knows_who_is_to_be_away)
{
    uint32_t kept = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct sim_config config = four(5000 + seed, 3);
        config.nodes = 6;
        config.spares = 1;
        config.holders = 3;
        config.last_step = 1000;
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
        drain(sim, 2, true);
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 60 * SIM_MS));
        const bool had_left = sim->drains[KEEL_DRAIN_LEFT] > 0;
        sim_kill_node(sim, 0);
        (void)sim_run(sim, sim->now_ns + 6 * config.timeout_ns);
        ck_assert(!sim->over);
        struct keel_node_away away;
        keel_node_away(sim->nodes[sim->leader].state, sim->now_ns, 2, &away);
        ck_assert_msg(away.settled && away.told, "seed %" PRIu64 ": not all know it", seed);
        ck_assert_msg(away.asked || !had_left, "seed %" PRIu64 ": it left, and that is forgotten", seed);
        ck_assert_msg(!away.asked || (away.left && !sim->nodes[2].running), "seed %" PRIu64 ": it is there",
                      seed);
        kept += away.asked ? 1 : 0;
        ck_assert(sim->gaps == 0 && sim->mismatches == 0);
        sim_destroy(sim);
    }
    ck_assert_uint_gt(kept, 30);
}
END_TEST

/* The version of the set that a leader of this ballot makes, who has that set. */
static uint64_t version_by(struct sim *sim, uint16_t leader, uint64_t counter, uint64_t has, uint16_t away)
{
    struct keel_node *node = sim->nodes[leader].state;
    const struct keel_ballot before = node->term.ballot;
    node->term.ballot = (struct keel_ballot){.counter = counter, .node = UINT64_C(1) << 16 | leader};
    node->away.version = has;
    (void)sim_give(sim, leader,
                   &(struct keel_node_event){.kind = KEEL_EVENT_DRAIN, .node = away, .value = 1});
    node->term.ballot = before;
    return node->away.version;
}

/* Two ballots may have one counter, and who leads by the lower may not have heard of the other yet. */
START_TEST(two_leaders_never_make_one_version_of_two_sets)
{
    struct sim *sim[2];
    for (uint16_t i = 0; i < 2; i++) {
        struct sim_config config = four(24, 2);
        config.nodes = 6;
        config.spares = 1;
        config.holders = 3;
        config.last_step = 1000;
        sim[i] = begin(config);
        ck_assert(sim_run_until(sim[i], 60 * SECONDS, delivered, 10));
        for (uint16_t node = 0; node <= i; node++) { /* node 1 leads in one world, 2 in the other */
            sim_kill_node(sim[i], node);
            (void)sim_run(sim[i], sim[i]->now_ns + 6 * config.timeout_ns);
        }
        ck_assert_uint_eq(sim[i]->leader, i + 1);
    }
    for (uint64_t had = 0; had < 3; had++) /* before a set of their terms, and behind one */
        ck_assert_uint_ne(version_by(sim[0], 1, 7, had << 36, (uint16_t)(3 + had)),
                          version_by(sim[1], 2, 7, had << 36, (uint16_t)(3 + had)));
    sim_destroy(sim[0]);
    sim_destroy(sim[1]);
}
END_TEST

/* Sent by who has the key, which a node would not make. */
START_TEST(behind_the_highest_version_nobody_is_told_another)
{
    struct keel_wire_message message = {.kind = KEEL_WIRE_AWAY, .as.away.version = KEEL_EPOCH_MAX};
    uint8_t bytes[KEEL_MESSAGE_BYTES];
    struct sim *sim = begin(four(25, 2));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    const uint32_t count = keel_wire_encode(&message, bytes);
    (void)sim_give(
        sim, 0,
        &(struct keel_node_event){.kind = KEEL_EVENT_MESSAGE, .node = 3, .data = bytes, .bytes = count});
    drain(sim, 2, true);
    check_end(sim);
    ck_assert_uint_eq(sim->drains[KEEL_DRAIN_LEFT], 0);
    sim_destroy(sim);
}
END_TEST

static bool another_leads(const struct sim *sim, uint64_t than)
{
    return sim->leader != than;
}

/* Its process ends as that of any that leaves, and another's is its node's when it is to come back. */
START_TEST(who_leads_may_leave_too_and_another_leads_then)
{
    struct sim_config config = four(26, 2);
    config.holders = 3;
    config.last_step = 1000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    sim_kill_node(sim, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, another_leads, 0));
    (void)sim_run(sim, sim->now_ns + 6 * config.timeout_ns);
    ck_assert_uint_eq(sim->leader, 1);
    struct keel_node_event leave = {.kind = KEEL_EVENT_DRAIN, .node = 1, .value = 1};
    (void)sim_give(sim, 1, &leave);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, another_leads, 1));
    ck_assert(sim->nodes[1].finished && !sim->over);
    ck_assert_int_eq(sim->nodes[1].finish_status, KEEL_OK);
    ck_assert_str_eq(sim->nodes[1].finish_detail, KEEL_NODE_DRAINED);
    (void)sim_run(sim, sim->now_ns + 6 * config.timeout_ns);
    struct keel_node_away away;
    keel_node_away(sim->nodes[sim->leader].state, sim->now_ns, 1, &away);
    ck_assert(away.settled && away.asked && away.told && away.left && !sim->nodes[1].running);
    leave.value = 0;
    (void)sim_give(sim, sim->leader, &leave);
    (void)sim_run(sim, sim->now_ns + 20 * config.timeout_ns);
    ck_assert(sim->nodes[1].running && sim->leader != 1);
    ck_assert_uint_eq(active(sim), 4);
    ck_assert_uint_eq(sim->gaps, 0);
    check_end(sim);
    sim_destroy(sim);
}
END_TEST

/* Of the agent that left nobody hears any more: what it may have held is not waited for. */
START_TEST(a_run_whose_leader_left_ends_at_once_when_it_is_stopped)
{
    struct sim_config config = four(27, 2);
    config.holders = 3;
    config.last_step = 1000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    sim_kill_node(sim, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, another_leads, 0));
    (void)sim_run(sim, sim->now_ns + 6 * config.timeout_ns);
    const uint16_t first = (uint16_t)sim->leader;
    struct keel_node_event leave = {.kind = KEEL_EVENT_DRAIN, .node = first, .value = 1},
                           stop = {.kind = KEEL_EVENT_STOP};
    (void)sim_give(sim, first, &leave);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, another_leads, first));
    (void)sim_run(sim, sim->now_ns + 6 * config.timeout_ns);
    ck_assert(!sim->over && !sim->nodes[first].running);
    (void)sim_give(sim, (uint16_t)sim->leader, &stop);
    ck_assert_msg(sim_run(sim, sim->now_ns + 2 * config.timeout_ns), "it has not ended after two timeouts");
    ck_assert_uint_eq(sim->gaps, 0);
    sim_destroy(sim);
}
END_TEST

/* Without a majority of the holders no view could change any more, where no other can hold it in the place of
 * who leaves; and it is not waited for with the others. */
START_TEST(of_the_holders_of_the_view_a_majority_stays)
{
    struct sim_config config = four(22, 1);
    config.holders = 3;
    config.respawn = false;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    sim_kill_node(sim, 4);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    for (uint16_t node = 1; node <= 3; node++)
        drain(sim, node, true);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, have_left, 2));
    (void)sim_run(sim, sim->now_ns + SECONDS);
    ck_assert_uint_eq(sim->drains[KEEL_DRAIN_LEFT], 2);
    ck_assert_uint_eq(sim->drains[KEEL_DRAIN_HOLDS], 1);
    ck_assert(!sim->nodes[1].running && !sim->nodes[2].running && sim->nodes[3].running);
    check_end(sim);
    ck_assert_uint_eq(sim->gaps, 0);
    sim_destroy(sim);
}
END_TEST

/* At any moment: the run goes on with whoever is left. */
START_TEST(who_is_lost_while_others_leave_is_replaced_by_them)
{
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct sim *sim = begin(four(3000 + seed, 3));
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10 + sim_random(sim, 10)));
        drain(sim, 2, true);
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 30 * SIM_MS));
        sim_kill_worker(sim, (uint16_t)(3 + sim_random(sim, 2)), 0);
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 30 * SIM_MS));
        drain(sim, 2, false);
        check_end(sim);
        sim_destroy(sim);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_spare_takes_the_rank_of_a_node_that_leaves_and_no_step_is_lost);
    tcase_add_test(tc, nodes_leave_as_far_as_there_are_plans_for_those_who_stay);
    tcase_add_test(tc, each_that_stays_is_told_why_and_once_more_when_it_is_asked);
    tcase_add_loop_test(tc, who_hears_nobody_answers_nobody, 0, 2);
    tcase_add_test(tc, who_takes_over_changes_nothing_before_it_knows_what_was_answered);
    tcase_add_test(tc, whoever_leads_next_knows_who_is_to_be_away);
    tcase_add_test(tc, two_leaders_never_make_one_version_of_two_sets);
    tcase_add_test(tc, behind_the_highest_version_nobody_is_told_another);
    tcase_add_test(tc, who_leads_may_leave_too_and_another_leads_then);
    tcase_add_test(tc, a_run_whose_leader_left_ends_at_once_when_it_is_stopped);
    tcase_add_test(tc, of_the_holders_of_the_view_a_majority_stays);
    tcase_add_test(tc, who_is_lost_while_others_leave_is_replaced_by_them);
    tcase_add_test(tc, too_few_for_any_plan_wait_for_others_and_keep_their_step);
    tcase_add_test(tc, with_the_smallest_plan_the_run_goes_on_at_once);
    tcase_add_test(tc, a_spare_takes_any_seat_without_a_wait);
    tcase_add_test(tc, ranks_beyond_a_number_that_has_a_plan_are_spares_under_their_numbers);
    tcase_add_test(tc, who_comes_and_makes_no_larger_plan_changes_no_view);
    tcase_add_test(tc, when_nobody_can_come_the_run_ends_resumable_and_says_how_many_it_needs);
    tcase_add_test(tc, the_end_says_why_the_others_were_lost);
    tcase_add_test(tc, restarts_that_are_used_up_end_the_wait);
    tcase_add_test(tc, the_wait_is_bounded);
    tcase_add_test(tc, a_rank_without_which_there_is_no_plan_is_not_given_up_for_an_accusation);
    tcase_add_test(tc, a_run_that_waits_for_ranks_can_be_stopped);
    tcase_add_test(tc, a_run_that_begins_with_too_few_waits_too);
    tcase_add_test(tc, a_loss_behind_the_last_step_does_not_hold_up_the_end);
    tcase_add_test(tc, a_launcher_without_any_plan_is_refused);
}

KEEL_TEST_MAIN("node_plans", cases, 60)
