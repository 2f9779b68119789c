/* combine_test.c - arithmetic on blocks against the plainest scalar code: every element, reduction and shape
 * of program, odd counts, NaN, infinities, subnormals, both zeros, in place. Bits, not tolerances. */
#include "combine.h"
#include "harness.h"
#include "tree.h"

#include <math.h>
#include <string.h>

enum { LEAVES = 40, COUNT_MAX = 5000 };

static uint64_t test_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* ---- half precision, by the words of IEEE 754: value = fraction x 2^exponent ---- */

static double small_float(uint32_t bits, int exponent_bits, int fraction_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    double fraction = bits & ((1U << fraction_bits) - 1);
    double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + ldexp(1, fraction_bits), exponent - bias - fraction_bits);
}

/* The nearest, ties to the even one; `value` exactly representable in a double. */
static uint32_t small_bits(double value, int exponent_bits, int fraction_bits)
{
    uint32_t sign = signbit(value) ? 1U << (exponent_bits + fraction_bits) : 0;
    uint32_t infinity = ((1U << exponent_bits) - 1) << fraction_bits;
    if (isnan(value))
        return infinity | 1U << (fraction_bits - 1);
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = 0;
    double size = fabs(value);
    if (isinf(value) || size == 0)
        return sign | (size == 0 ? 0 : infinity);
    frexp(size, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    double last = ldexp(1, exponent - fraction_bits); /* the weight of the last place */
    double units = nearbyint(size / last);            /* rounds to even */
    uint32_t bits = (uint32_t)units + (uint32_t)(exponent + bias - 1) * (1U << fraction_bits);
    return sign | (bits > infinity ? infinity : bits);
}

/* ---- one node, plainly ---- */

static double least(double a, double b)
{
    if (isnan(a) || isnan(b))
        return (double)NAN;
    if (a == b)
        return signbit(a) ? a : b;
    return a < b ? a : b;
}

static double most(double a, double b)
{
    if (isnan(a) || isnan(b))
        return (double)NAN;
    if (a == b)
        return signbit(a) ? b : a;
    return a > b ? a : b;
}

static double node_of(enum keel_reduction reduction, double a, double b)
{
    if (reduction == KEEL_MIN)
        return least(a, b);
    return reduction == KEEL_MAX ? most(a, b) : a + b;
}

/* A sum of two floats in double precision rounds to float as the exact one (53 >= 2 x 24 + 2). */
static uint64_t float_node(enum keel_element element, enum keel_reduction reduction, uint64_t left,
                           uint64_t right)
{
    double a, b, value;
    float f = 0, g = 0;
    uint32_t bits32, l32 = (uint32_t)left, r32 = (uint32_t)right;
    uint64_t bits64;
    switch (element) {
    case KEEL_ELEMENT_F16:
        value = node_of(reduction, small_float(l32, 5, 10), small_float(r32, 5, 10));
        return small_bits(value, 5, 10);
    case KEEL_ELEMENT_BF16: /* widened to float, so rounded to it first */
        value = node_of(reduction, small_float(l32, 8, 7), small_float(r32, 8, 7));
        return small_bits((double)(float)value, 8, 7);
    case KEEL_ELEMENT_F32:
        memcpy(&f, &l32, sizeof f);
        memcpy(&g, &r32, sizeof g);
        f = (float)node_of(reduction, (double)f, (double)g);
        memcpy(&bits32, &f, sizeof bits32);
        return isnan(f) ? 0x7fc00000 : bits32;
    default:
        memcpy(&a, &left, sizeof a);
        memcpy(&b, &right, sizeof b);
        value = node_of(reduction, a, b);
        memcpy(&bits64, &value, sizeof bits64);
        return isnan(value) ? UINT64_C(0x7ff8000000000000) : bits64;
    }
}

static uint64_t whole_node(enum keel_reduction reduction, bool is_signed, uint32_t bytes, uint64_t a,
                           uint64_t b)
{
    uint32_t shift = 64 - 8 * bytes;
    bool less = is_signed ? (int64_t)(a << shift) < (int64_t)(b << shift) : a < b;
    if (reduction == KEEL_MIN)
        return less ? a : b;
    if (reduction == KEEL_MAX)
        return less ? b : a;
    return (a + b) << shift >> shift;
}

static uint64_t node(enum keel_element element, enum keel_reduction reduction, uint64_t a, uint64_t b)
{
    switch (element) {
    case KEEL_ELEMENT_I8:
    case KEEL_ELEMENT_I32:
    case KEEL_ELEMENT_I64:
        return whole_node(reduction, true, keel_element_bytes(element), a, b);
    case KEEL_ELEMENT_U8:
        return whole_node(reduction, false, 1, a, b);
    default:
        return float_node(element, reduction, a, b);
    }
}

/* ---- programs ---- */

static uint64_t load(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, bytes); /* little-endian, as everything here */
    return value;
}

