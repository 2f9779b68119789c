/* dropout_host.c - dropout.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_dropout;

static void host_dropout(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *base = arguments[1];
    float *y = arguments[2];
    const struct keel_control *control = arguments[3];
    uint64_t count = u64_at(arguments, 4);
    uint32_t stream = u32_at(arguments, 6);
    float rate = f32_at(arguments, 7), scale = f32_at(arguments, 8);
    uint32_t has_base = u32_at(arguments, 9);
    const uint64_t first = u64_at(arguments, 10), row = u64_at(arguments, 11), stride = u64_at(arguments, 12);
    for (uint64_t i = 0; i < count;) {
        const uint64_t g = canon_place(i, first, row, stride), stop = i + (row - i % row);
        uint32_t c[4] = {(uint32_t)(g / 4), stream, control->microbatch, control->step};
        canon_philox(c, control->seed_lo, control->seed_hi);
        for (uint32_t w = g % 4; w < 4 && i < count && i < stop; w++, i++) {
            float v = canon_uniform(c[w]) >= rate ? x[i] * scale : 0.0f;
            y[i] = has_base != 0 ? base[i] + v : v;
        }
    }
}

static const struct keel_module_kernel dropout_kernels[] = {{"keel_dropout", host_dropout}};

const struct keel_module keel_module_dropout = KEEL_MODULE("dropout", keel_cl_dropout, dropout_kernels);
