/* worker_snapshot.c - snapshots as a worker takes them, and as it comes back from them.
 *
 * A snapshot that fails is told (one note): it never ends the training. All ranks take it again after the
 * next step, a few times; then the next regular one is waited for. */
#include "worker_internal.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { LISTED_MAX = 1 << 16 }; /* of the newest; a step that is asked for is looked for among so many */

static void drill_at(struct keel_worker *worker, enum keel_drill_phase phase)
{
    struct keel_drill_place place = {.step = worker->snapshot.step,
                                     .phase = phase,
                                     .rank = worker->snapshot.rank,
                                     .node = worker->node,
                                     .leader = worker->snapshot.leader};
    keel_drill_fire(&worker->drills, &place);
}

static enum keel_status read_region(void *context, uint32_t index, uint64_t offset_bytes, uint64_t bytes,
                                    void *out)
{
    struct keel_worker *worker = context;
    drill_at(worker, KEEL_AT_SNAPSHOT);
    return keel_trainer_read_piece(worker->trainer, worker->snapshot.queue, &worker->snapshot.pieces[index],
                                   offset_bytes, bytes, out);
}

static void forget(struct keel_worker_snapshot *snapshot)
{
    keel_free(snapshot->regions);
    keel_free(snapshot->pieces);
    snapshot->regions = NULL;
    snapshot->pieces = NULL;
    snapshot->save = NULL;
}

/* Regions and settings of the next one. */
static enum keel_status configure(struct keel_worker *worker, struct keel_save_config *out)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    uint32_t count;
    if (snapshot->queue == NULL)
        KEEL_TRY(keel_queue_create(worker->device, &snapshot->queue));
    KEEL_TRY(keel_trainer_pieces(worker->trainer, worker->position, worker->rank_count, &snapshot->pieces,
                                 &count));
    KEEL_TRY(keel_alloc(count + 1, sizeof *snapshot->regions, &snapshot->regions));
    for (uint32_t i = 0; i < count; i++)
        keel_trainer_region(worker->trainer, &snapshot->pieces[i], &snapshot->regions[i]);
    snapshot->rank = worker->rank;
    snapshot->leader = worker->position == 0;
    snapshot->hurried = false;
    snapshot->position = worker->position;
    const struct keel_job *job = &worker->job;
    *out = (struct keel_save_config){.step = snapshot->step,
                                     .attempt = snapshot->attempt,
                                     .rank = worker->position,
                                     .rank_count = worker->rank_count,
                                     .state_digest = worker->digest,
                                     .codec = (enum keel_codec)job->snapshot_codec,
                                     .regions = snapshot->regions,
                                     .region_count = count,
                                     .read = read_region,
                                     .context = worker,
                                     .arena_bytes = job->snapshot_arena_bytes,
                                     .bandwidth_bytes_s = job->snapshot_bandwidth_bytes_s,
                                     .background = job->snapshot_background,
                                     .retry_max = job->snapshot_retry};
    return KEEL_OK;
}

/* Files of a snapshot in this worker's store: all, or those of its node's ranks and the copies that it keeps.
 */
static uint32_t shards_here(const struct keel_worker *worker)
{
    uint32_t node[KEEL_MEMBERS_MAX], count = 0;
    if (worker->tiers.near == NULL)
        return worker->rank_count;
    keel_worker_nodes(worker, node);
    for (uint32_t p = 0; p < worker->rank_count; p++)
        count += node[p] == node[worker->position];
    return worker->job.snapshot_partner ? 2 * count : count;
}

/* On a disk that is full now, what retention would let go after the commit goes before the save. Every rank
 * looks by itself, so that none begins to write before there is room. */
static void make_room(struct keel_worker *worker)
{
    const struct keel_retention retention = keel_job_retention(&worker->job);
    uint64_t bytes = worker->snapshot.last_bytes * shards_here(worker);
    uint32_t removed = 0;
    if (keel_store_make_room(worker->store, &retention, bytes + bytes / 8, &removed) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "no room was made for a snapshot: %s", keel_detail());
    if (removed == 0)
        return;
    char detail[96];
    snprintf(detail, sizeof detail, "the disk is full: %" PRIu32 " older went before the save, not after it",
             removed);
    keel_worker_note(worker, "snapshot-room", worker->next_step, KEEL_OK, detail);
}

