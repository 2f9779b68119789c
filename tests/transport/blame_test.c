/* blame_test.c - who is at fault: whoever gives up first says so to the others, all the dead are named, and a
 * revocation is nobody's fault.
 *
 * Only events count here: a rank with a long deadline that returns TIMEOUT, or another rank's name, is wrong.
 * It mostly waits. */
#include "ranks.h"

#include <keel/thread.h>

enum { RANKS = 5, VICTIM = 2, SECOND = 4, COUNT = 4096 };

static const uint16_t one_each[RANKS] = {0, 1, 2, 3, 4};

/* ---- a deadline passes ---- */

static const struct {
    enum keel_collective_kind kind;
    enum keel_algorithm algorithm;
    enum keel_order order;
} ways[] = {{KEEL_ALL_REDUCE, KEEL_ALGORITHM_FLAT, KEEL_ORDER_EXACT},
            {KEEL_ALL_REDUCE, KEEL_ALGORITHM_DIRECT, KEEL_ORDER_EXACT},
            {KEEL_ALL_REDUCE, KEEL_ALGORITHM_TREE, KEEL_ORDER_EXACT},
            {KEEL_ALL_REDUCE, KEEL_ALGORITHM_RING, KEEL_ORDER_NATIVE},
            {KEEL_ALL_REDUCE, KEEL_ALGORITHM_HALVING, KEEL_ORDER_NATIVE},
            {KEEL_ALL_REDUCE, KEEL_ALGORITHM_BRUCK, KEEL_ORDER_EXACT},
            {KEEL_ALL_GATHER, KEEL_ALGORITHM_RING, KEEL_ORDER_EXACT},
            {KEEL_ALL_TO_ALL, KEEL_ALGORITHM_PAIRWISE, KEEL_ORDER_EXACT}};
enum { WAYS = sizeof ways / sizeof ways[0], PAIRWISE = WAYS - 1 };

static enum keel_status run_way(struct keel_group *group, uint32_t way, uint64_t sequence,
                                uint64_t deadline_ns)
{
    static float part[RANKS * COUNT], result[RANKS * COUNT];
    const void *parts[] = {part};
    const struct keel_collective what = {.kind = ways[way].kind,
                                         .sequence = sequence,
                                         .order = ways[way].order,
                                         .algorithm = ways[way].algorithm,
                                         .count = COUNT,
                                         .parts = parts,
                                         .part_count = 1,
                                         .result = result};
    return keel_group_run(group, &what, deadline_ns);
}

/* seed: the way, and whether the victim is stopped or lives and does not begin. */
static int impatient_body(struct rank *me)
{
    static const uint32_t firsts[] = {0, 1, 3, 4};
    uint32_t way = (uint32_t)me->seed / 2, first = firsts[me->seed % 4], lost = RANKS;
    struct keel_group *group = rank_group(me, 1, me->rank_count, one_each);
    rank_ok(me, run_way(group, PAIRWISE, 1, in_seconds(20))); /* connects all */
    rank_say(me, 'r');
    rank_hear(me);
    if (me->rank == VICTIM)
        rank_hear(me);
    enum keel_status status = run_way(group, way, 2, in_seconds(me->rank == first ? 2 : 60));
    rank_check(me, status == (me->rank == first ? KEEL_TIMEOUT : KEEL_PEER_LOST));
    rank_check(me, keel_group_lost(group, &lost) && lost == VICTIM);
    keel_group_close(group);
    return 0;
}

static void survivors_end(struct ranks *ranks)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (rank != VICTIM)
            waitid(P_PID, (id_t)ranks->pids[rank], &(siginfo_t){0}, WEXITED | WNOWAIT);
    kill(ranks->pids[VICTIM], SIGKILL);
    ranks_end(ranks, VICTIM);
}

START_TEST(whom_the_first_to_give_up_names_all_name)
{
    struct ranks ranks;
    ranks_start(&ranks, RANKS, (uint64_t)_i, NULL, impatient_body);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks_listen(&ranks, rank);
    if (_i % 2 == 0)
        kill(ranks.pids[VICTIM], SIGSTOP);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks_tell(&ranks, rank, 'g');
    survivors_end(&ranks);
}
END_TEST

/* ---- a survivor is silent too, for a moment ---- */

enum { PAUSED = 0, PATIENT = 1 };

static void sleep_ms(uint64_t ms)
{
    keel_sleep_until_ns(keel_deadline_after_ns(ms * KEEL_NS_PER_MS));
}

/* By halving rank 1 talks to ranks 0 and 3, which wait for the victim. Rank 1 gives up while rank 0 is
 * stopped for a moment. seed: the victim is stopped, or lives and does not begin. */
