/* save_test.c - what a save promises while it runs: bounds, caps, deadlines, cancelling, failing, threads. */
#include "sample.h"
#include "store.h"
#include <errno.h>
#include <keel/disk.h>
#include <keel/thread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MIB = 1 << 20 };

/* A source of one large tensor whose reading can be held up, counted and failed. */
struct gate {
    atomic_uint open_to;          /* reads beyond this number wait */
    atomic_uint reads;            /* begun */
    _Atomic uint64_t next_offset; /* where the next read must begin */
    uint32_t fail_at;             /* this read fails; 0: none */
    _Atomic bool out_of_order;
};

static enum keel_status gated_read(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    struct gate *gate = context;
    (void)index;
    uint32_t number = atomic_fetch_add(&gate->reads, 1) + 1;
    if (atomic_exchange(&gate->next_offset, offset + bytes) != offset)
        atomic_store(&gate->out_of_order, true);
    while (number > atomic_load(&gate->open_to))
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    if (number == gate->fail_at)
        return keel_fail(KEEL_DEVICE_LOST, "the board is gone");
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t x = mix(offset + i) & UINT64_C(0x3fffffff3fffffff); /* finite */
        memcpy((uint8_t *)out + i, &x, 8);
    }
    return KEEL_OK;
}

static struct keel_save_config gated_config(struct gate *gate, struct keel_region *region, uint64_t mib)
{
    *region = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){mib * MIB / 4});
    return (struct keel_save_config){.step = 1,
                                     .attempt = 1,
                                     .rank_count = 1,
                                     .codec = KEEL_CODEC_PLANES,
                                     .regions = region,
                                     .region_count = 1,
                                     .read = gated_read,
                                     .context = gate};
}

static uint64_t soon(void)
{
    return keel_deadline_after_ns(20 * KEEL_NS_PER_MS);
}

