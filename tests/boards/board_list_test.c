/* board_list_test.c - `keel board list` says what is there, to people and to programs. */
#include "driver_folder.h"
#include <fcntl.h>
#include <jansson.h>
#include <keel/board_cmd.h>
#include <keel/device.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What a call of `keel board` prints, from a file; *code is its exit code. */
static char *board_output(int argc, char **argv, int *code)
{
    char path[KEEL_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    ck_ok(keel_path_join(path, folder, "output"));
    fflush(stdout);
    int saved = dup(1), file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert(saved >= 0 && file >= 0 && dup2(file, 1) == 1);
    *code = keel_board_main(argc, argv);
    fflush(stdout);
    ck_assert(dup2(saved, 1) == 1);
    close(saved);
    close(file);
    ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
    return text;
}

START_TEST(board_list_prints_json_of_all_devices)
{
    add_pocl();
    put("bro\"ken.icd", "/no/such/\"driver\"\\.so\n");
    setenv("OCL_ICD_VENDORS", folder, 1);
    list();
    char *argv[] = {(char[]){"board"}, (char[]){"list"}, (char[]){"--json"}, NULL};
    int code = -1;
    char *text = board_output(3, argv, &code);
    ck_assert_int_eq(code, 0);
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    ck_assert_msg(root != NULL, "%s", error.text);
    ck_assert_str_eq(json_string_value(json_object_get(root, "loader")), loader);
    json_t *shown = json_object_get(root, "devices");
    ck_assert_uint_eq(json_array_size(shown), count);
    for (uint32_t i = 0; i < count; i++) {
        json_t *device = json_array_get(shown, i);
        ck_assert_str_eq(json_string_value(json_object_get(device, "selector")), devices[i].selector);
        ck_assert_str_eq(json_string_value(json_object_get(device, "platform")), devices[i].platform);
        ck_assert_str_eq(json_string_value(json_object_get(device, "passed_over")), devices[i].passed_over);
        ck_assert_uint_eq((uint64_t)json_integer_value(json_object_get(device, "memory_bytes")),
                          devices[i].memory_bytes);
        ck_assert_int_eq(json_is_true(json_object_get(device, "usable")), devices[i].passed_over[0] == '\0');
    }
    json_decref(root);
    keel_free(text);
}
END_TEST

START_TEST(board_list_shows_people_what_was_passed_over)
{
    put("broken.icd", "/no/such/driver.so\n");
    setenv("OCL_ICD_VENDORS", folder, 1);
    char *argv[] = {(char[]){"board"}, (char[]){"list"}, NULL};
    int code = -1;
    char *text = board_output(2, argv, &code);
    ck_assert_int_eq(code, 0);
    static const char *const wanted[] = {"host", "Passed over", "broken.icd", "/no/such/driver.so",
                                         "OpenCL loader: /"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        ck_assert_msg(strstr(text, wanted[i]) != NULL, "%s is not in: %s", wanted[i], text);
    keel_free(text);
}
END_TEST

START_TEST(board_refuses_what_it_does_not_know)
{
    char *verb[] = {(char[]){"board"}, (char[]){"lst"}, NULL};
    char *option[] = {(char[]){"board"}, (char[]){"list"}, (char[]){"--xml"}, NULL};
    char *helped[] = {(char[]){"board"}, (char[]){"--help"}, NULL};
    int code = -1;
    keel_free(board_output(2, verb, &code));
    ck_assert_int_eq(code, 2);
    keel_free(board_output(3, option, &code));
    ck_assert_int_eq(code, 2);
    char *text = board_output(2, helped, &code);
    ck_assert_int_eq(code, 0);
    ck_assert_ptr_nonnull(strstr(text, "examples:"));
    keel_free(text);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, board_list_prints_json_of_all_devices);
    tcase_add_test(tc, board_list_shows_people_what_was_passed_over);
    tcase_add_test(tc, board_refuses_what_it_does_not_know);
}

KEEL_TEST_MAIN("board list", cases, 60)
