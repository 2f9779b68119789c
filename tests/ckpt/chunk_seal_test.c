/* chunk_seal_test.c - keys are read from files that are secret and from nothing else; what is sealed opens at
 * its place with its key, and nowhere else; a stranger who knows README.md and libsodium can read it. */
#include "chunk_seal.h"
#include "sample.h"
#include <sodium.h>

enum { CODEC_BYTES = 1000, NUMBER = 7 };

/* ---- key files ---------------------------------------------------------------------------------------- */

static void write_key(const char *path, const void *text, size_t bytes, unsigned mode)
{
    ck_ok(keel_remove_tree(path));
    ck_ok(keel_file_replace(path, text, bytes, mode));
    ck_assert_int_eq(chmod(path, mode), 0);
}

static enum keel_status try_key(const char *path)
{
    struct keel_key *key;
    KEEL_TRY(keel_key_load(path, &key));
    ck_assert_str_eq(keel_key_path(key), path);
    keel_key_release(key);
    return KEEL_OK;
}

static const char hex_key[] = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F\n";

static struct keel_key *load_text_key(const char *directory, const char *text, size_t bytes)
{
    char path[KEEL_PATH_BYTES];
    struct keel_key *key;
    ck_ok(keel_path_join(path, directory, "a.key"));
    write_key(path, text, bytes, 0600);
    ck_ok(keel_key_load(path, &key));
    return key;
}

START_TEST(a_key_is_32_bytes_or_64_hex_digits_and_both_are_the_same_key)
{
    char root[KEEL_PATH_BYTES], raw[KEEL_KEY_BYTES];
    uint8_t seen[3][32];
    make_directory(root);
    for (int i = 0; i < KEEL_KEY_BYTES; i++)
        raw[i] = (char)i;
    const char *texts[] = {raw, hex_key, hex_key};
    const size_t sizes[] = {sizeof raw, 64, 65};
    for (int i = 0; i < 3; i++) {
        struct keel_key *key = load_text_key(root, texts[i], sizes[i]);
        keel_key_hash(key, "test", "x", 1, seen[i], 32);
        keel_key_release(key);
    }
    ck_assert_mem_eq(seen[0], seen[1], 32);
    ck_assert_mem_eq(seen[0], seen[2], 32);
    /* BLAKE2b keyed with these bytes over the label, its padding and the data */
    uint8_t message[17] = "test", wanted[32];
    message[16] = 'x';
    ck_assert_int_eq(crypto_generichash(wanted, 32, message, 17, (const uint8_t *)raw, 32), 0);
    ck_assert_mem_eq(seen[0], wanted, 32);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_file_that_holds_no_key_is_refused)
{
    static const size_t sizes[] = {0, 1, 31, 33, 63, 66, 4096};
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES], text[4096];
    make_directory(root);
    ck_ok(keel_path_join(path, root, "a.key"));
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        write_key(path, text, sizes[i], 0600);
        ck_status(try_key(path), KEEL_INVALID);
        ck_assert_ptr_nonnull(strstr(keel_detail(), path));
    }
    write_key(path, text, 65, 0600); /* 65 digits */
    ck_status(try_key(path), KEEL_INVALID);
    memcpy(text, hex_key, sizeof hex_key);
    text[10] = 'g';
    write_key(path, text, 64, 0600);
    ck_status(try_key(path), KEEL_INVALID);
    text[10] = ' ';
    write_key(path, text, 65, 0600);
    ck_status(try_key(path), KEEL_INVALID);
    ck_ok(keel_path_join(path, root, "none"));
    ck_status(try_key(path), KEEL_NOT_FOUND);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_key_file_that_others_could_read_or_replace_is_refused_with_what_to_do)
{
    static const unsigned modes[] = {0640, 0604, 0620, 0602, 0610, 0601, 0666};
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES], link_path[KEEL_PATH_BYTES], pipe_path[KEEL_PATH_BYTES];
    make_directory(root);
    ck_ok(keel_path_join(path, root, "a.key"));
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        write_key(path, hex_key, 65, modes[i]);
        ck_status(try_key(path), KEEL_DENIED);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "chmod 600"));
    }
    write_key(path, hex_key, 60, 0644); /* no key at all: nobody is told to hide it */
    ck_status(try_key(path), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "60 bytes"));
    write_key(path, hex_key, 65, 0400);
    ck_ok(try_key(path));
    ck_ok(keel_path_join(link_path, root, "link"));
    ck_assert_int_eq(symlink(path, link_path), 0);
    ck_status(try_key(link_path), KEEL_DENIED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "symbolic link"));
    ck_ok(keel_path_join(pipe_path, root, "pipe"));
    ck_assert_int_eq(mkfifo(pipe_path, 0600), 0);
    ck_status(try_key(pipe_path), KEEL_DENIED); /* and does not wait for a writer */
    ck_status(try_key(root), KEEL_DENIED);
    if (geteuid() == 0) { /* only root can give files away */
        ck_assert_int_eq(chown(path, 12345, (gid_t)-1), 0);
        ck_status(try_key(path), KEEL_DENIED);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "12345"));
    }
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* ---- chunks ------------------------------------------------------------------------------------------- */

