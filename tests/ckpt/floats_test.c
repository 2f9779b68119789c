/* floats_test.c - rounding against an oracle that knows only what numbers the narrow type has; and what is
 * not finite is counted. */
#include "codec.h"
#include "sample.h"
#include <fenv.h>
#include <math.h>

enum { PATTERNS = 65536, SOME = 100000 };

static const enum keel_ckpt_dtype narrow_types[2] = {KEEL_CKPT_BF16, KEEL_CKPT_F16};

static uint32_t infinity_of(enum keel_ckpt_dtype dtype)
{
    return dtype == KEEL_CKPT_BF16 ? 0x7f80 : 0x7c00;
}

/* What a finite pattern of a narrow type is worth, its sign left aside; and infinity's the next power of two,
 * which is where rounding has it. */
static double worth(enum keel_ckpt_dtype dtype, uint32_t pattern)
{
    int mantissa = dtype == KEEL_CKPT_BF16 ? 7 : 10, bias = dtype == KEEL_CKPT_BF16 ? 127 : 15;
    int exponent = (int)(pattern >> mantissa);
    double fraction = pattern & ((1U << mantissa) - 1);
    return exponent == 0 ? ldexp(fraction, 1 - bias - mantissa)
                         : ldexp(fraction + ldexp(1, mantissa), exponent - bias - mantissa);
}

