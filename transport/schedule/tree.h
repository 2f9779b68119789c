/* tree.h - the binary tree over logical shards: who contributes what, and in which order it is summed.
 *
 * Pure functions of the shard map: no memory, no threads, no fabric. The tree is that of transport.h;
 * its leaves here are the maximal complete subtrees held by one rank each. */
#ifndef KEEL_TRANSPORT_TREE_H
#define KEEL_TRANSPORT_TREE_H

#include <keel/transport.h>

enum { KEEL_TREE_DEPTH_MAX = 13, KEEL_TREE_ADD = 0xffff, KEEL_SLICE_ALIGN = 16 };

/* The sum as a program for a stack machine: push leaf k, or replace the top two by their sum. */
struct keel_tree_plan {
    uint32_t leaf_count, step_count;
    uint16_t leaf_rank[KEEL_GROUP_SHARDS_MAX];    /* who holds the leaf; leaves ascend by first shard */
    uint16_t leaf_ordinal[KEEL_GROUP_SHARDS_MAX]; /* its number among the nodes of that rank */
    uint16_t steps[2 * KEEL_GROUP_SHARDS_MAX];    /* leaf number, or KEEL_TREE_ADD */
    struct keel_tree_node leaf_node[KEEL_GROUP_SHARDS_MAX];
    uint16_t rank_leaves[KEEL_GROUP_RANKS_MAX]; /* how many leaves each rank holds */
};
/* Every rank of the map is below KEEL_GROUP_RANKS_MAX. */
void keel_tree_plan_init(struct keel_tree_plan *plan, uint32_t shard_count, const uint16_t *shard_rank);

/* The elements of a result that `rank` sums: [first, first + count), first a multiple of 16. */
struct keel_tree_slice {
    uint64_t first, count;
};
struct keel_tree_slice keel_slice_of(uint64_t count, uint32_t rank, uint32_t rank_count);

#endif
