/* tape.h - one attempt at a step, as the list of actions that one rank performs.
 *
 * A tape is data: a pure function makes it, another refuses one that is wrong, a third prints it; no device
 * and no network is involved. worker/tape_run.c runs it, one action after the other. One rank alone has a
 * tape without collectives.
 *
 * Pieces. Gradients are handled in pieces: their buckets, in the order in which the backward pass finishes
 * them, and behind those the loss. Forward and backward of a microbatch is cut into as many segments: the end
 * of segment p of a shard's last microbatch makes piece p of that shard final.
 *
 * Nodes. What a rank has summed lies in nodes of the shard tree (partial_sums.h): one in the gradient buffer,
 * the others in slots. A held node is the retained input of another attempt at the same step, so nothing
 * writes it before the step is committed. The sum over ranks goes where no node lies: to a slot that is free
 * when all shards are computed, mostly one that waiting nodes have used; to the gradient buffer where that
 * holds none. UPDATE reads it there.
 *
 * Compressed gradients (train.gradients). Each shard's are made elements by themselves, on the host, and
 * added to those of others there: a rank that holds several shards rounds like several ranks. So no node ever
 * lies in the gradient buffer; the sum is decoded there for the update. STORE, ADD, MARK and HOLD do not
 * occur.
 *
 * Invariants, all checked by keel_tape_check:
 * - microbatches of a shard are added in ascending order, in each piece;
 * - the sum of a piece is begun when it is final; the next shard does not begin before the node in the
 *   gradient buffer lies in a slot;
 * - a slot is read only while it holds a node, and written only while it holds none;
 * - all buckets are summed into one place that holds no node, and the update reads what was summed;
 * - every collective that is begun is waited for, once, and none is waited for before all are begun;
 * - the last sum begins behind SETTLE and SCREEN: without it nobody commits the step;
 * - one update, at the end.
 *
 * Pieces of owners (parallel.zero). A bucket is summed to the owners of its pages, each its own, and their
 * shadows get copies; the update is that of what a rank holds, and the weights go from their owners to all.
 * The tape is the same but for what stands around the update: then also
 * - the squares of gradients are exchanged last, when every sum is with its holders;
 * - weights leave their owners behind the update, and all are there at the end.
 *
 * Ranks with some slices of the tensor axis (parallel.tensor), of which each may own pieces of them. Forward
 * and backward are cut at exchanges too, so a segment is not a piece: the config says which bucket is final
 * behind which segment, and behind which something is exchanged. Sums and records are those of the ranks that
 * have the same slices. Then also
 * - an exchange follows its segment at once, and the next segment follows it, in every microbatch: members
 *   of a tensor group have the same list of segments and the same shards to compute, so they exchange in
 *   one order;
 * - the squares of all slices are there, and all ranks have all sums (AGREE), before any rank updates:
 *   whoever is past AGREE knows that every other one can do the update without data of others (of pieces:
 *   with three numbers);
 * - digests are exchanged behind the update, and the weights if they come from owners, and nothing follows.
 *
 * Gradients in windows (parallel.zero = 2). Buckets use the same memory one after the other: the sum of one
 * is begun as soon as it is final, and waited for before a segment runs that needs its place. So the node of
 * the last shard is in no place that could be held: who is interrupted computes it again. Those before it are
 * stored in slots, piece by piece, and are held. Then also
 * - no segment runs before the buckets are summed whose memory it uses; a rank that computes none waits for
 *   these when the others do, since so many operations may be under way;
 * - all but one of the missing shards are stored before the sums begin. */
#ifndef KEEL_TAPE_H
#define KEEL_TAPE_H

#include "partial_sums.h"
#include <keel/engine.h>
#include <keel/json.h>
#include <stdio.h>

