/* worker_sync.c - after a view change: open the group, agree on the newest state, heal the ranks that lack
 * it.
 *
 * Every rank says what it has (one all-gather); all draw the same conclusion from the same records, so no
 * coordinator is needed. Where somebody is alive with state, the furthest ones heal the rest: nobody goes
 * back a step. Where nobody has state, every rank reads its share of the newest snapshot and gives it to who
 * needs it; where a share cannot be read, position 0 reads the newest snapshot that is whole and heals the
 * others. Without a snapshot everybody initializes from the seed. What goes from rank to rank are moves
 * (worker_moves.c). */
#include "plan_table.h"
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    SEQUENCE_FIRST = 1,
    SEQUENCE_SECOND = 2,
    SEQUENCE_SHARES = 3,
    SEQUENCE_LOST = 4,
    SEQUENCE_SHARES_AGAIN = 5
};

/* ---- the view as this worker sees it ------------------------------------------------------------------- */

static bool is_me(const struct keel_worker *worker, const struct keel_member *member)
{
    return member->node == worker->node && member->local == worker->local &&
           member->incarnation == worker->incarnation;
}

static void place_in_view(struct keel_worker *worker)
{
    const struct keel_view *view = &worker->view;
    worker->active = false;
    worker->rank_count = 0;
    for (uint32_t i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        if (member->spare)
            continue;
        if (is_me(worker, member)) {
            worker->active = true;
            worker->rank = member->rank;
            worker->position = worker->rank_count;
        }
        worker->position_rank[worker->rank_count++] = member->rank;
    }
    for (uint32_t s = 0; s < view->shard_count; s++) /* active members come first */
        worker->shard_position[s] = (uint16_t)keel_view_find_rank(view, view->shard_rank[s]);
}

/* Runs on the transport's progress thread: say at once who is gone. */
static void peer_lost(void *context, uint32_t position)
{
    struct keel_worker *worker = context;
    struct keel_link_message message = {.kind = KEEL_LINK_ACCUSE,
                                        .rank = worker->position_rank[position],
                                        .cause = KEEL_CAUSE_CONNECTION,
                                        .value = worker->view.epoch};
    keel_inbox_say(&worker->inbox, &message);
}

/* Positions are the active members, in their order; second holders are on other hosts where they can be. */
struct keel_owners_map keel_worker_owners(const struct keel_worker *worker, uint32_t nodes[KEEL_MEMBERS_MAX])
{
    const struct keel_parallel *asked = &worker->job.parallel;
    uint32_t count = 0, position = 0;
    for (uint32_t i = 0; i < worker->view.member_count; i++)
        if (!worker->view.members[i].spare && worker->axes.map.place[position++] == worker->axes.place)
            nodes[count++] = keel_job_host_of(&worker->job, worker->host_count, worker->view.members[i].node);
    return (struct keel_owners_map){.count = count,
                                    .group = keel_zero_group(count, asked->zero_group),
                                    .holders = asked->holders,
                                    .node = nodes};
}

static enum keel_status open_group(struct keel_worker *worker)
{
    struct keel_address *addresses;
    uint32_t count = 0;
    KEEL_TRY(keel_alloc(worker->rank_count, sizeof *addresses, &addresses));
    for (uint32_t i = 0; i < worker->view.member_count; i++)
        if (!worker->view.members[i].spare)
            addresses[count++] = worker->view.members[i].data;
    struct keel_group_config config = {.epoch = worker->view.epoch,
                                       .rank = worker->position,
                                       .rank_count = worker->rank_count,
                                       .addresses = addresses,
                                       .shard_count = worker->job.shards,
                                       .shard_rank = worker->shard_position,
                                       .silence_ns = worker->inbox.times.silence_ns,
                                       .costs = worker->job.network_costs[0] != '\0' ? &worker->costs : NULL};
    const enum keel_status status = keel_group_open(worker->endpoint, &config, &worker->group);
    keel_free(addresses);
    KEEL_TRY(status);
    keel_group_on_lost(worker->group, peer_lost, worker);
    keel_inbox_guard(&worker->inbox, worker->group, worker->view.epoch);
    return KEEL_OK;
}

