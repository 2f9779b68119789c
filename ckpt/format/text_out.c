/* text_out.c - text that grows by doubling. */
#include "text_out.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static void add_bytes(struct keel_text *text, const char *from, size_t bytes)
{
    if (text->status == KEEL_OK && text->room - text->bytes <= bytes) { /* one more for the NUL */
        size_t room = 2 * (text->room + bytes) + 256;
        text->status = keel_realloc(&text->text, text->room, room, 1);
        text->room = text->status == KEEL_OK ? room : text->room;
    }
    if (text->status != KEEL_OK)
        return;
    memcpy(text->text + text->bytes, from, bytes);
    text->bytes += bytes;
    text->text[text->bytes] = '\0';
}

void keel_text_add(struct keel_text *text, const char *more)
{
    add_bytes(text, more, strlen(more));
}

void keel_text_u64(struct keel_text *text, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    keel_text_add(text, digits);
}

static void add_escaped(struct keel_text *text, char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", into[] = "\"\\bfnrt";
    const char *known = strchr(from, c);
    char escape[8];
    if (known != NULL)
        snprintf(escape, sizeof escape, "\\%c", into[known - from]);
    else
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)c);
    keel_text_add(text, escape);
}

void keel_text_json(struct keel_text *text, const char *value)
{
    keel_text_add(text, "\"");
    for (size_t from = 0, at = 0;; at++) {
        bool plain =
            value[at] != '\0' && value[at] != '"' && value[at] != '\\' && (unsigned char)value[at] >= 0x20;
        if (plain)
            continue;
        add_bytes(text, value + from, at - from);
        if (value[at] == '\0')
            break;
        add_escaped(text, value[at]);
        from = at + 1;
    }
    keel_text_add(text, "\"");
}

enum keel_status keel_text_end(struct keel_text *text, char **out, size_t *out_bytes)
{
    if (text->status != KEEL_OK) {
        keel_free(text->text);
        return text->status;
    }
    KEEL_ASSERT(text->text != NULL);
    *out = text->text;
    *out_bytes = text->bytes;
    return KEEL_OK;
}
