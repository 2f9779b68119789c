/* node_away.c - which nodes are to be away (DRAIN), and how who leads next knows it.
 *
 * Owns one set and its version. Who leads changes it when it is asked to, and tells all nodes at once; a
 * report says which version its node has, an answer which one the leader has, and whoever has the newer sends
 * it. So a message that is lost costs a beat, a new leader learns the set from whoever is left, and a node
 * that was told to be away, and has no process any more, is not started by it. Versions ascend with terms,
 * and name who made them: two that lead at once, of which one does not know it yet, never make the same one
 * of two sets. What one asks for who leads no more, and whom nobody heard, is forgotten, and asked for again
 * by who waits for it (gate.h).
 *
 * What was answered is not forgotten while one of those who were heard then lives: who hears nobody does not
 * answer (is_told), and who took over changes nothing before it has heard all who may know more
 * (is_certain). */
#include "node_state.h"

#include <string.h>

/* A version is a term, a number in it, and who made it. Ballots beyond term_max, and numbers beyond
 * count_max, are out of reach by counting: damage. */
enum { VERSION_BITS = 16, NODE_BITS = 16 };
static const uint64_t term_max = UINT64_C(1) << 28;
static const uint64_t count_max = (KEEL_EPOCH_MAX >> NODE_BITS) - 1;

/* ---- telling ------------------------------------------------------------------------------------------- */

static void tell(struct keel_node *node, uint16_t to)
{
    struct keel_wire_away *out = &keel_node_message(node, KEEL_WIRE_AWAY)->as.away;
    out->version = node->away.version;
    for (uint32_t i = keel_bitset_next(&node->away.set, 1); i < KEEL_NODES_MAX;
         i = keel_bitset_next(&node->away.set, i + 1))
        out->nodes[out->count++] = (uint16_t)i;
    KEEL_ASSERT(out->count == node->away.count);
    keel_node_send(node, to);
}

void keel_away_answer(struct keel_node *node, uint16_t to, uint64_t version)
{
    if (version < node->away.version)
        tell(node, to);
}

void keel_away_report(struct keel_node *node, uint16_t from, uint64_t version)
{
    struct keel_children *children = &node->children;
    children->away_heard = version > children->away_heard ? version : children->away_heard;
    if (!node->leader->membership.nodes[from].ended) /* silent it had been, or another has started it */
        keel_bitset_remove(&children->ended, from);
    if (version == node->away.version)
        keel_bitset_add(&children->knows, from);
    keel_away_answer(node, from, version);
}

/* ---- what is known ------------------------------------------------------------------------------------- */

bool keel_away_settled(const struct keel_node *node)
{
    const struct keel_leader *leader = node->leader;
    if (!leader->took_over || keel_node_due(node, leader->lead_ns + node->times.silence_ns))
        return true;
    return (!leader->awaiting_joins || keel_leader_hears_members(node)) &&
           node->children.away_heard <= node->away.version;
}

/* Of the holders a majority is there, and with `who_know` has the set: who leads next needs the promise of
 * one of them, and hears its version. */
static bool has_majority(const struct keel_node *node, bool who_know)
{
    const struct keel_view_holders *holders = keel_node_holders(node);
    uint32_t count = 0;
    for (uint8_t i = 0; i < holders->count; i++)
        if (keel_holders_lives(node, &holders->at[i]))
            count += !who_know || holders->at[i].node == node->config.node ||
                             keel_bitset_has(&node->children.knows, holders->at[i].node)
                         ? 1
                         : 0;
    return count * 2 > holders->count;
}

/* Nobody has a newer set that was answered for. One that was silent for as long as an agent waits for a
 * leader has ended by itself; where the leader moves, one of any majority has it, and is waited for as
 * long. */
static bool is_certain(const struct keel_node *node)
{
    const struct keel_leader *leader = node->leader;
    if (!leader->took_over)
        return true;
    if (keel_node_moves(node) && !has_majority(node, false))
        return false;
    if (keel_node_due(node, leader->lead_ns + node->times.launcher_timeout_ns))
        return true;
    return node->children.away_heard <= node->away.version && keel_away_settled(node) &&
           (keel_node_moves(node) || keel_leader_hears_members(node));
}

