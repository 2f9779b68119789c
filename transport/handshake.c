/* handshake.c - challenges and proofs with libsodium. */
#include "handshake.h"

#include <sodium.h>
#include <string.h>

enum keel_status keel_handshake_init(void)
{
    if (sodium_init() < 0)
        return keel_fail(KEEL_UNSUPPORTED, "libsodium cannot start: no source of random numbers");
    return KEEL_OK;
}

void keel_handshake_challenge(uint8_t out[KEEL_CHALLENGE_BYTES])
{
    randombytes_buf(out, KEEL_CHALLENGE_BYTES);
}

void keel_handshake_prove(const uint8_t key[KEEL_KEY_BYTES], enum keel_handshake_role role,
                          const uint8_t listener_challenge[KEEL_CHALLENGE_BYTES],
                          const uint8_t dialer_challenge[KEEL_CHALLENGE_BYTES], uint64_t epoch,
                          uint32_t dialer, uint32_t listener, uint8_t out[KEEL_PROOF_BYTES])
{
    static const char domain[] = "keel transport handshake 1";
    uint8_t role_byte = (uint8_t)role;
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, KEEL_KEY_BYTES, KEEL_PROOF_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)domain, sizeof domain);
    crypto_generichash_update(&state, &role_byte, sizeof role_byte);
    crypto_generichash_update(&state, listener_challenge, KEEL_CHALLENGE_BYTES);
    crypto_generichash_update(&state, dialer_challenge, KEEL_CHALLENGE_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)&epoch, sizeof epoch);
    crypto_generichash_update(&state, (const uint8_t *)&dialer, sizeof dialer);
    crypto_generichash_update(&state, (const uint8_t *)&listener, sizeof listener);
    crypto_generichash_final(&state, out, KEEL_PROOF_BYTES);
}

bool keel_handshake_equal(const uint8_t left[KEEL_PROOF_BYTES], const uint8_t right[KEEL_PROOF_BYTES])
{
    return sodium_memcmp(left, right, KEEL_PROOF_BYTES) == 0;
}
