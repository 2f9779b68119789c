/* run_early.c - a validation that gets no better (train.patience): where the run ends for it, and in which
 * words. */
#include "run_output_state.h"
#include <inttypes.h>

void keel_output_tell_early(struct keel_output *output)
{
    const struct keel_evaluation *best = &output->past.early.best;
    char detail[160], than[64] = "a number";
    if (best->step != 0)
        snprintf(than, sizeof than, "below %.4f, that of step %" PRIu64, (double)best->loss, best->step);
    snprintf(detail, sizeof detail, "validation was not %s, %u times in a row (train.patience)", than,
             output->job->patience);
    keel_output_event(output, "early-stop",
                      json_pack("{s:I, s:I, s:f, s:s}", "step", (json_int_t)output->past.early.end_step,
                                "best_step", (json_int_t)best->step, "best_val_loss", (double)best->loss,
                                "detail", detail));
    keel_output_say(output, "step %" PRIu64 ": %s: the run ends here", output->past.early.end_step, detail);
}

void keel_output_tell_early_done(struct keel_output *output)
{
    const struct keel_evaluation *best = &output->past.early.best;
    if (best->step == 0)
        keel_output_say(output, "ended early, at step %" PRIu64 ": no validation was a number",
                        output->past.early.end_step);
    else
        keel_output_say(output,
                        "ended early, at step %" PRIu64 ": validation was best at step %" PRIu64
                        ", %.4f: keel eval, sample, export %s --step %" PRIu64,
                        output->past.early.end_step, best->step, (double)best->loss, output->directory,
                        best->step);
}
