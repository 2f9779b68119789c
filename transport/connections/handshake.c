/* handshake.c - challenges, proofs and session keys with libsodium. */
#include "handshake.h"

#include <sodium.h>
#include <string.h>

static_assert((int)KEEL_CHALLENGE_BYTES == (int)crypto_scalarmult_BYTES &&
                  (int)KEEL_KEY_BYTES == (int)crypto_scalarmult_SCALARBYTES,
              "a challenge is a public key");

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

void keel_handshake_exchange(uint8_t out_secret[KEEL_KEY_BYTES], uint8_t out[KEEL_CHALLENGE_BYTES])
{
    randombytes_buf(out_secret, KEEL_KEY_BYTES);
    (void)crypto_scalarmult_base(out, out_secret); /* cannot fail */
}

static void begin(crypto_generichash_state *state, const uint8_t key[KEEL_KEY_BYTES], const char *domain,
                  enum keel_handshake_role role, const struct keel_parties *parties)
{
    uint8_t role_byte = (uint8_t)role;
    crypto_generichash_init(state, key, KEEL_KEY_BYTES, KEEL_PROOF_BYTES);
    crypto_generichash_update(state, (const uint8_t *)domain, strlen(domain) + 1);
    crypto_generichash_update(state, &role_byte, sizeof role_byte);
    crypto_generichash_update(state, parties->listener_challenge, KEEL_CHALLENGE_BYTES);
    crypto_generichash_update(state, parties->dialer_challenge, KEEL_CHALLENGE_BYTES);
    crypto_generichash_update(state, (const uint8_t *)&parties->epoch, sizeof parties->epoch);
    crypto_generichash_update(state, (const uint8_t *)&parties->dialer, sizeof parties->dialer);
    crypto_generichash_update(state, (const uint8_t *)&parties->listener, sizeof parties->listener);
    crypto_generichash_update(state, parties->members, KEEL_MEMBERS_BYTES);
}

void keel_handshake_members(const struct keel_group_config *config, uint8_t out[KEEL_MEMBERS_BYTES])
{
    static const char domain[] = "keel transport members 1";
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, KEEL_MEMBERS_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)domain, sizeof domain);
    crypto_generichash_update(&state, (const uint8_t *)&config->rank_count, sizeof config->rank_count);
    for (uint32_t rank = 0; rank < config->rank_count; rank++) {
        const struct keel_address *address = &config->addresses[rank];
        crypto_generichash_update(&state, (const uint8_t *)&address->bytes, sizeof address->bytes);
        crypto_generichash_update(&state, address->data, address->bytes);
    }
    crypto_generichash_update(&state, (const uint8_t *)&config->shard_count, sizeof config->shard_count);
    crypto_generichash_update(&state, (const uint8_t *)config->shard_rank,
                              config->shard_count * sizeof *config->shard_rank);
    crypto_generichash_final(&state, out, KEEL_MEMBERS_BYTES);
}

void keel_handshake_prove(const uint8_t key[KEEL_KEY_BYTES], enum keel_handshake_role role,
                          const struct keel_parties *parties, uint8_t out[KEEL_PROOF_BYTES])
{
    crypto_generichash_state state;
    begin(&state, key, "keel transport handshake 2", role, parties);
    crypto_generichash_final(&state, out, KEEL_PROOF_BYTES);
    sodium_memzero(&state, sizeof state);
}

bool keel_handshake_equal(const uint8_t left[KEEL_PROOF_BYTES], const uint8_t right[KEEL_PROOF_BYTES])
{
    return sodium_memcmp(left, right, KEEL_PROOF_BYTES) == 0;
}

/* `both`: what the two sides alone can compute. */
static enum keel_status make_cipher(const uint8_t key[KEEL_KEY_BYTES], enum keel_handshake_role sender,
                                    const struct keel_parties *parties, const uint8_t both[KEEL_KEY_BYTES],
                                    enum keel_cipher_kind kind, struct keel_cipher **out)
{
    uint8_t own[KEEL_KEY_BYTES], kind_byte = (uint8_t)kind;
    crypto_generichash_state state;
    begin(&state, key, "keel transport session 2", sender, parties);
    crypto_generichash_update(&state, &kind_byte, sizeof kind_byte);
    crypto_generichash_update(&state, both, KEEL_KEY_BYTES);
    crypto_generichash_final(&state, own, sizeof own);
    enum keel_status status = keel_cipher_create(kind, own, out);
    sodium_memzero(own, sizeof own);
    sodium_memzero(&state, sizeof state);
    return status;
}

enum keel_status keel_handshake_ciphers(const uint8_t key[KEEL_KEY_BYTES], enum keel_handshake_role role,
                                        const struct keel_parties *parties,
                                        const uint8_t secret[KEEL_KEY_BYTES],
                                        const uint8_t theirs[KEEL_CHALLENGE_BYTES],
                                        enum keel_cipher_kind kind, struct keel_cipher **out_sealer,
                                        struct keel_cipher **out_opener)
{
    enum keel_handshake_role other = role == KEEL_ROLE_DIALER ? KEEL_ROLE_LISTENER : KEEL_ROLE_DIALER;
    uint8_t both[KEEL_KEY_BYTES];
    struct keel_cipher *sealer = NULL, *opener = NULL;
    if (crypto_scalarmult(both, secret, theirs) != 0)
        return keel_fail(KEEL_CORRUPT, "a challenge that no honest side makes");
    enum keel_status status = make_cipher(key, role, parties, both, kind, &sealer);
    if (status == KEEL_OK)
        status = make_cipher(key, other, parties, both, kind, &opener);
    sodium_memzero(both, sizeof both);
    if (status != KEEL_OK) {
        keel_cipher_free(sealer);
        return status;
    }
    *out_sealer = sealer;
    *out_opener = opener;
    return KEEL_OK;
}

void keel_handshake_wipe(uint8_t secret[KEEL_KEY_BYTES])
{
    sodium_memzero(secret, KEEL_KEY_BYTES);
}
