/* compressed_test.c - blocks of numbers against the plainest model of them, and their sums: the same bits by
 * every algorithm, on any number of ranks, in any placement of the shards. */
#include "harness.h"

#include "ranks.h"
#include <keel/transport_compressed.h>
#include <math.h>

enum { FLOATS = 4321, SHARDS = 7, KINDS = 3 };

static const struct keel_compression kinds[KINDS] = {
    {KEEL_ELEMENT_I8_BLOCK, KEEL_I8_BLOCK_FLOATS}, {KEEL_ELEMENT_TOP_K, 100}, {KEEL_ELEMENT_TOP_K, 1000}};

static uint64_t mix(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * UINT64_C(0x9e3779b97f4a7c15) + index * UINT64_C(0xbf58476d1ce4e5b9) + 1;
    z = (z ^ (z >> 29)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 32);
}

/* Any finite float, or one of some orders of magnitude around 1. */
static float draw(bool any, uint64_t seed, uint64_t index)
{
    const uint64_t z = mix(seed, index);
    uint32_t bits = (uint32_t)z;
    float value;
    if (!any)
        return ldexpf((float)(int32_t)(z & 0xffffff) - 0x1p23f, (int)(z >> 40) % 12 - 28);
    if ((bits & 0x7f800000) == 0x7f800000)
        bits ^= 0x40000000;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void fill(float *out, bool any, uint64_t seed)
{
    for (uint64_t i = 0; i < FLOATS; i++)
        out[i] = draw(any, seed, i);
}

/* ---- the model: what a block becomes, as floats -------------------------------------------------------- */

static void model_i8(const float *in, uint64_t count, float *out)
{
    float largest = 0, scale;
    for (uint64_t i = 0; i < count; i++)
        largest = fabsf(in[i]) > largest ? fabsf(in[i]) : largest;
    scale = largest / 127.0f;
    if (isinf(scale * 127.0f))
        scale = nextafterf(scale, 0);
    for (uint64_t i = 0; i < count; i++)
        out[i] = scale > 0 ? scale * (rintf(fminf(fmaxf(in[i] / scale, -127.0f), 127.0f)) + 0.0f) : 0.0f;
}

static void model_top(const float *in, uint64_t count, float *out)
{
    bool taken[KEEL_TOP_K_BLOCK_MAX] = {false};
    for (uint64_t i = 0; i < count; i++)
        out[i] = 0;
    for (uint32_t k = 0; k < KEEL_TOP_K_KEPT; k++) {
        uint64_t best = count;
        for (uint64_t i = 0; i < count; i++)
            if (!taken[i] && in[i] != 0 && (best == count || fabsf(in[i]) > fabsf(in[best])))
                best = i;
        if (best == count)
            return;
        taken[best] = true;
        out[best] = in[best];
    }
}

static void model(const struct keel_compression *how, const float *in, float *out)
{
    for (uint64_t at = 0; at < FLOATS; at += how->block) {
        const uint64_t count = FLOATS - at < how->block ? FLOATS - at : how->block;
        if (how->element == KEEL_ELEMENT_I8_BLOCK)
            model_i8(in + at, count, out + at);
        else
            model_top(in + at, count, out + at);
    }
}

static uint64_t bytes_of(const struct keel_compression *how)
{
    return keel_compressed_count(how, FLOATS) * KEEL_COMPRESSED_BYTES;
}

static uint8_t coded[FLOATS * 8];

static void through(const struct keel_compression *how, const float *in, float *out)
{
    keel_compressed_encode(how, in, FLOATS, coded);
    ck_ok(keel_compressed_decode(how, coded, FLOATS, out));
}

START_TEST(a_vector_becomes_what_the_model_says_to_the_bit)
{
    static float in[FLOATS], out[FLOATS], wanted[FLOATS];
    for (uint64_t seed = 0; seed < 20; seed++) {
        fill(in, seed % 2 == 0, seed);
        for (uint64_t i = 0; i < FLOATS && seed > 15; i++) /* few magnitudes: many are equal */
            in[i] = (float)((int)(mix(seed, i) % 7) - 3);
        through(&kinds[_i], in, out);
        model(&kinds[_i], in, wanted);
        for (uint64_t i = 0; i < FLOATS; i++)
            ck_assert_msg(memcmp(&out[i], &wanted[i], sizeof *out) == 0 || (out[i] == 0 && wanted[i] == 0),
                          "seed %u, float %u: %a, not %a", (unsigned)seed, (unsigned)i, (double)out[i],
                          (double)wanted[i]);
    }
}
END_TEST

START_TEST(eight_bits_are_within_half_a_step)
{
    static float in[FLOATS], out[FLOATS];
    fill(in, false, 9);
    through(&kinds[0], in, out);
    for (uint64_t at = 0; at < FLOATS; at += KEEL_I8_BLOCK_FLOATS) {
        double largest = 0;
        for (uint64_t i = at; i < FLOATS && i < at + KEEL_I8_BLOCK_FLOATS; i++)
            largest = fmax(largest, fabs((double)in[i]));
        for (uint64_t i = at; i < FLOATS && i < at + KEEL_I8_BLOCK_FLOATS; i++)
            ck_assert(fabs((double)in[i] - (double)out[i]) <= largest / 127 / 2 * (1 + 0x1p-20));
    }
}
END_TEST

START_TEST(what_is_not_finite_is_found_in_the_result_and_stays_in_its_block)
{
    static float in[FLOATS], out[FLOATS];
    static uint8_t other[sizeof coded];
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t k = 0; k < 3; k++) {
        fill(in, false, k);
        keel_compressed_encode(&kinds[_i], in, FLOATS, other);
        in[5] = bad[k];
        through(&kinds[_i], in, out);
        ck_assert(!isfinite(out[5]));
        keel_compressed_add(kinds[_i].element, other, coded, keel_compressed_count(&kinds[_i], FLOATS));
        ck_ok(keel_compressed_decode(&kinds[_i], other, FLOATS, out));
        ck_assert(!isfinite(out[5]));
        for (uint64_t i = kinds[_i].block; i < FLOATS; i++)
            ck_assert(isfinite(out[i]));
    }
}
END_TEST

