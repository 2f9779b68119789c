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

/* Angles, as kernels are given them: shares in parts of 2^64, turns in parts of 2^32. */
struct angles {
    uint64_t ratio, slow, low, span, inverse;
    uint32_t context;
};
static struct angles angles_of(void *const *scalars)
{
    return (struct angles){.ratio = u64_at(scalars, 0),
                           .slow = u64_at(scalars, 1),
                           .context = u32_at(scalars, 2),
                           .low = u64_at(scalars, 3),
                           .span = u64_at(scalars, 4),
                           .inverse = u64_at(scalars, 5)};
}
static uint64_t scale_step(const struct angles *scaling, uint64_t step)
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

/* `heads` heads of one token. */
static void turn_heads(const float *x, uint32_t heads, uint32_t width, uint64_t token, float direction,
                       const struct angles *angles, float *y)
{
    uint64_t step = UINT64_C(0x28be60db9391054a);
    for (uint32_t d = 0; d < width; d += 2, step = multiply_high(step, angles->ratio)) {
        struct turn turn = turn_of(token * scale_step(angles, step));
        turn.sine = direction * turn.sine;
        for (uint64_t at = d; at < (uint64_t)heads * width; at += width)
            turn_pair(x + at, turn, y + at);
    }
}

static void host_rotary(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    const int32_t *positions = u32_at(arguments, 3) != 0 ? arguments[2] : NULL;
    const uint32_t batch = u32_at(arguments, 4), tokens = u32_at(arguments, 5);
    const uint32_t turned = u32_at(arguments, 6), width = u32_at(arguments, 8);
    const uint64_t copied = (uint64_t)u32_at(arguments, 7) * width;
    const float direction = f32_at(arguments, 9);
    const struct angles angles = angles_of(arguments + 10);
    for (uint64_t row = 0; row < (uint64_t)batch * tokens; row++) {
        const uint64_t token = positions != NULL ? (uint32_t)positions[row] : row % tokens;
        const uint64_t begin = row * ((uint64_t)turned * width + copied);
        turn_heads(x + begin, turned, width, token, direction, &angles, y + begin);
        if (x != y)
            memcpy(y + begin + (uint64_t)turned * width, x + begin + (uint64_t)turned * width,
                   keel_size(copied * sizeof(float)));
    }
}

/* y = the sum over heads number `first` to `end` - 1, whose rows lie side by side, the first at x. */
KEEL_HOST_KERNEL static void sum_shares(const float *x, uint32_t first, uint32_t end, uint32_t width,
                                        float *y)
{
    for (uint32_t d = 0; d < width; d++)
        y[d] = 0.0F;
    for (uint32_t eight = (end + 7) / 8 * 8; eight > first; eight -= 8)
        for (uint32_t h = eight - first > 8 ? eight - 8 : first; h < end && h < eight; h++)
            for (uint32_t d = 0; d < width; d++)
                y[d] = y[d] + x[(uint64_t)(h - first) * width + d];
}

/* Shares of keys are turned back where they lie: nobody reads them after. */
static void host_rotary_share(KEEL_HOST_ARGUMENTS)
{
    const uint32_t batch = u32_at(arguments, 2), tokens = u32_at(arguments, 3), heads = u32_at(arguments, 4);
    const uint32_t kv_heads = u32_at(arguments, 5), width = u32_at(arguments, 6), group = heads / kv_heads;
    const uint32_t front = u32_at(arguments, 7), first = u32_at(arguments, 8), turns = u32_at(arguments, 10);
    const struct angles angles = angles_of(arguments + 11);
    for (uint64_t row = 0; row < (uint64_t)batch * tokens; row++) {
        float *x = (float *)arguments[0] + u64_at(arguments, 9) + row * 2 * heads * width;
        float *y = (float *)arguments[1] + row * (front + 2 * (uint64_t)kv_heads) * width;
        if (turns != 0) {
            turn_heads(y, front, width, row % tokens, -1.0F, &angles, y);
            turn_heads(x, heads, width, row % tokens, -1.0F, &angles, x);
        }
        y += (uint64_t)front * width;
        for (uint32_t part = 0; part < 2; part++, x += (uint64_t)heads * width)
            for (uint32_t h = 0; h < kv_heads; h++, y += width)
                sum_shares(x + (uint64_t)h * group * width, first + h * group, first + (h + 1) * group, width,
                           y);
    }
}

static const struct keel_module_kernel rotary_kernels[] = {{"keel_rotary", host_rotary},
                                                           {"keel_rotary_share", host_rotary_share}};

const struct keel_module keel_module_rotary = KEEL_MODULE("rotary", keel_cl_rotary, rotary_kernels);
