/* onnx_export_test.c - models that come with Keel, written as .onnx and read again: the same logits, with
 * another batch too; what has no operator is refused by its name. */
#include "harness.h"

#include "ir.h"
#include "onnx.h"
#include "onnx_export.h"

#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/memory.h>
#include <keel/models.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LIMIT_NS (120 * KEEL_NS_PER_S)
enum { BATCH = KEEL_ONNX_EXPORT_BATCH, BLOCK = 6, VOCAB = 11, SIDE = 16, CHANNELS = 3, CLASSES = 5 };
enum { TEXT_MODELS = 2, MODELS = 4, LOGITS_MAX = 3 * BLOCK * VOCAB };

static const char *const names[MODELS] = {"gpt", "llama", "vit", "resnet"};

static struct keel_graph *model_of(int kind, uint32_t batch)
{
    struct keel_graph *graph;
    ck_ok(keel_graph_create(&graph));
    if (kind == 0)
        ck_ok(keel_model_gpt(graph, &(struct keel_gpt_config){.layers = 2,
                                                              .heads = 2,
                                                              .width = 8,
                                                              .block = BLOCK,
                                                              .vocab = VOCAB,
                                                              .batch = batch,
                                                              .dropout = 0.1F,
                                                              .bias = true,
                                                              .tied = true}));
    else if (kind == 1)
        ck_ok(keel_model_llama(graph, &(struct keel_llama_config){.layers = 2,
                                                                  .heads = 4,
                                                                  .kv_heads = 2,
                                                                  .width = 16,
                                                                  .hidden = 24,
                                                                  .block = BLOCK,
                                                                  .vocab = VOCAB,
                                                                  .batch = batch,
                                                                  .rope_base = 100.0F,
                                                                  .rope_factor = 4.0F,
                                                                  .rope_context = 16}));
    else if (kind == 2)
        ck_ok(keel_model_vit(graph, &(struct keel_vit_config){.layers = 2,
                                                              .heads = 2,
                                                              .width = 8,
                                                              .patch = 8,
                                                              .height = SIDE,
                                                              .image_width = SIDE,
                                                              .channels = CHANNELS,
                                                              .classes = CLASSES,
                                                              .batch = batch,
                                                              .dropout = 0.1F}));
    else
        ck_ok(keel_model_resnet(graph, &(struct keel_resnet_config){.depth = 50,
                                                                    .width = 2,
                                                                    .large_stem = true,
                                                                    .height = 2 * SIDE,
                                                                    .image_width = 2 * SIDE,
                                                                    .channels = CHANNELS,
                                                                    .classes = CLASSES,
                                                                    .batch = batch}));
    return graph;
}

/* A graph on the host device. */
struct rig {
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_engine *engine;
};

static void rig_open(struct rig *rig, struct keel_graph *graph)
{
    ck_ok(keel_device_open("host", NULL, &rig->device));
    ck_ok(keel_kernels_create(rig->device, &rig->kernels));
    const struct keel_engine_config config = {
        .device = rig->device, .kernels = rig->kernels, .graph = graph, .training = false};
    ck_ok(keel_engine_create(&config, &rig->engine));
    ck_ok(keel_engine_initialize(rig->engine, 3));
}

static void rig_close(struct rig *rig)
{
    keel_engine_destroy(rig->engine);
    keel_kernels_destroy(rig->kernels);
    keel_device_close(rig->device);
}

