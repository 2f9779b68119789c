/* engine_init.c - first weights, from the counter-based generator.
 *
 * Element e of parameter number p takes number e of stream p, so the bits depend neither on the layout nor
 * on how many threads draw them. */
#include "engine_internal.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <string.h>

static const uint64_t blocking_limit_ns = 600 * KEEL_NS_PER_S; /* keel_engine_initialize has no deadline */
enum { CHUNK_COUNT = 1 << 22, THREADS_MAX = 16, THREAD_COUNT_MIN = 1 << 14 };

/* One thread's part of a chunk. */
struct draw {
    struct keel_thread thread;
    const struct keel_control *control;
    uint32_t stream;
    float deviation;
    uint64_t first, count; /* elements of the parameter */
    float *out;
};

static void *draw_part(void *argument)
{
    struct draw *draw = argument;
    for (uint64_t i = 0; i < draw->count; i++)
        draw->out[i] = keel_random_normal(draw->control, draw->stream, draw->first + i) * draw->deviation;
    return NULL;
}

/* Split among threads; this one draws the first part, and what a thread that cannot start would have. */
static void draw_chunk(const struct draw *whole)
{
    struct draw parts[THREADS_MAX];
    uint32_t threads = keel_cpu_count() < THREADS_MAX ? keel_cpu_count() : THREADS_MAX;
    if (whole->count / threads < THREAD_COUNT_MIN)
        threads = 1;
    uint64_t each = (whole->count + threads - 1) / threads;
    bool started[THREADS_MAX] = {false};
    for (uint32_t t = 0; t < threads; t++) {
        uint64_t from = t * each < whole->count ? t * each : whole->count;
        uint64_t left = whole->count - from;
        parts[t] = *whole;
        parts[t].first += from;
        parts[t].out += from;
        parts[t].count = left < each ? left : each;
        started[t] =
            t > 0 && keel_thread_create(&parts[t].thread, "keel-init", draw_part, &parts[t]) == KEEL_OK;
    }
    for (uint32_t t = 0; t < threads; t++)
        if (!started[t])
            draw_part(&parts[t]);
    for (uint32_t t = 0; t < threads; t++)
        if (started[t])
            keel_thread_join(&parts[t].thread);
}

/* In chunks: each is on the device before the next is drawn into the same memory. */
static enum keel_status draw_param(struct keel_engine *engine, const struct keel_control *control,
                                   uint32_t number, float *chunk, uint64_t deadline_ns)
{
    const struct keel_engine_param *param = &engine->layout.params[number];
    for (uint64_t done = 0; done < param->count; done += CHUNK_COUNT) {
        uint64_t count = param->count - done < CHUNK_COUNT ? param->count - done : CHUNK_COUNT;
        draw_chunk(&(struct draw){.control = control,
                                  .stream = number,
                                  .deviation = engine->inits[number].deviation,
                                  .first = done,
                                  .count = count,
                                  .out = chunk});
        KEEL_TRY(keel_queue_write(engine->queue, engine->flat[KEEL_FLAT_WEIGHTS],
                                  (param->offset + done) * sizeof(float), chunk, count * sizeof(float), NULL,
                                  NULL));
        KEEL_TRY(keel_queue_finish(engine->queue, deadline_ns));
    }
    return KEEL_OK;
}

static enum keel_status fill_param(struct keel_engine *engine, uint32_t number)
{
    const struct keel_engine_param *param = &engine->layout.params[number];
    uint32_t bits;
    memcpy(&bits, &engine->inits[number].fill, sizeof bits);
    return keel_queue_fill(engine->queue, engine->flat[KEEL_FLAT_WEIGHTS], param->offset * sizeof(float),
                           param->count * sizeof(float), bits, NULL, NULL);
}

static enum keel_status set_params(struct keel_engine *engine, uint64_t seed, float *chunk)
{
    struct keel_control control = {.seed_lo = (uint32_t)seed, .seed_hi = (uint32_t)(seed >> 32)};
    uint64_t deadline_ns = keel_deadline_after_ns(blocking_limit_ns);
    for (uint32_t i = 0; i < engine->layout.param_count; i++)
        KEEL_TRY(engine->inits[i].deviation > 0.0F ? draw_param(engine, &control, i, chunk, deadline_ns)
                                                   : fill_param(engine, i));
    return keel_queue_finish(engine->queue, deadline_ns);
}

enum keel_status keel_engine_initialize(struct keel_engine *engine, uint64_t seed)
{
    for (uint32_t i = 0; i < KEEL_FLAT_COUNT; i++)
        if (engine->flat[i] != NULL)
            KEEL_TRY(keel_queue_fill(engine->queue, engine->flat[i], 0,
                                     engine->layout.flat_count * sizeof(float), 0, NULL, NULL));
    float *chunk = NULL;
    KEEL_TRY(keel_alloc(CHUNK_COUNT, sizeof *chunk, (void *)&chunk));
    enum keel_status status = set_params(engine, seed, chunk);
    keel_free(chunk);
    return status;
}
