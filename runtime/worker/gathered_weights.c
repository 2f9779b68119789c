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
 * From whom. From the owners that have all shares together: those of this rank's column (parallel.tensor), or
 * of its group there (parallel.zero_group), where a bucket comes in stripes, one operation each.
 *
 * Rounds. Whoever computes less than others gathers as often as they, since it owns a part of what they read.
 * How many rounds an attempt has follows from the map of shards; but in the first attempt of a view ranks may
 * hold nodes of the step from before, each others, so they say how many microbatches they lack, and all take
 * the most. At least one: the scale of the loss comes with its bucket.
 *
 * No deadlock. All ranks begin gathers and sums in one order (tape_check.c refuses another), each wait is for
 * one that this rank has begun, and all ranks do as many rounds. What slices exchange stands in that order
 * too, between the same segments on all ranks. A rank that is lost ends the group, and with it every wait.
 *
 * After a loss. Pieces are as they were before the attempt; what lies in windows is forgotten. Nodes that
 * were stored are kept, as without gathers.
 *
 * Behind the update nothing is spread. The digest of the model is the sum of those of all owners' pieces: the
 * ranks exchange these, which is all that is left of the step; with slices all ranks of the view do
 * (tensor_exchange.c). */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

static uint64_t soon(const struct keel_trainer *trainer)
{
    return keel_deadline_after_ns(trainer->stall_ns);
}

/* ---- making -------------------------------------------------------------------------------------------- */

enum keel_status keel_gathered_prepare(struct keel_trainer *trainer)
{
    struct keel_gathered *gathered = &trainer->gathered;
    const bool averages = trainer->job->parallel.zero > KEEL_ZERO_NONE && trainer->job->ema > 0.0F;
    gathered->on = trainer->job->parallel.zero >= KEEL_ZERO_WEIGHTS;
    if (!gathered->on && !averages)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(trainer->bucket_count, sizeof *gathered->until, &gathered->until));
    return keel_alloc(trainer->bucket_count, sizeof(struct keel_event *), &gathered->after);
}

static void forget_event(struct keel_trainer *trainer, uint32_t bucket)
{
    keel_event_destroy(trainer->gathered.after[bucket]);
    trainer->gathered.after[bucket] = NULL;
}

void keel_gathered_forget(struct keel_trainer *trainer)
{
    struct keel_gathered *gathered = &trainer->gathered;
    memset(gathered->under_way, 0, sizeof gathered->under_way);
    gathered->awaited = gathered->begun;
}

void keel_gathered_destroy(struct keel_trainer *trainer)
{
    struct keel_gathered *gathered = &trainer->gathered;
    for (uint32_t b = 0; gathered->after != NULL && b < trainer->bucket_count; b++)
        forget_event(trainer, b);
    keel_free(gathered->after);
    keel_free(gathered->until);
    *gathered = (struct keel_gathered){.on = false};
}

void keel_trainer_gather_over(struct keel_trainer *trainer, struct keel_group *group)
{
    struct keel_gathered *gathered = &trainer->gathered;
    gathered->group = group;
    gathered->begun = 0;
    keel_gathered_forget(trainer); /* of an evaluation, or of text, that the end of a view interrupted */
    for (uint32_t b = 0; gathered->until != NULL && b < trainer->bucket_count; b++)
        gathered->until[b] = 0;
}

/* ---- a gather ------------------------------------------------------------------------------------------ */

/* Where a bucket's weights are gathered: its window, or its place among all. */
static struct keel_device_place window_of(const struct keel_trainer *trainer, uint32_t bucket)
{
    if (!trainer->gathered.on)
        return (struct keel_device_place){keel_engine_flat(trainer->engine, KEEL_FLAT_WEIGHTS),
                                          keel_engine_bucket(trainer->engine, bucket)->offset *
                                              sizeof(float)};
    return (struct keel_device_place){keel_engine_weight_windows(trainer->engine),
                                      keel_engine_weights_at(trainer->engine, bucket) * sizeof(float)};
}

