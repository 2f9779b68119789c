/* canon_random.h - counter-based random numbers: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel
 * random numbers: as easy as 1, 2, 3. SC 2011). One text, two widths, like canon_math.h. */
#ifndef CANON_PASS_OVER

/* Ten rounds over the counter c, in place. The wide form does sixteen counters with one key. */
canon_inline void canon_philox(canon_bits c[4], canon_word key0, canon_word key1)
{
    for (int round = 0; round < 10; round++) {
        canon_bits high0 = canon_mul_hi(0xd2511f53u, c[0]), low0 = c[0] * 0xd2511f53u;
        canon_bits high1 = canon_mul_hi(0xcd9e8d57u, c[2]), low1 = c[2] * 0xcd9e8d57u;
        c[0] = high1 ^ c[1] ^ key0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ key1;
        c[3] = low0;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
}

/* [0, 1) from the upper 24 bits; exact. */
canon_inline canon_real canon_uniform(canon_bits word)
{
    return canon_to_real(word >> 8) * 0x1p-24f;
}

/* Standard normal from two words: Box and Muller (1958), sqrt(-2 ln(u)) cos(2 pi v), u in (0, 1];
 * cos(2 pi v) = -cos(2 pi |v - 1/2|). */
canon_inline canon_real canon_normal(canon_bits first, canon_bits second)
{
    canon_real u = canon_uniform(first) + 0x1p-24f;
    canon_real turn = canon_as_real(canon_as_bits(canon_uniform(second) - 0.5f) & 0x7fffffffu);
    return canon_sqrt(-2.0f * canon_log(u)) * -canon_cos(0x1.921fb6p+2f * turn);
}
#endif

#ifndef CANON_PLACE
#define CANON_PLACE
/* The number that element e of a slice has in the whole tensor: `row` of them lie together there, and one row
 * begins `stride` behind the one before. */
#ifdef __OPENCL_C_VERSION__
static inline ulong canon_place(ulong e, ulong first, ulong row, ulong stride)
#else
static inline uint64_t canon_place(uint64_t e, uint64_t first, uint64_t row, uint64_t stride)
#endif
{
    return first + e / row * stride + e % row;
}
#endif
