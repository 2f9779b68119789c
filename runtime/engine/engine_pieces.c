/* engine_pieces.c - the update of some pages of the flat buffers: tables, buffers and lists of what one
 * holder has.
 *
 * Runs lie one behind the other, so norm and update are a launch each, as they are of the whole. What of a
 * tile lies in a run is a tensor to the update, with its own place in the digest, and a box to the norm for
 * each slice of the tile. A cut goes through no page of a box: so each page has its sum from one holder, and
 * sums of tiles are made of all pages where all have them. */
#include "engine_internal.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

static const uint64_t blocking_limit_ns = 600 * KEEL_NS_PER_S;

struct keel_engine_pieces {
    struct keel_engine *engine;   /* borrowed */
    struct keel_engine_run *runs; /* owned, as all below */
    uint64_t *at;                 /* by run: where it begins here */
    uint32_t run_count;
    uint64_t count, bytes;
    struct keel_buffer *flat[KEEL_FLAT_COUNT], *loss_scale; /* loss_scale: a slice, or NULL */
    struct keel_buffer *tensors, *pages, *boxes, *box_pages, *squares, *scratch;
    struct keel_launch_list square, tiles, norm, update; /* tiles: of an engine with some slices */
    struct keel_engine_average average;
    struct keel_buffer *digest_scratch;     /* of weights in windows */
    struct keel_parts digested;             /* likewise: slices of the weights */
    struct keel_launch_list digest, shared; /* of those of the first runs, one a bucket; shared: of what the
                                               engines of all slices have whole */
};

/* ---- what lies in a run ------------------------------------------------------------------------------- */

/* Boxes of all tiles that the engine has, with `page` as its norm has it. A tile that the engines of all
 * slices have whole is a box of the first slice's alone: of the others it has none. */
struct whole {
    struct keel_update_tensor *boxes; /* owned */
    uint32_t *first_box;              /* by tile; and the end */
    uint32_t box_count;
    uint64_t page_count;
};

static void whole_fini(struct whole *whole)
{
    keel_free(whole->boxes);
    keel_free(whole->first_box);
}

/* Without slices the norm of the whole goes by pages of the flat buffers. */
static void number_pages(const struct keel_engine *engine, struct whole *whole)
{
    uint64_t next = 0;
    for (uint32_t tile = 0; tile < engine->layout.tile_count; tile++)
        for (uint32_t b = whole->first_box[tile]; b < whole->first_box[tile + 1]; b++) {
            const uint64_t page = engine->tensor.of > 1 ? next : engine->layout.tiles[tile].first_page;
            whole->boxes[b].page = (uint32_t)page;
            next += keel_update_page_count(whole->boxes[b].count);
        }
    whole->page_count = engine->tensor.of > 1 ? next : keel_update_page_count(engine->layout.flat_count);
}

