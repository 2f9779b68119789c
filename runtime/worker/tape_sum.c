/* tape_sum.c - sums over ranks: of each bucket on the device's memory, of the loss and the records on the
 * host's.
 *
 * Parts are the nodes that the rank holds, where they lie; they stay as they are until the step is committed,
 * since they are the retained inputs of another attempt. How parts and sums get from the device to the
 * network and back is the business of keel/transport_device.h. */
#include "trainer_internal.h"
#include <keel/clock.h>

/* A step's collectives have numbers of their own; those of a view lie below and far above (trainer.h). */
uint64_t keel_tape_sequence(const struct keel_tape_run *run, uint32_t piece)
{
    KEEL_ASSERT(piece <= KEEL_PIECE_MEETING); /* else it were one of the next step */
    return ((run->step->step + 1) << KEEL_PIECE_BITS) + piece;
}

void keel_tape_on_device(struct keel_trainer *trainer, enum keel_hang_section section, bool inside)
{
    const uint64_t now_ns = keel_now_ns();
    if (inside)
        keel_hang_enter(trainer->hangs, section, now_ns);
    else
        keel_hang_leave(trainer->hangs, section, now_ns);
    if (inside)
        trainer->device_since_ns = now_ns;
    else
        trainer->device_ns += now_ns - trainer->device_since_ns;
}

/* A wait for a sum is one for other ranks, who may take their time, and for the device, which may not. What
 * is done for sums elsewhere stands in a section. */
static void on_device(void *context, bool inside)
{
    struct keel_trainer *trainer = context;
    if (trainer->awaits)
        keel_tape_on_device(trainer, KEEL_HANG_UPDATE, inside);
}

/* Staging, where the device's memory is not the host's, for two of the largest bucket: one is copied while
 * the other is summed. In elements. */
static uint64_t staging_of(const struct keel_trainer *trainer, uint32_t parts)
{
    uint64_t largest = 0;
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        const uint64_t count = keel_engine_bucket(trainer->engine, b)->count;
        largest = count > largest ? count : largest;
    }
    /* Copies of whole shares go while others come. */
    const uint64_t copies = trainer->owned.on ? trainer->owned.now.owners.of.count : 0;
    uint64_t staging = 2 * ((uint64_t)parts + 1) * largest;
    if (trainer->gathered.on) /* weights come while gradients go */
        staging += 2 * largest;
    if (copies > 1 && staging < 4 * (trainer->flat_count / copies + largest))
        staging = 4 * (trainer->flat_count / copies + largest);
    return staging;
}

static enum keel_status create(struct keel_trainer *trainer, uint32_t parts, uint64_t staging)
{
    uint64_t most = trainer->bucket_count + KEEL_COPIES_AT_ONCE + 1;
    if (trainer->gathered.on)
        most += KEEL_GATHERS_AT_ONCE; /* the sums beside them lie in windows: few are under way */
    else if (trainer->owned.on && trainer->bucket_count < KEEL_GATHERS_AT_ONCE)
        most += KEEL_GATHERS_AT_ONCE - trainer->bucket_count;
    const uint32_t operations =
        most < KEEL_DEVICE_OPERATIONS_MAX ? (uint32_t)most : KEEL_DEVICE_OPERATIONS_MAX;
    const struct keel_device_collectives_config config = {.device = trainer->device,
                                                          .parts_max = parts,
                                                          .operations_max = operations,
                                                          .on_device = on_device,
                                                          .context = trainer,
                                                          .staging_bytes = staging * sizeof(float)};
    return keel_device_collectives_create(&config, &trainer->collectives);
}

enum keel_status keel_tape_prepare_sums(struct keel_trainer *trainer)
{
    uint32_t parts = trainer->tape.part_count > 0 ? trainer->tape.part_count : 1;
    if (parts < trainer->parts_max)
        parts = trainer->parts_max;
    const uint64_t staging = staging_of(trainer, parts); /* fewer owners have larger shares */
    if (trainer->collectives != NULL && parts == trainer->parts_max && staging <= trainer->staging_max)
        return KEEL_OK;
    keel_device_collectives_free(trainer->collectives);
    trainer->collectives = NULL;
    trainer->parts_max = parts;
    trainer->staging_max = staging;
    return create(trainer, parts, staging);
}

/* Where the flat gradients of a slot begin, or those of the gradient buffer. */
static struct keel_buffer *flat_of(const struct keel_trainer *trainer, int slot)
{
    return slot == KEEL_HOLD_GRADIENTS ? keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS)
                                       : trainer->slots[slot].flat.buffer;
}

/* A bucket of them. */
static struct keel_device_place place_in(const struct keel_trainer *trainer, int slot, uint32_t bucket)
{
    const uint64_t at = slot == KEEL_HOLD_GRADIENTS ? keel_engine_gradient_at(trainer->engine, bucket)
                                                    : keel_engine_bucket(trainer->engine, bucket)->offset;
    return (struct keel_device_place){flat_of(trainer, slot), at * sizeof(float)};
}

/* Settled together with the gradients. */
enum keel_status keel_tape_loss(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    (void)action;
    for (uint32_t i = 0; i < trainer->hold.count; i++) {
        const int slot = trainer->hold.held[i].slot;
        if (trainer->compressed.on) {
            trainer->losses[i] = trainer->compressed.slots[slot].loss;
            continue;
        }
        const bool apart = slot == KEEL_HOLD_GRADIENTS; /* the engine's loss is a buffer of its own */
        KEEL_TRY(keel_queue_read(keel_engine_queue(trainer->engine),
                                 apart ? keel_engine_loss(trainer->engine) : flat_of(trainer, slot),
                                 apart ? 0 : keel_gradient_bytes(trainer), &trainer->losses[i], sizeof(float),
                                 NULL, NULL));
    }
    return KEEL_OK;
}

