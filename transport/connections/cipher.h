/* cipher.h - one direction of a connection, sealed: every message is authenticated, payload and all; its
 * header is encrypted always, its payload where it is to be.
 *
 * Owns the envelope on the wire and what opens it. Promises: what was not sealed with this direction's key,
 * as the message of this number, does not open, so a changed, repeated, reordered, missing or cut message
 * ends the connection; two messages of a key never have one nonce. A key is good for one connection, one
 * direction, one epoch and one pair of ranks (keel_handshake_key), and is wiped with the cipher.
 *
 * An authenticated cipher of libcrypto with the message's number as nonce: AES-256-GCM (NIST SP 800-38D)
 * where both processors have it, else ChaCha20-Poly1305 (RFC 8439). A payload that is not encrypted is
 * additional data, which for GCM is GMAC: its bytes stay where they are, and cost one pass. One thread at a
 * time. Leaves to session.c when sealing begins.
 */
#ifndef KEEL_TRANSPORT_CIPHER_H
#define KEEL_TRANSPORT_CIPHER_H

#include "message.h"

enum keel_cipher_kind { KEEL_CIPHER_CHACHA = 1, KEEL_CIPHER_AES = 2 };

/* The best that this processor can. */
enum keel_cipher_kind keel_cipher_best(void);

struct keel_cipher;
/* The key is copied. */
enum keel_status keel_cipher_create(enum keel_cipher_kind kind, const uint8_t key[KEEL_KEY_BYTES],
                                    struct keel_cipher **out);
void keel_cipher_free(struct keel_cipher *cipher); /* NULL is accepted */

/* Put the message into the envelope, sealed. `whole`: its payload lies behind the envelope and is encrypted
 * in place. Else the payload (message->bytes at `payload`, anywhere) is read and only authenticated. The same
 * number is used again until keel_cipher_advance says that the message has gone. */
void keel_cipher_seal(struct keel_cipher *cipher, struct keel_envelope *envelope,
                      const struct keel_message *message, const void *payload, bool whole);
void keel_cipher_advance(struct keel_cipher *cipher);
/* Open what has come, in place, `bytes` of it with the payload behind the envelope. False: it is not what was
 * sent, and what lies there now is nothing. */
bool keel_cipher_open(struct keel_cipher *cipher, struct keel_envelope *envelope, size_t bytes);

#endif