struct sealed {
    char root[KEEL_PATH_BYTES];
    struct keel_key *key, *other;
    struct keel_format_header header;
    struct keel_format_chunk entry; /* of the sealed chunk */
    uint8_t codec_bytes[CODEC_BYTES];
    uint8_t stored[CODEC_BYTES + KEEL_FORMAT_SEAL_BYTES];
};

static void set_header_check(struct keel_format_header *header)
{
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    keel_format_header_seal(header, block);
    memcpy(header, block, sizeof *header);
}

static const struct keel_format_chunk plain_entry = {.raw_bytes = 4096,
                                                     .stored_bytes = CODEC_BYTES,
                                                     .codec = KEEL_CODEC_DELTA,
                                                     .raw_check = 0x1122334455667788,
                                                     .base_check = 0x99aabbccddeeff01,
                                                     .base_rank = 3,
                                                     .base_chunk = 9,
                                                     .chain = 2};

static struct sealed make_sealed(void)
{
    struct sealed s = {.header = {.step = 5, .attempt = 2, .rank = 1, .rank_count = 4, .run = "sample"}};
    make_directory(s.root);
    s.key = load_text_key(s.root, hex_key, 65);
    char text[66];
    memcpy(text, hex_key, sizeof text);
    text[0] = '1';
    s.other = load_text_key(s.root, text, 65);
    keel_shard_begin_seal(s.key, &s.header);
    set_header_check(&s.header);
    for (size_t i = 0; i < CODEC_BYTES; i++)
        s.codec_bytes[i] = (uint8_t)mix(i);
    s.entry = plain_entry;
    memcpy(s.stored + KEEL_SEAL_FRONT_BYTES, s.codec_bytes, CODEC_BYTES);
    keel_chunk_seal(s.key, &s.header, NUMBER, &s.entry, s.stored);
    return s;
}

static void end_sealed(struct sealed *s)
{
    keel_key_release(s->key);
    keel_key_release(s->other);
    ck_ok(keel_remove_tree(s->root));
}

static enum keel_status open_sealed(const struct sealed *s)
{
    uint8_t stored[sizeof s->stored];
    struct keel_format_chunk entry = s->entry;
    const uint8_t *bytes;
    memcpy(stored, s->stored, sizeof stored);
    KEEL_TRY(keel_chunk_open(s->key, &s->header, NUMBER, &entry, stored, &bytes));
    ck_assert_ptr_eq(bytes, stored + KEEL_SEAL_FRONT_BYTES);
    ck_assert_mem_eq(bytes, s->codec_bytes, CODEC_BYTES);
    ck_assert_mem_eq(&entry, &plain_entry, sizeof entry);
    return KEEL_OK;
}

START_TEST(what_is_sealed_opens_again_and_shows_nothing_before)
{
    struct sealed s = make_sealed();
    ck_assert_uint_eq(s.entry.stored_bytes, CODEC_BYTES + KEEL_FORMAT_SEAL_BYTES);
    ck_assert_uint_eq(s.entry.flags, KEEL_CHUNK_SEALED);
    ck_assert_uint_eq(s.entry.raw_check, 0);
    ck_assert_uint_eq(s.entry.base_check, 0);
    ck_assert_ptr_null(memmem(s.stored, sizeof s.stored, s.codec_bytes, 8));
    ck_assert_ptr_null(memmem(s.stored, sizeof s.stored, &plain_entry.raw_check, 8));
    ck_ok(open_sealed(&s));
    /* the same again under a fresh salt has nothing in common */
    struct sealed again = make_sealed();
    uint32_t equal = 0;
    for (size_t i = 0; i < sizeof s.stored; i++)
        equal += s.stored[i] == again.stored[i];
    ck_assert_uint_lt(equal, 32); /* 4 of 1032 by chance */
    end_sealed(&again);
    end_sealed(&s);
}
END_TEST

