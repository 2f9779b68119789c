/* trainer_internal.h - the trainer's fields, shared by what runs a step.
 *
 * trainer.c          creation, warm-up, one attempt at a step
 * tape_run.c         the executor: one loop over the actions of a tape
 * tape_sum.c         sums over ranks: collectives on device memory, the loss, the records
 * partial_buffers.c  slots: the values of held nodes
 * compressed_sums.c  the same of compressed gradients, on the host
 * owned_pieces.c     parallel.zero: pieces of the state, their owners, and what a tape does with them
 * gathered_weights.c parallel.zero = 3: weights that are gathered from their owners when they are read
 * tensor_exchange.c  parallel.tensor: what ranks with some slices exchange
 * step_records.c     what every rank says with a step, and whether they agree
 * state_extents.c    what lies where, as runs of tiles
 * trainer_state.c, trainer_load.c, trainer_text.c: state as tiles, snapshots, validation and text */
#ifndef KEEL_TRAINER_INTERNAL_H
#define KEEL_TRAINER_INTERNAL_H

#include "trainer.h"

#include "drill.h"
#include "tape.h"
#include <keel/node.h>
#include <keel/transport_device.h>

/* The loss rides behind the gradients of a node, padded to one alignment unit. */
enum { KEEL_LOSS_FLOATS = 64 };

struct keel_partial_buffer {
    struct keel_shared_buffer flat;    /* gradients, then the loss; all zero until first needed */
    struct keel_buffer **slices;       /* by piece: the last is the loss */
    struct keel_launch_list *add;      /* by piece: gradients += slot */
    struct keel_engine_source *source; /* for the update to read it; NULL until it first does */
};

struct keel_compressed_slot {
    uint8_t *node; /* elements of all buckets; NULL until first needed */
    float loss;
};

/* Gradients that are not summed exactly (train.gradients): held nodes lie here, not in keel_partial_buffers.
 */
struct keel_compressed_sums {
    bool on; /* else the rest is zero */
    struct keel_compression how;
    struct keel_engine_box *boxes; /* what is cut into blocks */
    uint32_t box_count;
    uint64_t *box_at;    /* by box: its first element */
    uint64_t *bucket_at; /* by bucket likewise; and the end */
    float *packed;       /* room for the largest box */
    struct keel_compressed_slot slots[KEEL_HOLD_NODES_MAX];
    uint8_t *sum; /* over ranks; NULL until there was a group */
};

/* Who holds what of the optimizer's state in a view, and what this rank holds. */
struct keel_owned_layout {
    struct keel_owners owners;
    uint32_t copy_count, *copies;      /* who have a copy of what we own */
    uint32_t share_count, *shares;     /* positions whose share lies here: ours first. Owned, as all below */
    struct keel_engine_run *runs;      /* by share and bucket */
    struct keel_engine_pieces *pieces; /* of these runs; NULL: there is no layout */
    struct keel_owned_digest *digest;  /* of the pieces: owned_digest.c */
    uint32_t *second;                  /* by position: who has a copy; UINT32_MAX: nobody, or groups do */
    struct keel_share_run *held, *empties; /* the shares, as others are told; and those without elements */
    uint32_t held_count, empty_count;
    uint64_t *counts;                  /* by bucket and position: elements that it owns */
    uint64_t *stripe_firsts;           /* by bucket and stripe: elements of the bucket before it */
    struct keel_engine_run *pages;     /* of the norm, by position: */
    uint32_t *page_first;              /*   rank_count + 1, into pages */
    uint64_t *page_counts;             /*   and so many squares */
    float *gathered;                   /* squares by position, and behind them by page */
    struct keel_engine_norm norm;      /* of the newest update, if has_norm */
    struct keel_trainer_result result; /* of the step whose sums are here, or that was just updated */
    uint64_t step;                     /* updates that the pieces have seen */
    bool filled, complete;             /* they hold the state; and the flat weights are those of all, too */
    bool reduced, has_norm; /* reduced: the sums of the step that comes are with all their holders */
};

