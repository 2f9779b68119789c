/* split.c - groups within a group: who is in them, their number, and how they go.
 *
 * A child has its own ranks, shards and operations; peers, connections, the table of operations and all
 * limits are those of the epoch. Its number is a hash of what only its members need to know: the parent's
 * number, the sequence, and the first of its members by rank in the parent. So children of one sequence that
 * share no rank have different numbers, members that disagree about who else is in it meet under one number
 * and find out (keel_signature: map_hash), and nobody outside is asked. Two children of one rank with the
 * same number are refused. */
#include "group.h"

#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

static uint32_t number_of(const struct keel_group *parent, uint64_t sequence, uint32_t first_rank)
{
    uint64_t hash = (uint64_t)parent->number << 32 | first_rank;
    hash = (hash ^ hash >> 29) * UINT64_C(0xbf58476d1ce4e5b9) + sequence;
    hash = (hash ^ hash >> 32) * UINT64_C(0x94d049bb133111eb);
    uint32_t number = (uint32_t)(hash >> 32);
    return number != 0 ? number : 1;
}

/* ---- the members --------------------------------------------------------------------------------------- */

static enum keel_status map_ranks(struct keel_group *child, const struct keel_subgroup *what)
{
    const struct keel_group *parent = child->parent, *whole = child->whole;
    uint64_t hash = what->sequence;
    child->rank = KEEL_NO_RANK;
    KEEL_TRY(keel_alloc(child->rank_count, sizeof *child->to_whole, &child->to_whole));
    KEEL_TRY(keel_alloc(whole->rank_count, sizeof *child->from_whole, &child->from_whole));
    memset(child->from_whole, 0xff, whole->rank_count * sizeof *child->from_whole);
    for (uint32_t rank = 0; rank < child->rank_count; rank++) {
        uint32_t there = what->ranks[rank];
        if (there >= parent->rank_count)
            return keel_fail(KEEL_INVALID, "subgroup %llu: rank %u of %u does not exist",
                             (unsigned long long)what->sequence, there, parent->rank_count);
        uint32_t far = keel_group_to_whole(parent, there);
        if (child->from_whole[far] != KEEL_NO_RANK)
            return keel_fail(KEEL_INVALID, "subgroup %llu: rank %u is in it twice",
                             (unsigned long long)what->sequence, there);
        child->to_whole[rank] = (uint16_t)far;
        child->from_whole[far] = (uint16_t)rank;
        hash = (hash ^ far) * UINT64_C(0x100000001b3) + 1;
        if (there == parent->rank)
            child->rank = rank;
    }
    child->members_hash = hash;
    if (child->rank == KEEL_NO_RANK)
        return keel_fail(KEEL_INVALID, "subgroup %llu: rank %u makes it and is not in it",
                         (unsigned long long)what->sequence, parent->rank);
    return keel_choose_hosts(child, whole);
}

/* The parent's shards that its ranks carry, in the parent's order. */
static enum keel_status inherit_shards(struct keel_group *child)
{
    const struct keel_group *parent = child->parent;
    uint32_t count = 0;
    uint16_t *shard_rank;
    KEEL_TRY(keel_alloc(parent->shard_count, sizeof *shard_rank, &shard_rank));
    for (uint32_t shard = 0; shard < parent->shard_count; shard++) {
        uint32_t far = keel_group_to_whole(parent, parent->shard_rank[shard]);
        if (child->from_whole[far] != KEEL_NO_RANK)
            shard_rank[count++] = child->from_whole[far];
    }
    enum keel_status status = KEEL_OK;
    if (count == 0)
        status = keel_fail(KEEL_INVALID, "subgroup: its %u ranks carry no shard of the parent; give it a map",
                           child->rank_count);
    if (status == KEEL_OK)
        status = keel_group_map(child, count, shard_rank);
    keel_free(shard_rank);
    return status;
}

static enum keel_status map_shards(struct keel_group *child, const struct keel_subgroup *what)
{
    if (what->shard_rank == NULL && what->shard_count == 0)
        return inherit_shards(child);
    KEEL_TRY(keel_group_check_map(child->rank_count, what->shard_count, what->shard_rank));
    return keel_group_map(child, what->shard_count, what->shard_rank);
}

