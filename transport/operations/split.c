/* split.c - groups within a group: who is in them, their number, and how they go.
 *
 * A child has its own ranks, shards and operations; peers, connections, the table of operations and all
 * limits are those of the epoch. Its number is a hash of the parent's, the sequence and the colour, which all
 * ranks know, so that nobody need hand numbers out; two children of one rank with the same number are
 * refused. */
#include "group.h"

#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

struct wish {
    uint32_t colour, key;
};

struct member {
    uint32_t key, rank;
};

static uint32_t number_of(const struct keel_group *parent, uint64_t sequence, uint32_t colour)
{
    uint64_t hash = (uint64_t)parent->number << 32 | colour;
    hash = (hash ^ hash >> 29) * UINT64_C(0xbf58476d1ce4e5b9) + sequence;
    hash = (hash ^ hash >> 32) * UINT64_C(0x94d049bb133111eb);
    uint32_t number = (uint32_t)(hash >> 32);
    return number != 0 ? number : 1;
}

static int by_key(const void *left, const void *right)
{
    const struct member *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->rank < b->rank ? -1 : 1;
}

/* ---- the members --------------------------------------------------------------------------------------- */

/* members has room for the parent's ranks; returns how many there are, in the child's order. */
static uint32_t list_members(const struct keel_group *parent, const struct wish *wishes, uint32_t colour,
                             struct member *members)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < parent->rank_count; rank++)
        if (wishes[rank].colour == colour)
            members[count++] = (struct member){wishes[rank].key, rank};
    qsort(members, count, sizeof *members, by_key);
    return count;
}

static enum keel_status map_ranks(struct keel_group *child, const struct keel_group *parent,
                                  const struct member *members)
{
    struct keel_group *whole = parent->whole;
    KEEL_TRY(keel_alloc(child->rank_count, sizeof *child->to_whole, &child->to_whole));
    KEEL_TRY(keel_alloc(whole->rank_count, sizeof *child->from_whole, &child->from_whole));
    memset(child->from_whole, 0xff, whole->rank_count * sizeof *child->from_whole);
    for (uint32_t rank = 0; rank < child->rank_count; rank++) {
        uint32_t far = keel_group_to_whole(parent, members[rank].rank);
        child->to_whole[rank] = (uint16_t)far;
        child->from_whole[far] = (uint16_t)rank;
        if (members[rank].rank == parent->rank)
            child->rank = rank;
    }
    KEEL_TRY(keel_choose_hosts(child, whole));
    uint16_t *own; /* one shard a rank */
    KEEL_TRY(keel_alloc(child->rank_count, sizeof *own, &own));
    for (uint32_t rank = 0; rank < child->rank_count; rank++)
        own[rank] = (uint16_t)rank;
    enum keel_status status = keel_group_map(child, child->rank_count, own);
    keel_free(own);
    return status;
}

static bool number_is_used(const struct keel_group *whole, uint32_t number)
{
    for (const struct keel_group *at = whole->children; at != NULL; at = at->next_child)
        if (at->number == number)
            return true;
    for (uint32_t k = 0; k < whole->closed_count; k++)
        if (whole->closed_numbers[k] == number)
            return true;
    return false;
}

/* What the epoch heard before the child was: whom it has lost, that its peers have revoked it. Caller holds
 * the lock. */
static void catch_up(struct keel_group *child)
{
    const struct keel_group *whole = child->whole;
    for (uint32_t k = whole->guessed ? 1 : 0; k < whole->lost.count; k++)
        keel_group_note(child, keel_group_from_whole(child, whole->lost.rank[k]));
    for (uint32_t k = 0; k < whole->revoked_count; k++)
        if (whole->revoked_numbers[k] == child->number)
            keel_group_end(child, true);
}

static enum keel_status install(struct keel_group *child)
{
    struct keel_group *whole = child->whole;
    enum keel_status status = KEEL_OK;
    keel_mutex_lock(&whole->endpoint->lock);
    if (keel_group_over(child))
        status = keel_fail(KEEL_REVOKED, "split: epoch %llu is over; open the next group",
                           (unsigned long long)child->epoch);
    else if (whole->split_count == KEEL_SPLITS_MAX)
        status = keel_fail(KEEL_LIMIT, "split: %d groups were split off in this epoch; open a new one",
                           KEEL_SPLITS_MAX);
    else if (number_is_used(whole, child->number))
        status = keel_fail(KEEL_LIMIT, "split: its number %u is taken; split under another sequence",
                           child->number);
    if (status == KEEL_OK) {
        catch_up(child);
        whole->split_count++;
        child->next_child = whole->children;
        whole->children = child;
        child->record = keel_recorder_group_opened(child->endpoint->recorder, child->identity, child->epoch,
                                                   child->rank, child->rank_count);
    }
    keel_mutex_unlock(&whole->endpoint->lock);
    return status;
}

