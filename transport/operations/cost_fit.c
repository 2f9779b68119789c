/* cost_fit.c - a search along the figures, one at a time, by smaller and smaller factors.
 *
 * Choices do not change smoothly with the figures, so there is no slope to follow; seven figures and some
 * hundred samples need none. */
#include "cost_fit.h"

#include "costs.h"

#include <math.h>

enum { ROUNDS_MAX = 12 };
/* A prediction that is off by a factor e counts as a choice that is 10% slower than it need be. */
static const double prediction_weight = 0.1;

uint32_t keel_cost_contest(const struct keel_cost_sample *samples, uint32_t count, uint32_t first,
                           const struct keel_cost_model *costs, uint32_t *out_taken, uint32_t *out_fastest)
{
    uint64_t least_ns = UINT64_MAX;
    uint32_t k = first;
    *out_taken = *out_fastest = first;
    for (; k < count && samples[k].contest == samples[first].contest; k++) {
        uint64_t ns = keel_schedule_cost_ns(&samples[k].key, samples[k].bytes, costs);
        if (ns < least_ns) {
            least_ns = ns;
            *out_taken = k;
        }
        if (samples[k].measured_ns < samples[*out_fastest].measured_ns)
            *out_fastest = k;
    }
    return k - first;
}

static double log_ratio(uint64_t a, uint64_t b)
{
    return log(((double)a + 1) / ((double)b + 1));
}

static double loss(const struct keel_cost_sample *samples, uint32_t count,
                   const struct keel_cost_model *costs)
{
    double sum = 0;
    for (uint32_t first = 0, among; first < count; first += among) {
        uint32_t taken, fastest;
        double off = 0;
        among = keel_cost_contest(samples, count, first, costs, &taken, &fastest);
        for (uint32_t k = first; k < first + among; k++)
            off += fabs(log_ratio(keel_schedule_cost_ns(&samples[k].key, samples[k].bytes, costs),
                                  samples[k].measured_ns));
        sum += log_ratio(samples[taken].measured_ns, samples[fastest].measured_ns) +
               prediction_weight * off / among;
    }
    return sum;
}

/* True when one of the figures is better by that factor more or less. */
static bool improve(const struct keel_cost_sample *samples, uint32_t count, double factor,
                    struct keel_cost_model *costs, double *least)
{
    bool improved = false;
    for (uint32_t figure = 0; figure < 2 * KEEL_COSTS; figure++) {
        struct keel_cost_model trial = *costs;
        uint64_t *value = keel_costs_figure(&trial, figure / 2);
        double changed = (double)*value * (figure % 2 == 0 ? factor : 1 / factor);
        *value = changed < 1 ? 1 : (uint64_t)(changed + 0.5);
        double sum = loss(samples, count, &trial);
        if (sum < *least - 1e-9) {
            *least = sum;
            *costs = trial;
            improved = true;
        }
    }
    return improved;
}

void keel_cost_fit(const struct keel_cost_sample *samples, uint32_t count, struct keel_cost_model *costs)
{
    static const double factors[] = {8, 3, 1.7, 1.3, 1.1, 1.04};
    double least = loss(samples, count, costs);
    for (uint32_t k = 0; k < sizeof factors / sizeof factors[0]; k++)
        for (uint32_t round = 0; round < ROUNDS_MAX && improve(samples, count, factors[k], costs, &least);
             round++) {
        }
}
