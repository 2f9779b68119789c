/* node_leader_test.c - a leader that moves: whoever leads is killed, stopped or cut off, in the world of
 * node_sim.h. */
#include "node_cases.h"

static struct sim_config with_holders(uint64_t seed, uint16_t holders)
{
    struct sim_config config = sim_default(seed);
    config.nodes = 6;
    config.ranks = 5;
    config.holders = holders;
    return config;
}

static bool moved(const struct sim *sim, uint64_t times)
{
    return sim->moves >= times;
}

/* No worker was lost or started again, and no step. */
static void check_nothing_lost(const struct sim *sim, uint32_t workers)
{
    ck_assert_uint_eq(sim->worker_starts, workers);
    ck_assert_uint_eq(sim->kills, 0);
    ck_assert_uint_eq(sim->gaps, 0);
    ck_assert_uint_eq(sim->mismatches, 0);
    ck_assert_uint_eq(sim->delivered_count, sim->config.last_step);
}

START_TEST(when_the_launcher_dies_an_agent_leads_and_no_worker_notices_more_than_a_view)
{
    struct sim *sim = begin(with_holders(1, 3));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    const uint64_t epoch = sim->view.epoch;
    sim_kill_node(sim, 0);
    const uint64_t killed_ns = sim->now_ns;
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1));
    ck_assert_uint_eq(sim->leader, 1); /* the next holder */
    ck_assert_uint_le(sim->now_ns - killed_ns, sim->config.timeout_ns * 12 / 10);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    ck_assert_uint_le(sim->now_ns - killed_ns, sim->config.timeout_ns * 15 / 10);
    check_end(sim);
    ck_assert_uint_eq(sim->view.epoch, epoch + 1);
    ck_assert_uint_eq(active(sim), 5);
    check_nothing_lost(sim, 5);
    ck_assert_uint_eq(sim->snapshot_step, 100);
    sim_destroy(sim);
}
END_TEST

/* A leader with workers takes them along; the next lets another agent in for it. */
START_TEST(leaders_die_one_after_the_other_and_the_run_goes_on)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct sim_config config = with_holders(seed, 5);
        config.last_step = 300;
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
        sim_kill_node(sim, 0);
        ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1));
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 2 * config.timeout_ns));
        sim_kill_node(sim, sim->leader);
        ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 2));
        check_end(sim);
        ck_assert_uint_eq(active(sim), 5);
        ck_assert_uint_eq(sim->arrivals, 1);
        ck_assert_uint_eq(sim->worker_starts, 6);
        ck_assert_uint_eq(sim->kills, 0);
        ck_assert_uint_eq(sim->delivered_count + sim->gaps, 300);
        sim_destroy(sim);
    }
}
END_TEST

/* At any moment: also while records, shards and notes are on their way, and while the run ends. */
START_TEST(whenever_the_launcher_dies_no_step_and_no_worker_is_lost)
{
    uint32_t again = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct sim_config config = with_holders(1000 + seed, seed % 2 == 0 ? 3 : 5);
        config.snapshot_every = 5;
        config.last_step = 40;
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 1 + seed % 40));
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 40 * SIM_MS));
        if (!sim->over)
            sim_kill_node(sim, 0);
        check_end(sim);
        ck_assert_msg(sim->kills == 0 && sim->worker_starts == 5, "seed %" PRIu64 ": %u workers started",
                      seed, sim->worker_starts);
        ck_assert_msg(sim->gaps == 0, "seed %" PRIu64 ": %" PRIu64 " steps lost", seed, sim->gaps);
        ck_assert_msg(sim->snapshot_step == 40, "seed %" PRIu64 ": the newest snapshot is of %" PRIu64, seed,
                      sim->snapshot_step);
        again += (uint32_t)sim->delivered_again;
        sim_destroy(sim);
    }
    ck_assert_uint_gt(again, 0); /* delivered, and nobody was told */
}
END_TEST

