/* node_children.c - agents that ended, or were silent for too long, are started again, or others let in for
 * them: by who leads.
 *
 * Owns back-off and bounds, and the numbers of lives. That a process ended is certain, so the leader's part
 * is told at once. Where the leader moves, nobody may see the end of a process: who is silent for as long as
 * an agent waits for a leader has ended by itself. */
#include "node_state.h"

#include <string.h>

static bool is_ending(const struct keel_node *node)
{
    const struct keel_leader *leader = node->leader;
    return keel_node_leads(node) ? leader->stopping || leader->ending : node->agent.stopping;
}

bool keel_children_await(const struct keel_node *node, uint16_t which)
{
    return node->children.nodes[which].due_ns != 0;
}

uint32_t keel_children_awaited(const struct keel_node *node)
{
    return node->children.count;
}

bool keel_children_want(const struct keel_node *node, uint16_t which)
{
    const struct keel_seen_node *seen = &node->leader->membership.nodes[which];
    const uint32_t started = node->children.nodes[which].incarnation;
    return started != 0 && !seen->heard && seen->incarnation == started;
}

/* What an earlier leadership of this node knew of processes is old. */
void keel_children_begin(struct keel_node *node)
{
    struct keel_children *children = &node->children;
    memset(children, 0, offsetof(struct keel_children, nodes));
    memset(children->nodes, 0, node->config.node_count * sizeof children->nodes[0]);
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

int keel_children_end(struct keel_node *node, uint16_t which, uint64_t incarnation)
{
    struct keel_children *children = &node->children;
    if (which == 0 || which >= node->config.node_count || which == node->config.node)
        return KEEL_INVALID;
    struct keel_respawn *child = &children->nodes[which];
    const struct keel_seen_node *seen = &node->leader->membership.nodes[which];
    if (seen->exited || (incarnation != 0 && incarnation < seen->incarnation)) /* another lives since */
        return KEEL_OK;
    keel_node_trace(node, "node %u ended", which);
    keel_leader_lose(node, which);
    keel_children_see_ended(node, which);
    if (keel_bitset_has(&node->away.set, which))
        return KEEL_OK;
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

void keel_children_see_ended(struct keel_node *node, uint16_t which)
{
    struct keel_bitset *ended = &node->children.ended;
    const bool news = !keel_bitset_has(ended, which);
    keel_bitset_add(ended, which);
    if (news && keel_bitset_has(&node->away.set, which))
        tell_drain(node, which, KEEL_DRAIN_LEFT);
}

void keel_children_drain(struct keel_node *node, uint16_t which, bool away)
{
    struct keel_children *children = &node->children;
    struct keel_respawn *child = &children->nodes[which];
    const bool ended = keel_bitset_has(&children->ended, which);
    keel_node_trace(node, "node %u is to %s", which, away ? "leave" : "come back");
    keel_bitset_remove(&children->told, which);
    if (away) {
        children->count -= child->due_ns != 0 ? 1 : 0;
        child->due_ns = 0;
        if (ended)
            tell_drain(node, which, KEEL_DRAIN_LEFT);
    } else {
        child->count = 0;
        if (ended && node->env->node_start && !is_ending(node))
            set_due(children, child, node->now_ns);
        tell_drain(node, which, KEEL_DRAIN_OVER);
    }
    keel_leaving_drain(node, which, away);
}

bool keel_children_miss(struct keel_node *node, uint16_t which)
{
    const struct keel_seen_node *seen = &node->leader->membership.nodes[which];
    if (!node->config.respawn || node->env->node_start == NULL || which == 0 || is_ending(node) ||
        keel_bitset_has(&node->away.set, which) || keel_children_want(node, which) ||
        (!seen->ended && !keel_node_due(node, seen->heard_ns + node->times.launcher_timeout_ns)))
        return false;
    return keel_children_end(node, which, 0) == KEEL_OK;
}

/* Above all that the node had, as far as anybody who led can know. */
static uint32_t next_incarnation(const struct keel_node *node, uint16_t which)
{
    const uint32_t started = node->children.nodes[which].incarnation;
    const uint32_t seen = node->leader->membership.nodes[which].incarnation;
    const uint32_t lives = keel_node_moves(node) ? keel_moves_lives(node) : 0;
    uint32_t next = node->config.incarnation + 1; /* the first of all nodes have that of a launcher */
    next = next > lives ? next : lives;
    next = next > started ? next : started + 1;
    return next > seen ? next : seen + 1;
}

static void start_again(struct keel_node *node, uint16_t which)
{
    struct keel_respawn *child = &node->children.nodes[which];
    const struct keel_seen_node *seen = &node->leader->membership.nodes[which];
    const uint32_t next = next_incarnation(node, which);
    node->children.count--;
    keel_bitset_remove(&node->children.ended, which);
    child->due_ns = 0;
    child->started_ns = node->now_ns;
    child->incarnation = next;
    if (!seen->exited) /* it ended when this node did not lead */
        keel_leader_lose(node, which);
    keel_membership_node_started(&node->leader->membership, which, next, node->now_ns);
    node->leader->held_from = 0;
    keel_node_trace(node, "start node %u again, incarnation %u", which, next);
    node->env->node_start(node->env->context, which, next);
}

/* A launcher that comes back into its run leads by name alone, until holders have told it what they know. */
static bool may_be_deposed(const struct keel_node *node)
{
    return keel_node_moves(node) && node->config.again && node->term.ballot.counter == 0;
}

void keel_children_work(struct keel_node *node)
{
    struct keel_children *children = &node->children;
    if (children->count == 0 || is_ending(node))
        return;
    if (!keel_away_settled(node)) {
        keel_node_wake(node, node->leader->lead_ns + node->times.silence_ns);
        return;
    }
    if (may_be_deposed(node)) {
        keel_leader_ask(node);
        return;
    }
    if (!keel_node_due(node, children->due_ns)) {
        keel_node_wake(node, children->due_ns);
        return;
    }
    children->due_ns = UINT64_MAX;
    for (uint32_t i = 1; i < node->config.node_count; i++) {
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
