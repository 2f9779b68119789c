/* run_plan.c - see run_plan.h. */
#include "run_plan.h"
#include "axes.h"
#include "model.h"
#include "plan_axes.h"
#include "trainer.h"
#include <keel/log.h>

void keel_run_plan_settle(const struct keel_plan_model *model, uint64_t layout, uint32_t ranks,
                          struct keel_job *job, struct keel_plan_table *out)
{
    struct keel_parallel asked = job->parallel;
    struct keel_job_plan instead_of;
    const bool chosen = keel_plan_settle(model, ranks, &asked, &instead_of);
    if (chosen)
        job->parallel = asked;
    if (job->parallel.zero_group > 0 && job->parallel.zero <= KEEL_ZERO_NONE)
        keel_log(KEEL_LOG_WARN,
                 "parallel.zero_group = %u says nothing: parallel.zero = auto came to 0, which splits "
                 "nothing; give parallel.zero = 1, 2 or 3, or leave the group out",
                 job->parallel.zero_group);
    keel_plan_table_make(model, job, layout, ranks, out);
    if (chosen)
        out->instead_of = instead_of;
}

static enum keel_status plan(struct keel_job *job, const struct keel_data *data,
                             const struct keel_graph *graph, struct keel_device *device,
                             const struct keel_engine *engine, struct keel_plan_table *out)
{
    struct keel_plan_model model;
    const uint32_t places = keel_axes_tensor(job->ranks, job->parallel.tensor);
    enum keel_status status = keel_plan_model_make(job, graph, engine, &model);
    if (status == KEEL_OK) /* with memory: all that may be chosen, or named as what fits */
        status = keel_plan_read_cuts(job, data, device, job->parallel.memory_bytes > 0 ? job->tensor : places,
                                     &model);
    if (status == KEEL_OK) {
        keel_run_plan_settle(&model, keel_plan_layout(engine), job->ranks, job, out);
        status = keel_plan_table_check(out, &model, &job->parallel);
    }
    keel_plan_model_fini(&model);
    return status;
}

enum keel_status keel_run_plan_make(struct keel_job *job, const struct keel_data *data,
                                    struct keel_plan_table *out)
{
    struct keel_graph *graph = NULL;
    struct keel_device *device = NULL;
    struct keel_engine *engine = NULL;
    KEEL_TRY(keel_device_open("null", NULL, &device));
    const struct keel_engine_config config = {.device = device, .plan_only = true};
    enum keel_status status = keel_graph_create(&graph);
    if (status == KEEL_OK)
        status = keel_model_build(graph, job, data);
    if (status == KEEL_OK)
        status = keel_trainer_build_engine(job, data, config, &engine);
    if (status == KEEL_OK)
        status = plan(job, data, graph, device, engine, out);
    keel_engine_destroy(engine);
    keel_graph_destroy(graph);
    keel_device_close(device);
    return status;
}
