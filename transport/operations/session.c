/* session.c - connections as conversations: who dials, the handshake, company, farewell and loss.
 *
 * States, and who moves them:
 *   outgoing   DIALING --challenge--> PROVING --welcome--> UP
 *   incoming   CALLED --hello, proven--> UP, or EARLY (epoch not open here yet) --group opens--> UP
 *   any        --close, refusal--> LEAVING (only a last word is sent, all that comes is dropped) --> gone
 *
 * Who dials. The lower rank, as soon as an operation wants the pair; the higher rank only when the lower one
 * has not after a head start, so that a lower rank that died or has not begun is noticed. When both dial at
 * once the lower rank's connection stays, if it has got as far as its greeting: it refuses the other, and the
 * higher rank gives its own up.
 *
 * Nothing that a caller says is believed before its proof: until then it can only be dropped. */
#include "callers.h"
#include "group.h"
#include "handshake.h"

#include <keel/log.h>
#include <keel/memory.h>
#include <string.h>

static struct keel_peer *peer_of(const struct keel_session *session)
{
    return session->group->peers[session->rank];
}

static void due(struct keel_session *session, enum keel_message_kind kind)
{
    session->due |= UINT32_C(1) << kind;
}

/* ---- peers --------------------------------------------------------------------------------------------- */

struct keel_peer *keel_session_peer(struct keel_group *whole, uint32_t rank)
{
    struct keel_peer *peer = whole->peers[rank];
    if (peer != NULL || keel_alloc(1, sizeof *peer, &peer) != KEEL_OK)
        return peer;
    peer->rank = rank;
    peer->next = whole->peer_list;
    whole->peer_list = peer;
    whole->peers[rank] = peer;
    return peer;
}

void keel_session_busy(struct keel_group *whole, struct keel_peer *peer)
{
    if (peer->busy)
        return;
    peer->busy = true;
    peer->next_busy = whole->busy;
    whole->busy = peer;
}

void keel_session_forget(struct keel_group *whole)
{
    while (whole->peer_list != NULL) {
        struct keel_peer *peer = whole->peer_list;
        whole->peer_list = peer->next;
        while (peer->early != NULL) {
            struct keel_early *early = peer->early;
            peer->early = early->next;
            keel_free(early);
        }
        while (peer->notices != NULL) {
            struct keel_notice *notice = peer->notices;
            peer->notices = notice->next;
            keel_free(notice);
        }
        keel_free(peer);
    }
}

/* ---- birth and death ----------------------------------------------------------------------------------- */

static struct keel_session *session_create(struct keel_endpoint *endpoint, enum keel_session_state state)
{
    struct keel_session *session;
    if (keel_alloc(1, sizeof *session, &session) != KEEL_OK)
        return NULL;
    session->endpoint = endpoint;
    session->state = state;
    session->next = endpoint->sessions;
    if (endpoint->sessions != NULL)
        endpoint->sessions->previous = session;
    endpoint->sessions = session;
    return session;
}

static void session_destroy(struct keel_session *session)
{
    struct keel_endpoint *endpoint = session->endpoint;
    if (session->link != NULL)
        keel_connection_close(session->link);
    if (session->state == KEEL_SESSION_UP)
        atomic_fetch_sub(&endpoint->connections, 1);
    if (session->group != NULL && peer_of(session)->session == session)
        peer_of(session)->session = NULL;
    if (session->previous != NULL)
        session->previous->next = session->next;
    else
        endpoint->sessions = session->next;
    if (session->next != NULL)
        session->next->previous = session->previous;
    keel_cipher_free(session->sealer);
    keel_handshake_wipe(session->secret);
    keel_free(session);
}

/* From now on it only says its last word. */
static void leave(struct keel_session *session)
{
    struct keel_endpoint *endpoint = session->endpoint;
    if (session->state == KEEL_SESSION_UP)
        atomic_fetch_sub(&endpoint->connections, 1);
    if (session->group != NULL && peer_of(session)->session == session)
        peer_of(session)->session = NULL;
    session->group = NULL;
    session->due &= UINT32_C(1) << KEEL_MESSAGE_BYE | UINT32_C(1) << KEEL_MESSAGE_REFUSE;
    session->state = KEEL_SESSION_LEAVING;
    session->deadline_ns = keel_deadline_after_ns(KEEL_LINGER_NS);
    keel_endpoint_at(endpoint, session->deadline_ns);
}

