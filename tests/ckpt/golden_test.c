/* golden_test.c - files written by the first version of the format are read, and written again byte for byte.
 *
 * tests/golden/ckpt is a store: a run for each codec, one snapshot each, of `delta` three that need one
 * another. Should the format get another version these stay as they are, and others join them.
 * KEEL_WRITE_GOLDEN=1 writes those that are missing. */
#include "codec.h"
#include "manifest.h"
#include "sample.h"
#include "shard.h"

enum { REGIONS = 3, REGION_BYTES_MAX = 2400 };

static const char golden_root[] = "tests/golden/ckpt";
static const uint64_t golden_wall_ns = UINT64_C(1700000000123456789);
static const uint64_t golden_attempt = UINT64_C(18446744073709551615);

/* In the order in which they are written: what needs a base behind it. */
static const struct golden {
    const char *run;
    uint64_t step;
    enum keel_codec codec; /* SAME: planes and a copy */
    uint32_t generation;   /* bases under it */
} golden[] = {{"raw", 1234567890123, KEEL_CODEC_RAW, 0},   {"planes", 1234567890123, KEEL_CODEC_PLANES, 0},
              {"same", 1234567890123, KEEL_CODEC_SAME, 0}, {"delta", 10, KEEL_CODEC_DELTA, 0},
              {"delta", 11, KEEL_CODEC_DELTA, 1},          {"delta", 12, KEEL_CODEC_DELTA, 2}};
enum { GOLDEN_COUNT = sizeof golden / sizeof golden[0] };

/* 600 floats in [2^-7, 2^-3) with random mantissas, 300 bfloat16 that count (or, to show a copy, 600 that are
 * the floats rounded), 100 zeros: planes of every kind. */
static void golden_regions(const struct golden *which, struct keel_region out[REGIONS])
{
    uint64_t halves = which->codec == KEEL_CODEC_SAME ? 600 : 300;
    out[0] = whole("layer.weight", KEEL_CKPT_F32, 2, (const uint64_t[]){20, 30});
    out[1] = halves == 600 ? whole("layer.half", KEEL_CKPT_BF16, 2, (const uint64_t[]){20, 30})
                           : whole("layer.half", KEEL_CKPT_BF16, 1, &halves);
    out[2] = whole("moment", KEEL_CKPT_F64, 1, (const uint64_t[]){100});
}

/* From generation to generation the lowest byte of the floats changes. */
static void golden_bytes(const struct golden *which, uint32_t index, uint8_t *out)
{
    for (uint32_t i = 0; index == 0 && i < 600; i++) {
        uint32_t random = (uint32_t)(mix(i) >> 32);
        uint32_t bits = (random & 0x807fffff) | (120 + (random >> 23) % 4) << 23;
        if (which->generation > 0)
            bits ^= (uint32_t)(mix(i + 1000 * (uint64_t)which->generation) & 0xff);
        memcpy(out + 4 * (size_t)i, &bits, sizeof bits);
    }
    if (index == 1 && which->codec == KEEL_CODEC_SAME) {
        uint8_t masters[REGION_BYTES_MAX];
        golden_bytes(which, 0, masters);
        keel_codec_round(KEEL_CKPT_BF16, KEEL_CKPT_F32, masters, 600, out);
        return;
    }
    for (uint32_t i = 0; index == 1 && i < 300; i++) {
        uint16_t bits = (uint16_t)(0x3f80 + i);
        memcpy(out + 2 * (size_t)i, &bits, sizeof bits);
    }
    if (index == 2)
        memset(out, 0, 800);
}

static enum keel_status golden_read(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    uint8_t all[REGION_BYTES_MAX];
    golden_bytes(context, index, all);
    memcpy(out, all + offset, bytes);
    return KEEL_OK;
}

static void save_golden(struct keel_store *store, const struct golden *which, struct keel_shard_summary *out)
{
    struct keel_region regions[REGIONS];
    struct golden context = *which;
    const uint32_t same_as[REGIONS] = {KEEL_SAME_AS_NONE, 0, KEEL_SAME_AS_NONE};
    struct keel_save *save;
    golden_regions(which, regions);
    struct keel_save_config config = {.step = which->step,
                                      .attempt = golden_attempt,
                                      .rank_count = 1,
                                      .codec =
                                          which->codec == KEEL_CODEC_SAME ? KEEL_CODEC_PLANES : which->codec,
                                      .same_as = which->codec == KEEL_CODEC_SAME ? same_as : NULL,
                                      .regions = regions,
                                      .region_count = REGIONS,
                                      .read = golden_read,
                                      .context = &context};
    ck_ok(keel_save_begin(store, &config, &save));
    ck_ok(keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), out));
}

/* As the commit does it, but at a time that is always the same. */
static void commit_golden(struct keel_store *store, const struct golden *which,
                          struct keel_shard_summary *shard)
{
    struct keel_generation base = {.step = which->step - 1, .attempt = golden_attempt};
    struct keel_manifest manifest = {.info = {.step = which->step,
                                              .attempt = golden_attempt,
                                              .created_wall_ns = golden_wall_ns,
                                              .shard_count = 1,
                                              .identity = "00112233445566778899aabbccddeeff"},
                                     .shards = shard,
                                     .bases = &base,
                                     .base_count = which->generation > 0,
                                     .metadata = "{\"seed\":42,\"note\":\"gr\\u00fc\\u00dfe\",\"lr\":0.5}"};
    struct keel_step_place place;
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    snprintf(manifest.run, sizeof manifest.run, "%s", which->run);
    ck_ok(keel_step_open(store, which->step, golden_attempt, false, &place));
    ck_ok(keel_path_join(path, place.path, KEEL_MANIFEST_NAME));
    ck_ok(keel_manifest_encode(&manifest, &text, &bytes));
    ck_ok(keel_file_replace(path, text, bytes, 0644));
    keel_free(text);
    keel_step_close(&place);
}

