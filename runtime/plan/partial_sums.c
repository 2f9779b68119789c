/* partial_sums.c - greedy merging keeps exactly the maximal complete subtrees of what was computed. */
#include "partial_sums.h"
#include <string.h>

static uint32_t first_shard(struct keel_tree_node node)
{
    return node.index << node.level;
}

static uint32_t end_shard(const struct keel_partial_sums *hold, struct keel_tree_node node)
{
    uint32_t end = (node.index + 1) << node.level;
    return end < hold->shard_count ? end : hold->shard_count;
}

bool keel_hold_covers(const struct keel_partial_sums *hold, uint32_t shard)
{
    for (uint32_t i = 0; i < hold->count; i++)
        if (first_shard(hold->held[i].node) <= shard && shard < end_shard(hold, hold->held[i].node))
            return true;
    return false;
}

static void remove_at(struct keel_partial_sums *hold, uint32_t at)
{
    hold->count--;
    memmove(&hold->held[at], &hold->held[at + 1], (hold->count - at) * sizeof hold->held[0]);
}

static void insert(struct keel_partial_sums *hold, struct keel_held_node held)
{
    KEEL_ASSERT(hold->count < KEEL_HOLD_NODES_MAX);
    uint32_t at = hold->count++;
    while (at > 0 && first_shard(hold->held[at - 1].node) > first_shard(held.node)) {
        hold->held[at] = hold->held[at - 1];
        at--;
    }
    hold->held[at] = held;
}

void keel_hold_keep(struct keel_partial_sums *hold, const uint16_t *shard_position, uint32_t position)
{
    for (uint32_t i = 0; i < hold->count;) {
        bool keep = true;
        for (uint32_t s = first_shard(hold->held[i].node); s < end_shard(hold, hold->held[i].node); s++)
            keep = keep && shard_position[s] == position;
        if (keep)
            i++;
        else
            remove_at(hold, i);
    }
}

int keel_hold_free_slot(const struct keel_partial_sums *hold)
{
    bool used[KEEL_HOLD_NODES_MAX] = {false};
    for (uint32_t i = 0; i < hold->count; i++)
        if (hold->held[i].slot != KEEL_HOLD_GRADIENTS)
            used[hold->held[i].slot] = true;
    int found = 0;
    while (found < KEEL_HOLD_NODES_MAX && used[found])
        found++;
    KEEL_ASSERT(found < KEEL_HOLD_NODES_MAX);
    return found;
}

static int take(struct keel_partial_sums *hold, struct keel_tree_node node, bool *found)
{
    for (uint32_t i = 0; i < hold->count; i++) {
        /* A node without right neighbours may be held under a lower level: compare what it covers. */
        if (first_shard(hold->held[i].node) == first_shard(node) &&
            end_shard(hold, hold->held[i].node) == end_shard(hold, node)) {
            int slot = hold->held[i].slot;
            remove_at(hold, i);
            *found = true;
            return slot;
        }
    }
    *found = false;
    return 0;
}

uint32_t keel_hold_add(struct keel_partial_sums *hold, uint32_t shard, int merged[KEEL_HOLD_LEVELS_MAX])
{
    KEEL_ASSERT(shard < hold->shard_count && !keel_hold_covers(hold, shard));
    KEEL_ASSERT(keel_hold_in_gradients(hold) == NULL);
    struct keel_tree_node node = {.level = 0, .index = shard};
    uint32_t count = 0;
    while ((UINT32_C(1) << node.level) < hold->shard_count) {
        struct keel_tree_node sibling = {.level = node.level, .index = node.index ^ 1};
        if (first_shard(sibling) < hold->shard_count) {
            bool found;
            int slot = take(hold, sibling, &found);
            if (!found)
                break;
            KEEL_ASSERT(count < KEEL_HOLD_LEVELS_MAX);
            merged[count++] = slot;
        }
        node = (struct keel_tree_node){.level = node.level + 1, .index = node.index >> 1};
    }
    insert(hold, (struct keel_held_node){.node = node, .slot = KEEL_HOLD_GRADIENTS});
    return count;
}

struct keel_held_node *keel_hold_in_gradients(struct keel_partial_sums *hold)
{
    for (uint32_t i = 0; i < hold->count; i++)
        if (hold->held[i].slot == KEEL_HOLD_GRADIENTS)
            return &hold->held[i];
    return NULL;
}
