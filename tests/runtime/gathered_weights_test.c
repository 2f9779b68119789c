/* gathered_weights_test.c - ranks that gather their weights (parallel.zero = 3), as threads: the bits of one
 * rank that has all, the bytes that each sends, which are those of the formula to the byte, and the memory
 * that each takes. */
#include "harness.h"
#include "job_plan.h"
#include "model.h"
#include "rank_rig.h"
#include "tape.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t sent_by(const struct rank *rank)
{
    struct keel_transport_stats stats;
    keel_endpoint_stats(rank->endpoint, &stats);
    return stats.data_sent;
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    rank->status = KEEL_OK;
    for (uint64_t n = 0; n < STEPS && rank->status == KEEL_OK; n++) {
        const struct keel_trainer_step step = rank_step(rank, n);
        const uint64_t before = sent_by(rank);
        rank->status = keel_trainer_run(rank->trainer, &step, &rank->result);
        rank->sent = sent_by(rank) - before;
    }
    return NULL;
}

/* Elements of each bucket that a position owns. */
static void find_share(const struct keel_engine *engine, uint32_t position, uint32_t count, uint64_t *out)
{
    struct keel_engine_run runs[BUCKETS_MAX];
    ck_assert_uint_le(keel_engine_bucket_count(engine), BUCKETS_MAX);
    ck_ok(keel_engine_share(engine, position, count, runs));
    for (uint32_t b = 0; b < keel_engine_bucket_count(engine); b++)
        out[b] = runs[b].count;
}

/* Gradients to their owners, copies to the shadow or to the other groups, weights to its own group as often
 * as they are gathered: of each stripe what the rank owns, or has a copy of. */
static uint64_t formula_of(const struct rank *rank, uint32_t holders)
{
    const struct keel_engine *engine = keel_trainer_engine(rank->trainer);
    const uint32_t size = rank->group_size,
                   copies = size < rank->count ? rank->count / size - 1 : holders - 1;
    uint64_t own[BUCKETS_MAX], held[BUCKETS_MAX] = {0}, elements = 0;
    uint32_t count;
    const struct keel_engine_gather *gathers = keel_engine_gathers(engine, false, &count);
    for (uint32_t p = rank->position % size; p < rank->count; p += size) {
        find_share(engine, p, rank->count, own);
        for (uint32_t b = 0; b < keel_engine_bucket_count(engine); b++)
            held[b] += own[b];
    }
    find_share(engine, rank->position, rank->count, own);
    for (uint32_t b = 0; b < keel_engine_bucket_count(engine); b++)
        elements += keel_engine_bucket(engine, b)->count - own[b] + copies * own[b];
    for (uint32_t g = 0; g < count; g++)
        elements += rank->job.microbatches * held[gathers[g].bucket] * (size - 1);
    return elements * sizeof(float);
}

/* Squares of the pages that the rank owns, to all others. */
static uint64_t squares_of(const struct rank *rank)
{
    const struct keel_engine *engine = keel_trainer_engine(rank->trainer);
    struct keel_engine_run runs[BUCKETS_MAX], *pages;
    uint64_t squares = 0;
    uint32_t count;
    ck_ok(keel_engine_share(engine, rank->position, rank->count, runs));
    ck_ok(keel_engine_run_pages(engine, runs, keel_engine_bucket_count(engine), &pages, &count));
    for (uint32_t p = 0; p < count; p++)
        squares += pages[p].count;
    keel_free(pages);
    return squares * sizeof(float) * (rank->count - 1);
}

/* The ranks' records, what their copies are, and their digests, folded: by all 2 (n - 1) messages of what one
 * has, and by one of them log2 n at most. */
enum { FOLDED_BYTES = sizeof(struct keel_record_fold) + 2 * sizeof(uint64_t) };

static uint64_t digest_of_one(const struct keel_job *of, uint32_t shards, uint32_t microbatches)
{
    static struct rank one;
    one.places = 1;
    open_rank_of(&one, of, 0, 1, shards, microbatches, KEEL_ZERO_NONE);
    ck_ok(keel_trainer_initialize(one.trainer));
    run_rank(&one);
    ck_ok(one.status);
    close_rank(&one);
    return one.result.digest;
}

