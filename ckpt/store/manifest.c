/* manifest.c - manifest.json to struct and back, by jansson. */
#include "manifest.h"
#include "chunk_seal.h"
#include <inttypes.h>
#include <jansson.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file's end: the check's value and what closes the object. */
enum { HEX_BYTES = 2 * KEEL_DIGEST_BYTES, TAIL_BYTES = HEX_BYTES + 4 };
static const char tail_end[] = "\"\n}\n";
static const char check_member[] = ",\n \"check\": \"";
enum { MEMBER_BYTES = sizeof check_member - 1 };
/* Before that, when it is sealed: two members of these values. */
static const char key_member[] = ",\n \"key_check\": \"";
static const char mac_member[] = "\",\n \"mac\": \"";
enum {
    KEY_HEX_BYTES = 2 * KEEL_KEY_CHECK_BYTES,
    MAC_HEX_BYTES = 2 * KEEL_MAC_BYTES,
    SEAL_BYTES = sizeof key_member - 1 + KEY_HEX_BYTES + sizeof mac_member - 1 + MAC_HEX_BYTES + 1
};

static void to_hex(const uint8_t *bytes, size_t count, char *out)
{
    sodium_bin2hex(out, 2 * count + 1, bytes, count);
}

/* Lower-case digits alone: one text for one digest. */
static bool from_hex(const char *text, uint8_t out[KEEL_DIGEST_BYTES])
{
    char again[HEX_BYTES + 1];
    size_t bytes = 0;
    if (sodium_hex2bin(out, KEEL_DIGEST_BYTES, text, strlen(text), NULL, &bytes, NULL) != 0 ||
        bytes != KEEL_DIGEST_BYTES)
        return false;
    to_hex(out, bytes, again);
    return strcmp(text, again) == 0;
}

void keel_manifest_fini(struct keel_manifest *manifest)
{
    keel_free(manifest->shards);
    keel_free(manifest->bases);
    keel_free(manifest->metadata);
    *manifest = (struct keel_manifest){0};
}

enum keel_status keel_manifest_copy(const struct keel_manifest *manifest, struct keel_manifest *out)
{
    struct keel_manifest copy = *manifest;
    const uint32_t count = manifest->info.shard_count;
    copy.shards = NULL;
    copy.bases = NULL;
    copy.metadata = NULL;
    enum keel_status status = keel_alloc(count, sizeof *copy.shards, &copy.shards);
    if (status == KEEL_OK && manifest->base_count > 0)
        status = keel_alloc(manifest->base_count, sizeof *copy.bases, &copy.bases);
    if (status == KEEL_OK)
        status = keel_strdup(manifest->metadata, &copy.metadata);
    if (status != KEEL_OK) {
        keel_manifest_fini(&copy);
        return status;
    }
    memcpy(copy.shards, manifest->shards, count * sizeof *copy.shards);
    if (manifest->base_count > 0)
        memcpy(copy.bases, manifest->bases, manifest->base_count * sizeof *copy.bases);
    *out = copy;
    return KEEL_OK;
}

/* ---- encode -------------------------------------------------------------------------------------------- */

static json_t *u64_text(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

static json_t *shard_to_json(const struct keel_shard_summary *shard)
{
    char digest[HEX_BYTES + 1];
    to_hex(shard->index_digest, KEEL_DIGEST_BYTES, digest);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:s}", "rank", (json_int_t)shard->rank, "records",
                     (json_int_t)shard->record_count, "file_bytes", (json_int_t)shard->file_bytes,
                     "raw_bytes", (json_int_t)shard->raw_bytes, "stored_bytes",
                     (json_int_t)shard->stored_bytes, "index_digest", digest);
}

static json_t *manifest_to_json(const struct keel_manifest *manifest, json_t *metadata)
{
    json_t *shards = json_array();
    for (uint32_t i = 0; i < manifest->info.shard_count; i++)
        json_array_append_new(shards, shard_to_json(&manifest->shards[i]));
    json_t *bases = manifest->base_count > 0 ? json_array() : NULL; /* without any there is no member */
    for (uint32_t i = 0; i < manifest->base_count; i++)
        json_array_append_new(bases, json_pack("{s:o, s:o}", "step", u64_text(manifest->bases[i].step),
                                               "attempt", u64_text(manifest->bases[i].attempt)));
    return json_pack("{s:s, s:i, s:s, s:o, s:o, s:o, s:s, s:o, s:o*, s:o}", "format", "keel-manifest",
                     "version", KEEL_FORMAT_VERSION, "run", manifest->run, "step",
                     u64_text(manifest->info.step), "attempt", u64_text(manifest->info.attempt),
                     "created_wall_ns", u64_text(manifest->info.created_wall_ns), "identity",
                     manifest->info.identity, "metadata", metadata, "bases", bases, "shards", shards);
}

