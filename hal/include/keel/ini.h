/* ini.h - settings files: INI text read into structs by a table of keys, one row per key.
 *
 * Used for job files, board files and what tuning writes. A table says where each key lies in the struct, its
 * type, default, range and help; reading, overriding, writing and the help text all walk it. A key that is
 * not in the table is an error that names file, line and the nearest key; so is a key given twice. Sections
 * whose keys no table can know (waivers by check, overrides by kernel) go to a function of the caller.
 *
 * Owns nothing: texts are copied into the caller's struct. Calls block on one small file; any thread.
 * Errors: INVALID with file:line, section.key and what is wanted; NOT_FOUND, DENIED, LIMIT, IO of the file.
 */
#ifndef KEEL_INI_H
#define KEEL_INI_H

#include <keel/api.h>
#include <keel/file.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

KEEL_API_BEGIN

enum { KEEL_INI_KEYS_MAX = 192, KEEL_INI_VALUE_BYTES = KEEL_PATH_BYTES };

enum keel_ini_type {
    KEEL_INI_U32,
    KEEL_INI_U64,
    KEEL_INI_FLOAT,
    KEEL_INI_DOUBLE,
    KEEL_INI_BOOL,
    KEEL_INI_TEXT,  /* minimum: fewest characters */
    KEEL_INI_CHOICE /* uint32_t: 0 for the first choice */
};

struct keel_ini_key {
    const char *section, *name;
    enum keel_ini_type type;
    size_t offset, bytes; /* of the field in the struct */
    const char *initial;
    double minimum, maximum;
    const char *choices; /* KEEL_INI_CHOICE: "first|second" */
    unsigned mark;       /* for the table's owner: ini.c does not look at it */
    const char *help;
};

/* One line of an open section. The strings live until the function returns. */
struct keel_ini_entry {
    const char *section, *name, *value;
    const char *where; /* "path:line", for messages */
};

struct keel_ini_table {
    const struct keel_ini_key *keys;
    uint32_t key_count; /* at most KEEL_INI_KEYS_MAX */
    const char *what;   /* "job": what kind of file it is, for messages */
    /* May be NULL. For sections that are in no row: NOT_FOUND (no detail needed) when the section is not the
     * caller's either, else its verdict on the line. Not called for overrides. */
    enum keel_status (*take)(void *object, const struct keel_ini_entry *entry);
};

/* Set every field of the table to its default. */
void keel_ini_defaults(const struct keel_ini_table *table, void *object);
/* Read a file of at most 1 MiB on top of what `object` holds. On failure some fields are set. */
enum keel_status keel_ini_read(const struct keel_ini_table *table, const char *path, void *object);
/* One "section.key=value", as the command line gives it with --set; "--name section.key=value" where an
 * option of that name gave the value, for messages to name. */
enum keel_status keel_ini_override(const struct keel_ini_table *table, const char *text, void *object);

/* Write all keys, defaults included, so that they read back the same. INVALID when a text is one that a line
 * cannot hold; IO. */
enum keel_status keel_ini_write(const struct keel_ini_table *table, const void *object, FILE *out);
/* The value of one key as a file would have it. */
void keel_ini_format(const struct keel_ini_key *key, const void *object, char out[KEEL_INI_VALUE_BYTES]);
/* For --help: a line for each key, "name help (default; range or choices)". */
void keel_ini_print_keys(const struct keel_ini_table *table, FILE *out);

/* How many letters must change to make one name of the other (Levenshtein 1966; the first 64 letters): to
 * find the name that was meant. */
unsigned keel_ini_distance(const char *a, const char *b);

KEEL_API_END

#endif
