/* group.c - one epoch: opening, revoking, closing, and the word about who was lost. */
#include "group.h"
#include "handshake.h"

#include "costs.h"

#include <keel/memory.h>
#include <string.h>

enum keel_status keel_group_check_map(uint32_t rank_count, uint32_t shard_count, const uint16_t *shard_rank)
{
    if (shard_count == 0 || shard_count > KEEL_GROUP_SHARDS_MAX)
        return keel_fail(KEEL_INVALID, "group: %u shards; there may be 1 to %d", shard_count,
                         KEEL_GROUP_SHARDS_MAX);
    if (shard_rank == NULL)
        return keel_fail(KEEL_INVALID, "group: %u shards, and no map of which rank carries each",
                         shard_count);
    for (uint32_t shard = 0; shard < shard_count; shard++)
        if (shard_rank[shard] >= rank_count)
            return keel_fail(KEEL_INVALID, "group: shard %u is carried by rank %u of %u", shard,
                             shard_rank[shard], rank_count);
    return KEEL_OK;
}

static enum keel_status config_check(const struct keel_group_config *config)
{
    if (config->rank_count == 0 || config->rank_count > KEEL_GROUP_RANKS_MAX ||
        config->rank >= config->rank_count)
        return keel_fail(KEEL_INVALID, "group: rank %u of %u; there may be 1 to %d", config->rank,
                         config->rank_count, KEEL_GROUP_RANKS_MAX);
    KEEL_TRY(keel_group_check_map(config->rank_count, config->shard_count, config->shard_rank));
    if (config->silence_ns > 0 && config->silence_ns < KEEL_SILENCE_MIN_NS)
        return keel_fail(KEEL_INVALID, "group: a silence of %llu us convicts the living; give 40 ms or more",
                         (unsigned long long)(config->silence_ns / KEEL_NS_PER_US));
    for (uint32_t rank = 0; rank < config->rank_count; rank++)
        if (config->addresses[rank].bytes > KEEL_ADDRESS_BYTES)
            return keel_fail(KEEL_INVALID, "group: the address of rank %u has %u bytes; %d are possible",
                             rank, config->addresses[rank].bytes, KEEL_ADDRESS_BYTES);
    return KEEL_OK;
}

static uint64_t hash_map(uint32_t shard_count, const uint16_t *shard_rank)
{
    uint64_t hash = shard_count;
    for (uint32_t shard = 0; shard < shard_count; shard++)
        hash = (hash ^ shard_rank[shard]) * UINT64_C(0x100000001b3) + 1;
    return hash;
}

enum keel_status keel_group_map(struct keel_group *group, uint32_t shard_count, const uint16_t *shard_rank)
{
    struct keel_tree_node *nodes;
    group->shard_count = shard_count;
    KEEL_TRY(keel_alloc(shard_count, sizeof *group->shard_rank, &group->shard_rank));
    memcpy(group->shard_rank, shard_rank, shard_count * sizeof *shard_rank);
    group->map_hash = hash_map(shard_count, shard_rank);
    KEEL_TRY(keel_alloc(shard_count, sizeof *nodes, &nodes));
    enum keel_status status =
        keel_tree_nodes(shard_count, shard_rank, group->rank, nodes, shard_count, &group->node_count);
    keel_free(nodes);
    return status;
}

void keel_group_destroy(struct keel_group *group)
{
    keel_free(group->host_of);
    keel_free(group->shard_rank);
    keel_free(group->to_whole);
    keel_free(group->from_whole);
    keel_free(group->addresses);
    keel_free(group->peers);
    keel_free(group);
}

static enum keel_status group_install(struct keel_endpoint *endpoint, struct keel_group *group)
{
    enum keel_status status = KEEL_OK;
    keel_mutex_lock(&endpoint->lock);
    if (endpoint->group != NULL) {
        status = keel_fail(KEEL_BUSY, "group: epoch %llu is still open on this endpoint; close it first",
                           (unsigned long long)endpoint->group->epoch);
    } else if (endpoint->has_epoch && group->epoch <= endpoint->newest_epoch) {
        status = keel_fail(KEEL_INVALID, "group: epoch %llu is not newer than %llu",
                           (unsigned long long)group->epoch, (unsigned long long)endpoint->newest_epoch);
    } else {
        endpoint->group = group;
        group->record = keel_recorder_group_opened(endpoint->recorder, group->identity, group->epoch,
                                                   group->rank, group->rank_count);
        endpoint->opening = true;
        endpoint->has_epoch = true;
        endpoint->newest_epoch = group->epoch;
        keel_endpoint_wake(endpoint);
    }
    keel_mutex_unlock(&endpoint->lock);
    return status;
}

