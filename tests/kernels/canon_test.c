/* canon_test.c - the error of canonical arithmetic in units of the last place, its special values, and
 * the random generator against published vectors.
 *
 * Limits below are the ones that canon_math.h states. Sweeps take every 257th bit pattern of the whole
 * argument range, so all exponents and about 65,000 mantissas of each. */
#include "canon.h"
#include "harness.h"

#include <keel/kernels.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SWEEP_STRIDE = 257 };
static const double EXP_ULP = 1.01, LOG_ULP = 1.0, TANH_ULP = 2.0, COS_ULP = 1.5, RSQRT_ULP = 0.51,
                    RECIPROCAL_ULP = 0.51, ERF_ULP = 2.5, LOG_1P_ULP = 1.2;

static float from_bits(uint32_t bits)
{
    return canon_as_real(bits);
}

/* |value - truth| in units of the last place of truth (as a normal float). */
static double ulp_error(float value, double truth)
{
    int exponent;
    frexp(truth, &exponent);
    if (exponent < -125)
        exponent = -125;
    return fabs((double)value - truth) / ldexp(1.0, exponent - 24);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state;
}

/* Largest error of f over [low, high] by bit patterns of positive floats, both signs when asked. */
static double sweep(float (*f)(float), double (*truth)(double), float low, float high, int both_signs)
{
    double worst = 0.0;
    for (uint32_t u = canon_as_bits(low); u <= canon_as_bits(high); u += SWEEP_STRIDE) {
        for (int sign = 0; sign <= both_signs; sign++) {
            float x = from_bits(sign ? u | 0x80000000u : u);
            double want = truth((double)x);
            float got = f(x);
            if (fabs(want) < (double)0x1p-126f) { /* a flushed result: zero, or the smallest normal */
                if (got != 0.0f && fabsf(got) != 0x1p-126f)
                    ck_abort_msg("f(%a) = %a is denormal", (double)x, (double)got);
                continue;
            }
            double error = ulp_error(got, want);
            if (error > worst)
                worst = error;
        }
    }
    return worst;
}

static double true_rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
static double true_reciprocal(double x)
{
    return 1.0 / x;
}
static float call_reciprocal(float x)
{
    return canon_reciprocal(x);
}

#define assert_within(name, error, limit)                                                                    \
    do {                                                                                                     \
        double error_ = (error);                                                                             \
        printf("note: canon %-11s %.4f ulp\n", name, error_);                                                \
        ck_assert_msg(error_ <= (limit), "%s is off by %g ulp, limit %g", name, error_, (double)(limit));    \
    } while (0)

START_TEST(exp_log_tanh_cos_stay_within_their_ulp)
{
    assert_within("exp", sweep(keel_canon_exp, exp, 0x1p-126f, 88.72283f, 1), EXP_ULP);
    assert_within("log", sweep(canon_log, log, 0x1p-126f, 3.4028234e38f, 0), LOG_ULP);
    assert_within("tanh", sweep(canon_tanh, tanh, 0x1p-126f, 3.4028234e38f, 1), TANH_ULP);
    assert_within("erf", sweep(canon_erf, erf, 0x1p-126f, 3.4028234e38f, 1), ERF_ULP);
    assert_within("ln(1 + x)", sweep(canon_log_1p, log1p, 0x1p-126f, 1.0f, 0), LOG_1P_ULP);
    assert_within("cos", sweep(keel_canon_cos, cos, 0x1p-126f, 3.1415925f, 0), COS_ULP);
}
END_TEST

START_TEST(rsqrt_and_reciprocal_stay_within_their_ulp)
{
    assert_within("rsqrt", sweep(canon_rsqrt, true_rsqrt, 0x1p-126f, 3.4028234e38f, 0), RSQRT_ULP);
    assert_within("reciprocal", sweep(call_reciprocal, true_reciprocal, 0x1p-125f, 0x1p125f, 1),
                  RECIPROCAL_ULP);
}
END_TEST

START_TEST(sqrt_is_correctly_rounded)
{
    for (uint32_t u = 0x00800000u; u < 0x7f800000u; u += SWEEP_STRIDE) {
        float x = from_bits(u);
        if (keel_canon_sqrt(x) != sqrtf(x))
            ck_abort_msg("sqrt(%a) = %a", (double)x, (double)keel_canon_sqrt(x));
    }
}
END_TEST

