/* handshake.h - the proof that a connection's other side knows the job key.
 *
 * Pure: keyed BLAKE2b (libsodium) over the role, both fresh challenges, the epoch and both ranks, so that a
 * proof is good for one connection, one direction, one epoch and one pair of ranks. It guards who may join;
 * what follows on the connection is neither encrypted nor signed. */
#ifndef KEEL_TRANSPORT_HANDSHAKE_H
#define KEEL_TRANSPORT_HANDSHAKE_H

#include "message.h"

enum keel_handshake_role { KEEL_ROLE_DIALER = 1, KEEL_ROLE_LISTENER = 2 };

/* Once per process before the others; any thread. */
enum keel_status keel_handshake_init(void);
void keel_handshake_challenge(uint8_t out[KEEL_CHALLENGE_BYTES]);
void keel_handshake_prove(const uint8_t key[KEEL_KEY_BYTES], enum keel_handshake_role role,
                          const uint8_t listener_challenge[KEEL_CHALLENGE_BYTES],
                          const uint8_t dialer_challenge[KEEL_CHALLENGE_BYTES], uint64_t epoch,
                          uint32_t dialer, uint32_t listener, uint8_t out[KEEL_PROOF_BYTES]);
/* In constant time. */
bool keel_handshake_equal(const uint8_t left[KEEL_PROOF_BYTES], const uint8_t right[KEEL_PROOF_BYTES]);

#endif