void keel_session_break(struct keel_session *session, const char *why)
{
    struct keel_group *group = session->group;
    uint32_t rank = session->rank;
    bool damaged = session->link != NULL && session->link->damaged;
    session_destroy(session);
    if (group != NULL)
        keel_loss_found(group, rank, damaged ? KEEL_CORRUPT : KEEL_PEER_LOST, why);
}

/* A stranger, or one who broke the rules of the handshake. */
static void drop(struct keel_session *session, const char *why)
{
    keel_log(KEEL_LOG_INFO, "connection dropped: %s", why);
    atomic_fetch_add(&session->endpoint->stale_dropped, 1);
    keel_session_break(session, why);
}

/* ---- sending ------------------------------------------------------------------------------------------- */

static struct keel_parties parties_of(const struct keel_session *session)
{
    if (session->dialed)
        return (struct keel_parties){session->theirs,      session->challenge, session->epoch,
                                     session->group->rank, session->rank,      session->members};
    return (struct keel_parties){session->challenge, session->theirs, session->epoch,
                                 session->rank,      session->to,     session->members};
}

static void prove(const struct keel_session *session, enum keel_handshake_role role,
                  uint8_t out[KEEL_PROOF_BYTES])
{
    struct keel_parties parties = parties_of(session);
    if (session->endpoint->has_key)
        keel_handshake_prove(session->endpoint->key, role, &parties, out);
}

/* Why it ends, for those who hear it only now. */
static uint32_t compose_last(const struct keel_session *session, struct keel_message *message,
                             struct keel_farewell *payload)
{
    const struct keel_endpoint *endpoint = session->endpoint;
    const struct keel_notice *dispute = &endpoint->past_dispute;
    message->offset = (uint64_t)session->refusal << 32;
    payload->losses = session->losses;
    if (dispute->message.kind == 0 || endpoint->past_epoch != session->epoch)
        return sizeof payload->losses;
    message->part = dispute->message.part;
    message->sequence = dispute->message.sequence;
    message->group = dispute->message.group;
    payload->differ = dispute->differ;
    return sizeof *payload;
}

union control {
    struct keel_handshake handshake;
    struct keel_farewell farewell;
};

static uint32_t compose(struct keel_session *session, enum keel_message_kind kind,
                        struct keel_message *message, union control *out)
{
    struct keel_handshake *payload = &out->handshake;
    *message = (struct keel_message){.kind = (uint16_t)kind, .epoch = session->epoch};
    memset(out, 0, sizeof *out);
    if (kind == KEEL_MESSAGE_REFUSE || kind == KEEL_MESSAGE_BYE)
        return compose_last(session, message, &out->farewell);
    if (kind == KEEL_MESSAGE_PING)
        message->offset = keel_now_ns();
    if (kind == KEEL_MESSAGE_PONG) {
        message->offset = session->asked_ns;
        if (session->group != NULL)
            keel_keepalive_tell(session->group, peer_of(session), message);
        return 0;
    }
    if (kind == KEEL_MESSAGE_LOST) {
        keel_group_losses(session->group, &out->farewell.losses);
        return sizeof out->farewell.losses;
    }
    bool greets = kind == KEEL_MESSAGE_CHALLENGE || kind == KEEL_MESSAGE_HELLO;
    if (greets) {
        message->part = (uint16_t)session->cipher;
        memcpy(payload->challenge, session->challenge, sizeof payload->challenge);
    }
    if (kind == KEEL_MESSAGE_HELLO) {
        payload->epoch = session->epoch;
        payload->from = session->group->rank;
        payload->to = session->rank;
        memcpy(payload->members, session->members, sizeof payload->members);
        prove(session, KEEL_ROLE_DIALER, payload->proof);
    } else if (kind == KEEL_MESSAGE_WELCOME) {
        payload->epoch = session->epoch;
        prove(session, KEEL_ROLE_LISTENER, payload->proof);
    }
    return greets || kind == KEEL_MESSAGE_WELCOME ? sizeof *payload : 0;
}

/* What goes after our greeting is sealed, if there is a key and need. */
static void seal_from_here(struct keel_session *session)
{
    if (session->sealer != NULL)
        keel_connection_seal(session->link, true, session->sealer);
    session->sealer = NULL;
}

/* The other side may have admitted it: the greeting has gone, and its welcome may be under way. */
static bool may_be_up_there(const struct keel_session *session)
{
    if (session->state == KEEL_SESSION_PROVING)
        return (session->due & UINT32_C(1) << KEEL_MESSAGE_HELLO) == 0;
    return session->state == KEEL_SESSION_UP;
}

