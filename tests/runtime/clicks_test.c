/* clicks_test.c - logs of clicks: what a line is worth, which lines are trained on, and what is refused by
 * its number. */
#include "click_log.h"
#include "data.h"
#include "harness.h"
#include <keel/file.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { DENSE = 2, TABLES = 3, CATEGORIES = 100, BAG = 2, BATCH = 4 };

static char directory[] = "/tmp/keel-clicks-XXXXXX", path[KEEL_PATH_BYTES];
static struct keel_job job;
static struct keel_data *data;
static struct batch {
    float dense[BATCH][DENSE];
    int32_t ids[BATCH][TABLES][BAG];
    float labels[BATCH];
} batch;

static void write_file(const char *name, const char *text)
{
    ck_ok(keel_path_join(path, directory, name));
    ck_ok(keel_file_replace(path, text, strlen(text), 0600));
}

static void set_up(void)
{
    strcpy(directory, "/tmp/keel-clicks-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    const char *const dlrm[] = {"model.kind=dlrm",      "model.dense=2",         "model.tables=3",
                                "model.categories=100", "model.bag=2",           "train.batch=4",
                                "data.format=criteo",   "data.val_fraction=0.25"};
    write_file("job.conf", "");
    ck_ok(keel_job_load(path, dlrm, sizeof dlrm / sizeof dlrm[0], &job));
    data = NULL;
}

static void tear_down(void)
{
    keel_data_close(data);
    ck_ok(keel_remove_tree(directory));
}

static enum keel_status open_text(const char *text)
{
    write_file("log", text);
    snprintf(job.path, sizeof job.path, "%s", path);
    keel_data_close(data);
    data = NULL;
    return keel_data_open(&job, &data);
}

static void *const *inputs(void)
{
    static void *all[3];
    all[0] = batch.dense;
    all[1] = batch.ids;
    all[2] = batch.labels;
    return all;
}

/* Eight lines whose first number says which it is. */
static const char eight[] = "0\t0\t1\ta\tb\tc\n1\t1\t1\ta\tb\tc\n0\t2\t1\ta\tb\tc\n1\t3\t1\ta\tb\tc\n"
                            "0\t4\t1\ta\tb\tc\n1\t5\t1\ta\tb\tc\n0\t6\t1\ta\tb\tc\n1\t7\t1\ta\tb\tc";

START_TEST(numbers_are_logarithms_and_categories_rows_of_their_tables)
{
    job.batch = 1;
    job.val_fraction = 0.0F;
    ck_ok(open_text("1\t19\t-3\tffffffff\t\t0000000A\r\n"));
    ck_ok(keel_data_train_batch(data, 0, 0, 1, inputs()));
    ck_assert_float_eq(batch.labels[0], 1.0F);
    ck_assert_float_eq_tol(batch.dense[0][0], logf(20.0F), 1e-6F);
    ck_assert_float_eq(batch.dense[0][1], 0.0F);
    const int32_t ids[TABLES][BAG] = {
        {(int32_t)(4294967295U % CATEGORIES), -1}, {-1, -1}, {2 * CATEGORIES + 10, -1}};
    ck_assert_mem_eq(batch.ids[0], ids, sizeof ids);
    ck_assert_uint_eq(keel_data_val_samples(data), 0);
}
END_TEST

START_TEST(csv_has_decimal_numbers_names_and_a_head)
{
    job.batch = 1;
    job.val_fraction = 0.0F;
    job.format = KEEL_DATA_CSV;
    ck_ok(open_text("clicked,price,age,shop,city,device\n0,-1.5,2e3,205,Oslo,\n"));
    ck_ok(keel_data_train_batch(data, 0, 0, 1, inputs()));
    ck_assert_float_eq(batch.labels[0], 0.0F);
    ck_assert_float_eq(batch.dense[0][0], -1.5F);
    ck_assert_float_eq(batch.dense[0][1], 2000.0F);
    ck_assert_int_eq(batch.ids[0][0][0], 5);
    ck_assert_int_eq(batch.ids[0][1][0], CATEGORIES + (int32_t)(XXH3_64bits("Oslo", 4) % CATEGORIES));
    ck_assert_int_eq(batch.ids[0][2][0], -1);
    ck_ok(open_text("1,1,2,1,123456789012345678,1234567890123456789\r\r\n")); /* one \r is of the end */
    ck_ok(keel_data_train_batch(data, 0, 0, 1, inputs()));
    ck_assert_int_eq(batch.ids[0][1][0], CATEGORIES + 78);
    ck_assert_int_eq(batch.ids[0][2][0],
                     2 * CATEGORIES + (int32_t)(XXH3_64bits("1234567890123456789\r", 20) % CATEGORIES));
}
END_TEST

