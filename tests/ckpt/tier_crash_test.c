/* tier_crash_test.c - power is lost at any moment of a repair, a restore or a rebuild, on a disk that
 * reorders and tears what was not synced: what was sound stays sound, nothing wrong is ever read, and the
 * same call finishes the work. */
#include "disk_sim.h"
#include "erasure_rig.h"

enum { RANDOM_CRASHES = 24 };

static const char root[] = "/data/store";

struct scene {
    struct disk *disk;                 /* before the work; owned */
    struct blob files[RIG_LISTED_MAX]; /* what they should be */
    struct keel_object objects[RIG_LISTED_MAX];
    uint32_t count;
    struct keel_tier *copy; /* all files, in memory; owned */
    bool from_copy;         /* the work may take from it */
    uint32_t sound;         /* files that are right before the work, the first ones */
    uint64_t states;
};

/* ---- the store on the simulated disk ------------------------------------------------------------------- */

static struct origin open_origin(bool create)
{
    struct origin origin = {.root = "/data/store"};
    struct keel_store_config config = {.root = root, .run = "sample", .create = create};
    ck_ok(keel_store_open(&config, &origin.store));
    ck_ok(keel_tier_directory_open(origin.store, KEEL_LATENCY_LOCAL, "the simulated disk", &origin.tier));
    return origin;
}

static void close_origin(struct origin *origin)
{
    keel_tier_end(origin->tier);
    keel_store_close(origin->store);
    ck_assert_uint_eq(disk_open_descriptors(), 0);
}

static void sync_file(const char *path)
{
    int fd = keel_disk_open(AT_FDCWD, path, O_RDONLY, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(keel_disk_fsync(fd), 0);
    ck_assert_int_eq(keel_disk_close(fd), 0);
}

static void path_of(const struct keel_object *object, char out[KEEL_PATH_BYTES])
{
    char name[KEEL_OBJECT_NAME_BYTES];
    keel_object_name(object, name);
    snprintf(out, KEEL_PATH_BYTES, "%s/sample/%s", root, name);
}

static void damage(const struct keel_object *object, uint64_t at)
{
    char path[KEEL_PATH_BYTES];
    uint8_t byte;
    path_of(object, path);
    int fd = keel_disk_open(AT_FDCWD, path, O_RDWR, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(keel_disk_pread(fd, &byte, 1, at), 1);
    byte ^= 0x40;
    ck_assert_int_eq(keel_disk_pwrite(fd, &byte, 1, at), 1);
    ck_assert_int_eq(keel_disk_fsync(fd), 0);
    ck_assert_int_eq(keel_disk_close(fd), 0);
}

static void lose(const struct keel_object *object)
{
    char path[KEEL_PATH_BYTES];
    path_of(object, path);
    ck_assert_int_eq(keel_disk_unlink(AT_FDCWD, path, 0), 0);
    sync_file("/data/store/sample/step-5.2");
}

static void remember(struct scene *scene, struct keel_tier *tier, const struct keel_object *object)
{
    struct blob *file = &scene->files[scene->count];
    ck_ok(read_object(tier, object, &file->data, &file->bytes));
    scene->objects[scene->count++] = *object;
    ck_ok(keel_tier_copy(tier, object, scene->copy));
}

/* ---- crashing ------------------------------------------------------------------------------------------ */

static enum keel_status do_work(const struct scene *scene, const struct origin *origin)
{
    struct keel_tier *source = scene->copy;
    struct keel_repair_config config = {
        .step = 5, .attempt = 2, .sources = &source, .source_count = scene->from_copy ? 1 : 0};
    return keel_store_repair(origin->store, &config, NULL);
}

static void check_right(const struct origin *origin)
{
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(origin->store, 5, 2, &snapshot));
    ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, NULL));
    ck_ok(check_all(snapshot, 5));
    keel_snapshot_close(snapshot);
}

/* What may be found after the power came back. */
static void check_state(struct scene *scene)
{
    struct origin origin = open_origin(false);
    struct keel_snapshot *snapshot;
    for (uint32_t i = 0; i < scene->count; i++) {
        enum keel_status status = keel_tier_verify(origin.tier, &scene->objects[i]);
        ck_assert_msg(status == KEEL_OK || i >= scene->sound, "%s was sound", keel_detail());
        if (status == KEEL_OK)
            ck_ok(same_as_before(origin.tier, &scene->objects[i], &scene->files[i]));
    }
    if (keel_snapshot_open(origin.store, 5, 2, &snapshot) == KEEL_OK) {
        enum keel_status status = check_all(snapshot, 5); /* compares what it reads */
        ck_assert(status == KEEL_OK || status == KEEL_CORRUPT);
        keel_snapshot_close(snapshot);
    }
    ck_ok(do_work(scene, &origin));
    for (uint32_t i = 0; i < scene->count; i++)
        ck_ok(same_as_before(origin.tier, &scene->objects[i], &scene->files[i]));
    check_right(&origin);
    close_origin(&origin);
    scene->states++;
}