static enum keel_status child_make(struct keel_group *parent, uint64_t sequence, uint32_t colour,
                                   const struct wish *wishes, struct keel_group **out)
{
    struct member *members;
    struct keel_group *child;
    KEEL_TRY(keel_alloc(parent->rank_count, sizeof *members, &members));
    enum keel_status status = keel_alloc(1, sizeof *child, &child);
    if (status == KEEL_OK) {
        child->endpoint = parent->endpoint;
        child->whole = parent->whole;
        child->parent = parent;
        child->epoch = parent->epoch;
        child->number = number_of(parent, sequence, colour);
        child->identity = keel_recorder_identity(parent->identity, NULL, 0, child->number);
        child->rank_count = list_members(parent, wishes, colour, members);
        status = map_ranks(child, parent, members);
        if (status == KEEL_OK)
            status = install(child);
        if (status == KEEL_OK)
            *out = child;
        else
            keel_group_destroy(child);
    }
    keel_free(members);
    return status;
}

enum keel_status keel_group_split(struct keel_group *parent, uint64_t sequence, uint32_t colour, uint32_t key,
                                  uint64_t deadline_ns, struct keel_group **out)
{
    struct wish *wishes; /* of all, then mine: lent, so on the heap */
    KEEL_TRY(keel_alloc((size_t)parent->rank_count + 1, sizeof *wishes, &wishes));
    wishes[parent->rank_count] = (struct wish){colour, key};
    const void *parts[] = {&wishes[parent->rank_count]};
    struct keel_collective gather = {.kind = KEEL_ALL_GATHER,
                                     .sequence = sequence,
                                     .element = KEEL_ELEMENT_U8,
                                     .count = sizeof *wishes,
                                     .parts = parts,
                                     .part_count = 1,
                                     .result = wishes};
    struct keel_operation *operation;
    enum keel_status status = keel_group_begin(parent, &gather, &operation);
    if (status != KEEL_OK) {
        keel_free(wishes);
        return status;
    }
    operation->owned = wishes;
    KEEL_TRY(keel_operation_wait(operation, deadline_ns)); /* a failed operation keeps what it was lent */
    status = child_make(parent, sequence, colour, wishes, out);
    keel_free(wishes);
    return status;
}

/* ---- closing ------------------------------------------------------------------------------------------- */

/* What it lent comes back within KEEL_CLOSE_NS, or the connections that still hold it are given up. */
static void end_operations(struct keel_group *child)
{
    struct keel_endpoint *endpoint = child->endpoint;
    uint64_t deadline_ns = keel_deadline_after_ns(KEEL_CLOSE_NS);
    keel_mutex_lock(&endpoint->lock);
    keel_endpoint_mail(endpoint); /* what was begun last is in the table, or has ended */
    keel_protocol_close_child(child);
    while (keel_protocol_lends(child) && keel_now_ns() < deadline_ns) {
        uint64_t soon = keel_deadline_after_ns(KEEL_NS_PER_MS);
        keel_endpoint_pass(endpoint, false);
        keel_endpoint_sleep(endpoint, soon < deadline_ns ? soon : deadline_ns);
    }
    if (keel_protocol_lends(child))
        keel_session_break_lent(child);
}

void keel_group_close_child(struct keel_group *child)
{
    struct keel_group *whole = child->whole;
    struct keel_endpoint *endpoint = child->endpoint;
    keel_mutex_lock(&endpoint->lock);
    for (const struct keel_group *at = whole->children; at != NULL; at = at->next_child)
        KEEL_ASSERT(at->parent != child);
    while (child->waiters > 0)
        keel_cond_wait(&endpoint->changed, &endpoint->lock, keel_deadline_after_ns(KEEL_NS_PER_S));
    while (!keel_endpoint_claim(endpoint, KEEL_NEVER)) {
    }
    whole->closed_numbers[whole->closed_count++] = child->number; /* what still comes for it is dropped */
    keel_mutex_unlock(&endpoint->lock);
    end_operations(child);
    keel_mutex_lock(&endpoint->lock);
    struct keel_group **at = &whole->children;
    for (; *at != child; at = &(*at)->next_child)
        KEEL_ASSERT(*at != NULL);
    *at = child->next_child;
    keel_recorder_group_closed(endpoint->recorder, child->record);
    keel_endpoint_undrive(endpoint, whole->active > 0);
    keel_mutex_unlock(&endpoint->lock);
}
