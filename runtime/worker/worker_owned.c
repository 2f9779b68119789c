/* worker_owned.c - parallel.zero: the state of a new view from what its ranks hold of an older one.
 *
 * All ranks draw the same conclusion from the same records, as in worker_sync.c, for each column of ranks
 * with the same slices (worker_axes.c; without slices all are one column):
 *
 *   1. Who has the sums of a step that another one did, does it too, with that one's norm.
 *   2. The newest layout whose holders have together all of its shares, at the furthest step, is the one to
 *      go on from. Every rank keeps what it still needs, and gets what it lacks (worker_moves.c): of
 *      weights those of others' pieces, where it has not all.
 *   3. When all have what is theirs, what was before is forgotten. A view that ends earlier leaves one of the
 *      two whole.
 *   4. Where a share is lost with all its holders, all go back to the newest snapshot, and the run says so.
 */
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Subgroups of a view: above those of slices (worker_axes.c). */
#define SEQUENCE_SHARERS (UINT64_C(1) << 17)

bool keel_worker_furthest_owned(const struct keel_worker *worker, uint64_t *out_step)
{
    bool any = false;
    *out_step = 0;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        for (uint32_t i = 0; i < 2; i++) {
            const struct keel_owned_record *record = &worker->sync_all[p].owned[i];
            any = any || record->of > 0;
            if (record->of > 0 && record->step > *out_step)
                *out_step = record->step;
        }
    return any;
}

/* ---- catching up --------------------------------------------------------------------------------------- */

/* A rank whose norm leads from the step before to `step` in the layout of an epoch; rank_count: nobody's. */
static uint32_t who_did(const struct keel_worker *worker, uint64_t epoch, uint64_t step)
{
    uint32_t p = 0;
    for (; p < worker->rank_count; p++) {
        const struct keel_owned_record *other = &worker->sync_all[p].owned[0];
        if (other->of > 0 && other->epoch == epoch && other->step == step && other->has_norm)
            break;
    }
    return p;
}

enum keel_status keel_worker_catch_up_owned(struct keel_worker *worker, uint64_t step)
{
    uint64_t epoch = 0; /* of `from`: thousands who are behind are of one layout, as a rule */
    uint32_t from = worker->rank_count;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        struct keel_owned_record *behind = &worker->sync_all[p].owned[0];
        if (behind->of == 0 || !behind->reduced || behind->step + 1 != step)
            continue;
        if (epoch != behind->epoch)
            from = who_did(worker, epoch = behind->epoch, step);
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

/* A rank that holds these shares. */
struct held {
    struct keel_share_run run; /* first: for keel_share_runs_compare */
    uint32_t seat;
    bool complete; /* with all weights */
};

/* What a column's ranks hold of a layout: by runs, which many may have. */
struct column {
    uint32_t of; /* the layout's; 0: nobody has any of it */
    struct held *held;
    uint32_t *seats; /* room for all ranks */
    size_t count, capacity;
};

static int compare_held(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    const int runs = keel_share_runs_compare(&x->run, &y->run);
    return runs != 0 ? runs : x->seat < y->seat ? -1 : x->seat > y->seat;
}

static enum keel_status find_held(const struct keel_worker *worker, uint64_t epoch, uint64_t step,
                                  struct column *column)
{
    KEEL_TRY(keel_alloc(worker->rank_count, sizeof *column->seats, &column->seats));
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const struct keel_owned_record *record =
            worker->axes.map.place[p] == worker->axes.place ? record_of(worker, p, epoch, step) : NULL;
        if (record == NULL)
            continue;
        column->of = record->of;
        KEEL_TRY(keel_grow(&column->held, &column->capacity, column->count + record->run_count,
                           sizeof *column->held));
        for (uint32_t i = 0; i < record->run_count; i++)
            column->held[column->count++] = (struct held){
                .run = keel_worker_runs(worker, record)[i], .seat = p, .complete = record->complete};
    }
    if (column->count > 0)
        qsort(column->held, column->count, sizeof *column->held, compare_held);
    return KEEL_OK;
}

