/* hang_watch_test.c - a device that hangs is noticed by its own measure, and one that is slow is not. Time is
 * the test's own: nothing here waits. */
#include "hang_watch.h"

#include "harness.h"
#include <keel/clock.h>

enum { MS = 1000000 };
static const uint64_t timeout_ns = 5 * KEEL_NS_PER_S, tick_ns = 500 * (uint64_t)MS;
static const uint64_t stall_ns = 600 * KEEL_NS_PER_S;

struct bench {
    struct keel_hang_watch watch;
    struct keel_hang hang;
    uint64_t now_ns;
};

static void set_up(struct bench *bench)
{
    bench->now_ns = 1;
    keel_hang_watch_init(&bench->watch, timeout_ns, stall_ns, tick_ns, bench->now_ns);
}

/* Ticks until something hangs or so long has passed. */
static bool pass(struct bench *bench, uint64_t ns)
{
    uint64_t end_ns = bench->now_ns + ns;
    while (bench->now_ns < end_ns) {
        bench->now_ns += end_ns - bench->now_ns < tick_ns ? end_ns - bench->now_ns : tick_ns;
        if (keel_hang_watch_tick(&bench->watch, bench->now_ns, &bench->hang))
            return true;
    }
    return false;
}

static void go_through(struct bench *bench, enum keel_hang_section section, uint64_t ns)
{
    keel_hang_enter(&bench->watch, section, bench->now_ns);
    ck_assert(!pass(bench, ns));
    keel_hang_leave(&bench->watch, section, bench->now_ns);
}

/* How long until the section that is entered now is said to hang. */
static uint64_t hang(struct bench *bench, enum keel_hang_section section)
{
    uint64_t since_ns = bench->now_ns;
    keel_hang_enter(&bench->watch, section, since_ns);
    ck_assert(pass(bench, 2 * stall_ns));
    ck_assert_int_eq(bench->hang.section, section);
    return bench->now_ns - since_ns;
}

START_TEST(a_hang_after_quick_steps_is_noticed_after_one_timeout)
{
    struct bench bench;
    set_up(&bench);
    go_through(&bench, KEEL_HANG_COMPUTE, 40 * MS);
    keel_hang_trust(&bench.watch, KEEL_HANG_COMPUTE);
    for (int i = 0; i < 100; i++)
        go_through(&bench, KEEL_HANG_COMPUTE, (uint64_t)(30 + i % 10) * MS);
    ck_assert_uint_le(hang(&bench, KEEL_HANG_COMPUTE), timeout_ns + 2 * tick_ns);
    ck_assert_uint_eq(bench.hang.limit_ns, timeout_ns);
    ck_assert_uint_eq(bench.hang.longest_ns, 40 * MS);
}
END_TEST

START_TEST(the_limit_grows_with_the_time_measured_and_ends_at_the_stall_limit)
{
    struct bench bench;
    set_up(&bench);
    keel_hang_trust(&bench.watch, KEEL_HANG_COMPUTE);
    go_through(&bench, KEEL_HANG_COMPUTE, 2 * KEEL_NS_PER_S);
    go_through(&bench, KEEL_HANG_COMPUTE, 39 * KEEL_NS_PER_S); /* a loaded machine: nearly twenty times */
    go_through(&bench, KEEL_HANG_COMPUTE, 500 * KEEL_NS_PER_S);
    ck_assert_uint_le(hang(&bench, KEEL_HANG_COMPUTE), stall_ns + 2 * tick_ns);
    ck_assert_uint_eq(bench.hang.limit_ns, stall_ns);
}
END_TEST

START_TEST(what_may_compile_has_time_as_the_warm_up_had)
{
    struct bench bench;
    set_up(&bench);
    go_through(&bench, KEEL_HANG_WARM, 20 * KEEL_NS_PER_S);
    go_through(&bench, KEEL_HANG_COMPUTE, 180 * KEEL_NS_PER_S);
    struct bench fresh;
    set_up(&fresh);
    go_through(&fresh, KEEL_HANG_WARM, 20 * KEEL_NS_PER_S);
    go_through(&fresh, KEEL_HANG_COMPUTE, 10 * MS); /* it was enqueued: nothing is known of its waits */
    keel_hang_expect(&fresh.watch, KEEL_HANG_COMPUTE, 100 * MS);
    (void)hang(&fresh, KEEL_HANG_COMPUTE);
    ck_assert_uint_eq(fresh.hang.limit_ns, 5 * timeout_ns + 8 * 20 * KEEL_NS_PER_S + 2 * KEEL_NS_PER_S);
    struct bench again;
    set_up(&again);
    go_through(&again, KEEL_HANG_COMPUTE, 10 * MS);
    keel_hang_trust(&again.watch, KEEL_HANG_COMPUTE);
    keel_hang_distrust(&again.watch, KEEL_HANG_COMPUTE);
    go_through(&again, KEEL_HANG_COMPUTE, 4 * timeout_ns);
    set_up(&again);
    ck_assert_uint_gt(hang(&again, KEEL_HANG_WARM), stall_ns);
}
END_TEST

