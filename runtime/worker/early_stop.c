/* early_stop.c - see early_stop.h. */
#include "early_stop.h"
#include <keel/memory.h>

/* A loss that is no number is never better; the first that is one always is. */
static bool is_better(const struct keel_early_stop *stop, float loss)
{
    return stop->best.step == 0 ? loss - loss == 0.0F : loss < stop->best.loss - stop->min_delta;
}

static void decide(struct keel_early_stop *stop)
{
    uint32_t worse = 0;
    stop->end_step = 0;
    stop->best = (struct keel_evaluation){.step = 0};
    for (uint64_t i = 0; i < stop->count && stop->end_step == 0; i++) {
        const bool better = is_better(stop, stop->evaluations[i].loss);
        worse = better ? 0 : worse + 1;
        if (better)
            stop->best = stop->evaluations[i];
        if (worse == stop->patience)
            stop->end_step = stop->evaluations[i].step;
    }
}

enum keel_status keel_early_stop_add(struct keel_early_stop *stop, uint64_t step, float loss)
{
    if (stop->patience == 0 || stop->end_step != 0 ||
        (stop->count > 0 && step <= stop->evaluations[stop->count - 1].step))
        return KEEL_OK;
    if (stop->count == stop->capacity) {
        const uint64_t more = stop->capacity > 0 ? 2 * stop->capacity : 64;
        KEEL_TRY(keel_realloc(&stop->evaluations, keel_size(stop->capacity), keel_size(more),
                              sizeof *stop->evaluations));
        stop->capacity = more;
    }
    stop->evaluations[stop->count++] = (struct keel_evaluation){step, loss};
    decide(stop);
    return KEEL_OK;
}

void keel_early_stop_withdraw(struct keel_early_stop *stop, uint64_t from_step)
{
    while (stop->count > 0 && stop->evaluations[stop->count - 1].step >= from_step)
        stop->count--;
    decide(stop);
}

void keel_early_stop_fini(struct keel_early_stop *stop)
{
    keel_free(stop->evaluations);
    *stop = (struct keel_early_stop){.patience = stop->patience, .min_delta = stop->min_delta};
}
