/* engine_update.c - what is not of the graph: the end of a shard, norm, update, digest.
 *
 * Owns the lists of keel_update_lists and what the update is told of the tiles. One launch updates all
 * of them (keel/optimizer_ops.h); what changes from step to step lies in the control block. */
#include "engine_internal.h"
#include "lower.h"

#include <keel/bits.h>
#include <keel/clock.h>
#include <keel/memory.h>

static const uint64_t blocking_limit_ns = 600 * KEEL_NS_PER_S;

_Static_assert(KEEL_FLAT_ALIGN % KEEL_UPDATE_PAGE == 0, "a parameter begins with a page of the update");

/* Where an element stands in the digest: whatever the layout. */
static uint64_t digest_place(const struct keel_engine *engine, const struct keel_tile *tile)
{
    return ((uint64_t)tile->param << 40) + engine->layout.params[tile->param].place.first;
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

struct keel_update_tensor keel_engine_describe_tile(const struct keel_engine *engine, uint32_t number)
{
    const struct keel_tile *tile = &engine->layout.tiles[number];
    const struct keel_engine_param *param = &engine->layout.params[tile->param];
    enum keel_tensor_kind kind = param->decay ? KEEL_TENSOR_DECAY : KEEL_TENSOR_PLAIN;
    if (param->frozen)
        kind = KEEL_TENSOR_KEPT;
    if (param->statistic)
        kind = is_moved(engine->train.graph, tile->param) ? KEEL_TENSOR_STATISTIC : KEEL_TENSOR_KEPT;
    return (struct keel_update_tensor){
        .offset = tile->offset,
        .count = tile->count,
        .first_element = digest_place(engine, tile),
        .kind = kind,
        .factor = param->statistic ? engine->train.graph->params[tile->param].momentum : param->rate,
        .row = param->place.row,
        .stride = param->place.stride,
        .tile = number};
}

/* Slice `slice` of a parameter, of which the engine has a run: the runs of its units, in all that is in front
 * of them and in each part. */
static void take_slice(struct keel_update_tensor *tensor, const struct keel_shape *whole,
                       const struct keel_axis_spec *spec, const struct keel_slice_run *cut, uint32_t slice)
{
    const struct keel_cut_view view = keel_cut_view(whole, spec);
    const uint64_t begin = keel_slice_begin(view.units, cut->of, cut->first),
                   held = keel_slice_begin(view.units, cut->of, cut->first + cut->count) - begin,
                   first = keel_slice_begin(view.units, cut->of, slice),
                   end = keel_slice_begin(view.units, cut->of, slice + 1);
    tensor->row = (end - first) * view.inner;
    tensor->stride = held * view.inner;
    tensor->offset += (first - begin) * view.inner;
    tensor->count = tensor->count / tensor->stride * tensor->row;
}

/* A tensor for each parameter and each of its slices that are here. What is not split is here whatever the
 * slices: of them all, or of the first alone. */
static enum keel_status list_boxes(const struct keel_engine *engine, bool of_first,
                                   struct keel_update_tensor **out, uint32_t *out_count, uint32_t *out_all)
{
    const struct keel_graph *graph = engine->train.graph;
    const struct keel_slice_run *cut = &engine->tensor;
    struct keel_update_tensor *boxes = NULL;
    uint32_t count = 0, all = 0;
    KEEL_TRY(keel_alloc((size_t)engine->layout.tile_count * cut->of, sizeof *boxes, (void *)&boxes));
    for (uint32_t p = 0; p < engine->layout.tile_count; p++) {
        const struct keel_axis_spec *spec =
            &graph->values[graph->params[p].value].spec.axis[KEEL_AXIS_TENSOR];
        const bool is_split = spec->kind == KEEL_SPLIT && cut->of > 1; /* models say it for any mesh */
        const uint32_t slices = is_split ? cut->of : 1;
        for (uint32_t s = 0; s < slices; s++, all++) {
            if ((is_split || of_first) && (s < cut->first || s - cut->first >= cut->count))
                continue;
            boxes[count] = keel_engine_describe_tile(engine, p);
            boxes[count].row = boxes[count].stride = 0;
            boxes[count].tile = all;
            if (is_split)
                take_slice(&boxes[count], &graph->params[p].whole, spec, cut, s);
            count++;
        }
    }
    *out = boxes;
    *out_count = count;
    *out_all = all;
    return KEEL_OK;
}

enum keel_status keel_engine_norm_boxes(const struct keel_engine *engine, struct keel_update_tensor **out,
                                        uint32_t *out_count, uint32_t *out_all)
{
    return list_boxes(engine, true, out, out_count, out_all);
}

enum keel_status keel_engine_boxes(const struct keel_engine *engine, struct keel_engine_box **out,
                                   uint32_t *out_count)
{
    struct keel_update_tensor *tensors;
    struct keel_engine_box *boxes;
    uint32_t all, listed, count = 0;
    KEEL_TRY(list_boxes(engine, false, &tensors, &listed, &all));
    enum keel_status status = keel_alloc(listed, sizeof *boxes, (void *)&boxes);
    for (uint32_t i = 0; i < listed && status == KEEL_OK; i++)
        if (tensors[i].offset < engine->layout.moved_count)
            boxes[count++] = (struct keel_engine_box){tensors[i].offset, tensors[i].count, tensors[i].row,
                                                      tensors[i].stride};
    keel_free(tensors);
    if (status != KEEL_OK)
        return status;
    *out = boxes;
    *out_count = count;
    return KEEL_OK;
}

/* The table of the norm's boxes, where it is not that of the update. */
static enum keel_status upload_boxes(struct keel_engine *engine)
{
    struct keel_update_lists *update = &engine->update;
    struct keel_update_tensor *boxes = NULL;
    uint32_t *pages = NULL, count = 0;
    KEEL_TRY(keel_engine_norm_boxes(engine, &boxes, &count, &update->norm_tiles));
    update->box_count = count;
    update->box_page_count = (uint32_t)keel_norm_page_count(boxes, count);
    const uint64_t page_bytes = update->box_page_count * sizeof *pages;
    enum keel_status status = keel_alloc(update->box_page_count, sizeof *pages, (void *)&pages);
    if (status == KEEL_OK)
        status = keel_norm_find_pages(boxes, count, engine->layout.flat_count, pages);
    if (status == KEEL_OK)
        status = keel_engine_make_buffer(engine, count * sizeof *boxes, &update->boxes);
    if (status == KEEL_OK)
        status = keel_engine_make_buffer(engine, page_bytes, &update->box_pages);
    if (status == KEEL_OK)
        status = keel_queue_write(engine->queue, update->boxes, 0, boxes, count * sizeof *boxes, NULL, NULL);
    if (status == KEEL_OK)
        status = keel_queue_write(engine->queue, update->box_pages, 0, pages, page_bytes, NULL, NULL);
    if (status == KEEL_OK) /* the tables go next */
        status = keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
    keel_free(boxes);
    keel_free(pages);
    return status;
}

/* With room for what goes to the device, which must stay until it is there. */
static enum keel_status upload_tables(struct keel_engine *engine, struct keel_update_tensor *tensors,
                                      uint32_t *pages)
{
    struct keel_update_lists *update = &engine->update;
    const uint32_t count = engine->layout.tile_count;
    const uint64_t page_bytes = keel_update_page_count(engine->layout.flat_count) * sizeof *pages;
    for (uint32_t i = 0; i < count; i++)
        tensors[i] = keel_engine_describe_tile(engine, i);
    KEEL_TRY(keel_update_find_pages(tensors, count, engine->layout.flat_count, pages));
    KEEL_TRY(keel_engine_make_buffer(engine, count * sizeof *tensors, &update->tensors));
    KEEL_TRY(keel_engine_make_buffer(engine, page_bytes, &update->pages));
    KEEL_TRY(
        keel_queue_write(engine->queue, update->tensors, 0, tensors, count * sizeof *tensors, NULL, NULL));
    KEEL_TRY(keel_queue_write(engine->queue, update->pages, 0, pages, page_bytes, NULL, NULL));
    KEEL_TRY(keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns)));
    return engine->in_pieces ? KEEL_OK : keel_engine_average_make(engine, tensors, count, &update->average);
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
    engine->update.norm_tiles = engine->update.box_count = engine->layout.tile_count;
    if (status == KEEL_OK && engine->tensor.of > 1)
        status = upload_boxes(engine);
    if (status == KEEL_OK)
        status =
            keel_engine_make_buffer(engine, engine->update.norm_tiles * sizeof(float), &engine->update.tiles);
    return status;
}

