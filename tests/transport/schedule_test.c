/* schedule_test.c - all ranks' schedules run together in a simulator: right values, in any order of events.
 */
#include "schedule_sim.h"

enum { RANKS_ALL = 17 };

static uint64_t cases_run;

static void describe(const struct keel_schedule_wish *wish, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s %s, %u ranks, root %u%s", keel_algorithm_name(wish->algorithm),
             keel_collective_name(wish->kind), wish->rank_count, wish->root, wish->exact ? ", exact" : "");
}

/* One case: make, run, check; a barrier is checked by holding each rank back in turn. False: unsupported. */
static bool run_case(const struct keel_schedule_wish *wish, uint32_t segments, uint32_t window, uint64_t seed)
{
    struct sim sim;
    if (!sim_make(&sim, wish, segments, window, seed))
        return false;
    sim_run(&sim);
    sim_check_results(&sim);
    ck_assert_uint_eq(sim.pool_count, 0);
    sim_free(&sim);
    cases_run++;
    return true;
}

static bool has_root(int kind)
{
    return kind == KEEL_REDUCE || kind == KEEL_BROADCAST || kind == KEEL_GATHER || kind == KEEL_SCATTER;
}

START_TEST(every_kind_and_root_is_right_on_1_to_17_ranks)
{
    char text[128];
    for (int kind = 0; kind < KEEL_SEND; kind++)
        for (int algorithm = 1; algorithm < KEEL_ALGORITHM_COUNT; algorithm++)
            for (uint32_t ranks = 1; ranks <= RANKS_ALL; ranks++)
                for (uint32_t root = 0; root < (has_root(kind) ? ranks : 2); root++)
                    for (int exact = 0; exact < 2; exact++) {
                        struct keel_schedule_wish wish = {.kind = (enum keel_collective_kind)kind,
                                                          .algorithm = (enum keel_algorithm)algorithm,
                                                          .exact = exact != 0,
                                                          .rank_count = ranks,
                                                          .root = root % ranks};
                        describe(&wish, text, sizeof text);
                        mark_point();
                        run_case(&wish, 1 + root % 4, 1 + root % 3, root);
                    }
    printf("note: %lu cases\n", (unsigned long)cases_run);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, every_kind_and_root_is_right_on_1_to_17_ranks);
}
KEEL_TEST_MAIN("transport schedule", cases, 120)