static enum keel_flow_send send_due(struct keel_session *session, bool *out_retry)
{
    enum keel_message_kind kind = (enum keel_message_kind)__builtin_ctz(session->due);
    struct keel_message message;
    union control payload;
    uint32_t bytes = compose(session, kind, &message, &payload);
    KEEL_ASSERT(message.epoch == session->epoch && bytes <= sizeof payload);
    message.bytes = bytes;
    enum keel_send result = keel_connection_send(session->link, &message, &payload, false, NULL, out_retry);
    if (result == KEEL_SEND_BROKEN)
        return KEEL_FLOW_BROKEN;
    if (result == KEEL_SEND_LATER)
        return KEEL_FLOW_LATER;
    session->due &= ~(UINT32_C(1) << kind);
    if (kind == KEEL_MESSAGE_HELLO)
        seal_from_here(session);
    return KEEL_FLOW_SENT;
}

struct keel_connection *keel_session_ready(const struct keel_peer *peer)
{
    const struct keel_session *session = peer->session;
    bool ready = session != NULL && session->state == KEEL_SESSION_UP && session->due == 0 &&
                 session->retry_ns == 0 && session->link->state == KEEL_CONNECTION_OPEN &&
                 session->group->close_ns == 0 && peer->work == NULL && peer->notices == NULL;
    return ready ? session->link : NULL;
}

static enum keel_flow_send send_one(struct keel_session *session, bool *out_retry)
{
    if (session->due != 0)
        return send_due(session, out_retry);
    if (session->state != KEEL_SESSION_UP || session->group->close_ns != 0)
        return KEEL_FLOW_NOTHING;
    return keel_protocol_send(peer_of(session), session->link, out_retry);
}

/* What finds no room is tried again for as long as the connection is there. A peer that takes nothing is
 * found by the group's silence, or by the caller's deadline. */
static void pump_session(struct keel_session *session)
{
    bool retry = false;
    enum keel_flow_send result;
    if (session->link->state != KEEL_CONNECTION_OPEN)
        return;
    do
        result = send_one(session, &retry);
    while (result == KEEL_FLOW_SENT);
    session->retry_ns = 0;
    if (result == KEEL_FLOW_BROKEN) {
        keel_session_break(session, "sending failed");
    } else if (retry) {
        session->retry_ns = keel_deadline_after_ns(KEEL_RETRY_NS);
        keel_endpoint_at(session->endpoint, session->retry_ns);
    }
}

void keel_session_ask(struct keel_session *session)
{
    if (!may_be_up_there(session))
        return;
    due(session, KEEL_MESSAGE_PING);
    pump_session(session);
}

/* A question or an answer, which are also for who waits to be let in. False: neither. */
static bool company_arrived(struct keel_session *session, const struct keel_message *message)
{
    if (message->kind == KEEL_MESSAGE_PING) {
        session->asked_ns = message->offset;
        due(session, KEEL_MESSAGE_PONG);
        pump_session(session);
        return true;
    }
    if (message->kind != KEEL_MESSAGE_PONG || session->state == KEEL_SESSION_EARLY)
        return false;
    keel_keepalive_answered(peer_of(session), message->offset);
    keel_keepalive_told(session->group, peer_of(session), message);
    return true;
}

/* ---- dialing ------------------------------------------------------------------------------------------- */

/* What this rank lacks is not the other's fault: operations that want it end, and nobody is accused. */
static void cannot_dial(struct keel_group *group, uint32_t rank, enum keel_status status, const char *why)
{
    struct keel_peer *peer = group->peers[rank];
    keel_log(KEEL_LOG_WARN, "epoch %llu: rank %u cannot connect to rank %u: %s",
             (unsigned long long)group->epoch, group->rank, rank, why);
    peer->state = KEEL_PEER_LEFT;
    peer->parting = status;
    keel_protocol_without(group, rank, status);
}

/* Callers who say nothing took the descriptors between two looks at them. They lose them within
 * KEEL_SILENT_MS; a process that has none left for another reason is told so after as long. */
enum { BUSY_DIAL_MS = 50, BUSY_DIALS_MAX = 2 * KEEL_SILENT_MS / BUSY_DIAL_MS };
static void dial_later(struct keel_session *session)
{
    struct keel_peer *peer = session->group->peers[session->rank];
    struct keel_endpoint *endpoint = session->endpoint;
    session_destroy(session);
    peer->redial_ns = keel_deadline_after_ns(BUSY_DIAL_MS * KEEL_NS_PER_MS);
    keel_endpoint_at(endpoint, peer->redial_ns);
}

