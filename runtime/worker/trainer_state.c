/* trainer_state.c - the state as tiles: read and written for healing, named and cut for snapshots. */
#include "trainer_internal.h"
#include "weights.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>

static const struct {
    enum keel_engine_flat flat;
    /* Weights keep their own names, so that other tools find them; the optimizer's tensors get a prefix,
     * which is that of Adam for all: so what one optimizer has trained, or what was imported, another can go
     * on from. */
    const char *prefix;
} parts[KEEL_STATE_PARTS] = {{KEEL_FLAT_WEIGHTS, ""},
                             {KEEL_FLAT_M, KEEL_WEIGHTS_M_PREFIX},
                             {KEEL_FLAT_V, KEEL_WEIGHTS_V_PREFIX},
                             {KEEL_FLAT_EMA, KEEL_WEIGHTS_EMA_PREFIX}};

/* State that nobody reads is neither kept nor sent. */
static bool has_part(const struct keel_trainer *trainer, uint32_t part)
{
    if (part == KEEL_STATE_EMA)
        return trainer->job->ema > 0.0F;
    return part != KEEL_STATE_V || keel_optimizer_has_v((enum keel_optimizer)trainer->job->optimizer);
}

/* What the optimizer keeps of a tile it trains: of statistics, the loss scale among them, and of what is
 * frozen it keeps nothing. */
bool keel_state_is_kept(const struct keel_trainer *trainer, uint32_t tile, uint32_t part)
{
    const struct keel_tile *of = keel_engine_tile(trainer->engine, tile);
    const struct keel_engine_param *param = keel_engine_param(trainer->engine, of->param);
    return part == KEEL_STATE_WEIGHTS || (has_part(trainer, part) && !param->statistic && !param->frozen);
}

/* ---- copying ------------------------------------------------------------------------------------------- */

/* Elements from the first of a piece to its last. */
static uint64_t span_of(const struct keel_state_piece *piece)
{
    return piece->row == 0 || piece->count == 0
               ? piece->count
               : (piece->count / piece->row - 1) * piece->stride + piece->row;
}

/* Where bytes of a piece lie in its flat buffer; of one in rows, where they begin to. */
static uint64_t place_of(const struct keel_trainer *trainer, const struct keel_state_piece *piece,
                         uint64_t offset_bytes, uint64_t bytes)
{
    const struct keel_tile *tile = keel_engine_tile(trainer->engine, piece->tile);
    KEEL_ASSERT(keel_state_is_kept(trainer, piece->tile, piece->part));
    KEEL_ASSERT(piece->first <= tile->count && span_of(piece) <= tile->count - piece->first);
    KEEL_ASSERT(offset_bytes <= keel_piece_bytes(piece) && bytes <= keel_piece_bytes(piece) - offset_bytes);
    const uint64_t row_bytes = piece->row * sizeof(float), row = row_bytes > 0 ? offset_bytes / row_bytes : 0;
    return (tile->offset + piece->first + row * (piece->stride - piece->row)) * sizeof(float) + offset_bytes;
}

/* Of state that lies in pieces: each run of them that the bytes touch. What is written and not held is let
 * go. */
static enum keel_status transfer_held(struct keel_trainer *trainer, struct keel_queue *queue, uint64_t at,
                                      uint32_t part, uint64_t bytes, uint8_t *out, const uint8_t *data)
{
    const bool before = out != NULL && trainer->owned.before.filled;
    const struct keel_owned_layout *layout = before ? &trainer->owned.before : &trainer->owned.now;
    for (uint64_t done = 0, here, count; done < bytes; done += count) {
        const bool held =
            keel_owned_find(layout, trainer->bucket_count, (at + done) / sizeof(float), &here, &count);
        const uint64_t skip = (at + done) % sizeof(float);
        KEEL_ASSERT(held || out == NULL);
        count = count < bytes ? count * sizeof(float) - skip : bytes; /* in bytes; there may be no end */
        count = count < bytes - done ? count : bytes - done;
        if (!held)
            continue;
        struct keel_buffer *flat = keel_engine_pieces_flat(layout->pieces, parts[part].flat);
        here = here * sizeof(float) + skip;
        KEEL_TRY(out != NULL ? keel_queue_read(queue, flat, here, out + done, count, NULL, NULL)
                             : keel_queue_write(queue, flat, here, data + done, count, NULL, NULL));
    }
    return KEEL_OK;
}

