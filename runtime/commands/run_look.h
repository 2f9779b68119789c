/* run_look.h - a run seen from outside: what its directory says, and the process that holds it.
 *
 * Reads the ends of metrics.jsonl and events.jsonl, however long they are, and writes nothing: it may be
 * asked while the run goes on, as often as one likes. */
#ifndef KEEL_RUN_LOOK_H
#define KEEL_RUN_LOOK_H

#include "remote_leader.h"
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

struct keel_run_look {
    enum keel_run_state state;
    enum keel_status status; /* of the end, */
    char detail[KEEL_DETAIL_BYTES];
    uint64_t pid;         /* who holds the directory, or leads elsewhere, as it says itself; 0: nobody */
    char host[65];        /* where that is; "": here */
    uint64_t step, steps; /* newest committed, 0: none yet; and all */
    double loss, step_s;  /* of it */
    double age_s;         /* since it was committed */
    uint64_t view, ranks, spares; /* view 0: none is on record in what was read */
    uint64_t snapshot;            /* newest that was committed; 0: likewise */
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

/* The process that leads the run, by pidfd, which the caller closes (keel_process_close); when it ends,
 * another may. NOT_FOUND: no run goes on. BUSY: it does not say yet who leads. UNSUPPORTED: that is on
 * another host. */
enum keel_status keel_run_find(const char *directory, struct keel_process *out);

#endif