/* Between the pieces of all shares that lie here and the bucket's window. */
static enum keel_status copy_held(struct keel_trainer *trainer, uint32_t bucket, bool to_window)
{
    const struct keel_owned_layout *now = &trainer->owned.now;
    struct keel_device_place window = window_of(trainer, bucket);
    const uint64_t begin = window.offset_bytes;
    for (uint32_t s = 0; s < now->share_count; s++) {
        const struct keel_engine_run *run = &now->runs[s * trainer->bucket_count + bucket];
        const struct keel_device_place piece = keel_owned_place(trainer, KEEL_FLAT_WEIGHTS, s, bucket);
        window.offset_bytes =
            begin + (run->first - keel_engine_bucket(trainer->engine, bucket)->offset) * sizeof(float);
        const struct keel_device_place from = to_window ? piece : window, to = to_window ? window : piece;
        if (run->count > 0)
            KEEL_TRY(keel_queue_copy(keel_engine_queue(trainer->engine), from.buffer, from.offset_bytes,
                                     to.buffer, to.offset_bytes, run->count * sizeof(float), NULL, NULL));
    }
    return KEEL_OK;
}

/* Others may take their time, in no section of the hang watch. */
static enum keel_status await_oldest(struct keel_trainer *trainer, uint64_t deadline_ns)
{
    struct keel_gathered *gathered = &trainer->gathered;
    struct keel_device_operation **at = &gathered->under_way[gathered->awaited++ % KEEL_GATHERS_AT_ONCE];
    struct keel_device_operation *operation = *at;
    *at = NULL;
    trainer->awaits = true;
    enum keel_status status = keel_device_operation_wait(operation, deadline_ns);
    trainer->awaits = false;
    return status;
}

static enum keel_status begin_stripe(struct keel_trainer *trainer, uint32_t bucket, uint32_t stripe)
{
    struct keel_gathered *gathered = &trainer->gathered;
    const struct keel_owned_stripe what = keel_owned_stripe(trainer, bucket, stripe);
    struct keel_device_place to = window_of(trainer, bucket);
    to.offset_bytes += what.first * sizeof(float);
    const struct keel_device_collective gather = {
        .what = {.kind = KEEL_ALL_GATHER_V,
                 .sequence = KEEL_SEQUENCE_WEIGHTS + gathered->begun,
                 .element = KEEL_ELEMENT_F32,
                 .counts_out = what.counts,
                 .part_count = 1},
        .parts = &what.own,
        .result = to,
        .after = {&gathered->after[bucket], 1}};
    KEEL_TRY(keel_device_collective_begin(trainer->collectives, gathered->group, &gather,
                                          &gathered->under_way[gathered->begun % KEEL_GATHERS_AT_ONCE]));
    gathered->begun++;
    return KEEL_OK;
}

static enum keel_status mark(struct keel_trainer *trainer, uint32_t bucket)
{
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    forget_event(trainer, bucket); /* of an attempt that failed */
    KEEL_TRY(keel_queue_mark(queue, &trainer->gathered.after[bucket]));
    return keel_queue_flush(queue);
}

static enum keel_status begin(struct keel_trainer *trainer, uint32_t bucket, enum keel_hang_section section)
{
    struct keel_gathered *gathered = &trainer->gathered;
    const uint32_t stripes = gathered->group != NULL ? keel_owned_stripe_count(trainer) : 0;
    KEEL_ASSERT(gathered->group != NULL || trainer->owned.now.owners.of.group == 1);
    KEEL_ASSERT(gathered->until[bucket] <= gathered->awaited);
    keel_hang_enter(trainer->hangs, section, keel_now_ns());
    enum keel_status status = stripes > 0 ? mark(trainer, bucket) : copy_held(trainer, bucket, true);
    keel_hang_leave(trainer->hangs, section, keel_now_ns());
    for (uint32_t s = 0; s < stripes && status == KEEL_OK; s++) {
        if (gathered->begun - gathered->awaited == KEEL_GATHERS_AT_ONCE)
            KEEL_TRY(await_oldest(trainer, soon(trainer)));
        keel_hang_enter(trainer->hangs, section, keel_now_ns());
        status = begin_stripe(trainer, bucket, s);
        keel_hang_leave(trainer->hangs, section, keel_now_ns());
    }
    gathered->until[bucket] = gathered->begun;
    return status;
}

