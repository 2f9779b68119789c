/* trainer_state.c - the state as bytes (for healing) and as named tensors (for snapshots). */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

static const enum keel_engine_flat state_flats[KEEL_STATE_PARTS] = {KEEL_FLAT_WEIGHTS, KEEL_FLAT_M,
                                                                    KEEL_FLAT_V};
/* Weights keep their own names, so that other tools find them; the optimizer's tensors get a prefix. */
static const char *const state_prefixes[KEEL_STATE_PARTS] = {"", "adam.m/", "adam.v/"};

uint64_t keel_trainer_state_bytes(const struct keel_trainer *trainer)
{
    return KEEL_STATE_PARTS * keel_flat_bytes(trainer);
}

static struct keel_buffer *part_of(struct keel_trainer *trainer, uint64_t *offset_bytes, uint64_t bytes)
{
    uint64_t flat_bytes = keel_flat_bytes(trainer), part = *offset_bytes / flat_bytes;
    KEEL_ASSERT(part < KEEL_STATE_PARTS);
    *offset_bytes -= part * flat_bytes;
    KEEL_ASSERT(*offset_bytes + bytes <= flat_bytes);
    return keel_engine_flat(trainer->engine, state_flats[part]);
}

enum keel_status keel_trainer_read_state(struct keel_trainer *trainer, struct keel_queue *queue,
                                         uint64_t offset_bytes, uint64_t bytes, void *out)
{
    struct keel_buffer *flat = part_of(trainer, &offset_bytes, bytes);
    KEEL_TRY(keel_queue_read(queue, flat, offset_bytes, out, bytes, NULL, NULL));
    return keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns));
}

enum keel_status keel_trainer_write_state(struct keel_trainer *trainer, uint64_t offset_bytes, uint64_t bytes,
                                          const void *data)
{
    struct keel_buffer *flat = part_of(trainer, &offset_bytes, bytes);
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    KEEL_TRY(keel_queue_write(queue, flat, offset_bytes, data, bytes, NULL, NULL));
    return keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns));
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
    uint32_t params = keel_engine_param_count(trainer->engine), count = 0;
    uint64_t total = 0, at = 0;
    for (uint32_t i = 0; i < params; i++)
        total += KEEL_STATE_PARTS * keel_engine_param(trainer->engine, i)->count * sizeof(float);
    uint64_t first = total / rank_count * position;
    uint64_t end = position + 1 == rank_count ? total : total / rank_count * (position + 1);
    struct keel_region *regions;
    uint64_t *place;
    KEEL_TRY(keel_alloc((size_t)params * KEEL_STATE_PARTS, sizeof *regions, &regions));
    enum keel_status status = keel_alloc((size_t)params * KEEL_STATE_PARTS, sizeof *place, &place);
    if (status != KEEL_OK) {
        keel_free(regions);
        return status;
    }
    for (uint32_t part = 0; part < KEEL_STATE_PARTS; part++) {
        for (uint32_t i = 0; i < params; i++) {
            const struct keel_engine_param *param = keel_engine_param(trainer->engine, i);
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

enum keel_status keel_trainer_load(struct keel_trainer *trainer, struct keel_snapshot *snapshot)
{
    uint64_t largest = 1;
    uint32_t params = keel_engine_param_count(trainer->engine);
    for (uint32_t i = 0; i < params; i++)
        if (keel_engine_param(trainer->engine, i)->count > largest)
            largest = keel_engine_param(trainer->engine, i)->count;
    float *values;
    KEEL_TRY(keel_alloc(largest, sizeof *values, &values));
    enum keel_status status = KEEL_OK;
    for (uint32_t part = 0; part < KEEL_STATE_PARTS && status == KEEL_OK; part++) {
        for (uint32_t i = 0; i < params && status == KEEL_OK; i++) {
            const struct keel_engine_param *param = keel_engine_param(trainer->engine, i);
            struct keel_region region = whole_region(param, part);
            uint64_t bytes = param->count * sizeof(float);
            status = keel_snapshot_read(snapshot, &region, values, bytes);
            if (status == KEEL_OK)
                status = keel_trainer_write_state(
                    trainer, part * keel_flat_bytes(trainer) + param->offset * sizeof(float), bytes, values);
            atomic_fetch_add(trainer->progress, 1);
        }
    }
    keel_free(values);
    return status;
}
