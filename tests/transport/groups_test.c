/* groups_test.c - groups split off from groups, and ranks that disagree about an operation. */
#include "ranks.h"

#include <keel/memory.h>
#include <keel/thread.h>

static struct keel_group *all_ranks(struct rank *me, uint64_t epoch)
{
    const uint16_t own[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    return rank_group(me, epoch, me->rank_count, own);
}

static enum keel_status add_up(struct keel_group *group, uint64_t sequence, const int32_t *mine, int32_t *sum,
                               uint64_t count, struct keel_operation **out)
{
    const void *parts[] = {mine};
    struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                   .sequence = sequence,
                                   .element = KEEL_ELEMENT_I32,
                                   .count = count,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = sum};
    return keel_group_begin(group, &what, out);
}

static int32_t sum_of(struct rank *me, struct keel_group *group, uint64_t sequence, int32_t mine)
{
    int32_t sum = -1;
    struct keel_operation *operation;
    rank_ok(me, add_up(group, sequence, &mine, &sum, 1, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    return sum;
}

/* ---- split --------------------------------------------------------------------------------------------- */

/* Rows and columns of a grid, three wide, both at work at once, and the whole group too. */
static int grid_body(struct rank *me)
{
    enum { WIDE = 3, COUNT = 30011 };
    struct keel_group *whole = all_ranks(me, 1), *row, *column, *back;
    uint32_t x = me->rank % WIDE, y = me->rank / WIDE, rows = me->rank_count / WIDE;
    rank_ok(me, keel_group_split(whole, 1, y, x, in_seconds(20), &row));
    rank_ok(me, keel_group_split(whole, 2, x, y, in_seconds(20), &column));
    rank_check(me, keel_group_rank_count(row) == WIDE && keel_group_rank(row) == x);
    rank_check(me, keel_group_rank_count(column) == rows && keel_group_rank(column) == y);
    for (uint64_t sequence = 10; sequence < 40; sequence++) { /* the same numbers mean different operations */
        static int32_t mine[COUNT], sums[3][COUNT];
        struct keel_operation *operations[3];
        struct keel_group *groups[3] = {whole, row, column};
        for (uint32_t k = 0; k < COUNT; k++)
            mine[k] = (int32_t)(me->rank * 100 + k % 7);
        uint64_t count = sequence % 2 == 0 ? COUNT : 3;
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t which = (k + me->rank) % 3; /* everybody in an order of his own */
            rank_ok(me, add_up(groups[which], sequence, mine, sums[which], count, &operations[which]));
        }
        for (uint32_t k = 0; k < 3; k++)
            rank_ok(me, keel_operation_wait(operations[k], in_seconds(20)));
        int32_t in_all = 0, in_row = 0, in_column = 0;
        for (uint32_t rank = 0; rank < me->rank_count; rank++) {
            in_all += (int32_t)rank * 100;
            in_row += rank / WIDE == y ? (int32_t)rank * 100 : 0;
            in_column += rank % WIDE == x ? (int32_t)rank * 100 : 0;
        }
        int32_t n = (int32_t)me->rank_count;
        for (uint32_t k = 0; k < count; k++)
            rank_check(me, sums[0][k] == in_all + n * (int32_t)(k % 7) &&
                               sums[1][k] == in_row + WIDE * (int32_t)(k % 7) &&
                               sums[2][k] == in_column + (int32_t)rows * (int32_t)(k % 7));
    }
    /* Against the key's order, and a split of a split: everybody for himself. */
    rank_ok(me, keel_group_split(row, 50, 7, WIDE - x, in_seconds(20), &back));
    rank_check(me, keel_group_rank(back) == WIDE - 1 - x);
    rank_check(me, sum_of(me, back, 1, (int32_t)x) == 3);
    struct keel_group *alone;
    rank_ok(me, keel_group_split(back, 9, x, 0, in_seconds(20), &alone));
    rank_check(me, keel_group_rank_count(alone) == 1 && sum_of(me, alone, 1, 42) == 42);
    keel_group_close(alone);
    keel_group_close(back);
    keel_group_close(row);
    rank_check(me, sum_of(me, column, 99, 1) == (int32_t)rows); /* others go on */
    keel_group_close(column);
    rank_check(me, sum_of(me, whole, 99, 1) == (int32_t)me->rank_count);
    keel_group_close(whole);
    return 0;
}

START_TEST(groups_split_off_work_side_by_side_on_the_same_connections)
{
    struct ranks ranks;
    ranks_start(&ranks, (uint32_t)_i * 3, 1, NULL, grid_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* A child is closed while a rank still sends; what it lent is not read any more, and the whole group goes on.
 */
static int closed_child_body(struct rank *me)
{
    enum { COUNT = 1 << 20 };
    struct keel_group *whole = all_ranks(me, 1), *child;
    uint64_t live = keel_memory_stats().live_bytes;
    for (uint64_t round = 0; round < 20; round++) {
        int32_t *mine = calloc(COUNT, sizeof *mine), *sums = calloc(COUNT, sizeof *sums);
        struct keel_operation *operation;
        rank_ok(me, keel_group_split(whole, 2 * round, 0, me->rank, in_seconds(20), &child));
        if (me->rank != 1 || round % 2 == 0)
            rank_ok(me, add_up(child, 1, mine, sums, COUNT, &operation));
        keel_group_close(child);
        free(mine);
        free(sums);
        rank_check(me, sum_of(me, whole, 2 * round + 1, 1) == (int32_t)me->rank_count);
    }
    for (uint64_t deadline = in_seconds(5); /* a connection that was one too many stays for two seconds */
         keel_memory_stats().live_bytes >= live + 4000000 && keel_remaining_ns(deadline) > 0;)
        keel_sleep_until_ns(keel_deadline_after_ns(20 * KEEL_NS_PER_MS));
    rank_check(me, keel_memory_stats().live_bytes < live + 4000000);
    keel_group_close(whole);
    return 0;
}

START_TEST(a_group_that_was_split_off_can_be_closed_in_the_middle_of_a_sum)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 1, NULL, closed_child_body);
    ranks_end(&ranks, -1);
}
END_TEST

static void *wait_for_it(void *argument)
{
    struct keel_operation **operation = argument;
    enum keel_status status = keel_operation_wait(*operation, in_seconds(20));
    if (status == KEEL_OK)
        *operation = NULL;
    return NULL;
}

/* While one thread waits in the whole group, and so owns progress, another closes a child. */
static int close_beside_body(struct rank *me)
{
    struct keel_group *whole = all_ranks(me, 1), *child;
    struct keel_operation *operation;
    struct keel_thread thread;
    uint8_t byte = 0;
    rank_ok(me, keel_group_split(whole, 1, 0, 0, in_seconds(20), &child));
    if (me->rank == 0) {
        rank_ok(me, receive_begin(whole, 7, 1, &byte, 1, &operation));
        rank_ok(me, keel_thread_create(&thread, "waiter", wait_for_it, &operation));
        keel_sleep_until_ns(keel_deadline_after_ns(50 * KEEL_NS_PER_MS));
    }
    uint64_t limit_ns = in_seconds(5);
    keel_group_close(child);
    rank_check(me, keel_now_ns() < limit_ns);
    rank_say(me, 'c');
    rank_hear(me);
    if (me->rank == 1) {
        byte = 42;
        rank_ok(me, send_begin(whole, 7, 0, &byte, 1, &operation));
        rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    } else {
        keel_thread_join(&thread);
        rank_check(me, operation == NULL && byte == 42);
    }
    keel_group_close(whole);
    return 0;
}

START_TEST(a_child_closes_at_once_while_another_thread_waits_in_the_whole_group)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, close_beside_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* The whole is closed first, as by a caller that cleans up after an error. */
static int parent_first_body(struct rank *me)
{
    uint64_t live = keel_memory_stats().live_blocks;
    struct keel_group *whole = all_ranks(me, 1), *child, *grandchild;
    struct keel_operation *operation;
    int32_t mine = 1, sum;
    uint32_t lost;
    rank_ok(me, keel_group_split(whole, 1, 0, 0, in_seconds(20), &child));
    rank_ok(me, keel_group_split(child, 1, 0, 0, in_seconds(20), &grandchild));
    rank_check(me, sum_of(me, grandchild, 1, 1) == (int32_t)me->rank_count);
    if (me->rank == 0)
        rank_ok(me, add_up(child, 2, &mine, &sum, 1, &operation));
    keel_group_close(whole);
    keel_group_revoke(child);
    rank_check(me, add_up(child, 3, &mine, &sum, 1, &operation) == KEEL_REVOKED);
    rank_check(me, keel_group_split(grandchild, 4, 0, 0, in_seconds(20), &whole) == KEEL_REVOKED);
    rank_check(me, !keel_group_lost(child, &lost));
    keel_group_close(child);
    keel_group_close(grandchild);
    rank_check(me, keel_memory_stats().live_blocks < live + 100);
    return 0;
}

START_TEST(a_child_may_be_closed_after_what_it_was_split_from)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 1, NULL, parent_first_body);
    ranks_end(&ranks, -1);
}
END_TEST