static enum keel_status begin(struct keel_worker *worker)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    struct keel_save_config config;
    snapshot->step = worker->next_step;
    snapshot->attempt = worker->view.epoch;
    snapshot->early = worker->early;
    make_room(worker);
    KEEL_TRY(configure(worker, &config));
    drill_at(worker, KEEL_AT_CAPTURE); /* the device is idle: what spoils it may be given to it now */
    return keel_save_begin(worker->store, &config, &snapshot->save);
}

/* One that cannot be had now fails when the first snapshot begins, and is told there. */
void keel_worker_snapshot_prepare(struct keel_worker *worker)
{
    struct keel_save_config config;
    const uint64_t layout = (uint64_t)worker->rank_count << 32 | worker->position;
    if (worker->store == NULL || worker->snapshot.save != NULL || !keel_job_takes_snapshots(&worker->job) ||
        worker->next_step >= worker->job.steps || layout == worker->snapshot.prepared)
        return;
    worker->snapshot.prepared = layout;
    if (configure(worker, &config) == KEEL_OK)
        (void)keel_save_prepare(worker->store, &config);
    forget(&worker->snapshot);
}

/* Told with its cause, and whether it will be tried again. */
static void failed(struct keel_worker *worker, uint64_t step, enum keel_status status)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    char detail[KEEL_DETAIL_BYTES];
    const bool goes_on = worker->next_step < worker->job.steps && !keel_inbox_stopping(&worker->inbox);
    const bool again = snapshot->tries < worker->job.snapshot_retry && goes_on;
    snapshot->failed = true;
    snprintf(detail, sizeof detail, "%.400s%s", keel_detail(),
             again     ? "; it is tried again after the next step"
             : goes_on ? "; the next regular one is waited for"
                       : "");
    keel_worker_note(worker, "snapshot-failed", step, status, detail);
}

uint64_t keel_worker_snapshot_flags(struct keel_worker *worker)
{
    const struct keel_worker_snapshot *snapshot = &worker->snapshot;
    uint64_t flags = 0;
    if (snapshot->failed && snapshot->attempt == worker->view.epoch)
        flags |= KEEL_STEP_FLAG_FAILED;
    if (snapshot->failed && snapshot->tries < worker->job.snapshot_retry)
        flags |= KEEL_STEP_FLAG_SNAPSHOT;
    if (worker->tiers.near != NULL && (snapshot->save != NULL || worker->tiers.guard.running))
        flags |= KEEL_STEP_FLAG_WAIT;
    if (worker->tiers.near != NULL && keel_inbox_stopping(&worker->inbox))
        flags |= KEEL_STEP_FLAG_STOP;
    return flags;
}

void keel_worker_snapshot_skip(struct keel_worker *worker)
{
    if (worker->position == 0)
        keel_worker_note(
            worker, "snapshot-skipped", worker->next_step, KEEL_BUSY,
            "the snapshot before is still being written; snapshot less often, or on a faster disk");
}

static void discard(struct keel_worker *worker)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    if (keel_save_discard(worker->store, snapshot->step, snapshot->attempt, snapshot->position) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "a failed snapshot stays until the next one: %s", keel_detail());
    snapshot->finished = false;
}

/* A rank has no shard of the newest snapshot, so it is never complete and nobody will commit it: what this
 * rank wrote of it, or still writes, is of no use. Within a view all ranks begin the same ones; of another
 * view's nothing is known. */
void keel_worker_snapshot_give_up(struct keel_worker *worker)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    if (snapshot->attempt != worker->view.epoch)
        return;
    if (snapshot->save != NULL)
        snapshot->doomed = true;
    else if (snapshot->finished && worker->tiers.near == NULL) /* else the guard hears of it */
        discard(worker);
}

