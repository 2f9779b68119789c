/* node_past.c - what who leads must know of the steps before, and the next one too: how it comes there.
 *
 * Owns one small text, which is its environment's: the leader's says what it is, of which step, the leader
 * tells the other holders, who alone may lead next, and the one that does hands it over. The newest counts,
 * whoever said it: it follows from the steps alone. What was delivered behind it is delivered again, as far
 * as this node has the records, so that nothing lacks between the two. */
#include "node_state.h"

#include <inttypes.h>
#include <string.h>

static void tell_holders(struct keel_node *node)
{
    const struct keel_view_holders *holders = keel_node_holders(node);
    struct keel_past *past = &node->past;
    past->sent_ns = node->now_ns;
    for (uint8_t i = 0; i < holders->count; i++) {
        if (holders->at[i].node == node->config.node)
            continue;
        struct keel_wire_past *out = &keel_node_message(node, KEEL_WIRE_PAST)->as.past;
        out->step = past->step;
        out->bytes = (uint16_t)past->bytes;
        memcpy(out->data, past->data, past->bytes);
        keel_node_send(node, holders->at[i].node);
    }
}

static void take(struct keel_node *node, uint64_t step, const uint8_t *data, uint32_t bytes)
{
    struct keel_past *past = &node->past;
    if (bytes == 0 || (past->bytes > 0 && step <= past->step))
        return;
    past->step = step;
    past->bytes = bytes;
    memcpy(past->data, data, bytes);
}

int keel_past_take(struct keel_node *node, const struct keel_node_event *event)
{
    if (!keel_node_moves(node) || event->bytes > KEEL_PAST_BYTES_MAX)
        return KEEL_INVALID;
    take(node, event->value, event->data, event->bytes);
    /* Each step's at once, where steps are not faster than that. */
    if (keel_node_leads(node) && keel_node_due(node, node->past.sent_ns + node->times.beat_ns / 8))
        tell_holders(node);
    return KEEL_OK;
}

void keel_past_message(struct keel_node *node, uint16_t from)
{
    const struct keel_wire_past *in = &node->scratch->in.as.past;
    if (keel_node_moves(node) && from != node->config.node)
        take(node, in->step, in->data, in->bytes);
}

void keel_past_work(struct keel_node *node)
{
    if (!keel_node_moves(node) || node->past.bytes == 0)
        return;
    const uint64_t due_ns = node->past.sent_ns + node->times.beat_ns;
    if (keel_node_due(node, due_ns))
        tell_holders(node);
    else
        keel_node_wake(node, due_ns);
}

void keel_past_replay(struct keel_node *node, uint64_t from, uint64_t to)
{
    if (!keel_node_moves(node))
        return;
    from = from > node->past.step ? from : node->past.step + 1;
    from = from + KEEL_RECORDS_MAX < to ? to - KEEL_RECORDS_MAX : from;
    for (uint64_t step = from; step < to; step++) {
        const struct keel_record_slot *slot = keel_records_get(&node->records, step);
        if (slot != NULL)
            node->env->step_commit(node->env->context, &slot->record);
    }
}

void keel_past_hand_over(struct keel_node *node)
{
    const struct keel_past *past = &node->past;
    if (node->env->past == NULL)
        return;
    keel_node_trace(node,
                    "node %u knows the past of step %" PRIu64 ", and steps from %" PRIu64 " on are wanted",
                    node->config.node, past->step, node->leader->next_step);
    node->env->past(node->env->context, past->data, past->bytes);
    if (past->bytes > 0)
        keel_past_replay(node, past->step + 1, node->leader->next_step);
}