/* At byte `at` of the flat buffer of a part, which lie together: out, or in from `data`. */
static enum keel_status transfer_run(struct keel_trainer *trainer, struct keel_queue *queue, uint64_t at,
                                     const struct keel_state_piece *piece, uint64_t bytes, void *out,
                                     const void *data)
{
    if (trainer->owned.on && (piece->part != KEEL_STATE_WEIGHTS || trainer->gathered.on))
        return transfer_held(trainer, queue, at, piece->part, bytes, out, data);
    struct keel_buffer *flat = keel_engine_flat(trainer->engine, parts[piece->part].flat);
    return out != NULL ? keel_queue_read(queue, flat, at, out, bytes, NULL, NULL)
                       : keel_queue_write(queue, flat, at, data, bytes, NULL, NULL);
}

/* Bytes of a piece, row by row: out, or in from `data`. */
static enum keel_status transfer(struct keel_trainer *trainer, struct keel_queue *queue,
                                 const struct keel_state_piece *piece, uint64_t offset_bytes, uint64_t bytes,
                                 uint8_t *out, const uint8_t *data)
{
    const uint64_t row_bytes = piece->row > 0 ? piece->row * sizeof(float) : offset_bytes + bytes;
    for (uint64_t done = 0, count; done < bytes; done += count) {
        const uint64_t left = row_bytes - (offset_bytes + done) % row_bytes;
        count = left < bytes - done ? left : bytes - done;
        KEEL_TRY(transfer_run(trainer, queue, place_of(trainer, piece, offset_bytes + done, count), piece,
                              count, out != NULL ? out + done : NULL, data != NULL ? data + done : NULL));
    }
    return KEEL_OK;
}

enum keel_status keel_trainer_read_piece(struct keel_trainer *trainer, struct keel_queue *queue,
                                         const struct keel_state_piece *piece, uint64_t offset_bytes,
                                         uint64_t bytes, void *out)
{
    enum keel_hang_section section =
        queue == keel_engine_queue(trainer->engine) ? KEEL_HANG_STATE : KEEL_HANG_CAPTURE;
    keel_hang_enter(trainer->hangs, section, keel_now_ns());
    enum keel_status status = transfer(trainer, queue, piece, offset_bytes, bytes, out, NULL);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns));
    keel_hang_leave(trainer->hangs, section, keel_now_ns());
    return status;
}

enum keel_status keel_trainer_write_piece(struct keel_trainer *trainer, const struct keel_state_piece *piece,
                                          uint64_t offset_bytes, uint64_t bytes, const void *data)
{
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    keel_hang_enter(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    enum keel_status status = transfer(trainer, queue, piece, offset_bytes, bytes, NULL, data);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns));
    keel_hang_leave(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    return status;
}

/* ---- who holds which pieces ---------------------------------------------------------------------------- */

/* First row of a tile that begins at byte `start` of the job's state and has rows of `row_bytes`, which lies
 * at or behind byte `bound`. */
static uint64_t row_at(uint64_t start, uint64_t row_bytes, uint64_t rows, uint64_t bound)
{
    if (bound <= start)
        return 0;
    uint64_t row = (bound - start + row_bytes - 1) / row_bytes;
    return row < rows ? row : rows;
}

/* Elements of an index of dimension `d`. */
static uint64_t stride_of(const struct keel_engine_param *param, uint32_t d)
{
    uint64_t stride = 1;
    for (uint32_t k = d + 1; k < param->dims; k++)
        stride *= param->shape[k];
    return stride;
}

/* Has the engine a part of it alone? */
static bool is_cut(const struct keel_engine_param *param)
{
    return param->shape[param->split_dim] != param->whole[param->split_dim];
}