START_TEST(division_is_correctly_rounded)
{
    uint32_t state = 7;
    for (uint32_t i = 0; i < 8000000u; i++) {
        float a = from_bits(next_random(&state)), b = from_bits(next_random(&state));
        if (i % 2 == 0) { /* close mantissas, where rounding is hardest */
            a = from_bits(0x3f800000u | (next_random(&state) >> 9));
            b = from_bits(0x3f800000u | (next_random(&state) >> 9));
        }
        if (fabsf(a) < 0x1p-126f || fabsf(b) < 0x1p-126f || a != a || b != b)
            continue;
        float want = a / b, got = keel_canon_divide(a, b);
        bool right = got == want || (want != want && got != got);
        if (fabsf(want) <= 0x1p-126f) /* flushed, or on the edge of it */
            right = (got == 0.0f && !signbit(got) == !signbit(want)) || fabsf(want) == 0x1p-126f;
        if (!right)
            ck_abort_msg("%a / %a = %a, not %a", (double)a, (double)b, (double)want, (double)got);
    }
}
END_TEST

START_TEST(special_values_are_those_of_ieee_with_denormals_as_zero)
{
    const float inf = HUGE_VALF, nan = from_bits(0x7fc00000u), tiny = from_bits(1u);
    const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, inf, -inf, nan, tiny, -tiny};
    const float flushed[] = {0.0f, -0.0f, 1.0f, -1.0f, inf, -inf, nan, 0.0f, -0.0f};
    for (int i = 0; i < 9; i++) {
        for (int j = 0; j < 9; j++) {
            float want = flushed[i] / flushed[j], got = keel_canon_divide(values[i], values[j]);
            ck_assert_msg(want != want ? got != got : canon_as_bits(got) == canon_as_bits(want),
                          "%a / %a = %a", (double)values[i], (double)values[j], (double)got);
        }
        float root = sqrtf(flushed[i]), got = keel_canon_sqrt(values[i]);
        ck_assert(root != root ? got != got : canon_as_bits(got) == canon_as_bits(root));
    }
    ck_assert(keel_canon_exp(inf) == inf && keel_canon_exp(-inf) == 0.0f && keel_canon_exp(0.0f) == 1.0f);
    ck_assert(keel_canon_exp(tiny) == 1.0f && keel_canon_exp(88.8f) == inf && keel_canon_exp(-87.4f) == 0.0f);
    ck_assert(canon_log(0.0f) == -inf && canon_log(tiny) == -inf && canon_log(inf) == inf);
    ck_assert(canon_log(1.0f) == 0.0f && canon_log(-1.0f) != canon_log(-1.0f));
    ck_assert(canon_rsqrt(0.0f) == inf && canon_rsqrt(inf) == 0.0f && canon_rsqrt(4.0f) == 0.5f);
    ck_assert(canon_rsqrt(-1.0f) != canon_rsqrt(-1.0f));
    ck_assert(canon_tanh(inf) == 1.0f && canon_tanh(-inf) == -1.0f && canon_tanh(tiny) == 0.0f);
    ck_assert(signbit(canon_tanh(-0.0f)) && keel_canon_cos(0.0f) == 1.0f);
    ck_assert(keel_canon_exp(nan) != keel_canon_exp(nan) && canon_log(nan) != canon_log(nan));
    ck_assert(canon_tanh(nan) != canon_tanh(nan) && canon_rsqrt(nan) != canon_rsqrt(nan));
}
END_TEST

START_TEST(gelu_has_its_limits_and_lets_nan_through)
{
    const float nan = from_bits(0x7fc00000u);
    ck_assert(canon_gelu(0.0f) == 0.0f && canon_gelu(100.0f) == 100.0f && canon_gelu(-100.0f) == 0.0f);
    ck_assert(canon_gelu(1e30f) == 1e30f && canon_gelu(-1e30f) == 0.0f && canon_gelu(HUGE_VALF) == HUGE_VALF);
    ck_assert(canon_gelu_grad(100.0f, 1.0f) == 1.0f && canon_gelu_grad(-100.0f, 1.0f) == 0.0f);
    ck_assert(canon_gelu_grad(1e30f, 1.0f) == 1.0f && canon_gelu_grad(-1e30f, 1.0f) == 0.0f);
    ck_assert(canon_gelu_grad(0.0f, 1.0f) == 0.5f);
    ck_assert(canon_gelu(nan) != canon_gelu(nan) && canon_gelu_grad(nan, 1.0f) != canon_gelu_grad(nan, 1.0f));
}
END_TEST

