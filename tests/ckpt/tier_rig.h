/* tier_rig.h - what the tests of tiers share: a store with one snapshot to copy from, tiers of every kind
 * to copy to, and whole objects as bytes. */
#ifndef KEEL_TESTS_CKPT_TIER_RIG_H
#define KEEL_TESTS_CKPT_TIER_RIG_H

#include "sample.h"
#include "store.h"
#include "tier.h"

enum { RIG_RANKS = 3, RIG_LISTED_MAX = 160 };

/* A committed snapshot of RIG_RANKS ranks, as a directory tier. */
struct origin {
    char root[KEEL_PATH_BYTES];
    struct keel_store *store;
    struct keel_tier *tier;
};

static inline void add_snapshot(struct origin *origin, uint64_t step, uint64_t attempt, uint32_t ranks)
{
    struct keel_region tensors[4];
    uint64_t state = step;
    uint32_t count = small_tensors(tensors);
    struct sample_save how = {
        .step = step, .attempt = attempt, .salt = step, .rank_count = ranks, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_snapshot(origin->store, &how, tensors, count, 3, &state));
}

static inline struct origin make_empty_origin(void)
{
    struct origin origin;
    make_directory(origin.root);
    origin.store = open_store(origin.root, true);
    ck_ok(keel_tier_directory_open(origin.store, KEEL_LATENCY_LOCAL, "the local disk", &origin.tier));
    return origin;
}

static inline struct origin make_origin(void)
{
    struct origin origin = make_empty_origin();
    add_snapshot(&origin, 5, 2, RIG_RANKS);
    return origin;
}

static inline void end_origin(struct origin *origin)
{
    keel_tier_end(origin->tier);
    keel_store_close(origin->store);
    ck_ok(keel_remove_tree(origin->root));
}

static inline struct keel_object shard_object(uint64_t step, uint64_t attempt, uint32_t rank)
{
    return (struct keel_object){.step = step, .attempt = attempt, .kind = KEEL_OBJECT_SHARD, .member = rank};
}
static inline struct keel_object manifest_object(uint64_t step, uint64_t attempt)
{
    return (struct keel_object){.step = step, .attempt = attempt, .kind = KEEL_OBJECT_MANIFEST};
}

/* Free *out with keel_free. */
static inline enum keel_status read_object(struct keel_tier *tier, const struct keel_object *object,
                                           uint8_t **out, uint64_t *out_bytes)
{
    struct keel_tier_source *source;
    uint8_t *data;
    KEEL_TRY(keel_tier_open(tier, object, &source));
    ck_ok(keel_alloc(source->info.bytes, 1, &data));
    enum keel_status status = keel_tier_read(source, 0, data, source->info.bytes);
    *out_bytes = source->info.bytes;
    keel_tier_close_source(source);
    if (status == KEEL_OK)
        *out = data;
    else
        keel_free(data);
    return status;
}

static inline enum keel_status write_object(struct keel_tier *tier, const struct keel_object *object,
                                            const uint8_t *data, uint64_t bytes, size_t piece)
{
    struct keel_tier_sink *sink;
    uint8_t digest[KEEL_DIGEST_BYTES];
    KEEL_TRY(keel_tier_create(tier, object, bytes, &sink));
    for (uint64_t at = 0; at < bytes; at += piece) {
        enum keel_status status = keel_tier_write(sink, data + at, bytes - at < piece ? bytes - at : piece);
        if (status != KEEL_OK) {
            keel_tier_abort(sink);
            return status;
        }
    }
    keel_format_digest(data, bytes, digest);
    return keel_tier_commit(sink, digest);
}

struct listed {
    struct keel_object_info infos[RIG_LISTED_MAX]; /* ascending */
    uint32_t count;
};

static inline enum keel_status note_listed(void *context, const struct keel_object_info *info)
{
    struct listed *listed = context;
    ck_assert_uint_lt(listed->count, RIG_LISTED_MAX);
    uint32_t at = listed->count++;
    for (; at > 0 && keel_object_compare(&listed->infos[at - 1].object, &info->object) > 0; at--)
        listed->infos[at] = listed->infos[at - 1];
    listed->infos[at] = *info;
    return KEEL_OK;
}

static inline struct listed list_tier(struct keel_tier *tier)
{
    struct listed listed = {.count = 0};
    ck_ok(keel_tier_list(tier, note_listed, &listed));
    return listed;
}

static inline bool has_object(struct keel_tier *tier, const struct keel_object *object)
{
    struct listed listed = list_tier(tier);
    for (uint32_t i = 0; i < listed.count; i++)
        if (keel_object_compare(&listed.infos[i].object, object) == 0)
            return true;
    return false;
}

/* Change one byte of a file in the origin's store. */
static inline void flip_byte(const struct origin *origin, const struct keel_object *object, uint64_t at,
                             uint8_t mask)
{
    char name[KEEL_OBJECT_NAME_BYTES], path[KEEL_PATH_BYTES];
    uint8_t byte;
    keel_object_name(object, name);
    snprintf(path, sizeof path, "%.800s/sample/%s", origin->root, name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= mask;
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

#endif
