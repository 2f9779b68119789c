/* compressed_codec_test.c - the lossy formats alone: nearest, nothing drained away, the largest found. */
#include "compressed_codec.h"
#include "compressed_model.h"
#include "harness.h"

#include <math.h>

enum { MANY = 5000 };

static float given[MANY], kept[MANY], keep[MANY], out[MANY];
static uint8_t coded[3 * MANY];

/* Any finite bits at all, or moderate values. */
static void fill(bool any, uint64_t seed)
{
    for (uint32_t i = 0; i < MANY; i++) {
        given[i] = any ? compressed_any(seed, i) : compressed_value(seed, i);
        kept[i] = any ? 0.0f : compressed_value(seed + 1, i) / 100;
    }
}

static void code_all(enum keel_compressed_format format, uint64_t count)
{
    struct keel_compressed_run run = {count, 0, count};
    keel_compressed_encode(format, run, given, kept, coded, keep);
    keel_compressed_decode(format, run, coded, false, out);
}

START_TEST(every_format_is_the_model_to_the_bit)
{
    static float model_out[MANY], model_keep[MANY];
    const uint64_t counts[] = {0, 1, 255, 256, 257, 1000, MANY};
    for (uint64_t trial = 0; trial < 28; trial++) {
        uint64_t count = counts[trial % 7];
        fill(trial % 2 == 0, trial);
        code_all((enum keel_compressed_format)_i, count);
        compressed_model_code((enum keel_compressed_format)_i, count, given, kept, model_out, model_keep);
        ck_assert(memcmp(out, model_out, count * sizeof *out) == 0);
        ck_assert(memcmp(keep, model_keep, count * sizeof *keep) == 0);
    }
}
END_TEST

START_TEST(what_is_coded_and_what_is_kept_is_what_was_there)
{
    for (uint64_t seed = 0; seed < 8; seed++) {
        fill(seed % 2 == 0, seed);
        code_all((enum keel_compressed_format)_i, MANY);
        for (uint32_t i = 0; i < MANY; i++) {
            double error = (double)out[i] + (double)keep[i] - (double)(given[i] + kept[i]);
            ck_assert_msg(fabs(error) <= fabs((double)keep[i]) * 0x1p-23, "float %u: %g lost", i, error);
        }
    }
}
END_TEST

START_TEST(a_part_of_a_vector_is_coded_as_in_the_whole)
{
    static uint8_t pieces[3 * MANY];
    static float added[MANY];
    enum keel_compressed_format format = (enum keel_compressed_format)_i;
    fill(false, 5);
    code_all(format, MANY);
    for (uint64_t first = 0; first < MANY; first += 3 * KEEL_COMPRESSED_BLOCK) {
        uint64_t left = MANY - first,
                 count = left < 3 * KEEL_COMPRESSED_BLOCK ? left : 3 * KEEL_COMPRESSED_BLOCK;
        struct keel_compressed_run run = {MANY, first, count};
        keel_compressed_encode(format, run, given + first, kept + first, pieces, keep + first);
        for (uint64_t i = 0; i < count; i++)
            added[first + i] = 1000.0f;
        keel_compressed_decode(format, run, pieces, true, added + first);
    }
    ck_assert(memcmp(pieces, coded, keel_compressed_coded_bytes(format, MANY)) == 0);
    for (uint32_t i = 0; i < MANY; i++)
        ck_assert_float_eq(added[i], 1000.0f + out[i]);
}
END_TEST

START_TEST(eight_bits_are_within_half_a_step_and_the_largest_is_exact_to_a_step)
{
    fill(false, 9);
    memset(kept, 0, sizeof kept);
    code_all(KEEL_COMPRESSED_I8, MANY);
    for (uint32_t first = 0; first < MANY; first += KEEL_COMPRESSED_BLOCK) {
        uint32_t end = first + KEEL_COMPRESSED_BLOCK < MANY ? first + KEEL_COMPRESSED_BLOCK : MANY;
        double largest = 0;
        for (uint32_t i = first; i < end; i++)
            largest = fmax(largest, fabs((double)given[i]));
        for (uint32_t i = first; i < end; i++)
            ck_assert(fabs((double)keep[i]) <= largest / 127 / 2 * (1 + 0x1p-20));
    }
}
END_TEST

