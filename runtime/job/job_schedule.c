/* job_schedule.c - the learning rate of a step. */
#include "job_internal.h"
#include <inttypes.h>
#include <keel/kernels.h>

enum { COOLDOWN_SHARE = 10 };

static uint64_t cooldown_of(const struct keel_job *job)
{
    const uint64_t share = job->decay_steps / COOLDOWN_SHARE, left = job->decay_steps - job->warmup_steps;
    if (job->cooldown_steps != 0)
        return job->cooldown_steps;
    return share < left ? share : left;
}

/* Where the cosine that a step is in begins, and how long it is. */
static void find_cosine(const struct keel_job *job, uint64_t step, uint64_t *begin, uint64_t *length)
{
    *length = job->restart_steps;
    if (job->restart_growth == 1)
        *begin = step - (step - *begin) % *length;
    for (; step - *begin >= *length; *length *= job->restart_growth)
        *begin += *length;
}

/* How far a step between warm-up and decay_steps is on its way from lr to min_lr, from 0 to 1. */
static float fallen(const struct keel_job *job, uint64_t step)
{
    uint64_t begin = job->warmup_steps, length = job->decay_steps - begin;
    if (job->decay == KEEL_DECAY_WSD) {
        length = cooldown_of(job);
        begin = job->decay_steps - length;
    }
    if (job->restart_steps > 0)
        find_cosine(job, step, &begin, &length);
    return step < begin ? 0.0F : (float)(step - begin) / (float)length;
}

float keel_job_learning_rate(const struct keel_job *job, uint64_t step)
{
    if (step < job->warmup_steps)
        return job->learning_rate * (float)(step + 1) / (float)job->warmup_steps;
    if (job->decay == KEEL_DECAY_CONSTANT)
        return job->learning_rate;
    if (step >= job->decay_steps)
        return job->min_learning_rate;
    const float done = fallen(job, step);
    const float share =
        job->decay == KEEL_DECAY_COSINE ? 0.5F * (1.0F + keel_canon_cos(3.14159265F * done)) : 1.0F - done;
    return job->min_learning_rate + share * (job->learning_rate - job->min_learning_rate);
}

enum keel_status keel_job_check_schedule(const struct keel_job *job)
{
    if (job->decay == KEEL_DECAY_CONSTANT)
        return KEEL_OK;
    if (job->min_learning_rate > job->learning_rate)
        return keel_fail(KEEL_INVALID, "train.min_lr = %g is above train.lr = %g",
                         (double)job->min_learning_rate, (double)job->learning_rate);
    if (job->restart_growth > 1 && job->restart_steps == 0)
        return keel_fail(KEEL_INVALID,
                         "train.restart_growth = %u: the cosine has no restarts; give train.restart_steps",
                         job->restart_growth);
    if (job->cooldown_steps + job->warmup_steps > job->decay_steps && job->cooldown_steps > 0)
        return keel_fail(KEEL_INVALID,
                         "train.cooldown_steps = %" PRIu64 " and train.warmup_steps = %" PRIu64
                         " are more than the %" PRIu64 " steps until train.decay_steps",
                         job->cooldown_steps, job->warmup_steps, job->decay_steps);
    return KEEL_OK;
}
