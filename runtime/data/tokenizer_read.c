/* tokenizer_read.c - a tokenizer from vocab.json and merges.txt, or from tokenizer.json. */
#include "tokenizer_internal.h"
#include "unicode.h"
#include <jansson.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FILE_BYTES_MAX = 1 << 28, POINTS = 512, NO_BYTE = -1, PLACES_FIRST = 64 };

struct reading {
    struct keel_tokenizer *tokenizer;
    const struct keel_tokenizer_source *source;
    const json_t *vocab;     /* of the file: borrowed */
    int16_t byte_of[POINTS]; /* of the code points that stand for bytes in vocabularies; else NO_BYTE */
    uint32_t merge_count, pair_count; /* merges so far; different ones, each with a place in the table */
};

/* GPT-2's bytes_to_unicode: printable bytes stand for themselves, the others for 256 and on, in order. */
static void number_bytes(struct reading *reading)
{
    int next = KEEL_BYTE_VALUES;
    for (size_t p = 0; p < POINTS; p++)
        reading->byte_of[p] = NO_BYTE;
    for (int b = 0; b < KEEL_BYTE_VALUES; b++) {
        const bool prints = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        reading->byte_of[prints ? b : next++] = (int16_t)b;
    }
}

static enum keel_status refuse(const struct reading *reading, const char *what)
{
    return keel_fail(KEEL_INVALID, "%s: %s; byte-level BPE as GPT-2's is read, write such a tokenizer",
                     reading->source->json_name, what);
}

/* ---- tokens -------------------------------------------------------------------------------------------- */

/* The text of a token, by bytes: `key` as a vocabulary has it, or as it is. */
static enum keel_status take_text(struct reading *reading, uint32_t id, const char *key, bool as_it_is)
{
    struct keel_tokenizer *t = reading->tokenizer;
    const size_t length = strlen(key);
    uint32_t point = 0, used = 0;
    KEEL_TRY(keel_grow(&t->texts, &t->text_capacity, t->text_bytes + length + 1, 1));
    char *out = t->texts + t->text_bytes;
    size_t bytes = 0;
    for (size_t at = 0; at < length && !as_it_is; at += used) {
        used = keel_utf8_read((const uint8_t *)key + at, length - at, &point);
        as_it_is = used == 0 || point >= POINTS || reading->byte_of[point] == NO_BYTE;
        if (!as_it_is)
            out[bytes++] = (char)reading->byte_of[point];
    }
    if (as_it_is) { /* one that no bytes are encoded to */
        memcpy(out, key, length + 1);
        bytes = length;
    }
    t->tokens[id] = (struct keel_token_text){t->text_bytes, (uint32_t)bytes};
    t->text_bytes += bytes;
    if (bytes == 1 && !as_it_is)
        t->byte_token[(uint8_t)out[0]] = id;
    return KEEL_OK;
}

/* An id, or KEEL_NO_TOKEN. */
static uint32_t id_of(const json_t *number)
{
    const json_int_t id = json_is_integer(number) ? json_integer_value(number) : -1;
    return id >= 0 && id < KEEL_TOKENIZER_VOCAB_MAX ? (uint32_t)id : KEEL_NO_TOKEN;
}

static enum keel_status see_id(struct reading *reading, const char *key, const json_t *number)
{
    const uint32_t id = id_of(number);
    if (id == KEEL_NO_TOKEN)
        return keel_fail(KEEL_INVALID, "%s: the id of \"%.80s\" is none of 0 to %d; write it again",
                         reading->source->json_name, key, KEEL_TOKENIZER_VOCAB_MAX - 1);
    if (id >= reading->tokenizer->vocab)
        reading->tokenizer->vocab = id + 1;
    return KEEL_OK;
}

static enum keel_status take_token(struct reading *reading, const char *key, uint32_t id, bool as_it_is)
{
    if (reading->tokenizer->tokens[id].bytes > 0)
        return keel_fail(KEEL_INVALID, "%s: two tokens have id %u, \"%.80s\" is one; write it again",
                         reading->source->json_name, id, key);
    return take_text(reading, id, key, as_it_is);
}

