/* chunk_seal.h - sealing with a key: chunks encrypted and authenticated, shards and manifests authenticated.
 *
 * Pure functions of key and bytes, any thread. Without the key nobody can read a chunk, or change one
 * undetected. Each key in use is derived from the master key and the header of its file, and each chunk is
 * authenticated with its number: a chunk moved to another place, file or snapshot does not open. Left to
 * others: the key file (seal_key.c), damage, which the checks of format.c find without any key, and what is
 * done about it. */
#ifndef KEEL_CKPT_CHUNK_SEAL_H
#define KEEL_CKPT_CHUNK_SEAL_H

#include "format.h"
#include "seal_key.h"

enum {
    KEEL_SEAL_FRONT_BYTES = 16, /* of KEEL_FORMAT_SEAL_BYTES: the two checks before the codec's bytes */
    KEEL_MAC_BYTES = 32,
    KEEL_KEY_CHECK_BYTES = 16
};

/* ---- shard --------------------------------------------------------------------------------------------- */

/* Mark a new shard's header as sealed: flag, random salt, key check. Its other fields are set, its check is
 * not. */
void keel_shard_begin_seal(const struct keel_key *key, struct keel_format_header *header);
/* The footer's mac, over header (its check set), index and the footer before the mac. */
void keel_shard_mac(const struct keel_key *key, const struct keel_format_header *header, const uint8_t *index,
                    struct keel_format_footer *footer);
/* Header, index and footer whose checks have been seen. AUTH: sealed with another key. FORGED. */
enum keel_status keel_shard_check_mac(const struct keel_key *key, const struct keel_format_header *header,
                                      const uint8_t *index, const struct keel_format_footer *footer,
                                      const char *label);

/* ---- chunk --------------------------------------------------------------------------------------------- */

/* Seal chunk `number` of the shard in place: `stored` holds the codec's entry->stored_bytes from its byte
 * KEEL_SEAL_FRONT_BYTES on, and has room for KEEL_FORMAT_SEAL_BYTES more than them. The entry gets flag and
 * size, and gives raw_check and base_check away into the seal; its stored_check and file_offset are left to
 * the caller. */
void keel_chunk_seal(const struct keel_key *key, const struct keel_format_header *header, uint32_t number,
                     struct keel_format_chunk *entry, uint8_t *stored);
/* Open it in place: *out is where the codec's bytes begin, and the entry becomes what it was before it was
 * sealed (but stored_check). One that is not sealed stays as it is. `key` may be NULL: AUTH, with what to do.
 * FORGED. Neither says which chunk; `stored` is scratch then. */
enum keel_status keel_chunk_open(const struct keel_key *key, const struct keel_format_header *header,
                                 uint32_t number, struct keel_format_chunk *entry, uint8_t *stored,
                                 const uint8_t **out);

/* ---- manifest ------------------------------------------------------------------------------------------ */

/* Tells the key of manifests from another one. */
void keel_manifest_key_check(const struct keel_key *key, uint8_t out[KEEL_KEY_CHECK_BYTES]);
void keel_manifest_mac(const struct keel_key *key, const char *text, size_t bytes,
                       uint8_t out[KEEL_MAC_BYTES]);

#endif
