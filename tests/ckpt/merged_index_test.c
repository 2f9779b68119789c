/* merged_index_test.c - index.keel: of many shards a reader opens those that hold something, and an index
 * that is damaged, of other shards, or wrong costs time and no byte. */
#include "command.h"
#include "manifest.h"
#include "merged_index.h"
#include "sample.h"
#include "snapshot.h"
#include <keel/ckpt_tier.h>
#include <keel/disk.h>

enum { RANKS = 16, TENSORS = 160, ROWS = 320 };

static char root[KEEL_PATH_BYTES];
static struct keel_store *store;
static struct keel_region tensors[TENSORS],
    scattered; /* each rank has a row of the first; and each 16th of this */

static struct keel_region row_of(const struct keel_region *tensor, uint64_t row)
{
    struct keel_region box = *tensor;
    box.offset[0] = row;
    box.extent[0] = 1;
    return box;
}

static void save_step(uint64_t step)
{
    static struct keel_region mine[TENSORS + ROWS / RANKS];
    static struct keel_shard_summary shards[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t count = 0;
        for (uint32_t t = 0; t < TENSORS; t++)
            mine[count++] = row_of(&tensors[t], r);
        for (uint32_t row = r; row < ROWS; row += RANKS)
            mine[count++] = row_of(&scattered, row);
        const struct sample_save how = {.step = step,
                                        .attempt = 1,
                                        .salt = step,
                                        .rank = r,
                                        .rank_count = RANKS,
                                        .codec = KEEL_CODEC_PLANES};
        ck_ok(save_rank(store, &how, mine, count, &shards[r]));
    }
    ck_ok(commit_all(store, step, 1, shards, RANKS));
}

static void setup(void)
{
    make_directory(root);
    store = open_store(root, true);
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%u", t);
        tensors[t] = whole(name, KEEL_CKPT_F32, 2, (const uint64_t[]){RANKS, 8});
    }
    scattered = whole("scattered", KEEL_CKPT_BF16, 2, (const uint64_t[]){ROWS, 8});
    save_step(3);
}

static void teardown(void)
{
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}

static void path_of(const char *name, char out[KEEL_PATH_BYTES])
{
    char inside[64];
    snprintf(inside, sizeof inside, "sample/step-3.1/%s", name);
    ck_ok(keel_path_join(out, root, inside));
}

static uint8_t *read_index(size_t *out_bytes)
{
    char path[KEEL_PATH_BYTES], *data;
    path_of(KEEL_MERGED_NAME, path);
    ck_ok(keel_file_read(path, 64 << 20, &data, out_bytes));
    return (uint8_t *)data;
}

static void write_index(const uint8_t *data, size_t bytes)
{
    char path[KEEL_PATH_BYTES];
    path_of(KEEL_MERGED_NAME, path);
    ck_ok(keel_file_replace(path, data, bytes, 0666));
}

static uint64_t read_bytes;

static ssize_t counting_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
    ssize_t got = keel_disk_posix.pread(fd, data, bytes, offset);
    read_bytes += got > 0 ? (uint64_t)got : 0;
    return got;
}

static ssize_t counting_read(int fd, void *data, size_t bytes)
{
    ssize_t got = keel_disk_posix.read(fd, data, bytes);
    read_bytes += got > 0 ? (uint64_t)got : 0;
    return got;
}

static void begin_count(struct keel_disk_ops *ops)
{
    *ops = keel_disk_posix;
    ops->pread = counting_pread;
    ops->read = counting_read;
    read_bytes = 0;
    keel_disk_use(ops);
}

static uint64_t end_count(void)
{
    keel_disk_use(&keel_disk_posix);
    return read_bytes;
}

static uint32_t loaded_shards(const struct keel_snapshot *snapshot)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < snapshot->manifest.info.shard_count; i++)
        count += snapshot->shards[i].index != NULL;
    return count;
}

START_TEST(only_shards_that_hold_something_are_opened)
{
    struct keel_snapshot *snapshot;
    struct keel_disk_ops ops;
    const uint64_t indexes = (uint64_t)RANKS * (TENSORS + ROWS / RANKS) * (384 + 64);
    begin_count(&ops);
    ck_ok(keel_snapshot_open(store, 3, 1, &snapshot));
    const uint64_t opened = end_count();
    ck_assert_ptr_nonnull(snapshot->merged);
    ck_assert_uint_eq(loaded_shards(snapshot), 0);
    ck_assert_uint_lt(opened, indexes / 8);
    ck_assert_uint_eq(keel_snapshot_tensor_count(snapshot), TENSORS + 1);
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct keel_region row = row_of(&tensors[t], 5);
        ck_ok(check_box(snapshot, &row, 3));
    }
    ck_assert_uint_eq(loaded_shards(snapshot), 1);
    ck_ok(check_all(snapshot, 3));
    ck_assert_uint_eq(loaded_shards(snapshot), RANKS);
    ck_assert_ptr_null(snapshot->whole);
    keel_snapshot_close(snapshot);
}
END_TEST

