/* tape_sum.c - sums over ranks: from the device through staging memory into collectives, and back.
 *
 * Staging is transport memory of one flat gradient for each held node and one for the sum, so that parts stay
 * as they are until the step is committed: they are the retained inputs of another attempt. Nothing outside
 * this file knows that there is staging. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

/* A step's collectives have numbers of their own; those of a view lie below and far above (worker_sync.c). */
static uint64_t sequence_of(const struct keel_tape_run *run, uint32_t piece)
{
    return ((run->step->step + 1) << 20) + piece;
}

enum keel_status keel_tape_stage(struct keel_trainer *trainer)
{
    uint64_t bytes = keel_flat_bytes(trainer) + KEEL_LOSS_FLOATS * sizeof(float);
    for (uint32_t i = 0; i < trainer->tape.part_count; i++)
        if (trainer->parts[i] == NULL)
            KEEL_TRY(keel_transport_alloc(bytes, &trainer->parts[i]));
    if (trainer->result == NULL)
        KEEL_TRY(keel_transport_alloc(bytes, &trainer->result));
    return KEEL_OK;
}

void keel_tape_unstage(struct keel_trainer *trainer)
{
    for (uint32_t i = 0; i < KEEL_HOLD_NODES_MAX; i++)
        keel_transport_free(trainer->parts[i]);
    keel_transport_free(trainer->result);
}

/* A piece of all held nodes, when it is final. */
enum keel_status keel_tape_read(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_engine_bucket at = keel_trainer_piece(trainer, action->piece);
    const bool loss = action->piece == trainer->bucket_count;
    struct keel_event *after = loss ? NULL : trainer->bucket_events[action->piece];
    struct keel_wait_list waits = {.events = &after, .count = after != NULL ? 1 : 0};
    KEEL_ASSERT(loss || trainer->tape.shards_computed == 0 || after != NULL);
    KEEL_ASSERT(trainer->operations[action->piece] == NULL);
    for (uint32_t i = 0; i < trainer->hold.count; i++) {
        const int slot = trainer->hold.held[i].slot;
        const bool alone = slot == KEEL_HOLD_GRADIENTS && loss; /* the engine's loss is a buffer of its own */
        struct keel_buffer *source = slot != KEEL_HOLD_GRADIENTS ? trainer->slots[slot].buffer
                                     : loss                      ? keel_engine_loss(trainer->engine)
                                            : keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS);
        KEEL_TRY(keel_queue_read(trainer->copy_queue, source, alone ? 0 : at.offset * sizeof(float),
                                 trainer->parts[i] + at.offset, at.count * sizeof(float), &waits, NULL));
    }
    return keel_tape_finish_queue(run, trainer->copy_queue);
}

static enum keel_status begin(struct keel_tape_run *run, const struct keel_action *action,
                              struct keel_collective *collective)
{
    struct keel_operation **operation = &run->trainer->operations[action->piece];
    KEEL_ASSERT(*operation == NULL);
    collective->sequence = sequence_of(run, action->piece);
    return keel_group_begin(run->step->group, collective, operation);
}

enum keel_status keel_tape_reduce(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_engine_bucket at = keel_trainer_piece(trainer, action->piece);
    const void *parts[KEEL_HOLD_NODES_MAX];
    KEEL_ASSERT(trainer->hold.count == trainer->tape.part_count);
    for (uint32_t i = 0; i < trainer->hold.count; i++)
        parts[i] = trainer->parts[i] + at.offset;
    struct keel_collective sum = {.kind = KEEL_ALL_REDUCE,
                                  .element = KEEL_ELEMENT_F32,
                                  .count = at.count,
                                  .parts = parts,
                                  .part_count = trainer->hold.count,
                                  .result = trainer->result + at.offset};
    return begin(run, action, &sum);
}

enum keel_status keel_tape_gather(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_commit_record *mine = &run->trainer->records[KEEL_MEMBERS_MAX];
    const void *parts[] = {mine};
    KEEL_ASSERT(mine->step == run->step->step && mine->epoch == run->step->epoch);
    struct keel_collective gather = {.kind = KEEL_ALL_GATHER,
                                     .element = KEEL_ELEMENT_U8,
                                     .count = sizeof *mine,
                                     .parts = parts,
                                     .part_count = 1,
                                     .result = run->trainer->records};
    return begin(run, action, &gather);
}

enum keel_status keel_tape_await(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_operation *operation = trainer->operations[action->piece];
    KEEL_ASSERT(operation != NULL);
    if (run->waiting_ns == 0)
        run->waiting_ns = keel_now_ns();
    trainer->operations[action->piece] = NULL;
    KEEL_TRY(keel_operation_wait(operation, keel_deadline_after_ns(trainer->stall_ns)));
    if (action->piece == trainer->bucket_count)
        run->result.loss = trainer->result[trainer->flat_count];
    run->result.exposed_comm_ns = keel_now_ns() - run->waiting_ns;
    return KEEL_OK;
}

/* The sum goes where the optimizer reads it, and a held node may lie: from here on there is no other attempt.
 */
enum keel_status keel_tape_write(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    (void)action;
    for (uint32_t piece = 0; piece < trainer->bucket_count + 2; piece++)
        KEEL_ASSERT(trainer->operations[piece] == NULL);
    return keel_queue_write(keel_engine_queue(trainer->engine),
                            keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS), 0, trainer->result,
                            keel_flat_bytes(trainer), NULL, NULL);
}