/* A run, from its first generation up to this one. */
static void write_run(const char *root, const struct golden *last)
{
    struct keel_store *store;
    struct keel_store_config at = {.root = root, .run = last->run, .create = true};
    ck_ok(keel_store_open(&at, &store));
    for (const struct golden *which = last - last->generation; which <= last; which++) {
        struct keel_shard_summary shard;
        save_golden(store, which, &shard);
        commit_golden(store, which, &shard);
    }
    keel_store_close(store);
}

static void golden_path(const char *root, const struct golden *which, const char *name,
                        char out[KEEL_PATH_BYTES])
{
    snprintf(out, KEEL_PATH_BYTES, "%s/%s/step-%llu.%llu/%s", root, which->run,
             (unsigned long long)which->step, (unsigned long long)golden_attempt, name);
}

static void same_file(const char *root, const struct golden *which, const char *name)
{
    char wanted[KEEL_PATH_BYTES], fresh[KEEL_PATH_BYTES], *a, *b;
    size_t a_bytes, b_bytes;
    golden_path(golden_root, which, name, wanted);
    golden_path(root, which, name, fresh);
    ck_ok(keel_file_read(wanted, 1 << 20, &a, &a_bytes));
    ck_ok(keel_file_read(fresh, 1 << 20, &b, &b_bytes));
    ck_assert_uint_eq(a_bytes, b_bytes);
    ck_assert_mem_eq(a, b, a_bytes);
    keel_free(a);
    keel_free(b);
}

START_TEST(missing_golden_runs_are_written)
{
    char path[KEEL_PATH_BYTES];
    bool last = _i + 1 == GOLDEN_COUNT || golden[_i + 1].generation == 0;
    golden_path(golden_root, &golden[_i], KEEL_MANIFEST_NAME, path);
    if (last && !keel_path_exists(path))
        write_run(golden_root, &golden[_i]);
}
END_TEST

START_TEST(golden_snapshots_are_read_right)
{
    const struct golden *which = &golden[_i];
    struct keel_store_config config = {.root = golden_root, .run = which->run, .read_only = true};
    struct keel_store *store;
    struct keel_snapshot *snapshot;
    struct keel_region regions[REGIONS];
    ck_ok(keel_store_open(&config, &store));
    ck_ok(keel_snapshot_open(store, which->step, 0, &snapshot));
    ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, NULL));
    ck_assert_uint_eq(keel_snapshot_info(snapshot)->created_wall_ns, golden_wall_ns);
    ck_assert_str_eq(keel_snapshot_info(snapshot)->identity, "00112233445566778899aabbccddeeff");
    golden_regions(which, regions);
    for (uint32_t i = 0; i < REGIONS; i++) {
        uint8_t got[REGION_BYTES_MAX], wanted[REGION_BYTES_MAX];
        uint64_t bytes = keel_region_bytes(&regions[i]);
        golden_bytes(which, i, wanted);
        ck_ok(keel_snapshot_read(snapshot, &regions[i], got, bytes));
        ck_assert_mem_eq(got, wanted, bytes);
    }
    keel_snapshot_close(snapshot);
    keel_store_close(store);
}
END_TEST

/* Each run shows its codec, in the chunks of the first region or, a copy, of the second. */
START_TEST(golden_shards_are_of_their_codec)
{
    const struct golden *which = &golden[_i];
    struct keel_store_config config = {.root = golden_root, .run = which->run, .read_only = true};
    struct keel_store *store;
    struct keel_step_place place;
    struct keel_shard shard;
    ck_ok(keel_store_open(&config, &store));
    ck_ok(keel_step_open(store, which->step, golden_attempt, false, &place));
    ck_ok(keel_shard_load(&place, 0, &shard));
    enum keel_codec wanted =
        which->codec == KEEL_CODEC_DELTA && which->generation == 0 ? KEEL_CODEC_PLANES : which->codec;
    ck_assert_uint_eq(shard.chunks[which->codec == KEEL_CODEC_SAME ? 1 : 0].codec, (uint32_t)wanted);
    ck_assert_uint_eq(shard.chunks[0].chain, which->generation);
    keel_shard_unload(&shard);
    keel_step_close(&place);
    keel_store_close(store);
}
END_TEST

START_TEST(golden_snapshots_are_written_again_byte_for_byte)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    write_run(root, &golden[_i]);
    same_file(root, &golden[_i], "rank-0.keel");
    same_file(root, &golden[_i], KEEL_MANIFEST_NAME);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    if (getenv("KEEL_WRITE_GOLDEN") != NULL)
        tcase_add_loop_test(tc, missing_golden_runs_are_written, 0, GOLDEN_COUNT);
    tcase_add_loop_test(tc, golden_snapshots_are_read_right, 0, GOLDEN_COUNT);
    tcase_add_loop_test(tc, golden_shards_are_of_their_codec, 0, GOLDEN_COUNT);
    tcase_add_loop_test(tc, golden_snapshots_are_written_again_byte_for_byte, 0, GOLDEN_COUNT);
}

KEEL_TEST_MAIN("golden", cases, 60)
