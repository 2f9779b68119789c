/* trainer_state.c - the state as bytes (for healing) and as named tensors (for snapshots). */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static const enum keel_engine_flat state_flats[KEEL_STATE_PARTS_MAX] = {KEEL_FLAT_WEIGHTS, KEEL_FLAT_M,
                                                                        KEEL_FLAT_V};

/* Weights, m, and v where the optimizer has one: state that nobody reads is neither kept nor sent. */
static uint32_t state_parts(const struct keel_trainer *trainer)
{
    return keel_optimizer_has_v((enum keel_optimizer)trainer->job->optimizer) ? 3 : 2;
}

/* Weights keep their own names, so that other tools find them; the optimizer's tensors get a prefix, which is
 * that of Adam for all: so what one optimizer has trained, or what was imported, another can go on from. */
static const char *const state_prefixes[KEEL_STATE_PARTS_MAX] = {"", "adam.m/", "adam.v/"};

uint64_t keel_trainer_part_bytes(const struct keel_trainer *trainer)
{
    return keel_flat_bytes(trainer);
}

uint64_t keel_trainer_state_bytes(const struct keel_trainer *trainer)
{
    return state_parts(trainer) * keel_flat_bytes(trainer);
}

static struct keel_buffer *part_of(struct keel_trainer *trainer, uint64_t *offset_bytes, uint64_t bytes)
{
    uint64_t flat_bytes = keel_flat_bytes(trainer), part = *offset_bytes / flat_bytes;
    KEEL_ASSERT(part < state_parts(trainer));
    *offset_bytes -= part * flat_bytes;
    KEEL_ASSERT(*offset_bytes + bytes <= flat_bytes);
    return keel_engine_flat(trainer->engine, state_flats[part]);
}

enum keel_status keel_trainer_read_state(struct keel_trainer *trainer, struct keel_queue *queue,
                                         uint64_t offset_bytes, uint64_t bytes, void *out)
{
    struct keel_buffer *flat = part_of(trainer, &offset_bytes, bytes);
    enum keel_hang_section section =
        queue == keel_engine_queue(trainer->engine) ? KEEL_HANG_STATE : KEEL_HANG_CAPTURE;
    keel_hang_enter(trainer->hangs, section, keel_now_ns());
    enum keel_status status = keel_queue_read(queue, flat, offset_bytes, out, bytes, NULL, NULL);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns));
    keel_hang_leave(trainer->hangs, section, keel_now_ns());
    return status;
}

enum keel_status keel_trainer_write_state(struct keel_trainer *trainer, uint64_t offset_bytes, uint64_t bytes,
                                          const void *data)
{
    struct keel_buffer *flat = part_of(trainer, &offset_bytes, bytes);
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    keel_hang_enter(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    enum keel_status status = keel_queue_write(queue, flat, offset_bytes, data, bytes, NULL, NULL);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns));
    keel_hang_leave(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    return status;
}

/* What the optimizer keeps of a tensor it trains: of statistics, the loss scale among them, it keeps nothing.
 */
static bool is_state(const struct keel_engine_param *param, uint32_t part)
{
    return part == 0 || !param->statistic;
}

static struct keel_region whole_region(const struct keel_engine_param *param, uint32_t part)
{
    struct keel_region region = {.dtype = KEEL_CKPT_F32, .dims = param->dims};
    int length = snprintf(region.name, sizeof region.name, "%s%s", state_prefixes[part], param->name);
    KEEL_ASSERT(length > 0 && (size_t)length < sizeof region.name);
    for (uint32_t d = 0; d < param->dims; d++)
        region.shape[d] = region.extent[d] = param->shape[d];
    return region;
}

/* First row of a tensor that begins at byte `start` of the job's state and has rows of `row_bytes`, which
 * lies at or behind byte `bound`. */
static uint64_t row_at(uint64_t start, uint64_t row_bytes, uint64_t rows, uint64_t bound)
{
    if (bound <= start)
        return 0;
    uint64_t row = (bound - start + row_bytes - 1) / row_bytes;
    return row < rows ? row : rows;
}

