/* costs_test.c - what AUTO goes by: choices under given figures, figures found from times, files of them, and
 * groups that were given some: the choice follows, and ranks with others hear of it. */
#include "cost_fit.h"
#include "costs.h"
#include "ranks.h"
#include "schedule_build.h"

#include <keel/file.h>

static const struct keel_cost_model latency_alone = {{1000, 1, 0}, {1000, 1, 0}, 0, 0};
static const struct keel_cost_model messages_alone = {{1, 1000, 0}, {1, 1000, 0}, 0, 0};
static const struct keel_cost_model bytes_alone = {{1, 1, 1000}, {1, 1, 1000}, 1, 0};

static struct keel_collective_key wish_for(enum keel_collective_kind kind, uint32_t ranks)
{
    return (struct keel_collective_key){.kind = kind, .rank_count = ranks, .exact = true};
}

/* ---- choices ---- */

START_TEST(the_choice_follows_the_figures)
{
    struct keel_collective_key sum = wish_for(KEEL_ALL_REDUCE, 16), all = wish_for(KEEL_ALL_TO_ALL, 16);
    ck_assert_int_eq(keel_schedule_choose(&sum, 1024, &latency_alone), KEEL_ALGORITHM_FLAT);
    ck_assert_int_eq(keel_schedule_choose(&sum, 1024, &messages_alone), KEEL_ALGORITHM_DOUBLING);
    enum keel_algorithm moved = keel_schedule_choose(&sum, 1 << 24, &bytes_alone);
    sum.algorithm = moved;
    ck_assert_uint_eq(keel_schedule_wire_bytes(&sum, 1 << 24), UINT64_C(2) * 15 << 24); /* no fewer can be */
    ck_assert_int_eq(keel_schedule_choose(&all, 1 << 24, &bytes_alone), KEEL_ALGORITHM_FLAT);
    sum.rank_count = 100; /* many: nobody talks to everybody */
    ck_assert_int_ne(keel_schedule_choose(&sum, 1024, &latency_alone), KEEL_ALGORITHM_FLAT);
}
END_TEST

START_TEST(the_choice_is_the_cheapest_that_is_offered)
{
    static const uint64_t sizes[] = {8, 4096, 100000, 1 << 22};
    for (uint32_t kind = 0; kind < KEEL_BARRIER; kind++)
        for (uint32_t k = 0; k < 4 * 3; k++) {
            struct keel_collective_key key = wish_for((enum keel_collective_kind)kind, 2 + 5 * (k / 4));
            struct keel_facts facts = keel_key_facts(&key);
            key.algorithm = keel_schedule_choose(&key, sizes[k % 4], &keel_costs_built_in);
            ck_assert(keel_key_offered(&key, &facts));
            uint64_t chosen_ns = keel_schedule_cost_ns(&key, sizes[k % 4], &keel_costs_built_in);
            for (int a = KEEL_ALGORITHM_FLAT; a < KEEL_ALGORITHM_COUNT; a++) {
                key.algorithm = (enum keel_algorithm)a;
                if (keel_key_offered(&key, &facts))
                    ck_assert_uint_ge(keel_schedule_cost_ns(&key, sizes[k % 4], &keel_costs_built_in),
                                      chosen_ns);
            }
        }
}
END_TEST

/* ---- figures from times ---- */

/* Times as a machine with these figures would have them. */
static uint32_t samples_of(const struct keel_cost_model *machine, struct keel_cost_sample *out)
{
    static const enum keel_collective_kind kinds[] = {KEEL_ALL_REDUCE, KEEL_ALL_GATHER, KEEL_BROADCAST};
    uint32_t count = 0, contest = 0;
    for (uint32_t kind = 0; kind < 3; kind++)
        for (uint64_t bytes = 8; bytes <= 1 << 24; bytes *= 8, contest++) {
            struct keel_collective_key key = wish_for(kinds[kind], 8);
            struct keel_facts facts = keel_key_facts(&key);
            for (int a = KEEL_ALGORITHM_FLAT; a < KEEL_ALGORITHM_COUNT; a++) {
                key.algorithm = (enum keel_algorithm)a;
                if (keel_key_offered(&key, &facts))
                    out[count++] = (struct keel_cost_sample){
                        key, bytes, keel_schedule_cost_ns(&key, bytes, machine), contest};
            }
        }
    return count;
}

