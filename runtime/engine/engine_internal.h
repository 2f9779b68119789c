/* engine_internal.h - what the files of the engine share.
 *
 * engine.c         life, parameters, facts
 * engine_layout.c  where parameters lie, and buckets
 * engine_compile.c graph -> passes -> buffers -> lists
 * engine_begin.c   how a step's gradients begin
 * engine_update.c  the end of a shard, norm, update, digest
 * engine_pieces.c  the same of pieces of the flat buffers
 * engine_segments.c where the lists of a program end
 * engine_windows.c where gradients lie that are summed to owners bucket by bucket
 * engine_weights.c where weights lie that are gathered from owners bucket by bucket
 * engine_init.c    first weights
 * engine_run.c     replay
 * engine_profile.c time by kernel (KEEL_PROFILE=1) */
#ifndef KEEL_RUNTIME_ENGINE_INTERNAL_H
#define KEEL_RUNTIME_ENGINE_INTERNAL_H

#include "emit.h"
#include "gemm_checksum.h"
#include "ir.h"

#include <keel/engine.h>
#include <keel/optimizer_ops.h>

enum {
    KEEL_PLACE_BYTES = KEEL_FLAT_ALIGN * 4, /* alignment of every slice */
    KEEL_ENGINE_SPARE_EVENTS = 8            /* beyond one a slot, so that waiting allocates nothing */
};

/* ---- layout -------------------------------------------------------------------------------------------- */

/* The accumulator of a use of a parameter. The gradient itself is that of the first, unless the mesh splits
 * what it sums over: then it has `slices` rows, which the end of a shard adds in the tree. */
struct keel_use {
    uint32_t param, part, slices; /* slices 1: not split, or one slice of several */
    bool rows;                    /* a row a slice, if only one */
    uint64_t offset, count;       /* elements of the buffer of uses */
    uint64_t joined;              /* of a rank's: where the sum of its slices lies in the buffers of sums */
};

struct keel_layout {
    struct keel_engine_param *params; /* by number; names owned */
    struct keel_tile *tiles;          /* by parameter and slice: tile i is parameter i while none is split */
    uint32_t *order;                  /* tiles, ascending by offset */
    struct keel_engine_bucket *buckets;
    uint32_t *bucket_end; /* by bucket: how many tiles of `order` lie before its end */
    uint32_t param_count, tile_count, bucket_count;
    uint32_t trained_tiles; /* of `order`: statistics lie behind them */
    uint32_t moved_tiles;   /* of `order`: what is frozen lies behind them */
    uint32_t all_buckets;   /* with those of what is frozen, which are last */
    uint64_t flat_count;    /* elements */
    uint64_t moved_count;   /* of which so many have gradients and moments */
    struct keel_use *uses;  /* ascending by parameter, then by part */
    uint32_t use_count;
    uint64_t uses_count; /* elements of them all, gaps included */
};
/* From the graph as autodiff left it, before fusion: so the layout depends on the model alone. `owned`: all
 * that there is has owners, so what is frozen has gradients and moments too, of zeros, and counts among the
 * buckets. */
enum keel_status keel_layout_init(struct keel_layout *layout, const struct keel_graph *graph,
                                  const struct keel_slice_run *cut, uint64_t bucket_bytes, bool owned);
void keel_layout_fini(struct keel_layout *layout);

/* Whether an accumulator has a row for each slice, and how many these are; whether it is a keel_use. */
static inline bool keel_has_rows(const struct keel_graph *graph, const struct keel_ir_value *gradient)
{
    return gradient->shape.dims > graph->values[graph->params[gradient->param].value].shape.dims;
}
static inline uint32_t keel_use_slices(const struct keel_graph *graph, const struct keel_ir_value *gradient)
{
    return keel_has_rows(graph, gradient) ? (uint32_t)gradient->shape.size[0] : 1;
}
static inline bool keel_is_use(const struct keel_graph *graph, const struct keel_ir_value *gradient)
{
    return gradient->part > 0 || keel_has_rows(graph, gradient);
}

