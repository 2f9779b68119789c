/* ckpt_cmd.h - the command `keel ckpt`. In the program `keel` and in libkeel, not in libkeel-ckpt. */
#ifndef KEEL_CKPT_CMD_H
#define KEEL_CKPT_CMD_H

#include <keel/api.h>

KEEL_API_BEGIN

/* `keel ckpt COMMAND PATH ...` (keel-ckpt(1)); argv[0] is "ckpt". Results on stdout, errors and progress on
 * stderr. Returns the exit code (README.md, "Make, and exit codes"). */
int keel_ckpt_main(int argc, char **argv);

KEEL_API_END

#endif
