/* flow.c - the progress thread's half of an operation: what to send next, where a message belongs, the end.
 *
 * The rule that everything rests on: the first message of an operation from a rank says that the rank has
 * begun it, every pair of ranks in an operation exchanges one, and no data beyond a small eager payload is
 * sent to a rank before its first message has come. So whatever arrives has its place waiting, receives are
 * always reposted, and only first messages are ever kept for later: at most KEEL_OPERATIONS_MAX a peer,
 * because no operation ends anywhere before it has begun everywhere. */
#include "group.h"

#include <keel/memory.h>
#include <string.h>

/* ---- the table ------------------------------------------------------------------------------------------
 */

static struct keel_operation **table_slot(struct keel_group *group, uint64_t sequence)
{
    return &group->table[sequence % KEEL_TABLE_SLOTS];
}

static struct keel_operation *find(struct keel_group *group, uint64_t sequence, uint32_t lane, uint32_t rank)
{
    for (struct keel_operation *at = *table_slot(group, sequence); at != NULL; at = at->next_in_table)
        if (at->sequence == sequence && at->lane == lane && at->legs[rank].used)
            return at;
    return NULL;
}

static void table_remove(struct keel_operation *operation)
{
    struct keel_operation **at = table_slot(operation->group, operation->sequence);
    while (*at != operation)
        at = &(*at)->next_in_table;
    *at = operation->next_in_table;
    operation->linked = false;
}

/* ---- work lists -------------------------------------------------------------------------------------------
 */

void keel_flow_queue(struct keel_leg *leg)
{
    struct keel_peer *peer = &leg->operation->group->peers[leg->rank];
    if (leg->queued || leg->operation->ended)
        return;
    leg->queued = true;
    leg->next_work = NULL;
    leg->previous_work = peer->work_last;
    if (peer->work_last != NULL)
        peer->work_last->next_work = leg;
    else
        peer->work = leg;
    peer->work_last = leg;
}

void keel_flow_unqueue(struct keel_leg *leg)
{
    struct keel_peer *peer = &leg->operation->group->peers[leg->rank];
    if (!leg->queued)
        return;
    leg->queued = false;
    if (leg->previous_work != NULL)
        leg->previous_work->next_work = leg->next_work;
    else
        peer->work = leg->next_work;
    if (leg->next_work != NULL)
        leg->next_work->previous_work = leg->previous_work;
    else
        peer->work_last = leg->previous_work;
}

/* ---- the end
 * ------------------------------------------------------------------------------------------------ */

/* A success is forgotten here at once, since its waiter may free it; a failure stays in the table until the
 * group is closed, so that what still comes for it has a place to be dropped. */
void keel_flow_end(struct keel_operation *operation, enum keel_status status)
{
    struct keel_group *group = operation->group;
    struct keel_endpoint *endpoint = group->endpoint;
    if (operation->ended)
        return;
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        keel_flow_unqueue(&operation->legs[rank]);
    operation->ended = true;
    group->active--;
    if (status == KEEL_OK && operation->linked)
        table_remove(operation);
    keel_reduce_release(operation);
    keel_mutex_lock(&endpoint->lock);
    operation->done = true;
    operation->status = status;
    keel_cond_broadcast(&endpoint->changed);
    keel_mutex_unlock(&endpoint->lock);
}

static bool leg_whole(const struct keel_leg *leg)
{
    return leg->first_sent && leg->first_got && leg->in_flight == 0 && leg->body_sent == leg->body_bytes &&
           leg->into_got == leg->into_bytes && leg->give_chunk == leg->give_chunks &&
           leg->take_chunk == leg->take_chunks;
}

/* True when that ended the operation, which the caller then no longer touches. */
static bool settle(struct keel_leg *leg)
{
    struct keel_operation *operation = leg->operation;
    if (operation->ended || leg->settled || !leg_whole(leg))
        return operation->ended;
    leg->settled = true;
    atomic_fetch_and(&operation->awaited, ~(UINT64_C(1) << leg->rank));
    if (--operation->open_legs > 0 || operation->summed < operation->chunks)
        return false;
    keel_flow_end(operation, KEEL_OK);
    return true;
}

