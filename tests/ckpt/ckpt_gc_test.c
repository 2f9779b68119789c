/* ckpt_gc_test.c - `keel ckpt gc`: what it lets go, tells, and refuses. */
#include "command.h"

enum { SNAPSHOTS = 6 };

/* Steps 100 .. 600 of run "sample", and a directory that a killed writer left. */
static void make_store(char root[KEEL_PATH_BYTES], const char *inside)
{
    char path[KEEL_PATH_BYTES], top[KEEL_PATH_BYTES];
    struct keel_region tensors[4];
    uint64_t state = 43;
    make_directory(top);
    ck_ok(keel_path_join(root, top, inside));
    struct keel_store *store = open_store(root, true);
    for (uint64_t step = 100; step <= 100 * SNAPSHOTS; step += 100) {
        struct sample_save how = {
            .step = step, .attempt = 3, .salt = step, .rank_count = 1, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 1, &state));
    }
    keel_store_close(store);
    ck_ok(keel_path_join(path, root, "sample/step-250.9"));
    ck_ok(keel_mkdir_all(path));
    ck_ok(keel_path_join(path, root, "sample/step-250.9/rank-0.keel"));
    ck_ok(keel_file_append(path, "half", 4, false));
}

static bool has(const char *root, const char *name)
{
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, root, name));
    return keel_path_exists(path);
}

static void remove_store(char root[KEEL_PATH_BYTES])
{
    *strrchr(root, '/') = '\0';
    ck_ok(keel_remove_tree(root));
}

START_TEST(without_a_rule_only_leftovers_go)
{
    char root[KEEL_PATH_BYTES];
    make_store(root, "store");
    struct output o = COMMAND("gc", root);
    ck_assert_msg(o.code == 0, "%s", o.errors);
    ck_assert_ptr_nonnull(strstr(o.text, "removed leftover"));
    ck_assert_ptr_nonnull(
        strstr(o.text, "0 snapshots, 1 leftovers, 0 temporary files went, 4 B; 6 committed"));
    ck_assert(!has(root, "sample/step-250.9") && has(root, "sample/step-100.3/manifest.json"));
    remove_store(root);
}
END_TEST

START_TEST(rules_add_up_and_json_tells_each_with_its_bytes)
{
    char root[KEEL_PATH_BYTES];
    make_store(root, "store");
    struct output o = COMMAND("gc", "--keep", "2", root, "--every", "300", "--json", "--dry-run");
    ck_assert_msg(o.code == 0, "%s", o.errors);
    json_t *would = parse(&o);
    ck_assert(json_is_true(json_object_get(would, "dry_run")));
    ck_assert(has(root, "sample/step-100.3/manifest.json") && has(root, "sample/step-250.9"));
    o = COMMAND("gc", "--keep", "2", root, "--every", "300", "--json");
    ck_assert_int_eq(o.code, 0);
    json_t *did = parse(&o), *removed = json_object_get(did, "removed");
    ck_assert(json_equal(json_object_get(would, "removed"), removed));
    ck_assert_int_eq(json_integer_value(json_object_get(would, "committed")), 3);
    ck_assert_int_eq(json_integer_value(json_object_get(did, "committed")), 3);
    ck_assert_uint_eq(json_array_size(removed), 4); /* 100, 200, 400 and the leftover */
    json_int_t bytes = 0;
    for (size_t i = 0; i < json_array_size(removed); i++)
        bytes += json_integer_value(json_object_get(json_array_get(removed, i), "bytes"));
    ck_assert_int_eq(json_integer_value(json_object_get(did, "bytes")), bytes);
    ck_assert_int_gt(bytes, 3 * 4096);
    ck_assert(has(root, "sample/step-300.3") && has(root, "sample/step-500.3") &&
              has(root, "sample/step-600.3"));
    ck_assert(!has(root, "sample/step-400.3") && !has(root, "sample/step-250.9"));
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(removed, 0), "kind")), "snapshot");
    json_decref(would);
    json_decref(did);
    remove_store(root);
}
END_TEST

