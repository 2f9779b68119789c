/* models_test.c - every model that a job can ask for, at a tiny size: its loss falls, and its bits are those
 * of the host reference on another device. */
#include "data.h"
#include "harness.h"
#include "ir.h"
#include "model.h"
#include "ops.h"
#include "trainer.h"
#include <fnmatch.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <keel/models.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct rig {
    struct keel_data *data;
    struct keel_device *device;
    struct keel_trainer *trainer;
    atomic_uint_fast64_t progress;
};

static char directory[64];

enum { SIDE = 16, LARGE = 4 * SIDE };

/* Four textures: stripes across, down and aslant, and squares; moved about, with some noise. */
static uint8_t pixel_of(uint32_t image, uint32_t x, uint32_t y)
{
    const uint32_t kind = image % 4, phase = image / 4;
    const uint32_t along[4] = {y, x, x + y, (x / 2 + y / 2) * 2};
    return (uint8_t)(((along[kind] + phase) % 4 < 2 ? 200 : 20) + (x * 7 + y * 5 + image * 13) % 40);
}

/* Images of `side`, each pixel as often as that is SIDE. */
static void write_set(const char *folder, const char *images, const char *labels, uint8_t count,
                      uint32_t side)
{
    static uint8_t bytes[16 + 200 * LARGE * LARGE];
    char path[KEEL_PATH_BYTES];
    const uint32_t pixels = side * side, times = side / SIDE;
    memcpy(bytes, (uint8_t[]){0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, (uint8_t)side, 0, 0, 0, (uint8_t)side},
           16);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t p = 0; p < pixels; p++)
            bytes[16 + i * pixels + p] = pixel_of(i, p % side / times, p / side / times);
    ck_ok(keel_path_join(path, folder, images));
    ck_ok(keel_file_replace(path, bytes, 16 + (size_t)count * pixels, 0600));
    memcpy(bytes, (uint8_t[]){0, 0, 8, 1, 0, 0, 0, count}, 8);
    for (uint32_t i = 0; i < count; i++)
        bytes[8 + i] = (uint8_t)(i % 4);
    ck_ok(keel_path_join(path, folder, labels));
    ck_ok(keel_file_replace(path, bytes, 8 + (size_t)count, 0600));
}