/* A rank that died takes all operations with it, also those that had all they wanted from it: others in them
 * had not. One that left in order takes only what still waits for it. */
void keel_flow_without(struct keel_group *group, uint32_t rank, enum keel_status status)
{
    for (uint32_t slot = 0; slot < KEEL_TABLE_SLOTS; slot++)
        for (struct keel_operation *at = group->table[slot]; at != NULL; at = at->next_in_table)
            if (at->legs[rank].used && (status == KEEL_PEER_LOST || !at->legs[rank].settled))
                keel_flow_end(at, status);
    struct keel_peer *peer = &group->peers[rank];
    while (peer->early != NULL) {
        struct keel_early *early = peer->early;
        peer->early = early->next;
        keel_free(early);
    }
    peer->early_count = 0;
}

/* ---- sending
 * --------------------------------------------------------------------------------------------------- */

static struct keel_message message_of(const struct keel_leg *leg, enum keel_message_kind kind)
{
    const struct keel_operation *operation = leg->operation;
    return (struct keel_message){.kind = (uint16_t)kind,
                                 .epoch = operation->group->epoch,
                                 .sequence = operation->sequence,
                                 .lane = operation->lane};
}

static enum keel_flow_send flow_result(enum keel_send result)
{
    if (result == KEEL_SEND_OK || result == KEEL_SEND_DONE)
        return KEEL_FLOW_SENT;
    return result == KEEL_SEND_LATER ? KEEL_FLOW_LATER : KEEL_FLOW_BROKEN;
}

static enum keel_flow_send send_first(struct keel_leg *leg, struct keel_line *link, bool *out_retry)
{
    const struct keel_operation *operation = leg->operation;
    uint8_t packed[KEEL_EAGER_BYTES];
    const uint8_t *payload = leg->body;
    struct keel_message message = message_of(leg, KEEL_MESSAGE_FIRST);
    message.part = (uint16_t)operation->kind;
    message.offset = operation->signature;
    if (operation->kind != KEEL_OPERATION_REDUCE) {
        message.bytes = leg->body_bytes <= KEEL_EAGER_BYTES ? (uint32_t)leg->body_bytes : 0;
    } else if (operation->eager && leg->give_chunks > 0) {
        message.bytes = keel_reduce_pack(leg, packed);
        payload = packed;
    }
    enum keel_flow_send result = flow_result(keel_line_send(link, &message, payload, false, NULL, out_retry));
    if (result == KEEL_FLOW_SENT) {
        leg->first_sent = true;
        if (operation->kind != KEEL_OPERATION_REDUCE)
            leg->body_sent = message.bytes;
        else if (message.bytes > 0)
            leg->give_chunk = leg->give_chunks;
    }
    return result;
}

static enum keel_flow_send send_grant(struct keel_leg *leg, struct keel_line *link, bool *out_retry)
{
    struct keel_message message = message_of(leg, KEEL_MESSAGE_GRANT);
    message.offset = leg->grant;
    enum keel_flow_send result = flow_result(keel_line_send(link, &message, NULL, false, NULL, out_retry));
    if (result == KEEL_FLOW_SENT)
        leg->grant_told = leg->grant;
    return result;
}

static enum keel_flow_send send_part(struct keel_leg *leg, struct keel_line *link, bool *out_retry)
{
    struct keel_message message = message_of(leg, KEEL_MESSAGE_PART);
    message.part = (uint16_t)leg->give_node;
    message.offset = leg->give_chunk;
    const float *chunk = keel_reduce_chunk(leg, &message.bytes);
    enum keel_send result = keel_line_send(link, &message, chunk, true, leg, out_retry);
    leg->in_flight += result == KEEL_SEND_OK;
    if (flow_result(result) == KEEL_FLOW_SENT) {
        if (++leg->give_node == leg->give_nodes) {
            leg->give_node = 0;
            leg->give_chunk++;
        }
    }
    return flow_result(result);
}

