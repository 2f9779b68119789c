/* worker_owned.c - parallel.zero: the state of a new view from what its ranks hold of an older one.
 *
 * All ranks draw the same conclusion from the same records, as in worker_sync.c:
 *
 *   1. Who has the sums of a step that another one did, does it too, with that one's norm.
 *   2. The newest layout of which some rank holds each share, at the furthest step, is the one to go on from.
 *      Its shares go to all, each from its owner, or from its shadow; every rank keeps what is its own now.
 *   3. When all have all, what was before is forgotten. A view that ends earlier leaves one of the two whole.
 *   4. Where a share is lost with all its holders, all go back to the newest snapshot, and the run says so.
 */
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <stdio.h>
#include <string.h>

static bool has_share(const struct keel_owned_record *record, uint32_t share)
{
    return (record->shares[share / 8] >> share % 8 & 1) != 0;
}

static uint64_t furthest_step(const struct keel_worker *worker)
{
    uint64_t step = 0;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        for (uint32_t i = 0; i < 2; i++)
            if (worker->sync_all[p].owned[i].of > 0 && worker->sync_all[p].owned[i].step > step)
                step = worker->sync_all[p].owned[i].step;
    return step;
}

/* ---- catching up --------------------------------------------------------------------------------------- */

/* Whose norm leads from the record's step to `step`; rank_count: nobody's. */
static uint32_t who_did(const struct keel_worker *worker, const struct keel_owned_record *behind,
                        uint64_t step)
{
    uint32_t p = 0;
    for (; p < worker->rank_count; p++) {
        const struct keel_owned_record *other = &worker->sync_all[p].owned[0];
        if (behind->of > 0 && behind->reduced && behind->step + 1 == step && other->of > 0 &&
            other->epoch == behind->epoch && other->step == step && other->has_norm)
            break;
    }
    return p;
}

static enum keel_status catch_up(struct keel_worker *worker, uint64_t step)
{
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        struct keel_owned_record *behind = &worker->sync_all[p].owned[0];
        const uint32_t from = who_did(worker, behind, step);
        if (from == worker->rank_count)
            continue;
        if (p == worker->position)
            KEEL_TRY(keel_trainer_catch_up(worker->trainer, &worker->sync_all[from].owned[0].norm));
        behind->step = step;
        behind->complete = behind->has_norm = 0; /* its norm is of the step before */
    }
    return KEEL_OK;
}

/* ---- which layout -------------------------------------------------------------------------------------- */

static const struct keel_owned_record *record_of(const struct keel_worker *worker, uint32_t p, uint64_t epoch,
                                                 uint64_t step)
{
    for (uint32_t i = 0; i < 2; i++) {
        const struct keel_owned_record *record = &worker->sync_all[p].owned[i];
        if (record->of > 0 && record->epoch == epoch && record->step == step)
            return record;
    }
    return NULL;
}

/* Who gives a share of a layout: its owner, else the lowest that holds it; rank_count: nobody. */
static uint32_t giver_of(const struct keel_worker *worker, uint64_t epoch, uint64_t step, uint32_t share)
{
    uint32_t found = worker->rank_count;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const struct keel_owned_record *record = record_of(worker, p, epoch, step);
        if (record != NULL && record->position == share)
            return p;
        if (record != NULL && has_share(record, share) && found == worker->rank_count)
            found = p;
    }
    return found;
}

static bool is_covered(const struct keel_worker *worker, uint64_t epoch, uint64_t step, uint32_t of)
{
    for (uint32_t share = 0; share < of; share++)
        if (giver_of(worker, epoch, step, share) == worker->rank_count)
            return false;
    return true;
}

/* The newest that is covered; of 0: none. */
static struct keel_owned_record choose(const struct keel_worker *worker, uint64_t step)
{
    struct keel_owned_record best = {.of = 0};
    for (uint32_t p = 0; p < worker->rank_count; p++)
        for (uint32_t i = 0; i < 2; i++) {
            const struct keel_owned_record *record = &worker->sync_all[p].owned[i];
            if (record->of > 0 && record->step == step && (best.of == 0 || record->epoch > best.epoch) &&
                is_covered(worker, record->epoch, step, record->of))
                best = *record;
        }
    return best;
}

