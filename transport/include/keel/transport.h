/* transport.h - moving tensors between ranks: endpoints, groups, collectives.
 *
 * An endpoint is this process's place among the others: it listens, and connects on demand, over libfabric
 * and, to ranks of the same host, through shared memory. A group is the ranks of one view (one epoch). Every
 * message carries epoch and sequence; what comes from another epoch is dropped unread.
 *
 * Threads. Progress is made by one thread at a time: a caller that begins or waits, else the endpoint's own
 * thread. It sleeps on file descriptors and polls busily for some tens of microseconds at most. Public calls
 * are thread-safe unless said otherwise. A thread that has waited on a busy machine keeps a short slice of
 * the processor (keel_thread_slice).
 *
 * Deadlines. Every call that waits for other ranks takes one (keel_now_ns) and returns by then:
 *   OK
 *   TIMEOUT    keel_group_failed names who was awaited, the detail for what
 *   PEER_LOST  a rank is gone, or was awaited in vain by another whose deadline came first:
 *              keel_group_failed says who
 *   CORRUPT    a message was changed on its way here: keel_group_lost says whose, the detail on which
 *              connection. Nothing of it was used; to the other ranks it is PEER_LOST
 *   REVOKED    the epoch is over: keel_group_revoke here or there, a newer epoch there, or a peer
 *              closed its group
 *   MISMATCH   ranks disagree about the operation, or opened the epoch with other members, addresses or
 *              shards; the detail says who has what
 *   NO_MEMORY, LIMIT, IO   this process lacks what a connection takes
 * After any of these but OK the group is finished: close it and open one of a new epoch. Memory given to an
 * operation that failed is released by keel_group_close, not before. Closing takes no deadline: it gives
 * sends that are under way 200 ms.
 *
 * Exact mode. Reductions over logical shards go by one binary tree over shard numbers, whatever ranks carry
 * them: node (level L, index i) covers shards [i << L, min((i+1) << L, S)); its value is left + right, or
 * left alone when the right child is empty. One rounding to the element's type per inner node: the same bits
 * for every placement. */
#ifndef KEEL_TRANSPORT_H
#define KEEL_TRANSPORT_H

#include <keel/api.h>
#include <keel/limits.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KEEL_API_BEGIN

enum { KEEL_ADDRESS_BYTES = 64 }; /* opaque: fabric address, identity of the host, name of a local socket */

struct keel_address {
    uint32_t bytes;
    uint8_t data[KEEL_ADDRESS_BYTES];
};

struct keel_endpoint;
struct keel_group;
struct keel_operation;

struct keel_endpoint_config {
    const char *provider; /* of libfabric: "tcp", "verbs", "tcp;ofi_rxm", "efa", ...; the same on all ranks.
                             NULL: verbs where a device of it has the address `node`, else tcp. What cannot be
                             used is refused by name of what it lacks (provider.h) */
    const char *node;     /* address to listen on; NULL is "127.0.0.1" */
    const uint8_t *key;   /* 32 bytes: the job key; connections prove that they know it (keyed hash
                             over a challenge), and all that follows between hosts is authenticated; headers,
                             control messages and small payloads are encrypted too. NULL: no proof asked, and
                             a checksum finds what was damaged, not what was forged (loopback). Copied. */
    bool seal_payload; /* bulk data is encrypted too, not only authenticated: the same on all ranks, needs a
                          key */
    bool fabric_only;  /* ranks of one host use the fabric too, not shared memory; so does the environment
                          variable KEEL_SHARED_MEMORY=0 */
};

/* Open and listen; starts the progress thread. UNSUPPORTED names the provider and what it lacks; INVALID; IO,
 * NO_MEMORY. */
enum keel_status keel_endpoint_open(const struct keel_endpoint_config *config, struct keel_endpoint **out);
void keel_endpoint_address(const struct keel_endpoint *endpoint, struct keel_address *out);
/* All groups must be closed. Returns when all who were connected have read what was sent to them and this
 * rank's farewell, or are gone: at once, or after two seconds where one of them does not run. */
void keel_endpoint_close(struct keel_endpoint *endpoint);

/* What AUTO goes by (LogGP: Alexandrov et al. 1995). */
struct keel_link_cost {
    uint64_t alpha_ns;       /* one message, from here to there */
    uint64_t gap_ns;         /* what it keeps its sender, and its receiver, from the next one */
    uint64_t picos_per_byte; /* to move it */
};
struct keel_cost_model {
    struct keel_link_cost within, between; /* ranks of one host; ranks of two */
    uint64_t combine_picos_per_byte;
    uint64_t host_processors; /* that a host's ranks share; 0: what they do is not added up */
};
/* From a file that `keel net tune` wrote. INVALID names file, line and key; NOT_FOUND, DENIED, LIMIT, IO. */
enum keel_status keel_costs_read(const char *path, struct keel_cost_model *out);

