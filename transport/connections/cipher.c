/* cipher.c - envelopes with libcrypto's authenticated ciphers. libcrypto and not libsodium for its speed: the
 * figures are in README.md, "What the job key protects". */
#include "cipher.h"

#include <keel/memory.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/auxv.h>

enum {
    NONCE_BYTES = 12,                                /* of both ciphers, and libcrypto's default */
    OPEN_BYTES = offsetof(struct keel_envelope, tag) /* readable, and authenticated with the rest */
};
static_assert(offsetof(struct keel_envelope, message) + sizeof(struct keel_message) ==
                  sizeof(struct keel_envelope),
              "message and payload are sealed in one piece");

struct keel_cipher {
    EVP_CIPHER_CTX *context; /* has the key, and wipes it */
    uint64_t number;         /* of the next message */
};

enum keel_cipher_kind keel_cipher_best(void)
{
#if defined(__x86_64__) || defined(__i386__)
    bool fast = __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
    enum { HAS_AES = 1 << 3, HAS_PMULL = 1 << 4 };
    bool fast = (getauxval(AT_HWCAP) & (HAS_AES | HAS_PMULL)) == (HAS_AES | HAS_PMULL);
#else
    bool fast = false;
#endif
    return fast ? KEEL_CIPHER_AES : KEEL_CIPHER_CHACHA;
}

enum keel_status keel_cipher_create(enum keel_cipher_kind kind, const uint8_t key[KEEL_KEY_BYTES],
                                    struct keel_cipher **out)
{
    struct keel_cipher *cipher;
    const EVP_CIPHER *evp = kind == KEEL_CIPHER_AES ? EVP_aes_256_gcm() : EVP_chacha20_poly1305();
    KEEL_TRY(keel_alloc(1, sizeof *cipher, &cipher));
    cipher->context = EVP_CIPHER_CTX_new();
    if (cipher->context == NULL || EVP_EncryptInit_ex(cipher->context, evp, NULL, key, NULL) != 1) {
        bool memory = cipher->context == NULL;
        keel_cipher_free(cipher);
        return memory ? keel_fail(KEEL_NO_MEMORY, "no memory for a cipher")
                      : keel_fail(KEEL_UNSUPPORTED, "libcrypto has no %s; its configuration may forbid it",
                                  kind == KEEL_CIPHER_AES ? "AES-256-GCM" : "ChaCha20-Poly1305");
    }
    *out = cipher;
    return KEEL_OK;
}

void keel_cipher_free(struct keel_cipher *cipher)
{
    if (cipher != NULL)
        EVP_CIPHER_CTX_free(cipher->context);
    keel_free(cipher);
}

static void make_nonce(const struct keel_cipher *cipher, uint8_t out[NONCE_BYTES])
{
    memset(out, 0, NONCE_BYTES);
    memcpy(out, &cipher->number, sizeof cipher->number);
}

/* Begin a message: the nonce, then what is authenticated but not encrypted. */
static bool begin(struct keel_cipher *cipher, const struct keel_envelope *envelope, const uint8_t *payload,
                  int payload_bytes, int encrypt)
{
    uint8_t nonce[NONCE_BYTES];
    int count;
    make_nonce(cipher, nonce);
    return EVP_CipherInit_ex(cipher->context, NULL, NULL, NULL, nonce, encrypt) == 1 &&
           EVP_CipherUpdate(cipher->context, NULL, &count, (const uint8_t *)envelope, OPEN_BYTES) == 1 &&
           (payload_bytes == 0 ||
            EVP_CipherUpdate(cipher->context, NULL, &count, payload, payload_bytes) == 1);
}

void keel_cipher_seal(struct keel_cipher *cipher, struct keel_envelope *envelope,
                      const struct keel_message *message, const void *payload, bool whole)
{
    uint8_t *text = (uint8_t *)envelope + offsetof(struct keel_envelope, message);
    int bytes = (int)sizeof *message + (whole ? (int)message->bytes : 0), count;
    KEEL_ASSERT(cipher->number < UINT64_MAX && message->bytes <= KEEL_CHUNK_BYTES);
    KEEL_ASSERT(!whole || payload == NULL || payload == envelope + 1);
    envelope->magic = whole ? KEEL_ENVELOPE_WHOLE : KEEL_ENVELOPE_HEADER;
    envelope->bytes = message->bytes;
    memcpy(&envelope->message, message, sizeof *message);
    bool good =
        begin(cipher, envelope, payload, whole ? 0 : (int)message->bytes, 1) &&
        EVP_CipherUpdate(cipher->context, text, &count, text, bytes) == 1 &&
        EVP_CipherFinal_ex(cipher->context, text + bytes, &count) == 1 &&
        EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_AEAD_GET_TAG, KEEL_TAG_BYTES, envelope->tag) == 1;
    KEEL_ASSERT(good); /* these calls need no memory and nothing of the outside */
}

void keel_cipher_advance(struct keel_cipher *cipher)
{
    cipher->number++;
}

bool keel_cipher_open(struct keel_cipher *cipher, struct keel_envelope *envelope, size_t bytes)
{
    uint8_t *text = (uint8_t *)envelope + offsetof(struct keel_envelope, message);
    int sealed = (int)sizeof envelope->message, count;
    if (bytes < sizeof *envelope || envelope->bytes != bytes - sizeof *envelope ||
        envelope->bytes > KEEL_CHUNK_BYTES ||
        (envelope->magic != KEEL_ENVELOPE_WHOLE && envelope->magic != KEEL_ENVELOPE_HEADER))
        return false;
    bool whole = envelope->magic == KEEL_ENVELOPE_WHOLE;
    if (whole)
        sealed += (int)envelope->bytes;
    bool good =
        begin(cipher, envelope, (const uint8_t *)(envelope + 1), whole ? 0 : (int)envelope->bytes, 0) &&
        EVP_CIPHER_CTX_ctrl(cipher->context, EVP_CTRL_AEAD_SET_TAG, KEEL_TAG_BYTES, envelope->tag) == 1 &&
        EVP_CipherUpdate(cipher->context, text, &count, text, sealed) == 1 &&
        EVP_CipherFinal_ex(cipher->context, text + sealed, &count) == 1;
    if (!good)
        return false;
    cipher->number++;
    return envelope->message.magic == KEEL_MESSAGE_MAGIC && envelope->message.bytes == envelope->bytes;
}