static void make_data(void)
{
    char path[KEEL_PATH_BYTES], text[3000];
    strcpy(directory, "/tmp/keel-models-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "it was the best of times\n"[i % 25];
    ck_ok(keel_path_join(path, directory, "text"));
    ck_ok(keel_file_replace(path, text, sizeof text, 0600));
    write_set(directory, "train-images-idx3-ubyte", "train-labels-idx1-ubyte", 160, SIDE);
    write_set(directory, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 40, SIDE);
    ck_ok(keel_path_join(path, directory, "large"));
    ck_assert_int_eq(mkdir(path, 0700), 0);
    write_set(path, "train-images-idx3-ubyte", "train-labels-idx1-ubyte", 160, LARGE);
    write_set(path, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 40, LARGE);
}

static void remove_data(void)
{
    ck_ok(keel_remove_tree(directory));
}

/* Models of files are tried by plugin_test.sh. */
enum { BUILT_IN = KEEL_MODEL_PLUGIN };

/* As a job file would give it. */
static struct keel_job tiny(enum keel_model_kind kind)
{
    static const char *const settings[BUILT_IN] = {
        [KEEL_MODEL_GPT] = "[model]\nlayers = 2\nheads = 2\nwidth = 16\nblock = 8\n[data]\npath = %s/text\n",
        [KEEL_MODEL_RESNET] = "[model]\nkind = resnet\nlayers = 1\nwidth = 4\nstages = 2\n[data]\npath = %s\n"
                              "flip = true\nshift = 1\n",
        [KEEL_MODEL_VIT] = "[model]\nkind = vit\nlayers = 1\nheads = 2\nwidth = 32\npatch = 4\n[data]\n"
                           "path = %s\n",
        [KEEL_MODEL_BERT] = "[model]\nkind = bert\nlayers = 2\nheads = 2\nwidth = 16\nblock = 16\n[data]\n"
                            "path = %s/text\n",
        [KEEL_MODEL_MOE] = "[model]\nkind = moe\nlayers = 2\nheads = 2\nwidth = 16\nblock = 8\nexperts = 3\n"
                           "[data]\npath = %s/text\n",
        [KEEL_MODEL_LLAMA] =
            "[model]\nkind = llama\nlayers = 2\nheads = 4\nkv_heads = 2\nwidth = 16\nblock = 8\n"
            "tied = false\n[data]\npath = %s/text\n",
        [KEEL_MODEL_MIXTRAL] =
            "[model]\nkind = mixtral\nlayers = 2\nheads = 4\nkv_heads = 2\nwidth = 16\nhidden = 24\n"
            "block = 8\nexperts = 3\n[data]\npath = %s/text\n",
        [KEEL_MODEL_ALEXNET] = "[model]\nkind = alexnet\nwidth = 2\ndropout = 0.1\n[data]\npath = %s/large\n",
        [KEEL_MODEL_DLRM] = "[model]\nkind = dlrm\nlayers = 1\nwidth = 4\ndense = 3\ntables = 3\n"
                            "categories = 20\nbag = 3\n[data]\npath = %s\n"};
    static const char *const common = "[job]\nshards = 2\n[train]\nsteps = 60\nwarmup_steps = 5\nlr = %s\n"
                                      "min_lr = 1e-3\neval_batches = 2\nbatch = %u\n";
    char path[KEEL_PATH_BYTES], text[2048];
    struct keel_job job;
    int length = snprintf(text, sizeof text, settings[kind], directory);
    static const uint32_t batch[BUILT_IN] = {
        [KEEL_MODEL_GPT] = 4, [KEEL_MODEL_RESNET] = 8,  [KEEL_MODEL_BERT] = 32,
        [KEEL_MODEL_MOE] = 4, [KEEL_MODEL_LLAMA] = 4,   [KEEL_MODEL_DLRM] = 64,
        [KEEL_MODEL_VIT] = 8, [KEEL_MODEL_MIXTRAL] = 4, [KEEL_MODEL_ALEXNET] = 8};
    length += snprintf(text + length, sizeof text - (size_t)length, common,
                       kind == KEEL_MODEL_VIT || kind == KEEL_MODEL_ALEXNET ? "3e-3" : "1e-2", batch[kind]);
    ck_ok(keel_path_join(path, directory, "job.conf"));
    ck_ok(keel_file_replace(path, text, (size_t)length, 0600));
    ck_ok(keel_job_load(path, NULL, 0, &job));
    return job;
}

static void rig_open(struct rig *rig, const struct keel_job *job, const char *selector)
{
    *rig = (struct rig){.data = NULL};
    ck_ok(keel_data_open(job, &rig->data));
    ck_ok(keel_device_open(selector, NULL, &rig->device));
    struct keel_trainer_config config = {.job = job,
                                         .data = rig->data,
                                         .device = rig->device,
                                         .stall_ns = 120 * KEEL_NS_PER_S,
                                         .progress = &rig->progress};
    ck_ok(keel_trainer_create(&config, &rig->trainer));
    ck_ok(keel_trainer_initialize(rig->trainer));
}

static void rig_close(struct rig *rig)
{
    keel_trainer_destroy(rig->trainer);
    keel_device_close(rig->device);
    keel_data_close(rig->data);
}

static struct keel_trainer_result run_step(struct rig *rig, uint64_t number)
{
    uint16_t mine[KEEL_GROUP_SHARDS_MAX] = {0};
    struct keel_trainer_step step = {.step = number, .rank_count = 1, .shard_position = mine};
    struct keel_trainer_result result;
    ck_ok(keel_trainer_run(rig->trainer, &step, &result));
    return result;
}

START_TEST(its_loss_falls_and_so_does_that_of_validation)
{
    struct rig rig;
    struct keel_job job = tiny((enum keel_model_kind)_i);
    struct keel_scores before, after;
    rig_open(&rig, &job, "host");
    ck_ok(keel_trainer_eval(rig.trainer, &before));
    ck_assert(before.has_loss);
    ck_assert_int_eq(before.has_accuracy, _i == KEEL_MODEL_RESNET || _i == KEEL_MODEL_DLRM ||
                                              _i == KEEL_MODEL_VIT || _i == KEEL_MODEL_ALEXNET);
    float first = run_step(&rig, 0).loss, last = 0;
    for (uint64_t step = 1; step < job.steps; step++)
        last = run_step(&rig, step).loss;
    ck_ok(keel_trainer_eval(rig.trainer, &after));
    printf("note: model %d: loss %.3f to %.3f, validation %.3f to %.3f, accuracy %.2f to %.2f\n", _i,
           (double)first, (double)last, (double)before.loss, (double)after.loss, (double)before.accuracy,
           (double)after.accuracy);
    ck_assert_float_lt(last, 0.9f * first);
    ck_assert_float_lt(after.loss, 0.95f * before.loss);
    ck_assert(!after.has_accuracy || after.accuracy > before.accuracy);
    rig_close(&rig);
}
END_TEST

START_TEST(another_device_computes_the_same_bits)
{
    struct keel_trainer_result results[2];
    static const char *const selectors[2] = {"host", "pocl"};
    struct keel_job job = tiny((enum keel_model_kind)_i);
    for (int i = 0; i < 2; i++) {
        struct rig rig;
        rig_open(&rig, &job, selectors[i]);
        for (uint64_t step = 0; step < 3; step++)
            results[i] = run_step(&rig, step);
        rig_close(&rig);
    }
    ck_assert_uint_eq(results[0].digest, results[1].digest);
    ck_assert_mem_eq(&results[0].loss, &results[1].loss, sizeof(float));
    ck_assert_mem_eq(&results[0].grad_norm, &results[1].grad_norm, sizeof(float));
}
END_TEST

START_TEST(sixteen_bits_for_what_waits_change_little)
{
    float losses[2];
    struct keel_job job = tiny((enum keel_model_kind)_i);
    job.top_k = job.experts; /* a choice of some experts is a step: with little a token goes to others */
    for (int i = 0; i < 2; i++) {
        struct rig rig;
        job.storage = i == 0 ? KEEL_F32 : KEEL_BF16;
        rig_open(&rig, &job, "host");
        for (uint64_t step = 0; step < 10; step++)
            losses[i] = run_step(&rig, step).loss;
        rig_close(&rig);
    }
    ck_assert_float_ne(losses[0], losses[1]); /* it is in use */
    ck_assert_float_eq_tol(losses[0], losses[1], 0.02f * losses[0]);
}
END_TEST

/* ---- groups of parameters ---- */

enum { WEIGHTS_MAX = 1 << 16 };

/* The weights of all parameters behind `steps` steps of a job, by number; what the optimizer changes of one
 * depends on its own gradient alone, since nothing is clipped. */
static void weights_after(struct keel_job job, uint64_t steps, float *out)
{
    struct rig rig;
    job.update.max_norm = 0.0F;
    rig_open(&rig, &job, "host");
    for (uint64_t step = 0; step < steps; step++)
        run_step(&rig, step);
    struct keel_engine *engine = keel_trainer_engine(rig.trainer);
    for (uint32_t i = 0; i < keel_engine_tile_count(engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(engine, i);
        ck_assert_uint_le(tile->count, WEIGHTS_MAX);
        ck_ok(keel_queue_read(keel_engine_queue(engine), keel_engine_flat(engine, KEEL_FLAT_WEIGHTS),
                              tile->offset * sizeof(float), out + (size_t)i * WEIGHTS_MAX,
                              tile->count * sizeof(float), NULL, NULL));
    }
    ck_ok(keel_queue_finish(keel_engine_queue(engine), keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
    rig_close(&rig);
}

/* Of two patterns at most. */
static bool names(const char *patterns, const char *name)
{
    char first[64];
    const char *comma = strchr(patterns, ',');
    snprintf(first, sizeof first, "%.*s", comma != NULL ? (int)(comma - patterns) : 63, patterns);
    return fnmatch(first, name, 0) == 0 || (comma != NULL && fnmatch(comma + 1, name, 0) == 0);
}

/* `own`: a job in which what `patterns` name has another rule. Behind one step that has the weights of a job
 * in which all have the rule, and everything else those of a job in which nothing has. */
static void expect_groups(struct keel_job job, struct keel_job own, struct keel_job all,
                          uint64_t steps_of_all, const char *patterns)
{
    enum { PARAMS_MAX = 64 };
    static float plain[PARAMS_MAX * WEIGHTS_MAX], grouped[PARAMS_MAX * WEIGHTS_MAX],
        ruled[PARAMS_MAX * WEIGHTS_MAX];
    struct keel_data *data;
    struct keel_graph *graph;
    uint32_t named = 0, moved = 0;
    weights_after(job, 1, plain);
    weights_after(own, 1, grouped);
    weights_after(all, steps_of_all, ruled);
    ck_ok(keel_data_open(&job, &data));
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_model_build(graph, &job, data));
    ck_assert_uint_le(graph->param_count, PARAMS_MAX);
    for (uint32_t i = 0; i < graph->param_count; i++) {
        const struct keel_ir_param *param = &graph->params[i];
        const size_t bytes = sizeof(float) * keel_shape_count(&graph->values[param->value].shape),
                     at = (size_t)i * WEIGHTS_MAX;
        if (param->statistic)
            continue;
        const bool is = names(patterns, param->name);
        ck_assert_msg(memcmp(grouped + at, (is ? ruled : plain) + at, bytes) == 0, "%s differs", param->name);
        named += is;
        moved += is && memcmp(plain + at, ruled + at, bytes) != 0;
    }
    ck_assert_uint_gt(moved, 0);
    ck_assert_uint_lt(named, graph->param_count);
    keel_graph_destroy(graph);
    keel_data_close(data);
}

static const struct {
    enum keel_model_kind kind;
    const char *patterns;
} groups[] = {
    {KEEL_MODEL_GPT,
     "wpe.weight,h.0.*"},         /* the tied table is used in front of what is frozen, and behind it */
    {KEEL_MODEL_GPT, "*.weight"}, /* biases alone are trained (Ben Zaken et al. 2022, "BitFit") */
    {KEEL_MODEL_GPT, "wte.weight"},
    {KEEL_MODEL_RESNET, "*.weight,conv*"},
    {KEEL_MODEL_BERT, "*.weight"},
    {KEEL_MODEL_VIT, "vit.embeddings.*,*.weight"},
    {KEEL_MODEL_MOE, "h.1.*"},
    {KEEL_MODEL_LLAMA, "*norm.weight,model.embed_tokens.weight"},
    {KEEL_MODEL_MIXTRAL, "*.experts.w1.weight,*.gate.weight"},
    {KEEL_MODEL_ALEXNET, "features.*"},
    {KEEL_MODEL_DLRM, "emb_l.weight,bot_l.*"},
};

START_TEST(what_is_frozen_stays_and_the_rest_has_the_bits_that_it_has_without)
{
    struct keel_job job = tiny(groups[_i].kind), own = job;
    strcpy(own.freeze, groups[_i].patterns);
    expect_groups(job, own, job, 0, groups[_i].patterns);
}
END_TEST

START_TEST(a_group_has_the_learning_rate_of_a_job_of_that_rate)
{
    const enum keel_optimizer optimizers[] = {KEEL_OPTIMIZER_ADAMW, KEEL_OPTIMIZER_SGD, KEEL_OPTIMIZER_LAMB};
    struct keel_job job = tiny(KEEL_MODEL_GPT), own, all;
    job.optimizer = optimizers[_i];
    own = all = job;
    strcpy(own.lr_scale, "*:3,*.bias:0.5,h.1.mlp.*:0.5,*:1,*.bias:0.5,h.1.mlp.*:0.5");
    all.learning_rate *= 0.5F;
    all.min_learning_rate *= 0.5F;
    expect_groups(job, own, all, 1, "*.bias,h.1.mlp.*");
}
END_TEST

START_TEST(a_group_without_decay_is_that_of_a_job_without)
{
    struct keel_job job = tiny(KEEL_MODEL_GPT), own = job, all = job;
    strcpy(own.no_decay, "wte.weight,h.0.attn.*");
    all.update.weight_decay = 0.0F;
    expect_groups(job, own, all, 1, "wte.weight,h.0.attn.*");
}
END_TEST

static uint32_t count_backward(const struct keel_graph *graph, uint32_t op)
{
    uint32_t count = 0;
    for (uint32_t n = 0; n < graph->node_count; n++)
        count += graph->nodes[n].backward && (op == KEEL_OP_NONE || graph->nodes[n].op == op);
    return count;
}

START_TEST(what_only_frozen_parameters_would_need_is_not_computed)
{
    static const struct {
        uint32_t op, all, rest;
    } counts[] = {{KEEL_OP_LINEAR_DW, 8, 4},      {KEEL_OP_LINEAR_DX, 8, 4},
                  {KEEL_OP_TRANSPOSED_DW, 1, 0},  {KEEL_OP_TRANSPOSED_DX, 1, 1},
                  {KEEL_OP_ATTENTION_GRAD, 2, 1}, {KEEL_OP_LAYERNORM_GRAD, 5, 3},
                  {KEEL_OP_EMBEDDING_GRAD, 1, 0}, {KEEL_OP_BIAS_GRAD, 8, 4}};
    struct keel_job job = tiny(KEEL_MODEL_GPT);
    struct keel_data *data;
    ck_ok(keel_data_open(&job, &data));
    for (int frozen = 0; frozen < 2; frozen++) {
        struct keel_graph *graph;
        ck_ok(keel_graph_create(&graph));
        strcpy(job.freeze, frozen ? "wte.weight, wpe.weight, h.0.*" : "");
        ck_ok(keel_model_build(graph, &job, data));
        ck_ok(keel_pass_autodiff(graph));
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            ck_assert_msg(count_backward(graph, counts[i].op) == (frozen ? counts[i].rest : counts[i].all),
                          "%s: %u", keel_op_row(counts[i].op)->name, count_backward(graph, counts[i].op));
        keel_graph_destroy(graph);
    }
    keel_data_close(data);
}
END_TEST

/* Rows beyond a chunk: the table's gradient is not made, nor room for it, and never are all logits there. */
START_TEST(a_frozen_table_leaves_the_loss_in_chunks)
{
    struct keel_job job = tiny(KEEL_MODEL_GPT), own;
    struct keel_data *data;
    job.batch = 140;
    own = job;
    strcpy(own.freeze, "wte.weight");
    expect_groups(job, own, job, 0, "wte.weight");
    ck_ok(keel_data_open(&own, &data));
    for (int frozen = 0; frozen < 2; frozen++) {
        struct keel_graph *graph;
        const struct keel_ir_node *loss = NULL;
        ck_ok(keel_graph_create(&graph));
        ck_ok(keel_model_build(graph, frozen ? &own : &job, data));
        ck_ok(keel_pass_autodiff(graph));
        ck_ok(keel_pass_fuse(graph, KEEL_FUSE_ALL));
        for (uint32_t n = 0; n < graph->node_count; n++)
            if (graph->nodes[n].op == KEEL_OP_LINEAR_CROSS_ENTROPY)
                loss = &graph->nodes[n];
        ck_assert_ptr_nonnull(loss);
        ck_assert((loss->out[1] == 0) == (frozen != 0) && loss->out[3] != 0);
        const struct keel_shape table = graph->values[loss->in[1]].shape,
                                x = graph->values[loss->in[0]].shape;
        ck_assert_uint_eq(keel_op_flops(graph, loss),
                          (frozen ? 4U : 6U) * keel_shape_count(&x) * table.size[0]);
        const uint64_t scratch = keel_shape_count(&graph->values[loss->out[2]].shape),
                       chunk = KEEL_LOSS_CHUNK_ROWS * table.size[0];
        ck_assert_uint_lt(scratch, chunk + 8 * 1024 + (frozen ? 0 : keel_shape_count(&table)));
        keel_graph_destroy(graph);
    }
    keel_data_close(data);
}
END_TEST

/* What compressed sums read and write of the gradients: all that is trained, and nothing behind their end. */
static void boxes_lie_in_gradients(struct keel_engine *engine)
{
    const uint64_t end = keel_buffer_bytes(keel_engine_flat(engine, KEEL_FLAT_GRADIENTS)) / sizeof(float);
    uint64_t in_boxes = 0, trained = 0;
    struct keel_engine_box *boxes;
    uint32_t count;
    ck_ok(keel_engine_boxes(engine, &boxes, &count));
    for (uint32_t i = 0; i < count; in_boxes += boxes[i++].count)
        ck_assert_uint_le(boxes[i].offset + boxes[i].count, end);
    for (uint32_t i = 0; i < keel_engine_tile_count(engine); i++)
        trained += keel_engine_param(engine, i)->frozen ? 0 : keel_engine_tile(engine, i)->count;
    ck_assert_uint_eq(in_boxes, trained);
    keel_free(boxes);
}

START_TEST(what_is_frozen_has_neither_gradients_nor_moments)
{
    struct keel_job job = tiny(KEEL_MODEL_GPT);
    uint64_t bytes[2], elements = 0;
    for (int frozen = 0; frozen < 2; frozen++) {
        struct rig rig;
        struct keel_engine_facts facts;
        strcpy(job.freeze, frozen ? "h.*" : "");
        rig_open(&rig, &job, "host");
        struct keel_engine *engine = keel_trainer_engine(rig.trainer);
        keel_engine_facts(engine, &facts);
        bytes[frozen] = facts.planned_peak_bytes - facts.table_bytes - facts.activation_bytes;
        for (uint32_t i = 0; frozen && i < keel_engine_tile_count(engine); i++)
            elements += keel_engine_param(engine, i)->frozen
                            ? keel_engine_tile(engine, i)->page_count * KEEL_FLAT_ALIGN
                            : 0;
        boxes_lie_in_gradients(engine);
        rig_close(&rig);
    }
    ck_assert_uint_gt(elements, 0);
    ck_assert_uint_eq(bytes[0] - bytes[1], 3 * sizeof(float) * elements);
}
END_TEST

/* A model with adapters begins as the one without, whose parameters have the first bits that they have there.
 */
START_TEST(adapters_change_nothing_before_they_are_trained)
{
    struct keel_job job = tiny((enum keel_model_kind)_i), with = job;
    struct keel_scores scores[2];
    with.lora_rank = 2;
    strcpy(with.lora_targets, "*");
    for (int i = 0; i < 2; i++) {
        struct rig rig;
        rig_open(&rig, i == 0 ? &job : &with, "host");
        ck_ok(keel_trainer_eval(rig.trainer, &scores[i]));
        rig_close(&rig);
    }
    ck_assert_mem_eq(&scores[0].loss, &scores[1].loss, sizeof(float));
}
END_TEST

START_TEST(a_pattern_that_names_nothing_is_refused)
{
    struct keel_job job = tiny(KEEL_MODEL_GPT), other = job;
    struct keel_data *data;
    ck_ok(keel_data_open(&job, &data));
    strcpy(job.freeze, "wte.weight,layers.*");
    strcpy(other.lr_scale, "head.*:2");
    struct keel_job adapted = job;
    adapted.freeze[0] = '\0';
    adapted.lora_rank = 2;
    strcpy(adapted.lora_targets, "*.c_attn.weight,wte.weight"); /* the last of two uses */
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    ck_status(keel_model_build(graph, &job, data), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "train.freeze: layers.* names no parameter of the model"));
    keel_graph_destroy(graph);
    ck_ok(keel_graph_create(&graph));
    ck_status(keel_model_build(graph, &other, data), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "train.lr_scale: head.* names no parameter"));
    keel_graph_destroy(graph);
    ck_ok(keel_graph_create(&graph));
    ck_status(keel_model_build(graph, &adapted, data), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "train.lora_targets = wte.weight names no weight"));
    keel_graph_destroy(graph);
    keel_data_close(data);
}
END_TEST