enum keel_status keel_gathered_await(struct keel_trainer *trainer, uint32_t bucket, uint64_t deadline_ns)
{
    struct keel_gathered *gathered = &trainer->gathered;
    while (gathered->awaited < gathered->until[bucket])
        KEEL_TRY(await_oldest(trainer, deadline_ns));
    forget_event(trainer, bucket);
    return gathered->on ? keel_engine_gathered(trainer->engine, bucket) : KEEL_OK;
}

enum keel_status keel_tape_weights(struct keel_tape_run *run, const struct keel_action *action)
{
    KEEL_TRY(begin(run->trainer, action->piece, KEEL_HANG_COMPUTE));
    keel_trainer_drill(run->trainer, KEEL_AT_GATHER);
    return KEEL_OK;
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

/* Of a number of each rank the largest, or the sum modulo 2^64. */
static enum keel_status join(struct keel_tape_run *run, uint32_t piece, enum keel_reduction reduction,
                             uint64_t mine)
{
    struct keel_gathered *gathered = &run->trainer->gathered;
    const void *parts[] = {&gathered->mine};
    gathered->mine = gathered->all = mine;
    const struct keel_collective all = {.kind = KEEL_ALL_REDUCE,
                                        .sequence = keel_tape_sequence(run, piece),
                                        .element = KEEL_ELEMENT_I64,
                                        .reduction = reduction,
                                        .order = KEEL_ORDER_NATIVE,
                                        .by_rank = true,
                                        .count = 1,
                                        .parts = parts,
                                        .part_count = 1,
                                        .result = &gathered->all};
    return run->step->group == NULL ? KEEL_OK : keel_group_run(run->step->group, &all, soon(run->trainer));
}

/* Of the position that has most: who carries no shard is not looked at, however many they are. */
static uint64_t most_own(const struct keel_trainer *trainer, const struct keel_trainer_step *step)
{
    uint64_t most = 0;
    for (uint32_t s = 0; s < trainer->job->shards; s++) {
        if (s > 0 && step->shard_position[s] == step->shard_position[s - 1])
            continue;
        const uint64_t own = count_own(trainer, step, step->shard_position[s], false);
        most = own > most ? own : most;
    }
    return most;
}

enum keel_status keel_gathered_rounds(struct keel_tape_run *run, uint32_t *out)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_step *step = run->step;
    struct keel_gathered *gathered = &trainer->gathered;
    const bool first = gathered->agreed != step->epoch + 1;
    if (first)
        KEEL_TRY(join(run, KEEL_PIECE_ROUNDS, KEEL_MAX, count_own(trainer, step, step->position, true)));
    KEEL_ASSERT(first || trainer->hold.count == 0);
    gathered->agreed = step->epoch + 1;
    const uint64_t most = first ? gathered->all : most_own(trainer, step);
    if (most > (uint64_t)trainer->job->shards * trainer->job->microbatches)
        return keel_fail(KEEL_MISMATCH, "step %llu: a rank has %llu microbatches to compute, of %u shards",
                         (unsigned long long)step->step, (unsigned long long)most, trainer->job->shards);
    *out = most > 0 ? (uint32_t)most : 1;
    return KEEL_OK;
}

/* ---- digests ------------------------------------------------------------------------------------------- */

enum keel_status keel_gathered_own_digest(struct keel_trainer *trainer, uint64_t *out, uint64_t *out_shared)
{
    return keel_engine_pieces_digest(trainer->owned.now.pieces, soon(trainer), out, out_shared);
}

/* All of a step is here. */
enum keel_status keel_gathered_digest(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    (void)action;
    KEEL_TRY(keel_gathered_own_digest(trainer, &trainer->digest, &trainer->tensor.shared));
    KEEL_TRY(join(run, keel_piece_weights(trainer->bucket_count, 0), KEEL_SUM, trainer->digest));
    run->result.digest = trainer->gathered.all;
    trainer->owned.now.complete = true;
    return KEEL_OK;
}

/* ---- first weights ------------------------------------------------------------------------------------- */

