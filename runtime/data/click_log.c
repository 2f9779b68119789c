/* click_log.c - see click_log.h. */
#include "click_log.h"
#include <keel/kernels.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { DIGITS_MAX = 18, HEX_DIGITS_MAX = 8, NUMBER_BYTES = 64 };

/* What is left of a line, and the field that was taken of it last. */
struct fields {
    const char *at, *end; /* at NULL: nothing is left */
    char separator;
    uint32_t number; /* from 1 */
};

struct field {
    const char *text;
    size_t bytes;
};

static bool take_field(struct fields *fields, struct field *out)
{
    if (fields->at == NULL)
        return false;
    const size_t left = (size_t)(fields->end - fields->at);
    const char *stop = left > 0 ? memchr(fields->at, fields->separator, left) : NULL;
    *out = (struct field){fields->at, stop != NULL ? (size_t)(stop - fields->at) : left};
    fields->at = stop != NULL ? stop + 1 : NULL;
    fields->number++;
    return true;
}

/* The whole number that a field of digits is. */
static bool read_digits(const struct field *field, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < field->bytes; i++) {
        if (field->text[i] < '0' || field->text[i] > '9' || i == DIGITS_MAX)
            return false;
        *out = 10 * *out + (uint64_t)(field->text[i] - '0');
    }
    return field->bytes > 0;
}

static bool read_hex(const struct field *field, uint64_t *out)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    *out = 0;
    for (size_t i = 0; i < field->bytes; i++) {
        const char *digit = field->text[i] != '\0' ? strchr(digits, field->text[i]) : NULL;
        if (digit == NULL || i == HEX_DIGITS_MAX)
            return false;
        const uint64_t value = (uint64_t)(digit - digits);
        *out = 16 * *out + (value < 16 ? value : value - 6);
    }
    return field->bytes > 0;
}

/* Criteo's numbers: what is below 0 is taken for 0, so of that only the sign is looked at, and its digits. */
static bool read_count(const struct field *field, float *out)
{
    const bool below = field->bytes > 1 && field->text[0] == '-';
    const struct field digits = {field->text + (below ? 1 : 0), field->bytes - (below ? 1 : 0)};
    uint64_t value;
    if (!read_digits(&digits, &value))
        return false;
    *out = below ? 0.0F : keel_canon_log(1.0F + (float)value);
    return true;
}

static bool read_real(const struct field *field, float *out)
{
    char text[NUMBER_BYTES], *end;
    if (field->bytes == 0 || field->bytes >= sizeof text || memchr(field->text, '\0', field->bytes) != NULL)
        return false;
    memcpy(text, field->text, field->bytes);
    text[field->bytes] = '\0';
    *out = strtof(text, &end);
    return text[strspn(text, "+-.0123456789eE")] == '\0' && *end == '\0' && isfinite(*out);
}

static enum keel_status refuse(const struct keel_click_log_line *line, const struct fields *fields,
                               const char *what)
{
    return keel_fail(KEEL_INVALID, "%s:%llu: field %u is no %s; mend the line, or give another data.format",
                     line->file, (unsigned long long)line->number, fields->number, what);
}

static enum keel_status refuse_count(const struct keel_click_log_format *format,
                                     const struct keel_click_log_line *line, const struct fields *fields,
                                     bool more)
{
    return keel_fail(KEEL_INVALID,
                     "%s:%llu: has %s %u fields, and a label, model.dense = %u numbers and model.tables = %u "
                     "categories are wanted, with %s between; give the keys that the file has, or mend it",
                     line->file, (unsigned long long)line->number, more ? "more than" : "only",
                     fields->number, format->dense, format->tables, format->csv ? "commas" : "tabs");
}

static enum keel_status take_numbers(const struct keel_click_log_format *format, struct fields *fields,
                                     const struct keel_click_log_line *line, float *dense)
{
    struct field field;
    for (uint32_t d = 0; d < format->dense; d++) {
        if (!take_field(fields, &field))
            return refuse_count(format, line, fields, false);
        dense[d] = 0.0F;
        if (field.bytes > 0 && !(format->csv ? read_real(&field, &dense[d]) : read_count(&field, &dense[d])))
            return refuse(line, fields, format->csv ? "finite number" : "whole number");
    }
    return KEEL_OK;
}

