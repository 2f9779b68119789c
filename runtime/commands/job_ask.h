/* job_ask.h - something is asked of who leads a run, wherever that is: at its gate, by the job key (gate.h).
 *
 * Needs the run's directory alone: DIR/gates says where (run_gates.h), DIR/job.key is the key. The common
 * store is asked for who leads only where nobody at these places does, and may hang: it is not waited for.
 * Blocks. */
#ifndef KEEL_JOB_ASK_H
#define KEEL_JOB_ASK_H

#include "handover.h"
#include "run_look.h"

/* What came of it, as who leads said. */
struct keel_job_answer {
    bool told; /* else it has ended without a word */
    struct keel_handover_reason end;
};

/* Ask, until somebody who leads heard it and it has come to be, whoever leads then. NOT_FOUND: no run goes on
 * that can be asked so. TIMEOUT: at the deadline; or nobody who leads was found, with each place and why.
 * AUTH, MISMATCH, VERSION: as who was asked has it. */
enum keel_status keel_job_ask(const char *directory, enum keel_handover_wish wish, uint64_t deadline_ns,
                              struct keel_job_answer *out);

/* keel_run_look_at, for so long: TIMEOUT, the common store, or the directory, does not answer. */
enum keel_status keel_job_look(const char *directory, uint64_t limit_ns, struct keel_run_look *out);

#endif
