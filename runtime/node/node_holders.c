/* node_holders.c - which nodes hold the register from the next view on, as who leads sees them.
 *
 * Owns the choice alone: that a change of holders is safe is up to register.h, and any choice is. As many as
 * the job wants, where so many are there, in as many hosts or racks as there are; who leads is one of them,
 * and a holder that is there stays one, where that costs no spread. One that is gone gives way to another at
 * once; where there is no other it stays named for five timeouts, since it may come back with what it
 * promised, and then the others are fewer: of three, one, whose majority no longer wants who is lost. */
#include "node_state.h"

struct seats {
    struct keel_view_holders chosen;
    uint32_t domains[KEEL_HOLDERS_MAX];
    uint8_t wanted;
};

static uint32_t domain_of(const struct keel_node *node, uint16_t which)
{
    return node->env->domain != NULL ? node->env->domain(node->env->context, which) : which;
}

static uint32_t disk_of(const struct keel_node *node, uint16_t which)
{
    return which == node->config.node ? node->reg.disk : node->leader->membership.nodes[which].disk;
}

/* It is heard, can hold the register, and is not to leave. */
static bool is_there(const struct keel_node *node, uint16_t which)
{
    const struct keel_membership *m = &node->leader->membership;
    const struct keel_seen_node *seen = &m->nodes[which];
    if (which == node->config.node)
        return true;
    return which < m->node_count && seen->heard && !seen->exited && !seen->ended &&
           seen->disk != KEEL_DISK_NONE && !keel_bitset_has(&m->leaving, which) &&
           !keel_node_due(node, seen->heard_ns + node->times.silence_ns);
}

bool keel_holders_lives(const struct keel_node *node, const struct keel_view_holder *holder)
{
    return is_there(node, holder->node) && disk_of(node, holder->node) == holder->disk;
}

/* Of a holder that is not there: it had time to come back. */
static bool is_lost(const struct keel_node *node, uint16_t which)
{
    const struct keel_seen_node *seen = &node->leader->membership.nodes[which];
    const uint64_t heard_ns = seen->heard ? seen->heard_ns : node->leader->lead_ns;
    return keel_node_due(node, heard_ns + node->times.launcher_timeout_ns);
}

static void seat(struct seats *seats, uint16_t node, uint32_t disk, uint32_t domain)
{
    const uint8_t at = seats->chosen.count++;
    seats->chosen.at[at] = (struct keel_view_holder){.node = node, .disk = disk};
    seats->domains[at] = domain;
}

/* If its domain has no seat yet, or it is not asked for one of its own. */
static void seat_if_free(const struct keel_node *node, struct seats *seats, uint16_t which, bool alone)
{
    const uint32_t domain = domain_of(node, which);
    if (seats->chosen.count == seats->wanted || keel_view_holders_has(&seats->chosen, which) ||
        !is_there(node, which))
        return;
    for (uint8_t i = 0; i < seats->chosen.count && alone; i++)
        if (seats->domains[i] == domain)
            return;
    seat(seats, which, disk_of(node, which), domain);
}

/* Who holds it now comes first, then by number. */
static void seat_those_there(const struct keel_node *node, const struct keel_view_holders *now,
                             struct seats *seats, bool alone)
{
    for (uint8_t i = 0; i < now->count; i++)
        seat_if_free(node, seats, now->at[i].node, alone);
    for (uint16_t i = 0; i < node->leader->membership.node_count && seats->chosen.count < seats->wanted; i++)
        seat_if_free(node, seats, i, alone);
}

void keel_holders_choose(const struct keel_node *node, const struct keel_view_holders *now,
                         struct keel_view_holders *out)
{
    struct seats seats = {.wanted = (uint8_t)node->config.holder_count};
    if (!keel_node_moves(node)) {
        *out = (struct keel_view_holders){.count = 0};
        return;
    }
    seat_if_free(node, &seats, node->config.node, true);
    seat_those_there(node, now, &seats, true);
    seat_those_there(node, now, &seats, false);
    for (uint8_t i = 0; i < now->count && seats.chosen.count < seats.wanted; i++)
        if (!keel_view_holders_has(&seats.chosen, now->at[i].node) && !is_lost(node, now->at[i].node))
            seat(&seats, now->at[i].node, now->at[i].disk, 0);
    seats.chosen.count = (uint8_t)(seats.chosen.count - (seats.chosen.count % 2 == 0 ? 1 : 0));
    /* The same in another order are the same. */
    bool same = seats.chosen.count == now->count;
    for (uint8_t i = 0; i < now->count && same; i++) {
        bool found = false;
        for (uint8_t k = 0; k < seats.chosen.count; k++)
            found = found || (seats.chosen.at[k].node == now->at[i].node &&
                              seats.chosen.at[k].disk == now->at[i].disk);
        same = found;
    }
    *out = same ? *now : seats.chosen;
    KEEL_ASSERT(keel_view_holders_valid(out) && out->count > 0);
}

static uint8_t count_there(const struct keel_node *node, const struct keel_view_holders *holders)
{
    uint8_t count = 0;
    for (uint8_t i = 0; i < holders->count; i++)
        count = (uint8_t)(count + (keel_holders_lives(node, &holders->at[i]) ? 1 : 0));
    return count;
}

bool keel_holders_due(const struct keel_node *node)
{
    const struct keel_view_holders *now = keel_node_holders(node);
    const uint8_t there = count_there(node, now);
    struct keel_view_holders next;
    if (!keel_node_moves(node) || (there == now->count && there == node->config.holder_count))
        return false;
    keel_holders_choose(node, now, &next);
    const uint8_t then = count_there(node, &next);
    /* More of them, or a majority of fewer that none of the lost has a part in. */
    return then > there || (there < now->count && then == next.count && next.count < now->count);
}
