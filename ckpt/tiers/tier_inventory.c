/* tier_inventory.c - what one rank can have from the tiers that it reaches: lists and manifests, no data. */
#include "manifest.h"
#include "tier.h"
#include <keel/memory.h>
#include <stdlib.h>

enum { LATENCY_NONE = KEEL_LATENCY_COUNT };

struct seen {
    uint64_t step, attempt;
    int shard_latency; /* the nearest that has the rank's shard; LATENCY_NONE */
    bool manifest;     /* some tier lists it */
    int latency;       /* out: of what is needed the furthest; LATENCY_NONE: cannot be had */
};

struct offers {
    uint32_t rank;
    struct keel_tier *const *tiers; /* borrowed */
    uint32_t tier_count;
    struct keel_tier *tier; /* that is being listed */
    struct seen *seen;      /* owned; newest first once sorted */
    size_t count, capacity;
};

static enum keel_status find_or_add(struct offers *offers, uint64_t step, uint64_t attempt, struct seen **out)
{
    for (size_t i = offers->count; i-- > 0;)
        if (offers->seen[i].step == step && offers->seen[i].attempt == attempt) {
            *out = &offers->seen[i];
            return KEEL_OK;
        }
    KEEL_TRY(keel_grow(&offers->seen, &offers->capacity, offers->count + 1, sizeof *offers->seen));
    *out = &offers->seen[offers->count++];
    **out = (struct seen){
        .step = step, .attempt = attempt, .shard_latency = LATENCY_NONE, .latency = LATENCY_NONE};
    return KEEL_OK;
}

static enum keel_status see(void *context, const struct keel_object_info *info)
{
    struct offers *offers = context;
    const struct keel_object *object = &info->object;
    bool shard = object->kind == KEEL_OBJECT_SHARD && object->member == offers->rank;
    struct seen *seen;
    if (!shard && object->kind != KEEL_OBJECT_MANIFEST)
        return KEEL_OK;
    KEEL_TRY(find_or_add(offers, object->step, object->attempt, &seen));
    seen->manifest = seen->manifest || !shard;
    if (shard && (int)offers->tier->latency < seen->shard_latency)
        seen->shard_latency = (int)offers->tier->latency;
    return KEEL_OK;
}

static int newest_first(const void *a, const void *b)
{
    const struct seen *x = a, *y = b;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->attempt > y->attempt ? -1 : x->attempt < y->attempt;
}

/* From the first tier that gives it sound: one that lists it may be gone by now. */
static enum keel_status read_manifest(const struct offers *offers, const struct keel_object *object,
                                      struct keel_manifest *out)
{
    enum keel_status status = KEEL_NOT_FOUND;
    for (uint32_t i = 0; i < offers->tier_count && status != KEEL_OK && status != KEEL_NO_MEMORY; i++)
        status = keel_manifest_from_tier(offers->tiers[i], object, out, NULL, NULL);
    return status;
}

/* Bases are of earlier snapshots, so going from the oldest on each is decided before those that need it. A
 * base of the same or a later step would be none of ours. */
static enum keel_status decide(struct offers *offers, size_t number)
{
    struct seen *seen = &offers->seen[number];
    const struct keel_object object = {
        .step = seen->step, .attempt = seen->attempt, .kind = KEEL_OBJECT_MANIFEST};
    struct keel_manifest manifest;
    if (seen->shard_latency == LATENCY_NONE || !seen->manifest)
        return KEEL_OK;
    enum keel_status status = read_manifest(offers, &object, &manifest);
    if (status != KEEL_OK)
        return status == KEEL_NO_MEMORY ? status : KEEL_OK;
    int latency = seen->shard_latency;
    for (uint32_t b = 0; b < manifest.base_count && latency != LATENCY_NONE; b++) {
        int base_latency = LATENCY_NONE;
        for (size_t i = number + 1; i < offers->count; i++)
            if (offers->seen[i].step == manifest.bases[b].step &&
                offers->seen[i].attempt == manifest.bases[b].attempt)
                base_latency = offers->seen[i].latency;
        latency = base_latency > latency ? base_latency : latency;
    }
    seen->latency = latency;
    keel_manifest_fini(&manifest);
    return KEEL_OK;
}

enum keel_status keel_tier_inventory(struct keel_tier *const *tiers, uint32_t tier_count, uint32_t rank,
                                     struct keel_offer *out, uint32_t capacity, uint32_t *out_count)
{
    struct offers offers = {.rank = rank, .tiers = tiers, .tier_count = tier_count};
    enum keel_status status = KEEL_OK;
    uint32_t count = 0;
    for (uint32_t i = 0; i < tier_count && status != KEEL_NO_MEMORY; i++) {
        offers.tier = tiers[i];
        status = keel_tier_list(tiers[i], see, &offers);
    }
    if (offers.count > 0)
        qsort(offers.seen, offers.count, sizeof *offers.seen, newest_first);
    for (size_t i = offers.count; i-- > 0 && status != KEEL_NO_MEMORY;)
        status = decide(&offers, i);
    for (size_t i = 0; i < offers.count && count < capacity; i++)
        if (offers.seen[i].latency != LATENCY_NONE)
            out[count++] = (struct keel_offer){.step = offers.seen[i].step,
                                               .attempt = offers.seen[i].attempt,
                                               .latency = (enum keel_tier_latency)offers.seen[i].latency};
    keel_free(offers.seen);
    if (status == KEEL_NO_MEMORY)
        return status;
    *out_count = count;
    return KEEL_OK;
}
