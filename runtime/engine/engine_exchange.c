/* engine_exchange.c - what engines with some slices of the tensor axis exchange: descriptions of it, and the
 * sums that are no values of the graph.
 *
 * A program ends a segment at each KEEL_OP_EXCHANGE. Beside these there are, of a shard's last microbatch,
 * for each bucket the vectors that are summed over split rows, one sum for each node of the tree over slices;
 * and, of the norm, a sum of squares for each tile. Nothing here talks to anybody. An engine with all slices
 * has none of it. */
#include "engine_internal.h"
#include "lower.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/shape_ops.h>
#include <string.h>

static const uint64_t blocking_limit_ns = 600 * KEEL_NS_PER_S;

/* ---- descriptions -------------------------------------------------------------------------------------- */

uint64_t keel_engine_exchange_count(const struct keel_engine_exchange *exchange, uint32_t of, uint32_t first,
                                    uint32_t count)
{
    return (keel_slice_begin(exchange->units, of, first + count) -
            keel_slice_begin(exchange->units, of, first)) *
           exchange->unit;
}

uint32_t keel_engine_segment_count(const struct keel_engine *engine)
{
    return engine->train.list_count;
}

uint32_t keel_engine_segment_bucket(const struct keel_engine *engine, uint32_t segment)
{
    KEEL_ASSERT(segment < engine->train.list_count);
    return engine->train.segments[segment].bucket;
}

static const struct keel_engine_exchange *exchange_of(const struct keel_engine_program *program,
                                                      uint32_t segment, bool joined)
{
    KEEL_ASSERT(segment < program->list_count);
    const struct keel_program_segment *at = &program->segments[segment];
    return at->exchange.kind == KEEL_EXCHANGE_NONE || (at->joins && !joined) ? NULL : &at->exchange;
}

const struct keel_engine_exchange *keel_engine_exchange(const struct keel_engine *engine, uint32_t segment)
{
    return exchange_of(&engine->train, segment, engine->joined);
}

const struct keel_engine_exchange *keel_engine_segment_exchange(const struct keel_engine *engine,
                                                                uint32_t segment, bool *out_last)
{
    *out_last = engine->train.segments[segment].joins;
    return exchange_of(&engine->train, segment, true);
}

uint32_t keel_engine_eval_segment_count(const struct keel_engine *engine)
{
    return engine->eval.list_count;
}

const struct keel_engine_exchange *keel_engine_eval_exchange(const struct keel_engine *engine,
                                                             uint32_t segment)
{
    return exchange_of(&engine->eval, segment, false);
}

const struct keel_engine_exchange *keel_engine_norm_exchange(const struct keel_engine *engine)
{
    return engine->update.sums == NULL ? NULL : &engine->update.sums->norm;
}

/* ---- segments ------------------------------------------------------------------------------------------ */

void keel_program_segment_set(struct keel_program_segment *segment, const struct keel_engine_program *program,
                              const struct keel_ir_node *node)
{
    segment->exchange = (struct keel_engine_exchange){.kind = node->attributes.exchange.kind,
                                                      .scatter = node->attributes.exchange.scatter,
                                                      .units = node->attributes.exchange.units,
                                                      .unit = node->attributes.exchange.unit,
                                                      .parts = segment->parts,
                                                      .result = program->buffers[node->out[0]]};
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX && node->in[i] != 0; i++)
        segment->parts[segment->exchange.part_count++] = program->buffers[node->in[i]];
}

/* ---- uses with slices ---------------------------------------------------------------------------------- */

static uint64_t width_of_use(const struct keel_use *use)
{
    return use->count / use->slices;
}

/* The uses of a bucket that have a row for each slice, ascending; false: no more. */
static bool next_use(const struct keel_engine *engine, uint32_t bucket, uint32_t *at)
{
    const struct keel_layout *layout = &engine->layout;
    for (; *at < layout->use_count; ++*at)
        for (uint32_t i = bucket == 0 ? 0 : layout->bucket_end[bucket - 1]; i < layout->bucket_end[bucket];
             i++)
            if (layout->uses[*at].rows && layout->tiles[layout->order[i]].param == layout->uses[*at].param)
                return true;
    return false;
}

