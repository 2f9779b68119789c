/* text.h - texts as UTF-8 (RFC 3629: no overlong form, no surrogate, nothing above U+10FFFF). Any thread. */
#ifndef KEEL_TEXT_H
#define KEEL_TEXT_H

#include <keel/api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KEEL_API_BEGIN

/* Bytes of the sequence at `text`, where `left` bytes are, and its code point; 0 when it is none. */
size_t keel_utf8_code(const char *text, size_t left, uint32_t *out_code);
/* *out_at: the first byte that is wrong, written when the answer is false. */
bool keel_utf8_valid(const char *text, size_t bytes, size_t *out_at);
/* Every byte that is wrong becomes '?': for names of files, which may be any bytes, in messages and JSON. */
void keel_utf8_clean(char *text);

KEEL_API_END

#endif
