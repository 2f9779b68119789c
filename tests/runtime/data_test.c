/* data_test.c - batches are a pure function of their number; every window comes once per pass. */
#include "data.h"
#include "harness.h"
#include <keel/memory.h>
#include <string.h>
#include <unistd.h>

static const char text[] =
    "the quick brown fox jumps over the lazy dog and runs away from the wolf at the door\n";

static void open_text(struct keel_job *job, struct keel_data **data)
{
    char path[] = "/tmp/keel-data-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, sizeof text - 1), (ssize_t)sizeof text - 1);
    close(fd);
    *job = (struct keel_job){.seed = 7, .block = 8, .batch = 2, .val_fraction = 0.25f};
    strcpy(job->path, path);
    ck_ok(keel_data_open(job, data));
    unlink(path);
}

START_TEST(permutations_are_bijections)
{
    static const uint64_t sizes[] = {1, 2, 3, 7, 64, 1000, 4097};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint8_t seen[4097] = {0};
        for (uint64_t i = 0; i < sizes[s]; i++) {
            uint64_t to = keel_permute(i, sizes[s], 99);
            ck_assert_uint_lt(to, sizes[s]);
            ck_assert_uint_eq(seen[to]++, 0);
        }
    }
}
END_TEST

START_TEST(keys_give_different_orders)
{
    uint32_t equal = 0;
    for (uint64_t i = 0; i < 1000; i++)
        equal += keel_permute(i, 1000, 1) == keel_permute(i, 1000, 2);
    ck_assert_uint_lt(equal, 20);
}
END_TEST

START_TEST(a_batch_depends_on_its_number_alone)
{
    struct keel_job job;
    struct keel_data *data;
    open_text(&job, &data);
    int32_t a[16], b[16], ta[16], tb[16];
    void *first[] = {a, ta}, *second[] = {b, tb};
    ck_ok(keel_data_train_batch(data, 3, 1, 4, first));
    ck_ok(keel_data_train_batch(data, 9, 0, 4, second));
    ck_ok(keel_data_train_batch(data, 3, 1, 4, second));
    ck_assert_mem_eq(a, b, sizeof a);
    ck_assert_mem_eq(ta, tb, sizeof ta);
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(ta[i], a[i + 1]);
    /* The same samples, cut into microbatches in another way. */
    ck_ok(keel_data_train_batch(data, 6, 3, 2, second));
    ck_ok(keel_data_train_batch(data, 0, 15, 1, second));
    ck_ok(keel_data_train_batch(data, 15, 0, 1, first));
    ck_assert_mem_eq(a, b, sizeof a);
    keel_data_close(data);
}
END_TEST

static char letter(const struct keel_data *data, int32_t token)
{
    char scratch[KEEL_TOKEN_TEXT_BYTES];
    size_t bytes;
    const char *of_token = keel_data_text_of(data, (uint32_t)token, scratch, &bytes);
    ck_assert_uint_eq(bytes, 1);
    return of_token[0];
}

START_TEST(validation_text_is_never_trained_on)
{
    struct keel_job job;
    struct keel_data *data;
    open_text(&job, &data);
    uint64_t train = keel_data_train_samples(data) + job.block;
    ck_assert_uint_eq(train, 63);
    int32_t ids[16], targets[16];
    void *inputs[] = {ids, targets};
    for (uint32_t m = 0; m < 500; m++) {
        ck_ok(keel_data_train_batch(data, m, 0, 1, inputs));
        char window[10] = {0};
        for (int i = 0; i < 8; i++)
            window[i] = letter(data, ids[i]);
        window[8] = letter(data, targets[7]);
        const char *at = strstr(text, window);
        ck_assert_ptr_nonnull(at);
        ck_assert_uint_le((uint64_t)(at - text) + 9, train);
    }
    ck_ok(keel_data_val_batch(data, 0, 1, inputs));
    keel_data_close(data);
}
END_TEST

START_TEST(a_text_shorter_than_the_block_is_refused)
{
    struct keel_job job;
    struct keel_data *data;
    open_text(&job, &data);
    keel_data_close(data);
    char path[] = "/tmp/keel-data-XXXXXX";
    close(mkstemp(path));
    strcpy(job.path, path);
    ck_status(keel_data_open(&job, &data), KEEL_INVALID);
    unlink(path);
    ck_status(keel_data_open(&job, &data), KEEL_NOT_FOUND);
    ck_assert(strstr(keel_detail(), path) != NULL);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, permutations_are_bijections);
    tcase_add_test(tc, keys_give_different_orders);
    tcase_add_test(tc, a_batch_depends_on_its_number_alone);
    tcase_add_test(tc, validation_text_is_never_trained_on);
    tcase_add_test(tc, a_text_shorter_than_the_block_is_refused);
}

KEEL_TEST_MAIN("data", cases, 20)