static bool on_one_host(const struct keel_group *group)
{
    uint32_t rank = 0;
    while (rank < group->rank_count && group->host_of[rank] == 0)
        rank++;
    return rank == group->rank_count;
}

static enum keel_status group_fill(struct keel_group *group, const struct keel_group_config *config)
{
    group->rank = config->rank;
    group->rank_count = config->rank_count;
    group->silence_ns = config->silence_ns;
    group->identity = keel_recorder_identity(0, config->addresses, config->rank_count, config->epoch);
    keel_handshake_members(config, group->members);
    KEEL_TRY(keel_alloc(config->rank_count, sizeof *group->addresses, &group->addresses));
    memcpy(group->addresses, config->addresses, config->rank_count * sizeof *config->addresses);
    KEEL_TRY(keel_alloc(config->rank_count, sizeof(struct keel_peer *), &group->peers));
    KEEL_TRY(keel_choose_hosts(group, group));
    group->costs = config->costs != NULL ? *config->costs : keel_costs_built_in;
    if (config->costs == NULL && on_one_host(group))
        group->costs.host_processors = keel_cpu_installed();
    group->costs_hash = keel_costs_hash(&group->costs);
    return keel_group_map(group, config->shard_count, config->shard_rank);
}

enum keel_status keel_group_open(struct keel_endpoint *endpoint, const struct keel_group_config *config,
                                 struct keel_group **out)
{
    struct keel_group *group;
    KEEL_TRY(config_check(config));
    KEEL_TRY(keel_alloc(1, sizeof *group, &group));
    group->endpoint = endpoint;
    group->whole = group;
    group->epoch = config->epoch;
    enum keel_status status = group_fill(group, config);
    if (status == KEEL_OK)
        status = group_install(endpoint, group);
    if (status != KEEL_OK) {
        keel_group_destroy(group);
        return status;
    }
    *out = group;
    return KEEL_OK;
}

uint32_t keel_group_rank(const struct keel_group *group)
{
    return group->rank;
}

uint32_t keel_group_rank_count(const struct keel_group *group)
{
    return group->rank_count;
}

bool keel_group_over(const struct keel_group *group)
{
    for (; group != NULL; group = group->parent)
        if (atomic_load_explicit(&group->revoked, memory_order_relaxed))
            return true;
    return false;
}

void keel_group_leave(struct keel_group *group)
{
    if (--group->waiters == 0 && keel_group_over(group))
        keel_cond_broadcast(&group->endpoint->changed);
}

void keel_group_note(struct keel_group *group, uint32_t rank)
{
    if (rank == KEEL_NO_RANK || group->lost.count == KEEL_LOSSES_MAX || keel_losses_name(&group->lost, rank))
        return;
    KEEL_ASSERT(rank < group->rank_count);
    group->lost.rank[group->lost.count++] = (uint16_t)rank;
}

void keel_group_note_lost(struct keel_group *whole, uint32_t rank)
{
    keel_group_note(whole, rank);
    for (struct keel_group *child = whole->children; child != NULL; child = child->next_child)
        keel_group_note(child, keel_group_from_whole(child, rank));
}

void keel_group_note_guess(struct keel_group *group, uint32_t rank)
{
    group->guessed = group->lost.count == 0;
    keel_group_note(group, rank);
}

void keel_group_losses(struct keel_group *whole, struct keel_losses *out)
{
    keel_mutex_lock(&whole->endpoint->lock);
    *out = (struct keel_losses){.awaited = whole->lost.awaited};
    if (whole->is_awaited) { /* it left for this rank's sake, whatever this rank thinks of it */
        *out = (struct keel_losses){.count = 1, .awaited = 1, .rank = {(uint16_t)whole->rank}};
        keel_mutex_unlock(&whole->endpoint->lock);
        return;
    }
    for (uint32_t k = whole->guessed ? 1 : 0; k < whole->lost.count; k++)
        out->rank[out->count++] = whole->lost.rank[k];
    keel_mutex_unlock(&whole->endpoint->lock);
}

/* Whoever owns progress may sleep, and is to look. */
void keel_group_end(struct keel_group *group, bool tell)
{
    struct keel_endpoint *endpoint = group->endpoint;
    if (atomic_load(&group->revoked))
        return;
    atomic_store(&group->revoked, true);
    group->revoked_for_all = group->revocation_due = tell;
    endpoint->revoking = endpoint->revoking || tell;
    keel_cond_broadcast(&endpoint->changed);
    keel_endpoint_wake(endpoint);
}

void keel_group_revoke(struct keel_group *group)
{
    if (atomic_load(&group->revoked))
        return;
    keel_mutex_lock(&group->endpoint->lock);
    keel_group_end(group, true);
    keel_mutex_unlock(&group->endpoint->lock);
}

