/* activation.cl - functions of one value, and their gradients; canonical arithmetic, canon_math.h.
 *
 *     relu      x where x > 0 or NaN, else +0             dx = dy where x > 0, else +0
 *     tanh      canon_tanh                                dx = dy (1 - t t)
 *     sigmoid   canon_sigmoid                             dx = dy s (1 - s), 1 - s without cancellation
 *     silu      x s (Elfwing et al. 2018)                 dx = dy (s + x s (1 - s))
 *     swiglu    y = silu(a) b (Shazeer 2020)              da = dy b silu'(a), db = dy silu(a)
 *
 * Shapes: flat arrays of `count`. A work-item takes `block` consecutive elements, a multiple of 16;
 * block is the one tunable and changes no bit. */

static inline float16 relu_x16(float16 x)
{
    return select(x, (float16)(0.0f), x <= (float16)(0.0f));
}
static inline float relu(float x)
{
    return x <= 0.0f ? 0.0f : x;
}
static inline float16 relu_slope_x16(float16 x, float16 dy)
{
    return select((float16)(0.0f), dy, x > (float16)(0.0f));
}
static inline float relu_slope(float x, float dy)
{
    return x > 0.0f ? dy : 0.0f;
}

/* One function: y = f(x), and its gradient dx = dy * slope(x). */
#define ACTIVATION(name, f, f_x16)                                                                           \
    __kernel void keel_##name(__global const float *x, __global float *y, ulong count, uint block)           \
    {                                                                                                        \
        CANON_ELEMENTS(vstore16(f_x16(vload16(0, x + i)), 0, y + i), y[i] = f(x[i]))                         \
    }
#define GRADIENT(name, g, g_x16)                                                                             \
    __kernel void keel_##name##_grad(__global const float *x, __global const float *dy, __global float *dx,  \
                                     ulong count, uint block)                                                \
    {                                                                                                        \
        CANON_ELEMENTS(vstore16(g_x16(vload16(0, x + i), vload16(0, dy + i)), 0, dx + i),                    \
                       dx[i] = g(x[i], dy[i]))                                                               \
    }
#define TIMES_SLOPE(name)                                                                                    \
    static inline float16 name##_grad_x16(float16 x, float16 dy)                                             \
    {                                                                                                        \
        return dy * canon_##name##_slope_x16(x);                                                             \
    }                                                                                                        \
    static inline float name##_grad(float x, float dy)                                                       \
    {                                                                                                        \
        return dy * canon_##name##_slope(x);                                                                 \
    }
TIMES_SLOPE(tanh)
TIMES_SLOPE(sigmoid)
TIMES_SLOPE(silu)

ACTIVATION(relu, relu, relu_x16)
ACTIVATION(tanh, canon_tanh, canon_tanh_x16)
ACTIVATION(sigmoid, canon_sigmoid, canon_sigmoid_x16)
ACTIVATION(silu, canon_silu, canon_silu_x16)
GRADIENT(relu, relu_slope, relu_slope_x16)
GRADIENT(tanh, tanh_grad, tanh_grad_x16)
GRADIENT(sigmoid, sigmoid_grad, sigmoid_grad_x16)
GRADIENT(silu, silu_grad, silu_grad_x16)

__kernel void keel_swiglu(__global const float *a, __global const float *b, __global float *y, ulong count,
                          uint block)
{
    CANON_ELEMENTS(vstore16(canon_silu_x16(vload16(0, a + i)) * vload16(0, b + i), 0, y + i),
                   y[i] = canon_silu(a[i]) * b[i])
}

/* da may be a, db may be b, either may be dy. */
static inline void swiglu_grad_16(__global const float *a, __global const float *b, __global const float *dy,
                                  __global float *da, __global float *db)
{
    const float16 x = vload16(0, a), g = vload16(0, dy), z = vload16(0, b);
    vstore16((g * z) * canon_silu_slope_x16(x), 0, da);
    vstore16(g * canon_silu_x16(x), 0, db);
}
static inline void swiglu_grad(__global const float *a, __global const float *b, __global const float *dy,
                               __global float *da, __global float *db)
{
    const float x = *a, g = *dy, z = *b;
    *da = (g * z) * canon_silu_slope(x);
    *db = g * canon_silu(x);
}
__kernel void keel_swiglu_grad(__global const float *a, __global const float *b, __global const float *dy,
                               __global float *da, __global float *db, ulong count, uint block)
{
    CANON_ELEMENTS(swiglu_grad_16(a + i, b + i, dy + i, da + i, db + i),
                   swiglu_grad(a + i, b + i, dy + i, da + i, db + i))
}
