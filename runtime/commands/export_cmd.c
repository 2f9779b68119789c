/* export_cmd.c - `keel export JOB|SNAPSHOT OUT`: a model's weights as safetensors, or the model as ONNX; in
 * few bits where --weights says so, with what that costs beside: the loss of both on the job's validation
 * data. */
#include "export_cmd.h"
#include "export_lora.h"
#include "export_onnx.h"
#include "trained.h"

#include <inttypes.h>
#include <jansson.h>
#include <keel/memory.h>
#include <keel/safetensors.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 9, NUMBERS_A_WORD = 8 /* of 4 bits, in an int32 */ };

struct own {
    struct keel_trained_options trained; /* first */
    const char *format;
    uint64_t batches; /* 0: not given */
    bool force, no_eval, adapters;
};

/* A tensor of the file, made of a weight. */
enum part { PLAIN, INTEGERS, PACKED, SCALES, SHAPE };
struct item {
    char name[KEEL_VALUE_NAME_BYTES + 32];
    enum part part;
    uint32_t weight; /* by its number */
    struct keel_matrix matrix;
    uint64_t count; /* numbers of the weight */
};

struct export
{
    const struct own *own;
    struct keel_trained trained;
    uint32_t batches;
    struct keel_scores plain, few; /* of the trained weights, and of what few bits stand for */
    bool scored;
    struct item *items; /* owned, as what follows */
    struct keel_safetensors_tensor *tensors;
    uint32_t count, made; /* made: the item whose bytes are there, and 1; 0: of none */
    uint8_t *bytes;
    struct keel_safetensors_written written;
    struct keel_export_onnx onnx; /* instead, with --format onnx */
    struct keel_trained_meter meter;
};

/* ---- accuracy ------------------------------------------------------------------------------------------ */

static void see_batch(void *context, uint32_t done)
{
    struct export *export = context;
    keel_trained_meter_show(&export->meter, "batches", done, export->batches);
}

static enum keel_status score(struct export *export, struct keel_scores *out)
{
    const struct keel_inference_scoring scoring = {
        .batches = export->batches, .progress = see_batch, .context = export};
    const enum keel_status status = keel_inference_score(export->trained.inference, &scoring, out);
    keel_trained_meter_hide(&export->meter);
    return status;
}

static bool is_onnx(const struct own *own)
{
    return own->format != NULL && strcmp(own->format, "onnx") == 0;
}

static enum keel_status open_model(struct export *export, const char *path)
{
    struct keel_trained *trained = &export->trained;
    const struct own *own = export->own;
    const struct keel_data_use only_vocab = {.val_path = NULL};
    char identity[KEEL_IDENTITY_BYTES] = "";
    if (own->format != NULL && strcmp(own->format, "safetensors") != 0 && !is_onnx(own))
        return keel_fail(KEEL_INVALID, "--format %.40s: safetensors or onnx is wanted", own->format);
    if (is_onnx(own) && (own->adapters || own->trained.weights != NULL))
        return keel_fail(KEEL_INVALID, "--format onnx: all weights are written, as float32; leave out %s",
                         own->adapters ? "--adapters" : "--weights");
    if (own->batches > UINT32_MAX)
        return keel_fail(KEEL_INVALID, "--batches %" PRIu64 ": at most %u", own->batches, UINT32_MAX);
    if (own->no_eval && own->batches > 0)
        return keel_fail(KEEL_INVALID, "--no-eval and --batches: one of them is wanted");
    KEEL_TRY(keel_trained_find(&own->trained, path, trained));
    KEEL_TRY(own->no_eval ? keel_data_open_to_use(&trained->job, &only_vocab, &trained->data)
                          : keel_data_open(&trained->job, &trained->data));
    export->batches = own->batches > 0 ? (uint32_t)own->batches : trained->job.eval_batches;
    export->scored = !own->no_eval && keel_data_val_samples(trained->data) > 0;
    if (keel_data_is_whole(trained->data))
        keel_job_identity(&trained->job, keel_data_digest(trained->data), identity);
    if (own->adapters && trained->job.lora_rank == 0)
        return keel_fail(KEEL_INVALID, "--adapters: the job %s has none (train.lora_rank = 0)",
                         trained->job.name);
    if (own->trained.weights != NULL && trained->job.lora_rank > 0)
        return keel_fail(
            KEEL_INVALID,
            "--weights %.40s: the job %s has adapters, which are merged in float32: export that, import it "
            "into a run of the same model without train.lora_rank, and export that in few bits",
            own->trained.weights, trained->job.name);
    return keel_trained_open(trained, &own->trained, identity);
}

