/* node_event_test.c - what an event costs with 4,096 ranks is within a few times of what it costs with 64: in
 * basic blocks that were executed, and in bytes that were sent, which are the same on every machine. */
#include "harness.h"
#include "node_event.h"

enum { FEW = 64, TIMES = 4 };

START_TEST(an_event_costs_with_4096_ranks_at_most_four_times_what_it_costs_with_64)
{
    const enum event_kind kind = (enum event_kind)_i;
    event_open();
    const struct event_cost few = event_measure(FEW, kind), many = event_measure(EVENT_RANKS_MAX, kind);
    event_close();
    ck_assert_msg(few.blocks > 0, "%s: no block is counted", event_names[kind]);
    ck_assert_msg(many.blocks <= TIMES * few.blocks, "%s: %.1f blocks with 64 ranks, %.1f with 4,096",
                  event_names[kind], (double)few.blocks / 1000, (double)many.blocks / 1000);
    if (kind == EVENT_CHANGE || kind == EVENT_AGENT_VIEW)
        ck_assert_uint_le(many.bytes * EVENT_RANKS_MAX / 1000, 1 << 20); /* of one node, for a change */
    else
        ck_assert_msg(many.bytes <= TIMES * few.bytes, "%s: %.1f bytes with 64 ranks, %.1f with 4,096",
                      event_names[kind], (double)few.bytes / 1000, (double)many.bytes / 1000);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, an_event_costs_with_4096_ranks_at_most_four_times_what_it_costs_with_64, 0,
                        EVENT_COUNT);
}

KEEL_TEST_MAIN("node_event", cases, 120)
