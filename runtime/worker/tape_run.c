/* tape_run.c - the executor: performs the actions of a tape, one after the other.
 *
 * Allocates nothing: what a tape needs was made before it runs. Asserts before an action what the tape
 * promised, since a tape that is wrong would add up other gradients and tell nobody.
 *
 * Everything that a step launches goes through here: drivers may run a kernel inside its launch, so each
 * action that talks to the device stands in a section of the hang watch. Consecutive actions of one section
 * are one section: a microbatch with what is added and marked behind its segments, a wait, the update. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NO_SECTION = -1 };

void keel_tape_leave(struct keel_tape_run *run)
{
    if (run->section != NO_SECTION)
        keel_hang_leave(run->trainer->hangs, (enum keel_hang_section)run->section, keel_now_ns());
    run->section = NO_SECTION;
}

void keel_tape_enter(struct keel_tape_run *run, enum keel_hang_section section)
{
    KEEL_ASSERT(run->section == NO_SECTION);
    keel_hang_enter(run->trainer->hangs, section, keel_now_ns());
    run->section = (int)section;
}

/* ---- launches ------------------------------------------------------------------------------------------ */

static enum keel_status zero(struct keel_tape_run *run, const struct keel_action *action)
{
    (void)action;
    KEEL_ASSERT(keel_hold_in_gradients(&run->trainer->hold) == NULL);
    run->chain_count = 0;
    return keel_engine_zero(run->trainer->engine);
}

/* Its samples are made outside the section: the device has no part in that. */
static enum keel_status feed(struct keel_tape_run *run, uint32_t shard, uint32_t microbatch)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_job *job = trainer->job;
    const uint32_t number = shard * job->microbatches + microbatch;
    struct keel_engine_batch batch = {.inputs = keel_trainer_inputs(trainer),
                                      .seed = job->seed,
                                      .step = (uint32_t)run->step->step,
                                      .microbatch = number,
                                      .more = microbatch + 1 < job->microbatches};
    keel_tape_leave(run);
    KEEL_TRY(keel_data_train_batch(trainer->data, run->step->step, number, job->shards * job->microbatches,
                                   trainer->inputs));
    keel_tape_enter(run, KEEL_HANG_COMPUTE);
    return keel_engine_feed(trainer->engine, &batch);
}

static enum keel_status compute(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    const bool all = action->piece == KEEL_PIECE_ALL;
    const uint32_t rest = keel_engine_segment_count(trainer->engine) - 1; /* the segment behind all others */
    const uint32_t first = all ? 0 : action->piece, last = all ? rest : action->piece;
    KEEL_ASSERT(run->step->shard_position[action->shard] == run->step->position);
    KEEL_ASSERT(!keel_hold_covers(run->summing ? &run->before : &trainer->hold, action->shard));
    for (uint32_t m = 0; m < action->microbatch_count; m++) {
        if (first == 0)
            KEEL_TRY(feed(run, action->shard, action->microbatch + m));
        for (uint32_t segment = first; segment <= last; segment++)
            KEEL_TRY(keel_engine_segment(trainer->engine, segment));
        if (last < rest &&
            trainer->gathered.on) /* the host waits for weights next: the device has this to do */
            KEEL_TRY(keel_queue_flush(keel_engine_queue(trainer->engine)));
        if (last < rest)
            continue;
        KEEL_TRY(keel_queue_flush(keel_engine_queue(trainer->engine)));
        atomic_fetch_add(trainer->progress, 1);
    }
    return KEEL_OK;
}

static enum keel_status mark(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    KEEL_ASSERT(trainer->bucket_events[action->piece] == NULL);
    KEEL_TRY(keel_queue_mark(queue, &trainer->bucket_events[action->piece]));
    return keel_queue_flush(queue);
}

/* The nodes are adopted only now that all is enqueued: an attempt that ends before has what it had. */
static enum keel_status hold(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    int merged[KEEL_HOLD_LEVELS_MAX];
    struct keel_partial_sums next = trainer->hold;
    const uint32_t count = keel_hold_add(&next, action->shard, merged);
    KEEL_ASSERT(count == run->chain_count);
    for (uint32_t i = 0; i < count; i++)
        KEEL_ASSERT(merged[i] == run->chain[i]);
    KEEL_TRY(keel_queue_flush(keel_engine_queue(trainer->engine)));
    if (keel_trainer_windowed(trainer) && action->slot == KEEL_HOLD_GRADIENTS) {
        run->before = trainer->hold;
        run->summing = true;
    } else if (keel_trainer_windowed(trainer)) {
        keel_hold_in_gradients(&next)->slot = action->slot;
    }
    trainer->hold = next;
    return KEEL_OK;
}

