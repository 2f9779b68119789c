/* engine.h - a compiled training step on one device: graph -> passes -> command lists -> replay.
 *
 * Given a model built with graph.h, the engine differentiates, fuses, plans memory and emits three
 * command lists (train: forward + backward of one microbatch, in segments that end where gradients
 * become final; eval: forward; update: norm, then clip, optimizer and digest) and replays them. No
 * allocation, on host or device, after the first replay of each. It knows nothing of ranks, networks or
 * snapshots.
 *
 * Flat buffers. Parameters lie in one flat device buffer, in the order in which the backward pass
 * finishes their gradients, statistics behind them and what is frozen last; gradients and the optimizer's m
 * and v have the same layout, as far as something is not frozen. Gaps for alignment are zero and stay zero. A
 * *bucket* is a contiguous range of it whose gradients are final at one point of the backward pass. What is
 * frozen is in no bucket, but of an engine that is made `in_pieces`, where each bucket has owners: its
 * gradients are zeros there.
 *
 * One thread at a time per engine. */
#ifndef KEEL_ENGINE_H
#define KEEL_ENGINE_H

#include <keel/api.h>
#include <keel/device.h>
#include <keel/graph.h>
#include <keel/kernels.h>
#include <keel/optimizer_ops.h>
#include <keel/status.h>

KEEL_API_BEGIN

struct keel_engine;
struct keel_engine_source;

struct keel_engine_config {
    struct keel_device *device;     /* borrowed */
    struct keel_kernels *kernels;   /* borrowed */
    const struct keel_graph *graph; /* the model's forward graph with its loss; borrowed during create */
    uint32_t microbatches;          /* of the whole step, over all shards: losses and gradients add up to the
                                       mean over them; 0 is 1 */
    uint32_t tensor; /* slices of the logical mesh's tensor axis, all of them on this device: the
                        bits are those of a model that is split so; 0 is 1 */
    uint32_t tensor_first, tensor_count; /* of these slices, those that this engine has; count 0: all. Some:
                                            weights are as large as they are, and what others have is
                                            exchanged behind segments (keel_engine_exchange) */
    uint64_t bucket_bytes;               /* aim for a bucket; 0: 4 MiB */
    enum keel_dtype storage; /* of what waits for the backward pass: KEEL_F32, KEEL_BF16, or KEEL_F16, whose
                                loss is scaled */
    float loss_scale;        /* KEEL_F16: a power of two, for the whole run; 0: found by the engine */
    enum keel_optimizer optimizer;
    bool nesterov;                        /* SGD */
    float average;                        /* training: keep an exponential moving average of the weights, of
                                             this decay, below 1; 0: none */
    bool training;                        /* false: eval alone, no gradients, no optimizer state */
    const struct keel_engine *weights_of; /* without training: read the weights, and keys and values, of this
                                             engine of the same parameters, which outlives the new one; not
                                             both at a time. NULL: weights of its own */
    bool only_keeps;      /* without training: evaluate up to the last attention that keeps keys and values
                             (keel_graph_decode), and nothing behind it: there is no output, and a loss of 0 */
    bool share_gradients; /* training: the gradients lie in memory that other ranks of this host read in
                             place (keel_shared_buffer), where the device takes it */
    bool in_pieces;       /* training: moments and updates are those of keel_engine_pieces alone */
    bool windows;         /* in_pieces, with one microbatch a shard: a bucket of gradients lies in memory
                             that later ones use again (keel_engine_window_waits) */
    bool weight_windows;  /* in_pieces: a bucket of weights is in memory while it is read, in a window that
                             others use before and behind it (keel_engine_gathers) */
    uint32_t ahead;       /* weight_windows: so many stages before it is read its gather begins, where a stage
                             reads the same buckets; 0: right before */
    bool check_products;  /* training: notice when a result of a linear layer's products, gradients too,
                             changes after it was computed; convolutions, attention and experts have
                             no such check */
    bool plan_only;       /* passes and layout alone: only parameters, tiles, buckets and facts may be
                             asked for; no kernels, and no memory of the device */
    const char *dump_directory; /* graph after each pass as text, or NULL */
    const char *passes_off;     /* NULL: what does not pay on the device; "": nothing; else what to leave out,
                                   with commas: "plan-memory", "fuse" or one of its
                                   fusions, "fuse-gelu", "fuse-dropout", "fuse-norm", "fuse-loss", "fuse-image",
                                   "fuse-residual"; the bits stay the same */
    uint64_t slot_wait_ns;      /* longest wait for the queue when KEEL_ENGINE_SLOTS microbatches are
                                   enqueued and not begun; 0: a minute */
};

