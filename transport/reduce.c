/* reduce.c - the exact sum: whose nodes go to whom, in which chunks, and the sum of each chunk.
 *
 * Every rank owns one slice of the result. It receives all tree nodes of that slice into staging, chunk by
 * chunk, sums each chunk as soon as it is whole, straight into the result, and from there the chunk goes to
 * everybody. Staging is a window of KEEL_WINDOW_CHUNKS chunks per node; grants tell the contributors how
 * far they may go. Staging is given only to a sum that all ranks have begun: it always ends, so giving it to
 * one sum never starves another for good.
 *
 * Sums run on the progress thread: the chunk is still in cache from its receive, no lock or hand-over is
 * needed, and no caller need be waiting for the pipeline to move. */
#include "group.h"

#include <keel/memory.h>
#include <string.h>

static uint64_t chunk_count(uint64_t floats, uint64_t chunk_floats)
{
    return (floats + chunk_floats - 1) / chunk_floats;
}

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
    if (value < low)
        return low;
    return value < high ? value : high;
}

/* A pure function of map and count, so that all ranks cut alike: four chunks to a slice, in bounds. */
static uint64_t chunk_floats_of(const struct keel_group *group, uint64_t share)
{
    uint64_t staged = KEEL_STAGING_ONE_BYTES / (KEEL_WINDOW_CHUNKS * (uint64_t)group->plan.leaf_count);
    uint64_t high = clamp(staged, KEEL_CHUNK_MIN_BYTES, KEEL_CHUNK_BYTES);
    uint64_t bytes = clamp(share * sizeof(float) / 4, KEEL_CHUNK_MIN_BYTES, high);
    return bytes / sizeof(float) / KEEL_SLICE_ALIGN * KEEL_SLICE_ALIGN;
}

static void prepare_leg(struct keel_operation *operation, struct keel_leg *leg, uint64_t count)
{
    const struct keel_group *group = operation->group;
    struct keel_slice theirs = keel_slice_of(count, leg->rank, group->rank_count);
    leg->used = operation->mine.count > 0 || theirs.count > 0;
    if (!leg->used)
        return;
    leg->body = (const uint8_t *)(operation->result + operation->mine.first);
    leg->body_bytes = operation->mine.count * sizeof(float);
    leg->into = (uint8_t *)(operation->result + theirs.first);
    leg->into_bytes = theirs.count * sizeof(float);
    leg->give = theirs;
    leg->give_nodes = group->node_count[group->rank];
    leg->give_chunks = leg->give_nodes > 0 ? chunk_count(theirs.count, operation->chunk_floats) : 0;
    leg->take_nodes = group->node_count[leg->rank];
    leg->take_chunks = leg->take_nodes > 0 ? operation->chunks : 0;
}

void keel_reduce_prepare(struct keel_operation *operation, const float *const *parts, float *result,
                         uint64_t count)
{
    const struct keel_group *group = operation->group;
    uint64_t share = keel_slice_of(count, 0, group->rank_count).count;
    for (uint32_t k = 0; k < group->node_count[group->rank]; k++)
        operation->parts[k] = parts[k];
    operation->result = result;
    operation->mine = keel_slice_of(count, group->rank, group->rank_count);
    operation->eager = group->rank_count > 1 && share * sizeof(float) * group->most_nodes <= KEEL_EAGER_BYTES;
    operation->chunk_floats = chunk_floats_of(group, share);
    if (operation->eager)
        operation->chunk_floats = share > 0 ? share : 1;
    operation->window = operation->eager ? 1 : KEEL_WINDOW_CHUNKS;
    operation->chunks = chunk_count(operation->mine.count, operation->chunk_floats);
    operation->staging_bytes = 0;
    if (operation->chunks > 0)
        operation->staging_bytes =
            operation->window * operation->chunk_floats * sizeof(float) * (uint64_t)group->stage_count;
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        if (rank != group->rank)
            prepare_leg(operation, &operation->legs[rank], count);
}

/* ---- the contributor's side -----------------------------------------------------------------------------
 */

uint32_t keel_reduce_pack(const struct keel_leg *leg, uint8_t out[KEEL_EAGER_BYTES])
{
    size_t bytes = leg->give.count * sizeof(float);
    KEEL_ASSERT(bytes * leg->give_nodes <= KEEL_EAGER_BYTES);
    for (uint32_t k = 0; k < leg->give_nodes; k++)
        memcpy(out + k * bytes, leg->operation->parts[k] + leg->give.first, bytes);
    return (uint32_t)(bytes * leg->give_nodes);
}

static uint64_t chunk_length(const struct keel_operation *operation, uint64_t slice_floats, uint64_t chunk)
{
    uint64_t first = chunk * operation->chunk_floats, left = slice_floats - first;
    return left < operation->chunk_floats ? left : operation->chunk_floats;
}

const float *keel_reduce_chunk(const struct keel_leg *leg, uint32_t *out_bytes)
{
    const struct keel_operation *operation = leg->operation;
    *out_bytes = (uint32_t)(chunk_length(operation, leg->give.count, leg->give_chunk) * sizeof(float));
    return operation->parts[leg->give_node] + leg->give.first + leg->give_chunk * operation->chunk_floats;
}

/* ---- the owner's side -------------------------------------------------------------------------------------
 */

static float *staged(const struct keel_operation *operation, uint32_t leaf, uint64_t chunk)
{
    uint64_t place = operation->group->stage_of[leaf] * operation->window + chunk % operation->window;
    return operation->staging + place * operation->chunk_floats;
}

