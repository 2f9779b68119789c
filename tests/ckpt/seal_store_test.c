/* seal_store_test.c - a store with a key: what is saved is read with that key and with no other; damage is
 * found by anybody; what somebody without the key has altered, moved or put back is found by who has it. */
#include "command.h"
#include "generations.h"
#include "manifest.h"

enum { STEP = 5, ATTEMPT = 2 };

/* Every byte; under the thread sanitizer, which looks for something else and takes its time, some. */
#ifdef __SANITIZE_THREAD__
enum { EVERY = 31 };
#else
enum { EVERY = 1 };
#endif

struct fixture {
    char root[KEEL_PATH_BYTES], step[KEEL_PATH_BYTES], key[KEEL_PATH_BYTES], other[KEEL_PATH_BYTES];
    struct keel_store *store;
    struct keel_region tensors[4];
    uint32_t tensor_count;
};

static void make_key(char out[KEEL_PATH_BYTES], const char *root, const char *name, int fill)
{
    char bytes[KEEL_KEY_BYTES];
    ck_ok(keel_path_join(out, root, name));
    memset(bytes, fill, sizeof bytes);
    ck_ok(keel_file_replace(out, bytes, sizeof bytes, 0600));
}

static struct keel_store *open_with(const struct fixture *f, const char *key, bool accept_plain)
{
    struct keel_store *store;
    const struct keel_store_config config = {
        .root = f->root, .run = "sample", .create = true, .key_file = key, .accept_plain = accept_plain};
    ck_ok(keel_store_open(&config, &store));
    return store;
}

static void save_sample(struct keel_store *store, const struct fixture *f, uint64_t step, uint32_t ranks)
{
    uint64_t state = 11;
    struct sample_save how = {
        .step = step, .attempt = ATTEMPT, .salt = step, .rank_count = ranks, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_snapshot(store, &how, f->tensors, f->tensor_count, 3, &state));
}

static struct fixture make_empty_fixture(void)
{
    struct fixture f = {0};
    make_directory(f.root);
    make_key(f.key, f.root, "a.key", 1);
    make_key(f.other, f.root, "b.key", 2);
    f.store = open_with(&f, f.key, false);
    ck_ok(keel_path_join(f.step, f.root, "sample/step-5.2"));
    return f;
}

static struct fixture make_fixture(uint32_t ranks)
{
    struct fixture f = make_empty_fixture();
    f.tensor_count = small_tensors(f.tensors);
    save_sample(f.store, &f, STEP, ranks);
    return f;
}

/* For what is tried with every byte. */
static struct fixture make_tiny_fixture(void)
{
    struct fixture f = make_empty_fixture();
    f.tensors[f.tensor_count++] = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){50});
    save_sample(f.store, &f, STEP, 1);
    return f;
}

static void end_fixture(struct fixture *f)
{
    keel_store_close(f->store);
    ck_ok(keel_remove_tree(f->root));
}

/* Open, verify and read all: OK only with the right contents, and verifying and reading agree. */
static enum keel_status load(struct keel_store *store, uint64_t step)
{
    struct keel_snapshot *snapshot;
    KEEL_TRY(keel_snapshot_open(store, step, ATTEMPT, &snapshot));
    enum keel_status verified = keel_snapshot_verify(snapshot, NULL, NULL, NULL);
    enum keel_status read = check_all(snapshot, step);
    if (verified != KEEL_OK && read != KEEL_OK)
        ck_assert_int_eq(verified, read);
    ck_assert_msg(verified != KEEL_OK || read == KEEL_OK, "verify found nothing, reading %s: %s",
                  keel_status_name(read), keel_detail());
    keel_snapshot_close(snapshot);
    return verified;
}

static enum keel_status look(struct keel_store *store)
{
    struct keel_snapshot *snapshot;
    KEEL_TRY(keel_snapshot_open(store, STEP, ATTEMPT, &snapshot));
    enum keel_status status = keel_snapshot_verify(snapshot, NULL, NULL, NULL);
    keel_snapshot_close(snapshot);
    return status;
}

struct file {
    char path[KEEL_PATH_BYTES];
    uint8_t *bytes;
    size_t size;
};