/* Parameters begin at multiples of this many floats in the flat buffers (a page), on every device. */
enum { KEEL_FLAT_ALIGN = 1024, KEEL_ENGINE_SLOTS = 16 };

/* INVALID: `passes_off` (as above) names no pass; the detail has those that there are. */
enum keel_status keel_engine_check_passes(const char *passes_off);

/* INVALID: the graph has an error, no loss or no trained parameter. UNSUPPORTED: the
 * device needs a coarser alignment than KEEL_FLAT_ALIGN. NO_MEMORY names what does not fit. Blocks while
 * buffers are zeroed. */
enum keel_status keel_engine_create(const struct keel_engine_config *config, struct keel_engine **out);
void keel_engine_destroy(struct keel_engine *engine);

/* ---- parameters ---- */

/* The scale of the loss of KEEL_F16, a statistic that no mean moves: it lies with the weights. */
#define KEEL_LOSS_SCALE_NAME "loss_scale"

struct keel_engine_param {
    const char *name;
    uint32_t dims;
    uint64_t shape[4];
    uint64_t count; /* elements */
    bool decay;     /* weight decay applies (matrices) */
    bool statistic; /* not trained: follows a mean (keel_param_spec) */
    bool kept;      /* a statistic that no mean moves: the engine's own, of no model (the loss scale; keys and
                       values of attention of the newest token) */
    bool added;     /* to the model, by the job (LoRA): an imported snapshot may lack it */
    bool frozen;    /* no statistic, and not trained either */
    float rate;     /* that the learning rate is multiplied by */
    float fill;     /* what it begins with, unless first weights are drawn */
    bool split;     /* over the tensor axis: shape and count are those of the engine's slices, and `place` is
                       where these lie in the whole; else every engine has all of it */
    struct keel_random_slice place;
    uint64_t whole[4]; /* the shape with all slices, ... */
    uint32_t split_dim,
        outer; /* which differs in this one, of so many parts side by side that are cut alike */
};
/* In order of declaration: `index` is the parameter's number. Strings live as long as the engine. */
uint32_t keel_engine_param_count(const struct keel_engine *engine);
const struct keel_engine_param *keel_engine_param(const struct keel_engine *engine, uint32_t index);

/* One slice of one parameter: the unit of update, digest, snapshots and healing. It is contiguous in the flat
 * buffers and begins with a page of KEEL_FLAT_ALIGN elements; no page has elements of two tiles. */
struct keel_tile {
    uint32_t param, slice;           /* slice 0 of 1: parameters are not split yet */
    uint64_t offset, count;          /* elements of the flat buffers */
    uint64_t first_page, page_count; /* that it lies in */
};
/* Ascending by parameter, then by slice. They live as long as the engine. */
uint32_t keel_engine_tile_count(const struct keel_engine *engine);
const struct keel_tile *keel_engine_tile(const struct keel_engine *engine, uint32_t index);

/* What one logical slice has of a parameter, of those that the engine has: element i lies at offset +
 * i / row * stride + i % row of the flat buffers, or in one piece where row is 0. Of a slice they are the
 * same elements in the same order, however many slices the engine has beside it; what is not split is one
 * box. Of what has gradients alone: what is frozen lies behind their end, and is no box. */
struct keel_engine_box {
    uint64_t offset, count, row, stride;
};
/* Ascending by parameter, then by slice; on the heap, the caller's. NO_MEMORY. Any thread. */
enum keel_status keel_engine_boxes(const struct keel_engine *engine, struct keel_engine_box **out,
                                   uint32_t *out_count);

enum keel_engine_flat {
    KEEL_FLAT_WEIGHTS,
    KEEL_FLAT_GRADIENTS,
    KEEL_FLAT_M,
    KEEL_FLAT_V,
    KEEL_FLAT_EMA, /* e = e + (1 - average) (w - e) behind each update, with one rounding of the product and
                      the sum; before the first it is the weights, which that one writes. Of what is trained
                      alone: elsewhere zeros */
    KEEL_FLAT_COUNT
};
/* NULL for all but the weights when the engine does not train, for V where the optimizer has none, for
 * EMA without `average`, for these three where they are in pieces, and for weights that lie in windows. */