enum keel_status keel_worker_leave_view(struct keel_worker *worker)
{
    keel_inbox_guard(&worker->inbox, NULL, worker->view.epoch);
    keel_worker_guard_stop(worker);
    keel_worker_close_axes(worker);
    keel_trainer_gather_over(worker->trainer, NULL);
    if (worker->group != NULL)
        keel_group_close(worker->group);
    worker->group = NULL;
    keel_free(worker->chunks);
    worker->chunks = NULL;
    worker->move_round = 0;
    return keel_trainer_leave_group(worker->trainer);
}

/* ---- agreeing ------------------------------------------------------------------------------------------ */

/* The records of all, without what only owners say where nobody owns. */
static enum keel_status gather(struct keel_worker *worker, uint64_t sequence)
{
    const struct keel_sync_record *mine = &worker->sync_mine;
    const size_t bytes =
        worker->job.parallel.zero > KEEL_ZERO_NONE ? sizeof *mine : offsetof(struct keel_sync_record, owned);
    uint8_t *all = (uint8_t *)worker->sync_all;
    if (worker->group == NULL) {
        worker->sync_all[0] = *mine;
        return KEEL_OK;
    }
    const void *parts[] = {mine};
    const struct keel_collective gather = {.kind = KEEL_ALL_GATHER,
                                           .sequence = sequence,
                                           .element = KEEL_ELEMENT_U8,
                                           .count = bytes,
                                           .parts = parts,
                                           .part_count = 1,
                                           .result = all};
    KEEL_TRY(keel_group_run(worker->group, &gather, keel_deadline_after_ns(worker->stall_ns)));
    for (uint32_t p = worker->rank_count; bytes < sizeof *mine && p-- > 0;) { /* each to its place */
        memmove(&worker->sync_all[p], all + p * bytes, bytes);
        memset((uint8_t *)&worker->sync_all[p] + bytes, 0, sizeof *mine - bytes);
    }
    return KEEL_OK;
}

/* Fill worker->sync_all. has_share: this rank has read its share of the snapshot that all begin from. */
static enum keel_status exchange(struct keel_worker *worker, uint64_t sequence, bool has_share)
{
    struct keel_sync_record *mine = &worker->sync_mine;
    *mine = (struct keel_sync_record){.has_state = worker->has_state,
                                      .next_step = worker->next_step,
                                      .digest = worker->digest,
                                      .digest_of = worker->digest_of,
                                      .has_share = has_share,
                                      .probe = keel_trainer_probe(worker->trainer),
                                      .tensor = (uint8_t)worker->axes.tensor,
                                      .place = (uint8_t)worker->axes.place,
                                      .warm = (uint8_t)worker->axes.warm,
                                      .is_ready = keel_trainer_is_ready(worker->trainer, worker->next_step),
                                      .has_unsaid =
                                          worker->unsaid_step > 0 && worker->unsaid_step == worker->next_step,
                                      .did_step = worker->loss_step,
                                      .healed = worker->healed,
                                      .heal_ns = worker->heal_ns};
    keel_trainer_digest_parts(worker->trainer, &mine->part, &mine->shared);
    if (worker->job.parallel.zero > KEEL_ZERO_NONE)
        keel_trainer_owns(worker->trainer, mine->owned);
    snprintf(mine->board, sizeof mine->board, "%.24s", keel_device_info(worker->device)->selector);
    if (!worker->has_state && worker->position == 0) /* who would restore it */
        KEEL_TRY(keel_worker_snapshot_count(worker, &mine->snapshot_count, &mine->snapshot_step));
    KEEL_TRY(gather(worker, sequence));
    return worker->job.parallel.zero > KEEL_ZERO_NONE ? keel_worker_gather_shares(worker, sequence) : KEEL_OK;
}

