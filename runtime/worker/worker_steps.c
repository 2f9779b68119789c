/* worker_steps.c - the step loop: train, commit, report, snapshot. */
#include "worker_internal.h"
#include <keel/bits.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <string.h>

/* What comes behind a step is of that one. */
void keel_worker_drill(void *context, unsigned phase)
{
    struct keel_worker *worker = context;
    const bool behind = phase == KEEL_AT_EVAL || phase == KEEL_AT_TEXT;
    struct keel_drill_place place = {.step = worker->next_step + (behind ? 0 : 1),
                                     .phase = (enum keel_drill_phase)phase,
                                     .rank = worker->rank,
                                     .node = worker->node,
                                     .leader = worker->position == 0};
    keel_drill_fire(&worker->drills, &place);
}

static enum keel_status screen_board(void *context)
{
    struct keel_worker *worker = context;
    return keel_sdc_check_step(worker->screen, worker->next_step + 1);
}

static enum keel_status quarantine_board(void *context, const char *evidence)
{
    struct keel_worker *worker = context;
    struct keel_sdc_check_config config = keel_worker_screen(worker);
    return keel_sdc_check_quarantine(&config, worker->next_step + 1, evidence);
}

/* Of a rank that is outvoted the worker begins again, as a newcomer; the others go on without it. */
static enum keel_status judge(void *context, const struct keel_trainer_vote *vote)
{
    struct keel_worker *worker = context;
    const struct keel_sdc_check_config config = keel_worker_screen(worker);
    if (vote->mine && vote->board)
        return keel_sdc_check_outvoted(&config, worker->next_step + 1, vote->evidence);
    if (vote->mine)
        return keel_fail(KEEL_DEVICE_LOST, "%s: this rank begins again", vote->evidence);
    struct keel_trainer_vote told = *vote;
    if (keel_worker_shares(worker) || keel_worker_gathers(worker)) /* others know of slices, or of pieces */
        told.digest = worker->digest;
    if (vote->tells)
        keel_worker_note_outvoted(worker, &told);
    return keel_fail(KEEL_PEER_LOST, "%s: the others do the step without it", vote->evidence);
}

/* Steps are numbered from 1 for people: step n leads to the state that a snapshot calls step n. */
static struct keel_step_record record_of(const struct keel_worker *worker,
                                         const struct keel_trainer_result *result, uint64_t now_ns)
{
    const struct keel_job *job = &worker->job;
    uint64_t tokens =
        (uint64_t)job->batch * keel_data_sample_tokens(worker->data) * job->microbatches * job->shards;
    struct keel_step_record record = {.step = worker->next_step + 1,
                                      .loss_bits = worker->loss_bits,
                                      .grad_norm_bits = keel_bits_of(result->grad_norm),
                                      .learning_rate_bits = keel_bits_of(result->learning_rate),
                                      .loss_scale_bits = keel_bits_of(result->loss_scale),
                                      .tokens = tokens * (worker->next_step + 1),
                                      .epoch = worker->view.epoch,
                                      .digest = result->digest,
                                      .duration_ns = now_ns - worker->committed_ns,
                                      .exposed_comm_ns = result->exposed_comm_ns,
                                      .snapshot_stall_ns = result->snapshot_stall_ns};
    if (worker->first_step_of_view) {
        record.sync_ns = worker->sync_ns;
        record.heal_ns = worker->heal_ns;
        record.heal_bytes = worker->healed.bytes;
        record.heal_ranks = worker->healed.senders;
        record.redo_ns = result->compute_ns;
        if (worker->interrupted)
            record.redo_microbatches = result->computed_microbatches;
    }
    return record;
}

