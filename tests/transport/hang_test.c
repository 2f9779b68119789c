/* hang_test.c - real operations that hang: whoever looks from outside, and the call that gives up, name the
 * rank, the operation and the segment. It mostly waits. */
#include "hang_analysis.h"
#include "ranks.h"

#include <keel/memory.h>
#include <keel/thread.h>
#include <sys/resource.h>

enum { COUNT = 4 << 20 };

static char directory[64];

static void enter(void)
{
    snprintf(directory, sizeof directory, "/tmp/keel-hang-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(setenv("KEEL_NET_DIR", directory, 1), 0);
}

static const uint16_t identity[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8};

static float part[COUNT], result[COUNT]; /* lent until the group is closed */

static enum keel_status sum(struct keel_group *group, uint64_t sequence, uint64_t count, uint64_t deadline_ns)
{
    const void *parts[] = {part};
    struct keel_collective it = {.kind = KEEL_ALL_REDUCE,
                                 .sequence = sequence,
                                 .algorithm = KEEL_ALGORITHM_RING,
                                 .count = count,
                                 .order = KEEL_ORDER_NATIVE,
                                 .parts = parts,
                                 .part_count = 1,
                                 .result = result};
    return keel_group_run(group, &it, deadline_ns);
}

/* Sums round a ring until it takes too long; then says so. With seed 1 rank 2 does only the first one. */
static int sum_until_timeout(struct rank *me)
{
    struct keel_group *group = rank_group(me, 1, me->rank_count, identity);
    enum keel_status status = sum(group, 1, 64, in_seconds(20));
    uint64_t sequence = 2;
    uint32_t lost = 9;
    rank_check(me, status == KEEL_OK);
    rank_say(me, 'r');
    if (me->seed == 1 && me->rank == 2) { /* never begins the next one */
        rank_hear(me);
    } else {
        while (status == KEEL_OK)
            status = sum(group, sequence++, me->seed == 1 ? 64 : COUNT, in_seconds(3));
        bool told = status == KEEL_PEER_LOST && keel_group_lost(group, &lost); /* by who gave up first */
        rank_check(me, status == KEEL_TIMEOUT || (told && (me->rank == 2 || lost == 2)));
        if (status == KEEL_TIMEOUT)
            rank_check(me, strstr(keel_detail(), " is still awaited: all-reduce ") != NULL &&
                               strstr(keel_detail(), "nothing new for") != NULL);
        if (status == KEEL_TIMEOUT && me->rank == 3) /* the one behind it in the ring */
            rank_check(me, strstr(keel_detail(), "of rank 2; begun ") != NULL);
    }
    keel_group_close(group);
    return 0;
}

/* True when everybody alive waits in the same operation; then rank 2 is to blame. */
static bool judge_once(enum keel_hang_analysis_state wanted)
{
    struct keel_recordings recordings;
    struct keel_hang_analysis who;
    ck_ok(keel_recordings_find(directory, &recordings));
    ck_ok(keel_hang_analysis_judge(&recordings, &who));
    bool all_wait = who.group_count == 1 && who.groups[0].waiting_count == 3;
    if (all_wait) {
        const struct keel_hang_analysis_group *group = &who.groups[0];
        char text[512];
        keel_hang_analysis_culprit_text(group, 2, text, sizeof text);
        ck_assert_msg(group->culprit_count >= 1 && group->culprits[0] == 2, "%s", text);
        ck_assert_msg(group->ranks[2].state == wanted, "%s", text);
        ck_assert_msg(group->ranks[2].waited_by == 3, "%s", text);
        ck_assert_uint_eq(group->operation->kind, KEEL_ALL_REDUCE);
    }
    keel_hang_analysis_free(&who);
    keel_recordings_free(&recordings);
    return all_wait;
}

enum { LOOKS_MAX = 100, LOOKS_A_STOP = 10 };

/* Looks until everybody alive waits. `stopped` (or 0) may have been stopped where the operation is over for
 * some, who wait in the next one then: it goes on for a moment and is stopped elsewhere. */
static void judge(enum keel_hang_analysis_state wanted, pid_t stopped)
{
    for (int look = 1; look <= LOOKS_MAX; look++) {
        keel_sleep_until_ns(keel_deadline_after_ns(50 * KEEL_NS_PER_MS));
        if (judge_once(wanted))
            return;
        if (stopped != 0 && look % LOOKS_A_STOP == 0) {
            kill(stopped, SIGCONT);
            keel_sleep_until_ns(keel_deadline_after_ns(50 * KEEL_NS_PER_MS));
            kill(stopped, SIGSTOP);
        }
    }
    ck_abort_msg("after five seconds not everybody waits");
}

START_TEST(a_rank_stopped_in_the_middle_is_named_from_outside_and_by_those_who_give_up)
{
    struct ranks ranks;
    enter();
    ranks_start(&ranks, 4, 0, NULL, sum_until_timeout);
    for (uint32_t rank = 0; rank < 4; rank++)
        ranks_listen(&ranks, rank);
    kill(ranks.pids[2], SIGSTOP);
    judge(KEEL_HANG_ANALYSIS_STOPPED, ranks.pids[2]);
    keel_sleep_until_ns(in_seconds(3));
    kill(ranks.pids[2], SIGCONT);
    ranks_end(&ranks, -1);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(a_rank_that_does_not_begin_is_named_from_outside_and_by_those_who_give_up)
{
    struct ranks ranks;
    enter();
    ranks_start(&ranks, 4, 1, NULL, sum_until_timeout);
    for (uint32_t rank = 0; rank < 4; rank++)
        ranks_listen(&ranks, rank);
    judge(KEEL_HANG_ANALYSIS_NOT_BEGUN, 0);
    keel_sleep_until_ns(in_seconds(3));
    ranks_tell(&ranks, 2, 'c');
    ranks_end(&ranks, -1);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* Rank 0 waits for two sums at once, which rank 1 does not begin before it is told. */
struct longer {
    struct keel_operation *operation;
    enum keel_status status;
};

static void *wait_long(void *argument)
{
    struct longer *it = argument;
    it->status = keel_operation_wait(it->operation, in_seconds(20));
    return NULL;
}

static int wait_twice(struct rank *me)
{
    static const float ones[64] = {1};
    static float sums[2][64];
    const float *parts[] = {ones};
    struct keel_group *group = rank_group(me, 1, me->rank_count, identity);
    struct keel_operation *operations[2];
    struct keel_thread thread;
    rank_ok(me, barrier(group, 1, in_seconds(20)));
    if (me->rank == 1)
        rank_hear(me);
    for (uint64_t k = 0; k < 2; k++)
        rank_ok(me, sum_begin(group, 2 + k, parts, 1, sums[k], 64, &operations[k]));
    if (me->rank == 0) {
        struct longer longer = {operations[0], KEEL_OK};
        rank_ok(me, keel_thread_create(&thread, "longer", wait_long, &longer));
        keel_sleep_until_ns(keel_deadline_after_ns(100 * KEEL_NS_PER_MS)); /* it drives */
        enum keel_status status =
            keel_operation_wait(operations[1], keel_deadline_after_ns(300 * KEEL_NS_PER_MS));
        rank_check(me, status == KEEL_TIMEOUT);
        rank_check(me, strstr(keel_detail(), "rank 1 is still awaited: all-reduce 3 ") != NULL);
        rank_check(me, strstr(keel_detail(), "wants the first message of rank 1; begun ") != NULL);
        rank_say(me, 's');
        keel_thread_join(&thread);
        rank_ok(me, longer.status);
    } else {
        rank_ok(me, keel_operation_wait(operations[0], in_seconds(20)));
        enum keel_status status = keel_operation_wait(operations[1], in_seconds(20));
        rank_check(me,
                   status == KEEL_OK || status == KEEL_REVOKED); /* which rank 0 has left by then, or not */
    }
    keel_group_close(group);
    return 0;
}

START_TEST(who_gives_up_while_another_thread_makes_progress_says_what_it_waits_for)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, wait_twice);
    ranks_listen(&ranks, 0);
    ranks_tell(&ranks, 1, 'b');
    ranks_end(&ranks, -1);
}
END_TEST

/* Dead: nobody waits any more, and what it did last is still there. */
START_TEST(of_a_killed_rank_the_recording_stays_and_of_the_others_none)
{
    struct ranks ranks;
    struct keel_recordings recordings;
    enter();
    ranks_start(&ranks, 4, 1, NULL, sum_until_timeout);
    for (uint32_t rank = 0; rank < 4; rank++)
        ranks_listen(&ranks, rank);
    for (uint32_t rank = 0; rank < 4; rank++) {
        int status;
        if (rank == 2)
            continue;
        kill(ranks.pids[rank], SIGSTOP);
        ck_assert_int_eq(waitpid(ranks.pids[rank], &status, WUNTRACED), ranks.pids[rank]);
    }
    kill(ranks.pids[2], SIGKILL);
    ck_assert_int_eq(waitpid(ranks.pids[2], NULL, 0), ranks.pids[2]);
    ck_ok(keel_recordings_find(directory, &recordings));
    ck_assert_uint_eq(recordings.count, 4);
    uint32_t dead = 0;
    for (uint32_t k = 0; k < 4; k++) {
        const struct keel_recording *it = recordings.at[k];
        if (it->life != KEEL_LIFE_DEAD)
            continue;
        dead++;
        ck_assert_uint_eq(it->record.header.pid, (uint32_t)ranks.pids[2]);
        uint64_t newest = it->record.header.event_total - 1;
        ck_assert_uint_eq(it->record.events[newest % KEEL_RECORD_EVENTS].what, KEEL_RECORD_ENDED);
        ck_assert_uint_eq(it->record.events[newest % KEEL_RECORD_EVENTS].sequence, 1);
    }
    ck_assert_uint_eq(dead, 1);
    keel_recordings_free(&recordings);
    for (uint32_t rank = 0; rank < 4; rank++)
        if (rank != 2) {
            kill(ranks.pids[rank], SIGKILL);
            ck_assert_int_eq(waitpid(ranks.pids[rank], NULL, 0), ranks.pids[rank]);
        }
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* One rank is late. Nobody, the late one's own thread included, may spend the time on waiting. */
static int wait_for_late(struct rank *me)
{
    struct keel_group *group = rank_group(me, 1, me->rank_count, identity);
    struct rusage before, after;
    rank_ok(me, sum(group, 1, COUNT, in_seconds(20)));
    getrusage(RUSAGE_SELF, &before);
    if (me->rank == 2)
        keel_sleep_until_ns(in_seconds(2));
    rank_ok(me, sum(group, 2, 64, in_seconds(20)));
    getrusage(RUSAGE_SELF, &after);
    long spent_ms =
        (after.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_utime.tv_sec - before.ru_stime.tv_sec) *
            1000 +
        (after.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_utime.tv_usec -
         before.ru_stime.tv_usec) /
            1000;
    rank_check(me, spent_ms < 100);
    keel_group_close(group);
    return 0;
}

START_TEST(while_one_is_late_all_sleep)
{
    struct ranks ranks;
    enter();
    ranks_start(&ranks, 4, 0, NULL, wait_for_late);
    ranks_end(&ranks, -1);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_rank_stopped_in_the_middle_is_named_from_outside_and_by_those_who_give_up);
    tcase_add_test(tc, a_rank_that_does_not_begin_is_named_from_outside_and_by_those_who_give_up);
    tcase_add_test(tc, who_gives_up_while_another_thread_makes_progress_says_what_it_waits_for);
    tcase_add_test(tc, while_one_is_late_all_sleep);
    tcase_add_test(tc, of_a_killed_rank_the_recording_stays_and_of_the_others_none);
}

KEEL_TEST_MAIN("hang", cases, 60)
