/* data_text.c - text as tokens of one byte each: the next token is asked for (GPT), or tokens that were
 * masked (BERT, Devlin et al. 2019).
 *
 * A sample is a window of `block` tokens, by where it begins. Of a masked one round(0.15 block) tokens are
 * asked for, which and how is drawn anew each time the window comes (Liu et al. 2019): 8 of 10 are replaced
 * by the mask, the token behind the last of the text; 1 of 10 by any token; 1 of 10 stays. */
#include "data_reader.h"
#include <keel/memory.h>
#include <string.h>
#include <xxhash.h>

enum { BYTES = 256, MASK_STREAM = 1, MASK_VALIDATION_STREAM = 2 };

struct text {
    char *bytes; /* owned */
    uint64_t count, train_bytes;
    uint32_t block, tokens; /* different ones; the mask, if any, is one more */
    uint32_t masked;        /* of a sample; 0: the next token is asked for */
    uint8_t token_of[BYTES];
    uint8_t byte_of[BYTES];
};

static uint32_t build_vocab(struct text *text, bool all_bytes)
{
    bool seen[BYTES];
    memset(seen, all_bytes, sizeof seen);
    for (uint64_t i = 0; i < text->count; i++)
        seen[(uint8_t)text->bytes[i]] = true;
    uint32_t next = 0;
    for (uint32_t byte = 0; byte < BYTES; byte++) {
        if (!seen[byte])
            continue;
        text->token_of[byte] = (uint8_t)next;
        text->byte_of[next++] = (uint8_t)byte;
    }
    return next;
}

static enum keel_status check_length(const struct keel_data *data, const struct text *text,
                                     const struct keel_job *job)
{
    if (text->train_bytes < (uint64_t)text->block + 1)
        return keel_fail(
            KEEL_INVALID,
            "%s: %llu bytes for training, at least model.block + 1 = %u are needed; give a longer text "
            "or a shorter block",
            job->path, (unsigned long long)text->train_bytes, text->block + 1);
    if (job->vocab != 0 && job->vocab < data->vocab)
        return keel_fail(
            KEEL_INVALID, "model.vocab = %u, but %s has %u different tokens%s; use 0 or at least %u",
            job->vocab, job->path, data->vocab, text->masked > 0 ? ", with the mask" : "", data->vocab);
    return KEEL_OK;
}

static enum keel_status read_text(struct text *text, const struct keel_job *job)
{
    size_t bytes;
    if (keel_path_exists(job->path) && !keel_path_is_file(job->path))
        return keel_fail(KEEL_INVALID,
                         "data.path = %s: no regular file (every worker reads it anew); name a text file",
                         job->path);
    enum keel_status status =
        keel_file_read(job->path, UINT64_C(1) << KEEL_BYTES_MAX_LOG2, &text->bytes, &bytes);
    if (status == KEEL_NOT_FOUND)
        return keel_fail(status,
                         "data.path = %s: no such file; name a text file, or run `make data` for the default "
                         "(installed: sh PREFIX/share/keel/data.sh PREFIX/share/keel/data)",
                         job->path);
    text->count = bytes;
    return status;
}

static enum keel_status open_text(struct keel_data *data, const struct keel_job *job, bool masked)
{
    struct text *text;
    KEEL_TRY(keel_alloc(1, sizeof *text, &text));
    data->own = text;
    KEEL_TRY(read_text(text, job));
    text->block = job->block;
    text->train_bytes = text->count - (uint64_t)((double)text->count * (double)job->val_fraction);
    text->tokens = build_vocab(text, job->vocab_kind == KEEL_VOCAB_BYTE);
    text->masked = !masked ? 0 : job->block < 4 ? 1 : (job->block * 15 + 50) / 100;
    data->vocab = text->tokens + (masked ? 1 : 0);
    data->digest = XXH3_64bits(text->bytes, keel_size(text->count));
    data->sample_tokens = job->block;
    KEEL_TRY(check_length(data, text, job));
    data->train_count = text->train_bytes - text->block;
    uint64_t kept = text->count - text->train_bytes;
    data->val_count = kept > text->block ? kept - text->block : 0;
    const uint64_t block = text->block, asked = text->masked;
    keel_data_add_input(data, "ids", KEEL_I32, 1, 1, &block);
    if (masked)
        keel_data_add_input(data, "positions", KEEL_I32, 1, 1, &asked);
    keel_data_add_input(data, "targets", KEEL_I32, 1, 1, masked ? &asked : &block);
    return KEEL_OK;
}

