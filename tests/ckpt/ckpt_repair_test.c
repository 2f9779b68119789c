/* ckpt_repair_test.c - `keel ckpt verify` and `keel ckpt repair` on stores that are damaged in many ways:
 * what they place, mend and refuse. */
#include "command.h"

/* Two stores with the same snapshots of run "sample": steps 100 and 200, two ranks each. */
struct pair {
    char top[KEEL_PATH_BYTES], store[KEEL_PATH_BYTES], other[KEEL_PATH_BYTES];
};

static void fill(const char *root)
{
    struct keel_region tensors[4];
    uint64_t state = 47;
    struct keel_store *store = open_store(root, true);
    for (uint64_t step = 100; step <= 200; step += 100) {
        struct sample_save how = {
            .step = step, .attempt = 3, .salt = step, .rank_count = 2, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 4, &state));
    }
    keel_store_close(store);
}

static void copy_file(const char *from_root, const char *to_root, const char *name)
{
    char from[KEEL_PATH_BYTES], to[KEEL_PATH_BYTES], *data;
    size_t bytes;
    ck_ok(keel_path_join(from, from_root, name));
    ck_ok(keel_path_join(to, to_root, name));
    ck_ok(keel_file_read(from, 1 << 24, &data, &bytes));
    ck_ok(keel_file_replace(to, data, bytes, 0666));
    keel_free(data);
}

static void make_pair(struct pair *pair)
{
    static const char *const names[] = {"rank-0.keel", "rank-1.keel", "manifest.json"};
    char path[KEEL_PATH_BYTES], name[64];
    make_directory(pair->top);
    ck_ok(keel_path_join(pair->store, pair->top, "a"));
    ck_ok(keel_path_join(pair->other, pair->top, "b"));
    fill(pair->store);
    for (int step = 100; step <= 200; step += 100) {
        snprintf(name, sizeof name, "sample/step-%d.3", step);
        ck_ok(keel_path_join(path, pair->other, name));
        ck_ok(keel_mkdir_all(path));
        for (size_t i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "sample/step-%d.3/%s", step, names[i]);
            copy_file(pair->store, pair->other, name);
        }
    }
}

static void flip(const char *root, const char *name, off_t at)
{
    char path[KEEL_PATH_BYTES];
    uint8_t byte;
    ck_ok(keel_path_join(path, root, name));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void lose(const char *root, const char *name)
{
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, root, name));
    ck_ok(keel_remove_tree(path));
}

static bool same_file(const struct pair *pair, const char *name)
{
    char path[KEEL_PATH_BYTES], *a, *b;
    size_t a_bytes, b_bytes;
    ck_ok(keel_path_join(path, pair->store, name));
    ck_ok(keel_file_read(path, 1 << 24, &a, &a_bytes));
    ck_ok(keel_path_join(path, pair->other, name));
    ck_ok(keel_file_read(path, 1 << 24, &b, &b_bytes));
    bool same = a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0;
    keel_free(a);
    keel_free(b);
    return same;
}

START_TEST(verify_places_every_damage_by_file_tensor_and_chunk)
{
    struct pair pair;
    make_pair(&pair);
    flip(pair.store, "sample/step-200.3/rank-0.keel", 4096 + 5);
    flip(pair.store, "sample/step-200.3/rank-1.keel", 4096 + 9);
    struct output o = COMMAND("verify", pair.store, "--json");
    ck_assert_int_eq(o.code, 4);
    json_t *root = parse(&o), *damage = json_object_get(root, "damage");
    ck_assert_int_eq(json_integer_value(json_object_get(root, "damaged_parts")), 2);
    ck_assert_uint_eq(json_array_size(damage), 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *entry = json_array_get(damage, i);
        ck_assert_str_eq(json_string_value(json_object_get(entry, "file")),
                         i == 0 ? "rank-0.keel" : "rank-1.keel");
        ck_assert_str_eq(json_string_value(json_object_get(entry, "status")), "CORRUPT");
        ck_assert(json_is_string(json_object_get(entry, "tensor")));
        ck_assert_int_eq(json_integer_value(json_object_get(entry, "chunk")), 0);
        ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(entry, "detail")), "tensor "));
    }
    json_decref(root);
    o = COMMAND("verify", pair.store);
    ck_assert_int_eq(o.code, 4);
    ck_assert_ptr_nonnull(strstr(o.text, "2 parts are damaged"));
    ck_assert_ptr_nonnull(strstr(o.errors, "rank-1.keel: tensor "));
    ck_ok(keel_remove_tree(pair.top));
}
END_TEST

