/* node_children.c - agents that the launcher started, and starts again when they end: whoever leads.
 *
 * Owns back-off and bounds. That a process ended is certain, so a launcher that leads tells the leader's part
 * at once. */
#include "node_state.h"

static bool is_ending(const struct keel_node *node)
{
    const struct keel_leader *leader = node->leader;
    return keel_node_leads(node) ? leader->stopping || leader->ending : node->agent.stopping;
}

static struct keel_seen_node *seen_node(struct keel_node *node, uint16_t which)
{
    return keel_node_leads(node) ? &node->leader->membership.nodes[which] : NULL;
}

bool keel_children_await(const struct keel_node *node, uint16_t which)
{
    return node->config.launcher && node->children.nodes[which].due_ns != 0;
}

uint32_t keel_children_awaited(const struct keel_node *node)
{
    return node->config.launcher ? node->children.count : 0;
}

static void tell_drain(struct keel_node *node, uint16_t which, enum keel_drain_news news)
{
    if (node->env->drain != NULL)
        node->env->drain(node->env->context, which, news, 0, 0);
}

static void set_due(struct keel_children *children, struct keel_respawn *child, uint64_t due_ns)
{
    child->due_ns = due_ns;
    if (children->count++ == 0 || due_ns < children->due_ns)
        children->due_ns = due_ns;
}

int keel_children_end(struct keel_node *node, uint16_t which)
{
    struct keel_children *children = &node->children;
    if (which == 0 || which >= KEEL_NODES_MAX)
        return KEEL_INVALID;
    struct keel_respawn *child = &children->nodes[which];
    const struct keel_seen_node *seen = seen_node(node, which);
    if (seen != NULL ? seen->exited : child->due_ns != 0)
        return KEEL_OK;
    keel_node_trace(node, "node %u ended", which);
    if (seen != NULL)
        keel_leader_lose(node, which);
    keel_bitset_add(&children->ended, which);
    if (keel_bitset_has(&children->drained, which)) {
        tell_drain(node, which, KEEL_DRAIN_LEFT);
        return KEEL_OK;
    }
    if (child->started_ns != 0 && node->now_ns - child->started_ns >= node->times.join_wait_ns)
        child->count = 0;
    if (!node->config.respawn || !node->env->node_start || child->count >= KEEL_RESTARTS_MAX ||
        is_ending(node))
        return KEEL_OK;
    set_due(children, child, node->now_ns + (node->times.backoff_ns << child->count));
    child->count++;
    KEEL_ASSERT(child->count <= KEEL_RESTARTS_MAX && child->due_ns > node->now_ns);
    return KEEL_OK;
}

int keel_children_drain(struct keel_node *node, uint16_t which, bool away)
{
    struct keel_children *children = &node->children;
    if (which == 0 || which >= KEEL_NODES_MAX)
        return KEEL_INVALID;
    struct keel_respawn *child = &children->nodes[which];
    const bool ended = keel_bitset_has(&children->ended, which);
    if (keel_bitset_has(&children->drained, which) == away)
        return KEEL_OK;
    keel_node_trace(node, "node %u is to %s", which, away ? "leave" : "come back");
    keel_bitset_remove(&children->told, which);
    if (away) {
        keel_bitset_add(&children->drained, which);
        children->drained_count++;
        children->count -= child->due_ns != 0 ? 1 : 0;
        child->due_ns = 0;
        if (ended)
            tell_drain(node, which, KEEL_DRAIN_LEFT);
    } else {
        keel_bitset_remove(&children->drained, which);
        children->drained_count--;
        child->count = 0;
        if (ended && node->env->node_start && !is_ending(node))
            set_due(children, child, node->now_ns);
        tell_drain(node, which, KEEL_DRAIN_OVER);
    }
    if (keel_node_leads(node))
        keel_leaving_drain(node, which, away);
    return KEEL_OK;
}

static void start_again(struct keel_node *node, uint16_t which)
{
    struct keel_respawn *child = &node->children.nodes[which];
    const struct keel_seen_node *seen = seen_node(node, which);
    uint32_t last =
        child->incarnation > node->config.incarnation ? child->incarnation : node->config.incarnation;
    last = seen != NULL && seen->incarnation > last ? seen->incarnation : last;
    node->children.count--;
    keel_bitset_remove(&node->children.ended, which);
    child->due_ns = 0;
    child->started_ns = node->now_ns;
    child->incarnation = last + 1;
    if (seen != NULL) {
        if (!seen->exited) /* it ended when this node did not lead */
            keel_leader_lose(node, which);
        keel_membership_node_started(&node->leader->membership, which, last + 1, node->now_ns);
        node->leader->held_from = 0;
    }
    keel_node_trace(node, "start node %u again, incarnation %u", which, last + 1);
    node->env->node_start(node->env->context, which, last + 1);
}

void keel_children_work(struct keel_node *node)
{
    struct keel_children *children = &node->children;
    if (children->count == 0 || is_ending(node))
        return;
    if (!keel_node_due(node, children->due_ns)) {
        keel_node_wake(node, children->due_ns);
        return;
    }
    children->due_ns = UINT64_MAX;
    for (uint32_t i = 1; i < KEEL_NODES_MAX; i++) {
        const struct keel_respawn *child = &children->nodes[i];
        if (child->due_ns == 0)
            continue;
        if (keel_node_due(node, child->due_ns)) {
            start_again(node, (uint16_t)i);
            continue;
        }
        keel_node_wake(node, child->due_ns);
        children->due_ns = child->due_ns < children->due_ns ? child->due_ns : children->due_ns;
    }
}
