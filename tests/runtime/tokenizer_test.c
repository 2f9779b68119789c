/* tokenizer_test.c - byte-level BPE: ids as Hugging Face's tokenizers 0.23 has them (tests/golden/bpe:
 * tokenizer, text and ids of our own making, with that library), however the text comes in parts; what stands
 * for what; tokenizers that are refused. */
#include "harness.h"
#include "tokenizer.h"
#include "unicode.h"
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

#define GOLDEN "tests/golden/bpe/"
enum { IDS_MAX = 4096 };

static struct keel_tokenizer *tokenizer;
static struct keel_encoder *encoder;
static char *text;
static size_t text_bytes;

static void tear_down(void)
{
    keel_encoder_destroy(encoder);
    keel_tokenizer_close(tokenizer);
    keel_free(text);
    encoder = NULL;
    tokenizer = NULL;
    text = NULL;
}

static void open_golden(const char *files)
{
    ck_ok(keel_tokenizer_open(files, &tokenizer));
    ck_ok(keel_encoder_create(tokenizer, &encoder));
    ck_ok(keel_file_read(GOLDEN "text.txt", 1 << 20, &text, &text_bytes));
}

/* Encode in parts of `part` bytes. */
static uint32_t encode(const char *from, size_t bytes, size_t part, uint32_t *out)
{
    uint32_t count = 0;
    size_t at = 0, there = 0;
    while (at < bytes) {
        const uint32_t *ids;
        size_t used, got;
        there = bytes - there < part ? bytes : there + part;
        ck_ok(keel_encoder_run(encoder, from + at, there - at, there == bytes, &used, &ids, &got));
        ck_assert_uint_le(count + got, IDS_MAX);
        for (size_t i = 0; i < got; i++)
            out[count++] = ids[i];
        at += used;
    }
    return count;
}

static uint32_t read_ids(const char *path, uint32_t *out)
{
    FILE *file = fopen(path, "r");
    uint32_t count = 0;
    ck_assert_ptr_nonnull(file);
    while (count < IDS_MAX && fscanf(file, "%u", &out[count]) == 1)
        count++;
    fclose(file);
    return count;
}

static void has_ids_of(const char *path)
{
    static uint32_t wanted[IDS_MAX], ids[IDS_MAX];
    const uint32_t count = read_ids(path, wanted);
    ck_assert_uint_gt(count, 500);
    for (size_t part = 1; part < 2000; part = part * 3 / 2 + 1) {
        ck_assert_uint_eq(encode(text, text_bytes, part, ids), count);
        ck_assert_mem_eq(ids, wanted, count * sizeof *ids);
    }
}

START_TEST(ids_are_those_of_tokenizer_json)
{
    open_golden(GOLDEN "tokenizer.json");
    has_ids_of(GOLDEN "ids-tokenizer.txt");
}
END_TEST

START_TEST(ids_are_those_of_vocab_and_merges_which_know_no_added_token)
{
    open_golden(GOLDEN "vocab.json," GOLDEN "merges.txt");
    has_ids_of(GOLDEN "ids-vocab-merges.txt");
}
END_TEST

/* As tokenizers 0.23.3 has it: tokens with "normalized" are found in what those without have left of a text,
 * though they begin further to the left and are longer. A model of 2020 says no type. */
