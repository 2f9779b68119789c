/* agent.h - the process that keeps a node's workers. */
#ifndef KEEL_AGENT_H
#define KEEL_AGENT_H

/* keel agent JOB --dir DIR --node N --launcher HOST:PORT --run HEX --incarnation I [--drill SPEC]...
 * [--resume WHAT] and what else workers take; argv[0] is "agent". Started by the launcher, or by a batch
 * system that knows the launcher's place; the job key is read from DIR/job.key. Returns the exit code. */
int keel_agent_main(int argc, char **argv);

#endif
