/* plan.c - the cache of schedules, and the tables beside each. */
#include "plan.h"

#include "group.h"
#include "schedule_build.h"

#include <keel/memory.h>

/* The root of a pair is the other rank. */
static bool rooted(enum keel_collective_kind kind)
{
    return keel_kind_has_root(kind) || keel_kind_is_pair(kind);
}

bool keel_is_by_rank(const struct keel_collective *collective)
{
    return collective->by_rank && keel_kind_reduces(collective->kind);
}

struct keel_collective_key keel_plan_key(const struct keel_group *group,
                                         const struct keel_collective *collective,
                                         enum keel_algorithm algorithm)
{
    const bool by_rank = keel_is_by_rank(collective);
    return (struct keel_collective_key){.kind = collective->kind,
                                        .algorithm = algorithm,
                                        .exact = collective->order == KEEL_ORDER_EXACT,
                                        .rank = group->rank,
                                        .rank_count = group->rank_count,
                                        .root = rooted(collective->kind) ? collective->root : 0,
                                        .shard_count = by_rank ? 0 : group->shard_count,
                                        .shard_rank = by_rank ? NULL : group->shard_rank,
                                        .host_of = group->host_of};
}

/* ---- tables -------------------------------------------------------------------------------------------- */

static enum keel_status list_roots(struct keel_plan *plan)
{
    const struct keel_schedule *schedule = plan->schedule;
    KEEL_TRY(keel_alloc(schedule->step_count, sizeof *plan->roots, &plan->roots));
    for (uint32_t step = 0; step < schedule->step_count; step++)
        if (schedule->needs[step] == 0)
            plan->roots[plan->root_count++] = step;
    return KEEL_OK;
}

static enum keel_status list_sends(struct keel_plan *plan)
{
    const struct keel_schedule *schedule = plan->schedule;
    KEEL_TRY(keel_alloc(schedule->peer_count + 1, sizeof *plan->sends_first, &plan->sends_first));
    KEEL_TRY(keel_alloc(schedule->step_count, sizeof *plan->sends, &plan->sends));
    for (uint32_t step = 0; step < schedule->step_count; step++)
        if (schedule->steps[step].kind == KEEL_STEP_SEND)
            plan->sends_first[schedule->steps[step].peer_index + 1]++;
    for (uint32_t peer = 0; peer < schedule->peer_count; peer++)
        plan->sends_first[peer + 1] += plan->sends_first[peer];
    for (uint32_t step = 0; step < schedule->step_count; step++) {
        const struct keel_step *at = &schedule->steps[step];
        if (at->kind == KEEL_STEP_SEND)
            plan->sends[plan->sends_first[at->peer_index] + at->ordinal] = step;
    }
    return KEEL_OK;
}

/* Who touches each TEMP. */
struct use {
    uint32_t writes, reads, reader;
};

static void count_uses(const struct keel_schedule *schedule, struct use *uses)
{
    for (uint32_t step = 0; step < schedule->step_count; step++) {
        const struct keel_step *at = &schedule->steps[step];
        const struct keel_operand *operands = &schedule->operands[at->operand_first];
        for (uint32_t k = 0; k < at->operand_count; k++) {
            if (operands[k].space != KEEL_SPACE_TEMP)
                continue;
            struct use *use = &uses[operands[k].number];
            bool writes = k == 0 && at->kind != KEEL_STEP_SEND;
            use->writes += writes;
            use->reads += !writes;
            if (!writes)
                use->reader = step;
        }
    }
}

/* A TEMP that one RECEIVE fills and one COMBINE reads, once, need not be filled at all. */
static enum keel_status list_direct(struct keel_plan *plan)
{
    const struct keel_schedule *schedule = plan->schedule;
    struct use *uses;
    KEEL_TRY(keel_alloc(schedule->step_count, sizeof *plan->direct, &plan->direct));
    KEEL_TRY(keel_alloc(schedule->temp_count, sizeof *uses, &uses));
    count_uses(schedule, uses);
    for (uint32_t step = 0; step < schedule->step_count; step++) {
        const struct keel_step *at = &schedule->steps[step];
        const struct keel_operand *into = &schedule->operands[at->operand_first];
        plan->direct[step] = KEEL_NONE;
        if (at->kind == KEEL_STEP_COMBINE && at->operand_count - 1 > plan->leaves_max)
            plan->leaves_max = at->operand_count - 1;
        if (at->kind != KEEL_STEP_RECEIVE)
            continue;
        KEEL_ASSERT(schedule->needs[step] == 0);
        if (into->space != KEEL_SPACE_TEMP)
            continue;
        const struct use *use = &uses[into->number];
        if (use->writes == 1 && use->reads == 1 && schedule->steps[use->reader].kind == KEEL_STEP_COMBINE)
            plan->direct[step] = use->reader;
    }
    keel_free(uses);
    return KEEL_OK;
}

static void plan_free(struct keel_plan *plan)
{
    while (plan->spare != NULL) {
        struct keel_operation *operation = plan->spare;
        plan->spare = operation->next_live;
        keel_operation_destroy(operation);
    }
    keel_schedule_free(plan->schedule);
    keel_free(plan->roots);
    keel_free(plan->sends_first);
    keel_free(plan->sends);
    keel_free(plan->direct);
    keel_free(plan);
}

