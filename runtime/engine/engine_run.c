/* engine_run.c - replay: feed a microbatch, run the lists, read what comes out.
 *
 * Allocates nothing. Host memory that the device reads (slots) or writes (landing) belongs to the engine, so
 * a call that gives up at its deadline leaves nothing dangling. The queue runs in order, so a slot may be
 * filled again when its write is done, and eval may use the arena of the microbatch before it. */
#include "engine_internal.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <math.h>
#include <string.h>

enum keel_status keel_engine_run_list(struct keel_engine *engine, const struct keel_launch_list *list)
{
    if (engine->profile != NULL)
        return keel_profile_run(engine->profile, list, engine->queue);
    return keel_launch_list_run(list, engine->queue);
}

/* ---- feeding ------------------------------------------------------------------------------------------- */

/* The next slot, when the device has read what was in it. */
static enum keel_status take_slot(struct keel_engine *engine, struct keel_feed_slot **out)
{
    struct keel_feed_slot *slot = &engine->slots[engine->next_slot];
    if (slot->event != NULL)
        KEEL_TRY(keel_event_wait(slot->event, keel_deadline_after_ns(engine->slot_wait_ns)));
    keel_event_destroy(slot->event);
    slot->event = NULL;
    engine->next_slot = (engine->next_slot + 1) % KEEL_ENGINE_SLOTS;
    *out = slot;
    return KEEL_OK;
}

static enum keel_status feed_batch(struct keel_engine *engine, const struct keel_engine_batch *batch)
{
    struct keel_feed_slot *slot;
    KEEL_TRY(take_slot(engine, &slot));
    struct keel_control control = {.seed_lo = (uint32_t)batch->seed,
                                   .seed_hi = (uint32_t)(batch->seed >> 32),
                                   .step = batch->step,
                                   .microbatch = batch->microbatch};
    memcpy(slot->host, &control, sizeof control);
    for (uint32_t i = 0; i < engine->input_count; i++) {
        const struct keel_feed_input *input = &engine->inputs[i];
        if (batch->inputs[i] != NULL)
            memcpy(slot->host + input->offset, batch->inputs[i], keel_size(input->facts.bytes));
        else
            memset(slot->host + input->offset, 0, keel_size(input->facts.bytes));
    }
    return keel_queue_write(engine->queue, engine->feed, 0, slot->host, engine->feed_bytes, NULL,
                            &slot->event);
}

static enum keel_status feed_control(struct keel_engine *engine, const struct keel_control *control)
{
    struct keel_feed_slot *slot;
    KEEL_TRY(take_slot(engine, &slot));
    memcpy(slot->host, control, sizeof *control);
    return keel_queue_write(engine->queue, engine->feed, 0, slot->host, sizeof *control, NULL, &slot->event);
}

/* ---- training ------------------------------------------------------------------------------------------ */

enum keel_status keel_engine_zero(struct keel_engine *engine)
{
    KEEL_ASSERT(engine->training);
    engine->joined = engine->begun = false;
    return keel_engine_run_list(engine, &engine->update.zero);
}

enum keel_status keel_engine_feed(struct keel_engine *engine, const struct keel_engine_batch *batch)
{
    KEEL_ASSERT(engine->training && !(engine->windowed && batch->more));
    KEEL_TRY(feed_batch(engine, batch));
    engine->next_segment = 0; /* also where one that was interrupted had others before it */
    if (engine->joined)
        KEEL_TRY(keel_engine_run_list(engine, &engine->update.shard));
    engine->joined = !batch->more;
    return KEEL_OK;
}

/* The bucket whose first segment this is; bucket_count: the rest's, or none's. */
static uint32_t first_of_bucket(const struct keel_engine *engine, uint32_t segment)
{
    const uint32_t before = segment > 0 ? engine->train.segments[segment - 1].bucket : UINT32_MAX;
    if (segment == 0)
        return 0;
    return before != UINT32_MAX ? before + 1 : engine->layout.bucket_count;
}