/* A bucket at a time, in its window: a rank never has all. */
enum keel_status keel_gathered_initialize(struct keel_trainer *trainer)
{
    KEEL_ASSERT(trainer->owned.now.pieces != NULL);
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        KEEL_TRY(keel_engine_draw(trainer->engine, b, trainer->job->seed));
        KEEL_TRY(copy_held(trainer, b, false));
    }
    return keel_queue_finish(keel_engine_queue(trainer->engine), soon(trainer));
}

/* ---- outside of a step --------------------------------------------------------------------------------- */

enum keel_status keel_gathered_evaluate(struct keel_trainer *trainer, uint32_t segment, uint64_t deadline_ns)
{
    uint32_t count;
    const struct keel_engine_gather *gathers = keel_engine_gathers(trainer->engine, true, &count);
    if (trainer->gathered.group != NULL && count > 0)
        KEEL_TRY(keel_tape_prepare_sums(trainer));
    enum keel_status status = KEEL_OK;
    keel_hang_leave(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns()); /* others may take their time */
    for (uint32_t g = 0; g < count && status == KEEL_OK; g++)
        if (gathers[g].begin == segment)
            status = begin(trainer, gathers[g].bucket, KEEL_HANG_EVAL);
    for (uint32_t g = 0; g < count && status == KEEL_OK; g++)
        if (gathers[g].first == segment)
            status = keel_gathered_await(trainer, gathers[g].bucket, deadline_ns);
    keel_hang_enter(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
    return status;
}

/* parallel.zero = 1 and 2: weights of all pieces to all ranks, as behind an update. */
static enum keel_status spread(struct keel_trainer *trainer)
{
    enum keel_status status = trainer->gathered.group != NULL ? keel_tape_prepare_sums(trainer) : KEEL_OK;
    for (uint32_t b = 0; b < trainer->bucket_count && status == KEEL_OK; b++)
        status = begin(trainer, b, KEEL_HANG_EVAL);
    for (uint32_t b = 0; b < trainer->bucket_count && status == KEEL_OK; b++)
        status = keel_gathered_await(trainer, b, soon(trainer));
    return status;
}

/* While averages lie in the flat weights this rank counts as one that has not all of them: a view that begins
 * then brings them from the pieces, where they lie in their own place by that time, whatever went wrong. */
enum keel_status keel_trainer_with_averages(struct keel_trainer *trainer,
                                            enum keel_status (*score)(void *context), void *context)
{
    struct keel_owned *owned = &trainer->owned;
    struct keel_engine_pieces *pieces = owned->on ? owned->now.pieces : NULL;
    const bool spreads = owned->on && !trainer->gathered.on;
    KEEL_ASSERT(!owned->on || owned->now.complete);
    enum keel_status status = keel_engine_swap_average(trainer->engine, pieces);
    if (spreads) {
        owned->now.complete = false;
        status = status == KEEL_OK ? spread(trainer) : status;
    }
    if (status == KEEL_OK)
        status = score(context);
    const enum keel_status back = keel_engine_swap_average(trainer->engine, pieces);
    status = status == KEEL_OK ? back : status;
    if (status == KEEL_OK && spreads) {
        status = spread(trainer);
        owned->now.complete = status == KEEL_OK;
    }
    return status;
}

static enum keel_status give_weights(struct keel_trainer *trainer, enum keel_drill_phase at)
{
    const uint32_t segments = keel_engine_eval_segment_count(trainer->engine);
    enum keel_status status = KEEL_OK;
    for (uint32_t s = 0; s < segments && status == KEEL_OK; s++) {
        keel_hang_enter(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
        status = keel_gathered_evaluate(trainer, s, soon(trainer));
        keel_hang_leave(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
        if (s == segments / 2)
            keel_trainer_drill(trainer, at);
    }
    return status;
}

enum keel_status keel_trainer_give_weights(struct keel_trainer *trainer, uint32_t evaluations,
                                           enum keel_drill_phase at)
{
    for (uint32_t i = 0; i < evaluations; i++) {
        KEEL_TRY(give_weights(trainer, at));
        atomic_fetch_add(trainer->progress, 1);
    }
    return KEEL_OK;
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