START_TEST(boxes_are_what_they_are_by_all_indexes)
{
    struct keel_snapshot *snapshot;
    uint64_t state = 11;
    uint32_t damaged;
    ck_ok(keel_snapshot_open(store, 3, 1, &snapshot));
    for (uint32_t i = 0; i < 200; i++) {
        const struct keel_region box = random_box(i % 2 == 0 ? &scattered : &tensors[i % TENSORS], &state);
        ck_ok(check_box(snapshot, &box, 3));
    }
    ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, &damaged));
    ck_assert_uint_eq(damaged, 0);
    keel_snapshot_close(snapshot);
}
END_TEST

START_TEST(a_shard_that_is_gone_is_told_where_it_is_needed)
{
    struct keel_snapshot *snapshot;
    char path[KEEL_PATH_BYTES];
    path_of("rank-7.keel", path);
    ck_assert_int_eq(unlink(path), 0);
    ck_ok(keel_snapshot_open(store, 3, 1, &snapshot));
    const struct keel_region there = row_of(&tensors[0], 5), gone = row_of(&tensors[0], 7);
    ck_ok(check_box(snapshot, &there, 3));
    ck_assert_int_eq(check_box(snapshot, &gone, 3), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "rank-7.keel: is missing"));
    keel_snapshot_close(snapshot);
}
END_TEST

/* A byte of each part, and whole ones that are cut off or of another snapshot. */
START_TEST(a_damaged_index_costs_no_byte)
{
    size_t bytes;
    uint8_t *data = read_index(&bytes);
    const size_t step = bytes / 61;
    for (size_t at = 3; at < bytes; at += step) {
        struct keel_snapshot *snapshot;
        uint32_t damaged = 0;
        data[at] ^= 0x10;
        write_index(data, bytes);
        data[at] ^= 0x10;
        ck_ok(keel_snapshot_open(store, 3, 1, &snapshot));
        ck_ok(check_all(snapshot, 3));
        ck_assert_int_eq(keel_snapshot_verify(snapshot, NULL, NULL, &damaged), KEEL_CORRUPT);
        ck_assert_uint_eq(damaged, 1);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "index.keel: is not what the shards say"));
        keel_snapshot_close(snapshot);
    }
    for (size_t cut = 0; cut < bytes; cut += bytes / 7) {
        struct keel_snapshot *snapshot;
        write_index(data, cut);
        ck_ok(keel_snapshot_open(store, 3, 1, &snapshot));
        ck_ok(check_all(snapshot, 3));
        keel_snapshot_close(snapshot);
    }
    save_step(4);
    char path[KEEL_PATH_BYTES], *other;
    ck_ok(keel_path_join(path, root, "sample/step-4.1/" KEEL_MERGED_NAME));
    ck_ok(keel_file_read(path, 64 << 20, &other, &bytes));
    write_index((const uint8_t *)other, bytes);
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, 3, 1, &snapshot));
    ck_assert_ptr_null(snapshot->merged);
    ck_ok(check_all(snapshot, 3));
    keel_snapshot_close(snapshot);
    keel_free(other);
    keel_free(data);
}
END_TEST

/* Every check is right, and what it says is not: pieces in other shards, or left out. */
static void lie(bool leave_out)
{
    struct keel_snapshot *snapshot, *whole_one;
    struct keel_merged_writer writer = {.tensors = NULL};
    uint8_t *data;
    size_t bytes;
    ck_ok(keel_snapshot_open(store, 3, 1, &snapshot));
    ck_ok(keel_snapshot_whole(snapshot, &whole_one));
    writer.header = snapshot->merged->header;
    writer.header.tensor_count = writer.header.block_count = writer.header.piece_count = 0;
    for (uint32_t t = 0; t < whole_one->tensor_count; t++) {
        const struct keel_tensor *tensor = &whole_one->tensors[t];
        ck_ok(keel_merged_add_tensor(&writer, tensor->name, tensor->dtype, tensor->dims, tensor->shape,
                                     tensor->axis));
        for (uint32_t p = 0; p < tensor->piece_count - leave_out; p++) {
            struct keel_merged_piece piece;
            ck_ok(keel_snapshot_piece(whole_one, tensor, tensor->first_piece + p, &piece));
            piece.shard = leave_out ? piece.shard : (piece.shard + 1) % RANKS;
            ck_ok(keel_merged_add_piece(&writer, &piece));
        }
    }
    ck_ok(keel_merged_encode(&writer, &data, &bytes));
    keel_merged_writer_fini(&writer);
    keel_snapshot_close(snapshot);
    write_index(data, bytes);
    keel_free(data);
    ck_ok(keel_snapshot_open(store, 3, 1, &snapshot));
    ck_assert_ptr_nonnull(snapshot->merged);
    ck_ok(check_all(snapshot, 3));
    ck_assert_ptr_nonnull(snapshot->whole);
    keel_snapshot_close(snapshot);
}

