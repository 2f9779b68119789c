/* tree.c - leaves and plan of the shard tree, and slices. */
#include "tree.h"

#include <keel/memory.h>

static uint32_t first_shard(uint32_t level, uint32_t index)
{
    return index << level;
}

static uint32_t end_shard(uint32_t level, uint32_t index, uint32_t shard_count)
{
    uint32_t end = (index + 1) << level;
    return end < shard_count ? end : shard_count;
}

static uint32_t root_level(uint32_t shard_count)
{
    uint32_t level = 0;
    while ((UINT32_C(1) << level) < shard_count)
        level++;
    return level;
}

static bool held_by_one(uint32_t level, uint32_t index, uint32_t shard_count, const uint16_t *shard_rank)
{
    uint32_t first = first_shard(level, index);
    for (uint32_t shard = first + 1; shard < end_shard(level, index, shard_count); shard++)
        if (shard_rank[shard] != shard_rank[first])
            return false;
    return true;
}

/* Visits the leaves in ascending order: a stack of nodes still to look at. */
enum keel_status keel_tree_nodes(uint32_t shard_count, const uint16_t *shard_rank, uint32_t rank,
                                 struct keel_tree_node *out, uint32_t capacity, uint32_t *out_count)
{
    if (shard_count == 0 || shard_count > KEEL_GROUP_SHARDS_MAX)
        return keel_fail(KEEL_INVALID, "tree: %u shards; the limit is %d", shard_count,
                         KEEL_GROUP_SHARDS_MAX);
    struct keel_tree_node stack[2 * KEEL_TREE_DEPTH_MAX] = {{root_level(shard_count), 0}};
    uint32_t depth = 1, count = 0;
    while (depth > 0) {
        struct keel_tree_node node = stack[--depth];
        uint32_t first = first_shard(node.level, node.index);
        if (first >= shard_count)
            continue;
        if (!held_by_one(node.level, node.index, shard_count, shard_rank)) {
            KEEL_ASSERT(node.level > 0);
            stack[depth++] = (struct keel_tree_node){node.level - 1, 2 * node.index + 1};
            stack[depth++] = (struct keel_tree_node){node.level - 1, 2 * node.index};
            continue;
        }
        if (shard_rank[first] != rank)
            continue;
        if (count == capacity)
            return keel_fail(KEEL_LIMIT, "tree: rank %u holds more than %u nodes", rank, capacity);
        out[count++] = node;
    }
    *out_count = count;
    return KEEL_OK;
}

static void plan_leaf(struct keel_tree_plan *plan, struct keel_tree_node node, uint16_t rank)
{
    plan->leaf_rank[plan->leaf_count] = rank;
    plan->leaf_ordinal[plan->leaf_count] = plan->rank_leaves[rank]++;
    plan->leaf_node[plan->leaf_count] = node;
    plan->steps[plan->step_count++] = (uint16_t)plan->leaf_count++;
}

/* As much as this map takes: a group of few ranks does not pay for the largest. */
static enum keel_status reserve(struct keel_tree_plan *plan, uint32_t rank_count, uint32_t shard_count)
{
    const size_t shorts = 4 * (size_t)shard_count + rank_count;
    *plan = (struct keel_tree_plan){.leaf_count = 0};
    KEEL_TRY(
        keel_alloc(1, shard_count * sizeof *plan->leaf_node + shorts * sizeof(uint16_t), &plan->leaf_node));
    plan->leaf_rank = (uint16_t *)(void *)(plan->leaf_node + shard_count);
    plan->leaf_ordinal = plan->leaf_rank + shard_count;
    plan->steps = plan->leaf_ordinal + shard_count;
    plan->rank_leaves = plan->steps + 2 * (size_t)shard_count;
    return KEEL_OK;
}

void keel_tree_plan_fini(struct keel_tree_plan *plan)
{
    keel_free(plan->leaf_node);
    *plan = (struct keel_tree_plan){.leaf_count = 0};
}

/* As keel_tree_nodes, in post-order: a node that is split comes back, marked, once its children are done. */
enum keel_status keel_tree_plan_make(struct keel_tree_plan *plan, uint32_t rank_count, uint32_t shard_count,
                                     const uint16_t *shard_rank)
{
    KEEL_ASSERT(shard_count > 0 && shard_count <= KEEL_GROUP_SHARDS_MAX);
    KEEL_ASSERT(rank_count <= KEEL_GROUP_RANKS_MAX);
    KEEL_TRY(reserve(plan, rank_count, shard_count));
    struct {
        struct keel_tree_node node;
        bool add;
    } stack[3 * KEEL_TREE_DEPTH_MAX] = {{{root_level(shard_count), 0}, false}};
    uint32_t depth = 1;
    while (depth > 0) {
        struct keel_tree_node node = stack[--depth].node;
        if (stack[depth].add) {
            plan->steps[plan->step_count++] = KEEL_TREE_ADD;
            continue;
        }
        if (held_by_one(node.level, node.index, shard_count, shard_rank)) {
            plan_leaf(plan, node, shard_rank[first_shard(node.level, node.index)]);
            continue;
        }
        KEEL_ASSERT(node.level > 0);
        struct keel_tree_node left = {node.level - 1, 2 * node.index};
        struct keel_tree_node right = {node.level - 1, 2 * node.index + 1};
        if (first_shard(right.level, right.index) < shard_count) {
            stack[depth].node = node;
            stack[depth++].add = true;
            stack[depth].node = right;
            stack[depth++].add = false;
        }
        stack[depth].node = left;
        stack[depth++].add = false;
    }
    return KEEL_OK;
}

struct keel_tree_slice keel_slice_of(uint64_t count, uint32_t rank, uint32_t rank_count)
{
    uint64_t units = (count + KEEL_SLICE_ALIGN - 1) / KEEL_SLICE_ALIGN;
    uint64_t share = (units + rank_count - 1) / rank_count * KEEL_SLICE_ALIGN;
    struct keel_tree_slice slice = {share * rank, 0};
    if (slice.first >= count)
        slice.first = count;
    slice.count = count - slice.first < share ? count - slice.first : share;
    return slice;
}