static bool is_number_in(const uint32_t *numbers, uint32_t count, uint32_t number)
{
    uint32_t k = 0;
    while (k < count && numbers[k] != number)
        k++;
    return k < count;
}

bool keel_group_has_closed(const struct keel_group *whole, uint32_t number)
{
    return is_number_in(whole->closed_numbers, whole->closed_count, number);
}

void keel_group_revoked_there(struct keel_group *whole, uint32_t number)
{
    keel_mutex_lock(&whole->endpoint->lock);
    struct keel_group *group = number == 0 ? whole : whole->children;
    while (group != NULL && group->number != number)
        group = group->next_child;
    if (group != NULL)
        keel_group_end(group, true);
    else if (!keel_group_has_closed(whole, number) &&
             !is_number_in(whole->revoked_numbers, whole->revoked_count, number) &&
             whole->revoked_count < KEEL_SPLITS_MAX)
        whole->revoked_numbers[whole->revoked_count++] = number;
    keel_mutex_unlock(&whole->endpoint->lock);
}

struct keel_group *keel_group_next_revoked(struct keel_group *whole)
{
    keel_mutex_lock(&whole->endpoint->lock);
    struct keel_group *group = whole->revocation_due ? whole : whole->children;
    while (group != NULL && !group->revocation_due)
        group = group->next_child;
    if (group != NULL)
        group->revocation_due = false;
    keel_mutex_unlock(&whole->endpoint->lock);
    return group;
}

/* Progress lets go within KEEL_CLOSE_NS and the time of one round; then nothing touches the group or any
 * memory lent to it. */
static void close_whole(struct keel_group *group)
{
    struct keel_endpoint *endpoint = group->endpoint;
    keel_mutex_lock(&endpoint->lock);
    endpoint->closing = true;
    keel_endpoint_wake(endpoint);
    while (!group->detached || group->waiters > 0)
        keel_cond_wait(&endpoint->changed, &endpoint->lock, keel_deadline_after_ns(KEEL_NS_PER_S));
    endpoint->group = NULL;
    keel_recorder_group_closed(endpoint->recorder, group->record);
    keel_mutex_unlock(&endpoint->lock);
    keel_session_forget(group);
}

static bool descends(const struct keel_group *child, const struct keel_group *from)
{
    const struct keel_group *at = child->parent;
    while (at != NULL && at != from)
        at = at->parent;
    return at != NULL;
}

/* The one split off last, from which nothing that is open was split: the newest come first. */
static struct keel_group *last_split_from(const struct keel_group *group)
{
    keel_mutex_lock(&group->endpoint->lock);
    struct keel_group *at = group->whole->children;
    while (at != NULL && !descends(at, group))
        at = at->next_child;
    if (at != NULL)
        keel_group_end(at, false);
    keel_mutex_unlock(&group->endpoint->lock);
    return at;
}

/* What was split from it ends with it; its owner still has to close it. */
static void close_splits(const struct keel_group *group)
{
    for (struct keel_group *child; (child = last_split_from(group)) != NULL;) {
        keel_group_close_child(child);
        keel_operation_free_all(child);
        keel_plan_free_all(child);
        child->orphaned = true;
        child->parent = child->whole = NULL;
    }
}

void keel_group_close(struct keel_group *group)
{
    if (group->orphaned) {
        keel_group_destroy(group);
        return;
    }
    close_splits(group);
    keel_mutex_lock(&group->endpoint->lock);
    keel_group_end(group, false); /* its peers hear the farewell instead */
    keel_mutex_unlock(&group->endpoint->lock);
    if (group->whole == group)
        close_whole(group);
    else
        keel_group_close_child(group);
    keel_operation_free_all(group);
    keel_plan_free_all(group);
    keel_group_destroy(group);
}

uint32_t keel_group_failed(const struct keel_group *group, uint32_t *out_ranks, uint32_t capacity)
{
    if (!group->orphaned) /* else its endpoint may be closed, and nobody writes it */
        keel_mutex_lock(&group->endpoint->lock);
    uint32_t count = group->lost.count;
    for (uint32_t k = 0; k < count && k < capacity; k++)
        out_ranks[k] = group->lost.rank[k];
    if (!group->orphaned)
        keel_mutex_unlock(&group->endpoint->lock);
    return count;
}

bool keel_group_lost(const struct keel_group *group, uint32_t *out_rank)
{
    uint32_t rank;
    bool lost = keel_group_failed(group, &rank, 1) > 0;
    if (lost)
        *out_rank = rank;
    return lost;
}

void keel_group_on_lost(struct keel_group *group, void (*lost)(void *context, uint32_t rank), void *context)
{
    keel_mutex_lock(&group->endpoint->lock);
    group->on_lost = lost;
    group->on_lost_context = context;
    keel_mutex_unlock(&group->endpoint->lock);
}
