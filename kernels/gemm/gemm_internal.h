/* gemm_internal.h - what gemm.c and its host reference share (as in gemm.cl). */
#ifndef KEEL_GEMM_INTERNAL_H
#define KEEL_GEMM_INTERNAL_H

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
    GEMM_A_TYPE_AT = 8, /* two bits each: enum keel_dtype */
    GEMM_B_TYPE_AT = 10,
    GEMM_C_TYPE_AT = 12,
    GEMM_TYPE_MASK = 3
};
/* A tile of C: what a checksum covers. */
enum { GEMM_TILE_ROWS = 8, GEMM_TILE_COLUMNS = 48, GEMM_CHECKSUM_TURN = 5 };
enum { GEMM_PACKED_ROWS = 16 }; /* whose blocks lie in local memory at once, where it is not large */

#endif
