/* tier.c - what all tiers have in common: names of objects, the calls of the interface with their checks,
 * copying, removing a generation. What an object must hold inside is the business of tier_verify.c. */
#include "tier.h"
#include "store.h"
#include "tier_digest.h"
#include <keel/memory.h>
#include <stdio.h>

/* ---- objects ------------------------------------------------------------------------------------------- */

enum { SETS_MAX = KEEL_SNAPSHOT_RANKS_MAX };

void keel_object_file_name(const struct keel_object *object, char out[KEEL_OBJECT_NAME_BYTES])
{
    if (object->kind == KEEL_OBJECT_SHARD)
        snprintf(out, KEEL_OBJECT_NAME_BYTES, "rank-%u.keel", object->member);
    else if (object->kind == KEEL_OBJECT_PARITY)
        snprintf(out, KEEL_OBJECT_NAME_BYTES, "parity-%u.%u.keel", object->set, object->member);
    else
        snprintf(out, KEEL_OBJECT_NAME_BYTES, "%s", KEEL_MANIFEST_NAME);
}

void keel_object_name(const struct keel_object *object, char out[KEEL_OBJECT_NAME_BYTES])
{
    char file[KEEL_OBJECT_NAME_BYTES], step[KEEL_STEP_NAME_BYTES];
    keel_object_file_name(object, file);
    keel_step_name(object->step, object->attempt, step);
    int length = snprintf(out, KEEL_OBJECT_NAME_BYTES, "%s/%s", step, file);
    KEEL_ASSERT(length > 0 && length < KEEL_OBJECT_NAME_BYTES);
}

/* The name is right when it is the one that is written for the numbers in it. */
bool keel_object_file_parse(const char *name, struct keel_object *out)
{
    struct keel_object object = {.kind = KEEL_OBJECT_MANIFEST};
    char again[KEEL_OBJECT_NAME_BYTES];
    if (strncmp(name, "rank-", 5) == 0) {
        object.kind = KEEL_OBJECT_SHARD;
        if (sscanf(name, "rank-%5u.keel", &object.member) != 1)
            return false;
    } else if (strncmp(name, "parity-", 7) == 0) {
        object.kind = KEEL_OBJECT_PARITY;
        if (sscanf(name, "parity-%5u.%5u.keel", &object.set, &object.member) != 2)
            return false;
    }
    keel_object_file_name(&object, again);
    if (strcmp(name, again) != 0 || !keel_object_valid(&object))
        return false;
    *out = object;
    return true;
}

int keel_object_compare(const struct keel_object *a, const struct keel_object *b)
{
    int order = keel_compare_u64(a->step, b->step);
    if (order == 0)
        order = keel_compare_u64(a->attempt, b->attempt);
    if (order == 0)
        order = keel_compare_u64(a->kind, b->kind);
    if (order == 0)
        order = keel_compare_u64(a->set, b->set);
    return order != 0 ? order : keel_compare_u64(a->member, b->member);
}

bool keel_object_valid(const struct keel_object *object)
{
    switch (object->kind) {
    case KEEL_OBJECT_SHARD:
        return object->set == 0 && object->member < KEEL_SNAPSHOT_RANKS_MAX;
    case KEEL_OBJECT_PARITY:
        return object->set < SETS_MAX && object->member < KEEL_SNAPSHOT_RANKS_MAX;
    case KEEL_OBJECT_MANIFEST:
        return object->set == 0 && object->member == 0;
    default:
        return false;
    }
}

/* ---- tiers -------------------------------------------------------------------------------------------- */

const char *keel_tier_latency_text(enum keel_tier_latency latency)
{
    static const char *const texts[KEEL_LATENCY_COUNT] = {"memory", "local disk", "the erasure set",
                                                          "shared storage"};
    return (unsigned)latency < KEEL_LATENCY_COUNT ? texts[latency] : "an unknown tier";
}

struct keel_label keel_tier_label(const struct keel_tier *tier, const struct keel_object *object)
{
    char name[KEEL_OBJECT_NAME_BYTES];
    struct keel_label label;
    keel_object_name(object, name);
    snprintf(label.text, sizeof label.text, "%s of %s", name, tier->name);
    return label;
}

struct keel_label keel_source_label(const struct keel_tier_source *source)
{
    return keel_tier_label(source->tier, &source->info.object);
}

enum keel_status keel_tier_init(struct keel_tier *tier, const struct keel_tier_ops *ops,
                                enum keel_tier_latency latency, const char *run, const char *name)
{
    if (run == NULL || !keel_run_name_valid(run))
        return keel_fail(KEEL_INVALID, "a tier needs the name of a run");
    *tier = (struct keel_tier){.ops = ops, .latency = latency};
    snprintf(tier->run, sizeof tier->run, "%s", run);
    snprintf(tier->name, sizeof tier->name, "%s", name != NULL ? name : keel_tier_latency_text(latency));
    return KEEL_OK;
}

