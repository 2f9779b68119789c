/* worker_early.c - train.patience with snapshot.local: the ranks know by themselves where the run ends.
 *
 * Nodes commit there by themselves, so who leads cannot hold back what lies behind the end. All ranks have
 * each validation loss, and end behind the step that the rule names (early_stop.h), with its snapshot as the
 * newest; who leads finds the same step in its lines. What the rule must know of the losses before is in the
 * manifest of each snapshot, as of its step; the ranks of a view say it to one another, and all go on from
 * the newest that one of them knows. Where none does, of a snapshot from elsewhere or of another rule, it
 * begins anew: then it ends no earlier than the lines say, by who leads. */
#include "worker_internal.h"
#include <inttypes.h>
#include <jansson.h>
#include <keel/bits.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* What a rank says. */
struct early_word {
    uint64_t known, step, worse, best_step, best_bits;
};

static bool is_asked(const struct keel_worker *worker)
{
    return worker->tiers.near != NULL && worker->job.patience > 0 && worker->job.steps > 0;
}

static void begin_anew(struct keel_worker *worker)
{
    worker->early =
        (struct keel_early_stop){.patience = worker->job.patience, .min_delta = worker->job.min_delta};
    worker->early_known = true;
}

void keel_worker_early_add(struct keel_worker *worker, float loss)
{
    if (is_asked(worker))
        keel_early_stop_add(&worker->early, worker->next_step, loss);
}

bool keel_worker_early_ends(const struct keel_worker *worker)
{
    return is_asked(worker) && worker->early.end_step != 0 && worker->early.end_step == worker->next_step;
}

const char *keel_worker_early_text(const struct keel_worker *worker, const struct keel_early_stop *early,
                                   char out[KEEL_EARLY_TEXT_BYTES])
{
    if (!is_asked(worker))
        return NULL;
    snprintf(out, KEEL_EARLY_TEXT_BYTES,
             "{\"early_stop\":{\"step\":%" PRIu64 ",\"worse\":%" PRIu32 ",\"best_step\":%" PRIu64
             ",\"best_bits\":%" PRIu32 ",\"delta_bits\":%" PRIu32 "}}",
             early->step, early->worse, early->best.step, keel_bits_of(early->best.loss),
             keel_bits_of(early->min_delta));
    return out;
}

/* False: it does not say it, or of another rule. */
static bool parse(const struct keel_worker *worker, const char *text, struct early_word *out)
{
    json_error_t error;
    json_int_t step, worse, best_step, best_bits, delta_bits;
    json_t *object = json_loads(text, 0, &error);
    const bool whole =
        json_unpack(object, "{s:{s:I, s:I, s:I, s:I, s:I}}", "early_stop", "step", &step, "worse", &worse,
                    "best_step", &best_step, "best_bits", &best_bits, "delta_bits", &delta_bits) == 0 &&
        step >= 0 && worse >= 0 && worse <= (json_int_t)worker->job.patience && best_step >= 0 &&
        best_step <= step && best_bits >= 0 && best_bits <= (json_int_t)UINT32_MAX &&
        delta_bits == (json_int_t)keel_bits_of(worker->job.min_delta);
    json_decref(object);
    if (whole)
        *out =
            (struct early_word){1, (uint64_t)step, (uint64_t)worse, (uint64_t)best_step, (uint64_t)best_bits};
    return whole;
}

/* From the manifest of the snapshot that was taken; each node has it. */
static void recall(const struct keel_worker *worker, struct early_word *out)
{
    const struct keel_tier_offer *chosen = &worker->tiers.chosen;
    struct keel_snapshot *snapshot;
    if (keel_snapshot_open_here(worker->store, chosen->step, chosen->attempt, &snapshot) != KEEL_OK)
        return;
    (void)parse(worker, keel_snapshot_metadata(snapshot), out);
    keel_snapshot_close(snapshot);
}

static void say_mine(const struct keel_worker *worker, bool had_state, uint64_t before,
                     struct early_word *out)
{
    const struct keel_early_stop *early = &worker->early;
    const bool restored = worker->tiers.chosen.used && worker->tiers.chosen.step == worker->next_step;
    *out = (struct early_word){.known = worker->next_step == 0};
    if (restored)
        recall(worker, out);
    else if (had_state && worker->early_known && worker->next_step >= before && worker->next_step > 0)
        *out = (struct early_word){1, early->step, early->worse, early->best.step,
                                   keel_bits_of(early->best.loss)};
}

/* Who evaluated the newest step knows most. */
static void adopt(struct keel_worker *worker, const struct early_word *word)
{
    struct keel_early_stop *early = &worker->early;
    begin_anew(worker);
    early->step = word->step;
    early->worse = (uint32_t)word->worse;
    early->best = (struct keel_evaluation){word->best_step, keel_float_of((uint32_t)word->best_bits)};
    early->end_step = early->worse == early->patience ? early->step : 0;
}

enum keel_status keel_worker_early_agree(struct keel_worker *worker, bool had_state, uint64_t before)
{
    struct early_word mine, *all;
    const struct early_word *newest = NULL;
    if (!is_asked(worker))
        return KEEL_OK;
    KEEL_TRY(keel_alloc(worker->rank_count, sizeof *all, &all));
    say_mine(worker, had_state, before, &mine);
    const enum keel_status status = keel_worker_tiers_gather(worker, &mine, sizeof mine, all);
    for (uint32_t p = 0; p < worker->rank_count && status == KEEL_OK; p++)
        if (all[p].known != 0 && (newest == NULL || all[p].step > newest->step))
            newest = &all[p];
    if (newest != NULL)
        adopt(worker, newest);
    else
        begin_anew(worker);
    keel_free(all);
    return status;
}