static uint64_t evaluate(enum keel_element element, enum keel_reduction reduction, uint8_t *const *leaves,
                         const uint16_t *program, uint32_t program_count, uint64_t i)
{
    uint32_t bytes = keel_element_bytes(element), depth = 0;
    uint64_t stack[KEEL_TREE_DEPTH_MAX];
    for (uint32_t k = 0; k < program_count; k++) {
        if (program[k] != KEEL_TREE_ADD) {
            stack[depth++] = load(leaves[program[k]] + i * bytes, bytes);
            continue;
        }
        depth--;
        stack[depth - 1] = node(element, reduction, stack[depth - 1], stack[depth]);
    }
    return stack[0];
}

/* Special values as often as any bits. */
static uint64_t any_bits(enum keel_element element, uint64_t *seed)
{
    static const uint16_t halves[] = {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x7bff, 0xfbff,
                                      0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x3c00, 0x3c01, 0x1000};
    static const uint16_t brains[] = {0,      0x8000, 1,      0x8001, 0x7f,   0x80,   0x7f7f, 0xff7f,
                                      0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x3f80, 0x3f81, 0x3b80};
    uint64_t bits = test_random(seed), special = brains[bits >> 60];
    if (bits % 3 != 0)
        return test_random(seed);
    switch (element) {
    case KEEL_ELEMENT_F16:
        return halves[bits >> 60];
    case KEEL_ELEMENT_F32:
        return special << 16 | (bits >> 8 & 1);
    case KEEL_ELEMENT_F64:
        return (special & 0x8000) << 48 | (special & 0x7f80) << 48 | (special & 0x7f) << 45 |
               ((special & 0x7f80) == 0x7f80 ? UINT64_C(0x7ff0000000000000) : 0);
    default:
        return special;
    }
}

static uint32_t chain(uint16_t *program, uint32_t leaves)
{
    uint32_t count = 0;
    program[count++] = 0;
    for (uint32_t k = 1; k < leaves; k++) {
        program[count++] = (uint16_t)k;
        program[count++] = KEEL_TREE_ADD;
    }
    return count;
}

static uint8_t *buffers[LEAVES], *result;

static void make_leaves(enum keel_element element, uint64_t count, uint64_t *seed)
{
    uint32_t bytes = keel_element_bytes(element);
    for (uint32_t leaf = 0; leaf < LEAVES; leaf++)
        for (uint64_t i = 0; i < count; i++) {
            uint64_t bits = any_bits(element, seed);
            memcpy(buffers[leaf] + i * bytes, &bits, bytes);
        }
}

/* out: the result, or a leaf (in place), whose element before and behind the block must stay. */
static void check_program(enum keel_element element, enum keel_reduction reduction, const uint16_t *program,
                          uint32_t program_count, uint8_t *out, uint64_t count)
{
    static uint64_t wanted[COUNT_MAX];
    uint32_t bytes = keel_element_bytes(element);
    const void *leaves[LEAVES];
    for (uint32_t leaf = 0; leaf < LEAVES; leaf++)
        leaves[leaf] = buffers[leaf];
    for (uint64_t i = 0; i < count; i++)
        wanted[i] = evaluate(element, reduction, buffers, program, program_count, i);
    uint64_t behind = load(out + count * bytes, bytes);
    keel_combine(element, reduction, leaves, program, program_count, out, count);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t got = load(out + i * bytes, bytes);
        if (got != wanted[i])
            ck_abort_msg("%s %s of %u words, element %lu: %lx, not %lx", keel_element_name(element),
                         keel_reduction_name(reduction), program_count, (unsigned long)i, (unsigned long)got,
                         (unsigned long)wanted[i]);
    }
    if (load(out + count * bytes, bytes) != behind)
        ck_abort_msg("%s: wrote behind the block", keel_element_name(element));
}

