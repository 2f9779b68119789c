/* engine_begin.c - how a step's gradients begin: at +0, as their sums are defined.
 *
 * The gradient of a weight is the end of a product, which is most of what a step writes. So in the first
 * microbatch such a product puts +0 + s in its place (keel_gemm, `fresh`), with the bits of zeros that s is
 * added to; only what is left is zeroed. For that each list of the train program exists twice. Not with
 * windows, whose buckets are zeroed one by one, nor where products are checked, whose reports are counted by
 * list. */
#include "engine_internal.h"
#include "ops.h"

static bool overwrites(const struct keel_ir_node *node)
{
    return node->op != KEEL_OP_NONE && keel_op_row(node->op)->begins;
}

bool keel_engine_has_first(const struct keel_engine *engine)
{
    const struct keel_graph *graph = engine->train.graph;
    if (engine->windowed || engine->check_products)
        return false;
    for (uint32_t n = 0; n < graph->node_count; n++)
        if (overwrites(&graph->nodes[n]))
            return true;
    return false;
}

/* Whether a first microbatch overwrites an accumulator: nothing else adds to it then. */
static bool is_overwritten(const struct keel_engine *engine, struct keel_buffer *accumulator)
{
    const struct keel_engine_program *train = &engine->train;
    uint32_t overwriters = 0, writers = 0;
    for (uint32_t n = 0; train->first != NULL && n < train->graph->node_count; n++)
        for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
            const struct keel_ir_node *node = &train->graph->nodes[n];
            if (node->out[i] == 0 || train->buffers[node->out[i]] != accumulator)
                continue;
            writers++;
            overwriters += i == 0 && overwrites(node);
        }
    KEEL_ASSERT(overwriters == 0 || writers == 1); /* autodiff gives each use an accumulator of its own */
    return overwriters > 0;
}

/* Zeroes [begin, end) of a buffer. By kernels: drivers of CPUs fill with one thread. */
static enum keel_status zero_run(struct keel_engine *engine, struct keel_buffer *whole, uint64_t begin,
                                 uint64_t end)
{
    struct keel_fill fill = {.count = end - begin};
    if (begin == end)
        return KEEL_OK;
    KEEL_TRY(keel_parts_slice(&engine->train.parts, whole, begin * sizeof(float), fill.count * sizeof(float),
                              &fill.y));
    return keel_op_fill(engine->kernels, &fill, &engine->update.zero);
}

/* What lies between tiles is zero, and nobody writes there. */
static enum keel_status zero_tiles(struct keel_engine *engine)
{
    const struct keel_layout *layout = &engine->layout;
    uint64_t begin = 0, end = 0;
    for (uint32_t at = 0; at < layout->moved_tiles; at++) {
        const struct keel_tile *tile = &layout->tiles[layout->order[at]];
        if (!is_overwritten(engine, engine->gradients[layout->order[at]])) {
            end = tile->offset + tile->count;
            continue;
        }
        KEEL_TRY(zero_run(engine, engine->flat[KEEL_FLAT_GRADIENTS], begin, end));
        begin = end = at + 1 < layout->moved_tiles ? layout->tiles[layout->order[at + 1]].offset : 0;
    }
    return zero_run(engine, engine->flat[KEEL_FLAT_GRADIENTS], begin, end);
}

static enum keel_status zero_uses(struct keel_engine *engine)
{
    for (uint32_t u = 0; u < engine->layout.use_count; u++) {
        const struct keel_use *use = &engine->layout.uses[u];
        if (!is_overwritten(engine, engine->use_slices[u]))
            KEEL_TRY(zero_run(engine, engine->uses, use->offset, use->offset + use->count));
    }
    return KEEL_OK;
}

static enum keel_status zero_losses(struct keel_engine *engine, struct keel_launch_list *list)
{
    struct keel_fill losses = {.y = engine->train.losses};
    if (losses.y == NULL)
        return KEEL_OK;
    losses.count = keel_buffer_bytes(losses.y) / sizeof(float);
    return keel_op_fill(engine->kernels, &losses, list);
}

/* What a shard behind another begins with. */
static enum keel_status emit_shard(struct keel_engine *engine)
{
    struct keel_fill uses = {.count = engine->layout.uses_count, .y = engine->uses};
    if (uses.y != NULL)
        KEEL_TRY(keel_op_fill(engine->kernels, &uses, &engine->update.shard));
    KEEL_TRY(zero_losses(engine, &engine->update.shard));
    return keel_launch_list_seal(&engine->update.shard, engine->kernels);
}

enum keel_status keel_engine_emit_begin(struct keel_engine *engine)
{
    struct keel_launch_list *list = &engine->update.zero;
    if (engine->windowed)
        KEEL_TRY(keel_engine_emit_windows(engine));
    else
        KEEL_TRY(zero_tiles(engine));
    KEEL_TRY(zero_uses(engine));
    KEEL_TRY(keel_op_fill(engine->kernels, &(struct keel_fill){.count = 1, .y = engine->loss}, list));
    KEEL_TRY(zero_losses(engine, list));
    KEEL_TRY(keel_launch_list_seal(list, engine->kernels));
    return emit_shard(engine);
}
