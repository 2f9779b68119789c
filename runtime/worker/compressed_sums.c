/* compressed_sums.c - train.gradients = int8 or topk: gradients of shards as elements of fewer bytes
 * (keel/transport_compressed.h), from when a shard is computed to when their sum is applied.
 *
 * Each shard's gradients are made elements by themselves, and each node of the shard tree is the sum of two
 * nodes made elements again, here and in the transport alike: so the bits follow from shards alone. Blocks
 * are cut within what a logical slice has of a parameter, so they depend neither on how the flat buffers are
 * laid out, nor on which slices a rank has. What rounding loses is lost: nothing is kept from step to step
 * that would have to be saved, healed and taken over with a shard.
 *
 * Nodes lie on the host, also of a rank alone. The device's gradients are mapped to be read once for each
 * shard that is computed, and to be written once a step. The loss of a node stays exact. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

static bool lies_in(const struct keel_engine_box *box, const struct keel_engine_bucket *bucket)
{
    return box->offset >= bucket->offset && box->offset - bucket->offset < bucket->count;
}

enum keel_status keel_trainer_count_compressed(const struct keel_engine *engine,
                                               const struct keel_compression *how, uint64_t *out)
{
    struct keel_engine_box *boxes;
    uint32_t count;
    KEEL_TRY(keel_engine_boxes(engine, &boxes, &count));
    for (uint32_t b = 0; b < keel_engine_bucket_count(engine); b++) {
        out[b] = 0;
        for (uint32_t i = 0; i < count; i++)
            if (lies_in(&boxes[i], keel_engine_bucket(engine, b)))
                out[b] += keel_compressed_count(how, boxes[i].count);
    }
    keel_free(boxes);
    return KEEL_OK;
}

/* Boxes of a bucket stand together, so that it is one range of elements. The longest. */
static uint64_t lay_out(struct keel_trainer *trainer)
{
    struct keel_compressed_sums *sums = &trainer->compressed;
    uint64_t at = 0, longest = 0;
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        sums->bucket_at[b] = at;
        for (uint32_t i = 0; i < sums->box_count; i++) {
            const uint64_t count = sums->boxes[i].count;
            if (!lies_in(&sums->boxes[i], keel_engine_bucket(trainer->engine, b)))
                continue;
            sums->box_at[i] = at;
            at += keel_compressed_count(&sums->how, count);
            longest = count > longest ? count : longest;
        }
    }
    sums->bucket_at[trainer->bucket_count] = at;
    return longest;
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
    KEEL_TRY(keel_engine_boxes(trainer->engine, &sums->boxes, &sums->box_count));
    KEEL_TRY(keel_alloc(sums->box_count, sizeof *sums->box_at, &sums->box_at));
    KEEL_TRY(keel_alloc(trainer->bucket_count + 1, sizeof *sums->bucket_at, &sums->bucket_at));
    const uint64_t longest = lay_out(trainer);
    return keel_alloc(longest, sizeof *sums->packed, &sums->packed);
}

void keel_compressed_sums_destroy(struct keel_trainer *trainer)
{
    struct keel_compressed_sums *sums = &trainer->compressed;
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++)
        keel_transport_free(sums->slots[i].node);
    keel_transport_free(sums->sum);
    keel_free(sums->packed);
    keel_free(sums->bucket_at);
    keel_free(sums->box_at);
    keel_free(sums->boxes);
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
                            keel_gradient_bytes(trainer), map, &mapped, NULL, NULL));
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

/* Rows of a box of the gradients to one piece, or back. */
static void copy_rows(const struct keel_engine_box *box, float *gradients, float *packed, bool back)
{
    for (uint64_t r = 0; r < box->count / box->row; r++) {
        float *there = gradients + box->offset + r * box->stride, *here = packed + r * box->row;
        memcpy(back ? there : here, back ? here : there, keel_size(box->row * sizeof(float)));
    }
}

static void encode_boxes(const struct keel_trainer *trainer, float *gradients, uint8_t *out)
{
    const struct keel_compressed_sums *sums = &trainer->compressed;
    for (uint32_t i = 0; i < sums->box_count; i++) {
        const struct keel_engine_box *box = &sums->boxes[i];
        if (box->row > 0)
            copy_rows(box, gradients, sums->packed, false);
        keel_compressed_encode(&sums->how, box->row > 0 ? sums->packed : gradients + box->offset, box->count,
                               element_of(out, sums->box_at[i]));
    }
}

static enum keel_status decode_boxes(const struct keel_trainer *trainer, const uint8_t *from,
                                     float *gradients)
{
    const struct keel_compressed_sums *sums = &trainer->compressed;
    for (uint32_t i = 0; i < sums->box_count; i++) {
        const struct keel_engine_box *box = &sums->boxes[i];
        KEEL_TRY(keel_compressed_decode(&sums->how, from + sums->box_at[i] * KEEL_COMPRESSED_BYTES,
                                        box->count, box->row > 0 ? sums->packed : gradients + box->offset));
        if (box->row > 0)
            copy_rows(box, gradients, sums->packed, true);
    }
    return KEEL_OK;
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
    encode_boxes(trainer, gradients, slot->node);
    KEEL_TRY(unmap_gradients(trainer, gradients));
    adopt(trainer, action->shard, action->slot);
    return KEEL_OK;
}

/* Gaps between boxes are zero and stay so: a map for writing has to write them, too. */
enum keel_status keel_tape_decode(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_compressed_sums *sums = &trainer->compressed;
    uint8_t *from = action->slot == KEEL_SUM_ON_HOST ? sums->sum : sums->slots[action->slot].node;
    float *gradients;
    KEEL_TRY(map_gradients(trainer, KEEL_MAP_WRITE, &gradients));
    memset(gradients, 0, keel_size(keel_gradient_bytes(trainer)));
    const enum keel_status status = decode_boxes(trainer, from, gradients);
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
