/* engine_init.c - first weights, from the counter-based generator, drawn on the device.
 *
 * Element e of parameter number p takes number e of stream p, so the bits do not depend on the layout. What a
 * model brings its own first values for is not drawn. */
#include "engine_internal.h"

#include <keel/clock.h>
#include <string.h>

static const uint64_t blocking_limit_ns = 600 * KEEL_NS_PER_S; /* keel_engine_initialize has no deadline */

/* One launch, built for this once: weights are drawn at the beginning of a run and never again. */
static enum keel_status draw_slice(struct keel_engine *engine, const struct keel_normal *op)
{
    struct keel_launch_list list = {.items = NULL};
    enum keel_status status = keel_op_normal(engine->kernels, op, &list);
    if (status == KEEL_OK)
        status = keel_launch_list_run(&list, engine->queue);
    if (status == KEEL_OK) /* the list goes next */
        status = keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
    keel_launch_list_fini(&list);
    return status;
}

static enum keel_status draw_tile(struct keel_engine *engine, uint32_t index)
{
    const struct keel_tile *tile = &engine->layout.tiles[index];
    return draw_slice(engine, &(struct keel_normal){.count = tile->count,
                                                    .deviation = engine->inits[tile->param].deviation,
                                                    .stream = tile->param,
                                                    .slice = engine->layout.params[tile->param].place,
                                                    .y = engine->weights[index],
                                                    .control = engine->control});
}

static enum keel_status fill_tile(struct keel_engine *engine, uint32_t index)
{
    const struct keel_tile *tile = &engine->layout.tiles[index];
    uint32_t bits;
    memcpy(&bits, &engine->layout.params[tile->param].fill, sizeof bits);
    return keel_queue_fill(engine->queue, engine->flat[KEEL_FLAT_WEIGHTS],
                           keel_engine_weight_of_tile(engine, index) * sizeof(float),
                           tile->count * sizeof(float), bits, NULL, NULL);
}

/* What the model brings: rows of the part that lies here, from where they stand in the whole. */
static enum keel_status write_tile(struct keel_engine *engine, uint32_t index)
{
    const struct keel_tile *tile = &engine->layout.tiles[index];
    const struct keel_random_slice *place = &engine->layout.params[tile->param].place;
    const char *values = engine->inits[tile->param].values;
    const uint64_t row = place->row == 0 || place->row > tile->count ? tile->count : place->row,
                   to = keel_engine_weight_of_tile(engine, index);
    for (uint64_t done = 0; done < tile->count; done += row) {
        const uint64_t count = tile->count - done < row ? tile->count - done : row,
                       from = place->first + done / row * place->stride;
        KEEL_TRY(keel_queue_write(engine->queue, engine->flat[KEEL_FLAT_WEIGHTS], (to + done) * sizeof(float),
                                  values + from * sizeof(float), count * sizeof(float), NULL, NULL));
    }
    return keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
}

/* The tile's first weights; the seed is in the control block. */
static enum keel_status begin_tile(struct keel_engine *engine, uint32_t index)
{
    if (engine->inits[engine->layout.tiles[index].param].values != NULL)
        return write_tile(engine, index);
    const bool drawn = engine->inits[engine->layout.tiles[index].param].deviation > 0.0F;
    return drawn ? draw_tile(engine, index) : fill_tile(engine, index);
}

static enum keel_status write_seed(struct keel_engine *engine, uint64_t seed)
{
    const struct keel_control control = {.seed_lo = (uint32_t)seed, .seed_hi = (uint32_t)(seed >> 32)};
    KEEL_TRY(keel_queue_write(engine->queue, engine->control, 0, &control, sizeof control, NULL, NULL));
    return keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
}

enum keel_status keel_engine_initialize(struct keel_engine *engine, uint64_t seed)
{
    KEEL_ASSERT(!engine->weights_windowed);
    for (uint32_t i = 0; i < KEEL_FLAT_COUNT; i++)
        if (engine->flat[i] != NULL)
            KEEL_TRY(keel_queue_fill(engine->queue, engine->flat[i], 0, keel_buffer_bytes(engine->flat[i]), 0,
                                     NULL, NULL));
    KEEL_TRY(write_seed(engine, seed));
    for (uint32_t i = 0; i < engine->layout.tile_count; i++)
        KEEL_TRY(begin_tile(engine, i));
    return keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
}

enum keel_status keel_engine_draw(struct keel_engine *engine, uint32_t bucket, uint64_t seed)
{
    const uint64_t bytes = engine->layout.buckets[bucket].count * sizeof(float);
    KEEL_ASSERT(engine->weights_windowed && bucket < engine->layout.bucket_count);
    KEEL_TRY(keel_queue_fill(engine->queue, engine->flat[KEEL_FLAT_WEIGHTS],
                             engine->weight_windows.at[bucket] * sizeof(float), bytes, 0, NULL, NULL));
    KEEL_TRY(write_seed(engine, seed));
    for (uint32_t i = 0; i < engine->layout.tile_count; i++)
        if (keel_bucket_of_tile(&engine->layout, i) == bucket)
            KEEL_TRY(begin_tile(engine, i));
    return keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
}