static enum keel_status emit_digest(struct keel_engine *engine)
{
    for (uint32_t i = 0; i < engine->layout.tile_count; i++) {
        const struct keel_tile *tile = &engine->layout.tiles[i];
        struct keel_digest digest = {.count = tile->count,
                                     .first_element = digest_place(engine, tile),
                                     .row = engine->layout.params[tile->param].place.row,
                                     .stride = engine->layout.params[tile->param].place.stride,
                                     .x = engine->weights[i],
                                     .digest = engine->digest,
                                     .scratch = engine->scratch};
        KEEL_TRY(keel_op_digest(engine->kernels, &digest, &engine->update.digest));
    }
    return keel_launch_list_seal(&engine->update.digest, engine->kernels);
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

/* A row of as many ones as there are slices: the product with it adds slices in the tree. */
static enum keel_status make_ones(struct keel_engine *engine)
{
    uint32_t slices = 1;
    bool rows = false;
    for (uint32_t u = 0; u < engine->layout.use_count; u++) {
        slices = engine->layout.uses[u].slices > slices ? engine->layout.uses[u].slices : slices;
        rows = rows || engine->layout.uses[u].rows;
    }
    if (!rows)
        return KEEL_OK;
    KEEL_TRY(keel_engine_make_buffer(engine, slices * sizeof(float), &engine->update.ones));
    KEEL_TRY(keel_queue_fill(engine->queue, engine->update.ones, 0, slices * sizeof(float),
                             keel_bits_of(1.0F), NULL, NULL));
    return keel_queue_finish(engine->queue, keel_deadline_after_ns(blocking_limit_ns));
}

/* gradient += a use, whose slices, if it has such, are added in the tree. */
static enum keel_status emit_use(struct keel_engine *engine, const struct keel_use *use,
                                 struct keel_buffer *accumulator, struct keel_buffer *gradient,
                                 struct keel_launch_list *list)
{
    const uint32_t slices = use->slices, n = (uint32_t)(use->count / slices);
    if (use->rows && !keel_engine_is_whole(engine))
        return keel_engine_emit_joined(engine, use, gradient, list);
    struct keel_add add = {.count = use->count, .a = gradient, .b = accumulator, .y = gradient};
    struct keel_gemm tree = {.m = 1,
                             .n = n,
                             .k = slices,
                             .batch = 1,
                             .accumulate = true,
                             .lda = slices,
                             .ldb = n,
                             .ldc = n,
                             .k_slices = {.count = slices, .of = slices, .units = slices, .unit = 1},
                             .a = engine->update.ones,
                             .b = accumulator,
                             .c = gradient};
    return slices > 1 ? keel_op_gemm(engine->kernels, &tree, list) : keel_op_add(engine->kernels, &add, list);
}

/* gradient += use 1, += use 2 ... of the tiles of a bucket. */
static enum keel_status emit_uses(struct keel_engine *engine, uint32_t bucket, struct keel_launch_list *list)
{
    const struct keel_layout *layout = &engine->layout;
    for (uint32_t at = bucket == 0 ? 0 : layout->bucket_end[bucket - 1]; at < layout->bucket_end[bucket];
         at++) {
        const uint32_t tile = layout->order[at];
        for (uint32_t u = 0; u < layout->use_count; u++)
            if (layout->uses[u].param == layout->tiles[tile].param)
                KEEL_TRY(
                    emit_use(engine, &layout->uses[u], engine->use_slices[u], engine->gradients[tile], list));
    }
    return KEEL_OK;
}

static enum keel_status emit_join(struct keel_engine *engine)
{
    struct keel_update_lists *update = &engine->update;
    const struct keel_engine_program *train = &engine->train;
    KEEL_TRY(make_ones(engine));
    KEEL_TRY(keel_alloc(train->list_count, sizeof *update->join, (void *)&update->join));
    for (uint32_t s = 0, bucket = 0; s < train->list_count; s++) {
        if (train->segments[s].joins)
            KEEL_TRY(keel_engine_emit_sums(engine, bucket, &update->join[s]));
        if (train->segments[s].bucket == bucket)
            KEEL_TRY(emit_uses(engine, bucket++, &update->join[s]));
    }
    KEEL_TRY(keel_engine_emit_losses(engine, train, engine->loss, &update->join[train->list_count - 1]));
    for (uint32_t s = 0; s < train->list_count; s++)
        KEEL_TRY(keel_launch_list_seal(&update->join[s], engine->kernels));
    return KEEL_OK;
}

/* Without gradients: from the squares of pages that are in scratch. An engine with some slices sums its tiles
 * in the list `first`: what others have comes between the two. */
static enum keel_status emit_norm(struct keel_engine *engine, struct keel_buffer *gradients,
                                  struct keel_launch_list *first, struct keel_launch_list *list)
{
    const struct keel_update_lists *update = &engine->update;
    const bool shared = update->sums != NULL;
    const bool boxes = update->boxes != NULL;
    struct keel_norm_tiles tiles = {.count = engine->layout.flat_count,
                                    .held_count = engine->layout.moved_count,
                                    .page_count = update->box_page_count,
                                    .tensor_count = update->box_count,
                                    .tile_count = update->norm_tiles,
                                    .x = gradients,
                                    .tensors = boxes ? update->boxes : update->tensors,
                                    .pages = boxes ? update->box_pages : update->pages,
                                    .scratch = engine->scratch,
                                    .tiles = update->tiles};
    struct keel_fill zeros = {.count = tiles.tile_count, .y = tiles.tiles};
    struct keel_norm norm = {.tile_count = tiles.tile_count,
                             .tiles = shared ? update->sums->tiles : tiles.tiles,
                             .scratch = engine->scratch,
                             .norm = engine->norm,
                             .control = engine->control,
                             .loss_scale = engine->loss_scale};
    if (shared) /* tiles of others are theirs */
        KEEL_TRY(keel_op_fill(engine->kernels, &zeros, first));
    if (update->box_count > 0)
        KEEL_TRY(keel_op_norm_tiles(engine->kernels, &tiles, shared ? first : list));
    KEEL_TRY(keel_op_norm(engine->kernels, &norm, list));
    if (shared)
        KEEL_TRY(keel_launch_list_seal(first, engine->kernels));
    return keel_launch_list_seal(list, engine->kernels);
}

enum keel_status keel_engine_emit_page_norm(struct keel_engine *engine, struct keel_launch_list *tiles,
                                            struct keel_launch_list *list)
{
    return emit_norm(engine, NULL, tiles, list);
}

static struct keel_update describe_update(const struct keel_engine *engine, struct keel_buffer *gradients)
{
    const struct keel_update_lists *update = &engine->update;
    return (struct keel_update){.optimizer = engine->optimizer,
                                .nesterov = engine->nesterov,
                                .count = engine->layout.flat_count,
                                .held_count = engine->layout.moved_count,
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
    KEEL_TRY(emit_norm(engine, gradients, &source->tiles, &source->norm));
    if (engine->loss_scale != NULL && !engine->fixed_scale) {
        struct keel_loss_scale scale = {.state = engine->loss_scale, .norm = engine->norm};
        KEEL_TRY(keel_op_loss_scale(engine->kernels, &scale, &source->update));
    }
    KEEL_TRY(keel_op_update(engine->kernels, &op, &source->update));
    KEEL_TRY(keel_engine_emit_average(engine, &engine->update.average, &op, engine->flat[KEEL_FLAT_EMA],
                                      engine->layout.moved_count, &source->update));
    return keel_launch_list_seal(&source->update, engine->kernels);
}

enum keel_status keel_engine_emit_update(struct keel_engine *engine)
{
    struct keel_buffer *gradients = engine->flat[KEEL_FLAT_GRADIENTS];
    if (!engine->weights_windowed) /* else their owners have it (keel_engine_pieces_digest) */
        KEEL_TRY(emit_digest(engine));
    if (engine->training)
        KEEL_TRY(make_tables(engine));
    KEEL_TRY(keel_engine_emit_shared(engine));
    if (!engine->training)
        return KEEL_OK;
    KEEL_TRY(keel_engine_emit_begin(engine));
    KEEL_TRY(emit_join(engine));
    if (engine->in_pieces)
        return KEEL_OK;
    const struct keel_update op = describe_update(engine, gradients);
    KEEL_TRY(keel_engine_make_buffer(engine, keel_update_scratch_bytes(&op), &engine->update.scratch));
    return emit_source(engine, gradients, &engine->update.own);
}

static void source_fini(struct keel_engine_source *source)
{
    keel_launch_list_fini(&source->tiles);
    keel_launch_list_fini(&source->norm);
    keel_launch_list_fini(&source->update);
}

enum keel_status keel_engine_source_create(struct keel_engine *engine, struct keel_buffer *gradients,
                                           struct keel_engine_source **out)
{
    struct keel_engine_source *source;
    KEEL_ASSERT(engine->training && !engine->in_pieces &&
                keel_buffer_bytes(gradients) >= engine->layout.moved_count * sizeof(float));
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

void keel_update_lists_fini(struct keel_update_lists *update, uint32_t segment_count)
{
    struct keel_buffer *buffers[] = {update->tensors, update->pages, update->scratch,  update->tiles,
                                     update->ones,    update->boxes, update->box_pages};
    keel_launch_list_fini(&update->zero);
    keel_launch_list_fini(&update->shard);
    for (uint32_t b = 0; update->join != NULL && b < segment_count; b++)
        keel_launch_list_fini(&update->join[b]);
    keel_free(update->join);
    source_fini(&update->own);
    keel_engine_average_fini(&update->average);
    keel_launch_list_fini(&update->digest);
    keel_engine_sums_fini(update->sums);
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i] != NULL)
            keel_buffer_destroy(buffers[i]);
}
