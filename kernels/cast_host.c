/* cast_host.c - cast.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const char keel_cl_cast[];

static uint32_t to_bf16(uint32_t u)
{
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (u >> 16) | 0x40u;
    return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

static uint32_t to_f16(uint32_t u)
{
    const uint32_t a = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    if (a > 0x7f800000u)
        return sign | 0x7e00u | ((a >> 13) & 0x3ffu);
    if (a >= 0x477ff000u)
        return sign | 0x7c00u;
    if (a >= 0x38800000u)
        return sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13);
    const uint32_t shift = 126u - (a >> 23) < 31u ? 126u - (a >> 23) : 31u;
    const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
    return sign | ((mantissa + (1u << (shift - 1u)) - 1u + ((mantissa >> shift) & 1u)) >> shift);
}

static uint32_t from_f16(uint32_t h)
{
    const uint32_t a = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    if (a < 0x400u)
        return sign | canon_as_bits((float)a * 0x1p-24f);
    if (a < 0x7c00u)
        return sign | ((a << 13) + 0x38000000u);
    return sign | ((a << 13) + 0x70000000u) | (a > 0x7c00u ? 0x400000u : 0u);
}

static void narrow(void *const *arguments, uint32_t (*convert)(uint32_t))
{
    const uint32_t *x = arguments[0];
    uint16_t *y = arguments[1];
    uint64_t count = *(const uint64_t *)arguments[2];
    for (uint64_t i = 0; i < count; i++)
        y[i] = (uint16_t)convert(x[i]);
}

static void host_to_bf16(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    narrow(arguments, to_bf16);
}

static void host_to_f16(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    narrow(arguments, to_f16);
}

static void host_from_bf16(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    const uint16_t *x = arguments[0];
    uint32_t *y = arguments[1];
    uint64_t count = *(const uint64_t *)arguments[2];
    for (uint64_t i = 0; i < count; i++)
        y[i] = (uint32_t)x[i] << 16;
}

static void host_from_f16(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    const uint16_t *x = arguments[0];
    uint32_t *y = arguments[1];
    uint64_t count = *(const uint64_t *)arguments[2];
    for (uint64_t i = 0; i < count; i++)
        y[i] = from_f16(x[i]);
}

static const struct keel_module_kernel cast_kernels[] = {
    {"keel_to_bf16", host_to_bf16},
    {"keel_to_f16", host_to_f16},
    {"keel_from_bf16", host_from_bf16},
    {"keel_from_f16", host_from_f16},
};

const struct keel_module keel_module_cast = {
    .name = "cast",
    .source = keel_cl_cast,
    .kernels = cast_kernels,
    .kernel_count = sizeof cast_kernels / sizeof cast_kernels[0],
};
