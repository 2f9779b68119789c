/* worker_axes.c - parallel.tensor: which slices this rank has in a view, with whom it exchanges them, and
 * where its state comes from.
 *
 * All ranks draw the same conclusions from the same records, as in worker_sync.c:
 *
 *   1. Who was in the view before and is a step behind had all that leads to it (AGREE of the tape): it
 *      does that step alone.
 *   2. Ranks keep the slices of which they have the state, newcomers take those that fewest have
 *      (plan/axes.h).
 *   3. A newcomer is healed by the ranks that have its slices, its column. Where some slices, or with
 *      parallel.zero a share of their state, are nobody's any more, or all are cut otherwise, since too few
 *      ranks are left, all go back to the newest snapshot, and the run says so: boxes of whole parameters,
 *      of which each reads its share of what its column has now.
 *   4. All say what their weights are: the digest of the model is known, and a step whose end nobody could
 *      tell is told.
 *
 * Sums that ranks keep of an interrupted step are dropped: the members of a data position compute together or
 * not at all. */
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* Subgroups of a view: a column, and two for each data position. */
enum { GROUP_COLUMN = 16, GROUP_NORM = GROUP_COLUMN + KEEL_SLICES_MAX, GROUP_SLICES = 128 };
#define GROUP_PLACES (UINT64_C(1) << 16)

bool keel_worker_shares(const struct keel_worker *worker)
{
    return worker->job.parallel.tensor > 1;
}

/* ---- groups -------------------------------------------------------------------------------------------- */

static enum keel_status create(struct keel_worker *worker, uint64_t sequence, const uint16_t *ranks,
                               uint32_t rank_count, const uint16_t *shards, uint32_t shard_count,
                               struct keel_group **out)
{
    const struct keel_subgroup what = {.sequence = sequence,
                                       .rank_count = rank_count,
                                       .ranks = ranks,
                                       .shard_count = shard_count,
                                       .shard_rank = shards};
    return keel_group_create(worker->group, &what, out);
}

/* The ranks with the same slices; NULL where there is one. */
static enum keel_status open_column(struct keel_worker *worker)
{
    struct keel_worker_axes *axes = &worker->axes;
    const struct keel_axes *map = &axes->map;
    const uint32_t place = map->place[worker->position];
    keel_axes_column(map, place, axes->column_ranks);
    for (uint32_t i = 0; i < map->column_count[place]; i++)
        axes->column_names[i] = worker->position_rank[axes->column_ranks[i]];
    for (uint32_t s = 0; s < worker->job.shards; s++)
        axes->shard_index[s] = (uint16_t)keel_axes_position(worker->job.shards, map->data, s);
    if (map->column_count[place] == 1)
        return KEEL_OK;
    return create(worker, GROUP_COLUMN + place, axes->column_ranks, map->column_count[place],
                  axes->shard_index, worker->job.shards, &axes->column);
}

/* The ranks of this data position, which compute together. */
static enum keel_status open_position(struct keel_worker *worker)
{
    struct keel_worker_axes *axes = &worker->axes;
    const struct keel_axes *map = &axes->map;
    uint16_t slice_place[KEEL_SLICES_MAX], self[KEEL_SLICES_MAX];
    const uint32_t index = map->index[worker->position];
    for (uint32_t k = 0; k < map->tensor; k++) {
        self[k] = (uint16_t)k;
        for (uint32_t s = axes->trainer.begin[k]; s < axes->trainer.begin[k + 1]; s++)
            slice_place[s] = (uint16_t)k;
    }
    if (index >= map->data)
        return KEEL_OK;
    KEEL_TRY(create(worker, GROUP_SLICES + index, axes->trainer.members, map->tensor, slice_place,
                    worker->job.tensor, &axes->trainer.slices));
    return create(worker, GROUP_PLACES + index, axes->trainer.members, map->tensor, self, map->tensor,
                  &axes->trainer.places);
}

static bool has_idle(const struct keel_axes *map)
{
    return map->ranks != map->data * map->tensor;
}

/* Ranks that compute nothing get the squares of the first data position. */
static enum keel_status open_norm(struct keel_worker *worker)
{
    struct keel_worker_axes *axes = &worker->axes;
    const struct keel_axes *map = &axes->map;
    uint16_t all[KEEL_MEMBERS_MAX];
    axes->trainer.norm = axes->trainer.places;
    axes->trainer.gives_norm = true;
    if (!has_idle(map))
        return KEEL_OK;
    for (uint32_t r = 0; r < map->ranks; r++)
        all[r] = (uint16_t)r;
    axes->trainer.gives_norm = map->index[worker->position] == 0;
    return create(worker, GROUP_NORM, all, map->ranks, map->first, map->tensor, &axes->norm);
}

