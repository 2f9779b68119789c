/* worker_guard.c - snapshot.local: from a shard in this node's directory to a snapshot that is committed on
 * all nodes, beside the steps.
 *
 * One thread at a time a worker, from the end of its save on. All ranks of the view say whether their shards
 * are whole and what they are (one all-gather), then copies go to partners and parity is made, then all say
 * whether these are there; then each node writes the manifest, the same everywhere, into its own directory;
 * then all say whether they did, and what is old goes. So no directory is common, no process commits for the
 * others, and whoever has one manifest has all summaries. Of those that go to snapshot.store a second thread
 * copies the shard there, and position 0 commits when all have.
 *
 * Every snapshot that the ranks of a view begin comes here once on each, also one that failed, since all take
 * part in what is gathered. The end of the view ends both threads: what they had not committed then stays
 * where it is, for nobody can tell whether another had; retention takes it, or the next restart. */
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* Numbers of calls: two a snapshot. */
static uint64_t call_of(uint32_t number, bool stores)
{
    return ((uint64_t)number * 2 + (stores ? 1 : 0)) % KEEL_CALLS_OF_GUARDS;
}

/* ---- who keeps what ------------------------------------------------------------------------------------ */

uint32_t keel_worker_nodes(const struct keel_worker *worker, uint32_t out[KEEL_MEMBERS_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < worker->view.member_count; i++)
        if (!worker->view.members[i].spare)
            out[count++] = worker->view.members[i].node;
    return count;
}

uint32_t keel_worker_first_of_node(const uint32_t *node, uint32_t position)
{
    uint32_t first = 0;
    while (node[first] != node[position])
        first++;
    return first;
}

void keel_worker_node_ranks(const uint32_t *node, uint32_t count, struct keel_node_ranks *out)
{
    uint16_t last[KEEL_NODES_MAX]; /* by node, plus one; 0: none yet */
    memset(last, 0, sizeof last);
    out->count = count;
    for (uint32_t p = 0; p < count; p++) {
        KEEL_ASSERT(node[p] < KEEL_NODES_MAX);
        const uint16_t before = last[node[p]];
        out->first[p] = before > 0 ? out->first[before - 1] : (uint16_t)p;
        out->next[p] = (uint16_t)count;
        if (before > 0)
            out->next[before - 1] = (uint16_t)p;
        last[node[p]] = (uint16_t)(p + 1);
    }
}

static uint32_t host_of(const struct keel_worker *worker, uint32_t node)
{
    return keel_job_host_of(&worker->job, worker->host_count, node);
}

/* The next position on another host, or, where all are on one, of another node; itself: there is none. */
static uint32_t partner_of(const struct keel_worker *worker, const uint32_t *node,
                           const struct keel_node_ranks *ranks, uint32_t p)
{
    const uint32_t count = ranks->count;
    for (uint32_t d = 1; d < count; d++)
        if (host_of(worker, node[(p + d) % count]) != host_of(worker, node[p]))
            return ranks->first[(p + d) % count];
    for (uint32_t d = 1; d < count; d++)
        if (node[(p + d) % count] != node[p])
            return ranks->first[(p + d) % count];
    return p;
}

/* ---- guarding ------------------------------------------------------------------------------------------ */

static void blame(struct keel_guard *guard, enum keel_status status)
{
    guard->at_fault = true;
    guard->status = status;
    snprintf(guard->detail, sizeof guard->detail, "%.400s", keel_detail());
}

static enum keel_status gather(struct keel_guard *guard, uint32_t number, bool *out_all_ok)
{
    KEEL_TRY(keel_file_mover_gather(&guard->mover, &guard->mine, sizeof guard->mine, guard->all,
                                    call_of(guard->number, false), number));
    *out_all_ok = true;
    for (uint32_t p = 0; p < guard->rank_count; p++)
        *out_all_ok = *out_all_ok && guard->all[p].ok;
    return KEEL_OK;
}

/* What ranks wrote of disjoint parts adds up to the state. */
static enum keel_status check_sum(const struct keel_guard *guard)
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < guard->rank_count; p++)
        bytes += guard->all[p].summary.raw_bytes;
    if (bytes == guard->state_bytes)
        return KEEL_OK;
    return keel_fail(KEEL_CORRUPT, "the shards of all ranks have %llu bytes, and the state %llu",
                     (unsigned long long)bytes, (unsigned long long)guard->state_bytes);
}

