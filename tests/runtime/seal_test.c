/* seal_test.c - a datagram opens where it was meant to, once, unaltered; nothing else opens. */
#include "seal.h"

#include "harness.h"
#include <string.h>

enum { RUN = 77, LAUNCHER = 0, AGENT = 3 };

static const uint8_t key[KEEL_SEAL_KEY_BYTES] = {1, 2, 3};
static struct keel_seal sender, receiver;
static uint8_t datagram[KEEL_DATAGRAM_BYTES], opened[KEEL_MESSAGE_BYTES];
static struct keel_seal_label label;
static uint32_t opened_bytes;

static void setup(void)
{
    keel_seal_init(&sender, key, RUN, AGENT, 1);
    keel_seal_init(&receiver, key, RUN, LAUNCHER, 1);
}

static uint32_t wrap(struct keel_seal *seal, const void *data, uint32_t bytes)
{
    const struct keel_seal_label to = {.to = LAUNCHER, .channel = 2, .version = 9};
    return keel_seal_wrap(seal, &to, data, bytes, datagram);
}

static enum keel_seal_verdict open_it(uint32_t bytes)
{
    return keel_seal_open(&receiver, datagram, bytes, &label, opened, &opened_bytes);
}

START_TEST(what_was_sealed_opens_with_its_label)
{
    static uint8_t message[KEEL_MESSAGE_BYTES];
    for (uint32_t i = 0; i < sizeof message; i++)
        message[i] = (uint8_t)(i * 7);
    static const uint32_t sizes[] = {0, 1, 63, 64, 1000, KEEL_MESSAGE_BYTES};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint32_t bytes = wrap(&sender, message, sizes[i]);
        ck_assert_uint_eq(bytes, sizes[i] + KEEL_SEAL_EXTRA_BYTES);
        ck_assert_int_eq(open_it(bytes), KEEL_SEAL_OPENED);
        ck_assert_uint_eq(opened_bytes, sizes[i]);
        ck_assert_int_eq(memcmp(opened, message, sizes[i]), 0);
        ck_assert(label.from == AGENT && label.to == LAUNCHER && label.channel == 2 && label.version == 9);
    }
}
END_TEST

START_TEST(a_flipped_bit_at_any_place_is_noticed)
{
    static const char text[] = "a step is committed";
    uint32_t bytes = wrap(&sender, text, sizeof text);
    for (uint32_t at = 0; at < bytes; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            datagram[at] ^= (uint8_t)(1U << bit);
            ck_assert_int_ne(open_it(bytes), KEEL_SEAL_OPENED);
            datagram[at] ^= (uint8_t)(1U << bit);
        }
    ck_assert_int_eq(open_it(bytes), KEEL_SEAL_OPENED); /* and the attempts did no harm */
}
END_TEST

START_TEST(a_cut_or_lengthened_datagram_does_not_open)
{
    static const char text[] = "a step is committed";
    uint32_t bytes = wrap(&sender, text, sizeof text);
    for (uint32_t cut = 0; cut < bytes; cut++)
        ck_assert_int_ne(open_it(cut), KEEL_SEAL_OPENED);
    for (uint32_t more = bytes + 1; more < bytes + 40; more++)
        ck_assert_int_ne(open_it(more), KEEL_SEAL_OPENED);
    ck_assert_int_eq(open_it(bytes), KEEL_SEAL_OPENED);
}
END_TEST

START_TEST(garbage_does_not_open)
{
    uint64_t state = 42;
    for (int round = 0; round < 2000; round++) {
        uint32_t bytes = (uint32_t)(state >> 40) % 300;
        for (uint32_t i = 0; i < bytes; i++) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            datagram[i] = (uint8_t)(state >> 33);
        }
        ck_assert_int_eq(open_it(bytes), KEEL_SEAL_GARBAGE);
    }
}
END_TEST

START_TEST(another_key_run_or_receiver_does_not_open)
{
    static const uint8_t other_key[KEEL_SEAL_KEY_BYTES] = {1, 2, 4};
    struct keel_seal stranger;
    keel_seal_init(&stranger, other_key, RUN, AGENT, 1);
    ck_assert_int_eq(open_it(wrap(&stranger, "x", 1)), KEEL_SEAL_FORGED);
    keel_seal_init(&stranger, key, RUN + 1, AGENT, 1);
    ck_assert_int_eq(open_it(wrap(&stranger, "x", 1)), KEEL_SEAL_FOREIGN);
    const struct keel_seal_label elsewhere = {.to = 5};
    uint32_t bytes = keel_seal_wrap(&sender, &elsewhere, (const uint8_t *)"x", 1, datagram);
    ck_assert_int_eq(open_it(bytes), KEEL_SEAL_ASTRAY);
}
END_TEST

