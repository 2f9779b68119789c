/* node_quiet_test.c - a world without its healthy beats (node_quiet.h) goes as the same world in full, and
 * faster.
 *
 * From each seed a run with faults that are some timeouts apart, twice: who is in each view, why it came and
 * when, what was delivered and committed, and how it ended, must be the same. */
#include "node_cases.h"
#include "node_quiet.h"

#include <stdio.h>
#include <time.h>

enum { FAULTS_MAX = 6, SEEDS = 240 };

enum fault { KILL_NODE, KILL_WORKER, STOP_NODE, CUT_NODE, KILL_LAUNCHER, FAULT_KINDS };

struct plan {
    struct sim_config config;
    struct {
        uint64_t at_ns;
        enum fault kind;
        uint16_t node;
        uint8_t local;
    } faults[FAULTS_MAX];
    uint32_t fault_count;
};

static uint64_t draw_below(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % below;
}

static struct plan make_plan(uint64_t seed)
{
    uint64_t state = seed * 2 + 1;
    struct plan plan = {.config = sim_default(seed)};
    struct sim_config *c = &plan.config;
    const uint64_t timeout_ns = c->timeout_ns;
    c->nodes = (uint16_t)(4 + draw_below(&state, 12));
    c->workers_per_node = (uint16_t)(1 + draw_below(&state, 2));
    c->spares = (uint16_t)draw_below(&state, 2);
    c->ranks = (uint16_t)((c->nodes - 1) * c->workers_per_node - c->spares);
    c->holders = draw_below(&state, 3) == 0 ? 3 : 1;
    c->step_ns = timeout_ns * (1 + draw_below(&state, 3));
    c->spread_ns = c->ready_ns = SIM_MS; /* what is random is over before it matters what was first */
    c->last_step = 160;                  /* behind the last fault */
    c->snapshot_every = 8;
    uint64_t at_ns = 1000 * SIM_MS + 4 * timeout_ns;
    plan.fault_count = (uint32_t)draw_below(&state, FAULTS_MAX + 1);
    for (uint32_t i = 0; i < plan.fault_count; i++) {
        at_ns += 8 * timeout_ns + draw_below(&state, 6 * timeout_ns);
        plan.faults[i].at_ns = at_ns;
        plan.faults[i].kind = (enum fault)draw_below(&state, FAULT_KINDS);
        plan.faults[i].node = (uint16_t)(1 + draw_below(&state, c->nodes - 1U));
        plan.faults[i].local = (uint8_t)draw_below(&state, c->workers_per_node);
    }
    return plan;
}

static void cut(struct sim *sim, uint16_t node, bool blocked)
{
    for (uint16_t other = 0; other < sim->config.nodes; other++)
        if (other != node)
            sim_partition(sim, node, other, blocked);
}

typedef bool run_until(struct sim *sim, uint64_t until_ns);

/* A fault, and 3 timeouts; then what it left is as before. */
static void inject(struct sim *sim, enum fault kind, uint16_t node, uint8_t local, run_until *run)
{
    const uint64_t later_ns = sim->now_ns + 3 * sim->config.timeout_ns;
    switch (kind) {
    case KILL_NODE:
        sim_kill_node(sim, node);
        break;
    case KILL_WORKER:
        sim_kill_worker(sim, node, local);
        break;
    case STOP_NODE:
        sim_stop_node(sim, node);
        (void)run(sim, later_ns);
        sim_wake_node(sim, node);
        break;
    case CUT_NODE:
        cut(sim, node, true);
        (void)run(sim, later_ns);
        cut(sim, node, false);
        break;
    case KILL_LAUNCHER:
        sim_kill_node(sim, 0);
        (void)run(sim, later_ns);
        if (!sim->nodes[0].running)
            sim_start_node(sim, 0, sim->nodes[0].incarnation + 1);
        break;
    case FAULT_KINDS:
        break;
    }
}

static struct sim *play(const struct plan *plan, run_until *run)
{
    struct sim *sim = begin(plan->config);
    for (uint32_t i = 0; i < plan->fault_count && !sim->over; i++) {
        (void)run(sim, plan->faults[i].at_ns);
        if (!sim->over)
            inject(sim, plan->faults[i].kind, plan->faults[i].node, plan->faults[i].local, run);
    }
    (void)run(sim, sim->now_ns + 400 * SECONDS);
    ck_fine(sim);
    return sim;
}

/* Whoever is just ready when a view changes comes in as a spare, or with the next one: within a beat that is
 * chance. Active ranks are the same. */
static void check_same_view(uint64_t seed, const struct keel_view *a, const struct keel_view *b)
{
    ck_assert_msg((a == NULL) == (b == NULL), "seed %" PRIu64 ": an epoch is missing", seed);
    if (a == NULL)
        return;
    const uint16_t count = keel_view_active_count(a);
    ck_assert_msg(count == keel_view_active_count(b), "seed %" PRIu64 ": epoch %" PRIu64 ": ranks", seed,
                  a->epoch);
    for (uint16_t i = 0; i < count; i++) {
        const struct keel_member *x = &a->members[i], *y = &b->members[i];
        ck_assert_msg(x->rank == y->rank && x->node == y->node && x->local == y->local &&
                          x->incarnation == y->incarnation,
                      "seed %" PRIu64 ": rank %u of epoch %" PRIu64 " is another", seed, x->rank, a->epoch);
    }
}

