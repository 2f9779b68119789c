/* json.c - JSON as commands write it: ASCII, one line for the whole. */
#include <keel/json.h>

#include <inttypes.h>

static void write_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\')
            fprintf(out, "\\%c", *at);
        else if (*at < ' ' || *at > '~')
            fprintf(out, "\\u%04x", *at);
        else
            fputc(*at, out);
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
