/* tier_test.c - what every kind of tier promises, tried on every kind; and copying, which believes none. */
#include "socket_link.h"
#include "tier_rig.h"
#include <keel/disk.h>
#include <keel/thread.h>

enum { CAPACITY_BYTES = 4 << 20 };

/* ---- tiers of every kind, empty ----------------------------------------------------------------------- */

/* A thread that serves a memory tier, as a partner's process does. */
struct partner {
    struct keel_thread thread;
    struct keel_tier *memory;
    struct socket_link ours, theirs;
};

struct rig {
    struct keel_tier *tier;
    struct origin directory; /* of a directory tier */
    bool is_directory;
    struct partner *partner; /* of a remote tier; owned */
};

static struct rig make_memory_rig(void)
{
    struct rig rig = {.is_directory = false};
    ck_ok(keel_tier_memory_open("sample", CAPACITY_BYTES, "our memory", &rig.tier));
    return rig;
}

static struct rig make_directory_rig(void)
{
    struct rig rig = {.directory = make_empty_origin(), .is_directory = true};
    rig.tier = rig.directory.tier;
    return rig;
}

static void *serve(void *argument)
{
    struct partner *partner = argument;
    struct keel_tier_link link = link_over(&partner->theirs);
    ck_status(keel_tier_serve(partner->memory, &link, 100 * KEEL_NS_PER_S), KEEL_PEER_LOST);
    return NULL;
}

static struct rig make_remote_rig(void)
{
    struct rig rig = {.is_directory = false};
    int ends[2];
    ck_ok(keel_alloc(1, sizeof *rig.partner, &rig.partner));
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    rig.partner->ours.fd = ends[0];
    rig.partner->theirs.fd = ends[1];
    ck_ok(keel_tier_memory_open("sample", CAPACITY_BYTES, "the partner's memory", &rig.partner->memory));
    ck_ok(keel_thread_create(&rig.partner->thread, "partner", serve, rig.partner));
    struct keel_tier_link link = link_over(&rig.partner->ours);
    ck_ok(keel_tier_remote_open(&link, KEEL_LATENCY_MEMORY, "sample", "partner 1", 60 * KEEL_NS_PER_S,
                                &rig.tier));
    return rig;
}

static void end_partner(struct partner *partner)
{
    close(partner->ours.fd);
    keel_thread_join(&partner->thread);
    close(partner->theirs.fd);
    keel_tier_end(partner->memory); /* asserts that the client left nothing open */
    keel_free(partner);
}

static struct rig (*const makers[])(void) = {make_memory_rig, make_directory_rig, make_remote_rig};
enum { KINDS = sizeof makers / sizeof *makers };

static void end_rig(struct rig *rig)
{
    if (rig->is_directory)
        end_origin(&rig->directory);
    else
        keel_tier_end(rig->tier);
    if (rig->partner != NULL)
        end_partner(rig->partner);
}

/* ---- conformance --------------------------------------------------------------------------------------- */

START_TEST(nothing_is_visible_before_its_commit)
{
    struct origin origin = make_origin();
    struct rig rig = makers[_i]();
    struct keel_object object = shard_object(5, 2, 1);
    struct keel_tier_sink *sink;
    struct keel_tier_source *source;
    uint8_t *data, digest[KEEL_DIGEST_BYTES];
    uint64_t bytes;
    ck_ok(read_object(origin.tier, &object, &data, &bytes));
    ck_ok(keel_tier_create(rig.tier, &object, bytes, &sink));
    ck_ok(keel_tier_write(sink, data, bytes));
    ck_assert_uint_eq(list_tier(rig.tier).count, 0);
    ck_status(keel_tier_open(rig.tier, &object, &source), KEEL_NOT_FOUND);
    keel_format_digest(data, bytes, digest);
    ck_ok(keel_tier_commit(sink, digest));
    struct listed listed = list_tier(rig.tier);
    ck_assert_uint_eq(listed.count, 1);
    ck_assert_int_eq(keel_object_compare(&listed.infos[0].object, &object), 0);
    ck_assert_uint_eq(listed.infos[0].bytes, bytes);
    ck_ok(keel_tier_verify(rig.tier, &object));
    keel_free(data);
    end_rig(&rig);
    end_origin(&origin);
}
END_TEST

