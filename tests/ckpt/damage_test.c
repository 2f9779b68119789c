/* damage_test.c - whatever happens to the bytes of a committed snapshot, it is never read wrong. */
#include "manifest.h"
#include "sample.h"

struct fixture {
    char root[KEEL_PATH_BYTES], step[KEEL_PATH_BYTES];
    struct keel_store *store;
    struct keel_region tensors[4];
    uint32_t tensor_count, ranks;
};

static struct fixture make_fixture(uint32_t ranks)
{
    struct fixture f = {.ranks = ranks};
    uint64_t state = 11;
    make_directory(f.root);
    f.store = open_store(f.root, true);
    f.tensor_count = small_tensors(f.tensors);
    struct sample_save how = {
        .step = 5, .attempt = 2, .salt = 5, .rank_count = ranks, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_snapshot(f.store, &how, f.tensors, f.tensor_count, 3, &state));
    ck_ok(keel_path_join(f.step, f.root, "sample/step-5.2"));
    return f;
}

static void end_fixture(struct fixture *f)
{
    keel_store_close(f->store);
    ck_ok(keel_remove_tree(f->root));
}

/* Open, verify and read everything: OK only with the right contents (check_box compares). */
static enum keel_status load(struct fixture *f)
{
    struct keel_snapshot *snapshot;
    KEEL_TRY(keel_snapshot_open(f->store, 5, 2, &snapshot));
    enum keel_status status = keel_snapshot_verify(snapshot, NULL, NULL, NULL);
    enum keel_status read = check_all(snapshot, 5);
    ck_assert_msg(read == KEEL_OK || status != KEEL_OK, "verify found nothing, reading did");
    keel_snapshot_close(snapshot);
    return status;
}

struct open_file {
    int fd;
    uint8_t *bytes;
    size_t size;
};

static struct open_file open_part(struct fixture *f, const char *name)
{
    char path[KEEL_PATH_BYTES];
    struct open_file file;
    ck_ok(keel_path_join(path, f->step, name));
    char *data;
    ck_ok(keel_file_read(path, 1 << 24, &data, &file.size));
    file.bytes = (uint8_t *)data;
    file.fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(file.fd, 0);
    return file;
}

static void put_byte(const struct open_file *file, size_t at, uint8_t value)
{
    ck_assert_int_eq(pwrite(file->fd, &value, 1, (off_t)at), 1);
}

static void close_part(struct open_file *file)
{
    close(file->fd);
    keel_free(file->bytes);
}

static void flip_all(struct fixture *f, const struct open_file *file, size_t from, size_t to)
{
    for (size_t at = from; at < to; at++) {
        put_byte(file, at, (uint8_t)(file->bytes[at] ^ 1 << at % 8));
        enum keel_status status = load(f);
        ck_assert_msg(status == KEEL_CORRUPT, "flip at %zu of %zu: %s: %s", at, file->size,
                      keel_status_name(status), keel_detail());
        put_byte(file, at, file->bytes[at]);
    }
    ck_ok(load(f));
}

START_TEST(a_flip_in_any_byte_of_header_index_footer_and_manifest_is_found)
{
    struct fixture f = make_fixture(1);
    struct open_file shard = open_part(&f, "rank-0.keel"), manifest = open_part(&f, KEEL_MANIFEST_NAME);
    struct keel_format_footer footer;
    memcpy(&footer, shard.bytes + shard.size - sizeof footer, sizeof footer);
    flip_all(&f, &shard, 0, KEEL_FORMAT_BLOCK_BYTES);
    flip_all(&f, &shard, footer.index_offset, shard.size);
    flip_all(&f, &manifest, 0, manifest.size);
    close_part(&shard);
    close_part(&manifest);
    end_fixture(&f);
}
END_TEST

START_TEST(two_thousand_flips_in_the_data_are_all_found)
{
    struct fixture f = make_fixture(3);
    struct open_file shards[3] = {open_part(&f, "rank-0.keel"), open_part(&f, "rank-1.keel"),
                                  open_part(&f, "rank-2.keel")};
    uint64_t state = 12;
    for (int i = 0; i < 2000; i++) {
        struct open_file *file = &shards[draw(&state, 3)];
        size_t at = draw(&state, file->size);
        put_byte(file, at, (uint8_t)(file->bytes[at] ^ 1 << draw(&state, 8)));
        ck_status(load(&f), KEEL_CORRUPT);
        put_byte(file, at, file->bytes[at]);
    }
    ck_ok(load(&f));
    for (int i = 0; i < 3; i++)
        close_part(&shards[i]);
    end_fixture(&f);
}
END_TEST

