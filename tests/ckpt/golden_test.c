/* golden_test.c - files written by the first version of the format are read, and written again byte for byte.
 *
 * tests/golden/ckpt is a store: run `raw` and run `planes`, one snapshot each. Should the format get another
 * version these stay as they are, and others join them. KEEL_WRITE_GOLDEN=1 writes them where they are
 * missing. */
#include "manifest.h"
#include "sample.h"

static const char golden_root[] = "tests/golden/ckpt";
static const uint64_t golden_wall_ns = UINT64_C(1700000000123456789);

/* 600 floats in [2^-7, 2^-3) with random mantissas, 300 bfloat16 that count, 100 zeros: planes of every kind.
 */
static uint32_t golden_regions(struct keel_region out[3])
{
    out[0] = whole("layer.weight", KEEL_CKPT_F32, 2, (const uint64_t[]){20, 30});
    out[1] = whole("layer.half", KEEL_CKPT_BF16, 1, (const uint64_t[]){300});
    out[2] = whole("moment", KEEL_CKPT_F64, 1, (const uint64_t[]){100});
    return 3;
}

static void golden_bytes(uint32_t index, uint8_t *out)
{
    for (uint32_t i = 0; index == 0 && i < 600; i++) {
        uint32_t random = (uint32_t)(mix(i) >> 32);
        uint32_t bits = (random & 0x807fffff) | (120 + (random >> 23) % 4) << 23;
        memcpy(out + 4 * (size_t)i, &bits, sizeof bits);
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
    uint8_t all[2400];
    (void)context;
    golden_bytes(index, all);
    memcpy(out, all + offset, bytes);
    return KEEL_OK;
}

static void write_snapshot(const char *root, const char *run, enum keel_codec codec)
{
    struct keel_store *store;
    struct keel_store_config at = {.root = root, .run = run, .create = true};
    struct keel_region regions[3];
    struct keel_save_config config = {.step = 1234567890123,
                                      .attempt = UINT64_C(18446744073709551615),
                                      .rank_count = 1,
                                      .codec = codec,
                                      .regions = regions,
                                      .region_count = golden_regions(regions),
                                      .read = golden_read};
    struct keel_save *save;
    struct keel_shard_summary shard;
    ck_ok(keel_store_open(&at, &store));
    ck_ok(keel_save_begin(store, &config, &save));
    ck_ok(keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), &shard));
    struct keel_manifest manifest = {.info = {.step = config.step,
                                              .attempt = config.attempt,
                                              .created_wall_ns = golden_wall_ns,
                                              .shard_count = 1,
                                              .identity = "00112233445566778899aabbccddeeff"},
                                     .shards = &shard,
                                     .metadata = "{\"seed\":42,\"note\":\"gr\\u00fc\\u00dfe\",\"lr\":0.5}"};
    snprintf(manifest.run, sizeof manifest.run, "%s", run);
    struct keel_step_place place;
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    ck_ok(keel_step_open(store, config.step, config.attempt, false, &place));
    ck_ok(keel_path_join(path, place.path, KEEL_MANIFEST_NAME));
    ck_ok(keel_manifest_encode(&manifest, &text, &bytes));
    ck_ok(keel_file_replace(path, text, bytes, 0644));
    keel_free(text);
    keel_step_close(&place);
    keel_store_close(store);
}

static void same_file(const char *root, const char *name)
{
    char golden[KEEL_PATH_BYTES], fresh[KEEL_PATH_BYTES], *a, *b;
    size_t a_bytes, b_bytes;
    ck_ok(keel_path_join(golden, golden_root, name));
    ck_ok(keel_path_join(fresh, root, name));
    ck_ok(keel_file_read(golden, 1 << 20, &a, &a_bytes));
    ck_ok(keel_file_read(fresh, 1 << 20, &b, &b_bytes));
    ck_assert_uint_eq(a_bytes, b_bytes);
    ck_assert_mem_eq(a, b, a_bytes);
    keel_free(a);
    keel_free(b);
}

static const struct {
    const char *run, *shard, *manifest;
    enum keel_codec codec;
} golden[] = {{"raw", "raw/step-1234567890123.18446744073709551615/rank-0.keel",
               "raw/step-1234567890123.18446744073709551615/manifest.json", KEEL_CODEC_RAW},
              {"planes", "planes/step-1234567890123.18446744073709551615/rank-0.keel",
               "planes/step-1234567890123.18446744073709551615/manifest.json", KEEL_CODEC_PLANES}};

START_TEST(missing_golden_snapshots_are_written)
{
    write_snapshot(golden_root, golden[_i].run, golden[_i].codec);
}
END_TEST

START_TEST(golden_snapshots_are_read_right)
{
    struct keel_store_config config = {.root = golden_root, .run = golden[_i].run, .read_only = true};
    struct keel_store *store;
    struct keel_snapshot *snapshot;
    struct keel_region regions[3];
    ck_ok(keel_store_open(&config, &store));
    ck_ok(keel_snapshot_open(store, 1234567890123, 0, &snapshot));
    ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, NULL));
    ck_assert_uint_eq(keel_snapshot_info(snapshot)->created_wall_ns, golden_wall_ns);
    ck_assert_str_eq(keel_snapshot_info(snapshot)->identity, "00112233445566778899aabbccddeeff");
    for (uint32_t i = 0; i < golden_regions(regions); i++) {
        uint8_t got[2400], wanted[2400];
        uint64_t bytes = keel_region_bytes(&regions[i]);
        golden_bytes(i, wanted);
        ck_ok(keel_snapshot_read(snapshot, &regions[i], got, bytes));
        ck_assert_mem_eq(got, wanted, bytes);
    }
    keel_snapshot_close(snapshot);
    keel_store_close(store);
}
END_TEST

START_TEST(golden_snapshots_are_written_again_byte_for_byte)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    write_snapshot(root, golden[_i].run, golden[_i].codec);
    same_file(root, golden[_i].shard);
    same_file(root, golden[_i].manifest);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    if (getenv("KEEL_WRITE_GOLDEN") != NULL)
        tcase_add_loop_test(tc, missing_golden_snapshots_are_written, 0, 2);
    tcase_add_loop_test(tc, golden_snapshots_are_read_right, 0, 2);
    tcase_add_loop_test(tc, golden_snapshots_are_written_again_byte_for_byte, 0, 2);
}

KEEL_TEST_MAIN("golden", cases, 60)
