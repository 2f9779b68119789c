/* handshake.h - the proof that a connection's other side knows the job key, and the connection's own keys.
 *
 * Pure: keyed BLAKE2b (libsodium) over the role, both fresh challenges, the epoch, the group's members and
 * both ranks, so that a proof is good for one connection, one direction, one group and one pair of ranks. So
 * are the keys that seal what follows (cipher.h). A challenge is a fresh public key (X25519), and what both
 * sides compute from the two goes into the keys: who learns the job key later cannot open what was recorded
 * before. */
#ifndef KEEL_TRANSPORT_HANDSHAKE_H
#define KEEL_TRANSPORT_HANDSHAKE_H

#include "cipher.h"

enum keel_handshake_role { KEEL_ROLE_DIALER = 1, KEEL_ROLE_LISTENER = 2 };

/* Who talks to whom. */
struct keel_parties {
    const uint8_t *listener_challenge, *dialer_challenge; /* KEEL_CHALLENGE_BYTES each */
    uint64_t epoch;
    uint32_t dialer, listener;
    const uint8_t *members; /* KEEL_MEMBERS_BYTES: of the dialer's group */
};

/* Once per process before the others; any thread. */
enum keel_status keel_handshake_init(void);
/* Bytes that nobody has seen before. */
void keel_handshake_challenge(uint8_t out[KEEL_CHALLENGE_BYTES]);
/* The same, and the secret behind them. */
void keel_handshake_exchange(uint8_t out_secret[KEEL_KEY_BYTES], uint8_t out[KEEL_CHALLENGE_BYTES]);
/* Who a group is: its ranks, the address of each, and which of them carries each shard. Two ranks that open
 * an epoch with different ones are in different groups. */
void keel_handshake_members(const struct keel_group_config *config, uint8_t out[KEEL_MEMBERS_BYTES]);
void keel_handshake_prove(const uint8_t key[KEEL_KEY_BYTES], enum keel_handshake_role role,
                          const struct keel_parties *parties, uint8_t out[KEEL_PROOF_BYTES]);
/* In constant time. */
bool keel_handshake_equal(const uint8_t left[KEEL_PROOF_BYTES], const uint8_t right[KEEL_PROOF_BYTES]);
/* The ciphers of what this role sends and hears. `secret` is ours, `theirs` the other side's challenge, which
 * must have been proven, or what is opened with the cipher proves it. CORRUPT: a challenge that no honest
 * side makes. */
enum keel_status keel_handshake_ciphers(const uint8_t key[KEEL_KEY_BYTES], enum keel_handshake_role role,
                                        const struct keel_parties *parties,
                                        const uint8_t secret[KEEL_KEY_BYTES],
                                        const uint8_t theirs[KEEL_CHALLENGE_BYTES],
                                        enum keel_cipher_kind kind, struct keel_cipher **out_sealer,
                                        struct keel_cipher **out_opener);
void keel_handshake_wipe(uint8_t secret[KEEL_KEY_BYTES]);

#endif