/* All others who are heard have it, and some are, so that whoever leads next does. */
static bool is_told(const struct keel_node *node)
{
    const struct keel_membership *m = &node->leader->membership;
    bool some = false;
    for (uint16_t i = 0; i < m->node_count; i++) {
        const struct keel_seen_node *seen = &m->nodes[i];
        if (i == node->config.node || !seen->heard || seen->exited || seen->ended ||
            keel_node_due(node, seen->heard_ns + node->times.silence_ns))
            continue;
        if (!keel_bitset_has(&node->children.knows, i))
            return false;
        some = true;
    }
    return keel_node_moves(node) ? has_majority(node, true) : some;
}

void keel_node_away(struct keel_node *node, uint64_t now_ns, uint16_t which, struct keel_node_away *out)
{
    *out = (struct keel_node_away){.asked = false};
    if (!keel_node_leads(node) || which >= node->config.node_count)
        return;
    node->now_ns = now_ns;
    const struct keel_respawn *child = &node->children.nodes[which];
    out->asked = keel_bitset_has(&node->away.set, which);
    out->settled = is_certain(node);
    out->told = out->settled && is_told(node);
    out->left = out->asked && keel_bitset_has(&node->children.ended, which);
    out->stays = out->asked && !out->left && keel_bitset_has(&node->children.told, which);
    out->why = child->why;
    out->left_count = child->left_count;
    out->fewest = child->fewest;
}

/* ---- changing it --------------------------------------------------------------------------------------- */

static void set(struct keel_node *node, uint16_t which, bool is_away)
{
    if (keel_bitset_has(&node->away.set, which) == is_away)
        return;
    (is_away ? keel_bitset_add : keel_bitset_remove)(&node->away.set, which);
    node->away.count += is_away ? 1 : UINT32_MAX;
    if (keel_node_leads(node))
        keel_children_drain(node, which, is_away);
}

int keel_away_ask(struct keel_node *node, uint16_t which, bool is_away)
{
    struct keel_away *away = &node->away;
    if (which == 0 || which >= node->config.node_count)
        return KEEL_INVALID;
    if (!is_certain(node))
        return KEEL_OK; /* it is asked again */
    if (keel_bitset_has(&away->set, which) == is_away) {
        keel_leaving_tell_again(node, which);
        return KEEL_OK;
    }
    const uint64_t term = node->term.ballot.counter, of_term = term < term_max ? term << VERSION_BITS : 0;
    const uint64_t next = (away->version >> NODE_BITS) + 1;
    if (next > count_max)
        return KEEL_LIMIT; /* no node would take a higher one */
    away->version = (next > of_term ? next : of_term) << NODE_BITS | node->config.node;
    memset(&node->children.knows, 0, sizeof node->children.knows);
    set(node, which, is_away);
    const struct keel_membership *m = &node->leader->membership;
    for (uint16_t to = 0; to < m->node_count; to++)
        if (to != node->config.node && m->nodes[to].heard && !m->nodes[to].exited && !m->nodes[to].ended)
            tell(node, to);
    return KEEL_OK;
}

void keel_away_message(struct keel_node *node, uint16_t from)
{
    const struct keel_wire_away *in = &node->scratch->in.as.away;
    struct keel_bitset all = {.some = {0}};
    if (in->version <= node->away.version || from == node->config.node)
        return;
    for (uint16_t i = 0; i < in->count; i++)
        if (in->nodes[i] < node->config.node_count)
            keel_bitset_add(&all, in->nodes[i]);
    node->away.version = in->version;
    if (keel_node_leads(node))
        memset(&node->children.knows, 0, sizeof node->children.knows);
    for (uint16_t which = 1; which < node->config.node_count; which++)
        set(node, which, keel_bitset_has(&all, which));
}