enum keel_status keel_trainer_regions(const struct keel_trainer *trainer, uint32_t position,
                                      uint32_t rank_count, struct keel_region **out_regions,
                                      uint64_t **out_place, uint32_t *out_count)
{
    const uint32_t params = keel_engine_param_count(trainer->engine), parts = state_parts(trainer);
    uint32_t count = 0;
    uint64_t total = 0, at = 0;
    for (uint32_t part = 0; part < parts; part++)
        for (uint32_t i = 0; i < params; i++)
            if (is_state(keel_engine_param(trainer->engine, i), part))
                total += keel_engine_param(trainer->engine, i)->count * sizeof(float);
    uint64_t first = total / rank_count * position;
    uint64_t end = position + 1 == rank_count ? total : total / rank_count * (position + 1);
    struct keel_region *regions;
    uint64_t *place;
    KEEL_TRY(keel_alloc((size_t)params * parts, sizeof *regions, &regions));
    enum keel_status status = keel_alloc((size_t)params * parts, sizeof *place, &place);
    if (status != KEEL_OK) {
        keel_free(regions);
        return status;
    }
    for (uint32_t part = 0; part < parts; part++) {
        for (uint32_t i = 0; i < params; i++) {
            const struct keel_engine_param *param = keel_engine_param(trainer->engine, i);
            if (!is_state(param, part))
                continue;
            uint64_t rows = param->shape[0], row_bytes = param->count / rows * sizeof(float);
            uint64_t from = row_at(at, row_bytes, rows, first), to = row_at(at, row_bytes, rows, end);
            at += rows * row_bytes;
            if (from == to)
                continue;
            regions[count] = whole_region(param, part);
            regions[count].offset[0] = from;
            regions[count].extent[0] = to - from;
            place[count++] =
                part * keel_flat_bytes(trainer) + param->offset * sizeof(float) + from * row_bytes;
        }
    }
    *out_regions = regions;
    *out_place = place;
    *out_count = count;
    return KEEL_OK;
}

static void see_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct keel_trainer *trainer = context;
    (void)done_bytes;
    (void)total_bytes;
    atomic_fetch_add(trainer->progress, 1);
}

static bool holds(const struct keel_snapshot *snapshot, const char *name)
{
    struct keel_region tensor;
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++)
        if (keel_snapshot_tensor(snapshot, i, &tensor) == KEEL_OK && strcmp(tensor.name, name) == 0)
            return true;
    return false;
}

static bool is_of_model(const struct keel_engine *engine, const char *name)
{
    for (uint32_t i = 0; i < keel_engine_param_count(engine); i++)
        if (strcmp(keel_engine_param(engine, i)->name, name) == 0)
            return true;
    return false;
}

/* Weights that were imported may be another model's: of more layers, say, which would be left behind unsaid.
 * What loads says what it lacks itself. */
static enum keel_status check_weights(const struct keel_trainer *trainer,
                                      const struct keel_snapshot *snapshot)
{
    struct keel_region tensor;
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++) {
        KEEL_TRY(keel_snapshot_tensor(snapshot, i, &tensor));
        bool known = tensor.dtype != KEEL_CKPT_F32 || strcmp(tensor.name, KEEL_LOSS_SCALE_NAME) == 0 ||
                     is_of_model(trainer->engine, tensor.name);
        for (uint32_t part = 1; part < KEEL_STATE_PARTS_MAX; part++)
            known = known || strncmp(tensor.name, state_prefixes[part], strlen(state_prefixes[part])) == 0;
        if (!known)
            return keel_fail(
                KEEL_MISMATCH,
                "tensor %s of the snapshot is none of this job's model: give the [model] keys that "
                "the weights were made with, or import them without it",
                tensor.name);
    }
    return KEEL_OK;
}

/* After a load that found something missing: a tensor, or what a tensor is in (that was said already)? */
static enum keel_status say_missing(const struct keel_snapshot *snapshot, const struct keel_load *loads,
                                    uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!holds(snapshot, loads[i].box.name))
            return keel_fail(KEEL_MISMATCH,
                             "the snapshot holds no tensor %s of this job's model: import all of the weights "
                             "(without --only), or give the [model] keys that they were made with",
                             loads[i].box.name);
    return KEEL_NOT_FOUND;
}

