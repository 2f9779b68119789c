/* data_use_test.c - data of a trained model: vocabularies without samples, texts as tokens, and other data to
 * validate with, which no token of theirs may be new to. */
#include "data.h"
#include "harness.h"
#include "token_files.h"
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static char directory[64];
static struct keel_data *data;

static void make_directory(void)
{
    strcpy(directory, "/tmp/keel-use-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void remove_directory(void)
{
    keel_data_close(data);
    data = NULL;
    ck_ok(keel_remove_tree(directory));
}

static void path_of(const char *name, char out[KEEL_PATH_BYTES])
{
    ck_ok(keel_path_join(out, directory, name));
}

static void write_file(const char *name, const void *bytes, size_t count)
{
    char path[KEEL_PATH_BYTES];
    path_of(name, path);
    ck_ok(keel_file_replace(path, bytes, count, 0600));
}

static struct keel_job text_job(const char *text)
{
    struct keel_job job = {.kind = KEEL_MODEL_GPT, .seed = 7, .block = 4, .batch = 2, .val_fraction = 0.25f};
    write_file("text", text, strlen(text));
    path_of("text", job.path);
    return job;
}

/* The tokens of `text`, as letters from 'A' on. */
static const char *encoded(const char *text)
{
    static char letters[64];
    int32_t *tokens;
    size_t count;
    ck_ok(keel_data_encode(data, text, strlen(text), &tokens, &count));
    ck_assert_uint_lt(count, sizeof letters);
    for (size_t i = 0; i < count; i++)
        letters[i] = (char)('A' + tokens[i]);
    letters[count] = '\0';
    keel_free(tokens);
    return letters;
}

static void refused(enum keel_status status, const char *words)
{
    ck_status(status, KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), words) != NULL, "%s", keel_detail());
}

START_TEST(a_vocabulary_of_letters_is_that_of_the_text)
{
    const struct keel_job job = text_job("badcabbage dacc");
    int32_t *tokens = NULL;
    size_t count = 0;
    ck_ok(keel_data_open_to_use(&job, &(struct keel_data_use){.val_path = NULL}, &data));
    ck_assert_uint_eq(keel_data_vocab(data), 7);
    ck_assert_uint_eq(keel_data_val_samples(data), 0);
    ck_assert(keel_data_is_whole(data));
    ck_assert_str_eq(encoded("cab e"), "DBCAF");
    ck_assert_str_eq(encoded(""), "");
    refused(keel_data_encode(data, "bax", 3, &tokens, &count), "byte 2 of the text (120) is none of");
    ck_assert_ptr_null(tokens);
}
END_TEST

START_TEST(bytes_are_known_without_a_text)
{
    struct keel_job job = text_job("x");
    strcpy(job.vocabulary, "byte");
    strcpy(job.path, "/nowhere/at/all");
    ck_ok(keel_data_open_to_use(&job, &(struct keel_data_use){.val_path = NULL}, &data));
    ck_assert_uint_eq(keel_data_vocab(data), 256);
    ck_assert(!keel_data_is_whole(data));
    int32_t *tokens;
    size_t count;
    ck_ok(keel_data_encode(data, "\xff\0A", 3, &tokens, &count));
    ck_assert_uint_eq(count, 3);
    ck_assert(tokens[0] == 255 && tokens[1] == 0 && tokens[2] == 'A');
    keel_free(tokens);
}
END_TEST

START_TEST(another_text_is_validated_with_in_the_tokens_of_the_first)
{
    struct keel_job job = text_job("badcabbage dacc");
    char other[KEEL_PATH_BYTES];
    int32_t ids[2 * 4], targets[2 * 4];
    void *inputs[] = {ids, targets};
    path_of("other", other);
    const struct keel_data_use use = {.val_path = other};
    write_file("other", "abcde", 5);
    ck_ok(keel_data_open_to_use(&job, &use, &data));
    ck_assert_uint_eq(keel_data_val_samples(data), 1);
    ck_ok(keel_data_val_batch(data, 0, 1, inputs));
    const int32_t wanted[] = {1, 2, 3, 4}; /* the blank is 0 */
    ck_assert_mem_eq(ids, wanted, sizeof wanted);
    ck_assert_int_eq(targets[3], 5);
    keel_data_close(data);
    data = NULL;
    write_file("other", "abcdzzz", 7);
    refused(keel_data_open_to_use(&job, &use, &data), "byte 122 at offset 4 is none of the job's vocabulary");
    write_file("other", "abcd", 4);
    refused(keel_data_open_to_use(&job, &use, &data), "4 bytes, at least model.block + 1 = 5 are needed");
    write_file("other", "", 0);
    refused(keel_data_open_to_use(&job, &use, &data), "0 bytes");
    const struct keel_data_use tokens = {.val_path = other, .val_width = 2};
    refused(keel_data_open_to_use(&job, &tokens, &data), "is a token file, and the job's tokens are bytes");
}
END_TEST