static struct file take_file(const char *directory, const char *name)
{
    struct file file;
    char *data;
    ck_ok(keel_path_join(file.path, directory, name));
    ck_ok(keel_file_read(file.path, 1 << 24, &data, &file.size));
    file.bytes = (uint8_t *)data;
    return file;
}

static void write_file(const struct file *file, const void *bytes, size_t size)
{
    int fd = open(file->path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_ok(keel_pwrite_all(fd, bytes, size, 0, file->path));
    close(fd);
}

static void drop_file(struct file *file)
{
    keel_free(file->bytes);
}

/* ---- with the key ------------------------------------------------------------------------------------- */

START_TEST(what_is_saved_with_a_key_is_read_with_it_and_lies_nowhere_open)
{
    struct fixture f = make_fixture(3);
    ck_ok(load(f.store, STEP));
    uint8_t raw[64];
    sample_bytes(&f.tensors[3], STEP, 0, sizeof raw,
                 raw); /* of the mask, bytes that planes leave as they are */
    struct fixture plain = {0};
    make_directory(plain.root);
    plain.store = open_with(&plain, NULL, false);
    plain.tensor_count = small_tensors(plain.tensors);
    save_sample(plain.store, &plain, STEP, 3);
    ck_ok(keel_path_join(plain.step, plain.root, "sample/step-5.2"));
    uint32_t open_there = 0;
    for (uint32_t rank = 0; rank < 3; rank++) {
        char name[KEEL_SHARD_NAME_BYTES];
        keel_shard_name(rank, name);
        struct file sealed = take_file(f.step, name), open_file = take_file(plain.step, name);
        struct keel_format_header header;
        memcpy(&header, sealed.bytes, sizeof header);
        ck_assert_uint_eq(header.flags, KEEL_HEADER_SEALED);
        ck_assert_ptr_null(memmem(sealed.bytes, sealed.size, raw, 24));
        open_there += memmem(open_file.bytes, open_file.size, raw, 24) != NULL;
        drop_file(&sealed);
        drop_file(&open_file);
    }
    ck_assert_uint_eq(open_there, 1); /* so it was looked for in the right way */
    end_fixture(&plain);
    end_fixture(&f);
}
END_TEST

START_TEST(deltas_and_copies_are_sealed_and_read_back)
{
    struct fixture f = make_fixture(1);
    struct state state = {0};
    uint32_t same_as[] = {KEEL_SAME_AS_NONE, 0};
    state_add(&state, "w", KEEL_CKPT_F32, 700000);
    state_add(&state, "half", KEEL_CKPT_BF16, 700000);
    fill_f32(&state, 0, 1);
    for (uint64_t step = 10; step < 14; step++) {
        step_f32(&state, 0, step);
        keel_codec_round(KEEL_CKPT_BF16, KEEL_CKPT_F32, state.bytes[0], 700000, state.bytes[1]);
        struct keel_save_config config = state_config(&state, step, KEEL_CODEC_DELTA);
        config.same_as = same_as;
        save_and_commit(f.store, &config);
    }
    struct census census = count_codecs(f.store, 13, 1);
    ck_assert_uint_eq(census.chunks[KEEL_CODEC_SAME], 2);
    ck_assert_uint_eq(census.chunks[KEEL_CODEC_DELTA], 3);
    ck_assert_uint_eq(census.chain, 3);
    struct keel_snapshot *snapshot;
    uint8_t *got;
    ck_ok(keel_alloc(700000, 4, &got));
    ck_ok(keel_snapshot_open(f.store, 13, 0, &snapshot));
    ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, NULL));
    for (uint32_t i = 0; i < state.count; i++) {
        uint64_t bytes = keel_region_bytes(&state.regions[i]);
        ck_ok(keel_snapshot_read(snapshot, &state.regions[i], got, bytes));
        ck_assert_mem_eq(got, state.bytes[i], bytes);
    }
    keel_snapshot_close(snapshot);
    /* Another snapshot with this key, by name and numbers the base: what opens is not what was under it. */
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, f.root, "sample/step-12.1"));
    ck_ok(keel_remove_tree(path));
    struct keel_store *again = open_with(&f, f.key, false);
    fill_f32(&state, 0, 2);
    struct keel_save_config config = state_config(&state, 12, KEEL_CODEC_PLANES);
    save_and_commit(again, &config);
    ck_ok(keel_snapshot_open(f.store, 13, 0, &snapshot));
    ck_status(keel_snapshot_read(snapshot, &state.regions[0], got, 2800000), KEEL_CORRUPT);
    keel_snapshot_close(snapshot);
    keel_store_close(again);
    keel_free(got);
    state_free(&state);
    end_fixture(&f);
}
END_TEST

