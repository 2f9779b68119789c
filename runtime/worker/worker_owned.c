/* worker_owned.c - parallel.zero: the state of a new view from what its ranks hold of an older one.
 *
 * All ranks draw the same conclusion from the same records, as in worker_sync.c:
 *
 *   1. Who has the sums of a step that another one did, does it too, with that one's norm.
 *   2. The newest layout whose holders, at the furthest step, have together all that the new one needs is the
 *      one to go on from. Every rank keeps what it still needs, and gets what it lacks (worker_moves.c): of
 *      weights those of others' pieces, where it has not all.
 *   3. When all have what is theirs, what was before is forgotten. A view that ends earlier leaves one of the
 * two whole.
 *   4. Where a share is lost with all its holders, all go back to the newest snapshot, and the run says so.
 */
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
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

enum keel_status keel_worker_catch_up_owned(struct keel_worker *worker, uint64_t step)
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

/* What the ranks that were in that layout hold of it. */
static enum keel_status list_held(const struct keel_worker *worker, uint64_t epoch, uint64_t step,
                                  struct keel_holders *holders)
{
    const struct keel_trainer *trainer = worker->trainer;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const struct keel_owned_record *record = record_of(worker, p, epoch, step);
        struct keel_extents *have = &holders->have[p];
        if (record == NULL)
            continue;
        if (record->complete && !keel_worker_gathers(worker))
            KEEL_TRY(keel_trainer_all_extents(trainer, KEEL_PARTS_WEIGHTS, have));
        for (uint32_t share = 0; share < record->of; share++)
            if (has_share(record, share))
                KEEL_TRY(keel_trainer_share_extents(trainer, share, record->of,
                                                    KEEL_PARTS_WEIGHTS | KEEL_PARTS_MOMENTS, have));
    }
    return KEEL_OK;
}

/* From that layout to the one of this view. */
enum keel_status keel_worker_find_owned(const struct keel_worker *worker, uint64_t epoch, uint64_t step,
                                        struct keel_moves *out)
{
    struct keel_holders *holders;
    KEEL_TRY(keel_alloc(1, sizeof *holders, &holders));
    enum keel_status status = keel_worker_list_needs(worker, holders);
    if (status == KEEL_OK)
        status = list_held(worker, epoch, step, holders);
    if (status == KEEL_OK)
        status = keel_worker_find_moves(worker, holders, out);
    keel_holders_fini(holders);
    keel_free(holders);
    return status;
}

/* The newest layout of that step which is older than `epoch`; of 0: none. */
static struct keel_owned_record newest_before(const struct keel_worker *worker, uint64_t epoch, uint64_t step)
{
    struct keel_owned_record best = {.of = 0};
    for (uint32_t p = 0; p < worker->rank_count; p++)
        for (uint32_t i = 0; i < 2; i++) {
            const struct keel_owned_record *record = &worker->sync_all[p].owned[i];
            if (record->of > 0 && record->step == step && record->epoch < epoch &&
                (best.of == 0 || record->epoch > best.epoch))
                best = *record;
        }
    return best;
}

/* The newest from which nothing is missing, with the moves; of 0: none. */
enum keel_status keel_worker_choose_owned(const struct keel_worker *worker, uint64_t step,
                                          struct keel_owned_record *chosen, struct keel_moves *moves)
{
    *chosen = newest_before(worker, UINT64_MAX, step);
    while (chosen->of > 0) {
        KEEL_TRY(keel_worker_find_owned(worker, chosen->epoch, step, moves));
        if (moves->missing_count == 0)
            break;
        keel_moves_fini(moves);
        *chosen = newest_before(worker, chosen->epoch, step);
    }
    return KEEL_OK;
}

/* Everybody is where it was, with all weights. */
bool keel_worker_is_whole(const struct keel_worker *worker, const struct keel_owned_record *chosen)
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
    uint32_t node[KEEL_MEMBERS_MAX];
    keel_worker_nodes(worker, node);
    const struct keel_owners owners = {.epoch = worker->view.epoch,
                                       .position = worker->position,
                                       .rank_count = worker->rank_count,
                                       .holders = worker->job.parallel.holders,
                                       .node = node};
    return keel_trainer_own(worker->trainer, &owners);
}

