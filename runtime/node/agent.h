/* agent.h - the process that keeps a node's workers. */
#ifndef KEEL_AGENT_H
#define KEEL_AGENT_H

/* keel agent --join HOST:PORT --key-file FILE [--node N]: dials in. keel agent JOB --dir DIR --node N
 * --launcher HOST:PORT --run HEX --incarnation I [--drill SPEC]... [--resume WHAT] and what else workers
 * take: as the launcher starts it on its own host; the job key is read from DIR/job.key. argv[0] is "agent".
 * Returns the exit code. */
int keel_agent_main(int argc, char **argv);

#endif