/* The categories of a field, each below `rows`, numbered from `first` on; what the bag has beside is -1. */
static enum keel_status read_bag(const struct keel_click_log_format *format, const struct field *field,
                                 const struct keel_click_log_line *line, const struct fields *fields,
                                 uint64_t first, uint32_t rows, int32_t *ids)
{
    struct fields parts = {.at = field->text, .end = field->text + field->bytes, .separator = '|'};
    struct field part;
    uint32_t count = 0;
    for (uint32_t i = 0; i < format->bag; i++)
        ids[i] = -1;
    while (field->bytes > 0 && take_field(&parts, &part)) {
        uint64_t value = 0;
        if (count == format->bag)
            return keel_fail(KEEL_INVALID, "%s:%llu: field %u has more than model.bag = %u categories",
                             line->file, (unsigned long long)line->number, fields->number, format->bag);
        if (format->csv && !read_digits(&part, &value))
            value = XXH3_64bits(part.text, part.bytes);
        if (!format->csv && !read_hex(&part, &value))
            return refuse(line, fields, "category of up to 8 hexadecimal digits");
        ids[count++] = (int32_t)(first + value % rows);
    }
    return KEEL_OK;
}

static enum keel_status take_categories(const struct keel_click_log_format *format, struct fields *fields,
                                        const struct keel_click_log_line *line, int32_t *ids)
{
    struct field field;
    uint64_t first = 0;
    for (uint32_t t = 0; t < format->tables; t++) {
        if (!take_field(fields, &field))
            return refuse_count(format, line, fields, false);
        KEEL_TRY(
            read_bag(format, &field, line, fields, first, format->rows[t], ids + (size_t)t * format->bag));
        first += format->rows[t];
    }
    return KEEL_OK;
}

static bool is_label(const struct field *field)
{
    return field->bytes == 1 && (field->text[0] == '0' || field->text[0] == '1');
}

static struct fields fields_of(const struct keel_click_log_format *format, const char *text, size_t bytes)
{
    return (struct fields){.at = text, .end = text + bytes, .separator = format->csv ? ',' : '\t'};
}

enum keel_status keel_click_log_parse(const struct keel_click_log_format *format, const char *text,
                                      size_t bytes, const struct keel_click_log_line *line, float *out_label,
                                      float *dense, int32_t *ids)
{
    struct fields fields = fields_of(format, text, bytes);
    struct field label = {.text = text}, rest;
    if (format->csv && bytes > 0 && memchr(text, '"', bytes) != NULL)
        return keel_fail(KEEL_INVALID,
                         "%s:%llu: has quotation marks, which are not read: write the fields without them",
                         line->file, (unsigned long long)line->number);
    (void)take_field(&fields, &label); /* there is one, if an empty one */
    if (format->real_labels ? !read_real(&label, out_label) : !is_label(&label))
        return refuse(line, &fields,
                      format->real_labels ? "label, which is a finite number" : "label, which is 0 or 1");
    const float value = format->real_labels ? *out_label : label.text[0] == '1' ? 1.0F : 0.0F;
    KEEL_TRY(take_numbers(format, &fields, line, dense));
    KEEL_TRY(take_categories(format, &fields, line, ids));
    if (take_field(&fields, &rest))
        return refuse_count(format, line, &(struct fields){.number = fields.number - 1}, true);
    *out_label = value;
    return KEEL_OK;
}

bool keel_click_log_is_head(const struct keel_click_log_format *format, const char *text, size_t bytes)
{
    struct fields fields = fields_of(format, text, bytes);
    struct field first = {.text = text};
    float number;
    (void)take_field(&fields, &first);
    return format->csv && first.bytes > 0 && !read_real(&first, &number);
}
