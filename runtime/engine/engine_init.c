/* engine_init.c - first weights, from the counter-based generator, drawn on the device.
 *
 * Element e of parameter number p takes number e of stream p, so the bits do not depend on the layout. */
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
    if (status == KEEL_OK) /* the slice goes next */
        status = keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
    keel_launch_list_fini(&list);
    return status;
}

static enum keel_status draw_param(struct keel_engine *engine, uint32_t number)
{
    const struct keel_engine_param *param = &engine->layout.params[number];
    struct keel_buffer *slice;
    KEEL_TRY(keel_buffer_slice(engine->flat[KEEL_FLAT_WEIGHTS], param->offset * sizeof(float),
                               param->count * sizeof(float), &slice));
    enum keel_status status =
        draw_slice(engine, &(struct keel_normal){.count = param->count,
                                                 .deviation = engine->inits[number].deviation,
                                                 .stream = number,
                                                 .y = slice,
                                                 .control = engine->control});
    keel_buffer_destroy(slice);
    return status;
}

static enum keel_status fill_param(struct keel_engine *engine, uint32_t number)
{
    const struct keel_engine_param *param = &engine->layout.params[number];
    uint32_t bits;
    memcpy(&bits, &param->fill, sizeof bits);
    return keel_queue_fill(engine->queue, engine->flat[KEEL_FLAT_WEIGHTS], param->offset * sizeof(float),
                           param->count * sizeof(float), bits, NULL, NULL);
}

enum keel_status keel_engine_initialize(struct keel_engine *engine, uint64_t seed)
{
    struct keel_control control = {.seed_lo = (uint32_t)seed, .seed_hi = (uint32_t)(seed >> 32)};
    for (uint32_t i = 0; i < KEEL_FLAT_COUNT; i++)
        if (engine->flat[i] != NULL)
            KEEL_TRY(keel_queue_fill(engine->queue, engine->flat[i], 0,
                                     engine->layout.flat_count * sizeof(float), 0, NULL, NULL));
    KEEL_TRY(keel_queue_write(engine->queue, engine->control, 0, &control, sizeof control, NULL, NULL));
    KEEL_TRY(keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns)));
    for (uint32_t i = 0; i < engine->layout.param_count; i++)
        KEEL_TRY(engine->inits[i].deviation > 0.0F ? draw_param(engine, i) : fill_param(engine, i));
    return keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
}
