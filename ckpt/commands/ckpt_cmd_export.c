/* ckpt_cmd_export.c - `keel ckpt export`: a snapshot's tensors as safetensors, for other programs. */
#include "bert_names.h"
#include "ckpt_cmd_tensors.h"
#include "float_convert.h"
#include "gpt2_names.h"
#include "mixtral_names.h"
#include "snapshot.h"
#include "torch_layout.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <keel/safetensors.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK_ELEMENTS = 1 << 20, NOTES_MAX = 6 };

struct export_options {
    struct keel_cmd_options shared;
    const char *names, *dtype, *only, *shard_size;
    bool force;
};

/* One tensor on its way: what it is, and what it is called in the file. */
struct item {
    struct keel_region tensor;
    enum keel_ckpt_dtype to;
    uint64_t first; /* element of the tensor with which it begins: of an expert, which is a part of it */
    bool part, turned;
    char name[KEEL_TENSOR_NAME_BYTES + sizeof KEEL_GPT2_PREFIX];
};

struct export
{
    const struct keel_command *cmd;
    const struct export_options *options;
    struct keel_snapshot *snapshot; /* borrowed */
    int code;
    enum keel_cmd_names names;
    uint32_t dtype; /* of floats; 0: their own */
    uint64_t shard_bytes;
    struct item *items;
    struct keel_safetensors_tensor *tensors;
    uint32_t count, dropped;
    uint64_t overflowed; /* finite numbers that the new type does not hold */
    uint8_t *block;
    struct keel_torch_turned turned;
    struct keel_cmd_meter meter;
};

/* ---- which tensors ----------------------------------------------------------------------------------- */

/* Of a snapshot of Keel's GPT only the parameters have a place in GPT-2's files. */
static enum keel_status name_item(struct export *e, struct item *item, bool *out_keep)
{
    const char *name = item->tensor.name, *known;
    *out_keep = keel_cmd_selects(e->options->only, name);
    snprintf(item->name, sizeof item->name, "%s", name);
    if (!*out_keep || e->names == KEEL_CMD_NAMES_KEEL)
        return KEEL_OK;
    if (keel_cmd_is_optimizers(name))
        *out_keep = false;
    else if (e->names == KEEL_CMD_NAMES_BERT) {
        struct keel_bert_name bert;
        keel_bert_name(name, &bert);
        if (strcmp(bert.text, name) != 0 || bert.left_out != NULL || bert.copy_of != NULL)
            return keel_fail(KEEL_MISMATCH,
                             "tensor %s: is none of BERT's; export with --names keel, or choose with --only",
                             name);
    } else if (e->names == KEEL_CMD_NAMES_GPT2 &&
               (keel_gpt2_name(name, &known) != KEEL_GPT2_PARAMETER || known != name))
        return keel_fail(KEEL_MISMATCH,
                         "tensor %s: is none of GPT-2's; export with --names keel, or choose with --only",
                         name);
    return KEEL_OK;
}

/* Expert after expert of a tensor that holds all of a layer, of which *item is the first. */
static enum keel_status add_experts(struct export *e, struct item *item)
{
    const uint64_t count = item->tensor.shape[0];
    const struct item whole = *item;
    for (uint64_t expert = 0; expert < count; expert++) {
        item = &e->items[e->count++];
        *item = whole;
        item->part = true;
        item->first =
            expert * (keel_region_bytes(&whole.tensor) / keel_ckpt_dtype_bytes(whole.tensor.dtype) / count);
        if (!keel_mixtral_expert_name(whole.tensor.name, (uint32_t)expert, item->name, sizeof item->name))
            return keel_fail(KEEL_LIMIT, "tensor %s: the name of an expert of it is too long",
                             whole.tensor.name);
    }
    return KEEL_OK;
}

static bool has_experts(const struct export *e, const struct keel_region *tensor)
{
    return e->names == KEEL_CMD_NAMES_MIXTRAL && keel_mixtral_is_stack(tensor->name, tensor->dims);
}

/* How many tensors of the file those of the snapshot are. */
static enum keel_status count_items(const struct export *e, uint64_t *out)
{
    *out = 0;
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(e->snapshot); i++) {
        struct keel_region tensor;
        KEEL_TRY(keel_snapshot_tensor(e->snapshot, i, &tensor));
        *out += has_experts(e, &tensor) ? tensor.shape[0] : 1;
    }
    return *out <= UINT32_MAX ? KEEL_OK : keel_fail(KEEL_LIMIT, "too many experts");
}