static int revoked_child_body(struct rank *me)
{
    struct keel_group *whole = all_ranks(me, 1), *child;
    struct keel_operation *operation;
    int32_t mine = 1, sum;
    rank_ok(me, keel_group_split(whole, 1, 0, 0, in_seconds(20), &child));
    if (me->rank == 0) {
        rank_ok(me, add_up(child, 1, &mine, &sum, 1, &operation));
        keel_group_revoke(child);
        rank_check(me, keel_operation_wait(operation, in_seconds(20)) == KEEL_REVOKED);
        rank_check(me, add_up(child, 2, &mine, &sum, 1, &operation) == KEEL_REVOKED);
    }
    rank_check(me, sum_of(me, whole, 2, 1) == (int32_t)me->rank_count);
    rank_say(me, 's'); /* a revocation ends the others' sum, too */
    rank_hear(me);
    keel_group_revoke(whole);
    rank_check(me, add_up(child, 3, &mine, &sum, 1, &operation) == KEEL_REVOKED);
    keel_group_close(child);
    keel_group_close(whole);
    return 0;
}

START_TEST(revoking_a_child_leaves_the_whole_and_revoking_the_whole_ends_the_child)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 1, NULL, revoked_child_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

enum { VICTIM = 3 };

/* Ranks 0 and 2 are even and never had to do with the dead one's child. */
static int lost_child_body(struct rank *me)
{
    struct keel_group *whole = all_ranks(me, 1), *child;
    struct keel_operation *operation;
    uint32_t lost = 99;
    int32_t mine = 1, sum;
    rank_ok(me, keel_group_split(whole, 1, me->rank % 2, 0, in_seconds(20), &child));
    rank_say(me, 'r');
    rank_hear(me);
    if (me->rank == VICTIM)
        keel_sleep_until_ns(in_seconds(60));
    enum keel_status status = add_up(whole, 2, &mine, &sum, 1, &operation);
    if (status == KEEL_OK)
        status = keel_operation_wait(operation, in_seconds(20));
    rank_check(me, status == KEEL_PEER_LOST && keel_group_lost(whole, &lost) && lost == VICTIM);
    if (me->rank % 2 == 1) {
        status = add_up(child, 2, &mine, &sum, 1, &operation);
        if (status == KEEL_OK)
            status = keel_operation_wait(operation, in_seconds(20));
        rank_check(me, status == KEEL_PEER_LOST && keel_group_lost(child, &lost) && lost == VICTIM / 2);
    } else {
        rank_check(me, sum_of(me, child, 2, 1) == 2 && !keel_group_lost(child, &lost));
    }
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(child);
    keel_group_close(whole);
    return 0;
}

