/* compressed_test.c - lossy all-reduces among real processes: each rank's bits against a plain model of all
 * ranks, the identity of error feedback, bytes on the wire by formula, disagreement, loss. */
#include "compressed_model.h"
#include "message.h"
#include "ranks.h"

enum { FLOATS_MAX = 5003, N_MAX = 5 };

static const uint16_t one_shard[] = {0};

static struct keel_compressed *compressed_new(struct rank *me, enum keel_compressed_format format,
                                              enum keel_reduction reduction, uint64_t count)
{
    struct keel_compressed *compressed = NULL;
    struct keel_compressed_config config = {.rank = me->rank,
                                            .rank_count = me->rank_count,
                                            .format = format,
                                            .reduction = reduction,
                                            .count = count,
                                            .keep = format == KEEL_COMPRESSED_TOP_K ? (count + 9) / 10 : 0};
    rank_ok(me, keel_compressed_create(&config, &compressed));
    return compressed;
}

static bool same_bits(const float *a, const float *b, uint64_t count)
{
    return count == 0 || memcmp(a, b, count * sizeof *a) == 0;
}

/* ---- the model: all ranks at once ---------------------------------------------------------------------- */

struct model {
    enum keel_compressed_format format;
    enum keel_reduction reduction;
    uint32_t ranks;
    uint64_t count;
    float given[N_MAX][FLOATS_MAX], kept[N_MAX][FLOATS_MAX], sum_kept[FLOATS_MAX], result[FLOATS_MAX];
};
static struct model model;

/* The one of largest magnitude that is not taken yet, lowest index first; NaN above all. */
static uint64_t largest(const float *values, const bool *taken, uint64_t count)
{
    uint64_t best = count;
    uint32_t best_size = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t size;
        memcpy(&size, &values[i], sizeof size);
        size &= 0x7fffffff;
        if (!taken[i] && (best == count || size > best_size)) {
            best = i;
            best_size = size;
        }
    }
    return best;
}

static void model_top(const float *given, float *kept, float *sent)
{
    static float values[FLOATS_MAX];
    static bool taken[FLOATS_MAX];
    for (uint64_t i = 0; i < model.count; i++) {
        values[i] = given[i] + kept[i];
        taken[i] = false;
        sent[i] = 0;
    }
    for (uint64_t k = 0; k < (model.count + 9) / 10; k++) {
        uint64_t i = largest(values, taken, model.count);
        taken[i] = true;
        sent[i] = values[i];
    }
    for (uint64_t i = 0; i < model.count; i++)
        if (isfinite(values[i]))
            kept[i] = taken[i] ? 0 : values[i];
}

static void model_step(void)
{
    static float sent[FLOATS_MAX], next[FLOATS_MAX], sum[FLOATS_MAX];
    memset(sum, 0, sizeof sum);
    for (uint32_t rank = 0; rank < model.ranks; rank++) {
        if (model.format == KEEL_COMPRESSED_TOP_K) {
            model_top(model.given[rank], model.kept[rank], sent);
        } else {
            compressed_model_code(model.format, model.count, model.given[rank], model.kept[rank], sent, next);
            memcpy(model.kept[rank], next, sizeof next);
        }
        for (uint64_t i = 0; i < model.count; i++)
            sum[i] = rank == 0 && model.format != KEEL_COMPRESSED_TOP_K ? sent[i] : sum[i] + sent[i];
    }
    for (uint64_t i = 0; i < model.count; i++) {
        if (model.reduction == KEEL_AVERAGE)
            sum[i] /= (float)model.ranks;
        model.result[i] = isnan(sum[i]) ? compressed_nan() : sum[i];
    }
    if (model.format == KEEL_COMPRESSED_TOP_K)
        return;
    compressed_model_code(model.format, model.count, sum, model.sum_kept, model.result, next);
    memcpy(model.sum_kept, next, sizeof next);
}