enum keel_status keel_engine_segment(struct keel_engine *engine, uint32_t segment)
{
    KEEL_ASSERT(engine->training && segment < engine->train.list_count);
    /* One microbatch after the other: the first one's gradients overwrite what another has put there. */
    KEEL_ASSERT(segment == engine->next_segment);
    engine->next_segment++;
    const uint32_t bucket = first_of_bucket(engine, segment);
    if (engine->windowed && bucket < engine->layout.bucket_count)
        KEEL_TRY(keel_engine_run_list(engine, &engine->windows.clear[bucket]));
    const bool first = !engine->begun && engine->train.first != NULL;
    KEEL_TRY(
        keel_engine_run_list(engine, first ? &engine->train.first[segment] : &engine->train.lists[segment]));
    engine->begun = engine->begun || segment + 1 == engine->train.list_count;
    return engine->joined ? keel_engine_run_list(engine, &engine->update.join[segment]) : KEEL_OK;
}

enum keel_status keel_engine_microbatch(struct keel_engine *engine, const struct keel_engine_batch *batch)
{
    KEEL_TRY(keel_engine_feed(engine, batch));
    KEEL_ASSERT(!engine->weights_windowed);
    KEEL_ASSERT(keel_engine_is_whole(engine)); /* else the caller exchanges between segments */
    for (uint32_t i = 0; i < engine->train.list_count; i++)
        KEEL_TRY(keel_engine_segment(engine, i));
    return keel_queue_flush(engine->queue);
}

enum keel_status keel_engine_settle(struct keel_engine *engine, uint64_t deadline_ns)
{
    KEEL_TRY(keel_gemm_checksums_read(&engine->checks, engine->queue));
    KEEL_TRY(keel_queue_finish(engine->queue, deadline_ns));
    return keel_gemm_checksums_judge(&engine->checks);
}

static enum keel_status read_digest(struct keel_engine *engine)
{
    struct keel_engine_sums *sums = engine->update.sums;
    if (sums != NULL) {
        KEEL_TRY(keel_queue_fill(engine->queue, sums->digest, 0, sizeof(uint64_t), 0, NULL, NULL));
        KEEL_TRY(keel_engine_run_list(engine, &sums->shared));
        KEEL_TRY(keel_queue_read(engine->queue, sums->digest, 0, &engine->landing.digest_shared,
                                 sizeof(uint64_t), NULL, NULL));
    }
    return keel_queue_read(engine->queue, engine->digest, 0, &engine->landing.digest, sizeof(uint64_t), NULL,
                           NULL);
}

static enum keel_status enqueue_digest(struct keel_engine *engine)
{
    KEEL_TRY(keel_queue_fill(engine->queue, engine->digest, 0, sizeof(uint64_t), 0, NULL, NULL));
    KEEL_TRY(keel_engine_run_list(engine, &engine->update.digest));
    return read_digest(engine);
}

/* Why the norm is not finite. What storage does to a finite loss cannot be told from where it happened: an
 * activation that f16 does not hold makes gradients infinite at any scale. */
static enum keel_status diverged(const struct keel_engine *engine, const struct keel_engine_update *update,
                                 float norm, float scale)
{
    const char *what = "lower train.lr, set train.clip, or warm up longer, in a new --out";
    if (update->step == 0) /* of the first step only the data and the first weights have a part */
        what = "no weight was trained yet: look for very large numbers in data.path (scale them to about 1), "
               "or in weights that were imported";
    if (engine->loss_scale != NULL && !update->never_skip)
        what = scale > 1.0F
                   ? "an activation or a scaled gradient exceeds what f16 holds (65504): use "
                     "train.storage = bf16 or a smaller train.loss_scale, in a new --out"
                   : "no loss scale helps: an activation or gradient exceeds what f16 holds (65504): "
                     "use train.storage = bf16, in a new --out";
    return keel_fail(KEEL_DIVERGED,
                     "step %u: the norm of the gradients is %g, the weights were left as they are; %s",
                     update->step + 1, (double)norm, what);
}

