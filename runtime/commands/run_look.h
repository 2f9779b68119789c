/* run_look.h - a run seen from outside: what its directory says, and the process that holds it.
 *
 * Reads the ends of metrics.jsonl and events.jsonl, however long they are (metric_lines.h), and writes
 * nothing: it may be asked while the run goes on, as often as one likes. */
#ifndef KEEL_RUN_LOOK_H
#define KEEL_RUN_LOOK_H

#include "remote_leader.h"
#include "step_ranges.h"
#include <keel/process.h>
#include <keel/status.h>
#include <stdint.h>

enum keel_run_state {
    KEEL_RUN_GOES_ON,
    KEEL_RUN_DONE,
    KEEL_RUN_STOPPED, /* in order, or it could not go on: the same command resumes it */
    KEEL_RUN_FAILED,  /* `detail` says what a person has to do */
    KEEL_RUN_KILLED   /* ended without a word: the same command resumes it */
};
const char *keel_run_state_name(enum keel_run_state state);

/* How the detail of a run begins whose stop lost what its last steps made, until they are computed again. */
#define KEEL_RUN_UNSAVED "stopped without its last snapshot"

struct keel_run_look {
    enum keel_run_state state;
    enum keel_status status;        /* of the end, */
    char detail[KEEL_DETAIL_BYTES]; /* and why; of one that is done, why it ended before its last step */
    uint64_t pid;         /* who holds the directory, or leads elsewhere, as it says itself; 0: nobody */
    char host[65];        /* where that is; "": here */
    char place[56];       /* and where agents dial in there; "": the launcher says it */
    uint64_t step, steps; /* newest committed, 0: none yet; and all */
    uint64_t line_step;   /* newest that has a line, of which these are: */
    double loss, step_s;
    double age_s; /* since it was committed */
    bool waits; /* it goes on, and nobody leads: its launcher has ended just now, and a node has so long to */
    uint64_t view, ranks, spares;        /* view 0: none is on record in what was read */
    uint64_t snapshot;                   /* newest that was committed; 0: likewise */
    uint64_t done_step;                  /* with which it ended well; 0: it did not, or does not say */
    uint64_t steps_lacking;              /* committed, and without a line in any metrics.jsonl of the run */
    char lacking[KEEL_STEP_RANGES_TEXT]; /* which */
    char damaged[KEEL_PATH_BYTES]; /* the directory whose metrics.jsonl has a line that is none; "": none */
    uint64_t damaged_at;           /* where that line begins */
};

/* NOT_FOUND: no run began there. INVALID: it is no directory. CORRUPT, IO. Blocks. */
enum keel_status keel_run_look_at(const char *directory, struct keel_run_look *out);

/* Does a node of another host lead it (cluster.holders)? Then its lines are in `folder`, and `store` is where
 * it can be asked to end. */
struct keel_run_led {
    struct keel_remote_leader leader;
    char folder[KEEL_PATH_BYTES], store[KEEL_PATH_BYTES];
};
bool keel_run_is_led(const char *directory, struct keel_run_led *out);
/* Its launcher ended without a word, less than the four timeouts ago that a node has to lead. Until one does,
 * or none did, nobody holds the run. */
bool keel_run_waits_for_leader(const char *directory);
/* May one lead it? Then its lines, and what it is asked for, are in this store. */
bool keel_run_store_of_leaders(const char *directory, char store[KEEL_PATH_BYTES]);

/* The process that leads the run, by pidfd, which the caller closes (keel_process_close); when it ends,
 * another may. NOT_FOUND: no run goes on. BUSY: it does not say yet who leads. UNSUPPORTED: that is on
 * another host. */
enum keel_status keel_run_find(const char *directory, struct keel_process *out);

#endif
