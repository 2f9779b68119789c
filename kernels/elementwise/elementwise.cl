/* elementwise.cl - operations where element i of the result depends on element i of the arguments.
 *
 *     activation   y = f(x); dx = g(x, dy), which is dy f'(x): the rows of KEEL_ACTIVATION_TABLE
 *     swiglu       y = silu(a) b (Shazeer 2020)           da = dy b silu'(a), db = dy silu(a)
 *     add          y = a + b
 *     multiply     y = a * b
 *     bias         y = x + bias, that of its column
 *     fill         y = value
 *     copy         y = x, bit by bit
 *
 * Shapes: flat arrays of `count`. A work-item takes `block` consecutive elements, a multiple of 16;
 * block is the one tunable and changes no bit, since there is no sum. Where lanes are many a group takes the elements of
 * its work-items together (CANON_ELEMENTS). */

/* A row's expressions, for sixteen elements and for one. */
#undef canon_real
#undef canon_fma
#define canon_fma(a, b, c) fma((canon_real)(a), (canon_real)(b), (canon_real)(c))
/* Names are joined at once: those of some drivers' functions are macros. */
#define FUNCTIONS(real, f, g, value, slope)                                                                  \
    canon_inline real f(real x)                                                                              \
    {                                                                                                        \
        typedef real canon_real __attribute__((unused));                                                     \
        return value;                                                                                        \
    }                                                                                                        \
    canon_inline real g(real x, real dy)                                                                     \
    {                                                                                                        \
        typedef real canon_real __attribute__((unused));                                                     \
        return slope;                                                                                        \
    }
#define FUNCTIONS_OF_ONE(kind, name, value, slope, ...)     FUNCTIONS(float, name##_value, name##_slope, value, slope)
#define FUNCTIONS_OF_SIXTEEN(kind, name, value, slope, ...) FUNCTIONS(float16, name##_value, name##_slope, value, slope)
KEEL_ACTIVATION_TABLE(FUNCTIONS_OF_ONE)
#if KEEL_BY_LANE < 2
KEEL_ACTIVATION_TABLE(FUNCTIONS_OF_SIXTEEN)
#endif

#define ACTIVATION(kind, name, ...)                                                                          \
    __kernel void keel_##name(__global const float *x, __global float *y, ulong count, uint block)           \
    {                                                                                                        \
        CANON_ELEMENTS(elements_store(name##_value(elements_load(x + i)), y + i), y[i] = name##_value(x[i])) \
    }                                                                                                        \
    __kernel void keel_##name##_grad(__global const float *x, __global const float *dy, __global float *dx,  \
                                     ulong count, uint block)                                                \
    {                                                                                                        \
        CANON_ELEMENTS(elements_store(name##_slope(elements_load(x + i), elements_load(dy + i)), dx + i),    \
                       dx[i] = name##_slope(x[i], dy[i]))                                                    \
    }
KEEL_ACTIVATION_TABLE(ACTIVATION)

__kernel void keel_swiglu(__global const float *a, __global const float *b, __global float *y, ulong count,
                          uint block)
{
    CANON_ELEMENTS(elements_store(canon_silu(elements_load(a + i)) * elements_load(b + i), y + i),
                   y[i] = canon_silu(a[i]) * b[i])
}

/* da may be a, db may be b, either may be dy. */
#if KEEL_BY_LANE < 2
static inline void swiglu_grad_16(__global const float *a, __global const float *b, __global const float *dy,
                                  __global float *da, __global float *db)
{
    const float16 x = elements_load(a), g = elements_load(dy), z = elements_load(b);
    elements_store(canon_silu_grad(x, g * z), da);
    elements_store(g * canon_silu(x), db);
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
    CANON_ELEMENTS(elements_store(elements_load(a + i) + elements_load(b + i), y + i), y[i] = a[i] + b[i])
}

__kernel void keel_multiply(__global const float *a, __global const float *b, __global float *y, ulong count,
                            uint block)
{
    CANON_ELEMENTS(elements_store(elements_load(a + i) * elements_load(b + i), y + i), y[i] = a[i] * b[i])
}

/* The bias of a column, which goes on to the next one. */
CANON_INLINE float bias_of(__global const float *bias, uint n, uint *column)
{
    const float b = bias[*column];
    *column = *column + 1 == n ? 0 : *column + 1;
    return b;
}
#if KEEL_ROW_ITEMS > 1
CANON_INLINE float16 bias_of_elements(__global const float *bias, uint n, ulong i)
{
    float lanes[16];
    _Pragma("unroll") for (uint q = 0; q < 4; q++)
    {
        uint column = (uint)((i + 4 * q * get_local_size(0)) % n);
        _Pragma("unroll") for (uint c = 0; c < 4; c++) lanes[4 * q + c] = bias_of(bias, n, &column);
    }
    return vload16(0, lanes);
}
#endif
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
#if KEEL_ROW_ITEMS > 1
    CANON_ELEMENTS(elements_store(elements_load(x + i) + bias_of_elements(bias, n, i), y + i),
                   y[i] = x[i] + bias[i % n])
#else
    uint column = (uint)((ulong)get_global_id(0) * block % n);
    CANON_ELEMENTS(elements_store(elements_load(x + i) + bias_of_16(bias, n, &column), y + i),
                   y[i] = x[i] + bias_of(bias, n, &column))
#endif
}

__kernel void keel_fill(__global float *y, ulong count, float value, uint block)
{
    CANON_ELEMENTS(elements_store((float16)(value), y + i), y[i] = value)
}

__kernel void keel_copy(__global const uint *x, __global uint *y, ulong count, uint block)
{
    CANON_ELEMENTS(elements_store(elements_load(x + i), y + i), y[i] = x[i])
}
