/* export_lora.c - see export_lora.h. */
#include "export_lora.h"
#include <keel/json.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char prefix[] = "base_model.model.";
enum { WEIGHT_END_BYTES = sizeof ".weight" - 1 };
enum { NAME_BYTES = KEEL_VALUE_NAME_BYTES + 16, DIGITS = 6, TARGETS_MAX = 64 };

bool keel_lora_is_adapter(const char *name)
{
    return strstr(name, ".lora_A.weight") != NULL || strstr(name, ".lora_B.weight") != NULL;
}

/* Hugging Face's GPT-2 with an output layer has the model under a name of its own; others have theirs
 * already. */
void keel_lora_peft_name(const struct keel_job *job, const char *name, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s%s%s", prefix, job->kind == KEEL_MODEL_GPT ? "transformer." : "", name);
}

/* The parameter NAME.lora_A.weight, or B, of weight NAME.weight. */
static bool find(struct keel_inference *inference, const char *weight, char which, uint32_t *out,
                 const struct keel_engine_param **out_param)
{
    const size_t length = strlen(weight), end = WEIGHT_END_BYTES;
    struct keel_matrix matrix;
    char name[NAME_BYTES];
    if (length <= end)
        return false;
    snprintf(name, sizeof name, "%.*s.lora_%c.weight", (int)(length - end), weight, which);
    for (*out = 0; *out < keel_inference_weight_count(inference); (*out)++)
        if (keel_inference_weight(inference, *out, out_param, &matrix) &&
            strcmp((*out_param)->name, name) == 0)
            return true;
    return false;
}

/* A [rank, inputs], B [outputs, rank]. */
static void add(const struct keel_job *job, const struct keel_matrix *matrix, const float *a, const float *b,
                float *weight)
{
    const uint64_t rank = job->lora_rank;
    const double scale = job->lora_alpha > 0.0F ? (double)(job->lora_alpha / (float)rank) : 1.0;
    for (uint64_t o = 0; o < matrix->outputs; o++)
        for (uint64_t i = 0; i < matrix->inputs; i++) {
            double sum = 0.0;
            for (uint64_t r = 0; r < rank; r++)
                sum += (double)b[o * rank + r] * (double)a[r * matrix->inputs + i];
            float *at = &weight[matrix->across ? i * matrix->outputs + o : o * matrix->inputs + i];
            *at = (float)((double)*at + scale * sum);
        }
}

enum keel_status keel_lora_merge(struct keel_inference *inference, const struct keel_job *job, uint32_t index,
                                 float *weight)
{
    const struct keel_engine_param *param = NULL, *pa = NULL, *pb = NULL;
    struct keel_matrix matrix;
    float *a = NULL, *b = NULL;
    uint32_t at, bt;
    if (!keel_inference_weight(inference, index, &param, &matrix) ||
        !find(inference, param->name, 'A', &at, &pa) || !find(inference, param->name, 'B', &bt, &pb))
        return KEEL_OK;
    KEEL_ASSERT(matrix.copies == 1 && pa->count == job->lora_rank * matrix.inputs &&
                pb->count == job->lora_rank * matrix.outputs);
    enum keel_status status = keel_alloc(keel_size(pa->count), sizeof *a, &a);
    if (status == KEEL_OK)
        status = keel_alloc(keel_size(pb->count), sizeof *b, &b);
    if (status == KEEL_OK)
        status = keel_inference_read_weight(inference, at, a);
    if (status == KEEL_OK)
        status = keel_inference_read_weight(inference, bt, b);
    if (status == KEEL_OK)
        add(job, &matrix, a, b, weight);
    keel_free(a);
    keel_free(b);
    return status;
}

/* Modules as their last names say them, each once: c_attn of h.0.attn.c_attn. */
static void put_targets(struct keel_json *json, struct keel_inference *inference)
{
    char seen[TARGETS_MAX][NAME_BYTES];
    uint32_t count = 0;
    for (uint32_t i = 0; i < keel_inference_weight_count(inference); i++) {
        const struct keel_engine_param *param;
        struct keel_matrix matrix;
        if (!keel_inference_weight(inference, i, &param, &matrix))
            continue;
        const char *end = strstr(param->name, ".lora_A.weight");
        if (end == NULL || count == TARGETS_MAX)
            continue;
        const char *begin = end;
        while (begin > param->name && begin[-1] != '.')
            begin--;
        bool again = false;
        snprintf(seen[count], NAME_BYTES, "%.*s", (int)(end - begin), begin);
        for (uint32_t k = 0; k < count; k++)
            again = again || strcmp(seen[k], seen[count]) == 0;
        if (again)
            continue;
        keel_json_text(json, NULL, seen[count++]);
    }
}

static void print_config(struct keel_json *json, struct keel_inference *inference, const struct keel_job *job)
{
    const float alpha = job->lora_alpha > 0.0F ? job->lora_alpha : (float)job->lora_rank;
    keel_json_open(json, NULL, '{');
    keel_json_text(json, "peft_type", "LORA");
    keel_json_text(json, "task_type",
                   job->kind == KEEL_MODEL_GPT || job->kind == KEEL_MODEL_LLAMA ||
                           job->kind == KEEL_MODEL_MIXTRAL
                       ? "CAUSAL_LM"
                       : NULL);
    keel_json_number(json, "r", job->lora_rank);
    keel_json_real(json, "lora_alpha", (double)alpha, DIGITS);
    keel_json_real(json, "lora_dropout", (double)job->lora_dropout, DIGITS);
    keel_json_text(json, "bias", "none");
    keel_json_bool(json, "fan_in_fan_out",
                   job->kind == KEEL_MODEL_GPT); /* its matrices are [in, out] there */
    keel_json_bool(json, "inference_mode", true);
    keel_json_open(json, "target_modules", '[');
    put_targets(json, inference);
    keel_json_close(json, ']');
    keel_json_close(json, '}');
}

enum keel_status keel_lora_write_config(struct keel_inference *inference, const struct keel_job *job,
                                        const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (memory == NULL)
        return keel_fail(KEEL_NO_MEMORY, "no memory for %s", path);
    struct keel_json json = {.out = memory};
    print_config(&json, inference, job);
    fputc('\n', memory);
    fclose(memory);
    const enum keel_status status = keel_file_replace(path, text, bytes, 0666);
    free(text); /* open_memstream's own allocation */
    return status;
}
