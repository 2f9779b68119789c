/* data_plugin.c - samples by a reader of the user's own (keel/model_plugin.h).
 *
 * It is code that Keel does not know: what it says of its samples is checked, and so is, of samples from the
 * first to the last, that each is the same when it is made again, into memory that held something else. Their
 * bytes are in the digest that ranks compare, so that two that do not read the same are found out whatever
 * they say. */
#include "data_reader.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <keel/model_plugin.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define SAMPLE_BYTES_MAX (UINT64_C(1) << 30)
enum { PROBES = 128 /* of each: to train on, to validate with */ };

struct own {
    const struct keel_plugin_reader *reader;
    struct keel_plugin_samples samples;
    char path[KEEL_PATH_BYTES]; /* of the plug-in: for messages */
    uint64_t bytes[KEEL_PLUGIN_INPUTS_MAX];
};

/* ---- what it says -------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct keel_plugin_input *input)
{
    uint64_t bytes = sizeof(float);
    for (uint32_t d = 0; d < input->dims; d++)
        bytes = input->size[d] == 0 || bytes > SAMPLE_BYTES_MAX / input->size[d] ? 0 : bytes * input->size[d];
    return bytes;
}

/* What is wrong with input `i`; NULL: nothing. */
static const char *wrong_input(const struct keel_plugin_samples *samples, uint32_t i)
{
    const struct keel_plugin_input *input = &samples->inputs[i];
    if (input->name == NULL || input->name[0] == '\0' || strlen(input->name) >= KEEL_VALUE_NAME_BYTES)
        return "has no name, or a long one";
    for (uint32_t before = 0; before < i; before++)
        if (strcmp(samples->inputs[before].name, input->name) == 0)
            return "has the name of another";
    if (input->dtype != KEEL_F32 && input->dtype != KEEL_I32)
        return "is neither of KEEL_F32 nor of KEEL_I32";
    if (input->dims >= KEEL_DIMS_MAX || bytes_of(input) == 0)
        return "has more than 3 dimensions, one that is 0, or more than 1 GiB";
    if (samples->classes > 0 && i == 1 && (input->dtype != KEEL_I32 || input->dims != 0))
        return "is the class of a sample, so of KEEL_I32 and without dimensions";
    return NULL;
}

static enum keel_status check_samples(const struct own *own)
{
    const struct keel_plugin_samples *samples = &own->samples;
    if (samples->train_count == 0 || samples->train_count > INT64_MAX || samples->val_count > INT64_MAX)
        return keel_fail(KEEL_INVALID,
                         "%s: its reader has %" PRIu64 " samples to train on, %" PRIu64
                         " to validate with: 1 to 2^63 - 1, and 0 to as many, are wanted",
                         own->path, samples->train_count, samples->val_count);
    if (samples->input_count == 0 || samples->input_count > KEEL_PLUGIN_INPUTS_MAX ||
        (samples->classes > 0 && samples->input_count < 2))
        return keel_fail(KEEL_INVALID,
                         "%s: its reader has %u inputs: 1 to %d are wanted, and 2 at least with classes",
                         own->path, samples->input_count, KEEL_PLUGIN_INPUTS_MAX);
    for (uint32_t i = 0; i < samples->input_count; i++)
        if (wrong_input(samples, i) != NULL)
            return keel_fail(KEEL_INVALID, "%s: input %u (from 0) of its reader %s", own->path, i,
                             wrong_input(samples, i));
    return KEEL_OK;
}

/* ---- samples ------------------------------------------------------------------------------------------- */

