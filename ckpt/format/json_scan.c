/* json_scan.c - JSON (RFC 8259), token by token. */
#include "json_scan.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 120 };

static bool fail(struct keel_json_scan *scan, const char *error)
{
    if (scan->error == NULL)
        scan->error = error;
    return false;
}

static void skip_space(struct keel_json_scan *scan)
{
    while (scan->at < scan->bytes && (scan->text[scan->at] == ' ' || scan->text[scan->at] == '\n' ||
                                      scan->text[scan->at] == '\t' || scan->text[scan->at] == '\r'))
        scan->at++;
}

bool keel_json_next(struct keel_json_scan *scan, char c)
{
    skip_space(scan);
    if (scan->at == scan->bytes || scan->text[scan->at] != c)
        return false;
    scan->at++;
    return true;
}

bool keel_json_take(struct keel_json_scan *scan, char c)
{
    if (keel_json_next(scan, c))
        return true;
    static const char *const wanted[] = {"'{' is wanted", "'}' is wanted", "'[' is wanted",
                                         "']' is wanted", "':' is wanted", "',' is wanted"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (wanted[i][1] == c)
            return fail(scan, wanted[i]);
    return fail(scan, "another character is wanted");
}

bool keel_json_end(struct keel_json_scan *scan)
{
    skip_space(scan);
    return scan->at == scan->bytes || fail(scan, "something follows behind the end");
}

bool keel_json_more(struct keel_json_scan *scan, char close, bool *out_more)
{
    *out_more = keel_json_next(scan, ',');
    if (*out_more)
        return true;
    return keel_json_next(scan, close) || fail(scan, "',' or the end of the list is wanted");
}

/* ---- strings ------------------------------------------------------------------------------------------- */

static uint32_t hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return (uint32_t)(c - '0');
    if (c >= 'a' && c <= 'f')
        return (uint32_t)(c - 'a') + 10;
    return c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10 : 16;
}

/* Four hexadecimal digits behind "\u". */
static bool take_unit(struct keel_json_scan *scan, uint32_t *out)
{
    uint32_t unit = 0;
    if (scan->bytes - scan->at < 4)
        return fail(scan, "a \\u has fewer than four digits");
    for (int i = 0; i < 4; i++) {
        uint32_t digit = hex_value(scan->text[scan->at++]);
        if (digit == 16)
            return fail(scan, "a \\u has fewer than four digits");
        unit = unit << 4 | digit;
    }
    *out = unit;
    return true;
}