static void dial(struct keel_group *group, uint32_t rank)
{
    struct keel_endpoint *endpoint = group->endpoint;
    struct keel_peer *peer = group->peers[rank];
    struct keel_session *session = session_create(endpoint, KEEL_SESSION_DIALING);
    peer->redial_ns = 0;
    if (session == NULL) {
        cannot_dial(group, rank, KEEL_NO_MEMORY, keel_status_text(KEEL_NO_MEMORY));
        return;
    }
    session->group = group;
    session->rank = rank;
    session->epoch = group->epoch;
    session->dialed = true;
    memcpy(session->members, group->members, sizeof session->members);
    peer->session = session;
    keel_keepalive_begin(group, peer);
    keel_handshake_exchange(session->secret, session->challenge);
    session->cipher = keel_cipher_best();
    enum keel_status status =
        keel_backends_dial(&endpoint->backends, &group->addresses[rank], session, &session->link);
    if (status == KEEL_PEER_LOST) {
        keel_session_break(session, keel_detail());
    } else if (status == KEEL_BUSY && peer->busy_dials++ < BUSY_DIALS_MAX) {
        dial_later(session);
    } else if (status != KEEL_OK) {
        session_destroy(session);
        cannot_dial(group, rank, status == KEEL_BUSY ? KEEL_EXHAUSTED : status, keel_detail());
    } else {
        peer->busy_dials = 0;
    }
}

/* An operation wants this rank, and there is no connection. */
static void want(struct keel_group *group, struct keel_peer *peer)
{
    if (peer->state != KEEL_PEER_ABSENT)
        return;
    if (group->rank < peer->rank) {
        dial(group, peer->rank);
    } else if (peer->redial_ns == 0) {
        peer->redial_ns = keel_deadline_after_ns(KEEL_HEAD_START_NS);
        keel_endpoint_at(group->endpoint, peer->redial_ns);
    }
}

void keel_session_pump(struct keel_group *whole)
{
    while (whole->busy != NULL) {
        struct keel_peer *peer = whole->busy;
        whole->busy = peer->next_busy;
        peer->busy = false;
        if (peer->session != NULL)
            pump_session(peer->session);
        else if (whole->close_ns == 0 && (peer->work != NULL || peer->notices != NULL))
            want(whole, peer);
    }
}

/* ---- the handshake ------------------------------------------------------------------------------------- */

/* What the others were told before it was there. */
static void tell_news(struct keel_session *session)
{
    struct keel_group *group = session->group;
    struct keel_losses losses;
    keel_group_losses(group, &losses);
    if (losses.count > (keel_losses_name(&losses, session->rank) ? 1 : 0))
        due(session, KEEL_MESSAGE_LOST);
    keel_mutex_lock(&group->endpoint->lock);
    if (group->revoked_for_all)
        keel_protocol_tell_revoked(group, peer_of(session));
    for (struct keel_group *child = group->children; child != NULL; child = child->next_child)
        if (child->revoked_for_all)
            keel_protocol_tell_revoked(child, peer_of(session));
    keel_mutex_unlock(&group->endpoint->lock);
}

static void come_up(struct keel_session *session)
{
    struct keel_peer *peer = peer_of(session);
    KEEL_ASSERT(session->state != KEEL_SESSION_UP && session->state != KEEL_SESSION_LEAVING);
    KEEL_ASSERT(session->rank < session->group->rank_count && session->epoch == session->group->epoch);
    session->state = KEEL_SESSION_UP;
    session->deadline_ns = 0;
    peer->session = session;
    peer->state = KEEL_PEER_UP;
    peer->redial_ns = 0;
    keel_keepalive_begin(session->group, peer);
    atomic_fetch_add(&session->endpoint->connections, 1);
    tell_news(session);
    pump_session(session);
}

static void refuse(struct keel_session *session, enum keel_refusal refusal)
{
    session->refusal = refusal;
    due(session, KEEL_MESSAGE_REFUSE);
    leave(session);
    pump_session(session);
}

/* The caller opened this epoch with other members, addresses or shards: it is in another group, whatever both
 * call it, and its numbers would mix with ours. It hears so; we find out the same by calling whom we list. */
static bool refuse_other_members(struct keel_session *session, uint64_t epoch,
                                 const uint8_t members[KEEL_MEMBERS_BYTES])
{
    if (session->epoch != epoch || memcmp(session->members, members, sizeof session->members) == 0)
        return false;
    keel_log(KEEL_LOG_WARN,
             "epoch %llu: refused a caller that is rank %u of another group: it opened this epoch with other "
             "members, addresses or shards",
             (unsigned long long)epoch, session->rank);
    atomic_fetch_add(&session->endpoint->stale_dropped, 1);
    refuse(session, KEEL_REFUSE_MEMBERS);
    return true;
}

