/* load_test.c - loading from files: each chunk once and in large reads, another copy where one is damaged,
 * what is told when none is left, and of bases and tensors that are not what was asked for. */
#include "generations.h"
#include <errno.h>
#include <keel/disk.h>
#include <keel/log.h>
#include <keel/thread.h>
#include <stdatomic.h>
#include <sys/resource.h>

/* ---- a disk that counts and fails ---------------------------------------------------------------------- */

static atomic_uint read_calls;
static atomic_uint direct_files;
static atomic_ullong largest_read;
static atomic_ullong bad_from, bad_to; /* reading any byte of [from, to) of any file fails; none: 0, 0 */

static ssize_t counting_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
    atomic_fetch_add(&read_calls, 1);
    if (bytes > atomic_load(&largest_read))
        atomic_store(&largest_read, bytes);
    if (offset < atomic_load(&bad_to) && offset + bytes > atomic_load(&bad_from)) {
        errno = EIO;
        return -1;
    }
    return keel_disk_posix.pread(fd, data, bytes, offset);
}

static int counting_set_flags(int fd, int flags)
{
    if ((flags & O_DIRECT) != 0)
        atomic_fetch_add(&direct_files, 1);
    return keel_disk_posix.set_flags(fd, flags);
}

static void count_reads(void)
{
    static struct keel_disk_ops ops;
    ops = keel_disk_posix;
    ops.pread = counting_pread;
    ops.set_flags = counting_set_flags;
    atomic_store(&read_calls, 0);
    atomic_store(&direct_files, 0);
    atomic_store(&largest_read, 0);
    atomic_store(&bad_from, 0);
    atomic_store(&bad_to, 0);
    keel_disk_use(&ops);
}

/* ---- fixture ------------------------------------------------------------------------------------------- */

enum { ROWS = 1500, COLUMNS = 1024 }; /* float32: 256 rows a chunk, five chunks and a part */

struct fixture {
    char root[KEEL_PATH_BYTES];
    struct keel_store *store;
    struct keel_snapshot *snapshot;
    struct keel_region tensor;
};

/* Each rank holds the whole tensor "w". */
static struct fixture make_replicas(uint32_t ranks)
{
    struct fixture f = {.tensor = whole("w", KEEL_CKPT_F32, 2, (const uint64_t[]){ROWS, COLUMNS})};
    struct keel_shard_summary shards[SAMPLE_RANKS_MAX];
    make_directory(f.root);
    f.store = open_store(f.root, true);
    for (uint32_t r = 0; r < ranks; r++) {
        struct sample_save how = {
            .step = 1, .attempt = 1, .rank = r, .rank_count = ranks, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_rank(f.store, &how, &f.tensor, 1, &shards[r]));
    }
    ck_ok(commit_all(f.store, 1, 1, shards, ranks));
    ck_ok(keel_snapshot_open(f.store, 1, 1, &f.snapshot));
    return f;
}

static void end_fixture(struct fixture *f)
{
    keel_disk_use(NULL);
    keel_snapshot_close(f->snapshot);
    keel_store_close(f->store);
    ck_ok(keel_remove_tree(f->root));
}

/* Change one byte of a chunk's stored data; doing it again mends it. */
static void flip_chunk(const struct fixture *f, uint64_t step, uint32_t rank, uint32_t chunk)
{
    char path[KEEL_PATH_BYTES];
    struct keel_step_place place;
    struct keel_shard shard;
    uint8_t byte;
    ck_ok(keel_step_open(f->store, step, 1, false, &place));
    ck_ok(keel_shard_load(&place, rank, &shard));
    ck_ok(keel_shard_path(&shard, path));
    uint64_t at = shard.chunks[chunk].file_offset + shard.chunks[chunk].stored_bytes / 2;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x10;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
    keel_shard_unload(&shard);
    keel_step_close(&place);
}

/* ---- how it reads -------------------------------------------------------------------------------------- */