enum keel_status keel_tape_update(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_job *job = trainer->job;
    struct keel_trainer_result *result = &run->result;
    result->learning_rate = keel_job_learning_rate(job, run->step->step);
    struct keel_engine_update request = {.from =
                                             action->slot >= 0 ? trainer->slots[action->slot].source : NULL,
                                         .settings = job->update,
                                         .learning_rate = result->learning_rate,
                                         .step = (uint32_t)run->step->step,
                                         .never_skip = !isfinite(result->loss)};
    struct keel_engine_updated updated;
    if (action->slot == KEEL_SUM_IN_PIECES)
        KEEL_TRY(keel_owned_update(run, &request, &updated));
    else
        KEEL_TRY(keel_engine_update(trainer->engine, &request, keel_deadline_after_ns(trainer->stall_ns),
                                    &updated));
    result->grad_norm = updated.grad_norm;
    result->loss_scale = updated.loss_scale;
    result->digest = updated.digest;
    trainer->digest = updated.digest;
    trainer->tensor.shared = updated.digest_shared;
    return KEEL_OK;
}

/* ---- waits, and what is looked at ---------------------------------------------------------------------- */

static enum keel_status finish(struct keel_tape_run *run, const struct keel_action *action)
{
    (void)action;
    const struct keel_trainer *trainer = run->trainer;
    return keel_queue_finish(keel_engine_queue(trainer->engine), keel_deadline_after_ns(trainer->stall_ns));
}

static enum keel_status settle(struct keel_tape_run *run, const struct keel_action *action)
{
    const struct keel_trainer_screen *screen = &run->step->screen;
    char evidence[KEEL_DETAIL_BYTES];
    (void)action;
    enum keel_status status =
        keel_engine_settle(run->trainer->engine, keel_deadline_after_ns(run->trainer->stall_ns));
    keel_tape_leave(run);
    if (status == KEEL_OK)
        run->result.loss = run->trainer->losses[0]; /* of a rank alone; AWAIT brings that of several */
    if (status != KEEL_CORRUPT || screen->wrong == NULL)
        return status;
    snprintf(evidence, sizeof evidence, "%s", keel_detail());
    return screen->wrong(screen->context, evidence);
}

/* The device is idle now, and the network is not. */
static enum keel_status screen(struct keel_tape_run *run, const struct keel_action *action)
{
    (void)action;
    return run->step->screen.pass != NULL ? run->step->screen.pass(run->step->screen.context) : KEEL_OK;
}

static enum keel_status drill(struct keel_tape_run *run, const struct keel_action *action)
{
    keel_trainer_drill(run->trainer, action->piece == 0 ? KEEL_AT_REDUCE : KEEL_AT_SPREAD);
    return KEEL_OK;
}

static enum keel_status digest(struct keel_tape_run *run, const struct keel_action *action)
{
    return run->trainer->tensor.count > 0 ? keel_tape_digest(run, action) : keel_gathered_digest(run, action);
}

