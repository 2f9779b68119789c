/* job_plan.h - which seat has what of a job, and what that takes: a pure function of the model, the axes that
 * the job gives, the number of seats and the memory of one.
 *
 * Axes. `tensor` seats next to each other share the job's tensor slices, a contiguous run each: they are a
 * position of the data axis, and `data` positions share the shards. Seat = position * tensor + place along
 * the tensor axis. Seats beyond their product are spares.
 *
 * ZeRO. Of each bucket of a seat's flat buffers the position k of n owns pages [floor(k P / n), floor((k + 1)
 * P / n)); with two holders another one has them too, or with groups of positions those with the same number
 * in each (keel_has_share): then weights go round in a group. Where slices share a tensor, a share begins
 * with a page of each of them, as that of a worker (keel_engine_share). 1: so lie m and v; 2: gradients too;
 * 3: weights too.
 *
 * Bytes are those of float32 by the layout: pages of KEEL_FLAT_ALIGN elements, so a little more than the
 * formulas say of P parameters of a seat: 16 P; 8 P + 8 P / n; 4 P + 12 P / n; 16 P / n (twice what is
 * divided, with two holders). Nodes of the shard tree that wait come beside. They are what a rank takes to
 * the byte (events `memory`) but for inputs, tables and workspace of kernels, which follow from the device.
 */
#ifndef KEEL_JOB_PLAN_H
#define KEEL_JOB_PLAN_H

#include "holdings.h"
#include <keel/ckpt.h>
#include <keel/engine.h>
#include <keel/job.h>
#include <stdbool.h>

/* Seats that a plan can have: all data shards times all tensor slices. */
enum { KEEL_PLAN_SEATS_MAX = KEEL_SHARDS_MAX * KEEL_SLICES_MAX };

/* Kinds of state, as the parts of snapshots and healing are numbered. */
enum keel_plan_part { KEEL_PLAN_WEIGHTS, KEEL_PLAN_M, KEEL_PLAN_V, KEEL_PLAN_EMA, KEEL_PLAN_PARTS };

/* A parameter as rows of units, of which tensor slices have some: tile (param, slice) is rows * (its units) *
 * unit elements, row-major; what a seat has is a box of so many rows, too. units 0: not split; one tile. */
struct keel_plan_param {
    uint64_t rows, unit; /* unit: elements */
    uint32_t units;
    uint64_t count; /* of all, in elements */
    uint32_t bucket;
    bool statistic, frozen; /* the optimizer keeps nothing of it */
    /* As a snapshot knows it: units are those of dimension split_dim, in each of `outer` parts side by side.
     */
    const char *name; /* of the engine */
    uint32_t dims, split_dim, outer;
    uint64_t shape[4];
};

/* How a value changes its layout over the tensor axis. */
enum keel_exchange_kind {
    KEEL_EXCHANGE_ALL_REDUCE,
    KEEL_EXCHANGE_REDUCE_SCATTER,
    KEEL_EXCHANGE_ALL_GATHER,
    KEEL_EXCHANGE_KINDS
};
struct keel_plan_exchange {
    uint64_t count; /* in a model: of one microbatch */
    uint64_t bytes; /* of the whole values, together */
};

/* Memory of a device that has some of the slices, by the plan of its engine. */
struct keel_plan_cut {
    uint64_t activation_bytes, accumulator_bytes;
    uint64_t window_bytes;        /* of gradients that go to their owners bucket by bucket */
    uint64_t weight_window_bytes; /* of weights that come from them */
    uint64_t gathered_bytes;      /* of those: what comes in a microbatch, ... */
    uint32_t gather_count;        /* ... by so many gathers */
    bool refused;                 /* there is no engine of so many slices: nor a plan, but keel_plan_make */
};

/* What of a job a plan follows from. */
struct keel_plan_model {
    uint32_t shards, tensor, microbatches; /* microbatches: of a shard */
    uint32_t per_node;                     /* seats side by side on one node or host; 0: each is on its own */
    bool has_v, has_ema;
    bool compressed;                     /* gradients are: nodes that wait lie on the host */
    struct keel_compression compression; /* if so */
    uint32_t zero_most;             /* 0: the optimizer, or how gradients are summed, wants whole tensors */
    struct keel_plan_param *params; /* owned; by number */
    uint32_t *order;                /* owned; numbers as they lie in the flat buffers, buckets ascending */
    uint32_t param_count, bucket_count;
    uint32_t owned_buckets;     /* with zero > 0: with those of what is frozen */
    struct keel_plan_cut *cuts; /* owned; of 1 to `tensor` slices, [0] is none */
    struct keel_plan_exchange exchanges[KEEL_EXCHANGE_KINDS];
};

/* The facts of a compiled engine (plan_only is enough), and of its graph sharded over `job->tensor` slices.
 * *out is to be given to keel_plan_model_fini, also after a failure. INVALID: the model cannot be cut so. */
enum keel_status keel_plan_model_make(const struct keel_job *job, const struct keel_graph *graph,
                                      const struct keel_engine *engine, struct keel_plan_model *out);
/* The same of an engine that has `count` of the slices: to be told of all counts that a plan can have
 * (keel_plan_has_cut), before any is made. */