enum keel_action_kind {
    /* launches, on the engine's queue */
    KEEL_ACTION_ZERO,    /* gradients and loss */
    KEEL_ACTION_COMPUTE, /* forward and backward of microbatches of a shard: segment `piece`, or all of them
                          */
    KEEL_ACTION_ADD,     /* a slot's piece to that in the gradient buffer */
    KEEL_ACTION_UPDATE,  /* norm, optimizer, digest: of the gradients in a slot, or in their buffer */
    /* copies */
    KEEL_ACTION_SQUARE, /* of pieces: the sums of squares of this rank's pages, to the host */
    KEEL_ACTION_STORE,  /* the node in the gradient buffer to a slot; with windows piece by piece */
    KEEL_ACTION_LOSS,   /* of every held node to the host */
    KEEL_ACTION_ENCODE, /* of compressed gradients: the shard's as elements, with the nodes of its siblings,
                           to a slot on the host, which holds their node then */
    KEEL_ACTION_DECODE, /* of those: the sum, or the node of a slot, to the gradient buffer */
    /* collectives, begun */
    KEEL_ACTION_COMPARE, /* the ranks' records of the step, folded, with what the weights are now */
    KEEL_ACTION_REDUCE,  /* a piece: one sum over all shards. A bucket is summed from where the nodes lie to a
                            slot, or to the gradient buffer, when it is final; the loss on the host */
    KEEL_ACTION_SHADOW,  /* of pieces: the sums to who has copies of them, and those of others here */
    KEEL_ACTION_COMMIT,  /* of pieces: all ranks' squares */
    KEEL_ACTION_SPREAD,  /* of pieces: the weights of a bucket */
    KEEL_ACTION_WEIGHTS, /* of pieces: those of a bucket to window `slot`, ahead of the segments that read
                            them */
    /* waits */
    KEEL_ACTION_FINISH,  /* for all that the device was given by an earlier attempt */
    KEEL_ACTION_SETTLE,  /* for the gradients; with the checksums of products */
    KEEL_ACTION_AWAIT,   /* for the collective of a piece; of a bucket, until the device has the sum */
    KEEL_ACTION_CAPTURE, /* for the snapshot that reads the weights */
    KEEL_ACTION_MARK,    /* a piece is final where the queue is now */
    /* bookkeeping and hooks */
    KEEL_ACTION_HOLD,   /* the gradient buffer holds the node of a shard and what was added; slots added are
                           free. With windows it lies in a slot, or is the last and goes to the sums */
    KEEL_ACTION_RECORD, /* this rank's record of the step is made */
    KEEL_ACTION_DRILL,  /* faults that are to be injected while sums are under way */
    KEEL_ACTION_SCREEN, /* a golden operation, when it is due */
    KEEL_ACTION_CHECK,  /* the ranks' records agree */
    /* of ranks with some slices: exchanges, which are done when the action is */
    KEEL_ACTION_EXCHANGE, /* what is exchanged behind segment `piece` */
    KEEL_ACTION_NORM,     /* the squares of the slices' gradients */
    KEEL_ACTION_AGREE,    /* all ranks of the view have come so far, with their flags */
    KEEL_ACTION_DIGEST,   /* of the slices' weights, or of owners' pieces: to that of the model */
    KEEL_ACTION_COUNT
};
/* "compute": static. */
const char *keel_action_name(enum keel_action_kind kind);

#define KEEL_PIECE_ALL UINT32_MAX
enum { KEEL_SUM_ON_HOST = KEEL_HOLD_GRADIENTS - 1, KEEL_SUM_IN_PIECES = KEEL_HOLD_GRADIENTS - 2 };

struct keel_action {
    uint16_t kind;  /* enum keel_action_kind */
    int16_t slot;   /* ADD, STORE, REDUCE, NORM, AGREE, UPDATE, ENCODE, DECODE; of REDUCE
                       and what follows also KEEL_HOLD_GRADIENTS, and KEEL_SUM_ON_HOST: the loss, and all
                       that is compressed */
    uint32_t piece; /* bucket; bucket_count: the loss, and one more: the records; of
                       AWAIT also keel_piece_...; of DRILL 1: behind the update */
    uint32_t shard; /* COMPUTE, HOLD, ENCODE; HOLD of windows has a slot, too */
    uint32_t microbatch, microbatch_count; /* COMPUTE: of the shard */
};

/* What every rank says with a step, in the collective of the last piece. */
struct keel_commit_record {
    uint64_t epoch, step, flags;
    uint64_t digest, now; /* of the weights, as the update before left them, and as they are */
    uint64_t own, copies; /* of the pieces that this rank owns, and of all those that it shadows together */
    uint32_t has_loss, loss_bits; /* of the step before, where this rank did it */
};

