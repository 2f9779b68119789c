/* trainer.c - from shards to tree nodes to one sum to one update.
 *
 * Where gradients live. The engine adds the microbatches of one shard into its gradient buffer. While the
 * backward pass of the shard's last microbatch finishes buckets, held sibling nodes are added to them on
 * the device. When another shard follows, the node is copied into a slot; the last one stays where it is.
 * A held node is not written before the step is committed: it is the retained input of a redo.
 *
 * Overlap. Each bucket of the last shard gets an event; as it completes, the bucket is read to the host
 * and its reduction begins while the device goes on with the backward pass. */
#include "drill.h"
#include "model.h"
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <math.h>
#include <string.h>

#define PROBE_RATE 1e-3F /* of the warm-up's update: any that moves the weights */

/* ---- creation ------------------------------------------------------------------------------------------ */

static enum keel_status build_engine(struct keel_trainer *trainer)
{
    const struct keel_job *job = trainer->job;
    struct keel_graph *graph;
    KEEL_TRY(keel_graph_create(&graph));
    struct keel_engine_config config = {.device = trainer->device,
                                        .kernels = trainer->kernels,
                                        .graph = graph,
                                        .microbatches = job->microbatches * job->shards,
                                        .storage = (enum keel_dtype)job->storage,
                                        .loss_scale = job->loss_scale,
                                        .optimizer = (enum keel_optimizer)job->optimizer,
                                        .nesterov = job->nesterov,
                                        .training = true,
                                        .check_products = job->check_products,
                                        .slot_wait_ns = trainer->stall_ns};
    enum keel_status status = keel_model_build(graph, job, trainer->data);
    if (status == KEEL_OK)
        status = keel_engine_create(&config, &trainer->engine);
    keel_graph_destroy(graph);
    return status;
}

static enum keel_status slice_buckets(struct keel_trainer *trainer, struct keel_buffer *flat,
                                      struct keel_buffer **slices)
{
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        const struct keel_engine_bucket *bucket = keel_engine_bucket(trainer->engine, b);
        KEEL_TRY(keel_buffer_slice(flat, bucket->offset * sizeof(float), bucket->count * sizeof(float),
                                   &slices[b]));
    }
    return KEEL_OK;
}

/* What a batch is read into, and where its logits go. The model was made for this data. */
static enum keel_status allocate_batch(struct keel_trainer *trainer)
{
    uint32_t inputs = keel_data_input_count(trainer->data);
    KEEL_ASSERT(keel_engine_input_count(trainer->engine) == inputs);
    for (uint32_t i = 0; i < inputs; i++) {
        const struct keel_data_input *input = keel_data_input(trainer->data, i);
        KEEL_ASSERT(keel_engine_input(trainer->engine, i)->bytes == input->bytes);
        KEEL_TRY(keel_alloc(input->bytes, 1, &trainer->inputs[i]));
    }
    if (!keel_data_has_accuracy(trainer->data))
        return KEEL_OK;
    struct keel_shape shape = keel_engine_output_shape(trainer->engine);
    KEEL_ASSERT(shape.dims == 2 && shape.size[0] == trainer->job->batch);
    return keel_alloc(shape.size[0] * shape.size[1], sizeof(float), &trainer->logits);
}

static enum keel_status allocate(struct keel_trainer *trainer)
{
    size_t buckets = trainer->bucket_count;
    KEEL_TRY(allocate_batch(trainer));
    KEEL_TRY(keel_alloc(buckets, sizeof(struct keel_buffer *), &trainer->gradient_slices));
    KEEL_TRY(keel_alloc(buckets, sizeof(struct keel_event *), &trainer->bucket_events));
    KEEL_TRY(keel_alloc(buckets + 2, sizeof(struct keel_operation *), &trainer->operations));
    KEEL_TRY(keel_alloc(KEEL_MEMBERS_MAX + 1, sizeof(struct keel_commit_record), &trainer->records));
    return slice_buckets(trainer, keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS),
                         trainer->gradient_slices);
}