/* ---- programs ------------------------------------------------------------------------------------------ */

/* Where a list ends: which bucket is final then, and what ranks exchange. */
struct keel_program_segment {
    uint32_t end;    /* so many nodes have run: those from the end of the segment before on are its own */
    uint32_t bucket; /* UINT32_MAX: none */
    bool joins;      /* the exchange is of a shard's last microbatch: slices of uses (engine_exchange.c) */
    struct keel_engine_exchange exchange;
    struct keel_buffer *parts[KEEL_NODE_IN_MAX];
};

/* A graph that is compiled: lists to run one after the other. */
struct keel_engine_program {
    struct keel_graph *graph; /* after the passes */
    struct keel_memory_plan plan;
    struct keel_place *places;    /* by value */
    struct keel_buffer **buffers; /* by value: slices of their places */
    struct keel_parts parts;
    struct keel_buffer *losses,
        **loss_slices; /* by part, each at a place of its own; none where there is one loss */
    struct keel_launch_list *lists;
    struct keel_launch_list
        *first; /* likewise, of a step's first microbatch (engine_begin.c); NULL: the same */
    struct keel_program_segment *segments; /* by list */
    uint32_t list_count;                   /* 1, or one a bucket and the rest; and one an exchange */
    struct keel_engine_gather *gathers;    /* of weights in windows, in the order of begin and of first */
    uint32_t gather_count;
};

/* The update in two lists, since the host looks at the norm after the first. */
struct keel_engine_source {
    struct keel_launch_list tiles; /* of a rank with some slices, whose norm then has no such sums */
    struct keel_launch_list norm, update;
};

/* The average of weights (engine_average.c): what it is made of, nothing where the engine has none. */
struct keel_engine_average {
    struct keel_engine_run *trained; /* owned; tensors of the flat buffers that have one */
    uint32_t trained_count;
    struct keel_buffer *tensors, *digest; /* of its update; nobody reads that digest */
};

/* What is not of the graph: zeroing, and the update from the engine's own gradients. `digest` is for weights
 * that came from elsewhere. */
struct keel_update_lists {
    struct keel_launch_list zero, digest; /* zero: what the first microbatch does not overwrite */
    struct keel_launch_list shard;        /* zeroes what the next joins: uses but the first, losses */
    struct keel_launch_list *join; /* by segment: uses of its bucket into the gradients; last, the losses
                                      into one */
    struct keel_engine_source own;
    struct keel_engine_average average;
    struct keel_buffer *tensors, *pages, *scratch; /* of keel_update */
    struct keel_buffer *tiles;                     /* of keel_norm: a sum for each */
    struct keel_buffer *boxes, *box_pages; /* of keel_norm_tiles where the mesh has slices, else NULL */
    uint32_t norm_tiles, box_count, box_page_count; /* how many sums the norm is of, and how many of them
                                                       are the engine's; 0 pages: tiles are whole */
    struct keel_buffer *ones;      /* of the join of slices: a float each; NULL: there are none */
    struct keel_engine_sums *sums; /* what a rank has beside; NULL: the engine has all slices */
};

/* Of an engine with some slices: sums that ranks exchange (engine_exchange.c). */
struct keel_engine_sums {
    struct keel_slice_run nodes[KEEL_NODE_IN_MAX]; /* of the tree over slices, that the engine has whole */
    uint32_t node_count;
    struct keel_buffer *uses[KEEL_NODE_IN_MAX], *joined, *rows; /* of uses with slices: by node; of all ranks;
                                                                   the rows of a node */
    struct keel_buffer *tiles;                                  /* of all ranks */
    struct keel_engine_exchange norm;
    struct keel_launch_list shared; /* digest of weights that are not split */
    struct keel_buffer *digest;
    struct keel_parts slices; /* of these buffers */
};

/* One input of the graph, by order of declaration. */
struct keel_feed_input {
    struct keel_engine_input facts; /* the name is owned */
    uint64_t offset;                /* bytes into the feed */
    struct keel_buffer *slice;
};

