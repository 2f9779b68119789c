/* trainer_internal.h - the trainer's fields, shared by trainer*.c. */
#ifndef KEEL_TRAINER_INTERNAL_H
#define KEEL_TRAINER_INTERNAL_H

#include "trainer.h"

#include "partial_sums.h"
#include <keel/node.h>

/* The loss rides behind the gradients of a node, padded to one alignment unit. */
enum { KEEL_LOSS_FLOATS = 64 };

struct keel_partial_buffer {
    struct keel_buffer *buffer;   /* flat gradients, then the loss; NULL until first needed */
    struct keel_buffer **slices;  /* bucket_count + 1: the last is the loss */
    struct keel_launch_list *add; /* bucket_count + 1: gradients += slot */
    bool used;
};

/* What every rank says with the last reduction of a step. */
struct keel_commit_record {
    uint64_t epoch, step, digest, wishes;
    uint32_t has_loss, loss_bits; /* of the step before, where this rank did it */
};

struct keel_trainer {
    const struct keel_job *job;
    const struct keel_data *data;
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_engine *engine;
    struct keel_queue *copy_queue; /* host copies, beside the engine's queue */
    uint64_t stall_ns;
    struct keel_hang_watch *hangs; /* NULL: nobody watches */
    atomic_uint_fast64_t *progress;
    uint64_t flat_count;
    uint32_t bucket_count;
    struct keel_buffer **gradient_slices; /* per bucket */
    void *inputs[KEEL_DATA_INPUTS_MAX];   /* one microbatch */
    float *logits;                        /* of one batch; NULL: accuracy is not asked for */

    struct keel_partial_buffer slots[KEEL_HOLD_NODES_MAX];
    struct keel_partial_sums hold;
    uint64_t hold_step; /* the step whose nodes are held */
    uint64_t digest;    /* of the weights as they are */
    uint64_t probe;     /* after the update of the warm-up */

    /* Of the shard being computed, for the bucket callback. */
    int chain[KEEL_HOLD_LEVELS_MAX]; /* slots to add, in order */
    uint32_t chain_count;
    bool last_shard;
    struct keel_event **bucket_events; /* per bucket, of the last shard; NULL when there was none */

    /* Staging for sums between ranks; grows at view changes, never in a step. */
    float *parts[KEEL_HOLD_NODES_MAX];  /* transport memory; per held node: flat_count + KEEL_LOSS_FLOATS */
    float *result;                      /* the same of the sum */
    struct keel_operation **operations; /* bucket_count + 2: loss, commit record */
    struct keel_commit_record *records; /* KEEL_MEMBERS_MAX, and last our own */
};

/* As a batch takes them. */
static inline const void *const *keel_trainer_inputs(const struct keel_trainer *trainer)
{
    return (const void *const *)trainer->inputs;
}

static inline uint64_t keel_flat_bytes(const struct keel_trainer *trainer)
{
    return trainer->flat_count * sizeof(float);
}

/* trainer_state.c: what snapshots put in front of the names of a part's tensors, and whether it is kept. */
const char *keel_state_prefix(uint32_t part);
bool keel_state_is_kept(const struct keel_trainer *trainer, uint32_t tile, uint32_t part);

#endif
