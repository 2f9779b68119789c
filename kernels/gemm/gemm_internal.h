/* gemm_internal.h - what gemm.c and its host reference share (as in gemm.cl). */
#ifndef KEEL_GEMM_INTERNAL_H
#define KEEL_GEMM_INTERNAL_H

#include "product_end.h" /* flags, tiles */

enum { GEMM_PACKED_ROWS = 16 }; /* whose blocks lie in local memory at once, where it is not large */

#endif
