/* keel_ckpt_main.c - the program keel-ckpt: the commands of `keel ckpt` alone: no device, no network. */
#include <keel/ckpt_cmd.h>
#include <keel/program.h>

static int run(int argc, char **argv)
{
    return keel_program_run_set("ckpt", keel_ckpt_main, argc, argv);
}

const struct keel_main keel_main_of_program = {.name = "keel-ckpt", .run = run};
