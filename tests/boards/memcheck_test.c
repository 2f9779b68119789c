/* memcheck_test.c - the memory check finds what is wrong with memory, and nothing in memory that is right. */
#include "harness.h"
#include "memcheck.h"
#include <keel/clock.h>
#include <keel/health.h>
#include <keel/memory.h>
#include <string.h>

enum { WORDS = 5000, ITEMS = 64, SPAN = 3 };

static uint32_t words[WORDS], report[ITEMS][4], passes_seen;

/* One pass of the kernel's host form over `words`. */
static uint32_t pass(uint32_t expect, uint32_t write, uint32_t down)
{
    uint64_t base = UINT64_C(1) << 33;
    uint32_t count = WORDS, seed = 7, errors = 0, span = SPAN;
    void *arguments[] = {words, report, &base, &count, &expect, &seed, &write, &seed, &down, &span};
    struct keel_range range = {.global = {ITEMS, 1, 1}, .local = {ITEMS, 1, 1}};
    keel_memcheck_module.kernels[0].host(arguments, &range);
    for (uint32_t i = 0; i < ITEMS; i++)
        errors += report[i][0];
    return errors;
}

START_TEST(a_bit_that_flips_is_found_in_every_pattern)
{
    for (uint32_t pattern = 1; pattern <= 4; pattern++) {
        pass(0, pattern, 0);
        ck_assert_uint_eq(pass(pattern, 0, pattern % 2), 0);
        words[4321] ^= UINT32_C(1) << 17;
        ck_assert_uint_eq(pass(pattern, pattern | 8, 1), 1);
        const uint32_t *found = report[4321 / SPAN % ITEMS];
        ck_assert_uint_eq(found[1], 4321);
        ck_assert_uint_eq(found[2] ^ found[3], UINT32_C(1) << 17);
        ck_assert_uint_eq(pass(pattern | 8, 0, 0), 0);
    }
}
END_TEST

START_TEST(words_that_share_a_cell_are_found_by_their_addresses)
{
    pass(0, 1, 0);
    words[128] = words[1152]; /* the line of address 1024 is stuck: the later word is in both */
    ck_assert_uint_eq(pass(1, 0, 0), 1);
    ck_assert_uint_eq(report[128 / SPAN % ITEMS][1], 128);
}
END_TEST

static void count_pass(void *context, uint32_t done, uint32_t total, const char *name)
{
    (void)context;
    ck_assert_uint_lt(done, total);
    ck_assert_str_ne(name, "");
    passes_seen++;
}

static void check_device(const char *selector)
{
    struct keel_device *device;
    ck_ok(keel_device_open(selector, NULL, &device));
    struct keel_memcheck_options options = {.bytes = (3 << 20) + (1 << 17),
                                            .piece_bytes = 1 << 20,
                                            .deadline_ns = keel_deadline_after_ns(60 * KEEL_NS_PER_S),
                                            .progress = count_pass};
    struct keel_memcheck_result result;
    passes_seen = 0;
    ck_ok(keel_memcheck_run(device, &options, &result));
    ck_assert_uint_eq(result.faults, 0);
    ck_assert_uint_eq(result.pieces, 4);
    ck_assert_uint_eq(result.tested_bytes, result.wanted_bytes);
    ck_assert(!result.by_copies);
    ck_assert(result.bytes_per_s >= result.slowest_bytes_per_s && result.slowest_bytes_per_s > 0);
    ck_assert_uint_gt(passes_seen, 64);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes, 0);
    keel_device_close(device);
}

START_TEST(memory_that_is_right_passes_on_the_host)
{
    check_device("host");
}
END_TEST

START_TEST(memory_that_is_right_passes_on_an_opencl_device)
{
    check_device("pocl");
}
END_TEST

START_TEST(a_deadline_that_is_over_ends_the_check)
{
    struct keel_device *device;
    ck_ok(keel_device_open("pocl", NULL, &device));
    struct keel_memcheck_options options = {.bytes = 64 << 20, .deadline_ns = keel_now_ns()};
    struct keel_memcheck_result result;
    ck_status(keel_memcheck_run(device, &options, &result), KEEL_TIMEOUT);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes, 0);
    keel_device_close(device);
}
END_TEST

START_TEST(what_a_hung_board_may_yet_write_is_kept)
{
    struct keel_device *device;
    struct keel_device_options hung_soon = {.hung_after_ns = KEEL_NS_PER_MS};
    ck_ok(keel_device_open("host", &hung_soon, &device));
    ck_ok(keel_device_inject(device, "hang:read=1"));
    struct keel_memcheck_options options = {.bytes = 1 << 20,
                                            .deadline_ns = keel_deadline_after_ns(KEEL_NS_PER_S)};
    struct keel_memcheck_result result;
    uint64_t blocks = keel_memory_stats().live_blocks;
    ck_status(keel_memcheck_run(device, &options, &result), KEEL_TIMEOUT);
    ck_assert_uint_eq(keel_memory_stats().live_blocks, blocks + 2); /* the check and its report */
    keel_device_close(device);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_a_hung_board_may_yet_write_is_kept);
    tcase_add_test(tc, a_bit_that_flips_is_found_in_every_pattern);
    tcase_add_test(tc, words_that_share_a_cell_are_found_by_their_addresses);
    tcase_add_test(tc, memory_that_is_right_passes_on_the_host);
    tcase_add_test(tc, memory_that_is_right_passes_on_an_opencl_device);
    tcase_add_test(tc, a_deadline_that_is_over_ends_the_check);
}

KEEL_TEST_MAIN("memory check", cases, 60)
