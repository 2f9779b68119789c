/* normal.cl - y_i = deviation * n_i, n standard normal from Philox by Box and Muller (canon_normal).
 *
 * Shapes: a flat array of `count`. Element i is number g = first + i / row * stride + i % row of the whole tensor and
 * takes words 2 (g % 2) and the next of the counter (g / 2, stream, microbatch, step), so its value depends on g
 * alone, however the tensor is cut.
 * Tunable: block, elements per work-item (a multiple of 32), changes no bit. Tolerance: none, equal bits.
 *
 * control: struct keel_control as 32-bit words: seed_lo, seed_hi, step, microbatch. */

__kernel void keel_normal(__global float *y, __global const uint *control, ulong count, uint block, uint stream,
                          float deviation, ulong first, ulong row, ulong stride)
{
    const uint16 lane = (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const uint key0 = control[0], key1 = control[1], step = control[2], microbatch = control[3];
    ulong i = (ulong)get_global_id(0) * block;
    const ulong end = min(i + block, count);
    while (i < end) {
        const ulong stop = min(end, i + (row - i % row));
        ulong g = canon_place(i, first, row, stride);
        for (; g % 2 == 0 && i + 32 <= stop; i += 32, g += 32) {
            uint16 c[4] = {(uint16)((uint)(g / 2)) + lane, (uint16)(stream), (uint16)(microbatch),
                           (uint16)(step)};
            canon_philox(c, key0, key1);
            float16 even = canon_normal(c[0], c[1]) * deviation;
            float16 odd = canon_normal(c[2], c[3]) * deviation;
            vstore16((float16)(even.s0, odd.s0, even.s1, odd.s1, even.s2, odd.s2, even.s3, odd.s3, even.s4,
                               odd.s4, even.s5, odd.s5, even.s6, odd.s6, even.s7, odd.s7),
                     0, y + i);
            vstore16((float16)(even.s8, odd.s8, even.s9, odd.s9, even.sa, odd.sa, even.sb, odd.sb, even.sc,
                               odd.sc, even.sd, odd.sd, even.se, odd.se, even.sf, odd.sf),
                     0, y + i + 16);
        }
        if (i == stop)
            continue;
        uint c[4] = {(uint)(g / 2), stream, microbatch, step};
        canon_philox(c, key0, key1);
        y[i++] = (g % 2 ? canon_normal(c[2], c[3]) : canon_normal(c[0], c[1])) * deviation;
    }
}