/* Copies to partners, of this rank's shard and of those that it is the partner of. */
static enum keel_status copy_to_partners(struct keel_guard *guard)
{
    struct keel_worker *worker = guard->worker;
    struct keel_node_ranks ranks;
    uint32_t count = 0;
    keel_worker_node_ranks(guard->node, guard->rank_count, &ranks);
    for (uint32_t p = 0; p < guard->rank_count; p++) {
        const uint32_t to = partner_of(worker, guard->node, &ranks, p);
        if (to == p)
            continue;
        guard->moves[count++] = (struct keel_file_move){.object = {.step = guard->step,
                                                                   .attempt = guard->attempt,
                                                                   .kind = KEEL_OBJECT_SHARD,
                                                                   .member = p},
                                                        .from = (uint16_t)p,
                                                        .to = (uint16_t)to};
    }
    KEEL_TRY(keel_file_mover_run(&guard->mover, guard->moves, count, call_of(guard->number, false)));
    for (uint32_t i = 0; i < count && guard->mine.ok; i++)
        if (guard->moves[i].to == guard->position && !guard->moves[i].arrived) {
            char why[KEEL_DETAIL_BYTES];
            snprintf(why, sizeof why, "%.300s", keel_detail());
            blame(guard, keel_fail(KEEL_IO, "node %u cannot keep the copy of rank %u's shard: %s",
                                   worker->node, guard->moves[i].from, why));
            guard->mine.ok = false;
        }
    return KEEL_OK;
}

static struct keel_commit commit_of(struct keel_guard *guard, struct keel_shard_summary *summaries,
                                    char early[KEEL_EARLY_TEXT_BYTES])
{
    struct keel_worker *worker = guard->worker;
    struct keel_commit commit = {.step = guard->step,
                                 .metadata = keel_worker_early_text(worker, &guard->early, early),
                                 .attempt = guard->attempt,
                                 .shards = summaries,
                                 .shard_count = guard->rank_count,
                                 .allow_nonfinite = worker->job.snapshot_allow_nonfinite,
                                 .created_wall_ns = guard->all[0].wall_ns};
    keel_job_identity(&worker->job, keel_data_digest(worker->data), commit.identity);
    for (uint32_t p = 0; p < guard->rank_count; p++)
        summaries[p] = guard->all[p].summary;
    return commit;
}

/* The first rank of each node writes the manifest there. */
static enum keel_status commit_here(struct keel_guard *guard)
{
    char early[KEEL_EARLY_TEXT_BYTES];
    struct keel_commit what = commit_of(guard, guard->summaries, early);
    what.elsewhere = true;
    if (keel_worker_first_of_node(guard->node, guard->position) != guard->position)
        return KEEL_OK;
    KEEL_TRY(keel_store_commit(guard->worker->store, &what));
    guard->mine.has_manifest = 1;
    return KEEL_OK;
}

/* One node's manifest is enough: where a disk refuses it, the other nodes have it. Where all do, nothing is
 * committed, and whose rank it is says why. */
static enum keel_status commit(struct keel_guard *guard)
{
    struct keel_worker *worker = guard->worker;
    const struct keel_retention retention = keel_job_retention(&worker->job);
    char why[KEEL_DETAIL_BYTES] = "";
    bool all_ok;
    const enum keel_status status = commit_here(guard);
    if (status != KEEL_OK)
        snprintf(why, sizeof why, "%.400s", keel_detail());
    KEEL_TRY(gather(guard, 3, &all_ok));
    for (uint32_t p = 0; p < guard->rank_count; p++)
        guard->committed = guard->committed || guard->all[p].has_manifest != 0;
    if (status != KEEL_OK && !guard->committed)
        blame(guard, keel_fail(status, "%s", why));
    else if (status != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "the manifest of step %llu is not in this node's directory: %s",
                 (unsigned long long)guard->step, why);
    else if (guard->mine.has_manifest != 0 && keel_store_retain(worker->store, &retention, NULL) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "older snapshots stay in this node's directory: %s", keel_detail());
    return KEEL_OK;
}