static const struct keel_engine_param *param_of(const struct keel_trainer *trainer, uint32_t tile)
{
    return keel_engine_param(trainer->engine, keel_engine_tile(trainer->engine, tile)->param);
}

/* Bytes of the tiles that are cut, or of the others. */
static uint64_t state_bytes(const struct keel_trainer *trainer, bool cut)
{
    uint64_t elements = 0;
    for (uint32_t part = 0; part < KEEL_STATE_PARTS; part++)
        for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine); i++)
            if (keel_state_is_kept(trainer, i, part) && is_cut(param_of(trainer, i)) == cut)
                elements += keel_engine_tile(trainer->engine, i)->count;
    return elements * sizeof(float);
}

uint64_t keel_trainer_state_bytes(const struct keel_trainer *trainer)
{
    uint64_t elements = 0;
    for (uint32_t part = 0; part < KEEL_STATE_PARTS; part++)
        for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine); i++) {
            const struct keel_engine_param *param = param_of(trainer, i);
            uint64_t whole = keel_state_is_kept(trainer, i, part) ? 1 : 0;
            for (uint32_t d = 0; d < param->dims; d++)
                whole *= param->whole[d];
            elements += whole;
        }
    return elements * sizeof(float);
}

/* How many of the elements from `first` on, `most` of them, are a box: as large as may be. */
static uint64_t box_at(const struct keel_engine_param *param, uint64_t first, uint64_t most)
{
    for (uint32_t d = 0; d < param->dims; d++) {
        const uint64_t stride = stride_of(param, d);
        if (first % stride != 0 || most < stride)
            continue;
        const uint64_t left = param->shape[d] - first / stride % param->shape[d], fit = most / stride;
        return (fit < left ? fit : left) * stride;
    }
    return most;
}

/* The first box of elements [at, end) of a tile: of a parameter in parts side by side that are cut either
 * whole rows, which are a piece for each of the parts, or within one of them. Its end. */
static uint64_t put_box(const struct keel_trainer *trainer, struct keel_state_piece piece, uint64_t at,
                        uint64_t end, struct keel_state_piece *out, uint32_t *count)
{
    const struct keel_engine_param *param = param_of(trainer, piece.tile);
    const uint32_t d = param->split_dim;
    const uint64_t each = param->shape[d] / param->outer * stride_of(param, d); /* of a part */
    uint64_t size = box_at(param, at, end - at), pieces = 1;
    const bool apart = is_cut(param) && param->outer > 1;
    if (apart && d > 0 && size % stride_of(param, d - 1) == 0)
        pieces = param->outer;
    else if (apart && size > each - at % each)
        size = each - at % each;
    piece.count = size / pieces;
    piece.row = pieces > 1 ? each : 0;
    piece.stride = piece.row * pieces;
    for (uint64_t p = 0; p < pieces; p++) {
        piece.first = at + p * each;
        out[(*count)++] = piece;
    }
    return at + size;
}

/* Elements [at, end) of a tile as boxes of the whole: how many pieces. */
static uint32_t put_boxes(const struct keel_trainer *trainer, uint32_t tile, uint32_t part, uint64_t at,
                          uint64_t end, struct keel_state_piece *out)
{
    uint32_t count = 0;
    while (at < end)
        at = put_box(trainer, (struct keel_state_piece){.tile = tile, .part = part}, at, end, out, &count);
    return count;
}

/* Of all tiles that are cut, or of all others, what one of `rank_count` writes. */
static uint32_t put_share(const struct keel_trainer *trainer, bool cut, uint32_t position,
                          uint32_t rank_count, struct keel_state_piece *pieces)
{
    const uint32_t tiles = keel_engine_tile_count(trainer->engine);
    const uint64_t total = state_bytes(trainer, cut), share = total / rank_count, first = share * position;
    const uint64_t end = position + 1 == rank_count ? total : first + share;
    uint64_t at = 0;
    uint32_t count = 0;
    KEEL_ASSERT(position < rank_count);
    for (uint32_t n = 0; n < tiles * KEEL_STATE_PARTS; n++) {
        const uint32_t part = n / tiles, i = n % tiles;
        if (!keel_state_is_kept(trainer, i, part) || is_cut(param_of(trainer, i)) != cut)
            continue;
        const uint64_t rows = param_of(trainer, i)->shape[0];
        const uint64_t row_bytes = stride_of(param_of(trainer, i), 0) * sizeof(float);
        const uint64_t from = row_at(at, row_bytes, rows, first), to = row_at(at, row_bytes, rows, end);
        at += rows * row_bytes;
        const uint64_t row = stride_of(param_of(trainer, i), 0);
        count += put_boxes(trainer, i, part, from * row, to * row, pieces + count);
    }
    return count;
}

