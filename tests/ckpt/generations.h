/* generations.h - a state in memory that changes a little from step to step, as weights do, and its saves:
 * for the tests of deltas and of copies. */
#ifndef KEEL_TESTS_CKPT_GENERATIONS_H
#define KEEL_TESTS_CKPT_GENERATIONS_H

#include "codec.h"
#include "sample.h"
#include "snapshot.h"

enum { STATE_REGIONS_MAX = 8, MIB = 1 << 20 };

struct state {
    struct keel_region regions[STATE_REGIONS_MAX];
    uint32_t count;
    uint8_t *bytes[STATE_REGIONS_MAX]; /* owned */
};

static inline enum keel_status state_read(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                          void *out)
{
    const struct state *state = context;
    memcpy(out, state->bytes[index] + offset, bytes);
    return KEEL_OK;
}

/* One dimension of `elements`; zeroes. */
static inline void state_add(struct state *state, const char *name, enum keel_ckpt_dtype dtype,
                             uint64_t elements)
{
    struct keel_region *region = &state->regions[state->count];
    *region = whole(name, dtype, 1, &elements);
    ck_ok(keel_alloc(keel_region_bytes(region), 1, &state->bytes[state->count]));
    state->count++;
}

static inline void state_free(struct state *state)
{
    for (uint32_t i = 0; i < state->count; i++)
        keel_free(state->bytes[i]);
    *state = (struct state){0};
}

/* float32 between 2^-8 and 2^-1, their mantissas random. */
static inline void fill_f32(struct state *state, uint32_t region, uint64_t seed)
{
    uint64_t count = keel_region_bytes(&state->regions[region]) / 4;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t random = mix(seed ^ mix(i));
        uint32_t bits = ((uint32_t)random & 0x807fffff) | (119 + (uint32_t)(random >> 61)) << 23;
        memcpy(state->bytes[region] + 4 * i, &bits, 4);
    }
}

/* One step: the lowest bits of every float32 change. */
static inline void step_f32(struct state *state, uint32_t region, uint64_t seed)
{
    uint64_t count = keel_region_bytes(&state->regions[region]) / 4;
    for (uint64_t i = 0; i < count; i++)
        state->bytes[region][4 * i] ^= (uint8_t)(mix(seed ^ mix(i)) & 0xff);
}

static inline struct keel_save_config state_config(struct state *state, uint64_t step, enum keel_codec codec)
{
    return (struct keel_save_config){.step = step,
                                     .attempt = 1,
                                     .rank_count = 1,
                                     .codec = codec,
                                     .regions = state->regions,
                                     .region_count = state->count,
                                     .read = state_read,
                                     .context = state,
                                     .drain_threads = 2};
}

static inline enum keel_status save_state(struct keel_store *store, const struct keel_save_config *config,
                                          struct keel_shard_summary *out)
{
    struct keel_save *save;
    KEEL_TRY(keel_save_begin(store, config, &save));
    return keel_save_finish(save, keel_deadline_after_ns(600 * KEEL_NS_PER_S),
                            out); /* the test has its limit */
}

static inline void save_and_commit(struct keel_store *store, const struct keel_save_config *config)
{
    struct keel_shard_summary shard;
    ck_ok(save_state(store, config, &shard));
    ck_ok(commit_all(store, config->step, config->attempt, &shard, 1));
}

/* How many chunks of rank 0's shard have each codec. */
struct census {
    uint32_t chunks[KEEL_CODEC_COUNT];
    uint32_t chain; /* the longest */
    uint32_t flags; /* of the header */
    uint64_t nonfinite;
};

static inline struct census count_codecs(struct keel_store *store, uint64_t step, uint64_t attempt)
{
    struct keel_step_place place;
    struct keel_shard shard;
    struct census census = {0};
    ck_ok(keel_step_open(store, step, attempt, false, &place));
    ck_ok(keel_shard_load(&place, 0, &shard));
    census.flags = shard.header.flags;
    for (uint32_t i = 0; i < shard.footer.chunk_count; i++) {
        census.chunks[shard.chunks[i].codec]++;
        if (shard.chunks[i].chain > census.chain)
            census.chain = shard.chunks[i].chain;
    }
    for (uint32_t i = 0; i < shard.footer.record_count; i++)
        census.nonfinite += shard.records[i].nonfinite;
    keel_shard_unload(&shard);
    keel_step_close(&place);
    return census;
}

/* A reader of its own, as the specification says: no more than one chunk at a time, from its bytes and those
 * that it refers to. */
static inline void read_stored(struct keel_store *store, uint64_t step, uint64_t attempt,
                               const struct keel_format_chunk *chunk, uint8_t *out)
{
    struct keel_step_place place;
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_step_open(store, step, attempt, false, &place));
    ck_ok(keel_path_join(path, place.path, "rank-0.keel"));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_ok(keel_pread_all(fd, out, chunk->stored_bytes, chunk->file_offset, path));
    close(fd);
    keel_step_close(&place);
    ck_assert_uint_eq(keel_format_check(out, chunk->stored_bytes), chunk->stored_check);
}

