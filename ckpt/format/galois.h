/* galois.h - matrices over GF(2^8), polynomial 0x11d: what erasure codes are computed with.
 *
 * galois_isal.c by ISA-L, at the speed of memory; galois_plain.c in C, the same bytes, where Keel is built
 * with ISAL=no. Any thread. */
#ifndef KEEL_CKPT_GALOIS_H
#define KEEL_CKPT_GALOIS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    KEEL_GALOIS_TABLE_BYTES = 32
}; /* of a coefficient: its products with the low nibbles, the high ones */

uint8_t keel_galois_multiply(uint8_t a, uint8_t b);
uint8_t keel_galois_inverse(uint8_t a); /* of 0: 0 */
/* The inverse of a k x k matrix, which is overwritten. False: it has none. */
bool keel_galois_invert(uint8_t *matrix, uint8_t *out, uint32_t k);
/* Tables of `rows` x k coefficients, for keel_galois_combine. */
void keel_galois_tables(const uint8_t *coefficients, uint32_t k, uint32_t rows, uint8_t *out);
/* out[r][i] = sum over c of coefficient (r, c) times sources[c][i], for i below `bytes`. */
void keel_galois_combine(const uint8_t *tables, uint32_t k, uint32_t rows, uint8_t **sources, uint8_t **out,
                         uint32_t bytes);

#endif