bool keel_engine_bucket_joins(const struct keel_engine *engine, uint32_t bucket)
{
    uint32_t at = 0;
    return !keel_engine_is_whole(engine) && next_use(engine, bucket, &at);
}

/* Where their sums lie, bucket after bucket; how many elements they are, and how many rows have at most. */
static void place_sums(struct keel_engine *engine, uint64_t *count, uint64_t *rows)
{
    for (uint32_t b = 0; b < engine->layout.bucket_count; b++)
        for (uint32_t u = 0; next_use(engine, b, &u); u++) {
            struct keel_use *use = &engine->layout.uses[u];
            use->joined = *count;
            *count += keel_round_up(width_of_use(use), KEEL_FLAT_ALIGN);
            *rows = use->count > *rows ? use->count : *rows;
        }
}

/* The gaps are sent along. */
static enum keel_status make_zeros(struct keel_engine *engine, uint64_t bytes, struct keel_buffer **out)
{
    KEEL_TRY(keel_engine_make_buffer(engine, bytes, out));
    return keel_queue_fill(engine->queue, *out, 0, bytes, 0, NULL, NULL);
}

enum keel_status keel_engine_sums_make(struct keel_engine *engine)
{
    uint64_t count = 0, rows = 0;
    if (keel_engine_is_whole(engine))
        return KEEL_OK;
    KEEL_TRY(keel_alloc(1, sizeof *engine->update.sums, (void *)&engine->update.sums));
    struct keel_engine_sums *sums = engine->update.sums;
    KEEL_TRY(keel_cut_nodes(&engine->tensor, sums->nodes, KEEL_NODE_IN_MAX, &sums->node_count));
    KEEL_TRY(keel_engine_make_buffer(engine, sizeof(uint64_t), &sums->digest));
    if (engine->training)
        place_sums(engine, &count, &rows);
    if (count == 0)
        return KEEL_OK;
    for (uint32_t n = 0; n < sums->node_count; n++)
        KEEL_TRY(make_zeros(engine, count * sizeof(float), &sums->uses[n]));
    KEEL_TRY(make_zeros(engine, count * sizeof(float), &sums->joined));
    KEEL_TRY(keel_engine_make_buffer(engine, rows * sizeof(float), &sums->rows));
    return keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
}

void keel_engine_sums_fini(struct keel_engine_sums *sums)
{
    if (sums == NULL)
        return;
    struct keel_buffer *buffers[] = {sums->joined, sums->rows, sums->tiles, sums->digest};
    keel_launch_list_fini(&sums->shared);
    keel_parts_fini(&sums->slices);
    for (uint32_t n = 0; n < KEEL_NODE_IN_MAX; n++)
        if (sums->uses[n] != NULL)
            keel_buffer_destroy(sums->uses[n]);
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i] != NULL)
            keel_buffer_destroy(buffers[i]);
    keel_free(sums);
}

/* Elements of one of the buffers above as a buffer of their own. */
static enum keel_status slice(struct keel_engine_sums *sums, struct keel_buffer *whole, uint64_t first,
                              uint64_t count, struct keel_buffer **out)
{
    return keel_parts_slice(&sums->slices, whole, first * sizeof(float), count * sizeof(float), out);
}

enum keel_status keel_engine_join_segment(struct keel_engine *engine, uint32_t bucket,
                                          struct keel_program_segment *segment)
{
    struct keel_engine_sums *sums = engine->update.sums;
    uint64_t first = UINT64_MAX, end = 0;
    for (uint32_t u = 0; next_use(engine, bucket, &u); u++) {
        const struct keel_use *use = &engine->layout.uses[u];
        first = first == UINT64_MAX ? use->joined : first;
        end = use->joined + keel_round_up(width_of_use(use), KEEL_FLAT_ALIGN);
    }
    segment->joins = true;
    segment->exchange = (struct keel_engine_exchange){.kind = KEEL_EXCHANGE_SUM,
                                                      .part_count = sums->node_count,
                                                      .units = 1,
                                                      .unit = end - first,
                                                      .parts = segment->parts};
    for (uint32_t n = 0; n < sums->node_count; n++)
        KEEL_TRY(slice(sums, sums->uses[n], first, end - first, &segment->parts[n]));
    return slice(sums, sums->joined, first, end - first, &segment->exchange.result);
}

