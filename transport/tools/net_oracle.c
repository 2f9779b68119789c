/* net_oracle.c - collectives by definition. The formats of 16 bits are converted here by integer arithmetic.
 */
#include "net_oracle.h"

#include <inttypes.h>
#include <keel/bits.h>
#include <stdio.h>
#include <string.h>

/* ---- bits and numbers ---- */

uint64_t keel_oracle_load(enum keel_element element, const void *array, uint64_t index)
{
    uint64_t bits = 0;
    uint32_t bytes = keel_element_bytes(element);
    memcpy(&bits, (const uint8_t *)array + index * bytes, bytes);
    return bits;
}

void keel_oracle_store(enum keel_element element, void *array, uint64_t index, uint64_t bits)
{
    uint32_t bytes = keel_element_bytes(element);
    memcpy((uint8_t *)array + index * bytes, &bits, bytes);
}

static bool is_float(enum keel_element element)
{
    return element <= KEEL_ELEMENT_BF16;
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Value of a binary16: exact. */
static float half_value(uint32_t half)
{
    uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31)
        return keel_float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent > 0)
        return keel_float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24F;
    return sign != 0 ? -tiny : tiny;
}

/* Nearest binary16, ties to even. */
static uint32_t half_bits(float value)
{
    uint32_t bits = keel_bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return sign | 0x7e00;
    if (magnitude >= 0x477ff000) /* from here on nearer to infinity, 65520 included */
        return sign | 0x7c00;
    uint32_t exponent = magnitude >> 23;
    uint32_t drop = exponent >= 113 ? 13 : 126 - exponent; /* bits of the fraction that do not fit */
    if (drop > 24)
        return sign;
    uint32_t fraction = (magnitude & 0x7fffff) | 0x800000;
    uint32_t kept = fraction >> drop, rest = fraction & ((UINT32_C(1) << drop) - 1);
    uint32_t middle = UINT32_C(1) << (drop - 1);
    kept += rest > middle || (rest == middle && (kept & 1) != 0);
    /* a carry out of the fraction raises the exponent by itself */
    return sign | (exponent >= 113 ? ((exponent - 113) << 10) + kept : kept);
}

static uint32_t brain_bits(float value)
{
    uint32_t bits = keel_bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return bits >> 16 | 0x40;
    uint32_t rest = bits & 0xffff, kept = bits >> 16;
    return kept + (rest > 0x8000 || (rest == 0x8000 && (kept & 1) != 0));
}

/* What fits into a float, as a float; not for binary64. */
static float narrow_value(enum keel_element element, uint64_t bits)
{
    if (element == KEEL_ELEMENT_F16)
        return half_value((uint32_t)bits);
    return keel_float_of(element == KEEL_ELEMENT_BF16 ? (uint32_t)bits << 16 : (uint32_t)bits);
}

static uint64_t narrow_bits(enum keel_element element, float value)
{
    if (element == KEEL_ELEMENT_F16)
        return half_bits(value);
    return element == KEEL_ELEMENT_BF16 ? brain_bits(value) : keel_bits_of(value);
}

static double float_value(enum keel_element element, uint64_t bits)
{
    return element == KEEL_ELEMENT_F64 ? double_of(bits) : (double)narrow_value(element, bits);
}

static int64_t integer_value(enum keel_element element, uint64_t bits)
{
    if (element == KEEL_ELEMENT_I8)
        return (int8_t)bits;
    if (element == KEEL_ELEMENT_I32)
        return (int32_t)bits;
    return (int64_t)bits;
}

static uint64_t cut(enum keel_element element, uint64_t bits)
{
    uint32_t width = 8 * keel_element_bytes(element);
    return width == 64 ? bits : bits & ((UINT64_C(1) << width) - 1);
}

/* ---- inputs ---- */

static uint64_t scramble(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9); /* Steele, Lea, Flood 2014 */
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t keel_oracle_input(enum keel_element element, enum keel_reduction reduction, uint64_t seed,
                           uint32_t rank, uint64_t index)
{
    uint64_t random = scramble(scramble(seed + UINT64_C(0x9e3779b97f4a7c15) * (rank + 1)) + index);
    if (!is_float(element))
        return cut(element, random);
    bool ordered = reduction == KEEL_MIN || reduction == KEEL_MAX;
    if (ordered && random % 61 == 0)
        return 0;
    if (ordered && random % 61 == 1)
        return element == KEEL_ELEMENT_F64 ? bits_of_double(-0.0) : narrow_bits(element, -0.0F);
    if (ordered && random % 509 == 2)
        return element == KEEL_ELEMENT_F64 ? UINT64_C(0x7ff8000000000000)
                                           : narrow_bits(element, keel_float_of(0x7fc00000));
    int64_t mantissa = (int64_t)(random >> 11) - (INT64_C(1) << 52);
    double value = (double)mantissa * 0x1p-52 * (double)(1 << (random & 7) % 6);
    return element == KEEL_ELEMENT_F64 ? bits_of_double(value) : narrow_bits(element, (float)value);
}

