/* node_leaving.c - nodes that are to leave the run in order (DRAIN), as who leads sees them.
 *
 * Owns when one may go: its members are evicted then as lost ones are, and their agent is told to end once no
 * rank is there any more. That it is not started again is up to node_children.c. */
#include "node_state.h"

#include <string.h>

/* It is to leave, and no rank is there any more; a spare has nothing to hand over. */
bool keel_leaving_may_go(const struct keel_node *node, uint16_t which)
{
    if (!keel_bitset_has(&node->leader->membership.leaving, which) || node->leader->awaiting_joins)
        return false;
    for (uint16_t i = 0; i < node->leader->active_count; i++)
        if (node->view.members[i].node == which)
            return false;
    return true;
}

/* Workers of each node, of the view and of those who wait for one, and which nodes have some that carry. */
struct node_workers {
    struct keel_bitset carries;
    uint16_t count[KEEL_NODES_MAX];
};

static void count_workers(const struct keel_node *node, struct node_workers *out)
{
    const struct keel_verdict *verdict = &node->leader->verdict;
    memset(out, 0, sizeof *out);
    for (uint16_t i = 0; i < node->view.member_count; i++) {
        const struct keel_member *member = &node->view.members[i];
        if (keel_bitset_has(&verdict->gone, i) || keel_bitset_has(&verdict->done, i))
            continue;
        if (!member->spare)
            keel_bitset_add(&out->carries, member->node);
        out->count[member->node]++;
    }
    for (uint16_t i = 0; i < verdict->join_count; i++)
        out->count[verdict->joins[i].node]++;
}

/* Once for each reason, until it is asked again; how many would be left is kept as it is now. */
static void tell_stays(struct keel_node *node, uint16_t which, enum keel_drain_news why, uint16_t left,
                       uint16_t fewest)
{
    struct keel_respawn *child = &node->children.nodes[which];
    const bool told = keel_bitset_has(&node->children.told, which) && child->why == why;
    child->why = why;
    child->left_count = left;
    child->fewest = fewest;
    keel_bitset_add(&node->children.told, which);
    if (!told && node->env->drain != NULL)
        node->env->drain(node->env->context, which, why, left, fewest);
}

void keel_leaving_tell_again(struct keel_node *node, uint16_t which)
{
    keel_bitset_remove(&node->children.told, which);
    node->children.drain_ns = 0;
}

/* Holders that answer, and would without this node. */
static uint16_t holders_without(const struct keel_node *node, uint16_t which)
{
    const struct keel_view_holders *holders = keel_node_holders(node);
    uint16_t count = 0;
    for (uint8_t i = 0; i < holders->count; i++)
        if (holders->at[i].node != which && keel_holders_lives(node, &holders->at[i]))
            count++;
    return count;
}

/* Without a majority of the holders no view could change any more. Others hold it in the place of one that
 * left from the next view on. */
static bool holders_allow(struct keel_node *node, uint16_t which)
{
    const struct keel_view_holders *holders = keel_node_holders(node);
    const uint16_t majority = (uint16_t)(holders->count / 2 + 1);
    if (!keel_view_holders_has(holders, which))
        return true;
    const uint16_t left = holders_without(node, which);
    if (left < majority)
        tell_stays(node, which, KEEL_DRAIN_HOLDS, left, majority);
    return left >= majority;
}

/* Those who stay have a plan; and have done a step in the present view, by which they have copies of what the
 * last one that left had. */
static bool ranks_allow(struct keel_node *node, uint16_t which, const struct node_workers *workers)
{
    const struct keel_verdict *verdict = &node->leader->verdict;
    const uint32_t all = (uint32_t)verdict->remaining + verdict->spares + verdict->join_count;
    const uint16_t left = (uint16_t)(all - workers->count[which]);
    if (keel_bitset_has(&workers->carries, which) && node->leader->front_step == 0)
        return false;
    if (keel_view_seats(node->config.plans, node->config.rank_count, left) > 0)
        return true;
    tell_stays(node, which, KEEL_DRAIN_WAITS, left, keel_node_fewest_ranks(node));
    return false;
}

/* The first that is to leave, did not yet, and may. Each that may not is told why. */
static uint32_t next_to_go(struct keel_node *node)
{
    struct node_workers workers;
    count_workers(node, &workers);
    uint32_t which = keel_bitset_next(&node->away.set, 1);
    for (; which < KEEL_NODES_MAX; which = keel_bitset_next(&node->away.set, which + 1))
        if (!keel_bitset_has(&node->leader->membership.leaving, which) &&
            holders_allow(node, (uint16_t)which) && ranks_allow(node, (uint16_t)which, &workers))
            break;
    return which;
}

/* Where the leader moves, and nobody may hear of a process that it ended. */
static void tell_who_left(struct keel_node *node)
{
    struct keel_children *children = &node->children;
    for (uint32_t which = keel_bitset_next(&node->away.set, 1); which < KEEL_NODES_MAX;
         which = keel_bitset_next(&node->away.set, which + 1)) {
        const struct keel_seen_node *seen = &node->leader->membership.nodes[which];
        if (keel_bitset_has(&children->ended, which) || !keel_leaving_may_go(node, (uint16_t)which) ||
            !(seen->ended || keel_node_due(node, seen->heard_ns + node->times.silence_ns)))
            continue;
        keel_children_see_ended(node, (uint16_t)which);
    }
}

/* One after the other. */
void keel_leaving_work(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    struct keel_children *children = &node->children;
    if ((!node->config.launcher && !keel_node_moves(node)) || node->away.count == 0 ||
        !keel_node_due(node, children->drain_ns))
        return;
    children->drain_ns = node->now_ns + node->times.beat_ns;
    if (keel_node_moves(node))
        tell_who_left(node);
    if (leader->awaiting_joins || leader->changing || leader->stopping || leader->verdict.active_gone ||
        keel_leader_has_delivered(node))
        return;
    const uint32_t which = next_to_go(node);
    if (which >= KEEL_NODES_MAX)
        return;
    keel_bitset_add(&leader->membership.leaving, which);
    leader->membership.changed = true;
    keel_node_wake(node, node->now_ns);
}

void keel_leaving_drain(struct keel_node *node, uint16_t which, bool away)
{
    if (!away)
        keel_bitset_remove(&node->leader->membership.leaving, which);
    node->leader->membership.changed = true;
    node->children.drain_ns = 0;
}
