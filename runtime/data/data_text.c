/* data_text.c - tokens in a row: the next one is asked for (GPT), or some that were masked (BERT, Devlin et
 * al. 2019). They are the bytes of a text, which is read into memory, or come from token files
 * (token_files.h), whose text a tokenizer may know (tokenizer.h).
 *
 * A sample is a window of `block` tokens, by where it begins; no window reaches from one file into the next.
 * Of a masked one round(0.15 block) tokens are asked for, which and how is drawn anew each time the window
 * comes (Liu et al. 2019): 8 of 10 are replaced by the mask, the token behind the last of the text; 1 of 10
 * by any token; 1 of 10 stays. */
#include "data_reader.h"
#include "token_files.h"
#include "tokenizer.h"
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { BYTES = 256, MASK_STREAM = 1, MASK_VALIDATION_STREAM = 2 };
enum { TRAIN, VAL, SETS, VOCAB_MAX = 1 << 20 /* of model.vocab */, PADDING = 128 };

/* Windows that lie in one file, numbered from `before` on. */
struct run {
    const struct keel_token_file *file;
    uint64_t first, before;
};
struct text {
    char *bytes; /* owned */
    uint64_t count, train_bytes;
    struct keel_token_files files; /* to train on, and behind them those of data.val_path */
    struct keel_token_files other; /* of keel_data_use: what a trained model is to read */
    struct run *runs[SETS];        /* owned */
    size_t run_count[SETS];
    uint32_t read_below;              /* what tokens of files are below */
    struct keel_tokenizer *tokenizer; /* owned; NULL: none is named */
    bool of_bytes;                    /* tokens are bytes of texts, else numbers of token files */
    uint32_t block, tokens;           /* different ones; the mask, if any, is one more */
    uint32_t masked;                  /* of a sample; 0: the next token is asked for */
    uint8_t token_of[BYTES];
    uint8_t byte_of[BYTES];
};

/* ---- the bytes of a text ------------------------------------------------------------------------------- */

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

/* `key` names the path in messages. */
static enum keel_status read_bytes(const char *path, const char *key, char **out, size_t *out_bytes)
{
    if (keel_path_exists(path) && !keel_path_is_file(path))
        return keel_fail(KEEL_INVALID,
                         "%s = %s: no regular file (every worker reads it anew); name a text file", key,
                         path);
    enum keel_status status = keel_file_read(path, UINT64_C(1) << KEEL_BYTES_MAX_LOG2, out, out_bytes);
    if (status == KEEL_NOT_FOUND)
        return keel_fail(status,
                         "%s = %s: no such file; name a text file, or run `make data` for the default "
                         "(installed: sh PREFIX/share/keel/data.sh PREFIX/share/keel/data)",
                         key, path);
    return status;
}

/* Behind the text for training. */
static enum keel_status append_val_text(struct text *text, const struct keel_job *job)
{
    char *more = NULL;
    size_t bytes = 0;
    KEEL_TRY(read_bytes(job->val_path, "data.val_path", &more, &bytes));
    enum keel_status status = keel_realloc(&text->bytes, text->count, text->count + bytes, 1);
    if (status == KEEL_OK && bytes > 0) {
        memcpy(text->bytes + text->count, more, bytes);
        text->count += bytes;
    }
    keel_free(more);
    return status;
}

static bool is_known(const struct text *text, uint8_t byte)
{
    return text->byte_of[text->token_of[byte]] == byte;
}