static void model_start(enum keel_compressed_format format, enum keel_reduction reduction, uint32_t ranks,
                        uint64_t count)
{
    memset(&model, 0, sizeof model);
    model.format = format;
    model.reduction = reduction;
    model.ranks = ranks;
    model.count = count;
}

static void model_give(uint64_t seed)
{
    for (uint32_t rank = 0; rank < model.ranks; rank++)
        for (uint64_t i = 0; i < model.count; i++)
            model.given[rank][i] = compressed_value(seed * 100 + rank, i);
}

/* The rank's own floats; then those of its slice, wherever that begins: all of them in turn, over the ranks.
 */
static void check_kept(struct rank *me, struct keel_compressed *compressed)
{
    uint64_t kept_count, blocks = (model.count + 255) / 256;
    const float *kept = keel_compressed_residual(compressed, &kept_count);
    uint64_t first = blocks * me->rank / me->rank_count * 256;
    rank_check(me, same_bits(kept, model.kept[me->rank], model.count));
    rank_check(me, first + kept_count - model.count <= model.count || kept_count == model.count);
    rank_check(me, same_bits(kept + model.count, model.sum_kept + first, kept_count - model.count));
}

static void model_run(struct rank *me, struct keel_compressed *compressed, struct keel_group *group,
                      uint64_t sequence)
{
    static float result[FLOATS_MAX + 1];
    result[model.count] = 77.0f;
    model_step();
    rank_ok(me,
            keel_compressed_run(compressed, group, sequence, model.given[me->rank], result, in_seconds(20)));
    rank_check(me, same_bits(result, model.result, model.count) && result[model.count] == 77.0f);
    check_kept(me, compressed);
}

/* ---- against the model --------------------------------------------------------------------------------- */

static int model_body(struct rank *me)
{
    const uint64_t counts[] = {0, 1, 255, 257, 1000, FLOATS_MAX};
    uint64_t sequence = 1;
    enum keel_compressed_format format = (enum keel_compressed_format)me->seed;
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    for (uint32_t k = 0; k < 12; k++) {
        enum keel_reduction reduction = k % 2 == 0 ? KEEL_SUM : KEEL_AVERAGE;
        struct keel_compressed *compressed = compressed_new(me, format, reduction, counts[k / 2]);
        model_start(format, reduction, me->rank_count, counts[k / 2]);
        for (uint32_t step = 0; step < 3; step++, sequence += 2) {
            model_give(step);
            model_run(me, compressed, group, sequence);
        }
        keel_compressed_free(compressed);
    }
    keel_group_close(group);
    return 0;
}