/* What a rank alone has is all there is. */
static enum keel_status begin(struct keel_tape_run *run, uint32_t piece, struct keel_collective *collective)
{
    if (run->step->group == NULL)
        return KEEL_OK;
    struct keel_operation **operation = &run->trainer->operations[piece];
    KEEL_ASSERT(*operation == NULL);
    collective->sequence = keel_tape_sequence(run, piece);
    return keel_group_begin(run->step->group, collective, operation);
}

static enum keel_status reduce_loss(struct keel_tape_run *run, uint32_t piece)
{
    struct keel_trainer *trainer = run->trainer;
    const void *parts[KEEL_HOLD_NODES_MAX];
    for (uint32_t i = 0; i < trainer->hold.count; i++)
        parts[i] = &trainer->losses[i];
    struct keel_collective sum = {.kind = KEEL_ALL_REDUCE,
                                  .element = KEEL_ELEMENT_F32,
                                  .count = 1,
                                  .parts = parts,
                                  .part_count = trainer->hold.count,
                                  .result = &trainer->loss};
    trainer->loss = trainer->losses[0];
    if (!trainer->compressed.on && run->step->group != NULL)
        keel_device_collectives_advance(trainer->collectives); /* the device was waited for meanwhile */
    return begin(run, piece, &sum);
}

static enum keel_status reduce_elements(struct keel_tape_run *run, uint32_t piece)
{
    const void *parts[KEEL_HOLD_NODES_MAX];
    struct keel_collective sum;
    keel_compressed_sums_describe(run->trainer, piece, parts, &sum);
    return begin(run, piece, &sum);
}

/* As soon as the bucket is final: the collective waits for its mark. */
static enum keel_status reduce_bucket(struct keel_tape_run *run, uint32_t piece, int slot)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_engine_bucket at = keel_trainer_piece(trainer, piece);
    struct keel_event *after = trainer->bucket_events[piece];
    struct keel_device_place parts[KEEL_HOLD_NODES_MAX];
    KEEL_ASSERT(trainer->tape.shards_computed == 0 || after != NULL);
    KEEL_ASSERT(trainer->sums[piece] == NULL);
    for (uint32_t i = 0; i < trainer->hold.count; i++) {
        KEEL_ASSERT(trainer->hold.held[i].slot != slot);
        parts[i] = place_in(trainer, trainer->hold.held[i].slot, piece);
    }
    struct keel_device_collective sum = {.what = {.kind = KEEL_ALL_REDUCE,
                                                  .sequence = keel_tape_sequence(run, piece),
                                                  .element = KEEL_ELEMENT_F32,
                                                  .count = at.count,
                                                  .part_count = trainer->hold.count},
                                         .parts = parts,
                                         .after = {&after, after != NULL ? 1 : 0}};
    if (slot == KEEL_SUM_IN_PIECES)
        KEEL_TRY(keel_owned_reduce(run, piece, &sum));
    else
        sum.result = (struct keel_device_place){flat_of(trainer, slot), at.offset * sizeof(float)};
    if (run->step->group == NULL)
        return KEEL_OK;
    KEEL_TRY(
        keel_device_collective_begin(trainer->collectives, run->step->group, &sum, &trainer->sums[piece]));
    return keel_device_operation_start(trainer->sums[piece], keel_deadline_after_ns(trainer->stall_ns));
}

enum keel_status keel_tape_reduce(struct keel_tape_run *run, const struct keel_action *action)
{
    const struct keel_trainer *trainer = run->trainer;
    KEEL_ASSERT(trainer->hold.count == trainer->tape.part_count);
    if (action->piece == trainer->bucket_count)
        return reduce_loss(run, action->piece);
    return trainer->compressed.on ? reduce_elements(run, action->piece)
                                  : reduce_bucket(run, action->piece, action->slot);
}

/* Of a bucket, until the device has the sum. */
static enum keel_status await_piece(struct keel_tape_run *run, uint32_t piece, uint64_t deadline_ns)
{
    struct keel_trainer *trainer = run->trainer;
    if (run->step->group == NULL && piece <= trainer->bucket_count + 1)
        return KEEL_OK;
    if (trainer->gathered.on && piece >= keel_piece_weights(trainer->bucket_count, 0))
        return keel_gathered_await(trainer, piece - keel_piece_weights(trainer->bucket_count, 0),
                                   deadline_ns);
    if (piece > trainer->bucket_count + 1)
        return keel_owned_await(run, piece, deadline_ns);
    if (piece < trainer->bucket_count && !trainer->compressed.on) {
        struct keel_device_operation *sum = trainer->sums[piece];
        KEEL_ASSERT(sum != NULL);
        trainer->sums[piece] = NULL;
        trainer->awaits = true;
        enum keel_status status = keel_device_operation_wait(sum, deadline_ns);
        trainer->awaits = false;
        return status;
    }
    struct keel_operation **at = &trainer->operations[piece], *operation = *at;
    KEEL_ASSERT(operation != NULL);
    *at = NULL;
    KEEL_TRY(keel_operation_wait(operation, deadline_ns));
    return piece == trainer->bucket_count + 1 ? keel_tape_await_copies(trainer, deadline_ns) : KEEL_OK;
}

enum keel_status keel_tape_await(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    KEEL_TRY(await_piece(run, action->piece, keel_deadline_after_ns(trainer->stall_ns)));
    if (action->piece == trainer->bucket_count)
        run->result.loss = trainer->loss;
    return KEEL_OK;
}
