/* serve_cmd.h - `keel serve JOB|SNAPSHOT`: texts over HTTP. */
#ifndef KEEL_SERVE_CMD_H
#define KEEL_SERVE_CMD_H

int keel_serve_main(int argc, char **argv);

#endif