enum keel_status keel_engine_norm_begin(struct keel_engine *engine, const struct keel_engine_source *from)
{
    return keel_engine_run_list(engine, from != NULL ? &from->tiles : &engine->update.own.tiles);
}

enum keel_status keel_engine_feed_update(struct keel_engine *engine, const struct keel_engine_update *update)
{
    const struct keel_control control =
        keel_update_control(&update->settings, update->learning_rate, update->step);
    return feed_control(engine, &control);
}

enum keel_status keel_engine_judge_norm(struct keel_engine *engine, const struct keel_engine_update *update,
                                        uint64_t deadline_ns, struct keel_engine_updated *out)
{
    KEEL_TRY(keel_queue_read(engine->queue, engine->norm, 0, engine->landing.norm,
                             sizeof engine->landing.norm, NULL, NULL));
    KEEL_TRY(keel_queue_finish(engine->queue, deadline_ns));
    float norm = engine->landing.norm[0];
    float scale = engine->loss_scale != NULL ? engine->landing.norm[2] : 0.0F;
    bool skipped = !isfinite(norm) && scale > 1.0F && !engine->fixed_scale && !update->never_skip;
    if (!isfinite(norm) && !skipped)
        return diverged(engine, update, norm, scale);
    *out = (struct keel_engine_updated){.grad_norm = norm, .loss_scale = scale, .skipped = skipped};
    return KEEL_OK;
}

enum keel_status keel_engine_update(struct keel_engine *engine, const struct keel_engine_update *update,
                                    uint64_t deadline_ns, struct keel_engine_updated *out)
{
    KEEL_ASSERT(engine->training && !engine->in_pieces);
    const struct keel_engine_source *from = update->from != NULL ? update->from : &engine->update.own;
    struct keel_engine_updated updated;
    KEEL_TRY(keel_engine_feed_update(engine, update));
    KEEL_TRY(keel_engine_run_list(engine, &from->norm));
    KEEL_TRY(keel_engine_judge_norm(engine, update, deadline_ns, &updated));
    KEEL_TRY(keel_engine_begin_average(engine, &engine->update.average, engine->flat[KEEL_FLAT_WEIGHTS],
                                       engine->flat[KEEL_FLAT_EMA], update->step));
    KEEL_TRY(keel_engine_run_list(engine, &from->update));
    KEEL_TRY(read_digest(engine));
    KEEL_TRY(keel_queue_finish(engine->queue, deadline_ns));
    updated.digest = engine->landing.digest;
    updated.digest_shared = engine->landing.digest_shared;
    *out = updated;
    return KEEL_OK;
}

/* ---- looking ------------------------------------------------------------------------------------------- */

enum keel_status keel_engine_eval_begin(struct keel_engine *engine, const struct keel_engine_batch *batch)
{
    KEEL_TRY(feed_batch(engine, batch));
    KEEL_TRY(keel_queue_fill(engine->queue, engine->eval_loss, 0, sizeof(float), 0, NULL, NULL));
    if (engine->eval.losses != NULL)
        KEEL_TRY(keel_queue_fill(engine->queue, engine->eval.losses, 0,
                                 keel_buffer_bytes(engine->eval.losses), 0, NULL, NULL));
    return KEEL_OK;
}

enum keel_status keel_engine_eval_segment(struct keel_engine *engine, uint32_t segment)
{
    KEEL_ASSERT(segment < engine->eval.list_count);
    return keel_engine_run_list(engine, &engine->eval.lists[segment]);
}

enum keel_status keel_engine_eval_end(struct keel_engine *engine, uint64_t deadline_ns, float *out_loss)
{
    KEEL_TRY(keel_queue_read(engine->queue, engine->eval_loss, 0, &engine->landing.loss, sizeof(float), NULL,
                             NULL));
    KEEL_TRY(keel_queue_finish(engine->queue, deadline_ns));
    *out_loss = engine->landing.loss;
    return KEEL_OK;
}

