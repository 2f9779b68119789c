/* tensor_exchange.c - what ranks that share the tensor slices exchange: behind segments of a microbatch and
 * of an evaluation, the squares of the norm, the digests of the weights, and that all have come so far.
 *
 * The engine says what (keel_engine_exchange), and it goes from device memory to device memory
 * (keel/transport_device.h). Each is done before the next segment is enqueued: the device waits for it
 * anyway. Two groups of the same ranks differ in their shards: sums of floats go by the tree over slices, all
 * else by rank. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

/* ---- making -------------------------------------------------------------------------------------------- */

static uint64_t staging_of(const struct keel_engine_exchange *what)
{
    return what == NULL ? 0 : (what->part_count + 1) * (what->units * what->unit) * sizeof(float);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void on_device(void *context, bool inside)
{
    keel_tape_on_device(context, KEEL_HANG_COMPUTE, inside);
}

/* Nothing for an engine with all slices. */
enum keel_status keel_tensor_prepare(struct keel_trainer *trainer)
{
    struct keel_sharing *tensor = &trainer->tensor;
    const struct keel_engine *engine = trainer->engine;
    uint64_t staging = staging_of(keel_engine_norm_exchange(engine));
    if (tensor->count == 0)
        return KEEL_OK;
    for (uint32_t s = 0; s < keel_engine_segment_count(engine); s++) {
        bool joins;
        staging = larger(staging, staging_of(keel_engine_segment_exchange(engine, s, &joins)));
    }
    for (uint32_t s = 0; s < keel_engine_eval_segment_count(engine); s++)
        staging = larger(staging, staging_of(keel_engine_eval_exchange(engine, s)));
    const struct keel_device_collectives_config config = {.device = trainer->device,
                                                          .parts_max = KEEL_HOLD_NODES_MAX,
                                                          .operations_max = 2,
                                                          .staging_bytes = staging,
                                                          .on_device = on_device,
                                                          .context = trainer};
    return keel_device_collectives_create(&config, &tensor->collectives);
}

void keel_tensor_destroy(struct keel_trainer *trainer)
{
    struct keel_sharing *tensor = &trainer->tensor;
    keel_device_collectives_free(tensor->collectives);
    keel_event_destroy(tensor->after);
    tensor->collectives = NULL;
    tensor->after = NULL;
}

enum keel_status keel_tensor_leave_group(struct keel_trainer *trainer)
{
    struct keel_sharing *tensor = &trainer->tensor;
    tensor->axes = NULL;
    if (tensor->collectives == NULL)
        return KEEL_OK;
    return keel_device_collectives_reset(tensor->collectives, keel_deadline_after_ns(trainer->stall_ns));
}

void keel_trainer_share(struct keel_trainer *trainer, struct keel_trainer_axes *axes)
{
    trainer->tensor.axes = axes;
}

void keel_trainer_column(struct keel_trainer *trainer, uint32_t index, uint32_t count, uint32_t place,
                         uint32_t places)
{
    KEEL_ASSERT(index < count && place < places);
    trainer->tensor.column_index = index;
    trainer->tensor.column_count = count;
    trainer->tensor.place = place;
    trainer->tensor.places = places;
}

/* ---- an exchange --------------------------------------------------------------------------------------- */

/* Elements of the whole that each place has. */
static void count_places(struct keel_sharing *tensor, const struct keel_engine_exchange *what,
                         uint32_t slices)
{
    const struct keel_trainer_axes *axes = tensor->axes;
    for (uint32_t k = 0; k < axes->count; k++)
        tensor->counts[k] =
            keel_engine_exchange_count(what, slices, axes->begin[k], axes->begin[k + 1] - axes->begin[k]);
}

static struct keel_collective describe(const struct keel_sharing *tensor,
                                       const struct keel_engine_exchange *what)
{
    struct keel_collective out = {.element = KEEL_ELEMENT_F32, .part_count = what->part_count};
    if (what->kind == KEEL_EXCHANGE_GATHER || what->scatter)
        out.counts_out = tensor->counts;
    else
        out.count = (uint64_t)what->units * what->unit;
    out.kind = what->kind == KEEL_EXCHANGE_GATHER ? KEEL_ALL_GATHER_V
               : what->scatter                    ? KEEL_REDUCE_SCATTER
                                                  : KEEL_ALL_REDUCE;
    out.reduction = what->kind == KEEL_EXCHANGE_MAX ? KEEL_MAX : KEEL_SUM;
    if (what->kind == KEEL_EXCHANGE_SUM_BITS)
        out.element = KEEL_ELEMENT_I32;
    return out;
}

/* From where the queue is now; the result is on the device when it returns. */
static enum keel_status exchange(struct keel_trainer *trainer, const struct keel_engine_exchange *what,
                                 struct keel_group *group, bool gives, uint64_t sequence)
{
    struct keel_sharing *tensor = &trainer->tensor;
    struct keel_device_place parts[KEEL_HOLD_NODES_MAX];
    keel_event_destroy(tensor->after);
    tensor->after = NULL;
    KEEL_TRY(keel_queue_mark(keel_engine_queue(trainer->engine), &tensor->after));
    KEEL_TRY(keel_queue_flush(keel_engine_queue(trainer->engine)));
    count_places(tensor, what, trainer->job->tensor);
    for (uint32_t i = 0; i < what->part_count; i++)
        parts[i] = (struct keel_device_place){what->parts[i], 0};
    struct keel_device_collective all = {.what = describe(tensor, what),
                                         .parts = parts,
                                         .result = {what->result, 0},
                                         .after = {&tensor->after, 1}};
    all.what.sequence = sequence;
    all.what.part_count = gives ? what->part_count : 0;
    KEEL_TRY(keel_device_collective_run(tensor->collectives, group, &all,
                                        keel_deadline_after_ns(trainer->stall_ns)));
    atomic_fetch_add(trainer->progress, 1);
    return KEEL_OK;
}

static struct keel_group *group_of(const struct keel_trainer_axes *axes,
                                   const struct keel_engine_exchange *what)
{
    return what->kind == KEEL_EXCHANGE_SUM ? axes->slices : axes->places;
}

/* The last numbers of a step are of what all ranks do once, however many exchanges each had: positions may
 * have more shards to compute, or none. */
enum { NUMBER_BITS = 24, NUMBER_NORM = (1 << NUMBER_BITS) - 3, NUMBER_AGREE, NUMBER_DIGEST };

static uint64_t sequence_in_tape(const struct keel_tape_run *run, uint64_t number)
{
    return ((run->step->step + 1) << NUMBER_BITS) + number;
}

enum keel_status keel_tape_exchange(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_engine_exchange *what = keel_engine_exchange(trainer->engine, action->piece);
    KEEL_ASSERT(what != NULL && run->exchanged < NUMBER_NORM);
    return exchange(trainer, what, group_of(trainer->tensor.axes, what), true,
                    sequence_in_tape(run, run->exchanged++));
}

/* ---- the end of a step --------------------------------------------------------------------------------- */

enum keel_status keel_tape_norm(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_axes *axes = trainer->tensor.axes;
    const struct keel_engine_source *from = action->slot >= 0 ? trainer->slots[action->slot].source : NULL;
    if (action->slot == KEEL_SUM_IN_PIECES)
        KEEL_TRY(keel_owned_sum(trainer));
    else
        KEEL_TRY(keel_engine_norm_begin(trainer->engine, from));
    return exchange(trainer, keel_engine_norm_exchange(trainer->engine), axes->norm, axes->gives_norm,
                    sequence_in_tape(run, NUMBER_NORM));
}

/* Waits for it. */
static enum keel_status join(struct keel_trainer *trainer, struct keel_group *group,
                             enum keel_element element, enum keel_reduction reduction, uint64_t count,
                             uint64_t sequence, const void *mine, void *all)
{
    const struct keel_collective what = keel_fold_of_ranks(sequence, element, reduction, count, &mine, all);
    return keel_group_run(group, &what, keel_deadline_after_ns(trainer->stall_ns));
}

/* The flags of all, and whether any says that ranks differ. */
static enum keel_status agree(struct keel_tape_run *run, bool differs)
{
    struct keel_sharing *tensor = &run->trainer->tensor;
    keel_spread_flags(differs ? 0 : run->result.flags, tensor->agree_mine);
    tensor->agree_mine[KEEL_STEP_FLAGS] = differs ? 1 : 0;
    return join(run->trainer, tensor->axes->view, KEEL_ELEMENT_U8, KEEL_MAX, sizeof tensor->agree_mine,
                sequence_in_tape(run, NUMBER_AGREE), tensor->agree_mine, tensor->agree_all);
}

/* What leads from here to the next step is here, whoever is lost from now on. Of pieces the layout says so.
 */
enum keel_status keel_tape_agree(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_sharing *tensor = &trainer->tensor;
    tensor->ready = (struct keel_ready_step){
        .is = !trainer->owned.on, .step = run->step->step, .slot = action->slot, .result = run->result};
    KEEL_TRY(agree(run, false));
    run->result.flags |= keel_join_flags(tensor->agree_all);
    if (tensor->agree_all[KEEL_STEP_FLAGS] == 0)
        return KEEL_OK;
    tensor->ready.is = false;
    return keel_fail(KEEL_MISMATCH,
                     "after step %llu ranks with other slices have different weights or losses",
                     (unsigned long long)run->step->step);
}

/* Who waits for the squares of these slices gets some, and does nothing with them. */
void keel_tensor_disagree(struct keel_tape_run *run)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_axes *axes = trainer->tensor.axes;
    const enum keel_status squares =
        trainer->owned.on ? keel_owned_sum(trainer) : keel_engine_norm_begin(trainer->engine, NULL);
    if (squares == KEEL_OK && exchange(trainer, keel_engine_norm_exchange(trainer->engine), axes->norm,
                                       axes->gives_norm, sequence_in_tape(run, NUMBER_NORM)) == KEEL_OK)
        (void)agree(run, true);
}

