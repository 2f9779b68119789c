/* quantised_host.c - quantised.cl in C: the reference, and what the host device runs. */
#include "canon.h"

#include "kernels_internal.h"
#include <string.h>

extern const struct keel_packed_text keel_cl_quantised;

enum { ROWS = 16 };

struct host_product {
    const float *a, *bias; /* bias NULL: none */
    const uint32_t *weights;
    float *c;
    uint32_t m, n, k, bits, group, block;
};

/* Element (r, i) of A, whose rows lie turned in blocks. */
static float a_at(const struct host_product *g, uint64_t r, uint64_t i)
{
    return g->a[r / g->block * g->block * g->k + i * g->block + r % g->block];
}

/* The integer in the highest bits of a word. */
static float highest(uint32_t word, uint32_t bits)
{
    const int32_t q = (int32_t)(word >> (32 - bits)), half = INT32_C(1) << (bits - 1);
    return (float)(q < half ? q : q - 2 * half);
}

/* Sixteen columns, whose words begin at w, of rows from `row` on. */
KEEL_HOST_KERNEL static void add_products(const struct host_product *g, uint64_t row, uint32_t rows,
                                          const uint32_t *w, float sums[ROWS][KEEL_LANES])
{
    const uint32_t step = 32 / g->bits;
    float scale[KEEL_LANES], b[KEEL_LANES];
    for (uint32_t p = 0, end = 0; p < g->k; w += KEEL_LANES) {
        if (p == end) {
            memcpy(scale, w, sizeof scale);
            end = g->k - p > g->group ? p + g->group : g->k;
            continue;
        }
        for (uint32_t i = 0; i < step && p < end; i++, p++) {
            for (uint32_t l = 0; l < KEEL_LANES; l++)
                b[l] = highest(w[l] << g->bits * i, g->bits) * scale[l];
            for (uint32_t r = 0; r < rows; r++) {
                const float x = a_at(g, row + r, p);
                for (uint32_t l = 0; l < KEEL_LANES; l++)
                    sums[r][l] = fmaf(x, b[l], sums[r][l]);
            }
        }
    }
}

static void host_gemm_quantised(KEEL_HOST_ARGUMENTS)
{
    const struct host_product g = {.a = arguments[0],
                                   .weights = arguments[1],
                                   .c = arguments[2],
                                   .bias = u32_at(arguments, 10) ? arguments[3] : NULL,
                                   .m = u32_at(arguments, 4),
                                   .n = u32_at(arguments, 5),
                                   .k = u32_at(arguments, 6),
                                   .bits = u32_at(arguments, 7),
                                   .group = u32_at(arguments, 8),
                                   .block = u32_at(arguments, 9)};
    const uint32_t tile_words = u32_at(arguments, 11);
    for (uint64_t row = 0; row < g.m; row += ROWS)
        for (uint64_t j = 0; j < g.n; j += KEEL_LANES) {
            const uint32_t rows = g.m - row < ROWS ? (uint32_t)(g.m - row) : ROWS;
            float sums[ROWS][KEEL_LANES] = {{0}};
            add_products(&g, row, rows, g.weights + j / KEEL_LANES * tile_words, sums);
            for (uint32_t r = 0; r < rows; r++)
                for (uint64_t l = 0; l < KEEL_LANES && j + l < g.n; l++)
                    g.c[(row + r) * g.n + j + l] = g.bias != NULL ? sums[r][l] + g.bias[j + l] : sums[r][l];
        }
}

static void host_quantised_turn(KEEL_HOST_ARGUMENTS)
{
    const float *a = arguments[0];
    float *turned = arguments[1];
    const uint64_t m = u32_at(arguments, 2), k = u32_at(arguments, 3), block = u32_at(arguments, 4);
    for (uint64_t row = 0; row < m; row += block)
        for (uint64_t i = 0; i < k; i++)
            for (uint64_t r = 0; r < block; r++)
                turned[row * k + i * block + r] = row + r < m ? a[(row + r) * k + i] : 0.0F;
}

static const struct keel_module_kernel quantised_kernels[] = {{"keel_gemm_quantised", host_gemm_quantised},
                                                              {"keel_quantised_turn", host_quantised_turn}};

const struct keel_module keel_module_quantised =
    KEEL_MODULE("quantised", keel_cl_quantised, quantised_kernels);