/* ---- with another key, or none ------------------------------------------------------------------------- */

START_TEST(another_key_is_told_by_its_name_not_taken_for_damage)
{
    struct fixture f = make_fixture(2);
    struct keel_store *wrong = open_with(&f, f.other, true);
    struct keel_snapshot_info info;
    uint32_t count;
    ck_status(load(wrong, STEP), KEEL_AUTH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "b.key"));
    ck_status(keel_store_list(wrong, &info, 1, &count, NULL), KEEL_AUTH); /* and not: there is nothing */
    ck_status(keel_store_retain(wrong, &(struct keel_retention){.keep_last = 2}, NULL), KEEL_AUTH);
    ck_ok(load(f.store, STEP));
    keel_store_close(wrong);
    /* a key that cannot be read opens no store */
    struct keel_store_config config = {.root = f.root, .run = "sample", .key_file = f.key};
    ck_assert_int_eq(chmod(f.key, 0644), 0);
    ck_status(keel_store_open(&config, &wrong), KEEL_DENIED);
    end_fixture(&f);
}
END_TEST

START_TEST(without_a_key_sealed_data_is_listed_and_verified_but_not_read)
{
    struct fixture f = make_fixture(2);
    struct keel_store *blind = open_with(&f, NULL, false);
    struct keel_snapshot_info info;
    struct keel_snapshot *snapshot;
    uint32_t count, damaged;
    ck_ok(keel_store_list(blind, &info, 1, &count, &damaged));
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(damaged, 0);
    ck_ok(keel_snapshot_open(blind, STEP, 0, &snapshot));
    ck_assert_uint_eq(keel_snapshot_tensor_count(snapshot), 4);
    ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, &damaged));
    ck_status(check_all(snapshot, STEP), KEEL_AUTH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "--key"));
    /* damage to what is stored needs no key to be found */
    struct file shard = take_file(f.step, "rank-0.keel");
    shard.bytes[KEEL_FORMAT_BLOCK_BYTES + 20] ^= 1;
    write_file(&shard, shard.bytes, shard.size);
    ck_status(keel_snapshot_verify(snapshot, NULL, NULL, &damaged), KEEL_CORRUPT);
    ck_assert_uint_eq(damaged, 1);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "rank-0.keel: tensor"));
    keel_snapshot_close(snapshot);
    keel_store_close(blind);
    drop_file(&shard);
    end_fixture(&f);
}
END_TEST

START_TEST(plain_data_is_no_substitute_for_sealed_data_unless_accepted)
{
    struct fixture f = make_fixture(2);
    struct keel_store *plain = open_with(&f, NULL, false), *lenient = open_with(&f, f.key, true);
    struct keel_snapshot_info info;
    uint32_t count;
    save_sample(plain, &f, 7, 2);
    ck_status(load(f.store, 7), KEEL_AUTH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "is not sealed"));
    ck_status(keel_store_list(f.store, &info, 1, &count, NULL), KEEL_AUTH);
    ck_ok(load(lenient, 7));
    ck_ok(load(lenient, STEP));
    ck_ok(load(plain, 7));
    /* A plain shard under a sealed manifest, and the other way round. */
    struct file sealed = take_file(f.step, "rank-1.keel");
    char directory[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(directory, f.root, "sample/step-7.2"));
    struct file open_file = take_file(directory, "rank-1.keel");
    write_file(&sealed, open_file.bytes, open_file.size);
    write_file(&open_file, sealed.bytes, sealed.size);
    ck_status(load(f.store, STEP), KEEL_FORGED);
    ck_status(load(lenient, STEP), KEEL_FORGED);
    ck_status(load(lenient, 7), KEEL_MISMATCH);
    ck_status(load(plain, 7), KEEL_MISMATCH);
    /* A rank that saves without the key does not get into a sealed snapshot. */
    struct keel_shard_summary shards[2];
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct sample_save how = {.step = 8, .attempt = 1, .salt = 8, .rank = rank, .rank_count = 2};
        ck_ok(save_rank(rank == 0 ? f.store : plain, &how, f.tensors, f.tensor_count, &shards[rank]));
    }
    ck_status(commit_all(f.store, 8, 1, shards, 2), KEEL_MISMATCH);
    ck_status(commit_all(plain, 8, 1, shards, 2), KEEL_MISMATCH);
    drop_file(&sealed);
    drop_file(&open_file);
    keel_store_close(plain);
    keel_store_close(lenient);
    end_fixture(&f);
}
END_TEST

