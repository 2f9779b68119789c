/* engine_update.c - what is not of the graph: zeroing, the end of a shard, norm, update, digest.
 *
 * Owns the lists of keel_update_lists and what the update is told of the tiles. One launch updates all
 * of them (keel/optimizer_ops.h); what changes from step to step lies in the control block. */
#include "engine_internal.h"

#include <keel/clock.h>
#include <keel/memory.h>

static const uint64_t blocking_limit_ns = 600 * KEEL_NS_PER_S;

_Static_assert(KEEL_FLAT_ALIGN % KEEL_UPDATE_PAGE == 0, "a parameter begins with a page of the update");

/* Where an element stands in the digest: whatever the layout. */
static uint64_t digest_place(const struct keel_tile *tile)
{
    return (uint64_t)tile->param << 40;
}

/* Whether a node of a microbatch adds to the parameter's sum. A statistic that none adds to (no gradient
 * reaches its batch norm) stays as it is: a mean of nothing would take it to 0. */
static bool is_moved(const struct keel_graph *graph, uint32_t number)
{
    bool found = false;
    for (uint32_t n = 0; n < graph->node_count && !found; n++)
        for (uint32_t k = 0; k < KEEL_NODE_OUT_MAX; k++)
            found = found || keel_is_gradient(graph, graph->nodes[n].out[k], number);
    return found;
}

static void describe_tiles(const struct keel_engine *engine, struct keel_update_tensor *out)
{
    for (uint32_t i = 0; i < engine->layout.tile_count; i++) {
        const struct keel_tile *tile = &engine->layout.tiles[i];
        const struct keel_engine_param *param = &engine->layout.params[tile->param];
        enum keel_tensor_kind kind = param->decay ? KEEL_TENSOR_DECAY : KEEL_TENSOR_PLAIN;
        const struct keel_ir_param *declared = &engine->train.graph->params[tile->param];
        if (param->statistic)
            kind = is_moved(engine->train.graph, tile->param) ? KEEL_TENSOR_STATISTIC : KEEL_TENSOR_KEPT;
        out[i] = (struct keel_update_tensor){.offset = tile->offset,
                                             .count = tile->count,
                                             .first_element = digest_place(tile),
                                             .kind = kind,
                                             .momentum = declared->momentum,
                                             .tile = i};
    }
}

/* With room for what goes to the device, which must stay until it is there. */
static enum keel_status upload_tables(struct keel_engine *engine, struct keel_update_tensor *tensors,
                                      uint32_t *pages)
{
    struct keel_update_lists *update = &engine->update;
    const uint32_t count = engine->layout.tile_count;
    const uint64_t page_bytes = keel_update_page_count(engine->layout.flat_count) * sizeof *pages;
    describe_tiles(engine, tensors);
    KEEL_TRY(keel_update_find_pages(tensors, count, engine->layout.flat_count, pages));
    KEEL_TRY(keel_engine_make_buffer(engine, count * sizeof *tensors, &update->tensors));
    KEEL_TRY(keel_engine_make_buffer(engine, page_bytes, &update->pages));
    KEEL_TRY(keel_engine_make_buffer(engine, count * sizeof(float), &update->tiles));
    KEEL_TRY(
        keel_queue_write(engine->queue, update->tensors, 0, tensors, count * sizeof *tensors, NULL, NULL));
    KEEL_TRY(keel_queue_write(engine->queue, update->pages, 0, pages, page_bytes, NULL, NULL));
    return keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
}

static enum keel_status make_tables(struct keel_engine *engine)
{
    struct keel_update_tensor *tensors = NULL;
    uint32_t *pages = NULL;
    enum keel_status status = keel_alloc(engine->layout.tile_count, sizeof *tensors, (void *)&tensors);
    if (status == KEEL_OK)
        status = keel_alloc(keel_update_page_count(engine->layout.flat_count), sizeof *pages, (void *)&pages);
    if (status == KEEL_OK)
        status = upload_tables(engine, tensors, pages);
    keel_free(pages);
    keel_free(tensors);
    return status;
}