/* Ranks of no complete data position cannot evaluate: they are told, and give the weights that they own. */
static enum keel_status evaluate_shared(struct keel_worker *worker, struct keel_scores *out)
{
    struct keel_worker_axes *axes = &worker->axes;
    const struct keel_axes *map = &axes->map;
    const uint32_t root = map->first[0];
    const void *parts[] = {&axes->scores};
    if (axes->tensor == 1 || map->index[worker->position] < map->data)
        KEEL_TRY(keel_trainer_eval(worker->trainer, out));
    else if (keel_worker_gathers(worker) && keel_data_val_samples(worker->data) > 0)
        KEEL_TRY(keel_trainer_give_weights(worker->trainer, worker->job.eval_batches, KEEL_AT_EVAL));
    if (axes->tensor == 1 || map->ranks == map->data * map->tensor)
        return KEEL_OK;
    axes->scores = (uint64_t)out->has_loss << 32 | keel_bits_of(out->loss);
    const struct keel_collective all = {.kind = KEEL_BROADCAST,
                                        .sequence = KEEL_SEQUENCE_SCORES + axes->evaluations++,
                                        .element = KEEL_ELEMENT_U8,
                                        .root = root,
                                        .count = sizeof axes->scores,
                                        .parts = parts,
                                        .part_count = worker->position == root ? 1 : 0,
                                        .result = &axes->all_scores};
    KEEL_TRY(keel_group_run(worker->group, &all, keel_deadline_after_ns(worker->stall_ns)));
    const uint32_t loss_bits = (uint32_t)axes->all_scores;
    out->has_loss = axes->all_scores >> 32 != 0;
    memcpy(&out->loss, &loss_bits, sizeof loss_bits);
    return KEEL_OK;
}

struct scoring {
    struct keel_worker *worker;
    struct keel_scores *out;
};

static enum keel_status score(void *context)
{
    const struct scoring *scoring = context;
    return keel_worker_shares(scoring->worker) ? evaluate_shared(scoring->worker, scoring->out)
                                               : keel_trainer_eval(scoring->worker->trainer, scoring->out);
}

/* With train.ema of the averages, which is what such a run is for; before the first step there is none. */
static enum keel_status find_scores(struct keel_worker *worker, struct keel_scores *out)
{
    struct scoring scoring = {worker, out};
    *out = (struct keel_scores){.has_loss = false};
    if (worker->job.ema <= 0.0F || worker->next_step == 0)
        return score(&scoring);
    if (worker->snapshot.save != NULL && /* a capture may still read the weights */
        keel_save_wait_captured(worker->snapshot.save, keel_deadline_after_ns(worker->stall_ns)) ==
            KEEL_TIMEOUT)
        return KEEL_TIMEOUT;
    return keel_trainer_with_averages(worker->trainer, score, &scoring);
}

static enum keel_status evaluate(struct keel_worker *worker, struct keel_step_record *record)
{
    const struct keel_job *job = &worker->job;
    bool due =
        job->eval_every > 0 && (worker->next_step % job->eval_every == 0 || worker->next_step == job->steps);
    if (!due)
        return KEEL_OK;
    struct keel_scores scores;
    KEEL_TRY(find_scores(worker, &scores));
    if (scores.has_loss)
        keel_worker_early_add(worker, scores.loss);
    record->has_val_loss = scores.has_loss;
    record->val_loss_bits = keel_bits_of(scores.loss);
    record->has_val_accuracy = scores.has_accuracy;
    record->val_accuracy_bits = keel_bits_of(scores.accuracy);
    return KEEL_OK;
}

static uint64_t sent_bytes(const struct keel_worker *worker)
{
    struct keel_transport_stats stats = {.data_sent = 0};
    if (worker->endpoint != NULL) /* a job of one rank has none */
        keel_endpoint_stats(worker->endpoint, &stats);
    return stats.data_sent;
}

static enum keel_status say_healed(struct keel_worker *worker, const struct keel_trainer_result *result)
{
    struct keel_link_message message = {.kind = KEEL_LINK_STEP};
    const uint64_t now_ns = keel_now_ns();
    worker->loss_bits = keel_bits_of(result->loss);
    worker->loss_step = worker->next_step--; /* as when it was done */
    message.as.record = record_of(worker, result, now_ns);
    worker->next_step++;
    worker->stepped_ns += message.as.record.duration_ns;
    worker->committed_ns = now_ns;
    KEEL_TRY(evaluate(worker, &message.as.record));
    keel_inbox_say(&worker->inbox, &message);
    return KEEL_OK;
}