/* Its epoch is over here: whom that epoch lost it hears as one that heard the farewell would. */
static void refuse_stale(struct keel_session *session)
{
    struct keel_endpoint *endpoint = session->endpoint;
    if (endpoint->current == NULL &&
        refuse_other_members(session, endpoint->past_epoch, endpoint->past_members))
        return;
    atomic_fetch_add(&endpoint->stale_dropped, 1);
    if (endpoint->current != NULL && endpoint->current->epoch == session->epoch)
        keel_group_losses(endpoint->current, &session->losses);
    else if (endpoint->past_epoch == session->epoch)
        session->losses = endpoint->past_losses;
    refuse(session, KEEL_REFUSE_STALE);
}

/* A proven caller whose epoch is the one open here. */
static void admit(struct keel_session *session, struct keel_group *group)
{
    if (refuse_other_members(session, group->epoch, group->members))
        return;
    if (session->rank >= group->rank_count || session->rank == group->rank || session->to != group->rank) {
        drop(session, "the caller's view is another one");
        return;
    }
    struct keel_peer *peer = keel_session_peer(group, session->rank);
    if (peer == NULL) {
        drop(session, "no memory for another peer");
        return;
    }
    if (group->close_ns != 0 || peer->state == KEEL_PEER_LOST_STATE || peer->state == KEEL_PEER_LEFT) {
        refuse_stale(session);
        return;
    }
    struct keel_session *other = peer->session;
    if (other != NULL &&
        other->state == KEEL_SESSION_DIALING) { /* nothing was proven on ours, and it may be dead */
        session_destroy(other);
        other = NULL;
    }
    if (other != NULL && group->rank < session->rank) { /* its own call, made before it heard of ours */
        refuse(session, KEEL_REFUSE_DUPLICATE);
        return;
    }
    if (other != NULL && other->state == KEEL_SESSION_UP) {
        refuse_stale(session);
        keel_session_break(other, "it connected again");
        return;
    }
    if (other != NULL)
        session_destroy(other);
    session->group = group;
    due(session, KEEL_MESSAGE_WELCOME);
    come_up(session);
}

static bool proven(const struct keel_session *session, enum keel_handshake_role role,
                   const uint8_t proof[KEEL_PROOF_BYTES])
{
    uint8_t wanted[KEEL_PROOF_BYTES];
    if (!session->endpoint->has_key)
        return true;
    prove(session, role, wanted);
    return keel_handshake_equal(wanted, proof);
}

/* Both challenges are known: what comes from now on is sealed. The other side's best cipher, or its choice.
 */
static enum keel_status agree(struct keel_session *session, uint16_t cipher)
{
    const struct keel_endpoint *endpoint = session->endpoint;
    enum keel_handshake_role role = session->dialed ? KEEL_ROLE_DIALER : KEEL_ROLE_LISTENER;
    struct keel_parties parties = parties_of(session);
    struct keel_cipher *opener;
    if (cipher != KEEL_CIPHER_AES)
        session->cipher = KEEL_CIPHER_CHACHA;
    if (endpoint->has_key && keel_connection_is_exposed(session->link)) {
        KEEL_TRY(keel_handshake_ciphers(endpoint->key, role, &parties, session->secret, session->theirs,
                                        session->cipher, &session->sealer, &opener));
        keel_connection_seal(session->link, false, opener);
    }
    keel_handshake_wipe(session->secret);
    return KEEL_OK;
}

static uint32_t count_sessions(const struct keel_endpoint *endpoint, enum keel_session_state state)
{
    uint32_t count = 0;
    for (const struct keel_session *at = endpoint->sessions; at != NULL; at = at->next)
        count += at->state == state;
    return count;
}

static void hello_arrived(struct keel_session *session, const struct keel_handshake *hello, uint16_t cipher)
{
    struct keel_endpoint *endpoint = session->endpoint;
    struct keel_group *group = endpoint->current;
    memcpy(session->theirs, hello->challenge, sizeof session->theirs);
    memcpy(session->members, hello->members, sizeof session->members);
    session->epoch = hello->epoch;
    session->rank = hello->from;
    session->to = hello->to;
    if (!proven(session, KEEL_ROLE_DIALER, hello->proof)) {
        drop(session, "the caller does not know the job key");
        return;
    }
    if (agree(session, cipher) != KEEL_OK) {
        drop(session, keel_detail());
        return;
    }
    seal_from_here(session);
    session->deadline_ns = 0;
    if (group != NULL && hello->epoch == group->epoch)
        admit(session, group);
    else if (endpoint->seen_epoch && hello->epoch <= endpoint->current_epoch)
        refuse_stale(session);
    else if (count_sessions(endpoint, KEEL_SESSION_EARLY) < KEEL_CONNECTIONS_MAX)
        session->state = KEEL_SESSION_EARLY;
    else
        drop(session, "more callers of epochs to come than there may be connections");
}

