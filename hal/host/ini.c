/* ini.c - settings files by a table of keys: values, lines, nearest names.
 *
 * inih cuts the text into lines; everything that can be wrong with one is said here. */
#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <keel/ini.h>
#include <keel/memory.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FILE_BYTES_MAX = 1 << 20 };

static char *field_text(void *object, const struct keel_ini_key *key)
{
    return (char *)object + key->offset;
}

/* ---- parsing of values ---------------------------------------------------------------------------- */

static enum keel_status bad_value(const struct keel_ini_key *key, const char *value, const char *where,
                                  const char *wanted)
{
    return keel_fail(KEEL_INVALID, "%s: %s.%s = %s: %s", where, key->section, key->name, value, wanted);
}

enum { RANGE_BYTES = 64 };
static void print_range(const struct keel_ini_key *key, char out[RANGE_BYTES])
{
    if (key->type == KEEL_INI_U32 || key->type == KEEL_INI_U64)
        snprintf(out, RANGE_BYTES, "%" PRIu64 " to %" PRIu64, (uint64_t)key->minimum,
                 key->maximum < 0x1p64 ? (uint64_t)key->maximum : UINT64_MAX);
    else
        snprintf(out, RANGE_BYTES, "%.10g to %.10g", key->minimum, key->maximum);
}

static enum keel_status out_of_range(const struct keel_ini_key *key, const char *value, const char *where)
{
    char wanted[96], range[RANGE_BYTES];
    print_range(key, range);
    snprintf(wanted, sizeof wanted, "out of range; %s is allowed", range);
    return bad_value(key, value, where, wanted);
}

static enum keel_status set_choice(void *object, const struct keel_ini_key *key, const char *value,
                                   const char *where)
{
    uint32_t index = 0;
    for (const char *at = key->choices; at != NULL; index++) {
        const char *bar = strchr(at, '|');
        size_t length = bar != NULL ? (size_t)(bar - at) : strlen(at);
        if (strlen(value) == length && strncmp(at, value, length) == 0) {
            memcpy(field_text(object, key), &index, sizeof index);
            return KEEL_OK;
        }
        at = bar != NULL ? bar + 1 : NULL;
    }
    char wanted[128];
    snprintf(wanted, sizeof wanted, "one of %s is wanted", key->choices);
    return bad_value(key, value, where, wanted);
}

static enum keel_status set_bool(void *object, const struct keel_ini_key *key, const char *value,
                                 const char *where)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        bool is_yes = strcasecmp(value, yes[i]) == 0;
        if (is_yes || strcasecmp(value, no[i]) == 0) {
            *(bool *)(void *)field_text(object, key) = is_yes;
            return KEEL_OK;
        }
    }
    return bad_value(key, value, where, "true or false is wanted");
}

static enum keel_status set_number(void *object, const struct keel_ini_key *key, const char *value,
                                   const char *where)
{
    char *end;
    errno = 0;
    if (key->type == KEEL_INI_U32 || key->type == KEEL_INI_U64) {
        uint64_t number = strtoull(value, &end, 10);
        if (end == value || *end != '\0' || strchr(value, '-') != NULL)
            return bad_value(key, value, where, "a whole number is wanted");
        if (errno == ERANGE || (double)number < key->minimum || (double)number > key->maximum)
            return out_of_range(key, value, where);
        uint32_t narrow = (uint32_t)number;
        memcpy(field_text(object, key), key->type == KEEL_INI_U32 ? (void *)&narrow : (void *)&number,
               key->bytes);
        return KEEL_OK;
    }
    double number = strtod(value, &end);
    if (end == value || *end != '\0' || !isfinite(number) || strpbrk(value, "xX") != NULL)
        return bad_value(key, value, where, "a number is wanted");
    float narrow = (float)number;
    bool is_float = key->type == KEEL_INI_FLOAT; /* compared as it is kept: what is written reads back */
    double low = is_float ? (double)(float)key->minimum : key->minimum;
    double high = is_float ? (double)(float)key->maximum : key->maximum;
    double kept = is_float ? (double)narrow : number;
    if (kept < low || kept > high)
        return out_of_range(key, value, where);
    memcpy(field_text(object, key), key->type == KEEL_INI_FLOAT ? (void *)&narrow : (void *)&number,
           key->bytes);
    return KEEL_OK;
}

