/* plan_internal.h - what the files of plans share: boxes and pages of seats. */
#ifndef KEEL_PLAN_INTERNAL_H
#define KEEL_PLAN_INTERNAL_H

#include "job_plan.h"

/* Parameters lie in `order`, those of a bucket together: behind the bucket of number `first`. */
uint32_t keel_plan_bucket_end(const struct keel_plan_model *model, uint32_t first);
/* In the seat's flat buffer: where share `number` of `of` of the bucket that begins with number `first` of
 * the order begins, in elements of the bucket; share `of` is its end. */
uint64_t keel_plan_share_begin(const struct keel_plan_model *model, const struct keel_plan_seat *seat,
                               uint32_t first, uint32_t of, uint32_t number);
/* Columns of a row that slices before `slice` have. */
uint64_t keel_plan_column(const struct keel_plan_model *model, const struct keel_plan_param *param,
                          uint32_t slice);
/* Columns of a row of the seat's box. */
uint64_t keel_plan_columns(const struct keel_plan_model *model, const struct keel_plan_param *param,
                           const struct keel_plan_seat *seat);
/* Pages that the seat's box of a parameter takes in each flat buffer. */
uint64_t keel_plan_pages(const struct keel_plan_model *model, uint32_t param,
                         const struct keel_plan_seat *seat);
/* "weights 12, gradients 12, ...". */
void keel_plan_describe_bytes(const struct keel_job_plan *plan, char *out, size_t bytes);
/* The plan nearest to what was asked for that fits: other axes for as many ranks, else more ranks. As "4 with
 * parallel.tensor = 1 and parallel.zero = 1 fit". */
void keel_plan_name_nearest(const struct keel_plan_model *model, const struct keel_parallel *asked,
                            uint32_t ranks, char *out, size_t bytes);
/* Whether `position` has a copy of what `owner` owns. */
bool keel_plan_shadows(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                       uint32_t position, uint32_t owner);

#endif
