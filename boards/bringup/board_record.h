/* board_record.h - where the record of a board lies, shared by `keel board record` and `keel board diff`. */
#ifndef KEEL_BOARD_RECORD_H
#define KEEL_BOARD_RECORD_H

#include "check_reports.h"
#include <keel/file.h>

/* FOLDER/record.json of a board: named by its folder, or by the device that the board file matches.
 * NOT_FOUND: the board has no folder, so say --out FILE (record) or name a file (diff). */
enum keel_status keel_board_record_path(const char *board, char out[KEEL_PATH_BYTES]);
/* A report as keel_check_print_json has it, on the heap; freed with free(). */
enum keel_status keel_board_record_text(const struct keel_check_report *report, char **out,
                                        size_t *out_bytes);

#endif
