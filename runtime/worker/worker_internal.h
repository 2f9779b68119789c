/* worker_internal.h - the worker's fields, shared by worker*.c. All belong to the main thread unless the
 * line says otherwise. */
#ifndef KEEL_WORKER_INTERNAL_H
#define KEEL_WORKER_INTERNAL_H

#include "axes.h"
#include "drill.h"
#include "early_stop.h"
#include "hang_watch.h"
#include "sdc_check.h"
#include "trainer.h"
#include "worker_files.h"
#include "worker_inbox.h"

enum {
    /* A device or peer that makes no progress for so many timeouts is an error: far above any step, since
     * silence, exits and broken connections are noticed by others long before, and a device that hangs by
     * hang_watch.h. */
    KEEL_STALL_TIMEOUTS = 120
};

/* `--resume`: the newest snapshot, none, or that of a step. */
enum keel_resume_kind { KEEL_RESUME_AUTO, KEEL_RESUME_NONE, KEEL_RESUME_STEP };

/* At most one at a time. All but `save` is set before the capture thread starts and stays until it ended. */
struct keel_worker_snapshot {
    struct keel_save *save;          /* NULL: none under way */
    struct keel_queue *queue;        /* of the capture thread */
    struct keel_region *regions;     /* of the pieces */
    struct keel_state_piece *pieces; /* of this worker's share of the state */
    uint64_t step, attempt;
    uint64_t last_bytes;          /* of the shard written last; 0: none yet */
    uint32_t rank;                /* of this worker in the view that it began in, */
    bool leader;                  /* and whether it was the first there */
    uint32_t position;            /* of this worker in that view: its rank in the snapshot */
    bool failed;                  /* the newest one did, here */
    bool finished;                /* the newest one's shard lies in the store, complete */
    bool doomed;                  /* the one under way failed on another rank */
    bool hurried;                 /* it waited in the background for long enough */
    struct keel_early_stop early; /* as of its step */
    uint32_t tries;               /* how many were begun again since the last regular one */
    uint64_t prepared; /* for which rank_count (high half) and position memory was taken; 0: for none yet */
    uint64_t bound;    /* if has_bound, only those of earlier steps may be taken */
    bool has_bound;
};

/* snapshot.local: what a rank says of its shard of a snapshot. */
struct keel_guard_record {
    uint64_t ok, store_busy, has_manifest;
    uint64_t wall_ns; /* of position 0: when the snapshot was made */
    struct keel_shard_summary summary;
};

/* snapshot.local: a thread that commits a snapshot, or copies it to the store (worker_guard.c). What is above
 * `ended` the main thread sets before, and reads once the thread is joined. */
struct keel_guard {
    struct keel_worker *worker;
    struct keel_thread thread;
    bool running, inline_run;
    uint32_t number; /* of the snapshot in the view */
    uint64_t step, attempt;
    uint32_t position, rank_count; /* in the view that it began in */
    uint32_t node[KEEL_MEMBERS_MAX];
    uint64_t state_bytes, spent_ns;
    struct keel_early_stop early; /* as of the step */
    bool at_fault, committed;     /* this rank's failure, with */
    bool stores;                  /* it is to go to the store */
    enum keel_status status;
    enum keel_status given_up; /* OK: it had its part in all that was gathered; else why not, in `detail` */
    char detail[KEEL_DETAIL_BYTES];
    atomic_bool ended;
    struct keel_file_mover mover;
    struct keel_file_move *moves;    /* owned */
    struct keel_tier_source *source; /* owned: what is copied to the store; NULL: it could not be opened */
    /* Lent to operations. */
    struct keel_guard_record mine, all[KEEL_MEMBERS_MAX];
    struct keel_shard_summary summaries[KEEL_MEMBERS_MAX];
    bool said, heard[KEEL_MEMBERS_MAX];
};