struct progress {
    uint64_t calls, done, total;
};

static void see_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct progress *progress = context;
    ck_assert_uint_gt(done_bytes, progress->done);
    *progress = (struct progress){progress->calls + 1, done_bytes, total_bytes};
}

START_TEST(each_chunk_is_read_once_whatever_number_of_boxes_want_it)
{
    struct fixture f = make_replicas(1);
    struct keel_load loads[64];
    struct keel_load_stats stats;
    struct progress progress = {0};
    struct keel_load_config config = {.threads = 3, .progress = see_progress, .context = &progress};
    for (uint64_t i = 0; i < 64; i++) { /* columns: every one of them wants something of every chunk */
        loads[i].box = f.tensor;
        loads[i].box.offset[1] = i * 16;
        loads[i].box.extent[1] = 16;
        ck_ok(keel_alloc(keel_region_bytes(&loads[i].box), 1, &loads[i].out));
    }
    count_reads();
    ck_ok(keel_snapshot_load(f.snapshot, loads, 64, &config, &stats));
    ck_assert_uint_eq(stats.wanted_bytes, (uint64_t)ROWS * COLUMNS * 4);
    ck_assert_uint_eq(stats.needed_bytes, keel_snapshot_info(f.snapshot)->stored_bytes);
    ck_assert_uint_ge(stats.read_bytes, stats.needed_bytes);
    ck_assert_uint_lt(stats.read_bytes, stats.needed_bytes + 6 * 4096);
    ck_assert_uint_le(atomic_load(&read_calls), 2); /* 4 MiB and the rest */
    ck_assert_uint_eq(progress.done, stats.wanted_bytes);
    ck_assert_uint_eq(progress.total, stats.wanted_bytes);
    for (uint64_t i = 0; i < 64; i++) {
        uint8_t *wanted;
        uint64_t bytes = keel_region_bytes(&loads[i].box);
        ck_ok(keel_alloc(bytes, 1, &wanted));
        sample_bytes(&loads[i].box, 0, 0, bytes, wanted);
        ck_assert_mem_eq(loads[i].out, wanted, bytes);
        keel_free(wanted);
        keel_free(loads[i].out);
    }
    end_fixture(&f);
}
END_TEST

START_TEST(a_few_rows_take_the_chunks_that_hold_them_and_no_others)
{
    struct fixture f = make_replicas(1);
    struct keel_load load = {.box = f.tensor};
    struct keel_load_stats stats;
    load.box.offset[0] = 300;
    load.box.extent[0] = 300; /* the second chunk and the third */
    ck_ok(keel_alloc(keel_region_bytes(&load.box), 1, &load.out));
    ck_ok(keel_snapshot_load(f.snapshot, &load, 1, NULL, &stats));
    ck_assert_uint_eq(stats.needed_bytes, (uint64_t)f.snapshot->shards[0].chunks[1].stored_bytes +
                                              f.snapshot->shards[0].chunks[2].stored_bytes);
    ck_assert_uint_lt(stats.read_bytes, stats.needed_bytes + 2 * 4096);
    ck_ok(keel_snapshot_load(f.snapshot, NULL, 0, NULL, &stats));
    ck_assert_uint_eq(stats.read_bytes, 0);
    keel_free(load.out);
    end_fixture(&f);
}
END_TEST