static enum keel_status open_groups(struct keel_worker *worker)
{
    struct keel_worker_axes *axes = &worker->axes;
    const struct keel_axes *map = &axes->map;
    const uint32_t index = map->index[worker->position];
    axes->evaluations = 0; /* as those have it who are new */
    axes->trainer = (struct keel_trainer_axes){.view = worker->group,
                                               .rank_count = worker->rank_count,
                                               .place = map->place[worker->position],
                                               .count = map->tensor,
                                               .rank_place = map->place,
                                               .each_owns = keel_worker_gathers(worker)};
    for (uint32_t k = 0; k <= map->tensor; k++)
        axes->trainer.begin[k] = keel_axes_slice(worker->job.tensor, map->tensor, k);
    for (uint32_t k = 0; k < map->tensor; k++)
        axes->trainer.members[k] = (uint16_t)keel_axes_rank(map, k, index < map->data ? index : 0);
    if (map->tensor > 1) {
        KEEL_TRY(open_position(worker));
        KEEL_TRY(open_norm(worker));
        if (axes->norm != NULL)
            axes->trainer.norm = axes->norm;
        keel_trainer_share(worker->trainer, &axes->trainer);
    }
    return open_column(worker);
}

void keel_worker_close_axes(struct keel_worker *worker)
{
    struct keel_worker_axes *axes = &worker->axes;
    struct keel_group **groups[] = {&axes->column, &axes->norm, &axes->sharers, &axes->trainer.slices,
                                    &axes->trainer.places};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        if (*groups[i] != NULL)
            keel_group_close(*groups[i]);
        *groups[i] = NULL;
    }
}

bool keel_worker_missed(const struct keel_worker *worker, uint32_t *out_position)
{
    const struct keel_worker_axes *axes = &worker->axes;
    const struct keel_group *each[] = {axes->trainer.slices, axes->trainer.places};
    uint32_t there;
    if (worker->group == NULL)
        return false;
    if (keel_group_lost(worker->group, out_position))
        return true;
    if (axes->norm != NULL && keel_group_lost(axes->norm, out_position))
        return true;
    for (size_t i = 0; i < 2; i++)
        if (each[i] != NULL && keel_group_lost(each[i], &there)) {
            *out_position = axes->trainer.members[there];
            return true;
        }
    if (axes->sharers != NULL && keel_group_lost(axes->sharers, &there)) {
        *out_position = axes->sharer_ranks[there];
        return true;
    }
    if (axes->column == NULL || !keel_group_lost(axes->column, &there))
        return false;
    *out_position = axes->column_ranks[there];
    return true;
}

/* ---- who has what -------------------------------------------------------------------------------------- */

static bool owns(const struct keel_worker *worker)
{
    return worker->job.parallel.zero > KEEL_ZERO_NONE;
}

/* Steps of the furthest, and whether there is one. */
static bool furthest_step(const struct keel_worker *worker, uint64_t *out)
{
    bool any = false;
    *out = 0;
    if (owns(worker))
        return keel_worker_furthest_owned(worker, out);
    for (uint32_t p = 0; p < worker->rank_count; p++)
        if (worker->sync_all[p].has_state) {
            any = true;
            *out = worker->sync_all[p].next_step > *out ? worker->sync_all[p].next_step : *out;
        }
    return any;
}

static bool has_newest(const struct keel_worker *worker, uint32_t p, uint64_t step)
{
    const struct keel_owned_record *owned = worker->sync_all[p].owned;
    if (!owns(worker))
        return keel_worker_has_newest(worker, p, step);
    return (owned[0].of > 0 && owned[0].step == step) || (owned[1].of > 0 && owned[1].step == step);
}

/* Who has the sums of the step that another one did. */
enum keel_status keel_worker_catch_up_axes(struct keel_worker *worker, uint64_t step)
{
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        struct keel_sync_record *record = &worker->sync_all[p];
        if (!record->has_state || !record->is_ready || record->next_step + 1 != step)
            continue;
        record->next_step = step;
        if (p != worker->position)
            continue;
        KEEL_TRY(keel_trainer_finish_ready(worker->trainer, &worker->unsaid));
        worker->next_step = worker->unsaid_step = step;
    }
    return KEEL_OK;
}

static bool has_holders(const struct keel_worker *worker, uint32_t place, uint64_t step)
{
    bool found = false;
    if (owns(worker))
        return keel_worker_choose_owned(worker, place, step).of > 0;
    for (uint32_t p = 0; p < worker->rank_count && !found; p++)
        found = worker->axes.map.place[p] == place && has_newest(worker, p, step);
    return found;
}

