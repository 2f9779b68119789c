/* committer_test.c - snapshots are committed in order beside the caller; failures are results. */
#include "committer.h"

#include "harness.h"
#include <keel/clock.h>
#include <keel/file.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

static char directory[] = "/tmp/keel-committer-XXXXXX";
static struct keel_store *store;
static struct keel_committer *committer;

static uint64_t soon(void)
{
    return keel_deadline_after_ns(20 * KEEL_NS_PER_S);
}

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_store_open(&(struct keel_store_config){.root = directory, .run = "run", .create = true},
                          &store));
    static const char identity[KEEL_IDENTITY_BYTES] = "mine";
    const struct keel_committer_config config = {
        .store = store, .identity = identity, .retention = {.keep_last = 2}};
    ck_ok(keel_committer_open(&config, &committer));
}

static void teardown(void)
{
    keel_committer_close(committer);
    keel_store_close(store);
    ck_ok(keel_remove_tree(directory));
}

static enum keel_status read_fill(void *context, uint32_t index, uint64_t offset_bytes, uint64_t bytes,
                                  void *out)
{
    (void)index;
    (void)offset_bytes;
    memset(out, *(const uint8_t *)context, bytes);
    return KEEL_OK;
}

/* Every byte of its tensor is `fill`. */
static struct keel_shard_summary save_filled(uint64_t step, uint8_t fill)
{
    const struct keel_region region = {
        .name = "w", .dtype = KEEL_CKPT_F32, .dims = 1, .shape = {16}, .extent = {16}};
    const struct keel_save_config config = {.step = step,
                                            .attempt = 1,
                                            .rank_count = 1,
                                            .regions = &region,
                                            .region_count = 1,
                                            .read = read_fill,
                                            .context = &fill};
    struct keel_save *save;
    struct keel_shard_summary summary;
    ck_ok(keel_save_begin(store, &config, &save));
    ck_ok(keel_save_finish(save, soon(), &summary));
    return summary;
}

static struct keel_shard_summary save_shard(uint64_t step)
{
    return save_filled(step, 1);
}

static struct keel_committed given_up;
static struct keel_committed take(void)
{
    struct keel_committed result;
    struct pollfd poller = {.fd = keel_committer_fd(committer), .events = POLLIN};
    while (!keel_committer_take(committer, &result))
        ck_assert_int_eq(poll(&poller, 1, 20000), 1);
    return result;
}

START_TEST(commits_come_back_in_order_and_older_snapshots_go)
{
    for (uint64_t step = 1; step <= 3; step++) {
        struct keel_shard_summary shard = save_shard(step);
        ck_ok(keel_committer_order(committer, step, 1, &shard, 1, &given_up));
    }
    for (uint64_t step = 1; step <= 3; step++) {
        struct keel_committed result = take();
        ck_assert_uint_eq(result.step, step);
        ck_assert_msg(result.status == KEEL_OK, "%s", result.detail);
        ck_assert_uint_eq(result.raw_bytes, 64);
        ck_assert_uint_eq(result.removed, step == 3);
    }
    struct keel_committed none;
    ck_assert(!keel_committer_take(committer, &none));
}
END_TEST

START_TEST(a_commit_that_fails_is_a_result_and_the_next_one_works)
{
    struct keel_shard_summary lost = save_shard(5), shard = save_shard(6);
    lost.index_digest[0] ^= 1;
    ck_ok(keel_committer_order(committer, 5, 1, &lost, 1, &given_up));
    ck_ok(keel_committer_order(committer, 6, 1, &shard, 1, &given_up));
    ck_assert(keel_committer_drain(committer, soon()));
    struct keel_committed failed = take(), good = take();
    ck_assert_int_ne(failed.status, KEEL_OK);
    ck_assert_uint_gt(strlen(failed.detail), 0);
    ck_assert_msg(good.status == KEEL_OK, "%s", good.detail);
}
END_TEST

START_TEST(what_holds_nan_is_a_result_that_names_the_tensor)
{
    struct keel_shard_summary bad = save_filled(5, 0xff), good = save_shard(6);
    ck_ok(keel_committer_order(committer, 5, 1, &bad, 1, &given_up));
    ck_ok(keel_committer_order(committer, 6, 1, &good, 1, &given_up));
    struct keel_committed refused = take(), taken = take();
    ck_assert_int_eq(refused.status, KEEL_DIVERGED);
    ck_assert_ptr_nonnull(strstr(refused.detail, "tensor w"));
    ck_assert_msg(taken.status == KEEL_OK, "%s", taken.detail);
}
END_TEST