static uint64_t share_of_digest(uint32_t place, const uint64_t said[2])
{
    return said[0] - (place > 0 ? said[1] : 0);
}

uint64_t keel_trainer_whole_digest(const struct keel_trainer_axes *axes, const uint64_t (*said)[2])
{
    uint64_t digest = 0;
    for (uint32_t r = 0; r < axes->rank_count; r++) {
        const uint32_t place = axes->rank_place[r];
        if (axes->each_owns || axes->members[place] == r)
            digest += share_of_digest(place, said[r]);
    }
    return digest;
}

static enum keel_status sum_digests(struct keel_tape_run *run, struct keel_group *group, uint64_t mine)
{
    struct keel_sharing *tensor = &run->trainer->tensor;
    tensor->digest_mine = mine;
    return join(run->trainer, group, KEEL_ELEMENT_I64, KEEL_SUM, 1, sequence_in_tape(run, NUMBER_DIGEST),
                &tensor->digest_mine, &tensor->digest_all);
}

/* Of what each rank owns all are the model; else those of one data position are, and each position has a
 * digest of its own, for whoever compares them. Ranks of no position have that of the first. */
static enum keel_status find_digest(struct keel_tape_run *run, uint64_t share)
{
    const struct keel_trainer_axes *axes = run->trainer->tensor.axes;
    if (axes->each_owns)
        return sum_digests(run, axes->view, share);
    if (axes->norm != axes->places)
        KEEL_TRY(sum_digests(run, axes->view, axes->gives_norm ? share : 0));
    return axes->places != NULL ? sum_digests(run, axes->places, share) : KEEL_OK;
}