/* parallel.zero: owned_pieces.c. */
enum { KEEL_COPIES_AT_ONCE = 32, KEEL_GATHERS_AT_ONCE = 64 };
struct keel_owned {
    bool on;                              /* else the rest is empty */
    struct keel_owned_layout now, before; /* before: of another view, while `now` is filled */
    /* NULL: not under way. Of sums, to others and from them; of weights, within a group of owners. */
    struct keel_device_operation *copies[KEEL_COPIES_AT_ONCE], *gathers[KEEL_GATHERS_AT_ONCE];
    float *squares; /* of our own pages */
};

/* parallel.zero = 3: gathered_weights.c. trainer->digest is of the pieces that this rank owns then. */
struct keel_gathered {
    bool on;                  /* else the rest is empty */
    struct keel_group *group; /* of owners that have all shares together; borrowed; NULL: this rank has all */
    uint64_t agreed;          /* in which epoch ranks said what they have to compute; + 1 */
    uint64_t begun, awaited;  /* operations of the view so far, which are waited for in the order of their
                                 begin: of all ranks of the group alike */
    struct keel_device_operation *under_way[KEEL_GATHERS_AT_ONCE]; /* by number */
    uint64_t *until;           /* by bucket: behind the last operation of its gather. Owned, as all below */
    struct keel_event **after; /* likewise: behind what last read its window */
    uint64_t mine, all;        /* lent to a small sum */
};

/* A step that this rank can do by itself, since all ranks have its sums and squares; and one that is done,
 * whose digest of the whole model is not known here. */
struct keel_ready_step {
    bool is, updated;
    uint64_t step;
    int slot; /* where its sums lie */
    struct keel_trainer_result result;
};

/* parallel.tensor: tensor_exchange.c. */
struct keel_sharing {
    uint32_t first, count;               /* slices that the engine has; count 0: all, and the rest is empty */
    uint32_t column_index, column_count; /* of who has these */
    uint32_t place, places;              /* of these */
    struct keel_trainer_axes *axes;      /* of the view; borrowed; NULL: none */
    struct keel_device_collectives *collectives;
    struct keel_event *after;         /* that the newest exchange waits for */
    uint64_t counts[KEEL_SLICES_MAX]; /* of that one */
    uint8_t agree_mine[KEEL_STEP_FLAGS + 1], agree_all[KEEL_STEP_FLAGS + 1]; /* flags; and: they differ */
    uint64_t digest_mine, digest_all;                                        /* lent, as those */
    uint64_t shared;                                                         /* of trainer->digest */
    struct keel_ready_step ready;
};

/* Tiles of which some lie in a bucket are among these. */
struct keel_tile_range {
    uint32_t first, end;
};

struct keel_trainer {
    const struct keel_job *job;
    const struct keel_data *data;
    struct keel_device *device;
    struct keel_kernels *kernels;
    const char *passes_off; /* borrowed from the worker's arguments */
    struct keel_engine *engine;
    uint64_t stall_ns;
    struct keel_hang_watch *hangs; /* NULL: nobody watches */
    atomic_uint_fast64_t *progress;
    struct keel_trainer_phase phase;
    uint64_t flat_count;
    uint64_t summed_count; /* of these, what is in buckets: the first */
    uint32_t bucket_count;
    struct keel_tile_range *bucket_tiles; /* owned; by bucket, so that thousands of shares are found soon */
    struct keel_buffer **gradient_slices; /* by piece: the last is the engine's loss */
    void *inputs[KEEL_DATA_INPUTS_MAX];   /* one microbatch */
    float *logits;                        /* of one batch; NULL: accuracy is not asked for */
    float *row; /* of generated text: logits of a token, twice. Device and group may write there after a
                   failure, so it stays; NULL until it is needed */