/* Everybody is where it was, with all weights. */
static bool is_whole(const struct keel_worker *worker, const struct keel_owned_record *chosen)
{
    bool whole = chosen->of == worker->rank_count;
    for (uint32_t p = 0; p < worker->rank_count && whole; p++) {
        const struct keel_owned_record *record = record_of(worker, p, chosen->epoch, chosen->step);
        whole = record != NULL && record->complete && record->position == p;
    }
    return whole;
}

/* ---- moving -------------------------------------------------------------------------------------------- */

static enum keel_status own(struct keel_worker *worker)
{
    uint32_t node[KEEL_MEMBERS_MAX], count = 0;
    for (uint32_t i = 0; i < worker->view.member_count; i++)
        if (!worker->view.members[i].spare)
            node[count++] = worker->view.members[i].node;
    const struct keel_owners owners = {.epoch = worker->view.epoch,
                                       .position = worker->position,
                                       .rank_count = worker->rank_count,
                                       .holders = worker->job.parallel.holders,
                                       .node = node};
    return keel_trainer_own(worker->trainer, &owners);
}

/* All of the state of `step` is here: let others know, and forget what was before when they have it too. */
static enum keel_status settle(struct keel_worker *worker, uint64_t step)
{
    KEEL_TRY(keel_trainer_settle(worker->trainer, step, &worker->digest));
    worker->has_state = true;
    worker->next_step = step;
    KEEL_TRY(keel_worker_exchange_second(worker));
    keel_trainer_forget_before(worker->trainer);
    return KEEL_OK;
}

static enum keel_status move(struct keel_worker *worker, const struct keel_owned_record *chosen)
{
    if (keel_trainer_unfinished(worker->trainer, &worker->unsaid))
        worker->unsaid_step = chosen->step;
    KEEL_TRY(own(worker));
    for (uint32_t share = 0; share < chosen->of; share++)
        KEEL_TRY(keel_worker_move_share(worker, share, chosen->of,
                                        giver_of(worker, chosen->epoch, chosen->step, share)));
    return settle(worker, chosen->step);
}

/* What was left unsaid of the step that led here; of another one it is not true any more. */
static void say_rest(struct keel_worker *worker)
{
    worker->unsaid.digest = worker->digest;
    if (worker->unsaid_step > 0 && worker->unsaid_step == worker->next_step)
        keel_worker_say_healed(worker, &worker->unsaid);
    worker->unsaid_step = 0;
}

/* ---- from the beginning, or from a snapshot ------------------------------------------------------------ */

static enum keel_status begin_again(struct keel_worker *worker, bool lost, uint64_t step)
{
    char detail[160];
    worker->has_state = false;
    keel_trainer_drop(worker->trainer);
    keel_trainer_keep(worker->trainer, 0);
    if (lost) {
        KEEL_TRY(keel_worker_exchange_lost(worker));
        snprintf(
            detail, sizeof detail,
            "a piece of the optimizer's state has no holder left (parallel.holders = %u): all ranks go back "
            "to %s",
            worker->job.parallel.holders,
            worker->sync_all[0].snapshot_count > 0 ? "the newest snapshot" : "the beginning");
        if (worker->position == 0)
            keel_worker_note(worker, "state-lost", step, KEEL_OK, detail);
    }
    KEEL_TRY(own(worker));
    KEEL_TRY(keel_worker_restore_or_begin(worker));
    return settle(worker, worker->next_step);
}

enum keel_status keel_worker_agree_owned(struct keel_worker *worker)
{
    const uint64_t step = furthest_step(worker);
    bool any = false;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        any = any || worker->sync_all[p].owned[0].of > 0 || worker->sync_all[p].owned[1].of > 0;
    if (!any)
        return begin_again(worker, false, 0);
    if (worker->snapshot.save != NULL && /* a capture may still read what is about to be replaced */
        keel_save_wait_captured(worker->snapshot.save, keel_deadline_after_ns(worker->stall_ns)) ==
            KEEL_TIMEOUT)
        return KEEL_TIMEOUT;
    KEEL_TRY(catch_up(worker, step));
    const struct keel_owned_record chosen = choose(worker, step);
    if (chosen.of == 0)
        return begin_again(worker, true, step);
    keel_trainer_keep(worker->trainer, chosen.epoch);
    if (!is_whole(worker, &chosen))
        KEEL_TRY(move(worker, &chosen));
    worker->next_step = step;
    say_rest(worker);
    return KEEL_OK;
}
