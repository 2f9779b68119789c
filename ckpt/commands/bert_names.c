/* bert_names.c - see bert_names.h. */
#include "bert_names.h"
#include <stdio.h>
#include <string.h>

#define PREFIX "bert."
#define TABLE  PREFIX "embeddings.word_embeddings.weight"
#define BIAS   "cls.predictions.bias"
#define SECOND "of the second task (next sentence), which is not trained here"

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static bool ends(const char *name, const char *with)
{
    const size_t length = strlen(name), end = strlen(with);
    return length >= end && strcmp(name + length - end, with) == 0;
}

/* Names that begin so are no parameters, or are ones that there are already. */
static const struct {
    const char *begin, *left_out, *copy_of;
} others[] = {{PREFIX "pooler.", SECOND, NULL},
              {"cls.seq_relationship.", SECOND, NULL},
              {PREFIX "embeddings.position_ids", "a constant (the numbers of positions)", NULL},
              {"cls.predictions.decoder.weight", NULL, TABLE},
              {"cls.predictions.decoder.bias", NULL, BIAS}};

void keel_bert_name(const char *name, struct keel_bert_name *out)
{
    static const char *const bare[] = {"embeddings.", "encoder.", "pooler."};
    static const char *const old[][2] = {{"LayerNorm.gamma", "weight"}, {"LayerNorm.beta", "bias"}};
    const char *prefix = "";
    *out = (struct keel_bert_name){.left_out = NULL};
    for (size_t i = 0; i < sizeof bare / sizeof bare[0]; i++)
        prefix = begins(name, bare[i]) ? PREFIX : prefix;
    if (prefix[0] == '\0' && !begins(name, PREFIX) && !begins(name, "cls."))
        return;
    if (snprintf(out->text, sizeof out->text, "%s%s", prefix, name) >= (int)sizeof out->text)
        out->text[0] = '\0';
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++)
        if (ends(out->text, old[i][0])) {
            char *last = strrchr(out->text, '.') + 1;
            snprintf(last, sizeof out->text - (size_t)(last - out->text), "%s", old[i][1]);
        }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (begins(out->text, others[i].begin)) {
            out->left_out = others[i].left_out;
            out->copy_of = others[i].copy_of;
        }
}

const char *keel_bert_bare_name(const char *name)
{
    return begins(name, PREFIX) ? name + sizeof PREFIX - 1 : name;
}

bool keel_bert_turns(const char *name, uint32_t dims)
{
    return dims == 2 && !ends(name, "embeddings.weight");
}
