/* gathered_weights.c - parallel.zero = 3: weights that are here only while segments read them.
 *
 * Which bucket. The engine says which buckets a segment reads, forward and backward, and which window each
 * has (engine/engine_weights.c); a bucket that is read twice, far apart, is gathered twice.
 *
 * When. In a step gathers are actions of the tape (plan/tape.h). One begins behind a mark on the queue: when
 * the device has come there, all segments that read its window before have run. It is all-gather of the
 * owners' pieces, straight into the window, and goes on while the segments between are computed. Before the
 * first segment that reads it, it is waited for. An evaluation, and generated text, do the same by the
 * engine's table; the warm-up, where there are no others, draws first weights instead.
 *
 * Rounds. Whoever computes less than others gathers as often as they, since it owns a part of what they read.
 * How many rounds an attempt has follows from the map of shards; but in the first attempt of a view ranks may
 * hold nodes of the step from before, each others, so they say how many microbatches they lack, and all take
 * the most. At least one: the scale of the loss comes with its bucket.
 *
 * No deadlock. All ranks begin gathers and sums in one order (tape_check.c refuses another), each wait is for
 * one that this rank has begun, and all ranks do as many rounds. A rank that is lost ends the group, and with
 * it every wait.
 *
 * After a loss. Pieces are as they were before the attempt; what lies in windows is forgotten. Nodes that
 * were stored are kept, as without gathers.
 *
 * Behind the update nothing is spread. The digest of the model is the sum of those of all owners' pieces: the
 * ranks exchange these, which is all that is left of the step. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

static uint64_t soon(const struct keel_trainer *trainer)
{
    return keel_deadline_after_ns(trainer->stall_ns);
}

/* ---- making -------------------------------------------------------------------------------------------- */

static uint32_t count_windows(const struct keel_engine *engine)
{
    uint32_t windows = 0, count;
    for (int evaluation = 0; evaluation < 2; evaluation++) {
        const struct keel_engine_gather *gathers = keel_engine_gathers(engine, evaluation != 0, &count);
        for (uint32_t g = 0; g < count; g++)
            windows = gathers[g].window >= windows ? gathers[g].window + 1 : windows;
    }
    return windows;
}

enum keel_status keel_gathered_prepare(struct keel_trainer *trainer)
{
    struct keel_gathered *gathered = &trainer->gathered;
    const struct keel_engine *engine = trainer->engine;
    gathered->on = trainer->job->parallel.zero >= KEEL_ZERO_WEIGHTS;
    if (!gathered->on)
        return KEEL_OK;
    gathered->window_count = count_windows(engine);
    gathered->segment_count = keel_engine_segment_count(engine);
    KEEL_TRY(keel_alloc(trainer->bucket_count, sizeof(struct keel_device_operation *), &gathered->under_way));
    KEEL_TRY(keel_alloc(trainer->bucket_count, sizeof(struct keel_event *), &gathered->after));
    KEEL_TRY(keel_alloc(gathered->segment_count, sizeof *gathered->segments, &gathered->segments));
    for (uint32_t s = 0; s < gathered->segment_count; s++)
        gathered->segments[s] = (struct keel_tape_segment){.bucket = keel_engine_segment_bucket(engine, s)};
    return keel_alloc(KEEL_MEMBERS_MAX, sizeof *gathered->said, &gathered->said);
}

static void forget_event(struct keel_trainer *trainer, uint32_t bucket)
{
    keel_event_destroy(trainer->gathered.after[bucket]);
    trainer->gathered.after[bucket] = NULL;
}

void keel_gathered_forget(struct keel_trainer *trainer)
{
    struct keel_gathered *gathered = &trainer->gathered;
    if (gathered->on)
        memset(gathered->under_way, 0, trainer->bucket_count * sizeof(struct keel_device_operation *));
}

void keel_gathered_destroy(struct keel_trainer *trainer)
{
    struct keel_gathered *gathered = &trainer->gathered;
    for (uint32_t b = 0; gathered->after != NULL && b < trainer->bucket_count; b++)
        forget_event(trainer, b);
    keel_free(gathered->after);
    keel_free(gathered->under_way);
    keel_free(gathered->segments);
    keel_free(gathered->said);
    *gathered = (struct keel_gathered){.on = false};
}

void keel_trainer_gather_over(struct keel_trainer *trainer, struct keel_group *group)
{
    trainer->gathered.group = group;
    trainer->gathered.sequence = 0;
    keel_gathered_forget(trainer); /* of an evaluation, or of text, that the end of a view interrupted */
}

/* ---- a gather ------------------------------------------------------------------------------------------ */

