/* collectives_test.c - every operation, among real processes. */
#include "group.h"
#include "ranks.h"
#include "sums.h"

static void spread_shards(uint16_t *shard_rank, uint32_t shard_count, uint32_t rank_count, uint64_t *seed)
{
    for (uint32_t s = 0; s < shard_count; s++)
        shard_rank[s] = (uint16_t)(test_random(seed) % rank_count);
}

static void reduce_once(struct rank *me, struct keel_group *group, uint32_t shard_count,
                        const uint16_t *shard_rank, uint64_t sequence, uint64_t count)
{
    float *parts[64];
    uint32_t part_count = make_parts(shard_count, shard_rank, me->rank, count, parts);
    float *result = malloc((count + 1) * sizeof *result);
    struct keel_operation *operation = NULL;
    result[count] = 77.0f;
    rank_ok(me,
            sum_begin(group, sequence, (const float *const *)parts, part_count, result, count, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    rank_check(me, first_wrong(result, shard_count, count) == count);
    rank_check(me, result[count] == 77.0f);
    free_parts(parts, part_count);
    free(result);
}

static int sums_body(struct rank *me)
{
    const uint64_t counts[] = {0, 1, 3, 17, 4099, 65537};
    uint64_t seed = me->seed, epoch = 1, sequence = 1;
    const uint32_t shard_counts[] = {1, 2, 5, 8, 13};
    for (uint32_t k = 0; k < sizeof shard_counts / sizeof shard_counts[0]; k++) {
        uint16_t shard_rank[64];
        spread_shards(shard_rank, shard_counts[k], me->rank_count, &seed);
        struct keel_group *group = rank_group(me, epoch++, shard_counts[k], shard_rank);
        for (uint32_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            reduce_once(me, group, shard_counts[k], shard_rank, sequence++, counts[c]);
        keel_group_close(group);
    }
    return 0;
}

START_TEST(exact_sums_have_the_oracles_bits_for_any_placement)
{
    const uint32_t rank_counts[] = {1, 2, 3, 4, 5, 9};
    struct ranks ranks;
    ranks_start(&ranks, rank_counts[_i], (uint64_t)_i * 1000 + 7, NULL, sums_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* Sums and largest over ranks, of which some carry no shard, or several; over shards the same group sums as
 * ever. Averages are over ranks, too, and an exact sum has the bits of a map of one shard a rank. */
static void by_rank_once(struct rank *me, struct keel_group *group, uint64_t *sequence,
                         enum keel_algorithm algorithm, enum keel_order order)
{
    const int64_t mine = (int64_t)me->rank + 1, ranks = (int64_t)me->rank_count;
    const uint8_t byte = (uint8_t)(me->rank == me->rank_count / 2 ? 200 : me->rank);
    int64_t sum = 0;
    uint8_t most = 0;
    float *part[64], exact[18] = {0};
    uint16_t own[RANKS_MAX];
    struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                   .sequence = (*sequence)++,
                                   .element = KEEL_ELEMENT_I64,
                                   .order = order,
                                   .algorithm = algorithm,
                                   .count = 1,
                                   .parts = (const void *const[]){&mine},
                                   .part_count = 1,
                                   .result = &sum,
                                   .by_rank = true};
    rank_ok(me, keel_group_run(group, &what, in_seconds(20)));
    rank_check(me, sum == ranks * (ranks + 1) / 2);
    what.reduction = KEEL_AVERAGE;
    what.sequence = (*sequence)++;
    rank_ok(me, keel_group_run(group, &what, in_seconds(20)));
    rank_check(me, sum == ranks * (ranks + 1) / 2 / ranks);
    what = (struct keel_collective){.kind = KEEL_ALL_REDUCE,
                                    .sequence = (*sequence)++,
                                    .element = KEEL_ELEMENT_U8,
                                    .reduction = KEEL_MAX,
                                    .order = order,
                                    .algorithm = algorithm,
                                    .count = 1,
                                    .parts = (const void *const[]){&byte},
                                    .part_count = 1,
                                    .result = &most,
                                    .by_rank = true};
    rank_ok(me, keel_group_run(group, &what, in_seconds(20)));
    rank_check(me, most == 200);
    for (uint16_t r = 0; r < me->rank_count; r++)
        own[r] = r;
    const uint32_t parts = make_parts(me->rank_count, own, me->rank, 17, part);
    what = (struct keel_collective){.kind = KEEL_ALL_REDUCE,
                                    .sequence = (*sequence)++,
                                    .element = KEEL_ELEMENT_F32,
                                    .algorithm = algorithm,
                                    .count = 17,
                                    .parts = (const void *const *)part,
                                    .part_count = parts,
                                    .result = exact,
                                    .by_rank = true};
    rank_check(me, parts == 1);
    rank_ok(me, keel_group_run(group, &what, in_seconds(20)));
    rank_check(me, first_wrong(exact, me->rank_count, 17) == 17);
    free_parts(part, parts);
}

static int by_rank_body(struct rank *me)
{
    uint16_t shard_rank[] = {0, 0, 0, 1, 0};
    uint64_t sequence = 1;
    shard_rank[3] = (uint16_t)(me->rank_count - 1);
    struct keel_group *group = rank_group(me, 4, 5, shard_rank);
    const enum keel_algorithm algorithms[] = {KEEL_ALGORITHM_AUTO, KEEL_ALGORITHM_FLAT, KEEL_ALGORITHM_TREE,
                                              KEEL_ALGORITHM_DIRECT};
    for (uint32_t a = 0; a < sizeof algorithms / sizeof algorithms[0]; a++) {
        reduce_once(me, group, 5, shard_rank, sequence++, 17);
        by_rank_once(me, group, &sequence, algorithms[a], KEEL_ORDER_EXACT);
        by_rank_once(me, group, &sequence, algorithms[a], KEEL_ORDER_NATIVE);
    }
    keel_group_close(group);
    return 0;
}

START_TEST(reductions_over_ranks_have_a_part_of_each_whatever_shards_it_carries)
{
    const uint32_t rank_counts[] = {1, 2, 3, 5, 8};
    struct ranks ranks;
    ranks_start(&ranks, rank_counts[_i], 3, NULL, by_rank_body);
    ranks_end(&ranks, -1);
}
END_TEST

static int large_body(struct rank *me)
{
    uint16_t shard_rank[] = {0, 1, 2, 3, 3, 1, 0};
    struct keel_group *group = rank_group(me, 1, 7, shard_rank);
    reduce_once(me, group, 7, shard_rank, 9, 1000003);
    keel_group_close(group);
    return 0;
}

START_TEST(a_sum_of_a_million_and_three_is_exact)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, 1, NULL, large_body);
    ranks_end(&ranks, -1);
}
END_TEST

static void fill(uint8_t *data, uint64_t bytes, uint64_t salt)
{
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)((i * 31 + salt * 17) >> (i % 3));
}

static bool holds(const uint8_t *data, uint64_t bytes, uint64_t salt)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (data[i] != (uint8_t)((i * 31 + salt * 17) >> (i % 3)))
            return false;
    return true;
}