START_TEST(a_file_cut_off_anywhere_is_found)
{
    struct fixture f = make_fixture(1);
    static const char *const names[] = {"rank-0.keel", KEEL_MANIFEST_NAME};
    for (int i = 0; i < 2; i++) {
        struct open_file file = open_part(&f, names[i]);
        size_t by = i == 0 ? 512 : 64;
        for (size_t size = 0; size < file.size; size += by) {
            ck_assert_int_eq(ftruncate(file.fd, (off_t)size), 0);
            ck_status(load(&f), KEEL_CORRUPT);
            ck_ok(keel_pwrite_all(file.fd, file.bytes, file.size, 0, names[i]));
        }
        ck_assert_int_eq(ftruncate(file.fd, (off_t)(file.size + 4096)), 0);
        ck_status(load(&f), KEEL_CORRUPT);
        ck_assert_int_eq(ftruncate(file.fd, (off_t)file.size), 0);
        ck_ok(load(&f));
        close_part(&file);
    }
    end_fixture(&f);
}
END_TEST

START_TEST(damage_names_file_tensor_and_chunk)
{
    struct fixture f = make_fixture(1);
    struct open_file shard = open_part(&f, "rank-0.keel");
    put_byte(&shard, 4096, (uint8_t)~shard.bytes[4096]);
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(f.store, 5, 2, &snapshot));
    uint32_t damaged = 0;
    ck_status(keel_snapshot_verify(snapshot, NULL, NULL, &damaged), KEEL_CORRUPT);
    ck_assert_uint_eq(damaged, 1);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "step-5.2/rank-0.keel"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor wte"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "chunk 0 of 1"));
    keel_snapshot_close(snapshot);
    close_part(&shard);
    end_fixture(&f);
}
END_TEST

static void reseal_header(uint8_t *block)
{
    uint64_t zero = 0, check;
    memcpy(block + offsetof(struct keel_format_header, check), &zero, sizeof zero);
    check = keel_format_check(block, KEEL_FORMAT_BLOCK_BYTES);
    memcpy(block + offsetof(struct keel_format_header, check), &check, sizeof check);
}

static void header_with(struct fixture *f, size_t offset, uint8_t value, enum keel_status wanted)
{
    struct open_file shard = open_part(f, "rank-0.keel");
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    memcpy(block, shard.bytes, sizeof block);
    block[offset] = value;
    reseal_header(block);
    ck_ok(keel_pwrite_all(shard.fd, block, sizeof block, 0, "rank-0.keel"));
    ck_status(load(f), wanted);
    ck_ok(keel_pwrite_all(shard.fd, shard.bytes, sizeof block, 0, "rank-0.keel"));
    close_part(&shard);
}

START_TEST(a_newer_version_is_told_apart_from_damage)
{
    struct fixture f = make_fixture(1);
    header_with(&f, offsetof(struct keel_format_header, version), KEEL_FORMAT_VERSION_WIDE + 1, KEEL_VERSION);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "newer Keel"));
    header_with(&f, offsetof(struct keel_format_header, reserved), 1, KEEL_VERSION);
    header_with(&f, 3000, 1, KEEL_VERSION);
    /* sound in itself, but not the one that its footer was written with */
    header_with(&f, offsetof(struct keel_format_header, version), KEEL_FORMAT_VERSION_WIDE, KEEL_CORRUPT);
    header_with(&f, offsetof(struct keel_format_header, step), 6, KEEL_CORRUPT);
    ck_ok(load(&f));
    end_fixture(&f);
}
END_TEST

/* An index with one field changed and every check renewed: what a newer writer, or a broken one, leaves. */
static void index_with(struct fixture *f, size_t offset, uint8_t value, enum keel_status wanted)
{
    struct open_file shard = open_part(f, "rank-0.keel");
    struct keel_format_footer footer;
    struct keel_format_header header;
    uint8_t *bytes = shard.bytes;
    memcpy(&header, bytes, sizeof header);
    memcpy(&footer, bytes + shard.size - sizeof footer, sizeof footer);
    uint8_t *index;
    ck_ok(keel_alloc_aligned(64, footer.index_bytes, &index));
    memcpy(index, bytes + footer.index_offset, footer.index_bytes);
    ck_ok(keel_format_index_check(index, &header, &footer, "index"));
    index[offset] = value;
    keel_format_digest(index, footer.index_bytes, footer.index_digest);
    ck_status(keel_format_index_check(index, &header, &footer, "index"), wanted);
    keel_free(index);
    close_part(&shard);
}

