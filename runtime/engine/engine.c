/* engine.c - life of an engine, what its parameters are, and facts about it.
 *
 * Owns everything in struct keel_engine but the device and the kernels. Leaves building to
 * engine_compile.c, first weights to engine_init.c and running to engine_run.c. */
#include "engine_internal.h"
#include "ops.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/transport.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t slot_wait_default_ns = 60 * KEEL_NS_PER_S;

/* ---- life ---------------------------------------------------------------------------------------------- */

/* One slot for each microbatch that may be ahead of the device; and all events that will ever be needed, so
 * that later none is allocated. */
static enum keel_status make_slots(struct keel_engine *engine)
{
    uint64_t stride = keel_round_up(engine->feed_bytes, KEEL_PAGE_BYTES);
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, stride * KEEL_ENGINE_SLOTS, (void *)&engine->staging));
    memset(engine->staging, 0, keel_size(stride * KEEL_ENGINE_SLOTS));
    struct keel_event *spare[KEEL_ENGINE_SPARE_EVENTS] = {NULL};
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < KEEL_ENGINE_SLOTS && status == KEEL_OK; i++) {
        engine->slots[i].host = engine->staging + i * stride;
        status = keel_queue_mark(engine->queue, &engine->slots[i].event);
    }
    for (uint32_t i = 0; i < KEEL_ENGINE_SPARE_EVENTS && status == KEEL_OK; i++)
        status = keel_queue_mark(engine->queue, &spare[i]);
    for (uint32_t i = 0; i < KEEL_ENGINE_SPARE_EVENTS; i++)
        keel_event_destroy(spare[i]);
    return status;
}

static enum keel_status build(struct keel_engine *engine, const struct keel_engine_config *config)
{
    uint32_t align_bytes = keel_device_info(config->device)->base_align_bytes;
    if (align_bytes > KEEL_PLACE_BYTES)
        return keel_fail(KEEL_UNSUPPORTED, "%s aligns buffers to %u bytes; the layout of parameters to %d",
                         keel_device_info(config->device)->selector, align_bytes, (int)KEEL_PLACE_BYTES);
    if (!config->plan_only)
        KEEL_TRY(keel_queue_create(config->device, &engine->queue));
    KEEL_TRY(keel_engine_compile(engine, config));
    if (config->plan_only)
        return KEEL_OK;
    const struct keel_graph *train = engine->train.graph;
    KEEL_TRY(keel_alloc(train->param_count, sizeof *engine->inits, (void *)&engine->inits));
    memcpy(engine->inits, train->params, train->param_count * sizeof *engine->inits);
    if (getenv("KEEL_PROFILE") != NULL)
        KEEL_TRY(keel_profile_create(&engine->profile));
    return make_slots(engine);
}

/* What no engine can be made of, whatever the graph. */
static enum keel_status check_config(const struct keel_engine_config *config)
{
    const int storage = (int)config->storage, optimizer = (int)config->optimizer;
    if (storage != KEEL_F32 && storage != KEEL_BF16 && storage != KEEL_F16)
        return keel_fail(KEEL_INVALID,
                         "engine: storage %d is none: KEEL_F32, KEEL_BF16 or KEEL_F16 is wanted", storage);
    if (optimizer < 0 || optimizer >= KEEL_OPTIMIZER_COUNT)
        return keel_fail(KEEL_INVALID, "engine: there is no optimizer %d", optimizer);
    if (!(config->average >= 0.0F && config->average < 1.0F))
        return keel_fail(KEEL_INVALID, "engine: an average of weights with decay %g: from 0 to below 1",
                         (double)config->average);
    if (config->tensor > KEEL_SLICES_MAX)
        return keel_fail(KEEL_INVALID, "engine: %u tensor slices; at most %d", config->tensor,
                         KEEL_SLICES_MAX);
    const uint32_t of = config->tensor != 0 ? config->tensor : 1;
    if (config->tensor_first > of || config->tensor_count > of - config->tensor_first ||
        (config->tensor_count == 0 && config->tensor_first != 0))
        return keel_fail(KEEL_INVALID, "engine: %u slices from %u on, of %u tensor slices",
                         config->tensor_count, config->tensor_first, of);
    if (config->weights_of != NULL && config->training)
        return keel_fail(KEEL_INVALID, "engine: weights of another engine are not trained");
    if (config->only_keeps && config->training)
        return keel_fail(KEEL_INVALID, "engine: what only keeps keys and values is not trained");
    if ((config->windows || config->weight_windows) && !config->in_pieces)
        return keel_fail(KEEL_INVALID, "engine: gradients or weights in windows, which owners have, are "
                                       "wanted without pieces");
    if (config->tensor > 1 &&
        (config->optimizer == KEEL_OPTIMIZER_LARS || config->optimizer == KEEL_OPTIMIZER_LAMB))
        return keel_fail(KEEL_INVALID,
                         "train.optimizer = lars and lamb scale by norms of whole tensors, which "
                         "job.tensor = %u splits: use another optimizer, or job.tensor = 1",
                         config->tensor);
    if (config->in_pieces &&
        (config->optimizer == KEEL_OPTIMIZER_LARS || config->optimizer == KEEL_OPTIMIZER_LAMB))
        return keel_fail(KEEL_INVALID, "train.optimizer = lars and lamb scale by norms of whole tensors, of "
                                       "which parallel.zero gives a rank pieces: use another optimizer, or "
                                       "parallel.zero = 0");
    int exponent;
    if (config->loss_scale == 0.0F || (config->loss_scale >= 1.0F && isfinite(config->loss_scale) &&
                                       frexpf(config->loss_scale, &exponent) <= 0.5F))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "engine: a loss scale of %g: a power of two is wanted, 1 at least, or 0",
                     (double)config->loss_scale);
}

