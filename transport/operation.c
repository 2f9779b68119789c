/* operation.c - the caller's half of an operation: begin, wait, done, barrier.
 *
 * Begin fills the operation in and posts it to the progress thread's mailbox; wait sleeps until the outcome
 * is published, the group is revoked, or the deadline passes. */
#include "group.h"

#include <keel/memory.h>
#include <string.h>

/* Caller holds the lock. */
static void unlink_live(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    if (operation->previous_live != NULL)
        operation->previous_live->next_live = operation->next_live;
    else
        group->live = operation->next_live;
    if (operation->next_live != NULL)
        operation->next_live->previous_live = operation->previous_live;
    group->live_count--;
}

static void operation_release(struct keel_operation *operation)
{
    keel_free(operation->staging);
    keel_free(operation->parts);
    keel_free(operation->legs);
    keel_free(operation);
}

void keel_operation_free_all(struct keel_group *group)
{
    while (group->live != NULL) {
        struct keel_operation *operation = group->live;
        unlink_live(operation);
        operation_release(operation);
    }
}

static enum keel_status operation_create(struct keel_group *group, enum keel_operation_kind kind,
                                         uint64_t sequence, uint64_t signature, struct keel_operation **out)
{
    struct keel_operation *operation;
    KEEL_TRY(keel_alloc(1, sizeof *operation, &operation));
    operation->group = group;
    operation->kind = kind;
    operation->sequence = sequence;
    operation->signature = signature;
    enum keel_status status = keel_alloc(group->rank_count, sizeof *operation->legs, &operation->legs);
    if (status == KEEL_OK && kind == KEEL_OPERATION_REDUCE)
        status = keel_alloc(group->node_count[group->rank], sizeof *operation->parts, &operation->parts);
    if (status != KEEL_OK) {
        operation_release(operation);
        return status;
    }
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        operation->legs[rank].operation = operation;
        operation->legs[rank].rank = rank;
    }
    *out = operation;
    return KEEL_OK;
}

static enum keel_status post(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    struct keel_endpoint *endpoint = group->endpoint;
    keel_mutex_lock(&endpoint->lock);
    enum keel_status status = KEEL_OK;
    if (group->revoked)
        status = KEEL_REVOKED;
    else if (group->live_count == KEEL_OPERATIONS_MAX)
        status = KEEL_LIMIT;
    if (status == KEEL_OK) {
        operation->next_live = group->live;
        if (group->live != NULL)
            group->live->previous_live = operation;
        group->live = operation;
        group->live_count++;
        *endpoint->submitted_last = operation;
        endpoint->submitted_last = &operation->next_submitted;
        keel_endpoint_wake(endpoint);
    }
    keel_mutex_unlock(&endpoint->lock);
    return status;
}

/* Post it, or free it and say why not. */
static enum keel_status begin(struct keel_operation *operation, struct keel_operation **out)
{
    uint64_t mask = 0;
    for (uint32_t rank = 0; rank < operation->group->rank_count; rank++)
        if (operation->legs[rank].used) {
            mask |= UINT64_C(1) << rank;
            operation->leg_count++;
        }
    operation->open_legs = operation->leg_count;
    atomic_store(&operation->awaited, mask);
    atomic_store(&operation->unbegun, mask);
    uint64_t sequence = operation->sequence, epoch = operation->group->epoch;
    enum keel_status status = post(operation);
    if (status == KEEL_OK) {
        *out = operation;
        return KEEL_OK;
    }
    operation_release(operation);
    if (status == KEEL_LIMIT)
        return keel_fail(status, "operation %llu: %d are in flight already; wait for some",
                         (unsigned long long)sequence, KEEL_OPERATIONS_MAX);
    return keel_fail(status, "operation %llu: epoch %llu is over; open the next group",
                     (unsigned long long)sequence, (unsigned long long)epoch);
}

enum keel_status keel_group_reduce_begin(struct keel_group *group, uint64_t sequence,
                                         const float *const *parts, uint32_t part_count, float *result,
                                         uint64_t count, struct keel_operation **out)
{
    struct keel_operation *operation;
    if (part_count != group->node_count[group->rank])
        return keel_fail(KEEL_INVALID, "reduce %llu: %u parts given, rank %u holds %u tree nodes",
                         (unsigned long long)sequence, part_count, group->rank,
                         group->node_count[group->rank]);
    KEEL_TRY(operation_create(group, KEEL_OPERATION_REDUCE, sequence, count, &operation));
    keel_reduce_prepare(operation, parts, result, count);
    return begin(operation, out);
}

enum keel_status keel_group_broadcast_begin(struct keel_group *group, uint64_t sequence, uint32_t root,
                                            void *data, uint64_t bytes, struct keel_operation **out)
{
    struct keel_operation *operation;
    if (root >= group->rank_count)
        return keel_fail(KEEL_INVALID, "broadcast %llu: root %u of %u ranks", (unsigned long long)sequence,
                         root, group->rank_count);
    KEEL_TRY(operation_create(group, KEEL_OPERATION_BROADCAST, sequence, bytes, &operation));
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        struct keel_leg *leg = &operation->legs[rank];
        leg->used = rank != group->rank && (rank == root || group->rank == root);
        if (leg->used && group->rank == root) {
            leg->body = data;
            leg->body_bytes = bytes;
        } else if (leg->used) {
            leg->into = data;
            leg->into_bytes = bytes;
        }
    }
    return begin(operation, out);
}

