/* erasure_code.h - Reed-Solomon over the cells of one stripe: any k of the n give all of them.
 *
 * The code is systematic: rows 0 .. k-1 are the data cells themselves, row k + i is parity cell i with the
 * coefficients 1 / ((k + i) xor c) in GF(2^8), polynomial 0x11d, over data cells c (a Cauchy matrix: every
 * square part of it can be inverted). Bloemer et al., An XOR-based erasure-resilient coding scheme, 1995. */
#ifndef KEEL_CKPT_ERASURE_CODE_H
#define KEEL_CKPT_ERASURE_CODE_H

#include <keel/ckpt_tier.h>

struct keel_erasure_code {
    uint32_t data_count, parity_count;
    uint8_t *matrix;  /* (k + m) x k; owned */
    uint8_t *tables;  /* of the parity rows, for encoding; owned */
    uint8_t *scratch; /* for decoding; owned */
};
enum keel_status keel_erasure_code_init(struct keel_erasure_code *code, uint32_t data_count,
                                        uint32_t parity_count);
void keel_erasure_code_fini(struct keel_erasure_code *code);

/* All parity cells of k data cells, each of `bytes`. Any thread. */
void keel_erasure_encode(const struct keel_erasure_code *code, uint8_t **data, uint8_t **parity,
                         uint32_t bytes);
/* Compute the cells of rows `wanted` (at most n) from the k cells `sources` of the rows `rows` (all
 * different). One thread at a time a code. */
void keel_erasure_decode(const struct keel_erasure_code *code, const uint32_t *rows, uint8_t **sources,
                         const uint32_t *wanted, uint32_t wanted_count, uint8_t **out, uint32_t bytes);

#endif