void keel_worker_snapshot_begin(struct keel_worker *worker, bool again)
{
    KEEL_ASSERT(worker->snapshot.save == NULL);
    worker->snapshot.tries = again ? worker->snapshot.tries + 1 : 0;
    worker->snapshot.failed = worker->snapshot.doomed = worker->snapshot.finished = false;
    worker->tiers.begun++;
    if (worker->tiers.records < worker->next_step) /* it is of this life, and may be gone back to */
        worker->tiers.records = worker->next_step;
    if (again && worker->position == 0) {
        char detail[64];
        snprintf(detail, sizeof detail, "a rank could not write the one before; try %u of %u",
                 worker->snapshot.tries, worker->job.snapshot_retry);
        keel_worker_note(worker, "snapshot-again", worker->next_step, KEEL_OK, detail);
    }
    enum keel_status status = begin(worker);
    if (status != KEEL_OK) {
        failed(worker, worker->next_step, status);
        forget(&worker->snapshot);
        if (worker->tiers.near != NULL)
            keel_worker_guard_begin(worker, NULL);
    }
}

bool keel_worker_snapshot_has_begun(const struct keel_worker *worker)
{
    return worker->snapshot.step == worker->next_step && worker->snapshot.attempt == worker->view.epoch;
}

/* The state is that of the last step, which a rank of this view did, and not one of an earlier life. */
static bool is_new_end(const struct keel_worker *worker)
{
    bool did = false;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        did = did || worker->sync_all[p].did_step == worker->job.steps;
    return did && worker->next_step == worker->job.steps && worker->job.snapshot_every > 0;
}

void keel_worker_snapshot_first(struct keel_worker *worker)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    const bool at_zero = worker->next_step == 0 && worker->job.snapshot_first;
    if (worker->store == NULL || !(at_zero || (worker->job.steps > 0 && is_new_end(worker))))
        return;
    if (snapshot->save != NULL) {
        keel_save_cancel(snapshot->save);
        forget(snapshot);
    }
    keel_worker_snapshot_begin(worker, false);
}

/* What became of the one that all ranks guard. */
static void poll_guard(struct keel_worker *worker, bool wait)
{
    const struct keel_guard *guard = &worker->tiers.guard;
    if (!keel_worker_guard_poll(worker, wait) || !guard->at_fault)
        return;
    keel_detail_set(guard->detail);
    failed(worker, guard->step, guard->status);
}

/* The shard is written, or is not: `status`. All ranks of a view guard what they began in it. */
static void hand_over(struct keel_worker *worker, enum keel_status status,
                      const struct keel_link_message *message)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    const bool of_view = snapshot->attempt == worker->view.epoch;
    const bool guarded = worker->tiers.near != NULL && of_view;
    if (status != KEEL_OK)
        failed(worker, snapshot->step, status);
    if (guarded)
        keel_worker_guard_begin(worker, status == KEEL_OK && !snapshot->doomed ? &message->as.summary : NULL);
    else if (status == KEEL_OK && (snapshot->doomed || !of_view))
        discard(worker); /* shards of a view that is over are not collected either */
    else if (status == KEEL_OK)
        keel_inbox_say(&worker->inbox, message);
}

void keel_worker_snapshot_poll(struct keel_worker *worker, bool wait)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    poll_guard(worker, wait);
    if (snapshot->save == NULL || (!wait && !keel_save_done(snapshot->save)))
        return;
    keel_save_hurry(snapshot->save); /* who waits for it does nothing else */
    struct keel_link_message message = {
        .kind = KEEL_LINK_SHARD, .value = snapshot->step, .attempt = snapshot->attempt};
    enum keel_status status =
        keel_save_finish(snapshot->save, keel_deadline_after_ns(worker->stall_ns), &message.as.summary);
    if (status == KEEL_TIMEOUT)
        keel_save_cancel(snapshot->save);
    snapshot->finished = status == KEEL_OK;
    if (status == KEEL_OK)
        snapshot->last_bytes = message.as.summary.file_bytes;
    hand_over(worker, status, &message);
    forget(snapshot);
    if (wait)
        poll_guard(worker, true);
}

void keel_worker_snapshot_age(struct keel_worker *worker)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    const struct keel_job *job = &worker->job;
    uint64_t most =
        job->snapshot_max_age_steps != 0 ? job->snapshot_max_age_steps : (job->snapshot_every + 1) / 2;
    if (snapshot->save == NULL || snapshot->hurried || !job->snapshot_background ||
        worker->next_step - snapshot->step < most)
        return;
    char detail[96];
    snapshot->hurried = true;
    snprintf(detail, sizeof detail,
             "not written after %" PRIu64 " steps in the background: at normal priority now",
             worker->next_step - snapshot->step);
    keel_save_hurry(snapshot->save);
    keel_worker_note(worker, "snapshot-hurried", snapshot->step, KEEL_OK, detail);
}

