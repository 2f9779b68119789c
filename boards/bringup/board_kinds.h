/* board_kinds.h - the subcommands of `keel board`: one row each in board_cmd.c.
 *
 * A subcommand is one struct keel_command_kind (keel/command.h): its words, its options as a table, what it
 * does. */
#ifndef KEEL_BOARD_KINDS_H
#define KEEL_BOARD_KINDS_H

#include <keel/command.h>
#include <keel/file.h>

extern const struct keel_command_kind keel_board_list, keel_board_check, keel_board_release, keel_board_init,
    keel_board_record, keel_board_diff, keel_board_bench, keel_board_build, keel_board_tune;

/* The part of `keel board list` about boards that are out, for people: nothing when there are none. A folder
 * that cannot be read is said on standard output too, for then no board is admitted. */
void keel_quarantine_print(void);

/* FOLDER/record.json of a board: named by its folder, or by the device that the board file matches.
 * NOT_FOUND: the board has no folder, so say --out FILE (record) or name a file (diff). */
enum keel_status keel_board_record_path(const char *board, char out[KEEL_PATH_BYTES]);

/* What may be asked for in seconds: a year. Longer is a slip of the finger. */
enum { KEEL_BOARD_SECONDS_MAX = 366 * 86400 };

/* Print what is wrong, and return the exit code. */
int keel_board_wrong_use(const char *why, const char *what);
int keel_board_report(enum keel_status status);

#endif
