/* elsewhere_test.c - each node commits in a store of its own, of which none has all shards. */
#include "sample.h"
#include <keel/ckpt_tier.h>
#include <keel/disk.h>

enum { NODES = 3, ROWS = 8 };

static char roots[NODES][KEEL_PATH_BYTES];
static struct keel_store *stores[NODES];
static struct keel_region rows[NODES]; /* of one tensor: each node's */
static struct keel_shard_summary summaries[NODES];

static void setup(void)
{
    const struct keel_region tensor = whole("w", KEEL_CKPT_F32, 2, (const uint64_t[]){NODES * ROWS, 1024});
    for (uint32_t i = 0; i < NODES; i++) {
        make_directory(roots[i]);
        stores[i] = open_store(roots[i], true);
        rows[i] = tensor;
        rows[i].offset[0] = (uint64_t)i * ROWS;
        rows[i].extent[0] = ROWS;
        const struct sample_save how = {
            .step = 5, .attempt = 1, .rank = i, .rank_count = NODES, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_rank(stores[i], &how, &rows[i], 1, &summaries[i]));
    }
}

static void teardown(void)
{
    for (uint32_t i = 0; i < NODES; i++) {
        keel_store_close(stores[i]);
        ck_ok(keel_remove_tree(roots[i]));
    }
}

static enum keel_status commit_on(uint32_t node, uint64_t created_wall_ns)
{
    const struct keel_commit commit = {.step = 5,
                                       .attempt = 1,
                                       .shards = summaries,
                                       .shard_count = NODES,
                                       .identity = "c0ffee",
                                       .created_wall_ns = created_wall_ns,
                                       .elsewhere = true};
    return keel_store_commit(stores[node], &commit);
}

static char *manifest_of(uint32_t node, size_t *out_bytes)
{
    char path[KEEL_PATH_BYTES], *text;
    ck_ok(keel_path_join(path, roots[node], "sample/step-5.1/manifest.json"));
    ck_ok(keel_file_read(path, 1 << 20, &text, out_bytes));
    return text;
}

START_TEST(all_nodes_write_one_manifest)
{
    size_t bytes[NODES];
    char *text[NODES];
    for (uint32_t i = 0; i < NODES; i++) {
        ck_ok(keel_shard_check(stores[i], 5, 1, &summaries[i], false));
        ck_ok(commit_on(i, 1234567));
        text[i] = manifest_of(i, &bytes[i]);
        ck_assert_uint_eq(bytes[i], bytes[0]);
        ck_assert_mem_eq(text[i], text[0], bytes[0]);
    }
    for (uint32_t i = 0; i < NODES; i++)
        keel_free(text[i]);
    ck_assert_int_eq(commit_on(0, 1234567), KEEL_INVALID); /* it is committed there */
}
END_TEST

START_TEST(what_is_here_is_read_and_the_rest_is_missing)
{
    struct keel_snapshot *snapshot;
    struct keel_region all = rows[0];
    all.offset[0] = 0;
    all.extent[0] = all.shape[0];
    for (uint32_t i = 0; i < NODES; i++)
        ck_ok(commit_on(i, 1));
    ck_assert_int_eq(keel_snapshot_open(stores[1], 5, 1, &snapshot), KEEL_CORRUPT);
    ck_ok(keel_snapshot_open_here(stores[1], 5, 1, &snapshot));
    ck_assert_uint_eq(keel_snapshot_missing(snapshot), NODES - 1);
    ck_ok(check_box(snapshot, &rows[1], 0));
    ck_assert_int_eq(check_box(snapshot, &rows[0], 0), KEEL_CORRUPT);
    ck_assert_int_eq(check_box(snapshot, &all, 0), KEEL_CORRUPT);
    keel_snapshot_close(snapshot);
}
END_TEST

START_TEST(files_that_are_brought_make_it_whole)
{
    struct keel_tier *tiers[NODES];
    struct keel_snapshot *snapshot;
    struct keel_object_info info;
    uint32_t damaged;
    for (uint32_t i = 0; i < NODES; i++) {
        ck_ok(commit_on(i, 1));
        ck_ok(keel_tier_directory_open(stores[i], KEEL_LATENCY_LOCAL, "a node", &tiers[i]));
    }
    for (uint32_t i = 1; i < NODES; i++) {
        const struct keel_object shard = {.step = 5, .attempt = 1, .kind = KEEL_OBJECT_SHARD, .member = i};
        ck_ok(keel_tier_look(tiers[i], &shard, &info));
        ck_assert_uint_eq(info.bytes, summaries[i].file_bytes);
        ck_assert(info.digest_known);
        ck_ok(keel_tier_copy(tiers[i], &shard, tiers[0]));
    }
    ck_ok(keel_snapshot_open(stores[0], 5, 1, &snapshot));
    ck_ok(check_all(snapshot, 0));
    ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, &damaged));
    keel_snapshot_close(snapshot);
    for (uint32_t i = 0; i < NODES; i++)
        keel_tier_end(tiers[i]);
}
END_TEST

START_TEST(a_shard_that_is_here_has_to_be_that_of_its_summary)
{
    summaries[1].index_digest[3] ^= 1;
    ck_assert_int_eq(keel_shard_check(stores[1], 5, 1, &summaries[1], false), KEEL_MISMATCH);
    ck_assert_int_eq(commit_on(1, 1), KEEL_MISMATCH);
    ck_ok(commit_on(0, 1)); /* at its word: the other node has seen it */
    summaries[1].index_digest[3] ^= 1;
    ck_assert_int_eq(keel_shard_check(stores[2], 5, 1, &summaries[1], false), KEEL_CORRUPT); /* not here */
}
END_TEST

