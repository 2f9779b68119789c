/* failures_test.c - traces and rates of failures: what is read, drawn and refused. */
#include "failures.h"
#include "harness.h"

#include <keel/bits.h>
#include <keel/memory.h>
#include <math.h>
#include <string.h>

#define S KEEL_FAILURE_SECOND_NS
enum { LLAMA_NODES = 2048, LLAMA_DAYS = 54, LLAMA_COUNT = 419 };

static void refused(const char *text, const char *words)
{
    struct keel_failures failures;
    ck_status(keel_failures_parse(text, "my.failures", 16, &failures), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), words) != NULL, "%s, wanted: %s", keel_detail(), words);
}

START_TEST(lines_that_say_nothing_right_are_refused_by_number_and_next_move)
{
    refused("1h 3 gpu 5m\n", "my.failures:1: unknown kind `gpu`; kinds are process, hang, node");
    refused("# first\n2h 3 node 5m\n1h 3 node 5m\n",
            "my.failures:3: time `1h`; it is before that of the line above");
    refused("1h 16 node 5m\n",
            "my.failures:1: node 16 is beyond the 16 nodes of the run, which count from 0; give --nodes");
    refused("1h 3-16 node 5m\n", "node 16 is beyond");
    refused("1h 7-3 node 5m\n", "my.failures:1: node `7-3`; a number from 0 on is wanted, or two");
    refused("1h -3 node 5m\n", "node `-3`");
    refused("1h 3- node 5m\n", "node `3-`");
    refused("-1h 3 node 5m\n", "time `-1h`; seconds are wanted, or a unit");
    refused("1x 3 node 5m\n", "time `1x`");
    refused("1. 3 node 5m\n", "time `1.`");
    refused("1h 3 node\n", "TIME NODE KIND REPAIR is wanted");
    refused("1h 3 node 5m soon\n", "word `soon`");
    refused("1h 3 node 5m factor=2\n", "factor= is of slow alone");
    refused("1h 3 slow 5m\n", "kind `slow`; say how slow: factor=1.34");
    refused("1h 3 slow 5m factor=0.5\n", "factor `0.5`; a number of 1 to 1000");
    refused("rate -3 node 5m\n", "my.failures:1: rate `-3`; a number of 0 to 1e+09 is wanted");
    refused("rate 3/0 node 5m\n", "thousand node-days `0`");
    refused("rate nan node 5m\n", "rate `nan`");
    refused("rate 3 node 5m mean=4m\n", "mean of `5m`; the mean is the median or more");
    refused("rate 3 node 5m shape=0\n", "shape `0`");
    refused("rate 3 node 5m every=2\n", "mean=, nodes=, shape= and factor= may stand here");
    refused("rate 3 node\n", "rate R KIND REPAIR is wanted");
    refused("1h 1 node 1 1 1 1 1 1 1\n", "that is more than a line has");
    struct keel_failures failures;
    ck_status(keel_failures_read("-3", 16, &failures), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "a rate of 0 to"));
    ck_status(keel_failures_read("no-such", 16, &failures), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(
        strstr(keel_detail(), "--failures no-such: neither a file nor llama3, lanl or gray"));
}
END_TEST

START_TEST(times_are_exact_to_the_nanosecond)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } right[] = {{"0", 0},
                 {"90", 90 * S},
                 {"0.000000001", 1},
                 {"1.5h", 5400 * S},
                 {"2.000000001s", 2 * S + 1},
                 {"250ms", S / 4},
                 {"7d", 7 * KEEL_FAILURE_DAY_NS},
                 {"0.1m", 6 * S}};
    static const char *const wrong[] = {"",    "s",  ".5",  "1.",           "1.h",
                                        "1e3", "+1", "1 h", "99999999999d", "36526d"};
    uint64_t ns;
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        ck_ok(keel_failure_time(right[i].text, S, &ns));
        ck_assert_msg(ns == right[i].ns, "%s", right[i].text);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_int_eq(keel_failure_time(wrong[i], S, &ns), KEEL_INVALID);
}
END_TEST

START_TEST(the_table_of_llama_3_has_419_interruptions_in_54_days)
{
    struct keel_failures mix;
    ck_ok(keel_failures_read("llama3", LLAMA_NODES, &mix));
    double expected = 0, of_kind[KEEL_FAILURE_KIND_COUNT] = {0};
    const double node_ns = (double)LLAMA_NODES * LLAMA_DAYS * (double)KEEL_FAILURE_DAY_NS;
    for (uint32_t i = 0; i < mix.rate_count; i++) {
        expected += mix.rates[i].per_node_ns * node_ns;
        of_kind[mix.rates[i].kind] += mix.rates[i].per_node_ns * node_ns;
    }
    ck_assert_uint_eq(mix.rate_count, 18);
    ck_assert_double_eq_tol(expected, LLAMA_COUNT, 1e-6);
    ck_assert_double_eq_tol(of_kind[KEEL_FAILURE_CORRUPT], 6, 1e-6);
    ck_assert_double_eq_tol(of_kind[KEEL_FAILURE_HANG], 7, 1e-6);
    /* And what is drawn has as many: the mean of 400 seeds, within five times its standard error. */
    uint64_t drawn = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct keel_failures trace;
        ck_ok(keel_failures_draw(&mix, LLAMA_NODES, LLAMA_DAYS * KEEL_FAILURE_DAY_NS, seed, &trace));
        drawn += trace.count;
        for (size_t i = 1; i < trace.count; i++)
            ck_assert(trace.at[i].at_ns >= trace.at[i - 1].at_ns && trace.at[i].first < LLAMA_NODES);
        keel_failures_fini(&trace);
    }
    ck_assert_double_eq_tol((double)drawn / 400, LLAMA_COUNT, 5 * sqrt(LLAMA_COUNT / 400.0));
    keel_failures_fini(&mix);
}
END_TEST

