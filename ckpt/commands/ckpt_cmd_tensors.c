/* ckpt_cmd_tensors.c - options that choose and change tensors, as words. */
#include "ckpt_cmd_tensors.h"
#include "bert_names.h"
#include "torch_layout.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum keel_status keel_cmd_parse_names(const char *word, enum keel_cmd_names *out)
{
    static const char *const words[] = {"keel", "gpt2", "torch", "bert", "mixtral"};
    *out = KEEL_CMD_NAMES_KEEL;
    for (uint32_t i = 0; word != NULL && i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i]) != 0)
            continue;
        *out = (enum keel_cmd_names)i;
        return KEEL_OK;
    }
    return word == NULL
               ? KEEL_OK
               : keel_fail(KEEL_INVALID, "--names %s: keel, gpt2, torch, bert or mixtral is wanted", word);
}

bool keel_cmd_turns(enum keel_cmd_names names, const char *name, uint32_t dims)
{
    return names == KEEL_CMD_NAMES_TORCH  ? keel_torch_turns(dims)
           : names == KEEL_CMD_NAMES_BERT ? keel_bert_turns(name, dims)
                                          : false;
}

enum keel_status keel_cmd_parse_float(const char *word, uint32_t *out_dtype)
{
    static const enum keel_ckpt_dtype known[] = {KEEL_CKPT_F32, KEEL_CKPT_BF16, KEEL_CKPT_F16};
    *out_dtype = 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0] && word != NULL; i++)
        if (strcmp(word, keel_ckpt_dtype_name(known[i])) == 0)
            *out_dtype = known[i];
    if (word != NULL && *out_dtype == 0)
        return keel_fail(KEEL_INVALID, "--dtype %s: f32, bf16 or f16 is wanted", word);
    return KEEL_OK;
}

enum keel_status keel_cmd_parse_size(const char *word, uint64_t *out_bytes)
{
    static const struct {
        const char *unit;
        uint64_t bytes;
    } units[] = {{"", 1},          {"KB", 1000},     {"MB", 1000 * 1000}, {"GB", 1000 * 1000 * 1000},
                 {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    const uint64_t most = UINT64_C(1) << 33; /* with the largest unit still within 64 bits */
    uint64_t count = 0;
    const char *at = word;
    *out_bytes = 0;
    if (word == NULL)
        return KEEL_OK;
    for (; *at >= '0' && *at <= '9' && count < most; at++)
        count = count * 10 + (uint64_t)(*at - '0');
    for (size_t i = 0; i < sizeof units / sizeof units[0] && at > word && count < most; i++)
        if (strcmp(at, units[i].unit) == 0)
            *out_bytes = count * units[i].bytes;
    if (*out_bytes == 0)
        return keel_fail(KEEL_INVALID, "--shard-size %s: a size is wanted, such as 5GB or 512MiB", word);
    return KEEL_OK;
}

bool keel_cmd_is_optimizers(const char *name)
{
    return strncmp(name, KEEL_CMD_ADAM_M, strlen(KEEL_CMD_ADAM_M)) == 0 ||
           strncmp(name, KEEL_CMD_ADAM_V, strlen(KEEL_CMD_ADAM_V)) == 0 ||
           strncmp(name, KEEL_CMD_EMA, strlen(KEEL_CMD_EMA)) == 0 || strcmp(name, KEEL_CMD_LOSS_SCALE) == 0;
}

bool keel_cmd_selects(const char *only, const char *name)
{
    if (only == NULL)
        return true;
    if (strcmp(only, "weights") == 0)
        return !keel_cmd_is_optimizers(name);
    return strncmp(name, only, strlen(only)) == 0;
}

json_t *keel_cmd_shape_json(const uint64_t *shape, uint32_t dims)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < dims; i++)
        json_array_append_new(array, json_integer((json_int_t)shape[i]));
    return array;
}

void keel_cmd_format_shape(const struct keel_region *tensor, char *out, size_t room)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t d = 0; d < tensor->dims && used < room; d++) {
        int more = snprintf(out + used, room - used, "%s%" PRIu64, d > 0 ? " x " : "", tensor->shape[d]);
        used += more > 0 ? (size_t)more : 0;
    }
}