START_TEST(a_sum_is_that_of_the_floats_made_an_element_again_whichever_is_left)
{
    static float in[2][FLOATS], out[2][FLOATS], sum[FLOATS], wanted[FLOATS];
    static uint8_t left[sizeof coded], right[sizeof coded], turned[sizeof coded];
    const struct keel_compression *how = &kinds[_i];
    for (uint64_t seed = 0; seed < 10; seed++) {
        fill(in[0], false, 2 * seed);
        fill(in[1], false, seed % 3 == 0 ? 2 * seed : 2 * seed + 1); /* equal places, too */
        through(how, in[0], out[0]);
        memcpy(left, coded, sizeof left);
        through(how, in[1], out[1]);
        memcpy(right, coded, sizeof right);
        memcpy(turned, right, sizeof turned);
        for (uint64_t i = 0; i < FLOATS; i++)
            sum[i] = out[0][i] + out[1][i];
        model(how, sum, wanted);
        keel_compressed_add(how->element, turned, left, keel_compressed_count(how, FLOATS));
        keel_compressed_add(how->element, left, right, keel_compressed_count(how, FLOATS));
        ck_ok(keel_compressed_decode(how, left, FLOATS, out[0]));
        for (uint64_t i = 0; i < FLOATS; i++)
            ck_assert_float_eq(out[0][i], wanted[i]);
        ck_assert(memcmp(left, turned, bytes_of(how)) == 0);
    }
}
END_TEST