static int paused_body(struct rank *me)
{
    static float part[COUNT], result[COUNT];
    const void *parts[] = {part};
    const struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                         .sequence = 2,
                                         .order = KEEL_ORDER_NATIVE,
                                         .algorithm = KEEL_ALGORITHM_HALVING,
                                         .count = COUNT,
                                         .parts = parts,
                                         .part_count = 1,
                                         .result = result};
    struct keel_operation *operation = NULL;
    uint32_t lost = RANKS;
    struct keel_group *group = rank_group(me, 1, me->rank_count, one_each);
    rank_ok(me, run_way(group, PAIRWISE, 1, in_seconds(20)));
    rank_say(me, 'r');
    rank_hear(me);
    if (me->rank == VICTIM)
        rank_hear(me);
    rank_ok(me, keel_group_begin(group, &what, &operation));
    if (me->rank == PATIENT) {
        sleep_ms(3000);
        rank_say(me, 's'); /* rank 0 is stopped, and goes on at the next */
        rank_hear(me);
        sleep_ms(500);
    }
    enum keel_status status = keel_operation_wait(operation, in_seconds(me->rank == PATIENT ? 0 : 60));
    rank_check(me, status == (me->rank == PATIENT ? KEEL_TIMEOUT : KEEL_PEER_LOST));
    rank_check(me, keel_group_lost(group, &lost) && lost == VICTIM);
    rank_check(me, keel_group_failed(group, &lost, 1) == 1);
    if (me->rank == PATIENT)
        rank_say(me, 's');
    keel_group_close(group);
    return 0;
}

START_TEST(a_survivor_that_pauses_is_not_named)
{
    struct ranks ranks;
    ranks_start(&ranks, RANKS, (uint64_t)_i, NULL, paused_body);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks_listen(&ranks, rank);
    if (_i == 0)
        kill(ranks.pids[VICTIM], SIGSTOP);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks_tell(&ranks, rank, 'g');
    ranks_listen(&ranks, PATIENT);
    kill(ranks.pids[PAUSED], SIGSTOP);
    ranks_tell(&ranks, PATIENT, 's');
    ranks_listen(&ranks, PATIENT);
    kill(ranks.pids[PAUSED], SIGCONT);
    survivors_end(&ranks);
}
END_TEST

/* ---- a chain: nobody but the last talks to the one at fault ---- */

static int chain_body(struct rank *me)
{
    uint8_t byte = 0;
    uint32_t lost = RANKS;
    struct keel_operation *operation = NULL;
    struct keel_group *group = rank_group(me, 1, me->rank_count, one_each);
    rank_ok(me, barrier(group, 1, in_seconds(20)));
    rank_say(me, 'r');
    rank_hear(me);
    if (me->rank == 0)
        rank_hear(me);
    rank_ok(me, receive_begin(group, 2, me->rank - 1, &byte, 1, &operation));
    uint64_t deadline_ns = keel_deadline_after_ns((me->rank == RANKS - 1 ? 4 : 6) * KEEL_NS_PER_S);
    enum keel_status status = keel_operation_wait(operation, deadline_ns);
    rank_check(me, status == KEEL_TIMEOUT || (status == KEEL_PEER_LOST && me->rank < RANKS - 1));
    rank_check(me, keel_group_lost(group, &lost) && lost == 0);
    keel_group_close(group);
    return 0;
}

START_TEST(the_end_of_a_chain_names_its_beginning)
{
    struct ranks ranks;
    ranks_start(&ranks, RANKS, 0, NULL, chain_body);
    ranks_together(&ranks);
    for (uint32_t rank = 1; rank < RANKS; rank++)
        waitid(P_PID, (id_t)ranks.pids[rank], &(siginfo_t){0}, WEXITED | WNOWAIT);
    kill(ranks.pids[0], SIGKILL);
    ranks_end(&ranks, 0);
}
END_TEST

/* ---- two at once ---- */

static bool both_named(const struct keel_group *group)
{
    uint32_t failed[RANKS], count = keel_group_failed(group, failed, RANKS);
    return count == 2 && failed[0] + failed[1] == VICTIM + SECOND && failed[0] != failed[1] &&
           (failed[0] == VICTIM || failed[0] == SECOND);
}

/* seed 0: they are killed; 1: stopped, and rank 0 gives up first. */
static int both_body(struct rank *me)
{
    bool stopped = me->seed == 1, first = stopped && me->rank == 0;
    struct keel_group *group = rank_group(me, 1, me->rank_count, one_each);
    rank_ok(me, barrier(group, 1, in_seconds(20)));
    rank_say(me, 'r');
    rank_hear(me);
    enum keel_status status = barrier(group, 2, in_seconds(first ? 1 : 60));
    rank_check(me, status == (first ? KEEL_TIMEOUT : KEEL_PEER_LOST));
    while (!stopped && !both_named(group)) /* one of them is always the first */
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    rank_check(me, both_named(group));
    if (!stopped) {
        rank_say(me, 'd'); /* none hears it from one that has left */
        rank_hear(me);
    }
    keel_group_close(group);
    return 0;
}

