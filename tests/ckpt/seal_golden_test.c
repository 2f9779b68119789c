/* seal_golden_test.c - a sealed snapshot written by the first version of the format is read with its key, and
 * its chunks and macs come out the same when sealed again under the same salt.
 *
 * tests/golden/ckpt/sealed is kept for ever, and its key, which protects nothing, beside the store.
 * KEEL_WRITE_GOLDEN=1 writes it when it is missing. */
#include "chunk_seal.h"
#include "sample.h"
#include "shard.h"

enum { RANKS = 1 };

static const char golden_root[] = "tests/golden/ckpt";
static const char golden_key[] = "tests/golden/ckpt-sealed.key";
static const uint64_t golden_step = 1234567890123, golden_attempt = UINT64_C(18446744073709551615);

/* A copy of the key that only its owner can read: the repository's files are open. */
static struct keel_store *open_golden(char scratch[KEEL_PATH_BYTES], bool create)
{
    char path[KEEL_PATH_BYTES], *key;
    size_t bytes;
    struct keel_store *store;
    make_directory(scratch);
    ck_ok(keel_path_join(path, scratch, "key"));
    ck_ok(keel_file_read(golden_key, 100, &key, &bytes));
    ck_ok(keel_file_replace(path, key, bytes, 0600));
    keel_free(key);
    const struct keel_store_config config = {
        .root = golden_root, .run = "sealed", .create = create, .read_only = !create, .key_file = path};
    ck_ok(keel_store_open(&config, &store));
    return store;
}

START_TEST(a_missing_golden_snapshot_is_written)
{
    char scratch[KEEL_PATH_BYTES];
    struct keel_region tensors[4];
    uint64_t state = 3;
    struct keel_store *store = open_golden(scratch, true);
    struct sample_save how = {.step = golden_step,
                              .attempt = golden_attempt,
                              .salt = 77,
                              .rank_count = RANKS,
                              .codec = KEEL_CODEC_PLANES};
    ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 3, &state));
    keel_store_close(store);
    ck_ok(keel_remove_tree(scratch));
}
END_TEST

START_TEST(the_golden_sealed_snapshot_is_read_with_its_key)
{
    char scratch[KEEL_PATH_BYTES];
    struct keel_snapshot *snapshot;
    struct keel_store *store = open_golden(scratch, false);
    ck_ok(keel_snapshot_open(store, golden_step, golden_attempt, &snapshot));
    ck_assert(keel_snapshot_info(snapshot)->sealed);
    ck_assert_uint_eq(keel_snapshot_tensor_count(snapshot), 4);
    ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, NULL));
    ck_ok(check_all(snapshot, 77));
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(scratch));
}
END_TEST

static void seal_again(const struct keel_shard *shard, uint32_t number)
{
    struct keel_format_chunk entry = shard->chunks[number];
    uint8_t *was, *now;
    const uint8_t *bytes;
    char path[KEEL_PATH_BYTES];
    int fd;
    ck_ok(keel_alloc(entry.stored_bytes, 1, &was));
    ck_ok(keel_alloc(entry.stored_bytes, 1, &now));
    ck_ok(keel_shard_path(shard, path));
    ck_ok(keel_shard_open(shard, &fd));
    ck_ok(keel_pread_all(fd, was, entry.stored_bytes, entry.file_offset, path));
    close(fd);
    memcpy(now, was, entry.stored_bytes);
    ck_ok(keel_chunk_open(shard->place->key, &shard->header, number, &entry, now, &bytes));
    ck_assert_uint_ne(entry.raw_check, 0);
    keel_chunk_seal(shard->place->key, &shard->header, number, &entry, now);
    ck_assert_mem_eq(now, was, entry.stored_bytes);
    ck_assert_mem_eq(&entry, &shard->chunks[number], sizeof entry);
    keel_free(was);
    keel_free(now);
}

START_TEST(golden_chunks_and_macs_are_the_same_when_sealed_again)
{
    char scratch[KEEL_PATH_BYTES];
    struct keel_step_place place;
    struct keel_store *store = open_golden(scratch, false);
    ck_ok(keel_step_open(store, golden_step, golden_attempt, false, &place));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct keel_shard shard;
        ck_ok(keel_shard_load(&place, rank, &shard));
        for (uint32_t i = 0; i < shard.footer.chunk_count; i++)
            seal_again(&shard, i);
        struct keel_format_footer footer = shard.footer;
        memset(footer.mac, 0, sizeof footer.mac);
        keel_shard_mac(place.key, &shard.header, shard.index, &footer);
        ck_assert_mem_eq(footer.mac, shard.footer.mac, sizeof footer.mac);
        keel_shard_unload(&shard);
    }
    keel_step_close(&place);
    keel_store_close(store);
    ck_ok(keel_remove_tree(scratch));
}
END_TEST

static void cases(TCase *tc)
{
    if (getenv("KEEL_WRITE_GOLDEN") != NULL)
        tcase_add_test(tc, a_missing_golden_snapshot_is_written);
    tcase_add_test(tc, the_golden_sealed_snapshot_is_read_with_its_key);
    tcase_add_test(tc, golden_chunks_and_macs_are_the_same_when_sealed_again);
}

KEEL_TEST_MAIN("seal_golden", cases, 60)