/* ---- damage -------------------------------------------------------------------------------------------- */

START_TEST(a_flip_in_any_byte_of_a_sealed_shard_or_manifest_is_damage)
{
    static const char *const names[] = {"rank-0.keel", KEEL_MANIFEST_NAME};
    struct fixture f = make_tiny_fixture();
    struct file file = take_file(f.step, names[_i]);
    int fd = open(file.path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    for (size_t at = 0; at < file.size; at += EVERY) {
        uint8_t flipped = (uint8_t)(file.bytes[at] ^ 1 << at % 8);
        ck_assert_int_eq(pwrite(fd, &flipped, 1, (off_t)at), 1);
        enum keel_status status = look(f.store);
        ck_assert_msg(status == KEEL_CORRUPT, "flip at %zu of %zu: %s: %s", at, file.size,
                      keel_status_name(status), keel_detail());
        ck_assert_int_eq(pwrite(fd, &file.bytes[at], 1, (off_t)at), 1);
    }
    ck_ok(load(f.store, STEP));
    close(fd);
    drop_file(&file);
    end_fixture(&f);
}
END_TEST

/* ---- an attacker who knows the format and writes in the store, but has no key -------------------------- */

struct parts {
    struct keel_format_footer footer;
    size_t footer_at, chunks_at;
};

static struct parts parts_of(const uint8_t *bytes, size_t size)
{
    struct parts parts = {.footer_at = size - sizeof parts.footer};
    memcpy(&parts.footer, bytes + parts.footer_at, sizeof parts.footer);
    parts.chunks_at =
        parts.footer.index_offset + parts.footer.record_count * sizeof(struct keel_format_record);
    return parts;
}

/* Every check that needs no key is made right again. The places of the parts are those of the sound file. */
static void renew_checks(uint8_t *bytes, const struct parts *parts)
{
    struct keel_format_header header;
    struct keel_format_footer footer;
    memcpy(&header, bytes, sizeof header);
    header.check = 0;
    memcpy(bytes, &header, sizeof header);
    header.check = keel_format_check(bytes, KEEL_FORMAT_BLOCK_BYTES);
    memcpy(bytes, &header, sizeof header);
    for (uint32_t i = 0; i < parts->footer.chunk_count; i++) {
        struct keel_format_chunk chunk;
        uint8_t *entry = bytes + parts->chunks_at + i * sizeof chunk;
        memcpy(&chunk, entry, sizeof chunk);
        if (chunk.file_offset > parts->footer_at || chunk.stored_bytes > parts->footer_at - chunk.file_offset)
            continue; /* was altered itself */
        chunk.stored_check = keel_format_check(bytes + chunk.file_offset, chunk.stored_bytes);
        memcpy(entry, &chunk, sizeof chunk);
    }
    memcpy(&footer, bytes + parts->footer_at, sizeof footer);
    keel_format_digest(bytes + parts->footer.index_offset, parts->footer.index_bytes, footer.index_digest);
    footer.header_check = header.check;
    footer.check = keel_format_check(&footer, offsetof(struct keel_format_footer, check));
    memcpy(bytes + parts->footer_at, &footer, sizeof footer);
}

START_TEST(commands_take_the_key_and_say_what_they_see_without)
{
    struct fixture f = make_fixture(2);
    char *key = f.key, *other = f.other;
    struct output o = COMMAND("ls", f.root, "--json");
    ck_assert_int_eq(o.code, 0);
    json_t *root = parse(&o), *first = json_array_get(json_object_get(root, "snapshots"), 0);
    ck_assert(json_is_true(json_object_get(first, "sealed")));
    json_decref(root);
    o = COMMAND("verify", f.root);
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_nonnull(strstr(o.text, "it is sealed"));
    o = COMMAND("verify", f.root, "--key", key);
    ck_assert_int_eq(o.code, 0);
    ck_assert_ptr_null(strstr(o.text, "it is sealed"));
    o = COMMAND("verify", f.root, "--key", other);
    ck_assert_int_eq(o.code, 3);
    ck_assert_ptr_nonnull(strstr(o.errors, "b.key"));
    ck_assert_int_eq(COMMAND("show", f.root).code, 0);
    ck_assert_int_eq(COMMAND("show", f.root, "--key").code, 2);
    ck_assert_int_eq(COMMAND("show", f.root, "--accept-plain").code, 2);
    ck_assert_int_eq(COMMAND("show", f.root, "--key", "/nonexistent/key").code, 3);
    /* a forgery is data that is not right: the same exit code as damage, another text */
    struct file shard = take_file(f.step, "rank-0.keel");
    struct parts parts = parts_of(shard.bytes, shard.size);
    shard.bytes[KEEL_FORMAT_BLOCK_BYTES + 3] ^= 4;
    renew_checks(shard.bytes, &parts);
    write_file(&shard, shard.bytes, shard.size);
    o = COMMAND("verify", f.root, "--key", key);
    ck_assert_int_eq(o.code, 4);
    ck_assert_ptr_nonnull(strstr(o.errors, "altered by somebody without the key"));
    drop_file(&shard);
    struct keel_store *plain = open_with(&f, NULL, false);
    save_sample(plain, &f, 7, 1);
    keel_store_close(plain);
    ck_assert_int_eq(COMMAND("show", f.root, "--step", "7", "--key", key).code, 3);
    ck_assert_int_eq(COMMAND("show", f.root, "--step", "7", "--key", key, "--accept-plain").code, 0);
    end_fixture(&f);
}
END_TEST

struct attack {
    struct fixture *f;
    struct file file;
    struct parts parts;
    uint8_t *bytes; /* to be altered */
    uint32_t forged, refused;
};

static struct attack begin_attack(struct fixture *f, const char *name)
{
    struct attack attack = {.f = f, .file = take_file(f->step, name)};
    attack.parts = parts_of(attack.file.bytes, attack.file.size);
    ck_ok(keel_alloc(attack.file.size, 1, &attack.bytes));
    memcpy(attack.bytes, attack.file.bytes, attack.file.size);
    return attack;
}

/* What was altered goes into the store, its checks renewed. */
static enum keel_status try_attack(struct attack *attack)
{
    renew_checks(attack->bytes, &attack->parts);
    write_file(&attack->file, attack->bytes, attack->file.size);
    memcpy(attack->bytes, attack->file.bytes, attack->file.size);
    return look(attack->f->store);
}

static void alter_bytes(struct attack *attack, size_t from, size_t to)
{
    for (size_t at = from; at < to; at += EVERY) {
        attack->bytes[at] ^= (uint8_t)(1U << at % 8);
        renew_checks(attack->bytes, &attack->parts);
        if (memcmp(attack->bytes, attack->file.bytes, attack->file.size) == 0)
            continue; /* that was one of the checks */
        enum keel_status status = try_attack(attack);
        attack->refused++;
        attack->forged += status == KEEL_FORGED;
        /* What says to be of another version is refused as that, since nobody knows its macs. An index that
         * is not where the footer says has no check that fits. */
        bool elsewhere = at >= attack->parts.footer_at + offsetof(struct keel_format_footer, index_offset) &&
                         at < attack->parts.footer_at + offsetof(struct keel_format_footer, record_count);
        ck_assert_msg(status == KEEL_FORGED || status == KEEL_VERSION ||
                          (elsewhere && status == KEEL_CORRUPT),
                      "byte %zu: %s: %s", at, keel_status_name(status), keel_detail());
    }
}

static void end_attack(struct attack *attack)
{
    write_file(&attack->file, attack->file.bytes, attack->file.size);
    ck_ok(load(attack->f->store, STEP));
    keel_free(attack->bytes);
    drop_file(&attack->file);
}

START_TEST(an_altered_shard_whose_checks_were_all_renewed_is_forged)
{
    struct fixture f = make_tiny_fixture();
    struct attack attack = begin_attack(&f, "rank-0.keel");
    ck_ok(try_attack(&attack)); /* renewing alone changes nothing */
    for (uint32_t i = 0; i < attack.parts.footer.chunk_count; i++) {
        struct keel_format_chunk chunk;
        memcpy(&chunk, attack.file.bytes + attack.parts.chunks_at + i * sizeof chunk, sizeof chunk);
        alter_bytes(&attack, chunk.file_offset, chunk.file_offset + chunk.stored_bytes);
    }
    ck_assert_uint_eq(attack.forged, attack.refused); /* data has no versions */
    alter_bytes(&attack, 0, sizeof(struct keel_format_header));
    alter_bytes(&attack, attack.parts.footer.index_offset,
                attack.parts.footer.index_offset + attack.parts.footer.index_bytes);
    alter_bytes(&attack, attack.parts.footer_at, attack.parts.footer_at + sizeof attack.parts.footer);
    printf("note: %u bytes altered with all checks renewed: %u found to be forged, %u of no version or "
           "damaged\n",
           attack.refused, attack.forged, attack.refused - attack.forged);
    end_attack(&attack);
    end_fixture(&f);
}
END_TEST

/* The same for fields that stay sensible: a tensor gets another name, a step is another one, and so on. */
START_TEST(an_altered_meaning_is_forged)
{
    struct fixture f = make_fixture(1);
    struct attack attack = begin_attack(&f, "rank-0.keel");
    size_t record_at = attack.parts.footer.index_offset;
    const struct {
        size_t at;
        uint8_t value;
    } changes[] = {{record_at + offsetof(struct keel_format_record, name), 'z'},
                   {record_at + offsetof(struct keel_format_record, nonfinite), 1},
                   {offsetof(struct keel_format_header, step), STEP + 1},
                   {offsetof(struct keel_format_header, attempt), ATTEMPT + 1},
                   {offsetof(struct keel_format_header, run), 'x'}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        attack.bytes[changes[i].at] = changes[i].value;
        ck_status(try_attack(&attack), KEEL_FORGED);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "rank-0.keel"));
    }
    end_attack(&attack);
    end_fixture(&f);
}
END_TEST

