/* layernorm_host.c - layernorm.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_layernorm;

KEEL_HOST_KERNEL static void row_forward(const float *x, const float *gamma, const float *beta, float *y,
                                         uint32_t n, float epsilon, float *mean_out, float *rstd_out)
{
    const float mean = mean_out != NULL ? canon_divide(canon_sum_run(x, n), (float)n) : 0.0f;
    float lanes[KEEL_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        float d = x[i] - mean;
        lanes[i % KEEL_LANES] = canon_fma(d, d, lanes[i % KEEL_LANES]);
    }
    const float rstd = canon_rsqrt(canon_divide(canon_fold(lanes), (float)n) + epsilon);
    for (uint32_t i = 0; i < n; i++) {
        const float t = (x[i] - mean) * rstd, g = gamma != NULL ? gamma[i] : 1.0f;
        y[i] = beta != NULL ? canon_fma(t, g, beta[i]) : t * g;
    }
    if (mean_out != NULL)
        *mean_out = mean;
    *rstd_out = rstd;
}

static void host_layernorm(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[3], *mean = arguments[4], *rstd = arguments[5];
    uint32_t rows = u32_at(arguments, 6), n = u32_at(arguments, 7);
    const float *gamma = u32_at(arguments, 11) != 0 ? arguments[1] : NULL;
    const float *beta = u32_at(arguments, 9) != 0 ? arguments[2] : NULL;
    for (uint32_t row = 0; row < rows; row++) {
        size_t base = (size_t)row * n;
        row_forward(x + base, gamma, beta, y + base, n, f32_at(arguments, 8),
                    u32_at(arguments, 10) != 0 ? &mean[row] : NULL, &rstd[row]);
    }
}

KEEL_HOST_KERNEL static void row_backward(const float *x, const float *gamma, const float *mean_in,
                                          float rstd, const float *dy, const float *residual, float *dx,
                                          uint32_t n)
{
    const float mean = mean_in != NULL ? *mean_in : 0.0f;
    float sum_g[KEEL_LANES] = {0}, sum_gt[KEEL_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        float g = gamma != NULL ? dy[i] * gamma[i] : dy[i], t = (x[i] - mean) * rstd;
        sum_g[i % KEEL_LANES] += g;
        sum_gt[i % KEEL_LANES] = canon_fma(g, t, sum_gt[i % KEEL_LANES]);
    }
    const float a = mean_in != NULL ? canon_divide(canon_fold(sum_g), (float)n) : 0.0f;
    const float b = canon_divide(canon_fold(sum_gt), (float)n);
    for (uint32_t i = 0; i < n; i++) {
        float g = gamma != NULL ? dy[i] * gamma[i] : dy[i], t = (x[i] - mean) * rstd;
        float d = canon_fma(-t, b, g - a) * rstd;
        dx[i] = residual != NULL ? residual[i] + d : d;
    }
}

static void host_layernorm_grad(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *mean = arguments[2], *rstd = arguments[3], *dy = arguments[4];
    const float *residual = arguments[5], *gamma = u32_at(arguments, 11) != 0 ? arguments[1] : NULL;
    float *dx = arguments[6];
    uint32_t rows = u32_at(arguments, 7), n = u32_at(arguments, 8), has_residual = u32_at(arguments, 9);
    for (uint32_t row = 0; row < rows; row++) {
        size_t base = (size_t)row * n;
        row_backward(x + base, gamma, u32_at(arguments, 10) != 0 ? &mean[row] : NULL, rstd[row], dy + base,
                     has_residual != 0 ? residual + base : NULL, dx + base, n);
    }
}

/* Rows [begin, end) of a slice; without slices, all. */
struct slice_rows {
    uint32_t begin, end;
};
static struct slice_rows slice_rows(void *const *slices, uint32_t slice, uint32_t rows)
{
    const uint32_t cut = u32_at(slices, 0), units = u32_at(slices, 1), unit = u32_at(slices, 2);
    if (cut == 0)
        return (struct slice_rows){0, rows};
    return (struct slice_rows){canon_slice_begin(cut, units, unit, slice),
                               canon_slice_begin(cut, units, unit, slice + 1)};
}

KEEL_HOST_KERNEL static void host_layernorm_grad_columns(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0], *mean = arguments[1], *rstd = arguments[2], *dy = arguments[3];
    float *dgamma = arguments[4], *dbeta = arguments[5];
    uint32_t n = u32_at(arguments, 7), has_beta = u32_at(arguments, 8);
    const bool centered = u32_at(arguments, 9) != 0;
    for (uint32_t slice = 0; slice < range->global[1]; slice++) {
        const struct slice_rows rows = slice_rows(arguments + 10, slice, u32_at(arguments, 6));
        for (uint32_t column = 0; column < n; column++) {
            float sum_gamma = 0.0f, sum_beta = 0.0f;
            for (uint32_t row = rows.begin; row < rows.end; row++) {
                size_t i = (size_t)row * n + column;
                sum_gamma = canon_fma(dy[i], (x[i] - (centered ? mean[row] : 0.0f)) * rstd[row], sum_gamma);
                sum_beta += dy[i];
            }
            dgamma[(size_t)slice * n + column] += sum_gamma;
            if (has_beta != 0)
                dbeta[(size_t)slice * n + column] += sum_beta;
        }
    }
}

static void host_bias_grad(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *out = arguments[1];
    uint32_t n = u32_at(arguments, 3);
    for (uint32_t slice = 0; slice < range->global[1]; slice++) {
        const struct slice_rows rows = slice_rows(arguments + 4, slice, u32_at(arguments, 2));
        for (uint32_t column = 0; column < n; column++) {
            float s = x[(size_t)rows.begin * n + column];
            for (uint32_t row = rows.begin + 1; row < rows.end; row++)
                s += x[(size_t)row * n + column];
            out[(size_t)slice * n + column] += s;
        }
    }
}

static const struct keel_module_kernel layernorm_kernels[] = {
    {"keel_layernorm", host_layernorm},
    {"keel_layernorm_grad", host_layernorm_grad},
    {"keel_layernorm_grad_columns", host_layernorm_grad_columns},
    {"keel_bias_grad", host_bias_grad},
};

const struct keel_module keel_module_layernorm =
    KEEL_MODULE("layernorm", keel_cl_layernorm, layernorm_kernels);
