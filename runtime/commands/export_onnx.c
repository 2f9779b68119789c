/* export_onnx.c - see export_onnx.h. */
#include "export_onnx.h"
#include "export_lora.h"
#include "model.h"
#include "onnx_export.h"

#include <keel/file.h>
#include <keel/memory.h>
#include <string.h>

static enum keel_status read_weight(void *context, const char *name, float *out)
{
    const struct keel_trained *trained = context;
    struct keel_inference *inference = trained->inference;
    for (uint32_t i = 0; i < keel_inference_weight_count(inference); i++) {
        const struct keel_engine_param *param;
        struct keel_matrix matrix;
        if (!keel_inference_weight(inference, i, &param, &matrix) || strcmp(param->name, name) != 0)
            continue;
        KEEL_TRY(keel_inference_read_weight(inference, i, out));
        return keel_lora_merge(inference, &trained->job, i, out);
    }
    return keel_fail(KEEL_CORRUPT, "no weight %s in the snapshot", name);
}

/* The model alone: of the fewest samples that tell the batch from 1, without adapters or groups. */
static enum keel_status build(const struct keel_trained *trained, struct keel_graph **out)
{
    struct keel_job job = trained->job;
    struct keel_graph *graph;
    job.batch = KEEL_ONNX_EXPORT_BATCH;
    job.lora_rank = 0;
    job.label_smoothing = 0.0F;
    job.freeze[0] = job.no_decay[0] = job.lr_scale[0] = '\0';
    KEEL_TRY(keel_graph_create(&graph));
    const enum keel_status status = keel_model_build(graph, &job, trained->data);
    if (status == KEEL_OK)
        *out = graph;
    else
        keel_graph_destroy(graph);
    return status;
}

static enum keel_status check(const struct keel_trained *trained, const char *path, bool replace)
{
    static const char ending[] = ".onnx";
    const size_t length = strlen(path), end = sizeof ending - 1;
    if (trained->job.kind == KEEL_MODEL_PLUGIN)
        return keel_fail(KEEL_UNSUPPORTED, "--format onnx: %s is a model of a file, and not one of Keel's",
                         trained->job.plugin_path);
    if (length <= end || strcmp(path + length - end, ending) != 0)
        return keel_fail(KEEL_INVALID, "--format onnx: %s: a name that ends in .onnx is wanted", path);
    if (!replace && keel_path_exists(path))
        return keel_fail(KEEL_INVALID, "%s: is there already; --force replaces it", path);
    return KEEL_OK;
}

enum keel_status keel_export_onnx(const struct keel_trained *trained, const char *path, bool replace,
                                  struct keel_export_onnx *out)
{
    struct keel_graph *graph;
    uint8_t *bytes = NULL;
    KEEL_TRY(check(trained, path, replace));
    KEEL_TRY(build(trained, &graph));
    const struct keel_onnx_export how = {.graph = graph,
                                         .name = trained->job.name,
                                         .read = read_weight,
                                         .context = (void *)(uintptr_t)trained};
    enum keel_status status = keel_onnx_export(&how, &bytes, &out->bytes, &out->nodes);
    if (status == KEEL_OK)
        status = keel_file_replace(path, bytes, out->bytes, 0666);
    snprintf(out->path, sizeof out->path, "%s", path);
    keel_free(bytes);
    keel_graph_destroy(graph);
    return status;
}
