/* deflate_decode.h - a fast decoder for the DEFLATE that deflate_encode.c writes; see deflate_decode.c. Pure,
 * no allocation. */
#ifndef KEEL_CKPT_DEFLATE_DECODE_H
#define KEEL_CKPT_DEFLATE_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decode a raw DEFLATE stream of `stream_bytes`, all of them, into exactly `bytes`. False: it is damaged, or
 * DEFLATE of a kind that is not taken here (several blocks, stored, fixed codes, distances other than 1);
 * only a complete inflate can tell which, and what is in `out` is undefined. When true, any inflate gives the
 * same bytes.
 *
 * `spare` (NULL when spare_bytes is 0) is working memory: with about as many bytes as `out` long streams are
 * decoded in four places at once. Nothing overlaps. */
bool keel_deflate_decode(const uint8_t *stream, size_t stream_bytes, uint8_t *out, size_t bytes,
                         uint8_t *spare, size_t spare_bytes);

#endif
