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

/* ---- random faults
 * ------------------------------------------------------------------------------------------ */

static struct sim_config random_config(struct sim *dice)
{
    struct sim_config c = sim_default(sim_random(dice, UINT64_MAX));
    c.nodes = (uint16_t)(3 + sim_random(dice, 4));
    c.workers_per_node = (uint16_t)(1 + sim_random(dice, 2));
    uint64_t workers = (uint64_t)(c.nodes - 1) * c.workers_per_node;
    c.ranks = (uint16_t)(1 + sim_random(dice, workers));
    c.spares = (uint16_t)(workers - c.ranks);
    c.shards = (uint16_t)(c.ranks + sim_random(dice, 9));
    c.holders = sim_random(dice, 2) == 0 ? 1 : 3;
    c.timeout_ns = (200 + sim_random(dice, 800)) * SIM_MS;
    c.loss_ppm = sim_random(dice, 2) == 0 ? 0 : (uint32_t)sim_random(dice, 200000);
    c.duplicate_ppm = (uint32_t)sim_random(dice, 200000);
    c.delay_max_ns = (1 + sim_random(dice, 20)) * SIM_MS;
    c.last_step = 60 + sim_random(dice, 100);
    c.snapshot_every = 5 + sim_random(dice, 20);
    c.respawn = sim_random(dice, 4) != 0;
    return c;
}

static void restart_everything(struct sim *sim)
{
    sim_kill_all(sim);
    sim_start_all(sim);
}

static void inject(struct sim *sim)
{
    uint16_t node = (uint16_t)(1 + sim_random(sim, sim->config.nodes - 1U));
    uint16_t other = (uint16_t)sim_random(sim, sim->config.nodes);
    uint8_t local = (uint8_t)sim_random(sim, sim->config.workers_per_node);
    switch (sim_random(sim, 16)) {
    case 0:
    case 1:
    case 2:
        sim_kill_worker(sim, node, local);
        break;
    case 3:
    case 4:
        sim_kill_node(sim, node);
        break;
    case 5:
        sim_stop_node(sim, node);
        break;
    case 6:
    case 7:
        sim_wake_node(sim, node);
        break;
    case 8:
        sim_stop_worker(sim, node, local);
        break;
    case 9:
        sim_wake_worker(sim, node, local);
        break;
    case 10:
        if (node != other)
            sim_partition(sim, node, other, sim_random(sim, 2) == 0);
        break;
    case 11:
        sim->loss_ppm = sim_random(sim, 2) == 0 ? 600000 : sim->config.loss_ppm;
        break;
    case 12:
        sim_accuse(sim, node, local, (uint16_t)sim_random(sim, sim->config.ranks));
        break;
    case 13:
        sim_kill_node(sim, 0);
        if (sim_random(sim, 2) == 0)
            (void)sim_run(sim, sim->now_ns + sim_random(sim, 3 * sim->config.timeout_ns));
        sim_start_all(sim);
        break;
    case 14:
        sim_stop_node(sim, 0);
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 3 * sim->config.timeout_ns));
        sim_wake_node(sim, 0);
        break;
    default:
        if (sim_random(sim, 4) == 0)
            restart_everything(sim);
        break;
    }
}

static void end_faults(struct sim *sim)
{
    sim->loss_ppm = sim->duplicate_ppm = 0;
    memset(sim->blocked, 0, sizeof sim->blocked);
    for (uint16_t node = 0; node < sim->config.nodes; node++) {
        sim_wake_node(sim, node);
        for (uint8_t local = 0; local < sim->config.workers_per_node; local++)
            sim_wake_worker(sim, node, local);
    }
}

/* An end that is not the end of the training is resumed, as its user would. */
static void resume_if_ended(struct sim *sim)
{
    struct sim_node *launcher = &sim->nodes[0];
    if (launcher->running && !launcher->finished)
        return;
    ck_assert_msg(!launcher->running || launcher->finish_status == KEEL_OK ||
                      launcher->finish_status == KEEL_INTERRUPTED || launcher->finish_status == KEEL_TIMEOUT,
                  "%s", launcher->finish_detail);
    if (!launcher->running || launcher->finish_status != KEEL_OK)
        restart_everything(sim);
}