/* In the place of the job's text, whose vocabulary is known. */
static enum keel_status read_other(struct keel_data *data, struct text *text)
{
    const char *path = data->use->val_path;
    size_t bytes = 0;
    keel_free(text->bytes);
    text->bytes = NULL;
    text->count = text->train_bytes = 0;
    if (path == NULL)
        return KEEL_OK;
    if (data->use->val_width > 0)
        return keel_fail(KEEL_INVALID,
                         "%s: is a token file, and the job's tokens are bytes of a text; name a "
                         "text",
                         path);
    KEEL_TRY(read_bytes(path, "the data", &text->bytes, &bytes));
    for (size_t i = 0; i < bytes; i++)
        if (!is_known(text, (uint8_t)text->bytes[i]))
            return keel_fail(KEEL_INVALID,
                             "%s: byte %u at offset %zu is none of the job's vocabulary, which has those of "
                             "the text that it was trained on (data.vocab = char)",
                             path, (uint8_t)text->bytes[i], i);
    if (bytes <= text->block)
        return keel_fail(KEEL_INVALID, "%s: %zu bytes, at least model.block + 1 = %u are needed", path, bytes,
                         text->block + 1);
    text->count = bytes;
    data->val_count = bytes - text->block;
    return KEEL_OK;
}

static enum keel_status open_bytes(struct keel_data *data, struct text *text, const struct keel_job *job)
{
    const char *files;
    size_t bytes = 0;
    if (data->use != NULL && keel_job_vocab(job, &files) == KEEL_VOCAB_BYTE) {
        text->tokens = build_vocab(text, true);
        data->whole = false;
        return read_other(data, text);
    }
    KEEL_TRY(read_bytes(job->path, "data.path", &text->bytes, &bytes));
    text->count = text->train_bytes = bytes;
    if (job->val_path[0] == '\0') {
        text->train_bytes -= (uint64_t)((double)text->count * (double)job->val_fraction);
        data->digest = XXH3_64bits(text->bytes, keel_size(text->count));
    } else {
        KEEL_TRY(append_val_text(text, job));
        data->digest = XXH3_64bits_withSeed(text->bytes, keel_size(text->count), text->train_bytes);
    }
    text->tokens = build_vocab(text, keel_job_vocab(job, &files) == KEEL_VOCAB_BYTE);
    if (data->use != NULL)
        return read_other(data, text);
    if (text->train_bytes < (uint64_t)text->block + 1)
        return keel_fail(
            KEEL_INVALID,
            "%s: %llu bytes for training, at least model.block + 1 = %u are needed; give a longer text "
            "or a shorter block",
            job->path, (unsigned long long)text->train_bytes, text->block + 1);
    data->train_count = text->train_bytes - text->block;
    uint64_t kept = text->count - text->train_bytes;
    data->val_count = kept > text->block ? kept - text->block : 0;
    return KEEL_OK;
}

/* ---- token files --------------------------------------------------------------------------------------- */

/* The windows of `count` tokens, from `first` on, of the row of files `from` to `to`, as runs of a set.
 * Returns how many there are. */
static uint64_t add_runs(struct text *text, const struct keel_token_files *files, int set, size_t from,
                         size_t to, uint64_t first, uint64_t count)
{
    uint64_t windows = 0, begin = 0; /* of the file, in the row */
    for (size_t f = from; f < to; f++) {
        const struct keel_token_file *file = &files->files[f];
        const uint64_t end = begin + file->layout.count;
        const uint64_t low = begin > first ? begin : first, high = end < first + count ? end : first + count;
        if (high > low && high - low > text->block) {
            text->runs[set][text->run_count[set]++] = (struct run){file, low - begin, windows};
            windows += high - low - text->block;
        }
        begin = end;
    }
    return windows;
}

/* Which windows are trained on, and which are kept. */
static enum keel_status cut_files(struct keel_data *data, struct text *text, const struct keel_job *job,
                                  size_t train_files, uint64_t train_tokens)
{
    const size_t files = text->files.count;
    const bool apart = files > train_files;
    const uint64_t kept = apart ? text->files.tokens - train_tokens
                                : (uint64_t)((double)train_tokens * (double)job->val_fraction);
    for (int set = 0; set < SETS; set++)
        KEEL_TRY(keel_alloc(files, sizeof(struct run), &text->runs[set]));
    train_tokens -= apart ? 0 : kept;
    data->train_count = add_runs(text, &text->files, TRAIN, 0, train_files, 0, train_tokens);
    data->val_count =
        add_runs(text, &text->files, VAL, apart ? train_files : 0, files, apart ? 0 : train_tokens, kept);
    if (data->train_count == 0)
        return keel_fail(KEEL_INVALID,
                         "%s: %llu tokens for training, and none of the files has model.block + 1 = %u of "
                         "them; give more, or a shorter block",
                         job->path, (unsigned long long)train_tokens, text->block + 1);
    return KEEL_OK;
}