/* Each place has its newest state somewhere. */
static bool is_complete(const struct keel_worker *worker, uint64_t step)
{
    uint32_t place = 0;
    while (place < worker->axes.map.tensor && has_holders(worker, place, step))
        place++;
    return place == worker->axes.map.tensor;
}

static void forget_record(struct keel_sync_record *record)
{
    record->has_state = false;
    record->owned[0].of = record->owned[1].of = 0;
}

/* Places for all: by their state, or where there is none by what their engines are made for. Who goes
 * elsewhere, or is behind, has nothing then; with pieces only such go that nobody needs. */
static void find_places(struct keel_worker *worker, uint32_t tensor, bool any, uint64_t step)
{
    const uint32_t count = worker->rank_count;
    uint16_t had[KEEL_MEMBERS_MAX];
    bool spare[KEEL_MEMBERS_MAX], stays[KEEL_MEMBERS_MAX];
    memset(spare, 0, count * sizeof spare[0]);
    memset(had, 0, count * sizeof had[0]);
    memset(stays, 0, count * sizeof stays[0]);
    for (uint32_t p = 0; p < count; p++) {
        struct keel_sync_record *record = &worker->sync_all[p];
        const bool keeps = record->tensor == tensor && (!any || has_newest(worker, p, step));
        had[p] = keeps ? (uint16_t)record->place : KEEL_NO_PLACE;
        if (!keeps || !any)
            forget_record(record);
    }
    if (any && owns(worker))
        keel_worker_find_spare_holders(worker, step, spare);
    for (uint32_t p = 0; p < count; p++)
        stays[p] = any && owns(worker) && !spare[p];
    keel_axes_find(had, stays, count, tensor, &worker->axes.map);
    for (uint32_t p = 0; p < count; p++)
        if (worker->axes.map.place[p] != had[p])
            forget_record(&worker->sync_all[p]);
}

/* A capture may still read what is about to be replaced. */
static enum keel_status wait_for_capture(struct keel_worker *worker)
{
    if (worker->snapshot.save == NULL)
        return KEEL_OK;
    return keel_save_wait_captured(worker->snapshot.save, keel_deadline_after_ns(worker->stall_ns)) ==
                   KEEL_TIMEOUT
               ? KEEL_TIMEOUT
               : KEEL_OK;
}

static enum keel_status take_place(struct keel_worker *worker)
{
    const struct keel_axes *map = &worker->axes.map;
    const uint32_t place = map->place[worker->position], tensor = map->tensor;
    const uint32_t first = keel_axes_slice(worker->job.tensor, tensor, place);
    const uint32_t end = keel_axes_slice(worker->job.tensor, tensor, place + 1);
    worker->has_state = worker->sync_all[worker->position].has_state;
    keel_trainer_drop(worker->trainer);
    if (!worker->has_state)
        KEEL_TRY(wait_for_capture(worker));
    if (worker->axes.tensor != tensor || worker->axes.place != place)
        keel_log(KEEL_LOG_INFO, "place %u of %u: the engine is made again, and all wait for it", place,
                 tensor);
    worker->axes.tensor = tensor;
    worker->axes.place = place;
    KEEL_TRY(tensor > 1 ? keel_trainer_cut(worker->trainer, first, end - first)
                        : keel_trainer_cut(worker->trainer, 0, 0));
    keel_trainer_column(worker->trainer, map->index[worker->position], map->column_count[place], place,
                        tensor);
    return KEEL_OK;
}

/* ---- state --------------------------------------------------------------------------------------------- */

static enum keel_status heal(struct keel_worker *worker, uint64_t step)
{
    struct keel_moves moves = {.moves = NULL};
    const uint64_t since = keel_now_ns();
    uint64_t digest;
    enum keel_status status = keel_worker_find_healing(worker, step, &moves);
    if (status == KEEL_OK)
        status = keel_worker_make_moves(worker, &moves);
    if (status == KEEL_OK)
        worker->healed = keel_worker_count_moves(&moves);
    keel_moves_fini(&moves);
    KEEL_TRY(status);
    if (!worker->has_state)
        KEEL_TRY(keel_trainer_digest(worker->trainer, &digest));
    worker->has_state = true;
    worker->next_step = step;
    worker->heal_ns = keel_now_ns() - since;
    return KEEL_OK;
}