static uint64_t random_run(uint64_t seed, bool verbose)
{
    struct sim_config small = sim_default(seed);
    struct sim *dice = sim_create(&small);
    struct sim *sim = NULL;
    struct sim_config config = random_config(dice);
    sim_destroy(dice);
    sim = sim_create(&config);
    sim->verbose = verbose;
    sim_start_all(sim);
    uint64_t faults = sim_random(sim, 12);
    for (uint64_t i = 0; i < faults && sim->violation[0] == '\0'; i++) {
        (void)sim_run(sim, sim->now_ns + sim_random(sim, 1500 * SIM_MS));
        resume_if_ended(sim);
        if (!sim->nodes[0].finished)
            inject(sim);
    }
    end_faults(sim);
    bool over = false;
    for (uint32_t attempt = 0; attempt < 3 && !over && sim->violation[0] == '\0'; attempt++) {
        resume_if_ended(sim);
        over = sim_run(sim, sim->now_ns + 60 * config.timeout_ns + 2 * config.last_step * config.step_ns) &&
               sim->nodes[0].finish_status == KEEL_OK;
    }
    ck_assert_msg(sim->violation[0] == '\0', "seed %" PRIu64 ": %s", seed, sim->violation);
    if (!over && verbose)
        for (uint16_t n = 0; n < config.nodes; n++)
            printf(
                "node %u running %d stopped %d finished %d worker running %d stopped %d done %d told %" PRIu64
                " next %" PRIu64 " group %" PRIu64 " now %" PRIu64 "\n",
                n, sim->nodes[n].running, sim->nodes[n].stopped, sim->nodes[n].finished,
                sim->nodes[n].workers[0].running, sim->nodes[n].workers[0].stopped,
                sim->nodes[n].workers[0].done, sim->nodes[n].workers[0].told_epoch,
                sim->nodes[n].workers[0].next_step, sim->group_epoch, sim->now_ns);
    ck_assert_msg(over, "seed %" PRIu64 ": not over, %" PRIu64 " of %" PRIu64 " steps, epoch %" PRIu64, seed,
                  sim->delivered_next, config.last_step, sim->newest_epoch);
    ck_assert_msg(sim->delivered_count + sim->gaps == config.last_step, "seed %" PRIu64 ": %" PRIu64 " steps",
                  seed, sim->delivered_count);
    ck_assert_msg(sim->mismatches == 0, "seed %" PRIu64 ": bits differ", seed);
    uint64_t hash = sim->trace_hash;
    sim_destroy(sim);
    return hash;
}

static uint64_t setting(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : fallback;
}

/* SIM_SEED=n replays one seed with its trace; SIM_RUNS=n runs more of them. */
START_TEST(random_faults_break_no_invariant_and_the_run_ends_once_they_stop)
{
    uint64_t only = setting("SIM_SEED", 0), runs = setting("SIM_RUNS", 500);
    if (only != 0)
        (void)random_run(only, true);
    for (uint64_t i = 0; only == 0 && i < runs; i++)
        (void)random_run((uint64_t)_i * runs + i + 1, false);
}
END_TEST

START_TEST(the_same_seed_gives_the_same_trace)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t first = random_run(seed, false);
        ck_assert_uint_eq(first, random_run(seed, false));
        ck_assert_uint_ne(first, random_run(seed + 100000, false));
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, random_faults_break_no_invariant_and_the_run_ends_once_they_stop, 0, 4);
    tcase_add_test(tc, the_same_seed_gives_the_same_trace);
    tcase_add_test(tc, a_run_without_faults_has_one_view_and_delivers_every_step_once);
    tcase_add_test(tc, a_killed_worker_leaves_and_comes_back_to_its_place);
}

KEEL_TEST_MAIN("node", cases, 60)
