/* trainer_test.c - one rank's part of a step, on the host device: no allocation after the first step, state
 * that is split and put together again, rates and text that depend on nothing but their numbers. */
#include "data.h"
#include "harness.h"
#include "trainer.h"
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

struct rig {
    char directory[32];
    struct keel_job job;
    struct keel_data *data;
    struct keel_device *device;
    struct keel_trainer *trainer;
    atomic_uint_fast64_t progress;
};

static void set_up_with(struct rig *rig, uint32_t shards, enum keel_optimizer optimizer)
{
    *rig = (struct rig){.directory = "/tmp/keel-trainer-XXXXXX"};
    ck_assert_ptr_nonnull(mkdtemp(rig->directory));
    rig->job = (struct keel_job){.seed = 3,
                                 .shards = shards,
                                 .layers = 1,
                                 .heads = 2,
                                 .width = 16,
                                 .block = 8,
                                 .bias = true,
                                 .tied = true,
                                 .dropout = 0.1f,
                                 .val_fraction = 0.2f,
                                 .steps = 100,
                                 .microbatches = 2,
                                 .batch = 2,
                                 .learning_rate = 1e-2f,
                                 .min_learning_rate = 1e-3f,
                                 .warmup_steps = 10,
                                 .decay_steps = 100,
                                 .optimizer = optimizer,
                                 .update = {.momentum = 0.9f,
                                            .trust = 0.2f,
                                            .beta1 = 0.9f,
                                            .beta2 = 0.99f,
                                            .epsilon = 1e-8f,
                                            .weight_decay = 0.1f,
                                            .max_norm = 1},
                                 .eval_batches = 2};
    ck_ok(keel_path_join(rig->job.path, rig->directory, "text"));
    char text[3000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "it was the best of times\n"[i % 25];
    ck_ok(keel_file_replace(rig->job.path, text, sizeof text, 0666));
    ck_ok(keel_data_open(&rig->job, &rig->data));
    ck_ok(keel_device_open("host", NULL, &rig->device));
    struct keel_trainer_config config = {.job = &rig->job,
                                         .data = rig->data,
                                         .device = rig->device,
                                         .stall_ns = 60 * KEEL_NS_PER_S,
                                         .progress = &rig->progress};
    ck_ok(keel_trainer_create(&config, &rig->trainer));
    ck_ok(keel_trainer_initialize(rig->trainer));
}

static void set_up(struct rig *rig, uint32_t shards)
{
    set_up_with(rig, shards, KEEL_OPTIMIZER_ADAMW);
}

static void tear_down(struct rig *rig)
{
    keel_trainer_destroy(rig->trainer);
    keel_device_close(rig->device);
    keel_data_close(rig->data);
    ck_ok(keel_remove_tree(rig->directory));
}

static struct keel_trainer_result run_step(struct rig *rig, uint64_t number)
{
    uint16_t mine[KEEL_GROUP_SHARDS_MAX] = {0};
    struct keel_trainer_step step = {.step = number, .rank_count = 1, .shard_position = mine};
    struct keel_trainer_result result;
    ck_ok(keel_trainer_run(rig->trainer, &step, &result));
    return result;
}

START_TEST(nothing_is_allocated_after_the_first_step)
{
    struct rig rig;
    set_up(&rig, 5);
    run_step(&rig, 0);
    uint64_t host = keel_memory_stats().allocations, device = keel_device_stats(rig.device).allocations;
    for (uint64_t step = 1; step < 6; step++)
        run_step(&rig, step);
    ck_assert_uint_eq(keel_memory_stats().allocations, host);
    ck_assert_uint_eq(keel_device_stats(rig.device).allocations, device);
    tear_down(&rig);
}
END_TEST

START_TEST(a_step_learns_and_its_digest_is_that_of_the_weights)
{
    struct rig rig;
    set_up(&rig, 2);
    float first = run_step(&rig, 0).loss;
    struct keel_trainer_result last = {.loss = 0};
    for (uint64_t step = 1; step < 40; step++)
        last = run_step(&rig, step);
    ck_assert_float_lt(last.loss, first - 0.3f);
    uint64_t digest;
    ck_ok(keel_trainer_digest(rig.trainer, &digest));
    ck_assert_uint_eq(digest, last.digest);
    tear_down(&rig);
}
END_TEST

/* Rates that suit each. */
static const struct {
    enum keel_optimizer optimizer;
    float learning_rate;
} trained_by[] = {{KEEL_OPTIMIZER_ADAMW, 1e-2f},
                  {KEEL_OPTIMIZER_ADAM, 1e-2f},
                  {KEEL_OPTIMIZER_SGD, 5e-2f},
                  {KEEL_OPTIMIZER_LARS, 0.3f},
                  {KEEL_OPTIMIZER_LAMB, 5e-2f}};
enum { OPTIMIZERS = sizeof trained_by / sizeof trained_by[0] };

static void copy_state(struct keel_trainer *from, struct keel_trainer *to)
{
    struct keel_state_piece *pieces;
    uint32_t count;
    ck_ok(keel_trainer_pieces(from, 0, 1, &pieces, &count));
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *bytes;
        const uint64_t size = keel_piece_bytes(&pieces[i]);
        ck_ok(keel_alloc(size, 1, &bytes));
        ck_ok(keel_trainer_read_piece(from, keel_engine_queue(keel_trainer_engine(from)), &pieces[i], 0, size,
                                      bytes));
        ck_ok(keel_trainer_write_piece(to, &pieces[i], 0, size, bytes));
        keel_free(bytes);
    }
    keel_free(pieces);
}

