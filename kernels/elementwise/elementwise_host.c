/* elementwise_host.c - elementwise.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

#include <string.h>

extern const char keel_cl_elementwise[];

static void host_add(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0], *b = arguments[1];
    float *y = arguments[2];
    uint64_t count = u64_at(arguments, 3);
    for (uint64_t i = 0; i < count; i++)
        y[i] = a[i] + b[i];
}

static void host_multiply(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0], *b = arguments[1];
    float *y = arguments[2];
    uint64_t count = u64_at(arguments, 3);
    for (uint64_t i = 0; i < count; i++)
        y[i] = a[i] * b[i];
}

static void host_bias(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *bias = arguments[1];
    float *y = arguments[2];
    uint64_t count = u64_at(arguments, 3);
    uint32_t n = u32_at(arguments, 4);
    for (uint64_t i = 0; i < count; i++)
        y[i] = x[i] + bias[i % n];
}

KEEL_HOST_KERNEL static void host_gelu(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    uint64_t count = u64_at(arguments, 2);
    for (uint64_t i = 0; i < count; i++)
        y[i] = canon_gelu(x[i]);
}

KEEL_HOST_KERNEL static void host_gelu_grad(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *dy = arguments[1];
    float *dx = arguments[2];
    uint64_t count = u64_at(arguments, 3);
    for (uint64_t i = 0; i < count; i++)
        dx[i] = dy[i] * canon_gelu_slope(x[i]);
}

static void host_fill(KEEL_HOST_ARGUMENTS)
{
    float *y = arguments[0];
    uint64_t count = u64_at(arguments, 1);
    float value = f32_at(arguments, 2);
    for (uint64_t i = 0; i < count; i++)
        y[i] = value;
}

static void host_copy(KEEL_HOST_ARGUMENTS)
{
    uint64_t count = u64_at(arguments, 2);
    memmove(arguments[1], arguments[0], keel_size(count * sizeof(float)));
}

static const struct keel_module_kernel elementwise_kernels[] = {
    {"keel_add", host_add},   {"keel_multiply", host_multiply},   {"keel_bias", host_bias},
    {"keel_gelu", host_gelu}, {"keel_gelu_grad", host_gelu_grad}, {"keel_fill", host_fill},
    {"keel_copy", host_copy},
};

const struct keel_module keel_module_elementwise =
    KEEL_MODULE("elementwise", keel_cl_elementwise, elementwise_kernels);