START_TEST(young_snapshots_stay_within_and_the_first_of_a_span_stays_spaced)
{
    char root[KEEL_PATH_BYTES];
    make_store(root, "store");
    struct output o = COMMAND("gc", root, "--within", "7d");
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_nonnull(strstr(o.text, "6 committed snapshots stay"));
    o = COMMAND("gc", root, "--spaced", "9999d"); /* all are of one span, or of two */
    ck_assert_int_eq(o.code, 0);
    ck_assert(has(root, "sample/step-100.3") && has(root, "sample/step-600.3") &&
              !has(root, "sample/step-300.3"));
    remove_store(root);
}
END_TEST

START_TEST(a_run_that_goes_on_is_not_swept_and_one_that_ended_is)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES], out[KEEL_PATH_BYTES], later[KEEL_PATH_BYTES];
    int lock;
    make_store(root, "ckpt");
    ck_ok(keel_path_join(path, root, "../run.lock"));
    ck_ok(keel_path_join(out, root, ".."));
    ck_ok(keel_file_lock(path, false, 0, &lock));
    struct output o = COMMAND("gc", out, "--keep", "2");
    ck_assert_int_eq(o.code, 1);
    ck_assert_ptr_nonnull(strstr(o.errors, "a keel run is writing here"));
    ck_assert_int_eq(COMMAND("gc", out, "--keep", "2", "--dry-run").code, 0); /* looking is allowed */
    ck_assert(has(root, "sample/step-100.3/manifest.json"));
    keel_file_unlock(lock);
    ck_ok(keel_path_join(later, root, "sample/step-900.1")); /* later than all that is committed */
    ck_ok(keel_mkdir_all(later));
    /* looking takes no lock: another looks at the same time */
    ck_ok(keel_file_lock(path, true, 0, &lock));
    o = COMMAND("gc", out, "--keep", "2", "--dry-run");
    ck_assert_msg(o.code == 0 && strstr(o.text, "2 leftovers") != NULL, "%d %s", o.code, o.text);
    keel_file_unlock(lock);
    o = COMMAND("gc", out, "--keep", "2");
    ck_assert_msg(o.code == 0, "%s", o.errors);
    ck_assert(!has(root, "sample/step-100.3") && !keel_path_exists(later));
    ck_ok(keel_file_lock(path, false, 0, &lock)); /* and the lock is free again */
    keel_file_unlock(lock);
    remove_store(root);
}
END_TEST

START_TEST(a_run_that_goes_on_is_found_also_when_its_store_is_a_link)
{
    char root[KEEL_PATH_BYTES], out[KEEL_PATH_BYTES], link[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    int lock;
    make_store(root, "elsewhere");
    make_directory(out);
    ck_ok(keel_path_join(link, out, "ckpt"));
    ck_assert_int_eq(symlink(root, link), 0);
    ck_ok(keel_path_join(path, out, "run.lock"));
    ck_ok(keel_file_lock(path, false, 0, &lock));
    static const char *const ways[] = {"", "ckpt", "ckpt/", "ckpt/sample"};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        ck_ok(keel_path_join(path, out, ways[i]));
        struct output o = COMMAND("gc", path, "--keep", "2");
        ck_assert_msg(o.code == 1 && strstr(o.errors, "a keel run is writing here") != NULL, "%s: %d %s",
                      path, o.code, o.errors);
    }
    keel_file_unlock(lock);
    ck_assert_int_eq(COMMAND("gc", out, "--keep", "2").code, 0);
    ck_assert(!has(root, "sample/step-100.3"));
    /* a lock that lies above by chance is that of another run */
    ck_ok(keel_path_join(path, out, "run.lock"));
    ck_ok(keel_file_lock(path, false, 0, &lock));
    ck_assert_int_eq(unlink(link), 0);
    ck_ok(keel_path_join(path, out, "other"));
    ck_assert_int_eq(symlink(root, path), 0);
    ck_assert_int_eq(COMMAND("gc", path, "--keep", "2").code, 0);
    keel_file_unlock(lock);
    ck_ok(keel_remove_tree(out));
    remove_store(root);
}
END_TEST