struct keel_feed_slot {
    uint8_t *host;            /* control and inputs as the device wants them; of one block */
    struct keel_event *event; /* of its newest write */
};

/* Of an engine whose gradients lie in windows (engine_windows.c); the tables are there of each that trains.
 */
struct keel_windows {
    uint64_t *at;                   /* by bucket: elements of the gradient buffer */
    uint64_t count;                 /* of these, all windows */
    uint32_t *first;                /* by bucket: the segment in which it is first added to */
    uint32_t *waits;                /* by segment: so many first buckets have been summed before it runs */
    struct keel_launch_list *clear; /* by segment: zeroes the buckets that are first added to in it */
    struct keel_buffer **slices;    /* by bucket */
};

/* Of an engine whose weights lie in windows (engine_weights.c). */
struct keel_weight_windows {
    uint64_t *at;     /* by bucket: elements of the buffer of weights */
    uint64_t count;   /* of these, all windows */
    uint32_t *number; /* by bucket: which window */
};

struct keel_profile; /* engine_profile.c */

struct keel_engine {
    struct keel_device *device;   /* borrowed */
    struct keel_kernels *kernels; /* borrowed */
    struct keel_queue *queue;
    uint32_t microbatches;        /* of the whole step */
    struct keel_slice_run tensor; /* slices of the tensor axis, one at least, and those that are here */
    enum keel_dtype storage;
    enum keel_optimizer optimizer;
    bool nesterov, fixed_scale;
    float average; /* decay; 0: there is none */
    uint64_t slot_wait_ns;
    const struct keel_engine *weights_of; /* borrowed, with its weights; NULL: they are its own */
    bool training, check_products, plan_only, share_gradients, in_pieces, windowed, weights_windowed;
    uint32_t ahead; /* of weights in windows: how far they are gathered ahead */

    struct keel_layout layout;
    struct keel_ir_param *inits; /* how parameters begin; by number */
    struct keel_engine_program train, eval;
    struct keel_update_lists update;
    struct keel_windows windows;
    struct keel_weight_windows weight_windows;
    struct keel_gemm_checksums checks; /* of `train`; none unless check_products */

    struct keel_buffer *flat[KEEL_FLAT_COUNT];
    void *gradients_memory;                 /* of the transport; NULL: the device's */
    struct keel_buffer **weights;           /* of the flat buffer, by tile */
    struct keel_buffer **gradients;         /* likewise; NULL of a tile behind layout.moved_count */
    struct keel_buffer *uses, **use_slices; /* of layout.uses; NULL: no parameter has two */
    struct keel_buffer *loss_scale;         /* one of the weights, or NULL; of weights in windows a copy */
    struct keel_buffer *arena, *workspace, *scratch;
    struct keel_buffer *feed;    /* control and inputs: one write a microbatch */
    struct keel_buffer *control; /* a slice of it */
    struct keel_feed_input *inputs;
    uint32_t input_count;
    struct keel_buffer *loss, *eval_loss, *norm, *digest;
    uint64_t planned_bytes, pieces_flat_bytes; /* the latter: of these, elements of all pieces */
    uint64_t feed_bytes;

    uint8_t *staging; /* of all slots */
    struct keel_feed_slot slots[KEEL_ENGINE_SLOTS];
    uint32_t next_slot;
    uint32_t next_segment; /* of the microbatch that was fed last */
    bool begun;            /* a microbatch has run since keel_engine_zero */
    bool joined; /* the last microbatch of a shard was fed: its segments add up uses and losses, which are
                    zeroed before the next */
    struct {     /* where blocking reads land: must live until the queue has ended */
        float norm[3];
        float loss;
        uint64_t digest, digest_shared;
    } landing;
    struct keel_profile *profile; /* NULL unless asked for */
};

/* Everything between the model and the lists. The engine's plain fields are set. */
enum keel_status keel_engine_compile(struct keel_engine *engine, const struct keel_engine_config *config);
void keel_program_fini(struct keel_engine_program *program);