/* The manifest's text with one change and a right check. */
static enum keel_status load_with_manifest(struct fixture *f, const char *from, const char *to)
{
    struct file file = take_file(f->step, KEEL_MANIFEST_NAME);
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
    write_file(&file, text, (size_t)length);
    enum keel_status status = load(f->store, STEP);
    write_file(&file, file.bytes, file.size);
    drop_file(&file);
    return status;
}

START_TEST(an_altered_manifest_whose_check_was_renewed_is_forged)
{
    struct fixture f = make_fixture(2);
    ck_ok(load_with_manifest(&f, "\"seed\": 7", "\"seed\": 7"));
    ck_status(load_with_manifest(&f, "\"seed\": 7", "\"seed\": 8"), KEEL_FORGED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), KEEL_MANIFEST_NAME));
    ck_status(load_with_manifest(&f, "\"identity\": \"c0ffee\"", "\"identity\": \"c0ffef\""), KEEL_FORGED);
    ck_status(load_with_manifest(&f, "\"file_bytes\": ", "\"file_bytes\": 1"), KEEL_FORGED);
    ck_status(load_with_manifest(&f, "{\n", "{\n\n"), KEEL_FORGED); /* the bytes count, not their meaning */
    struct file file = take_file(f.step, KEEL_MANIFEST_NAME);
    char mac[128], key_check[128];
    const char *key_at = strstr((char *)file.bytes, ",\n \"key_check\""),
               *check_at = strstr(key_at, "\",\n \"check\"");
    const char *mac_at = strstr(key_at, "\"mac\": \"") + strlen("\"mac\": \"");
    snprintf(mac, sizeof mac, "%.64s", mac_at);
    snprintf(key_check, sizeof key_check, "%.32s", key_at + strlen(",\n \"key_check\": \""));
    ck_status(load_with_manifest(&f, mac, "0000000000000000000000000000000000000000000000000000000000000000"),
              KEEL_FORGED);
    ck_status(load_with_manifest(&f, key_check, "00000000000000000000000000000000"), KEEL_AUTH);
    /* the whole seal cut out: a plain manifest now */
    char seal[256];
    snprintf(seal, sizeof seal, "%.*s", (int)(check_at + 1 - key_at), key_at);
    ck_status(load_with_manifest(&f, seal, ""), KEEL_AUTH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "is not sealed"));
    struct keel_store *lenient = open_with(&f, f.key, true), *kept = f.store;
    f.store = lenient;
    ck_status(load_with_manifest(&f, seal, ""), KEEL_MISMATCH); /* accepted, but its shards are sealed */
    f.store = kept;
    keel_store_close(lenient);
    drop_file(&file);
    end_fixture(&f);
}
END_TEST