START_TEST(a_launcher_that_was_stopped_finds_another_leader_and_follows_to_the_end)
{
    struct sim_config config = with_holders(3, 3);
    config.last_step = 300;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_stop_node(sim, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1));
    (void)sim_run(sim, sim->now_ns + 2 * config.timeout_ns);
    sim_wake_node(sim, 0);
    (void)sim_run(sim, sim->now_ns + config.timeout_ns);
    ck_assert_int_eq(sim->nodes[0].state->term.role, KEEL_FOLLOWS);
    ck_assert_uint_eq(sim->nodes[0].state->term.leader, 1);
    check_end(sim);
    ck_assert(sim->nodes[0].finished);
    ck_assert_int_eq(sim->nodes[0].finish_status, KEEL_OK);
    check_nothing_lost(sim, 5);
    sim_destroy(sim);
}
END_TEST

START_TEST(a_launcher_that_follows_starts_no_agent_and_hands_a_stop_on)
{
    struct sim_config config = with_holders(4, 3);
    config.last_step = 600;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_stop_node(sim, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1));
    sim_wake_node(sim, 0);
    (void)sim_run(sim, sim->now_ns + config.timeout_ns);
    ck_assert_uint_eq(sim->leader, 1);
    sim_kill_node(sim, 4);
    (void)sim_run(sim, sim->now_ns + 4 * config.timeout_ns);
    ck_assert_uint_eq(sim->node_starts, 0);
    ck_assert_uint_eq(active(sim), 4);
    sim_user_stop(sim);
    ck_assert(sim_run(sim, sim->now_ns + 60 * SECONDS));
    ck_fine(sim);
    ck_assert_int_eq(sim->end_status, KEEL_INTERRUPTED);
    ck_assert_uint_lt(sim->delivered_next, 600);
    sim_destroy(sim);
}
END_TEST

/* Every node is lost for good, one after the other, the launcher first, and another agent is
 * let in for each but that. */
START_TEST(with_the_launcher_gone_for_good_who_leads_replaces_every_node_that_is_lost)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct sim_config config = with_holders(200 + seed, 3);
        config.last_step = 3000;
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
        sim_kill_node(sim, 0);
        ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2)); /* with other holders */
        for (uint16_t i = 0; i < 10; i++) {
            const uint16_t node = (uint16_t)(1 + (seed + i) % 5);
            const uint32_t before = sim->nodes[node].incarnation;
            sim_kill_node(sim, node);
            (void)sim_run(sim, sim->now_ns + 12 * config.timeout_ns);
            ck_fine(sim);
            ck_assert_uint_eq(active(sim), 5);
            ck_assert(sim->nodes[node].running);
            ck_assert_uint_gt(sim->nodes[node].incarnation, before);
        }
        ck_assert_uint_eq(sim->arrivals, 10);
        ck_assert_uint_eq(sim->worker_starts, 15); /* and none of those that were not lost */
        ck_assert(!sim->nodes[0].running);
        check_end(sim);
        ck_assert_uint_eq(sim->delivered_count + sim->gaps, 3000);
        sim_destroy(sim);
    }
}
END_TEST

/* Who let it in sees the end of its process, as the launcher did. */
START_TEST(an_agent_that_was_let_in_by_who_leads_is_replaced_at_once_when_it_ends)
{
    struct sim_config config = with_holders(7, 3);
    config.last_step = 1000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_node(sim, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1));
    sim_kill_node(sim, 4);
    (void)sim_run(sim, sim->now_ns + 12 * config.timeout_ns);
    ck_assert_uint_eq(sim->arrivals, 1);
    sim_kill_node(sim, 4);
    (void)sim_run(sim, sim->now_ns + 2 * config.timeout_ns);
    ck_assert_uint_eq(sim->arrivals, 2);
    ck_assert_uint_eq(active(sim), 5);
    check_end(sim);
    sim_destroy(sim);
}
END_TEST

/* For two timeouts it might come back by itself; somebody who dials in is not to wait longer. */
START_TEST(who_dials_in_takes_the_place_of_a_node_that_is_silent_for_two_timeouts)
{
    struct sim_config config = with_holders(8, 3);
    config.last_step = 1000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_node(sim, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1));
    (void)sim_run(sim, sim->now_ns + config.timeout_ns);
    for (uint16_t node = 0; node < config.nodes; node++)
        sim_partition(sim, 4, node, true);
    (void)sim_run(sim, sim->now_ns + config.timeout_ns * 3 / 2);
    ck_assert(!sim_dial(sim, 4));
    (void)sim_run(sim, sim->now_ns + config.timeout_ns);
    ck_assert(sim_dial(sim, 4));
    sim_unblock(sim); /* it is another host */
    (void)sim_run(sim, sim->now_ns + 2 * config.timeout_ns);
    ck_assert_uint_eq(sim->arrivals, 1);
    ck_assert_uint_eq(active(sim), 5);
    check_end(sim);
    sim_destroy(sim);
}
END_TEST