START_TEST(a_mark_of_utf8_is_no_head)
{
    job.batch = 1;
    job.val_fraction = 0.0F;
    job.format = KEEL_DATA_CSV;
    ck_ok(open_text("\xef\xbb\xbf"
                    "1,-1.5,2e3,205,Oslo,\n"));
    ck_assert_uint_eq(keel_data_train_samples(data), 1);
    ck_ok(keel_data_train_batch(data, 0, 0, 1, inputs()));
    ck_assert_float_eq(batch.labels[0], 1.0F);
    ck_assert_float_eq(batch.dense[0][0], -1.5F);
}
END_TEST

START_TEST(the_last_lines_are_validated_with_and_never_trained_on)
{
    bool seen[8] = {false};
    ck_ok(open_text(eight));
    ck_assert_uint_eq(keel_data_train_samples(data), 6);
    ck_assert_uint_eq(keel_data_val_samples(data), 2);
    for (uint64_t step = 0; step < 3; step++) { /* twelve samples: each of six twice */
        ck_ok(keel_data_train_batch(data, step, 0, 1, inputs()));
        for (uint32_t b = 0; b < BATCH; b++) {
            const int number = (int)lroundf(expf(batch.dense[b][0])) - 1;
            ck_assert_int_eq((int)batch.labels[b], number % 2);
            seen[number] = true;
        }
    }
    for (int i = 0; i < 8; i++)
        ck_assert(seen[i] == (i < 6));
    ck_ok(keel_data_val_batch(data, 0, 1, inputs()));
    ck_assert_float_eq_tol(batch.dense[0][0], logf(7.0F), 1e-6F);
    const uint64_t digest = keel_data_digest(data);
    write_file("other", "1\t9\t1\ta\tb\tc\n");
    snprintf(job.val_path, sizeof job.val_path, "%s", path);
    ck_ok(open_text(eight));
    ck_assert_uint_eq(keel_data_train_samples(data), 8);
    ck_assert_uint_eq(keel_data_val_samples(data), 1);
    ck_assert_uint_ne(keel_data_digest(data), digest);
    ck_ok(keel_data_val_batch(data, 0, 1, inputs()));
    ck_assert_float_eq_tol(batch.dense[3][0], logf(10.0F), 1e-6F);
}
END_TEST

static const struct {
    uint32_t format;
    const char *text, *wanted;
} bad[] = {
    {KEEL_DATA_CRITEO, "", "has no line of a sample"},
    {KEEL_DATA_CRITEO, "0\t1\t1\ta\tb\tc\n2\t1\t1\ta\tb\tc\n", "log:2: field 1 is no label"},
    {KEEL_DATA_CRITEO, "0\t1\t1\ta\tb\n", "log:1: has only 5 fields"},
    {KEEL_DATA_CRITEO, "0\t1\t1\ta\tb\tc\td\n", "log:1: has more than 6 fields"},
    {KEEL_DATA_CRITEO, "0\t1\t1.5\ta\tb\tc\n", "field 3 is no whole number"},
    {KEEL_DATA_CRITEO, "0\t-\t1\ta\tb\tc\n", "field 2 is no whole number"},
    {KEEL_DATA_CRITEO, "0\t1\t1\ta\tg\tc\n", "field 5 is no category of up to 8 hexadecimal digits"},
    {KEEL_DATA_CRITEO, "0\t1\t1\ta\t123456789\tc\n", "field 5 is no category"},
    {KEEL_DATA_CRITEO, "0\t1\t1\ta\tb\tc\n\n", "log:2: field 1 is no label"},
    {KEEL_DATA_CSV, "0,1,nan,a,b,c\n", "field 3 is no finite number"},
    {KEEL_DATA_CSV, "0,1,1e99,a,b,c\n", "field 3 is no finite number"},
    {KEEL_DATA_CSV, "0,1,2,\"a\",b,c\n", "log:1: has quotation marks"},
    {KEEL_DATA_CSV, "click,x,y,a,b,c\nclick,x,y,a,b,c\n", "log:2: field 1 is no label"},
};

