/* model.c - see model.h: which model a job asks for, and with what sizes. */
#include "model.h"
#include <keel/models.h>

/* As the job wishes, or what the data needs. */
static uint32_t vocab_of(const struct keel_job *job, const struct keel_data *data)
{
    return job->vocab != 0 ? job->vocab : keel_data_vocab(data);
}

static enum keel_status build_gpt(struct keel_graph *graph, const struct keel_job *job,
                                  const struct keel_data *data)
{
    const struct keel_gpt_config config = {.layers = job->layers,
                                           .heads = job->heads,
                                           .width = job->width,
                                           .block = job->block,
                                           .vocab = vocab_of(job, data),
                                           .batch = job->batch,
                                           .dropout = job->dropout,
                                           .bias = job->bias,
                                           .tied = job->tied};
    return keel_model_gpt(graph, &config);
}

enum keel_status keel_model_build(struct keel_graph *graph, const struct keel_job *job,
                                  const struct keel_data *data)
{
    if (job->kind == KEEL_MODEL_GPT)
        return build_gpt(graph, job, data);
    return keel_fail(KEEL_UNSUPPORTED, "model.kind: this build trains gpt alone");
}
