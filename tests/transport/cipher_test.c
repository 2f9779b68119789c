/* cipher_test.c - envelopes: what was sealed opens once, in its turn, unchanged; nothing else does. */
#include "handshake.h"
#include "harness.h"

#include <keel/memory.h>
#include <string.h>

enum { PAYLOAD = 200, SIZE = sizeof(struct keel_envelope) + PAYLOAD };

union packet {
    struct keel_envelope envelope;
    uint8_t bytes[SIZE];
};

static const uint8_t key[KEEL_KEY_BYTES] = "a key that both sides have made";

static enum keel_cipher_kind kind_of(int loop)
{
    return loop % 2 == 0 ? KEEL_CIPHER_CHACHA : keel_cipher_best();
}

static struct keel_cipher *cipher_of(int loop)
{
    struct keel_cipher *cipher;
    ck_ok(keel_handshake_init());
    ck_ok(keel_cipher_create(kind_of(loop), key, &cipher));
    return cipher;
}

static union packet seal(struct keel_cipher *cipher, uint64_t sequence, bool whole)
{
    struct keel_message message = {.magic = KEEL_MESSAGE_MAGIC,
                                   .kind = KEEL_MESSAGE_DATA,
                                   .epoch = 3,
                                   .sequence = sequence,
                                   .bytes = PAYLOAD};
    union packet packet;
    memset(&packet, 0, sizeof packet);
    for (uint32_t k = 0; k < PAYLOAD; k++)
        packet.bytes[sizeof packet.envelope + k] = (uint8_t)(k * 7 + sequence);
    keel_cipher_seal(cipher, &packet.envelope, &message, &packet.envelope + 1, whole);
    keel_cipher_advance(cipher);
    return packet;
}

static void check_payload(const union packet *packet, uint64_t sequence)
{
    for (uint32_t k = 0; k < PAYLOAD; k++)
        ck_assert_uint_eq(packet->bytes[sizeof packet->envelope + k], (uint8_t)(k * 7 + sequence));
}

START_TEST(what_is_sealed_opens_in_its_turn_and_shows_nothing_before)
{
    struct keel_cipher *sealer = cipher_of(_i), *opener = cipher_of(_i);
    for (uint64_t sequence = 0; sequence < 50; sequence++) {
        bool whole = sequence % 3 != 0;
        union packet packet = seal(sealer, sequence, whole), plain = packet;
        struct keel_message nothing = {.magic = KEEL_MESSAGE_MAGIC};
        for (uint32_t k = 0; k + 8 <= sizeof packet.envelope; k++)
            ck_assert_int_ne(memcmp(packet.bytes + k, &nothing.magic, sizeof nothing.magic), 0);
        ck_assert(keel_cipher_open(opener, &packet.envelope, SIZE));
        ck_assert_uint_eq(packet.envelope.message.sequence, sequence);
        ck_assert_uint_eq(packet.envelope.message.bytes, PAYLOAD);
        check_payload(&packet, sequence);
        ck_assert(whole == (memcmp(plain.bytes + sizeof plain.envelope, packet.bytes + sizeof packet.envelope,
                                   PAYLOAD) != 0));
    }
    keel_cipher_free(sealer);
    keel_cipher_free(opener);
}
END_TEST

START_TEST(one_changed_bit_anywhere_and_it_stays_shut)
{
    struct keel_cipher *sealer = cipher_of(_i), *opener = cipher_of(_i);
    for (int whole = 0; whole < 2; whole++) {
        union packet packet = seal(sealer, 9, whole == 1), touched;
        for (size_t bit = 0; bit < (size_t)SIZE * 8; bit++) {
            touched = packet;
            touched.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            ck_assert_msg(!keel_cipher_open(opener, &touched.envelope, SIZE), "bit %zu", bit);
        }
        for (size_t bytes = 0; bytes < SIZE; bytes++) {
            touched = packet;
            ck_assert(!keel_cipher_open(opener, &touched.envelope, bytes));
        }
        ck_assert(keel_cipher_open(opener, &packet.envelope, SIZE)); /* what failed has moved nothing */
    }
    keel_cipher_free(sealer);
    keel_cipher_free(opener);
}
END_TEST

START_TEST(repeated_reordered_and_missing_messages_stay_shut)
{
    struct keel_cipher *sealer = cipher_of(_i), *opener = cipher_of(_i);
    union packet first = seal(sealer, 0, true), second = seal(sealer, 1, true), third = seal(sealer, 2, true);
    union packet early = second, again = first, skipping = third;
    ck_assert(!keel_cipher_open(opener, &early.envelope, SIZE));
    ck_assert(keel_cipher_open(opener, &first.envelope, SIZE));
    ck_assert(!keel_cipher_open(opener, &again.envelope, SIZE));
    ck_assert(!keel_cipher_open(opener, &skipping.envelope, SIZE));
    ck_assert(keel_cipher_open(opener, &second.envelope, SIZE));
    ck_assert(keel_cipher_open(opener, &third.envelope, SIZE));
    keel_cipher_free(sealer);
    keel_cipher_free(opener);
}
END_TEST

