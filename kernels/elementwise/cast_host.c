/* cast_host.c - cast.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_cast;

static void narrow(void *const *arguments, uint32_t (*convert)(uint32_t))
{
    const uint32_t *x = arguments[0];
    uint16_t *y = arguments[1];
    uint64_t count = u64_at(arguments, 2);
    for (uint64_t i = 0; i < count; i++)
        y[i] = (uint16_t)convert(x[i]);
}

static void host_to_bf16(KEEL_HOST_ARGUMENTS)
{
    narrow(arguments, canon_to_bf16);
}

static void host_to_f16(KEEL_HOST_ARGUMENTS)
{
    narrow(arguments, canon_to_f16);
}

static void host_from_bf16(KEEL_HOST_ARGUMENTS)
{
    const uint16_t *x = arguments[0];
    uint32_t *y = arguments[1];
    uint64_t count = u64_at(arguments, 2);
    for (uint64_t i = 0; i < count; i++)
        y[i] = (uint32_t)x[i] << 16;
}

static void host_from_f16(KEEL_HOST_ARGUMENTS)
{
    const uint16_t *x = arguments[0];
    uint32_t *y = arguments[1];
    uint64_t count = u64_at(arguments, 2);
    for (uint64_t i = 0; i < count; i++)
        y[i] = canon_from_f16(x[i]);
}

static const struct keel_module_kernel cast_kernels[] = {
    {"keel_to_bf16", host_to_bf16},
    {"keel_to_f16", host_to_f16},
    {"keel_from_bf16", host_from_bf16},
    {"keel_from_f16", host_from_f16},
};

const struct keel_module keel_module_cast = KEEL_MODULE("cast", keel_cl_cast, cast_kernels);