static enum keel_status emit_digest(struct keel_engine *engine)
{
    for (uint32_t i = 0; i < engine->layout.tile_count; i++) {
        const struct keel_tile *tile = &engine->layout.tiles[i];
        struct keel_digest digest = {.count = tile->count,
                                     .first_element = digest_place(tile),
                                     .x = engine->weights[i],
                                     .digest = engine->digest,
                                     .scratch = engine->scratch};
        KEEL_TRY(keel_op_digest(engine->kernels, &digest, &engine->update.digest));
    }
    return keel_launch_list_seal(&engine->update.digest, engine->kernels);
}

/* By kernels: drivers of CPUs fill with one thread. */
static enum keel_status emit_zero(struct keel_engine *engine)
{
    struct keel_fill gradients = {.count = engine->layout.flat_count, .y = engine->flat[KEEL_FLAT_GRADIENTS]};
    struct keel_fill loss = {.count = 1, .y = engine->loss};
    KEEL_TRY(keel_op_fill(engine->kernels, &gradients, &engine->update.zero));
    KEEL_TRY(keel_op_fill(engine->kernels, &loss, &engine->update.zero));
    return keel_launch_list_seal(&engine->update.zero, engine->kernels);
}

/* What a shard begins with, beside `zero`. */
static enum keel_status emit_shard(struct keel_engine *engine)
{
    struct keel_fill uses = {.count = engine->layout.uses_count, .y = engine->uses};
    struct keel_fill losses = {.y = engine->train.losses};
    if (uses.y != NULL)
        KEEL_TRY(keel_op_fill(engine->kernels, &uses, &engine->update.shard));
    if (losses.y != NULL) {
        losses.count = keel_buffer_bytes(losses.y) / sizeof(float);
        KEEL_TRY(keel_op_fill(engine->kernels, &losses, &engine->update.shard));
    }
    return keel_launch_list_seal(&engine->update.shard, engine->kernels);
}

enum keel_status keel_engine_emit_losses(struct keel_engine *engine,
                                         const struct keel_engine_program *program, struct keel_buffer *loss,
                                         struct keel_launch_list *list)
{
    for (uint32_t i = 0; program->losses != NULL && i < program->graph->loss_count; i++) {
        struct keel_add add = {.count = 1, .a = loss, .b = program->loss_slices[i], .y = loss};
        KEEL_TRY(keel_op_add(engine->kernels, &add, list));
    }
    return KEEL_OK;
}

/* gradient += use 1, += use 2 ... of the tiles of a bucket. */
static enum keel_status emit_uses(struct keel_engine *engine, uint32_t bucket, struct keel_launch_list *list)
{
    const struct keel_layout *layout = &engine->layout;
    for (uint32_t at = bucket == 0 ? 0 : layout->bucket_end[bucket - 1]; at < layout->bucket_end[bucket];
         at++) {
        const uint32_t tile = layout->order[at];
        for (uint32_t u = 0; u < layout->use_count; u++) {
            struct keel_add add = {.count = layout->uses[u].count,
                                   .a = engine->gradients[tile],
                                   .b = engine->use_slices[u],
                                   .y = engine->gradients[tile]};
            if (layout->uses[u].param == layout->tiles[tile].param)
                KEEL_TRY(keel_op_add(engine->kernels, &add, list));
        }
    }
    return KEEL_OK;
}

static enum keel_status emit_join(struct keel_engine *engine)
{
    struct keel_update_lists *update = &engine->update;
    const uint32_t buckets = engine->layout.bucket_count;
    KEEL_TRY(keel_alloc(buckets + 1, sizeof *update->join, (void *)&update->join));
    for (uint32_t b = 0; b < buckets; b++)
        KEEL_TRY(emit_uses(engine, b, &update->join[b]));
    KEEL_TRY(keel_engine_emit_losses(engine, &engine->train, engine->loss, &update->join[buckets]));
    for (uint32_t b = 0; b <= buckets; b++)
        KEEL_TRY(keel_launch_list_seal(&update->join[b], engine->kernels));
    return KEEL_OK;
}

