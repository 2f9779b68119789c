/* compressed_sums.c - train.gradients = int8 or topk: gradients of shards as elements of fewer bytes
 * (keel/transport_compressed.h), from when a shard is computed to when their sum is applied.
 *
 * Each shard's gradients are made elements by themselves, and each node of the shard tree is the sum of two
 * nodes made elements again, here and in the transport alike: so the bits follow from shards alone. Blocks
 * are cut within tiles, so they do not depend on how the flat buffers are laid out. What rounding loses is
 * lost: nothing is kept from step to step that would have to be saved, healed and taken over with a shard.
 *
 * Nodes lie on the host, also of a rank alone. The device's gradients are mapped to be read once for each
 * shard that is computed, and to be written once a step. The loss of a node stays exact. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

static bool lies_in(const struct keel_tile *tile, const struct keel_engine_bucket *bucket)
{
    return tile->offset >= bucket->offset && tile->offset - bucket->offset < bucket->count;
}

uint64_t keel_trainer_compressed_count(const struct keel_engine *engine, const struct keel_compression *how,
                                       uint32_t bucket)
{
    const struct keel_engine_bucket *at = keel_engine_bucket(engine, bucket);
    uint64_t count = 0;
    for (uint32_t i = 0; i < keel_engine_tile_count(engine); i++)
        if (lies_in(keel_engine_tile(engine, i), at))
            count += keel_compressed_count(how, keel_engine_tile(engine, i)->count);
    return count;
}

/* Tiles of a bucket stand together, so that it is one range of elements. */
static void lay_out(struct keel_trainer *trainer)
{
    struct keel_compressed_sums *sums = &trainer->compressed;
    uint64_t at = 0;
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        const struct keel_engine_bucket *bucket = keel_engine_bucket(trainer->engine, b);
        sums->bucket_at[b] = at;
        for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine); i++) {
            const struct keel_tile *tile = keel_engine_tile(trainer->engine, i);
            if (!lies_in(tile, bucket))
                continue;
            KEEL_ASSERT(tile->offset + tile->count <= bucket->offset + bucket->count);
            sums->tile_at[i] = at;
            at += keel_compressed_count(&sums->how, tile->count);
        }
    }
    sums->bucket_at[trainer->bucket_count] = at;
}

/* Memory that other ranks of the host read in place. */
static enum keel_status make_elements(const struct keel_trainer *trainer, uint8_t **out)
{
    return keel_transport_alloc(trainer->compressed.bucket_at[trainer->bucket_count] * KEEL_COMPRESSED_BYTES,
                                out);
}

enum keel_status keel_compressed_sums_create(struct keel_trainer *trainer)
{
    struct keel_compressed_sums *sums = &trainer->compressed;
    sums->on = keel_job_compression(trainer->job, &sums->how);
    if (!sums->on)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(keel_engine_tile_count(trainer->engine), sizeof *sums->tile_at, &sums->tile_at));
    KEEL_TRY(keel_alloc(trainer->bucket_count + 1, sizeof *sums->bucket_at, &sums->bucket_at));
    lay_out(trainer);
    return KEEL_OK;
}

void keel_compressed_sums_destroy(struct keel_trainer *trainer)
{
    struct keel_compressed_sums *sums = &trainer->compressed;
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++)
        keel_transport_free(sums->slots[i].node);
    keel_transport_free(sums->sum);
    keel_free(sums->bucket_at);
    keel_free(sums->tile_at);
}

enum keel_status keel_compressed_sums_prepare(struct keel_trainer *trainer, bool grouped)
{
    struct keel_compressed_sums *sums = &trainer->compressed;
    for (uint32_t i = 0; i < trainer->tape.count; i++) {
        const struct keel_action *action = &trainer->tape.actions[i];
        if (action->kind == KEEL_ACTION_ENCODE && sums->slots[action->slot].node == NULL)
            KEEL_TRY(make_elements(trainer, &sums->slots[action->slot].node));
    }
    return grouped && sums->sum == NULL ? make_elements(trainer, &sums->sum) : KEEL_OK;
}

/* ---- between the device and elements ------------------------------------------------------------------- */

/* Waits for all that the queue holds; the caller unmaps. */
static enum keel_status map_gradients(const struct keel_trainer *trainer, enum keel_map map, float **out)
{
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    void *mapped;
    KEEL_TRY(keel_queue_map(queue, keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS), 0,
                            keel_flat_bytes(trainer), map, &mapped, NULL, NULL));
    *out = mapped;
    return keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns));
}