/* What a node has of a generation. */
enum { KEEL_OFFERS_MAX = 8 };
struct keel_tier_offer {
    uint64_t step, attempt;
    uint64_t made_ns;               /* wall clock, of the newest manifest: of a run that was deleted
                                       there may be files of one name. 0: there is no manifest */
    uint32_t shard_count;           /* 0: no manifest says it */
    uint32_t computed;              /* shards of these that were, from parity */
    bool used, parity;              /* some parity file of it is here */
    bool manifest, stored_manifest; /* its manifest is here, or in the store */
    uint64_t have[KEEL_MEMBERS_MAX / 64], stored[KEEL_MEMBERS_MAX / 64]; /* shards here, and there */
};
struct keel_tier_offers {
    struct keel_tier_offer of[KEEL_OFFERS_MAX]; /* the newest */
    uint64_t has_newest, newest;                /* step of all that is there, wanted or not */
    uint64_t has_records, records;              /* of the rank, as below */
};

/* The same as others hear it: runs of shards here, and behind them of shards in the store. */
struct keel_offer_said {
    uint64_t step, attempt, made_ns;
    uint64_t runs_at; /* where they are among the bytes of all; said by nobody */
    uint32_t shard_count, computed;
    uint32_t have_count, stored_count; /* runs */
    bool parity, manifest, stored_manifest;
};
struct keel_offers_head {
    uint64_t newest, records;
    uint64_t bytes; /* of offers, with their runs */
    bool has_newest, has_records;
};
/* All owned; lent to the group's operations. */
struct keel_said_offers {
    struct keel_offers_head head, *heads; /* by position, as all below */
    uint64_t *at, *counts;                /* where a rank's offers begin, and how long they are */
    uint8_t *bytes, *mine;
    size_t head_capacity, at_capacity, count_capacity, byte_capacity, mine_capacity;
};

/* The directory of a node that is not in the view. */
enum { KEEL_ADOPTED_MAX = 64 };
struct keel_adopted {
    struct keel_store *store;
    struct keel_tier *tier;
};

/* snapshot.local. */
struct keel_worker_tiers {
    struct keel_tier *near; /* of worker->store, this node's own; NULL: snapshots are in a common directory */
    struct keel_store *shared; /* NULL: none, or nothing is there */
    struct keel_tier *far;     /* of that */
    uint32_t begun, restores;  /* snapshots begun in this view, and calls of its restarts */
    struct keel_guard guard, storing;
    struct keel_file_mover restoring;
    struct keel_tier_offers mine;
    struct keel_said_offers said_offers;
    struct keel_adopted adopted[KEEL_ADOPTED_MAX];
    uint32_t adopted_count;
    struct keel_tier_offer chosen; /* what this view begins from, if `used` */
    uint64_t from_nodes[KEEL_MEMBERS_MAX / 64],
        from_store[KEEL_MEMBERS_MAX / 64]; /* shards that were brought for it, */
    uint16_t brought_to[KEEL_MEMBERS_MAX]; /* and of those of a node's own ranks to which; by shard */
    bool said, heard[KEEL_MEMBERS_MAX];
    /* From --resume auto:RECORDS[:COMMITTED], as the agent knows it when it starts this worker: the newest
     * step on record, behind which no snapshot is taken, and the newest snapshot. What this worker sees of
     * the run raises both; who only waits does not know how far it comes. */
    uint64_t records, committed;
    bool has_records, has_committed;
};

/* Flags that each rank sends with a step; every rank sees all of them and decides alike. STOP:
 * snapshot.local, it was told to stop: all do behind this step. SNAPSHOT: one failed here, take it again.
 * WAIT: the save of this rank still runs, begin none. FAILED: the newest snapshot of this view failed here,
 * discard its shards. */
enum {
    KEEL_STEP_FLAG_SNAPSHOT = 1,
    KEEL_STEP_FLAG_WAIT = 2,
    KEEL_STEP_FLAG_FAILED = 4,
    KEEL_STEP_FLAG_STOP = 8
};

/* What moves come to. */
struct keel_moved {
    uint64_t bytes;
    uint32_t senders, receivers;
};

/* What a rank says when a view begins; over the wire between equal binaries. `probe` is the digest of the
 * weights after the trial update of the warm-up: boards of one run agree about it. */
