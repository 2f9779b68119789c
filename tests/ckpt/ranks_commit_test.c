/* ranks_commit_test.c - finish and commit as a collective call: all ranks hear the same, whoever fails. */
#include "sample.h"
#include <keel/disk.h>
#include <pthread.h>

enum { RANKS = 3 };

/* Threads that play ranks. */
struct world {
    struct keel_store *store;
    pthread_barrier_t barrier;
    const void *said[RANKS];
    uint32_t absent; /* this rank has no save; RANKS: all have */
    uint32_t poor;   /* this rank's source fails; RANKS: none */
};

struct rank {
    struct world *world;
    uint32_t number;
    enum keel_status status;
    char detail[KEEL_DETAIL_BYTES];
};

static enum keel_status gather(void *context, const void *mine, size_t bytes, void *all)
{
    const struct rank *rank = context;
    struct world *world = rank->world;
    world->said[rank->number] = mine;
    pthread_barrier_wait(&world->barrier);
    for (uint32_t i = 0; i < RANKS && rank->number == 0; i++)
        memcpy((char *)all + i * bytes, world->said[i], bytes);
    pthread_barrier_wait(&world->barrier);
    return KEEL_OK;
}

static enum keel_status broadcast(void *context, void *data, size_t bytes)
{
    const struct rank *rank = context;
    struct world *world = rank->world;
    if (rank->number == 0)
        world->said[0] = data;
    pthread_barrier_wait(&world->barrier);
    if (rank->number > 0)
        memcpy(data, world->said[0], bytes);
    pthread_barrier_wait(&world->barrier);
    return KEEL_OK;
}

static enum keel_status read_nothing(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                     void *out)
{
    (void)context, (void)index, (void)offset, (void)bytes, (void)out;
    return keel_fail(KEEL_DEVICE_LOST, "the device is gone");
}

static struct keel_region part_of(uint32_t rank)
{
    struct keel_region region = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){300});
    region.offset[0] = 100 * rank;
    region.extent[0] = 100;
    return region;
}

static void *rank_main(void *argument)
{
    struct rank *rank = argument;
    struct world *world = rank->world;
    struct keel_region region = part_of(rank->number);
    struct sample_source source = {&region, 4};
    struct keel_save_config config = {.step = 4,
                                      .attempt = 1,
                                      .rank = rank->number,
                                      .rank_count = RANKS,
                                      .codec = KEEL_CODEC_PLANES,
                                      .regions = &region,
                                      .region_count = 1,
                                      .read = rank->number == world->poor ? read_nothing : sample_read,
                                      .context = &source};
    struct keel_save *save = NULL;
    if (rank->number == world->absent)
        (void)keel_fail(KEEL_NO_SPACE, "no room here");
    else
        ck_ok(keel_save_begin(world->store, &config, &save));
    const struct keel_commit commit = {.step = 4, .attempt = 1, .identity = "threads"};
    const struct keel_ranks ranks = {
        .rank = rank->number, .rank_count = RANKS, .gather = gather, .broadcast = broadcast, .context = rank};
    rank->status =
        keel_save_commit(world->store, save, &commit, &ranks, keel_deadline_after_ns(60 * KEEL_NS_PER_S));
    snprintf(rank->detail, sizeof rank->detail, "%s", keel_detail());
    return NULL;
}

static void run_world(struct world *world, struct rank ranks[RANKS])
{
    pthread_t threads[RANKS];
    ck_assert_int_eq(pthread_barrier_init(&world->barrier, NULL, RANKS), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.world = world, .number = i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&world->barrier);
}

START_TEST(ranks_that_all_saved_commit_one_snapshot)
{
    char root[KEEL_PATH_BYTES];
    struct rank ranks[RANKS];
    struct keel_snapshot *snapshot;
    make_directory(root);
    struct world world = {.store = open_store(root, true), .absent = RANKS, .poor = RANKS};
    run_world(&world, ranks);
    for (uint32_t i = 0; i < RANKS; i++)
        ck_assert_msg(ranks[i].status == KEEL_OK, "rank %u: %s", i, ranks[i].detail);
    ck_ok(keel_snapshot_open(world.store, 4, 0, &snapshot));
    ck_assert_str_eq(keel_snapshot_info(snapshot)->identity, "threads");
    ck_ok(check_all(snapshot, 4));
    keel_snapshot_close(snapshot);
    keel_store_close(world.store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void fails_everywhere(struct world world, enum keel_status wanted, const char *rank_name,
                             const char *reason)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    struct rank ranks[RANKS];
    uint32_t count;
    struct keel_snapshot_info info;
    make_directory(root);
    world.store = open_store(root, true);
    run_world(&world, ranks);
    for (uint32_t i = 0; i < RANKS; i++) {
        ck_assert_int_eq(ranks[i].status, wanted);
        ck_assert_msg(strstr(ranks[i].detail, rank_name) != NULL && strstr(ranks[i].detail, reason) != NULL,
                      "rank %u heard: %s", i, ranks[i].detail);
    }
    ck_ok(keel_store_list(world.store, &info, 1, &count, NULL));
    ck_assert_uint_eq(count, 0);
    ck_ok(keel_path_join(path, root, "sample/step-4.1")); /* nor is anything left of what others wrote */
    ck_assert(!keel_path_exists(path));
    keel_store_close(world.store);
    ck_ok(keel_remove_tree(root));
}

START_TEST(a_rank_that_could_not_begin_or_finish_leaves_nobody_waiting)
{
    fails_everywhere((struct world){.absent = 0, .poor = RANKS}, KEEL_INTERRUPTED, "rank 0", "no room here");
    fails_everywhere((struct world){.absent = 2, .poor = RANKS}, KEEL_INTERRUPTED, "rank 2", "no room here");
    fails_everywhere((struct world){.absent = RANKS, .poor = 1}, KEEL_DEVICE_LOST, "rank 1",
                     "device is gone");
}
END_TEST

/* ---- a process without ranks ---- */

static const struct keel_commit commit_4 = {.step = 4, .attempt = 1};

/* A store, and what a single process has saved in it, as yet without a commit. */
struct alone {
    char root[KEEL_PATH_BYTES];
    struct keel_store *store;
    struct keel_region region;
    struct sample_source source;
    struct keel_save *save;
};

static void begin_alone(struct alone *alone)
{
    struct sample_save how = {
        .step = 4, .attempt = 1, .salt = 4, .rank_count = 1, .codec = KEEL_CODEC_PLANES};
    alone->region = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){300});
    alone->source = (struct sample_source){&alone->region, 4};
    make_directory(alone->root);
    alone->store = open_store(alone->root, true);
    ck_ok(begin_rank(alone->store, &how, &alone->source, 1, &alone->save));
}