START_TEST(a_dead_rank_takes_only_the_groups_that_it_was_in)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, 1, NULL, lost_child_body);
    ranks_together(&ranks);
    kill(ranks.pids[VICTIM], SIGKILL);
    for (uint32_t rank = 0; rank < VICTIM; rank++)
        ck_assert_int_eq(ranks_listen(&ranks, rank), 'd');
    for (uint32_t rank = 0; rank < VICTIM; rank++)
        ranks_tell(&ranks, rank, 'c');
    ranks_end(&ranks, VICTIM);
}
END_TEST

/* ---- disagreement -------------------------------------------------------------------------------------- */

struct change {
    const char *word; /* in the message of the rank that hears of it */
    void (*make)(struct keel_collective *what);
};

static void other_kind(struct keel_collective *what)
{
    what->kind = KEEL_BARRIER;
}
static void other_element(struct keel_collective *what)
{
    what->element = KEEL_ELEMENT_I32;
}
static void other_reduction(struct keel_collective *what)
{
    what->reduction = KEEL_MAX;
}
static void other_order(struct keel_collective *what)
{
    what->order = KEEL_ORDER_NATIVE;
}
static void other_count(struct keel_collective *what)
{
    what->count--;
}
static void other_algorithm(struct keel_collective *what)
{
    what->algorithm = KEEL_ALGORITHM_RING;
    what->order = KEEL_ORDER_NATIVE;
}