struct keel_sync_record {
    uint64_t next_step, digest, digest_of, probe;
    uint64_t snapshot_count, snapshot_step; /* and the newest of them */
    uint64_t did_step;                      /* the last step that it did itself; 0: none yet */
    /* parallel.tensor: of the weights the digest of the slices, with that of what all have of it; the cut of
     * the state, or of the engine */
    uint64_t part, shared;
    struct keel_moved healed;    /* within the column of this rank, */
    uint64_t heal_ns;            /* and how long that took */
    uint8_t tensor, place, warm; /* warm: of the probe */
    bool has_state;
    bool has_share;  /* its share of a snapshot is read */
    bool is_ready;   /* for the step after next_step (keel_trainer_is_ready) */
    bool has_unsaid; /* of next_step */
    char board[25];
    struct keel_owned_record owned[2]; /* parallel.zero; of others nobody sends it */
};
_Static_assert(KEEL_SLICES_MAX < UINT8_MAX, "a place is a byte, and warm one more");

/* parallel.zero: the runs of shares of all that records speak of, in their order: of each record what is
 * held, and of the first of a layout also what has no elements. worker_shares.c. */
struct keel_worker_shares {
    struct keel_share_run *all, *mine; /* owned; lent to the group's operations */
    uint64_t *counts;                  /* owned: by position, how many of them */
    size_t all_capacity, mine_capacity, count_capacity;
};

/* parallel.tensor: this rank in the view. */
struct keel_worker_axes {
    uint32_t tensor, place,
        warm; /* of the engine; warm: 1 and the place that its warm-up had; 0: all slices */
    struct keel_axes map;
    struct keel_trainer_axes trainer;
    struct keel_group *column;  /* ranks with the same slices; NULL: no other has */
    struct keel_group *sharers; /* parallel.zero_group: owners that have all shares together; NULL: all, or
                                   this rank alone */
    uint16_t sharer_ranks[KEEL_MEMBERS_MAX]; /* position of each */
    struct keel_group *norm;                 /* NULL: that of the data position */
    uint16_t column_ranks[KEEL_MEMBERS_MAX],
        column_names[KEEL_MEMBERS_MAX];    /* by index: position, and rank */
    uint16_t shard_index[KEEL_SHARDS_MAX]; /* by shard: index in the column of who carries it */
    uint64_t said[KEEL_MEMBERS_MAX][2];
    uint64_t scores, all_scores; /* lent to a broadcast: of an evaluation */
    uint64_t evaluations;        /* so far in the view */
};

/* Who has what of the state, and who needs what: positions, and runs of tiles (state_extents.c). Zero it
 * first. */
struct keel_holders {
    struct keel_holdings have, need;
};
struct keel_worker {
    struct keel_job job;
    const char *directory;
    const char *store_path,
        *address; /* of a node that dialed in, which says both; NULL: DIR/ckpt, loopback */
    uint32_t node, local, incarnation;
    uint32_t host_count; /* of the run; 0: each node is a host of its own */
    enum keel_resume_kind resume;
    uint64_t resume_step;
    struct keel_drill_plan drills;
    const char *dump_graph, *passes_off, *trace_device; /* as `keel run` was given them; NULL: not */

    struct keel_data *data;
    struct keel_board *board;   /* NULL until it is open */
    struct keel_device *device; /* the board's */
    struct keel_trainer *trainer;
    struct keel_sdc_check *screen; /* NULL: the job wants none */
    bool probation; /* of the board, after a finding of memory: it is screened before it is used */
    struct keel_endpoint *endpoint; /* NULL: a job of one rank */
    struct keel_cost_model costs;   /* if the job names a file of them */
    struct keel_store *store;       /* NULL: the job takes no snapshots and has none */
    struct keel_inbox inbox;        /* shared with its thread */
    struct keel_hang_watch hangs;   /* shared with the inbox's thread, which ticks */
    uint64_t stall_ns;

