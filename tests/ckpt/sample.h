/* sample.h - what the tests of this room share: tensors whose every element follows from its name and global
 * index, so that any box of any layout can be checked; layouts cut at random; and saving them. */
#ifndef KEEL_TESTS_CKPT_SAMPLE_H
#define KEEL_TESTS_CKPT_SAMPLE_H

#include "format.h"
#include "harness.h"
#include <dirent.h>
#include <fcntl.h>
#include <keel/ckpt.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAMPLE_PIECES_MAX = 64, SAMPLE_RANKS_MAX = 8 };

static inline uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* A generator with its state in the test. */
static inline uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = mix(*state);
    return *state % below;
}

/* An empty directory; remove it with keel_remove_tree. */
static inline void make_directory(char out[KEEL_PATH_BYTES])
{
    const char *base = getenv("TMPDIR");
    snprintf(out, KEEL_PATH_BYTES, "%s/keel-ckpt-XXXXXX", base != NULL ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(out));
}

static inline struct keel_store *open_store(const char *root, bool create)
{
    struct keel_store *store;
    struct keel_store_config config = {.root = root, .run = "sample", .create = create, .read_only = !create};
    ck_ok(keel_store_open(&config, &store));
    return store;
}

/* The element's bytes: the top byte has few values, as exponents do. `salt` tells steps apart. */
static inline void sample_element(const struct keel_region *tensor, uint64_t salt, uint64_t index,
                                  uint8_t *out)
{
    uint64_t x = mix(keel_format_check(tensor->name, strlen(tensor->name)) ^ mix(salt) ^ index);
    uint32_t bytes = keel_ckpt_dtype_bytes(tensor->dtype);
    memcpy(out, &x, bytes);
    out[bytes - 1] = (uint8_t)(0x38 + (x >> 61));
}

/* Bytes [offset, offset + bytes) of the region's dense data. */
static inline void sample_bytes(const struct keel_region *region, uint64_t salt, uint64_t offset,
                                uint64_t bytes, uint8_t *out)
{
    uint32_t size = keel_ckpt_dtype_bytes(region->dtype);
    for (uint64_t e = offset / size; e < (offset + bytes) / size; e++, out += size) {
        uint64_t rest = e, global = 0, stride = 1;
        for (uint32_t d = region->dims; d-- > 0;) {
            global += (region->offset[d] + rest % region->extent[d]) * stride;
            rest /= region->extent[d];
            stride *= region->shape[d];
        }
        sample_element(region, salt, global, out);
    }
}

struct sample_source {
    const struct keel_region *regions;
    uint64_t salt;
};

static inline enum keel_status sample_read(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                           void *out)
{
    const struct sample_source *source = context;
    sample_bytes(&source->regions[index], source->salt, offset, bytes, out);
    return KEEL_OK;
}

static inline struct keel_region whole(const char *name, enum keel_ckpt_dtype dtype, uint32_t dims,
                                       const uint64_t *shape)
{
    struct keel_region region = {.dtype = dtype, .dims = dims};
    snprintf(region.name, sizeof region.name, "%s", name);
    for (uint32_t i = 0; i < dims; i++)
        region.shape[i] = region.extent[i] = shape[i];
    return region;
}

/* Cut a whole tensor at random into at most `count` boxes; returns how many. */
static inline uint32_t cut_boxes(const struct keel_region *tensor, uint32_t count, uint64_t *state,
                                 struct keel_region *out)
{
    uint32_t made = 1;
    out[0] = *tensor;
    for (uint32_t i = 1; i < count && tensor->dims > 0; i++) {
        struct keel_region *victim = &out[draw(state, made)];
        uint32_t d = (uint32_t)draw(state, tensor->dims);
        if (victim->extent[d] < 2)
            continue;
        uint64_t first = 1 + draw(state, victim->extent[d] - 1);
        out[made] = *victim;
        out[made].offset[d] += first;
        out[made++].extent[d] -= first;
        victim->extent[d] = first;
    }
    return made;
}

/* A random box inside the tensor. */
static inline struct keel_region random_box(const struct keel_region *tensor, uint64_t *state)
{
    struct keel_region box = *tensor;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        box.offset[d] = draw(state, tensor->shape[d]);
        box.extent[d] = 1 + draw(state, tensor->shape[d] - box.offset[d]);
    }
    return box;
}

struct sample_save {
    uint64_t step, attempt, salt;
    uint32_t rank, rank_count, drain_threads;
    enum keel_codec codec;
    uint64_t arena_bytes;
};