static void say_shard(const struct keel_guard *guard)
{
    struct keel_link_message message = {
        .kind = KEEL_LINK_SHARD, .value = guard->step, .attempt = guard->attempt};
    message.as.summary = guard->mine.summary;
    keel_inbox_say(&guard->worker->inbox, &message);
}

/* OK: it is committed, or all know that it is not to be. */
static enum keel_status protect(struct keel_guard *guard)
{
    struct keel_worker *worker = guard->worker;
    bool all_ok;
    if (guard->mine.ok) {
        enum keel_status status =
            keel_shard_check(worker->store, guard->step, guard->attempt, &guard->mine.summary,
                             worker->job.snapshot_allow_nonfinite);
        if (status != KEEL_OK)
            blame(guard, status);
        guard->mine.ok = status == KEEL_OK;
    }
    guard->mine.wall_ns = keel_wall_ns();
    KEEL_TRY(gather(guard, 0, &all_ok));
    if (all_ok && check_sum(guard) != KEEL_OK) {
        blame(guard, KEEL_CORRUPT);
        return KEEL_OK;
    }
    if (all_ok && worker->job.snapshot_partner) {
        KEEL_TRY(copy_to_partners(guard));
        KEEL_TRY(gather(guard, 1, &all_ok));
    }
    if (all_ok && worker->job.snapshot_erasure[0] != '\0') {
        KEEL_TRY(keel_worker_make_parity(guard, call_of(guard->number, false)));
        KEEL_TRY(gather(guard, 2, &all_ok));
    }
    if (!all_ok)
        return KEEL_OK;
    guard->stores = keel_job_stores(&worker->job, guard->step);
    for (uint32_t p = 0; p < guard->rank_count; p++)
        guard->stores = guard->stores && !guard->all[p].store_busy;
    KEEL_TRY(commit(guard));
    if (guard->committed)
        say_shard(guard);
    return KEEL_OK;
}

static void *guard_thread(void *argument)
{
    struct keel_guard *guard = argument;
    guard->given_up = protect(guard);
    if (guard->given_up != KEEL_OK) {
        keel_log(KEEL_LOG_INFO, "the snapshot of step %llu is given up: %s", (unsigned long long)guard->step,
                 keel_detail());
        snprintf(guard->detail, sizeof guard->detail, "%.400s", keel_detail());
    } else if (!guard->committed && /* nobody commits it */
               keel_save_discard(guard->worker->store, guard->step, guard->attempt, guard->position) !=
                   KEEL_OK)
        keel_log(KEEL_LOG_WARN, "a failed snapshot stays until the next one: %s", keel_detail());
    atomic_store(&guard->ended, true);
    return NULL;
}

/* ---- the store ----------------------------------------------------------------------------------------- */

/* While it lasts retention may take the file, and not what is open. */
static enum keel_status copy_to_store(struct keel_guard *guard)
{
    if (guard->source == NULL)
        return keel_fail(guard->status, "%s", guard->detail);
    return keel_tier_copy_source(guard->source, guard->worker->tiers.far);
}

/* Committed from the shards that lie there, which are looked at once more. */
static enum keel_status commit_in_store(struct keel_guard *guard)
{
    struct keel_worker *worker = guard->worker;
    const struct keel_retention retention = keel_job_retention(&worker->job);
    char early[KEEL_EARLY_TEXT_BYTES];
    const struct keel_commit what = commit_of(guard, guard->summaries, early);
    KEEL_TRY(keel_store_commit(worker->tiers.shared, &what));
    if (keel_store_retain(worker->tiers.shared, &retention, NULL) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "older snapshots stay in the store: %s", keel_detail());
    return KEEL_OK;
}