START_TEST(a_wrong_index_leads_to_no_wrong_byte)
{
    lie(false);
    lie(true);
}
END_TEST

START_TEST(without_it_all_indexes_are_read)
{
    struct keel_snapshot *snapshot;
    char path[KEEL_PATH_BYTES];
    path_of(KEEL_MERGED_NAME, path);
    ck_assert_int_eq(unlink(path), 0);
    ck_ok(keel_snapshot_open(store, 3, 1, &snapshot));
    ck_assert_ptr_null(snapshot->merged);
    ck_assert_uint_eq(loaded_shards(snapshot), RANKS);
    ck_ok(check_all(snapshot, 3));
    keel_snapshot_close(snapshot);
}
END_TEST

START_TEST(it_goes_with_its_snapshot)
{
    const struct keel_retention retention = {.keep_last = 2};
    char path[KEEL_PATH_BYTES];
    uint32_t removed;
    save_step(4);
    save_step(5);
    ck_ok(keel_store_retain(store, &retention, &removed));
    ck_assert_uint_eq(removed, 1);
    ck_ok(keel_path_join(path, root, "sample/step-3.1"));
    ck_assert(!keel_path_exists(path));
}
END_TEST

START_TEST(a_repair_makes_it_where_it_is_gone_or_damaged)
{
    const struct keel_repair_config config = {.step = 3, .attempt = 1};
    size_t bytes, again_bytes;
    char path[KEEL_PATH_BYTES];
    uint8_t *data = read_index(&bytes);
    path_of(KEEL_MERGED_NAME, path);
    for (int turn = 0; turn < 3; turn++) {
        if (turn == 0)
            ck_assert_int_eq(unlink(path), 0);
        else if (turn == 1)
            write_index((const uint8_t[4096]){1}, 4096);
        else { /* a byte of a block, which opening does not look at */
            data[bytes - 9] ^= 1;
            write_index(data, bytes);
            data[bytes - 9] ^= 1;
        }
        ck_ok(keel_store_repair(store, &config, NULL));
        uint8_t *again = read_index(&again_bytes);
        ck_assert_uint_eq(again_bytes, bytes);
        ck_assert_mem_eq(again, data, bytes);
        keel_free(again);
    }
    keel_free(data);
}
END_TEST

/* A snapshot whose merged index is sound opens without any shard being looked at. */
START_TEST(verify_tells_a_shard_that_is_gone_or_damaged)
{
    char path[KEEL_PATH_BYTES], snapshot[KEEL_PATH_BYTES];
    path_of("rank-7.keel", path);
    path_of("", snapshot);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, "x", 1, 200), 1); /* in the zeros of its header */
    ck_assert_int_eq(close(fd), 0);
    for (int turn = 0; turn < 2; turn++) {
        struct output out = COMMAND("verify", snapshot);
        ck_assert_msg(out.code == 4, "%d: %s%s", out.code, out.text, out.errors);
        ck_assert_ptr_nonnull(strstr(out.errors, "rank-7.keel"));
        ck_assert_ptr_nonnull(strstr(out.text, "1 parts are damaged"));
        struct keel_snapshot *there;
        uint32_t damaged = 0;
        ck_ok(keel_snapshot_open(store, 3, 1, &there));
        ck_assert_int_eq(keel_snapshot_verify(there, NULL, NULL, &damaged), KEEL_CORRUPT);
        ck_assert_uint_eq(damaged, 1);
        keel_snapshot_close(there);
        if (turn == 0)
            ck_assert_int_eq(unlink(path), 0);
    }
}
END_TEST

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%*u %llu", &pages), 1);
    ck_assert_int_eq(fclose(file), 0);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A snapshot of so many ranks of which one has files: each rank has a row of each tensor, as owners of slices
 * do. */