static void setup(void)
{
    for (uint32_t leaf = 0; leaf < LEAVES; leaf++)
        buffers[leaf] = calloc(COUNT_MAX + 1, 8);
    result = calloc(COUNT_MAX + 1, 8);
}

static void teardown(void)
{
    for (uint32_t leaf = 0; leaf < LEAVES; leaf++)
        free(buffers[leaf]);
    free(result);
}

START_TEST(every_type_reduction_and_odd_count_has_the_bits_of_scalar_code)
{
    const uint64_t counts[] = {0, 1, 3, 7, 16, 33, 127, 1025, 2049, 4099};
    uint64_t seed = 1;
    uint16_t program[2 * LEAVES];
    for (int element = 0; element < KEEL_ELEMENT_COUNT; element++)
        for (int reduction = 0; reduction < KEEL_REDUCTION_COUNT; reduction++)
            for (uint32_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
                for (uint32_t leaves = 1; leaves <= 4; leaves++) {
                    make_leaves((enum keel_element)element, counts[k], &seed);
                    check_program((enum keel_element)element, (enum keel_reduction)reduction, program,
                                  chain(program, leaves), result, counts[k]);
                }
}
END_TEST

START_TEST(programs_of_any_shape_are_followed_to_the_letter)
{
    struct keel_tree_plan plan;
    uint64_t seed = 2;
    for (uint32_t shards = 1; shards <= LEAVES; shards++)
        for (int element = 0; element < KEEL_ELEMENT_COUNT; element++) {
            uint16_t shard_rank[LEAVES];
            for (uint32_t s = 0; s < shards; s++)
                shard_rank[s] = (uint16_t)(test_random(&seed) % 5);
            ck_ok(keel_tree_plan_make(&plan, 5, shards, shard_rank));
            make_leaves((enum keel_element)element, 130, &seed);
            check_program((enum keel_element)element, KEEL_SUM, plan.steps, plan.step_count, result, 130);
            keel_tree_plan_fini(&plan);
        }
}
END_TEST

START_TEST(the_result_may_lie_on_any_leaf)
{
    uint64_t seed = 3;
    const uint16_t pair[] = {0, 1, KEEL_TREE_ADD, 2, 3, KEEL_TREE_ADD, KEEL_TREE_ADD};
    uint16_t program[2 * LEAVES];
    for (int element = 0; element < KEEL_ELEMENT_COUNT; element++)
        for (uint32_t leaf = 0; leaf < 4; leaf++) {
            make_leaves((enum keel_element)element, 2500, &seed);
            check_program((enum keel_element)element, KEEL_SUM, pair, 7, buffers[leaf], 2500);
            make_leaves((enum keel_element)element, 2500, &seed);
            check_program((enum keel_element)element, KEEL_MAX, program, chain(program, leaf + 1),
                          buffers[leaf], 2500);
        }
}
END_TEST

/* In long blocks, and by sevens: vectors and the rest behind them are two pieces of code. */
START_TEST(every_half_is_widened_and_rounded_right)
{
    const uint16_t pair[] = {0, 1, KEEL_TREE_ADD};
    const uint32_t others[] = {0, 0x8000, 1, 0x03ff, 0x3c00, 0xbc01, 0x7bff, 0xfbff, 0x5555, 0x7f7f, 0x2e66};
    const uint32_t counts[] = {4096, 7};
    for (int element = KEEL_ELEMENT_F16; element <= KEEL_ELEMENT_BF16; element++)
        for (uint32_t k = 0; k < sizeof others / sizeof others[0]; k++)
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t first = 0; first < 65536; first += counts[c]) {
                    for (uint32_t i = 0; i < counts[c]; i++) {
                        uint16_t half = (uint16_t)(first + i), other = (uint16_t)others[k];
                        memcpy(buffers[0] + 2 * (size_t)i, &half, 2);
                        memcpy(buffers[1] + 2 * (size_t)i, &other, 2);
                    }
                    check_program((enum keel_element)element, KEEL_SUM, pair, 3, result, counts[c]);
                }
}
END_TEST