/* Both scores; behind it the device has the trained weights. */
static enum keel_status compare(struct export *export)
{
    struct keel_trained *trained = &export->trained;
    const struct keel_quantise how = trained->quantise;
    if (how.bits > 0) {
        if (export->scored)
            KEEL_TRY(score(export, &export->few));
        trained->quantise = (struct keel_quantise){.bits = 0};
        KEEL_TRY(keel_trained_reload(trained));
        trained->quantise = how;
    }
    return export->scored ? score(export, &export->plain) : KEEL_OK;
}

/* ---- which tensors ------------------------------------------------------------------------------------- */

static void add(struct export *export, const struct keel_engine_param *param, enum part part,
                const char *suffix, const struct item *like)
{
    struct item *item = &export->items[export->count];
    struct keel_safetensors_tensor *tensor = &export->tensors[export->count++];
    const struct keel_matrix *m = &like->matrix;
    const uint64_t groups = m->copies > 0 ? keel_quantise_groups(&export->trained.quantise, m) : 0;
    const uint64_t columns[] = {[INTEGERS] = m->inputs,
                                [PACKED] = (m->inputs + NUMBERS_A_WORD - 1) / NUMBERS_A_WORD,
                                [SCALES] = groups};
    *item = *like;
    item->part = part;
    snprintf(item->name, sizeof item->name, "%s%s", param->name, suffix);
    if (export->own->adapters)
        keel_lora_peft_name(&export->trained.job, param->name, item->name, sizeof item->name);
    tensor->name = item->name;
    tensor->dtype = part == INTEGERS ? KEEL_SAFETENSORS_I8
                    : part == PACKED ? KEEL_SAFETENSORS_I32
                    : part == SHAPE  ? KEEL_SAFETENSORS_I64
                                     : KEEL_SAFETENSORS_F32;
    tensor->dims = 0;
    if (part == PLAIN) {
        tensor->dims = param->dims;
        memcpy(tensor->shape, param->shape, sizeof param->shape);
        return;
    }
    if (part == SHAPE) {
        tensor->shape[tensor->dims++] = m->copies > 1 ? 3 : 2;
        return;
    }
    if (m->copies > 1)
        tensor->shape[tensor->dims++] = m->copies;
    tensor->shape[tensor->dims++] = m->outputs;
    tensor->shape[tensor->dims++] = columns[part];
}

static enum keel_status choose(struct export *export)
{
    enum { PARTS_MAX = 3 };
    const uint32_t weights = keel_inference_weight_count(export->trained.inference);
    const uint32_t bits = export->trained.quantise.bits;
    KEEL_TRY(keel_alloc((size_t)weights * PARTS_MAX, sizeof *export->items, &export->items));
    KEEL_TRY(keel_alloc((size_t)weights * PARTS_MAX, sizeof *export->tensors, &export->tensors));
    for (uint32_t i = 0; i < weights; i++) {
        const struct keel_engine_param *param;
        struct item like = {.weight = i};
        if (!keel_inference_weight(export->trained.inference, i, &param, &like.matrix))
            continue;
        if (keel_lora_is_adapter(param->name) != export->own->adapters)
            continue;
        like.count = param->count;
        if (bits == 0 || like.matrix.copies == 0) {
            add(export, param, PLAIN, "", &like);
            continue;
        }
        add(export, param, bits == 8 ? INTEGERS : PACKED, bits == 8 ? "" : "_packed", &like);
        add(export, param, SCALES, "_scale", &like);
        if (bits != 8)
            add(export, param, SHAPE, "_shape", &like);
    }
    return KEEL_OK;
}

/* ---- their bytes --------------------------------------------------------------------------------------- */