static size_t record_of_integers(struct fixture *f)
{
    struct open_file shard = open_part(f, "rank-0.keel");
    struct keel_format_footer footer;
    struct keel_format_record record;
    size_t at = 0;
    memcpy(&footer, shard.bytes + shard.size - sizeof footer, sizeof footer);
    do {
        memcpy(&record, shard.bytes + footer.index_offset + at, sizeof record);
        at += sizeof record;
    } while (record.dtype != KEEL_CKPT_I64 && record.dtype != KEEL_CKPT_U8);
    close_part(&shard);
    return at - sizeof record;
}

START_TEST(an_index_that_makes_no_sense_is_refused_even_with_right_checksums)
{
    struct fixture f = make_fixture(1);
    struct open_file shard = open_part(&f, "rank-0.keel");
    struct keel_format_footer footer;
    memcpy(&footer, shard.bytes + shard.size - sizeof footer, sizeof footer);
    size_t chunks = footer.record_count * sizeof(struct keel_format_record);
    close_part(&shard);
    index_with(&f, offsetof(struct keel_format_record, name), ' ', KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, name) + 127, 'x', KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, dtype), 99, KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, dims), 9, KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, offset), 200, KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, shape) + 40, 1, KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, raw_bytes) + 3, 1, KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, first_chunk), 1, KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, chunk_count), 77, KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, chunk_bytes) + 2, 0, KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, reserved), 1, KEEL_VERSION);
    index_with(&f, offsetof(struct keel_format_record, same_record), 1, KEEL_CORRUPT); /* of itself */
    index_with(&f, offsetof(struct keel_format_record, same_record), 77, KEEL_CORRUPT);
    index_with(&f, offsetof(struct keel_format_record, nonfinite) + 7, 1, KEEL_CORRUPT);
    index_with(&f, record_of_integers(&f) + offsetof(struct keel_format_record, nonfinite), 1, KEEL_CORRUPT);
    header_with(&f, offsetof(struct keel_format_header, flags), 4, KEEL_VERSION);
    header_with(&f, offsetof(struct keel_format_header, base_step), 1, KEEL_CORRUPT);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, codec), KEEL_CODEC_COUNT, KEEL_VERSION);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, codec), KEEL_CODEC_DELTA, KEEL_CORRUPT);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, codec), KEEL_CODEC_SAME, KEEL_CORRUPT);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, flags), 2, KEEL_VERSION);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, flags), KEEL_CHUNK_SEALED, KEEL_CORRUPT);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, base_rank), 1, KEEL_CORRUPT);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, zero), 1, KEEL_VERSION);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, file_offset), 1, KEEL_CORRUPT);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, file_offset) + 5, 1, KEEL_CORRUPT);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, file_offset) + 1, 0x20,
               KEEL_CORRUPT); /* a gap */
    index_with(&f, chunks + offsetof(struct keel_format_chunk, stored_bytes) + 3, 1, KEEL_CORRUPT);
    index_with(&f, chunks + offsetof(struct keel_format_chunk, raw_bytes), 1, KEEL_CORRUPT);
    end_fixture(&f);
}
END_TEST

START_TEST(a_mac_in_a_shard_that_is_not_sealed_is_refused)
{
    struct fixture f = make_fixture(1);
    struct open_file shard = open_part(&f, "rank-0.keel");
    struct keel_format_footer footer;
    memcpy(&footer, shard.bytes + shard.size - sizeof footer, sizeof footer);
    footer.mac[3] = 1;
    keel_format_footer_seal(&footer);
    ck_ok(keel_pwrite_all(shard.fd, &footer, sizeof footer, shard.size - sizeof footer, "a shard"));
    ck_status(load(&f), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "its parts do not belong together"));
    close_part(&shard);
    end_fixture(&f);
}
END_TEST

/* Holes cost nothing on the disk, so a file may have any size: what is read of it is bounded by its counts.
 */
