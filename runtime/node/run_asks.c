/* run_asks.c - see run_asks.h. */
#include "run_asks.h"

#include <keel/clock.h>
#include <stdio.h>

void keel_drain_text(uint16_t node, enum keel_drain_news news, uint16_t ranks, uint16_t fewest,
                     char out[KEEL_DRAIN_TEXT_BYTES])
{
    if (news == KEEL_DRAIN_LEFT)
        snprintf(out, KEEL_DRAIN_TEXT_BYTES, "node %u has left the run; keel job add brings it back", node);
    else if (news == KEEL_DRAIN_OVER)
        snprintf(out, KEEL_DRAIN_TEXT_BYTES, "node %u is wanted again", node);
    else if (news == KEEL_DRAIN_HOLDS)
        snprintf(out, KEEL_DRAIN_TEXT_BYTES,
                 "node %u stays for now: without it %u holders of the view are left, and %u decide "
                 "(cluster.holders)",
                 node, ranks, fewest);
    else
        snprintf(out, KEEL_DRAIN_TEXT_BYTES,
                 "node %u stays for now: without it %u ranks are left, and the smallest plan needs %u", node,
                 ranks, fewest);
}

static void step(struct keel_control_plane *control, const struct keel_handover_ask *ask)
{
    keel_control_step(control, &(struct keel_node_event){.kind = KEEL_EVENT_DRAIN,
                                                         .node = ask->node,
                                                         .value = ask->wish == KEEL_WISH_DRAIN ? 1 : 0});
}

enum keel_status keel_run_asks_take(struct keel_control_plane *control, const struct keel_handover_ask *ask)
{
    struct keel_node_away away;
    keel_node_away(control->node, keel_now_ns(), ask->node, &away);
    if (ask->wish == KEEL_WISH_ADD && away.settled && !away.asked)
        return keel_fail(KEEL_INVALID, "says that node %u was not drained: there is nothing to bring back",
                         ask->node);
    step(control, ask);
    return KEEL_OK;
}

bool keel_run_asks_look(struct keel_control_plane *control, const struct keel_handover_ask *ask,
                        char why[KEEL_DRAIN_TEXT_BYTES])
{
    struct keel_node_away away;
    const bool wanted = ask->wish == KEEL_WISH_DRAIN;
    why[0] = '\0';
    keel_node_away(control->node, keel_now_ns(), ask->node, &away);
    if (!away.settled)
        return false;
    if (away.asked != wanted) {
        step(control, ask);
        return false;
    }
    if (away.stays)
        keel_drain_text(ask->node, away.why, away.left_count, away.fewest, why);
    return away.told && (away.left || !wanted);
}
