/* exact8_internal.h - products as sums of integers: what kernels/gemm asks of this folder. */
#ifndef KEEL_EXACT8_INTERNAL_H
#define KEEL_EXACT8_INTERNAL_H

#include "kernels_internal.h"

/* Of flags of products, those of gemm_internal.h, whose ends they are; of keel_exact8_cut, its own. */
enum { EXACT8_DOWN = 1 /* k by k in memory */, EXACT8_TYPE_AT = 1 };

/* Digits of a product of these kernels whose `planes` are given: 0, it is canonical. */
uint32_t keel_exact8_digits(const struct keel_kernels *kernels);
/* What the compiler is told for kernels of an exact class. */
void keel_exact8_build_options(const struct keel_kernels *kernels, char out[KEEL_BUILD_OPTIONS_BYTES]);
/* Bytes of the planes of a product in so many digits. */
uint64_t keel_exact8_bytes(const struct keel_gemm *op, uint32_t digits);
/* Appends a product that was checked, of kernels with digits; `flags` are its, as of gemm_internal.h. */
enum keel_status keel_exact8_append(struct keel_kernels *kernels, const struct keel_gemm *op, uint32_t flags,
                                    struct keel_launch_list *list);

#endif