START_TEST(added_tokens_that_are_normalized_come_second)
{
    static const char added[] =
        "\"added_tokens\": [{\"id\": 421, \"content\": \"qz\", \"normalized\": false},"
        "{\"id\": 420, \"content\": \"aqz\", \"normalized\": true},"
        "{\"id\": 422, \"content\": \"zza\", \"normalized\": true}], \"others\": [";
    static const char from[] = "\"added_tokens\": [", typed[] = "\"type\": \"BPE\",";
    static const uint32_t wanted[] = {65, 421, 221, 421, 268, 81, 268, 421, 422, 421};
    const char *phrase = "aqz qz aq aqzzzaqz";
    uint32_t ids[32];
    char *json, *changed;
    size_t bytes;
    ck_ok(keel_file_read(GOLDEN "tokenizer.json", 1 << 20, &json, &bytes));
    ck_ok(keel_alloc(bytes + sizeof added, 1, &changed));
    char *type = strstr(json, typed), *at = strstr(json, from);
    ck_assert(type != NULL && at != NULL);
    memset(type, ' ', strlen(typed));
    snprintf(changed, bytes + sizeof added, "%.*s%s%s", (int)(at - json), json, added, at + strlen(from));
    const struct keel_tokenizer_source source = {
        .json = changed, .json_name = "tokenizer", .json_bytes = strlen(changed)};
    ck_ok(keel_tokenizer_parse(&source, &tokenizer));
    ck_ok(keel_encoder_create(tokenizer, &encoder));
    for (size_t part = 1; part < 20; part++) {
        ck_assert_uint_eq(encode(phrase, strlen(phrase), part, ids), sizeof wanted / sizeof wanted[0]);
        ck_assert_mem_eq(ids, wanted, sizeof wanted);
    }
    keel_free(json);
    keel_free(changed);
}
END_TEST

START_TEST(what_ids_stand_for_is_the_text)
{
    static uint32_t ids[IDS_MAX];
    open_golden(GOLDEN "tokenizer.json");
    ck_assert_uint_eq(keel_tokenizer_vocab(tokenizer), 420);
    const uint32_t count = encode(text, text_bytes, SIZE_MAX, ids);
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes;
        const char *of_id = keel_tokenizer_text(tokenizer, ids[i], &bytes);
        ck_assert_uint_gt(bytes, 0);
        ck_assert_uint_le(at + bytes, text_bytes);
        ck_assert_mem_eq(text + at, of_id, bytes);
        at += bytes;
    }
    ck_assert_uint_eq(at, text_bytes);
    size_t bytes;
    keel_tokenizer_text(tokenizer, 420, &bytes);
    ck_assert_uint_eq(bytes, 0);
    ck_assert_int_eq(keel_tokenizer_text(tokenizer, keel_tokenizer_byte(tokenizer, '\n'), &bytes)[0], '\n');
}
END_TEST

START_TEST(a_word_of_a_million_letters_is_encoded_in_no_quadratic_time)
{
    enum { LETTERS = 1 << 20 };
    open_golden(GOLDEN "tokenizer.json");
    char *word;
    const uint32_t *ids;
    size_t used, count, letters = 0;
    ck_ok(keel_alloc(LETTERS, 1, &word));
    for (size_t i = 0; i < LETTERS; i++)
        word[i] = "the earth"[i % 4 == 3 ? 4 : i % 3];
    ck_ok(keel_encoder_run(encoder, word, LETTERS, true, &used, &ids, &count));
    ck_assert_uint_eq(used, LETTERS);
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        keel_tokenizer_text(tokenizer, ids[i], &bytes);
        letters += bytes;
    }
    ck_assert_uint_eq(letters, LETTERS);
    keel_free(word);
}
END_TEST

START_TEST(bytes_that_are_no_text_are_told_where_they_are)
{
    static const char *const bad[] = {"ab \xff z", "ab \xc0\x80", "ab \xed\xa0\x80", "ab \xf5\x80\x80\x80",
                                      "ab \xe2\x82"};
    open_golden(GOLDEN "tokenizer.json");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const uint32_t *ids;
        size_t used, count;
        ck_assert_int_eq(keel_encoder_run(encoder, bad[i], strlen(bad[i]), true, &used, &ids, &count),
                         KEEL_INVALID);
        ck_assert_uint_eq(used, 3);
    }
}
END_TEST

/* Counted by the library's own pre-tokenizer, over all code points. */
START_TEST(classes_are_those_of_unicode_16)
{
    uint32_t counts[4] = {0};
    for (uint32_t point = 0; point < 0x110000; point++)
        if (point < 0xd800 || point >= 0xe000)
            counts[keel_unicode_class_of(point)]++;
    ck_assert_uint_eq(counts[KEEL_UNICODE_LETTER], 141028);
    ck_assert_uint_eq(counts[KEEL_UNICODE_NUMBER], 1911);
    ck_assert_uint_eq(counts[KEEL_UNICODE_SPACE], 25);
}
END_TEST

