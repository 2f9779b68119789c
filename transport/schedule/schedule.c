/* schedule.c - a schedule from a wish: what is asked is checked, the generator listed, the whole linked. */
#include "schedule_build.h"

#include <keel/memory.h>

static keel_schedule_generator *const generators[KEEL_ALGORITHM_COUNT] = {
    [KEEL_ALGORITHM_FLAT] = keel_schedule_flat,         [KEEL_ALGORITHM_DIRECT] = keel_schedule_direct,
    [KEEL_ALGORITHM_RING] = keel_schedule_ring,         [KEEL_ALGORITHM_TREE] = keel_schedule_tree,
    [KEEL_ALGORITHM_HALVING] = keel_schedule_halving,   [KEEL_ALGORITHM_BRUCK] = keel_schedule_bruck,
    [KEEL_ALGORITHM_PAIRWISE] = keel_schedule_pairwise, [KEEL_ALGORITHM_TWO_LEVEL] = keel_schedule_two_level,
    [KEEL_ALGORITHM_DOUBLING] = keel_schedule_doubling,
};

static enum keel_status check_map(const struct keel_schedule_wish *wish)
{
    if (wish->shard_rank == NULL)
        return KEEL_OK;
    if (wish->shard_count == 0 || wish->shard_count > KEEL_GROUP_SHARDS_MAX)
        return keel_fail(KEEL_INVALID, "schedule: %u shards; 1 to %d are possible", wish->shard_count,
                         KEEL_GROUP_SHARDS_MAX);
    for (uint32_t shard = 0; shard < wish->shard_count; shard++)
        if (wish->shard_rank[shard] >= wish->rank_count)
            return keel_fail(KEEL_INVALID, "schedule: shard %u is on rank %u of %u", shard,
                             wish->shard_rank[shard], wish->rank_count);
    return KEEL_OK;
}

static enum keel_status check_wish(const struct keel_schedule_wish *wish)
{
    if (wish->kind >= KEEL_COLLECTIVE_COUNT)
        return keel_fail(KEEL_INVALID, "schedule: no collective has number %d", (int)wish->kind);
    if (wish->rank_count == 0 || wish->rank_count > KEEL_SCHEDULE_RANKS_MAX || wish->rank >= wish->rank_count)
        return keel_fail(KEEL_INVALID, "schedule: rank %u of %u; 1 to %d ranks are possible", wish->rank,
                         wish->rank_count, KEEL_SCHEDULE_RANKS_MAX);
    if (wish->root >= wish->rank_count)
        return keel_fail(KEEL_INVALID, "schedule: root or peer %u of %u ranks", wish->root, wish->rank_count);
    if ((wish->kind == KEEL_SEND || wish->kind == KEEL_RECEIVE) && wish->root == wish->rank)
        return keel_fail(KEEL_INVALID, "schedule: rank %u would send to itself; copy instead", wish->rank);
    if (wish->algorithm >= KEEL_ALGORITHM_COUNT || generators[wish->algorithm] == NULL)
        return keel_fail(KEEL_INVALID, "schedule: %d is no algorithm that makes schedules",
                         (int)wish->algorithm);
    for (uint32_t rank = 0; wish->host_of != NULL && rank < wish->rank_count; rank++)
        if (wish->host_of[rank] >= KEEL_SCHEDULE_RANKS_MAX)
            return keel_fail(KEEL_INVALID, "schedule: host %u of rank %u; numbers below %d are possible",
                             wish->host_of[rank], rank, KEEL_SCHEDULE_RANKS_MAX);
    return check_map(wish);
}

/* One shard a rank where there is no map. */
static enum keel_status make_plan(struct keel_builder *builder)
{
    const struct keel_schedule_wish *wish = builder->wish;
    uint16_t *own = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *builder->plan, (void *)&builder->plan));
    if (wish->shard_rank != NULL) {
        keel_tree_plan_init(builder->plan, wish->shard_count, wish->shard_rank);
        return KEEL_OK;
    }
    KEEL_TRY(keel_alloc(wish->rank_count, sizeof *own, (void *)&own));
    for (uint32_t rank = 0; rank < wish->rank_count; rank++)
        own[rank] = (uint16_t)rank;
    keel_tree_plan_init(builder->plan, wish->rank_count, own);
    keel_free(own);
    return KEEL_OK;
}

static enum keel_status list_steps(struct keel_builder *builder)
{
    if (builder->facts.reduces)
        KEEL_TRY(make_plan(builder));
    generators[builder->wish->algorithm](builder);
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

enum keel_status keel_schedule_make(const struct keel_schedule_wish *wish, struct keel_schedule **out)
{
    KEEL_TRY(check_wish(wish));
    struct keel_builder builder = {.wish = wish, .facts = keel_wish_facts(wish)};
    const char *obstacle = keel_wish_obstacle(wish, &builder.facts);
    if (obstacle != NULL)
        return keel_fail(KEEL_UNSUPPORTED, "%s of %u ranks by %s: %s; take another algorithm, or auto",
                         keel_collective_name(wish->kind), wish->rank_count,
                         keel_algorithm_name(wish->algorithm), obstacle);
    KEEL_TRY(keel_alloc(1, sizeof *builder.schedule, (void *)&builder.schedule));
    builder.schedule->rank = wish->rank;
    builder.schedule->rank_count = wish->rank_count;
    builder.schedule->in_order = keel_wish_in_order(wish, &builder.facts);
    enum keel_status status = list_steps(&builder);
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