/* Of the arena, which train and eval share. */
uint64_t keel_engine_arena_bytes(const struct keel_engine *engine);

/* Whether there is such state at all, wherever it lies. */
bool keel_engine_keeps(const struct keel_engine *engine, enum keel_engine_flat which);

/* A buffer that is counted; the caller owns it. */
enum keel_status keel_engine_make_buffer(struct keel_engine *engine, uint64_t bytes,
                                         struct keel_buffer **out);

/* Add up the losses of a program, which are several, into `loss`. */
enum keel_status keel_engine_emit_losses(struct keel_engine *engine,
                                         const struct keel_engine_program *program, struct keel_buffer *loss,
                                         struct keel_launch_list *list);

static inline bool keel_engine_is_whole(const struct keel_engine *engine)
{
    return engine->tensor.count == engine->tensor.of;
}

/* By bucket: how many nodes of the train graph must have run before it is final. Ascending. */
void keel_engine_bucket_nodes(const struct keel_layout *layout, const struct keel_graph *graph,
                              uint32_t *out_nodes);

/* ---- how gradients begin (engine_begin.c) ---- */

/* Whether there are lists of a first microbatch. After the passes. */
bool keel_engine_has_first(const struct keel_engine *engine);
/* The list of keel_engine_zero, and that of a shard behind another. */
enum keel_status keel_engine_emit_begin(struct keel_engine *engine);

/* ---- windows (engine_windows.c) ---- */

/* The tables, from the train graph after the passes. Give it to fini, also after a failure. */
enum keel_status keel_windows_init(struct keel_windows *out, const struct keel_layout *layout,
                                   const struct keel_graph *graph);
void keel_windows_fini(struct keel_windows *windows, uint32_t bucket_count);
/* What zeroes them, instead of the whole buffer. */
enum keel_status keel_engine_emit_windows(struct keel_engine *engine);
/* How many elements the gradient buffer has, and where a tile lies there: windows or not. */
uint64_t keel_engine_gradient_count(const struct keel_engine *engine);
uint64_t keel_engine_gradient_of_tile(const struct keel_engine *engine, uint32_t tile);

/* ---- windows of weights (engine_weights.c) ---- */

/* Whether there are tables of gathers: also of one that is planned alone, which tells what they would take.
 */
static inline bool keel_engine_has_gathers(const struct keel_engine *engine)
{
    return engine->weights_windowed || (engine->plan_only && engine->training);
}

/* Whether a segment has to end before node `node`, since that reads weights that it does not have yet.
 * needs: by bucket, the last segment that reads it, and is told of what the node reads; 0: none. */
bool keel_weights_cut(const struct keel_engine *engine, const struct keel_graph *graph, uint32_t node,
                      uint32_t segment, uint32_t *needs);
/* Gathers of both programs, whose segments are known, and where buckets lie. */
enum keel_status keel_weight_windows_init(struct keel_engine *engine);
void keel_weight_windows_fini(struct keel_weight_windows *windows);
/* How many elements the buffer of weights has, and where a tile lies there: windows or not. */
uint64_t keel_engine_weight_count(const struct keel_engine *engine);
uint64_t keel_engine_weight_of_tile(const struct keel_engine *engine, uint32_t tile);
/* engine_windows.c */
uint32_t keel_bucket_of_tile(const struct keel_layout *layout, uint32_t tile);

/* ---- segments (engine_segments.c) ---- */

/* How many lists a program has; its segments, one for each. After the passes; makes no list. */
enum keel_status keel_engine_plan_segments(struct keel_engine *engine, struct keel_engine_program *program);

/* ---- exchange (engine_exchange.c): nothing of an engine with all slices ---- */

/* Places of the sums of uses; before the segments. */
enum keel_status keel_engine_sums_make(struct keel_engine *engine);
void keel_engine_sums_fini(struct keel_engine_sums *sums);
/* The exchange that the node is stands behind the segment. */
void keel_program_segment_set(struct keel_program_segment *segment, const struct keel_engine_program *program,
                              const struct keel_ir_node *node);