/* Who has all weights. */
static enum keel_status list_complete(const struct keel_worker *worker, uint64_t epoch, uint64_t step,
                                      struct column *column, struct keel_holdings *have)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const struct keel_owned_record *record =
            worker->axes.map.place[p] == worker->axes.place ? record_of(worker, p, epoch, step) : NULL;
        if (record != NULL && record->complete)
            column->seats[count++] = p;
    }
    return keel_worker_put_all(worker, KEEL_PARTS_WEIGHTS, column->seats, count, have);
}

/* Entries [first, end) are of one run; without those who have all weights. */
static enum keel_status list_run(const struct keel_worker *worker, struct column *column, size_t first,
                                 size_t end, uint32_t parts, bool without, struct keel_holdings *have)
{
    uint32_t count = 0;
    for (size_t i = first; i < end; i++)
        if (!without || !column->held[i].complete)
            column->seats[count++] = column->held[i].seat;
    return count == 0 ? KEEL_OK
                      : keel_worker_put_shares(worker, &column->held[first].run, column->of, parts,
                                               column->seats, count, have);
}

/* Where weights are not gathered, who has them all has those of his shares among them. */
static enum keel_status list_held(const struct keel_worker *worker, uint64_t epoch, uint64_t step,
                                  struct column *column, struct keel_holdings *have)
{
    const bool gathers = keel_worker_gathers(worker);
    const uint32_t parts = gathers ? KEEL_PARTS_WEIGHTS | KEEL_PARTS_MOMENTS : KEEL_PARTS_MOMENTS;
    KEEL_TRY(find_held(worker, epoch, step, column));
    if (!gathers)
        KEEL_TRY(list_complete(worker, epoch, step, column, have));
    for (size_t i = 0, end; i < column->count; i = end) {
        for (end = i + 1; end < column->count; end++)
            if (keel_share_runs_compare(&column->held[i].run, &column->held[end].run) != 0)
                break;
        KEEL_TRY(list_run(worker, column, i, end, parts, false, have));
        if (!gathers)
            KEEL_TRY(list_run(worker, column, i, end, KEEL_PARTS_WEIGHTS, true, have));
    }
    return KEEL_OK;
}

/* From that layout to the one of this view. */
enum keel_status keel_worker_find_owned(const struct keel_worker *worker, uint64_t epoch, uint64_t step,
                                        struct keel_moves *out)
{
    struct keel_holders holders = {.have = {.at = NULL}};
    struct column column = {.of = 0};
    enum keel_status status = list_held(worker, epoch, step, &column, &holders.have);
    if (status == KEEL_OK)
        status = keel_worker_list_needs(worker, &holders.need);
    keel_free(column.held);
    keel_free(column.seats);
    return keel_worker_find_moves(worker, status, &holders, out);
}

/* Of a place: the newest layout of that step which is older than `epoch`; of 0: none. */
static struct keel_owned_record newest_before(const struct keel_worker *worker, uint32_t place,
                                              uint64_t epoch, uint64_t step)
{
    struct keel_owned_record best = {.of = 0};
    for (uint32_t p = 0; p < worker->rank_count; p++)
        for (uint32_t i = 0; i < 2 && worker->sync_all[p].place == place; i++) {
            const struct keel_owned_record *record = &worker->sync_all[p].owned[i];
            if (record->of > 0 && record->step == step && record->epoch < epoch &&
                (best.of == 0 || record->epoch > best.epoch))
                best = *record;
        }
    return best;
}

/* What is empty is held by every rank with a record of the layout. */
static void add_runs(const struct keel_share_run *runs, uint32_t run_count, uint32_t by, uint16_t *holders)
{
    for (uint32_t i = 0; i < run_count; i++)
        for (uint32_t k = 0; k < runs[i].count; k++)
            holders[runs[i].first + k * runs[i].stride] += (uint16_t)by;
}

