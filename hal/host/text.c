/* text.c - is a text UTF-8, and how it becomes so. */
#include <keel/text.h>
#include <stdint.h>
#include <string.h>

/* Bytes of the sequence that begins here, 0 when it is none. */
static size_t utf8_sequence(const unsigned char *at, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (at[0] < 0x80)
        return 1;
    size_t bytes = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || left < bytes)
        return 0;
    uint32_t code = at[0] & (0xffU >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3fU);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < least[bytes] || code > 0x10ffff || surrogate ? 0 : bytes;
}

bool keel_utf8_valid(const char *text, size_t bytes, size_t *out_at)
{
    const unsigned char *from = (const unsigned char *)text;
    for (size_t at = 0; at < bytes;) {
        size_t step = utf8_sequence(from + at, bytes - at);
        if (step == 0) {
            *out_at = at;
            return false;
        }
        at += step;
    }
    return true;
}

void keel_utf8_clean(char *text)
{
    size_t bytes = strlen(text), wrong, from = 0;
    while (!keel_utf8_valid(text + from, bytes - from, &wrong)) {
        from += wrong;
        text[from++] = '?';
    }
}
