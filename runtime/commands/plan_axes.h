/* plan_axes.h - the part of `keel plan` that is about axes: which plans there are, the one that is chosen,
 * its seats, its collectives, the plan of each number of ranks in a run, and what a loss costs. */
#ifndef KEEL_PLAN_AXES_H
#define KEEL_PLAN_AXES_H

#include "data.h"
#include "plan_table.h"
#include <keel/json.h>

struct keel_plan_axes {
    struct keel_plan_model model;
    struct keel_parallel asked;
    uint32_t seats;              /* that there are */
    struct keel_job_plan *plans; /* owned; the first is chosen */
    uint32_t plan_count;
    uint32_t fewest;            /* seats; 0: nothing fits */
    struct keel_plan_table run; /* ranks 0: they are more than a run can have */
    struct {
        uint64_t bytes, most_bytes, missing_bytes; /* that a lost seat gets; of one holder; that nobody has */
        uint32_t holders;
    } loss;                             /* of the chosen plan's last seat */
    uint64_t written_bytes, read_bytes; /* of a snapshot, by that seat */
};

/* Of the job's data, model and engine, which is planned for the device and has all slices. INVALID, NO_MEMORY
 * of memory of this machine; keel_plan_model_make's. *out is to be given to fini, also after a failure. */
enum keel_status keel_plan_axes_make(const struct keel_job *job, const struct keel_data *data,
                                     const struct keel_graph *graph, struct keel_device *device,
                                     const struct keel_engine *engine, uint32_t seats,
                                     struct keel_plan_axes *out);
/* What activations take of a device that has as many slices as a place has in plans of up to so many places.
 * A count for which there is no engine leaves out its plans, with a warning, where parallel.tensor is open;
 * else it is an error. */
enum keel_status keel_plan_read_cuts(const struct keel_job *job, const struct keel_data *data,
                                     struct keel_device *device, uint32_t places,
                                     struct keel_plan_model *model);
void keel_plan_axes_fini(struct keel_plan_axes *axes);
static inline const struct keel_job_plan *keel_plan_chosen(const struct keel_plan_axes *axes)
{
    return &axes->plans[0];
}

void keel_plan_axes_print(const struct keel_plan_axes *axes);
enum keel_status keel_plan_axes_print_json(const struct keel_plan_axes *axes, struct keel_json *json);

#endif