/* A token that stands for itself. Its id may be one of the vocabulary, which has the same text then. */
static enum keel_status take_added(struct reading *reading, const json_t *token)
{
    struct keel_tokenizer *t = reading->tokenizer;
    const char *text = json_string_value(json_object_get(token, "content"));
    const uint32_t id = id_of(json_object_get(token, "id"));
    if (text == NULL || text[0] == '\0' || id == KEEL_NO_TOKEN)
        return refuse(reading, "an entry of added_tokens has no content or no id");
    if (json_is_true(json_object_get(token, "lstrip")) || json_is_true(json_object_get(token, "rstrip")) ||
        json_is_true(json_object_get(token, "single_word")))
        return refuse(reading, "an added token takes what is beside it (lstrip, rstrip, single_word)");
    const json_t *of_vocab = json_object_get(reading->vocab, text);
    if (of_vocab != NULL && id_of(of_vocab) != id)
        return refuse(reading, "an added token has another id than in the vocabulary");
    if (of_vocab != NULL)
        t->tokens[id].bytes = 0;
    KEEL_TRY(take_token(reading, text, id, true));
    KEEL_TRY(keel_grow(&t->added, &t->added_capacity, t->added_count + 1, sizeof *t->added));
    t->added[t->added_count++] = (struct keel_added){id, json_is_true(json_object_get(token, "normalized"))};
    t->begins_added[(uint8_t)text[0]] = true;
    if (strlen(text) > t->longest_added)
        t->longest_added = strlen(text);
    return KEEL_OK;
}

static enum keel_status take_tokens(struct reading *reading, const json_t *added)
{
    struct keel_tokenizer *t = reading->tokenizer;
    const char *key;
    json_t *number;
    size_t i;
    json_t *vocab = (json_t *)reading->vocab; /* json_object_foreach reads alone */
    json_object_foreach(vocab, key, number) KEEL_TRY(see_id(reading, key, number));
    json_array_foreach(added, i, number)
        KEEL_TRY(see_id(reading, "an added token", json_object_get(number, "id")));
    KEEL_TRY(keel_alloc(t->vocab, sizeof *t->tokens, &t->tokens));
    memset(t->byte_token, 0xff, sizeof t->byte_token);
    json_object_foreach(vocab, key, number) KEEL_TRY(take_token(reading, key, id_of(number), false));
    json_array_foreach(added, i, number) KEEL_TRY(take_added(reading, number));
    for (uint32_t b = 0; b < KEEL_BYTE_VALUES; b++)
        if (t->byte_token[b] == KEEL_NO_TOKEN)
            return keel_fail(
                KEEL_INVALID,
                "%s: has no token for byte 0x%02x, so not every text can be encoded; train it with "
                "the whole alphabet of bytes",
                reading->source->json_name, b);
    return KEEL_OK;
}

/* ---- merges -------------------------------------------------------------------------------------------- */

