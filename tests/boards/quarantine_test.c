/* quarantine_test.c - a board that is not trusted stays out, with its evidence, until it is released. */
#include "harness.h"
#include <keel/memory.h>
#include <keel/quarantine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/keel-quarantine-XXXXXX";
static struct keel_quarantine records[KEEL_QUARANTINE_MAX], record;
static uint32_t count;

static const struct keel_device_info board = {
    .selector = "acme:0", .name = "A1", .platform = "Acme \xc3", .identity = "uuid 01"};
static const struct keel_device_info other = {
    .selector = "acme:1", .name = "A1", .platform = "Acme \xc3", .identity = "uuid 02"};

static enum keel_status add(const struct keel_device_info *info, const char *where, const char *evidence,
                            struct keel_quarantine *out)
{
    const struct keel_quarantine_finding finding = {.where = where, .evidence = evidence};
    return keel_quarantine_add(info, &finding, out);
}

static enum keel_status admit(const struct keel_device_info *info)
{
    bool probation = true;
    enum keel_status status = keel_quarantine_admit(info, &probation);
    ck_assert(status != KEEL_OK || !probation);
    return status;
}

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
    ck_ok(admit(&board));
    ck_ok(add(&board, "run gpt, rank 2, step 31", "gemm: 01 where 02 is right", NULL));
    ck_status(admit(&board), KEEL_DENIED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "gemm: 01 where 02 is right"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "keel board release acme:0"));
    ck_ok(admit(&other));
    ck_ok(keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(records[0].where, "run gpt, rank 2, step 31");
    ck_assert_str_eq(records[0].platform, "Acme ?");
    ck_assert(keel_path_is_file(records[0].path));
}
END_TEST

START_TEST(the_first_evidence_stays)
{
    ck_ok(add(&board, "first", "one", NULL));
    ck_ok(add(&board, "second", "two", &record));
    ck_assert_str_eq(record.evidence, "one");
}
END_TEST

START_TEST(a_newer_driver_does_not_heal_a_board)
{
    struct keel_device_info later = board;
    snprintf(later.version, sizeof later.version, "99");
    ck_ok(add(&board, "a run", "wrong bits", NULL));
    ck_status(admit(&later), KEEL_DENIED);
}
END_TEST

START_TEST(release_ends_it_and_keeps_the_file)
{
    ck_ok(add(&board, "a run", "wrong bits", &record));
    ck_status(keel_quarantine_release("acme:1"), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "acme:0"));
    ck_ok(keel_quarantine_release("acme:0"));
    ck_ok(admit(&board));
    char released[KEEL_PATH_BYTES + 16];
    snprintf(released, sizeof released, "%s.released", record.path);
    ck_assert(keel_path_is_file(released));
    ck_status(keel_quarantine_release("acme:0"), KEEL_NOT_FOUND);
}
END_TEST

static void find_memory(uint32_t findings_wanted)
{
    const struct keel_quarantine_finding finding = {
        .kind = KEEL_QUARANTINE_MEMORY, .where = "a run", .evidence = "a bit changed"};
    ck_ok(keel_quarantine_add(&board, &finding, &record));
    ck_assert_uint_eq(record.findings, findings_wanted);
}

START_TEST(memory_puts_a_board_on_probation_and_the_third_finding_keeps_it_out)
{
    bool probation = false;
    find_memory(1);
    ck_ok(keel_quarantine_admit(&board, &probation));
    ck_assert(probation);
    ck_ok(admit(&other));
    ck_ok(keel_quarantine_passed(&board));
    ck_ok(admit(&board)); /* no probation any more */
    find_memory(2);       /* counted all the same */
    ck_ok(keel_quarantine_admit(&board, &probation));
    ck_assert(probation);
    ck_ok(keel_quarantine_passed(&board));
    find_memory(3);
    ck_ok(keel_quarantine_passed(&board)); /* three are more than a run may end */
    ck_status(admit(&board), KEEL_DENIED);
    ck_ok(keel_quarantine_release("acme:0"));
    ck_ok(admit(&board));
}
END_TEST

START_TEST(memory_findings_far_apart_are_counted_anew)
{
    static const char key[] = "\"last_s\": ";
    char number[32], *text;
    size_t bytes;
    find_memory(1);
    find_memory(2);
    ck_ok(keel_file_read(record.path, 4096, &text, &bytes));
    char *digits = strstr(text, key);
    ck_assert_ptr_nonnull(digits);
    digits += sizeof key - 1;
    int length =
        snprintf(number, sizeof number, "%llu", (unsigned long long)(record.last_s - UINT64_C(86400) * 31));
    memcpy(digits, number, (size_t)length);
    ck_ok(keel_file_replace(record.path, text, bytes, 0644));
    keel_free(text);
    find_memory(1);
}
END_TEST

