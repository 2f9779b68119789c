/* ckpt_cmd_test.c - `keel ckpt`: what ls, show and verify print, in both ways, and the exit codes of all. */
#include "command.h"
#include <errno.h>
#include <keel/command.h>
#include <keel/disk.h>

struct fixture {
    char root[KEEL_PATH_BYTES], run[KEEL_PATH_BYTES], step[KEEL_PATH_BYTES];
};

static struct fixture make_fixture(void)
{
    struct fixture f;
    struct keel_region tensors[4];
    uint64_t state = 41;
    make_directory(f.root);
    struct keel_store *store = open_store(f.root, true);
    for (uint64_t step = 100; step <= 200; step += 100) {
        struct sample_save how = {
            .step = step, .attempt = 3, .salt = step, .rank_count = 2, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 4, &state));
    }
    keel_store_close(store);
    ck_ok(keel_path_join(f.run, f.root, "sample/"));
    ck_ok(keel_path_join(f.step, f.root, "sample/step-100.3"));
    return f;
}

static void damage(const struct fixture *f, const char *name, off_t at)
{
    char path[KEEL_PATH_BYTES];
    uint8_t byte;
    ck_ok(keel_path_join(path, f->root, name));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

START_TEST(ls_lists_newest_first_by_store_and_by_run)
{
    struct fixture f = make_fixture();
    char *paths[] = {f.root, f.run};
    for (int i = 0; i < 2; i++) {
        struct output o = COMMAND("ls", paths[i]);
        ck_assert_int_eq(o.code, 0);
        const char *newest = strstr(o.text, "200  3"), *oldest = strstr(o.text, "100  3");
        ck_assert(newest != NULL && oldest != NULL && newest < oldest);
        o = COMMAND("ls", paths[i], "--json");
        ck_assert_int_eq(o.code, 0);
        json_t *root = parse(&o), *first = json_array_get(json_object_get(root, "snapshots"), 0);
        ck_assert_str_eq(json_string_value(json_object_get(root, "run")), "sample");
        ck_assert_int_eq(json_integer_value(json_object_get(first, "step")), 200);
        ck_assert_int_eq(json_integer_value(json_object_get(first, "shards")), 2);
        json_decref(root);
    }
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(show_lists_tensors_of_the_chosen_snapshot)
{
    struct fixture f = make_fixture();
    struct output o = COMMAND("show", f.root);
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_nonnull(strstr(o.text, "step 200, attempt 3"));
    ck_assert_ptr_nonnull(strstr(o.text, "f32   wte [37 x 24]"));
    ck_assert_ptr_nonnull(strstr(o.text, "c0ffee"));
    o = COMMAND("show", f.step, "--json");
    ck_assert_int_eq(o.code, 0);
    json_t *root = parse(&o), *tensors = json_object_get(root, "tensors");
    ck_assert_int_eq(json_integer_value(json_object_get(root, "step")), 100);
    ck_assert_uint_eq(json_array_size(tensors), 4);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(tensors, 0), "name")), "blocks.0.attn");
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(root, "metadata"), "seed")), 7);
    json_decref(root);
    o = COMMAND("show", "--step", "100", f.root);
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_nonnull(strstr(o.text, "step 100, attempt 3"));
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(verify_tells_sound_from_damaged_by_its_exit_code)
{
    struct fixture f = make_fixture();
    struct output o = COMMAND("verify", f.root);
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_nonnull(strstr(o.text, "all chunks are sound"));
    damage(&f, "sample/step-100.3/rank-0.keel", 4096 + 5);
    o = COMMAND("verify", f.root);
    ck_assert_int_eq(o.code, 0); /* the newest is another */
    o = COMMAND("verify", f.root, "--step", "100");
    ck_assert_int_eq(o.code, 4);
    ck_assert_ptr_nonnull(strstr(o.errors, "rank-0.keel: tensor "));
    o = COMMAND("verify", f.step, "--json");
    ck_assert_int_eq(o.code, 4);
    json_t *root = parse(&o);
    ck_assert_str_eq(json_string_value(json_object_get(root, "status")), "CORRUPT");
    ck_assert_int_eq(json_integer_value(json_object_get(root, "damaged_parts")), 1);
    json_decref(root);
    damage(&f, "sample/step-100.3/rank-1.keel", 9);
    ck_assert_int_eq(COMMAND("show", f.step).code, 4);
    damage(&f, "sample/step-200.3/manifest.json", 40);
    ck_assert_int_eq(COMMAND("ls", f.root).code, 4);
    ck_assert_int_eq(COMMAND("verify", f.root, "--step", "200").code, 4);
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

/* The first chunk of each shard. */
static ssize_t pread_that_fails(int fd, void *data, size_t bytes, uint64_t offset)
{
    if (offset != 4096)
        return keel_disk_posix.pread(fd, data, bytes, offset);
    errno = EIO;
    return -1;
}

START_TEST(what_the_disk_cannot_read_is_damaged_by_its_exit_code_too)
{
    struct fixture f = make_fixture();
    struct keel_disk_ops ops = keel_disk_posix;
    ops.pread = pread_that_fails;
    keel_disk_use(&ops);
    struct output o = COMMAND("verify", f.root);
    keel_disk_use(NULL);
    ck_assert_msg(o.code == 4, "%d: %s", o.code, o.errors);
    ck_assert_ptr_nonnull(strstr(o.errors, strerror(EIO)));
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(empty_folders_beside_a_run_are_no_runs)
{
    struct fixture f = make_fixture();
    char path[KEEL_PATH_BYTES], top[KEEL_PATH_BYTES];
    static const char *const names[] = {"a", "z"};
    make_directory(top);
    for (int i = 0; i < 2; i++) {
        ck_ok(keel_path_join(path, f.root, names[i]));
        ck_ok(keel_mkdir_all(path));
        ck_ok(keel_path_join(path, top, names[i]));
        ck_ok(keel_mkdir_all(path));
        struct output o =
            COMMAND("ls", top); /* one may be a run that has not saved yet, two are asked about */
        ck_assert_msg(i == 0 ? o.code == 0 && strncmp(o.text, "run a: 0", 8) == 0
                             : o.code == 2 && strstr(o.errors, "2 empty directories") != NULL,
                      "%d %s%s", o.code, o.text, o.errors);
    }
    struct output o = COMMAND("ls", f.root);
    ck_assert_msg(o.code == 0 && strncmp(o.text, "run sample: 2", 13) == 0, "%d %s", o.code, o.errors);
    ck_ok(keel_remove_tree(top));
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(a_program_of_these_commands_alone_names_itself)
{
    struct fixture f = make_fixture();
    damage(&f, "sample/step-200.3/manifest.json", 40);
    static char *const lines[][3] = {
        {"ls"}, {"show"}, {"verify", "--step", "100"}, {"verify", "--step", "200"}, {"verify", "--help"}};
    damage(&f, "sample/step-100.3/rank-0.keel", 4096 + 5);
    keel_command_set_program("keel-ckpt");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char *words[] = {lines[i][0], f.root, lines[i][1], lines[i][2]};
        struct output o = run_command(lines[i][2] != NULL ? 4 : lines[i][1] != NULL ? 3 : 2, words);
        ck_assert_msg(strstr(o.text, "keel ckpt") == NULL && strstr(o.errors, "keel ckpt") == NULL, "%s%s",
                      o.text, o.errors);
        ck_assert(strstr(o.text, "keel-ckpt") != NULL || strstr(o.errors, "keel-ckpt") != NULL);
    }
    struct output o = COMMAND("show", f.root, "none", "--json");
    ck_assert_ptr_null(strstr(o.text, "keel ckpt"));
    keel_command_set_program(NULL);
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(json_is_written_in_full_and_takes_no_value)
{
    struct fixture f = make_fixture();
    static char *const words[] = {"--json=", "--json=yes", "--js", "--jso"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct output o = COMMAND("ls", f.root, words[i]);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "%s: --json is written in full", words[i]);
        ck_assert_msg(o.code == 2 && strstr(o.errors, wanted) != NULL, "%d %s", o.code, o.errors);
    }
    ck_assert_ptr_nonnull(strstr(COMMAND("ls", f.root, "--jsonl").errors, "unknown option --jsonl"));
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(wrong_use_and_missing_things_have_their_own_codes)
{
    struct fixture f = make_fixture();
    ck_assert_int_eq(run_command(0, NULL).code, 2);
    ck_assert_int_eq(COMMAND("frobnicate", f.root).code, 2);
    ck_assert_int_eq(COMMAND("ls").code, 2);
    ck_assert_int_eq(COMMAND("ls", f.root, f.root).code, 2);
    ck_assert_int_eq(COMMAND("ls", f.root, "--fast").code, 2);
    ck_assert_int_eq(COMMAND("show", f.root, "--step").code, 2);
    ck_assert_int_eq(COMMAND("show", f.root, "--step", "-3").code, 2);
    ck_assert_int_eq(COMMAND("show", f.root, "--step", "1x").code, 2);
    ck_assert_int_eq(COMMAND("show", f.step, "--step", "200").code, 2);
    ck_assert_int_eq(COMMAND("ls", "").code, 2);
    ck_assert_int_eq(COMMAND("ls", "/nonexistent/store").code, 3);
    ck_assert_int_eq(COMMAND("show", f.root, "--step", "300").code, 3);
    struct output o = COMMAND("--help");
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_nonnull(strstr(o.text, "examples:"));
    ck_assert_int_eq(COMMAND("verify", "--help").code, 0);
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(what_cannot_be_printed_is_no_success)
{
    struct fixture f = make_fixture();
    char *commands[][5] = {{"ckpt", "ls", f.root},
                           {"ckpt", "show", f.root, "--json"},
                           {"ckpt", "--help"},
                           {"ckpt", "diff", f.root, f.step}}; /* differs: 1 as well, but told */
    for (int i = 0; i < 4; i++) {
        char errors[4096];
        int count = 0;
        while (commands[i][count] != NULL)
            count++;
        fflush(NULL);
        int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO), full = open("/dev/full", O_WRONLY);
        FILE *told = tmpfile();
        ck_assert_ptr_nonnull(told);
        dup2(full, STDOUT_FILENO);
        dup2(fileno(told), STDERR_FILENO);
        int code = keel_ckpt_main(count, commands[i]);
        fflush(NULL);
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        close(out);
        close(err);
        close(full);
        slurp(told, errors, sizeof errors);
        ck_assert_int_eq(code, 1);
        ck_assert_msg(strstr(errors, "standard output cannot be written") != NULL, "%s: %s", commands[i][1],
                      errors);
    }
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(the_highest_step_there_is_is_told_as_it_is)
{
    char top[KEEL_PATH_BYTES];
    struct keel_region tensors[4];
    uint64_t state = 3;
    make_directory(top);
    struct keel_store *store = open_store(top, true);
    struct sample_save how = {.step = UINT64_MAX, .attempt = 1, .rank_count = 1};
    ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 1, &state));
    keel_store_close(store);
    struct output o = COMMAND("show", top, "--step", "18446744073709551615", "--json");
    ck_assert_msg(o.code == 0, "%s", o.errors);
    json_t *root = parse(&o);
    ck_assert_str_eq(json_string_value(json_object_get(root, "step")), "18446744073709551615");
    json_decref(root);
    ck_ok(keel_remove_tree(top));
}
END_TEST

/* Whoever reads the output gets an object, whatever went wrong. */
START_TEST(json_is_an_object_on_errors_too)
{
    static char nowhere[] = "/nowhere/at/all", file[] = "/dev/null";
    struct fixture f = make_fixture();
    char *lines[][6] = {{"ls", nowhere},
                        {"show", nowhere},
                        {"show", f.root, "--step", "7"},
                        {"verify", nowhere},
                        {"gc", nowhere, "--keep", "2"},
                        {"gc", f.root, "--keep", "1"},
                        {"repair", nowhere},
                        {"repair", f.root, "--step", "7"},
                        {"diff", nowhere, f.root},
                        {"diff", f.root},
                        {"export", nowhere, file},
                        {"import", nowhere, f.root},
                        {"ls"},
                        {"ls", f.root, "--unknown"},
                        {"unknown", f.root}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char *words[8];
        int count = 0;
        while (count < 6 && lines[i][count] != NULL) {
            words[count] = lines[i][count];
            count++;
        }
        words[count++] = "--json";
        struct output o = run_command(count, words);
        ck_assert_int_ne(o.code, 0);
        json_t *root = parse(&o), *error = json_object_get(root, "error");
        const char *detail = json_string_value(json_object_get(error, "detail"));
        ck_assert_msg(detail != NULL && detail[0] != '\0', "%s: %s", lines[i][0], o.text);
        ck_assert_msg(strstr(o.errors, detail) != NULL, "%s: %s: %s", lines[i][0], detail, o.errors);
        ck_assert_int_eq(json_integer_value(json_object_get(root, "exit")), o.code);
        json_decref(root);
    }
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, ls_lists_newest_first_by_store_and_by_run);
    tcase_add_test(tc, show_lists_tensors_of_the_chosen_snapshot);
    tcase_add_test(tc, what_the_disk_cannot_read_is_damaged_by_its_exit_code_too);
    tcase_add_test(tc, empty_folders_beside_a_run_are_no_runs);
    tcase_add_test(tc, a_program_of_these_commands_alone_names_itself);
    tcase_add_test(tc, json_is_written_in_full_and_takes_no_value);
    tcase_add_test(tc, verify_tells_sound_from_damaged_by_its_exit_code);
    tcase_add_test(tc, json_is_an_object_on_errors_too);
    tcase_add_test(tc, what_cannot_be_printed_is_no_success);
    tcase_add_test(tc, the_highest_step_there_is_is_told_as_it_is);
    tcase_add_test(tc, wrong_use_and_missing_things_have_their_own_codes);
}

KEEL_TEST_MAIN("ckpt_cmd", cases, 60)