static uint64_t trained_elements(const struct keel_graph *graph)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < graph->param_count; i++)
        sum +=
            graph->params[i].statistic ? 0 : keel_shape_count(&graph->values[graph->params[i].value].shape);
    return sum;
}

START_TEST(residual_networks_have_the_published_numbers_of_parameters)
{
    static const struct keel_resnet_config configs[] = {
        {4, 2, 64, true, 224, 224, 3, 1000, 2, 0, false, false}, /* ResNet-18 */
        {4, 2, 64, true, 33, 47, 3, 1000, 1, 0, false, false},   /* whatever the size of the images */
        {3, 3, 16, false, 32, 32, 3, 10, 2, 0, false,
         false}, /* ResNet-20, with shortcuts that are convolutions */
        {0, 0, 64, true, 64, 64, 3, 1000, 1, 18, false, false},
        {0, 0, 64, true, 64, 64, 3, 1000, 1, 34, false, false},
        {0, 0, 64, true, 64, 64, 3, 1000, 1, 50, false, false},
        {0, 0, 64, true, 64, 64, 3, 1000, 1, 101, false, false},
        {0, 0, 64, true, 64, 64, 3, 1000, 1, 152, false, false},
        {3, 18, 16, false, 32, 32, 3, 10, 2, 0, true,
         false}, /* 164 layers for CIFAR, of bottlenecks: 1.7 million */
    };
    static const uint64_t parameters[] = {11689512, 11689512, 269722 + 16 * 32 + 32 * 64 + 2 * (32 + 64),
                                          11689512, 21797672, 25557032,
                                          44549160, 60192808, 1704154};
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct keel_graph *graph;
        ck_ok(keel_graph_create(&graph));
        ck_ok(keel_model_resnet(graph, &configs[i]));
        ck_assert_uint_eq(trained_elements(graph), parameters[i]);
        keel_graph_destroy(graph);
    }
}
END_TEST