static enum keel_status check_values(const struct own *own, const struct keel_plugin_sample *sample,
                                     void *const *places)
{
    const char *what = sample->validation ? " to validate with" : "";
    for (uint32_t i = 0; i < own->samples.input_count; i++) {
        const float *floats = places[i];
        const bool real = own->samples.inputs[i].dtype == KEEL_F32;
        for (uint64_t at = 0; real && at < own->bytes[i] / sizeof *floats; at++)
            if (!isfinite(floats[at]))
                return keel_fail(KEEL_INVALID,
                                 "%s: sample %" PRIu64 "%s of its reader: element %" PRIu64
                                 " of %s is no finite number",
                                 own->path, sample->item, what, at, own->samples.inputs[i].name);
    }
    const int32_t class = own->samples.classes > 0 ? *(const int32_t *)places[1] : 0;
    if (class >= 0 && (own->samples.classes == 0 || (uint32_t) class < own->samples.classes))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "%s: sample %" PRIu64 "%s of its reader: class %d, of %u from 0 on",
                     own->path, sample->item, what, class, own->samples.classes);
}

static enum keel_status make(const struct own *own, const struct keel_plugin_sample *sample,
                             void *const *places)
{
    const enum keel_status status = own->reader->fill(own->samples.own, sample, places);
    if (status == KEEL_OK)
        return status;
    char why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "%.300s", keel_detail());
    return keel_fail((unsigned)status < KEEL_STATUS_COUNT ? status : KEEL_INVALID,
                     "%s: its reader makes no sample %" PRIu64 ": %s", own->path, sample->item, why);
}

static enum keel_status fill_sample(const struct keel_data *data, const struct keel_sample *sample,
                                    uint32_t slot, void *const *inputs)
{
    const struct own *own = data->own;
    const struct keel_plugin_sample wanted = {
        .item = sample->item, .number = sample->number, .seed = data->seed, .validation = sample->validation};
    void *places[KEEL_PLUGIN_INPUTS_MAX];
    for (uint32_t i = 0; i < own->samples.input_count; i++)
        places[i] = (char *)inputs[i] + keel_size(slot * own->bytes[i]);
    KEEL_TRY(make(own, &wanted, places));
    return check_values(own, &wanted, places);
}

/* ---- what ranks compare -------------------------------------------------------------------------------- */

/* A sample made twice: once on zeros, once on ones. Its bytes are in `first`. */
static enum keel_status probe(const struct own *own, const struct keel_plugin_sample *sample, char *first,
                              char *second, uint64_t bytes)
{
    void *places[2][KEEL_PLUGIN_INPUTS_MAX];
    uint64_t at = 0;
    for (uint32_t i = 0; i < own->samples.input_count; at += own->bytes[i++]) {
        places[0][i] = first + at;
        places[1][i] = second + at;
    }
    memset(first, 0, keel_size(bytes));
    memset(second, 0xff, keel_size(bytes));
    KEEL_TRY(make(own, sample, places[0]));
    KEEL_TRY(make(own, sample, places[1]));
    if (memcmp(first, second, keel_size(bytes)) == 0)
        return check_values(own, sample, places[0]);
    return keel_fail(KEEL_INVALID,
                     "%s: sample %" PRIu64
                     "%s of its reader is another when it is made again, or is not written "
                     "to its end: it must follow from the sample's numbers alone",
                     own->path, sample->item, sample->validation ? " to validate with" : "");
}

static enum keel_status probe_all(const struct own *own, uint64_t seed, bool validation, XXH3_state_t *hash)
{
    const uint64_t count = validation ? own->samples.val_count : own->samples.train_count;
    const uint64_t probes = count < PROBES ? count : PROBES;
    uint64_t bytes = 0;
    char *first = NULL, *second = NULL;
    for (uint32_t i = 0; i < own->samples.input_count; i++)
        bytes += own->bytes[i];
    enum keel_status status = keel_alloc(keel_size(bytes), 1, &first);
    if (status == KEEL_OK)
        status = keel_alloc(keel_size(bytes), 1, &second);
    for (uint64_t i = 0; i < probes && status == KEEL_OK; i++) {
        /* From the first to the last, evenly: count / probes is at least 1. */
        const uint64_t item = probes > 1 ? i * ((count - 1) / (probes - 1)) : 0;
        const struct keel_plugin_sample sample = {
            .item = i + 1 == probes ? count - 1 : item, .number = i, .seed = seed, .validation = validation};
        status = probe(own, &sample, first, second, bytes);
        if (status == KEEL_OK)
            XXH3_64bits_update(hash, first, keel_size(bytes));
    }
    keel_free(first);
    keel_free(second);
    return status;
}

