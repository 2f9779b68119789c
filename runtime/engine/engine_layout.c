/* engine_layout.c - the tile table: where parameters lie in the flat buffers, and which ranges become final
 * together.
 *
 * Order: trained parameters, then statistics, then what is frozen; among them by the node of the backward
 * pass that adds last to the gradient, then by number. Alignment: KEEL_FLAT_ALIGN, whatever the device. So a
 * layout follows from the model alone, and ranks on unlike boards can exchange whole buckets. */
#include "engine_internal.h"
#include "lower.h"

#include <keel/memory.h>
#include <stdlib.h>

static const uint64_t default_bucket_bytes = UINT64_C(4) << 20;

struct completion {
    uint32_t node, number;
    enum { TRAINED, STATISTIC, FROZEN } group;
};

static int compare_completions(const void *a, const void *b)
{
    const struct completion *x = a;
    const struct completion *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* When each gradient is final; a parameter without one comes last. */
static void find_completions(const struct keel_graph *graph, struct completion *out)
{
    for (uint32_t i = 0; i < graph->param_count; i++)
        out[i] = (struct completion){.node = UINT32_MAX,
                                     .number = i,
                                     .group = graph->params[i].frozen      ? FROZEN
                                              : graph->params[i].statistic ? STATISTIC
                                                                           : TRAINED};
    for (uint32_t n = 0; n < graph->node_count; n++)
        for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
            keel_value value = graph->nodes[n].out[i];
            if (value != 0 && graph->values[value].kind == KEEL_VALUE_GRADIENT)
                out[graph->values[value].param].node = n;
        }
    qsort(out, graph->param_count, sizeof *out, compare_completions);
}

/* Of rows of several dimensions, split as one, one alone is longer than 1 (pass_shard.c), which the rank's
 * value has in place of them: as the whole's dimensions they are the same elements. */
static void shape_param(const struct keel_shape *whole, const struct keel_shape *held,
                        const struct keel_axis_spec *spec, struct keel_engine_param *param)
{
    param->split = spec->kind == KEEL_SPLIT;
    param->dims = whole->dims;
    for (uint32_t d = 0; d < whole->dims; d++) {
        param->whole[d] = whole->size[d];
        param->shape[d] = whole->dims == held->dims ? held->size[d] : whole->size[d];
    }
    if (!param->split)
        return;
    param->split_dim = keel_axis_spec_dim(whole, spec);
    if (whole->dims != held->dims)
        param->shape[param->split_dim] = held->size[spec->dim];
}

static void place_params(struct keel_layout *layout, const struct keel_graph *graph,
                         const struct keel_slice_run *cut, const struct completion *completions)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < layout->param_count; i++) {
        uint32_t number = completions[i].number;
        const struct keel_ir_value *v = &graph->values[graph->params[number].value];
        const struct keel_axis_spec *spec = &v->spec.axis[KEEL_AXIS_TENSOR];
        const struct keel_shape *shape = &v->shape;
        struct keel_engine_param *param = &layout->params[number];
        layout->order[i] = number;
        layout->tiles[number] = (struct keel_tile){.param = number,
                                                   .offset = offset,
                                                   .count = keel_shape_count(shape),
                                                   .first_page = offset / KEEL_FLAT_ALIGN};
        shape_param(&graph->params[number].whole, shape, spec, param);
        param->count = keel_shape_count(shape);
        param->decay = graph->params[number].decay;
        param->statistic = graph->params[number].statistic;
        param->kept = graph->params[number].kept;
        param->added = graph->params[number].added;
        param->frozen = graph->params[number].frozen;
        param->rate = graph->params[number].rate;
        param->fill = graph->params[number].fill;
        param->outer = param->split && spec->outer > 1 ? spec->outer : 1;
        param->place = keel_cut_place(&graph->params[number].whole, spec, cut);
        offset = keel_round_up(offset + param->count, KEEL_FLAT_ALIGN);
        layout->tiles[number].page_count = offset / KEEL_FLAT_ALIGN - layout->tiles[number].first_page;
        if (completions[i].group == TRAINED)
            layout->trained_tiles = i + 1;
        if (completions[i].group == FROZEN)
            continue;
        layout->moved_tiles = i + 1;
        layout->moved_count = offset;
    }
    layout->flat_count = offset;
}

/* Elements of a parameter, of all slices. */
static uint64_t whole_count(const struct keel_engine_param *param)
{
    uint64_t count = 1;
    for (uint32_t d = 0; d < param->dims; d++)
        count *= param->whole[d];
    return keel_round_up(count, KEEL_FLAT_ALIGN);
}

/* Tiles, until the bucket of an engine with all slices is as large as aimed at: engines of unequal cuts
 * exchange what is of one bucket, so they have the same. None has something frozen and something else. */
