/* board_cmd.h - the command `keel board`: what devices this machine has, and what is wrong with others. */
#ifndef KEEL_BOARD_CMD_H
#define KEEL_BOARD_CMD_H

#include <keel/api.h>

KEEL_API_BEGIN

/* Run `keel board ...`; argv[0] is "board". Prints on stdout, errors on stderr; returns the process exit
 * code by the table of keel/status.h. Blocks while drivers are asked; one thread. */
int keel_board_main(int argc, char **argv);

KEEL_API_END

#endif