/* The lowest position with the most steps, or rank_count when nobody has state. */
static uint32_t furthest(const struct keel_worker *worker)
{
    const struct keel_sync_record *all = worker->sync_all;
    uint32_t best = worker->rank_count;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        if (all[p].has_state && (best == worker->rank_count || all[p].next_step > all[best].next_step))
            best = p;
    return best;
}

static enum keel_status initialize(struct keel_worker *worker)
{
    KEEL_TRY(keel_trainer_initialize(worker->trainer));
    KEEL_TRY(keel_trainer_digest(worker->trainer, &worker->digest));
    worker->has_state = true;
    worker->next_step = 0;
    return KEEL_OK;
}

/* ---- healing ------------------------------------------------------------------------------------------- */

void keel_worker_note_healed(struct keel_worker *worker, struct keel_moved moved)
{
    char detail[96];
    worker->healed = moved;
    if (moved.bytes == 0)
        return;
    snprintf(detail, sizeof detail, "healed: %llu bytes from %u ranks to %u", (unsigned long long)moved.bytes,
             moved.senders, moved.receivers);
    if (worker->position == 0)
        keel_worker_note(worker, "healed", worker->next_step, KEEL_OK, detail);
    keel_log(KEEL_LOG_INFO, "%s", detail);
}

uint32_t keel_worker_column(const struct keel_worker *worker, uint32_t place, uint16_t out[KEEL_MEMBERS_MAX])
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        if (worker->axes.map.place[p] == place)
            out[count++] = (uint16_t)p;
    return count;
}

uint32_t keel_worker_index(const struct keel_worker *worker, uint32_t *out_count)
{
    uint16_t column[KEEL_MEMBERS_MAX];
    uint32_t index = 0;
    *out_count = keel_worker_column(worker, worker->axes.place, column);
    while (column[index] != worker->position)
        index++;
    return index;
}

/* Of groups, in which those with one number have the same shares. */
static enum keel_status list_groups(const struct keel_worker *worker, const struct keel_owners_map *owners,
                                    const uint16_t *column, uint32_t parts, struct keel_holdings *needs)
{
    uint32_t seats[KEEL_MEMBERS_MAX];
    for (uint32_t number = 0; number < owners->group; number++) {
        const struct keel_share_run run = {.first = (uint16_t)number,
                                           .stride = (uint16_t)owners->group,
                                           .count = (uint16_t)(owners->count / owners->group)};
        for (uint32_t i = 0; i < run.count; i++)
            seats[i] = column[number + i * owners->group];
        KEEL_TRY(keel_worker_put_shares(worker, &run, owners->count, parts, seats, run.count, needs));
    }
    return KEEL_OK;
}

/* Of an owner and a second holder. */
static enum keel_status list_pairs(const struct keel_worker *worker, const struct keel_owners_map *owners,
                                   const uint16_t *column, uint32_t parts, struct keel_holdings *needs)
{
    uint32_t second[KEEL_MEMBERS_MAX], seats[2];
    KEEL_TRY(keel_second_holders(owners, second));
    for (uint32_t owner = 0; owner < owners->count; owner++) {
        const struct keel_share_run run = {.first = (uint16_t)owner, .stride = 1, .count = 1};
        const uint32_t holders = second[owner] != KEEL_SEAT_NONE ? 2 : 1;
        seats[0] = column[owner];
        seats[1] = holders > 1 ? column[second[owner]] : 0;
        KEEL_TRY(keel_worker_put_shares(worker, &run, owners->count, parts, seats, holders, needs));
    }
    return KEEL_OK;
}

/* All of it, or with parallel.zero the moments of what a rank owns or has copies of, and all weights; of 3
 * those of that alone. */