void keel_worker_snapshot_end(struct keel_worker *worker)
{
    struct keel_worker_snapshot *snapshot = &worker->snapshot;
    if (snapshot->save != NULL)
        keel_save_cancel(snapshot->save);
    forget(snapshot);
    if (snapshot->queue != NULL)
        keel_queue_destroy(snapshot->queue);
    snapshot->queue = NULL;
}

/* ---- coming back --------------------------------------------------------------------------------------- */

/* What resume may take, newest first, on the heap. */
static enum keel_status candidates(struct keel_worker *worker, struct keel_snapshot_info **out,
                                   uint32_t *out_count)
{
    const struct keel_tier_offer *chosen = &worker->tiers.chosen;
    uint32_t count, kept = 0;
    struct keel_snapshot_info *list;
    KEEL_TRY(keel_alloc(LISTED_MAX, sizeof *list, &list));
    enum keel_status status = keel_store_list(worker->store, list, LISTED_MAX, &count, NULL);
    if (status != KEEL_OK) {
        keel_free(list);
        return status;
    }
    for (uint32_t i = 0; i < count; i++)
        if (worker->tiers.near != NULL
                ? chosen->used && list[i].step == chosen->step && list[i].attempt == chosen->attempt
                : (worker->resume == KEEL_RESUME_AUTO || list[i].step == worker->resume_step) &&
                      (!worker->tiers.has_records || list[i].step <= worker->tiers.records) &&
                      (!worker->snapshot.has_bound || list[i].step < worker->snapshot.bound))
            list[kept++] = list[i];
    *out = list;
    *out_count = kept;
    return KEEL_OK;
}

enum keel_status keel_worker_snapshot_count(struct keel_worker *worker, uint64_t *out_count,
                                            uint64_t *out_newest)
{
    struct keel_snapshot_info *list = NULL;
    uint32_t count = 0;
    if (worker->store != NULL && worker->resume != KEEL_RESUME_NONE)
        KEEL_TRY(candidates(worker, &list, &count));
    *out_newest = count > 0 ? list[0].step : 0;
    keel_free(list);
    if (count == 0 && worker->tiers.near == NULL && worker->resume == KEEL_RESUME_STEP &&
        !worker->snapshot.has_bound)
        return keel_fail(KEEL_NOT_FOUND,
                         "--resume %" PRIu64 ": no snapshot of that step is committed; keel ckpt ls %s/ckpt "
                         "shows which there are",
                         worker->resume_step, worker->directory);
    *out_count = count;
    return KEEL_OK;
}

/* What number `index` of `count` with the same slices reads of it: (0, 1) is all. */
static enum keel_status restore_one(struct keel_worker *worker, const struct keel_snapshot_info *info,
                                    uint32_t index, uint32_t count, uint64_t *out_read)
{
    char identity[KEEL_IDENTITY_BYTES];
    keel_job_identity(&worker->job, keel_data_digest(worker->data), identity);
    if (!keel_job_is_arithmetic(info->identity))
        return keel_fail(
            KEEL_MISMATCH,
            "snapshot of step %" PRIu64 " is of another version of Keel's arithmetic, which this run "
            "cannot go on from to the bit; its weights can begin one: keel ckpt export %s/ckpt, then "
            "keel ckpt import --for-training into a new --out",
            info->step, worker->directory);
    if (keel_job_is_older_class(&worker->job, keel_data_digest(worker->data), info->identity))
        return keel_fail(
            KEEL_MISMATCH,
            "snapshot of step %" PRIu64
            " was made when fewer products were of the class job.numerics = %s (not those "
            "of attention, or of convolutions), and this run cannot go on from it to the bit; its weights "
            "can "
            "begin one: keel ckpt export %s/ckpt, then keel ckpt import --for-training into a new --out",
            info->step, keel_class_name((enum keel_class)worker->job.numerics), worker->directory);
    if (strcmp(identity, info->identity) != 0)
        return keel_fail(KEEL_MISMATCH,
                         "snapshot of step %" PRIu64 " belongs to another job (model, data, seed or training "
                         "settings differ); give the job as it was, or another --out",
                         info->step);
    struct keel_snapshot *snapshot;
    KEEL_TRY(worker->tiers.near != NULL
                 ? keel_snapshot_open_here(worker->store, info->step, info->attempt, &snapshot)
                 : keel_snapshot_open(worker->store, info->step, info->attempt, &snapshot));
    enum keel_status status = keel_trainer_load(worker->trainer, snapshot, index, count, out_read);
    keel_snapshot_close(snapshot);
    return status;
}

