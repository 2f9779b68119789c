/* run_plan.h - which plan each number of ranks of a run has: found before any process starts. */
#ifndef KEEL_RUN_PLAN_H
#define KEEL_RUN_PLAN_H

#include "data.h"
#include "plan_table.h"

/* Build the job's model and plan it, without a device; what fits of axes that the job leaves open is written
 * into its keys. NO_MEMORY: not even all ranks fit, with what does. Errors of the model and of the engine's
 * plan. */
enum keel_status keel_run_plan_make(struct keel_job *job, const struct keel_data *data,
                                    struct keel_plan_table *out);
/* The same of a model with all cuts, without the refusal: for keel plan. At most KEEL_MEMBERS_MAX ranks. */
void keel_run_plan_settle(const struct keel_plan_model *model, uint64_t layout, uint32_t ranks,
                          struct keel_job *job, struct keel_plan_table *out);

#endif
