/* json.c - JSON as commands write it: ASCII, one line for the whole. */
#include <keel/json.h>

#include <inttypes.h>
#include <keel/text.h>
#include <string.h>

static void write_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (size_t left = strlen(text), step; left > 0; text += step, left -= step) {
        uint32_t code;
        step = keel_utf8_code(text, left, &code);
        if (step == 0) { /* no UTF-8 */
            code = 0xfffd;
            step = 1;
        }
        if (code == '"' || code == '\\')
            fprintf(out, "\\%c", (int)code);
        else if (code > 0xffff)
            fprintf(out, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (code >> 10)),
                    (unsigned)(0xdc00 + (code & 0x3ff)));
        else if (code < ' ' || code > '~')
            fprintf(out, "\\u%04x", (unsigned)code);
        else
            fputc((int)code, out);
    }
    fputc('"', out);
}

static void begin(struct keel_json *json, const char *key)
{
    if (json->follows)
        fputc(',', json->out);
    json->follows = true;
    if (key != NULL) {
        write_text(json->out, key);
        fputc(':', json->out);
    }
}

void keel_json_open(struct keel_json *json, const char *key, char bracket)
{
    begin(json, key);
    fputc(bracket, json->out);
    json->follows = false;
}

void keel_json_close(struct keel_json *json, char bracket)
{
    fputc(bracket, json->out);
    json->follows = true;
}

void keel_json_text(struct keel_json *json, const char *key, const char *value)
{
    begin(json, key);
    if (value == NULL)
        fputs("null", json->out);
    else
        write_text(json->out, value);
}

void keel_json_number(struct keel_json *json, const char *key, uint64_t value)
{
    begin(json, key);
    fprintf(json->out, "%" PRIu64, value);
}

void keel_json_real(struct keel_json *json, const char *key, double value, int digits)
{
    begin(json, key);
    fprintf(json->out, "%.*f", digits, value);
}

void keel_json_bool(struct keel_json *json, const char *key, bool value)
{
    begin(json, key);
    fputs(value ? "true" : "false", json->out);
}