static enum keel_status whole_init(const struct keel_engine *engine, struct whole *whole)
{
    *whole = (struct whole){.boxes = NULL};
    uint32_t all; /* of the model; not asked for */
    KEEL_TRY(keel_engine_norm_boxes(engine, &whole->boxes, &whole->box_count, &all));
    enum keel_status status =
        keel_alloc(engine->layout.tile_count + 1, sizeof *whole->first_box, (void *)&whole->first_box);
    if (status != KEEL_OK) {
        whole_fini(whole);
        return status;
    }
    uint32_t at = 0;
    for (uint32_t tile = 0; tile < engine->layout.tile_count; tile++) {
        const uint64_t end = engine->layout.tiles[tile].offset + engine->layout.tiles[tile].count;
        whole->first_box[tile] = at;
        while (at < whole->box_count && whole->boxes[at].offset >= engine->layout.tiles[tile].offset &&
               whole->boxes[at].offset < end)
            at++;
    }
    whole->first_box[engine->layout.tile_count] = at;
    KEEL_ASSERT(at == whole->box_count);
    number_pages(engine, whole);
    return KEEL_OK;
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A slice that is one run of its tile, as of a table whose rows are split. */
static bool is_run(const struct keel_update_tensor *box)
{
    return box->row == 0 || box->row == box->count;
}

/* Runs side by side, each of which begins where a page of the tile does: then all pages are pages of one. */
static bool are_runs(const struct keel_engine *engine, const struct whole *whole, uint32_t tile)
{
    bool all = true;
    for (uint32_t b = whole->first_box[tile]; b < whole->first_box[tile + 1]; b++)
        all = all && is_run(&whole->boxes[b]) &&
              (whole->boxes[b].offset - engine->layout.tiles[tile].offset) % KEEL_UPDATE_PAGE == 0;
    return all;
}

/* So many elements of a tile, or a multiple, are whole pages of each of its boxes. */
static uint64_t atom(const struct keel_engine *engine, const struct whole *whole, uint32_t tile)
{
    uint64_t rows = 1, stride = 0;
    if (are_runs(engine, whole, tile))
        return KEEL_UPDATE_PAGE;
    for (uint32_t b = whole->first_box[tile]; b < whole->first_box[tile + 1]; b++) {
        const struct keel_update_tensor *box = &whole->boxes[b];
        const uint64_t need = KEEL_UPDATE_PAGE / gcd(KEEL_UPDATE_PAGE, box->row);
        rows = need > rows ? need : rows; /* powers of two */
        stride = box->stride;
    }
    KEEL_ASSERT(stride > 0); /* else there is no box, and all of them are runs */
    const uint64_t page = KEEL_UPDATE_PAGE / gcd(KEEL_UPDATE_PAGE, rows * stride);
    return rows * stride * page;
}

/* The part of a tile's box that lies in elements [first, end) of the tile, which are cuts: as a box of a flat
 * buffer in which the tile's element `first` lies at `at`. False: none does. */
static bool part_of(const struct keel_update_tensor *box, const struct keel_tile *tile, uint64_t first,
                    uint64_t end, uint64_t at, struct keel_update_tensor *out)
{
    const uint64_t begins = box->offset - tile->offset, ends = begins + box->count;
    if (is_run(box)) {
        const uint64_t from = first > begins ? first : begins, to = end < ends ? end : ends;
        *out = *box;
        out->row = out->stride = 0;
        out->offset = at + from - first;
        out->count = to > from ? to - from : 0;
        out->page = box->page + (uint32_t)((from - begins) / KEEL_UPDATE_PAGE);
        return to > from;
    }
    const uint64_t row = box->row, stride = box->stride;
    const uint64_t rows = box->count / row;
    const uint64_t from = first / stride, to = end >= tile->count ? rows : end / stride;
    *out = *box;
    out->offset = at + (box->offset - tile->offset);
    out->count = (to - from) * row;
    out->page = box->page + (uint32_t)(from * row / KEEL_UPDATE_PAGE);
    return to > from;
}

/* What of the tiles lies in runs: tensors as the update has them, and boxes of the norm with the pages that
 * they have in the whole. */
struct parts {
    struct keel_update_tensor *tensors, *boxes; /* owned */
    uint32_t tensor_count, box_count;
};

static void parts_fini(struct parts *parts)
{
    keel_free(parts->tensors);
    keel_free(parts->boxes);
}

static void add_tile(const struct keel_engine *engine, const struct whole *whole, uint32_t number,
                     const struct keel_engine_run *run, uint64_t at, struct parts *parts)
{
    const struct keel_tile *tile = &engine->layout.tiles[number];
    const uint64_t run_end = run->first + run->count;
    const uint64_t first = run->first > tile->offset ? run->first - tile->offset : 0;
    if (tile->offset >= run_end || first >= tile->count)
        return;
    const uint64_t end = run_end - tile->offset < tile->count ? run_end - tile->offset : tile->count;
    if (first >= end)
        return;
    const uint64_t place = at + tile->offset + first - run->first;
    struct keel_update_tensor *tensor = &parts->tensors[parts->tensor_count++];
    *tensor = keel_engine_describe_tile(engine, number);
    tensor->offset = place;
    tensor->count = end - first;
    tensor->row = tensor->stride = 0; /* places in a digest that nobody asks for */
    for (uint32_t b = whole->first_box[number]; b < whole->first_box[number + 1]; b++)
        parts->box_count +=
            part_of(&whole->boxes[b], tile, first, end, place, &parts->boxes[parts->box_count]) ? 1 : 0;
}

static enum keel_status parts_init(const struct keel_engine *engine, const struct whole *whole,
                                   const struct keel_engine_run *runs, uint32_t run_count,
                                   struct parts *parts)
{
    const size_t most = (size_t)engine->layout.tile_count + run_count;
    uint64_t at = 0;
    *parts = (struct parts){.tensors = NULL};
    enum keel_status status = keel_alloc(most, sizeof *parts->tensors, (void *)&parts->tensors);
    if (status == KEEL_OK)
        status = keel_alloc(most * engine->tensor.of, sizeof *parts->boxes, (void *)&parts->boxes);
    if (status != KEEL_OK) {
        parts_fini(parts);
        return status;
    }
    for (uint32_t r = 0; r < run_count; r++, at += runs[r - 1].count)
        for (uint32_t i = 0; i < engine->layout.tile_count; i++)
            add_tile(engine, whole, engine->layout.order[i], &runs[r], at, parts);
    return KEEL_OK;
}

/* ---- who has what -------------------------------------------------------------------------------------- */

/* The last element at or before `element` that begins a page of the norm, and one of the update. */
static uint64_t cut(const struct keel_engine *engine, const struct whole *whole, uint64_t element)
{
    const struct keel_layout *layout = &engine->layout;
    uint32_t low = 0, end = layout->tile_count; /* the last tile at or before it is one of these */
    while (end - low > 1) {
        const uint32_t middle = low + (end - low) / 2;
        *(layout->tiles[layout->order[middle]].offset <= element ? &low : &end) = middle;
    }
    if (end == 0 || layout->tiles[layout->order[low]].offset > element)
        return 0;
    const struct keel_tile *tile = &layout->tiles[layout->order[low]];
    const uint64_t size = atom(engine, whole, layout->order[low]), within = element - tile->offset;
    const uint64_t most = within < tile->count ? within : tile->count - 1; /* gaps go with what is before */
    return tile->offset + most / size * size;
}

/* Where position `position` of `of` begins in a bucket. */
static uint64_t begin_of(const struct keel_engine *engine, const struct whole *whole,
                         const struct keel_engine_bucket *bucket, uint32_t position, uint32_t of)
{
    const uint64_t pages = keel_update_page_count(bucket->count);
    if (position == 0 || position == of)
        return bucket->offset + (position == 0 ? 0 : bucket->count);
    return cut(engine, whole, bucket->offset + pages * position / of * KEEL_UPDATE_PAGE);
}

enum keel_status keel_engine_share(const struct keel_engine *engine, uint32_t position, uint32_t of,
                                   struct keel_engine_run *out)
{
    struct whole whole;
    KEEL_ASSERT(position < of);
    KEEL_TRY(whole_init(engine, &whole));
    for (uint32_t b = 0; b < engine->layout.bucket_count; b++) {
        const struct keel_engine_bucket *bucket = &engine->layout.buckets[b];
        const uint64_t first = begin_of(engine, &whole, bucket, position, of);
        out[b] = (struct keel_engine_run){first, begin_of(engine, &whole, bucket, position + 1, of) - first};
    }
    whole_fini(&whole);
    return KEEL_OK;
}

uint64_t keel_engine_page_count(const struct keel_engine *engine)
{
    return engine->update.box_page_count > 0 ? engine->update.box_page_count
                                             : keel_update_page_count(engine->layout.flat_count);
}

enum keel_status keel_engine_run_pages(const struct keel_engine *engine, const struct keel_engine_run *runs,
                                       uint32_t run_count, struct keel_engine_run **out, uint32_t *out_count)
{
    struct whole whole;
    struct parts parts;
    struct keel_engine_run *pages = NULL;
    KEEL_TRY(whole_init(engine, &whole));
    enum keel_status status = parts_init(engine, &whole, runs, run_count, &parts);
    whole_fini(&whole);
    if (status != KEEL_OK)
        return status;
    status = keel_alloc(parts.box_count + 1, sizeof *pages, (void *)&pages);
    for (uint32_t b = 0; status == KEEL_OK && b < parts.box_count; b++)
        pages[b] =
            (struct keel_engine_run){parts.boxes[b].page, keel_update_page_count(parts.boxes[b].count)};
    if (status == KEEL_OK) {
        *out = pages;
        *out_count = parts.box_count;
    }
    parts_fini(&parts);
    return status;
}

/* ---- buffers and lists --------------------------------------------------------------------------------- */

static enum keel_status make(struct keel_engine_pieces *pieces, uint64_t bytes, struct keel_buffer **out)
{
    KEEL_TRY(keel_engine_make_buffer(pieces->engine, bytes, out));
    pieces->bytes += bytes;
    return KEEL_OK;
}

static enum keel_status make_flat(struct keel_engine_pieces *pieces)
{
    struct keel_queue *queue = pieces->engine->queue;
    const uint64_t bytes = pieces->count * sizeof(float);
    for (uint32_t i = 0; i < KEEL_FLAT_COUNT; i++) {
        if (!keel_engine_keeps(pieces->engine, (enum keel_engine_flat)i))
            continue;
        KEEL_TRY(make(pieces, bytes, &pieces->flat[i]));
        pieces->engine->pieces_flat_bytes += bytes;
        KEEL_TRY(keel_queue_fill(queue, pieces->flat[i], 0, bytes, 0, NULL, NULL));
    }
    return KEEL_OK;
}

/* A table, to a buffer of its own. The caller waits before it lets the table go. */
static enum keel_status upload(struct keel_engine_pieces *pieces, const void *table, uint64_t bytes,
                               struct keel_buffer **out)
{
    KEEL_TRY(make(pieces, bytes, out));
    return keel_queue_write(pieces->engine->queue, *out, 0, table, bytes, NULL, NULL);
}

/* `pages`: room for those of the update, then for those of the norm. */
static enum keel_status upload_tables(struct keel_engine_pieces *pieces, struct parts *parts,
                                      uint64_t box_pages, uint32_t *pages)
{
    struct keel_queue *queue = pieces->engine->queue;
    const uint64_t flat_pages = keel_update_page_count(pieces->count);
    KEEL_TRY(keel_update_find_pages(parts->tensors, parts->tensor_count, pieces->count, pages));
    KEEL_TRY(keel_norm_find_pages(parts->boxes, parts->box_count, pieces->count, pages + flat_pages));
    enum keel_status status =
        upload(pieces, parts->tensors, parts->tensor_count * sizeof *parts->tensors, &pieces->tensors);
    if (status == KEEL_OK)
        status = upload(pieces, pages, flat_pages * sizeof *pages, &pieces->pages);
    if (status == KEEL_OK && parts->box_count > 0)
        status = upload(pieces, parts->boxes, parts->box_count * sizeof *parts->boxes, &pieces->boxes);
    if (status == KEEL_OK && parts->box_count > 0)
        status = upload(pieces, pages + flat_pages, box_pages * sizeof *pages, &pieces->box_pages);
    const enum keel_status ended = keel_queue_finish(queue, keel_deadline_after_ns(blocking_limit_ns));
    return status == KEEL_OK ? ended : status;
}

static enum keel_status emit_square(struct keel_engine_pieces *pieces, const struct parts *parts,
                                    uint64_t box_pages)
{
    const uint64_t bytes = box_pages * sizeof(float);
    const struct keel_norm_tiles op = {.count = pieces->count,
                                       .page_count = box_pages,
                                       .tensor_count = parts->box_count,
                                       .tile_count = pieces->engine->update.norm_tiles,
                                       .tensors = pieces->boxes,
                                       .pages = pieces->box_pages,
                                       .x = pieces->flat[KEEL_FLAT_GRADIENTS]};
    struct keel_norm_tiles squares = op;
    KEEL_TRY(make(pieces, bytes, &pieces->squares));
    KEEL_TRY(keel_queue_fill(pieces->engine->queue, pieces->squares, 0, bytes, 0, NULL, NULL));
    squares.scratch = pieces->squares;
    KEEL_TRY(keel_op_norm_tiles(pieces->engine->kernels, &squares, &pieces->square));
    return keel_launch_list_seal(&pieces->square, pieces->engine->kernels);
}

/* The loss scale follows the norm where it is held; others get it with the weights. */
static enum keel_status emit_loss_scale(struct keel_engine_pieces *pieces)
{
    struct keel_engine *engine = pieces->engine;
    for (uint32_t r = 0, i; engine->loss_scale != NULL && !engine->fixed_scale && r < pieces->run_count; r++)
        for (i = 0; i < engine->layout.tile_count; i++) {
            const uint64_t at = engine->layout.tiles[i].offset;
            if (!engine->layout.params[engine->layout.tiles[i].param].kept || at < pieces->runs[r].first ||
                at >= pieces->runs[r].first + pieces->runs[r].count)
                continue;
            KEEL_TRY(keel_buffer_slice(pieces->flat[KEEL_FLAT_WEIGHTS],
                                       (pieces->at[r] + at - pieces->runs[r].first) * sizeof(float),
                                       sizeof(float), &pieces->loss_scale));
            const struct keel_loss_scale scale = {.state = pieces->loss_scale, .norm = engine->norm};
            return keel_op_loss_scale(engine->kernels, &scale, &pieces->update);
        }
    return KEEL_OK;
}

static enum keel_status emit_update(struct keel_engine_pieces *pieces, const struct parts *parts)
{
    struct keel_engine *engine = pieces->engine;
    struct keel_update op = {.optimizer = engine->optimizer,
                             .nesterov = engine->nesterov,
                             .count = pieces->count,
                             .tensor_count = parts->tensor_count,
                             .w = pieces->flat[KEEL_FLAT_WEIGHTS],
                             .grad = pieces->flat[KEEL_FLAT_GRADIENTS],
                             .m = pieces->flat[KEEL_FLAT_M],
                             .v = pieces->flat[KEEL_FLAT_V],
                             .norm = engine->norm,
                             .control = engine->control,
                             .tensors = pieces->tensors,
                             .pages = pieces->pages,
                             .digest = engine->digest};
    KEEL_TRY(make(pieces, keel_update_scratch_bytes(&op), &pieces->scratch));
    KEEL_TRY(
        keel_queue_fill(engine->queue, pieces->scratch, 0, keel_update_scratch_bytes(&op), 0, NULL, NULL));
    op.scratch = pieces->scratch;
    KEEL_TRY(emit_loss_scale(pieces));
    KEEL_TRY(keel_op_update(engine->kernels, &op, &pieces->update));
    const enum keel_status status =
        keel_engine_average_make(engine, parts->tensors, parts->tensor_count, &pieces->average);
    pieces->bytes += keel_engine_average_bytes(&pieces->average);
    KEEL_TRY(status);
    KEEL_TRY(keel_engine_emit_average(engine, &pieces->average, &op, pieces->flat[KEEL_FLAT_EMA],
                                      pieces->count, &pieces->update));
    return keel_launch_list_seal(&pieces->update, engine->kernels);
}

/* A part of a tile, at `place` of the pieces, to the digest: `what` says where its elements stand there. */
static enum keel_status emit_part_digest(struct keel_engine_pieces *pieces, bool shared, uint64_t place,
                                         struct keel_digest what)
{
    struct keel_engine *engine = pieces->engine;
    what.digest = engine->digest;
    what.scratch = pieces->digest_scratch;
    KEEL_TRY(keel_parts_slice(&pieces->digested, pieces->flat[KEEL_FLAT_WEIGHTS], place * sizeof(float),
                              what.count * sizeof(float), &what.x));
    if (shared)
        KEEL_TRY(keel_op_digest(engine->kernels, &what, &pieces->shared));
    return keel_op_digest(engine->kernels, &what, &pieces->digest);
}

/* Elements [from, end) of a tile. Of one in rows, whole rows together. */
static enum keel_status emit_tile_digest(struct keel_engine_pieces *pieces, uint32_t number, uint64_t from,
                                         uint64_t end, uint64_t place)
{
    const struct keel_engine *engine = pieces->engine;
    const struct keel_update_tensor tile = keel_engine_describe_tile(engine, number);
    const bool shared =
        !keel_engine_is_whole(engine) && !engine->layout.params[engine->layout.tiles[number].param].split;
    const uint64_t row = tile.row;
    for (uint64_t at = from, count; at < end; at += count) {
        struct keel_digest what = {.first_element = tile.first_element + at};
        count = end - at;
        if (row > 0) {
            const bool whole = at % row == 0 && count >= row;
            what.first_element = tile.first_element + at / row * tile.stride + at % row;
            what.row = whole ? row : 0;
            what.stride = whole ? tile.stride : 0;
            count = whole ? count / row * row : count < row - at % row ? count : row - at % row;
        }
        what.count = count;
        KEEL_TRY(emit_part_digest(pieces, shared, place + at - from, what));
    }
    return KEEL_OK;
}

/* Of the weights of the first runs, one a bucket. */
static enum keel_status emit_digest(struct keel_engine_pieces *pieces)
{
    const struct keel_layout *layout = &pieces->engine->layout;
    KEEL_TRY(make(pieces, keel_digest_scratch_bytes(pieces->count), &pieces->digest_scratch));
    for (uint32_t r = 0; r < layout->bucket_count && r < pieces->run_count; r++)
        for (uint32_t i = 0; i < layout->tile_count; i++) {
            const struct keel_tile *tile = &layout->tiles[layout->order[i]];
            const uint64_t first = pieces->runs[r].first, run_end = first + pieces->runs[r].count;
            const uint64_t tile_end = tile->offset + tile->count;
            const uint64_t from = first > tile->offset ? first : tile->offset;
            const uint64_t end = run_end < tile_end ? run_end : tile_end;
            if (from < end)
                KEEL_TRY(emit_tile_digest(pieces, layout->order[i], from - tile->offset, end - tile->offset,
                                          pieces->at[r] + from - first));
        }
    KEEL_TRY(keel_launch_list_seal(&pieces->shared, pieces->engine->kernels));
    return keel_launch_list_seal(&pieces->digest, pieces->engine->kernels);
}

/* Who has nothing of any tile has the norm alone. */
static enum keel_status build_lists(struct keel_engine_pieces *pieces, struct parts *parts)
{
    const uint64_t box_pages = keel_norm_page_count(parts->boxes, parts->box_count);
    uint32_t *pages = NULL;
    KEEL_TRY(keel_engine_emit_page_norm(pieces->engine, &pieces->tiles, &pieces->norm));
    if (parts->tensor_count == 0)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(keel_size(keel_update_page_count(pieces->count) + box_pages), sizeof *pages,
                        (void *)&pages));
    enum keel_status status = make_flat(pieces);
    if (status == KEEL_OK)
        status = upload_tables(pieces, parts, box_pages, pages);
    if (status == KEEL_OK && parts->box_count > 0)
        status = emit_square(pieces, parts, box_pages);
    if (status == KEEL_OK)
        status = emit_update(pieces, parts);
    if (status == KEEL_OK && pieces->engine->weights_windowed)
        status = emit_digest(pieces);
    keel_free(pages);
    return status == KEEL_OK
               ? keel_queue_finish(pieces->engine->queue, keel_deadline_after_ns(blocking_limit_ns))
               : status;
}