/* Of an engine with all slices and weights, whose evaluation is one segment. */
static enum keel_status enqueue_eval(struct keel_engine *engine, const struct keel_engine_batch *batch)
{
    KEEL_ASSERT(!engine->weights_windowed);
    if (!keel_engine_is_whole(engine))
        return keel_fail(KEEL_INVALID, "engine: it has some of the tensor slices: evaluate it segment by "
                                       "segment (keel_engine_eval_begin)");
    KEEL_TRY(keel_engine_eval_begin(engine, batch));
    return keel_engine_eval_segment(engine, 0);
}

enum keel_status keel_engine_eval(struct keel_engine *engine, const struct keel_engine_batch *batch,
                                  uint64_t deadline_ns, float *out_loss)
{
    KEEL_TRY(enqueue_eval(engine, batch));
    return keel_engine_eval_end(engine, deadline_ns, out_loss);
}

struct keel_shape keel_engine_output_shape(const struct keel_engine *engine)
{
    const struct keel_graph *graph = engine->eval.graph;
    return graph->output != 0 ? keel_graph_shape(graph, graph->output) : (struct keel_shape){.dims = 0};
}

static enum keel_status read_output(struct keel_engine *engine, uint32_t first_row, uint32_t rows,
                                    uint64_t deadline_ns, void *out)
{
    const struct keel_graph *graph = engine->eval.graph;
    struct keel_shape shape = keel_graph_shape(graph, graph->output);
    uint64_t row_bytes =
        keel_value_bytes(graph, graph->output) / keel_shape_count(&shape) * shape.size[shape.dims - 1];
    KEEL_TRY(keel_queue_read(engine->queue, engine->eval.buffers[graph->output], first_row * row_bytes, out,
                             rows * row_bytes, NULL, NULL));
    return keel_queue_finish(engine->queue, deadline_ns);
}

static enum keel_status check_rows(const struct keel_engine *engine, uint32_t first_row, uint32_t rows)
{
    struct keel_shape shape = keel_engine_output_shape(engine);
    if (shape.dims == 0)
        return keel_fail(KEEL_INVALID, "output: the graph has none; say keel_graph_output");
    uint64_t all_rows = keel_shape_count(&shape) / shape.size[shape.dims - 1];
    if (first_row >= all_rows || rows > all_rows - first_row)
        return keel_fail(KEEL_INVALID, "output: rows %u to %u of %llu", first_row, first_row + rows,
                         (unsigned long long)all_rows);
    return KEEL_OK;
}

enum keel_status keel_engine_output(struct keel_engine *engine, const struct keel_engine_batch *batch,
                                    uint32_t first_row, uint32_t rows, uint64_t deadline_ns, void *out)
{
    KEEL_TRY(check_rows(engine, first_row, rows));
    KEEL_TRY(enqueue_eval(engine, batch));
    return read_output(engine, first_row, rows, deadline_ns, out);
}

enum keel_status keel_engine_evaluated(struct keel_engine *engine, uint32_t first_row, uint32_t rows,
                                       uint64_t deadline_ns, void *out)
{
    KEEL_TRY(check_rows(engine, first_row, rows));
    return read_output(engine, first_row, rows, deadline_ns, out);
}

enum keel_status keel_engine_digest(struct keel_engine *engine, uint64_t deadline_ns, uint64_t *out)
{
    KEEL_ASSERT(!engine->weights_windowed);
    KEEL_TRY(enqueue_digest(engine));
    KEEL_TRY(keel_queue_finish(engine->queue, deadline_ns));
    *out = engine->landing.digest;
    return KEEL_OK;
}

uint64_t keel_engine_digest_shared(const struct keel_engine *engine)
{
    return engine->landing.digest_shared;
}
