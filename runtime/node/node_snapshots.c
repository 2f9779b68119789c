/* node_snapshots.c - snapshots, as who leads sees them: which shards make one, and when it is committed.
 *
 * Owns the sets of shards under way; invariant 6 of node.c. Writing and removing are its environment's. */
#include "node_state.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

/* Nobody commits these any more: they go. What was begun under another leader may have been committed by it,
 * and stays. */
static void drop_shards(struct keel_node *node, uint64_t step, uint64_t attempt,
                        const struct keel_bitset *ranks)
{
    const uint64_t first = node->leader->first_epoch;
    if (first != 0 && attempt >= first)
        node->env->snapshot_drop(node->env->context, step, attempt, ranks);
}

static void drop_set(struct keel_node *node, struct keel_snapshot_set *set)
{
    if (set->used && set->have_count > 0)
        drop_shards(node, set->step, set->attempt, &set->have);
    memset(set, 0, offsetof(struct keel_snapshot_set, shards));
}

static struct keel_snapshot_set *find_set(struct keel_node *node, uint64_t step, uint64_t attempt)
{
    struct keel_leader *leader = node->leader;
    struct keel_snapshot_set *oldest = &leader->snapshots[0];
    for (uint32_t i = 0; i < KEEL_SHARDS_PENDING; i++) {
        struct keel_snapshot_set *set = &leader->snapshots[i];
        if (set->used && set->step == step && set->attempt == attempt)
            return set;
        if (!set->used ||
            (oldest->used && keel_snapshot_precedes(set->attempt, set->step, oldest->attempt, oldest->step)))
            oldest = set;
    }
    if (oldest->used && keel_snapshot_precedes(attempt, step, oldest->attempt, oldest->step))
        return NULL;
    drop_set(node, oldest);
    oldest->used = true;
    oldest->step = step;
    oldest->attempt = attempt;
    KEEL_ASSERT(oldest->have_count == 0 && keel_bitset_count(&oldest->have) == 0);
    return oldest;
}

/* The view whose ranks make a snapshot: NULL when its time is over. Who did the last step may be done with
 * it, so that its snapshot counts until the next view but one; and it is kept once, whoever begins it again.
 * So does what a process that ended had not committed yet when another took its place: those who stopped for
 * it save nothing more. */
static const struct keel_view *view_of_snapshot(const struct keel_node *node, uint64_t step, uint64_t attempt)
{
    const struct keel_leader *leader = node->leader;
    const bool is_last = step + 1 == node->config.last_step;
    const bool present = attempt == node->view.epoch;
    const bool taken_over = node->config.takes_over && leader->first_epoch == node->view.epoch;
    const bool earlier =
        attempt == leader->before.epoch && (is_last || (taken_over && step > node->config.kept_step));
    if (attempt == 0 || (is_last && leader->end_kept) || (!present && !earlier))
        return NULL;
    return present ? &node->view : &leader->before;
}

/* Of the present view or that before: counted when it came. */
static uint16_t active_count(const struct keel_node *node, const struct keel_view *view)
{
    return view == &node->view ? node->leader->active_count : node->leader->before_count;
}

/* The lowest step whose set is whole and whose records are delivered. */
static struct keel_snapshot_set *ready_set(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    struct keel_snapshot_set *ready = NULL;
    for (uint32_t i = 0; i < KEEL_SHARDS_PENDING; i++) {
        struct keel_snapshot_set *set = &leader->snapshots[i];
        bool delivered = leader->next_step > set->step || leader->next_step >= node->config.last_step;
        const struct keel_view *view = set->used ? view_of_snapshot(node, set->step, set->attempt) : NULL;
        bool whole = view != NULL && set->have_count == active_count(node, view);
        if (whole && delivered && (!ready || set->step < ready->step))
            ready = set;
    }
    return ready;
}

/* Another attempt at the same step, in the view after or before, and earlier steps that are not whole. */
static void drop_passed_sets(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    for (uint32_t i = 0; i < KEEL_SHARDS_PENDING; i++) {
        struct keel_snapshot_set *set = &leader->snapshots[i];
        if (set->used && set->step <= leader->committed_step)
            drop_set(node, set);
    }
}

/* Invariant 6. A snapshot waits for the records of the steps before it: after a resume nobody could
 * deliver them any more. */
void keel_snapshots_commit(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    struct keel_snapshot_set *set;
    while ((set = ready_set(node)) != NULL) {
        const struct keel_view *view = view_of_snapshot(node, set->step, set->attempt);
        KEEL_ASSERT(view != NULL && view->epoch == set->attempt); /* invariant 6 */
        KEEL_ASSERT(!leader->committed_any || set->step > leader->committed_step);
        for (uint16_t rank = 0; rank < active_count(node, view); rank++)
            KEEL_ASSERT(keel_bitset_has(&set->have, rank) && set->shards[rank].rank == rank);
        set->used = false;
        leader->committed_any = true;
        leader->committed_step = set->step;
        leader->end_kept = leader->end_kept || set->step + 1 >= node->config.last_step;
        keel_node_trace(node, "snapshot of step %" PRIu64 " epoch %" PRIu64 " is complete", set->step,
                        set->attempt);
        node->env->snapshot_commit(node->env->context, set->step, set->attempt, set->shards,
                                   active_count(node, view));
        drop_passed_sets(node);
    }
}

/* A message may come again, after its snapshot was ordered or from a view that is over. */
void keel_snapshots_collect(struct keel_node *node, const struct keel_wire_shard *shard)
{
    struct keel_leader *leader = node->leader;
    const struct keel_view *view = view_of_snapshot(node, shard->step, shard->attempt);
    const uint32_t rank = shard->summary.rank;
    struct keel_snapshot_set *set = NULL;
    if (rank >= KEEL_MEMBERS_MAX || shard->attempt > node->view.epoch ||
        (view != NULL && rank >= active_count(node, view)))
        return;
    if (view != NULL && (!leader->committed_any || shard->step > leader->committed_step))
        set = find_set(node, shard->step, shard->attempt);
    if (set == NULL) {
        struct keel_bitset alone = {.some = {0}};
        keel_bitset_add(&alone, rank);
        drop_shards(node, shard->step, shard->attempt, &alone);
        return;
    }
    set->have_count += keel_bitset_has(&set->have, rank) ? 0 : 1;
    keel_bitset_add(&set->have, rank);
    set->shards[rank] = shard->summary;
    keel_snapshots_commit(node);
}

/* The view is new: what was begun before it is over, but for what still counts. */
void keel_snapshots_turn(struct keel_node *node)
{
    struct keel_leader *leader = node->leader;
    for (uint32_t i = 0; i < KEEL_SHARDS_PENDING; i++) {
        struct keel_snapshot_set *set = &leader->snapshots[i];
        if (view_of_snapshot(node, set->step, set->attempt) == NULL)
            drop_set(node, set);
    }
    leader->committed_any = false;
}
