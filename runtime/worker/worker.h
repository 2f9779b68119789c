/* worker.h - one rank's process: the device context and the data plane.
 *
 * `keel worker` is started by an agent, never by hand; see worker_link.h for what they say. */
#ifndef KEEL_WORKER_H
#define KEEL_WORKER_H

/* keel worker JOB --dir DIR --node N --local L --incarnation I [--drill SPEC]... [--resume WHAT], with
 * the link on descriptor 3. Returns the exit code. */
int keel_worker_main(int argc, char **argv);

#endif