static enum keel_status build(struct keel_trainer *trainer, const struct keel_kernels_options *kernels)
{
    struct keel_kernels_options options = {.native = false};
    if (kernels != NULL)
        options = *kernels;
    options.native = options.native || trainer->job->numerics != 0;
    KEEL_TRY(keel_kernels_create_with(trainer->device, &options, &trainer->kernels));
    KEEL_TRY(build_engine(trainer));
    KEEL_TRY(keel_queue_create(trainer->device, &trainer->copy_queue));
    trainer->flat_count = keel_engine_flat_count(trainer->engine);
    trainer->bucket_count = keel_engine_bucket_count(trainer->engine);
    trainer->hold.shard_count = trainer->job->shards;
    return allocate(trainer);
}

enum keel_status keel_trainer_create(const struct keel_trainer_config *config, struct keel_trainer **out)
{
    KEEL_ASSERT(config->job->shards <= KEEL_HOLD_NODES_MAX);
    struct keel_trainer *trainer;
    KEEL_TRY(keel_alloc(1, sizeof *trainer, &trainer));
    trainer->job = config->job;
    trainer->data = config->data;
    trainer->device = config->device;
    trainer->stall_ns = config->stall_ns;
    trainer->hangs = config->hangs;
    trainer->progress = config->progress;
    enum keel_status status = build(trainer, config->kernels);
    if (status != KEEL_OK) {
        keel_trainer_destroy(trainer);
        return status;
    }
    *out = trainer;
    return KEEL_OK;
}

static void destroy_slot(struct keel_trainer *trainer, struct keel_partial_buffer *slot)
{
    for (uint32_t b = 0; slot->add != NULL && b <= trainer->bucket_count; b++)
        keel_launch_list_fini(&slot->add[b]);
    for (uint32_t b = 0; slot->slices != NULL && b <= trainer->bucket_count; b++)
        if (slot->slices[b] != NULL)
            keel_buffer_destroy(slot->slices[b]);
    if (slot->buffer != NULL)
        keel_buffer_destroy(slot->buffer);
    keel_free(slot->slices);
    keel_free(slot->add);
    *slot = (struct keel_partial_buffer){.buffer = NULL};
}

static void forget_events(struct keel_trainer *trainer)
{
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        keel_event_destroy(trainer->bucket_events[b]);
        trainer->bucket_events[b] = NULL;
    }
}

void keel_trainer_destroy(struct keel_trainer *trainer)
{
    if (trainer == NULL)
        return;
    if (trainer->bucket_events != NULL)
        forget_events(trainer);
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++)
        destroy_slot(trainer, &trainer->slots[i]);
    for (uint32_t b = 0; trainer->gradient_slices != NULL && b < trainer->bucket_count; b++)
        if (trainer->gradient_slices[b] != NULL)
            keel_buffer_destroy(trainer->gradient_slices[b]);
    if (trainer->copy_queue != NULL)
        keel_queue_destroy(trainer->copy_queue);
    keel_engine_destroy(trainer->engine);
    keel_kernels_destroy(trainer->kernels);
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++) /* the queues are gone: nobody writes there */
        keel_transport_free(trainer->parts[i]);
    keel_free(trainer->gradient_slices);
    keel_free(trainer->bucket_events);
    keel_free(trainer->operations);
    keel_free(trainer->records);
    keel_transport_free(trainer->result);
    for (uint32_t i = 0; i < KEEL_DATA_INPUTS_MAX; i++)
        keel_free(trainer->inputs[i]);
    keel_free(trainer->logits);
    keel_free(trainer);
}

struct keel_kernels *keel_trainer_kernels(struct keel_trainer *trainer)
{
    return trainer->kernels;
}

struct keel_engine *keel_trainer_engine(struct keel_trainer *trainer)
{
    return trainer->engine;
}