static void *store_thread(void *argument)
{
    struct keel_guard *guard = argument;
    const uint64_t since = keel_now_ns();
    bool all = true;
    if (guard->worker->job.snapshot_background)
        keel_thread_to_background();
    enum keel_status status = copy_to_store(guard);
    if (status != KEEL_OK)
        blame(guard, status);
    guard->said = status == KEEL_OK;
    status = keel_file_mover_gather(&guard->mover, &guard->said, sizeof guard->said, guard->heard,
                                    call_of(guard->number, true), 0);
    for (uint32_t p = 0; p < guard->rank_count; p++)
        all = all && guard->heard[p];
    if (status == KEEL_OK && all && guard->position == 0) {
        status = commit_in_store(guard);
        if (status != KEEL_OK)
            blame(guard, status);
        guard->committed = status == KEEL_OK;
    }
    guard->spent_ns = keel_now_ns() - since;
    atomic_store(&guard->ended, true);
    return NULL;
}

/* From what the guard of the snapshot has gathered. */
static void begin_store(struct keel_worker *worker)
{
    const struct keel_guard *from = &worker->tiers.guard;
    struct keel_guard *to = &worker->tiers.storing;
    to->number = from->number;
    to->step = from->step;
    to->attempt = from->attempt;
    to->early = from->early;
    to->position = from->position;
    to->rank_count = from->rank_count;
    memcpy(to->all, from->all, from->rank_count * sizeof to->all[0]);
    to->at_fault = to->committed = false;
    const struct keel_object object = {
        .step = to->step, .attempt = to->attempt, .kind = KEEL_OBJECT_SHARD, .member = to->position};
    const enum keel_status opened = keel_tier_open(worker->tiers.near, &object, &to->source);
    if (opened != KEEL_OK) { /* said when all have come to it */
        to->source = NULL;
        to->status = opened;
        snprintf(to->detail, sizeof to->detail, "%.400s", keel_detail());
    }
    atomic_store(&to->ended, false);
    to->mover.group = worker->group;
    to->running = true;
    to->inline_run = keel_thread_create(&to->thread, "keel-store", store_thread, to) != KEEL_OK;
    if (to->inline_run) /* the others wait for what this rank says */
        store_thread(to);
}

static void end_store(struct keel_worker *worker)
{
    struct keel_guard *storing = &worker->tiers.storing;
    char detail[KEEL_DETAIL_BYTES];
    if (!storing->inline_run)
        keel_thread_join(&storing->thread);
    storing->inline_run = storing->running = false;
    keel_tier_close_source(storing->source);
    storing->source = NULL;
    if (storing->at_fault)
        keel_worker_note(worker, "store-failed", storing->step, storing->status, storing->detail);
    if (!storing->committed)
        return;
    snprintf(detail, sizeof detail, "copied to %.300s in %.3f s", worker->job.snapshot_store,
             (double)storing->spent_ns / 1e9);
    keel_worker_note(worker, "stored", storing->step, KEEL_OK, detail);
}

/* ---- the worker's side --------------------------------------------------------------------------------- */

void keel_worker_guard_begin(struct keel_worker *worker, const struct keel_shard_summary *summary)
{
    const struct keel_worker_snapshot *snapshot = &worker->snapshot;
    struct keel_guard *guard = &worker->tiers.guard;
    KEEL_ASSERT(!guard->running);
    if (snapshot->step == worker->job.steps) /* the end goes to the store whatever is on its way there */
        keel_worker_guard_drain(worker);
    guard->number = worker->tiers.begun;
    guard->step = snapshot->step;
    guard->attempt = snapshot->attempt;
    guard->early = snapshot->early;
    guard->position = worker->position;
    guard->rank_count = keel_worker_nodes(worker, guard->node);
    guard->state_bytes = keel_trainer_state_bytes(worker->trainer);
    guard->mine =
        (struct keel_guard_record){.ok = summary != NULL, .store_busy = worker->tiers.storing.running};
    if (summary != NULL)
        guard->mine.summary = *summary;
    guard->at_fault = guard->committed = guard->stores = false;
    guard->status = guard->given_up = KEEL_OK;
    atomic_store(&guard->ended, false);
    guard->mover.group = worker->group;
    guard->running = true;
    if (keel_thread_create(&guard->thread, "keel-guard", guard_thread, guard) == KEEL_OK)
        return;
    guard_thread(guard); /* without a thread the steps wait for it */
    guard->inline_run = true;
}