static void check_same(uint64_t seed, const struct sim *full, const struct sim *quiet)
{
    ck_assert_msg(full->view_changes == quiet->view_changes, "seed %" PRIu64 ": %u and %u views", seed,
                  full->view_changes, quiet->view_changes);
    for (uint64_t epoch = 1; epoch <= full->newest_epoch; epoch++)
        check_same_view(seed, full->views[epoch], quiet->views[epoch]);
    ck_assert_msg(full->over && quiet->over && full->end_status == quiet->end_status,
                  "seed %" PRIu64 ": %s, %s", seed, full->end_detail, quiet->end_detail);
    ck_assert_uint_eq(full->delivered_next, quiet->delivered_next);
    ck_assert_uint_eq(full->gaps, quiet->gaps);
    ck_assert_uint_eq(full->snapshot_step, quiet->snapshot_step);
    ck_assert_uint_eq(full->worker_starts, quiet->worker_starts);
    ck_assert_uint_eq(full->node_starts, quiet->node_starts);
}

START_TEST(a_world_without_healthy_beats_goes_as_in_full)
{
    uint64_t full_events = 0, quiet_events = 0, ns = 0, skipped_ns = 0;
    const uint64_t seeds = SEEDS / thinned(10);
    const char *only = getenv("QUIET_SEED");
    for (uint64_t seed = only != NULL ? strtoull(only, NULL, 10) : 1; seed <= seeds; seed++) {
        const struct plan plan = make_plan(seed);
        struct sim *full = play(&plan, sim_run), *quiet = play(&plan, sim_run_quiet);
        check_same(seed, full, quiet);
        full_events += full->events_done;
        quiet_events += quiet->events_done;
        ns += quiet->now_ns;
        skipped_ns += quiet->skipped_ns;
        sim_destroy(full);
        sim_destroy(quiet);
    }
    printf("%" PRIu64 " worlds: %" PRIu64 " events in full, %" PRIu64 " without %.0f%% of the time\n", seeds,
           full_events, quiet_events, 100 * (double)skipped_ns / (double)ns);
    ck_assert_uint_gt(skipped_ns * 2, ns);
}
END_TEST

/* A seed that failed: who took over had heard of a newcomer and not yet of a member that lives, whose worker
 * was killed for the newcomer's sake. */
START_TEST(who_takes_over_exchanges_no_member_that_lives)
{
    const struct plan plan = make_plan(168);
    struct sim *full = play(&plan, sim_run), *quiet = play(&plan, sim_run_quiet);
    check_same(168, full, quiet);
    ck_assert_uint_eq(quiet->worker_starts, 4U); /* three, and that of the node that was cut off */
    sim_destroy(full);
    sim_destroy(quiet);
}
END_TEST

/* Events for a second of a world of so many nodes; and for people how fast that was. */
static double events_of(uint16_t nodes, uint64_t seconds, run_until *run)
{
    struct sim_config config = sim_default(1);
    config.nodes = nodes;
    config.ranks = (uint16_t)(nodes - 1);
    config.shards = KEEL_SHARDS_MAX;
    config.timeout_ns = 5 * SECONDS;
    config.step_ns = 10 * SECONDS;
    config.spread_ns = SECONDS / 100;
    config.ready_ns = SECONDS;
    config.last_step = 100000;
    config.snapshot_every = 100000;
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 1));
    const clock_t begin = clock();
    const uint64_t from_ns = sim->now_ns, before = sim->events_done;
    (void)run(sim, from_ns + seconds * SECONDS);
    const double took_s = (double)(clock() - begin) / CLOCKS_PER_SEC;
    ck_fine(sim);
    ck_assert_uint_eq(sim->view_changes, 1);
    ck_assert_uint_eq(sim->now_ns, from_ns + seconds * SECONDS);
    ck_assert_uint_ge(sim->delivered_next, seconds / 10);
    const double events = (double)(sim->events_done - before) / (double)seconds;
    printf(
        "%u nodes, timeout 5 s, a step each 10 s%s: %.0f events a second, %.1f times real time on one core\n",
        nodes, sim->skipped_ns > 0 ? ", healthy beats left out" : "", events, (double)seconds / took_s);
    (void)fflush(stdout);
    sim_destroy(sim);
    return events;
}

START_TEST(and_with_an_eighth_of_the_events)
{
    const uint16_t nodes = (uint16_t)(4096 / thinned(16) + 1);
    ck_assert(events_of(nodes, 1000, sim_run_quiet) * 8 < events_of(nodes, 20, sim_run));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_world_without_healthy_beats_goes_as_in_full);
    tcase_add_test(tc, who_takes_over_exchanges_no_member_that_lives);
    tcase_add_test(tc, and_with_an_eighth_of_the_events);
}

KEEL_TEST_MAIN("node_quiet", cases, 600)