static bool number_is_used(const struct keel_group *whole, uint32_t number)
{
    for (const struct keel_group *at = whole->children; at != NULL; at = at->next_child)
        if (at->number == number)
            return true;
    return keel_group_has_closed(whole, number);
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

static uint32_t first_rank(const struct keel_subgroup *what)
{
    uint32_t first = what->ranks[0];
    for (uint32_t k = 1; k < what->rank_count; k++)
        first = what->ranks[k] < first ? what->ranks[k] : first;
    return first;
}

static enum keel_status fill(struct keel_group *child, const struct keel_subgroup *what)
{
    const struct keel_group *parent = child->parent;
    child->epoch = parent->epoch;
    child->number = number_of(parent, what->sequence, first_rank(what));
    child->identity = keel_recorder_identity(parent->identity, NULL, 0, child->number);
    child->rank_count = what->rank_count;
    KEEL_TRY(map_ranks(child, what));
    KEEL_TRY(map_shards(child, what));
    return install(child);
}

enum keel_status keel_group_create(struct keel_group *parent, const struct keel_subgroup *what,
                                   struct keel_group **out)
{
    struct keel_group *child;
    if (keel_group_over(parent))
        return keel_fail(KEEL_REVOKED, "subgroup %llu: epoch %llu is over; open the next group",
                         (unsigned long long)what->sequence, (unsigned long long)parent->epoch);
    if (what->rank_count == 0 || what->rank_count > parent->rank_count)
        return keel_fail(KEEL_INVALID, "subgroup %llu: %u ranks of %u", (unsigned long long)what->sequence,
                         what->rank_count, parent->rank_count);
    KEEL_TRY(keel_alloc(1, sizeof *child, &child));
    child->endpoint = parent->endpoint;
    child->whole = parent->whole;
    child->parent = parent;
    enum keel_status status = fill(child, what);
    if (status == KEEL_OK)
        *out = child;
    else
        keel_group_destroy(child);
    return status;
}

/* ---- by colours and keys ------------------------------------------------------------------------------- */

struct choice {
    uint32_t colour, key, rank;
};

static int by_key(const void *left, const void *right)
{
    const struct choice *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->rank < b->rank ? -1 : 1;
}

/* Those of this rank's colour, in the child's order. */
static enum keel_status create_of_colour(struct keel_group *parent, uint64_t sequence, uint32_t colour,
                                         struct choice *choices, struct keel_group **out)
{
    uint16_t *ranks;
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < parent->rank_count; rank++)
        if (choices[rank].colour == colour)
            choices[count++] = choices[rank];
    qsort(choices, count, sizeof *choices, by_key);
    KEEL_TRY(keel_alloc(count, sizeof *ranks, &ranks));
    for (uint32_t k = 0; k < count; k++)
        ranks[k] = (uint16_t)choices[k].rank;
    struct keel_subgroup what = {.sequence = sequence, .rank_count = count, .ranks = ranks};
    enum keel_status status = keel_group_create(parent, &what, out);
    keel_free(ranks);
    return status;
}

enum keel_status keel_group_split(struct keel_group *parent, uint64_t sequence, uint32_t colour, uint32_t key,
                                  uint64_t deadline_ns, struct keel_group **out)
{
    struct choice *choices; /* of all, then mine: lent, so on the heap */
    KEEL_TRY(keel_alloc((size_t)parent->rank_count + 1, sizeof *choices, &choices));
    choices[parent->rank_count] = (struct choice){colour, key, parent->rank};
    const void *parts[] = {&choices[parent->rank_count]};
    struct keel_collective gather = {.kind = KEEL_ALL_GATHER,
                                     .sequence = sequence,
                                     .element = KEEL_ELEMENT_U8,
                                     .count = sizeof *choices,
                                     .parts = parts,
                                     .part_count = 1,
                                     .result = choices};
    struct keel_operation *operation;
    enum keel_status status = keel_group_begin(parent, &gather, &operation);
    if (status != KEEL_OK) {
        keel_free(choices);
        return status;
    }
    operation->owned = choices;
    KEEL_TRY(keel_operation_wait(operation, deadline_ns)); /* a failed operation keeps what it was lent */
    status = create_of_colour(parent, sequence, colour, choices, out);
    keel_free(choices);
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