void keel_plan_model_cut(struct keel_plan_model *model, uint32_t count, const struct keel_engine *engine);
/* Whether a place has so many slices in any plan of up to so many places. */
bool keel_plan_has_cut(const struct keel_plan_model *model, uint32_t places, uint32_t count);
void keel_plan_model_fini(struct keel_plan_model *model);

enum keel_plan_bytes {
    KEEL_BYTES_WEIGHTS,
    KEEL_BYTES_GRADIENTS,
    KEEL_BYTES_OPTIMIZER,
    KEEL_BYTES_ACTIVATIONS,
    KEEL_BYTES_WORKSPACE, /* accumulators of later uses; nodes that wait; the place of a sum; windows */
    KEEL_BYTES_KINDS
};
/* "weights": static. */
const char *keel_plan_bytes_name(enum keel_plan_bytes kind);

struct keel_job_plan {
    uint32_t seats, spares;
    uint32_t data, tensor, zero, holders;
    uint32_t group;                   /* positions that ZeRO divides over, of `data`; others have the same */
    uint64_t bytes[KEEL_BYTES_KINDS]; /* of the seat that has most */
    uint64_t total_bytes;
    bool fits; /* in the memory that was asked for */
};

/* The plan with these axes, whatever the job says of them; `group` as parallel.zero_group. It fits. */
void keel_plan_make(const struct keel_plan_model *model, uint32_t data, uint32_t tensor, uint32_t zero,
                    uint32_t holders, uint32_t group, struct keel_job_plan *out);

/* How many have copies of what a position owns: second holders, or replicas in other groups. */
uint32_t keel_plan_copies(const struct keel_job_plan *plan);

/* All plans of up to `seats` seats that the job's keys allow, each by keel_plan_make, the best first: those
 * that fit the memory (0: any does) before others; who uses more seats, who cuts less over tensor, who splits
 * less over data. Heap, owned by the caller. */
enum keel_status keel_plan_list(const struct keel_plan_model *model, const struct keel_parallel *asked,
                                uint32_t seats, struct keel_job_plan **out, uint32_t *out_count);
/* The first of that list. NO_MEMORY where none fits: names what the nearest would need, by kind. INVALID
 * where the keys allow none. */
enum keel_status keel_plan_choose(const struct keel_plan_model *model, const struct keel_parallel *asked,
                                  uint32_t seats, struct keel_job_plan *out);
/* The fewest seats for which a plan fits; 0: none does, whatever the seats. */
uint32_t keel_plan_fewest_seats(const struct keel_plan_model *model, const struct keel_parallel *asked);

struct keel_plan_seat {
    uint32_t position, place;          /* along data, along tensor */
    uint32_t first_slice, slice_count; /* of job.tensor */
    uint32_t first_shard, shard_count; /* of job.shards */
};
struct keel_plan_seat keel_plan_seat(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                                     uint32_t seat);
/* Of a tensor place: bytes of its flat buffer, and of these what each data position owns, and with copies of
 * what others own holds. Of zero = 0 each has all. */
struct keel_plan_shares {
    uint64_t moved; /* of `whole`: what is not frozen */
    uint64_t whole, owned[KEEL_SHARDS_MAX], held[KEEL_SHARDS_MAX];
};
void keel_plan_shares(const struct keel_plan_model *model, const struct keel_job_plan *plan, uint32_t place,
                      struct keel_plan_shares *out);
/* Bytes of one seat, by kind; shares: of its place. */
void keel_plan_seat_bytes(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                          const struct keel_plan_shares *shares, const struct keel_plan_seat *seat,
                          uint64_t out[KEEL_BYTES_KINDS]);
/* What a seat has of the state between two steps: parts KEEL_PLAN_*. Owned by the caller; *out is empty after
 * a failure. NO_MEMORY. */
enum keel_status keel_plan_holding(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                                   uint32_t seat, struct keel_extents *out);
/* A box of a parameter, or of its m or v, and where its elements lie in the seat's box of it: element e is
 * number first + e / row * stride + e % row; all together where row is 0. */
struct keel_plan_region {
    struct keel_region box;
    uint32_t part, param;
    uint64_t first, row, stride;
};
/* What a seat writes into a snapshot: over all seats everything once, by the owners of its pages, evenly. Or
 * (`writes` false) what it reads of one, written by whatever plan: what it holds. Heap, owned by the caller.
 */
enum keel_status keel_plan_regions(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                                   uint32_t seat, bool writes, struct keel_plan_region **out,
                                   uint32_t *out_count);

/* Collectives of a step, of the seat that computes most: how many, and bytes of what each is of before it is
 * cut or after it is whole. Over tensor: of all its microbatches, the changes of layout of the graph; the few
 * sums of a loss over a split vocabulary, and of vectors at the end of a shard, are not counted. */
struct keel_plan_traffic {
    struct keel_plan_exchange data[KEEL_EXCHANGE_KINDS], tensor[KEEL_EXCHANGE_KINDS];
    uint64_t shadow_bytes; /* that it sends to who has copies of what it owns */
};
void keel_plan_traffic(const struct keel_plan_model *model, const struct keel_job_plan *plan,
                       struct keel_plan_traffic *out);
/* "all-reduce": static. */
const char *keel_exchange_name(enum keel_exchange_kind kind);

#endif
