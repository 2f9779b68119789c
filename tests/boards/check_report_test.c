/* check_report_test.c - a report says the same as JSON, as JUnit and as a page, whatever boards put into
 * their texts. */
#include "check_reports.h"
#include "clpeak.h"
#include "harness.h"
#include <jansson.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <string.h>

enum { RESULTS = 5 };

static const struct keel_check checks[RESULTS] = {{.id = "0.1", .name = "drivers", .claim = "a claim"},
                                                  {.id = "0.2", .name = "opens", .claim = "a <claim> & more"},
                                                  {.id = "4.1", .name = "golden", .claim = "\"quoted\""},
                                                  {.id = "5.1", .name = "launch", .claim = "fast"},
                                                  {.id = "5.2", .name = "copies", .claim = "fast too"}};
static const enum keel_verdict verdicts[RESULTS] = {KEEL_VERDICT_PASS, KEEL_VERDICT_CANNOT, KEEL_VERDICT_FAIL,
                                                    KEEL_VERDICT_WAIVED, KEEL_VERDICT_PASS};
static const char hostile[] = "<script src=\"http://x\">alert('&')</script> ]]> \x01\x7f\xff\xc3";
static struct keel_check_result results[RESULTS];
static struct keel_check_report report;
static char folder[] = "/tmp/keel-report-XXXXXX";

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    report = (struct keel_check_report){.options = {.board = "acme:0"},
                                        .results = results,
                                        .count = RESULTS,
                                        .done = RESULTS,
                                        .seconds = 1.5};
    snprintf(report.board.selector, sizeof report.board.selector, "acme:0");
    snprintf(report.board.name, sizeof report.board.name, "%s", hostile);
    for (int i = 0; i < RESULTS; i++) {
        struct keel_check_result *result = &results[i];
        *result =
            (struct keel_check_result){.check = &checks[i], .verdict = verdicts[i], .beneath = verdicts[i]};
        report.verdicts[verdicts[i]]++;
        if (verdicts[i] == KEEL_VERDICT_PASS)
            continue;
        snprintf(result->reason, sizeof result->reason, "%s", hostile);
        snprintf(result->output, sizeof result->output, "%s", hostile);
        snprintf(result->notes[result->note_count++], KEEL_CHECK_TEXT_BYTES, "%s", hostile);
    }
    results[3].beneath = KEEL_VERDICT_FAIL;
    snprintf(results[3].waiver, sizeof results[3].waiver, "known");
    snprintf(results[3].waiver_until, sizeof results[3].waiver_until, "2099-01-01");
    results[4].figure_count = 1;
    results[4].figures[0] = (struct keel_check_figure){.name = "copy_gbs",
                                                       .unit = "GB/s",
                                                       .value = 2,
                                                       .limit = 1.5,
                                                       .sample_count = 3,
                                                       .samples = {1, 2, 3}};
}

static void tear_down(void)
{
    ck_ok(keel_remove_tree(folder));
}

static uint32_t count(const char *text, const char *word)
{
    uint32_t found = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word))
        found++;
    return found;
}

/* What `print` prints into a file, for the caller to free. */
static char *written(keel_check_print *print)
{
    char path[KEEL_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    ck_ok(keel_path_join(path, folder, "report"));
    ck_ok(keel_check_write(&report, print, path));
    ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
    ck_assert_uint_eq(strlen(text), bytes);
    for (size_t i = 0; i < bytes; i++)
        ck_assert_msg((text[i] >= ' ' && text[i] <= '~') || text[i] == '\n', "byte %d at %zu", text[i], i);
    return text;
}

START_TEST(json_has_every_verdict_and_what_lies_beneath_a_waiver)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    keel_check_print_json(&report, out);
    ck_assert_int_eq(fclose(out), 0);
    json_error_t error;
    json_t *root = json_loadb(text, bytes, 0, &error);
    ck_assert_msg(root != NULL, "%s", error.text);
    ck_assert_str_eq(json_string_value(json_object_get(root, "verdict")), "fail");
    json_t *shown = json_object_get(root, "checks");
    ck_assert_uint_eq(json_array_size(shown), RESULTS);
    for (size_t i = 0; i < RESULTS; i++)
        ck_assert_str_eq(json_string_value(json_object_get(json_array_get(shown, i), "verdict")),
                         keel_verdict_name(verdicts[i]));
    json_t *waived = json_array_get(shown, 3),
           *figure = json_array_get(json_object_get(json_array_get(shown, 4), "figures"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(waived, "beneath")), "fail");
    ck_assert_str_eq(json_string_value(json_object_get(waived, "waiver_until")), "2099-01-01");
    ck_assert_uint_eq(json_array_size(json_object_get(figure, "samples")), 3);
    json_decref(root);
    free(text);
}
END_TEST