/* By share of the layout: how many ranks of the place have it; and how many have a record of it. */
static uint32_t count_holders(const struct keel_worker *worker, uint32_t place,
                              const struct keel_owned_record *layout, uint16_t holders[KEEL_MEMBERS_MAX])
{
    uint32_t records = 0;
    KEEL_ASSERT(layout->of <= KEEL_MEMBERS_MAX);
    memset(holders, 0, layout->of * sizeof *holders);
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const struct keel_owned_record *record =
            worker->sync_all[p].place == place ? record_of(worker, p, layout->epoch, layout->step) : NULL;
        if (record == NULL)
            continue;
        records++;
        add_runs(keel_worker_runs(worker, record), record->run_count, 1, holders);
    }
    return records;
}

/* Runs that many have, as those with one number of all groups, are looked at once. */
static bool is_covered(const struct keel_worker *worker, uint32_t place,
                       const struct keel_owned_record *layout)
{
    struct keel_share_run seen[KEEL_MEMBERS_MAX]; /* by first share: the newest run */
    uint16_t holders[KEEL_MEMBERS_MAX];
    uint32_t share = 0;
    KEEL_ASSERT(layout->of <= KEEL_MEMBERS_MAX);
    memset(seen, 0, layout->of * sizeof *seen);
    memset(holders, 0, layout->of * sizeof *holders);
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        const struct keel_owned_record *record =
            worker->sync_all[p].place == place ? record_of(worker, p, layout->epoch, layout->step) : NULL;
        for (uint32_t i = 0; record != NULL && i < record->run_count; i++) {
            const struct keel_share_run *run = &keel_worker_runs(worker, record)[i];
            if (keel_share_runs_compare(run, &seen[run->first]) == 0)
                continue;
            seen[run->first] = *run;
            add_runs(run, 1, 1, holders);
        }
    }
    add_runs(keel_worker_empties(worker, layout), layout->empty_count, 1, holders);
    while (share < layout->of && holders[share] > 0)
        share++;
    return share == layout->of;
}

struct keel_owned_record keel_worker_choose_owned(const struct keel_worker *worker, uint32_t place,
                                                  uint64_t step)
{
    struct keel_owned_record chosen = newest_before(worker, place, UINT64_MAX, step);
    while (chosen.of > 0 && !is_covered(worker, place, &chosen))
        chosen = newest_before(worker, place, chosen.epoch, step);
    return chosen;
}

bool keel_worker_is_whole(const struct keel_worker *worker, uint64_t step)
{
    uint32_t place = 0;
    uint16_t column[KEEL_MEMBERS_MAX];
    for (uint32_t seen = 0; seen < worker->rank_count; place++) {
        KEEL_ASSERT(place == 0 || place < worker->axes.map.tensor); /* else no place has the ranks not seen */
        const uint32_t count = keel_worker_column(worker, place, column);
        const struct keel_owned_record chosen = keel_worker_choose_owned(worker, place, step);
        for (uint32_t i = 0; i < count; i++) {
            const struct keel_owned_record *record = record_of(worker, column[i], chosen.epoch, step);
            if (chosen.of != count || record == NULL || !record->complete || record->position != i ||
                (keel_worker_gathers(worker) && worker->sync_all[column[i]].digest_of != step + 1))
                return false;
        }
        seen += count;
    }
    return true;
}

/* Others have all shares of the record; then they are without it. What is empty all have who have a record:
 * `records` of them. */
static bool can_spare(const struct keel_worker *worker, const struct keel_owned_record *record,
                      uint32_t *records, uint16_t *holders)
{
    if (record == NULL)
        return true;
    const struct keel_share_run *runs = keel_worker_runs(worker, record);
    for (uint32_t i = 0; i < record->run_count; i++)
        for (uint32_t k = 0; k < runs[i].count; k++)
            if (holders[runs[i].first + k * runs[i].stride] == 1 &&
                !keel_share_runs_have(keel_worker_empties(worker, record), record->empty_count,
                                      runs[i].first + k * runs[i].stride))
                return false;
    if (record->empty_count > 0 && *records == 1)
        return false;
    add_runs(runs, record->run_count, UINT16_MAX, holders); /* one less */
    --*records;
    return true;
}

