/* pieces_test.c - holders of pieces, who together have all, update to the bits of one that has the whole: for
 * any number of them, with slices of the tensor axis or none, with a loss scale, and with a second holder. */
#include "engine_rig.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 3, HOLDERS_MAX = 9, BUCKETS_MAX = 64, WEIGHTS_MAX = 1 << 17 };

static const struct keel_gpt_config small = {.layers = 2,
                                             .heads = 8,
                                             .width = 40,
                                             .block = 8,
                                             .vocab = 67,
                                             .batch = 3,
                                             .dropout = 0.1F,
                                             .bias = true,
                                             .tied = true};

static const struct keel_update_settings settings = {.beta1 = 0.9F,
                                                     .beta2 = 0.99F,
                                                     .epsilon = 1e-8F,
                                                     .momentum = 0.9F,
                                                     .max_norm = 1.0F,
                                                     .weight_decay = 0.1F};

struct outcome {
    float norms[STEPS], scales[STEPS];
    uint64_t digests[STEPS];
    float
        average[WEIGHTS_MAX]; /* of the weights, as they lie in the flat buffers; zeros where none is kept */
};

/* What holders have, all of one engine: who gets what over the network is another's test. */
struct holder {
    struct keel_engine_run runs[2 * BUCKETS_MAX], *pages;
    uint32_t run_count, page_run_count;
    uint64_t page_count; /* of its own share */
    struct keel_engine_pieces *pieces;
};

static void compute(struct engine_rig *rig, uint32_t step, uint32_t microbatches)
{
    static struct tokens tokens;
    ck_ok(keel_engine_zero(rig->engine));
    for (uint32_t m = 0; m < microbatches; m++) {
        fill_tokens(rig, 2 * step + m, &tokens);
        struct keel_engine_batch batch = batch_of(&tokens, step, m);
        batch.more = m + 1 < microbatches;
        ck_ok(keel_engine_microbatch(rig->engine, &batch));
    }
}

/* The gradients of a bucket that is final, from their window to those who hold them. */
static void give_bucket(struct engine_rig *rig, struct holder *holders, uint32_t count, uint32_t bucket)
{
    struct keel_buffer *windows = keel_engine_flat(rig->engine, KEEL_FLAT_GRADIENTS);
    const uint32_t buckets = keel_engine_bucket_count(rig->engine);
    for (uint32_t h = 0; h < count; h++)
        for (uint32_t r = bucket; r < holders[h].run_count; r += buckets) {
            const struct keel_engine_run *run = &holders[h].runs[r];
            const uint64_t from = keel_engine_gradient_at(rig->engine, bucket) + run->first -
                                  keel_engine_bucket(rig->engine, bucket)->offset;
            if (run->count > 0)
                ck_ok(keel_queue_copy(keel_engine_queue(rig->engine), windows, from * 4,
                                      keel_engine_pieces_flat(holders[h].pieces, KEEL_FLAT_GRADIENTS),
                                      keel_engine_pieces_at(holders[h].pieces, r) * 4, run->count * 4, NULL,
                                      NULL));
        }
}

/* One microbatch. What a bucket leaves behind in its window is read too late if at all: the last segment that
 * may read it is the one behind its own. */
static void compute_in_windows(struct engine_rig *rig, uint32_t step, struct holder *holders, uint32_t count)
{
    static struct tokens tokens;
    const uint32_t buckets = keel_engine_bucket_count(rig->engine),
                   *waits = keel_engine_window_waits(rig->engine);
    uint32_t given = 0;
    fill_tokens(rig, 2 * step, &tokens);
    const struct keel_engine_batch batch = batch_of(&tokens, step, 0);
    ck_ok(keel_engine_zero(rig->engine));
    ck_ok(keel_engine_feed(rig->engine, &batch));
    for (uint32_t segment = 0; segment <= buckets; segment++) {
        while (given < waits[segment]) { /* no sooner */
            ck_assert_uint_lt(given + 1, segment);
            give_bucket(rig, holders, count, given++);
        }
        ck_ok(keel_engine_segment(rig->engine, segment));
    }
    while (given < buckets)
        give_bucket(rig, holders, count, given++);
}

static struct keel_engine_update update_of(uint32_t step)
{
    return (struct keel_engine_update){.settings = settings, .learning_rate = 1e-2F, .step = step};
}

/* What it is by definition: the weights at first, then e + (1 - decay) (w - e), rounded once. Of a statistic,
 * the loss scale, there is none. */
