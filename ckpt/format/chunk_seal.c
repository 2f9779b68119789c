/* chunk_seal.c - XChaCha20-Poly1305 over chunks, keyed BLAKE2b over what is not secret but must be true. */
#include "chunk_seal.h"
#include <sodium.h>
#include <string.h>

static const char label_check[] = "keel key check";
static const char label_chunks[] = "keel chunks";
static const char label_shard[] = "keel shard";
static const char label_manifest[] = "keel manifest";

enum { TAG_BYTES = KEEL_FORMAT_SEAL_BYTES - KEEL_SEAL_FRONT_BYTES };
_Static_assert(TAG_BYTES == crypto_aead_xchacha20poly1305_ietf_ABYTES, "the seal's tag");
_Static_assert(KEEL_KEY_BYTES == crypto_aead_xchacha20poly1305_ietf_KEYBYTES, "the chunks' key");
_Static_assert(KEEL_SEAL_FRONT_BYTES == 2 * sizeof(uint64_t), "the seal's checks");

/* Authenticated beside a chunk's bytes. */
struct chunk_label {
    uint64_t header_check;
    uint64_t number;
    uint32_t raw_bytes, codec;
    uint32_t base_rank, base_chunk, chain, zero;
};
_Static_assert(sizeof(struct chunk_label) == 40, "chunk_label");

/* ---- keys of one file --------------------------------------------------------------------------------- */

/* What a shard is: the header up to and with its salt. Whoever changes a byte of it gets other keys. */
static void shard_key(const struct keel_key *key, const char *label, const struct keel_format_header *header,
                      uint8_t out[KEEL_KEY_BYTES])
{
    keel_key_hash(key, label, header, offsetof(struct keel_format_header, key_check), out, KEEL_KEY_BYTES);
}

static void header_key_check(const struct keel_key *key, const struct keel_format_header *header,
                             uint8_t out[KEEL_KEY_CHECK_BYTES])
{
    keel_key_hash(key, label_check, header->salt, sizeof header->salt, out, KEEL_KEY_CHECK_BYTES);
}

/* ---- shard -------------------------------------------------------------------------------------------- */

void keel_shard_begin_seal(const struct keel_key *key, struct keel_format_header *header)
{
    header->flags |= KEEL_HEADER_SEALED;
    randombytes_buf(header->salt, sizeof header->salt);
    header_key_check(key, header, header->key_check);
}

static void shard_mac(const struct keel_key *key, const struct keel_format_header *header,
                      const uint8_t *index, const struct keel_format_footer *footer,
                      uint8_t out[KEEL_MAC_BYTES])
{
    static const uint8_t zeros[KEEL_FORMAT_BLOCK_BYTES - sizeof *header];
    uint8_t mac_key[KEEL_KEY_BYTES];
    crypto_generichash_state state;
    shard_key(key, label_shard, header, mac_key);
    KEEL_ASSERT(crypto_generichash_init(&state, mac_key, sizeof mac_key, KEEL_MAC_BYTES) == 0);
    crypto_generichash_update(&state, (const uint8_t *)header, sizeof *header);
    crypto_generichash_update(&state, zeros, sizeof zeros);
    crypto_generichash_update(&state, index, footer->index_bytes);
    crypto_generichash_update(&state, (const uint8_t *)footer, offsetof(struct keel_format_footer, mac));
    crypto_generichash_final(&state, out, KEEL_MAC_BYTES);
    sodium_memzero(mac_key, sizeof mac_key);
    sodium_memzero(&state, sizeof state);
}

void keel_shard_mac(const struct keel_key *key, const struct keel_format_header *header, const uint8_t *index,
                    struct keel_format_footer *footer)
{
    shard_mac(key, header, index, footer, footer->mac);
}

enum keel_status keel_shard_check_mac(const struct keel_key *key, const struct keel_format_header *header,
                                      const uint8_t *index, const struct keel_format_footer *footer,
                                      const char *label)
{
    uint8_t wanted[KEEL_MAC_BYTES];
    header_key_check(key, header, wanted);
    if (!keel_key_equal(wanted, header->key_check, KEEL_KEY_CHECK_BYTES))
        return keel_fail(KEEL_AUTH,
                         "%s: is sealed with another key than that in %s; give the one it was saved with",
                         label, keel_key_path(key));
    shard_mac(key, header, index, footer, wanted);
    if (!keel_key_equal(wanted, footer->mac, sizeof wanted))
        return keel_fail(KEEL_FORGED,
                         "%s: was changed by somebody without the key, its checksums renewed; use another "
                         "snapshot or a copy of this file, and find out who writes here",
                         label);
    return KEEL_OK;
}

