/* trainer_load.c - the state from a snapshot: which tensors may be missing, and the copy.
 */
#include "trainer_internal.h"
#include "weights.h"
#include <keel/memory.h>

static void see_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct keel_trainer *trainer = context;
    (void)done_bytes;
    (void)total_bytes;
    atomic_fetch_add(trainer->progress, 1);
}

/* What this rank reads of it. */
struct keel_share {
    struct keel_state_piece *pieces; /* owned, as the loads */
    struct keel_load *loads;         /* room for all pieces */
    uint32_t count;
};

/* Is it the engine's own, or the job's, of which an imported snapshot, that is of a model alone, has nothing?
 * Of one that is here in part nobody can tell. */
static bool begins_anew(const struct keel_trainer *trainer, const struct keel_snapshot *snapshot,
                        uint32_t tile)
{
    const struct keel_engine_param *param =
        keel_engine_param(trainer->engine, keel_engine_tile(trainer->engine, tile)->param);
    return (param->kept || param->added) && keel_snapshot_missing(snapshot) == 0 &&
           !keel_weights_holds(snapshot, param->name);
}

/* What no snapshot says. What the job added is drawn, as it is without a snapshot; what is then in the
 * snapshot replaces the rest. */
static enum keel_status draw_added(struct keel_trainer *trainer, const struct keel_snapshot *snapshot)
{
    for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine); i++)
        if (keel_engine_param(trainer->engine, keel_engine_tile(trainer->engine, i)->param)->added &&
            begins_anew(trainer, snapshot, i))
            return keel_trainer_initialize(trainer);
    return KEEL_OK;
}

/* What the optimizer does not keep is zero already (keel_trainer_initialize); and what begins anew. */
static enum keel_status fill_rest(struct keel_trainer *trainer, const struct keel_snapshot *snapshot,
                                  float *values)
{
    for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(trainer->engine, i);
        if (keel_engine_param(trainer->engine, tile->param)->added || !begins_anew(trainer, snapshot, i))
            continue;
        const struct keel_state_piece all = {.tile = i, .part = KEEL_STATE_WEIGHTS, .count = tile->count};
        for (uint64_t e = 0; e < tile->count; e++)
            values[e] = keel_engine_param(trainer->engine, tile->param)->fill;
        KEEL_TRY(keel_trainer_write_piece(trainer, &all, 0, keel_piece_bytes(&all), values));
    }
    return KEEL_OK;
}

/* Where a piece goes in the values, dense: one in rows next to those of the parts beside it. */
static float *place_of(const struct keel_trainer *trainer, const struct keel_state_piece *piece,
                       float *values)
{
    uint64_t first = piece->first;
    if (piece->row > 0) {
        const uint64_t part = first % piece->stride / piece->row;
        first += part * (piece->count - piece->row);
    }
    return values + keel_engine_tile(trainer->engine, piece->tile)->offset + first;
}

/* The pieces of one part of the state into `values`, and to the device. */
static enum keel_status load_part(struct keel_trainer *trainer, struct keel_snapshot *snapshot, uint32_t part,
                                  const struct keel_share *share, float *values, uint64_t *read_bytes)
{
    const struct keel_load_config config = {.progress = see_progress, .context = trainer};
    struct keel_load_stats stats = {0};
    uint32_t count = 0;
    if (part == KEEL_STATE_EMA && keel_snapshot_info(snapshot)->step == 0)
        return KEEL_OK; /* the first step writes it; what was imported has none */
    for (uint32_t i = 0; i < share->count; i++) {
        const struct keel_state_piece *piece = &share->pieces[i];
        if (piece->part != part || begins_anew(trainer, snapshot, piece->tile))
            continue;
        struct keel_load *load = &share->loads[count++];
        keel_trainer_region(trainer, piece, &load->box);
        load->out = place_of(trainer, piece, values);
    }
    enum keel_status status = keel_snapshot_load(snapshot, share->loads, count, &config, &stats);
    if (status != KEEL_OK)
        return status == KEEL_NOT_FOUND ? keel_weights_say_missing(snapshot, share->loads, count) : status;
    *read_bytes += stats.read_bytes;
    for (uint32_t i = 0; i < share->count; i++) {
        const struct keel_state_piece *piece = &share->pieces[i];
        if (piece->part != part || begins_anew(trainer, snapshot, piece->tile))
            continue;
        KEEL_TRY(keel_trainer_write_piece(trainer, piece, 0, keel_piece_bytes(piece),
                                          place_of(trainer, piece, values)));
        atomic_fetch_add(trainer->progress, 1);
    }
    return KEEL_OK;
}

enum keel_status keel_trainer_load(struct keel_trainer *trainer, struct keel_snapshot *snapshot,
                                   uint32_t index, uint32_t count, uint64_t *out_read)
{
    struct keel_share share = {0};
    float *values = NULL;
    *out_read = 0;
    KEEL_TRY(keel_weights_check(trainer->engine, snapshot));
    enum keel_status status = keel_trainer_read_pieces(trainer, index, count, &share.pieces, &share.count);
    if (status == KEEL_OK)
        status = keel_alloc(share.count + 1, sizeof *share.loads, &share.loads);
    if (status == KEEL_OK)
        status = keel_alloc(trainer->flat_count, sizeof *values, &values);
    if (status == KEEL_OK)
        status = draw_added(trainer, snapshot);
    if (status == KEEL_OK)
        status = fill_rest(trainer, snapshot, values);
    for (uint32_t part = 0; part < KEEL_STATE_PARTS && status == KEEL_OK; part++)
        status = load_part(trainer, snapshot, part, &share, values, out_read);
    keel_free(values);
    keel_free(share.loads);
    keel_free(share.pieces);
    return status;
}
