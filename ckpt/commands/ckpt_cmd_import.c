/* ckpt_cmd_import.c - `keel ckpt import`: tensors of safetensors files as a committed snapshot of one rank.
 *
 * Streaming: the save's capture reads from the files as it goes. What a job needs to begin from weights is
 * made by --for-training (runtime/worker/trainer_state.c: float32 weights, and Adam's two moments for each).
 */
#include "bert_names.h"
#include "ckpt_cmd_import_place.h"
#include "ckpt_cmd_tensors.h"
#include "few_bits.h"
#include "float_convert.h"
#include "format.h"
#include "gpt2_names.h"
#include "manifest.h"
#include "mixtral_names.h"
#include "safetensors_header.h"
#include "torch_layout.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <keel/safetensors.h>
#include <stdio.h>
#include <string.h>

enum {
    BLOCK_BYTES = 4 << 20,
    ARENA_BYTES = 64 << 20,
    POLL_NS = 100 * 1000 * 1000,
    ZEROS = -1, /* for the index of a source */
    PARTS = 3   /* of a weight's state: itself and two moments */
};

struct import_options {
    struct keel_cmd_options shared;
    const char *names, *dtype, *only, *run;
    bool for_training, allow_nonfinite;
};

/* Where a region's bytes come from. */
struct source {
    int64_t tensor; /* of the file, or ZEROS */
    enum keel_ckpt_dtype from;
    uint32_t few;     /* of the matrices in few bits, and 1; 0: it is as it lies in the file */
    uint32_t experts; /* tensors that it is made of, of which `tensor` is the first; 0: that one alone */
    bool turned;
};

struct import {
    const struct keel_command *cmd;
    const struct import_options *options;
    enum keel_cmd_names names;
    uint32_t dtype; /* of floats; 0: their own */
    uint64_t step;
    struct keel_safetensors *file;
    struct keel_gpt2 *model; /* with --names gpt2 */
    struct keel_region *regions;
    struct source *sources; /* as many */
    uint32_t count, left_out;
    uint64_t raw_bytes, overflowed;
    uint8_t *block;
    struct keel_torch_turned turned;
    struct keel_few *fews;        /* owned, as what follows */
    float *floats;                /* of one of them: */
    uint32_t few_count, unpacked; /* the region's, and 1; 0: of none */

    struct keel_import_place place;
    struct keel_cmd_meter meter;
};

/* ---- which tensors ----------------------------------------------------------------------------------- */

static void leave_out(struct import *im, const char *name, const char *why)
{
    im->left_out++;
    if (!im->cmd->json)
        printf("left out: %s: %s\n", keel_safetensors_shown(name).text, why);
}

/* Whether two tensors of the file are equal, bit for bit. */
static enum keel_status are_equal(struct import *im, uint32_t first, uint32_t second, bool *out)
{
    const struct keel_safetensors_tensor *x = keel_safetensors_tensor(im->file, first),
                                         *y = keel_safetensors_tensor(im->file, second);
    uint8_t *a = im->block, *b = im->block + BLOCK_BYTES / 2;
    const uint64_t bytes = keel_safetensors_bytes(x);
    *out = false;
    if (x->dtype != y->dtype || bytes != keel_safetensors_bytes(y))
        return KEEL_OK;
    for (uint64_t at = 0; at < bytes;) {
        uint64_t here = bytes - at < BLOCK_BYTES / 2 ? bytes - at : BLOCK_BYTES / 2;
        KEEL_TRY(keel_safetensors_read(im->file, first, at, here, a));
        KEEL_TRY(keel_safetensors_read(im->file, second, at, here, b));
        if (memcmp(a, b, keel_size(here)) != 0)
            return KEEL_OK;
        at += here;
    }
    *out = true;
    return KEEL_OK;
}

/* The output layer, when it is the embedding table once more. */
static enum keel_status is_tied(struct import *im, uint32_t head, bool *out)
{
    uint32_t table = keel_safetensors_find(im->file, KEEL_GPT2_TABLE);
    *out = false;
    if (table == UINT32_MAX)
        table = keel_safetensors_find(im->file, KEEL_GPT2_PREFIX KEEL_GPT2_TABLE);
    return table == UINT32_MAX ? KEEL_OK : are_equal(im, head, table, out);
}