struct keel_buffer *keel_engine_flat(struct keel_engine *engine, enum keel_engine_flat which);
uint64_t keel_engine_flat_count(const struct keel_engine *engine); /* elements, gaps included */

/* Initial weights from the counter-based generator (stream = parameter number), m = v = 0. Blocks. */
enum keel_status keel_engine_initialize(struct keel_engine *engine, uint64_t seed);

struct keel_engine_bucket {
    uint64_t offset, count; /* elements of the flat buffers */
};
/* At most so many: their sums are all in flight at once, and a group bounds what is. */
enum { KEEL_ENGINE_BUCKETS_MAX = 192 };
uint32_t keel_engine_bucket_count(const struct keel_engine *engine);
/* With those of what is frozen, which an engine `in_pieces` counts anyway, as others would that have owners.
 */
uint32_t keel_engine_all_bucket_count(const struct keel_engine *engine);
const struct keel_engine_bucket *keel_engine_bucket(const struct keel_engine *engine, uint32_t index);

/* Where a bucket's gradients lie in the buffer of gradients, in elements: with `windows` several have the
 * same place, one after the other. */
uint64_t keel_engine_gradient_at(const struct keel_engine *engine, uint32_t bucket);
/* With `windows`: by segment, how many of the first buckets have been read by whom they are for, since it and
 * those behind it use their memory again; bucket_count + 1 of them, as long as the engine lives. NULL:
 * without. */
const uint32_t *keel_engine_window_waits(const struct keel_engine *engine);

/* With `weight_windows`: a bucket's weights are to be written to their window before the first segment that
 * reads them, by the caller, and stay until the last has run. They may be written from the time on that the
 * segments before `begin` have run: then nobody reads that window any more. */
struct keel_engine_gather {
    uint32_t bucket, window;
    uint32_t begin, first, last; /* segments of a microbatch, or of an evaluation */
};
/* In the order of `first`, and of `begin`; as long as the engine lives. NULL, and 0: weights lie whole. */
const struct keel_engine_gather *keel_engine_gathers(const struct keel_engine *engine, bool evaluation,
                                                     uint32_t *out_count);
/* The buffer of all windows, and where a bucket lies there, in elements: the same in each of its gathers. */
struct keel_buffer *keel_engine_weight_windows(const struct keel_engine *engine);
uint64_t keel_engine_weights_at(const struct keel_engine *engine, uint32_t bucket);
/* A bucket was written to its window: what is read of it beside segments is copied. Enqueues. */
enum keel_status keel_engine_gathered(struct keel_engine *engine, uint32_t bucket);
/* First weights of a bucket, to its window. Blocks. */
enum keel_status keel_engine_draw(struct keel_engine *engine, uint32_t bucket, uint64_t seed);

/* The queue on which everything below is enqueued, in order; the caller may enqueue its own work. */
struct keel_queue *keel_engine_queue(struct keel_engine *engine);

/* ---- running; all enqueue and return unless said otherwise ---- */

/* What the graph is fed with: its inputs in the order in which they were declared. */
struct keel_engine_input {
    const char *name; /* lives as long as the engine */
    enum keel_dtype dtype;
    struct keel_shape shape;
    uint64_t bytes;
};
uint32_t keel_engine_input_count(const struct keel_engine *engine);
const struct keel_engine_input *keel_engine_input(const struct keel_engine *engine, uint32_t index);

struct keel_engine_batch {
    const void *const *inputs; /* by number, each of its bytes; NULL for zeros. Copied before return. */
    uint64_t seed;
    uint32_t step, microbatch;
    bool more; /* another microbatch of the same shard follows */
};

/* Begin a step: gradients and the loss are zero as of now. Those that the next microbatch overwrites keep in
 * memory what they had until its segments have run; with `windows` a bucket's do until its first segment
 * runs. */
enum keel_status keel_engine_zero(struct keel_engine *engine);

/* Forward and backward of one microbatch, added to the gradients and to the loss accumulator: feed, then all
 * segments in order, then keel_queue_flush. Of an engine with all slices and weights segment b <
 * keel_engine_bucket_count ends where bucket b's gradients are final, and one more is the rest (others:
 * keel_engine_segment_bucket). What the caller enqueues between two segments runs there, overlapped with what
 * follows on other queues.
 *
 * A parameter that several nodes of the model use has an accumulator for each, and so has each of several
 * losses: these take the microbatches of a shard, and the last one (`more` false) adds them up in the order
 * of the model, a parameter's in the segment of its bucket, losses in the rest. Until then gradients and loss
 * lack them.
 *
 * feed: copy the batch and have it written. Blocks only when the queue is KEEL_ENGINE_SLOTS microbatches
 * behind; TIMEOUT after slot_wait_ns, nothing enqueued then. */
