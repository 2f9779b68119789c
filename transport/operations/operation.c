/* operation.c - the caller's half of an operation: what was asked is checked, cut into segments, and begun.
 *
 * Begin takes the plan, fills an operation in (one that the plan has spare, where there is one) and posts it;
 * where nobody owns progress at that moment the caller lets it out himself. Waiting is wait.c. */
#include "group.h"

#include <keel/bits.h>
#include <keel/memory.h>
#include <string.h>

enum {
    SCRATCH_LENDABLE_BYTES = 256 * 1024,
    PIECES_MAX = 256 /* operands of a schedule whose pieces are remembered */
};
/* In the place of the hash of a map: no map is like that of ranks. */
#define MAP_OF_RANKS UINT64_C(0x72616e6b73)

/* ---- life ---------------------------------------------------------------------------------------------- */

/* Messages to ranks of this host can refer to what lies in transport memory. Where there is none left, or so
 * little is wanted that it would be copied all the same, the heap does. */
static enum keel_status take_scratch(struct keel_operation *operation, uint64_t bytes)
{
    operation->scratch_lendable =
        bytes >= SCRATCH_LENDABLE_BYTES && keel_transport_alloc(bytes, &operation->scratch) == KEEL_OK;
    if (!operation->scratch_lendable)
        KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, bytes, &operation->scratch));
    operation->scratch_bytes = bytes;
    return KEEL_OK;
}

static void free_scratch(struct keel_operation *operation)
{
    if (operation->scratch_lendable)
        keel_transport_free(operation->scratch);
    else
        keel_free(operation->scratch);
    operation->scratch = NULL;
    operation->scratch_bytes = 0;
}

void keel_operation_destroy(struct keel_operation *operation)
{
    keel_free(operation->owned);
    free_scratch(operation);
    keel_free(operation->flows);
    keel_free(operation->needs);
    keel_free(operation->chain);
    keel_free(operation->state);
    keel_free(operation->held);
    keel_free(operation->leaves);
    keel_free(operation->pieces);
    keel_free(operation->parts);
    keel_free(operation->ends);
    keel_free(operation);
}

void keel_operation_unlink_live(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    if (operation->previous_live != NULL)
        operation->previous_live->next_live = operation->next_live;
    else
        group->live = operation->next_live;
    if (operation->next_live != NULL)
        operation->next_live->previous_live = operation->previous_live;
    KEEL_ASSERT(group->whole->operation_count > 0);
    operation->next_live = operation->previous_live = NULL;
    group->whole->operation_count--;
}

static struct keel_operation **again_slot(struct keel_group *group, const struct keel_collective *what)
{
    uint64_t hash = what->count * 31 + (uint64_t)what->kind * 7 + (uint64_t)what->element + what->root;
    return &group->again[hash % KEEL_CHOICES];
}

static bool is_same(const struct keel_collective *asked, const struct keel_collective *what)
{
    return asked->kind == what->kind && asked->count == what->count && asked->element == what->element &&
           asked->reduction == what->reduction && asked->order == what->order &&
           asked->algorithm == what->algorithm && asked->root == what->root &&
           asked->by_rank == what->by_rank && (what->kind != KEEL_REDUCE_SCATTER || what->counts_out == NULL);
}

/* One that is all set for the same again stays so, while there is no other in its place. */
struct keel_operation *keel_operation_give_back(struct keel_operation *operation)
{
    KEEL_ASSERT(operation->group->whole->scratch_bytes >= operation->scratch_held);
    operation->owned = NULL;
    operation->group->whole->scratch_bytes -= operation->scratch_held;
    if (operation->asked.kind != KEEL_COLLECTIVE_COUNT) {
        struct keel_operation **kept = again_slot(operation->group, &operation->asked), *old = *kept;
        *kept = operation;
        operation = old;
    }
    if (operation == NULL)
        return NULL;
    struct keel_plan *plan = operation->plan;
    KEEL_ASSERT(plan->users > 0);
    plan->users--;
    if (plan->spare_count == KEEL_SPARES_MAX)
        return operation;
    operation->next_live = plan->spare;
    plan->spare = operation;
    plan->spare_count++;
    return NULL;
}