/* Sample s is the same whatever the batch is. */
static uint32_t logits_of(struct rig *rig, int kind, uint32_t batch, float *out)
{
    static float images[3 * 4 * SIDE * SIDE * CHANNELS];
    static int32_t ids[3 * BLOCK], zeros[3 * BLOCK];
    for (uint32_t i = 0; i < sizeof images / sizeof images[0]; i++)
        images[i] = (float)(i * 37 % 101) / 101.0F;
    for (uint32_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        ids[i] = (int32_t)(i * 7 % VOCAB);
    const void *inputs[] = {kind < TEXT_MODELS ? (const void *)ids : images, zeros};
    const struct keel_engine_batch of = {.inputs = inputs, .seed = 1, .step = 1};
    const struct keel_shape shape = keel_engine_output_shape(rig->engine);
    const uint32_t rows = kind < TEXT_MODELS ? batch * BLOCK : batch;
    ck_ok(keel_engine_output(rig->engine, &of, 0, rows, keel_deadline_after_ns(LIMIT_NS), out));
    return rows * (uint32_t)shape.size[shape.dims - 1];
}

static enum keel_status read_param(void *context, const char *name, float *out)
{
    struct keel_engine *engine = ((struct rig *)context)->engine;
    for (uint32_t i = 0; i < keel_engine_tile_count(engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(engine, i);
        if (strcmp(keel_engine_param(engine, tile->param)->name, name) != 0)
            continue;
        KEEL_TRY(keel_queue_read(keel_engine_queue(engine), keel_engine_flat(engine, KEEL_FLAT_WEIGHTS),
                                 tile->offset * sizeof(float), out, tile->count * sizeof(float), NULL, NULL));
        return keel_queue_finish(keel_engine_queue(engine), keel_deadline_after_ns(LIMIT_NS));
    }
    return keel_fail(KEEL_NOT_FOUND, "no parameter %s", name);
}

/* The file's model for `batch` samples. */
static void read_again(int kind, const uint8_t *bytes, uint64_t count, uint32_t batch,
                       struct keel_onnx_file **file, struct keel_graph **graph)
{
    enum keel_plugin_data data;
    struct keel_plugin_task task = {.batch = batch, .block = BLOCK, .input_count = 2};
    ck_ok(keel_onnx_file_read("exported", bytes, count, false, file));
    ck_ok(keel_onnx_check(keel_onnx_file_graph(*file), &data));
    ck_assert_int_eq(data, kind < TEXT_MODELS ? KEEL_PLUGIN_TEXT : KEEL_PLUGIN_IMAGES);
    ck_ok(keel_graph_create(graph));
    if (kind < TEXT_MODELS) {
        const struct keel_shape tokens = {2, {batch, BLOCK}};
        task.inputs[0] = keel_graph_input(*graph, "ids", KEEL_I32, tokens);
        task.inputs[1] = keel_graph_input(*graph, "targets", KEEL_I32, tokens);
    } else {
        const uint64_t side = kind == 3 ? 2 * SIDE : SIDE;
        task.inputs[0] = keel_graph_input(*graph, "images", KEEL_F32,
                                          (struct keel_shape){4, {batch, side, side, CHANNELS}});
        task.inputs[1] = keel_graph_input(*graph, "labels", KEEL_I32, (struct keel_shape){1, {batch}});
    }
    ck_ok(keel_onnx_build(*file, *graph, &task));
}

static void export_of(struct rig *rig, struct keel_graph *graph, uint8_t **bytes, uint64_t *count)
{
    uint32_t nodes;
    const struct keel_onnx_export how = {.graph = graph, .name = "model", .read = read_param, .context = rig};
    ck_ok(keel_onnx_export(&how, bytes, count, &nodes));
    ck_assert_uint_gt(nodes, graph->node_count / 2);
}

START_TEST(what_is_written_has_the_same_logits_for_any_batch)
{
    static float wanted[LOGITS_MAX], found[LOGITS_MAX];
    const uint32_t batches[] = {BATCH, 1, 3};
    struct keel_graph *graph = model_of(_i, BATCH);
    struct rig model;
    uint8_t *bytes;
    uint64_t byte_count;
    rig_open(&model, graph);
    export_of(&model, graph, &bytes, &byte_count);
    const uint32_t count = logits_of(&model, _i, BATCH, wanted);
    for (uint32_t b = 0; b < 3; b++) {
        struct keel_onnx_file *file;
        struct keel_graph *again;
        struct rig read;
        double largest = 0.0, worst = 0.0;
        read_again(_i, bytes, byte_count, batches[b], &file, &again);
        rig_open(&read, again);
        const uint32_t there = logits_of(&read, _i, batches[b], found);
        ck_assert_uint_eq(there * BATCH, count * batches[b]);
        for (uint32_t i = 0; i < there && i < count; i++) {
            largest = fmax(largest, fabs((double)wanted[i]));
            worst = fmax(worst, fabs((double)wanted[i] - (double)found[i]));
        }
        if (b == 0)
            printf("note: %s: %.1e of the largest logit\n", names[_i], worst / largest);
        ck_assert_msg(largest > 0.0 && worst <= 1e-6 * largest, "%s, batch %u: %g of %g", names[_i],
                      batches[b], worst, largest);
        rig_close(&read);
        keel_graph_destroy(again);
        keel_onnx_file_close(file);
    }
    rig_close(&model);
    keel_graph_destroy(graph);
    keel_free(bytes);
}
END_TEST

/* A mixture's choice of experts, and the tokens that are asked for. */
START_TEST(what_has_no_operator_is_refused_by_its_name)
{
    static const char *const words[] = {"the model's operation top_k has no operator",
                                        "the model's operation gather has no operator"};
    const struct keel_gpt_config gpt = {.layers = 2,
                                        .heads = 2,
                                        .width = 8,
                                        .block = BLOCK,
                                        .vocab = VOCAB,
                                        .batch = BATCH,
                                        .bias = true,
                                        .tied = true};
    struct keel_graph *graph;
    struct rig model;
    uint8_t *bytes = NULL;
    uint64_t count;
    uint32_t nodes;
    ck_ok(keel_graph_create(&graph));
    if (_i == 0)
        ck_ok(keel_model_moe(
            graph, &(struct keel_moe_config){.gpt = gpt, .experts = 2, .capacity = 2.0F, .balance = 0.01F}));
    else
        ck_ok(keel_model_bert(graph, &(struct keel_bert_config){.layers = 1,
                                                                .heads = 2,
                                                                .width = 8,
                                                                .block = BLOCK,
                                                                .vocab = VOCAB,
                                                                .batch = BATCH,
                                                                .masked = 2}));
    rig_open(&model, graph);
    const struct keel_onnx_export how = {
        .graph = graph, .name = "model", .read = read_param, .context = &model};
    ck_status(keel_onnx_export(&how, &bytes, &count, &nodes), KEEL_UNSUPPORTED);
    ck_assert_msg(strstr(keel_detail(), words[_i]) != NULL, "\"%s\" lacks \"%s\"", keel_detail(), words[_i]);
    ck_assert_ptr_null(bytes);
    rig_close(&model);
    keel_graph_destroy(graph);
}
END_TEST

/* Of images [BATCH, SIDE, SIDE, CHANNELS]: a norm of groups, or class by class for each pixel. */
static struct keel_graph *image_graph(bool norm)
{
    struct keel_graph *graph;
    const struct keel_shape images = {4, {BATCH, SIDE, SIDE, CHANNELS}},
                            classes = {4, {BATCH, SIDE, SIDE, CLASSES}};
    ck_ok(keel_graph_create(&graph));
    keel_value x = keel_graph_input(graph, "images", KEEL_F32, images);
    const keel_value weight = keel_graph_param(
        graph, &(struct keel_param_spec){
                   .name = "weight", .shape = {4, {1, 1, CHANNELS, CLASSES}}, .deviation = 0.1F});
    if (norm)
        x = keel_graph_group_norm(graph, x, 0, 0, CHANNELS, 1e-5F);
    x = keel_graph_conv2d(graph, x, weight, 0, &(struct keel_conv2d_spec){.groups = 1});
    keel_graph_output(graph, x);
    keel_graph_mse(graph, x, keel_graph_input(graph, "targets", KEEL_F32, classes));
    ck_ok(keel_graph_status(graph));
    return graph;
}

START_TEST(a_norm_without_gamma_is_refused_by_its_name)
{
    struct keel_graph *graph = image_graph(true);
    struct rig model;
    uint8_t *bytes = NULL;
    uint64_t count;
    uint32_t nodes;
    rig_open(&model, graph);
    const struct keel_onnx_export how = {
        .graph = graph, .name = "model", .read = read_param, .context = &model};
    ck_status(keel_onnx_export(&how, &bytes, &count, &nodes), KEEL_UNSUPPORTED);
    ck_assert_msg(strstr(keel_detail(), "the model's operation layernorm has no gamma") != NULL, "%s",
                  keel_detail());
    rig_close(&model);
    keel_graph_destroy(graph);
}
END_TEST

START_TEST(an_output_of_images_is_told_as_it_lies)
{
    struct keel_graph *graph = image_graph(false);
    struct rig model;
    struct keel_onnx_file *file;
    uint8_t *bytes;
    uint64_t count;
    uint32_t nodes;
    rig_open(&model, graph);
    const struct keel_onnx_export how = {
        .graph = graph, .name = "model", .read = read_param, .context = &model};
    ck_ok(keel_onnx_export(&how, &bytes, &count, &nodes));
    ck_assert_uint_eq(nodes, 1);
    ck_ok(keel_onnx_file_read("exported", bytes, count, false, &file));
    const struct keel_onnx_graph *found = keel_onnx_file_graph(file);
    ck_assert_uint_eq(found->out_count, 1);
    ck_assert_uint_eq(found->out[0].dims, 4);
    ck_assert_uint_eq(found->out[0].size[1], CLASSES);
    ck_assert_uint_eq(found->out[0].size[2], SIDE);
    ck_assert_uint_eq(found->out[0].size[3], SIDE);
    keel_onnx_file_close(file);
    keel_free(bytes);
    rig_close(&model);
    keel_graph_destroy(graph);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, what_is_written_has_the_same_logits_for_any_batch, 0, MODELS);
    tcase_add_loop_test(tc, what_has_no_operator_is_refused_by_its_name, 0, 2);
    tcase_add_test(tc, a_norm_without_gamma_is_refused_by_its_name);
    tcase_add_test(tc, an_output_of_images_is_told_as_it_lies);
}

KEEL_TEST_MAIN("onnx_export", cases, 120)
