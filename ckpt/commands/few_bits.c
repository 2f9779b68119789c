/* few_bits.c - see few_bits.h. */
#include "few_bits.h"
#include "float_convert.h"
#include "safetensors_header.h"
#include <jansson.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS_A_WORD = 8, BITS = 4, MIDDLE = 8 /* of what a word has: q + 8 */, MATRIX_DIMS = 2 };

static enum keel_status refuse(const char *name, const char *what)
{
    return keel_fail(KEEL_CORRUPT, "tensor %s: %s; export it again, or choose others with --only",
                     keel_safetensors_shown(name).text, what);
}

/* The tensor that belongs to NAME by its ending; UINT32_MAX: there is none. */
static uint32_t find_part(const struct keel_safetensors *file, const char *name, size_t bytes,
                          const char *ending)
{
    char part[KEEL_TENSOR_NAME_BYTES + 32];
    if (bytes >= KEEL_TENSOR_NAME_BYTES)
        return UINT32_MAX;
    snprintf(part, sizeof part, "%.*s%s", (int)bytes, name, ending);
    return keel_safetensors_find(file, part);
}

/* How long the name is without that ending; 0: it has another. */
static size_t without(const char *name, const char *ending)
{
    const size_t bytes = strlen(name), of = strlen(ending);
    return bytes > of && strcmp(name + bytes - of, ending) == 0 ? bytes - of : 0;
}

static bool is_integers(const struct keel_safetensors *file, uint32_t index,
                        enum keel_safetensors_dtype dtype)
{
    return index != UINT32_MAX && keel_safetensors_tensor(file, index)->dtype == dtype;
}