START_TEST(what_is_wrong_is_told_by_file_line_and_field)
{
    job.format = bad[_i].format;
    ck_status(open_text(bad[_i].text), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), bad[_i].wanted) != NULL, "%s", keel_detail());
}
END_TEST

/* Labels that may be any numbers: none is no number, and not 0 as an empty feature is. */
START_TEST(a_line_without_a_label_is_refused)
{
    job.format = KEEL_DATA_CSV;
    job.click_loss = KEEL_CLICK_MSE;
    ck_ok(open_text("0.5,,2,a,b,c\n-1,1,2,a,b,c\n"));
    keel_data_close(data);
    data = NULL;
    ck_status(open_text("0.5,1,2,a,b,c\n,1,2,a,b,c\n"), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), "log:2: field 1 is no label, which is a finite number") != NULL, "%s",
                  keel_detail());
}
END_TEST

START_TEST(a_line_that_never_ends_is_refused)
{
    char *text = malloc(3 << 20);
    ck_assert_ptr_nonnull(text);
    memset(text, '1', (3 << 20) - 1);
    text[(3 << 20) - 1] = '\0';
    ck_status(open_text(text), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "log:1: is longer than 65536 bytes"));
    free(text);
}
END_TEST

/* Lines lie over the ends of what is read at once. */
START_TEST(a_log_of_megabytes_has_the_lines_that_it_has)
{
    enum { LINES = 100000 };
    char *text = malloc((size_t)LINES * 32), *at = text;
    ck_assert_ptr_nonnull(text);
    for (int i = 0; i < LINES; i++)
        at += sprintf(at, "%d\t%d\t1\t%x\tb\tc\n", i & 1, i, i);
    job.val_fraction = 0.0F;
    ck_ok(open_text(text));
    free(text);
    ck_assert_uint_eq(keel_data_train_samples(data), LINES);
    for (uint64_t step = 0; step < 50; step++) {
        ck_ok(keel_data_train_batch(data, step, 0, 1, inputs()));
        for (uint32_t b = 0; b < BATCH; b++) {
            const int number = (int)lroundf(expf(batch.dense[b][0])) - 1; /* about: a float */
            ck_assert_int_le(abs(number % CATEGORIES - batch.ids[b][0][0]) % (CATEGORIES - 2), 2);
        }
    }
}
END_TEST

START_TEST(a_log_that_changes_while_it_is_read_is_noticed)
{
    ck_ok(open_text(eight));
    ck_ok(keel_data_train_batch(data, 0, 0, 1, inputs()));
    ck_ok(keel_path_join(path, directory, "log"));
    ck_ok(keel_file_append(path, "\n", 1, false));
    ck_status(keel_data_train_batch(data, 0, 0, 1, inputs()), KEEL_MISMATCH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "was written to, cut or replaced"));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, numbers_are_logarithms_and_categories_rows_of_their_tables);
    tcase_add_test(tc, csv_has_decimal_numbers_names_and_a_head);
    tcase_add_test(tc, a_mark_of_utf8_is_no_head);
    tcase_add_test(tc, the_last_lines_are_validated_with_and_never_trained_on);
    tcase_add_loop_test(tc, what_is_wrong_is_told_by_file_line_and_field, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(tc, a_line_without_a_label_is_refused);
    tcase_add_test(tc, a_line_that_never_ends_is_refused);
    tcase_add_test(tc, a_log_of_megabytes_has_the_lines_that_it_has);
    tcase_add_test(tc, a_log_that_changes_while_it_is_read_is_noticed);
}

KEEL_TEST_MAIN("clicks", cases, 60)
