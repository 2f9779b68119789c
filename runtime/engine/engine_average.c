/* engine_average.c - the exponential moving average of the weights (train.ema), of an engine or of its
 * pieces.
 *
 * Before the first update e is the weights; behind each update e = fma(1 - decay, w - e, e), for each element
 * of what is trained: decay e + (1 - decay) w, in the form that leaves e alone where w does not differ from
 * it. That is what the update does to statistics, so it is one more update, of e as the weights and w as
 * their gradients, with a table of its own. A step that is refused changes neither. (Polyak and Juditsky
 * 1992; Tarvainen and Valpola 2017.)
 *
 * To evaluate the average it changes places with the weights, and back: what was compiled for them reads it
 * then, and nothing of either is rounded or lost.
 */
#include "engine_internal.h"

#include <keel/clock.h>
#include <keel/memory.h>

static const uint64_t blocking_limit_ns = 600 * KEEL_NS_PER_S;

static bool is_trained(const struct keel_update_tensor *tensor)
{
    return tensor->kind == KEEL_TENSOR_PLAIN || tensor->kind == KEEL_TENSOR_DECAY;
}

/* Tensors that are trained as statistics which follow the weights, all others as they are. */
static enum keel_status upload_table(struct keel_engine *engine, const struct keel_update_tensor *tensors,
                                     uint32_t count, struct keel_buffer *to)
{
    struct keel_update_tensor *table = NULL;
    KEEL_TRY(keel_alloc(count, sizeof *table, (void *)&table));
    for (uint32_t i = 0; i < count; i++) {
        table[i] = tensors[i];
        table[i].kind = is_trained(&tensors[i]) ? KEEL_TENSOR_STATISTIC : KEEL_TENSOR_KEPT;
        table[i].factor = 1.0F - engine->average;
    }
    enum keel_status status =
        keel_queue_write(engine->queue, to, 0, table, count * sizeof *table, NULL, NULL);
    if (status == KEEL_OK) /* the table goes next */
        status = keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
    keel_free(table);
    return status;
}

enum keel_status keel_engine_average_make(struct keel_engine *engine,
                                          const struct keel_update_tensor *tensors, uint32_t count,
                                          struct keel_engine_average *out)
{
    if (!keel_engine_keeps(engine, KEEL_FLAT_EMA))
        return KEEL_OK;
    KEEL_TRY(keel_alloc(count, sizeof *out->trained, (void *)&out->trained));
    for (uint32_t i = 0; i < count; i++)
        if (is_trained(&tensors[i]))
            out->trained[out->trained_count++] =
                (struct keel_engine_run){tensors[i].offset, tensors[i].count};
    KEEL_TRY(keel_engine_make_buffer(engine, count * sizeof *tensors, &out->tensors));
    KEEL_TRY(keel_engine_make_buffer(engine, sizeof(uint64_t), &out->digest));
    return upload_table(engine, tensors, count, out->tensors);
}

uint64_t keel_engine_average_bytes(const struct keel_engine_average *average)
{
    return average->digest == NULL ? 0
                                   : keel_buffer_bytes(average->tensors) + keel_buffer_bytes(average->digest);
}

void keel_engine_average_fini(struct keel_engine_average *average)
{
    if (average->tensors != NULL)
        keel_buffer_destroy(average->tensors);
    if (average->digest != NULL)
        keel_buffer_destroy(average->digest);
    keel_free(average->trained);
}

enum keel_status keel_engine_emit_average(struct keel_engine *engine,
                                          const struct keel_engine_average *average,
                                          const struct keel_update *update, struct keel_buffer *e,
                                          uint64_t count, struct keel_launch_list *list)
{
    if (e == NULL)
        return KEEL_OK;
    struct keel_update op = *update;
    op.optimizer = KEEL_OPTIMIZER_SGD; /* which of them is all the same to a statistic; it needs no v */
    op.nesterov = false;
    op.count = count;
    op.held_count = 0;
    op.w = e;
    op.grad = update->w;
    op.v = NULL;
    op.tensors = average->tensors;
    op.digest = average->digest;
    return keel_op_update(engine->kernels, &op, list);
}

enum keel_status keel_engine_begin_average(struct keel_engine *engine,
                                           const struct keel_engine_average *average, struct keel_buffer *w,
                                           struct keel_buffer *e, uint32_t step)
{
    for (uint32_t i = 0; step == 0 && e != NULL && i < average->trained_count; i++) {
        const uint64_t at = average->trained[i].first * sizeof(float);
        KEEL_TRY(keel_queue_copy(engine->queue, w, at, e, at, average->trained[i].count * sizeof(float), NULL,
                                 NULL));
    }
    return KEEL_OK;
}

/* By way of the arena, which is nobody's between two batches. */
static enum keel_status swap_run(struct keel_engine *engine, struct keel_buffer *w, struct keel_buffer *e,
                                 const struct keel_engine_run *run)
{
    const uint64_t room = keel_buffer_bytes(engine->arena), end = (run->first + run->count) * sizeof(float);
    for (uint64_t at = run->first * sizeof(float), bytes; at < end; at += bytes) {
        bytes = end - at < room ? end - at : room;
        KEEL_TRY(keel_queue_copy(engine->queue, w, at, engine->arena, 0, bytes, NULL, NULL));
        KEEL_TRY(keel_queue_copy(engine->queue, e, at, w, at, bytes, NULL, NULL));
        KEEL_TRY(keel_queue_copy(engine->queue, engine->arena, 0, e, at, bytes, NULL, NULL));
    }
    return KEEL_OK;
}

enum keel_status keel_engine_swap_average(struct keel_engine *engine, struct keel_engine_pieces *pieces)
{
    const struct keel_engine_average *average =
        pieces != NULL ? keel_engine_pieces_average(pieces) : &engine->update.average;
    struct keel_buffer *w =
        pieces != NULL ? keel_engine_pieces_flat(pieces, KEEL_FLAT_WEIGHTS) : engine->flat[KEEL_FLAT_WEIGHTS];
    struct keel_buffer *e =
        pieces != NULL ? keel_engine_pieces_flat(pieces, KEEL_FLAT_EMA) : engine->flat[KEEL_FLAT_EMA];
    for (uint32_t i = 0; e != NULL && i < average->trained_count; i++)
        KEEL_TRY(swap_run(engine, w, e, &average->trained[i]));
    return KEEL_OK;
}