static void make_large(uint32_t ranks, uint32_t tensor_count, uint32_t mine)
{
    struct keel_shard_summary *shards;
    struct keel_region *regions;
    struct keel_merged_writer writer = {
        .header = {.step = 9, .attempt = 1, .shard_count = ranks, .run = "sample"}};
    struct keel_manifest manifest = {
        .run = "sample",
        .info = {.step = 9, .attempt = 1, .created_wall_ns = 1, .shard_count = ranks},
        .metadata = "{}"};
    uint8_t *data;
    size_t bytes;
    char path[KEEL_PATH_BYTES], *text;
    ck_ok(keel_alloc(ranks, sizeof *shards, &shards));
    ck_ok(keel_alloc(tensor_count, sizeof *regions, &regions));
    for (uint32_t t = 0; t < tensor_count; t++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%05u", t);
        regions[t] = whole(name, KEEL_CKPT_F32, 2, (const uint64_t[]){ranks, 16});
        ck_ok(keel_merged_add_tensor(&writer, name, KEEL_CKPT_F32, 2, regions[t].shape, 0));
        for (uint32_t r = 0; r < ranks; r++)
            ck_ok(keel_merged_add_piece(
                &writer, &(struct keel_merged_piece){
                             .shard = r, .record = t, .box = {.offset = {r, 0}, .extent = {1, 16}}}));
        regions[t] = row_of(&regions[t], mine);
    }
    const struct sample_save how = {
        .step = 9, .attempt = 1, .rank = mine, .rank_count = ranks, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_rank(store, &how, regions, tensor_count, &shards[mine]));
    for (uint32_t r = 0; r < ranks; r++) {
        shards[r] = shards[mine];
        shards[r].rank = r;
        shards[r].index_digest[0] = (uint8_t)(shards[mine].index_digest[0] + r - mine);
    }
    manifest.shards = shards;
    ck_ok(keel_merged_shards_digest(shards, ranks, writer.header.shards_digest));
    ck_ok(keel_merged_encode(&writer, &data, &bytes));
    keel_merged_writer_fini(&writer);
    ck_ok(keel_path_join(path, root, "sample/step-9.1/" KEEL_MERGED_NAME));
    ck_ok(keel_file_replace(path, data, bytes, 0666));
    keel_free(data);
    ck_ok(keel_manifest_encode(&manifest, &text, &bytes));
    ck_ok(keel_path_join(path, root, "sample/step-9.1/manifest.json"));
    ck_ok(keel_file_replace(path, text, bytes, 0666));
    keel_free(text);
    keel_free(regions);
    keel_free(shards);
}

/* What a rank of so many reads, and has in memory, to open and to read its own rows; nobody else's file is
 * there. */
static void open_large(uint32_t ranks, uint32_t tensor_count)
{
    const uint32_t mine = ranks / 3;
    struct keel_load *loads;
    struct keel_snapshot *snapshot;
    struct keel_disk_ops ops;
    make_large(ranks, tensor_count, mine);
    ck_ok(keel_alloc(tensor_count, sizeof *loads, &loads));
    for (uint32_t t = 0; t < tensor_count; t++) {
        char name[32];
        snprintf(name, sizeof name, "tensor.%05u", t);
        loads[t].box = whole(name, KEEL_CKPT_F32, 2, (const uint64_t[]){ranks, 16});
        loads[t].box = row_of(&loads[t].box, mine);
        ck_ok(keel_alloc(keel_region_bytes(&loads[t].box), 1, &loads[t].out));
    }
    const uint64_t before = resident_bytes(), since_ns = keel_now_ns();
    begin_count(&ops);
    ck_ok(keel_snapshot_open(store, 9, 1, &snapshot));
    const struct keel_load_config config = {.threads = 1};
    ck_ok(keel_snapshot_load(snapshot, loads, tensor_count, &config, NULL));
    const uint64_t bytes = end_count(), took_ns = keel_now_ns() - since_ns, after = resident_bytes();
    const uint64_t held = after > before ? after - before : 0; /* a system short of memory takes pages back */
    ck_assert_uint_eq(loaded_shards(snapshot), 1);
    for (uint32_t t = 0; t < tensor_count; t++) {
        uint8_t wanted[64];
        sample_bytes(&loads[t].box, 0, 0, sizeof wanted, wanted);
        ck_assert_mem_eq(loads[t].out, wanted, sizeof wanted);
    }
    printf(
        "note: rank %u of %u, %u tensors: %.1f MB read to open and read its part, %.1f MB held, %.0f ms; all "
        "indexes are %.0f MB\n",
        mine, ranks, tensor_count, (double)bytes / 1e6, (double)held / 1e6, (double)took_ns / 1e6,
        (double)ranks * tensor_count * (384 + 64) / 1e6);
    ck_assert_uint_lt(bytes, UINT64_C(50) << 20);
    ck_assert_uint_lt(held, UINT64_C(50) << 20);
    keel_snapshot_close(snapshot);
    for (uint32_t t = 0; t < tensor_count; t++)
        keel_free(loads[t].out);
    keel_free(loads);
}