enum keel_status keel_worker_list_needs(const struct keel_worker *worker, struct keel_holdings *needs)
{
    const bool whole = worker->job.parallel.zero <= KEEL_ZERO_NONE, gathers = keel_worker_gathers(worker);
    const uint32_t share = gathers ? KEEL_PARTS_WEIGHTS | KEEL_PARTS_MOMENTS : KEEL_PARTS_MOMENTS;
    const uint32_t all = whole ? KEEL_PARTS_WEIGHTS | KEEL_PARTS_MOMENTS : KEEL_PARTS_WEIGHTS;
    uint16_t column[KEEL_MEMBERS_MAX];
    uint32_t node[KEEL_MEMBERS_MAX], seats[KEEL_MEMBERS_MAX];
    const uint32_t count = keel_worker_column(worker, worker->axes.place, column);
    const struct keel_owners_map owners = keel_worker_owners(worker, node);
    for (uint32_t i = 0; i < count; i++)
        seats[i] = column[i];
    if (!gathers)
        KEEL_TRY(keel_worker_put_all(worker, all, seats, count, needs));
    if (whole)
        return KEEL_OK;
    return owners.group < count ? list_groups(worker, &owners, column, share, needs)
                                : list_pairs(worker, &owners, column, share, needs);
}

bool keel_worker_has_newest(const struct keel_worker *worker, uint32_t p, uint64_t step)
{
    return worker->sync_all[p].has_state && worker->sync_all[p].next_step == step;
}

/* Half a state is no state, until the digest says otherwise. */
static enum keel_status forget_state(struct keel_worker *worker)
{
    if (worker->snapshot.save != NULL && /* a capture may still read what is about to be replaced */
        keel_save_wait_captured(worker->snapshot.save, keel_deadline_after_ns(worker->stall_ns)) ==
            KEEL_TIMEOUT)
        return KEEL_TIMEOUT;
    worker->has_state = false;
    keel_trainer_drop(worker->trainer);
    return KEEL_OK;
}

static enum keel_status check_healed(struct keel_worker *worker, const struct keel_moves *moves,
                                     uint32_t best)
{
    const struct keel_sync_record *record = &worker->sync_all[best];
    bool gave[KEEL_MEMBERS_MAX];
    char from[64] = "";
    size_t used = 0;
    memset(gave, 0, worker->rank_count * sizeof gave[0]);
    for (size_t i = 0; i < moves->move_count; i++)
        gave[moves->moves[i].from] = true; /* to this rank: who lacks the state gives nothing */
    for (uint32_t p = 0; p < worker->rank_count && used < sizeof from - 8; p++)
        if (gave[p])
            used += (size_t)snprintf(from + used, sizeof from - used, " %u", worker->position_rank[p]);
    KEEL_TRY(keel_trainer_digest(worker->trainer, &worker->digest));
    if (worker->digest != record->digest)
        return keel_fail(KEEL_MISMATCH, "healing from ranks%s: digest %016llx, wanted %016llx", from,
                         (unsigned long long)worker->digest, (unsigned long long)record->digest);
    worker->has_state = true;
    worker->next_step = record->next_step;
    keel_log(KEEL_LOG_INFO, "healed from ranks%s at step %llu", from, (unsigned long long)worker->next_step);
    return KEEL_OK;
}

enum keel_status keel_worker_find_healing(const struct keel_worker *worker, uint64_t step,
                                          struct keel_moves *out)
{
    struct keel_holders holders = {.have = {.at = NULL}};
    uint16_t column[KEEL_MEMBERS_MAX];
    uint32_t seats[KEEL_MEMBERS_MAX], have = 0;
    const uint32_t count = keel_worker_column(worker, worker->axes.place, column);
    for (uint32_t i = 0; i < count; i++)
        if (keel_worker_has_newest(worker, column[i], step))
            seats[have++] = column[i];
    enum keel_status status = keel_worker_list_needs(worker, &holders.need);
    if (status == KEEL_OK)
        status =
            keel_worker_put_all(worker, KEEL_PARTS_WEIGHTS | KEEL_PARTS_MOMENTS, seats, have, &holders.have);
    return keel_worker_find_moves(worker, status, &holders, out);
}

