/* tier_memory.c - objects in this process's memory, within a bound; what a partner serves, too.
 *
 * An entry is data with a count of who needs it: the tier while it is listed, and each open source. So one
 * that is removed or replaced stays readable for those that have it open, and counts until they are done. */
#include "tier.h"
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdio.h>
#include <string.h>

struct entry {
    struct keel_object_info info;
    uint8_t *data;       /* owned; constant once listed */
    uint32_t references; /* guarded by the tier's lock */
    struct entry *next;  /* guarded by the tier's lock */
};

struct memory_tier {
    struct keel_tier tier;
    uint64_t capacity_bytes;
    struct keel_mutex lock; /* guards: */
    uint64_t used_bytes;    /* of all entries, those being written and those only open included */
    struct entry *first;    /* listed ones; owned */
};

struct memory_source {
    struct keel_tier_source source;
    struct entry *entry; /* counted */
};

struct memory_sink {
    struct keel_tier_sink sink;
    struct entry *entry; /* owned until listed */
};

static struct memory_tier *memory_of(struct keel_tier *tier)
{
    return (struct memory_tier *)tier;
}

/* Caller holds the lock. */
static void release(struct memory_tier *memory, struct entry *entry)
{
    KEEL_ASSERT(entry->references > 0);
    if (--entry->references > 0)
        return;
    KEEL_ASSERT(memory->used_bytes >= entry->info.bytes);
    memory->used_bytes -= entry->info.bytes;
    keel_free(entry->data);
    keel_free(entry);
}

/* Caller holds the lock. The place that points to the entry, or to the end. */
static struct entry **find(struct memory_tier *memory, const struct keel_object *object)
{
    struct entry **at = &memory->first;
    while (*at != NULL && keel_object_compare(&(*at)->info.object, object) != 0)
        at = &(*at)->next;
    return at;
}

/* Caller holds the lock. */
static void unlist(struct memory_tier *memory, const struct keel_object *object)
{
    struct entry **at = find(memory, object), *entry = *at;
    if (entry == NULL)
        return;
    *at = entry->next;
    release(memory, entry);
}

static enum keel_status
memory_list(struct keel_tier *tier,
            enum keel_status (*visit)(void *context, const struct keel_object_info *info), void *context)
{
    struct memory_tier *memory = memory_of(tier);
    enum keel_status status = KEEL_OK;
    keel_mutex_lock(&memory->lock);
    for (const struct entry *entry = memory->first; entry != NULL && status == KEEL_OK; entry = entry->next)
        status = visit(context, &entry->info);
    keel_mutex_unlock(&memory->lock);
    return status;
}

static enum keel_status memory_open(struct keel_tier_source *source)
{
    struct memory_tier *memory = memory_of(source->tier);
    keel_mutex_lock(&memory->lock);
    struct entry *entry = *find(memory, &source->info.object);
    if (entry != NULL)
        entry->references++;
    keel_mutex_unlock(&memory->lock);
    if (entry == NULL) {
        return keel_fail(KEEL_NOT_FOUND, "%s: is not there", keel_source_label(source).text);
    }
    source->info = entry->info;
    ((struct memory_source *)source)->entry = entry;
    return KEEL_OK;
}

static enum keel_status memory_read(struct keel_tier_source *source, uint64_t offset, void *out, size_t bytes)
{
    memcpy(out, ((struct memory_source *)source)->entry->data + offset, bytes);
    return KEEL_OK;
}

static void memory_close(struct keel_tier_source *source)
{
    struct memory_tier *memory = memory_of(source->tier);
    keel_mutex_lock(&memory->lock);
    release(memory, ((struct memory_source *)source)->entry);
    keel_mutex_unlock(&memory->lock);
}

/* ---- sink ---------------------------------------------------------------------------------------------- */

static enum keel_status reserve(struct memory_tier *memory, uint64_t bytes)
{
    keel_mutex_lock(&memory->lock);
    uint64_t room = memory->capacity_bytes - memory->used_bytes;
    if (bytes <= room)
        memory->used_bytes += bytes;
    keel_mutex_unlock(&memory->lock);
    if (bytes > room)
        return keel_fail(KEEL_LIMIT, "%s: %llu bytes are wanted, %llu are free; remove an older generation",
                         memory->tier.name, (unsigned long long)bytes, (unsigned long long)room);
    return KEEL_OK;
}

