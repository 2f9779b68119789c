/* job_ask.h - something is asked of who leads a run, wherever that is: at its gate, by the job key (gate.h).
 *
 * Needs the run's directory alone: DIR/gates says where (run_gates.h), DIR/job.key is the key. The common
 * store is asked for who leads only where nobody at these places does, and may hang: it is not waited for.
 * A run whose launcher still waits for its agents has no such file: it is waited for, which is said.
 * Blocks. */
#ifndef KEEL_JOB_ASK_H
#define KEEL_JOB_ASK_H

#include "handover.h"
#include "run_look.h"

struct keel_job_question {
    const char *directory; /* of the run, which goes on */
    enum keel_handover_wish wish;
    uint16_t node; /* DRAIN, ADD */
    uint64_t deadline_ns;
    /* What it waits for; of a node that stays its first reason. NULL: nobody asks. */
    void (*stays)(void *context, const char *why);
    void *context;
};

/* What came of it, as who leads said. */
struct keel_job_answer {
    bool told;                       /* else the run has ended without a word */
    struct keel_handover_reason end; /* STOP */
};

/* Ask, until somebody who leads heard it and it has come to be, whoever leads then. NOT_FOUND: no run goes on
 * that can be asked so, or what was asked for is no stop, and the run ended first. TIMEOUT: at the deadline;
 * or nobody who leads was found, with each place and why. AUTH, MISMATCH, VERSION, INVALID, BUSY: as who was
 * asked has it. */
enum keel_status keel_job_ask(const struct keel_job_question *question, struct keel_job_answer *out);

/* Are all agents of the run on the launcher's own host? Then nobody leads elsewhere. */
bool keel_job_is_local(const char *directory);

/* keel_run_look_at, for so long: TIMEOUT, the common store, or the directory, does not answer. */
enum keel_status keel_job_look(const char *directory, uint64_t limit_ns, struct keel_run_look *out);

#endif