/* Whether the uses of a bucket are exchanged; the segment behind which they are. */
bool keel_engine_bucket_joins(const struct keel_engine *engine, uint32_t bucket);
enum keel_status keel_engine_join_segment(struct keel_engine *engine, uint32_t bucket,
                                          struct keel_program_segment *segment);
/* The sums of a bucket's uses with slices, by node; and what came of a use, added to the gradient. */
enum keel_status keel_engine_emit_sums(struct keel_engine *engine, uint32_t bucket,
                                       struct keel_launch_list *list);
enum keel_status keel_engine_emit_joined(struct keel_engine *engine, const struct keel_use *use,
                                         struct keel_buffer *gradient, struct keel_launch_list *list);
/* Tiles of the norm, and the digest of what is shared. */
enum keel_status keel_engine_emit_shared(struct keel_engine *engine);

/* What the norm is summed by: a tensor for each parameter by number, and for each
 * of its slices, if it is split; those that are the engine's (what is not split is the first slice's), and
 * how many the model has. The caller frees it. */
enum keel_status keel_engine_norm_boxes(const struct keel_engine *engine, struct keel_update_tensor **out,
                                        uint32_t *out_count, uint32_t *out_all);

/* engine_update.c, for pieces too: a tile as the update is told of it. */
struct keel_update_tensor keel_engine_describe_tile(const struct keel_engine *engine, uint32_t number);
/* The second half of a norm: tiles and norm from the squares of all pages in engine->scratch. With some
 * slices the sums of tiles are a list of their own, since those of others come between. */
enum keel_status keel_engine_emit_page_norm(struct keel_engine *engine, struct keel_launch_list *tiles,
                                            struct keel_launch_list *list);
/* engine_run.c: the control block of an update, enqueued; what a norm says of the step, after a wait. */
enum keel_status keel_engine_feed_update(struct keel_engine *engine, const struct keel_engine_update *update);
enum keel_status keel_engine_judge_norm(struct keel_engine *engine, const struct keel_engine_update *update,
                                        uint64_t deadline_ns, struct keel_engine_updated *out);
enum keel_status keel_engine_run_list(struct keel_engine *engine, const struct keel_launch_list *list);

/* ---- the average of the weights (engine_average.c) ---- */

/* Of `count` tensors, as the update has them. Blocks. Give it to fini, also after a failure. */
enum keel_status keel_engine_average_make(struct keel_engine *engine,
                                          const struct keel_update_tensor *tensors, uint32_t count,
                                          struct keel_engine_average *out);
uint64_t keel_engine_average_bytes(const struct keel_engine_average *average);
void keel_engine_average_fini(struct keel_engine_average *average);
/* Behind an update in its list: `count` elements of e, NULL where there is none. */
enum keel_status keel_engine_emit_average(struct keel_engine *engine,
                                          const struct keel_engine_average *average,
                                          const struct keel_update *update, struct keel_buffer *e,
                                          uint64_t count, struct keel_launch_list *list);
/* Before that list: the first of them begins with the weights. Enqueues. */
/* Of pieces: nothing is in it where they have no tensor. */
const struct keel_engine_average *keel_engine_pieces_average(const struct keel_engine_pieces *pieces);
enum keel_status keel_engine_begin_average(struct keel_engine *engine,
                                           const struct keel_engine_average *average, struct keel_buffer *w,
                                           struct keel_buffer *e, uint32_t step);

/* The lists of engine->update; all other buffers are there. */
enum keel_status keel_engine_emit_update(struct keel_engine *engine);
void keel_update_lists_fini(struct keel_update_lists *update, uint32_t segment_count);

/* ---- profile ------------------------------------------------------------------------------------------- */

enum keel_status keel_profile_create(struct keel_profile **out);
/* Run a list launch by launch, with the time of each. */
enum keel_status keel_profile_run(struct keel_profile *profile, const struct keel_launch_list *list,
                                  struct keel_queue *queue);
void keel_profile_print(const struct keel_profile *profile);

#endif