enum keel_status keel_engine_feed(struct keel_engine *engine, const struct keel_engine_batch *batch);
enum keel_status keel_engine_segment(struct keel_engine *engine, uint32_t segment);
/* All of that. */
enum keel_status keel_engine_microbatch(struct keel_engine *engine, const struct keel_engine_batch *batch);

/* ---- engines that have some slices of the tensor axis ---- */

/* What is exchanged between the engines of all slices, before the next segment runs. Elements have 4 bytes.
 *   GATHER    each gives its part of the result
 *   SUM       floats, in the tree over slices: a part for each of its nodes that the engine has whole
 *             (keel_tree_nodes of the slices, ascending), each of the whole size
 *   SUM_BITS  int32, one part of the whole size
 *   MAX       floats, likewise
 * The whole is units * unit elements, and the engine of a run of slices has those of its units: what it gives
 * to GATHER, and with `scatter` what it gets (keel_engine_exchange_count). Else each gets the whole. Buffers
 * are the engine's; the result lies on no part. */
struct keel_engine_exchange {
    enum keel_slices_exchange kind;
    bool scatter;
    uint32_t part_count, units;
    uint64_t unit;
    struct keel_buffer *const *parts;
    struct keel_buffer *result;
};
/* How many elements the run of `count` slices from `first` on has, of `of`. */
uint64_t keel_engine_exchange_count(const struct keel_engine_exchange *exchange, uint32_t of, uint32_t first,
                                    uint32_t count);

/* The segments of a microbatch: ends of buckets, exchanges, and what reads other weights, and the rest. An
 * engine that has all slices and all weights has one a bucket, and the rest. */
uint32_t keel_engine_segment_count(const struct keel_engine *engine);
/* The bucket whose gradients are final behind a segment; UINT32_MAX: none is. */
uint32_t keel_engine_segment_bucket(const struct keel_engine *engine, uint32_t segment);
/* What is exchanged behind a segment of the batch that was fed last; NULL: nothing. */
const struct keel_engine_exchange *keel_engine_exchange(const struct keel_engine *engine, uint32_t segment);

/* The same, whichever batch was fed: *out_last is set where it is exchanged behind the last microbatch of a
 * shard alone. */
const struct keel_engine_exchange *keel_engine_segment_exchange(const struct keel_engine *engine,
                                                                uint32_t segment, bool *out_last);

/* The same of an evaluation: begin feeds the batch, end reads the loss and blocks. keel_engine_eval is all of
 * that, of an engine that exchanges nothing. */
enum keel_status keel_engine_eval_begin(struct keel_engine *engine, const struct keel_engine_batch *batch);
uint32_t keel_engine_eval_segment_count(const struct keel_engine *engine);
enum keel_status keel_engine_eval_segment(struct keel_engine *engine, uint32_t segment);
const struct keel_engine_exchange *keel_engine_eval_exchange(const struct keel_engine *engine,
                                                             uint32_t segment);
enum keel_status keel_engine_eval_end(struct keel_engine *engine, uint64_t deadline_ns, float *out_loss);

/* Sums of squares of the gradients of what the engine has, `from` as in keel_engine_update, which goes on
 * from there. The exchange before it; NULL: nothing, and the update does all itself. */
enum keel_status keel_engine_norm_begin(struct keel_engine *engine, const struct keel_engine_source *from);
const struct keel_engine_exchange *keel_engine_norm_exchange(const struct keel_engine *engine);

/* With check_products: compare the checksums of all products so far; CORRUPT names a product whose result
 * changed in memory between being computed and being used. Call it before using a gradient. Blocks until the
 * queue is empty, also without check_products. */
enum keel_status keel_engine_settle(struct keel_engine *engine, uint64_t deadline_ns);

/* The loss accumulator: one float on the device. */
struct keel_buffer *keel_engine_loss(struct keel_engine *engine);

/* The commands of norm and update for gradients that lie in another buffer than the engine's own, in the
 * layout of the flat buffers. `gradients` is borrowed, and may not be NULL. Create may compile, and allocates
 * on the host alone. Destroy it before the engine and the buffer; NULL is fine. */
