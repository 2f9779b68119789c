/* winograd_host.c - winograd.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"
#include "winograd_internal.h"

#define WINOGRAD_REAL         float
#define WINOGRAD_FMA(k, a, b) canon_fma(k, a, b)
#include "winograd_math.h"

extern const struct keel_packed_text keel_cl_winograd;

/* w: the first tap, others `step` apart; u: the first position, others `lanes` apart. */
static void one_weight(const float *w, float *u, uint64_t step, uint32_t lanes, bool turned)
{
    float down[3][6];
    for (uint32_t j = 0; j < 3; j++) {
        float g[3];
        for (uint32_t i = 0; i < 3; i++)
            g[i] = w[(turned ? 8 - (i * 3 + j) : i * 3 + j) * step];
        winograd_weights(g, down[j]);
    }
    for (uint32_t i = 0; i < 6; i++) {
        const float row[3] = {down[0][i], down[1][i], down[2][i]};
        float across[6];
        winograd_weights(row, across);
        for (uint32_t j = 0; j < 6; j++)
            u[(uint64_t)(i * 6 + j) * lanes] = across[j];
    }
}

KEEL_HOST_KERNEL static void host_weights(KEEL_HOST_ARGUMENTS)
{
    const float *w = arguments[0];
    float *u = arguments[1];
    const uint32_t channels = u32_at(arguments, 2), outs = u32_at(arguments, 3);
    const bool turned = u32_at(arguments, 4) != 0;
    const uint32_t lanes = turned ? channels : outs;
    for (uint32_t c = 0; c < channels; c++)
        for (uint32_t o = 0; o < outs; o++)
            one_weight(w + (uint64_t)c * outs + o,
                       u + (uint64_t)(turned ? o : c) * WINOGRAD_POSITIONS * lanes + (turned ? c : o),
                       (uint64_t)channels * outs, lanes, turned);
}

KEEL_HOST_KERNEL static void host_input(KEEL_HOST_ARGUMENTS)
{
    const uint32_t first = u32_at(arguments, 2), count = u32_at(arguments, 3), height = u32_at(arguments, 4),
                   width = u32_at(arguments, 5), channels = u32_at(arguments, 6), down = u32_at(arguments, 9),
                   across = u32_at(arguments, 10);
    float *v = arguments[1];
    for (uint32_t tile = first; tile < first + count; tile++, v += (uint64_t)WINOGRAD_POSITIONS * channels) {
        const float *x =
            (const float *)arguments[0] + (uint64_t)(tile / across / down) * height * width * channels;
        const uint32_t top = tile / across % down * WINOGRAD_TILE - u32_at(arguments, 7);
        const uint32_t left = tile % across * WINOGRAD_TILE - u32_at(arguments, 8);
        for (uint32_t c = 0; c < channels; c++) {
            float columns[6][6], d[6], t[6];
            for (uint32_t j = 0; j < 6; j++) {
                for (uint32_t i = 0; i < 6; i++)
                    d[i] = top + i < height && left + j < width
                               ? x[((uint64_t)(top + i) * width + (left + j)) * channels + c]
                               : 0.0F;
                winograd_in(d, t);
                for (uint32_t i = 0; i < 6; i++)
                    columns[i][j] = t[i];
            }
            for (uint32_t i = 0; i < 6; i++) {
                winograd_in(columns[i], t);
                for (uint32_t j = 0; j < 6; j++)
                    v[(uint64_t)(i * 6 + j) * channels + c] = t[j];
            }
        }
    }
}

KEEL_HOST_KERNEL static void host_output(KEEL_HOST_ARGUMENTS)
{
    const float *m = arguments[0], *bias = arguments[1];
    const uint32_t first = u32_at(arguments, 3), count = u32_at(arguments, 4), out_h = u32_at(arguments, 5),
                   out_w = u32_at(arguments, 6), outs = u32_at(arguments, 7), down = u32_at(arguments, 8),
                   across = u32_at(arguments, 9), has_bias = u32_at(arguments, 10);
    for (uint32_t tile = first; tile < first + count; tile++, m += (uint64_t)WINOGRAD_POSITIONS * outs) {
        const uint32_t top = tile / across % down * WINOGRAD_TILE, left = tile % across * WINOGRAD_TILE;
        float *y = (float *)arguments[2] + (uint64_t)(tile / across / down) * out_h * out_w * outs;
        for (uint32_t o = 0; o < outs; o++) {
            float rows[4][6], column[6], t[4];
            for (uint32_t j = 0; j < 6; j++) {
                for (uint32_t i = 0; i < 6; i++)
                    column[i] = m[(uint64_t)(i * 6 + j) * outs + o];
                winograd_out(column, t);
                for (uint32_t i = 0; i < 4; i++)
                    rows[i][j] = t[i];
            }
            for (uint32_t i = 0; i < 4 && top + i < out_h; i++) {
                winograd_out(rows[i], t);
                for (uint32_t j = 0; j < 4 && left + j < out_w; j++)
                    y[((uint64_t)(top + i) * out_w + left + j) * outs + o] =
                        t[j] + (has_bias ? bias[o] : 0.0F);
            }
        }
    }
}

static const struct keel_module_kernel winograd_kernels[] = {
    {"keel_winograd_weights", host_weights},
    {"keel_winograd_input", host_input},
    {"keel_winograd_output", host_output},
};

const struct keel_module keel_module_winograd = KEEL_MODULE("winograd", keel_cl_winograd, winograd_kernels);
