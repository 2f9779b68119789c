/* activation_host.c - activation.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const char keel_cl_activation[];

static inline float relu(float x)
{
    return x <= 0.0F ? 0.0F : x;
}
static inline float relu_grad(float x, float dy)
{
    return x > 0.0F ? dy : 0.0F;
}
static inline float tanh_grad(float x, float dy)
{
    return dy * canon_tanh_slope(x);
}
static inline float sigmoid_grad(float x, float dy)
{
    return dy * canon_sigmoid_slope(x);
}
static inline float silu_grad(float x, float dy)
{
    return dy * canon_silu_slope(x);
}

#define ACTIVATION(name, f)                                                                                  \
    KEEL_HOST_KERNEL static void host_##name(KEEL_HOST_ARGUMENTS)                                            \
    {                                                                                                        \
        const float *x = arguments[0];                                                                       \
        float *y = arguments[1];                                                                             \
        uint64_t count = u64_at(arguments, 2);                                                               \
        for (uint64_t i = 0; i < count; i++)                                                                 \
            y[i] = f(x[i]);                                                                                  \
    }
#define GRADIENT(name)                                                                                       \
    KEEL_HOST_KERNEL static void host_##name##_grad(KEEL_HOST_ARGUMENTS)                                     \
    {                                                                                                        \
        const float *x = arguments[0], *dy = arguments[1];                                                   \
        float *dx = arguments[2];                                                                            \
        uint64_t count = u64_at(arguments, 3);                                                               \
        for (uint64_t i = 0; i < count; i++)                                                                 \
            dx[i] = name##_grad(x[i], dy[i]);                                                                \
    }
ACTIVATION(relu, relu)
ACTIVATION(tanh, canon_tanh)
ACTIVATION(sigmoid, canon_sigmoid)
ACTIVATION(silu, canon_silu)
GRADIENT(relu)
GRADIENT(tanh)
GRADIENT(sigmoid)
GRADIENT(silu)

KEEL_HOST_KERNEL static void host_swiglu(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0], *b = arguments[1];
    float *y = arguments[2];
    uint64_t count = u64_at(arguments, 3);
    for (uint64_t i = 0; i < count; i++)
        y[i] = canon_silu(a[i]) * b[i];
}

KEEL_HOST_KERNEL static void host_swiglu_grad(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0], *b = arguments[1], *dy = arguments[2];
    float *da = arguments[3], *db = arguments[4];
    uint64_t count = u64_at(arguments, 5);
    for (uint64_t i = 0; i < count; i++) {
        const float x = a[i], g = dy[i], z = b[i];
        da[i] = (g * z) * canon_silu_slope(x);
        db[i] = g * canon_silu(x);
    }
}

static const struct keel_module_kernel activation_kernels[] = {
    {"keel_relu", host_relu},
    {"keel_tanh", host_tanh},
    {"keel_sigmoid", host_sigmoid},
    {"keel_silu", host_silu},
    {"keel_relu_grad", host_relu_grad},
    {"keel_tanh_grad", host_tanh_grad},
    {"keel_sigmoid_grad", host_sigmoid_grad},
    {"keel_silu_grad", host_silu_grad},
    {"keel_swiglu", host_swiglu},
    {"keel_swiglu_grad", host_swiglu_grad},
};

const struct keel_module keel_module_activation =
    KEEL_MODULE("activation", keel_cl_activation, activation_kernels);
