/* export_cmd.h - entry point of `keel export`. */
#ifndef KEEL_EXPORT_CMD_H
#define KEEL_EXPORT_CMD_H

int keel_export_main(int argc, char **argv);

#endif
