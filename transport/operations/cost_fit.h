/* cost_fit.h - figures of the cost model from times that were measured. Pure; floating point, so that only a
 * tool calls it, once, and its result goes to all ranks as integers. */
#ifndef KEEL_TRANSPORT_COST_FIT_H
#define KEEL_TRANSPORT_COST_FIT_H

#include "schedule.h"

/* An algorithm that did something in so much time. Those of one contest did the same, and stand together. */
struct keel_cost_sample {
    struct keel_collective_key key;
    uint64_t bytes, measured_ns; /* bytes: as the cost model counts them */
    uint32_t contest;
};
/* Of the samples from `first` on: how many are of its contest; which one the model would take, which was the
 * fastest. */
uint32_t keel_cost_contest(const struct keel_cost_sample *samples, uint32_t count, uint32_t first,
                           const struct keel_cost_model *costs, uint32_t *out_taken, uint32_t *out_fastest);
/* Change the figures so that what the model takes is as little slower than the fastest as may be, and what it
 * predicts as near as may be. A figure that no sample depends on stays. */
void keel_cost_fit(const struct keel_cost_sample *samples, uint32_t count, struct keel_cost_model *costs);

#endif
