/* cast_test.c - conversions to and from bfloat16 and half precision, on every bit pattern that matters. */
#include "op_fixture.h"
#include <keel/memory.h>

static const uint64_t counts[] = {1, 17, 4099, 262147};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* Bit patterns of all kinds: every exponent, rounding ties, NaN, both signs. */
static uint32_t *patterns(uint64_t count)
{
    const struct keel_control control = {.seed_lo = 21};
    uint32_t *words = malloc(count * sizeof *words);
    ck_assert_ptr_nonnull(words);
    for (uint64_t i = 0; i < count; i++) {
        words[i] = keel_random_u32(&control, 1, i);
        if (i % 4 == 1) /* near the range of half, where most rounding happens */
            words[i] = (words[i] & 0x8fffffffu) % 0x10000000u + 0x33000000u;
        if (i % 4 == 2)
            words[i] &= 0xfffff000u; /* ties of half */
        if (i % 4 == 3)
            words[i] &= 0xffff8000u; /* ties of bfloat16 */
    }
    return words;
}

static struct keel_buffer *convert(struct rig *rig, struct keel_buffer *x, uint64_t count,
                                   enum keel_dtype from, enum keel_dtype to)
{
    struct keel_cast op = {.count = count, .from = from, .to = to, .x = x};
    op.y = rig_bytes(rig, NULL, keel_round_up(count * (to == KEEL_F32 ? 4 : 2), 4));
    ck_ok(keel_op_cast(rig->kernels, &op, &rig->list));
    return op.y;
}

static void cast_body(struct rig *rig, const void *shape)
{
    uint64_t count = *(const uint64_t *)shape, half_bytes = keel_round_up(count * 2, 4);
    uint32_t *words = patterns(count);
    struct keel_buffer *x = rig_bytes(rig, words, count * 4);
    struct keel_buffer *bf16 = convert(rig, x, count, KEEL_F32, KEEL_BF16);
    struct keel_buffer *f16 = convert(rig, x, count, KEEL_F32, KEEL_F16);
    struct keel_buffer *from_bf16 = convert(rig, bf16, count, KEEL_BF16, KEEL_F32);
    struct keel_buffer *from_f16 = convert(rig, f16, count, KEEL_F16, KEEL_F32);
    rig_run(rig);
    rig_result(rig, bf16, half_bytes);
    rig_result(rig, f16, half_bytes);
    rig_result(rig, from_bf16, count * 4);
    rig_result(rig, from_f16, count * 4);
    free(words);
}

START_TEST(casts_give_the_same_bits)
{
    for (int c = 0; c < COUNTS; c++) {
        char name[64];
        snprintf(name, sizeof name, "cast %llu", (unsigned long long)counts[c]);
        same_bits((enum rig_kind)_i, name, cast_body, &counts[c]);
    }
}
END_TEST