/* What this rank owns of a bucket, and where the bucket goes. */
static struct keel_device_place own_place(const struct keel_trainer *trainer, uint32_t bucket)
{
    const struct keel_engine_pieces *pieces = trainer->owned.now.pieces;
    return (struct keel_device_place){keel_engine_pieces_flat(pieces, KEEL_FLAT_WEIGHTS),
                                      keel_engine_pieces_at(pieces, bucket) * sizeof(float)};
}

static struct keel_device_place window_of(const struct keel_trainer *trainer, uint32_t bucket)
{
    return (struct keel_device_place){keel_engine_weight_windows(trainer->engine),
                                      keel_engine_weights_at(trainer->engine, bucket) * sizeof(float)};
}

/* This rank alone owns all of it. */
static enum keel_status copy_own(struct keel_trainer *trainer, uint32_t bucket)
{
    const struct keel_device_place from = own_place(trainer, bucket), to = window_of(trainer, bucket);
    KEEL_ASSERT(trainer->owned.now.owners.of.count == 1);
    return keel_queue_copy(keel_engine_queue(trainer->engine), from.buffer, from.offset_bytes, to.buffer,
                           to.offset_bytes,
                           keel_engine_bucket(trainer->engine, bucket)->count * sizeof(float), NULL, NULL);
}

static enum keel_status begin(struct keel_trainer *trainer, uint32_t bucket)
{
    struct keel_gathered *gathered = &trainer->gathered;
    const struct keel_owned_layout *now = &trainer->owned.now;
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    if (gathered->group == NULL)
        return copy_own(trainer, bucket);
    KEEL_ASSERT(gathered->under_way[bucket] == NULL);
    forget_event(trainer, bucket); /* of an attempt that failed */
    KEEL_TRY(keel_queue_mark(queue, &gathered->after[bucket]));
    KEEL_TRY(keel_queue_flush(queue));
    const struct keel_device_place own = own_place(trainer, bucket);
    const struct keel_device_collective gather = {
        .what = {.kind = KEEL_ALL_GATHER_V,
                 .sequence = KEEL_SEQUENCE_WEIGHTS + gathered->sequence++,
                 .element = KEEL_ELEMENT_F32,
                 .counts_out = now->counts + (size_t)bucket * now->owners.of.count,
                 .part_count = 1},
        .parts = &own,
        .result = window_of(trainer, bucket),
        .after = {&gathered->after[bucket], 1}};
    return keel_device_collective_begin(trainer->collectives, gathered->group, &gather,
                                        &gathered->under_way[bucket]);
}

enum keel_status keel_gathered_await(struct keel_trainer *trainer, uint32_t bucket, uint64_t deadline_ns)
{
    struct keel_gathered *gathered = &trainer->gathered;
    struct keel_device_operation *operation = gathered->under_way[bucket];
    if (operation != NULL) {
        gathered->under_way[bucket] = NULL;
        trainer->awaits = true;
        enum keel_status status = keel_device_operation_wait(operation, deadline_ns);
        trainer->awaits = false;
        KEEL_TRY(status);
        forget_event(trainer, bucket);
    }
    return keel_engine_gathered(trainer->engine, bucket);
}

enum keel_status keel_tape_weights(struct keel_tape_run *run, const struct keel_action *action)
{
    KEEL_ASSERT(run->step->group == run->trainer->gathered.group);
    return begin(run->trainer, action->piece);
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

/* Microbatches of a position's shards, but those that nodes held here cover. */
static uint64_t count_own(const struct keel_trainer *trainer, const struct keel_trainer_step *step,
                          uint32_t position, bool held)
{
    uint64_t shards = 0;
    for (uint32_t s = 0; s < trainer->job->shards; s++)
        shards +=
            step->shard_position[s] == position && !(held && keel_hold_covers(&trainer->hold, s)) ? 1 : 0;
    return shards * trainer->job->microbatches;
}

/* A number of each rank, by position. */
static enum keel_status say(struct keel_tape_run *run, uint32_t piece, uint64_t mine)
{
    struct keel_gathered *gathered = &run->trainer->gathered;
    const void *parts[] = {&gathered->mine};
    gathered->mine = gathered->said[0] = mine;
    const struct keel_collective gather = {.kind = KEEL_ALL_GATHER,
                                           .sequence = keel_tape_sequence(run, piece),
                                           .element = KEEL_ELEMENT_U8,
                                           .count = sizeof gathered->mine,
                                           .parts = parts,
                                           .part_count = 1,
                                           .result = gathered->said};
    return run->step->group == NULL ? KEEL_OK : keel_group_run(run->step->group, &gather, soon(run->trainer));
}

enum keel_status keel_gathered_rounds(struct keel_tape_run *run, uint32_t *out)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_step *step = run->step;
    struct keel_gathered *gathered = &trainer->gathered;
    const bool first = gathered->agreed != step->epoch + 1;
    uint64_t most = 1;
    if (first)
        KEEL_TRY(say(run, KEEL_PIECE_ROUNDS, count_own(trainer, step, step->position, true)));
    KEEL_ASSERT(first || trainer->hold.count == 0);
    gathered->agreed = step->epoch + 1;
    for (uint32_t p = 0; p < step->rank_count; p++) {
        const uint64_t own = first ? gathered->said[p] : count_own(trainer, step, p, false);
        most = own > most ? own : most;
    }
    if (most > (uint64_t)trainer->job->shards * trainer->job->microbatches)
        return keel_fail(KEEL_MISMATCH, "step %llu: a rank has %llu microbatches to compute, of %u shards",
                         (unsigned long long)step->step, (unsigned long long)most, trainer->job->shards);
    *out = (uint32_t)most;
    return KEEL_OK;
}

