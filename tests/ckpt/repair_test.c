/* repair_test.c - what is damaged or missing in a snapshot is mended byte for byte from whatever still holds
 * it, and what cannot be mended is named, and left as it is. */
#include "erasure_rig.h"
#include "failing_tier.h"
#include "generations.h"
#include <errno.h>
#include <keel/disk.h>
#include <keel/log.h>
#include <sys/resource.h>

/* ---- what all start from ------------------------------------------------------------------------------- */

struct note {
    uint32_t outcomes[3];
    char detail[KEEL_DETAIL_BYTES]; /* of the last file that was not sound */
};

static void take_note(void *context, const struct keel_object *object, enum keel_repair_outcome outcome,
                      const char *detail)
{
    struct note *note = context;
    char name[KEEL_OBJECT_NAME_BYTES];
    keel_object_name(object, name);
    note->outcomes[outcome]++;
    if (outcome != KEEL_REPAIR_SOUND)
        snprintf(note->detail, sizeof note->detail, "%.90s: %.400s", name, detail);
}

/* Repair step 5.2 of `origin` from `source` (may be NULL). */
static enum keel_status repair_from(const struct origin *origin, struct keel_tier *source, bool dry_run,
                                    struct note *note)
{
    struct keel_repair_config config = {.step = 5,
                                        .attempt = 2,
                                        .sources = &source,
                                        .source_count = source != NULL ? 1 : 0,
                                        .dry_run = dry_run,
                                        .report = take_note,
                                        .context = note};
    struct keel_repair_result result;
    *note = (struct note){0};
    enum keel_status status = keel_store_repair(origin->store, &config, &result);
    if (status == KEEL_OK || status == KEEL_CORRUPT) {
        ck_assert_uint_eq(result.sound, note->outcomes[KEEL_REPAIR_SOUND]);
        ck_assert_uint_eq(result.repaired, note->outcomes[KEEL_REPAIR_DONE]);
        ck_assert_uint_eq(result.lost, note->outcomes[KEEL_REPAIR_LOST]);
    }
    return status;
}

static enum keel_status load_step(const struct origin *origin, uint64_t step)
{
    struct keel_snapshot *snapshot;
    KEEL_TRY(keel_snapshot_open(origin->store, step, 0, &snapshot));
    enum keel_status status = check_all(snapshot, step);
    if (status == KEEL_OK)
        status = keel_snapshot_verify(snapshot, NULL, NULL, NULL);
    keel_snapshot_close(snapshot);
    return status;
}

static void copy_step(const struct origin *from, struct keel_tier *to, uint64_t step)
{
    struct listed all = list_tier(from->tier);
    for (uint32_t i = 0; i < all.count; i++)
        if (all.infos[i].object.step == step)
            ck_ok(keel_tier_copy(from->tier, &all.infos[i].object, to));
}

static void path_of(const struct origin *origin, const struct keel_object *object, char out[KEEL_PATH_BYTES])
{
    char name[KEEL_OBJECT_NAME_BYTES];
    keel_object_name(object, name);
    snprintf(out, KEEL_PATH_BYTES, "%.800s/sample/%s", origin->root, name);
}

static void remove_file(const struct origin *origin, const struct keel_object *object)
{
    char path[KEEL_PATH_BYTES];
    path_of(origin, object, path);
    ck_assert_int_eq(unlink(path), 0);
}

/* ---- from another tier -------------------------------------------------------------------------------- */