static void end_guard(struct keel_worker *worker)
{
    struct keel_guard *guard = &worker->tiers.guard;
    if (!guard->inline_run)
        keel_thread_join(&guard->thread);
    guard->inline_run = guard->running = false;
    if (!guard->committed || (worker->tiers.has_committed && worker->tiers.committed >= guard->step))
        return;
    worker->tiers.has_committed = true;
    worker->tiers.committed = guard->step;
}

static void store_next(struct keel_worker *worker)
{
    const struct keel_guard *guard = &worker->tiers.guard;
    if (!guard->committed || !keel_job_stores(&worker->job, guard->step))
        return;
    if (guard->stores)
        begin_store(worker);
    else if (worker->position == 0)
        keel_worker_note(worker, "store-skipped", guard->step, KEEL_BUSY,
                         "the one before is still being copied to snapshot.store; store less often");
}

bool keel_worker_guard_poll(struct keel_worker *worker, bool wait)
{
    struct keel_guard *guard = &worker->tiers.guard, *storing = &worker->tiers.storing;
    if (storing->running && atomic_load(&storing->ended))
        end_store(worker);
    if (!guard->running || (!wait && !atomic_load(&guard->ended)))
        return false;
    end_guard(worker);
    store_next(worker);
    return true;
}

/* What ends a view is met by the steps, too. */
enum keel_status keel_worker_guard_broken(const struct keel_worker *worker)
{
    const struct keel_guard *guard = &worker->tiers.guard;
    const enum keel_status status = guard->running ? KEEL_OK : guard->given_up;
    if (status == KEEL_OK || status == KEEL_REVOKED || status == KEEL_PEER_LOST || status == KEEL_TIMEOUT)
        return KEEL_OK;
    return keel_fail(status, "the snapshot of step %llu was given up here, and the others wait: %.400s",
                     (unsigned long long)guard->step, guard->detail);
}

void keel_worker_guard_drain(struct keel_worker *worker)
{
    if (worker->tiers.storing.running)
        end_store(worker);
}

void keel_worker_guard_stop(struct keel_worker *worker)
{
    struct keel_guard *guard = &worker->tiers.guard;
    if (!guard->running && !worker->tiers.storing.running)
        return;
    if (worker->group != NULL)
        keel_group_revoke(worker->group);
    if (guard->running)
        end_guard(worker);
    if (worker->tiers.storing.running)
        end_store(worker);
}

/* ---- tiers --------------------------------------------------------------------------------------------- */

enum keel_status keel_worker_tiers_open(struct keel_worker *worker, const char *shared_root)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    char name[KEEL_TIER_NAME_BYTES];
    snprintf(name, sizeof name, "node %u's directory", worker->node);
    KEEL_TRY(keel_tier_directory_open(worker->store, KEEL_LATENCY_LOCAL, name, &tiers->near));
    keel_inbox_end_together(&worker->inbox);
    tiers->guard.worker = tiers->storing.worker = worker;
    tiers->guard.mover.tier = tiers->storing.mover.tier = tiers->restoring.tier = tiers->near;
    KEEL_TRY(keel_alloc(KEEL_MEMBERS_MAX, sizeof *tiers->guard.moves, &tiers->guard.moves));
    if (shared_root == NULL)
        return KEEL_OK;
    const bool writes = worker->job.snapshot_store[0] != '\0';
    const struct keel_store_config config = {.root = shared_root,
                                             .run = worker->job.name,
                                             .create = writes,
                                             .read_only = !writes,
                                             .key_file = keel_job_key_file(&worker->job)};
    enum keel_status status = keel_store_open(&config, &tiers->shared);
    if (status == KEEL_NOT_FOUND && !writes)
        return KEEL_OK;
    KEEL_TRY(status);
    return keel_tier_directory_open(tiers->shared, KEEL_LATENCY_SHARED, "the store", &tiers->far);
}

void keel_worker_tiers_close(struct keel_worker *worker)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    keel_tier_end(tiers->far);
    keel_tier_end(tiers->near);
    keel_store_close(tiers->shared);
    keel_file_mover_fini(&tiers->guard.mover);
    keel_file_mover_fini(&tiers->storing.mover);
    keel_file_mover_fini(&tiers->restoring);
    keel_free(tiers->guard.moves);
    keel_worker_forget_offers(worker);
}
