/* data.c - vocabulary, split and the keyed permutation of samples. */
#include "data.h"
#include <keel/memory.h>
#include <string.h>
#include <xxhash.h>

enum { BYTES = 256, ROUNDS = 6 };
#define TEXT_BYTES_MAX ((size_t)1 << 34)

struct keel_data {
    char *text; /* owned */
    uint64_t bytes, train_bytes, digest;
    uint64_t seed;
    uint32_t block, batch, vocab;
    uint8_t token_of[BYTES];
    uint8_t byte_of[BYTES];
};

static void build_vocab(struct keel_data *data, bool all_bytes)
{
    bool seen[BYTES];
    memset(seen, all_bytes, sizeof seen);
    for (uint64_t i = 0; i < data->bytes; i++)
        seen[(uint8_t)data->text[i]] = true;
    uint32_t next = 0;
    for (uint32_t byte = 0; byte < BYTES; byte++) {
        if (!seen[byte])
            continue;
        data->token_of[byte] = (uint8_t)next;
        data->byte_of[next++] = (uint8_t)byte;
    }
    data->vocab = next;
}

static enum keel_status check_length(const struct keel_data *data, const struct keel_job *job)
{
    if (data->train_bytes < (uint64_t)data->block + 1)
        return keel_fail(
            KEEL_INVALID,
            "%s: %llu bytes for training, at least model.block + 1 = %u are needed; give a longer text "
            "or a shorter block",
            job->path, (unsigned long long)data->train_bytes, data->block + 1);
    if (job->vocab != 0 && job->vocab < data->vocab)
        return keel_fail(KEEL_INVALID,
                         "model.vocab = %u, but %s has %u different tokens; use 0 or at least %u", job->vocab,
                         job->path, data->vocab, data->vocab);
    return KEEL_OK;
}

enum keel_status keel_data_open(const struct keel_job *job, struct keel_data **out)
{
    char *text;
    size_t bytes;
    if (job->kind != KEEL_MODEL_GPT)
        return keel_fail(KEEL_UNSUPPORTED, "model.kind: this build trains gpt alone");
    if (keel_path_exists(job->path) && !keel_path_is_file(job->path))
        return keel_fail(KEEL_INVALID,
                         "data.path = %s: no regular file (every worker reads it anew); name a text file",
                         job->path);
    enum keel_status status = keel_file_read(job->path, TEXT_BYTES_MAX, &text, &bytes);
    if (status == KEEL_NOT_FOUND)
        return keel_fail(status,
                         "data.path = %s: no such file; name a text file, or run `make data` for the default",
                         job->path);
    if (status != KEEL_OK)
        return status;
    struct keel_data *data;
    status = keel_alloc(1, sizeof *data, &data);
    if (status != KEEL_OK) {
        keel_free(text);
        return status;
    }
    *data = (struct keel_data){.text = text,
                               .bytes = bytes,
                               .digest = XXH3_64bits(text, bytes),
                               .seed = job->seed,
                               .block = job->block,
                               .batch = job->batch};
    uint64_t kept = (uint64_t)((double)bytes * (double)job->val_fraction);
    data->train_bytes = bytes - kept;
    build_vocab(data, job->vocab_kind == KEEL_VOCAB_BYTE);
    status = check_length(data, job);
    if (status != KEEL_OK) {
        keel_data_close(data);
        return status;
    }
    *out = data;
    return KEEL_OK;
}

void keel_data_close(struct keel_data *data)
{
    if (data == NULL)
        return;
    keel_free(data->text);
    keel_free(data);
}

uint32_t keel_data_vocab(const struct keel_data *data)
{
    return data->vocab;
}

uint64_t keel_data_digest(const struct keel_data *data)
{
    return data->digest;
}

uint64_t keel_data_train_tokens(const struct keel_data *data)
{
    return data->train_bytes;
}

uint8_t keel_data_byte(const struct keel_data *data, uint32_t token)
{
    return token < data->vocab ? data->byte_of[token] : (uint8_t)'?';
}

uint32_t keel_data_token(const struct keel_data *data, uint8_t byte)
{
    return data->token_of[byte];
}

/* The finalizer of SplitMix64 (Steele et al. 2014). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
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

static void copy_window(const struct keel_data *data, uint64_t start, int32_t *ids, int32_t *targets)
{
    for (uint32_t t = 0; t < data->block; t++) {
        ids[t] = data->token_of[(uint8_t)data->text[start + t]];
        targets[t] = data->token_of[(uint8_t)data->text[start + t + 1]];
    }
}

void keel_data_train_batch(const struct keel_data *data, uint64_t step, uint32_t microbatch,
                           uint32_t per_step, int32_t *ids, int32_t *targets)
{
    uint64_t windows = data->train_bytes - data->block;
    uint64_t first = (step * per_step + microbatch) * data->batch;
    for (uint32_t b = 0; b < data->batch; b++) {
        uint64_t pass = (first + b) / windows;
        uint64_t window = keel_permute((first + b) % windows, windows, mix(data->seed) + pass);
        copy_window(data, window, ids + (size_t)b * data->block, targets + (size_t)b * data->block);
    }
}

bool keel_data_val_batch(const struct keel_data *data, uint32_t index, uint32_t count, int32_t *ids,
                         int32_t *targets)
{
    uint64_t bytes = data->bytes - data->train_bytes;
    if (bytes <= data->block)
        return false;
    uint64_t windows = bytes - data->block;
    uint64_t total = (uint64_t)count * data->batch;
    for (uint32_t b = 0; b < data->batch; b++) {
        uint64_t number = (uint64_t)index * data->batch + b;
        uint64_t start = data->train_bytes + number * windows / total;
        copy_window(data, start, ids + (size_t)b * data->block, targets + (size_t)b * data->block);
    }
    return true;
}