/* Models are given some tokens more than there are, so that products are of even sizes: GPT-2's 50257 are
 * 50304 in nanoGPT and llm.c. More than that is another vocabulary. */
static enum keel_status open_tokenizer(struct text *text, const struct keel_job *job, const char *files)
{
    KEEL_TRY(keel_tokenizer_open(files, &text->tokenizer));
    const uint32_t tokens = keel_tokenizer_vocab(text->tokenizer) + (text->masked > 0 ? 1 : 0);
    if (job->vocab == 0 || (job->vocab >= tokens && job->vocab - tokens < PADDING))
        return KEEL_OK;
    return keel_fail(
        KEEL_INVALID,
        "model.vocab = %u, but the tokenizer %.300s has %u tokens%s: it is not that of the model; "
        "give the one that its weights were trained with, or model.vocab = 0",
        job->vocab, files, tokens, text->masked > 0 ? ", with the mask" : "");
}

/* The vocabulary is the tokenizer's, what the job says, or what the files need. */
static enum keel_status look_at_files(struct keel_data *data, struct text *text, const struct keel_job *job)
{
    uint32_t highest;
    uint32_t vocab = job->vocab != 0 && text->masked > 0 ? job->vocab - 1 : job->vocab;
    if (text->tokenizer != NULL)
        vocab = keel_tokenizer_vocab(text->tokenizer);
    KEEL_TRY(keel_token_files_survey(&text->files, vocab, &data->digest, &highest));
    if (highest >= VOCAB_MAX)
        return keel_fail(KEEL_INVALID,
                         "%s: token %u: vocabularies have up to %d; give the data.format that it was written "
                         "in",
                         job->path, highest, VOCAB_MAX);
    const bool needed = text->tokenizer == NULL && keel_token_files_are_surveyed_whole(&text->files);
    text->tokens = needed ? highest + 1 : vocab;
    return KEEL_OK;
}

/* The files that a trained model is to read: tokens that no training text had are right, where the model has
 * them. */
static enum keel_status open_other(struct keel_data *data, struct text *text, const struct keel_job *job)
{
    const char *path = data->use->val_path;
    uint64_t digest;
    uint32_t highest;
    if (path == NULL)
        return KEEL_OK;
    if (data->use->val_width == 0)
        return keel_fail(KEEL_INVALID,
                         "%s: is a text, and the job names no tokenizer (data.vocab = bpe:...) "
                         "that would make tokens of it; name a token file",
                         path);
    if (text->tokenizer == NULL && job->vocab != 0)
        text->read_below = text->masked > 0 ? job->vocab - 1 : job->vocab;
    KEEL_TRY(keel_token_files_add(&text->other, path, "the data", data->use->val_width));
    KEEL_TRY(keel_token_files_survey(&text->other, text->read_below, &digest, &highest));
    KEEL_TRY(keel_alloc(text->other.count, sizeof(struct run), &text->runs[VAL]));
    data->val_count = add_runs(text, &text->other, VAL, 0, text->other.count, 0, text->other.tokens);
    if (data->val_count == 0)
        return keel_fail(KEEL_INVALID, "%s: %llu tokens, and no file has model.block + 1 = %u of them", path,
                         (unsigned long long)text->other.tokens, text->block + 1);
    return KEEL_OK;
}

/* How many have a header; a run tells it, since whoever wrote raw tokens may not know of any. */
static void describe_files(const struct keel_token_files *files, uint32_t width, struct keel_data *data)
{
    size_t headers = 0;
    for (size_t f = 0; f < files->count; f++)
        headers += files->files[f].layout.first_byte > 0;
    const char *some = files->count == 1 ? "" : "s";
    if (headers == files->count)
        snprintf(data->form, sizeof data->form, "%zu token file%s with llm.c's header", headers, some);
    else if (headers == 0)
        snprintf(data->form, sizeof data->form, "%zu token file%s of raw numbers of %u bits", files->count,
                 some, width * 8);
    else
        snprintf(data->form, sizeof data->form,
                 "%zu token files, %zu with llm.c's header, the others raw numbers of %u bits", files->count,
                 headers, width * 8);
}

