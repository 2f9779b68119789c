/* run_fields.h - records of steps, of incidents and of plans as fields of JSON: what a line of metrics.jsonl
 * or events.jsonl is made of. Pure. */
#ifndef KEEL_RUN_FIELDS_H
#define KEEL_RUN_FIELDS_H

#include "incident.h"
#include "launcher.h"
#include "plan_table.h"
#include <jansson.h>
#include <keel/job.h>
#include <stdbool.h>

double keel_seconds_of(uint64_t ns);

/* A scaled gradient overflowed: the step counts and moved nothing. */
bool keel_step_skipped(const struct keel_step_record *record);

/* The line of a committed step, but for its boards; the caller's. NULL: no memory. */
json_t *keel_metric_of(const struct keel_job *job, const struct keel_step_record *record);

/* The parts as fields of `event`, in seconds; `words` gets them for people, without those that are nothing.
 */
void keel_put_parts(json_t *event, const uint64_t part_ns[KEEL_INCIDENT_PART_COUNT], char *words,
                    size_t bytes);

/* The fields of the event `plans`, a new reference; and a line for people. */
json_t *keel_plans_event(const struct keel_plan_table *table);
void keel_plans_describe(const struct keel_plan_table *table, char *out, size_t bytes);

#endif
