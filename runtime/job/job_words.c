/* job_words.c - keys whose values are words with something behind them: compressed gradients, vocabularies,
 * and what a name says of the tokens of a file. */
#include "job_internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXACT       "exact"
#define TOP_K_LEAST 0.0002 /* whose blocks are almost as long as they can be */
#define TOP_K_MOST  0.5

/* The fraction of "topk:FRACTION"; what a block of it has is what an element keeps. */
static bool is_top_k(const char *text, double *out)
{
    static const char word[] = "topk:";
    char *end;
    if (strncmp(text, word, sizeof word - 1) != 0)
        return false;
    *out = strtod(text + sizeof word - 1, &end);
    return *end == '\0' && *out >= TOP_K_LEAST && *out <= TOP_K_MOST; /* NaN is neither */
}

bool keel_job_compression(const struct keel_job *job, struct keel_compression *out)
{
    double fraction;
    if (strcmp(job->gradients, "int8") == 0)
        *out = (struct keel_compression){KEEL_ELEMENT_I8_BLOCK, KEEL_I8_BLOCK_FLOATS};
    else if (is_top_k(job->gradients, &fraction))
        *out = (struct keel_compression){KEEL_ELEMENT_TOP_K, (uint32_t)lround(KEEL_TOP_K_KEPT / fraction)};
    else
        return false;
    return true;
}

static const char *const vocabularies[] = {"char", "byte"};

enum keel_vocab_kind keel_job_vocab(const struct keel_job *job, const char **out_files)
{
    const bool bpe = strncmp(job->vocabulary, KEEL_JOB_BPE, sizeof KEEL_JOB_BPE - 1) == 0;
    *out_files = bpe ? job->vocabulary + sizeof KEEL_JOB_BPE - 1 : NULL;
    if (bpe)
        return KEEL_VOCAB_BPE;
    return strcmp(job->vocabulary, vocabularies[KEEL_VOCAB_BYTE]) == 0 ? KEEL_VOCAB_BYTE : KEEL_VOCAB_CHAR;
}

enum keel_status keel_job_check_vocabulary(const struct keel_job *job)
{
    const char *files;
    const enum keel_vocab_kind kind = keel_job_vocab(job, &files);
    if (kind == KEEL_VOCAB_BPE ? files[0] != '\0' : strcmp(job->vocabulary, vocabularies[kind]) == 0)
        return KEEL_OK;
    return keel_fail(
        KEEL_INVALID,
        "data.vocab = %.200s: one of char, byte, bpe:tokenizer.json, bpe:vocab.json,merges.txt is "
        "wanted",
        job->vocabulary);
}

static bool names_tokens(const char *path)
{
    static const char suffix[] = ".bin";
    const size_t length = strlen(path), end = sizeof suffix - 1;
    return length > end && strcmp(path + length - end, suffix) == 0;
}

enum keel_status keel_job_check_text_names(const struct keel_job *job)
{
    if (job->format != KEEL_DATA_AUTO || job->val_path[0] == '\0' ||
        names_tokens(job->path) == names_tokens(job->val_path))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "data.path = %.200s and data.val_path = %.200s: by their names (.bin) one is a text and "
                     "one is tokens; give both alike, or say what both are: data.format = text, uint16 or "
                     "uint32",
                     job->path, job->val_path);
}

uint32_t keel_job_token_width(const struct keel_job *job)
{
    switch ((enum keel_data_format)job->format) {
    case KEEL_DATA_UINT16:
        return 2;
    case KEEL_DATA_UINT32:
        return 4;
    case KEEL_DATA_AUTO:
        return names_tokens(job->path) ? 2 : 0;
    case KEEL_DATA_TEXT:
    default:
        return 0;
    }
}

/* Written in one way: it belongs to the identity. */
enum keel_status keel_job_settle_gradients(struct keel_job *job)
{
    double fraction;
    if (strcmp(job->gradients, EXACT) == 0 || strcmp(job->gradients, "int8") == 0)
        return KEEL_OK;
    if (!is_top_k(job->gradients, &fraction))
        return keel_fail(
            KEEL_INVALID,
            "train.gradients = %s: exact, int8, or topk:FRACTION with a fraction from %g to %g, as "
            "topk:0.01",
            job->gradients, TOP_K_LEAST, TOP_K_MOST);
    snprintf(job->gradients, sizeof job->gradients, "topk:%g", fraction);
    return KEEL_OK;
}