/* Eight integers to a word, the first in the lowest bits, each and 8; what lacks in a row is 0. */
static void pack(const int8_t *from, uint64_t rows, uint64_t inputs, uint32_t *out)
{
    const uint64_t words = (inputs + NUMBERS_A_WORD - 1) / NUMBERS_A_WORD;
    memset(out, 0, keel_size(rows * words * sizeof *out));
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t i = 0; i < inputs; i++)
            out[row * words + i / NUMBERS_A_WORD] |= (uint32_t)(from[row * inputs + i] + 8)
                                                     << 4 * (i % NUMBERS_A_WORD);
}

static void write_shape(const struct keel_matrix *m, int64_t *out)
{
    if (m->copies > 1)
        *out++ = (int64_t)m->copies;
    out[0] = (int64_t)m->outputs;
    out[1] = (int64_t)m->inputs;
}

/* Of a matrix: its integers, or its scales, of which the other is not kept. */
static enum keel_status make_few(struct export *export, const struct item *item, const float *weight)
{
    const struct keel_quantise *how = &export->trained.quantise;
    const uint64_t rows = item->matrix.copies * item->matrix.outputs;
    const uint64_t scale_count = rows * keel_quantise_groups(how, &item->matrix);
    int8_t *integers = NULL;
    float *scales = NULL;
    enum keel_status status = keel_alloc(keel_size(item->count), 1, &integers);
    if (status == KEEL_OK)
        status = keel_alloc(keel_size(scale_count), sizeof *scales, &scales);
    if (status == KEEL_OK)
        status = keel_quantise(how, &item->matrix, weight, integers, scales);
    if (status == KEEL_OK && item->part == INTEGERS)
        memcpy(export->bytes, integers, keel_size(item->count));
    else if (status == KEEL_OK && item->part == SCALES)
        memcpy(export->bytes, scales, keel_size(scale_count * sizeof *scales));
    else if (status == KEEL_OK)
        pack(integers, rows, item->matrix.inputs, (uint32_t *)(void *)export->bytes);
    keel_free(integers);
    keel_free(scales);
    return status;
}

/* All bytes of an item. */
static enum keel_status make(struct export *export, uint32_t index)
{
    const struct item *item = &export->items[index];
    float *weight = NULL;
    keel_free(export->bytes);
    export->bytes = NULL;
    export->made = 0;
    KEEL_TRY(keel_alloc(keel_size(keel_safetensors_bytes(&export->tensors[index])), 1, &export->bytes));
    if (item->part == SHAPE) {
        write_shape(&item->matrix, (int64_t *)(void *)export->bytes);
        export->made = index + 1;
        return KEEL_OK;
    }
    KEEL_TRY(keel_alloc(keel_size(item->count), sizeof *weight, &weight));
    enum keel_status status =
        keel_inference_read_weight(export->trained.inference, item->weight,
                                   item->part == PLAIN ? (float *)(void *)export->bytes : weight);
    if (status == KEEL_OK && item->part == PLAIN)
        status = keel_lora_merge(export->trained.inference, &export->trained.job, item->weight,
                                 (float *)(void *)export->bytes);
    if (status == KEEL_OK && item->part != PLAIN)
        status = make_few(export, item, weight);
    keel_free(weight);
    export->made = status == KEEL_OK ? index + 1 : 0;
    return status;
}

static enum keel_status read_item(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    struct export *export = context;
    if (export->made != index + 1)
        KEEL_TRY(make(export, index));
    memcpy(out, export->bytes + offset, keel_size(bytes));
    return KEEL_OK;
}

static void see_writing(void *context, uint64_t done, uint64_t total)
{
    struct export *export = context;
    keel_trained_meter_show(&export->meter, "MB written", done / 1000000, total / 1000000);
}

/* Of matrices that the model has in another shape than their integers: which, and how; NULL: of none. So
 * keel ckpt import brings them back without knowing the model. The caller frees it. */
static char *tell_shapes(const struct export *export)
{
    json_t *all = json_object();
    for (uint32_t i = 0; i < export->count; i++) {
        const struct item *item = &export->items[i];
        const struct keel_engine_param *param;
        struct keel_matrix matrix;
        if ((item->part != INTEGERS && item->part != PACKED) ||
            !keel_inference_weight(export->trained.inference, item->weight, &param, &matrix))
            continue;
        const uint32_t dims = matrix.copies > 1 ? 3 : 2;
        if (!matrix.across && param->dims == dims)
            continue;
        json_t *shape = json_array();
        for (uint32_t d = 0; d < param->dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)param->shape[d]));
        json_object_set_new(all, param->name,
                            json_pack("{s:o, s:b}", "shape", shape, "across", matrix.across));
    }
    char *text = json_object_size(all) > 0 ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    return text;
}

