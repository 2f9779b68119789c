/* text_out.h - text that grows. A failure is kept, and told at the end. */
#ifndef KEEL_CKPT_TEXT_OUT_H
#define KEEL_CKPT_TEXT_OUT_H

#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keel_text {
    char *text; /* owned */
    size_t bytes, room;
    enum keel_status status;
};

void keel_text_add(struct keel_text *text, const char *more);
void keel_text_u64(struct keel_text *text, uint64_t value);
/* As a JSON string, in quotes: UTF-8 as it is, only what must be escaped is. */
void keel_text_json(struct keel_text *text, const char *value);
/* Gives the text (with a NUL behind it) to the caller, to be freed with keel_free; or frees it, and returns
 * why. */
enum keel_status keel_text_end(struct keel_text *text, char **out, size_t *out_bytes);

#endif
