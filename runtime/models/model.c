/* model.c - see model.h: which model a job asks for, and with what sizes. */
#include "model.h"
#include "ir.h"
#include "model_parts.h"
#include "onnx.h"
#include "ops.h"
#include <keel/log.h>
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
    const struct keel_resnet_config config = {.depth = job->depth,
                                              .stages = job->stages,
                                              .blocks = job->layers,
                                              .bottleneck = job->bottleneck,
                                              .width = job->width,
                                              .large_stem = job->stem == KEEL_STEM_LARGE,
                                              .height = (uint32_t)pixels->size[1],
                                              .image_width = (uint32_t)pixels->size[2],
                                              .channels = (uint32_t)pixels->size[3],
                                              .classes = vocab_of(job, data),
                                              .batch = job->batch,
                                              .mixed = job->mixup > 0.0F};
    return keel_model_resnet(graph, &config);
}

static enum keel_status build_vit(struct keel_graph *graph, const struct keel_job *job,
                                  const struct keel_data *data)
{
    const struct keel_shape *pixels = &keel_data_input(data, 0)->shape;
    const struct keel_vit_config config = {.layers = job->layers,
                                           .heads = job->heads,
                                           .width = job->width,
                                           .hidden = job->hidden,
                                           .patch = job->patch,
                                           .height = (uint32_t)pixels->size[1],
                                           .image_width = (uint32_t)pixels->size[2],
                                           .channels = (uint32_t)pixels->size[3],
                                           .classes = vocab_of(job, data),
                                           .batch = job->batch,
                                           .dropout = job->dropout,
                                           .mixed = job->mixup > 0.0F};
    return keel_model_vit(graph, &config);
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
                                            .hidden = job->hidden,
                                            .dropout = job->dropout};
    return keel_model_bert(graph, &config);
}

static struct keel_moe_config moe_of(const struct keel_job *job, const struct keel_data *data)
{
    return (struct keel_moe_config){.gpt = gpt_of(job, data),
                                    .experts = job->experts,
                                    .capacity = job->capacity,
                                    .balance = job->balance};
}

static uint32_t kv_heads_of(const struct keel_job *job)
{
    return job->kv_heads != 0 ? job->kv_heads : job->heads;
}

void keel_model_tell(const struct keel_job *job)
{
    if (job->cut_heads && job->tensor > kv_heads_of(job))
        keel_log(KEEL_LOG_WARN,
                 "model.cut_heads = true has no effect: there are fewer heads of keys (%u) than slices "
                 "(job.tensor = %u), so each rank has attention whole",
                 kv_heads_of(job), job->tensor);
}

static struct keel_llama_config llama_of(const struct keel_job *job, const struct keel_data *data)
{
    const uint32_t kv_heads = kv_heads_of(job);
    return (struct keel_llama_config){.layers = job->layers,
                                      .heads = job->heads,
                                      .width = job->width,
                                      .block = job->block,
                                      .vocab = vocab_of(job, data),
                                      .batch = job->batch,
                                      .kv_heads = kv_heads,
                                      .hidden = job->hidden,
                                      .rope_base = job->rope_base,
                                      .rope_factor = job->rope_factor,
                                      .rope_context = job->rope_context,
                                      .tied = job->tied,
                                      .cut_heads = job->cut_heads && job->tensor <= kv_heads};
}

static enum keel_status build_alexnet(struct keel_graph *graph, const struct keel_job *job,
                                      const struct keel_data *data)
{
    const struct keel_shape *pixels = &keel_data_input(data, 0)->shape;
    const struct keel_alexnet_config config = {.width = job->width,
                                               .height = (uint32_t)pixels->size[1],
                                               .image_width = (uint32_t)pixels->size[2],
                                               .channels = (uint32_t)pixels->size[3],
                                               .classes = vocab_of(job, data),
                                               .batch = job->batch,
                                               .dropout = job->dropout,
                                               .mixed = job->mixup > 0.0F};
    return keel_model_alexnet(graph, &config);
}