/* It was never begun. */
static void release(struct keel_operation *operation)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    keel_mutex_lock(&endpoint->lock);
    struct keel_operation *left = keel_operation_give_back(operation);
    keel_mutex_unlock(&endpoint->lock);
    if (left != NULL)
        keel_operation_destroy(left);
}

void keel_operation_free_all(struct keel_group *group)
{
    while (group->live != NULL) {
        struct keel_operation *operation = group->live;
        keel_mutex_lock(&group->endpoint->lock);
        keel_operation_unlink_live(operation);
        operation->plan->users--;
        group->whole->scratch_bytes -= operation->scratch_held;
        keel_mutex_unlock(&group->endpoint->lock);
        keel_operation_destroy(operation);
    }
    for (uint32_t k = 0; k < KEEL_CHOICES; k++)
        if (group->again[k] != NULL)
            keel_operation_destroy(group->again[k]);
}

static enum keel_status grow_slots(struct keel_operation *operation, uint32_t slots)
{
    size_t items = ((size_t)slots + 1) * operation->plan->schedule->step_count;
    if (slots <= operation->slots)
        return KEEL_OK;
    keel_free(operation->needs);
    keel_free(operation->chain);
    keel_free(operation->state);
    keel_free(operation->held);
    operation->needs = operation->chain = NULL;
    operation->state = NULL;
    operation->held = NULL;
    operation->slots = 0;
    KEEL_TRY(keel_alloc(items, sizeof *operation->needs, &operation->needs));
    KEEL_TRY(keel_alloc(items, sizeof *operation->chain, &operation->chain));
    KEEL_TRY(keel_alloc(items, sizeof *operation->state, &operation->state));
    KEEL_TRY(keel_alloc((size_t)slots * operation->plan->schedule->temp_count, sizeof *operation->held,
                        &operation->held));
    operation->slots = slots;
    return KEEL_OK;
}

static enum keel_status make(struct keel_group *group, struct keel_plan *plan, struct keel_operation **out)
{
    const struct keel_schedule *schedule = plan->schedule;
    bool tables = plan->kind == KEEL_ALL_GATHER_V || plan->kind == KEEL_ALL_TO_ALL_V ||
                  plan->kind == KEEL_REDUCE_SCATTER;
    struct keel_operation *operation;
    KEEL_TRY(keel_alloc(1, sizeof *operation, &operation));
    operation->group = group;
    operation->plan = plan;
    operation->asked.kind = KEEL_COLLECTIVE_COUNT;
    operation->flow_count = schedule->peer_count;
    operation->part_capacity = group->node_count > 0 ? group->node_count : 1;
    enum keel_status status = keel_alloc(schedule->peer_count, sizeof *operation->flows, &operation->flows);
    if (status == KEEL_OK)
        status = keel_alloc(operation->part_capacity, sizeof *operation->parts, &operation->parts);
    if (status == KEEL_OK)
        status = keel_alloc(plan->leaves_max, sizeof *operation->leaves, &operation->leaves);
    if (status == KEEL_OK && schedule->operand_count <= PIECES_MAX)
        status = keel_alloc(schedule->operand_count, sizeof *operation->pieces, &operation->pieces);
    if (status == KEEL_OK && tables)
        status = keel_alloc(2 * (size_t)group->rank_count, sizeof *operation->ends, &operation->ends);
    if (status != KEEL_OK) {
        keel_operation_destroy(operation);
        return status;
    }
    for (uint32_t k = 0; k < operation->flow_count; k++) {
        operation->flows[k].operation = operation;
        operation->flows[k].rank = schedule->peers[k];
        operation->flows[k].sends = plan->sends + plan->sends_first[k];
        operation->flows[k].send_count = plan->sends_first[k + 1] - plan->sends_first[k];
        operation->flows[k].receives = schedule->receives + schedule->receives_first[k];
        operation->flows[k].receive_count = schedule->receives_first[k + 1] - schedule->receives_first[k];
    }
    *out = operation;
    return KEEL_OK;
}

