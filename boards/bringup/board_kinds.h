/* board_kinds.h - the subcommands of `keel board`: one row each in board_cmd.c.
 *
 * A subcommand is one struct keel_command_kind (keel/command.h): its words, its options as a table, what it
 * does. */
#ifndef KEEL_BOARD_KINDS_H
#define KEEL_BOARD_KINDS_H

#include <keel/command.h>

extern const struct keel_command_kind keel_board_list, keel_board_check, keel_board_release, keel_board_init,
    keel_board_record, keel_board_diff, keel_board_bench, keel_board_build, keel_board_tune;

/* What may be asked for in seconds: a year. Longer is a slip of the finger. */
enum { KEEL_BOARD_SECONDS_MAX = 366 * 86400 };

/* Print what is wrong, and return the exit code. */
int keel_board_wrong_use(const char *why, const char *what);
int keel_board_report(enum keel_status status);

#endif