    bool has_state;
    uint64_t next_step; /* steps committed so far = number of the next one */
    uint64_t digest;    /* of the weights at next_step */
    uint64_t digest_of; /* parallel.zero = 3: the step at which the model had it, plus 1; 0: it is of none */
    uint32_t loss_bits; /* of step number loss_step, the last that this worker did; 0: none yet */
    uint64_t loss_step;
    uint64_t committed_ns; /* when the last commit was */
    uint64_t stepped_ns;   /* all steps together, from commit to commit */

    /* The view in force. */
    struct keel_view view;
    uint32_t rank;       /* stable name of this worker in the view */
    uint32_t position;   /* among the active members, ascending by rank */
    uint32_t rank_count; /* active members */
    bool active;         /* carries shards; a spare waits */
    uint16_t position_rank[KEEL_MEMBERS_MAX];
    uint16_t shard_position[KEEL_SHARDS_MAX];
    struct keel_group *group; /* NULL when alone */
    /* Lent to the group's operations: after one that failed the transport may use them until it is closed. */
    struct keel_sync_record sync_mine, sync_all[KEEL_MEMBERS_MAX];
    struct keel_worker_shares shares;
    void *chunks;                         /* owned: of moves; NULL when no state was moved in this view */
    uint64_t move_round;                  /* how often it was, so far */
    uint64_t sync_ns, heal_ns;            /* what this view has cost so far */
    struct keel_moved healed;             /* state that live ranks gave others in this view */
    bool first_step_of_view, interrupted; /* the step that comes was begun under an older view */

    struct keel_worker_axes axes;

    /* parallel.zero and tensor: of the step that leads to `unsaid_step`, whose weights went out as the view
     * ended: reported when all have them. 0: none. */
    struct keel_trainer_result unsaid;
    uint64_t unsaid_step;

    struct keel_worker_snapshot snapshot;
    struct keel_worker_tiers tiers;
    struct keel_early_stop early; /* worker_early.c: of next_step, if known */
    bool early_known;
};

/* worker_early.c: train.patience with snapshot.local. An evaluation of next_step; is the run to end there? */
void keel_worker_early_add(struct keel_worker *worker, float loss);
bool keel_worker_early_ends(const struct keel_worker *worker);
/* What a manifest says of it; NULL: nothing. */
enum { KEEL_EARLY_TEXT_BYTES = 192 };
const char *keel_worker_early_text(const struct keel_worker *worker, const struct keel_early_stop *early,
                                   char out[KEEL_EARLY_TEXT_BYTES]);
/* All ranks of the view, once they agree on next_step: what the losses before it were. This one had a state
 * before that, or not, of step `before`. */
enum keel_status keel_worker_early_agree(struct keel_worker *worker, bool had_state, uint64_t before);

/* worker_tiers.c: `bytes` of each rank of the view to `all`, by position. All ranks. */
enum keel_status keel_worker_tiers_gather(struct keel_worker *worker, const void *mine, size_t bytes,
                                          void *all);

/* worker.c: how the job wants its fabric; `key` (32 bytes) is borrowed. */
struct keel_endpoint_config keel_worker_fabric(const struct keel_job *job, const uint8_t *key);

/* worker.c: how this worker's board is screened, and named when it is found wrong. */
struct keel_sdc_check_config keel_worker_screen(struct keel_worker *worker);

/* worker_sync.c: open the group of the view, agree on the step to go on with, restore or heal. */
enum keel_status keel_worker_join_view(struct keel_worker *worker);
enum keel_status keel_worker_leave_view(struct keel_worker *worker);

/* worker_moves.c: these seats have, or need, the given parts of the whole state, or of the shares of owners
 * of so many (`of`); and this one has what number `index` of `count` reads of a snapshot. NO_MEMORY. */
enum keel_status keel_worker_put_all(const struct keel_worker *worker, uint32_t parts, const uint32_t *seats,
                                     uint32_t seat_count, struct keel_holdings *list);
enum keel_status keel_worker_put_shares(const struct keel_worker *worker, const struct keel_share_run *owners,
                                        uint32_t of, uint32_t parts, const uint32_t *seats,
                                        uint32_t seat_count, struct keel_holdings *list);
enum keel_status keel_worker_put_read(const struct keel_worker *worker, uint32_t index, uint32_t count,
                                      uint32_t seat, struct keel_holdings *list);