static void challenge_arrived(struct keel_session *session, const struct keel_handshake *challenge,
                              uint16_t cipher)
{
    memcpy(session->theirs, challenge->challenge, sizeof session->theirs);
    session->state = KEEL_SESSION_PROVING;
    if (agree(session, cipher) != KEEL_OK) {
        drop(session, keel_detail());
        return;
    }
    due(session, KEEL_MESSAGE_HELLO);
    pump_session(session);
}

static void welcome_arrived(struct keel_session *session, const struct keel_handshake *welcome)
{
    if (!proven(session, KEEL_ROLE_LISTENER, welcome->proof))
        drop(session, "the called one does not know the job key");
    else
        come_up(session);
}

/* The rank that was called opened this epoch with other members, addresses or shards. */
static void other_members(struct keel_group *group, uint32_t rank)
{
    struct keel_peer *peer = group->peers[rank];
    peer->state = KEEL_PEER_LEFT;
    peer->parting = KEEL_MISMATCH;
    peer->redial_ns = 0;
    keel_keepalive_left(peer);
    keel_loss_spread(group, rank);
    keel_protocol_without(group, rank, KEEL_MISMATCH);
}

/* A farewell or a refusal: why its sender's epoch ended. False when it breaks the rules. */
static bool last_arrived(struct keel_session *session, const struct keel_message *message,
                         const uint8_t *payload)
{
    struct keel_group *group = session->group;
    struct keel_losses losses;
    if (!keel_losses_read(payload, message->bytes, &losses))
        return false;
    uint32_t rank = session->rank, refusal = (uint32_t)(message->offset >> 32);
    struct keel_message word = *message;
    word.kind = KEEL_MESSAGE_DIFFER;
    word.bytes = sizeof(struct keel_differ);
    if (message->bytes == sizeof(struct keel_farewell))
        keel_protocol_arrived(group, peer_of(session), &word,
                              payload + offsetof(struct keel_farewell, differ));
    session_destroy(session);
    if (refusal == KEEL_REFUSE_DUPLICATE) {
        group->peers[rank]->redial_ns = keel_deadline_after_ns(KEEL_REDIAL_NS);
        keel_endpoint_at(group->endpoint, group->peers[rank]->redial_ns);
    } else if (refusal == KEEL_REFUSE_MEMBERS) {
        other_members(group, rank);
    } else {
        keel_loss_left(group, rank, &losses);
    }
    return true;
}

/* False when this is no time for that message. */
static bool handshake_arrived(struct keel_session *session, const struct keel_message *message,
                              const uint8_t *payload)
{
    struct keel_handshake handshake;
    if (session->dialed)
        keel_keepalive_heard(peer_of(session), session->endpoint->now_ns);
    if (session->state == KEEL_SESSION_EARLY || session->state == KEEL_SESSION_PROVING)
        if (company_arrived(session, message))
            return true;
    if (message->kind == KEEL_MESSAGE_REFUSE && session->state == KEEL_SESSION_PROVING)
        return last_arrived(session, message, payload);
    if (message->bytes != sizeof handshake)
        return false;
    memcpy(&handshake, payload, sizeof handshake);
    if (message->kind == KEEL_MESSAGE_CHALLENGE && session->state == KEEL_SESSION_DIALING) {
        challenge_arrived(session, &handshake, message->part);
    } else if (message->kind == KEEL_MESSAGE_HELLO && session->state == KEEL_SESSION_CALLED) {
        hello_arrived(session, &handshake, message->part);
    } else if (message->kind == KEEL_MESSAGE_WELCOME && session->state == KEEL_SESSION_PROVING) {
        welcome_arrived(session, &handshake);
    } else {
        return false;
    }
    return true;
}

/* ---- what the fabric tells ----------------------------------------------------------------------------- */

/* Callers within the host are none: the kernel says whose they are. *out_oldest, where there is one: who has
 * had the longest time to prove itself, since sessions are listed the newest first. */