/* Whether inih reads `name = value` back as it is: it takes blanks off the ends and what follows " ;", and
 * its lines are short. */
static bool fits_in_line(const struct keel_ini_key *key, const char *value)
{
    static const char blanks[] = " \t\v\f\r\n";
    size_t length = strlen(value);
    if (strlen(key->name) + strlen(" = \n") + length >= INI_MAX_LINE || strpbrk(value, "\r\n") != NULL)
        return false;
    if (length > 0 && (strspn(value, blanks) > 0 || strchr(blanks, value[length - 1]) != NULL))
        return false;
    for (const char *at = value; (at = strchr(at, ';')) != NULL; at++)
        if (at == value || strchr(blanks, at[-1]) != NULL)
            return false;
    return true;
}

static enum keel_status set_text(void *object, const struct keel_ini_key *key, const char *value,
                                 const char *where)
{
    size_t length = strlen(value);
    if (length < (size_t)key->minimum || length >= key->bytes)
        return bad_value(key, value, where, "empty, or too long");
    if (!fits_in_line(key, value))
        return bad_value(key, value, where,
                         "too long for a line of a file, or with a blank at an end or before ';'");
    memcpy(field_text(object, key), value, length + 1);
    return KEEL_OK;
}

static enum keel_status set_value(void *object, const struct keel_ini_key *key, const char *value,
                                  const char *where)
{
    switch (key->type) {
    case KEEL_INI_CHOICE:
        return set_choice(object, key, value, where);
    case KEEL_INI_BOOL:
        return set_bool(object, key, value, where);
    case KEEL_INI_TEXT:
        return set_text(object, key, value, where);
    default:
        return set_number(object, key, value, where);
    }
}

/* ---- finding keys ------------------------------------------------------------------------------------ */

/* With one row of the matrix. */
unsigned keel_ini_distance(const char *a, const char *b)
{
    enum { LONGEST = 64 };
    unsigned row[LONGEST + 1];
    size_t columns = strnlen(b, LONGEST), rows = strnlen(a, LONGEST);
    for (size_t j = 0; j <= columns; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= rows; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= columns; j++) {
            unsigned above = row[j];
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best)
                best = above + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
            diagonal = above;
        }
    }
    return row[columns];
}

static const struct keel_ini_key *find_key(const struct keel_ini_table *table, const char *section,
                                           const char *name)
{
    for (uint32_t i = 0; i < table->key_count; i++)
        if (strcmp(table->keys[i].section, section) == 0 && strcmp(table->keys[i].name, name) == 0)
            return &table->keys[i];
    return NULL;
}

static enum keel_status unknown_key(const struct keel_ini_table *table, const char *section, const char *name,
                                    const char *where)
{
    if (section[0] == '\0')
        return keel_fail(KEEL_INVALID, "%s: %s stands in no section; a [section] comes first", where, name);
    const struct keel_ini_key *nearest = &table->keys[0];
    unsigned best = UINT32_MAX;
    for (uint32_t i = 0; i < table->key_count; i++) {
        const struct keel_ini_key *key = &table->keys[i];
        unsigned d = 2 * keel_ini_distance(key->name, name) + keel_ini_distance(key->section, section);
        if (d < best) {
            best = d;
            nearest = key;
        }
    }
    return keel_fail(KEEL_INVALID, "%s: unknown key %s.%s; the nearest known key is %s.%s", where, section,
                     name, nearest->section, nearest->name);
}

/* ---- files and overrides ------------------------------------------------------------------------------ */

struct reading {
    const struct keel_ini_table *table;
    void *object;
    const char *path, *at;
    unsigned line, given[KEEL_INI_KEYS_MAX]; /* given: the line that each key was in, 0 for none */
    enum keel_status status;                 /* of the first bad line */
};

