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
    for (uint64_t i = 0; i < count; i += 4) {
        uint32_t c[4] = {(uint32_t)(i / 4), stream, control->microbatch, control->step};
        canon_philox(c, control->seed_lo, control->seed_hi);
        for (uint32_t w = 0; w < 4 && i + w < count; w++) {
            float v = canon_uniform(c[w]) >= rate ? x[i + w] * scale : 0.0f;
            y[i + w] = has_base != 0 ? base[i + w] + v : v;
        }
    }
}

static const struct keel_module_kernel dropout_kernels[] = {{"keel_dropout", host_dropout}};

const struct keel_module keel_module_dropout = KEEL_MODULE("dropout", keel_cl_dropout, dropout_kernels);
