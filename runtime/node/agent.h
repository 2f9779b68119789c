/* agent.h - the process that keeps a node's workers. */
#ifndef KEEL_AGENT_H
#define KEEL_AGENT_H

#include "launcher.h"

/* What is told people of a run by an agent whose node leads it (cluster.holders). */
struct keel_agent_output {
    /* Into `folder`, which exists; who led before was heard last at `heard_ns`. Its callbacks go to *out. */
    enum keel_status (*open)(const char *folder, const struct keel_job *job, uint64_t heard_ns,
                             struct keel_launch_report *out);
    /* `ended`: the run has, and so; else another leads. How it ended comes back, and why in `detail`: bits
     * that differ are found here, and steps of a stop that are in no snapshot (`kept_step` is the newest's;
     * UINT64_MAX: that is not known). */
    enum keel_status (*close)(void *context, bool ended, uint64_t kept_step, enum keel_status status,
                              char detail[KEEL_DETAIL_BYTES]);
};

/* keel agent --join HOST:PORT --key-file FILE [--node N]: dials in. keel agent JOB --dir DIR --node N
 * --launcher HOST:PORT --run HEX --incarnation I [--drill SPEC]... [--resume WHAT] and what else workers
 * take: as the launcher starts it on its own host; the job key is read from DIR/job.key. argv[0] is "agent".
 * `output` may be NULL: then its node cannot lead. Returns the exit code. */
int keel_agent_main(const struct keel_agent_output *output, int argc, char **argv);

#endif
