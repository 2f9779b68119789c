/* combine.h - arithmetic on blocks: sum, minimum, maximum of typed elements, in a fixed order.
 *
 * Pure and reentrant; vectorised by the compiler or by hand, but never with an order of its own: each
 * element's value is exactly what the postfix program says, one operation per inner node, with the element
 * type's rounding. fp16 and bf16 are widened to fp32, combined, and rounded to nearest even once per inner
 * node. NaN: a sum with a NaN is a NaN; minimum and maximum with a NaN are NaN (IEEE 754-2019 minimum,
 * maximum, and -0 < +0); it is always the positive quiet NaN without payload, so that bits agree. Integers
 * wrap. AVERAGE adds: who has the whole sum divides. Pointers are aligned to their element. */
#ifndef KEEL_TRANSPORT_COMBINE_H
#define KEEL_TRANSPORT_COMBINE_H

#include <keel/transport.h>

/* out[0..count) = the program's value over leaves[k][0..count). program: postfix, leaf numbers and
 * KEEL_TREE_ADD (tree.h). `out` may be one of the leaves. Depth at most KEEL_TREE_DEPTH_MAX. */
void keel_combine(enum keel_element element, enum keel_reduction reduction, const void *const *leaves,
                  const uint16_t *program, uint32_t program_count, void *out, uint64_t count);
/* x[0..count) divided by `divisor` (one rounding; integers truncate towards zero): the end of an average.
 * divisor: 1 .. KEEL_GROUP_SHARDS_MAX. */
void keel_combine_divide(enum keel_element element, void *x, uint64_t count, uint64_t divisor);

#endif