static enum keel_status write_out(struct export *export, const char *path)
{
    const struct keel_trained *trained = &export->trained;
    const char *weights = export->own->trained.weights;
    char step[24];
    snprintf(step, sizeof step, "%" PRIu64, trained->info.step);
    KEEL_TRY(choose(export));
    char *shapes = tell_shapes(export);
    const struct keel_safetensors_note notes[] = {{"format", "pt"},
                                                  {"keel.run", trained->job.name},
                                                  {"keel.step", step},
                                                  {"keel.weights", weights != NULL ? weights : "float32"},
                                                  {"keel.shapes", shapes}};
    const struct keel_safetensors_write what = {.path = path,
                                                .tensors = export->tensors,
                                                .tensor_count = export->count,
                                                .notes = notes,
                                                .note_count =
                                                    sizeof notes / sizeof notes[0] - (shapes == NULL ? 1 : 0),
                                                .replace = export->own->force,
                                                .read = read_item,
                                                .progress = see_writing,
                                                .context = export};
    const enum keel_status status = keel_safetensors_write(&what, &export->written);
    free(shapes); /* jansson's own allocation */
    keel_trained_meter_hide(&export->meter);
    return status;
}

/* Beside the adapters. */
static enum keel_status write_adapter_config(struct export *export)
{
    char path[KEEL_PATH_BYTES];
    const char *slash = strrchr(export->written.path, '/');
    snprintf(path, sizeof path, "%.*sadapter_config.json",
             slash != NULL ? (int)(slash - export->written.path) + 1 : 0, export->written.path);
    return keel_lora_write_config(export->trained.inference, &export->trained.job, path);
}

/* ---- telling ------------------------------------------------------------------------------------------- */

static void print_scores(const char *name, const struct keel_scores *scores)
{
    printf("%-12s loss %.6g", name, (double)scores->loss);
    if (scores->has_accuracy)
        printf(", accuracy %.4f", (double)scores->accuracy);
    printf("\n");
}

static void print_text(const struct export *export)
{
    const struct keel_trained *trained = &export->trained;
    const char *weights = export->own->trained.weights;
    const struct keel_trained_quantised found = keel_trained_quantised(trained);
    if (is_onnx(export->own))
        printf("step %" PRIu64 ": %u nodes, %" PRIu64 " bytes: %s\n", trained->info.step, export->onnx.nodes,
               export->onnx.bytes, export->onnx.path);
    else
        printf("step %" PRIu64 ": %u tensors, %" PRIu64 " bytes: %s\n", trained->info.step, export->count,
               export->written.tensor_bytes, export->written.path);
    if (weights != NULL)
        printf("%s: %u of %u weights, %" PRIu64 " of %" PRIu64 " numbers\n", weights, found.tensors,
               found.of_tensors, found.numbers, found.of_numbers);
    if (!export->scored) {
        if (!export->own->no_eval)
            printf("there are no validation data to say what they are worth\n");
        return;
    }
    print_scores("float32", &export->plain);
    if (weights != NULL)
        print_scores(weights, &export->few);
}

static void put_scores(struct keel_json *json, const char *loss, const char *accuracy,
                       const struct keel_scores *scores)
{
    if (isfinite(scores->loss))
        keel_json_real(json, loss, (double)scores->loss, DIGITS);
    else
        keel_json_text(json, loss, NULL);
    if (scores->has_accuracy)
        keel_json_real(json, accuracy, (double)scores->accuracy, DIGITS);
}

