/* gemm_host.c - gemm.cl in C: the reference, and what the host device runs.
 *
 * Simple, and blocked enough to be of use: 64 x 64 sums at a time, B copied so that the inner loop runs
 * over neighbours. The chain of an element is that of gemm.cl: k strictly ascending from zero. */
#include "canon.h"
#include "gemm_internal.h"
#include "kernels_internal.h"
#include <string.h>

extern const char keel_cl_gemm[];

enum { BLOCK_ROWS = 64, BLOCK_COLUMNS = 64, BLOCK_DEPTH = 64 };

struct host_gemm {
    const float *a, *b, *bias;
    float *c, *pre;
    uint32_t m, n, k, ldc, flags;
    uint64_t a_step_i, a_step_p, b_step_p, b_step_j; /* elements from one to the next of op(A), op(B) */
};

/* Columns past the end are zero. */
static void copy_panel(const struct host_gemm *g, uint32_t p0, uint32_t depth, uint32_t j0, uint32_t columns,
                       float panel[BLOCK_DEPTH][BLOCK_COLUMNS])
{
    for (uint32_t p = 0; p < depth; p++)
        for (uint32_t j = 0; j < BLOCK_COLUMNS; j++)
            panel[p][j] = j < columns ? g->b[(p0 + p) * g->b_step_p + (j0 + j) * g->b_step_j] : 0.0F;
}

static void finish(const struct host_gemm *g, uint32_t i, uint32_t j, float s)
{
    uint64_t at = (uint64_t)i * g->ldc + j;
    if (g->flags & GEMM_BIAS)
        s = s + g->bias[j];
    if (g->flags & GEMM_ACCUMULATE)
        s = g->c[at] + s;
    if (g->flags & GEMM_RESIDUAL)
        s = g->pre[at] + s;
    if (g->flags & GEMM_PRE) {
        g->pre[at] = s;
        s = canon_gelu(s);
    }
    g->c[at] = s;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

KEEL_HOST_KERNEL static void multiply_block(const struct host_gemm *g, uint32_t i0, uint32_t j0)
{
    float sums[BLOCK_ROWS][BLOCK_COLUMNS] = {{0}};
    float panel[BLOCK_DEPTH][BLOCK_COLUMNS];
    uint32_t rows = smaller(BLOCK_ROWS, g->m - i0), columns = smaller(BLOCK_COLUMNS, g->n - j0);
    if (g->flags & GEMM_CHAIN)
        for (uint32_t i = 0; i < rows; i++)
            memcpy(sums[i], g->c + (uint64_t)(i0 + i) * g->ldc + j0, columns * sizeof(float));
    for (uint32_t p0 = 0; p0 < g->k; p0 += BLOCK_DEPTH) {
        uint32_t depth = smaller(BLOCK_DEPTH, g->k - p0);
        copy_panel(g, p0, depth, j0, columns, panel);
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t p = 0; p < depth; p++) {
                float x = g->a[(i0 + i) * g->a_step_i + (p0 + p) * g->a_step_p];
                for (uint32_t j = 0; j < BLOCK_COLUMNS; j++)
                    sums[i][j] = fmaf(x, panel[p][j], sums[i][j]);
            }
    }
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < columns; j++)
            finish(g, i0 + i, j0 + j, sums[i][j]);
}

static uint32_t scalar_u32(const void *argument)
{
    return *(const uint32_t *)argument;
}

/* The checksum of tile (row, column) of C, as gemm.cl states it. */
static uint32_t tile_checksum(const float *c, uint32_t m, uint32_t n, uint32_t ldc, uint32_t row,
                              uint32_t column)
{
    uint32_t rows = smaller(GEMM_TILE_ROWS, m - row), columns = smaller(GEMM_TILE_COLUMNS, n - column),
             sum = 0;
    for (uint32_t j = 0; j < columns; j++) {
        uint32_t h = 0, bits;
        for (uint32_t r = 0; r < rows; r++) {
            memcpy(&bits, c + (uint64_t)(row + r) * ldc + column + j, sizeof bits);
            h = ((h << GEMM_CHECKSUM_TURN) | (h >> (32 - GEMM_CHECKSUM_TURN))) + bits;
        }
        sum += h * (2 * j + 1);
    }
    return sum;
}

static void host_gemm(void *const *arguments, const struct keel_range *range)
{
    uint32_t lda = scalar_u32(arguments[8]), ldb = scalar_u32(arguments[9]);
    uint32_t flags = scalar_u32(arguments[11]);
    uint32_t *checksums = arguments[16];
    struct host_gemm g = {
        .bias = arguments[3],
        .m = scalar_u32(arguments[5]),
        .n = scalar_u32(arguments[6]),
        .k = scalar_u32(arguments[7]),
        .ldc = scalar_u32(arguments[10]),
        .flags = flags,
        .a_step_i = flags & GEMM_TRANSPOSE_A ? 1 : lda,
        .a_step_p = flags & GEMM_TRANSPOSE_A ? lda : 1,
        .b_step_p = flags & GEMM_TRANSPOSE_B ? 1 : ldb,
        .b_step_j = flags & GEMM_TRANSPOSE_B ? ldb : 1,
    };
    for (uint64_t batch = 0; batch < range->global[2]; batch++) {
        g.a = (const float *)arguments[0] + batch * *(const uint64_t *)arguments[13];
        g.b = (const float *)arguments[1] + batch * *(const uint64_t *)arguments[14];
        g.c = (float *)arguments[2] + batch * *(const uint64_t *)arguments[15];
        g.pre = (float *)arguments[4] + batch * *(const uint64_t *)arguments[15];
        for (uint32_t i = 0; i < g.m; i += BLOCK_ROWS)
            for (uint32_t j = 0; j < g.n; j += BLOCK_COLUMNS)
                multiply_block(&g, i, j);
        if (flags & GEMM_CHECKSUM)
            for (uint32_t i = 0; i < g.m; i += GEMM_TILE_ROWS)
                for (uint32_t j = 0; j < g.n; j += GEMM_TILE_COLUMNS)
                    *checksums++ = tile_checksum(g.c, g.m, g.n, g.ldc, i, j);
    }
}

static void host_gemm_check(void *const *arguments, const struct keel_range *range)
{
    const uint32_t *checksums = arguments[1];
    uint32_t *report = (uint32_t *)arguments[2] + 2 * (uint64_t)scalar_u32(arguments[8]);
    uint32_t m = scalar_u32(arguments[3]), n = scalar_u32(arguments[4]), ldc = scalar_u32(arguments[5]),
             number = 0;
    for (uint64_t batch = 0; batch < range->global[2]; batch++) {
        const float *c = (const float *)arguments[0] + batch * *(const uint64_t *)arguments[7];
        for (uint32_t i = 0; i < m; i += GEMM_TILE_ROWS)
            for (uint32_t j = 0; j < n; j += GEMM_TILE_COLUMNS, number++)
                if (tile_checksum(c, m, n, ldc, i, j) != checksums[number]) {
                    report[0]++;
                    report[1] = smaller(report[1], number);
                }
    }
}

static const struct keel_module_kernel gemm_kernels[] = {{"keel_gemm", host_gemm},
                                                         {"keel_gemm_check", host_gemm_check}};

const struct keel_module keel_module_gemm = {
    .name = "gemm",
    .source = keel_cl_gemm,
    .kernels = gemm_kernels,
    .kernel_count = sizeof gemm_kernels / sizeof gemm_kernels[0],
};