/* Whether integers of a matrix of that name are there, which has a scale. */
static bool has_matrix(const struct keel_safetensors *file, const char *name, size_t bytes)
{
    return find_part(file, name, bytes, "_scale") != UINT32_MAX &&
           (is_integers(file, find_part(file, name, bytes, ""), KEEL_SAFETENSORS_I8) ||
            is_integers(file, find_part(file, name, bytes, "_packed"), KEEL_SAFETENSORS_I32));
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

/* NAME_shape: its last two numbers are outputs and inputs. */
static enum keel_status read_inputs(const struct keel_safetensors *file, struct keel_few *few)
{
    const uint32_t index = find_part(file, few->name, strlen(few->name), "_shape");
    int64_t numbers[MATRIX_DIMS + 1] = {0};
    if (!is_integers(file, index, KEEL_SAFETENSORS_I64))
        return refuse(few->name, "its integers of 4 bits have no _shape of int64");
    const struct keel_safetensors_tensor *shape = keel_safetensors_tensor(file, index);
    const uint64_t bytes = keel_safetensors_bytes(shape);
    if (shape->dims != 1 || bytes < sizeof(int64_t) * MATRIX_DIMS || bytes > sizeof numbers)
        return refuse(few->name, "its _shape is none of a matrix");
    KEEL_TRY(keel_safetensors_read(file, index, 0, bytes, numbers));
    const int64_t inputs = numbers[bytes / sizeof(int64_t) - 1];
    const uint64_t words = few->inputs;
    if (inputs <= 0 || ((uint64_t)inputs + NUMBERS_A_WORD - 1) / NUMBERS_A_WORD != words)
        return refuse(few->name, "its _shape is not that of its integers");
    few->inputs = (uint64_t)inputs;
    return KEEL_OK;
}

/* [copies,] outputs, and inputs, or words of them. */
static enum keel_status read_sizes(const struct keel_safetensors *file, struct keel_few *few)
{
    const struct keel_safetensors_tensor *q = keel_safetensors_tensor(file, few->integers),
                                         *s = keel_safetensors_tensor(file, few->scales);
    if (q->dims < MATRIX_DIMS || q->dims > MATRIX_DIMS + 1 || s->dims != q->dims ||
        keel_safetensors_bytes(q) == 0 || keel_safetensors_bytes(s) == 0)
        return refuse(few->name, "integers and scales are no matrix");
    for (uint32_t d = 0; d + 1 < q->dims; d++)
        if (s->shape[d] != q->shape[d])
            return refuse(few->name, "its scales are of another shape than its integers");
    few->copies = q->dims > MATRIX_DIMS ? q->shape[0] : 1;
    few->outputs = q->shape[q->dims - 2];
    few->inputs = q->shape[q->dims - 1];
    few->groups = s->shape[s->dims - 1];
    if (few->packed)
        KEEL_TRY(read_inputs(file, few));
    few->dims = q->dims;
    memcpy(few->shape, q->shape, sizeof few->shape);
    few->shape[few->dims - 1] = few->inputs;
    return KEEL_OK;
}

/* As our own files say it; else, of others', groups are even. */
static enum keel_status find_group(const struct keel_safetensors *file, struct keel_few *few)
{
    const char *said = keel_safetensors_note(file, "keel.weights");
    const char *colon = said != NULL ? strchr(said, ':') : NULL;
    few->group = colon != NULL ? strtoull(colon + 1, NULL, 10) : said != NULL && few->packed ? 32 : 0;
    if (few->group > 0 && few->groups == (few->inputs - 1) / few->group + 1)
        return KEEL_OK;
    few->group = few->inputs / few->groups;
    return few->group > 0 && few->inputs % few->groups == 0
               ? KEEL_OK
               : refuse(few->name, "how many inputs share a scale is not known");
}

/* As the model has it. */
static enum keel_status take_shape(const json_t *entry, struct keel_few *few)
{
    const json_t *shape = json_object_get(entry, "shape");
    uint64_t count = 1;
    few->dims = (uint32_t)json_array_size(shape);
    few->across = json_is_true(json_object_get(entry, "across"));
    if (few->dims == 0 || few->dims > KEEL_TENSOR_DIMS_MAX)
        return refuse(few->name, "its shape in the note keel.shapes is none");
    for (uint32_t d = 0; d < few->dims; d++) {
        const json_int_t size = json_integer_value(json_array_get(shape, d));
        if (size <= 0 || (uint64_t)size > UINT64_MAX / count)
            return refuse(few->name, "its shape in the note keel.shapes is none");
        few->shape[d] = (uint64_t)size;
        count *= (uint64_t)size;
    }
    return count == few->copies * few->outputs * few->inputs
               ? KEEL_OK
               : refuse(few->name, "its shape in the note keel.shapes is not that of its integers");
}

static enum keel_status find_shape(const struct keel_safetensors *file, struct keel_few *few)
{
    const char *said = keel_safetensors_note(file, "keel.shapes");
    json_t *all = said != NULL ? json_loads(said, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const json_t *entry = json_object_get(all, few->name);
    const enum keel_status status = entry != NULL ? take_shape(entry, few) : KEEL_OK;
    json_decref(all);
    return said == NULL || all != NULL ? status : refuse(few->name, "the note keel.shapes is no JSON");
}

enum keel_status keel_few_find(const struct keel_safetensors *file, uint32_t index,
                               enum keel_few_role *out_role, struct keel_few *out)
{
    static const char *const parts[] = {"_scale", "_shape"}, *const strange[] = {"_zero_point", "_g_idx"};
    const struct keel_safetensors_tensor *tensor = keel_safetensors_tensor(file, index);
    const size_t packed = without(tensor->name, "_packed");
    const size_t bytes = packed > 0 ? packed : strlen(tensor->name);
    *out_role = KEEL_FEW_NONE;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (without(tensor->name, parts[i]) > 0 &&
            has_matrix(file, tensor->name, without(tensor->name, parts[i])))
            *out_role = KEEL_FEW_PART;
    if (*out_role == KEEL_FEW_PART || !has_matrix(file, tensor->name, bytes) ||
        tensor->dtype != (packed > 0 ? KEEL_SAFETENSORS_I32 : KEEL_SAFETENSORS_I8))
        return KEEL_OK;
    *out = (struct keel_few){
        .integers = index, .scales = find_part(file, tensor->name, bytes, "_scale"), .packed = packed > 0};
    snprintf(out->name, sizeof out->name, "%.*s", (int)bytes, tensor->name);
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++)
        if (find_part(file, tensor->name, bytes, strange[i]) != UINT32_MAX)
            return keel_fail(KEEL_UNSUPPORTED,
                             "tensor %s: has %s beside it: symmetric integers in their own order are read",
                             keel_safetensors_shown(out->name).text, strange[i]);
    KEEL_TRY(read_sizes(file, out));
    KEEL_TRY(find_group(file, out));
    KEEL_TRY(find_shape(file, out));
    *out_role = KEEL_FEW_MATRIX;
    return KEEL_OK;
}

/* ---- floats -------------------------------------------------------------------------------------------- */

static enum keel_status read_scales(const struct keel_safetensors *file, const struct keel_few *few,
                                    float **out)
{
    const struct keel_safetensors_tensor *tensor = keel_safetensors_tensor(file, few->scales);
    const uint64_t count = few->copies * few->outputs * few->groups, bytes = keel_safetensors_bytes(tensor);
    enum keel_ckpt_dtype dtype;
    uint8_t *raw;
    if (!keel_safetensors_to_ckpt(tensor->dtype, &dtype) || !keel_is_float(dtype))
        return refuse(few->name, "its scales are no floats");
    KEEL_TRY(keel_alloc(bytes, 1, &raw));
    enum keel_status status = keel_safetensors_read(file, few->scales, 0, bytes, raw);
    if (status == KEEL_OK)
        status = keel_alloc(count, sizeof **out, out);
    if (status == KEEL_OK)
        (void)keel_float_convert(KEEL_CKPT_F32, dtype, raw, keel_size(count), *out);
    keel_free(raw);
    return status;
}

static int number_at(const struct keel_few *few, const void *integers, uint64_t row, uint64_t input)
{
    const uint64_t words = (few->inputs + NUMBERS_A_WORD - 1) / NUMBERS_A_WORD;
    uint32_t word;
    if (!few->packed)
        return ((const int8_t *)integers)[row * few->inputs + input];
    memcpy(&word, (const uint8_t *)integers + (row * words + input / NUMBERS_A_WORD) * sizeof word,
           sizeof word);
    return (int)(word >> BITS * (input % NUMBERS_A_WORD) & ((1U << BITS) - 1)) - MIDDLE;
}

enum keel_status keel_few_read(const struct keel_safetensors *file, const struct keel_few *few, float *out)
{
    const uint64_t bytes = keel_safetensors_bytes(keel_safetensors_tensor(file, few->integers));
    float *scales = NULL;
    uint8_t *integers;
    KEEL_TRY(keel_alloc(bytes, 1, &integers));
    enum keel_status status = keel_safetensors_read(file, few->integers, 0, bytes, integers);
    if (status == KEEL_OK)
        status = read_scales(file, few, &scales);
    KEEL_ASSERT(status != KEEL_OK || scales != NULL);
    for (uint64_t row = 0; status == KEEL_OK && row < few->copies * few->outputs; row++) {
        const uint64_t copy = row / few->outputs, output = row % few->outputs;
        for (uint64_t i = 0; i < few->inputs; i++) {
            const uint64_t at =
                few->across ? (copy * few->inputs + i) * few->outputs + output : row * few->inputs + i;
            out[at] = (float)number_at(few, integers, row, i) * scales[row * few->groups + i / few->group];
        }
    }
    keel_free(scales);
    keel_free(integers);
    return status;
}
