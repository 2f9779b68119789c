/* save_stream_test.c - what a save keeps to while it writes: its memory, its share of the disk, its place in
 * the queue; and what it does when the disk refuses. */
#include "generations.h"
#include <errno.h>
#include <keel/disk.h>
#include <sched.h>
#include <stdatomic.h>

/* ---- sources ------------------------------------------------------------------------------------------- */

/* A state that is nowhere: its bytes follow from the place. */
static enum keel_status read_pattern(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                     void *out)
{
    (void)context;
    memset(out, (int)(offset / MIB % 7 + index), bytes);
    return KEEL_OK;
}

static struct keel_save_config pattern_config(struct keel_region *region, uint64_t mib)
{
    *region = whole("w", KEEL_CKPT_U8, 1, (const uint64_t[]){mib * MIB});
    return (struct keel_save_config){
        .step = 1, .attempt = 1, .rank_count = 1, .regions = region, .region_count = 1, .read = read_pattern};
}

static uint64_t late(void)
{
    return keel_deadline_after_ns(100 * KEEL_NS_PER_S);
}

static void shard_path(const char *root, char out[KEEL_PATH_BYTES])
{
    ck_ok(keel_path_join(out, root, "sample/step-1.1/rank-0.keel"));
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/* As ckpt.h says: arena, 16 MiB, 3 MiB for each drain thread, 1 MiB for each capture thread, 96 bytes for
 * each MiB of state. The state is four times as large as all that. */
START_TEST(a_state_of_any_size_is_saved_within_256_mib)
{
    enum { STATE_MIB = 640, ARENA_MIB = 128, DRAIN = 4, CAPTURE = 2 };
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region region;
    struct keel_save_config config = pattern_config(&region, STATE_MIB);
    config.codec = KEEL_CODEC_DELTA; /* no base either */
    config.arena_bytes = (uint64_t)ARENA_MIB * MIB;
    config.drain_threads = DRAIN;
    config.capture_threads = CAPTURE;
    uint64_t before = keel_memory_stats().live_bytes;
    struct keel_shard_summary shard;
    ck_ok(save_state(store, &config, &shard));
    uint64_t peak = keel_memory_stats().peak_bytes - before;
    ck_assert_uint_le(peak, (uint64_t)(ARENA_MIB + 16 + 3 * DRAIN + CAPTURE) * MIB + 96 * STATE_MIB);
    ck_assert_uint_le(peak, 256 * (uint64_t)MIB);
    ck_assert_uint_eq(shard.raw_bytes, (uint64_t)STATE_MIB * MIB);
    ck_ok(commit_all(store, 1, 1, &shard, 1));
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* ---- cap ----------------------------------------------------------------------------------------------- */

struct pausing {
    atomic_bool go;
};

/* All but the first 5 MiB come when told. */
static enum keel_status read_with_pause(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                        void *out)
{
    struct pausing *pausing = context;
    while (offset >= 5 * MIB && !atomic_load(&pausing->go))
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    return read_pattern(NULL, index, offset, bytes, out);
}

static uint64_t file_bytes(const char *path)
{
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    return (uint64_t)info.st_size;
}

/* What the cap allowed while there was nothing to write is not made up for: from the end of the pause on no
 * more is written than the cap allows since then, a tenth of a second's worth, and one piece. */
START_TEST(after_a_pause_nothing_is_made_up_for)
{
    enum { CAP = 16 * MIB };
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    make_directory(root);
    shard_path(root, path);
    struct keel_store *store = open_store(root, true);
    struct keel_region region;
    struct pausing pausing = {.go = false};
    struct keel_save_config config = pattern_config(&region, 20);
    config.read = read_with_pause;
    config.context = &pausing;
    config.arena_bytes = 4 * MIB;
    config.bandwidth_bytes_s = CAP;
    struct keel_save *save;
    struct keel_shard_summary shard;
    ck_ok(keel_save_begin(store, &config, &save));
    keel_sleep_until_ns(keel_deadline_after_ns(1500 * KEEL_NS_PER_MS));
    uint64_t from_ns = keel_now_ns(), from_bytes = file_bytes(path), samples = 0;
    atomic_store(&pausing.go, true);
    while (!keel_save_done(save)) {
        uint64_t written = file_bytes(path) - from_bytes;
        uint64_t allowed = CAP * ((keel_now_ns() - from_ns) / 1000) / 1000000 + CAP / 10 + CAP / 32;
        ck_assert_uint_le(written, allowed);
        samples++;
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    }
    ck_assert_uint_gt(samples, 5);
    ck_ok(keel_save_finish(save, late(), &shard));
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* ---- a disk that refuses ------------------------------------------------------------------------------- */

static struct {
    atomic_uint calls, failed;
    uint32_t fail_from, fail_count; /* writes with these numbers fail */
    int error;
} refusal;

static ssize_t refusing_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
    uint32_t number = atomic_fetch_add(&refusal.calls, 1);
    if (number >= refusal.fail_from && number - refusal.fail_from < refusal.fail_count) {
        atomic_fetch_add(&refusal.failed, 1);
        errno = refusal.error;
        return -1;
    }
    return keel_disk_posix.pwrite(fd, data, bytes, offset);
}

static struct keel_disk_ops refusing_disk(uint32_t from, uint32_t count, int error)
{
    struct keel_disk_ops ops = keel_disk_posix;
    ops.pwrite = refusing_pwrite;
    refusal.fail_from = from;
    refusal.fail_count = count;
    refusal.error = error;
    atomic_store(&refusal.calls, 0);
    atomic_store(&refusal.failed, 0);
    return ops;
}

static const int transient[] = {EIO, ENOSPC, EAGAIN};

START_TEST(writes_that_may_work_later_are_tried_again)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region region;
    struct keel_shard_summary shard;
    for (uint32_t from = 0; from < 3; from++) {
        struct keel_save_config config = pattern_config(&region, 10);
        config.attempt = from + 1;
        config.retry_max = 3;
        struct keel_disk_ops ops = refusing_disk(from, 3, transient[_i]);
        keel_disk_use(&ops);
        ck_ok(save_state(store, &config, &shard));
        keel_disk_use(NULL);
        ck_assert_uint_eq(atomic_load(&refusal.failed), 3);
        ck_ok(commit_all(store, 1, config.attempt, &shard, 1));
        struct keel_snapshot *snapshot;
        ck_ok(keel_snapshot_open(store, 1, config.attempt, &snapshot));
        ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, NULL));
        keel_snapshot_close(snapshot);
    }
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_write_that_goes_on_failing_fails_the_save)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    make_directory(root);
    shard_path(root, path);
    struct keel_store *store = open_store(root, true);
    struct keel_region region;
    struct keel_shard_summary shard;
    for (uint32_t retries = 0; retries <= 2; retries++) {
        struct keel_save_config config = pattern_config(&region, 10);
        config.retry_max = retries;
        struct keel_disk_ops ops = refusing_disk(1, UINT32_MAX, transient[_i]);
        keel_disk_use(&ops);
        ck_status(save_state(store, &config, &shard), transient[_i] == ENOSPC ? KEEL_NO_SPACE : KEEL_IO);
        keel_disk_use(NULL);
        ck_assert_uint_eq(atomic_load(&refusal.failed), retries + 1);
        ck_assert(!keel_path_exists(path));
    }
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(what_will_never_work_is_not_tried_again)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region region;
    struct keel_shard_summary shard;
    struct keel_save_config config = pattern_config(&region, 10);
    config.retry_max = 100;
    struct keel_disk_ops ops = refusing_disk(0, UINT32_MAX, EROFS);
    keel_disk_use(&ops);
    ck_status(save_state(store, &config, &shard), KEEL_DENIED);
    keel_disk_use(NULL);
    ck_assert_uint_eq(atomic_load(&refusal.failed), 1);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* The pause before the next try is long by then; cancel does not wait for it, and nothing is tried after. */