static void cut_buckets(struct keel_layout *layout, uint64_t bucket_bytes)
{
    uint64_t begin = 0, whole = 0;
    layout->bucket_count = layout->all_buckets = 0;
    for (uint32_t i = 0; i < layout->tile_count; i++) {
        const bool last = i + 1 == layout->tile_count || i + 1 == layout->moved_tiles;
        const uint64_t end =
            i + 1 == layout->tile_count ? layout->flat_count : layout->tiles[layout->order[i + 1]].offset;
        whole += whole_count(&layout->params[layout->order[i]]);
        if (!last && whole * sizeof(float) < bucket_bytes)
            continue;
        layout->buckets[layout->all_buckets] =
            (struct keel_engine_bucket){.offset = begin, .count = end - begin};
        layout->bucket_end[layout->all_buckets++] = i + 1;
        layout->bucket_count += i < layout->moved_tiles;
        begin = end;
        whole = 0;
    }
}

/* Each bucket is an event and a sum under way at once: a model of many large parameters gets larger buckets
 * instead of more. */
static void place_buckets(struct keel_layout *layout, uint64_t bucket_bytes)
{
    cut_buckets(layout, bucket_bytes);
    while (layout->all_buckets > KEEL_ENGINE_BUCKETS_MAX) {
        bucket_bytes *= 2;
        cut_buckets(layout, bucket_bytes);
    }
}

static int compare_uses(const void *a, const void *b)
{
    const struct keel_use *x = a;
    const struct keel_use *y = b;
    if (x->param != y->param)
        return x->param < y->param ? -1 : 1;
    return x->part < y->part ? -1 : x->part > y->part;
}

/* Accumulators beside the gradients. */
static void place_uses(struct keel_layout *layout, const struct keel_graph *graph)
{
    for (keel_value value = 1; value < graph->value_count; value++) {
        const struct keel_ir_value *v = &graph->values[value];
        if (v->kind == KEEL_VALUE_GRADIENT && keel_is_use(graph, v))
            layout->uses[layout->use_count++] = (struct keel_use){.param = v->param,
                                                                  .part = v->part,
                                                                  .slices = keel_use_slices(graph, v),
                                                                  .rows = keel_has_rows(graph, v),
                                                                  .count = keel_shape_count(&v->shape)};
    }
    qsort(layout->uses, layout->use_count, sizeof *layout->uses, compare_uses);
    for (uint32_t u = 0; u < layout->use_count; u++) {
        layout->uses[u].offset = layout->uses_count;
        layout->uses_count = keel_round_up(layout->uses_count + layout->uses[u].count, KEEL_FLAT_ALIGN);
    }
}

static uint32_t count_uses(const struct keel_graph *graph)
{
    uint32_t count = 0;
    for (keel_value value = 1; value < graph->value_count; value++)
        count +=
            graph->values[value].kind == KEEL_VALUE_GRADIENT && keel_is_use(graph, &graph->values[value]);
    return count;
}

static enum keel_status allocate(struct keel_layout *layout, const struct keel_graph *graph)
{
    layout->param_count = layout->tile_count = graph->param_count;
    KEEL_TRY(keel_alloc(graph->param_count, sizeof *layout->params, (void *)&layout->params));
    KEEL_TRY(keel_alloc(graph->param_count, sizeof *layout->tiles, (void *)&layout->tiles));
    KEEL_TRY(keel_alloc(graph->param_count, sizeof *layout->order, (void *)&layout->order));
    KEEL_TRY(keel_alloc(graph->param_count, sizeof *layout->buckets, (void *)&layout->buckets));
    KEEL_TRY(keel_alloc(graph->param_count, sizeof *layout->bucket_end, (void *)&layout->bucket_end));
    const uint32_t uses = count_uses(graph);
    if (uses > 0)
        KEEL_TRY(keel_alloc(uses, sizeof *layout->uses, (void *)&layout->uses));
    for (uint32_t i = 0; i < graph->param_count; i++) {
        char *name = NULL;
        KEEL_TRY(keel_strdup(graph->params[i].name, &name));
        layout->params[i].name = name;
    }
    return KEEL_OK;
}

enum keel_status keel_layout_init(struct keel_layout *layout, const struct keel_graph *graph,
                                  const struct keel_slice_run *cut, uint64_t bucket_bytes, bool owned)
{
    *layout = (struct keel_layout){.params = NULL};
    struct completion *completions = NULL;
    enum keel_status status = allocate(layout, graph);
    if (status == KEEL_OK)
        status = keel_alloc(graph->param_count, sizeof *completions, (void *)&completions);
    if (status == KEEL_OK) {
        find_completions(graph, completions);
        place_params(layout, graph, cut, completions);
        if (layout->uses != NULL)
            place_uses(layout, graph);
        place_buckets(layout, bucket_bytes != 0 ? bucket_bytes : default_bucket_bytes);
        if (owned) {
            layout->bucket_count = layout->all_buckets;
            layout->moved_count = layout->flat_count;
        }
    } else {
        keel_layout_fini(layout);
    }
    keel_free(completions);
    return status;
}

void keel_layout_fini(struct keel_layout *layout)
{
    for (uint32_t i = 0; layout->params != NULL && i < layout->param_count; i++)
        keel_free((void *)(uintptr_t)layout->params[i].name);
    keel_free(layout->params);
    keel_free(layout->tiles);
    keel_free(layout->order);
    keel_free(layout->uses);
    keel_free(layout->buckets);
    keel_free(layout->bucket_end);
    *layout = (struct keel_layout){.params = NULL};
}
