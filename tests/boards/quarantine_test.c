/* quarantine_test.c - a board that is not trusted stays out, with its evidence, until it is released. */
#include "harness.h"
#include <keel/quarantine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[] = "/tmp/keel-quarantine-XXXXXX";
static struct keel_quarantine records[KEEL_QUARANTINE_MAX], record;
static uint32_t count;

static const struct keel_device_info board = {.selector = "acme:0", .name = "A1", .platform = "Acme \xc3"};
static const struct keel_device_info other = {.selector = "acme:1", .name = "A1", .platform = "Acme \xc3"};

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("KEEL_STATE", folder, 1), 0);
}

static void tear_down(void)
{
    ck_ok(keel_remove_tree(folder));
}

START_TEST(a_board_is_out_with_its_evidence_and_only_it)
{
    ck_ok(keel_quarantine_admit(&board));
    ck_ok(keel_quarantine_add(&board, "run gpt, rank 2, step 31", "gemm: 01 where 02 is right", NULL));
    ck_status(keel_quarantine_admit(&board), KEEL_DENIED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "gemm: 01 where 02 is right"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "keel board release acme:0"));
    ck_ok(keel_quarantine_admit(&other));
    ck_ok(keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(records[0].where, "run gpt, rank 2, step 31");
    ck_assert_str_eq(records[0].platform, "Acme ?");
    ck_assert(keel_path_is_file(records[0].path));
}
END_TEST

START_TEST(the_first_evidence_stays)
{
    ck_ok(keel_quarantine_add(&board, "first", "one", NULL));
    ck_ok(keel_quarantine_add(&board, "second", "two", &record));
    ck_assert_str_eq(record.evidence, "one");
}
END_TEST

START_TEST(a_newer_driver_does_not_heal_a_board)
{
    struct keel_device_info later = board;
    snprintf(later.version, sizeof later.version, "99");
    ck_ok(keel_quarantine_add(&board, "a run", "wrong bits", NULL));
    ck_status(keel_quarantine_admit(&later), KEEL_DENIED);
}
END_TEST

START_TEST(release_ends_it_and_keeps_the_file)
{
    ck_ok(keel_quarantine_add(&board, "a run", "wrong bits", &record));
    ck_status(keel_quarantine_release("acme:1"), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "acme:0"));
    ck_ok(keel_quarantine_release("acme:0"));
    ck_ok(keel_quarantine_admit(&board));
    char released[KEEL_PATH_BYTES + 16];
    snprintf(released, sizeof released, "%s.released", record.path);
    ck_assert(keel_path_is_file(released));
    ck_status(keel_quarantine_release("acme:0"), KEEL_NOT_FOUND);
}
END_TEST

START_TEST(a_file_that_cannot_be_read_is_no_board_that_is_trusted)
{
    ck_ok(keel_quarantine_add(&board, "a run", "wrong bits", &record));
    ck_ok(keel_file_replace(record.path, "{}", 2, 0644));
    ck_status(keel_quarantine_admit(&board), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), record.path));
    ck_status(keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count), KEEL_CORRUPT);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_board_is_out_with_its_evidence_and_only_it);
    tcase_add_test(tc, the_first_evidence_stays);
    tcase_add_test(tc, a_newer_driver_does_not_heal_a_board);
    tcase_add_test(tc, release_ends_it_and_keeps_the_file);
    tcase_add_test(tc, a_file_that_cannot_be_read_is_no_board_that_is_trusted);
}

KEEL_TEST_MAIN("quarantine", cases, 20)