static char *next_line(char *out, int capacity, void *stream)
{
    struct reading *reading = stream;
    reading->at += strspn(reading->at, " \t"); /* inih takes an indented line for more of the value above */
    if (*reading->at == '\0')
        return NULL;
    const char *end = strchr(reading->at, '\n');
    size_t length = end != NULL ? (size_t)(end - reading->at) + 1 : strlen(reading->at);
    reading->line++;
    if (length >= (size_t)capacity) {
        if (reading->status == KEEL_OK)
            reading->status = keel_fail(KEEL_INVALID, "%s:%u: line longer than %d bytes; shorten it",
                                        reading->path, reading->line, capacity - 1);
        length = (size_t)capacity - 1;
    }
    memcpy(out, reading->at, length);
    out[length] = '\0';
    reading->at = end != NULL ? end + 1 : reading->at + strlen(reading->at);
    return out;
}

/* A line whose key is in no row: of a section that the table's owner knows, or wrong. */
static enum keel_status take_other(struct reading *reading, const char *section, const char *name,
                                   const char *value, const char *where)
{
    const struct keel_ini_entry entry = {.section = section, .name = name, .value = value, .where = where};
    enum keel_status status = KEEL_NOT_FOUND;
    if (reading->table->take != NULL && section[0] != '\0')
        status = reading->table->take(reading->object, &entry);
    return status == KEEL_NOT_FOUND ? unknown_key(reading->table, section, name, where) : status;
}

static int take_entry(void *user, const char *section, const char *name, const char *value)
{
    struct reading *reading = user;
    if (reading->status != KEEL_OK)
        return 1;
    char where[KEEL_PATH_BYTES + 16];
    snprintf(where, sizeof where, "%s:%u", reading->path, reading->line);
    const struct keel_ini_key *key = find_key(reading->table, section, name);
    if (key == NULL) {
        reading->status = take_other(reading, section, name, value, where);
        return 1;
    }
    unsigned *given = &reading->given[key - reading->table->keys];
    if (*given != 0)
        reading->status = keel_fail(KEEL_INVALID, "%s: %s.%s was given in line %u already; keep one of them",
                                    where, section, name, *given);
    else
        reading->status = set_value(reading->object, key, value, where);
    *given = reading->line;
    return 1;
}