START_TEST(nothing_opens_twice_and_late_ones_open_within_the_window)
{
    enum { COUNT = 200 };
    static uint8_t kept[COUNT][KEEL_SEAL_EXTRA_BYTES + 1];
    for (int i = 0; i < COUNT; i++) {
        wrap(&sender, "x", 1);
        memcpy(kept[i], datagram, sizeof kept[i]);
    }
    static const struct {
        int index;
        enum keel_seal_verdict verdict;
    } script[] = {
        {5, KEEL_SEAL_OPENED},     {5, KEEL_SEAL_REPLAYED}, {3, KEEL_SEAL_OPENED},
        {3, KEEL_SEAL_REPLAYED},   {4, KEEL_SEAL_OPENED},   {68, KEEL_SEAL_OPENED},
        {5, KEEL_SEAL_REPLAYED},   {6, KEEL_SEAL_OPENED},   {6, KEEL_SEAL_REPLAYED},
        {0, KEEL_SEAL_REPLAYED},   {199, KEEL_SEAL_OPENED}, {68, KEEL_SEAL_REPLAYED},
        {135, KEEL_SEAL_REPLAYED}, {136, KEEL_SEAL_OPENED}, {136, KEEL_SEAL_REPLAYED},
        {199, KEEL_SEAL_REPLAYED},
    };
    for (size_t i = 0; i < sizeof script / sizeof script[0]; i++) {
        memcpy(datagram, kept[script[i].index], sizeof kept[0]);
        ck_assert_msg(open_it(sizeof kept[0]) == script[i].verdict, "line %zu, datagram %d", i,
                      script[i].index);
    }
}
END_TEST

START_TEST(a_replaced_incarnation_is_no_longer_heard)
{
    struct keel_seal restarted, impostor;
    keel_seal_init(&restarted, key, RUN, AGENT, 2);
    keel_seal_init(&impostor, key, RUN, AGENT, 2); /* claims the same incarnation, is another process */
    ck_assert_int_eq(open_it(wrap(&sender, "x", 1)), KEEL_SEAL_OPENED);
    ck_assert_int_eq(open_it(wrap(&restarted, "x", 1)), KEEL_SEAL_OPENED);
    ck_assert_int_eq(open_it(wrap(&sender, "x", 1)), KEEL_SEAL_REPLACED);
    ck_assert_int_eq(open_it(wrap(&impostor, "x", 1)), KEEL_SEAL_REPLACED);
    ck_assert_int_eq(open_it(wrap(&restarted, "x", 1)), KEEL_SEAL_OPENED);
}
END_TEST

START_TEST(a_datagram_for_a_process_does_not_open_in_the_one_that_replaced_it)
{
    struct keel_seal first, second;
    keel_seal_init(&first, key, RUN, AGENT, 1);
    keel_seal_init(&second, key, RUN, AGENT, 2);
    keel_seal_init(&sender, key, RUN, LAUNCHER, 1);
    const struct keel_seal_label to = {.to = AGENT, .tag = keel_seal_tag(&first)};
    uint32_t bytes = keel_seal_wrap(&sender, &to, (const uint8_t *)"x", 1, datagram);
    ck_assert_int_eq(keel_seal_open(&second, datagram, bytes, &label, opened, &opened_bytes),
                     KEEL_SEAL_ASTRAY);
    ck_assert_int_eq(keel_seal_open(&first, datagram, bytes, &label, opened, &opened_bytes),
                     KEEL_SEAL_OPENED);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, what_was_sealed_opens_with_its_label);
    tcase_add_test(tc, a_flipped_bit_at_any_place_is_noticed);
    tcase_add_test(tc, a_cut_or_lengthened_datagram_does_not_open);
    tcase_add_test(tc, garbage_does_not_open);
    tcase_add_test(tc, another_key_run_or_receiver_does_not_open);
    tcase_add_test(tc, nothing_opens_twice_and_late_ones_open_within_the_window);
    tcase_add_test(tc, a_datagram_for_a_process_does_not_open_in_the_one_that_replaced_it);
    tcase_add_test(tc, a_replaced_incarnation_is_no_longer_heard);
}

KEEL_TEST_MAIN("seal", cases, 20)