/* BERT's files: *name becomes what Keel calls it. A tensor that is another one once more stands for that
 * where the file has it alone. */
static enum keel_status see_bert(struct import *im, uint32_t index, struct keel_bert_name *bert,
                                 bool *out_keep)
{
    const char *name = keel_safetensors_tensor(im->file, index)->name;
    keel_bert_name(name, bert);
    if (bert->text[0] == '\0')
        return keel_fail(KEEL_MISMATCH,
                         "tensor %s: is none of BERT's; import with --names keel, or choose with --only",
                         keel_safetensors_shown(name).text);
    if (bert->left_out != NULL) {
        leave_out(im, name, bert->left_out);
        return KEEL_OK;
    }
    *out_keep = true;
    if (bert->copy_of == NULL)
        return KEEL_OK;
    uint32_t same = keel_safetensors_find(im->file, bert->copy_of);
    bool equal = false;
    if (same == UINT32_MAX)
        same = keel_safetensors_find(im->file, keel_bert_bare_name(bert->copy_of));
    snprintf(bert->text, sizeof bert->text, "%s", bert->copy_of);
    if (same == UINT32_MAX)
        return KEEL_OK;
    *out_keep = false;
    KEEL_TRY(are_equal(im, index, same, &equal));
    if (!equal)
        return keel_fail(KEEL_MISMATCH,
                         "tensor %s: is not %s once more: bert's output layer is its table of words here "
                         "(tie_word_embeddings)",
                         name, bert->copy_of);
    leave_out(im, name, "the same as another, which is there");
    return KEEL_OK;
}

/* Mixtral's files: the first expert of a layer stands for all of them, *experts: how many; the others come
 * with it. */
static enum keel_status see_mixtral(struct import *im, uint32_t index, uint32_t *experts, bool *out_keep)
{
    const struct keel_safetensors_tensor *tensor = keel_safetensors_tensor(im->file, index);
    char name[KEEL_TENSOR_NAME_BYTES];
    uint32_t expert;
    *experts = 0;
    *out_keep = true;
    if (!keel_mixtral_is_expert(tensor->name, &expert))
        return KEEL_OK;
    *out_keep = expert == 0;
    if (expert > 0 && (!keel_mixtral_expert_name(tensor->name, expert - 1, name, sizeof name) ||
                       keel_safetensors_find(im->file, name) == UINT32_MAX))
        return keel_fail(KEEL_MISMATCH, "tensor %s: the expert before it is missing",
                         keel_safetensors_shown(tensor->name).text);
    for (uint32_t found = index; expert == 0 && found != UINT32_MAX;) {
        const struct keel_safetensors_tensor *other = keel_safetensors_tensor(im->file, found);
        if (other->dtype != tensor->dtype || other->dims != 2 ||
            memcmp(other->shape, tensor->shape, 2 * sizeof *other->shape) != 0)
            return keel_fail(KEEL_MISMATCH, "tensor %s: is no matrix like that of the first expert",
                             other->name);
        found = keel_mixtral_expert_name(tensor->name, ++*experts, name, sizeof name)
                    ? keel_safetensors_find(im->file, name)
                    : UINT32_MAX;
    }
    return KEEL_OK;
}