/* Names of torch's layouts and of experts say nothing to other models. */
static enum keel_status check_model(const struct export *e)
{
    bool images = false, experts = false;
    for (uint32_t i = 0; i < e->count; i++) {
        images = images || e->items[i].tensor.dims == KEEL_TORCH_CONVOLUTION;
        experts = experts || e->items[i].part;
    }
    if (e->count == 0)
        return keel_fail(KEEL_NOT_FOUND, "no tensor is meant by --only %s; keel ckpt show lists the names",
                         e->options->only != NULL ? e->options->only : "");
    if (e->options->only != NULL)
        return KEEL_OK;
    if (e->names == KEEL_CMD_NAMES_TORCH && !images)
        return keel_fail(KEEL_MISMATCH,
                         "no tensor is a convolution's: --names torch is for models of images; "
                         "export with --names keel, or choose with --only");
    return e->names == KEEL_CMD_NAMES_MIXTRAL && !experts
               ? keel_fail(KEEL_MISMATCH, "no tensor is of experts: --names mixtral is for a mixtral; "
                                          "export with --names keel, or choose with --only")
               : KEEL_OK;
}

static enum keel_status choose(struct export *e)
{
    const uint32_t all = keel_snapshot_tensor_count(e->snapshot);
    uint64_t most;
    uint32_t kept = 0;
    bool head = false;
    KEEL_TRY(count_items(e, &most));
    KEEL_TRY(keel_alloc(most, sizeof *e->items, &e->items));
    KEEL_TRY(keel_alloc(most, sizeof *e->tensors, &e->tensors));
    for (uint32_t i = 0; i < all; i++) {
        struct item *item = &e->items[e->count];
        bool keep = false;
        *item = (struct item){.first = 0};
        KEEL_TRY(keel_snapshot_tensor(e->snapshot, i, &item->tensor));
        KEEL_TRY(name_item(e, item, &keep));
        if (!keep)
            continue;
        kept++;
        item->to = item->tensor.dtype;
        if (e->dtype != 0 && keel_is_float(item->to))
            item->to = (enum keel_ckpt_dtype)e->dtype;
        item->turned = keel_cmd_turns(e->names, item->name, item->tensor.dims);
        head = head || strcmp(item->name, KEEL_GPT2_HEAD) == 0;
        if (has_experts(e, &item->tensor))
            KEEL_TRY(add_experts(e, item));
        else
            e->count++;
    }
    e->dropped = all - kept;
    /* With an output layer of its own the model's part has the prefix, as those programs save it. */
    for (uint32_t i = 0; i < e->count && head && e->names == KEEL_CMD_NAMES_GPT2; i++)
        if (strcmp(e->items[i].name, KEEL_GPT2_HEAD) != 0)
            snprintf(e->items[i].name, sizeof e->items[i].name, KEEL_GPT2_PREFIX "%s",
                     e->items[i].tensor.name);
    return check_model(e);
}

static void describe(struct export *e)
{
    for (uint32_t i = 0; i < e->count; i++) {
        const struct item *item = &e->items[i];
        const uint32_t dims = item->tensor.dims - (item->part ? 1 : 0);
        e->tensors[i] = (struct keel_safetensors_tensor){
            .name = item->name, .dtype = keel_safetensors_from_ckpt(item->to), .dims = dims};
        memcpy(e->tensors[i].shape, item->tensor.shape + (item->part ? 1 : 0),
               dims * sizeof *e->tensors[i].shape);
        if (item->turned)
            keel_torch_shape(true, item->tensor.dims, item->tensor.shape, e->tensors[i].shape);
    }
}

/* ---- their bytes --------------------------------------------------------------------------------------- */