/* A node that is cut off for a while, with the launcher, and ends there: the launcher lets another in for it
 * before it steps down, and so does who leads on the other side, later. Their numbers differ, and who came
 * first gives way. */
START_TEST(two_leaders_that_let_agents_in_for_one_node_give_them_different_numbers)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct sim_config config = with_holders(300 + seed, 3);
        config.last_step = 1000;
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
        for (uint16_t node = 1; node < config.nodes; node++)
            for (uint16_t with = 0; with <= 4 && node != 4; with = (uint16_t)(with + 4))
                sim_partition(sim, with, node, true);
        sim_kill_node(sim, 4);
        (void)sim_run(sim, sim->now_ns + config.timeout_ns * 9 / 10);
        const uint32_t first = sim->nodes[4].incarnation;
        ck_assert(sim->nodes[4].running);
        (void)sim_run(sim, sim->now_ns + (seed % 2 == 0 ? 1 : 8) * config.timeout_ns);
        sim_unblock(sim);
        (void)sim_run(sim, sim->now_ns + 8 * config.timeout_ns);
        ck_fine(sim);
        ck_assert_uint_eq(active(sim), 5);
        ck_assert(seed % 2 == 0 || sim->nodes[4].incarnation > first);
        check_end(sim);
        sim_destroy(sim);
    }
}
END_TEST

/* Its own network is gone: it convicts nobody. */
START_TEST(a_leader_that_is_cut_off_steps_down_and_the_others_go_on)
{
    struct sim_config config = with_holders(5, 3);
    config.last_step = 300;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    for (uint16_t node = 1; node < config.nodes; node++)
        sim_partition(sim, 0, node, true);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1));
    (void)sim_run(sim, sim->now_ns + 2 * config.timeout_ns);
    ck_assert_int_ne(sim->nodes[0].state->term.role, KEEL_LEADS);
    ck_assert(!sim->over);
    sim_unblock(sim);
    check_end(sim);
    check_nothing_lost(sim, 5);
    ck_assert_uint_eq(sim->view_changes, 2);
    sim_destroy(sim);
}
END_TEST

/* It hears nothing of the leader, but all others do. */
START_TEST(a_holder_that_does_not_hear_the_leader_does_not_depose_it)
{
    for (uint32_t way = 0; way < 3; way++) {
        struct sim_config config = with_holders(6 + way, 3);
        config.last_step = 200;
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
        sim->blocked[0][1] = way != 1;
        sim->blocked[1][0] = way != 0;
        (void)sim_run(sim, sim->now_ns + 4 * config.timeout_ns);
        ck_fine(sim);
        ck_assert_uint_eq(sim->moves, 0);
        ck_assert_uint_eq(sim->leader, 0);
        sim_unblock(sim);
        (void)sim_run(sim, sim->now_ns + config.timeout_ns / 4);
        ck_assert_int_eq(sim->nodes[1].state->term.role, KEEL_FOLLOWS); /* it hears it again */
        check_end(sim);
        sim_destroy(sim);
    }
}
END_TEST

START_TEST(an_agent_that_starts_again_after_the_launcher_died_finds_who_leads)
{
    struct sim_config config = with_holders(9, 3);
    config.last_step = 400;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_node(sim, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    sim_kill_node(sim, 5);
    (void)sim_run(sim, sim->now_ns + 2 * config.timeout_ns);
    ck_assert_uint_eq(active(sim), 4);
    sim_start_node(sim, 5, 1);
    (void)sim_run(sim, sim->now_ns + 3 * config.timeout_ns);
    ck_assert_uint_eq(active(sim), 5);
    check_end(sim);
    sim_destroy(sim);
}
END_TEST

START_TEST(under_loss_and_duplication_leaders_move_and_every_step_arrives)
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct sim_config config = with_holders(3000 + seed, seed % 2 == 0 ? 3 : 5);
        config.loss_ppm = 150000;
        config.duplicate_ppm = 150000;
        config.delay_max_ns = 20 * SIM_MS;
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10 + seed % 50));
        sim_kill_node(sim, 0);
        check_end(sim);
        ck_assert_msg(sim->gaps == 0, "seed %" PRIu64, seed);
        sim_destroy(sim);
    }
}
END_TEST