START_TEST(a_run_that_may_not_be_written_is_named_with_what_to_do)
{
    enum { NOBODY = 65534 };
    char root[KEEL_PATH_BYTES], lock[KEEL_PATH_BYTES], out[KEEL_PATH_BYTES];
    bool privileged = geteuid() == 0; /* who may write all must step down to be denied anything */
    make_store(root, "ckpt");
    memcpy(out, root, sizeof out);
    *strrchr(out, '/') = '\0';
    ck_ok(keel_path_join(lock, out, "run.lock"));
    ck_ok(keel_file_append(lock, "", 0, false));
    ck_assert_int_eq(chmod(lock, 0444), 0);
    ck_assert_int_eq(chmod(out, 0555), 0);
    ck_assert(!privileged || seteuid(NOBODY) == 0);
    struct output o = COMMAND("gc", out, "--keep", "2");
    ck_assert(!privileged || seteuid(0) == 0);
    ck_assert_int_eq(chmod(out, 0755), 0);
    ck_assert_msg(o.code == 3 && strstr(o.errors, lock) != NULL && strstr(o.errors, "..") == NULL, "%d %s",
                  o.code, o.errors);
    ck_assert_msg(strstr(o.errors, "let its owner do it, or copy the run") != NULL, "%s", o.errors);
    ck_assert(has(root, "sample/step-100.3/manifest.json"));
    remove_store(root);
}
END_TEST

START_TEST(what_may_be_on_its_way_stays_and_is_counted)
{
    char top[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    make_directory(top);
    ck_ok(keel_path_join(path, top, "sample/step-5.9"));
    ck_ok(keel_mkdir_all(path));
    struct output o = COMMAND("gc", top);
    ck_assert_msg(o.code == 0, "%s", o.errors);
    ck_assert_ptr_nonnull(strstr(o.text, "0 leftovers"));
    ck_assert_ptr_nonnull(strstr(o.text, "1 more stay that are not committed"));
    o = COMMAND("gc", top, "--json");
    json_t *root = parse(&o);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "uncommitted")), 1);
    json_decref(root);
    ck_assert_int_eq(COMMAND("gc", top, "--idle", "--dry-run").code, 0);
    ck_assert(keel_path_exists(path));
    o = COMMAND("gc", top, "--idle");
    ck_assert_ptr_nonnull(strstr(o.text, "1 leftovers"));
    ck_assert(!keel_path_exists(path));
    ck_ok(keel_remove_tree(top));
}
END_TEST

/* Steps 100 (whole) to 500, each a delta of the one before. */
static void make_chain(char root[KEEL_PATH_BYTES])
{
    char top[KEEL_PATH_BYTES];
    struct keel_region tensors[4];
    uint64_t state = 47;
    make_directory(top);
    ck_assert_int_eq(chmod(top, 0755), 0);
    ck_ok(keel_path_join(root, top, "chain"));
    struct keel_store *store = open_store(root, true);
    for (uint64_t step = 100; step <= 500; step += 100) {
        struct sample_save how = {
            .step = step, .attempt = 3, .salt = 1, .rank_count = 1, .codec = KEEL_CODEC_DELTA};
        ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 1, &state));
    }
    keel_store_close(store);
}

/* `keel ckpt repair` writes the manifest last, from wherever it lies: nothing may take the shards before. */
START_TEST(a_snapshot_that_lost_its_manifest_stays_while_its_shards_are_sound)
{
    char root[KEEL_PATH_BYTES], manifest[KEEL_PATH_BYTES], shard[KEEL_PATH_BYTES];
    make_chain(root);
    ck_ok(keel_path_join(manifest, root, "sample/step-500.3/manifest.json"));
    ck_ok(keel_path_join(shard, root, "sample/step-500.3/rank-0.keel"));
    ck_assert_int_eq(unlink(manifest), 0);
    struct output o = COMMAND("gc", root, "--idle");
    ck_assert_msg(o.code == 0, "%s", o.errors);
    ck_assert(keel_path_exists(shard));
    ck_assert_ptr_nonnull(strstr(o.text, "1 more stay that are not committed"));
    ck_assert_int_eq(truncate(shard, 5000), 0); /* now it is what a killed writer leaves */
    ck_assert_int_eq(COMMAND("gc", root, "--idle").code, 0);
    ck_assert(!keel_path_exists(shard));
    remove_store(root);
}
END_TEST