/* ---- chunk -------------------------------------------------------------------------------------------- */

static struct chunk_label label_of(const struct keel_format_header *header, uint32_t number,
                                   const struct keel_format_chunk *entry)
{
    return (struct chunk_label){.header_check = header->check,
                                .number = number,
                                .raw_bytes = entry->raw_bytes,
                                .codec = entry->codec,
                                .base_rank = entry->base_rank,
                                .base_chunk = entry->base_chunk,
                                .chain = entry->chain};
}

/* Used once under a file's key: a chunk has one number, a file one salt. */
static void nonce_of(uint32_t number, uint8_t out[crypto_aead_xchacha20poly1305_ietf_NPUBBYTES])
{
    memset(out, 0, crypto_aead_xchacha20poly1305_ietf_NPUBBYTES);
    memcpy(out, &number, sizeof number);
}

void keel_chunk_seal(const struct keel_key *key, const struct keel_format_header *header, uint32_t number,
                     struct keel_format_chunk *entry, uint8_t *stored)
{
    uint8_t nonce[crypto_aead_xchacha20poly1305_ietf_NPUBBYTES], chunk_key[KEEL_KEY_BYTES];
    const struct chunk_label label = label_of(header, number, entry);
    shard_key(key, label_chunks, header, chunk_key);
    nonce_of(number, nonce);
    memcpy(stored, &entry->raw_check, sizeof entry->raw_check);
    memcpy(stored + sizeof entry->raw_check, &entry->base_check, sizeof entry->base_check);
    crypto_aead_xchacha20poly1305_ietf_encrypt(stored, NULL, stored,
                                               KEEL_SEAL_FRONT_BYTES + entry->stored_bytes,
                                               (const uint8_t *)&label, sizeof label, NULL, nonce, chunk_key);
    sodium_memzero(chunk_key, sizeof chunk_key);
    entry->flags |= KEEL_CHUNK_SEALED;
    entry->stored_bytes += KEEL_FORMAT_SEAL_BYTES;
    entry->raw_check = 0;
    entry->base_check = 0;
}

enum keel_status keel_chunk_open(const struct keel_key *key, const struct keel_format_header *header,
                                 uint32_t number, struct keel_format_chunk *entry, uint8_t *stored,
                                 const uint8_t **out)
{
    uint8_t nonce[crypto_aead_xchacha20poly1305_ietf_NPUBBYTES], chunk_key[KEEL_KEY_BYTES];
    const struct chunk_label label = label_of(header, number, entry);
    *out = stored;
    if ((entry->flags & KEEL_CHUNK_SEALED) == 0)
        return KEEL_OK;
    if (key == NULL)
        return keel_fail(KEEL_AUTH,
                         "it is sealed; name the key file it was saved with (--key, snapshot.key_file)");
    KEEL_ASSERT(entry->stored_bytes > KEEL_FORMAT_SEAL_BYTES);
    shard_key(key, label_chunks, header, chunk_key);
    nonce_of(number, nonce);
    int bad =
        crypto_aead_xchacha20poly1305_ietf_decrypt(stored, NULL, NULL, stored, entry->stored_bytes,
                                                   (const uint8_t *)&label, sizeof label, nonce, chunk_key);
    sodium_memzero(chunk_key, sizeof chunk_key);
    if (bad != 0)
        return keel_fail(KEEL_FORGED, "its bytes were changed by somebody without the key");
    entry->flags &= ~(uint32_t)KEEL_CHUNK_SEALED;
    entry->stored_bytes -= KEEL_FORMAT_SEAL_BYTES;
    memcpy(&entry->raw_check, stored, sizeof entry->raw_check);
    memcpy(&entry->base_check, stored + sizeof entry->raw_check, sizeof entry->base_check);
    *out = stored + KEEL_SEAL_FRONT_BYTES;
    return KEEL_OK;
}

/* ---- manifest ----------------------------------------------------------------------------------------- */

void keel_manifest_key_check(const struct keel_key *key, uint8_t out[KEEL_KEY_CHECK_BYTES])
{
    keel_key_hash(key, label_check, NULL, 0, out, KEEL_KEY_CHECK_BYTES);
}

void keel_manifest_mac(const struct keel_key *key, const char *text, size_t bytes,
                       uint8_t out[KEEL_MAC_BYTES])
{
    keel_key_hash(key, label_manifest, text, bytes, out, KEEL_MAC_BYTES);
}
