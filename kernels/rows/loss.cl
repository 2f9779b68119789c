/* loss.cl - losses of each value against its own target, and their gradients.
 *
 *     bce   l = fma(-x, t, max(x, 0)) + log(exp(-|x|) + 1)     g = sigmoid(x) - t
 *     mse   d = x - t, l = d d                                  g = d + d
 *     product   l = x t                                         g = t
 *     dx = g * scale (times the power of two of loss_scale, where there is one), loss[0] += scale * sum(l)
 *
 * Shapes: flat arrays of `count`; x is a logit in bce, t a probability. Sums are the tree of a whole tensor
 * (canon_tree.h): a work-item adds up one block of 4096 and leaves it in `blocks`, which
 * keel_cross_entropy_loss then sums. No tunables. */

static inline float16 bce_x16(float16 x, float16 t)
{
    const float16 zero = (float16)(0.0f), above = select(x, zero, x < zero);
    const float16 size = as_float16(as_uint16(x) & 0x7fffffffu);
    return fma(-x, t, above) + canon_log(canon_exp(-size) + 1.0f);
}
static inline float16 bce_slope_x16(float16 x, float16 t)
{
    return canon_sigmoid(x) - t;
}
static inline float16 mse_x16(float16 x, float16 t)
{
    return (x - t) * (x - t);
}
static inline float16 mse_slope_x16(float16 x, float16 t)
{
    return (x - t) + (x - t);
}
static inline float16 product_x16(float16 x, float16 t)
{
    return x * t;
}
static inline float16 product_slope_x16(float16 x, float16 t)
{
    return t;
}

#define LOSS(name)                                                                                           \
    __kernel void keel_##name(__global const float *x, __global const float *t, __global float *blocks,      \
                              __global float *dx, ulong count, float scale, uint has_gradient,               \
                              __global const float *loss_scale, uint has_scale)                              \
    {                                                                                                        \
        if (has_scale)                                                                                       \
            scale = scale * canon_power_of_two(loss_scale[0]);                                               \
        const ulong start = (ulong)get_global_id(0) * 4096;                                                  \
        if (start >= count)                                                                                  \
            return;                                                                                          \
        const uint n = (uint)min(count - start, (ulong)4096);                                                \
        float16 sum = (float16)(0.0f);                                                                       \
        for (uint i = 0; i < n; i += 16) {                                                                   \
            const float16 u = canon_load(x + start + i, n - i), v = canon_load(t + start + i, n - i);        \
            const float16 l = name##_x16(u, v);                                                              \
            sum += n - i < 16 ? canon_mask(l, n - i) : l;                                                    \
            if (has_gradient)                                                                                \
                canon_store(name##_slope_x16(u, v) * scale, dx + start + i, n - i);                          \
        }                                                                                                    \
        blocks[get_global_id(0)] = canon_fold(sum);                                                          \
    }
LOSS(bce)
LOSS(mse)
LOSS(product)