/* Records of any number of ranks, folded: the largest of each byte. What all must say alike is here twice, as
 * it is and inverted, so the two are each other's inverse where all said the same, and only there; who does
 * not know it has zeros in both. */
enum { KEEL_FOLD_EPOCH, KEEL_FOLD_STEP, KEEL_FOLD_WEIGHTS, KEEL_FOLD_LOSS, KEEL_FOLD_VALUES };
enum { KEEL_STEP_FLAGS = 8 };
struct keel_record_fold {
    uint64_t said[KEEL_FOLD_VALUES], inverted[KEEL_FOLD_VALUES];
    uint8_t flags[KEEL_STEP_FLAGS]; /* 1: a rank has it */
    uint8_t moved;                  /* 1: a rank's weights are not those that its update left */
    uint8_t unused[7];
};
_Static_assert(sizeof(struct keel_record_fold) == 80, "no byte of it is left to the compiler");

/* A segment of an engine with some slices, or with weights that are gathered. */
struct keel_tape_segment {
    uint32_t bucket;                /* final behind it; UINT32_MAX: none */
    bool exchanges, exchanges_last; /* behind it, in every microbatch; in the last of a shard */
};

/* What a tape follows from. */
struct keel_tape_config {
    uint32_t bucket_count; /* 1 at least */
    uint32_t microbatches; /* of a shard, 1 at least */
    uint32_t shard_count;
    const uint16_t *shard_position; /* shard_count: which position carries each */
    uint32_t position;              /* of this rank */
    bool grouped;                   /* there is a group to sum over */
    bool in_pieces, shadowed;       /* ranks own pieces (grouped then, also alone), with second holders */
    bool compressed;                /* train.gradients is not exact: nodes are elements on the host */
    bool sharing;                   /* ranks have some slices of the tensor axis */
    const struct keel_tape_segment *segments; /* segment_count, of those; NULL: a segment is a piece */
    uint32_t segment_count;
    const uint32_t *waits; /* in_pieces, one microbatch a shard: bucket_count + 1, ascending: so many buckets
                              are summed before a segment runs; NULL: gradients lie in no windows */
    const struct keel_engine_gather *gathers; /* in_pieces, with segments: of a microbatch, in the order of
                                                 their begin and of their first; NULL: all weights are here */
    uint32_t gather_count;
    uint32_t rounds; /* with gathers: 1 at least, and no less than any rank has microbatches to compute */
    const struct keel_partial_sums *held; /* nodes of this step, of shards that this rank carries */
};

/* What AWAIT calls the other collectives of pieces of owners. */
static inline uint32_t keel_piece_shadow(uint32_t bucket_count)
{
    return bucket_count + 2;
}
static inline uint32_t keel_piece_commit(uint32_t bucket_count)
{
    return bucket_count + 3;
}
static inline uint32_t keel_piece_weights(uint32_t bucket_count, uint32_t bucket)
{
    return bucket_count + 4 + bucket;
}

struct keel_tape {
    struct keel_action *actions; /* owned */
    uint32_t count, capacity;
    uint32_t shards_computed; /* of this rank's, those that no held node covers */
    uint32_t part_count;      /* nodes held at the end: what this rank gives to each sum */
};

/* The most actions that a tape of this config has. */
uint32_t keel_tape_bound(const struct keel_tape_config *config);
/* Room for so many actions, for all tapes to come. NO_MEMORY. */
enum keel_status keel_tape_reserve(struct keel_tape *tape, uint32_t actions);
void keel_tape_fini(struct keel_tape *tape);

/* The actions of one attempt. Allocates nothing: room for keel_tape_bound actions was reserved. */
void keel_tape_make(struct keel_tape *tape, const struct keel_tape_config *config);

/* INVALID names the first action that breaks an invariant, and which. */
enum keel_status keel_tape_check(const struct keel_tape *tape, const struct keel_tape_config *config);

/* A line for each action; piece_bytes: of each bucket, of the loss and of the records. */
void keel_tape_print(const struct keel_tape *tape, const uint64_t *piece_bytes, FILE *out);
/* The same as a list of objects in the object that is open. */
void keel_tape_print_json(const struct keel_tape *tape, const uint64_t *piece_bytes, struct keel_json *json,
                          const char *key);

#endif