START_TEST(every_rank_has_the_models_bits_and_keeps_what_it_keeps)
{
    struct ranks ranks;
    ranks_start(&ranks, (uint32_t)_i % N_MAX + 1, (uint64_t)_i / N_MAX, NULL, model_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* One step with NaN and infinities from different ranks, then one without. */
static int nan_body(struct rank *me)
{
    enum keel_compressed_format format = (enum keel_compressed_format)me->seed;
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_compressed *compressed = compressed_new(me, format, KEEL_SUM, 2000);
    model_start(format, KEEL_SUM, me->rank_count, 2000);
    for (uint32_t step = 0; step < 3; step++) {
        model_give(step);
        if (step == 1) {
            model.given[0][3] = NAN;
            model.given[1][700] = INFINITY;
            model.given[2][1999] = -INFINITY;
        }
        model_run(me, compressed, group, 1 + 2 * step);
        rank_check(me, isnan(model.result[3]) == (step == 1));
        rank_check(me, isfinite(model.result[700]) == (step != 1));
        rank_check(me, isfinite(model.result[1999]) == (step != 1));
    }
    for (uint32_t i = 0; i < 2000; i++)
        rank_check(me, isfinite(model.kept[me->rank][i]) && isfinite(model.sum_kept[i]));
    keel_compressed_free(compressed);
    keel_group_close(group);
    return 0;
}

START_TEST(nan_and_infinity_reach_all_ranks_and_stay_in_no_state)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, (uint64_t)_i, NULL, nan_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- nothing drains away ------------------------------------------------------------------------------- */

enum { STEPS = 40, FED = 1500, LARGEST = 4000 };

static float whole_number(uint32_t rank, uint32_t step, uint64_t index)
{
    return (float)((int)(compressed_mix(step * 64 + rank, index) % (2 * LARGEST + 1)) - LARGEST);
}

/* What all ranks still hold, for each float of the sum. */
static void total_kept(struct rank *me, struct keel_group *group, struct keel_compressed *compressed,
                       double *total)
{
    static float all[N_MAX][FED];
    uint64_t kept_count;
    struct keel_operation *operation = NULL;
    keel_compressed_fold(compressed);
    const float *kept = keel_compressed_residual(compressed, &kept_count);
    rank_ok(me, all_gather_begin(group, 1000, kept, FED * sizeof *kept, all, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    for (uint32_t rank = 0; rank < me->rank_count; rank++)
        for (uint64_t i = 0; i < FED; i++)
            total[i] += (double)all[rank][i];
    for (uint64_t i = FED; i < kept_count; i++)
        rank_check(me, kept[i] == 0);
}

/* Whole numbers (and quarters, of the averages over four): where the format has digits and no scale, no
 * addition rounds and the identity holds exactly. With a scale, each of the 4 n additions of a step rounds
 * once, numbers below 2 n LARGEST. */
static int identity_body(struct rank *me)
{
    static float part[FED], result[FED];
    static double given[FED], delivered[FED], left[FED];
    enum keel_compressed_format format = (enum keel_compressed_format)(me->seed / 2);
    bool averages = me->seed % 2 == 1;
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_compressed *compressed = compressed_new(me, format, averages ? KEEL_AVERAGE : KEEL_SUM, FED);
    double n = me->rank_count, times = averages ? n : 1;
    double bound = format == KEEL_COMPRESSED_I8 ? STEPS * 4 * n * (2 * n * LARGEST) * 0x1p-24 : 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint64_t i = 0; i < FED; i++) {
            part[i] = whole_number(me->rank, step, i);
            for (uint32_t rank = 0; rank < me->rank_count; rank++)
                given[i] += (double)whole_number(rank, step, i);
        }
        rank_ok(me, keel_compressed_run(compressed, group, 1 + 2 * step, part, result, in_seconds(20)));
        for (uint64_t i = 0; i < FED; i++)
            delivered[i] += times * (double)result[i];
    }
    total_kept(me, group, compressed, left);
    double behind = 0;
    for (uint64_t i = 0; i < FED; i++) {
        rank_check(me, fabs(delivered[i] + left[i] - given[i]) <= bound);
        behind = fmax(behind, fabs(delivered[i] - given[i]));
    }
    rank_check(me, behind > bound);   /* the format did lose something on the way */
    if (format == KEEL_COMPRESSED_I8) /* half a step of each rank, and half a step of the sum */
        rank_check(me, behind <= 2 * n * (LARGEST * 1.02 / 127 / 2));
    keel_compressed_free(compressed);
    keel_group_close(group);
    return 0;
}

START_TEST(all_that_was_delivered_and_all_that_is_kept_is_all_that_was_given)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, (uint64_t)_i, NULL, identity_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* Two ranks give a million once, then nothing: it comes in portions of the largest half. */
static int large_body(struct rank *me)
{
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_compressed *compressed = compressed_new(me, KEEL_COMPRESSED_F16, KEEL_SUM, 1);
    double delivered = 0;
    for (uint32_t step = 0; step < 40; step++) {
        float part = step == 0 ? 1e6f : 0, result = 0;
        rank_ok(me, keel_compressed_run(compressed, group, 1 + 2 * step, &part, &result, in_seconds(20)));
        rank_check(me, step > 0 || result == 65504.0f);
        delivered += (double)result;
    }
    rank_check(me, delivered == 2e6);
    keel_compressed_free(compressed);
    keel_group_close(group);
    return 0;
}

START_TEST(what_a_half_cannot_hold_comes_in_portions)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, large_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- bytes --------------------------------------------------------------------------------------------- */

struct sent {
    uint64_t bytes, messages;
};

static struct sent sent_by_all(struct rank *me, struct keel_group *group,
                               const struct keel_compressed *compressed)
{
    struct keel_compressed_stats stats;
    struct sent mine, all[N_MAX], total = {0, 0};
    struct keel_operation *operation = NULL;
    keel_compressed_stats(compressed, &stats);
    rank_check(me, stats.calls == 1);
    mine = (struct sent){stats.wire_bytes, stats.wire_messages};
    rank_ok(me, all_gather_begin(group, 100, &mine, sizeof mine, all, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    for (uint32_t rank = 0; rank < me->rank_count; rank++) {
        total.bytes += all[rank].bytes;
        total.messages += all[rank].messages;
    }
    return total;
}

/* Three ranks: whatever the algorithm, each meets both others in each collective and sends them one
 * signature. */
static int bytes_body(struct rank *me)
{
    static float part[200003], result[200003];
    enum keel_compressed_format format = (enum keel_compressed_format)me->seed;
    struct keel_compressed_config config = {.rank_count = me->rank_count, .format = format, .count = 200003};
    uint64_t firsts = me->rank_count * (me->rank_count - 1) * (format == KEEL_COMPRESSED_TOP_K ? 1 : 2);
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_compressed *compressed = compressed_new(me, format, KEEL_SUM, config.count);
    for (uint64_t i = 0; i < config.count; i++)
        part[i] = compressed_value(me->rank, i);
    rank_ok(me, barrier(group, 50, in_seconds(20)));
    keel_sleep_until_ns(keel_deadline_after_ns(20 * KEEL_NS_PER_MS)); /* what was sent is counted */
    rank_ok(me, keel_compressed_run(compressed, group, 1, part, result, in_seconds(20)));
    struct sent sent = sent_by_all(me, group, compressed);
    config.keep = format == KEEL_COMPRESSED_TOP_K ? (config.count + 9) / 10 : 0;
    uint64_t payload = sent.bytes - sent.messages * header_bytes();
    rank_check(me, payload == keel_compressed_wire_bytes(&config) + firsts * sizeof(struct keel_signature));
    rank_ok(me, barrier(group, 51, in_seconds(20)));
    keel_compressed_free(compressed);
    keel_group_close(group);
    return 0;
}

START_TEST(bytes_on_the_wire_are_those_of_the_formula)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, (uint64_t)_i, NULL, bytes_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- bad input ----------------------------------------------------------------------------------------- */

START_TEST(bad_configs_are_named)
{
    struct keel_compressed *compressed = NULL;
    const struct keel_compressed_config good = {.rank_count = 2, .format = KEEL_COMPRESSED_F16, .count = 10};
    struct keel_compressed_config bad = good;
    bad.rank = 2;
    ck_status(keel_compressed_create(&bad, &compressed), KEEL_INVALID);
    bad = good;
    bad.rank_count = 0;
    ck_status(keel_compressed_create(&bad, &compressed), KEEL_INVALID);
    bad = good;
    bad.rank_count = KEEL_GROUP_RANKS_MAX + 1;
    ck_status(keel_compressed_create(&bad, &compressed), KEEL_INVALID);
    bad = good;
    bad.format = KEEL_COMPRESSED_FORMAT_COUNT;
    ck_status(keel_compressed_create(&bad, &compressed), KEEL_INVALID);
    bad = good;
    bad.reduction = KEEL_MAX;
    ck_status(keel_compressed_create(&bad, &compressed), KEEL_INVALID);
    bad = good;
    bad.keep = 1;
    ck_status(keel_compressed_create(&bad, &compressed), KEEL_INVALID);
    bad = good;
    bad.format = KEEL_COMPRESSED_TOP_K;
    ck_status(keel_compressed_create(&bad, &compressed), KEEL_INVALID);
    bad.keep = 11;
    ck_status(keel_compressed_create(&bad, &compressed), KEEL_INVALID);
    bad = good;
    bad.count = UINT64_C(1) << 32;
    ck_status(keel_compressed_create(&bad, &compressed), KEEL_LIMIT);
    ck_assert_ptr_null(compressed);
    keel_compressed_free(NULL);
}
END_TEST

static int calls_body(struct rank *me)
{
    float part[20] = {0}, result[20] = {0};
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_compressed *compressed = compressed_new(me, KEEL_COMPRESSED_I8, KEEL_SUM, 10), *other = NULL;
    struct keel_compressed_config config = {.rank_count = me->rank_count + 1, .count = 10};
    rank_ok(me, keel_compressed_create(&config, &other));
    rank_check(me, keel_compressed_begin(other, group, 1, part, result) == KEEL_INVALID);
    rank_check(me, keel_compressed_wait(compressed, in_seconds(1)) == KEEL_INVALID);
    rank_check(me, keel_compressed_begin(compressed, group, 1, NULL, result) == KEEL_INVALID);
    rank_check(me, keel_compressed_begin(compressed, group, 1, part, NULL) == KEEL_INVALID);
    rank_check(me, keel_compressed_begin(compressed, group, 1, part, part + 9) == KEEL_INVALID);
    rank_check(me, !keel_compressed_undo(compressed));
    rank_ok(me, keel_compressed_begin(compressed, group, 1, part, part + 10));
    rank_check(me, keel_compressed_begin(compressed, group, 3, part, result) == KEEL_INVALID);
    rank_ok(me, keel_compressed_wait(compressed, in_seconds(20)));
    keel_compressed_free(other);
    keel_compressed_free(compressed);
    keel_group_close(group);
    return 0;
}

START_TEST(bad_calls_are_refused_and_begin_nothing)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, calls_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- disagreement, loss, undoing ----------------------------------------------------------------------- */

/* A successful step, so that something is kept; a copy of it. */
static float *first_step(struct rank *me, struct keel_compressed *compressed, struct keel_group *group,
                         const float *part, float *result)
{
    uint64_t kept_count;
    rank_ok(me, keel_compressed_run(compressed, group, 1, part, result, in_seconds(20)));
    const float *kept = keel_compressed_residual(compressed, &kept_count);
    float *copy = malloc(kept_count * sizeof *copy);
    memcpy(copy, kept, kept_count * sizeof *copy);
    return copy;
}

static bool keeps(struct keel_compressed *compressed, const float *wanted)
{
    uint64_t kept_count;
    const float *kept = keel_compressed_residual(compressed, &kept_count);
    return same_bits(kept, wanted, kept_count);
}

/* In the second step rank 1's object is another: same sizes of messages, or not. */
static int mismatch_body(struct rank *me)
{
    static const struct {
        enum keel_compressed_format all, odd;
        enum keel_reduction odd_reduction;
        uint64_t odd_count;
    } trials[] = {{KEEL_COMPRESSED_F16, KEEL_COMPRESSED_BF16, KEEL_SUM, 3000},
                  {KEEL_COMPRESSED_F16, KEEL_COMPRESSED_I8, KEEL_SUM, 3000},
                  {KEEL_COMPRESSED_I8, KEEL_COMPRESSED_I8, KEEL_AVERAGE, 3000},
                  {KEEL_COMPRESSED_BF16, KEEL_COMPRESSED_BF16, KEEL_SUM, 2000},
                  {KEEL_COMPRESSED_TOP_K, KEEL_COMPRESSED_TOP_K, KEEL_AVERAGE, 3000},
                  {KEEL_COMPRESSED_TOP_K, KEEL_COMPRESSED_TOP_K, KEEL_SUM, 2999},
                  {KEEL_COMPRESSED_TOP_K, KEEL_COMPRESSED_TOP_K, KEEL_SUM, 2000},
                  {KEEL_COMPRESSED_F16, KEEL_COMPRESSED_TOP_K, KEEL_SUM, 3000}};
    static float part[3000], result[3000];
    enum keel_compressed_format format = trials[me->seed].all;
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_compressed *compressed = compressed_new(me, format, KEEL_SUM, 3000), *odd;
    for (uint64_t i = 0; i < 3000; i++)
        part[i] = compressed_value(me->rank, i);
    float *before = first_step(me, compressed, group, part, result);
    odd =
        compressed_new(me, trials[me->seed].odd, trials[me->seed].odd_reduction, trials[me->seed].odd_count);
    struct keel_compressed *mine = me->rank == 1 ? odd : compressed;
    rank_check(me, keel_compressed_run(mine, group, 3, part, result, in_seconds(10)) == KEEL_MISMATCH);
    rank_check(me, keeps(compressed, before));
    rank_say(me, 'h');
    rank_hear(me);
    keel_group_close(group);
    keel_compressed_free(odd);
    keel_compressed_free(compressed);
    free(before);
    return 0;
}

START_TEST(ranks_that_disagree_all_hear_mismatch_and_keep_what_they_kept)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, (uint64_t)_i, NULL, mismatch_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

enum { VICTIM = 1 };

/* The victim never begins the second step (seed even), or does not come to its second half (odd; top-k has
 * none). */
static int lost_body(struct rank *me)
{
    static float part[FLOATS_MAX], result[FLOATS_MAX];
    enum keel_compressed_format format = (enum keel_compressed_format)(me->seed / 2);
    const uint32_t survivors[] = {0, 2};
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_compressed *compressed = compressed_new(me, format, KEEL_SUM, FLOATS_MAX), *next = NULL;
    for (uint64_t i = 0; i < FLOATS_MAX; i++)
        part[i] = compressed_value(me->rank, i);
    float *before = first_step(me, compressed, group, part, result);
    if (me->rank != VICTIM || me->seed % 2 == 1)
        rank_ok(me, keel_compressed_begin(compressed, group, 3, part, result));
    rank_say(me, 'r');
    if (me->rank == VICTIM)
        rank_hear(me); /* never */
    rank_check(me, keel_compressed_wait(compressed, in_seconds(20)) == KEEL_PEER_LOST);
    rank_check(me, keeps(compressed, before));
    keel_group_close(group);

    /* the survivors go on with what they kept */
    struct keel_compressed_config config = {
        .rank = me->rank / 2, .rank_count = 2, .format = format, .count = FLOATS_MAX};
    config.keep = format == KEEL_COMPRESSED_TOP_K ? 7 : 0;
    rank_ok(me, keel_compressed_create(&config, &next));
    uint64_t count;
    keel_compressed_fold(compressed);
    memcpy(keel_compressed_residual(next, &count), keel_compressed_residual(compressed, &count), sizeof part);
    group = rank_group_of(me, 2, survivors, 2, 1, one_shard);
    rank_ok(me, keel_compressed_run(next, group, 3, part, result, in_seconds(20)));
    keel_group_close(group);
    keel_compressed_free(next);
    keel_compressed_free(compressed);
    free(before);
    return 0;
}

START_TEST(a_lost_rank_is_heard_of_and_what_is_kept_is_as_before)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, (uint64_t)_i, NULL, lost_body);
    for (uint32_t rank = 0; rank < 3; rank++)
        ranks_listen(&ranks, rank);
    keel_sleep_until_ns(keel_deadline_after_ns(100 * KEEL_NS_PER_MS));
    kill(ranks.pids[VICTIM], SIGKILL);
    ranks_end(&ranks, VICTIM);
}
END_TEST

static int undo_body(struct rank *me)
{
    static float part[1000], first[1000], again[1000];
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_compressed *compressed =
        compressed_new(me, (enum keel_compressed_format)me->seed, KEEL_AVERAGE, 1000);
    for (uint64_t i = 0; i < 1000; i++)
        part[i] = compressed_value(me->rank, i);
    float *before = first_step(me, compressed, group, part, first);
    rank_ok(me, keel_compressed_run(compressed, group, 3, part, first, in_seconds(20)));
    rank_check(me, !keeps(compressed, before));
    rank_check(me, keel_compressed_undo(compressed) && keeps(compressed, before) &&
                       !keel_compressed_undo(compressed));
    rank_ok(me, keel_compressed_run(compressed, group, 5, part, again, in_seconds(20)));
    rank_check(me, same_bits(first, again, 1000));
    keel_compressed_free(compressed);
    keel_group_close(group);
    free(before);
    return 0;
}

START_TEST(a_step_that_is_undone_gives_the_same_bits_again)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, (uint64_t)_i, NULL, undo_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* Two tensors at once. */
static int overlap_body(struct rank *me)
{
    static float part[2][30011], result[2][30011], alone[2][30011];
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_compressed *compressed[2], *fresh[2];
    for (uint32_t k = 0; k < 2; k++) {
        compressed[k] =
            compressed_new(me, k == 0 ? KEEL_COMPRESSED_I8 : KEEL_COMPRESSED_TOP_K, KEEL_SUM, 30011);
        fresh[k] = compressed_new(me, k == 0 ? KEEL_COMPRESSED_I8 : KEEL_COMPRESSED_TOP_K, KEEL_SUM, 30011);
        for (uint64_t i = 0; i < 30011; i++)
            part[k][i] = compressed_value(me->rank + 10 * k, i);
    }
    for (uint32_t k = 0; k < 2; k++)
        rank_ok(me, keel_compressed_begin(compressed[k], group, 1 + 2 * k, part[k], result[k]));
    for (uint32_t k = 0; k < 2; k++)
        rank_ok(me, keel_compressed_wait(compressed[k], in_seconds(20)));
    for (uint32_t k = 0; k < 2; k++) {
        rank_ok(me, keel_compressed_run(fresh[k], group, 11 + 2 * k, part[k], alone[k], in_seconds(20)));
        rank_check(me, same_bits(result[k], alone[k], 30011));
        keel_compressed_free(compressed[k]);
        keel_compressed_free(fresh[k]);
    }
    keel_group_close(group);
    return 0;
}

START_TEST(two_tensors_under_way_at_once_come_out_as_alone)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, 0, NULL, overlap_body);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, every_rank_has_the_models_bits_and_keeps_what_it_keeps, 0,
                        N_MAX * KEEL_COMPRESSED_FORMAT_COUNT);
    tcase_add_loop_test(tc, nan_and_infinity_reach_all_ranks_and_stay_in_no_state, 0,
                        KEEL_COMPRESSED_FORMAT_COUNT);
    tcase_add_loop_test(tc, all_that_was_delivered_and_all_that_is_kept_is_all_that_was_given, 0,
                        2 * KEEL_COMPRESSED_FORMAT_COUNT);
    tcase_add_test(tc, what_a_half_cannot_hold_comes_in_portions);
    tcase_add_loop_test(tc, bytes_on_the_wire_are_those_of_the_formula, 0, KEEL_COMPRESSED_FORMAT_COUNT);
    tcase_add_test(tc, bad_configs_are_named);
    tcase_add_test(tc, bad_calls_are_refused_and_begin_nothing);
    tcase_add_loop_test(tc, ranks_that_disagree_all_hear_mismatch_and_keep_what_they_kept, 0, 8);
    tcase_add_loop_test(tc, a_lost_rank_is_heard_of_and_what_is_kept_is_as_before, 0,
                        2 * KEEL_COMPRESSED_TOP_K + 1);
    tcase_add_loop_test(tc, a_step_that_is_undone_gives_the_same_bits_again, 0, KEEL_COMPRESSED_FORMAT_COUNT);
    tcase_add_test(tc, two_tensors_under_way_at_once_come_out_as_alone);
}
KEEL_TEST_MAIN("transport compressed all-reduce", cases, 60)
