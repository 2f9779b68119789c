/* group.c - one epoch: opening, revoking, closing, and the word about who was lost. */
#include "group.h"

#include <keel/memory.h>
#include <string.h>

static enum keel_status config_check(const struct keel_group_config *config)
{
    if (config->rank_count == 0 || config->rank_count > KEEL_GROUP_RANKS_MAX ||
        config->rank >= config->rank_count)
        return keel_fail(KEEL_INVALID, "group: rank %u of %u; there may be 1 to %d", config->rank,
                         config->rank_count, KEEL_GROUP_RANKS_MAX);
    if (config->shard_count == 0 || config->shard_count > KEEL_GROUP_SHARDS_MAX)
        return keel_fail(KEEL_INVALID, "group: %u shards; there may be 1 to %d", config->shard_count,
                         KEEL_GROUP_SHARDS_MAX);
    for (uint32_t shard = 0; shard < config->shard_count; shard++)
        if (config->shard_rank[shard] >= config->rank_count)
            return keel_fail(KEEL_INVALID, "group: shard %u is carried by rank %u of %u", shard,
                             config->shard_rank[shard], config->rank_count);
    return KEEL_OK;
}

/* Leaves by rank, and the staging place of each that comes from elsewhere. */
static void group_map(struct keel_group *group)
{
    const struct keel_tree_plan *plan = &group->plan;
    for (uint32_t leaf = 0; leaf < plan->leaf_count; leaf++) {
        group->node_count[plan->leaf_rank[leaf]]++;
        if (plan->leaf_rank[leaf] != group->rank)
            group->stage_of[leaf] = (uint16_t)group->stage_count++;
    }
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        if (rank > 0)
            group->node_start[rank] = group->node_start[rank - 1] + group->node_count[rank - 1];
        if (group->node_count[rank] > group->most_nodes)
            group->most_nodes = group->node_count[rank];
    }
    for (uint32_t leaf = 0; leaf < plan->leaf_count; leaf++)
        group->leaf_of[group->node_start[plan->leaf_rank[leaf]] + plan->leaf_ordinal[leaf]] = (uint16_t)leaf;
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
        endpoint->opening = true;
        endpoint->has_epoch = true;
        endpoint->newest_epoch = group->epoch;
        keel_endpoint_wake(endpoint);
    }
    keel_mutex_unlock(&endpoint->lock);
    return status;
}

enum keel_status keel_group_open(struct keel_endpoint *endpoint, const struct keel_group_config *config,
                                 struct keel_group **out)
{
    struct keel_group *group;
    KEEL_TRY(config_check(config));
    KEEL_TRY(keel_alloc(1, sizeof *group, &group));
    group->endpoint = endpoint;
    group->epoch = config->epoch;
    group->rank = config->rank;
    group->rank_count = config->rank_count;
    memcpy(group->addresses, config->addresses, config->rank_count * sizeof *config->addresses);
    keel_tree_plan_init(&group->plan, config->shard_count, config->shard_rank);
    group_map(group);
    enum keel_status status = group_install(endpoint, group);
    if (status != KEEL_OK) {
        keel_free(group);
        return status;
    }
    *out = group;
    return KEEL_OK;
}

void keel_group_revoke(struct keel_group *group)
{
    struct keel_endpoint *endpoint = group->endpoint;
    keel_mutex_lock(&endpoint->lock);
    group->revoked = true;
    keel_cond_broadcast(&endpoint->changed);
    keel_mutex_unlock(&endpoint->lock);
}

static void free_early(struct keel_group *group)
{
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        struct keel_early *next;
        for (struct keel_early *at = group->peers[rank].early; at != NULL; at = next) {
            next = at->next;
            keel_free(at);
        }
    }
}

/* The progress thread lets go within KEEL_CLOSE_NS and the time of one pass; then nothing touches the
 * group or any memory lent to it. */
void keel_group_close(struct keel_group *group)
{
    struct keel_endpoint *endpoint = group->endpoint;
    keel_group_revoke(group);
    keel_mutex_lock(&endpoint->lock);
    endpoint->closing = true;
    keel_endpoint_wake(endpoint);
    while (!group->detached || group->waiters > 0)
        keel_cond_wait(&endpoint->changed, &endpoint->lock, keel_deadline_after_ns(KEEL_NS_PER_S));
    endpoint->group = NULL;
    keel_mutex_unlock(&endpoint->lock);
    keel_operation_free_all(group);
    free_early(group);
    keel_free(group);
}

bool keel_group_lost(const struct keel_group *group, uint32_t *out_rank)
{
    keel_mutex_lock(&group->endpoint->lock);
    bool lost = group->has_lost;
    if (lost)
        *out_rank = group->lost_rank;
    keel_mutex_unlock(&group->endpoint->lock);
    return lost;
}

void keel_group_on_lost(struct keel_group *group, void (*lost)(void *context, uint32_t rank), void *context)
{
    keel_mutex_lock(&group->endpoint->lock);
    group->on_lost = lost;
    group->on_lost_context = context;
    keel_mutex_unlock(&group->endpoint->lock);
}