START_TEST(a_file_of_mostly_holes_is_refused_before_they_are_read)
{
    struct fixture f = make_fixture(1);
    struct open_file shard = open_part(&f, "rank-0.keel");
    struct keel_format_footer footer;
    memcpy(&footer, shard.bytes + shard.size - sizeof footer, sizeof footer);
    footer.file_bytes = UINT64_C(1) << 40;
    keel_format_footer_seal(&footer);
    ck_assert_int_eq(ftruncate(shard.fd, (off_t)footer.file_bytes), 0);
    ck_ok(keel_pwrite_all(shard.fd, &footer, sizeof footer, footer.file_bytes - sizeof footer, "a shard"));
    ck_status(load(&f), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "contradicts itself"));
    close_part(&shard);
    end_fixture(&f);
}
END_TEST

/* Rewrite the manifest's text with a right check. */
static void manifest_with(struct fixture *f, const char *from, const char *to, enum keel_status wanted)
{
    struct open_file file = open_part(f, KEEL_MANIFEST_NAME);
    char text[8192], hex[33];
    uint8_t digest[KEEL_DIGEST_BYTES];
    const char *found = strstr((char *)file.bytes, from);
    ck_assert_ptr_nonnull(found);
    int length = snprintf(text, sizeof text, "%.*s%s%s", (int)(found - (char *)file.bytes),
                          (char *)file.bytes, to, found + strlen(from));
    keel_format_digest(text, (size_t)length - 36, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    memcpy(text + length - 36, hex, 32);
    ck_assert_int_eq(ftruncate(file.fd, 0), 0);
    ck_ok(keel_pwrite_all(file.fd, text, (size_t)length, 0, KEEL_MANIFEST_NAME));
    ck_status(load(f), wanted);
    ck_assert_int_eq(ftruncate(file.fd, 0), 0);
    ck_ok(keel_pwrite_all(file.fd, file.bytes, file.size, 0, KEEL_MANIFEST_NAME));
    close_part(&file);
}

START_TEST(a_manifest_that_says_other_things_is_refused_even_with_a_right_check)
{
    struct fixture f = make_fixture(2);
    manifest_with(&f, "\"seed\": 7", "\"seed\": 8", KEEL_OK); /* the rewriting itself is right */
    manifest_with(&f, "\"version\": 1", "\"version\": 2", KEEL_VERSION);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "newer Keel"));
    manifest_with(&f, "\"format\": \"keel-", "\"format\": \"other-", KEEL_CORRUPT);
    manifest_with(&f, "\"run\": \"sample\"", "\"run\": \"another\"", KEEL_MISMATCH);
    manifest_with(&f, "\"step\": \"5\"", "\"step\": \"6\"", KEEL_MISMATCH);
    manifest_with(&f, "\"attempt\": \"2\"", "\"attempt\": \"3\"", KEEL_MISMATCH);
    manifest_with(&f, "\"step\": \"5\"", "\"step\": \"05\"", KEEL_CORRUPT);
    manifest_with(&f, "\"rank\": 1", "\"rank\": 0", KEEL_CORRUPT);
    manifest_with(&f, "\"rank\": 1", "\"rank\": \"../../x\"", KEEL_CORRUPT);
    manifest_with(&f, "\"file_bytes\": ", "\"file_bytes\": 1", KEEL_MISMATCH);
    manifest_with(&f, "\"metadata\": {", "\"metadata\": 3, \"more\": {", KEEL_VERSION);
    manifest_with(&f, "\"shards\": [", "\"shards\": [] , \"sherds\": [", KEEL_VERSION);
    ck_ok(load(&f));
    end_fixture(&f);
}
END_TEST