START_TEST(verify_goes_on_behind_headers_and_manifests_that_are_damaged)
{
    struct pair pair;
    make_pair(&pair);
    flip(pair.store, "sample/step-200.3/rank-0.keel", 9);
    flip(pair.store, "sample/step-200.3/rank-1.keel", 4096 + 9);
    flip(pair.store, "sample/step-100.3/manifest.json", 40);
    struct output o = COMMAND("verify", pair.store, "--all", "--json");
    ck_assert_int_eq(o.code, 4);
    json_t *root = parse(&o), *all = json_object_get(root, "snapshots");
    ck_assert_uint_eq(json_array_size(all), 2);
    ck_assert_int_eq(json_integer_value(json_object_get(json_array_get(all, 0), "damaged_parts")), 2);
    ck_assert_int_eq(json_integer_value(json_object_get(json_array_get(all, 1), "damaged_parts")), 1);
    json_t *damage = json_object_get(json_array_get(all, 1), "damage");
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(damage, 0), "file")), "manifest.json");
    json_decref(root);
    lose(pair.store, "sample/step-200.3/rank-0.keel");
    flip(pair.store, "sample/step-200.3/rank-1.keel", 4096 + 9);
    o = COMMAND("verify", pair.store, "--step", "200");
    ck_assert_int_eq(o.code, 4);
    ck_assert_ptr_nonnull(strstr(o.errors, "rank-0.keel: is missing"));
    ck_assert_int_eq(COMMAND("verify", pair.other, "--all").code, 0);
    ck_ok(keel_remove_tree(pair.top));
}
END_TEST

START_TEST(repair_mends_chunks_files_and_manifests_from_another_store)
{
    static const char *const names[] = {"sample/step-200.3/rank-0.keel", "sample/step-200.3/rank-1.keel",
                                        "sample/step-200.3/manifest.json", "sample/step-100.3/rank-1.keel"};
    struct pair pair;
    make_pair(&pair);
    flip(pair.store, names[0], 4096 + 5);
    lose(pair.store, names[1]);
    flip(pair.store, names[2], 40);
    flip(pair.store, names[3], 9);
    struct output o = COMMAND("repair", pair.store, "--from", pair.other, "--all", "--dry-run");
    ck_assert_msg(o.code == 0, "%s", o.errors);
    ck_assert_ptr_nonnull(strstr(o.text, "rank-0.keel can be mended"));
    ck_assert_int_eq(COMMAND("verify", pair.store, "--step", "200").code, 4); /* nothing was written */
    o = COMMAND("repair", pair.store, "--from", pair.other, "--json");
    ck_assert_msg(o.code == 0, "%s", o.errors);
    json_t *root = parse(&o), *snapshot = json_array_get(json_object_get(root, "snapshots"), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(snapshot, "step")), 200);
    ck_assert_int_eq(json_integer_value(json_object_get(snapshot, "mended")), 3);
    ck_assert_int_eq(json_integer_value(json_object_get(snapshot, "lost")), 0);
    ck_assert_uint_eq(json_array_size(json_object_get(snapshot, "files")), 3);
    json_decref(root);
    o = COMMAND("repair", pair.store, "--from", pair.other, "--all");
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_nonnull(strstr(o.text, "step-100.3/rank-1.keel mended: "));
    for (size_t i = 0; i < 4; i++)
        ck_assert_msg(same_file(&pair, names[i]), "%s", names[i]);
    ck_assert_int_eq(COMMAND("verify", pair.store, "--all").code, 0);
    ck_assert_int_eq(COMMAND("repair", pair.store, "--all").code, 0); /* sound: nothing to do */
    ck_ok(keel_remove_tree(pair.top));
}
END_TEST

START_TEST(repair_tells_what_is_lost_and_ends_with_code_4)
{
    struct pair pair;
    make_pair(&pair);
    flip(pair.store, "sample/step-200.3/rank-0.keel", 4096 + 5);
    struct output o = COMMAND("repair", pair.store, "--step", "200", "--json");
    ck_assert_int_eq(o.code, 4);
    json_t *root = parse(&o), *snapshot = json_array_get(json_object_get(root, "snapshots"), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(snapshot, "lost")), 1);
    ck_assert_str_eq(json_string_value(json_object_get(snapshot, "status")), "CORRUPT");
    json_decref(root);
    ck_assert(!same_file(&pair, "sample/step-200.3/rank-0.keel"));
    flip(pair.store, "sample/step-100.3/manifest.json", 40);
    o = COMMAND("repair", pair.store, "--step", "100");
    ck_assert_int_eq(o.code, 4);
    ck_assert_ptr_nonnull(strstr(o.errors, "--from"));
    ck_ok(keel_remove_tree(pair.top));
}
END_TEST