static void say_lost(struct keel_worker *worker, uint64_t step)
{
    char detail[160];
    snprintf(detail, sizeof detail,
             "%s no holder left among %u ranks, or are cut otherwise: all ranks go back to %s",
             owns(worker) ? "some pieces of the state of tensor slices have" : "some tensor slices have",
             worker->rank_count,
             worker->sync_all[0].snapshot_count > 0 ? "the newest snapshot" : "the beginning");
    if (worker->position == 0)
        keel_worker_note(worker, "state-lost", step, KEEL_OK, detail);
}

static enum keel_status begin(struct keel_worker *worker)
{
    uint64_t digest;
    KEEL_TRY(keel_trainer_initialize(worker->trainer));
    KEEL_TRY(keel_trainer_digest(worker->trainer, &digest));
    worker->has_state = true;
    worker->next_step = 0;
    worker->unsaid_step = 0;
    return KEEL_OK;
}

/* ---- a snapshot ---------------------------------------------------------------------------------------- */

static bool all_have_read(const struct keel_worker *worker)
{
    bool all = true;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        all = all && worker->sync_all[p].has_share;
    return all;
}

/* Each reads its share of what its column has, and gives it to the others there. False in *out: one cannot.
 */
static enum keel_status read_shares(struct keel_worker *worker, uint64_t step, uint32_t *round,
                                    uint64_t *read_bytes, bool *out)
{
    const bool has_read = keel_worker_restore_share(worker, step, read_bytes);
    KEEL_TRY(keel_worker_exchange_round(worker, ++*round, has_read));
    *out = all_have_read(worker);
    return *out ? keel_worker_spread_shares(worker) : KEEL_OK;
}

/* The first of each column reads what its engine has, the others get it from there; of pieces everybody reads
 * his own. *why: what this rank could not read. */
static enum keel_status read_whole(struct keel_worker *worker, uint64_t step, uint32_t *round,
                                   uint64_t *read_bytes, bool *out, enum keel_status *why)
{
    const bool reads = owns(worker) || worker->axes.map.index[worker->position] == 0;
    *why = reads ? keel_worker_restore_slices(worker, step, read_bytes) : KEEL_OK;
    worker->has_state = reads && *why == KEEL_OK;
    worker->next_step = step;
    KEEL_TRY(keel_worker_exchange_round(worker, ++*round, *why == KEEL_OK));
    *out = all_have_read(worker);
    return *out && !owns(worker) ? heal(worker, step) : KEEL_OK;
}

static enum keel_status take_read(struct keel_worker *worker, uint64_t step, uint64_t read_bytes,
                                  uint64_t since)
{
    uint64_t digest;
    KEEL_TRY(keel_trainer_digest(worker->trainer, &digest));
    worker->has_state = true;
    worker->next_step = step;
    worker->unsaid_step = 0;
    keel_worker_note_resumed(worker, step, since, read_bytes);
    return KEEL_OK;
}

/* Position 0 says which is next, until one is read by all who read. Who could not read the last of them ends
 * with that, and so do the others when they miss it. */
static enum keel_status restore(struct keel_worker *worker)
{
    enum keel_status status = KEEL_OK;
    char why[KEEL_DETAIL_BYTES] = "no committed snapshot can be read by all ranks";
    for (uint32_t round = 0; worker->sync_all[0].snapshot_count > 0;) {
        const uint64_t step = worker->sync_all[0].snapshot_step, since = keel_now_ns();
        uint64_t read_bytes = 0;
        bool all;
        KEEL_TRY(read_shares(worker, step, &round, &read_bytes, &all));
        if (!all && worker->tiers.near != NULL) {
            KEEL_TRY(keel_worker_tiers_fetch_all(worker));
            KEEL_TRY(read_shares(worker, step, &round, &read_bytes, &all));
        }
        if (!all)
            KEEL_TRY(read_whole(worker, step, &round, &read_bytes, &all, &status));
        if (all)
            return take_read(worker, step, read_bytes, since);
        if (status != KEEL_OK)
            snprintf(why, sizeof why, "%s", keel_detail());
        worker->has_state = false;
        keel_worker_snapshot_bound(worker, step);
        KEEL_TRY(keel_worker_exchange_round(worker, ++round, false));
        KEEL_TRY(keel_worker_tiers_choose(worker));
    }
    if (status != KEEL_OK)
        return keel_fail(status, "%s", why);
    return keel_fail(KEEL_NOT_FOUND, "%s", why);
}