static const struct change changes[] = {{"barrier", other_kind},     {"i32", other_element},
                                        {"max", other_reduction},    {"native", other_order},
                                        {"count 9999", other_count}, {"native", other_algorithm}};

/* Rank 2 means something else. Everybody is told, and who; also who begins long after the others. */
static int disagree_body(struct rank *me)
{
    static float mine[10000], sum[10000];
    for (uint32_t c = 0; c < sizeof changes / sizeof changes[0]; c++) {
        struct keel_group *group = all_ranks(me, c + 1);
        const void *parts[] = {mine};
        struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                       .sequence = 5,
                                       .element = KEEL_ELEMENT_F32,
                                       .algorithm = c == 5 ? KEEL_ALGORITHM_TREE : KEEL_ALGORITHM_AUTO,
                                       .count = 10000,
                                       .parts = parts,
                                       .part_count = 1,
                                       .result = sum};
        if (me->rank == 2)
            changes[c].make(&what);
        if ((me->rank + c) % me->rank_count == 0)
            keel_sleep_until_ns(keel_deadline_after_ns(100 * KEEL_NS_PER_MS));
        rank_check(me, keel_group_run(group, &what, in_seconds(20)) == KEEL_MISMATCH);
        rank_check(me, strstr(keel_detail(), "rank 2") != NULL);
        rank_check(me, strstr(keel_detail(), changes[c].word) != NULL);
        rank_say(me, 'd');
        rank_hear(me);
        keel_group_close(group);
    }
    return 0;
}

