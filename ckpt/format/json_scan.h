/* json_scan.h - a reader of JSON text in which the caller knows what may come next.
 *
 * For texts of strangers that may be large: it builds no tree, allocates nothing, does not recurse, and
 * decodes strings in place, so that the text itself is all the memory that reading needs. Each call skips
 * white space, then takes what its name says, or returns false with `error` (static) and `at` saying why and
 * where. Leaves to the caller: what a member means, and whether one came twice. */
#ifndef KEEL_CKPT_JSON_SCAN_H
#define KEEL_CKPT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keel_json_scan {
    char *text; /* the caller's; strings in it are overwritten by what they say */
    size_t bytes, at;
    const char *error; /* NULL: none so far */
};

/* Is `c` next? Then it is taken. False is no error here. */
bool keel_json_next(struct keel_json_scan *scan, char c);
bool keel_json_take(struct keel_json_scan *scan, char c);
/* A string, decoded, with a NUL behind it; U+0000 and half a surrogate pair are refused. */
bool keel_json_string(struct keel_json_scan *scan, char **out);
/* A whole number from 0 to 2^64 - 1, in digits. */
bool keel_json_u64(struct keel_json_scan *scan, uint64_t *out);
/* Is `null` next? Then it is taken. False is no error here. */
bool keel_json_null(struct keel_json_scan *scan);
/* Any value, nested at most 120 deep. */
bool keel_json_skip(struct keel_json_scan *scan);
/* Nothing but white space is left. */
bool keel_json_end(struct keel_json_scan *scan);
/* Behind a member or an element: true when `close` ends it all (*out_more false) or a comma goes on. */
bool keel_json_more(struct keel_json_scan *scan, char close, bool *out_more);

#endif