START_TEST(a_place_outside_its_block_is_damage)
{
    static float in[FLOATS], out[FLOATS];
    uint8_t element[KEEL_COMPRESSED_BYTES];
    fill(in, false, 1);
    keel_compressed_encode(&kinds[1], in, 100, element);
    ck_ok(keel_compressed_decode(&kinds[1], element, 100, out));
    ck_status(keel_compressed_decode(&kinds[1], element, 50, out), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "outside its block of 100 floats"));
}
END_TEST

/* ---- sums over ranks ----------------------------------------------------------------------------------- */

static const struct keel_compression *kind; /* of the test */

static void shard_values(uint32_t shard, float *out)
{
    for (uint64_t i = 0; i < FLOATS; i++)
        out[i] = draw(false, 1000 + shard, i);
}

/* The node of the tree, each shard made elements by itself. */
static void node_value(uint32_t level, uint32_t index, uint8_t *out)
{
    if (level == 0) {
        static float values[FLOATS];
        shard_values(index, values);
        keel_compressed_encode(kind, values, FLOATS, out);
        return;
    }
    node_value(level - 1, 2 * index, out);
    if (((2 * index + 1) << (level - 1)) >= SHARDS)
        return;
    uint8_t *right = malloc(sizeof coded);
    node_value(level - 1, 2 * index + 1, right);
    keel_compressed_add(kind->element, out, right, keel_compressed_count(kind, FLOATS));
    free(right);
}

static void place(uint16_t *shard_rank, uint32_t ranks, uint64_t seed)
{
    for (uint32_t s = 0; s < SHARDS; s++)
        shard_rank[s] = (uint16_t)(seed == 0 ? s * ranks / SHARDS : mix(seed, s) % ranks);
}

/* By the algorithm that `sequence` says; false: it cannot do that. */
static bool run_sum(struct rank *me, struct keel_group *group, const void *const *parts, uint32_t count,
                    uint64_t sequence, const uint8_t *wanted)
{
    uint8_t *result = calloc(1, sizeof coded);
    const struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                         .sequence = sequence,
                                         .element = kind->element,
                                         .algorithm = (enum keel_algorithm)sequence,
                                         .count = keel_compressed_count(kind, FLOATS),
                                         .parts = parts,
                                         .part_count = count,
                                         .result = result};
    const enum keel_status status = keel_group_run(group, &what, in_seconds(30));
    if (status == KEEL_OK)
        rank_check(me, memcmp(result, wanted, bytes_of(kind)) == 0);
    else
        rank_check(me, status == KEEL_UNSUPPORTED);
    free(result);
    return status == KEEL_OK;
}

static int every_way(struct rank *me)
{
    static uint8_t wanted[sizeof coded], values[SHARDS][sizeof coded];
    uint16_t shard_rank[SHARDS];
    struct keel_tree_node nodes[SHARDS];
    const void *parts[SHARDS];
    uint32_t count, ways = 0;
    node_value(3, 0, wanted);
    for (uint64_t epoch = 1; epoch <= 3; epoch++) {
        place(shard_rank, me->rank_count, epoch - 1);
        rank_ok(me, keel_tree_nodes(SHARDS, shard_rank, me->rank, nodes, SHARDS, &count));
        for (uint32_t k = 0; k < count; k++) {
            node_value(nodes[k].level, nodes[k].index, values[k]);
            parts[k] = values[k];
        }
        struct keel_group *group = rank_group(me, epoch, SHARDS, shard_rank);
        for (uint32_t algorithm = 0; algorithm < KEEL_ALGORITHM_COUNT; algorithm++)
            ways += run_sum(me, group, parts, count, algorithm, wanted);
        rank_ok(me, barrier(group, 100, in_seconds(30)));
        keel_group_close(group);
    }
    rank_check(me, ways >= 6); /* AUTO and at least one more in each placement */
    return 0;
}

