/* plan_table.h - the plan that each number of a run's ranks has, known before the run begins, and the number
 * by which views name it.
 *
 * A pure function of job, model and ranks. A run leaves no axis open: parallel.tensor and zero are 1 and 0
 * where they are not given, or what fits parallel.memory, and parallel.data is what all its ranks come to.
 * Fewer ranks than parallel.tensor share the slices among themselves. Ranks beyond the product of the axes
 * carry no shard, and keep the state of their place: one more copy. Numbers of ranks whose plan does not fit
 * parallel.memory have none. */
#ifndef KEEL_PLAN_TABLE_H
#define KEEL_PLAN_TABLE_H

#include "job_plan.h"
#include <keel/limits.h>

struct keel_plan_table {
    uint32_t ranks;                  /* of the run */
    uint32_t fewest;                 /* that have a plan; 0: none do */
    struct keel_job_plan instead_of; /* what did not fit, of axes that were left open; no seats: it does */
    struct keel_job_plan plans[KEEL_MEMBERS_MAX + 1]; /* by ranks, from 1 on */
    uint64_t numbers[KEEL_MEMBERS_MAX + 1];           /* likewise; 0: it does not fit */
};

/* The plan of so many ranks of a run; `spares` are those beyond the product. */
void keel_plan_of_run(const struct keel_plan_model *model, const struct keel_parallel *asked, uint32_t ranks,
                      struct keel_job_plan *out);

/* What a run makes of axes that were left open, in asked->tensor and zero: 1 and 0, as above. Where a rank
 * would take more than it may, those of the best plan that fits (keel_plan_choose), if one does: true, and
 * *instead_of is the plan of 1 and 0. The model must have all cuts where memory is bound. */
bool keel_plan_settle(const struct keel_plan_model *model, uint32_t ranks, struct keel_parallel *asked,
                      struct keel_job_plan *instead_of);

/* At most KEEL_MEMBERS_MAX ranks. layout: keel_plan_layout. */
void keel_plan_table_make(const struct keel_plan_model *model, const struct keel_job *job, uint64_t layout,
                          uint32_t ranks, struct keel_plan_table *out);

/* NO_MEMORY where not even all ranks fit: names what they need, by kind, and the nearest plan that fits, for
 * which the model must have all cuts. */
enum keel_status keel_plan_table_check(const struct keel_plan_table *table,
                                       const struct keel_plan_model *model,
                                       const struct keel_parallel *asked);

/* "2, 4 to 8": the numbers of ranks that have a plan. */
void keel_plan_table_describe(const struct keel_plan_table *table, char *out, size_t bytes);

/* Names and shapes of all parameters, whichever slices the engine has. */
uint64_t keel_plan_layout(const struct keel_engine *engine);

/* A digest of what the plan of so many ranks follows from; never 0. In three parts: this release, the job's
 * keys (keel_job_plan_keys), the layout of the model. */
uint64_t keel_plan_number(const struct keel_job *job, uint64_t layout, uint32_t ranks);
/* What two numbers for as many ranks differ in first, and the next move: static. */
const char *keel_plan_difference(uint64_t one, uint64_t other);

#endif
