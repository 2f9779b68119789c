/* run_plan.c - see run_plan.h. */
#include "run_plan.h"
#include "axes.h"
#include "model.h"
#include "plan_axes.h"
#include "trainer.h"

/* All plans that there are, for who is to be told of one that fits. */
static enum keel_status check(const struct keel_job *job, const struct keel_data *data,
                              struct keel_device *device, struct keel_plan_model *model,
                              const struct keel_plan_table *table)
{
    if (!table->plans[table->ranks].fits)
        KEEL_TRY(keel_plan_read_cuts(job, data, device, job->tensor, model));
    return keel_plan_table_check(table, model, &job->parallel);
}

static enum keel_status plan(const struct keel_job *job, const struct keel_data *data,
                             const struct keel_graph *graph, struct keel_device *device,
                             const struct keel_engine *engine, struct keel_plan_table *out)
{
    struct keel_plan_model model;
    enum keel_status status = keel_plan_model_make(job, graph, engine, &model);
    if (status == KEEL_OK)
        status = keel_plan_read_cuts(job, data, device, keel_axes_tensor(job->ranks, job->parallel.tensor),
                                     &model);
    if (status == KEEL_OK) {
        keel_plan_table_make(&model, job, keel_plan_layout(engine), job->ranks, out);
        status = check(job, data, device, &model, out);
    }
    keel_plan_model_fini(&model);
    return status;
}

enum keel_status keel_run_plan_make(const struct keel_job *job, const struct keel_data *data,
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