START_TEST(large_loads_pass_by_the_page_cache_and_small_ones_do_not)
{
    struct fixture f = make_replicas(1);
    struct state state = {0};
    ck_ok(check_box(f.snapshot, &f.tensor, 0));
    count_reads();
    ck_ok(check_box(f.snapshot, &f.tensor, 0));
    ck_assert_uint_eq(atomic_load(&direct_files), 0);
    state_add(&state, "large", KEEL_CKPT_F32, 5 << 20);
    fill_f32(&state, 0, 3);
    struct keel_save_config save = state_config(&state, 2, KEEL_CODEC_RAW);
    save_and_commit(f.store, &save);
    struct keel_snapshot *snapshot;
    struct keel_load load = {.box = state.regions[0]};
    ck_ok(keel_alloc(20, MIB, &load.out));
    ck_ok(keel_snapshot_open(f.store, 2, 1, &snapshot));
    count_reads();
    ck_ok(keel_snapshot_load(snapshot, &load, 1, NULL, NULL));
    ck_assert_mem_eq(load.out, state.bytes[0], 20 * MIB);
    ck_assert_uint_ge(atomic_load(&direct_files), 1);
    ck_assert_uint_eq(atomic_load(&read_calls), 5);
    ck_assert_uint_eq(atomic_load(&largest_read), 4 * MIB);
    keel_snapshot_close(snapshot);
    keel_free(load.out);
    state_free(&state);
    end_fixture(&f);
}
END_TEST

struct reader {
    struct fixture *fixture;
    struct keel_thread thread;
    uint64_t seed;
    bool right;
};

static void *read_at_random(void *argument)
{
    struct reader *reader = argument;
    for (int i = 0; i < 6; i++) {
        struct keel_load load = {.box = random_box(&reader->fixture->tensor, &reader->seed)};
        struct keel_load_config config = {.threads = 2};
        uint64_t bytes = keel_region_bytes(&load.box);
        uint8_t *wanted;
        ck_ok(keel_alloc(bytes, 1, &load.out));
        ck_ok(keel_alloc(bytes, 1, &wanted));
        sample_bytes(&load.box, 0, 0, bytes, wanted);
        reader->right = keel_snapshot_load(reader->fixture->snapshot, &load, 1, &config, NULL) == KEEL_OK &&
                        memcmp(load.out, wanted, bytes) == 0;
        keel_free(load.out);
        keel_free(wanted);
        if (!reader->right)
            break;
    }
    return NULL;
}

START_TEST(several_threads_load_from_one_open_snapshot)
{
    struct fixture f = make_replicas(2);
    struct reader readers[4];
    for (uint64_t i = 0; i < 4; i++) {
        readers[i] = (struct reader){.fixture = &f, .seed = i + 1};
        ck_ok(keel_thread_create(&readers[i].thread, "reader", read_at_random, &readers[i]));
    }
    for (int i = 0; i < 4; i++) {
        keel_thread_join(&readers[i].thread);
        ck_assert(readers[i].right);
    }
    end_fixture(&f);
}
END_TEST

/* ---- damage -------------------------------------------------------------------------------------------- */