enum keel_status keel_engine_create(const struct keel_engine_config *config, struct keel_engine **out)
{
    struct keel_engine *engine = NULL;
    KEEL_TRY(check_config(config));
    KEEL_TRY(keel_alloc(1, sizeof *engine, (void *)&engine));
    engine->device = config->device;
    engine->kernels = config->kernels;
    engine->microbatches = config->microbatches != 0 ? config->microbatches : 1;
    engine->tensor.of = config->tensor != 0 ? config->tensor : 1;
    engine->tensor.first = config->tensor_first;
    engine->tensor.count = config->tensor_count != 0 ? config->tensor_count : engine->tensor.of;
    engine->storage = config->storage;
    engine->fixed_scale = config->loss_scale > 0.0F;
    engine->optimizer = config->optimizer;
    engine->nesterov = config->nesterov;
    engine->average = config->training ? config->average : 0.0F;
    engine->training = config->training;
    engine->weights_of = config->weights_of;
    engine->check_products = config->check_products;
    engine->plan_only = config->plan_only;
    engine->share_gradients = config->share_gradients;
    engine->in_pieces = config->in_pieces;
    engine->windowed = config->windows;
    engine->weights_windowed = config->weight_windows;
    engine->ahead = config->ahead;
    engine->checks.align_bytes = KEEL_PLACE_BYTES;
    engine->slot_wait_ns = config->slot_wait_ns != 0 ? config->slot_wait_ns : slot_wait_default_ns;
    enum keel_status status = build(engine, config);
    if (status != KEEL_OK) {
        keel_engine_destroy(engine);
        return status;
    }
    *out = engine;
    return KEEL_OK;
}

static void destroy_slices(struct keel_buffer **slices, uint32_t count)
{
    for (uint32_t i = 0; slices != NULL && i < count; i++)
        if (slices[i] != NULL)
            keel_buffer_destroy(slices[i]);
    keel_free(slices);
}

static void destroy_inputs(struct keel_engine *engine)
{
    for (uint32_t i = 0; i < engine->input_count; i++) {
        keel_free((void *)(uintptr_t)engine->inputs[i].facts.name);
        if (engine->inputs[i].slice != NULL)
            keel_buffer_destroy(engine->inputs[i].slice);
    }
    keel_free(engine->inputs);
}

static void destroy_buffers(struct keel_engine *engine)
{
    struct keel_buffer *buffers[] = {/* slices first */
                                     engine->control,
                                     engine->feed,
                                     engine->arena,
                                     engine->workspace,
                                     engine->scratch,
                                     engine->uses,
                                     engine->loss,
                                     engine->eval_loss,
                                     engine->weights_windowed ? engine->loss_scale : NULL,
                                     engine->norm,
                                     engine->digest,
                                     engine->weights_of == NULL ? engine->flat[KEEL_FLAT_WEIGHTS] : NULL,
                                     engine->flat[KEEL_FLAT_GRADIENTS],
                                     engine->flat[KEEL_FLAT_M],
                                     engine->flat[KEEL_FLAT_V],
                                     engine->flat[KEEL_FLAT_EMA]};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i] != NULL)
            keel_buffer_destroy(buffers[i]);
    keel_transport_free(engine->gradients_memory);
}

void keel_engine_destroy(struct keel_engine *engine)
{
    if (engine == NULL)
        return;
    if (engine->profile != NULL)
        keel_profile_print(engine->profile);
    keel_free(engine->profile);
    for (uint32_t i = 0; i < KEEL_ENGINE_SLOTS; i++)
        keel_event_destroy(engine->slots[i].event);
    if (engine->queue != NULL)
        keel_queue_destroy(engine->queue); /* waits: nothing below is used by the device any more */
    keel_update_lists_fini(&engine->update, engine->train.list_count);
    keel_program_fini(&engine->train);
    keel_program_fini(&engine->eval);
    keel_gemm_checksums_fini(&engine->checks);
    destroy_slices(engine->weights, engine->layout.tile_count);
    destroy_slices(engine->gradients, engine->layout.tile_count);
    destroy_slices(engine->use_slices, engine->layout.use_count);
    keel_windows_fini(&engine->windows, engine->layout.bucket_count);
    keel_weight_windows_fini(&engine->weight_windows);
    destroy_inputs(engine);
    destroy_buffers(engine);
    keel_layout_fini(&engine->layout);
    keel_free(engine->inits);
    keel_free(engine->staging);
    keel_free(engine);
}