/* The nearest pattern by search, ties to the even one. Differences of doubles this close are exact. */
static uint32_t nearest(enum keel_ckpt_dtype dtype, double value)
{
    double magnitude = fabs(value);
    uint32_t sign = signbit(value) ? 0x8000 : 0, low = 0, high = infinity_of(dtype);
    if (magnitude >= worth(dtype, high))
        return sign | high;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (worth(dtype, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - worth(dtype, low), above = worth(dtype, high) - magnitude;
    return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
}

static uint32_t round_f64(enum keel_ckpt_dtype dtype, double value)
{
    uint16_t out;
    keel_codec_round(dtype, KEEL_CKPT_F64, &value, 1, &out);
    return out;
}

static uint32_t round_f32(enum keel_ckpt_dtype dtype, float value)
{
    uint16_t out;
    keel_codec_round(dtype, KEEL_CKPT_F32, &value, 1, &out);
    return out;
}

static void check_value(enum keel_ckpt_dtype dtype, double value)
{
    ck_assert_uint_eq(round_f64(dtype, value), nearest(dtype, value));
    ck_assert_uint_eq(round_f64(dtype, -value), nearest(dtype, -value));
    float single = (float)value;
    ck_assert_uint_eq(round_f32(dtype, single), nearest(dtype, single));
    ck_assert_uint_eq(round_f32(dtype, -single), nearest(dtype, -single));
}

/* Every number of the type, every midpoint between two, and the nearest doubles and floats beside them. */
START_TEST(every_number_and_every_tie_rounds_to_nearest_even)
{
    enum keel_ckpt_dtype dtype = narrow_types[_i];
    for (uint32_t pattern = 0; pattern < infinity_of(dtype); pattern++) {
        double here = worth(dtype, pattern), next = worth(dtype, pattern + 1), tie = (here + next) / 2;
        const double values[] = {here, nextafter(here, INFINITY), tie, nextafter(tie, 0),
                                 nextafter(tie, INFINITY)};
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
            check_value(dtype, values[i]);
        check_value(dtype, nextafterf((float)tie, 0));
        check_value(dtype, nextafterf((float)tie, INFINITY));
    }
}
END_TEST

START_TEST(the_far_ends_round_to_zero_and_infinity)
{
    static const double values[] = {0,
                                    0x1p-1074,
                                    0x1p-1022,
                                    0x1p-300,
                                    0x1p-149,
                                    0x1p-150,
                                    0x1p-126,
                                    0x1p-25,
                                    0x1p-24,
                                    0x1p16,
                                    65519,
                                    65520,
                                    65521,
                                    0x1p127,
                                    0x1p128,
                                    0x1p300,
                                    0x1.fffffffffffffp1023,
                                    INFINITY};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        check_value(narrow_types[_i], values[i]);
}
END_TEST

START_TEST(random_bits_round_to_nearest_even)
{
    for (uint64_t i = 0; i < SOME; i++) {
        uint64_t bits = mix(i);
        double wide;
        float single;
        memcpy(&wide, &bits, sizeof wide);
        memcpy(&single, &bits, sizeof single);
        if (isfinite(wide))
            ck_assert_uint_eq(round_f64(narrow_types[_i], wide), nearest(narrow_types[_i], wide));
        if (isfinite(single))
            check_value(narrow_types[_i], single);
    }
}
END_TEST

/* NaN: the sign, the top of the payload, and quiet. */
START_TEST(every_nan_keeps_its_sign_and_payload_and_becomes_quiet)
{
    enum keel_ckpt_dtype dtype = narrow_types[_i];
    uint32_t mantissa = dtype == KEEL_CKPT_BF16 ? 7 : 10, infinity = infinity_of(dtype);
    for (uint32_t pattern = 0; pattern < PATTERNS; pattern++) {
        uint32_t payload = pattern & ((1U << mantissa) - 1), sign = pattern >> 15;
        if ((pattern & infinity) != infinity || payload == 0)
            continue;
        uint32_t f32 = sign << 31 | 0x7f800000U | payload << (23 - mantissa) | 1;
        uint64_t f64 =
            (uint64_t)sign << 63 | UINT64_C(0x7ff0000000000000) | (uint64_t)payload << (52 - mantissa) | 1;
        uint16_t from_f32, from_f64;
        keel_codec_round(dtype, KEEL_CKPT_F32, &f32, 1, &from_f32);
        keel_codec_round(dtype, KEEL_CKPT_F64, &f64, 1, &from_f64);
        ck_assert_uint_eq(from_f32, pattern | 1U << (mantissa - 1));
        ck_assert_uint_eq(from_f64, pattern | 1U << (mantissa - 1));
    }
    const uint32_t low_f32 = 0x7f800001U; /* a payload that is all below what is kept */
    uint16_t out;
    keel_codec_round(dtype, KEEL_CKPT_F32, &low_f32, 1, &out);
    ck_assert_uint_eq(out, infinity | 1U << (mantissa - 1));
}
END_TEST

/* The processor rounds to nearest even by default; it is the oracle for float64 to float32. */
static void check_f64_to_f32(double value)
{
    float wanted = (float)value, got;
    keel_codec_round(KEEL_CKPT_F32, KEEL_CKPT_F64, &value, 1, &got);
    ck_assert_mem_eq(&got, &wanted, sizeof got);
}

START_TEST(float64_rounds_to_float32_as_the_processor_does)
{
    for (uint32_t exponent = 0; exponent < 255; exponent++)
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t bits = exponent << 23 | (i < 32 ? i : 0x7fffffU - (i - 32));
            float here, next;
            memcpy(&here, &bits, sizeof here);
            bits++;
            memcpy(&next, &bits, sizeof next);
            double tie = isinf(next) ? ldexp(1 - 0x1p-25, 128) : ((double)here + next) / 2;
            check_f64_to_f32(here);
            check_f64_to_f32(tie);
            check_f64_to_f32(-tie);
            check_f64_to_f32(nextafter(tie, 0));
            check_f64_to_f32(nextafter(tie, INFINITY));
        }
    for (uint64_t i = 0; i < SOME; i++) {
        uint64_t bits = mix(i);
        double value;
        memcpy(&value, &bits, sizeof value);
        check_f64_to_f32(value);
    }
    check_f64_to_f32(INFINITY);
    check_f64_to_f32(-INFINITY);
    const uint64_t low = UINT64_C(0xfff0000000000001);
    uint32_t nan;
    keel_codec_round(KEEL_CKPT_F32, KEEL_CKPT_F64, &low, 1, &nan);
    ck_assert_uint_eq(nan, 0xffc00000U);
}
END_TEST

START_TEST(the_rounding_mode_of_the_process_changes_nothing)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    double masters[1000];
    float wanted[1000], got[1000];
    for (uint64_t i = 0; i < 1000; i++)
        masters[i] = (double)mix(i) * 0x1p-66 - 0.1;
    keel_codec_round(KEEL_CKPT_F32, KEEL_CKPT_F64, masters, 1000, wanted);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(fesetround(modes[i]), 0);
        keel_codec_round(KEEL_CKPT_F32, KEEL_CKPT_F64, masters, 1000, got);
        ck_assert_int_eq(fesetround(FE_TONEAREST), 0);
        ck_assert_mem_eq(got, wanted, sizeof got);
    }
}
END_TEST

/* All pairs, odd places and lengths: arrays give what elements give, and one wrong bit is noticed. */
static const struct {
    enum keel_ckpt_dtype copy, master;
} pairs[] = {{KEEL_CKPT_BF16, KEEL_CKPT_F32},
             {KEEL_CKPT_F16, KEEL_CKPT_F32},
             {KEEL_CKPT_BF16, KEEL_CKPT_F64},
             {KEEL_CKPT_F16, KEEL_CKPT_F64},
             {KEEL_CKPT_F32, KEEL_CKPT_F64}};