START_TEST(a_flip_in_any_byte_of_a_sealed_chunk_its_entry_or_its_header_is_found)
{
    struct sealed s = make_sealed();
    for (size_t i = 0; i < sizeof s.stored; i++) {
        s.stored[i] ^= (uint8_t)(1U << i % 8);
        ck_status(open_sealed(&s), KEEL_FORGED);
        s.stored[i] ^= (uint8_t)(1U << i % 8);
    }
    static const size_t fields[] = {
        offsetof(struct keel_format_chunk, raw_bytes), offsetof(struct keel_format_chunk, codec),
        offsetof(struct keel_format_chunk, base_rank), offsetof(struct keel_format_chunk, base_chunk),
        offsetof(struct keel_format_chunk, chain)};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        ((uint8_t *)&s.entry)[fields[i]] ^= 1;
        ck_status(open_sealed(&s), KEEL_FORGED);
        ((uint8_t *)&s.entry)[fields[i]] ^= 1;
    }
    s.entry.stored_bytes--;
    ck_status(open_sealed(&s), KEEL_FORGED);
    s.entry.stored_bytes++;
    for (size_t i = 0; i < offsetof(struct keel_format_header, key_check); i++) {
        struct keel_format_header kept = s.header;
        ((uint8_t *)&s.header)[i] ^= (uint8_t)(1U << i % 8);
        ck_status(open_sealed(&s), KEEL_FORGED);
        s.header = kept;
    }
    ck_ok(open_sealed(&s));
    end_sealed(&s);
}
END_TEST

/* The bytes of `from` in the place of s's chunk. */
static enum keel_status open_as(const struct keel_key *key, const struct sealed *s, uint32_t number,
                                const struct sealed *from)
{
    uint8_t stored[sizeof s->stored];
    struct keel_format_chunk entry = s->entry;
    const uint8_t *bytes;
    memcpy(stored, from->stored, sizeof stored);
    return keel_chunk_open(key, &s->header, number, &entry, stored, &bytes);
}

START_TEST(a_chunk_opens_at_its_number_in_its_file_with_its_key_only)
{
    struct sealed s = make_sealed(), twin = make_sealed(); /* of the same snapshot, rank and contents */
    ck_ok(open_as(s.key, &s, NUMBER, &s));
    ck_status(open_as(s.key, &s, NUMBER + 1, &s), KEEL_FORGED);
    ck_status(open_as(s.other, &s, NUMBER, &s), KEEL_FORGED);
    ck_status(open_as(s.key, &s, NUMBER, &twin), KEEL_FORGED);
    ck_status(open_as(NULL, &s, NUMBER, &s), KEEL_AUTH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "--key"));
    end_sealed(&twin);
    end_sealed(&s);
}
END_TEST

/* As README.md says, with nothing of Keel's own but the bytes. */
START_TEST(a_stranger_with_the_specification_and_libsodium_opens_it)
{
    struct sealed s = make_sealed();
    uint8_t master[32], file_key[32], message[16 + 160] = "keel chunks", nonce[24] = {NUMBER}, ad[40] = {0};
    uint8_t plain[16 + CODEC_BYTES];
    const uint8_t *header = (const uint8_t *)&s.header, *entry = (const uint8_t *)&s.entry;
    ck_assert_int_eq(sodium_hex2bin(master, 32, hex_key, 64, NULL, NULL, NULL), 0);
    memcpy(message + 16, header, 160);
    ck_assert_int_eq(crypto_generichash(file_key, 32, message, sizeof message, master, 32), 0);
    memcpy(ad, header + 248, 8); /* the header's check */
    ad[8] = NUMBER;
    memcpy(ad + 16, entry + 8, 4);   /* raw bytes */
    memcpy(ad + 20, entry + 16, 4);  /* codec */
    memcpy(ad + 24, entry + 48, 12); /* base rank, base chunk, chain */
    ck_assert_int_eq(crypto_aead_xchacha20poly1305_ietf_decrypt(plain, NULL, NULL, s.stored, sizeof s.stored,
                                                                ad, sizeof ad, nonce, file_key),
                     0);
    ck_assert_mem_eq(plain, &plain_entry.raw_check, 8);
    ck_assert_mem_eq(plain + 8, &plain_entry.base_check, 8);
    ck_assert_mem_eq(plain + 16, s.codec_bytes, CODEC_BYTES);
    end_sealed(&s);
}
END_TEST

