/* sample_cmd.h - `keel sample`. */
#ifndef KEEL_SAMPLE_CMD_H
#define KEEL_SAMPLE_CMD_H

int keel_sample_main(int argc, char **argv);

#endif
