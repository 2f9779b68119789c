/* snapshot_test.c - save, commit, list, open, read; reshard; the rules about names, attempts and holes. */
#include "sample.h"
#include "snapshot.h"

struct seen {
    uint64_t calls, done_bytes, total_bytes;
};

static void see_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct seen *seen = context;
    ck_assert_uint_gt(done_bytes, seen->done_bytes);
    *seen = (struct seen){seen->calls + 1, done_bytes, total_bytes};
}

static void open_and_check(struct keel_store *store, uint64_t step, uint64_t salt)
{
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, step, 0, &snapshot));
    ck_ok(check_all(snapshot, salt));
    uint32_t damaged = 1;
    struct seen seen = {0};
    ck_ok(keel_snapshot_verify(snapshot, see_progress, &seen, &damaged));
    ck_assert_uint_eq(damaged, 0);
    ck_assert_uint_gt(seen.calls, 0);
    ck_assert_uint_eq(seen.done_bytes, seen.total_bytes);
    ck_assert_uint_eq(seen.total_bytes, keel_snapshot_info(snapshot)->raw_bytes);
    keel_snapshot_close(snapshot);
}

START_TEST(what_was_committed_is_read_back)
{
    char root[KEEL_PATH_BYTES];
    struct keel_region tensors[4];
    uint64_t state = 1;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    uint32_t count = small_tensors(tensors);
    for (uint64_t step = 10; step <= 30; step += 10) {
        struct sample_save how = {.step = step,
                                  .attempt = step + 7,
                                  .salt = step,
                                  .rank_count = 3,
                                  .codec = step == 20 ? KEEL_CODEC_RAW : KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, count, 6, &state));
    }
    struct keel_snapshot_info infos[8];
    uint32_t listed, damaged;
    ck_ok(keel_store_list(store, infos, 8, &listed, &damaged));
    ck_assert_uint_eq(listed, 3);
    ck_assert_uint_eq(damaged, 0);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(infos[i].step, 30 - 10 * i);
        ck_assert_uint_eq(infos[i].attempt, infos[i].step + 7);
        ck_assert_str_eq(infos[i].identity, "c0ffee");
        ck_assert_uint_eq(infos[i].shard_count, 3);
        ck_assert_uint_eq(infos[i].raw_bytes, 37 * 24 * 4 + 5 * 7 * 16 * 2 + 8 + 133);
        open_and_check(store, infos[i].step, infos[i].step);
    }
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(tensors_are_listed_by_name_with_their_global_shape)
{
    char root[KEEL_PATH_BYTES];
    struct keel_region tensors[4], got;
    uint64_t state = 2;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 4, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 9, &state));
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, 1, 1, &snapshot));
    static const char *const names[] = {"blocks.0.attn", "mask", "step", "wte"};
    ck_assert_uint_eq(keel_snapshot_tensor_count(snapshot), 4);
    for (uint32_t i = 0; i < 4; i++) {
        ck_ok(keel_snapshot_tensor(snapshot, i, &got));
        ck_assert_str_eq(got.name, names[i]);
    }
    ck_assert_uint_eq(got.dims, 2);
    ck_assert_uint_eq(got.extent[0], 37);
    ck_assert_uint_eq(got.offset[0], 0);
    ck_status(keel_snapshot_tensor(snapshot, 4, &got), KEEL_NOT_FOUND);
    ck_assert_str_eq(keel_snapshot_metadata(snapshot), "{\"seed\":7}");
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* Forty layouts, twenty-five boxes each. Tensors of up to 3 MiB, so that boxes span several chunks. */
START_TEST(any_layout_is_read_into_any_other)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    uint64_t state = 3;
    for (uint64_t layout = 1; layout <= 40; layout++) {
        struct keel_region tensors[3];
        bool large = layout % 10 == 0;
        uint64_t a[4] = {1 + draw(&state, large ? 700 : 40), 1 + draw(&state, large ? 1100 : 30)};
        uint64_t b[4] = {1 + draw(&state, 9), 1 + draw(&state, 9), 1 + draw(&state, 9), 1 + draw(&state, 9)};
        uint64_t c[4] = {1 + draw(&state, 5000)};
        tensors[0] = whole("a", KEEL_CKPT_F32, 2, a);
        tensors[1] = whole("b", KEEL_CKPT_BF16, 4, b);
        tensors[2] = whole("c", KEEL_CKPT_F64, 1, c);
        struct sample_save how = {.step = layout,
                                  .attempt = 1,
                                  .salt = layout,
                                  .rank_count = 1 + (uint32_t)draw(&state, 5),
                                  .drain_threads = 1 + (uint32_t)draw(&state, 3),
                                  .codec = KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, 3, 12, &state));
        struct keel_snapshot *snapshot;
        ck_ok(keel_snapshot_open(store, layout, 0, &snapshot));
        for (int i = 0; i < 25; i++) {
            struct keel_region box = random_box(&tensors[draw(&state, 3)], &state);
            ck_ok(check_box(snapshot, &box, layout));
        }
        keel_snapshot_close(snapshot);
        ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, NULL));
    }
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(replicas_that_overlap_are_read_once_and_right)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region tensor = whole("w", KEEL_CKPT_F32, 2, (const uint64_t[]){10, 10});
    struct keel_region upper = tensor, middle = tensor;
    upper.extent[0] = 7;
    middle.offset[0] = 5;
    middle.extent[0] = 5;
    struct keel_shard_summary shards[3];
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 3, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_rank(store, &how, &upper, 1, &shards[0]));
    how.rank = 1;
    ck_ok(save_rank(store, &how, &middle, 1, &shards[1]));
    how.rank = 2;
    ck_ok(save_rank(store, &how, &upper, 1, &shards[2]));
    ck_ok(commit_all(store, 1, 1, shards, 3));
    open_and_check(store, 1, 0);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_snapshot_with_a_hole_is_neither_committed_nor_read_over)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region part = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){100});
    part.extent[0] = 60;
    struct keel_shard_summary shard;
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 1, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_rank(store, &how, &part, 1, &shard));
    ck_status(commit_all(store, 1, 1, &shard, 1), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor w"));

    /* as some other program might have committed it */
    struct keel_step_place place;
    struct keel_manifest manifest = {.run = "sample",
                                     .info = {.step = 1, .attempt = 1, .shard_count = 1},
                                     .shards = &shard,
                                     .metadata = "{}"};
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    ck_ok(keel_step_open(store, 1, 1, false, &place));
    ck_ok(keel_path_join(path, place.path, KEEL_MANIFEST_NAME));
    ck_ok(keel_manifest_encode(&manifest, &text, &bytes));
    ck_ok(keel_file_replace(path, text, bytes, 0600));
    keel_free(text);
    keel_step_close(&place);
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, 1, 1, &snapshot));
    ck_ok(check_box(snapshot, &part, 0));
    part.offset[0] = 50;
    ck_status(check_box(snapshot, &part, 0), KEEL_INVALID);
    part.extent[0] = 20;
    ck_status(check_box(snapshot, &part, 0), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor w"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "[60]"));
    ck_status(keel_snapshot_verify(snapshot, NULL, NULL, NULL), KEEL_CORRUPT);
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(reading_asks_for_the_stored_shape_dtype_and_name)
{
    char root[KEEL_PATH_BYTES];
    struct keel_region tensors[4];
    uint64_t state = 4;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 2};
    ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 2, &state));
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, 1, 0, &snapshot));
    struct keel_region box = tensors[0];
    box.dtype = KEEL_CKPT_I32;
    ck_status(check_box(snapshot, &box, 0), KEEL_MISMATCH);
    box = tensors[0];
    box.shape[0]++;
    ck_status(check_box(snapshot, &box, 0), KEEL_MISMATCH);
    box = tensors[0];
    uint8_t outside[8]; /* never written to */
    box.offset[0]++;
    ck_status(keel_snapshot_read(snapshot, &box, outside, keel_region_bytes(&box)), KEEL_INVALID);
    box = tensors[0];
    snprintf(box.name, sizeof box.name, "wtf");
    ck_status(check_box(snapshot, &box, 0), KEEL_NOT_FOUND);
    uint8_t small[4];
    ck_status(keel_snapshot_read(snapshot, &tensors[0], small, sizeof small), KEEL_INVALID);
    keel_snapshot_close(snapshot);
    ck_status(keel_snapshot_open(store, 2, 0, &snapshot), KEEL_NOT_FOUND);
    ck_status(keel_snapshot_open(store, 1, 9, &snapshot), KEEL_NOT_FOUND);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(an_attempt_is_used_once)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region tensor = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){100});
    struct keel_shard_summary shard, again;
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 1};
    ck_ok(save_rank(store, &how, &tensor, 1, &shard));
    ck_status(save_rank(store, &how, &tensor, 1, &again), KEEL_INVALID);
    ck_ok(commit_all(store, 1, 1, &shard, 1));
    ck_status(commit_all(store, 1, 1, &shard, 1), KEEL_INVALID);
    how.rank_count = 2;
    how.rank = 1;
    ck_status(save_rank(store, &how, &tensor, 1, &again), KEEL_INVALID);
    how.attempt = 2;
    how.rank = 0;
    ck_ok(save_rank(store, &how, &tensor, 1, &again));
    open_and_check(store, 1, 0);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_commit_takes_each_rank_once_and_only_what_its_summary_says)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region tensor = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){100});
    struct keel_shard_summary shards[2];
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 2};
    ck_ok(save_rank(store, &how, &tensor, 1, &shards[0]));
    shards[1] = shards[0];
    ck_status(commit_all(store, 1, 1, shards, 2), KEEL_INVALID);
    shards[1].rank = 1;
    ck_status(commit_all(store, 1, 1, shards, 2), KEEL_CORRUPT);  /* no such file */
    ck_status(commit_all(store, 1, 1, shards, 1), KEEL_MISMATCH); /* saved as one of two */
    how.rank = 1;
    ck_ok(save_rank(store, &how, &tensor, 1, &shards[1]));
    shards[1].index_digest[3] ^= 1;
    ck_status(commit_all(store, 1, 1, shards, 2), KEEL_MISMATCH);
    shards[1].index_digest[3] ^= 1;
    shards[1].state_digest = 5; /* ranks that do not agree about the state */
    ck_status(commit_all(store, 1, 1, shards, 2), KEEL_MISMATCH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "rank 1"));
    shards[1].state_digest = 0;
    struct keel_commit bad = {.step = 1, .attempt = 1, .shards = shards, .shard_count = 2, .metadata = "[1]"};
    ck_status(keel_store_commit(store, &bad), KEEL_INVALID);
    ck_ok(commit_all(store, 1, 1, shards, 2));
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* In the manifest the metadata lies one level deeper than by itself. */
START_TEST(metadata_that_no_reader_takes_is_not_committed)
{
    enum { READABLE = 2047 }; /* of jansson's 2048 levels */
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region tensor = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){100});
    struct keel_shard_summary shard;
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 1};
    struct keel_commit commit = {.step = 1, .attempt = 1, .shards = &shard, .shard_count = 1};
    char metadata[8 * READABLE] = "";
    size_t used = 0;
    ck_ok(save_rank(store, &how, &tensor, 1, &shard));
    for (int i = 0; i < READABLE; i++)
        used += (size_t)snprintf(metadata + used, sizeof metadata - used, "{\"a\":");
    used += (size_t)snprintf(metadata + used, sizeof metadata - used, "{}");
    memset(metadata + used, '}', READABLE);
    commit.metadata = metadata;
    ck_status(keel_store_commit(store, &commit), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "metadata"));
    commit.metadata = "{\"a\": {}}";
    ck_ok(keel_store_commit(store, &commit));
    open_and_check(store, 1, 0);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(ranks_that_disagree_about_a_tensor_are_not_committed)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region one = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){100});
    struct keel_region two = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){101});
    struct keel_shard_summary shards[2];
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 2};
    ck_ok(save_rank(store, &how, &one, 1, &shards[0]));
    how.rank = 1;
    ck_ok(save_rank(store, &how, &two, 1, &shards[1]));
    ck_status(commit_all(store, 1, 1, shards, 2), KEEL_CORRUPT);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(bad_names_and_regions_are_refused)
{
    static const char *const runs[] = {"", ".", "..", "a/b", "../x", ".hidden", "a b", "a\n"};
    static const char *const names[] = {"",          "a\nb",    "a\x7f",       "a\x1b[31m",
                                        "a\xc2\x85", "caf\xe9", "\xed\xa0\x80"};
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        struct keel_store_config config = {.root = root, .run = runs[i], .create = true};
        ck_status(keel_store_open(&config, &store), KEEL_INVALID);
    }
    store = open_store(root, true);
    struct keel_shard_summary shard;
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 1};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct keel_region tensor = whole(names[i], KEEL_CKPT_F32, 1, (const uint64_t[]){4});
        ck_status(save_rank(store, &how, &tensor, 1, &shard), KEEL_INVALID);
    }
    struct keel_region tensor = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){4});
    tensor.offset[0] = 1;
    ck_status(save_rank(store, &how, &tensor, 1, &shard), KEEL_INVALID);
    tensor = whole("w", KEEL_CKPT_F32, 3, (const uint64_t[]){1ULL << 30, 1ULL << 30, 1ULL << 30});
    ck_status(save_rank(store, &how, &tensor, 1, &shard), KEEL_INVALID);
    tensor = whole("w", (enum keel_ckpt_dtype)99, 1, (const uint64_t[]){4});
    ck_status(save_rank(store, &how, &tensor, 1, &shard), KEEL_INVALID);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(the_only_run_is_found_and_several_must_be_named)
{
    char root[KEEL_PATH_BYTES], other[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store_config config = {.root = root, .read_only = true};
    struct keel_store *store;
    ck_status(keel_store_open(&config, &store), KEEL_NOT_FOUND);
    keel_store_close(open_store(root, true));
    ck_ok(keel_store_open(&config, &store));
    struct keel_save *save;
    struct keel_region tensor = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){4});
    struct sample_source source = {&tensor, 0};
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 1};
    ck_status(begin_rank(store, &how, &source, 1, &save), KEEL_INVALID); /* read-only */
    ck_status(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, NULL), KEEL_INVALID);
    keel_store_close(store);
    ck_ok(keel_path_join(other, root, "other"));
    ck_ok(keel_mkdir_all(other));
    ck_status(keel_store_open(&config, &store), KEEL_INVALID);
    ck_ok(keel_remove_tree(root));
    ck_status(keel_store_open(&config, &store), KEEL_NOT_FOUND);
}
END_TEST