enum keel_status keel_group_all_gather_begin(struct keel_group *group, uint64_t sequence, const void *mine,
                                             uint64_t bytes, void *all, struct keel_operation **out)
{
    struct keel_operation *operation;
    KEEL_TRY(operation_create(group, KEEL_OPERATION_ALL_GATHER, sequence, bytes, &operation));
    uint8_t *place = (uint8_t *)all + group->rank * bytes;
    if (bytes > 0 && place != mine)
        memcpy(place, mine, bytes);
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        struct keel_leg *leg = &operation->legs[rank];
        leg->used = rank != group->rank;
        if (!leg->used)
            continue;
        leg->body = mine;
        leg->body_bytes = bytes;
        leg->into = (uint8_t *)all + rank * bytes;
        leg->into_bytes = bytes;
    }
    return begin(operation, out);
}

static enum keel_status point_to_point(struct keel_group *group, enum keel_operation_kind kind,
                                       uint64_t sequence, uint32_t peer, const void *body, void *into,
                                       uint64_t bytes, struct keel_operation **out)
{
    struct keel_operation *operation;
    if (peer >= group->rank_count || peer == group->rank)
        return keel_fail(KEEL_INVALID, "operation %llu: rank %u cannot talk to rank %u of %u",
                         (unsigned long long)sequence, group->rank, peer, group->rank_count);
    KEEL_TRY(operation_create(group, kind, sequence, bytes, &operation));
    struct keel_leg *leg = &operation->legs[peer];
    leg->used = true;
    leg->body = body;
    leg->body_bytes = body != NULL ? bytes : 0;
    leg->into = into;
    leg->into_bytes = into != NULL ? bytes : 0;
    operation->lane = (kind == KEEL_OPERATION_SEND) == (group->rank < peer) ? 1 : 2;
    return begin(operation, out);
}

enum keel_status keel_group_send_begin(struct keel_group *group, uint64_t sequence, uint32_t peer,
                                       const void *data, uint64_t bytes, struct keel_operation **out)
{
    return point_to_point(group, KEEL_OPERATION_SEND, sequence, peer, data, NULL, bytes, out);
}

enum keel_status keel_group_receive_begin(struct keel_group *group, uint64_t sequence, uint32_t peer,
                                          void *data, uint64_t bytes, struct keel_operation **out)
{
    return point_to_point(group, KEEL_OPERATION_RECEIVE, sequence, peer, NULL, data, bytes, out);
}

/* ---- waiting --------------------------------------------------------------------------------------------
 */

/* Whom to name when the deadline has passed: of those awaited, one that gives no sign of life; else one that
 * has not begun; else the first. Caller holds the lock. */
static void blame(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    uint64_t awaited = atomic_load(&operation->awaited), unbegun = awaited & atomic_load(&operation->unbegun);
    uint64_t now = keel_now_ns(), oldest = UINT64_MAX;
    uint32_t silent = 0;
    if (awaited == 0 || group->has_lost)
        return;
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        uint64_t heard = atomic_load(&group->peers[rank].heard_ns);
        if ((awaited >> rank & 1) != 0 && heard < oldest) {
            oldest = heard;
            silent = rank;
        }
    }
    if (oldest + KEEL_SILENT_NS > now)
        silent = (uint32_t)__builtin_ctzll(unbegun != 0 ? unbegun : awaited);
    group->has_lost = true;
    group->lost_rank = silent;
}

/* Caller holds the lock, and gets it back, but for the time of sleeping. The count of waiters keeps the group
 * and the operation alive when another thread closes the group meanwhile. */
static enum keel_status outcome(struct keel_operation *operation, uint64_t deadline_ns)
{
    struct keel_group *group = operation->group;
    struct keel_endpoint *endpoint = group->endpoint;
    bool in_time = true;
    group->waiters++;
    while (!operation->done && !group->revoked && in_time)
        in_time = keel_cond_wait(&endpoint->changed, &endpoint->lock, deadline_ns);
    if (--group->waiters == 0 && group->revoked)
        keel_cond_broadcast(&endpoint->changed);
    if (operation->done)
        return operation->status;
    if (group->revoked)
        return KEEL_REVOKED;
    blame(operation);
    return KEEL_TIMEOUT;
}

enum keel_status keel_operation_wait(struct keel_operation *operation, uint64_t deadline_ns)
{
    if (operation == NULL)
        return KEEL_OK;
    struct keel_group *group = operation->group;
    struct keel_endpoint *endpoint = group->endpoint;
    unsigned long long sequence = operation->sequence, epoch = group->epoch;
    keel_mutex_lock(&endpoint->lock);
    enum keel_status status = outcome(operation, deadline_ns);
    bool named = group->has_lost;
    uint32_t rank = group->lost_rank;
    if (status == KEEL_OK)
        unlink_live(operation);
    keel_mutex_unlock(&endpoint->lock);
    if (status == KEEL_OK) {
        operation_release(operation);
        return KEEL_OK;
    }
    if (status == KEEL_TIMEOUT && named)
        return keel_fail(status, "operation %llu of epoch %llu: rank %u is still awaited", sequence, epoch,
                         rank);
    if (status == KEEL_PEER_LOST)
        return keel_fail(status, "operation %llu of epoch %llu: rank %u is gone; open the next group",
                         sequence, epoch, rank);
    return keel_fail(status, "operation %llu of epoch %llu: %s", sequence, epoch, keel_status_text(status));
}

enum keel_status keel_group_barrier(struct keel_group *group, uint64_t sequence, uint64_t deadline_ns)
{
    struct keel_operation *operation;
    KEEL_TRY(operation_create(group, KEEL_OPERATION_BARRIER, sequence, 0, &operation));
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        operation->legs[rank].used = rank != group->rank;
    KEEL_TRY(begin(operation, &operation));
    return keel_operation_wait(operation, deadline_ns);
}