/* Two replicas, of which each has lost another chunk, and both a third one. */
START_TEST(a_damaged_chunk_is_read_from_another_replica_until_none_has_it)
{
    struct fixture f = make_replicas(3);
    keel_log_set_level(KEEL_LOG_ERROR); /* all this is logged */
    for (uint32_t r = 0; r < 3; r++) {
        flip_chunk(&f, 1, r, r);
        flip_chunk(&f, 1, r, 3 + r);
    }
    ck_ok(check_box(f.snapshot, &f.tensor, 0));
    uint64_t state = 5;
    for (int i = 0; i < 50; i++) {
        struct keel_region box = random_box(&f.tensor, &state);
        ck_ok(check_box(f.snapshot, &box, 0));
    }
    uint32_t damaged;
    ck_status(keel_snapshot_verify(f.snapshot, NULL, NULL, &damaged), KEEL_CORRUPT);
    ck_assert_uint_eq(damaged, 6);
    flip_chunk(&f, 1, 1, 0);
    ck_ok(check_box(f.snapshot, &f.tensor, 0));
    flip_chunk(&f, 1, 2, 0);
    ck_status(check_box(f.snapshot, &f.tensor, 0), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor w, chunk 0 of 6"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "use another snapshot"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), ".keel"));
    struct keel_region behind = f.tensor;
    behind.offset[0] = 256;
    behind.extent[0] = ROWS - 256;
    ck_ok(check_box(f.snapshot, &behind, 0));
    end_fixture(&f);
}
END_TEST

START_TEST(what_the_disk_cannot_read_is_read_from_another_replica_too)
{
    struct fixture f = make_replicas(2);
    uint64_t at = f.snapshot->shards[0].chunks[2].file_offset;
    count_reads();
    atomic_store(&bad_from, at + 5000);
    atomic_store(&bad_to, at + 5001);
    ck_status(check_box(f.snapshot, &f.tensor, 0), KEEL_IO); /* both files are bad there */
    ck_assert_ptr_nonnull(strstr(keel_detail(), "chunk 2 of 6"));
    struct keel_region before = f.tensor;
    before.extent[0] = 512;
    ck_ok(check_box(f.snapshot, &before, 0)); /* what lies beside it is not lost */
    end_fixture(&f);
}
END_TEST

/* Rank 0 holds the upper two thirds, rank 1 the lower ones, rank 2 some columns. */
START_TEST(replicas_in_part_stand_in_for_the_part_that_they_hold)
{
    struct fixture f = {.tensor = whole("w", KEEL_CKPT_F32, 2, (const uint64_t[]){ROWS, COLUMNS})};
    struct keel_region held[3] = {f.tensor, f.tensor, f.tensor};
    struct keel_shard_summary shards[3];
    held[0].extent[0] = 1000;
    held[1].offset[0] = 500;
    held[1].extent[0] = 1000;
    held[2].offset[1] = 100;
    held[2].extent[1] = 824;
    make_directory(f.root);
    f.store = open_store(f.root, true);
    for (uint32_t r = 0; r < 3; r++) {
        struct sample_save how = {
            .step = 1, .attempt = 1, .rank = r, .rank_count = 3, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_rank(f.store, &how, &held[r], 1, &shards[r]));
    }
    ck_ok(commit_all(f.store, 1, 1, shards, 3));
    ck_ok(keel_snapshot_open(f.store, 1, 1, &f.snapshot));
    flip_chunk(&f, 1, 0, 0);
    struct keel_region box = f.tensor;
    ck_status(check_box(f.snapshot, &f.tensor, 0), KEEL_CORRUPT); /* its first columns: rank 0 alone */
    box.offset[1] = 100;
    box.extent[1] = 824;
    ck_ok(check_box(f.snapshot, &box, 0));
    flip_chunk(&f, 1, 0, 0);
    flip_chunk(&f, 1, 0, 12); /* rows 768 to 831: rank 1 has them */
    flip_chunk(&f, 1, 2, 4);
    ck_ok(check_box(f.snapshot, &f.tensor, 0));
    ck_ok(check_box(f.snapshot, &box, 0));
    end_fixture(&f);
}
END_TEST

enum { ORACLE_RANKS = 3, ORACLE_ROUNDS = 20 };

/* Mark what a chunk holds. */
static void mark_chunk(const struct keel_snapshot *snapshot, uint32_t rank, uint32_t chunk, bool damaged,
                       uint8_t *good)
{
    const struct keel_format_record *record = keel_shard_record_of(&snapshot->shards[rank], chunk);
    uint64_t first = (chunk - record->first_chunk) * (record->chunk_bytes / 4);
    uint64_t count = snapshot->shards[rank].chunks[chunk].raw_bytes / 4;
    for (uint64_t e = first; e < first + count && !damaged; e++) {
        uint64_t row = record->offset[0] + e / record->extent[1];
        good[row * COLUMNS + record->offset[1] + e % record->extent[1]] = 1;
    }
}

/* Which elements some intact chunk holds, element by element. */
static bool box_is_good(const struct keel_region *box, const uint8_t *good)
{
    for (uint64_t row = box->offset[0]; row < box->offset[0] + box->extent[0]; row++)
        for (uint64_t column = box->offset[1]; column < box->offset[1] + box->extent[1]; column++)
            if (!good[row * COLUMNS + column])
                return false;
    return true;
}

/* Three replicas, each cut at random into boxes; again and again some chunks of them are damaged. */
START_TEST(a_box_is_read_if_and_only_if_an_intact_chunk_holds_each_of_its_elements)
{
    struct fixture f = {.tensor = whole("w", KEEL_CKPT_F32, 2, (const uint64_t[]){ROWS, COLUMNS})};
    struct keel_shard_summary shards[ORACLE_RANKS];
    struct keel_region boxes[8];
    uint64_t state = 11;
    uint32_t read = 0, refused = 0;
    uint8_t *good;
    keel_log_set_level(KEEL_LOG_ERROR); /* all this is logged */
    ck_ok(keel_alloc(ROWS, COLUMNS, &good));
    make_directory(f.root);
    f.store = open_store(f.root, true);
    for (uint32_t r = 0; r < ORACLE_RANKS; r++) {
        struct sample_save how = {.step = 1,
                                  .attempt = 1,
                                  .rank = r,
                                  .rank_count = ORACLE_RANKS,
                                  .codec = r == 0 ? KEEL_CODEC_RAW : KEEL_CODEC_PLANES};
        ck_ok(save_rank(f.store, &how, boxes, cut_boxes(&f.tensor, 6, &state, boxes), &shards[r]));
    }
    ck_ok(commit_all(f.store, 1, 1, shards, ORACLE_RANKS));
    ck_ok(keel_snapshot_open(f.store, 1, 1, &f.snapshot));
    for (int round = 0; round < ORACLE_ROUNDS; round++) {
        bool damaged[ORACLE_RANKS][64] = {{false}};
        memset(good, 0, (size_t)ROWS * COLUMNS);
        for (uint32_t r = 0; r < ORACLE_RANKS; r++)
            for (uint32_t c = 0; c < f.snapshot->shards[r].footer.chunk_count; c++) {
                damaged[r][c] = draw(&state, 3) == 0;
                if (damaged[r][c])
                    flip_chunk(&f, 1, r, c);
                mark_chunk(f.snapshot, r, c, damaged[r][c], good);
            }
        for (int i = 0; i < 4; i++) {
            struct keel_region box = i == 0 ? f.tensor : random_box(&f.tensor, &state);
            bool can = box_is_good(&box, good);
            ck_status(check_box(f.snapshot, &box, 0), can ? KEEL_OK : KEEL_CORRUPT);
            read += can;
            refused += !can;
        }
        for (uint32_t r = 0; r < ORACLE_RANKS; r++)
            for (uint32_t c = 0; c < f.snapshot->shards[r].footer.chunk_count; c++)
                if (damaged[r][c])
                    flip_chunk(&f, 1, r, c);
    }
    ck_assert_uint_gt(read, ORACLE_ROUNDS / 2);
    ck_assert_uint_gt(refused, ORACLE_ROUNDS / 2);
    printf("note: %u boxes read from damaged replicas, %u refused, as an oracle says\n", read, refused);
    keel_free(good);
    end_fixture(&f);
}
END_TEST

/* ---- deltas and copies --------------------------------------------------------------------------------- */

enum { STEPS = 4 };

/* Steps 1 to 4 of "w", each a delta of the one before, with a rounded copy. */
static struct fixture make_chain(struct state *state)
{
    static const uint32_t same_as[2] = {KEEL_SAME_AS_NONE, 0};
    struct fixture f = {0};
    *state = (struct state){0};
    make_directory(f.root);
    f.store = open_store(f.root, true);
    state_add(state, "w", KEEL_CKPT_F32, 700000);
    state_add(state, "w.half", KEEL_CKPT_BF16, 700000);
    fill_f32(state, 0, 9);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct keel_save_config config = state_config(state, step, KEEL_CODEC_DELTA);
        config.same_as = same_as;
        config.chain_max = STEPS;
        if (step > 1)
            step_f32(state, 0, step);
        keel_codec_round(KEEL_CKPT_BF16, KEEL_CKPT_F32, state->bytes[0], 700000, state->bytes[1]);
        save_and_commit(f.store, &config);
    }
    struct census census = count_codecs(f.store, STEPS, 1);
    ck_assert_uint_eq(census.chunks[KEEL_CODEC_DELTA], 3);
    ck_assert_uint_eq(census.chunks[KEEL_CODEC_SAME], 2);
    ck_assert_uint_eq(census.chain, STEPS - 1);
    f.tensor = state->regions[0];
    return f;
}