START_TEST(a_flipped_bit_anywhere_is_mended_from_another_tier)
{
    struct origin origin = make_origin();
    struct keel_tier *copy;
    struct note note;
    uint64_t flips = 0;
    ck_ok(keel_tier_memory_open("sample", NODE_BYTES, "the partner's memory", &copy));
    copy_step(&origin, copy, 5);
    struct listed all = list_tier(origin.tier);
    for (uint32_t i = 0; i < all.count; i++) {
        const struct keel_object *object = &all.infos[i].object;
        struct blob before;
        ck_ok(read_object(origin.tier, object, &before.data, &before.bytes));
        for (uint64_t at = 0; at < before.bytes; at += at % 4096 < 256 ? 5 : 211) {
            flip_byte(&origin, object, at, (uint8_t)(1 << (at + flips++) % 8));
            ck_ok(repair_from(&origin, copy, true, &note));
            ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_DONE], 1);
            ck_ok(repair_from(&origin, copy, false, &note));
            ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_DONE], 1);
            ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_SOUND], RIG_RANKS);
            ck_assert_ptr_nonnull(strstr(note.detail, "from the partner's memory"));
            ck_ok(same_as_before(origin.tier, object, &before));
        }
        keel_free(before.data);
    }
    ck_ok(load_step(&origin, 5));
    printf("note: %llu flipped bits in shards and manifest: mended in place\n", (unsigned long long)flips);
    keel_tier_end(copy);
    end_origin(&origin);
}
END_TEST

START_TEST(a_generation_is_restored_into_an_empty_store)
{
    struct origin origin = make_origin(), empty = make_empty_origin();
    struct keel_tier *memory[2];
    struct note note;
    struct listed all = list_tier(origin.tier);
    for (uint32_t i = 0; i < 2; i++)
        ck_ok(keel_tier_memory_open("sample", NODE_BYTES, i == 0 ? "partner A" : "partner B", &memory[i]));
    for (uint32_t i = 0; i < all.count; i++) /* each has a part */
        ck_ok(keel_tier_copy(origin.tier, &all.infos[i].object, memory[i % 2]));
    struct keel_repair_config config = {
        .step = 5, .attempt = 2, .sources = memory, .source_count = 2, .report = take_note, .context = &note};
    note = (struct note){0};
    ck_ok(keel_store_repair(empty.store, &config, NULL));
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_DONE], RIG_RANKS + 1);
    ck_ok(load_step(&empty, 5));
    ck_ok(repair_from(&empty, memory[0], false, &note));
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_SOUND], RIG_RANKS + 1);
    for (uint32_t i = 0; i < 2; i++)
        keel_tier_end(memory[i]);
    end_origin(&empty);
    end_origin(&origin);
}
END_TEST

/* Of the manifest in the store's directory no byte can be read. */
static int bad_manifest = -1;

static int opening(int at, const char *path, int flags, unsigned mode)
{
    int fd = keel_disk_posix.open(at, path, flags, mode);
    if (strcmp(path, "manifest.json") == 0)
        bad_manifest = fd;
    else if (fd == bad_manifest)
        bad_manifest = -1;
    return fd;
}

static ssize_t reading(int fd, void *data, size_t bytes, uint64_t offset)
{
    if (fd != bad_manifest)
        return keel_disk_posix.pread(fd, data, bytes, offset);
    errno = EIO;
    return -1;
}

START_TEST(a_manifest_that_the_disk_cannot_read_is_brought_from_another_tier)
{
    struct origin origin = make_origin();
    struct keel_tier *copy;
    struct note note;
    struct keel_disk_ops ops = keel_disk_posix;
    ops.open = opening;
    ops.pread = reading;
    ck_ok(keel_tier_memory_open("sample", NODE_BYTES, "a copy", &copy));
    copy_step(&origin, copy, 5);
    keel_disk_use(&ops);
    enum keel_status alone = repair_from(&origin, NULL, false, &note);
    enum keel_status status = repair_from(&origin, copy, false, &note);
    keel_disk_use(NULL);
    ck_assert_int_eq(alone, KEEL_IO);
    ck_assert_int_eq(status, KEEL_OK);
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_DONE], 1);
    ck_ok(load_step(&origin, 5));
    keel_tier_end(copy);
    end_origin(&origin);
}
END_TEST

