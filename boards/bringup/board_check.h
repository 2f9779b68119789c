/* board_check.h - what a check of a board is, and what runs it.
 *
 * A check is one row of a table: an id "LEVEL.NUMBER", what it claims, how long it may take, and a function.
 * Each runs in a process of its own (this binary again), so that a driver which crashes or hangs is a verdict
 * and not our end. The function looks at the board and says, through `run`:
 *
 *     keel_check_fail      the claim does not hold                            -> verdict fail
 *     keel_check_cannot    it could not be found out, and the next move       -> verdict could-not-run
 *     neither              the claim holds                                    -> verdict pass
 *
 * The first fail stands; a fail stands over a could-not-run. A process that dies, or has given no verdict at
 * its deadline, is a fail that names what it did last (the newest keel_check_progress) and quotes the
 * driver's last words. A waiver of the board file makes `waived` of a fail or a could-not-run until its last
 * day; what lies beneath stays to be seen. The four are never mixed: exit code 1 where something failed, else
 * 3 where something could not run, else 0.
 *
 * To add checks: write `const struct keel_check keel_checks_NAME[]` (last row: id NULL) in a file of its own
 * and name it in check_table.c. */
#ifndef KEEL_BOARD_CHECK_H
#define KEEL_BOARD_CHECK_H

#include <keel/board.h>
#include <keel/device.h>
#include <keel/kernels.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stdint.h>

enum keel_verdict {
    KEEL_VERDICT_PASS,
    KEEL_VERDICT_FAIL,
    KEEL_VERDICT_CANNOT,
    KEEL_VERDICT_WAIVED,
    KEEL_VERDICT_COUNT
};
/* "pass", "fail", "could-not-run", "waived". */
const char *keel_verdict_name(enum keel_verdict verdict);

enum {
    KEEL_CHECK_TEXT_BYTES = 512, /* reasons, details */
    KEEL_CHECK_NAME_BYTES = 64,
    KEEL_CHECK_FIGURES_MAX = 24, /* of one check */
    KEEL_CHECK_SAMPLES_MAX = 64, /* of one figure */
    KEEL_CHECK_NOTES_MAX = 8,    /* of one check */
    KEEL_CHECK_LEVELS = 9,       /* 0 to 8 */
    KEEL_CHECKS_MAX = 96
};

/* What the command line says of all checks; the same in every process. */
struct keel_check_options {
    const char *board;  /* selector or board folder; "auto" */
    const char *peer;   /* of level 8; NULL: none */
    bool quick;         /* fewer repeats and smaller shapes, the same claims */
    uint64_t seconds;   /* of level 6, and of what tests for as long as one likes */
    uint64_t timeout_s; /* of one check; 0: the check's own */
};

struct keel_check_run; /* one check in its process */

struct keel_check {
    const char *id;    /* "3.2" */
    const char *name;  /* "moving-inversions": short, no blanks */
    const char *claim; /* "every word keeps both values of every bit": what a pass means */
    const char *needs; /* id of a check without which this one has no sense; NULL: none. When that one was
                          selected and neither passed nor was waived, this one could not run. */
    uint32_t limit_s;  /* deadline of its process; raised by options->seconds where `lasts` */
    bool lasts;
    void (*run)(struct keel_check_run *run);
};

/* ---- for a check's function; all on its one thread ---- */

const struct keel_check_options *keel_check_options(const struct keel_check_run *run);
/* When the process is given up (keel_now_ns): deadlines of calls into the board lie well before it. */
uint64_t keel_check_deadline_ns(const struct keel_check_run *run);
/* The board, opened at the first call (levels 0 and 1: without the code of its folder, so that what is wrong
 * with that is level 2's verdict) and closed after the function has returned. NULL when it does not open: the
 * verdict is given then, and the function returns. */
struct keel_device *keel_check_device(struct keel_check_run *run);
/* What its board file says, defaults where there is none; after keel_check_device. */
const struct keel_board_file *keel_check_board_file(const struct keel_check_run *run);
/* Its kernels, built at the first call, and destroyed with the board. NULL as above. */
struct keel_kernels *keel_check_kernels(struct keel_check_run *run);

void keel_check_fail(struct keel_check_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void keel_check_cannot(struct keel_check_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* True when status is OK. Else false and a fail: "WHAT: keel_detail()". */
bool keel_check_ok(struct keel_check_run *run, enum keel_status status, const char *what);
/* True when status is OK. Else false, and a could-not-run where the status says that something is missing
 * here (exit code 3: NOT_FOUND, UNSUPPORTED, DENIED, NO_MEMORY), a fail otherwise. */
bool keel_check_able(struct keel_check_run *run, enum keel_status status, const char *what);
bool keel_check_failed(const struct keel_check_run *run); /* fail or could-not-run, so far */

/* A line that belongs to the report, whatever the verdict. */
void keel_check_note(struct keel_check_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* How far it is: done of total (0: not known), and at what. Say it before what may crash or hang. */
void keel_check_progress(struct keel_check_run *run, uint64_t done, uint64_t total, const char *what);

/* A figure: the median of `count` repeats (at most KEEL_CHECK_SAMPLES_MAX are kept), named as limits in board
 * files name it: "launch_us", "copy_gbs". Beyond the board's limit it is a fail. Returns the median. */
enum keel_better { KEEL_BETTER_MORE, KEEL_BETTER_LESS };
double keel_check_figure(struct keel_check_run *run, const char *name, const char *unit,
                         enum keel_better better, const double *samples, uint32_t count);

/* ---- results, as the runner keeps them ---- */

struct keel_check_figure {
    char name[KEEL_CHECK_NAME_BYTES], unit[16];
    enum keel_better better;
    double value, limit; /* limit: 0 for none */
    uint32_t sample_count;
    double samples[KEEL_CHECK_SAMPLES_MAX];
};

struct keel_check_result {
    const struct keel_check *check;
    enum keel_verdict verdict, beneath; /* beneath: what a waiver covers */
    char reason[KEEL_CHECK_TEXT_BYTES]; /* why not a pass; "" for a pass */
    char waiver[KEEL_CHECK_TEXT_BYTES]; /* reason of the board file's waiver; "" for none */
    char waiver_until[16];              /* YYYY-MM-DD */
    char notes[KEEL_CHECK_NOTES_MAX][KEEL_CHECK_TEXT_BYTES];
    uint32_t note_count;
    char output[2048]; /* the end of what the process and its driver printed */
    double seconds;
    struct keel_check_figure figures[KEEL_CHECK_FIGURES_MAX];
    uint32_t figure_count;
};

/* What the board said of itself, from the first process that opened it. */
struct keel_check_board {
    char selector[KEEL_DEVICE_NAME_BYTES], name[KEEL_DEVICE_NAME_BYTES], platform[KEEL_DEVICE_NAME_BYTES],
        version[KEEL_DEVICE_NAME_BYTES];
    char folder[KEEL_CHECK_TEXT_BYTES]; /* of the board file; "" for none */
};

struct keel_check_report {
    struct keel_check_options options;
    struct keel_check_board board;
    struct keel_check_result *results; /* heap, owned */
    uint32_t count, done;
    uint32_t verdicts[KEEL_VERDICT_COUNT];
    uint64_t started_wall_ns;
    double seconds;
};

#endif
