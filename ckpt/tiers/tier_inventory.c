/* tier_inventory.c - what one rank can have from the tiers that it reaches: lists and manifests, no data. */
#include "manifest.h"
#include "tier.h"
#include <keel/memory.h>
#include <stdlib.h>

enum { LATENCY_NONE = KEEL_LATENCY_COUNT };

struct seen {
    struct keel_generation generation;
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

static struct seen *find(const struct offers *offers, const struct keel_generation *wanted)
{
    for (size_t i = offers->count; i-- > 0;)
        if (keel_generation_compare(&offers->seen[i].generation, wanted) == 0)
            return &offers->seen[i];
    return NULL;
}

static enum keel_status find_or_add(struct offers *offers, struct keel_generation wanted, struct seen **out)
{
    *out = find(offers, &wanted);
    if (*out != NULL)
        return KEEL_OK;
    KEEL_TRY(keel_grow(&offers->seen, &offers->capacity, offers->count + 1, sizeof *offers->seen));
    *out = &offers->seen[offers->count++];
    **out = (struct seen){.generation = wanted, .shard_latency = LATENCY_NONE, .latency = LATENCY_NONE};
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
    KEEL_TRY(find_or_add(offers, (struct keel_generation){object->step, object->attempt}, &seen));
    seen->manifest = seen->manifest || !shard;
    if (shard && (int)offers->tier->latency < seen->shard_latency)
        seen->shard_latency = (int)offers->tier->latency;
    return KEEL_OK;
}

static int newest_first(const void *a, const void *b)
{
    return keel_generation_compare(&((const struct seen *)b)->generation,
                                   &((const struct seen *)a)->generation);
}

/* From the first tier that gives it sound: one that lists it may be gone by now. */
static enum keel_status read_manifest(const struct offers *offers, const struct keel_object *object,
                                      struct keel_manifest *out)
{
    enum keel_status status = KEEL_NOT_FOUND;
    for (uint32_t i = 0; i < offers->tier_count && status != KEEL_OK && !keel_is_shortage(status); i++)
        status = keel_manifest_from_tier(offers->tiers[i], object, out, NULL, NULL);
    return status;
}

/* Bases are of earlier snapshots, so going from the oldest on each is decided before those that need it. A
 * base of the same or a later step would be none of ours. */
static enum keel_status decide(struct offers *offers, size_t number)
{
    struct seen *seen = &offers->seen[number];
    const struct keel_object object = {
        .step = seen->generation.step, .attempt = seen->generation.attempt, .kind = KEEL_OBJECT_MANIFEST};
    struct keel_manifest manifest;
    if (seen->shard_latency == LATENCY_NONE || !seen->manifest)
        return KEEL_OK;
    enum keel_status status = read_manifest(offers, &object, &manifest);
    if (status != KEEL_OK)
        return keel_is_shortage(status) ? status : KEEL_OK;
    int latency = seen->shard_latency;
    for (uint32_t b = 0; b < manifest.base_count && latency != LATENCY_NONE; b++) {
        const struct seen *base = find(offers, &manifest.bases[b]);
        int base_latency = base != NULL && base > seen ? base->latency : LATENCY_NONE;
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
    for (uint32_t i = 0; i < tier_count && !keel_is_shortage(status); i++) {
        offers.tier = tiers[i];
        status = keel_tier_list(tiers[i], see, &offers);
    }
    if (offers.count > 0)
        qsort(offers.seen, offers.count, sizeof *offers.seen, newest_first);
    for (size_t i = offers.count; i-- > 0 && !keel_is_shortage(status);)
        status = decide(&offers, i);
    for (size_t i = 0; i < offers.count && count < capacity; i++)
        if (offers.seen[i].latency != LATENCY_NONE)
            out[count++] = (struct keel_offer){.step = offers.seen[i].generation.step,
                                               .attempt = offers.seen[i].generation.attempt,
                                               .latency = (enum keel_tier_latency)offers.seen[i].latency};
    keel_free(offers.seen);
    if (keel_is_shortage(status))
        return status;
    *out_count = count;
    return KEEL_OK;
}
