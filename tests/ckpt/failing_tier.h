/* failing_tier.h - a tier of tests that passes every call on to another one, until its turn to fail comes:
 * from then on it is gone, refuses, or gives bytes with a flipped bit. */
#ifndef KEEL_TESTS_CKPT_FAILING_TIER_H
#define KEEL_TESTS_CKPT_FAILING_TIER_H

#include "tier_rig.h"

enum failing_mode { FAILING_GONE, FAILING_DENIES, FAILING_GARBLES, FAILING_MODES };

struct failing_tier {
    struct keel_tier tier; /* first */
    struct keel_tier *inner;
    enum failing_mode mode;
    uint32_t calls, fails_from; /* calls are lists, opens and reads; the first is 0 */
    uint32_t failed;
};

struct failing_source {
    struct keel_tier_source source; /* first */
    struct keel_tier_source *inner; /* owned */
};

static inline struct failing_tier *failing_of(struct keel_tier *tier)
{
    return (struct failing_tier *)tier;
}

static inline enum keel_status failing_call(struct failing_tier *failing)
{
    if (failing->calls++ < failing->fails_from)
        return KEEL_OK;
    failing->failed++;
    if (failing->mode == FAILING_GARBLES)
        return KEEL_OK;
    return keel_fail(failing->mode == FAILING_GONE ? KEEL_PEER_LOST : KEEL_DENIED, "%s: fails by plan",
                     failing->tier.name);
}

static inline enum keel_status
failing_list(struct keel_tier *tier,
             enum keel_status (*visit)(void *context, const struct keel_object_info *info), void *context)
{
    KEEL_TRY(failing_call(failing_of(tier)));
    return keel_tier_list(failing_of(tier)->inner, visit, context);
}

static inline enum keel_status failing_open(struct keel_tier_source *source)
{
    struct failing_source *own = (struct failing_source *)source;
    KEEL_TRY(failing_call(failing_of(source->tier)));
    KEEL_TRY(keel_tier_open(failing_of(source->tier)->inner, &source->info.object, &own->inner));
    source->info = own->inner->info;
    return KEEL_OK;
}

static inline enum keel_status failing_read(struct keel_tier_source *source, uint64_t offset, void *out,
                                            size_t bytes)
{
    struct failing_tier *failing = failing_of(source->tier);
    const uint32_t failed = failing->failed;
    KEEL_TRY(failing_call(failing));
    KEEL_TRY(keel_tier_read(((struct failing_source *)source)->inner, offset, out, bytes));
    if (failing->failed > failed && bytes > 0)
        ((uint8_t *)out)[bytes / 2] ^= 4;
    return KEEL_OK;
}

static inline void failing_close(struct keel_tier_source *source)
{
    keel_tier_close_source(((struct failing_source *)source)->inner);
}

/* Calls list, open, read and close alone: a source of repairs. */
static inline struct failing_tier make_failing_tier(struct keel_tier *inner, enum failing_mode mode,
                                                    uint32_t fails_from)
{
    static const struct keel_tier_ops ops = {.source_bytes = sizeof(struct failing_source),
                                             .list = failing_list,
                                             .open = failing_open,
                                             .read = failing_read,
                                             .close = failing_close};
    struct failing_tier failing = {.inner = inner, .mode = mode, .fails_from = fails_from};
    ck_ok(keel_tier_init(&failing.tier, &ops, KEEL_LATENCY_MEMORY, inner->run, "the failing partner"));
    return failing;
}

#endif
