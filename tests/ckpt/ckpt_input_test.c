/* ckpt_input_test.c - `keel ckpt` on what is no sound store: one message that names the thing and the next
 * move, the exit code that says whose matter it is, and nothing is changed. */
#include "command.h"

struct store_files {
    char root[KEEL_PATH_BYTES], run[KEEL_PATH_BYTES];
};

/* Steps 100 and, as deltas of it, 200, of one rank. */
static struct store_files make_store(void)
{
    struct store_files f;
    struct keel_region tensors[4];
    uint64_t state = 53;
    make_directory(f.root);
    struct keel_store *store = open_store(f.root, true);
    for (uint64_t step = 100; step <= 200; step += 100) {
        struct sample_save how = {
            .step = step, .attempt = 3, .salt = 1, .rank_count = 1, .codec = KEEL_CODEC_DELTA};
        ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 1, &state));
    }
    keel_store_close(store);
    ck_ok(keel_path_join(f.run, f.root, "sample"));
    return f;
}

static void path_in(const struct store_files *f, const char *name, char out[KEEL_PATH_BYTES])
{
    ck_ok(keel_path_join(out, f->run, name));
}

/* All commands that look at a snapshot end with the code and say the words. */
static void expect(const struct store_files *f, char *path, char *step, int code, const char *words)
{
    static char *const commands[] = {"show", "verify", "export"};
    char out[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(out, f->root, "out.safetensors"));
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char *argv[] = {commands[i], path, "--step", step, out};
        if (i == 2) { /* PATH OUT come together */
            argv[2] = out;
            argv[3] = "--step";
            argv[4] = step;
        }
        struct output o = run_command(i == 2 ? 5 : 4, argv);
        ck_assert_msg(o.code == code && strstr(o.errors, words) != NULL, "%s: exit %d, %s", commands[i],
                      o.code, o.errors);
        ck_assert(!keel_path_exists(out));
    }
}

START_TEST(what_is_no_store_is_told_by_what_it_is)
{
    char top[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    static char *const commands[] = {"ls", "show", "verify", "gc", "repair"};
    make_directory(top);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct output o = COMMAND(commands[i], top);
        ck_assert_msg(o.code == 3 && strstr(o.errors, "holds no run"), "%s: %d %s", commands[i], o.code,
                      o.errors);
    }
    ck_ok(keel_path_join(path, top, "notes"));
    ck_ok(keel_file_append(path, "text", 4, false));
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct output o = COMMAND(commands[i], path);
        ck_assert_msg(o.code == 2 && strstr(o.errors, "is a file"), "%s: %d %s", commands[i], o.code,
                      o.errors);
    }
    ck_ok(keel_path_join(path, top, "one"));
    ck_ok(keel_mkdir_all(path));
    ck_assert_int_eq(COMMAND("ls", top).code, 0); /* a run that has saved nothing yet */
    ck_assert_int_eq(COMMAND("gc", top, "--keep", "2").code, 0);
    ck_assert_int_eq(COMMAND("show", top).code, 3);
    ck_assert_int_eq(COMMAND("verify", top, "--all").code, 3);
    ck_ok(keel_path_join(path, top, "two"));
    ck_ok(keel_mkdir_all(path));
    struct output o = COMMAND("ls", top);
    ck_assert_int_eq(o.code, 2);
    ck_assert_ptr_nonnull(strstr(o.errors, "holds 2 empty directories, and no snapshot; name the run"));
    ck_ok(keel_remove_tree(top));
}
END_TEST