static uint64_t late(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

static uint32_t files_in_step(const char *root)
{
    char path[KEEL_PATH_BYTES];
    uint32_t count = 0;
    ck_ok(keel_path_join(path, root, "sample/step-1.1"));
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    if (directory != NULL)
        closedir(directory);
    return count;
}

START_TEST(waits_keep_their_deadlines_and_the_save_goes_on)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct gate gate = {.open_to = 2};
    struct keel_region region;
    struct keel_save_config config = gated_config(&gate, &region, 5);
    config.arena_bytes = 4 * MIB; /* not whole: a read is of one chunk */
    struct keel_save *save;
    struct keel_shard_summary shard;
    ck_ok(keel_save_begin(store, &config, &save));
    ck_status(keel_save_wait_captured(save, soon()), KEEL_TIMEOUT);
    ck_status(keel_save_finish(save, soon(), &shard), KEEL_TIMEOUT);
    ck_assert(!keel_save_done(save));
    atomic_store(&gate.open_to, 100);
    ck_ok(keel_save_wait_captured(save, late()));
    for (int i = 0; i < 60000 && !keel_save_done(save); i++)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    ck_assert_uint_eq(keel_save_progress_bytes(save), 5 * MIB);
    ck_assert_uint_eq(atomic_load(&gate.reads), 5);
    ck_assert(!atomic_load(&gate.out_of_order));
    ck_ok(keel_save_finish(save, late(), &shard));
    ck_assert_uint_eq(shard.raw_bytes, 5 * MIB);
    ck_assert_uint_eq(shard.record_count, 1);
    ck_ok(commit_all(store, 1, 1, &shard, 1));
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* Encoding cannot go on while the writer is held back by a tiny cap, so the arena fills and capture waits. */
START_TEST(the_arena_bounds_how_far_capture_runs_ahead)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct gate gate = {.open_to = 1000};
    struct keel_region region;
    struct keel_save_config config = gated_config(&gate, &region, 64);
    config.arena_bytes = 3 * MIB;
    config.bandwidth_bytes_s = 1;
    config.codec = KEEL_CODEC_RAW;
    uint64_t before = keel_memory_stats().live_bytes;
    struct keel_save *save;
    ck_ok(keel_save_begin(store, &config, &save));
    while (atomic_load(&gate.reads) < 3)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    ck_status(keel_save_wait_captured(save, keel_deadline_after_ns(400 * KEEL_NS_PER_MS)), KEEL_TIMEOUT);
    /* the stream's four blocks of 4 MiB, the arena's 3 MiB, one in a drain thread, one more that waits */
    ck_assert_uint_le(atomic_load(&gate.reads), 16 + 3 + 1 + 1);
    ck_assert_uint_le(keel_memory_stats().peak_bytes - before, (16 + 3 + 3) * (uint64_t)MIB);
    ck_assert_uint_le(keel_save_progress_bytes(save), 64 * MIB);
    keel_save_cancel(save);
    ck_assert_uint_eq(files_in_step(root), 0);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(any_arena_gives_the_same_file)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region tensors[3] = {whole("a", KEEL_CKPT_F32, 2, (const uint64_t[]){700, 1000}),
                                     whole("b", KEEL_CKPT_U8, 1, (const uint64_t[]){100}),
                                     whole("c", KEEL_CKPT_BF16, 1, (const uint64_t[]){900001})};
    static const uint64_t arenas[] = {0, 1, MIB, MIB + 4096, 2 * MIB + 64, 1ULL << 40};
    struct keel_shard_summary first, shard;
    struct sample_save how = {.step = 1, .rank_count = 1, .codec = KEEL_CODEC_PLANES};
    for (uint32_t i = 0; i < 12; i++) {
        how.attempt = i + 1;
        how.arena_bytes = arenas[i % 6];
        how.drain_threads = i < 6 ? 1 : 4;
        ck_ok(save_rank(store, &how, tensors, 3, &shard));
        if (i == 0)
            first = shard;
        ck_assert_mem_eq(first.index_digest, shard.index_digest, sizeof first.index_digest);
        ck_assert_uint_eq(first.file_bytes, shard.file_bytes);
    }
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* At every moment no more bytes are in the file than the cap allows since the beginning, and one piece. */
START_TEST(the_bandwidth_cap_holds_at_every_moment)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    make_directory(root);
    ck_ok(keel_path_join(path, root, "sample/step-1.1/rank-0.keel"));
    struct keel_store *store = open_store(root, true);
    struct gate gate = {.open_to = 1000};
    struct keel_region region;
    struct keel_save_config config = gated_config(&gate, &region, 4);
    config.codec = KEEL_CODEC_RAW;
    config.bandwidth_bytes_s = 8 * MIB;
    uint64_t from_ns = keel_now_ns(), samples = 0;
    struct keel_save *save;
    struct keel_shard_summary shard;
    ck_ok(keel_save_begin(store, &config, &save));
    while (!keel_save_done(save)) {
        struct stat info;
        ck_assert_int_eq(stat(path, &info), 0);
        uint64_t spent_ns = keel_now_ns() - from_ns;
        uint64_t allowed = 8 * MIB * (spent_ns / 1000) / 1000000 + 8 * MIB / 32 + 4096;
        ck_assert_uint_le((uint64_t)info.st_size, allowed);
        samples++;
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    }
    ck_assert_uint_gt(samples, 5);
    ck_ok(keel_save_finish(save, late(), &shard));
    ck_assert_uint_ge(keel_now_ns() - from_ns,
                      (shard.file_bytes - 8 * MIB / 32) * 1000 / (8 * MIB) * 1000000);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(cancel_at_any_moment_leaves_nothing)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    uint64_t state = 21;
    for (uint32_t i = 0; i < 60; i++) {
        struct gate gate = {.open_to = i % 3 == 0 ? 2 : 1000};
        struct keel_region region;
        struct keel_save_config config = gated_config(&gate, &region, 6);
        config.drain_threads = 1 + i % 3;
        config.arena_bytes = i % 2 == 0 ? 2 * MIB : 0;
        config.bandwidth_bytes_s = i % 5 == 0 ? 4 * MIB : 0;
        struct keel_save *save;
        ck_ok(keel_save_begin(store, &config, &save));
        keel_sleep_until_ns(keel_deadline_after_ns(draw(&state, 20 * KEEL_NS_PER_MS)));
        atomic_store(&gate.open_to, 1000); /* the callback returns by itself, as it must */
        keel_save_cancel(save);
        ck_assert_uint_eq(files_in_step(root), 0);
    }
    keel_save_cancel(NULL);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_source_that_fails_ends_the_save_with_its_reason)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    for (uint32_t at = 1; at <= 5; at += 2) {
        struct gate gate = {.open_to = 1000, .fail_at = at};
        struct keel_region region;
        struct keel_save_config config = gated_config(&gate, &region, 5);
        config.arena_bytes = 4 * MIB;
        struct keel_save *save;
        struct keel_shard_summary shard;
        ck_ok(keel_save_begin(store, &config, &save));
        ck_status(keel_save_wait_captured(save, late()), KEEL_DEVICE_LOST);
        ck_status(keel_save_finish(save, late(), &shard), KEEL_DEVICE_LOST);
        ck_assert_str_eq(keel_detail(), "the board is gone");
        ck_assert_uint_eq(files_in_step(root), 0);
    }
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static struct gate *refused_gate;