START_TEST(junit_has_an_element_of_its_own_for_each_verdict)
{
    char *text = written(keel_check_print_junit);
    ck_assert_uint_eq(count(text, "<testsuite "), 3);
    ck_assert_uint_eq(count(text, "<testcase "), RESULTS);
    ck_assert_uint_eq(count(text, "<failure "), 1);
    ck_assert_uint_eq(count(text, "<error "), 1);
    ck_assert_uint_eq(count(text, "<skipped "), 1);
    ck_assert_uint_eq(count(text, "waived until 2099-01-01: known"), 1);
    ck_assert_uint_eq(count(text, "<script"), 0);
    ck_assert_uint_eq(count(text, "&lt;script"), 9);
    ck_assert_uint_eq(count(text, "]]>"), 0);
    keel_free(text);
}
END_TEST

START_TEST(page_stands_alone_has_plots_and_runs_nothing)
{
    char *text = written(keel_check_print_page);
    ck_assert_uint_eq(count(text, "<script"), 0);
    ck_assert_uint_eq(count(text, "src="), count(text, "src=&quot;"));
    ck_assert_uint_eq(count(text, "href="), 0);
    ck_assert_uint_eq(count(text, "url("), 0);
    ck_assert_uint_eq(count(text, "class='dot'"), 3);
    ck_assert_uint_eq(count(text, "<line class='limit'"), 1);
    ck_assert_uint_eq(count(text, "prefers-color-scheme:dark"), 1);
    ck_assert_ptr_nonnull(strstr(text, "beneath the waiver: fail"));
    keel_free(text);
}
END_TEST

START_TEST(of_clpeaks_output_the_most_of_the_right_device_is_read)
{
    static const char text[] = "\nPlatform: Acme\n  Device: One\n    Driver version  : 3 (Linux x64)\n"
                               "    Clock frequency : 2000 MHz\n\n    Global memory bandwidth (GBPS)\n"
                               "      float   : 4.25\n      float2  : 13.5\n      float16 : 8.5\n\n"
                               "    Single-precision compute (GFLOPS)\n      float   : 0.5\n"
                               "      float16 : 10.5\n\n  Device: One more\n"
                               "    Single-precision compute (GFLOPS)\n      float16 : 99\n\n"
                               "Platform: Other\n  Device: One\n    Global memory bandwidth (GBPS)\n"
                               "      float : 77";
    struct keel_clpeak found = keel_clpeak_read(text, "Acme", "One");
    ck_assert(found.gflops > 10.4 && found.gflops < 10.6);
    ck_assert(found.memory_gbs > 13.4 && found.memory_gbs < 13.6);
    found = keel_clpeak_read(text, "Other", "One");
    ck_assert(found.gflops <= 0 && found.memory_gbs > 76);
    found = keel_clpeak_read("sh: 1: exec: clpeak: not found", "Acme", "One");
    ck_assert(found.gflops <= 0 && found.memory_gbs <= 0);
    found = keel_clpeak_read("Platform: Acme\n  Device: One", "Acme", "One");
    ck_assert(found.gflops <= 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, of_clpeaks_output_the_most_of_the_right_device_is_read);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, json_has_every_verdict_and_what_lies_beneath_a_waiver);
    tcase_add_test(tc, junit_has_an_element_of_its_own_for_each_verdict);
    tcase_add_test(tc, page_stands_alone_has_plots_and_runs_nothing);
}

KEEL_TEST_MAIN("check report", cases, 60)