/* By rows: number `number` of so many of what all ranks have, and number `index` of `count` of what is cut.
 */
static enum keel_status split_by_rows(const struct keel_trainer *trainer, uint32_t number, uint32_t of,
                                      uint32_t index, uint32_t count, struct keel_state_piece **out,
                                      uint32_t *out_count)
{
    size_t most = 0;
    for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine); i++)
        most += (size_t)param_of(trainer, i)->outer * KEEL_STATE_PARTS;
    struct keel_state_piece *pieces;
    KEEL_TRY(keel_alloc(most, sizeof *pieces, &pieces));
    uint32_t put = put_share(trainer, false, number, of, pieces);
    put += put_share(trainer, true, index, count, pieces + put);
    *out = pieces;
    *out_count = put;
    return KEEL_OK;
}

/* The outermost dimension along which these elements are a box. */
static uint32_t dim_of(const struct keel_engine_param *param, uint64_t first, uint64_t count)
{
    uint32_t d = 0;
    for (; d + 1 < param->dims; d++) {
        const uint64_t stride = stride_of(param, d);
        if (first % stride == 0 && count % stride == 0 &&
            count / stride <= param->shape[d] - first / stride % param->shape[d])
            break;
    }
    return d;
}

/* Which part of what all places have is this one's to write. */
struct keel_turn {
    uint32_t place, places;
};

/* What of a tile lies in a run, as boxes of each part. */
static uint32_t cut_run(const struct keel_trainer *trainer, uint32_t tile_number,
                        const struct keel_engine_run *run, struct keel_turn turn,
                        struct keel_state_piece *out)
{
    const struct keel_tile *tile = keel_engine_tile(trainer->engine, tile_number);
    const bool all = is_cut(param_of(trainer, tile_number));
    const uint64_t first = all ? 0 : tile->count * turn.place / turn.places,
                   last = all ? tile->count : tile->count * (turn.place + 1) / turn.places;
    const uint64_t run_end = run->first + run->count;
    const uint64_t at = run->first > tile->offset + first ? run->first : tile->offset + first;
    const uint64_t end = run_end < tile->offset + last ? run_end : tile->offset + last;
    uint32_t count = 0;
    for (uint32_t part = 0; at < end && part < KEEL_STATE_PARTS; part++)
        if (keel_state_is_kept(trainer, tile_number, part))
            count +=
                put_boxes(trainer, tile_number, part, at - tile->offset, end - tile->offset, out + count);
    return count;
}

/* The most pieces that a run of a tile becomes: a box where it begins and one where it ends in each of up to
 * four dimensions, in as many parts as there are side by side. */
static size_t most_pieces(const struct keel_trainer *trainer)
{
    size_t outer = 1;
    for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine); i++)
        outer = param_of(trainer, i)->outer > outer ? param_of(trainer, i)->outer : outer;
    return 2 * 4 * outer * KEEL_STATE_PARTS;
}