static uint32_t count_strangers(const struct keel_endpoint *endpoint, struct keel_session **out_oldest)
{
    uint32_t count = 0;
    for (struct keel_session *at = endpoint->sessions; at != NULL; at = at->next)
        if (at->state == KEEL_SESSION_CALLED && keel_connection_is_exposed(at->link)) {
            *out_oldest = at;
            count++;
        }
    return count;
}

static bool on_asked(void *context, struct keel_connection *link)
{
    struct keel_endpoint *endpoint = context;
    struct keel_session *oldest = NULL;
    if (keel_connection_is_exposed(link) && count_strangers(endpoint, &oldest) >= KEEL_PENDING_MAX)
        drop(oldest, "it has not proven itself, and newer callers need its place");
    struct keel_session *session = session_create(endpoint, KEEL_SESSION_CALLED);
    if (session == NULL)
        return false;
    session->link = link;
    link->owner = session;
    keel_handshake_exchange(session->secret, session->challenge);
    session->cipher = keel_cipher_best();
    due(session, KEEL_MESSAGE_CHALLENGE);
    session->deadline_ns = keel_deadline_after_ns(KEEL_HANDSHAKE_NS);
    keel_endpoint_at(endpoint, session->deadline_ns);
    return true;
}

/* What came set off goes out at once, to whomever it may be. */
static void pump_all(const struct keel_endpoint *endpoint)
{
    if (endpoint->current != NULL)
        keel_session_pump(endpoint->current);
}

static void on_opened(void *context, struct keel_connection *link)
{
    pump_session(link->owner);
    pump_all(context);
}

/* A message of the epoch: false when it breaks the rules. */
static bool take_message(struct keel_session *session, const struct keel_message *message,
                         const uint8_t *payload)
{
    struct keel_group *group = session->group;
    struct keel_losses losses;
    if (message->kind == KEEL_MESSAGE_BYE)
        return last_arrived(session, message, payload);
    if (message->kind == KEEL_MESSAGE_LOST) {
        if (!keel_losses_read(payload, message->bytes, &losses))
            return false;
        keel_loss_heard(group, &losses);
        return true;
    }
    if (message->kind == KEEL_MESSAGE_REVOKE) {
        keel_group_revoked_there(group, message->group);
        return true;
    }
    return company_arrived(session, message) ||
           keel_protocol_arrived(group, peer_of(session), message, payload);
}

static void up_arrived(struct keel_session *session, const struct keel_message *message,
                       const uint8_t *payload)
{
    struct keel_group *group = session->group;
    keel_keepalive_heard(peer_of(session), session->endpoint->now_ns);
    if (message->epoch != group->epoch)
        drop(session, "a message of another epoch");
    else if (!take_message(session, message, payload))
        keel_session_break(session, "a message that fits no operation");
}

static void on_arrived(void *context, struct keel_connection *link, const struct keel_message *message,
                       const uint8_t *payload)
{
    struct keel_endpoint *endpoint = context;
    struct keel_session *session = link->owner;
    endpoint->events++;
    if (session->state == KEEL_SESSION_UP)
        up_arrived(session, message, payload);
    else if (session->state == KEEL_SESSION_LEAVING && message->kind == KEEL_MESSAGE_BYE)
        session_destroy(session);
    else if (session->state == KEEL_SESSION_LEAVING)
        atomic_fetch_add(&endpoint->stale_dropped, 1);
    else if (!handshake_arrived(session, message, payload))
        drop(session, "a message out of turn");
    pump_all(endpoint);
}

static void on_sent(void *context, struct keel_connection *link, void *owner)
{
    struct keel_endpoint *endpoint = context;
    struct keel_session *session = link->owner;
    endpoint->events++;
    if (owner != NULL && session->state == KEEL_SESSION_UP)
        keel_protocol_sent(owner);
    pump_session(session);
    pump_all(endpoint);
}

static void on_broke(void *context, struct keel_connection *link, const char *why)
{
    keel_session_break(link->owner, why);
    pump_all(context);
}

const struct keel_connection_calls keel_session_calls = {on_asked, on_opened, on_arrived, on_sent, on_broke};

/* ---- time ---------------------------------------------------------------------------------------------- */

/* Few callers may take their time: a member that was stopped, or whose host is very busy, is one of them, and
 * would take a dropped call for our death. */
static bool may_stay(struct keel_session *session)
{
    struct keel_session *oldest;
    if (session->state != KEEL_SESSION_CALLED ||
        count_strangers(session->endpoint, &oldest) > KEEL_PENDING_FEW)
        return false;
    session->deadline_ns = keel_deadline_after_ns(KEEL_HANDSHAKE_NS);
    return true;
}