/* ---- what is refused ----------------------------------------------------------------------------------- */

static const struct {
    const char *from, *to, *words;
} changes[] = {
    {"\"BPE\"", "\"Unigram\"", "its model is not of type BPE"},
    {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "it has a normalizer"},
    {"\"dropout\": null", "\"dropout\": 0.1", "its model sets dropout"},
    {"\"byte_fallback\": false", "\"byte_fallback\": true", "its model sets byte_fallback"},
    {"\"unk_token\": null", "\"unk_token\": \"?\"", "its model sets unk_token"},
    {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "without a blank in front"},
    {"\"use_regex\": true", "\"use_regex\": false", "with GPT-2's expression"},
    {"\"lstrip\": false", "\"lstrip\": true", "takes what is beside it"},
    {"\"vocab\": {", "\"vocab\": [], \"other\": {", "it has no vocabulary"},
    {"\"added_tokens\": [", "\"added_tokens\": null, \"others\": [", "its added_tokens are no list"},
    {"\"content\": \"<|endoftext|>\"", "\"content\": \"\"", "no content or no id"},
    {"\"id\": 0", "\"id\": 7", "an added token has another id"},
    {"\"id\": 0", "\"id\": -1", "is none of 0 to 1048575"},
    {"\"!\": 1", "\"!\": 2", "two tokens have id 2"},
    {"\"!\": 1", "\"(!\": 1", "has no token for byte 0x21"},
    {"\"!\": 1", "\"!\": 9999999", "the id of \"!\" is none of"},
    {"\"merges\": [", "\"merges\": [ \"zq q\", ",
     "merge number 0 (from 0) is of or to a token that the vocabulary has not"},
    {"\"merges\": [", "\"merges\": [ \"t h e\", ", "merge number 0 (from 0) is not of two tokens"},
    {"\"merges\": [", "\"merges\": [ 5, ", "merge number 0 (from 0) is not of two tokens"},
    {"\"merges\": [", "\"merges\": 5, \"others\": [", "no list of merges"},
    {"\"version\"", "version", "tokenizer:2: is no JSON"},
};

START_TEST(tokenizers_of_another_kind_are_refused_by_name)
{
    char *json, *changed;
    size_t bytes;
    ck_ok(keel_file_read(GOLDEN "tokenizer.json", 1 << 20, &json, &bytes));
    ck_ok(keel_alloc(bytes + 256, 1, &changed));
    const char *at = strstr(json, changes[_i].from);
    ck_assert_msg(at != NULL, "%s", changes[_i].from);
    snprintf(changed, bytes + 256, "%.*s%s%s", (int)(at - json), json, changes[_i].to,
             at + strlen(changes[_i].from));
    const struct keel_tokenizer_source source = {
        .json = changed, .json_name = "tokenizer", .json_bytes = strlen(changed)};
    ck_status(keel_tokenizer_parse(&source, &tokenizer),
              strstr(changes[_i].words, "is no JSON") != NULL ? KEEL_CORRUPT : KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), changes[_i].words) != NULL, "%s", keel_detail());
    ck_assert_msg(strstr(keel_detail(), "tokenizer") == keel_detail(), "%s", keel_detail());
    keel_free(json);
    keel_free(changed);
}
END_TEST

START_TEST(files_that_are_cut_or_missing_are_refused)
{
    char *json, *merges;
    size_t json_bytes, merges_bytes;
    ck_ok(keel_file_read(GOLDEN "vocab.json", 1 << 20, &json, &json_bytes));
    ck_ok(keel_file_read(GOLDEN "merges.txt", 1 << 20, &merges, &merges_bytes));
    struct keel_tokenizer_source source = {.json = json,
                                           .json_name = "vocab",
                                           .json_bytes = json_bytes,
                                           .merges = merges,
                                           .merges_name = "merges",
                                           .merges_bytes = merges_bytes - 2};
    ck_status(keel_tokenizer_parse(&source, &tokenizer), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), "merges: merge number ") == keel_detail(), "%s", keel_detail());
    source.merges_bytes = merges_bytes;
    source.json_bytes = json_bytes - 10;
    ck_status(keel_tokenizer_parse(&source, &tokenizer), KEEL_CORRUPT);
    ck_status(keel_tokenizer_open(GOLDEN "vocab.json", &tokenizer),
              KEEL_INVALID); /* alone it is no tokenizer */
    ck_status(keel_tokenizer_open(GOLDEN "none.json", &tokenizer), KEEL_NOT_FOUND);
    ck_status(keel_tokenizer_open(GOLDEN "vocab.json,", &tokenizer), KEEL_INVALID);
    ck_status(keel_tokenizer_open("", &tokenizer), KEEL_INVALID);
    keel_free(json);
    keel_free(merges);
}
END_TEST

