/* trainer.h - one rank's part of a step: which shards it computes, which partial sums it keeps, how they are
 * summed over ranks.
 *
 * Owns the engine, the kernels and the gradients of tree nodes that are held between shards. Gradients
 * of logical shards are summed in the fixed tree of transport.h: inside the rank on the device, between
 * ranks by the group. A step that was interrupted keeps the nodes it has finished; after a view change
 * only shards that nobody holds any more are computed again.
 *
 * One thread, but for keel_trainer_read_piece, which the capture thread of a snapshot calls. */
#ifndef KEEL_TRAINER_H
#define KEEL_TRAINER_H

#include "data.h"
#include "drill.h"
#include "hang_watch.h"
#include "holdings.h"
#include "score.h"
#include "share_runs.h"
#include <keel/ckpt.h>
#include <keel/device.h>
#include <keel/engine.h>
#include <keel/job.h>
#include <keel/node.h>
#include <keel/transport_device.h>
#include <stdatomic.h>

struct keel_trainer;

struct keel_trainer_phase {                    /* drills; it may not return */
    void (*at)(void *context, unsigned phase); /* enum keel_drill_phase; NULL: there are none */
    void *context;
};

struct keel_trainer_config {
    const struct keel_job *job;                 /* borrowed */
    const struct keel_data *data;               /* borrowed */
    struct keel_device *device;                 /* borrowed */
    const struct keel_kernels_options *kernels; /* of the board; NULL: defaults; borrowed for the call */
    const char *dump_directory, *passes_off;    /* as of the engine; borrowed for the call */
    uint64_t stall_ns;             /* a device or peer that makes no progress for so long is an error */
    struct keel_hang_watch *hangs; /* told of all that waits for the device; borrowed; NULL: nobody watches */
    atomic_uint_fast64_t *progress;      /* counts what moves; borrowed */
    uint32_t tensor_first, tensor_count; /* slices to begin with (keel_trainer_cut); count 0: all */
    struct keel_trainer_phase phase;
};

/* The engine that a job trains with: model, microbatches, storage and optimizer are the job's, all else is as
 * `config` says. The caller owns *out. Errors are those of keel_engine_create and of the model. */
enum keel_status keel_trainer_build_engine(const struct keel_job *job, const struct keel_data *data,
                                           struct keel_engine_config config, struct keel_engine **out);

/* The engine's segments as a tape knows them (plan/tape.h), on the heap: the caller's. An engine of all
 * slices and all weights has no use for them. */
struct keel_tape_segment;
enum keel_status keel_trainer_list_segments(const struct keel_engine *engine, struct keel_tape_segment **out,
                                            uint32_t *out_count);

/* Elements of keel/transport_compressed.h that the gradients of each bucket become: out, by bucket. */
enum keel_status keel_trainer_count_compressed(const struct keel_engine *engine,
                                               const struct keel_compression *how, uint64_t *out);

/* Build kernels and engine; seconds the first time on a machine. */
enum keel_status keel_trainer_create(const struct keel_trainer_config *config, struct keel_trainer **out);
void keel_trainer_destroy(struct keel_trainer *trainer);
struct keel_engine *keel_trainer_engine(struct keel_trainer *trainer);
/* Of the transport, in which gradients and held sums lie where it is the device's memory too. */
uint64_t keel_trainer_shared_bytes(const struct keel_trainer *trainer);
/* Of both, what plans do not count: inputs, tables, workspace of kernels, losses of nodes. */
uint64_t keel_trainer_table_bytes(const struct keel_trainer *trainer);
struct keel_kernels *keel_trainer_kernels(struct keel_trainer *trainer);

/* Warm-up: run everything once, so that the first step, and the first step of a spare that takes over, take
 * no longer than others. It changes the state: initialize, load or heal it afterwards. */
enum keel_status keel_trainer_warm(struct keel_trainer *trainer);
/* The digest of the weights after the one update of the warm-up, from the job's first weights: equal on
 * boards that compute the same bits, in the kernels and shapes of this job. 0 before. */