void keel_worker_say_healed(struct keel_worker *worker, const struct keel_trainer_result *result)
{
    (void)say_healed(worker, result);
}

enum keel_status keel_worker_say_rest(struct keel_worker *worker)
{
    struct keel_step_record scratch = {.step = worker->next_step};
    const bool mine = worker->unsaid_step > 0 && worker->unsaid_step == worker->next_step;
    if (!mine)
        return evaluate(worker, &scratch);
    KEEL_TRY(say_healed(worker, &worker->unsaid));
    worker->unsaid_step = 0;
    return KEEL_OK;
}

/* Of ranks that share slices, or gather weights: the update is done, but not all that is said of it. */
static void leave_unsaid(struct keel_worker *worker, const struct keel_trainer_result *result)
{
    worker->unsaid = *result;
    worker->unsaid_step = worker->next_step;
    worker->loss_bits = keel_bits_of(result->loss);
    worker->loss_step = worker->next_step;
}

/* Its ranks are those with the same slices, where they are shared. */
static void share_step(const struct keel_worker *worker, struct keel_trainer_step *step)
{
    const struct keel_worker_axes *axes = &worker->axes;
    step->group = axes->column;
    step->position = axes->map.index[worker->position];
    step->rank_count = axes->map.column_count[axes->map.place[worker->position]];
    step->position_rank = axes->column_names;
    step->shard_position = axes->shard_index;
}

/* *out_flags: of all ranks. */
static enum keel_status one_step(struct keel_worker *worker, uint64_t *out_flags)
{
    struct keel_trainer_step step = {
        .step = worker->next_step,
        .epoch = worker->view.epoch,
        .group = worker->group,
        .position = worker->position,
        .rank_count = worker->rank_count,
        .position_rank = worker->position_rank,
        .shard_position = worker->shard_position,
        .sharers = worker->axes.sharers,
        .save = worker->snapshot.save,
        .flags = keel_worker_snapshot_flags(worker),
        .saving_flag = KEEL_STEP_FLAG_WAIT,
        .loss_bits = worker->loss_bits,
        .has_loss = worker->next_step > 0 && worker->loss_step == worker->next_step,
        .screen = {.wrong = quarantine_board, .outvoted = judge, .context = worker}};
    struct keel_trainer_result result;
    if (worker->job.screen_every > 0 && (worker->next_step + 1) % worker->job.screen_every == 0)
        step.screen.pass = screen_board;
    if (keel_worker_shares(worker))
        share_step(worker, &step);
    keel_worker_drill(worker, KEEL_AT_FORWARD);
    const uint64_t sent_before = sent_bytes(worker);
    enum keel_status status = keel_trainer_run(worker->trainer, &step, &result);
    if (status != KEEL_OK) {
        worker->interrupted = true;
        if (keel_trainer_take_updated(worker->trainer, &result)) {
            worker->next_step++;
            leave_unsaid(worker, &result);
        }
        return status;
    }
    worker->loss_bits = keel_bits_of(result.loss);
    worker->loss_step = worker->next_step + 1;
    keel_worker_drill(worker, KEEL_AT_COMMIT);
    uint64_t now_ns = keel_now_ns();
    struct keel_link_message message = {.kind = KEEL_LINK_STEP};
    struct keel_step_record record = record_of(worker, &result, now_ns);
    record.sent_bytes = sent_bytes(worker) - sent_before;
    worker->stepped_ns += record.duration_ns;
    worker->committed_ns = now_ns;
    worker->digest = result.digest;
    worker->next_step++;
    worker->digest_of = worker->next_step + 1;
    if (worker->first_step_of_view)
        keel_worker_note_memory(worker);
    worker->first_step_of_view = worker->interrupted = false;
    status = evaluate(worker, &record);
    if (status != KEEL_OK && (keel_worker_shares(worker) || keel_worker_evaluates_together(worker)))
        leave_unsaid(worker, &result);
    KEEL_TRY(status);
    message.as.record = record;
    keel_inbox_say(&worker->inbox, &message);
    *out_flags = result.flags;
    return KEEL_OK;
}