START_TEST(what_was_aborted_cut_short_or_changed_on_its_way_is_not_there)
{
    struct origin origin = make_origin();
    struct rig rig = makers[_i]();
    struct keel_object object = shard_object(5, 2, 0);
    struct keel_tier_sink *sink;
    uint8_t *data, digest[KEEL_DIGEST_BYTES];
    uint64_t bytes;
    ck_ok(read_object(origin.tier, &object, &data, &bytes));
    keel_format_digest(data, bytes, digest);
    ck_ok(keel_tier_create(rig.tier, &object, bytes, &sink));
    ck_ok(keel_tier_write(sink, data, bytes));
    keel_tier_abort(sink);
    ck_ok(keel_tier_create(rig.tier, &object, bytes, &sink));
    ck_ok(keel_tier_write(sink, data, bytes - 1));
    ck_status(keel_tier_commit(sink, digest), KEEL_MISMATCH);
    ck_ok(keel_tier_create(rig.tier, &object, bytes, &sink));
    data[bytes / 2] ^= 4;
    ck_ok(keel_tier_write(sink, data, bytes));
    ck_status(keel_tier_commit(sink, digest), KEEL_CORRUPT);
    ck_ok(keel_tier_create(rig.tier, &object, bytes, &sink));
    ck_status(keel_tier_write(sink, data, bytes + 1), KEEL_INVALID);
    keel_tier_abort(sink);
    ck_assert_uint_eq(list_tier(rig.tier).count, 0);
    keel_free(data);
    end_rig(&rig);
    end_origin(&origin);
}
END_TEST

START_TEST(any_part_reads_as_it_was_written)
{
    struct origin origin = make_origin();
    struct rig rig = makers[_i]();
    struct keel_object object = shard_object(5, 2, 2);
    struct keel_tier_source *source;
    uint8_t *data, *part;
    uint64_t bytes, state = 3;
    ck_ok(read_object(origin.tier, &object, &data, &bytes));
    ck_ok(keel_alloc(bytes, 1, &part));
    ck_ok(write_object(rig.tier, &object, data, bytes, 1000));
    ck_ok(keel_tier_open(rig.tier, &object, &source));
    ck_assert_uint_eq(source->info.bytes, bytes);
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t offset = draw(&state, bytes + 1), length = draw(&state, bytes - offset + 1);
        ck_ok(keel_tier_read(source, offset, part, length));
        ck_assert_mem_eq(part, data + offset, length);
    }
    ck_status(keel_tier_read(source, bytes, part, 1), KEEL_CORRUPT);
    ck_status(keel_tier_read(source, bytes + 1, part, 0), KEEL_CORRUPT);
    ck_status(keel_tier_read(source, UINT64_MAX, part, 2), KEEL_CORRUPT);
    keel_tier_close_source(source);
    keel_free(part);
    keel_free(data);
    end_rig(&rig);
    end_origin(&origin);
}
END_TEST

START_TEST(what_is_replaced_or_removed_stays_readable_for_who_has_it_open)
{
    struct origin origin = make_origin();
    struct rig rig = makers[_i]();
    struct keel_object object = shard_object(5, 2, 1);
    struct keel_tier_source *source;
    uint8_t *data, *again;
    uint64_t bytes;
    ck_ok(keel_tier_copy(origin.tier, &object, rig.tier));
    ck_ok(read_object(rig.tier, &object, &data, &bytes));
    ck_ok(keel_alloc(bytes, 1, &again));
    ck_ok(keel_tier_open(rig.tier, &object, &source));
    ck_ok(keel_tier_copy(origin.tier, &object, rig.tier));
    ck_ok(keel_tier_read(source, 0, again, bytes));
    ck_assert_mem_eq(data, again, bytes);
    ck_ok(keel_tier_remove(rig.tier, &object));
    ck_ok(keel_tier_read(source, 0, again, bytes));
    ck_assert_mem_eq(data, again, bytes);
    keel_tier_close_source(source);
    ck_status(keel_tier_open(rig.tier, &object, &source), KEEL_NOT_FOUND);
    ck_ok(keel_tier_remove(rig.tier, &object)); /* fine when it is not there */
    ck_assert_uint_eq(list_tier(rig.tier).count, 0);
    keel_free(again);
    keel_free(data);
    end_rig(&rig);
    end_origin(&origin);
}
END_TEST