START_TEST(wrong_bits_after_a_finding_of_memory_keep_the_board_out)
{
    find_memory(1);
    ck_ok(add(&board, "another run", "gemm is wrong", &record));
    ck_assert_str_eq(record.evidence, "gemm is wrong");
    ck_status(admit(&board), KEEL_DENIED);
}
END_TEST

enum { RACES = 50 };

START_TEST(wrong_bits_found_at_once_with_memory_are_not_lost)
{
    int gate[2], status;
    ck_assert_int_eq(pipe(gate), 0);
    for (int i = 0; i < 2; i++) {
        if (fork() == 0) {
            struct keel_quarantine_finding finding = {.kind = i == 0 ? KEEL_QUARANTINE_WRONG_BITS
                                                                     : KEEL_QUARANTINE_MEMORY,
                                                      .where = "run",
                                                      .evidence = "x"};
            char byte;
            close(gate[1]);
            (void)!read(gate[0], &byte, 1); /* both start when the gate is closed */
            _exit(keel_quarantine_add(&board, &finding, NULL) == KEEL_OK ? 0 : 1);
        }
    }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < 2; i++) {
        ck_assert(wait(&status) > 0);
        ck_assert_int_eq(status, 0);
    }
    bool found;
    ck_ok(keel_quarantine_find(&board, &record, &found));
    ck_assert(found);
    ck_assert_int_eq(record.kind, KEEL_QUARANTINE_WRONG_BITS);
}
END_TEST

START_TEST(a_drills_finding_is_its_runs_alone)
{
    char directory[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(directory, folder, "run"));
    const struct keel_quarantine_finding finding = {
        .where = "run drill", .evidence = "wrong", .directory = directory};
    ck_ok(keel_quarantine_add(&board, &finding, &record));
    ck_assert_int_eq(strncmp(record.path, directory, strlen(directory)), 0);
    ck_assert(keel_path_is_file(record.path));
    ck_ok(admit(&board));
    ck_ok(keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count));
    ck_assert_uint_eq(count, 0);
}
END_TEST

static struct keel_device_info as(const struct keel_device_info *card, const char *selector,
                                  const char *identity)
{
    struct keel_device_info info = *card;
    snprintf(info.selector, sizeof info.selector, "%s", selector);
    snprintf(info.identity, sizeof info.identity, "%s", identity);
    return info;
}

START_TEST(a_card_that_comes_back_under_another_selector_stays_out_and_its_neighbour_in)
{
    const struct keel_device_info sick = as(&other, "acme:0", other.identity);
    const struct keel_device_info sound = as(&board, "acme:1", board.identity);
    ck_ok(add(&other, "a run", "wrong bits", NULL));
    ck_status(admit(&sick), KEEL_DENIED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "acme:0, then acme:1,"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "keel board release acme:1"));
    ck_ok(admit(&sound));
    ck_ok(keel_quarantine_release("acme:1"));
    ck_ok(admit(&sick));
}
END_TEST

