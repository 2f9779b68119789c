/* node_leaving.c - nodes that are to leave the run in order (DRAIN), as who leads sees them.
 *
 * Owns when one may go: its members are evicted then as lost ones are, and their agent is told to end once no
 * rank is there any more. That it is not started again is up to node_children.c. */
#include "node_state.h"

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

/* Its workers of the view and of those who wait for one. */
static uint16_t workers_on(const struct keel_node *node, uint16_t which, bool *carries)
{
    const struct keel_verdict *verdict = &node->leader->verdict;
    uint16_t count = 0;
    *carries = false;
    for (uint16_t i = 0; i < node->view.member_count; i++) {
        const struct keel_member *member = &node->view.members[i];
        if (member->node != which || keel_bitset_has(&verdict->gone, i) || keel_bitset_has(&verdict->done, i))
            continue;
        *carries = *carries || !member->spare;
        count++;
    }
    for (uint16_t i = 0; i < verdict->join_count; i++)
        count = (uint16_t)(count + (verdict->joins[i].node == which ? 1 : 0));
    return count;
}

static void tell_once(struct keel_node *node, uint16_t which, enum keel_drain_news news, uint16_t left,
                      uint16_t fewest)
{
    if (keel_bitset_has(&node->children.told, which))
        return;
    struct keel_respawn *child = &node->children.nodes[which];
    child->why = news;
    child->left_count = left;
    child->fewest = fewest;
    keel_bitset_add(&node->children.told, which);
    if (node->env->drain != NULL)
        node->env->drain(node->env->context, which, news, left, fewest);
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

/* The first that is to leave, did not yet, and leaves a majority of the holders behind: without one no view
 * could change any more. Others hold it in its place from the next view on. */
static uint32_t next_to_go(struct keel_node *node)
{
    const uint16_t majority = (uint16_t)(keel_node_holders(node)->count / 2 + 1);
    uint32_t which = keel_bitset_next(&node->away.set, 1);
    for (; which < KEEL_NODES_MAX; which = keel_bitset_next(&node->away.set, which + 1)) {
        if (keel_bitset_has(&node->leader->membership.leaving, which))
            continue;
        if (!keel_view_holders_has(keel_node_holders(node), (uint16_t)which))
            break;
        const uint16_t left = holders_without(node, (uint16_t)which);
        if (left >= majority)
            break;
        tell_once(node, (uint16_t)which, KEEL_DRAIN_HOLDS, left, majority);
    }
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

/* One after the other, where those who stay have a plan; and not before they have done a step in the present
 * view, by which they have copies of what the last one that left had. */
void keel_leaving_work(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    const struct keel_verdict *verdict = &leader->verdict;
    struct keel_children *children = &node->children;
    bool carries;
    if ((!node->config.launcher && !keel_node_moves(node)) || node->away.count == 0 ||
        !keel_node_due(node, children->drain_ns))
        return;
    children->drain_ns = node->now_ns + node->times.beat_ns;
    if (keel_node_moves(node))
        tell_who_left(node);
    if (leader->awaiting_joins || leader->changing || leader->stopping || verdict->active_gone ||
        keel_leader_has_delivered(node))
        return;
    const uint32_t which = next_to_go(node);
    if (which >= KEEL_NODES_MAX)
        return;
    const uint32_t its = workers_on(node, (uint16_t)which, &carries);
    const uint32_t all = (uint32_t)verdict->remaining + verdict->spares + verdict->join_count;
    const uint16_t left = (uint16_t)(all - its);
    if (carries && leader->front_step == 0)
        return;
    if (keel_view_seats(node->config.plans, node->config.rank_count, left) > 0) {
        keel_bitset_add(&leader->membership.leaving, which);
        leader->membership.changed = true;
        keel_node_wake(node, node->now_ns);
    } else {
        tell_once(node, (uint16_t)which, KEEL_DRAIN_WAITS, left, keel_node_fewest_ranks(node));
    }
}

void keel_leaving_drain(struct keel_node *node, uint16_t which, bool away)
{
    if (!away)
        keel_bitset_remove(&node->leader->membership.leaving, which);
    node->leader->membership.changed = true;
    node->children.drain_ns = 0;
}
