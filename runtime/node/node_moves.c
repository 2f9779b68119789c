/* node_moves.c - who leads, where three holders or more keep the register: any holder may.
 *
 * Where the launcher alone holds it, it leads, and its term is its incarnation: another process may take its
 * place (succession.h), and agents send that one again what the last may have had alone.
 *
 * Owns terms (node_state.h), and when a holder stands, leads, or follows again. A leader that is silent for a
 * lease (the timeout) is replaced by the next holder, by number; by the one after that when half a timeout
 * later nobody leads, and so on. Who stands asks a majority of the holders to read: from then on no earlier
 * ballot can change the view. Holders do not answer it as long as they hear their leader, so that one who is
 * cut off deposes nobody. What the last leader knew comes from reports, records and shards that all nodes
 * send to the new one; it makes a view in which all stay who live, and workers notice nothing else. */
#include "node_state.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

static uint16_t node_of(const struct keel_ballot *ballot)
{
    return (uint16_t)(ballot->node & UINT16_MAX);
}

static bool may_lead(const struct keel_node *node)
{
    return keel_node_moves(node) && keel_view_holders_has(keel_node_holders(node), node->config.node);
}

/* A term of 0 is the launcher's, before its first view. */
static bool is_of(const struct keel_ballot *term, uint16_t node)
{
    return term->counter == 0 ? node == 0 : node_of(term) == node;
}

/* ---- following ----------------------------------------------------------------------------------------- */

/* For a while: another stands too, or the leader is heard again. */
static void stand_down(struct keel_node *node)
{
    const uint64_t pause_ns = node->times.silence_ns / 4;
    node->term.role = KEEL_FOLLOWS;
    node->term.stand_ns = node->now_ns + pause_ns + node->env->random(node->env->context) % (pause_ns + 1);
    node->leader = NULL;
    keel_register_rest(&node->reg);
}

static void follow(struct keel_node *node, const struct keel_ballot *ballot, uint16_t leader)
{
    struct keel_term *term = &node->term;
    if (term->role != KEEL_FOLLOWS) {
        keel_node_trace(node, "node %u leads no more: node %u does, term %" PRIu64, node->config.node, leader,
                        ballot->counter);
        if (node->reg.phase != KEEL_REGISTER_IDLE)
            keel_register_rest(&node->reg);
        if (term->role == KEEL_LEADS && node->leader->stopping)
            node->agent.stopping = true;
        if (term->role == KEEL_LEADS && node->leader->next_step > node->agent.next_step)
            node->agent.next_step = node->leader->next_step;
    }
    term->role = KEEL_FOLLOWS;
    node->leader = NULL;
    term->ballot = *ballot;
    term->leader = leader;
    term->stand_ns = 0;
    keel_agent_turn_to_leader(node);
}

bool keel_moves_follow(struct keel_node *node, uint16_t from, const struct keel_ballot *ballot)
{
    struct keel_term *term = &node->term;
    const int order = keel_ballot_compare(*ballot, term->ballot);
    if (!keel_node_moves(node)) {
        if (from != 0 || node->config.launcher || order < 0)
            return false;
        if (order > 0)
            keel_agent_turn_to_leader(node);
        term->ballot = *ballot;
        return true;
    }
    const bool same_life = from == term->leader && ballot->node == term->ballot.node;
    if (!is_of(ballot, from) || (from == node->config.node && !keel_node_leads(node)))
        return false; /* or said when this node led */
    if (order > 0 && !same_life)
        follow(node, ballot, from);
    if (order > 0 || (order == 0 && from == term->leader)) {
        term->ballot = *ballot;
        if (term->role == KEEL_STANDS)
            stand_down(node);
        return true;
    }
    if (from != term->leader && keel_node_due(node, term->answered_ns + node->times.beat_ns)) {
        term->answered_ns = node->now_ns; /* it leads no more, and does not know */
        keel_agent_report_to(node, from);
    }
    return false;
}

bool keel_moves_hear(struct keel_node *node, const struct keel_ballot *ballot)
{
    if (!keel_node_moves(node) || keel_ballot_compare(*ballot, node->term.ballot) <= 0 ||
        node_of(ballot) == node->config.node || node_of(ballot) >= KEEL_NODES_MAX)
        return true; /* of an earlier life of this node, maybe: its next change raises the term */
    follow(node, ballot, node_of(ballot));
    return false;
}

