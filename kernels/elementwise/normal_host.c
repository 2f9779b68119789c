/* normal_host.c - normal.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_normal;

static void host_normal(KEEL_HOST_ARGUMENTS)
{
    float *y = arguments[0];
    const struct keel_control *control = arguments[1];
    uint64_t count = u64_at(arguments, 2);
    uint32_t stream = u32_at(arguments, 4);
    float deviation = f32_at(arguments, 5);
    const uint64_t first = u64_at(arguments, 6), row = u64_at(arguments, 7), stride = u64_at(arguments, 8);
    for (uint64_t i = 0; i < count; i++)
        y[i] = keel_random_normal(control, stream, canon_place(i, first, row, stride)) * deviation;
}

static const struct keel_module_kernel normal_kernels[] = {{"keel_normal", host_normal}};

const struct keel_module keel_module_normal = KEEL_MODULE("normal", keel_cl_normal, normal_kernels);