static void follow(struct engine_rig *rig, float decay, bool first, float *average)
{
    static float weights[WEIGHTS_MAX];
    const uint64_t count = keel_engine_flat_count(rig->engine);
    ck_assert_uint_le(count, WEIGHTS_MAX);
    read_floats(rig, keel_engine_flat(rig->engine, KEEL_FLAT_WEIGHTS), 0, weights, count);
    for (uint32_t i = 0; i < keel_engine_tile_count(rig->engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(rig->engine, i);
        const bool kept = !keel_engine_param(rig->engine, tile->param)->statistic;
        for (uint64_t e = tile->offset; kept && e < tile->offset + tile->count; e++)
            average[e] = first ? weights[e] : fmaf(1.0F - decay, weights[e] - average[e], average[e]);
    }
}

static void train_whole(struct keel_engine_config config, struct outcome *out)
{
    struct engine_rig rig;
    static float average[WEIGHTS_MAX];
    engine_rig_open(&rig, "host", small, config);
    ck_ok(keel_engine_initialize(rig.engine, 42));
    memset(out->average, 0, sizeof out->average);
    memset(average, 0, sizeof average);
    struct keel_buffer *flat = keel_engine_flat(rig.engine, KEEL_FLAT_EMA);
    ck_assert(config.average > 0.0F ? flat != NULL : flat == NULL);
    if (flat != NULL)
        follow(&rig, config.average, true, average);
    for (uint32_t step = 0; step < STEPS; step++) {
        const struct keel_engine_update update = update_of(step);
        struct keel_engine_updated updated;
        compute(&rig, step, config.microbatches);
        ck_ok(keel_engine_update(rig.engine, &update, soon(), &updated));
        out->norms[step] = updated.grad_norm;
        out->scales[step] = updated.loss_scale;
        out->digests[step] = updated.digest;
        if (flat != NULL && !updated.skipped)
            follow(&rig, config.average, false, average);
    }
    if (flat != NULL) {
        read_floats(&rig, flat, 0, out->average, keel_engine_flat_count(rig.engine));
        ck_assert_mem_eq(out->average, average, sizeof average);
    }
    engine_rig_close(&rig);
}

/* Of all holders together. */
static void gather_average(struct engine_rig *rig, const struct holder *holders, uint32_t count, float *out)
{
    memset(out, 0, WEIGHTS_MAX * sizeof *out);
    for (uint32_t h = 0; h < count; h++) {
        struct keel_buffer *own = keel_engine_pieces_flat(holders[h].pieces, KEEL_FLAT_EMA);
        for (uint32_t b = 0; own != NULL && b < keel_engine_bucket_count(rig->engine); b++)
            if (holders[h].runs[b].count > 0)
                read_floats(rig, own, keel_engine_pieces_at(holders[h].pieces, b),
                            out + holders[h].runs[b].first, holders[h].runs[b].count);
    }
}

/* Runs of a holder between the flat buffer and its own. */
static void copy_runs(struct engine_rig *rig, const struct holder *holder, uint32_t run_count,
                      enum keel_engine_flat which, bool in)
{
    struct keel_buffer *flat = keel_engine_flat(rig->engine, which),
                       *own = keel_engine_pieces_flat(holder->pieces, which);
    for (uint32_t r = 0; r < run_count; r++) {
        const uint64_t there = holder->runs[r].first * 4, here = keel_engine_pieces_at(holder->pieces, r) * 4;
        if (holder->runs[r].count > 0)
            ck_ok(keel_queue_copy(keel_engine_queue(rig->engine), in ? flat : own, in ? there : here,
                                  in ? own : flat, in ? here : there, holder->runs[r].count * 4, NULL, NULL));
    }
    ck_ok(keel_queue_finish(keel_engine_queue(rig->engine), soon()));
}

/* Its own share, and that of the holder before it. */
static void open_holder(struct engine_rig *rig, uint32_t number, uint32_t count, struct holder *holder)
{
    const uint32_t buckets = keel_engine_bucket_count(rig->engine);
    ck_assert_uint_le(buckets, BUCKETS_MAX);
    ck_ok(keel_engine_share(rig->engine, number, count, holder->runs));
    ck_ok(keel_engine_share(rig->engine, (number + count - 1) % count, count, holder->runs + buckets));
    holder->run_count = count > 1 ? 2 * buckets : buckets;
    ck_ok(keel_engine_run_pages(rig->engine, holder->runs, buckets, &holder->pages, &holder->page_run_count));
    holder->page_count = 0;
    for (uint32_t p = 0; p < holder->page_run_count; p++)
        holder->page_count += holder->pages[p].count;
    ck_ok(keel_engine_pieces_create(rig->engine, holder->runs, holder->run_count, &holder->pieces));
    copy_runs(rig, holder, holder->run_count, KEEL_FLAT_WEIGHTS, true);
}

static void give_squares(const struct holder *holder, const float *mine, float *all)
{
    for (uint32_t p = 0; p < holder->page_run_count; p++) {
        memcpy(all + holder->pages[p].first, mine, holder->pages[p].count * sizeof *all);
        mine += holder->pages[p].count;
    }
}

static void step_of_holders(struct engine_rig *rig, struct holder *holders, uint32_t count, uint32_t step,
                            struct outcome *out)
{
    static float squares[WEIGHTS_MAX], mine[WEIGHTS_MAX];
    const uint32_t buckets = keel_engine_bucket_count(rig->engine);
    const struct keel_engine_update update = update_of(step);
    memset(squares, 0xff, sizeof squares); /* NaN where nobody gives any */
    for (uint32_t h = 0; h < count; h++) {
        if (keel_engine_window_waits(rig->engine) == NULL)
            copy_runs(rig, &holders[h], holders[h].run_count, KEEL_FLAT_GRADIENTS, true);
        ck_ok(keel_engine_pieces_squares(holders[h].pieces, soon(), mine, holders[h].page_count));
        give_squares(&holders[h], mine, squares);
    }
    for (uint32_t h = 0; h < count; h++) {
        struct keel_engine_norm norm;
        struct keel_engine_updated updated;
        ck_ok(keel_engine_pieces_sum(holders[h].pieces, squares));
        ck_ok(keel_engine_pieces_norm(holders[h].pieces, &update, soon(), &norm, &updated));
        out->norms[step] = updated.grad_norm;
        out->scales[step] = updated.loss_scale;
        /* the next one has the norm from this one */
        ck_ok(keel_engine_pieces_update(holders[(h + 1) % count].pieces, &update, &norm, soon()));
    }
    for (uint32_t h = 0; h < count; h++)
        copy_runs(rig, &holders[h], buckets, KEEL_FLAT_WEIGHTS, false);
    ck_ok(keel_engine_digest(rig->engine, soon(), &out->digests[step]));
}

/* The second holder of a share has the bits of its owner. */
static void compare_shadows(struct engine_rig *rig, const struct holder *holders, uint32_t count)
{
    static float owner[WEIGHTS_MAX], shadow[WEIGHTS_MAX];
    const uint32_t buckets = keel_engine_bucket_count(rig->engine);
    for (uint32_t h = 0; h < count; h++)
        for (uint32_t b = 0; b < buckets; b++)
            for (uint32_t f = 0; f < KEEL_FLAT_COUNT; f++) {
                const struct holder *of = &holders[(h + count - 1) % count];
                const uint64_t size = of->runs[b].count;
                struct keel_buffer *flat = keel_engine_pieces_flat(of->pieces, (enum keel_engine_flat)f);
                if (size == 0 || flat == NULL)
                    continue;
                read_floats(rig, flat, keel_engine_pieces_at(of->pieces, b), owner, size);
                read_floats(rig, keel_engine_pieces_flat(holders[h].pieces, (enum keel_engine_flat)f),
                            keel_engine_pieces_at(holders[h].pieces, buckets + b), shadow, size);
                ck_assert_mem_eq(owner, shadow, size * sizeof *owner);
            }
}

/* Each element has one owner. */
static void check_cover(struct engine_rig *rig, const struct holder *holders, uint32_t count)
{
    for (uint32_t b = 0; b < keel_engine_bucket_count(rig->engine); b++) {
        const struct keel_engine_bucket *bucket = keel_engine_bucket(rig->engine, b);
        uint64_t at = bucket->offset;
        for (uint32_t h = 0; h < count; at += holders[h++].runs[b].count)
            ck_assert_uint_eq(holders[h].runs[b].first, at);
        ck_assert_uint_eq(at, bucket->offset + bucket->count);
    }
}

static void train_in_pieces(struct keel_engine_config config, uint32_t count, struct outcome *out)
{
    struct engine_rig rig;
    static struct holder holders[HOLDERS_MAX];
    struct keel_engine_facts facts;
    config.in_pieces = true;
    engine_rig_open(&rig, "host", small, config);
    ck_assert_ptr_null(keel_engine_flat(rig.engine, KEEL_FLAT_M));
    ck_ok(keel_engine_initialize(rig.engine, 42));
    for (uint32_t h = 0; h < count; h++)
        open_holder(&rig, h, count, &holders[h]);
    check_cover(&rig, holders, count);
    for (uint32_t step = 0; step < STEPS; step++) {
        if (config.windows)
            compute_in_windows(&rig, step, holders, count);
        else
            compute(&rig, step, config.microbatches);
        step_of_holders(&rig, holders, count, step, out);
    }
    if (count > 1)
        compare_shadows(&rig, holders, count);
    gather_average(&rig, holders, count, out->average);
    keel_engine_facts(rig.engine, &facts);
    ck_assert_uint_eq(facts.planned_peak_bytes, keel_device_stats(rig.device).live_bytes);
    for (uint32_t h = 0; h < count; h++) {
        keel_engine_pieces_destroy(holders[h].pieces);
        keel_free(holders[h].pages);
    }
    keel_engine_facts(rig.engine, &facts);
    ck_assert_uint_eq(facts.planned_peak_bytes, keel_device_stats(rig.device).live_bytes);
    engine_rig_close(&rig);
}

static void compare(struct keel_engine_config config)
{
    static struct outcome whole, pieces;
    const bool windows = config.windows;
    config.windows = false;
    train_whole(config, &whole);
    config.windows = windows;
    for (uint32_t count = 1; count <= HOLDERS_MAX; count += count < 4 ? 1 : 5) {
        train_in_pieces(config, count, &pieces);
        ck_assert_mem_eq(whole.norms, pieces.norms, sizeof whole.norms);
        ck_assert_mem_eq(whole.scales, pieces.scales, sizeof whole.scales);
        ck_assert_mem_eq(whole.digests, pieces.digests, sizeof whole.digests);
        ck_assert_mem_eq(whole.average, pieces.average, sizeof whole.average);
    }
}

START_TEST(pieces_update_to_the_bits_of_the_whole)
{
    static const uint32_t slices[] = {1, 2, 5, 8};
    for (size_t t = 0; t < sizeof slices / sizeof *slices; t++)
        for (uint32_t buckets = 0; buckets < 2; buckets++)
            compare((struct keel_engine_config){.microbatches = 2,
                                                .tensor = slices[t],
                                                .bucket_bytes = buckets == 0 ? 0 : 1 << 15,
                                                .training = true});
}
END_TEST

START_TEST(pieces_keep_the_loss_scale_and_do_without_a_second_moment)
{
    compare((struct keel_engine_config){.microbatches = 2, .storage = KEEL_F16, .training = true});
    compare((struct keel_engine_config){
        .microbatches = 2, .tensor = 3, .optimizer = KEEL_OPTIMIZER_SGD, .nesterov = true, .training = true});
}
END_TEST

START_TEST(an_average_of_the_weights_has_its_bits_by_definition_whole_and_in_pieces)
{
    compare((struct keel_engine_config){.microbatches = 2, .average = 0.75F, .training = true});
    compare((struct keel_engine_config){.microbatches = 2,
                                        .tensor = 5,
                                        .average = 0.999F,
                                        .optimizer = KEEL_OPTIMIZER_SGD,
                                        .bucket_bytes = 1 << 15,
                                        .training = true});
    compare((struct keel_engine_config){.microbatches = 1,
                                        .average = 0.5F,
                                        .storage = KEEL_F16,
                                        .windows = true,
                                        .bucket_bytes = 1 << 14,
                                        .training = true});
}
END_TEST

START_TEST(gradients_in_windows_have_the_bits_of_a_whole_buffer)
{
    for (uint32_t slices = 1; slices <= 8; slices += 7)
        for (uint32_t bytes = 1 << 12; bytes <= 1 << 17; bytes <<= 1)
            compare((struct keel_engine_config){.microbatches = 1,
                                                .tensor = slices,
                                                .bucket_bytes = bytes,
                                                .windows = true,
                                                .training = true});
    compare((struct keel_engine_config){
        .microbatches = 1, .bucket_bytes = 1 << 14, .windows = true, .storage = KEEL_F16, .training = true});
}
END_TEST

/* Of the largest bucket, whatever the number of them: a third one where a node's gradients lie in two.
 * Nothing else changes. */
START_TEST(windows_are_three_buckets_at_most)
{
    struct keel_engine_config config = {
        .microbatches = 1, .bucket_bytes = 1 << 13, .training = true, .in_pieces = true};
    for (uint32_t storage = 0; storage < 2; storage++) {
        struct engine_rig rig;
        struct keel_engine_facts whole, facts;
        uint64_t largest = 0;
        config.storage = storage == 0 ? KEEL_F32 : KEEL_BF16;
        config.windows = false;
        engine_rig_open(&rig, "host", small, config);
        keel_engine_facts(rig.engine, &whole);
        engine_rig_close(&rig);
        config.windows = true;
        engine_rig_open(&rig, "host", small, config);
        keel_engine_facts(rig.engine, &facts);
        for (uint32_t b = 0; b < keel_engine_bucket_count(rig.engine); b++)
            if (keel_engine_bucket(rig.engine, b)->count > largest)
                largest = keel_engine_bucket(rig.engine, b)->count;
        ck_assert_uint_gt(keel_engine_bucket_count(rig.engine), 8);
        ck_assert_uint_le(facts.window_bytes, 3 * largest * 4);
        ck_assert_uint_eq(whole.planned_peak_bytes - facts.planned_peak_bytes,
                          keel_engine_flat_count(rig.engine) * 4 - facts.window_bytes);
        ck_assert_uint_eq(facts.planned_peak_bytes, keel_device_stats(rig.device).live_bytes);
        engine_rig_close(&rig);
    }
}
END_TEST

/* Weights and gradients stay whole; what is held costs 16 bytes an element, in four buffers, and tables. */
START_TEST(memory_is_that_of_the_formula)
{
    struct engine_rig rig;
    static struct holder holder;
    struct keel_engine_facts whole, bare, facts;
    struct keel_engine_config config = {.microbatches = 2, .training = true};
    engine_rig_open(&rig, "host", small, config);
    keel_engine_facts(rig.engine, &whole);
    engine_rig_close(&rig);
    config.in_pieces = true;
    engine_rig_open(&rig, "host", small, config);
    keel_engine_facts(rig.engine, &bare);
    const uint64_t flat = keel_engine_flat_count(rig.engine);
    ck_assert_uint_ge(whole.planned_peak_bytes - bare.planned_peak_bytes, 8 * flat); /* and scratch */
    ck_assert_uint_lt(whole.planned_peak_bytes - bare.planned_peak_bytes, 8 * flat + 4096);
    for (uint32_t count = 2; count <= HOLDERS_MAX; count++) {
        uint64_t held = 0;
        open_holder(&rig, count - 1, count, &holder);
        for (uint32_t r = 0; r < holder.run_count; r++)
            held += holder.runs[r].count;
        ck_assert_uint_le(held, 2 * (flat / count + KEEL_FLAT_ALIGN * keel_engine_bucket_count(rig.engine)));
        keel_engine_facts(rig.engine, &facts);
        const uint64_t bytes = facts.planned_peak_bytes - bare.planned_peak_bytes;
        const uint64_t tables = facts.table_bytes - bare.table_bytes;
        ck_assert_uint_eq(bytes, 16 * held + tables);
        ck_assert_uint_gt(tables, 0);
        ck_assert_uint_lt(tables, 12 * (held / KEEL_FLAT_ALIGN) + 2 * 64 * 56 + 4096);
        ck_assert_uint_eq(facts.planned_peak_bytes, keel_device_stats(rig.device).live_bytes);
        keel_engine_pieces_destroy(holder.pieces);
        keel_free(holder.pages);
    }
    engine_rig_close(&rig);
}
END_TEST

START_TEST(an_optimizer_of_whole_tensors_is_refused)
{
    struct keel_engine *engine;
    const struct keel_engine_config config = {
        .training = true, .in_pieces = true, .optimizer = KEEL_OPTIMIZER_LAMB};
    ck_status(keel_engine_create(&config, &engine), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "parallel.zero"));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, pieces_update_to_the_bits_of_the_whole);
    tcase_add_test(tc, pieces_keep_the_loss_scale_and_do_without_a_second_moment);
    tcase_add_test(tc, an_average_of_the_weights_has_its_bits_by_definition_whole_and_in_pieces);
    tcase_add_test(tc, gradients_in_windows_have_the_bits_of_a_whole_buffer);
    tcase_add_test(tc, windows_are_three_buckets_at_most);
    tcase_add_test(tc, memory_is_that_of_the_formula);
    tcase_add_test(tc, an_optimizer_of_whole_tensors_is_refused);
}

KEEL_TEST_MAIN("pieces", cases, 120)