/* A snapshot still reads the weights. */
static enum keel_status capture(struct keel_tape_run *run, const struct keel_action *action)
{
    const struct keel_trainer *trainer = run->trainer;
    const uint64_t since = keel_now_ns();
    (void)action;
    run->result.compute_ns = since - run->begun_ns - run->result.exposed_comm_ns;
    if (run->step->save == NULL)
        return KEEL_OK;
    enum keel_status captured =
        keel_save_wait_captured(run->step->save, keel_deadline_after_ns(trainer->stall_ns));
    run->result.snapshot_stall_ns = keel_now_ns() - since;
    if (captured == KEEL_OK)
        keel_hang_trust(trainer->hangs, KEEL_HANG_CAPTURE);
    return captured == KEEL_TIMEOUT ? captured : KEEL_OK; /* a save that failed is its owner's to report */
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static const struct {
    enum keel_status (*run)(struct keel_tape_run *, const struct keel_action *);
    int section; /* enum keel_hang_section, or NO_SECTION */
} performers[KEEL_ACTION_COUNT] = {
    [KEEL_ACTION_ZERO] = {zero, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_COMPUTE] = {compute, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_ADD] = {keel_tape_add, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_UPDATE] = {keel_tape_update, KEEL_HANG_UPDATE},
    [KEEL_ACTION_STORE] = {keel_tape_store, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_LOSS] = {keel_tape_loss, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_ENCODE] = {keel_tape_encode, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_DECODE] = {keel_tape_decode, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_COMPARE] = {keel_tape_compare, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_REDUCE] = {keel_tape_reduce, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_FINISH] = {finish, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_SETTLE] = {settle, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_AWAIT] = {keel_tape_await, NO_SECTION},
    [KEEL_ACTION_CAPTURE] = {capture, NO_SECTION},
    [KEEL_ACTION_MARK] = {mark, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_HOLD] = {hold, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_RECORD] = {keel_tape_record, NO_SECTION},
    [KEEL_ACTION_DRILL] = {drill, NO_SECTION},
    [KEEL_ACTION_SCREEN] = {screen, NO_SECTION},
    [KEEL_ACTION_CHECK] = {keel_tape_check_records, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_SHADOW] = {keel_tape_shadow, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_SQUARE] = {keel_tape_square, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_COMMIT] = {keel_tape_commit, NO_SECTION},
    [KEEL_ACTION_SPREAD] = {keel_tape_spread, KEEL_HANG_COMPUTE},
    [KEEL_ACTION_EXCHANGE] = {keel_tape_exchange, NO_SECTION},
    [KEEL_ACTION_NORM] = {keel_tape_norm, NO_SECTION},
    [KEEL_ACTION_AGREE] = {keel_tape_agree, NO_SECTION},
    [KEEL_ACTION_WEIGHTS] = {keel_tape_weights, NO_SECTION},
    [KEEL_ACTION_DIGEST] = {digest, NO_SECTION},
};

static bool waits_for_others(enum keel_action_kind kind)
{
    return kind == KEEL_ACTION_AWAIT || kind == KEEL_ACTION_EXCHANGE || kind == KEEL_ACTION_NORM ||
           kind == KEEL_ACTION_AGREE || kind == KEEL_ACTION_DIGEST;
}

static enum keel_status perform(struct keel_tape_run *run, const struct keel_action *action)
{
    const int section = performers[action->kind].section;
    if (section != run->section) {
        keel_tape_leave(run);
        if (section != NO_SECTION)
            keel_tape_enter(run, (enum keel_hang_section)section);
    }
    const uint64_t since_ns = keel_now_ns(), device_ns = run->trainer->device_ns;
    KEEL_TRY(performers[action->kind].run(run, action));
    if (waits_for_others(action->kind))
        run->result.exposed_comm_ns += keel_now_ns() - since_ns - (run->trainer->device_ns - device_ns);
    return KEEL_OK;
}

/* Weights may be half overwritten. */
static enum keel_status no_way_back(const struct keel_tape_run *run)
{
    return keel_fail(KEEL_DEVICE_LOST, "step %llu: the device did not end the update in time",
                     (unsigned long long)run->step->step);
}

enum keel_status keel_tape_run(struct keel_tape_run *run)
{
    struct keel_trainer *trainer = run->trainer;
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < trainer->tape.count && status == KEEL_OK; i++) {
        const struct keel_action *action = &trainer->tape.actions[i];
        status = perform(run, action);
        if (action->kind == KEEL_ACTION_REDUCE || action->kind == KEEL_ACTION_AWAIT ||
            action->kind == KEEL_ACTION_UPDATE)
            atomic_fetch_add(trainer->progress, 1);
        if (status == KEEL_TIMEOUT && performers[action->kind].section == KEEL_HANG_UPDATE)
            status = no_way_back(run);
    }
    keel_tape_leave(run);
    if (status != KEEL_OK && run->summing) /* the windows hold no node */
        trainer->hold = run->before;
    if (status != KEEL_OK) { /* the group's close and the reset behind it release what is under way */
        memset(trainer->sums, 0, trainer->bucket_count * sizeof(struct keel_device_operation *));
        memset(trainer->operations, 0, (trainer->bucket_count + 4) * sizeof(struct keel_operation *));
        trainer->copies = NULL;
        keel_gathered_forget(trainer);
        memset(trainer->owned.copies, 0, sizeof trainer->owned.copies);
        memset(trainer->owned.gathers, 0, sizeof trainer->owned.gathers);
    }
    return status;
}
