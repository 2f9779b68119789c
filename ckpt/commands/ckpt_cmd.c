/* ckpt_cmd.c - `keel ckpt`: the table of its subcommands, and what all of them know. What a subcommand does
 * is in its own file; what they share is in ckpt_subcommand.h; command lines are parsed by <keel/command.h>.
 */
#include "ckpt_subcommand.h"
#include <keel/ckpt_cmd.h>
#include <signal.h>

static const struct keel_command_kind *const kinds[] = {&keel_cmd_ls,     &keel_cmd_show,  &keel_cmd_verify,
                                                        &keel_cmd_gc,     &keel_cmd_diff,  &keel_cmd_export,
                                                        &keel_cmd_import, &keel_cmd_repair};

static const struct keel_command_option shared[] = {
    {"--key", "FILE", KEEL_COMMAND_TEXT, offsetof(struct keel_cmd_options, key_file),
     "the key file of sealed snapshots; needed to read what they hold"},
    {"--accept-plain", NULL, KEEL_COMMAND_FLAG, offsetof(struct keel_cmd_options, accept_plain),
     "with --key: take also snapshots that are not sealed"},
    {0}};

const struct keel_command_set keel_ckpt_commands = {
    .name = "keel ckpt",
    .kinds = kinds,
    .kind_count = sizeof kinds / sizeof kinds[0],
    .shared = shared,
    .notes = "PATH is a store, a run in it, one snapshot, or the directory of a keel run.\n"
             "What was interrupted goes on, or begins again, by the same command.\n"};

/* A reader that goes away (`keel ckpt gc out | head`) stops no work half-way. */
int keel_ckpt_main(int argc, char **argv)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before);
    int code = keel_command_main(&keel_ckpt_commands, argc, argv);
    sigaction(SIGPIPE, &before, NULL);
    return code;
}