START_TEST(sums_have_the_same_bits_by_every_way_on_any_number_of_ranks)
{
    struct ranks ranks;
    kind = &kinds[_i / 4];
    ranks_start(&ranks, 1 + (uint32_t)_i % 4, 0, NULL, every_way);
    ranks_end(&ranks, -1);
}
END_TEST

/* What a rank that added its shards up before it made elements of them would give has other bits, so the test
 * above would notice. */
START_TEST(elements_of_a_sum_are_not_the_sum_of_elements)
{
    static float one[FLOATS], sum[FLOATS];
    static uint8_t wanted[sizeof coded];
    kind = &kinds[_i];
    node_value(1, 0, wanted);
    shard_values(0, sum);
    shard_values(1, one);
    for (uint64_t i = 0; i < FLOATS; i++)
        sum[i] += one[i];
    keel_compressed_encode(kind, sum, FLOATS, coded);
    ck_assert(memcmp(coded, wanted, bytes_of(kind)) != 0);
}
END_TEST

/* ---- misuse -------------------------------------------------------------------------------------------- */

static int only_sums(struct rank *me)
{
    static const uint16_t all_mine[] = {0};
    static uint8_t result[sizeof coded];
    const void *parts[] = {coded};
    struct keel_group *group = rank_group(me, 1, 1, all_mine);
    struct keel_operation *operation;
    struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                   .element = KEEL_ELEMENT_TOP_K,
                                   .count = 4,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = result};
    for (what.reduction = KEEL_MIN; what.reduction < KEEL_REDUCTION_COUNT; what.reduction++) {
        rank_check(me, keel_group_begin(group, &what, &operation) == KEEL_INVALID);
        rank_check(me, strstr(keel_detail(), "sums alone") != NULL);
    }
    keel_group_close(group);
    return 0;
}

START_TEST(of_elements_that_stand_for_many_there_are_only_sums)
{
    struct ranks ranks;
    ranks_start(&ranks, 1, 0, NULL, only_sums);
    ranks_end(&ranks, -1);
}
END_TEST

/* As many bytes, but of another kind. */
static int of_two_kinds(struct rank *me)
{
    static const uint16_t one_each[] = {0, 1};
    static uint8_t result[sizeof coded];
    const void *parts[] = {coded};
    struct keel_group *group = rank_group(me, 1, 2, one_each);
    const struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                         .element =
                                             me->rank == 0 ? KEEL_ELEMENT_TOP_K : KEEL_ELEMENT_I8_BLOCK,
                                         .count = 40,
                                         .parts = parts,
                                         .part_count = 1,
                                         .result = result};
    rank_check(me, keel_group_run(group, &what, in_seconds(30)) == KEEL_MISMATCH);
    rank_check(me,
               strstr(keel_detail(), "elements of i8-block") || strstr(keel_detail(), "elements of top-k"));
    keel_group_close(group);
    return 0;
}

START_TEST(ranks_that_mean_other_elements_hear_it)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, of_two_kinds);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, a_vector_becomes_what_the_model_says_to_the_bit, 0, KINDS);
    tcase_add_test(tc, eight_bits_are_within_half_a_step);
    tcase_add_loop_test(tc, what_is_not_finite_is_found_in_the_result_and_stays_in_its_block, 0, KINDS);
    tcase_add_loop_test(tc, a_sum_is_that_of_the_floats_made_an_element_again_whichever_is_left, 0, KINDS);
    tcase_add_test(tc, a_place_outside_its_block_is_damage);
    tcase_add_loop_test(tc, sums_have_the_same_bits_by_every_way_on_any_number_of_ranks, 0, 4 * KINDS);
    tcase_add_loop_test(tc, elements_of_a_sum_are_not_the_sum_of_elements, 0, KINDS);
    tcase_add_test(tc, of_elements_that_stand_for_many_there_are_only_sums);
    tcase_add_test(tc, ranks_that_mean_other_elements_hear_it);
}

KEEL_TEST_MAIN("compressed", cases, 60)