START_TEST(a_store_under_another_runs_name_is_refused)
{
    struct store_files f = make_store();
    char other[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(other, f.root, "another"));
    ck_assert_int_eq(rename(f.run, other), 0);
    struct output o = COMMAND("ls", f.root);
    ck_assert_int_eq(o.code, 4);
    ck_assert_ptr_nonnull(strstr(o.text, "2 more cannot be read"));
    o = COMMAND("verify", other, "--step", "100");
    ck_assert_int_eq(o.code, 4);
    ck_assert_ptr_nonnull(strstr(o.errors, "sample/step-100.3"));
    o = COMMAND("gc", other, "--keep", "2");
    ck_assert_int_eq(o.code, 0); /* what it cannot read it does not remove */
    ck_ok(keel_path_join(f.run, other, "step-100.3/manifest.json"));
    ck_assert(keel_path_exists(f.run));
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(a_newer_version_is_told_apart_from_damage)
{
    struct store_files f = make_store();
    char path[KEEL_PATH_BYTES], *text, hex[3];
    size_t bytes;
    uint8_t digest[KEEL_DIGEST_BYTES];
    path_in(&f, "step-200.3/manifest.json", path);
    ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
    char *at = strstr(text, "\"version\": 1");
    ck_assert_ptr_nonnull(at);
    at[strlen("\"version\": ")] = '2';
    keel_format_digest(text, bytes - 36, digest);
    for (size_t i = 0; i < sizeof digest; i++) {
        snprintf(hex, sizeof hex, "%02x", digest[i]);
        memcpy(text + bytes - 36 + 2 * i, hex, 2);
    }
    ck_ok(keel_file_replace(path, text, bytes, 0666));
    keel_free(text);
    expect(&f, f.root, "200", 4, "its version is 2, this program reads 1; use a newer Keel");
    struct output o = COMMAND("verify", f.root, "--step", "200");
    ck_assert_msg(strstr(o.text, "a newer Keel is needed") != NULL, "%s", o.text);
    ck_assert_msg(strstr(o.text, "damaged;") == NULL && strstr(o.text, "repair") == NULL, "%s", o.text);
    o = COMMAND("verify", f.root, "--step", "200", "--json");
    json_t *root = parse(&o);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "damaged_parts")), 0);
    ck_assert_str_eq(json_string_value(json_object_get(root, "status")), keel_status_name(KEEL_VERSION));
    ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(root, "first")), "its version is 2"));
    json_decref(root);
    o = COMMAND("repair", f.root, "--step", "200");
    ck_assert_msg(o.code == 4 && strstr(o.errors, "its version is 2") != NULL, "%d %s", o.code, o.errors);
    ck_assert_msg(strstr(o.errors, "lost") == NULL, "%s", o.errors);
    o = COMMAND("ls", f.root);
    ck_assert_msg(strstr(o.text, "1 more are of a newer format version") != NULL, "%s", o.text);
    ck_assert_msg(strstr(o.text, "damaged") == NULL, "%s", o.text);
    o = COMMAND("gc", f.root, "--keep", "2");
    ck_assert_int_eq(o.code, 0);
    path_in(&f, "step-100.3/manifest.json", path); /* which the newer one may need */
    ck_assert(keel_path_exists(path));
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