static enum keel_status parse_metadata(const char *text, json_t **out)
{
    json_error_t error;
    if (strlen(text) > KEEL_METADATA_BYTES_MAX)
        return keel_fail(KEEL_LIMIT, "a snapshot's metadata is longer than %d bytes",
                         KEEL_METADATA_BYTES_MAX);
    json_t *metadata = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (metadata == NULL)
        return keel_fail(KEEL_INVALID, "a snapshot's metadata is no JSON: %s", error.text);
    if (!json_is_object(metadata)) {
        json_decref(metadata);
        return keel_fail(KEEL_INVALID, "a snapshot's metadata must be a JSON object");
    }
    *out = metadata;
    return KEEL_OK;
}

/* At `end`, which has room for SEAL_BYTES and NUL: that all from `text` on comes from who has the key.
 * Returns the new end. */
static char *append_seal(const struct keel_key *key, const char *text, char *end)
{
    uint8_t key_check[KEEL_KEY_CHECK_BYTES], mac[KEEL_MAC_BYTES];
    keel_manifest_key_check(key, key_check);
    end = stpcpy(end, key_member);
    to_hex(key_check, sizeof key_check, end);
    end = stpcpy(end + KEY_HEX_BYTES, mac_member);
    keel_manifest_mac(key, text, (size_t)(end - text), mac);
    to_hex(mac, sizeof mac, end);
    return stpcpy(end + MAC_HEX_BYTES, "\"");
}

/* Behind `body` ("{ ... }") without its closing brace: the seal, if there is a key, and the check. */
static enum keel_status append_check(const char *body, const struct keel_key *key, char **out,
                                     size_t *out_bytes)
{
    size_t kept = strlen(body) - 2; /* the closing "\n}" */
    size_t covered = kept + (key != NULL ? SEAL_BYTES : 0) + MEMBER_BYTES;
    KEEL_ASSERT(strcmp(body + kept, "\n}") == 0);
    if (covered + TAIL_BYTES > KEEL_MANIFEST_BYTES_MAX)
        return keel_fail(KEEL_LIMIT, "the manifest would be larger than %d bytes", KEEL_MANIFEST_BYTES_MAX);
    char *text = NULL;
    KEEL_TRY(keel_alloc(covered + TAIL_BYTES + 1, 1, &text));
    snprintf(text, kept + 1, "%s", body);
    char *end = text + kept;
    if (key != NULL)
        end = append_seal(key, text, end);
    end = stpcpy(end, check_member);
    KEEL_ASSERT(end == text + covered);
    uint8_t digest[KEEL_DIGEST_BYTES];
    keel_format_digest(text, covered, digest);
    to_hex(digest, sizeof digest, end);
    memcpy(end + HEX_BYTES, tail_end, sizeof tail_end);
    *out = text;
    *out_bytes = covered + TAIL_BYTES;
    return KEEL_OK;
}

enum keel_status keel_manifest_encode(const struct keel_manifest *manifest, char **out, size_t *out_bytes)
{
    json_t *metadata = NULL;
    KEEL_TRY(parse_metadata(manifest->metadata, &metadata));
    json_t *root = manifest_to_json(manifest, metadata);
    char *body = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    enum keel_status status = body == NULL ? keel_fail(KEEL_NO_MEMORY, "no memory for a manifest")
                                           : append_check(body, manifest->key, out, out_bytes);
    free(body);
    json_decref(root);
    return status;
}

/* ---- decode -------------------------------------------------------------------------------------------- */

static bool u64_from(const json_t *object, const char *key, uint64_t *out)
{
    const char *text = json_string_value(json_object_get(object, key));
    char again[24];
    if (text == NULL || sscanf(text, "%20" SCNu64, out) != 1)
        return false;
    snprintf(again, sizeof again, "%" PRIu64, *out);
    return strcmp(text, again) == 0;
}