/* Everybody behind the furthest step is healed by those that have it, evenly. */
static enum keel_status heal(struct keel_worker *worker, uint32_t best)
{
    struct keel_moves moves = {.moves = NULL};
    const uint64_t step = worker->sync_all[best].next_step;
    const bool behind = !keel_worker_has_newest(worker, worker->position, step);
    enum keel_status status = keel_worker_find_healing(worker, step, &moves);
    if (status == KEEL_OK && behind)
        status = forget_state(worker);
    if (status == KEEL_OK)
        status = keel_worker_make_moves(worker, &moves);
    if (status == KEEL_OK && behind)
        status = check_healed(worker, &moves, best);
    if (status == KEEL_OK)
        keel_worker_note_healed(worker, keel_worker_count_moves(&moves));
    keel_moves_fini(&moves);
    return status;
}

/* ---- a snapshot, read by all --------------------------------------------------------------------------- */

enum keel_status keel_worker_find_shares(const struct keel_worker *worker, struct keel_moves *out)
{
    struct keel_holders holders = {.have = {.at = NULL}};
    uint16_t column[KEEL_MEMBERS_MAX];
    const uint32_t count = keel_worker_column(worker, worker->axes.place, column);
    enum keel_status status = keel_worker_list_needs(worker, &holders.need);
    for (uint32_t i = 0; i < count && status == KEEL_OK; i++)
        status = keel_worker_put_read(worker, i, count, column[i], &holders.have);
    return keel_worker_find_moves(worker, status, &holders, out);
}

enum keel_status keel_worker_spread_shares(struct keel_worker *worker)
{
    struct keel_moves moves = {.moves = NULL};
    enum keel_status status = keel_worker_find_shares(worker, &moves);
    if (status == KEEL_OK)
        status = keel_worker_make_moves(worker, &moves);
    keel_moves_fini(&moves);
    return status;
}

void keel_worker_note_resumed(struct keel_worker *worker, uint64_t step, uint64_t since, uint64_t read_bytes)
{
    char detail[256], from[128];
    keel_worker_tiers_text(worker, from, sizeof from);
    snprintf(detail, sizeof detail, "%.3f s, %llu bytes read by rank %u of %u%s",
             (double)(keel_now_ns() - since) / 1e9, (unsigned long long)read_bytes, worker->rank,
             worker->rank_count, from);
    if (worker->position == 0)
        keel_worker_note(worker, "resumed", step, KEEL_OK, detail);
    else
        keel_log(KEEL_LOG_INFO, "resumed: %s", detail);
}

static enum keel_status read_share(struct keel_worker *worker, uint64_t sequence, uint64_t step,
                                   uint64_t *read_bytes, bool *out_all)
{
    *out_all = keel_worker_restore_share(worker, step, read_bytes);
    KEEL_TRY(exchange(worker, sequence, *out_all));
    for (uint32_t p = 0; p < worker->rank_count; p++)
        *out_all = *out_all && worker->sync_all[p].has_share;
    return KEEL_OK;
}

static enum keel_status read_shares(struct keel_worker *worker)
{
    const uint64_t step = worker->sync_all[0].snapshot_step, since = keel_now_ns();
    uint64_t read_bytes = 0;
    bool all;
    KEEL_TRY(read_share(worker, SEQUENCE_SHARES, step, &read_bytes, &all));
    if (!all && worker->tiers.near != NULL) {
        KEEL_TRY(keel_worker_tiers_fetch_all(worker));
        KEEL_TRY(read_share(worker, SEQUENCE_SHARES_AGAIN, step, &read_bytes, &all));
    }
    if (!all)
        return KEEL_OK;
    KEEL_TRY(keel_worker_spread_shares(worker));
    KEEL_TRY(keel_trainer_digest(worker->trainer, &worker->digest));
    worker->has_state = true;
    worker->next_step = step;
    keel_worker_note_resumed(worker, step, since, read_bytes);
    return KEEL_OK;
}

