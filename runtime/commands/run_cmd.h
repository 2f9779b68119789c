/* run_cmd.h - `keel run`: from a job file to a finished run. */
#ifndef KEEL_RUN_CMD_H
#define KEEL_RUN_CMD_H

/* argv[0] is "run". Returns the exit code. */
int keel_run_main(int argc, char **argv);

#endif