START_TEST(chunks_that_changed_their_places_are_forged)
{
    struct fixture f = make_empty_fixture();
    f.tensors[f.tensor_count++] = whole("a", KEEL_CKPT_F32, 1, (const uint64_t[]){500});
    f.tensors[f.tensor_count++] = whole("b", KEEL_CKPT_F32, 1, (const uint64_t[]){500});
    struct keel_shard_summary shards[2];
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct sample_save how = {
            .step = STEP, .attempt = ATTEMPT, .salt = STEP, .rank = rank, .rank_count = 2};
        ck_ok(save_rank(f.store, &how, f.tensors, 2, &shards[rank])); /* replicas */
    }
    ck_ok(commit_all(f.store, STEP, ATTEMPT, shards, 2));
    struct attack first = begin_attack(&f, "rank-0.keel"), second = begin_attack(&f, "rank-1.keel");
    struct keel_format_chunk a, b;
    memcpy(&a, first.file.bytes + first.parts.chunks_at, sizeof a);
    memcpy(&b, first.file.bytes + first.parts.chunks_at + sizeof a, sizeof b);
    ck_assert_uint_eq(a.stored_bytes, 2000 + KEEL_FORMAT_SEAL_BYTES);
    ck_assert_uint_eq(a.stored_bytes, b.stored_bytes);
    /* within a file */
    memcpy(first.bytes + a.file_offset, first.file.bytes + b.file_offset, a.stored_bytes);
    memcpy(first.bytes + b.file_offset, first.file.bytes + a.file_offset, a.stored_bytes);
    ck_status(try_attack(&first), KEEL_FORGED);
    /* the same tensor's, of the other rank: even the same contents */
    memcpy(first.bytes + a.file_offset, second.file.bytes + a.file_offset, a.stored_bytes);
    ck_status(try_attack(&first), KEEL_FORGED);
    end_attack(&first);
    end_attack(&second);
    /* a whole file in the place of another rank's */
    struct file mine = take_file(f.step, "rank-0.keel"), theirs = take_file(f.step, "rank-1.keel");
    write_file(&mine, theirs.bytes, theirs.size);
    ck_status(load(f.store, STEP), KEEL_MISMATCH);
    drop_file(&mine);
    drop_file(&theirs);
    end_fixture(&f);
}
END_TEST

