/* cross_entropy_host.c - cross_entropy.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"
#include <math.h>

extern const struct keel_packed_text keel_cl_cross_entropy;

/* One row; d is NULL without gradient. Returns the loss. */
KEEL_HOST_KERNEL static float row_cross_entropy(const float *x, float *d, uint32_t vocab, int32_t target,
                                                float scale)
{
    const bool known = (uint32_t)target < vocab;
    const float at_target = known ? x[target] : NAN;
    float m = x[0], lanes[KEEL_LANES] = {0};
    for (uint32_t i = 0; i < vocab; i++)
        m = x[i] > m ? x[i] : m;
    for (uint32_t i = 0; i < vocab; i++) {
        float e = canon_exp(x[i] - m);
        lanes[i % KEEL_LANES] += e;
        if (d != NULL)
            d[i] = e;
    }
    const float s = canon_fold(lanes);
    if (d != NULL) {
        const float share = canon_divide(1.0f, known ? s : NAN), e_target = known ? d[target] : 0.0f;
        for (uint32_t i = 0; i < vocab; i++)
            d[i] = (d[i] * share) * scale;
        if (known)
            d[target] = (e_target * share - 1.0f) * scale;
    }
    return (canon_log(s) + m) - at_target;
}

static void host_cross_entropy(KEEL_HOST_ARGUMENTS)
{
    const float *logits = arguments[0];
    const int32_t *targets = arguments[1];
    float *row_loss = arguments[2];
    const uint32_t rows = u32_at(arguments, 4), vocab = u32_at(arguments, 5);
    float scale = f32_at(arguments, 6);
    if (u32_at(arguments, 9) != 0)
        scale = scale * canon_power_of_two(f32_at(arguments, 8));
    float *dlogits = u32_at(arguments, 7) != 0 ? arguments[3] : NULL;
    for (uint32_t row = 0; row < rows; row++) {
        size_t base = (size_t)row * vocab;
        row_loss[row] = row_cross_entropy(logits + base, dlogits != NULL ? dlogits + base : NULL, vocab,
                                          targets[row], scale);
    }
}

static void host_cross_entropy_loss(KEEL_HOST_ARGUMENTS)
{
    float *row_loss = arguments[0], *loss = arguments[1];
    uint32_t rows = u32_at(arguments, 2);
    do {
        uint32_t blocks = 0, length;
        for (uint32_t start = 0; start < rows; start += length) {
            length = rows - start < KEEL_BLOCK_ELEMENTS ? rows - start : KEEL_BLOCK_ELEMENTS;
            row_loss[blocks++] = canon_sum_run(row_loss + start, length);
        }
        rows = blocks;
    } while (rows > 1);
    loss[0] = loss[0] + f32_at(arguments, 3) * row_loss[0];
}

static const struct keel_module_kernel cross_entropy_kernels[] = {
    {"keel_cross_entropy", host_cross_entropy},
    {"keel_cross_entropy_loss", host_cross_entropy_loss},
};

const struct keel_module keel_module_cross_entropy =
    KEEL_MODULE("cross_entropy", keel_cl_cross_entropy, cross_entropy_kernels);
