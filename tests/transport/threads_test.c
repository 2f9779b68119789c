/* threads_test.c - several threads of a rank at once: operations of the whole group, groups split off and
 * closed beside them, and revocation while all of them wait. */
#include "group.h"
#include "ranks.h"

#include <keel/memory.h>
#include <keel/thread.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 200, WORDS = 5000, EPOCHS = 200 };

static struct keel_group *all_ranks(struct rank *me, uint64_t epoch)
{
    const uint16_t own[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    return rank_group(me, epoch, me->rank_count, own);
}

static enum keel_status begin_sum(struct keel_group *group, uint64_t sequence, const int32_t *mine,
                                  int32_t *sums, uint64_t count, struct keel_operation **out)
{
    const void *parts[] = {mine};
    struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                   .sequence = sequence,
                                   .element = KEEL_ELEMENT_I32,
                                   .count = count,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = sums};
    return keel_group_begin(group, &what, out);
}

static enum keel_status add_up(struct keel_group *group, uint64_t sequence, const int32_t *mine,
                               int32_t *sums, uint64_t count, uint64_t deadline_ns)
{
    struct keel_operation *operation;
    KEEL_TRY(begin_sum(group, sequence, mine, sums, count, &operation));
    return keel_operation_wait(operation, deadline_ns);
}

struct job {
    struct rank *me;
    struct keel_group *group;
    uint32_t number;
    struct keel_thread thread;
    struct keel_operation *operation;
    _Atomic bool returned;
    enum keel_status status;
    int32_t *mine, *sums; /* WORDS of each, of `work`; after a failure lent until the group is closed */
};

/* Sums of its own numbers, short and long in turns, until they are done or the group is over. */
static void *work(void *argument)
{
    struct job *job = argument;
    int32_t *mine = job->mine, *sums = job->sums;
    for (uint64_t round = 0; round < ROUNDS && job->status == KEEL_OK; round++) {
        uint64_t count = round % 3 == 0 ? WORDS : 1;
        for (uint64_t k = 0; k < count; k++)
            mine[k] = (int32_t)(k + round + job->number + job->me->rank);
        job->status = add_up(job->group, (round + 1) * 16 + job->number, mine, sums, count, in_seconds(60));
        int32_t ranks = (int32_t)job->me->rank_count;
        for (uint64_t k = 0; k < count && job->status == KEEL_OK; k++)
            rank_check(job->me,
                       sums[k] == ranks * (int32_t)(k + round + job->number) + ranks * (ranks - 1) / 2);
    }
    return NULL;
}

/* One splits off, works in and closes children meanwhile. With seed 1 the group is revoked in the middle. */
static int threads_body(struct rank *me)
{
    struct keel_group *whole = all_ranks(me, 1);
    struct job jobs[THREADS];
    for (uint32_t k = 0; k < THREADS; k++) {
        jobs[k] = (struct job){.me = me, .group = whole, .number = k};
        rank_ok(me, keel_alloc(WORDS, sizeof *jobs[k].mine, &jobs[k].mine));
        rank_ok(me, keel_alloc(WORDS, sizeof *jobs[k].sums, &jobs[k].sums));
        rank_ok(me, keel_thread_create(&jobs[k].thread, "work", work, &jobs[k]));
    }
    for (uint64_t round = 0; round < 20; round++) {
        struct keel_group *child;
        int32_t mine = 7, sum = 0;
        enum keel_status status = keel_group_split(whole, 16 * round + 15, 0, 0, in_seconds(60), &child);
        rank_check(me, status == KEEL_OK || (me->seed == 1 && status == KEEL_REVOKED));
        if (status != KEEL_OK)
            break;
        status = add_up(child, 1, &mine, &sum, 1, in_seconds(60));
        rank_check(me, (status == KEEL_OK && sum == 7 * (int32_t)me->rank_count) ||
                           (me->seed == 1 && status == KEEL_REVOKED));
        keel_group_close(child);
        if (me->seed == 1 && round == 3 + me->rank)
            keel_group_revoke(whole);
    }
    if (me->seed == 1) /* it may have been another rank's revocation that ended the loop */
        keel_group_revoke(whole);
    for (uint32_t k = 0; k < THREADS; k++) {
        keel_thread_join(&jobs[k].thread);
        rank_check(me, jobs[k].status == (me->seed == 1 ? KEEL_REVOKED : KEEL_OK));
    }
    keel_group_close(whole);
    for (uint32_t k = 0; k < THREADS; k++) {
        keel_free(jobs[k].mine);
        keel_free(jobs[k].sums);
    }
    return 0;
}

START_TEST(threads_of_a_rank_work_side_by_side)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, (uint64_t)_i, NULL, threads_body);
    ranks_end(&ranks, -1);
}
END_TEST

static void *wait_for_it(void *argument)
{
    struct job *job = argument;
    job->status = keel_operation_wait(job->operation, in_seconds(60)); /* the group may be gone then */
    atomic_store(&job->returned, true);
    return NULL;
}

static void sleep_us(uint64_t us)
{
    keel_sleep_until_ns(keel_deadline_after_ns(us * KEEL_NS_PER_US));
}

static bool waits(struct keel_group *group)
{
    keel_mutex_lock(&group->endpoint->lock);
    bool somebody = group->waiters > 0;
    keel_mutex_unlock(&group->endpoint->lock);
    return somebody;
}

/* Rank 0 closes its group about when another thread's wait ends, well or not. */
static int close_body(struct rank *me)
{
    for (uint64_t epoch = 1; epoch <= EPOCHS; epoch++) {
        struct keel_group *whole = all_ranks(me, epoch);
        struct job job = {.me = me};
        int32_t mine = 1, sum = 0;
        rank_check(me, add_up(whole, 1, &mine, &sum, 1, in_seconds(60)) == KEEL_OK);
        if (me->rank != 0)
            sleep_us(2000);
        rank_ok(me, begin_sum(whole, 2, &mine, &sum, 1, &job.operation));
        rank_ok(me, keel_thread_create(&job.thread, "wait", wait_for_it, &job));
        while (!waits(whole) && !atomic_load(&job.returned))
            sleep_us(10);
        sleep_us(me->rank == 0 ? 1000 + epoch * 37 % 1500 : 5000);
        keel_group_close(whole);
        keel_thread_join(&job.thread);
        rank_check(me,
                   job.status == KEEL_REVOKED || (job.status == KEEL_OK && sum == (int32_t)me->rank_count));
        rank_say(me, 'e');
        rank_hear(me);
    }
    return 0;
}

START_TEST(a_group_can_be_closed_while_another_thread_waits)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, close_body);
    for (uint32_t epoch = 1; epoch <= EPOCHS; epoch++)
        ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_group_can_be_closed_while_another_thread_waits);
    tcase_add_loop_test(tc, threads_of_a_rank_work_side_by_side, 0, 2);
}
KEEL_TEST_MAIN("transport threads", cases, 120)