START_TEST(a_rank_of_4096_reads_little_and_holds_little)
{
    open_large(4096, 1000);
}
END_TEST

START_TEST(there_are_32768_ranks)
{
    open_large(KEEL_SNAPSHOT_RANKS_MAX, 32);
}
END_TEST

/* From 8 rows x 8 columns of ranks to 64 rows: as from 64 x 8 to 512 x 1, each wants an eighth of a box of
 * each of eight ranks. What each reads of indexes, with and without the merged one; and of chunks. */
START_TEST(a_reshard_opens_the_shards_of_its_row)
{
    enum { SIDE = 8, ALL = SIDE * SIDE, SMALL = 40, WIDTH = 4096 };
    static struct keel_region mine[SMALL + 1];
    static struct keel_shard_summary shards[ALL];
    const struct keel_region large = whole("large", KEEL_CKPT_F32, 2, (const uint64_t[]){2048, WIDTH});
    for (uint32_t r = 0; r < ALL; r++) {
        for (uint32_t t = 0; t < SMALL + 1; t++) {
            char name[32];
            snprintf(name, sizeof name, "small.%u", t);
            mine[t] = t == 0 ? large : whole(name, KEEL_CKPT_F32, 2, (const uint64_t[]){64, 64});
            for (uint32_t d = 0; d < 2; d++) {
                mine[t].extent[d] = mine[t].shape[d] / SIDE;
                mine[t].offset[d] = mine[t].extent[d] * (d == 0 ? r / SIDE : r % SIDE);
            }
        }
        const struct sample_save how = {
            .step = 7, .attempt = 1, .rank = r, .rank_count = ALL, .codec = KEEL_CODEC_RAW};
        ck_ok(save_rank(store, &how, mine, SMALL + 1, &shards[r]));
    }
    ck_ok(commit_all(store, 7, 1, shards, ALL));
    struct keel_snapshot *snapshot, *all;
    struct keel_disk_ops ops;
    struct keel_load_stats stats;
    struct keel_load load = {.box = large};
    load.box.extent[0] = large.shape[0] / ALL;
    load.box.offset[0] = 21 * load.box.extent[0];
    ck_ok(keel_alloc(keel_region_bytes(&load.box), 1, &load.out));
    begin_count(&ops);
    ck_ok(keel_snapshot_open(store, 7, 1, &snapshot));
    ck_ok(keel_snapshot_load(snapshot, &load, 1, NULL, &stats));
    const uint64_t merged = end_count() - stats.read_bytes;
    ck_assert_uint_eq(loaded_shards(snapshot), SIDE);
    begin_count(&ops);
    ck_ok(keel_snapshot_whole(snapshot, &all));
    const uint64_t indexes = end_count();
    ck_assert_uint_lt(merged, indexes / 4);
    ck_assert_uint_lt(stats.read_bytes, stats.wanted_bytes + stats.wanted_bytes / 10);
    printf("note: a reshard of 8 x 8 to 64 x 1: %llu bytes read to open and find it, %llu of all indexes; of "
           "chunks %.2f times what is wanted\n",
           (unsigned long long)merged, (unsigned long long)indexes,
           (double)stats.read_bytes / (double)stats.wanted_bytes);
    keel_snapshot_close(snapshot);
    keel_free(load.out);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, only_shards_that_hold_something_are_opened);
    tcase_add_test(tc, boxes_are_what_they_are_by_all_indexes);
    tcase_add_test(tc, a_shard_that_is_gone_is_told_where_it_is_needed);
    tcase_add_test(tc, verify_tells_a_shard_that_is_gone_or_damaged);
    tcase_add_test(tc, a_damaged_index_costs_no_byte);
    tcase_add_test(tc, a_wrong_index_leads_to_no_wrong_byte);
    tcase_add_test(tc, without_it_all_indexes_are_read);
    tcase_add_test(tc, it_goes_with_its_snapshot);
    tcase_add_test(tc, a_repair_makes_it_where_it_is_gone_or_damaged);
    tcase_add_test(tc, a_rank_of_4096_reads_little_and_holds_little);
    tcase_add_test(tc, there_are_32768_ranks);
    tcase_add_test(tc, a_reshard_opens_the_shards_of_its_row);
}

KEEL_TEST_MAIN("merged_index", cases, 120)
