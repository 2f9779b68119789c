/* shm_ring_test.c - the rings of a ring pair: whole messages in order at any size, sleepers that are rung,
 * and a hostile other side that writes what it likes. Both sides live in one process here, as two mappings of
 * one segment. */
#include "shm_ring.h"

#include "harness.h"

#include <fcntl.h>
#include <keel/memory.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct pair {
    struct keel_shm_ring dialer, listener;
};

static struct pair pair_open(void)
{
    struct pair pair;
    int fd = -1;
    ck_ok(keel_shm_ring_create(&pair.dialer, &fd));
    ck_ok(keel_shm_ring_map(&pair.listener, fd));
    close(fd);
    return pair;
}

static void pair_close(struct pair *pair)
{
    keel_shm_ring_unmap(&pair->dialer);
    keel_shm_ring_unmap(&pair->listener);
}

static uint32_t random_u32(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static uint8_t byte_of(uint64_t number, uint32_t at)
{
    return (uint8_t)(number * 31 + at * 7 + (at >> 8));
}

static struct keel_message message_of(uint64_t number, uint32_t bytes)
{
    return (struct keel_message){.magic = KEEL_MESSAGE_MAGIC, .sequence = number, .bytes = bytes};
}

static enum keel_shm_ring_result put(struct keel_shm_ring *pair, uint64_t number, uint32_t bytes)
{
    static uint8_t payload[KEEL_CHUNK_BYTES];
    struct keel_message message = message_of(number, bytes);
    for (uint32_t at = 0; at < bytes; at++)
        payload[at] = byte_of(number, at);
    return keel_shm_ring_put(pair, &message, payload);
}

/* The next message is this one. */
/* True: the other side was told. */
static bool take(struct keel_shm_ring *pair, uint64_t number, uint32_t bytes)
{
    struct keel_message message;
    struct keel_reference reference;
    const uint8_t *payload = NULL;
    ck_assert_int_eq(keel_shm_ring_get(pair, &message, &payload, &reference), KEEL_SHM_RING_DONE);
    ck_assert_uint_eq(message.sequence, number);
    ck_assert_uint_eq(message.bytes, bytes);
    uint32_t good = 0;
    while (good < bytes && payload[good] == byte_of(number, good))
        good++;
    ck_assert_uint_eq(good, bytes);
    return keel_shm_ring_drop(pair);
}

static uint32_t size_of(uint64_t *seed)
{
    static const uint32_t corners[] = {0, 1, 8, 23, 24, 25, 64, 4096, KEEL_CHUNK_BYTES - 1, KEEL_CHUNK_BYTES};
    uint32_t pick = random_u32(seed) % 20;
    return pick < 10 ? corners[pick] : random_u32(seed) % (KEEL_CHUNK_BYTES >> pick % 10);
}

START_TEST(messages_of_any_size_come_whole_and_in_order_both_ways)
{
    enum { MESSAGES = 2000 };
    struct pair pair = pair_open();
    uint64_t out_seed = 1, in_seed = 1, choose = 7, sent = 0, got = 0;
    uint32_t refused = 0, size = size_of(&out_seed);
    struct keel_shm_ring *from = _i == 0 ? &pair.dialer : &pair.listener;
    struct keel_shm_ring *to = _i == 0 ? &pair.listener : &pair.dialer;
    while (got < MESSAGES) {
        bool may_put = sent < MESSAGES && (got == sent || random_u32(&choose) % 8 != 0);
        if (may_put && put(from, sent, size) == KEEL_SHM_RING_DONE) {
            sent++;
            size = size_of(&out_seed);
        } else if (got < sent) {
            refused += may_put;
            take(to, got++, size_of(&in_seed));
        }
    }
    ck_assert_uint_gt(refused, 20);
    pair_close(&pair);
}
END_TEST

START_TEST(a_full_ring_says_so_and_says_once_when_half_of_it_is_free)
{
    struct pair pair = pair_open();
    uint64_t sent = 0;
    while (put(&pair.dialer, sent, 960) == KEEL_SHM_RING_DONE)
        sent++;
    ck_assert_uint_gt(sent * 1024, KEEL_RING_BYTES - 2048);
    for (uint64_t k = 0; k < sent / 2 - 2; k++) {
        ck_assert(!keel_shm_ring_has_room(&pair.dialer));
        take(&pair.listener, k, 960);
    }
    for (uint64_t k = sent / 2 - 2; k < sent / 2 + 2; k++)
        take(&pair.listener, k, 960);
    ck_assert(keel_shm_ring_has_room(&pair.dialer));
    ck_assert(!keel_shm_ring_has_room(&pair.dialer));
    ck_assert_int_eq(put(&pair.dialer, sent, KEEL_CHUNK_BYTES), KEEL_SHM_RING_DONE);
    pair_close(&pair);
}
END_TEST

START_TEST(only_a_sleeper_is_rung_and_once_a_sleep)
{
    struct pair pair = pair_open();
    ck_assert_int_eq(put(&pair.dialer, 0, 8), KEEL_SHM_RING_DONE);
    ck_assert(!keel_shm_ring_must_ring_for_message(&pair.dialer));
    ck_assert(!keel_shm_ring_sleep(&pair.listener, false)); /* there is a message */
    keel_shm_ring_wake(&pair.listener);
    take(&pair.listener, 0, 8);
    ck_assert(keel_shm_ring_sleep(&pair.listener, false));
    ck_assert_int_eq(put(&pair.dialer, 1, 8), KEEL_SHM_RING_DONE);
    ck_assert(keel_shm_ring_must_ring_for_message(&pair.dialer));
    ck_assert(!keel_shm_ring_must_ring_for_message(&pair.dialer));
    keel_shm_ring_wake(&pair.listener);
    take(&pair.listener, 1, 8);
    ck_assert_int_eq(put(&pair.dialer, 2, 8), KEEL_SHM_RING_DONE);
    ck_assert(!keel_shm_ring_must_ring_for_message(&pair.dialer));
    pair_close(&pair);
}
END_TEST

START_TEST(who_sleeps_for_room_is_rung_when_half_of_the_ring_is_free)
{
    struct pair pair = pair_open();
    uint64_t sent = 0, taken = 0;
    bool rung = false;
    while (put(&pair.dialer, sent, 960) == KEEL_SHM_RING_DONE)
        sent++;
    ck_assert(keel_shm_ring_sleep(&pair.dialer, false));
    for (; taken < sent && !rung; taken++) {
        rung = take(&pair.listener, taken, 960) && keel_shm_ring_must_ring_for_room(&pair.listener);
    }
    ck_assert(rung);
    ck_assert_uint_ge(taken, sent / 2);
    ck_assert_uint_le(taken, sent / 2 + 2 + KEEL_RING_UNTOLD_BYTES / 1024);
    ck_assert(!keel_shm_ring_sleep(&pair.dialer, false));
    ck_assert(keel_shm_ring_has_room(&pair.dialer));
    pair_close(&pair);
}
END_TEST

/* The other side's words lie in the segment's first page and records in the ring: all that it can write. */
START_TEST(whatever_the_other_side_writes_the_own_memory_alone_is_touched)
{
    enum { ATTACKS = 10000, WORDS = 512 };
    uint64_t seed = (uint64_t)_i + 1;
    uint32_t broken = 0, taken = 0;
    struct pair pair = pair_open();
    for (uint32_t k = 0; k < ATTACKS; k++) {
        uint64_t *page = (uint64_t *)(void *)pair.dialer.segment, *ring = (uint64_t *)(void *)pair.dialer.out;
        struct keel_message message;
        struct keel_reference reference;
        const uint8_t *payload = NULL;
        if (random_u32(&seed) % 2 == 0) {
            uint32_t at = random_u32(&seed) % 4 == 0 ? random_u32(&seed) % WORDS : random_u32(&seed) % 6 * 8;
            uint64_t value = random_u32(&seed) % 4 == 0 ? UINT64_MAX - random_u32(&seed) : random_u32(&seed);
            page[at] = random_u32(&seed) % 2 == 0 ? value : pair.listener.in_head + value % 8 * 64;
        }
        message = message_of(k, random_u32(&seed) % (2 * KEEL_CHUNK_BYTES) >> random_u32(&seed) % 16);
        message.magic += random_u32(&seed) % 8 == 0;
        memcpy(ring + pair.listener.in_head % KEEL_RING_BYTES / 8, &message, sizeof message);
        enum keel_shm_ring_result result = keel_shm_ring_get(&pair.listener, &message, &payload, &reference);
        broken += result == KEEL_SHM_RING_BROKEN;
        if (result == KEEL_SHM_RING_DONE && payload == NULL) {
            keel_shm_ring_drop(&pair.listener);
        } else if (result == KEEL_SHM_RING_DONE) {
            volatile uint8_t sum = 0;
            ck_assert_uint_le(message.bytes, KEEL_CHUNK_BYTES);
            ck_assert(payload >= pair.listener.in);
            ck_assert(payload + message.bytes <= pair.listener.in + 2 * KEEL_RING_BYTES);
            for (uint32_t at = 0; at < message.bytes; at++)
                sum ^= payload[at];
            keel_shm_ring_drop(&pair.listener);
            taken++;
        }
        (void)keel_shm_ring_must_ring_for_room(&pair.listener);
        (void)put(&pair.listener, k, random_u32(&seed) % 512);
        (void)keel_shm_ring_must_ring_for_message(&pair.listener);
        (void)keel_shm_ring_has_room(&pair.listener);
        (void)keel_shm_ring_sleep(&pair.listener, false);
        keel_shm_ring_wake(&pair.listener);
    }
    ck_assert_uint_gt(broken, 100);
    ck_assert_uint_gt(taken, 100);
    pair_close(&pair);
}
END_TEST

START_TEST(a_reference_keeps_its_place_in_the_order_and_is_known_when_dropped)
{
    struct pair pair = pair_open();
    struct keel_message message = message_of(1, KEEL_CHUNK_BYTES);
    struct keel_reference reference = {7, 4096}, got = {0, 0};
    const uint8_t *payload = NULL;
    ck_assert_int_eq(put(&pair.dialer, 0, KEEL_RING_UNTOLD_BYTES), KEEL_SHM_RING_DONE);
    ck_assert_int_eq(keel_shm_ring_refer(&pair.dialer, &message, &reference), KEEL_SHM_RING_DONE);
    uint64_t end = pair.dialer.out_tail;
    ck_assert_int_eq(put(&pair.dialer, 2, 5000), KEEL_SHM_RING_DONE);
    take(&pair.listener, 0, KEEL_RING_UNTOLD_BYTES);
    ck_assert(keel_shm_ring_sleep(&pair.dialer, true) == false); /* something was dropped */
    keel_shm_ring_wake(&pair.dialer);
    ck_assert_uint_lt(keel_shm_ring_dropped(&pair.dialer), end);
    ck_assert(keel_shm_ring_sleep(&pair.dialer, true));
    ck_assert_int_eq(keel_shm_ring_get(&pair.listener, &message, &payload, &got), KEEL_SHM_RING_DONE);
    ck_assert_ptr_null(payload);
    ck_assert_uint_eq(message.magic, KEEL_MESSAGE_MAGIC);
    ck_assert_uint_eq(message.bytes, KEEL_CHUNK_BYTES);
    ck_assert_uint_eq(got.region, 7);
    ck_assert_uint_eq(got.offset, 4096);
    ck_assert(!keel_shm_ring_withdrawn(&pair.listener));
    keel_shm_ring_withdraw(&pair.dialer);
    ck_assert(keel_shm_ring_withdrawn(&pair.listener));
    keel_shm_ring_drop(&pair.listener);
    ck_assert(keel_shm_ring_must_ring_for_room(&pair.listener));
    ck_assert_uint_eq(keel_shm_ring_dropped(&pair.dialer), end);
    take(&pair.listener, 2, 5000);
    pair_close(&pair);
}
END_TEST

START_TEST(a_position_that_goes_back_or_beyond_breaks_the_sender)
{
    static const int64_t moves[] = {-64, KEEL_RING_BYTES + 64, INT64_MAX};
    struct pair pair = pair_open();
    uint64_t sent = 0;
    while (put(&pair.dialer, sent, 960) == KEEL_SHM_RING_DONE)
        sent++;
    for (uint64_t k = 0; k < KEEL_RING_UNTOLD_BYTES / 1024; k++)
        take(&pair.listener, k, 960);
    while (put(&pair.dialer, sent, 960) == KEEL_SHM_RING_DONE)
        sent++;
    uint64_t *head = (uint64_t *)(void *)pair.dialer.segment + KEEL_CACHE_LINE_BYTES / 8;
    ck_assert_uint_eq(*head, KEEL_RING_UNTOLD_BYTES); /* or this test knows the layout no more */
    *head += (uint64_t)moves[_i];
    ck_assert_int_eq(put(&pair.dialer, sent + 1, 960), KEEL_SHM_RING_BROKEN);
    pair_close(&pair);
}
END_TEST

START_TEST(what_is_no_sealed_segment_is_refused)
{
    struct keel_shm_ring pair;
    int fd = -1;
    ck_ok(keel_shm_ring_create(&pair, &fd));
    ck_assert_int_ne(ftruncate(fd, 0), 0); /* nobody can take the memory away */
    off_t bytes = lseek(fd, 0, SEEK_END);
    keel_shm_ring_unmap(&pair);
    close(fd);
    for (int kind = 0; kind < 3; kind++) {
        fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        ck_assert_int_eq(ftruncate(fd, kind == 0 ? bytes : bytes - (kind == 1)), 0);
        if (kind != 0)
            ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
        if (kind == 2)
            ck_ok(keel_shm_ring_map(&pair, fd));
        else
            ck_status(keel_shm_ring_map(&pair, fd), KEEL_CORRUPT);
        close(fd);
    }
    keel_shm_ring_unmap(&pair);
    int pipe_fds[2];
    ck_assert_int_eq(pipe(pipe_fds), 0);
    ck_status(keel_shm_ring_map(&pair, pipe_fds[0]), KEEL_CORRUPT);
    ck_status(keel_shm_ring_map(&pair, -1), KEEL_CORRUPT);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, messages_of_any_size_come_whole_and_in_order_both_ways, 0, 2);
    tcase_add_test(tc, a_full_ring_says_so_and_says_once_when_half_of_it_is_free);
    tcase_add_test(tc, only_a_sleeper_is_rung_and_once_a_sleep);
    tcase_add_test(tc, who_sleeps_for_room_is_rung_when_half_of_the_ring_is_free);
    tcase_add_loop_test(tc, whatever_the_other_side_writes_the_own_memory_alone_is_touched, 0, 4);
    tcase_add_test(tc, a_reference_keeps_its_place_in_the_order_and_is_known_when_dropped);
    tcase_add_loop_test(tc, a_position_that_goes_back_or_beyond_breaks_the_sender, 0, 3);
    tcase_add_test(tc, what_is_no_sealed_segment_is_refused);
}
KEEL_TEST_MAIN("transport shm rings", cases, 60)
