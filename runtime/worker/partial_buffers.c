/* partial_buffers.c - slots: device memory for the nodes of the shard tree that a rank holds beside the one
 * in the gradient buffer, and for the sum over ranks; what adds nodes to that buffer, and updates from a
 * slot.
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
    keel_engine_source_destroy(slot->source);
    keel_shared_buffer_destroy(&slot->flat);
    keel_free(slot->slices);
    keel_free(slot->add);
    *slot = (struct keel_partial_buffer){.slices = NULL};
}

void keel_partial_buffers_destroy(struct keel_trainer *trainer)
{
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++)
        destroy_slot(trainer, &trainer->slots[i]);
}

/* Other ranks of the host read it in place, where there are others. */
static enum keel_status make_flat(const struct keel_trainer *trainer, uint64_t bytes,
                                  struct keel_shared_buffer *out)
{
    return trainer->job->ranks > 1 ? keel_shared_buffer_create(trainer->device, bytes, out)
                                   : keel_buffer_create(trainer->device, bytes, &out->buffer);
}

static enum keel_status build_slot(struct keel_trainer *trainer, struct keel_partial_buffer *slot)
{
    const uint32_t buckets = trainer->bucket_count;
    const uint64_t bytes = keel_gradient_bytes(trainer);
    KEEL_TRY(make_flat(trainer, bytes + KEEL_LOSS_FLOATS * sizeof(float), &slot->flat));
    KEEL_TRY(keel_alloc(buckets + 1, sizeof(struct keel_buffer *), &slot->slices));
    KEEL_TRY(keel_alloc(buckets + 1, sizeof(struct keel_launch_list), &slot->add));
    KEEL_TRY(keel_trainer_slice_buckets(trainer, slot->flat.buffer, slot->slices));
    KEEL_TRY(keel_buffer_slice(slot->flat.buffer, bytes, sizeof(float), &slot->slices[buckets]));
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

/* What the action needs of its slot. */
static enum keel_status prepare_slot(struct keel_trainer *trainer, const struct keel_action *action)
{
    struct keel_partial_buffer *slot = &trainer->slots[action->slot];
    if (slot->flat.buffer == NULL) {
        enum keel_status status = build_slot(trainer, slot);
        if (status != KEEL_OK) {
            destroy_slot(trainer, slot);
            return status;
        }
    }
    if ((action->kind == KEEL_ACTION_UPDATE || action->kind == KEEL_ACTION_NORM) && slot->source == NULL)
        return keel_engine_source_create(trainer->engine, slot->flat.buffer, &slot->source);
    return KEEL_OK;
}

static bool is_ready(const struct keel_trainer *trainer, const struct keel_action *action)
{
    const bool uses = action->kind == KEEL_ACTION_STORE || action->kind == KEEL_ACTION_REDUCE ||
                      action->kind == KEEL_ACTION_UPDATE || action->kind == KEEL_ACTION_NORM;
    if (!uses || action->slot < 0)
        return true;
    const struct keel_partial_buffer *slot = &trainer->slots[action->slot];
    return slot->flat.buffer != NULL && (action->kind != KEEL_ACTION_UPDATE || slot->source != NULL);
}

enum keel_status keel_partial_buffers_prepare(struct keel_tape_run *run)
{
    struct keel_trainer *trainer = run->trainer;
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < trainer->tape.count && status == KEEL_OK; i++) {
        const struct keel_action *action = &trainer->tape.actions[i];
        if (is_ready(trainer, action))
            continue;
        keel_tape_enter(run, KEEL_HANG_COMPUTE);
        keel_hang_distrust(trainer->hangs, KEEL_HANG_COMPUTE); /* its launches may compile */
        status = prepare_slot(trainer, action);
        keel_tape_leave(run);
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

/* With windows: what is final of the shard under way. */
static enum keel_status store_piece(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_partial_buffer *slot = &trainer->slots[action->slot];
    KEEL_ASSERT(node_in(&trainer->hold, action->slot) == NULL && slot->flat.buffer != NULL);
    return keel_queue_copy(keel_engine_queue(trainer->engine), trainer->gradient_slices[action->piece], 0,
                           slot->slices[action->piece], 0,
                           keel_trainer_piece(trainer, action->piece).count * sizeof(float), NULL, NULL);
}

enum keel_status keel_tape_store(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    if (action->piece != KEEL_PIECE_ALL)
        return store_piece(run, action);
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    struct keel_held_node *held = keel_hold_in_gradients(&trainer->hold);
    struct keel_partial_buffer *slot = &trainer->slots[action->slot];
    KEEL_ASSERT(held != NULL && node_in(&trainer->hold, action->slot) == NULL && slot->flat.buffer != NULL);
    KEEL_TRY(keel_queue_copy(queue, keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS), 0,
                             slot->flat.buffer, 0, keel_gradient_bytes(trainer), NULL, NULL));
    KEEL_TRY(keel_queue_copy(queue, keel_engine_loss(trainer->engine), 0, slot->flat.buffer,
                             keel_gradient_bytes(trainer), sizeof(float), NULL, NULL));
    held->slot = action->slot;
    return KEEL_OK;
}

enum keel_status keel_tape_add(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    KEEL_ASSERT(node_in(run->summing ? &run->before : &trainer->hold, action->slot) != NULL);
    if (action->piece == 0) {
        KEEL_ASSERT(run->chain_count < KEEL_HOLD_LEVELS_MAX);
        run->chain[run->chain_count++] = action->slot;
    }
    return keel_launch_list_run(&trainer->slots[action->slot].add[action->piece],
                                keel_engine_queue(trainer->engine));
}
