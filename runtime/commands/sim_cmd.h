/* sim_cmd.h - `keel sim`. */
#ifndef KEEL_SIM_CMD_H
#define KEEL_SIM_CMD_H

/* Returns the process exit code. */
int keel_sim_main(int argc, char **argv);

#endif