struct keel_group_config {
    uint64_t epoch;                       /* of the view */
    uint32_t rank;                        /* of this process, index into addresses */
    uint32_t rank_count;                  /* 1 .. KEEL_GROUP_RANKS_MAX */
    const struct keel_address *addresses; /* rank_count; copied */
    uint32_t shard_count;                 /* 1 .. KEEL_GROUP_SHARDS_MAX */
    const uint16_t *shard_rank;           /* shard_count: which rank carries each shard; copied */
    const struct keel_cost_model *costs;  /* the same on all ranks, or MISMATCH says who has others; NULL:
                                             built-in ones; copied */
    /* A rank that we are connected to, or call, and that gave no sign of life for so long is lost, also while
     * no operation is under way. Signs come from its endpoint's own thread, whatever its caller does. 0: only
     * deadlines end the wait for a rank that is silent. The same on all ranks; 40 ms at least. */
    uint64_t silence_ns;
};

/* Cheap and local: connections are made when first needed. At most one open group per endpoint (BUSY), and
 * each of a newer epoch than the one before (INVALID, as for a config that cannot be). NO_MEMORY. */
enum keel_status keel_group_open(struct keel_endpoint *endpoint, const struct keel_group_config *config,
                                 struct keel_group **out);
/* End the group at once, here and on all its ranks: every waiting call of it returns REVOKED, and no rank is
 * blamed for that. Never blocks, any thread, may be called twice. Peers that are connected hear of it now and
 * pass it on, others when they connect (MPIX_Comm_revoke of ULFM, Bland et al. 2013). Close the group then.
 */
void keel_group_revoke(struct keel_group *group);
/* A group within a group. It lives in the parent's epoch and on its connections, with operations and shards
 * of its own, and ends with the parent: once that is revoked or closed, calls of the child return REVOKED. A
 * member that is lost ends the child's operations with PEER_LOST, and keel_group_failed of the child names it
 * by its rank there; the loss of a rank outside ends nothing in the child. */
struct keel_subgroup {
    uint64_t sequence;          /* that none of these ranks uses for another subgroup of the parent */
    uint32_t rank_count;        /* 1 .. ranks of the parent */
    const uint16_t *ranks;      /* of the parent, in the child's order; this rank among them */
    uint32_t shard_count;       /* 1 .. KEEL_GROUP_SHARDS_MAX */
    const uint16_t *shard_rank; /* which rank of the child carries each shard. NULL (and no count): the
                                   parent's shards that its ranks carry, in the parent's order */
};
/* Make it: called by its members alone, each with the same arguments. Local, never blocks; connections are
 * made when first needed. Members that disagree hear of it in their first operation (MISMATCH), or wait for
 * their deadlines where none of them takes the other for a member. INVALID, NO_MEMORY, REVOKED; LIMIT (1,024
 * subgroups an epoch, a number that is taken). Then others may have it, and wait for this rank until their
 * deadlines. (MPI_Comm_create_group; Dinan et al. 2011.) */
enum keel_status keel_group_create(struct keel_group *parent, const struct keel_subgroup *what,
                                   struct keel_group **out);
/* The same, for ranks that do not know each other's choice: those with the same colour form a child, ordered
 * by (key, rank in the parent), with the parent's shards that they carry. Collective over the parent (an
 * all-gather under `sequence`); returns by the deadline. On failure as keel_group_run and keel_group_create.
 */
enum keel_status keel_group_split(struct keel_group *parent, uint64_t sequence, uint32_t colour, uint32_t key,
                                  uint64_t deadline_ns, struct keel_group **out);
uint32_t keel_group_rank(const struct keel_group *group);
uint32_t keel_group_rank_count(const struct keel_group *group);
/* Revoke, close the connections of the epoch (of a child: none), release all memory of unfinished operations.
 * Returns when nothing touches memory that was lent any more, which takes 200 ms at most and the time of a
 * round of progress. Waiters of other threads return first. Once. What was split from it ends with it: calls
 * of that return REVOKED, also when the endpoint is closed, and it is closed by its owner before or after. */
void keel_group_close(struct keel_group *group);
/* The ranks whose loss or silence ended operations (PEER_LOST, TIMEOUT), as far as this rank knows, in the
 * order in which it learned of them. Writes the first `capacity` to out_ranks; returns how many there are,
 * 126 at most. After a TIMEOUT it names, in this order of preference: the awaited ranks that gave no sign of
 * life; the ranks for which the awaited ones wait; those that have not begun; the first awaited rank, where
 * all have begun and live. Closing the group tells the other ranks these names, so that they report the same,
 * except for the last kind, which is a guess. Any thread; until the group is closed. */
