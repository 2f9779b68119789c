/* tensor.cl - two tensors of unlike shapes element by element, sums over dimensions, scaling.
 *
 *     binary   y[c] = f(a[c of its dimensions], b[...]), or a slope times dy[c]: rows of KEEL_BINARY_TABLE
 *     reduce   y[o, i] = sum of x[o, j, i] over j, also divided by n; or the largest, where a NaN is above all. Of
 *              rows (inner 1) the sum is canon_tree's, else a chain over j ascending, begun with the first.
 *     scale    y = fma(x, factor, addend)
 *
 * Shapes: y of binary [.., n1, n2, n3], flat; a0 to a3 are how far a goes along each dimension, 0 where it
 * has none, and a3 is 0 or 1. A work-item takes `block` elements, runs along the last dimension at a time;
 * or, where lanes are many, every element of its group's that its number comes to. Neither changes a bit. */

/* A row's expressions, for one element and for sixteen, by number: value, slope along a, slope along b. */
#undef canon_real
#define FUNCTION(real)                                                                                       \
    canon_inline real binary_of(uint number, real a, real b, real dy)                                        \
    {                                                                                                        \
        typedef real canon_real __attribute__((unused));                                                     \
        switch (number) {                                                                                    \
            KEEL_BINARY_TABLE(FUNCTION_CASES)                                                                \
        default:                                                                                             \
            return dy;                                                                                       \
        }                                                                                                    \
    }
#define BINARY_NUMBER(kind, ...) NUMBER_##kind,
enum { KEEL_BINARY_TABLE(BINARY_NUMBER) };
#define FUNCTION_CASES(kind, name, value, slope_a, slope_b, ...)                                             \
    case 3 * NUMBER_##kind:                                                                                  \
        return value;                                                                                        \
    case 3 * NUMBER_##kind + 1:                                                                              \
        return slope_a;                                                                                      \
    case 3 * NUMBER_##kind + 2:                                                                              \
        return slope_b;
FUNCTION(float)
#if KEEL_BY_LANE < 2
FUNCTION(float16)
#endif

struct place {
    uint a, b;
};
/* Where the operands of element i lie. */
static inline struct place place_of(uint i, uint n1, uint n2, uint n3, uint4 a, uint4 b)
{
    const uint c3 = i % n3, row = i / n3, c2 = row % n2, plane = row / n2, c1 = plane % n1, c0 = plane / n1;
    struct place p;
    p.a = c0 * a.x + c1 * a.y + c2 * a.z + c3 * a.w;
    p.b = c0 * b.x + c1 * b.y + c2 * b.z + c3 * b.w;
    return p;
}

__kernel void keel_binary(__global const float *a, __global const float *b, __global const float *dy,
                          __global float *y, uint number, uint count, uint n1, uint n2, uint n3, uint a0,
                          uint a1, uint a2, uint a3, uint b0, uint b1, uint b2, uint b3, uint block)
{
    const uint4 a_steps = (uint4)(a0, a1, a2, a3), b_steps = (uint4)(b0, b1, b2, b3);
    const bool slope = number % 3 != 0;
#if KEEL_ROW_ITEMS > 1
    const uint id = get_local_id(0), size = get_local_size(0);
    const ulong from = (ulong)get_group_id(0) * size * block,
                end = min(from + (ulong)size * block, (ulong)count);
    for (ulong i = from + id; i < end; i += size) {
        const struct place p = place_of((uint)i, n1, n2, n3, a_steps, b_steps);
        y[i] = binary_of(number, a[p.a], b[p.b], slope ? dy[i] : 0.0f);
    }
#else
    ulong i = (ulong)get_global_id(0) * block;
    const ulong end = min(i + block, (ulong)count);
    while (i < end) {
        const struct place p = place_of((uint)i, n1, n2, n3, a_steps, b_steps);
        const uint run = (uint)min((ulong)(n3 - (uint)i % n3), end - i);
        uint j = 0;
#if KEEL_BY_LANE < 2
        for (; j + 16 <= run; j += 16) {
            const float16 u = a3 ? vload16(0, a + p.a + j) : (float16)(a[p.a]);
            const float16 v = b3 ? vload16(0, b + p.b + j) : (float16)(b[p.b]);
            vstore16(binary_of(number, u, v, slope ? vload16(0, dy + i + j) : (float16)(0.0f)), 0, y + i + j);
        }
#endif
        for (; j < run; j++)
            y[i + j] = binary_of(number, a[p.a + j * a3], b[p.b + j * b3], slope ? dy[i + j] : 0.0f);
        i += run;
    }
#endif
}

