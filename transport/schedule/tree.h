/* tree.h - the binary tree over logical shards: who contributes what, and in which order it is summed.
 *
 * Pure functions of the shard map: no memory, no threads, no fabric. The tree is that of transport.h;
 * its leaves here are the maximal complete subtrees held by one rank each. */
#ifndef KEEL_TRANSPORT_TREE_H
#define KEEL_TRANSPORT_TREE_H

#include <keel/transport.h>

enum { KEEL_TREE_DEPTH_MAX = 16, KEEL_TREE_ADD = 0xffff, KEEL_SLICE_ALIGN = 16 };
_Static_assert(KEEL_GROUP_SHARDS_MAX <= 1 << (KEEL_TREE_DEPTH_MAX - 1),
               "a tree over all shards is no deeper");
_Static_assert((int)KEEL_GROUP_SHARDS_MAX <= (int)KEEL_TREE_ADD, "no leaf has its number");

/* The sum as a program for a stack machine: push leaf k, or replace the top two by their sum. */
struct keel_tree_plan {
    uint32_t leaf_count, step_count;
    struct keel_tree_node *leaf_node; /* by leaf, of which there are no more than shards; ascending by first
                                         shard. Owned, as all below, which lie behind it */
    uint16_t *leaf_rank;              /* who holds the leaf */
    uint16_t *leaf_ordinal;           /* its number among the nodes of that rank */
    uint16_t *steps;                  /* leaf number, or KEEL_TREE_ADD */
    uint16_t *rank_leaves;            /* by rank: how many leaves it holds */
};
/* Every rank of the map is below rank_count. NO_MEMORY. */
enum keel_status keel_tree_plan_make(struct keel_tree_plan *plan, uint32_t rank_count, uint32_t shard_count,
                                     const uint16_t *shard_rank);
void keel_tree_plan_fini(struct keel_tree_plan *plan); /* zeroed is fine */

/* The elements of a result that `rank` sums: [first, first + count), first a multiple of 16. */
struct keel_tree_slice {
    uint64_t first, count;
};
struct keel_tree_slice keel_slice_of(uint64_t count, uint32_t rank, uint32_t rank_count);

#endif