static struct keel_job token_job(uint32_t vocab)
{
    struct keel_job job = {
        .kind = KEEL_MODEL_GPT, .seed = 7, .block = 4, .batch = 2, .vocab = vocab, .val_fraction = 0.25f};
    uint16_t tokens[40];
    for (uint16_t i = 0; i < 40; i++)
        tokens[i] = i % 20;
    write_file("tokens.bin", tokens, sizeof tokens);
    path_of("tokens.bin", job.path);
    return job;
}

START_TEST(token_files_may_have_what_the_model_has)
{
    struct keel_job job = token_job(32);
    char other[KEEL_PATH_BYTES];
    path_of("other.bin", other);
    const struct keel_data_use use = {.val_path = other, .val_width = 2};
    const uint16_t known[] = {1, 2, 31, 4, 5, 6}, unknown[] = {1, 2, 3, 4, 32, 6}, few[] = {1, 2};
    write_file("other.bin", known, sizeof known);
    ck_ok(keel_data_open_to_use(&job, &use, &data));
    ck_assert_uint_eq(keel_data_vocab(data), 20); /* of the training text, as in a run */
    ck_assert_uint_eq(keel_data_val_samples(data), 2);
    ck_assert_str_eq(encoded("1, 2\n19"), "BCT");
    keel_data_close(data);
    data = NULL;
    write_file("other.bin", unknown, sizeof unknown);
    refused(keel_data_open_to_use(&job, &use, &data), "token 32");
    write_file("other.bin", few, sizeof few);
    refused(keel_data_open_to_use(&job, &use, &data), "2 tokens, and no file has model.block + 1 = 5");
    const struct keel_data_use text = {.val_path = other};
    refused(keel_data_open_to_use(&job, &text, &data), "is a text, and the job names no tokenizer");
}
END_TEST

START_TEST(numbers_that_are_no_tokens_are_named_by_place)
{
    static const struct {
        const char *text, *words;
    } cases[] = {{"1 2 x", "word 3, at byte 4, is no number of a token: they are below 20"},
                 {"20", "word 1, at byte 0"},
                 {"-1", "word 1, at byte 0"},
                 {"1\n\n4294967297", "word 2, at byte 3"},
                 {"99999999999999999999999", "word 1, at byte 0"},
                 {"3.5", "word 1, at byte 0"},
                 {"1 \xff", "word 2, at byte 2"}};
    int32_t *tokens = NULL;
    size_t count = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refused(keel_token_numbers_parse(cases[i].text, strlen(cases[i].text), 20, &tokens, &count),
                cases[i].words);
    ck_assert_ptr_null(tokens);
    ck_ok(keel_token_numbers_parse(" 0,19\t7 ", 8, 20, &tokens, &count));
    ck_assert_uint_eq(count, 3);
    ck_assert(tokens[0] == 0 && tokens[1] == 19 && tokens[2] == 7);
    keel_free(tokens);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, make_directory, remove_directory);
    tcase_add_test(tc, a_vocabulary_of_letters_is_that_of_the_text);
    tcase_add_test(tc, bytes_are_known_without_a_text);
    tcase_add_test(tc, another_text_is_validated_with_in_the_tokens_of_the_first);
    tcase_add_test(tc, token_files_may_have_what_the_model_has);
    tcase_add_test(tc, numbers_that_are_no_tokens_are_named_by_place);
}

KEEL_TEST_MAIN("data_use", cases, 20)