START_TEST(what_holds_nan_is_committed_where_the_job_allows_it)
{
    static const char identity[KEEL_IDENTITY_BYTES] = "mine";
    const struct keel_committer_config config = {
        .store = store, .identity = identity, .retention = {.keep_last = 2}, .allow_nonfinite = true};
    keel_committer_close(committer);
    ck_ok(keel_committer_open(&config, &committer));
    struct keel_shard_summary bad = save_filled(5, 0xff);
    ck_ok(keel_committer_order(committer, 5, 1, &bad, 1, &given_up));
    struct keel_committed taken = take();
    ck_assert_msg(taken.status == KEEL_OK, "%s", taken.detail);
}
END_TEST

static sem_t begun, may_end;
static enum keel_status hold(void *context, uint64_t step)
{
    (void)context;
    (void)step;
    sem_post(&begun);
    while (sem_wait(&may_end) != 0)
        ;
    return KEEL_OK;
}

/* The newest snapshot is worth most, and may be the last of a run. */
START_TEST(the_newest_order_takes_the_place_of_the_one_before_in_a_full_queue)
{
    static const char identity[KEEL_IDENTITY_BYTES] = "mine";
    static const uint64_t committed[] = {7, 8, 9, 12};
    const struct keel_committer_config config = {
        .store = store, .identity = identity, .retention = {.keep_last = 9}, .settle = hold};
    struct keel_shard_summary shards[6];
    for (uint64_t i = 0; i < 6; i++)
        shards[i] = save_shard(7 + i);
    ck_assert_int_eq(sem_init(&begun, 0, 0), 0);
    ck_assert_int_eq(sem_init(&may_end, 0, 0), 0);
    keel_committer_close(committer);
    ck_ok(keel_committer_open(&config, &committer));
    for (uint64_t i = 0; i < 4; i++)
        ck_ok(keel_committer_order(committer, 7 + i, 1, &shards[i], 1, &given_up));
    while (sem_wait(&begun) != 0)
        ;
    for (uint64_t i = 4; i < 6; i++) {
        ck_assert_int_eq(keel_committer_order(committer, 7 + i, 1, &shards[i], 1, &given_up), KEEL_BUSY);
        ck_assert_uint_eq(given_up.step, 6 + i);
        ck_assert_int_eq(given_up.status, KEEL_BUSY);
    }
    for (int i = 0; i < 4; i++)
        sem_post(&may_end);
    for (int i = 0; i < 4; i++) {
        const struct keel_committed result = take();
        ck_assert_uint_eq(result.step, committed[i]);
        ck_assert_msg(result.status == KEEL_OK, "%s", result.detail);
    }
}
END_TEST

START_TEST(results_that_nobody_takes_leave_no_room)
{
    struct keel_shard_summary shard = save_shard(7);
    for (uint64_t i = 0; i < 4; i++)
        ck_ok(keel_committer_order(committer, 7 + i, 1, &shard, 1, &given_up));
    ck_assert(keel_committer_drain(committer, soon()));
    ck_assert_int_eq(keel_committer_order(committer, 11, 1, &shard, 1, &given_up), KEEL_BUSY);
    ck_assert_uint_eq(given_up.step, 11);
    for (uint64_t i = 0; i < 4; i++)
        ck_assert_uint_eq(take().step, 7 + i);
    ck_ok(keel_committer_order(committer, 11, 1, &shard, 1, &given_up));
    ck_assert_uint_eq(take().step, 11);
}
END_TEST

static enum keel_status open_late(void *context, struct keel_store **out)
{
    (void)context;
    while (sem_wait(&may_end) != 0)
        ;
    *out = store;
    return KEEL_OK;
}

/* Nothing was ordered, and whoever closed it would wait for the store. */
START_TEST(a_store_that_hangs_as_it_is_opened_is_seen)
{
    static const char identity[KEEL_IDENTITY_BYTES] = "mine";
    const struct keel_committer_config config = {
        .open = open_late, .identity = identity, .retention = {.keep_last = 9}};
    ck_assert_int_eq(sem_init(&may_end, 0, 0), 0);
    keel_committer_close(committer);
    ck_ok(keel_committer_open(&config, &committer));
    ck_assert(!keel_committer_drain(committer, keel_now_ns()));
    sem_post(&may_end);
    ck_assert(keel_committer_drain(committer, soon()));
    struct keel_shard_summary shard = save_shard(7);
    ck_ok(keel_committer_order(committer, 7, 1, &shard, 1, &given_up));
    ck_assert_int_eq(take().status, KEEL_OK);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, commits_come_back_in_order_and_older_snapshots_go);
    tcase_add_test(tc, a_commit_that_fails_is_a_result_and_the_next_one_works);
    tcase_add_test(tc, what_holds_nan_is_a_result_that_names_the_tensor);
    tcase_add_test(tc, what_holds_nan_is_committed_where_the_job_allows_it);
    tcase_add_test(tc, the_newest_order_takes_the_place_of_the_one_before_in_a_full_queue);
    tcase_add_test(tc, results_that_nobody_takes_leave_no_room);
    tcase_add_test(tc, a_store_that_hangs_as_it_is_opened_is_seen);
}

KEEL_TEST_MAIN("committer", cases, 30)