/* ---- reductions ---- */

/* IEEE 754-2019 minimum and maximum: NaN wins, and -0 is below +0. */
static bool right_wins(enum keel_reduction reduction, double left, double right, bool left_negative)
{
    if (left != left)
        return false;
    if (right != right)
        return true;
    if (left == right)
        return left_negative != (reduction == KEEL_MIN);
    return reduction == KEEL_MIN ? right < left : right > left;
}

static uint64_t combine_floats(enum keel_element element, enum keel_reduction reduction, uint64_t left,
                               uint64_t right)
{
    if (reduction == KEEL_MIN || reduction == KEEL_MAX) {
        bool negative = (left >> (8 * keel_element_bytes(element) - 1) & 1) != 0;
        bool wins = right_wins(reduction, float_value(element, left), float_value(element, right), negative);
        return wins ? right : left;
    }
    if (element == KEEL_ELEMENT_F64)
        return bits_of_double(double_of(left) + double_of(right));
    return narrow_bits(element, narrow_value(element, left) + narrow_value(element, right));
}

static uint64_t combine_integers(enum keel_element element, enum keel_reduction reduction, uint64_t left,
                                 uint64_t right)
{
    if (reduction == KEEL_SUM || reduction == KEEL_AVERAGE)
        return cut(element, left + right);
    bool right_is_less = element == KEEL_ELEMENT_U8
                             ? right < left
                             : integer_value(element, right) < integer_value(element, left);
    return right_is_less == (reduction == KEEL_MIN) ? right : left;
}

static uint64_t divide(enum keel_element element, uint64_t bits, uint32_t divisor)
{
    if (element == KEEL_ELEMENT_F64)
        return bits_of_double(double_of(bits) / divisor);
    if (is_float(element))
        return narrow_bits(element, narrow_value(element, bits) / (float)divisor);
    if (element == KEEL_ELEMENT_U8)
        return bits / divisor;
    return cut(element, (uint64_t)(integer_value(element, bits) / (int64_t)divisor));
}

uint64_t keel_oracle_tree(enum keel_element element, enum keel_reduction reduction, uint64_t *values,
                          uint32_t count)
{
    for (uint32_t left = count; left > 1; left = (left + 1) / 2) {
        for (uint32_t k = 0; 2 * k + 1 < left; k++)
            values[k] = is_float(element)
                            ? combine_floats(element, reduction, values[2 * k], values[2 * k + 1])
                            : combine_integers(element, reduction, values[2 * k], values[2 * k + 1]);
        if (left % 2 != 0)
            values[left / 2] = values[left - 1];
    }
    return reduction == KEEL_AVERAGE ? divide(element, values[0], count) : values[0];
}

/* ---- judging ---- */

bool keel_oracle_is_same(enum keel_element element, uint64_t wanted, uint64_t got)
{
    if (wanted == got)
        return true;
    if (!is_float(element))
        return false;
    double one = float_value(element, wanted), other = float_value(element, got);
    return one != one && other != other;
}

bool keel_oracle_is_close(enum keel_element element, enum keel_reduction reduction, const uint64_t *values,
                          uint32_t count, uint64_t got)
{
    static const double unit[] = {0x1p-24, 0x1p-53, 0x1p-11, 0x1p-8}; /* one rounding, relative */
    long double sum = 0, magnitude = 0;
    for (uint32_t k = 0; k < count; k++) {
        double value = float_value(element, values[k]);
        sum += value;
        magnitude += value < 0 ? -value : value;
    }
    long double scale = reduction == KEEL_AVERAGE ? count : 1;
    long double error = (long double)float_value(element, got) - sum / scale;
    long double allowed = magnitude / scale * (long double)(count + 1) * unit[element] + 0x1p-24L * 0x1p-126L;
    if (element == KEEL_ELEMENT_F16)
        allowed += count * 0x1p-25L; /* below 2^-14 its steps do not shrink any more */
    return (error < 0 ? -error : error) <= allowed;
}

void keel_oracle_print(enum keel_element element, uint64_t bits, char *out, size_t out_bytes)
{
    if (is_float(element))
        snprintf(out, out_bytes, "%.17g (%0*" PRIx64 ")", float_value(element, bits),
                 (int)(2 * keel_element_bytes(element)), bits);
    else if (element == KEEL_ELEMENT_U8)
        snprintf(out, out_bytes, "%" PRIu64, bits);
    else
        snprintf(out, out_bytes, "%" PRId64, integer_value(element, bits));
}