static void run_all(struct rank *ranks, uint32_t count)
{
    struct keel_thread threads[RANKS_MAX];
    for (uint32_t r = 0; r < count; r++)
        ck_ok(keel_thread_create(&threads[r], "rank", run_rank, &ranks[r]));
    for (uint32_t r = 0; r < count; r++) {
        keel_thread_join(&threads[r]);
        ck_ok(ranks[r].status);
    }
}

static const struct {
    uint32_t ranks, holders, microbatches, group;
} shapes[] = {{2, 1, 1, 2}, {3, 1, 1, 3}, {4, 1, 1, 4}, {2, 2, 1, 2}, {3, 2, 1, 3}, {4, 2, 1, 4},
              {2, 1, 2, 2}, {3, 1, 2, 3}, {4, 1, 2, 4}, {2, 2, 2, 2}, {3, 2, 2, 3}, {4, 2, 2, 4},
              {4, 1, 1, 2}, {4, 2, 2, 2}, {4, 1, 1, 1}, {3, 1, 2, 1}};

START_TEST(ranks_send_what_the_formula_says_and_have_the_bits_of_one)
{
    static struct rank ranks[RANKS_MAX];
    const uint32_t count = shapes[_i].ranks, holders = shapes[_i].holders,
                   microbatches = shapes[_i].microbatches;
    uint64_t whole = 0, folded = 0, zero0;
    for (uint32_t r = 0; r < count; r++) {
        open_rank(&ranks[r], r, count, count, microbatches, KEEL_ZERO_WEIGHTS);
        ranks[r].group_size = shapes[_i].group;
        begin(&ranks[r], holders);
    }
    open_groups(ranks, count, 1);
    run_all(ranks, count);
    const uint64_t wanted = digest_of_one(&rank_job, count, microbatches);
    for (uint32_t r = 0; r < count; r++) {
        const uint64_t formula = formula_of(&ranks[r], holders), rest = ranks[r].sent - formula;
        ck_assert_uint_eq(ranks[r].result.digest, wanted);
        /* The loss alone is summed as the transport likes. */
        const uint64_t squares = squares_of(&ranks[r]), hops = count > 2 ? 2 : 1;
        ck_assert_msg(ranks[r].sent >= formula && rest >= squares + FOLDED_BYTES &&
                          rest <= squares + hops * FOLDED_BYTES + 8 * (uint64_t)count,
                      "rank %u of %u: %llu bytes, of which the formula says %llu, and %llu for squares", r,
                      count, (unsigned long long)ranks[r].sent, (unsigned long long)formula,
                      (unsigned long long)squares);
        whole += ranks[r].sent;
        folded += rest - squares;
    }
    ck_assert_uint_le(folded, (uint64_t)2 * (count - 1) * FOLDED_BYTES + 8 * (uint64_t)count * count);
    zero0 = 2 * (count - 1) * keel_engine_flat_count(keel_trainer_engine(ranks[0].trainer)) * sizeof(float);
    printf(
        "note: %u ranks in groups of %u, %u holders, %u microbatches: %llu bytes by all, %.3f of zero = 0\n",
        count, shapes[_i].group, holders, microbatches, (unsigned long long)whole,
        (double)whole / (double)zero0);
    close_groups(ranks, count);
    for (uint32_t r = 0; r < count; r++)
        close_rank(&ranks[r]);
}
END_TEST

/* ---- slices -------------------------------------------------------------------------------------------- */

/* The steps of four ranks; what each sent in the last one. */
static void run_grid(const struct keel_job *of, uint32_t zero, uint32_t holders, struct rank *ranks)
{
    open_grid(of, zero, holders, ranks);
    run_all(ranks, PLACES * POSITIONS);
}