/* ---- reduce ---- */

enum { SUM, MEAN, MAXIMUM };

static inline float larger(float m, float x)
{
    return (x > m) | (x != x) ? (m != m ? m : x) : m;
}

/* A row to a work-item, or to sixteen. */
__kernel void keel_reduce_rows(__global const float *x, __global float *y, uint rows, uint n, uint kind)
{
    ROW_FOLDS(folds);
    const uint row = ROW_NUMBER, columns = row < rows ? n : 0;
    __global const float *from = x + (ulong)min(row, rows - 1) * n;
    float result = row_sum_run(from, kind == MAXIMUM ? 0 : columns, folds);
    if (kind == MAXIMUM && ROW_LEADS) {
        result = from[0];
        for (uint i = 1; i < columns; i++)
            result = larger(result, from[i]);
    }
    if (row < rows && ROW_LEADS)
        y[row] = kind == MEAN ? canon_divide(result, convert_float(n)) : result;
}

/* A result to a work-item, or sixteen neighbours. */
#if KEEL_ROW_ITEMS == 1 && KEEL_BY_LANE < 2
CANON_INLINE void reduce_sixteen(__global const float *x, __global float *y, uint n, ulong inner, uint kind)
{
    float16 s = vload16(0, x);
    if (kind == MAXIMUM)
        for (uint j = 1; j < n; j++) {
            const float16 v = vload16(0, x + j * inner);
            s = (v > s) | (v != v) ? (s != s ? s : v) : s;
        }
    else
        for (uint j = 1; j < n; j++)
            s += vload16(0, x + j * inner);
    vstore16(kind == MEAN ? canon_divide(s, (float16)(convert_float(n))) : s, 0, y);
}
#endif
CANON_INLINE void reduce_one(__global const float *x, __global float *y, uint n, ulong inner, uint kind)
{
    float s = *x;
    for (uint j = 1; j < n; j++)
        s = kind == MAXIMUM ? larger(s, x[j * inner]) : s + x[j * inner];
    *y = kind == MEAN ? canon_divide(s, convert_float(n)) : s;
}
__kernel void keel_reduce_columns(__global const float *x, __global float *y, uint outer, uint n, uint inner,
                                  uint kind)
{
#if KEEL_ROW_ITEMS == 1
    const uint strips = (inner - 1) / 16 + 1, o = get_global_id(0) / strips,
               i = get_global_id(0) % strips * 16;
    if (o >= outer)
        return;
    __global const float *from = x + (ulong)o * n * inner + i;
    __global float *to = y + (ulong)o * inner + i;
    const uint width = min(inner - i, 16u);
#if KEEL_BY_LANE < 2
    if (width == 16) {
        reduce_sixteen(from, to, n, inner, kind);
        return;
    }
#endif
    for (uint c = 0; c < width; c++)
        reduce_one(from + c, to + c, n, inner, kind);
#else
    const ulong at = get_global_id(0);
    if (at < (ulong)outer * inner)
        reduce_one(x + at / inner * n * inner + at % inner, y + at, n, inner, kind);
#endif
}

/* ---- scale ---- */

__kernel void keel_scale(__global const float *x, __global float *y, ulong count, float factor, float addend,
                         uint block)
{
    CANON_ELEMENTS(elements_store(fma(elements_load(x + i), (float16)(factor), (float16)(addend)), y + i),
                   y[i] = fma(x[i], factor, addend))
}
