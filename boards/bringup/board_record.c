/* board_record.c - `keel board record`: what a board is and does today, kept so that drift can be told later.
 *
 * A record is the report of keel board check as JSON. One that has not passed is kept only when asked, for a
 * baseline that fails hides the next failure. */
#include "board_file.h"
#include "board_kinds.h"
#include "check_reports.h"
#include <string.h>

struct own {
    const char *level, *out;
    bool quick, anyway;
};

static void begin(void *own)
{
    *(struct own *)own = (struct own){.level = "0-5"};
}

enum keel_status keel_board_record_path(const char *board, char out[KEEL_PATH_BYTES])
{
    static struct keel_board_file file;
    struct keel_device_info info;
    if (strchr(board, '/') != NULL)
        KEEL_TRY(keel_board_folder_find(board, file.folder));
    else
        KEEL_TRY(keel_board_look(board, 0, &file, &info));
    if (file.folder[0] == '\0')
        return keel_fail(KEEL_NOT_FOUND,
                         "%s: no board file is for it, so it has no folder for a record; name a "
                         "file, or make a folder with keel board init",
                         board);
    return keel_path_join(out, file.folder, "record.json");
}

static int run(const struct keel_command *command)
{
    const struct own *own = keel_command_own(command);
    struct keel_check_options options = {.board = command->operand_count > 0 ? command->operands[0] : "auto",
                                         .quick = own->quick};
    struct keel_check_report report;
    char path[KEEL_PATH_BYTES];
    enum keel_status status = KEEL_OK;
    if (own->out == NULL)
        status = keel_board_record_path(options.board, path);
    else
        snprintf(path, sizeof path, "%s", own->out);
    if (status == KEEL_OK)
        status = keel_command_may_write(path);
    if (status == KEEL_OK)
        status = keel_check_session(&options, own->level, !command->json, &report);
    if (status != KEEL_OK)
        return keel_board_report(status);
    int code = keel_check_exit_code(&report);
    bool kept = code == 0 || own->anyway;
    if (kept)
        status = keel_check_write(&report, keel_check_print_json, path);
    if (status != KEEL_OK)
        code = keel_board_report(status);
    (command->json ? keel_check_print_json : keel_check_print_summary)(&report, stdout);
    if (status == KEEL_OK && !command->json)
        printf("%s%s\n",
               kept ? "recorded in " : "not recorded, for it has not passed (see --anyway): ", path);
    keel_check_report_fini(&report);
    return code;
}

static const struct keel_command_option options[] = {
    {"--out", "FILE", KEEL_COMMAND_TEXT, offsetof(struct own, out),
     "where to; without it record.json in the board's folder"},
    {"--level", "LEVELS", KEEL_COMMAND_TEXT, offsetof(struct own, level),
     "as keel board check; without it 0-5"},
    {"--quick", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, quick), "as keel board check"},
    {"--anyway", NULL, KEEL_COMMAND_FLAG, offsetof(struct own, anyway), "also what has not passed"},
    {.name = NULL}};

const struct keel_command_kind keel_board_record = {
    .name = "record",
    .operands = "[BOARD]",
    .operands_max = 1,
    .summary = "check a board, and keep what it is and does as its baseline",
    .details = "The record is the JSON of keel board check. keel board diff compares with it.\n",
    .examples = "  keel board record boards/acme/npu\n"
                "  keel board record pocl:0 --level 0,5 --out today.json\n",
    .options = options,
    .begin = begin,
    .run = run};