static enum keel_flow_send send_body(struct keel_leg *leg, struct keel_line *link, bool *out_retry)
{
    struct keel_message message = message_of(leg, KEEL_MESSAGE_BODY);
    uint64_t left = leg->body_ready - leg->body_sent;
    message.offset = leg->body_sent;
    message.bytes = left < KEEL_CHUNK_BYTES ? (uint32_t)left : KEEL_CHUNK_BYTES;
    enum keel_send result = keel_line_send(link, &message, leg->body + leg->body_sent, true, leg, out_retry);
    leg->in_flight += result == KEEL_SEND_OK;
    if (flow_result(result) == KEEL_FLOW_SENT) {
        leg->body_sent += message.bytes;
    }
    return flow_result(result);
}

enum keel_flow_send keel_flow_send(struct keel_leg *leg, struct keel_line *link, bool *out_retry)
{
    enum keel_flow_send result = KEEL_FLOW_NOTHING;
    if (!leg->first_sent)
        result = send_first(leg, link, out_retry);
    else if (leg->grant_told < leg->grant)
        result = send_grant(leg, link, out_retry);
    else if (leg->give_chunk < leg->granted)
        result = send_part(leg, link, out_retry);
    else if (leg->first_got && leg->body_sent < leg->body_ready)
        result = send_body(leg, link, out_retry);
    if (result == KEEL_FLOW_SENT)
        settle(leg);
    return result;
}

void keel_flow_sent(struct keel_leg *leg)
{
    KEEL_ASSERT(leg->in_flight > 0);
    leg->in_flight--;
    settle(leg);
}

/* ---- receiving
 * ------------------------------------------------------------------------------------------------- */

static uint16_t kind_facing(enum keel_operation_kind kind)
{
    if (kind == KEEL_OPERATION_SEND)
        return KEEL_OPERATION_RECEIVE;
    return (uint16_t)(kind == KEEL_OPERATION_RECEIVE ? KEEL_OPERATION_SEND : kind);
}

static bool take_body(struct keel_leg *leg, uint64_t offset, const uint8_t *payload, uint32_t bytes)
{
    if (offset != leg->into_got || bytes > leg->into_bytes - leg->into_got)
        return false;
    if (bytes == 0)
        return true;
    memcpy(leg->into + offset, payload, bytes);
    leg->into_got += bytes;
    return true;
}

static bool take_first(struct keel_leg *leg, const struct keel_message *message, const uint8_t *payload)
{
    struct keel_operation *operation = leg->operation;
    if (leg->first_got)
        return false;
    if (message->part != kind_facing(operation->kind) || message->offset != operation->signature) {
        keel_flow_end(operation, KEEL_MISMATCH);
        return true;
    }
    leg->first_got = true;
    atomic_fetch_and(&operation->unbegun, ~(UINT64_C(1) << leg->rank));
    if (operation->kind == KEEL_OPERATION_REDUCE) {
        if (message->bytes > 0 && !keel_reduce_first(leg, message, payload))
            return false;
        if (++operation->begun_legs == operation->leg_count)
            keel_reduce_all_begun(operation);
        if (!operation->ended)
            keel_reduce_advance(operation);
    } else {
        leg->body_ready = leg->body_bytes;
        if (!take_body(leg, 0, payload, message->bytes))
            return false;
    }
    keel_flow_queue(leg);
    settle(leg);
    return true;
}

static bool keep_early(struct keel_peer *peer, const struct keel_message *message, const uint8_t *payload)
{
    struct keel_early *early;
    if (message->kind != KEEL_MESSAGE_FIRST || peer->early_count == KEEL_OPERATIONS_MAX ||
        message->bytes > KEEL_EAGER_BYTES || keel_alloc(1, sizeof *early + message->bytes, &early) != KEEL_OK)
        return false;
    early->message = *message;
    memcpy(early->payload, payload, message->bytes);
    early->next = peer->early;
    peer->early = early;
    peer->early_count++;
    return true;
}