static void crash_once(struct scene *scene, const struct disk *disk, struct disk_choice choice)
{
    struct disk *found = disk_crash(disk, &choice);
    disk_mount(found);
    check_state(scene);
    disk_mount(NULL);
    disk_destroy(found);
}

/* Do the work once, recorded; then lose power after every change that it made to the disk. */
static void crash_everywhere(struct scene *scene, const char *what)
{
    struct disk *worked = disk_copy(scene->disk), *disk = disk_copy(scene->disk);
    struct disk_trace *trace = disk_trace_create();
    disk_mount(worked);
    disk_record(trace);
    struct origin origin = open_origin(false);
    ck_ok(do_work(scene, &origin));
    disk_record(NULL);
    check_right(&origin);
    close_origin(&origin);
    disk_mount(NULL);
    for (uint32_t i = 0; i <= disk_trace_count(trace); i++) {
        crash_once(scene, disk, (struct disk_choice){.mode = DISK_KEEP_NONE});
        crash_once(scene, disk, (struct disk_choice){.mode = DISK_KEEP_ALL});
        for (uint64_t seed = 0; seed < RANDOM_CRASHES; seed++)
            crash_once(scene, disk, disk_choice_random(1000 * i + seed));
        if (i < disk_trace_count(trace))
            disk_trace_apply(trace, i, disk);
    }
    printf("note: %s: power lost after each of %u changes of the disk, %llu states\n", what,
           disk_trace_count(trace), (unsigned long long)scene->states);
    disk_trace_destroy(trace);
    disk_destroy(worked);
    disk_destroy(disk);
}

static struct scene make_scene(void)
{
    struct scene scene = {.disk = disk_create()};
    (void)keel_disk_use(&disk_sim_ops);
    disk_mount(scene.disk);
    ck_ok(keel_tier_memory_open("sample", NODE_BYTES, "the partner's memory", &scene.copy));
    return scene;
}

static void end_scene(struct scene *scene)
{
    for (uint32_t i = 0; i < scene->count; i++)
        keel_free(scene->files[i].data);
    keel_tier_end(scene->copy);
    disk_destroy(scene->disk);
    (void)keel_disk_use(NULL);
}

/* ---- cases --------------------------------------------------------------------------------------------- */

START_TEST(a_repair_that_loses_power_makes_nothing_worse)
{
    struct scene scene = make_scene();
    struct keel_object shard[3] = {shard_object(5, 2, 0), shard_object(5, 2, 1), shard_object(5, 2, 2)};
    struct keel_object manifest = manifest_object(5, 2);
    struct origin origin = open_origin(true);
    add_snapshot(&origin, 5, 2, RIG_RANKS);
    for (uint32_t i = 0; i < 3; i++)
        remember(&scene, origin.tier, &shard[i]);
    remember(&scene, origin.tier, &manifest);
    damage(&shard[1], 4100);
    lose(&shard[2]);
    damage(&manifest, 40);
    close_origin(&origin);
    disk_mount(NULL);
    scene.sound = 1;
    scene.from_copy = true;
    crash_everywhere(&scene, "repair from a partner's memory");
    end_scene(&scene);
}
END_TEST

START_TEST(a_restore_that_loses_power_commits_nothing_that_is_not_whole)
{
    struct scene scene = make_scene();
    struct disk *elsewhere = scene.disk;
    struct origin origin = open_origin(true);
    add_snapshot(&origin, 5, 2, RIG_RANKS);
    for (uint32_t i = 0; i < 3; i++) {
        struct keel_object shard = shard_object(5, 2, i);
        remember(&scene, origin.tier, &shard);
    }
    struct keel_object manifest = manifest_object(5, 2);
    remember(&scene, origin.tier, &manifest);
    close_origin(&origin);
    scene.disk = disk_create();
    disk_mount(scene.disk);
    disk_destroy(elsewhere);
    origin = open_origin(true); /* a new node: its store is empty */
    close_origin(&origin);
    disk_mount(NULL);
    scene.from_copy = true;
    crash_everywhere(&scene, "restore into an empty store");
    end_scene(&scene);
}
END_TEST

