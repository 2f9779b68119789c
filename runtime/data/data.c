/* data.c - which reader, and which sample comes when. */
#include "data_reader.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>

enum { ROUNDS = 6 };

#define ROW(kind, reader) [kind] = &(reader),
static const struct keel_reader *const readers[KEEL_MODEL_KIND_COUNT] = {KEEL_READERS(ROW)};

static const struct keel_reader *reader_of(const struct keel_job *job)
{
    const enum keel_model_kind kind = keel_job_data_kind(job);
    KEEL_ASSERT(kind < KEEL_MODEL_KIND_COUNT && readers[kind] != NULL);
    switch ((enum keel_data_format)job->format) { /* of which the model's own is one, where it says so */
    case KEEL_DATA_CRITEO:
    case KEEL_DATA_CSV:
        return &keel_click_reader;
    case KEEL_DATA_FOLDERS:
        return &keel_folder_reader;
    case KEEL_DATA_AUTO:
    case KEEL_DATA_TEXT:
    case KEEL_DATA_UINT16:
    case KEEL_DATA_UINT32:
    default:
        return readers[kind];
    }
}

static enum keel_status open_data(const struct keel_job *job, const struct keel_data_use *use,
                                  struct keel_data **out)
{
    struct keel_data *data;
    KEEL_TRY(keel_alloc(1, sizeof *data, &data));
    *data = (struct keel_data){.reader = reader_of(job),
                               .use = use,
                               .whole = true,
                               .seed = job->seed,
                               .batch = job->batch,
                               .sample_tokens = 1};
    enum keel_status status = data->reader->open(data, job);
    data->use = NULL;
    if (status != KEEL_OK) {
        keel_data_close(data);
        return status;
    }
    KEEL_ASSERT(data->input_count > 0);
    *out = data;
    return KEEL_OK;
}

enum keel_status keel_data_open(const struct keel_job *job, struct keel_data **out)
{
    KEEL_TRY(open_data(job, NULL, out));
    KEEL_ASSERT((*out)->train_count > 0);
    return KEEL_OK;
}

enum keel_status keel_data_open_to_use(const struct keel_job *job, const struct keel_data_use *use,
                                       struct keel_data **out)
{
    return open_data(job, use, out);
}

/* ---- a check of all ------------------------------------------------------------------------------------ */

enum keel_status keel_data_checked(struct keel_data_checking *check, uint64_t count, enum keel_status status)
{
    const struct keel_data_watch *watch = check->watch;
    const uint64_t now_ns = keel_now_ns();
    check->done += count;
    if (watch->progress != NULL && now_ns - check->told_ns >= KEEL_NS_PER_S) {
        check->told_ns = now_ns;
        watch->progress(watch->context, check->done, check->of, check->unit);
    }
    if (status != KEEL_CORRUPT && status != KEEL_MISMATCH && status != KEEL_INVALID)
        return status;
    if (check->wrong++ == 0) {
        check->first = status;
        snprintf(check->detail, sizeof check->detail, "%s", keel_detail());
    }
    watch->wrong(watch->context, keel_detail());
    return KEEL_OK;
}

enum keel_status keel_data_check(const struct keel_data *data, const struct keel_data_watch *watch)
{
    struct keel_data_checking check = {.watch = watch, .told_ns = keel_now_ns()};
    if (data->reader->check == NULL)
        return KEEL_OK;
    KEEL_TRY(data->reader->check(data, &check));
    return check.wrong == 0 ? KEEL_OK
                            : keel_fail(check.first, "%llu of %llu %s cannot be trained on, the first: %s",
                                        (unsigned long long)check.wrong, (unsigned long long)check.of,
                                        check.unit, check.detail);
}

bool keel_data_is_whole(const struct keel_data *data)
{
    return data->whole;
}

void keel_data_close(struct keel_data *data)
{
    if (data == NULL)
        return;
    data->reader->close(data);
    keel_free(data);
}

void keel_data_add_input(struct keel_data *data, const char *name, enum keel_dtype dtype, uint32_t per_sample,
                         uint32_t dims, const uint64_t *sizes)
{
    KEEL_ASSERT(data->input_count < KEEL_DATA_INPUTS_MAX && dims < KEEL_DIMS_MAX);
    struct keel_data_input *input = &data->inputs[data->input_count++];
    *input = (struct keel_data_input){.name = name, .dtype = dtype};
    input->shape.dims = dims + 1;
    input->shape.size[0] = (uint64_t)data->batch * per_sample;
    input->bytes = input->shape.size[0] * sizeof(float);
    for (uint32_t d = 0; d < dims; d++) {
        input->shape.size[d + 1] = sizes[d];
        input->bytes *= sizes[d];
    }
}

/* ---- facts -------------------------------------------------------------------------------------------- */

uint32_t keel_data_input_count(const struct keel_data *data)
{
    return data->input_count;
}

const struct keel_data_input *keel_data_input(const struct keel_data *data, uint32_t index)
{
    KEEL_ASSERT(index < data->input_count);
    return &data->inputs[index];
}