/* ---- standing ------------------------------------------------------------------------------------------ */

static uint8_t place_among(const struct keel_view_holders *holders, uint16_t node)
{
    for (uint8_t i = 0; i < holders->count; i++)
        if (holders->at[i].node == node)
            return i;
    return 0;
}

/* For the first in the round after the leader a lease after it was heard. */
static uint64_t stand_ns(const struct keel_node *node)
{
    const struct keel_view_holders *holders = keel_node_holders(node);
    const uint32_t self = place_among(holders, node->config.node),
                   its = place_among(holders, node->term.leader);
    const uint32_t away = (self + holders->count - its) % holders->count;
    const uint64_t lease_ns = node->agent.leader_ns + node->times.silence_ns;
    const uint64_t due_ns = lease_ns + (away > 0 ? away - 1 : 0) * node->times.silence_ns / 2;
    return due_ns > node->term.stand_ns ? due_ns : node->term.stand_ns;
}

void keel_moves_clear(struct keel_leader *leader)
{
    struct keel_carriers *carriers = &leader->carriers;
    memset(carriers->incarnation, 0, carriers->rows * sizeof carriers->incarnation[0]);
    memset(carriers, 0, offsetof(struct keel_carriers, incarnation));
    memset(leader->notes, 0, sizeof leader->notes);
    keel_membership_init(&leader->membership, 0, 0, 0);
    memset(&leader->earlier, 0, offsetof(struct keel_view, members));
    memset(&leader->before, 0, offsetof(struct keel_view, members));
    memset(&leader->verdict, 0, offsetof(struct keel_verdict, joins));
    for (uint32_t i = 0; i < KEEL_SHARDS_PENDING; i++)
        memset(&leader->snapshots[i], 0, offsetof(struct keel_snapshot_set, shards));
    for (uint32_t i = 0; i < KEEL_REGISTER_ASKED_MAX; i++) {
        memset(&leader->replies[i].have, 0, sizeof leader->replies[i].have);
        memset(&leader->replies[i].message.head, 0, sizeof leader->replies[i].message.head);
        leader->replies[i].message.value.bytes = 0;
    }
    memset(leader, 0, offsetof(struct keel_leader, earlier));
}

static void stand(struct keel_node *node)
{
    struct keel_term *term = &node->term;
    if (keel_ballot_compare(term->ballot, node->reg.seen) > 0)
        node->reg.seen = term->ballot;
    if (!keel_register_may_begin(&node->reg)) { /* nor may others who heard of that ballot */
        term->stand_ns = node->now_ns + node->times.silence_ns;
        return;
    }
    node->leader = node->config.launcher ? &node->place
                                         : node->env->lead_place(node->env->context, sizeof *node->leader);
    if (node->leader == NULL) { /* no memory: another may */
        term->stand_ns = node->now_ns + node->times.silence_ns;
        return;
    }
    keel_moves_clear(node->leader);
    keel_node_trace(node, "node %u stands for leader: node %u is silent", node->config.node, term->leader);
    term->role = KEEL_STANDS;
    term->resend_ns = node->now_ns + node->times.beat_ns / 2;
    keel_register_begin(&node->reg, node->view.epoch, &node->view.holders);
    keel_node_ask_holders(node);
}

bool keel_moves_may_read(const struct keel_node *node, uint16_t from)
{
    if (!keel_node_moves(node) || from == node->term.leader)
        return true;
    return !keel_node_leads(node) && keel_node_due(node, node->agent.leader_ns + node->times.silence_ns);
}

/* ---- leading ------------------------------------------------------------------------------------------- */

static void announce(struct keel_node *node)
{
    const struct keel_membership *m = &node->leader->membership;
    node->leader->announced_ns = node->now_ns;
    for (uint16_t to = 0; to < m->node_count; to++)
        if (to != node->config.node && !m->nodes[to].heard && !m->nodes[to].exited)
            keel_leader_tell(node, to);
}