START_TEST(figures_are_found_by_which_the_fastest_is_chosen)
{
    static const struct keel_cost_model machines[] = {{{800, 200, 40}, {1, 1, 1}, 30, 0},
                                                      {{20000, 9000, 900}, {1, 1, 1}, 300, 0},
                                                      {{50, 700, 10}, {1, 1, 1}, 90, 0}};
    static struct keel_cost_sample samples[512];
    struct keel_cost_model found = keel_costs_built_in;
    uint32_t count = samples_of(&machines[_i], samples);
    keel_cost_fit(samples, count, &found);
    for (uint32_t first = 0, among; first < count; first += among) {
        uint32_t taken, fastest;
        among = keel_cost_contest(samples, count, first, &found, &taken, &fastest);
        ck_assert_uint_le(samples[taken].measured_ns, samples[fastest].measured_ns * 102 / 100);
    }
    for (uint32_t k = 0; k < 3; k++) /* one host: nothing was measured between two */
        ck_assert_uint_eq(
            *keel_costs_figure(&found, 3 + k),
            *keel_costs_figure(&(struct keel_cost_model){.between = keel_costs_built_in.between}, 3 + k));
}
END_TEST

/* ---- files ---- */

static const char good_text[] =
    "# measured\nwithin.alpha_ns = 1\n\n  within.gap_ns=2 # here\n"
    "within.picos_per_byte = 3\nbetween.alpha_ns = 4\nbetween.gap_ns = 5\n"
    "combine.picos_per_byte = 7\r\nhost.processors = 8\nbetween.picos_per_byte = 6";

static const char *path_of(const char *name)
{
    static char path[KEEL_PATH_BYTES];
    snprintf(path, sizeof path, "%s/costs_test.%d.%s", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp",
             (int)getpid(), name);
    return path;
}

static enum keel_status read_text(const char *text, size_t bytes, struct keel_cost_model *out)
{
    const char *path = path_of("ini");
    ck_status(keel_file_replace(path, text, bytes, 0600), KEEL_OK);
    enum keel_status status = keel_costs_read(path, out);
    unlink(path);
    return status;
}

START_TEST(a_file_says_all_figures_in_any_order)
{
    struct keel_cost_model read, again;
    ck_status(read_text(good_text, strlen(good_text), &read), KEEL_OK);
    for (uint32_t k = 0; k < KEEL_COSTS; k++)
        ck_assert_uint_eq(*keel_costs_figure(&read, k), k + 1);
    ck_status(keel_costs_write(path_of("again"), &read, "of a test"), KEEL_OK);
    ck_status(keel_costs_read(path_of("again"), &again), KEEL_OK);
    ck_assert_mem_eq(&read, &again, sizeof read);
    unlink(path_of("again"));
    for (uint32_t k = 0; k < KEEL_COSTS; k++) {
        *keel_costs_figure(&again, k) += 1;
        ck_assert_uint_ne(keel_costs_hash(&read), keel_costs_hash(&again));
        again = read;
    }
}
END_TEST

static const struct {
    const char *from, *to, *said;
} breaks[] = {{"within.alpha_ns = 1", "within.alpha_ns = 1us", ":2: within.alpha_ns = 1us: a whole number"},
              {"within.alpha_ns = 1", "within.alpha_ns = ", "a whole number"},
              {"within.alpha_ns = 1", "within.alpha_ns = -1", "a whole number"},
              {"within.alpha_ns = 1", "within.alpha_ns = 99999999999999999999999", "a whole number"},
              {"within.alpha_ns = 1", "within.alfa_ns = 1", ":2: unknown figure `within.alfa_ns`"},
              {"within.alpha_ns = 1", "within.alpha_ns 1", ":2: not `key = value`"},
              {"within.alpha_ns = 1", "# none", ": within.alpha_ns is missing"},
              {"between.gap_ns = 5", "within.gap_ns = 2", ":7: within.gap_ns stands twice"}};

START_TEST(a_broken_file_is_refused_by_name)
{
    char text[512];
    struct keel_cost_model untouched = keel_costs_built_in;
    const char *at = strstr(good_text, breaks[_i].from);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good_text), good_text, breaks[_i].to,
             at + strlen(breaks[_i].from));
    ck_status(read_text(text, strlen(text), &untouched), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), breaks[_i].said) != NULL, "%s", keel_detail());
    ck_assert_ptr_nonnull(strstr(keel_detail(), "costs_test."));
    ck_assert_mem_eq(&untouched, &keel_costs_built_in, sizeof untouched);
}
END_TEST