/* The moves of this rank, as all ranks of the view find them from the same holders, which are freed; *out to
 * be given to keel_moves_fini. `listed`: what filling the holders came to, which is returned where it failed.
 * Then the moves are made, if nothing is missing: point to point, on the engine's queue. Blocks; of moves
 * that failed, what came is there in part. */
enum keel_status keel_worker_find_moves(const struct keel_worker *worker, enum keel_status listed,
                                        struct keel_holders *holders, struct keel_moves *out);
enum keel_status keel_worker_make_moves(struct keel_worker *worker, const struct keel_moves *moves);
struct keel_moved keel_worker_count_moves(const struct keel_moves *moves);

/* From what all ranks said (sync_all) to the moves that follow within a column, as all its ranks find them;
 * pure. *out, with those of this rank, is to be given to keel_moves_fini. NO_MEMORY.
 *   healing: whoever has not the state of the step gets all from those that have it;
 *   shares: what each read of a snapshot goes to who needs it;
 *   owned: parallel.zero: from the layout of an epoch, at a step, to that of the view. */
enum keel_status keel_worker_find_healing(const struct keel_worker *worker, uint64_t step,
                                          struct keel_moves *out);
enum keel_status keel_worker_find_shares(const struct keel_worker *worker, struct keel_moves *out);
enum keel_status keel_worker_find_owned(const struct keel_worker *worker, uint64_t epoch, uint64_t step,
                                        struct keel_moves *out);
/* Who has the sums of the step before `step`, which another did: the records say then what it is about to
 * have, and this rank does it. */
enum keel_status keel_worker_catch_up_owned(struct keel_worker *worker, uint64_t step);
enum keel_status keel_worker_catch_up_axes(struct keel_worker *worker, uint64_t step);
/* Of the ranks of a place: the newest layout whose shares they have together at the step; of 0: none. */
struct keel_owned_record keel_worker_choose_owned(const struct keel_worker *worker, uint32_t place,
                                                  uint64_t step);
/* Everybody is where he was in the layout that his column chooses, with all weights: nothing is to be done.
 */
bool keel_worker_is_whole(const struct keel_worker *worker, uint64_t step);

/* Of worker_sync.c, for worker_owned.c. The state from the newest snapshot, or from the seed. Two agreements:
 * `second` also finds who has another state than the others. `healed` is
 * said of moves between live ranks. */
enum keel_status keel_worker_restore_or_begin(struct keel_worker *worker);
enum keel_status keel_worker_exchange_lost(struct keel_worker *worker);
enum keel_status keel_worker_exchange_second(struct keel_worker *worker);
void keel_worker_note_healed(struct keel_worker *worker, struct keel_moved moved);
/* The ranks of the view with the slices of a place, ascending: their number. Of a job whose ranks do not
 * share slices all are of place 0. */
uint32_t keel_worker_column(const struct keel_worker *worker, uint32_t place, uint16_t out[KEEL_MEMBERS_MAX]);
/* This rank's index in its column, of so many. */
uint32_t keel_worker_index(const struct keel_worker *worker, uint32_t *out_count);
/* parallel.zero: who owns what in this rank's column, whose nodes are in `nodes`. */
struct keel_owners_map keel_worker_owners(const struct keel_worker *worker, uint32_t nodes[KEEL_MEMBERS_MAX]);
/* What each rank of this one's column is to have in this view. */
enum keel_status keel_worker_list_needs(const struct keel_worker *worker, struct keel_holdings *needs);
/* parallel.zero = 3: weights are pieces, too, and whatever reads them gathers them: all ranks together. */
static inline bool keel_worker_gathers(const struct keel_worker *worker)
{
    return worker->job.parallel.zero >= KEEL_ZERO_WEIGHTS;
}
/* Whether an evaluation takes all ranks for what each has of the weights, or of their averages. */
static inline bool keel_worker_evaluates_together(const struct keel_worker *worker)
{
    return keel_worker_gathers(worker) ||
           (worker->job.parallel.zero > KEEL_ZERO_NONE && worker->job.ema > 0.0F);
}
/* Whether a position said that it has the state of that step. */
bool keel_worker_has_newest(const struct keel_worker *worker, uint32_t p, uint64_t step);
/* Who has read its share of a snapshot gives it to who needs it. */
enum keel_status keel_worker_spread_shares(struct keel_worker *worker);
void keel_worker_note_resumed(struct keel_worker *worker, uint64_t step, uint64_t since, uint64_t read_bytes);
/* worker_owned.c: parallel.zero: the same of pieces, once all have said what they hold. */
enum keel_status keel_worker_agree_owned(struct keel_worker *worker);
/* And with places of slices, which are known now: steps of the furthest, if there is one; hold what is this
 * rank's in the view, empty, and say that the rest is here; go on from what the ranks of the column hold. */
