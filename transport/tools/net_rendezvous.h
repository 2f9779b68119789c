/* net_rendezvous.h - doing something with several ranks: on this machine, or on many.
 *
 * The process that the user started is the host of a rendezvous (rendezvous.h) and no rank itself. It starts
 * the ranks of this machine as processes of the same command with `--member`, or (--hosts) those of others
 * through a remote shell, or waits for those that the user starts (--join). It hears their frames, and says
 * who failed. A rank opens an endpoint and a group of all, does its work, and reports. */
#ifndef KEEL_TRANSPORT_NET_RENDEZVOUS_H
#define KEEL_TRANSPORT_NET_RENDEZVOUS_H

#include "net_cmd.h"
#include "rendezvous.h"

/* First in the own struct of a subcommand; its options are KEEL_NET_RENDEZVOUS_OPTIONS(struct, field). */
struct keel_net_rendezvous {
    uint64_t ranks, rank, world, timeout_s;
    const char *join, *key_file, *hosts, *shell, *carrier, *costs;
    bool member;
};
void keel_net_rendezvous_begin(struct keel_net_rendezvous *rendezvous); /* what holds without options */
/* What would else fail after minutes of measuring, or take the memory of everybody on this machine: every
 * rank takes twice `bytes`, and `path` is written in the end (NULL: nothing is). LIMIT, or what keeps from
 * writing. */
enum keel_status keel_net_rendezvous_can(const struct keel_net_rendezvous *rendezvous, uint64_t bytes,
                                         const char *path);

#define KEEL_NET_RENDEZVOUS_OPTIONS(type, field)                                                             \
    {"--ranks", "N", KEEL_COMMAND_COUNT, offsetof(type, field.ranks),                                        \
     "processes on this machine; without it 4"},                                                             \
        {"--carrier", "WHAT", KEEL_COMMAND_TEXT, offsetof(type, field.carrier),                              \
         "shared: memory among ranks of one host (the default); tcp: never"},                                \
        {"--provider", "NAME", KEEL_COMMAND_TEXT, offsetof(type, field.carrier),                             \
         "all over this provider of libfabric: tcp, verbs, \"tcp;ofi_rxm\", efa, ..."},                      \
        {"--costs", "FILE", KEEL_COMMAND_TEXT, offsetof(type, field.costs),                                  \
         "choose algorithms by the figures that `keel net tune` wrote there; on all nodes the same"},        \
        {"--timeout", "SECONDS", KEEL_COMMAND_COUNT, offsetof(type, field.timeout_s),                        \
         "how long one operation, or the meeting, may take; without it 30"},                                 \
        {"--join", "HOST:PORT", KEEL_COMMAND_TEXT, offsetof(type, field.join),                               \
         "several nodes: meet there; rank 0 is started on that host"},                                       \
        {"--rank", "R", KEEL_COMMAND_COUNT, offsetof(type, field.rank), "with --join: which rank this is"},  \
        {"--world", "N", KEEL_COMMAND_COUNT, offsetof(type, field.world),                                    \
         "with --join: how many ranks there are"},                                                           \
        {"--key", "FILE", KEEL_COMMAND_TEXT, offsetof(type, field.key_file),                                 \
         "with --join: 64 hexadecimal digits that all ranks have"},                                          \
        {"--hosts", "FILE", KEEL_COMMAND_TEXT, offsetof(type, field.hosts),                                  \
         "start the ranks of several nodes: a line is HOST [SLOTS]"},                                        \
        {"--shell", "COMMAND", KEEL_COMMAND_TEXT, offsetof(type, field.shell),                               \
         "with --hosts: how to start there; without it ssh -o BatchMode=yes"},                               \
    {                                                                                                        \
        "--member", NULL, KEEL_COMMAND_FLAG, offsetof(type, field.member), NULL                              \
    }

/* What a rank works with. */
struct keel_net_rank {
    const struct keel_command *cmd;
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct keel_rendezvous_member *member;
    uint32_t rank, world;
    uint64_t timeout_ns, sequence; /* sequence: of the next operation */
    uint64_t said_ns;              /* when it last told the host that it is there */
};
uint64_t keel_net_rank_deadline(const struct keel_net_rank *rank); /* of an operation that begins now */
/* One operation under the next number: `what` names neither parts nor result, of which the rank has `part`
 * and `result` where its kind wants them. SEND: everybody sends to the next rank and receives from the one
 * before, both at once. */
enum keel_status keel_net_rank_run(struct keel_net_rank *rank, struct keel_collective what, const void *part,
                                   void *result);
/* Tell the host; kinds from KEEL_NET_FRAME_OWN on. */
enum { KEEL_NET_FRAME_FAILED = KEEL_RENDEZVOUS_OWN, KEEL_NET_FRAME_ALIVE, KEEL_NET_FRAME_OWN };
enum keel_status keel_net_rank_say(const struct keel_net_rank *rank, uint32_t kind, const void *payload,
                                   uint32_t bytes);
/* Tell the host, once a second at most, that this rank is at work: a long silence it takes for a death. To be
 * called between operations where nothing else is said for long. */
enum keel_status keel_net_rank_alive(struct keel_net_rank *rank, uint64_t now_ns);

struct keel_net_work {
    /* In each rank. What it returns but OK is told to the host and ends everything. */
    enum keel_status (*rank)(struct keel_net_rank *rank);
    /* In the host: a frame of a rank; false when it makes no sense. */
    bool (*frame)(void *context, uint32_t rank, uint32_t kind, const uint8_t *payload, uint32_t bytes);
    /* In the host: all have met. */
    void (*met)(void *context, uint32_t world);
    void *context;
};
/* Do it. True when this process was the host, which then sums up; else *out_code is the process's exit code.
 * The host's *out_status is OK when every rank did all its work; what failed has been printed. */
bool keel_net_rendezvous_run(const struct keel_command *cmd, const struct keel_net_rendezvous *rendezvous,
                             const struct keel_net_work *work, int *out_code, enum keel_status *out_status);

#endif
