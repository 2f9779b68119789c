/* compressed_select.c - the k numbers of largest magnitude, exactly and in one way only.
 *
 * The magnitude of a float is ordered as its 31 bits are (infinities above all numbers, NaNs above them).
 * Three counts of 14, 9 and 8 bits find the k-th largest; equal ones are taken from the lowest index on. So
 * all is a function of the numbers, and one more pass collects them in order of their indices. */
#include "compressed_codec.h"

#include "half.h"

#define F32_INFINITY UINT32_C(0x7f800000)

enum { HIGH_BITS = 14, MIDDLE_BITS = 9, LOW_BITS = 8, GROUP = 32 };

static inline uint32_t size_of(float value)
{
    return f32_bits(value) & UINT32_C(0x7fffffff);
}

/* The bin, from the top, in which the *rank-th (from 1) is; *rank becomes its rank in there. */
static uint32_t bin_of(const uint32_t *bins, uint32_t highest, uint64_t *rank)
{
    uint32_t bin = highest;
    while (bins[bin] < *rank) {
        KEEL_ASSERT(bin > 0);
        *rank -= bins[bin--];
    }
    return bin;
}

/* The highest bits of the *rank-th largest: the exponent and six more, so that few numbers share them. */
static uint32_t highest_bits(const float *values, uint64_t count, uint64_t *rank)
{
    uint32_t bins[1 << HIGH_BITS] = {0};
    for (uint64_t i = 0; i < count; i++)
        bins[size_of(values[i]) >> (31 - HIGH_BITS)]++;
    return bin_of(bins, (1 << HIGH_BITS) - 1, rank);
}

static inline bool any_in_group(const float *values, uint32_t shift, uint32_t wanted)
{
    uint32_t hits = 0;
    for (uint32_t k = 0; k < GROUP; k++)
        hits += size_of(values[k]) >> shift == wanted;
    return hits > 0;
}

/* `width` bits more, of those that have the higher ones: few, so whole groups without any are passed over. */
CLONES static uint32_t next_bits(const float *values, uint64_t count, uint32_t higher, uint32_t shift,
                                 uint32_t width, uint64_t *rank)
{
    uint32_t bins[1 << MIDDLE_BITS] = {0}, highest = (UINT32_C(1) << width) - 1;
    for (uint64_t first = 0; first < count; first += GROUP) {
        uint64_t end = count - first < GROUP ? count : first + GROUP;
        if (end - first == GROUP && !any_in_group(values + first, shift + width, higher))
            continue;
        for (uint64_t i = first; i < end; i++) {
            uint32_t bits = size_of(values[i]) >> shift;
            if (bits >> width == higher)
                bins[bits & highest]++;
        }
    }
    return higher << width | bin_of(bins, highest, rank);
}

CLONES static void add(const float *given, const float *kept, uint64_t count, float *out)
{
    INDEPENDENT for (uint64_t i = 0; i < count; i++) out[i] = given[i] + kept[i];
}

void keel_compressed_select(const float *given, const float *kept, uint64_t count, uint64_t keep_count,
                            struct keel_compressed_pair *pairs, float *keep)
{
    uint64_t ties = keep_count, taken = 0;
    KEEL_ASSERT(keep_count <= count && (keep_count > 0 || count == 0));
    if (count == 0)
        return;
    add(given, kept, count, keep);
    uint32_t least = highest_bits(keep, count, &ties);
    least = next_bits(keep, count, least, LOW_BITS, MIDDLE_BITS, &ties);
    least = next_bits(keep, count, least, 0, LOW_BITS, &ties);
    for (uint64_t i = 0; i < count; i++) {
        float value = keep[i];
        uint32_t size = size_of(value);
        if (size < least || (size == least && ties == 0)) {
            if (size >= F32_INFINITY)
                keep[i] = kept[i];
            continue;
        }
        ties -= size == least;
        pairs[taken++] = (struct keel_compressed_pair){.index = (uint32_t)i, .value = value};
        keep[i] = size < F32_INFINITY ? 0.0f : kept[i];
    }
    KEEL_ASSERT(taken == keep_count);
}