static enum keel_status load_state(struct keel_snapshot *snapshot, const struct state *state,
                                   struct keel_load_stats *stats)
{
    struct keel_load loads[2] = {{.box = state->regions[0]}, {.box = state->regions[1]}};
    ck_ok(keel_alloc(keel_region_bytes(&loads[0].box), 1, &loads[0].out));
    ck_ok(keel_alloc(keel_region_bytes(&loads[1].box), 1, &loads[1].out));
    enum keel_status status = keel_snapshot_load(snapshot, loads, 2, NULL, stats);
    for (uint32_t i = 0; i < 2; i++) {
        if (status == KEEL_OK)
            ck_assert_mem_eq(loads[i].out, state->bytes[i], keel_region_bytes(&loads[i].box));
        keel_free(loads[i].out);
    }
    return status;
}

static uint64_t stored_in(struct keel_store *store, uint64_t step)
{
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, step, 1, &snapshot));
    uint64_t bytes = keel_snapshot_info(snapshot)->stored_bytes;
    keel_snapshot_close(snapshot);
    return bytes;
}

START_TEST(a_chain_of_deltas_and_the_copies_of_its_end_need_each_chunk_once)
{
    struct state state;
    struct fixture f = make_chain(&state);
    struct keel_load_stats stats;
    uint64_t stored = 0;
    for (uint64_t step = 1; step <= STEPS; step++)
        stored += stored_in(f.store, step);
    ck_ok(keel_snapshot_open(f.store, STEPS, 1, &f.snapshot));
    ck_ok(load_state(f.snapshot, &state, &stats));
    ck_assert_uint_eq(stats.needed_bytes, stored);
    ck_assert_uint_lt(stats.read_bytes, stored + STEPS * 3 * 4096);
    ck_ok(keel_snapshot_verify(f.snapshot, NULL, NULL, NULL));
    struct keel_region part = state.regions[1];
    uint16_t got[1000];
    part.offset[0] = 523900; /* over the ends of both tensors' chunks */
    part.extent[0] = 1000;
    ck_ok(keel_snapshot_read(f.snapshot, &part, got, sizeof got));
    ck_assert_mem_eq(got, state.bytes[1] + 2 * 523900, sizeof got);
    state_free(&state);
    end_fixture(&f);
}
END_TEST

