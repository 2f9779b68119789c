/* check_verdict_test.c - the four verdicts are never mixed: waivers, the exit code, choosing checks, and what
 * a check's process says. */
#include "check_runner.h"
#include "harness.h"
#include <keel/memory.h>
#include <math.h>
#include <string.h>

static struct keel_check_result result;
static struct keel_check_report report;
static const struct keel_check check = {.id = "5.1", .name = "launch"};
static char heard[64];

static void progress(void *context, const struct keel_check *of, uint64_t done, uint64_t total,
                     const char *what)
{
    (void)context;
    snprintf(heard, sizeof heard, "%s %d/%d %s", of->id, (int)done, (int)total, what);
}
static const struct keel_check_watcher watcher = {.progress = progress};

static void set_up(void)
{
    memset(&result, 0, sizeof result);
    memset(&report, 0, sizeof report);
    result.check = &check;
}

static void give(enum keel_verdict verdict, const char *until)
{
    set_up();
    result.verdict = verdict;
    snprintf(result.reason, sizeof result.reason, "it is slow");
    snprintf(result.waiver, sizeof result.waiver, "%s", until[0] != '\0' ? "known" : "");
    snprintf(result.waiver_until, sizeof result.waiver_until, "%s", until);
    keel_check_waive(&result, "2026-11-21");
}

START_TEST(waiver_covers_a_fail_until_its_last_day)
{
    give(KEEL_VERDICT_FAIL, "2026-11-21");
    ck_assert_int_eq(result.verdict, KEEL_VERDICT_WAIVED);
    ck_assert_int_eq(result.beneath, KEEL_VERDICT_FAIL);
    ck_assert_str_eq(result.reason, "it is slow");
    give(KEEL_VERDICT_CANNOT, "2027-01-01");
    ck_assert_int_eq(result.verdict, KEEL_VERDICT_WAIVED);
    ck_assert_int_eq(result.beneath, KEEL_VERDICT_CANNOT);
}
END_TEST

START_TEST(waiver_that_has_ended_covers_nothing_and_is_named)
{
    give(KEEL_VERDICT_FAIL, "2026-11-20");
    ck_assert_int_eq(result.verdict, KEEL_VERDICT_FAIL);
    ck_assert_str_eq(result.reason, "it is slow (its waiver ended on 2026-11-20)");
}
END_TEST

START_TEST(waiver_makes_nothing_of_a_pass)
{
    give(KEEL_VERDICT_PASS, "2099-01-01");
    ck_assert_int_eq(result.verdict, KEEL_VERDICT_PASS);
    give(KEEL_VERDICT_FAIL, "");
    ck_assert_int_eq(result.verdict, KEEL_VERDICT_FAIL);
}
END_TEST

START_TEST(what_is_no_number_is_within_no_limit)
{
    static const double wrong[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++)
        for (int less = 0; less < 2; less++) {
            ck_assert(!keel_check_within(wrong[i], 7, less != 0));
            ck_assert(!keel_check_within(wrong[i], 0, less != 0));
        }
    ck_assert(keel_check_within(7, 7, true) && keel_check_within(7, 7, false));
    ck_assert(keel_check_within(8, 7, false) && !keel_check_within(8, 7, true));
    ck_assert(keel_check_within(6, 7, true) && !keel_check_within(6, 7, false));
    ck_assert(keel_check_within(1e9, 0, true) && keel_check_within(1e-9, 0, false));
}
END_TEST

START_TEST(exit_code_is_1_for_a_fail_3_for_could_not_run_0_for_the_rest)
{
    report.verdicts[KEEL_VERDICT_PASS] = 5;
    report.verdicts[KEEL_VERDICT_WAIVED] = 2;
    ck_assert_int_eq(keel_check_exit_code(&report), 0);
    ck_assert_str_eq(keel_check_overall(&report), "pass");
    report.verdicts[KEEL_VERDICT_CANNOT] = 1;
    ck_assert_int_eq(keel_check_exit_code(&report), 3);
    ck_assert_str_eq(keel_check_overall(&report), "could-not-run");
    report.verdicts[KEEL_VERDICT_FAIL] = 1;
    ck_assert_int_eq(keel_check_exit_code(&report), 1);
    ck_assert_str_eq(keel_check_overall(&report), "fail");
}
END_TEST

static uint32_t chosen(const char *words)
{
    bool selected[KEEL_CHECKS_MAX];
    uint32_t count = 0;
    ck_ok(keel_check_select(words, selected));
    for (uint32_t i = 0; i < KEEL_CHECKS_MAX; i++)
        count += selected[i];
    return count;
}

START_TEST(checks_are_chosen_by_level_range_id_and_name)
{
    bool selected[KEEL_CHECKS_MAX];
    ck_assert_uint_eq(chosen("all"), keel_check_count());
    ck_assert_uint_eq(chosen("0-8"), keel_check_count());
    ck_assert_uint_eq(chosen("0,1"), chosen("0-1"));
    ck_assert_uint_eq(chosen("4.1"), 1);
    ck_assert_uint_eq(chosen("golden"), 1);
    ck_assert_uint_eq(chosen("4.1,golden,4"), chosen("4"));
    ck_status(keel_check_select("9", selected), KEEL_INVALID);
    ck_status(keel_check_select("5-4", selected), KEEL_INVALID);
    ck_status(keel_check_select("gelden", selected), KEEL_INVALID);
    ck_status(keel_check_select("", selected), KEEL_INVALID);
}
END_TEST