START_TEST(an_older_shard_put_back_under_a_newer_manifest_is_found)
{
    struct fixture f = make_fixture(2);
    char newer[KEEL_PATH_BYTES];
    save_sample(f.store, &f, STEP + 1, 2);
    ck_ok(keel_path_join(newer, f.root, "sample/step-6.2"));
    struct file old = take_file(f.step, "rank-0.keel"), fresh = take_file(newer, "rank-0.keel");
    write_file(&fresh, old.bytes, old.size);
    ck_status(load(f.store, STEP + 1), KEEL_MISMATCH);
    /* and made to look like the newer one */
    struct keel_format_header header;
    struct parts parts = parts_of(old.bytes, old.size);
    memcpy(&header, old.bytes, sizeof header);
    header.step = STEP + 1;
    memcpy(old.bytes, &header, sizeof header);
    renew_checks(old.bytes, &parts);
    write_file(&fresh, old.bytes, old.size);
    ck_status(load(f.store, STEP + 1), KEEL_FORGED);
    /* of the same attempt, saved once more with the same key, elsewhere: another file than the manifest says
     */
    struct fixture twin = make_fixture(2);
    struct file other = take_file(twin.step, "rank-0.keel"), mine = take_file(f.step, "rank-0.keel");
    struct attack attack = begin_attack(&f, "rank-0.keel");
    write_file(&mine, other.bytes, other.size);
    ck_status(load(f.store, STEP), KEEL_MISMATCH);
    end_attack(&attack);
    drop_file(&other);
    drop_file(&mine);
    drop_file(&old);
    drop_file(&fresh);
    end_fixture(&twin);
    end_fixture(&f);
}
END_TEST

