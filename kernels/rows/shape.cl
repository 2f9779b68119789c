/* shape.cl - elements moved from one place to another, bit by bit: concatenate, slice, permute.
 *
 *     box    y[i0, i1, i2, i3] = x[i0, i1, i2, i3], each with its own strides, both contiguous along i3;
 *            or zeros
 *     tiles  the same where x is contiguous along i2 and y along i3
 *
 * Shapes: a box of n0 x n1 x n2 x n3 words of 32 bits; strides in words. A work-item of box takes `block`
 * consecutive elements of the box, row after row; one of tiles 64 of i2 by 64 of i3, in squares of 16 x 16
 * that are transposed in registers, so that whole lines are read and written. block is the one tunable and
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

enum { SPAN = 64 };

#define PIECE(l, c) vload4(c, x + (l) * x_stride)
#define PUT(m, v)   vstore16(v, 0, y + (m) * y_stride);
/* 16 rows of x, 16 elements each, become 16 rows of y. */
static inline void turn(__global const uint *x, ulong x_stride, __global uint *y, ulong y_stride)
{
#if KEEL_BY_LANE == 0
    TURN_TILE(uint16)
#else
    for (uint l = 0; l < 16; l++)
        for (uint m = 0; m < 16; m++)
            y[l * y_stride + m] = x[m * x_stride + l];
#endif
}

/* x strides x0, x1, 1, x3; y strides y0, y1, y2, 1. */
__kernel void keel_tiles(__global const uint *x, __global uint *y, ulong items, ulong n1, ulong n2, ulong n3,
                         ulong x0, ulong x1, ulong x3, ulong y0, ulong y1, ulong y2)
{
    const ulong item = get_global_id(0);
    if (item >= items)
        return;
    const ulong across = (n3 + SPAN - 1) / SPAN, down = (n2 + SPAN - 1) / SPAN;
    const ulong block = item / across % down, outer = item / across / down;
    const ulong first3 = item % across * SPAN, end3 = min(first3 + SPAN, n3);
    const ulong first2 = block * SPAN, end2 = min(first2 + SPAN, n2);
    const ulong i0 = outer / n1, i1 = outer % n1;
    x += i0 * x0 + i1 * x1;
    y += i0 * y0 + i1 * y1;
    for (ulong i3 = first3; i3 < end3; i3 += 16) {
        for (ulong i2 = first2; i2 < end2; i2 += 16) {
            __global const uint *from = x + i3 * x3 + i2;
            __global uint *to = y + i2 * y2 + i3;
            const ulong columns = min(end2 - i2, (ulong)16), rows = min(end3 - i3, (ulong)16);
            if (columns == 16 && rows == 16) {
                turn(from, x3, to, y2);
                continue;
            }
            for (ulong l = 0; l < columns; l++)
                for (ulong m = 0; m < rows; m++)
                    to[l * y2 + m] = from[m * x3 + l];
        }
    }
}
