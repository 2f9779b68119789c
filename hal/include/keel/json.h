/* json.h - JSON written as it comes: objects and lists within each other, commas by themselves.
 *
 * ASCII, one line for the whole: characters of a text that are not ASCII are written as \uXXXX, bytes that
 * are no UTF-8 as U+FFFD. No errors of its own: look at ferror(out). One thread per struct. `key` is NULL
 * within a list and at the top. */
#ifndef KEEL_JSON_H
#define KEEL_JSON_H

#include <keel/api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

KEEL_API_BEGIN

struct keel_json {
    FILE *out;    /* the caller's */
    bool follows; /* something stands before in this object or list */
};
void keel_json_open(struct keel_json *json, const char *key, char bracket);      /* '{' or '[' */
void keel_json_close(struct keel_json *json, char bracket);                      /* '}' or ']' */
void keel_json_text(struct keel_json *json, const char *key, const char *value); /* NULL: null */
void keel_json_number(struct keel_json *json, const char *key, uint64_t value);
void keel_json_real(struct keel_json *json, const char *key, double value, int digits);
void keel_json_bool(struct keel_json *json, const char *key, bool value);

KEEL_API_END

#endif