static bool size_from(const json_t *object, const char *key, uint64_t limit, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > limit)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool text_from(const json_t *object, const char *key, char *out, size_t capacity)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL || strlen(text) >= capacity)
        return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool shard_from(const json_t *object, uint32_t rank, struct keel_shard_summary *out)
{
    uint64_t stored_rank, records;
    char digest[HEX_BYTES + 1];
    if (!size_from(object, "rank", KEEL_SNAPSHOT_RANKS_MAX, &stored_rank) || stored_rank != rank ||
        !size_from(object, "records", KEEL_FORMAT_RECORDS_MAX, &records) ||
        !size_from(object, "file_bytes", INT64_MAX, &out->file_bytes) ||
        !size_from(object, "raw_bytes", INT64_MAX, &out->raw_bytes) ||
        !size_from(object, "stored_bytes", INT64_MAX, &out->stored_bytes) ||
        !text_from(object, "index_digest", digest, sizeof digest))
        return false;
    out->rank = rank;
    out->record_count = (uint32_t)records;
    return from_hex(digest, out->index_digest);
}

static enum keel_status damaged(const char *label)
{
    return keel_fail(KEEL_CORRUPT, "%s: is damaged; use another snapshot or a copy of this file", label);
}

/* Its check is right, so nothing has happened to it since. */
static enum keel_status lacks(const char *label, const char *member)
{
    return keel_fail(KEEL_CORRUPT,
                     "%s: is undamaged, but what wrote it left out its member %s; use another snapshot",
                     label, member);
}

static enum keel_status newer(const char *label)
{
    return keel_fail(KEEL_VERSION, "%s: has members that version 1 does not have; use a newer Keel", label);
}

static enum keel_status shards_from(const json_t *root, const char *label, struct keel_manifest *out)
{
    const json_t *shards = json_object_get(root, "shards");
    size_t count = json_array_size(shards);
    if (count == 0 || count > KEEL_SNAPSHOT_RANKS_MAX)
        return damaged(label);
    KEEL_TRY(keel_alloc(count, sizeof *out->shards, &out->shards));
    out->info.shard_count = (uint32_t)count;
    for (uint32_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(shards, i);
        if (!shard_from(entry, i, &out->shards[i]))
            return damaged(label);
        if (json_object_size(entry) != 6)
            return newer(label);
        out->info.raw_bytes += out->shards[i].raw_bytes; /* neither is above INT64_MAX */
        out->info.stored_bytes += out->shards[i].stored_bytes;
        if (out->info.raw_bytes > INT64_MAX || out->info.stored_bytes > INT64_MAX)
            return damaged(label);
    }
    return KEEL_OK;
}

/* Ascending, none twice, none the snapshot itself: one text for one set. */
static bool base_follows(const struct keel_manifest *manifest, uint32_t number)
{
    const struct keel_generation *base = &manifest->bases[number];
    const struct keel_generation own = {manifest->info.step, manifest->info.attempt};
    return keel_generation_compare(base, &own) != 0 &&
           (number == 0 || keel_generation_compare(base, base - 1) > 0);
}

static enum keel_status bases_from(const json_t *root, const char *label, struct keel_manifest *out)
{
    const json_t *bases = json_object_get(root, "bases");
    if (bases == NULL)
        return KEEL_OK;
    size_t count = json_array_size(bases);
    if (count == 0 || count > out->info.shard_count)
        return damaged(label);
    KEEL_TRY(keel_alloc(count, sizeof *out->bases, &out->bases));
    for (; out->base_count < count; out->base_count++) {
        const json_t *entry = json_array_get(bases, out->base_count);
        struct keel_generation *base = &out->bases[out->base_count];
        if (!u64_from(entry, "step", &base->step) || !u64_from(entry, "attempt", &base->attempt) ||
            !base_follows(out, out->base_count))
            return damaged(label);
        if (json_object_size(entry) != 2)
            return newer(label);
    }
    return KEEL_OK;
}

static enum keel_status metadata_from(const json_t *root, const char *label, struct keel_manifest *out)
{
    const json_t *metadata = json_object_get(root, "metadata");
    if (!json_is_object(metadata))
        return damaged(label);
    char *text = json_dumps(metadata, JSON_COMPACT | JSON_ENSURE_ASCII);
    if (text == NULL)
        return keel_fail(KEEL_NO_MEMORY, "no memory for a manifest");
    enum keel_status status = keel_strdup(text, &out->metadata);
    free(text);
    return status;
}

bool keel_identity_valid(const char *identity)
{
    size_t length = strnlen(identity, KEEL_IDENTITY_BYTES);
    for (size_t i = 0; i < length; i++)
        if (identity[i] <= ' ' || identity[i] > '~')
            return false;
    return length < KEEL_IDENTITY_BYTES;
}

