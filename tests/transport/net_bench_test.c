/* net_bench_test.c - the figures of keel net bench are those of nccl-tests, and its page holds what it was
 * given. */
#include "harness.h"
#include "net_bench.h"

#include <keel/file.h>
#include <keel/memory.h>
#include <string.h>
#include <unistd.h>

/* PERFORMANCE.md of nccl-tests. */
START_TEST(bus_bandwidth_has_the_factors_of_nccl_tests)
{
    static const struct {
        uint32_t kind;
        double of_four, of_one;
    } wanted[] = {{KEEL_ALL_REDUCE, 1.5, 0},  {KEEL_REDUCE_SCATTER, 0.75, 0},
                  {KEEL_ALL_GATHER, 0.75, 0}, {KEEL_ALL_TO_ALL, 0.75, 0},
                  {KEEL_GATHER, 0.75, 0},     {KEEL_SCATTER, 0.75, 0},
                  {KEEL_BROADCAST, 1, 1},     {KEEL_REDUCE, 1, 1},
                  {KEEL_SEND, 1, 1}};
    for (size_t k = 0; k < sizeof wanted / sizeof wanted[0]; k++) {
        ck_assert(keel_net_bench_bus_factor(wanted[k].kind, 4) == wanted[k].of_four);
        ck_assert(keel_net_bench_bus_factor(wanted[k].kind, 1) == wanted[k].of_one);
    }
}
END_TEST

START_TEST(percentiles_are_by_nearest_rank)
{
    uint64_t samples[200], total = 0;
    struct keel_net_bench_case it = {.kind = KEEL_ALL_REDUCE, .bytes = 1000000, .iterations = 50};
    struct keel_net_bench_row row;
    for (uint64_t k = 0; k < 200; k++) {
        samples[k] = (200 - k) * 1000; /* 200 us down to 1 us */
        total += samples[k];
    }
    keel_net_bench_sum_up(&it, 4, samples, 200, total, 50 * 6000000, &row);
    ck_assert(row.p50_us == 100 && row.p90_us == 180 && row.p99_us == 198 && row.max_us == 200);
    ck_assert(row.mean_us == 100.5);
    ck_assert(row.algorithm_gbs == 1000000 / 100.5 / 1e3);
    ck_assert(row.bus_gbs == row.algorithm_gbs * 1.5);
    ck_assert(row.sent_bytes == 6000000);
    keel_net_bench_sum_up(&it, 4, samples, 1, samples[0], 0, &row);
    ck_assert(row.p50_us == 1 && row.p99_us == 1 && row.max_us == 1);
    it.iterations = 0; /* what an algorithm cannot do has no samples */
    keel_net_bench_sum_up(&it, 4, samples, 0, 0, 0, &row);
    ck_assert(row.mean_us == 0 && row.bus_gbs == 0);
}
END_TEST

static uint32_t count_of(const char *text, const char *word)
{
    uint32_t count = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        count++;
    return count;
}

START_TEST(the_page_has_a_curve_for_each_way_and_a_line_for_each_row)
{
    struct keel_net_bench_row rows[12];
    char path[] = "/tmp/keel-page-XXXXXX", *text;
    size_t bytes;
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    for (uint32_t k = 0; k < 12; k++) /* three ways, four sizes */
        rows[k] = (struct keel_net_bench_row){.it = {.kind = KEEL_ALL_REDUCE,
                                                     .algorithm = KEEL_ALGORITHM_RING + k / 4,
                                                     .iterations = k == 11 ? 0 : 5, /* one was not done */
                                                     .bytes = UINT64_C(8) << (8 * (k % 4))},
                                              .p50_us = 10 * (k % 4 + 1),
                                              .mean_us = 10 * (k % 4 + 1),
                                              .bus_gbs = 0.001 * (k + 1)};
    ck_ok(keel_net_bench_page(path, rows, 12, 4, "shared"));
    ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
    ck_assert_uint_eq(count_of(text, "<polyline"), 2 * 3);
    ck_assert_uint_eq(count_of(text, "<tr>"), 1 + 11);
    ck_assert_uint_eq(count_of(text, "nan"), 0);
    ck_assert_uint_eq(count_of(text, "128 MiB"), 2); /* the largest size, in both plots */
    keel_free(text);
    unlink(path);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, bus_bandwidth_has_the_factors_of_nccl_tests);
    tcase_add_test(tc, percentiles_are_by_nearest_rank);
    tcase_add_test(tc, the_page_has_a_curve_for_each_way_and_a_line_for_each_row);
}

KEEL_TEST_MAIN("net bench", cases, 30)
