/* gemm_internal.h - what gemm.c and its host reference share: the bits of `flags` (as in gemm.cl). */
#ifndef KEEL_GEMM_INTERNAL_H
#define KEEL_GEMM_INTERNAL_H

enum { GEMM_TRANSPOSE_A = 1, GEMM_TRANSPOSE_B = 2, GEMM_ACCUMULATE = 4, GEMM_BIAS = 8, GEMM_PRE = 16 };

#endif
