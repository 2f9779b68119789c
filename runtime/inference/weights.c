/* weights.c - see weights.h. */
#include "weights.h"
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

bool keel_weights_holds(const struct keel_snapshot *snapshot, const char *name)
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

static bool begins(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

enum keel_status keel_weights_check(const struct keel_engine *engine, const struct keel_snapshot *snapshot)
{
    struct keel_region tensor;
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++) {
        KEEL_TRY(keel_snapshot_tensor(snapshot, i, &tensor));
        const bool known = tensor.dtype != KEEL_CKPT_F32 || strcmp(tensor.name, KEEL_LOSS_SCALE_NAME) == 0 ||
                           begins(tensor.name, KEEL_WEIGHTS_M_PREFIX) ||
                           begins(tensor.name, KEEL_WEIGHTS_V_PREFIX) ||
                           begins(tensor.name, KEEL_WEIGHTS_EMA_PREFIX) || is_of_model(engine, tensor.name);
        if (!known)
            return keel_fail(
                KEEL_MISMATCH,
                "tensor %s of the snapshot is none of this job's model: give the [model] keys that "
                "the weights were made with, or import them without it",
                tensor.name);
    }
    return KEEL_OK;
}

enum keel_status keel_weights_say_missing(const struct keel_snapshot *snapshot, const struct keel_load *loads,
                                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!keel_weights_holds(snapshot, loads[i].box.name))
            return keel_fail(KEEL_MISMATCH,
                             "the snapshot holds no tensor %s of this job's model: import all of the weights "
                             "(without --only), or give the [model] keys that they were made with",
                             loads[i].box.name);
    return KEEL_NOT_FOUND;
}

static struct keel_region region_of(const struct keel_engine_param *param, bool averages)
{
    struct keel_region region = {.dtype = KEEL_CKPT_F32, .dims = param->dims};
    const bool average = averages && !param->statistic && !param->frozen;
    snprintf(region.name, sizeof region.name, "%s%s", average ? KEEL_WEIGHTS_EMA_PREFIX : "", param->name);
    for (uint32_t d = 0; d < param->dims; d++) {
        KEEL_ASSERT(param->shape[d] == param->whole[d]);
        region.shape[d] = region.extent[d] = param->shape[d];
    }
    return region;
}

static enum keel_status to_device(struct keel_engine *engine, const float *values, uint64_t deadline_ns)
{
    struct keel_buffer *flat = keel_engine_flat(engine, KEEL_FLAT_WEIGHTS);
    struct keel_queue *queue = keel_engine_queue(engine);
    for (uint32_t i = 0; i < keel_engine_tile_count(engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(engine, i);
        if (!keel_engine_param(engine, tile->param)->kept)
            KEEL_TRY(keel_queue_write(queue, flat, tile->offset * sizeof(float), values + tile->offset,
                                      tile->count * sizeof(float), NULL, NULL));
    }
    return keel_queue_finish(queue, deadline_ns);
}

static bool is_packed(const struct keel_weights_change *change, uint32_t param, struct keel_engine_param *out)
{
    return change != NULL && change->is_packed(change->context, param, out);
}

/* One that the engine has in few bits, and snapshots as `param` says. */
static enum keel_status load_packed(struct keel_snapshot *snapshot, const struct keel_load *load,
                                    const struct keel_load_config *config,
                                    const struct keel_weights_change *change, uint32_t param, float *out)
{
    enum keel_status status = keel_snapshot_load(snapshot, load, 1, config, NULL);
    if (status == KEEL_NOT_FOUND)
        status = keel_weights_say_missing(snapshot, load, 1);
    return status == KEEL_OK ? change->pack(change->context, param, load->out, out) : status;
}

/* Behind those that were read as they are. */
static enum keel_status change_all(const struct keel_engine *engine, struct keel_snapshot *snapshot,
                                   bool averages, const struct keel_load_config *config,
                                   const struct keel_weights_change *change, float *values)
{
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < keel_engine_tile_count(engine) && status == KEEL_OK; i++) {
        const struct keel_tile *tile = keel_engine_tile(engine, i);
        struct keel_engine_param packed;
        float *floats = NULL;
        if (keel_engine_param(engine, tile->param)->kept)
            continue;
        if (!is_packed(change, tile->param, &packed)) {
            status = change->change(change->context, tile->param, values + tile->offset);
            continue;
        }
        KEEL_TRY(keel_alloc(keel_size(packed.count), sizeof *floats, &floats));
        const struct keel_load load = {.box = region_of(&packed, averages), .out = floats};
        status = load_packed(snapshot, &load, config, change, tile->param, values + tile->offset);
        keel_free(floats);
    }
    return status;
}

enum keel_status keel_weights_load(struct keel_engine *engine, struct keel_snapshot *snapshot, bool averages,
                                   const struct keel_load_config *config,
                                   const struct keel_weights_change *change, uint64_t deadline_ns)
{
    const uint32_t tiles = keel_engine_tile_count(engine);
    struct keel_load *loads = NULL;
    float *values = NULL;
    uint32_t count = 0;
    KEEL_TRY(keel_weights_check(engine, snapshot));
    enum keel_status status = keel_alloc(tiles, sizeof *loads, &loads);
    if (status == KEEL_OK)
        status = keel_alloc(keel_size(keel_engine_flat_count(engine)), sizeof *values, &values);
    for (uint32_t i = 0; i < tiles && status == KEEL_OK; i++) {
        const struct keel_tile *tile = keel_engine_tile(engine, i);
        const struct keel_engine_param *param = keel_engine_param(engine, tile->param);
        struct keel_engine_param packed;
        KEEL_ASSERT(tile->count == param->count);
        if (!param->kept && !is_packed(change, tile->param, &packed))
            loads[count++] =
                (struct keel_load){.box = region_of(param, averages), .out = values + tile->offset};
    }
    if (status == KEEL_OK)
        status = keel_snapshot_load(snapshot, loads, count, config, NULL);
    if (status == KEEL_NOT_FOUND)
        status = keel_weights_say_missing(snapshot, loads, count);
    if (status == KEEL_OK && change != NULL)
        status = change_all(engine, snapshot, averages, config, change, values);
    if (status == KEEL_OK)
        status = to_device(engine, values, deadline_ns);
    keel_free(values);
    keel_free(loads);
    return status;
}
