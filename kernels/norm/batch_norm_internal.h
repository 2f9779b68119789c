/* batch_norm_internal.h - what batch_norm.c and its host reference share (as in batch_norm.cl). */
#ifndef KEEL_BATCH_NORM_INTERNAL_H
#define KEEL_BATCH_NORM_INTERNAL_H

/* The bits of `flags`: a residual is added; ReLU at the end; the variance is given instead of rstd. */
enum { BATCH_NORM_RESIDUAL = 1, BATCH_NORM_RELU = 2, BATCH_NORM_VARIANCE = 4 };

#endif
