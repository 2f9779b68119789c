/* net_oracle_test.c - the oracle of keel net check is itself checked: formats of 16 bits against their
 * definition, sums against the tree written down by hand, and what each case takes from where. */
#include "harness.h"
#include "net_cases.h"
#include "net_oracle.h"

#include <math.h>
#include <string.h>

static double half_by_definition(uint32_t half)
{
    double sign = (half & 0x8000) != 0 ? -1 : 1;
    int exponent = (int)(half >> 10 & 31), fraction = (int)(half & 1023);
    return exponent == 0 ? sign * ldexp(fraction, -24) : sign * ldexp(1024 + fraction, exponent - 25);
}

static uint64_t sum_of_two(enum keel_element element, uint64_t left, uint64_t right)
{
    uint64_t values[] = {left, right};
    return keel_oracle_tree(element, KEEL_SUM, values, 2);
}

/* Of two finite halves the sum is exact in double: the result must be a nearest half, the even one of a tie.
 */
START_TEST(a_half_sum_is_the_nearest_half)
{
    uint64_t state = 1;
    for (int k = 0; k < 200000; k++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407U;
        uint32_t a = (uint32_t)(state >> 40) & 0xffff, b = (uint32_t)(state >> 20) & 0xffff;
        if ((a >> 10 & 31) == 31 || (b >> 10 & 31) == 31)
            continue;
        double exact = half_by_definition(a) + half_by_definition(b);
        uint32_t got = (uint32_t)sum_of_two(KEEL_ELEMENT_F16, a, b);
        if (fabs(exact) >= 65520) {
            ck_assert_uint_eq(got & 0x7fff, 0x7c00);
            continue;
        }
        double error = fabs(half_by_definition(got) - exact);
        for (uint32_t near = (got & 0x7fff) > 0 ? got - 1 : got; near <= got + 1; near++) {
            if ((near >> 10 & 31) == 31 || near == got)
                continue;
            double other = fabs(half_by_definition(near) - exact);
            ck_assert_msg(error < other || (error == other && got % 2 == 0), "%04x + %04x is %04x", a, b,
                          got);
        }
    }
}
END_TEST

START_TEST(a_brain_sum_is_rounded_to_even)
{
    /* 1 + 2^-8 lies between 1 and 1 + 2^-7; 1 + 2^-7 + 2^-8 between that and 1 + 2^-6 */
    ck_assert_uint_eq(sum_of_two(KEEL_ELEMENT_BF16, 0x3f80, 0x3b80), 0x3f80);
    ck_assert_uint_eq(sum_of_two(KEEL_ELEMENT_BF16, 0x3f81, 0x3b80), 0x3f82);
    ck_assert_uint_eq(sum_of_two(KEEL_ELEMENT_BF16, 0x7f7f, 0x7f7f), 0x7f80); /* too large */
    ck_assert_uint_eq(sum_of_two(KEEL_ELEMENT_BF16, 0x7f80, 0xff80) & 0x7fc0, 0x7fc0);
}
END_TEST

static float single(uint64_t bits)
{
    float value;
    uint32_t low = (uint32_t)bits;
    memcpy(&value, &low, sizeof value);
    return value;
}

START_TEST(a_sum_follows_the_tree_over_ranks)
{
    uint64_t in[7], values[7];
    float x[7];
    for (uint32_t rank = 0; rank < 7; rank++) {
        in[rank] = keel_oracle_input(KEEL_ELEMENT_F32, KEEL_SUM, 5, rank, 3);
        x[rank] = single(in[rank]);
    }
    for (uint32_t count = 1; count <= 7; count++) {
        float sums[] = {0,
                        x[0],
                        x[0] + x[1],
                        (x[0] + x[1]) + x[2],
                        (x[0] + x[1]) + (x[2] + x[3]),
                        ((x[0] + x[1]) + (x[2] + x[3])) + x[4],
                        ((x[0] + x[1]) + (x[2] + x[3])) + (x[4] + x[5]),
                        ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + x[6])};
        memcpy(values, in, sizeof in);
        float got = single(keel_oracle_tree(KEEL_ELEMENT_F32, KEEL_SUM, values, count));
        ck_assert(memcmp(&got, &sums[count], sizeof got) == 0);
        memcpy(values, in, sizeof in);
        float average = single(keel_oracle_tree(KEEL_ELEMENT_F32, KEEL_AVERAGE, values, count));
        float wanted = sums[count] / (float)count;
        ck_assert(memcmp(&average, &wanted, sizeof average) == 0);
    }
}
END_TEST