uint64_t keel_trainer_probe(const struct keel_trainer *trainer);
/* Weights from the seed, optimizer at zero. */
enum keel_status keel_trainer_initialize(struct keel_trainer *trainer);
enum keel_status keel_trainer_digest(struct keel_trainer *trainer, uint64_t *out);

/* ---- a step ---- */

/* One rank's memory is not what it was, or it has other weights, or another loss, behind `step` than most
 * have. All ranks know it, before any of them has done the next step. */
struct keel_trainer_vote {
    uint64_t step;
    bool mine;  /* it is this rank, */
    bool board; /* with its board's memory; else its host's */
    bool tells; /* the first of the others */
    uint16_t rank;
    uint64_t digest; /* what the others have */
    uint32_t loss_bits;
    bool has_loss; /* one of them has it */
    const char *evidence;
};

/* `outvoted`: what it says ends the step; NULL: MISMATCH with the evidence does. `pass` is called after the
 * gradients of the step are computed and before this rank contributes its last part of the sum: any status
 * but OK ends the step, and no rank commits it. Blocks. `wrong` is told when checksums of products show that
 * the board changed one (train.check_products), and what it says ends the step; NULL: CORRUPT with the
 * evidence does. */
struct keel_trainer_screen {
    enum keel_status (*pass)(void *context); /* NULL: not this step */
    enum keel_status (*wrong)(void *context, const char *evidence);
    enum keel_status (*outvoted)(void *context, const struct keel_trainer_vote *vote);
    void *context;
};

struct keel_trainer_step {
    uint64_t step;
    uint64_t epoch;
    struct keel_group *group;   /* of the view; NULL when this rank is alone */
    struct keel_group *sharers; /* parallel.zero_group: of this rank's group of owners, with as many ranks as
                                   that; NULL: it is all of the group, or one */
    uint32_t position;          /* of this rank in the group */
    uint32_t rank_count;
    const uint16_t *position_rank;  /* rank_count names of ranks for messages; NULL: the positions */
    const uint16_t *shard_position; /* job->shards entries: which position carries each shard */
    struct keel_save *save;         /* snapshot being captured: weights wait for it; NULL when none */
    uint64_t flags;                 /* KEEL_STEP_FLAGS bits that all ranks get to know with the commit */
    uint64_t saving_flag;           /* and these, when `save` is then not done */
    uint32_t loss_bits;             /* of the step before, which ranks that did it compare */
    bool has_loss;                  /* this one did */
    struct keel_trainer_screen screen;
};

struct keel_trainer_result {
    float loss, grad_norm, learning_rate;
    float loss_scale; /* 0: none */
    uint64_t digest;
    uint64_t flags; /* of all ranks, together */
    uint64_t compute_ns, exposed_comm_ns, snapshot_stall_ns;
    uint32_t computed_microbatches;
};

/* Compute what is missing of the step, sum over all ranks, update. On REVOKED, PEER_LOST or TIMEOUT the
 * weights are as before and finished nodes are kept for the next attempt of the same step; close the group
 * and call keel_trainer_leave_group before it. MISMATCH: the ranks had different weights before this step, or
 * another loss of the step before, and no more than half of them agree; it names the ranks. */
enum keel_status keel_trainer_run(struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                  struct keel_trainer_result *out);

/* After the group of the steps so far was closed: returns when no command of the device reads or writes for
 * its sums any more. DEVICE_LOST: some do not end; end the worker. */
enum keel_status keel_trainer_leave_group(struct keel_trainer *trainer);

/* What sums between ranks moved between device and host; since the rank last began to hold more nodes.
 * Nothing of gradients that are compressed, which pass through the host. */
void keel_trainer_sum_facts(const struct keel_trainer *trainer, struct keel_device_collectives_facts *out);

/* Forget the nodes of an unfinished step (the state was replaced). */
void keel_trainer_drop(struct keel_trainer *trainer);

/* Over the job's validation batches. */
enum keel_status keel_trainer_eval(struct keel_trainer *trainer, struct keel_scores *out);

/* `score` while the averages of the weights (train.ema) are in their place; the weights are back behind it,
 * whatever it returns. Some step was done, and no capture of a snapshot is under way. With parallel.zero all
 * ranks do this together: another error than the first of `score` is one of a group, and ends the view. */