static void grant(struct keel_operation *operation)
{
    uint64_t limit = operation->summed + operation->window;
    if (limit > operation->chunks)
        limit = operation->chunks;
    for (uint32_t rank = 0; rank < operation->group->rank_count; rank++) {
        struct keel_leg *leg = &operation->legs[rank];
        if (!leg->used || leg->take_nodes == 0)
            continue;
        leg->grant = limit;
        if (limit == operation->chunks || limit - leg->grant_told >= operation->window / 2)
            keel_flow_queue(leg);
    }
}

static bool take_staging(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    if (group->staging_bytes > 0 && group->staging_bytes + operation->staging_bytes > KEEL_STAGING_BYTES_MAX)
        return false;
    if (keel_alloc(1, operation->staging_bytes, &operation->staging) != KEEL_OK) {
        keel_flow_end(operation, KEEL_NO_MEMORY);
        return true;
    }
    group->staging_bytes += operation->staging_bytes;
    grant(operation);
    return true;
}

/* First come, first served: a sum never overtakes one that waits. */
static void serve_waiting(struct keel_group *group)
{
    while (group->waiting != NULL) {
        struct keel_operation *operation = group->waiting;
        if (!operation->ended && !take_staging(operation))
            return;
        group->waiting = operation->next_waiting;
        if (group->waiting == NULL)
            group->waiting_last = &group->waiting;
    }
}

void keel_reduce_all_begun(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    if (operation->eager || operation->chunks == 0 || group->stage_count == 0)
        return;
    operation->next_waiting = NULL;
    *group->waiting_last = operation;
    group->waiting_last = &operation->next_waiting;
    serve_waiting(group);
}

void keel_reduce_release(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    if (operation->staging == NULL)
        return;
    keel_free(operation->staging);
    operation->staging = NULL;
    if (operation->eager)
        return;
    group->staging_bytes -= operation->staging_bytes;
    serve_waiting(group);
}

/* Eager: all nodes of that rank, one behind the other. Their staging is small (at most KEEL_EAGER_BYTES a
 * rank), so the bound on staging does not count it. */
bool keel_reduce_first(struct keel_leg *leg, const struct keel_message *message, const uint8_t *payload)
{
    struct keel_operation *operation = leg->operation;
    const struct keel_group *group = operation->group;
    size_t bytes = operation->mine.count * sizeof(float);
    if (!operation->eager || leg->take_chunk != 0 || message->bytes != bytes * leg->take_nodes)
        return false;
    for (uint32_t k = 0; k < leg->take_nodes; k++) {
        uint32_t leaf = group->leaf_of[group->node_start[leg->rank] + k];
        memcpy(staged(operation, leaf, 0), payload + k * bytes, bytes);
    }
    leg->take_chunk = leg->take_chunks;
    return true;
}

bool keel_reduce_part(struct keel_leg *leg, const struct keel_message *message, const uint8_t *payload)
{
    struct keel_operation *operation = leg->operation;
    const struct keel_group *group = operation->group;
    if (leg->take_chunk >= leg->grant || message->offset != leg->take_chunk ||
        message->part != leg->take_node)
        return false;
    if (message->bytes != chunk_length(operation, operation->mine.count, leg->take_chunk) * sizeof(float))
        return false;
    uint32_t leaf = group->leaf_of[group->node_start[leg->rank] + leg->take_node];
    memcpy(staged(operation, leaf, leg->take_chunk), payload, message->bytes);
    if (++leg->take_node == leg->take_nodes) {
        leg->take_node = 0;
        leg->take_chunk++;
    }
    return true;
}

static bool chunk_whole(const struct keel_operation *operation)
{
    for (uint32_t rank = 0; rank < operation->group->rank_count; rank++) {
        const struct keel_leg *leg = &operation->legs[rank];
        if (leg->used && leg->take_nodes > 0 && leg->take_chunk <= operation->summed)
            return false;
    }
    return true;
}

static void sum_chunk(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    const struct keel_tree_plan *plan = &group->plan;
    uint64_t first = operation->mine.first + operation->summed * operation->chunk_floats;
    for (uint32_t leaf = 0; leaf < plan->leaf_count; leaf++) {
        if (plan->leaf_rank[leaf] == group->rank)
            group->sources[leaf] = operation->parts[plan->leaf_ordinal[leaf]] + first;
        else
            group->sources[leaf] = staged(operation, leaf, operation->summed);
    }
    keel_tree_sum(plan, group->sources, operation->result + first,
                  chunk_length(operation, operation->mine.count, operation->summed));
}

static void publish_chunk(struct keel_operation *operation)
{
    uint64_t ready = operation->summed * operation->chunk_floats;
    if (ready > operation->mine.count)
        ready = operation->mine.count;
    for (uint32_t rank = 0; rank < operation->group->rank_count; rank++) {
        struct keel_leg *leg = &operation->legs[rank];
        if (!leg->used)
            continue;
        leg->body_ready = ready * sizeof(float);
        keel_flow_queue(leg);
    }
}

void keel_reduce_advance(struct keel_operation *operation)
{
    while (operation->summed < operation->chunks && chunk_whole(operation)) {
        sum_chunk(operation);
        operation->summed++;
        publish_chunk(operation);
        if (operation->staging != NULL && !operation->eager)
            grant(operation);
    }
    if (operation->summed == operation->chunks)
        keel_reduce_release(operation);
}
