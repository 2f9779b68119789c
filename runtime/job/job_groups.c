/* job_groups.c - what a job says of some parameters alone: lists of patterns, whose names the model knows. */
#include "job_internal.h"
#include <stdlib.h>
#include <string.h>

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

enum keel_status keel_job_check_groups(const struct keel_job *job)
{
    char list[KEEL_JOB_PATTERNS_BYTES], *rest = list;
    float factor;
    memcpy(list, job->lr_scale, sizeof list);
    for (char *entry; (entry = strtok_r(rest, ", ", &rest)) != NULL;)
        if (!keel_job_read_factor(entry, &factor))
            return keel_fail(
                KEEL_INVALID,
                "train.lr_scale = %.200s: PATTERN:FACTOR, with commas, is wanted, with a factor from "
                "1e-6 to 1e6 (train.freeze is for 0), as *.bias:2,h.0.*:0.1",
                job->lr_scale);
    return KEEL_OK;
}