/* With zero = 1 weights go round once, behind the update. */
static uint64_t formula_of_spread(const struct rank *rank, uint32_t holders)
{
    const struct keel_engine *engine = keel_trainer_engine(rank->trainer);
    uint64_t own[BUCKETS_MAX], elements = 0;
    find_share(engine, rank->position, rank->count, own);
    for (uint32_t b = 0; b < keel_engine_bucket_count(engine); b++)
        elements += keel_engine_bucket(engine, b)->count + (holders > 1 ? own[b] : 0);
    return elements * sizeof(float); /* what it does not own, to its owner; what it owns, to the other */
}

/* What slices exchange is the same whoever owns what: so the difference is that of the formulas, to the byte,
 * and for some a message of 8 bytes, as digests are added over four ranks and not over two. _i: holders - 1.
 */
START_TEST(ranks_with_slices_send_what_the_formula_says_and_have_the_bits_of_one)
{
    static struct rank gathers[RANKS_MAX], spreads[RANKS_MAX];
    const uint32_t holders = 1 + (uint32_t)_i;
    struct keel_job cut = rank_job;
    cut.tensor = PLACES;
    const uint64_t wanted = digest_of_one(&cut, POSITIONS, 1);
    run_grid(&cut, KEEL_ZERO_WEIGHTS, holders, gathers);
    run_grid(&cut, KEEL_ZERO_OPTIMIZER, holders, spreads);
    for (uint32_t r = 0; r < PLACES * POSITIONS; r++) {
        const uint64_t formula = formula_of(&gathers[r], holders),
                       once = formula_of_spread(&spreads[r], holders);
        ck_assert_uint_eq(gathers[r].result.digest, wanted);
        ck_assert_uint_eq(spreads[r].result.digest, wanted);
        const uint64_t more = gathers[r].sent - spreads[r].sent - (formula - once);
        ck_assert_msg(formula > once && (more == 0 || more == sizeof(uint64_t)),
                      "rank %u: %llu bytes with zero = 3, %llu with 1: by the formulas %llu and %llu", r,
                      (unsigned long long)gathers[r].sent, (unsigned long long)spreads[r].sent,
                      (unsigned long long)formula, (unsigned long long)once);
        printf(
            "note: rank %u of 2 x 2, %u holders: %llu bytes with zero = 3, of which the columns' are %llu\n",
            r, holders, (unsigned long long)gathers[r].sent, (unsigned long long)formula);
    }
    close_grid(gathers);
    close_grid(spreads);
}
END_TEST

/* ---- who is a step behind ------------------------------------------------------------------------------ */

/* What lies in the pieces of a rank that owns all, out or in. */
static void copy_state(struct rank *rank, float **parts, bool out)
{
    struct keel_engine *engine = keel_trainer_engine(rank->trainer);
    struct keel_queue *queue = keel_engine_queue(engine);
    static const enum keel_engine_flat flats[KEEL_STATE_PARTS] = {KEEL_FLAT_WEIGHTS, KEEL_FLAT_M, KEEL_FLAT_V,
                                                                  KEEL_FLAT_EMA};
    const uint64_t bytes = keel_engine_flat_count(engine) * sizeof(float);
    for (uint32_t i = 0; i < KEEL_STATE_PARTS; i++) {
        struct keel_buffer *flat = keel_engine_pieces_flat(rank->trainer->owned.now.pieces, flats[i]);
        ck_ok(out ? keel_queue_read(queue, flat, 0, parts[i], bytes, NULL, NULL)
                  : keel_queue_write(queue, flat, 0, parts[i], bytes, NULL, NULL));
    }
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(KEEL_NS_PER_S * 60)));
}

static void run_step(struct rank *rank, uint64_t n)
{
    const struct keel_trainer_step step = {
        .step = n, .epoch = 1, .rank_count = 1, .shard_position = rank->shard_position};
    ck_ok(keel_trainer_run(rank->trainer, &step, &rank->result));
}

/* A step is done; what it changed is as before, as with one who was lost to the others when it had the sums.
 * The norm of another makes the same step of these. _i: parallel.zero = 1 to 3. */