START_TEST(ranks_that_disagree_are_told_who_and_what_all_of_them)
{
    struct ranks ranks;
    ranks_start(&ranks, 5, 1, NULL, disagree_body);
    for (uint32_t c = 0; c < sizeof changes / sizeof changes[0]; c++)
        ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* What only a pair can know: how much goes between the two. */
static int uneven_body(struct rank *me)
{
    struct keel_group *group = all_ranks(me, 1);
    uint8_t out[100] = {0}, in[100] = {0};
    uint64_t give[RANKS_MAX] = {3, 3, 3}, take[RANKS_MAX] = {3, 3, 3};
    const void *parts[] = {out};
    if (me->rank == 0)
        give[1] = 4;
    struct keel_collective what = {.kind = KEEL_ALL_TO_ALL_V,
                                   .sequence = 5,
                                   .element = KEEL_ELEMENT_U8,
                                   .counts_in = give,
                                   .counts_out = take,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = in};
    enum keel_status status = keel_group_run(group, &what, in_seconds(20));
    if (me->rank == 2) { /* has all it wants, or has heard of it */
        rank_check(me, status == KEEL_OK || status == KEEL_MISMATCH);
    } else {
        rank_check(me, status == KEEL_MISMATCH);
        rank_check(me, strstr(keel_detail(), "rank 0") != NULL && strstr(keel_detail(), "rank 1") != NULL);
        rank_check(me,
                   strstr(keel_detail(), "4 bytes") != NULL && strstr(keel_detail(), "3 to take") != NULL);
    }
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

START_TEST(a_pair_that_disagrees_about_its_bytes_is_named)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 1, NULL, uneven_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- what cannot be ------------------------------------------------------------------------------------ */

static int wrong_body(struct rank *me)
{
    struct keel_group *group = all_ranks(me, 1);
    float mine[16] = {0}, sum[16];
    const void *parts[] = {mine, mine};
    struct keel_operation *operation;
    const struct keel_collective good = {.kind = KEEL_ALL_REDUCE,
                                         .sequence = 1,
                                         .element = KEEL_ELEMENT_F32,
                                         .count = 16,
                                         .parts = parts,
                                         .part_count = 1,
                                         .result = sum};
    struct keel_collective what = good;
    what.kind = KEEL_COLLECTIVE_COUNT;
    rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_INVALID);
    what = good;
    what.element = KEEL_ELEMENT_COUNT;
    rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_INVALID);
    what = good;
    what.part_count = 2;
    rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_INVALID);
    what = good;
    what.result = NULL;
    rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_INVALID);
    what = good;
    what.result = mine + 8;
    rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_INVALID);
    what = good;
    what.count = UINT64_MAX / 2;
    rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_LIMIT);
    what = good;
    what.kind = KEEL_BROADCAST;
    what.root = 9;
    rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_INVALID);
    what = good;
    what.kind = KEEL_ALL_GATHER_V;
    rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_INVALID);
    what = good;
    what.algorithm = KEEL_ALGORITHM_PAIRWISE;
    rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_UNSUPPORTED);
    rank_ok(me, keel_group_run(group, &good, in_seconds(20)));
    keel_group_close(group);
    return 0;
}

START_TEST(what_cannot_be_is_refused_and_what_can_still_works)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, wrong_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* Operations of one plan again and again take no memory but the first time. */
static int steady_body(struct rank *me)
{
    struct keel_group *group = all_ranks(me, 1);
    static int32_t mine[50000], sum[50000];
    struct keel_operation *operation;
    uint64_t allocations = 0;
    for (uint64_t sequence = 0; sequence < 200; sequence++) {
        rank_ok(me, add_up(group, sequence, mine, sum, sequence % 2 == 0 ? 50000 : 2, &operation));
        rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
        if (sequence == 99)
            allocations = keel_memory_stats().allocations;
    }
    /* What comes before it is begun here is kept, and so is the other ranks' doing. */
    rank_check(me, keel_memory_stats().allocations - allocations <= 100 * (me->rank_count - 1));
    keel_group_close(group);
    return 0;
}

START_TEST(operations_in_a_row_take_no_memory_of_their_own)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 1, NULL, steady_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- members ------------------------------------------------------------------------------------------- */