struct chain_reader {
    struct keel_snapshot *snapshot;
    const struct state *state;
    struct keel_thread thread;
    bool right;
};

static void *load_chain(void *argument)
{
    struct chain_reader *reader = argument;
    reader->right = load_state(reader->snapshot, reader->state, NULL) == KEEL_OK;
    return NULL;
}

START_TEST(several_threads_share_bases_that_none_has_opened_yet)
{
    struct state state;
    struct fixture f = make_chain(&state);
    struct chain_reader readers[4];
    ck_ok(keel_snapshot_open(f.store, STEPS, 1, &f.snapshot));
    for (int i = 0; i < 4; i++) {
        readers[i] = (struct chain_reader){.snapshot = f.snapshot, .state = &state};
        ck_ok(keel_thread_create(&readers[i].thread, "reader", load_chain, &readers[i]));
    }
    for (int i = 0; i < 4; i++) {
        keel_thread_join(&readers[i].thread);
        ck_assert(readers[i].right);
    }
    state_free(&state);
    end_fixture(&f);
}
END_TEST

START_TEST(damage_in_a_base_names_tensor_chunk_and_base)
{
    struct state state;
    struct fixture f = make_chain(&state);
    uint32_t damaged;
    ck_ok(keel_snapshot_open(f.store, STEPS, 1, &f.snapshot));
    flip_chunk(&f, 2, 0, 1);
    ck_status(load_state(f.snapshot, &state, NULL), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "step-4.1/rank-0.keel: tensor w, chunk 1 of 3"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "its base, step-2.1 rank 0 chunk 1"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "use another snapshot"));
    ck_status(keel_snapshot_verify(f.snapshot, NULL, NULL, &damaged), KEEL_CORRUPT);
    ck_assert_uint_eq(damaged, 2); /* the delta, and the copy's chunk that is its rounding */
    state_free(&state);
    end_fixture(&f);
}
END_TEST

