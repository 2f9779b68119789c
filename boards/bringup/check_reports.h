/* check_reports.h - a report told: on the terminal, as JSON, as JUnit, as a page. */
#ifndef KEEL_CHECK_REPORTS_H
#define KEEL_CHECK_REPORTS_H

#include "check_runner.h"

void keel_check_print_summary(const struct keel_check_report *report, FILE *out);

/* Run the checks of `words` (keel_check_select) with this on the terminal; `lines`: a line for each check. */
enum keel_status keel_check_session(const struct keel_check_options *options, const char *words, bool lines,
                                    struct keel_check_report *out);

/* The whole report as one JSON object on one line: what `record` keeps and `diff` reads. */
void keel_check_print_json(const struct keel_check_report *report, FILE *out);

/* Into a file: JUnit XML (fail: failure; could-not-run: error; waived: skipped), or a page of HTML with
 * plots, in light and dark, without anything from elsewhere. NO_MEMORY, and what writing says. */
enum keel_status keel_check_write_junit(const struct keel_check_report *report, const char *path);
enum keel_status keel_check_write_page(const struct keel_check_report *report, const char *path);

/* ---- what these share ---- */

enum { KEEL_CHECK_TIME_BYTES = 32 };
extern const char *const keel_check_level_names[KEEL_CHECK_LEVELS];
int keel_check_level(const struct keel_check *check);
void keel_check_time_text(uint64_t wall_ns, char out[KEEL_CHECK_TIME_BYTES]);
/* Text or an attribute's value of XML and HTML: what cannot stand there is a question mark. */
void keel_check_escape(FILE *out, const char *text);
/* What `write` prints, put in a file. */
enum keel_status keel_check_write(const struct keel_check_report *report, const char *path,
                                  void (*write)(FILE *out, const struct keel_check_report *report));

#endif