START_TEST(repair_says_what_is_missing_and_what_to_give_it)
{
    struct pair pair;
    char path[KEEL_PATH_BYTES];
    make_pair(&pair);
    for (int step = 100; step <= 200; step += 100) { /* all manifests: damaged here, gone there */
        char name[64];
        snprintf(name, sizeof name, "sample/step-%d.3/manifest.json", step);
        flip(pair.store, name, 50);
        ck_ok(keel_path_join(path, pair.other, name));
        ck_assert_int_eq(unlink(path), 0);
    }
    struct output o = COMMAND("repair", pair.store, "--from", pair.other);
    ck_assert_int_eq(o.code, 4);
    ck_assert_msg(strstr(o.errors, "step 200: its manifest is lost") != NULL, "%s", o.errors);
    o = COMMAND("repair", pair.other); /* without --step, where nothing is committed */
    ck_assert_int_eq(o.code, 3);
    ck_assert_msg(strstr(o.errors, "holds no committed snapshot; name by --step") != NULL, "%s", o.errors);
    o = COMMAND("repair", pair.other, "--step", "300");
    ck_assert_msg(strstr(o.errors, "holds no snapshot of step 300") != NULL, "%s", o.errors);
    ck_ok(keel_path_join(path, pair.store, "gone"));
    o = COMMAND("repair", path, "--from", pair.other, "--step", "100");
    ck_assert_int_eq(o.code, 3);
    ck_assert_msg(strstr(o.errors, "gone") != NULL && strstr(o.errors, "mkdir") != NULL, "%s", o.errors);
    ck_ok(keel_remove_tree(pair.top));
}
END_TEST

START_TEST(repair_brings_back_a_snapshot_that_only_another_store_has)
{
    struct pair pair;
    make_pair(&pair);
    lose(pair.store, "sample/step-100.3");
    ck_assert_int_eq(COMMAND("repair", pair.store, "--step", "100").code, 3);
    struct output o = COMMAND("repair", pair.store, "--step", "100", "--from", pair.other);
    ck_assert_msg(o.code == 0, "%s", o.errors);
    ck_assert(same_file(&pair, "sample/step-100.3/rank-0.keel"));
    ck_assert_int_eq(COMMAND("verify", pair.store, "--all").code, 0);
    ck_ok(keel_remove_tree(pair.top));
}
END_TEST

START_TEST(repair_refuses_another_run_and_a_run_that_goes_on)
{
    struct pair pair;
    char path[KEEL_PATH_BYTES], foreign[KEEL_PATH_BYTES];
    int lock;
    make_pair(&pair);
    ck_ok(keel_path_join(path, pair.other, "sample"));
    ck_ok(keel_path_join(foreign, pair.other, "another"));
    ck_assert_int_eq(rename(path, foreign), 0);
    struct output o = COMMAND("repair", pair.store, "--from", foreign);
    ck_assert_int_eq(o.code, 4);
    ck_assert_ptr_nonnull(strstr(o.errors, "is of run another"));
    ck_assert_int_eq(COMMAND("repair", pair.store, "--from", "/nonexistent").code, 3);
    ck_assert_int_eq(COMMAND("repair", pair.store, "--from").code, 2);
    ck_ok(keel_path_join(path, pair.top, "run.lock"));
    ck_ok(keel_file_append(path, "", 0, false));
    ck_ok(keel_file_lock(path, false, 0, &lock));
    o = COMMAND("repair", pair.store);
    ck_assert_int_eq(o.code, 1);
    ck_assert_ptr_nonnull(strstr(o.errors, "a keel run is writing here"));
    ck_assert_int_eq(COMMAND("repair", pair.store, "--dry-run").code, 0);
    keel_file_unlock(lock);
    ck_assert_int_eq(COMMAND("repair", pair.store).code, 0);
    ck_ok(keel_remove_tree(pair.top));
}
END_TEST

START_TEST(a_newest_snapshot_with_another_ones_manifest_hides_nothing)
{
    struct pair pair;
    make_pair(&pair);
    char from[KEEL_PATH_BYTES], to[KEEL_PATH_BYTES], *text;
    size_t bytes;
    ck_ok(keel_path_join(from, pair.store, "sample/step-100.3/manifest.json"));
    ck_ok(keel_path_join(to, pair.store, "sample/step-200.3/manifest.json"));
    ck_ok(keel_file_read(from, 1 << 20, &text, &bytes));
    ck_ok(keel_file_replace(to, text, bytes, 0666));
    keel_free(text);
    flip(pair.store, "sample/step-100.3/rank-0.keel", 4096 + 5);
    struct output o = COMMAND("verify", pair.store);
    ck_assert_msg(o.code == 4 && strstr(o.text, "step 200: 1 parts are damaged") != NULL, "%d: %s", o.code,
                  o.text);
    o = COMMAND("show", pair.store);
    ck_assert_msg(o.code == 0 && strstr(o.errors, "1 manifests are damaged") != NULL, "%d: %s", o.code,
                  o.errors);
    o = COMMAND("repair", pair.store, "--all", "--json");
    ck_assert_int_eq(o.code, 4);
    json_t *root = parse(&o);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "snapshots")), 2);
    json_decref(root);
    o = COMMAND("repair", pair.store, "--all", "--from", pair.other);
    ck_assert_msg(o.code == 0, "%s", o.errors);
    ck_assert(same_file(&pair, "sample/step-200.3/manifest.json"));
    ck_assert_int_eq(COMMAND("verify", pair.store, "--all").code, 0);
    ck_ok(keel_remove_tree(pair.top));
}
END_TEST