/* Ranks 0 and 1 are in both groups {0, 1, 2} and {0, 1, 3}; 0 opens the one, 1 the other. */
static int other_members_body(struct rank *me)
{
    static const uint32_t lists[2][3] = {{0, 1, 2}, {0, 1, 3}};
    const uint16_t own[3] = {0, 1, 2};
    uint32_t which = me->rank % 2, lost = 99;
    int32_t mine = 1 << me->rank, sum = -1;
    struct keel_operation *operation;
    struct keel_group *group = rank_group_of(me, 1, lists[which], 3, 3, own);
    rank_ok(me, add_up(group, 1, &mine, &sum, 1, &operation));
    enum keel_status status = keel_operation_wait(operation, in_seconds(20));
    rank_check(me, status == KEEL_MISMATCH || status == KEEL_PEER_LOST); /* the latter: a third one told */
    rank_check(me, keel_group_lost(group, &lost) && lost == 1 - which);
    if (status == KEEL_MISMATCH)
        rank_check(me, strstr(keel_detail(), which == 0 ? "rank 1 at " : "rank 0 at ") != NULL &&
                           strstr(keel_detail(), "with other members, addresses or shards") != NULL);
    rank_say(me, 'd');
    rank_hear(me); /* nobody is gone before all have found out */
    keel_group_close(group);
    rank_check(me, sum_of(me, group = all_ranks(me, 2), 1, mine) == 15);
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

/* The same members; each has another map of the shards. */
static int other_shards_body(struct rank *me)
{
    const uint16_t maps[2][2] = {{0, 1}, {1, 0}};
    uint32_t lost = 99;
    int32_t mine = 1, sum;
    struct keel_operation *operation;
    struct keel_group *group = rank_group(me, 1, 2, maps[me->rank]);
    rank_ok(me, add_up(group, 1, &mine, &sum, 1, &operation));
    rank_check(me, keel_operation_wait(operation, in_seconds(20)) == KEEL_MISMATCH);
    rank_check(me, keel_group_lost(group, &lost) && lost == 1 - me->rank);
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

static void over(int loop, const uint8_t *keys[4])
{
    static const uint8_t key[32] = "the key of all four";
    setenv("KEEL_SHARED_MEMORY", loop / 2 == 0 ? "0" : "1", 1);
    for (uint32_t rank = 0; rank < 4; rank++)
        keys[rank] = loop % 2 == 0 ? key : NULL;
}

/* _i: over TCP with a key, without; in shared memory with a key, without. */
START_TEST(ranks_that_open_an_epoch_with_other_members_refuse_each_other_by_name)
{
    struct ranks ranks;
    const uint8_t *keys[4];
    over(_i, keys);
    ranks_start(&ranks, 4, 1, keys, other_members_body);
    ranks_together(&ranks);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

START_TEST(ranks_that_open_an_epoch_with_other_shards_refuse_each_other_by_name)
{
    struct ranks ranks;
    const uint8_t *keys[4];
    over(_i, keys);
    ranks_start(&ranks, 2, 1, keys, other_shards_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, groups_split_off_work_side_by_side_on_the_same_connections, 1, 4);
    tcase_add_test(tc, a_group_that_was_split_off_can_be_closed_in_the_middle_of_a_sum);
    tcase_add_test(tc, a_child_closes_at_once_while_another_thread_waits_in_the_whole_group);
    tcase_add_test(tc, a_child_may_be_closed_after_what_it_was_split_from);
    tcase_add_test(tc, revoking_a_child_leaves_the_whole_and_revoking_the_whole_ends_the_child);
    tcase_add_test(tc, a_dead_rank_takes_only_the_groups_that_it_was_in);
    tcase_add_test(tc, ranks_that_disagree_are_told_who_and_what_all_of_them);
    tcase_add_test(tc, a_pair_that_disagrees_about_its_bytes_is_named);
    tcase_add_test(tc, what_cannot_be_is_refused_and_what_can_still_works);
    tcase_add_loop_test(tc, ranks_that_open_an_epoch_with_other_members_refuse_each_other_by_name, 0, 4);
    tcase_add_loop_test(tc, ranks_that_open_an_epoch_with_other_shards_refuse_each_other_by_name, 0, 4);
    tcase_add_test(tc, operations_in_a_row_take_no_memory_of_their_own);
}
KEEL_TEST_MAIN("transport groups", cases, 120)
