/* elementwise_host.c - elementwise.cl in C: the reference, and what the host device runs. Activations are
 * the rows of the same table. */
#include "canon.h"
#include "kernels_internal.h"

#include <string.h>

extern const struct keel_packed_text keel_cl_elementwise;

#define ACTIVATION(kind, name, value, slope, ...)                                                            \
    KEEL_HOST_KERNEL static void host_##name(KEEL_HOST_ARGUMENTS)                                            \
    {                                                                                                        \
        const float *from = arguments[0];                                                                    \
        float *y = arguments[1];                                                                             \
        for (uint64_t i = 0, count = u64_at(arguments, 2); i < count; i++) {                                 \
            const float x = from[i];                                                                         \
            y[i] = value;                                                                                    \
        }                                                                                                    \
    }                                                                                                        \
    KEEL_HOST_KERNEL static void host_##name##_grad(KEEL_HOST_ARGUMENTS)                                     \
    {                                                                                                        \
        const float *from = arguments[0], *arrived = arguments[1];                                           \
        float *dx = arguments[2];                                                                            \
        for (uint64_t i = 0, count = u64_at(arguments, 3); i < count; i++) {                                 \
            const float x = from[i], dy = arrived[i];                                                        \
            dx[i] = slope;                                                                                   \
        }                                                                                                    \
    }
KEEL_ACTIVATION_TABLE(ACTIVATION)

KEEL_HOST_KERNEL static void host_swiglu(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0], *b = arguments[1];
    float *y = arguments[2];
    for (uint64_t i = 0, count = u64_at(arguments, 3); i < count; i++)
        y[i] = canon_silu(a[i]) * b[i];
}

KEEL_HOST_KERNEL static void host_swiglu_grad(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0], *b = arguments[1], *dy = arguments[2];
    float *da = arguments[3], *db = arguments[4];
    for (uint64_t i = 0, count = u64_at(arguments, 5); i < count; i++) {
        const float x = a[i], g = dy[i], z = b[i];
        da[i] = canon_silu_grad(x, g * z);
        db[i] = g * canon_silu(x);
    }
}

static void host_add(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0], *b = arguments[1];
    float *y = arguments[2];
    for (uint64_t i = 0, count = u64_at(arguments, 3); i < count; i++)
        y[i] = a[i] + b[i];
}

static void host_multiply(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0], *b = arguments[1];
    float *y = arguments[2];
    for (uint64_t i = 0, count = u64_at(arguments, 3); i < count; i++)
        y[i] = a[i] * b[i];
}

static void host_bias(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *bias = arguments[1];
    float *y = arguments[2];
    const uint32_t n = u32_at(arguments, 4);
    for (uint64_t i = 0, count = u64_at(arguments, 3); i < count; i++)
        y[i] = x[i] + bias[i % n];
}

static void host_fill(KEEL_HOST_ARGUMENTS)
{
    float *y = arguments[0];
    for (uint64_t i = 0, count = u64_at(arguments, 1); i < count; i++)
        y[i] = f32_at(arguments, 2);
}

static void host_copy(KEEL_HOST_ARGUMENTS)
{
    memmove(arguments[1], arguments[0], keel_size(u64_at(arguments, 2) * sizeof(float)));
}

static const struct keel_module_kernel elementwise_kernels[] = {
#define KERNELS(kind, name, ...) {"keel_" #name, host_##name}, {"keel_" #name "_grad", host_##name##_grad},
    KEEL_ACTIVATION_TABLE(KERNELS)
#undef KERNELS
        {"keel_swiglu", host_swiglu},
    {"keel_swiglu_grad", host_swiglu_grad},
    {"keel_add", host_add},
    {"keel_multiply", host_multiply},
    {"keel_bias", host_bias},
    {"keel_fill", host_fill},
    {"keel_copy", host_copy},
};

const struct keel_module keel_module_elementwise =
    KEEL_MODULE("elementwise", keel_cl_elementwise, elementwise_kernels);