START_TEST(who_has_the_sums_does_the_step_with_the_norm_of_another)
{
    static struct rank one;
    float *before[KEEL_STATE_PARTS], *after[KEEL_STATE_PARTS];
    struct keel_owned_record records[2];
    open_rank(&one, 0, 1, 2, 1, KEEL_ZERO_OPTIMIZER + (uint32_t)_i);
    const uint64_t bytes = keel_engine_flat_count(keel_trainer_engine(one.trainer)) * sizeof(float);
    for (uint32_t i = 0; i < KEEL_STATE_PARTS; i++)
        ck_assert((before[i] = malloc(bytes)) != NULL && (after[i] = malloc(bytes)) != NULL);
    begin(&one, 1);
    run_step(&one, 0);
    copy_state(&one, before, true);
    run_step(&one, 1);
    copy_state(&one, after, true);
    keel_trainer_owns(one.trainer, records);
    const struct keel_engine_norm norm = records[0].norm;
    ck_assert(records[0].step == 2 && records[0].has_norm && records[0].complete);

    copy_state(&one, before, false);
    one.trainer->owned.now.step = 1;
    one.trainer->owned.now.reduced = true;
    one.trainer->owned.now.has_norm = false;
    ck_ok(keel_trainer_catch_up(one.trainer, &norm));
    keel_trainer_owns(one.trainer, records);
    ck_assert(records[0].step == 2 && records[0].has_norm && !records[0].complete && !records[0].reduced);
    copy_state(&one, before, true);
    for (uint32_t i = 0; i < KEEL_STATE_PARTS; i++) {
        ck_assert(memcmp(before[i], after[i], bytes) == 0);
        free(before[i]);
        free(after[i]);
    }
    close_rank(&one);
}
END_TEST

/* ---- an evaluation that is interrupted ----------------------------------------------------------------- */

static void *evaluate_rank(void *argument)
{
    struct rank *rank = argument;
    struct keel_scores scores;
    rank->status = keel_trainer_eval(rank->trainer, &scores);
    return NULL;
}

/* The view ends when gathers are under way: the next one begins them anew, and its steps have the bits of
 * one. */
START_TEST(what_an_evaluation_left_under_way_is_begun_anew)
{
    static struct rank ranks[2];
    struct keel_thread thread;
    for (uint32_t r = 0; r < 2; r++) {
        open_rank(&ranks[r], r, 2, 2, 1, KEEL_ZERO_WEIGHTS);
        ranks[r].job.eval_batches = 1;
        begin(&ranks[r], 1);
    }
    open_groups(ranks, 2, 1);
    const uint64_t before = sent_by(&ranks[0]);
    ck_ok(keel_thread_create(&thread, "evaluation", evaluate_rank, &ranks[0]));
    while (sent_by(&ranks[0]) == before) /* the other rank takes no part */
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    keel_group_revoke(ranks[0].group);
    keel_thread_join(&thread);
    ck_assert_int_eq(ranks[0].status, KEEL_REVOKED);
    close_groups(ranks, 2);
    open_groups(ranks, 2, 2);
    run_all(ranks, 2);
    ck_assert_uint_eq(ranks[0].result.digest, digest_of_one(&rank_job, 2, 1));
    close_groups(ranks, 2);
    for (uint32_t r = 0; r < 2; r++)
        close_rank(&ranks[r]);
}
END_TEST

/* ---- memory -------------------------------------------------------------------------------------------- */

/* 27 million parameters, of which nothing is computed. */
static struct keel_job large_job(uint32_t ranks, uint32_t tensor)
{
    struct keel_job large = rank_job;
    large.shards = large.ranks = ranks;
    large.tensor = tensor;
    large.microbatches = 1;
    large.layers = 6;
    large.width = 512;
    large.vocab = 16384;
    large.parallel.bucket_bytes = 4 << 20;
    return large;
}

