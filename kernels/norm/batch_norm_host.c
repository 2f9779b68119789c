/* batch_norm_host.c - batch_norm.cl in C: the reference, and what the host device runs. */
#include "batch_norm_internal.h"
#include "canon.h"
#include "kernels_internal.h"

#include <keel/image_ops.h>

extern const struct keel_packed_text keel_cl_batch_norm;

static inline uint32_t rows_of_block(uint32_t rows, uint32_t block)
{
    const uint32_t left = rows - block * KEEL_NORM_ROWS;
    return left < KEEL_NORM_ROWS ? left : KEEL_NORM_ROWS;
}
static inline uint32_t block_count(uint32_t rows)
{
    return rows / KEEL_NORM_ROWS + (rows % KEEL_NORM_ROWS != 0);
}

KEEL_HOST_KERNEL static void host_blocks(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *blocks = arguments[1];
    const uint32_t rows = u32_at(arguments, 2), n = u32_at(arguments, 3);
    for (uint32_t i = 0; i < block_count(rows); i++, blocks += 2 * (uint64_t)n) {
        const uint32_t high = rows_of_block(rows, i);
        for (uint32_t c = 0; c < n; c++) {
            const float *from = x + (uint64_t)i * KEEL_NORM_ROWS * n + c;
            float s = 0.0F, q = 0.0F;
            for (uint32_t r = 0; r < high; r++)
                s += from[(uint64_t)r * n];
            const float mean = canon_divide(s, (float)high);
            for (uint32_t r = 0; r < high; r++) {
                const float d = from[(uint64_t)r * n] - mean;
                q = canon_fma(d, d, q);
            }
            blocks[c] = s;
            blocks[n + c] = q;
        }
    }
}

KEEL_HOST_KERNEL static void host_statistics(KEEL_HOST_ARGUMENTS)
{
    float *mean_out = arguments[1], *rstd_out = arguments[2], *running_mean = arguments[3],
          *running_variance = arguments[4];
    const uint32_t rows = u32_at(arguments, 5), n = u32_at(arguments, 6);
    const float epsilon = f32_at(arguments, 7), scale = f32_at(arguments, 8);
    const bool running = u32_at(arguments, 9) != 0;
    for (uint32_t c = 0; c < n; c++) {
        const float *block = (const float *)arguments[0] + c;
        float s = 0.0F, q = 0.0F;
        for (uint32_t i = 0; i < block_count(rows); i++)
            s += block[(uint64_t)i * 2 * n];
        const float mean = canon_divide(s, (float)rows);
        for (uint32_t i = 0; i < block_count(rows); i++, block += 2 * (uint64_t)n) {
            const float high = (float)rows_of_block(rows, i);
            const float d = canon_divide(*block, high) - mean;
            q += canon_fma(high * d, d, block[n]);
        }
        mean_out[c] = mean;
        rstd_out[c] = canon_rsqrt(canon_divide(q, (float)rows) + epsilon);
        if (running) {
            const float unbiased = canon_divide(q, (float)((rows > 2 ? rows : 2) - 1));
            running_mean[c] = running_mean[c] + mean * scale;
            running_variance[c] = running_variance[c] + unbiased * scale;
        }
    }
}

KEEL_HOST_KERNEL static void host_apply(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *mean = arguments[1], *given = arguments[2], *gamma = arguments[3],
                *beta = arguments[4], *residual = arguments[5], epsilon = f32_at(arguments, 9);
    float *y = arguments[6];
    const uint32_t rows = u32_at(arguments, 7), n = u32_at(arguments, 8), flags = u32_at(arguments, 10);
    for (uint32_t c = 0; c < n; c++) {
        const float rstd = flags & BATCH_NORM_VARIANCE ? canon_rsqrt(given[c] + epsilon) : given[c];
        for (uint64_t at = c; at < (uint64_t)rows * n; at += n) {
            float z = canon_fma((x[at] - mean[c]) * rstd, gamma[c], beta[c]);
            if (flags & BATCH_NORM_RESIDUAL)
                z = z + residual[at];
            y[at] = flags & BATCH_NORM_RELU && z <= 0.0F ? 0.0F : z;
        }
    }
}

/* What arrives at an element: dy, unless its ReLU was closed. */
static inline float passed(const float *dy, const float *y, uint64_t at, uint32_t flags)
{
    return flags & BATCH_NORM_RELU && !(y[at] > 0.0F) ? 0.0F : dy[at];
}

KEEL_HOST_KERNEL static void host_grad_blocks(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *mean = arguments[1], *rstd = arguments[2], *dy = arguments[3],
                *y = arguments[4];
    float *blocks = arguments[5];
    const uint32_t rows = u32_at(arguments, 6), n = u32_at(arguments, 7), flags = u32_at(arguments, 8);
    for (uint32_t i = 0; i < block_count(rows); i++, blocks += 2 * (uint64_t)n)
        for (uint32_t c = 0; c < n; c++) {
            float sum_g = 0.0F, sum_gt = 0.0F;
            for (uint32_t r = 0; r < rows_of_block(rows, i); r++) {
                const uint64_t at = ((uint64_t)i * KEEL_NORM_ROWS + r) * n + c;
                const float g = passed(dy, y, at, flags);
                sum_g += g;
                sum_gt = canon_fma(g, (x[at] - mean[c]) * rstd[c], sum_gt);
            }
            blocks[c] = sum_g;
            blocks[n + c] = sum_gt;
        }
}

KEEL_HOST_KERNEL static void host_grad_sums(KEEL_HOST_ARGUMENTS)
{
    float *blocks = arguments[0], *dgamma = arguments[1], *dbeta = arguments[2];
    const uint32_t rows = u32_at(arguments, 3), n = u32_at(arguments, 4);
    for (uint32_t c = 0; c < n; c++) {
        float sum_g = 0.0F, sum_gt = 0.0F;
        for (uint32_t i = 0; i < block_count(rows); i++) {
            sum_g += blocks[(uint64_t)i * 2 * n + c];
            sum_gt += blocks[((uint64_t)i * 2 + 1) * n + c];
        }
        dbeta[c] = dbeta[c] + sum_g;
        dgamma[c] = dgamma[c] + sum_gt;
        blocks[c] = canon_divide(sum_g, (float)rows);
        blocks[n + c] = canon_divide(sum_gt, (float)rows);
    }
}

KEEL_HOST_KERNEL static void host_grad_apply(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *mean = arguments[1], *rstd = arguments[2], *gamma = arguments[3],
                *dy = arguments[4], *y = arguments[5], *sums = arguments[6];
    float *dx = arguments[7];
    const uint32_t rows = u32_at(arguments, 8), n = u32_at(arguments, 9), flags = u32_at(arguments, 10);
    for (uint32_t c = 0; c < n; c++)
        for (uint64_t at = c; at < (uint64_t)rows * n; at += n) {
            const float g = passed(dy, y, at, flags), t = (x[at] - mean[c]) * rstd[c];
            dx[at] = canon_fma(-t, sums[n + c], g - sums[c]) * (gamma[c] * rstd[c]);
        }
}

static const struct keel_module_kernel batch_norm_kernels[] = {
    {"keel_batch_norm_blocks", host_blocks},       {"keel_batch_norm_statistics", host_statistics},
    {"keel_batch_norm_apply", host_apply},         {"keel_batch_norm_grad_blocks", host_grad_blocks},
    {"keel_batch_norm_grad_sums", host_grad_sums}, {"keel_batch_norm_grad_apply", host_grad_apply},
};

const struct keel_module keel_module_batch_norm =
    KEEL_MODULE("batch_norm", keel_cl_batch_norm, batch_norm_kernels);