/* Two partners hold everything, and the one that is asked first fails at any of its calls, for good. */
START_TEST(any_sound_source_will_do_whenever_another_fails)
{
    struct origin origin = make_origin();
    struct listed all = list_tier(origin.tier);
    uint32_t repairs = 0;
    for (int mode = 0; mode < FAILING_MODES; mode++)
        for (uint32_t fails_from = 0, failed = 1; failed > 0; fails_from++) {
            struct origin empty = make_empty_origin();
            struct failing_tier first = make_failing_tier(origin.tier, (enum failing_mode)mode, fails_from);
            struct keel_tier *sources[2] = {&first.tier, origin.tier};
            struct keel_repair_config config = {
                .step = 5, .attempt = 2, .sources = sources, .source_count = 2};
            enum keel_status status = keel_store_repair(empty.store, &config, NULL);
            ck_assert_msg(status == KEEL_OK, "mode %d, from call %u on: %s", mode, fails_from, keel_detail());
            ck_assert_uint_eq(list_tier(empty.tier).count, all.count);
            failed = first.failed;
            repairs++;
            end_origin(&empty);
        }
    printf("note: %u repairs beside a source that fails at each of its calls: all brought everything\n",
           repairs);
    end_origin(&origin);
}
END_TEST

START_TEST(what_is_lost_everywhere_is_named_and_nothing_is_committed)
{
    struct origin origin = make_origin(), empty = make_empty_origin();
    struct keel_object shard = shard_object(5, 2, 1), manifest = manifest_object(5, 2);
    struct note note;
    remove_file(&origin, &shard);
    ck_status(repair_from(&empty, origin.tier, false, &note), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "step-5.2/rank-1.keel"));
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_DONE], RIG_RANKS - 1); /* what there is, is here now */
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_LOST], 2);
    ck_assert(!has_object(empty.tier, &manifest));
    ck_status(load_step(&empty, 5), KEEL_NOT_FOUND);
    struct keel_repair_config nowhere = {.step = 6, .attempt = 1};
    ck_status(keel_store_repair(empty.store, &nowhere, NULL), KEEL_NOT_FOUND);
    end_origin(&empty);
    end_origin(&origin);
}
END_TEST

START_TEST(a_file_that_is_gone_or_cut_off_is_brought_back)
{
    struct origin origin = make_origin();
    struct keel_tier *copy;
    struct note note;
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_tier_memory_open("sample", NODE_BYTES, "a copy", &copy));
    copy_step(&origin, copy, 5);
    struct keel_object shard = shard_object(5, 2, 2), manifest = manifest_object(5, 2);
    remove_file(&origin, &shard);
    remove_file(&origin, &manifest);
    ck_ok(repair_from(&origin, copy, true, &note)); /* only looks */
    ck_status(load_step(&origin, 5), KEEL_NOT_FOUND);
    ck_ok(repair_from(&origin, copy, false, &note));
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_DONE], 2);
    ck_ok(load_step(&origin, 5));
    path_of(&origin, &shard, path);
    ck_assert_int_eq(truncate(path, 4096), 0);
    ck_ok(repair_from(&origin, copy, false, &note));
    ck_ok(load_step(&origin, 5));
    keel_tier_end(copy);
    end_origin(&origin);
}
END_TEST

START_TEST(temporary_files_of_a_crash_go_and_others_stay)
{
    struct origin origin = make_origin();
    struct note note;
    char left[KEEL_PATH_BYTES], notes[KEEL_PATH_BYTES];
    snprintf(left, sizeof left, "%.800s/sample/step-5.2/rank-1.keel.77.3.tmp", origin.root);
    snprintf(notes, sizeof notes, "%.800s/sample/step-5.2/notes.tmp", origin.root);
    ck_ok(keel_file_append(left, "x", 1, false));
    ck_ok(keel_file_append(notes, "x", 1, false));
    ck_ok(repair_from(&origin, NULL, true, &note));
    ck_assert(keel_path_exists(left));
    ck_ok(repair_from(&origin, NULL, false, &note));
    ck_assert(!keel_path_exists(left) && keel_path_exists(notes));
    end_origin(&origin);
}
END_TEST

