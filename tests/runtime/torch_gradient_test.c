/* torch_gradient_test.c - loss and gradients of whole models equal PyTorch's, with the same weights and the
 * same batch.
 *
 * The other side is torch_gradient.py, written from the papers, in float64. Each tensor's gradient differs by
 * at most 1e-4 of its norm. The networks are small, for deep ones differ by more: of the millions of inputs
 * of ReLU in a ResNet-50 some are so close to 0 that float32 finds them on its other side, and each moves the
 * gradients before it by 1e-2, Keel's as PyTorch's. What PyTorch found is kept in
 * tests/golden/torch_gradients.txt, norms and sampled elements, and compared always; its head says how to
 * make it anew, which is due when first weights, random numbers or the models below change. Where a Python
 * has torch, KEEL_PYTHON or python3, all elements are compared too. A directory holds what is: `index`, a
 * line a tensor (role, name, dtype, sizes), and `data`, the tensors in that order. */
#include "data.h"
#include "harness.h"
#include "model.h"
#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PERTURBED = 1, /* stream of the random numbers that weights are moved by */
    KEPT = 24      /* elements of a tensor in the kept file, at most: as in torch_gradient.py */
};
static const char kept_path[] = "tests/golden/torch_gradients.txt";
static const double limit = 1e-4;
static const double none = 1e-12, typical = 1e-2; /* norms, as in torch_gradient.py */

struct dump {
    char directory[64];
    FILE *index, *data;
    FILE *kept; /* at what PyTorch found for the next tensor, or NULL */
};

/* ---- what PyTorch found once --------------------------------------------------------------------------- */

static void kept_open(struct dump *dump, const char *name)
{
    char line[8192], wanted[64];
    dump->kept = fopen(kept_path, "r");
    ck_assert_msg(dump->kept != NULL, "%s is missing: run from the root of the tree", kept_path);
    snprintf(wanted, sizeof wanted, "case %s\n", name);
    while (fgets(line, sizeof line, dump->kept) != NULL)
        if (strcmp(line, wanted) == 0)
            return;
    ck_abort_msg("%s: has no case %s: make it anew, its head says how", kept_path, name);
}

/* The norm, and the difference as far as the sampled elements tell of it. */
static void kept_check(struct dump *dump, const char *name, uint64_t count, const float *found)
{
    char kept_name[128];
    unsigned long long kept_count;
    double kept_norm, element, square = 0, apart = 0;
    ck_assert_int_eq(fscanf(dump->kept, "%127s %llu %lf", kept_name, &kept_count, &kept_norm), 3);
    ck_assert_msg(strcmp(kept_name, name) == 0 && kept_count == count,
                  "%s has %s of %llu elements where the model has %s: make it anew, its head says how",
                  kept_path, kept_name, kept_count, name);
    uint64_t samples = count < KEPT ? count : KEPT;
    for (uint64_t k = 0; k < samples; k++) {
        uint64_t at = count <= KEPT ? k : ((uint32_t)(k * 2654435761U) * count) >> 32;
        ck_assert_int_eq(fscanf(dump->kept, "%lf", &element), 1);
        apart += ((double)found[at] - element) * ((double)found[at] - element);
    }
    for (uint64_t e = 0; e < count; e++)
        square += (double)found[e] * (double)found[e];
    apart = sqrt(apart * (double)count / (double)samples);
    const double norm = kept_norm < none ? typical : kept_norm; /* of a bias of all keys there is none */
    ck_assert_msg(apart <= limit * norm, "%s: differs from PyTorch's by %.3g of its norm", name,
                  apart / norm);
    ck_assert_msg(fabs(sqrt(square) - kept_norm) <= limit * norm, "%s: norm %.9g, that of PyTorch's is %.9g",
                  name, sqrt(square), kept_norm);
}

/* ---- what is compared ---------------------------------------------------------------------------------- */

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

/* ---- Keel's side --------------------------------------------------------------------------------------- */

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

