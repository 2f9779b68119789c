/* dropout.cl - y = base + mask(x), mask drawn from Philox.
 *
 * Shapes: flat arrays of `count`. Element i is kept when uniform(i) >= rate and then is x_i * scale;
 * otherwise it counts as +0. Without a base y is that value itself; with one, base_i + value. Element i
 * is number g = first + i / row * stride + i % row of the whole tensor and takes word g % 4 of the counter (g / 4,
 * stream, microbatch, step), so the mask depends on g alone, however the tensor is cut. Tunable: block, elements per work-item (a multiple of 4), changes no bit.
 *
 * control: struct keel_control as 32-bit words: seed_lo, seed_hi, step, microbatch. */

/* a0 b0 a1 b1 ... from the lower, or the upper, eight of each. */
static inline uint16 zip_lower(uint16 a, uint16 b)
{
    return (uint16)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3, a.s4, b.s4, a.s5, b.s5, a.s6, b.s6, a.s7,
                    b.s7);
}
static inline uint16 zip_upper(uint16 a, uint16 b)
{
    return (uint16)(a.s8, b.s8, a.s9, b.s9, a.sa, b.sa, a.sb, b.sb, a.sc, b.sc, a.sd, b.sd, a.se, b.se, a.sf,
                    b.sf);
}

static inline void drop_16(__global const float *x, __global const float *base, __global float *y,
                           uint16 words, float rate, float scale, uint has_base)
{
    float16 v = canon_uniform(words) >= (float16)(rate) ? vload16(0, x) * scale : (float16)(0.0f);
    vstore16(has_base ? vload16(0, base) + v : v, 0, y);
}

__kernel void keel_dropout(__global const float *x, __global const float *base, __global float *y,
                           __global const uint *control, ulong count, uint block, uint stream, float rate,
                           float scale, uint has_base, ulong first, ulong row, ulong stride)
{
    const uint16 lane = (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const uint key0 = control[0], key1 = control[1], step = control[2], microbatch = control[3];
    ulong i = (ulong)get_global_id(0) * block;
    const ulong end = min(i + block, count);
    while (i < end) {
        const ulong stop = min(end, i + (row - i % row));
        ulong g = canon_place(i, first, row, stride);
        for (; g % 4 == 0 && i + 64 <= stop; i += 64, g += 64) {
            uint16 c[4] = {(uint16)((uint)(g / 4)) + lane, (uint16)(stream), (uint16)(microbatch),
                           (uint16)(step)};
            canon_philox(c, key0, key1);
            uint16 even = zip_lower(c[0], c[2]), odd = zip_lower(c[1], c[3]);
            drop_16(x + i, base + i, y + i, zip_lower(even, odd), rate, scale, has_base);
            drop_16(x + i + 16, base + i + 16, y + i + 16, zip_upper(even, odd), rate, scale, has_base);
            even = zip_upper(c[0], c[2]);
            odd = zip_upper(c[1], c[3]);
            drop_16(x + i + 32, base + i + 32, y + i + 32, zip_lower(even, odd), rate, scale, has_base);
            drop_16(x + i + 48, base + i + 48, y + i + 48, zip_upper(even, odd), rate, scale, has_base);
        }
        if (i == stop)
            continue;
        uint c[4] = {(uint)(g / 4), stream, microbatch, step};
        canon_philox(c, key0, key1);
        for (uint w = (uint)(g % 4); w < 4 && i < stop; w++, i++) {
            float v = canon_uniform(c[w]) >= rate ? x[i] * scale : 0.0f;
            y[i] = has_base ? base[i] + v : v;
        }
    }
}