    struct keel_partial_buffer slots[KEEL_HOLD_NODES_MAX];
    struct keel_compressed_sums compressed;
    struct keel_owned owned;
    struct keel_gathered gathered;
    struct keel_sharing tensor;
    struct keel_partial_sums hold; /* which slot holds what */
    uint64_t hold_step;            /* the step whose nodes are held */
    uint64_t digest;               /* of the weights as they are */
    uint64_t probe;                /* after the update of the warm-up */

    struct keel_tape_segment *segments; /* owned; of the engine, if microbatches go segment by segment */
    uint32_t segment_count;
    struct keel_tape tape;             /* of the attempt under way; grows at view changes, never in a step */
    struct keel_event **bucket_events; /* per bucket: its MARK; NULL when there was none */
    float losses[KEEL_HOLD_NODES_MAX]; /* of held nodes: where the device writes them */
    float loss;                        /* of the step: their sum over ranks */

    /* Sums between ranks; grow likewise. */
    struct keel_device_collectives *collectives; /* NULL until there was a group */
    uint32_t parts_max;                          /* that it takes, */
    uint64_t staging_max;                        /* and elements of staging memory that it has */
    struct keel_device_operation **sums;         /* by bucket; NULL: not under way */
    bool awaits;                                 /* one of them */
    uint64_t device_ns, device_since_ns; /* collectives have waited for the device, so long and since then */
    struct keel_operation **operations;  /* by piece, of what lies on the host: the loss, the records, and
                                            buckets that are compressed; NULL: not under way */
    struct keel_commit_record record,
        *records; /* our own; and, where ranks differ, all, by position: owned */
    size_t record_capacity;
    struct keel_record_fold fold_mine, fold_all; /* lent, as all that follows */
    uint64_t copies_mine,
        copies_all; /* parallel.zero: what copies are other than their owners' pieces, in sum */
    struct keel_operation *copies; /* NULL: not under way */
};

/* As a batch takes them. */
static inline const void *const *keel_trainer_inputs(const struct keel_trainer *trainer)
{
    return (const void *const *)trainer->inputs;
}

/* state_extents.c: the tiles of each bucket. */
enum keel_status keel_trainer_find_tiles(struct keel_trainer *trainer);

/* Of gradients, and of each node of the shard tree without its loss. */
static inline uint64_t keel_gradient_bytes(const struct keel_trainer *trainer)
{
    return trainer->summed_count * sizeof(float);
}

static inline void keel_trainer_drill(const struct keel_trainer *trainer, enum keel_drill_phase at)
{
    if (trainer->phase.at != NULL)
        trainer->phase.at(trainer->phase.context, at);
}

/* Where a piece lies in the flat gradients with the loss behind them, in elements. */
struct keel_engine_bucket keel_trainer_piece(const struct keel_trainer *trainer, uint32_t piece);
/* Slices of a flat buffer by bucket; the loss is left to the caller. */
enum keel_status keel_trainer_slice_buckets(const struct keel_trainer *trainer, struct keel_buffer *flat,
                                            struct keel_buffer **slices);
/* NO_MEMORY: what the engine and its pieces took of the device is more than a rank may use. */
enum keel_status keel_trainer_check_memory(const struct keel_job *job, const struct keel_engine *engine);
/* Whether gradients lie in windows, which are used again as soon as they are summed. */
static inline bool keel_trainer_windowed(const struct keel_trainer *trainer)
{
    return keel_engine_window_waits(trainer->engine) != NULL;
}

/* ---- a tape that runs ---------------------------------------------------------------------------------- */

struct keel_tape_run {
    struct keel_trainer *trainer;
    const struct keel_trainer_step *step;
    struct keel_trainer_result result;
    int section;                     /* enum keel_hang_section that is open, or -1 */
    uint64_t begun_ns;               /* the attempt */
    int chain[KEEL_HOLD_LEVELS_MAX]; /* slots whose first piece was added since ZERO */
    uint32_t chain_count;
    uint64_t exchanged; /* over the tensor axis, so far */
    bool summing;       /* windows: the last shard goes to the sums, and is in trainer->hold until
                           the attempt ends */
    struct keel_partial_sums before; /* what was held then */
};