enum keel_status keel_trainer_with_averages(struct keel_trainer *trainer,
                                            enum keel_status (*score)(void *context), void *context);

/* Generate `tokens` tokens, at least 1, at temperature 0.8: their text on the heap, with a NUL behind
 * *out_bytes. */
enum keel_status keel_trainer_sample(struct keel_trainer *trainer, uint32_t tokens, char **out,
                                     size_t *out_bytes);

/* ---- parallel.zero: the optimizer's state in pieces ---- */

/* A view, as far as who owns what follows from it. */
struct keel_owners {
    uint64_t epoch;
    uint32_t position;
    struct keel_owners_map of; /* the ranks with the same slices; its nodes are borrowed for the call */
};
/* Hold what these say from now on. What was held before stays, and is what is read, until it is forgotten;
 * what of it is held still is here already, and all its weights are in the flat ones. The rest is to be
 * initialized, loaded or written behind this; then settle. NO_MEMORY. */
enum keel_status keel_trainer_own(struct keel_trainer *trainer, const struct keel_owners *owners);
/* All of the state of `step` is here, the weights in whole, or with parallel.zero = 3 in pieces: their
 * digest. */
enum keel_status keel_trainer_settle(struct keel_trainer *trainer, uint64_t step, uint64_t *out_digest);
void keel_trainer_forget_before(struct keel_trainer *trainer);
/* Forget all layouts but that of an epoch. */
void keel_trainer_keep(struct keel_trainer *trainer, uint64_t epoch);

/* What this rank has, as others may ask for it; over the wire between equal binaries. Which shares it holds
 * are runs, which go beside the records (worker_shares.c), and so are those without elements: they are
 * everybody's, and the same for all of a layout. */
struct keel_owned_record {
    uint64_t epoch;               /* of the layout */
    uint64_t step;                /* updates that the pieces have seen */
    uint32_t of, position;        /* in the layout; of 0: nothing is held */
    struct keel_engine_norm norm; /* of the newest update */
    uint32_t runs_at, empties_at; /* where they are among those of all; said by nobody */
    uint16_t run_count, empty_count;
    bool reduced, complete, has_norm;
};
/* Of the view now, and of the one before while it is not forgotten. */
void keel_trainer_owns(const struct keel_trainer *trainer, struct keel_owned_record out[2]);
/* The runs of record 0 or 1: of what is held, and of what has no elements. Until the layouts change. */
void keel_trainer_owned_runs(const struct keel_trainer *trainer, uint32_t record,
                             const struct keel_share_run **out_runs,
                             const struct keel_share_run **out_empties);
/* Did the view before end between the update of a step and its weights? Then this is what nobody has said of
 * it, but for the digest. Ask before a new layout is made. */
bool keel_trainer_unfinished(const struct keel_trainer *trainer, struct keel_trainer_result *out);
/* This rank has the sums of its next step, and another did that step: with its norm the pieces are where it
 * is. */
enum keel_status keel_trainer_catch_up(struct keel_trainer *trainer, const struct keel_engine_norm *norm);
/* parallel.zero = 3: steps, evaluations and generated text gather weights, from now on over this group, whose
 * ranks have all shares together, and all do the same then; NULL: this rank has all. Borrowed until the next
 * call. The digest of a trainer is then that of the weights that it owns: the model's is their sum. */
void keel_trainer_gather_over(struct keel_trainer *trainer, struct keel_group *group);
/* Give the others of it what they read in so many evaluations, or tokens of text (`at`), and compute nothing.
 */
enum keel_status keel_trainer_give_weights(struct keel_trainer *trainer, uint32_t evaluations,
                                           enum keel_drill_phase at);

/* ---- parallel.tensor: some slices of the tensor axis ---- */

/* Numbers of a view's collectives: each is begun once in a group. Agreeing has the first few (worker_sync.c);
 * a step has (step + 1) << 24 and what follows for its sums (tape_sum.c), and in another group for what
 * slices exchange in it. Then, each kind above all before: */