static uint64_t held_by(const struct keel_engine *engine, uint32_t position,
                        const struct keel_owners_map *owners, struct keel_engine_pieces **out)
{
    static struct keel_engine_run runs[RANKS_MAX * BUCKETS_MAX];
    const uint32_t buckets = keel_engine_bucket_count(engine);
    uint32_t shares = 0;
    uint64_t held = 0;
    ck_assert_uint_le(buckets, BUCKETS_MAX);
    for (uint32_t i = 0; i < owners->count; i++) {
        const uint32_t owner = (position + i) % owners->count;
        if (keel_has_share(owners, position, owner))
            ck_ok(keel_engine_share(engine, owner, owners->count, runs + (size_t)shares++ * buckets));
    }
    for (uint32_t r = 0; r < shares * buckets; r++)
        held += runs[r].count;
    ck_ok(keel_engine_pieces_create((struct keel_engine *)(uintptr_t)engine, runs, shares * buckets, out));
    return held;
}

/* What keel plan knows of the model: the whole one, and the cut of it that a rank has. */
static void plan_model(const struct keel_job *of, const struct keel_data *data, struct keel_device *device,
                       struct keel_kernels *kernels, const struct keel_engine *cut,
                       struct keel_plan_model *out)
{
    struct keel_engine *whole;
    struct keel_graph *graph;
    ck_ok(keel_trainer_build_engine(
        of, data, (struct keel_engine_config){.device = device, .kernels = kernels, .plan_only = true},
        &whole));
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_model_build(graph, of, data));
    ck_ok(keel_plan_model_make(of, graph, whole, out));
    keel_plan_model_cut(out, 1, cut);
    keel_graph_destroy(graph);
    keel_engine_destroy(whole);
}

static uint64_t apart(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* What the device counts is what the engine planned, and keel plan says: 16 bytes of each element that is
 * held, windows, activations, accumulators; and what is left over, which is small. */
static const struct {
    uint32_t positions, tensor, holders, group;
} layouts[] = {{2, 1, 1, 2}, {3, 1, 1, 3}, {4, 1, 1, 4}, {2, 1, 2, 2}, {3, 1, 2, 3},
               {4, 1, 2, 4}, {4, 1, 1, 2}, {2, 2, 1, 2}, {3, 2, 2, 3}, {4, 2, 1, 2}};

START_TEST(memory_of_a_rank_is_what_the_plan_says)
{
    const uint32_t ranks = layouts[_i].positions, tensor = layouts[_i].tensor, group = layouts[_i].group;
    const struct keel_owners_map owners = {.count = ranks, .group = group, .holders = layouts[_i].holders};
    const uint32_t copies = group < ranks ? ranks / group : layouts[_i].holders;
    struct keel_job large = large_job(ranks, tensor);
    struct keel_data *data;
    struct keel_device *device;
    struct keel_engine *engine;
    struct keel_engine_pieces *pieces;
    struct keel_engine_facts facts;
    struct keel_plan_model model;
    struct keel_job_plan plan;
    struct keel_plan_shares shares;
    uint64_t bytes[KEEL_BYTES_KINDS];
    rig_open_data(&large, &data);
    ck_ok(keel_device_open("host", NULL, &device));
    struct keel_kernels *kernels;
    ck_ok(keel_kernels_create(device, &kernels));
    const uint64_t before = keel_device_stats(device).live_bytes;
    ck_ok(keel_trainer_build_engine(&large, data,
                                    (struct keel_engine_config){.device = device,
                                                                .kernels = kernels,
                                                                .tensor_first = tensor - 1,
                                                                .tensor_count = tensor > 1 ? 1 : 0},
                                    &engine));
    const uint64_t held = held_by(engine, ranks - 1, &owners, &pieces);
    keel_engine_facts(engine, &facts);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes - before, facts.planned_peak_bytes);

    plan_model(&large, data, device, kernels, engine, &model);
    keel_plan_make(&model, ranks, tensor, 3, owners.holders, group, &plan);
    keel_plan_shares(&model, &plan, tensor - 1, &shares);
    const struct keel_plan_seat last = keel_plan_seat(&model, &plan, ranks * tensor - 1);
    keel_plan_seat_bytes(&model, &plan, &shares, &last, bytes);
    const uint64_t state =
        bytes[KEEL_BYTES_WEIGHTS] + bytes[KEEL_BYTES_GRADIENTS] + bytes[KEEL_BYTES_OPTIMIZER];
    const uint64_t each = 16 + 4; /* weights, gradients, two moments, an average */
    const uint64_t formula = each * facts.parameters * copies / ranks;
    ck_assert_uint_eq(bytes[KEEL_BYTES_ACTIVATIONS], facts.activation_bytes);
    ck_assert_uint_eq(bytes[KEEL_BYTES_WORKSPACE],
                      facts.accumulator_bytes + facts.window_bytes + facts.weight_window_bytes);
    const uint64_t named = state + bytes[KEEL_BYTES_ACTIVATIONS] + bytes[KEEL_BYTES_WORKSPACE];
    const uint64_t own = each * held;
    const uint64_t rest =
        facts.planned_peak_bytes - own - facts.activation_bytes - bytes[KEEL_BYTES_WORKSPACE];
    printf(
        "note: %u owners, groups of %u, %u holders, tensor %u: %llu bytes of state (20 P / n: %llu), %llu of "
        "windows of weights, %llu of windows of gradients, %llu of activations, %llu accumulators, %llu "
        "else\n",
        ranks, group, copies, tensor, (unsigned long long)own, (unsigned long long)formula,
        (unsigned long long)facts.weight_window_bytes, (unsigned long long)facts.window_bytes,
        (unsigned long long)facts.activation_bytes, (unsigned long long)facts.accumulator_bytes,
        (unsigned long long)rest);
    ck_assert_uint_le(apart(own, formula), formula / 100);
    ck_assert_uint_le(apart(state, formula), formula / 100);
    ck_assert_uint_le(apart(facts.planned_peak_bytes, named), named / 100);
    ck_assert_uint_lt(facts.weight_window_bytes * 2, keel_engine_flat_count(engine) * sizeof(float));

    keel_plan_model_fini(&model);
    keel_engine_pieces_destroy(pieces);
    keel_engine_destroy(engine);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
    keel_data_close(data);
}
END_TEST