/* What is owned: cut where pages end, which may be within a row. */
static enum keel_status split_by_owner(const struct keel_trainer *trainer, uint32_t index,
                                       uint32_t owner_count, struct keel_turn turn,
                                       struct keel_state_piece **out, uint32_t *out_count)
{
    const uint32_t tiles = keel_engine_tile_count(trainer->engine), buckets = trainer->bucket_count;
    struct keel_engine_run *runs;
    struct keel_state_piece *pieces = NULL;
    uint32_t count = 0;
    KEEL_TRY(keel_alloc(buckets, sizeof *runs, &runs));
    enum keel_status status = keel_engine_share(trainer->engine, index, owner_count, runs);
    if (status == KEEL_OK)
        status = keel_alloc(((size_t)tiles + buckets) * most_pieces(trainer), sizeof *pieces, &pieces);
    for (uint32_t b = 0; status == KEEL_OK && b < buckets; b++)
        for (uint32_t i = 0; i < tiles && runs[b].count > 0; i++)
            count += cut_run(trainer, i, &runs[b], turn, pieces + count);
    keel_free(runs);
    if (status == KEEL_OK) {
        *out = pieces;
        *out_count = count;
    }
    return status;
}

enum keel_status keel_trainer_pieces(const struct keel_trainer *trainer, uint32_t position,
                                     uint32_t rank_count, struct keel_state_piece **out, uint32_t *out_count)
{
    const struct keel_sharing *tensor = &trainer->tensor;
    const bool shared = tensor->count > 0 && tensor->column_count > 0;
    const uint32_t index = shared ? tensor->column_index : position,
                   count = shared ? tensor->column_count : rank_count;
    const struct keel_turn turn = {shared ? tensor->place : 0, shared ? tensor->places : 1};
    if (trainer->owned.on)
        return split_by_owner(trainer, index, count, turn, out, out_count);
    return split_by_rows(trainer, position, rank_count, shared ? index : 0, shared ? count : 1, out,
                         out_count);
}

enum keel_status keel_trainer_read_pieces(const struct keel_trainer *trainer, uint32_t index, uint32_t count,
                                          struct keel_state_piece **out, uint32_t *out_count)
{
    const struct keel_turn all = {0, 1};
    return trainer->owned.on ? split_by_owner(trainer, index, count, all, out, out_count)
                             : split_by_rows(trainer, index, count, index, count, out, out_count);
}

/* What a box of the engine's part of a dimension is in the whole: it lies within one of the parts side by
 * side. */
static void place_in_whole(const struct keel_engine_param *param, struct keel_region *box)
{
    const uint32_t d = param->split_dim;
    const uint64_t each = param->shape[d] / param->outer, part = box->offset[d] / each;
    if (!is_cut(param))
        return;
    KEEL_ASSERT(box->offset[d] % each + box->extent[d] <= each);
    box->offset[d] = part * (param->whole[d] / param->outer) + param->place.first / stride_of(param, d) +
                     box->offset[d] % each;
}

void keel_trainer_region(const struct keel_trainer *trainer, const struct keel_state_piece *piece,
                         struct keel_region *out)
{
    const struct keel_engine_param *param = param_of(trainer, piece->tile);
    /* In rows: one of the parts side by side, of whole indices of the first dimension. */
    const uint64_t count = piece->row > 0 ? piece->count * param->outer : piece->count;
    const uint64_t first = piece->row > 0 ? piece->first / piece->stride * piece->stride : piece->first;
    const uint32_t dim = dim_of(param, first, count);
    *out = (struct keel_region){.dtype = KEEL_CKPT_F32, .dims = param->dims};
    int length = snprintf(out->name, sizeof out->name, "%s%s", parts[piece->part].prefix, param->name);
    KEEL_ASSERT(length > 0 && (size_t)length < sizeof out->name);
    KEEL_ASSERT(first % stride_of(param, dim) == 0 && count % stride_of(param, dim) == 0);
    for (uint32_t d = 0; d < param->dims; d++) {
        out->shape[d] = param->whole[d];
        out->extent[d] = param->shape[d];
        if (d <= dim) {
            out->offset[d] = first / stride_of(param, d) % param->shape[d];
            out->extent[d] = d < dim ? 1 : count / stride_of(param, d);
        }
    }
    if (piece->row > 0) {
        KEEL_ASSERT(dim < param->split_dim);
        out->extent[param->split_dim] /= param->outer;
        out->offset[param->split_dim] = (piece->first - first) / stride_of(param, param->split_dim);
    }
    place_in_whole(param, out);
}
