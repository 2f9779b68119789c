/* weights.h - are the weights of a snapshot those of a model? By name and shape, for who goes on training and
 * for who evaluates. Pure but for what the snapshot's indexes say. */
#ifndef KEEL_WEIGHTS_H
#define KEEL_WEIGHTS_H

#include <keel/ckpt.h>
#include <keel/engine.h>

/* What becomes of weights that were read, before the device has them. */
struct keel_weights_change {
    /* Of a parameter that the engine has in few bits: true, with what it is in snapshots (name, shape, count,
     * whether it is trained), */
    bool (*is_packed)(void *context, uint32_t param, struct keel_engine_param *out);
    /* and what the engine has of it, in its tile's room. */
    enum keel_status (*pack)(void *context, uint32_t param, const float *values, void *out);
    /* Each other one, in place. */
    enum keel_status (*change)(void *context, uint32_t param, float *values);
    void *context;
};

/* What a snapshot calls the optimizer's moments of a parameter. */
#define KEEL_WEIGHTS_M_PREFIX "adam.m/"
#define KEEL_WEIGHTS_V_PREFIX "adam.v/"
/* And the average of it (train.ema). */
#define KEEL_WEIGHTS_EMA_PREFIX "ema/"

bool keel_weights_holds(const struct keel_snapshot *snapshot, const char *name);

/* MISMATCH: the snapshot has floats that are no parameter, moment, average or loss scale of the engine's: it
 * may be another model's, of more layers, say, which would be left behind unsaid. */
enum keel_status keel_weights_check(const struct keel_engine *engine, const struct keel_snapshot *snapshot);

/* After a load whose first `count` boxes were not all found: MISMATCH with the tensor that the snapshot
 * lacks; NOT_FOUND: it lacks none, and what they are in was told. */
enum keel_status keel_weights_say_missing(const struct keel_snapshot *snapshot, const struct keel_load *loads,
                                          uint32_t count);

/* Read all weights of the snapshot into those of an engine that has all slices, and whole, or with `averages`
 * what it has of what is trained under KEEL_WEIGHTS_EMA_PREFIX; what is the engine's own and no model's (the
 * loss scale) stays. What the engine has in few bits is in floats here one after the other. `change` and
 * `progress` may be NULL. Blocks. Errors: those above and of keel_snapshot_load, NO_MEMORY. */
enum keel_status keel_weights_load(struct keel_engine *engine, struct keel_snapshot *snapshot, bool averages,
                                   const struct keel_load_config *config,
                                   const struct keel_weights_change *change, uint64_t deadline_ns);

#endif