enum keel_status keel_trainer_digest(struct keel_trainer *trainer, uint64_t *out)
{
    keel_hang_enter(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    enum keel_status status =
        keel_engine_digest(trainer->engine, keel_deadline_after_ns(trainer->stall_ns), &trainer->digest);
    keel_hang_leave(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    if (status == KEEL_OK)
        *out = trainer->digest;
    return status;
}

enum keel_status keel_trainer_initialize(struct keel_trainer *trainer)
{
    keel_hang_enter(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    enum keel_status status = keel_engine_initialize(trainer->engine, trainer->job->seed);
    keel_hang_leave(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    return status;
}

static enum keel_status run_all_once(struct keel_trainer *trainer)
{
    const struct keel_job *job = trainer->job;
    uint64_t deadline_ns = keel_deadline_after_ns(trainer->stall_ns);
    keel_data_train_batch(trainer->data, 0, 0, 1, trainer->inputs);
    struct keel_engine_batch batch = {.inputs = keel_trainer_inputs(trainer), .seed = job->seed};
    struct keel_engine_update request = {
        .learning_rate = PROBE_RATE, .beta1 = job->beta1, .beta2 = job->beta2, .epsilon = job->epsilon};
    struct keel_engine_updated updated;
    float loss;
    KEEL_TRY(keel_engine_initialize(trainer->engine, job->seed));
    KEEL_TRY(keel_engine_zero(trainer->engine));
    KEEL_TRY(keel_engine_microbatch(trainer->engine, &batch, NULL, NULL));
    enum keel_status status = keel_engine_update(trainer->engine, &request, deadline_ns, &updated);
    if (status != KEEL_OK && status != KEEL_DIVERGED) /* which the first step will say, if it is so */
        return status;
    KEEL_TRY(keel_engine_eval(trainer->engine, &batch, deadline_ns, &loss));
    return keel_engine_digest(trainer->engine, deadline_ns, &trainer->probe);
}

uint64_t keel_trainer_probe(const struct keel_trainer *trainer)
{
    return trainer->probe;
}

/* One microbatch more, now that all is compiled: what the queue holds when it is full is what a wait is for.
 */
static enum keel_status time_microbatch(struct keel_trainer *trainer)
{
    struct keel_engine_batch batch = {.inputs = keel_trainer_inputs(trainer), .seed = trainer->job->seed};
    uint64_t since_ns = keel_now_ns();
    KEEL_TRY(keel_engine_zero(trainer->engine));
    KEEL_TRY(keel_engine_microbatch(trainer->engine, &batch, NULL, NULL));
    KEEL_TRY(keel_engine_settle(trainer->engine, keel_deadline_after_ns(trainer->stall_ns)));
    keel_hang_expect(trainer->hangs, KEEL_HANG_COMPUTE, (KEEL_ENGINE_SLOTS + 1) * (keel_now_ns() - since_ns));
    return KEEL_OK;
}

enum keel_status keel_trainer_warm(struct keel_trainer *trainer)
{
    keel_hang_enter(trainer->hangs, KEEL_HANG_WARM, keel_now_ns());
    enum keel_status status = run_all_once(trainer);
    if (status == KEEL_OK && trainer->hangs != NULL)
        status = time_microbatch(trainer);
    keel_hang_leave(trainer->hangs, KEEL_HANG_WARM, keel_now_ns());
    return status;
}

/* ---- slots --------------------------------------------------------------------------------------------- */

static enum keel_status build_slot(struct keel_trainer *trainer, struct keel_partial_buffer *slot)
{
    uint32_t buckets = trainer->bucket_count;
    uint64_t bytes = keel_flat_bytes(trainer);
    KEEL_TRY(keel_buffer_create(trainer->device, bytes + KEEL_LOSS_FLOATS * sizeof(float), &slot->buffer));
    KEEL_TRY(keel_alloc(buckets + 1, sizeof(struct keel_buffer *), &slot->slices));
    KEEL_TRY(keel_alloc(buckets + 1, sizeof(struct keel_launch_list), &slot->add));
    KEEL_TRY(slice_buckets(trainer, slot->buffer, slot->slices));
    KEEL_TRY(keel_buffer_slice(slot->buffer, bytes, sizeof(float), &slot->slices[buckets]));
    for (uint32_t b = 0; b <= buckets; b++) {
        struct keel_buffer *target =
            b < buckets ? trainer->gradient_slices[b] : keel_engine_loss(trainer->engine);
        struct keel_add add = {.count = b < buckets ? keel_engine_bucket(trainer->engine, b)->count : 1,
                               .a = slot->slices[b],
                               .b = target,
                               .y = target};
        KEEL_TRY(keel_op_add(trainer->kernels, &add, &slot->add[b]));
        KEEL_TRY(keel_launch_list_seal(&slot->add[b], trainer->kernels));
    }
    return KEEL_OK;
}

static enum keel_status free_slot(struct keel_trainer *trainer, int *out)
{
    int found = 0;
    while (found < KEEL_HOLD_NODES_MAX && trainer->slots[found].used)
        found++;
    KEEL_ASSERT(found < KEEL_HOLD_NODES_MAX);
    struct keel_partial_buffer *slot = &trainer->slots[found];
    if (slot->buffer == NULL) {
        keel_hang_distrust(trainer->hangs, KEEL_HANG_COMPUTE); /* its launches may compile */
        enum keel_status status = build_slot(trainer, slot);
        if (status != KEEL_OK) {
            destroy_slot(trainer, slot);
            return status;
        }
    }
    *out = found;
    return KEEL_OK;
}

/* The node in the gradient buffer, if any, moves to a slot, so that another shard can be computed. */
static enum keel_status vacate_gradients(struct keel_trainer *trainer)
{
    struct keel_held_node *held = keel_hold_in_gradients(&trainer->hold);
    if (held == NULL)
        return KEEL_OK;
    int number;
    KEEL_TRY(free_slot(trainer, &number));
    struct keel_partial_buffer *slot = &trainer->slots[number];
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    KEEL_TRY(keel_queue_copy(queue, keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS), 0, slot->buffer,
                             0, keel_flat_bytes(trainer), NULL, NULL));
    KEEL_TRY(keel_queue_copy(queue, keel_engine_loss(trainer->engine), 0, slot->buffer,
                             keel_flat_bytes(trainer), sizeof(float), NULL, NULL));
    slot->used = true;
    held->slot = number;
    return KEEL_OK;
}

void keel_trainer_drop(struct keel_trainer *trainer)
{
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++)
        trainer->slots[i].used = false;
    trainer->hold.count = 0;
}

/* ---- computing shards ---------------------------------------------------------------------------------- */

static enum keel_status bucket_finished(void *context, uint32_t bucket)
{
    struct keel_trainer *trainer = context;
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    for (uint32_t i = 0; i < trainer->chain_count; i++)
        KEEL_TRY(keel_launch_list_run(&trainer->slots[trainer->chain[i]].add[bucket], queue));
    if (!trainer->last_shard)
        return KEEL_OK;
    KEEL_TRY(keel_queue_mark(queue, &trainer->bucket_events[bucket]));
    return keel_queue_flush(queue);
}

/* Everything that a step launches goes through the next three: drivers may run a kernel inside its launch. */
static enum keel_status make_room(struct keel_trainer *trainer)
{
    keel_hang_enter(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    enum keel_status status = vacate_gradients(trainer);
    if (status == KEEL_OK)
        status = keel_engine_zero(trainer->engine);
    keel_hang_leave(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    return status;
}

static enum keel_status run_microbatch(struct keel_trainer *trainer, const struct keel_engine_batch *batch,
                                       bool final)
{
    keel_hang_enter(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    enum keel_status status =
        keel_engine_microbatch(trainer->engine, batch, final ? bucket_finished : NULL, trainer);
    keel_hang_leave(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    atomic_fetch_add(trainer->progress, 1);
    return status;
}

static enum keel_status add_losses(struct keel_trainer *trainer)
{
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    enum keel_status status = KEEL_OK;
    keel_hang_enter(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    for (uint32_t i = 0; i < trainer->chain_count && status == KEEL_OK; i++)
        status = keel_launch_list_run(&trainer->slots[trainer->chain[i]].add[trainer->bucket_count], queue);
    if (status == KEEL_OK)
        status = keel_queue_flush(queue);
    keel_hang_leave(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    return status;
}

static enum keel_status compute_shard(struct keel_trainer *trainer, uint64_t step, uint32_t shard, bool last)
{
    const struct keel_job *job = trainer->job;
    KEEL_TRY(make_room(trainer));
    struct keel_partial_sums next = trainer->hold; /* adopted only when all is enqueued */
    trainer->chain_count = keel_hold_add(&next, shard, trainer->chain);
    trainer->last_shard = last;
    for (uint32_t m = 0; m < job->microbatches; m++) {
        uint32_t number = shard * job->microbatches + m;
        keel_data_train_batch(trainer->data, step, number, job->shards * job->microbatches, trainer->inputs);
        struct keel_engine_batch batch = {.inputs = keel_trainer_inputs(trainer),
                                          .seed = job->seed,
                                          .step = (uint32_t)step,
                                          .microbatch = number};
        KEEL_TRY(run_microbatch(trainer, &batch, m + 1 == job->microbatches));
    }
    KEEL_TRY(add_losses(trainer));
    for (uint32_t i = 0; i < trainer->chain_count; i++)
        trainer->slots[trainer->chain[i]].used = false; /* in-order queue: reused only after these reads */
    trainer->hold = next;
    return KEEL_OK;
}

/* Wait until a queue has done all it was given for the gradients. */
static enum keel_status finish(struct keel_trainer *trainer, struct keel_queue *queue)
{
    keel_hang_enter(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    enum keel_status status = keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns));
    keel_hang_leave(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    return status;
}

/* Compute the shards of this rank that no held node covers. */
static enum keel_status compute_missing(struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                        uint32_t *out_microbatches)
{
    const struct keel_job *job = trainer->job;
    bool owned[KEEL_HOLD_NODES_MAX];
    int freed[KEEL_HOLD_NODES_MAX];
    for (uint32_t s = 0; s < job->shards; s++)
        owned[s] = step->shard_position[s] == step->position;
    if (trainer->hold_step != step->step)
        keel_trainer_drop(trainer);
    trainer->hold_step = step->step;
    uint32_t freed_count = keel_hold_keep(&trainer->hold, owned, freed);
    for (uint32_t i = 0; i < freed_count; i++)
        trainer->slots[freed[i]].used = false;
    uint32_t missing = 0;
    for (uint32_t s = 0; s < job->shards; s++)
        missing += owned[s] && !keel_hold_covers(&trainer->hold, s);
    *out_microbatches = missing * job->microbatches;
    forget_events(trainer);
    for (uint32_t s = 0; s < job->shards; s++) {
        if (owned[s] && !keel_hold_covers(&trainer->hold, s))
            KEEL_TRY(compute_shard(trainer, step->step, s, --missing == 0));
    }
    if (*out_microbatches > 0)
        return KEEL_OK;
    /* All is held from an attempt that may have ended before the device did: no bucket has an event. */
    return finish(trainer, keel_engine_queue(trainer->engine));
}

/* ---- the sum over ranks -------------------------------------------------------------------------------- */

static enum keel_status stage_parts(struct keel_trainer *trainer)
{
    uint64_t bytes = keel_flat_bytes(trainer) + KEEL_LOSS_FLOATS * sizeof(float);
    for (uint32_t i = 0; i < trainer->hold.count; i++)
        if (trainer->parts[i] == NULL)
            KEEL_TRY(keel_transport_alloc(bytes, &trainer->parts[i]));
    if (trainer->result == NULL)
        KEEL_TRY(keel_transport_alloc(bytes, &trainer->result));
    return KEEL_OK;
}

/* Read elements [offset, offset + count) of all held nodes; waits for `after` first. count 0: the loss. */
static enum keel_status read_nodes(struct keel_trainer *trainer, struct keel_event *after, uint64_t offset,
                                   uint64_t count)
{
    struct keel_wait_list waits = {.events = &after, .count = after != NULL ? 1 : 0};
    bool loss = count == 0;
    uint64_t bytes = (loss ? 1 : count) * sizeof(float), at = loss ? trainer->flat_count : offset;
    for (uint32_t i = 0; i < trainer->hold.count; i++) {
        int slot = trainer->hold.held[i].slot;
        struct keel_buffer *source;
        uint64_t source_at = at;
        if (slot != KEEL_HOLD_GRADIENTS) {
            source = trainer->slots[slot].buffer;
        } else if (loss) {
            source = keel_engine_loss(trainer->engine);
            source_at = 0;
        } else {
            source = keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS);
        }
        KEEL_TRY(keel_queue_read(trainer->copy_queue, source, source_at * sizeof(float),
                                 trainer->parts[i] + at, bytes, &waits, NULL));
    }
    return finish(trainer, trainer->copy_queue);
}

static enum keel_status begin_reduce(struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                     uint32_t number, uint64_t offset, uint64_t count)
{
    const void *parts[KEEL_HOLD_NODES_MAX];
    for (uint32_t i = 0; i < trainer->hold.count; i++)
        parts[i] = trainer->parts[i] + offset;
    struct keel_collective sum = {.kind = KEEL_ALL_REDUCE,
                                  .sequence = ((step->step + 1) << 20) + number,
                                  .element = KEEL_ELEMENT_F32,
                                  .count = count,
                                  .parts = parts,
                                  .part_count = trainer->hold.count,
                                  .result = trainer->result + offset};
    return keel_group_begin(step->group, &sum, &trainer->operations[number]);
}

static uint64_t wishes_now(const struct keel_trainer_step *step)
{
    return step->wishes | (step->save != NULL && !keel_save_done(step->save) ? step->saving_wish : 0);
}

static enum keel_status begin_commit(struct keel_trainer *trainer, const struct keel_trainer_step *step)
{
    uint32_t number = trainer->bucket_count + 1;
    struct keel_commit_record *mine = &trainer->records[KEEL_MEMBERS_MAX];
    *mine = (struct keel_commit_record){.epoch = step->epoch,
                                        .step = step->step,
                                        .digest = trainer->digest,
                                        .wishes = wishes_now(step),
                                        .has_loss = step->has_loss,
                                        .loss_bits = step->loss_bits};
    const void *parts[] = {mine};
    struct keel_collective gather = {.kind = KEEL_ALL_GATHER,
                                     .sequence = ((step->step + 1) << 20) + number,
                                     .element = KEEL_ELEMENT_U8,
                                     .count = sizeof *mine,
                                     .parts = parts,
                                     .part_count = 1,
                                     .result = trainer->records};
    return keel_group_begin(step->group, &gather, &trainer->operations[number]);
}

/* Wait for the gradients. */
static enum keel_status settle(struct keel_trainer *trainer, const struct keel_trainer_step *step)
{
    char evidence[KEEL_DETAIL_BYTES];
    keel_hang_enter(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    enum keel_status status = keel_engine_settle(trainer->engine, keel_deadline_after_ns(trainer->stall_ns));
    keel_hang_leave(trainer->hangs, KEEL_HANG_COMPUTE, keel_now_ns());
    if (status != KEEL_CORRUPT || step->screen.wrong == NULL)
        return status;
    snprintf(evidence, sizeof evidence, "%s", keel_detail());
    return step->screen.wrong(step->screen.context, evidence);
}

/* The device is idle now, and the network is not. */
static enum keel_status screen_board(const struct keel_trainer_step *step)
{
    return step->screen.pass != NULL ? step->screen.pass(step->screen.context) : KEEL_OK;
}

/* Begin one reduction per bucket as the buckets complete, then the loss and the commit record. */
static enum keel_status begin_sum(struct keel_trainer *trainer, const struct keel_trainer_step *step)
{
    KEEL_TRY(stage_parts(trainer));
    KEEL_TRY(begin_commit(trainer, step));
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        const struct keel_engine_bucket *bucket = keel_engine_bucket(trainer->engine, b);
        KEEL_TRY(read_nodes(trainer, trainer->bucket_events[b], bucket->offset, bucket->count));
        KEEL_TRY(begin_reduce(trainer, step, b, bucket->offset, bucket->count));
        if (b == 0 && step->phase.at != NULL)
            step->phase.at(step->phase.context, KEEL_AT_REDUCE);
        atomic_fetch_add(trainer->progress, 1);
    }
    /* Nobody finishes the step without this last sum, so what is found wrong here is in nobody's weights. */
    KEEL_TRY(settle(trainer, step));
    KEEL_TRY(read_nodes(trainer, NULL, 0, 0));
    KEEL_TRY(screen_board(step));
    return begin_reduce(trainer, step, trainer->bucket_count, trainer->flat_count, 1);
}

static enum keel_status wait_sum(struct keel_trainer *trainer)
{
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < trainer->bucket_count + 2; i++) {
        if (status == KEEL_OK)
            status = keel_operation_wait(trainer->operations[i], keel_deadline_after_ns(trainer->stall_ns));
        trainer->operations[i] = NULL; /* after a failure the group's close releases the rest */
        atomic_fetch_add(trainer->progress, 1);
    }
    return status;
}

/* What the ranks must agree about, as one of them says it. False: it does not know. */
static bool said_weights(const struct keel_commit_record *record, uint64_t *out)
{
    *out = record->digest;
    return true;
}

static bool said_loss(const struct keel_commit_record *record, uint64_t *out)
{
    *out = record->loss_bits;
    return record->has_loss != 0;
}

/* How many ranks say `wanted`. */
static uint32_t count_saying(const struct keel_trainer *trainer, uint32_t rank_count,
                             bool (*said)(const struct keel_commit_record *, uint64_t *), uint64_t wanted)
{
    uint32_t count = 0;
    uint64_t value;
    for (uint32_t r = 0; r < rank_count; r++)
        count += said(&trainer->records[r], &value) && value == wanted ? 1 : 0;
    return count;
}

/* All ranks have the same records, so all name the same one: the first that differs from most. */
static enum keel_status check_said(const struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                   bool (*said)(const struct keel_commit_record *, uint64_t *), int digits,
                                   const char *what)
{
    uint64_t most = 0, value;
    uint32_t most_count = 0, count;
    for (uint32_t r = 0; r < step->rank_count && most_count * 2 <= step->rank_count; r++) {
        if (!said(&trainer->records[r], &value))
            continue;
        count = count_saying(trainer, step->rank_count, said, value);
        most = count > most_count ? value : most;
        most_count = count > most_count ? count : most_count;
    }
    for (uint32_t r = 0; r < step->rank_count; r++) {
        if (!said(&trainer->records[r], &value) || value == most)
            continue;
        count = count_saying(trainer, step->rank_count, said, value);
        return keel_fail(
            KEEL_MISMATCH, "after step %llu rank %u has the %s %0*llx, and %u of %u ranks have %0*llx%s",
            (unsigned long long)step->step, step->position_rank != NULL ? step->position_rank[r] : r, what,
            digits, (unsigned long long)value, most_count, step->rank_count, digits, (unsigned long long)most,
            count == most_count ? ": one of them is wrong, and nobody can tell which" : "");
    }
    return KEEL_OK;
}

static enum keel_status check_records(const struct keel_trainer *trainer,
                                      const struct keel_trainer_step *step)
{
    for (uint32_t r = 0; r < step->rank_count; r++) {
        const struct keel_commit_record *record = &trainer->records[r];
        if (record->epoch != step->epoch || record->step != step->step)
            return keel_fail(KEEL_MISMATCH, "step %llu: position %u came with step %llu",
                             (unsigned long long)step->step, r, (unsigned long long)record->step);
    }
    KEEL_TRY(check_said(trainer, step, said_weights, 16, "weights"));
    return check_said(trainer, step, said_loss, 8, "loss");
}

/* Sum over the group, into trainer->result. */
static enum keel_status sum_ranks(struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                  struct keel_trainer_result *result)
{
    enum keel_status status = begin_sum(trainer, step);
    uint64_t waiting_since = keel_now_ns();
    if (status == KEEL_OK)
        status = wait_sum(trainer);
    result->exposed_comm_ns = keel_now_ns() - waiting_since;
    if (status != KEEL_OK) {
        memset(trainer->operations, 0, (trainer->bucket_count + 2) * sizeof(struct keel_operation *));
        return status;
    }
    KEEL_TRY(check_records(trainer, step));
    for (uint32_t r = 0; r < step->rank_count; r++)
        result->wishes |= trainer->records[r].wishes;
    result->loss = trainer->result[trainer->flat_count];
    return KEEL_OK;
}

static enum keel_status sum_alone(struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                  struct keel_trainer_result *result)
{
    if (step->phase.at != NULL)
        step->phase.at(step->phase.context, KEEL_AT_REDUCE);
    if (keel_hold_in_gradients(&trainer->hold) == NULL) { /* kept in a slot: copy it back */
        struct keel_partial_buffer *slot = &trainer->slots[trainer->hold.held[0].slot];
        struct keel_queue *queue = keel_engine_queue(trainer->engine);
        KEEL_TRY(keel_queue_copy(queue, slot->buffer, 0,
                                 keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS), 0,
                                 keel_flat_bytes(trainer), NULL, NULL));
        KEEL_TRY(keel_queue_copy(queue, slot->buffer, keel_flat_bytes(trainer),
                                 keel_engine_loss(trainer->engine), 0, sizeof(float), NULL, NULL));
    }
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    KEEL_TRY(keel_queue_read(queue, keel_engine_loss(trainer->engine), 0, &result->loss, sizeof(float), NULL,
                             NULL));
    KEEL_TRY(settle(trainer, step));
    return screen_board(step);
}

/* ---- the step ------------------------------------------------------------------------------------------ */

/* A snapshot still reads the weights. */
static enum keel_status await_capture(struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                      struct keel_trainer_result *result)
{
    if (step->save == NULL)
        return KEEL_OK;
    uint64_t since = keel_now_ns();
    enum keel_status captured =
        keel_save_wait_captured(step->save, keel_deadline_after_ns(trainer->stall_ns));
    result->snapshot_stall_ns = keel_now_ns() - since;
    if (captured == KEEL_OK)
        keel_hang_trust(trainer->hangs, KEEL_HANG_CAPTURE);
    return captured == KEEL_TIMEOUT ? captured : KEEL_OK; /* a save that failed is its owner's to report */
}

static enum keel_status update(struct keel_trainer *trainer, const struct keel_trainer_step *step,
                               struct keel_trainer_result *result)
{
    const struct keel_job *job = trainer->job;
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    result->learning_rate = keel_learning_rate(job, step->step);
    struct keel_engine_update request = {.learning_rate = result->learning_rate,
                                         .beta1 = job->beta1,
                                         .beta2 = job->beta2,
                                         .epsilon = job->epsilon,
                                         .momentum = job->momentum,
                                         .weight_decay = job->weight_decay,
                                         .trust = job->trust,
                                         .clip = job->clip,
                                         .step = (uint32_t)step->step,
                                         .never_skip = !isfinite(result->loss)};
    struct keel_engine_updated updated;
    enum keel_status status = KEEL_OK;
    keel_hang_enter(trainer->hangs, KEEL_HANG_UPDATE, keel_now_ns());
    if (step->group != NULL) /* the sum goes where the optimizer reads it, and a held node may lie */
        status = keel_queue_write(queue, keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS), 0,
                                  trainer->result, keel_flat_bytes(trainer), NULL, NULL);
    if (status == KEEL_OK)
        status = keel_engine_update(trainer->engine, &request, keel_deadline_after_ns(trainer->stall_ns),
                                    &updated);
    keel_hang_leave(trainer->hangs, KEEL_HANG_UPDATE, keel_now_ns());
    if (status != KEEL_OK)
        return status;
    keel_hang_trust(trainer->hangs, KEEL_HANG_UPDATE);
    result->grad_norm = updated.grad_norm;
    result->loss_scale = updated.loss_scale;
    result->skipped = updated.skipped;
    result->digest = updated.digest;
    trainer->digest = updated.digest;
    return KEEL_OK;
}

enum keel_status keel_trainer_run(struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                  struct keel_trainer_result *out)
{
    struct keel_trainer_result result = {.wishes = step->group == NULL ? wishes_now(step) : 0};
    uint64_t since = keel_now_ns();
    KEEL_TRY(compute_missing(trainer, step, &result.computed_microbatches));
    KEEL_TRY(step->group != NULL ? sum_ranks(trainer, step, &result) : sum_alone(trainer, step, &result));
    result.compute_ns = keel_now_ns() - since - result.exposed_comm_ns;
    KEEL_TRY(await_capture(trainer, step, &result));
    enum keel_status status = update(trainer, step, &result);
    if (status == KEEL_TIMEOUT) /* no way back: held nodes and weights may be half overwritten */
        return keel_fail(KEEL_DEVICE_LOST, "step %llu: the device did not end the update in time",
                         (unsigned long long)step->step);
    if (status != KEEL_OK)
        return status;
    atomic_fetch_add(trainer->progress, 1);
    if (result.computed_microbatches > 0)
        keel_hang_trust(trainer->hangs, KEEL_HANG_COMPUTE);
    keel_trainer_drop(trainer);
    *out = result;
    return KEEL_OK;
}