/* ---- parameters ---------------------------------------------------------------------------------------- */

uint32_t keel_engine_param_count(const struct keel_engine *engine)
{
    return engine->layout.param_count;
}

const struct keel_engine_param *keel_engine_param(const struct keel_engine *engine, uint32_t index)
{
    KEEL_ASSERT(index < engine->layout.param_count);
    return &engine->layout.params[index];
}

uint32_t keel_engine_tile_count(const struct keel_engine *engine)
{
    return engine->layout.tile_count;
}

const struct keel_tile *keel_engine_tile(const struct keel_engine *engine, uint32_t index)
{
    KEEL_ASSERT(index < engine->layout.tile_count);
    return &engine->layout.tiles[index];
}

uint32_t keel_engine_input_count(const struct keel_engine *engine)
{
    return engine->input_count;
}

const struct keel_engine_input *keel_engine_input(const struct keel_engine *engine, uint32_t index)
{
    KEEL_ASSERT(index < engine->input_count);
    return &engine->inputs[index].facts;
}

struct keel_buffer *keel_engine_flat(struct keel_engine *engine, enum keel_engine_flat which)
{
    KEEL_ASSERT(which < KEEL_FLAT_COUNT);
    return which == KEEL_FLAT_WEIGHTS && engine->weights_windowed ? NULL : engine->flat[which];
}

uint64_t keel_engine_flat_count(const struct keel_engine *engine)
{
    return engine->layout.flat_count;
}

uint32_t keel_engine_bucket_count(const struct keel_engine *engine)
{
    return engine->layout.bucket_count;
}

uint32_t keel_engine_all_bucket_count(const struct keel_engine *engine)
{
    return engine->layout.all_buckets;
}

const struct keel_engine_bucket *keel_engine_bucket(const struct keel_engine *engine, uint32_t index)
{
    KEEL_ASSERT(index < engine->layout.all_buckets);
    return &engine->layout.buckets[index];
}

struct keel_queue *keel_engine_queue(struct keel_engine *engine)
{
    return engine->queue;
}

struct keel_buffer *keel_engine_loss(struct keel_engine *engine)
{
    return engine->loss;
}

/* ---- facts --------------------------------------------------------------------------------------------- */

/* What is neither a flat buffer, nor a piece of one, nor activations, accumulators or windows. */
static uint64_t table_bytes(const struct keel_engine *engine)
{
    uint64_t rest = engine->planned_bytes;
    if (engine->plan_only)
        return 0;
    for (uint32_t i = 0; i < KEEL_FLAT_COUNT; i++)
        if (engine->flat[i] != NULL && (i != KEEL_FLAT_GRADIENTS || engine->gradients_memory == NULL) &&
            (i != KEEL_FLAT_WEIGHTS || engine->weights_of == NULL))
            rest -= keel_buffer_bytes(engine->flat[i]);
    return rest - engine->pieces_flat_bytes - keel_engine_arena_bytes(engine) -
           engine->layout.uses_count * sizeof(float);
}

void keel_engine_facts(const struct keel_engine *engine, struct keel_engine_facts *out)
{
    *out = (struct keel_engine_facts){
        .planned_peak_bytes = engine->planned_bytes,
        .table_bytes = table_bytes(engine),
        .shared_bytes =
            engine->gradients_memory == NULL ? 0 : keel_buffer_bytes(engine->flat[KEEL_FLAT_GRADIENTS]),
        .activation_bytes = keel_engine_arena_bytes(engine),
        .accumulator_bytes = engine->layout.uses_count * sizeof(float),
        .window_bytes = engine->windows.count * sizeof(float),
        .weight_window_bytes = engine->weight_windows.count * sizeof(float),
        .commands_update = engine->update.own.norm.count + engine->update.own.update.count};
    for (uint32_t i = 0; i < engine->layout.param_count; i++) {
        out->parameters += engine->layout.params[i].statistic ? 0 : engine->layout.params[i].count;
        out->frozen += engine->layout.params[i].frozen ? engine->layout.params[i].count : 0;
    }
    const struct keel_engine_program *program = engine->training ? &engine->train : &engine->eval;
    out->gather_count = engine->train.gather_count;
    for (uint32_t g = 0; g < engine->train.gather_count; g++)
        out->gathered_bytes += engine->layout.buckets[engine->train.gathers[g].bucket].count * sizeof(float);
    out->flops_per_microbatch = keel_graph_flops(program->graph);
    for (uint32_t i = 0; i < program->graph->node_count; i++)
        out->moved_per_microbatch += keel_op_bytes(program->graph, &program->graph->nodes[i]);
    for (uint32_t i = 0; i < engine->train.list_count; i++)
        out->commands_train += engine->train.lists[i].count;
    for (uint32_t i = 0; i < engine->eval.list_count; i++)
        out->commands_eval += engine->eval.lists[i].count;
}