START_TEST(vision_transformers_have_the_published_numbers_of_parameters)
{
    static const struct keel_vit_config configs[] = {
        {12, 12, 768, 0, 16, 224, 224, 3, 1000, 1, 0, false},      /* ViT-B/16 */
        {24, 16, 1024, 4096, 16, 224, 224, 3, 1000, 1, 0, false}}; /* ViT-L/16 */
    static const uint64_t parameters[] = {86567656, 304326632};
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct keel_graph *graph;
        ck_ok(keel_graph_create(&graph));
        ck_ok(keel_model_vit(graph, &configs[i]));
        ck_assert_uint_eq(trained_elements(graph), parameters[i]);
        keel_graph_destroy(graph);
    }
}
END_TEST

/* What a model refuses is said by the call, and by the graph. */
static void expect_refusal(struct keel_graph *graph, enum keel_status status, const char *says)
{
    char detail[KEEL_DETAIL_BYTES];
    ck_status(status, KEEL_INVALID);
    snprintf(detail, sizeof detail, "%s", keel_detail());
    ck_assert_msg(strstr(detail, says) != NULL, "\"%s\" lacks \"%s\"", detail, says);
    ck_status(keel_graph_status(graph), KEEL_INVALID);
    ck_assert_str_eq(keel_detail(), detail);
    keel_graph_destroy(graph);
}