struct keel_merge *keel_merge_find(const struct keel_tokenizer *tokenizer, uint32_t left, uint32_t right)
{
    const uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t place = (uint32_t)((pair * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & tokenizer->merge_mask;
    for (;;) {
        struct keel_merge *merge = &tokenizer->merges[place];
        if (merge->left == KEEL_NO_TOKEN || (merge->left == left && merge->right == right))
            return merge;
        place = (place + 1) & tokenizer->merge_mask;
    }
}

/* For one more pair: at most half of the places are taken. The table grows with pairs that the vocabulary has
 * proved, since a list may be of any length and hold none. */
static enum keel_status make_room(struct reading *reading)
{
    struct keel_tokenizer *t = reading->tokenizer;
    struct keel_merge *before = t->merges;
    const uint32_t had = before == NULL ? 0 : t->merge_mask + 1;
    const uint32_t places = before == NULL ? PLACES_FIRST : 2 * had;
    if (reading->pair_count < had / 2)
        return KEEL_OK;
    t->merges = NULL;
    enum keel_status status = keel_alloc(places, sizeof *t->merges, &t->merges);
    if (status == KEEL_OK) {
        memset(t->merges, 0xff, places * sizeof *t->merges);
        t->merge_mask = places - 1;
        for (uint32_t i = 0; i < had; i++)
            if (before[i].left != KEEL_NO_TOKEN)
                *keel_merge_find(t, before[i].left, before[i].right) = before[i];
    }
    keel_free(before);
    return status;
}

static enum keel_status refuse_merge(const struct reading *reading, const char *what)
{
    const struct keel_tokenizer_source *source = reading->source;
    return keel_fail(KEEL_INVALID, "%s: merge number %u (from 0) %s; write it again",
                     source->merges != NULL ? source->merges_name : source->json_name, reading->merge_count,
                     what);
}

/* The next merge: of two tokens of the vocabulary to their texts in a row. A pair that comes twice counts
 * where it comes last. */
static enum keel_status take_merge(struct reading *reading, const char *left, size_t left_bytes,
                                   const char *right, size_t right_bytes)
{
    enum { KEY_BYTES = 4096 };
    char joined[KEY_BYTES], key[KEY_BYTES];
    if (left_bytes == 0 || right_bytes == 0 || left_bytes + right_bytes >= KEY_BYTES)
        return refuse_merge(reading, "is not of two tokens with a blank between");
    memcpy(joined, left, left_bytes);
    memcpy(joined + left_bytes, right, right_bytes);
    joined[left_bytes + right_bytes] = '\0';
    memcpy(key, right, right_bytes);
    key[right_bytes] = '\0';
    const uint32_t whole = id_of(json_object_get(reading->vocab, joined));
    const uint32_t second = id_of(json_object_get(reading->vocab, key));
    joined[left_bytes] = '\0';
    const uint32_t first = id_of(json_object_get(reading->vocab, joined));
    if (whole == KEEL_NO_TOKEN || second == KEEL_NO_TOKEN || first == KEEL_NO_TOKEN)
        return refuse_merge(reading,
                            "is of or to a token that the vocabulary has not: the files are not of one "
                            "tokenizer, or one was cut");
    KEEL_TRY(make_room(reading));
    struct keel_merge *merge = keel_merge_find(reading->tokenizer, first, second);
    reading->pair_count += merge->left == KEEL_NO_TOKEN;
    *merge = (struct keel_merge){first, second, reading->merge_count++, whole};
    return KEEL_OK;
}

static enum keel_status take_merge_text(struct reading *reading, const char *text, size_t bytes)
{
    const char *blank = memchr(text, ' ', bytes);
    const size_t left = blank == NULL ? 0 : (size_t)(blank - text);
    if (blank == NULL || memchr(blank + 1, ' ', bytes - left - 1) != NULL ||
        memchr(text, '\0', bytes) != NULL)
        return refuse_merge(reading, "is not of two tokens with a blank between");
    return take_merge(reading, text, left, blank + 1, bytes - left - 1);
}

/* merges.txt: a merge a line, behind "#version: 0.2". */
static enum keel_status take_merge_lines(struct reading *reading)
{
    const char *at = reading->source->merges, *end = at + reading->source->merges_bytes;
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (line_end == NULL)
            line_end = end;
        size_t bytes = (size_t)(line_end - at);
        bytes -= bytes > 0 && at[bytes - 1] == '\r';
        if (bytes < 8 || memcmp(at, "#version", 8) != 0)
            KEEL_TRY(take_merge_text(reading, at, bytes));
        at = line_end < end ? line_end + 1 : end;
    }
    return KEEL_OK;
}

/* In tokenizer.json each is "left right", or a list of both. */
static enum keel_status take_merge_list(struct reading *reading, const json_t *merges)
{
    const json_t *merge;
    size_t i;
    if (!json_is_array(merges))
        return refuse(reading, "its model has no list of merges");
    json_array_foreach(merges, i, merge)
    {
        const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
        if (json_is_string(merge))
            KEEL_TRY(take_merge_text(reading, json_string_value(merge), json_string_length(merge)));
        else if (json_is_string(left) && json_is_string(right) && json_array_size(merge) == 2)
            KEEL_TRY(take_merge(reading, json_string_value(left), json_string_length(left),
                                json_string_value(right), json_string_length(right)));
        else
            return refuse_merge(reading, "is not of two tokens");
    }
    return KEEL_OK;
}

/* ---- tokenizer.json ------------------------------------------------------------------------------------ */

static bool is_empty(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static bool is_type(const json_t *object, const char *type)
{
    const char *there = json_string_value(json_object_get(object, "type"));
    return there != NULL && strcmp(there, type) == 0;
}

/* What it is besides GPT-2's, by name. */
static enum keel_status check_kind(const struct reading *reading, const json_t *root)
{
    static const char *const options[] = {
        "dropout",       "unk_token",    "continuing_subword_prefix", "end_of_word_suffix",
        "byte_fallback", "ignore_merges"};
    const json_t *model = json_object_get(root, "model"), *cut = json_object_get(root, "pre_tokenizer");
    if (json_object_get(model, "type") != NULL && !is_type(model, "BPE")) /* files of 2020 say no type */
        return refuse(reading, "its model is not of type BPE");
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (!is_empty(json_object_get(model, options[i])))
            return keel_fail(KEEL_INVALID, "%s: its model sets %s; byte-level BPE as GPT-2's is read",
                             reading->source->json_name, options[i]);
    if (!is_empty(json_object_get(root, "normalizer")))
        return refuse(reading, "it has a normalizer, which changes texts");
    if (!is_type(cut, "ByteLevel") || json_is_true(json_object_get(cut, "add_prefix_space")) ||
        json_is_false(json_object_get(cut, "use_regex")))
        return refuse(reading,
                      "its pre_tokenizer is not ByteLevel with GPT-2's expression and without a blank "
                      "in front");
    return KEEL_OK;
}

static enum keel_status take_json(struct reading *reading, const json_t *root)
{
    const bool whole = reading->source->merges == NULL;
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    if (whole)
        KEEL_TRY(check_kind(reading, root));
    if (whole && added != NULL && !json_is_array(added))
        return refuse(reading, "its added_tokens are no list");
    reading->vocab = whole ? json_object_get(model, "vocab") : root;
    if (!json_is_object(reading->vocab) || json_object_size(reading->vocab) == 0)
        return refuse(reading, "it has no vocabulary");
    KEEL_TRY(take_tokens(reading, whole ? added : NULL));
    KEEL_TRY(make_room(reading)); /* also of a list without a merge */
    return whole ? take_merge_list(reading, json_object_get(model, "merges")) : take_merge_lines(reading);
}

enum keel_status keel_tokenizer_parse(const struct keel_tokenizer_source *source, struct keel_tokenizer **out)
{
    json_error_t error;
    struct reading reading = {.source = source};
    json_t *root = json_loadb(source->json, source->json_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return keel_fail(KEEL_CORRUPT, "%s:%d: is no JSON: %s; write it again", source->json_name, error.line,
                         error.text);
    number_bytes(&reading);
    enum keel_status status = keel_alloc(1, sizeof *reading.tokenizer, &reading.tokenizer);
    if (status == KEEL_OK)
        status = take_json(&reading, root);
    json_decref(root);
    if (status != KEEL_OK) {
        keel_tokenizer_close(reading.tokenizer);
        return status;
    }
    const uint64_t parts[] = {XXH3_64bits(source->json, source->json_bytes),
                              source->merges != NULL ? XXH3_64bits(source->merges, source->merges_bytes) : 0};
    reading.tokenizer->digest = XXH3_64bits(parts, sizeof parts);
    *out = reading.tokenizer;
    return KEEL_OK;
}

enum keel_status keel_tokenizer_open(const char *files, struct keel_tokenizer **out)
{
    char name[KEEL_PATH_BYTES], *json = NULL, *merges = NULL;
    const char *comma = strchr(files, ',');
    const size_t length = comma != NULL ? (size_t)(comma - files) : strlen(files);
    struct keel_tokenizer_source source = {.json_name = name};
    if (length == 0 || length >= sizeof name || (comma != NULL && comma[1] == '\0'))
        return keel_fail(KEEL_INVALID,
                         "data.vocab = bpe:%.200s: give tokenizer.json, or vocab.json,merges.txt", files);
    memcpy(name, files, length);
    name[length] = '\0';
    enum keel_status status = keel_file_read(name, FILE_BYTES_MAX, &json, &source.json_bytes);
    if (status == KEEL_OK && comma != NULL) {
        source.merges_name = comma + 1;
        status = keel_file_read(comma + 1, FILE_BYTES_MAX, &merges, &source.merges_bytes);
    }
    source.json = json;
    source.merges = merges;
    if (status == KEEL_OK)
        status = keel_tokenizer_parse(&source, out);
    keel_free(json);
    keel_free(merges);
    return status;
}

void keel_tokenizer_close(struct keel_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    keel_free(tokenizer->tokens);
    keel_free(tokenizer->texts);
    keel_free(tokenizer->merges);
    keel_free(tokenizer->added);
    keel_free(tokenizer);
}
