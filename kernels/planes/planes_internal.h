/* planes_internal.h - products of prepared operands: what kernels/gemm asks of this folder. */
#ifndef KEEL_PLANES_INTERNAL_H
#define KEEL_PLANES_INTERNAL_H

#include "kernels_internal.h"

/* Of flags of products, those of gemm_internal.h, whose ends they are; of keel_planes_cut, its own. */
enum { PLANES_DOWN = 1 /* k by k in memory */, PLANES_TYPE_AT = 1, PLANES_TYPE_MASK = 3, PLANES_UNIT = 8 };

/* What the compiler is told for kernels of a class that has planes. */
void keel_planes_build_options(const struct keel_kernels *kernels, char out[KEEL_BUILD_OPTIONS_BYTES]);
/* Bytes of the planes of a product in so many digits. */
uint64_t keel_planes_bytes(const struct keel_gemm *op, uint32_t digits);
/* Appends a product that was checked, of kernels with digits; `flags` are its, as of gemm_internal.h. */
enum keel_status keel_planes_append(struct keel_kernels *kernels, const struct keel_gemm *op, uint32_t flags,
                                    struct keel_launch_list *list);

#endif