static struct keel_graph *empty_graph(void)
{
    struct keel_graph *graph;
    ck_ok(keel_graph_create(&graph));
    return graph;
}

START_TEST(sizes_that_make_no_text_model_are_refused_by_their_keys)
{
    static const struct {
        struct keel_gpt_config gpt;
        uint32_t masked;
        const char *says;
    } bad[] = {
        {{0, 2, 4, 4, 5, 1, 0, false, false}, 1, "model.layers = 0 is out of range: 1 to 256"},
        {{4000000000, 2, 4, 4, 5, 1, 0, false, false}, 1, "model.layers = 4000000000 is out of range"},
        {{1, 0, 4, 4, 5, 1, 0, false, false}, 1, "model.heads = 0 is out of range: 1 or more"},
        {{1, 2, 0, 4, 5, 1, 0, false, false}, 1, "model.width = 0"},
        {{1, 2, 4, 0, 5, 1, 0, false, false}, 1, "model.block = 0"},
        {{1, 2, 4, 4, 0, 1, 0, false, false}, 1, "model.vocab = 0"},
        {{1, 2, 4, 4, 5, 0, 0, false, false}, 1, "train.batch = 0"},
        {{1, 3, 4, 4, 5, 1, 0, false, false}, 1, "model.width = 4 does not divide into model.heads = 3"},
        {{1, 2, 4, 4, 5, 1, 2.0F, false, false}, 1, "a dropout of 2 is not in [0, 1)"},
        {{1, 2, 4, 4, 5, 1, 0, false, false}, 0, "tokens that are asked for = 0 is out of range: 1 to 4"},
        {{1, 2, 4, 4, 5, 1, 0, false, false}, 5, "tokens that are asked for = 5 is out of range: 1 to 4"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct keel_gpt_config *c = &bad[i].gpt;
        const struct keel_bert_config bert = {.layers = c->layers,
                                              .heads = c->heads,
                                              .width = c->width,
                                              .block = c->block,
                                              .vocab = c->vocab,
                                              .batch = c->batch,
                                              .masked = bad[i].masked,
                                              .dropout = c->dropout};
        struct keel_graph *graph = empty_graph();
        expect_refusal(graph, keel_model_bert(graph, &bert), bad[i].says);
        if (bad[i].masked != 1)
            continue;
        graph = empty_graph();
        expect_refusal(graph, keel_model_gpt(graph, c), bad[i].says);
    }
}
END_TEST

START_TEST(an_alexnet_has_the_published_number_of_parameters)
{
    const struct keel_alexnet_config config = {
        .width = 64, .height = 224, .image_width = 224, .channels = 3, .classes = 1000, .batch = 1};
    struct keel_alexnet_config bad = config;
    struct keel_graph *graph = empty_graph();
    ck_ok(keel_model_alexnet(graph, &config));
    ck_assert_uint_eq(trained_elements(graph), 61100840);
    keel_graph_destroy(graph);
    bad.image_width = 62;
    graph = empty_graph();
    expect_refusal(graph, keel_model_alexnet(graph, &bad), "images of 224x62 are too small: it takes 63x63");
    bad = config;
    bad.width = 0;
    graph = empty_graph();
    expect_refusal(graph, keel_model_alexnet(graph, &bad), "alexnet: model.width = 0");
}
END_TEST

START_TEST(sizes_that_make_no_residual_network_are_refused_by_their_keys)
{
    static const struct {
        struct keel_resnet_config config;
        const char *says;
    } bad[] = {
        {{33, 1, 4, false, 28, 28, 1, 10, 1, 0, false, false}, "model.stages = 33 is out of range: 1 to 5"},
        {{0, 1, 4, false, 28, 28, 1, 10, 1, 0, false, false}, "model.stages = 0"},
        {{3, 0, 4, false, 28, 28, 1, 10, 1, 0, false, false}, "model.layers = 0"},
        {{3, 1, 0, false, 28, 28, 1, 10, 1, 0, false, false}, "model.width = 0"},
        {{3, 1, 4, false, 28, 28, 0, 10, 1, 0, false, false}, "channels of an image = 0"},
        {{3, 1, 4, false, 28, 28, 1, 0, 1, 0, false, false}, "model.vocab (classes) = 0"},
        {{3, 1, 4, false, 28, 28, 1, 10, 0, 0, false, false}, "train.batch = 0"},
        {{3, 1, 4, false, 3, 9, 1, 10, 1, 0, false, false},
         "images of 3x9 are too small for model.stages = 3, which take 4x4"},
        {{3, 1, 4, false, 28, 28, 1, 10, 1, 51, false, false},
         "model.depth = 51: one of 18, 34, 50, 101, 152 is known"},
        {{3, 1, 4, true, 31, 40, 1, 10, 1, 50, false, false},
         "too small for model.depth = 50 with model.stem = large, which take 32x32"},
        {{3, 1, 4, true, 15, 20, 1, 10, 1, 0, false, false}, "with model.stem = large, which take 16x16"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct keel_graph *graph = empty_graph();
        expect_refusal(graph, keel_model_resnet(graph, &bad[i].config), bad[i].says);
    }
}
END_TEST

START_TEST(sizes_that_make_no_vision_transformer_are_refused_by_their_keys)
{
    static const struct {
        struct keel_vit_config config;
        const char *says;
    } bad[] = {
        {{0, 2, 8, 0, 4, 8, 8, 1, 10, 1, 0, false}, "vit: model.layers = 0"},
        {{1, 3, 8, 0, 4, 8, 8, 1, 10, 1, 0, false}, "model.width = 8 does not divide into model.heads = 3"},
        {{1, 2, 8, 0, 0, 8, 8, 1, 10, 1, 0, false}, "model.patch = 0"},
        {{1, 2, 8, 0, 16, 8, 8, 1, 10, 1, 0, false},
         "images of 8x8 do not divide into patches of model.patch = 16"},
        {{1, 2, 8, 0, 4, 8, 10, 1, 10, 1, 0, false}, "images of 8x10 do not divide"},
        {{1, 2, 8, 0, 4, 8, 8, 1, 0, 1, 0, false}, "model.vocab (classes) = 0"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct keel_graph *graph = empty_graph();
        expect_refusal(graph, keel_model_vit(graph, &bad[i].config), bad[i].says);
    }
}
END_TEST

START_TEST(sizes_that_make_no_mixture_or_recommendation_are_refused_by_their_keys)
{
    const struct keel_gpt_config gpt = {
        .layers = 2, .heads = 2, .width = 4, .block = 4, .vocab = 5, .batch = 1};
    struct keel_moe_config moe[] = {{gpt, 2, 1e30F, 0}, {gpt, 2, NAN, 0}, {gpt, 2, 0, 0},
                                    {gpt, 1, 1, 0},     {gpt, 2, 1, -1},  {gpt, 2, 1, 0}};
    moe[5].gpt.layers = 1;
    static const char *const says[] = {"model.capacity = 1e+30 is out of range: above 0, 64 at most",
                                       "model.capacity = nan",
                                       "model.capacity = 0",
                                       "model.experts = 1 is out of range: 2 or more",
                                       "a loss of weight -1",
                                       "model.layers = 1 is out of range: 2 to 256"};
    for (size_t i = 0; i < sizeof moe / sizeof moe[0]; i++) {
        struct keel_graph *graph = empty_graph();
        expect_refusal(graph, keel_model_moe(graph, &moe[i]), says[i]);
    }
    const struct keel_dlrm_config dlrm[] = {
        {.dense = 1, .tables = 1, .categories = 1, .width = 1, .batch = 1},
        {.dense = 1, .tables = 1, .bag = 1, .categories = 1, .width = 1, .layers = 999, .batch = 1}};
    struct keel_graph *graph = empty_graph();
    expect_refusal(graph, keel_model_dlrm(graph, &dlrm[0]), "dlrm: model.bag = 0 is out of range: 1 or more");
    graph = empty_graph();
    expect_refusal(graph, keel_model_dlrm(graph, &dlrm[1]), "dlrm: model.layers = 999");
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, residual_networks_have_the_published_numbers_of_parameters);
    tcase_add_test(tc, vision_transformers_have_the_published_numbers_of_parameters);
    tcase_add_test(tc, an_alexnet_has_the_published_number_of_parameters);
    tcase_add_test(tc, sizes_that_make_no_text_model_are_refused_by_their_keys);
    tcase_add_test(tc, sizes_that_make_no_residual_network_are_refused_by_their_keys);
    tcase_add_test(tc, sizes_that_make_no_vision_transformer_are_refused_by_their_keys);
    tcase_add_test(tc, sizes_that_make_no_mixture_or_recommendation_are_refused_by_their_keys);
    tcase_add_checked_fixture(tc, make_data, remove_data);
    tcase_add_loop_test(tc, what_is_frozen_stays_and_the_rest_has_the_bits_that_it_has_without, 0,
                        sizeof groups / sizeof groups[0]);
    tcase_add_loop_test(tc, a_group_has_the_learning_rate_of_a_job_of_that_rate, 0, 3);
    tcase_add_test(tc, a_group_without_decay_is_that_of_a_job_without);
    tcase_add_test(tc, what_only_frozen_parameters_would_need_is_not_computed);
    tcase_add_test(tc, a_frozen_table_leaves_the_loss_in_chunks);
    tcase_add_test(tc, what_is_frozen_has_neither_gradients_nor_moments);
    tcase_add_test(tc, a_pattern_that_names_nothing_is_refused);
    tcase_add_loop_test(tc, adapters_change_nothing_before_they_are_trained, 0, BUILT_IN);
    tcase_add_loop_test(tc, its_loss_falls_and_so_does_that_of_validation, 0, BUILT_IN);
    tcase_add_loop_test(tc, another_device_computes_the_same_bits, 0, BUILT_IN);
    tcase_add_loop_test(tc, sixteen_bits_for_what_waits_change_little, 0, BUILT_IN);
}

KEEL_TEST_MAIN("models", cases, 120)