/* As the snapshot has them. */
static enum keel_status read_plain(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    struct export *e = context;
    const struct item *item = &e->items[index];
    uint32_t size = keel_ckpt_dtype_bytes(item->to);
    uint64_t first = item->first + offset / size, count = bytes / size;
    uint8_t *at = out;
    if (keel_process_interrupted())
        return keel_fail(KEEL_INTERRUPTED, "export: stopped by a signal, nothing was written");
    if (item->to == item->tensor.dtype)
        return keel_snapshot_read_elements(e->snapshot, &item->tensor, first, count, out);
    while (count > 0) {
        uint64_t here = count < BLOCK_ELEMENTS ? count : BLOCK_ELEMENTS;
        KEEL_TRY(keel_snapshot_read_elements(e->snapshot, &item->tensor, first, here, e->block));
        e->overflowed += keel_float_convert(item->to, item->tensor.dtype, e->block, keel_size(here), at);
        first += here;
        count -= here;
        at += here * size;
    }
    return KEEL_OK;
}

static enum keel_status read_tensor(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    struct export *e = context;
    struct keel_region region = e->items[index].tensor;
    if (!e->items[index].turned)
        return read_plain(context, index, offset, bytes, out);
    region.dtype = e->items[index].to;
    return keel_torch_read(&e->turned, true, &region, index, offset, bytes, out, read_plain, e);
}

static void progress(void *context, uint64_t done, uint64_t total)
{
    struct export *e = context;
    keel_cmd_meter_show(&e->meter, done, total);
}

/* What the file says of where it came from. The job's identity only goes with all of its state as it is: who
 * imports that may resume the job. */
static uint32_t make_notes(const struct export *e, const char *run, char numbers[2][24],
                           struct keel_safetensors_note *out)
{
    const struct keel_snapshot_info *info = keel_snapshot_info(e->snapshot);
    bool whole = e->dropped == 0 && e->dtype == 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < e->count; i++)
        whole = whole && !e->items[i].turned && !e->items[i].part;
    snprintf(numbers[0], 24, "%" PRIu64, info->step);
    snprintf(numbers[1], 24, "%" PRIu64, info->attempt);
    out[count++] = (struct keel_safetensors_note){"format", "pt"}; /* without it some readers refuse */
    out[count++] = (struct keel_safetensors_note){"keel.run", run};
    out[count++] = (struct keel_safetensors_note){"keel.step", numbers[0]};
    out[count++] = (struct keel_safetensors_note){"keel.attempt", numbers[1]};
    out[count++] = (struct keel_safetensors_note){"keel.metadata", keel_snapshot_metadata(e->snapshot)};
    if (whole && info->identity[0] != '\0')
        out[count++] = (struct keel_safetensors_note){"keel.identity", info->identity};
    return count;
}

static void forget(struct export *e)
{
    keel_torch_forget(&e->turned);
    keel_free(e->items);
    keel_free(e->tensors);
    e->items = NULL;
    e->tensors = NULL;
    e->count = 0;
    e->overflowed = 0;
}

static enum keel_status write_out(struct export *e, const char *path, const char *run,
                                  struct keel_safetensors_written *out)
{
    struct keel_safetensors_note notes[NOTES_MAX];
    char numbers[2][24];
    forget(e); /* what was planned for a snapshot that was removed */
    KEEL_TRY(choose(e));
    describe(e);
    struct keel_safetensors_write what = {.path = path,
                                          .tensors = e->tensors,
                                          .tensor_count = e->count,
                                          .notes = notes,
                                          .note_count = make_notes(e, run, numbers, notes),
                                          .shard_bytes = e->shard_bytes,
                                          .replace = e->options->force,
                                          .read = read_tensor,
                                          .progress = progress,
                                          .context = e};
    /* To the end: temporary files are to be removed, and a signal that comes when the files are written does
     * not say that they are not. */
    keel_process_hold_interrupts(true);
    return keel_safetensors_write(&what, out);
}

/* ---- the command --------------------------------------------------------------------------------------- */

