/* keel_board_main.c - the program keel-board: the commands of `keel board` alone, for a board with little
 * memory. */
#include <keel/board_cmd.h>
#include <keel/program.h>

static int run(int argc, char **argv)
{
    return keel_program_run_set("board", keel_board_main, argc, argv);
}

const struct keel_main keel_main_of_program = {.name = "keel-board", .run = run};