static enum keel_status emit_norm(struct keel_engine *engine, struct keel_buffer *gradients,
                                  struct keel_launch_list *list)
{
    const struct keel_update_lists *update = &engine->update;
    struct keel_norm_tiles tiles = {.count = engine->layout.flat_count,
                                    .tensor_count = engine->layout.tile_count,
                                    .tile_count = engine->layout.tile_count,
                                    .x = gradients,
                                    .tensors = update->tensors,
                                    .pages = update->pages,
                                    .scratch = engine->scratch,
                                    .tiles = update->tiles};
    struct keel_norm norm = {.tile_count = tiles.tile_count,
                             .tiles = tiles.tiles,
                             .scratch = engine->scratch,
                             .norm = engine->norm,
                             .control = engine->control,
                             .loss_scale = engine->loss_scale};
    KEEL_TRY(keel_op_norm_tiles(engine->kernels, &tiles, list));
    KEEL_TRY(keel_op_norm(engine->kernels, &norm, list));
    return keel_launch_list_seal(list, engine->kernels);
}

static struct keel_update describe_update(const struct keel_engine *engine, struct keel_buffer *gradients)
{
    const struct keel_update_lists *update = &engine->update;
    return (struct keel_update){.optimizer = engine->optimizer,
                                .nesterov = engine->nesterov,
                                .count = engine->layout.flat_count,
                                .tensor_count = engine->layout.tile_count,
                                .w = engine->flat[KEEL_FLAT_WEIGHTS],
                                .grad = gradients,
                                .m = engine->flat[KEEL_FLAT_M],
                                .v = engine->flat[KEEL_FLAT_V],
                                .norm = engine->norm,
                                .control = engine->control,
                                .tensors = update->tensors,
                                .pages = update->pages,
                                .digest = engine->digest,
                                .scratch = update->scratch};
}

/* The tables and the scratch are there. */
static enum keel_status emit_source(struct keel_engine *engine, struct keel_buffer *gradients,
                                    struct keel_engine_source *source)
{
    const struct keel_update op = describe_update(engine, gradients);
    KEEL_TRY(emit_norm(engine, gradients, &source->norm));
    if (engine->loss_scale != NULL && !engine->fixed_scale) {
        struct keel_loss_scale scale = {.state = engine->loss_scale, .norm = engine->norm};
        KEEL_TRY(keel_op_loss_scale(engine->kernels, &scale, &source->update));
    }
    KEEL_TRY(keel_op_update(engine->kernels, &op, &source->update));
    return keel_launch_list_seal(&source->update, engine->kernels);
}

enum keel_status keel_engine_emit_update(struct keel_engine *engine)
{
    struct keel_buffer *gradients = engine->flat[KEEL_FLAT_GRADIENTS];
    KEEL_TRY(emit_digest(engine));
    if (!engine->training)
        return KEEL_OK;
    KEEL_TRY(emit_zero(engine));
    KEEL_TRY(emit_shard(engine));
    KEEL_TRY(emit_join(engine));
    KEEL_TRY(make_tables(engine));
    const struct keel_update op = describe_update(engine, gradients);
    KEEL_TRY(keel_engine_make_buffer(engine, keel_update_scratch_bytes(&op), &engine->update.scratch));
    return emit_source(engine, gradients, &engine->update.own);
}

static void source_fini(struct keel_engine_source *source)
{
    keel_launch_list_fini(&source->norm);
    keel_launch_list_fini(&source->update);
}

enum keel_status keel_engine_source_create(struct keel_engine *engine, struct keel_buffer *gradients,
                                           struct keel_engine_source **out)
{
    struct keel_engine_source *source;
    KEEL_ASSERT(engine->training &&
                keel_buffer_bytes(gradients) >= engine->layout.flat_count * sizeof(float));
    KEEL_TRY(keel_alloc(1, sizeof *source, &source));
    enum keel_status status = emit_source(engine, gradients, source);
    if (status == KEEL_OK)
        *out = source;
    else
        keel_engine_source_destroy(source);
    return status;
}

void keel_engine_source_destroy(struct keel_engine_source *source)
{
    if (source == NULL)
        return;
    source_fini(source);
    keel_free(source);
}

void keel_update_lists_fini(struct keel_update_lists *update, uint32_t bucket_count)
{
    struct keel_buffer *buffers[] = {update->tensors, update->pages, update->scratch, update->tiles};
    keel_launch_list_fini(&update->zero);
    keel_launch_list_fini(&update->shard);
    for (uint32_t b = 0; update->join != NULL && b <= bucket_count; b++)
        keel_launch_list_fini(&update->join[b]);
    keel_free(update->join);
    source_fini(&update->own);
    keel_launch_list_fini(&update->digest);
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i] != NULL)
            keel_buffer_destroy(buffers[i]);
}
