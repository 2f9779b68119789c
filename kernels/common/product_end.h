/* product_end.h - what becomes of the sums of a product, and checksums of its tiles, on the host: one text
 * for the references of all classes of products. As gemm_tile.h, which has the same for devices. */
#ifndef KEEL_PRODUCT_END_H
#define KEEL_PRODUCT_END_H

#include "canon.h"

/* The bits of `flags`. */
enum {
    GEMM_TRANSPOSE_A = 1,
    GEMM_TRANSPOSE_B = 2,
    GEMM_ACCUMULATE = 4,
    GEMM_BIAS = 8,
    GEMM_PRE = 16,
    GEMM_CHECKSUM = 32,
    GEMM_CHAIN = 64,
    GEMM_RESIDUAL = 128,
    GEMM_OVER_K = 16384,
    GEMM_FRESH = 32768, /* with ACCUMULATE: C counts as +0 */
    GEMM_A_TYPE_AT = 8, /* two bits each: enum keel_dtype */
    GEMM_B_TYPE_AT = 10,
    GEMM_C_TYPE_AT = 12,
    GEMM_TYPE_MASK = 3
};
/* A tile of C: what a checksum covers. */
enum { GEMM_TILE_ROWS = 8, GEMM_TILE_COLUMNS = 48, GEMM_CHECKSUM_TURN = 5 };

static inline float product_get(const void *x, uint64_t at, uint32_t type)
{
    return type == CANON_F32 ? ((const float *)x)[at] : canon_widen(((const uint16_t *)x)[at], type);
}

static inline void product_put(float v, void *y, uint64_t at, uint32_t type)
{
    if (type == CANON_F32)
        ((float *)y)[at] = v;
    else
        ((uint16_t *)y)[at] = (uint16_t)canon_narrow(v, type);
}

/* C, with pre or the residual, of `type`. */
struct product_end {
    void *c, *pre;
    const float *bias;
    uint32_t type, flags;
};

/* The sum of element `at`, in column j. */
static inline void product_finish(const struct product_end *to, uint64_t at, uint32_t j, float s)
{
    if (to->flags & GEMM_BIAS)
        s = s + to->bias[j];
    if (to->flags & GEMM_ACCUMULATE)
        s = (to->flags & GEMM_FRESH ? 0.0F : product_get(to->c, at, to->type)) + s;
    if (to->flags & GEMM_RESIDUAL)
        s = product_get(to->pre, at, to->type) + s;
    if (to->flags & GEMM_PRE) {
        product_put(s, to->pre, at, to->type);
        s = canon_gelu(product_get(to->pre, at, to->type));
    }
    product_put(s, to->c, at, to->type);
}

/* The checksum of tile (row, column) of C, m x n from element `at` on, as gemm_tile.h states it. */
static inline uint32_t product_checksum(const void *c, uint64_t at, uint32_t type, uint32_t m, uint32_t n,
                                        uint32_t ldc, uint32_t row, uint32_t column)
{
    const uint32_t rows = m - row < GEMM_TILE_ROWS ? m - row : GEMM_TILE_ROWS,
                   columns = n - column < GEMM_TILE_COLUMNS ? n - column : GEMM_TILE_COLUMNS;
    uint32_t sum = 0;
    for (uint32_t j = 0; j < columns; j++) {
        uint32_t h = 0;
        for (uint32_t r = 0; r < rows; r++) {
            const uint64_t e = at + (uint64_t)(row + r) * ldc + column + j;
            const uint32_t bits = type == CANON_F32 ? ((const uint32_t *)c)[e] : ((const uint16_t *)c)[e];
            h = ((h << GEMM_CHECKSUM_TURN) | (h >> (32 - GEMM_CHECKSUM_TURN))) + bits;
        }
        sum += h * (2 * j + 1);
    }
    return sum;
}

#endif