START_TEST(one_bit_of_difference_is_not_the_same)
{
    static const size_t counts[] = {0, 1, 2, 7, 8, 31, 1023, 1024, 1025, 3000};
    static uint8_t master[3000 * 8 + 1], copy[3000 * 4 + 3], element[8];
    enum keel_ckpt_dtype to = pairs[_i].copy, from = pairs[_i].master;
    size_t wide = keel_ckpt_dtype_bytes(from), narrow = keel_ckpt_dtype_bytes(to);
    uint64_t state = 3;
    for (size_t i = 0; i < sizeof master; i++)
        master[i] = (uint8_t)draw(&state, 256);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        size_t count = counts[c];
        uint8_t *at = copy + c % 3;
        keel_codec_round(to, from, master + 1, count, at);
        for (size_t i = 0; i < count; i++) {
            keel_codec_round(to, from, master + 1 + i * wide, 1, element);
            ck_assert_mem_eq(at + i * narrow, element, narrow);
        }
        ck_assert(keel_codec_rounds_same(to, from, at, master + 1, count));
        for (int flips = 0; count > 0 && flips < 50; flips++) {
            size_t byte = draw(&state, count * narrow);
            uint8_t bit = (uint8_t)(1 << draw(&state, 8));
            at[byte] ^= bit;
            ck_assert(!keel_codec_rounds_same(to, from, at, master + 1, count));
            at[byte] ^= bit;
        }
    }
}
END_TEST

START_TEST(every_pattern_of_16_bits_that_is_not_finite_is_counted)
{
    static uint8_t data[2 * PATTERNS + 1];
    for (uint32_t i = 0; i < PATTERNS; i++) {
        uint16_t pattern = (uint16_t)i;
        memcpy(data + 1 + 2 * i, &pattern, sizeof pattern);
        ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_BF16, &pattern, 2), (i & 0x7f80) == 0x7f80);
        ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_F16, &pattern, 2), (i & 0x7c00) == 0x7c00);
    }
    ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_BF16, data + 1, 2 * PATTERNS), 256);
    ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_F16, data + 1, 2 * PATTERNS), 2048);
    ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_BF16, data, 0), 0);
}
END_TEST

START_TEST(one_nan_anywhere_is_counted_and_integers_have_none)
{
    enum { COUNT = 10000 };
    static float singles[COUNT];
    static double doubles[COUNT];
    uint64_t state = 9;
    for (uint32_t i = 0; i < 200; i++) {
        size_t at = draw(&state, COUNT), other = (at + 1 + draw(&state, COUNT - 1)) % COUNT;
        singles[at] = -NAN, singles[other] = INFINITY;
        doubles[at] = NAN, doubles[other] = -INFINITY;
        ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_F32, singles, sizeof singles), 2);
        ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_F64, doubles, sizeof doubles), 2);
        singles[at] = 0x1.fffffep127F, singles[other] = -0x1p-149F;
        doubles[at] = -0x1.fffffffffffffp1023, doubles[other] = 0x1p-1074;
        ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_F32, singles, sizeof singles), 0);
        ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_F64, doubles, sizeof doubles), 0);
    }
    memset(singles, 0xff, sizeof singles);
    ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_F32, singles, sizeof singles), COUNT);
    ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_I32, singles, sizeof singles), 0);
    ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_I64, singles, sizeof singles), 0);
    ck_assert_uint_eq(keel_codec_nonfinite(KEEL_CKPT_U8, singles, sizeof singles), 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, every_number_and_every_tie_rounds_to_nearest_even, 0, 2);
    tcase_add_loop_test(tc, the_far_ends_round_to_zero_and_infinity, 0, 2);
    tcase_add_loop_test(tc, random_bits_round_to_nearest_even, 0, 2);
    tcase_add_loop_test(tc, every_nan_keeps_its_sign_and_payload_and_becomes_quiet, 0, 2);
    tcase_add_test(tc, float64_rounds_to_float32_as_the_processor_does);
    tcase_add_test(tc, the_rounding_mode_of_the_process_changes_nothing);
    tcase_add_loop_test(tc, one_bit_of_difference_is_not_the_same, 0, (int)(sizeof pairs / sizeof pairs[0]));
    tcase_add_test(tc, every_pattern_of_16_bits_that_is_not_finite_is_counted);
    tcase_add_test(tc, one_nan_anywhere_is_counted_and_integers_have_none);
}

KEEL_TEST_MAIN("floats", cases, 120)