static enum keel_status build_dlrm(struct keel_graph *graph, const struct keel_job *job)
{
    uint32_t rows[KEEL_JOB_TABLES_MAX], bot[KEEL_JOB_MLP_MAX], top[KEEL_JOB_MLP_MAX];
    keel_job_tables(job, rows);
    const uint32_t bot_count = keel_job_read_sizes(job->mlp_bot, bot, KEEL_JOB_MLP_MAX);
    const struct keel_dlrm_config config = {.dense = job->dense,
                                            .tables = job->tables,
                                            .bag = job->bag,
                                            .categories = job->categories,
                                            .width = job->width,
                                            .layers = job->layers,
                                            .batch = job->batch,
                                            .rows = rows,
                                            .bot = bot + 1, /* behind what it is given */
                                            .bot_count = bot_count > 0 ? bot_count - 1 : 0,
                                            .top = top,
                                            .top_count =
                                                keel_job_read_sizes(job->mlp_top, top, KEEL_JOB_MLP_MAX),
                                            .squared = job->click_loss == KEEL_CLICK_MSE};
    return keel_model_dlrm(graph, &config);
}

/* What the trainer reads of the output: a row for each token or sample, with a number for each class. */
static enum keel_status check_output(const struct keel_graph *graph, const struct keel_job *job,
                                     const struct keel_data *data, const struct keel_plugin_task *task)
{
    const struct keel_model_plugin *plugin = keel_job_plugin(job);
    if (graph->loss == 0)
        return keel_fail(KEEL_INVALID,
                         "%s: its graph has no loss; end it with one, as keel_graph_cross_entropy",
                         job->plugin_path);
    if (plugin->data == KEEL_PLUGIN_MASKED_TEXT || (plugin->data == KEEL_PLUGIN_OWN && task->classes == 0))
        return KEEL_OK;
    const uint64_t rows =
        plugin->data == KEEL_PLUGIN_TEXT ? (uint64_t)task->batch * task->tokens : task->batch;
    const uint64_t columns = task->classes > 0 ? task->classes : 1;
    const struct keel_shape shape =
        graph->output != 0 ? keel_graph_shape(graph, graph->output) : (struct keel_shape){.dims = 0};
    const uint64_t last = shape.dims > 0 ? shape.size[shape.dims - 1] : 0;
    uint64_t count = shape.dims > 0;
    for (uint32_t d = 0; d < shape.dims; d++)
        count *= shape.size[d];
    if (last == columns && count == rows * columns &&
        (shape.dims == 2 || (shape.dims > 2 && !keel_data_has_accuracy(data))))
        return KEEL_OK;
    return keel_fail(
        KEEL_INVALID,
        "%s: the output of its graph has %llu numbers, %llu in a row: its data want %llu rows of %llu "
        "(keel/model_plugin.h)",
        job->plugin_path, (unsigned long long)count, (unsigned long long)last, (unsigned long long)rows,
        (unsigned long long)columns);
}

static enum keel_status build_plugin(struct keel_graph *graph, const struct keel_job *job,
                                     const struct keel_data *data)
{
    _Static_assert((int)KEEL_DATA_INPUTS_MAX == (int)KEEL_PLUGIN_INPUTS_MAX, "inputs of a plug-in");
    struct keel_plugin_task task = {.batch = job->batch,
                                    .block = keel_data_sample_tokens(data),
                                    .tokens = keel_part_tokens(graph, keel_data_sample_tokens(data)),
                                    .classes = vocab_of(job, data),
                                    .input_count = keel_data_input_count(data)};
    for (uint32_t i = 0; i < task.input_count; i++) {
        const struct keel_data_input *input = keel_data_input(data, i);
        struct keel_shape shape = input->shape;
        if (keel_part_decodes(graph))
            shape = (struct keel_shape){2, {task.batch, 1}};
        task.inputs[i] = keel_graph_input(graph, input->name, input->dtype, shape);
    }
    struct keel_onnx_file *onnx = keel_job_onnx(job);
    const enum keel_status status = onnx != NULL ? keel_onnx_build(onnx, graph, &task)
                                                 : keel_job_plugin(job)->build(graph, job->settings, &task);
    if (onnx != NULL)
        KEEL_TRY(status);               /* says node and operator */
    KEEL_TRY(keel_graph_status(graph)); /* says more than what the plug-in made of it */
    if (status != KEEL_OK)
        return keel_fail(KEEL_INVALID, "%s: builds no graph (%s): %s", job->plugin_path,
                         (unsigned)status < KEEL_STATUS_COUNT ? keel_status_name(status) : "no status",
                         keel_detail());
    return check_output(graph, job, data, &task);
}

