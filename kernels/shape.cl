/* shape.cl - elements moved from one place to another, bit by bit: concatenate, slice, permute.
 *
 *     box    y[i0, i1, i2, i3] = x[i0, i1, i2, i3], each with its own strides, both contiguous along i3;
 *            or zeros
 *     tiles  the same where x is contiguous along i2 and y along i3
 *
 * Shapes: a box of n0 x n1 x n2 x n3 words of 32 bits; strides in words. A work-item of box takes `block`
 * consecutive elements of the box, row after row; one of tiles 16 of i2 by 256 of i3, in squares of 16 x 16
 * that are transposed within the core, so that whole lines are read and written. block is the one tunable and
 * changes no bit. */

static inline void copy_run(__global const uint *x, __global uint *y, ulong n)
{
    ulong i = 0;
    for (; i + 16 <= n; i += 16)
        vstore16(vload16(0, x + i), 0, y + i);
    for (; i < n; i++)
        y[i] = x[i];
}

static inline void clear_run(__global uint *y, ulong n)
{
    ulong i = 0;
    for (; i + 16 <= n; i += 16)
        vstore16((uint16)(0u), 0, y + i);
    for (; i < n; i++)
        y[i] = 0u;
}

__kernel void keel_box(__global const uint *x, __global uint *y, ulong x_from, ulong y_from, ulong count,
                       ulong n1, ulong n2, ulong n3, ulong x0, ulong x1, ulong x2, ulong y0, ulong y1,
                       ulong y2, uint zero, uint block)
{
    ulong at = (ulong)get_global_id(0) * block;
    const ulong end = min(at + block, count);
    if (at >= end)
        return;
    const ulong row = at / n3;
    ulong i3 = at % n3, i2 = row % n2, i1 = row / n2 % n1, i0 = row / n2 / n1;
    while (at < end) {
        const ulong run = min(n3 - i3, end - at);
        __global uint *to = y + y_from + i0 * y0 + i1 * y1 + i2 * y2 + i3;
        if (zero)
            clear_run(to, run);
        else
            copy_run(x + x_from + i0 * x0 + i1 * x1 + i2 * x2 + i3, to, run);
        at += run;
        i3 = 0;
        i2++;
        if (i2 == n2) {
            i2 = 0;
            i1++;
        }
        if (i1 == n1) {
            i1 = 0;
            i0++;
        }
    }
}

enum { STRIP = 256 };

/* 16 rows of x, 16 elements each, become 16 rows of y. */
static inline void turn(__global const uint *x, ulong x_stride, __global uint *y, ulong y_stride)
{
    uint t[256];
    for (uint l = 0; l < 16; l++)
        vstore16(vload16(0, x + l * x_stride), l, t);
    for (uint l = 0; l < 16; l++) {
        const uint *c = t + l;
        vstore16((uint16)(c[0], c[16], c[32], c[48], c[64], c[80], c[96], c[112], c[128], c[144], c[160],
                          c[176], c[192], c[208], c[224], c[240]),
                 0, y + l * y_stride);
    }
}

/* x strides x0, x1, 1, x3; y strides y0, y1, y2, 1. */
__kernel void keel_tiles(__global const uint *x, __global uint *y, ulong items, ulong n1, ulong n2, ulong n3,
                         ulong x0, ulong x1, ulong x3, ulong y0, ulong y1, ulong y2)
{
    const ulong item = get_global_id(0);
    if (item >= items)
        return;
    const ulong strips = (n3 + STRIP - 1) / STRIP, blocks = (n2 + 15) / 16;
    const ulong strip = item % strips, rest = item / strips, block = rest % blocks, outer = rest / blocks;
    const ulong i0 = outer / n1, i1 = outer % n1, left = min(n2 - block * 16, (ulong)16);
    x += i0 * x0 + i1 * x1 + block * 16;
    y += i0 * y0 + i1 * y1 + block * 16 * y2;
    ulong i = strip * STRIP;
    const ulong end = min(i + STRIP, n3);
    for (; left == 16 && i + 16 <= end; i += 16)
        turn(x + i * x3, x3, y + i, y2);
    for (; i < end; i++) {
        for (uint l = 0; l < left; l++)
            y[l * y2 + i] = x[i * x3 + l];
    }
}
