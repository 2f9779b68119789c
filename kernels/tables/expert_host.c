/* expert_host.c - expert.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_expert;

static uint32_t choices_of(const uint32_t *keys, uint32_t count, uint32_t expert)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += keys[i] == expert;
    return found;
}

static void host_offsets(KEEL_HOST_ARGUMENTS)
{
    const uint32_t *keys = arguments[0];
    int32_t *offsets = arguments[1];
    const uint32_t count = u32_at(arguments, 2), experts = u32_at(arguments, 3);
    const uint32_t capacity = u32_at(arguments, 4);
    offsets[0] = 0;
    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t taken = choices_of(keys, count, e);
        offsets[e + 1] = offsets[e] + (int32_t)(taken < capacity ? taken : capacity);
    }
}

static void host_place(KEEL_HOST_ARGUMENTS)
{
    uint32_t *work = arguments[0];
    const int32_t *offsets = arguments[1];
    int32_t *place = arguments[2];
    const uint32_t count = u32_at(arguments, 3), experts = u32_at(arguments, 4);
    const uint32_t capacity = u32_at(arguments, 5), places = u32_at(arguments, 7);
    const uint32_t *keys = work, *positions = work + count;
    int32_t *source = (int32_t *)work + u64_at(arguments, 6);
    for (uint32_t i = 0; i < places; i++)
        source[i] = -1;
    for (uint32_t i = 0, rank = 0; i < count; i++) {
        rank = i > 0 && keys[i] == keys[i - 1] ? rank + 1 : 0;
        const bool kept = keys[i] < experts && rank < capacity;
        const uint32_t at = kept ? (uint32_t)offsets[keys[i]] + rank : places;
        if (positions[i] < count)
            place[positions[i]] = at < places ? (int32_t)at : -1;
        if (at < places)
            source[at] = (int32_t)positions[i];
    }
}

static void host_invert(KEEL_HOST_ARGUMENTS)
{
    const int32_t *place = arguments[0];
    int32_t *source = arguments[1];
    const uint32_t count = u32_at(arguments, 2), places = u32_at(arguments, 3);
    const bool clear = u32_at(arguments, 4) != 0;
    for (uint32_t i = 0; clear && i < places; i++)
        source[i] = -1;
    for (uint32_t i = 0; !clear && i < count; i++) {
        if ((uint32_t)place[i] < places)
            source[place[i]] = (int32_t)i;
    }
}

static void host_bias(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    const int32_t *offsets = arguments[1];
    float *out = arguments[2];
    const uint32_t rows = u32_at(arguments, 3), n = u32_at(arguments, 4), experts = u32_at(arguments, 5);
    for (uint32_t e = 0; e < experts; e++) {
        const uint32_t end = (uint32_t)offsets[e + 1] < rows ? (uint32_t)offsets[e + 1] : rows;
        for (uint32_t c = 0; c < n; c++) {
            float s = 0.0F;
            for (uint32_t row = (uint32_t)offsets[e]; row < end; row++)
                s += x[(size_t)row * n + c];
            out[(size_t)e * n + c] += s;
        }
    }
}

static void host_dots(KEEL_HOST_ARGUMENTS)
{
    const float *y = arguments[0], *dout = arguments[2];
    const int32_t *place = arguments[1];
    float *dweights = arguments[3];
    const uint32_t rows = u32_at(arguments, 4), n = u32_at(arguments, 5);
    const uint32_t k = u32_at(arguments, 6), places = u32_at(arguments, 7);
    for (size_t i = 0; i < (size_t)rows * k; i++) {
        float lanes[KEEL_LANES] = {0};
        for (uint32_t c = 0; c < n && (uint32_t)place[i] < places; c++)
            lanes[c % KEEL_LANES] += y[(size_t)place[i] * n + c] * dout[i / k * n + c];
        dweights[i] = canon_fold(lanes);
    }
}

static void host_sums(KEEL_HOST_ARGUMENTS)
{
    const float *probabilities = arguments[0];
    const int32_t *choice = arguments[1];
    float *sums = arguments[2];
    const uint32_t rows = u32_at(arguments, 3), experts = u32_at(arguments, 4), k = u32_at(arguments, 5);
    for (uint32_t e = 0; e < experts; e++) {
        float s = 0.0F;
        for (uint32_t row = 0; row < rows; row++)
            s += probabilities[(size_t)row * experts + e];
        sums[e] = (float)choices_of((const uint32_t *)choice, rows * k, e);
        sums[experts + e] = s;
    }
}

KEEL_HOST_KERNEL static void host_loss(KEEL_HOST_ARGUMENTS)
{
    const float *sums = arguments[0], a = f32_at(arguments, 3);
    float *loss = arguments[1], t = 0.0F;
    const uint32_t experts = u32_at(arguments, 2);
    for (uint32_t e = 0; e < experts; e++)
        t = canon_fma(sums[e], sums[experts + e], t);
    loss[0] = loss[0] + a * t;
}

static void host_grad(KEEL_HOST_ARGUMENTS)
{
    const float *sums = arguments[0];
    float *dprobabilities = arguments[1], a = f32_at(arguments, 4);
    if (u32_at(arguments, 6) != 0)
        a = a * canon_power_of_two(f32_at(arguments, 5));
    const uint32_t rows = u32_at(arguments, 2), experts = u32_at(arguments, 3);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t e = 0; e < experts; e++)
            *dprobabilities++ = sums[e] * a;
    }
}

static const struct keel_module_kernel expert_kernels[] = {
    {"keel_expert_offsets", host_offsets}, {"keel_expert_place", host_place},
    {"keel_expert_invert", host_invert},   {"keel_expert_bias", host_bias},
    {"keel_expert_dots", host_dots},       {"keel_balance_sums", host_sums},
    {"keel_balance_loss", host_loss},      {"keel_balance_grad", host_grad},
};

const struct keel_module keel_module_expert = KEEL_MODULE("expert", keel_cl_expert, expert_kernels);
