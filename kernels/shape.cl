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

#define EACH_16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(a) X(b) X(c) X(d) X(e) X(f)
#define WEAVE(x, y, h)                                                                                       \
    (uint16)(x.h.s0, y.h.s0, x.h.s1, y.h.s1, x.h.s2, y.h.s2, x.h.s3, y.h.s3, x.h.s4, y.h.s4, x.h.s5, y.h.s5, \
             x.h.s6, y.h.s6, x.h.s7, y.h.s7)
/* Rows l and l + 8 of s are woven into rows 2l and 2l + 1 of t; four times that, and rows are columns. */
#define WEAVE_ROWS(t, s, l, m, even, odd)                                                                    \
    const uint16 t##even = WEAVE(s##l, s##m, lo), t##odd = WEAVE(s##l, s##m, hi);
#define WEAVE_ALL(t, s)                                                                                      \
    WEAVE_ROWS(t, s, 0, 8, 0, 1)                                                                             \
    WEAVE_ROWS(t, s, 1, 9, 2, 3)                                                                             \
    WEAVE_ROWS(t, s, 2, a, 4, 5)                                                                             \
    WEAVE_ROWS(t, s, 3, b, 6, 7)                                                                             \
    WEAVE_ROWS(t, s, 4, c, 8, 9)                                                                             \
    WEAVE_ROWS(t, s, 5, d, a, b)                                                                             \
    WEAVE_ROWS(t, s, 6, e, c, d)                                                                             \
    WEAVE_ROWS(t, s, 7, f, e, f)
#define LOAD_ROW(l)  const uint16 v##l = vload16(0, x + (0x##l) * x_stride);
#define STORE_ROW(l) vstore16(z##l, 0, y + (0x##l) * y_stride);

/* 16 rows of x, 16 elements each, become 16 rows of y. */
static inline void turn(__global const uint *x, ulong x_stride, __global uint *y, ulong y_stride)
{
#if KEEL_BY_LANE == 0
    EACH_16(LOAD_ROW)
    WEAVE_ALL(a, v)
    WEAVE_ALL(b, a)
    WEAVE_ALL(c, b)
    WEAVE_ALL(z, c)
    EACH_16(STORE_ROW)
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