#define KEEL_SEQUENCE_SHARES     (UINT64_C(5) << 60) /* behind records: rounds are below its second bit */
#define KEEL_SEQUENCE_FILES      (UINT64_C(1) << 57) /* of snapshots, from node to node */
#define KEEL_SEQUENCE_END        (UINT64_C(1) << 58) /* nothing is left to be done in the view */
#define KEEL_SEQUENCE_WEIGHTS    (UINT64_C(1) << 59) /* weights that are gathered, in steps and beside them */
#define KEEL_SEQUENCE_EVALUATION (UINT64_C(1) << 60) /* exchanges of slices while it evaluates */
#define KEEL_SEQUENCE_SCORES     (UINT64_C(1) << 61) /* what comes of that, to ranks that do not */
#define KEEL_SEQUENCE_ROUND      (UINT64_C(1) << 62) /* rounds of agreeing on a snapshot */
#define KEEL_SEQUENCE_MOVE       (UINT64_C(1) << 63) /* state from rank to rank */

/* A view whose ranks share the slices. Groups of the same ranks differ in their shards. */
struct keel_trainer_axes {
    struct keel_group *view;            /* all ranks */
    struct keel_group *slices, *places; /* of this rank's data position: a shard is a slice, or a rank. NULL:
                                           it is not complete, and computes nothing */
    struct keel_group *norm;            /* those, or all ranks, of whom those of the first position give */
    bool gives_norm;
    uint32_t rank_count, place, count;   /* count: places */
    uint32_t begin[KEEL_SLICES_MAX + 1]; /* first slice of each place, and the end */
    const uint16_t *rank_place;          /* rank_count; borrowed */
    bool each_owns;                      /* parallel.zero = 3: a rank's digest is of what it owns */
    uint16_t members[KEEL_SLICES_MAX];   /* by place: the rank of the view that this one's digest is of */
    uint64_t sequence;                   /* exchanges outside of steps so far: 0 when the view begins */
};
/* Of the steps and evaluations to come, until the group is left. Steps have the group of the ranks with the
 * same slices then. Borrowed. */
void keel_trainer_share(struct keel_trainer *trainer, struct keel_trainer_axes *axes);
/* Have these slices; count 0: all. Where others are held the engine is built again, and the state is to be
 * initialized, loaded or written. No group is open in which sums were begun. */
enum keel_status keel_trainer_cut(struct keel_trainer *trainer, uint32_t first, uint32_t count);
/* This rank is number `index` of `count` that have these slices, which are those of place `place` of
 * `places`: they share what is written of them. Until it is cut again. */
void keel_trainer_column(struct keel_trainer *trainer, uint32_t index, uint32_t count, uint32_t place,
                         uint32_t places);
/* All ranks of a view that is over had the sums and squares of `step`: if one of them did it, this one can do
 * it too, alone. Its digest is of the slices. */
bool keel_trainer_is_ready(const struct keel_trainer *trainer, uint64_t step);
enum keel_status keel_trainer_finish_ready(struct keel_trainer *trainer, struct keel_trainer_result *out);
/* After a step that failed: its update is done all the same, and only the digest of the model is not known.
 * False: it is not. Once. */
bool keel_trainer_take_updated(struct keel_trainer *trainer, struct keel_trainer_result *out);
/* Of the weights as they were when they were updated or looked at last: the digest of this rank's slices, and
 * of that the weights that all ranks have. */
void keel_trainer_digest_parts(const struct keel_trainer *trainer, uint64_t *out_part, uint64_t *out_shared);
/* The digest of the model from those two of each rank of the view: what all places have counts once. */
uint64_t keel_trainer_whole_digest(const struct keel_trainer_axes *axes, const uint64_t (*said)[2]);

/* ---- state: weights and optimizer, for healing and snapshots ---- */

/* State is (tile, which): of each tile its weights, m, v where the optimizer has one, and their average with
 * train.ema. Of statistics the optimizer keeps nothing: all but their weights stays zero. */
enum keel_state_part { KEEL_STATE_WEIGHTS, KEEL_STATE_M, KEEL_STATE_V, KEEL_STATE_EMA, KEEL_STATE_PARTS };

