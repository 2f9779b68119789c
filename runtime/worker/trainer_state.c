/* trainer_state.c - the state as tiles: read and written for healing, named and cut for snapshots. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>

static const struct {
    enum keel_engine_flat flat;
    /* Weights keep their own names, so that other tools find them; the optimizer's tensors get a prefix,
     * which is that of Adam for all: so what one optimizer has trained, or what was imported, another can go
     * on from. */
    const char *prefix;
} parts[KEEL_STATE_PARTS] = {{KEEL_FLAT_WEIGHTS, ""}, {KEEL_FLAT_M, "adam.m/"}, {KEEL_FLAT_V, "adam.v/"}};

const char *keel_state_prefix(uint32_t part)
{
    KEEL_ASSERT(part < KEEL_STATE_PARTS);
    return parts[part].prefix;
}

/* Weights, m, and v where the optimizer has one: state that nobody reads is neither kept nor sent. */
static uint32_t part_count(const struct keel_trainer *trainer)
{
    return keel_optimizer_has_v((enum keel_optimizer)trainer->job->optimizer) ? 3 : 2;
}

/* What the optimizer keeps of a tile it trains: of statistics, the loss scale among them, it keeps nothing.
 */
bool keel_state_is_kept(const struct keel_trainer *trainer, uint32_t tile, uint32_t part)
{
    const struct keel_tile *of = keel_engine_tile(trainer->engine, tile);
    return part == KEEL_STATE_WEIGHTS ||
           (part < part_count(trainer) && !keel_engine_param(trainer->engine, of->param)->statistic);
}

/* ---- copying ------------------------------------------------------------------------------------------- */

/* Where bytes of a piece lie in its flat buffer. */
static uint64_t place_of(const struct keel_trainer *trainer, const struct keel_state_piece *piece,
                         uint64_t offset_bytes, uint64_t bytes)
{
    const struct keel_tile *tile = keel_engine_tile(trainer->engine, piece->tile);
    KEEL_ASSERT(keel_state_is_kept(trainer, piece->tile, piece->part));
    KEEL_ASSERT(piece->first <= tile->count && piece->count <= tile->count - piece->first);
    KEEL_ASSERT(offset_bytes <= keel_piece_bytes(piece) && bytes <= keel_piece_bytes(piece) - offset_bytes);
    return (tile->offset + piece->first) * sizeof(float) + offset_bytes;
}

enum keel_status keel_trainer_read_piece(struct keel_trainer *trainer, struct keel_queue *queue,
                                         const struct keel_state_piece *piece, uint64_t offset_bytes,
                                         uint64_t bytes, void *out)
{
    uint64_t at = place_of(trainer, piece, offset_bytes, bytes);
    struct keel_buffer *flat = keel_engine_flat(trainer->engine, parts[piece->part].flat);
    enum keel_hang_section section =
        queue == keel_engine_queue(trainer->engine) ? KEEL_HANG_STATE : KEEL_HANG_CAPTURE;
    keel_hang_enter(trainer->hangs, section, keel_now_ns());
    enum keel_status status = keel_queue_read(queue, flat, at, out, bytes, NULL, NULL);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns));
    keel_hang_leave(trainer->hangs, section, keel_now_ns());
    return status;
}

enum keel_status keel_trainer_write_piece(struct keel_trainer *trainer, const struct keel_state_piece *piece,
                                          uint64_t offset_bytes, uint64_t bytes, const void *data)
{
    uint64_t at = place_of(trainer, piece, offset_bytes, bytes);
    struct keel_buffer *flat = keel_engine_flat(trainer->engine, parts[piece->part].flat);
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    keel_hang_enter(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    enum keel_status status = keel_queue_write(queue, flat, at, data, bytes, NULL, NULL);
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

static uint64_t state_bytes(const struct keel_trainer *trainer)
{
    uint64_t elements = 0;
    for (uint32_t part = 0; part < KEEL_STATE_PARTS; part++)
        for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine); i++)
            if (keel_state_is_kept(trainer, i, part))
                elements += keel_engine_tile(trainer->engine, i)->count;
    return elements * sizeof(float);
}

enum keel_status keel_trainer_pieces(const struct keel_trainer *trainer, uint32_t position,
                                     uint32_t rank_count, struct keel_state_piece **out, uint32_t *out_count)
{
    const uint32_t tiles = keel_engine_tile_count(trainer->engine);
    const uint64_t total = state_bytes(trainer), share = total / rank_count, first = share * position;
    const uint64_t end = position + 1 == rank_count ? total : first + share;
    struct keel_state_piece *pieces;
    uint64_t at = 0;
    uint32_t count = 0;
    KEEL_ASSERT(position < rank_count);
    KEEL_TRY(keel_alloc((size_t)tiles * KEEL_STATE_PARTS, sizeof *pieces, &pieces));
    for (uint32_t n = 0; n < tiles * KEEL_STATE_PARTS; n++) {
        const uint32_t part = n / tiles, i = n % tiles;
        if (!keel_state_is_kept(trainer, i, part))
            continue;
        const struct keel_tile *tile = keel_engine_tile(trainer->engine, i);
        const uint64_t rows = keel_engine_param(trainer->engine, tile->param)->shape[0];
        const uint64_t row = tile->count / rows, row_bytes = row * sizeof(float);
        const uint64_t from = row_at(at, row_bytes, rows, first), to = row_at(at, row_bytes, rows, end);
        at += rows * row_bytes;
        if (from < to)
            pieces[count++] = (struct keel_state_piece){
                .tile = i, .part = part, .first = from * row, .count = (to - from) * row};
    }
    *out = pieces;
    *out_count = count;
    return KEEL_OK;
}

void keel_trainer_region(const struct keel_trainer *trainer, const struct keel_state_piece *piece,
                         struct keel_region *out)
{
    const struct keel_tile *tile = keel_engine_tile(trainer->engine, piece->tile);
    const struct keel_engine_param *param = keel_engine_param(trainer->engine, tile->param);
    const uint64_t row = tile->count / param->shape[0];
    *out = (struct keel_region){.dtype = KEEL_CKPT_F32, .dims = param->dims};
    int length = snprintf(out->name, sizeof out->name, "%s%s", parts[piece->part].prefix, param->name);
    KEEL_ASSERT(length > 0 && (size_t)length < sizeof out->name);
    KEEL_ASSERT(piece->first % row == 0 && piece->count % row == 0);
    for (uint32_t d = 0; d < param->dims; d++)
        out->shape[d] = out->extent[d] = param->shape[d];
    out->offset[0] = piece->first / row;
    out->extent[0] = piece->count / row;
}
