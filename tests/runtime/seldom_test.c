/* seldom_test.c - what is due all the time is said at growing intervals; what was away is news. */
#include "harness.h"
#include "seldom.h"

#include <keel/clock.h>

static const uint64_t beat_ns = 50 * KEEL_NS_PER_MS;

/* Due each beat for so long: how often it is said. */
static uint32_t count_said(struct keel_seldom *seldom, uint64_t *now_ns, uint64_t long_ns)
{
    const uint64_t end_ns = *now_ns + long_ns;
    uint32_t said = 0;
    for (; *now_ns < end_ns; *now_ns += beat_ns)
        said += keel_seldom_says(seldom, *now_ns) ? 1 : 0;
    return said;
}

START_TEST(what_is_due_each_beat_is_said_at_growing_intervals)
{
    struct keel_seldom seldom = {0};
    uint64_t now_ns = KEEL_NS_PER_S;
    ck_assert(keel_seldom_says(&seldom, now_ns));
    ck_assert(!keel_seldom_says(&seldom, now_ns + KEEL_NS_PER_S - 1));
    ck_assert(keel_seldom_says(&seldom, now_ns + KEEL_NS_PER_S));
    ck_assert(!keel_seldom_says(&seldom, now_ns + 3 * KEEL_NS_PER_S - 1));
    ck_assert(keel_seldom_says(&seldom, now_ns + 3 * KEEL_NS_PER_S));
    seldom = (struct keel_seldom){0};
    ck_assert_uint_eq(count_said(&seldom, &now_ns, 60 * KEEL_NS_PER_S), 6); /* at 0, 1, 3, 7, 15, 31 s */
    ck_assert_uint_le(count_said(&seldom, &now_ns, 86400 * KEEL_NS_PER_S), 150);
}
END_TEST

START_TEST(it_is_said_for_as_long_as_it_lasts)
{
    struct keel_seldom seldom = {0};
    uint64_t now_ns = KEEL_NS_PER_S;
    (void)count_said(&seldom, &now_ns, 3600 * KEEL_NS_PER_S);
    for (int i = 0; i < 10; i++)
        ck_assert_uint_ge(count_said(&seldom, &now_ns, 601 * KEEL_NS_PER_S), 1);
}
END_TEST

START_TEST(what_was_away_for_a_minute_is_news)
{
    struct keel_seldom seldom = {0};
    uint64_t now_ns = KEEL_NS_PER_S;
    (void)count_said(&seldom, &now_ns, 3600 * KEEL_NS_PER_S);
    const uint64_t last_ns = now_ns - beat_ns;
    ck_assert(!keel_seldom_says(&seldom, last_ns + 59 * KEEL_NS_PER_S));
    ck_assert(keel_seldom_says(&seldom, last_ns + 119 * KEEL_NS_PER_S));
    ck_assert(!keel_seldom_says(&seldom, last_ns + 119 * KEEL_NS_PER_S + beat_ns));
    ck_assert(keel_seldom_says(&seldom, last_ns + 120 * KEEL_NS_PER_S));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_is_due_each_beat_is_said_at_growing_intervals);
    tcase_add_test(tc, it_is_said_for_as_long_as_it_lasts);
    tcase_add_test(tc, what_was_away_for_a_minute_is_news);
}

KEEL_TEST_MAIN("seldom", cases, 60)