/* ---- from parts ---------------------------------------------------------------------------------------- */

/* One rank with some chunks, random so that they are stored raw. */
static struct origin make_large_origin(void)
{
    struct origin origin = make_empty_origin();
    struct keel_region tensor = whole("large", KEEL_CKPT_U8, 1, (const uint64_t[]){5 << 20});
    struct keel_shard_summary shard;
    struct sample_save how = {.step = 5, .attempt = 2, .salt = 5, .rank_count = 1};
    ck_ok(save_rank(origin.store, &how, &tensor, 1, &shard));
    ck_ok(commit_all(origin.store, 5, 2, &shard, 1));
    return origin;
}

START_TEST(several_damaged_copies_make_one_sound_file)
{
    struct origin origin = make_large_origin(), second = make_empty_origin(), third = make_empty_origin();
    struct keel_object shard = shard_object(5, 2, 0);
    struct note note;
    struct blob before;
    struct keel_tier *sources[2] = {second.tier, third.tier};
    struct keel_repair_config config = {.step = 5,
                                        .attempt = 2,
                                        .sources = sources,
                                        .source_count = 2,
                                        .report = take_note,
                                        .context = &note};
    ck_ok(read_object(origin.tier, &shard, &before.data, &before.bytes));
    copy_step(&origin, second.tier, 5);
    copy_step(&origin, third.tier, 5);
    flip_byte(&origin, &shard, 4096 + 100, 1); /* chunk 0 */
    flip_byte(&origin, &shard, 30, 1);         /* header */
    flip_byte(&second, &shard, 4096 + (1 << 20) + 5, 1);
    flip_byte(&second, &shard, 4096 + (2 << 20) + 5, 1);
    flip_byte(&third, &shard, 4096 + (1 << 20) + 9, 1);
    flip_byte(&third, &shard, 4096 + (4 << 20) + 9, 1);
    flip_byte(&third, &shard, before.bytes - 4, 1); /* footer */
    note = (struct note){0};
    ck_ok(keel_store_repair(origin.store, &config, NULL));
    ck_assert_ptr_nonnull(strstr(note.detail, "1 of other tiers"));
    ck_ok(same_as_before(origin.tier, &shard, &before));
    flip_byte(&origin, &shard, 4096 + (1 << 20) + 7, 1); /* now the second chunk is damaged in all */
    struct blob damaged;
    ck_ok(read_object(origin.tier, &shard, &damaged.data, &damaged.bytes));
    ck_status(keel_store_repair(origin.store, &config, NULL), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(
        strstr(keel_detail(), "rank-0.keel: tensor large, chunk 1 of 5: no copy of it is sound"));
    ck_ok(same_as_before(origin.tier, &shard, &damaged)); /* it is no worse than before */
    keel_free(damaged.data);
    keel_free(before.data);
    end_origin(&third);
    end_origin(&second);
    end_origin(&origin);
}
END_TEST

/* Ranks that hold overlapping boxes of one tensor, compressed. */
static struct origin make_replicated_origin(enum keel_codec codec)
{
    struct origin origin = make_empty_origin();
    struct keel_region tensor = whole("w", KEEL_CKPT_F32, 2, (const uint64_t[]){900, 700});
    struct keel_shard_summary shards[3];
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct keel_region box = tensor;
        if (rank > 0) { /* rank 0 has all of it, the others the upper and the lower part, one row shared */
            box.offset[0] = rank == 1 ? 0 : 449;
            box.extent[0] = rank == 1 ? 450 : 451;
        }
        struct sample_save how = {
            .step = 5, .attempt = 2, .salt = 5, .rank = rank, .rank_count = 3, .codec = codec};
        ck_ok(save_rank(origin.store, &how, &box, 1, &shards[rank]));
    }
    ck_ok(commit_all(origin.store, 5, 2, shards, 3));
    return origin;
}