/* Mean gap, and what exponential gaps and repairs have in the median. */
START_TEST(gaps_and_repairs_are_distributed_as_the_rate_says)
{
    struct keel_failures mix, trace;
    const uint64_t days = 20000;
    uint64_t below = 0;
    double mean_repair = 0;
    ck_ok(keel_failures_parse("rate 100 node 10m mean=20m shape=0.7\n", "x", 100, &mix));
    ck_ok(keel_failures_draw(&mix, 100, days * KEEL_FAILURE_DAY_NS, 5, &trace));
    /* 10 a day; the deviation of Weibull's gaps of shape 0.7 is 1.46 times their mean. */
    ck_assert_double_eq_tol((double)trace.count, 10.0 * (double)days, 5 * 1.46 * sqrt(10.0 * (double)days));
    for (size_t i = 0; i < trace.count; i++) {
        below += trace.at[i].repair_ns < 600 * S;
        mean_repair += (double)trace.at[i].repair_ns / (double)trace.count;
    }
    ck_assert_double_eq_tol((double)below / (double)trace.count, 0.5, 0.006);
    ck_assert_double_eq_tol(mean_repair, 1200e9, 25e9);
    uint64_t short_gaps = 0; /* shorter than a tenth of the mean: 1 - exp(-(0.1 G(1 + 1/k))^k) = 0.211 */
    for (size_t i = 1; i < trace.count; i++)
        short_gaps += trace.at[i].at_ns - trace.at[i - 1].at_ns < KEEL_FAILURE_DAY_NS / 100;
    ck_assert_double_eq_tol((double)short_gaps / (double)trace.count, 0.211, 0.006);
    keel_failures_fini(&trace);
    keel_failures_fini(&mix);
}
END_TEST

/* A trace that is written reads back the same; a seed is one trace for ever. */
START_TEST(a_seed_is_one_trace_and_reads_back_as_it_was_written)
{
    struct keel_failures mix, trace, again;
    char *text;
    size_t bytes;
    ck_ok(keel_failures_read("gray", 4096, &mix));
    ck_ok(keel_failures_draw(&mix, 4096, 54 * KEEL_FAILURE_DAY_NS, 1, &trace));
    FILE *out = open_memstream(&text, &bytes);
    keel_failures_write(&trace, out);
    ck_assert_int_eq(fclose(out), 0);
    ck_ok(keel_failures_parse(text, "again", 4096, &again));
    ck_assert_uint_eq(trace.count, again.count);
    for (size_t i = 0; i < trace.count; i++) {
        const struct keel_failure *a = &trace.at[i], *b = &again.at[i];
        ck_assert(a->at_ns == b->at_ns && a->repair_ns == b->repair_ns && a->first == b->first &&
                  a->count == b->count && a->kind == b->kind && a->factor_ppm == b->factor_ppm);
    }
    const uint64_t hash = keel_fnv1a(KEEL_FNV1A_BEGIN, text, bytes);
    ck_assert_msg(hash == UINT64_C(0x3924d66620ab0fad), "the trace of seed 1 is another: %llx",
                  (unsigned long long)hash);
    free(text);
    keel_failures_fini(&again);
    keel_failures_fini(&trace);
    keel_failures_fini(&mix);
}
END_TEST

START_TEST(more_failures_than_a_list_holds_are_refused)
{
    struct keel_failures mix, trace;
    ck_ok(keel_failures_read("1e9", 1000, &mix));
    ck_status(keel_failures_draw(&mix, 1000, KEEL_FAILURE_DAY_NS, 1, &trace), KEEL_LIMIT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "give a lower rate"));
    keel_failures_fini(&mix);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, lines_that_say_nothing_right_are_refused_by_number_and_next_move);
    tcase_add_test(tc, times_are_exact_to_the_nanosecond);
    tcase_add_test(tc, the_table_of_llama_3_has_419_interruptions_in_54_days);
    tcase_add_test(tc, gaps_and_repairs_are_distributed_as_the_rate_says);
    tcase_add_test(tc, a_seed_is_one_trace_and_reads_back_as_it_was_written);
    tcase_add_test(tc, more_failures_than_a_list_holds_are_refused);
}

KEEL_TEST_MAIN("failures", cases, 60)