/* A snapshot, if there is one: its shares by all, or the whole by position 0, which heals the others. */
static enum keel_status restore(struct keel_worker *worker)
{
    if (worker->rank_count > 1)
        KEEL_TRY(read_shares(worker));
    const bool reads = worker->position == 0 || worker->job.parallel.zero > KEEL_ZERO_NONE; /* each its own */
    if (worker->rank_count == 1)
        KEEL_TRY(keel_worker_tiers_fetch_all(worker));
    return worker->has_state || !reads ? KEEL_OK : keel_worker_restore(worker);
}

/* A board whose bits differ is left out of the run: the result of a shard would depend on the rank that
 * carries it. Right are the bits of the ranks that hold the state; at the beginning of a run those of the
 * majority, where the host reference outvotes all boards; among equals those of the lowest position. */
static uint32_t right_probe(const struct keel_worker *worker)
{
    const struct keel_sync_record *all = worker->sync_all;
    const uint32_t warm = all[worker->position].warm; /* others are no measure: they warmed other slices */
    uint32_t right = furthest(worker), most = 0;
    if (right < worker->rank_count && all[right].warm == warm)
        return right;
    right = worker->position;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        uint32_t votes = 0;
        if (all[p].warm != warm || (most > 0 && all[p].probe == all[right].probe))
            continue; /* most are like one that was counted: thousands of ranks are looked at once or twice */
        for (uint32_t i = 0; i < worker->rank_count; i++)
            if (all[i].probe == all[p].probe && all[i].warm == warm)
                votes += strcmp(all[i].board, "host") == 0 ? worker->rank_count : 1;
        right = votes > most ? p : right;
        most = votes > most ? votes : most;
    }
    return right;
}

static enum keel_status check_probe(const struct keel_worker *worker)
{
    const uint32_t right = right_probe(worker);
    const struct keel_sync_record *mine = &worker->sync_all[worker->position],
                                  *theirs = &worker->sync_all[right];
    if (mine->probe == theirs->probe)
        return KEEL_OK;
    return keel_fail(
        KEEL_MISMATCH,
        "board %s computes other bits than board %s of rank %u (weights %016llx and %016llx after the same "
        "update), and is left out of this run: give all ranks boards that agree (with job.numerics = native "
        "boards of one kind); keel board check --level 4 says which is wrong",
        mine->board, theirs->board, worker->position_rank[right], (unsigned long long)mine->probe,
        (unsigned long long)theirs->probe);
}

/* Who begins from one snapshot has one state. */
static enum keel_status check_same(const struct keel_worker *worker)
{
    const uint32_t best = furthest(worker);
    KEEL_ASSERT(best < worker->rank_count); /* who restored, or initialized */
    const struct keel_sync_record *all = worker->sync_all, *first = &all[best];
    for (uint32_t p = 0; p < worker->rank_count; p++)
        if (all[p].has_state && all[p].next_step == first->next_step && all[p].digest != first->digest)
            return keel_fail(
                KEEL_MISMATCH,
                "rank %u has weights %016llx of step %llu, and rank %u has %016llx; give --resume and an "
                "earlier step",
                worker->position_rank[p], (unsigned long long)all[p].digest,
                (unsigned long long)first->next_step, worker->position_rank[best],
                (unsigned long long)first->digest);
    return KEEL_OK;
}

enum keel_status keel_worker_restore_or_begin(struct keel_worker *worker)
{
    if (!worker->tiers.chosen
             .used) /* else one was looked for as it was found that there is no way but back */
        KEEL_TRY(keel_worker_tiers_choose(worker));
    return worker->sync_all[0].snapshot_count == 0 ? initialize(worker) : restore(worker);
}

enum keel_status keel_worker_exchange_lost(struct keel_worker *worker)
{
    KEEL_TRY(exchange(worker, SEQUENCE_LOST, false));
    return keel_worker_tiers_choose(worker);
}

enum keel_status keel_worker_exchange_whole(struct keel_worker *worker)
{
    return exchange(worker, SEQUENCE_SECOND, false);
}

enum keel_status keel_worker_exchange_round(struct keel_worker *worker, uint32_t round, bool has_share)
{
    return exchange(worker, KEEL_SEQUENCE_ROUND + round, has_share);
}