static void copy_param(struct side *side, enum keel_engine_flat flat, const struct keel_tile *tile,
                       float *values, bool write)
{
    struct keel_queue *queue = keel_engine_queue(side->engine);
    struct keel_buffer *buffer = keel_engine_flat(side->engine, flat);
    uint64_t offset = tile->offset * sizeof(float), bytes = tile->count * sizeof(float);
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
        copy_param(side, KEEL_FLAT_WEIGHTS, keel_engine_tile(side->engine, i), values, false);
        for (uint64_t e = 0; e < param->count && !param->statistic; e++)
            values[e] += 0.2f * (keel_random_uniform(&control, i, e) - 0.5f);
        copy_param(side, KEEL_FLAT_WEIGHTS, keel_engine_tile(side->engine, i), values, true);
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
    if (dump->kept != NULL)
        kept_check(dump, "loss", 1, &loss);
    for (uint32_t i = 0; i < keel_engine_param_count(side->engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(side->engine, i);
        float *values;
        if (param->frozen)
            continue;
        ck_ok(keel_alloc(param->count, sizeof *values, &values));
        copy_param(side, KEEL_FLAT_GRADIENTS, keel_engine_tile(side->engine, i), values, false);
        dump_tensor(dump, "gradient", param->name, "f32", param->dims, param->shape, values);
        if (dump->kept != NULL)
            kept_check(dump, param->name, param->count, values);
        keel_free(values);
    }
}

static void run_batch(struct side *side, struct dump *dump)
{
    void *inputs[KEEL_DATA_INPUTS_MAX] = {NULL};
    uint32_t count = keel_data_input_count(side->data);
    for (uint32_t i = 0; i < count; i++)
        ck_ok(keel_alloc(keel_data_input(side->data, i)->bytes, 1, &inputs[i]));
    ck_ok(keel_data_train_batch(side->data, 0, 0, 1, inputs));
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_data_input *input = keel_data_input(side->data, i);
        dump_tensor(dump, "input", input->name, input->dtype == KEEL_I32 ? "i32" : "f32", input->shape.dims,
                    input->shape.size, inputs[i]);
    }
    struct keel_engine_batch batch = {.inputs = (const void *const *)inputs, .seed = side->job.seed};
    ck_ok(keel_engine_zero(side->engine));
    ck_ok(keel_engine_microbatch(side->engine, &batch));
    dump_gradients(side, dump);
    for (uint32_t i = 0; i < count; i++)
        keel_free(inputs[i]);
}

/* ---- the models ---------------------------------------------------------------------------------------- */

static const char *python(void)
{
    const char *named = getenv("KEEL_PYTHON");
    return named != NULL && named[0] != '\0' ? named : "python3";
}

static bool has_torch;

static void compare_live(const struct side *side, const struct dump *dump, const char *model,
                         const char *name)
{
    char command[640], keep[256] = "";
    const char *keep_path = getenv("KEEL_TORCH_KEEP");
    if (keep_path != NULL)
        snprintf(keep, sizeof keep, "keep=%s case=%s", keep_path, name);
    snprintf(command, sizeof command,
             "%s tests/runtime/torch_gradient.py %s %s heads=%u top=%u capacity=%g balance=%g lora=%g "
             "smoothing=%g %s",
             python(), model, dump->directory, side->job.heads, side->job.top_k, (double)side->job.capacity,
             (double)side->job.balance,
             side->job.lora_rank > 0 ? (double)(side->job.lora_alpha / (float)side->job.lora_rank) : 1.0,
             (double)side->job.label_smoothing, keep);
    fflush(stdout);
    int code = system(command); // NOLINT(cert-env33-c): the program under comparison, named by the user
    ck_assert_msg(code == 0, "%s: PyTorch finds something else", name);
}