enum keel_status keel_ini_read(const struct keel_ini_table *table, const char *path, void *object)
{
    KEEL_ASSERT(table->key_count <= KEEL_INI_KEYS_MAX);
    char *text;
    size_t bytes;
    KEEL_TRY(keel_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    if (strlen(text) != bytes) {
        size_t whole = strlen(text);
        keel_free(text);
        return keel_fail(KEEL_INVALID, "%s: byte %zu is NUL; a %s file is text", path, whole, table->what);
    }
    struct reading reading = {.table = table, .object = object, .path = path, .at = text, .status = KEEL_OK};
    int line = ini_parse_stream(next_line, &reading, take_entry, &reading);
    if (line != 0 && (reading.status == KEEL_OK || (unsigned)line < reading.line))
        reading.status = keel_fail(KEEL_INVALID, "%s:%d: not `key = value`, nor a [section]", path, line);
    keel_free(text);
    return reading.status;
}

enum keel_status keel_ini_override(const struct keel_ini_table *table, const char *text, void *object)
{
    char where[KEEL_INI_VALUE_BYTES + 16], section[64];
    const char *of_option = text[0] == '-' ? strchr(text, ' ') : NULL;
    if (of_option != NULL)
        snprintf(where, sizeof where, "%.*s", (int)(of_option - text), text);
    else
        snprintf(where, sizeof where, "--set %s", text);
    text = of_option != NULL ? of_option + 1 : text;
    const char *dot = strchr(text, '.'), *equals = strchr(text, '=');
    if (dot == NULL || equals == NULL || dot > equals || (size_t)(dot - text) >= sizeof section)
        return keel_fail(KEEL_INVALID, "%s: section.key=value is wanted", where);
    char name[64];
    if ((size_t)(equals - dot) > sizeof name)
        return keel_fail(KEEL_INVALID, "%s: section.key=value is wanted", where);
    memcpy(section, text, (size_t)(dot - text));
    section[dot - text] = '\0';
    memcpy(name, dot + 1, (size_t)(equals - dot - 1));
    name[equals - dot - 1] = '\0';
    const struct keel_ini_key *key = find_key(table, section, name);
    return key != NULL ? set_value(object, key, equals + 1, where) : unknown_key(table, section, name, where);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

void keel_ini_format(const struct keel_ini_key *key, const void *object, char out[KEEL_INI_VALUE_BYTES])
{
    const char *at = (const char *)object + key->offset;
    uint32_t narrow;
    uint64_t wide;
    float single;
    double number;
    switch (key->type) {
    case KEEL_INI_U32:
        memcpy(&narrow, at, sizeof narrow);
        snprintf(out, KEEL_INI_VALUE_BYTES, "%" PRIu32, narrow);
        break;
    case KEEL_INI_U64:
        memcpy(&wide, at, sizeof wide);
        snprintf(out, KEEL_INI_VALUE_BYTES, "%" PRIu64, wide);
        break;
    case KEEL_INI_FLOAT:
        memcpy(&single, at, sizeof single);
        snprintf(out, KEEL_INI_VALUE_BYTES, "%.9g", (double)single);
        break;
    case KEEL_INI_DOUBLE:
        memcpy(&number, at, sizeof number);
        snprintf(out, KEEL_INI_VALUE_BYTES, "%.17g", number);
        break;
    case KEEL_INI_BOOL:
        snprintf(out, KEEL_INI_VALUE_BYTES, "%s", *(const bool *)(const void *)at ? "true" : "false");
        break;
    case KEEL_INI_CHOICE: {
        memcpy(&narrow, at, sizeof narrow);
        const char *choice = key->choices;
        for (; narrow > 0; narrow--)
            choice = strchr(choice, '|') + 1;
        snprintf(out, KEEL_INI_VALUE_BYTES, "%.*s", (int)strcspn(choice, "|"), choice);
        break;
    }
    case KEEL_INI_TEXT:
        snprintf(out, KEEL_INI_VALUE_BYTES, "%s", at);
        break;
    }
}

void keel_ini_defaults(const struct keel_ini_table *table, void *object)
{
    for (uint32_t i = 0; i < table->key_count; i++)
        KEEL_ASSERT(set_value(object, &table->keys[i], table->keys[i].initial, "default") == KEEL_OK);
}

enum keel_status keel_ini_write(const struct keel_ini_table *table, const void *object, FILE *out)
{
    const char *section = "";
    char value[KEEL_INI_VALUE_BYTES];
    for (uint32_t i = 0; i < table->key_count; i++) {
        const struct keel_ini_key *key = &table->keys[i];
        if (strcmp(section, key->section) != 0) {
            section = key->section;
            fprintf(out, "[%s]\n", section);
        }
        keel_ini_format(key, object, value);
        if (!fits_in_line(key, value)) {
            char where[64];
            snprintf(where, sizeof where, "the %s file cannot be written", table->what);
            return bad_value(key, value, where,
                             "too long for a line, or with blanks that would be lost; use another path");
        }
        fprintf(out, "%s = %s\n", key->name, value);
    }
    return ferror(out) ? keel_fail(KEEL_IO, "the %s file cannot be written", table->what) : KEEL_OK;
}

void keel_ini_print_keys(const struct keel_ini_table *table, FILE *out)
{
    for (uint32_t i = 0; i < table->key_count; i++) {
        const struct keel_ini_key *key = &table->keys[i];
        char name[64], range[RANGE_BYTES];
        snprintf(name, sizeof name, "%s.%s", key->section, key->name);
        print_range(key, range);
        fprintf(out, "  %-22s %s (%s", name, key->help, key->initial);
        if (key->type == KEEL_INI_CHOICE)
            fprintf(out, "; %s", key->choices);
        else if (key->type != KEEL_INI_BOOL && key->type != KEEL_INI_TEXT)
            fprintf(out, "; %s", range);
        fputs(")\n", out);
    }
}