/* The update is done, whatever becomes of this. */
enum keel_status keel_tape_digest(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_sharing *tensor = &trainer->tensor;
    (void)action;
    if (trainer->gathered.on)
        KEEL_TRY(keel_gathered_own_digest(trainer, &trainer->digest, &tensor->shared));
    const uint64_t mine[2] = {trainer->digest, tensor->shared};
    tensor->ready.is = false;
    tensor->ready.updated = true;
    tensor->ready.result = run->result;
    KEEL_TRY(find_digest(run, share_of_digest(tensor->axes->place, mine)));
    run->result.digest = tensor->digest_all;
    tensor->ready.updated = false;
    if (trainer->gathered.on)
        trainer->owned.now.complete = true;
    return KEEL_OK;
}

bool keel_trainer_is_ready(const struct keel_trainer *trainer, uint64_t step)
{
    return trainer->tensor.ready.is && trainer->tensor.ready.step == step;
}

bool keel_trainer_take_updated(struct keel_trainer *trainer, struct keel_trainer_result *out)
{
    const bool updated = trainer->tensor.ready.updated;
    trainer->tensor.ready.updated = false;
    if (updated)
        *out = trainer->tensor.ready.result;
    return updated;
}

enum keel_status keel_trainer_finish_ready(struct keel_trainer *trainer, struct keel_trainer_result *out)
{
    struct keel_ready_step *ready = &trainer->tensor.ready;
    const struct keel_trainer_step step = {.step = ready->step};
    const struct keel_action update = {.kind = KEEL_ACTION_UPDATE, .slot = (int16_t)ready->slot};
    struct keel_tape_run run = {
        .trainer = trainer, .step = &step, .section = -1, .result = ready->result, .begun_ns = keel_now_ns()};
    KEEL_ASSERT(ready->is);
    ready->is = false;
    keel_tape_enter(&run, KEEL_HANG_UPDATE);
    enum keel_status status = keel_tape_update(&run, &update);
    keel_tape_leave(&run);
    *out = run.result;
    keel_trainer_drop(trainer);
    return status;
}