enum keel_status keel_worker_exchange_second(struct keel_worker *worker)
{
    KEEL_TRY(exchange(worker, SEQUENCE_SECOND, false));
    if (!keel_worker_gathers(worker))
        return check_same(worker);
    worker->digest = 0; /* of the model: that of each owner's pieces */
    for (uint32_t p = 0; p < worker->rank_count; p++)
        worker->digest += worker->sync_all[p].part;
    worker->digest_of = worker->next_step + 1;
    return KEEL_OK;
}

/* What others may be healed from is what it was. Of pieces records say it (step_records.c). */
static enum keel_status check_own(struct keel_worker *worker)
{
    uint64_t before, shared, now;
    char evidence[96];
    if (!worker->has_state || worker->job.parallel.zero > KEEL_ZERO_NONE)
        return KEEL_OK;
    keel_trainer_digest_parts(worker->trainer, &before, &shared);
    KEEL_TRY(keel_trainer_digest(worker->trainer, &now));
    if (now == before)
        return KEEL_OK;
    snprintf(evidence, sizeof evidence, "rank %u has weights %016llx behind step %llu, which left %016llx",
             worker->rank, (unsigned long long)now, (unsigned long long)worker->next_step,
             (unsigned long long)before);
    const struct keel_sdc_check_config config = keel_worker_screen(worker);
    return keel_sdc_check_outvoted(&config, worker->next_step, evidence);
}

/* `since`: when this worker turned to the view; connecting to its ranks counts as agreeing. */
static enum keel_status agree(struct keel_worker *worker, uint64_t since)
{
    KEEL_TRY(check_own(worker));
    KEEL_TRY(exchange(worker, SEQUENCE_FIRST, false));
    KEEL_TRY(check_probe(worker));
    if (keel_worker_shares(worker)) {
        enum keel_status status = keel_worker_agree_axes(worker);
        worker->sync_ns = keel_now_ns() - since - worker->heal_ns;
        return status;
    }
    if (worker->job.parallel.zero > KEEL_ZERO_NONE) {
        enum keel_status status = keel_worker_agree_owned(worker);
        worker->sync_ns = keel_now_ns() - since - worker->heal_ns;
        return status;
    }
    if (furthest(worker) == worker->rank_count) {
        KEEL_TRY(keel_worker_restore_or_begin(worker));
        KEEL_TRY(keel_worker_exchange_second(worker));
    }
    worker->sync_ns = keel_now_ns() - since;
    since = keel_now_ns();
    KEEL_TRY(heal(worker, furthest(worker)));
    worker->heal_ns = keel_now_ns() - since;
    return KEEL_OK;
}

/* What this rank would do in the view is what the launcher planned before the run, or it does nothing in it.
 */
static enum keel_status check_plan(const struct keel_worker *worker)
{
    const uint64_t layout = keel_plan_layout(keel_trainer_engine(worker->trainer));
    const uint64_t mine = keel_plan_number(&worker->job, layout, worker->rank_count);
    if (mine == worker->view.plan)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "the run works by plan %016llx, and this worker would by %016llx, of %s",
                     (unsigned long long)worker->view.plan, (unsigned long long)mine,
                     keel_plan_difference(worker->view.plan, mine));
}

enum keel_status keel_worker_join_view(struct keel_worker *worker)
{
    uint64_t since = keel_now_ns();
    const bool had_state = worker->has_state;
    const uint64_t before = worker->next_step;
    place_in_view(worker);
    worker->first_step_of_view = true;
    worker->healed = (struct keel_moved){.bytes = 0};
    worker->heal_ns = 0;
    worker->tiers.begun = worker->tiers.restores = 0;
    worker->tiers.chosen.used = false;
    if (!worker->active)
        return KEEL_OK;
    KEEL_TRY(check_plan(worker));
    if (worker->rank_count > 1)
        KEEL_TRY(open_group(worker));
    KEEL_TRY(agree(worker, since));
    return keel_worker_early_agree(worker, had_state, before);
}