static enum keel_status open_next(struct keel_data *data, const struct keel_job *job)
{
    return open_text(data, job, false);
}

static enum keel_status open_masked(struct keel_data *data, const struct keel_job *job)
{
    return open_text(data, job, true);
}

static void close_text(struct keel_data *data)
{
    struct text *text = data->own;
    if (text != NULL)
        keel_free(text->bytes);
    keel_free(text);
}

/* Where the window begins: validation windows lie behind the text for training. */
static uint64_t start_of(const struct text *text, const struct keel_sample *sample)
{
    return sample->item + (sample->validation ? text->train_bytes : 0);
}

static void fill_next(const struct keel_data *data, const struct keel_sample *sample, uint32_t slot,
                      void *const *inputs)
{
    const struct text *text = data->own;
    const uint8_t *at = (const uint8_t *)text->bytes + start_of(text, sample);
    int32_t *ids = (int32_t *)inputs[0] + (size_t)slot * text->block;
    int32_t *targets = (int32_t *)inputs[1] + (size_t)slot * text->block;
    for (uint32_t t = 0; t < text->block; t++) {
        ids[t] = text->token_of[at[t]];
        targets[t] = text->token_of[at[t + 1]];
    }
}

static int32_t corrupt(const struct text *text, int32_t token, uint64_t draw)
{
    uint32_t kind = keel_data_below(draw, 10);
    if (kind < 8)
        return (int32_t)text->tokens;
    return kind == 8 ? (int32_t)keel_data_below(draw << 32, text->tokens) : token;
}

static void fill_masked(const struct keel_data *data, const struct keel_sample *sample, uint32_t slot,
                        void *const *inputs)
{
    const struct text *text = data->own;
    const uint8_t *at = (const uint8_t *)text->bytes + start_of(text, sample);
    int32_t *ids = (int32_t *)inputs[0] + (size_t)slot * text->block;
    int32_t *positions = (int32_t *)inputs[1] + (size_t)slot * text->masked;
    int32_t *targets = (int32_t *)inputs[2] + (size_t)slot * text->masked;
    uint64_t stream = sample->validation ? MASK_VALIDATION_STREAM : MASK_STREAM;
    uint64_t key = keel_data_draw(data->seed, stream, sample->number);
    for (uint32_t t = 0; t < text->block; t++)
        ids[t] = text->token_of[at[t]];
    for (uint32_t i = 0; i < text->masked; i++) {
        uint32_t position = (uint32_t)keel_permute(i, text->block, key); /* so no position comes twice */
        targets[i] = ids[position];
        ids[position] = corrupt(text, ids[position], keel_data_draw(key, 0, i));
        positions[i] = (int32_t)(slot * text->block + position);
    }
}

uint8_t keel_data_byte(const struct keel_data *data, uint32_t token)
{
    const struct text *text = data->own;
    return token < text->tokens ? text->byte_of[token] : (uint8_t)'?';
}

uint32_t keel_data_token(const struct keel_data *data, uint8_t byte)
{
    return ((const struct text *)data->own)->token_of[byte];
}

const struct keel_reader keel_text_reader = {.open = open_next, .close = close_text, .fill = fill_next};
const struct keel_reader keel_masked_reader = {.open = open_masked, .close = close_text, .fill = fill_masked};
