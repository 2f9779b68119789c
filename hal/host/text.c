/* text.c - is a text UTF-8, and how it becomes so. */
#include <keel/text.h>
#include <string.h>

size_t keel_utf8_code(const char *text, size_t left, uint32_t *out_code)
{
    const unsigned char *at = (const unsigned char *)text;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    *out_code = at[0];
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
    *out_code = code;
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < least[bytes] || code > 0x10ffff || surrogate ? 0 : bytes;
}

bool keel_utf8_valid(const char *text, size_t bytes, size_t *out_at)
{
    uint32_t code;
    for (size_t at = 0; at < bytes;) {
        size_t step = keel_utf8_code(text + at, bytes - at, &code);
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
