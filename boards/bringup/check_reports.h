/* check_reports.h - a report told: on the terminal, as JSON, as JUnit, as a page. */
#ifndef KEEL_CHECK_REPORTS_H
#define KEEL_CHECK_REPORTS_H

#include "check_runner.h"

/* What people see while it runs, on stderr when that is a terminal, and a line for each check on stdout. */
struct keel_check_terminal {
    bool tty;   /* stderr shows progress */
    bool lines; /* stdout gets a line for each check */
};
struct keel_check_watcher keel_check_terminal_watcher(struct keel_check_terminal *terminal);
void keel_check_print_summary(const struct keel_check_report *report, FILE *out);

/* The whole report as one JSON object on one line: what `record` keeps and `diff` reads. */
void keel_check_print_json(const struct keel_check_report *report, FILE *out);

/* Into a file: JUnit XML (fail: failure; could-not-run: error; waived: skipped). NO_MEMORY, and what writing
 * says. */
enum keel_status keel_check_write_junit(const struct keel_check_report *report, const char *path);

#endif