/* All that is of one use; tickets and queues of flows are written before they are read. */
static void reset(struct keel_operation *operation)
{
    const size_t from = offsetof(struct keel_flow, queued), to = offsetof(struct keel_flow, tickets);
    for (uint32_t k = 0; k < operation->flow_count; k++) {
        struct keel_flow *flow = &operation->flows[k];
        memset((uint8_t *)flow + from, 0, to - from);
        flow->give_left = flow->give_count;
        flow->take_left = flow->take_count;
    }
    operation->open_flows = operation->flow_count;
    operation->lowest = 0;
    operation->ended = operation->linked = false;
    atomic_store_explicit(&operation->done, false, memory_order_relaxed);
    operation->next_in_table = operation->next_submitted = NULL;
    operation->next_live = operation->previous_live = NULL;
}

/* An operation of this plan that nobody uses, or a new one. */
static enum keel_status obtain(struct keel_group *group, struct keel_plan *plan, struct keel_operation **out)
{
    keel_mutex_lock(&group->endpoint->lock);
    struct keel_operation *operation = plan->spare;
    if (operation != NULL) {
        plan->spare = operation->next_live;
        plan->spare_count--;
    }
    keel_mutex_unlock(&group->endpoint->lock);
    if (operation == NULL)
        KEEL_TRY(make(group, plan, &operation));
    *out = operation;
    return KEEL_OK;
}

/* ---- the data ------------------------------------------------------------------------------------------ */

static struct keel_cut cut_vector(uint64_t count, uint64_t element_bytes, uint32_t blocks)
{
    uint64_t share = blocks > 1 ? keel_slice_of(count, 0, blocks).count : count;
    return (struct keel_cut){.share = share * element_bytes, .total = count * element_bytes};
}

static struct keel_cut cut_even(uint64_t count, uint64_t element_bytes, uint32_t blocks)
{
    return (struct keel_cut){.share = count * element_bytes, .total = count * element_bytes * blocks};
}

static struct keel_cut cut_table(const uint64_t *counts, uint64_t element_bytes, uint32_t blocks,
                                 uint64_t *ends)
{
    uint64_t end = 0;
    for (uint32_t k = 0; k < blocks; k++)
        ends[k] = end += counts[k] * element_bytes;
    return (struct keel_cut){.total = end, .ends = ends};
}

static struct keel_cut cut_shape(enum keel_shape shape, struct keel_operation *operation, uint64_t count,
                                 uint32_t blocks, const uint64_t *counts, uint64_t *ends)
{
    const uint64_t bytes = operation->element_bytes;
    const uint32_t ranks = operation->group->rank_count;
    switch (shape) {
    case KEEL_SHAPE_VECTOR:
        return cut_vector(count, bytes, blocks);
    case KEEL_SHAPE_BLOCK:
        return cut_even(counts != NULL ? counts[operation->group->rank] : count, bytes, 1);
    case KEEL_SHAPE_BLOCKS:
    case KEEL_SHAPE_TABLE:
        return counts != NULL ? cut_table(counts, bytes, ranks, ends) : cut_even(count, bytes, ranks);
    default:
        return (struct keel_cut){0};
    }
}

/* The table of the result says what is given too, but where a rank has an own count for each other one. */
static void cut(struct keel_operation *operation, const struct keel_collective *what)
{
    const struct keel_schedule *schedule = operation->plan->schedule;
    const struct keel_kind *kind = keel_kind(what->kind);
    const bool uneven = keel_has_counts(what), both = kind->part == KEEL_SHAPE_TABLE;
    const uint64_t *out = uneven ? what->counts_out : NULL, *in = both ? what->counts_in : out;
    uint64_t *ends = operation->ends;
    operation->part_cut = cut_shape(kind->part, operation, what->count, schedule->part_blocks, in, ends);
    operation->result_cut = cut_shape(kind->result, operation, what->count, schedule->result_blocks, out,
                                      both ? ends + operation->group->rank_count : ends);
}