START_TEST(what_is_no_text_or_is_not_there_is_refused)
{
    struct keel_cost_model read;
    ck_status(read_text(good_text, sizeof good_text, &read), KEEL_INVALID); /* a NUL at the end */
    ck_status(keel_costs_read(path_of("none"), &read), KEEL_NOT_FOUND);
}
END_TEST

/* ---- groups ---- */

enum { FLOATS = 1 << 16 };

static struct keel_group *group_with(struct rank *me, const struct keel_cost_model *costs)
{
    static const uint16_t shard_rank[RANKS_MAX] = {0, 1, 2, 3};
    struct keel_group *group = NULL;
    struct keel_group_config config = {.epoch = 1,
                                       .rank = me->rank,
                                       .rank_count = me->rank_count,
                                       .addresses = me->addresses,
                                       .shard_count = me->rank_count,
                                       .shard_rank = shard_rank,
                                       .costs = costs};
    rank_ok(me, keel_group_open(me->endpoint, &config, &group));
    return group;
}

static enum keel_status sum_once(struct keel_group *group, uint64_t sequence)
{
    static float part[FLOATS], result[FLOATS];
    const float *parts[] = {part};
    struct keel_operation *operation = NULL;
    KEEL_TRY(sum_begin(group, sequence, parts, 1, result, FLOATS, &operation));
    return keel_operation_wait(operation, in_seconds(20));
}

/* Flat sends the whole vector to all others, bytes alone make for 1/4 of it to each, twice. */
static int follow_body(struct rank *me)
{
    const struct keel_cost_model *costs = me->seed == 0 ? &latency_alone : &bytes_alone;
    uint64_t wanted = me->seed == 0 ? 3 * FLOATS * sizeof(float) : 2 * 3 * FLOATS * sizeof(float) / 4;
    struct keel_group *group = group_with(me, costs), *child = NULL;
    struct keel_transport_stats before, after;
    rank_ok(me, keel_group_split(group, 1, 0, me->rank, in_seconds(20), &child)); /* it inherits them */
    for (uint64_t k = 0; k < 2; k++) {
        keel_endpoint_stats(me->endpoint, &before);
        rank_ok(me, sum_once(k == 0 ? group : child, 10 + k));
        keel_endpoint_stats(me->endpoint, &after);
        rank_check(me, after.data_sent - before.data_sent == wanted);
    }
    rank_ok(me, barrier(group, 20, in_seconds(20)));
    keel_group_close(child);
    keel_group_close(group);
    return 0;
}

START_TEST(the_figures_of_a_group_decide_what_it_sends)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, (uint64_t)_i, NULL, follow_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* Rank 2 has others. With the first pair both would choose the same, with the second not. */
static int differ_body(struct rank *me)
{
    struct keel_cost_model costs = me->seed == 0 ? keel_costs_built_in : latency_alone;
    if (me->rank == 2 && me->seed == 0)
        costs.between.gap_ns++;
    else if (me->rank == 2)
        costs = messages_alone;
    struct keel_group *group = group_with(me, &costs);
    rank_check(me, sum_once(group, 1) == KEEL_MISMATCH);
    rank_check(me, strstr(keel_detail(), "rank 2 has network costs (keel net tune)") != NULL);
    rank_say(me, 'h');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

START_TEST(ranks_with_other_figures_are_named_to_all)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, (uint64_t)_i, NULL, differ_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, the_choice_follows_the_figures);
    tcase_add_test(tc, the_choice_is_the_cheapest_that_is_offered);
    tcase_add_loop_test(tc, figures_are_found_by_which_the_fastest_is_chosen, 0, 3);
    tcase_add_test(tc, a_file_says_all_figures_in_any_order);
    tcase_add_loop_test(tc, a_broken_file_is_refused_by_name, 0, sizeof breaks / sizeof breaks[0]);
    tcase_add_test(tc, what_is_no_text_or_is_not_there_is_refused);
    tcase_add_loop_test(tc, the_figures_of_a_group_decide_what_it_sends, 0, 2);
    tcase_add_loop_test(tc, ranks_with_other_figures_are_named_to_all, 0, 2);
}
KEEL_TEST_MAIN("transport costs", cases, 60)
