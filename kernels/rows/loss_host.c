/* loss_host.c - loss.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_loss;

static inline float bce(float x, float t)
{
    const float above = x < 0.0F ? 0.0F : x;
    const float size = canon_as_real(canon_as_bits(x) & 0x7fffffffU);
    return canon_fma(-x, t, above) + canon_log(canon_exp(-size) + 1.0F);
}
static inline float bce_slope(float x, float t)
{
    return canon_sigmoid(x) - t;
}
static inline float mse(float x, float t)
{
    return (x - t) * (x - t);
}
static inline float mse_slope(float x, float t)
{
    return (x - t) + (x - t);
}
static inline float product(float x, float t)
{
    return x * t;
}
static inline float product_slope(float x, float t)
{
    (void)x;
    return t;
}

#define LOSS(name)                                                                                           \
    KEEL_HOST_KERNEL static void host_##name(KEEL_HOST_ARGUMENTS)                                            \
    {                                                                                                        \
        const float *x = arguments[0], *t = arguments[1];                                                    \
        float *blocks = arguments[2], *dx = arguments[3], scale = f32_at(arguments, 5);                      \
        const uint64_t count = u64_at(arguments, 4);                                                         \
        const bool has_gradient = u32_at(arguments, 6) != 0;                                                 \
        if (u32_at(arguments, 8) != 0)                                                                       \
            scale = scale * canon_power_of_two(f32_at(arguments, 7));                                        \
        for (uint64_t start = 0; start < count; start += KEEL_BLOCK_ELEMENTS) {                              \
            float lanes[KEEL_LANES] = {0};                                                                   \
            for (uint64_t i = start; i < count && i < start + KEEL_BLOCK_ELEMENTS; i++) {                    \
                const float u = x[i], v = t[i];                                                              \
                lanes[(i - start) % KEEL_LANES] += name(u, v);                                               \
                if (has_gradient)                                                                            \
                    dx[i] = name##_slope(u, v) * scale;                                                      \
            }                                                                                                \
            blocks[start / KEEL_BLOCK_ELEMENTS] = canon_fold(lanes);                                         \
        }                                                                                                    \
    }
LOSS(bce)
LOSS(mse)
LOSS(product)

static const struct keel_module_kernel loss_kernels[] = {
    {"keel_bce", host_bce}, {"keel_mse", host_mse}, {"keel_product", host_product}};

const struct keel_module keel_module_loss = KEEL_MODULE("loss", keel_cl_loss, loss_kernels);