/* Without the leader and most of the others who hold the view nobody can change it: the run ends, and can be
 * resumed. */
START_TEST(without_most_holders_the_run_ends_as_resumable)
{
    struct sim_config config = with_holders(10, 3);
    config.last_step = 900;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_node(sim, 0);
    sim_kill_node(sim, 1);
    (void)sim_run(sim, sim->now_ns + 8 * config.timeout_ns);
    ck_fine(sim);
    ck_assert_uint_eq(sim->moves, 0);
    for (uint16_t node = 2; node < config.nodes; node++) {
        ck_assert(!sim->nodes[node].running);
        ck_assert_int_eq(sim->nodes[node].finish_status, KEEL_PEER_LOST);
    }
    sim_start_all(sim);
    check_end(sim);
    sim_destroy(sim);
}
END_TEST

START_TEST(a_stop_outlives_the_launcher_that_was_asked)
{
    struct sim *sim = begin(sim_default(18));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_user_stop(sim);
    (void)sim_run(sim, sim->now_ns + 2 * SIM_MS);
    sim_kill_node(sim, 0);
    (void)sim_run(sim, sim->now_ns + 20 * SIM_MS);
    sim_start_node(sim, 0, 0);
    ck_assert(sim_run(sim, sim->now_ns + 60 * SECONDS));
    ck_fine(sim);
    ck_assert_int_eq(sim->end_status, KEEL_INTERRUPTED);
    ck_assert_uint_eq(sim->take_overs, 1);
    sim_destroy(sim);
}
END_TEST

static bool at_work(const struct sim *sim, uint64_t step)
{
    return sim->nodes[1].workers[0].next_step > step;
}

/* Faster than a hole is waited for: it would be behind for good, and commit no snapshot. */
START_TEST(who_takes_over_further_behind_than_records_are_kept_catches_up)
{
    struct sim_config config = sim_default(19);
    config.last_step = 1000;
    config.timeout_ns = 1000 * config.step_ns;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_node(sim, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, at_work, 400));
    sim_start_node(sim, 0, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, at_work, 700));
    ck_assert_uint_gt(sim->delivered_next, 690);
    ck_assert_uint_gt(sim->snapshot_step, 650);
    check_end(sim);
    ck_assert_uint_lt(sim->gaps, 400 - KEEL_RECORDS_ASKED + 100);
    sim_destroy(sim);
}
END_TEST

/* Whatever it says of it: what comes behind the last step is of another run, or no step. */
START_TEST(no_record_of_a_step_behind_the_last_is_caught_up_with)
{
    static const uint64_t far[] = {UINT64_MAX, UINT64_MAX - KEEL_RECORDS_MAX, 100000, 300};
    static struct keel_wire_message forged = {.kind = KEEL_WIRE_STEP};
    static uint8_t bytes[KEEL_MESSAGE_BYTES];
    struct sim_config config = sim_default(23);
    config.step_ns = config.timeout_ns / 2; /* between two steps all have said that they hold none */
    struct sim *sim = begin(config);
    for (uint64_t step = 2; step < 20; step++) {
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, step));
        (void)sim_run(sim, sim->now_ns + config.timeout_ns / 4);
        forged.as.step = (struct keel_step_record){.step = far[step % 4], .epoch = sim->view.epoch};
        struct keel_node_event message = {.kind = KEEL_EVENT_MESSAGE, .node = 1, .data = bytes};
        message.bytes = keel_wire_encode(&forged, bytes);
        ck_assert_int_eq(sim_give(sim, 0, &message), KEEL_OK);
    }
    check_end(sim);
    ck_assert_uint_eq(sim->gaps, 0);
    sim_destroy(sim);
}
END_TEST

