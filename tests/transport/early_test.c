/* early_test.c - first messages that come before this rank has begun their operation, and carry data: they
 * are read from where they were kept, and nothing of them is used after that is released. */
#include "ranks.h"

#include <keel/memory.h>

enum { ROUNDS = 24, FLOATS = 8192, BLOCKS = 256, BLOCK_BYTES_MAX = 512 };

static struct keel_operation *add_up(struct rank *me, struct keel_group *group, uint64_t sequence,
                                     const float *part, uint64_t count, float *result)
{
    const void *parts[] = {part};
    struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                   .algorithm = KEEL_ALGORITHM_FLAT,
                                   .sequence = sequence,
                                   .element = KEEL_ELEMENT_F32,
                                   .count = count,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = result};
    struct keel_operation *operation = NULL;
    rank_ok(me, keel_group_begin(group, &what, &operation));
    return operation;
}

/* Blocks of all sizes that a message may have had are taken from the heap, filled and given back. */
static void disturb_heap(struct rank *me)
{
    void *blocks[BLOCKS];
    for (size_t bytes = 16; bytes <= BLOCK_BYTES_MAX; bytes += 16) {
        for (uint32_t k = 0; k < BLOCKS; k++) {
            blocks[k] = malloc(bytes);
            rank_check(me, blocks[k] != NULL);
            memset(blocks[k], 0x55, bytes);
        }
        for (uint32_t k = 0; k < BLOCKS; k++)
            free(blocks[k]);
    }
}

/* Rank 1 begins a long sum and a short one; rank 0 begins the short one when the long one is over, of which
 * the last that came from rank 1 was a loan; rank 2 begins the short one last. */
static float short_sum(struct rank *me, struct keel_group *group, uint64_t round, const float *part,
                       float *result)
{
    struct keel_operation *long_sum, *one = NULL;
    if (me->rank == 0)
        rank_hear(me);
    long_sum = add_up(me, group, 4 * round + 1, part, FLOATS, result);
    if (me->rank == 1)
        one = add_up(me, group, 4 * round + 2, part + FLOATS, 1, result + FLOATS);
    if (me->rank != 0)
        rank_say(me, 'b');
    rank_ok(me, keel_operation_wait(long_sum, in_seconds(60)));
    if (me->rank == 2)
        rank_hear(me);
    if (me->rank != 1)
        one = add_up(me, group, 4 * round + 2, part + FLOATS, 1, result + FLOATS);
    if (me->rank == 0) {
        disturb_heap(me);
        rank_say(me, 'd');
    }
    rank_ok(me, keel_operation_wait(one, in_seconds(60)));
    return result[FLOATS];
}

static int early_body(struct rank *me)
{
    const uint16_t own[RANKS_MAX] = {0, 1, 2};
    struct keel_group *group = rank_group(me, 1, me->rank_count, own);
    float *part, *result;
    rank_ok(me, keel_transport_alloc((FLOATS + 1) * sizeof *part, &part));
    rank_ok(me, keel_transport_alloc((FLOATS + 1) * sizeof *result, &result));
    rank_ok(me, barrier(group, 1, in_seconds(60)));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (uint32_t k = 0; k <= FLOATS; k++)
            part[k] = (float)((round + k % 7) << (4 * me->rank));
        float got = short_sum(me, group, round, part, result);
        float wanted = (float)(0x111 * (round + FLOATS % 7));
        if (got != wanted)
            fprintf(stderr, "rank %u, round %llu: the sum of one is %g, and should be %g\n", me->rank,
                    (unsigned long long)round, (double)got, (double)wanted);
        rank_check(me, got == wanted);
        rank_ok(me, barrier(group, 4 * round + 3, in_seconds(60)));
    }
    keel_group_close(group);
    keel_transport_free(part);
    keel_transport_free(result);
    return 0;
}

START_TEST(a_short_sum_is_right_whose_first_message_came_before_it_was_begun)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 1, NULL, early_body);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        ranks_listen(&ranks, 1);
        ranks_listen(&ranks, 2);
        ranks_tell(&ranks, 0, 'b');
        ranks_listen(&ranks, 0);
        ranks_tell(&ranks, 2, 'd');
    }
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_short_sum_is_right_whose_first_message_came_before_it_was_begun);
}

KEEL_TEST_MAIN("transport early messages", cases, 120)