static enum keel_status build(struct keel_engine_pieces *pieces, const struct keel_engine_run *runs)
{
    struct whole whole;
    struct parts parts;
    KEEL_TRY(keel_alloc(pieces->run_count, sizeof *runs, (void *)&pieces->runs));
    KEEL_TRY(keel_alloc(pieces->run_count, sizeof *pieces->at, (void *)&pieces->at));
    for (uint32_t r = 0; r < pieces->run_count; r++) {
        pieces->runs[r] = runs[r];
        pieces->at[r] = pieces->count;
        pieces->count += runs[r].count;
    }
    KEEL_TRY(whole_init(pieces->engine, &whole));
    enum keel_status status = parts_init(pieces->engine, &whole, runs, pieces->run_count, &parts);
    whole_fini(&whole);
    if (status != KEEL_OK)
        return status;
    status = build_lists(pieces, &parts);
    parts_fini(&parts);
    return status;
}

enum keel_status keel_engine_pieces_create(struct keel_engine *engine, const struct keel_engine_run *runs,
                                           uint32_t run_count, struct keel_engine_pieces **out)
{
    struct keel_engine_pieces *pieces;
    KEEL_ASSERT(engine->in_pieces && run_count > 0);
    KEEL_TRY(keel_alloc(1, sizeof *pieces, (void *)&pieces));
    pieces->engine = engine;
    pieces->run_count = run_count;
    enum keel_status status = build(pieces, runs);
    if (status != KEEL_OK) {
        keel_engine_pieces_destroy(pieces);
        return status;
    }
    *out = pieces;
    return KEEL_OK;
}