/* tape_run.c: run trainer->tape; and its update. */
enum keel_status keel_tape_run(struct keel_tape_run *run);
enum keel_status keel_tape_update(struct keel_tape_run *run, const struct keel_action *action);
/* Sections of the hang watch, around what waits for the device: one is open at a time. */
void keel_tape_enter(struct keel_tape_run *run, enum keel_hang_section section);
void keel_tape_leave(struct keel_tape_run *run);
/* Collectives wait for the device, or no longer (keel/transport_device.h): in a section of the hang watch,
 * and not counted as waiting for other ranks. */
void keel_tape_on_device(struct keel_trainer *trainer, enum keel_hang_section section, bool inside);

/* Each performs the actions of that kind. */
enum keel_status keel_tape_store(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_add(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_loss(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_compare(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_reduce(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_await(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_record(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_check_records(struct keel_tape_run *run, const struct keel_action *action);

/* No collectives of a tape: what all know before one leaves; what each has to compute; beside the records,
 * what copies are; and all records, where they are not alike. */
enum {
    KEEL_PIECE_BITS = 24, /* of a number: the rest is the step */
    KEEL_PIECE_MEETING = (1 << KEEL_PIECE_BITS) - 1,
    KEEL_PIECE_ROUNDS = KEEL_PIECE_MEETING - 1,
    KEEL_PIECE_COPIES = KEEL_PIECE_MEETING - 2,
    KEEL_PIECE_RECORDS = KEEL_PIECE_MEETING - 3
};
/* The largest keel_piece_weights: groups of one owner gather a stripe of each bucket for each rank. */
_Static_assert(KEEL_ENGINE_BUCKETS_MAX + 4 + KEEL_ENGINE_BUCKETS_MAX * KEEL_MEMBERS_MAX < KEEL_PIECE_RECORDS,
               "weights of a step have numbers below those that are of no tape");
/* What each rank of a group says, folded into one. `*mine` is read when it begins, what it points to until
 * the end. */
static inline struct keel_collective keel_fold_of_ranks(uint64_t sequence, enum keel_element element,
                                                        enum keel_reduction reduction, uint64_t count,
                                                        const void *const *mine, void *all)
{
    return (struct keel_collective){.kind = KEEL_ALL_REDUCE,
                                    .sequence = sequence,
                                    .element = element,
                                    .reduction = reduction,
                                    .order = KEEL_ORDER_NATIVE,
                                    .by_rank = true,
                                    .count = count,
                                    .parts = mine,
                                    .part_count = 1,
                                    .result = all};
}
/* A byte for each flag, of which the largest of all ranks says whether one has it. */
static inline void keel_spread_flags(uint64_t flags, uint8_t out[KEEL_STEP_FLAGS])
{
    KEEL_ASSERT(flags >> KEEL_STEP_FLAGS == 0);
    for (uint32_t i = 0; i < KEEL_STEP_FLAGS; i++)
        out[i] = (uint8_t)(flags >> i & 1);
}
static inline uint64_t keel_join_flags(const uint8_t flags[KEEL_STEP_FLAGS])
{
    uint64_t out = 0;
    for (uint32_t i = 0; i < KEEL_STEP_FLAGS; i++)
        out |= (uint64_t)(flags[i] != 0 ? 1 : 0) << i;
    return out;
}
/* step_records.c: into this rank's record, what its weights are. Waits for the device. */
enum keel_status keel_tape_look(struct keel_tape_run *run);
/* The records' comparison is over. */
enum keel_status keel_tape_await_copies(struct keel_trainer *trainer, uint64_t deadline_ns);

/* tape_sum.c: a step's collectives have numbers of their own. */
uint64_t keel_tape_sequence(const struct keel_tape_run *run, uint32_t piece);

/* owned_pieces.c: likewise. */
enum keel_status keel_tape_shadow(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_square(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_commit(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_spread(struct keel_tape_run *run, const struct keel_action *action);
/* Make the sum of a bucket one to its owners. A rank alone copies it, from its only node. */
enum keel_status keel_owned_reduce(struct keel_tape_run *run, uint32_t bucket,
                                   struct keel_device_collective *sum);
enum keel_status keel_owned_await(struct keel_tape_run *run, uint32_t piece, uint64_t deadline_ns);
enum keel_status keel_owned_update(struct keel_tape_run *run, const struct keel_engine_update *request,
                                   struct keel_engine_updated *out);
/* The squares of all pages, which are gathered, to the norm. */
enum keel_status keel_owned_sum(struct keel_trainer *trainer);
/* The step of the warm-up, from weights that are there. */
enum keel_status keel_owned_probe(struct keel_trainer *trainer, const struct keel_engine_batch *batch,
                                  const struct keel_engine_update *request);
void keel_owned_destroy(struct keel_trainer *trainer);
/* owned_digest.c: what this rank owns, and what it has of others, as two digests: weights and moments. Waits
 * for the device. Where nobody has a copy: zeros. */
enum keel_status keel_owned_look(struct keel_trainer *trainer, uint64_t *out_own, uint64_t *out_copies);
uint64_t keel_owned_digest_bytes(const struct keel_owned_digest *digest); /* of the device; NULL: 0 */
enum keel_status keel_owned_digest_make(struct keel_trainer *trainer, struct keel_owned_layout *layout);
void keel_owned_digest_destroy(struct keel_owned_digest *digest);
/* Of a bucket and of that share of the layout, which is one that lies here: where. */
struct keel_device_place keel_owned_place(const struct keel_trainer *trainer, enum keel_engine_flat which,
                                          uint32_t share, uint32_t bucket);
/* Weights go round in the groups of owners, a stripe of a bucket after the other: what one group's positions
 * own of it, side by side, of which all groups have copies. So there are as many stripes as groups. */
struct keel_owned_stripe {
    const uint64_t *counts;       /* elements of each position of the group */
    uint64_t first;               /* elements of the bucket before it */
    struct keel_device_place own; /* what this rank gives */
};
uint32_t keel_owned_stripe_count(const struct keel_trainer *trainer);
struct keel_owned_stripe keel_owned_stripe(const struct keel_trainer *trainer, uint32_t bucket,
                                           uint32_t stripe);
/* Has `holder` a copy of the share of `owner`, which is another? */
bool keel_owned_copies(const struct keel_owned_layout *layout, uint32_t holder, uint32_t owner);
/* By holder: the sum of what those say of themselves (`own` of their records, by position) of whose shares it
 * has copies. Once over the positions, of which there may be thousands. */
void keel_owned_sum_copies(const struct keel_owned_layout *layout, const struct keel_commit_record *records,
                           uint64_t *sums);
/* Where an element of the flat buffers lies in those of a layout, and how many follow it there. False: it
 * does not, and so many before the next that does. */
bool keel_owned_find(const struct keel_owned_layout *layout, uint32_t bucket_count, uint64_t element,
                     uint64_t *out_at, uint64_t *out_count);

/* gathered_weights.c: likewise. Prepare follows the engine. */
enum keel_status keel_tape_weights(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_gathered_await(struct keel_trainer *trainer, uint32_t bucket, uint64_t deadline_ns);
enum keel_status keel_gathered_digest(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_gathered_prepare(struct keel_trainer *trainer);
void keel_gathered_destroy(struct keel_trainer *trainer);
/* After a failure, and behind a view: the group's close and the reset behind it release what is under way. */
void keel_gathered_forget(struct keel_trainer *trainer);
/* How many rounds of gathers an attempt has, which is the same for all ranks. In the first one of a view they
 * say what they lack. */
enum keel_status keel_gathered_rounds(struct keel_tape_run *run, uint32_t *out);
/* First weights, to the pieces of the newest layout. */
enum keel_status keel_gathered_initialize(struct keel_trainer *trainer);
/* Of those: what this rank owns, and of that what ranks with other slices have too. */
enum keel_status keel_gathered_own_digest(struct keel_trainer *trainer, uint64_t *out, uint64_t *out_shared);
/* Before a segment of an evaluation: its weights, from all. Before any segment of the warm-up: first weights,
 * without others. Nothing where all weights are here. */
enum keel_status keel_gathered_evaluate(struct keel_trainer *trainer, uint32_t segment, uint64_t deadline_ns);
enum keel_status keel_gathered_pretend(struct keel_trainer *trainer, bool evaluation, uint32_t segment);
/* Whether microbatches and evaluations go segment by segment, also of a rank alone. */
static inline bool keel_trainer_by_segments(const struct keel_trainer *trainer)
{
    return trainer->gathered.on || trainer->tensor.count > 0;
}

/* tensor_exchange.c: likewise. Prepare follows the engine, which has the slices of trainer->tensor. */
enum keel_status keel_tape_exchange(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_norm(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_agree(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_digest(struct keel_tape_run *run, const struct keel_action *action);
/* In place of the step's end: have all ranks of the view know that this column cannot. */
void keel_tensor_disagree(struct keel_tape_run *run);
enum keel_status keel_tensor_prepare(struct keel_trainer *trainer);
void keel_tensor_destroy(struct keel_trainer *trainer);
enum keel_status keel_tensor_leave_group(struct keel_trainer *trainer);
enum keel_status keel_tensor_evaluate(struct keel_trainer *trainer, const struct keel_engine_batch *batch,
                                      enum keel_drill_phase at, uint64_t deadline_ns, float *out_loss);
/* Then: a row of `vocab` logits, of which ranks with some slices have some. */
enum keel_status keel_tensor_logits(struct keel_trainer *trainer, uint32_t row, uint32_t vocab,
                                    uint64_t deadline_ns, float *out);
/* Of the warm-up, without others: a microbatch, a segment of one, the squares, an evaluation. Of pieces the
 * squares are summed before. */
enum keel_status keel_tensor_pretend_segment(struct keel_trainer *trainer, uint32_t segment);
enum keel_status keel_tensor_pretend(struct keel_trainer *trainer, const struct keel_engine_batch *batch);
enum keel_status keel_tensor_pretend_norm(struct keel_trainer *trainer);
enum keel_status keel_tensor_pretend_rest(struct keel_trainer *trainer, const struct keel_engine_batch *batch,
                                          uint64_t deadline_ns);

/* compressed_sums.c: likewise. */
enum keel_status keel_tape_encode(struct keel_tape_run *run, const struct keel_action *action);
enum keel_status keel_tape_decode(struct keel_tape_run *run, const struct keel_action *action);
/* The sum of a bucket; parts: room for KEEL_HOLD_NODES_MAX. */
void keel_compressed_sums_describe(struct keel_trainer *trainer, uint32_t bucket, const void **parts,
                                   struct keel_collective *out);
enum keel_status keel_compressed_sums_create(struct keel_trainer *trainer);
/* When no collective uses them any more. */
void keel_compressed_sums_destroy(struct keel_trainer *trainer);

/* Before the tape runs: the slots and the collectives that it needs and the trainer has not. */
enum keel_status keel_partial_buffers_prepare(struct keel_tape_run *run);
enum keel_status keel_tape_prepare_sums(struct keel_trainer *trainer);
enum keel_status keel_compressed_sums_prepare(struct keel_trainer *trainer, bool grouped);
/* Slots, when no queue and no collective uses them any more. */
void keel_partial_buffers_destroy(struct keel_trainer *trainer);

/* ---- the state ----------------------------------------------------------------------------------------- */

/* trainer_state.c: whether the optimizer keeps that part of a tile. */
bool keel_state_is_kept(const struct keel_trainer *trainer, uint32_t tile, uint32_t part);

#endif