/* Start one rank; `source` and its regions must live until it is captured. */
static inline enum keel_status begin_rank(struct keel_store *store, const struct sample_save *how,
                                          struct sample_source *source, uint32_t count,
                                          struct keel_save **out)
{
    struct keel_save_config config = {.step = how->step,
                                      .attempt = how->attempt,
                                      .rank = how->rank,
                                      .rank_count = how->rank_count,
                                      .codec = how->codec,
                                      .regions = source->regions,
                                      .region_count = count,
                                      .read = sample_read,
                                      .context = source,
                                      .arena_bytes = how->arena_bytes,
                                      .drain_threads = how->drain_threads};
    return keel_save_begin(store, &config, out);
}

static inline enum keel_status save_rank(struct keel_store *store, const struct sample_save *how,
                                         const struct keel_region *regions, uint32_t count,
                                         struct keel_shard_summary *out)
{
    struct sample_source source = {regions, how->salt};
    struct keel_save *save;
    KEEL_TRY(begin_rank(store, how, &source, count, &save));
    return keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), out);
}

static inline enum keel_status commit_all(struct keel_store *store, uint64_t step, uint64_t attempt,
                                          const struct keel_shard_summary *shards, uint32_t count)
{
    struct keel_commit commit = {.step = step,
                                 .attempt = attempt,
                                 .shards = shards,
                                 .shard_count = count,
                                 .identity = "c0ffee",
                                 .metadata = "{\"seed\": 7}"};
    return keel_store_commit(store, &commit);
}

/* Save tensors cut at random over the ranks, and commit. */
static inline enum keel_status save_snapshot(struct keel_store *store, const struct sample_save *how,
                                             const struct keel_region *tensors, uint32_t tensor_count,
                                             uint32_t cuts, uint64_t *state)
{
    struct keel_region boxes[SAMPLE_PIECES_MAX], mine[SAMPLE_RANKS_MAX][SAMPLE_PIECES_MAX];
    uint32_t counts[SAMPLE_RANKS_MAX] = {0};
    for (uint32_t t = 0; t < tensor_count; t++) {
        uint32_t made = cut_boxes(&tensors[t], cuts, state, boxes);
        for (uint32_t i = 0; i < made; i++) {
            uint32_t rank = (uint32_t)draw(state, how->rank_count);
            ck_assert_uint_lt(counts[rank], SAMPLE_PIECES_MAX);
            mine[rank][counts[rank]++] = boxes[i];
        }
    }
    struct keel_shard_summary shards[SAMPLE_RANKS_MAX];
    for (uint32_t r = 0; r < how->rank_count; r++) {
        struct sample_save rank = *how;
        rank.rank = r;
        KEEL_TRY(save_rank(store, &rank, mine[r], counts[r], &shards[r]));
    }
    return commit_all(store, how->step, how->attempt, shards, how->rank_count);
}

/* Read a box and compare every byte. */
static inline enum keel_status check_box(struct keel_snapshot *snapshot, const struct keel_region *box,
                                         uint64_t salt)
{
    uint64_t bytes = keel_region_bytes(box);
    uint8_t *got, *wanted;
    ck_ok(keel_alloc(bytes, 1, &got));
    ck_ok(keel_alloc(bytes, 1, &wanted));
    enum keel_status status = keel_snapshot_read(snapshot, box, got, bytes);
    if (status == KEEL_OK) {
        sample_bytes(box, salt, 0, bytes, wanted);
        ck_assert_mem_eq(got, wanted, bytes);
    }
    keel_free(got);
    keel_free(wanted);
    return status;
}

/* All tensors that the snapshot says it has, whole. */
static inline enum keel_status check_all(struct keel_snapshot *snapshot, uint64_t salt)
{
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++) {
        struct keel_region tensor;
        ck_ok(keel_snapshot_tensor(snapshot, i, &tensor));
        KEEL_TRY(check_box(snapshot, &tensor, salt));
    }
    return KEEL_OK;
}

/* A small set of tensors of several dtypes and ranks. */
static inline uint32_t small_tensors(struct keel_region out[4])
{
    out[0] = whole("wte", KEEL_CKPT_F32, 2, (const uint64_t[]){37, 24});
    out[1] = whole("blocks.0.attn", KEEL_CKPT_BF16, 3, (const uint64_t[]){5, 7, 16});
    out[2] = whole("step", KEEL_CKPT_I64, 0, NULL);
    out[3] = whole("mask", KEEL_CKPT_U8, 1, (const uint64_t[]){133});
    return 4;
}

#endif
