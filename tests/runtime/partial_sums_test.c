/* partial_sums_test.c - whatever is computed, lost and kept, what is held is what the group expects. */
#include "harness.h"
#include "partial_sums.h"
#include <string.h>

/* A value per node as text would be: the shape of the sum. Shapes are compared by a hash that is not
 * symmetric, so a swapped or regrouped sum is another value. */
static uint64_t leaf(uint32_t shard)
{
    return 1000 + shard;
}

static uint64_t join(uint64_t left, uint64_t right)
{
    return left * 31 + right * 17 + 7;
}

static uint64_t reference(uint32_t first, uint32_t size, uint32_t shards)
{
    if (size == 1)
        return leaf(first);
    uint64_t left = reference(first, size / 2, shards);
    return first + size / 2 < shards ? join(left, reference(first + size / 2, size / 2, shards)) : left;
}

struct bench {
    struct keel_partial_sums hold;
    uint64_t slots[KEEL_HOLD_NODES_MAX], gradients;
    uint32_t first_of_slot[KEEL_HOLD_NODES_MAX];
};

static uint32_t first_of(struct keel_tree_node node)
{
    return node.index << node.level;
}

static void vacate(struct bench *b)
{
    struct keel_held_node *held = keel_hold_in_gradients(&b->hold);
    if (held == NULL)
        return;
    int slot = keel_hold_free_slot(&b->hold);
    b->slots[slot] = b->gradients;
    b->first_of_slot[slot] = first_of(held->node);
    held->slot = slot;
}

static void compute(struct bench *b, uint32_t shard)
{
    int merged[KEEL_HOLD_LEVELS_MAX];
    vacate(b);
    uint32_t count = keel_hold_add(&b->hold, shard, merged);
    uint64_t value = leaf(shard);
    uint32_t first = shard;
    for (uint32_t i = 0; i < count; i++) {
        int slot = merged[i];
        bool left = b->first_of_slot[slot] < first;
        value = left ? join(b->slots[slot], value) : join(value, b->slots[slot]);
        first = left ? b->first_of_slot[slot] : first;
    }
    b->gradients = value;
}

static void check(struct bench *b, uint32_t shards, const uint16_t *owner)
{
    struct keel_tree_node wanted[KEEL_HOLD_NODES_MAX];
    uint32_t count;
    ck_ok(keel_tree_nodes(shards, owner, 0, wanted, KEEL_HOLD_NODES_MAX, &count));
    ck_assert_uint_eq(count, b->hold.count);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_eq(first_of(wanted[i]), first_of(b->hold.held[i].node));
        int slot = b->hold.held[i].slot;
        uint64_t value = slot == KEEL_HOLD_GRADIENTS ? b->gradients : b->slots[slot];
        ck_assert_uint_eq(value, reference(first_of(wanted[i]), 1u << wanted[i].level, shards));
    }
}

static uint32_t random_state = 1;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % below;
}

START_TEST(any_history_of_losses_and_takeovers_holds_the_subtrees_that_the_group_sums)
{
    for (uint32_t round = 0; round < 3000; round++) {
        struct bench b = {.hold = {.shard_count = 1 + next_random(33)}};
        uint32_t shards = b.hold.shard_count;
        uint16_t owner[64];
        for (uint32_t view = 0; view < 4; view++) {
            for (uint32_t s = 0; s < shards; s++)
                owner[s] = (uint16_t)next_random(2);
            keel_hold_keep(&b.hold, owner, 0);
            uint32_t stop = next_random(shards + 1); /* interrupted there, but for the last view */
            for (uint32_t s = 0; s < shards; s++)
                if (owner[s] == 0 && !keel_hold_covers(&b.hold, s) && (view == 3 || s < stop))
                    compute(&b, s);
        }
        check(&b, shards, owner);
    }
}
END_TEST

START_TEST(one_rank_alone_ends_with_the_root)
{
    for (uint32_t shards = 1; shards <= 40; shards++) {
        struct bench b = {.hold = {.shard_count = shards}};
        for (uint32_t s = 0; s < shards; s++)
            compute(&b, s);
        uint32_t size = 1;
        while (size < shards)
            size *= 2;
        ck_assert_uint_eq(b.hold.count, 1);
        ck_assert_int_eq(b.hold.held[0].slot, KEEL_HOLD_GRADIENTS);
        ck_assert_uint_eq(b.gradients, reference(0, size, shards));
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, any_history_of_losses_and_takeovers_holds_the_subtrees_that_the_group_sums);
    tcase_add_test(tc, one_rank_alone_ends_with_the_root);
}

KEEL_TEST_MAIN("tree hold", cases, 30)