/* They had saved and were waiting for it to be committed. */
START_TEST(what_was_saved_for_a_stop_is_kept_by_who_takes_over)
{
    struct sim_config config = sim_default(19);
    config.snapshot_every = 1000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    const uint64_t step = sim->nodes[sim->view.members[0].node].workers[0].next_step - 1;
    sim_kill_node(sim, 0);
    for (uint16_t rank = 0; rank < active(sim); rank++)
        sim_save(sim, sim->view.members[rank].node, 0, rank, step);
    (void)sim_run(sim, sim->now_ns + 20 * SIM_MS);
    sim_start_node(sim, 0, 0);
    sim_user_stop(sim);
    ck_assert(sim_run(sim, sim->now_ns + 60 * SECONDS));
    ck_fine(sim);
    ck_assert_int_eq(sim->end_status, KEEL_INTERRUPTED);
    ck_assert_uint_eq(sim->snapshot_step, step);
    ck_assert_uint_eq(sim->snapshot_count, 1);
    sim_destroy(sim);
}
END_TEST

/* Before it has heard anybody: what they save as they stop counts in its own view alone. */
START_TEST(a_stop_of_who_takes_over_waits_for_its_view)
{
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct sim *sim = begin(sim_default(40 + seed));
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
        const uint64_t epoch = sim->view.epoch;
        sim_kill_node(sim, 0);
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 20 * SIM_MS));
        sim_start_node(sim, 0, 0);
        sim_user_stop(sim);
        ck_assert(sim_run(sim, sim->now_ns + 60 * SECONDS));
        ck_fine(sim);
        ck_assert_int_eq(sim->end_status, KEEL_INTERRUPTED);
        ck_assert_uint_eq(sim->take_overs, 1);
        ck_assert_uint_eq(sim->view.epoch, epoch + 1);
        ck_assert_uint_eq(sim->kills, 0);
        sim_destroy(sim);
    }
}
END_TEST

static bool told_to_stop(const struct sim *sim, uint64_t ignored)
{
    bool any = false;
    (void)ignored;
    for (uint16_t i = 1; i < sim->config.nodes; i++)
        any = any || (sim->nodes[i].running && sim->nodes[i].state->agent.stopping);
    return any;
}

/* A rank is lost, and the stop comes before the view without it has shown a step: ranks that were told at
 * once would save as members of the old view, which nobody commits. */
START_TEST(a_stop_that_meets_a_loss_waits_for_a_step_of_the_next_view)
{
    uint32_t met = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct sim *sim = begin(sim_default(600 + seed));
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
        const uint64_t epoch = sim->view.epoch;
        const struct keel_leader *leader = sim->nodes[0].state->leader;
        sim_kill_worker(sim, sim->view.members[1].node, 0);
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 60 * SIM_MS));
        const bool changes = leader->changing || leader->verdict.active_gone ||
                             (sim->view.epoch > epoch && leader->front_step == 0);
        sim_user_stop(sim);
        if (changes) {
            met++;
            ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, told_to_stop, 0));
            ck_assert_uint_gt(sim->view.epoch, epoch);
            ck_assert_uint_gt(leader->front_step, 0);
        }
        ck_assert(sim_run(sim, sim->now_ns + 60 * SECONDS));
        ck_fine(sim);
        ck_assert_int_eq(sim->end_status, KEEL_INTERRUPTED);
        sim_destroy(sim);
    }
    ck_assert_uint_gt(met, 0);
}
END_TEST

/* The fifth snapshot that waits for records takes the place of the first, which is given up; and the one who
 * takes over hears of both, if the agent never heard that the leader had the first. */
START_TEST(who_takes_over_orders_no_snapshot_that_was_given_up)
{
    struct sim_config config = sim_default(20);
    config.nodes = 3;
    config.ranks = 2;
    config.snapshot_every = 1000; /* but for these: */
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    for (uint64_t step = 50; step <= 90; step += 10) {
        sim->blocked[0][1] = sim->blocked[0][2] = step == 50;
        sim_save(sim, 1, 0, sim->view.members[0].node == 1 ? 0 : 1, step);
        sim_save(sim, 2, 0, sim->view.members[0].node == 2 ? 0 : 1, step);
        (void)sim_run(sim, sim->now_ns + 3 * SIM_MS);
    }
    ck_assert_uint_eq(sim->dropped, 2);
    sim_kill_node(sim, 0);
    sim_start_node(sim, 0, 0);
    check_end(sim);
    ck_assert_uint_eq(sim->take_overs, 1);
    ck_assert_uint_eq(sim->snapshot_count, 4);
    ck_assert_uint_eq(sim->snapshot_step, 90);
    sim_destroy(sim);
}
END_TEST