START_TEST(a_rebuild_from_parity_that_loses_power_can_be_done_again)
{
    struct scene scene = make_scene();
    struct origin origin = open_origin(true);
    struct keel_tier *tiers[4] = {origin.tier, origin.tier, origin.tier, origin.tier};
    uint32_t ranks[4] = {0, 1, 2, KEEL_ERASURE_NO_SHARD};
    add_snapshot(&origin, 5, 2, RIG_RANKS);
    struct keel_erasure_config config = {.step = 5,
                                         .attempt = 2,
                                         .node_count = 4,
                                         .parity_count = 2,
                                         .cell_bytes = KEEL_PARITY_CELL_BYTES_MIN,
                                         .ranks = ranks,
                                         .from = tiers,
                                         .to = tiers};
    ck_ok(keel_erasure_protect(&config));
    struct keel_object sound[5] = {manifest_object(5, 2), shard_object(5, 2, 1), shard_object(5, 2, 2),
                                   parity_object(0, 1), parity_object(0, 2)};
    struct keel_object hurt[3] = {shard_object(5, 2, 0), parity_object(0, 0), parity_object(0, 3)};
    for (uint32_t i = 0; i < 5; i++)
        remember(&scene, origin.tier, &sound[i]);
    for (uint32_t i = 0; i < 3; i++)
        remember(&scene, origin.tier, &hurt[i]);
    lose(&hurt[0]);
    damage(&hurt[1], 4200);
    damage(&hurt[2], 100);
    close_origin(&origin);
    disk_mount(NULL);
    scene.sound = 5;
    crash_everywhere(&scene, "rebuild from parity");
    end_scene(&scene);
}
END_TEST

/* ---- power lost while parity is made ------------------------------------------------------------------- */

static void protect(const struct origin *origin)
{
    struct keel_tier *tiers[3] = {origin->tier, origin->tier, origin->tier};
    uint32_t ranks[3] = {0, 1, 2};
    struct keel_erasure_config config = {.step = 5,
                                         .attempt = 2,
                                         .node_count = 3,
                                         .parity_count = 1,
                                         .ranks = ranks,
                                         .from = tiers,
                                         .to = tiers};
    ck_ok(keel_erasure_protect(&config));
}

/* What is there of the set is right: a lost shard comes back right, or is said to be lost. */
static void check_half_a_set(const struct blob shards[3])
{
    struct origin origin = open_origin(false);
    struct keel_object lost = shard_object(5, 2, 1);
    struct keel_tier *set;
    check_right(&origin);
    if (keel_tier_erasure_open(&origin.tier, 1, 5, 2, 0, &set) == KEEL_OK) {
        ck_ok(same_as_before(set, &lost, &shards[1])); /* it is there */
        keel_tier_end(set);
    }
    damage(&lost, 5000);
    if (keel_tier_erasure_open(&origin.tier, 1, 5, 2, 0, &set) == KEEL_OK) {
        enum keel_status status = same_as_before(set, &lost, &shards[1]); /* compares */
        ck_assert(status == KEEL_OK || status == KEEL_CORRUPT || status == KEEL_NOT_FOUND);
        keel_tier_end(set);
    }
    damage(&lost, 5000); /* and back */
    protect(&origin);
    damage(&lost, 5000);
    ck_ok(keel_tier_erasure_open(&origin.tier, 1, 5, 2, 0, &set));
    ck_ok(same_as_before(set, &lost, &shards[1]));
    keel_tier_end(set);
    close_origin(&origin);
}

START_TEST(half_an_erasure_set_is_no_lie)
{
    struct scene scene = make_scene();
    struct origin origin = open_origin(true);
    struct disk_trace *trace = disk_trace_create();
    add_snapshot(&origin, 5, 2, RIG_RANKS);
    for (uint32_t i = 0; i < 3; i++) {
        struct keel_object shard = shard_object(5, 2, i);
        remember(&scene, origin.tier, &shard);
    }
    close_origin(&origin);
    struct disk *disk = disk_copy(scene.disk), *worked = disk_copy(scene.disk);
    disk_mount(worked);
    disk_record(trace);
    origin = open_origin(false);
    protect(&origin);
    disk_record(NULL);
    close_origin(&origin);
    disk_mount(NULL);
    for (uint32_t i = 0; i <= disk_trace_count(trace); i++) {
        for (uint64_t seed = 0; seed < RANDOM_CRASHES; seed++) {
            struct disk_choice choice = disk_choice_random(1000 * i + seed);
            struct disk *found = disk_crash(disk, &choice);
            disk_mount(found);
            check_half_a_set(scene.files);
            disk_mount(NULL);
            disk_destroy(found);
            scene.states++;
        }
        if (i < disk_trace_count(trace))
            disk_trace_apply(trace, i, disk);
    }
    printf("note: making parity: power lost after each of %u changes of the disk, %llu states\n",
           disk_trace_count(trace), (unsigned long long)scene.states);
    disk_trace_destroy(trace);
    disk_destroy(worked);
    disk_destroy(disk);
    end_scene(&scene);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_repair_that_loses_power_makes_nothing_worse);
    tcase_add_test(tc, a_restore_that_loses_power_commits_nothing_that_is_not_whole);
    tcase_add_test(tc, a_rebuild_from_parity_that_loses_power_can_be_done_again);
    tcase_add_test(tc, half_an_erasure_set_is_no_lie);
}

KEEL_TEST_MAIN("tier_crash", cases, 300)
