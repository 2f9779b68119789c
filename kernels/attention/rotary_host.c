/* rotary_host.c - rotary.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_rotary;

static uint64_t multiply_high(uint64_t a, uint64_t b)
{
    const uint64_t mask = UINT32_MAX, a0 = a & mask, a1 = a >> 32, b0 = b & mask, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & mask);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

/* Scaling, as the kernel is given it: shares in parts of 2^64, turns in parts of 2^32. */
struct scaling {
    uint64_t slow, low, span, inverse;
    uint32_t context;
};
static uint64_t scale_step(const struct scaling *scaling, uint64_t step)
{
    if (scaling->slow == 0)
        return step;
    if (scaling->context == 0)
        return multiply_high(step, scaling->slow);
    const uint64_t turns = multiply_high(step, (uint64_t)scaling->context << 32);
    if (turns <= scaling->low)
        return multiply_high(step, scaling->slow);
    if (turns - scaling->low >= scaling->span)
        return step;
    const uint64_t rest = multiply_high((turns - scaling->low) * scaling->inverse, 0 - scaling->slow);
    return multiply_high(step, scaling->slow + rest);
}

struct turn {
    float cosine, sine;
};

static struct turn turn_of(uint64_t angle)
{
    const uint32_t quarter = (uint32_t)((angle + (UINT64_C(1) << 61)) >> 62);
    const int32_t rest = (int32_t)(uint32_t)((angle - ((uint64_t)quarter << 62)) >> 32);
    const float x = (float)rest * 0x1.921fb6p-30f, square = x * x;
    float p = fmaf(square, -0x1.9a6782p-26f, 0x1.717074p-19f);
    p = fmaf(p, square, -0x1.a017dap-13f);
    p = fmaf(p, square, 0x1.11110cp-7f);
    p = fmaf(p, square, -0x1.555556p-3f);
    const float s = fmaf(p * square, x, x);
    p = fmaf(square, 0x1.9930aep-16f, -0x1.6c0870p-10f);
    p = fmaf(p, square, 0x1.55553ep-5f);
    p = fmaf(p, square, -0.5f);
    const float c = fmaf(p, square, 1.0f);
    switch (quarter) {
    case 0:
        return (struct turn){c, s};
    case 1:
        return (struct turn){-s, c};
    case 2:
        return (struct turn){-c, -s};
    default:
        return (struct turn){s, -c};
    }
}

KEEL_HOST_KERNEL static void turn_pair(const float *x, struct turn turn, float *y)
{
    const float even = x[0], odd = x[1];
    y[0] = fmaf(odd, -turn.sine, even * turn.cosine);
    y[1] = fmaf(even, turn.sine, odd * turn.cosine);
}

static void host_rotary(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    const int32_t *positions = u32_at(arguments, 3) != 0 ? arguments[2] : NULL;
    const uint32_t batch = u32_at(arguments, 4), tokens = u32_at(arguments, 5);
    const uint32_t turned = u32_at(arguments, 6), width = u32_at(arguments, 8);
    const uint64_t ratio = u64_at(arguments, 9), copied = (uint64_t)u32_at(arguments, 7) * width;
    const float direction = f32_at(arguments, 10);
    const struct scaling scaling = {.slow = u64_at(arguments, 11),
                                    .context = u32_at(arguments, 12),
                                    .low = u64_at(arguments, 13),
                                    .span = u64_at(arguments, 14),
                                    .inverse = u64_at(arguments, 15)};
    for (uint64_t row = 0; row < (uint64_t)batch * tokens; row++) {
        const uint64_t token = positions != NULL ? (uint32_t)positions[row] : row % tokens;
        const uint64_t begin = row * ((uint64_t)turned * width + copied);
        uint64_t step = UINT64_C(0x28be60db9391054a);
        for (uint32_t d = 0; d < width; d += 2, step = multiply_high(step, ratio)) {
            struct turn turn = turn_of(token * scale_step(&scaling, step));
            turn.sine = direction * turn.sine;
            for (uint64_t head = 0; head < turned; head++) {
                const uint64_t at = begin + head * width + d;
                turn_pair(x + at, turn, y + at);
            }
        }
        if (x != y)
            memcpy(y + begin + (uint64_t)turned * width, x + begin + (uint64_t)turned * width,
                   keel_size(copied * sizeof(float)));
    }
}

static const struct keel_module_kernel rotary_kernels[] = {{"keel_rotary", host_rotary}};

const struct keel_module keel_module_rotary = KEEL_MODULE("rotary", keel_cl_rotary, rotary_kernels);
