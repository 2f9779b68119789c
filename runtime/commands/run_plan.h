/* run_plan.h - which plan each number of ranks of a run has: found before any process starts. */
#ifndef KEEL_RUN_PLAN_H
#define KEEL_RUN_PLAN_H

#include "data.h"
#include "plan_table.h"

/* Build the job's model and plan it, without a device. NO_MEMORY: not even all ranks fit, with what does.
 * Errors of the model and of the engine's plan. */
enum keel_status keel_run_plan_make(const struct keel_job *job, const struct keel_data *data,
                                    struct keel_plan_table *out);

#endif
