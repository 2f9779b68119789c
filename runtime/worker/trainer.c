/* trainer.c - creation, warm-up, and one attempt at a step.
 *
 * An attempt is a tape (tape.h): it follows from which shards this rank carries and which nodes it still
 * holds, is checked, and run (tape_run.c). What an attempt that failed has finished stays held for the next
 * one. */
#include "model.h"
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <string.h>

#define PROBE_RATE 1e-3F /* of the warm-up's update: any that moves the weights */

/* ---- creation ------------------------------------------------------------------------------------------ */

enum keel_status keel_trainer_check_memory(const struct keel_job *job, const struct keel_engine *engine)
{
    struct keel_engine_facts facts;
    keel_engine_facts(engine, &facts);
    const uint64_t counted = facts.planned_peak_bytes - facts.table_bytes;
    if (job->parallel.memory_bytes == 0 || counted <= job->parallel.memory_bytes)
        return KEEL_OK;
    return keel_fail(
        KEEL_NO_MEMORY,
        "parallel.memory = %llu: the engine of a rank takes %llu bytes, with what it holds of "
        "pieces and without %llu of inputs, tables and workspace of kernels; keel plan lists plans "
        "that take less",
        (unsigned long long)job->parallel.memory_bytes, (unsigned long long)counted,
        (unsigned long long)facts.table_bytes);
}

enum keel_status keel_trainer_build_engine(const struct keel_job *job, const struct keel_data *data,
                                           struct keel_engine_config config, struct keel_engine **out)
{
    struct keel_graph *graph;
    struct keel_engine *engine = NULL;
    KEEL_TRY(keel_graph_create(&graph));
    config.graph = graph;
    config.microbatches = job->microbatches * job->shards;
    config.tensor = job->tensor;
    config.bucket_bytes = job->parallel.bucket_bytes;
    config.storage = (enum keel_dtype)job->storage;
    config.loss_scale = job->loss_scale;
    config.optimizer = (enum keel_optimizer)job->optimizer;
    config.nesterov = job->nesterov;
    config.average = job->ema;
    config.training = true;
    config.check_products = job->check_products;
    config.in_pieces = job->parallel.zero > KEEL_ZERO_NONE;
    config.windows = job->parallel.zero > KEEL_ZERO_OPTIMIZER && job->microbatches == 1;
    config.weight_windows = job->parallel.zero >= KEEL_ZERO_WEIGHTS;
    config.ahead = job->parallel.ahead;
    enum keel_status status = keel_model_build(graph, job, data);
    if (status == KEEL_OK)
        status = keel_engine_create(&config, &engine);
    keel_graph_destroy(graph);
    if (status == KEEL_OK && !config.plan_only)
        status = keel_trainer_check_memory(job, engine);
    if (status == KEEL_OK)
        *out = engine;
    else
        keel_engine_destroy(engine);
    return status;
}

static enum keel_status build_engine(struct keel_trainer *trainer, const struct keel_trainer_config *from)
{
    const struct keel_engine_config config = {.device = trainer->device,
                                              .kernels = trainer->kernels,
                                              .tensor_first = trainer->tensor.first,
                                              .tensor_count = trainer->tensor.count,
                                              .share_gradients = trainer->job->ranks > 1,
                                              .dump_directory = from->dump_directory,
                                              .passes_off = from->passes_off,
                                              .slot_wait_ns = trainer->stall_ns};
    return keel_trainer_build_engine(trainer->job, trainer->data, config, &trainer->engine);
}

struct keel_engine_bucket keel_trainer_piece(const struct keel_trainer *trainer, uint32_t piece)
{
    KEEL_ASSERT(piece <= trainer->bucket_count);
    if (piece == trainer->bucket_count)
        return (struct keel_engine_bucket){.offset = trainer->summed_count, .count = 1};
    return *keel_engine_bucket(trainer->engine, piece);
}

