/* eval_cmd.h - `keel eval`. */
#ifndef KEEL_EVAL_CMD_H
#define KEEL_EVAL_CMD_H

int keel_eval_main(int argc, char **argv);

#endif