/* The state is all that a replacement needs: it goes on with the same bits. */
START_TEST(every_optimizer_learns_and_its_state_is_whole)
{
    struct rig rig, other;
    set_up_with(&rig, 2, trained_by[_i].optimizer);
    set_up_with(&other, 2, trained_by[_i].optimizer);
    rig.job.learning_rate = other.job.learning_rate = trained_by[_i].learning_rate;
    float first = run_step(&rig, 0).loss;
    for (uint64_t step = 1; step < 40; step++)
        run_step(&rig, step);
    copy_state(rig.trainer, other.trainer);
    uint64_t digest;
    ck_ok(keel_trainer_digest(other.trainer, &digest));
    struct keel_trainer_result last = run_step(&rig, 40), same = run_step(&other, 40);
    ck_assert_float_lt(last.loss, first - 0.3f);
    ck_assert_uint_eq(last.digest, same.digest);
    tear_down(&rig);
    tear_down(&other);
}
END_TEST

START_TEST(ranks_write_every_element_of_the_state_once)
{
    struct rig rig;
    const uint32_t parts = keel_optimizer_has_v(trained_by[_i].optimizer) ? 3 : 2;
    set_up_with(&rig, 1, trained_by[_i].optimizer);
    struct keel_engine *engine = keel_trainer_engine(rig.trainer);
    const uint64_t flat = keel_engine_flat_count(engine);
    uint64_t wanted = 0;
    for (uint32_t i = 0; i < keel_engine_param_count(engine); i++)
        wanted += parts * keel_engine_param(engine, i)->count;
    uint8_t *seen;
    ck_ok(keel_alloc(parts * flat, 1, &seen));
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        uint64_t covered = 0;
        memset(seen, 0, parts * flat);
        for (uint32_t position = 0; position < ranks; position++) {
            struct keel_state_piece *pieces;
            uint32_t count;
            ck_ok(keel_trainer_pieces(rig.trainer, position, ranks, &pieces, &count));
            for (uint32_t p = 0; p < count; p++) {
                struct keel_region region;
                keel_trainer_region(rig.trainer, &pieces[p], &region);
                ck_assert_uint_eq(keel_region_bytes(&region), keel_piece_bytes(&pieces[p]));
                ck_assert_uint_lt(pieces[p].part, parts);
                const uint64_t at = pieces[p].part * flat + keel_engine_tile(engine, pieces[p].tile)->offset;
                for (uint64_t e = 0; e < pieces[p].count; e++)
                    ck_assert_uint_eq(seen[at + pieces[p].first + e]++, 0);
                covered += pieces[p].count;
            }
            keel_free(pieces);
        }
        ck_assert_uint_eq(covered, wanted);
    }
    keel_free(seen);
    tear_down(&rig);
}
END_TEST

