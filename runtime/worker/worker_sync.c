/* worker_sync.c - after a view change: open the group, agree on the newest state, heal the ranks that lack
 * it.
 *
 * Every rank says what it has (one all-gather); all draw the same conclusion from the same records, so no
 * coordinator is needed. Where somebody is alive with state, the furthest one heals the rest: nobody goes
 * back a step. Where nobody has state, every rank reads its share of the newest snapshot and broadcasts it;
 * where a share cannot be read, position 0 reads the newest snapshot that is whole and heals the others.
 * Without a snapshot everybody initializes from the seed. */
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* A step's sums have (step + 1) << 20 and what follows (tape_sum.c): these lie below and far above. */
enum {
    SEQUENCE_FIRST = 1,
    SEQUENCE_SECOND = 2,
    SEQUENCE_SHARES = 3,
    SEQUENCE_LOST = 4,
    HEAL_CHUNK_BYTES = 8 << 20
};
#define SEQUENCE_SHARE (UINT64_C(1) << 62)
#define SEQUENCE_HEAL  (UINT64_C(1) << 63)

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
    for (uint32_t s = 0; s < view->shard_count; s++)
        for (uint32_t p = 0; p < worker->rank_count; p++)
            if (worker->position_rank[p] == view->shard_rank[s])
                worker->shard_position[s] = (uint16_t)p;
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

static enum keel_status open_group(struct keel_worker *worker)
{
    struct keel_address addresses[KEEL_MEMBERS_MAX];
    uint32_t count = 0;
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
    KEEL_TRY(keel_group_open(worker->endpoint, &config, &worker->group));
    keel_group_on_lost(worker->group, peer_lost, worker);
    keel_inbox_guard(&worker->inbox, worker->group, worker->view.epoch);
    return KEEL_OK;
}

/* Room for what is given, and for what is taken. */
static enum keel_status take_chunk(struct keel_worker *worker)
{
    return keel_alloc_aligned(KEEL_PAGE_BYTES, 2 * (size_t)HEAL_CHUNK_BYTES, &worker->heal_chunk);
}

static void drop_chunk(struct keel_worker *worker)
{
    keel_free(worker->heal_chunk);
    worker->heal_chunk = NULL;
}

enum keel_status keel_worker_leave_view(struct keel_worker *worker)
{
    keel_inbox_guard(&worker->inbox, NULL, worker->view.epoch);
    if (worker->group != NULL)
        keel_group_close(worker->group);
    worker->group = NULL;
    drop_chunk(worker);
    return keel_trainer_leave_group(worker->trainer);
}

/* ---- agreeing ------------------------------------------------------------------------------------------ */

