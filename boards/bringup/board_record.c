/* board_record.c - `keel board record`: what a board is and does today, kept so that drift can be told later.
 *
 * A record is the report of keel board check as JSON. One that has not passed is kept only when asked, for a
 * baseline that fails hides the next failure. */
#include "board_record.h"
#include "board_kinds.h"
#include <keel/board.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

struct own {
    const char *level, *out;
    bool quick, anyway;
};

static void begin(void *own)
{
    *(struct own *)own = (struct own){.level = "0-5"};
}

static enum keel_status folder_of_device(const char *selector, char out[KEEL_PATH_BYTES])
{
    struct keel_board *board;
    const struct keel_board_options options = {.without_code = true};
    KEEL_TRY(keel_board_open(selector, &options, &board));
    snprintf(out, KEEL_PATH_BYTES, "%s", keel_board_file(board)->folder);
    keel_board_close(board);
    return KEEL_OK;
}

enum keel_status keel_board_record_path(const char *board, char out[KEEL_PATH_BYTES])
{
    char folder[KEEL_PATH_BYTES];
    KEEL_TRY(strchr(board, '/') != NULL ? keel_board_folder_find(board, folder)
                                        : folder_of_device(board, folder));
    if (folder[0] == '\0')
        return keel_fail(KEEL_NOT_FOUND,
                         "%s: no board file is for it, so it has no folder for a record; name a "
                         "file, or make a folder with keel board init",
                         board);
    return keel_path_join(out, folder, "record.json");
}

enum keel_status keel_board_record_text(const struct keel_check_report *report, char **out, size_t *out_bytes)
{
    FILE *stream = open_memstream(out, out_bytes);
    if (stream == NULL)
        return keel_fail(KEEL_NO_MEMORY, "no memory for a record");
    keel_check_print_json(report, stream);
    return fclose(stream) == 0 ? KEEL_OK : keel_fail(KEEL_NO_MEMORY, "no memory for a record");
}

static enum keel_status write_record(const struct keel_check_report *report, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    enum keel_status status = keel_board_record_text(report, &text, &bytes);
    if (status == KEEL_OK)
        status = keel_command_write_file(path, text, bytes);
    free(text);
    return status;
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
        status = write_record(&report, path);
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
