/* cross_entropy_host.c - cross_entropy.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"
#include <math.h>
#include <string.h>

extern const struct keel_packed_text keel_cl_cross_entropy;

/* Slices of the columns, as the kernels are given them. */
struct columns {
    uint32_t count; /* of columns, without slices */
    uint32_t slices, units, unit;
};
static struct columns columns_at(void *const *arguments, int slices, uint32_t count)
{
    return (struct columns){count, u32_at(arguments, slices), u32_at(arguments, slices + 1),
                            u32_at(arguments, slices + 2)};
}

static float row_max(const float *x, uint32_t columns)
{
    float m = x[0];
    for (uint32_t i = 0; i < columns; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

/* The sum of exp(x - m); d, where it is not NULL, gets them. */
KEEL_HOST_KERNEL static float row_sum(const float *x, float *d, const struct columns *columns, float m)
{
    struct canon_waiting sums = {.count = 0};
    for (uint32_t slice = 0, end = 0; slice < (columns->slices == 0 ? 1 : columns->slices & 255); slice++) {
        const uint32_t begin = end;
        float lanes[KEEL_LANES] = {0};
        end = columns->slices == 0
                  ? columns->count
                  : canon_slice_begin(columns->slices, columns->units, columns->unit, slice + 1);
        for (uint32_t i = begin; i < end; i++) {
            float e = canon_exp(x[i] - m);
            lanes[(i - begin) % KEEL_LANES] += e;
            if (d != NULL)
                d[i] = e;
        }
        canon_give(&sums, canon_fold(lanes));
    }
    return canon_take(&sums);
}

/* What of a row is its target's, and what is each column's. */
struct labels {
    float hit, uniform;
};
static const struct labels target_alone = {1.0F, 0.0F};

static float meant(const float *x, uint32_t columns, float at_target, const struct labels *labels)
{
    if (labels->uniform > 0.0F)
        return canon_fma(labels->uniform, canon_sum_run(x, columns), labels->hit * at_target);
    return at_target;
}

/* Exponentials become gradients; a target that is not among the columns is none of theirs. */
KEEL_HOST_KERNEL static void row_end(float *d, uint32_t columns, uint32_t target, float sum, float scale,
                                     const struct labels *labels)
{
    const float share = canon_divide(1.0f, sum), e_target = target < columns ? d[target] : 0.0f;
    for (uint32_t i = 0; i < columns; i++)
        d[i] = (d[i] * share - labels->uniform) * scale;
    if (target < columns)
        d[target] = (e_target * share - (labels->hit + labels->uniform)) * scale;
}

/* One row; d is NULL without gradient. Returns the loss. */
static float row_cross_entropy(const float *x, float *d, const struct columns *columns, int32_t target,
                               float scale, const struct labels *labels)
{
    const bool known = (uint32_t)target < columns->count;
    const float at_target = meant(x, columns->count, known ? x[target] : NAN, labels);
    const float m = row_max(x, columns->count);
    const float s = row_sum(x, d, columns, m);
    if (d != NULL)
        row_end(d, columns->count, (uint32_t)target, known ? s : NAN, scale, labels);
    return (canon_log(s) + m) - at_target;
}

static float scale_at(void *const *arguments, int scale, int loss_scale)
{
    const float given = f32_at(arguments, scale);
    return u32_at(arguments, loss_scale + 1) != 0 ? given * canon_power_of_two(f32_at(arguments, loss_scale))
                                                  : given;
}

static void host_cross_entropy(KEEL_HOST_ARGUMENTS)
{
    const float *logits = arguments[0];
    const int32_t *targets = arguments[1];
    float *row_loss = arguments[2];
    const uint32_t rows = u32_at(arguments, 4), vocab = u32_at(arguments, 5);
    const struct columns columns = columns_at(arguments, 10, vocab);
    const float scale = scale_at(arguments, 6, 8);
    float *dlogits = u32_at(arguments, 7) != 0 ? arguments[3] : NULL;
    const struct labels labels = {f32_at(arguments, 14), f32_at(arguments, 15)};
    for (uint32_t row = 0; row < rows; row++) {
        size_t base = (size_t)row * vocab;
        row_loss[row] = row_cross_entropy(logits + base, dlogits != NULL ? dlogits + base : NULL, &columns,
                                          targets[row], scale, &labels);
    }
}

static void host_cross_entropy_max(KEEL_HOST_ARGUMENTS)
{
    const float *logits = arguments[0];
    const int32_t *targets = arguments[1];
    float *maxima = arguments[2], *target_bits = arguments[3]; /* as floats: the bits are the same */
    const uint32_t rows = u32_at(arguments, 4), columns = u32_at(arguments, 5), first = u32_at(arguments, 6);
    for (uint32_t row = 0; row < rows; row++) {
        const float *x = logits + (size_t)row * columns, none = 0.0f;
        const uint32_t target = (uint32_t)targets[row] - first;
        maxima[row] = row_max(x, columns);
        memcpy(&target_bits[row], target < columns ? &x[target] : &none, sizeof none);
    }
}

static void host_cross_entropy_part(KEEL_HOST_ARGUMENTS)
{
    const float *logits = arguments[0], *maxima = arguments[1];
    float *sums = arguments[2], *exponentials = arguments[3];
    const struct columns columns = columns_at(arguments, 7, 0);
    for (uint32_t row = 0; row < u32_at(arguments, 4); row++) {
        const size_t from = (size_t)row * u32_at(arguments, 5) + u32_at(arguments, 6);
        sums[row] = row_sum(logits + from, u32_at(arguments, 10) != 0 ? exponentials + from : NULL, &columns,
                            maxima[row]);
    }
}

static void host_cross_entropy_end(KEEL_HOST_ARGUMENTS)
{
    const float *maxima = arguments[0], *sums = arguments[1], *target_logits = arguments[2];
    const int32_t *targets = arguments[3];
    float *row_loss = arguments[4], *dlogits = arguments[5];
    const uint32_t columns = u32_at(arguments, 7);
    for (uint32_t row = 0; row < u32_at(arguments, 6); row++) {
        const bool known = (uint32_t)targets[row] < u32_at(arguments, 9);
        const uint32_t target = known ? (uint32_t)targets[row] - u32_at(arguments, 8) : UINT32_MAX;
        row_loss[row] = (canon_log(sums[row]) + maxima[row]) - (known ? target_logits[row] : NAN);
        if (u32_at(arguments, 11) != 0)
            row_end(dlogits + (size_t)row * columns, columns, target, known ? sums[row] : NAN,
                    scale_at(arguments, 10, 12), &target_alone);
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
    {"keel_cross_entropy", host_cross_entropy},           {"keel_cross_entropy_max", host_cross_entropy_max},
    {"keel_cross_entropy_part", host_cross_entropy_part}, {"keel_cross_entropy_end", host_cross_entropy_end},
    {"keel_cross_entropy_loss", host_cross_entropy_loss},
};

const struct keel_module keel_module_cross_entropy =
    KEEL_MODULE("cross_entropy", keel_cl_cross_entropy, cross_entropy_kernels);
