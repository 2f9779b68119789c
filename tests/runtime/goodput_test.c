/* goodput_test.c - the model of keel sim: small traces whose seconds were added up by hand, and what must
 * hold for all.
 */
#include "goodput.h"
#include "harness.h"

#include <keel/memory.h>
#include <string.h>

#define S KEEL_FAILURE_SECOND_NS

/* Four nodes whose state two hold; steps of 10 s; spares enough. */
static struct keel_goodput_model small_model(void)
{
    return (struct keel_goodput_model){.duration_ns = 1000 * S,
                                       .nodes = 4,
                                       .spares = 8,
                                       .fewest = 1,
                                       .copies = 2,
                                       .set_nodes = 10,
                                       .set_lost = 2,
                                       .shards_per_node = 2,
                                       .step_ns = 10 * S,
                                       .exit_ns = 1 * S,
                                       .silence_ns = 3 * S,
                                       .hang_ns = 5 * S,
                                       .reconfigure_ns = 2 * S,
                                       .heal_ns = 4 * S,
                                       .redo_ppm = KEEL_GOODPUT_REDO_ALL};
}

static struct keel_goodput run_trace(const struct keel_goodput_model *model, const char *trace)
{
    struct keel_failures failures;
    struct keel_goodput out;
    ck_assert_int_eq(keel_failures_parse(trace, "trace", model->nodes, &failures), KEEL_OK);
    ck_assert_int_eq(keel_goodput_run(model, &failures, &out), KEEL_OK);
    keel_failures_fini(&failures);
    return out;
}

/* expect RUN, {CAUSE, seconds}...: these and no other causes, to the nanosecond. */
struct part {
    enum keel_goodput_cause cause;
    uint64_t seconds;
};

static void expect(const struct keel_goodput *run, const struct part *parts, size_t count)
{
    uint64_t sum_ns = 0;
    for (uint32_t cause = 0; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++) {
        uint64_t seconds = 0;
        for (size_t i = 0; i < count; i++)
            if (parts[i].cause == cause)
                seconds = parts[i].seconds;
        ck_assert_msg(run->ns[cause] == seconds * S, "%s: %llu ns, %llu s expected", keel_goodput_word(cause),
                      (unsigned long long)run->ns[cause], (unsigned long long)seconds);
        sum_ns += run->ns[cause];
    }
    ck_assert_uint_eq(sum_ns, 1000 * S);
}
#define EXPECT(run, ...)                                                                                     \
    expect(run, (const struct part[]){__VA_ARGS__},                                                          \
           sizeof(const struct part[]){__VA_ARGS__} / sizeof(struct part))
#define W KEEL_GOODPUT_WORK
#define IS(cause, s)                                                                                         \
    {                                                                                                        \
        KEEL_GOODPUT_##cause, s                                                                              \
    }

START_TEST(without_failures_all_time_is_work_and_what_every_step_costs)
{
    struct keel_goodput_model model = small_model();
    struct keel_goodput run = run_trace(&model, "");
    EXPECT(&run, IS(WORK, 1000));
    ck_assert_uint_eq(run.steps, 100);
    model.overhead_ns = 2 * S; /* 83 steps of 12 s */
    run = run_trace(&model, "");
    EXPECT(&run, IS(WORK, 830), IS(OVERHEAD, 166), IS(END, 4));
}
END_TEST