/* Of gathered weights: what one who has been through that step says that the model's digest is. */
static bool find_digest(const struct keel_worker *worker, uint64_t step, uint64_t *out)
{
    for (uint32_t p = 0; p < worker->rank_count && keel_worker_gathers(worker); p++) {
        const struct keel_sync_record *record = &worker->sync_all[p];
        *out = record->digest;
        if (record->has_state && record->next_step == step && record->owned[0].of > 0 &&
            record->owned[0].step == step && record->owned[0].complete)
            return true;
    }
    return false;
}

/* All of the state of `step` is here: let others know, and forget what was before when they have it too. */
static enum keel_status settle(struct keel_worker *worker, uint64_t step)
{
    uint64_t known;
    const bool is_known = find_digest(worker, step, &known);
    KEEL_TRY(keel_trainer_settle(worker->trainer, step, &worker->digest));
    worker->has_state = true;
    worker->next_step = step;
    KEEL_TRY(keel_worker_exchange_second(worker));
    if (is_known && worker->digest != known)
        return keel_fail(KEEL_MISMATCH, "pieces of the state of step %llu: digest %016llx, wanted %016llx",
                         (unsigned long long)step, (unsigned long long)worker->digest,
                         (unsigned long long)known);
    keel_trainer_forget_before(worker->trainer);
    return KEEL_OK;
}

static enum keel_status move(struct keel_worker *worker, uint64_t step, const struct keel_moves *moves)
{
    if (keel_trainer_unfinished(worker->trainer, &worker->unsaid))
        worker->unsaid_step = step;
    KEEL_TRY(own(worker));
    KEEL_TRY(keel_worker_make_moves(worker, moves));
    KEEL_TRY(settle(worker, step));
    keel_worker_note_healed(worker, keel_worker_count_moves(worker, moves));
    return KEEL_OK;
}

/* What was left unsaid of the step that led here; of another one it is not true any more. Where an evaluation
 * gathers weights all have a part in it. */
static enum keel_status say_rest(struct keel_worker *worker)
{
    bool any = false;
    worker->unsaid.digest = worker->digest;
    for (uint32_t p = 0; p < worker->rank_count && keel_worker_gathers(worker); p++)
        any = any || worker->sync_all[p].has_unsaid;
    if (any)
        KEEL_TRY(keel_worker_say_rest(worker));
    else if (worker->unsaid_step > 0 && worker->unsaid_step == worker->next_step)
        keel_worker_say_healed(worker, &worker->unsaid);
    worker->unsaid_step = 0;
    return KEEL_OK;
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

/* From what ranks hold, at the furthest step. */
static enum keel_status go_on(struct keel_worker *worker, uint64_t step)
{
    struct keel_owned_record chosen;
    struct keel_moves moves = {.moves = NULL};
    KEEL_TRY(keel_worker_catch_up_owned(worker, step));
    enum keel_status status = keel_worker_choose_owned(worker, step, &chosen, &moves);
    const uint64_t since = keel_now_ns();
    if (status == KEEL_OK && chosen.of == 0)
        return begin_again(worker, true, step);
    if (status == KEEL_OK)
        keel_trainer_keep(worker->trainer, chosen.epoch);
    if (status == KEEL_OK && !keel_worker_is_whole(worker, &chosen))
        status = move(worker, step, &moves);
    keel_moves_fini(&moves);
    KEEL_TRY(status);
    worker->heal_ns = keel_now_ns() - since;
    worker->next_step = step;
    return say_rest(worker);
}

enum keel_status keel_worker_agree_owned(struct keel_worker *worker)
{
    bool any = false;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        any = any || worker->sync_all[p].owned[0].of > 0 || worker->sync_all[p].owned[1].of > 0;
    if (!any)
        return begin_again(worker, false, 0);
    if (worker->snapshot.save != NULL && /* a capture may still read what is about to be replaced */
        keel_save_wait_captured(worker->snapshot.save, keel_deadline_after_ns(worker->stall_ns)) ==
            KEEL_TIMEOUT)
        return KEEL_TIMEOUT;
    return go_on(worker, furthest_step(worker));
}
