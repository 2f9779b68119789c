/* trace.c - what the flight recorder is told of operations, and when.
 *
 * Beginnings, first messages, segments and ends as they happen; what is waited for only when progress is
 * about to sleep, and only of operations that have moved since: whoever is busy waits for nobody. All
 * progress. */
#include "group.h"

#include <stdio.h>

void keel_trace_began(struct keel_operation *operation)
{
    const struct keel_signature *signature = &operation->signature;
    struct keel_collective collective = {.kind = signature->kind,
                                         .sequence = operation->sequence,
                                         .element = signature->element,
                                         .reduction = signature->reduction,
                                         .algorithm = signature->algorithm,
                                         .root = signature->root};
    uint64_t given = operation->part_cut.total, got = operation->result_cut.total;
    if (operation->lane != 0) /* of a pair the other rank */
        collective.root = operation->flows[0].rank;
    operation->waits_told = false;
    operation->record = keel_recorder_began(operation->group->endpoint->recorder, operation->group->record,
                                            &collective, given > got ? given : got, operation->segment_count,
                                            operation->group->endpoint->now_ns);
}

/* The message has just come: when, is known of its peer. */
void keel_trace_first(struct keel_operation *operation, const struct keel_flow *flow)
{
    const struct keel_peer *peer = atomic_load_explicit(&flow->peer, memory_order_relaxed);
    keel_recorder_first(operation->group->endpoint->recorder, operation->record, flow->rank,
                        atomic_load_explicit(&peer->heard_ns, memory_order_relaxed));
}

void keel_trace_segment(struct keel_operation *operation)
{
    if (operation->segment_count > 1) /* of the others the end says as much */
        keel_recorder_segment(operation->group->endpoint->recorder, operation->record, operation->lowest,
                              KEEL_RECORD_NONE, keel_now_ns());
}

void keel_trace_ended(struct keel_operation *operation, enum keel_status status)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    keel_recorder_ended(endpoint->recorder, operation->record, status,
                        operation->segment_count > 1 ? keel_now_ns() : endpoint->now_ns);
}

/* ---- what is waited for -------------------------------------------------------------------------------- */

static bool wants(const struct keel_flow *flow, enum keel_record_want want)
{
    bool begun = atomic_load_explicit(&flow->begun, memory_order_relaxed);
    switch (want) {
    case KEEL_RECORD_WANT_FIRST:
        return !begun;
    case KEEL_RECORD_WANT_DATA:
        return begun && keel_engine_awaits(flow);
    case KEEL_RECORD_WANT_ROOM:
        return begun && keel_engine_is_held(flow);
    case KEEL_RECORD_WANT_SENT:
        return flow->in_flight > 0 || !flow->first_sent;
    default:
        return false;
    }
}

/* The first want that somebody is to fulfil, and who. */
static void tell_waits(struct keel_operation *operation)
{
    uint16_t ranks[KEEL_RECORD_AWAITED];
    uint32_t count = 0, want = KEEL_RECORD_WANT_NOTHING;
    while (count == 0 && ++want < KEEL_RECORD_WANT_COUNT)
        for (uint32_t k = 0; k < operation->flow_count; k++) {
            const struct keel_flow *flow = &operation->flows[k];
            if (atomic_load_explicit(&flow->settled, memory_order_relaxed) || !wants(flow, want))
                continue;
            if (count < KEEL_RECORD_AWAITED)
                ranks[count] = (uint16_t)flow->rank;
            count++;
        }
    keel_recorder_waits(operation->group->endpoint->recorder, operation->record,
                        count > 0 ? want : KEEL_RECORD_WANT_NOTHING, ranks, count);
    operation->waits_told = true;
}

void keel_trace_idle(struct keel_endpoint *endpoint)
{
    struct keel_group *whole = endpoint->current;
    keel_recorder_progress(endpoint->recorder, keel_now_ns());
    for (uint32_t slot = 0; whole != NULL && whole->active > 0 && slot < KEEL_TABLE_SLOTS; slot++)
        for (struct keel_operation *at = whole->table[slot]; at != NULL; at = at->next_in_table)
            if (!at->ended && !at->waits_told)
                tell_waits(at);
}

void keel_trace_describe(struct keel_operation *operation, char *out, size_t out_bytes)
{
    if (operation->ended || !operation->linked)
        return;
    tell_waits(operation);
    keel_recorder_describe(operation->group->endpoint->recorder, operation->record, keel_now_ns(), out,
                           out_bytes);
}