/* A rank that has few peers itself refuses it too where another one, the root, would have too many: it would
 * wait for that one in vain. */
static enum keel_status check_peers(const struct keel_collective_key *key,
                                    const struct keel_schedule *schedule)
{
    struct keel_facts facts = keel_key_facts(key);
    uint32_t straight = keel_key_peers(key, &facts);
    uint32_t most = straight > schedule->peer_count ? straight : schedule->peer_count;
    if (most <= KEEL_CONNECTIONS_MAX)
        return KEEL_OK;
    return keel_fail(KEEL_LIMIT,
                     "%s of %u ranks by %s: a rank would need %u connections, there may be %d; take another "
                     "algorithm, or groups split off",
                     keel_collective_name(key->kind), key->rank_count, keel_algorithm_name(key->algorithm),
                     most, KEEL_CONNECTIONS_MAX);
}

static enum keel_status plan_make(const struct keel_group *group, const struct keel_collective *collective,
                                  enum keel_algorithm algorithm, struct keel_plan **out)
{
    struct keel_collective_key key = keel_plan_key(group, collective, algorithm);
    struct keel_plan *plan;
    KEEL_TRY(keel_alloc(1, sizeof *plan, &plan));
    *plan = (struct keel_plan){.kind = key.kind,
                               .algorithm = algorithm,
                               .exact = key.exact && keel_kind_reduces(key.kind),
                               .by_rank = keel_is_by_rank(collective),
                               .root = key.root,
                               .users = 1};
    enum keel_status status = keel_schedule_make(&key, &plan->schedule);
    if (status == KEEL_OK)
        status = check_peers(&key, plan->schedule);
    if (status == KEEL_OK)
        status = list_roots(plan);
    if (status == KEEL_OK)
        status = list_sends(plan);
    if (status == KEEL_OK)
        status = list_direct(plan);
    if (status != KEEL_OK) {
        plan_free(plan);
        return status;
    }
    *out = plan;
    return KEEL_OK;
}

/* ---- the cache ----------------------------------------------------------------------------------------- */

/* Caller holds the lock. The newest found stands first. */
static struct keel_plan *find(struct keel_group *group, const struct keel_collective *collective,
                              enum keel_algorithm algorithm)
{
    bool exact = collective->order == KEEL_ORDER_EXACT && keel_kind_reduces(collective->kind);
    for (struct keel_plan **at = &group->plans; *at != NULL; at = &(*at)->next) {
        struct keel_plan *plan = *at;
        if (plan->kind != collective->kind || plan->algorithm != algorithm || plan->exact != exact ||
            plan->by_rank != keel_is_by_rank(collective) ||
            (rooted(plan->kind) && plan->root != collective->root))
            continue;
        *at = plan->next;
        plan->next = group->plans;
        group->plans = plan;
        return plan;
    }
    return NULL;
}

/* Caller holds the lock: the oldest that nobody uses, taken off; NULL while there are few. */
static struct keel_plan *surplus(struct keel_group *group)
{
    struct keel_plan **last = NULL;
    uint32_t idle = 0;
    for (struct keel_plan **at = &group->plans; *at != NULL; at = &(*at)->next) {
        if ((*at)->users > 0)
            continue;
        last = at;
        idle++;
    }
    if (idle <= KEEL_PLANS_MAX)
        return NULL;
    struct keel_plan *plan = *last;
    *last = plan->next;
    return plan;
}

enum keel_status keel_plan_take(struct keel_group *group, const struct keel_collective *collective,
                                enum keel_algorithm algorithm, struct keel_plan **out)
{
    struct keel_endpoint *endpoint = group->endpoint;
    struct keel_plan *made = NULL, *old = NULL;
    keel_mutex_lock(&endpoint->lock);
    struct keel_plan *plan = find(group, collective, algorithm);
    if (plan != NULL)
        plan->users++;
    keel_mutex_unlock(&endpoint->lock);
    if (plan != NULL) {
        *out = plan;
        return KEEL_OK;
    }
    KEEL_TRY(plan_make(group, collective, algorithm, &made));
    keel_mutex_lock(&endpoint->lock);
    plan = find(group, collective, algorithm); /* another thread may have made it meanwhile */
    if (plan != NULL) {
        plan->users++;
        old = made;
    } else {
        plan = made;
        plan->next = group->plans;
        group->plans = plan;
        old = surplus(group);
    }
    keel_mutex_unlock(&endpoint->lock);
    if (old != NULL)
        plan_free(old);
    *out = plan;
    return KEEL_OK;
}

void keel_plan_drop(struct keel_group *group, struct keel_plan *plan)
{
    keel_mutex_lock(&group->endpoint->lock);
    plan->users--;
    keel_mutex_unlock(&group->endpoint->lock);
}

void keel_plan_free_all(struct keel_group *group)
{
    while (group->plans != NULL) {
        struct keel_plan *plan = group->plans;
        group->plans = plan->next;
        plan_free(plan);
    }
}