START_TEST(generations_come_and_go_whole)
{
    struct origin origin = make_origin();
    struct rig rig = makers[_i]();
    uint32_t removed = 0;
    add_snapshot(&origin, 6, 1, 2);
    struct listed all = list_tier(origin.tier);
    ck_assert_uint_eq(all.count, RIG_RANKS + 1 + 2 + 1);
    for (uint32_t i = 0; i < all.count; i++)
        ck_ok(keel_tier_copy(origin.tier, &all.infos[i].object, rig.tier));
    struct listed copied = list_tier(rig.tier);
    ck_assert_uint_eq(copied.count, all.count);
    for (uint32_t i = 0; i < all.count; i++) {
        ck_assert_int_eq(keel_object_compare(&copied.infos[i].object, &all.infos[i].object), 0);
        ck_assert_uint_eq(copied.infos[i].bytes, all.infos[i].bytes);
    }
    ck_ok(keel_tier_remove_generation(rig.tier, 5, 2, &removed));
    ck_assert_uint_eq(removed, RIG_RANKS + 1);
    copied = list_tier(rig.tier);
    ck_assert_uint_eq(copied.count, 3);
    ck_assert_uint_eq(copied.infos[0].object.step, 6);
    end_rig(&rig);
    end_origin(&origin);
}
END_TEST

START_TEST(objects_that_cannot_be_are_refused)
{
    struct rig rig = makers[_i]();
    struct keel_tier_source *source;
    struct keel_tier_sink *sink;
    const struct keel_object impossible[] = {
        {.step = 1, .attempt = 1, .kind = (enum keel_object_kind)0},
        {.step = 1, .attempt = 1, .kind = (enum keel_object_kind)9},
        {.step = 1, .attempt = 1, .kind = KEEL_OBJECT_SHARD, .member = KEEL_SNAPSHOT_RANKS_MAX},
        {.step = 1, .attempt = 1, .kind = KEEL_OBJECT_SHARD, .set = 1},
        {.step = 1, .attempt = 1, .kind = KEEL_OBJECT_MANIFEST, .member = 1}};
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        ck_status(keel_tier_open(rig.tier, &impossible[i], &source), KEEL_INVALID);
        ck_status(keel_tier_create(rig.tier, &impossible[i], 10, &sink), KEEL_INVALID);
        ck_status(keel_tier_remove(rig.tier, &impossible[i]), KEEL_INVALID);
    }
    end_rig(&rig);
}
END_TEST

/* ---- threads ------------------------------------------------------------------------------------------- */

enum { THREADS = 4, TURNS = 30 };

struct worker {
    struct keel_thread thread;
    struct keel_tier *from, *to;
    uint32_t rank;
};

static void *copy_and_remove(void *argument)
{
    struct worker *worker = argument;
    struct keel_object object = shard_object(5, 2, worker->rank);
    for (uint32_t i = 0; i < TURNS; i++) {
        ck_ok(keel_tier_copy(worker->from, &object, worker->to));
        ck_ok(keel_tier_verify(worker->to, &object));
        (void)list_tier(worker->to);
        if (i % 3 == 0)
            ck_ok(keel_tier_remove(worker->to, &object));
    }
    return NULL;
}

START_TEST(threads_may_use_a_tier_at_once)
{
    struct origin origin = make_empty_origin();
    add_snapshot(&origin, 5, 2, THREADS);
    struct rig rig = makers[_i]();
    struct worker workers[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.from = origin.tier, .to = rig.tier, .rank = i};
        ck_ok(keel_thread_create(&workers[i].thread, "worker", copy_and_remove, &workers[i]));
    }
    for (uint32_t i = 0; i < THREADS; i++)
        keel_thread_join(&workers[i].thread);
    ck_assert_uint_eq(list_tier(rig.tier).count, THREADS);
    end_rig(&rig);
    end_origin(&origin);
}
END_TEST

/* ---- copying ------------------------------------------------------------------------------------------- */