static enum keel_status open_files(struct keel_data *data, struct text *text, const struct keel_job *job,
                                   uint32_t width)
{
    const char *files;
    const enum keel_vocab_kind kind = keel_job_vocab(job, &files);
    if (kind == KEEL_VOCAB_BPE)
        KEEL_TRY(open_tokenizer(text, job, files));
    if (kind == KEEL_VOCAB_BYTE)
        return keel_fail(KEEL_INVALID,
                         "data.vocab = byte says nothing to token files (%s): leave it out, or give "
                         "data.format = text",
                         job->path);
    if (data->use != NULL && text->tokenizer != NULL) {
        text->tokens = text->read_below = keel_tokenizer_vocab(text->tokenizer);
        data->whole = false;
        return open_other(data, text, job);
    }
    KEEL_TRY(keel_token_files_add(&text->files, job->path, "data.path", width));
    const size_t train_files = text->files.count;
    const uint64_t train_tokens = text->files.tokens;
    if (job->val_path[0] != '\0')
        KEEL_TRY(keel_token_files_add(&text->files, job->val_path, "data.val_path", width));
    describe_files(&text->files, width, data);
    KEEL_TRY(look_at_files(data, text, job));
    text->read_below = text->tokens;
    if (job->val_path[0] != '\0' || text->tokenizer != NULL) {
        const uint64_t parts[] = {data->digest, train_files,
                                  text->tokenizer != NULL ? keel_tokenizer_digest(text->tokenizer) : 0};
        data->digest = XXH3_64bits(parts, sizeof parts);
    }
    return data->use != NULL ? open_other(data, text, job)
                             : cut_files(data, text, job, train_files, train_tokens);
}

/* ---- the reader ---------------------------------------------------------------------------------------- */

static enum keel_status check_vocab(const struct keel_data *data, const struct text *text,
                                    const struct keel_job *job)
{
    if (job->vocab != 0 && job->vocab < data->vocab)
        return keel_fail(
            KEEL_INVALID, "model.vocab = %u, but %s has %u different tokens%s; use 0 or at least %u",
            job->vocab, job->path, data->vocab, text->masked > 0 ? ", with the mask" : "", data->vocab);
    return KEEL_OK;
}

static enum keel_status open_text(struct keel_data *data, const struct keel_job *job, bool masked)
{
    struct text *text;
    KEEL_TRY(keel_alloc(1, sizeof *text, &text));
    data->own = text;
    text->block = job->block;
    text->masked = !masked ? 0 : job->block < 4 ? 1 : (job->block * 15 + 50) / 100;
    const uint32_t width = keel_job_token_width(job);
    const char *files;
    const bool bpe = keel_job_vocab(job, &files) == KEEL_VOCAB_BPE;
    if (width == 0 && bpe && data->use == NULL)
        return keel_fail(
            KEEL_INVALID,
            "data.path = %s: is a text, which keel run encodes into DIR/tokens-*.bin: name that, or "
            "give data.vocab = char and the tokenizer's size as model.vocab",
            job->path);
    KEEL_TRY(width > 0 || bpe ? open_files(data, text, job, width) : open_bytes(data, text, job));
    text->of_bytes = width == 0 && !bpe;
    data->vocab = text->tokens + (masked ? 1 : 0);
    data->sample_tokens = job->block;
    KEEL_TRY(check_vocab(data, text, job));
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
    if (text == NULL)
        return;
    keel_free(text->bytes);
    for (int set = 0; set < SETS; set++)
        keel_free(text->runs[set]);
    keel_token_files_fini(&text->files);
    keel_token_files_fini(&text->other);
    keel_tokenizer_close(text->tokenizer);
    keel_free(text);
}