struct keel_share {
    struct keel_region *regions; /* owned, as the others */
    uint64_t *place;
    uint32_t count;
    struct keel_load *loads; /* room for all regions */
};

/* Is it the engine's own, of which an imported snapshot, that is of a model alone, has nothing? */
static bool begins_anew(const struct keel_trainer *trainer, const struct keel_snapshot *snapshot,
                        const char *name)
{
    for (uint32_t i = 0; i < keel_engine_param_count(trainer->engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(trainer->engine, i);
        if (param->kept && strcmp(param->name, name) == 0)
            return !holds(snapshot, name);
    }
    return false;
}

/* What no snapshot says: what the optimizer does not keep, and what begins anew. */
static enum keel_status fill_rest(struct keel_trainer *trainer, const struct keel_snapshot *snapshot,
                                  uint32_t part, float *values)
{
    for (uint32_t i = 0; i < keel_engine_param_count(trainer->engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(trainer->engine, i);
        if (is_state(param, part) && !begins_anew(trainer, snapshot, param->name))
            continue;
        for (uint64_t e = 0; e < param->count; e++)
            values[e] = part == 0 ? param->fill : 0.0F;
        KEEL_TRY(keel_trainer_write_state(trainer,
                                          part * keel_flat_bytes(trainer) + param->offset * sizeof(float),
                                          param->count * sizeof(float), values));
    }
    return KEEL_OK;
}

/* The regions of one of weights, m and v into `values`, which holds it as the device does, and to the device.
 */
static enum keel_status load_part(struct keel_trainer *trainer, struct keel_snapshot *snapshot, uint32_t part,
                                  const struct keel_share *share, float *values, uint64_t *read_bytes)
{
    const struct keel_load_config config = {.progress = see_progress, .context = trainer};
    const uint64_t first = part * keel_flat_bytes(trainer);
    struct keel_load_stats stats = {0};
    uint32_t count = 0;
    for (uint32_t i = 0; i < share->count; i++)
        if (share->place[i] >= first && share->place[i] - first < keel_flat_bytes(trainer) &&
            !begins_anew(trainer, snapshot, share->regions[i].name))
            share->loads[count++] = (struct keel_load){
                .box = share->regions[i], .out = values + (share->place[i] - first) / sizeof(float)};
    enum keel_status status = keel_snapshot_load(snapshot, share->loads, count, &config, &stats);
    if (status != KEEL_OK)
        return status == KEEL_NOT_FOUND ? say_missing(snapshot, share->loads, count) : status;
    *read_bytes += stats.read_bytes;
    for (uint32_t i = 0; i < count; i++) {
        const float *from = share->loads[i].out;
        KEEL_TRY(keel_trainer_write_state(trainer, first + (uint64_t)(from - values) * sizeof(float),
                                          keel_region_bytes(&share->loads[i].box), from));
        atomic_fetch_add(trainer->progress, 1);
    }
    return KEEL_OK;
}

enum keel_status keel_trainer_load(struct keel_trainer *trainer, struct keel_snapshot *snapshot,
                                   uint32_t position, uint32_t rank_count, uint64_t *out_read)
{
    struct keel_share share = {0};
    float *values = NULL;
    *out_read = 0;
    KEEL_TRY(check_weights(trainer, snapshot));
    enum keel_status status =
        keel_trainer_regions(trainer, position, rank_count, &share.regions, &share.place, &share.count);
    if (status == KEEL_OK)
        status = keel_alloc(share.count + 1, sizeof *share.loads, &share.loads);
    if (status == KEEL_OK)
        status = keel_alloc(trainer->flat_count, sizeof *values, &values);
    for (uint32_t part = 0; part < state_parts(trainer) && status == KEEL_OK; part++) {
        status = fill_rest(trainer, snapshot, part, values);
        if (status == KEEL_OK)
            status = load_part(trainer, snapshot, part, &share, values, out_read);
    }
    keel_free(values);
    keel_free(share.loads);
    keel_free(share.place);
    keel_free(share.regions);
    return status;
}
