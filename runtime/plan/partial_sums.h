/* partial_sums.h - which nodes of the shard tree a rank holds. Pure bookkeeping; the values lie elsewhere
 * (worker/partial_buffers.c).
 *
 * The tree is that of transport.h: node (level L, index i) covers shards [i << L, (i + 1) << L) below
 * shard_count. Each held node names the slot of its value; at most one lies in the gradient buffer. */
#ifndef KEEL_PARTIAL_SUMS_H
#define KEEL_PARTIAL_SUMS_H

#include <keel/node.h>
#include <keel/transport.h>

enum { KEEL_HOLD_NODES_MAX = KEEL_SHARDS_MAX, KEEL_HOLD_LEVELS_MAX = 12, KEEL_HOLD_GRADIENTS = -1 };
_Static_assert((int)KEEL_SHARDS_MAX <= 1 << KEEL_HOLD_LEVELS_MAX, "a shard has so many nodes above it");

struct keel_held_node {
    struct keel_tree_node node;
    int slot; /* KEEL_HOLD_GRADIENTS: in the gradient buffer */
};

struct keel_partial_sums {
    uint32_t shard_count;
    uint32_t count;
    struct keel_held_node held[KEEL_HOLD_NODES_MAX]; /* ascending by first shard */
};

bool keel_hold_covers(const struct keel_partial_sums *hold, uint32_t shard);

/* Forget nodes that cover a shard which `position` does not carry: parts cannot be taken out of a sum. */
void keel_hold_keep(struct keel_partial_sums *hold, const uint16_t *shard_position, uint32_t position);

/* The lowest slot that no held node names. */
int keel_hold_free_slot(const struct keel_partial_sums *hold);

/* Shard `shard` is about to be computed into the gradient buffer (where no held node may lie): merges it
 * with held siblings as far up as they go. The slots to be added, in order, go to `merged`; their nodes
 * are replaced by one that lies in the gradient buffer. Returns the number merged. */
uint32_t keel_hold_add(struct keel_partial_sums *hold, uint32_t shard, int merged[KEEL_HOLD_LEVELS_MAX]);

/* The node in the gradient buffer, or NULL. */
struct keel_held_node *keel_hold_in_gradients(struct keel_partial_sums *hold);

#endif