/* vocab.json with `repeats` times `unit` for merges.txt: the most host memory that reading it takes. */
static enum keel_status parse_repeated(const char *unit, size_t unit_bytes, size_t repeats,
                                       uint64_t *out_bytes)
{
    struct keel_tokenizer_source source = {.json_name = "vocab", .merges_name = "merges"};
    char *json, *merges;
    ck_ok(keel_file_read(GOLDEN "vocab.json", 1 << 20, &json, &source.json_bytes));
    ck_ok(keel_alloc(repeats, unit_bytes, &merges));
    for (size_t i = 0; i < repeats; i++)
        memcpy(merges + i * unit_bytes, unit, unit_bytes);
    source.json = json;
    source.merges = merges;
    source.merges_bytes = repeats * unit_bytes;
    const struct keel_memory_stats before = keel_memory_stats();
    const enum keel_status status = keel_tokenizer_parse(&source, &tokenizer);
    const uint64_t peak = keel_memory_stats().peak_bytes;
    *out_bytes = peak > before.peak_bytes ? peak - before.live_bytes : 0;
    keel_free(json);
    keel_free(merges);
    return status;
}

START_TEST(memory_for_merges_goes_by_pairs_of_the_vocabulary_and_not_by_lines)
{
    enum { LINES = 1 << 20, BOUND_BYTES = 1 << 20, REPEATS = 1000 };
    char *merges;
    size_t merges_bytes;
    uint64_t bytes;
    ck_status(parse_repeated("\n", 1, LINES, &bytes), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), "merges: merge number 0 (from 0)") == keel_detail(), "%s",
                  keel_detail());
    ck_assert_uint_lt(bytes, BOUND_BYTES);
    ck_ok(keel_file_read(GOLDEN "merges.txt", 1 << 20, &merges, &merges_bytes));
    ck_ok(parse_repeated(merges, merges_bytes, REPEATS, &bytes)); /* the same pairs again: as they were */
    ck_assert_uint_lt(bytes, BOUND_BYTES);
    keel_free(merges);
    ck_ok(keel_encoder_create(tokenizer, &encoder));
    ck_ok(keel_file_read(GOLDEN "text.txt", 1 << 20, &text, &text_bytes));
    has_ids_of(GOLDEN "ids-vocab-merges.txt");
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, NULL, tear_down);
    tcase_add_test(tc, ids_are_those_of_tokenizer_json);
    tcase_add_test(tc, ids_are_those_of_vocab_and_merges_which_know_no_added_token);
    tcase_add_test(tc, added_tokens_that_are_normalized_come_second);
    tcase_add_test(tc, what_ids_stand_for_is_the_text);
    tcase_add_test(tc, a_word_of_a_million_letters_is_encoded_in_no_quadratic_time);
    tcase_add_test(tc, bytes_that_are_no_text_are_told_where_they_are);
    tcase_add_test(tc, classes_are_those_of_unicode_16);
    tcase_add_loop_test(tc, tokenizers_of_another_kind_are_refused_by_name, 0,
                        sizeof changes / sizeof changes[0]);
    tcase_add_test(tc, files_that_are_cut_or_missing_are_refused);
    tcase_add_test(tc, memory_for_merges_goes_by_pairs_of_the_vocabulary_and_not_by_lines);
}

KEEL_TEST_MAIN("tokenizer", cases, 60)