/* The value of a 16-bit pattern with this many bits of exponent and mantissa. */
static double value_of(uint32_t pattern, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(pattern >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(pattern & ((1u << mantissa_bits) - 1));
    double sign = (pattern & 0x8000u) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa != 0.0 ? NAN : sign * HUGE_VAL;
    if (exponent != 0)
        mantissa += ldexp(1.0, mantissa_bits);
    return sign * ldexp(mantissa, (exponent != 0 ? exponent : 1) - bias - mantissa_bits);
}

static bool same_value(float got, double want)
{
    return (double)got == want ? !signbit(got) == !signbit(want) : isnan(got) && isnan(want);
}

START_TEST(every_sixteen_bit_pattern_widens_exactly_and_comes_back)
{
    enum { ALL = 65536 };
    static uint16_t all[ALL];
    for (uint32_t i = 0; i < ALL; i++)
        all[i] = (uint16_t)i;
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_buffer *x = rig_bytes(rig, all, sizeof all);
    struct keel_buffer *bf16 = convert(rig, x, ALL, KEEL_BF16, KEEL_F32);
    struct keel_buffer *f16 = convert(rig, x, ALL, KEEL_F16, KEEL_F32);
    struct keel_buffer *bf16_back = convert(rig, bf16, ALL, KEEL_F32, KEEL_BF16);
    struct keel_buffer *f16_back = convert(rig, f16, ALL, KEEL_F32, KEEL_F16);
    rig_run(rig);
    const float *b = rig_result(rig, bf16, ALL * 4), *h = rig_result(rig, f16, ALL * 4);
    const uint16_t *bb = rig_result(rig, bf16_back, ALL * 2), *hb = rig_result(rig, f16_back, ALL * 2);
    for (uint32_t i = 0; i < ALL; i++) {
        if (!same_value(b[i], value_of(i, 8, 7)) || !same_value(h[i], value_of(i, 5, 10)))
            ck_abort_msg("pattern %04x widens to %a and %a", i, (double)b[i], (double)h[i]);
        if ((bb[i] != i && !isnan(b[i])) || (hb[i] != i && !isnan(h[i])))
            ck_abort_msg("pattern %04x comes back as %04x and %04x", i, bb[i], hb[i]);
    }
}
END_TEST

/* The nearest pattern is no farther than both neighbours, and even when it is a tie. */
static void check_nearest(float x, uint32_t pattern, int exponent_bits, int mantissa_bits)
{
    double got = value_of(pattern, exponent_bits, mantissa_bits), v = (double)x;
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    if (isnan(x)) {
        ck_assert(isnan(got));
        return;
    }
    /* Infinity stands for the next power of two when rounding. */
    double limit = ldexp(1.0, 1 << (exponent_bits - 1));
    double rounded = isinf(got) ? copysign(limit, got) : got,
           clipped = fabs(v) > limit ? copysign(limit, v) : v;
    uint32_t magnitude = pattern & 0x7fffu;
    for (int step = -1; step <= 1; step += 2) {
        if ((magnitude == 0 && step < 0) || (magnitude == infinity && step > 0))
            continue;
        uint32_t other = pattern + (uint32_t)step;
        double neighbour = value_of(other, exponent_bits, mantissa_bits);
        if (isinf(neighbour))
            neighbour = copysign(limit, neighbour);
        double here = fabs(rounded - clipped), there = fabs(neighbour - clipped);
        if (here > there || (here == there && (pattern & 1u) != 0))
            ck_abort_msg("%a becomes %04x, %04x is nearer", v, pattern, other);
    }
    ck_assert(!signbit(got) == !signbit(v));
}

START_TEST(narrowing_takes_the_nearest_and_ties_to_even)
{
    enum { COUNT = 262147 };
    const uint64_t count = COUNT;
    struct rig *rig = rig_shared(RIG_HOST);
    cast_body(rig, &count);
    uint32_t *words = patterns(COUNT);
    const uint16_t *bf16 = rig->results[0], *f16 = rig->results[1];
    for (uint64_t i = 0; i < COUNT; i++) {
        float x;
        memcpy(&x, &words[i], sizeof x);
        check_nearest(x, bf16[i], 8, 7);
        check_nearest(x, f16[i], 5, 10);
    }
    free(words);
}
END_TEST

START_TEST(a_conversion_that_does_not_exist_is_refused)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_cast op = {.count = 1, .from = KEEL_I32, .to = KEEL_F32, .x = rig_bytes(rig, NULL, 4)};
    op.y = op.x;
    ck_status(keel_op_cast(rig->kernels, &op, &rig->list), KEEL_INVALID);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, casts_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, every_sixteen_bit_pattern_widens_exactly_and_comes_back);
    tcase_add_test(tc, narrowing_takes_the_nearest_and_ties_to_even);
    tcase_add_test(tc, a_conversion_that_does_not_exist_is_refused);
}

KEEL_TEST_MAIN("cast", cases, RIG_LIMIT_S)
