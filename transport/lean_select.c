/* lean_select.c - the k numbers of largest magnitude, exactly and in one way only.
 *
 * The magnitude of a float is ordered as its 31 bits are (infinities above all numbers, NaNs above them).
 * Three counts of 11, 10 and 10 bits find the k-th largest; equal ones are taken from the lowest index on. So
 * all is a function of the numbers, and one more pass collects them in order of their indices. */
#include "lean_codec.h"

#include "half.h"

enum { BINS = 2048 };

static uint32_t size_of(float value)
{
    return f32_bits(value) & UINT32_C(0x7fffffff);
}

/* Among those whose bits above `shift` + `width` are `prefix`: the bits from `shift` on of the *rank-th
 * largest (from 1); *rank becomes its rank among those with the same. */
static uint32_t narrow_down(const float *values, uint64_t count, uint32_t prefix, uint32_t shift,
                            uint32_t width, uint64_t *rank)
{
    uint32_t bins[BINS] = {0}, mask = (UINT32_C(1) << width) - 1, bin = mask;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = size_of(values[i]) >> shift;
        bins[bits & mask] += bits >> width == prefix;
    }
    while (bins[bin] < *rank) {
        KEEL_ASSERT(bin > 0);
        *rank -= bins[bin--];
    }
    return prefix << width | bin;
}

void keel_lean_select(const float *given, const float *kept, uint64_t count, uint64_t keep_count,
                      struct keel_lean_pair *pairs, float *keep)
{
    uint64_t ties = keep_count, taken = 0;
    KEEL_ASSERT(keep_count <= count && (keep_count > 0 || count == 0));
    if (count == 0)
        return;
    for (uint64_t i = 0; i < count; i++)
        keep[i] = given[i] + kept[i];
    uint32_t least = narrow_down(keep, count, 0, 20, 11, &ties);
    least = narrow_down(keep, count, least, 10, 10, &ties);
    least = narrow_down(keep, count, least, 0, 10, &ties);
    for (uint64_t i = 0; i < count; i++) {
        float value = keep[i];
        uint32_t size = size_of(value);
        bool chosen = size > least || (size == least && ties > 0);
        ties -= chosen && size == least;
        if (chosen)
            pairs[taken++] = (struct keel_lean_pair){.index = (uint32_t)i, .value = value};
        if (size >= UINT32_C(0x7f800000))
            keep[i] = kept[i];
        else if (chosen)
            keep[i] = 0.0f;
    }
    KEEL_ASSERT(taken == keep_count);
}
