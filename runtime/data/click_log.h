/* click_log.h - lines of logs of clicks: a label, numbers, categories.
 *
 * Criteo's (the Kaggle set and the terabyte set): fields between tabs, a label 0 or 1, `dense` whole numbers,
 * `tables` categories of up to 8 hexadecimal digits. A number x becomes log(1 + max(x, 0)), in canonical
 * arithmetic, as Facebook's DLRM has it (Naumov et al. 2019, data_utils.py); a category its number modulo
 * the table's rows.
 *
 * CSV: the same between commas, without quotation marks. Numbers are decimal, and taken as they are; a
 * category is a whole number of up to 18 digits, modulo the table's rows, or any other text, by XXH3-64;
 * several of one field have a | between.
 *
 * Either way a field that is empty is a number 0, or no category (-1). A line ends with \n, or \r\n. */
#ifndef KEEL_CLICK_LOG_H
#define KEEL_CLICK_LOG_H

#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KEEL_CLICK_LINE_BYTES = 1 << 16 }; /* of a line, at most */

struct keel_click_log_format {
    bool csv; /* else Criteo's */
    uint32_t dense, tables;
    const uint32_t *rows; /* of each table, 2^31 - 1 together at most */
    uint32_t bag;         /* categories of one field, at most */
    bool real_labels;     /* any finite number, and not 0 or 1 */
};

/* Which line of which file, for messages: from 1. */
struct keel_click_log_line {
    const char *file;
    uint64_t number;
};

/* `bytes` of a line, without its end: label, dense[format->dense], and ids[table * bag] on of each table,
 * rows of all tables numbered through, or -1. INVALID names file, line and field. Pure. */
enum keel_status keel_click_log_parse(const struct keel_click_log_format *format, const char *text,
                                      size_t bytes, const struct keel_click_log_line *line, float *out_label,
                                      float *dense, int32_t *ids);

/* Is it a line of names, as CSV files begin with? */
bool keel_click_log_is_head(const struct keel_click_log_format *format, const char *text, size_t bytes);

#endif