/* Ranks have blocks of their own sizes. */
static bool is_uneven(const struct keel_operation *operation)
{
    return operation->part_cut.ends != NULL || operation->result_cut.ends != NULL;
}

static uint64_t largest_block(const struct keel_cut *cut, uint32_t blocks)
{
    uint64_t most = cut->share;
    for (uint32_t k = 0; cut->ends != NULL && k < blocks; k++) {
        uint64_t bytes = cut->ends[k] - (k > 0 ? cut->ends[k - 1] : 0);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* A function of the sizes alone, so that all ranks cut alike. In an all-to-all-v only the two ends of a block
 * know its size: always the longest. */
static enum keel_status segment(struct keel_operation *operation, const struct keel_collective *what)
{
    uint32_t ranks = operation->group->rank_count;
    uint64_t part = largest_block(&operation->part_cut, ranks);
    uint64_t result = largest_block(&operation->result_cut, ranks);
    uint64_t block = part > result ? part : result;
    uint64_t chunk = what->kind == KEEL_ALL_TO_ALL_V ? KEEL_CHUNK_BYTES : keel_chunk_bytes(block);
    uint64_t segments = (block + chunk - 1) / chunk;
    operation->tokens = what->kind == KEEL_BARRIER;
    if (operation->tokens)
        segments = 1;
    if (segments > UINT32_MAX / 2)
        return keel_fail(KEEL_LIMIT, "%s %llu: blocks of %llu bytes are too long; use several operations",
                         keel_collective_name(what->kind), (unsigned long long)what->sequence,
                         (unsigned long long)block);
    operation->chunk_bytes = (uint32_t)chunk;
    operation->segment_count = (uint32_t)segments;
    return KEEL_OK;
}

static void sign(struct keel_operation *operation, const struct keel_collective *what)
{
    const struct keel_group *group = operation->group;
    const bool sums = keel_kind_reduces(what->kind), tables = is_uneven(operation);
    const uint64_t map = operation->plan->by_rank ? MAP_OF_RANKS : group->map_hash;
    operation->signature = (struct keel_signature){.kind = (uint8_t)what->kind,
                                                   .element = (uint8_t)what->element,
                                                   .reduction = (uint8_t)(sums ? what->reduction : 0),
                                                   .order = (uint8_t)(sums ? what->order : 0),
                                                   .algorithm = (uint8_t)operation->plan->algorithm,
                                                   .costs_hash = group->whole->costs_hash,
                                                   .root = operation->plan->root,
                                                   .chunk_bytes = operation->chunk_bytes,
                                                   .count = tables ? 0 : what->count,
                                                   .map_hash = group->members_hash ^ (sums ? map : 0)};
    if (tables && what->kind != KEEL_ALL_TO_ALL_V)
        operation->signature.counts_hash =
            keel_fnv1a(1, what->counts_out, group->rank_count * sizeof *what->counts_out);
}

static uint64_t divisor_of(const struct keel_group *group, const struct keel_collective *what)
{
    bool averages = keel_kind_reduces(what->kind) && what->reduction == KEEL_AVERAGE;
    bool here = what->kind != KEEL_REDUCE || what->root == group->rank;
    return averages && here ? (keel_is_by_rank(what) ? group->rank_count : group->shard_count) : 0;
}

/* What differs from one use to the next. */
static void aim(struct keel_operation *operation, const struct keel_collective *what)
{
    operation->sequence = what->sequence;
    operation->part_count =
        what->part_count < operation->part_capacity ? what->part_count : operation->part_capacity;
    for (uint32_t k = 0; k < operation->part_count; k++)
        operation->parts[k] = what->parts[k];
    operation->result = what->result;
    reset(operation);
}

static void fill(struct keel_operation *operation, const struct keel_collective *what)
{
    bool upwards = (what->kind == KEEL_SEND) == (operation->group->rank < what->root);
    operation->lane = 0;
    if (keel_kind_is_pair(what->kind))
        operation->lane = upwards ? 1 : 2;
    operation->element_bytes = keel_element_bytes(what->element);
    operation->divisor = divisor_of(operation->group, what);
    cut(operation, what);
}

/* Its first segment has room in any case, so it always gets on; more are a matter of what is left. */
static enum keel_status find_room(struct keel_operation *operation)
{
    struct keel_group *whole = operation->group->whole;
    uint64_t one = (uint64_t)operation->plan->schedule->temp_count * operation->chunk_bytes;
    uint64_t most =
        operation->segment_count < KEEL_WINDOW_SEGMENTS ? operation->segment_count : KEEL_WINDOW_SEGMENTS;
    if (most == 0)
        most = 1;
    keel_mutex_lock(&whole->endpoint->lock);
    uint64_t used =
        whole->scratch_bytes < KEEL_SCRATCH_BYTES_MAX ? whole->scratch_bytes : KEEL_SCRATCH_BYTES_MAX;
    uint64_t left = KEEL_SCRATCH_BYTES_MAX - used;
    if (left > KEEL_SCRATCH_ONE_BYTES)
        left = KEEL_SCRATCH_ONE_BYTES;
    uint64_t more = one > 0 ? left / one : most;
    operation->window = (uint32_t)(1 + more < most ? 1 + more : most);
    operation->scratch_held = one * operation->window;
    whole->scratch_bytes += operation->scratch_held;
    keel_mutex_unlock(&whole->endpoint->lock);
    if (operation->scratch_held > operation->scratch_bytes) {
        free_scratch(operation);
        KEEL_TRY(take_scratch(operation, operation->scratch_held));
    }
    return grow_slots(operation, operation->window);
}

/* ---- what is asked ------------------------------------------------------------------------------------- */

static enum keel_status wrong(const struct keel_collective *what, const char *why)
{
    return keel_fail(KEEL_INVALID, "%s %llu: %s", keel_collective_name(what->kind),
                     (unsigned long long)what->sequence, why);
}

static bool is_root(const struct keel_group *group, const struct keel_collective *what)
{
    return what->root == group->rank;
}

uint32_t keel_collective_gives(const struct keel_group *group, const struct keel_collective *what)
{
    if (keel_kind_reduces(what->kind))
        return keel_is_by_rank(what) ? 1 : group->node_count;
    return keel_kind_gives(what->kind, is_root(group, what)) ? 1 : 0;
}

bool keel_collective_gets(const struct keel_group *group, const struct keel_collective *what)
{
    if (what->kind == KEEL_BROADCAST && is_root(group, what))
        return false;
    return keel_kind_gets(what->kind, is_root(group, what));
}

static bool too_many(const struct keel_group *group, const struct keel_collective *what)
{
    const uint64_t limit = (UINT64_C(1) << 56) / group->rank_count / 8;
    if (what->count > limit)
        return true;
    const bool gives = keel_kind(what->kind)->part == KEEL_SHAPE_TABLE, gets = keel_has_counts(what);
    for (uint32_t r = 0; r < group->rank_count; r++)
        if ((gives && what->counts_in[r] > limit) || (gets && what->counts_out[r] > limit))
            return true;
    return false;
}

enum keel_status keel_collective_check(const struct keel_group *group, const struct keel_collective *what)
{
    if (what->kind >= KEEL_COLLECTIVE_COUNT)
        return keel_fail(KEEL_INVALID, "collective %llu: there is no kind %d",
                         (unsigned long long)what->sequence, (int)what->kind);
    if (what->element >= KEEL_ELEMENT_ALL || what->reduction >= KEEL_REDUCTION_COUNT ||
        what->order > KEEL_ORDER_NATIVE || what->algorithm >= KEEL_ALGORITHM_COUNT)
        return wrong(what, "its element, reduction, order or algorithm does not exist");
    if (what->element >= KEEL_ELEMENT_COUNT && keel_kind_reduces(what->kind) && what->reduction != KEEL_SUM)
        return wrong(what, "of blocks of numbers there are sums alone");
    if (what->root >= group->rank_count || (keel_kind_is_pair(what->kind) && what->root == group->rank))
        return keel_fail(KEEL_INVALID, "%s %llu: rank %u cannot do that with rank %u of %u",
                         keel_collective_name(what->kind), (unsigned long long)what->sequence, group->rank,
                         what->root, group->rank_count);
    const struct keel_kind *kind = keel_kind(what->kind);
    if ((kind->result == KEEL_SHAPE_TABLE && what->counts_out == NULL) ||
        (kind->part == KEEL_SHAPE_TABLE && what->counts_in == NULL))
        return wrong(what, "it needs its tables of counts");
    if (what->kind == KEEL_ALL_TO_ALL_V && what->counts_in[group->rank] != what->counts_out[group->rank])
        return wrong(what, "what this rank gives to itself is not what it expects of itself");
    if (too_many(group, what))
        return keel_fail(KEEL_LIMIT, "%s %llu: more elements than can be addressed; use several operations",
                         keel_collective_name(what->kind), (unsigned long long)what->sequence);
    return KEEL_OK;
}

static bool overlap(const uint8_t *a, uint64_t a_bytes, const uint8_t *b, uint64_t b_bytes)
{
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

/* Once the sizes are known. */
static enum keel_status check_memory(const struct keel_operation *operation,
                                     const struct keel_collective *what)
{
    const struct keel_group *group = operation->group;
    uint32_t wanted = keel_collective_gives(group, what);
    uint64_t part_bytes = operation->part_cut.total, result_bytes = operation->result_cut.total;
    bool writes = keel_collective_gets(group, what);
    if ((keel_kind_reduces(what->kind) || part_bytes > 0) && wanted > 0 && what->part_count != wanted)
        return keel_fail(KEEL_INVALID, "%s %llu: %u parts given, rank %u has %u to give",
                         keel_collective_name(what->kind), (unsigned long long)what->sequence,
                         what->part_count, group->rank, wanted);
    if (writes && result_bytes > 0 && what->result == NULL)
        return wrong(what, "its result has no place");
    for (uint32_t k = 0; k < wanted && k < what->part_count; k++) {
        if (part_bytes > 0 && what->parts[k] == NULL)
            return wrong(what, "a part is missing");
        if (writes && overlap(what->parts[k], part_bytes, what->result, result_bytes))
            return wrong(what, "the result lies on a part; parts are kept, so give it a place of its own");
    }
    return KEEL_OK;
}

/* ---- begin --------------------------------------------------------------------------------------------- */

/* An operation that is over and was asked for the same. Caller holds the lock. */
static struct keel_operation *take_again(struct keel_group *group, const struct keel_collective *what)
{
    struct keel_operation **kept = again_slot(group, what), *operation = *kept;
    if (operation == NULL || !is_same(&operation->asked, what))
        return NULL;
    *kept = NULL;
    group->whole->scratch_bytes += operation->scratch_held;
    return operation;
}

/* Caller holds the lock. */
static enum keel_status post(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    struct keel_endpoint *endpoint = group->endpoint;
    if (keel_group_over(group))
        return KEEL_REVOKED;
    if (group->whole->operation_count == KEEL_OPERATIONS_MAX)
        return KEEL_LIMIT;
    operation->next_live = group->live;
    if (group->live != NULL)
        group->live->previous_live = operation;
    group->live = operation;
    group->whole->operation_count++;
    *endpoint->submitted_last = operation;
    endpoint->submitted_last = &operation->next_submitted;
    return KEEL_OK;
}

/* It is let out here, if nobody is at it. Caller holds the lock, and owns progress afterwards if it did. */
static enum keel_status post_and_push(struct keel_operation *operation, bool *out_driving)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    enum keel_status status = post(operation);
    *out_driving = status == KEEL_OK && keel_endpoint_drive(endpoint);
    if (*out_driving) {
        endpoint->now_ns = keel_now_ns();
        endpoint->idle_passes = 1;
        operation->group->waiters++;
        keel_endpoint_mail(endpoint);
        return status;
    }
    if (status == KEEL_OK) {
        keel_endpoint_wake(endpoint);
        operation->group->waiters++;
    }
    keel_mutex_unlock(&endpoint->lock);
    return status;
}

/* All that goes by sizes alone. */
static enum keel_status prepare(struct keel_operation *operation, const struct keel_collective *what)
{
    operation->scratch_held = 0;
    operation->asked.kind = KEEL_COLLECTIVE_COUNT;
    fill(operation, what);
    KEEL_TRY(segment(operation, what));
    sign(operation, what);
    KEEL_TRY(find_room(operation));
    keel_engine_init(operation);
    if (operation->segment_count <= 1 && !is_uneven(operation))
        operation->asked = *what;
    return KEEL_OK;
}

static enum keel_status obtain_prepared(struct keel_group *group, const struct keel_collective *what,
                                        struct keel_operation **out)
{
    struct keel_plan *plan;
    KEEL_TRY(keel_collective_check(group, what));
    KEEL_TRY(keel_plan_take(group, what, keel_choose(group, what), &plan));
    enum keel_status status = obtain(group, plan, out);
    if (status != KEEL_OK) {
        keel_plan_drop(group, plan);
        return status;
    }
    status = prepare(*out, what);
    if (status != KEEL_OK)
        release(*out);
    return status;
}

static enum keel_status is_over(const struct keel_group *group, const struct keel_collective *what)
{
    return keel_fail(KEEL_REVOKED, "%s %llu: epoch %llu is over; open the next group",
                     keel_collective_name(what->kind), (unsigned long long)what->sequence,
                     (unsigned long long)group->epoch);
}

/* Begun, as one of the group's waiters; the caller owns progress if `out_driving`. */
static enum keel_status begin(struct keel_group *group, const struct keel_collective *collective,
                              struct keel_operation **out, bool *out_driving)
{
    struct keel_endpoint *endpoint = group->endpoint;
    if (collective->parts == NULL && collective->part_count > 0)
        return wrong(collective, "it has parts, and no list of them");
    if (keel_group_over(group))
        return is_over(group, collective);
    keel_mutex_lock(&endpoint->lock);
    struct keel_operation *operation = take_again(group, collective);
    if (operation == NULL) {
        keel_mutex_unlock(&endpoint->lock);
        KEEL_TRY(obtain_prepared(group, collective, &operation));
        keel_mutex_lock(&endpoint->lock);
    }
    aim(operation, collective);
    enum keel_status status = check_memory(operation, collective);
    if (status != KEEL_OK) {
        keel_mutex_unlock(&endpoint->lock);
        release(operation);
        return status;
    }
    status = post_and_push(operation, out_driving);
    if (status == KEEL_OK) {
        *out = operation;
        return KEEL_OK;
    }
    release(operation);
    if (status == KEEL_LIMIT)
        return keel_fail(status, "%s %llu: %d operations are in flight already; wait for some",
                         keel_collective_name(collective->kind), (unsigned long long)collective->sequence,
                         KEEL_OPERATIONS_MAX);
    return status == KEEL_REVOKED ? is_over(group, collective) : status;
}

/* Long operations are left to the thread, which overlaps them with what the caller does next. */
enum keel_status keel_group_begin(struct keel_group *group, const struct keel_collective *collective,
                                  struct keel_operation **out)
{
    struct keel_endpoint *endpoint = group->endpoint;
    bool driving = false;
    KEEL_TRY(begin(group, collective, out, &driving));
    bool is_long = (*out)->segment_count > 1;
    keel_mutex_lock(&endpoint->lock);
    if (driving)
        keel_endpoint_undrive(endpoint, is_long);
    keel_group_leave(group);
    keel_mutex_unlock(&endpoint->lock);
    return KEEL_OK;
}

enum keel_status keel_group_run(struct keel_group *group, const struct keel_collective *collective,
                                uint64_t deadline_ns)
{
    struct keel_operation *operation = NULL;
    bool driving = false;
    KEEL_TRY(begin(group, collective, &operation, &driving));
    if (!driving)
        keel_mutex_lock(&group->endpoint->lock);
    return keel_operation_await(operation, deadline_ns, driving);
}