START_TEST(a_damaged_object_is_not_copied_and_what_is_wrong_is_named)
{
    struct origin origin = make_origin();
    struct rig rig = makers[_i]();
    struct keel_object shard = shard_object(5, 2, 1), manifest = manifest_object(5, 2);
    struct keel_tier_source *source;
    ck_ok(keel_tier_open(origin.tier, &shard, &source));
    uint64_t bytes = source->info.bytes, tried = 0;
    keel_tier_close_source(source);
    for (uint64_t at = 0; at < bytes; at += at % 4096 < 400 ? 1 : 61) {
        flip_byte(&origin, &shard, at, (uint8_t)(1 << at % 8));
        enum keel_status status = keel_tier_copy(origin.tier, &shard, rig.tier);
        ck_assert_msg(status == KEEL_CORRUPT, "byte %llu: %s", (unsigned long long)at,
                      keel_status_name(status));
        ck_assert_ptr_nonnull(strstr(keel_detail(), "step-5.2/rank-1.keel of the local disk"));
        flip_byte(&origin, &shard, at, (uint8_t)(1 << at % 8));
        tried++;
    }
    flip_byte(&origin, &manifest, 30, 1);
    ck_status(keel_tier_copy(origin.tier, &manifest, rig.tier), KEEL_CORRUPT);
    ck_assert_uint_eq(list_tier(rig.tier).count, 0);
    flip_byte(&origin, &manifest, 30, 1);
    ck_ok(keel_tier_copy(origin.tier, &shard, rig.tier));
    ck_ok(keel_tier_copy(origin.tier, &manifest, rig.tier));
    printf("note: %llu flipped bits found before a copy\n", (unsigned long long)tried);
    end_rig(&rig);
    end_origin(&origin);
}
END_TEST

/* A disk, or a cable to it, that once gives a wrong bit: in the byte at `flaky_at` of a file of that size,
 * the `flaky_turn`th time that it is read. */
static uint64_t flaky_bytes, flaky_at, flaky_turn;

static ssize_t read_flaky(int fd, void *data, size_t bytes, uint64_t offset)
{
    struct stat info;
    ssize_t got = keel_disk_posix.pread(fd, data, bytes, offset);
    if (fstat(fd, &info) == 0 && (uint64_t)info.st_size == flaky_bytes && got > 0 && flaky_at >= offset &&
        flaky_at < offset + (uint64_t)got && --flaky_turn == 0)
        ((uint8_t *)data)[flaky_at - offset] ^= 16;
    return got;
}

START_TEST(what_is_read_otherwise_the_second_time_is_not_copied)
{
    struct origin origin = make_origin();
    struct keel_object shard = shard_object(5, 2, 1);
    struct keel_disk_ops ops = keel_disk_posix;
    struct keel_tier_source *source;
    uint32_t refused = 0, turns = 0;
    ck_ok(keel_tier_open(origin.tier, &shard, &source));
    flaky_bytes = source->info.bytes;
    keel_tier_close_source(source);
    ops.pread = read_flaky;
    for (uint64_t at = 0; at < flaky_bytes; at += 997)
        for (uint64_t turn = 1; turn <= 3; turn++) {
            struct keel_tier *memory;
            ck_ok(keel_tier_memory_open("sample", CAPACITY_BYTES, "our memory", &memory));
            flaky_at = at;
            flaky_turn = turn;
            keel_disk_use(&ops);
            enum keel_status status = keel_tier_copy(origin.tier, &shard, memory);
            keel_disk_use(NULL);
            turns += flaky_turn == 0 || flaky_turn > turn;
            refused += status == KEEL_CORRUPT;
            if (status == KEEL_OK)
                ck_ok(keel_tier_verify(memory, &shard));
            keel_tier_end(memory);
        }
    ck_assert_uint_gt(refused, 0);
    ck_assert_uint_eq(refused, turns); /* each bit that was met */
    end_origin(&origin);
}
END_TEST

