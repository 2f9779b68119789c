/* compressed.h - inner nodes of the tree for blocks of numbers; pure. For combine.c. */
#ifndef KEEL_TRANSPORT_OPERATIONS_COMPRESSED_H
#define KEEL_TRANSPORT_OPERATIONS_COMPRESSED_H

#include <keel/transport_compressed.h>

/* out[0..count) = left + right; out may be one of them. Sums alone: `reduction` is not looked at. */
void keel_i8_block_node(enum keel_reduction reduction, void *out, const void *left, const void *right,
                        uint64_t count);
void keel_top_k_node(enum keel_reduction reduction, void *out, const void *left, const void *right,
                     uint64_t count);

#endif