uint32_t keel_data_vocab(const struct keel_data *data)
{
    return data->vocab;
}

uint64_t keel_data_digest(const struct keel_data *data)
{
    return data->digest;
}

uint64_t keel_data_train_samples(const struct keel_data *data)
{
    return data->train_count;
}

uint64_t keel_data_val_samples(const struct keel_data *data)
{
    return data->val_count;
}

const char *keel_data_form(const struct keel_data *data)
{
    return data->form;
}

uint32_t keel_data_absent_classes(const struct keel_data *data)
{
    return data->absent_classes;
}

uint32_t keel_data_sample_tokens(const struct keel_data *data)
{
    return data->sample_tokens;
}

bool keel_data_has_accuracy(const struct keel_data *data)
{
    return data->reader->is_right != NULL;
}

bool keel_data_is_right(const struct keel_data *data, void *const *inputs, uint32_t row, const float *logits,
                        uint32_t classes)
{
    KEEL_ASSERT(keel_data_has_accuracy(data));
    return data->reader->is_right(inputs, row, logits, classes);
}

uint32_t keel_data_class_of(const struct keel_data *data, void *const *inputs, uint32_t row)
{
    KEEL_ASSERT(keel_data_has_accuracy(data));
    return data->reader->class_of(inputs, row);
}

uint32_t keel_data_class_count(const struct keel_data *data)
{
    return data->vocab > 0 ? data->vocab : 2; /* of what is true or not */
}

const char *keel_data_text_of(const struct keel_data *data, uint32_t token,
                              char scratch[KEEL_TOKEN_TEXT_BYTES], size_t *out_bytes)
{
    KEEL_ASSERT(data->reader->text_of != NULL);
    return data->reader->text_of(data, token, scratch, out_bytes);
}

uint32_t keel_data_first_token(const struct keel_data *data)
{
    KEEL_ASSERT(data->reader->first_token != NULL);
    return data->reader->first_token(data);
}

enum keel_status keel_data_encode(const struct keel_data *data, const char *text, size_t bytes, int32_t **out,
                                  size_t *out_count)
{
    KEEL_ASSERT(data->reader->encode != NULL);
    return data->reader->encode(data, text, bytes, out, out_count);
}

uint32_t keel_data_highest(const float *logits, uint32_t classes)
{
    uint32_t best = 0;
    for (uint32_t c = 1; c < classes; c++)
        if (logits[c] > logits[best])
            best = c;
    return best;
}

/* ---- order -------------------------------------------------------------------------------------------- */

/* The finalizer of SplitMix64 (Steele et al. 2014). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t keel_data_draw(uint64_t key, uint64_t number, uint64_t index)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    return mix(mix(mix(key + golden) + (number + 1) * golden) + (index + 1) * golden);
}

uint32_t keel_data_below(uint64_t draw, uint32_t count)
{
    return (uint32_t)(((draw >> 32) * count) >> 32);
}

static uint64_t feistel(uint64_t value, uint32_t half_bits, uint64_t key)
{
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = value >> half_bits, right = value & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t next = left ^ (mix(right ^ mix(key + round)) & mask);
        left = right;
        right = next;
    }
    return (left << half_bits) | right;
}

uint64_t keel_permute(uint64_t index, uint64_t count, uint64_t key)
{
    KEEL_ASSERT(index < count);
    uint32_t half_bits = 1;
    while (half_bits < 31 && (UINT64_C(1) << (2 * half_bits)) < count)
        half_bits++;
    /* The domain is under 4 x count, so the walk is short; it ends because feistel is a bijection. */
    do
        index = feistel(index, half_bits, key);
    while (index >= count);
    return index;
}

enum keel_status keel_data_train_batch(const struct keel_data *data, uint64_t step, uint32_t microbatch,
                                       uint32_t per_step, void *const *inputs)
{
    uint64_t first = (step * per_step + microbatch) * data->batch;
    for (uint32_t b = 0; b < data->batch; b++) {
        uint64_t pass = (first + b) / data->train_count;
        struct keel_sample sample = {.number = first + b};
        sample.item =
            keel_permute((first + b) % data->train_count, data->train_count, mix(data->seed) + pass);
        KEEL_TRY(data->reader->fill(data, &sample, b, inputs));
    }
    return KEEL_OK;
}

enum keel_status keel_data_val_batch(const struct keel_data *data, uint32_t index, uint32_t count,
                                     void *const *inputs)
{
    KEEL_ASSERT(data->val_count > 0);
    uint64_t total = (uint64_t)count * data->batch;
    for (uint32_t b = 0; b < data->batch; b++) {
        uint64_t number = (uint64_t)index * data->batch + b;
        struct keel_sample sample = {
            .item = number * data->val_count / total, .number = number, .validation = true};
        KEEL_TRY(data->reader->fill(data, &sample, b, inputs));
    }
    return KEEL_OK;
}