/* The run that has a window. */
static const struct run *find_run(const struct text *text, int set, uint64_t window)
{
    size_t low = 0, high = text->run_count[set];
    KEEL_ASSERT(high > 0);
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (text->runs[set][middle].before <= window)
            low = middle;
        else
            high = middle;
    }
    return &text->runs[set][low];
}

/* Every token of files, of which open may have looked at some. */
static enum keel_status check_files(const struct keel_data *data, struct keel_data_checking *check)
{
    enum { AT_ONCE = 1 << 16 };
    const struct text *text = data->own;
    int32_t *tokens;
    check->unit = "tokens of files";
    check->of = text->files.tokens;
    KEEL_TRY(keel_alloc(AT_ONCE, sizeof *tokens, &tokens));
    enum keel_status status = KEEL_OK;
    for (size_t f = 0; f < text->files.count && status == KEEL_OK; f++) {
        const struct keel_token_file *file = &text->files.files[f];
        for (uint64_t at = 0, count; at < file->layout.count && status == KEEL_OK; at += count) {
            count = file->layout.count - at < AT_ONCE ? file->layout.count - at : AT_ONCE;
            status = keel_token_file_read(file, at, (uint32_t)count, text->read_below, NULL, tokens);
            status = keel_data_checked(check, count, status);
        }
    }
    keel_free(tokens);
    return status;
}

/* The first `count` tokens of the sample's window, of which there is one behind `block`: as
 * keel_token_file_read gives them. */
static enum keel_status read_tokens(const struct text *text, const struct keel_sample *sample, uint32_t count,
                                    int32_t *out_first, int32_t *out)
{
    if (!text->of_bytes) {
        const struct run *run = find_run(text, sample->validation ? VAL : TRAIN, sample->item);
        return keel_token_file_read(run->file, run->first + (sample->item - run->before), count,
                                    text->read_below, out_first, out);
    }
    /* Windows for validation lie behind the text for training. */
    const uint64_t first = sample->item + (sample->validation ? text->train_bytes : 0);
    const uint8_t *at = (const uint8_t *)text->bytes + first;
    if (out_first != NULL)
        *out_first = text->token_of[*at++];
    for (uint32_t t = out_first != NULL; t < count; t++)
        *out++ = text->token_of[*at++];
    return KEEL_OK;
}

static enum keel_status fill_next(const struct keel_data *data, const struct keel_sample *sample,
                                  uint32_t slot, void *const *inputs)
{
    const struct text *text = data->own;
    int32_t *ids = (int32_t *)inputs[0] + (size_t)slot * text->block;
    int32_t *targets = (int32_t *)inputs[1] + (size_t)slot * text->block;
    KEEL_TRY(read_tokens(text, sample, text->block + 1, ids, targets));
    memcpy(ids + 1, targets, (text->block - 1) * sizeof *ids);
    return KEEL_OK;
}

static int32_t corrupt(const struct text *text, int32_t token, uint64_t draw)
{
    uint32_t kind = keel_data_below(draw, 10);
    if (kind < 8)
        return (int32_t)text->tokens;
    return kind == 8 ? (int32_t)keel_data_below(draw << 32, text->tokens) : token;
}

static enum keel_status fill_masked(const struct keel_data *data, const struct keel_sample *sample,
                                    uint32_t slot, void *const *inputs)
{
    const struct text *text = data->own;
    int32_t *ids = (int32_t *)inputs[0] + (size_t)slot * text->block;
    int32_t *positions = (int32_t *)inputs[1] + (size_t)slot * text->masked;
    int32_t *targets = (int32_t *)inputs[2] + (size_t)slot * text->masked;
    uint64_t stream = sample->validation ? MASK_VALIDATION_STREAM : MASK_STREAM;
    uint64_t key = keel_data_draw(data->seed, stream, sample->number);
    KEEL_TRY(read_tokens(text, sample, text->block, NULL, ids));
    for (uint32_t i = 0; i < text->masked; i++) {
        uint32_t position = (uint32_t)keel_permute(i, text->block, key); /* so no position comes twice */
        targets[i] = ids[position];
        ids[position] = corrupt(text, ids[position], keel_data_draw(key, 0, i));
        positions[i] = (int32_t)(slot * text->block + position);
    }
    return KEEL_OK;
}