/* Take that one; says how long it took. */
static enum keel_status take(struct keel_worker *worker, const struct keel_snapshot_info *info)
{
    char detail[256], from[128];
    uint64_t since = keel_now_ns(), read_bytes = 0;
    KEEL_TRY(restore_one(worker, info, 0, 1, &read_bytes));
    keel_worker_tiers_text(worker, from, sizeof from);
    snprintf(detail, sizeof detail, "%.3f s, %" PRIu64 " bytes read%s", (double)(keel_now_ns() - since) / 1e9,
             read_bytes, from);
    worker->has_state = true;
    worker->next_step = info->step;
    keel_worker_note(worker, "resumed", info->step, KEEL_OK, detail);
    return KEEL_OK;
}

enum keel_status keel_worker_restore(struct keel_worker *worker)
{
    struct keel_snapshot_info *list;
    uint32_t count;
    KEEL_TRY(candidates(worker, &list, &count));
    enum keel_status status = keel_fail(KEEL_NOT_FOUND, "no committed snapshot to resume from");
    for (uint32_t i = 0; i < count; i++) {
        status = take(worker, &list[i]);
        if (status == KEEL_OK)
            break;
        keel_worker_note(worker, "snapshot-refused", list[i].step, status, keel_detail());
        bool its_own = status == KEEL_CORRUPT || status == KEEL_FORGED || status == KEEL_NOT_FOUND ||
                       status == KEEL_MISMATCH || status == KEEL_IO; /* a sector that cannot be read, say */
        if (!its_own)                                                /* an older one would fare no better */
            break;
    }
    keel_free(list);
    return status == KEEL_OK ? keel_trainer_digest(worker->trainer, &worker->digest) : status;
}

void keel_worker_snapshot_bound(struct keel_worker *worker, uint64_t step)
{
    worker->snapshot.has_bound = true;
    worker->snapshot.bound = step;
}

void keel_worker_snapshot_again(struct keel_worker *worker)
{
    worker->snapshot.has_bound = false;
}

enum keel_status keel_worker_restore_slices(struct keel_worker *worker, uint64_t step, uint64_t *out_read)
{
    struct keel_snapshot_info *list = NULL;
    uint32_t count = 0;
    enum keel_status status = KEEL_OK;
    *out_read = 0;
    if (worker->store == NULL)
        return keel_fail(KEEL_NOT_FOUND, "no snapshots can be read from this node");
    KEEL_TRY(candidates(worker, &list, &count));
    status = keel_fail(KEEL_NOT_FOUND, "snapshot of step %" PRIu64 " is not here", step);
    for (uint32_t i = 0; i < count && status != KEEL_OK; i++)
        if (list[i].step == step)
            status = restore_one(worker, &list[i], 0, 1, out_read);
    keel_free(list);
    if (status != KEEL_OK)
        keel_worker_note(worker, "snapshot-refused", step, status, keel_detail());
    return status;
}

bool keel_worker_restore_share(struct keel_worker *worker, uint64_t step, uint64_t *out_read)
{
    struct keel_snapshot_info *list = NULL;
    uint32_t count = 0;
    bool read = false;
    if (worker->store == NULL || candidates(worker, &list, &count) != KEEL_OK)
        return false;
    uint32_t of;
    const uint32_t index = keel_worker_index(worker, &of);
    for (uint32_t i = 0; i < count && !read; i++)
        read = list[i].step == step && restore_one(worker, &list[i], index, of, out_read) == KEEL_OK;
    keel_free(list);
    return read;
}
