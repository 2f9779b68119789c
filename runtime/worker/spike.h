/* spike.h - does a loss explode, though it is a number?
 *
 * A pure function of the losses in their order, so that every life of a run finds the same. Two rules, each
 * over what came before: a jump, more than SPIKE_DEVIATIONS standard deviations and half as much again above
 * the mean of the last losses (the measure by which OLMo counts spikes, arXiv 2501.00656, with a shorter
 * window); and a rise, when the mean of a few is twice the lowest there was, and worse than the first loss of
 * all. */
#ifndef KEEL_SPIKE_H
#define KEEL_SPIKE_H

#include <stdbool.h>
#include <stdint.h>

enum { KEEL_SPIKE_WINDOW = 64, KEEL_SPIKE_LEAST = 16 };

struct keel_spike { /* zeros: nothing was seen */
    float last[KEEL_SPIKE_WINDOW];
    uint64_t count;   /* of all that were taken into `last` */
    uint32_t outside; /* spikes in a row */
    float first, lowest;
    double mean, limit; /* by which the newest loss was compared */
};

/* Take the loss of the next step. True: it begins a spike (not again while one lasts; after a window of them
 * they are what is usual). */
bool keel_spike_add(struct keel_spike *spike, float loss);

#endif
