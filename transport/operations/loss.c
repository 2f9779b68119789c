/* loss.c - ranks that are lost, or awaited in vain: what this rank finds, and what it hears of others.
 *
 * Owns the word of a loss and what follows from it for operations. Leaves connections to session.c, deadlines
 * to wait.c, silence to keepalive.c. All of it is progress. */
#include "group.h"

#include <keel/log.h>
#include <string.h>

bool keel_losses_read(const uint8_t *payload, uint32_t bytes, struct keel_losses *out)
{
    if (bytes < sizeof *out)
        return false;
    memcpy(out, payload, sizeof *out);
    return out->count <= KEEL_LOSSES_MAX;
}

/* Broadcast a peer's loss to all connected peers; some have no connection to the lost rank. */
void keel_loss_spread(struct keel_group *group, uint32_t rank)
{
    keel_mutex_lock(&group->endpoint->lock);
    keel_group_note_lost(group, rank);
    keel_mutex_unlock(&group->endpoint->lock);
    for (struct keel_peer *peer = group->peer_list; peer != NULL; peer = peer->next)
        if (peer->state == KEEL_PEER_UP && peer->rank != rank && peer->session != NULL) {
            peer->session->due |= UINT32_C(1) << KEEL_MESSAGE_LOST;
            keel_session_busy(group, peer);
        }
}

void keel_loss_found(struct keel_group *group, uint32_t rank, enum keel_status status, const char *why)
{
    struct keel_endpoint *endpoint = group->endpoint;
    struct keel_peer *peer = group->peers[rank];
    if (peer->state == KEEL_PEER_LOST_STATE || peer->state == KEEL_PEER_LEFT)
        return;
    peer->state = KEEL_PEER_LOST_STATE;
    peer->parting = status;
    peer->redial_ns = 0;
    keel_log(KEEL_LOG_INFO, "epoch %llu: rank %u lost rank %u: %s", (unsigned long long)group->epoch,
             group->rank, rank, why);
    keel_loss_spread(group, rank);
    keel_mutex_lock(&endpoint->lock);
    void (*told)(void *, uint32_t) = group->close_ns == 0 ? group->on_lost : NULL;
    void *context = group->on_lost_context;
    keel_mutex_unlock(&endpoint->lock);
    keel_protocol_without(group, rank, status);
    if (told != NULL)
        told(context, rank);
}

/* Another rank has lost this one: the operations of its groups cannot end any more. */
static void peer_accused(struct keel_group *group, uint32_t rank)
{
    if (rank >= group->rank_count || rank == group->rank)
        return;
    struct keel_peer *peer = keel_session_peer(group, rank);
    if (peer == NULL || peer->accused || peer->state == KEEL_PEER_LOST_STATE || peer->state == KEEL_PEER_LEFT)
        return;
    peer->accused = true;
    keel_loss_spread(group, rank);
    keel_protocol_without(group, rank, KEEL_PEER_LOST);
}

void keel_loss_heard(struct keel_group *group, const struct keel_losses *losses)
{
    keel_mutex_lock(&group->endpoint->lock);
    if (group->lost.count == 0)
        group->lost.awaited = losses->awaited;
    keel_mutex_unlock(&group->endpoint->lock);
    for (uint32_t k = 0; k < losses->count; k++)
        peer_accused(group, losses->rank[k]);
}

bool keel_losses_name(const struct keel_losses *losses, uint32_t rank)
{
    for (uint32_t k = 0; k < losses->count; k++)
        if (losses->rank[k] == rank)
            return true;
    return false;
}

/* A peer closed its group and named this rank as lost or awaited. This rank lives, so its operations with
 * that peer cannot end, and PEER_LOST has to name somebody: the peer that hung up. Others hear so too: they
 * may be connected to this rank alone. Where the peer only awaited this rank (`awaited`), this rank's own
 * farewell says that it was awaited, so that all name the same one. */
static void accused_here(struct keel_group *group, uint32_t accuser, bool awaited)
{
    keel_mutex_lock(&group->endpoint->lock);
    group->is_awaited = group->is_awaited || (awaited && group->lost.count == 0);
    keel_mutex_unlock(&group->endpoint->lock);
    keel_loss_spread(group, accuser);
}

/* A peer closed its group. `losses`: the ranks that it had lost, or awaited at a deadline. A survivor that
 * reads this farewell before it notices the loss itself names the same ranks. */
void keel_loss_left(struct keel_group *group, uint32_t rank, const struct keel_losses *losses)
{
    struct keel_peer *peer = group->peers[rank];
    bool loss = losses->count > 0;
    if (peer->state == KEEL_PEER_LOST_STATE)
        return;
    peer->state = KEEL_PEER_LEFT;
    keel_keepalive_left(peer);
    peer->redial_ns = 0;
    peer->parting = loss ? KEEL_PEER_LOST : KEEL_REVOKED;
    if (keel_losses_name(losses, group->rank))
        accused_here(group, rank, losses->awaited != 0);
    else
        keel_loss_heard(group, losses);
    if (!loss)
        keel_protocol_left(group, rank);
    keel_protocol_without(group, rank, peer->parting);
}