void keel_engine_pieces_destroy(struct keel_engine_pieces *pieces)
{
    if (pieces == NULL)
        return;
    struct keel_buffer *buffers[] = {pieces->loss_scale, /* a slice goes first */
                                     pieces->tensors,
                                     pieces->pages,
                                     pieces->boxes,
                                     pieces->box_pages,
                                     pieces->squares,
                                     pieces->scratch,
                                     pieces->digest_scratch,
                                     pieces->flat[KEEL_FLAT_WEIGHTS],
                                     pieces->flat[KEEL_FLAT_GRADIENTS],
                                     pieces->flat[KEEL_FLAT_M],
                                     pieces->flat[KEEL_FLAT_V],
                                     pieces->flat[KEEL_FLAT_EMA]};
    keel_engine_average_fini(&pieces->average);
    keel_launch_list_fini(&pieces->square);
    keel_launch_list_fini(&pieces->tiles);
    keel_launch_list_fini(&pieces->norm);
    keel_launch_list_fini(&pieces->update);
    keel_launch_list_fini(&pieces->digest);
    keel_launch_list_fini(&pieces->shared);
    keel_parts_fini(&pieces->digested);
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i] != NULL)
            keel_buffer_destroy(buffers[i]);
    pieces->engine->planned_bytes -= pieces->bytes;
    for (uint32_t i = 0; i < KEEL_FLAT_COUNT; i++)
        pieces->engine->pieces_flat_bytes -= pieces->flat[i] != NULL ? pieces->count * sizeof(float) : 0;
    keel_free(pieces->runs);
    keel_free(pieces->at);
    keel_free(pieces);
}

