/* limits.h - how large a run may be: one table for all rooms.
 *
 * Here stand the limits that rooms must agree on: nodes, ranks, shards, and a control message. Those of one
 * mechanism alone (operations in flight, drills, records of a file) stand in its own header.
 * runtime/node/README.md, section Limits, says what each costs in memory and bytes sent. */
#ifndef KEEL_LIMITS_H
#define KEEL_LIMITS_H

/* Workers of a run, spares included, and nodes that they are on: 8 on each of 4,096. Tests of the control
 * plane are built with fewer; then all must be that includes this. */
#ifndef KEEL_LIMIT_MEMBERS
#define KEEL_LIMIT_MEMBERS 32768
#endif
#ifndef KEEL_LIMIT_NODES
#if KEEL_LIMIT_MEMBERS < 4096
#define KEEL_LIMIT_NODES KEEL_LIMIT_MEMBERS
#else
#define KEEL_LIMIT_NODES 4096
#endif
#endif

enum {
    /* A run under the control plane. Its state is arrays of these sizes: no allocation while it runs; what a
     * run does not need of them is never written, and takes no memory. */
    KEEL_MEMBERS_MAX = KEEL_LIMIT_MEMBERS, /* ranks are below it */
    KEEL_NODES_MAX = 1 + KEEL_LIMIT_NODES, /* nodes of a run, launcher included */
    KEEL_WORKERS_PER_NODE = 16,
    KEEL_HOLDERS_MAX = 5,   /* nodes that hold the register */
    KEEL_SHARDS_MAX = 1024, /* logical shards of a job */
    /* Largest control message: with its seal a datagram of 16 KiB. A view that is larger goes in parts. */
    KEEL_MESSAGE_BYTES = 16384 - 64,

    /* Collectives. A rank of a group has at most KEEL_CONNECTIONS_MAX connections in an epoch, for which
     * queues are made when an endpoint is opened; schedules that are chosen automatically need 63. A group
     * has as many shards as ranks: owners of pieces have one each, and so has each rank in a barrier. */
    KEEL_GROUP_RANKS_MAX = 32768,
    KEEL_GROUP_SHARDS_MAX = KEEL_GROUP_RANKS_MAX,
    KEEL_CONNECTIONS_MAX = 256,

    /* Snapshots: ranks of one, and nodes of one set of parity. */
    KEEL_SNAPSHOT_RANKS_MAX = 32768,
    KEEL_ERASURE_NODES_MAX = 64
};

#endif