START_TEST(a_lost_process_costs_its_step_and_one_recovery)
{
    const struct keel_goodput_model model = small_model();
    struct keel_goodput run = run_trace(&model, "25 1 process 60\n");
    EXPECT(&run, IS(WORK, 980), IS(REDO, 5), IS(DETECT, 1), IS(RECONFIGURE, 2), IS(HEAL, 4), IS(END, 8));
    ck_assert_uint_eq(run.incidents, 1);
    struct keel_goodput_model keeps = model;
    keeps.redo_ppm = KEEL_GOODPUT_REDO_ALL / 5 * 2; /* 3 of the 5 s are kept: the step ends 3 s earlier */
    run = run_trace(&keeps, "25 1 process 60\n");
    EXPECT(&run, IS(WORK, 990), IS(REDO, 2), IS(DETECT, 1), IS(RECONFIGURE, 2), IS(HEAL, 4), IS(END, 1));
    run = run_trace(&model, "25 1 hang 60\n"); /* resumes at 36, 4 s are left at the end */
    EXPECT(&run, IS(WORK, 980), IS(REDO, 5), IS(DETECT, 5), IS(RECONFIGURE, 2), IS(HEAL, 4), IS(END, 4));
    run = run_trace(&model, "30 1 process 60\n"); /* between two steps: nothing is done again */
    EXPECT(&run, IS(WORK, 990), IS(DETECT, 1), IS(RECONFIGURE, 2), IS(HEAL, 4), IS(END, 3));
}
END_TEST

START_TEST(what_fails_during_a_recovery_begins_it_anew)
{
    const struct keel_goodput_model model = small_model();
    struct keel_goodput run = run_trace(&model, "25 0 node 60\n31 1 process 60\n");
    EXPECT(&run, IS(WORK, 980), IS(REDO, 5), IS(DETECT, 4), IS(RECONFIGURE, 4), IS(HEAL, 5), IS(END, 2));
    ck_assert_uint_eq(run.incidents, 1);
    ck_assert_uint_eq(run.failures, 2);
    run = run_trace(&model, "25 0 node 60\n26 1 process 60\n"); /* noticed together: one view */
    EXPECT(&run, IS(WORK, 980), IS(REDO, 5), IS(DETECT, 3), IS(RECONFIGURE, 2), IS(HEAL, 4), IS(END, 6));
    run = run_trace(&model, "25 0 node 60\n31 1 slow 0.5 factor=2\n"); /* that interrupts nothing */
    EXPECT(&run, IS(WORK, 980), IS(REDO, 5), IS(DETECT, 3), IS(RECONFIGURE, 2), IS(HEAL, 4), IS(END, 6));
}
END_TEST

START_TEST(both_holders_lost_together_go_back_to_a_snapshot_or_to_the_beginning)
{
    struct keel_goodput_model model = small_model();
    struct keel_goodput run = run_trace(&model, "25 0 node 60\n25 2 node 60\n");
    EXPECT(&run, IS(WORK, 960), IS(AGAIN, 20), IS(REDO, 5), IS(DETECT, 3), IS(RECONFIGURE, 2), IS(HEAL, 4),
           IS(END, 6));
    ck_assert_uint_eq(run.from_nothing, 1);
    run = run_trace(&model, "25 0 node 60\n25 1 node 60\n"); /* not the same state */
    EXPECT(&run, IS(WORK, 980), IS(REDO, 5), IS(DETECT, 3), IS(RECONFIGURE, 2), IS(HEAL, 4), IS(END, 6));
    model.stall_ns = 1 * S;
    model.tiers[KEEL_GOODPUT_TIER_STORE] =
        (struct keel_goodput_snapshots){.every_steps = 10, .drain_ns = 7 * S, .restore_ns = 6 * S};
    /* Steps 1 to 20 end at 201, that of 20 is durable at 209; at 250 step 25 is 8 s old. */
    run = run_trace(&model, "250 0 node 60\n250 2 node 60\n");
    EXPECT(&run, IS(WORK, 930), IS(STALL, 9), IS(AGAIN, 40), IS(REDO, 8), IS(DETECT, 3), IS(RECONFIGURE, 2),
           IS(STORE, 6), IS(END, 2));
    ck_assert_uint_eq(run.restores[KEEL_GOODPUT_TIER_STORE], 1);
    /* While that of 20 is drained: that of 10 counts, and 100 s are done again. From 219 on, with nine
     * stalls. */
    run = run_trace(&model, "208 0 node 60\n208 2 node 60\n");
    EXPECT(&run, IS(WORK, 870), IS(STALL, 9), IS(AGAIN, 100), IS(REDO, 6), IS(DETECT, 3), IS(RECONFIGURE, 2),
           IS(STORE, 6), IS(END, 4));
}
END_TEST

