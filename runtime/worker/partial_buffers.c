/* partial_buffers.c - slots: device memory for the nodes of the shard tree that a rank holds beside the one
 * in the gradient buffer, and what adds them to it.
 *
 * Which slot holds which node is said by trainer->hold alone (partial_sums.h). A slot is made when a tape
 * first needs it and stays. The queue runs in order: a slot whose node was added may be written by what comes
 * next. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>

static void destroy_slot(struct keel_trainer *trainer, struct keel_partial_buffer *slot)
{
    for (uint32_t p = 0; slot->add != NULL && p <= trainer->bucket_count; p++)
        keel_launch_list_fini(&slot->add[p]);
    for (uint32_t p = 0; slot->slices != NULL && p <= trainer->bucket_count; p++)
        if (slot->slices[p] != NULL)
            keel_buffer_destroy(slot->slices[p]);
    if (slot->buffer != NULL)
        keel_buffer_destroy(slot->buffer);
    keel_free(slot->slices);
    keel_free(slot->add);
    *slot = (struct keel_partial_buffer){.buffer = NULL};
}

void keel_partial_buffers_destroy(struct keel_trainer *trainer)
{
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++)
        destroy_slot(trainer, &trainer->slots[i]);
}

static enum keel_status build_slot(struct keel_trainer *trainer, struct keel_partial_buffer *slot)
{
    const uint32_t buckets = trainer->bucket_count;
    const uint64_t bytes = keel_flat_bytes(trainer);
    KEEL_TRY(keel_buffer_create(trainer->device, bytes + KEEL_LOSS_FLOATS * sizeof(float), &slot->buffer));
    KEEL_TRY(keel_alloc(buckets + 1, sizeof(struct keel_buffer *), &slot->slices));
    KEEL_TRY(keel_alloc(buckets + 1, sizeof(struct keel_launch_list), &slot->add));
    KEEL_TRY(keel_trainer_slice_buckets(trainer, slot->buffer, slot->slices));
    KEEL_TRY(keel_buffer_slice(slot->buffer, bytes, sizeof(float), &slot->slices[buckets]));
    for (uint32_t p = 0; p <= buckets; p++) {
        struct keel_add add = {.count = keel_trainer_piece(trainer, p).count,
                               .a = slot->slices[p],
                               .b = trainer->gradient_slices[p],
                               .y = trainer->gradient_slices[p]};
        KEEL_TRY(keel_op_add(trainer->kernels, &add, &slot->add[p]));
        KEEL_TRY(keel_launch_list_seal(&slot->add[p], trainer->kernels));
    }
    return KEEL_OK;
}

enum keel_status keel_partial_buffers_prepare(struct keel_tape_run *run)
{
    struct keel_trainer *trainer = run->trainer;
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < trainer->tape.count && status == KEEL_OK; i++) {
        const struct keel_action *action = &trainer->tape.actions[i];
        if (action->kind != KEEL_ACTION_STORE || trainer->slots[action->slot].buffer != NULL)
            continue;
        keel_tape_enter(run, KEEL_HANG_COMPUTE);
        keel_hang_distrust(trainer->hangs, KEEL_HANG_COMPUTE); /* its launches may compile */
        status = build_slot(trainer, &trainer->slots[action->slot]);
        keel_tape_leave(run);
        if (status != KEEL_OK)
            destroy_slot(trainer, &trainer->slots[action->slot]);
    }
    return status;
}

static struct keel_held_node *node_in(struct keel_partial_sums *hold, int slot)
{
    for (uint32_t i = 0; i < hold->count; i++)
        if (hold->held[i].slot == slot)
            return &hold->held[i];
    return NULL;
}

enum keel_status keel_tape_store(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    struct keel_held_node *held = keel_hold_in_gradients(&trainer->hold);
    struct keel_partial_buffer *slot = &trainer->slots[action->slot];
    KEEL_ASSERT(held != NULL && node_in(&trainer->hold, action->slot) == NULL && slot->buffer != NULL);
    KEEL_TRY(keel_queue_copy(queue, keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS), 0, slot->buffer,
                             0, keel_flat_bytes(trainer), NULL, NULL));
    KEEL_TRY(keel_queue_copy(queue, keel_engine_loss(trainer->engine), 0, slot->buffer,
                             keel_flat_bytes(trainer), sizeof(float), NULL, NULL));
    held->slot = action->slot;
    return KEEL_OK;
}

enum keel_status keel_tape_restore(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    struct keel_partial_buffer *slot = &trainer->slots[action->slot];
    KEEL_ASSERT(keel_hold_in_gradients(&trainer->hold) == NULL && slot->buffer != NULL);
    KEEL_ASSERT(node_in(&trainer->hold, action->slot) != NULL);
    KEEL_TRY(keel_queue_copy(queue, slot->buffer, 0, keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS),
                             0, keel_flat_bytes(trainer), NULL, NULL));
    return keel_queue_copy(queue, slot->buffer, keel_flat_bytes(trainer), keel_engine_loss(trainer->engine),
                           0, sizeof(float), NULL, NULL);
}

enum keel_status keel_tape_add(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    KEEL_ASSERT(node_in(&trainer->hold, action->slot) != NULL);
    if (action->piece == trainer->bucket_count) {
        KEEL_ASSERT(run->chain_count < KEEL_HOLD_LEVELS_MAX);
        run->chain[run->chain_count++] = action->slot;
    }
    return keel_launch_list_run(&trainer->slots[action->slot].add[action->piece],
                                keel_engine_queue(trainer->engine));
}