/* The last ones first: so are they asked to go. */
void keel_worker_find_spare_holders(const struct keel_worker *worker, uint64_t step,
                                    bool out[KEEL_MEMBERS_MAX])
{
    uint16_t holders[KEEL_MEMBERS_MAX];
    bool seen[KEEL_SLICES_MAX] = {false};
    for (uint32_t last = worker->rank_count; last-- > 0;) {
        const uint32_t place = worker->sync_all[last].place;
        KEEL_ASSERT(place < KEEL_SLICES_MAX);
        if (seen[place])
            continue;
        seen[place] = true;
        const struct keel_owned_record chosen = keel_worker_choose_owned(worker, place, step);
        uint32_t records = count_holders(worker, place, &chosen, holders);
        for (uint32_t p = last + 1; p-- > 0;)
            if (worker->sync_all[p].place == place)
                out[p] = chosen.of == 0 || can_spare(worker, record_of(worker, p, chosen.epoch, chosen.step),
                                                     &records, holders);
    }
}

/* ---- moving -------------------------------------------------------------------------------------------- */

enum keel_status keel_worker_own(struct keel_worker *worker)
{
    uint32_t node[KEEL_MEMBERS_MAX], count;
    const struct keel_owners owners = {.epoch = worker->view.epoch,
                                       .position = keel_worker_index(worker, &count),
                                       .of = keel_worker_owners(worker, node)};
    return keel_trainer_own(worker->trainer, &owners);
}

/* Of gathered weights a part is here, and the model's digest what it was. */
enum keel_status keel_worker_settle(struct keel_worker *worker, uint64_t step)
{
    uint64_t digest;
    KEEL_TRY(keel_trainer_settle(worker->trainer, step, &digest));
    worker->digest = keel_worker_gathers(worker) ? worker->digest : digest;
    return KEEL_OK;
}

bool keel_worker_find_digest(const struct keel_worker *worker, uint64_t step, uint64_t *out)
{
    for (uint32_t p = 0; p < worker->rank_count && keel_worker_gathers(worker); p++) {
        *out = worker->sync_all[p].digest;
        if (worker->sync_all[p].digest_of == step + 1)
            return true;
    }
    return false;
}

enum keel_status keel_worker_check_digest(const struct keel_worker *worker, uint64_t wanted)
{
    if (worker->digest == wanted)
        return KEEL_OK;
    return keel_fail(KEEL_MISMATCH, "pieces of the state of step %llu: digest %016llx, wanted %016llx",
                     (unsigned long long)worker->next_step, (unsigned long long)worker->digest,
                     (unsigned long long)wanted);
}

static enum keel_status open_sharers(struct keel_worker *worker, const struct keel_owners_map *owners,
                                     uint32_t number)
{
    struct keel_worker_axes *axes = &worker->axes;
    uint16_t column[KEEL_MEMBERS_MAX], self[KEEL_MEMBERS_MAX];
    (void)keel_worker_column(worker, axes->place, column);
    for (uint32_t i = 0; i < owners->group; i++) {
        axes->sharer_ranks[i] = column[number * owners->group + i];
        self[i] = (uint16_t)i;
    }
    const struct keel_subgroup what = {.sequence = SEQUENCE_SHARERS +
                                                   (uint64_t)axes->place * KEEL_MEMBERS_MAX + number,
                                       .rank_count = owners->group,
                                       .ranks = axes->sharer_ranks,
                                       .shard_count = owners->group,
                                       .shard_rank = self};
    return keel_group_create(worker->group, &what, &axes->sharers);
}

enum keel_status keel_worker_open_sharers(struct keel_worker *worker)
{
    struct keel_worker_axes *axes = &worker->axes;
    uint32_t node[KEEL_MEMBERS_MAX], count;
    const struct keel_owners_map owners = keel_worker_owners(worker, node);
    const uint32_t number = keel_worker_index(worker, &count) / owners.group;
    const bool own = worker->job.parallel.zero > KEEL_ZERO_NONE;
    struct keel_group *column = keel_worker_shares(worker) ? axes->column : worker->group;
    if (own && owners.group > 1 && owners.group < count)
        KEEL_TRY(open_sharers(worker, &owners, number));
    keel_trainer_gather_over(worker->trainer, owners.group == 1       ? NULL
                                              : axes->sharers != NULL ? axes->sharers
                                                                      : column);
    return KEEL_OK;
}