static bool lives(uint32_t rank)
{
    return rank != VICTIM && rank != SECOND;
}

START_TEST(of_two_that_fail_together_both_are_named)
{
    struct ranks ranks;
    int sign = _i == 0 ? SIGKILL : SIGSTOP;
    ranks_start(&ranks, RANKS, (uint64_t)_i, NULL, both_body);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks_listen(&ranks, rank);
    kill(ranks.pids[VICTIM], sign);
    kill(ranks.pids[SECOND], sign);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (lives(rank))
            ranks_tell(&ranks, rank, 'g');
    for (uint32_t rank = 0; _i == 0 && rank < RANKS; rank++)
        if (lives(rank))
            ranks_listen(&ranks, rank);
    for (uint32_t rank = 0; _i == 0 && rank < RANKS; rank++)
        if (lives(rank))
            ranks_tell(&ranks, rank, 'c');
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        int status = 0;
        if (!lives(rank))
            kill(ranks.pids[rank], SIGKILL);
        ck_assert_int_eq(waitpid(ranks.pids[rank], &status, 0), ranks.pids[rank]);
        ck_assert_msg(lives(rank) ? status == 0 : WIFSIGNALED(status), "rank %u: status 0x%x", rank,
                      (unsigned)status);
    }
}
END_TEST

/* ---- revoked ---- */

/* Rank 0 revokes and does not close; rank 4 talks to rank 3 alone. seed: of a child. */
static int revoked_body(struct rank *me)
{
    uint8_t byte = 0;
    uint32_t lost;
    struct keel_operation *operation = NULL;
    struct keel_group *whole = rank_group(me, 1, me->rank_count, one_each), *group = whole;
    if (me->seed == 1)
        rank_ok(me, keel_group_split(whole, 7, 0, me->rank, in_seconds(20), &group));
    rank_ok(me, barrier(group, 1, in_seconds(20)));
    rank_say(me, 'r');
    rank_hear(me);
    if (me->rank == 0) {
        keel_group_revoke(group);
        rank_check(me, barrier(group, 2, in_seconds(60)) == KEEL_REVOKED);
    } else if (me->rank < 4) {
        rank_check(me, barrier(group, 2, in_seconds(60)) == KEEL_REVOKED);
    } else {
        /* the revocation may be there before the receive begins */
        enum keel_status status = receive_begin(group, 2, 3, &byte, 1, &operation);
        rank_check(me, (status == KEEL_OK ? keel_operation_wait(operation, in_seconds(60)) : status) ==
                           KEEL_REVOKED);
    }
    rank_check(me, !keel_group_lost(group, &lost) && !keel_group_lost(whole, &lost));
    rank_say(me, 'd');
    rank_hear(me); /* so that nobody hears it from one that closes */
    if (group != whole) {
        keel_group_close(group);
        rank_ok(me, barrier(whole, 9, in_seconds(20))); /* its parent goes on */
    }
    keel_group_close(whole);
    return 0;
}

START_TEST(a_revocation_reaches_all_at_once_and_blames_nobody)
{
    struct ranks ranks;
    ranks_start(&ranks, RANKS, (uint64_t)_i, NULL, revoked_body);
    ranks_together(&ranks);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* Rank 0 revokes before rank 1 has ever connected. */
static int late_body(struct rank *me)
{
    uint32_t lost;
    if (me->rank == 1)
        rank_hear(me);
    struct keel_group *group = rank_group(me, 1, me->rank_count, one_each);
    if (me->rank == 0) {
        keel_group_revoke(group);
        rank_say(me, 'r');
        rank_hear(me);
    } else {
        rank_check(me, barrier(group, 1, in_seconds(60)) == KEEL_REVOKED);
        rank_check(me, !keel_group_lost(group, &lost));
        rank_say(me, 'd');
    }
    keel_group_close(group);
    return 0;
}

START_TEST(who_connects_to_a_revoked_group_hears_of_it)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, late_body);
    ranks_listen(&ranks, 0);
    ranks_tell(&ranks, 1, 'g');
    ranks_listen(&ranks, 1);
    ranks_tell(&ranks, 0, 'c');
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, whom_the_first_to_give_up_names_all_name, 0, 2 * WAYS);
    tcase_add_loop_test(tc, a_survivor_that_pauses_is_not_named, 0, 2);
    tcase_add_test(tc, the_end_of_a_chain_names_its_beginning);
    tcase_add_loop_test(tc, of_two_that_fail_together_both_are_named, 0, 2);
    tcase_add_loop_test(tc, a_revocation_reaches_all_at_once_and_blames_nobody, 0, 2);
    tcase_add_test(tc, who_connects_to_a_revoked_group_hears_of_it);
}
KEEL_TEST_MAIN("transport blame", cases, 120)
