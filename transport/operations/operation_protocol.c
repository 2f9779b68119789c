/* operation_protocol.c - an operation as a conversation: first messages, grants, data, disagreement, the end.
 *
 * The rule that everything rests on: the first message of an operation from a rank says that the rank has
 * begun it, every pair of ranks that its schedule lets talk exchanges one, and nothing but a first message is
 * sent to a rank before its own has come. Nor does a rank send more segments than the other has room for
 * (grants). So whatever arrives has its place waiting, receives are always reposted, and only first messages
 * are ever kept for later: as many as the peer may have operations in flight, because no operation ends
 * anywhere before its first messages have come. */
#include "group.h"

#include <keel/memory.h>
#include <string.h>

static uint64_t place(uint32_t segment, uint32_t low)
{
    return (uint64_t)segment << 32 | low;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static struct keel_operation **table_slot(struct keel_group *whole, uint32_t number, uint64_t sequence)
{
    return &whole->table[(sequence + number) % KEEL_TABLE_SLOTS];
}

/* By rank in the group; NULL: this operation has nothing to do with it. */
static struct keel_flow *flow_of(const struct keel_operation *operation, uint32_t rank)
{
    uint32_t low = 0, high = operation->flow_count;
    for (uint32_t k = rank > 0 ? rank - 1 : 0; k <= rank && k < high; k++) /* where it talks to everybody */
        if (operation->flows[k].rank == rank)
            return &operation->flows[k];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (operation->flows[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < operation->flow_count && operation->flows[low].rank == rank ? &operation->flows[low] : NULL;
}

/* rank: in the epoch. Of a pair's operations only those of this pair are meant. */
static struct keel_operation *find(struct keel_group *whole, const struct keel_message *message,
                                   uint32_t rank)
{
    struct keel_operation *at = *table_slot(whole, message->group, message->sequence);
    for (; at != NULL; at = at->next_in_table)
        if (at->sequence == message->sequence && at->group->number == message->group &&
            at->lane == message->part &&
            (at->lane == 0 || flow_of(at, keel_group_from_whole(at->group, rank)) != NULL))
            return at;
    return NULL;
}

static void table_remove(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    struct keel_operation **at = table_slot(group->whole, group->number, operation->sequence);
    for (; *at != operation; at = &(*at)->next_in_table)
        KEEL_ASSERT(*at != NULL); /* what is linked lies in its slot */
    *at = operation->next_in_table;
    operation->linked = false;
}

static struct keel_message message_of(const struct keel_operation *operation, enum keel_message_kind kind)
{
    KEEL_ASSERT(kind >= KEEL_MESSAGE_FIRST && kind <= KEEL_MESSAGE_DIFFER && operation->lane <= 2);
    KEEL_ASSERT(operation->group->epoch == operation->group->whole->epoch);
    return (struct keel_message){.kind = (uint16_t)kind,
                                 .part = operation->lane,
                                 .epoch = operation->group->epoch,
                                 .sequence = operation->sequence,
                                 .group = operation->group->number};
}

/* ---- work lists ---------------------------------------------------------------------------------------- */

void keel_protocol_queue(struct keel_flow *flow)
{
    struct keel_peer *peer = atomic_load_explicit(&flow->peer, memory_order_relaxed);
    if (peer == NULL || flow->operation->ended || flow->operation->starting)
        return;
    keel_session_busy(flow->operation->group->whole, peer);
    if (flow->queued)
        return;
    flow->queued = true;
    flow->next_work = NULL;
    flow->previous_work = peer->work_last;
    if (peer->work_last != NULL)
        peer->work_last->next_work = flow;
    else
        peer->work = flow;
    peer->work_last = flow;
}

static void unqueue(struct keel_flow *flow)
{
    struct keel_peer *peer = atomic_load_explicit(&flow->peer, memory_order_relaxed);
    if (!flow->queued)
        return;
    flow->queued = false;
    if (flow->previous_work != NULL)
        flow->previous_work->next_work = flow->next_work;
    else
        peer->work = flow->next_work;
    if (flow->next_work != NULL)
        flow->next_work->previous_work = flow->previous_work;
    else
        peer->work_last = flow->previous_work;
}

/* ---- the end ------------------------------------------------------------------------------------------- */

/* A success is forgotten here at once, since its waiter may free it; a failure stays in the table until the
 * group is closed, so that what still comes for it has a place to be dropped. */
void keel_protocol_end(struct keel_operation *operation, enum keel_status status)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    if (operation->ended)
        return;
    for (uint32_t k = 0; k < operation->flow_count; k++)
        if (operation->flows[k].queued)
            unqueue(&operation->flows[k]);
    if (operation->held_count > 0)
        keel_engine_let_go(operation, false);
    KEEL_ASSERT(operation->group->whole->active > 0);
    KEEL_ASSERT(status != KEEL_OK ||
                (operation->open_flows == 0 && operation->lowest == operation->segment_count));
    operation->ended = true;
    keel_trace_ended(operation, status);
    operation->group->whole->active--;
    if (status == KEEL_OK && operation->linked)
        table_remove(operation);
    operation->status = status;
    atomic_store(&operation->done, true); /* from here on it may be gone */
    if (atomic_load(&endpoint->sleepers) == 0)
        return;
    keel_mutex_lock(&endpoint->lock);
    keel_cond_broadcast(&endpoint->changed);
    keel_mutex_unlock(&endpoint->lock);
}

static bool flow_whole(const struct keel_flow *flow)
{
    return flow->first_sent && atomic_load_explicit(&flow->begun, memory_order_relaxed) &&
           flow->in_flight == 0 && flow->give_left == 0 && flow->take_left == 0 &&
           flow->granted >= flow->give_segments && flow->grant_told >= flow->take_segments;
}

/* True when that ended the operation, which the caller then no longer touches. */
static bool settle(struct keel_flow *flow)
{
    struct keel_operation *operation = flow->operation;
    if (operation->ended)
        return true;
    if (!atomic_load_explicit(&flow->settled, memory_order_relaxed) && flow_whole(flow)) {
        KEEL_ASSERT(operation->open_flows > 0);
        atomic_store_explicit(&flow->settled, true, memory_order_relaxed);
        operation->open_flows--;
    }
    if (operation->open_flows > 0 || operation->lowest < operation->segment_count)
        return false;
    keel_protocol_end(operation, KEEL_OK);
    return true;
}

static bool is_pair(const struct keel_operation *operation)
{
    return operation->lane != 0;
}

/* A rank that died takes all operations of its groups with it, also those of ranks that never talk to it:
 * what they wait for hangs on others that do. One that left in order takes only what still waits for it. */
static bool ends_without(const struct keel_operation *operation, uint32_t rank, enum keel_status status)
{
    uint32_t own = keel_group_from_whole(operation->group, rank);
    if (own == KEEL_NO_RANK)
        return false;
    const struct keel_flow *flow = flow_of(operation, own);
    bool broken = status == KEEL_PEER_LOST || status == KEEL_CORRUPT || status == KEEL_MISMATCH;
    if (broken && !is_pair(operation))
        return true;
    return flow != NULL && (broken || !atomic_load(&flow->settled) || flow->held > 0);
}

/* Word of a disagreement stays: operations that are begun only now are to hear it. */
static void drop_firsts(struct keel_peer *peer)
{
    struct keel_early **at = &peer->early;
    while (*at != NULL) {
        struct keel_early *early = *at;
        if (early->message.kind == KEEL_MESSAGE_DIFFER) {
            at = &early->next;
            continue;
        }
        *at = early->next;
        peer->early_count--;
        keel_free(early);
    }
}

void keel_protocol_without(struct keel_group *whole, uint32_t rank, enum keel_status status)
{
    for (uint32_t slot = 0; slot < KEEL_TABLE_SLOTS; slot++)
        for (struct keel_operation *at = whole->table[slot]; at != NULL; at = at->next_in_table)
            if (ends_without(at, rank, status))
                keel_protocol_end(at, status);
    struct keel_peer *peer = whole->peers[rank];
    if (peer != NULL)
        drop_firsts(peer);
}

/* Its waiters are gone or about to; the recording is to have nothing of it under way. */
void keel_protocol_close(struct keel_group *whole)
{
    for (uint32_t slot = 0; slot < KEEL_TABLE_SLOTS; slot++)
        for (struct keel_operation *at = whole->table[slot]; at != NULL; at = at->next_in_table)
            keel_protocol_end(at, KEEL_REVOKED);
}

/* ---- disagreement -------------------------------------------------------------------------------------- */

static struct keel_signature signature_for(const struct keel_flow *flow)
{
    struct keel_signature signature = flow->operation->signature;
    signature.give_bytes = flow->give_bytes;
    signature.take_bytes = flow->take_bytes;
    return signature;
}

/* Give and take, which are its end, are the other way round there. */
static bool agrees(const struct keel_flow *flow, const struct keel_signature *theirs)
{
    struct keel_signature wanted;
    const struct keel_signature *mine = &flow->operation->signature;
    if (is_pair(flow->operation)) {
        wanted = *mine;
        wanted.kind = mine->kind == KEEL_SEND ? KEEL_RECEIVE : KEEL_SEND;
        wanted.root = theirs->root;
        mine = &wanted;
    }
    return memcmp(mine, theirs, offsetof(struct keel_signature, give_bytes)) == 0 &&
           theirs->give_bytes == flow->take_bytes && theirs->take_bytes == flow->give_bytes;
}

/* Without memory for it the peer learns from others, or by its deadline. */
static void notify(struct keel_group *whole, struct keel_peer *peer, const struct keel_notice *what)
{
    struct keel_notice *notice;
    if (keel_alloc(1, sizeof *notice, &notice) != KEEL_OK)
        return;
    *notice = *what;
    notice->next = peer->notices;
    peer->notices = notice;
    keel_session_busy(whole, peer);
}

static void notify_differ(const struct keel_operation *operation, struct keel_peer *peer)
{
    struct keel_notice notice = {.message = message_of(operation, KEEL_MESSAGE_DIFFER),
                                 .differ = operation->differ};
    notice.message.bytes = sizeof notice.differ;
    if (peer != NULL)
        notify(operation->group->whole, peer, &notice);
}

/* End it, and tell everybody with whom it talks. */
static void disagree(struct keel_operation *operation, const struct keel_differ *differ)
{
    if (operation->ended)
        return;
    operation->differ = *differ;
    operation->group->whole->dispute =
        (struct keel_notice){.message = message_of(operation, KEEL_MESSAGE_DIFFER), .differ = *differ};
    keel_protocol_end(operation, KEEL_MISMATCH);
    for (uint32_t k = 0; k < operation->flow_count; k++)
        notify_differ(operation, atomic_load(&operation->flows[k].peer));
}

/* To a peer that is connected; one that is not yet hears it when it is. */
void keel_protocol_tell_revoked(const struct keel_group *group, struct keel_peer *peer)
{
    const struct keel_notice notice = {
        .message = {.kind = KEEL_MESSAGE_REVOKE, .epoch = group->epoch, .group = group->number}};
    if (peer->state == KEEL_PEER_UP && keel_group_from_whole(group, peer->rank) != KEEL_NO_RANK)
        notify(group->whole, peer, &notice);
}

void keel_protocol_revoked(struct keel_group *whole)
{
    for (struct keel_group *group; (group = keel_group_next_revoked(whole)) != NULL;)
        for (struct keel_peer *peer = whole->peer_list; peer != NULL; peer = peer->next)
            keel_protocol_tell_revoked(group, peer);
}

/* Copied: into the connection; else the other side or the network takes it from where it lies. */
static void count_data(const struct keel_flow *flow, uint64_t bytes, bool copied)
{
    struct keel_endpoint *endpoint = flow->operation->group->endpoint;
    keel_count_add(&endpoint->data_sent, bytes);
    keel_count_add(&endpoint->data_copied, copied ? bytes : 0);
}

/* ---- sending ------------------------------------------------------------------------------------------- */

static enum keel_flow_send flow_result(enum keel_send result)
{
    if (result == KEEL_SEND_OK || result == KEEL_SEND_DONE)
        return KEEL_FLOW_SENT;
    return result == KEEL_SEND_LATER ? KEEL_FLOW_LATER : KEEL_FLOW_BROKEN;
}

static enum keel_flow_send send_first(struct keel_flow *flow, struct keel_connection *link, bool *out_retry)
{
    uint8_t payload[KEEL_EAGER_BYTES];
    uint32_t bytes;
    struct keel_signature signature = signature_for(flow);
    struct keel_message message = message_of(flow->operation, KEEL_MESSAGE_FIRST);
    memcpy(payload, &signature, sizeof signature);
    uint32_t count =
        keel_engine_pack(flow, payload + sizeof signature, KEEL_EAGER_BYTES - sizeof signature, &bytes);
    uint32_t grant = flow->grant;
    KEEL_ASSERT(count <= flow->send_count && bytes <= KEEL_EAGER_BYTES - sizeof signature);
    KEEL_ASSERT(grant <= flow->take_segments && !flow->first_sent);
    message.offset = place(grant, count);
    message.bytes = (uint32_t)sizeof signature + bytes;
    enum keel_flow_send result =
        flow_result(keel_connection_send(link, &message, payload, false, NULL, out_retry));
    if (result == KEEL_FLOW_SENT) {
        flow->first_sent = true;
        flow->grant_told = grant;
        count_data(flow, bytes, true);
        keel_engine_packed(flow, count);
    }
    return result;
}

static enum keel_flow_send send_grant(struct keel_flow *flow, struct keel_connection *link, bool *out_retry)
{
    struct keel_message message = message_of(flow->operation, KEEL_MESSAGE_GRANT);
    KEEL_ASSERT(flow->grant > flow->grant_told && flow->grant <= flow->take_segments);
    message.offset = place(flow->grant, 0);
    enum keel_flow_send result =
        flow_result(keel_connection_send(link, &message, NULL, false, NULL, out_retry));
    if (result == KEEL_FLOW_SENT)
        flow->grant_told = flow->grant;
    return result;
}

static struct keel_ticket *free_ticket(struct keel_flow *flow)
{
    uint32_t all = (UINT32_C(1) << KEEL_FLOW_SENDS) - 1;
    return flow->busy == all ? NULL : &flow->tickets[__builtin_ctz(~flow->busy)];
}

static enum keel_flow_send send_data(struct keel_flow *flow, const struct keel_give *give,
                                     struct keel_connection *link, bool *out_retry)
{
    bool lent = give->bytes > KEEL_COPY_BYTES;
    KEEL_ASSERT(give->bytes <= flow->operation->chunk_bytes && give->ordinal < flow->send_count);
    KEEL_ASSERT(give->segment < flow->granted && flow->granted <= flow->give_segments && flow->give_left > 0);
    struct keel_message message = message_of(flow->operation, KEEL_MESSAGE_DATA);
    struct keel_ticket *ticket = lent ? free_ticket(flow) : NULL;
    if (lent && ticket == NULL)
        return KEEL_FLOW_LATER; /* one of them is on its way back */
    message.offset = place(give->segment, give->ordinal);
    message.bytes = give->bytes;
    enum keel_send sent = keel_connection_send(link, &message, give->payload, lent, ticket, out_retry);
    enum keel_flow_send result = flow_result(sent);
    if (result != KEEL_FLOW_SENT)
        return result;
    bool done = !lent || sent == KEEL_SEND_DONE;
    count_data(flow, give->bytes, done);
    if (!done) {
        *ticket = (struct keel_ticket){.flow = flow, .item = give->item};
        flow->busy |= UINT32_C(1) << (ticket - flow->tickets);
        flow->in_flight++;
    }
    keel_engine_gone(flow, give, done);
    return KEEL_FLOW_SENT;
}

static bool has_more(const struct keel_flow *flow)
{
    if (atomic_load_explicit(&flow->settled, memory_order_relaxed))
        return false;
    return !flow->first_sent || keel_engine_grant_is_due(flow) ||
           (flow->give_left > 0 && atomic_load_explicit(&flow->begun, memory_order_relaxed));
}

static enum keel_flow_send send_for(struct keel_flow *flow, struct keel_connection *link, bool *out_retry)
{
    struct keel_give give;
    enum keel_flow_send result = KEEL_FLOW_NOTHING;
    if (!flow->first_sent)
        result = send_first(flow, link, out_retry);
    else if (keel_engine_grant_is_due(flow))
        result = send_grant(flow, link, out_retry);
    else if (atomic_load_explicit(&flow->begun, memory_order_relaxed) && keel_engine_next(flow, &give))
        result = send_data(flow, &give, link, out_retry);
    if (result == KEEL_FLOW_SENT && !settle(flow) && !has_more(flow))
        unqueue(flow);
    return result;
}

static enum keel_flow_send send_notice(struct keel_peer *peer, struct keel_connection *link, bool *out_retry)
{
    struct keel_notice *notice = peer->notices;
    enum keel_flow_send result =
        flow_result(keel_connection_send(link, &notice->message, &notice->differ, false, NULL, out_retry));
    if (result == KEEL_FLOW_SENT) {
        peer->notices = notice->next;
        keel_free(notice);
    }
    return result;
}

enum keel_flow_send keel_protocol_send(struct keel_peer *peer, struct keel_connection *link, bool *out_retry)
{
    if (peer->notices != NULL)
        return send_notice(peer, link, out_retry);
    while (peer->work != NULL) {
        struct keel_flow *flow = peer->work;
        enum keel_flow_send result = send_for(flow, link, out_retry);
        if (result != KEEL_FLOW_NOTHING)
            return result;
        unqueue(flow);
    }
    return KEEL_FLOW_NOTHING;
}

void keel_protocol_sent(struct keel_ticket *ticket)
{
    struct keel_flow *flow = ticket->flow;
    uint32_t bit = UINT32_C(1) << (ticket - flow->tickets);
    KEEL_ASSERT((flow->busy & bit) != 0 && flow->in_flight > 0);
    flow->busy &= ~bit;
    flow->in_flight--;
    if (flow->operation->ended)
        return;
    keel_trace_moved(flow->operation);
    keel_engine_sent(flow->operation, ticket->item);
    settle(flow);
}

/* The last of them may end the operation, which is then no longer touched. */
static void take_back(struct keel_flow *flow)
{
    uint32_t left = flow->in_flight;
    for (uint32_t k = 0; left > 0; k++)
        if ((flow->busy >> k & 1) != 0) {
            left--;
            keel_protocol_sent(&flow->tickets[k]);
        }
}

void keel_protocol_left(struct keel_group *whole, uint32_t rank)
{
    for (uint32_t slot = 0; slot < KEEL_TABLE_SLOTS; slot++) {
        struct keel_operation *next;
        for (struct keel_operation *at = whole->table[slot]; at != NULL; at = next) {
            next = at->next_in_table;
            struct keel_flow *flow = flow_of(at, keel_group_from_whole(at->group, rank));
            if (flow != NULL && flow->in_flight > 0)
                take_back(flow);
        }
    }
}

/* ---- receiving ----------------------------------------------------------------------------------------- */

static void first_differs(struct keel_operation *operation, const struct keel_flow *flow, uint32_t rank,
                          const struct keel_signature *theirs)
{
    struct keel_differ differ = {.rank = {operation->group->rank, rank}};
    differ.said[0] = flow != NULL ? signature_for(flow) : operation->signature;
    differ.said[1] = *theirs;
    disagree(operation, &differ);
}

static bool take_first(struct keel_operation *operation, struct keel_peer *peer,
                       const struct keel_message *message, const uint8_t *payload)
{
    uint32_t rank = keel_group_from_whole(operation->group, peer->rank);
    struct keel_flow *flow = flow_of(operation, rank);
    struct keel_signature theirs;
    if (message->bytes < sizeof theirs)
        return false;
    memcpy(&theirs, payload, sizeof theirs);
    if (flow == NULL) { /* it talks to us, and we would not to it, or it is in no subgroup of ours */
        first_differs(operation, NULL, rank, &theirs);
        notify_differ(operation, peer);
        return true;
    }
    if (atomic_load_explicit(&flow->begun, memory_order_relaxed))
        return false;
    if (!agrees(flow, &theirs)) {
        first_differs(operation, flow, rank, &theirs);
        return true;
    }
    atomic_store_explicit(&flow->begun, true, memory_order_relaxed);
    keel_trace_first(operation, flow);
    flow->granted = (uint32_t)(message->offset >> 32);
    if (flow->granted > flow->give_segments ||
        !keel_engine_unpack(flow, (uint32_t)message->offset, payload + sizeof theirs,
                            message->bytes - (uint32_t)sizeof theirs))
        return false;
    if (!settle(flow) && has_more(flow))
        keel_protocol_queue(flow);
    return true;
}

static bool take_differ(struct keel_operation *operation, const struct keel_message *message,
                        const uint8_t *payload)
{
    struct keel_differ differ;
    if (message->bytes != sizeof differ)
        return false;
    memcpy(&differ, payload, sizeof differ);
    disagree(operation, &differ);
    return true;
}

static bool take_grant(struct keel_flow *flow, uint64_t offset)
{
    uint64_t limit = offset >> 32;
    if (limit > flow->give_segments || limit < flow->granted)
        return false;
    flow->granted = (uint32_t)limit;
    keel_protocol_queue(flow);
    settle(flow);
    return true;
}

/* An end of the operation inside settle may free it: touch nothing afterwards. */
static bool take_data(struct keel_flow *flow, const struct keel_message *message, const uint8_t *payload)
{
    struct keel_connection *connection = atomic_load(&flow->peer)->session->link;
    if (!keel_engine_take(flow, (uint32_t)(message->offset >> 32), (uint32_t)message->offset, payload,
                          message->bytes) ||
        !keel_connection_intact(connection))
        return false;
    if (keel_connection_is_crowded(connection))
        keel_protocol_rest(flow->operation->group->whole);
    settle(flow);
    return true;
}

static bool number_is_closed(struct keel_group *whole, uint32_t number)
{
    keel_mutex_lock(&whole->endpoint->lock);
    bool found = keel_group_has_closed(whole, number);
    keel_mutex_unlock(&whole->endpoint->lock);
    return found;
}

static bool keep_early(struct keel_group *whole, struct keel_peer *peer, const struct keel_message *message,
                       const uint8_t *payload)
{
    struct keel_early *early;
    if (message->group != 0 && number_is_closed(whole, message->group)) {
        atomic_fetch_add(&whole->endpoint->stale_dropped, 1);
        return true;
    }
    if (message->kind == KEEL_MESSAGE_DIFFER && peer->early_count >= KEEL_EARLY_MAX)
        return true; /* it is only word of a disagreement that others bring too */
    if ((message->kind != KEEL_MESSAGE_FIRST && message->kind != KEEL_MESSAGE_DIFFER) ||
        peer->early_count >= KEEL_EARLY_MAX || message->bytes > KEEL_EAGER_BYTES ||
        keel_alloc(1, sizeof *early + message->bytes, &early) != KEEL_OK)
        return false;
    early->message = *message;
    memcpy(early->payload, payload, message->bytes);
    early->next = peer->early;
    peer->early = early;
    peer->early_count++;
    return true;
}

bool keel_protocol_arrived(struct keel_group *whole, struct keel_peer *peer,
                           const struct keel_message *message, const uint8_t *payload)
{
    struct keel_operation *operation = find(whole, message, peer->rank);
    if (operation == NULL)
        return keep_early(whole, peer, message, payload);
    if (operation->ended)
        return true;
    keel_trace_moved(operation);
    if (message->kind == KEEL_MESSAGE_FIRST)
        return take_first(operation, peer, message, payload);
    if (message->kind == KEEL_MESSAGE_DIFFER)
        return take_differ(operation, message, payload);
    struct keel_flow *flow = flow_of(operation, keel_group_from_whole(operation->group, peer->rank));
    if (flow == NULL || !atomic_load(&flow->begun))
        return false;
    if (message->kind == KEEL_MESSAGE_GRANT)
        return take_grant(flow, message->offset);
    return message->kind == KEEL_MESSAGE_DATA && take_data(flow, message, payload);
}

/* ---- beginning ----------------------------------------------------------------------------------------- */

static struct keel_early *early_of(struct keel_peer *peer, const struct keel_operation *operation, bool words)
{
    for (struct keel_early **at = &peer->early; *at != NULL; at = &(*at)->next) {
        struct keel_early *early = *at;
        if (early->message.sequence != operation->sequence || early->message.part != operation->lane ||
            early->message.group != operation->group->number ||
            (words && early->message.kind != KEEL_MESSAGE_DIFFER))
            continue;
        *at = early->next;
        peer->early_count--;
        return early;
    }
    return NULL;
}

static bool is_member(const struct keel_operation *operation, const struct keel_peer *peer)
{
    uint32_t rank = keel_group_from_whole(operation->group, peer->rank);
    return rank != KEEL_NO_RANK && (!is_pair(operation) || flow_of(operation, rank) != NULL);
}

static enum keel_status may_begin(const struct keel_operation *operation)
{
    struct keel_group *whole = operation->group->whole;
    struct keel_message same = message_of(operation, KEEL_MESSAGE_FIRST);
    const struct keel_peer *first = NULL;
    if (operation->flow_count > 0)
        first = atomic_load(&operation->flows[0].peer);
    if (find(whole, &same, first != NULL ? first->rank : 0) != NULL)
        return KEEL_INVALID;
    for (const struct keel_peer *peer = whole->peer_list; peer != NULL; peer = peer->next)
        if ((peer->accused || peer->state == KEEL_PEER_LOST_STATE) && is_member(operation, peer))
            return peer->state == KEEL_PEER_LOST_STATE ? peer->parting : KEEL_PEER_LOST;
    for (uint32_t k = 0; k < operation->flow_count; k++) {
        const struct keel_peer *peer = atomic_load(&operation->flows[k].peer);
        if (peer->state == KEEL_PEER_LEFT)
            return peer->parting;
    }
    return KEEL_OK;
}

static enum keel_status find_peers(struct keel_operation *operation)
{
    for (uint32_t k = 0; k < operation->flow_count; k++) {
        struct keel_flow *flow = &operation->flows[k];
        struct keel_group *group = operation->group;
        if (atomic_load_explicit(&flow->peer, memory_order_relaxed) != NULL)
            continue;
        struct keel_peer *peer = keel_session_peer(group->whole, keel_group_to_whole(group, flow->rank));
        if (peer == NULL)
            return KEEL_NO_MEMORY;
        atomic_store(&flow->peer, peer);
    }
    return KEEL_OK;
}

/* Early messages may come from ranks to which there is no flow: then they disagree with us. None ends it
 * well: no first message has been sent yet. `words`: of disagreement alone. */
static void begin_early(struct keel_operation *operation, bool words)
{
    struct keel_group *whole = operation->group->whole;
    for (struct keel_peer *peer = whole->peer_list; peer != NULL && !operation->ended; peer = peer->next) {
        struct keel_early *early = NULL;
        while (peer->early != NULL && !operation->ended && is_member(operation, peer) &&
               (early = early_of(peer, operation, words)) != NULL) {
            bool good = early->message.kind == KEEL_MESSAGE_DIFFER
                            ? take_differ(operation, &early->message, early->payload)
                            : take_first(operation, peer, &early->message, early->payload);
            if (!good)
                keel_protocol_end(operation, KEEL_MISMATCH);
            keel_free(early);
        }
    }
}

/* Straight, where nothing is before it; else in its turn. The last of them may end the operation, and then it
 * may be gone. */
static void send_firsts(struct keel_operation *operation)
{
    uint32_t count = operation->flow_count;
    bool retry = false;
    for (uint32_t k = 0; k < count; k++) {
        struct keel_flow *flow = &operation->flows[k];
        struct keel_connection *connection =
            keel_session_ready(atomic_load_explicit(&flow->peer, memory_order_relaxed));
        if (connection == NULL || send_first(flow, connection, &retry) != KEEL_FLOW_SENT) {
            keel_protocol_queue(flow);
            continue;
        }
        if (settle(flow))
            return;
        if (has_more(flow))
            keel_protocol_queue(flow);
    }
}

void keel_protocol_begin(struct keel_operation *operation)
{
    struct keel_group *group = operation->group, *whole = group->whole;
    whole->active++;
    atomic_store_explicit(&operation->since_ns, group->endpoint->now_ns, memory_order_relaxed);
    keel_trace_began(operation);
    keel_keepalive_wake(whole);
    enum keel_status status = find_peers(operation);
    if (status == KEEL_OK)
        status = may_begin(operation);
    if (status != KEEL_OK) {
        if (status != KEEL_INVALID)
            begin_early(operation, true); /* whoever left may have said why */
        keel_protocol_end(operation, status);
        return;
    }
    struct keel_operation **slot = table_slot(whole, group->number, operation->sequence);
    operation->next_in_table = *slot;
    *slot = operation;
    operation->linked = true;
    operation->starting = true;
    keel_engine_start(operation);
    begin_early(operation, false);
    operation->starting = false;
    if (operation->ended)
        return;
    if (operation->open_flows == 0) {
        KEEL_ASSERT(operation->lowest == operation->segment_count);
        keel_protocol_end(operation, KEEL_OK);
        return;
    }
    send_firsts(operation);
}

/* ---- what peers lent ----------------------------------------------------------------------------------- */

bool keel_protocol_hold(struct keel_flow *flow, struct keel_held *out)
{
    struct keel_connection *connection = atomic_load(&flow->peer)->session->link;
    out->kept = keel_connection_keep(connection);
    out->connection = connection;
    return out->kept != 0;
}

bool keel_protocol_holds(const struct keel_held *held)
{
    const struct keel_session *session = atomic_load(&held->flow->peer)->session;
    return held->connection != NULL && session != NULL && session->link == held->connection;
}

bool keel_protocol_let_go(struct keel_held *held)
{
    return keel_connection_release(held->connection, held->kept);
}

void keel_protocol_rest(struct keel_group *whole)
{
    for (uint32_t slot = 0; whole->active > 0 && slot < KEEL_TABLE_SLOTS; slot++)
        for (struct keel_operation *at = whole->table[slot]; at != NULL; at = at->next_in_table)
            if (!at->ended && at->held_count > 0)
                keel_engine_let_go(at, true);
}

/* ---- a child closes ------------------------------------------------------------------------------------ */

bool keel_protocol_lends(const struct keel_group *child)
{
    for (const struct keel_operation *at = child->live; at != NULL; at = at->next_live)
        for (uint32_t k = 0; k < at->flow_count; k++) {
            const struct keel_peer *peer = atomic_load(&at->flows[k].peer);
            if (at->flows[k].in_flight > 0 && peer->session != NULL)
                return true;
        }
    return false;
}

void keel_protocol_close_child(struct keel_group *child)
{
    for (struct keel_operation *at = child->live; at != NULL; at = at->next_live) {
        keel_protocol_end(at, KEEL_REVOKED);
        if (at->linked)
            table_remove(at);
    }
}
