/* huffman.h - prefix codes of bounded length as DEFLATE wants them (RFC 1951, 3.2.2). Pure. */
#ifndef KEEL_CKPT_HUFFMAN_H
#define KEEL_CKPT_HUFFMAN_H

#include <stdint.h>

enum { KEEL_HUFFMAN_SYMBOLS_MAX = 288 };

/* Lengths, at most bits_max, of a complete code for the symbols that occur; 0 for the others. Counts sum to
 * less than 2^32. */
void keel_huffman_lengths(const uint32_t *histogram, uint32_t symbols, uint32_t bits_max, uint8_t *out);
/* The canonical codes of these lengths, each packed as bits << 4 | length, bits in sending order. */
void keel_huffman_codes(const uint8_t *lengths, uint32_t symbols, uint32_t *out);
/* A value of `bits` bits, 1 to 16, the other way round. */
uint32_t keel_huffman_reverse(uint32_t value, uint32_t bits);

#endif