START_TEST(another_order_is_close_and_a_wrong_sum_is_not)
{
    for (uint64_t seed = 0; seed < 1000; seed++) {
        uint64_t values[5];
        float backwards = 0;
        uint32_t bits;
        for (uint32_t rank = 0; rank < 5; rank++)
            values[rank] = keel_oracle_input(KEEL_ELEMENT_F32, KEEL_SUM, seed, rank, 0);
        for (uint32_t rank = 5; rank-- > 0;)
            backwards += single(values[rank]);
        memcpy(&bits, &backwards, sizeof bits);
        ck_assert(keel_oracle_is_close(KEEL_ELEMENT_F32, KEEL_SUM, values, 5, bits));
        float without_one = backwards - single(values[2]);
        memcpy(&bits, &without_one, sizeof bits);
        ck_assert(fabsf(single(values[2])) < 1e-4F ||
                  !keel_oracle_is_close(KEEL_ELEMENT_F32, KEEL_SUM, values, 5, bits));
    }
}
END_TEST

START_TEST(integers_wrap_and_zeros_and_nan_are_ordered)
{
    uint64_t wrap[] = {0x7f, 1}, halves[] = {0x0000, 0x8000}, nan[] = {0x3f800000, 0x7fc00000};
    uint64_t average[] = {(uint8_t)-3, (uint8_t)-4};
    ck_assert_uint_eq(keel_oracle_tree(KEEL_ELEMENT_I8, KEEL_SUM, wrap, 2), 0x80);
    ck_assert_uint_eq(keel_oracle_tree(KEEL_ELEMENT_I8, KEEL_AVERAGE, average, 2), (uint8_t)-3); /* -7 / 2 */
    ck_assert_uint_eq(keel_oracle_tree(KEEL_ELEMENT_F16, KEEL_MIN, halves, 2), 0x8000);
    halves[0] = 0x0000;
    ck_assert_uint_eq(keel_oracle_tree(KEEL_ELEMENT_F16, KEEL_MAX, halves, 2), 0x0000);
    ck_assert_uint_eq(keel_oracle_tree(KEEL_ELEMENT_F32, KEEL_MIN, nan, 2), 0x7fc00000);
    uint64_t below[] = {(uint8_t)-1, 1}, above[] = {0xff, 1};
    ck_assert_uint_eq(keel_oracle_tree(KEEL_ELEMENT_I8, KEEL_MIN, below, 2), 0xff);
    ck_assert_uint_eq(keel_oracle_tree(KEEL_ELEMENT_U8, KEEL_MIN, above, 2), 1);
    ck_assert(keel_oracle_is_same(KEEL_ELEMENT_F32, 0x7fc00000, 0x7fc00001));
    ck_assert(!keel_oracle_is_same(KEEL_ELEMENT_F32, 0x00000000, 0x80000000));
}
END_TEST

struct tally {
    uint32_t world;
    uint64_t cases, kinds;
};

/* Every element of every result has a source that gives it, and what is exchanged adds up. */
static enum keel_status look_at(void *context, const struct keel_net_case *it)
{
    struct tally *tally = context;
    uint64_t given = 0, got = 0;
    tally->cases++;
    tally->kinds |= UINT64_C(1) << it->kind;
    ck_assert_uint_lt(it->root, tally->world);
    if (it->count > 1000 || it->algorithm != KEEL_ALGORITHM_AUTO)
        return KEEL_OK;
    for (uint32_t rank = 0; rank < tally->world; rank++) {
        given += keel_net_case_given(it, rank, tally->world);
        got += keel_net_case_got(it, rank, tally->world);
        for (uint64_t k = 0; !keel_kind_reduces(it->kind) && k < keel_net_case_got(it, rank, tally->world);
             k += 7) {
            uint32_t from;
            uint64_t at;
            keel_net_case_source(it, rank, tally->world, k, &from, &at);
            ck_assert_uint_lt(from, tally->world);
            ck_assert_uint_lt(at, keel_net_case_given(it, from, tally->world));
        }
    }
    if (it->kind == KEEL_ALL_TO_ALL || it->kind == KEEL_ALL_TO_ALL_V || it->kind == KEEL_SCATTER ||
        it->kind == KEEL_GATHER || it->kind == KEEL_SEND)
        ck_assert_uint_eq(given, got);
    return KEEL_OK;
}

START_TEST(every_case_has_a_source_for_every_element)
{
    for (uint32_t world = 1; world <= 9; world++) {
        struct keel_net_case_filter all = {.kind = -1}, full = {.kind = -1, .full = true};
        struct tally tally = {.world = world}, more = {.world = world};
        ck_ok(keel_net_cases_each(world, &all, look_at, &tally));
        ck_assert_uint_eq(tally.kinds, (UINT64_C(1) << (world > 1 ? KEEL_RECEIVE : KEEL_SEND)) - 1);
        ck_ok(keel_net_cases_each(world, &full, look_at, &more));
        ck_assert_uint_gt(more.cases, tally.cases);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_half_sum_is_the_nearest_half);
    tcase_add_test(tc, a_brain_sum_is_rounded_to_even);
    tcase_add_test(tc, a_sum_follows_the_tree_over_ranks);
    tcase_add_test(tc, another_order_is_close_and_a_wrong_sum_is_not);
    tcase_add_test(tc, integers_wrap_and_zeros_and_nan_are_ordered);
    tcase_add_test(tc, every_case_has_a_source_for_every_element);
}

KEEL_TEST_MAIN("net oracle", cases, 60)
