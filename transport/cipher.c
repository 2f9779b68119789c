/* cipher.c - envelopes with libsodium's authenticated ciphers. */
#include "cipher.h"

#include <keel/memory.h>
#include <sodium.h>
#include <string.h>

enum {
    NONCE_BYTES = 12,
    OPEN_BYTES = offsetof(struct keel_envelope, tag) /* readable, and authenticated with the rest */
};
static_assert((int)NONCE_BYTES == (int)crypto_aead_aes256gcm_NPUBBYTES, "a nonce of AES-GCM");
static_assert((int)NONCE_BYTES == (int)crypto_aead_chacha20poly1305_ietf_NPUBBYTES, "and of ChaCha20");
static_assert((int)KEEL_TAG_BYTES == (int)crypto_aead_aes256gcm_ABYTES, "a tag of AES-GCM");
static_assert((int)KEEL_TAG_BYTES == (int)crypto_aead_chacha20poly1305_ietf_ABYTES, "and of Poly1305");
static_assert(offsetof(struct keel_envelope, message) + sizeof(struct keel_message) ==
                  sizeof(struct keel_envelope),
              "message and payload are sealed in one piece");

struct keel_cipher {
    crypto_aead_aes256gcm_state aes;
    uint8_t key[KEEL_KEY_BYTES];
    uint64_t number; /* of the next message */
    enum keel_cipher_kind kind;
};

enum keel_cipher_kind keel_cipher_best(void)
{
    return crypto_aead_aes256gcm_is_available() != 0 ? KEEL_CIPHER_AES : KEEL_CIPHER_CHACHA;
}

enum keel_status keel_cipher_create(enum keel_cipher_kind kind, const uint8_t key[KEEL_KEY_BYTES],
                                    struct keel_cipher **out)
{
    struct keel_cipher *cipher;
    KEEL_ASSERT(kind == KEEL_CIPHER_CHACHA || keel_cipher_best() == KEEL_CIPHER_AES);
    KEEL_TRY(keel_alloc_aligned(KEEL_CACHE_LINE_BYTES, sizeof *cipher, &cipher));
    cipher->kind = kind;
    cipher->number = 0;
    memcpy(cipher->key, key, sizeof cipher->key);
    if (kind == KEEL_CIPHER_AES)
        crypto_aead_aes256gcm_beforenm(&cipher->aes, key);
    *out = cipher;
    return KEEL_OK;
}

void keel_cipher_free(struct keel_cipher *cipher)
{
    if (cipher != NULL)
        sodium_memzero(cipher, sizeof *cipher);
    keel_free(cipher);
}

static void make_nonce(const struct keel_cipher *cipher, uint8_t out[NONCE_BYTES])
{
    memset(out, 0, NONCE_BYTES);
    memcpy(out, &cipher->number, sizeof cipher->number);
}

void keel_cipher_seal(struct keel_cipher *cipher, struct keel_envelope *envelope,
                      const struct keel_message *message, bool whole)
{
    uint8_t nonce[NONCE_BYTES], *text = (uint8_t *)envelope + offsetof(struct keel_envelope, message);
    const uint8_t *open = (const uint8_t *)envelope;
    uint64_t bytes = sizeof *message + (whole ? message->bytes : 0);
    KEEL_ASSERT(cipher->number < UINT64_MAX);
    make_nonce(cipher, nonce);
    envelope->magic = whole ? KEEL_ENVELOPE_WHOLE : KEEL_ENVELOPE_HEADER;
    envelope->bytes = message->bytes;
    memcpy(&envelope->message, message, sizeof *message);
    if (cipher->kind == KEEL_CIPHER_AES)
        crypto_aead_aes256gcm_encrypt_detached_afternm(text, envelope->tag, NULL, text, bytes, open,
                                                       OPEN_BYTES, NULL, nonce, &cipher->aes);
    else
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(text, envelope->tag, NULL, text, bytes, open,
                                                           OPEN_BYTES, NULL, nonce, cipher->key);
}

void keel_cipher_advance(struct keel_cipher *cipher)
{
    cipher->number++;
}

bool keel_cipher_open(struct keel_cipher *cipher, struct keel_envelope *envelope, size_t bytes)
{
    uint8_t nonce[NONCE_BYTES], *text = (uint8_t *)envelope + offsetof(struct keel_envelope, message);
    const uint8_t *open = (const uint8_t *)envelope;
    if (bytes < sizeof *envelope || envelope->bytes != bytes - sizeof *envelope ||
        (envelope->magic != KEEL_ENVELOPE_WHOLE && envelope->magic != KEEL_ENVELOPE_HEADER))
        return false;
    uint64_t sealed = sizeof envelope->message;
    if (envelope->magic == KEEL_ENVELOPE_WHOLE)
        sealed += envelope->bytes;
    make_nonce(cipher, nonce);
    int wrong;
    if (cipher->kind == KEEL_CIPHER_AES)
        wrong = crypto_aead_aes256gcm_decrypt_detached_afternm(text, NULL, text, sealed, envelope->tag, open,
                                                               OPEN_BYTES, nonce, &cipher->aes);
    else
        wrong = crypto_aead_chacha20poly1305_ietf_decrypt_detached(text, NULL, text, sealed, envelope->tag,
                                                                   open, OPEN_BYTES, nonce, cipher->key);
    if (wrong != 0)
        return false;
    cipher->number++;
    return envelope->message.magic == KEEL_MESSAGE_MAGIC && envelope->message.bytes == envelope->bytes;
}