START_TEST(cancel_ends_a_pause)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    make_directory(root);
    shard_path(root, path);
    struct keel_store *store = open_store(root, true);
    struct keel_region region;
    struct keel_save *save;
    struct keel_save_config config = pattern_config(&region, 40);
    config.retry_max = UINT32_MAX;
    struct keel_disk_ops ops = refusing_disk(0, UINT32_MAX, EIO);
    keel_disk_use(&ops);
    ck_ok(keel_save_begin(store, &config, &save));
    while (atomic_load(&refusal.failed) < 5)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    ck_assert(!keel_save_done(save));
    const uint32_t before = atomic_load(&refusal.failed);
    keel_save_cancel(save);
    ck_assert_uint_le(atomic_load(&refusal.failed), before + 1);
    keel_disk_use(NULL);
    ck_assert(!keel_path_exists(path));
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* ---- background ---------------------------------------------------------------------------------------- */

/* Scheduling classes of this process's threads of that name; -1 when they differ or there is none. */
static int policy_of(const char *wanted)
{
    DIR *tasks = opendir("/proc/self/task");
    int policy = -2;
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        char path[300], *name;
        size_t bytes;
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        if (entry->d_name[0] == '.' || keel_file_read(path, 64, &name, &bytes) != KEEL_OK)
            continue;
        if (strncmp(name, wanted, strlen(wanted)) == 0) {
            int one = sched_getscheduler(atoi(entry->d_name));
            policy = policy == -2 || policy == one ? one : -1;
        }
        keel_free(name);
    }
    closedir(tasks);
    return policy == -2 ? -1 : policy;
}