bool keel_worker_furthest_owned(const struct keel_worker *worker, uint64_t *out_step);
enum keel_status keel_worker_own(struct keel_worker *worker);
enum keel_status keel_worker_settle(struct keel_worker *worker, uint64_t step);
enum keel_status keel_worker_move_owned(struct keel_worker *worker, uint64_t step);
/* Of weights that are gathered: what a rank that knows it says that the model's digest is behind that step;
 * and whether it is what this rank has found now. */
bool keel_worker_find_digest(const struct keel_worker *worker, uint64_t step, uint64_t *out);
enum keel_status keel_worker_check_digest(const struct keel_worker *worker, uint64_t wanted);
/* The group of this rank among its column's owners, once these are known; weights are gathered over it, or
 * over the column. */
enum keel_status keel_worker_open_sharers(struct keel_worker *worker);
/* Whose pieces others have too, so that they may go elsewhere: all of these at once. */
void keel_worker_find_spare_holders(const struct keel_worker *worker, uint64_t step,
                                    bool out[KEEL_MEMBERS_MAX]);

/* worker_shares.c: once sync_all is filled, on all ranks: the runs of the shares in it. `sequence` is that of
 * the records, which the group's numbers for runs follow from. */
enum keel_status keel_worker_gather_shares(struct keel_worker *worker, uint64_t sequence);
/* Where each record's runs lie among those of all; counts: by position, how many it gives. Returns how many
 * there are. */
uint32_t keel_worker_number_shares(struct keel_worker *worker, uint64_t *counts);
/* Those of a record, and of what has no elements in its layout. */
static inline const struct keel_share_run *keel_worker_runs(const struct keel_worker *worker,
                                                            const struct keel_owned_record *record)
{
    return worker->shares.all + record->runs_at;
}
static inline const struct keel_share_run *keel_worker_empties(const struct keel_worker *worker,
                                                               const struct keel_owned_record *record)
{
    return worker->shares.all + record->empties_at;
}

/* worker_axes.c: parallel.tensor: whether ranks share slices; the same once all have said what they have,
 * with the groups that the ranks of a view exchange in. */
bool keel_worker_shares(const struct keel_worker *worker);
enum keel_status keel_worker_agree_axes(struct keel_worker *worker);
void keel_worker_close_axes(struct keel_worker *worker);
/* The first rank that the view or a group within it misses; false: none. */
bool keel_worker_missed(const struct keel_worker *worker, uint32_t *out_position);
/* worker_sync.c, for it: an agreement on how the view goes on; and round after round, which snapshot is to be
 * read, and whether this rank has read the one before. */
enum keel_status keel_worker_exchange_whole(struct keel_worker *worker);
enum keel_status keel_worker_exchange_round(struct keel_worker *worker, uint32_t round, bool has_share);
/* worker_steps.c, for it: say worker->unsaid, if this rank has it; all evaluate where the step is evaluated.
 */
enum keel_status keel_worker_say_rest(struct keel_worker *worker);

/* worker_steps.c: fire what is due here; `context` is the worker, `phase` enum keel_drill_phase. Not those of
 * snapshots, which go on behind later steps. */
void keel_worker_drill(void *context, unsigned phase);

/* worker_steps.c: run steps until the job is done (OK), stop is asked for (INTERRUPTED), or the view ends. */
enum keel_status keel_worker_run_steps(struct keel_worker *worker);