enum keel_status keel_trainer_slice_buckets(const struct keel_trainer *trainer, struct keel_buffer *flat,
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

/* What is exchanged at the end of a shard alone is what a microbatch with `more` does not. */
enum keel_status keel_trainer_list_segments(const struct keel_engine *engine, struct keel_tape_segment **out,
                                            uint32_t *out_count)
{
    struct keel_tape_segment *segments;
    *out_count = keel_engine_segment_count(engine);
    KEEL_TRY(keel_alloc(*out_count, sizeof *segments, &segments));
    for (uint32_t s = 0; s < *out_count; s++) {
        bool joins;
        const bool any = keel_engine_segment_exchange(engine, s, &joins) != NULL;
        segments[s] = (struct keel_tape_segment){.bucket = keel_engine_segment_bucket(engine, s),
                                                 .exchanges = any && !joins,
                                                 .exchanges_last = any && joins};
    }
    *out = segments;
    return KEEL_OK;
}

static enum keel_status slice_gradients(struct keel_trainer *trainer)
{
    struct keel_buffer *flat = keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS);
    trainer->gradient_slices[trainer->bucket_count] = keel_engine_loss(trainer->engine);
    for (uint32_t b = 0; b < trainer->bucket_count; b++)
        KEEL_TRY(keel_buffer_slice(flat, keel_engine_gradient_at(trainer->engine, b) * sizeof(float),
                                   keel_engine_bucket(trainer->engine, b)->count * sizeof(float),
                                   &trainer->gradient_slices[b]));
    return KEEL_OK;
}

static enum keel_status allocate(struct keel_trainer *trainer)
{
    size_t buckets = trainer->bucket_count;
    KEEL_TRY(allocate_batch(trainer));
    KEEL_TRY(keel_trainer_find_tiles(trainer));
    KEEL_TRY(keel_alloc(buckets + 1, sizeof(struct keel_buffer *), &trainer->gradient_slices));
    KEEL_TRY(keel_alloc(buckets, sizeof(struct keel_event *), &trainer->bucket_events));
    KEEL_TRY(keel_alloc(buckets, sizeof(struct keel_device_operation *), &trainer->sums));
    KEEL_TRY(keel_alloc(buckets + 4, sizeof(struct keel_operation *), &trainer->operations));
    KEEL_TRY(keel_compressed_sums_create(trainer));
    trainer->owned.on = trainer->job->parallel.zero > KEEL_ZERO_NONE;
    if (trainer->owned.on)
        KEEL_TRY(keel_alloc(keel_size(keel_engine_page_count(trainer->engine)), sizeof(float),
                            &trainer->owned.squares));
    KEEL_TRY(keel_tensor_prepare(trainer));
    KEEL_TRY(keel_gathered_prepare(trainer));
    if (keel_trainer_by_segments(trainer))
        KEEL_TRY(keel_trainer_list_segments(trainer->engine, &trainer->segments, &trainer->segment_count));
    return slice_gradients(trainer);
}

/* The engine, and all that is of its sizes. */
static enum keel_status build_rest(struct keel_trainer *trainer, const struct keel_trainer_config *config)
{
    KEEL_TRY(build_engine(trainer, config));
    trainer->flat_count = keel_engine_flat_count(trainer->engine);
    trainer->bucket_count = keel_engine_bucket_count(trainer->engine);
    const struct keel_engine_bucket *last = keel_engine_bucket(trainer->engine, trainer->bucket_count - 1);
    trainer->summed_count = last->offset + last->count;
    trainer->hold.shard_count = trainer->job->shards;
    return allocate(trainer);
}

static enum keel_status build(struct keel_trainer *trainer, const struct keel_trainer_config *config)
{
    struct keel_kernels_options options = {.numerics = KEEL_CANONICAL};
    if (config->kernels != NULL)
        options = *config->kernels;
    options.numerics = (enum keel_class)trainer->job->numerics;
    KEEL_TRY(keel_kernels_create_with(trainer->device, &options, &trainer->kernels));
    return build_rest(trainer, config);
}

enum keel_status keel_trainer_create(const struct keel_trainer_config *config, struct keel_trainer **out)
{
    KEEL_ASSERT(config->job->shards <= KEEL_HOLD_NODES_MAX);
    struct keel_trainer *trainer;
    KEEL_TRY(keel_alloc(1, sizeof *trainer, &trainer));
    trainer->job = config->job;
    trainer->data = config->data;
    trainer->device = config->device;
    trainer->passes_off = config->passes_off;
    trainer->stall_ns = config->stall_ns;
    trainer->hangs = config->hangs;
    trainer->progress = config->progress;
    trainer->tensor.first = config->tensor_first;
    trainer->tensor.count = config->tensor_count;
    trainer->phase = config->phase;
    enum keel_status status = build(trainer, config);
    if (status != KEEL_OK) {
        keel_trainer_destroy(trainer);
        return status;
    }
    *out = trainer;
    return KEEL_OK;
}