/* Not before the eighth read has begun. */
static ssize_t refuse_write(int fd, const void *data, size_t bytes, uint64_t offset)
{
    (void)fd;
    (void)data;
    (void)bytes;
    (void)offset;
    while (atomic_load(&refused_gate->reads) < 8)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    errno = EIO;
    return -1;
}

/* The caller would change the memory, or free it. */
START_TEST(a_save_that_fails_is_not_captured_before_the_last_read_has_ended)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct gate gate = {.open_to = 7};
    struct keel_region region;
    struct keel_save_config config = gated_config(&gate, &region, 64);
    struct keel_disk_ops ops = keel_disk_posix;
    config.codec = KEEL_CODEC_RAW;
    config.arena_bytes = 8 * MIB;
    ops.pwrite = refuse_write;
    refused_gate = &gate;
    struct keel_save *save;
    struct keel_shard_summary shard;
    keel_disk_use(&ops);
    ck_ok(keel_save_begin(store, &config, &save));
    ck_status(keel_save_wait_captured(save, keel_deadline_after_ns(2 * KEEL_NS_PER_S)), KEEL_TIMEOUT);
    ck_assert_uint_eq(atomic_load(&gate.reads), 8); /* the eighth is still at it */
    ck_status(keel_save_finish(save, soon(), &shard), KEEL_TIMEOUT);
    atomic_store(&gate.open_to, 100);
    ck_status(keel_save_wait_captured(save, late()), KEEL_IO);
    ck_status(keel_save_finish(save, late(), &shard), KEEL_IO);
    keel_disk_use(NULL);
    ck_assert_uint_eq(atomic_load(&gate.reads), 8);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_disk_that_fills_up_is_reported_and_cleaned_up)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct gate gate = {.open_to = 1000};
    struct keel_region region;
    struct keel_save_config config = gated_config(&gate, &region, 24);
    struct keel_shard_summary shard;
    struct keel_save *save;
    struct rlimit before, small;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 9 * (rlim_t)MIB;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_ok(keel_save_begin(store, &config, &save));
    ck_status(keel_save_finish(save, late(), &shard), KEEL_NO_SPACE);
    ck_assert_uint_eq(files_in_step(root), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    atomic_store(&gate.next_offset, 0);
    ck_ok(keel_save_begin(store, &config, &save)); /* there is space again: the same attempt goes through */
    ck_ok(keel_save_finish(save, late(), &shard));
    ck_ok(commit_all(store, 1, 1, &shard, 1));
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_small_file_system_that_fills_up_is_reported_and_cleaned_up)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    if (mount("keel-test", root, "tmpfs", 0, "size=8m") != 0) {
        printf("note: no permission to mount a small tmpfs; that part is left out\n");
        ck_ok(keel_remove_tree(root));
        return;
    }
    struct keel_store *store = open_store(root, true);
    struct gate gate = {.open_to = 1000};
    struct keel_region region;
    struct keel_save_config config = gated_config(&gate, &region, 24);
    struct keel_shard_summary shard;
    struct keel_save *save;
    enum keel_status status = keel_save_begin(store, &config, &save);
    if (status == KEEL_OK)
        status = keel_save_finish(save, late(), &shard);
    uint32_t left = files_in_step(root);
    keel_store_close(store);
    ck_assert_int_eq(umount(root), 0);
    ck_ok(keel_remove_tree(root));
    ck_assert_int_eq(status, KEEL_NO_SPACE);
    ck_assert_uint_eq(left, 0);
}
END_TEST