START_TEST(without_an_identity_all_boards_alike_are_out_and_the_message_says_so)
{
    const struct keel_device_info first = as(&board, "acme:0", ""), second = as(&board, "acme:1", "");
    struct keel_device_info larger = second;
    snprintf(larger.name, sizeof larger.name, "A2");
    ck_ok(add(&first, "a run", "wrong bits", NULL));
    ck_status(admit(&second), KEEL_DENIED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tells no identity"));
    ck_status(admit(&board), KEEL_DENIED); /* a newer driver tells, the file does not */
    ck_ok(admit(&larger));
    ck_ok(keel_quarantine_release("acme:0"));
    ck_ok(admit(&second));
}
END_TEST

START_TEST(where_two_cards_had_a_selector_the_file_says_which_is_released)
{
    const struct keel_device_info later = as(&board, "acme:1", board.identity);
    ck_ok(add(&other, "a run", "wrong bits", &record));
    ck_ok(add(&later, "a run", "wrong bits", NULL));
    ck_status(keel_quarantine_release("acme:1"), KEEL_INVALID);
    const char *file = strrchr(record.path, '/') + 1;
    ck_assert_ptr_nonnull(strstr(keel_detail(), file));
    ck_ok(keel_quarantine_release(file));
    ck_ok(admit(&other));
    ck_status(admit(&later), KEEL_DENIED);
}
END_TEST

START_TEST(a_file_of_an_older_version_keeps_its_board_out)
{
    char host[KEEL_QUARANTINE_WHERE_BYTES] = "", text[1024], path[KEEL_PATH_BYTES];
    ck_assert_int_eq(gethostname(host, sizeof host - 1), 0);
    snprintf(text, sizeof text,
             "{\"format\": 1, \"selector\": \"acme:0\", \"name\": \"A1\", \"platform\": \"Acme ?\","
             "\"version\": \"1\", \"host\": \"%s\", \"where\": \"a run\", \"evidence\": \"wrong bits\","
             "\"since\": \"2026-11-21T13:02:11Z\"}",
             host);
    ck_ok(keel_quarantine_folder(path));
    ck_ok(keel_mkdir_all(path));
    ck_ok(keel_path_join(path, path, "acme_0-0a1b2c3d.json"));
    ck_ok(keel_file_replace(path, text, strlen(text), 0644));
    ck_status(admit(&board), KEEL_DENIED);
    ck_ok(keel_quarantine_release("acme:0"));
    ck_ok(admit(&board));
}
END_TEST

/* What the driver of a card answers, by what it is asked. */
static void expect_identity(const char *claims, const char *wanted)
{
    static struct keel_device_info devices[KEEL_DEVICE_LIST_MAX];
    char loader[KEEL_DEVICE_NAME_BYTES], layer[KEEL_PATH_BYTES];
    const char *build = getenv("BUILD");
    snprintf(layer, sizeof layer, "%s/libkeel-emulated.so", build != NULL ? build : "build");
    setenv("OPENCL_LAYERS", layer, 1);
    setenv("EMULATED_INFO", claims, 1);
    ck_ok(keel_device_list(devices, KEEL_DEVICE_LIST_MAX, &count, loader));
    ck_assert_str_eq(devices[0].name, "a card"); /* the layer is there */
    ck_assert_str_eq(devices[0].identity, wanted);
}

START_TEST(a_card_is_what_its_driver_answers)
{
    static const char *const answers[][2] = {
        {"uuid=0102030405060708090a0b0c0d0e0f10;pci=0000000001000000000000000000000",
         "uuid 0102030405060708090a0b0c0d0e0f10"},
        {"uuid=00000000000000000000000000000000;pci=010000003b0000001f00000007000000", "pci 0001:3b:1f.7"},
        {"pci=00000000000000000000000000000000", ""},
        {"vendor_id=0x10de;pci_bus_nv=59;pci_slot_nv=9", "pci 0000:3b:01.1"},
        {"vendor_id=0x1002;topology_amd=0100000000000000000000000000000000000000003b0001",
         "pci 0000:3b:00.1"},
        {"vendor_id=0x1002;pci_bus_nv=59;pci_slot_nv=9", ""}};
    char claims[256];
    snprintf(claims, sizeof claims, "name=a card;%s", answers[_i][0]);
    expect_identity(claims, answers[_i][1]);
}
END_TEST
enum { ANSWERS = 6 };

START_TEST(a_file_that_cannot_be_read_is_no_board_that_is_trusted)
{
    ck_ok(add(&board, "a run", "wrong bits", &record));
    ck_ok(keel_file_replace(record.path, "{}", 2, 0644));
    ck_status(admit(&board), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), record.path));
    ck_status(keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count), KEEL_CORRUPT);
}
END_TEST

START_TEST(a_file_that_cannot_be_read_hides_no_other)
{
    ck_ok(add(&other, "a run", "wrong bits", NULL));
    ck_ok(add(&board, "a run", "wrong bits", &record));
    ck_ok(keel_file_replace(record.path, "{}", 2, 0644));
    ck_status(keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count), KEEL_CORRUPT);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(records[0].selector, "acme:1");
    ck_ok(keel_quarantine_release("acme:1"));
    ck_status(keel_quarantine_release("acme:0"), KEEL_CORRUPT);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_board_is_out_with_its_evidence_and_only_it);
    tcase_add_test(tc, memory_puts_a_board_on_probation_and_the_third_finding_keeps_it_out);
    tcase_add_test(tc, memory_findings_far_apart_are_counted_anew);
    tcase_add_test(tc, wrong_bits_after_a_finding_of_memory_keep_the_board_out);
    tcase_add_loop_test(tc, wrong_bits_found_at_once_with_memory_are_not_lost, 0, RACES);
    tcase_add_test(tc, a_drills_finding_is_its_runs_alone);
    tcase_add_test(tc, the_first_evidence_stays);
    tcase_add_test(tc, a_newer_driver_does_not_heal_a_board);
    tcase_add_test(tc, release_ends_it_and_keeps_the_file);
    tcase_add_test(tc, a_card_that_comes_back_under_another_selector_stays_out_and_its_neighbour_in);
    tcase_add_test(tc, without_an_identity_all_boards_alike_are_out_and_the_message_says_so);
    tcase_add_test(tc, where_two_cards_had_a_selector_the_file_says_which_is_released);
    tcase_add_test(tc, a_file_of_an_older_version_keeps_its_board_out);
    tcase_add_loop_test(tc, a_card_is_what_its_driver_answers, 0, ANSWERS);
    tcase_add_test(tc, a_file_that_cannot_be_read_is_no_board_that_is_trusted);
    tcase_add_test(tc, a_file_that_cannot_be_read_hides_no_other);
}

KEEL_TEST_MAIN("quarantine", cases, 20)