static enum keel_status unmap_gradients(const struct keel_trainer *trainer, float *mapped)
{
    return keel_queue_unmap(keel_engine_queue(trainer->engine),
                            keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS), mapped, NULL, NULL);
}

static uint8_t *element_of(uint8_t *elements, uint64_t index)
{
    return elements + index * KEEL_COMPRESSED_BYTES;
}

static void encode_tiles(const struct keel_trainer *trainer, const float *gradients, uint8_t *out)
{
    const struct keel_compressed_sums *sums = &trainer->compressed;
    for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine); i++) {
        const struct keel_tile *tile = keel_engine_tile(trainer->engine, i);
        keel_compressed_encode(&sums->how, gradients + tile->offset, tile->count,
                               element_of(out, sums->tile_at[i]));
    }
}

/* The siblings' nodes are read, and stay until the shard's is whole. */
static void adopt(struct keel_trainer *trainer, uint32_t shard, int slot)
{
    struct keel_compressed_sums *sums = &trainer->compressed;
    struct keel_partial_sums next = trainer->hold;
    int merged[KEEL_HOLD_LEVELS_MAX];
    const uint32_t count = keel_hold_add(&next, shard, merged);
    for (uint32_t i = 0; i < count; i++) {
        KEEL_ASSERT(merged[i] >= 0 && merged[i] != slot);
        keel_compressed_add(sums->how.element, sums->slots[slot].node, sums->slots[merged[i]].node,
                            sums->bucket_at[trainer->bucket_count]);
        sums->slots[slot].loss = sums->slots[merged[i]].loss + sums->slots[slot].loss;
    }
    keel_hold_in_gradients(&next)->slot = slot;
    trainer->hold = next;
}

enum keel_status keel_tape_encode(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_compressed_slot *slot = &trainer->compressed.slots[action->slot];
    float *gradients;
    KEEL_ASSERT(slot->node != NULL);
    for (uint32_t i = 0; i < trainer->hold.count; i++)
        KEEL_ASSERT(trainer->hold.held[i].slot != action->slot);
    KEEL_TRY(keel_queue_read(keel_engine_queue(trainer->engine), keel_engine_loss(trainer->engine), 0,
                             &slot->loss, sizeof slot->loss, NULL, NULL));
    KEEL_TRY(map_gradients(trainer, KEEL_MAP_READ, &gradients));
    encode_tiles(trainer, gradients, slot->node);
    KEEL_TRY(unmap_gradients(trainer, gradients));
    adopt(trainer, action->shard, action->slot);
    return KEEL_OK;
}

/* Gaps between tiles are zero and stay so: a map for writing has to write them, too. */
enum keel_status keel_tape_decode(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_compressed_sums *sums = &trainer->compressed;
    uint8_t *from = action->slot == KEEL_SUM_ON_HOST ? sums->sum : sums->slots[action->slot].node;
    enum keel_status status = KEEL_OK;
    float *gradients;
    KEEL_TRY(map_gradients(trainer, KEEL_MAP_WRITE, &gradients));
    memset(gradients, 0, keel_size(keel_flat_bytes(trainer)));
    for (uint32_t i = 0; i < keel_engine_tile_count(trainer->engine) && status == KEEL_OK; i++) {
        const struct keel_tile *tile = keel_engine_tile(trainer->engine, i);
        status = keel_compressed_decode(&sums->how, element_of(from, sums->tile_at[i]), tile->count,
                                        gradients + tile->offset);
    }
    const enum keel_status unmapped = unmap_gradients(trainer, gradients);
    return status != KEEL_OK ? status : unmapped;
}

/* ---- the sum over ranks -------------------------------------------------------------------------------- */

void keel_compressed_sums_describe(struct keel_trainer *trainer, uint32_t bucket, const void **parts,
                                   struct keel_collective *out)
{
    struct keel_compressed_sums *sums = &trainer->compressed;
    const uint64_t first = sums->bucket_at[bucket];
    for (uint32_t i = 0; i < trainer->hold.count; i++)
        parts[i] = element_of(sums->slots[trainer->hold.held[i].slot].node, first);
    *out = (struct keel_collective){.kind = KEEL_ALL_REDUCE,
                                    .element = sums->how.element,
                                    .count = sums->bucket_at[bucket + 1] - first,
                                    .parts = parts,
                                    .part_count = trainer->hold.count,
                                    .result = element_of(sums->sum, first)};
}
