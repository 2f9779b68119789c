/* shape_host.c - shape.cl in C: the reference, and what the host device runs. */
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_shape;

static void host_box(KEEL_HOST_ARGUMENTS)
{
    const uint32_t *x = (const uint32_t *)arguments[0] + u64_at(arguments, 2);
    uint32_t *y = (uint32_t *)arguments[1] + u64_at(arguments, 3);
    const uint64_t count = u64_at(arguments, 4);
    const uint64_t n1 = u64_at(arguments, 5), n2 = u64_at(arguments, 6), n3 = u64_at(arguments, 7);
    const uint64_t x0 = u64_at(arguments, 8), x1 = u64_at(arguments, 9), x2 = u64_at(arguments, 10);
    const uint64_t y0 = u64_at(arguments, 11), y1 = u64_at(arguments, 12), y2 = u64_at(arguments, 13);
    const bool zero = u32_at(arguments, 14) != 0;
    for (uint64_t at = 0; at < count; at++) {
        const uint64_t i3 = at % n3, i2 = at / n3 % n2, i1 = at / n3 / n2 % n1, i0 = at / n3 / n2 / n1;
        y[i0 * y0 + i1 * y1 + i2 * y2 + i3] = zero ? 0 : x[i0 * x0 + i1 * x1 + i2 * x2 + i3];
    }
}

static void host_tiles(KEEL_HOST_ARGUMENTS)
{
    const uint32_t *x = arguments[0];
    uint32_t *y = arguments[1];
    const uint64_t items = u64_at(arguments, 2);
    const uint64_t n1 = u64_at(arguments, 3), n2 = u64_at(arguments, 4), n3 = u64_at(arguments, 5);
    const uint64_t x0 = u64_at(arguments, 6), x1 = u64_at(arguments, 7), x3 = u64_at(arguments, 8);
    const uint64_t y0 = u64_at(arguments, 9), y1 = u64_at(arguments, 10), y2 = u64_at(arguments, 11);
    const uint64_t outer = items / (((n2 + 63) / 64) * ((n3 + 63) / 64));
    for (uint64_t at = 0; at < outer * n2 * n3; at++) {
        const uint64_t i3 = at % n3, i2 = at / n3 % n2, i1 = at / n3 / n2 % n1, i0 = at / n3 / n2 / n1;
        y[i0 * y0 + i1 * y1 + i2 * y2 + i3] = x[i0 * x0 + i1 * x1 + i2 + i3 * x3];
    }
}

static const struct keel_module_kernel shape_kernels[] = {{"keel_box", host_box}, {"keel_tiles", host_tiles}};

const struct keel_module keel_module_shape = KEEL_MODULE("shape", keel_cl_shape, shape_kernels);