static void lead(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    const struct keel_register_value *value = &node->reg.proposal;
    if (value->bytes > 0 && !keel_view_decode(value->data, value->bytes, &leader->earlier)) {
        stand_down(node);
        return;
    }
    node->term.role = KEEL_LEADS;
    node->term.leader = node->config.node;
    keel_moves_raise(node);
    keel_register_rest(&node->reg);
    keel_children_begin(node);
    leader->took_over = true;
    leader->stopping = node->agent.stopping && !node->agent.ending;
    leader->stop_ns = node->now_ns;
    if (!node->config.launcher)
        node->config.first_step = node->agent.first_step;
    keel_leader_start(node, node->agent.next_step > node->config.first_step ? node->agent.next_step
                                                                            : node->config.first_step);
    keel_past_hand_over(node);
    keel_agent_turn_to_leader(node);
    announce(node);
}

void keel_moves_raise(struct keel_node *node)
{
    if (!keel_node_moves(node))
        return;
    KEEL_ASSERT(keel_ballot_compare(node->reg.ballot, node->term.ballot) > 0);
    node->term.ballot = node->reg.ballot;
}

uint32_t keel_moves_lives(const struct keel_node *node)
{
    enum { LIVES = 8, PLACES = 8 };
    _Static_assert((int)KEEL_HOLDERS_MAX <= (int)PLACES, "each holder has lives of its own");
    const uint64_t counter = node->term.ballot.counter; /* two that have the same are two holders */
    if (counter >= (UINT64_C(1) << 24) / (LIVES * PLACES))
        return 0;
    return (uint32_t)counter * LIVES * PLACES +
           place_among(keel_node_holders(node), node->config.node) * LIVES;
}

void keel_moves_register(struct keel_node *node, enum keel_register_outcome outcome)
{
    if (outcome == KEEL_REGISTER_OTHERS) {
        keel_node_ask_holders(node);
    } else if (keel_node_leads(node)) {
        keel_leader_register(node, outcome);
    } else if (node->term.role == KEEL_STANDS && outcome == KEEL_REGISTER_HAVE) {
        lead(node);
    } else if (node->term.role == KEEL_STANDS && outcome == KEEL_REGISTER_REFUSED) {
        stand_down(node);
    }
}

/* Silent are holders and members that were not heard for the timeout: whose process is known to have ended is
 * not cut off. Such a leader convicts nobody: the others have one of their own, or will. */
static bool is_cut_off(const struct keel_node *node)
{
    const struct keel_membership *m = &node->leader->membership;
    const struct keel_view *view = node->leader->awaiting_joins ? &node->leader->earlier : &node->view;
    const struct keel_view_holders *all = keel_node_holders(node);
    uint32_t holders = 0, members = 0;
    for (uint8_t i = 0; i < all->count; i++) {
        const struct keel_seen_node *seen = &m->nodes[all->at[i].node];
        holders += all->at[i].node != node->config.node && !seen->exited &&
                           keel_node_due(node, seen->heard_ns + node->times.silence_ns)
                       ? 1
                       : 0;
    }
    if (holders == 0 || holders * 2 < all->count)
        return false;
    for (uint16_t i = 0; i < view->member_count; i++) {
        const struct keel_seen_node *seen = &m->nodes[view->members[i].node];
        members += !seen->exited && keel_node_due(node, seen->heard_ns + node->times.silence_ns) ? 1 : 0;
    }
    return members * 2 > view->member_count;
}

void keel_moves_work(struct keel_node *node)
{
    struct keel_term *term = &node->term;
    if (!may_lead(node) || (term->role == KEEL_LEADS && node->leader->ending))
        return;
    if (term->role == KEEL_LEADS && is_cut_off(node)) {
        follow(node, &term->ballot, node->config.node);
        return;
    }
    if (term->role == KEEL_LEADS) {
        const uint64_t due_ns = node->leader->announced_ns + node->times.beat_ns;
        if (node->leader->awaiting_joins && keel_node_due(node, due_ns))
            announce(node);
        return;
    }
    if (node->agent.ending)
        return;
    if (term->role == KEEL_FOLLOWS) {
        if (keel_node_due(node, stand_ns(node)))
            stand(node);
        else
            keel_node_wake(node, stand_ns(node));
    }
    if (term->role != KEEL_STANDS)
        return;
    if (keel_node_due(node, term->resend_ns)) {
        term->resend_ns = node->now_ns + node->times.beat_ns / 2;
        keel_node_ask_holders(node);
    }
    if (term->role == KEEL_STANDS)
        keel_node_wake(node, term->resend_ns);
}