/* ---- digests ------------------------------------------------------------------------------------------- */

enum keel_status keel_gathered_own_digest(struct keel_trainer *trainer, uint64_t *out)
{
    uint64_t shared;
    KEEL_TRY(keel_engine_pieces_digest(trainer->owned.now.pieces, soon(trainer), out, &shared));
    return KEEL_OK;
}

/* All of a step is here. */
enum keel_status keel_gathered_digest(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    uint64_t digest = 0;
    (void)action;
    KEEL_TRY(keel_gathered_own_digest(trainer, &trainer->digest));
    KEEL_TRY(say(run, keel_piece_weights(trainer->bucket_count, 0), trainer->digest));
    for (uint32_t p = 0; p < run->step->rank_count; p++)
        digest += trainer->gathered.said[p];
    run->result.digest = digest;
    trainer->owned.now.complete = true;
    return KEEL_OK;
}

/* ---- first weights ------------------------------------------------------------------------------------- */

/* A bucket at a time, in its window: a rank never has all. */
enum keel_status keel_gathered_initialize(struct keel_trainer *trainer)
{
    const struct keel_owned_layout *now = &trainer->owned.now;
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    const uint32_t buckets = trainer->bucket_count;
    KEEL_ASSERT(now->pieces != NULL);
    for (uint32_t b = 0; b < buckets; b++) {
        const struct keel_device_place window = window_of(trainer, b);
        KEEL_TRY(keel_engine_draw(trainer->engine, b, trainer->job->seed));
        for (uint32_t r = b; r < now->share_count * buckets; r += buckets) {
            const uint64_t within = now->runs[r].first - keel_engine_bucket(trainer->engine, b)->offset;
            if (now->runs[r].count > 0)
                KEEL_TRY(keel_queue_copy(queue, window.buffer, window.offset_bytes + within * sizeof(float),
                                         keel_engine_pieces_flat(now->pieces, KEEL_FLAT_WEIGHTS),
                                         keel_engine_pieces_at(now->pieces, r) * sizeof(float),
                                         now->runs[r].count * sizeof(float), NULL, NULL));
        }
    }
    return keel_queue_finish(queue, soon(trainer));
}

/* ---- outside of a step --------------------------------------------------------------------------------- */

enum keel_status keel_gathered_evaluate(struct keel_trainer *trainer, uint32_t segment, uint64_t deadline_ns)
{
    uint32_t count;
    const struct keel_engine_gather *gathers = keel_engine_gathers(trainer->engine, true, &count);
    if (trainer->gathered.group != NULL && count > 0)
        KEEL_TRY(keel_tape_prepare_sums(trainer));
    for (uint32_t g = 0; g < count; g++)
        if (gathers[g].begin == segment)
            KEEL_TRY(begin(trainer, gathers[g].bucket));
    enum keel_status status = KEEL_OK;
    keel_hang_leave(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns()); /* others may take their time */
    for (uint32_t g = 0; g < count && status == KEEL_OK; g++)
        if (gathers[g].first == segment)
            status = keel_gathered_await(trainer, gathers[g].bucket, deadline_ns);
    keel_hang_enter(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
    return status;
}

enum keel_status keel_gathered_pretend(struct keel_trainer *trainer, bool evaluation, uint32_t segment)
{
    uint32_t count;
    const struct keel_engine_gather *gathers = keel_engine_gathers(trainer->engine, evaluation, &count);
    for (uint32_t g = 0; g < count; g++) {
        if (gathers[g].first != segment)
            continue;
        KEEL_TRY(keel_engine_draw(trainer->engine, gathers[g].bucket, trainer->job->seed));
        KEEL_TRY(keel_engine_gathered(trainer->engine, gathers[g].bucket));
    }
    return KEEL_OK;
}