START_TEST(what_is_not_finite_is_delivered_and_keeps_what_was_kept)
{
    enum keel_compressed_format format = (enum keel_compressed_format)_i;
    fill(false, 3);
    given[5] = NAN;
    given[300] = INFINITY;
    given[600] = -INFINITY;
    code_all(format, 1000);
    ck_assert(isnan(out[5]));
    ck_assert(format == KEEL_COMPRESSED_I8 ? isnan(out[300]) : isinf(out[300]));
    ck_assert(format == KEEL_COMPRESSED_I8 ? isnan(out[600]) : out[600] < 0);
    ck_assert_float_eq(keep[5], kept[5]);
    ck_assert_float_eq(keep[300], kept[300]);
    ck_assert_float_eq(keep[600], kept[600]);
    for (uint32_t i = 768; i < 1000; i++)
        ck_assert(isfinite(out[i]));
    for (uint32_t i = 0; i < 1000; i++)
        ck_assert(isfinite(keep[i]));
}
END_TEST

START_TEST(the_largest_floats_stay_finite)
{
    const float largest[] = {65504.0f, 0x1.fep127f, 0};
    for (uint32_t i = 0; i < MANY; i++) {
        given[i] = i % 2 == 0 ? 0x1.fffffep127f : -0x1.fffffep127f;
        kept[i] = 0;
    }
    code_all((enum keel_compressed_format)_i, MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        ck_assert(isfinite(out[i]) && isfinite(keep[i]));
        ck_assert((out[i] > 0) == (given[i] > 0));
        if (_i != KEEL_COMPRESSED_I8)
            ck_assert_float_eq(fabsf(out[i]), largest[_i]);
    }
}
END_TEST

/* ---- selection ----------------------------------------------------------------------------------------- */

static int by_size(const void *left, const void *right)
{
    const struct keel_compressed_pair *a = left, *b = right;
    uint32_t x, y;
    memcpy(&x, &a->value, sizeof x);
    memcpy(&y, &b->value, sizeof y);
    x &= 0x7fffffff;
    y &= 0x7fffffff;
    if (x != y)
        return x < y ? 1 : -1;
    return a->index > b->index ? 1 : -1;
}

static int by_index(const void *left, const void *right)
{
    const struct keel_compressed_pair *a = left, *b = right;
    return a->index > b->index ? 1 : -1;
}

static void select_against_a_sort(uint64_t count, uint64_t keep_count)
{
    static struct keel_compressed_pair found[MANY], sorted[MANY];
    static float wanted[MANY];
    for (uint32_t i = 0; i < count; i++) {
        sorted[i] = (struct keel_compressed_pair){i, given[i] + kept[i]};
        wanted[i] = isfinite(sorted[i].value) ? sorted[i].value : kept[i];
    }
    qsort(sorted, count, sizeof *sorted, by_size);
    qsort(sorted, keep_count, sizeof *sorted, by_index);
    for (uint32_t k = 0; k < keep_count; k++)
        if (isfinite(sorted[k].value))
            wanted[sorted[k].index] = 0;
    keel_compressed_select(given, kept, count, keep_count, found, keep);
    ck_assert(memcmp(found, sorted, keep_count * sizeof *found) == 0);
    ck_assert(memcmp(keep, wanted, count * sizeof *keep) == 0);
}

START_TEST(the_k_largest_are_those_of_a_sort_with_ties_by_index)
{
    const uint64_t counts[] = {1, 2, 100, MANY};
    for (uint64_t trial = 0; trial < 40; trial++) {
        uint64_t count = counts[trial % 4];
        fill(trial % 3 == 0, trial);
        for (uint32_t i = 0; i < MANY && trial % 3 == 1; i++) { /* many ties */
            given[i] = (float)((int)(i * 7919 % 5) - 2);
            kept[i] = 0;
        }
        if (trial % 5 == 4) {
            given[count / 2] = NAN;
            given[count / 3] = -INFINITY;
        }
        select_against_a_sort(count, 1);
        select_against_a_sort(count, (count + 9) / 10);
        select_against_a_sort(count, count);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, every_format_is_the_model_to_the_bit, 0, KEEL_COMPRESSED_TOP_K);
    tcase_add_loop_test(tc, what_is_coded_and_what_is_kept_is_what_was_there, 0, KEEL_COMPRESSED_TOP_K);
    tcase_add_loop_test(tc, a_part_of_a_vector_is_coded_as_in_the_whole, 0, KEEL_COMPRESSED_TOP_K);
    tcase_add_test(tc, eight_bits_are_within_half_a_step_and_the_largest_is_exact_to_a_step);
    tcase_add_loop_test(tc, what_is_not_finite_is_delivered_and_keeps_what_was_kept, 0,
                        KEEL_COMPRESSED_TOP_K);
    tcase_add_loop_test(tc, the_largest_floats_stay_finite, 0, KEEL_COMPRESSED_TOP_K);
    tcase_add_test(tc, the_k_largest_are_those_of_a_sort_with_ties_by_index);
}
KEEL_TEST_MAIN("transport compressed codec", cases, 60)
