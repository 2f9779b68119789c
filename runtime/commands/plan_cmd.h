/* plan_cmd.h - `keel plan`. */
#ifndef KEEL_PLAN_CMD_H
#define KEEL_PLAN_CMD_H

/* Returns the process exit code. */
int keel_plan_main(int argc, char **argv);

#endif