START_TEST(in_the_background_only_capturing_is_urgent)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region region;
    struct keel_save *save;
    for (uint32_t i = 0; i < 2; i++) {
        struct pausing pausing = {.go = false};
        struct keel_save_config config = pattern_config(&region, 40);
        config.attempt = i + 1;
        config.background = i == 1;
        config.read = read_with_pause;
        config.context = &pausing;
        config.arena_bytes = 20 * MIB;
        config.drain_threads = 3;
        ck_ok(keel_save_begin(store, &config, &save));
        int wanted = config.background ? SCHED_IDLE : SCHED_OTHER;
        while (policy_of("ckpt-drain") != wanted || policy_of("ckpt-write") != wanted)
            keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS)); /* threads begin when they begin */
        ck_assert_int_eq(policy_of("ckpt-capture"), SCHED_OTHER);
        atomic_store(&pausing.go, true);
        struct keel_shard_summary shard;
        ck_ok(keel_save_finish(save, late(), &shard));
        ck_assert_uint_eq(shard.raw_bytes, 40 * (uint64_t)MIB);
    }
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_save_in_the_background_that_is_hurried_goes_on_at_normal_priority)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region region;
    struct keel_save *save;
    struct pausing pausing = {.go = false};
    struct keel_save_config config = pattern_config(&region, 40);
    config.background = true;
    config.read = read_with_pause;
    config.context = &pausing;
    config.arena_bytes = 20 * MIB;
    config.drain_threads = 3;
    ck_ok(keel_save_begin(store, &config, &save));
    while (policy_of("ckpt-drain") != SCHED_IDLE || policy_of("ckpt-write") != SCHED_IDLE)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    keel_save_hurry(save);
    while (policy_of("ckpt-drain") != SCHED_OTHER || policy_of("ckpt-write") != SCHED_OTHER)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS)); /* those in the background have left */
    keel_save_hurry(save);
    atomic_store(&pausing.go, true);
    struct keel_shard_summary shard;
    ck_ok(keel_save_finish(save, late(), &shard));
    ck_assert_uint_eq(shard.raw_bytes, 40 * (uint64_t)MIB);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* Whenever it comes, the file is the same. */
START_TEST(a_save_may_be_hurried_at_any_moment)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct keel_region region;
    struct keel_shard_summary first, shard;
    for (uint32_t i = 0; i < 60; i++) {
        struct keel_save *save;
        struct keel_save_config config = pattern_config(&region, 6);
        config.attempt = i + 1;
        config.background = i > 0;
        config.drain_threads = 1 + i % 3;
        ck_ok(keel_save_begin(store, &config, &save));
        keel_sleep_until_ns(keel_deadline_after_ns(i * 200 * KEEL_NS_PER_US));
        keel_save_hurry(save);
        ck_ok(keel_save_finish(save, late(), &shard));
        if (i == 0)
            first = shard;
        ck_assert_mem_eq(shard.index_digest, first.index_digest, sizeof first.index_digest);
        ck_assert_uint_eq(shard.stored_bytes, first.stored_bytes);
    }
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

struct two_parts {
    atomic_uint begun;
    atomic_bool go;
};

static enum keel_status read_two_parts(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                       void *out)
{
    struct two_parts *parts = context;
    atomic_fetch_add(&parts->begun, 1);
    while (index == 1 && !atomic_load(&parts->go))
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    return read_pattern(NULL, index, offset, bytes, out);
}

/* A whole arena is captured before anything of it is written: not even of a region that came long ago. */
START_TEST(in_the_background_the_capture_comes_first)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    make_directory(root);
    shard_path(root, path);
    struct keel_store *store = open_store(root, true);
    const uint64_t elements = 20 * MIB;
    struct keel_region unused,
        regions[2] = {whole("a", KEEL_CKPT_U8, 1, &elements), whole("b", KEEL_CKPT_U8, 1, &elements)};
    struct two_parts parts = {.go = false};
    struct keel_save_config config = pattern_config(&unused, 1);
    config.regions = regions;
    config.region_count = 2;
    config.background = true;
    config.read = read_two_parts;
    config.context = &parts;
    struct keel_save *save;
    struct keel_shard_summary shard;
    ck_ok(keel_save_begin(store, &config, &save));
    while (atomic_load(&parts.begun) < 2)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    keel_sleep_until_ns(keel_deadline_after_ns(200 * KEEL_NS_PER_MS)); /* a drain would have written by now */
    ck_assert_uint_eq(file_bytes(path), 0);
    atomic_store(&parts.go, true);
    ck_ok(keel_save_finish(save, late(), &shard));
    ck_assert_uint_eq(shard.raw_bytes, 2 * elements);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_state_of_any_size_is_saved_within_256_mib);
    tcase_add_test(tc, after_a_pause_nothing_is_made_up_for);
    tcase_add_loop_test(tc, writes_that_may_work_later_are_tried_again, 0, 3);
    tcase_add_loop_test(tc, a_write_that_goes_on_failing_fails_the_save, 0, 3);
    tcase_add_test(tc, what_will_never_work_is_not_tried_again);
    tcase_add_test(tc, cancel_ends_a_pause);
    tcase_add_test(tc, in_the_background_only_capturing_is_urgent);
    tcase_add_test(tc, in_the_background_the_capture_comes_first);
    tcase_add_test(tc, a_save_in_the_background_that_is_hurried_goes_on_at_normal_priority);
    tcase_add_test(tc, a_save_may_be_hurried_at_any_moment);
}

KEEL_TEST_MAIN("save_stream", cases, 120)
