/* net_cmd.c - `keel net`: the table of its subcommands. */
#include "net_cmd.h"

static const struct keel_command_kind *const kinds[] = {&keel_net_check, &keel_net_bench, &keel_net_tune,
                                                        &keel_net_who};
static const struct keel_command_set net = {
    .name = "keel net", .kinds = kinds, .kind_count = sizeof kinds / sizeof kinds[0]};

int keel_net_wrong_use(const char *why, const char *what)
{
    return keel_command_wrong_use(&net, why, what);
}

int keel_net_report(enum keel_status status)
{
    return keel_command_report(&net, status);
}

int keel_net_main(int argc, char **argv)
{
    return keel_command_main(&net, argc, argv);
}