/* ---- outside of a step --------------------------------------------------------------------------------- */

/* Not one of the device's: it may be a rank that takes its time. */
static void drill_between(struct keel_trainer *trainer, enum keel_drill_phase at)
{
    keel_hang_leave(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
    keel_trainer_drill(trainer, at);
    keel_hang_enter(trainer->hangs, KEEL_HANG_EVAL, keel_now_ns());
}

enum keel_status keel_tensor_evaluate(struct keel_trainer *trainer, const struct keel_engine_batch *batch,
                                      enum keel_drill_phase at, uint64_t deadline_ns, float *out_loss)
{
    struct keel_trainer_axes *axes = trainer->tensor.axes;
    const uint32_t segments = keel_engine_eval_segment_count(trainer->engine);
    KEEL_TRY(keel_engine_eval_begin(trainer->engine, batch));
    for (uint32_t s = 0; s < segments; s++) {
        const struct keel_engine_exchange *what = keel_engine_eval_exchange(trainer->engine, s);
        KEEL_TRY(keel_gathered_evaluate(trainer, s, deadline_ns));
        if (s == segments / 2)
            drill_between(trainer, at);
        KEEL_TRY(keel_engine_eval_segment(trainer->engine, s));
        if (what != NULL)
            KEEL_TRY(exchange(trainer, what, group_of(axes, what), true,
                              KEEL_SEQUENCE_EVALUATION + axes->sequence++));
    }
    return keel_engine_eval_end(trainer->engine, deadline_ns, out_loss);
}

enum keel_status keel_tensor_logits(struct keel_trainer *trainer, uint32_t row, uint32_t vocab,
                                    uint64_t deadline_ns, float *out)
{
    const struct keel_shape shape = keel_engine_output_shape(trainer->engine);
    const uint64_t own = shape.size[shape.dims - 1];
    struct keel_sharing *tensor = &trainer->tensor;
    struct keel_trainer_axes *axes = tensor->axes;
    if (own == vocab)
        return keel_engine_evaluated(trainer->engine, row, 1, deadline_ns, out);
    KEEL_TRY(keel_engine_evaluated(trainer->engine, row, 1, deadline_ns, out + vocab));
    for (uint32_t k = 0; k < axes->count; k++)
        tensor->counts[k] = keel_slice_begin(vocab, trainer->job->tensor, axes->begin[k + 1]) -
                            keel_slice_begin(vocab, trainer->job->tensor, axes->begin[k]);
    KEEL_ASSERT(tensor->counts[axes->place] == own);
    const void *parts[] = {out + vocab};
    const struct keel_collective all = {.kind = KEEL_ALL_GATHER_V,
                                        .sequence = KEEL_SEQUENCE_EVALUATION + axes->sequence++,
                                        .element = KEEL_ELEMENT_F32,
                                        .counts_out = tensor->counts,
                                        .parts = parts,
                                        .part_count = 1,
                                        .result = out};
    return keel_group_run(axes->places, &all, deadline_ns);
}

/* Of the warm-up, where there are no others: what this rank gives stands for the whole, and the rest is zero.
 */
static enum keel_status pretend(struct keel_trainer *trainer, const struct keel_engine_exchange *what)
{
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    const struct keel_sharing *tensor = &trainer->tensor;
    const uint32_t of = trainer->job->tensor;
    const uint64_t whole = (uint64_t)what->units * what->unit;
    const uint64_t first = keel_engine_exchange_count(what, of, 0, tensor->first);
    const uint64_t own = keel_engine_exchange_count(what, of, tensor->first, tensor->count);
    const bool gather = what->kind == KEEL_EXCHANGE_GATHER;
    KEEL_TRY(keel_queue_fill(queue, what->result, 0, (what->scatter ? own : whole) * sizeof(float), 0, NULL,
                             NULL));
    return keel_queue_copy(queue, what->parts[0], (what->scatter ? first : 0) * sizeof(float), what->result,
                           (gather ? first : 0) * sizeof(float),
                           (gather || what->scatter ? own : whole) * sizeof(float), NULL, NULL);
}

enum keel_status keel_tensor_pretend_segment(struct keel_trainer *trainer, uint32_t segment)
{
    const struct keel_engine_exchange *what = keel_engine_exchange(trainer->engine, segment);
    KEEL_TRY(keel_gathered_pretend(trainer, false, segment));
    KEEL_TRY(keel_engine_segment(trainer->engine, segment));
    return what != NULL ? pretend(trainer, what) : KEEL_OK;
}

enum keel_status keel_tensor_pretend(struct keel_trainer *trainer, const struct keel_engine_batch *batch)
{
    KEEL_TRY(keel_engine_feed(trainer->engine, batch));
    for (uint32_t s = 0; s < keel_engine_segment_count(trainer->engine); s++)
        KEEL_TRY(keel_tensor_pretend_segment(trainer, s));
    return keel_queue_flush(keel_engine_queue(trainer->engine));
}

enum keel_status keel_tensor_pretend_rest(struct keel_trainer *trainer, const struct keel_engine_batch *batch,
                                          uint64_t deadline_ns)
{
    float loss;
    KEEL_TRY(keel_engine_eval_begin(trainer->engine, batch));
    for (uint32_t s = 0; s < keel_engine_eval_segment_count(trainer->engine); s++) {
        const struct keel_engine_exchange *what = keel_engine_eval_exchange(trainer->engine, s);
        KEEL_TRY(keel_gathered_pretend(trainer, true, s));
        KEEL_TRY(keel_engine_eval_segment(trainer->engine, s));
        if (what != NULL)
            KEEL_TRY(pretend(trainer, what));
    }
    return keel_engine_eval_end(trainer->engine, deadline_ns, &loss);
}

enum keel_status keel_tensor_pretend_norm(struct keel_trainer *trainer)
{
    if (!trainer->owned.on)
        KEEL_TRY(keel_engine_norm_begin(trainer->engine, NULL));
    return pretend(trainer, keel_engine_norm_exchange(trainer->engine));
}