START_TEST(parity_is_of_what_was_verified)
{
    struct origin origin = make_origin();
    struct keel_object shard = shard_object(5, 2, 1);
    struct keel_disk_ops ops = keel_disk_posix;
    struct keel_tier *memory, *set, *from[3] = {origin.tier, origin.tier, origin.tier};
    struct keel_tier_source *source;
    uint32_t refused = 0;
    ck_ok(keel_tier_open(origin.tier, &shard, &source));
    flaky_bytes = source->info.bytes;
    keel_tier_close_source(source);
    ck_ok(keel_tier_memory_open("sample", CAPACITY_BYTES, "our memory", &memory));
    struct keel_tier *to[3] = {memory, memory, memory}, *all[2] = {memory, origin.tier};
    const struct keel_erasure_config config = {.step = 5,
                                               .attempt = 2,
                                               .node_count = 3,
                                               .parity_count = 1,
                                               .ranks = (const uint32_t[]){0, 1, 2},
                                               .from = from,
                                               .to = to};
    ops.pread = read_flaky;
    for (uint64_t turn = 1; turn <= 3; turn++) {
        flaky_at = 5000;
        flaky_turn = turn;
        keel_disk_use(&ops);
        enum keel_status status = keel_erasure_protect(&config);
        keel_disk_use(NULL);
        refused += status == KEEL_CORRUPT;
        if (status != KEEL_OK)
            continue;
        ck_ok(keel_tier_erasure_open(all, 2, 5, 2, 0, &set));
        ck_ok(keel_tier_verify(set, &shard));
        keel_tier_end(set);
    }
    ck_assert_uint_eq(refused, 2); /* looking through it, and making the parity */
    keel_tier_end(memory);
    end_origin(&origin);
}
END_TEST

START_TEST(a_file_under_another_name_or_of_another_run_is_refused)
{
    struct origin origin = make_origin();
    struct keel_tier *memory, *stranger;
    struct keel_object one = shard_object(5, 2, 1), two = shard_object(5, 2, 2),
                       later = shard_object(6, 2, 1);
    uint8_t *data;
    uint64_t bytes;
    ck_ok(keel_tier_memory_open("sample", CAPACITY_BYTES, NULL, &memory));
    ck_ok(keel_tier_memory_open("other", CAPACITY_BYTES, NULL, &stranger));
    ck_status(keel_tier_copy(origin.tier, &one, stranger), KEEL_MISMATCH);
    ck_ok(read_object(origin.tier, &one, &data, &bytes));
    ck_ok(write_object(memory, &two, data, bytes, bytes));
    ck_ok(write_object(memory, &later, data, bytes, bytes));
    ck_status(keel_tier_verify(memory, &two), KEEL_MISMATCH);
    ck_status(keel_tier_verify(memory, &later), KEEL_MISMATCH);
    ck_ok(write_object(stranger, &one, data, bytes, bytes));
    ck_status(keel_tier_verify(stranger, &one), KEEL_MISMATCH);
    keel_free(data);
    keel_tier_end(stranger);
    keel_tier_end(memory);
    end_origin(&origin);
}
END_TEST

/* ---- one kind ------------------------------------------------------------------------------------------ */

START_TEST(memory_is_bounded_and_freed)
{
    struct keel_tier *tier;
    struct keel_tier_sink *a, *b;
    struct keel_object one = shard_object(1, 1, 0), two = shard_object(1, 1, 1);
    uint8_t data[600] = {1}, digest[KEEL_DIGEST_BYTES];
    uint64_t before_bytes = keel_memory_stats().live_bytes;
    ck_ok(keel_tier_memory_open("sample", 1000, "our memory", &tier));
    ck_ok(keel_tier_create(tier, &one, 600, &a));
    ck_status(keel_tier_create(tier, &two, 401, &b), KEEL_LIMIT); /* what is being written counts */
    ck_ok(keel_tier_create(tier, &two, 400, &b));
    keel_tier_abort(b);
    ck_ok(keel_tier_write(a, data, 600));
    keel_format_digest(data, 600, digest);
    ck_ok(keel_tier_commit(a, digest));
    ck_status(keel_tier_create(tier, &two, 600, &b), KEEL_LIMIT);
    ck_ok(keel_tier_remove(tier, &one));
    ck_ok(keel_tier_create(tier, &two, 1000, &b));
    keel_tier_abort(b);
    keel_tier_end(tier);
    ck_assert_uint_eq(keel_memory_stats().live_bytes, before_bytes);
}
END_TEST