/* The quotient in double: rounding it once more changes nothing for divisors as small as these. */
static uint64_t quotient(enum keel_element element, uint64_t bits, uint64_t divisor)
{
    uint32_t bits32 = (uint32_t)bits;
    float f;
    double d;
    switch (element) {
    case KEEL_ELEMENT_F16:
        return small_bits(small_float(bits32, 5, 10) / (double)divisor, 5, 10);
    case KEEL_ELEMENT_BF16:
        return small_bits((double)(float)(small_float(bits32, 8, 7) / (double)divisor), 8, 7);
    case KEEL_ELEMENT_F32:
        memcpy(&f, &bits32, sizeof f);
        f = (float)((double)f / (double)divisor);
        memcpy(&bits32, &f, sizeof f);
        return bits32;
    case KEEL_ELEMENT_F64:
        memcpy(&d, &bits, sizeof d);
        d = d / (double)divisor;
        memcpy(&bits, &d, sizeof d);
        return bits;
    case KEEL_ELEMENT_I8:
        return (uint8_t)((int8_t)bits / (int64_t)divisor);
    case KEEL_ELEMENT_I32:
        return (uint32_t)((int32_t)bits / (int64_t)divisor);
    case KEEL_ELEMENT_I64:
        return (uint64_t)((int64_t)bits / (int64_t)divisor);
    default:
        return (uint8_t)bits / divisor;
    }
}

static bool same(enum keel_element element, uint64_t a, uint64_t b)
{
    bool nan16 = element == KEEL_ELEMENT_F16 && (a & 0x7fff) > 0x7c00 && (b & 0x7fff) > 0x7c00;
    bool nan_brain = element == KEEL_ELEMENT_BF16 && (a & 0x7fff) > 0x7f80 && (b & 0x7fff) > 0x7f80;
    bool nan32 =
        element == KEEL_ELEMENT_F32 && (a & 0x7fffffff) > 0x7f800000 && (b & 0x7fffffff) > 0x7f800000;
    bool nan64 = element == KEEL_ELEMENT_F64 && (a << 1) > UINT64_C(0xffe0000000000000) &&
                 (b << 1) > UINT64_C(0xffe0000000000000);
    return a == b || nan16 || nan_brain || nan32 || nan64;
}

START_TEST(averages_divide_with_one_rounding)
{
    const uint64_t divisors[] = {1, 2, 3, 5, 7, 10, 64, 100, 1000, 2047, 4095, 4096};
    uint64_t seed = 4;
    for (int element = 0; element < KEEL_ELEMENT_COUNT; element++)
        for (uint32_t k = 0; k < sizeof divisors / sizeof divisors[0]; k++) {
            enum keel_element type = (enum keel_element)element;
            uint32_t bytes = keel_element_bytes(type);
            make_leaves(type, COUNT_MAX, &seed);
            memcpy(result, buffers[0], (size_t)COUNT_MAX * bytes);
            keel_combine_divide(type, result, COUNT_MAX, divisors[k]);
            for (size_t i = 0; i < COUNT_MAX; i++) {
                uint64_t wanted = quotient(type, load(buffers[0] + i * bytes, bytes), divisors[k]);
                uint64_t got = load(result + i * bytes, bytes);
                if (!same(type, got, wanted))
                    ck_abort_msg("%s / %lu: %lx, not %lx", keel_element_name(type),
                                 (unsigned long)divisors[k], (unsigned long)got, (unsigned long)wanted);
            }
        }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, every_type_reduction_and_odd_count_has_the_bits_of_scalar_code);
    tcase_add_test(tc, programs_of_any_shape_are_followed_to_the_letter);
    tcase_add_test(tc, the_result_may_lie_on_any_leaf);
    tcase_add_test(tc, every_half_is_widened_and_rounded_right);
    tcase_add_test(tc, averages_divide_with_one_rounding);
}
KEEL_TEST_MAIN("transport combine", cases, 60)