/* An end of the operation inside keel_reduce_advance or settle may free it: touch nothing afterwards. */
static bool take_data(struct keel_leg *leg, const struct keel_message *message, const uint8_t *payload)
{
    struct keel_operation *operation = leg->operation;
    switch (message->kind) {
    case KEEL_MESSAGE_GRANT:
        if (message->offset > leg->give_chunks || message->offset < leg->granted)
            return false;
        leg->granted = message->offset;
        keel_flow_queue(leg);
        return true;
    case KEEL_MESSAGE_PART:
        if (operation->staging == NULL || !keel_reduce_part(leg, message, payload))
            return false;
        keel_reduce_advance(operation);
        settle(leg);
        return true;
    case KEEL_MESSAGE_BODY:
        if (!take_body(leg, message->offset, payload, message->bytes))
            return false;
        settle(leg);
        return true;
    default:
        return false;
    }
}

bool keel_flow_arrived(struct keel_group *group, uint32_t rank, const struct keel_message *message,
                       const uint8_t *payload)
{
    struct keel_operation *operation = find(group, message->sequence, message->lane, rank);
    if (operation == NULL)
        return keep_early(&group->peers[rank], message, payload);
    struct keel_leg *leg = &operation->legs[rank];
    if (operation->ended)
        return true;
    if (message->kind == KEEL_MESSAGE_FIRST)
        return take_first(leg, message, payload);
    return leg->first_got && take_data(leg, message, payload);
}

/* ---- beginning
 * --------------------------------------------------------------------------------------------------- */

static struct keel_early *early_of(struct keel_peer *peer, const struct keel_operation *operation)
{
    for (struct keel_early **at = &peer->early; *at != NULL; at = &(*at)->next) {
        struct keel_early *early = *at;
        if (early->message.sequence != operation->sequence || early->message.lane != operation->lane)
            continue;
        *at = early->next;
        peer->early_count--;
        return early;
    }
    return NULL;
}

static enum keel_status may_begin(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        if (!operation->legs[rank].used)
            continue;
        if (find(group, operation->sequence, operation->lane, rank) != NULL)
            return KEEL_INVALID;
        if (group->peers[rank].state == KEEL_PEER_LOST_STATE)
            return KEEL_PEER_LOST;
        if (group->peers[rank].state == KEEL_PEER_LEFT)
            return group->peers[rank].parting;
    }
    return KEEL_OK;
}

/* Talking to a rank may end the operation, and with it its legs: they are all queued before. */
static void begin_legs(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    bool wanted[KEEL_GROUP_RANKS_MAX] = {false};
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        wanted[rank] = operation->legs[rank].used;
        if (wanted[rank])
            keel_flow_queue(&operation->legs[rank]);
    }
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        if (wanted[rank])
            keel_session_need(group, rank);
}

/* Each early message may be the last thing that the operation waited for on that leg, but none ends it: no
 * first message has been sent yet. */
static void begin_early(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    for (uint32_t rank = 0; rank < group->rank_count && !operation->ended; rank++) {
        struct keel_leg *leg = &operation->legs[rank];
        struct keel_early *early = leg->used ? early_of(&group->peers[rank], operation) : NULL;
        if (early == NULL)
            continue;
        if (!take_first(leg, &early->message, early->payload))
            keel_flow_end(operation, KEEL_MISMATCH);
        keel_free(early);
    }
}

void keel_flow_begin(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    group->active++;
    keel_endpoint_at(group->endpoint, keel_deadline_after_ns(KEEL_PING_NS));
    enum keel_status status = may_begin(operation);
    if (status == KEEL_OK && operation->eager && operation->staging_bytes > 0)
        status = keel_alloc(1, operation->staging_bytes, &operation->staging);
    if (status != KEEL_OK) {
        keel_flow_end(operation, status);
        return;
    }
    struct keel_operation **slot = table_slot(group, operation->sequence);
    operation->next_in_table = *slot;
    *slot = operation;
    operation->linked = true;
    begin_early(operation);
    if (!operation->ended && operation->kind == KEEL_OPERATION_REDUCE)
        keel_reduce_advance(operation);
    if (!operation->ended && operation->open_legs == 0)
        keel_flow_end(operation, KEEL_OK);
    else
        begin_legs(operation);
}