/* Fill worker->sync_all. has_share: this rank has read its share of the snapshot that all begin from. */
static enum keel_status exchange(struct keel_worker *worker, uint64_t sequence, bool has_share)
{
    struct keel_sync_record *mine = &worker->sync_mine;
    *mine = (struct keel_sync_record){.has_state = worker->has_state,
                                      .next_step = worker->next_step,
                                      .digest = worker->digest,
                                      .has_share = has_share,
                                      .probe = keel_trainer_probe(worker->trainer)};
    if (worker->job.parallel.zero > KEEL_ZERO_NONE)
        keel_trainer_owns(worker->trainer, mine->owned);
    snprintf(mine->board, sizeof mine->board, "%.63s", keel_device_info(worker->device)->selector);
    if (!worker->has_state && worker->position == 0) /* who would restore it */
        KEEL_TRY(keel_worker_snapshot_count(worker, &mine->snapshot_count, &mine->snapshot_step));
    if (worker->group == NULL) {
        worker->sync_all[0] = *mine;
        return KEEL_OK;
    }
    const void *parts[] = {mine};
    struct keel_collective gather = {.kind = KEEL_ALL_GATHER,
                                     .sequence = sequence,
                                     .element = KEEL_ELEMENT_U8,
                                     .count = sizeof *mine,
                                     .parts = parts,
                                     .part_count = 1,
                                     .result = worker->sync_all};
    return keel_group_run(worker->group, &gather, keel_deadline_after_ns(worker->stall_ns));
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

/* How far along a list of pieces a transfer is. */
struct keel_state_cursor {
    const struct keel_state_piece *piece;
    uint64_t done_bytes; /* of it */
};

/* Copy the next `bytes` of the pieces into the chunk, or out of it. */
static enum keel_status pass_state(struct keel_worker *worker, struct keel_state_cursor *at, bool give,
                                   uint8_t *chunk, uint64_t bytes)
{
    struct keel_queue *queue = keel_engine_queue(keel_trainer_engine(worker->trainer));
    for (uint64_t done = 0; done < bytes;) {
        uint64_t left = keel_piece_bytes(at->piece) - at->done_bytes;
        uint64_t now = left < bytes - done ? left : bytes - done;
        KEEL_TRY(
            give ? keel_trainer_read_piece(worker->trainer, queue, at->piece, at->done_bytes, now,
                                           chunk + done)
                 : keel_trainer_write_piece(worker->trainer, at->piece, at->done_bytes, now, chunk + done));
        done += now;
        at->done_bytes += now;
        if (now == left)
            *at = (struct keel_state_cursor){.piece = at->piece + 1};
    }
    return KEEL_OK;
}

/* The collective `how` on one chunk: `out` is what this rank gives, `in` is what it takes. */
static enum keel_status exchange_chunk(struct keel_worker *worker, const struct keel_collective *how,
                                       const uint8_t *out, uint8_t *in)
{
    const void *parts[] = {out};
    struct keel_collective chunk = *how;
    if (worker->group == NULL)
        return KEEL_OK;
    chunk.element = KEEL_ELEMENT_U8;
    chunk.parts = parts;
    chunk.part_count = out != NULL ? 1 : 0;
    chunk.result = how->kind == KEEL_SEND ? NULL : in;
    return keel_group_run(worker->group, &chunk, keel_deadline_after_ns(worker->stall_ns));
}

/* Pieces of the state from who has them to who lacks them, in chunks: `how` says by which collective. */
static enum keel_status move_pieces(struct keel_worker *worker, const struct keel_state_piece *pieces,
                                    uint32_t count, struct keel_collective *how, bool give)
{
    uint8_t *out = worker->heal_chunk, *in = out + HEAL_CHUNK_BYTES;
    const bool keep =
        give && worker->job.parallel.zero > KEEL_ZERO_NONE; /* what is given is read elsewhere */
    struct keel_state_cursor at = {.piece = pieces}, kept = {.piece = pieces};
    uint64_t left = 0;
    for (uint32_t i = 0; i < count; i++)
        left += keel_piece_bytes(&pieces[i]);
    for (; left > 0; left -= how->count, how->sequence++) {
        how->count = left < HEAL_CHUNK_BYTES ? left : HEAL_CHUNK_BYTES;
        if (give)
            KEEL_TRY(pass_state(worker, &at, true, out, how->count));
        KEEL_TRY(exchange_chunk(worker, how, give ? out : NULL, in));
        if (!give)
            KEEL_TRY(pass_state(worker, &at, false, in, how->count));
        if (keep)
            KEEL_TRY(pass_state(worker, &kept, false, out, how->count));
        atomic_fetch_add(&worker->inbox.progress, 1);
    }
    return KEEL_OK;
}

/* What position `owner` of `rank_count` has of the state: (0, 1) is all. */
static enum keel_status move_share(struct keel_worker *worker, uint32_t owner, uint32_t rank_count,
                                   struct keel_collective *how, bool give)
{
    struct keel_state_piece *pieces;
    uint32_t count;
    KEEL_TRY(keel_trainer_pieces(worker->trainer, owner, rank_count, &pieces, &count));
    enum keel_status status = move_pieces(worker, pieces, count, how, give);
    keel_free(pieces);
    return status;
}

enum keel_status keel_worker_move_share(struct keel_worker *worker, uint32_t owner, uint32_t rank_count,
                                        uint32_t giver)
{
    struct keel_collective how = {
        .kind = KEEL_BROADCAST, .sequence = SEQUENCE_HEAL + ((uint64_t)(owner + 1) << 32), .root = giver};
    KEEL_TRY(take_chunk(worker));
    enum keel_status status = move_share(worker, owner, rank_count, &how, giver == worker->position);
    if (status == KEEL_OK)
        drop_chunk(worker);
    return status;
}

/* The whole state, from one rank to the rank `healed`. */
static enum keel_status move_state(struct keel_worker *worker, uint32_t peer, uint32_t healed, bool give)
{
    struct keel_collective how = {.kind = give ? KEEL_SEND : KEEL_RECEIVE,
                                  .sequence = SEQUENCE_HEAL + ((uint64_t)(healed + 1) << 32),
                                  .root = peer};
    return move_share(worker, 0, 1, &how, give);
}

static enum keel_status receive_state(struct keel_worker *worker, uint32_t source)
{
    const struct keel_sync_record *record = &worker->sync_all[source];
    uint64_t deadline_ns = keel_deadline_after_ns(worker->stall_ns);
    if (worker->snapshot.save != NULL && /* a capture may still read what is about to be replaced */
        keel_save_wait_captured(worker->snapshot.save, deadline_ns) == KEEL_TIMEOUT)
        return KEEL_TIMEOUT;
    /* Half a state is no state, until the digest says otherwise. */
    worker->has_state = false;
    keel_trainer_drop(worker->trainer);
    KEEL_TRY(move_state(worker, source, worker->position, false));
    KEEL_TRY(keel_trainer_digest(worker->trainer, &worker->digest));
    if (worker->digest != record->digest)
        return keel_fail(KEEL_MISMATCH, "healing from rank %u: digest %016llx, wanted %016llx",
                         worker->position_rank[source], (unsigned long long)worker->digest,
                         (unsigned long long)record->digest);
    worker->has_state = true;
    worker->next_step = record->next_step;
    keel_log(KEEL_LOG_INFO, "healed from rank %u at step %llu", worker->position_rank[source],
             (unsigned long long)worker->next_step);
    return KEEL_OK;
}

/* Everybody behind the furthest step is healed by one that has it, sources taking turns. */
static enum keel_status heal(struct keel_worker *worker, uint32_t best)
{
    const struct keel_sync_record *all = worker->sync_all;
    uint32_t sources[KEEL_MEMBERS_MAX], source_count = 0, turn = 0;
    for (uint32_t p = 0; p < worker->rank_count; p++)
        if (all[p].has_state && all[p].next_step == all[best].next_step)
            sources[source_count++] = p;
    KEEL_ASSERT(source_count > 0);
    if (source_count == worker->rank_count)
        return KEEL_OK;
    KEEL_TRY(take_chunk(worker));
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        if (all[p].has_state && all[p].next_step == all[best].next_step)
            continue;
        uint32_t source = sources[turn++ % source_count];
        if (worker->position == source)
            KEEL_TRY(move_state(worker, p, p, true));
        else if (worker->position == p)
            KEEL_TRY(receive_state(worker, source));
    }
    drop_chunk(worker);
    return KEEL_OK;
}