/* ---- shards and manifests ----------------------------------------------------------------------------- */

START_TEST(a_change_to_header_index_or_footer_with_renewed_checksums_is_told_from_a_wrong_key)
{
    struct sealed s = make_sealed();
    uint8_t index[512], *bytes;
    memset(index, 3, sizeof index);
    struct keel_format_footer footer = {.index_bytes = sizeof index, .record_count = 1, .raw_bytes = 4096};
    keel_shard_mac(s.key, &s.header, index, &footer);
    ck_ok(keel_shard_check_mac(s.key, &s.header, index, &footer, "shard"));
    ck_status(keel_shard_check_mac(s.other, &s.header, index, &footer, "shard"), KEEL_AUTH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), keel_key_path(s.other)));
    for (size_t i = 0; i < sizeof index; i++) {
        index[i] ^= 4;
        ck_status(keel_shard_check_mac(s.key, &s.header, index, &footer, "shard"), KEEL_FORGED);
        index[i] ^= 4;
    }
    bytes = (uint8_t *)&footer;
    for (size_t i = 0; i < offsetof(struct keel_format_footer, check); i++) {
        size_t size_at = offsetof(struct keel_format_footer, index_bytes);
        if (i >= size_at && i < size_at + 8)
            continue; /* would be read beyond; format.c ties it to the counts */
        bytes[i] ^= 1;
        ck_status(keel_shard_check_mac(s.key, &s.header, index, &footer, "shard"), KEEL_FORGED);
        bytes[i] ^= 1;
    }
    bytes = (uint8_t *)&s.header;
    for (size_t i = 0; i < sizeof s.header; i++) {
        size_t salt_at = offsetof(struct keel_format_header, salt);
        bool of_key = i >= salt_at && i < offsetof(struct keel_format_header, reserved);
        bytes[i] ^= 1;
        ck_status(keel_shard_check_mac(s.key, &s.header, index, &footer, "shard"),
                  of_key ? KEEL_AUTH : KEEL_FORGED);
        bytes[i] ^= 1;
    }
    ck_ok(keel_shard_check_mac(s.key, &s.header, index, &footer, "shard"));
    end_sealed(&s);
}
END_TEST

START_TEST(no_two_uses_of_a_key_share_one)
{
    struct sealed s = make_sealed();
    uint8_t a[KEEL_MAC_BYTES], b[KEEL_MAC_BYTES], check[KEEL_KEY_CHECK_BYTES];
    keel_manifest_mac(s.key, "{}", 2, a);
    keel_manifest_mac(s.other, "{}", 2, b);
    ck_assert_mem_ne(a, b, sizeof a);
    keel_manifest_mac(s.key, "{]", 2, b);
    ck_assert_mem_ne(a, b, sizeof a);
    keel_key_hash(s.key, "keel shard", "{}", 2, b, sizeof b);
    ck_assert_mem_ne(a, b, sizeof a);
    keel_manifest_key_check(s.key, check);
    ck_assert_mem_ne(check, s.header.key_check, sizeof check);
    end_sealed(&s);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_key_is_32_bytes_or_64_hex_digits_and_both_are_the_same_key);
    tcase_add_test(tc, a_file_that_holds_no_key_is_refused);
    tcase_add_test(tc, a_key_file_that_others_could_read_or_replace_is_refused_with_what_to_do);
    tcase_add_test(tc, what_is_sealed_opens_again_and_shows_nothing_before);
    tcase_add_test(tc, a_flip_in_any_byte_of_a_sealed_chunk_its_entry_or_its_header_is_found);
    tcase_add_test(tc, a_chunk_opens_at_its_number_in_its_file_with_its_key_only);
    tcase_add_test(tc, a_stranger_with_the_specification_and_libsodium_opens_it);
    tcase_add_test(tc, a_change_to_header_index_or_footer_with_renewed_checksums_is_told_from_a_wrong_key);
    tcase_add_test(tc, no_two_uses_of_a_key_share_one);
}

KEEL_TEST_MAIN("chunk_seal", cases, 60)
