/* state_extents.c - what lies where of the state, as runs of tiles: the language of moves (plan/holdings.h).
 *
 * A tile is what the engine has of a parameter, and lies in the flat buffers as it is: a run of those is a
 * run of each tile that it touches. Of engines with other slices elements of the same name are others. */
#include "trainer_internal.h"
#include <keel/memory.h>

/* What of a tile lies in a run, of each part that is asked for and kept. */
static enum keel_status put_tile(const struct keel_trainer *trainer, uint32_t number,
                                 const struct keel_engine_run *run, uint32_t parts, struct keel_extents *out)
{
    const struct keel_tile *tile = keel_engine_tile(trainer->engine, number);
    const uint64_t tile_end = tile->offset + tile->count, run_end = run->first + run->count;
    const uint64_t from = run->first > tile->offset ? run->first : tile->offset;
    const uint64_t end = run_end < tile_end ? run_end : tile_end;
    for (uint32_t part = 0; from < end && part < KEEL_STATE_PARTS; part++)
        if ((parts >> part & 1) != 0 && keel_state_is_kept(trainer, number, part))
            KEEL_TRY(keel_extents_put(
                out, &(struct keel_extent){part, tile->param, tile->slice, from - tile->offset, end - from}));
    return KEEL_OK;
}

enum keel_status keel_trainer_extents(const struct keel_trainer *trainer, const struct keel_engine_run *runs,
                                      uint32_t run_count, uint32_t parts, struct keel_extents *out)
{
    for (uint32_t r = 0; r < run_count; r++)
        for (uint32_t i = 0; runs[r].count > 0 && i < keel_engine_tile_count(trainer->engine); i++)
            KEEL_TRY(put_tile(trainer, i, &runs[r], parts, out));
    return KEEL_OK;
}

enum keel_status keel_trainer_all_extents(const struct keel_trainer *trainer, uint32_t parts,
                                          struct keel_extents *out)
{
    const struct keel_engine_run all = {.first = 0, .count = trainer->flat_count};
    return keel_trainer_extents(trainer, &all, 1, parts, out);
}

enum keel_status keel_trainer_share_extents(const struct keel_trainer *trainer, uint32_t owner, uint32_t of,
                                            uint32_t parts, struct keel_extents *out)
{
    struct keel_engine_run *runs;
    KEEL_TRY(keel_alloc(trainer->bucket_count, sizeof *runs, &runs));
    enum keel_status status = keel_engine_share(trainer->engine, owner, of, runs);
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        const struct keel_tile_range tiles = trainer->bucket_tiles[b];
        for (uint32_t i = tiles.first; i < tiles.end && runs[b].count > 0 && status == KEEL_OK; i++)
            status = put_tile(trainer, i, &runs[b], parts, out);
    }
    keel_free(runs);
    return status;
}

enum keel_status keel_trainer_find_tiles(struct keel_trainer *trainer)
{
    const struct keel_engine *engine = trainer->engine;
    KEEL_TRY(keel_alloc(trainer->bucket_count, sizeof *trainer->bucket_tiles, &trainer->bucket_tiles));
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        const struct keel_engine_bucket *bucket = keel_engine_bucket(engine, b);
        struct keel_tile_range *tiles = &trainer->bucket_tiles[b];
        for (uint32_t i = 0; i < keel_engine_tile_count(engine); i++) {
            const struct keel_tile *tile = keel_engine_tile(engine, i);
            if (tile->offset >= bucket->offset + bucket->count ||
                bucket->offset >= tile->offset + tile->count)
                continue;
            tiles->first = tiles->end == 0 ? i : tiles->first;
            tiles->end = i + 1;
        }
    }
    return KEEL_OK;
}

/* Parts side by side are read together: the first of them stands for all. */
enum keel_status keel_trainer_read_extents(const struct keel_trainer *trainer, uint32_t index, uint32_t count,
                                           struct keel_extents *out)
{
    struct keel_state_piece *pieces;
    uint32_t piece_count;
    KEEL_TRY(keel_trainer_read_pieces(trainer, index, count, &pieces, &piece_count));
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < piece_count && status == KEEL_OK; i++) {
        const struct keel_state_piece *piece = &pieces[i];
        const struct keel_tile *tile = keel_engine_tile(trainer->engine, piece->tile);
        const uint64_t parts = piece->row > 0 ? piece->stride / piece->row : 1;
        if (piece->row == 0 || piece->first % piece->stride == 0)
            status = keel_extents_put(out, &(struct keel_extent){piece->part, tile->param, tile->slice,
                                                                 piece->first, piece->count * parts});
    }
    keel_free(pieces);
    return status;
}

struct keel_state_piece keel_trainer_piece_of(const struct keel_trainer *trainer,
                                              const struct keel_extent *extent)
{
    uint32_t tile = extent->param; /* no parameter has fewer than one */
    while (keel_engine_tile(trainer->engine, tile)->param != extent->param ||
           keel_engine_tile(trainer->engine, tile)->slice != extent->slice)
        tile++;
    return (struct keel_state_piece){
        .tile = tile, .part = extent->part, .first = extent->first, .count = extent->count};
}