static void forget_events(struct keel_trainer *trainer)
{
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        keel_event_destroy(trainer->bucket_events[b]);
        trainer->bucket_events[b] = NULL;
    }
}

/* All but the kernels: what build_rest made. */
static void tear_down(struct keel_trainer *trainer)
{
    keel_device_collectives_free(trainer->collectives);
    if (trainer->bucket_events != NULL)
        forget_events(trainer);
    keel_partial_buffers_destroy(trainer);
    keel_compressed_sums_destroy(trainer);
    keel_owned_destroy(trainer);
    keel_gathered_destroy(trainer);
    keel_free(trainer->owned.squares);
    for (uint32_t b = 0; trainer->gradient_slices != NULL && b < trainer->bucket_count; b++)
        if (trainer->gradient_slices[b] != NULL)
            keel_buffer_destroy(trainer->gradient_slices[b]);
    keel_tensor_destroy(trainer);
    keel_free(trainer->segments);
    keel_engine_destroy(trainer->engine);
    keel_free(trainer->gradient_slices);
    keel_free(trainer->bucket_tiles);
    keel_free(trainer->bucket_events);
    keel_free(trainer->sums);
    keel_free(trainer->operations);
    keel_free(trainer->records);
    for (uint32_t i = 0; i < KEEL_DATA_INPUTS_MAX; i++)
        keel_free(trainer->inputs[i]);
    keel_free(trainer->logits);
    keel_free(trainer->row);
}

void keel_trainer_destroy(struct keel_trainer *trainer)
{
    if (trainer == NULL)
        return;
    tear_down(trainer);
    keel_kernels_destroy(trainer->kernels);
    keel_tape_fini(&trainer->tape);
    keel_free(trainer);
}

/* What was begun with the job stays; all else is made again, as when the trainer was made. */
enum keel_status keel_trainer_cut(struct keel_trainer *trainer, uint32_t first, uint32_t count)
{
    const struct keel_trainer_config config = {.passes_off = trainer->passes_off};
    struct keel_trainer old = *trainer;
    if (count == trainer->tensor.count && (count == 0 || first == trainer->tensor.first))
        return KEEL_OK;
    keel_hang_enter(trainer->hangs, KEEL_HANG_WARM, keel_now_ns());
    tear_down(trainer);
    *trainer = (struct keel_trainer){.job = old.job,
                                     .data = old.data,
                                     .device = old.device,
                                     .kernels = old.kernels,
                                     .passes_off = old.passes_off,
                                     .stall_ns = old.stall_ns,
                                     .hangs = old.hangs,
                                     .progress = old.progress,
                                     .phase = old.phase,
                                     .probe = old.probe,
                                     .tape = old.tape,
                                     .tensor = {.first = first, .count = count}};
    enum keel_status status = build_rest(trainer, &config);
    keel_hang_leave(trainer->hangs, KEEL_HANG_WARM, keel_now_ns());
    return status;
}

void keel_trainer_digest_parts(const struct keel_trainer *trainer, uint64_t *out_part, uint64_t *out_shared)
{
    *out_part = trainer->digest;
    *out_shared = trainer->tensor.shared;
}

struct keel_kernels *keel_trainer_kernels(struct keel_trainer *trainer)
{
    return trainer->kernels;
}

uint64_t keel_trainer_table_bytes(const struct keel_trainer *trainer)
{
    struct keel_engine_facts facts;
    keel_engine_facts(trainer->engine, &facts);
    uint64_t bytes = facts.table_bytes + keel_owned_digest_bytes(trainer->owned.now.digest) +
                     keel_owned_digest_bytes(trainer->owned.before.digest);
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++)
        bytes += trainer->slots[i].flat.buffer != NULL ? KEEL_LOSS_FLOATS * sizeof(float) : 0;
    return bytes;
}

