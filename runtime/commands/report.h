/* report.h - report.html: one page that says what happened and what it cost. */
#ifndef KEEL_REPORT_H
#define KEEL_REPORT_H

#include <keel/status.h>

/* Write DIR/report.html from DIR/metrics.jsonl and DIR/events.jsonl: curves as inline SVG, incidents as a
 * table; no script, no other file. Replaces the page that is there. */
enum keel_status keel_report_write(const char *directory);

#endif