/* The rows of a node's slices, added in the tree: a product of ones with them. */
static enum keel_status emit_sum(struct keel_engine *engine, uint32_t use_number, uint32_t node_number,
                                 struct keel_launch_list *list)
{
    struct keel_engine_sums *sums = engine->update.sums;
    const struct keel_use *use = &engine->layout.uses[use_number];
    const struct keel_slice_run *node = &sums->nodes[node_number];
    const uint32_t n = (uint32_t)width_of_use(use), k = node->count;
    struct keel_buffer *rows = engine->use_slices[use_number], *sum;
    const struct keel_slice run = {.outer = 1,
                                   .size = use->slices,
                                   .inner = n,
                                   .from = node->first - engine->tensor.first,
                                   .count = k,
                                   .x = rows,
                                   .y = sums->rows};
    KEEL_TRY(slice(sums, sums->uses[node_number], use->joined, n, &sum));
    if (sums->node_count > 1)
        KEEL_TRY(keel_op_slice(engine->kernels, &run, list));
    const struct keel_gemm tree = {
        .m = 1,
        .n = n,
        .k = k,
        .batch = 1,
        .lda = k,
        .ldb = n,
        .ldc = n,
        .k_slices = {.first = node->first, .count = k, .of = node->of, .units = node->of, .unit = 1},
        .a = engine->update.ones,
        .b = sums->node_count > 1 ? sums->rows : rows,
        .c = sum};
    return keel_op_gemm(engine->kernels, &tree, list);
}

enum keel_status keel_engine_emit_sums(struct keel_engine *engine, uint32_t bucket,
                                       struct keel_launch_list *list)
{
    for (uint32_t u = 0; next_use(engine, bucket, &u); u++)
        for (uint32_t n = 0; n < engine->update.sums->node_count; n++)
            KEEL_TRY(emit_sum(engine, u, n, list));
    return KEEL_OK;
}

enum keel_status keel_engine_emit_joined(struct keel_engine *engine, const struct keel_use *use,
                                         struct keel_buffer *gradient, struct keel_launch_list *list)
{
    struct keel_engine_sums *sums = engine->update.sums;
    struct keel_add add = {.count = width_of_use(use), .a = gradient, .y = gradient};
    KEEL_TRY(slice(sums, sums->joined, use->joined, add.count, &add.b));
    return keel_op_add(engine->kernels, &add, list);
}

/* ---- norm and digest ----------------------------------------------------------------------------------- */

/* Tiles that are not this engine's are zero bits: so what is summed is exact. */
static enum keel_status plan_norm(struct keel_engine *engine)
{
    struct keel_update_lists *update = &engine->update;
    struct keel_engine_sums *sums = update->sums;
    sums->norm = (struct keel_engine_exchange){.kind = KEEL_EXCHANGE_SUM_BITS,
                                               .part_count = 1,
                                               .units = 1,
                                               .unit = update->norm_tiles,
                                               .parts = &update->tiles};
    KEEL_TRY(keel_engine_make_buffer(engine, update->norm_tiles * sizeof(float), &sums->tiles));
    sums->norm.result = sums->tiles;
    return KEEL_OK;
}

enum keel_status keel_engine_emit_shared(struct keel_engine *engine)
{
    struct keel_engine_sums *sums = engine->update.sums;
    if (sums == NULL)
        return KEEL_OK;
    if (engine->training)
        KEEL_TRY(plan_norm(engine));
    for (uint32_t i = 0; i < engine->layout.tile_count; i++) {
        const struct keel_tile *tile = &engine->layout.tiles[i];
        const struct keel_digest digest = {.count = tile->count,
                                           .first_element = (uint64_t)tile->param << 40,
                                           .x = engine->weights[i],
                                           .digest = sums->digest,
                                           .scratch = engine->scratch};
        if (!engine->layout.params[tile->param].split)
            KEEL_TRY(keel_op_digest(engine->kernels, &digest, &sums->shared));
    }
    return keel_launch_list_seal(&sums->shared, engine->kernels);
}