START_TEST(without_spares_others_share_and_below_the_fewest_all_wait)
{
    struct keel_goodput_model model = small_model();
    model.spares = 0;
    /* Three nodes with 3 shards instead of 2: steps of 15 s from 34 to 139, then a view with four. */
    struct keel_goodput run = run_trace(&model, "25 0 node 100\n");
    EXPECT(&run, IS(WORK, 940), IS(FEWER, 35), IS(REDO, 5), IS(DETECT, 3), IS(RECONFIGURE, 4), IS(HEAL, 8),
           IS(END, 5));
    ck_assert_uint_eq(run.joins, 1);
    model.fewest = 4;
    run = run_trace(&model, "25 0 node 100\n");
    EXPECT(&run, IS(WORK, 880), IS(SPARES, 97), IS(REDO, 5), IS(DETECT, 3), IS(RECONFIGURE, 2), IS(HEAL, 4),
           IS(END, 9));
    run = run_trace(&model, "25 0 node 2000\n"); /* nobody comes any more */
    EXPECT(&run, IS(WORK, 20), IS(SPARES, 972), IS(REDO, 5), IS(DETECT, 3));
}
END_TEST

START_TEST(what_changes_during_a_recovery_counts_behind_the_step_that_was_kept)
{
    struct keel_goodput_model model = small_model();
    model.hang_ns = 50 * S;
    model.redo_ppm = KEEL_GOODPUT_REDO_ALL / 5 * 2;
    /* 3 of the 5 s are kept at 25; the node is slow until 28, and the step, of 15 s, goes on from 81 to 93.
     */
    const struct keel_goodput run = run_trace(&model, "20 0 slow 8 factor=1.5\n25 1 hang 60\n");
    EXPECT(&run, IS(WORK, 930), IS(SLOW, 5), IS(REDO, 2), IS(DETECT, 50), IS(RECONFIGURE, 2), IS(HEAL, 4),
           IS(END, 7));
}
END_TEST

START_TEST(pauses_slow_nodes_wrong_bits_and_the_end_of_a_run)
{
    struct keel_goodput_model model = small_model();
    struct keel_goodput run = run_trace(&model, "25 1 stop 2\n"); /* waited for: the step goes on */
    EXPECT(&run, IS(WORK, 990), IS(DETECT, 2), IS(END, 8));
    run = run_trace(&model, "25 1 stop 50\n"); /* evicted */
    EXPECT(&run, IS(WORK, 980), IS(REDO, 5), IS(DETECT, 3), IS(RECONFIGURE, 2), IS(HEAL, 4), IS(END, 6));
    run = run_trace(&model, "25 1 slow 20 factor=1.5\n"); /* two steps of 15 s */
    EXPECT(&run, IS(WORK, 990), IS(SLOW, 10));
    model.slow_ns = 10 * S; /* exchanged at 35 */
    run = run_trace(&model, "25 1 slow 20 factor=1.5\n");
    EXPECT(&run, IS(WORK, 980), IS(SLOW, 5), IS(RECONFIGURE, 2), IS(HEAL, 4), IS(END, 9));
    struct keel_goodput_model none = model;
    none.spares = 0; /* two are exchanged at 35, and back at 425: steps of 20 s from 41 to 441 */
    run = run_trace(&none, "25 0-1 slow 400 factor=1.5\n");
    EXPECT(&run, IS(WORK, 780), IS(SLOW, 5), IS(FEWER, 200), IS(RECONFIGURE, 4), IS(HEAL, 8), IS(END, 3));
    run = run_trace(&model, "25 0 run 50\n");
    EXPECT(&run, IS(WORK, 910), IS(AGAIN, 20), IS(REDO, 5), IS(IDLE, 50), IS(RECONFIGURE, 2), IS(HEAL, 4),
           IS(END, 9));
    model.tiers[KEEL_GOODPUT_TIER_PARTNER] =
        (struct keel_goodput_snapshots){.every_steps = 2, .restore_ns = 1 * S};
    run = run_trace(&model, "25 0 corrupt 50\n"); /* found at the end of the next step */
    EXPECT(&run, IS(WORK, 980), IS(REDO, 5), IS(DETECT, 10), IS(RECONFIGURE, 2), IS(PARTNER, 1), IS(END, 2));
}
END_TEST