START_TEST(nothing_goes_while_one_that_stays_may_not_be_looked_at)
{
    enum { NOBODY = 65534 };
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    bool privileged = geteuid() == 0; /* who may read all must step down to be denied anything */
    make_chain(root);
    static char *const hidden[] = {"sample/step-300.3", "sample/step-300.3/manifest.json"};
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
        ck_ok(keel_path_join(path, root, hidden[i]));
        ck_assert_int_eq(chmod(path, 0), 0);
        ck_assert(!privileged || seteuid(NOBODY) == 0);
        struct output gc = COMMAND("gc", root, "--keep", "2", "--dry-run"), ls = COMMAND("ls", root);
        ck_assert(!privileged || seteuid(0) == 0);
        ck_assert_msg(gc.code == 3 && strstr(gc.errors, hidden[i]) != NULL, "%d: %s", gc.code, gc.errors);
        ck_assert_ptr_null(strstr(gc.text, "would remove"));
        ck_assert_msg(ls.code == 3 && strstr(ls.errors, hidden[i]) != NULL, "%d: %s", ls.code, ls.errors);
        ck_assert_int_eq(chmod(path, 0755), 0);
    }
    remove_store(root);
}
END_TEST

START_TEST(nothing_goes_while_nobody_can_tell_what_a_damaged_one_needs)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    static char *const files[] = {"sample/step-300.3/manifest.json", "sample/step-300.3/rank-0.keel"};
    make_chain(root);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) { /* the headers tell it, then nothing does */
        ck_ok(keel_path_join(path, root, files[i]));
        int fd = open(path, O_WRONLY);
        ck_assert_int_eq(pwrite(fd, "~", 1, 30), 1);
        close(fd);
        struct output o = COMMAND("gc", root, "--keep", "2");
        ck_assert_msg(o.code == 0, "%s", o.errors);
        ck_assert(has(root, "sample/step-100.3/manifest.json") &&
                  has(root, "sample/step-200.3/manifest.json"));
    }
    remove_store(root);
}
END_TEST

START_TEST(wrong_rules_are_wrong_use)
{
    char root[KEEL_PATH_BYTES], step[KEEL_PATH_BYTES];
    make_store(root, "store");
    ck_ok(keel_path_join(step, root, "sample/step-300.3"));
    static char *const bad[][2] = {{"--keep", "0"},
                                   {"--keep", "1"},
                                   {"--keep", "-2"},
                                   {"--keep", "2x"},
                                   {"--every", "0"},
                                   {"--within", "7"},
                                   {"--within", "d"},
                                   {"--within", "7w"},
                                   {"--within", "0d"},
                                   {"--spaced", "-1d"},
                                   {"--spaced", ""},
                                   {"--step", "100"},
                                   {"--within", "99999999999999999999d"},
                                   {"--within", "99999999999999d"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct output o = COMMAND("gc", root, bad[i][0], bad[i][1]);
        ck_assert_msg(o.code == 2 && o.text[0] == '\0', "%s %s: %s", bad[i][0], bad[i][1], o.text);
    }
    ck_assert_int_eq(COMMAND("gc", root, "--keep").code, 2);
    ck_assert_int_eq(COMMAND("gc", step, "--keep", "2").code, 2);
    ck_assert_int_eq(COMMAND("gc", "/nonexistent").code, 3);
    ck_assert(has(root, "sample/step-100.3/manifest.json") && has(root, "sample/step-250.9"));
    remove_store(root);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, without_a_rule_only_leftovers_go);
    tcase_add_test(tc, rules_add_up_and_json_tells_each_with_its_bytes);
    tcase_add_test(tc, young_snapshots_stay_within_and_the_first_of_a_span_stays_spaced);
    tcase_add_test(tc, a_run_that_goes_on_is_not_swept_and_one_that_ended_is);
    tcase_add_test(tc, a_run_that_goes_on_is_found_also_when_its_store_is_a_link);
    tcase_add_test(tc, a_run_that_may_not_be_written_is_named_with_what_to_do);
    tcase_add_test(tc, what_may_be_on_its_way_stays_and_is_counted);
    tcase_add_test(tc, a_snapshot_that_lost_its_manifest_stays_while_its_shards_are_sound);
    tcase_add_test(tc, nothing_goes_while_one_that_stays_may_not_be_looked_at);
    tcase_add_test(tc, nothing_goes_while_nobody_can_tell_what_a_damaged_one_needs);
    tcase_add_test(tc, wrong_rules_are_wrong_use);
}

KEEL_TEST_MAIN("ckpt_gc", cases, 60)