static enum keel_status memory_create(struct keel_tier_sink *sink)
{
    struct memory_tier *memory = memory_of(sink->tier);
    struct entry *entry = NULL;
    KEEL_TRY(reserve(memory, sink->info.bytes));
    enum keel_status status = keel_alloc(1, sizeof *entry, &entry);
    if (status == KEEL_OK)
        status = keel_alloc(sink->info.bytes, 1, &entry->data);
    if (status != KEEL_OK) {
        keel_free(entry);
        keel_mutex_lock(&memory->lock);
        memory->used_bytes -= sink->info.bytes;
        keel_mutex_unlock(&memory->lock);
        return status;
    }
    entry->info = sink->info;
    entry->references = 1;
    ((struct memory_sink *)sink)->entry = entry;
    return KEEL_OK;
}

static enum keel_status memory_write(struct keel_tier_sink *sink, const void *data, size_t bytes)
{
    memcpy(((struct memory_sink *)sink)->entry->data + sink->written_bytes, data, bytes);
    return KEEL_OK;
}

static void memory_abort(struct keel_tier_sink *sink)
{
    struct memory_tier *memory = memory_of(sink->tier);
    keel_mutex_lock(&memory->lock);
    release(memory, ((struct memory_sink *)sink)->entry);
    keel_mutex_unlock(&memory->lock);
}

static enum keel_status memory_commit(struct keel_tier_sink *sink,
                                      const uint8_t digest[KEEL_OBJECT_DIGEST_BYTES])
{
    struct memory_tier *memory = memory_of(sink->tier);
    struct entry *entry = ((struct memory_sink *)sink)->entry;
    keel_format_digest(entry->data, entry->info.bytes, entry->info.digest);
    if (memcmp(entry->info.digest, digest, KEEL_OBJECT_DIGEST_BYTES) != 0) {
        memory_abort(sink); /* and with it the entry */
        return keel_fail(KEEL_CORRUPT, "%s: did not arrive as it was sent; send it again",
                         keel_tier_label(sink->tier, &sink->info.object).text);
    }
    entry->info.digest_known = true;
    keel_mutex_lock(&memory->lock);
    unlist(memory, &entry->info.object);
    entry->next = memory->first;
    memory->first = entry;
    KEEL_ASSERT(*find(memory, &entry->info.object) == entry && memory->used_bytes <= memory->capacity_bytes);
    keel_mutex_unlock(&memory->lock);
    return KEEL_OK;
}

/* ---- the tier ----------------------------------------------------------------------------------------- */

static enum keel_status memory_remove(struct keel_tier *tier, const struct keel_object *object)
{
    struct memory_tier *memory = memory_of(tier);
    keel_mutex_lock(&memory->lock);
    unlist(memory, object);
    keel_mutex_unlock(&memory->lock);
    return KEEL_OK;
}

static void memory_end(struct keel_tier *tier)
{
    struct memory_tier *memory = memory_of(tier);
    while (memory->first != NULL)
        unlist(memory, &memory->first->info.object);
    KEEL_ASSERT(memory->used_bytes == 0); /* else a source or a sink is still open */
    keel_mutex_fini(&memory->lock);
    keel_free(memory);
}

static const struct keel_tier_ops memory_ops = {.source_bytes = sizeof(struct memory_source),
                                                .sink_bytes = sizeof(struct memory_sink),
                                                .list = memory_list,
                                                .open = memory_open,
                                                .read = memory_read,
                                                .close = memory_close,
                                                .create = memory_create,
                                                .write = memory_write,
                                                .commit = memory_commit,
                                                .abort = memory_abort,
                                                .remove = memory_remove,
                                                .end = memory_end};

enum keel_status keel_tier_memory_open(const char *run, uint64_t capacity_bytes, const char *name,
                                       struct keel_tier **out)
{
    struct memory_tier *memory;
    KEEL_TRY(keel_alloc(1, sizeof *memory, &memory));
    enum keel_status status = keel_tier_init(&memory->tier, &memory_ops, KEEL_LATENCY_MEMORY, run, name);
    if (status != KEEL_OK) {
        keel_free(memory);
        return status;
    }
    keel_mutex_init(&memory->lock);
    memory->capacity_bytes = capacity_bytes;
    *out = &memory->tier;
    return KEEL_OK;
}