/* ---- a snapshot, read by all --------------------------------------------------------------------------- */

static enum keel_status read_shares(struct keel_worker *worker)
{
    const uint64_t step = worker->sync_all[0].snapshot_step, since = keel_now_ns();
    struct keel_collective how = {.kind = KEEL_BROADCAST, .sequence = SEQUENCE_SHARE};
    uint64_t read_bytes = 0;
    char detail[96];
    bool all = keel_worker_restore_share(worker, step, &read_bytes);
    KEEL_TRY(exchange(worker, SEQUENCE_SHARES, all));
    for (uint32_t p = 0; p < worker->rank_count; p++)
        all = all && worker->sync_all[p].has_share;
    if (!all)
        return KEEL_OK;
    KEEL_TRY(take_chunk(worker));
    for (how.root = 0; how.root < worker->rank_count; how.root++)
        KEEL_TRY(move_share(worker, how.root, worker->rank_count, &how, how.root == worker->position));
    drop_chunk(worker);
    KEEL_TRY(keel_trainer_digest(worker->trainer, &worker->digest));
    worker->has_state = true;
    worker->next_step = step;
    snprintf(detail, sizeof detail, "%.3f s, %llu bytes read by rank %u of %u",
             (double)(keel_now_ns() - since) / 1e9, (unsigned long long)read_bytes, worker->rank,
             worker->rank_count);
    if (worker->position == 0)
        keel_worker_note(worker, "resumed", step, KEEL_OK, detail);
    else
        keel_log(KEEL_LOG_INFO, "resumed: %s", detail);
    return KEEL_OK;
}

/* A snapshot, if there is one: its shares by all, or the whole by position 0, which heals the others. */
static enum keel_status restore(struct keel_worker *worker)
{
    if (worker->rank_count > 1)
        KEEL_TRY(read_shares(worker));
    const bool reads = worker->position == 0 || worker->job.parallel.zero > KEEL_ZERO_NONE; /* each its own */
    return worker->has_state || !reads ? KEEL_OK : keel_worker_restore(worker);
}

/* A board whose bits differ is left out of the run: the result of a shard would depend on the rank that
 * carries it. Right are the bits of the ranks that hold the state; at the beginning of a run those of the
 * majority, where the host reference outvotes all boards; among equals those of the lowest position. */
static uint32_t right_probe(const struct keel_worker *worker)
{
    const struct keel_sync_record *all = worker->sync_all;
    uint32_t right = furthest(worker), most = 0;
    if (right < worker->rank_count)
        return right;
    for (uint32_t p = 0; p < worker->rank_count; p++) {
        uint32_t votes = 0;
        for (uint32_t i = 0; i < worker->rank_count; i++)
            if (all[i].probe == all[p].probe)
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
    return worker->sync_all[0].snapshot_count == 0 ? initialize(worker) : restore(worker);
}

enum keel_status keel_worker_exchange_lost(struct keel_worker *worker)
{
    return exchange(worker, SEQUENCE_LOST, false);
}

enum keel_status keel_worker_exchange_second(struct keel_worker *worker)
{
    KEEL_TRY(exchange(worker, SEQUENCE_SECOND, false));
    return check_same(worker);
}

/* `since`: when this worker turned to the view; connecting to its ranks counts as agreeing. */
static enum keel_status agree(struct keel_worker *worker, uint64_t since)
{
    KEEL_TRY(exchange(worker, SEQUENCE_FIRST, false));
    KEEL_TRY(check_probe(worker));
    if (worker->job.parallel.zero > KEEL_ZERO_NONE) {
        enum keel_status status = keel_worker_agree_owned(worker);
        worker->sync_ns = keel_now_ns() - since;
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

enum keel_status keel_worker_join_view(struct keel_worker *worker)
{
    uint64_t since = keel_now_ns();
    place_in_view(worker);
    worker->first_step_of_view = true;
    if (!worker->active)
        return KEEL_OK;
    if (worker->rank_count > 1)
        KEEL_TRY(open_group(worker));
    return agree(worker, since);
}