/* In a child, as root may write anywhere until it gives that up. */
START_TEST(a_directory_without_permission_is_told_at_once)
{
    char root[KEEL_PATH_BYTES], run[KEEL_PATH_BYTES];
    make_directory(root);
    ck_ok(keel_path_join(run, root, "sample"));
    struct keel_store *store = open_store(root, true);
    ck_assert_int_eq(chmod(root, 0755), 0);
    ck_assert_int_eq(chmod(run, 0555), 0);
    pid_t child = fork();
    if (child == 0) {
        struct gate gate = {.open_to = 1000};
        struct keel_region region;
        struct keel_save_config config = gated_config(&gate, &region, 1);
        struct keel_save *save;
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
            _exit(99);
        _exit((int)keel_save_begin(store, &config, &save));
    }
    int result;
    ck_assert_int_eq(waitpid(child, &result, 0), child);
    ck_assert(WIFEXITED(result));
    ck_assert_int_eq(WEXITSTATUS(result), KEEL_DENIED);
    ck_assert_int_eq(chmod(run, 0755), 0);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(impossible_settings_are_refused)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct gate gate = {.open_to = 1000};
    struct keel_region region;
    struct keel_save *save;
    struct keel_save_config config = gated_config(&gate, &region, 1);
    config.rank = 1;
    ck_status(keel_save_begin(store, &config, &save), KEEL_INVALID);
    config = gated_config(&gate, &region, 1);
    config.codec = KEEL_CODEC_COUNT;
    ck_status(keel_save_begin(store, &config, &save), KEEL_INVALID);
    config = gated_config(&gate, &region, 1);
    config.read = NULL;
    ck_status(keel_save_begin(store, &config, &save), KEEL_INVALID);
    config = gated_config(&gate, &region, 1);
    config.drain_threads = 1000;
    ck_status(keel_save_begin(store, &config, &save), KEEL_INVALID);
    ck_assert_uint_eq(files_in_step(root), 0);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* ---- several at once ----------------------------------------------------------------------------------- */

struct reader {
    struct keel_thread thread;
    struct keel_snapshot *snapshot;
    const struct keel_region *tensor;
    uint64_t seed;
};

static void *read_boxes(void *argument)
{
    struct reader *reader = argument;
    for (int i = 0; i < 20; i++) {
        struct keel_region box = random_box(reader->tensor, &reader->seed);
        ck_ok(check_box(reader->snapshot, &box, 0));
    }
    return NULL;
}

START_TEST(ranks_save_side_by_side_and_threads_read_one_snapshot)
{
    enum { RANKS = 4, READERS = 4, ROWS = 64, COLUMNS = 5000 };
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region tensor = whole("w", KEEL_CKPT_F32, 2, (const uint64_t[]){ROWS, COLUMNS});
    struct keel_region parts[RANKS];
    struct sample_source sources[RANKS];
    struct keel_save *saves[RANKS];
    struct keel_shard_summary shards[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        struct sample_save how = {.step = 1,
                                  .attempt = 1,
                                  .rank = r,
                                  .rank_count = RANKS,
                                  .drain_threads = 3,
                                  .codec = KEEL_CODEC_PLANES};
        parts[r] = tensor;
        parts[r].offset[0] = (uint64_t)ROWS / RANKS * r;
        parts[r].extent[0] = ROWS / RANKS;
        sources[r] = (struct sample_source){&parts[r], 0};
        ck_ok(begin_rank(store, &how, &sources[r], 1, &saves[r]));
    }
    uint64_t progress = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        progress += keel_save_progress_bytes(saves[r]);
        ck_ok(keel_save_wait_captured(saves[r], late()));
        ck_ok(keel_save_finish(saves[r], late(), &shards[r]));
    }
    ck_assert_uint_le(progress, (uint64_t)ROWS * COLUMNS * 4);
    ck_ok(commit_all(store, 1, 1, shards, RANKS));
    struct keel_snapshot *snapshot;
    struct reader readers[READERS];
    ck_ok(keel_snapshot_open(store, 1, 0, &snapshot));
    for (uint32_t i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.snapshot = snapshot, .tensor = &tensor, .seed = i + 1};
        ck_ok(keel_thread_create(&readers[i].thread, "reader", read_boxes, &readers[i]));
    }
    for (uint32_t i = 0; i < READERS; i++)
        keel_thread_join(&readers[i].thread);
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static size_t resident_pages(const struct keel_workspace *memory)
{
    size_t pages = memory->bytes / KEEL_PAGE_BYTES, resident = 0;
    unsigned char *map;
    ck_ok(keel_alloc(pages, 1, (void *)&map));
    ck_assert_int_eq(mincore(memory->data, pages * KEEL_PAGE_BYTES, map), 0);
    for (size_t i = 0; i < pages; i++)
        resident += map[i] & 1;
    keel_free(map);
    return resident;
}

