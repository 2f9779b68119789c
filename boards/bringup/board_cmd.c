/* board_cmd.c - `keel board`: the table of its subcommands. */
#include "board_kinds.h"
#include "helper_process.h"
#include <keel/board_cmd.h>
#include <string.h>

static const struct keel_command_kind *const kinds[] = {
    &keel_board_list, &keel_board_check, &keel_board_build, &keel_board_init,    &keel_board_record,
    &keel_board_diff, &keel_board_bench, &keel_board_tune,  &keel_board_release,
};
static const struct keel_command_set board = {
    .name = "keel board", .kinds = kinds, .kind_count = sizeof kinds / sizeof kinds[0]};

int keel_board_wrong_use(const char *why, const char *what)
{
    return keel_command_wrong_use(&board, why, what);
}

int keel_board_report(enum keel_status status)
{
    return keel_command_report(&board, status);
}

int keel_board_main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "helper") == 0) /* started by checks, and told to nobody */
        return keel_board_helper_main(argc - 1, argv + 1);
    return keel_command_main(&board, argc, argv);
}
