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
 * To add checks: write `const struct keel_check keel_checks_NAME[]` (last row: id NULL) in a file of its own,
 * declare it below, and name it in check_table.c. */
#ifndef KEEL_BOARD_CHECK_H
#define KEEL_BOARD_CHECK_H

#include "device_fixture.h"
#include <keel/kernels.h>
#include <stdint.h>
#include <stdio.h>

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
    const char *board;        /* selector or board folder; "auto" */
    const char *peer;         /* of level 8; NULL: none */
    enum keel_class numerics; /* of the kernels that are checked */
    bool quick;               /* fewer repeats and smaller shapes, the same claims */
    uint64_t seconds;         /* of level 6, and of what tests for as long as one likes */
    uint64_t timeout_s;       /* of one check; 0: the check's own */
};

struct keel_check_run; /* one check in its process */

/* What is open when a check's function begins; each opens what stands before it too. */
enum keel_check_opens {
    KEEL_OPENS_NOTHING, /* the check opens what it wants, by keel_check_open */
    KEEL_OPENS_DEVICE,  /* run->on.device and its board file; levels 0 and 1: without the code of its folder,
                           so that what is wrong with that is level 2's verdict */
    KEEL_OPENS_QUEUE,   /* run->on.queue */
    KEEL_OPENS_BUFFERS, /* run->buffer, other, wanted and got */
    KEEL_OPENS_KERNELS  /* run->on.kernels, and a queue, but no buffers */
};

struct keel_check {
    const char *id;    /* "3.2" */
    const char *name;  /* "moving-inversions": short, no blanks */
    const char *claim; /* "every word keeps both values of every bit": what a pass means */
    const char *needs; /* id of a check without which this one has no sense; NULL: none. When that one was
                          selected and neither passed nor was waived, this one could not run. */
    uint32_t limit_s;  /* deadline of its process; raised by options->seconds in level 6 */
    enum keel_check_opens opens;
    void (*run)(struct keel_check_run *run);
};

enum { KEEL_CHECK_BYTES = 1 << 20, KEEL_CHECK_LISTS = 3, KEEL_CHECK_OWNED_MAX = 32 };

/* What a check's function is given, on its one thread. It may enqueue, write to `wanted` and `got`, and use
 * `lists`; the rest it only reads. All of it ends after the function. */
struct keel_check_run {
    const struct keel_check *check;
    const struct keel_check_options *options;
    uint64_t deadline_ns;               /* when the function must have come back: for every wait */
    struct keel_device_fixture on;      /* board, device, kernels, queue: as far as `opens` says */
    const struct keel_board_file *file; /* of the board, defaults where there is none */
    struct keel_buffer *buffer, *other; /* KEEL_CHECK_BYTES each */
    uint8_t *wanted, *got;              /* as many; `wanted` is filled with bytes that differ */
    struct keel_launch_list lists[KEEL_CHECK_LISTS];
    /* check_child.c and check_steps.c alone */
    FILE *out;
    enum keel_verdict verdict;
    char reason[KEEL_CHECK_TEXT_BYTES];
    bool told; /* which board it is */
    struct keel_check_owned {
        enum keel_check_owned_kind {
            KEEL_OWNED_QUEUE,
            KEEL_OWNED_KERNEL,
            KEEL_OWNED_PROGRAM,
            KEEL_OWNED_BUFFER,
            KEEL_OWNED_MEMORY
        } kind;
        void *what;
    } owned[KEEL_CHECK_OWNED_MAX];
    uint32_t owned_count;
};

/* ---- for a check's function ---- */

/* Open what is not open yet. False after a verdict; the function returns then. */
bool keel_check_open(struct keel_check_run *run, enum keel_check_opens opens);

void keel_check_fail(struct keel_check_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void keel_check_cannot(struct keel_check_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* True when status is OK. Else false and a fail: "WHAT: keel_detail()". */
bool keel_check_ok(struct keel_check_run *run, enum keel_status status, const char *what);
/* True when status is OK. Else false, and a could-not-run where the status says that something is missing
 * here (exit code 3: NOT_FOUND, UNSUPPORTED, DENIED, NO_MEMORY), a fail otherwise. */
bool keel_check_able(struct keel_check_run *run, enum keel_status status, const char *what);
/* Fail or could-not-run, so far? */
static inline bool keel_check_failed(const struct keel_check_run *run)
{
    return run->verdict != KEEL_VERDICT_PASS;
}

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
    char waiver_until[KEEL_DAY_BYTES];  /* "2027-01-31" */
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

/* ---- the tables, each in the file of its name; the last row's id is NULL ---- */

extern const struct keel_check keel_checks_identity[]; /* level 0 */
extern const struct keel_check keel_checks_api[];      /* level 1 */
extern const struct keel_check keel_checks_code[];     /* level 2 */
extern const struct keel_check keel_checks_order[];    /* level 2 */
extern const struct keel_check keel_checks_memory[];   /* level 3 */
extern const struct keel_check keel_checks_numerics[]; /* level 4 */
extern const struct keel_check keel_checks_speed[];    /* level 5 */
extern const struct keel_check keel_checks_rates[];    /* level 5 */
extern const struct keel_check keel_checks_soak[];     /* level 6 */
extern const struct keel_check keel_checks_faults[];   /* level 7 */
extern const struct keel_check keel_checks_pair[];     /* level 8 */

#endif