/* worker.c: what train.steps = 0 asks for, as the event `evaluated`. */
void keel_worker_note_scores(struct keel_worker *worker, const struct keel_scores *scores);
/* worker.c: what the engine planned of the device, and what lies there and in the transport's memory behind
 * the first step of a view, as the event `memory`. */
void keel_worker_note_memory(struct keel_worker *worker);

/* worker.c: who is wrong, and what the others have, as the event `rank-outvoted`. */
void keel_worker_note_outvoted(struct keel_worker *worker, const struct keel_trainer_vote *vote);

/* Report the step that healing has just finished; next_step is behind it. */
void keel_worker_say_healed(struct keel_worker *worker, const struct keel_trainer_result *result);

/* worker_snapshot.c */
/* Have the memory of the first one touched before the first step. */
void keel_worker_snapshot_prepare(struct keel_worker *worker);
/* `again`: in place of one that failed. */
void keel_worker_snapshot_begin(struct keel_worker *worker, bool again);
/* Of the step where the worker is, in its view. */
bool keel_worker_snapshot_has_begun(const struct keel_worker *worker);
/* With which a view begins: that of step 0, if the job wants it, and that of the last step, where a rank of
 * the view did it: who was lost may have taken its shard along. One that a view before began is never
 * committed, and goes. */
void keel_worker_snapshot_first(struct keel_worker *worker);
/* In place of beginning one, while a rank's save is under way. */
void keel_worker_snapshot_skip(struct keel_worker *worker);
/* A rank said FAILED. */
void keel_worker_snapshot_give_up(struct keel_worker *worker);
/* KEEL_STEP_FLAG_*, of this rank. */
uint64_t keel_worker_snapshot_flags(struct keel_worker *worker);
/* Report it if it has ended; with `wait`, until it has. */
void keel_worker_snapshot_poll(struct keel_worker *worker, bool wait);
/* One that waits in the background for longer than snapshot.max_age_steps is written at normal priority. */
void keel_worker_snapshot_age(struct keel_worker *worker);
/* Cancel what is still on its way, and let all go. */
void keel_worker_snapshot_end(struct keel_worker *worker);
/* How many snapshots resume may take (one of step 0 may have been imported), and taking the newest. A store
 * that cannot be read is an error: nothing is begun anew because of a disk that does not answer. */
enum keel_status keel_worker_snapshot_count(struct keel_worker *worker, uint64_t *out_count,
                                            uint64_t *out_newest);
enum keel_status keel_worker_restore(struct keel_worker *worker);
/* Take all that this rank's engine has of that of `step`; a refusal is told. */
enum keel_status keel_worker_restore_slices(struct keel_worker *worker, uint64_t step, uint64_t *out_read);
/* From now on only those of steps before this one count; and all again. */
void keel_worker_snapshot_bound(struct keel_worker *worker, uint64_t step);
void keel_worker_snapshot_again(struct keel_worker *worker);
/* Read this rank's share of what its column has (keel_trainer_read_pieces) of that of `step`. False: it
 * cannot be read from here. */
bool keel_worker_restore_share(struct keel_worker *worker, uint64_t step, uint64_t *out_read);

/* worker_guard.c: snapshot.local. Tiers over worker->store, and over that root, if there is one. */
enum keel_status keel_worker_tiers_open(struct keel_worker *worker, const char *shared_root);
void keel_worker_tiers_close(struct keel_worker *worker);
/* Nodes of the active ranks by position: their number. The first position of a position's node; and of all,
 * with the next one of the node (count: none), in one pass. */
uint32_t keel_worker_nodes(const struct keel_worker *worker, uint32_t out[KEEL_MEMBERS_MAX]);
uint32_t keel_worker_first_of_node(const uint32_t *node, uint32_t position);
struct keel_node_ranks {
    uint32_t count;
    uint16_t first[KEEL_MEMBERS_MAX], next[KEEL_MEMBERS_MAX];
};
void keel_worker_node_ranks(const uint32_t *node, uint32_t count, struct keel_node_ranks *out);
/* worker->snapshot's newest is to be committed; NULL: there is no shard of it here. All ranks do it for each
 * snapshot that their view begins, one at a time. */