struct side {
    uint8_t secret[KEEL_KEY_BYTES], challenge[KEEL_CHALLENGE_BYTES];
    struct keel_cipher *sealer, *opener;
};

static void agree(struct side *mine, enum keel_handshake_role role, const uint8_t theirs[KEEL_KEY_BYTES],
                  const struct keel_parties *parties, const uint8_t job[KEEL_KEY_BYTES], int loop)
{
    ck_ok(keel_handshake_ciphers(job, role, parties, mine->secret, theirs, kind_of(loop), &mine->sealer,
                                 &mine->opener));
}

static void forget(struct side *side)
{
    keel_cipher_free(side->sealer);
    keel_cipher_free(side->opener);
}

/* What the dialer and the listener agree about, but for one thing that differs at the listener. */
enum { NOTHING, EPOCH, DIALER, LISTENER, JOB_KEY, CHALLENGE, SECRET, MEMBERS, DIFFERENCES };

START_TEST(both_sides_make_the_same_keys_and_only_for_one_connection_epoch_and_pair)
{
    static const uint8_t other_key[KEEL_KEY_BYTES] = "another";
    struct side dialer, listener, stranger;
    ck_ok(keel_handshake_init());
    keel_handshake_exchange(dialer.secret, dialer.challenge);
    keel_handshake_exchange(listener.secret, listener.challenge);
    keel_handshake_exchange(stranger.secret, stranger.challenge);
    static const uint8_t members[2][KEEL_MEMBERS_BYTES] = {"these", "others"};
    struct keel_parties parties = {listener.challenge, dialer.challenge, 7, 1, 2, members[0]},
                        there = parties;
    there.epoch += _i == EPOCH;
    there.dialer += _i == DIALER;
    there.listener += _i == LISTENER;
    if (_i == MEMBERS)
        there.members = members[1];
    if (_i == CHALLENGE)
        there.dialer_challenge = stranger.challenge;
    if (_i == SECRET)
        memcpy(listener.secret, stranger.secret, sizeof listener.secret);
    agree(&dialer, KEEL_ROLE_DIALER, listener.challenge, &parties, key, 1);
    agree(&listener, KEEL_ROLE_LISTENER, dialer.challenge, &there, _i == JOB_KEY ? other_key : key, 1);
    union packet there_packet = seal(dialer.sealer, 1, true), back = seal(listener.sealer, 2, true);
    union packet echo = there_packet;
    ck_assert(keel_cipher_open(listener.opener, &there_packet.envelope, SIZE) == (_i == NOTHING));
    ck_assert(keel_cipher_open(dialer.opener, &back.envelope, SIZE) == (_i == NOTHING));
    forget(&dialer);
    agree(&dialer, KEEL_ROLE_DIALER, listener.challenge, &parties, key, 1);
    ck_assert(
        !keel_cipher_open(dialer.opener, &echo.envelope, SIZE)); /* what one says comes not back to it */
    forget(&dialer);
    forget(&listener);
}
END_TEST

START_TEST(a_challenge_that_would_make_the_keys_known_is_refused)
{
    static const uint8_t weak[KEEL_CHALLENGE_BYTES] = {0};
    struct side side;
    ck_ok(keel_handshake_init());
    keel_handshake_exchange(side.secret, side.challenge);
    struct keel_parties parties = {side.challenge, weak, 7, 1, 2, weak};
    uint64_t live = keel_memory_stats().live_bytes;
    ck_assert_int_eq(keel_handshake_ciphers(key, KEEL_ROLE_LISTENER, &parties, side.secret, weak,
                                            KEEL_CIPHER_CHACHA, &side.sealer, &side.opener),
                     KEEL_CORRUPT);
    ck_assert_uint_eq(keel_memory_stats().live_bytes, live);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, what_is_sealed_opens_in_its_turn_and_shows_nothing_before, 0, 2);
    tcase_add_loop_test(tc, one_changed_bit_anywhere_and_it_stays_shut, 0, 2);
    tcase_add_loop_test(tc, repeated_reordered_and_missing_messages_stay_shut, 0, 2);
    tcase_add_loop_test(tc, both_sides_make_the_same_keys_and_only_for_one_connection_epoch_and_pair, 0,
                        DIFFERENCES);
    tcase_add_test(tc, a_challenge_that_would_make_the_keys_known_is_refused);
}
KEEL_TEST_MAIN("transport ciphers", cases, 30)