START_TEST(what_may_not_be_read_is_not_said_to_be_lost)
{
    enum { NOBODY = 65534 };
    struct pair pair;
    char path[KEEL_PATH_BYTES];
    bool privileged = geteuid() == 0; /* who may read all must step down to be denied anything */
    make_pair(&pair);
    ck_assert_int_eq(chmod(pair.top, 0755), 0);
    ck_ok(keel_path_join(path, pair.store, "sample/step-200.3/rank-0.keel"));
    ck_assert_int_eq(chmod(path, 0), 0);
    ck_assert(!privileged || seteuid(NOBODY) == 0);
    struct output alone = COMMAND("repair", pair.store, "--dry-run"),
                  with = COMMAND("repair", pair.store, "--dry-run", "--from", pair.other);
    ck_assert(!privileged || seteuid(0) == 0);
    ck_assert_msg(alone.code == 3 && strstr(alone.errors, "rank-0.keel") != NULL, "%d: %s", alone.code,
                  alone.errors);
    ck_assert_ptr_null(strstr(alone.text, "lost"));
    ck_assert_msg(with.code == 0 && strstr(with.text, "can be mended") != NULL, "%d: %s", with.code,
                  with.errors);
    ck_ok(keel_remove_tree(pair.top));
}
END_TEST

START_TEST(parity_files_that_are_not_there_are_told_and_no_damage)
{
    static const char *const names[] = {"manifest.json",   "rank-0.keel",     "rank-1.keel",
                                        "rank-2.keel",     "parity-7.0.keel", "parity-7.1.keel",
                                        "parity-7.2.keel", "parity-7.3.keel"};
    char top[KEEL_PATH_BYTES], step[KEEL_PATH_BYTES];
    make_directory(top);
    ck_ok(keel_path_join(step, top, "parity/step-5.2"));
    ck_ok(keel_mkdir_all(step));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        copy_file("tests/golden/ckpt/parity/step-5.2", step, names[i]);
    struct output o = COMMAND("verify", step);
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_null(strstr(o.text, "parity"));
    lose(step, "parity-7.1.keel");
    lose(step, "parity-7.3.keel");
    o = COMMAND("verify", step);
    ck_assert_int_eq(o.code, 0); /* all data is there */
    ck_assert_ptr_nonnull(strstr(o.text, "parity set 7: 2 of its 4 files are not here"));
    o = COMMAND("verify", step, "--json");
    json_t *root = parse(&o), *missing = json_object_get(root, "parity_missing");
    ck_assert_uint_eq(json_array_size(missing), 2);
    ck_assert_str_eq(json_string_value(json_array_get(missing, 0)), "parity-7.1.keel");
    ck_assert_str_eq(json_string_value(json_array_get(missing, 1)), "parity-7.3.keel");
    json_decref(root);
    ck_ok(keel_remove_tree(top));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, parity_files_that_are_not_there_are_told_and_no_damage);
    tcase_add_test(tc, verify_places_every_damage_by_file_tensor_and_chunk);
    tcase_add_test(tc, verify_goes_on_behind_headers_and_manifests_that_are_damaged);
    tcase_add_test(tc, repair_mends_chunks_files_and_manifests_from_another_store);
    tcase_add_test(tc, repair_tells_what_is_lost_and_ends_with_code_4);
    tcase_add_test(tc, repair_says_what_is_missing_and_what_to_give_it);
    tcase_add_test(tc, repair_brings_back_a_snapshot_that_only_another_store_has);
    tcase_add_test(tc, a_newest_snapshot_with_another_ones_manifest_hides_nothing);
    tcase_add_test(tc, what_may_not_be_read_is_not_said_to_be_lost);
    tcase_add_test(tc, repair_refuses_another_run_and_a_run_that_goes_on);
}

KEEL_TEST_MAIN("ckpt_repair", cases, 60)