void keel_worker_guard_begin(struct keel_worker *worker, const struct keel_shard_summary *summary);
/* True: it has ended (tiers.guard says how), and nobody was told before. With `wait`, until it has. */
bool keel_worker_guard_poll(struct keel_worker *worker, bool wait);
/* Others wait for what this rank's guard could not do: the worker ends with that, so that they go on. */
enum keel_status keel_worker_guard_broken(const struct keel_worker *worker);
/* Until what goes to the store is there. */
void keel_worker_guard_drain(struct keel_worker *worker);
/* The view ends: revokes its group if something is under way. */
void keel_worker_guard_stop(struct keel_worker *worker);

/* worker_parity.c: snapshot.erasure, by the guard's thread: all ranks of the view. OK where it could not be
 * made, too (guard->at_fault). */
enum keel_status keel_worker_make_parity(struct keel_guard *guard, uint64_t call);
/* All ranks: what the first of them can compute of the shards that `all` lacks is in its directory then, and
 * in its own offer. */
enum keel_status keel_worker_compute_shards(struct keel_worker *worker, struct keel_tier_offer *all,
                                            uint64_t call);
/* worker_tiers.c, for it: this node's of that generation, NULL: there is no room for it; and a set of shards.
 */
struct keel_tier_offer *keel_worker_own_offer(struct keel_worker *worker, uint64_t step, uint64_t attempt);
static inline bool keel_offer_has(const uint64_t *set, uint32_t shard)
{
    return (set[shard / 64] >> shard % 64 & 1) != 0;
}

/* worker_offers.c: all ranks: what they say of generations (tiers.mine; with `speaks`, else nothing) to all;
 * release it. */
enum keel_status keel_worker_gather_offers(struct keel_worker *worker, bool speaks);
void keel_worker_forget_offers(struct keel_worker *worker);
/* What position p said: one after the other, `at` from 0 on; and of one generation. False: no more; nothing.
 */
bool keel_offers_next(const struct keel_worker_tiers *tiers, uint32_t p, uint64_t *at,
                      struct keel_offer_said *out);
bool keel_offers_find(const struct keel_worker_tiers *tiers, uint32_t p, uint64_t step, uint64_t attempt,
                      struct keel_offer_said *out);
/* Is a shard there (not in the store)? And all its sets, into those of *all. */
bool keel_offer_said_has(const struct keel_worker_tiers *tiers, const struct keel_offer_said *offer,
                         uint32_t shard);
void keel_offer_add_said(const struct keel_worker_tiers *tiers, const struct keel_offer_said *offer,
                         struct keel_tier_offer *all);

/* worker_adopt.c: snapshot.local: open what absent nodes left on this host, if it is this node's to adopt;
 * close it; copy a file of theirs into this node's own directory, if they have it. */
void keel_worker_adopt(struct keel_worker *worker);
void keel_worker_adopt_end(struct keel_worker *worker);
void keel_worker_adopt_file(struct keel_worker *worker, const struct keel_object *object);
/* Is one of the view's members on that node? */
bool keel_worker_sees_node(const struct keel_worker *worker, uint32_t node);

/* worker_tiers.c: snapshot.local, else nothing. All ranks of the view: find what they begin from, into
 * sync_all[0].snapshot_count and _step, and bring it to its nodes. CORRUPT: none is whole, and there was one.
 */
enum keel_status keel_worker_tiers_choose(struct keel_worker *worker);
/* All ranks: bring all of it to each node. */
enum keel_status keel_worker_tiers_fetch_all(struct keel_worker *worker);
/* Where it came from, for a note; "" without tiers. */
void keel_worker_tiers_text(const struct keel_worker *worker, char *out, size_t bytes);

/* One line for events.jsonl: {"event": event, "step": step, "status": ..., "detail": ...}. */
void keel_worker_note(struct keel_worker *worker, const char *event, uint64_t step, enum keel_status status,
                      const char *detail);

#endif
