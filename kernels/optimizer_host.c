/* optimizer_host.c - optimizer.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const char keel_cl_optimizer[];

static uint64_t u64_at(void *const *arguments, int index)
{
    return *(const uint64_t *)arguments[index];
}

/* How many of `count` elements the block that begins at `start` has. */
static uint32_t block_length(uint64_t start, uint64_t count)
{
    return count - start < KEEL_BLOCK_ELEMENTS ? (uint32_t)(count - start) : KEEL_BLOCK_ELEMENTS;
}

KEEL_HOST_KERNEL static void host_block_squares(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    const float *x = arguments[0];
    float *scratch = arguments[1];
    uint64_t count = u64_at(arguments, 2);
    for (uint64_t start = 0; start < count; start += KEEL_BLOCK_ELEMENTS) {
        float lanes[KEEL_LANES] = {0};
        uint32_t n = block_length(start, count);
        for (uint32_t i = 0; i < n; i++)
            lanes[i % KEEL_LANES] = canon_fma(x[start + i], x[start + i], lanes[i % KEEL_LANES]);
        scratch[start / KEEL_BLOCK_ELEMENTS] = canon_fold(lanes);
    }
}

static void host_block_sums(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    float *from = (float *)arguments[0] + u64_at(arguments, 1);
    float *to = (float *)arguments[0] + u64_at(arguments, 2);
    uint64_t count = u64_at(arguments, 3);
    for (uint64_t start = 0; start < count; start += KEEL_BLOCK_ELEMENTS)
        to[start / KEEL_BLOCK_ELEMENTS] = canon_sum_run(from + start, block_length(start, count));
}

static void host_norm_finish(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    const float *scratch = arguments[0];
    const struct keel_control *control = arguments[2];
    float *norm = arguments[3];
    const float value = canon_sqrt(scratch[u64_at(arguments, 1)]), max_norm = control->max_norm;
    float factor = max_norm > 0.0f && value > max_norm ? canon_divide(max_norm, value) : 1.0f;
    norm[0] = value;
    norm[1] = (canon_as_bits(value) & 0x7f800000u) == 0x7f800000u ? 0.0f : factor;
}

KEEL_HOST_KERNEL static void host_adamw(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    float *w = arguments[0], *m = arguments[2], *v = arguments[3];
    const float *grad = arguments[1], *norm = arguments[4];
    const struct keel_control *control = arguments[5];
    const float factor = norm[1], weight_decay = *(const float *)arguments[8];
    const float rest1 = 1.0f - control->beta1, rest2 = 1.0f - control->beta2;
    const float scale1 = canon_divide(1.0f, control->bias1), scale2 = canon_divide(1.0f, control->bias2);
    uint64_t count = factor == 0.0f ? 0 : u64_at(arguments, 6);
    for (uint64_t i = 0; i < count; i++) {
        float g = grad[i] * factor;
        m[i] = canon_flush(canon_fma(control->beta1, m[i], rest1 * g));
        v[i] = canon_flush(canon_fma(control->beta2, v[i], (rest2 * g) * g));
        float u = canon_divide(m[i] * scale1, canon_sqrt(v[i] * scale2) + control->epsilon);
        w[i] = canon_fma(-control->learning_rate, canon_fma(weight_decay, w[i], u), w[i]);
    }
}

KEEL_HOST_KERNEL static void host_statistic(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    float *w = arguments[0];
    const float *mean = arguments[1], *norm = arguments[2], momentum = *(const float *)arguments[4];
    uint64_t count = norm[1] == 0.0f ? 0 : u64_at(arguments, 3);
    for (uint64_t i = 0; i < count; i++)
        w[i] = canon_fma(momentum, mean[i] - w[i], w[i]);
}

static const struct keel_module_kernel optimizer_kernels[] = {
    {"keel_block_squares", host_block_squares}, {"keel_block_sums", host_block_sums},
    {"keel_norm_finish", host_norm_finish},     {"keel_adamw", host_adamw},
    {"keel_statistic", host_statistic},
};

const struct keel_module keel_module_optimizer = {
    .name = "optimizer",
    .source = keel_cl_optimizer,
    .kernels = optimizer_kernels,
    .kernel_count = sizeof optimizer_kernels / sizeof optimizer_kernels[0],
};
