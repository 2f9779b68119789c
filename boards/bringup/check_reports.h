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

/* JUnit XML (fail: failure; could-not-run: error; waived: skipped), and a page of HTML with plots, in light
 * and dark, without anything from elsewhere. */
void keel_check_print_junit(const struct keel_check_report *report, FILE *out);
void keel_check_print_page(const struct keel_check_report *report, FILE *out);

/* What one of these prints: as text, freed with free(); in a file. NO_MEMORY, and what
 * keel_command_write_file says. */
typedef void keel_check_print(const struct keel_check_report *report, FILE *out);
enum keel_status keel_check_text(const struct keel_check_report *report, keel_check_print *print, char **out,
                                 size_t *out_bytes);
enum keel_status keel_check_write(const struct keel_check_report *report, keel_check_print *print,
                                  const char *path);

/* ---- what these share ---- */

extern const char *const keel_check_level_names[KEEL_CHECK_LEVELS];
int keel_check_level(const struct keel_check *check);
/* `before`, then a text or an attribute's value of XML and HTML, in which what cannot stand there is a
 * question mark, then `after`. */
void keel_check_escape(FILE *out, const char *before, const char *text, const char *after);
/* A figure by its name, of whichever check has it; NULL: none. */
const struct keel_check_figure *keel_check_find_figure(const struct keel_check_report *report,
                                                       const char *name);

#endif