static void broadcast_once(struct rank *me, struct keel_group *group, uint64_t sequence, uint32_t root,
                           uint64_t bytes)
{
    uint8_t *data = calloc(1, bytes + 1);
    struct keel_operation *operation = NULL;
    if (me->rank == root)
        fill(data, bytes, sequence);
    rank_ok(me, broadcast_begin(group, sequence, root, data, bytes, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    rank_check(me, holds(data, bytes, sequence) && data[bytes] == 0);
    free(data);
}

static void gather_once(struct rank *me, struct keel_group *group, uint64_t sequence, uint64_t bytes)
{
    uint8_t *mine = malloc(bytes + 1), *all = calloc(me->rank_count, bytes + 1);
    struct keel_operation *operation = NULL;
    fill(mine, bytes, sequence + me->rank);
    rank_ok(me, all_gather_begin(group, sequence, mine, bytes, all, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    for (uint32_t rank = 0; rank < me->rank_count; rank++)
        rank_check(me, holds(all + rank * bytes, bytes, sequence + rank));
    free(mine);
    free(all);
}

/* Everybody sends to the next and receives from the previous, in one sequence, two ranks included. */
static void ring_once(struct rank *me, struct keel_group *group, uint64_t sequence, uint64_t bytes)
{
    uint32_t next = (me->rank + 1) % me->rank_count,
             previous = (me->rank + me->rank_count - 1) % me->rank_count;
    uint8_t *out = malloc(bytes + 1), *in = calloc(1, bytes + 1);
    struct keel_operation *send = NULL, *receive = NULL;
    fill(out, bytes, sequence + me->rank);
    if (me->rank_count > 1) {
        rank_ok(me, send_begin(group, sequence, next, out, bytes, &send));
        rank_ok(me, receive_begin(group, sequence, previous, in, bytes, &receive));
        rank_ok(me, keel_operation_wait(send, in_seconds(20)));
        rank_ok(me, keel_operation_wait(receive, in_seconds(20)));
        rank_check(me, holds(in, bytes, sequence + previous));
    }
    free(out);
    free(in);
}

static int bytes_body(struct rank *me)
{
    const uint64_t sizes[] = {0, 1, 3, 16384, 16385, 1000003};
    uint16_t shard_rank[] = {0};
    uint64_t sequence = 1;
    struct keel_group *group = rank_group(me, 3, 1, shard_rank);
    for (uint32_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        for (uint32_t root = 0; root < me->rank_count; root++)
            broadcast_once(me, group, sequence++, root, sizes[k]);
        gather_once(me, group, sequence++, sizes[k]);
        ring_once(me, group, sequence++, sizes[k]);
        rank_ok(me, barrier(group, sequence++, in_seconds(20)));
    }
    keel_group_close(group);
    return 0;
}

START_TEST(broadcast_gather_ring_and_barrier_move_every_byte)
{
    struct ranks ranks;
    ranks_start(&ranks, (uint32_t)_i, 1, NULL, bytes_body);
    ranks_end(&ranks, -1);
}
END_TEST

enum { MANY = 40, MANY_FLOATS = 30011 };

/* Forty sums begun in a different order by every rank, all in flight at once; rank 0 even waits for each
 * before it begins the next, which only works when no unbegun operation blocks another. */
static int orders_body(struct rank *me)
{
    uint16_t shard_rank[] = {0, 1, 2, 3};
    struct keel_group *group = rank_group(me, 1, 4, shard_rank);
    float *parts[4], *results[MANY];
    uint32_t part_count = make_parts(4, shard_rank, me->rank, MANY_FLOATS, parts), order[MANY];
    struct keel_operation *operations[MANY] = {NULL};
    uint64_t seed = me->seed + me->rank;
    for (uint32_t k = 0; k < MANY; k++)
        order[k] = k;
    for (uint32_t k = MANY - 1; k > 0; k--) {
        uint32_t other = (uint32_t)(test_random(&seed) % (k + 1)), kept = order[k];
        order[k] = order[other];
        order[other] = kept;
    }
    for (uint32_t k = 0; k < MANY; k++) {
        uint32_t which = order[k];
        results[which] = malloc(MANY_FLOATS * sizeof(float));
        uint64_t count = which % 3 == 0 ? 100 : MANY_FLOATS;
        rank_ok(me, sum_begin(group, which, (const float *const *)parts, part_count, results[which], count,
                              &operations[which]));
        if (me->rank == 0) {
            rank_ok(me, keel_operation_wait(operations[which], in_seconds(20)));
            operations[which] = NULL;
        }
    }
    for (uint32_t k = 0; k < MANY; k++) {
        rank_ok(me, keel_operation_wait(operations[k], in_seconds(20)));
        uint64_t count = k % 3 == 0 ? 100 : MANY_FLOATS;
        rank_check(me, first_wrong(results[k], 4, count) == count);
        free(results[k]);
    }
    free_parts(parts, part_count);
    keel_group_close(group);
    return 0;
}

START_TEST(operations_begun_in_any_order_all_end)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, (uint64_t)_i, NULL, orders_body);
    ranks_end(&ranks, -1);
}
END_TEST

static int parts_body(struct rank *me)
{
    uint16_t shard_rank[] = {0, 1, 1, 0, 2};
    struct keel_group *group = rank_group(me, 1, 5, shard_rank);
    float *parts[8], *copies[8], *result = malloc(50000 * sizeof *result);
    uint32_t part_count = make_parts(5, shard_rank, me->rank, 50000, parts);
    struct keel_operation *operation = NULL;
    make_parts(5, shard_rank, me->rank, 50000, copies);
    rank_ok(me, sum_begin(group, 1, (const float *const *)parts, part_count, result, 50000, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    for (uint32_t k = 0; k < part_count; k++)
        rank_check(me, memcmp(parts[k], copies[k], 50000 * sizeof(float)) == 0);
    rank_check(me, me->rank != 3 || part_count == 0);
    free_parts(parts, part_count);
    free_parts(copies, part_count);
    free(result);
    keel_group_close(group);
    return 0;
}

START_TEST(parts_are_never_written_and_a_rank_may_carry_no_shard)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, 1, NULL, parts_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* A slice of 20 bytes at most: a chunk is as long, not as a message may be. */
static int scratch_body(struct rank *me)
{
    static const uint64_t counts[] = {3, 0, 5, 1};
    static const uint16_t shard_rank[] = {0, 1, 2, 3};
    struct keel_group *group = rank_group(me, 1, 4, shard_rank);
    float part[9], result[5] = {0};
    const void *parts[] = {part};
    uint64_t first = 0;
    for (uint32_t k = 0; k < 9; k++)
        part[k] = (float)(k + me->rank);
    for (uint32_t rank = 0; rank < me->rank; rank++)
        first += counts[rank];
    const struct keel_collective scatter = {.kind = KEEL_REDUCE_SCATTER,
                                            .sequence = 1,
                                            .element = KEEL_ELEMENT_F32,
                                            .algorithm = KEEL_ALGORITHM_TREE,
                                            .counts_out = counts,
                                            .parts = parts,
                                            .part_count = 1,
                                            .result = result};
    rank_ok(me, keel_group_run(group, &scatter, in_seconds(20)));
    for (uint64_t k = 0; k < counts[me->rank]; k++)
        rank_check(me, result[k] == (float)(4 * (first + k) + 6));
    rank_check(me, group->plans->spare->scratch_bytes <= 64 * group->plans->schedule->temp_count);
    rank_ok(me, barrier(group, 2, in_seconds(20)));
    keel_group_close(group);
    return 0;
}

START_TEST(scratch_goes_by_the_longest_block_of_a_table)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, 1, NULL, scratch_body);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, exact_sums_have_the_oracles_bits_for_any_placement, 0, 6);
    tcase_add_test(tc, a_sum_of_a_million_and_three_is_exact);
    tcase_add_loop_test(tc, reductions_over_ranks_have_a_part_of_each_whatever_shards_it_carries, 0, 5);
    tcase_add_loop_test(tc, broadcast_gather_ring_and_barrier_move_every_byte, 1, 6);
    tcase_add_loop_test(tc, operations_begun_in_any_order_all_end, 1, 4);
    tcase_add_test(tc, parts_are_never_written_and_a_rank_may_carry_no_shard);
    tcase_add_test(tc, scratch_goes_by_the_longest_block_of_a_table);
}
KEEL_TEST_MAIN("transport collectives", cases, 120)