struct keel_engine_source;
enum keel_status keel_engine_source_create(struct keel_engine *engine, struct keel_buffer *gradients,
                                           struct keel_engine_source **out);
void keel_engine_source_destroy(struct keel_engine_source *source);

struct keel_engine_update {
    const struct keel_engine_source *from; /* NULL: the engine's own gradients */
    struct keel_update_settings settings;
    float learning_rate;
    uint32_t step;   /* from 0; bias correction uses step + 1 */
    bool never_skip; /* the loss itself is not finite: no matter of scale */
};
struct keel_engine_updated {
    float grad_norm;
    float loss_scale; /* that the gradients had; 0: they are not scaled */
    bool skipped; /* a scaled gradient overflowed: the weights are as they were, the scale is half of that */
    uint64_t digest; /* of all weights after the update: position of an element = its parameter's number
                        and its index, so gaps and layout do not matter; of an engine that has some slices,
                        those of its own */
    uint64_t digest_shared; /* of these, the weights that the engines of all slices have whole; 0 of one that
                               has all. The digest of the model: the sum of digest - digest_shared over the
                               engines, and the digest_shared of one, which all have alike */
};
/* Norm, then clip, update and digest in one pass; blocks until done. DIVERGED when the norm is not finite
 * (nothing is changed then). After TIMEOUT the update may still happen: end the worker. */
enum keel_status keel_engine_update(struct keel_engine *engine, const struct keel_engine_update *update,
                                    uint64_t deadline_ns, struct keel_engine_updated *out);

/* ---- an update of pieces: of an engine that is made `in_pieces` ---- */

/* Runs of the flat buffers, of which this engine holds what the optimizer needs: weights, sums of gradients
 * and moments, one run behind the other in buffers of their own. They are shares, or unions of such
 * (keel_engine_share). Engines that together hold all of the flat buffers update as one that has them whole,
 * to the bit: each sums the squares of its pages, all get the squares of all, and then each updates its runs.
 * (Rajbhandari et al. 2020, "ZeRO", stage 1.) */
struct keel_engine_run {
    uint64_t first, count; /* elements of the flat buffers; or pages of the norm */
};
/* The share of position `position` of `of`: a run of each bucket, by number, which may be empty. Over all
 * positions each element has one owner, and evenly, but that no page has two, nor any page of a slice of a
 * parameter. A function of the model and its slices alone. NO_MEMORY. */
enum keel_status keel_engine_share(const struct keel_engine *engine, uint32_t position, uint32_t of,
                                   struct keel_engine_run *out);
/* The pages of the norm that runs have, in the order in which squares are given: on the heap, the caller's.
 * Of all pages there are keel_engine_page_count. Pure. */
enum keel_status keel_engine_run_pages(const struct keel_engine *engine, const struct keel_engine_run *runs,
                                       uint32_t run_count, struct keel_engine_run **out, uint32_t *out_count);
uint64_t keel_engine_page_count(const struct keel_engine *engine);

struct keel_engine_pieces;
/* `runs` are copied, 1 at least. All buffers begin as zeros. Blocks; may compile. NO_MEMORY. The engine
 * outlives them. Destroy waits for nothing: the queue has ended. NULL is fine. */
enum keel_status keel_engine_pieces_create(struct keel_engine *engine, const struct keel_engine_run *runs,
                                           uint32_t run_count, struct keel_engine_pieces **out);
void keel_engine_pieces_destroy(struct keel_engine_pieces *pieces);
/* Their own; NULL for V where the optimizer has none, and for EMA without `average`. */
struct keel_buffer *keel_engine_pieces_flat(const struct keel_engine_pieces *pieces,
                                            enum keel_engine_flat which);
/* Where run `run` begins there, in elements. */
uint64_t keel_engine_pieces_at(const struct keel_engine_pieces *pieces, uint32_t run);

/* Squares of the pages of the first runs, so many that there are `count` of them (keel_engine_run_pages), of
 * the sums of gradients: into `out`. Blocks. */
enum keel_status keel_engine_pieces_squares(struct keel_engine_pieces *pieces, uint64_t deadline_ns,
                                            float *out, uint64_t count);
/* What the norm comes to: three floats that are the same wherever the squares are. */
struct keel_engine_norm {
    float values[3];
};
/* The squares of all pages of the engine, by their number, are given to its norm: they stay as they are until
 * that is done. Of an engine with some slices keel_engine_norm_exchange comes between this and that. */
