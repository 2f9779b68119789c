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
    ck_assert_ptr_nonnull(strstr(o.errors, "holds 2 runs"));
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
    expect(&f, f.root, "200", 4, "use a newer Keel");
    struct output o = COMMAND("gc", f.root, "--keep", "2");
    ck_assert_int_eq(o.code, 0);
    path_in(&f, "step-100.3/manifest.json", path); /* which the newer one may need */
    ck_assert(keel_path_exists(path));
    ck_ok(keel_remove_tree(f.root));
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
    tcase_add_test(tc, a_missing_base_is_named);
    tcase_add_test(tc, a_link_in_a_store_is_refused_wherever_it_leads);
    tcase_add_test(tc, what_cannot_be_read_as_a_file_is_damage);
}

KEEL_TEST_MAIN("ckpt_input", cases, 60)