/* ---- more ranks than shards ---------------------------------------------------------------------------- */

/* A rank without shards begins the sums and gathers of a round beside each other: of a model of many buckets
 * they are more than may be under way at once. */
START_TEST(a_rank_without_shards_waits_for_the_sums_of_many_buckets)
{
    static struct rank ranks[3];
    struct keel_job many = rank_job;
    many.layers = 24;
    many.parallel.bucket_bytes = 4096;
    for (uint32_t r = 0; r < 3; r++) {
        ranks[r].places = 1;
        open_rank_of(&ranks[r], &many, r, 3, 2, 1, KEEL_ZERO_WEIGHTS);
        begin(&ranks[r], 1);
    }
    ck_assert_uint_gt(keel_engine_bucket_count(keel_trainer_engine(ranks[0].trainer)), 64);
    open_groups(ranks, 3, 1);
    run_all(ranks, 3);
    for (uint32_t r = 1; r < 3; r++)
        ck_assert_uint_eq(ranks[r].result.digest, ranks[0].result.digest);
    close_groups(ranks, 3);
    for (uint32_t r = 0; r < 3; r++)
        close_rank(&ranks[r]);
}
END_TEST

/* All buckets are gathered far ahead, in one stripe or in two: more than may be under way, so that the first
 * are waited for when the next begin. _i: groups of two, or of all. */
START_TEST(what_is_gathered_far_ahead_waits_for_what_is_under_way)
{
    static struct rank ranks[RANKS_MAX];
    struct keel_device_collectives_facts facts;
    struct keel_job far = rank_job;
    far.layers = 24;
    far.parallel.bucket_bytes = 4096;
    far.parallel.ahead = 64;
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        ranks[r].places = 1;
        open_rank_of(&ranks[r], &far, r, RANKS_MAX, RANKS_MAX, 1, KEEL_ZERO_WEIGHTS);
        ranks[r].group_size = _i == 0 ? 2 : RANKS_MAX;
        begin(&ranks[r], 1);
    }
    open_groups(ranks, RANKS_MAX, 1);
    run_all(ranks, RANKS_MAX);
    keel_trainer_sum_facts(ranks[0].trainer, &facts);
    printf("note: %u operations under way at most\n", facts.under_way_high);
    ck_assert_uint_ge(facts.under_way_high, KEEL_GATHERS_AT_ONCE);
    const uint64_t wanted = digest_of_one(&far, RANKS_MAX, 1);
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        ck_assert_uint_eq(ranks[r].result.digest, wanted);
    close_groups(ranks, RANKS_MAX);
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        close_rank(&ranks[r]);
}
END_TEST