START_TEST(a_forged_copy_is_passed_by_when_another_rank_has_a_true_one)
{
    struct fixture f = make_empty_fixture();
    f.tensors[f.tensor_count++] = whole("a", KEEL_CKPT_F32, 1, (const uint64_t[]){500});
    struct keel_shard_summary shards[2];
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct sample_save how = {
            .step = STEP, .attempt = ATTEMPT, .salt = STEP, .rank = rank, .rank_count = 2};
        ck_ok(save_rank(f.store, &how, f.tensors, 1, &shards[rank]));
    }
    ck_ok(commit_all(f.store, STEP, ATTEMPT, shards, 2));
    for (uint32_t rank = 0; rank < 2; rank++) {
        char name[KEEL_SHARD_NAME_BYTES];
        struct keel_snapshot *snapshot;
        keel_shard_name(rank, name);
        ck_ok(keel_snapshot_open(f.store, STEP, ATTEMPT, &snapshot)); /* altered while it is open */
        struct file file = take_file(f.step, name);
        uint8_t *bytes;
        ck_ok(keel_alloc(file.size, 1, &bytes));
        memcpy(bytes, file.bytes, file.size);
        bytes[KEEL_FORMAT_BLOCK_BYTES] ^= 1;
        write_file(&file, bytes, file.size);
        ck_ok(check_all(snapshot, STEP));
        ck_status(keel_snapshot_verify(snapshot, NULL, NULL, NULL), KEEL_CORRUPT);
        write_file(&file, file.bytes, file.size);
        keel_snapshot_close(snapshot);
        keel_free(bytes);
        drop_file(&file);
    }
    end_fixture(&f);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_is_saved_with_a_key_is_read_with_it_and_lies_nowhere_open);
    tcase_add_test(tc, deltas_and_copies_are_sealed_and_read_back);
    tcase_add_test(tc, another_key_is_told_by_its_name_not_taken_for_damage);
    tcase_add_test(tc, without_a_key_sealed_data_is_listed_and_verified_but_not_read);
    tcase_add_test(tc, plain_data_is_no_substitute_for_sealed_data_unless_accepted);
    tcase_add_test(tc, commands_take_the_key_and_say_what_they_see_without);
    tcase_add_loop_test(tc, a_flip_in_any_byte_of_a_sealed_shard_or_manifest_is_damage, 0, 2);
    tcase_add_test(tc, an_altered_shard_whose_checks_were_all_renewed_is_forged);
    tcase_add_test(tc, an_altered_meaning_is_forged);
    tcase_add_test(tc, an_altered_manifest_whose_check_was_renewed_is_forged);
    tcase_add_test(tc, chunks_that_changed_their_places_are_forged);
    tcase_add_test(tc, an_older_shard_put_back_under_a_newer_manifest_is_found);
    tcase_add_test(tc, a_forged_copy_is_passed_by_when_another_rank_has_a_true_one);
}

KEEL_TEST_MAIN("seal_store", cases, 600)