/* Of twenty nodes, with all tiers: which is read, by what was lost. */
static uint32_t tier_after(const char *trace)
{
    struct keel_goodput_model model = small_model();
    model.nodes = 20;
    for (uint32_t tier = 0; tier < KEEL_GOODPUT_TIER_COUNT; tier++)
        model.tiers[tier] = (struct keel_goodput_snapshots){.every_steps = 2, .restore_ns = (tier + 1) * S};
    const struct keel_goodput run = run_trace(&model, trace);
    uint32_t found = KEEL_GOODPUT_TIER_COUNT;
    for (uint32_t tier = 0; tier < KEEL_GOODPUT_TIER_COUNT; tier++)
        if (run.restores[tier] > 0) {
            ck_assert_uint_eq(found, KEEL_GOODPUT_TIER_COUNT);
            ck_assert_uint_eq(run.ns[KEEL_GOODPUT_LOCAL + tier], (tier + 1) * S);
            found = tier;
        }
    return found;
}

START_TEST(the_nearest_tier_that_is_whole_is_read)
{
    /* Holders of places 0 and 10 are the same two; partners of a place are 7 further; sets are odd and even.
     */
    ck_assert_uint_eq(tier_after("45 3 process 60\n"), KEEL_GOODPUT_TIER_COUNT);
    ck_assert_uint_eq(tier_after("45 0 process 60\n45 10 process 60\n"), KEEL_GOODPUT_TIER_LOCAL);
    ck_assert_uint_eq(tier_after("45 0 node 60\n45 10 node 60\n"), KEEL_GOODPUT_TIER_PARTNER);
    ck_assert_uint_eq(tier_after("45 0 run 60\n"), KEEL_GOODPUT_TIER_LOCAL);
    ck_assert_uint_eq(tier_after("45 0 node 60\n45 10 process 60\n45 7 node 60\n"),
                      KEEL_GOODPUT_TIER_ERASURE);
    ck_assert_uint_eq(tier_after("45 0-10 node 60\n"), KEEL_GOODPUT_TIER_STORE);
}
END_TEST

/* ---- what must hold for all traces --------------------------------------------------------------------- */

static uint64_t state = 7;
static uint64_t draw(uint64_t below)
{
    uint64_t wide = 0;
    for (int half = 0; half < 2; half++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        wide = wide << 31 | state >> 33;
    }
    return wide % below;
}