static void hash_words(const struct own *own, XXH3_state_t *hash)
{
    const struct keel_plugin_samples *samples = &own->samples;
    const uint64_t words[] = {samples->train_count, samples->val_count, samples->classes, samples->digest,
                              samples->input_count};
    XXH3_64bits_update(hash, words, sizeof words);
    for (uint32_t i = 0; i < samples->input_count; i++) {
        const struct keel_plugin_input *input = &samples->inputs[i];
        const uint64_t kind[] = {input->dtype, input->dims};
        XXH3_64bits_update(hash, input->name, strlen(input->name) + 1);
        XXH3_64bits_update(hash, kind, sizeof kind);
        XXH3_64bits_update(hash, input->size, input->dims * sizeof *input->size);
    }
    XXH3_64bits_update(hash, own->bytes, sizeof own->bytes);
}

static enum keel_status digest(struct keel_data *data, const struct own *own)
{
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        return keel_fail(KEEL_NO_MEMORY, "no memory for a digest");
    XXH3_64bits_reset(hash);
    hash_words(own, hash);
    enum keel_status status = probe_all(own, data->seed, false, hash);
    if (status == KEEL_OK)
        status = probe_all(own, data->seed, true, hash);
    data->digest = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return status;
}

/* ---- the reader ---------------------------------------------------------------------------------------- */

static bool is_right(void *const *inputs, uint32_t row, const float *logits, uint32_t classes)
{
    return keel_data_highest(logits, classes) == (uint32_t)((const int32_t *)inputs[1])[row];
}

static uint32_t class_of(void *const *inputs, uint32_t row)
{
    return (uint32_t)((const int32_t *)inputs[1])[row];
}

static void close_plugin(struct keel_data *data)
{
    struct own *own = data->own;
    if (own != NULL)
        own->reader->close(own->samples.own);
    keel_free(own);
}

/* Of samples that have a class. */
static const struct keel_reader class_reader = {
    .close = close_plugin, .fill = fill_sample, .is_right = is_right, .class_of = class_of};

static enum keel_status open_reader(struct own *own, const struct keel_job *job, const char *path)
{
    const enum keel_status status = own->reader->open(job->settings, path, &own->samples);
    if (status == KEEL_OK)
        return check_samples(own);
    char why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "%.300s", keel_detail());
    return keel_fail((unsigned)status < KEEL_STATUS_COUNT ? status : KEEL_INVALID,
                     "%s: its reader opens no data: %s", own->path, why);
}

static enum keel_status open_plugin(struct keel_data *data, const struct keel_job *job)
{
    const bool other = data->use != NULL && data->use->val_path != NULL;
    struct own *own;
    KEEL_TRY(keel_alloc(1, sizeof *own, &own));
    own->reader = keel_job_plugin(job)->reader;
    snprintf(own->path, sizeof own->path, "%s", job->plugin_path);
    data->own = own;
    KEEL_TRY(open_reader(own, job, other ? data->use->val_path : job->path));
    const struct keel_plugin_samples *samples = &own->samples;
    for (uint32_t i = 0; i < samples->input_count; i++) {
        const struct keel_plugin_input *input = &samples->inputs[i];
        own->bytes[i] = bytes_of(input);
        keel_data_add_input(data, input->name, input->dtype, 1, input->dims, input->size);
    }
    data->train_count = samples->train_count;
    data->val_count = samples->val_count;
    data->vocab = samples->classes;
    data->whole = !other;
    if (samples->classes > 0)
        data->reader = &class_reader;
    return digest(data, own);
}

const struct keel_reader keel_plugin_data_reader = {
    .open = open_plugin, .close = close_plugin, .fill = fill_sample};