/* The process was stopped, or the machine had no time for it: the thread that looks came late as well. */
START_TEST(time_in_which_nobody_looked_is_not_the_devices)
{
    struct bench bench;
    set_up(&bench);
    keel_hang_trust(&bench.watch, KEEL_HANG_COMPUTE);
    go_through(&bench, KEEL_HANG_COMPUTE, 40 * MS);
    keel_hang_enter(&bench.watch, KEEL_HANG_COMPUTE, bench.now_ns);
    ck_assert(!pass(&bench, 2 * tick_ns));
    bench.now_ns += 1000 * KEEL_NS_PER_S;
    ck_assert(!keel_hang_watch_tick(&bench.watch, bench.now_ns, &bench.hang));
    keel_hang_leave(&bench.watch, KEEL_HANG_COMPUTE, bench.now_ns);
    /* Nor is it measured: a hang is still noticed in seconds. */
    (void)hang(&bench, KEEL_HANG_COMPUTE);
    ck_assert_uint_le(bench.hang.limit_ns, KEEL_HANG_FACTOR * 10 * tick_ns);
}
END_TEST

START_TEST(sections_are_measured_each_for_itself)
{
    struct bench bench;
    set_up(&bench);
    go_through(&bench, KEEL_HANG_EVAL, 20 * KEEL_NS_PER_S);
    for (int i = 0; i < KEEL_HANG_SECTIONS; i++)
        keel_hang_trust(&bench.watch, (enum keel_hang_section)i);
    go_through(&bench, KEEL_HANG_UPDATE, 10 * MS);
    ck_assert_uint_le(hang(&bench, KEEL_HANG_UPDATE), timeout_ns + 2 * tick_ns);
    keel_hang_leave(NULL, KEEL_HANG_UPDATE, 0); /* nobody watches */
}
END_TEST

/* The first copy for a snapshot has a longer limit than the step that waits for it. */
START_TEST(what_hung_first_is_named_though_what_waits_for_it_is_over_its_limit)
{
    struct bench bench;
    set_up(&bench);
    go_through(&bench, KEEL_HANG_WARM, 40 * MS);
    keel_hang_trust(&bench.watch, KEEL_HANG_COMPUTE);
    go_through(&bench, KEEL_HANG_COMPUTE, 40 * MS);
    const uint64_t since_ns = bench.now_ns;
    keel_hang_enter(&bench.watch, KEEL_HANG_CAPTURE, since_ns);
    ck_assert(!pass(&bench, 100 * MS));
    keel_hang_enter(&bench.watch, KEEL_HANG_COMPUTE, bench.now_ns);
    ck_assert(pass(&bench, 2 * stall_ns));
    ck_assert_int_eq(bench.hang.section, KEEL_HANG_CAPTURE);
    ck_assert_uint_le(bench.now_ns - since_ns, timeout_ns + 4 * tick_ns);
    ck_assert_uint_gt(bench.hang.limit_ns, timeout_ns);
}
END_TEST

/* A copy may wait behind the kernels of the step. */
START_TEST(a_snapshots_copy_has_its_own_measure_and_at_least_the_time_of_the_step)
{
    struct bench bench;
    set_up(&bench);
    keel_hang_trust(&bench.watch, KEEL_HANG_CAPTURE);
    keel_hang_trust(&bench.watch, KEEL_HANG_COMPUTE);
    go_through(&bench, KEEL_HANG_CAPTURE, 10 * MS);
    go_through(&bench, KEEL_HANG_COMPUTE, 2 * KEEL_NS_PER_S);
    (void)hang(&bench, KEEL_HANG_CAPTURE);
    ck_assert_uint_eq(bench.hang.limit_ns, KEEL_HANG_FACTOR * 2 * KEEL_NS_PER_S);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_snapshots_copy_has_its_own_measure_and_at_least_the_time_of_the_step);
    tcase_add_test(tc, a_hang_after_quick_steps_is_noticed_after_one_timeout);
    tcase_add_test(tc, the_limit_grows_with_the_time_measured_and_ends_at_the_stall_limit);
    tcase_add_test(tc, what_may_compile_has_time_as_the_warm_up_had);
    tcase_add_test(tc, time_in_which_nobody_looked_is_not_the_devices);
    tcase_add_test(tc, sections_are_measured_each_for_itself);
    tcase_add_test(tc, what_hung_first_is_named_though_what_waits_for_it_is_over_its_limit);
}

KEEL_TEST_MAIN("hang_watch", cases, 60)