uint64_t keel_trainer_shared_bytes(const struct keel_trainer *trainer)
{
    struct keel_engine_facts facts;
    keel_engine_facts(trainer->engine, &facts);
    uint64_t bytes = facts.shared_bytes;
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++)
        if (trainer->slots[i].flat.memory != NULL)
            bytes += keel_buffer_bytes(trainer->slots[i].flat.buffer);
    return bytes;
}

struct keel_engine *keel_trainer_engine(struct keel_trainer *trainer)
{
    return trainer->engine;
}

/* Of the weights that are here between steps, to trainer->digest. */
static enum keel_status digest_now(struct keel_trainer *trainer)
{
    if (trainer->gathered.on)
        return keel_gathered_own_digest(trainer, &trainer->digest, &trainer->tensor.shared);
    KEEL_TRY(
        keel_engine_digest(trainer->engine, keel_deadline_after_ns(trainer->stall_ns), &trainer->digest));
    trainer->tensor.shared = keel_engine_digest_shared(trainer->engine);
    return KEEL_OK;
}

enum keel_status keel_trainer_digest(struct keel_trainer *trainer, uint64_t *out)
{
    keel_hang_enter(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    enum keel_status status = digest_now(trainer);
    keel_hang_leave(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    if (status == KEEL_OK)
        *out = trainer->digest;
    return status;
}

enum keel_status keel_trainer_initialize(struct keel_trainer *trainer)
{
    keel_hang_enter(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    enum keel_status status = trainer->gathered.on
                                  ? keel_gathered_initialize(trainer)
                                  : keel_engine_initialize(trainer->engine, trainer->job->seed);
    if (status == KEEL_OK) /* a step looks whether they are still what they were */
        status = digest_now(trainer);
    keel_hang_leave(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    return status;
}

static enum keel_status warm_microbatch(struct keel_trainer *trainer, const struct keel_engine_batch *batch)
{
    return keel_trainer_by_segments(trainer) ? keel_tensor_pretend(trainer, batch)
                                             : keel_engine_microbatch(trainer->engine, batch);
}

static enum keel_status run_all_once(struct keel_trainer *trainer)
{
    const struct keel_job *job = trainer->job;
    uint64_t deadline_ns = keel_deadline_after_ns(trainer->stall_ns);
    KEEL_TRY(keel_data_train_batch(trainer->data, 0, 0, 1, trainer->inputs));
    struct keel_engine_batch batch = {.inputs = keel_trainer_inputs(trainer), .seed = job->seed};
    struct keel_engine_update request = {.settings = job->update, .learning_rate = PROBE_RATE};
    struct keel_engine_updated updated;
    float loss;
    if (!trainer->gathered.on)
        KEEL_TRY(keel_engine_initialize(trainer->engine, job->seed));
    KEEL_TRY(keel_engine_zero(trainer->engine));
    enum keel_status status = KEEL_OK;
    if (trainer->owned.on) {
        status = keel_owned_probe(trainer, &batch, &request);
    } else {
        KEEL_TRY(warm_microbatch(trainer, &batch));
        if (trainer->tensor.count > 0)
            KEEL_TRY(keel_tensor_pretend_norm(trainer));
        status = keel_engine_update(trainer->engine, &request, deadline_ns, &updated);
    }
    if (status != KEEL_OK && status != KEEL_DIVERGED) /* which the first step will say, if it is so */
        return status;
    if (keel_trainer_by_segments(trainer))
        KEEL_TRY(keel_tensor_pretend_rest(trainer, &batch, deadline_ns));
    else
        KEEL_TRY(keel_engine_eval(trainer->engine, &batch, deadline_ns, &loss));
    trainer->probe = trainer->digest; /* of pieces that are gone now */
    return trainer->gathered.on ? KEEL_OK : keel_engine_digest(trainer->engine, deadline_ns, &trainer->probe);
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
    KEEL_TRY(warm_microbatch(trainer, &batch));
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

/* ---- a step -------------------------------------------------------------------------------------------- */

void keel_trainer_drop(struct keel_trainer *trainer)
{
    trainer->hold.count = 0;
}

/* Events and held nodes may be let go only when no command of the last attempt looks at them. */
enum keel_status keel_trainer_leave_group(struct keel_trainer *trainer)
{
    struct keel_device_collectives_facts facts;
    KEEL_TRY(keel_tensor_leave_group(trainer));
    if (trainer->collectives == NULL)
        return KEEL_OK;
    keel_trainer_sum_facts(trainer, &facts);
    keel_log(KEEL_LOG_DEBUG, "%llu sums: %llu bytes where they lay, %llu read from the device, %llu written",
             (unsigned long long)facts.operations, (unsigned long long)facts.mapped_bytes,
             (unsigned long long)facts.device_to_host_bytes, (unsigned long long)facts.host_to_device_bytes);
    keel_hang_enter(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    enum keel_status status =
        keel_device_collectives_reset(trainer->collectives, keel_deadline_after_ns(trainer->stall_ns));
    keel_hang_leave(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    if (status != KEEL_OK)
        return keel_fail(KEEL_DEVICE_LOST, "the device did not end what sums had it do");
    return KEEL_OK;
}

void keel_trainer_sum_facts(const struct keel_trainer *trainer, struct keel_device_collectives_facts *out)
{
    *out = (struct keel_device_collectives_facts){.operations = 0};
    if (trainer->collectives != NULL)
        keel_device_collectives_facts(trainer->collectives, out);
}

/* All positions have copies of their shares, or none: some may have none of others. */
static bool has_copies(const struct keel_owned_layout *layout)
{
    return layout->copy_count > 0;
}

/* The tape of this attempt, and all that it needs. */
static enum keel_status prepare(struct keel_tape_run *run)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_trainer_step *step = run->step;
    struct keel_tape_config config = {.bucket_count = trainer->bucket_count,
                                      .microbatches = trainer->job->microbatches,
                                      .shard_count = trainer->job->shards,
                                      .shard_position = step->shard_position,
                                      .position = step->position,
                                      .grouped = step->group != NULL || trainer->owned.on,
                                      .in_pieces = trainer->owned.on,
                                      .shadowed = trainer->owned.on && has_copies(&trainer->owned.now),
                                      .compressed = trainer->compressed.on,
                                      .sharing = trainer->tensor.count > 0,
                                      .segments = trainer->segments,
                                      .segment_count = trainer->segment_count,
                                      .waits = keel_engine_window_waits(trainer->engine),
                                      .held = &trainer->hold};
    if (trainer->owned.on) {
        const struct keel_owned_layout *now = &trainer->owned.now;
        KEEL_ASSERT(now->complete && now->step == step->step && now->owners.position == step->position &&
                    now->owners.of.count == step->rank_count);
        trainer->owned.now.reduced = false; /* until this attempt has got so far */
    }
    if (trainer->hold_step != step->step)
        keel_trainer_drop(trainer);
    trainer->hold_step = step->step;
    trainer->tensor.ready = (struct keel_ready_step){.is = false};
    keel_hold_keep(&trainer->hold, step->shard_position, step->position);
    forget_events(trainer);
    config.gathers = keel_engine_gathers(trainer->engine, false, &config.gather_count);
    if (trainer->gathered.on)
        KEEL_TRY(keel_gathered_rounds(run, &config.rounds));
    KEEL_TRY(keel_tape_reserve(&trainer->tape, keel_tape_bound(&config)));
    keel_tape_make(&trainer->tape, &config);
    KEEL_TRY(keel_tape_check(&trainer->tape, &config));
    if (config.compressed)
        return keel_compressed_sums_prepare(trainer, config.grouped);
    KEEL_TRY(keel_partial_buffers_prepare(run));
    return step->group != NULL ? keel_tape_prepare_sums(trainer) : KEEL_OK;
}

enum keel_status keel_trainer_run(struct keel_trainer *trainer, const struct keel_trainer_step *step,
                                  struct keel_trainer_result *out)
{
    struct keel_tape_run run = {.trainer = trainer, .step = step, .section = -1, .begun_ns = keel_now_ns()};
    KEEL_TRY(prepare(&run));
    KEEL_TRY(keel_tape_run(&run));
    run.result.computed_microbatches = trainer->tape.shards_computed * trainer->job->microbatches;
    keel_hang_trust(trainer->hangs, KEEL_HANG_UPDATE);
    if (run.result.computed_microbatches > 0)
        keel_hang_trust(trainer->hangs, KEEL_HANG_COMPUTE);
    keel_trainer_drop(trainer);
    *out = run.result;
    return KEEL_OK;
}