/* GPT-2's files: *name becomes what Keel calls it. */
static enum keel_status see_gpt2(struct import *im, uint32_t index, const char **name, bool *out_keep)
{
    const struct keel_safetensors_tensor *tensor = keel_safetensors_tensor(im->file, index);
    bool tied = false;
    switch (keel_gpt2_name(tensor->name, name)) {
    case KEEL_GPT2_STRANGER:
        return keel_fail(KEEL_MISMATCH,
                         "tensor %s: is none of GPT-2's; import with --names keel, or choose with "
                         "--only",
                         keel_safetensors_shown(tensor->name).text);
    case KEEL_GPT2_BUFFER:
        leave_out(im, tensor->name, "a constant (the causal mask), not a parameter");
        return KEEL_OK;
    case KEEL_GPT2_PARAMETER:
        break;
    }
    if (strcmp(*name, KEEL_GPT2_HEAD) == 0)
        KEEL_TRY(is_tied(im, index, &tied));
    if (tied) {
        leave_out(im, tensor->name, "the same as " KEEL_GPT2_TABLE " (model.tied = true)");
        return KEEL_OK;
    }
    *out_keep = true;
    return keel_gpt2_add(im->model, *name, tensor->dims, tensor->shape);
}

static enum keel_status make_region(struct import *im, const struct keel_safetensors_tensor *tensor,
                                    const char *prefix, const char *name, const struct source *source,
                                    struct keel_region *out)
{
    const uint32_t before = source->experts > 0 ? 1 : 0;
    *out = (struct keel_region){.dims = before + tensor->dims, .shape[0] = source->experts};
    int length = snprintf(out->name, sizeof out->name, "%s%s", prefix, name);
    if (length < 0 || (size_t)length >= sizeof out->name)
        return keel_fail(
            KEEL_INVALID,
            "tensor %s: a snapshot's names have at most %d bytes; rename it in the file, or choose "
            "others with --only",
            keel_safetensors_shown(name).text, KEEL_TENSOR_NAME_BYTES - 1 - (int)strlen(prefix));
    if (!keel_safetensors_to_ckpt(tensor->dtype, &out->dtype))
        return keel_fail(
            KEEL_UNSUPPORTED,
            "tensor %s: snapshots hold no %s; convert it (to F8_E5M2, say), or choose others with --only",
            keel_safetensors_shown(name).text, keel_safetensors_dtype_name(tensor->dtype));
    if (im->dtype != 0 && keel_is_float(out->dtype))
        out->dtype = (enum keel_ckpt_dtype)im->dtype;
    for (uint32_t d = 0; d < tensor->dims && !source->turned; d++)
        out->shape[before + d] = tensor->shape[d];
    if (source->turned)
        keel_torch_shape(false, tensor->dims, tensor->shape, out->shape);
    memcpy(out->extent, out->shape, sizeof out->extent);
    if (!keel_tensor_name_valid(out->name)) /* no other build takes it either: not UNSUPPORTED */
        return keel_fail(KEEL_INVALID,
                         "tensor %s: a snapshot's names are not empty and have no control characters; rename "
                         "it in the file, or choose others with --only",
                         name[0] == '\0' ? "''" : keel_safetensors_shown(name).text);
    enum keel_status status = keel_region_check(out);
    if (status == KEEL_INVALID)
        status =
            keel_fail(KEEL_UNSUPPORTED,
                      "tensor %s: its shape is larger than a snapshot's may be (2^62 bytes, an extent of "
                      "0 taken as 1); choose others with --only",
                      keel_safetensors_shown(name).text);
    return status;
}

/* What it is in the model. */
static struct keel_safetensors_tensor describe(const struct import *im, uint32_t index, uint32_t few)
{
    struct keel_safetensors_tensor tensor = *keel_safetensors_tensor(im->file, index);
    if (few == 0)
        return tensor;
    tensor.name = im->fews[few - 1].name;
    tensor.dtype = KEEL_SAFETENSORS_F32;
    tensor.dims = im->fews[few - 1].dims;
    memcpy(tensor.shape, im->fews[few - 1].shape, sizeof tensor.shape);
    return tensor;
}

