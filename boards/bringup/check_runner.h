/* check_runner.h - running checks one after the other, each in its own process; reports of what they said. */
#ifndef KEEL_CHECK_RUNNER_H
#define KEEL_CHECK_RUNNER_H

#include "board_check.h"
#include <keel/json.h>

/* All rows of all tables, in order of level. */
uint32_t keel_check_count(void);
const struct keel_check *keel_check_at(uint32_t index);
const struct keel_check *keel_check_find(const char *word); /* id or name; NULL: none */

/* How long its process may take. */
uint64_t keel_check_limit_s(const struct keel_check *check, const struct keel_check_options *options);

/* Which checks: "0-5", "0,2,4.1", "3.2", "all". INVALID names the word that is wrong. */
enum keel_status keel_check_select(const char *words, bool selected[KEEL_CHECKS_MAX]);

/* What the runner tells while it runs; results are const until the report is done. */
struct keel_check_watcher {
    void (*begins)(void *context, const struct keel_check *check);
    void (*progress)(void *context, const struct keel_check *check, uint64_t done, uint64_t total,
                     const char *what);
    void (*ended)(void *context, const struct keel_check_result *result);
    void *context;
};

/* Run what is selected. OK: all ran, whatever the verdicts; free *out with keel_check_report_fini. */
enum keel_status keel_check_run_all(const struct keel_check_options *options,
                                    const bool selected[KEEL_CHECKS_MAX],
                                    const struct keel_check_watcher *watcher, struct keel_check_report *out);
void keel_check_report_fini(struct keel_check_report *report);
/* 0 all passed or waived, 1 something failed, 3 something could not run and nothing failed. */
int keel_check_exit_code(const struct keel_check_report *report);
/* The same as a word: "pass", "fail", "could-not-run". */
const char *keel_check_overall(const struct keel_check_report *report);

/* Is a figure within its limit, 0 for none? What is no number, or infinite, is within none. */
bool keel_check_within(double value, double limit, bool less_is_better);
/* Lay a waiver over a verdict: today and until as YYYY-MM-DD. An expired one changes the reason alone. */
void keel_check_waive(struct keel_check_result *result, const char *today);

/* Loss and weights of each step of a run, in a line each: what two runs are compared by. `metrics` is the
 * text of its metrics.jsonl; *out is given back with keel_free. CORRUPT when it has not the bits of `steps`
 * steps. */
enum keel_status keel_check_bits(const char *metrics, uint32_t steps, char **out);

/* The process of one check: tells what it finds on descriptor `fd`. Returns the process exit code. */
int keel_check_child(const char *id, const struct keel_check_options *options, int fd);
/* A figure's members of an object, in such lines and in reports. */
void keel_check_tell_figure(struct keel_json *json, const struct keel_check_figure *figure);
/* A line of that, put into the result. False: not understood. */
bool keel_check_hear(const char *line, struct keel_check_report *report, struct keel_check_result *result,
                     const struct keel_check_watcher *watcher);

#endif
