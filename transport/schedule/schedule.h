/* schedule.h - a collective as data: who sends which block to whom, and what is reduced in which order.
 *
 * Owns the description, the generators that make it, the linker that finds what must wait for what, and the
 * cost model that picks one. Pure functions: no fabric, no threads, no clock; memory only inside a schedule.
 * The same schedule runs over the fabric, over shared memory and in the simulator (tests), because a runner
 * needs nothing but this. Leaves data, sizes and deadlines to engine.c.
 *
 * Spaces. A rank's buffers in an operation are its PARTS (what it gives; read only), its RESULT, and TEMPS
 * (scratch, one block each). PARTS and RESULT are cut into blocks; how many bytes a block has is the
 * operation's business (equal slices, equal counts, or tables of counts), the same wherever the schedule
 * names it. A TEMP has the size of the block that the operand names.
 *
 * Program. Steps are listed in an order that, run one after the other on every rank with blocking messages
 * that are buffered, is right. A runner may run them in any order that keeps the hazards (read after write,
 * write after read, write after write), which the linker finds. The k-th SEND from a to b is the k-th RECEIVE
 * of b from a. A RECEIVE waits for nothing: no step before it touches its destination. So every message has
 * its place from the start of a segment, whenever it comes.
 *
 * A barrier is an all-reduce of nothing: its operands (one PART included) have no bytes, its messages are
 * sent. A broadcast fills the RESULT of the root too; a gather's RESULT and a reduction's to a root are
 * touched at the root alone.
 *
 * Segments. Long blocks are cut into chunks; the runner runs the whole schedule once per chunk number (the
 * c-th chunk of every block), several of these segments at a time. So a step is one message of at most a
 * chunk, and a schedule's size does not depend on the operation's. */
#ifndef KEEL_TRANSPORT_SCHEDULE_H
#define KEEL_TRANSPORT_SCHEDULE_H

#include "tree.h"

enum {
    KEEL_SCHEDULE_PEERS_MAX = 64
}; /* AUTO: a rank of a bigger group has fewer peers (all-to-all-v: all) */

enum keel_space { KEEL_SPACE_PART, KEEL_SPACE_RESULT, KEEL_SPACE_TEMP };

struct keel_operand {
    uint16_t space;  /* enum keel_space */
    uint16_t number; /* PART: which of this rank's parts; TEMP: which temp; RESULT: 0 */
    uint32_t block;  /* TEMP: the block, of the schedule's `sizing` space, whose size it has */
};

enum keel_step_kind {
    KEEL_STEP_SEND,    /* operands: source */
    KEEL_STEP_RECEIVE, /* operands: destination */
    KEEL_STEP_COPY,    /* operands: destination, source */
    KEEL_STEP_COMBINE  /* operands: destination, then the sources that the program's leaves number from 0; the
                          destination may also be a source */
};

struct keel_step {
    uint8_t kind;                          /* enum keel_step_kind */
    uint32_t peer;                         /* SEND, RECEIVE: rank in the group */
    uint32_t peer_index;                   /*   its place in `peers`; by the linker */
    uint32_t ordinal;                      /*   number of the message in its direction; by the linker */
    uint32_t operand_first, operand_count; /* into operands */
    uint32_t program_first,
        program_count; /* COMBINE: into program; postfix, leaf numbers and KEEL_TREE_ADD */
};

struct keel_schedule {
    uint32_t rank, rank_count;
    uint32_t part_blocks, result_blocks, temp_count;
    enum keel_space sizing; /* PART or RESULT: the space whose block sizes TEMPs have */
    bool in_order;          /* sums follow the tree over shards: the exact mode's bits */
    struct keel_step *steps;
    uint32_t step_count;
    struct keel_operand *operands;
    uint32_t operand_count;
    uint16_t *program;
    uint32_t program_count;
    /* made by the linker */
    uint32_t *needs;       /* step_count: how many steps must be done before this one */
    uint32_t *freed_first; /* step_count + 1: into freed: */
    uint32_t *freed;       /*   steps that wait for this one */
    uint32_t *peers;       /* ascending: whom it sends to or receives from */
    uint32_t peer_count;
    uint32_t *receives_first; /* peer_count + 1: into receives: */
    uint32_t *receives;       /*   RECEIVE steps from that peer, in order of their messages */
};