START_TEST(replicas_within_the_snapshot_mend_its_chunks)
{
    static const enum keel_codec codecs[] = {KEEL_CODEC_RAW, KEEL_CODEC_PLANES};
    struct origin origin = make_replicated_origin(codecs[_i]);
    struct note note;
    uint64_t state = 4, mended = 0;
    keel_log_set_level(KEEL_LOG_ERROR); /* the reader says each time that it takes another copy */
    for (uint32_t round = 0; round < 60; round++) {
        struct keel_object shard = shard_object(5, 2, (uint32_t)draw(&state, 3));
        struct blob before;
        ck_ok(read_object(origin.tier, &shard, &before.data, &before.bytes));
        uint64_t at = 4096 + draw(&state, before.bytes - 4 * 4096); /* among the chunks */
        flip_byte(&origin, &shard, at, (uint8_t)(1 + draw(&state, 255)));
        ck_ok(repair_from(&origin, NULL, false, &note));
        ck_assert_uint_le(note.outcomes[KEEL_REPAIR_DONE], 1);
        mended += note.outcomes[KEEL_REPAIR_DONE];
        ck_ok(same_as_before(origin.tier, &shard, &before));
        keel_free(before.data);
    }
    ck_assert_uint_gt(mended, 50);
    ck_ok(load_step(&origin, 5));
    end_origin(&origin);
}
END_TEST

/* ---- parity, bases ------------------------------------------------------------------------------------- */

START_TEST(parity_in_the_store_mends_it_and_is_mended)
{
    struct origin origin = make_empty_origin();
    struct keel_tier *tiers[6];
    uint32_t ranks[NODES_MAX];
    struct note note;
    uint64_t state = 12;
    uint32_t count = save_ragged(origin.store, 6, 30000, &state, ranks);
    for (uint32_t i = 0; i < 6; i++)
        tiers[i] = origin.tier;
    struct keel_erasure_config config = {.step = 5,
                                         .attempt = 2,
                                         .node_count = 6,
                                         .parity_count = 2,
                                         .ranks = ranks,
                                         .from = tiers,
                                         .to = tiers};
    ck_ok(keel_erasure_protect(&config));
    struct keel_object lost = shard_object(5, 2, 0), damaged = shard_object(5, 2, 3),
                       parity = parity_object(0, 4);
    struct blob before[3];
    const struct keel_object *objects[3] = {&lost, &damaged, &parity};
    for (uint32_t i = 0; i < 3; i++)
        ck_ok(read_object(origin.tier, objects[i], &before[i].data, &before[i].bytes));
    remove_file(&origin, &lost);
    flip_byte(&origin, &damaged, 50, 1);
    flip_byte(&origin, &damaged, 5000, 1);
    flip_byte(&origin, &parity, before[2].bytes - 1, 1);
    ck_ok(repair_from(&origin, NULL, true, &note));
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_DONE], 3);
    ck_ok(repair_from(&origin, NULL, false, &note));
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_DONE], 3);
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_SOUND], count - 2 + 5 + 1);
    for (uint32_t i = 0; i < 3; i++) {
        ck_ok(same_as_before(origin.tier, objects[i], &before[i]));
        keel_free(before[i].data);
    }
    end_origin(&origin);
}
END_TEST