/* ---- rounds of thousands of ranks ---------------------------------------------------------------------- */

enum { MANY_RANKS = 32768, MANY_SHARDS = 1024 };

/* Behind the first step of a view; the last position that has shards has two. */
static void check_rounds(uint32_t rank_count)
{
    static struct keel_trainer trainer;
    static uint16_t shard_position[MANY_SHARDS];
    const struct keel_job many = {.shards = MANY_SHARDS, .microbatches = 3};
    const struct keel_trainer_step step = {
        .epoch = 4, .rank_count = rank_count, .shard_position = shard_position};
    struct keel_tape_run run = {.trainer = &trainer, .step = &step};
    uint32_t rounds = 0;
    for (uint32_t s = 0; s < MANY_SHARDS; s++)
        shard_position[s] = (uint16_t)(s < MANY_SHARDS - 1 ? s : s - 1);
    trainer = (struct keel_trainer){.job = &many, .gathered.agreed = step.epoch + 1};
    ck_ok(keel_gathered_rounds(&run, &rounds));
    ck_assert_uint_eq(rounds, 2 * many.microbatches);
}

START_TEST(ranks_without_shards_make_no_rounds)
{
    check_rounds(MANY_SHARDS);
    check_rounds(MANY_RANKS);
}
END_TEST

/* ---- staging memory ------------------------------------------------------------------------------------ */

static uint64_t staging_of(struct rank *rank, uint32_t owners)
{
    const struct keel_owners of = {.of = {.count = owners, .group = owners, .holders = 2}};
    ck_ok(keel_trainer_own(rank->trainer, &of));
    ck_ok(keel_tape_prepare_sums(rank->trainer));
    return rank->trainer->staging_max;
}

/* Ten owners, and then two of them: a share that goes to its second holder is five times as large. */
START_TEST(staging_is_as_large_as_the_shares_of_fewer_owners)
{
    static struct rank few, fewer;
    open_rank(&few, 0, 2, 2, 1, KEEL_ZERO_OPTIMIZER);
    open_rank(&fewer, 0, 2, 2, 1, KEEL_ZERO_OPTIMIZER);
    const uint64_t wanted = staging_of(&few, 2);
    ck_assert_uint_ge(wanted, keel_engine_flat_count(keel_trainer_engine(few.trainer)));
    ck_assert_uint_lt(staging_of(&fewer, 10), wanted);
    ck_assert_uint_eq(staging_of(&fewer, 2), wanted);
    close_rank(&few);
    close_rank(&fewer);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, ranks_send_what_the_formula_says_and_have_the_bits_of_one, 0,
                        sizeof shapes / sizeof shapes[0]);
    tcase_add_loop_test(tc, ranks_with_slices_send_what_the_formula_says_and_have_the_bits_of_one, 0, 2);
    tcase_add_loop_test(tc, who_has_the_sums_does_the_step_with_the_norm_of_another, 0, 3);
    tcase_add_test(tc, what_an_evaluation_left_under_way_is_begun_anew);
    tcase_add_test(tc, a_rank_without_shards_waits_for_the_sums_of_many_buckets);
    tcase_add_loop_test(tc, what_is_gathered_far_ahead_waits_for_what_is_under_way, 0, 2);
    tcase_add_test(tc, ranks_without_shards_make_no_rounds);
    tcase_add_test(tc, staging_is_as_large_as_the_shares_of_fewer_owners);
    tcase_add_loop_test(tc, memory_of_a_rank_is_what_the_plan_says, 0, sizeof layouts / sizeof layouts[0]);
}

KEEL_TEST_MAIN("gathered_weights", cases, 300)
