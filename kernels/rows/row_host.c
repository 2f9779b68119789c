/* row_host.c - row.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_row;

static void softmax_row(const float *x, float *y, uint32_t n)
{
    float m = x[0], lanes[KEEL_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    for (uint32_t i = 0; i < n; i++) {
        y[i] = canon_exp(x[i] - m);
        lanes[i % KEEL_LANES] += y[i];
    }
    const float share = canon_divide(1.0F, canon_fold(lanes));
    for (uint32_t i = 0; i < n; i++)
        y[i] *= share;
}

KEEL_HOST_KERNEL static void host_softmax(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    const uint32_t rows = u32_at(arguments, 2), n = u32_at(arguments, 3);
    for (uint32_t row = 0; row < rows; row++)
        softmax_row(x + (size_t)row * n, y + (size_t)row * n, n);
}

static void host_softmax_grad(KEEL_HOST_ARGUMENTS)
{
    const float *y = arguments[0], *dy = arguments[1];
    float *dx = arguments[2];
    const uint32_t rows = u32_at(arguments, 3), n = u32_at(arguments, 4);
    for (uint32_t row = 0; row < rows; row++, y += n, dy += n, dx += n) {
        float lanes[KEEL_LANES] = {0};
        for (uint32_t i = 0; i < n; i++)
            lanes[i % KEEL_LANES] += y[i] * dy[i];
        const float d = canon_fold(lanes);
        for (uint32_t i = 0; i < n; i++)
            dx[i] = y[i] * (dy[i] - d);
    }
}

static int32_t order_of(float x)
{
    const uint32_t bits = canon_as_bits(x);
    const int32_t size = (int32_t)(bits & 0x7fffffffU);
    if (size > 0x7f800000)
        return INT32_MAX;
    return bits >> 31 != 0 ? -size : size;
}

static void top_k_row(const float *x, int32_t *best, uint32_t n, uint32_t k)
{
    uint32_t filled = 0;
    for (uint32_t j = 0; j < n; j++) {
        const int32_t key = order_of(x[j]);
        if (filled == k && order_of(x[best[k - 1]]) >= key)
            continue;
        uint32_t at = filled < k ? filled++ : k - 1;
        for (; at > 0 && order_of(x[best[at - 1]]) < key; at--)
            best[at] = best[at - 1];
        best[at] = (int32_t)j;
    }
}

static void host_top_k(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *values = arguments[1];
    int32_t *indices = arguments[2];
    const uint32_t rows = u32_at(arguments, 3), n = u32_at(arguments, 4), k = u32_at(arguments, 5);
    const bool has_values = u32_at(arguments, 6) != 0;
    for (uint32_t row = 0; row < rows; row++, x += n, indices += k) {
        top_k_row(x, indices, n, k);
        for (uint32_t j = 0; has_values && j < k; j++)
            values[(size_t)row * k + j] = x[indices[j]];
    }
}

static void host_top_k_grad(KEEL_HOST_ARGUMENTS)
{
    const int32_t *indices = arguments[0];
    const float *dvalues = arguments[1];
    float *dx = arguments[2];
    const uint32_t rows = u32_at(arguments, 3), n = u32_at(arguments, 4), k = u32_at(arguments, 5);
    for (uint32_t row = 0; row < rows; row++, dx += n, indices += k, dvalues += k) {
        for (uint32_t i = 0; i < n; i++)
            dx[i] = 0.0F;
        for (uint32_t j = 0; j < k; j++) {
            if ((uint32_t)indices[j] < n)
                dx[indices[j]] += dvalues[j];
        }
    }
}

static void host_cumsum(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    const uint32_t rows = u32_at(arguments, 2), n = u32_at(arguments, 3);
    const bool reverse = u32_at(arguments, 4) != 0;
    for (uint32_t row = 0; row < rows; row++, x += n, y += n) {
        float s = 0.0F;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t at = reverse ? n - 1 - i : i;
            s = i == 0 ? x[at] : s + x[at];
            y[at] = s;
        }
    }
}

static const struct keel_module_kernel row_kernels[] = {
    {"keel_softmax", host_softmax}, {"keel_softmax_grad", host_softmax_grad},
    {"keel_top_k", host_top_k},     {"keel_top_k_grad", host_top_k_grad},
    {"keel_cumsum", host_cumsum},
};

const struct keel_module keel_module_row = KEEL_MODULE("row", keel_cl_row, row_kernels);