/* `few`, `experts`: as struct source has them. */
static enum keel_status add_tensor(struct import *im, uint32_t index, const char *name, uint32_t few,
                                   uint32_t experts)
{
    static const char *const prefixes[PARTS] = {"", KEEL_CMD_ADAM_M, KEEL_CMD_ADAM_V};
    const struct keel_safetensors_tensor whole = describe(im, index, few), *tensor = &whole;
    bool training = im->options->for_training;
    for (uint32_t part = 0; part < (training ? PARTS : 1); part++) {
        struct keel_region *region = &im->regions[im->count];
        struct source *source = &im->sources[im->count];
        *source = (struct source){.tensor = part == 0 ? (int64_t)index : ZEROS,
                                  .experts = experts,
                                  .turned = keel_cmd_turns(im->names, name, tensor->dims)};
        KEEL_TRY(make_region(im, tensor, prefixes[part], name, source, region));
        if (training && region->dtype != KEEL_CKPT_F32)
            return keel_fail(KEEL_UNSUPPORTED,
                             "tensor %s: %s: only floating-point tensors are trained; choose with "
                             "--only",
                             name, keel_ckpt_dtype_name(region->dtype));
        source->few = part == 0 ? few : 0;
        (void)keel_safetensors_to_ckpt(tensor->dtype, &source->from);
        im->raw_bytes += keel_region_bytes(region);
        im->count++;
    }
    return KEEL_OK;
}

/* Integers of a matrix become its weights; what belongs to them is left out, unsaid. */
static enum keel_status see_few(struct import *im, uint32_t index, enum keel_few_role *out)
{
    KEEL_TRY(keel_few_find(im->file, index, out, &im->fews[im->few_count]));
    if (*out == KEEL_FEW_MATRIX && im->names != KEEL_CMD_NAMES_KEEL)
        return keel_fail(KEEL_UNSUPPORTED, "tensor %s: is of few bits, which are imported with --names keel",
                         keel_safetensors_shown(im->fews[im->few_count].name).text);
    im->few_count += *out == KEEL_FEW_MATRIX ? 1 : 0;
    return KEEL_OK;
}

static enum keel_status see_tensor(struct import *im, uint32_t index)
{
    const char *name = keel_safetensors_tensor(im->file, index)->name;
    bool keep = keel_cmd_selects(im->options->only, name);
    enum keel_few_role role;
    struct keel_bert_name bert;
    char stack[KEEL_TENSOR_NAME_BYTES];
    uint32_t experts = 0;
    if (!keep) {
        im->left_out++;
        return KEEL_OK;
    }
    KEEL_TRY(see_few(im, index, &role));
    if (role == KEEL_FEW_MATRIX)
        return add_tensor(im, index, im->fews[im->few_count - 1].name, im->few_count, 0);
    if (role == KEEL_FEW_PART)
        return KEEL_OK;
    if (im->options->for_training && keel_cmd_is_optimizers(name)) {
        leave_out(im, name, "--for-training begins with moments of zero");
        return KEEL_OK;
    }
    if (im->names == KEEL_CMD_NAMES_TORCH && keel_torch_is_counter(name)) {
        leave_out(im, name, "counts batches, of which nothing here depends");
        return KEEL_OK;
    }
    if (im->names == KEEL_CMD_NAMES_GPT2) {
        keep = false;
        KEEL_TRY(see_gpt2(im, index, &name, &keep));
    }
    if (im->names == KEEL_CMD_NAMES_BERT) {
        keep = false;
        KEEL_TRY(see_bert(im, index, &bert, &keep));
        name = bert.text;
    }
    if (im->names == KEEL_CMD_NAMES_MIXTRAL)
        KEEL_TRY(see_mixtral(im, index, &experts, &keep));
    if (experts > 0) {
        keel_mixtral_stack_name(name, stack);
        name = stack;
    }
    return keep ? add_tensor(im, index, name, 0, experts) : KEEL_OK;
}

static bool has_convolution(const struct import *im)
{
    bool has = false;
    for (uint32_t i = 0; i < im->count; i++)
        has = has || im->regions[i].dims == KEEL_TORCH_CONVOLUTION;
    return has;
}

static bool has_experts(const struct import *im)
{
    bool has = false;
    for (uint32_t i = 0; i < im->count; i++)
        has = has || im->sources[i].experts > 0;
    return has;
}