static void print_json(const struct export *export)
{
    const struct keel_trained *trained = &export->trained;
    const char *weights = export->own->trained.weights;
    const struct keel_trained_quantised found = keel_trained_quantised(trained);
    const bool onnx = is_onnx(export->own);
    struct keel_json json = keel_command_json(stdout);
    keel_json_text(&json, "path", onnx ? export->onnx.path : export->written.path);
    keel_json_text(&json, "job", trained->job.name);
    keel_json_number(&json, "step", trained->info.step);
    keel_json_number(&json, onnx ? "nodes" : "tensors", onnx ? export->onnx.nodes : export->count);
    keel_json_number(&json, "bytes", onnx ? export->onnx.bytes : export->written.tensor_bytes);
    keel_json_text(&json, "weights", weights != NULL ? weights : "float32");
    keel_json_number(&json, "quantised", found.numbers);
    keel_json_number(&json, "numbers", found.of_numbers);
    if (export->scored) {
        keel_json_number(&json, "batches", export->batches);
        put_scores(&json, "loss", "accuracy", &export->plain);
        if (weights != NULL)
            put_scores(&json, "loss_quantised", "accuracy_quantised", &export->few);
    }
    keel_command_json_end(&json);
}

/* ---- the command --------------------------------------------------------------------------------------- */

static int run(const struct keel_command *command)
{
    struct export *export;
    enum keel_status status = keel_alloc(1, sizeof *export, &export);
    if (status != KEEL_OK)
        return keel_command_report(command->set, status);
    export->own = keel_command_own(command);
    export->meter = keel_trained_meter();
    status = open_model(export, command->operands[0]);
    if (status == KEEL_OK)
        status = compare(export);
    if (status == KEEL_OK)
        status = is_onnx(export->own) ? keel_export_onnx(&export->trained, command->operands[1],
                                                         export->own->force, &export->onnx)
                                      : write_out(export, command->operands[1]);
    if (status == KEEL_OK && export->own->adapters)
        status = write_adapter_config(export);
    if (status == KEEL_OK && command->json)
        print_json(export);
    else if (status == KEEL_OK)
        print_text(export);
    const int code = status == KEEL_OK ? 0 : keel_command_report(command->set, status);
    keel_trained_close(&export->trained);
    keel_free(export->items);
    keel_free(export->tensors);
    keel_free(export->bytes);
    keel_free(export);
    return code;
}

static const struct keel_command_option options[] = {
    {"--format", "F", KEEL_COMMAND_TEXT, offsetof(struct own, format),
     "safetensors (default); onnx: the model too, for ONNX Runtime and others, its batch open"},
    {"--batches", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, batches),
     "evaluate on so many batches; default: train.eval_batches"},
    {"--no-eval", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, no_eval),
     "do not say what the weights are worth, for which the job's data are read"},
    {"--adapters", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, adapters),
     "of a job with train.lora_rank: its adapters alone, by PEFT's names, with adapter_config.json beside"},
    {"--force", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, force), "replace what is there"},
    KEEL_TRAINED_OPTIONS,
    {.name = NULL}};

static const struct keel_command_kind export_kind = {
    .name = "export",
    .operands = "JOB.conf|PATH OUT",
    .operands_min = 2,
    .operands_max = 2,
    .summary = "write the weights of a snapshot for other programs, in few bits if asked to",
    .details =
        "PATH is the directory of a run, a snapshot in it, or a store or run of snapshots; JOB.conf means "
        "the\n"
        "run's directory that keel run makes for it. OUT is NAME.safetensors, or a directory; with --format "
        "onnx NAME.onnx. With --weights "
        "the\n"
        "matrices that products alone read become integers, with scales beside them, and the loss on the "
        "job's\n"
        "validation data is told of both. keel ckpt export writes a snapshot's tensors as they are, and in "
        "16 "
        "bits.\n",
    .examples =
        "  keel export runs/demo demo.safetensors\n"
        "  keel export runs/fashion fashion.onnx --format onnx\n"
        "  keel export runs/demo demo-int8.safetensors --weights int8\n"
        "  keel export runs/demo demo-int4.safetensors --weights int4:64 --json | jq .loss_quantised\n",
    .options = options,
    .run = run};
static const struct keel_command_kind *const kinds[] = {&export_kind};
static const struct keel_command_set set = {.name = "keel", .kinds = kinds, .kind_count = 1};

int keel_export_main(int argc, char **argv)
{
    return keel_command_main(&set, argc + 1,
                             argv - 1); /* main's own words, of which ours begins with "export" */
}
