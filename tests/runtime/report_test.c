/* report_test.c - metrics and events survive a torn line, refuse nonsense by line, and make a page. */
#include "harness.h"
#include "jsonl.h"
#include "report.h"
#include <keel/file.h>
#include <keel/memory.h>
#include <signal.h>
#include <stdlib.h>
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

START_TEST(the_head_says_what_ran_and_what_it_reached_and_repeated_events_are_one_row)
{
    make_directory();
    write_file("metrics.jsonl", "{\"step\":1,\"loss\":4.0,\"seconds\":1,\"tokens\":1000000}\n"
                                "{\"step\":2,\"loss\":3.0,\"seconds\":1,\"tokens\":2000000}\n"
                                "{\"step\":3,\"loss\":2.5,\"seconds\":6,\"tokens\":3000000}\n");
    write_file(
        "events.jsonl",
        "{\"event\":\"start\",\"wall_ns\":1000000000,\"model\":\"gpt, 4 layers\",\"ranks\":2}\n"
        "{\"event\":\"board\",\"wall_ns\":1000000000,\"host\":\"one\",\"board\":\"Acme <1>\","
        "\"parameters\":1234567,\"flops_per_step\":1000,\"peak_flops_s\":2000}\n"
        "{\"event\":\"view\",\"wall_ns\":1000000000,\"ranks\":[0,1]}\n"
        "{\"event\":\"snapshot-skipped\",\"wall_ns\":2000000000,\"step\":2,\"detail\":\"slow\",\"rank\":0}\n"
        "{\"event\":\"snapshot-skipped\",\"wall_ns\":2000000000,\"step\":2,\"detail\":\"slow\",\"rank\":1}\n"
        "{\"event\":\"recovery\",\"wall_ns\":9000000000,\"step\":3,\"cause\":\"process-exit\",\"lost\":[{"
        "\"rank\":1,\"node\":2,\"host\":\"one\",\"board\":\"Acme <1>\"}],\"before_s\":1.5,\"detect_s\":0,"
        "\"other_s\":4.5,\"total_s\":6}\n"
        "{\"event\":\"end\",\"wall_ns\":11000000000}\n");
    ck_ok(keel_report_write(directory));
    char *text;
    size_t bytes;
    static const char *const wanted[] = {"<td>gpt, 4 layers</td>",
                                         "<td>1,234,567</td>",
                                         "<td>2 of 2</td>",
                                         "<td>Acme &lt;1&gt; on one</td>",
                                         "<td>3,000,000, 1,000,000 a second while steps were committed</td>",
                                         "Share of the peak</th><td>25.0%</td>",
                                         "<td>20.0% of 10.0 s went into steps that were committed</td>",
                                         "<td>2 times</td>",
                                         "<td>rank 1 (node 2, one, Acme &lt;1&gt;)</td>",
                                         "<th>before the failure</th><th>other</th><th>total</th>"};
    ck_ok(keel_file_read(in_directory("report.html"), 1 << 20, &text, &bytes));
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        ck_assert_msg(strstr(text, wanted[i]) != NULL, "no %s in the page", wanted[i]);
    ck_assert_ptr_null(strstr(text, "<th>detect</th>")); /* nothing in all of them */
    keel_free(text);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* A life that was to have fewer ranks, and ended before it had any. */
START_TEST(the_head_counts_ranks_of_those_that_their_own_life_was_to_have)
{
    char *text;
    size_t bytes;
    make_directory();
    write_file("metrics.jsonl", "{\"step\":1,\"loss\":4.0,\"seconds\":1,\"tokens\":1000000}\n");
    write_file("events.jsonl", "{\"event\":\"start\",\"wall_ns\":1000000000,\"ranks\":4}\n"
                               "{\"event\":\"view\",\"wall_ns\":1000000000,\"ranks\":[0,1,2]}\n"
                               "{\"event\":\"end\",\"wall_ns\":2000000000}\n"
                               "{\"event\":\"start\",\"wall_ns\":3000000000,\"ranks\":2}\n"
                               "{\"event\":\"end\",\"wall_ns\":4000000000}\n");
    ck_ok(keel_report_write(directory));
    ck_ok(keel_file_read(in_directory("report.html"), 1 << 20, &text, &bytes));
    ck_assert_ptr_nonnull(strstr(text, "<td>3 of 4</td>"));
    keel_free(text);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* Every label of an axis that lies in the page: each is a multiple of the distance of its neighbours, which
 * is 1, 2 or 5 times a power of ten. */
static void check_ticks(const char *text, const char *anchor)
{
    double values[32];
    char mark[32];
    uint32_t many = 0;
    snprintf(mark, sizeof mark, "text-anchor=\"%s\">", anchor);
    const char *svg = strstr(text, "<svg"), *end = strstr(svg, "</svg>");
    for (const char *at = svg; (at = strstr(at, mark)) != NULL && at < end && many < 32;)
        values[many++] = strtod(at += strlen(mark), NULL);
    ck_assert_uint_ge(many, 3);
    double distance = values[1] - values[0], digit = distance;
    while (digit < 0.99)
        digit *= 10;
    while (digit > 9.9)
        digit /= 10;
    ck_assert_msg((digit > 0.99 && digit < 1.01) || (digit > 1.99 && digit < 2.01) ||
                      (digit > 4.99 && digit < 5.01),
                  "ticks %g apart", distance);
    for (uint32_t i = 0; i < many; i++) {
        double times = values[i] / distance,
               off = times - (double)(long long)(times + (times < 0 ? -0.5 : 0.5));
        ck_assert_msg(off < 1e-6 && off > -1e-6, "%g is no multiple of %g", values[i], distance);
    }
}

START_TEST(ticks_are_round_whatever_the_range)
{
    static const double ranges[][2] = {
        {4.33, 1.27}, {0.0371, 0.0333}, {123456, 98765}, {-0.4, 0.3}, {7.1, 7.09}};
    for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        char metrics[256];
        make_directory();
        snprintf(metrics, sizeof metrics,
                 "{\"step\":3,\"loss\":%.10g,\"seconds\":1,\"tokens\":1}\n"
                 "{\"step\":%zu,\"loss\":%.10g,\"seconds\":1,\"tokens\":2}\n",
                 ranges[r][0], 97 + 1000 * r, ranges[r][1]);
        write_file("metrics.jsonl", metrics);
        write_file("events.jsonl", "{\"event\":\"start\",\"wall_ns\":1000000000}\n");
        ck_ok(keel_report_write(directory));
        char *text;
        size_t bytes;
        ck_ok(keel_file_read(in_directory("report.html"), 1 << 20, &text, &bytes));
        check_ticks(text, "end");
        check_ticks(text, "middle");
        keel_free(text);
        ck_ok(keel_remove_tree(directory));
    }
}
END_TEST

/* Found by the fuzzer: rows were folded by a name that the one before did not have. */
START_TEST(events_without_a_name_are_rows_too)
{
    make_directory();
    write_file("metrics.jsonl",
               "{\"step\":1,\"loss\":4.0,\"seconds\":0.5,\"tokens\":100,\"digest\":\"ab\"}\n");
    write_file("events.jsonl", "{\"wall_ns\":1}\n{\"event\":\"note\",\"wall_ns\":2}\n{\"wall_ns\":3}\n"
                               "{\"event\":null,\"wall_ns\":4}\n");
    ck_ok(keel_report_write(directory));
    ck_assert(keel_path_exists(in_directory("report.html")));
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
    tcase_add_test(tc, the_head_counts_ranks_of_those_that_their_own_life_was_to_have);
    tcase_add_test(tc, the_head_says_what_ran_and_what_it_reached_and_repeated_events_are_one_row);
    tcase_add_test(tc, ticks_are_round_whatever_the_range);
    tcase_add_test(tc, events_without_a_name_are_rows_too);
    tcase_add_test(tc, a_run_without_steps_has_no_page);
}

KEEL_TEST_MAIN("report", cases, 10)