START_TEST(a_directory_that_holds_all_objects_is_a_store)
{
    struct origin origin = make_origin(), other = make_empty_origin();
    struct keel_snapshot *snapshot;
    struct listed all = list_tier(origin.tier);
    for (uint32_t i = 0; i < all.count; i++)
        ck_ok(keel_tier_copy(origin.tier, &all.infos[i].object, other.tier));
    ck_ok(keel_snapshot_open(other.store, 5, 0, &snapshot));
    ck_ok(check_all(snapshot, 5));
    keel_snapshot_close(snapshot);
    end_origin(&other);
    end_origin(&origin);
}
END_TEST

START_TEST(a_shard_that_is_still_being_written_is_not_listed)
{
    struct origin origin = make_origin();
    struct keel_object object = shard_object(5, 2, 0);
    char name[KEEL_OBJECT_NAME_BYTES], path[KEEL_PATH_BYTES];
    keel_object_name(&object, name);
    snprintf(path, sizeof path, "%.800s/sample/%s", origin.root, name);
    ck_assert(has_object(origin.tier, &object));
    ck_assert_int_eq(truncate(path, 5000), 0);
    ck_assert(!has_object(origin.tier, &object));
    ck_assert(has_object(origin.tier, &(struct keel_object){5, 2, KEEL_OBJECT_SHARD, 0, 1}));
    end_origin(&origin);
}
END_TEST

START_TEST(names_of_files_are_read_back_exactly)
{
    static const char *const wrong[] = {"rank-01.keel",     "rank-32768.keel",     "rank-.keel",
                                        "rank-1.keel.tmp",  "rank- 1.keel",        "rank-+1.keel",
                                        "parity-1.keel",    "parity-1.2.keel~",    "manifest",
                                        "parity-0.00.keel", "parity-32768.0.keel", ""};
    struct keel_object object, again;
    char name[KEEL_OBJECT_NAME_BYTES];
    for (uint32_t i = 0; i < 4096; i += 5) {
        object = (struct keel_object){.kind = KEEL_OBJECT_PARITY, .set = i, .member = 4095 - i};
        keel_object_file_name(&object, name);
        ck_assert(keel_object_file_parse(name, &again));
        ck_assert_int_eq(keel_object_compare(&object, &again), 0);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_msg(!keel_object_file_parse(wrong[i], &object), "%s", wrong[i]);
    object = (struct keel_object){UINT64_MAX, UINT64_MAX, KEEL_OBJECT_PARITY, 4095, 4095};
    keel_object_name(&object, name);
    ck_assert_str_eq(name, "step-18446744073709551615.18446744073709551615/parity-4095.4095.keel");
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, nothing_is_visible_before_its_commit, 0, KINDS);
    tcase_add_loop_test(tc, what_was_aborted_cut_short_or_changed_on_its_way_is_not_there, 0, KINDS);
    tcase_add_loop_test(tc, any_part_reads_as_it_was_written, 0, KINDS);
    tcase_add_loop_test(tc, what_is_replaced_or_removed_stays_readable_for_who_has_it_open, 0, KINDS);
    tcase_add_loop_test(tc, generations_come_and_go_whole, 0, KINDS);
    tcase_add_loop_test(tc, objects_that_cannot_be_are_refused, 0, KINDS);
    tcase_add_loop_test(tc, threads_may_use_a_tier_at_once, 0, KINDS);
    tcase_add_loop_test(tc, a_damaged_object_is_not_copied_and_what_is_wrong_is_named, 0, KINDS);
    tcase_add_test(tc, what_is_read_otherwise_the_second_time_is_not_copied);
    tcase_add_test(tc, parity_is_of_what_was_verified);
    tcase_add_test(tc, a_file_under_another_name_or_of_another_run_is_refused);
    tcase_add_test(tc, memory_is_bounded_and_freed);
    tcase_add_test(tc, a_directory_that_holds_all_objects_is_a_store);
    tcase_add_test(tc, a_shard_that_is_still_being_written_is_not_listed);
    tcase_add_test(tc, names_of_files_are_read_back_exactly);
}

KEEL_TEST_MAIN("tier", cases, 120)