START_TEST(a_base_that_is_gone_is_told_when_the_snapshot_is_opened)
{
    struct state state;
    struct fixture f = make_chain(&state);
    struct keel_snapshot *snapshot;
    char step[KEEL_PATH_BYTES], away[KEEL_PATH_BYTES], manifest[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(step, f.root, "sample/step-2.1"));
    ck_ok(keel_path_join(away, f.root, "away"));
    ck_assert_int_eq(rename(step, away), 0);
    for (uint64_t s = 3; s <= STEPS; s++) {
        ck_status(keel_snapshot_open(f.store, s, 1, &snapshot), KEEL_CORRUPT);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "step-2.1"));
        ck_assert_ptr_nonnull(strstr(keel_detail(), "or use another"));
    }
    ck_ok(keel_snapshot_open(f.store, 1, 1, &snapshot));
    keel_snapshot_close(snapshot);
    ck_assert_int_eq(symlink(away, step), 0); /* out of the store */
    ck_assert_int_ne(keel_snapshot_open(f.store, STEPS, 1, &snapshot), KEEL_OK);
    ck_assert_int_eq(unlink(step), 0);
    ck_assert_int_eq(rename(away, step), 0);
    ck_ok(keel_snapshot_open(f.store, STEPS, 1, &f.snapshot));
    ck_ok(load_state(f.snapshot, &state, NULL));
    ck_ok(keel_path_join(manifest, step, KEEL_MANIFEST_NAME));
    ck_assert_int_eq(unlink(manifest), 0); /* not committed any more */
    ck_status(keel_snapshot_open(f.store, STEPS, 1, &snapshot), KEEL_CORRUPT);
    state_free(&state);
    end_fixture(&f);
}
END_TEST