static enum keel_status commit_alone(struct alone *alone)
{
    return keel_save_commit(alone->store, alone->save, &commit_4, NULL,
                            keel_deadline_after_ns(60 * KEEL_NS_PER_S));
}

static void check_alone(struct alone *alone)
{
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(alone->store, 4, 0, &snapshot));
    ck_ok(check_all(snapshot, 4));
    keel_snapshot_close(snapshot);
}

static void end_alone(struct alone *alone)
{
    keel_store_close(alone->store);
    ck_ok(keel_remove_tree(alone->root));
}

static bool takes_direct; /* the file system */

/* Reads of what begins as a manifest give another byte: from the disk, where that can be read past the page
 * cache. */
static ssize_t garble_manifests(int fd, void *data, size_t bytes, uint64_t offset)
{
    ssize_t got = keel_disk_posix.pread(fd, data, bytes, offset);
    bool cached = takes_direct && (keel_disk_posix.get_flags(fd) & O_DIRECT) == 0;
    if (got > 0 && offset == 0 && !cached && ((char *)data)[0] == '{')
        ((char *)data)[got / 2] ^= 1;
    return got;
}

START_TEST(a_commit_reads_back_what_it_has_written)
{
    struct alone alone;
    struct keel_disk_ops garbling = keel_disk_posix;
    garbling.pread = garble_manifests;
    begin_alone(&alone);
    int directory = keel_disk_open(AT_FDCWD, alone.root, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    takes_direct = directory >= 0 && keel_disk_set_direct(directory, true);
    keel_disk_close(directory);
    keel_disk_use(&garbling);
    enum keel_status status = commit_alone(&alone);
    keel_disk_use(NULL);
    ck_status(status, KEEL_CORRUPT);
    ck_assert_msg(strstr(keel_detail(), "manifest.json: what was read back") != NULL, "%s", keel_detail());
    end_alone(&alone);
}
END_TEST

START_TEST(a_late_discard_leaves_the_shards_of_a_snapshot_that_lost_its_manifest)
{
    char manifest[KEEL_PATH_BYTES], moved[KEEL_PATH_BYTES];
    struct alone alone;
    begin_alone(&alone);
    ck_ok(commit_alone(&alone));
    ck_ok(keel_path_join(manifest, alone.root, "sample/step-4.1/manifest.json"));
    ck_ok(keel_path_join(moved, alone.root, "manifest.json"));
    ck_assert_int_eq(rename(manifest, moved), 0); /* a disk that loses a file */
    ck_status(keel_save_discard(alone.store, 4, 1, 0), KEEL_INVALID);
    ck_assert_int_eq(rename(moved, manifest), 0); /* as repair brings it back */
    check_alone(&alone);
    end_alone(&alone);
}
END_TEST

START_TEST(a_single_process_needs_no_ranks)
{
    struct alone alone;
    begin_alone(&alone);
    ck_ok(commit_alone(&alone));
    check_alone(&alone);
    ck_status(keel_save_commit(alone.store, NULL, &commit_4, NULL, 0), KEEL_INTERRUPTED);
    ck_status(keel_save_discard(alone.store, 4, 1, 0), KEEL_INVALID); /* committed: it stays */
    ck_ok(keel_save_discard(alone.store, 5, 1, 0));                   /* and nothing is fine */
    check_alone(&alone);
    end_alone(&alone);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, ranks_that_all_saved_commit_one_snapshot);
    tcase_add_test(tc, a_rank_that_could_not_begin_or_finish_leaves_nobody_waiting);
    tcase_add_test(tc, a_commit_reads_back_what_it_has_written);
    tcase_add_test(tc, a_late_discard_leaves_the_shards_of_a_snapshot_that_lost_its_manifest);
    tcase_add_test(tc, a_single_process_needs_no_ranks);
}

KEEL_TEST_MAIN("ranks_commit", cases, 60)
