/* elementwise.cl - operations where element i of the result depends on element i of the arguments.
 *
 *     activation   y = f(x); dx = g(x, dy), which is dy f'(x): KEEL_ACTIVATION_TABLE names kernels and functions,
 *                  canon_math.h has the functions, for one element and for sixteen
 *     swiglu       y = silu(a) b (Shazeer 2020)           da = dy b silu'(a), db = dy silu(a)
 *     add          y = a + b
 *     multiply     y = a * b
 *     bias         y = x + bias, that of its column
 *     fill         y = value
 *     copy         y = x, bit by bit
 *
 * Shapes: flat arrays of `count`. A work-item takes `block` consecutive elements, a multiple of 16;
 * block is the one tunable and changes no bit, since there is no sum. */

#define ACTIVATION(kind, name, kernel_name, f, grad_kernel_name, g, of)                                      \
    __kernel void kernel_name(__global const float *x, __global float *y, ulong count, uint block)           \
    {                                                                                                        \
        CANON_ELEMENTS(vstore16(f(vload16(0, x + i)), 0, y + i), y[i] = f(x[i]))                             \
    }                                                                                                        \
    __kernel void grad_kernel_name(__global const float *x, __global const float *dy, __global float *dx,    \
                                   ulong count, uint block)                                                  \
    {                                                                                                        \
        CANON_ELEMENTS(vstore16(g(vload16(0, x + i), vload16(0, dy + i)), 0, dx + i),                        \
                       dx[i] = g(x[i], dy[i]))                                                               \
    }
KEEL_ACTIVATION_TABLE(ACTIVATION)

__kernel void keel_swiglu(__global const float *a, __global const float *b, __global float *y, ulong count,
                          uint block)
{
    CANON_ELEMENTS(vstore16(canon_silu(vload16(0, a + i)) * vload16(0, b + i), 0, y + i),
                   y[i] = canon_silu(a[i]) * b[i])
}

/* da may be a, db may be b, either may be dy. */
#if KEEL_BY_LANE < 2
static inline void swiglu_grad_16(__global const float *a, __global const float *b, __global const float *dy,
                                  __global float *da, __global float *db)
{
    const float16 x = vload16(0, a), g = vload16(0, dy), z = vload16(0, b);
    vstore16(canon_silu_grad(x, g * z), 0, da);
    vstore16(g * canon_silu(x), 0, db);
}
#endif
static inline void swiglu_grad(__global const float *a, __global const float *b, __global const float *dy,
                               __global float *da, __global float *db)
{
    const float x = *a, g = *dy, z = *b;
    *da = canon_silu_grad(x, g * z);
    *db = g * canon_silu(x);
}
__kernel void keel_swiglu_grad(__global const float *a, __global const float *b, __global const float *dy,
                               __global float *da, __global float *db, ulong count, uint block)
{
    CANON_ELEMENTS(swiglu_grad_16(a + i, b + i, dy + i, da + i, db + i),
                   swiglu_grad(a + i, b + i, dy + i, da + i, db + i))
}

__kernel void keel_add(__global const float *a, __global const float *b, __global float *y, ulong count,
                       uint block)
{
    CANON_ELEMENTS(vstore16(vload16(0, a + i) + vload16(0, b + i), 0, y + i), y[i] = a[i] + b[i])
}

__kernel void keel_multiply(__global const float *a, __global const float *b, __global float *y, ulong count,
                            uint block)
{
    CANON_ELEMENTS(vstore16(vload16(0, a + i) * vload16(0, b + i), 0, y + i), y[i] = a[i] * b[i])
}

/* The bias of a column, which goes on to the next one. */
CANON_INLINE float bias_of(__global const float *bias, uint n, uint *column)
{
    const float b = bias[*column];
    *column = *column + 1 == n ? 0 : *column + 1;
    return b;
}
CANON_INLINE float16 bias_of_16(__global const float *bias, uint n, uint *column)
{
    if (n - *column >= 16) {
        const float16 b = vload16(0, bias + *column);
        *column = n - *column == 16 ? 0 : *column + 16;
        return b;
    }
    float lanes[16]; /* of the end of a row and what follows */
    for (uint l = 0; l < 16; l++)
        lanes[l] = bias_of(bias, n, column);
    return vload16(0, lanes);
}

__kernel void keel_bias(__global const float *x, __global const float *bias, __global float *y, ulong count,
                        uint n, uint block)
{
    uint column = (uint)((ulong)get_global_id(0) * block % n);
    CANON_ELEMENTS(vstore16(vload16(0, x + i) + bias_of_16(bias, n, &column), 0, y + i),
                   y[i] = x[i] + bias_of(bias, n, &column))
}

__kernel void keel_fill(__global float *y, ulong count, float value, uint block)
{
    CANON_ELEMENTS(vstore16((float16)(value), 0, y + i), y[i] = value)
}

__kernel void keel_copy(__global const uint *x, __global uint *y, ulong count, uint block)
{
    CANON_ELEMENTS(vstore16(vload16(0, x + i), 0, y + i), y[i] = x[i])
}