static const char *text_of(const struct keel_data *data, uint32_t token, char scratch[KEEL_TOKEN_TEXT_BYTES],
                           size_t *out_bytes)
{
    const struct text *text = data->own;
    if (text->tokenizer != NULL)
        return keel_tokenizer_text(text->tokenizer, token, out_bytes);
    if (!text->of_bytes) {
        *out_bytes = (size_t)snprintf(scratch, KEEL_TOKEN_TEXT_BYTES, "%u ", token);
        return scratch;
    }
    scratch[0] = token < text->tokens ? (char)text->byte_of[token] : '?';
    *out_bytes = 1;
    return scratch;
}

static uint32_t first_token(const struct keel_data *data)
{
    const struct text *text = data->own;
    return text->tokenizer != NULL ? keel_tokenizer_byte(text->tokenizer, '\n') : text->token_of['\n'];
}

/* What the tokenizer makes of all of a text. */
static enum keel_status encode_whole(struct keel_encoder *encoder, const char *text, size_t bytes,
                                     int32_t **tokens, size_t *count)
{
    size_t capacity = 0, done = 0;
    while (done < bytes) {
        const uint32_t *ids;
        size_t used, more;
        const enum keel_status status =
            keel_encoder_run(encoder, text + done, bytes - done, true, &used, &ids, &more);
        if (status == KEEL_INVALID)
            return keel_fail(status, "the text is no UTF-8 at byte %zu", done + used);
        KEEL_TRY(status);
        KEEL_TRY(keel_grow(tokens, &capacity, *count + more, sizeof **tokens));
        for (size_t i = 0; i < more; i++)
            (*tokens)[(*count)++] = (int32_t)ids[i];
        done += used;
    }
    return KEEL_OK;
}

static enum keel_status encode_bytes(const struct text *own, const char *text, size_t bytes, int32_t *tokens)
{
    for (size_t i = 0; i < bytes; i++) {
        const uint8_t byte = (uint8_t)text[i];
        if (!is_known(own, byte))
            return keel_fail(KEEL_INVALID,
                             "byte %zu of the text (%u) is none of the job's vocabulary, which has those of "
                             "the text that it was trained on (data.vocab = char)",
                             i, byte);
        tokens[i] = own->token_of[byte];
    }
    return KEEL_OK;
}

static enum keel_status encode(const struct keel_data *data, const char *text, size_t bytes, int32_t **out,
                               size_t *out_count)
{
    const struct text *own = data->own;
    struct keel_encoder *encoder = NULL;
    int32_t *tokens = NULL;
    size_t count = 0;
    enum keel_status status = KEEL_OK;
    if (own->tokenizer != NULL) {
        status = keel_encoder_create(own->tokenizer, &encoder);
        if (status == KEEL_OK)
            status = encode_whole(encoder, text, bytes, &tokens, &count);
        keel_encoder_destroy(encoder);
    } else if (own->of_bytes) {
        count = bytes;
        status = keel_alloc(bytes + 1, sizeof *tokens, &tokens);
        if (status == KEEL_OK)
            status = encode_bytes(own, text, bytes, tokens);
    } else {
        status = keel_token_numbers_parse(text, bytes, own->tokens, &tokens, &count);
    }
    if (status != KEEL_OK) {
        keel_free(tokens);
        return status;
    }
    *out = tokens;
    *out_count = count;
    return KEEL_OK;
}

const struct keel_reader keel_text_reader = {.open = open_next,
                                             .close = close_text,
                                             .fill = fill_next,
                                             .check = check_files,
                                             .text_of = text_of,
                                             .first_token = first_token,
                                             .encode = encode};
const struct keel_reader keel_masked_reader = {
    .open = open_masked, .close = close_text, .fill = fill_masked, .check = check_files};
