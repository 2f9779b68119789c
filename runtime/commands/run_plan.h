/* run_plan.h - which plan each number of ranks of a run has: found before any process starts, and told. */
#ifndef KEEL_RUN_PLAN_H
#define KEEL_RUN_PLAN_H

#include "data.h"
#include "plan_table.h"
#include <jansson.h>

/* Build the job's model and plan it, without a device. NO_MEMORY: not even all ranks fit, with what does.
 * Errors of the model and of the engine's plan. */
enum keel_status keel_run_plan_make(const struct keel_job *job, const struct keel_data *data,
                                    struct keel_plan_table *out);

/* The fields of the event `plans`, a new reference; and a line for people. */
json_t *keel_run_plan_event(const struct keel_plan_table *table);
void keel_run_plan_describe(const struct keel_plan_table *table, char *out, size_t bytes);

#endif