/* A box of one tile of the state: whole rows, or within one; or of parts that are cut alike what one has of
 * each row. */
struct keel_state_piece {
    uint32_t tile, part;   /* enum keel_state_part */
    uint64_t first, count; /* elements of the tile */
    uint64_t row, stride;  /* elements that lie together, and from one such to the next; row 0: all do */
};
static inline uint64_t keel_piece_bytes(const struct keel_state_piece *piece)
{
    return piece->count * sizeof(float);
}

/* Bytes of the whole state of the model, whoever holds it: what the pieces of all ranks come to. */
uint64_t keel_trainer_state_bytes(const struct keel_trainer *trainer);
/* What position `position` of `rank_count` writes into a snapshot: every (tile, part) once over all of them,
 * split by rows, evenly by bytes, or with parallel.zero by owners. Of tiles that are cut it is what this one
 * of its column writes; of the others a column of owners writes what is its place's. Heap, owned by the
 * caller. */
enum keel_status keel_trainer_pieces(const struct keel_trainer *trainer, uint32_t position,
                                     uint32_t rank_count, struct keel_state_piece **out, uint32_t *out_count);
/* What number `index` of `count` ranks with the same slices reads of one: over all of them the whole state,
 * as far as the engine has it; (0, 1): all of that. Heap, likewise. */
enum keel_status keel_trainer_read_pieces(const struct keel_trainer *trainer, uint32_t index, uint32_t count,
                                          struct keel_state_piece **out, uint32_t *out_count);
/* The piece as a snapshot knows it: a box of a named tensor, which is whole whatever the engine has. */
void keel_trainer_region(const struct keel_trainer *trainer, const struct keel_state_piece *piece,
                         struct keel_region *out);
/* Copy bytes of a piece out or in; blocks. */
enum keel_status keel_trainer_read_piece(struct keel_trainer *trainer, struct keel_queue *queue,
                                         const struct keel_state_piece *piece, uint64_t offset_bytes,
                                         uint64_t bytes, void *out);
enum keel_status keel_trainer_write_piece(struct keel_trainer *trainer, const struct keel_state_piece *piece,
                                          uint64_t offset_bytes, uint64_t bytes, const void *data);

/* The same as runs of tiles, for moves between ranks: appended to *out. `parts`: bits of enum
 * keel_state_part; what the optimizer keeps nothing of is left out. Of runs of the flat buffers; of all; of
 * the share of `owner` of so many (keel_engine_share); what number `index` of `count` reads of a snapshot
 * (keel_trainer_read_pieces). NO_MEMORY. */
enum {
    KEEL_PARTS_WEIGHTS = 1 << KEEL_STATE_WEIGHTS,
    KEEL_PARTS_MOMENTS = 1 << KEEL_STATE_M | 1 << KEEL_STATE_V | 1 << KEEL_STATE_EMA /* what owners keep */
};
enum keel_status keel_trainer_extents(const struct keel_trainer *trainer, const struct keel_engine_run *runs,
                                      uint32_t run_count, uint32_t parts, struct keel_extents *out);
enum keel_status keel_trainer_all_extents(const struct keel_trainer *trainer, uint32_t parts,
                                          struct keel_extents *out);
enum keel_status keel_trainer_share_extents(const struct keel_trainer *trainer, uint32_t owner, uint32_t of,
                                            uint32_t parts, struct keel_extents *out);
enum keel_status keel_trainer_read_extents(const struct keel_trainer *trainer, uint32_t index, uint32_t count,
                                           struct keel_extents *out);
/* The other way. The extent is one that this engine has. */
struct keel_state_piece keel_trainer_piece_of(const struct keel_trainer *trainer,
                                              const struct keel_extent *extent);

/* Replace the state by that of a snapshot; what others than number `index` of `count` read
 * (keel_trainer_read_pieces) is left as it is. *out_read: bytes read from its files. */
enum keel_status keel_trainer_load(struct keel_trainer *trainer, struct keel_snapshot *snapshot,
                                   uint32_t index, uint32_t count, uint64_t *out_read);

#endif
