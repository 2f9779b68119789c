/* floats_fuzz.c - any bytes as masters: a rounded array is its elements rounded one by one, rounding is
 * monotonous and changes nothing that fits, a copy is the same until one bit of it is not, and the count of
 * what is not finite is that of the elements.
 *
 *   0   the pair of types
 *   1   the bit that is flipped, u16
 *   3   masters */
#include "codec.h"
#include "fuzz.h"
#include <keel/memory.h>

static const struct pair {
    enum keel_ckpt_dtype copy, master;
} pairs[] = {{KEEL_CKPT_BF16, KEEL_CKPT_F32},
             {KEEL_CKPT_F16, KEEL_CKPT_F32},
             {KEEL_CKPT_BF16, KEEL_CKPT_F64},
             {KEEL_CKPT_F16, KEEL_CKPT_F64},
             {KEEL_CKPT_F32, KEEL_CKPT_F64}};

static uint64_t element(const uint8_t *data, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, data, bytes);
    return value;
}

/* Integers in the order of the numbers that the bits stand for; NaN are at the ends. */
static int64_t rank(uint64_t bits, size_t bytes)
{
    uint64_t sign = bits >> (8 * bytes - 1), magnitude = bits & ~(sign << (8 * bytes - 1));
    return sign != 0 ? -(int64_t)magnitude : (int64_t)magnitude;
}

static bool is_nan(enum keel_ckpt_dtype dtype, uint64_t bits)
{
    static const uint64_t infinity[] = {[KEEL_CKPT_F32] = 0x7f800000,
                                        [KEEL_CKPT_F64] = UINT64_C(0x7ff0000000000000),
                                        [KEEL_CKPT_BF16] = 0x7f80,
                                        [KEEL_CKPT_F16] = 0x7c00};
    size_t bytes = keel_ckpt_dtype_bytes(dtype);
    return (bits & ~(UINT64_C(1) << (8 * bytes - 1))) > infinity[dtype];
}

static void check_pair(struct pair pair, const uint8_t *masters, size_t count, uint32_t flip)
{
    size_t wide = keel_ckpt_dtype_bytes(pair.master), narrow = keel_ckpt_dtype_bytes(pair.copy);
    uint8_t *copy;
    uint64_t last_master = 0, last_copy = 0, nonfinite = 0;
    KEEL_ASSERT(keel_alloc(count, narrow, &copy) == KEEL_OK);
    keel_codec_round(pair.copy, pair.master, masters, count, copy);
    for (size_t i = 0; i < count; i++) {
        uint64_t master = element(masters + i * wide, wide), rounded = 0;
        keel_codec_round(pair.copy, pair.master, &master, 1, &rounded);
        KEEL_ASSERT(element(copy + i * narrow, narrow) == rounded);
        nonfinite += keel_codec_nonfinite(pair.master, &master, wide);
        KEEL_ASSERT(is_nan(pair.master, master) == is_nan(pair.copy, rounded));
        if (is_nan(pair.master, master))
            continue;
        if (rank(master, wide) <= rank(last_master, wide))
            KEEL_ASSERT(rank(rounded, narrow) <= rank(last_copy, narrow));
        if (rank(master, wide) >= rank(last_master, wide))
            KEEL_ASSERT(rank(rounded, narrow) >= rank(last_copy, narrow));
        last_master = master;
        last_copy = rounded;
    }
    KEEL_ASSERT(keel_codec_nonfinite(pair.master, masters, count * wide) == nonfinite);
    KEEL_ASSERT(keel_codec_rounds_same(pair.copy, pair.master, copy, masters, count));
    flip %= (uint32_t)(count * narrow * 8);
    copy[flip / 8] ^= (uint8_t)(1 << flip % 8);
    KEEL_ASSERT(!keel_codec_rounds_same(pair.copy, pair.master, copy, masters, count));
    keel_free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    struct pair pair = pairs[fuzz_take_u8(&in) % (sizeof pairs / sizeof pairs[0])];
    uint32_t flip = fuzz_take_u16(&in);
    size_t count = (bytes - in.at) / keel_ckpt_dtype_bytes(pair.master);
    if (count > 0)
        check_pair(pair, data + in.at, count, flip);
    return 0;
}
