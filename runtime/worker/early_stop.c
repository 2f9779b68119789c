/* early_stop.c - see early_stop.h. */
#include "early_stop.h"

/* A loss that is no number is never better; the first that is one always is. */
static bool is_better(const struct keel_early_stop *stop, float loss)
{
    return stop->best.step == 0 ? loss - loss == 0.0F : loss < stop->best.loss - stop->min_delta;
}

void keel_early_stop_add(struct keel_early_stop *stop, uint64_t step, float loss)
{
    if (stop->patience == 0 || stop->end_step != 0 || step <= stop->step)
        return;
    const bool better = is_better(stop, loss);
    stop->step = step;
    stop->worse = better ? 0 : stop->worse + 1;
    if (better)
        stop->best = (struct keel_evaluation){step, loss};
    if (stop->worse == stop->patience)
        stop->end_step = step;
}

void keel_early_stop_forget(struct keel_early_stop *stop)
{
    *stop = (struct keel_early_stop){.patience = stop->patience, .min_delta = stop->min_delta};
}