static void give_record(struct sim *sim, uint16_t from, uint64_t step)
{
    static struct keel_wire_message message;
    static uint8_t bytes[KEEL_MESSAGE_BYTES];
    const struct keel_record_slot *slot = keel_records_get(&sim->nodes[from].state->records, step);
    ck_assert_ptr_nonnull(slot);
    keel_wire_clear(&message, KEEL_WIRE_STEP);
    message.epoch = slot->record.epoch;
    message.as.step = slot->record;
    struct keel_node_event event = {.kind = KEEL_EVENT_MESSAGE, .node = from, .data = bytes};
    event.bytes = keel_wire_encode(&message, bytes);
    ck_assert_int_eq(sim_give(sim, 0, &event), KEEL_OK);
}

/* The leader has each second of some records, and all who had the others are gone: a spare got their state,
 * and goes on. */
START_TEST(holes_that_are_lost_together_cost_one_timeout)
{
    enum { FIRST = 22, HOLES = 8 };
    struct sim_config config = sim_default(21);
    config.nodes = 4;
    config.ranks = 2;
    config.spares = 1;
    config.respawn = false;
    config.step_ns = 5 * SIM_MS;
    config.last_step = 500;
    config.snapshot_every = 1000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, FIRST - 2));
    sim->blocked[1][0] = sim->blocked[2][0] = true;
    const struct sim_worker *first = &sim->nodes[1].workers[0];
    while (first->next_step <= FIRST + 2 * HOLES)
        (void)sim_run(sim, sim->now_ns + SIM_MS);
    for (uint64_t step = FIRST + sim->delivered_next % 2; step < FIRST + 2 * HOLES; step += 2)
        give_record(sim, 1, step);
    sim_kill_node(sim, 1);
    ck_assert(sim_run_until(sim, sim->now_ns + config.timeout_ns, views, 2));
    while (!sim->nodes[3].workers[0].has_state)
        (void)sim_run(sim, sim->now_ns + SIM_MS);
    sim_kill_node(sim, 2);
    const uint64_t lost_ns = sim->now_ns, sent = sim->sent[KEEL_WIRE_STEP], done = sim->delivered_next;
    ck_assert(sim_run_until(sim, sim->now_ns + 10 * config.timeout_ns, delivered, FIRST + 2 * HOLES));
    ck_assert_uint_ge(sim->now_ns - lost_ns, config.timeout_ns);
    ck_assert_uint_lt(sim->now_ns - lost_ns, 2 * config.timeout_ns);
    /* Meanwhile nobody sends again what lies behind the holes, and is there: that fills a leader's socket. */
    ck_assert_uint_le(sim->sent[KEEL_WIRE_STEP] - sent, 2 * (sim->nodes[3].workers[0].next_step - done));
    check_end(sim);
    ck_assert_uint_ge(sim->gaps, HOLES);
    sim_destroy(sim);
}
END_TEST

START_TEST(a_holder_that_loses_its_disk_is_another_one_and_the_run_goes_on)
{
    struct sim *sim = begin(with_holders(11, 3));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    ck_assert_uint_gt(sim->nodes[1].disk_bytes, 0);
    sim_kill_node(sim, 1); /* it is started again */
    sim->nodes[1].disk_bytes = 0;
    check_end(sim);
    ck_assert_uint_ne(sim->nodes[1].state->reg.disk, 0);
    ck_assert_uint_gt(sim->view_changes, 1);
    sim_destroy(sim);
}
END_TEST

