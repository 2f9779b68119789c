/* net_cmd.h - what the subcommands of `keel net` share: the set that they are of.
 *
 * A subcommand is one struct keel_command_kind (keel/command.h): its words, its options as a table, what it
 * does. */
#ifndef KEEL_TRANSPORT_NET_CMD_H
#define KEEL_TRANSPORT_NET_CMD_H

#include <keel/command.h>
#include <keel/json.h>
#include <keel/net_cmd.h>

/* The operations of all ranks with blocks of one size. */
#define KEEL_NET_OPERATIONS "all-reduce,reduce-scatter,reduce,all-gather,all-to-all,broadcast,gather,scatter"

extern const struct keel_command_kind keel_net_who, keel_net_check, keel_net_bench, keel_net_tune;

/* Print what is wrong, and return the exit code. */
int keel_net_wrong_use(const char *why, const char *what);
int keel_net_report(enum keel_status status);

#endif