static void tick_session(struct keel_session *session, uint64_t now_ns)
{
    if (session->deadline_ns != 0 && now_ns >= session->deadline_ns && !may_stay(session)) {
        if (session->state == KEEL_SESSION_CALLED)
            drop(session, "the caller did not prove itself in time");
        else
            session_destroy(session);
        return;
    }
    if (session->deadline_ns != 0)
        keel_endpoint_at(session->endpoint, session->deadline_ns);
    if (session->retry_ns != 0)
        pump_session(session);
}

static void tick_dials(struct keel_group *group, uint64_t now_ns)
{
    for (struct keel_peer *peer = group->peer_list; peer != NULL; peer = peer->next) {
        if (peer->redial_ns == 0 || peer->session != NULL || peer->state != KEEL_PEER_ABSENT)
            continue;
        if (now_ns >= peer->redial_ns)
            dial(group, peer->rank);
        else
            keel_endpoint_at(group->endpoint, peer->redial_ns);
    }
}

void keel_session_tick(struct keel_endpoint *endpoint, uint64_t now_ns)
{
    struct keel_session *next;
    for (struct keel_session *at = endpoint->sessions; at != NULL; at = next) {
        next = at->next;
        tick_session(at, now_ns);
    }
    struct keel_group *group = endpoint->current;
    if (group == NULL)
        return;
    if (group->close_ns != 0) {
        keel_endpoint_at(endpoint, group->close_ns);
        return;
    }
    tick_dials(group, now_ns);
    keel_keepalive_tick(group, now_ns);
    keel_session_pump(group);
}

/* ---- a group comes and goes ---------------------------------------------------------------------------- */

void keel_session_group_opened(struct keel_endpoint *endpoint, struct keel_group *group)
{
    struct keel_session *next;
    for (struct keel_session *at = endpoint->sessions; at != NULL; at = next) {
        next = at->next;
        if (at->state == KEEL_SESSION_EARLY && at->epoch == group->epoch)
            admit(at, group);
        else if (at->state == KEEL_SESSION_EARLY && at->epoch < group->epoch)
            refuse_stale(at);
    }
}

void keel_session_group_closing(struct keel_group *group, uint64_t now_ns)
{
    struct keel_endpoint *endpoint = group->endpoint;
    endpoint->past_epoch = group->epoch;
    memcpy(endpoint->past_members, group->members, sizeof endpoint->past_members);
    keel_group_losses(group, &endpoint->past_losses);
    endpoint->past_dispute = group->dispute;
    group->close_ns = now_ns + KEEL_CLOSE_NS;
    keel_endpoint_at(group->endpoint, group->close_ns);
    for (struct keel_peer *peer = group->peer_list; peer != NULL; peer = peer->next) {
        struct keel_session *session = peer->session;
        if (session == NULL)
            continue;
        if (!may_be_up_there(session)) {
            session_destroy(session);
            continue;
        }
        session->losses = endpoint->past_losses;
        due(session, KEEL_MESSAGE_BYE);
        pump_session(session);
    }
}

bool keel_session_group_closed(struct keel_group *group, uint64_t now_ns)
{
    for (const struct keel_peer *peer = group->peer_list; peer != NULL; peer = peer->next) {
        const struct keel_session *session = peer->session;
        if (session != NULL && session->link->bulk_in_flight > 0 && now_ns < group->close_ns)
            return false;
    }
    for (struct keel_peer *peer = group->peer_list; peer != NULL; peer = peer->next) {
        struct keel_session *session = peer->session;
        if (session != NULL && session->link->bulk_in_flight > 0)
            session_destroy(session);
        else if (session != NULL)
            leave(session);
    }
    return true;
}

void keel_session_break_lent(struct keel_group *child)
{
    for (struct keel_operation *at = child->live; at != NULL; at = at->next_live)
        for (uint32_t k = 0; k < at->flow_count; k++) {
            struct keel_peer *peer = atomic_load(&at->flows[k].peer);
            if (at->flows[k].in_flight > 0 && peer->session != NULL)
                keel_session_break(peer->session, "a group was closed while it stood still");
        }
}

bool keel_session_lingers(const struct keel_endpoint *endpoint)
{
    return count_sessions(endpoint, KEEL_SESSION_LEAVING) > 0;
}

void keel_session_close_all(struct keel_endpoint *endpoint)
{
    while (endpoint->sessions != NULL)
        session_destroy(endpoint->sessions);
}
