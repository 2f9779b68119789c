/* deflate_encode.h - DEFLATE (RFC 1951), fast: one dynamic-Huffman block of literals, and of repetitions of
 * the last byte where one byte is nearly everywhere; no other matches.
 *
 * For byte planes, whose gain is in the frequencies of bytes. Any inflate reads the result (raw: no zlib or
 * gzip wrapping). Pure: same input, same output, no allocation, some 300 KiB of stack. */
#ifndef KEEL_CKPT_DEFLATE_ENCODE_H
#define KEEL_CKPT_DEFLATE_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KEEL_DEFLATE_INPUT_MAX = 1 << 20,
    /* What `out` must have beyond the returned size: the last bits are stored eight bytes at a time. */
    KEEL_DEFLATE_SLACK_BYTES = 16
};

/* How often each byte occurs. */
void keel_byte_histogram(const uint8_t *data, size_t bytes, uint32_t out[256]);

/* Encode `bytes` (1 .. KEEL_DEFLATE_INPUT_MAX) with that histogram; returns the size, or 0 when it would
 * be larger than `limit` (then nothing useful is in out). `out` holds limit + KEEL_DEFLATE_SLACK_BYTES. */
size_t keel_deflate_encode(const uint8_t *data, size_t bytes, const uint32_t histogram[256], uint8_t *out,
                           size_t limit);

#endif