static enum keel_status build(struct keel_graph *graph, const struct keel_job *job,
                              const struct keel_data *data)
{
    struct keel_gpt_config gpt;
    struct keel_moe_config moe;
    struct keel_llama_config llama;
    switch ((enum keel_model_kind)job->kind) {
    case KEEL_MODEL_RESNET:
        return build_resnet(graph, job, data);
    case KEEL_MODEL_VIT:
        return build_vit(graph, job, data);
    case KEEL_MODEL_BERT:
        return build_bert(graph, job, data);
    case KEEL_MODEL_MOE:
        moe = moe_of(job, data);
        return keel_model_moe(graph, &moe);
    case KEEL_MODEL_DLRM:
        return build_dlrm(graph, job);
    case KEEL_MODEL_LLAMA:
        llama = llama_of(job, data);
        return keel_model_llama(graph, &llama);
    case KEEL_MODEL_MIXTRAL:
        return keel_model_mixtral(graph, &(struct keel_mixtral_config){.llama = llama_of(job, data),
                                                                       .experts = job->experts,
                                                                       .top_k = job->top_k,
                                                                       .balance = job->balance});
    case KEEL_MODEL_ALEXNET:
        return build_alexnet(graph, job, data);
    case KEEL_MODEL_PLUGIN:
        return build_plugin(graph, job, data);
    case KEEL_MODEL_GPT:
    case KEEL_MODEL_KIND_COUNT:
    default:
        gpt = gpt_of(job, data);
        return keel_model_gpt(graph, &gpt);
    }
}

/* train.label_smoothing, of every cross-entropy. */
static enum keel_status smooth(struct keel_graph *graph, const struct keel_job *job)
{
    uint32_t count = 0;
    for (uint32_t n = 0; n < graph->node_count; n++) {
        if (graph->nodes[n].op != KEEL_OP_CROSS_ENTROPY)
            continue;
        graph->nodes[n].attributes.loss.smoothing = job->label_smoothing;
        count++;
    }
    return count > 0 ? KEEL_OK
                     : keel_fail(KEEL_INVALID, "train.label_smoothing = %g: the model has no cross-entropy",
                                 (double)job->label_smoothing);
}

enum keel_status keel_model_build(struct keel_graph *graph, const struct keel_job *job,
                                  const struct keel_data *data)
{
    KEEL_TRY(build(graph, job, data));
    if (job->label_smoothing > 0.0F)
        KEEL_TRY(smooth(graph, job));
    if (job->lora_rank > 0)
        KEEL_TRY(keel_model_adapt(graph, job));
    return keel_model_group(graph, job);
}

bool keel_model_decodes(const struct keel_job *job, const struct keel_data *data)
{
    const struct keel_moe_config moe = moe_of(job, data);
    if (job->tensor > 1)
        return false;
    switch ((enum keel_model_kind)job->kind) {
    case KEEL_MODEL_GPT:
    case KEEL_MODEL_LLAMA:
    case KEEL_MODEL_MIXTRAL:
        return true;
    case KEEL_MODEL_MOE:
        return keel_moe_keeps_first(&moe);
    case KEEL_MODEL_PLUGIN:
        return keel_job_plugin(job)->decodes && keel_job_plugin(job)->data == KEEL_PLUGIN_TEXT;
    case KEEL_MODEL_RESNET:
    case KEEL_MODEL_VIT:
    case KEEL_MODEL_ALEXNET:
    case KEEL_MODEL_BERT:
    case KEEL_MODEL_DLRM:
    case KEEL_MODEL_KIND_COUNT:
    default:
        return false;
    }
}

enum keel_status keel_model_build_decode(struct keel_graph *graph, const struct keel_job *job,
                                         const struct keel_data *data, uint32_t sequences, uint32_t rows)
{
    struct keel_job one = *job;
    KEEL_ASSERT(keel_model_decodes(job, data));
    one.batch = rows > 0 ? rows : sequences;
    if (rows > 0)
        keel_graph_decode_rows(graph, rows, sequences, job->block);
    else
        keel_graph_decode(graph, sequences, job->block);
    return keel_model_build(graph, &one, data);
}