uint32_t keel_group_failed(const struct keel_group *group, uint32_t *out_ranks, uint32_t capacity);
/* The first of them: false when there is none. */
bool keel_group_lost(const struct keel_group *group, uint32_t *out_rank);

/* Called by whoever makes progress, on any thread, when a peer's connection breaks or it is silent for too
 * long (not on an orderly close). Must not block or call into the group. Set before the first operation. */
void keel_group_on_lost(struct keel_group *group, void (*lost)(void *context, uint32_t rank), void *context);

/* ---- collectives --------------------------------------------------------------------------------------- */

/* Every rank of the group begins the operation with the same `sequence`, a number unique within the group;
 * different sequences may be in flight at once, begun in any order. */

enum keel_element {
    KEEL_ELEMENT_F32,
    KEEL_ELEMENT_F64,
    KEEL_ELEMENT_F16,
    KEEL_ELEMENT_BF16,
    KEEL_ELEMENT_I8,
    KEEL_ELEMENT_I32,
    KEEL_ELEMENT_I64,
    KEEL_ELEMENT_U8,
    KEEL_ELEMENT_COUNT, /* of numbers; behind them elements that stand for many, of which there are only sums:
                           transport_compressed.h */
    KEEL_ELEMENT_I8_BLOCK = KEEL_ELEMENT_COUNT,
    KEEL_ELEMENT_TOP_K,
    KEEL_ELEMENT_ALL
};
uint32_t keel_element_bytes(enum keel_element element);   /* 0 for an unknown one */
const char *keel_element_name(enum keel_element element); /* "f32", ... */

/* AVERAGE: the sum over all shards (ranks, where `by_rank`), divided once by their number. */
enum keel_reduction { KEEL_SUM, KEEL_MIN, KEEL_MAX, KEEL_AVERAGE, KEEL_REDUCTION_COUNT };
const char *keel_reduction_name(enum keel_reduction reduction); /* "sum", ... */

enum keel_collective_kind {
    KEEL_ALL_REDUCE,     /* count: of the vector */
    KEEL_REDUCE_SCATTER, /* count: of each rank's slice of the result; a part has rank_count * count. With
                            counts_out, of rank r's slice counts_out[r], and a part has them all */
    KEEL_REDUCE,         /* count: of the vector; result at root alone */
    KEEL_ALL_GATHER,     /* count: of each rank's contribution; result rank_count * count */
    KEEL_ALL_GATHER_V,   /* counts_out[r]: of rank r's contribution */
    KEEL_ALL_TO_ALL,     /* count: from each rank to each rank */
    KEEL_ALL_TO_ALL_V,   /* counts_in[r]: to rank r; counts_out[r]: from rank r */
    KEEL_BROADCAST,      /* count: of the vector; root's part is read */
    KEEL_GATHER,         /* count: of each contribution; result at root alone */
    KEEL_SCATTER,        /* count: to each rank; part at root alone */
    KEEL_BARRIER,
    KEEL_SEND,    /* count; to `root`. `sequence` is the tag: the receive of this peer with the same one takes
                     it. It may be that of a collective, or of a send the other way; once for each pair */
    KEEL_RECEIVE, /* count; from `root` */
    KEEL_COLLECTIVE_COUNT
};
const char *keel_collective_name(enum keel_collective_kind kind); /* "all-reduce", ... */

/* How. AUTO takes the cheapest by the group's cost model; all ranks must ask for the same. */
enum keel_algorithm {
    KEEL_ALGORITHM_AUTO,
    KEEL_ALGORITHM_FLAT, /* everybody (or the root) gets everything in one hop; smallest latency of few ranks
                          */
    KEEL_ALGORITHM_DIRECT, /* one hop to the owner of each slice, one hop back: any shard map in tree order */
    KEEL_ALGORITHM_RING,
    KEEL_ALGORITHM_TREE,      /* binomial; reductions go up along the tree over shards */
    KEEL_ALGORITHM_HALVING,   /* recursive halving, then doubling; the nearest first, so in tree order if
                                 aligned */
    KEEL_ALGORITHM_BRUCK,     /* all-gather, all-to-all and barrier in log2 steps (Bruck et al. 1997) */
    KEEL_ALGORITHM_PAIRWISE,  /* all-to-all, one partner a step */
    KEEL_ALGORITHM_TWO_LEVEL, /* within hosts, then between them */
    KEEL_ALGORITHM_DOUBLING,  /* all-reduce of whole vectors with partners at distance 1, 2, 4, ...: log2 n
                                 hops */
    KEEL_ALGORITHM_COUNT
};
const char *keel_algorithm_name(enum keel_algorithm algorithm);