START_TEST(a_store_is_created_with_all_directories_above_it)
{
    char base[KEEL_PATH_BYTES], root[KEEL_PATH_BYTES];
    make_directory(base);
    ck_ok(keel_path_join(root, base, "a//b/c/"));
    struct keel_store_config config = {.root = root, .run = "sample"};
    struct keel_store *store;
    ck_status(keel_store_open(&config, &store), KEEL_NOT_FOUND);
    config.create = true;
    for (int i = 0; i < 2; i++) { /* new, then there already */
        ck_ok(keel_store_open(&config, &store));
        keel_store_close(store);
    }
    ck_ok(keel_path_join(root, base, "a/b/c/sample"));
    ck_assert(keel_path_exists(root));
    ck_ok(keel_remove_tree(base));
}
END_TEST

START_TEST(a_directory_that_somebody_removed_is_made_again)
{
    char root[KEEL_PATH_BYTES];
    struct keel_region tensors[4];
    uint64_t state = 1;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    const uint32_t count = small_tensors(tensors);
    for (uint64_t step = 10; step <= 20; step += 10) {
        struct sample_save how = {
            .step = step, .attempt = 1, .salt = step, .rank_count = 2, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, count, 6, &state));
        if (step == 10)
            ck_ok(keel_remove_tree(root));
    }
    struct keel_snapshot_info infos[2];
    uint32_t listed, damaged;
    ck_ok(keel_store_list(store, infos, 2, &listed, &damaged));
    ck_assert_uint_eq(listed, 1);
    ck_assert_uint_eq(infos[0].step, 20);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_shard_of_no_regions_and_of_empty_ones_is_a_shard)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region full = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){4}), empty = full;
    empty.offset[0] = 4;
    empty.extent[0] = 0;
    struct keel_shard_summary shards[3];
    struct sample_save how = {.step = 1, .attempt = 1, .rank_count = 3};
    ck_ok(save_rank(store, &how, NULL, 0, &shards[0]));
    how.rank = 1;
    ck_ok(save_rank(store, &how, &empty, 1, &shards[1]));
    how.rank = 2;
    ck_ok(save_rank(store, &how, &full, 1, &shards[2]));
    ck_ok(commit_all(store, 1, 1, shards, 3));
    open_and_check(store, 1, 0);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_was_committed_is_read_back);
    tcase_add_test(tc, tensors_are_listed_by_name_with_their_global_shape);
    tcase_add_test(tc, any_layout_is_read_into_any_other);
    tcase_add_test(tc, replicas_that_overlap_are_read_once_and_right);
    tcase_add_test(tc, a_snapshot_with_a_hole_is_neither_committed_nor_read_over);
    tcase_add_test(tc, reading_asks_for_the_stored_shape_dtype_and_name);
    tcase_add_test(tc, an_attempt_is_used_once);
    tcase_add_test(tc, a_commit_takes_each_rank_once_and_only_what_its_summary_says);
    tcase_add_test(tc, metadata_that_no_reader_takes_is_not_committed);
    tcase_add_test(tc, ranks_that_disagree_about_a_tensor_are_not_committed);
    tcase_add_test(tc, bad_names_and_regions_are_refused);
    tcase_add_test(tc, the_only_run_is_found_and_several_must_be_named);
    tcase_add_test(tc, a_store_is_created_with_all_directories_above_it);
    tcase_add_test(tc, a_directory_that_somebody_removed_is_made_again);
    tcase_add_test(tc, a_shard_of_no_regions_and_of_empty_ones_is_a_shard);
}

KEEL_TEST_MAIN("snapshot", cases, 120)