static int print_end(const struct keel_command *cmd, const struct export *e,
                     const struct keel_safetensors_written *written)
{
    const struct keel_snapshot_info *info = keel_snapshot_info(e->snapshot);
    if (e->overflowed > 0)
        fprintf(stderr, "%s: %" PRIu64 " numbers are too large for %s and became infinite\n",
                keel_command_called(&keel_ckpt_commands), e->overflowed, keel_ckpt_dtype_name(e->dtype));
    if (cmd->json)
        return keel_cmd_print_json(
            json_pack("{s:s, s:o, s:o, s:i, s:i, s:I, s:I}", "path", written->path, "step",
                      keel_cmd_step_json(info->step), "attempt", keel_cmd_u64_json(info->attempt), "files",
                      (int)written->files, "tensors", (int)e->count, "bytes",
                      (json_int_t)written->tensor_bytes, "overflowed", (json_int_t)e->overflowed));
    char bytes[KEEL_CMD_WORD_BYTES];
    keel_cmd_format_bytes(written->tensor_bytes, bytes);
    printf("step %" PRIu64 ": %u tensors, %s, in %u file%s: %s\n", info->step, e->count, bytes,
           written->files, written->files == 1 ? "" : "s", written->path);
    if (e->dropped > 0)
        printf("%u tensors were left out\n", e->dropped);
    return 0;
}

static enum keel_status parse(struct export *e)
{
    KEEL_TRY(keel_cmd_parse_names(e->options->names, &e->names));
    KEEL_TRY(keel_cmd_parse_float(e->options->dtype, &e->dtype));
    return keel_cmd_parse_size(e->options->shard_size, &e->shard_bytes);
}

static enum keel_status export_snapshot(void *context, const struct keel_cmd_place *places,
                                        struct keel_snapshot *const *snapshots)
{
    struct export *e = context;
    struct keel_safetensors_written written = {0};
    e->snapshot = snapshots[0];
    KEEL_TRY(write_out(e, e->cmd->operands[1], places[0].store->run, &written));
    e->code = print_end(e->cmd, e, &written);
    return KEEL_OK;
}

static int run(const struct keel_command *cmd)
{
    struct export e = {.cmd = cmd, .options = keel_command_own(cmd), .meter = keel_cmd_meter_of("export")};
    enum keel_status status = parse(&e);
    if (status == KEEL_OK)
        status = keel_alloc((size_t)BLOCK_ELEMENTS * sizeof(double), 1, &e.block);
    if (status == KEEL_OK)
        status = keel_cmd_read(cmd, 1, export_snapshot, &e);
    int code = status == KEEL_OK ? e.code : keel_cmd_report(status);
    forget(&e);
    keel_free(e.block);
    return code;
}

static const struct keel_command_option options[] = {
    KEEL_CMD_STEP,
    {"--names", "NAMES", KEEL_COMMAND_TEXT, offsetof(struct export_options, names),
     "keel (default): as in the snapshot; gpt2, bert, mixtral: the parameters of such a model, as its "
     "published "
     "files; torch: those of a model of images, with convolutions and matrices turned, as torchvision and "
     "Hugging Face have them"},
    {"--dtype", "TYPE", KEEL_COMMAND_TEXT, offsetof(struct export_options, dtype),
     "f32, bf16 or f16: round or widen floating-point tensors to it"},
    {"--only", "PREFIX", KEEL_COMMAND_TEXT, offsetof(struct export_options, only),
     "tensors whose names begin so; weights: all but what only training needs"},
    {"--shard-size", "SIZE", KEEL_COMMAND_TEXT, offsetof(struct export_options, shard_size),
     "files of at most 5GB, 512MiB, ... and an index of them"},
    {"--force", NULL, KEEL_COMMAND_FLAG, offsetof(struct export_options, force), "replace what is there"},
    {0}};

const struct keel_command_kind keel_cmd_export = {
    .name = "export",
    .operands = "PATH OUT",
    .operands_min = 2,
    .operands_max = 2,
    .summary = "write a snapshot's tensors as safetensors",
    .details =
        "OUT is NAME.safetensors, or a directory: model.safetensors in it (NAME/ makes one).\n"
        "With --names gpt2, bert or mixtral the files are those of the Hugging Face programs, which also\n"
        "want a config.json (keel plan JOB --config-json); the optimizer's state goes along with --names\n"
        "keel alone. With --names torch a resnet or alexnet is torchvision's and a vit Hugging Face's:\n"
        "convolutions [out, in, height, width], matrices [out, in]; so are bert's matrices.\n"
        "What is exported from a sealed snapshot is not sealed.\n",
    .examples = "  keel ckpt export out weights.safetensors --only weights --dtype bf16\n"
                "  keel ckpt export out hf/ --names gpt2 --shard-size 5GB\n",
    .options = options,
    .run = run};