/* A tile has pages of its own, and they cover the flat buffers. */
START_TEST(tiles_share_no_page_and_leave_none_out)
{
    struct rig rig;
    set_up(&rig, 1);
    const struct keel_engine *engine = keel_trainer_engine(rig.trainer);
    const uint64_t pages = keel_engine_flat_count(engine) / KEEL_FLAT_ALIGN;
    uint8_t *seen;
    ck_ok(keel_alloc(pages, 1, &seen));
    ck_assert_uint_eq(keel_engine_tile_count(engine), keel_engine_param_count(engine));
    for (uint32_t i = 0; i < keel_engine_tile_count(engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(engine, i);
        ck_assert_uint_eq(tile->param, i);
        ck_assert_uint_eq(tile->count, keel_engine_param(engine, i)->count);
        ck_assert_uint_eq(tile->offset, tile->first_page * KEEL_FLAT_ALIGN);
        ck_assert_uint_le(tile->count, tile->page_count * KEEL_FLAT_ALIGN);
        for (uint64_t p = 0; p < tile->page_count; p++)
            ck_assert_uint_eq(seen[tile->first_page + p]++, 0);
    }
    for (uint64_t p = 0; p < pages; p++)
        ck_assert_uint_eq(seen[p], 1);
    keel_free(seen);
    tear_down(&rig);
}
END_TEST

struct source {
    struct rig *rig;
    struct keel_queue *queue;
    struct keel_state_piece *pieces;
};

static enum keel_status read_region(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    struct source *source = context;
    return keel_trainer_read_piece(source->rig->trainer, source->queue, &source->pieces[index], offset, bytes,
                                   out);
}

static void save_state(struct rig *rig, struct keel_store *store, uint32_t ranks)
{
    struct keel_shard_summary summaries[8];
    struct source source = {.rig = rig};
    ck_ok(keel_queue_create(rig->device, &source.queue));
    for (uint32_t position = 0; position < ranks; position++) {
        struct keel_save_config config = {.step = 7,
                                          .attempt = 1,
                                          .rank = position,
                                          .rank_count = ranks,
                                          .codec = KEEL_CODEC_PLANES,
                                          .read = read_region,
                                          .context = &source};
        struct keel_region *regions;
        ck_ok(keel_trainer_pieces(rig->trainer, position, ranks, &source.pieces, &config.region_count));
        ck_ok(keel_alloc(config.region_count + 1, sizeof *regions, &regions));
        for (uint32_t i = 0; i < config.region_count; i++)
            keel_trainer_region(rig->trainer, &source.pieces[i], &regions[i]);
        config.regions = regions;
        struct keel_save *save;
        ck_ok(keel_save_begin(store, &config, &save));
        ck_ok(keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), &summaries[position]));
        keel_free(regions);
        keel_free(source.pieces);
    }
    keel_queue_destroy(source.queue);
    struct keel_commit commit = {.step = 7, .attempt = 1, .shards = summaries, .shard_count = ranks};
    memset(commit.identity, 'a', 64);
    ck_ok(keel_store_commit(store, &commit));
}

START_TEST(a_snapshot_of_three_ranks_gives_one_rank_the_same_future)
{
    struct rig rig;
    set_up(&rig, 2);
    uint64_t read_bytes;
    struct keel_store *store;
    struct keel_store_config config = {.root = rig.directory, .run = "r", .create = true};
    ck_ok(keel_store_open(&config, &store));
    for (uint64_t step = 0; step < 3; step++)
        run_step(&rig, step);
    save_state(&rig, store, 3);
    struct keel_trainer_result next = run_step(&rig, 3);
    ck_ok(keel_trainer_initialize(rig.trainer)); /* lose it all */
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, 7, 0, &snapshot));
    ck_ok(keel_trainer_load(rig.trainer, snapshot, 0, 1, &read_bytes));
    keel_snapshot_close(snapshot);
    uint64_t digest;
    ck_ok(keel_trainer_digest(rig.trainer, &digest)); /* what the next step begins with */
    struct keel_trainer_result again = run_step(&rig, 3);
    ck_assert_uint_eq(next.digest, again.digest);
    ck_assert_mem_eq(&next.loss, &again.loss, sizeof(float));
    keel_store_close(store);
    tear_down(&rig);
}
END_TEST

START_TEST(text_is_drawn_by_the_seed_alone)
{
    struct rig rig;
    set_up(&rig, 1);
    char *first, *second;
    size_t first_bytes, second_bytes;
    ck_ok(keel_trainer_sample(rig.trainer, 40, &first, &first_bytes));
    ck_ok(keel_trainer_sample(rig.trainer, 40, &second, &second_bytes));
    ck_assert_uint_eq(strlen(first), 40);
    ck_assert_uint_eq(first_bytes, 40);
    ck_assert_uint_eq(second_bytes, 40);
    ck_assert_str_eq(first, second);
    ck_assert(strspn(first, "it was the best of times\n") == 40);
    struct keel_scores scores;
    ck_ok(keel_trainer_eval(rig.trainer, &scores));
    ck_assert(scores.has_loss && !scores.has_accuracy);
    ck_assert_float_eq_tol(scores.loss, logf((float)keel_data_vocab(rig.data)), 0.2f);
    keel_free(first);
    keel_free(second);
    tear_down(&rig);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, nothing_is_allocated_after_the_first_step);
    tcase_add_test(tc, a_step_learns_and_its_digest_is_that_of_the_weights);
    tcase_add_loop_test(tc, every_optimizer_learns_and_its_state_is_whole, 0, OPTIMIZERS);
    tcase_add_loop_test(tc, ranks_write_every_element_of_the_state_once, 0, OPTIMIZERS);
    tcase_add_test(tc, tiles_share_no_page_and_leave_none_out);
    tcase_add_test(tc, a_snapshot_of_three_ranks_gives_one_rank_the_same_future);
    tcase_add_test(tc, text_is_drawn_by_the_seed_alone);
}

KEEL_TEST_MAIN("trainer", cases, 60)