static struct keel_goodput_model random_model(bool with_tiers)
{
    struct keel_goodput_model model = {.duration_ns = 20000 * S + draw(1000),
                                       .nodes = (uint32_t)(4 + draw(40))};
    model.spares = (uint32_t)draw(6);
    model.fewest = 1 + (uint32_t)draw(model.nodes);
    model.copies = 2 + (uint32_t)draw(2);
    model.set_nodes = 2 + (uint32_t)draw(10);
    model.set_lost = 1 + (uint32_t)draw(2);
    model.shards_per_node = 1 + (uint32_t)draw(4);
    model.step_ns = S / 2 + draw(30 * S);
    model.overhead_ns = draw(S / 10);
    model.exit_ns = draw(S);
    model.silence_ns = draw(10 * S);
    model.hang_ns = draw(30 * S);
    model.slow_ns = draw(2) * draw(1000 * S);
    model.reconfigure_ns = draw(5 * S);
    model.heal_ns = draw(20 * S);
    model.stall_ns = draw(S);
    model.redo_ppm = (uint32_t)draw(KEEL_GOODPUT_REDO_ALL + 1);
    for (uint32_t tier = 0; tier < KEEL_GOODPUT_TIER_COUNT && with_tiers; tier++)
        if (draw(3) > 0)
            model.tiers[tier] = (struct keel_goodput_snapshots){
                .every_steps = 1 + draw(50), .drain_ns = draw(100 * S), .restore_ns = draw(60 * S)};
    return model;
}

/* Failures in order of time; `kinds` are chosen from. */
static uint32_t random_trace(const struct keel_goodput_model *model, const enum keel_failure_kind *kinds,
                             uint32_t kind_count, struct keel_failure *out, uint32_t most)
{
    const uint32_t count = (uint32_t)draw(most + 1);
    uint64_t at_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        at_ns += draw(3) == 0 ? draw(20 * S) : draw(2 * model->duration_ns / (most + 1));
        const uint32_t first = (uint32_t)draw(model->nodes);
        out[i] = (struct keel_failure){.at_ns = at_ns,
                                       .repair_ns = draw(2000 * S),
                                       .first = first,
                                       .count = 1 + (draw(8) == 0 ? (uint32_t)draw(model->nodes - first) : 0),
                                       .kind = kinds[draw(kind_count)]};
        if (out[i].kind == KEEL_FAILURE_SLOW)
            out[i].factor_ppm = KEEL_FAILURE_FACTOR_PPM + (uint32_t)draw(2000000);
    }
    return count;
}

enum { TRACE_MAX = 40 };

START_TEST(times_add_up_to_the_wall_time_whatever_happens)
{
    static const enum keel_failure_kind kinds[] = {
        KEEL_FAILURE_PROCESS, KEEL_FAILURE_HANG,    KEEL_FAILURE_NODE, KEEL_FAILURE_STOP,
        KEEL_FAILURE_SLOW,    KEEL_FAILURE_CORRUPT, KEEL_FAILURE_RUN};
    uint64_t restores = 0, joins = 0, waited_ns = 0;
    for (int round = 0; round < 3000; round++) {
        const struct keel_goodput_model model = random_model(true);
        struct keel_failure at[TRACE_MAX];
        struct keel_failures failures = {.at = at};
        failures.count = random_trace(&model, kinds, KEEL_FAILURE_KIND_COUNT, at, TRACE_MAX);
        struct keel_goodput run;
        ck_assert_int_eq(keel_goodput_run(&model, &failures, &run), KEEL_OK);
        uint64_t sum_ns = 0;
        for (uint32_t cause = 0; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++)
            sum_ns += run.ns[cause];
        ck_assert_uint_eq(sum_ns, model.duration_ns);
        ck_assert_uint_eq(run.ns[KEEL_GOODPUT_WORK], run.steps * model.step_ns);
        for (uint32_t tier = 0; tier < KEEL_GOODPUT_TIER_COUNT; tier++)
            restores += run.restores[tier];
        joins += run.joins > 0;
        waited_ns += run.ns[KEEL_GOODPUT_SPARES];
    }
    ck_assert_msg(restores > 1000 && joins > 300 && waited_ns > 0, "%llu restores, %llu joins",
                  (unsigned long long)restores, (unsigned long long)joins);
}
END_TEST