/* Version 3 in the header of step 100's shard, its check renewed. */
START_TEST(a_shard_of_a_newer_version_says_which_and_what_reads_it)
{
    struct store_files f = make_store();
    char path[KEEL_PATH_BYTES];
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    struct keel_format_header header;
    path_in(&f, "step-100.3/rank-0.keel", path);
    int fd = open(path, O_RDWR);
    ck_assert_int_eq(pread(fd, block, sizeof block, 0), sizeof block);
    memcpy(&header, block, sizeof header);
    header.version = 3;
    keel_format_header_seal(&header, block);
    ck_assert_int_eq(pwrite(fd, block, sizeof block, 0), sizeof block);
    close(fd);
    expect(&f, f.root, "100", 4, "its format is version 3, this program reads 1 and 2; use a newer Keel");
    struct output o = COMMAND("verify", f.root, "--step", "100");
    ck_assert_msg(strstr(o.text, "a newer Keel is needed") != NULL, "%s", o.text);
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(a_folder_of_other_files_is_no_run)
{
    char top[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    struct store_files f = make_store();
    make_directory(top);
    ck_ok(keel_path_join(path, top, "photos"));
    ck_ok(keel_mkdir_all(path));
    ck_ok(keel_path_join(path, top, "photos/one.jpg"));
    ck_ok(keel_file_append(path, "text", 4, false));
    struct output o = COMMAND("ls", top);
    ck_assert_msg(o.code == 3 && strstr(o.errors, "holds no run") != NULL, "%d %s", o.code, o.errors);
    ck_ok(keel_path_join(path, f.root, "photos"));
    ck_ok(keel_mkdir_all(path));
    ck_ok(keel_path_join(path, f.root, "photos/one.jpg"));
    ck_ok(keel_file_append(path, "text", 4, false));
    o = COMMAND("ls", f.root); /* beside a run it makes that no second one */
    ck_assert_msg(o.code == 0 && strstr(o.text, "run sample: 2 committed") != NULL, "%d %s", o.code,
                  o.errors);
    ck_ok(keel_remove_tree(top));
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(behind_two_dashes_all_words_are_paths)
{
    struct store_files f = make_store();
    char path[KEEL_PATH_BYTES], before[KEEL_PATH_BYTES];
    ck_assert_ptr_nonnull(getcwd(before, sizeof before));
    ck_ok(keel_path_join(path, f.root, "--json"));
    ck_ok(keel_mkdir_all(path));
    ck_ok(keel_path_join(path, f.root, "--json/sample"));
    ck_assert_int_eq(rename(f.run, path), 0);
    ck_assert_int_eq(chdir(f.root), 0);
    struct output o = COMMAND("ls", "--", "--json");
    ck_assert_int_eq(chdir(before), 0);
    ck_assert_msg(o.code == 0 && strncmp(o.text, "run sample: 2 committed", 23) == 0, "%d %s", o.code,
                  o.text);
    ck_assert_int_eq(COMMAND("ls", "--", "--help").code, 3); /* no such directory */
    ck_assert_int_eq(COMMAND("ls", "--").code, 2);
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

/* A safetensors file of one float32 tensor. */
static void write_tensor(const char *path, const char *name, const char *value)
{
    char header[512];
    uint64_t bytes = (uint64_t)snprintf(
        header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    ck_ok(keel_file_append(path, (const char *)&bytes, sizeof bytes, false));
    ck_ok(keel_file_append(path, header, bytes, false));
    ck_ok(keel_file_append(path, value, 4, false));
}

START_TEST(what_import_refuses_is_told_with_the_option_or_the_name)
{
    char top[KEEL_PATH_BYTES], file[KEEL_PATH_BYTES], run[KEEL_PATH_BYTES];
    make_directory(top);
    ck_ok(keel_path_join(run, top, "store/tuned"));
    ck_ok(keel_path_join(file, top, "nan.safetensors"));
    write_tensor(file, "w", "\0\0\xc0\x7f");
    struct output o = COMMAND("import", file, run);
    ck_assert_msg(o.code == 1 && strstr(o.errors, "--allow-nonfinite") != NULL, "%d %s", o.code, o.errors);
    ck_assert_int_eq(COMMAND("import", file, run, "--allow-nonfinite").code, 0);
    ck_ok(keel_path_join(file, top, "nameless.safetensors"));
    write_tensor(file, "", "\0\0\0\0");
    o = COMMAND("import", file, run, "--step", "1");
    ck_assert_msg(o.code == 2 && strstr(o.errors, "tensor ''") != NULL, "%d %s", o.code, o.errors);
    ck_ok(keel_remove_tree(top));
}
END_TEST

START_TEST(a_missing_base_is_named)
{
    struct store_files f = make_store();
    char path[KEEL_PATH_BYTES];
    struct output o = COMMAND("show", f.root, "--step", "200");
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_nonnull(strstr(o.text, "needs step 100, attempt 3"));
    path_in(&f, "step-100.3", path);
    ck_ok(keel_remove_tree(path));
    expect(&f, f.root, "200", 4, "step-100.3");
    o = COMMAND("repair", f.root, "--step", "200");
    ck_assert_int_eq(o.code, 4);
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(a_link_in_a_store_is_refused_wherever_it_leads)
{
    struct store_files f = make_store();
    char path[KEEL_PATH_BYTES], moved[KEEL_PATH_BYTES];
    path_in(&f, "step-100.3/rank-0.keel", path);
    ck_ok(keel_path_join(moved, f.root, "elsewhere"));
    ck_assert_int_eq(rename(path, moved), 0);
    ck_assert_int_eq(symlink(moved, path), 0);
    expect(&f, f.root, "100", 3, "symbolic link");
    path_in(&f, "step-300.1", path);
    path_in(&f, "step-100.3", moved);
    ck_assert_int_eq(symlink(moved, path), 0);
    struct output o = COMMAND("ls", f.root);
    ck_assert_int_eq(o.code, 4);
    ck_assert_ptr_nonnull(strstr(o.text, "1 more cannot be read"));
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

START_TEST(what_cannot_be_read_as_a_file_is_damage)
{
    struct store_files f = make_store();
    char path[KEEL_PATH_BYTES];
    path_in(&f, "step-100.3/rank-0.keel", path);
    ck_ok(keel_remove_tree(path));
    ck_ok(keel_mkdir_all(path));
    expect(&f, f.root, "100", 4, "rank-0.keel");
    ck_ok(keel_remove_tree(path));
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* nobody writes into it: whoever opened it would wait */
    expect(&f, f.root, "100", 4, "rank-0.keel");
    ck_ok(keel_remove_tree(f.root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_is_no_store_is_told_by_what_it_is);
    tcase_add_test(tc, a_store_under_another_runs_name_is_refused);
    tcase_add_test(tc, a_newer_version_is_told_apart_from_damage);
    tcase_add_test(tc, a_shard_of_a_newer_version_says_which_and_what_reads_it);
    tcase_add_test(tc, a_folder_of_other_files_is_no_run);
    tcase_add_test(tc, behind_two_dashes_all_words_are_paths);
    tcase_add_test(tc, what_import_refuses_is_told_with_the_option_or_the_name);
    tcase_add_test(tc, a_missing_base_is_named);
    tcase_add_test(tc, a_link_in_a_store_is_refused_wherever_it_leads);
    tcase_add_test(tc, what_cannot_be_read_as_a_file_is_damage);
}

KEEL_TEST_MAIN("ckpt_input", cases, 60)