/* The same step again, with other bytes in it, under the same name. */
START_TEST(a_base_of_the_right_name_with_other_contents_is_refused)
{
    struct state state;
    struct fixture f = make_chain(&state);
    char step[KEEL_PATH_BYTES];
    struct keel_save_config config = state_config(&state, 1, KEEL_CODEC_PLANES);
    ck_ok(keel_path_join(step, f.root, "sample/step-1.1"));
    ck_ok(keel_remove_tree(step));
    step_f32(&state, 0, 77);
    save_and_commit(f.store, &config);
    step_f32(&state, 0, 77);
    ck_ok(keel_snapshot_open(f.store, STEPS, 1, &f.snapshot));
    ck_status(load_state(f.snapshot, &state, NULL), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor w, chunk"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "its base"));
    state_free(&state);
    end_fixture(&f);
}
END_TEST

/* ---- wrong wishes -------------------------------------------------------------------------------------- */

/* One thread of many: they hold the rest of what a process may have open. */
START_TEST(a_thread_holds_few_files_of_many_shards)
{
    enum { RANKS = 40, FILES = 16 };
    char root[KEEL_PATH_BYTES];
    struct keel_shard_summary shards[RANKS];
    struct keel_region tensors[RANKS];
    struct keel_load loads[RANKS];
    uint8_t out[RANKS][64];
    struct keel_snapshot *snapshot;
    struct rlimit limit;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    for (uint32_t r = 0; r < RANKS; r++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", r);
        tensors[r] = whole(name, KEEL_CKPT_U8, 1, (const uint64_t[]){sizeof out[r]});
        loads[r] = (struct keel_load){.box = tensors[r], .out = out[r]};
        const struct sample_save how = {.step = 5, .attempt = 2, .salt = 5, .rank = r, .rank_count = RANKS};
        ck_ok(save_rank(store, &how, &tensors[r], 1, &shards[r]));
    }
    ck_ok(commit_all(store, 5, 2, shards, RANKS));
    ck_ok(keel_snapshot_open(store, 5, 2, &snapshot));
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct rlimit few = {FILES, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    enum keel_status status = keel_snapshot_load(snapshot, loads, RANKS, NULL, NULL);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_msg(status == KEEL_OK, "%s: %s", keel_status_name(status), keel_detail());
    for (uint32_t r = 0; r < RANKS; r++) {
        uint8_t wanted[sizeof out[r]];
        sample_bytes(&tensors[r], 5, 0, sizeof wanted, wanted);
        ck_assert_mem_eq(out[r], wanted, sizeof wanted);
    }
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_tensor_that_does_not_fit_is_told_with_both_shapes_and_dtypes)
{
    struct fixture f = make_replicas(1);
    struct keel_region wanted = whole("w", KEEL_CKPT_BF16, 3, (const uint64_t[]){2, 3, 4});
    uint8_t out[48] = {0}, untouched[48] = {0};
    ck_status(keel_snapshot_read(f.snapshot, &wanted, out, sizeof out), KEEL_MISMATCH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor w is stored as f32 [1500,1024]"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "bf16 [2,3,4] is asked for"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "use the model that was saved, or another snapshot"));
    wanted = whole("b", KEEL_CKPT_F32, 0, NULL);
    struct keel_load loads[2] = {{.box = f.tensor, .out = out}, {.box = wanted, .out = out}};
    loads[0].box.extent[0] = loads[0].box.extent[1] = 1;
    ck_status(keel_snapshot_load(f.snapshot, loads, 2, NULL, NULL), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "no tensor b"));
    ck_assert_mem_eq(out, untouched, sizeof out);
    end_fixture(&f);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, each_chunk_is_read_once_whatever_number_of_boxes_want_it);
    tcase_add_test(tc, a_few_rows_take_the_chunks_that_hold_them_and_no_others);
    tcase_add_test(tc, large_loads_pass_by_the_page_cache_and_small_ones_do_not);
    tcase_add_test(tc, several_threads_load_from_one_open_snapshot);
    tcase_add_test(tc, a_damaged_chunk_is_read_from_another_replica_until_none_has_it);
    tcase_add_test(tc, what_the_disk_cannot_read_is_read_from_another_replica_too);
    tcase_add_test(tc, replicas_in_part_stand_in_for_the_part_that_they_hold);
    tcase_add_test(tc, a_box_is_read_if_and_only_if_an_intact_chunk_holds_each_of_its_elements);
    tcase_add_test(tc, several_threads_share_bases_that_none_has_opened_yet);
    tcase_add_test(tc, a_chain_of_deltas_and_the_copies_of_its_end_need_each_chunk_once);
    tcase_add_test(tc, damage_in_a_base_names_tensor_chunk_and_base);
    tcase_add_test(tc, a_base_that_is_gone_is_told_when_the_snapshot_is_opened);
    tcase_add_test(tc, a_base_of_the_right_name_with_other_contents_is_refused);
    tcase_add_test(tc, a_thread_holds_few_files_of_many_shards);
    tcase_add_test(tc, a_tensor_that_does_not_fit_is_told_with_both_shapes_and_dtypes);
}

KEEL_TEST_MAIN("load", cases, 300)