/* As a run of hundreds of nodes has them; and more files than a process may have open. */
START_TEST(any_number_of_sets_mends_what_it_can)
{
    enum { SETS = 40, FILES = 48 };
    struct origin origin = make_empty_origin();
    struct keel_tier *tiers[2] = {origin.tier, origin.tier};
    struct keel_shard_summary shards[SETS];
    struct note note;
    struct rlimit limit;
    const uint64_t size = 9000;
    for (uint32_t r = 0; r < SETS; r++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", r);
        struct keel_region tensor = whole(name, KEEL_CKPT_U8, 1, &size);
        struct sample_save how = {.step = 5, .attempt = 2, .salt = 5, .rank = r, .rank_count = SETS};
        ck_ok(save_rank(origin.store, &how, &tensor, 1, &shards[r]));
    }
    ck_ok(commit_all(origin.store, 5, 2, shards, SETS));
    for (uint32_t r = 0; r < SETS; r++) {
        const uint32_t ranks[2] = {r, KEEL_ERASURE_NO_SHARD};
        struct keel_erasure_config config = {.step = 5,
                                             .attempt = 2,
                                             .set = r,
                                             .node_count = 2,
                                             .parity_count = 1,
                                             .ranks = ranks,
                                             .from = tiers,
                                             .to = tiers};
        ck_ok(keel_erasure_protect(&config));
    }
    for (uint32_t r = 0; r < SETS; r++) {
        struct keel_object shard = shard_object(5, 2, r);
        remove_file(&origin, &shard);
    }
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    struct rlimit few = {FILES, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    enum keel_status status = repair_from(&origin, NULL, false, &note);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(status, KEEL_OK);
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_DONE], SETS);
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_SOUND], 2 * SETS + 1);
    ck_ok(load_step(&origin, 5));
    end_origin(&origin);
}
END_TEST

START_TEST(a_delta_is_restored_with_its_bases)
{
    struct origin origin = make_empty_origin(), empty = make_empty_origin();
    struct state state = {0};
    struct keel_tier *copy;
    state_add(&state, "w", KEEL_CKPT_F32, 100000);
    fill_f32(&state, 0, 1);
    ck_ok(keel_tier_memory_open("sample", NODE_BYTES, "a copy", &copy));
    for (uint64_t step = 1; step <= 3; step++) {
        struct keel_save_config config = state_config(&state, step, KEEL_CODEC_DELTA);
        step_f32(&state, 0, step);
        save_and_commit(origin.store, &config);
        copy_step(&origin, copy, step);
    }
    ck_assert_uint_eq(count_codecs(origin.store, 3, 1).flags, KEEL_HEADER_BASE);
    struct keel_repair_config config = {.step = 3, .attempt = 1, .sources = &copy, .source_count = 1};
    struct keel_repair_result result;
    ck_ok(keel_store_repair(empty.store, &config, &result));
    ck_assert_uint_eq(result.repaired, 6);
    check_state(empty.store, 3, &state);
    struct origin other = make_empty_origin();
    struct keel_object base = shard_object(1, 1, 0);
    ck_ok(keel_tier_remove(copy, &base));
    ck_status(keel_store_repair(other.store, &config, &result), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "step-1.1/rank-0.keel"));
    ck_assert_uint_eq(list_tier(other.tier).count, 2); /* the shards of 2 and 3, no manifest */
    end_origin(&other);
    keel_tier_end(copy);
    state_free(&state);
    end_origin(&empty);
    end_origin(&origin);
}
END_TEST

static uint32_t opens_left; /* before one fails for want of a descriptor */

static int open_that_fails(int at, const char *path, int flags, unsigned mode)
{
    if (opens_left-- != 0)
        return keel_disk_posix.open(at, path, flags, mode);
    errno = EMFILE;
    return -1;
}

static void protect(const struct origin *origin)
{
    struct keel_tier *tiers[5] = {origin->tier, origin->tier, origin->tier, origin->tier, origin->tier};
    const struct keel_erasure_config config = {
        .step = 5,
        .attempt = 2,
        .node_count = 5,
        .parity_count = 2,
        .ranks = (const uint32_t[]){0, 1, 2, KEEL_ERASURE_NO_SHARD, KEEL_ERASURE_NO_SHARD},
        .from = tiers,
        .to = tiers};
    ck_ok(keel_erasure_protect(&config));
}