enum keel_status keel_engine_pieces_sum(struct keel_engine_pieces *pieces, const float *squares);
/* Their norm; blocks. DIVERGED, and *out, are those of keel_engine_update, but that there is no digest.
 * `update` is not applied yet. */
enum keel_status keel_engine_pieces_norm(struct keel_engine_pieces *pieces,
                                         const struct keel_engine_update *update, uint64_t deadline_ns,
                                         struct keel_engine_norm *out_norm, struct keel_engine_updated *out);
/* With a norm from here or elsewhere: update the pieces. Blocks; as keel_engine_update after TIMEOUT. */
enum keel_status keel_engine_pieces_update(struct keel_engine_pieces *pieces,
                                           const struct keel_engine_update *update,
                                           const struct keel_engine_norm *norm, uint64_t deadline_ns);

/* Digest of the weights of the first runs, one a bucket, as they are, and the part of it that is of weights
 * which the engines of all slices have whole (keel_engine_updated): over all owners these add up to those of
 * all weights. With `weight_windows`. Blocks. */
enum keel_status keel_engine_pieces_digest(struct keel_engine_pieces *pieces, uint64_t deadline_ns,
                                           uint64_t *out, uint64_t *out_shared);

/* Weights and their average change places, of what is trained, in the engine or, where it is made
 * `in_pieces`, in pieces; nothing happens without `average`. Enqueued: what is enqueued later reads them so.
 * Do it again before the next update, digest or snapshot. */
enum keel_status keel_engine_swap_average(struct keel_engine *engine, struct keel_engine_pieces *pieces);

/* Mean loss of one batch, dropout off; blocks. */
enum keel_status keel_engine_eval(struct keel_engine *engine, const struct keel_engine_batch *batch,
                                  uint64_t deadline_ns, float *out_loss);
/* Compute the graph's output for one batch, dropout off: `rows` rows of its last dimension from row
 * `first_row` of its flattened others, floats or int32 as the value is; blocks. INVALID: no output, or rows
 * that it has not. After TIMEOUT `out` must live as long as the engine. */
enum keel_status keel_engine_output(struct keel_engine *engine, const struct keel_engine_batch *batch,
                                    uint32_t first_row, uint32_t rows, uint64_t deadline_ns, void *out);

/* The same of the batch that was evaluated last, while nothing else was enqueued since. */
enum keel_status keel_engine_evaluated(struct keel_engine *engine, uint32_t first_row, uint32_t rows,
                                       uint64_t deadline_ns, void *out);
/* The output's shape; no dimensions when there is none. */
struct keel_shape keel_engine_output_shape(const struct keel_engine *engine);

/* Digest of the weights as they are; blocks. */
enum keel_status keel_engine_digest(struct keel_engine *engine, uint64_t deadline_ns, uint64_t *out);
/* The part of it, when it was asked for last, that is of weights which the engines of all slices have whole
 * (keel_engine_updated). */
uint64_t keel_engine_digest_shared(const struct keel_engine *engine);

/* ---- facts for reports and tests ---- */

struct keel_engine_facts {
    uint64_t parameters;         /* elements that are no statistics */
    uint64_t frozen;             /* of these: not trained */
    uint64_t planned_peak_bytes; /* device memory by plan; equals the device's counter */
    uint64_t table_bytes;      /* of these: inputs, tables, scratch and workspace of kernels. All else are the
                                  flat buffers and pieces of them, activations, accumulators and windows */
    uint64_t shared_bytes;     /* of gradients in the transport's memory, which are in no counter */
    uint64_t activation_bytes; /* of which the arena, which is planned also with plan_only */
    uint64_t accumulator_bytes; /* likewise: gradients of later uses of parameters */
    uint64_t window_bytes;      /* likewise: gradients, if they lie in windows */
    uint64_t
        weight_window_bytes; /* likewise: weights, if they do; with plan_only also what they would take */
    uint64_t gathered_bytes; /* likewise: weights that are written to windows in a microbatch, ... */
    uint32_t gather_count;   /* ... by so many gathers */
    uint64_t flops_per_microbatch; /* multiply-adds counted as two, forward + backward, by the index rules */
    uint64_t moved_per_microbatch; /* bytes, likewise, if each operation touches each operand once */
    uint32_t commands_train, commands_eval, commands_update;
};
void keel_engine_facts(const struct keel_engine *engine, struct keel_engine_facts *out);

KEEL_API_END

#endif