/* collective.c: what a rank gives, or gets, of a collective of `count`. */
enum keel_shape {
    KEEL_SHAPE_NOTHING,
    KEEL_SHAPE_VECTOR, /* count, cut into as many slices as the schedule has blocks */
    KEEL_SHAPE_BLOCK,  /* count; in a kind with tables, what they say of this rank */
    KEEL_SHAPE_BLOCKS, /* count for each rank */
    KEEL_SHAPE_TABLE   /* as counts_in or counts_out say for each rank */
};
/* What is known of a kind, once for all who treat kinds alike. */
enum { KEEL_KIND_REDUCES = 1, KEEL_KIND_ROOT_GIVES = 2, KEEL_KIND_ROOT_GETS = 4, KEEL_KIND_PAIR = 8 };
struct keel_kind {
    const char *name;
    enum keel_shape part, result;
    uint32_t marks; /* KEEL_KIND_REDUCES, ... */
};
const struct keel_kind *keel_kind(enum keel_collective_kind kind);
/* Whether its tables of counts are read: of ranks whose blocks differ. */
bool keel_has_counts(const struct keel_collective *what);
/* Whether a rank that is the root, or is not, has a part, or a result. (The root of a broadcast also has a
 * place for a result, which keel_collective_gets leaves alone.) */
bool keel_kind_gives(enum keel_collective_kind kind, bool root);
bool keel_kind_gets(enum keel_collective_kind kind, bool root);
bool keel_kind_reduces(enum keel_collective_kind kind);
bool keel_kind_has_root(enum keel_collective_kind kind); /* a rank of the group that gives or gets all */
bool keel_kind_is_pair(enum keel_collective_kind kind);  /* send, receive: the root is the other rank */
const char *keel_order_name(enum keel_order order);      /* "exact", ... */

/* What a generator is told. */
struct keel_collective_key {
    enum keel_collective_kind kind;
    enum keel_algorithm algorithm; /* not AUTO */
    bool exact;                    /* sums in tree order */
    uint32_t rank, rank_count, root;
    uint32_t shard_count;       /* reductions: the map of logical shards; */
    const uint16_t *shard_rank; /*   who carries each; NULL: shard s is rank s's, one a rank */
    const uint16_t *host_of;    /* host number of each rank, below KEEL_GROUP_RANKS_MAX; NULL: all on one */
};

/* Make this rank's schedule, linked. UNSUPPORTED: the algorithm cannot do that (not this kind, not in tree
 * order with this map, not for this number of ranks), and says why; LIMIT: too much scratch, as
 * all ranks find; NO_MEMORY. */
enum keel_status keel_schedule_make(const struct keel_collective_key *key, struct keel_schedule **out);
void keel_schedule_free(struct keel_schedule *schedule); /* NULL is fine */

/* ---- the cost model ------------------------------------------------------------------------------------ */

/* LogGP (Alexandrov et al. 1995) with sums; integers. Its figures are transport.h's. */

/* A block is cut into messages of so many bytes: equal ones, at least four where they are not too short. */
uint64_t keel_chunk_bytes(uint64_t block_bytes);
/* Predicted nanoseconds of the whole operation of `bytes` (of one rank's result or, all-to-all, its parts).
 */
uint64_t keel_schedule_cost_ns(const struct keel_collective_key *key, uint64_t bytes,
                               const struct keel_cost_model *model);
/* The cheapest algorithm that can do it: same arguments, same answer on every rank (key->rank is not read).
 */
enum keel_algorithm keel_schedule_choose(const struct keel_collective_key *key, uint64_t bytes,
                                         const struct keel_cost_model *model);
/* Bytes that all ranks together put on the wire, by the algorithm's formula (payload only). */
uint64_t keel_schedule_wire_bytes(const struct keel_collective_key *key, uint64_t bytes);

#endif