static inline void read_chunk(struct keel_store *store, uint64_t step, uint64_t attempt, uint32_t number,
                              uint8_t *out);

/* The masters of a chunk without bytes: up to four times as many bytes, side by side in up to four chunks. */
static inline void round_masters(struct keel_store *store, const struct keel_shard *shard,
                                 const struct keel_format_record *record, uint32_t number, uint8_t *out)
{
    const struct keel_format_record *master = &shard->records[record->same_record - 1];
    uint64_t size = keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)record->dtype);
    uint64_t master_size = keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)master->dtype);
    uint64_t factor = master_size / size, first = (number - record->first_chunk) * factor;
    uint8_t *masters;
    ck_ok(keel_alloc(factor, KEEL_FORMAT_CHUNK_BYTES, &masters));
    for (uint64_t i = 0; i < factor && first + i < master->chunk_count; i++)
        read_chunk(store, shard->header.step, shard->header.attempt,
                   (uint32_t)(master->first_chunk + first + i), masters + i * KEEL_FORMAT_CHUNK_BYTES);
    keel_codec_round((enum keel_ckpt_dtype)record->dtype, (enum keel_ckpt_dtype)master->dtype, masters,
                     shard->chunks[number].raw_bytes / size, out);
    keel_free(masters);
}

static inline void decode_chunk(struct keel_store *store, const struct keel_shard *shard,
                                const struct keel_format_record *record, uint32_t number, uint8_t *out)
{
    const struct keel_format_chunk *chunk = &shard->chunks[number];
    uint8_t *stored, *base, *scratch;
    if (chunk->codec == KEEL_CODEC_SAME) {
        ck_assert_uint_eq(chunk->stored_bytes, 0);
        ck_assert_uint_eq(chunk->stored_check, UINT64_C(0x2d06800538d394c2));
        round_masters(store, shard, record, number, out);
        return;
    }
    ck_ok(keel_alloc(1, KEEL_FORMAT_CHUNK_BYTES, &stored));
    ck_ok(keel_alloc(1, KEEL_FORMAT_CHUNK_BYTES, &base));
    ck_ok(keel_alloc(1, KEEL_FORMAT_CHUNK_BYTES + KEEL_CODEC_SLACK_BYTES, &scratch));
    read_stored(store, shard->header.step, shard->header.attempt, chunk, stored);
    if (chunk->codec == KEEL_CODEC_DELTA) {
        read_chunk(store, shard->header.base_step, shard->header.base_attempt, chunk->base_chunk, base);
        ck_assert_uint_eq(keel_format_check(base, chunk->raw_bytes), chunk->base_check);
    }
    ck_ok(keel_codec_decode((enum keel_codec)chunk->codec,
                            keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)record->dtype), stored,
                            chunk->stored_bytes, base, out, chunk->raw_bytes, scratch));
    keel_free(stored);
    keel_free(base);
    keel_free(scratch);
}

static inline void read_chunk(struct keel_store *store, uint64_t step, uint64_t attempt, uint32_t number,
                              uint8_t *out)
{
    struct keel_step_place place;
    struct keel_shard shard;
    uint32_t r = 0;
    ck_ok(keel_step_open(store, step, attempt, false, &place));
    ck_ok(keel_shard_load(&place, 0, &shard));
    keel_step_close(&place);
    ck_assert_uint_lt(number, shard.footer.chunk_count);
    while (number >= shard.records[r].first_chunk + shard.records[r].chunk_count)
        r++;
    decode_chunk(store, &shard, &shard.records[r], number, out);
    ck_assert_uint_eq(keel_format_check(out, shard.chunks[number].raw_bytes), shard.chunks[number].raw_check);
    keel_shard_unload(&shard);
}

static inline void check_by_library(struct keel_store *store, uint64_t step, const struct state *state)
{
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, step, 1, &snapshot));
    for (uint32_t i = 0; i < state->count; i++) {
        uint64_t bytes = keel_region_bytes(&state->regions[i]);
        uint8_t *got;
        ck_ok(keel_alloc(bytes, 1, &got));
        ck_ok(keel_snapshot_read(snapshot, &state->regions[i], got, bytes));
        ck_assert_mem_eq(got, state->bytes[i], bytes);
        keel_free(got);
    }
    keel_snapshot_close(snapshot);
}

/* The snapshot, of one rank, is byte for byte the state as it is now, for both readers. */
static inline void check_state(struct keel_store *store, uint64_t step, const struct state *state)
{
    uint8_t *got;
    uint32_t number = 0;
    check_by_library(store, step, state);
    ck_ok(keel_alloc(1, KEEL_FORMAT_CHUNK_BYTES, &got));
    for (uint32_t i = 0; i < state->count; i++) {
        uint64_t bytes = keel_region_bytes(&state->regions[i]);
        for (uint64_t at = 0; at < bytes; at += KEEL_FORMAT_CHUNK_BYTES, number++) {
            uint64_t left = bytes - at;
            read_chunk(store, step, 1, number, got);
            ck_assert_mem_eq(got, state->bytes[i] + at, left < MIB ? left : MIB);
        }
    }
    keel_free(got);
}

#endif
