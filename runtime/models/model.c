/* model.c - see model.h: which model a job asks for, and with what sizes. */
#include "model.h"
#include <keel/models.h>

/* As the job wishes, or what the data needs. */
static uint32_t vocab_of(const struct keel_job *job, const struct keel_data *data)
{
    return job->vocab != 0 ? job->vocab : keel_data_vocab(data);
}

static struct keel_gpt_config gpt_of(const struct keel_job *job, const struct keel_data *data)
{
    return (struct keel_gpt_config){.layers = job->layers,
                                    .heads = job->heads,
                                    .width = job->width,
                                    .block = job->block,
                                    .vocab = vocab_of(job, data),
                                    .batch = job->batch,
                                    .dropout = job->dropout,
                                    .bias = job->bias,
                                    .tied = job->tied};
}

static enum keel_status build_resnet(struct keel_graph *graph, const struct keel_job *job,
                                     const struct keel_data *data)
{
    const struct keel_shape *pixels = &keel_data_input(data, 0)->shape;
    const struct keel_resnet_config config = {.stages = job->stages,
                                              .blocks = job->layers,
                                              .width = job->width,
                                              .large_stem = job->stem == KEEL_STEM_LARGE,
                                              .height = (uint32_t)pixels->size[1],
                                              .image_width = (uint32_t)pixels->size[2],
                                              .channels = (uint32_t)pixels->size[3],
                                              .classes = vocab_of(job, data),
                                              .batch = job->batch};
    return keel_model_resnet(graph, &config);
}

static enum keel_status build_bert(struct keel_graph *graph, const struct keel_job *job,
                                   const struct keel_data *data)
{
    const struct keel_bert_config config = {.layers = job->layers,
                                            .heads = job->heads,
                                            .width = job->width,
                                            .block = job->block,
                                            .vocab = vocab_of(job, data),
                                            .batch = job->batch,
                                            .masked = (uint32_t)keel_data_input(data, 1)->shape.size[1],
                                            .dropout = job->dropout,
                                            .bias = job->bias,
                                            .tied = job->tied};
    return keel_model_bert(graph, &config);
}

static enum keel_status build_moe(struct keel_graph *graph, const struct keel_job *job,
                                  const struct keel_data *data)
{
    const struct keel_moe_config config = {.gpt = gpt_of(job, data),
                                           .experts = job->experts,
                                           .capacity = job->capacity,
                                           .balance = job->balance};
    return keel_model_moe(graph, &config);
}

static enum keel_status build_dlrm(struct keel_graph *graph, const struct keel_job *job)
{
    const struct keel_dlrm_config config = {.dense = job->dense,
                                            .tables = job->tables,
                                            .bag = job->bag,
                                            .categories = job->categories,
                                            .width = job->width,
                                            .layers = job->layers,
                                            .batch = job->batch};
    return keel_model_dlrm(graph, &config);
}

enum keel_status keel_model_build(struct keel_graph *graph, const struct keel_job *job,
                                  const struct keel_data *data)
{
    struct keel_gpt_config gpt;
    switch ((enum keel_model_kind)job->kind) {
    case KEEL_MODEL_RESNET:
        return build_resnet(graph, job, data);
    case KEEL_MODEL_BERT:
        return build_bert(graph, job, data);
    case KEEL_MODEL_MOE:
        return build_moe(graph, job, data);
    case KEEL_MODEL_DLRM:
        return build_dlrm(graph, job);
    case KEEL_MODEL_GPT:
    case KEEL_MODEL_KIND_COUNT:
    default:
        gpt = gpt_of(job, data);
        return keel_model_gpt(graph, &gpt);
    }
}