/* Those that must be there are, and no others but those that may. */
static enum keel_status check_members(const json_t *root, bool sealed, const char *label)
{
    static const char *const members[] = {"format",          "version",  "run",      "step",   "attempt",
                                          "created_wall_ns", "identity", "metadata", "shards", "check"};
    const size_t count = sizeof members / sizeof members[0];
    for (size_t i = 0; i < count; i++)
        if (json_object_get(root, members[i]) == NULL)
            return lacks(label, members[i]);
    size_t allowed = count + (json_object_get(root, "bases") != NULL ? 1U : 0U) + (sealed ? 2U : 0U);
    return json_object_size(root) == allowed ? KEEL_OK : newer(label);
}

static enum keel_status manifest_from(const json_t *root, const char *label, struct keel_manifest *out)
{
    char format[32];
    uint64_t version;
    if (!text_from(root, "format", format, sizeof format) || strcmp(format, "keel-manifest") != 0 ||
        !size_from(root, "version", UINT32_MAX, &version))
        return damaged(label);
    if (version != KEEL_FORMAT_VERSION)
        return keel_fail(KEEL_VERSION,
                         "%s: its version is %" PRIu64 ", this program reads %d; use a newer Keel", label,
                         version, KEEL_FORMAT_VERSION);
    KEEL_TRY(check_members(root, out->info.sealed, label));
    if (!text_from(root, "run", out->run, sizeof out->run) || !u64_from(root, "step", &out->info.step) ||
        !u64_from(root, "attempt", &out->info.attempt) ||
        !u64_from(root, "created_wall_ns", &out->info.created_wall_ns) ||
        !text_from(root, "identity", out->info.identity, sizeof out->info.identity) ||
        !keel_run_name_valid(out->run) || !keel_identity_valid(out->info.identity))
        return damaged(label);
    KEEL_TRY(shards_from(root, label, out));
    KEEL_TRY(bases_from(root, label, out));
    return metadata_from(root, label, out);
}

/* Where the seal of a text begins, whose check has been seen; false when it has none. */
static bool find_seal(const char *text, size_t bytes, const char **out)
{
    size_t behind = MEMBER_BYTES + TAIL_BYTES; /* the seal: what is before */
    if (text == NULL || bytes < SEAL_BYTES + behind)
        return false;
    const char *seal = text + bytes - behind - SEAL_BYTES;
    if (memcmp(seal, key_member, sizeof key_member - 1) != 0 ||
        memcmp(seal + sizeof key_member - 1 + KEY_HEX_BYTES, mac_member, sizeof mac_member - 1) != 0)
        return false;
    if (out != NULL)
        *out = seal;
    return true;
}

/* Does a text that was decoded come from who has the key? AUTH: it has another key's mac, or none. FORGED. */
static enum keel_status prove(const char *text, size_t bytes, const struct keel_key *key, const char *label)
{
    const char *seal;
    uint8_t key_check[KEEL_KEY_CHECK_BYTES], mac[KEEL_MAC_BYTES];
    char key_hex[KEY_HEX_BYTES + 1], mac_hex[MAC_HEX_BYTES + 1];
    if (!find_seal(text, bytes, &seal))
        return keel_fail(
            KEEL_AUTH,
            "%s: is not sealed, though a key is given (%s): anybody who can write here could have "
            "put it in the place of a sealed one; accept plain snapshots, or leave the key out, if "
            "that is what you expect",
            label, keel_key_path(key));
    const char *key_at = seal + sizeof key_member - 1;
    const char *mac_at = key_at + KEY_HEX_BYTES + sizeof mac_member - 1;
    keel_manifest_key_check(key, key_check);
    to_hex(key_check, sizeof key_check, key_hex);
    if (memcmp(key_at, key_hex, KEY_HEX_BYTES) != 0)
        return keel_fail(KEEL_AUTH,
                         "%s: is sealed with another key than that in %s; give the one it was saved with",
                         label, keel_key_path(key));
    keel_manifest_mac(key, text, (size_t)(mac_at - text), mac);
    to_hex(mac, sizeof mac, mac_hex);
    if (!keel_key_equal(mac_at, mac_hex, MAC_HEX_BYTES))
        return keel_fail(
            KEEL_FORGED,
            "%s: was changed by somebody without the key, its check renewed; use another snapshot, "
            "and find out who writes here",
            label);
    return KEEL_OK;
}

