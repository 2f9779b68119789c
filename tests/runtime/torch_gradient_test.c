/* torch_gradient_test.c - loss and gradients of whole models equal PyTorch's, with the same weights and the
 * same batch.
 *
 * The other side is torch_gradient.py, written from the papers. Each tensor's gradient differs by at most
 * 1e-4 of its norm, in float32. Needs a Python with torch, KEEL_PYTHON or python3: without one nothing is
 * tested, and it says so. A directory holds what is compared: `index`, a line a tensor (role, name, dtype,
 * sizes), and `data`, the tensors in that order. */
#include "data.h"
#include "harness.h"
#include "model.h"
#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PERTURBED = 1 }; /* stream of the random numbers that weights are moved by */

struct dump {
    char directory[64];
    FILE *index, *data;
};

static void dump_open(struct dump *dump)
{
    char path[128];
    strcpy(dump->directory, "/tmp/keel-torch-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dump->directory));
    snprintf(path, sizeof path, "%s/index", dump->directory);
    dump->index = fopen(path, "w");
    snprintf(path, sizeof path, "%s/data", dump->directory);
    dump->data = fopen(path, "wb");
    ck_assert(dump->index != NULL && dump->data != NULL);
}

static void dump_tensor(struct dump *dump, const char *role, const char *name, const char *dtype,
                        uint32_t dims, const uint64_t *sizes, const void *elements)
{
    uint64_t count = 1;
    fprintf(dump->index, "%s %s %s", role, name, dtype);
    for (uint32_t d = 0; d < dims; d++) {
        fprintf(dump->index, " %llu", (unsigned long long)sizes[d]);
        count *= sizes[d];
    }
    fputc('\n', dump->index);
    ck_assert_uint_eq(fwrite(elements, sizeof(float), count, dump->data), count);
}

/* ---- Keel's side ------------------------------------------------------------------------------------------
 */

struct side {
    struct keel_job job;
    struct keel_data *data;
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_engine *engine;
};

static uint64_t soon(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

static void side_open(struct side *side)
{
    struct keel_graph *graph;
    ck_ok(keel_data_open(&side->job, &side->data));
    ck_ok(keel_device_open("host", NULL, &side->device));
    ck_ok(keel_kernels_create(side->device, &side->kernels));
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_model_build(graph, &side->job, side->data));
    struct keel_engine_config config = {
        .device = side->device, .kernels = side->kernels, .graph = graph, .training = true};
    ck_ok(keel_engine_create(&config, &side->engine));
    keel_graph_destroy(graph);
    ck_ok(keel_engine_initialize(side->engine, side->job.seed));
}

static void side_close(struct side *side)
{
    keel_engine_destroy(side->engine);
    keel_kernels_destroy(side->kernels);
    keel_device_close(side->device);
    keel_data_close(side->data);
}

static void copy_param(struct side *side, enum keel_engine_flat flat, const struct keel_engine_param *param,
                       float *values, bool write)
{
    struct keel_queue *queue = keel_engine_queue(side->engine);
    struct keel_buffer *buffer = keel_engine_flat(side->engine, flat);
    uint64_t offset = param->offset * sizeof(float), bytes = param->count * sizeof(float);
    ck_ok(write ? keel_queue_write(queue, buffer, offset, values, bytes, NULL, NULL)
                : keel_queue_read(queue, buffer, offset, values, bytes, NULL, NULL));
    ck_ok(keel_queue_finish(queue, soon()));
}

/* Moved from where they begin, so that no bias is 0, no gamma 1, and every part has a gradient to speak of.
 */
static void dump_weights(struct side *side, struct dump *dump)
{
    struct keel_control control = {.seed_lo = 5, .step = PERTURBED};
    for (uint32_t i = 0; i < keel_engine_param_count(side->engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(side->engine, i);
        float *values;
        ck_ok(keel_alloc(param->count, sizeof *values, &values));
        copy_param(side, KEEL_FLAT_WEIGHTS, param, values, false);
        for (uint64_t e = 0; e < param->count && !param->statistic; e++)
            values[e] += 0.2f * (keel_random_uniform(&control, i, e) - 0.5f);
        copy_param(side, KEEL_FLAT_WEIGHTS, param, values, true);
        dump_tensor(dump, param->statistic ? "statistic" : "weight", param->name, "f32", param->dims,
                    param->shape, values);
        keel_free(values);
    }
}

static void dump_gradients(struct side *side, struct dump *dump)
{
    float loss;
    const uint64_t one = 1;
    struct keel_queue *queue = keel_engine_queue(side->engine);
    ck_ok(keel_queue_read(queue, keel_engine_loss(side->engine), 0, &loss, sizeof loss, NULL, NULL));
    ck_ok(keel_queue_finish(queue, soon()));
    dump_tensor(dump, "loss", "loss", "f32", 1, &one, &loss);
    for (uint32_t i = 0; i < keel_engine_param_count(side->engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(side->engine, i);
        float *values;
        ck_ok(keel_alloc(param->count, sizeof *values, &values));
        copy_param(side, KEEL_FLAT_GRADIENTS, param, values, false);
        dump_tensor(dump, "gradient", param->name, "f32", param->dims, param->shape, values);
        keel_free(values);
    }
}

static void run_batch(struct side *side, struct dump *dump)
{
    void *inputs[KEEL_DATA_INPUTS_MAX] = {NULL};
    uint32_t count = keel_data_input_count(side->data);
    for (uint32_t i = 0; i < count; i++)
        ck_ok(keel_alloc(keel_data_input(side->data, i)->bytes, 1, &inputs[i]));
    keel_data_train_batch(side->data, 0, 0, 1, inputs);
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_data_input *input = keel_data_input(side->data, i);
        dump_tensor(dump, "input", input->name, input->dtype == KEEL_I32 ? "i32" : "f32", input->shape.dims,
                    input->shape.size, inputs[i]);
    }
    struct keel_engine_batch batch = {.inputs = (const void *const *)inputs, .seed = side->job.seed};
    ck_ok(keel_engine_zero(side->engine));
    ck_ok(keel_engine_microbatch(side->engine, &batch, NULL, NULL));
    dump_gradients(side, dump);
    for (uint32_t i = 0; i < count; i++)
        keel_free(inputs[i]);
}

/* ---- the models -------------------------------------------------------------------------------------------
 */

static const char *python(void)
{
    const char *named = getenv("KEEL_PYTHON");
    return named != NULL && named[0] != '\0' ? named : "python3";
}

static void compare(struct side *side, const char *model)
{
    struct dump dump;
    char command[512];
    dump_open(&dump);
    side_open(side);
    dump_weights(side, &dump);
    run_batch(side, &dump);
    side_close(side);
    ck_assert_int_eq(fclose(dump.index), 0);
    ck_assert_int_eq(fclose(dump.data), 0);
    snprintf(command, sizeof command,
             "%s tests/runtime/torch_gradient.py %s %s heads=%u capacity=%g balance=%g", python(), model,
             dump.directory, side->job.heads, (double)side->job.capacity, (double)side->job.balance);
    fflush(stdout);
    int code = system(command); // NOLINT(cert-env33-c): the program under comparison, named by the user
    ck_ok(keel_remove_tree(dump.directory));
    ck_assert_msg(code == 0, "%s: PyTorch finds something else", model);
}

static struct keel_job text_job(char *directory)
{
    char text[3000];
    struct keel_job job = {.seed = 11, .layers = 2, .heads = 4, .width = 32, .block = 16, .batch = 4};
    job.bias = job.tied = true;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + (i * i + i / 5) % 23);
    strcpy(directory, "/tmp/keel-torch-text-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_path_join(job.path, directory, "text"));
    ck_ok(keel_file_replace(job.path, text, sizeof text, 0600));
    return job;
}

START_TEST(gpt)
{
    char directory[64];
    struct side side = {.job = text_job(directory)};
    compare(&side, "gpt");
    side.job.tied = false;
    compare(&side, "gpt");
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(moe)
{
    char directory[64];
    struct side side = {.job = text_job(directory)};
    side.job.kind = KEEL_MODEL_MOE;
    side.job.experts = 5;
    side.job.capacity = 1.0f; /* so that some tokens find no place */
    side.job.balance = 0.1f;
    compare(&side, "moe");
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(bert)
{
    char directory[64];
    struct side side = {.job = text_job(directory)};
    side.job.kind = KEEL_MODEL_BERT;
    compare(&side, "bert");
    side.job.tied = false;
    compare(&side, "bert");
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* Noise, 16 by 16: what is in the images does not matter. */
static void write_set(const char *directory, const char *images, const char *labels)
{
    enum { COUNT = 24, PIXELS = 256 };
    struct keel_control control = {.seed_lo = 9};
    uint8_t bytes[16 + COUNT * PIXELS] = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, 16, 0, 0, 0, 16};
    char path[KEEL_PATH_BYTES];
    for (uint32_t i = 0; i < COUNT * PIXELS; i++)
        bytes[16 + i] = (uint8_t)keel_random_u32(&control, 0, i);
    ck_ok(keel_path_join(path, directory, images));
    ck_ok(keel_file_replace(path, bytes, sizeof bytes, 0600));
    memcpy(bytes, (uint8_t[]){0, 0, 8, 1, 0, 0, 0, COUNT}, 8);
    for (uint8_t i = 0; i < COUNT; i++)
        bytes[8 + i] = i % 7;
    ck_ok(keel_path_join(path, directory, labels));
    ck_ok(keel_file_replace(path, bytes, 8 + COUNT, 0600));
}

START_TEST(resnet)
{
    struct side side = {
        .job = {.kind = KEEL_MODEL_RESNET, .seed = 11, .stages = 3, .layers = 2, .width = 8, .batch = 6}};
    strcpy(side.job.path, "/tmp/keel-torch-images-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(side.job.path));
    write_set(side.job.path, "train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    write_set(side.job.path, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte");
    compare(&side, "resnet");
    side.job.stem = KEEL_STEM_LARGE;
    compare(&side, "resnet");
    ck_ok(keel_remove_tree(side.job.path));
}
END_TEST

START_TEST(dlrm)
{
    struct side side = {.job = {.kind = KEEL_MODEL_DLRM,
                                .seed = 11,
                                .layers = 2,
                                .width = 8,
                                .dense = 5,
                                .tables = 4,
                                .categories = 30,
                                .bag = 3,
                                .samples = 1000,
                                .batch = 32}};
    compare(&side, "dlrm");
}
END_TEST

static void cases(TCase *tc)
{
    char command[256];
    snprintf(command, sizeof command, "%s -c 'import torch' >/dev/null 2>&1", python());
    if (system(command) != 0) { // NOLINT(cert-env33-c): as above
        printf("note: not compared with PyTorch: %s has no torch; name one that has by KEEL_PYTHON\n",
               python());
        return;
    }
    tcase_add_test(tc, gpt);
    tcase_add_test(tc, moe);
    tcase_add_test(tc, bert);
    tcase_add_test(tc, resnet);
    tcase_add_test(tc, dlrm);
}

KEEL_TEST_MAIN("torch_gradient", cases, 120)
