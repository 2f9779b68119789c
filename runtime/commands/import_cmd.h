/* import_cmd.h - `keel import-model`. */
#ifndef KEEL_IMPORT_CMD_H
#define KEEL_IMPORT_CMD_H

int keel_import_main(int argc, char **argv);

#endif