static enum keel_status choose(struct import *im)
{
    uint32_t all = keel_safetensors_count(im->file), room = all * (im->options->for_training ? PARTS : 1);
    KEEL_TRY(keel_alloc(room, sizeof *im->regions, &im->regions));
    KEEL_TRY(keel_alloc(room, sizeof *im->sources, &im->sources));
    KEEL_TRY(keel_alloc((size_t)all + 1, sizeof *im->fews, &im->fews));
    if (im->names == KEEL_CMD_NAMES_GPT2)
        KEEL_TRY(keel_alloc(1, sizeof *im->model, &im->model));
    for (uint32_t i = 0; i < all; i++)
        KEEL_TRY(see_tensor(im, i));
    if (im->names == KEEL_CMD_NAMES_TORCH && im->options->only == NULL && !has_convolution(im))
        return keel_fail(KEEL_MISMATCH,
                         "%s: no tensor is a convolution's: --names torch is for models of images; import "
                         "with --names keel, or choose with --only",
                         im->cmd->operands[0]);
    if (im->names == KEEL_CMD_NAMES_MIXTRAL && im->options->only == NULL && !has_experts(im))
        return keel_fail(KEEL_MISMATCH,
                         "%s: no tensor is of experts: --names mixtral is for a mixtral; import with --names "
                         "keel, or choose with --only",
                         im->cmd->operands[0]);
    if (im->count == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: no tensor is left to import", im->cmd->operands[0]);
    return im->model != NULL && im->options->only == NULL ? keel_gpt2_check(im->model) : KEEL_OK;
}

/* ---- whose it is, and which step ---------------------------------------------------------------------- */

/* Whose state is it? The file says so when it holds a job's whole state; the directory of a run knows. */
static enum keel_status settle_identity(struct import *im)
{
    const char *said = keel_safetensors_note(im->file, "keel.identity");
    bool whole = said != NULL && im->left_out == 0 && im->dtype == 0 && !im->options->for_training &&
                 strlen(said) < sizeof im->place.identity;
    if (im->place.of_keel_run && !im->options->for_training &&
        (!whole || strcmp(said, im->place.identity) != 0))
        return keel_fail(
            KEEL_MISMATCH,
            "%s: is not the whole state of the job in %s; --for-training begins that job from these "
            "weights",
            im->cmd->operands[0], im->cmd->operands[1]);
    if (!im->place.of_keel_run && whole && !keel_identity_valid(said))
        return keel_fail(KEEL_CORRUPT,
                         "%s: its keel.identity is none that export writes; take that note away",
                         im->cmd->operands[0]);
    if (!im->place.of_keel_run && whole)
        snprintf(im->place.identity, sizeof im->place.identity, "%s", said);
    return KEEL_OK;
}

/* As the option says, else as the file does; a job that begins from weights has done no step. */
static enum keel_status settle_step(struct import *im)
{
    const char *said = keel_safetensors_note(im->file, "keel.step");
    if (im->options->shared.step != NULL)
        return keel_cmd_parse_step(im->options->shared.step, &im->step);
    if (im->options->for_training || said == NULL || keel_cmd_parse_step(said, &im->step) != KEEL_OK)
        im->step = 0;
    return KEEL_OK;
}

/* ---- the save ----------------------------------------------------------------------------------------- */

/* Bytes of one tensor of the file, in the region's type. */
static enum keel_status read_part(struct import *im, uint32_t tensor, enum keel_ckpt_dtype from,
                                  enum keel_ckpt_dtype to, uint64_t offset, uint64_t bytes, void *out)
{
    const uint32_t size = keel_ckpt_dtype_bytes(to), from_size = keel_ckpt_dtype_bytes(from);
    if (to == from)
        return keel_safetensors_read(im->file, tensor, offset, bytes, out);
    for (uint64_t done = 0; done < bytes;) {
        uint64_t left = (bytes - done) / size, most = BLOCK_BYTES / from_size,
                 here = left < most ? left : most;
        KEEL_TRY(keel_safetensors_read(im->file, tensor, (offset + done) / size * from_size, here * from_size,
                                       im->block));
        im->overflowed += keel_float_convert(to, from, im->block, keel_size(here), (uint8_t *)out + done);
        done += here * size;
    }
    return KEEL_OK;
}

/* A matrix is unpacked whole. */
static enum keel_status read_few(struct import *im, uint32_t index, uint64_t offset, uint64_t bytes,
                                 void *out)
{
    const struct keel_region *region = &im->regions[index];
    const uint32_t size = keel_ckpt_dtype_bytes(region->dtype);
    if (im->unpacked != index + 1) {
        keel_free(im->floats);
        im->floats = NULL;
        im->unpacked = 0;
        KEEL_TRY(keel_alloc(keel_region_bytes(region) / size, sizeof *im->floats, &im->floats));
        KEEL_TRY(keel_few_read(im->file, &im->fews[im->sources[index].few - 1], im->floats));
        im->unpacked = index + 1;
    }
    im->overflowed += keel_float_convert(region->dtype, KEEL_CKPT_F32, im->floats + offset / size,
                                         keel_size(bytes / size), out);
    return KEEL_OK;
}

/* As it lies in the file: expert after expert, where it is made of those. */
static enum keel_status read_plain(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    struct import *im = context;
    const struct source *source = &im->sources[index];
    const enum keel_ckpt_dtype to = im->regions[index].dtype;
    const uint64_t each =
        keel_region_bytes(&im->regions[index]) / (source->experts > 0 ? source->experts : 1);
    char name[KEEL_TENSOR_NAME_BYTES];
    if (source->tensor == ZEROS) {
        memset(out, 0, keel_size(bytes));
        return KEEL_OK;
    }
    for (uint64_t done = 0, here; done < bytes; done += here) {
        const uint64_t at = (offset + done) % each, expert = (offset + done) / each;
        uint32_t tensor = (uint32_t)source->tensor;
        here = each - at < bytes - done ? each - at : bytes - done;
        if (expert > 0) {
            (void)keel_mixtral_expert_name(keel_safetensors_tensor(im->file, tensor)->name, (uint32_t)expert,
                                           name, sizeof name);
            tensor = keel_safetensors_find(im->file, name);
            KEEL_ASSERT(tensor != UINT32_MAX); /* see_mixtral has seen it */
        }
        KEEL_TRY(read_part(im, tensor, source->from, to, at, here, (uint8_t *)out + done));
    }
    return KEEL_OK;
}

static enum keel_status read_region(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    struct import *im = context;
    struct keel_region lies = im->regions[index];
    if (im->sources[index].few != 0)
        return read_few(im, index, offset, bytes, out);
    if (!im->sources[index].turned || im->sources[index].tensor == ZEROS)
        return read_plain(context, index, offset, bytes, out);
    keel_torch_shape(true, lies.dims, im->regions[index].shape, lies.shape);
    memcpy(lies.extent, lies.shape, sizeof lies.extent);
    return keel_torch_read(&im->turned, false, &lies, index, offset, bytes, out, read_plain, im);
}

static enum keel_status wait_for(struct import *im, struct keel_save *save, struct keel_shard_summary *out)
{
    enum keel_status status;
    do {
        if (keel_process_interrupted()) {
            keel_save_cancel(save);
            return keel_fail(KEEL_INTERRUPTED, "import: stopped by a signal, nothing was committed");
        }
        keel_cmd_meter_show(&im->meter, keel_save_progress_bytes(save), im->raw_bytes);
        status = keel_save_finish(save, keel_deadline_after_ns(POLL_NS), out);
    } while (status == KEEL_TIMEOUT);
    if (status == KEEL_OK)
        keel_cmd_meter_show(&im->meter, im->raw_bytes, im->raw_bytes);
    return status;
}

/* The metadata that went into the file comes back; other programs' becomes nothing of ours. */
static const char *metadata_of(const struct import *im)
{
    const char *said = keel_safetensors_note(im->file, "keel.metadata");
    json_t *parsed = said == NULL ? NULL : json_loads(said, JSON_REJECT_DUPLICATES, NULL);
    bool object = json_is_object(parsed);
    json_decref(parsed);
    return object ? said : NULL;
}

static enum keel_status save(struct import *im, uint64_t attempt)
{
    struct keel_save_config config = {.step = im->step,
                                      .attempt = attempt,
                                      .rank_count = 1,
                                      .codec = KEEL_CODEC_PLANES,
                                      .regions = im->regions,
                                      .region_count = im->count,
                                      .read = read_region,
                                      .context = im,
                                      .arena_bytes = ARENA_BYTES};
    struct keel_shard_summary shard;
    struct keel_save *save;
    KEEL_TRY(keel_save_begin(im->place.at.store, &config, &save));
    KEEL_TRY(wait_for(im, save, &shard));
    struct keel_commit commit = {.step = im->step,
                                 .attempt = attempt,
                                 .shards = &shard,
                                 .shard_count = 1,
                                 .metadata = metadata_of(im),
                                 .allow_nonfinite = im->options->allow_nonfinite};
    memcpy(commit.identity, im->place.identity, sizeof commit.identity);
    enum keel_status status = keel_store_commit(im->place.at.store, &commit);
    return status == KEEL_DIVERGED
               ? keel_fail(status, "%.400s; --allow-nonfinite imports it all the same", keel_detail())
               : status;
}

/* ---- the command -------------------------------------------------------------------------------------- */

static enum keel_status parse(struct import *im)
{
    KEEL_TRY(keel_cmd_parse_names(im->options->names, &im->names));
    KEEL_TRY(keel_cmd_parse_float(im->options->dtype, &im->dtype));
    if (im->options->for_training && im->dtype != 0 && im->dtype != KEEL_CKPT_F32)
        return keel_fail(KEEL_INVALID, "--for-training: a job's state is f32");
    if (im->options->for_training)
        im->dtype = KEEL_CKPT_F32;
    return KEEL_OK;
}

static int print_end(const struct import *im, uint64_t attempt)
{
    const char *run = im->place.at.store->run;
    if (im->overflowed > 0)
        fprintf(stderr, "%s: %" PRIu64 " numbers are too large for %s and became infinite\n",
                keel_command_called(&keel_ckpt_commands), im->overflowed, keel_ckpt_dtype_name(im->dtype));
    if (im->cmd->json)
        return keel_cmd_print_json(json_pack(
            "{s:s, s:s, s:o, s:o, s:i, s:i, s:I, s:s, s:I}", "path", im->place.at.store->path, "run", run,
            "step", keel_cmd_step_json(im->step), "attempt", keel_cmd_u64_json(attempt), "tensors",
            (int)im->count, "left_out", (int)im->left_out, "bytes", (json_int_t)im->raw_bytes, "identity",
            im->place.identity, "overflowed", (json_int_t)im->overflowed));
    char bytes[KEEL_CMD_WORD_BYTES];
    keel_cmd_format_bytes(im->raw_bytes, bytes);
    printf("step %" PRIu64 ": %u tensors, %s, committed in %s\n", im->step, im->count, bytes,
           im->place.at.store->path);
    if (im->options->for_training && im->place.of_keel_run)
        printf("the job goes on from there: give its `keel run` command again\n");
    return 0;
}

static enum keel_status save_locked(struct import *im, uint64_t attempt)
{
    int lock = -1;
    KEEL_TRY(keel_import_place_open(im->cmd, &im->place));
    enum keel_status status = keel_cmd_lock_run(&im->place.at, "import", &lock);
    if (status == KEEL_OK)
        status = keel_import_place_check(&im->place, im->step, im->options->for_training);
    if (status == KEEL_OK)
        status = save(im, attempt);
    if (status != KEEL_OK) {
        char detail[KEEL_DETAIL_BYTES];
        snprintf(detail, sizeof detail, "%s", keel_detail());
        (void)keel_save_discard(im->place.at.store, im->step, attempt, 0); /* what stays is for gc */
        keel_detail_set(detail);
    }
    keel_cmd_unlock_run(lock);
    return status;
}

/* What was made is removed when it does not come to its end, a signal included. A signal that comes after
 * the end does not say that the import failed. */
static enum keel_status save_or_undo(struct import *im, uint64_t attempt)
{
    keel_process_hold_interrupts(true);
    enum keel_status status = save_locked(im, attempt);
    if (status != KEEL_OK)
        keel_import_place_undo(&im->place);
    return status;
}

static enum keel_status import(struct import *im, uint64_t attempt)
{
    KEEL_TRY(parse(im));
    KEEL_TRY(keel_alloc(BLOCK_BYTES, 1, &im->block));
    KEEL_TRY(keel_safetensors_open(im->cmd->operands[0], &im->file));
    KEEL_TRY(choose(im));
    KEEL_TRY(keel_import_place_find(im->cmd->operands[1], im->options->run, &im->place));
    KEEL_TRY(settle_identity(im));
    KEEL_TRY(settle_step(im));
    return save_or_undo(im, attempt);
}

static int run(const struct keel_command *cmd)
{
    struct import im = {.cmd = cmd, .options = keel_command_own(cmd), .meter = keel_cmd_meter_of("import")};
    uint64_t attempt = keel_wall_ns(); /* once, whoever else may save there */
    enum keel_status status = import(&im, attempt);
    int code = status == KEEL_OK ? print_end(&im, attempt) : keel_cmd_report(status);
    keel_cmd_close(&im.place.at);
    keel_safetensors_close(im.file);
    keel_torch_forget(&im.turned);
    keel_free(im.fews);
    keel_free(im.floats);
    keel_free(im.model);
    keel_free(im.regions);
    keel_free(im.sources);
    keel_free(im.block);
    return code;
}

static const struct keel_command_option options[] = {
    {"--names", "NAMES", KEEL_COMMAND_TEXT, offsetof(struct import_options, names),
     "keel (default): as in the file; gpt2: a whole GPT-2, with or without the prefix transformer.; bert, "
     "mixtral: as Hugging Face's programs save them; torch: a model of images, with convolutions and "
     "matrices "
     "turned"},
    {"--for-training", NULL, KEEL_COMMAND_FLAG, offsetof(struct import_options, for_training),
     "make what a job begins from: f32 weights, Adam's moments of zero, step 0"},
    {"--dtype", "TYPE", KEEL_COMMAND_TEXT, offsetof(struct import_options, dtype),
     "f32, bf16 or f16: round or widen floating-point tensors to it"},
    {"--only", "PREFIX", KEEL_COMMAND_TEXT, offsetof(struct import_options, only),
     "tensors whose names begin so; weights: all but what only training needs"},
    {"--run", "NAME", KEEL_COMMAND_TEXT, offsetof(struct import_options, run),
     "the run; PATH is the store then"},
    {"--step", "N", KEEL_COMMAND_TEXT, offsetof(struct keel_cmd_options, step),
     "commit as that step; without it as the file says, else 0"},
    {"--allow-nonfinite", NULL, KEEL_COMMAND_FLAG, offsetof(struct import_options, allow_nonfinite),
     "commit although a tensor holds NaN or infinity"},
    {0}};

const struct keel_command_kind keel_cmd_import = {
    .name = "import",
    .operands = "IN PATH",
    .operands_min = 2,
    .operands_max = 2,
    .summary = "make a committed snapshot of safetensors",
    .details =
        "IN is a .safetensors file, a .safetensors.index.json, or a directory with the one or the other.\n"
        "Weights in few bits (keel export --weights, compressed-tensors) become the floats they stand for.\n"
        "PATH is a run in a store (ROOT/RUN, made when missing), or the directory of a keel run.\n"
        "A job goes on from its own whole state, as export --names keel writes it, and begins from weights\n"
        "with --for-training: `keel run JOB --prepare --out DIR` makes DIR, import fills it, `keel run JOB\n"
        "--out DIR` trains. Without that a snapshot is for `keel ckpt` and for programs of your own.\n",
    .examples = "  keel ckpt import gpt2/ out --names gpt2 --for-training\n"
                "  keel ckpt import resnet50.safetensors out --names torch --for-training\n"
                "  keel ckpt import weights.safetensors store/tuned --step 120\n",
    .options = options,
    .run = run};