/* One shard is gone, one damaged: a copy elsewhere, or parity, brings them back. */
static void spoil(const struct origin *origin)
{
    const struct keel_object gone = shard_object(5, 2, 1), damaged = shard_object(5, 2, 2);
    remove_file(origin, &gone);
    flip_byte(origin, &damaged, 4100, 1);
}

START_TEST(without_descriptors_nothing_is_said_to_be_lost)
{
    struct origin origin = make_origin(), other = make_empty_origin();
    struct keel_disk_ops ops = keel_disk_posix;
    struct note note;
    copy_step(&origin, other.tier, 5);
    ops.open = open_that_fails;
    for (int by_parity = 0; by_parity < 2; by_parity++) {
        struct keel_tier *source = by_parity ? NULL : other.tier;
        uint32_t struck = 0;
        if (by_parity)
            protect(&origin);
        for (bool more = true; more; struck += more) {
            spoil(&origin);
            opens_left = struck;
            keel_disk_use(&ops);
            enum keel_status status = repair_from(&origin, source, false, &note);
            keel_disk_use(NULL);
            more = opens_left > UINT32_MAX / 2;
            ck_assert_msg(status == KEEL_EXHAUSTED || status == KEEL_OK, "open %u: %s: %s", struck,
                          keel_status_name(status), keel_detail());
            ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_LOST], 0);
            if (status != KEEL_OK)
                ck_ok(repair_from(&origin, source, false, &note));
        }
        ck_assert_uint_ge(struck, 10);
        ck_ok(load_step(&origin, 5));
    }
    end_origin(&origin);
    end_origin(&other);
}
END_TEST

START_TEST(another_runs_tier_or_snapshot_is_refused)
{
    struct origin origin = make_origin(), other = make_empty_origin();
    struct keel_tier *stranger;
    struct keel_object shard = shard_object(5, 2, 1);
    struct note note;
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_tier_memory_open("other", NODE_BYTES, NULL, &stranger));
    ck_status(repair_from(&origin, stranger, false, &note), KEEL_MISMATCH);
    struct keel_region tensors[4];
    uint64_t state = 9;
    uint32_t count = small_tensors(tensors); /* another state under the same name */
    struct sample_save how = {.step = 5, .attempt = 2, .salt = 99, .rank_count = RIG_RANKS};
    ck_ok(save_snapshot(other.store, &how, tensors, count, 3, &state));
    path_of(&origin, &shard, path);
    ck_assert_int_eq(truncate(path, 100), 0);
    ck_status(repair_from(&origin, other.tier, false, &note), KEEL_CORRUPT);
    ck_assert_uint_eq(note.outcomes[KEEL_REPAIR_LOST], 1);
    keel_tier_end(stranger);
    end_origin(&other);
    end_origin(&origin);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_flipped_bit_anywhere_is_mended_from_another_tier);
    tcase_add_test(tc, a_generation_is_restored_into_an_empty_store);
    tcase_add_test(tc, a_manifest_that_the_disk_cannot_read_is_brought_from_another_tier);
    tcase_add_test(tc, any_sound_source_will_do_whenever_another_fails);
    tcase_add_test(tc, what_is_lost_everywhere_is_named_and_nothing_is_committed);
    tcase_add_test(tc, a_file_that_is_gone_or_cut_off_is_brought_back);
    tcase_add_test(tc, temporary_files_of_a_crash_go_and_others_stay);
    tcase_add_test(tc, several_damaged_copies_make_one_sound_file);
    tcase_add_loop_test(tc, replicas_within_the_snapshot_mend_its_chunks, 0, 2);
    tcase_add_test(tc, parity_in_the_store_mends_it_and_is_mended);
    tcase_add_test(tc, any_number_of_sets_mends_what_it_can);
    tcase_add_test(tc, a_delta_is_restored_with_its_bases);
    tcase_add_test(tc, without_descriptors_nothing_is_said_to_be_lost);
    tcase_add_test(tc, another_runs_tier_or_snapshot_is_refused);
}

KEEL_TEST_MAIN("repair", cases, 300)