/* From what the column's ranks hold of that layout to this view's. */
static enum keel_status move(struct keel_worker *worker, uint64_t epoch, uint64_t step)
{
    struct keel_moves moves = {.moves = NULL};
    if (keel_trainer_unfinished(worker->trainer, &worker->unsaid))
        worker->unsaid_step = step;
    KEEL_TRY(keel_worker_own(worker));
    enum keel_status status = keel_worker_find_owned(worker, epoch, step, &moves);
    if (status == KEEL_OK)
        status = keel_worker_make_moves(worker, &moves);
    if (status == KEEL_OK)
        status = keel_worker_settle(worker, step);
    worker->healed = keel_worker_count_moves(&moves);
    keel_moves_fini(&moves);
    return status;
}

enum keel_status keel_worker_move_owned(struct keel_worker *worker, uint64_t step)
{
    const struct keel_owned_record chosen = keel_worker_choose_owned(worker, worker->axes.place, step);
    const bool whole = keel_worker_is_whole(worker, step);
    const uint64_t since = keel_now_ns();
    KEEL_ASSERT(chosen.of > 0);
    keel_trainer_keep(worker->trainer, chosen.epoch);
    if (!whole)
        KEEL_TRY(move(worker, chosen.epoch, step));
    worker->has_state = true;
    worker->next_step = step;
    worker->heal_ns = keel_now_ns() - since;
    return KEEL_OK;
}

/* What was left unsaid of the step that led here; of another one it is not true any more. Where an evaluation
 * gathers weights, or averages, all have a part in it. */
static enum keel_status say_rest(struct keel_worker *worker)
{
    bool any = false;
    worker->unsaid.digest = worker->digest;
    for (uint32_t p = 0; p < worker->rank_count && keel_worker_evaluates_together(worker); p++)
        any = any || worker->sync_all[p].has_unsaid;
    if (any)
        KEEL_TRY(keel_worker_say_rest(worker));
    else if (worker->unsaid_step > 0 && worker->unsaid_step == worker->next_step)
        keel_worker_say_healed(worker, &worker->unsaid);
    worker->unsaid_step = 0;
    return KEEL_OK;
}

/* Let others know that all of the state is here, and forget what was before when they have it too. */
static enum keel_status end(struct keel_worker *worker)
{
    KEEL_TRY(keel_worker_exchange_second(worker));
    keel_trainer_forget_before(worker->trainer);
    return KEEL_OK;
}

/* ---- from the beginning, or from a snapshot ------------------------------------------------------------ */

static enum keel_status begin_again(struct keel_worker *worker, bool lost, uint64_t step)
{
    char detail[160];
    worker->has_state = false;
    worker->digest_of = 0;
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
    KEEL_TRY(keel_worker_own(worker));
    KEEL_TRY(keel_worker_restore_or_begin(worker));
    KEEL_TRY(keel_worker_settle(worker, worker->next_step));
    worker->has_state = true;
    return end(worker);
}

enum keel_status keel_worker_agree_owned(struct keel_worker *worker)
{
    uint64_t step;
    KEEL_TRY(keel_worker_open_sharers(worker));
    if (!keel_worker_furthest_owned(worker, &step))
        return begin_again(worker, false, 0);
    if (worker->snapshot.save != NULL && /* a capture may still read what is about to be replaced */
        keel_save_wait_captured(worker->snapshot.save, keel_deadline_after_ns(worker->stall_ns)) ==
            KEEL_TIMEOUT)
        return KEEL_TIMEOUT;
    KEEL_TRY(keel_worker_catch_up_owned(worker, step));
    if (keel_worker_choose_owned(worker, 0, step).of == 0)
        return begin_again(worker, true, step);
    const bool whole = keel_worker_is_whole(worker, step);
    uint64_t known;
    const bool is_known = keel_worker_find_digest(worker, step, &known);
    KEEL_TRY(keel_worker_move_owned(worker, step));
    if (whole)
        return say_rest(worker);
    KEEL_TRY(end(worker));
    if (is_known)
        KEEL_TRY(keel_worker_check_digest(worker, known));
    keel_worker_note_healed(worker, worker->healed);
    return say_rest(worker);
}
