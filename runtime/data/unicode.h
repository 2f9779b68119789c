/* unicode.h - of Unicode 16.0 what the pre-tokenizer of GPT-2 asks: letters, numbers, white space; and UTF-8.
 */
#ifndef KEEL_UNICODE_H
#define KEEL_UNICODE_H

#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum keel_unicode_class { KEEL_UNICODE_OTHER, KEEL_UNICODE_LETTER, KEEL_UNICODE_NUMBER, KEEL_UNICODE_SPACE };

enum keel_unicode_class keel_unicode_class_of(uint32_t point);

/* The code point at `at`, of which `count` bytes are there, at least 1: how many it takes; 0: that is no
 * UTF-8, or it is cut (RFC 3629: no surrogates, no longer form than is needed). */
uint32_t keel_utf8_read(const uint8_t *at, size_t count, uint32_t *out);

#endif
