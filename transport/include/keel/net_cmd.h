/* net_cmd.h - the command `keel net`. */
#ifndef KEEL_NET_CMD_H
#define KEEL_NET_CMD_H

#include <keel/api.h>

KEEL_API_BEGIN

/* `keel net who|check|bench ...`; argv[0] is "net". Results on stdout, errors and progress on stderr. Returns
 * the exit code (README.md, "Make, and exit codes"). */
int keel_net_main(int argc, char **argv);

KEEL_API_END

#endif