enum keel_status keel_tier_list(struct keel_tier *tier,
                                enum keel_status (*visit)(void *context, const struct keel_object_info *info),
                                void *context)
{
    KEEL_ASSERT(tier != NULL && visit != NULL);
    return tier->ops->list(tier, visit, context);
}

static enum keel_status only_read(const struct keel_tier *tier)
{
    return keel_fail(KEEL_UNSUPPORTED, "%s: is only read from; write to its nodes' tiers", tier->name);
}

static bool refuse_impossible(const struct keel_tier *tier, const struct keel_object *object)
{
    if (keel_object_valid(object))
        return false;
    (void)keel_fail(KEEL_INVALID, "%s: no object has such numbers", tier->name);
    return true;
}

enum keel_status keel_tier_open(struct keel_tier *tier, const struct keel_object *object,
                                struct keel_tier_source **out)
{
    struct keel_tier_source *source;
    KEEL_ASSERT(tier != NULL && object != NULL && out != NULL);
    if (refuse_impossible(tier, object))
        return KEEL_INVALID;
    KEEL_TRY(keel_alloc(1, tier->ops->source_bytes, &source));
    *source = (struct keel_tier_source){.tier = tier, .info = {.object = *object}};
    enum keel_status status = tier->ops->open(source);
    if (status != KEEL_OK) {
        keel_free(source);
        return status;
    }
    KEEL_ASSERT(keel_object_compare(&source->info.object, object) == 0 && source->info.bytes <= INT64_MAX);
    *out = source;
    return KEEL_OK;
}

enum keel_status keel_tier_read(struct keel_tier_source *source, uint64_t offset, void *out, size_t bytes)
{
    KEEL_ASSERT(source != NULL && (out != NULL || bytes == 0));
    if (offset <= source->info.bytes && bytes <= source->info.bytes - offset)
        return source->tier->ops->read(source, offset, out, bytes);
    return keel_fail(KEEL_CORRUPT, "%s: ends at byte %llu, more was expected; use another copy",
                     keel_source_label(source).text, (unsigned long long)source->info.bytes);
}

void keel_tier_close_source(struct keel_tier_source *source)
{
    if (source != NULL && source->tier->ops->close != NULL)
        source->tier->ops->close(source);
    keel_free(source);
}

enum keel_status keel_tier_create(struct keel_tier *tier, const struct keel_object *object, uint64_t bytes,
                                  struct keel_tier_sink **out)
{
    struct keel_tier_sink *sink;
    KEEL_ASSERT(tier != NULL && object != NULL && out != NULL);
    if (refuse_impossible(tier, object))
        return KEEL_INVALID;
    if (bytes > INT64_MAX)
        return keel_fail(KEEL_INVALID, "%s: no object is that large", tier->name);
    if (tier->ops->create == NULL)
        return only_read(tier);
    KEEL_TRY(keel_alloc(1, tier->ops->sink_bytes, &sink));
    *sink = (struct keel_tier_sink){.tier = tier, .info = {.object = *object, .bytes = bytes}};
    enum keel_status status = tier->ops->create(sink);
    if (status != KEEL_OK) {
        keel_free(sink);
        return status;
    }
    KEEL_ASSERT(sink->info.bytes == bytes && sink->written_bytes == 0);
    *out = sink;
    return KEEL_OK;
}

enum keel_status keel_tier_write(struct keel_tier_sink *sink, const void *data, size_t bytes)
{
    KEEL_ASSERT(sink != NULL && (data != NULL || bytes == 0));
    if (bytes > sink->info.bytes - sink->written_bytes)
        return keel_fail(KEEL_INVALID, "%s: more bytes than were announced", sink->tier->name);
    KEEL_TRY(sink->tier->ops->write(sink, data, bytes));
    sink->written_bytes += bytes;
    return KEEL_OK;
}

enum keel_status keel_tier_commit(struct keel_tier_sink *sink, const uint8_t digest[KEEL_OBJECT_DIGEST_BYTES])
{
    enum keel_status status;
    KEEL_ASSERT(sink != NULL && digest != NULL);
    if (sink->written_bytes == sink->info.bytes) {
        status = sink->tier->ops->commit(sink, digest);
    } else {
        status = keel_fail(KEEL_MISMATCH, "%s: %llu bytes were announced, %llu written",
                           keel_tier_label(sink->tier, &sink->info.object).text,
                           (unsigned long long)sink->info.bytes, (unsigned long long)sink->written_bytes);
        sink->tier->ops->abort(sink);
    }
    keel_free(sink);
    return status;
}

void keel_tier_abort(struct keel_tier_sink *sink)
{
    if (sink != NULL)
        sink->tier->ops->abort(sink);
    keel_free(sink);
}