START_TEST(memory_that_is_prepared_is_there_before_the_first_save_and_taken_by_it)
{
    char root[KEEL_PATH_BYTES];
    struct keel_region region = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){5 << 20});
    struct sample_source source = {&region, 4};
    struct keel_save_config config = {.step = 4,
                                      .attempt = 1,
                                      .rank_count = 1,
                                      .regions = &region,
                                      .region_count = 1,
                                      .read = sample_read,
                                      .context = &source};
    struct keel_shard_summary shard;
    struct keel_save *save;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    ck_ok(keel_save_prepare(store, &config));
    const uint8_t *prepared = store->spare.memory;
    ck_assert_uint_ge(store->spare.bytes, keel_region_bytes(&region));
    ck_assert_uint_eq(resident_pages(&store->spare), store->spare.bytes / KEEL_PAGE_BYTES);
    ck_ok(keel_save_begin(store, &config, &save));
    ck_ok(keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), &shard));
    ck_assert_ptr_eq(store->spare.memory, prepared);
    ck_ok(commit_all(store, 4, 1, &shard, 1));
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, memory_that_is_prepared_is_there_before_the_first_save_and_taken_by_it);
    tcase_add_test(tc, waits_keep_their_deadlines_and_the_save_goes_on);
    tcase_add_test(tc, the_arena_bounds_how_far_capture_runs_ahead);
    tcase_add_test(tc, any_arena_gives_the_same_file);
    tcase_add_test(tc, the_bandwidth_cap_holds_at_every_moment);
    tcase_add_test(tc, cancel_at_any_moment_leaves_nothing);
    tcase_add_test(tc, a_source_that_fails_ends_the_save_with_its_reason);
    tcase_add_test(tc, a_save_that_fails_is_not_captured_before_the_last_read_has_ended);
    tcase_add_test(tc, a_disk_that_fills_up_is_reported_and_cleaned_up);
    tcase_add_test(tc, a_small_file_system_that_fills_up_is_reported_and_cleaned_up);
    tcase_add_test(tc, a_directory_without_permission_is_told_at_once);
    tcase_add_test(tc, impossible_settings_are_refused);
    tcase_add_test(tc, ranks_save_side_by_side_and_threads_read_one_snapshot);
}

KEEL_TEST_MAIN("save", cases, 120)