static enum keel_status read_nan(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    (void)context;
    (void)index;
    (void)offset;
    memset(out, 0xff, bytes);
    return KEEL_OK;
}

START_TEST(nan_is_found_where_it_lies)
{
    struct keel_save *save;
    struct keel_shard_summary summary;
    const struct keel_save_config config = {
        .step = 6, .attempt = 1, .rank_count = NODES, .regions = rows, .region_count = 1, .read = read_nan};
    ck_ok(keel_save_begin(stores[0], &config, &save));
    ck_ok(keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), &summary));
    ck_assert_int_eq(keel_shard_check(stores[0], 6, 1, &summary, false), KEEL_DIVERGED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor w"));
    ck_ok(keel_shard_check(stores[0], 6, 1, &summary, true));
}
END_TEST

START_TEST(deltas_are_refused)
{
    struct keel_shard_summary delta[NODES];
    for (uint32_t i = 0; i < NODES; i++) {
        const struct sample_save how = {
            .step = 7, .attempt = 1, .rank = i, .rank_count = NODES, .codec = KEEL_CODEC_DELTA};
        ck_ok(save_rank(stores[i], &how, &rows[i], 1, &delta[i]));
    }
    struct keel_commit commit = {.step = 7,
                                 .attempt = 1,
                                 .shards = delta,
                                 .shard_count = NODES,
                                 .identity = "c0ffee",
                                 .elsewhere = true};
    ck_ok(keel_store_commit(stores[0], &commit)); /* the first of a chain is made of planes */
    for (uint32_t i = 0; i < NODES; i++) {
        const struct sample_save how = {
            .step = 8, .attempt = 1, .rank = i, .rank_count = NODES, .codec = KEEL_CODEC_DELTA};
        ck_ok(save_rank(stores[i], &how, &rows[i], 1, &delta[i]));
    }
    commit.step = 8;
    ck_assert_int_eq(keel_store_commit(stores[0], &commit), KEEL_UNSUPPORTED);
}
END_TEST

static uint64_t read_bytes;

static ssize_t counted(ssize_t got)
{
    read_bytes += got > 0 ? (uint64_t)got : 0;
    return got;
}

static ssize_t counting_read(int fd, void *data, size_t bytes)
{
    return counted(keel_disk_posix.read(fd, data, bytes));
}

static ssize_t counting_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
    return counted(keel_disk_posix.pread(fd, data, bytes, offset));
}

/* What a rank of 4,096 reads to open a snapshot, where its node has its own shard alone: the manifest, and
 * the index of that shard. The indexes of all shards would be 4,096 times that. */
START_TEST(opening_reads_the_manifest_and_what_is_here)
{
    enum { RANKS = 4096, MINE = 1234, TENSORS = 48 };
    static struct keel_shard_summary all[RANKS];
    static struct keel_region regions[TENSORS];
    struct keel_disk_ops ops = keel_disk_posix;
    struct keel_snapshot *snapshot;
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%u", t);
        regions[t] = whole(name, KEEL_CKPT_F32, 1, (const uint64_t[]){RANKS * 64});
        regions[t].offset[0] = MINE * 64;
        regions[t].extent[0] = 64;
    }
    const struct sample_save how = {
        .step = 9, .attempt = 1, .rank = MINE, .rank_count = RANKS, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_rank(stores[0], &how, regions, TENSORS, &all[MINE]));
    for (uint32_t r = 0; r < RANKS; r++) {
        all[r] = all[MINE];
        all[r].rank = r;
    }
    const struct keel_commit commit = {.step = 9,
                                       .attempt = 1,
                                       .shards = all,
                                       .shard_count = RANKS,
                                       .identity = "c0ffee",
                                       .elsewhere = true};
    ck_ok(keel_store_commit(stores[0], &commit));
    ops.read = counting_read;
    ops.pread = counting_pread;
    read_bytes = 0;
    keel_disk_use(&ops);
    ck_ok(keel_snapshot_open_here(stores[0], 9, 1, &snapshot));
    keel_disk_use(&keel_disk_posix);
    const uint64_t index = TENSORS * (384 + 64) + 4096, manifest = 1 << 20;
    ck_assert_uint_gt(read_bytes, TENSORS * (384 + 64));
    ck_assert_uint_lt(read_bytes, manifest + index + 2 * 4096);
    ck_assert_uint_eq(keel_snapshot_missing(snapshot), RANKS - 1);
    ck_ok(check_box(snapshot, &regions[5], 0));
    printf("note: a rank of %d reads %llu bytes to open its part of a snapshot; all indexes are %llu\n",
           RANKS, (unsigned long long)read_bytes, (unsigned long long)RANKS * TENSORS * (384 + 64));
    keel_snapshot_close(snapshot);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, all_nodes_write_one_manifest);
    tcase_add_test(tc, what_is_here_is_read_and_the_rest_is_missing);
    tcase_add_test(tc, files_that_are_brought_make_it_whole);
    tcase_add_test(tc, a_shard_that_is_here_has_to_be_that_of_its_summary);
    tcase_add_test(tc, nan_is_found_where_it_lies);
    tcase_add_test(tc, deltas_are_refused);
    tcase_add_test(tc, opening_reads_the_manifest_and_what_is_here);
}

KEEL_TEST_MAIN("elsewhere", cases, 60)
