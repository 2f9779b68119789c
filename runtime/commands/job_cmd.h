/* job_cmd.h - `keel job`. */
#ifndef KEEL_JOB_CMD_H
#define KEEL_JOB_CMD_H

/* Returns the process exit code. */
int keel_job_main(int argc, char **argv);

#endif
