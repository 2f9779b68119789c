/* tree_test.c - nodes, plan, slices and sums of the shard tree against its definition. No process, no fabric.
 */
#include "combine.h"
#include "ranks.h"
#include "sums.h"
#include "tree.h"

enum { PLACEMENTS = 20, ELEMENTS = 1100 }; /* more than a block of keel_combine, and not a multiple of 4 */

static void place(uint16_t *shard_rank, uint32_t shard_count, uint32_t rank_count, uint64_t *seed)
{
    bool runs = test_random(seed) % 2 == 0; /* neighbours together as often as scattered */
    uint16_t rank = 0;
    for (uint32_t s = 0; s < shard_count; s++) {
        if (!runs || test_random(seed) % 3 == 0)
            rank = (uint16_t)(test_random(seed) % rank_count);
        shard_rank[s] = rank;
    }
}

static bool covers(struct keel_tree_node node, uint32_t shard)
{
    return shard >> node.level == node.index;
}

/* Every shard of the rank lies in exactly one of its nodes, no other shard in any; none could be larger. */
static void check_nodes(uint32_t shard_count, const uint16_t *shard_rank, uint32_t rank)
{
    struct keel_tree_node nodes[64];
    uint32_t count = 0;
    ck_ok(keel_tree_nodes(shard_count, shard_rank, rank, nodes, 64, &count));
    for (uint32_t s = 0; s < shard_count; s++) {
        uint32_t holders = 0;
        for (uint32_t k = 0; k < count; k++)
            holders += covers(nodes[k], s);
        ck_assert_uint_eq(holders, shard_rank[s] == rank ? 1 : 0);
    }
    for (uint32_t k = 0; k < count; k++) {
        struct keel_tree_node parent = {nodes[k].level + 1, nodes[k].index / 2};
        bool foreign = nodes[k].level == tree_levels(shard_count);
        for (uint32_t s = 0; s < shard_count; s++)
            foreign = foreign || (covers(parent, s) && shard_rank[s] != rank);
        ck_assert_msg(foreign, "node %u of rank %u is not maximal", k, rank);
        if (k > 0)
            ck_assert_uint_lt(nodes[k - 1].index << nodes[k - 1].level, nodes[k].index << nodes[k].level);
    }
    if (count > 0)
        ck_status(keel_tree_nodes(shard_count, shard_rank, rank, nodes, count - 1, &count), KEEL_LIMIT);
}

START_TEST(nodes_are_the_maximal_complete_subtrees_of_each_rank)
{
    uint64_t seed = 11;
    uint16_t shard_rank[64];
    for (uint32_t shard_count = 1; shard_count <= 40; shard_count++)
        for (uint32_t rank_count = 1; rank_count <= 9; rank_count++) {
            place(shard_rank, shard_count, rank_count, &seed);
            for (uint32_t rank = 0; rank < rank_count; rank++)
                check_nodes(shard_count, shard_rank, rank);
        }
}
END_TEST

static void check_sum(uint32_t shard_count, const uint16_t *shard_rank, uint64_t elements)
{
    struct keel_tree_plan plan;
    static float values[64][ELEMENTS], result[ELEMENTS + 1];
    const void *leaves[64];
    ck_ok(keel_tree_plan_make(&plan, 16, shard_count, shard_rank));
    ck_assert_uint_le(plan.leaf_count, shard_count);
    for (uint32_t k = 0; k < plan.leaf_count; k++) {
        leaves[k] = values[k];
        for (uint64_t i = 0; i < elements; i++)
            values[k][i] = node_value(plan.leaf_node[k].level, plan.leaf_node[k].index, shard_count, i);
    }
    result[elements] = 77.0f;
    keel_combine(KEEL_ELEMENT_F32, KEEL_SUM, leaves, plan.steps, plan.step_count, result, elements);
    ck_assert_uint_eq(first_wrong(result, shard_count, elements), elements);
    ck_assert(result[elements] == 77.0f);
    keel_tree_plan_fini(&plan);
}

START_TEST(sums_have_the_bits_of_the_recursion_for_every_placement)
{
    uint64_t seed = 5;
    uint16_t shard_rank[64];
    for (uint32_t shard_count = 1; shard_count <= 40; shard_count++)
        for (uint32_t rank_count = 1; rank_count <= 9; rank_count++)
            for (uint32_t k = 0; k < PLACEMENTS; k++) {
                place(shard_rank, shard_count, rank_count, &seed);
                check_sum(shard_count, shard_rank, 5);
            }
    place(shard_rank, 37, 9, &seed);
    check_sum(37, shard_rank, ELEMENTS);
}
END_TEST

START_TEST(the_largest_tree_fits_its_plan)
{
    struct keel_tree_plan plan;
    static uint16_t shard_rank[KEEL_GROUP_SHARDS_MAX];
    static float ones[16], result[16];
    static const void *leaves[KEEL_GROUP_SHARDS_MAX];
    for (uint32_t s = 0; s < KEEL_GROUP_SHARDS_MAX; s++) {
        shard_rank[s] = (uint16_t)(s % KEEL_GROUP_RANKS_MAX);
        leaves[s] = ones;
    }
    for (uint32_t i = 0; i < 16; i++)
        ones[i] = 1.0f;
    ck_ok(keel_tree_plan_make(&plan, KEEL_GROUP_RANKS_MAX, KEEL_GROUP_SHARDS_MAX, shard_rank));
    ck_assert_uint_eq(plan.leaf_count, KEEL_GROUP_SHARDS_MAX);
    keel_combine(KEEL_ELEMENT_F32, KEEL_SUM, leaves, plan.steps, plan.step_count, result, 16);
    for (uint32_t i = 0; i < 16; i++)
        ck_assert(result[i] == (float)KEEL_GROUP_SHARDS_MAX);
    keel_tree_plan_fini(&plan);
}
END_TEST

START_TEST(order_matters_so_equal_bits_are_no_accident)
{
    const uint32_t shard_count = 8;
    uint32_t different = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        float straight = shard_value(0, i);
        for (uint32_t s = 1; s < shard_count; s++)
            straight += shard_value(s, i);
        float tree = node_value(3, 0, shard_count, i);
        different += memcmp(&straight, &tree, sizeof tree) != 0;
    }
    ck_assert_uint_gt(different, 100);
}
END_TEST

START_TEST(slices_tile_the_result_at_multiples_of_sixteen)
{
    const uint64_t counts[] = {0, 1, 3, 15, 16, 17, 1000, 1000003};
    for (uint32_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
        for (uint32_t rank_count = 1; rank_count <= KEEL_GROUP_RANKS_MAX; rank_count += 1 + rank_count / 4) {
            uint64_t next = 0;
            for (uint32_t rank = 0; rank < rank_count; rank++) {
                struct keel_tree_slice slice = keel_slice_of(counts[k], rank, rank_count);
                ck_assert_uint_eq(slice.first, next);
                ck_assert(slice.count == 0 || slice.first % KEEL_SLICE_ALIGN == 0);
                next += slice.count;
            }
            ck_assert_uint_eq(next, counts[k]);
        }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, nodes_are_the_maximal_complete_subtrees_of_each_rank);
    tcase_add_test(tc, sums_have_the_bits_of_the_recursion_for_every_placement);
    tcase_add_test(tc, the_largest_tree_fits_its_plan);
    tcase_add_test(tc, order_matters_so_equal_bits_are_no_accident);
    tcase_add_test(tc, slices_tile_the_result_at_multiples_of_sixteen);
}
KEEL_TEST_MAIN("transport tree", cases, 60)