/* Exact: sums go by the tree over logical shards, one rounding per inner node: the same bits whatever the
 * algorithm, chunk size, connection backend or placement. Native: any order. */
enum keel_order { KEEL_ORDER_EXACT, KEEL_ORDER_NATIVE };

struct keel_collective {
    enum keel_collective_kind kind;
    uint64_t sequence;
    enum keel_element element;
    enum keel_reduction reduction;
    enum keel_order order;
    enum keel_algorithm algorithm;
    uint32_t root; /* or the peer of send and receive */
    uint64_t count;
    const uint64_t *counts_in, *counts_out; /* rank_count each; copied */
    /* What this rank gives. Reductions: one pointer per tree node that it holds (keel_tree_nodes; one shard a
     * rank: one). Others: part_count 1, or 0 where it gives nothing. Borrowed, never written, until the wait
     * returned OK or the group is closed: they are the retained inputs of a redo. */
    const void *const *parts;
    uint32_t part_count;
    void *result; /* borrowed likewise; NULL where there is none. In place is not supported: parts stay. */
    /* Reductions: over ranks, of which each gives one part, whatever shards it carries; an exact sum goes by
     * the tree over ranks. The same on all ranks. */
    bool by_rank;
};

/* Tree nodes held by a rank: the maximal complete subtrees of its set of shards. */
struct keel_tree_node {
    uint32_t level, index;
};
/* The nodes that `rank` must contribute, ascending by first shard: at most as many as it has shards. LIMIT
 * when they do not fit in `capacity`. Pure function of the map. */
enum keel_status keel_tree_nodes(uint32_t shard_count, const uint16_t *shard_rank, uint32_t rank,
                                 struct keel_tree_node *out, uint32_t capacity, uint32_t *out_count);

/* Begin; does not block. INVALID names what is wrong with the arguments; UNSUPPORTED, an algorithm that
 * cannot do it; LIMIT, too much in flight, or a rank would have more peers than connections (256); REVOKED,
 * the epoch is over; NO_MEMORY. Then nothing was begun, and the group goes on. */
enum keel_status keel_group_begin(struct keel_group *group, const struct keel_collective *collective,
                                  struct keel_operation **out);
/* Begin and wait. */
enum keel_status keel_group_run(struct keel_group *group, const struct keel_collective *collective,
                                uint64_t deadline_ns);

/* Wait for an operation; statuses as at the top, and INVALID where its sequence was in use already. On any
 * but TIMEOUT the handle is consumed (TIMEOUT too finishes the group: close it). One thread at a time for
 * each operation. NULL is accepted and OK. */
enum keel_status keel_operation_wait(struct keel_operation *operation, uint64_t deadline_ns);
/* Make what progress can be made without waiting. False: it is still under way. True: it is over; the handle
 * is consumed and *out is what the wait would have returned (MPI_Test). Threads as for the wait. */
bool keel_operation_test(struct keel_operation *operation, enum keel_status *out);

/* ---- memory -------------------------------------------------------------------------------------------- */

/* Where parts and results may lie, like anywhere else. What lies here ranks of the same host read in place
 * instead of passing copies through slots, so long vectors belong here. Zeroed, page-aligned, a whole memfd
 * each: for few, large buffers. Children of fork share it with their parent. Peers can read it, not write it,
 * while both are in one epoch. Free it when no operation uses it and no group that it was used in is open, or
 * its peers keep the memory until they notice. NO_MEMORY, LIMIT. Any thread. */
enum keel_status keel_transport_alloc(uint64_t bytes, void *out_pointer_address);
void keel_transport_free(void *memory); /* NULL is fine */

struct keel_transport_stats {
    uint64_t bytes_sent, bytes_received; /* payload and headers */
    uint64_t messages_sent, messages_received;
    uint64_t data_sent;   /* bytes of operations' data alone: what the formula of an algorithm counts */
    uint64_t data_copied; /* of these, and of data received, moved from one place of this process's memory to
                             another: into a ring or a message slot, out of one, into scratch. What is added
                             or sent where it lies is not copied */
    uint64_t stale_dropped; /* messages of another epoch, from strangers, or changed on their way */
    uint32_t connections;   /* open now */
};
void keel_endpoint_stats(const struct keel_endpoint *endpoint, struct keel_transport_stats *out);

KEEL_API_END

#endif
