/* engine_windows.c - windows of gradients: where each bucket lies while it is computed, if its sum goes to
 * owners as soon as it is final.
 *
 * A window is used by one bucket after the other. A bucket needs it from the segment in which a node first
 * adds to it to the end of its own, behind which its sum is under way for one segment more: so two windows
 * do, a third one where the gradients of one node lie in two buckets, and what is written all through the
 * pass (statistics, which are last in the order) has one for itself. All is decided when the program is
 * compiled. */
#include "engine_internal.h"

#include <keel/memory.h>

/* What a window is while buckets are put into windows. */
struct window {
    uint64_t size, at;
    uint32_t last; /* bucket that was put there last */
};

uint32_t keel_bucket_of_tile(const struct keel_layout *layout, uint32_t tile)
{
    uint32_t bucket = 0;
    while (layout->tiles[tile].offset >= layout->buckets[bucket].offset + layout->buckets[bucket].count)
        bucket++;
    return bucket;
}

/* The segment in which each bucket is first added to: `nodes` have run when a bucket is final. */
static void find_first(const struct keel_layout *layout, const struct keel_graph *graph,
                       const uint32_t *nodes, uint32_t *out_first)
{
    for (uint32_t b = 0; b < layout->bucket_count; b++)
        out_first[b] = b; /* uses are joined at its end */
    for (uint32_t n = 0, segment = 0; n < graph->node_count; n++) {
        while (segment < layout->bucket_count && nodes[segment] <= n)
            segment++;
        for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
            const struct keel_ir_value *v = &graph->values[graph->nodes[n].out[i]];
            if (graph->nodes[n].out[i] == 0 || v->kind != KEEL_VALUE_GRADIENT || keel_is_use(graph, v))
                continue;
            const uint32_t bucket = keel_bucket_of_tile(layout, v->param);
            if (segment < out_first[bucket])
                out_first[bucket] = segment;
        }
    }
}

/* The window that grows least, of those whose last bucket was summed while another segment ran. */
static uint32_t choose(struct window *windows, uint32_t *count, uint64_t size, uint32_t first)
{
    uint32_t best = *count;
    uint64_t least = UINT64_MAX;
    for (uint32_t w = 0; w < *count; w++) {
        const uint64_t grows = size > windows[w].size ? size - windows[w].size : 0;
        if (windows[w].last + 2 > first || grows >= least)
            continue;
        least = grows;
        best = w;
    }
    if (best == *count)
        windows[(*count)++] = (struct window){.size = 0};
    return best;
}

/* Buckets by the segment in which they are first added to. *window: by bucket. */
static void assign(const struct keel_layout *layout, struct keel_windows *out, struct window *windows,
                   uint32_t *window)
{
    uint32_t count = 0;
    for (uint32_t segment = 0; segment < layout->bucket_count; segment++) {
        out->waits[segment] = segment > 0 ? out->waits[segment - 1] : 0;
        for (uint32_t b = 0; b < layout->bucket_count; b++) {
            if (out->first[b] != segment)
                continue;
            const uint64_t size = layout->buckets[b].count;
            const uint32_t before = count;
            window[b] = choose(windows, &count, size, segment);
            struct window *at = &windows[window[b]];
            if (window[b] < before && at->last + 1 > out->waits[segment])
                out->waits[segment] = at->last + 1;
            at->size = size > at->size ? size : at->size;
            at->last = b;
        }
    }
    out->waits[layout->bucket_count] = out->waits[layout->bucket_count - 1];
    for (uint32_t w = 0; w < count; w++) {
        windows[w].at = out->count;
        out->count += windows[w].size;
    }
    for (uint32_t b = 0; b < layout->bucket_count; b++)
        out->at[b] = windows[window[b]].at;
}

enum keel_status keel_windows_init(struct keel_windows *out, const struct keel_layout *layout,
                                   const struct keel_graph *graph)
{
    struct window *windows = NULL;
    uint32_t *nodes = NULL; /* by bucket; and then its window */
    const uint32_t buckets = layout->bucket_count;
    enum keel_status status = keel_alloc(buckets, sizeof *out->at, (void *)&out->at);
    if (status == KEEL_OK)
        status = keel_alloc(buckets, sizeof *out->first, (void *)&out->first);
    if (status == KEEL_OK)
        status = keel_alloc(buckets + 1, sizeof *out->waits, (void *)&out->waits);
    if (status == KEEL_OK)
        status = keel_alloc(buckets, sizeof *windows, (void *)&windows);
    if (status == KEEL_OK)
        status = keel_alloc(buckets, sizeof *nodes, (void *)&nodes);
    if (status == KEEL_OK) {
        keel_engine_bucket_nodes(layout, graph, nodes);
        find_first(layout, graph, nodes, out->first);
        assign(layout, out, windows, nodes);
    }
    keel_free(nodes);
    keel_free(windows);
    return status;
}

void keel_windows_fini(struct keel_windows *windows, uint32_t bucket_count)
{
    for (uint32_t b = 0; windows->clear != NULL && b < bucket_count; b++)
        keel_launch_list_fini(&windows->clear[b]);
    for (uint32_t b = 0; windows->slices != NULL && b < bucket_count; b++)
        if (windows->slices[b] != NULL)
            keel_buffer_destroy(windows->slices[b]);
    keel_free(windows->clear);
    keel_free(windows->slices);
    keel_free(windows->at);
    keel_free(windows->first);
    keel_free(windows->waits);
    *windows = (struct keel_windows){.at = NULL};
}

enum keel_status keel_engine_emit_windows(struct keel_engine *engine)
{
    struct keel_windows *windows = &engine->windows;
    const uint32_t buckets = engine->layout.bucket_count;
    struct keel_buffer *whole = engine->flat[KEEL_FLAT_GRADIENTS];
    KEEL_TRY(keel_alloc(buckets, sizeof *windows->clear, (void *)&windows->clear));
    KEEL_TRY(keel_alloc(buckets, sizeof(struct keel_buffer *), (void *)&windows->slices));
    for (uint32_t b = 0; b < buckets; b++) {
        const uint64_t count = engine->layout.buckets[b].count;
        KEEL_TRY(keel_buffer_slice(whole, windows->at[b] * sizeof(float), count * sizeof(float),
                                   &windows->slices[b]));
        const struct keel_fill zeros = {.count = count, .y = windows->slices[b]};
        KEEL_TRY(keel_op_fill(engine->kernels, &zeros, &windows->clear[windows->first[b]]));
    }
    for (uint32_t s = 0; s < buckets; s++)
        KEEL_TRY(keel_launch_list_seal(&windows->clear[s], engine->kernels));
    return KEEL_OK;
}

/* ---- asking -------------------------------------------------------------------------------------------- */

uint64_t keel_engine_gradient_at(const struct keel_engine *engine, uint32_t bucket)
{
    KEEL_ASSERT(bucket < engine->layout.bucket_count);
    return engine->windowed ? engine->windows.at[bucket] : engine->layout.buckets[bucket].offset;
}

uint64_t keel_engine_gradient_count(const struct keel_engine *engine)
{
    return engine->windowed ? engine->windows.count : engine->layout.moved_count;
}

uint64_t keel_engine_gradient_of_tile(const struct keel_engine *engine, uint32_t tile)
{
    const uint32_t bucket = keel_bucket_of_tile(&engine->layout, tile);
    return keel_engine_gradient_at(engine, bucket) + engine->layout.tiles[tile].offset -
           engine->layout.buckets[bucket].offset;
}

const uint32_t *keel_engine_window_waits(const struct keel_engine *engine)
{
    return engine->windowed ? engine->windows.waits : NULL;
}