static bool snapshot_due(const struct keel_worker *worker)
{
    const struct keel_job *job = &worker->job;
    return job->snapshot_every > 0 && worker->store != NULL &&
           (worker->next_step % job->snapshot_every == 0 || worker->next_step == job->steps);
}

/* One that no other stands in the way of: the last, and with train.patience that of an evaluation, which may
 * be the best. */
static bool snapshot_is_sure(const struct keel_worker *worker)
{
    const struct keel_job *job = &worker->job;
    return snapshot_due(worker) && (worker->next_step == job->steps ||
                                    (job->patience > 0 && worker->next_step % job->eval_every == 0));
}

/* train.steps = 0: no step, but what the weights are worth as they are. */
static enum keel_status evaluate_only(struct keel_worker *worker)
{
    struct keel_scores scores;
    KEEL_TRY(find_scores(worker, &scores));
    if (worker->position == 0)
        keel_worker_note_scores(worker, &scores);
    return KEEL_OK;
}

/* snapshot.local: the ranks of a view commit together, so all stop behind one step, and take it there. */
static enum keel_status stop_together(struct keel_worker *worker)
{
    keel_worker_snapshot_poll(worker, true);
    if (worker->job.snapshot_every > 0 && !keel_worker_snapshot_has_begun(worker)) {
        keel_worker_snapshot_begin(worker, false);
        keel_worker_snapshot_poll(worker, true);
    }
    keel_worker_guard_drain(worker);
    return keel_fail(KEEL_INTERRUPTED, "stopped behind step %llu", (unsigned long long)worker->next_step);
}

enum keel_status keel_worker_run_steps(struct keel_worker *worker)
{
    if (worker->job.steps > 0)
        keel_worker_snapshot_prepare(worker);
    keel_worker_snapshot_first(worker);
    if (worker->job.steps == 0)
        return evaluate_only(worker);
    while (worker->next_step < worker->job.steps) {
        if (keel_worker_early_ends(worker))
            return stop_together(worker);
        if (worker->tiers.near == NULL && keel_inbox_stopping(&worker->inbox))
            return keel_fail(KEEL_INTERRUPTED, "stopped before step %llu",
                             (unsigned long long)worker->next_step);
        if (keel_inbox_newer(&worker->inbox,
                             worker->view.epoch)) /* who is alone has no group to be revoked */
            return keel_fail(KEEL_REVOKED, "a newer view came before step %llu",
                             (unsigned long long)worker->next_step);
        uint64_t flags;
        KEEL_TRY(one_step(worker, &flags));
        bool last = worker->next_step == worker->job.steps;
        if ((flags & KEEL_STEP_FLAG_FAILED) != 0)
            keel_worker_snapshot_give_up(worker);
        keel_worker_snapshot_poll(worker, snapshot_is_sure(worker));
        KEEL_TRY(keel_worker_guard_broken(worker));
        keel_worker_snapshot_age(worker);
        /* All ranks begin one, or none does: of one that is sure each has waited for its own before. */
        bool due = snapshot_due(worker),
             wait = (flags & KEEL_STEP_FLAG_WAIT) != 0 && !snapshot_is_sure(worker);
        if (due && wait)
            keel_worker_snapshot_skip(worker);
        else if (due || ((flags & KEEL_STEP_FLAG_SNAPSHOT) != 0 && !wait))
            keel_worker_snapshot_begin(worker, !due);
        if ((flags & KEEL_STEP_FLAG_STOP) != 0 && !last)
            return stop_together(worker);
    }
    return KEEL_OK;
}