/* One accepted the view and lost its disk, one has it, one has not: the two that remember go on from it. */
START_TEST(two_that_remember_go_on_where_the_third_forgot)
{
    struct sim *sim = begin(with_holders(12, 3));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 5));
    sim_partition(sim, 0, 2, true); /* the next view is accepted by 0 and 1 alone */
    sim_partition(sim, 1, 2, true);
    sim_kill_worker(sim, 4, 0);
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, views, 2));
    sim_kill_node(sim, 0);
    sim->nodes[0].disk_bytes = 0;
    sim_partition(sim, 0, 2, false);
    sim_partition(sim, 1, 2, false);
    sim_start_node(sim, 0, 0);
    check_end(sim);
    ck_assert_uint_ne(sim->nodes[0].state->reg.disk, 0);
    sim_destroy(sim);
}
END_TEST

/* A launcher that is back without its disk leads by name alone, and takes shards. It is no leader for that:
 * found by the simulator, where snapshots came more often than a lease is long, and no holder stood. */
START_TEST(who_takes_shards_without_a_term_is_not_heard_as_the_leader)
{
    struct sim_config config = with_holders(14, 3);
    config.last_step = 400;
    config.snapshot_every = 10; /* each 200 ms, and the lease is 500 */
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 20));
    sim_kill_node(sim, 0);
    sim->nodes[0].disk_bytes = 0;
    sim_start_node(sim, 0, 0);
    const uint64_t back_ns = sim->now_ns;
    ck_assert(sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1));
    ck_assert_uint_le(sim->now_ns - back_ns, config.timeout_ns * 2);
    check_end(sim);
    check_nothing_lost(sim, 5);
    sim_destroy(sim);
}
END_TEST

/* A leader's messages to itself may come when it leads no more. Found by node_fuzz: it answered itself. */
START_TEST(what_a_node_told_itself_while_it_led_is_dropped_when_it_leads_no_more)
{
    struct sim *sim = begin(with_holders(13, 3));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 5));
    ck_assert_uint_eq(sim->leader, 0);
    const struct keel_register *reg = &sim->nodes[1].state->reg;
    const struct keel_ballot promised = reg->promised;
    static struct keel_wire_message own = {.kind = KEEL_WIRE_REGISTER};
    own.as.reg.head = (struct keel_register_head){.kind = KEEL_REGISTER_ACCEPT, .ballot = promised};
    own.as.reg.head.ballot.counter++;
    own.as.reg.value_bytes = reg->value.bytes;
    memcpy(own.as.reg.data, reg->value.data, reg->value.bytes);
    static uint8_t bytes[KEEL_MESSAGE_BYTES];
    struct keel_node_event message = {.kind = KEEL_EVENT_MESSAGE, .node = 1, .data = bytes};
    message.bytes = keel_wire_encode(&own, bytes);
    ck_assert_int_eq(sim_give(sim, 1, &message), KEEL_OK);
    ck_assert_int_eq(keel_ballot_compare(reg->promised, promised), 0);
    check_end(sim);
    sim_destroy(sim);
}
END_TEST

/* It judges losses in the order of their steps: one that it does not know may be the one that ends the run.
 */
START_TEST(whoever_leads_knows_of_each_step_before)
{
    uint64_t moves = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct sim_config config = with_holders(3000 + seed, seed % 2 == 0 ? 3 : 5);
        config.last_step = 200;
        config.tells_past = true;
        struct sim *sim = begin(config);
        ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 1 + seed));
        (void)sim_run(sim, sim->now_ns + sim_random(sim, config.timeout_ns));
        if (seed % 3 == 0) /* it is back later, and may lead again */
            sim_stop_node(sim, 0);
        else
            sim_kill_node(sim, 0);
        (void)sim_run_until(sim, sim->now_ns + 60 * SECONDS, moved, 1);
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 2 * config.timeout_ns));
        sim_wake_node(sim, 0);
        if (config.holders == 5 && !sim->over && sim->leader != 0)
            sim_kill_node(sim, sim->leader);
        check_end(sim);
        ck_assert_msg(sim->past_lacks == 0, "seed %" PRIu64 ": %" PRIu64 " steps are not known", seed,
                      sim->past_lacks);
        moves += sim->moves;
        sim_destroy(sim);
    }
    ck_assert_uint_gt(moves, 100);
}
END_TEST