struct keel_buffer *keel_engine_pieces_flat(const struct keel_engine_pieces *pieces,
                                            enum keel_engine_flat which)
{
    KEEL_ASSERT(which < KEEL_FLAT_COUNT);
    return pieces->flat[which];
}

const struct keel_engine_average *keel_engine_pieces_average(const struct keel_engine_pieces *pieces)
{
    return &pieces->average;
}

uint64_t keel_engine_pieces_at(const struct keel_engine_pieces *pieces, uint32_t run)
{
    KEEL_ASSERT(run < pieces->run_count);
    return pieces->at[run];
}

/* ---- a step -------------------------------------------------------------------------------------------- */

enum keel_status keel_engine_pieces_squares(struct keel_engine_pieces *pieces, uint64_t deadline_ns,
                                            float *out, uint64_t count)
{
    struct keel_engine *engine = pieces->engine;
    if (count == 0)
        return KEEL_OK;
    KEEL_TRY(keel_engine_run_list(engine, &pieces->square));
    KEEL_TRY(keel_queue_read(engine->queue, pieces->squares, 0, out, count * sizeof *out, NULL, NULL));
    return keel_queue_finish(engine->queue, deadline_ns);
}

enum keel_status keel_engine_pieces_sum(struct keel_engine_pieces *pieces, const float *squares)
{
    struct keel_engine *engine = pieces->engine;
    KEEL_TRY(keel_queue_write(engine->queue, engine->scratch, 0, squares,
                              keel_engine_page_count(engine) * sizeof *squares, NULL, NULL));
    return keel_engine_is_whole(engine) ? KEEL_OK : keel_engine_run_list(engine, &pieces->tiles);
}

