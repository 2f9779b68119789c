/* delta_base.c - holding, judging and giving back the state that deltas refer to. */
#include "delta_base.h"
#include <keel/memory.h>
#include <stddef.h>
#include <string.h>

static bool is_of(const struct keel_base *base, const struct keel_base *other)
{
    return base->step == other->step && base->attempt == other->attempt;
}

static struct keel_base *unlink_base(struct keel_store *store, uint32_t rank)
{
    struct keel_base **at = &store->bases;
    while (*at != NULL && (*at)->rank != rank)
        at = &(*at)->next;
    struct keel_base *base = *at;
    if (base != NULL) {
        *at = base->next;
        base->next = NULL;
    }
    return base;
}

/* One of neither of the two snapshots that were captured last: its rank has not saved since, so it is another
 * process's by now. NULL: there is none. */
static struct keel_base *unlink_stale(struct keel_store *store)
{
    const struct keel_base *newest = store->bases, *before = NULL;
    struct keel_base **at = &store->bases;
    for (; *at != NULL; at = &(*at)->next) {
        if (is_of(*at, newest) || (before != NULL && is_of(*at, before)))
            continue;
        if (before != NULL)
            break;
        before = *at;
    }
    struct keel_base *base = *at;
    if (base != NULL)
        *at = base->next;
    return base;
}

struct keel_base *keel_base_take(struct keel_store *store, uint32_t rank)
{
    keel_mutex_lock(&store->lock);
    struct keel_base *base = unlink_base(store, rank);
    keel_mutex_unlock(&store->lock);
    return base;
}

void keel_base_hold(struct keel_store *store, struct keel_base *base)
{
    KEEL_ASSERT(base->next == NULL && base->index != NULL && base->notes != NULL);
    KEEL_ASSERT(base->workspace.memory != NULL);
    keel_mutex_lock(&store->lock);
    struct keel_base *old = unlink_base(store, base->rank);
    base->next = store->bases;
    store->bases = base;
    keel_mutex_unlock(&store->lock);
    do {
        keel_base_drop(store, old);
        keel_mutex_lock(&store->lock);
        old = unlink_stale(store);
        keel_mutex_unlock(&store->lock);
    } while (old != NULL);
}

void keel_base_return(struct keel_store *store, struct keel_base *base)
{
    if (base == NULL)
        return;
    keel_mutex_lock(&store->lock);
    struct keel_base *newer = unlink_base(store, base->rank);
    keel_mutex_unlock(&store->lock);
    keel_base_drop(store, newer != NULL ? base : NULL);
    keel_base_hold(store, newer != NULL ? newer : base);
}

void keel_base_drop(struct keel_store *store, struct keel_base *base)
{
    if (base == NULL)
        return;
    if (base->workspace.memory != NULL)
        keel_store_give_workspace(store, &base->workspace);
    keel_free(base->index);
    keel_free(base->notes);
    keel_free(base);
}

void keel_base_drop_all(struct keel_store *store)
{
    while (store->bases != NULL)
        keel_base_drop(store, unlink_base(store, store->bases->rank));
}

static bool same_regions(const struct keel_format_record *a, const struct keel_format_record *b,
                         uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], offsetof(struct keel_format_record, first_chunk)) != 0 ||
            a[i].chunk_bytes != b[i].chunk_bytes)
            return false;
    return true;
}

static bool is_committed(const struct keel_store *store, uint64_t step, uint64_t attempt)
{
    struct keel_step_place place;
    if (keel_step_open(store, step, attempt, false, &place) != KEEL_OK)
        return false;
    enum keel_status status = keel_step_uncommitted(&place);
    keel_step_close(&place);
    return status == KEEL_INVALID;
}

bool keel_base_fits(const struct keel_base *base, const struct keel_store *store, const uint8_t *index,
                    uint32_t record_count, uint32_t chain_max)
{
    return base->generation < chain_max && base->record_count == record_count &&
           same_regions(keel_format_records(base->index), keel_format_records(index), record_count) &&
           is_committed(store, base->step, base->attempt);
}