START_TEST(checks_have_ids_of_their_own_in_order_of_level_and_need_earlier_ones)
{
    for (uint32_t i = 0; i < keel_check_count(); i++) {
        const struct keel_check *at = keel_check_at(i);
        ck_assert_ptr_eq(keel_check_find(at->id), at);
        ck_assert_ptr_eq(keel_check_find(at->name), at);
        ck_assert_msg(at->id[0] >= '0' && at->id[0] <= '8' && at->id[1] == '.', "%s", at->id);
        ck_assert_msg(at->limit_s > 0 && at->run != NULL && at->claim != NULL, "%s", at->id);
        if (i > 0)
            ck_assert_msg(at->id[0] >= keel_check_at(i - 1)->id[0], "%s", at->id);
        bool earlier = at->needs == NULL;
        for (uint32_t k = 0; k < i && !earlier; k++)
            earlier = strcmp(keel_check_at(k)->id, at->needs) == 0;
        ck_assert_msg(earlier, "%s needs %s", at->id, at->needs);
    }
}
END_TEST

static bool hear(const char *line)
{
    return keel_check_hear(line, &report, &result, &watcher);
}

START_TEST(what_a_process_says_is_kept)
{
    ck_assert(hear("{\"say\":\"board\",\"selector\":\"acme:0\",\"version\":\"7\"}"));
    ck_assert(hear("{\"say\":\"board\",\"selector\":\"acme:1\"}"));
    ck_assert_str_eq(report.board.selector, "acme:0");
    ck_assert(hear(
        "{\"say\":\"figure\",\"name\":\"launch_us\",\"unit\":\"us\",\"less_is_better\":true,\"value\":2.5,"
        "\"limit\":3,\"samples\":[2,2.5,9]}"));
    ck_assert_uint_eq(result.figures[0].sample_count, 3);
    ck_assert_int_eq(result.figures[0].better, KEEL_BETTER_LESS);
    ck_assert(result.figures[0].value > 2.4 && result.figures[0].value < 2.6);
    ck_assert(hear("{\"say\":\"progress\",\"done\":1,\"total\":4,\"what\":\"warming\"}"));
    ck_assert_str_eq(heard, "5.1 1/4 warming");
    ck_assert(hear("{\"say\":\"verdict\",\"verdict\":\"fail\",\"reason\":\"slow\"}"));
    ck_assert_int_eq(result.verdict, KEEL_VERDICT_FAIL);
    ck_assert_str_eq(result.reason, "slow");
}
END_TEST

START_TEST(what_a_process_cannot_say_is_not_taken)
{
    ck_assert(!hear("{\"say\":\"verdict\",\"verdict\":\"waived\"}")); /* the runner alone waives */
    ck_assert(!hear("{\"say\":\"verdict\",\"verdict\":\"splendid\"}"));
    ck_assert(!hear("{\"say\":\"song\"}"));
    ck_assert(!hear("pocl: warning: nothing of ours"));
    ck_assert(!hear("{\"say\":\"verdict\",\"verdict\":"));
    ck_assert_int_eq(result.verdict, KEEL_VERDICT_PASS);
    for (int i = 0; i < KEEL_CHECK_NOTES_MAX; i++)
        ck_assert(hear("{\"say\":\"note\",\"text\":\"a line\"}"));
    ck_assert(!hear("{\"say\":\"note\",\"text\":\"one too many\"}"));
    for (int i = 0; i < KEEL_CHECK_FIGURES_MAX; i++)
        ck_assert(hear("{\"say\":\"figure\",\"name\":\"x\"}"));
    ck_assert(!hear("{\"say\":\"figure\",\"name\":\"x\"}"));
}
END_TEST

START_TEST(two_runs_that_tell_nothing_are_not_alike)
{
    static const char first[] = "{\"step\":1,\"loss_bits\":\"4084528f\",\"digest\":\"2faea6f86b320b84\"}\n";
    static const char second[] = "{\"step\":2,\"loss_bits\":\"4083c5d6\",\"digest\":\"c10eb390dbb39a9f\"}";
    char text[256], *bits = NULL;
    ck_status(keel_check_bits("", 1, &bits), KEEL_CORRUPT);
    ck_status(keel_check_bits("{\"step\":1}\n", 1, &bits), KEEL_CORRUPT);
    ck_status(keel_check_bits("{\"loss_bits\":\"4084\",\"digest\":\"2faea6f86b320b84\"}\n", 1, &bits),
              KEEL_CORRUPT);
    ck_status(keel_check_bits("{\"loss_bits\":\"4084528f\"}\n{\"digest\":\"2faea6f86b320b84\"}\n", 1, &bits),
              KEEL_CORRUPT);
    ck_status(keel_check_bits(first, 2, &bits), KEEL_CORRUPT);
    snprintf(text, sizeof text, "%s%s", first, second);
    ck_status(keel_check_bits(text, 1, &bits), KEEL_CORRUPT);
    ck_ok(keel_check_bits(text, 2, &bits));
    ck_assert_str_eq(bits, "4084528f 2faea6f86b320b84\n4083c5d6 c10eb390dbb39a9f\n");
    keel_free(bits);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_test(tc, what_is_no_number_is_within_no_limit);
    tcase_add_test(tc, waiver_covers_a_fail_until_its_last_day);
    tcase_add_test(tc, waiver_that_has_ended_covers_nothing_and_is_named);
    tcase_add_test(tc, waiver_makes_nothing_of_a_pass);
    tcase_add_test(tc, exit_code_is_1_for_a_fail_3_for_could_not_run_0_for_the_rest);
    tcase_add_test(tc, checks_are_chosen_by_level_range_id_and_name);
    tcase_add_test(tc, checks_have_ids_of_their_own_in_order_of_level_and_need_earlier_ones);
    tcase_add_test(tc, what_a_process_says_is_kept);
    tcase_add_test(tc, what_a_process_cannot_say_is_not_taken);
    tcase_add_test(tc, two_runs_that_tell_nothing_are_not_alike);
}

KEEL_TEST_MAIN("check verdict", cases, 60)