static bool take_code(struct keel_json_scan *scan, uint32_t *out)
{
    uint32_t low = 0;
    if (!take_unit(scan, out))
        return false;
    if (*out == 0)
        return fail(scan, "a string holds U+0000");
    if (*out < 0xd800 || *out > 0xdfff)
        return true;
    bool pair = *out < 0xdc00 && scan->bytes - scan->at >= 2 && scan->text[scan->at] == '\\' &&
                scan->text[scan->at + 1] == 'u';
    scan->at += pair ? 2 : 0;
    if (!pair || !take_unit(scan, &low) || low < 0xdc00 || low > 0xdfff)
        return fail(scan, "half a surrogate pair");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* Never more bytes than the escape that said it. */
static char *put_code(char *to, uint32_t code)
{
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    if (code < 0x80) {
        *to = (char)code;
        return to + 1;
    }
    uint32_t bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (uint32_t i = bytes; i-- > 0; code >>= 6)
        to[i] = (char)(i == 0 ? first[bytes] | code : 0x80 | (code & 0x3f));
    return to + bytes;
}

static bool take_escape(struct keel_json_scan *scan, char **to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    uint32_t code;
    char c = scan->at < scan->bytes ? scan->text[scan->at++] : '\0';
    const char *known = c == '\0' ? NULL : strchr(from, c);
    if (known != NULL) {
        *(*to)++ = into[known - from];
        return true;
    }
    if (c != 'u')
        return fail(scan, "an escape that JSON does not have");
    if (!take_code(scan, &code))
        return false;
    *to = put_code(*to, code);
    return true;
}

bool keel_json_string(struct keel_json_scan *scan, char **out)
{
    if (!keel_json_next(scan, '"'))
        return fail(scan, "a string is wanted");
    char *const begin = scan->text + scan->at;
    char *to = begin;
    while (scan->at < scan->bytes) {
        char c = scan->text[scan->at++];
        if (c == '"') {
            *to = '\0'; /* at most where the quote was */
            *out = begin;
            return true;
        }
        if ((unsigned char)c < 0x20)
            return fail(scan, "a control character in a string");
        if (c != '\\')
            *to++ = c;
        else if (!take_escape(scan, &to))
            return false;
    }
    return fail(scan, "a string does not end");
}

/* ---- other values -------------------------------------------------------------------------------------- */

static size_t take_digits(struct keel_json_scan *scan)
{
    size_t from = scan->at;
    while (scan->at < scan->bytes && scan->text[scan->at] >= '0' && scan->text[scan->at] <= '9')
        scan->at++;
    return scan->at - from;
}

static bool at_one_of(const struct keel_json_scan *scan, const char *set)
{
    return scan->at < scan->bytes && scan->text[scan->at] != '\0' &&
           strchr(set, scan->text[scan->at]) != NULL;
}

bool keel_json_u64(struct keel_json_scan *scan, uint64_t *out)
{
    skip_space(scan);
    size_t from = scan->at, digits = take_digits(scan);
    if (digits == 0 || at_one_of(scan, ".eE"))
        return fail(scan, "a whole number from 0 is wanted");
    if (digits > 1 && scan->text[from] == '0')
        return fail(scan, "a number with a leading zero");
    uint64_t value = 0;
    for (size_t i = from; i < scan->at; i++) {
        uint64_t digit = (uint64_t)(scan->text[i] - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return fail(scan, "a number of more than 64 bits");
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}

/* The number of these characters, which is one, is not beyond a double: readers of JSON refuse it otherwise.
 * By its first digits, and the power of ten by which they count. */
static bool is_in_range(const char *at, const char *end)
{
    enum { DIGITS = 20, POWER_MAX = 1000000 };
    char text[DIGITS + 32];
    long long power = 0, exponent = 0;
    size_t digits = 0;
    bool fraction = false;
    for (; at < end && *at != 'e' && *at != 'E'; at++) {
        fraction = fraction || *at == '.';
        if (*at == '.' || *at == '-')
            continue;
        const bool leading = digits == 0 && *at == '0', kept = !leading && digits < DIGITS;
        if (kept)
            text[digits++] = *at;
        power += kept || leading ? -(long long)fraction : (long long)!fraction;
    }
    const bool negative = at < end && at[1] == '-';
    for (at += at < end; at < end; at++)
        if (*at >= '0' && *at <= '9' && exponent < POWER_MAX)
            exponent = exponent * 10 + (*at - '0');
    snprintf(text + digits, sizeof text - digits, "e%lld", power + (negative ? -exponent : exponent));
    return digits == 0 || isfinite(strtod(text, NULL));
}

static bool skip_number(struct keel_json_scan *scan)
{
    const char *begin = scan->text + scan->at;
    if (at_one_of(scan, "-"))
        scan->at++;
    size_t from = scan->at, digits = take_digits(scan);
    if (digits == 0 || (digits > 1 && scan->text[from] == '0'))
        return fail(scan, "a value is wanted");
    if (at_one_of(scan, ".")) {
        scan->at++;
        if (take_digits(scan) == 0)
            return fail(scan, "a number ends in its point");
    }
    if (at_one_of(scan, "eE")) {
        scan->at++;
        if (at_one_of(scan, "+-"))
            scan->at++;
        if (take_digits(scan) == 0)
            return fail(scan, "a number has no exponent");
    }
    return is_in_range(begin, scan->text + scan->at) || fail(scan, "a number too large for a double");
}

static bool skip_word(struct keel_json_scan *scan, const char *word)
{
    size_t bytes = strlen(word);
    if (scan->bytes - scan->at < bytes || memcmp(scan->text + scan->at, word, bytes) != 0)
        return false;
    scan->at += bytes;
    return true;
}

bool keel_json_null(struct keel_json_scan *scan)
{
    skip_space(scan);
    return skip_word(scan, "null");
}

static bool skip_scalar(struct keel_json_scan *scan)
{
    char *ignored;
    skip_space(scan);
    if (at_one_of(scan, "\""))
        return keel_json_string(scan, &ignored);
    return skip_word(scan, "true") || skip_word(scan, "false") || skip_word(scan, "null") ||
           skip_number(scan);
}

static bool skip_name(struct keel_json_scan *scan)
{
    char *ignored;
    return keel_json_string(scan, &ignored) && keel_json_take(scan, ':');
}

bool keel_json_skip(struct keel_json_scan *scan)
{
    char closes[DEPTH_MAX]; /* of the objects and arrays that are open */
    uint32_t depth = 0;
    do {
        bool object = keel_json_next(scan, '{'), array = !object && keel_json_next(scan, '[');
        if (object || array) {
            if (depth == DEPTH_MAX)
                return fail(scan, "nested too deep");
            closes[depth++] = object ? '}' : ']';
            if (!keel_json_next(scan, closes[depth - 1])) {
                if (object && !skip_name(scan))
                    return false;
                continue; /* its first value */
            }
            depth--;
        } else if (!skip_scalar(scan)) {
            return false;
        }
        for (bool more = false; depth > 0 && !more;) { /* a value ended: perhaps what holds it, too */
            if (!keel_json_more(scan, closes[depth - 1], &more))
                return false;
            if (!more)
                depth--;
            else if (closes[depth - 1] == '}' && !skip_name(scan))
                return false;
        }
    } while (depth > 0);
    return true;
}