/* Nobody has the state. */
static enum keel_status begin_again(struct keel_worker *worker, bool lost, uint64_t step)
{
    worker->has_state = false;
    worker->digest_of = 0;
    keel_trainer_keep(worker->trainer, 0);
    keel_worker_snapshot_again(worker);
    KEEL_TRY(keel_worker_exchange_round(worker, 0, false));
    KEEL_TRY(keel_worker_tiers_choose(worker));
    if (lost)
        say_lost(worker, step);
    if (owns(worker))
        KEEL_TRY(keel_worker_own(worker));
    KEEL_TRY(worker->sync_all[0].snapshot_count > 0 ? restore(worker) : begin(worker));
    keel_worker_snapshot_again(worker);
    return owns(worker) ? keel_worker_settle(worker, worker->next_step) : KEEL_OK;
}

/* ---- the digest of the model --------------------------------------------------------------------------- */

/* Who has the same slices has the same weights, unless each has what it owns. */
static enum keel_status check_columns(const struct keel_worker *worker)
{
    const struct keel_axes *map = &worker->axes.map;
    for (uint32_t p = 0; p < worker->rank_count && !keel_worker_gathers(worker); p++) {
        const struct keel_sync_record *record = &worker->sync_all[p];
        const uint32_t first = map->first[map->place[p]];
        const struct keel_sync_record *other = &worker->sync_all[first];
        if (record->next_step != other->next_step || record->part != other->part ||
            record->shared != other->shared)
            return keel_fail(KEEL_MISMATCH,
                             "ranks %u and %u have the same slices of step %llu and %llu, with weights "
                             "%016llx and %016llx",
                             worker->position_rank[p], worker->position_rank[first],
                             (unsigned long long)record->next_step, (unsigned long long)other->next_step,
                             (unsigned long long)record->part, (unsigned long long)other->part);
    }
    return KEEL_OK;
}

/* What moved in all columns, of which a rank sees its own alone, and how long the longest took. */
static void gather_healed(struct keel_worker *worker)
{
    const struct keel_axes *map = &worker->axes.map;
    struct keel_moved all = {.bytes = 0};
    for (uint32_t k = 0; k < map->tensor; k++) {
        const struct keel_moved *column = &worker->sync_all[map->first[k]].healed;
        all.bytes += column->bytes;
        all.senders += column->senders;
        all.receivers += column->receivers;
    }
    for (uint32_t p = 0; p < worker->rank_count; p++)
        if (worker->sync_all[p].heal_ns > worker->heal_ns)
            worker->heal_ns = worker->sync_all[p].heal_ns;
    keel_worker_note_healed(worker, all);
}

/* Also says what was left unsaid; all evaluate where one does. `known`: the digest, where one knew it; else
 * NULL. */
static enum keel_status agree_end(struct keel_worker *worker, const uint64_t *known)
{
    bool unsaid = false;
    KEEL_TRY(keel_worker_exchange_whole(worker));
    gather_healed(worker);
    KEEL_TRY(check_columns(worker));
    keel_trainer_forget_before(worker->trainer);
    uint64_t(*said)[2] = worker->axes.said;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        said[p][0] = worker->sync_all[p].part;
        said[p][1] = worker->sync_all[p].shared;
        unsaid = unsaid || worker->sync_all[p].has_unsaid;
    }
    worker->digest = keel_trainer_whole_digest(&worker->axes.trainer, (const uint64_t(*)[2])said);
    worker->digest_of = worker->next_step + 1;
    if (known != NULL)
        KEEL_TRY(keel_worker_check_digest(worker, *known));
    if (!unsaid)
        return KEEL_OK;
    worker->unsaid.digest = worker->digest;
    return keel_worker_say_rest(worker);
}

/* From what ranks have, at the furthest step. */
static enum keel_status go_on(struct keel_worker *worker, uint64_t step)
{
    if (!owns(worker))
        return heal(worker, step);
    KEEL_TRY(wait_for_capture(worker));
    return keel_worker_move_owned(worker, step);
}

enum keel_status keel_worker_agree_axes(struct keel_worker *worker)
{
    const uint32_t tensor = keel_axes_tensor(worker->rank_count, worker->job.parallel.tensor);
    uint64_t step, known;
    bool any = furthest_step(worker, &step);
    const bool is_known = any && keel_worker_find_digest(worker, step, &known);
    KEEL_TRY(owns(worker) ? keel_worker_catch_up_owned(worker, step)
                          : keel_worker_catch_up_axes(worker, step));
    find_places(worker, tensor, any, step);
    const bool lost = any && !is_complete(worker, step);
    if (lost)
        find_places(worker, tensor, false, 0);
    any = any && !lost;
    KEEL_TRY(take_place(worker));
    KEEL_TRY(open_groups(worker));
    KEEL_TRY(keel_worker_open_sharers(worker));
    KEEL_TRY(any ? go_on(worker, step) : begin_again(worker, lost, step));
    return agree_end(worker, any && is_known ? &known : NULL);
}