/* `model` as torch_gradient.py calls it; `name` is that of the case. */
static void compare(struct side *side, const char *model, const char *name)
{
    struct dump dump = {.kept = NULL};
    ck_assert_msg(has_torch || getenv("KEEL_TORCH_KEEP") == NULL, "nothing to keep: %s has no torch",
                  python());
    dump_open(&dump);
    if (getenv("KEEL_TORCH_KEEP") == NULL)
        kept_open(&dump, name);
    side_open(side);
    dump_weights(side, &dump);
    run_batch(side, &dump);
    side_close(side);
    ck_assert_int_eq(fclose(dump.index), 0);
    ck_assert_int_eq(fclose(dump.data), 0);
    if (dump.kept != NULL)
        ck_assert_int_eq(fclose(dump.kept), 0);
    if (has_torch)
        compare_live(side, &dump, model, name);
    ck_ok(keel_remove_tree(dump.directory));
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
    compare(&side, "gpt", "gpt");
    side.job.tied = false;
    compare(&side, "gpt", "gpt-untied");
    side.job.label_smoothing = 0.2F;
    compare(&side, "gpt", "gpt-smoothed");
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* Adapters whose second matrix is no longer zeros, and alone have gradients. */
START_TEST(lora)
{
    char directory[64];
    struct side side = {.job = text_job(directory)};
    side.job.lora_rank = 3;
    side.job.lora_alpha = 8.0f;
    strcpy(side.job.lora_targets, "*.attn.*, h.1.mlp.*");
    compare(&side, "gpt", "gpt-lora");
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
    compare(&side, "moe", "moe");
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(mixtral)
{
    char directory[64];
    struct side side = {.job = text_job(directory)};
    side.job.kind = KEEL_MODEL_MIXTRAL;
    side.job.kv_heads = 2;
    side.job.hidden = 40;
    side.job.rope_base = 10000.0f;
    side.job.experts = 5;
    side.job.top_k = 2;
    side.job.balance = 0.1f;
    compare(&side, "mixtral", "mixtral");
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(bert)
{
    char directory[64];
    struct side side = {.job = text_job(directory)};
    side.job.kind = KEEL_MODEL_BERT;
    compare(&side, "bert", "bert");
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* Noise of `side` by `side`: what is in the images does not matter. */
static void write_set(const char *directory, uint8_t side, const char *images, const char *labels)
{
    enum { COUNT = 24, SIDE_MAX = 64 };
    struct keel_control control = {.seed_lo = 9};
    uint8_t bytes[16 + COUNT * SIDE_MAX * SIDE_MAX] = {0, 0, 8, 3,    0, 0, 0, COUNT,
                                                       0, 0, 0, side, 0, 0, 0, side};
    char path[KEEL_PATH_BYTES];
    const uint32_t pixels = COUNT * (uint32_t)side * side;
    ck_assert_uint_le(side, SIDE_MAX);
    for (uint32_t i = 0; i < pixels; i++)
        bytes[16 + i] = (uint8_t)keel_random_u32(&control, 0, i);
    ck_ok(keel_path_join(path, directory, images));
    ck_ok(keel_file_replace(path, bytes, 16 + pixels, 0600));
    memcpy(bytes, (uint8_t[]){0, 0, 8, 1, 0, 0, 0, COUNT}, 8);
    for (uint8_t i = 0; i < COUNT; i++)
        bytes[8 + i] = i % 7;
    ck_ok(keel_path_join(path, directory, labels));
    ck_ok(keel_file_replace(path, bytes, 8 + COUNT, 0600));
}

static void write_images(char path[KEEL_PATH_BYTES], uint8_t side)
{
    strcpy(path, "/tmp/keel-torch-images-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(path));
    write_set(path, side, "train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    write_set(path, side, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte");
}

START_TEST(resnet)
{
    struct side side = {
        .job = {.kind = KEEL_MODEL_RESNET, .seed = 11, .stages = 3, .layers = 2, .width = 8, .batch = 6}};
    write_images(side.job.path, 16);
    compare(&side, "resnet", "resnet");
    side.job.stem = KEEL_STEM_LARGE;
    compare(&side, "resnet", "resnet-large");
    side.job.stem = KEEL_STEM_SMALL;
    side.job.stages = 2;
    side.job.width = 4;
    side.job.batch = 8;
    side.job.bottleneck = true;
    compare(&side, "resnet", "resnet-bottleneck");
    side.job.bottleneck = false;
    side.job.mixup = 1.0F;
    side.job.batch = 12;
    compare(&side, "resnet", "resnet-mixed");
    ck_ok(keel_remove_tree(side.job.path));
}
END_TEST

/* Whose last fields are one pixel, which is the mean of all 6 x 6. */
START_TEST(alexnet)
{
    struct side side = {.job = {.kind = KEEL_MODEL_ALEXNET, .seed = 11, .width = 2, .batch = 6}};
    write_images(side.job.path, 64);
    compare(&side, "alexnet", "alexnet");
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
    compare(&side, "dlrm", "dlrm");
}
END_TEST

static void cases(TCase *tc)
{
    char command[256];
    snprintf(command, sizeof command, "%s -c 'import torch' >/dev/null 2>&1", python());
    has_torch = system(command) == 0; // NOLINT(cert-env33-c): as above
    if (!has_torch)
        printf("note: compared with what PyTorch found once (%s): %s has no torch; name one that has by "
               "KEEL_PYTHON\n",
               kept_path, python());
    tcase_add_test(tc, gpt);
    tcase_add_test(tc, lora);
    tcase_add_test(tc, moe);
    tcase_add_test(tc, bert);
    tcase_add_test(tc, resnet);
    tcase_add_test(tc, alexnet);
    tcase_add_test(tc, mixtral);
    tcase_add_test(tc, dlrm);
}

KEEL_TEST_MAIN("torch_gradient", cases, 120)
