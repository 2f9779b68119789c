/* schedule.c - a schedule from a key: what is asked is checked, the generator listed, the whole linked. */
#include "schedule_build.h"

#include <keel/memory.h>

static keel_schedule_generator *const generators[KEEL_ALGORITHM_COUNT] = {
    [KEEL_ALGORITHM_FLAT] = keel_schedule_flat,         [KEEL_ALGORITHM_DIRECT] = keel_schedule_direct,
    [KEEL_ALGORITHM_RING] = keel_schedule_ring,         [KEEL_ALGORITHM_TREE] = keel_schedule_tree,
    [KEEL_ALGORITHM_HALVING] = keel_schedule_halving,   [KEEL_ALGORITHM_BRUCK] = keel_schedule_bruck,
    [KEEL_ALGORITHM_PAIRWISE] = keel_schedule_pairwise, [KEEL_ALGORITHM_TWO_LEVEL] = keel_schedule_two_level,
    [KEEL_ALGORITHM_DOUBLING] = keel_schedule_doubling,
};

static enum keel_status check_map(const struct keel_collective_key *key)
{
    if (key->shard_rank == NULL)
        return KEEL_OK;
    if (key->shard_count == 0 || key->shard_count > KEEL_GROUP_SHARDS_MAX)
        return keel_fail(KEEL_INVALID, "schedule: %u shards; 1 to %d are possible", key->shard_count,
                         KEEL_GROUP_SHARDS_MAX);
    for (uint32_t shard = 0; shard < key->shard_count; shard++)
        if (key->shard_rank[shard] >= key->rank_count)
            return keel_fail(KEEL_INVALID, "schedule: shard %u is on rank %u of %u", shard,
                             key->shard_rank[shard], key->rank_count);
    return KEEL_OK;
}

static enum keel_status check_key(const struct keel_collective_key *key)
{
    if (key->kind >= KEEL_COLLECTIVE_COUNT)
        return keel_fail(KEEL_INVALID, "schedule: no collective has number %d", (int)key->kind);
    if (key->rank_count == 0 || key->rank_count > KEEL_GROUP_RANKS_MAX || key->rank >= key->rank_count)
        return keel_fail(KEEL_INVALID, "schedule: rank %u of %u; 1 to %d ranks are possible", key->rank,
                         key->rank_count, KEEL_GROUP_RANKS_MAX);
    if (key->root >= key->rank_count)
        return keel_fail(KEEL_INVALID, "schedule: root or peer %u of %u ranks", key->root, key->rank_count);
    if (keel_kind_is_pair(key->kind) && key->root == key->rank)
        return keel_fail(KEEL_INVALID, "schedule: rank %u would send to itself; copy instead", key->rank);
    if (key->algorithm >= KEEL_ALGORITHM_COUNT || generators[key->algorithm] == NULL)
        return keel_fail(KEEL_INVALID, "schedule: %d is no algorithm that makes schedules",
                         (int)key->algorithm);
    for (uint32_t rank = 0; key->host_of != NULL && rank < key->rank_count; rank++)
        if (key->host_of[rank] >= KEEL_GROUP_RANKS_MAX)
            return keel_fail(KEEL_INVALID, "schedule: host %u of rank %u; numbers below %d are possible",
                             key->host_of[rank], rank, KEEL_GROUP_RANKS_MAX);
    return check_map(key);
}

/* One shard a rank where there is no map. */
static enum keel_status make_plan(struct keel_builder *builder)
{
    const struct keel_collective_key *key = builder->key;
    uint16_t *own = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *builder->plan, (void *)&builder->plan));
    if (key->shard_rank != NULL)
        return keel_tree_plan_make(builder->plan, key->rank_count, key->shard_count, key->shard_rank);
    KEEL_TRY(keel_alloc(key->rank_count, sizeof *own, (void *)&own));
    for (uint32_t rank = 0; rank < key->rank_count; rank++)
        own[rank] = (uint16_t)rank;
    const enum keel_status status = keel_tree_plan_make(builder->plan, key->rank_count, key->rank_count, own);
    keel_free(own);
    return status;
}

static enum keel_status list_steps(struct keel_builder *builder)
{
    if (builder->facts.reduces)
        KEEL_TRY(make_plan(builder));
    generators[builder->key->algorithm](builder);
    return builder->status;
}

/* Give back what growing took too much. */
static enum keel_status trim(struct keel_builder *builder)
{
    struct keel_schedule *s = builder->schedule;
    KEEL_TRY(keel_realloc((void *)&s->steps, builder->step_capacity, s->step_count, sizeof *s->steps));
    KEEL_TRY(
        keel_realloc((void *)&s->operands, builder->operand_capacity, s->operand_count, sizeof *s->operands));
    return keel_realloc((void *)&s->program, builder->program_capacity, s->program_count, sizeof *s->program);
}

enum keel_status keel_schedule_make(const struct keel_collective_key *key, struct keel_schedule **out)
{
    KEEL_TRY(check_key(key));
    struct keel_builder builder = {.key = key, .facts = keel_key_facts(key)};
    const char *obstacle = keel_key_obstacle(key, &builder.facts);
    if (obstacle != NULL)
        return keel_fail(KEEL_UNSUPPORTED, "%s of %u ranks by %s: %s; take another algorithm, or auto",
                         keel_collective_name(key->kind), key->rank_count,
                         keel_algorithm_name(key->algorithm), obstacle);
    if (!keel_key_fits(key, &builder.facts))
        return keel_build_too_much(key);
    KEEL_TRY(keel_alloc(1, sizeof *builder.schedule, (void *)&builder.schedule));
    builder.schedule->rank = key->rank;
    builder.schedule->rank_count = key->rank_count;
    builder.schedule->in_order = keel_key_in_order(key, &builder.facts);
    enum keel_status status = list_steps(&builder);
    if (builder.plan != NULL)
        keel_tree_plan_fini(builder.plan);
    keel_free(builder.plan);
    keel_free(builder.value);
    if (status == KEEL_OK)
        status = trim(&builder);
    if (status == KEEL_OK)
        status = keel_schedule_link(builder.schedule);
    if (status != KEEL_OK) {
        keel_schedule_free(builder.schedule);
        return status;
    }
    *out = builder.schedule;
    return KEEL_OK;
}

void keel_schedule_free(struct keel_schedule *schedule)
{
    if (schedule == NULL)
        return;
    keel_free(schedule->steps);
    keel_free(schedule->operands);
    keel_free(schedule->program);
    keel_free(schedule->needs);
    keel_free(schedule->freed_first);
    keel_free(schedule->freed);
    keel_free(schedule->peers);
    keel_free(schedule->receives_first);
    keel_free(schedule->receives);
    keel_free(schedule);
}
