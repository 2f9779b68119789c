/* job_groups.c - what a job says of some parameters alone: lists of patterns, whose names the model knows. */
#include "job_internal.h"
#include <stdlib.h>
#include <string.h>

const char *keel_job_next_pattern(const char *at, char out[KEEL_JOB_PATTERNS_BYTES])
{
    at += strspn(at, ", ");
    const size_t length = strcspn(at, ",");
    size_t end = length;
    while (end > 0 && at[end - 1] == ' ')
        end--;
    KEEL_ASSERT(end < KEEL_JOB_PATTERNS_BYTES);
    memcpy(out, at, end);
    out[end] = '\0';
    return end > 0 ? at + length : NULL;
}

bool keel_job_read_factor(char *text, float *out)
{
    static const float least = 1e-6F, most = 1e6F;
    char *colon = strrchr(text, ':'), *end;
    if (colon == NULL || colon == text || colon[1] < '.' || colon[1] > '9')
        return false;
    *out = strtof(colon + 1, &end);
    *colon = '\0';
    return *end == '\0' && *out >= least && *out <= most;
}

/* A list that is given and names nothing was meant to name something. */
static enum keel_status check_list(const char *key, const char *list)
{
    char pattern[KEEL_JOB_PATTERNS_BYTES];
    if (list[0] == '\0' || keel_job_next_pattern(list, pattern) != NULL)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "train.%s = %.200s: has no pattern; give some, with commas between, or "
                     "leave it out",
                     key, list);
}

static enum keel_status check_lora(const struct keel_job *job)
{
    const bool given =
        job->lora_alpha > 0.0F || job->lora_dropout > 0.0F || strcmp(job->lora_targets, "*") != 0;
    if (job->lora_rank == 0 && given)
        return keel_fail(KEEL_INVALID,
                         "train.lora_alpha, train.lora_targets and train.lora_dropout say nothing without "
                         "train.lora_rank: give it, or leave them out");
    if (job->lora_rank > 0 && job->freeze[0] != '\0')
        return keel_fail(KEEL_INVALID,
                         "train.freeze = %.200s: with train.lora_rank = %u all but the adapters is frozen",
                         job->freeze, job->lora_rank);
    return KEEL_OK;
}

enum keel_status keel_job_check_groups(const struct keel_job *job)
{
    char pattern[KEEL_JOB_PATTERNS_BYTES];
    float factor;
    KEEL_TRY(check_list("freeze", job->freeze));
    KEEL_TRY(check_list("lr_scale", job->lr_scale));
    KEEL_TRY(check_list("no_decay", job->no_decay));
    KEEL_TRY(check_list("lora_targets", job->lora_targets));
    for (const char *at = job->lr_scale; (at = keel_job_next_pattern(at, pattern)) != NULL;)
        if (!keel_job_read_factor(pattern, &factor))
            return keel_fail(
                KEEL_INVALID,
                "train.lr_scale = %.200s: PATTERN:FACTOR, with commas, is wanted, with a factor from "
                "1e-6 to 1e6 (train.freeze is for 0), as *.bias:2,h.0.*:0.1",
                job->lr_scale);
    if (job->label_smoothing > 0.0F && job->tensor > 1)
        return keel_fail(
            KEEL_INVALID,
            "train.label_smoothing = %g: job.tensor = %u cuts the vocabulary into slices, whose sums of "
            "logits no rank has; give job.tensor = 1",
            (double)job->label_smoothing, job->tensor);
    return check_lora(job);
}
