/* token_files_test.c - token files of nanoGPT and llm.c: the same samples as of the text that they were made
 * from, several files, what is refused and when, files that change, and files that are too large to be read
 * whole. */
#include "data.h"
#include "harness.h"
#include "token_files.h"
#include <fcntl.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 8, BATCH = 2, LETTERS = 400, TOKENS = 12 };
static char directory[64];
static struct keel_data *data;
static struct keel_job job;

static void set_up(void)
{
    strcpy(directory, "/tmp/keel-tokens-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    job = (struct keel_job){.seed = 7, .block = BLOCK, .batch = BATCH, .val_fraction = 0.25f};
}

static void tear_down(void)
{
    keel_data_close(data);
    data = NULL;
    ck_ok(keel_remove_tree(directory));
}

/* ---- a writer of our own ------------------------------------------------------------------------------- */

static void in_directory(char path[KEEL_PATH_BYTES], const char *name)
{
    ck_ok(keel_path_join(path, directory, name));
}

static uint8_t *put(uint8_t *at, uint32_t number, uint32_t width)
{
    for (uint32_t b = 0; b < width; b++)
        *at++ = (uint8_t)(number >> (8 * b));
    return at;
}

/* llm.c's header where there is a magic; `told`: how many tokens it tells of. */
static void write_tokens(const char *name, const uint32_t *tokens, uint32_t count, uint32_t width,
                         uint32_t magic, uint32_t version, uint32_t told)
{
    static uint8_t bytes[KEEL_TOKEN_HEAD_BYTES + 4 * LETTERS];
    char path[KEEL_PATH_BYTES];
    uint8_t *at = bytes;
    memset(bytes, 0, sizeof bytes);
    if (magic != 0) {
        put(put(put(at, magic, 4), version, 4), told, 4);
        at += KEEL_TOKEN_HEAD_BYTES;
    }
    for (uint32_t t = 0; t < count; t++)
        at = put(at, tokens[t], width);
    in_directory(path, name);
    ck_ok(keel_file_replace(path, bytes, (uint64_t)(at - bytes), 0600));
}

static void write_raw(const char *name, const uint32_t *tokens, uint32_t count)
{
    write_tokens(name, tokens, count, 2, 0, 0, 0);
}

/* A text of 12 letters, and the tokens that its letters are. */
static void make_text(char letters[LETTERS], uint32_t tokens[LETTERS])
{
    for (uint32_t i = 0; i < LETTERS; i++) {
        tokens[i] = (i * i + i / 7) % TOKENS;
        letters[i] = (char)('a' + tokens[i]);
    }
    letters[5] = 'a'; /* all of them occur */
    tokens[5] = 0;
    for (uint32_t i = 0; i < TOKENS; i++) {
        letters[20 + i] = (char)('a' + i);
        tokens[20 + i] = i;
    }
}

static void open_as(const char *name, enum keel_data_format format)
{
    keel_data_close(data);
    data = NULL;
    in_directory(job.path, name);
    job.format = format;
    ck_ok(keel_data_open(&job, &data));
}

static void refused_with(const char *name, enum keel_status status, const char *words)
{
    struct keel_data *none;
    in_directory(job.path, name);
    ck_status(keel_data_open(&job, &none), status);
    ck_assert_msg(strstr(keel_detail(), words) != NULL, "%s", keel_detail());
}

struct batch {
    int32_t ids[BATCH * BLOCK], targets[BATCH * BLOCK];
};

static void read_batch(uint64_t step, struct batch *out)
{
    void *inputs[] = {out->ids, out->targets};
    ck_ok(keel_data_train_batch(data, step, 0, 1, inputs));
}

/* ---- samples ------------------------------------------------------------------------------------------- */

START_TEST(samples_are_those_of_the_text_in_every_format)
{
    enum { STEPS = 150, FORMATS = 4 };
    static struct batch of_text[STEPS], of_tokens;
    static const struct {
        const char *name;
        uint32_t width, magic, version;
        enum keel_data_format format;
    } formats[FORMATS] = {{"a.bin", 2, 0, 0, KEEL_DATA_AUTO},
                          {"b.u32", 4, 0, 0, KEEL_DATA_UINT32},
                          {"c.bin", 2, 20240520, 1, KEEL_DATA_AUTO},
                          {"d.bin", 4, 20240801, 7, KEEL_DATA_AUTO}};
    char letters[LETTERS], path[KEEL_PATH_BYTES];
    uint32_t tokens[LETTERS];
    make_text(letters, tokens);
    in_directory(path, "text");
    ck_ok(keel_file_replace(path, letters, sizeof letters, 0600));
    open_as("text", KEEL_DATA_AUTO);
    for (uint64_t step = 0; step < STEPS; step++)
        read_batch(step, &of_text[step]);
    const uint64_t train = keel_data_train_samples(data), val = keel_data_val_samples(data);
    for (int f = 0; f < FORMATS; f++) {
        write_tokens(formats[f].name, tokens, LETTERS, formats[f].width, formats[f].magic, formats[f].version,
                     LETTERS);
        open_as(formats[f].name, formats[f].format);
        ck_assert_uint_eq(keel_data_vocab(data), TOKENS);
        ck_assert_uint_eq(keel_data_train_samples(data), train);
        ck_assert_uint_eq(keel_data_val_samples(data), val);
        for (uint64_t step = 0; step < STEPS; step++) {
            read_batch(step, &of_tokens);
            ck_assert_mem_eq(&of_tokens, &of_text[step], sizeof of_tokens);
        }
    }
}
END_TEST

START_TEST(several_files_are_one_row_whose_windows_reach_from_none_into_the_next)
{
    uint32_t tokens[LETTERS], seen[LETTERS] = {0};
    for (uint32_t i = 0; i < LETTERS; i++)
        tokens[i] = i;
    write_raw("part_2.bin", tokens + 100, 50); /* in byte order of the names: 1, 2, 3 */
    write_raw("part_3.bin", tokens + 150, 5);  /* no window */
    write_raw("part_1.bin", tokens, 100);
    write_raw("other.bin", tokens + 300, 20);
    job.val_fraction = 0;
    open_as("part_*.bin", KEEL_DATA_AUTO);
    ck_assert_uint_eq(keel_data_train_samples(data), 100 - BLOCK + 50 - BLOCK);
    ck_assert_uint_eq(keel_data_val_samples(data), 0);
    for (uint64_t step = 0; step < keel_data_train_samples(data) / BATCH; step++) {
        struct batch batch;
        read_batch(step, &batch);
        for (int row = 0; row < BATCH; row++) {
            const int32_t first = batch.ids[row * BLOCK], last = batch.targets[(row + 1) * BLOCK - 1];
            ck_assert_int_eq(last, first + BLOCK);
            ck_assert(last < 100 || (first >= 100 && last < 150));
            ck_assert_uint_eq(seen[first]++, 0); /* once a pass */
        }
    }
}
END_TEST

START_TEST(the_share_kept_for_validation_may_begin_within_a_file)
{
    uint32_t tokens[LETTERS];
    for (uint32_t i = 0; i < LETTERS; i++)
        tokens[i] = i;
    write_raw("1.bin", tokens, 100);
    write_raw("2.bin", tokens + 100, 100);
    write_raw("3.bin", tokens + 200, 40);
    open_as("[123].bin", KEEL_DATA_AUTO); /* 60 of 240 are kept: 20 of the second file, and the third */
    ck_assert_uint_eq(keel_data_train_samples(data), 100 - BLOCK + 80 - BLOCK);
    ck_assert_uint_eq(keel_data_val_samples(data), 20 - BLOCK + 40 - BLOCK);
    struct batch batch;
    void *inputs[] = {batch.ids, batch.targets};
    for (uint32_t i = 0; i < 22; i++) {
        ck_ok(keel_data_val_batch(data, i, 22, inputs));
        ck_assert_int_ge(batch.ids[0], 180);
    }
    for (uint64_t step = 0; step < 200; step++) {
        read_batch(step, &batch);
        ck_assert_int_lt(batch.targets[BLOCK - 1], 180);
    }
}
END_TEST

START_TEST(a_file_of_its_own_is_validated_with_and_not_trained_on)
{
    uint32_t tokens[LETTERS];
    for (uint32_t i = 0; i < LETTERS; i++)
        tokens[i] = i;
    write_raw("train.bin", tokens, 100);
    write_raw("val.bin", tokens + 100, 60);
    in_directory(job.val_path, "val.bin");
    open_as("train.bin", KEEL_DATA_AUTO);
    ck_assert_uint_eq(keel_data_train_samples(data), 100 - BLOCK);
    ck_assert_uint_eq(keel_data_val_samples(data), 60 - BLOCK);
    ck_assert_uint_eq(keel_data_vocab(data), 160);
    struct batch batch;
    void *inputs[] = {batch.ids, batch.targets};
    ck_ok(keel_data_val_batch(data, 0, 1, inputs));
    ck_assert_int_eq(batch.ids[0], 100);
    const uint64_t digest = keel_data_digest(data);
    write_raw("val.bin", tokens + 101, 60);
    open_as("train.bin", KEEL_DATA_AUTO);
    ck_assert_uint_ne(keel_data_digest(data), digest);
}
END_TEST

START_TEST(a_text_may_have_one_of_its_own_too)
{
    char path[KEEL_PATH_BYTES];
    in_directory(path, "text");
    ck_ok(keel_file_replace(path, "the quick brown fox", 19, 0600));
    in_directory(job.val_path, "val");
    ck_ok(keel_file_replace(job.val_path, "jumps over a lazy dog", 21, 0600));
    open_as("text", KEEL_DATA_AUTO);
    ck_assert_uint_eq(keel_data_train_samples(data), 19 - BLOCK);
    ck_assert_uint_eq(keel_data_val_samples(data), 21 - BLOCK);
    struct batch batch;
    void *inputs[] = {batch.ids, batch.targets};
    char scratch[KEEL_TOKEN_TEXT_BYTES];
    size_t bytes;
    ck_ok(keel_data_val_batch(data, 0, 1, inputs));
    ck_assert_int_eq(keel_data_text_of(data, (uint32_t)batch.ids[0], scratch, &bytes)[0], 'j');
    refused_with("none", KEEL_NOT_FOUND, "none: no such file");
}
END_TEST

START_TEST(masked_samples_are_made_of_token_files_too)
{
    uint32_t tokens[LETTERS];
    for (uint32_t i = 0; i < LETTERS; i++)
        tokens[i] = i % 50;
    write_raw("train.bin", tokens, LETTERS);
    job.kind = KEEL_MODEL_BERT;
    open_as("train.bin", KEEL_DATA_AUTO);
    ck_assert_uint_eq(keel_data_vocab(data), 51);
    job.vocab = 50;
    refused_with("train.bin", KEEL_INVALID, "token 49 at byte 98 (number 49) is beyond the vocabulary of 49");
}
END_TEST

/* ---- what is refused ----------------------------------------------------------------------------------- */

START_TEST(files_that_are_not_what_they_should_be_are_refused_by_name)
{
    uint32_t tokens[LETTERS] = {0};
    char path[KEEL_PATH_BYTES];
    tokens[70] = 300;
    write_raw("a.bin", tokens, 100);
    job.vocab = 256;
    refused_with("a.bin", KEEL_INVALID,
                 "a.bin: token 300 at byte 140 (number 70) is beyond the vocabulary of 256");
    write_tokens("b.bin", tokens, 100, 2, 20240520, 1, 100);
    refused_with("b.bin", KEEL_INVALID, "token 300 at byte 1164 (number 70)");
    write_tokens("b.bin", tokens, 100, 2, 20240520, 1, 150);
    refused_with("b.bin", KEEL_INVALID, "has 100 tokens behind its header, which tells of 150");
    write_tokens("b.bin", tokens, 100, 2, 20240520, 2, 100);
    refused_with("b.bin", KEEL_INVALID, "its header has version 2, and 1 is read");
    write_tokens("b.bin", tokens, 0, 2, 20240520, 1, 0);
    refused_with("b.bin", KEEL_INVALID, "b.bin: has no token");
    in_directory(path, "odd.bin");
    ck_ok(keel_file_replace(path, "abc", 3, 0600));
    refused_with("odd.bin", KEEL_INVALID, "odd.bin: 3 bytes are no whole number of tokens of 2 bytes");
    in_directory(path, "empty.bin");
    ck_ok(keel_file_replace(path, "", 0, 0600));
    refused_with("empty.bin", KEEL_INVALID, "empty.bin: has no token");
    refused_with("none*.bin", KEEL_NOT_FOUND, "none*.bin: no such file");
    refused_with("none/*.bin", KEEL_NOT_FOUND, "no such file");
    write_raw("short.bin", tokens, BLOCK);
    refused_with("short.bin", KEEL_INVALID, "none of the files has model.block + 1 = 9");
    in_directory(path, "pipe.bin");
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    refused_with("pipe.bin", KEEL_INVALID, "pipe.bin: no regular file");
    strcpy(job.vocabulary, "byte");
    refused_with("a.bin", KEEL_INVALID, "data.vocab = byte says nothing to token files");
}
END_TEST

/* Raw tokens of 16 bits that begin with llm.c's magic, version and some count: the file's size tells that
 * they are no header. */
START_TEST(tokens_that_look_like_a_header_are_tokens)
{
    enum { COUNT = 600 };
    uint32_t tokens[COUNT] = {20240520 & 0xffff, 20240520 >> 16, 1, 0, 70, 0};
    for (uint32_t i = 6; i < COUNT; i++)
        tokens[i] = i % 50;
    write_raw("a.bin", tokens, COUNT);
    open_as("a.bin", KEEL_DATA_UINT16);
    ck_assert_str_eq(keel_data_form(data), "1 token file of raw numbers of 16 bits");
    ck_assert_uint_eq(keel_data_train_samples(data) + keel_data_val_samples(data), COUNT - 2 * BLOCK);
    tokens[4] = (COUNT * 2 - KEEL_TOKEN_HEAD_BYTES) / 2; /* as many as there are behind it: a header */
    write_raw("a.bin", tokens, COUNT);
    open_as("a.bin", KEEL_DATA_UINT16);
    ck_assert_str_eq(keel_data_form(data), "1 token file with llm.c's header");
    ck_assert_uint_eq(keel_data_vocab(data), 50);
}
END_TEST

START_TEST(tokens_above_all_vocabularies_are_another_format)
{
    uint32_t tokens[LETTERS] = {0};
    tokens[3] = UINT32_C(0x80000001);
    write_tokens("a.u32", tokens, 100, 4, 0, 0, 0);
    job.format = KEEL_DATA_UINT32;
    refused_with("a.u32", KEEL_INVALID, "token 2147483649: vocabularies have up to 1048576");
}
END_TEST

/* ---- files that change --------------------------------------------------------------------------------- */

static void is_told(const char *name)
{
    struct batch batch;
    void *inputs[] = {batch.ids, batch.targets};
    ck_status(keel_data_train_batch(data, 0, 0, 1, inputs), KEEL_MISMATCH);
    ck_assert_msg(strstr(keel_detail(), name) != NULL &&
                      strstr(keel_detail(), "was written to, cut or replaced while it is read") != NULL,
                  "%s", keel_detail());
}

START_TEST(a_file_that_is_cut_written_to_or_replaced_is_told)
{
    static const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    uint32_t tokens[LETTERS] = {0};
    char path[KEEL_PATH_BYTES];
    in_directory(path, "a.bin");
    write_raw("a.bin", tokens, 100);
    open_as("a.bin", KEEL_DATA_AUTO);
    ck_assert_int_eq(truncate(path, 150), 0);
    is_told("a.bin");
    write_raw("a.bin", tokens, 100);
    ck_assert_int_eq(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    open_as("a.bin", KEEL_DATA_AUTO);
    write_raw("a.bin", tokens, 100); /* another file of the same size */
    is_told("a.bin");
    open_as("a.bin", KEEL_DATA_AUTO);
    ck_assert_int_eq(unlink(path), 0);
    struct batch batch;
    void *inputs[] = {batch.ids, batch.targets};
    ck_status(keel_data_train_batch(data, 0, 0, 1, inputs), KEEL_NOT_FOUND);
}
END_TEST

/* ---- large files --------------------------------------------------------------------------------------- */

static void write_at(const char *name, uint64_t offset, const char *bytes, size_t count)
{
    char path[KEEL_PATH_BYTES];
    in_directory(path, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_ok(keel_pwrite_all(fd, bytes, count, offset, path));
    close(fd);
}

START_TEST(twelve_gigabytes_are_opened_and_read_in_little_memory)
{
    const uint64_t bytes = UINT64_C(6) << 30; /* each, with holes */
    write_at("1.bin", bytes - 2, "\1\0", 2);
    write_at("2.bin", bytes - 2, "\1\0", 2);
    job.val_fraction = 0;
    refused_with("?.bin", KEEL_INVALID, "model.vocab = 0: 12884901888 bytes of token files are not searched");
    job.vocab = 256;
    const uint64_t peak = keel_memory_stats().peak_bytes;
    open_as("?.bin", KEEL_DATA_AUTO);
    ck_assert_uint_eq(keel_data_vocab(data), 256);
    ck_assert_uint_eq(keel_data_train_samples(data), 2 * (bytes / 2 - BLOCK));
    struct batch batch;
    for (uint64_t step = 0; step < 500; step++)
        read_batch(step, &batch);
    ck_assert_uint_lt(keel_memory_stats().peak_bytes - peak, 1 << 18);
    /* The ends are in the digest, as any block that is looked at; */
    const uint64_t digest = keel_data_digest(data);
    write_at("2.bin", bytes - 2, "\2\0", 2);
    open_as("?.bin", KEEL_DATA_AUTO);
    ck_assert_uint_ne(keel_data_digest(data), digest);
    /* what nobody looked at is checked when it is read. */
    write_at("1.bin", UINT64_C(100001) * 65536 / 2, "\0\1", 2);
    open_as("?.bin", KEEL_DATA_AUTO);
    struct keel_token_file file = {.of = {.bytes = 0}};
    struct stat info;
    in_directory(job.path, "1.bin");
    ck_assert_int_eq(stat(job.path, &info), 0);
    file = (struct keel_token_file){.of = {.path = job.path,
                                           .bytes = bytes,
                                           .modified_s = info.st_mtim.tv_sec,
                                           .modified_ns = info.st_mtim.tv_nsec},
                                    .layout = {0, bytes / 2, 2}};
    int32_t tokens[9];
    const uint64_t index = UINT64_C(100001) * 65536 / 4;
    ck_ok(keel_token_file_read(&file, index - 9, 9, 256, NULL, tokens));
    ck_status(keel_token_file_read(&file, index - 8, 9, 256, NULL, tokens), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), "token 256 at byte 3276832768 (number 1638416384)") != NULL, "%s",
                  keel_detail());
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, samples_are_those_of_the_text_in_every_format);
    tcase_add_test(tc, several_files_are_one_row_whose_windows_reach_from_none_into_the_next);
    tcase_add_test(tc, the_share_kept_for_validation_may_begin_within_a_file);
    tcase_add_test(tc, a_file_of_its_own_is_validated_with_and_not_trained_on);
    tcase_add_test(tc, a_text_may_have_one_of_its_own_too);
    tcase_add_test(tc, masked_samples_are_made_of_token_files_too);
    tcase_add_test(tc, files_that_are_not_what_they_should_be_are_refused_by_name);
    tcase_add_test(tc, tokens_that_look_like_a_header_are_tokens);
    tcase_add_test(tc, tokens_above_all_vocabularies_are_another_format);
    tcase_add_test(tc, a_file_that_is_cut_written_to_or_replaced_is_told);
    tcase_add_test(tc, twelve_gigabytes_are_opened_and_read_in_little_memory);
}

KEEL_TEST_MAIN("token files", cases, 60)