enum keel_status keel_tier_remove(struct keel_tier *tier, const struct keel_object *object)
{
    KEEL_ASSERT(tier != NULL && object != NULL);
    if (refuse_impossible(tier, object))
        return KEEL_INVALID;
    return tier->ops->remove != NULL ? tier->ops->remove(tier, object) : only_read(tier);
}

void keel_tier_end(struct keel_tier *tier)
{
    if (tier != NULL)
        tier->ops->end(tier);
}

/* ---- removing a generation ----------------------------------------------------------------------------- */

struct generation {
    uint64_t step, attempt;
    struct keel_object *objects; /* owned */
    size_t count, capacity;
};

static enum keel_status collect(void *context, const struct keel_object_info *info)
{
    struct generation *all = context;
    if (info->object.step != all->step || info->object.attempt != all->attempt)
        return KEEL_OK;
    KEEL_TRY(keel_grow(&all->objects, &all->capacity, all->count + 1, sizeof *all->objects));
    all->objects[all->count++] = info->object;
    return KEEL_OK;
}

enum keel_status keel_tier_remove_generation(struct keel_tier *tier, uint64_t step, uint64_t attempt,
                                             uint32_t *out_removed)
{
    struct generation all = {.step = step, .attempt = attempt};
    uint32_t removed = 0;
    const struct keel_object manifest = {.step = step, .attempt = attempt, .kind = KEEL_OBJECT_MANIFEST};
    enum keel_status status = keel_tier_list(tier, collect, &all);
    if (status == KEEL_OK) /* also one that is damaged, and so not listed */
        status = keel_tier_remove(tier, &manifest);
    for (size_t i = 0; i < all.count && status == KEEL_OK; i++) {
        status = keel_tier_remove(tier, &all.objects[i]);
        removed += status == KEEL_OK;
    }
    keel_free(all.objects);
    if (status == KEEL_OK && out_removed != NULL)
        *out_removed = removed;
    return status;
}

/* ---- copying ------------------------------------------------------------------------------------------- */

struct copy {
    uint8_t piece[KEEL_TIER_PIECE_BYTES]; /* begins with a page (tier_directory.c) */
    struct keel_digest_stream digest;
};

static enum keel_status transfer(struct copy *copy, struct keel_tier_source *source,
                                 struct keel_tier_sink *sink)
{
    uint64_t offset = 0;
    KEEL_ASSERT(sink != NULL);
    keel_digest_begin(&copy->digest);
    while (offset < source->info.bytes) {
        uint64_t left = source->info.bytes - offset;
        size_t bytes = left < sizeof copy->piece ? (size_t)left : sizeof copy->piece;
        KEEL_TRY(keel_tier_read(source, offset, copy->piece, bytes));
        keel_digest_add(&copy->digest, copy->piece, bytes);
        KEEL_TRY(keel_tier_write(sink, copy->piece, bytes));
        offset += bytes;
    }
    return KEEL_OK;
}

enum keel_status keel_source_compare(const struct keel_tier_source *source,
                                     const uint8_t digest[KEEL_DIGEST_BYTES])
{
    if (!source->info.digest_known || memcmp(source->info.digest, digest, KEEL_DIGEST_BYTES) == 0)
        return KEEL_OK;
    return keel_fail(KEEL_CORRUPT, "%s: is not what was stored or verified there; use another copy",
                     keel_source_label(source).text);
}

enum keel_status keel_source_copy(struct keel_tier_source *source, struct keel_tier *to)
{
    struct copy *copy;
    struct keel_tier_sink *sink = NULL;
    uint8_t digest[KEEL_DIGEST_BYTES];
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, sizeof *copy, &copy));
    enum keel_status status = keel_tier_create(to, &source->info.object, source->info.bytes, &sink);
    if (status == KEEL_OK)
        status = transfer(copy, source, sink);
    if (status == KEEL_OK) {
        keel_digest_end(&copy->digest, digest);
        status = keel_source_compare(source, digest);
    }
    keel_free(copy);
    if (status == KEEL_OK)
        return keel_tier_commit(sink, digest);
    keel_tier_abort(sink);
    return status;
}

enum keel_status keel_tier_copy_source(struct keel_tier_source *source, struct keel_tier *to)
{
    const struct keel_tier *from = source->tier;
    if (strcmp(from->run, to->run) != 0)
        return keel_fail(KEEL_MISMATCH, "%s is of run %s, %s of run %s: copy within one run", from->name,
                         from->run, to->name, to->run);
    KEEL_TRY(keel_source_verify(source));
    return keel_source_copy(source, to);
}

enum keel_status keel_tier_copy(struct keel_tier *from, const struct keel_object *object,
                                struct keel_tier *to)
{
    struct keel_tier_source *source;
    KEEL_TRY(keel_tier_open(from, object, &source));
    const enum keel_status status = keel_tier_copy_source(source, to);
    keel_tier_close_source(source);
    return status;
}
