/* conformance_kernels.h - the kernels that device_conformance_test.c launches, in OpenCL C and in C. */
#ifndef KEEL_TESTS_CONFORMANCE_KERNELS_H
#define KEEL_TESTS_CONFORMANCE_KERNELS_H

#include <keel/device.h>
#include <string.h>

static const char source[] =
    "kernel void scale(global float *x, float factor, uint count)\n"
    "{ size_t i = get_global_id(0); if (i < count) x[i] = x[i] * factor; }\n"
    "kernel void every_kind(global ulong *out, int i, uint u, float f, ulong l)\n"
    "{ out[0] = as_uint(i); out[1] = u; out[2] = as_uint(f); out[3] = l; }\n"
    "kernel void visit(global uint *seen)\n"
    "{ size_t i = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0)\n"
    "      + get_global_id(0); seen[i] = seen[i] + (uint)i + 1; }\n"
    "#define TWICE(x) x x\n"
    "#define STEP y = y * 6364136223846793005UL + i;\n"
    "kernel void spin(global ulong *out, ulong rounds)\n"
    "{ ulong y = out[0] | 1; for (ulong i = 0; i < rounds; i++)\n"
    "  { TWICE(TWICE(TWICE(TWICE(TWICE(TWICE(TWICE(TWICE(STEP)))))))) }\n"
    "  out[0] = y; out[1] = 7; }\n";

static void host_scale(void *const *arguments, const struct keel_range *range)
{
    float *x = arguments[0], factor = *(const float *)arguments[1];
    uint32_t count = *(const uint32_t *)arguments[2];
    for (size_t i = 0; i < range->global[0] && i < count; i++)
        x[i] = x[i] * factor;
}

static void host_every_kind(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    uint64_t *out = arguments[0];
    uint32_t bits;
    memcpy(&bits, arguments[1], sizeof bits);
    out[0] = bits;
    out[1] = *(const uint32_t *)arguments[2];
    memcpy(&bits, arguments[3], sizeof bits);
    out[2] = bits;
    out[3] = *(const uint64_t *)arguments[4];
}

static void host_visit(void *const *arguments, const struct keel_range *range)
{
    uint32_t *seen = arguments[0];
    size_t count = range->global[0] * range->global[1] * range->global[2];
    for (size_t i = 0; i < count; i++)
        seen[i] += (uint32_t)i + 1;
}

static void host_spin(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    uint64_t *out = arguments[0], rounds = *(const uint64_t *)arguments[1], x = out[0] | 1;
    for (uint64_t i = 0; i < 256 * rounds; i++)
        x = x * UINT64_C(6364136223846793005) + i;
    out[0] = x;
    out[1] = 7;
}

static const struct keel_module_kernel kernels[] = {
    {"scale", host_scale}, {"every_kind", host_every_kind}, {"visit", host_visit}, {"spin", host_spin}};
static const struct keel_module module = {
    .name = "conformance", .source = source, .kernels = kernels, .kernel_count = 4};

#endif