/* Sent by who has the key, which a node would not make: nobody proposes behind it, and no process fails. */
START_TEST(behind_a_ballot_without_a_next_nobody_stands)
{
    const uint16_t forger = 4;
    struct keel_wire_message message = {.kind = KEEL_WIRE_LEADER};
    uint8_t bytes[KEEL_MESSAGE_BYTES];
    struct sim *sim = begin(with_holders(51, 3));
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 10));
    message.epoch = sim->view.epoch;
    message.as.leader.term =
        (struct keel_ballot){.counter = KEEL_EPOCH_MAX - 1, .node = UINT64_C(1) << 16 | forger};
    const uint32_t count = keel_wire_encode(&message, bytes);
    (void)sim_give(
        sim, 1,
        &(struct keel_node_event){.kind = KEEL_EVENT_MESSAGE, .node = forger, .data = bytes, .bytes = count});
    ck_assert_uint_eq(sim->nodes[1].state->term.ballot.counter, KEEL_EPOCH_MAX - 1);
    (void)sim_run(sim, sim->now_ns + 10 * sim->config.timeout_ns);
    for (uint16_t node = 0; node < sim->config.nodes; node++)
        if (sim->nodes[node].running)
            ck_assert_uint_lt(sim->nodes[node].state->reg.ballot.counter, KEEL_EPOCH_MAX);
    sim_destroy(sim);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, behind_a_ballot_without_a_next_nobody_stands);
    tcase_add_test(tc, who_takes_over_further_behind_than_records_are_kept_catches_up);
    tcase_add_test(tc, no_record_of_a_step_behind_the_last_is_caught_up_with);
    tcase_add_test(tc, what_was_saved_for_a_stop_is_kept_by_who_takes_over);
    tcase_add_test(tc, a_stop_of_who_takes_over_waits_for_its_view);
    tcase_add_test(tc, a_stop_that_meets_a_loss_waits_for_a_step_of_the_next_view);
    tcase_add_test(tc, who_takes_over_orders_no_snapshot_that_was_given_up);
    tcase_add_test(tc, holes_that_are_lost_together_cost_one_timeout);
    tcase_add_test(tc, a_holder_that_loses_its_disk_is_another_one_and_the_run_goes_on);
    tcase_add_test(tc, two_that_remember_go_on_where_the_third_forgot);
    tcase_add_test(tc, who_takes_shards_without_a_term_is_not_heard_as_the_leader);
    tcase_add_test(tc, a_stop_outlives_the_launcher_that_was_asked);
    tcase_add_test(tc, when_the_launcher_dies_an_agent_leads_and_no_worker_notices_more_than_a_view);
    tcase_add_test(tc, leaders_die_one_after_the_other_and_the_run_goes_on);
    tcase_add_test(tc, whenever_the_launcher_dies_no_step_and_no_worker_is_lost);
    tcase_add_test(tc, a_launcher_that_was_stopped_finds_another_leader_and_follows_to_the_end);
    tcase_add_test(tc, a_launcher_that_follows_starts_no_agent_and_hands_a_stop_on);
    tcase_add_test(tc, with_the_launcher_gone_for_good_who_leads_replaces_every_node_that_is_lost);
    tcase_add_test(tc, an_agent_that_was_let_in_by_who_leads_is_replaced_at_once_when_it_ends);
    tcase_add_test(tc, who_dials_in_takes_the_place_of_a_node_that_is_silent_for_two_timeouts);
    tcase_add_test(tc, two_leaders_that_let_agents_in_for_one_node_give_them_different_numbers);
    tcase_add_test(tc, a_leader_that_is_cut_off_steps_down_and_the_others_go_on);
    tcase_add_test(tc, a_holder_that_does_not_hear_the_leader_does_not_depose_it);
    tcase_add_test(tc, an_agent_that_starts_again_after_the_launcher_died_finds_who_leads);
    tcase_add_test(tc, under_loss_and_duplication_leaders_move_and_every_step_arrives);
    tcase_add_test(tc, without_most_holders_the_run_ends_as_resumable);
    tcase_add_test(tc, what_a_node_told_itself_while_it_led_is_dropped_when_it_leads_no_more);
    tcase_add_test(tc, whoever_leads_knows_of_each_step_before);
}

KEEL_TEST_MAIN("node_leader", cases, 60)