/* The three vectors for philox4x32, 10 rounds, of the Random123 distribution (kat_vectors). */
START_TEST(philox_gives_the_published_vectors)
{
    static const uint32_t vectors[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
        {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0x408f276du,
         0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu},
        {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0xa4093822u, 0x299f31d0u, 0xd16cfe09u,
         0x94fdccebu, 0x5001e420u, 0x24126ea1u},
    };
    for (int v = 0; v < 3; v++) {
        uint32_t counter[4] = {vectors[v][0], vectors[v][1], vectors[v][2], vectors[v][3]};
        canon_philox(counter, vectors[v][4], vectors[v][5]);
        for (int w = 0; w < 4; w++)
            ck_assert_uint_eq(counter[w], vectors[v][6 + w]);
    }
    struct keel_control control = {
        .seed_lo = 0xa4093822u, .seed_hi = 0x299f31d0u, .step = 0x03707344u, .microbatch = 0x13198a2eu};
    for (uint64_t w = 0; w < 4; w++)
        ck_assert_uint_eq(keel_random_u32(&control, 0x85a308d3u, UINT64_C(4) * 0x243f6a88u + w),
                          vectors[2][6 + w]);
}
END_TEST

START_TEST(uniform_and_normal_have_their_moments)
{
    const struct keel_control control = {.seed_lo = 1, .seed_hi = 2, .step = 3, .microbatch = 4};
    enum { DRAWS = 400000 };
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n4 = 0, beyond = 0, neighbour = 0, last = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double u = (double)keel_random_uniform(&control, 5, i),
               n = (double)keel_random_normal(&control, 6, i);
        if (!(u >= 0.0 && u < 1.0))
            ck_abort_msg("uniform %llu is %g", (unsigned long long)i, u);
        u1 += u, u2 += u * u, n1 += n, n2 += n * n, n4 += n * n * n * n;
        beyond += fabs(n) > 3.0;
        neighbour += n * last;
        last = n;
    }
    /* Five standard errors each. */
    const double root = sqrt((double)DRAWS);
    ck_assert_double_le(fabs(u1 / DRAWS - 0.5), 5 * 0.2887 / root);
    ck_assert_double_le(fabs(u2 / DRAWS - 1.0 / 3.0), 5 * 0.2981 / root);
    ck_assert_double_le(fabs(n1 / DRAWS), 5 / root);
    ck_assert_double_le(fabs(n2 / DRAWS - 1.0), 5 * 1.4142 / root);
    ck_assert_double_le(fabs(n4 / DRAWS - 3.0), 5 * 9.798 / root);
    ck_assert_double_le(fabs(beyond / DRAWS - 0.0026998), 5 * 0.0519 / root);
    ck_assert_double_le(fabs(neighbour / DRAWS), 5 / root);
}
END_TEST

START_TEST(adam_bias_is_one_minus_beta_to_the_t)
{
    const float betas[] = {0.9f, 0.95f, 0.999f};
    for (int b = 0; b < 3; b++)
        for (uint32_t t = 1; t < 100000; t += 37)
            ck_assert(fabs((double)keel_adam_bias(betas[b], t) + expm1(t * log((double)betas[b]))) < 1e-7);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, exp_log_tanh_cos_stay_within_their_ulp);
    tcase_add_test(tc, rsqrt_and_reciprocal_stay_within_their_ulp);
    tcase_add_test(tc, sqrt_is_correctly_rounded);
    tcase_add_test(tc, division_is_correctly_rounded);
    tcase_add_test(tc, special_values_are_those_of_ieee_with_denormals_as_zero);
    tcase_add_test(tc, gelu_has_its_limits_and_lets_nan_through);
    tcase_add_test(tc, philox_gives_the_published_vectors);
    tcase_add_test(tc, uniform_and_normal_have_their_moments);
    tcase_add_test(tc, adam_bias_is_one_minus_beta_to_the_t);
}

KEEL_TEST_MAIN("canon", cases, 120)
