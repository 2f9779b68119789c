/* farewell_test.c - a rank that has its results may close everything and exit at once: what it has sent
 * before still reaches a rank that was not running meanwhile. */
#include "ranks.h"

enum { COUNT = 3 << 18, STOPPED_MS = 700 };

static const struct way {
    const char *shares, *seals;
} ways[] = {{"1", NULL}, {"0", NULL}, {"0", "1"}};
enum { WAY_COUNT = sizeof ways / sizeof ways[0] };

static void take(const struct way *way)
{
    ck_assert_int_eq(setenv("KEEL_SHARED_MEMORY", way->shares, 1), 0);
    if (way->seals != NULL)
        ck_assert_int_eq(setenv("KEEL_TEST_SEALED", way->seals, 1), 0);
}

static uint8_t byte_at(uint32_t k)
{
    return (uint8_t)(k * 31 >> k % 3);
}

/* Rank 1 has said that it has room before it is stopped. */
static int hand_over(struct rank *me)
{
    static const uint16_t map[] = {0};
    struct keel_group *group = rank_group(me, 1, 1, map);
    uint8_t *data = malloc(COUNT);
    struct keel_operation *operation = NULL;
    rank_check(me, data != NULL);
    rank_ok(me, barrier(group, 1, in_seconds(20)));
    if (me->rank == 1) {
        rank_ok(me, receive_begin(group, 2, 0, data, COUNT, &operation));
        keel_sleep_until_ns(keel_deadline_after_ns(50 * KEEL_NS_PER_MS));
        rank_say(me, 'b');
    } else {
        for (uint32_t k = 0; k < COUNT; k++)
            data[k] = byte_at(k);
        rank_hear(me);
        rank_ok(me, send_begin(group, 2, 1, data, COUNT, &operation));
    }
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    for (uint32_t k = 0; me->rank == 1 && k < COUNT; k++)
        rank_check(me, data[k] == byte_at(k));
    keel_group_close(group);
    free(data);
    return 0;
}

START_TEST(what_a_leaving_rank_has_sent_arrives_after_it_is_gone)
{
    struct ranks ranks;
    take(&ways[_i]);
    ranks_start(&ranks, 2, 0, NULL, hand_over);
    ranks_listen(&ranks, 1);
    kill(ranks.pids[1], SIGSTOP);
    ranks_tell(&ranks, 0, 'g');
    keel_sleep_until_ns(keel_deadline_after_ns(STOPPED_MS * KEEL_NS_PER_MS));
    kill(ranks.pids[1], SIGCONT);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, what_a_leaving_rank_has_sent_arrives_after_it_is_gone, 0, WAY_COUNT);
}
KEEL_TEST_MAIN("transport farewell", cases, 60)