START_TEST(files_of_another_snapshot_or_run_are_refused)
{
    struct fixture f = make_fixture(2), other = make_fixture(2);
    char from[KEEL_PATH_BYTES], to[KEEL_PATH_BYTES];
    /* ranks exchanged */
    ck_ok(keel_path_join(from, other.step, "rank-1.keel"));
    ck_ok(keel_path_join(to, f.step, "rank-0.keel"));
    ck_assert_int_eq(rename(from, to), 0);
    ck_status(load(&f), KEEL_MISMATCH);
    ck_ok(keel_remove_tree(to));
    ck_status(load(&f), KEEL_CORRUPT); /* missing */
    /* another attempt's directory under this name */
    ck_ok(keel_path_join(to, other.root, "sample/step-5.3"));
    ck_assert_int_eq(rename(other.step, to), 0);
    struct keel_snapshot *snapshot;
    ck_status(keel_snapshot_open(other.store, 5, 3, &snapshot), KEEL_MISMATCH);
    uint32_t count, damaged;
    struct keel_snapshot_info info;
    ck_ok(keel_store_list(other.store, &info, 1, &count, &damaged));
    ck_assert_uint_eq(count, 0);
    ck_assert_uint_eq(damaged, 1);
    end_fixture(&f);
    end_fixture(&other);
}
END_TEST

/* Another run: same steps, same shapes, other bytes. Its shard has a right name, its digests differ. */
START_TEST(a_shard_of_another_run_is_refused)
{
    struct fixture f = make_fixture(1);
    struct keel_store_config config = {.root = f.root, .run = "another", .create = true};
    struct keel_store *another;
    uint64_t state = 11;
    ck_ok(keel_store_open(&config, &another));
    struct sample_save how = {
        .step = 5, .attempt = 2, .salt = 5, .rank_count = 1, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_snapshot(another, &how, f.tensors, f.tensor_count, 3, &state));
    char from[KEEL_PATH_BYTES], to[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(from, f.root, "another/step-5.2/rank-0.keel"));
    ck_ok(keel_path_join(to, f.step, "rank-0.keel"));
    ck_assert_int_eq(rename(from, to), 0);
    ck_status(load(&f), KEEL_MISMATCH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "another"));
    keel_store_close(another);
    end_fixture(&f);
}
END_TEST

START_TEST(links_out_of_the_store_are_not_followed)
{
    struct fixture f = make_fixture(1), outside = make_fixture(1);
    char inside[KEEL_PATH_BYTES], target[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(inside, f.step, "rank-0.keel"));
    ck_ok(keel_path_join(target, outside.step, "rank-0.keel"));
    ck_assert_int_eq(unlink(inside), 0);
    ck_assert_int_eq(symlink(target, inside), 0);
    ck_status(load(&f), KEEL_DENIED);
    ck_ok(keel_remove_tree(f.step));
    ck_assert_int_eq(symlink(outside.step, f.step), 0);
    ck_assert_int_ne(load(&f), KEEL_OK);
    ck_assert_int_eq(unlink(f.step), 0);
    /* nor removed through */
    ck_ok(keel_path_join(inside, f.root, "sample/step-1.1"));
    ck_assert_int_eq(symlink(outside.step, inside), 0);
    ck_ok(keel_store_retain(f.store, &(struct keel_retention){.keep_last = 2}, NULL));
    ck_assert(keel_path_exists(target));
    ck_ok(keel_path_join(inside, f.root, "linked"));
    ck_ok(keel_path_join(target, outside.root, "sample"));
    ck_assert_int_eq(symlink(target, inside), 0);
    struct keel_store *store;
    struct keel_store_config config = {.root = f.root, .run = "linked", .read_only = true};
    ck_assert_int_ne(keel_store_open(&config, &store), KEEL_OK);
    end_fixture(&f);
    end_fixture(&outside);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_flip_in_any_byte_of_header_index_footer_and_manifest_is_found);
    tcase_add_test(tc, two_thousand_flips_in_the_data_are_all_found);
    tcase_add_test(tc, a_file_cut_off_anywhere_is_found);
    tcase_add_test(tc, damage_names_file_tensor_and_chunk);
    tcase_add_test(tc, a_newer_version_is_told_apart_from_damage);
    tcase_add_test(tc, an_index_that_makes_no_sense_is_refused_even_with_right_checksums);
    tcase_add_test(tc, a_mac_in_a_shard_that_is_not_sealed_is_refused);
    tcase_add_test(tc, a_file_of_mostly_holes_is_refused_before_they_are_read);
    tcase_add_test(tc, a_manifest_that_says_other_things_is_refused_even_with_a_right_check);
    tcase_add_test(tc, files_of_another_snapshot_or_run_are_refused);
    tcase_add_test(tc, a_shard_of_another_run_is_refused);
    tcase_add_test(tc, links_out_of_the_store_are_not_followed);
}

KEEL_TEST_MAIN("damage", cases, 600)