enum keel_status keel_engine_pieces_norm(struct keel_engine_pieces *pieces,
                                         const struct keel_engine_update *update, uint64_t deadline_ns,
                                         struct keel_engine_norm *out_norm, struct keel_engine_updated *out)
{
    struct keel_engine *engine = pieces->engine;
    KEEL_TRY(keel_engine_feed_update(engine, update));
    KEEL_TRY(keel_engine_run_list(engine, &pieces->norm));
    KEEL_TRY(keel_engine_judge_norm(engine, update, deadline_ns, out));
    memcpy(out_norm->values, engine->landing.norm, sizeof out_norm->values);
    return KEEL_OK;
}

enum keel_status keel_engine_pieces_update(struct keel_engine_pieces *pieces,
                                           const struct keel_engine_update *update,
                                           const struct keel_engine_norm *norm, uint64_t deadline_ns)
{
    struct keel_engine *engine = pieces->engine;
    if (pieces->tensors == NULL)
        return KEEL_OK;
    KEEL_TRY(keel_engine_feed_update(engine, update));
    memcpy(engine->landing.norm, norm->values, sizeof norm->values);
    KEEL_TRY(keel_queue_write(engine->queue, engine->norm, 0, engine->landing.norm, sizeof norm->values, NULL,
                              NULL));
    KEEL_TRY(keel_engine_begin_average(engine, &pieces->average, pieces->flat[KEEL_FLAT_WEIGHTS],
                                       pieces->flat[KEEL_FLAT_EMA], update->step));
    KEEL_TRY(keel_engine_run_list(engine, &pieces->update));
    return keel_queue_finish(engine->queue, deadline_ns);
}

/* The digest that a list makes. */
static enum keel_status run_digest(struct keel_engine *engine, const struct keel_launch_list *list,
                                   uint64_t *out)
{
    KEEL_TRY(keel_queue_fill(engine->queue, engine->digest, 0, sizeof(uint64_t), 0, NULL, NULL));
    KEEL_TRY(keel_engine_run_list(engine, list));
    return keel_queue_read(engine->queue, engine->digest, 0, out, sizeof(uint64_t), NULL, NULL);
}

enum keel_status keel_engine_pieces_digest(struct keel_engine_pieces *pieces, uint64_t deadline_ns,
                                           uint64_t *out, uint64_t *out_shared)
{
    struct keel_engine *engine = pieces->engine;
    KEEL_ASSERT(engine->weights_windowed);
    KEEL_TRY(run_digest(engine, &pieces->digest, &engine->landing.digest));
    KEEL_TRY(run_digest(engine, &pieces->shared, &engine->landing.digest_shared));
    KEEL_TRY(keel_queue_finish(engine->queue, deadline_ns));
    *out = engine->landing.digest;
    *out_shared = engine->landing.digest_shared;
    return KEEL_OK;
}