/* Failures that leave a holder of everything; a part of them costs no more than all. */
START_TEST(more_failures_never_give_more_goodput)
{
    static const enum keel_failure_kind kinds[] = {KEEL_FAILURE_PROCESS, KEEL_FAILURE_HANG,
                                                   KEEL_FAILURE_NODE};
    uint32_t less = 0;
    for (int round = 0; round < 4000; round++) {
        struct keel_goodput_model model = random_model(false);
        struct keel_failure all[TRACE_MAX], some[TRACE_MAX];
        struct keel_failures failures = {.at = all}, fewer = {.at = some};
        struct keel_goodput run, better;
        model.copies = model.nodes;
        model.spares = 40 * TRACE_MAX; /* so that nobody waits for a repair */
        failures.count = random_trace(&model, kinds, 3, all, TRACE_MAX);
        for (size_t i = 0; i < failures.count; i++) {
            all[i].count = 1;
            if (draw(3) > 0)
                some[fewer.count++] = all[i];
        }
        ck_assert_int_eq(keel_goodput_run(&model, &failures, &run), KEEL_OK);
        ck_assert_int_eq(keel_goodput_run(&model, &fewer, &better), KEEL_OK);
        ck_assert_msg(better.steps >= run.steps, "round %d: %llu steps with %zu failures, %llu with %zu",
                      round, (unsigned long long)run.steps, failures.count, (unsigned long long)better.steps,
                      fewer.count);
        less += better.steps > run.steps;
    }
    ck_assert_uint_gt(less, 1000);
}
END_TEST

/* The same with a store, whose snapshots are durable at once, and failures that go back to it. */
START_TEST(more_restarts_never_give_more_goodput)
{
    static const enum keel_failure_kind kinds[] = {KEEL_FAILURE_CORRUPT, KEEL_FAILURE_RUN,
                                                   KEEL_FAILURE_PROCESS};
    for (int round = 0; round < 4000; round++) {
        struct keel_goodput_model model = random_model(false);
        struct keel_failure all[TRACE_MAX], some[TRACE_MAX];
        struct keel_failures failures = {.at = all}, fewer = {.at = some};
        struct keel_goodput run, better;
        model.copies = model.nodes;
        model.spares = 40 * TRACE_MAX;
        model.tiers[KEEL_GOODPUT_TIER_STORE] =
            (struct keel_goodput_snapshots){.every_steps = 1 + draw(30), .restore_ns = model.heal_ns};
        failures.count = random_trace(&model, kinds, 3, all, TRACE_MAX);
        for (size_t i = 0; i < failures.count; i++) {
            all[i].count = 1;
            if (draw(3) > 0)
                some[fewer.count++] = all[i];
        }
        ck_assert_int_eq(keel_goodput_run(&model, &failures, &run), KEEL_OK);
        ck_assert_int_eq(keel_goodput_run(&model, &fewer, &better), KEEL_OK);
        ck_assert_msg(better.steps >= run.steps, "round %d: %llu steps with %zu failures, %llu with %zu",
                      round, (unsigned long long)run.steps, failures.count, (unsigned long long)better.steps,
                      fewer.count);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, without_failures_all_time_is_work_and_what_every_step_costs);
    tcase_add_test(tc, a_lost_process_costs_its_step_and_one_recovery);
    tcase_add_test(tc, what_fails_during_a_recovery_begins_it_anew);
    tcase_add_test(tc, both_holders_lost_together_go_back_to_a_snapshot_or_to_the_beginning);
    tcase_add_test(tc, without_spares_others_share_and_below_the_fewest_all_wait);
    tcase_add_test(tc, what_changes_during_a_recovery_counts_behind_the_step_that_was_kept);
    tcase_add_test(tc, pauses_slow_nodes_wrong_bits_and_the_end_of_a_run);
    tcase_add_test(tc, the_nearest_tier_that_is_whole_is_read);
    tcase_add_test(tc, times_add_up_to_the_wall_time_whatever_happens);
    tcase_add_test(tc, more_failures_never_give_more_goodput);
    tcase_add_test(tc, more_restarts_never_give_more_goodput);
}

KEEL_TEST_MAIN("goodput", cases, 60)