static bool all_ascii(const char *text, size_t bytes)
{
    unsigned char any = 0;
    for (size_t i = 0; i < bytes; i++)
        any |= (unsigned char)text[i];
    return any < 0x80;
}

/* A text whose check is right. */
static enum keel_status parse(const char *text, size_t bytes, const char *label, json_t **out)
{
    json_error_t error;
    bool ends = memcmp(text + bytes - TAIL_BYTES - MEMBER_BYTES, check_member, MEMBER_BYTES) == 0;
    if (ends && all_ascii(text, bytes)) {
        *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
        if (*out != NULL)
            return KEEL_OK;
        if (json_error_code(&error) == json_error_out_of_memory)
            return keel_fail(KEEL_NO_MEMORY, "%s: no memory to read it", label);
    }
    return keel_fail(
        KEEL_CORRUPT,
        "%s: is undamaged, but what wrote it made no JSON in ASCII that ends as a manifest does; "
        "use another snapshot",
        label);
}

enum keel_status keel_manifest_decode(const char *text, size_t bytes, const char *label,
                                      struct keel_manifest *out)
{
    uint8_t digest[KEEL_DIGEST_BYTES];
    char hex[HEX_BYTES + 1];
    json_t *root = NULL;
    if (bytes <= MEMBER_BYTES + TAIL_BYTES || bytes > KEEL_MANIFEST_BYTES_MAX)
        return damaged(label);
    keel_format_digest(text, bytes - TAIL_BYTES, digest);
    to_hex(digest, sizeof digest, hex);
    const char *tail = text + bytes - TAIL_BYTES;
    if (memcmp(tail, hex, HEX_BYTES) != 0 || memcmp(tail + HEX_BYTES, tail_end, sizeof tail_end - 1) != 0)
        return damaged(label);
    KEEL_TRY(parse(text, bytes, label, &root));
    struct keel_manifest manifest = {.info.sealed = find_seal(text, bytes, NULL)};
    enum keel_status status = manifest_from(root, label, &manifest);
    json_decref(root);
    if (status != KEEL_OK) {
        keel_manifest_fini(&manifest);
        return status;
    }
    *out = manifest;
    return KEEL_OK;
}

static enum keel_status read_text(const struct keel_step_place *place, const char *label, char **out,
                                  size_t *out_bytes)
{
    int fd;
    uint64_t bytes;
    KEEL_TRY(keel_step_open_file(place, KEEL_MANIFEST_NAME, &fd, &bytes));
    char *text = NULL;
    enum keel_status status = bytes > KEEL_MANIFEST_BYTES_MAX ? damaged(label) : keel_alloc(bytes, 1, &text);
    if (status == KEEL_OK)
        status = keel_pread_all(fd, text, bytes, 0, label);
    keel_disk_close(fd);
    if (status != KEEL_OK) {
        keel_free(text);
        return status;
    }
    *out = text;
    *out_bytes = keel_size(bytes);
    return KEEL_OK;
}

enum keel_status keel_manifest_read(const struct keel_store *store, const struct keel_step_place *place,
                                    struct keel_manifest *out)
{
    char label[KEEL_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    struct keel_manifest manifest = {0};
    KEEL_TRY(keel_path_join(label, place->path, KEEL_MANIFEST_NAME));
    KEEL_TRY(read_text(place, label, &text, &bytes));
    enum keel_status status = keel_manifest_decode(text, bytes, label, &manifest);
    if (status == KEEL_OK && store->key != NULL && (manifest.info.sealed || !store->accept_plain)) {
        status = prove(text, bytes, store->key, label);
        manifest.proven = status == KEEL_OK;
    }
    keel_free(text);
    if (status != KEEL_OK) {
        keel_manifest_fini(&manifest);
        return status;
    }
    uint64_t step = 0, attempt = 0;
    KEEL_ASSERT(keel_step_name_parse(place->name, &step, &attempt));
    if (strcmp(manifest.run, store->run) != 0 || manifest.info.step != step ||
        manifest.info.attempt != attempt) {
        status = keel_fail(KEEL_MISMATCH,
                           "%s: is that of %s/step-%" PRIu64 ".%" PRIu64 "; give the directory its name back",
                           label, manifest.run, manifest.info.step, manifest.info.attempt);
        keel_manifest_fini(&manifest);
        return status;
    }
    *out = manifest;
    return KEEL_OK;
}
