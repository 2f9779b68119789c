/* report_test.c - metrics and events survive a torn line, refuse nonsense by line, and make a page. */
#include "harness.h"
#include "jsonl.h"
#include "report.h"
#include <keel/file.h>
#include <keel/memory.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char directory[] = "/tmp/keel-report-XXXXXX";

static const char *in_directory(const char *name)
{
    static char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, directory, name));
    return path;
}

static void make_directory(void)
{
    strcpy(directory, "/tmp/keel-report-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void write_file(const char *name, const char *text)
{
    ck_ok(keel_file_replace(in_directory(name), text, strlen(text), 0666));
}

static enum keel_status count(void *context, const json_t *line, uint64_t number)
{
    ck_assert(json_is_object(line));
    *(uint64_t *)context = number;
    return KEEL_OK;
}

START_TEST(a_torn_last_line_is_cut_off_and_the_rest_kept)
{
    make_directory();
    write_file("a.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"st");
    uint64_t lines = 0;
    struct keel_jsonl *file;
    ck_ok(keel_jsonl_open(in_directory("a.jsonl"), count, &lines, &file));
    ck_assert_uint_eq(lines, 2);
    keel_jsonl_write(file, json_pack("{s:i}", "step", 3));
    keel_jsonl_close(file);
    char *text;
    size_t bytes;
    ck_ok(keel_file_read(in_directory("a.jsonl"), 1000, &text, &bytes));
    ck_assert_str_eq(text, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
    keel_free(text);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static void limit_files_to(rlim_t bytes)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

START_TEST(a_full_disk_tears_no_line_and_loses_none)
{
    make_directory();
    struct keel_jsonl *file;
    signal(SIGXFSZ, SIG_IGN);
    ck_ok(keel_jsonl_open(in_directory("a.jsonl"), NULL, NULL, &file));
    keel_jsonl_write(file, json_pack("{s:i}", "step", 1));
    limit_files_to(15); /* in the middle of the second line */
    keel_jsonl_write(file, json_pack("{s:i}", "step", 2));
    ck_status(keel_jsonl_sync(file), KEEL_NO_SPACE);
    char *text;
    size_t bytes;
    ck_ok(keel_file_read(in_directory("a.jsonl"), 1000, &text, &bytes));
    ck_assert_str_eq(text, "{\"step\":1}\n");
    keel_free(text);
    limit_files_to(RLIM_INFINITY);
    keel_jsonl_write(file, json_pack("{s:i}", "step", 3));
    ck_ok(keel_jsonl_sync(file));
    keel_jsonl_close(file);
    ck_ok(keel_file_read(in_directory("a.jsonl"), 1000, &text, &bytes));
    ck_assert_str_eq(text, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
    keel_free(text);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(a_line_that_is_no_json_is_named)
{
    make_directory();
    write_file("a.jsonl", "{\"step\":1}\nnonsense\n");
    uint64_t lines = 0;
    struct keel_jsonl *file;
    ck_status(keel_jsonl_open(in_directory("a.jsonl"), count, &lines, &file), KEEL_CORRUPT);
    ck_assert(strstr(keel_detail(), "a.jsonl:2") != NULL);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(the_page_shows_curves_and_incidents_and_escapes_text)
{
    make_directory();
    write_file("metrics.jsonl", "{\"step\":1,\"loss\":4.0,\"seconds\":0.5,\"tokens\":100,\"digest\":\"ab\"}\n"
                                "{\"step\":2,\"loss\":3.0,\"seconds\":0.5,\"tokens\":200,\"digest\":\"cd\","
                                "\"val_loss\":3.5}\n");
    write_file("events.jsonl",
               "{\"event\":\"start\",\"wall_ns\":1000000000}\n"
               "{\"event\":\"recovery\",\"wall_ns\":2000000000,\"step\":2,\"cause\":\"process-exit\","
               "\"lost_ranks\":1,\"total_s\":0.25}\n"
               "{\"event\":\"note\",\"wall_ns\":3000000000,\"detail\":\"<script>alert(1)</script>\"}\n");
    ck_ok(keel_report_write(directory));
    char *text;
    size_t bytes;
    ck_ok(keel_file_read(in_directory("report.html"), 1 << 20, &text, &bytes));
    ck_assert(strstr(text, "<polyline class=\"curve\"") != NULL);
    ck_assert(strstr(text, "<polyline class=\"validation\"") != NULL);
    ck_assert(strstr(text, "<line class=\"incident\"") != NULL);
    ck_assert(strstr(text, "<td>0.250</td>") != NULL);
    ck_assert(strstr(text, "<script") == NULL);
    ck_assert(strstr(text, "&lt;script&gt;") != NULL);
    ck_assert(strstr(text, "http") == NULL);
    keel_free(text);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(a_model_that_classifies_has_a_curve_of_accuracy_and_counts_samples)
{
    make_directory();
    write_file("metrics.jsonl",
               "{\"step\":1,\"loss\":4.0,\"seconds\":0.5,\"tokens\":100,\"samples\":100,\"val_loss\":3,"
               "\"val_accuracy\":0.25}\n"
               "{\"step\":2,\"loss\":3.0,\"seconds\":0.5,\"tokens\":200,\"samples\":200}\n");
    write_file("events.jsonl", "{\"event\":\"start\",\"wall_ns\":1000000000}\n");
    ck_ok(keel_report_write(directory));
    char *text;
    size_t bytes;
    ck_ok(keel_file_read(in_directory("report.html"), 1 << 20, &text, &bytes));
    ck_assert(strstr(text, "200 samples, validation accuracy 0.2500.") != NULL);
    ck_assert(strstr(text, "Validation accuracy by step") != NULL);
    ck_assert(strstr(text, "Samples per second") != NULL);
    keel_free(text);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(a_run_without_steps_has_no_page)
{
    make_directory();
    write_file("metrics.jsonl", "");
    write_file("events.jsonl", "");
    ck_status(keel_report_write(directory), KEEL_NOT_FOUND);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_torn_last_line_is_cut_off_and_the_rest_kept);
    tcase_add_test(tc, a_full_disk_tears_no_line_and_loses_none);
    tcase_add_test(tc, a_line_that_is_no_json_is_named);
    tcase_add_test(tc, the_page_shows_curves_and_incidents_and_escapes_text);
    tcase_add_test(tc, a_model_that_classifies_has_a_curve_of_accuracy_and_counts_samples);
    tcase_add_test(tc, a_run_without_steps_has_no_page);
}

KEEL_TEST_MAIN("report", cases, 10)
